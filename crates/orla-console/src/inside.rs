//! What only the program knows that serves the console.

/// The program around the console.
pub trait Inside: Send + Sync {
    /// How clients on this machine connect, each with the text for its configuration.
    fn connections(&self) -> Vec<Connection>;

    /// The configuration in force.
    fn settings(&self) -> Vec<Setting>;

    /// What `orla check` says of the configuration and of what is served: what is not in force, then what may not be meant.
    fn findings(&self) -> Vec<String>;

    /// Reads the configuration and the tools again, as after SIGHUP.
    fn reload(&self);
}

/// How one client connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The client's name.
    pub title: &'static str,
    /// Its file.
    pub file: String,
    /// What to put into the file.
    pub text: String,
    /// What makes the client see it.
    pub then: &'static str,
}

/// One key of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub key: String,
    /// Its value as JSON; `None` if it is not shown, because it is a secret or a structure of its own.
    pub value: Option<String>,
    /// Where it was set: a file with its line, a variable, a flag; `None` if it is at its default.
    pub origin: Option<String>,
    /// What it means.
    pub about: String,
}
