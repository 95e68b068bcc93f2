//! `orla check`: checks all capabilities of the configuration without serving them, or shows the
//! problems of a running server. Starts only plugins and the MCP servers of individually declared
//! capabilities, because only these report their capabilities. Reads OpenAPI documents, including those
//! with an address.

mod callers;

use std::sync::Arc;

use orla_marketplace::{CapabilityMarketplace, Entry, TITLE};
use orla_providers::stream;
use orla_providers::tool::ToolProvider;
use orla_server::Tls;
use serde_json::Value;

use super::client::Server;
use super::status;
use crate::app::App;
use crate::config::{Config, Source};
use crate::findings::Findings;
use crate::governance::audit::{check_path, read_key};
use crate::text::{invisible, kind_of};
use crate::{Failure, http_client, render};

/// Prints every problem with its place, and a verdict.
///
/// A problem is a declaration that cannot take effect: a bad configuration, a broken schema. A warning is
/// something that works and may not be intended; it does not fail the check.
pub(crate) fn run(url: Option<&str>, source: &Source) -> Result<(), Failure> {
    if let Some(url) = url {
        let config = super::load_for_client(Some(url), source)?;
        let _log = super::log(&config);
        let server = Server::at(Some(url), &config)?;
        let status = super::small_runtime()?.block_on(status::get_listed(&server))?;
        return check_remote(url, &status);
    }
    // An error in the configuration is a result of the check, not a misuse of the command.
    let config = source.load().map_err(|problems| Failure::check(&problems))?;
    let _log = super::log(&config);
    let app = super::small_runtime()?.block_on(async {
        let mut app = App::build(&config)?;
        app.check_documents(&config).await;
        app.check_declared(&config).await;
        app.check_plugins(&config).await;
        app.check_programs();
        app.end_providers().await;
        Ok::<_, Failure>(app)
    })?;
    let mut findings = app.findings().clone();
    findings.problems.extend(read_key(&config.governance).err());
    let audit = check_path(&config.governance).map(|why| config.problem("audit", why).to_string());
    findings.problems.extend(audit);
    if let Some(tls) = config.tls() {
        match Tls::load(tls) {
            Ok(tls) => findings.warnings.extend(tls.expiry_warning()),
            Err(err) => findings.problems.push(config.problem("auth", err.to_string()).to_string()),
        }
    }
    if let Err(failure) = http_client::trusting(&config.ca) {
        let placed = |line: String| config.problem("ca", line).to_string();
        findings.problems.extend(failure.into_lines().into_iter().map(placed));
    }
    findings.problems.extend(config.cluster_problems());
    let unstartable = unstartable(&config, app.marketplace());
    findings.problems.extend(unstartable);
    callers::check(&config, &app, &mut findings);
    let unavailable = unavailable(&findings, app.marketplace());
    findings.problems.extend(unavailable);
    findings.warnings.extend(invisible_in(app.marketplace()));
    findings.warnings.extend(app.run_by_the_shell());
    findings.warnings.extend(app.withheld());
    findings.warnings.extend(app.prestarted_without_input());
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
    // The capabilities of these providers are known only while they run.
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
    let not_asked: Vec<&str> = [
        (servers > 0, "MCP servers"),
        (remotes > 0, "remote instances"),
        (agents > 0, "agents"),
        (!app.capsules().is_empty(), "capsules"),
    ]
    .iter()
    .filter_map(|(is_there, what)| is_there.then_some(*what))
    .collect();
    if !not_asked.is_empty() {
        summary = format!("{summary} (not asked: {}; orla list asks them)", not_asked.join(", "));
    }
    render::line(&format!("ok: {file}, {summary}"));
    Ok(())
}

/// Returns the streams of the configuration whose programs cannot be started, a sentence with its place
/// for each.
fn unstartable(config: &Config, market: &CapabilityMarketplace) -> Vec<String> {
    let snapshot = market.snapshot();
    let problem = |entry: &Arc<Entry>| {
        let id = &entry.manifest.id;
        let why = stream::check_program(id, entry.manifest.provider.settings().ok()?).err()?;
        let text = format!("{id}: {why}");
        let declared = config.capabilities.iter().find(|one| one.value.manifest.id == *id);
        Some(declared.map_or_else(|| text.clone(), |one| config.placed(one.at, text.clone())))
    };
    snapshot.entries().iter().filter_map(problem).collect()
}

/// Returns a sentence for each capability that is unavailable for a reason that no finding contains.
fn unavailable(findings: &Findings, market: &CapabilityMarketplace) -> Vec<String> {
    let snapshot = market.snapshot();
    let is_given = |reason: &str| {
        findings.problems.iter().chain(&findings.warnings).any(|finding| finding.contains(reason))
    };
    let entries = snapshot.entries().iter();
    let reasons = entries.filter_map(|entry| Some((entry, entry.unavailable()?)));
    reasons
        .filter(|(_, reason)| !is_given(reason))
        .map(|(entry, reason)| match entry.manifest.provider.settings::<ToolProvider>() {
            Ok(tool) => format!("{}: {reason}", tool.path().display()),
            Err(_) => format!("{}: {reason}", entry.manifest.id),
        })
        .collect()
}

/// Names and descriptions with invisible characters, which may hide instructions to a model.
fn invisible_in(market: &CapabilityMarketplace) -> Vec<String> {
    let mut warnings = Vec::new();
    for entry in market.snapshot().entries() {
        let manifest = &entry.manifest;
        let title = manifest.metadata.get(TITLE).map_or("", String::as_str);
        let texts = [
            ("id", &*manifest.id),
            ("name", &*manifest.name),
            ("title", title),
            ("description", &*manifest.description),
        ];
        for (what, text) in texts {
            let found: Vec<String> = invisible(text)
                .iter()
                .map(|c| format!("U+{:04X} ({})", u32::from(*c), kind_of(*c)))
                .collect();
            if !found.is_empty() {
                warnings.push(format!("{}: its {what} has {}", entry.name, found.join(", ")));
            }
        }
    }
    warnings
}

/// Checks by a server's status that everything it serves is available.
fn check_remote(url: &str, status: &Value) -> Result<(), Failure> {
    let list = |key: &str| status[key].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let capabilities = list("capabilities");
    let is_out = |row: &&Value| matches!(row["state"].as_str(), Some("unavailable" | "STOPPED"));
    let why = |row: &Value| match row["last_failure"].as_str() {
        Some(why) => format!("{}: {why}", text(&row["name"])),
        None => format!("{}: {}", text(&row["name"]), text(&row["state"])),
    };
    // The reasons why providers serve nothing. The capabilities of such a provider may be unavailable
    // for the same reason.
    let mut failures: Vec<String> = list("problems").iter().map(text).collect();
    let unavailable = capabilities.iter().filter(is_out);
    let unsaid = unavailable.filter(|row| {
        row["last_failure"].as_str().is_none_or(|why| !failures.iter().any(|one| one.contains(why)))
    });
    let unsaid: Vec<String> = unsaid.map(why).collect();
    failures.extend(unsaid);
    if !failures.is_empty() {
        return Err(Failure::failed_with(failures));
    }
    let count = capabilities.len();
    let what = if count == 1 { "capability" } else { "capabilities" };
    render::line(&format!("ok: {url}, {count} {what}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_server_with_something_unavailable_fails_the_check() {
        let of = |state: &str| json!({"capabilities": [{"name": "a"}, {"name": "b", "state": state, "last_failure": "no"}]});
        assert!(check_remote("u", &of("READY")).is_ok());
        for state in ["unavailable", "STOPPED"] {
            assert_eq!(check_remote("u", &of(state)).unwrap_err().lines, ["b: no"]);
        }
        let mut silent = of("READY");
        silent["problems"] = json!(["mcpServers.m: it exited with code 7"]);
        assert_eq!(
            check_remote("u", &silent).unwrap_err().lines,
            ["mcpServers.m: it exited with code 7"]
        );
        let mut both = of("unavailable");
        both["problems"] = json!(["b of orla.lock: no"]);
        assert_eq!(check_remote("u", &both).unwrap_err().lines, ["b of orla.lock: no"]);
    }
}
