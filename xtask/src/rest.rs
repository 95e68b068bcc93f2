//! `/api` against programs that others wrote: a generator of requests (Schemathesis), and the clients that generators make of
//! the OpenAPI document (openapi-typescript with openapi-fetch, openapi-python-client).
//!
//! The server has its built-ins and one tool, which `xtask/fixtures/rest` holds with the pins. Everything is installed below
//! `target/rest` once.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::install::{self, Foreign};
use crate::parts::{self, Parts};
use crate::server::Server;
use crate::tally::Tally;
use crate::{Outcome, process, server};

/// How long one program may take.
const TIMEOUT: Duration = Duration::from_secs(900);
/// How many requests Schemathesis makes at most for each operation, besides those that it derives from the schemas.
const EXAMPLES: &str = "60";
const QUICK_EXAMPLES: &str = "2";
/// The seed of the quick form, so that it makes the same requests each time.
const SEED: &str = "1";

/// Runs everything.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let Parts { is_quick, .. } = Parts::of(arguments, &[parts::QUICK], &[])?;
    let binary = server::binary()?;
    let pins = install::pins("rest");
    let foreign = install::programs("rest", true)?;
    let served = foreign.folder.join("served");
    // Answers that an earlier run's keys repeat would be answers of another binary.
    let _ = fs::remove_dir_all(&served);
    crate::copy_folder(&pins.join("tools"), &served.join("tools"))?;
    let server = Server::start(&binary, &served, &foreign.folder)?;
    let address = format!("http://{}", server.address);
    let mut tally = Tally::default();
    let cases = pins.join("cases.json");
    tally.check("a generated TypeScript client", typescript(&foreign, &address, &cases));
    tally.check("a generated Python client", python(&foreign, &address, &cases));
    tally.check("requests that Schemathesis makes up", schemathesis(&foreign, &address, is_quick));
    Ok(tally.close())
}

/// Returns the address of the document with everything that a caller may call.
fn document(address: &str) -> String {
    format!("{address}/api/openapi.json?all=true")
}

/// Generates types, writes each case as a call that the compiler checks, and makes the calls.
fn typescript(foreign: &Foreign, address: &str, cases: &Path) -> Result<(), String> {
    let node = |script: &str| {
        let mut command = Command::new(&foreign.node);
        command.arg(foreign.module(script)).current_dir(&foreign.folder);
        command
    };
    let mut generate = node("openapi-typescript/bin/cli.js");
    generate.args([
        &document(address),
        "-o",
        "orla.d.ts",
        "--default-non-nullable=false",
        "--empty-objects-unknown",
    ]);
    finish(foreign, &mut generate)?;
    let text = fs::read_to_string(cases).map_err(|err| format!("{}: {err}", cases.display()))?;
    let cases: Vec<Value> = serde_json::from_str(&text).map_err(|err| err.to_string())?;
    let calls: String = cases.iter().map(call).collect();
    let client = format!("const client = createClient<paths>({{ baseUrl: \"{address}\" }});\n");
    let program = format!("{HEAD}{client}{calls}{TAIL}");
    let file = foreign.folder.join("calls.mts");
    fs::write(&file, program).map_err(|err| format!("{}: {err}", file.display()))?;
    let mut check = node("typescript/bin/tsc");
    check.args(["--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--module", "nodenext"]);
    finish(foreign, check.arg("calls.mts"))?;
    let mut make = Command::new(&foreign.node);
    finish(foreign, make.arg("calls.mts").current_dir(&foreign.folder))
}

const HEAD: &str = r#"import createClient from "openapi-fetch";
import type { paths } from "./orla.d.ts";

function equal(actual: unknown, expected: unknown, what: string) {
  const [a, b] = [JSON.stringify(actual), JSON.stringify(expected)];
  if (a !== b) throw new Error(`${what}: expected ${b}, got ${a}`);
}

"#;

const TAIL: &str = r#"{
  // @ts-expect-error: the types know that this is wrong.
  const { error, response } = await client.POST("/api/math__is_prime", { body: { number: "seven" } });
  equal([response.status, error?.kind], [400, "invalid-input"], "a wrong input");
}
"#;

/// Returns a statement that makes a call and checks its output.
fn call(case: &Value) -> String {
    let (name, input, output) =
        (case["name"].as_str().unwrap_or_default(), &case["input"], &case["output"]);
    format!(
        "{{\n  const {{ data, error }} = await client.POST(\"/api/{name}\", {{ body: {input} }});\n  \
         equal(error, undefined, \"{name}\");\n  equal(data, {output}, \"{name}\");\n}}\n"
    )
}

fn python(foreign: &Foreign, address: &str, cases: &Path) -> Result<(), String> {
    let mut generate = tool(foreign, "openapi-python-client");
    generate.args(["generate", "--url", &document(address), "--output-path", "generated"]);
    finish(foreign, generate.args(["--overwrite", "--meta", "none"]))?;
    let mut calls = Command::new(&foreign.python);
    finish(foreign, calls.args(["client.py", address]).arg(cases).current_dir(&foreign.folder))
}

fn schemathesis(foreign: &Foreign, address: &str, is_quick: bool) -> Result<(), String> {
    let mut run = tool(foreign, "schemathesis");
    let settings = install::pins("rest").join("schemathesis.toml");
    run.arg("--config-file").arg(settings).args(["run", &document(address), "--checks", "all"]);
    run.args(["--no-color", "--workers", "1", "--continue-on-failure"]);
    match is_quick {
        true => run.args(["--max-examples", QUICK_EXAMPLES, "--seed", SEED]),
        false => run.args(["--max-examples", EXAMPLES]),
    };
    finish(foreign, &mut run)
}

/// Returns a program of the virtual environment.
fn tool(foreign: &Foreign, name: &str) -> Command {
    let mut command = Command::new(foreign.python.with_file_name(name));
    command.current_dir(&foreign.folder);
    command
}

fn finish(foreign: &Foreign, command: &mut Command) -> Result<(), String> {
    let output = process::run(command, &foreign.folder, TIMEOUT)?.stdout_of_success()?;
    if let Some(line) = output.lines().find(|line| line.contains(" generated")) {
        println!("      {}", line.trim());
    }
    Ok(())
}
