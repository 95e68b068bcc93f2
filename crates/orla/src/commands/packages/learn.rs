//! Asks a package what its tools are, by running it as it would be served, and nothing else.

use std::path::PathBuf;

use orla_packages::lock::{Entry, PackageKind};
use orla_packages::tools::Tool;
use orla_process::confinement::{Mode, Refusal};

use crate::app::App;
use crate::config::Config;
use crate::packages::Installed;
use crate::{Failure, call_result};

/// What a package says its tools are.
///
/// # Errors
/// It cannot be started, or says nothing.
pub(crate) async fn tools_of(
    config: &Config,
    entry: &Entry,
    directory: PathBuf,
) -> Result<Vec<Tool>, Failure> {
    let name = entry.name.clone();
    let installed = Installed::candidate(entry.clone(), directory.clone());
    let alone = Config {
        file: config.file.clone(),
        // There are no tools in it.
        tools_dir: directory.join(".none"),
        prompts_dir: directory.join(".none"),
        sandbox: config.sandbox,
        pass_env: config.pass_env.clone(),
        timeout: config.timeout,
        ..Config::default()
    };
    let app = App::build_with(&alone, installed.clone())?;
    app.marketplace().prepare_listing().await;
    let problems: Vec<String> = app.findings().problems.clone();
    let market = app.marketplace();
    let problem = market.problems(Some(&name)).into_iter().next();
    // A capsule that could not be started.
    let entries = market.list();
    let failure = entries.iter().find(|entry| *entry.name == *name);
    let failure = failure.and_then(|entry| market.status(entry).last_failure);
    let refused = refused(&app, &name);
    app.end_providers().await;
    let tools = installed.said(&name);
    if let Some(problem) = problem {
        return Err(Failure::failed(format!("{problem}{}", confined(config, entry, refused))));
    }
    if !tools.is_empty() {
        return Ok(tools);
    }
    Err(Failure::failed(match failure {
        Some(failure) => format!("{name}: {failure}{}", confined(config, entry, refused)),
        None if !problems.is_empty() => problems.join("; "),
        None => format!("{name} serves no tools"),
    }))
}

/// What the sandbox of a package probably refused it, going by what it wrote to standard error, as a sentence.
fn refused(app: &App, name: &str) -> Option<String> {
    let process = app.process_for(name).ok()??;
    let (program, _) = process.launch().ok()?;
    let Refusal { tried, permission } =
        program.sandbox()?.refusal(&process.said().join("\n"), program.directory())?;
    Some(call_result::refused(&tried, permission.as_deref()))
}

/// With which permissions a package ran that failed: a program seldom says that something was refused.
fn confined(config: &Config, entry: &Entry, refused: Option<String>) -> String {
    if config.sandbox.mode == Mode::Off || entry.kind == PackageKind::Remote {
        return String::new();
    }
    let permissions = match entry.permissions.join(", ") {
        none if none.is_empty() => "no permissions".to_owned(),
        granted => granted,
    };
    let grant = match refused {
        Some(refused) => format!("{refused}: `--allow PERMISSION` grants it"),
        None => "if it needs more, grant it by `--allow PERMISSION`".to_owned(),
    };
    format!("; it ran confined, with {permissions}: {grant}")
}
