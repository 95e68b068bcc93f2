//! `orla list`: what would be served.

use orla_server::StatusRow;

use crate::app::App;
use crate::config::Source;
use crate::{Failure, render};

pub(crate) fn run(json: bool, source: &Source) -> Result<(), Failure> {
    let config = source.load().map_err(|problems| Failure::configuration(&problems))?;
    let _log = super::log(&config);
    let app = App::build(&config)?;
    let rows = StatusRow::all(app.marketplace());
    if json {
        let text =
            serde_json::to_string_pretty(&rows).map_err(|err| Failure::failed(err.to_string()))?;
        render::line(&text);
        return Ok(());
    }
    for finding in app.findings().warnings.iter().chain(&app.findings().problems) {
        render::warning(finding);
    }
    let catalog = app.marketplace().snapshot();
    if rows.is_empty() {
        render::note("Nothing is served. `orla init` writes an example.");
        return Ok(());
    }
    let cells: Vec<Vec<String>> = rows
        .iter()
        .zip(catalog.entries())
        .map(|(row, entry)| {
            let runs = row.interpreter.clone().unwrap_or_else(|| "binary".to_owned());
            vec![row.name.to_string(), row.kind.to_owned(), runs, entry.manifest.description.clone()]
        })
        .collect();
    render::out(&render::table(&["NAME", "KIND", "RUNS", "DESCRIPTION"], &cells, render::width()));
    Ok(())
}
