//! The store of a world. A batch makes all of its changes or none, and each record has a revision.

use std::collections::BTreeMap;

use bytes::Bytes;
use orla_state::{Change, Expect, Revision};

use super::STATE;
use crate::keys::task;
use crate::state::{Event, Repeat, State};
use crate::task::TaskId;

/// The parts of a task's record that the simulation needs.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub(super) state: State,
    pub(super) begun: Option<Repeat>,
    pub(super) revision: Revision,
}

#[derive(Default)]
pub(super) struct Store {
    rows: BTreeMap<String, (Bytes, Revision)>,
    revision: Revision,
    /// The ids of the tasks of the world that were accepted.
    pub(super) ids: BTreeMap<usize, TaskId>,
}

impl Store {
    /// Makes all changes or none. Returns `false` if a record is not as a change expects it.
    pub(super) fn write(&mut self, changes: &[Change]) -> bool {
        let fits = |change: &Change| match (change.expect, self.rows.get(&change.key)) {
            (Expect::Anything, _) | (Expect::Absent, None) => true,
            (Expect::Revision(expected), Some((_, revision))) => expected == *revision,
            (Expect::Absent, Some(_)) | (Expect::Revision(_), None) => false,
        };
        if !changes.iter().all(fits) {
            return false;
        }
        for Change { key, value, .. } in changes {
            self.revision += 1;
            match value {
                Some(value) => drop(self.rows.insert(key.clone(), (value.clone(), self.revision))),
                None => drop(self.rows.remove(key)),
            }
        }
        true
    }

    pub(super) fn get(&self, key: &str) -> Option<(&Bytes, Revision)> {
        self.rows.get(key).map(|(value, revision)| (value, *revision))
    }

    pub(super) fn below<'s>(&'s self, prefix: &'s str) -> impl Iterator<Item = (&'s str, &'s Bytes)> {
        let rows = self.rows.range(prefix.to_owned()..);
        let rows = rows.take_while(move |(key, _)| key.starts_with(prefix));
        rows.map(|(key, (value, _))| (key.as_str(), value))
    }

    pub(super) fn record(&self, id: &TaskId) -> Record {
        let (value, revision) = self.get(&task(id)).expect(STATE);
        let begun = usize::from(value[1]).checked_sub(1).map(|at| REPEATS[at]);
        Record { state: State::ALL[usize::from(value[0])], begun, revision }
    }
}

const REPEATS: [Repeat; 3] = [Repeat::Never, Repeat::Freely, Repeat::Journaled];

/// Returns the change that applies these events to a record, if the state machine permits them. `repeat`
/// is kept if the call begins.
pub(super) fn happens(id: &TaskId, record: Record, events: &[Event], repeat: Repeat) -> Option<Change> {
    let state = events.iter().try_fold(record.state, |state, event| state.after(*event))?;
    let begun = record.begun.or(events.contains(&Event::Begin).then_some(repeat));
    let put = Change::put(task(id), record_of(state, begun));
    Some(put.expecting(Expect::Revision(record.revision)))
}

/// Returns the value of a record.
pub(super) fn record_of(state: State, begun: Option<Repeat>) -> Vec<u8> {
    let at = State::ALL.iter().position(|other| *other == state).expect(STATE);
    let begun =
        begun.map_or(0, |begun| 1 + REPEATS.iter().position(|other| *other == begun).expect(STATE));
    vec![at as u8, begun as u8]
}
