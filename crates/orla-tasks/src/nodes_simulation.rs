//! A simulation of tasks on several nodes, over a network that loses, delays, repeats and reorders messages.
//!
//! The nodes run the whole of [`Tasks`], and the calls of the marketplace, on the store of a simulated cluster
//! ([`orla_state::testing::simulation`]). Processes crash, are stopped and lose their connection at any step, for less or more
//! time than a lease has. Clients start tasks with keys at any node, repeat their requests, send events, cancel, and read. After
//! a while nothing fails any more, and every task has to end.
//!
//! The invariants: [`KEY`], [`KEPT`], [`ONCE`], [`FENCED`], [`TAKEN`], [`OVER`], [`NEWEST`], [`RESULT`] and [`ENDS`]. A seed that fails is
//! added to [`SEEDS`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use orla_marketplace::rtfs::Value;
use orla_marketplace::{CapabilityMarketplace, JsonText, Payload};
use orla_state::Revision;
use orla_state::testing::simulation::{Birth, Cluster, Random, Written, check_repeated, check_worlds};
use parking_lot::Mutex;

use crate::counting::{Calls, market_with};
use crate::follow::NODES as NODE_RECORDS;
use crate::keys::{self, TASKS};
use crate::state::State;
use crate::task::{Runner, Task, TaskId};
use crate::{NewTask, Sharing, TaskError, TaskOptions, Tasks, Viewer};

const KEY: &str = "a key starts one task, at whichever node and however often it is used";
const KEPT: &str = "a task whose id a client was told is there";
const ONCE: &str = "a call that is not idempotent is made once at most";
const FENCED: &str = "a process writes nothing of a task that another one has taken";
const TAKEN: &str = "a task is taken from a node only if the node was silent for the time of its lease";
const OVER: &str = "a task that is over changes no more";
const NEWEST: &str = "no node shows an older state than its client has seen before";
const RESULT: &str = "a task has one end, and the one that its calls allow";
const ENDS: &str = "every task ends once nothing fails any more";

/// Seeds that failed in the past, or that show a mistake which few others show.
const SEEDS: [u64; 3] = [1, 20_261_127, 20_261_645];

const ANYONE: Viewer<'_> = Viewer::Caller(None);
const NODES: usize = 3;
/// How long the calls of a world take: some are still there when the lease of their node is over.
const CALL_TIMES: [Duration; 3] =
    [Duration::from_millis(700), Duration::from_secs(4), Duration::from_secs(15)];
/// A node whose heartbeats have no pause of this length is there for all others.
const SILENCE: Duration = Duration::from_secs(9);
/// How long ago a pause may be for which a node loses its tasks.
const AFTERMATH: Duration = Duration::from_secs(60);
/// The number of steps of one world after which nothing fails and nothing is cancelled.
const BUSY: u64 = 4_000;
/// The maximum number of steps of one world.
const LONGEST: u64 = 60_000;
/// More than the number of calls of a task.
const CALLS: usize = 10;

/// What a task does.
#[derive(Debug)]
enum Kind {
    /// It is one call.
    Call { is_idempotent: bool },
    /// It is a program with these steps.
    Program { steps: Vec<Step>, catches: bool },
}

/// A step of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Once,
    Again,
    Event,
}

/// A task, as its client knows it.
#[derive(Debug)]
struct Wanted {
    kind: Kind,
    id: Option<TaskId>,
    /// The latest revision that the client has seen.
    seen: Revision,
    end: Option<State>,
    has_event: bool,
    is_cancelled: bool,
}

/// An answer to a client.
enum Heard {
    Started(TaskId),
    /// The task, as a client sees it that has seen this revision before.
    Seen(Revision, Arc<Task>),
    Unknown,
    Delivered,
    Cancelled,
}

type Answers = Arc<Mutex<Vec<(usize, Heard)>>>;

/// The names of the lives of nodes, by the numbers of the processes.
type Lives = Arc<Mutex<BTreeMap<u64, String>>>;

/// What all worlds share: the nodes' capabilities, and the calls that were made.
struct Common {
    /// The markets of the nodes, for each time of calls.
    markets: [Vec<Arc<CapabilityMarketplace>>; CALL_TIMES.len()],
    calls: Calls,
}

struct World {
    cluster: Cluster<Tasks>,
    tasks: Vec<Wanted>,
    answers: Answers,
    calls: Calls,
    /// How often each call was made.
    made: BTreeMap<usize, u32>,
    next_id: u64,
    steps: u64,
}

impl Common {
    fn new() -> Self {
        let calls = Calls::default();
        let market = |time| market_with(&calls, "again", time);
        let markets = CALL_TIMES.map(|time| (0..NODES).map(|_| market(time)).collect());
        Self { markets, calls }
    }
}

impl Wanted {
    fn new(random: &mut Random) -> Self {
        let kind = match random.below(4) {
            0 => Kind::Call { is_idempotent: false },
            1 => Kind::Call { is_idempotent: true },
            _ => {
                let count = 1 + random.below(4);
                let mut steps: Vec<Step> = (0..count)
                    .map(|_| if random.one_in(2) { Step::Once } else { Step::Again })
                    .collect();
                if random.one_in(2) {
                    let at = random.index(steps.len() + 1);
                    steps.insert(at, Step::Event);
                }
                Kind::Program { steps, catches: random.one_in(2) }
            }
        };
        Self { kind, id: None, seen: 0, end: None, has_event: false, is_cancelled: false }
    }

    /// Returns a request to start the task, which is the one at this place.
    fn request(&self, at: usize, id: TaskId) -> NewTask {
        let number = |step: usize| at * CALLS + step;
        let new = match &self.kind {
            Kind::Call { is_idempotent } => {
                let name = if *is_idempotent { "again" } else { "once" };
                NewTask::call(name, Payload::from_value(Value::from(number(0) as i64)), None)
            }
            Kind::Program { steps, catches } => {
                let step = |(step, form): (usize, &Step)| {
                    let n = number(step);
                    match form {
                        Step::Event => "(await-event \"go\")".to_owned(),
                        Step::Again => format!("(call :again {{:n {n}}})"),
                        Step::Once if *catches => {
                            format!("(try (call :once {{:n {n}}}) (catch :interrupted e 0))")
                        }
                        Step::Once => format!("(call :once {{:n {n}}})"),
                    }
                };
                let steps: Vec<String> = steps.iter().enumerate().map(step).collect();
                let text = format!("(do {} 1)", steps.join(" "));
                let input = serde_json::json!({ "program": text });
                NewTask::program(Payload::from_json(JsonText::of(&input).unwrap()), None)
            }
        };
        NewTask { key: Some(format!("k{at}")), id: Some(id), ..new }
    }

    fn awaits_event(&self) -> bool {
        matches!(&self.kind, Kind::Program { steps, .. } if steps.contains(&Step::Event))
    }

    /// Checks how often the calls of the task were made, which ended so.
    fn check(&self, task: &Task, made: impl Fn(usize) -> u32) {
        let end = task.state;
        let is_completed = end == State::Completed;
        assert!(
            !self.is_cancelled || end == State::Cancelled,
            "{RESULT}: {end} though it was cancelled"
        );
        let (steps, may_interrupt) = match &self.kind {
            Kind::Call { is_idempotent: true } => (&[Step::Again][..], false),
            Kind::Call { is_idempotent: false } => (&[Step::Once][..], true),
            Kind::Program { steps, catches } => (&steps[..], !catches && steps.contains(&Step::Once)),
        };
        let is_end = match end {
            State::Completed | State::Cancelled => true,
            State::Interrupted => may_interrupt,
            _ => false,
        };
        assert!(is_end, "{RESULT}: {end}, {:?}", task.error);
        let catches = matches!(self.kind, Kind::Program { catches: true, .. });
        for (at, step) in steps.iter().enumerate() {
            let made = made(at);
            let fits = match step {
                Step::Event => made == 0,
                Step::Again => made > 0 || !is_completed,
                Step::Once => made == 1 || (made == 0 && (catches || !is_completed)),
            };
            assert!(fits, "{RESULT}: {step:?} was made {made} times, and then it was {end}");
        }
    }
}

/// Checks what processes write, from outside of them.
#[derive(Default)]
struct Fence {
    lives: Lives,
    /// The lives that run the tasks.
    runners: BTreeMap<String, Option<String>>,
    /// The lives of the nodes, with the times of their heartbeats.
    heartbeats: BTreeMap<String, (String, Vec<Duration>)>,
}

impl Fence {
    fn note_heartbeats(&mut self, written: &Written<'_>) {
        for change in written.changes {
            let (Some(node), Some(value)) = (change.key.strip_prefix(NODE_RECORDS), &change.value)
            else {
                continue;
            };
            let Runner { life, .. } = serde_json::from_slice(value).unwrap();
            let known = self.heartbeats.entry(node.to_owned()).or_default();
            if known.0 != life {
                *known = (life, Vec::new());
            }
            known.1.push(written.made);
        }
    }

    /// Returns whether a life was heard by then, without a pause that makes others take its tasks.
    fn is_well(&self, runner: &Runner, then: Duration) -> bool {
        let Some((life, times)) = self.heartbeats.get(&runner.node) else { return false };
        let times = || times.iter().copied().filter(|at| *at <= then);
        let ends = times().skip(1).chain([then]);
        let mut pauses = times().zip(ends).filter(|(_, end)| *end + AFTERMATH > then);
        *life == runner.life
            && times().next().is_some()
            && pauses.all(|(begin, end)| end - begin < SILENCE)
    }

    fn check(&mut self, written: &Written<'_>) {
        let Some(author) = self.lives.lock().get(&written.life).cloned() else { return };
        self.note_heartbeats(written);
        let mut is_over = false;
        for (change, before) in written.changes.iter().zip(written.before) {
            let (Some(id), Some(value)) = (change.key.strip_prefix(TASKS), &change.value) else {
                continue;
            };
            let read = |value: &Bytes| Task::read(TaskId::parse(id).unwrap(), value).unwrap();
            let task = read(value);
            let life = |task: &Task| task.runner.as_ref().map(|runner| runner.life.clone());
            if let Some(before) = before {
                let before = read(before);
                assert!(!before.state.is_terminal(), "{OVER}: {} became {}", before.state, task.state);
                let is_its_own = life(&before).is_none_or(|life| life == author);
                let is_claimed = life(&task).as_ref() == Some(&author);
                // Any process cancels a task, or ends the task of a process that is gone.
                let is_ended = matches!(task.state, State::Cancelled | State::Interrupted);
                let is_taken = !is_its_own && task.state != State::Cancelled;
                let is_well = before.runner.as_ref().is_some_and(|it| self.is_well(it, written.sent));
                assert!(!is_taken || !is_well, "{TAKEN}: {:?} by {author}", before.runner);
                assert!(is_its_own || is_claimed || is_ended, "{FENCED}: its record");
                // Whoever ends or releases a task writes of it for the last time.
                is_over = is_ended || (is_its_own && life(&task).is_none());
            }
            self.runners.insert(id.to_owned(), life(&task));
        }
        for change in written.changes {
            let mut parts = change.key.split('/');
            let is_of_run = matches!(parts.next(), Some("run" | "result"));
            let Some(id) = parts.next().filter(|_| is_of_run && !is_over) else { continue };
            if parts.next() != Some("event") {
                let runner = self.runners.get(id).cloned().flatten();
                assert_eq!(runner.as_ref(), Some(&author), "{FENCED}: {}", change.key);
            }
        }
    }
}

impl World {
    fn new(common: &Common, random: &mut Random) -> Self {
        common.calls.lock().clear();
        let lives = Lives::default();
        let markets = common.markets[random.index(CALL_TIMES.len())].clone();
        let known = Arc::clone(&lives);
        let cluster = Cluster::new(random, NODES, move |birth: Birth| {
            let sharing = Sharing {
                node: format!("n{}", birth.node),
                runs: Box::new(|_| true),
                admits: Box::new(|_| true),
                takes: Box::new(|| true),
                own: None,
                accepts_alone: false,
            };
            let market = Arc::clone(&markets[birth.node]);
            let tasks = Tasks::open_shared(birth.store, market, TaskOptions::default(), sharing);
            let me = tasks.0.shared.as_ref().map(|shared| shared.me.life.clone());
            known.lock().extend(me.map(|life| (birth.life, life)));
            let resuming = tasks.clone();
            tasks.0.tracker.spawn(async move { resuming.resume().await.unwrap() });
            tasks
        });
        let mut fence = Fence { lives, ..Fence::default() };
        cluster.network().observe(move |written| fence.check(written));
        Self {
            cluster,
            tasks: (0..2 + random.below(5)).map(|_| Wanted::new(random)).collect(),
            answers: Answers::default(),
            calls: Arc::clone(&common.calls),
            made: BTreeMap::new(),
            next_id: 0,
            steps: 0,
        }
    }

    /// Makes one step. Returns whether all tasks are over.
    fn step(&mut self, random: &mut Random) -> bool {
        self.steps += 1;
        assert!(self.steps < LONGEST, "{ENDS}: {:?}", self.tasks);
        let is_busy = self.steps < BUSY;
        match random.one_in(16) {
            true => self.request(random, is_busy),
            false => self.cluster.step(random, is_busy),
        }
        self.check_calls();
        self.take_answers();
        let is_done = !is_busy && self.tasks.iter().all(|task| task.end.is_some());
        if is_done {
            self.check();
        }
        is_done
    }

    /// A client asks something at any node.
    fn request(&mut self, random: &mut Random, is_busy: bool) {
        let (at, node) = (random.index(self.tasks.len()), random.index(NODES));
        let (answers, task) = (Arc::clone(&self.answers), &self.tasks[at]);
        let hear = move |heard: Option<Heard>| answers.lock().extend(heard.map(|heard| (at, heard)));
        let what = random.below(16);
        let id = match &task.id {
            Some(id) if what > 0 || !is_busy => id.to_string(),
            // Clients repeat a request until it is answered, and sometimes afterwards.
            _ => {
                self.next_id += 1;
                let id = format!("01890000-0000-7000-8000-{:012x}", self.next_id);
                let new = task.request(at, TaskId::parse(&id).unwrap());
                return self.cluster.spawn(node, |tasks| {
                    let tasks = tasks.clone();
                    async move {
                        let started = tasks.start(new).await;
                        hear(started.ok().map(|started| Heard::Started(started.task.id.clone())));
                    }
                });
            }
        };
        let (is_cancelled, is_sent) = (
            what == 1 && is_busy && random.one_in(8),
            task.awaits_event() && !task.has_event && (what < 4 || !is_busy),
        );
        let seen = task.seen;
        self.cluster.spawn(node, |tasks| {
            let tasks = tasks.clone();
            async move {
                if is_cancelled {
                    let cancelled = tasks.cancel(&id, ANYONE).await;
                    return hear(cancelled.ok().map(|_| Heard::Cancelled));
                }
                if is_sent {
                    let sent = tasks.event(&id, ANYONE, "go", JsonText::default()).await;
                    return hear(sent.ok().map(|()| Heard::Delivered));
                }
                hear(match tasks.get(&id, ANYONE).await {
                    Ok(task) => Some(Heard::Seen(seen, task)),
                    Err(TaskError::Unknown(_)) => Some(Heard::Unknown),
                    Err(_) => None,
                });
            }
        });
    }

    fn take_answers(&mut self) {
        for (at, heard) in std::mem::take(&mut *self.answers.lock()) {
            let wanted = &mut self.tasks[at];
            match heard {
                Heard::Started(id) => {
                    let known = wanted.id.replace(id.clone());
                    assert!(known.is_none_or(|known| known == id), "{KEY}");
                }
                Heard::Seen(before, task) => {
                    assert!(task.revision >= before, "{NEWEST}: {} after {before}", task.revision);
                    wanted.seen = wanted.seen.max(task.revision);
                    if task.state.is_terminal() {
                        let end = wanted.end.replace(task.state);
                        assert!(end.is_none_or(|end| end == task.state), "{OVER}");
                    }
                }
                Heard::Unknown => panic!("{KEPT}"),
                Heard::Delivered => wanted.has_event = true,
                Heard::Cancelled => wanted.is_cancelled = true,
            }
        }
    }

    /// Checks the calls that were made since the last step.
    fn check_calls(&mut self) {
        for (name, input) in self.calls.lock().drain(..) {
            let digits: String = input.chars().filter(char::is_ascii_digit).collect();
            let made = self.made.entry(digits.parse().unwrap()).or_default();
            *made += 1;
            assert!(*made == 1 || !name.starts_with("once"), "{ONCE}: {input}");
        }
    }

    fn check(&self) {
        let network = self.cluster.network();
        assert_eq!(network.keys(TASKS).len(), self.tasks.len(), "{KEY}");
        assert!(network.keys(keys::OPEN).is_empty(), "{ENDS}");
        for (at, wanted) in self.tasks.iter().enumerate() {
            let id = wanted.id.clone().expect(KEY);
            let record = network.record(&keys::task(&id)).expect(KEPT);
            let task = Task::read(id.clone(), &record.value).unwrap();
            assert_eq!(Some(task.state), wanted.end, "{OVER}");
            let has_result = network.record(&keys::result(&id)).is_some();
            assert!(has_result || task.state != State::Completed, "{RESULT}: it is missing");
            wanted.check(&task, |step| self.made.get(&(at * CALLS + step)).copied().unwrap_or_default());
        }
    }
}

#[test]
fn tasks_survive_any_network_and_any_trouble_of_nodes() {
    let common = Common::new();
    check_worlds("tasks", &SEEDS, LONGEST, |random| World::new(&common, random), World::step);
}

#[test]
fn a_world_of_tasks_follows_from_its_seed() {
    let common = Common::new();
    let trace = |world: &World| (world.steps, world.cluster.trace());
    check_repeated(|random| World::new(&common, random), World::step, trace);
}
