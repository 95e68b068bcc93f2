//! A program of a world and its run in one process.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use orla_marketplace::program::{Action, RunRequest};
use orla_marketplace::rtfs::{Instant, Ticket, Wait};
use orla_state::{Change, Revision};

use super::super::notes::{Notes, Rows, answered};
use super::super::record::Note;
use super::super::sleep::sleep_changes;
use super::super::waits::Waits;
use super::super::{journal::timestamp, keys};
use super::store::{Store, happens};
use super::{Call, Made, RESULT, interrupted, name, value};
use crate::keys::{events, open};
use crate::state::{Event, Repeat, State};
use crate::task::TaskId;

/// One operation of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    /// A call that does not leave the process.
    Local,
    /// A call that leaves the process.
    Call(Call),
    /// It sleeps until a second.
    Sleep(u64),
    /// It awaits an event of this name.
    Event(u8),
    /// It awaits another task of the world.
    Task(usize),
    /// A repeatable call races against a second of the clock. The first answer wins, and the other
    /// request is withdrawn.
    Race(u64),
}

/// A run in a process.
pub(super) struct Run {
    pub(super) notes: Notes,
    pub(super) answers: Vec<i64>,
    waits: Waits,
    /// The open requests of the program.
    open: Vec<Open>,
    pub(super) writing: Option<Write>,
    durable: u64,
    /// The notes of answers that are not durable yet.
    unwritten: VecDeque<(u64, usize)>,
    is_marked: bool,
    pending_sleep: Option<PendingSleep>,
}

/// A request without an answer.
#[derive(Clone, Copy)]
enum Open {
    /// A call that is made once this many notes are durable.
    Noted(Ticket, u64),
    /// A call that was made.
    Made(Ticket),
    Wait(Ticket, Form),
}

/// A write under way.
pub(super) struct Write {
    pub(super) changes: Vec<Change>,
    pub(super) noted: u64,
    pub(super) then: Then,
}

/// The purpose of a write besides noting.
pub(super) enum Then {
    Nothing,
    /// The run falls asleep. If it cannot, these changes are made instead.
    Sleep {
        instead: Vec<Change>,
        waits: Vec<Wait>,
    },
    /// The task ends with this event.
    End(Event),
}

/// A run that is about to fall asleep.
struct PendingSleep {
    changes: Vec<Change>,
    noted: u64,
    open: Revision,
}

/// The outcome of a step of a run.
pub(super) enum StepOutcome {
    Continues,
    /// The run is asleep, with these waits.
    Asleep(Vec<Wait>),
    /// A write has failed, or was reported as failed although it was made.
    Failed,
    /// This run or another party has ended the task.
    Over,
}

impl Run {
    /// Continues a run from its stored rows.
    pub(super) fn load(id: &TaskId, store: &Store, Made { forms, .. }: &Made) -> Self {
        let below = |prefix: &str| {
            let rows = store.below(prefix);
            rows.map(|(key, value)| (keys::number(key).unwrap(), value.clone())).collect::<Vec<_>>()
        };
        let rows = Rows {
            state: store.get(&keys::state(id)).map(|(value, _)| value.clone()),
            notes: below(&keys::all_notes(id)),
            last_trail: below(&keys::all_trail(id)).last().map(|(number, _)| *number),
            used: Duration::ZERO,
        };
        let (notes, past) = Notes::read(id.clone(), &rows).unwrap();
        let state = past.state.unwrap_or_default();
        let answers = state.chunks_exact(8).map(|part| i64::from_le_bytes(part.try_into().unwrap()));
        let mut run = Self {
            notes,
            answers: answers.collect(),
            waits: Waits::default(),
            open: Vec::new(),
            writing: None,
            durable: 0,
            unwritten: VecDeque::new(),
            is_marked: store.record(id).begun.is_some(),
            pending_sleep: None,
        };
        for (ticket, answer) in past.answers {
            assert_eq!(place(ticket), run.next(), "{RESULT}");
            run.withdraw_others(ticket);
            run.answers.push(i64::from_le_bytes(answer[..].try_into().unwrap()));
        }
        let Some(form) = forms.get(run.next()) else { return run };
        let begun = past.begun.iter().find(|begun| place(begun.ticket) == run.next());
        match (form, begun) {
            (Form::Call(Call::Once), Some(begun)) => {
                assert!(!begun.is_idempotent, "{RESULT}");
                run.answer(begun.ticket, interrupted(run.next()), false);
            }
            _ => run.ask(*form),
        }
        run
    }

    pub(super) fn next(&self) -> usize {
        self.answers.len()
    }

    fn ask(&mut self, form: Form) {
        let [first, second] = tickets(self.next());
        let mut begin = |call| {
            let is_idempotent = call == Call::Idempotent;
            let note = self.notes.add(Note::Begun { asked: asked(first), is_idempotent });
            self.notes.request_write();
            Open::Noted(first, note)
        };
        match form {
            Form::Local => {}
            Form::Call(call) => {
                let call = begin(call);
                self.open.push(call);
            }
            Form::Race(until) => {
                let call = begin(Call::Idempotent);
                self.notes.add(Note::Waits(asked(second)));
                self.open.extend([call, Open::Wait(second, Form::Sleep(until))]);
            }
            Form::Sleep(_) | Form::Event(_) | Form::Task(_) => {
                self.notes.add(Note::Waits(asked(first)));
                if let Form::Event(event) = form {
                    self.waits.wait(first, &name(event));
                }
                self.open.push(Open::Wait(first, form));
            }
        }
    }

    fn withdraw_others(&mut self, ticket: Ticket) {
        for other in tickets(place(ticket)).into_iter().filter(|other| *other != ticket) {
            self.waits.withdraw(other);
            self.notes.withdraw(other);
        }
    }

    fn answer(&mut self, ticket: Ticket, value: i64, is_made: bool) {
        if self.notes.has_begun(ticket) {
            self.notes.request_write();
        }
        let noted = self.notes.add(answered(&asked(ticket), value.to_le_bytes().to_vec(), None));
        if let Some(key) = self.waits.used(ticket) {
            self.notes.also(Change::remove(key));
        }
        if is_made {
            self.unwritten.push_back((noted, self.next()));
        }
        self.open.clear();
        self.withdraw_others(ticket);
        self.answers.push(value);
    }

    /// Saves the state, as a program with long notes does.
    pub(super) fn save(&mut self) {
        if self.pending_sleep.is_none() {
            self.notes.save(self.state());
        }
    }

    fn state(&self) -> Vec<u8> {
        self.answers.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// Begins to write the pending notes, if no write is under way.
    pub(super) fn begin_write(&mut self) {
        if self.writing.is_none()
            && self.pending_sleep.is_none()
            && let Some(batch) = self.notes.take()
        {
            let then = Then::Nothing;
            self.writing = Some(Write { changes: batch.changes, noted: batch.noted, then });
        }
    }

    /// Returns the write reaches the store.
    pub(super) fn finish_write(
        &mut self,
        id: &TaskId,
        store: &mut Store,
        made: &mut Made,
    ) -> StepOutcome {
        let Some(Write { changes, noted, then }) = self.writing.take() else {
            return StepOutcome::Continues;
        };
        let event = match then {
            Then::End(event) => Some(event),
            _ => None,
        };
        let Some(written) = self.put(id, store, changes, event) else { return StepOutcome::Over };
        let went = match then {
            Then::End(_) => StepOutcome::Over,
            Then::Sleep { waits, .. } if written => StepOutcome::Asleep(waits),
            Then::Sleep { instead, .. } => {
                if self.put(id, store, instead, None).is_none() {
                    return StepOutcome::Over;
                }
                StepOutcome::Continues
            }
            Then::Nothing => {
                assert!(written, "another process continues the run");
                StepOutcome::Continues
            }
        };
        self.durable = noted;
        while let Some((_, at)) = self.unwritten.front().copied().filter(|(note, _)| *note <= noted) {
            made.finish(at);
            self.unwritten.pop_front();
        }
        went
    }

    /// Makes changes. The first of them also says that the task runs. Returns `None` if the task is
    /// over, and `false` if another record is not as expected.
    fn put(
        &mut self,
        id: &TaskId,
        store: &mut Store,
        mut changes: Vec<Change>,
        event: Option<Event>,
    ) -> Option<bool> {
        let record = store.record(id);
        if !self.is_marked || event.is_some() {
            let all: Vec<Event> = [Event::Begin].into_iter().chain(event).collect();
            changes.push(happens(id, record, &all, Repeat::Journaled)?);
        }
        let written = store.write(&changes);
        self.is_marked |= written;
        Some(written)
    }

    /// Makes the next possible step of the run.
    pub(super) fn advance(
        &mut self,
        id: &TaskId,
        context: &RunContext<'_>,
        made: &mut Made,
        pick: usize,
    ) {
        let store = context.store;
        if self.pending_sleep.is_some() {
            self.finish_sleep(id, context);
            return;
        }
        let last = self.next().checked_sub(1);
        let is_interrupted = last.is_some_and(|last| self.answers[last] == interrupted(last));
        let end = if is_interrupted && !made.catches { Event::Interrupt } else { Event::Complete };
        let next = made.forms.get(self.next()).copied().filter(|_| end == Event::Complete);
        let Some(form) = next else {
            if self.writing.is_none() {
                let mut changes = self.notes.end();
                changes.push(Change::remove(open(id)));
                self.writing = Some(Write { changes, noted: u64::MAX, then: Then::End(end) });
            }
            return;
        };
        if self.open.is_empty() {
            match form {
                Form::Local => {
                    let at = self.next();
                    self.answer(tickets(at)[0], value(at), false);
                }
                form => self.ask(form),
            }
            return;
        }
        let at = pick % self.open.len();
        match self.open[at] {
            Open::Noted(ticket, note) if self.durable >= note => {
                made.make(id, store, self.next());
                self.open[at] = Open::Made(ticket);
            }
            Open::Noted(..) => self.notes.request_write(),
            Open::Made(ticket) => self.answer(ticket, value(self.next()), true),
            Open::Wait(ticket, wait) => {
                let answer = match wait {
                    Form::Event(event) => {
                        let name = name(event);
                        store
                            .below(&events(id, &name))
                            .for_each(|(key, _)| self.waits.add_event(&name, key));
                        let key = self.waits.take(ticket);
                        key.map(|key| event_value(store.get(&key).expect("an event that came").0))
                    }
                    wait => context.answer(id, wait),
                };
                match answer {
                    Some(answer) => self.answer(ticket, answer, false),
                    None if self.open.len() == 1 && self.writing.is_none() => {
                        self.prepare_sleep(id, store);
                    }
                    None => {}
                }
            }
        }
    }

    fn prepare_sleep(&mut self, id: &TaskId, store: &Store) {
        let state = self.state();
        self.notes.save(state);
        let Some(batch) = self.notes.take() else { return };
        let open = store.get(&open(id)).map(|(_, revision)| revision);
        match open {
            Some(open) => {
                self.pending_sleep =
                    Some(PendingSleep { changes: batch.changes, noted: batch.noted, open });
            }
            None => {
                let then = Then::Nothing;
                self.writing = Some(Write { changes: batch.changes, noted: batch.noted, then });
            }
        }
    }

    fn finish_sleep(&mut self, id: &TaskId, context: &RunContext<'_>) {
        let Some(PendingSleep { changes, noted, open }) = self.pending_sleep.take() else { return };
        let forms = self.open.iter().filter_map(|open| match open {
            Open::Wait(_, form) => Some(*form),
            _ => None,
        });
        let forms: Vec<Form> = forms.collect();
        let is_due = forms.iter().any(|form| context.answer(id, *form).is_some());
        let (changes, then) = match is_due {
            true => (changes, Then::Nothing),
            false => {
                let waits: Vec<Wait> = forms.iter().map(|form| wait(*form, context.store)).collect();
                let sleep = sleep_changes(id, None, &waits, open);
                let all = [changes.clone(), sleep].concat();
                (all, Then::Sleep { instead: changes, waits })
            }
        };
        self.writing = Some(Write { changes, noted, then });
    }
}

/// The part of the world that a run sees.
pub(super) struct RunContext<'w> {
    pub(super) store: &'w Store,
    /// The current second.
    pub(super) now: u64,
}

impl RunContext<'_> {
    /// Returns the current answer to a wait of a task.
    pub(super) fn answer(&self, id: &TaskId, form: Form) -> Option<i64> {
        match form {
            Form::Sleep(until) => (until <= self.now).then_some(until as i64),
            Form::Event(event) => {
                self.store.below(&events(id, &name(event))).next().map(|(_, value)| event_value(value))
            }
            Form::Task(task) => outcome(self.store, task),
            Form::Local | Form::Call(_) | Form::Race(_) => None,
        }
    }
}

/// Returns the result of a finished task for the tasks that await it.
pub(super) fn outcome(store: &Store, task: usize) -> Option<i64> {
    let state = store.record(&store.ids[&task]).state;
    state.is_terminal().then(|| if state == State::Completed { 1 } else { -1 })
}

pub(super) fn wait(form: Form, store: &Store) -> Wait {
    match form {
        Form::Sleep(until) => Wait::Until(Instant::from_unix(until as i64, 0).unwrap()),
        Form::Event(event) => Wait::Event(name(event)),
        Form::Task(task) => Wait::Task(store.ids[&task].to_string()),
        Form::Local | Form::Call(_) | Form::Race(_) => unreachable!("it is no wait"),
    }
}

/// Returns the second at which the first of these waits is over.
pub(super) fn until(waits: &[Wait]) -> Option<u64> {
    let seconds = waits.iter().filter_map(|wait| match wait {
        Wait::Until(instant) => Some(timestamp(instant).0 / 1000),
        _ => None,
    });
    seconds.min()
}

pub(super) fn event_value(bytes: &[u8]) -> i64 {
    i64::from_le_bytes(bytes.try_into().unwrap())
}

/// Returns the tickets of an operation: the ticket of its first or only request, and the ticket of its
/// second.
fn tickets(at: usize) -> [Ticket; 2] {
    [Ticket(2 * at as u64 + 1), Ticket(2 * at as u64 + 2)]
}

fn place(ticket: Ticket) -> usize {
    (ticket.0 as usize - 1) / 2
}

fn asked(ticket: Ticket) -> RunRequest {
    RunRequest {
        ticket,
        action: Action::Call,
        name: "step".into(),
        at: None,
        began: SystemTime::UNIX_EPOCH,
        scope: None,
    }
}
