//! What is noted of a run and not written yet. No I/O.
//!
//! Notes gather while a write is under way, so that many become one record. A saved state replaces all notes before it;
//! of these only the course of the run is kept, for people ([`trail`](super::keys::trail)).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use orla_marketplace::program::{Asked, Begun, Past};
use orla_marketplace::rtfs::Ticket;
use orla_state::{Change, Expect};

use super::keys;
use super::record::{self, Note, Saved, Used};
use crate::task::TaskId;

/// The notes are never too long before they have so many bytes or records. What a state replaces is removed with one
/// write, which may have so many changes and not many more.
const LONG: (usize, u64) = (64 << 10, 256);

/// So many bytes the notes of a run may have of which nothing is written. After a crash it begins anew in any case.
const LONG_UNWRITTEN: usize = 4 * LONG.0;

/// The most records of the trail of a run that are kept, so that a run without an end does not fill the store.
const TRAIL: u64 = 256;

/// The notes of one run in this process.
#[derive(Debug)]
pub(super) struct Notes {
    id: TaskId,
    /// The notes that are not written yet, as a record.
    record: Vec<u8>,
    /// How many notes there were.
    noted: u64,
    /// The number of the next record.
    next: u64,
    /// The number of the first record since the state.
    first: u64,
    /// Bytes of notes since the state.
    length: usize,
    /// Bytes of the state.
    state_length: usize,
    /// A state that is not written yet.
    state: Option<Vec<u8>>,
    /// Whether a state was written.
    has_state: bool,
    /// The answers since the state, without their values.
    trail: Vec<u8>,
    /// The number of the next record of the trail.
    next_trail: u64,
    /// The calls that have begun and what is waited for, without an answer.
    open: BTreeMap<Ticket, Note>,
    /// How long the run had run, as its last state says or the next one will say.
    used: Duration,
    /// Whether that is kept in a row of its own, as older versions did.
    has_used: bool,
    /// What else is written with the next record.
    changes: Vec<Change>,
    /// Whether someone waits for what was noted, or it left the process.
    is_wanted: bool,
}

/// A run is read from this.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) state: Option<Bytes>,
    /// The records of notes with their numbers, ascending.
    pub(super) notes: Vec<(u64, Bytes)>,
    /// The number of the last record of the trail.
    pub(super) last_trail: Option<u64>,
    /// How long the run had run when it fell asleep last.
    pub(super) used: Duration,
}

/// What is written at once.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) changes: Vec<Change>,
    /// The notes that are durable then.
    pub(super) noted: u64,
}

impl Notes {
    /// The notes of a run, and what they say to the run.
    ///
    /// # Errors
    /// Why the rows are not those of a run.
    pub(super) fn read(id: TaskId, rows: &Rows) -> Result<(Self, Past), String> {
        let mut notes = Self {
            id,
            record: record::begin(),
            noted: 0,
            next: 1,
            first: 1,
            length: 0,
            state_length: 0,
            state: None,
            has_state: rows.state.is_some(),
            trail: record::begin(),
            next_trail: rows.last_trail.map_or(1, |last| last + 1),
            open: BTreeMap::new(),
            used: rows.used,
            has_used: false,
            changes: Vec::new(),
            is_wanted: false,
        };
        let mut past = Past::default();
        if let Some(state) = &rows.state {
            let Saved { next, open, used, state } =
                record::read_saved(state).map_err(|why| why.to_string())?;
            notes.has_used = used.is_none();
            (notes.next, notes.first, notes.state_length) = (next, next, state.len());
            open.into_iter().for_each(|note| notes.enter(note));
            past.state = Some(state);
        }
        let mut answered = BTreeSet::new();
        for (number, record) in &rows.notes {
            if *number != notes.next {
                return Err(format!("record {} of its notes is missing", notes.next));
            }
            notes.next += 1;
            notes.length += record.len();
            for mut note in record::read(record).map_err(|why| why.to_string())? {
                if let Note::Answered { asked, answer, .. } = &mut note {
                    if !answered.insert(asked.ticket) {
                        return Err("something was answered twice".to_owned());
                    }
                    past.answers.push((asked.ticket, answer.take().ok_or("an answer is missing")?));
                }
                notes.enter(note);
            }
        }
        past.begun = notes.open.values().filter_map(begun).collect();
        Ok((notes, past))
    }

    /// Adds a note. Gives how many there are then.
    pub(super) fn add(&mut self, mut note: Note) -> u64 {
        let (Note::Begun { asked, .. } | Note::Waits(asked) | Note::Answered { asked, .. }) = &mut note;
        let open = self.open.get(&asked.ticket);
        // It began when it was asked for first, also if another process made the call again.
        if let Some(Note::Begun { asked: first, .. } | Note::Waits(first)) = open {
            asked.began = first.began;
        }
        // A call that is made again, or a wait of a run that was restored. A call that waits has not begun, and may then begin.
        let is_known = matches!(
            (open, &note),
            (Some(Note::Begun { .. }), Note::Begun { .. }) | (Some(Note::Waits(_)), Note::Waits(_))
        );
        if !is_known {
            let before = self.record.len();
            if let Note::Answered { answer, .. } = &mut note {
                // The trail has the same without the answer.
                let (answer, before) = (answer.take(), self.trail.len());
                self.enter(note);
                record::append_answer(&mut self.record, &self.trail[before..], answer.as_deref());
            } else {
                record::append(&mut self.record, &note);
                self.enter(note);
            }
            self.length += self.record.len() - before;
            self.noted += 1;
        }
        self.noted
    }

    /// Adds a change that is made with the next record.
    pub(super) fn also(&mut self, change: Change) {
        self.changes.push(change);
        self.noted += 1;
    }

    fn enter(&mut self, note: Note) {
        match note {
            Note::Begun { ref asked, .. } | Note::Waits(ref asked) => {
                self.open.insert(asked.ticket, note);
            }
            Note::Answered { asked, ended, failed, .. } => {
                self.open.remove(&asked.ticket);
                let note = Note::Answered { asked, ended, failed, answer: None };
                record::append(&mut self.trail, &note);
            }
        }
    }

    /// The run does not want an answer any more.
    pub(super) fn withdraw(&mut self, ticket: Ticket) {
        self.open.remove(&ticket);
    }

    /// What was noted is to be written now.
    pub(super) fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Whether something is to be written now.
    pub(super) fn has_more(&self) -> bool {
        self.is_wanted
    }

    /// Whether a call has begun to which there is no answer.
    pub(super) fn has_begun(&self, ticket: Ticket) -> bool {
        matches!(self.open.get(&ticket), Some(Note::Begun { .. }))
    }

    /// Whether a call has begun that has no answer.
    pub(super) fn is_under_way(&self) -> bool {
        self.open.values().any(|note| matches!(note, Note::Begun { .. }))
    }

    /// Whether a state is shorter than the notes since the last one, or has fewer records.
    pub(super) fn is_long(&self) -> bool {
        let has_many = self.state.is_none() && self.records() > LONG.1;
        let is_unwritten = !self.has_state && self.state.is_none() && self.next == 1;
        let least = if is_unwritten { LONG_UNWRITTEN } else { LONG.0 };
        self.length > self.state_length.max(least) || has_many
    }

    /// How many records there are since the state.
    pub(super) fn records(&self) -> u64 {
        self.next - self.first
    }

    /// Bytes of notes since the state, and of the state.
    pub(super) fn bytes(&self) -> usize {
        self.length.saturating_add(self.state_length)
    }

    /// Replaces the notes before it by a state. Gives how many notes there are then.
    pub(super) fn save(&mut self, state: Vec<u8>) -> u64 {
        self.record = record::begin();
        (self.length, self.state_length) = (0, state.len());
        self.state = Some(state);
        self.is_wanted = true;
        self.noted += 1;
        self.noted
    }

    /// Replaces the notes before it by a state with which the run falls asleep, after it has run for so long.
    pub(super) fn sleep(&mut self, state: Vec<u8>, used: Duration) {
        self.used = used;
        self.save(state);
    }

    /// What is to be written now, if there is anything.
    pub(super) fn take(&mut self) -> Option<Batch> {
        if !std::mem::take(&mut self.is_wanted) {
            return None;
        }
        let mut changes = std::mem::take(&mut self.changes);
        if let Some(state) = self.state.take() {
            self.has_state = true;
            let gone = self.first..self.next;
            changes.extend(gone.map(|number| Change::remove(keys::notes(&self.id, number))));
            self.first = self.next;
            let open = self.open.values().cloned().collect();
            changes.extend(self.take_trail());
            let used = Used { time: self.used, last_trail: self.next_trail - 1 };
            let saved = Saved { next: self.next, open, used: Some(used), state };
            changes.push(Change::put(keys::state(&self.id), record::write_saved(&saved)));
            if std::mem::take(&mut self.has_used) {
                changes.push(Change::remove(keys::used(&self.id)));
            }
            if let Some(gone) = (self.next_trail - 1).checked_sub(TRAIL).filter(|gone| *gone > 0) {
                changes.push(Change::remove(keys::trail(&self.id, gone)));
            }
        }
        if self.record.len() > record::begin().len() {
            let record = std::mem::replace(&mut self.record, record::begin());
            // Another process that goes on with the run, too, writes the same number: one of them fails.
            let put = Change::put(keys::notes(&self.id, self.next), record);
            changes.push(put.expecting(Expect::Absent));
            self.next += 1;
        }
        (!changes.is_empty()).then_some(Batch { changes, noted: self.noted })
    }

    /// What is written with the end of the run: its course stays, and what was needed to go on with it does not.
    pub(super) fn end(&mut self) -> Vec<Change> {
        let mut changes = std::mem::take(&mut self.changes);
        let gone = self.first..self.next;
        changes.extend(gone.map(|number| Change::remove(keys::notes(&self.id, number))));
        if self.has_state {
            changes.push(Change::remove(keys::state(&self.id)));
        }
        if self.has_used {
            changes.push(Change::remove(keys::used(&self.id)));
        }
        // What is open did not come to an end.
        for note in std::mem::take(&mut self.open).into_values() {
            record::append(&mut self.trail, &note);
        }
        changes.extend(self.take_trail());
        changes
    }

    fn take_trail(&mut self) -> Option<Change> {
        if self.trail.len() <= record::begin().len() {
            return None;
        }
        let trail = std::mem::replace(&mut self.trail, record::begin());
        self.next_trail += 1;
        Some(Change::put(keys::trail(&self.id, self.next_trail - 1), trail))
    }
}

fn begun(note: &Note) -> Option<Begun> {
    match note {
        Note::Begun { asked, is_idempotent } => {
            Some(Begun { ticket: asked.ticket, is_idempotent: *is_idempotent })
        }
        _ => None,
    }
}

/// A note of an answer.
pub(super) fn answered(asked: &Asked, answer: Vec<u8>, failed: Option<&str>) -> Note {
    let failed = failed.map(str::to_owned);
    Note::Answered { asked: asked.clone(), ended: SystemTime::now(), failed, answer: Some(answer) }
}

#[cfg(test)]
mod tests {
    use orla_marketplace::program::Action;

    use super::*;

    /// What a process that goes on with the run is told of the calls that had begun.
    fn recalled(notes: &[Note]) -> Vec<Begun> {
        let mut kept = Notes::read(TaskId::new(), &Rows::default()).unwrap().0;
        notes.iter().for_each(|note| {
            kept.add(note.clone());
        });
        kept.want();
        let changes = kept.take().unwrap().changes;
        let record = changes.into_iter().find_map(|change| change.value).unwrap();
        let rows = Rows { notes: vec![(1, record)], ..Rows::default() };
        Notes::read(TaskId::new(), &rows).unwrap().1.begun
    }

    #[test]
    fn a_call_that_waits_again_has_not_begun() {
        let asked = Asked {
            ticket: Ticket(1),
            action: Action::Call,
            name: "act".into(),
            at: None,
            began: SystemTime::UNIX_EPOCH,
            scope: None,
        };
        let begun = || Note::Begun { asked: asked.clone(), is_idempotent: false };
        let waits = || Note::Waits(asked.clone());
        assert_eq!(recalled(&[begun()]).len(), 1);
        assert_eq!(recalled(&[begun(), waits()]).len(), 0);
        assert_eq!(recalled(&[begun(), waits(), begun()]).len(), 1);
    }
}
