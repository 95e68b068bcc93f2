//! `orla check`: everything that would be served is looked at, and nothing is.

use crate::app::App;
use crate::config::Source;
use crate::{Failure, render};

/// Prints every problem with its place, and a verdict.
///
/// A problem is what was declared and cannot be in force: a bad configuration, a broken schema. A
/// warning is what works and may not be meant; it does not fail the check.
pub(crate) fn run(source: &Source) -> Result<(), Failure> {
    // What is wrong with the configuration is what was asked for: the check failed, it was not misused.
    let config = source.load().map_err(|problems| Failure::check(&problems))?;
    let _log = super::log(&config);
    let app = App::build(&config)?;
    let findings = app.findings();
    findings.warnings.iter().for_each(|warning| render::warning(warning));
    if !findings.problems.is_empty() {
        return Err(Failure::failed_with(findings.problems.clone()));
    }
    let file = config
        .file
        .as_ref()
        .map_or_else(|| "no configuration file".to_owned(), |file| file.display().to_string());
    let tools = config.expose.count(&app.marketplace().snapshot());
    let plural =
        |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut summary = format!("{}, {}", plural(tools, "tool"), plural(findings.prompts, "prompt"));
    // What these serve is known when they run.
    let servers = config.servers.len();
    if servers > 0 {
        summary = format!("{summary}, {}", plural(servers, "MCP server"));
    }
    let remotes = config.remotes.len();
    if remotes > 0 {
        summary = format!("{summary}, {}", plural(remotes, "remote instance"));
    }
    let plugins = config.plugins.len();
    if plugins > 0 {
        summary = format!("{summary}, {}", plural(plugins, "plugin"));
    }
    let agents = config.agents.len();
    if agents > 0 {
        summary = format!("{summary}, {}", plural(agents, "agent"));
    }
    render::line(&format!("ok: {file}, {summary}"));
    Ok(())
}
