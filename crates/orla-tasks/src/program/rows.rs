//! The rows from which a task begins or continues.

use std::time::Duration;

use orla_marketplace::JsonText;
use orla_state::{Record, StateError};
use serde_json::value::RawValue;

use super::record::{Used, used as used_by};
use crate::keys;
use crate::preloaded::{LoadedTask, StoredState};
use crate::records::{read, text};
use crate::task::TaskId;

/// Returns the keys of the rows from which a task begins.
pub(crate) fn to_run_keys(id: &TaskId) -> [String; 4] {
    [keys::task(id), keys::input(id), keys::state(id), keys::used(id)]
}

/// Reads a task that is about to run from these rows.
pub(crate) fn to_run(
    id: &TaskId,
    [task, input, state, used]: [Option<Record>; 4],
) -> Result<Option<LoadedTask>, StateError> {
    let (Some(task), Some(input)) = (task.and_then(|row| read(id, &row)), input) else {
        return Ok(None);
    };
    let state = state.map(|row| row.value);
    let used = match state.as_ref().and_then(|state| used_by(state)) {
        Some(Used { time, .. }) => time,
        None => used.map(|row| read_used(&row.value)).unwrap_or_default(),
    };
    let input = match text(input) {
        // A finished task needs no input.
        Err(_) if task.state.is_terminal() => JsonText::from(RawValue::NULL.to_owned()),
        input => input?,
    };
    Ok(Some(LoadedTask { task, input, used, stored: StoredState::State(state), open: None }))
}

/// Reads how long a run had run when it fell asleep, as older versions stored it.
fn read_used(value: &[u8]) -> Duration {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let millis = text.split(' ').next().and_then(|number| number.parse().ok());
    Duration::from_millis(millis.unwrap_or_default())
}

/// Returns the keys of the rows from which a woken task continues.
pub(crate) fn awake_keys(id: &TaskId) -> [String; 3] {
    [keys::task(id), keys::input(id), keys::state(id)]
}

/// Reads a woken task from these rows. Returns `None` if they are incomplete.
pub(crate) fn woken(id: &TaskId, rows: [Option<Record>; 3]) -> Option<LoadedTask> {
    let [Some(task), Some(input), Some(state)] = rows else { return None };
    let state = state.value;
    let Used { time: used, last_trail } = used_by(&state)?;
    let stored = StoredState::Slept { state, last_trail };
    Some(LoadedTask { task: read(id, &task)?, input: text(input).ok()?, used, stored, open: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn the_time_of_a_run_is_read_where_each_version_keeps_it() {
        let id = TaskId::new();
        let row = |key: &str, value: &[u8]| {
            Some(Record { key: key.to_owned(), value: Bytes::copy_from_slice(value), revision: 1 })
        };
        let task = || {
            let at = "1795363661000";
            let record = format!(
                r#"{{"capability": "rtfs", "is_program": true, "state": "working", "created_at": {at}, "updated_at": {at}}}"#
            );
            row("task", record.as_bytes())
        };
        let used = |state: &[u8], used: Option<Record>| {
            let rows = [task(), row("input", b"{}"), row("state", state), used];
            to_run(&id, rows).unwrap().expect("a task").used
        };
        let own_row = || row("used", b"1500 2");
        // The version, the number of the next record, the length of the open notes, and the state.
        assert_eq!(used(&[2, 1, 0, 9], own_row()), Duration::from_millis(1500));
        // The version, the milliseconds, the last trail record, and the rest as before.
        assert_eq!(used(&[3, 7, 2, 1, 0, 9], None), Duration::from_millis(7));
        assert!(woken(&id, [task(), row("input", b"{}"), row("state", &[2, 1, 0, 9])]).is_none());
        let awake = woken(&id, [task(), row("input", b"{}"), row("state", &[3, 7, 2, 1, 0, 9])]);
        assert!(matches!(
            awake.map(|awake| awake.stored),
            Some(StoredState::Slept { last_trail: 2, .. })
        ));
    }
}
