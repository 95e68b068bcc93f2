//! A simulation of tasks: their acceptance, their state machine, the notes of programs, their sleep, and
//! a store. Servers end at any step, writes fail, and answers are lost: answers of a server to its
//! clients, and answers of the store to a server that continues.
//!
//! The simulation is pure and has its own clock. One step is one event. In one world, clients start a
//! few tasks with keys. They repeat each request until they receive an id, and sometimes afterwards.
//! They also cancel tasks and send events. Some tasks are programs, which make calls, sleep, await
//! events and each other, and race a call against an instant. Each other task is one call, which may ask
//! questions. A seed that fails is added to [`SEEDS`]. Several nodes are simulated by
//! [`nodes_simulation`](crate::nodes_simulation).
//!
//! The invariants: [`KEY`], [`KEPT`], [`ONCE`], [`FINISHED`], [`NOTED`], [`RESULT`], [`STATE`],
//! [`EVENT`], [`AWAKE`], [`OVER`], [`PLACES`] and [`SLEPT`].

mod plain;
mod run;
mod store;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use orla_marketplace::rtfs::Wait;
use orla_state::testing::simulation::{Random, simulate, steps_and_seed};
use orla_state::{Change, Expect, Revision};

use super::keys;
use super::sleep::{event_changes, remove_awaiting, touch};
use crate::keys::{OwnerKey, TASKS, TIMERS, idempotency, open, parse_timer};
use crate::local::{LocalTasks, NextStep};
use crate::start::accepted;
use crate::state::{Event, Recovery, Repeat, State, recovery};
use crate::task::TaskId;
use plain::Plain;
use run::{Form, Run, RunContext, StepOutcome, outcome, until};
use store::{Store, happens, record_of};

const KEY: &str = "a key starts one task, whatever answers are lost";
const KEPT: &str = "a task whose id a client was told is there";
const ONCE: &str = "a call that is not idempotent is made once at most";
const FINISHED: &str = "a call whose answer is durable is not made again";
const NOTED: &str = "a call that leaves the process is noted durably before it is made";
const RESULT: &str =
    "the result is that of a process that never ends, but for calls that were interrupted";
const STATE: &str = "the states of a task follow each other as they may";
const EVENT: &str = "an event that was accepted gives one answer, or waits still when its task ends";
const AWAKE: &str = "every task ends: none that sleeps is forgotten";
const OVER: &str = "a task that is over makes no call and changes no more";
const PLACES: &str = "a task has one place until it is over";
const SLEPT: &str = "nothing is noted of a task that sleeps";

/// Seeds that failed in the past.
const SEEDS: [u64; 3] = [1, 2, 0x5eed];

/// The number of steps of one world after which no server ends and nothing is cancelled, so that every
/// task soon ends.
const BUSY: u64 = 400;
/// The maximum number of steps of one world.
const LONGEST: u64 = 40_000;

/// Whether a call may be repeated.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Idempotent,
    Once,
}

/// A task, and its visible effects outside of the server.
struct Made {
    /// Whether the task is a program. Otherwise it is the one call of its forms.
    is_program: bool,
    forms: Vec<Form>,
    /// Whether the program handles an interrupted call.
    catches: bool,
    /// The id that its client received.
    client_id: Option<TaskId>,
    /// How often each call was made.
    calls: Vec<u32>,
    finished: Vec<bool>,
    /// The answers with which the task ended.
    result: Option<Vec<i64>>,
    /// The accepted events: their keys and values.
    events: Vec<(String, i64)>,
}

impl Made {
    /// Makes a call.
    fn make(&mut self, id: &TaskId, store: &Store, at: usize) {
        assert!(!self.finished[at], "{FINISHED}");
        let record = store.record(id);
        assert!(!record.state.is_terminal(), "{OVER}");
        let is_noted = !self.is_program
            || store.get(&keys::state(id)).is_some()
            || store.below(&keys::all_notes(id)).next().is_some();
        assert!(is_noted && record.begun.is_some(), "{NOTED}");
        self.calls[at] += 1;
        assert!(self.forms[at] != Form::Call(Call::Once) || self.calls[at] == 1, "{ONCE}");
    }

    /// Notes that the answer to a call is durable.
    fn finish(&mut self, at: usize) {
        self.finished[at] = true;
    }
}

/// An operation outside of the runs, between its read and its write.
enum Operation {
    /// A client starts a task with a key. The server has looked for an existing task with this key.
    Start { task: usize, found: Option<TaskId> },
    /// The answer is on its way to the client.
    Answer { task: usize, id: TaskId },
    /// An event arrives.
    Event { task: usize, key: String, value: i64, revision: Revision, is_reserved: bool },
    /// A task is woken by a row, which is then removed.
    Wake {
        task: usize,
        with: Option<(String, Revision)>,
        open: Option<(Revision, bool)>,
        is_reserved: bool,
    },
}

/// A run in a process.
enum Running {
    Program(Box<Run>),
    Plain(Plain),
}

/// The outcome of a write.
#[derive(Clone, Copy, PartialEq)]
enum WriteOutcome {
    Made,
    /// The server is told that the write failed. The write either failed or was made all the same.
    Failed {
        is_made: bool,
    },
}

/// A few tasks in a world whose servers end.
struct World {
    store: Store,
    tasks: Vec<Made>,
    now: u64,
    next_event: i64,
    next_id: u64,
    steps: u64,
    /// The tasks in the current server.
    local: LocalTasks,
    queue: VecDeque<usize>,
    runs: BTreeMap<usize, Running>,
    /// Runs that have fallen asleep and are still registered, with their waits.
    leaving: BTreeMap<usize, Vec<Wait>>,
    operations: Vec<Operation>,
    /// Whether a write that failed may have been made all the same.
    has_failed_write: bool,
    /// How often each task is counted as waiting or running.
    places: Vec<i32>,
}

fn value(at: usize) -> i64 {
    at as i64 * 7 + 3
}

fn interrupted(at: usize) -> i64 {
    -1_000 - at as i64
}

fn name(event: u8) -> String {
    format!("e{event}")
}

fn key(task: usize) -> String {
    format!("k{task}")
}

fn owner() -> OwnerKey {
    OwnerKey::of_caller(None)
}

impl World {
    fn new(random: &mut Random) -> Self {
        let count = 1 + random.below(3) as usize;
        let mut world = Self {
            store: Store::default(),
            tasks: Vec::new(),
            now: 1_000,
            next_event: 1,
            next_id: 1,
            steps: 0,
            local: LocalTasks::default(),
            queue: VecDeque::new(),
            runs: BTreeMap::new(),
            leaving: BTreeMap::new(),
            operations: Vec::new(),
            has_failed_write: false,
            places: vec![0; count],
        };
        for task in 0..count {
            let is_program = random.below(4) > 0;
            let forms: Vec<Form> = match is_program {
                true => (0..1 + random.below(9)).map(|_| form(random, task)).collect(),
                false => vec![Form::Call(call(random))],
            };
            let (calls, finished) = (vec![0; forms.len()], vec![false; forms.len()]);
            let (catches, client_id, result) = (random.below(4) > 0, None, None);
            let events = Vec::new();
            world.tasks.push(Made {
                is_program,
                forms,
                catches,
                client_id,
                calls,
                finished,
                result,
                events,
            });
        }
        world
    }

    /// Returns the accepted tasks.
    fn accepted(&self) -> Vec<(usize, TaskId)> {
        self.store.ids.iter().map(|(task, id)| (*task, id.clone())).collect()
    }

    fn id(&self, task: usize) -> TaskId {
        self.store.ids[&task].clone()
    }

    fn task(&self, id: &str) -> Option<usize> {
        self.store.ids.iter().find(|(_, other)| other.as_str() == id).map(|(task, _)| *task)
    }

    /// Starts a server.
    fn resume(&mut self) {
        for (task, id) in self.accepted() {
            let Some((row, _)) = self.store.get(&open(&id)) else { continue };
            let is_asleep = OwnerKey::read(row).is_some();
            let (record, made) = (self.store.record(&id), &self.tasks[task]);
            match recovery(record.state, record.begun) {
                Recovery::Run => {
                    self.places[task] += 1;
                    if !is_asleep {
                        self.enter(task);
                    }
                }
                Recovery::Interrupt => {
                    let is_right = !made.is_program && made.forms[0] == Form::Call(Call::Once);
                    assert!(is_right && !is_asleep, "{STATE}");
                    let put = happens(&id, record, &[Event::Interrupt], Repeat::Never).expect(STATE);
                    assert!(self.store.write(&[Change::remove(open(&id)), put]));
                }
                Recovery::Leave => panic!("{STATE}"),
            }
        }
        for (task, _) in self.accepted() {
            if self.is_over(task) {
                self.wake_awaiting(task);
            }
        }
    }

    /// A client starts a task, or repeats the request because it received no answer. The client knows
    /// the ids of the tasks that the program awaits.
    fn start_task(&mut self, task: usize) {
        let is_known_to_client = |form: &Form| match form {
            Form::Task(awaited) => self.tasks[*awaited].client_id.is_some(),
            _ => true,
        };
        if self.tasks[task].forms.iter().all(is_known_to_client) {
            let row = self.store.get(&idempotency(&owner(), &key(task), None));
            let found =
                row.map(|(id, _)| std::str::from_utf8(id).ok().and_then(TaskId::parse).expect(KEY));
            self.operations.push(Operation::Start { task, found });
        }
    }

    fn is_over(&self, task: usize) -> bool {
        self.store.record(&self.id(task)).state.is_terminal()
    }

    /// The server ends. A write under way is either made or lost.
    fn end(&mut self, random: &mut Random) {
        for (task, mut run) in std::mem::take(&mut self.runs) {
            if random.below(2) == 0 {
                self.finish(task, &mut run);
            }
        }
        for operation in std::mem::take(&mut self.operations) {
            if random.below(2) == 0 {
                self.finish_operation(operation, WriteOutcome::Made);
            }
        }
        // Its consequences in the server are lost too.
        self.operations.clear();
        (self.local, self.has_failed_write) = (LocalTasks::default(), false);
        self.queue.clear();
        self.leaving.clear();
        self.places.iter_mut().for_each(|places| *places = 0);
    }

    /// Returns the write of a run reaches the store. Returns the outcome.
    fn finish(&mut self, task: usize, run: &mut Running) -> StepOutcome {
        let id = self.id(task);
        let before = self.store.record(&id).state;
        let went = match run {
            Running::Program(run) => run.finish_write(&id, &mut self.store, &mut self.tasks[task]),
            Running::Plain(run) => run.finish_write(&id, &mut self.store),
        };
        let after = self.store.record(&id).state;
        assert!(!before.is_terminal() || before == after, "{OVER}");
        if after == State::Completed && before != after {
            self.tasks[task].result = Some(match run {
                Running::Program(run) => run.answers.clone(),
                Running::Plain(_) => vec![value(0)],
            });
        }
        went
    }

    /// Queues a task that is about to begin.
    fn enter(&mut self, task: usize) {
        if self.local.add(&self.id(task)) {
            self.queue.push_back(task);
        }
    }

    /// An operation reaches the store or fails. A client that receives no answer repeats its request.
    fn finish_operation(&mut self, operation: Operation, result: WriteOutcome) {
        if let WriteOutcome::Failed { is_made } = result {
            self.has_failed_write = true;
            self.fail(operation, is_made);
            return;
        }
        match operation {
            Operation::Start { task, found: Some(id) } => {
                self.operations.push(Operation::Answer { task, id });
            }
            Operation::Start { task, found: None } => {
                let id = self.next_id();
                if self.accept(task, &id) {
                    self.places[task] += 1;
                    self.enter(task);
                    self.operations.push(Operation::Answer { task, id });
                } else {
                    // Another request with the key was faster.
                    self.start_task(task);
                }
            }
            Operation::Answer { task, id } => {
                assert!(self.store.get(&crate::keys::task(&id)).is_some(), "{KEPT}");
                let client_id = self.tasks[task].client_id.replace(id.clone());
                assert!(client_id.is_none_or(|client_id| client_id == id), "{KEY}");
            }
            Operation::Event { task, key, value, revision, is_reserved } => {
                let id = self.id(task);
                let put = Change::put(key.as_str(), value.to_le_bytes().to_vec());
                if self.store.write(&event_changes(&id, put, revision)) {
                    self.tasks[task].events.push((key, value));
                    if is_reserved {
                        self.queue.push_back(task);
                    }
                } else {
                    if is_reserved {
                        self.put_to_sleep(task, self.store.get(&open(&id)).is_some());
                    }
                    self.begin_event(task, key, value);
                }
            }
            Operation::Wake { task, with, open, is_reserved } => {
                let is_asleep = open.is_some_and(|(_, is_asleep)| is_asleep);
                let is_written = self.awake(task, with.clone(), open);
                if is_reserved && is_written && is_asleep {
                    self.queue.push_back(task);
                } else if is_reserved {
                    self.put_to_sleep(task, open.is_some());
                }
                // The row changed in the meantime.
                if let (false, Some((key, _))) = (is_written, with) {
                    self.begin_wake(task, Some(key));
                }
            }
        }
    }

    /// A write fails, or the answer to a successful write is lost.
    fn fail(&mut self, operation: Operation, is_made: bool) {
        match operation {
            Operation::Start { task, found: None } => {
                let id = self.next_id();
                if is_made {
                    self.accept(task, &id);
                }
            }
            Operation::Event { task, key, value, revision, is_reserved } => {
                let id = self.id(task);
                let put = Change::put(key.as_str(), value.to_le_bytes().to_vec());
                if is_made {
                    self.store.write(&event_changes(&id, put, revision));
                }
                if is_reserved && self.store.get(&open(&id)).is_some() {
                    self.queue.push_back(task);
                } else if is_reserved {
                    self.put_to_sleep(task, false);
                }
            }
            Operation::Wake { task, with, open, is_reserved } => {
                if is_made {
                    self.awake(task, with, open);
                }
                match open {
                    Some((_, true)) if is_reserved => self.queue.push_back(task),
                    _ if is_reserved => self.put_to_sleep(task, open.is_some()),
                    _ => {}
                }
            }
            Operation::Start { found: Some(_), .. } | Operation::Answer { .. } => {}
        }
    }

    /// Puts a task to sleep, unless it is to begin again. If its owner is unknown, the task is found
    /// later, unless it is over.
    fn put_to_sleep(&mut self, task: usize, is_known: bool) {
        let id = self.id(task);
        match self.local.fall_asleep(&id) {
            NextStep::Sleep => {}
            NextStep::Restart if is_known => self.queue.push_back(task),
            NextStep::Restart => {
                self.local.remove(&id);
                self.has_failed_write = true;
            }
            NextStep::UncountUnfinished(_) => self.places[task] -= 1,
        }
    }

    fn next_id(&mut self) -> TaskId {
        let id = format!("01890000-0000-7000-8000-{:012x}", self.next_id);
        self.next_id += 1;
        TaskId::parse(&id).expect(KEY)
    }

    /// Accepts a task, unless a task with its key exists.
    fn accept(&mut self, task: usize, id: &TaskId) -> bool {
        let record = record_of(State::Queued, None);
        let rows =
            accepted(id, &owner(), Some(idempotency(&owner(), &key(task), None)), record, Bytes::new());
        let is_accepted = self.store.write(&rows);
        if is_accepted {
            assert!(self.store.ids.insert(task, id.clone()).is_none(), "{KEY}");
        }
        is_accepted
    }

    /// Writes that a sleeping task is awake, and removes the row that wakes it.
    fn awake(
        &mut self,
        task: usize,
        with: Option<(String, Revision)>,
        open: Option<(Revision, bool)>,
    ) -> bool {
        let id = self.id(task);
        let remove =
            |(key, revision): (String, _)| Change::remove(key).expecting(Expect::Revision(revision));
        let asleep = open.filter(|(_, is_asleep)| *is_asleep);
        let touch = asleep.map(|(revision, _)| touch(&id, revision));
        let is_written =
            self.store.write(&with.map(remove).into_iter().chain(touch).collect::<Vec<_>>());
        let has_notes = self.store.below(&keys::all_notes(&id)).next().is_some();
        assert!(!(is_written && asleep.is_some() && has_notes), "{SLEPT}");
        is_written
    }

    /// Finds the unfinished consequences of a write that was made although it failed.
    fn recover_lost_tasks(&mut self) {
        self.has_failed_write = false;
        for (task, id) in self.accepted() {
            let is_awake =
                self.store.get(&open(&id)).is_some_and(|(row, _)| OwnerKey::read(row).is_none());
            if is_awake && !self.local.contains(&id) {
                if self.store.record(&id).begun.is_none() {
                    self.places[task] += 1;
                }
                self.enter(task);
            }
            if self.is_over(task) {
                self.wake_awaiting(task);
            }
        }
    }

    /// An event arrives. It is refused if the task is over.
    fn begin_event(&mut self, task: usize, key: String, value: i64) {
        if let Some((row, revision)) = self.store.get(&open(&self.id(task))) {
            let is_asleep = OwnerKey::read(row).is_some();
            let is_reserved = is_asleep && self.local.add(&self.id(task));
            self.operations.push(Operation::Event { task, key, value, revision, is_reserved });
        }
    }

    /// A task is about to be woken, by a row unless the row is gone.
    fn begin_wake(&mut self, task: usize, with: Option<String>) {
        let is_reserved = self.local.add(&self.id(task));
        let row = self.store.get(&open(&self.id(task)));
        let open = row.map(|(row, revision)| (revision, OwnerKey::read(row).is_some()));
        let with = match with.map(|key| (self.store.get(&key).map(|(_, revision)| revision), key)) {
            Some((None, _)) => {
                if is_reserved {
                    self.put_to_sleep(task, open.is_some());
                }
                return;
            }
            Some((Some(revision), key)) => Some((key, revision)),
            None => None,
        };
        self.operations.push(Operation::Wake { task, with, open, is_reserved });
    }

    fn wake_awaiting(&mut self, awaited: usize) {
        let prefix = keys::all_awaiting(&self.id(awaited));
        let rows: Vec<String> = self.store.below(&prefix).map(|(key, _)| key.to_owned()).collect();
        for key in rows {
            let task = key.rsplit_once('/').and_then(|(_, id)| self.task(id));
            self.begin_wake(task.expect(STATE), Some(key));
        }
    }

    /// A task stops waiting or running.
    fn leave(&mut self, task: usize) {
        if self.local.remove(&self.id(task)) {
            self.places[task] -= 1;
        }
    }

    fn cancel(&mut self, task: usize) {
        let id = self.id(task);
        let record = self.store.record(&id);
        let Some(put) = happens(&id, record, &[Event::Cancel], Repeat::Never) else { return };
        let row = self.store.get(&open(&id));
        let (is_asleep, revision) =
            row.map(|(row, revision)| (OwnerKey::read(row).is_some(), revision)).expect(STATE);
        let gone = Change::remove(open(&id)).expecting(Expect::Revision(revision));
        assert!(self.store.write(&[gone, put]));
        if !self.local.mark_cancelled(&id, &owner()) && is_asleep {
            self.places[task] -= 1;
        }
        if let Some(at) = self.queue.iter().position(|other| *other == task) {
            self.queue.remove(at);
            self.leave(task);
        }
        // Its run is cancelled, and sees that the task is over.
        if self.runs.remove(&task).is_some() {
            self.leave(task);
        }
        self.wake_awaiting(task);
    }

    /// Makes one step. Returns whether all tasks are over.
    fn step(&mut self, random: &mut Random) -> bool {
        self.steps += 1;
        assert!(
            self.steps < LONGEST,
            "{AWAKE}: {:?}",
            self.tasks.iter().map(|made| &made.forms).collect::<Vec<_>>()
        );
        let is_busy = self.steps < BUSY;
        let task = random.below(self.tasks.len() as u64) as usize;
        let is_known = self.tasks[task].client_id.is_some();
        match random.below(64) {
            0 if is_busy => {
                self.end(random);
                self.resume();
            }
            1 if is_busy && is_known && random.below(8) == 0 => self.cancel(task),
            2..5 => self.now += 1 + random.below(4),
            5..8 if is_known => {
                let event = random.below(2) as u8;
                let key = format!(
                    "{}{:08}",
                    crate::keys::events(&self.id(task), &name(event)),
                    self.next_event
                );
                let value = 10_000 + self.next_event * 2 + i64::from(event);
                self.next_event += 1;
                if is_busy || self.tasks[task].forms.contains(&Form::Event(event)) {
                    self.begin_event(task, key, value);
                }
            }
            8..14 => self.wake_due(),
            14..16 if is_busy || !is_known => self.start_task(task),
            16..24 if !self.operations.is_empty() => {
                let at = random.below(self.operations.len() as u64) as usize;
                let operation = self.operations.swap_remove(at);
                let result = self.draw_outcome(random);
                self.finish_operation(operation, result);
            }
            24..30 => self.finish_sleep(task),
            30 if self.has_failed_write => self.recover_lost_tasks(),
            30..36 => self.begin(),
            _ => self.run(task, random),
        }
        for (task, places) in self.places.iter().enumerate() {
            assert!((0..=1).contains(places), "{PLACES}: task {task} has {places}");
        }
        self.is_done()
    }

    fn wake_due(&mut self) {
        let due = self.store.below(TIMERS).next().and_then(|(key, _)| {
            let (at, _, id) = parse_timer(key)?;
            (at.0 <= self.now * 1_000).then(|| (key.to_owned(), self.task(id)))
        });
        if let Some((key, task)) = due {
            self.begin_wake(task.expect(STATE), Some(key));
        }
    }

    /// Chooses the outcome of the next write.
    fn draw_outcome(&self, random: &mut Random) -> WriteOutcome {
        match random.below(12) {
            result @ 0..2 if self.steps < BUSY => WriteOutcome::Failed { is_made: result == 0 },
            _ => WriteOutcome::Made,
        }
    }

    /// Removes a run that has fallen asleep, and handles what arrived in the meantime.
    fn finish_sleep(&mut self, task: usize) {
        let Some(waits) = self.leaving.remove(&task) else { return };
        let id = self.id(task);
        let context = RunContext { store: &self.store, now: self.now };
        let is_due = waits.iter().any(|wait| match wait {
            Wait::Until(_) => until(std::slice::from_ref(wait)).is_some_and(|until| until <= self.now),
            Wait::Event(name) => self.store.below(&crate::keys::events(&id, name)).next().is_some(),
            Wait::Task(awaited) => self
                .task(awaited)
                .is_some_and(|awaited| context.answer(&id, Form::Task(awaited)).is_some()),
            _ => true,
        });
        if is_due {
            self.begin_wake(task, None);
            // The task must be durably awake before the rows are removed that could wake it after a
            // crash.
            if let Some(wake) = self.operations.pop() {
                self.finish_operation(wake, WriteOutcome::Made);
            }
        }
        self.put_to_sleep(task, true);
        for (awaited, other) in self.accepted() {
            if self.is_over(awaited) {
                self.store.write(&[remove_awaiting(&other, &id)]);
            }
        }
    }

    /// Begins or continues the next task of the queue.
    fn begin(&mut self) {
        let Some(task) = self.queue.pop_front() else { return };
        assert!(!self.runs.contains_key(&task) && !self.leaving.contains_key(&task), "{PLACES}");
        self.attempt(task);
    }

    /// Begins or continues a task from its stored rows.
    fn attempt(&mut self, task: usize) {
        if self.is_over(task) {
            self.leave(task);
            return;
        }
        let id = self.id(task);
        if let Some((row, revision)) = self.store.get(&open(&id))
            && OwnerKey::read(row).is_some()
        {
            // The task fell asleep, and the answer to that write was lost.
            assert!(self.store.write(&[touch(&id, revision)]));
        }
        let made = &self.tasks[task];
        let run = match made.forms[0] {
            Form::Call(call) if !made.is_program => Running::Plain(Plain::new(call)),
            _ => Running::Program(Box::new(Run::load(&self.id(task), &self.store, made))),
        };
        self.runs.insert(task, run);
    }

    fn run(&mut self, task: usize, random: &mut Random) {
        let Some(mut run) = self.runs.remove(&task) else { return };
        let id = self.id(task);
        let went = match (random.below(12), &mut run) {
            (0, Running::Program(run)) => {
                run.save();
                StepOutcome::Continues
            }
            (1..4, Running::Program(run)) => {
                run.begin_write();
                StepOutcome::Continues
            }
            (4..8, run) => match self.draw_outcome(random) {
                WriteOutcome::Made => self.finish(task, run),
                WriteOutcome::Failed { is_made } => {
                    self.has_failed_write = true;
                    if is_made {
                        self.finish(task, run);
                    }
                    StepOutcome::Failed
                }
            },
            (_, Running::Program(run)) => {
                let context = RunContext { store: &self.store, now: self.now };
                run.advance(&id, &context, &mut self.tasks[task], random.below(4) as usize);
                StepOutcome::Continues
            }
            (_, Running::Plain(run)) => {
                run.advance(&id, &self.store, &mut self.tasks[task], random.below(4) as usize);
                StepOutcome::Continues
            }
        };
        match went {
            StepOutcome::Continues => drop(self.runs.insert(task, run)),
            StepOutcome::Asleep(waits) => drop(self.leaving.insert(task, waits)),
            // The task continues later from its stored rows.
            StepOutcome::Failed => self.queue.push_back(task),
            StepOutcome::Over => {
                self.leave(task);
                self.wake_awaiting(task);
            }
        }
    }

    fn is_done(&self) -> bool {
        self.queue.is_empty()
            && self.runs.is_empty()
            && self.leaving.is_empty()
            && self.operations.is_empty()
            && !self.has_failed_write
            && self.tasks.iter().all(|made| made.client_id.is_some())
            && self.accepted().iter().all(|(task, _)| self.is_over(*task))
            && self.store.below(TIMERS).next().is_none()
    }

    fn check(&self) {
        assert!(self.places.iter().all(|places| *places == 0), "{PLACES}");
        assert!(self.store.below("open/").next().is_none(), "{AWAKE}");
        assert!(
            self.store.below(keys::AWAITED).next().is_none(),
            "a row of a task that is awaited is left"
        );
        assert_eq!(self.store.below(TASKS).count(), self.tasks.len(), "{KEY}");
        for (task, made) in self.tasks.iter().enumerate() {
            let id = self.id(task);
            let state = self.store.record(&id).state;
            let may_interrupt = made.forms.contains(&Form::Call(Call::Once));
            let may_interrupt = may_interrupt && !(made.is_program && made.catches);
            let is_end = match state {
                State::Completed | State::Cancelled => true,
                State::Interrupted => may_interrupt,
                _ => false,
            };
            assert!(is_end, "{STATE}: {state}");
            let Some(result) = &made.result else { continue };
            assert_eq!((state, result.len()), (State::Completed, made.forms.len()), "{RESULT}");
            let mut events: Vec<i64> = Vec::new();
            for (at, (got, form)) in result.iter().zip(&made.forms).enumerate() {
                let calls = made.calls[at];
                let fits = match form {
                    Form::Local => *got == value(at) && calls == 0,
                    Form::Call(Call::Idempotent) => *got == value(at) && calls > 0,
                    Form::Call(Call::Once) if *got == value(at) => calls == 1,
                    Form::Call(Call::Once) => made.catches && *got == interrupted(at) && calls <= 1,
                    Form::Sleep(until) => *got == *until as i64 && *until <= self.now,
                    Form::Race(until) => *got == value(at) || *got == *until as i64,
                    Form::Task(task) => Some(*got) == outcome(&self.store, *task),
                    Form::Event(event) => {
                        events.push(*got);
                        *got >= 10_000 && *got % 2 == i64::from(*event)
                    }
                };
                assert!(fits, "{RESULT}: {form:?} gave {got} after {calls} calls");
            }
            for (key, value) in &made.events {
                let answers = events.iter().filter(|answer| *answer == value).count();
                let is_left = self.store.get(key).is_some();
                assert_eq!(answers + usize::from(is_left), 1, "{EVENT}: {key}");
            }
            let (events, below) = (crate::keys::all_events(&id), crate::keys::run(&id));
            let left = self.store.below(&below);
            let left: Vec<_> = left
                .map(|(key, _)| key)
                .filter(|key| !key.contains("/trail/") && !key.starts_with(&events))
                .collect();
            assert!(left.is_empty(), "what was needed to go on is left: {left:?}");
        }
    }
}

fn call(random: &mut Random) -> Call {
    if random.below(2) == 0 { Call::Idempotent } else { Call::Once }
}

fn form(random: &mut Random, task: usize) -> Form {
    let second = |random: &mut Random| 1_000 + random.below(60);
    match random.below(12) {
        0..2 => Form::Local,
        2..4 => Form::Call(Call::Idempotent),
        4..7 => Form::Call(Call::Once),
        7 => Form::Sleep(second(random)),
        8..10 => Form::Event(random.below(2) as u8),
        // A task only awaits earlier tasks, so none awaits itself.
        10 if task > 0 => Form::Task(random.below(task as u64) as usize),
        _ => Form::Race(second(random)),
    }
}

fn worlds(seed: u64, steps: u64) -> u64 {
    simulate("programs", seed, steps, World::new, |world, random| {
        let is_done = world.step(random);
        if is_done {
            world.check();
        }
        is_done
    })
}

#[test]
fn programs_survive_crashes_at_any_step() {
    for seed in SEEDS {
        worlds(seed, 50_000);
    }
    let (steps, seed) = steps_and_seed(1_000_000, 20_261_121);
    let worlds = worlds(seed, steps);
    assert!(worlds > steps / 2_000, "only {worlds} worlds ended in {steps} steps");
}
