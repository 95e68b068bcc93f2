//! A simulation of tasks that are programs: their state machine, their notes and a store, whose processes end at any step.
//!
//! It is pure and its own clock: one step is one thing that happens. `ORLA_SIMULATION_STEPS` says how many there are
//! (10^6 by default, 10^8 with `cargo xtask simulate`), and `ORLA_SIMULATION_SEED` with what it begins. A seed that fails is
//! added to [`SEEDS`].
//!
//! The invariants: [`ONCE`], [`FINISHED`], [`NOTED`], [`RESULT`] and [`STATE`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use bytes::Bytes;
use orla_marketplace::program::{Action, Asked};
use orla_marketplace::rtfs::Ticket;
use orla_state::{Change, Expect};

use super::keys;
use super::notes::{Batch, Notes, Rows, answered};
use super::record::Note;
use crate::state::{Event, Recovery, Repeat, State, recovery};
use crate::task::TaskId;

const ONCE: &str = "a call that is not idempotent is made once at most";
const FINISHED: &str = "a call whose answer is durable is not made again";
const NOTED: &str = "a call that leaves the process is noted durably before it is made";
const RESULT: &str =
    "the result is that of a process that never ends, but for calls that were interrupted";
const STATE: &str = "the states of a task follow each other as they may";

/// Seeds that once failed.
const SEEDS: [u64; 3] = [1, 2, 0x5eed];

/// xorshift64*
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Local,
    Idempotent,
    Once,
}

/// A program of calls, one after the other. Its state is its answers.
#[derive(Clone, Default)]
struct Machine(Vec<i64>);

impl Machine {
    fn next(&self) -> usize {
        self.0.len()
    }

    fn ticket(at: usize) -> Ticket {
        Ticket(at as u64 + 1)
    }

    fn save(&self) -> Vec<u8> {
        self.0.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn load(bytes: &[u8]) -> Self {
        Self(bytes.chunks_exact(8).map(|part| i64::from_le_bytes(part.try_into().unwrap())).collect())
    }
}

/// A call of a process.
#[derive(Clone, Copy)]
enum Call {
    /// It waits until so many notes are durable.
    Noted(u64),
    /// It was made.
    Made,
}

struct Process {
    notes: Notes,
    machine: Machine,
    call: Option<Call>,
    writing: Option<Batch>,
    durable: u64,
    /// The notes of answers that are not durable yet.
    answers: Vec<(u64, usize)>,
}

/// One task in a world in which its processes end.
struct World {
    kinds: Vec<Kind>,
    rows: BTreeMap<String, Bytes>,
    made: Vec<u32>,
    finished: BTreeSet<usize>,
    state: State,
    begun: Option<Repeat>,
    id: TaskId,
    process: Option<Process>,
    result: Option<Vec<i64>>,
}

fn value(at: usize) -> i64 {
    at as i64 * 7 + 3
}

impl World {
    fn new(random: &mut Random) -> Self {
        let calls = 1 + random.below(12) as usize;
        let kinds = (0..calls).map(|_| match random.below(3) {
            0 => Kind::Local,
            1 => Kind::Idempotent,
            _ => Kind::Once,
        });
        Self {
            kinds: kinds.collect(),
            rows: BTreeMap::new(),
            made: vec![0; calls],
            finished: BTreeSet::new(),
            state: State::Queued,
            begun: None,
            id: TaskId::new(),
            process: None,
            result: None,
        }
    }

    fn happens(&mut self, event: Event) {
        self.state = self.state.after(event).expect(STATE);
    }

    /// All changes or none, as the store makes them.
    fn apply(&mut self, changes: Vec<Change>) {
        for change in &changes {
            let fits = change.expect == Expect::Anything || !self.rows.contains_key(&change.key);
            assert!(fits, "{} is there already", change.key);
        }
        for Change { key, value, .. } in changes {
            match value {
                Some(value) => drop(self.rows.insert(key, value)),
                None => drop(self.rows.remove(&key)),
            }
        }
    }

    fn start(&mut self) {
        assert_eq!(recovery(self.state, self.begun), Recovery::Run, "{STATE}");
        self.happens(Event::Begin);
        self.begun = Some(Repeat::Journaled);
        let below = |prefix: &str| {
            let rows =
                self.rows.range(prefix.to_owned()..).take_while(move |(key, _)| key.starts_with(prefix));
            rows.map(|(key, value)| (keys::number(key).unwrap(), value.clone())).collect::<Vec<_>>()
        };
        let rows = Rows {
            state: self.rows.get(&keys::state(&self.id)).cloned(),
            notes: below(&keys::all_notes(&self.id)),
            last_trail: below(&keys::all_trail(&self.id)).last().map(|(number, _)| *number),
        };
        let (notes, past) = Notes::read(self.id.clone(), &rows).unwrap();
        let mut machine = past.state.map(|state| Machine::load(&state)).unwrap_or_default();
        for (ticket, answer) in past.answers {
            assert_eq!(ticket, Machine::ticket(machine.next()), "{RESULT}");
            machine.0.push(i64::from_le_bytes(answer[..].try_into().unwrap()));
        }
        let mut process =
            Process { notes, machine, call: None, writing: None, durable: 0, answers: Vec::new() };
        let next = process.machine.next();
        if let Some(begun) = past.begun.first() {
            assert_eq!((past.begun.len(), begun.ticket), (1, Machine::ticket(next)), "{RESULT}");
            match begun.is_idempotent {
                true => process.call = Some(Call::Noted(0)),
                false => process.answer(next, -1 - next as i64),
            }
        }
        self.process = Some(process);
    }

    /// One step. Gives whether the task is over.
    fn step(&mut self, random: &mut Random) -> bool {
        let Some(mut process) = self.process.take() else {
            self.start();
            return false;
        };
        match random.below(16) {
            // The process ends. What it was writing was written or not.
            0 => {
                if let Some(batch) = process.writing.take()
                    && random.below(2) == 0
                {
                    self.finish(&mut process, batch);
                }
                return false;
            }
            1 => {
                let state = process.machine.save();
                process.notes.save(state);
            }
            2..6 if process.writing.is_none() => process.writing = process.notes.take(),
            6..10 => {
                if let Some(batch) = process.writing.take() {
                    self.finish(&mut process, batch);
                }
            }
            _ => self.go_on(&mut process, random),
        }
        let is_done = process.call.is_none() && process.machine.next() == self.kinds.len();
        if is_done && process.writing.is_none() {
            self.apply(process.notes.end());
            self.happens(Event::Complete);
            self.result = Some(process.machine.0);
            return true;
        }
        self.process = Some(process);
        false
    }

    fn finish(&mut self, process: &mut Process, batch: Batch) {
        self.apply(batch.changes);
        process.durable = batch.noted;
        process.answers.retain(|(note, at)| {
            let is_durable = *note <= batch.noted;
            if is_durable {
                self.finished.insert(*at);
            }
            !is_durable
        });
    }

    fn go_on(&mut self, process: &mut Process, random: &mut Random) {
        let at = process.machine.next();
        match process.call {
            Some(Call::Noted(note)) if process.durable >= note => {
                assert!(!self.finished.contains(&at), "{FINISHED}");
                let prefix = keys::state(&self.id);
                let notes = keys::all_notes(&self.id);
                let is_noted = self.rows.keys().any(|key| *key == prefix || key.starts_with(&notes));
                assert!(is_noted, "{NOTED}");
                self.made[at] += 1;
                assert!(self.kinds[at] == Kind::Idempotent || self.made[at] == 1, "{ONCE}");
                process.call = Some(Call::Made);
            }
            Some(Call::Noted(_)) => process.notes.want(),
            Some(Call::Made) => {
                process.answer(at, value(at));
                // An answer may come again: it is to a ticket that no one waits for.
                if random.below(8) == 0 {
                    assert!(!process.notes.has_begun(Machine::ticket(at)), "{FINISHED}");
                }
            }
            None if at == self.kinds.len() => {}
            None if self.kinds[at] == Kind::Local => process.answer(at, value(at)),
            None => {
                let is_idempotent = self.kinds[at] == Kind::Idempotent;
                let note = process.notes.add(Note::Begun { asked: asked(at), is_idempotent });
                process.notes.want();
                process.call = Some(Call::Noted(note));
            }
        }
    }

    fn check(&self) {
        assert_eq!(self.state, State::Completed, "{STATE}");
        let result = self.result.as_ref().expect(RESULT);
        for (at, got) in result.iter().enumerate() {
            let made = self.made[at];
            match self.kinds[at] {
                Kind::Local => assert_eq!((*got, made), (value(at), 0), "{RESULT}"),
                Kind::Idempotent => assert!(*got == value(at) && made > 0, "{RESULT}"),
                Kind::Once if *got == value(at) => assert_eq!(made, 1, "{ONCE}"),
                Kind::Once => assert!(*got == -1 - at as i64 && made <= 1, "{RESULT}"),
            }
        }
        let left: Vec<_> = self.rows.keys().filter(|key| !key.contains("/trail/")).collect();
        assert!(left.is_empty(), "what was needed to go on is left: {left:?}");
    }
}

impl Process {
    fn answer(&mut self, at: usize, value: i64) {
        let note = self.notes.add(answered(&asked(at), value.to_le_bytes().to_vec(), None));
        self.notes.want();
        self.answers.push((note, at));
        self.machine.0.push(value);
        self.call = None;
    }
}

fn asked(at: usize) -> Asked {
    Asked {
        ticket: Machine::ticket(at),
        action: Action::Call,
        name: "step".to_owned(),
        at: None,
        began: SystemTime::UNIX_EPOCH,
    }
}

fn simulate(seed: u64, steps: u64) {
    let mut random = Random(seed | 1);
    let mut world = World::new(&mut random);
    let mut tasks = 0_u64;
    for _ in 0..steps {
        if world.step(&mut random) {
            world.check();
            tasks += 1;
            world = World::new(&mut random);
        }
    }
    assert!(tasks > steps / 2_000, "only {tasks} tasks ended in {steps} steps");
}

#[test]
fn programs_end_right_though_their_processes_end_at_any_step() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    for seed in SEEDS {
        simulate(seed, 50_000);
    }
    let seed = number("ORLA_SIMULATION_SEED").unwrap_or(20_261_121);
    simulate(seed, number("ORLA_SIMULATION_STEPS").unwrap_or(1_000_000));
}
