//! A new kind of provider, added from outside (RTFS capability system §5.2): `cargo run -p orla-marketplace --example custom_executor`.

use std::any::{Any, TypeId};
use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::rtfs::Value;
use orla_marketplace::{
    Call, CallContext, CapabilityExecutor, CapabilityManifest, CapabilityMarketplace, CustomProvider,
    JsonText, Limits, Outcome, Payload, ProviderType, RuntimeResult,
};

/// The settings: all that a capability of this kind is made of.
#[derive(Debug)]
struct Greeting {
    word: String,
}

impl CustomProvider for Greeting {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        "greeting"
    }
}

/// Runs the calls of every capability with such settings.
struct GreetingExecutor;

#[async_trait]
impl CapabilityExecutor for GreetingExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<Greeting>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        _ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let Greeting { word } = provider.settings()?;
        Ok(Outcome::from_value(Value::from(format!("{word}, {}!", inputs.json()?.as_str()))))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let market = CapabilityMarketplace::new(Limits::default());
    market.register_executor(Arc::new(GreetingExecutor))?;
    let provider = ProviderType::Custom(Arc::new(Greeting { word: "Hello".to_owned() }));
    market.register_capability(CapabilityManifest::new("greet", "Greets a person by name", provider))?;
    let input = Payload::from_json(JsonText::parse(r#""world""#)?);
    let outcome = market.call(Call::to("greet").with(input)).await?;
    assert_eq!(outcome.value()?, Value::from(r#"Hello, "world"!"#));
    Ok(())
}
