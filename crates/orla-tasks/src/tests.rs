use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use orla_marketplace::id::Pattern;
use orla_marketplace::rtfs::Value;
use orla_marketplace::testing::{Canned, MockExecutor, TEST_TIMEOUT};
use orla_marketplace::{
    ANNOTATIONS, ApprovalRule, Approvers, CapabilityMarketplace, Limits, MayAnswer, Payload, Principal,
    RuntimeError,
};
use orla_state::{Change, Expect, Order, Query, Record, Revision, StateError, StateStore, WriteError};
use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::{
    Event, Filter, NewTask, Recovery, Repeat, State, Task, TaskError, TaskOptions, Tasks, Timestamp,
    Viewer, keys, may_begin, recovery, timers,
};

/// A store in memory that fails on request.
#[derive(Default)]
struct Store {
    rows: Mutex<BTreeMap<String, (Bytes, Revision)>>,
    revision: AtomicU32,
    fails: AtomicU32,
    /// Whether the store panics once when the record of a working task is written.
    panics: AtomicBool,
}

#[async_trait]
impl StateStore for Store {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        if self
            .fails
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_ok()
        {
            return Err(StateError::new("the disk is full").into());
        }
        let works = |change: &Change| {
            let value = change.value.as_deref().unwrap_or_default();
            change.key.starts_with("task/") && String::from_utf8_lossy(value).contains("working")
        };
        assert!(!(changes.iter().any(works) && self.panics.swap(false, Ordering::Relaxed)), "a bug");
        let mut rows = self.rows.lock();
        for change in &changes {
            let found = rows.get(&change.key).map(|(_, revision)| *revision);
            let fits = match change.expect {
                Expect::Anything => true,
                Expect::Absent => found.is_none(),
                Expect::Revision(revision) => found == Some(revision),
            };
            if !fits {
                return Err(WriteError::Conflict { key: change.key.clone() });
            }
        }
        let revision = u64::from(self.revision.fetch_add(1, Ordering::Relaxed)) + 1;
        let made = changes.len();
        for Change { key, value, .. } in changes {
            match value {
                Some(value) => drop(rows.insert(key, (value, revision))),
                None => drop(rows.remove(&key)),
            }
        }
        Ok(vec![revision; made])
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        let found = self.rows.lock().get(key).cloned();
        Ok(found.map(|(value, revision)| Record { key: key.to_owned(), value, revision }))
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        let rows = self.rows.lock();
        let records = rows.range(query.keys).map(|(key, (value, revision))| Record {
            key: key.clone(),
            value: value.clone(),
            revision: *revision,
        });
        Ok(match query.order {
            Order::Ascending => records.take(query.limit).collect(),
            Order::Descending => records.rev().take(query.limit).collect(),
        })
    }
}

fn market() -> Arc<CapabilityMarketplace> {
    let market = CapabilityMarketplace::new(Limits::default());
    market.register_executor(Arc::new(MockExecutor)).unwrap();
    for (id, canned, hint) in [
        ("echo", Canned::Echoes, false),
        ("fails", Canned::Fails("it fails".to_owned()), false),
        ("hangs", Canned::Hangs, false),
        ("hangs_idempotent", Canned::Hangs, true),
        ("reports", Canned::Reports(3), false),
    ] {
        let mut manifest = canned.manifest(id);
        let hints = format!(r#"{{"idempotentHint": {hint}}}"#);
        manifest.metadata.insert(ANNOTATIONS.to_owned(), hints);
        market.register_capability(manifest).unwrap();
    }
    Arc::new(market)
}

async fn tasks(store: &Arc<Store>) -> Tasks {
    let tasks = Tasks::open(Arc::clone(store) as Arc<dyn StateStore>, market(), TaskOptions::default());
    tasks.resume().await.unwrap();
    tasks
}

fn new(capability: &str) -> NewTask {
    NewTask::call(capability, Payload::from_value(Value::from(7)), None)
}

const ANYONE: Viewer<'_> = Viewer::Caller(None);

async fn ended(tasks: &Tasks, id: &str) -> Arc<Task> {
    tasks.wait(id, ANYONE, Instant::now() + TEST_TIMEOUT).await.unwrap()
}

async fn reaches(tasks: &Tasks, id: &str, state: State) {
    let mut changes = tasks.subscribe(id, ANYONE).await.unwrap();
    tokio::time::timeout(TEST_TIMEOUT, changes.wait_for(|task| task.state == state))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_task_runs_and_its_result_is_kept() {
    let store = Arc::default();
    let tasks = tasks(&store).await;
    let started = tasks.start(new("echo")).await.unwrap();
    assert!(started.is_new && started.task.state == State::Queued);
    let id = started.task.id.as_str();
    assert_eq!(ended(&tasks, id).await.state, State::Completed);
    let result = tasks.result(&started.task.id).await.unwrap().unwrap();
    assert!(result.as_str().contains(r#""structuredContent":7"#), "{result}");
    let failed = tasks.start(new("fails")).await.unwrap().task;
    let failed = ended(&tasks, failed.id.as_str()).await;
    assert_eq!((failed.state, &*failed.error.as_ref().unwrap().message), (State::Failed, "it fails"));
    let ids: Vec<_> = tasks.list(&Filter::default(), ANYONE).await.unwrap();
    assert_eq!([&ids[0].id, &ids[1].id], [&failed.id, &started.task.id], "the newest first");
    assert!(store.rows.lock().keys().all(|key| !key.starts_with("open/")));
}

#[tokio::test]
async fn one_key_is_one_task_and_another_input_conflicts() {
    let store = Arc::default();
    let tasks = tasks(&store).await;
    let with_key = |capability| NewTask { key: Some("k".to_owned()), ..new(capability) };
    let tracker = TaskTracker::new();
    let all = (0..20).map(|_| {
        let tasks = tasks.clone();
        tracker.spawn(async move { tasks.start(with_key("echo")).await.unwrap() })
    });
    let mut is_new = 0;
    let mut ids = Vec::new();
    for one in all.collect::<Vec<_>>() {
        let started = one.await.unwrap();
        is_new += usize::from(started.is_new);
        ids.push(started.task.id.clone());
    }
    ids.dedup();
    assert_eq!((is_new, ids.len()), (1, 1));
    assert!(matches!(tasks.start(with_key("fails")).await, Err(TaskError::KeyConflict { .. })));
    let other = NewTask { caller: Some(Principal::token("ada")), ..with_key("fails") };
    assert!(tasks.start(other).await.unwrap().is_new, "another caller's keys are its own");
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_run_panics_runs_again_and_is_counted_once() {
    let store = Arc::<Store>::default();
    let options = TaskOptions { max_tasks: 1, ..TaskOptions::default() };
    let tasks = Tasks::open(Arc::clone(&store) as Arc<dyn StateStore>, market(), options);
    tasks.resume().await.unwrap();
    store.panics.store(true, Ordering::Relaxed);
    let started = tasks.start(new("echo")).await.unwrap();
    assert_eq!(ended(&tasks, started.task.id.as_str()).await.state, State::Completed);
    assert!(!store.panics.load(Ordering::Relaxed));
    tasks.wait_stopped(&started.task.id).await;
    tasks.close(TEST_TIMEOUT).await;
    assert_eq!(tasks.0.unfinished.lock().len(), 0, "it is no longer counted");
    let counts = tasks.counts().by_state;
    assert_eq!(counts, State::ALL.map(|state| u64::from(state == State::Completed)));
}

#[tokio::test]
async fn no_caller_takes_the_key_of_an_instant() {
    let store = Arc::default();
    let tasks = tasks(&store).await;
    let key = Some("schedule/tick/2026-11-22T19:59:00.000Z".to_owned());
    let of_caller = || NewTask { key: key.clone(), ..new("echo") };
    assert!(tasks.start(of_caller()).await.unwrap().is_new);
    assert!(!tasks.start(of_caller()).await.unwrap().is_new);
    let fired = NewTask { key: key.clone(), schedule: Some("tick".to_owned()), ..new("fails") };
    assert!(tasks.start(fired).await.unwrap().is_new);
}

#[tokio::test]
async fn a_caller_sees_its_own_tasks_alone() {
    let store = Arc::default();
    let tasks = tasks(&store).await;
    let [ada, bob] = ["ada", "bob"].map(Principal::token);
    let own = NewTask { caller: Some(ada.clone()), ..new("echo") };
    let id = tasks.start(own).await.unwrap().task.id.clone();
    let unknown = |viewer| {
        let (tasks, id) = (tasks.clone(), id.clone());
        async move { matches!(tasks.get(id.as_str(), viewer).await, Err(TaskError::Unknown(_))) }
    };
    assert!(!unknown(Viewer::Caller(Some(&ada))).await && !unknown(Viewer::Operator).await);
    assert!(unknown(Viewer::Caller(Some(&bob))).await && unknown(ANYONE).await);
    assert!(matches!(tasks.get("no id", ANYONE).await, Err(TaskError::Unknown(_))));
    for (viewer, count) in [(Viewer::Caller(Some(&ada)), 1), (Viewer::Operator, 1), (ANYONE, 0)] {
        assert_eq!(tasks.list(&Filter::default(), viewer).await.unwrap().len(), count);
    }
}

#[tokio::test]
async fn a_cancelled_task_ends_its_call_and_stays_cancelled() {
    let store = Arc::default();
    let tasks = tasks(&store).await;
    let id = tasks.start(new("hangs")).await.unwrap().task.id.clone();
    reaches(&tasks, id.as_str(), State::Working).await;
    assert_eq!(tasks.cancel(id.as_str(), ANYONE).await.unwrap().state, State::Cancelled);
    assert!(matches!(tasks.cancel(id.as_str(), ANYONE).await, Err(TaskError::Over(State::Cancelled))));
    tasks.close(Duration::ZERO).await;
    assert_eq!(tasks.get(id.as_str(), ANYONE).await.unwrap().state, State::Cancelled);
}

#[tokio::test]
async fn after_a_crash_the_queued_run_the_repeatable_run_again_and_the_others_are_interrupted() {
    let store: Arc<Store> = Arc::default();
    let before = tasks(&store).await;
    let mut ids = Vec::new();
    for capability in ["hangs", "hangs_idempotent"] {
        let id = before.start(new(capability)).await.unwrap().task.id.clone();
        reaches(&before, id.as_str(), State::Working).await;
        ids.push(id);
    }
    // The task still waits, since the closed process begins no task.
    before.close(Duration::ZERO).await;
    let resting =
        Tasks::open(Arc::clone(&store) as Arc<dyn StateStore>, market(), TaskOptions::default());
    let queued = resting.start(new("echo")).await.unwrap().task.id.clone();
    let after = tasks(&store).await;
    let interrupted = ended(&after, ids[0].as_str()).await;
    assert_eq!(interrupted.state, State::Interrupted);
    let error = interrupted.error.as_ref().unwrap();
    assert!(error.kind == "interrupted" && error.message.starts_with("hangs was running"), "{error:?}");
    assert_eq!(ended(&after, queued.as_str()).await.state, State::Completed);
    reaches(&after, ids[1].as_str(), State::Working).await;
    assert!(after.cancel(ids[1].as_str(), ANYONE).await.is_ok(), "it runs again");
}

#[tokio::test]
async fn invalid_tasks_are_refused_at_once_and_leave_no_record() {
    let store: Arc<Store> = Arc::default();
    let tasks = tasks(&store).await;
    let refused = tasks.start(new("nothing")).await;
    assert!(matches!(refused, Err(TaskError::Refused(RuntimeError::Unknown { .. }))));
    store.fails.store(1, Ordering::Relaxed);
    assert!(matches!(tasks.start(new("echo")).await, Err(TaskError::State(_))));
    assert!(store.rows.lock().is_empty());
    assert_eq!(tasks.counts().by_state, [0; 7]);
}

#[tokio::test(start_paused = true)]
async fn a_failing_store_delays_a_task_and_loses_nothing() {
    let store: Arc<Store> = Arc::default();
    let tasks = tasks(&store).await;
    let resting = tasks.0.starting.clone().acquire_many_owned(63).await.unwrap();
    let id = tasks.start(new("echo")).await.unwrap().task.id.clone();
    store.fails.store(3, Ordering::Relaxed);
    assert_eq!(ended(&tasks, id.as_str()).await.state, State::Completed);
    drop(resting);
}

#[tokio::test(start_paused = true)]
async fn expired_tasks_are_removed_with_all_their_records() {
    let store: Arc<Store> = Arc::default();
    let options = TaskOptions { keep: Duration::ZERO, ..TaskOptions::default() };
    let tasks = Tasks::open(Arc::clone(&store) as Arc<dyn StateStore>, market(), options);
    tasks.resume().await.unwrap();
    let keyed = NewTask { key: Some("k".to_owned()), ..new("echo") };
    let id = tasks.start(keyed).await.unwrap().task.id.clone();
    while tasks.get(id.as_str(), ANYONE).await.is_ok() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    while !store.rows.lock().is_empty() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn a_task_is_kept_as_long_as_the_newest_options_say() {
    let store: Arc<Store> = Arc::default();
    let tasks = tasks(&store).await;
    let id = tasks.start(new("echo")).await.unwrap().task.id.clone();
    ended(&tasks, id.as_str()).await;
    // As if it had ended when tasks were kept for a shorter time.
    let early = keys::timer(Timestamp(1), timers::KEEP, id.as_str());
    tasks.0.write(vec![Change::put(early.clone(), Bytes::new())]).await.unwrap();
    tasks.0.timer_set.notify_one();
    let begun = Instant::now();
    while store.rows.lock().contains_key(&early) {
        assert!(begun.elapsed() < TEST_TIMEOUT, "the timer is not run");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(tasks.get(id.as_str(), ANYONE).await.is_ok());
    tasks.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_kept_task_is_removed_although_the_clock_is_set_back_meanwhile() {
    let store: Arc<Store> = Arc::default();
    let tasks = tasks(&store).await;
    let id = tasks.start(new("echo")).await.unwrap().task.id.clone();
    let task = ended(&tasks, id.as_str()).await;
    let due = task.updated_at.plus_millis(tasks.0.keep_millis(&task));
    assert!(due > Timestamp::now());
    tasks.0.run_timer(timers::KEEP, id.as_str(), due).await.unwrap();
    assert!(tasks.get(id.as_str(), ANYONE).await.is_err());
    tasks.close(Duration::ZERO).await;
}

/// Rewrites the record of a task in the store.
fn rewrite(store: &Store, id: &str, from: &str, to: &str) {
    let mut rows = store.rows.lock();
    let (value, _) = rows.get_mut(&format!("task/{id}")).unwrap();
    let text = std::str::from_utf8(value).unwrap();
    assert!(text.contains(from), "{text}");
    *value = text.replace(from, to).into();
}

#[tokio::test]
async fn a_task_that_asked_when_its_server_died_works_again() {
    let store: Arc<Store> = Arc::default();
    let before = tasks(&store).await;
    let id = before.start(new("hangs_idempotent")).await.unwrap().task.id.clone();
    reaches(&before, id.as_str(), State::Working).await;
    before.close(Duration::ZERO).await;
    rewrite(&store, id.as_str(), r#""state":"working""#, r#""state":"input_required""#);
    let after = tasks(&store).await;
    reaches(&after, id.as_str(), State::Working).await;
    after.close(Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_record_blocks_no_other_task() {
    let store: Arc<Store> = Arc::default();
    let resting =
        Tasks::open(Arc::clone(&store) as Arc<dyn StateStore>, market(), TaskOptions::default());
    let [damaged, sound] = [(); 2].map(|()| resting.start(new("echo")));
    let (damaged, sound) = (damaged.await.unwrap().task, sound.await.unwrap().task);
    rewrite(&store, damaged.id.as_str(), r#""state":"queued""#, r#""state":"of the future""#);
    let after = tasks(&store).await;
    assert_eq!(ended(&after, sound.id.as_str()).await.state, State::Completed);
    assert!(matches!(after.get(damaged.id.as_str(), ANYONE).await, Err(TaskError::Unknown(_))));
    assert_eq!(after.list(&Filter::default(), ANYONE).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_task_cancelled_in_the_queue_frees_its_place_at_once() {
    let store: Arc<Store> = Arc::default();
    let options = TaskOptions { max_tasks: 1, ..TaskOptions::default() };
    let tasks = Tasks::open(Arc::clone(&store) as Arc<dyn StateStore>, market(), options);
    for _ in 0..3 {
        let id = tasks.start(new("echo")).await.unwrap().task.id.clone();
        assert!(matches!(tasks.start(new("echo")).await, Err(TaskError::Full(1))));
        tasks.cancel(id.as_str(), ANYONE).await.unwrap();
    }
}

#[tokio::test]
async fn notices_of_a_task_are_in_its_record() {
    let store: Arc<Store> = Arc::default();
    let tasks = tasks(&store).await;
    let id = tasks.start(new("reports")).await.unwrap().task.id.clone();
    let task = ended(&tasks, id.as_str()).await;
    assert_eq!(task.progress.as_ref().map(|progress| progress.progress), Some(3.0));
}

#[tokio::test(start_paused = true)]
async fn tasks_that_wait_for_an_approval_block_no_others() {
    let store: Arc<Store> = Arc::default();
    let tasks = tasks(&store).await;
    let approvals = tasks.0.market.approvals();
    let mut rule = ApprovalRule::new("approve[0]");
    rule.capabilities = vec![Pattern::new("echo")];
    rule.expires = Duration::from_secs(60);
    approvals.configure(vec![rule]);
    approvals.set_approvers(Approvers::Callers);
    let mut asking = Vec::new();
    for _ in 0..150 {
        asking.push(tasks.start(new("echo")).await.unwrap().task.id.to_string());
    }
    let other = tasks.start(new("reports")).await.unwrap().task.id.to_string();
    assert_eq!(ended(&tasks, &other).await.state, State::Completed);
    assert!(approvals.waiting() <= 32);
    // A task that is set aside is cancelled. The others continue when the earlier ones are answered.
    let last = asking.pop().unwrap();
    tasks.cancel(&last, ANYONE).await.unwrap();
    let mut left = asking.len();
    while left > 0 {
        for question in approvals.pending(None, MayAnswer::All) {
            approvals.answer(&question.id, None, MayAnswer::All, true).unwrap();
            left -= 1;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for id in &asking {
        assert_eq!(ended(&tasks, id).await.state, State::Completed);
    }
    assert!(tasks.0.unfinished.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_task_of_an_earlier_process_waits_for_its_provider_to_start() {
    let store: Arc<Store> = Arc::default();
    let resting =
        Tasks::open(Arc::clone(&store) as Arc<dyn StateStore>, market(), TaskOptions::default());
    let [served, lost] = [(); 2].map(|()| resting.start(new("echo")));
    let (served, lost) = (served.await.unwrap().task.id.clone(), lost.await.unwrap().task.id.clone());
    rewrite(&store, served.as_str(), r#""capability":"echo""#, r#""capability":"late""#);
    rewrite(&store, lost.as_str(), r#""capability":"echo""#, r#""capability":"gone""#);
    let now = Timestamp::now();
    while Timestamp::now() == now {
        std::hint::spin_loop();
    }
    let after = tasks(&store).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(after.get(served.as_str(), ANYONE).await.unwrap().state, State::Queued);
    after.0.market.register_capability(Canned::Echoes.manifest("late")).unwrap();
    assert_eq!(ended(&after, served.as_str()).await.state, State::Completed);
    let error = ended(&after, lost.as_str()).await.error.clone().unwrap();
    assert_eq!(error.kind, "unknown-capability", "its provider does not come");
    let new = after.start(NewTask { capability: "gone".to_owned(), ..new("echo") }).await;
    assert!(matches!(new, Err(TaskError::Refused(RuntimeError::Unknown { .. }))));
}

const EVENTS: [Event; 7] = [
    Event::Begin,
    Event::Ask,
    Event::Answer,
    Event::Complete,
    Event::Fail,
    Event::Cancel,
    Event::Interrupt,
];

/// The history of a simulated task.
#[derive(Debug)]
struct Simulated {
    state: State,
    begun: Option<Repeat>,
    runs: u32,
}

proptest! {
    #[test]
    fn a_call_that_cannot_be_repeated_runs_once_and_no_end_changes(
        repeat in prop_oneof![Just(Repeat::Never), Just(Repeat::Freely), Just(Repeat::Journaled)],
        // An event, or a crash.
        steps in prop::collection::vec((0..9usize, any::<bool>()), 0..200)
    ) {
        let mut task = Simulated { state: State::Queued, begun: None, runs: 0 };
        // The attempt of this process has begun.
        let mut runs_now = false;
        let mut before = None;
        for (step, is_durable) in steps {
            let was = task.state;
            match EVENTS.get(step) {
                Some(Event::Begin) => {
                    if !runs_now && may_begin(before, repeat) && task.state.after(Event::Begin).is_some() {
                        // The mark is durable before the call runs, so a crash between the two runs
                        // nothing.
                        task.state = State::Working;
                        task.begun = Some(repeat);
                        if is_durable {
                            task.runs += 1;
                            runs_now = true;
                        } else {
                            crash(&mut task, &mut runs_now, &mut before);
                        }
                    }
                }
                Some(event @ (Event::Complete | Event::Ask | Event::Answer)) if !runs_now => {
                    let _ = event;
                }
                Some(event) => {
                    if let Some(next) = task.state.after(*event) {
                        task.state = next;
                    }
                }
                None => crash(&mut task, &mut runs_now, &mut before),
            }
            if was.is_terminal() {
                prop_assert_eq!(task.state, was);
            }
            prop_assert!(repeat != Repeat::Never || task.runs <= 1, "{:?}", task);
        }
    }
}

fn crash(task: &mut Simulated, runs_now: &mut bool, before: &mut Option<Repeat>) {
    *runs_now = false;
    *before = task.begun;
    if recovery(task.state, task.begun) == Recovery::Interrupt {
        task.state = task.state.after(Event::Interrupt).unwrap_or(task.state);
    }
}

#[test]
fn states_round_trip() {
    for state in State::ALL {
        assert_eq!(state.as_str().parse(), Ok(state));
        assert_eq!(serde_json::to_string(&state).unwrap(), format!("{:?}", state.as_str()));
        assert!(EVENTS.iter().all(|event| !state.is_terminal() || state.after(*event).is_none()));
    }
}

#[tokio::test(start_paused = true)]
async fn changes_before_earlier_tasks_resume_are_counted_once() {
    let store: Arc<Store> = Arc::default();
    let before =
        Tasks::open(Arc::clone(&store) as Arc<dyn StateStore>, market(), TaskOptions::default());
    let old = before.start(new("hangs_idempotent")).await.unwrap().task.id.clone();
    let after = Tasks::open(Arc::clone(&store) as Arc<dyn StateStore>, market(), TaskOptions::default());
    after.hold();
    let (cancelled, started, resumed) =
        tokio::join!(after.cancel(old.as_str(), ANYONE), after.start(new("echo")), after.resume());
    resumed.unwrap();
    assert_eq!(cancelled.unwrap().state, State::Cancelled);
    let started = ended(&after, started.unwrap().task.id.as_str()).await;
    assert_eq!(started.state, State::Completed);
    after.close(Duration::ZERO).await;
    let counts = after.counts().by_state;
    assert_eq!(counts, [0, 0, 0, 1, 0, 1, 0], "{:?}", State::ALL);
    assert!(after.0.unfinished.lock().is_empty());
}

#[tokio::test]
async fn an_event_refused_by_an_outdated_record_is_retried_with_the_stored_one() {
    let store: Arc<Store> = Arc::default();
    let tasks = tasks(&store).await;
    let id = tasks.start(new("hangs")).await.unwrap().task.id.clone();
    reaches(&tasks, id.as_str(), State::Working).await;
    let running = tasks.0.live.running(&id).unwrap();
    let older = Task { state: State::Queued, ..running.record.lock().take().unwrap() };
    running.keep_record(&older);
    let asked = tasks.0.change(&id, &[Event::Ask, Event::Answer], |_| Ok(Vec::new())).await.unwrap();
    *running.record.lock() = Some(older.clone());
    assert_eq!(
        tasks.0.change(&id, &[Event::Answer], |_| Ok(Vec::new())).await.unwrap().state,
        State::Working
    );
    running.keep_record(&asked);
    assert!(running.record.lock().as_ref().unwrap().revision > asked.revision, "the later one stays");
    tasks.close(Duration::ZERO).await;
}
