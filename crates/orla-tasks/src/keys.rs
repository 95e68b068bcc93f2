//! The keys under which tasks are kept.
//!
//! | key | value |
//! |---|---|
//! | `task/ID` | the record of a task, JSON |
//! | `input/ID`, `result/ID` | its input and its result, JSON |
//! | `given/ID` | what its call had given until it was cancelled, JSON |
//! | `owner/OWNER/ID` | empty: the tasks of a caller |
//! | `open/ID` | the tasks that the process has to look at when it starts; OWNER if the task is asleep, else empty |
//! | `idempotency/OWNER/KEY` | the id of the task that was started with this key |
//! | `timer/TIME/KIND/ID` | empty: what is due at an instant |
//! | `run/ID/…` | what belongs to a durable program |
//!
//! OWNER and KEY are hashes, so that callers' texts make no keys.

use orla_marketplace::Principal;
use ring::digest::{SHA256, digest};

use crate::task::{TaskId, Timestamp};

pub(crate) const TASKS: &str = "task/";
pub(crate) const OPEN: &str = "open/";
pub(crate) const TIMERS: &str = "timer/";
/// What the records of schedules are below, and how the idempotency keys of their tasks begin.
pub(crate) const SCHEDULES: &str = "schedule/";

pub(crate) fn task(id: &TaskId) -> String {
    format!("{TASKS}{id}")
}

pub(crate) fn input(id: &TaskId) -> String {
    format!("input/{id}")
}

pub(crate) fn result(id: &TaskId) -> String {
    format!("result/{id}")
}

pub(crate) fn given(id: &TaskId) -> String {
    format!("given/{id}")
}

pub(crate) fn open(id: &TaskId) -> String {
    format!("{OPEN}{id}")
}

/// What is below this belongs to the durable program of a task, and goes with the task.
pub(crate) fn run(id: &TaskId) -> String {
    format!("run/{id}/")
}

/// The state of a program that was saved last.
pub(crate) fn state(id: &TaskId) -> String {
    format!("{}state", run(id))
}

/// Which life of which node goes on with a program, if several share the store.
pub(crate) fn holder(id: &TaskId) -> String {
    format!("{}holder", run(id))
}

/// How long a program had run when it fell asleep, as older versions kept it.
pub(crate) fn used(id: &TaskId) -> String {
    format!("{}used", run(id))
}

/// An event for the program of a task. Those of one name sort by the time at which they came.
pub(crate) fn event(id: &TaskId, name: &str) -> String {
    format!("{}{}", events(id, name), TaskId::new())
}

/// What all events for the program of a task are below.
pub(crate) fn all_events(id: &TaskId) -> String {
    format!("{}event/", run(id))
}

/// What the events of one name are below.
pub(crate) fn events(id: &TaskId, name: &str) -> String {
    format!("{}{}/", all_events(id), hash(name.as_bytes()))
}

/// What the tasks of this caller are below.
pub(crate) fn owned(owner: &OwnerKey) -> String {
    format!("owner/{}/", owner.0)
}

pub(crate) fn owner(owner: &OwnerKey, id: &TaskId) -> String {
    format!("{}{id}", owned(owner))
}

/// The row of an idempotency key: one that a caller has chosen, or that of a schedule's instant. On a server that asks no one
/// who they are, both have the same owner, and no caller's key may be that of an instant.
pub(crate) fn idempotency(owner: &OwnerKey, key: &str, schedule: Option<&str>) -> String {
    let is_taken = schedule.is_none() && key.starts_with(SCHEDULES);
    // No key has a control character.
    let before = if is_taken { "\0" } else { "" };
    format!("idempotency/{}/{}", owner.0, hash(format!("{before}{key}").as_bytes()))
}

/// A timer. Its keys sort by time.
pub(crate) fn timer(at: Timestamp, kind: &str, id: &str) -> String {
    format!("{TIMERS}{:016}/{kind}/{id}", at.0)
}

/// The parts of a timer's key.
pub(crate) fn parse_timer(key: &str) -> Option<(Timestamp, &str, &str)> {
    let (at, rest) = key.strip_prefix(TIMERS)?.split_once('/')?;
    let (kind, id) = rest.split_once('/')?;
    Some((Timestamp(at.parse().ok()?), kind, id))
}

/// A caller in a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnerKey(String);

impl OwnerKey {
    /// The caller of a sleeping task, by the value of its row below `open/`.
    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok().filter(|text| text.len() == 32)?;
        Some(Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn of(id: Option<&str>) -> Self {
        // No principal's id is empty.
        Self(hash(id.unwrap_or_default().as_bytes()))
    }

    pub(crate) fn of_caller(caller: Option<&Principal>) -> Self {
        Self::of(caller.map(|caller| &**caller.id()))
    }
}

/// The first 128 bits of a text's hash.
fn hash(text: &[u8]) -> String {
    hex::encode(&digest(&SHA256, text).as_ref()[..16])
}
