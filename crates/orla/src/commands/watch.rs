//! `--watch`: what a command shows, shown again as it changes, until Ctrl-C.

use std::time::Duration;

use crate::signals::Signals;
use crate::{Failure, render};

/// How often what is watched is looked at again.
pub(super) const PACE: Duration = Duration::from_secs(1);

/// Shows what `look` gives, and again whenever it gives something else. `changed` waits until it is worth to look.
/// What cannot be looked at is shown as well: it may come back.
///
/// # Errors
/// Signals cannot be heard.
pub(super) async fn watch(
    mut look: impl AsyncFnMut() -> Result<String, Failure>,
    mut changed: impl AsyncFnMut(),
) -> Result<(), Failure> {
    let mut signals = Signals::install().map_err(|err| Failure::failed(err.to_string()))?;
    let mut shown = None;
    loop {
        let looked = tokio::select! {
            looked = look() => looked,
            _ = signals.end() => return Ok(()),
        };
        let text = looked.unwrap_or_else(|failure| format!("error: {}\n", failure.lines.join("\n")));
        if shown.as_ref() != Some(&text) {
            render::screen(&text);
            shown = Some(text);
        }
        tokio::select! {
            () = changed() => {}
            _ = signals.end() => return Ok(()),
        }
    }
}
