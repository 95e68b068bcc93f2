//! One module for each command.

#[cfg(feature = "agent")]
pub(crate) mod agent;
pub(crate) mod approvals;
pub(crate) mod attest;
pub(crate) mod audit;
pub(crate) mod call;
pub(crate) mod calls;
pub(crate) mod check;
pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod connect;
mod console;
pub(crate) mod describe;
pub(crate) mod doctor;
pub(crate) mod init;
pub(crate) mod list;
pub(crate) mod login;
pub(crate) mod new;
pub(crate) mod packages;
pub(crate) mod policy;
pub(crate) mod quotas;
mod records;
pub(crate) mod rtfs;
pub(crate) mod sandbox;
pub(crate) mod search;
pub(crate) mod secret;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod task;
pub(crate) mod test;
pub(crate) mod token;
pub(crate) mod verify;
mod watch;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::CommandFactory;
use orla_marketplace::Catalog;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::Failure;
use crate::app::App;
use crate::cli::Cli;
use crate::config::schema::schema as config_schema;
use crate::config::{Config, Source, reason};
use crate::logging::Logging;
use crate::render;

/// How long a command waits for providers before it prints a message.
const SILENCE: Duration = Duration::from_secs(2);

/// Reads the configuration of a command. Output from now on does not contain its secrets.
///
/// # Errors
///
/// Returns every problem of the configuration.
pub(crate) fn load(source: &Source) -> Result<Config, Failure> {
    let config = source.load().map_err(|problems| Failure::configuration(&problems))?;
    render::redact(&config.secrets);
    Ok(config)
}

/// Reads the part of the configuration that a command needs to ask a running server, which `--url` may
/// name.
///
/// # Errors
///
/// Returns every problem of that part. With a URL, a problem of the file is a warning.
fn load_for_client(url: Option<&str>, source: &Source) -> Result<Config, Failure> {
    let config =
        source.load_for_client(url.is_some()).map_err(|problems| Failure::configuration(&problems))?;
    render::redact(&config.secrets);
    config.warnings.iter().for_each(|warning| render::warning(&warning.to_string()));
    Ok(config)
}

/// Reads the configuration of a command that does its work here, or at the server of `--url`.
///
/// # Errors
///
/// Returns the errors of [`load`] and [`load_for_client`].
fn load_local_or_for_client(url: Option<&str>, source: &Source) -> Result<Config, Failure> {
    if url.is_some() { load_for_client(url, source) } else { load(source) }
}

/// Waits until it is known what every provider serves. A person at a terminal reads for which providers.
async fn wait_until_listed(app: &App) {
    let notes = async {
        let mut shown = Vec::new();
        while render::stderr_is_terminal() {
            tokio::time::sleep(SILENCE).await;
            let awaited = app.awaited();
            if awaited != shown && !awaited.is_empty() {
                render::note(&format!("Waiting for {}…", awaited.join(", ")));
                shown = awaited;
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = app.marketplace().prepare_listing() => {}
        () = notes => {}
    }
}

/// `orla schema`: the JSON Schema of the configuration.
pub(crate) fn schema() -> Result<(), Failure> {
    print_json(&config_schema())
}

/// `orla man DIR`.
pub(crate) fn manual(dir: &Path) -> Result<(), Failure> {
    let failed = |err: io::Error| Failure::failed(format!("{}: {}", dir.display(), reason(&err)));
    fs::create_dir_all(dir).map_err(failed)?;
    let root = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(root, dir).map_err(failed)
}

/// `orla completions SHELL`.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "orla", &mut script);
    render::out(&String::from_utf8_lossy(&script));
    Ok(())
}

/// Writes a file, and the directories above it, unless it exists. Returns whether it did.
fn write_new(path: &Path, text: &str, is_executable: bool) -> Result<bool, Failure> {
    let failed = |err: io::Error| {
        Failure::failed(format!("{} cannot be written: {}", path.display(), reason(&err)))
    };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    let mode = if is_executable { 0o755 } else { 0o644 };
    match fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path) {
        Ok(mut new) => new.write_all(text.as_bytes()).map(|()| true).map_err(failed),
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(err) => Err(failed(err)),
    }
}

/// Prints a command's answer for programs.
fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value);
    render::json_line(&text.map_err(|err| Failure::failed(err.to_string()))?);
    Ok(())
}

/// Returns the message for a name without a served capability.
fn not_served(catalog: &Catalog, name: &str) -> String {
    let near = catalog.similar(name).into_iter().next();
    let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    format!("{name} is not served{hint}")
}

/// A column of a table: its head and its cells.
type Column = (&'static str, Vec<String>);

/// Seconds with one decimal.
fn uptime(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

fn table_of(columns: &[Column], width: usize) -> String {
    let heads: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
    let count = columns.first().map_or(0, |(_, cells)| cells.len());
    let row = |at: usize| columns.iter().map(|(_, cells)| cells[at].clone()).collect();
    let rows: Vec<Vec<String>> = (0..count).map(row).collect();
    render::table(&heads, &rows, width)
}

/// Returns the text that a table shows for a JSON value: a text without its quotes, and nothing for
/// `null`.
fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Prints the rows that a server has answered with: its JSON array as it came, a table, or `none` without any.
fn print_rows(
    path: &str,
    answer: &str,
    as_json: bool,
    none: &str,
    table: fn(&[Value]) -> String,
) -> Result<(), Failure> {
    if as_json {
        render::json_line(answer.trim_end());
        return Ok(());
    }
    let rows: Vec<Value> = serde_json::from_str(answer)
        .map_err(|_| Failure::failed(format!("the server's {path} is not a JSON array: is it orla?")))?;
    match rows.is_empty() {
        true => render::note(none),
        false => render::out(&table(&rows)),
    }
    Ok(())
}

/// Returns the log of a command that does not serve. It logs only if a level is set on the command line
/// or in the environment, because standard error belongs to tools and errors.
fn log(config: &Config) -> Option<Logging> {
    config.is_asked_for("log_level").then(|| {
        let logging = Logging::start(config.log_level, config.log_format);
        logging.redact(Arc::clone(&config.secrets));
        logging
    })
}

/// Returns a runtime for a command that waits for one thing.
fn small_runtime() -> Result<Runtime, Failure> {
    built(Builder::new_current_thread().enable_all())
}

/// Bytes of a worker's stack: enough for the allowed 64 nested calls, also in a debug build. Unused stack takes no
/// memory.
const WORKER_STACK: usize = 16 << 20;

/// Returns a runtime for a server: a worker for each core, within reason.
fn server_runtime() -> Result<Runtime, Failure> {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    built(
        Builder::new_multi_thread()
            .worker_threads(cores.clamp(2, 16))
            .thread_name("orla-worker")
            .thread_stack_size(WORKER_STACK)
            .enable_all(),
    )
}

fn built(builder: &mut Builder) -> Result<Runtime, Failure> {
    builder.build().map_err(|err| Failure::failed(format!("no runtime: {}", reason(&err))))
}
