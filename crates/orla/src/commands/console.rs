//! The data about the program that the console shows.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use orla_cluster::Cluster;
use orla_console::{AuditLog, Caller, Connection, Embedder, Explanation, Process, Setting, Verified};
use orla_marketplace::catalog::Entry;
use orla_process::supervisor::Managed;
use orla_server::NodeRow;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::policy::{self, Verdict};
use super::{audit, connect};
use crate::app::App;
use crate::config::{Config, Source, reason};
use crate::nodes::node_rows;

/// The program, as the console sees it.
pub(crate) struct Facts {
    source: Source,
    in_force: Mutex<InForce>,
    /// Wakes the server to read everything again.
    wanted: Notify,
    audit: OnceLock<PathBuf>,
    cluster: OnceLock<Arc<Cluster>>,
    processes: OnceLock<Box<Processes>>,
}

/// The configuration in force, and the findings about it.
#[derive(Default)]
struct InForce {
    config: Arc<Config>,
    findings: Vec<String>,
}

/// Finds the process of a provider by its kind and its name.
type Processes = dyn Fn(&str, &str) -> Option<Arc<dyn Managed>> + Send + Sync;

impl Facts {
    /// Of a program that was started like this. There are none before [`update`](Self::update).
    pub(crate) fn new(source: &Source) -> Arc<Self> {
        Arc::new(Self {
            source: source.clone(),
            in_force: Mutex::default(),
            wanted: Notify::new(),
            audit: OnceLock::new(),
            cluster: OnceLock::new(),
            processes: OnceLock::new(),
        })
    }

    /// Shows the audit log, the nodes and the processes of a program.
    pub(crate) fn show(&self, config: &Config, app: &App) {
        drop(self.processes.set(Box::new(app.processes())));
        let path = &config.governance.audit;
        if !path.as_os_str().is_empty() {
            drop(self.audit.set(path.clone()));
        }
        if let Some(cluster) = app.cluster() {
            drop(self.cluster.set(Arc::clone(cluster)));
        }
    }

    /// Takes over the configuration in force, and the findings about it.
    pub(crate) fn update(&self, config: &Config, app: &App) {
        let found = app.findings();
        let warnings = config.warnings.iter().map(ToString::to_string);
        let findings = found.problems.iter().chain(&found.warnings).cloned().chain(warnings);
        *self.in_force.lock() =
            InForce { config: Arc::new(config.clone()), findings: findings.collect() };
    }

    fn config(&self) -> Arc<Config> {
        Arc::clone(&self.in_force.lock().config)
    }

    /// Waits for a request to reload the configuration.
    pub(crate) async fn reload_wanted(&self) {
        self.wanted.notified().await;
    }
}

impl Embedder for Facts {
    fn connections(&self) -> Vec<Connection> {
        connect::entries(&self.source)
    }

    fn settings(&self) -> Vec<Setting> {
        self.config().settings()
    }

    fn findings(&self) -> Vec<String> {
        self.in_force.lock().findings.clone()
    }

    fn reload(&self) {
        self.wanted.notify_one();
    }

    fn audit(&self) -> Option<Arc<dyn AuditLog>> {
        self.audit.get().map(|path| Arc::new(LogFile(path.clone())) as Arc<dyn AuditLog>)
    }

    fn process(&self, kind: &str, name: &str) -> Option<Arc<dyn Process>> {
        let found = self.processes.get()?(kind, name)?;
        Some(Arc::new(OfProvider(found)))
    }

    fn explain(&self, caller: &Caller<'_>, capability: &Entry) -> Explanation {
        let config = self.config();
        let (id, needs) = (&capability.manifest.id, capability.needs());
        let verdict = Verdict::of(&config, caller.clone(), id, &capability.name, needs);
        let mut reasons = verdict.reasons();
        // Without a policy, names do not matter, and every caller may ask.
        if config.access.is_some() && policy::is_unknown(caller.name, &config) {
            reasons.push(policy::unknown(caller.name));
        }
        Explanation { is_allowed: verdict.is_allowed, reasons }
    }

    fn nodes(&self) -> Option<Vec<NodeRow>> {
        self.cluster.get().map(|cluster| node_rows(cluster))
    }
}

/// The process of a provider, as the console sees it.
struct OfProvider(Arc<dyn Managed>);

impl Process for OfProvider {
    fn restart(&self) {
        self.0.restart();
    }

    fn stderr_lines(&self) -> Vec<String> {
        self.0.stderr_tail()
    }
}

/// The file of an audit log.
struct LogFile(PathBuf);

impl AuditLog for LogFile {
    fn bytes(&self) -> Result<u64, String> {
        Ok(self.open()?.metadata().map_err(|err| failed(&err))?.len())
    }

    fn verify(&self) -> Result<Verified, String> {
        let (records, hash) = audit::walk_whole(self.open()?)?;
        Ok(Verified { records, hash })
    }

    fn newest(&self, most: u64) -> Result<Vec<String>, String> {
        let mut file = self.open()?;
        let from = file.metadata().map_err(|err| failed(&err))?.len().saturating_sub(most);
        file.seek(SeekFrom::Start(from)).map_err(|err| failed(&err))?;
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes).map_err(|err| failed(&err))?;
        let text = String::from_utf8_lossy(&bytes);
        // The first line is cut off unless it is the first of all; the last one may be in the making.
        let whole = if from > 0 { text.split_once('\n').map_or("", |(_, rest)| rest) } else { &text };
        let whole = whole.rsplit_once('\n').map_or("", |(lines, _)| lines);
        Ok(whole.lines().map(str::to_owned).collect())
    }
}

impl LogFile {
    fn open(&self) -> Result<File, String> {
        File::open(&self.0).map_err(|err| failed(&err))
    }
}

/// Returns the reason of an error, without the path of the file.
fn failed(error: &std::io::Error) -> String {
    format!("the audit log cannot be read: {}", reason(error))
}
