//! The language beside other embedded ones: what `bench/` measures, in the table.
//!
//! That is a workspace of its own, so that the languages it compares with are built by nobody else.

use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Effort, Figure, QUICK};

/// Builds and runs it.
pub(super) fn languages(is_built: bool, effort: Effort) -> Result<Vec<Figure>, String> {
    let folder = crate::target("bench")?;
    let program = folder.join("release/orla-bench");
    if !is_built {
        let status = Command::new("cargo")
            .args(["build", "--release", "--locked", "--manifest-path"])
            .arg(crate::root().join("bench/Cargo.toml"))
            .arg("--target-dir")
            .arg(&folder)
            .status();
        if !status.is_ok_and(|status| status.success()) {
            return Err("bench/ cannot be built".to_owned());
        }
    }
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
