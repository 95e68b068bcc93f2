//! The official SDKs and the inspector list and call every example tool, and get every prompt.
//!
//! Each SDK has a small driver (`xtask/fixtures/clients/`) that calls everything the server lists and
//! prints what came as JSON; what is right is said once, in `calls.json`, and compared here. A tool
//! that is listed and has no entry there is a failure, and so is an entry that is not listed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::pattern::compare;
use crate::install::{Foreign, pins};
use crate::process;
use crate::server::Server;
use crate::tally::Tally;

/// How long one run of a client may take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The revision without sessions; everything before it is `legacy` to the clients.
const SESSIONLESS: &str = "2026-07-28";

/// A client of another project.
#[derive(Clone, Copy)]
pub(crate) enum Client {
    PythonSdk,
    TypeScriptSdk,
    TypeScriptSdkV1,
    Inspector,
}

/// Returns all of them.
pub(crate) fn all() -> [Client; 4] {
    [Client::PythonSdk, Client::TypeScriptSdk, Client::TypeScriptSdkV1, Client::Inspector]
}

impl Client {
    /// Returns the name to ask for it on the command line.
    pub(crate) fn part(self) -> &'static str {
        match self {
            Self::PythonSdk => "python",
            Self::TypeScriptSdk | Self::TypeScriptSdkV1 => "typescript",
            Self::Inspector => "inspector",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::PythonSdk => "Python SDK",
            Self::TypeScriptSdk => "TypeScript SDK",
            Self::TypeScriptSdkV1 => "TypeScript SDK v1",
            Self::Inspector => "inspector",
        }
    }

    fn eras(self) -> &'static [&'static str] {
        match self {
            Self::TypeScriptSdkV1 => &["legacy"],
            Self::PythonSdk | Self::TypeScriptSdk | Self::Inspector => &["legacy", SESSIONLESS],
        }
    }

    /// Returns whether the client shows progress. The inspector's command line prints only results.
    fn shows_progress(self) -> bool {
        !matches!(self, Self::Inspector)
    }
}

/// Over both transports, in every era the client knows.
pub(crate) fn run(
    client: Client,
    binary: &Path,
    foreign: &Foreign,
    tally: &mut Tally,
) -> Result<(), String> {
    let calls = expected()?;
    let server = Server::start(binary, &crate::root(), &foreign.folder)?;
    let url = format!("http://{}/mcp", server.address);
    judge_all(client, "http", &[url], foreign, &calls, tally);
    let stdio = [binary.to_string_lossy().into_owned(), "--stdio".to_owned()];
    judge_all(client, "stdio", &stdio, foreign, &calls, tally);
    Ok(())
}

/// Returns what is called, and what is right.
pub(crate) fn expected() -> Result<Value, String> {
    let calls = pins("clients").join("calls.json");
    std::fs::read_to_string(&calls)
        .map_err(|err| err.to_string())
        .and_then(|text| serde_json::from_str(&text).map_err(|err| err.to_string()))
        .map_err(|err| format!("{}: {err}", calls.display()))
}

/// Runs a client in every era it knows against a target: a URL, or a command with arguments.
pub(crate) fn judge_all(
    client: Client,
    transport: &str,
    target: &[String],
    foreign: &Foreign,
    calls: &Value,
    tally: &mut Tally,
) {
    for era in client.eras() {
        let title = format!("{}, {transport}, {era}", client.title());
        let report = match client {
            Client::Inspector => inspect(era, target, foreign, calls),
            _ => drive(client, era, target, foreign),
        };
        match report {
            Ok(report) => judge(&title, &report, calls, client.shows_progress(), tally),
            Err(problem) => tally.check(&title, Err(problem)),
        }
    }
}

/// Runs a driver script, which does everything in one connection.
fn drive(client: Client, era: &str, target: &[String], foreign: &Foreign) -> Result<Value, String> {
    let mut command = match client {
        Client::PythonSdk => Command::new(&foreign.python),
        _ => Command::new(&foreign.node),
    };
    match client {
        Client::PythonSdk => command.arg(pins("clients").join("python_sdk.py")).arg(era),
        Client::TypeScriptSdk => command.arg(foreign.folder.join("typescript_sdk.mjs")).arg(era),
        Client::TypeScriptSdkV1 | Client::Inspector => {
            command.arg(foreign.folder.join("typescript_sdk_v1.mjs"))
        }
    };
    command.arg(pins("clients").join("calls.json")).args(target).current_dir(crate::root());
    let stdout = process::run(&mut command, &foreign.folder, TIMEOUT)?.stdout_of_success()?;
    serde_json::from_str(&stdout).map_err(|err| format!("its report: {err}: {stdout}"))
}

/// Runs the inspector's command line, which does one request each time.
fn inspect(era: &str, target: &[String], foreign: &Foreign, calls: &Value) -> Result<Value, String> {
    let entry = match target {
        [url] => json!({"type": "streamable-http", "url": url}),
        [command, arguments @ ..] => json!({"type": "stdio", "command": command, "args": arguments}),
        [] => return Err("no target".to_owned()),
    };
    let config = foreign.folder.join("inspector.json");
    std::fs::write(&config, json!({"mcpServers": {"orla": entry}}).to_string())
        .map_err(|err| format!("{}: {err}", config.display()))?;
    let ask = |request: &[&str]| -> Result<Value, String> {
        let mut command = Command::new(&foreign.node);
        command
            .arg(foreign.module("@modelcontextprotocol/inspector/clients/launcher/build/index.js"))
            .args(["--cli", "--format", "json", "--quiet", "--server", "orla", "--config"])
            .arg(&config)
            .args(["--protocol-era", if era == "legacy" { "legacy" } else { "modern" }])
            .args(request)
            // Its settings and stored logins stay away from the user's own.
            .env("HOME", &foreign.folder)
            .current_dir(crate::root());
        let stdout = process::run(&mut command, &foreign.folder, TIMEOUT)?
            .stdout_of_success()
            .map_err(|err| format!("{}: {err}", request.join(" ")))?;
        let answer: Value =
            serde_json::from_str(&stdout).map_err(|err| format!("its answer: {err}: {stdout}"))?;
        Ok(answer["result"].clone())
    };
    let mut tools = Map::new();
    for tool in items(&ask(&["--method", "tools/list"])?, "tools") {
        let name = tool["name"].as_str().unwrap_or_default();
        let arguments = calls["tools"][name].get("arguments").map_or("{}".to_owned(), Value::to_string);
        let result =
            ask(&["--method", "tools/call", "--tool-name", name, "--tool-args-json", &arguments])?;
        tools.insert(name.to_owned(), json!({"tool": tool, "result": result}));
    }
    let mut prompts = Map::new();
    for prompt in items(&ask(&["--method", "prompts/list"])?, "prompts") {
        let name = prompt["name"].as_str().unwrap_or_default();
        let mut request = vec![
            "--method".to_owned(),
            "prompts/get".to_owned(),
            "--prompt-name".to_owned(),
            name.to_owned(),
        ];
        for (argument, value) in calls["prompts"][name]["arguments"].as_object().into_iter().flatten() {
            request.extend([
                "--prompt-args".to_owned(),
                format!("{argument}={}", value.as_str().unwrap_or_default()),
            ]);
        }
        let request: Vec<&str> = request.iter().map(String::as_str).collect();
        prompts.insert(name.to_owned(), json!({"result": ask(&request)?}));
    }
    Ok(json!({"tools": tools, "prompts": prompts}))
}

fn items(answer: &Value, field: &str) -> Vec<Value> {
    answer[field].as_array().cloned().unwrap_or_default()
}

/// One check for each tool and prompt, whether it was listed, expected or both.
fn judge(title: &str, report: &Value, calls: &Value, with_progress: bool, tally: &mut Tally) {
    for (field, kind) in [("tools", "tool"), ("prompts", "prompt")] {
        let none = Map::new();
        let expected = calls[field].as_object().unwrap_or(&none);
        let seen = report[field].as_object().unwrap_or(&none);
        for name in seen.keys().filter(|name| !expected.contains_key(*name)) {
            tally.check(
                &format!("{title}: {kind} {name}"),
                Err("calls.json has no entry for it".to_owned()),
            );
        }
        for (name, call) in expected {
            let verdict = seen
                .get(name)
                .ok_or_else(|| "it is not listed".to_owned())
                .and_then(|seen| judge_one(seen, call, with_progress));
            tally.check(&format!("{title}: {kind} {name}"), verdict);
        }
    }
}

fn judge_one(seen: &Value, call: &Value, with_progress: bool) -> Result<(), String> {
    let result = &seen["result"];
    if result["isError"] == true {
        return Err(format!("the call failed: {result}"));
    }
    if let Some(tool) = seen.get("tool") {
        compare(&json!({"inputSchema": {"type": "object"}}), tool, "tool")?;
        if tool["description"].as_str().is_none_or(str::is_empty) {
            return Err("it has no description".to_owned());
        }
    }
    compare(&call["expect"], result, "result")?;
    match (call["progress"].as_u64(), seen["progress"].as_array()) {
        (Some(expected), Some(notes)) if with_progress && notes.len() as u64 != expected => {
            Err(format!("expected {expected} progress notifications, got {}", notes.len()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn every_example_tool_and_prompt_is_called() {
        let calls = std::fs::read_to_string(pins("clients").join("calls.json")).unwrap();
        let calls: Value = serde_json::from_str(&calls).unwrap();
        for (folder, is_one) in
            [("tools", (|mode| mode & 0o111 != 0) as fn(u32) -> bool), ("prompts", |_| true)]
        {
            let files: BTreeSet<String> = std::fs::read_dir(crate::root().join(folder))
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .filter(|path| is_one(path.metadata().unwrap().permissions().mode()))
                .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
                .collect();
            let entries: BTreeSet<String> = calls[folder].as_object().unwrap().keys().cloned().collect();
            assert_eq!(entries, files, "{folder}");
        }
    }

    #[test]
    fn a_call_is_judged_by_its_result_and_its_progress() {
        let call = json!({"progress": 2, "expect": {"structuredContent": {"a": 1}}});
        let good = json!({"result": {"structuredContent": {"a": 1}}, "progress": [[1], [2]]});
        let slow = json!({"result": {"structuredContent": {"a": 1}}, "progress": [[1]]});
        let failed =
            json!({"result": {"structuredContent": {"a": 1}, "isError": true}, "progress": [[1], [2]]});
        assert_eq!(judge_one(&good, &call, true), Ok(()));
        assert_eq!(judge_one(&slow, &call, false), Ok(()));
        assert!(judge_one(&slow, &call, true).is_err());
        assert!(judge_one(&failed, &call, true).is_err());
    }
}
