//! The records of a key in the state, and their meaning for a request with the key. No I/O.
//!
//! # How it works
//!
//! A key has two records. The record below [`ANSWERS`] is the note of its call, and later the answer: a
//! line with a [`Head`], and the body. The record below [`TIMES`] sorts the keys by age, so that expired
//! keys are found.

use bytes::Bytes;
use http::StatusCode;
use orla_state::Record;
use serde::{Deserialize, Serialize};

use super::form::hash;
use super::{Refused, StoredAnswer};

/// How long an answer is kept, in milliseconds.
pub(super) const KEPT_MS: u64 = 24 * 60 * 60 * 1000;

const ANSWERS: &str = "rest/answer/";
pub(super) const TIMES: &str = "rest/time/";

/// The line before the body of a stored answer.
#[derive(Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) fingerprint: String,
    /// The time of the first use of the key, in milliseconds since 1970.
    pub(super) at: u64,
    /// 0 until the call is answered.
    pub(super) status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) retry_after: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_cut: bool,
    /// The process that makes the call.
    #[serde(rename = "life", default, skip_serializing_if = "Option::is_none")]
    pub(super) instance: Option<String>,
}

/// The record of the first use of a key: the key, and the size of its answer.
pub(super) struct TimeRow<'a> {
    pub(super) at: u64,
    pub(super) place: &'a str,
    pub(super) bytes: usize,
}

/// The state of a key for a request.
pub(super) enum KeyState {
    /// The key was never used, or has expired.
    Free,
    /// The call was made.
    Answered(StoredAnswer),
    /// Another process has noted the call, and may be making it.
    Running,
    /// The record cannot be read. It may be the note of a call that ran, so it stays until its
    /// [`TimeRow`] is a day old.
    Unreadable,
    /// The call is not made.
    Refused(Refused),
}

/// Returns the state of a key for a request with this fingerprint, in the process `instance`.
pub(super) fn key_state(
    record: Option<&Bytes>,
    fingerprint: &str,
    instance: Option<&str>,
    now: u64,
) -> KeyState {
    let Some(record) = record else { return KeyState::Free };
    let Some((head, body)) = Head::parse(record) else { return KeyState::Unreadable };
    if now.saturating_sub(head.at) >= KEPT_MS {
        return KeyState::Free;
    }
    let is_running =
        instance.is_some() && head.instance.is_some() && head.instance.as_deref() != instance;
    match StatusCode::from_u16(head.status) {
        _ if head.fingerprint != fingerprint => KeyState::Refused(Refused::Conflict),
        _ if head.is_cut => KeyState::Refused(Refused::TooLarge),
        Ok(status) => KeyState::Answered(StoredAnswer { status, retry_after: head.retry_after, body }),
        Err(_) if is_running => KeyState::Running,
        Err(_) => KeyState::Refused(Refused::Interrupted),
    }
}

impl Head {
    /// Returns the record of a key: this line, and the body of the answer.
    pub(super) fn record(&self, body: &[u8]) -> Vec<u8> {
        let head = serde_json::to_vec(self).unwrap_or_default();
        [&head[..], b"\n", body].concat()
    }

    /// The head and the body of a record.
    pub(super) fn parse(record: &Bytes) -> Option<(Self, Bytes)> {
        let end = record.iter().position(|byte| *byte == b'\n')?;
        Some((serde_json::from_slice(&record[..end]).ok()?, record.slice(end + 1..)))
    }
}

impl<'a> TimeRow<'a> {
    pub(super) fn key(at: u64, place: &str) -> String {
        format!("{TIMES}{at:016}/{}", place.strip_prefix(ANSWERS).unwrap_or_default())
    }

    pub(super) fn parse(record: &'a Record) -> Option<Self> {
        let at = record.key.strip_prefix(TIMES)?.split('/').next()?.parse().ok()?;
        let (place, bytes) = std::str::from_utf8(&record.value).ok()?.split_once(' ')?;
        Some(Self { at, place, bytes: bytes.parse().ok()? })
    }
}

/// Returns where the record of a caller's key is stored.
pub(super) fn place(caller: &str, key: &str) -> String {
    format!("{ANSWERS}{}/{}", hash(caller.as_bytes()), hash(key.as_bytes()))
}

/// Returns the caller to which a stored key belongs.
pub(super) fn owner(place: &str) -> &str {
    place.strip_prefix(ANSWERS).and_then(|rest| rest.split('/').next()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 3 * KEPT_MS;

    fn head() -> Head {
        Head {
            fingerprint: "f".to_owned(),
            at: NOW - 1,
            status: 0,
            retry_after: None,
            is_cut: false,
            instance: None,
        }
    }

    fn of_other_process() -> Head {
        Head { instance: Some("other".to_owned()), ..head() }
    }

    /// Returns the answer to a request of the process `own`, which may share its state with other
    /// processes.
    fn state_name(record: impl Into<Bytes>, own: Option<&str>) -> String {
        match key_state(Some(&record.into()), "f", own, NOW) {
            KeyState::Free => "free".to_owned(),
            KeyState::Answered(answer) => format!("{} {:?}", answer.status.as_u16(), answer.body),
            KeyState::Running => "elsewhere".to_owned(),
            KeyState::Unreadable => "unreadable".to_owned(),
            KeyState::Refused(Refused::Conflict) => "conflict".to_owned(),
            KeyState::Refused(Refused::TooLarge) => "too large".to_owned(),
            KeyState::Refused(Refused::Interrupted) => "interrupted".to_owned(),
            KeyState::Refused(_) => "refused for another reason".to_owned(),
        }
    }

    #[test]
    fn a_record_determines_the_state_of_its_key() {
        let answered = Head { status: 200, ..head() };
        let cases = [
            (answered.record(b"7"), Some("own"), "200 b\"7\""),
            (head().record(b""), None, "interrupted"),
            (head().record(b""), Some("own"), "interrupted"),
            (of_other_process().record(b""), None, "interrupted"),
            (of_other_process().record(b""), Some("other"), "interrupted"),
            (of_other_process().record(b""), Some("own"), "elsewhere"),
            (Head { is_cut: true, status: 200, ..head() }.record(b""), None, "too large"),
            (
                Head { fingerprint: "g".to_owned(), ..of_other_process() }.record(b""),
                Some("own"),
                "conflict",
            ),
            (Head { at: NOW - KEPT_MS, status: 200, ..head() }.record(b"7"), None, "free"),
            (Head { at: NOW - KEPT_MS, ..of_other_process() }.record(b""), Some("own"), "free"),
        ];
        for (record, own, expected) in cases {
            assert_eq!(
                state_name(record.clone(), own),
                expected,
                "{}",
                String::from_utf8_lossy(&record)
            );
        }
        assert!(matches!(key_state(None, "f", None, NOW), KeyState::Free));
    }

    #[test]
    fn a_record_that_cannot_be_read_does_not_free_its_key() {
        let whole = head().record(b"");
        for end in 0..whole.len() {
            assert_eq!(state_name(whole[..end].to_vec(), None), "unreadable", "{end}");
        }
        for record in ["{}\n", "\n", "[1]\n7", "{\"fingerprint\":\"f\",\"at\":\"2026\",\"status\":0}\n"]
        {
            assert_eq!(state_name(record, None), "unreadable", "{record}");
        }
    }
}
