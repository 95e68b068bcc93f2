//! The notes of a run that are not written yet. No I/O.
//!
//! Notes that are added while a write is under way become one record. A saved state replaces all earlier
//! notes; only their timeline is kept, for people ([`trail`](super::keys::trail)).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use orla_marketplace::program::{BegunCall, JournalContents, RunRequest};
use orla_marketplace::rtfs::Ticket;
use orla_state::{Change, Expect};

use super::keys;
use super::record::{self, Note, Saved, Used};
use crate::task::TaskId;

/// Notes with fewer bytes and fewer records than this are never considered too long. One write removes
/// the notes that a state replaces, and a write takes about that many changes.
const LONG: (usize, u64) = (64 << 10, 256);

/// The maximum number of bytes of notes of a run of which nothing is written yet. After a crash, such a
/// run begins anew in any case.
const LONG_UNWRITTEN: usize = 4 * LONG.0;

/// The maximum number of trail records kept for a run, so that an endless run does not fill the store.
const TRAIL: u64 = 256;

/// The notes of one run in this process.
#[derive(Debug)]
pub(super) struct Notes {
    id: TaskId,
    /// The unwritten notes, as a record.
    record: Vec<u8>,
    /// The number of notes so far.
    noted: u64,
    /// The number of the next record.
    next: u64,
    /// The number of the first record after the state.
    first: u64,
    /// Bytes of notes since the state.
    length: usize,
    /// Bytes of the state.
    state_length: usize,
    /// A state that is not written yet.
    state: Option<Vec<u8>>,
    /// Whether a state has been written.
    has_state: bool,
    /// The answers since the state, without their values.
    trail: Vec<u8>,
    /// The number of the next record of the trail.
    next_trail: u64,
    /// The calls and waits that have begun and have no answer yet.
    open: BTreeMap<Ticket, Note>,
    /// How long the run had run, according to its last state or the next one.
    used: Duration,
    /// Whether the running time is kept in a row of its own, as older versions kept it.
    has_used: bool,
    /// Further changes to write with the next record.
    changes: Vec<Change>,
    /// Whether a caller waits for the notes to become durable, or a noted action left the process.
    is_write_requested: bool,
}

/// The stored rows of a run.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) state: Option<Bytes>,
    /// The records of notes with their numbers, ascending.
    pub(super) notes: Vec<(u64, Bytes)>,
    /// The number of the last record of the trail.
    pub(super) last_trail: Option<u64>,
    /// How long the run had run when it last fell asleep.
    pub(super) used: Duration,
}

/// The changes of one write.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) changes: Vec<Change>,
    /// The number of notes that are durable after the write.
    pub(super) noted: u64,
}

impl Notes {
    /// Reads the notes of a run, and the past that they describe.
    ///
    /// # Errors
    ///
    /// Returns a message if the rows are not those of a run.
    pub(super) fn read(id: TaskId, rows: &Rows) -> Result<(Self, JournalContents), String> {
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
            is_write_requested: false,
        };
        let mut past = JournalContents::default();
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

    /// Adds a note. Returns the number of notes so far.
    pub(super) fn add(&mut self, mut note: Note) -> u64 {
        let (Note::Begun { asked, .. } | Note::Waits(asked) | Note::Answered { asked, .. }) = &mut note;
        let open = self.open.get(&asked.ticket);
        // The start is the time of the first request, even if another process made the call again.
        if let Some(Note::Begun { asked: first, .. } | Note::Waits(first)) = open {
            asked.began = first.began;
        }
        // A repeated call, or a wait of a restored run. A call that waits has not begun, and may still
        // begin.
        let is_known = matches!(
            (open, &note),
            (Some(Note::Begun { .. }), Note::Begun { .. }) | (Some(Note::Waits(_)), Note::Waits(_))
        );
        if !is_known {
            let before = self.record.len();
            if let Note::Answered { answer, .. } = &mut note {
                // The trail gets the same note without the answer.
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

    /// Adds a change to make with the next record.
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

    /// Notes that the run no longer wants an answer.
    pub(super) fn withdraw(&mut self, ticket: Ticket) {
        self.open.remove(&ticket);
    }

    /// Requests that the pending notes be written now.
    pub(super) fn request_write(&mut self) {
        self.is_write_requested = true;
    }

    /// Returns whether something must be written now.
    pub(super) fn is_write_requested(&self) -> bool {
        self.is_write_requested
    }

    /// Returns whether a call has begun and has no answer yet.
    pub(super) fn has_begun(&self, ticket: Ticket) -> bool {
        matches!(self.open.get(&ticket), Some(Note::Begun { .. }))
    }

    /// Returns whether any call has begun and has no answer yet.
    pub(super) fn is_under_way(&self) -> bool {
        self.open.values().any(|note| matches!(note, Note::Begun { .. }))
    }

    /// Returns whether a new state would be shorter than the notes since the last one, or would have
    /// fewer records.
    pub(super) fn is_long(&self) -> bool {
        let has_many = self.state.is_none() && self.records() > LONG.1;
        let is_unwritten = !self.has_state && self.state.is_none() && self.next == 1;
        let least = if is_unwritten { LONG_UNWRITTEN } else { LONG.0 };
        self.length > self.state_length.max(least) || has_many
    }

    /// Returns the number of records since the state.
    pub(super) fn records(&self) -> u64 {
        self.next - self.first
    }

    /// Returns the number of bytes of the state and of the notes since then.
    pub(super) fn bytes(&self) -> usize {
        self.length.saturating_add(self.state_length)
    }

    /// Replaces the earlier notes with a state. Returns the number of notes so far.
    pub(super) fn save(&mut self, state: Vec<u8>) -> u64 {
        self.record = record::begin();
        (self.length, self.state_length) = (0, state.len());
        self.state = Some(state);
        self.is_write_requested = true;
        self.noted += 1;
        self.noted
    }

    /// Replaces the earlier notes with the state in which the run falls asleep. `used` is its running
    /// time so far.
    pub(super) fn sleep(&mut self, state: Vec<u8>, used: Duration) {
        self.used = used;
        self.save(state);
    }

    /// Takes the batch to write now, if there is one.
    pub(super) fn take(&mut self) -> Option<Batch> {
        if !std::mem::take(&mut self.is_write_requested) {
            return None;
        }
        let mut changes = std::mem::take(&mut self.changes);
        if let Some(state) = self.state.take() {
            self.has_state = true;
            let removed = self.first..self.next;
            changes.extend(removed.map(|number| Change::remove(keys::notes(&self.id, number))));
            self.first = self.next;
            let open = self.open.values().cloned().collect();
            changes.extend(self.take_trail());
            let used = Used { time: self.used, last_trail: self.next_trail - 1 };
            let saved = Saved { next: self.next, open, used: Some(used), state };
            changes.push(Change::put(keys::state(&self.id), record::write_saved(&saved)));
            if std::mem::take(&mut self.has_used) {
                changes.push(Change::remove(keys::used(&self.id)));
            }
            if let Some(removed) =
                (self.next_trail - 1).checked_sub(TRAIL).filter(|removed| *removed > 0)
            {
                changes.push(Change::remove(keys::trail(&self.id, removed)));
            }
        }
        if self.record.len() > record::begin().len() {
            let record = std::mem::replace(&mut self.record, record::begin());
            // Another process that continues the run writes the same number, and one of the two writes
            // fails.
            let put = Change::put(keys::notes(&self.id, self.next), record);
            changes.push(put.expecting(Expect::Absent));
            self.next += 1;
        }
        (!changes.is_empty()).then_some(Batch { changes, noted: self.noted })
    }

    /// Returns the changes to write with the end of the run. Its timeline stays, and the rows needed to
    /// continue it are removed.
    pub(super) fn end(&mut self) -> Vec<Change> {
        let mut changes = std::mem::take(&mut self.changes);
        let removed = self.first..self.next;
        changes.extend(removed.map(|number| Change::remove(keys::notes(&self.id, number))));
        if self.has_state {
            changes.push(Change::remove(keys::state(&self.id)));
        }
        if self.has_used {
            changes.push(Change::remove(keys::used(&self.id)));
        }
        // Open requests did not come to an end.
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

fn begun(note: &Note) -> Option<BegunCall> {
    match note {
        Note::Begun { asked, is_idempotent } => {
            Some(BegunCall { ticket: asked.ticket, is_idempotent: *is_idempotent })
        }
        _ => None,
    }
}

/// Returns a note of an answer.
pub(super) fn answered(asked: &RunRequest, answer: Vec<u8>, failed: Option<&str>) -> Note {
    let failed = failed.map(str::to_owned);
    Note::Answered { asked: asked.clone(), ended: SystemTime::now(), failed, answer: Some(answer) }
}

#[cfg(test)]
mod tests {
    use orla_marketplace::program::Action;

    use super::*;

    /// Returns the begun calls, for the process that continues the run.
    fn recalled(notes: &[Note]) -> Vec<BegunCall> {
        let mut kept = Notes::read(TaskId::new(), &Rows::default()).unwrap().0;
        notes.iter().for_each(|note| {
            kept.add(note.clone());
        });
        kept.request_write();
        let changes = kept.take().unwrap().changes;
        let record = changes.into_iter().find_map(|change| change.value).unwrap();
        let rows = Rows { notes: vec![(1, record)], ..Rows::default() };
        Notes::read(TaskId::new(), &rows).unwrap().1.begun
    }

    #[test]
    fn a_call_that_waits_again_has_not_begun() {
        let asked = RunRequest {
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
