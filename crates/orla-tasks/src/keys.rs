//! The keys under which tasks are kept.
//!
//! | key | value |
//! |---|---|
//! | `task/ID` | the record of the task, JSON |
//! | `input/ID`, `result/ID` | its input and its result, JSON |
//! | `given/ID` | the output of its call until it was cancelled, JSON |
//! | `owner/OWNER/ID` | empty: the tasks of a caller |
//! | `open/ID` | a task that is not over, which the process checks when it starts; OWNER if the task is asleep, else empty |
//! | `idempotency/OWNER/KEY` | the id of the task that was started with this key |
//! | `timer/TIME/KIND/ID` | empty: an action that is due at this instant |
//! | `run/ID/…` | the rows of a durable program |
//! | `schedule/NAME` | the record of a schedule, JSON |
//! | `buffered/ID`, `buffered-input/ID` | the record and the input of a task, in the store of a node that keeps it for the shared one |
//! | `node/NODE` | the heartbeat of a node that shares the store, JSON |
//!
//! OWNER and KEY are hashes, so that no text of a caller becomes part of a key.

use orla_marketplace::Principal;
use orla_state::Record;
use ring::digest::{SHA256, digest};

use crate::task::{TaskId, Timestamp};

pub(crate) const TASKS: &str = "task/";
pub(crate) const OPEN: &str = "open/";
pub(crate) const TIMERS: &str = "timer/";
pub(crate) const BUFFERED: &str = "buffered/";
/// The prefix of the records of schedules and of the idempotency keys of their tasks.
pub(crate) const SCHEDULES: &str = "schedule/";

pub(crate) fn task(id: &TaskId) -> String {
    format!("{TASKS}{id}")
}

pub(crate) fn input(id: &TaskId) -> String {
    format!("input/{id}")
}

pub(crate) fn buffered(id: &TaskId) -> String {
    format!("{BUFFERED}{id}")
}

pub(crate) fn buffered_input(id: &TaskId) -> String {
    format!("buffered-input/{id}")
}

pub(crate) fn result(id: &TaskId) -> String {
    format!("result/{id}")
}

pub(crate) fn cancelled_output(id: &TaskId) -> String {
    format!("given/{id}")
}

pub(crate) fn open(id: &TaskId) -> String {
    format!("{OPEN}{id}")
}

/// Returns the prefix of the rows of a task's durable program. They are removed with the task.
pub(crate) fn run(id: &TaskId) -> String {
    format!("run/{id}/")
}

/// Returns the last saved state of a program.
pub(crate) fn state(id: &TaskId) -> String {
    format!("{}state", run(id))
}

/// Returns the life of the node that continues a program, if several nodes share the store.
pub(crate) fn holder(id: &TaskId) -> String {
    format!("{}holder", run(id))
}

/// Returns how long a program had run when it fell asleep, as older versions stored it.
pub(crate) fn used(id: &TaskId) -> String {
    format!("{}used", run(id))
}

/// Returns an event for the program of a task. Events of one name sort by their time of arrival.
pub(crate) fn event(id: &TaskId, name: &str) -> String {
    format!("{}{}", events(id, name), TaskId::new())
}

/// Returns the prefix of all events for the program of a task.
pub(crate) fn all_events(id: &TaskId) -> String {
    format!("{}event/", run(id))
}

/// Returns the prefix of the events of one name.
pub(crate) fn events(id: &TaskId, name: &str) -> String {
    format!("{}{}/", all_events(id), hash(name.as_bytes()))
}

/// Returns the prefix of the tasks of a caller.
pub(crate) fn owned(owner: &OwnerKey) -> String {
    format!("owner/{}/", owner.0)
}

pub(crate) fn owner(owner: &OwnerKey, id: &TaskId) -> String {
    format!("{}{id}", owned(owner))
}

/// Returns the row of an idempotency key, chosen by a caller or derived from an instant of a schedule.
/// On a server that does not identify its callers, both kinds have the same owner, so no caller's key
/// may equal the key of an instant.
pub(crate) fn idempotency(owner: &OwnerKey, key: &str, schedule: Option<&str>) -> String {
    let is_taken = schedule.is_none() && key.starts_with(SCHEDULES);
    // No caller's key contains a control character.
    let before = if is_taken { "\0" } else { "" };
    format!("idempotency/{}/{}", owner.0, hash(format!("{before}{key}").as_bytes()))
}

/// Returns a timer. The keys of timers sort by time.
pub(crate) fn timer(at: Timestamp, kind: &str, id: &str) -> String {
    format!("{TIMERS}{:016}/{kind}/{id}", at.0)
}

/// Returns the parts of a timer's key.
pub(crate) fn parse_timer(key: &str) -> Option<(Timestamp, &str, &str)> {
    let (at, rest) = key.strip_prefix(TIMERS)?.split_once('/')?;
    let (kind, id) = rest.split_once('/')?;
    Some((Timestamp(at.parse().ok()?), kind, id))
}

/// Returns whether a row below `open/` says that its task sleeps.
pub(crate) fn is_asleep(row: &Record) -> bool {
    OwnerKey::read(&row.value).is_some()
}

/// Returns the tasks of rows below `open/` that are awake.
pub(crate) fn awake(rows: &[Record]) -> Vec<TaskId> {
    let awake = rows.iter().filter(|row| !is_asleep(row));
    awake.filter_map(|row| TaskId::parse(row.key.strip_prefix(OPEN)?)).collect()
}

/// A caller, as it appears in a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnerKey(String);

impl OwnerKey {
    /// Reads the caller of a sleeping task from the value of its row below `open/`.
    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok().filter(|text| text.len() == 32)?;
        Some(Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn of(id: Option<&str>) -> Self {
        // No principal has an empty id.
        Self(hash(id.unwrap_or_default().as_bytes()))
    }

    pub(crate) fn of_caller(caller: Option<&Principal>) -> Self {
        Self::of(caller.map(|caller| &**caller.id()))
    }
}

/// Returns the first 128 bits of the hash of a text.
fn hash(text: &[u8]) -> String {
    hex::encode(&digest(&SHA256, text).as_ref()[..16])
}
