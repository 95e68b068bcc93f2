//! Follows the catalogue of one instance.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use orla_marketplace::RuntimeError;
use parking_lot::Mutex;
use reqwest::StatusCode;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::listing::{self, Listed, Listing};
use super::request;
use super::settings::RemoteSettings;
use crate::http::{Clients, Stage, failure, host_of, read_body};
use crate::sign_in::{SignIns, Unanswered};

/// How long one request waits for a change.
const WAIT: Duration = Duration::from_secs(25);
/// How much longer than that the answer may take.
const ANSWER: Duration = Duration::from_secs(10);
/// The pause after a failure. It doubles with each failure.
const BACKOFF_MIN: Duration = Duration::from_millis(250);
/// The maximum pause after a failure.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// The minimum time between two requests, for an instance whose catalogue changes all the time. It
/// doubles with each immediate answer without a change, which an instance without support for waiting
/// gives.
const PAUSE: Duration = Duration::from_millis(50);
/// An answer that comes sooner than this did not wait for a change.
const AT_ONCE: Duration = Duration::from_secs(1);
/// The maximum size of a catalogue, in bytes.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// One instance. When the configuration drops it, its catalogue is no longer followed.
pub(super) struct Followed {
    pub(super) settings: RemoteSettings,
    is_followed: AtomicBool,
    listed: Mutex<Arc<Vec<Listed>>>,
    /// Whether the first request has ended, with an answer or an error.
    answered: watch::Sender<bool>,
    problem: Mutex<Option<String>>,
    stop: CancellationToken,
    _guard: DropGuard,
}

/// The state that all instances share.
pub(super) struct Context {
    pub(super) own: Arc<str>,
    pub(super) clients: Arc<Clients>,
    pub(super) sign_ins: SignIns,
    pub(super) changes: Arc<watch::Sender<u64>>,
}

impl Followed {
    pub(super) fn new(settings: RemoteSettings, stop: &CancellationToken) -> Self {
        let stop = stop.child_token();
        Self {
            settings,
            is_followed: AtomicBool::new(false),
            listed: Mutex::default(),
            answered: watch::Sender::new(false),
            problem: Mutex::default(),
            _guard: stop.clone().drop_guard(),
            stop,
        }
    }

    /// Returns whether this caller is the first. The first caller continues with
    /// [`follow`](Self::follow).
    pub(super) fn begin(&self) -> bool {
        !self.is_followed.swap(true, Ordering::Relaxed)
    }

    /// Returns what the instance serves, as far as that is known.
    pub(super) fn listed(&self) -> Arc<Vec<Listed>> {
        Arc::clone(&self.listed.lock())
    }

    /// Returns why the last request failed.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// Waits until the instance has answered for the first time, or the first request has failed.
    pub(super) async fn answered(&self) {
        let mut answered = self.answered.subscribe();
        tokio::select! {
            _ = answered.wait_for(|answered| *answered) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Requests the catalogue repeatedly until it is no longer used. The task holds no reference that
    /// would keep the instance.
    pub(super) fn follow(self: Arc<Self>, context: Context) -> impl Future<Output = ()> + Send {
        let stop = self.stop.clone();
        let remote = Arc::downgrade(&self);
        async move {
            let (mut version, mut backoff, mut idle) = (None::<String>, BACKOFF_MIN, PAUSE);
            loop {
                let Some(this) = remote.upgrade() else { return };
                let settings = this.settings.clone();
                drop(this);
                let since = Instant::now();
                let result = tokio::select! {
                    result = ask(&settings, &context, version.as_deref()) => result,
                    () = stop.cancelled() => return,
                };
                let Some(this) = remote.upgrade() else { return };
                let pause = match result {
                    Ok(listing) => {
                        backoff = BACKOFF_MIN;
                        let is_new = listing.is_some_and(|listing| {
                            version = Some(listing.version.clone());
                            this.take(listing, &context)
                        });
                        this.note(None);
                        idle = pause_after(idle, is_new, since.elapsed());
                        idle
                    }
                    Err(problem) => {
                        // Another process may use the same version number.
                        version = None;
                        this.note(Some(problem));
                        let pause = backoff;
                        backoff = (backoff * 2).min(BACKOFF_MAX);
                        pause
                    }
                };
                this.answered.send_replace(true);
                drop(this);
                tokio::select! {
                    () = sleep(pause) => {}
                    () = stop.cancelled() => return,
                }
            }
        }
    }

    /// Stores a listing. Returns whether the instance serves something else than before.
    fn take(&self, listing: Listing, context: &Context) -> bool {
        let Listing { capabilities, left_out, .. } = listing;
        if left_out > 0 {
            let remote = &self.settings.name;
            tracing::warn!(remote, left_out, "capabilities of a remote instance cannot be served");
        }
        let mut listed = self.listed.lock();
        if **listed == capabilities {
            return false;
        }
        tracing::info!(
            remote = self.settings.name,
            capabilities = capabilities.len(),
            "a catalogue changed"
        );
        *listed = Arc::new(capabilities);
        drop(listed);
        context.changes.send_modify(|count| *count += 1);
        true
    }

    fn note(&self, problem: Option<String>) {
        let mut noted = self.problem.lock();
        if let Some(problem) = problem.as_ref().filter(|problem| noted.as_ref() != Some(problem)) {
            tracing::warn!(remote = self.settings.name, problem, "a remote instance cannot be asked");
        }
        *noted = problem;
    }
}

/// Returns the pause after an answer that took this long, if the last pause was `idle`.
fn pause_after(idle: Duration, is_new: bool, took: Duration) -> Duration {
    match is_new || took >= AT_ONCE {
        true => PAUSE,
        false => (idle * 2).min(BACKOFF_MAX),
    }
}

/// Requests the catalogue; `None` if it is unchanged.
async fn ask(
    settings: &RemoteSettings,
    context: &Context,
    version: Option<&str>,
) -> Result<Option<Listing>, String> {
    let url = request::url_of(&settings.url)?;
    let host = host_of(&url);
    let server = url.clone();
    let request = request::of_catalogue(url, settings.token.as_deref(), version, WAIT)?;
    let client = context.clients.configured()?;
    let max_wait = if version.is_some() { WAIT + ANSWER } else { ANSWER };
    let reason = |err: RuntimeError| match err {
        RuntimeError::Unavailable { reason, .. } => reason,
        other => other.to_string(),
    };
    let name = settings.name.as_str();
    let exchange = async {
        let response = match settings.sign_in.as_deref() {
            None => client.execute(request).await.map_err(Unanswered::Http),
            Some(key) => context.sign_ins.sender(key, &server, client, None)?.execute(request).await,
        };
        let response = response.map_err(|unanswered| match unanswered {
            Unanswered::Http(err) => reason(failure(name, &host, err, Stage::Asking)),
            Unanswered::Token(error) => format!("{host}: {error}"),
        })?;
        let status = response.status();
        let body: Bytes = match status {
            StatusCode::OK => {
                let arrived = AtomicUsize::new(0);
                read_body(MAX_BYTES, name, &host, response, &arrived).await.map_err(reason)?
            }
            StatusCode::NOT_MODIFIED => return Ok(None),
            StatusCode::UNAUTHORIZED => return Err(format!("{host} does not accept the token")),
            status => return Err(format!("{host} answered {status} instead of a catalogue")),
        };
        listing::read(&body, settings, &context.own).map(Some)
    };
    let done = timeout(max_wait, exchange).await;
    done.unwrap_or_else(|_| Err(format!("{host} does not answer within {} s", max_wait.as_secs())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_without_long_polling_is_polled_with_backoff() {
        let (at_once, later) = (Duration::from_millis(3), Duration::from_secs(25));
        let mut pauses = vec![PAUSE];
        for _ in 0..20 {
            pauses.push(pause_after(*pauses.last().unwrap(), false, at_once));
        }
        assert_eq!((pauses[1], pauses[2], pauses[20]), (PAUSE * 2, PAUSE * 4, BACKOFF_MAX));
        assert_eq!(pause_after(BACKOFF_MAX, true, at_once), PAUSE);
        assert_eq!(pause_after(BACKOFF_MAX, false, later), PAUSE);
    }
}
