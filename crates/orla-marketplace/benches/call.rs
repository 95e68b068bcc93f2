//! What the one call path costs on top of its executor: `cargo bench -p orla-marketplace --features testing`.
//!
//! Floor and path take turns in one run, so that a machine that drifts moves both.

#![expect(clippy::print_stdout, reason = "a bench prints its table")]
#![expect(clippy::unwrap_used, reason = "a bench that fails should stop")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use orla_marketplace::id::Pattern;
use orla_marketplace::rtfs::Value;
use orla_marketplace::testing::{Canned, MockExecutor, marketplace};
use orla_marketplace::{
    CallContext, Callers, CapabilityExecutor, CapabilityMarketplace, Counting, JsonText, Limits,
    Payload, Period, ProviderType, QuotaRule, Rate, Redactor,
};

const ROUNDS: usize = 20;
const CALLS: u32 = 20_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let market = marketplace(Limits::default(), [("answer", Canned::Answers(Value::Int(1)))]);
    let provider = ProviderType::Custom(Arc::new(Canned::Answers(Value::Int(1))));
    let input = Payload::from_json(JsonText::parse(r#"{"a":1}"#).unwrap());
    let limited = marketplace(Limits::default(), [("answer", Canned::Answers(Value::Int(1)))]);
    limited.quotas().configure((0..10).map(quota).collect());
    let (mut floor, mut path, mut counted) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        floor.push(runtime.block_on(directly(&provider, &input)));
        path.push(runtime.block_on(through(&market, &input)));
        counted.push(runtime.block_on(through(&limited, &input)));
    }
    let (floor, path, counted) = (median(floor), median(path), median(counted));
    let secrets = Redactor::new((0..10).map(|number| format!("a-secret-of-a-provider-{number}")));
    let answer = format!(r#"{{"text":"{}"}}"#, "nothing to see here ".repeat(50));
    let redacted = median((0..ROUNDS).map(|_| looking(&secrets, &answer)).collect());
    println!("executor alone   {:>6} ns a call", floor.as_nanos());
    println!("the call path    {:>6} ns a call", path.as_nanos());
    println!("with ten quotas  {:>6} ns a call", counted.as_nanos());
    println!("ten secrets      {:>6} ns for an answer of 1 KB", redacted.as_nanos());
}

/// Returns the time that it takes to look for secrets in a text that has none.
fn looking(secrets: &Redactor, text: &str) -> Duration {
    let began = Instant::now();
    for _ in 0..CALLS {
        std::hint::black_box(secrets.text(std::hint::black_box(text)));
    }
    began.elapsed() / CALLS
}

/// Returns a quota that is never reached. The first three concern the call.
fn quota(number: usize) -> QuotaRule {
    let mut rule = QuotaRule::new(format!("quotas[{number}]"));
    rule.rate = Some(Rate::new(1_000_000_000, Period::Day));
    match number {
        0 => {}
        1 | 2 => rule.count = Counting::Together,
        3 => rule.to = Callers::parse(["group:other"]).unwrap(),
        _ => rule.capabilities = vec![Pattern::new(format!("other{number}.*"))],
    }
    rule
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
