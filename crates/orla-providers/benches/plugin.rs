//! A call of a plugin through the marketplace beside the same bytes over the plugin's pipes:
//! `cargo bench -p orla-providers --features orla-marketplace/testing --bench plugin`.
//!
//! Both sides take turns in one run, each with a process of its own.

#![expect(clippy::print_stdout, reason = "a bench prints its table")]
#![expect(clippy::unwrap_used, reason = "a bench that fails should stop")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use orla_marketplace::testing::marketplace;
use orla_marketplace::{
    Call, CapabilityManifest, CapabilityMarketplace, JsonText, Limits, Payload, PluginCapability,
    ProviderType,
};
use orla_process::Instance;
use orla_process::supervisor::Policy;
use orla_providers::plugin::{PluginExecutor, Plugins};

const ROUNDS: usize = 15;
const CALLS: u32 = 2_000;
const INPUT: &str = r#"{"city":"Paris","count":3}"#;
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../xtask/fixtures/echo_plugin.rs");

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("echo_plugin");
    let mut rustc = Command::new("rustc");
    let built = rustc.args(["--edition", "2024", "-O", "-o"]).arg(&program).arg(SOURCE).status();
    assert!(built.unwrap().success(), "{SOURCE} cannot be built");
    let market = marketplace(Limits::default(), []);
    let plugins = Arc::new(Plugins::new(Instance::unguarded(), Policy::default()));
    market.replace_executor(Arc::new(PluginExecutor::with_plugins(plugins)));
    let plugin = ProviderType::Plugin(PluginCapability::new(program.display().to_string(), "echo"));
    market.register_capability(CapabilityManifest::new("echo", "Echoes.", plugin)).unwrap();
    let (mut child, mut input, mut output) = started(&program);
    let (mut pipes, mut called) = (Vec::new(), Vec::new());
    // The first round starts the process, and counts for nothing.
    for _ in 0..=ROUNDS {
        pipes.push(directly(&mut input, &mut output));
        called.push(through(&market).await);
    }
    let (pipes, called) = (fastest(pipes.split_off(1)), fastest(called.split_off(1)));
    println!("its pipes        {:>7.1} µs", pipes.as_secs_f64() * 1e6);
    println!("plugin call      {:>7.1} µs", called.as_secs_f64() * 1e6);
    println!("ratio            {:>7.2} (goal: 2 at most)", called.as_secs_f64() / pipes.as_secs_f64());
    drop(input);
    child.wait().unwrap();
}

fn started(program: &Path) -> (Child, ChildStdin, BufReader<ChildStdout>) {
    let pipes = || Stdio::piped();
    let mut child = Command::new(program).stdin(pipes()).stdout(pipes()).spawn().unwrap();
    let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    (child, input, BufReader::new(output))
}

fn directly(input: &mut ChildStdin, output: &mut BufReader<ChildStdout>) -> Duration {
    let mut answer = String::new();
    let began = Instant::now();
    for id in 0..CALLS {
        let line = format!("{{\"id\":{id},\"function\":\"echo\",\"input\":{INPUT}}}\n");
        input.write_all(line.as_bytes()).unwrap();
        answer.clear();
        output.read_line(&mut answer).unwrap();
        assert!(answer.contains("Paris"), "{answer}");
    }
    began.elapsed() / CALLS
}

async fn through(market: &CapabilityMarketplace) -> Duration {
    let input = Payload::from_json(JsonText::parse(INPUT).unwrap());
    let began = Instant::now();
    for _ in 0..CALLS {
        let outcome = market.call(Call::to("echo").with(input.clone())).await.unwrap();
        assert!(outcome.structured.is_some());
    }
    began.elapsed() / CALLS
}

/// Whatever else the machine does only adds to a round.
fn fastest(rounds: Vec<Duration>) -> Duration {
    rounds.into_iter().min().unwrap()
}
