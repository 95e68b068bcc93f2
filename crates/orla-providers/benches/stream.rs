//! How many small items go through a stream, and what an open one occupies: `cargo bench -p orla-providers`.

#![expect(clippy::print_stdout, reason = "a bench prints its table")]
#![expect(clippy::unwrap_used, reason = "a bench that fails should stop")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Instant;

use orla_marketplace::program::{Job, run};
use orla_marketplace::rtfs::{Limits as Bounds, Options, Source, compile};
use orla_marketplace::testing::marketplace;
use orla_marketplace::{
    Call, CapabilityManifest, CapabilityMarketplace, HttpCapability, Limits, PluginCapability,
    ProviderType, StreamCapabilityImpl, StreamTransport, StreamType,
};
use orla_providers::stream::StreamExecutor;

const ITEMS: usize = 1_000_000;
const OPEN: usize = 1_000;

#[tokio::main]
async fn main() {
    let url = serve();
    let market = marketplace(Limits::default(), []);
    market.replace_executor(Arc::new(StreamExecutor::new()));
    for (id, transport) in [("sse", StreamTransport::Sse), ("ndjson", StreamTransport::Ndjson)] {
        let http = HttpCapability::new(format!("{url}/{id}"), None, 0);
        register(&market, id, ProviderType::Http(http), transport, &[]);
    }
    let yes = ProviderType::Plugin(PluginCapability::new("yes", ""));
    register(&market, "lines", yes, StreamTransport::Lines, &[r#"{"n":1}"#]);
    let quiet = HttpCapability::new(format!("{url}/quiet"), None, 0);
    register(&market, "quiet", ProviderType::Http(quiet), StreamTransport::Sse, &[]);

    for id in ["sse", "ndjson", "lines"] {
        let before = resident();
        let stream = market.open(Call::to(id)).await.unwrap();
        let began = Instant::now();
        for _ in 0..ITEMS {
            stream.next().await.unwrap().unwrap();
        }
        let rate = ITEMS as f64 / began.elapsed().as_secs_f64();
        drop(stream);
        let more = resident().saturating_sub(before);
        println!("{id:<7} {rate:>9.0} items/s, {more} KiB more (goal: 200,000)");
    }
    program(&market).await;

    let first = market.open(Call::to("quiet")).await.unwrap();
    let before = resident();
    let mut open = Vec::with_capacity(OPEN);
    for _ in 0..OPEN {
        let stream = market.open(Call::to("quiet")).await.unwrap();
        stream.next().await.unwrap().unwrap();
        open.push(stream);
    }
    let each = resident().saturating_sub(before) as f64 / OPEN as f64;
    println!("open    {each:>9.1} KiB each, of {OPEN} (goal: 50 at most)");
    drop((first, open));
    std::process::exit(0);
}

/// The same through a program.
async fn program(market: &Arc<CapabilityMarketplace>) {
    let text = format!("(reduce (fn [n item] (+ n (:n item))) 0 (take {ITEMS} (stream :lines {{}})))");
    let program = compile(&Source::new("", text), &Options::default()).unwrap();
    let mut call = Call::to("bench");
    call.timeout = Some(std::time::Duration::from_secs(60));
    let ctx = market.program_context(&call);
    let limits = Bounds { steps: u64::MAX, ..Bounds::default() };
    let began = Instant::now();
    let value = run(market, Job { limits, ..Job::new(program) }, &ctx).await.unwrap();
    let rate = ITEMS as f64 / began.elapsed().as_secs_f64();
    assert_eq!(value, (ITEMS as i64).into());
    println!("program {rate:>9.0} items/s");
}

fn register(
    market: &CapabilityMarketplace,
    id: &str,
    provider: ProviderType,
    transport: StreamTransport,
    args: &[&str],
) {
    let mut stream = StreamCapabilityImpl::new(provider, StreamType::Source);
    stream.options.transport = transport;
    stream.options.args = args.iter().map(|arg| (*arg).to_owned()).collect();
    market
        .register_capability(CapabilityManifest::new(id, "Items.", ProviderType::Stream(stream)))
        .unwrap();
}

/// Returns a server that floods, or says one thing and then nothing.
fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // Not counted: its memory is this process's too.
            let serve = move || {
                let mut head = [0; 1024];
                let read = stream.read(&mut head).unwrap_or_default();
                let head = String::from_utf8_lossy(&head[..read]).into_owned();
                let (kind, item) = match head.contains("/ndjson") {
                    true => ("application/x-ndjson", "{\"n\":1}\n"),
                    false => ("text/event-stream", "data: {\"n\":1}\n\n"),
                };
                let begin = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n\r\n");
                let _ = stream.write_all(begin.as_bytes());
                if head.contains("/quiet") {
                    let _ = stream.write_all(item.as_bytes());
                    std::mem::forget(stream);
                    return;
                }
                let many = item.repeat(4096);
                while stream.write_all(many.as_bytes()).is_ok() {}
            };
            std::thread::spawn(serve);
        }
    });
    url
}

/// Resident memory, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
