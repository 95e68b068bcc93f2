//! Each operation of the store fails in turn, while tasks and a durable program run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use orla_marketplace::{JsonText, Payload};
use orla_state::{Change, Memory, Query, Record, Revision, StateError, StateStore, WriteError};
use tokio::time::{Instant, sleep};

use crate::counting::{Calls, market};
use crate::{NewTask, State, Task, TaskError, TaskOptions, Tasks, Viewer};

const ANYONE: Viewer<'_> = Viewer::Caller(None);

/// How an operation of the store fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// A write is not made.
    Refused,
    /// A write is made, and its answer is lost.
    Unanswered,
    /// A record or a range is not read.
    Unread,
}

/// A store of which `count` operations fail, after `left` other ones of their kind.
struct Failing {
    inner: Arc<Memory>,
    fault: Fault,
    left: AtomicUsize,
    count: usize,
    failed: AtomicUsize,
}

impl Failing {
    fn fails(&self) -> bool {
        let take = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            return false;
        }
        self.failed.fetch_add(1, Ordering::SeqCst) < self.count
    }

    fn read(&self) -> Result<(), StateError> {
        match self.fault == Fault::Unread && self.fails() {
            true => Err(StateError::new("the disk cannot be read")),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl StateStore for Failing {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        let fails = self.fault != Fault::Unread && self.fails();
        if fails && self.fault == Fault::Refused {
            return Err(StateError::new("the disk is full").into());
        }
        let written = self.inner.write(changes).await;
        if fails { Err(StateError::new("the answer is lost").into()) } else { written }
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        self.read()?;
        self.inner.get(key).await
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        self.read()?;
        self.inner.list(query).await
    }
}

/// Does something until it succeeds, as a client does.
async fn eventually<T, E: std::fmt::Debug>(what: &str, act: impl AsyncFn() -> Result<T, E>) -> T {
    let mut last = None;
    for _ in 0..20 {
        match act().await {
            Ok(done) => return done,
            Err(error) => last = Some(error),
        }
        sleep(Duration::from_secs(1)).await;
    }
    panic!("{what}: {last:?}");
}

async fn open(store: &Arc<dyn StateStore>, calls: &Calls) -> Tasks {
    // A server whose state cannot be read ends, and is started again.
    eventually("a server starts", async || {
        let tasks = Tasks::open(Arc::clone(store), market(calls, "often"), TaskOptions::default());
        tasks.resume().await.map(|()| tasks)
    })
    .await
}

async fn start(tasks: &Tasks, key: &str, new: &dyn Fn() -> NewTask) -> String {
    let keyed = || NewTask { key: Some(key.to_owned()), ..new() };
    eventually(key, async || tasks.start(keyed()).await).await.task.id.to_string()
}

async fn over(tasks: &Tasks, id: &str) -> Arc<Task> {
    eventually("a task ends", async || {
        let task = tasks.wait(id, ANYONE, Instant::now() + Duration::from_secs(600)).await?;
        if task.state.is_terminal() {
            Ok(task)
        } else {
            Err(TaskError::Unknown(format!("{:?}", task.state)))
        }
    })
    .await
}

const PROGRAM: &str = "(let [a (try (:n (call :once {:n 2})) (catch :interrupted e -2)) \
    b (pmap (fn [n] (:n (call :often {:n n}))) [3 4 5]) \
    c (await-event \"go\") \
    d (try (:n (call :once {:n 6})) (catch :interrupted e -6))] [a b c d])";

fn program(text: &str) -> NewTask {
    let input = serde_json::json!({ "program": text });
    NewTask::program(Payload::from_json(JsonText::of(&input).unwrap()), None)
}

fn made(calls: &Calls, n: i64) -> usize {
    let input = format!("{{\"n\":{n}}}");
    calls.lock().iter().filter(|(_, of)| *of == input).count()
}

/// Lets clients start, wake and cancel tasks on a store that fails, and checks what they were told. With `is_killed`, the
/// process ends once all is accepted, and the next one has the same store. Returns whether the store has failed.
async fn holds(fault: Fault, after: usize, count: usize, is_killed: bool) -> bool {
    let (memory, calls) = (Arc::new(Memory::default()), Calls::default());
    let failing = Arc::new(Failing {
        inner: Arc::clone(&memory),
        fault,
        left: AtomicUsize::new(after),
        count,
        failed: AtomicUsize::new(0),
    });
    let store = Arc::clone(&failing) as Arc<dyn StateStore>;
    let mut tasks = open(&store, &calls).await;
    let one = || NewTask::call("once", Payload::from_json(JsonText::parse("{\"n\":1}").unwrap()), None);
    let durable = || program(PROGRAM);
    let cancelled = || program("(do (await-event \"never\") (call :once {:n 9}))");
    let ids = [
        start(&tasks, "one", &one).await,
        start(&tasks, "durable", &durable).await,
        start(&tasks, "cancelled", &cancelled).await,
    ];
    assert_eq!(start(&tasks, "one", &one).await, ids[0], "a key starts one task");
    // What had an effect despite its error is over when it is asked for again.
    let unless_over = |asked: Result<(), TaskError>| match asked {
        Err(TaskError::Over(_)) => Ok(()),
        other => other,
    };
    eventually("a cancellation", async || unless_over(tasks.cancel(&ids[2], ANYONE).await.map(drop)))
        .await;
    let event = || JsonText::parse("7").unwrap();
    eventually("an event", async || {
        unless_over(tasks.event(&ids[1], ANYONE, "go", event()).await.map(drop))
    })
    .await;
    if is_killed {
        tasks.abandon().await;
        tasks = open(&store, &calls).await;
    }
    let [one, durable, cancelled] =
        [over(&tasks, &ids[0]).await, over(&tasks, &ids[1]).await, over(&tasks, &ids[2]).await];
    let is_interrupted = is_killed && one.state == State::Interrupted;
    assert!(one.state == State::Completed || is_interrupted, "{one:?}");
    assert_eq!(durable.state, State::Completed, "{:?}", durable.error);
    assert_eq!(cancelled.state, State::Cancelled);
    let result = eventually("a result", async || tasks.result(&durable.id).await).await.unwrap();
    let result: serde_json::Value = serde_json::from_str(result.as_str()).unwrap();
    let value = &result["structuredContent"]["value"];
    for (at, n) in [(0, 2), (3, 6)] {
        let got = value[at].as_i64();
        assert!(
            (got == Some(n) && made(&calls, n) == 1) || (got == Some(-n) && made(&calls, n) <= 1),
            "{value}"
        );
    }
    assert_eq!((&value[1], &value[2]), (&serde_json::json!([3, 4, 5]), &serde_json::json!(7)));
    assert!(made(&calls, 1) == 1 || (is_interrupted && made(&calls, 1) == 0), "{:?}", calls.lock());
    assert_eq!(made(&calls, 9), 0);
    for task in [&one, &durable, &cancelled] {
        tasks.wait_stopped(&task.id).await;
    }
    tasks.close(Duration::from_secs(10)).await;
    assert_eq!(tasks.0.unfinished.lock().values().sum::<usize>(), 0, "every place is returned");
    let before = calls.lock().len();
    let again = open(&(memory as Arc<dyn StateStore>), &calls).await;
    for (id, state) in ids.iter().zip([one.state, State::Completed, State::Cancelled]) {
        assert_eq!(over(&again, id).await.state, state);
    }
    assert_eq!(calls.lock().len(), before, "no call is made again");
    again.close(Duration::ZERO).await;
    failing.failed.load(Ordering::SeqCst) > 0
}

#[tokio::test(start_paused = true)]
async fn nothing_acknowledged_is_lost_or_doubled_when_an_operation_of_the_store_fails() {
    for fault in [Fault::Refused, Fault::Unanswered, Fault::Unread] {
        for (count, is_killed) in [(1, false), (1, true), (3, false), (3, true)] {
            let mut after = 0;
            while holds(fault, after, count, is_killed).await {
                after += 1;
            }
            assert!(after > 10, "{fault:?}: only {after} operations");
        }
    }
}
