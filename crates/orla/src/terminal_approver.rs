//! Asks the person at the terminal to approve calls of a command on this machine.

use std::io::IsTerminal;
use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::{Approver, Approvers};

use crate::render;

/// The person at the terminal.
struct Terminal(tokio::sync::Mutex<()>);

/// Returns the approvers of a command's calls: the person at the terminal, if both the question and the
/// answer can use a terminal.
pub(crate) fn approvers() -> Approvers {
    match std::io::stdin().is_terminal() && render::stderr_is_terminal() {
        true => Approvers::Person(Arc::new(Terminal(tokio::sync::Mutex::new(())))),
        false => Approvers::Nobody,
    }
}

#[async_trait]
impl Approver for Terminal {
    async fn agrees(&self, sentence: &str) -> bool {
        // One question at a time.
        let _asking = self.0.lock().await;
        render::question(&format!("{sentence} [y]es, [n]o "));
        let read = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).map(|_| line)
        });
        let line = read.await.ok().and_then(Result::ok).unwrap_or_default();
        matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes")
    }
}
