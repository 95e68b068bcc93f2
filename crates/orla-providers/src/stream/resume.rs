//! Decides how to continue when a connection is cut. Pure.
//!
//! A stream of server-sent events with ids is resumed after the last one (`Last-Event-ID`). A server
//! that does not support that begins again, and events that were already seen are skipped. A stream ends
//! when resuming it brings nothing new. If some events have no id, an orderly end is the end of the
//! stream, because the next events might be repetitions. A stream without ids is reconnected only if
//! configured, because items may be lost.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use bytes::Bytes;

/// The number of remembered ids. A server that begins again further back is not recognised.
const MAX_REMEMBERED_IDS: usize = 1024;
/// The pause before reconnecting, unless the server sets another. It doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause, even if the server asks for a longer one.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// The maximum length of an id that is sent back.
const MAX_ID: usize = 1024;

/// The state that is needed to resume a stream.
#[derive(Debug)]
pub(super) struct Resumption {
    reconnect: bool,
    max_failures: u32,
    pause: Duration,
    last_id: Option<Bytes>,
    seen: VecDeque<u64>,
    /// The number of consecutive connections that brought nothing.
    failures: u32,
    /// Whether the connection is not the first, and has brought nothing new yet. Events that were
    /// already seen are skipped.
    is_fresh: bool,
    /// Whether an item came without an id.
    is_mixed: bool,
}

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// An orderly end, as far as is known.
    Orderly,
    /// An end in the middle of the data.
    Cut,
    /// The connection could not be opened.
    Refused,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Connect again after this pause.
    Connect(Duration),
    /// The stream is at its end.
    End,
    /// The stream has failed.
    Fail,
}

impl Resumption {
    pub(super) fn new(reconnect: bool, max_failures: u32) -> Self {
        Self {
            reconnect,
            max_failures,
            pause: FIRST_PAUSE,
            last_id: None,
            seen: VecDeque::new(),
            failures: 0,
            is_fresh: false,
            is_mixed: false,
        }
    }

    /// Returns the id to resume after.
    pub(super) fn last_id(&self) -> Option<&Bytes> {
        self.last_id.as_ref()
    }

    /// Sets the pause before reconnecting, as the server requests.
    pub(super) fn retry(&mut self, ms: u64) {
        self.pause = Duration::from_millis(ms).clamp(Duration::from_millis(1), MAX_PAUSE);
    }

    /// Records an id that the server sent without an item. An empty id revokes the last one.
    pub(super) fn set_last_id(&mut self, id: Option<&Bytes>) {
        if let Some(id) = id.filter(|id| id.len() <= MAX_ID) {
            self.last_id = (!id.is_empty()).then(|| id.clone());
        }
    }

    /// Records an arrived item, with its id if it has one. Returns whether the item is passed on.
    pub(super) fn admits(&mut self, id: Option<&Bytes>) -> bool {
        let Some(id) = id.filter(|id| !id.is_empty() && id.len() <= MAX_ID) else {
            self.set_last_id(id);
            self.is_mixed = true;
            // After an event with an id, one without may be a repetition.
            if self.last_id.is_none() {
                self.record_progress();
            }
            return true;
        };
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let hash = hasher.finish();
        if self.is_fresh && self.seen.contains(&hash) {
            return false;
        }
        self.record_progress();
        if self.seen.len() == MAX_REMEMBERED_IDS {
            self.seen.pop_front();
        }
        self.seen.push_back(hash);
        self.set_last_id(Some(id));
        true
    }

    fn record_progress(&mut self) {
        (self.failures, self.is_fresh) = (0, false);
    }

    /// Decides on the next step when a connection has ended.
    pub(super) fn ended(&mut self, how: Ended) -> Next {
        let can_resume = self.last_id.is_some();
        match how {
            Ended::Orderly if !can_resume || self.is_mixed || self.is_fresh => return Next::End,
            Ended::Cut | Ended::Refused if !can_resume && !self.reconnect => return Next::Fail,
            _ => {}
        }
        if self.is_fresh || how == Ended::Refused {
            self.failures += 1;
        }
        if self.failures > self.max_failures {
            return Next::Fail;
        }
        self.is_fresh = true;
        Next::Connect((self.pause * 2_u32.saturating_pow(self.failures.min(16))).min(MAX_PAUSE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &'static str) -> Option<&'static Bytes> {
        static IDS: [(&str, Bytes); 4] = [
            ("1", Bytes::from_static(b"1")),
            ("2", Bytes::from_static(b"2")),
            ("3", Bytes::from_static(b"3")),
            ("", Bytes::from_static(b"")),
        ];
        IDS.iter().find(|(name, _)| *name == text).map(|(_, id)| id)
    }

    #[test]
    fn a_stream_with_ids_is_resumed_until_that_brings_nothing() {
        let mut stream = Resumption::new(false, 2);
        assert!(stream.admits(id("1")));
        assert_eq!(stream.ended(Ended::Cut), Next::Connect(FIRST_PAUSE));
        assert_eq!(stream.last_id(), id("1"));
        assert!(!stream.admits(id("1")), "a server that counts the last one in");
        assert!(stream.admits(id("2")));
        assert_eq!(stream.ended(Ended::Orderly), Next::Connect(FIRST_PAUSE));
        assert_eq!(stream.ended(Ended::Orderly), Next::End);
    }

    #[test]
    fn a_server_that_begins_anew_gives_nothing_twice() {
        let mut stream = Resumption::new(false, 2);
        for name in ["1", "2"] {
            assert!(stream.admits(id(name)));
        }
        assert!(matches!(stream.ended(Ended::Cut), Next::Connect(_)));
        assert!(!stream.admits(id("1")) && !stream.admits(id("2")));
        assert!(stream.admits(id("3")));
        assert!(matches!(stream.ended(Ended::Orderly), Next::Connect(_)));
        assert!(!stream.admits(id("1")));
        assert_eq!(stream.ended(Ended::Orderly), Next::End);
    }

    #[test]
    fn a_stream_without_ids_fails_unless_reconnect_is_configured() {
        let mut plain = Resumption::new(false, 2);
        assert!(plain.admits(None));
        assert_eq!(plain.ended(Ended::Orderly), Next::End);
        assert_eq!(plain.ended(Ended::Cut), Next::Fail);
        let mut again = Resumption::new(true, 2);
        again.retry(10);
        assert_eq!(again.ended(Ended::Cut), Next::Connect(Duration::from_millis(10)));
        assert_eq!(again.ended(Ended::Refused), Next::Connect(Duration::from_millis(20)));
        assert_eq!(again.ended(Ended::Refused), Next::Connect(Duration::from_millis(40)));
        assert_eq!(again.ended(Ended::Refused), Next::Fail);
        assert!(stream_after_empty_id().last_id().is_none());
    }

    #[test]
    fn a_stream_with_some_ids_ends_orderly_and_resumes_after_a_cut() {
        let mut stream = Resumption::new(false, 2);
        assert!(stream.admits(None) && stream.admits(id("1")));
        assert_eq!(stream.ended(Ended::Orderly), Next::End);
        let mut cut = Resumption::new(false, 2);
        assert!(cut.admits(id("1")) && cut.admits(None));
        assert_eq!(cut.ended(Ended::Cut), Next::Connect(FIRST_PAUSE));
        assert_eq!(cut.last_id(), id("1"));
        // A server that begins again each time brings nothing new, although not all of its events are
        // remembered.
        for pause in [2, 4] {
            assert!(cut.admits(None) && !cut.admits(id("1")));
            assert_eq!(cut.ended(Ended::Cut), Next::Connect(FIRST_PAUSE * pause));
        }
        assert!(!cut.admits(id("1")) && cut.admits(None));
        assert_eq!(cut.ended(Ended::Cut), Next::Fail);
        // An empty id revokes the last one, each time.
        let mut empty = Resumption::new(true, 2);
        assert!(empty.admits(id("1")) && empty.admits(id("")));
        assert_eq!(empty.ended(Ended::Cut), Next::Connect(FIRST_PAUSE));
        assert!(empty.admits(id("")) && empty.last_id().is_none());
    }

    fn stream_after_empty_id() -> Resumption {
        let mut stream = Resumption::new(false, 2);
        assert!(stream.admits(id("1")) && stream.admits(id("")));
        stream
    }
}
