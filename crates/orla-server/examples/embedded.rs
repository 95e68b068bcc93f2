//! A server that embeds the marketplace with a custom executor. The executor has one capability, `echo`,
//! which returns its arguments and needs no process.
//!
//! `cargo run --release -p orla-server --example embedded [PORT]`
//!
//! A kind of provider consists of a settings struct and an executor. The marketplace and the server
//! provide everything else: listing, validation, limits, timeouts and transports.

use std::any::{Any, TypeId};
use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::{
    CallContext, CapabilityExecutor, CapabilityManifest, CapabilityMarketplace, CustomProvider, Limits,
    Outcome, Payload, ProviderType, RuntimeResult,
};
use orla_server::{Server, ServerOptions};
use tokio_util::sync::CancellationToken;

/// The settings of the provider. There are none.
#[derive(Debug)]
struct Echo;

impl CustomProvider for Echo {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        "echo"
    }
}

/// The executor.
struct EchoExecutor;

#[async_trait]
impl CapabilityExecutor for EchoExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<Echo>()
    }

    async fn execute(
        &self,
        _provider: &ProviderType,
        inputs: &Payload,
        _ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        Ok(Outcome { structured: Some(inputs.clone()), ..Outcome::default() })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let port = std::env::args().nth(1).map_or(Ok(8080), |port| port.parse())?;
    let marketplace = CapabilityMarketplace::new(Limits::default());
    marketplace.register_executor(Arc::new(EchoExecutor))?;
    let echo = ProviderType::Custom(Arc::new(Echo));
    marketplace.register_capability(CapabilityManifest::new(
        "echo",
        "Answers with its arguments.",
        echo,
    ))?;

    let server = Server::new(Arc::new(marketplace), ServerOptions::default());
    let bound = server.bind("127.0.0.1", port).await?;
    #[expect(clippy::print_stderr, reason = "an example says where it listens")]
    {
        eprintln!("listening on http://{}/mcp", bound.local_addr());
    }
    let shutdown = CancellationToken::new();
    tokio::select! {
        () = bound.serve(shutdown.clone()) => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(())
}
