//! The language beside other embedded ones: what `bench/` measures, in the table.
//!
//! That is a workspace of its own, so that other builds do not build the languages it compares with.

use std::process::{Command, Stdio};

use serde_json::Value;

use super::report::Figure;
use super::{Effort, QUICK};

/// Runs it.
pub(super) fn languages(effort: Effort) -> Result<Vec<Figure>, String> {
    let program = crate::target("bench")?.join("release/orla-bench");
    let quick = (effort.rounds <= QUICK.rounds).then_some("--quick");
    let output = Command::new(&program).args(quick).stderr(Stdio::inherit()).output();
    let output = output.map_err(|err| format!("{}: {err}", program.display()))?;
    if !output.status.success() {
        return Err("it failed".to_owned());
    }
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).map_err(|err| err.to_string())?;
    Ok(all.iter().map(figure).collect())
}

fn figure(line: &Value) -> Figure {
    let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let figure =
        Figure::new(format!("RTFS: {}", text("what")), text("measured"), line["values"].clone());
    figure.goal(text("goal"), line["reached"] == true)
}
