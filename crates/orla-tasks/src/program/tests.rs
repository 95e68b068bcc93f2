//! Programs as tasks whose process ends at any moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use orla_marketplace::id::Pattern;
use orla_marketplace::rtfs::Wait;
use orla_marketplace::{ApprovalRule, Approvers, JsonText, MayAnswer, Payload, Redactor};
use orla_state::{Change, Memory, Query, Record, Revision, StateError, StateStore, WriteError};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::counting::{Calls, market};
use crate::local::NextStep;
use crate::{NewTask, State, TaskOptions, Tasks, Viewer};

/// A store whose process ends after a number of writes: it writes nothing from then on. The store
/// outlives its process.
struct Ending {
    inner: Arc<Memory>,
    left: AtomicUsize,
    ended: Notify,
}

#[async_trait]
impl StateStore for Ending {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        let left =
            self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_err() {
            self.ended.notify_one();
            return std::future::pending().await;
        }
        self.inner.write(changes).await
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        self.inner.get(key).await
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        self.inner.list(query).await
    }
}

fn program(text: &str) -> NewTask {
    let input = serde_json::json!({ "program": text });
    NewTask::program(Payload::from_json(JsonText::of(&input).unwrap()), None)
}

const ANYONE: Viewer<'_> = Viewer::Caller(None);

async fn open(store: Arc<dyn StateStore>, calls: &Calls) -> Tasks {
    let tasks = Tasks::open(store, market(calls, "often"), TaskOptions::default());
    tasks.resume().await.unwrap();
    tasks
}

async fn over(tasks: &Tasks, id: &str) -> Arc<crate::Task> {
    tasks.wait(id, ANYONE, Instant::now() + Duration::from_secs(3600)).await.unwrap()
}

async fn close(tasks: &Tasks) {
    tasks.close(Duration::ZERO).await;
}

async fn value(tasks: &Tasks, task: &crate::Task) -> serde_json::Value {
    let result = tasks.result(&task.id).await.unwrap().unwrap();
    let result: serde_json::Value = serde_json::from_str(result.as_str()).unwrap();
    result["structuredContent"]["value"].clone()
}

const FORTY: &str = "(loop [i 0 out []] (if (< i 40) (recur (inc i) (conj out \
    (if (= 0 (mod i 3)) (try (:n (call :once {:n i})) (catch :interrupted e (- 0 i 1))) (:n (call :often {:n i}))))) out))";

/// Runs a task through processes that make a limited number of writes each. Returns the last process and
/// their number.
async fn through(new: NewTask, writes: usize, calls: &Calls) -> (Tasks, Arc<crate::Task>, usize) {
    let memory = Arc::new(Memory::default());
    let store: Arc<dyn StateStore> = Arc::clone(&memory) as _;
    let first = Tasks::open(store, market(calls, "often"), TaskOptions::default());
    let id = first.start(new).await.unwrap().task.id.to_string();
    for processes in 1..2_000 {
        let ending = Arc::new(Ending {
            inner: Arc::clone(&memory),
            left: AtomicUsize::new(writes),
            ended: Notify::new(),
        });
        let tasks = open(Arc::clone(&ending) as Arc<dyn StateStore>, calls).await;
        let task = tokio::select! {
            biased;
            task = over(&tasks, &id) => Some(task),
            () = ending.ended.notified() => None,
        };
        if let Some(task) = task {
            return (tasks, task, processes);
        }
        // The process ends at once: running tasks get no further than their next write.
        tasks.abandon().await;
    }
    panic!("it makes no progress with {writes} writes for each process");
}

#[tokio::test(start_paused = true)]
async fn a_program_of_forty_calls_survives_a_crash_after_every_write() {
    for writes in 1..8 {
        let calls = Calls::default();
        let (tasks, task, processes) = through(program(FORTY), writes, &calls).await;
        assert_eq!(task.state, State::Completed, "{:?}", task.error);
        let out = value(&tasks, &task).await;
        let calls = calls.lock();
        for i in 0..40_i64 {
            let got = out[usize::try_from(i).unwrap()].as_i64().unwrap();
            let once = calls
                .iter()
                .filter(|(name, input)| name == "once" && *input == format!("{{\"n\":{i}}}"))
                .count();
            if i % 3 == 0 {
                assert!(got == i || got == -i - 1, "{out}");
                assert!(once <= 1, "a call that is not idempotent was made {once} times");
                assert!(got < 0 || once == 1, "{out}");
            } else {
                assert_eq!(got, i, "{out}");
            }
        }
        assert!(writes > 2 || processes > 10, "{processes} processes with {writes} writes each");
    }
}

#[tokio::test(start_paused = true)]
async fn an_uncaught_interrupted_call_interrupts_the_task_with_its_place() {
    let calls = Calls::default();
    // One write notes that the task runs and that the call begins.
    let (_, task, _) = through(program("(do\n  (call :once {:n 1}))"), 1, &calls).await;
    assert_eq!(task.state, State::Interrupted);
    let error = task.error.as_ref().unwrap();
    assert_eq!(error.kind, "interrupted");
    assert_eq!(error.at.map(|at| (at.line, at.column)), Some((2, 3)));
    assert_eq!(calls.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_program_without_effects_is_written_at_acceptance_and_at_its_end() {
    let calls = Calls::default();
    let (tasks, task, processes) = through(program("(do (describe :once) (+ 1 2))"), 1, &calls).await;
    assert_eq!((task.state, processes), (State::Completed, 1), "{:?}", task.error);
    assert_eq!(value(&tasks, &task).await, serde_json::json!(3));
    assert_eq!(tasks.journal(&task).await.unwrap().unwrap().steps.len(), 1);
    let counts = tasks.counts().by_state;
    assert_eq!(counts.iter().sum::<u64>(), 1, "{counts:?}");
}

#[tokio::test]
async fn a_program_that_sleeps_is_one_call_which_is_approved_and_recorded_once() {
    let calls = Calls::default();
    let tasks = open(Arc::new(Memory::default()), &calls).await;
    let market = &tasks.0.market;
    let records = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&records);
    market.on_finished(move |record| seen.lock().push((record.name.to_string(), record.outcome)));
    let mut rule = ApprovalRule::new("approve[0]");
    rule.capabilities = vec![Pattern::new("rtfs")];
    rule.expires = Duration::from_secs(60);
    market.approvals().configure(vec![rule]);
    market.approvals().set_approvers(Approvers::Callers);
    let id = tasks.start(program("(do (await-event \"a\") (await-event \"b\"))")).await.unwrap().task;
    let id = id.id.as_str();
    while market.approvals().waiting() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let question = &market.approvals().pending(None, MayAnswer::All)[0];
    market.approvals().answer(&question.id, None, MayAnswer::All, true).unwrap();
    for event in ["a", "b"] {
        sleeps(&tasks, id).await;
        tasks.event(id, ANYONE, event, JsonText::default()).await.unwrap();
    }
    assert_eq!(over(&tasks, id).await.state, State::Completed);
    assert_eq!(*records.lock(), [("rtfs".to_owned(), "ok")]);
    close(&tasks).await;
}

#[tokio::test]
async fn the_timeline_of_a_program_shows_no_secret_of_the_configuration() {
    let tasks = open(Arc::new(Memory::default()), &Calls::default()).await;
    tasks.0.market.set_redaction(Arc::new(Redactor::new(["s3cr3t"])));
    let text = "(step \"s3cr3t step\" (await-event \"the s3cr3t event\"))";
    let task = tasks.start(program(text)).await.unwrap().task;
    sleeps(&tasks, task.id.as_str()).await;
    let task = tasks.get(task.id.as_str(), ANYONE).await.unwrap();
    let timeline = tasks.journal(&task).await.unwrap().unwrap();
    assert_eq!(timeline.steps[0].name, "the [redacted] event");
    assert!(!format!("{timeline:?}").contains("s3cr3t"), "{timeline:?}");
    close(&tasks).await;
}

async fn rows(store: &Memory, prefix: &str) -> usize {
    store.list(Query::below(prefix, 1_000_000)).await.unwrap().len()
}

#[tokio::test]
async fn a_program_that_waits_sleeps_in_the_store_and_an_event_wakes_it_also_in_another_process() {
    let (memory, calls) = (Arc::new(Memory::default()), Calls::default());
    let tasks = open(Arc::clone(&memory) as Arc<dyn StateStore>, &calls).await;
    let text = "(let [a (:n (call :once {:n 1})) e (await-event \"paid\") f (await-event \"paid\")] \
        [a (:amount e) (:amount f) (:n (call :once {:n 2}))])";
    let id = tasks.start(program(text)).await.unwrap().task.id.to_string();
    sleeps(&tasks, &id).await;
    let event = |amount: i64| JsonText::of(&serde_json::json!({ "amount": amount })).unwrap();
    tasks.event(&id, ANYONE, "refunded", event(9)).await.unwrap();
    sleeps(&tasks, &id).await;
    close(&tasks).await;

    let tasks = open(Arc::clone(&memory) as Arc<dyn StateStore>, &calls).await;
    let timeline = tasks.timeline(&tasks.get(&id, ANYONE).await.unwrap().id).await.unwrap().unwrap();
    let actions: Vec<_> = timeline.steps.iter().map(|step| (&*step.action, &*step.outcome)).collect();
    assert_eq!(actions, [("call", "ok"), ("await-event", "open")]);
    assert!(super::render("", &timeline).ends_with("^\n"), "{timeline:?}");
    tasks.event(&id, ANYONE, "paid", event(77)).await.unwrap();
    tasks.event(&id, ANYONE, "paid", event(78)).await.unwrap();
    let task = over(&tasks, &id).await;
    assert_eq!(value(&tasks, &task).await, serde_json::json!([1, 77, 78, 2]), "{:?}", task.error);
    assert_eq!(calls.lock().len(), 2);
    let timeline = tasks.timeline(&task.id).await.unwrap().unwrap();
    assert_eq!(timeline.steps.len(), 4);
    assert_eq!(rows(&memory, "open/").await, 0);
    close(&tasks).await;
}

#[tokio::test]
async fn a_program_sleeps_until_an_instant_and_awaits_another_task() {
    let (memory, calls) = (Arc::new(Memory::default()), Calls::default());
    let tasks = open(Arc::clone(&memory) as Arc<dyn StateStore>, &calls).await;
    let at = crate::Timestamp::now().plus_millis(400);
    let sleeper =
        tasks.start(program(&format!("(do (sleep-until \"{at}\") {{:slept true}})"))).await.unwrap();
    let text = format!("(:slept (await-task \"{}\"))", sleeper.task.id);
    let waiter = tasks.start(program(&text)).await.unwrap().task.id.to_string();
    let stranger =
        "(try (await-task \"0199aa11-0000-7000-8000-000000000000\") (catch :unknown-task e 5))";
    let stranger = tasks.start(program(stranger)).await.unwrap().task.id.to_string();
    let task = over(&tasks, &waiter).await;
    assert_eq!(value(&tasks, &task).await, serde_json::json!(true), "{:?}", task.error);
    assert!(crate::Timestamp::now() >= at);
    let task = over(&tasks, &stranger).await;
    assert_eq!(value(&tasks, &task).await, serde_json::json!(5), "{:?}", task.error);
    close(&tasks).await;
}

#[tokio::test]
async fn sleeping_programs_are_rows_and_wake_on_time_after_a_restart() {
    // A busy machine may need longer than a first delay until all programs sleep.
    for delay in [1_500, 10_000, 60_000] {
        if all_sleep_and_wake_after_a_restart(delay).await {
            return;
        }
    }
    panic!("the programs need more than a minute to fall asleep");
}

/// Returns whether all programs slept before the instant, `delay` milliseconds from now, at which they wake.
async fn all_sleep_and_wake_after_a_restart(delay: u64) -> bool {
    let (memory, calls) = (Arc::new(Memory::default()), Calls::default());
    let tasks = open(Arc::clone(&memory) as Arc<dyn StateStore>, &calls).await;
    let at = crate::Timestamp::now().plus_millis(delay);
    let mut ids = Vec::new();
    for _ in 0..200 {
        let text = format!("(do (sleep-until \"{at}\") 1)");
        ids.push(tasks.start(program(&text)).await.unwrap().task.id.to_string());
    }
    for id in &ids {
        while !tasks.asleep(id).await && crate::Timestamp::now() < at {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let sleeping = rows(&memory, "timer/").await;
    close(&tasks).await;
    if crate::Timestamp::now() >= at {
        return false;
    }
    assert_eq!(sleeping, 200);
    let tasks = open(Arc::clone(&memory) as Arc<dyn StateStore>, &calls).await;
    for id in &ids {
        assert_eq!(over(&tasks, id).await.state, State::Completed);
    }
    assert!(crate::Timestamp::now() >= at);
    close(&tasks).await;
    true
}

#[tokio::test]
async fn a_journal_that_is_damaged_or_of_another_version_ends_the_task_and_makes_no_call() {
    for damage in [0_usize, 1, 2] {
        let (memory, calls) = (Arc::new(Memory::default()), Calls::default());
        let tasks = open(Arc::clone(&memory) as Arc<dyn StateStore>, &calls).await;
        let text = "(do (call :once {:n 1}) (await-event \"go\") (call :once {:n 2}))";
        let id = tasks.start(program(text)).await.unwrap().task.id.to_string();
        sleeps(&tasks, &id).await;
        close(&tasks).await;
        let key = format!("run/{id}/state");
        let mut state = memory.get(&key).await.unwrap().unwrap().value.to_vec();
        match damage {
            0 => state[0] += 1,
            1 => state.truncate(state.len() / 2),
            _ => {
                let last = state.len() - 1;
                state[last] ^= 0x55;
            }
        }
        memory.write(vec![Change::put(key, state)]).await.unwrap();
        let tasks = open(Arc::clone(&memory) as Arc<dyn StateStore>, &calls).await;
        tasks.event(&id, ANYONE, "go", JsonText::of(&serde_json::json!(1)).unwrap()).await.unwrap();
        let task = over(&tasks, &id).await;
        assert_eq!(task.state, State::Failed, "{damage}");
        let error = task.error.as_ref().unwrap();
        assert_eq!(error.kind, "not-resumable", "{error:?}");
        assert_eq!(calls.lock().len(), 1);
        close(&tasks).await;
    }
}

async fn sleeps(tasks: &Tasks, id: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !tasks.asleep(id).await {
        assert!(Instant::now() < deadline, "it does not sleep: {:?}", tasks.get(id, ANYONE).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn number(value: i64) -> JsonText {
    JsonText::of(&serde_json::json!(value)).unwrap()
}

#[tokio::test]
async fn a_program_that_withdrew_calls_continues_after_its_sleep() {
    let (memory, calls) = (Arc::new(Memory::default()), Calls::default());
    let tasks = open(Arc::clone(&memory) as Arc<dyn StateStore>, &calls).await;
    let text = "(do (try (pmap (fn [x] (if (= x 3) (throw \"no\") (call :once {:n x}))) [1 2 3]) \
        (catch e nil)) (await-event \"go\") 1)";
    let id = tasks.start(program(text)).await.unwrap().task.id.to_string();
    sleeps(&tasks, &id).await;
    tasks.event(&id, ANYONE, "go", number(1)).await.unwrap();
    let task = over(&tasks, &id).await;
    assert_eq!(task.state, State::Completed, "{:?}", task.error);
    close(&tasks).await;
}

/// A store that stops when a task falls asleep, so that the test can act at that moment. Afterwards, it
/// writes nothing.
struct PausedSleep {
    inner: Arc<Memory>,
    reached: Notify,
    go: Notify,
    is_over: std::sync::atomic::AtomicBool,
}

#[async_trait]
impl StateStore for PausedSleep {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        if self.is_over.load(Ordering::SeqCst) {
            return std::future::pending().await;
        }
        let falls = |change: &Change| {
            change.key.starts_with("open/")
                && change.value.as_ref().is_some_and(|value| !value.is_empty())
        };
        if !changes.iter().any(falls) {
            return self.inner.write(changes).await;
        }
        self.reached.notify_one();
        self.go.notified().await;
        let written = self.inner.write(changes).await;
        self.is_over.store(true, Ordering::SeqCst);
        self.reached.notify_one();
        written
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        self.inner.get(key).await
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        self.inner.list(query).await
    }
}

#[tokio::test]
async fn an_event_while_a_program_falls_asleep_survives_a_crash() {
    let (memory, calls) = (Arc::new(Memory::default()), Calls::default());
    let falling = Arc::new(PausedSleep {
        inner: Arc::clone(&memory),
        reached: Notify::new(),
        go: Notify::new(),
        is_over: false.into(),
    });
    let tasks = open(Arc::clone(&falling) as Arc<dyn StateStore>, &calls).await;
    let id = tasks.start(program("(await-event \"go\")")).await.unwrap().task.id.to_string();
    falling.reached.notified().await;
    tasks.event(&id, ANYONE, "go", number(7)).await.unwrap();
    falling.go.notify_one();
    falling.reached.notified().await;
    tasks.abandon().await;
    let tasks = open(Arc::clone(&memory) as Arc<dyn StateStore>, &calls).await;
    let over = tokio::time::timeout(orla_marketplace::testing::TEST_TIMEOUT, over(&tasks, &id)).await;
    let task = over.expect("the event is lost");
    assert_eq!(value(&tasks, &task).await, serde_json::json!(7), "{:?}", task.error);
    close(&tasks).await;
}

/// A store that yields to other tasks before each operation.
struct Yielding(Memory);

#[async_trait]
impl StateStore for Yielding {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        tokio::task::yield_now().await;
        self.0.write(changes).await
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        tokio::task::yield_now().await;
        self.0.get(key).await
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        tokio::task::yield_now().await;
        self.0.list(query).await
    }
}

#[tokio::test]
async fn a_task_that_is_woken_by_two_at_once_is_woken_once() {
    let calls = Calls::default();
    let tasks = open(Arc::new(Yielding(Memory::default())), &calls).await;
    let text = "[(await-event \"go\") (await-event \"go\") (await-event \"on\")]";
    let task = tasks.start(program(text)).await.unwrap().task;
    let id = task.id.to_string();
    sleeps(&tasks, &id).await;
    let waits = [Wait::Until(orla_marketplace::rtfs::Instant::from_unix(0, 0).unwrap())];
    let (one, two, three, four) = tokio::join!(
        tasks.event(&id, ANYONE, "go", number(1)),
        tasks.0.wake_if_due(&task.id, &waits),
        tasks.event(&id, ANYONE, "go", number(2)),
        tasks.0.wake_if_due(&task.id, &waits),
    );
    two.and(four).unwrap();
    one.and(three).unwrap();
    sleeps(&tasks, &id).await;
    tasks.event(&id, ANYONE, "on", number(3)).await.unwrap();
    let task = over(&tasks, &id).await;
    assert_eq!(task.state, State::Completed, "{:?}", task.error);
    let text = value(&tasks, &task).await;
    assert!(text == serde_json::json!([1, 2, 3]) || text == serde_json::json!([2, 1, 3]), "{text}");
    close(&tasks).await;
    assert!(tasks.0.unfinished.lock().is_empty());
    assert!(tasks.0.queue.lock().pop().is_none());
}

#[tokio::test]
async fn a_run_that_falls_asleep_learns_that_its_task_was_woken_meanwhile() {
    let (memory, calls) = (Arc::new(Memory::default()), Calls::default());
    let tasks = open(Arc::clone(&memory) as Arc<dyn StateStore>, &calls).await;
    let task = tasks.start(program("(await-event \"go\")")).await.unwrap().task;
    let id = task.id.to_string();
    sleeps(&tasks, &id).await;
    // Simulates that the run that has fallen asleep is still registered.
    assert!(tasks.0.local.add(&task.id));
    tasks.event(&id, ANYONE, "go", number(7)).await.unwrap();
    assert_eq!(tasks.0.local.fall_asleep(&task.id), NextStep::Restart);
    assert_eq!(tasks.0.local.fall_asleep(&task.id), NextStep::Sleep);
    close(&tasks).await;
}

#[tokio::test]
async fn a_cancelled_sleeping_task_releases_its_place() {
    let (memory, calls) = (Arc::new(Memory::default()), Calls::default());
    let tasks = open(Arc::clone(&memory) as Arc<dyn StateStore>, &calls).await;
    let id = tasks.start(program("(await-event \"go\")")).await.unwrap().task.id.to_string();
    sleeps(&tasks, &id).await;
    tasks.cancel(&id, ANYONE).await.unwrap();
    assert!(tasks.0.unfinished.lock().is_empty());
    assert_eq!(rows(&memory, "open/").await, 0);
    assert!(tasks.event(&id, ANYONE, "go", number(1)).await.is_err());
    close(&tasks).await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_sleeps_has_one_time_for_all_that_it_runs() {
    let (memory, calls) = (Arc::new(Memory::default()), Calls::default());
    let options = TaskOptions { timeout: Duration::from_millis(200), ..TaskOptions::default() };
    let tasks = Tasks::open(memory, market(&calls, "often"), options);
    tasks.resume().await.unwrap();
    let text = "(loop [] (do (await-event \"go\") (recur)))";
    let id = tasks.start(program(text)).await.unwrap().task.id.to_string();
    for _ in 0..100 {
        while !tasks.asleep(&id).await {
            let task = tasks.get(&id, ANYONE).await.unwrap();
            if let Some(error) = &task.error {
                assert!(["limit", "timeout"].contains(&&*error.kind), "{error:?}");
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tasks.event(&id, ANYONE, "go", number(1)).await.unwrap();
    }
    panic!("its time begins anew whenever it wakes");
}

/// A store that sometimes fails to write the notes of a run.
struct Failing(Memory, AtomicUsize);

#[async_trait]
impl StateStore for Failing {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        let is_note = changes.iter().any(|change| change.key.contains("/note/"));
        if is_note && self.1.fetch_add(1, Ordering::SeqCst) % 3 == 1 {
            return Err(StateError::new("the disk is full").into());
        }
        self.0.write(changes).await
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        self.0.get(key).await
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        self.0.list(query).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_survives_a_short_failure_of_its_journal() {
    let calls = Calls::default();
    let tasks = open(Arc::new(Failing(Memory::default(), AtomicUsize::new(0))), &calls).await;
    let text =
        "(loop [i 0 out []] (if (< i 9) (recur (inc i) (conj out (:n (call :often {:n i})))) out))";
    let id = tasks.start(program(text)).await.unwrap().task.id.to_string();
    let task = over(&tasks, &id).await;
    assert_eq!(task.state, State::Completed, "{:?}", task.error);
    assert_eq!(value(&tasks, &task).await, serde_json::json!([0, 1, 2, 3, 4, 5, 6, 7, 8]));
    close(&tasks).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_stopped_interrupts_no_program_between_two_calls() {
    let (memory, calls) = (Arc::new(Memory::default()), Calls::default());
    let tasks = open(Arc::clone(&memory) as Arc<dyn StateStore>, &calls).await;
    let id = tasks.start(program(FORTY)).await.unwrap().task.id.to_string();
    while calls.lock().len() < 3 {
        tokio::task::yield_now().await;
    }
    let began = Instant::now();
    tasks.close(Duration::from_secs(3600)).await;
    assert!(began.elapsed() < Duration::from_secs(60));
    assert!(calls.lock().len() < 40);
    let tasks = open(memory, &calls).await;
    let task = over(&tasks, &id).await;
    let expected: Vec<i64> = (0..40).collect();
    assert_eq!(value(&tasks, &task).await, serde_json::json!(expected), "{:?}", task.error);
    assert_eq!(calls.lock().len(), 40);
    close(&tasks).await;
}

/// A store in which this many writes of run states conflict with another writer.
struct Contended(Memory, AtomicUsize);

#[async_trait]
impl StateStore for Contended {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        let state = changes.iter().find(|change| change.key.ends_with("/state"));
        let left = |left: &AtomicUsize| {
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
        };
        match state {
            Some(state) if left(&self.1).is_ok() => Err(WriteError::Conflict { key: state.key.clone() }),
            _ => self.0.write(changes).await,
        }
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        self.0.get(key).await
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        self.0.list(query).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_state_conflicts_as_it_falls_asleep_does_not_continue_unsaved() {
    let calls = Calls::default();
    // One conflict when the run falls asleep, and one when only the state is written.
    let tasks = open(Arc::new(Contended(Memory::default(), AtomicUsize::new(2))), &calls).await;
    let text = "(do (log \"begins\") (await-event \"go\"))";
    let id = tasks.start(program(text)).await.unwrap().task.id.to_string();
    // The run begins again from its stored rows, of which there are none.
    while tasks.get(&id, ANYONE).await.unwrap().log.len() < 2 {
        assert!(!tasks.asleep(&id).await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    sleeps(&tasks, &id).await;
    tasks.event(&id, ANYONE, "go", number(1)).await.unwrap();
    assert_eq!(value(&tasks, &*over(&tasks, &id).await).await, serde_json::json!(1));
    close(&tasks).await;
}

/// A store that delays the answer to the write that wakes a task until the test releases it.
struct PausedWake {
    inner: Arc<Memory>,
    reached: Notify,
    go: Notify,
}

#[async_trait]
impl StateStore for PausedWake {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        let wakes = |change: &Change| change.key.starts_with("timer/") && change.value.is_none();
        let is_wake = changes.iter().any(wakes);
        let written = self.inner.write(changes).await;
        if is_wake {
            self.reached.notify_one();
            self.go.notified().await;
        }
        written
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        self.inner.get(key).await
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        self.inner.list(query).await
    }
}

#[tokio::test]
async fn a_task_that_is_cancelled_as_it_is_woken_stays_cancelled_and_makes_no_call() {
    let (memory, calls) = (Arc::new(Memory::default()), Calls::default());
    let store =
        Arc::new(PausedWake { inner: Arc::clone(&memory), reached: Notify::new(), go: Notify::new() });
    let tasks = open(Arc::clone(&store) as Arc<dyn StateStore>, &calls).await;
    // Farther away than a run waits in memory, and than a busy machine needs to start it.
    let soon = crate::Timestamp::now().plus_millis(3_000);
    let text = format!("(do (sleep-until \"{soon}\") (call :once {{}}))");
    let id = tasks.start(program(&text)).await.unwrap().task.id.to_string();
    store.reached.notified().await;
    let key = format!("task/{id}");
    let is_cancelled = |row: Record| row.value.windows(9).any(|part| part == b"cancelled");
    let answer = async {
        while !memory.get(&key).await.unwrap().is_some_and(is_cancelled) {
            tokio::task::yield_now().await;
        }
        store.go.notify_one();
    };
    let (cancelled, ()) = tokio::join!(tasks.cancel(&id, ANYONE), answer);
    assert_eq!(cancelled.unwrap().state, State::Cancelled);
    // Another task runs after it.
    let next = tasks.start(program("1")).await.unwrap().task.id.to_string();
    assert_eq!(over(&tasks, &next).await.state, State::Completed);
    assert_eq!(tasks.get(&id, ANYONE).await.unwrap().state, State::Cancelled);
    close(&tasks).await;
    assert!(calls.lock().is_empty(), "{:?}", calls.lock());
    assert!(tasks.0.unfinished.lock().is_empty());
}

type OfKind = fn(&Change) -> bool;

/// A store that makes its next write of a kind, and reports that it failed.
struct LostAnswer {
    inner: Arc<Memory>,
    next: Mutex<Option<OfKind>>,
}

#[async_trait]
impl StateStore for LostAnswer {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        let is_next = self.next.lock().take_if(|is_next| changes.iter().any(*is_next)).is_some();
        let written = self.inner.write(changes).await;
        if is_next { Err(StateError::new("the answer is lost").into()) } else { written }
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        self.inner.get(key).await
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        self.inner.list(query).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_made_despite_its_error_is_neither_lost_nor_counted_twice() {
    let falls_asleep: OfKind = |change| {
        change.key.starts_with("open/") && change.value.as_ref().is_some_and(|row| !row.is_empty())
    };
    let (memory, calls) = (Arc::new(Memory::default()), Calls::default());
    let store = Arc::new(LostAnswer { inner: Arc::clone(&memory), next: Mutex::default() });
    let tasks = open(Arc::clone(&store) as Arc<dyn StateStore>, &calls).await;
    let unfinished = || tasks.0.unfinished.lock().values().sum::<usize>();
    let other = tasks.start(program("(await-event \"never\")")).await.unwrap().task.id.to_string();
    sleeps(&tasks, &other).await;
    for is_cancelled in [true, false] {
        *store.next.lock() = Some(falls_asleep);
        // Its record says that it runs, so that it falls asleep without it.
        let text = "(do (call :often {}) (await-event \"go\") (call :once {:n 1}))";
        let task = tasks.start(program(text)).await.unwrap().task;
        let id = task.id.to_string();
        while store.next.lock().is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if is_cancelled {
            assert_eq!(tasks.cancel(&id, ANYONE).await.unwrap().state, State::Cancelled);
        } else {
            tasks.event(&id, ANYONE, "go", number(1)).await.unwrap();
            assert_eq!(over(&tasks, &id).await.state, State::Completed);
        }
        tasks.wait_stopped(&task.id).await;
        assert_eq!(unfinished(), 1, "cancelled: {is_cancelled}");
    }
    let once = || calls.lock().iter().filter(|(name, _)| name == "once").count();
    assert_eq!(once(), 1);

    *store.next.lock() = Some(|change| change.key.contains("/event/"));
    assert!(tasks.event(&other, ANYONE, "never", number(1)).await.is_err());
    assert_eq!(over(&tasks, &other).await.state, State::Completed);
    assert_eq!(unfinished(), 0);

    *store.next.lock() = Some(|change| change.key.starts_with("input/"));
    assert!(tasks.start(program("(call :once {:n 2})")).await.is_err());
    while once() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    close(&tasks).await;
    assert_eq!((once(), unfinished()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_input_is_damaged_can_be_cancelled() {
    let (memory, calls) = (Arc::new(Memory::default()), Calls::default());
    let store: Arc<dyn StateStore> = Arc::clone(&memory) as _;
    let resting = Tasks::open(store, market(&calls, "often"), TaskOptions::default());
    let task = resting.start(program("1")).await.unwrap().task;
    memory.write(vec![Change::put(format!("input/{}", task.id), "{")]).await.unwrap();
    let tasks = open(memory, &calls).await;
    while tasks.0.live.running(&task.id).is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(tasks.cancel(task.id.as_str(), ANYONE).await.unwrap().state, State::Cancelled);
    tasks.wait_stopped(&task.id).await;
    assert!(tasks.0.unfinished.lock().is_empty());
    close(&tasks).await;
}
