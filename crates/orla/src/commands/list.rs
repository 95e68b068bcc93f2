//! `orla list`: the capabilities of the configuration, or of a running server.
//!
//! Capsules report their capabilities themselves, so they are started, asked, and ended again. A capsule
//! that cannot be started is listed with the reason.

use std::path::Path;

use orla_server::StatusRow;

use super::client::Server;
use super::serve::Files;
use super::watch::{watch, watch_server};
use super::{Column, status};
use crate::app::App;
use crate::config::{Config, Source};
use crate::exposure::Exposure;
use crate::{Failure, cli, render};

pub(crate) fn run(list: &cli::List, source: &Source) -> Result<(), Failure> {
    let config = super::load_local_or_for_client(list.url.as_deref(), source)?;
    let _log = super::log(&config);
    super::small_runtime()?.block_on(async {
        match (&list.url, list.watch) {
            (Some(url), true) => {
                let server = Server::at(Some(url), &config)?;
                watch_server(server, async |server| Ok(status::table(&status::get(server).await?))).await
            }
            (Some(url), false) => list_remote(&Server::at(Some(url), &config)?, list.json).await,
            (None, true) => watch_local(list.all, source).await,
            (None, false) => list_local(list, &config).await,
        }
    })
}

async fn list_local(list: &cli::List, config: &Config) -> Result<(), Failure> {
    let listing = look(config, list.all).await?;
    listing.findings().for_each(|finding| render::warning(finding));
    if list.json {
        super::print_json(&listing.rows)?;
    } else if listing.rows.is_empty() {
        render::note(&nothing(config, &listing));
    } else {
        render::out(&table(&listing.app, &listing.rows));
        if config.expose == Exposure::Search && !list.all {
            render::note(
                "Everything else is found by search (expose: search). `orla list --all` shows it.",
            );
        }
    }
    match listing.app.refused_documents() {
        0 => Ok(()),
        1 => Err(Failure::failed("an OpenAPI document was refused")),
        count => Err(Failure::failed(format!("{count} OpenAPI documents were refused"))),
    }
}

/// Returns the message for an empty list.
fn nothing(config: &Config, listing: &Listing) -> String {
    const OF_CLIENTS: [&str; 3] = [".mcp.json", ".vscode/mcp.json", ".cursor/mcp.json"];
    let of_client = OF_CLIENTS.iter().find(|file| Path::new(file).is_file());
    let skipped = &listing.app.findings().skipped;
    let mut closed = skipped.iter().filter(|text| text.contains("not executable"));
    if let Some(first) = closed.next() {
        let others = match closed.count() {
            0 => String::new(),
            1 => "; and 1 more file".to_owned(),
            more => format!("; and {more} more files"),
        };
        return format!("Nothing is served. {first}{others}");
    }
    let has_findings = listing.findings().next().is_some();
    let next = match (&config.file, of_client) {
        (None, Some(file)) => format!(" For the servers of {file}: `orla --config {file} list`."),
        // A user who has declared something needs no example.
        (Some(_), _) if has_findings => String::new(),
        _ => " `orla init` writes an example.".to_owned(),
    };
    format!("Nothing is served.{next}")
}

async fn list_remote(server: &Server, json: bool) -> Result<(), Failure> {
    let status = status::get_listed(server).await?;
    status::warn(&status);
    match json {
        true => super::print_json(&status["capabilities"])?,
        false if status["capabilities"].as_array().is_none_or(Vec::is_empty) => {
            render::note("Nothing is served there that you may use.");
        }
        false => render::out(&status::table(&status)),
    }
    Ok(())
}

/// Lists what would be served, and again when a file of it changes.
async fn watch_local(all: bool, source: &Source) -> Result<(), Failure> {
    let look = async |files: &mut Files| {
        let mut config = super::load(source)?;
        config.watch = true;
        // Watched before it is read, so that no change is missed in between.
        let followed = files.follow(&config, Vec::new());
        followed.map_err(|err| Failure::failed(format!("files cannot be watched: {err}")))?;
        let listing = look(&config, all).await?;
        let findings = listing.findings().map(|finding| format!("warning: {finding}\n"));
        Ok(findings.collect::<String>() + &table(&listing.app, &listing.rows))
    };
    watch(&mut Files::default(), look, async |files| files.changed().await).await
}

struct Listing {
    app: App,
    rows: Vec<StatusRow>,
    /// The reasons why providers serve nothing.
    problems: Vec<String>,
}

impl Listing {
    fn findings(&self) -> impl Iterator<Item = &String> {
        let findings = self.app.findings();
        // A package that cannot be served is both.
        let others = self.problems.iter().filter(|problem| !findings.problems.contains(problem));
        findings.warnings.iter().chain(&findings.problems).chain(others)
    }
}

async fn look(config: &Config, all: bool) -> Result<Listing, Failure> {
    let mut app = App::build(config)?;
    super::wait_until_listed(&app).await;
    app.check_listed(config);
    let market = app.marketplace();
    let rows = if all { StatusRow::all(market) } else { StatusRow::listed(market) };
    let problems = market.problems(None);
    app.end_providers().await;
    Ok(Listing { app, rows, problems })
}

fn table(app: &App, rows: &[StatusRow]) -> String {
    let catalog = app.marketplace().snapshot();
    let mut columns = vec![
        ("NAME", rows.iter().map(|row| row.name.to_string()).collect()),
        ("KIND", rows.iter().map(|row| row.kind.to_owned()).collect()),
        ("RUNS", rows.iter().map(runs).collect()),
    ];
    columns.extend(life_columns(rows));
    let description = |row: &StatusRow| {
        catalog.get(&row.name).map(|entry| entry.manifest.description.clone()).unwrap_or_default()
    };
    let failures: Vec<String> =
        rows.iter().map(|row| row.last_failure.clone().unwrap_or_default()).collect();
    if failures.iter().all(String::is_empty) {
        columns.push(("DESCRIPTION", rows.iter().map(description).collect()));
        return super::table_of(&columns, render::width());
    }
    // The reason why a capability does not run may exceed the column width.
    let short = |row: &StatusRow| render::cut(&description(row), 40);
    columns.push(("DESCRIPTION", rows.iter().map(short).collect()));
    columns.push(("LAST FAILURE", failures));
    super::table_of(&columns, 1000)
}

/// Returns the state of processes that stay between calls, if there are any.
fn life_columns(rows: &[StatusRow]) -> Vec<Column> {
    let column = |head, cell: fn(&StatusRow) -> Option<String>| -> Column {
        (head, rows.iter().map(|row| cell(row).unwrap_or_default()).collect())
    };
    let mut columns = vec![
        column("STATE", |row| row.state.clone()),
        column("PID", |row| row.pid.map(|pid| pid.to_string())),
        column("UPTIME", |row| row.uptime_ms.map(super::uptime)),
        column("RESTARTS", |row| row.restarts.map(|count| count.to_string())),
    ];
    columns.retain(|(_, cells)| cells.iter().any(|cell| !cell.is_empty()));
    columns
}

/// Returns its program, if it has one.
fn runs(row: &StatusRow) -> String {
    let is_program = matches!(row.kind, "tool" | "capsule");
    row.interpreter.clone().or_else(|| is_program.then(|| "binary".to_owned())).unwrap_or_default()
}
