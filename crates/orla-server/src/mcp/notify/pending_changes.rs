//! Local changes of which clients may have to be notified at other servers.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The changes since the last call of [`take`](Self::take).
#[derive(Debug, Default)]
pub(crate) struct PendingChanges {
    changes: Mutex<Changes>,
    /// Notified when something changes.
    pub(crate) woken: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// The ids of sessions whose resources have changed.
    pub(crate) sessions: BTreeSet<String>,
    /// The changed lists of this server itself.
    pub(crate) lists: BTreeSet<&'static str>,
}

impl PendingChanges {
    /// Notes a change of a resource to which this session has subscribed.
    pub(crate) fn add_session(&self, id: String) {
        self.changes.lock().sessions.insert(id);
        self.woken.notify_one();
    }

    /// Notes that a list has changed.
    pub(crate) fn add_list(&self, list: &'static str) {
        self.changes.lock().lists.insert(list);
        self.woken.notify_one();
    }

    /// Takes the changes since the last call.
    pub(crate) fn take(&self) -> Changes {
        std::mem::take(&mut *self.changes.lock())
    }
}
