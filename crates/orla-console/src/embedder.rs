//! The interface to facts that only the embedding program knows.

use std::sync::Arc;

use orla_marketplace::catalog::Entry;
use orla_server::NodeRow;

/// The program around the console.
pub trait Embedder: Send + Sync {
    /// Returns how clients on this machine connect, each with the text for its configuration.
    fn connections(&self) -> Vec<Connection>;

    /// Returns the configuration in force.
    fn settings(&self) -> Vec<Setting>;

    /// Returns the findings of `orla check` about the configuration and the capabilities: declarations
    /// that are not in force, then unintended ones.
    fn findings(&self) -> Vec<String>;

    /// Reads the configuration and the tools again, as after SIGHUP.
    fn reload(&self);

    /// Returns the audit log, if one is kept.
    fn audit(&self) -> Option<Arc<dyn AuditLog>>;

    /// Returns the process of a provider with this kind and this name, if it has a process that can be
    /// inspected.
    fn process(&self, kind: &str, name: &str) -> Option<Arc<dyn Process>>;

    /// Returns whether the policy permits a caller to call a capability that is served, and why.
    fn explain(&self, caller: &Caller<'_>, capability: &Entry) -> Explanation;

    /// Returns the nodes of the cluster that this server is one of; `None` if it is no node.
    fn nodes(&self) -> Option<Vec<NodeRow>>;
}

/// The caller that a question about the policy is about.
#[derive(Clone, Debug)]
pub struct Caller<'a> {
    /// Its name, as `orla policy explain` takes it.
    pub name: &'a str,
    /// Its groups.
    pub groups: Vec<String>,
    /// The scopes of its token.
    pub scopes: Vec<String>,
}

/// What the policy says of a caller and a capability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Whether the caller may call it.
    pub is_allowed: bool,
    /// Why, a line each: the permissions that the capability needs, with the rules that decide on them.
    pub reasons: Vec<String>,
}

/// The process of a provider.
pub trait Process: Send + Sync {
    /// Ends the process once its calls in flight are over, and starts a new one. A process that does not
    /// run is started.
    fn restart(&self);

    /// Returns the last lines that it wrote to standard error, the oldest first.
    fn stderr_lines(&self) -> Vec<String>;
}

/// The audit log. All methods block, and return the reason of a failure in one line.
pub trait AuditLog: Send + Sync {
    /// Returns how many bytes it has.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read.
    fn bytes(&self) -> Result<u64, String>;

    /// Walks the chain from its beginning to its end.
    ///
    /// # Errors
    ///
    /// Returns which line is broken, and how.
    fn verify(&self) -> Result<Verified, String>;

    /// Returns the whole lines among the last `most` bytes, the oldest first.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read.
    fn newest(&self, most: u64) -> Result<Vec<String>, String>;
}

/// An audit log whose chain is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// How many records it has.
    pub records: u64,
    /// The hash of the last one.
    pub hash: String,
}

/// How one client connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The client's name.
    pub title: &'static str,
    /// Its file.
    pub file: String,
    /// The text to add to the file.
    pub text: String,
    /// How the client notices the change.
    pub then: &'static str,
}

/// One key of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub key: String,
    /// The value as JSON; `None` if it is not shown, because it is a secret or has its own structure.
    pub value: Option<String>,
    /// Where it was set: a file with its line, a variable, a flag; `None` if it is at its default.
    pub origin: Option<String>,
    /// The meaning of the key.
    pub about: String,
}
