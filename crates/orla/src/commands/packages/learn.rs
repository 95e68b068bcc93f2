//! Asks a package for its tools, by running only this package as it would be served.

use std::path::PathBuf;

use orla_packages::lock::Entry;
use orla_packages::tools::Tool;
use orla_process::confinement::{Mode, Refusal};

use crate::app::App;
use crate::config::Config;
use crate::packages::Installed;
use crate::{Failure, call_result};

/// Returns the tools that a package reports.
///
/// # Errors
///
/// Returns an error if the package cannot be started, or reports nothing.
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
    let confined = confined(&app, config, entry);
    app.end_providers().await;
    let tools = installed.reported_tools(&name);
    if let Some(problem) = problem {
        return Err(Failure::failed(format!("{problem}{confined}")));
    }
    if !tools.is_empty() {
        return Ok(tools);
    }
    Err(Failure::failed(match failure {
        Some(failure) => format!("{name}: {failure}{confined}"),
        None if !problems.is_empty() => problems.join("; "),
        None => format!("{name} serves no tools"),
    }))
}

/// Returns the permissions with which a failed package ran, and the access that its sandbox probably
/// denied. The guess is based on standard error, because a program seldom reports a denied access.
/// Returns an empty text if the package did not run.
fn confined(app: &App, config: &Config, entry: &Entry) -> String {
    let process = app.process_for(&entry.name).ok().flatten();
    let (Some(process), false) = (process, config.sandbox.mode == Mode::Off) else {
        return String::new();
    };
    let permissions = match entry.permissions.join(", ") {
        none if none.is_empty() => "no permissions".to_owned(),
        granted => granted,
    };
    let refused = || {
        let (program, _) = process.launch().ok()?;
        program.sandbox()?.refusal(&process.stderr_tail().join("\n"), program.directory())
    };
    let grant = match refused() {
        Some(Refusal { tried, permission }) => {
            let refused = call_result::refused(&tried, permission.as_deref());
            format!("{refused}: `--allow PERMISSION` grants it")
        }
        None => "if it needs more, grant it by `--allow PERMISSION`".to_owned(),
    };
    format!("; it ran confined, with {permissions}: {grant}")
}
