//! Agents on the official A2A SDKs behind orla, over every binding that they offer.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::upstream::{fixtures, serve};
use crate::install::Foreign;
use crate::process;
use crate::server::Server;
use crate::tally::Tally;
use orla_e2e::free_port;

/// How long one call may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What an agent is told, and what has to come of it.
const CALLS: [(&str, &str, &str); 6] = [
    (r#"{"message":"echo hello"}"#, "/content/0/text", "hello"),
    (r#"{"message":"pieces"}"#, "/content/0/text", "one two three"),
    (r#"{"message":"at once"}"#, "/content/0/text", "at once"),
    (r#"{"message":"file"}"#, "/content/0/data", "AQI="),
    (
        r#"{"city":"Paris","n":[1.5]}"#,
        "/structuredContent",
        r#"{"city":"Paris","n":[1.5],"skill":"talk"}"#,
    ),
    (r#"{"message":"fail"}"#, "/content/1/text", "agent__talk failed at the agent: no luck"),
];

/// What the SDKs offer; what is `older` is of 0.3.
const BINDINGS: &[&str] = &["jsonrpc", "rest", "grpc", "older", "older-rest", "older-grpc"];

/// An SDK, the agent on it, and the bindings that it offers.
struct Sdk {
    title: &'static str,
    script: &'static str,
    bindings: &'static [&'static str],
}

const SDKS: [Sdk; 3] = [
    Sdk { title: "Python", script: "a2a_sdk_agent.py", bindings: BINDINGS },
    Sdk { title: "JavaScript", script: "a2a_js_agent.mjs", bindings: BINDINGS },
    Sdk {
        title: "JavaScript 0.3",
        script: "a2a_js_v0_agent.mjs",
        bindings: &["older", "older-rest", "older-grpc"],
    },
];

/// Calls an agent of each SDK and binding.
pub(super) fn run(binary: &Path, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    for sdk in &SDKS {
        for binding in sdk.bindings {
            behind(sdk, binding, binary, foreign, tally)?;
        }
    }
    Ok(())
}

fn behind(
    sdk: &Sdk,
    binding: &str,
    binary: &Path,
    foreign: &Foreign,
    tally: &mut Tally,
) -> Result<(), String> {
    let folder = foreign.folder.join("agents").join(sdk.script).join(binding);
    std::fs::create_dir_all(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    let (port, grpc) = (free_port(), free_port());
    let mut agent = if sdk.script.ends_with(".py") {
        let mut python = Command::new(&foreign.python);
        python.arg(fixtures().join(sdk.script));
        python
    } else {
        let mut node = Command::new(&foreign.node);
        node.arg(foreign.folder.join(sdk.script));
        node
    };
    agent.arg(binding).arg(port.to_string()).arg(grpc.to_string());
    agent.current_dir(&folder);
    let agent = Server::listening(agent, &folder.join("agent.log"), |line| {
        line.contains("running on").then(|| format!("127.0.0.1:{port}"))
    })?;
    let protocol = if binding.ends_with("grpc") { "grpc" } else { "http" };
    let mut config = json!({"builtins": false, "timeout": 6, "agents": {"agent": {
        "url": format!("http://{}", agent.address), "protocol": protocol, "origins": [format!("http://127.0.0.1:{grpc}")]}}});
    if !binding.starts_with("older") {
        // Its card has to be signed with its key then. Cards of 0.3 are made of that one, and what was signed is gone.
        config["agents"]["agent"]["keys"] = json!(folder.join("keys.json"));
    }
    let orla = serve(binary, &folder.join("orla"), "orla.yaml", &config.to_string())?;
    let call = |input: &str| call(binary, &folder, &orla, input);
    let title = format!("{} A2A SDK's agent over {binding}", sdk.title);
    for (input, place, mut expected) in CALLS {
        if sdk.title == "Python" && matches!(binding, "older-rest" | "older-grpc") && expected == "AQI="
        {
            // There its protobuf has the base64 itself for the bytes.
            expected = "QVFJPQ==";
        }
        let verdict = call(input).and_then(|result| same(&result, place, expected));
        tally.check(&format!("{title}: {input}"), verdict);
    }
    tally.check(&format!("{title}: a question is answered"), question(&call));
    tally.check(&format!("{title}: a task that never ends is cancelled"), endless(&call));
    Ok(())
}

fn question(call: &dyn Fn(&str) -> Result<Value, String>) -> Result<(), String> {
    let asked = call(r#"{"message":"ask"}"#)?;
    let about = &asked["_meta"]["orla/a2a"];
    let answer =
        json!({"message": "the first", "task_id": about["task_id"], "context_id": about["context_id"]});
    same(&call(&answer.to_string())?, "/content/0/text", "you said the first")
}

fn endless(call: &dyn Fn(&str) -> Result<Value, String>) -> Result<(), String> {
    let late = call(r#"{"message":"never"}"#)?;
    same(&late, "/content/0/text", "one ")?;
    same(&late, "/content/1/text", "agent__talk timed out after 6 s")?;
    // The agent may not have got the cancellation yet.
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let cancelled = same(&call(r#"{"message":"cancelled"}"#)?, "/content/0/text", "1");
        if cancelled.is_ok() || Instant::now() > end {
            return cancelled;
        }
    }
}

fn same(result: &Value, place: &str, expected: &str) -> Result<(), String> {
    // Members may come in any order: the SDK keeps data in a map of its own.
    match result.pointer(place) {
        Some(Value::String(found)) if found == expected => Ok(()),
        Some(found) if serde_json::from_str::<Value>(expected).is_ok_and(|data| data == *found) => {
            Ok(())
        }
        _ => Err(format!("{place} of {result} is not {expected}")),
    }
}

/// Returns the whole result of a call, failed or not.
fn call(binary: &Path, folder: &Path, orla: &Server, input: &str) -> Result<Value, String> {
    let mut command = Command::new(binary);
    command.args(["call", "agent__talk", "--raw", "--json", input, "--url"]);
    command.arg(format!("http://{}/mcp", orla.address));
    let printed = process::run(&mut command, folder, TIMEOUT)?;
    serde_json::from_str(&printed.stdout)
        .map_err(|err| format!("{err}: {}{}", printed.stdout, printed.stderr))
}
