//! The capabilities whose processes a broker serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The maximum number of capabilities that a line of the log names.
const MAX_NAMED: usize = 8;

/// The capabilities whose processes a broker serves, and the number of connections that these processes were
/// refused. Clones share both.
#[derive(Clone, Debug, Default)]
pub struct Clients(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    names: Mutex<Vec<String>>,
    refused: AtomicU64,
}

impl Clients {
    /// Sets the names that appear in the log.
    pub fn set_names(&self, names: Vec<String>) {
        *self.0.names.lock() = names;
    }

    /// Returns the number of refused connections.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn count_refusal(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the names for a line of the log; `None` if there are none.
    pub(crate) fn names(&self) -> Option<String> {
        let names = self.0.names.lock();
        let named = names.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
        match names.len().saturating_sub(MAX_NAMED) {
            _ if names.is_empty() => None,
            0 => Some(named),
            more => Some(format!("{named} and {more} more")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_some_of_many() {
        let clients = Clients::default();
        assert_eq!(clients.names(), None);
        for (count, expected) in [
            (2, "tool0, tool1"),
            (8, "tool0, tool1, tool2, tool3, tool4, tool5, tool6, tool7"),
            (11, "tool0, tool1, tool2, tool3, tool4, tool5, tool6, tool7 and 3 more"),
        ] {
            clients.set_names((0..count).map(|at| format!("tool{at}")).collect());
            assert_eq!(clients.names().as_deref(), Some(expected));
        }
    }
}
