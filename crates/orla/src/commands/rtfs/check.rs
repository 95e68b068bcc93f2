//! `orla rtfs check`: finds errors in programs without running them.

use std::path::Path;
use std::sync::Arc;

use orla_marketplace::Call;
use orla_marketplace::program::Served;
use orla_marketplace::rtfs::{Diagnostic, Severity, Signatures, Source as Text, check};
use serde_json::json;

use super::{options, read};
use crate::app::App;
use crate::commands::load;
use crate::config::Source;
use crate::{Failure, cli, render};

/// Prints the findings of every program with their places, and a verdict.
pub(super) fn run(wanted: &cli::CheckPrograms, source: &Source) -> Result<(), Failure> {
    let config = load(source)?;
    let _log = crate::commands::log(&config);
    let texts = texts(wanted)?;
    let runtime = crate::commands::small_runtime()?;
    let served = runtime.block_on(async {
        let app = App::build_local(&config)?;
        app.marketplace().prepare_listing().await;
        let principal = app.marketplace().program_context(&Call::to("rtfs")).scope.principal;
        let served = Served::new(app.marketplace().snapshot(), principal);
        app.end_providers().await;
        Ok::<_, Failure>(served)
    });
    runtime.shutdown_background();
    let served: Arc<dyn Signatures> = Arc::new(served?);
    let (mut errors, mut warnings) = (0, 0);
    for text in &texts {
        let found = check(text, &options(Path::new(text.name()).parent()), Some(Arc::clone(&served)));
        let wrong = found.iter().filter(|found| found.severity == Severity::Error).count();
        errors += wrong;
        warnings += found.len() - wrong;
        for found in &found {
            if wanted.json {
                render::json_line(&line(text, found));
            } else {
                render::err(&format!("{found}\n"));
            }
        }
    }
    let count = |count: usize, what: &str| match count {
        0 => String::new(),
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    };
    let (wrong, remarks) = (count(errors, "error"), count(warnings, "warning"));
    let counts =
        [wrong, remarks].into_iter().filter(|count| !count.is_empty()).collect::<Vec<_>>().join(", ");
    if errors > 0 {
        if !wanted.json {
            render::err(&format!("{counts}\n"));
        }
        return Err(Failure::failed_silently());
    }
    if !wanted.json {
        let names: Vec<_> = texts.iter().map(Text::name).filter(|name| !name.is_empty()).collect();
        let all = [names.join(", "), counts].into_iter().filter(|part| !part.is_empty());
        let all = all.collect::<Vec<_>>().join(", ");
        render::line(if all.is_empty() { "ok".to_owned() } else { format!("ok: {all}") }.as_str());
    }
    Ok(())
}

fn texts(wanted: &cli::CheckPrograms) -> Result<Vec<Text>, Failure> {
    if let Some(expression) = &wanted.expression {
        return Ok(vec![Text::new("", expression.as_str())]);
    }
    wanted.files.iter().map(|file| read(file).map_err(Failure::failed)).collect()
}

/// Returns a finding for editors: lines and columns from 1, columns in characters, the end excluded.
fn line(text: &Text, found: &Diagnostic) -> String {
    let end = text.position(found.span.end);
    json!({
        "file": if found.source.is_empty() { "-" } else { &found.source },
        "line": found.position.line,
        "column": found.position.column,
        "end_line": end.line,
        "end_column": end.column,
        "severity": found.severity.as_str(),
        "kind": found.kind,
        "message": found.message,
    })
    .to_string()
}
