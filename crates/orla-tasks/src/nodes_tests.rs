//! Several nodes in one process share one store. Each node can be stopped at any write.

use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::rtfs::Value;
use orla_marketplace::testing::{Canned, MockExecutor, TEST_TIMEOUT};
use orla_marketplace::{CapabilityMarketplace, JsonText, Limits, Payload};
use orla_state::testing::{Fault, Link, LinkState, Shared};
use orla_state::{Change, Memory, Query, StateStore};
use tokio::time::Instant;

use crate::counting::{self, Calls};
use crate::shared::LEASE;
use crate::task::Timestamp;
use crate::{NewTask, Sharing, State, Task, TaskError, TaskOptions, Tasks, Viewer};

const ANYONE: Viewer<'_> = Viewer::Caller(None);

struct Node {
    tasks: Tasks,
    link: Link,
}

fn common() -> Arc<Shared> {
    Shared::new(Duration::ZERO)
}

/// Returns a node with the capabilities `once` and `again`. Only `again` can be repeated.
async fn node(common: &Arc<Shared>, name: &str, canned: Canned, has_them: bool) -> Node {
    let market = Arc::new(CapabilityMarketplace::new(Limits::default()));
    market.register_executor(Arc::new(MockExecutor)).unwrap();
    counting::register(&market, "again", |id| canned.clone().manifest(id));
    open(common, name, market, has_them, LinkState::Open).await
}

/// Returns a node that runs programs and counts their calls of `once` and `again`.
async fn counting(common: &Arc<Shared>, name: &str, calls: &Calls) -> Node {
    let market = counting::market(calls, "again");
    open(common, name, market, true, LinkState::Open).await
}

async fn open(
    common: &Arc<Shared>,
    name: &str,
    market: Arc<CapabilityMarketplace>,
    has_them: bool,
    state: LinkState,
) -> Node {
    open_with(common, name, market, has_them, state, None).await
}

/// Returns a node that keeps tasks for the shared store here.
async fn buffering(common: &Arc<Shared>, calls: &Calls, own: &Arc<Memory>, state: LinkState) -> Node {
    let market = counting::market(calls, "again");
    open_with(common, "alpha", market, true, state, Some(Arc::<Memory>::clone(own))).await
}

async fn open_with(
    common: &Arc<Shared>,
    name: &str,
    market: Arc<CapabilityMarketplace>,
    has_them: bool,
    state: LinkState,
    own: Option<Arc<dyn StateStore>>,
) -> Node {
    let (store, link) = common.connect(state);
    let is_closed = name == "closed";
    let sharing = Sharing {
        node: name.to_owned(),
        runs: Box::new(move |_| has_them),
        admits: Box::new(move |_| !is_closed),
        takes: Box::new(|| true),
        own,
        accepts_alone: true,
    };
    let tasks = Tasks::open_shared(store, market, TaskOptions::default(), sharing);
    tasks.resume().await.unwrap();
    Node { tasks, link }
}

fn program(text: &str) -> NewTask {
    let input = serde_json::json!({ "program": text });
    NewTask::program(Payload::from_json(JsonText::of(&input).unwrap()), None)
}

impl Node {
    async fn start(&self, capability: &str) -> String {
        let new = NewTask::call(capability, Payload::from_value(Value::from(7)), None);
        self.tasks.start(new).await.unwrap().task.id.to_string()
    }

    async fn start_program(&self, text: &str) -> String {
        self.tasks.start(program(text)).await.unwrap().task.id.to_string()
    }

    /// Waits until the node is stopped at a write. Returns `false` if the task ends or falls asleep
    /// first.
    async fn wait_suspended(&self, id: &str, other: &Self) -> bool {
        let stops = async {
            loop {
                if self.link.state() == LinkState::Stopped {
                    return true;
                }
                let task = other.tasks.get(id, ANYONE).await.unwrap();
                if task.state.is_terminal() || other.tasks.asleep(id).await {
                    return false;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, stops).await.unwrap()
    }

    async fn falls_asleep(&self, id: &str) {
        let asleep = async {
            while !self.tasks.asleep(id).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, asleep).await.unwrap();
    }

    async fn close(&self) {
        self.tasks.close(TEST_TIMEOUT).await;
    }

    async fn reaches(&self, id: &str, state: State) -> Arc<Task> {
        let mut changes = self.tasks.subscribe(id, ANYONE).await.unwrap();
        let reached = changes.wait_for(|task| task.state == state);
        Arc::clone(&*tokio::time::timeout(TEST_TIMEOUT, reached).await.unwrap().unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_is_run_by_a_node_that_has_its_capability() {
    let common = common();
    let alpha = node(&common, "alpha", Canned::Echoes, true).await;
    let beta = node(&common, "beta", Canned::Echoes, false).await;
    let id = beta.start("once").await;
    let task = beta.reaches(&id, State::Completed).await;
    assert_eq!(task.runner.as_ref().unwrap().node, "alpha");
    let result = beta.tasks.result(&task.id).await.unwrap().unwrap();
    assert!(result.as_str().contains(r#""structuredContent":7"#), "{result}");
    alpha.tasks.close(TEST_TIMEOUT).await;
    beta.tasks.close(TEST_TIMEOUT).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_no_node_can_run_shows_its_reason() {
    let common = common();
    let beta = node(&common, "beta", Canned::Echoes, false).await;
    let nothing = Arc::new(CapabilityMarketplace::new(Limits::default()));
    let gamma = open(&common, "gamma", nothing, true, LinkState::Open).await;
    let id = beta.start("once").await;
    assert_eq!(beta.tasks.get(&id, ANYONE).await.unwrap().waiting_for, None, "beta knows who has it");
    let task = gamma.tasks.get(&id, ANYONE).await.unwrap();
    assert_eq!(task.waiting_for.as_deref(), Some("no node offers once"));
    let alpha = node(&common, "alpha", Canned::Echoes, true).await;
    assert_eq!(gamma.reaches(&id, State::Completed).await.waiting_for, None);
    for node in [alpha, beta, gamma] {
        node.tasks.close(TEST_TIMEOUT).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_accepted_without_the_store_runs_once_when_it_is_back() {
    let (common, calls) = (common(), Calls::default());
    let own = Arc::new(Memory::new(orla_state::Limits::default()));
    let alpha = buffering(&common, &calls, &own, LinkState::Open).await;
    alpha.link.set(LinkState::Disconnected);
    let id = alpha.start("once").await;
    assert_eq!(alpha.tasks.get(&id, ANYONE).await.unwrap().state, State::Queued);
    let keyed = NewTask {
        key: Some("k".to_owned()),
        ..NewTask::call("once", Payload::from_value(Value::from(7)), None)
    };
    assert!(matches!(alpha.tasks.start(keyed).await, Err(TaskError::State(_))));
    alpha.close().await;
    assert!(calls.lock().is_empty());

    // The next process knows the task, and counts it.
    let alpha = buffering(&common, &calls, &own, LinkState::Disconnected).await;
    alpha.tasks.configure(TaskOptions { max_tasks: 1, ..TaskOptions::default() });
    assert_eq!(alpha.tasks.get(&id, ANYONE).await.unwrap().state, State::Queued);
    let new = NewTask::call("once", Payload::from_value(Value::from(7)), None);
    assert!(matches!(alpha.tasks.start(new).await, Err(TaskError::Full(1))));
    alpha.link.set(LinkState::Open);
    let task = alpha.reaches(&id, State::Completed).await;
    let kept = alpha.tasks.0.buffer.as_ref().unwrap();
    assert!(kept.get(&task.id).await.unwrap().is_none());
    assert!(own.list(Query::below("", 10)).await.unwrap().is_empty());

    // It is handed over again, as if the process had died before it was forgotten.
    kept.keep(&task, &alpha.tasks.input(&task.id).await.unwrap().unwrap()).await.unwrap();
    let forgotten = async {
        while kept.get(&task.id).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, forgotten).await.unwrap();
    let last = alpha.start("once").await;
    alpha.reaches(&last, State::Completed).await;
    assert_eq!(calls.lock().len(), 2, "one for each task");
    alpha.close().await;
}

#[tokio::test(start_paused = true)]
async fn tasks_accepted_for_other_nodes_are_bounded() {
    let common = common();
    let beta = node(&common, "beta", Canned::Echoes, false).await;
    beta.tasks.configure(TaskOptions { max_tasks: 3, ..TaskOptions::default() });
    let new = || NewTask::call("once", Payload::from_value(Value::from(7)), None);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(beta.tasks.start(new()).await.unwrap().task.id.to_string());
    }
    assert!(matches!(beta.tasks.start(new()).await, Err(TaskError::Full(3))));
    let alpha = node(&common, "alpha", Canned::Echoes, true).await;
    for id in &ids {
        beta.reaches(id, State::Completed).await;
    }
    let has_room = async {
        while beta.tasks.start(new()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, has_room).await.unwrap();
    alpha.close().await;
    beta.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_runs_no_task_of_others_that_it_does_not_share() {
    let (common, calls) = (common(), Calls::default());
    let beta = node(&common, "beta", Canned::Echoes, false).await;
    let closed = counting(&common, "closed", &calls).await;
    let of_beta = beta.start("once").await;
    let own = closed.start("once").await;
    closed.reaches(&own, State::Completed).await;
    tokio::time::sleep(10 * LEASE).await;
    let task = beta.tasks.get(&of_beta, ANYONE).await.unwrap();
    assert_eq!((task.state, calls.lock().len()), (State::Queued, 1));
    let alpha = node(&common, "alpha", Canned::Echoes, true).await;
    let task = beta.reaches(&of_beta, State::Completed).await;
    assert_eq!(task.runner.as_ref().unwrap().node, "alpha");
    alpha.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_survives_a_short_loss_of_the_store() {
    let (common, calls) = (common(), Calls::default());
    let alpha = counting(&common, "alpha", &calls).await;
    // The store makes each change of the node, and the answer is lost.
    for at in 1..8 {
        alpha.link.set_fault(Some(Fault::Unanswered("run/", at)));
        let id = alpha.start_program("[(:n (call :once {:n 1})) (:n (call :once {:n 2}))]").await;
        alpha.reaches(&id, State::Completed).await;
        assert_eq!(std::mem::take(&mut *calls.lock()).len(), 2, "{at}");
        alpha.link.set_fault(None);
    }
    // The node is disconnected while a call is made.
    alpha.link.set_fault(Some(Fault::Before("run/", 2)));
    let beta = counting(&common, "beta", &calls).await;
    let id = alpha.start_program("[(:n (call :once {:n 1})) (:n (call :once {:n 2}))]").await;
    assert!(alpha.wait_suspended(&id, &beta).await);
    alpha.link.set(LinkState::Disconnected);
    tokio::time::sleep(Duration::from_secs(3)).await;
    alpha.link.set(LinkState::Open);
    alpha.reaches(&id, State::Completed).await;
    assert_eq!(calls.lock().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_task_is_cancelled_at_any_node() {
    let common = common();
    let alpha = node(&common, "alpha", Canned::Hangs, true).await;
    let beta = node(&common, "beta", Canned::Hangs, false).await;
    let id = beta.start("once").await;
    beta.reaches(&id, State::Working).await;
    beta.tasks.cancel(&id, ANYONE).await.unwrap();
    assert_eq!(alpha.reaches(&id, State::Cancelled).await.state, State::Cancelled);
    // Its call has ended.
    alpha.tasks.close(TEST_TIMEOUT).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_lost_its_task_changes_nothing_of_it() {
    let common = common();
    let alpha = node(&common, "alpha", Canned::Hangs, true).await;
    let (again, once) = (alpha.start("again").await, alpha.start("once").await);
    alpha.reaches(&again, State::Working).await;
    alpha.reaches(&once, State::Working).await;
    let beta = node(&common, "beta", Canned::Echoes, true).await;

    alpha.link.set(LinkState::Disconnected);
    let taken = beta.reaches(&again, State::Completed).await;
    assert_eq!(taken.runner.as_ref().unwrap().node, "beta");
    let interrupted = beta.reaches(&once, State::Interrupted).await;
    assert_eq!(interrupted.error.as_ref().unwrap().kind, "interrupted");
    let refused = alpha.tasks.get(&again, ANYONE).await.unwrap_err();
    assert!(matches!(refused, TaskError::State(_)), "{refused}");

    alpha.link.set(LinkState::Open);
    alpha.tasks.close(TEST_TIMEOUT).await;
    for before in [taken, interrupted] {
        let after = beta.tasks.get(before.id.as_str(), ANYONE).await.unwrap();
        assert_eq!((after.state, after.revision), (before.state, before.revision));
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_ends_leaves_its_tasks_to_others() {
    let common = common();
    let alpha = node(&common, "alpha", Canned::Hangs, true).await;
    let id = alpha.start("again").await;
    alpha.reaches(&id, State::Working).await;
    let beta = node(&common, "beta", Canned::Echoes, true).await;
    let begun = Instant::now();
    alpha.tasks.close(Duration::ZERO).await;
    beta.reaches(&id, State::Completed).await;
    assert!(begun.elapsed() < LEASE, "nobody waits for the lease");
}

#[tokio::test(start_paused = true)]
async fn a_program_whose_node_was_stopped_makes_no_call_that_another_node_made() {
    const PROGRAM: &str = "(let [a (try (call :again {:n 1}) (catch :interrupted e 0)) \
        b (try (call :once {:n 2}) (catch :interrupted e 0)) \
        e (await-event \"go\") \
        c (try (call :once {:n 3}) (catch :interrupted e 0)) \
        d (try (call :once {:n 4}) (catch :interrupted e 0))] 1)";
    let mut stopped = 0;
    for (at, is_early) in (1..=40).flat_map(|at| [(at, false), (at, true)]) {
        let (common, calls) = (common(), Calls::default());
        let alpha = counting(&common, "alpha", &calls).await;
        let beta = counting(&common, "beta", &calls).await;
        alpha.link.set_fault(Some(Fault::Before("run/", at)));
        let id = alpha.start_program(PROGRAM).await;
        if is_early {
            // The run does not fall asleep.
            beta.tasks.event(&id, ANYONE, "go", JsonText::default()).await.unwrap();
        }
        let mut has_stopped = alpha.wait_suspended(&id, &beta).await;
        if !is_early {
            beta.falls_asleep(&id).await;
            beta.tasks.event(&id, ANYONE, "go", JsonText::default()).await.unwrap();
            has_stopped |= alpha.wait_suspended(&id, &beta).await;
        }
        stopped += usize::from(has_stopped);
        let before = beta.reaches(&id, State::Completed).await;
        let rows = async || common.records().list(Query::below("run/", 1000)).await.unwrap();
        let kept = rows().await;
        alpha.link.set(LinkState::Open);
        alpha.close().await;
        let after = beta.tasks.get(&id, ANYONE).await.unwrap();
        assert_eq!((after.state, after.revision), (before.state, before.revision), "{at} {is_early}");
        assert_eq!(rows().await, kept, "{at} {is_early}: it has written what is not its own any more");
        let calls = calls.lock().clone();
        for call in calls.iter().filter(|(name, _)| name.starts_with("once")) {
            assert_eq!(calls.iter().filter(|other| *other == call).count(), 1, "{at}: {calls:?}");
        }
        beta.close().await;
    }
    assert!(stopped >= 8, "it stood still only {stopped} times");
}

#[tokio::test(start_paused = true)]
async fn a_suspended_node_takes_no_task_of_live_nodes() {
    let common = common();
    let alpha = node(&common, "alpha", Canned::Hangs, true).await;
    let gamma = node(&common, "gamma", Canned::Echoes, true).await;
    let (again, once) = (alpha.start("again").await, alpha.start("once").await);
    for id in [&again, &once] {
        gamma.reaches(id, State::Working).await;
    }
    for state in [LinkState::Stopped, LinkState::Disconnected] {
        gamma.link.set(state);
        tokio::time::sleep(3 * LEASE).await;
        gamma.link.set(LinkState::Open);
        tokio::time::sleep(3 * LEASE).await;
        for id in [&again, &once] {
            let task = gamma.tasks.get(id, ANYONE).await.unwrap();
            let runner = task.runner.as_ref().unwrap();
            assert_eq!((task.state, &*runner.node), (State::Working, "alpha"), "after {state:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_starting_node_takes_no_tasks_before_it_has_read_the_other_nodes() {
    let common = common();
    let alpha = node(&common, "alpha", Canned::Hangs, true).await;
    let (again, once) = (alpha.start("again").await, alpha.start("once").await);
    alpha.reaches(&once, State::Working).await;
    alpha.reaches(&again, State::Working).await;
    let market = Arc::new(CapabilityMarketplace::new(Limits::default()));
    market.register_executor(Arc::new(MockExecutor)).unwrap();
    counting::register(&market, "again", |id| Canned::Echoes.manifest(id));
    let gamma = open(&common, "gamma", market, true, LinkState::Disconnected).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    // It receives all records at once, before it says that it is there.
    for record in common.records().list(Query::below("", usize::MAX)).await.unwrap() {
        common.notify(record.key);
    }
    gamma.link.set(LinkState::Open);
    tokio::time::sleep(3 * LEASE).await;
    for id in [&again, &once] {
        let task = gamma.tasks.get(id, ANYONE).await.unwrap();
        let runner = task.runner.as_ref().unwrap();
        assert_eq!((task.state, &*runner.node), (State::Working, "alpha"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_of_a_node_without_a_heartbeat_yet_is_not_interrupted() {
    let common = common();
    let alpha = node(&common, "alpha", Canned::Echoes, true).await;
    let market = Arc::new(CapabilityMarketplace::new(Limits::default()));
    market.register_executor(Arc::new(MockExecutor)).unwrap();
    counting::register(&market, "again", |id| Canned::Echoes.manifest(id));
    let gamma = open(&common, "gamma", market, true, LinkState::Disconnected).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    gamma.link.set(LinkState::Open);
    // The node writes its next heartbeat half a second from now.
    let ids = [gamma.start("once").await, gamma.start("again").await];
    for id in &ids {
        gamma.reaches(id, State::Completed).await;
    }
    alpha.close().await;
    gamma.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_acceptance_was_not_answered_runs() {
    let common = common();
    let alpha = node(&common, "alpha", Canned::Echoes, true).await;
    let new = || {
        let mut new = NewTask::call("once", Payload::from_value(Value::from(7)), None);
        new.key = Some("k".to_owned());
        new
    };
    alpha.link.set_fault(Some(Fault::Unanswered("idempotency/", 1)));
    let error = alpha.tasks.start(new()).await.unwrap_err();
    assert!(matches!(error, TaskError::State(_)), "{error}");
    let started = alpha.tasks.start(new()).await.unwrap();
    assert!(!started.is_new);
    alpha.reaches(started.task.id.as_str(), State::Completed).await;
    alpha.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_begin_was_not_answered_is_made() {
    let (common, calls) = (common(), Calls::default());
    let alpha = counting(&common, "alpha", &calls).await;
    // The first write of the record accepts the task, the second one says that it runs.
    alpha.link.set_fault(Some(Fault::Unanswered("task/", 2)));
    let id = alpha.start("once").await;
    alpha.reaches(&id, State::Completed).await;
    assert_eq!(calls.lock().len(), 1);
    alpha.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_continues_after_the_loss_of_the_node_that_ended_its_awaited_task() {
    let (common, calls) = (common(), Calls::default());
    let alpha = counting(&common, "alpha", &calls).await;
    let awaited = alpha.start_program("(do (await-event \"go\") (call :once {:n 1}))").await;
    alpha.falls_asleep(&awaited).await;
    let waits = format!("(:n (await-task \"{awaited}\"))");
    let waiting = alpha.start_program(&waits).await;
    alpha.falls_asleep(&waiting).await;
    // The end of the task is its last write.
    alpha.link.set_fault(Some(Fault::After("result/", 1)));
    alpha.tasks.event(&awaited, ANYONE, "go", JsonText::default()).await.unwrap();
    let beta = counting(&common, "beta", &calls).await;
    beta.reaches(&waiting, State::Completed).await;
    assert_eq!(calls.lock().len(), 1);
    beta.close().await;
}

#[tokio::test(start_paused = true)]
async fn six_hundred_programs_woken_at_once_all_continue() {
    let (common, calls) = (common(), Calls::default());
    let alpha = counting(&common, "alpha", &calls).await;
    let mut ids = Vec::new();
    for _ in 0..600 {
        let id = alpha.start_program("(do (await-event \"go\") 1)").await;
        alpha.falls_asleep(&id).await;
        ids.push(id);
    }
    // All are due at one past instant.
    for id in &ids {
        let timer = crate::keys::timer(Timestamp(1), crate::program::SLEEP, id);
        common.records().write(vec![Change::put(timer, "")]).await.unwrap();
    }
    for record in common.records().list(Query::below("timer/", 1)).await.unwrap() {
        common.notify(record.key);
    }
    let is_woken = async {
        while !common.records().list(Query::below("timer/0000000000000001", 1)).await.unwrap().is_empty()
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, is_woken).await.unwrap();
    alpha.tasks.close(Duration::ZERO).await;
}
