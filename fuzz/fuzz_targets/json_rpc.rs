//! A client that sends anything gets well-formed answers, and the server comes to an end with its
//! input.
#![no_main]

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use orla_marketplace::testing::{Canned, MockExecutor};
use orla_marketplace::{CapabilityMarketplace, Limits};
use orla_server::{Server, ServerOptions};
use serde_json::value::RawValue;
use tokio::io::AsyncWrite;
use tokio_util::sync::CancellationToken;

/// Keeps what is written.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl AsyncWrite for Written {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().expect("nobody panics with it").extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn server() -> Server {
    let market = CapabilityMarketplace::new(Limits::default());
    market.register_executor(Arc::new(MockExecutor)).expect("the first of its kind");
    for (id, canned) in [
        ("echo", Canned::Echoes),
        ("fail", Canned::Fails("no".to_owned())),
        ("steps", Canned::Reports(3)),
    ] {
        market.register_capability(canned.manifest(id)).expect("a fresh id");
    }
    Server::new(Arc::new(market), ServerOptions::default())
}

fuzz_target!(|bytes: &[u8]| {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let written = Written::default();
    let served = async {
        let server = server();
        let serving = server.serve_stdio(bytes, written.clone(), CancellationToken::new());
        tokio::time::timeout(Duration::from_secs(5), serving).await
    };
    runtime.block_on(served).expect("the server ends with its input");
    let written = written.0.lock().expect("nobody panics with it");
    let text = std::str::from_utf8(&written).expect("answers are UTF-8");
    for line in text.lines() {
        // Numbers go out as they came in, so some are beyond what a float can hold.
        let message: BTreeMap<String, &RawValue> =
            serde_json::from_str(line).expect("every line is one JSON object");
        assert_eq!(message["jsonrpc"].get(), "\"2.0\"", "{line}");
        let kinds = ["result", "error", "method"].map(|key| usize::from(message.contains_key(key)));
        assert_eq!(kinds.iter().sum::<usize>(), 1, "{line}");
    }
});
