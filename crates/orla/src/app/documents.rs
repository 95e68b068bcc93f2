//! OpenAPI documents as a source of capabilities: files are read when a configuration is loaded, addresses are
//! fetched in the background.
//!
//! # How it works
//!
//! A document with an address is fetched by a task, which retries until it has the document or a reload replaces
//! it. Listings wait only for the first attempt. Each load reads every document again; the operations of the
//! previous version stay until there is a new one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use orla_marketplace::{ProviderProblem, Registration, Source, Surface};
use orla_providers::openapi::{self, ImportError, Imported, Location, OpenApiSettings};
use orla_providers::sign_in::{SignIns, Suggested};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::config::{self, Config};
use crate::findings::Findings;

/// The largest document that is read, in bytes.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// The pause after a failure; it doubles with each.
const RETRY_MIN: Duration = Duration::from_secs(5);
/// The longest pause.
const RETRY_MAX: Duration = Duration::from_secs(300);
/// How many warnings of a document are reported one by one.
const MAX_WARNINGS: usize = 20;

/// The documents of an instance.
pub(super) struct Documents {
    known: Mutex<Vec<Arc<Document>>>,
    sign_ins: SignIns,
    changes: Arc<watch::Sender<u64>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// One document. It is no longer fetched when a reload removes it.
struct Document {
    settings: OpenApiSettings,
    registrations: Arc<Mutex<Vec<Registration>>>,
    /// Whether the first attempt has ended, with or without operations.
    attempt: watch::Sender<Attempt>,
    /// Whether the newest attempt failed.
    is_refused: AtomicBool,
    /// The reason why the last attempt to fetch it failed.
    problem: Mutex<Option<String>>,
    /// The parts that were left out of a fetched document.
    warnings: Mutex<Vec<String>>,
    stop: CancellationToken,
    _guard: DropGuard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// The document has not been requested yet.
    None,
    Running,
    /// The first one is over.
    Over,
}

impl Documents {
    /// No documents yet; they complete these sign-ins.
    pub(super) fn new(sign_ins: SignIns) -> Self {
        Self {
            known: Mutex::default(),
            sign_ins,
            changes: Arc::new(watch::Sender::new(0)),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Applies the documents of a configuration: reads the files, and keeps the addresses until the server starts
    /// or lists.
    pub(super) fn load(&self, config: &Config, findings: &mut Findings) {
        let mut known = self.known.lock();
        let mut next = Vec::with_capacity(config.documents.len());
        for placed in &config.documents {
            let settings = &placed.value;
            let same = known.iter().find(|old| {
                old.settings.document == settings.document && old.settings.name == settings.name
            });
            let before = same.map(|old| old.registrations()).unwrap_or_default();
            let mut attempt = Attempt::None;
            let mut is_refused = false;
            let given = match &settings.document {
                Location::Url(_) => before,
                Location::File(path) => {
                    attempt = Attempt::Over;
                    let text = config::read_text(path, MAX_BYTES);
                    let imported = text.and_then(|text| {
                        openapi::import_text(&text, settings).map_err(|err| err.to_string())
                    });
                    match imported {
                        Ok(imported) => {
                            findings.warnings.extend(warnings(settings, &imported));
                            suggest(&self.sign_ins, settings, imported.sign_in);
                            imported.registrations
                        }
                        Err(problem) => {
                            is_refused = true;
                            let stays =
                                if before.is_empty() { "" } else { "; its previous operations stay" };
                            let text = format!("openapi: {problem}{stays}");
                            findings.problems.push(config.placed(placed.at, text));
                            before
                        }
                    }
                }
            };
            let document = Document::new(settings.clone(), given, attempt, &self.stop);
            document.is_refused.store(is_refused, Ordering::Relaxed);
            next.push(Arc::new(document));
        }
        // No change is counted, because the caller builds the next snapshot anyway.
        *known = next;
    }

    /// Returns how many documents yielded no capabilities at the last attempt.
    pub(super) fn refused(&self) -> usize {
        self.known.lock().iter().filter(|document| document.is_refused.load(Ordering::Relaxed)).count()
    }

    /// Fetches each document with an address once, and adds the problems with them. Each fetch is
    /// bounded by the document's timeout.
    pub(super) async fn check(&self, config: &Config, findings: &mut Findings) {
        self.learn().await;
        for (placed, document) in config.documents.iter().zip(&*self.known.lock()) {
            findings.warnings.append(&mut document.warnings.lock());
            if let Some(problem) = &*document.problem.lock() {
                findings.problems.push(config.placed(placed.at, format!("openapi: {problem}")));
            }
        }
    }

    /// Returns the names of the documents that have not been read, so that their capabilities are not
    /// known. A document that is named by its title is `None`.
    pub(super) fn unread(&self) -> Vec<Option<String>> {
        let known = self.known.lock();
        let is_unread = |document: &&Arc<Document>| {
            matches!(document.settings.document, Location::Url(_))
                && (*document.attempt.borrow() != Attempt::Over || document.problem.lock().is_some())
        };
        known.iter().filter(is_unread).map(|document| document.settings.name.clone()).collect()
    }

    /// Starts to fetch the documents that have not been fetched yet.
    fn fetch(&self) {
        for document in self.known.lock().iter() {
            let begins = document.attempt.send_if_modified(|attempt| {
                let is_first = *attempt == Attempt::None;
                if is_first {
                    *attempt = Attempt::Running;
                }
                is_first
            });
            if begins {
                let (sign_ins, changes) = (self.sign_ins.clone(), Arc::clone(&self.changes));
                let fetching = fetching(Arc::downgrade(document), sign_ins, changes);
                let stop = document.stop.clone();
                self.tasks.spawn(async move { stop.run_until_cancelled_owned(fetching).await });
            }
        }
    }
}

impl Document {
    fn new(
        settings: OpenApiSettings,
        given: Vec<Registration>,
        attempt: Attempt,
        stop: &CancellationToken,
    ) -> Self {
        let stop = stop.child_token();
        Self {
            settings,
            registrations: Arc::new(Mutex::new(given)),
            attempt: watch::Sender::new(attempt),
            is_refused: AtomicBool::new(false),
            problem: Mutex::default(),
            warnings: Mutex::default(),
            _guard: stop.clone().drop_guard(),
            stop,
        }
    }

    /// Returns whether it may turn out to have an operation of this name.
    fn may_serve(&self, name: &str) -> bool {
        let is_unknown =
            matches!(self.settings.document, Location::Url(_)) && self.registrations().is_empty();
        is_unknown && self.settings.name.as_ref().is_none_or(|own| name.starts_with(own.as_str()))
    }

    fn registrations(&self) -> Vec<Registration> {
        self.registrations.lock().clone()
    }

    /// Applies the result of an attempt. Returns whether it is final.
    fn take(&self, result: Result<Imported, ImportError>) -> bool {
        let problem = result.as_ref().err().map(ToString::to_string);
        self.is_refused.store(problem.is_some(), Ordering::Relaxed);
        *self.problem.lock() = problem;
        let is_there = match result {
            Ok(imported) => {
                let warnings = warnings(&self.settings, &imported);
                warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
                *self.warnings.lock() = warnings;
                tracing::info!(
                    document = imported.name,
                    capabilities = imported.registrations.len(),
                    "imported"
                );
                let mut given = self.registrations.lock();
                *given = imported.registrations;
                true
            }
            Err(error) => {
                tracing::error!(%error, "fetching an OpenAPI document failed; orla will retry");
                false
            }
        };
        self.attempt.send_replace(Attempt::Over);
        is_there
    }
}

/// Fetches a document until it succeeds, or the document is dropped.
async fn fetching(
    document: std::sync::Weak<Document>,
    sign_ins: SignIns,
    changes: Arc<watch::Sender<u64>>,
) {
    let mut pause = RETRY_MIN;
    loop {
        let Some(settings) = document.upgrade().map(|document| document.settings.clone()) else {
            return;
        };
        // Parsing a large document occupies a thread for some time, so a blocking thread does it.
        let here = Handle::current();
        let loading = tokio::task::spawn_blocking(move || here.block_on(openapi::load(&settings)));
        let Ok(result) = loading.await else { return };
        let Some(document) = document.upgrade() else { return };
        if let Ok(imported) = &result {
            suggest(&sign_ins, &document.settings, imported.sign_in.clone());
        }
        let is_there = document.take(result);
        drop(document);
        if is_there {
            changes.send_modify(|count| *count += 1);
            return;
        }
        tokio::time::sleep(pause).await;
        pause = RETRY_MAX.min(pause * 2);
    }
}

/// Completes the sign-in of a document, if it has one.
fn suggest(sign_ins: &SignIns, settings: &OpenApiSettings, suggested: Suggested) {
    if let Some(name) = settings.name.as_deref().filter(|_| settings.auth.is_some()) {
        sign_ins.suggest(&openapi::sign_in_key(name), suggested);
    }
}

fn warnings(settings: &OpenApiSettings, imported: &Imported) -> Vec<String> {
    let document = match &settings.document {
        Location::File(path) => path.display().to_string(),
        Location::Url(_) => imported.name.clone(),
    };
    let told = imported.warnings.iter().take(MAX_WARNINGS).map(|warning| format!("{document}{warning}"));
    let more = imported.warnings.len().saturating_sub(MAX_WARNINGS);
    told.chain((more > 0).then(|| format!("{document}: and {more} more warnings"))).collect()
}

#[async_trait]
impl Source for Documents {
    fn registrations(&self) -> Vec<Registration> {
        self.known.lock().iter().flat_map(|document| document.registrations()).collect()
    }

    fn surfaces(&self) -> Vec<Arc<dyn Surface>> {
        Vec::new()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn may_serve(&self, name: &str) -> bool {
        self.known.lock().iter().any(|document| document.may_serve(name))
    }

    fn problems(&self, name: Option<&str>) -> Vec<ProviderProblem> {
        let known = self.known.lock();
        let asked = known.iter().filter(|document| name.is_none_or(|name| document.may_serve(name)));
        let problem = |document: &Arc<Document>| {
            let problem = document.problem.lock().clone()?;
            // Without a name its operations may have any id.
            let prefix = if document.settings.name.is_none() { Some("") } else { None };
            let name = document.settings.name.as_deref().unwrap_or_default();
            Some(ProviderProblem::new(name, prefix, format!("openapi: {problem}")))
        };
        asked.filter_map(problem).collect()
    }

    fn start_eager(&self, _all: bool) {
        self.fetch();
    }

    async fn learn(&self) {
        self.fetch();
        let documents: Vec<_> =
            self.known.lock().iter().map(|document| document.attempt.subscribe()).collect();
        for mut attempt in documents {
            // An attempt that a reload has dropped is not awaited.
            let _ = attempt.wait_for(|attempt| *attempt == Attempt::Over).await;
        }
    }

    async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
