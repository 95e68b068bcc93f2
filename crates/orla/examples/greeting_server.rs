//! The server of `orla`, with a kind of provider of one's own (RTFS capability system §8).
use std::any::{Any, TypeId};
use std::process::ExitCode;
use std::sync::Arc;

use orla::marketplace::{rtfs::Value, *};

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
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

struct GreetingExecutor;

#[orla::async_trait]
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
        let input: serde_json::Value = serde_json::from_str(inputs.json()?.as_str()).unwrap_or_default();
        let name = input["name"].as_str().unwrap_or("stranger");
        Ok(Value::String(format!("{word}, {name}!")).into())
    }
}

fn main() -> ExitCode {
    let hello = ProviderType::Custom(Arc::new(Greeting { word: "Hello".to_owned() }));
    orla::Server::builder()
        .executor(Arc::new(GreetingExecutor))
        .provider("greeting", serde_json::from_value::<Greeting>)
        .capability(CapabilityManifest::new("hello", "Greets by name.", hello))
        .serve()
}
