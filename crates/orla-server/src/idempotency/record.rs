//! The records of a key in the state, and what they say of a request with the key. No I/O.
//!
//! # How it works
//!
//! A key has two records. That below [`ANSWERS`] is the note of its call, and then the answer: a line with a [`Head`], and
//! the body. That below [`TIMES`] sorts the keys by age, so that those whose day is over are found.

use bytes::Bytes;
use http::StatusCode;
use orla_state::Record;
use serde::{Deserialize, Serialize};

use super::form::hash;
use super::{KeptAnswer, Refused};

/// How long an answer is repeated, in milliseconds.
pub(super) const KEPT_MS: u64 = 24 * 60 * 60 * 1000;

const ANSWERS: &str = "rest/answer/";
pub(super) const TIMES: &str = "rest/time/";

/// What stands before the body of a kept answer.
#[derive(Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) fingerprint: String,
    /// When the key was used first, in milliseconds since 1970.
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

/// A record of when a key was used first: its place, and the bytes of its answer.
pub(super) struct TimeRow<'a> {
    pub(super) at: u64,
    pub(super) place: &'a str,
    pub(super) bytes: usize,
}

/// What the state says of a request with a key.
pub(super) enum Standing {
    /// The key was never used, or its day is over.
    Free,
    /// The call was made.
    Answered(KeptAnswer),
    /// Another process has noted the call, and may be making it.
    Elsewhere,
    /// The call is not made.
    Refused(Refused),
}

/// What the record of a key says of a request with this fingerprint, in the process `instance`.
pub(super) fn standing(
    record: Option<&Record>,
    fingerprint: &str,
    instance: Option<&str>,
    now: u64,
) -> Standing {
    let Some((head, body)) = record.and_then(|record| Head::parse(&record.value)) else {
        return Standing::Free;
    };
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
    /// The record of a key: this line, and the body of the answer.
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

/// Where the record of a key is, by its caller.
pub(super) fn place(caller: &str, key: &str) -> String {
    format!("{ANSWERS}{}/{}", hash(caller.as_bytes()), hash(key.as_bytes()))
}

/// The caller to whom a key belongs, by its place.
pub(super) fn owner(place: &str) -> &str {
    place.strip_prefix(ANSWERS).and_then(|rest| rest.split('/').next()).unwrap_or_default()
}
