//! `--watch`: shows the output of a command again whenever it changes, until Ctrl-C.

use std::time::Duration;

use super::client::Server;
use crate::signals::Signals;
use crate::{Failure, render};

/// The interval between two requests to a server.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Shows the result of `look`, and again whenever it changes. `changed` waits until looking is
/// worthwhile; both receive `state`. An error of `look` is shown as well, and `look` is tried again.
///
/// # Errors
///
/// Returns an error if signal handlers cannot be installed.
pub(super) async fn watch<S>(
    state: &mut S,
    look: impl AsyncFn(&mut S) -> Result<String, Failure>,
    changed: impl AsyncFn(&mut S),
) -> Result<(), Failure> {
    let mut signals = Signals::install().map_err(|err| Failure::failed(err.to_string()))?;
    let mut shown = None;
    loop {
        let looked = tokio::select! {
            looked = look(state) => looked,
            _ = signals.end() => return Ok(()),
        };
        let text = looked.unwrap_or_else(|failure| format!("error: {}\n", failure.lines.join("\n")));
        if shown.as_ref() != Some(&text) {
            render::screen(&text);
            shown = Some(text);
        }
        tokio::select! {
            () = changed(state) => {}
            _ = signals.end() => return Ok(()),
        }
    }
}

/// Watches a server, by one request per second.
pub(super) async fn watch_server(
    server: Server,
    look: impl AsyncFn(&mut Server) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let mut server = server;
    watch(&mut server, look, async |_| tokio::time::sleep(POLL_INTERVAL).await).await
}
