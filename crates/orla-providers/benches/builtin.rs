//! A built-in by itself, and called through the marketplace: `cargo bench -p orla-providers --bench builtin`.

#![expect(clippy::print_stdout, reason = "a bench prints its table")]
#![expect(clippy::unwrap_used, reason = "a bench that fails should stop")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use orla_marketplace::json::value_from_json;
use orla_marketplace::{Call, CapabilityMarketplace, Limits, Payload};
use orla_providers::builtin::{self, LocalExecutor};
use orla_registry::CapabilityRegistry;

const ROUNDS: usize = 20;
const CALLS: u32 = 20_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (builtin, called) = builtin(&runtime);
    println!("built-in alone   {:>6} ns a call", builtin.as_nanos());
    println!("the same, called {:>6} ns a call", called.as_nanos());
}

/// A built-in by itself, and called through the marketplace (RTFS capability system §2.3).
fn builtin(runtime: &tokio::runtime::Runtime) -> (Duration, Duration) {
    let market = CapabilityMarketplace::new(Limits::default());
    market.register_executor(Arc::new(LocalExecutor)).unwrap();
    for registration in builtin::registrations() {
        market.register_capability(registration.clone()).unwrap();
    }
    let value = value_from_json(r#"{"a":1,"b":2}"#).unwrap();
    let add = CapabilityRegistry.get("math.add").unwrap();
    let (mut alone, mut called) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for _ in 0..CALLS {
            std::hint::black_box(add.call(std::hint::black_box(&value)).unwrap());
        }
        alone.push(began.elapsed() / CALLS);
        let input = Payload::from_value(value.clone());
        called.push(runtime.block_on(async {
            let began = Instant::now();
            for _ in 0..CALLS {
                let call = Call::to("math.add").with(input.clone());
                market.call(call).await.unwrap();
            }
            began.elapsed() / CALLS
        }));
    }
    (median(alone), median(called))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
