//! Changes here of which clients may have to hear at other servers.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// What has changed since the last look.
#[derive(Debug, Default)]
pub(crate) struct Unheard {
    changes: Mutex<Changes>,
    /// Something has changed.
    pub(crate) woken: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// The ids of sessions whose resources have changed.
    pub(crate) sessions: BTreeSet<String>,
    /// Lists of this server's own.
    pub(crate) lists: BTreeSet<&'static str>,
}

impl Unheard {
    /// A resource has changed to which this session has subscribed.
    pub(crate) fn session(&self, id: String) {
        self.changes.lock().sessions.insert(id);
        self.woken.notify_one();
    }

    /// A list has changed.
    pub(crate) fn list(&self, list: &'static str) {
        self.changes.lock().lists.insert(list);
        self.woken.notify_one();
    }

    /// What has changed since the last call.
    pub(crate) fn take(&self) -> Changes {
        std::mem::take(&mut *self.changes.lock())
    }
}
