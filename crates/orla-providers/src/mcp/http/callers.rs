//! Connections to a server at which each caller has its own token. Each caller has its own connection,
//! and with it its own session.
//!
//! The server's own connection lists its tools and receives its notifications. The connections of
//! callers do neither. A caller's connection ends when it has not been used for a while.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::Principal;
use orla_oauth::Upstream;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::shared::{Setup, Shared};
use super::{Context, Remote};
use crate::sign_in::{Credentials, subject};

/// How long a caller's connection is kept without a call.
const IDLE: Duration = Duration::from_secs(600);
/// The maximum number of connected callers.
const MAX_CALLERS: usize = 1_000;

/// The connections of callers.
pub(super) struct Callers {
    upstream: Arc<Upstream>,
    setup: Setup,
    context: Context,
    connections: Mutex<HashMap<String, Connection>>,
}

struct Connection {
    remote: Arc<Remote>,
    used: Instant,
}

impl fmt::Debug for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Callers({})", self.connections.lock().len())
    }
}

impl Callers {
    pub(super) fn new(upstream: Arc<Upstream>, setup: Setup, context: Context) -> Self {
        // Tools that a caller's connection lists are not reported as changes.
        let context = Context { changes: watch::Sender::new(0), ..context };
        Self { upstream, setup, context, connections: Mutex::default() }
    }

    /// Returns the connection of a caller; `None` if the server's own connection serves the caller.
    pub(super) fn of(&self, principal: Option<&Principal>, own: &Shared) -> Option<Arc<Remote>> {
        let subject = subject(self.upstream.settings().grant, principal)?;
        let (key, now) = (subject.key(), Instant::now());
        let mut connections = self.connections.lock();
        if let Some(connection) = connections.get_mut(&key) {
            connection.used = now;
            return Some(Arc::clone(&connection.remote));
        }
        // Dropped outside the lock.
        let ended = make_room(&mut connections, now);
        let credentials = Credentials::new(Arc::clone(&self.upstream), subject);
        let remote =
            Remote::connect(self.setup.clone(), self.context.clone(), Some(credentials), Some(own));
        let remote = Arc::new(remote);
        connections.insert(key, Connection { remote: Arc::clone(&remote), used: now });
        drop(connections);
        drop(ended);
        Some(remote)
    }
}

/// Removes unused connections, and the least recently used ones if there are too many.
fn make_room(connections: &mut HashMap<String, Connection>, now: Instant) -> Vec<Connection> {
    let idle = |connection: &Connection| now.duration_since(connection.used) >= IDLE;
    let mut ended: Vec<Connection> = connections
        .extract_if(|_, connection| idle(connection))
        .map(|(_, connection)| connection)
        .collect();
    while connections.len() >= MAX_CALLERS {
        let oldest = connections.iter().min_by_key(|(_, connection)| connection.used);
        let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
        ended.extend(connections.remove(&oldest));
    }
    ended
}
