//! What the one call path costs on top of its executor: `cargo bench -p orla-marketplace --features testing`.
//!
//! Floor and path take turns in one run, so that a machine that drifts moves both.

#![expect(clippy::print_stdout, reason = "a bench prints its table")]
#![expect(clippy::unwrap_used, reason = "a bench that fails should stop")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use orla_marketplace::rtfs::Value;
use orla_marketplace::testing::{Canned, MockExecutor, marketplace};
use orla_marketplace::{
    CallContext, CapabilityExecutor, CapabilityMarketplace, JsonText, Limits, Payload, ProviderType,
};

const ROUNDS: usize = 20;
const CALLS: u32 = 20_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let market = marketplace(Limits::default(), [("answer", Canned::Answers(Value::Int(1)))]);
    let provider = ProviderType::Custom(Arc::new(Canned::Answers(Value::Int(1))));
    let input = Payload::from_json(JsonText::parse(r#"{"a":1}"#).unwrap());
    let (mut floor, mut path) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        floor.push(runtime.block_on(directly(&provider, &input)));
        path.push(runtime.block_on(through(&market, &input)));
    }
    let (floor, path) = (median(floor), median(path));
    println!("executor alone   {:>6} ns a call", floor.as_nanos());
    println!("the call path    {:>6} ns a call", path.as_nanos());
}

async fn directly(provider: &ProviderType, input: &Payload) -> Duration {
    let ctx = CallContext::for_tests("answer");
    let began = Instant::now();
    for _ in 0..CALLS {
        MockExecutor.execute(provider, input, &ctx).await.unwrap();
    }
    began.elapsed() / CALLS
}

async fn through(market: &CapabilityMarketplace, input: &Payload) -> Duration {
    let began = Instant::now();
    for _ in 0..CALLS {
        let call = orla_marketplace::Call::to("answer").with(input.clone());
        market.call(call).await.unwrap();
    }
    began.elapsed() / CALLS
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
