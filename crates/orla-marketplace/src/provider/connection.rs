//! The connection that a capability holds to its provider.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A connection to a provider, of a type that its executor knows. Two values are equal if they are the
/// same connection.
#[derive(Clone)]
pub struct Connection(Arc<dyn Any + Send + Sync>);

impl Connection {
    /// Returns a connection of any type.
    pub fn new<T: Any + Send + Sync>(connection: Arc<T>) -> Self {
        Self(connection)
    }

    /// Returns the connection, if it has this type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl PartialEq for Connection {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Connection {}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}
