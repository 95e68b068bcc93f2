//! The records of tasks: a server starts on any of them, lists and changes its tasks, and ends.
//!
//! Each line is a record: its first byte says which, the rest is its value.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use orla_marketplace::{CapabilityMarketplace, JsonText, Limits};
use orla_state::{Change, Limits as StateLimits, Memory, StateStore as _};
use orla_tasks::{Filter, TaskId, TaskOptions, Tasks, Viewer};

const ID: &str = "01890000-0000-7000-8000-000000000001";
const OTHER: &str = "01890000-0000-7000-8000-000000000002";
/// What callers without a name are in keys.
const OWNER: &str = "e3b0c44298fc1c149afbf4c8996fb924";

fn key(which: u8) -> Option<String> {
    Some(match which {
        b't' => format!("task/{ID}"),
        b'T' => format!("task/{OTHER}"),
        b'i' => format!("input/{ID}"),
        b'r' => format!("result/{ID}"),
        b'g' => format!("given/{ID}"),
        b'o' => format!("open/{ID}"),
        b'O' => format!("open/{OTHER}"),
        b'w' => format!("owner/{OWNER}/{ID}"),
        b'k' => format!("timer/0000000000000001/keep/{ID}"),
        b's' => format!("timer/0000000000000001/sleep/{ID}"),
        b'a' => format!("awaited/{ID}/{OTHER}"),
        b'S' => format!("run/{ID}/state"),
        b'n' => format!("run/{ID}/note/0000000000000001"),
        b'l' => format!("run/{ID}/trail/0000000000000001"),
        b'u' => format!("run/{ID}/used"),
        _ => return None,
    })
}

fuzz_target!(|data: &[u8]| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(async {
        let store = Memory::new(StateLimits::default());
        for line in data.split(|byte| *byte == b'\n') {
            let [which, value @ ..] = line else { continue };
            if let Some(key) = key(*which) {
                store.write(vec![Change::put(key, value.to_vec())]).await.expect("room");
            }
        }
        let market = Arc::new(CapabilityMarketplace::new(Limits::default()));
        let tasks = Tasks::open(Arc::new(store), market, TaskOptions::default());
        let _ = tasks.resume().await;
        for task in tasks.list(&Filter::default(), Viewer::Operator).await.unwrap_or_default() {
            let _ = tasks.journal(&task).await;
        }
        for id in [ID, OTHER] {
            let _ = tasks.get(id, Viewer::Caller(None)).await;
            let _ = tasks.event(id, Viewer::Operator, "e", JsonText::parse("1").expect("JSON")).await;
            let _ = tasks.cancel(id, Viewer::Operator).await;
            let id = TaskId::parse(id).expect("an id");
            let _ = (tasks.input(&id).await, tasks.result(&id).await, tasks.cancelled_output(&id).await);
        }
        tasks.close(Duration::ZERO).await;
    });
});
