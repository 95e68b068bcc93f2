//! `orla serve`: the life of a server.

use std::collections::HashSet;
use std::future::{pending, ready};
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use orla_cluster::{Buffering, ClusterError};
use orla_console::{Console, Embedder};
use orla_history::History;
use orla_marketplace::Approvers;
use orla_process::confinement::use_control_groups;
use orla_process::watch::{Target, Watcher};
use orla_providers::capsule::packages;
use orla_server::{Server, ServerOptions, Tls};
use orla_tasks::{Schedules, Tasks};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::console::Facts;
use crate::app::{App, MIN_SNAPSHOT_INTERVAL, user_packages};
use crate::cli::{Cli, Serve};
use crate::config::{Config, DEFAULT_FILES, Source, Transport};
use crate::governance::attestations_file;
use crate::governance::audit::{Audit, HELD};
use crate::history::Followed;
use crate::logging::Logging;
use crate::nodes::{Answers, ClusterNodes, sharing};
use crate::packages::store_of;
use crate::quota_days::QuotaDays;
use crate::reload::Reloader;
use crate::signals::{Signal, Signals, Stop};
use crate::state::{self, ServerState};
use crate::telemetry::{Prepared, Sending};
use crate::{Failure, fatal, render};

/// How long files must be unchanged before their change causes a reload.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// How long writing the end of the audit log may take.
const AUDIT_END: Duration = Duration::from_secs(10);

/// Serves until told to stop.
pub(crate) fn run(source: Source) -> Result<(), Failure> {
    let runtime = super::server_runtime()?;
    let result = runtime.block_on(serve(source));
    runtime.shutdown_background();
    result
}

/// `orla dev`: serves one package, or a directory of tools, while it is written.
pub(crate) fn dev(dir: Option<PathBuf>, before: Serve, after: Serve) -> Result<(), Failure> {
    let dir = match dir {
        Some(dir) => dir,
        None => {
            let source = Cli::serve_source(before.clone(), Some(after.clone()));
            let config = super::load(&source)?;
            choose(&[Path::new("."), &config.tools_dir])?
        }
    };
    if packages::is_package(&dir) {
        // A package that cannot be served is worth no server.
        packages::load(&dir).map_err(|findings| {
            Failure::failed_with(findings.iter().map(ToString::to_string).collect())
        })?;
    } else if !dir.is_dir() {
        let what = if dir.exists() { "not a directory" } else { "no such directory" };
        return Err(Failure::failed(format!("{}: {what}", dir.display())));
    }
    run(Cli::dev_source(before, dir, after))
}

/// Returns the package that `orla dev` serves without a directory: the current directory if it is one;
/// or else the only one in these directories; or else the one that the person at the terminal chooses.
fn choose(directories: &[&Path]) -> Result<PathBuf, Failure> {
    let here = PathBuf::from(".");
    if packages::is_package(&here) {
        return Ok(here);
    }
    let mut found: Vec<PathBuf> = directories.iter().flat_map(|dir| packages_in(dir)).collect();
    found.sort();
    found.dedup();
    match &found[..] {
        [] => return Ok(here),
        [only] => {
            render::note(&format!("serving {}, the only package here", only.display()));
            return Ok(only.clone());
        }
        _ => {}
    }
    let shown = |(at, path): (usize, &PathBuf)| format!("\n  {}  {}", at + 1, path.display());
    let list: String = found.iter().enumerate().map(shown).collect();
    if !std::io::stdin().is_terminal() || !render::stderr_is_terminal() {
        return Err(Failure::usage(format!(
            "several packages: name one of them, `orla dev DIR`:{list}"
        )));
    }
    render::note(&format!("Packages:{list}"));
    render::question(&format!("Which one? [1-{}] ", found.len()));
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    let chosen = read.ok().and_then(|_| line.trim().parse::<usize>().ok()?.checked_sub(1));
    let chosen = chosen.and_then(|at| found.get(at).cloned());
    chosen.ok_or_else(|| Failure::usage(format!("{:?} is not one of the numbers", line.trim())))
}

/// Returns the packages directly in a directory.
fn packages_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let paths = entries.map(|entry| entry.path()).map(|path| match path.strip_prefix(".") {
        Ok(plain) => plain.to_owned(),
        Err(_) => path,
    });
    paths.filter(|path| packages::is_package(path)).collect()
}

/// Starts a server, serves until it ends, and ends it in order.
async fn serve(source: Source) -> Result<(), Failure> {
    // First of all: an early signal to reload must not end the process.
    let mut signals = Signals::install().map_err(|err| Failure::failed(err.to_string()))?;
    use_control_groups();
    let mut server = Running::start(source).await?;
    let end = server.run(&mut signals).await;
    server.end(end, &mut signals).await
}

/// A server that listens.
struct Running {
    reloader: Reloader,
    files: Files,
    /// Whether files that were read before they were watched must be read again.
    is_reload_due: bool,
    facts: Arc<Facts>,
    schedules: Option<Schedules>,
    tasks: Option<Tasks>,
    server: Server,
    days: QuotaDays,
    audit: Option<Audit>,
    /// The history; `None` if no calls are kept.
    history: Option<History>,
    /// Follows the calls, whether they are kept or not.
    calls: Option<History>,
    sending: Sending,
    app: App,
    /// Changes of what MCP servers list: a rule may turn out to match nothing.
    server_changes: watch::Receiver<u64>,
    /// Ends the transport.
    shutdown: CancellationToken,
    /// Ends after the transport, and after all that calls need.
    serving: JoinHandle<()>,
}

/// The reason why a server ends.
enum End {
    /// Standard input has ended, or the server broke down; a socket never ends by itself.
    Serving(Result<(), JoinError>),
    Signal(Stop),
}

impl Running {
    /// Starts a server. It does not listen before the whole configuration is known to be valid, and
    /// until then errors are plain text. After `listening`, all messages are in the log.
    async fn start(source: Source) -> Result<Self, Failure> {
        let mut config = super::load(&source)?;
        crate::itself::leave_out(&mut config);
        check_tls(&config)?;
        // Watched before it is read, so that no change is missed in between.
        let mut files = Files::default();
        let watched = files.follow(&config, Vec::new());
        let app = App::build(&config)?;
        // Where packages have secrets from is known only now, so they are read again.
        let is_reload_due = matches!(files.follow(&config, app.secret_files()), Ok(true));
        // Before the first call.
        let (followed, telemetry) = follow_calls(&config, &app)?;
        let Followed { history, calls, unkept } = followed;

        let facts = Facts::new(&source);
        facts.update(&config, &app);
        facts.show(&config, &app);
        let pages = Arc::clone(&facts) as Arc<dyn Embedder>;
        let console = Console::new(Arc::clone(app.marketplace()), history.clone(), pages);
        let audit = open_audit(&config)?;
        let days = QuotaDays::open(&config, app.marketplace().quotas());
        let server = server_of(&config, &app, &console);
        let state = state::of_server(&config).await?;
        let tasks = open_tasks(&config, &app, &state)?;
        let alone = keep_state(&server, &app, &state).await?;
        if let Some(history) = &history {
            server.serve_history(history.clone());
        }
        let schedules = tasks.clone().map(Schedules::new);
        if let Some(tasks) = &tasks {
            tasks.hold();
            server.serve_tasks(tasks.clone());
            console.show_tasks(tasks.clone());
        }
        if let Some(schedules) = &schedules {
            schedules.configure(config.owned_schedules());
            server.show_schedules(schedules.clone());
        }

        let shutdown = CancellationToken::new();
        let (address, transport) = transport(&server, &config, &shutdown).await?;
        let logging = Logging::start(config.log_level, config.log_format);
        logging.redact(app.marketplace().redaction());
        if let Some(audit) = &audit {
            audit.observe(app.marketplace());
            audit.observe_server(&server);
            audit.started(app.marketplace());
        }
        let pages = console_address(&config, &address);
        tracing::info!(address, console = pages, "listening");
        // A client that can connect finds this line in the log.
        logging.flush();
        let without_tasks = match &state {
            ServerState::InUse(why) if tasks.is_none() => Some(why.clone()),
            ServerState::InUse(_) | ServerState::Usable(_) => None,
        };
        Remarks { unkept, alone, unwatched: watched.err(), without_tasks }.log(&app);

        if let Some(tasks) = &tasks {
            crate::a2a::resume(&server, &config, &state).await?;
            tasks.resume().await.map_err(|err| Failure::usage(err.to_string()))?;
        }
        if let Some(schedules) = &schedules {
            schedules.serve();
        }
        let tracker = TaskTracker::new();
        let tasks_end = tasks.clone();
        let serving = until_closed(transport, &app, shutdown.clone(), console, tasks_end, state);
        let serving = tracker.spawn(serving);
        let sending = telemetry.start(&server);
        tracker.spawn(days.follow());
        for following in app.follow_providers() {
            tracker.spawn(following);
        }
        tracker.spawn(crate::memory::return_after_bursts(Arc::clone(app.marketplace().memory())));
        app.start_eager(&config);
        let mut server_changes = app.server_changes();
        // Servers may have listed their tools already.
        server_changes.mark_changed();
        let reloader = Reloader::new(source, config, logging);
        Ok(Self {
            reloader,
            files,
            is_reload_due,
            facts,
            schedules,
            tasks,
            server,
            days,
            audit,
            history,
            calls,
            sending,
            server_changes,
            app,
            shutdown,
            serving,
        })
    }

    /// Serves until the server is to end, and reloads whenever that is wanted.
    async fn run(&mut self, signals: &mut Signals) -> End {
        loop {
            tokio::select! {
                biased;
                ended = &mut self.serving => return End::Serving(ended),
                signal = signals.next() => if let Signal::Stop(stop) = signal { return End::Signal(stop) },
                () = self.files.changed() => {}
                () = self.facts.reload_wanted() => {}
                () = ready(()), if std::mem::take(&mut self.is_reload_due) => {}
                Ok(()) = spaced_change(&mut self.server_changes) => {
                    self.app.check_listed(self.reloader.config()).log();
                    continue;
                }
            }
            self.reload();
        }
    }

    /// Reads everything again, until no file that matters has changed before it was watched.
    fn reload(&mut self) {
        while self.reloader.reload(&mut self.app) {
            self.apply();
            match self.files.follow(self.reloader.config(), self.app.secret_files()) {
                // The set of files has changed: changes from before they were watched are read now.
                Ok(true) => {}
                Ok(false) => return,
                Err(err) => return log_unwatched(&err),
            }
        }
    }

    /// Puts a new configuration in force everywhere.
    fn apply(&self) {
        let config = self.reloader.config();
        self.server.reconfigure(options(config));
        self.facts.update(config, &self.app);
        if let Some(tasks) = &self.tasks {
            tasks.configure(config.task_options.clone());
        }
        if let Some(schedules) = &self.schedules {
            schedules.configure(config.owned_schedules());
        }
        match &self.history {
            Some(history) => {
                history.configure(crate::history::options(config, history.is_in_file()));
            }
            None if config.history.enabled => {
                tracing::warn!(key = "history", "a change of this key needs a restart");
            }
            None => {}
        }
        if let Some(audit) = &self.audit {
            audit.reloaded(self.app.marketplace());
        }
        self.app.start_eager(config);
    }

    /// Ends all running activities, and then writes the data that must outlast the server.
    async fn end(mut self, end: End, signals: &mut Signals) -> Result<(), Failure> {
        let (finished, reason) = match end {
            End::Serving(ended) => (finish(&ended), "end of input"),
            End::Signal(stop) => {
                tracing::info!(signal = stop.name(), "stopping");
                self.shutdown.cancel();
                let finished = tokio::select! {
                    biased;
                    ended = &mut self.serving => finish(&ended),
                    again = signals.stop() => {
                        // The reaper ends the remaining processes as soon as this process is gone.
                        tracing::warn!(signal = again.name(), "stopped at once");
                        Err(Failure::failed_silently())
                    }
                };
                (finished, stop.name())
            }
        };
        self.days.end();
        end_calls(self.calls, self.sending).await;
        end_audit(self.audit, reason).await;
        finished
    }
}

/// Waits for a change, and at least for the time between two snapshots: a check makes a snapshot of what has
/// changed, and frequent changes must not cause as many.
async fn spaced_change(changes: &mut watch::Receiver<u64>) -> Result<(), watch::error::RecvError> {
    tokio::time::sleep(MIN_SNAPSHOT_INTERVAL).await;
    changes.changed().await
}

/// The findings before the log was opened.
struct Remarks {
    /// The reason why the history is kept only in memory.
    unkept: Option<orla_history::OpenError>,
    /// The reason why the cluster cannot be joined yet.
    alone: Option<ClusterError>,
    /// The reason why files cannot be watched.
    unwatched: Option<orla_process::watch::Error>,
    /// The reason why there are no tasks.
    without_tasks: Option<String>,
}

impl Remarks {
    fn log(self, app: &App) {
        app.findings().log();
        if let Some(error) = self.unkept {
            tracing::error!(%error, "the history is kept in memory alone");
        }
        if let Some(error) = self.alone {
            tracing::warn!(%error, "the cluster cannot be joined yet: only what is on this node is served");
        }
        if let Some(error) = self.unwatched {
            log_unwatched(&error);
        }
        if let Some(why) = self.without_tasks {
            tracing::warn!("{why}: this server has no tasks");
        }
    }
}

/// Checks that the certificate and its key can be used, if the server is to use them.
fn check_tls(config: &Config) -> Result<(), Failure> {
    if let Some(tls) = config.tls().filter(|_| config.transport == Transport::Http) {
        Tls::load(tls)
            .map_err(|err| Failure::usage(config.problem("auth", err.to_string()).to_string()))?;
    }
    Ok(())
}

/// Follows the calls for the history, and prepares the parts that are sent.
fn follow_calls(config: &Config, app: &App) -> Result<(Followed, Prepared), Failure> {
    let telemetry = config.telemetry(&|name| std::env::var_os(name)).map_err(Failure::usage)?;
    let followed = crate::history::of_server(app.marketplace(), config, telemetry.traces.is_some())?;
    let telemetry = Prepared::new(telemetry, followed.calls.as_ref())?;
    Ok((followed, telemetry))
}

/// Returns a server that does not listen yet.
fn server_of(config: &Config, app: &App, console: &Console) -> Server {
    let server = Server::new(Arc::clone(app.marketplace()), options(config));
    server.serve_pages(Arc::new(console.clone()));
    if config.transport == Transport::Http {
        // On a pipe, only the client itself can be asked.
        app.marketplace().approvals().set_approvers(Approvers::Callers);
    }
    crate::a2a::prepare(&server, config);
    crate::authorization_servers::prepare(&server);
    server
}

/// Opens the tasks of the cluster or of this server. There are none if another process uses the state.
///
/// # Errors
///
/// Returns an error if the state is to keep tasks for the cluster, and another process uses it.
fn open_tasks(config: &Config, app: &App, state: &ServerState) -> Result<Option<Tasks>, Failure> {
    let (market, options) = (Arc::clone(app.marketplace()), config.task_options.clone());
    match (app.cluster(), state) {
        (Some(cluster), state) => {
            let buffers = config.cluster.as_ref().is_some_and(|it| it.buffer == Buffering::Local);
            let own = match state {
                ServerState::Usable(store) => Some(Arc::clone(store)),
                ServerState::InUse(why) if buffers => {
                    return Err(Failure::usage(format!("cluster.buffer: local: {why}")));
                }
                ServerState::InUse(_) => None,
            };
            let sharing = sharing(cluster, own, buffers);
            Ok(Some(Tasks::open_shared(cluster.store(), market, options, sharing)))
        }
        (None, ServerState::Usable(store)) => Ok(Some(Tasks::open(Arc::clone(store), market, options))),
        (None, ServerState::InUse(_)) => Ok(None),
    }
}

/// Joins the cluster, if there is one, and has the server keep its answers there, or else in its own state. Returns why
/// the cluster cannot be joined yet.
async fn keep_state(
    server: &Server,
    app: &App,
    state: &ServerState,
) -> Result<Option<ClusterError>, Failure> {
    let Some(cluster) = app.cluster() else {
        if let ServerState::Usable(store) = state {
            server.keep_answers(Arc::clone(store));
        }
        return Ok(None);
    };
    cluster.answer_with(Arc::new(Answers(server.clone())));
    let alone = cluster.start().await.map_err(|err| Failure::usage(format!("cluster: {err}")))?;
    server.share_sessions(cluster.store());
    server.keep_answers(cluster.store());
    server.show_nodes(ClusterNodes { cluster: Arc::clone(cluster), served: Arc::clone(app.served()) });
    Ok(alone)
}

/// Serves until the transport ends, and then ends all parts, each after the parts that need it.
fn until_closed(
    mut transport: Serving,
    app: &App,
    shutdown: CancellationToken,
    console: Console,
    tasks: Option<Tasks>,
    state: ServerState,
) -> impl Future<Output = ()> + Send + use<> {
    let (cluster, providers_end) = (app.cluster().cloned(), app.end_providers());
    let drain = ServerOptions::default().drain;
    async move {
        let leave = async {
            if let Some(cluster) = &cluster {
                cluster.leave(drain).await;
            }
        };
        tokio::select! {
            () = &mut transport => leave.await,
            // Other nodes send no calls any more while this one ends.
            () = shutdown.cancelled() => {
                tokio::join!(transport, leave);
            }
        }
        console.close().await;
        // On stdio, calls of tasks outlive the client. They end before the providers that they need.
        if let Some(tasks) = tasks {
            tasks.close(drain).await;
        }
        providers_end.await;
        if let ServerState::Usable(store) = state {
            store.close().await;
        }
    }
}

/// Opens the audit log, if one is configured.
pub(super) fn open_audit(config: &Config) -> Result<Option<Audit>, Failure> {
    let own = &config.governance;
    if own.audit.as_os_str().is_empty() {
        return Ok(None);
    }
    Audit::open(own).map(Some).map_err(|why| {
        Failure::failed(match why.ends_with(HELD) {
            true => format!(
                "{why}; every server needs an audit log of its own. `orla call` and `orla connect` use the one that runs with `--url http://HOST:PORT`"
            ),
            false => why,
        })
    })
}

/// Writes the history to its end, which waits for the disk, and sends the last traces and metrics.
async fn end_calls(calls: Option<History>, sending: Sending) {
    if let Some(calls) = calls
        && tokio::time::timeout(AUDIT_END, calls.close()).await.is_err()
    {
        tracing::error!("the end of the history was not written in time");
    }
    sending.end().await;
}

/// Writes the audit log to its end, which waits for the disk.
async fn end_audit(audit: Option<Audit>, reason: &'static str) {
    let Some(audit) = audit else { return };
    let written = tokio::task::spawn_blocking(move || audit.stopped(reason));
    if tokio::time::timeout(AUDIT_END, written).await.is_err() {
        tracing::error!("the end of the audit log was not written in time");
    }
}

fn finish(ended: &Result<(), JoinError>) -> Result<(), Failure> {
    match ended {
        Ok(()) => tracing::info!("stopped"),
        Err(err) => fatal!(error = %err, "the server broke down"),
    }
    if ended.is_ok() { Ok(()) } else { Err(Failure::failed_silently()) }
}

type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Binds the transport, and returns its name for the log and its server.
async fn transport(
    server: &Server,
    config: &Config,
    shutdown: &CancellationToken,
) -> Result<(String, Serving), Failure> {
    if config.transport == Transport::Stdio {
        let (server, shutdown) = (server.clone(), shutdown.clone());
        let serving =
            async move { server.serve_stdio(tokio::io::stdin(), tokio::io::stdout(), shutdown).await };
        return Ok(("stdio".to_owned(), Box::pin(serving)));
    }
    let host = config.host.trim_start_matches('[').trim_end_matches(']');
    let bound = server.bind(host, config.port).await.map_err(|err| Failure::failed(err.to_string()))?;
    let address = bound.local_addr().to_string();
    Ok((address, Box::pin(bound.serve(shutdown.clone()))))
}

/// Where the console is, if it is served.
fn console_address(config: &Config, address: &str) -> Option<String> {
    let is_served = config.console && config.transport == Transport::Http;
    let scheme = if config.tls().is_some() { "https" } else { "http" };
    is_served.then(|| format!("{scheme}://{address}/console"))
}

fn options(config: &Config) -> ServerOptions {
    let mut options = ServerOptions::default();
    options.allowed_hosts.clone_from(&config.allowed_hosts);
    options.allowed_origins.clone_from(&config.allowed_origins);
    options.auth = config.auth();
    options.auth_limits = config.auth_limits;
    options.tls = config.tls().cloned();
    options.max_body_bytes = config.max_body_bytes;
    options.session_idle = config.session_idle;
    options.agent.clone_from(&config.a2a.options);
    options.pages = config.console;
    options
}

/// The files whose change causes a reload, if that is wanted.
#[derive(Default)]
pub(super) struct Files {
    watcher: Option<Watcher>,
    targets: Vec<Target>,
}

impl Files {
    /// Watches the files of a configuration and the secret files of packages, or nothing. Returns
    /// whether the set of files has changed.
    pub(super) fn follow(
        &mut self,
        config: &Config,
        secrets: Vec<PathBuf>,
    ) -> orla_process::watch::Result<bool> {
        let targets = if config.watch { targets(config, secrets) } else { Vec::new() };
        if targets == self.targets {
            return Ok(false);
        }
        self.targets.clone_from(&targets);
        self.watcher = None;
        if !targets.is_empty() {
            self.watcher = Some(Watcher::new(targets, DEBOUNCE)?);
        }
        Ok(self.watcher.is_some())
    }

    /// Waits for a change. Waits forever if nothing is watched.
    pub(super) async fn changed(&mut self) {
        let Some(watcher) = &mut self.watcher else { return pending().await };
        loop {
            let change = watcher.changed().await;
            // A log beside the tools grows with every reload, and would cause the next one.
            if change.and_more || !change.paths.iter().all(|path| is_own_log(path)) {
                tracing::debug!(paths = ?change.paths, "files changed");
                return;
            }
        }
    }
}

/// Returns whether this is the file that standard error goes to.
fn is_own_log(path: &Path) -> bool {
    let id = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    id(path).is_some_and(|file| id(Path::new("/dev/stderr")) == Some(file))
}

fn log_unwatched(error: &orla_process::watch::Error) {
    tracing::error!(%error, "files cannot be watched: SIGHUP still reloads");
}

fn targets(config: &Config, secrets: Vec<PathBuf>) -> Vec<Target> {
    let mut paths = vec![config.tools_dir.clone(), config.prompts_dir.clone()];
    match &config.file {
        Some(file) => paths.push(file.clone()),
        // One of them may come.
        None => paths.extend(DEFAULT_FILES.iter().map(Into::into)),
    }
    paths.push(attestations_file(config));
    paths.push(store_of(config).lock_file());
    paths.extend(config.named_files.iter().cloned());
    paths.extend(packages::watched(&config.tools_dir, user_packages(config).as_deref()));
    paths.extend(secrets);
    let mut seen = HashSet::new();
    paths.retain(|path| seen.insert(path.clone()));
    paths.into_iter().map(|path| Target { path, recursive: false }).collect()
}
