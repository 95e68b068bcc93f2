//! The changes that a session's own stream has sent to its client, so that lost changes can be sent
//! again. Pure.
//!
//! Changes are numbered from 1. The newest are kept. A client that returns with the last number it saw
//! receives the later ones. A client that returns too late is notified that everything may have changed.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::mcp::notify::notices::{list_changed, resource_updated};

/// The maximum number of kept changes of one session.
const MAX_KEPT: usize = 256;

/// A change to notify a client of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    /// A list: `tools`, `prompts` or `resources`.
    List(&'static str),
    /// A resource, by its address.
    Resource(Arc<str>),
}

impl Change {
    /// As a JSON-RPC message.
    pub(crate) fn message(&self) -> Bytes {
        match self {
            Self::List(list) => list_changed(list, None),
            Self::Resource(uri) => resource_updated(uri, None),
        }
    }
}

/// The changes that were sent to a client.
#[derive(Debug, Default)]
pub(crate) struct SentChanges {
    /// The number of the last change.
    last: u64,
    kept: VecDeque<Change>,
    /// The changes to send again.
    resend: BTreeSet<Change>,
}

impl SentChanges {
    /// Returns the number of the last change that was sent.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Returns the changes to send now, with their numbers: these changes, and the ones to send again.
    pub(crate) fn record(&mut self, changes: impl IntoIterator<Item = Change>) -> Vec<(u64, Change)> {
        self.resend.extend(changes);
        let number = |change: Change| {
            self.last += 1;
            if self.kept.len() >= MAX_KEPT {
                self.kept.pop_front();
            }
            self.kept.push_back(change.clone());
            (self.last, change)
        };
        let mut now: Vec<Change> = std::mem::take(&mut self.resend).into_iter().collect();
        now.sort_by_key(|change| match change {
            Change::List("tools") => 0,
            Change::List("prompts") => 1,
            Change::List(_) => 2,
            Change::Resource(_) => 3,
        });
        now.into_iter().map(number).collect()
    }

    /// Returns the changes that were sent after this number and must be sent again, or `None` if they
    /// are no longer known.
    pub(crate) fn after(&self, number: u64) -> Option<BTreeSet<Change>> {
        let missed = usize::try_from(self.last.checked_sub(number)?).ok()?;
        let known = self.kept.len().checked_sub(missed)?;
        Some(self.kept.iter().skip(known).chain(&self.resend).cloned().collect())
    }

    /// Schedules changes to be sent again.
    pub(crate) fn resend(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.resend.extend(changes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Change {
        Change::Resource(text.into())
    }

    #[test]
    fn changes_after_the_last_number_are_sent_again() {
        let mut sent = SentChanges::default();
        assert_eq!(
            sent.record([uri("a"), Change::List("tools")]),
            [(1, Change::List("tools")), (2, uri("a"))]
        );
        assert_eq!(sent.record([uri("b")]), [(3, uri("b"))]);
        assert_eq!(sent.after(1), Some([uri("a"), uri("b")].into()));
        assert_eq!(sent.after(3), Some(BTreeSet::new()));
        assert_eq!(sent.after(4), None, "that was never told");
        sent.resend([uri("b"), uri("c")]);
        assert_eq!(sent.after(3), Some([uri("b"), uri("c")].into()));
        assert_eq!(sent.record([uri("b")]), [(4, uri("b")), (5, uri("c"))]);
        assert!(sent.record([]).is_empty() && sent.last() == 5);
    }

    #[test]
    fn dropped_changes_cannot_be_sent_again() {
        let mut sent = SentChanges::default();
        for number in 0..MAX_KEPT + 2 {
            sent.record([uri(&number.to_string())]);
        }
        assert_eq!(sent.after(1), None);
        assert_eq!(sent.after(2).map(|missed| missed.len()), Some(MAX_KEPT));
    }
}
