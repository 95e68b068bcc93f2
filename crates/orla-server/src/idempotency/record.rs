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
use super::{KeptAnswer, Refused};

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
pub(super) enum Standing {
    /// The key was never used, or has expired.
    Free,
    /// The call was made.
    Answered(KeptAnswer),
    /// Another process has noted the call, and may be making it.
    Elsewhere,
    /// The record cannot be read. It may be the note of a call that ran, so it stays until its
    /// [`TimeRow`] is a day old.
    Unreadable,
    /// The call is not made.
    Refused(Refused),
}

/// Returns the state of a key for a request with this fingerprint, in the process `instance`.
pub(super) fn standing(
    record: Option<&Bytes>,
    fingerprint: &str,
    instance: Option<&str>,
    now: u64,
) -> Standing {
    let Some(record) = record else { return Standing::Free };
    let Some((head, body)) = Head::parse(record) else { return Standing::Unreadable };
    if now.saturating_sub(head.at) >= KEPT_MS {
        return Standing::Free;
    }
    let is_elsewhere =
        instance.is_some() && head.instance.is_some() && head.instance.as_deref() != instance;
    match StatusCode::from_u16(head.status) {
        _ if head.fingerprint != fingerprint => Standing::Refused(Refused::Conflict),
        _ if head.is_cut => Standing::Refused(Refused::TooLarge),
        Ok(status) => Standing::Answered(KeptAnswer { status, retry_after: head.retry_after, body }),
        Err(_) if is_elsewhere => Standing::Elsewhere,
        Err(_) => Standing::Refused(Refused::Interrupted),
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

    fn elsewhere() -> Head {
        Head { instance: Some("other".to_owned()), ..head() }
    }

    /// Returns the answer to a request of the process `own`, which may share its state with other
    /// processes.
    fn said(record: impl Into<Bytes>, own: Option<&str>) -> String {
        match standing(Some(&record.into()), "f", own, NOW) {
            Standing::Free => "free".to_owned(),
            Standing::Answered(answer) => format!("{} {:?}", answer.status.as_u16(), answer.body),
            Standing::Elsewhere => "elsewhere".to_owned(),
            Standing::Unreadable => "unreadable".to_owned(),
            Standing::Refused(Refused::Conflict) => "conflict".to_owned(),
            Standing::Refused(Refused::TooLarge) => "too large".to_owned(),
            Standing::Refused(Refused::Interrupted) => "interrupted".to_owned(),
            Standing::Refused(_) => "refused for another reason".to_owned(),
        }
    }

    #[test]
    fn a_record_says_what_is_to_be_done() {
        let answered = Head { status: 200, ..head() };
        let cases = [
            (answered.record(b"7"), Some("own"), "200 b\"7\""),
            (head().record(b""), None, "interrupted"),
            (head().record(b""), Some("own"), "interrupted"),
            (elsewhere().record(b""), None, "interrupted"),
            (elsewhere().record(b""), Some("other"), "interrupted"),
            (elsewhere().record(b""), Some("own"), "elsewhere"),
            (Head { is_cut: true, status: 200, ..head() }.record(b""), None, "too large"),
            (Head { fingerprint: "g".to_owned(), ..elsewhere() }.record(b""), Some("own"), "conflict"),
            (Head { at: NOW - KEPT_MS, status: 200, ..head() }.record(b"7"), None, "free"),
            (Head { at: NOW - KEPT_MS, ..elsewhere() }.record(b""), Some("own"), "free"),
        ];
        for (record, own, expected) in cases {
            assert_eq!(said(record.clone(), own), expected, "{}", String::from_utf8_lossy(&record));
        }
        assert!(matches!(standing(None, "f", None, NOW), Standing::Free));
    }

    #[test]
    fn a_record_that_cannot_be_read_does_not_free_its_key() {
        let whole = head().record(b"");
        for end in 0..whole.len() {
            assert_eq!(said(whole[..end].to_vec(), None), "unreadable", "{end}");
        }
        for record in ["{}\n", "\n", "[1]\n7", "{\"fingerprint\":\"f\",\"at\":\"2026\",\"status\":0}\n"]
        {
            assert_eq!(said(record, None), "unreadable", "{record}");
        }
    }
}
