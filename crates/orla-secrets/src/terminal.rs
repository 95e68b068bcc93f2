//! Reads a value that a user types.

use std::io::{self, BufRead};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::secret::Secret;

/// Reads a line from the terminal on standard input without echo.
///
/// # Errors
/// Standard input is not a terminal, or cannot be read.
pub fn read_hidden() -> io::Result<Secret> {
    let hidden = Hidden::start()?;
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    drop(hidden);
    read.map(|_| Secret::from_line(line))
}

/// A terminal without echo, until this is dropped. The line end is echoed.
struct Hidden(Termios);

impl Hidden {
    fn start() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        hidden.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(io::stdin(), OptionalActions::Flush, &hidden)?;
        Ok(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}
