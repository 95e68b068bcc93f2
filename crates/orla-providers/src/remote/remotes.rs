//! All configured instances and what they serve.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use orla_marketplace::{ProviderProblem, Registration, Source, Surface};
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::follow::{Context, Followed};
use super::listing;
use super::settings::RemoteSettings;
use crate::http::{Clients, HttpLimits};
use crate::sign_in::SignIns;

/// How long a listing waits for the answers of instances.
const LEARN: Duration = Duration::from_secs(5);

/// All instances of `remotes`, and their known catalogues.
///
/// # How it works
///
/// A catalogue is requested only when it is needed: for a list, or for an unknown name. From then on a
/// task for each instance follows its catalogue until the configuration drops it. The last known
/// catalogue stays while the instance cannot be reached.
pub struct Remotes {
    /// Identifies this instance among others.
    own: Arc<str>,
    clients: Arc<Clients>,
    sign_ins: SignIns,
    known: Mutex<Vec<Arc<Followed>>>,
    changes: Arc<watch::Sender<u64>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Remotes {
    /// Creates the remotes of the instance `own`, without entries yet.
    pub fn new(own: Arc<str>) -> Self {
        Self {
            own,
            clients: Arc::new(Clients::new(HttpLimits::default())),
            sign_ins: SignIns::default(),
            known: Mutex::default(),
            changes: Arc::new(watch::Sender::new(0)),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Sets the sign-ins whose tokens the requests use.
    #[must_use]
    pub fn with_sign_ins(self, sign_ins: SignIns) -> Self {
        Self { sign_ins, ..self }
    }

    /// Applies a loaded configuration. An entry with unchanged settings is carried over with its known
    /// catalogue. This function sends no request.
    pub fn load(&self, remotes: impl IntoIterator<Item = RemoteSettings>) {
        let mut known = self.known();
        let next = remotes.into_iter().map(|settings| {
            let same = known.iter().find(|old| old.settings == settings).map(Arc::clone);
            same.unwrap_or_else(|| Arc::new(Followed::new(settings, &self.stop)))
        });
        *known = next.collect();
    }

    /// Starts to follow the instances that are not followed yet.
    fn request_start<'a>(&self, remotes: impl IntoIterator<Item = &'a Arc<Followed>>) {
        let Ok(runtime) = Handle::try_current() else { return };
        for remote in remotes {
            if remote.begin() {
                let context = Context {
                    own: Arc::clone(&self.own),
                    clients: Arc::clone(&self.clients),
                    sign_ins: self.sign_ins.clone(),
                    changes: Arc::clone(&self.changes),
                };
                self.tasks.spawn_on(Arc::clone(remote).follow(context), &runtime);
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Vec<Arc<Followed>>> {
        self.known.lock()
    }
}

impl fmt::Debug for Remotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.known().iter().map(|remote| &remote.settings)).finish()
    }
}

/// Returns whether a capability of this id or name may be served.
fn may_serve(settings: &RemoteSettings, name: &str) -> bool {
    settings.names.may_serve(&settings.name, name)
}

#[async_trait]
impl Source for Remotes {
    fn registrations(&self) -> Vec<Registration> {
        let known = self.known();
        let all = known.iter().flat_map(|remote| {
            let listed = remote.listed();
            let one = |listed| listing::registration(&remote.settings, listed);
            listed.iter().filter_map(one).collect::<Vec<_>>()
        });
        all.collect()
    }

    fn surfaces(&self) -> Vec<Arc<dyn Surface>> {
        Vec::new()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn may_serve(&self, name: &str) -> bool {
        self.known().iter().any(|remote| may_serve(&remote.settings, name))
    }

    fn problems(&self, name: Option<&str>) -> Vec<ProviderProblem> {
        let known = self.known();
        let known =
            known.iter().filter(|remote| name.is_none_or(|name| may_serve(&remote.settings, name)));
        let problem = |remote: &Arc<Followed>| {
            let settings = &remote.settings;
            let text = format!("remote {}: {}", settings.name, remote.problem()?);
            Some(settings.names.problem(&settings.name, text))
        };
        known.filter_map(problem).collect()
    }

    fn start_eager(&self, all: bool) {
        let known = self.known();
        self.request_start(known.iter().filter(|remote| all || remote.settings.eager));
    }

    async fn learn(&self) {
        let known = self.known().clone();
        self.request_start(&known);
        let all = join_all(known.iter().map(|remote| remote.answered()));
        // An instance that answers later is reported as a change.
        let _ = tokio::time::timeout(LEARN, all).await;
    }

    async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
