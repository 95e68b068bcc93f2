//! orla as an agent, for the clients of the official A2A SDKs, over every binding.
//!
//! Each SDK has a driver (`xtask/fixtures/clients/a2a_*_client.*`) that does in one run what there is to do, and prints what
//! went wrong; what orla serves to them is in `xtask/fixtures/agent`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::install::{Foreign, pins};
use crate::process;
use crate::server::Server;
use crate::tally::Tally;

/// How long one client may take.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Lets each client do everything over each binding.
pub(super) fn run(binary: &Path, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    let orla = Server::start(binary, &crate::root().join("xtask/fixtures/agent"), &foreign.folder)?;
    let url = format!("http://{}", orla.address);
    let python = |name: &str| script(&foreign.python, &pins("clients").join(name));
    let node = |name: &str| script(&foreign.node, &foreign.folder.join(name));
    let mut drivers = vec![("JavaScript 0.3", "JSONRPC", node("a2a_js_v0_client.mjs"))];
    for binding in ["JSONRPC", "HTTP+JSON", "GRPC"] {
        drivers.push(("Python", binding, python("a2a_python_client.py")));
        drivers.push(("JavaScript", binding, node("a2a_js_client.mjs")));
    }
    for (sdk, binding, mut driver) in drivers {
        driver.args([binding, &url]);
        let title = format!("{sdk} A2A SDK's client over {binding}");
        match report(&mut driver, &foreign.folder) {
            Ok(report) => {
                for (check, problem) in report {
                    tally.check(&format!("{title}: {check}"), problem.map_or(Ok(()), Err));
                }
            }
            Err(problem) => tally.check(&title, Err(problem)),
        }
    }
    Ok(())
}

fn script(program: &Path, script: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg(script);
    command
}

/// What was checked, and what was wrong.
fn report(driver: &mut Command, folder: &Path) -> Result<BTreeMap<String, Option<String>>, String> {
    let printed = process::run(driver, folder, TIMEOUT)?.stdout_of_success()?;
    serde_json::from_str(&printed).map_err(|err| format!("{err}: {printed}"))
}
