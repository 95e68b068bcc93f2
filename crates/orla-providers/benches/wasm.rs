//! A call of a WebAssembly component that is warm, through the marketplace:
//! `cargo bench -p orla-providers --features wasm,orla-marketplace/testing --bench wasm`.

#![expect(clippy::print_stdout, reason = "a bench prints its table")]
#![expect(clippy::unwrap_used, reason = "a bench that fails should stop")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use orla_marketplace::testing::marketplace;
use orla_marketplace::{
    Call, CapabilityManifest, JsonText, Limits, Payload, PluginCapability, ProviderType,
};
use orla_process::Instance;
use orla_process::supervisor::Policy;
use orla_providers::plugin::{PluginExecutor, Plugins};

const ROUNDS: usize = 9;
const CALLS: u32 = 5_000;

#[tokio::main]
async fn main() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.wasm");
    std::fs::write(&path, wat::parse_str(include_str!("../src/plugin/wasm/test.wat")).unwrap()).unwrap();
    let market = marketplace(Limits::default(), []);
    let plugins = Arc::new(Plugins::new(Instance::unguarded(), Policy::default()));
    market.replace_executor(Arc::new(PluginExecutor::with_plugins(plugins)));
    let plugin = ProviderType::Plugin(PluginCapability::new(path.display().to_string(), "echo"));
    market.register_capability(CapabilityManifest::new("echo", "Echoes.", plugin)).unwrap();
    let input = Payload::from_json(JsonText::parse(r#"{"city":"Paris","count":3}"#).unwrap());
    let mut rounds = Vec::new();
    // The first one compiles it, and counts for nothing.
    for _ in 0..=ROUNDS {
        let began = Instant::now();
        for _ in 0..CALLS {
            let outcome = market.call(Call::to("echo").with(input.clone())).await.unwrap();
            assert!(outcome.structured.is_some());
        }
        rounds.push(began.elapsed() / CALLS);
    }
    println!(
        "wasm call        {:>7.1} µs (goal: 20 at most)",
        fastest(rounds.split_off(1)).as_secs_f64() * 1e6
    );
}

/// Whatever else the machine does only adds to a round.
fn fastest(rounds: Vec<Duration>) -> Duration {
    rounds.into_iter().min().unwrap()
}
