//! The tasks of the agent in a state that several servers share.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use orla_server::{Push, PushSender};
use orla_state::{Change, Memory, StateStore as _};
use orla_tasks::{Sharing, TaskOptions, Tasks};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::shared_sessions::{Reachability, TestStore};
use super::support::World;

/// Records the posts.
#[derive(Default)]
struct Posted(Mutex<Vec<Value>>);

#[async_trait]
impl PushSender for Posted {
    fn check(&self, _: &str) -> Result<(), String> {
        Ok(())
    }

    async fn post(&self, push: Push) -> Result<(), String> {
        self.0.lock().push(serde_json::from_slice(&push.body).unwrap());
        Ok(())
    }
}

#[tokio::test]
async fn a_node_starts_without_the_shared_state_and_posts_when_it_is_reachable() {
    let (sender, reachability) = watch::channel(Reachability::Fails);
    let records = Arc::new(Memory::default());
    // Two messages were rejected before. The end of the second one was posted.
    for (number, told, row) in [
        (1, json!([]), json!({"context_id": "c", "posts": "alpha"})),
        (2, json!(["h"]), json!({"context_id": "c"})),
    ] {
        let id = format!("0198c0de-0000-4000-8000-00000000000{number}");
        let status = json!({"state": "TASK_STATE_REJECTED", "timestamp": "2026-07-28T12:00:00Z"});
        let task = json!({"id": id, "contextId": "c", "status": status});
        let hooks = json!([{"id": "h", "taskId": id, "url": "https://example.com"}]);
        let record = json!({"task": task, "owner": null, "hooks": hooks, "told": told, "node": "alpha", "is_task": false});
        // The list of callers without a name.
        let row_key = format!("a2a-list/e3b0c44298fc1c149afbf4c8996fb924/{id}");
        let changes = vec![
            Change::put(format!("a2a/{id}"), record.to_string()),
            Change::put(row_key, row.to_string()),
        ];
        records.write(changes).await.unwrap();
    }
    let world = World::new().await;
    let store = Arc::new(TestStore { records, reachability });
    let sharing = Sharing {
        node: "alpha".to_owned(),
        runs: Box::new(|_| true),
        admits: Box::new(|_| true),
        takes: Box::new(|| true),
        own: None,
        accepts_alone: false,
    };
    let market = Arc::clone(&world.market);
    world.server.serve_tasks(Tasks::open_shared(store, market, TaskOptions::default(), sharing));
    let posted = Arc::new(Posted::default());
    world.server.push_with(Arc::<Posted>::clone(&posted));
    world.server.resume_push().await.unwrap();
    assert!(posted.0.lock().is_empty());

    sender.send_replace(Reachability::Answers);
    let all = async {
        while posted.0.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
    let posts = posted.0.lock().clone();
    let told: Vec<_> = posts.iter().map(|post| &post["task"]["status"]["state"]).collect();
    assert_eq!(told, ["TASK_STATE_REJECTED"]);
}

#[tokio::test]
async fn an_unreadable_private_state_is_an_error_at_the_start() {
    let (_sender, reachability) = watch::channel(Reachability::Fails);
    let world = World::new().await;
    let store = Arc::new(TestStore { records: Arc::default(), reachability });
    let market = Arc::clone(&world.market);
    world.server.serve_tasks(Tasks::open(store, market, TaskOptions::default()));
    assert!(world.server.resume_push().await.is_err());
}
