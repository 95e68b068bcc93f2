//! Messages of other nodes: none ends the node, a repeated call begins once, and nothing of them is kept when the node ends.
//!
//! Each line is a message: its first byte says which, and a tab separates its header from its payload.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use orla_cluster::testing::IsolatedNode;
use orla_marketplace::testing::{Canned, MockExecutor};
use orla_marketplace::{CapabilityMarketplace, Limits};

/// The token of the calls that get frames.
const TOKEN: &str = "00000000000000000000000000000000";

fn market() -> Arc<CapabilityMarketplace> {
    let market = Arc::new(CapabilityMarketplace::new(Limits::default()));
    market.register_executor(Arc::new(MockExecutor)).expect("the first of its kind");
    for (id, canned) in
        [("echo", Canned::Echoes), ("hang", Canned::Hangs), ("report", Canned::Reports(3))]
    {
        market.register_capability(canned.manifest(id)).expect("a fresh id");
    }
    market
}

fn receive(node: &IsolatedNode, which: u8, header: &[u8], payload: &[u8]) {
    let text = String::from_utf8_lossy(header);
    match which {
        b'e' => node.receive("t.call.echo", &text, payload),
        b'h' => node.receive("t.call.hang", &text, payload),
        b'r' => node.receive("t.call.report", &text, payload),
        b'f' => node.receive(&format!("t.in.{TOKEN}"), &text, payload),
        b'a' => node.receive("t.ask.1", &text, payload),
        b'l' => node.receive_lease("beta", header, payload),
        b'n' => node.receive_notice(payload),
        _ => {}
    }
}

fuzz_target!(|data: &[u8]| {
    // A node without a connection waits for one, and times do not matter here.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let market = market();
        let node = IsolatedNode::new(&market, &["echo", "hang", "report"]);
        let mut calls = 0;
        for line in data.split(|byte| *byte == b'\n') {
            let [which, rest @ ..] = line else { continue };
            let end = rest.iter().position(|byte| *byte == b'\t').unwrap_or(rest.len());
            let (header, payload) = (&rest[..end], rest.get(end + 1..).unwrap_or_default());
            for _ in 0..2 {
                receive(&node, *which, header, payload);
                tokio::task::yield_now().await;
            }
            calls += u64::from(b"ehr".contains(which));
        }
        assert!(node.calls() <= calls, "a call began twice");
        node.end(Duration::from_secs(5)).await;
        assert_eq!((market.running(), market.memory().held()), (0, 0));
    });
});
