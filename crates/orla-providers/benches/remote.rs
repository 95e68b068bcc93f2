//! A call at another instance beside a bare HTTP round trip with the same bytes: `cargo bench -p orla-providers`.
//!
//! Both sides take turns in one run, over one pool of connections each, against the same handler.

#![expect(clippy::print_stdout, reason = "a bench prints its table")]
#![expect(clippy::unwrap_used, reason = "a bench that fails should stop")]

use std::time::{Duration, Instant};

use axum::routing::post;
use orla_marketplace::testing::marketplace;
use orla_marketplace::{
    Call, CapabilityManifest, CapabilityMarketplace, JsonText, Limits, Payload, ProviderType,
    RemoteRTFSCapability,
};
use orla_providers::remote::RemoteRTFSExecutor;
use tokio_util::task::TaskTracker;

const ROUNDS: usize = 9;
const CALLS: u32 = 2_000;
const INPUT: &str = r#"{"city":"Paris","count":3}"#;
const ANSWER: &str = r#"{"value":{"city":"Paris","count":3}}"#;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let routes = axum::Router::new().route("/rtfs", post(|_: String| async { ANSWER }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/rtfs", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let listener = listener.into_std().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let _ = axum::serve(listener, routes).await;
        });
    });
    let tasks = TaskTracker::new();
    let market = marketplace(Limits::default(), []);
    market.replace_executor(std::sync::Arc::new(RemoteRTFSExecutor::new()));
    let remote = ProviderType::RemoteRTFS(RemoteRTFSCapability::new(url.as_str(), 0, None));
    market.register_capability(CapabilityManifest::new("echo", "Echoes.", remote)).unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let (mut bare, mut called) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(directly(&client, &url).await);
        called.push(through(&market).await);
    }
    let (bare, called) = (fastest(bare), fastest(called));
    let ratio = called.as_secs_f64() / bare.as_secs_f64();
    println!("bare round trip  {:>7.1} µs", bare.as_secs_f64() * 1e6);
    println!("remote call      {:>7.1} µs", called.as_secs_f64() * 1e6);
    println!("ratio            {ratio:>7.2} (goal: 1.3 at most)");
    tasks.close();
    drop(serving);
}

async fn directly(client: &reqwest::Client, url: &str) -> Duration {
    let body = format!(r#"{{"call":"echo","input":{INPUT}}}"#);
    let began = Instant::now();
    for _ in 0..CALLS {
        let request = client
            .post(url)
            .header("content-type", "application/json")
            .header("accept", "application/vnd.orla.outcome+json, application/json")
            .header("orla-timeout-ms", "30000")
            .header("orla-hops", "127.0.0.1:12345")
            .body(body.clone());
        let answer = request.send().await.unwrap().bytes().await.unwrap();
        assert_eq!(answer.len(), ANSWER.len());
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
