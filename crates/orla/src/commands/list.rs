//! `orla list`: what would be served.
//!
//! Capsules say themselves what they serve, so they are started, asked, and ended again; one that cannot
//! be started shows why.

use orla_server::StatusRow;

use super::Column;
use crate::app::App;
use crate::config::{Config, Source};
use crate::{Failure, render};

pub(crate) fn run(json: bool, source: &Source) -> Result<(), Failure> {
    let config = source.load().map_err(|problems| Failure::configuration(&problems))?;
    let _log = super::log(&config);
    let (app, rows) = super::small_runtime()?.block_on(look(&config))?;
    if json {
        let text =
            serde_json::to_string_pretty(&rows).map_err(|err| Failure::failed(err.to_string()))?;
        render::line(&text);
        return Ok(());
    }
    for finding in app.findings().warnings.iter().chain(&app.findings().problems) {
        render::warning(finding);
    }
    if rows.is_empty() {
        render::note("Nothing is served. `orla init` writes an example.");
        return Ok(());
    }
    render::out(&table(&app, &rows));
    Ok(())
}

async fn look(config: &Config) -> Result<(App, Vec<StatusRow>), Failure> {
    let app = App::build(config)?;
    app.marketplace().prepare_listing().await;
    let rows = StatusRow::all(app.marketplace());
    app.end_capsules().await;
    Ok((app, rows))
}

fn table(app: &App, rows: &[StatusRow]) -> String {
    let catalog = app.marketplace().snapshot();
    let mut columns = vec![
        ("NAME", rows.iter().map(|row| row.name.to_string()).collect()),
        ("KIND", rows.iter().map(|row| row.kind.to_owned()).collect()),
        ("RUNS", rows.iter().map(|row| row.interpreter.clone().unwrap_or_else(binary)).collect()),
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

fn binary() -> String {
    "binary".to_owned()
}
