//! `orla list`: what would be served.
//!
//! Capsules say themselves what they serve, so they are started, asked, and ended again; one that cannot
//! be started shows why.

use orla_server::StatusRow;

use super::Column;
use crate::app::App;
use crate::config::{Config, Source};
use crate::exposure::Exposure;
use crate::{Failure, render};

pub(crate) fn run(all: bool, json: bool, source: &Source) -> Result<(), Failure> {
    let config = source.load().map_err(|problems| Failure::configuration(&problems))?;
    let _log = super::log(&config);
    let (app, rows, problems) = super::small_runtime()?.block_on(look(&config, all))?;
    if json {
        return super::print_json(&rows);
    }
    let findings = app.findings();
    for finding in findings.warnings.iter().chain(&findings.problems).chain(&problems) {
        render::warning(finding);
    }
    if rows.is_empty() {
        render::note("Nothing is served. `orla init` writes an example.");
        return Ok(());
    }
    render::out(&table(&app, &rows));
    if config.expose == Exposure::Search && !all {
        render::note("Everything else is found by search (expose: search). `orla list --all` shows it.");
    }
    Ok(())
}

/// What is served, and why providers give nothing.
async fn look(config: &Config, all: bool) -> Result<(App, Vec<StatusRow>, Vec<String>), Failure> {
    let app = App::build(config)?;
    app.marketplace().prepare_listing().await;
    let market = app.marketplace();
    let rows = if all { StatusRow::all(market) } else { StatusRow::listed(market) };
    let problems = market.problems(None);
    app.end_providers().await;
    Ok((app, rows, problems))
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
    // Why something does not run is worth more than a tidy width.
    let short = |row: &StatusRow| render::cut(&description(row), 40);
    columns.push(("DESCRIPTION", rows.iter().map(short).collect()));
    columns.push(("LAST FAILURE", failures));
    super::table_of(&columns, 1000)
}

/// What is known of processes that stay between calls, where there are any.
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

/// What runs it, where it is a program.
fn runs(row: &StatusRow) -> String {
    let is_program = matches!(row.kind, "tool" | "capsule");
    row.interpreter.clone().or_else(|| is_program.then(|| "binary".to_owned())).unwrap_or_default()
}
