//! The comparisons: orla beside what a call costs at least.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use orla_e2e::issuer::Issuer;
use serde_json::{Value, json};

use super::client::{self, Connection};
use super::gateways::{Gateway, Session};
use super::life::{executable, fresh, package};
use super::side::{Pipes, Row, Side};
use super::{Effort, Orla, Programs};
use crate::server::Server;

/// Where a call costs a process.
const FEW: &[usize] = &[1, 8];
const SOME: &[usize] = &[1, 8, 32];
/// Where a call costs some microseconds.
const MANY: &[usize] = &[1, 8, 32, MOST_CLIENTS];

const MOST_CLIENTS: usize = 256;

/// Published gateways are not asked to serve more clients at once.
const GATEWAY_CLIENTS: usize = 8;

/// A comparison, and what could not take part, with the reason.
pub(super) type Prepared = (Row, Vec<String>);

/// Starts everything that takes part in a comparison.
type Prepare = fn(&Programs, Effort) -> Result<Prepared, String>;

/// All comparisons by name.
pub(super) const ROWS: &[(&str, Prepare)] = &[
    ("tool call", tool),
    ("Python script", python),
    ("Node script", node),
    (EMBEDDED, embedded),
    ("built-in", builtin),
    (FOLLOWED, followed),
    (IDENTIFIED, identified),
    ("program of ten calls", program),
    ("capsule call", capsule),
    ("plugin call", plugin),
    ("remote call", remote),
    (PROXIED, proxied),
    ("proxied call over HTTP", proxied_http),
    (LARGE, |programs, _| relayed(programs, LARGE, "large")),
    (HUGE, |programs, _| relayed(programs, HUGE, "huge")),
];

/// The comparison that the official SDK takes part in.
const EMBEDDED: &str = "capability without a process";

/// The comparisons that programs of `bench/` take part in.
pub(super) const FOREIGN: &[&str] = &[EMBEDDED, PROXIED, LARGE, HUGE];

const PROXIED: &str = "proxied call";
const LARGE: &str = "proxied answer of 100 KB";
const HUGE: &str = "proxied answer of 1 MB";

/// The comparison of what is kept of a call.
const FOLLOWED: &str = "call that is followed";

/// The comparison of the ways to say who calls.
const IDENTIFIED: &str = "call by a caller";

/// What the echoing programs are called with.
pub(crate) fn arguments() -> Value {
    json!({"city": "Paris", "count": 3})
}

fn row(name: &'static str, clients: &'static [usize], sides: Vec<Side>) -> Prepared {
    (Row { name, clients, sides }, Vec::new())
}

/// Calls a static program as a tool, beside starting it directly.
fn tool(programs: &Programs, _: Effort) -> Result<Prepared, String> {
    let folder = programs.fresh("tool")?;
    fs::copy(&programs.floor, folder.join("tools/floor")).map_err(|err| err.to_string())?;
    let call = client::call("floor", &json!({}));
    let mut sides = vec![
        Side::spawning("spawn", vec![programs.floor.clone().into()], ""),
        Side::served("bare echo", programs.bare_echo()?, call.clone()),
    ];
    for orla in &programs.orlas {
        sides.push(Side::served_to_threads(&orla.name, orla.start(&folder)?, call.clone()));
    }
    Ok(row("tool call", SOME, sides))
}

/// A script that does nothing but start, import what most import, and answer.
pub(super) const PYTHON: &str = "#!/usr/bin/env python3\n# Says that it is there.\nimport json, sys, datetime\njson.load(sys.stdin)\nprint('ok')\n";
const NODE: &str = "#!/usr/bin/env node\n// Says that it is there.\nconst fs = require('fs');\nJSON.parse(fs.readFileSync(0));\nconsole.log('ok');\n";

fn python(programs: &Programs, _: Effort) -> Result<Prepared, String> {
    script(programs, "Python script", "script.py", PYTHON)
}

fn node(programs: &Programs, _: Effort) -> Result<Prepared, String> {
    script(programs, "Node script", "script.js", NODE)
}

/// Calls a script as a tool, beside starting it directly.
fn script(programs: &Programs, name: &'static str, file: &str, text: &str) -> Result<Prepared, String> {
    let folder = programs.fresh(file)?;
    let path = folder.join("tools").join(file);
    executable(&path, text)?;
    let mut sides = vec![Side::spawning("spawn", vec![OsString::from(&path)], "{}")];
    for orla in &programs.orlas {
        sides.push(Side::served_to_threads(
            &orla.name,
            orla.start(&folder)?,
            client::call("script", &json!({})),
        ));
    }
    Ok(row(name, FEW, sides))
}

/// Calls the server as a library, with a capability that needs no process, beside the official SDK's
/// own HTTP service.
fn embedded(programs: &Programs, _: Effort) -> Result<Prepared, String> {
    let call = client::call("echo", &arguments());
    Ok(row(
        EMBEDDED,
        MANY,
        vec![
            Side::served("bare echo", programs.bare_echo()?, call.clone()),
            Side::served("embedded", programs.embedded()?, call.clone()),
            Side::served("rmcp", example(&programs.sdk, &programs.folder)?, call),
        ],
    ))
}

/// Calls a built-in function.
fn builtin(programs: &Programs, _: Effort) -> Result<Prepared, String> {
    let folder = programs.fresh("builtin")?;
    fs::write(folder.join("orla.yaml"), "builtins: true\n").map_err(|err| err.to_string())?;
    let call = client::call("math__add", &json!({"a": 1, "b": 2}));
    let mut sides = vec![Side::served("bare echo", programs.bare_echo()?, call.clone())];
    for orla in &programs.orlas {
        sides.push(Side::served(&orla.name, orla.start(&folder)?, call.clone()));
    }
    Ok(row("built-in", MANY, sides))
}

/// Calls a built-in function on servers that keep less or more of its calls.
fn followed(programs: &Programs, _: Effort) -> Result<Prepared, String> {
    let settings = [
        ("not kept", "history: false"),
        ("in memory", ""),
        ("in a file", "history: {path: ./calls.db}"),
        ("traced, not sampled", "telemetry: {otlp: 'http://127.0.0.1:9', sample_ratio: 0}"),
    ];
    let call = client::call("math__add", &json!({"a": 1, "b": 2}));
    let mut sides = Vec::new();
    for (name, setting) in settings {
        let folder = programs.fresh(&format!("followed, {name}"))?;
        let config = format!("builtins: true\n{setting}\n");
        fs::write(folder.join("orla.yaml"), config).map_err(|err| err.to_string())?;
        sides.push(Side::served(name, programs.orlas[0].start(&folder)?, call.clone()));
    }
    Ok(row(FOLLOWED, FEW, sides))
}

/// Calls a built-in function without a token, with one of the configuration, with an access token that was
/// checked before, and with quotas.
fn identified(programs: &Programs, _: Effort) -> Result<Prepared, String> {
    const TOKEN: &str = "a-token-of-the-bench";
    let issuer = Issuer::start();
    let tokens = format!("auth_tokens: {{bench: {TOKEN}}}");
    let quotas = "quotas: [{capabilities: ['*'], per: second, calls: 10000000, concurrent: 10000}]";
    let sides = [
        ("no token", String::new(), None),
        ("token", tokens.clone(), Some(TOKEN.to_owned())),
        ("token, quotas", format!("{tokens}\n{quotas}"), Some(TOKEN.to_owned())),
        ("access token", issuer.config("{}", ""), Some(issuer.token("ES256", |_, _| {}))),
    ];
    let call = client::call("math__add", &json!({"a": 1, "b": 2}));
    let mut measured = Vec::new();
    for (name, setting, token) in sides {
        let folder = programs.fresh(&format!("identified, {name}"))?;
        let config = format!("builtins: true\n{setting}\n");
        fs::write(folder.join("orla.yaml"), config).map_err(|err| err.to_string())?;
        let call = match token {
            Some(token) => client::with_header(&call, "authorization", &format!("Bearer {token}")),
            None => call.clone(),
        };
        measured.push(Side::served(name, programs.orlas[0].start(&folder)?, call));
    }
    Ok(row(IDENTIFIED, FEW, measured))
}

/// A program in RTFS that makes ten calls at once.
pub(crate) const TEN_CALLS: &str = "; Adds one to ten numbers.\n(defn main [{:keys [from]} :- [:map [:from :int]]]\n  {:sums (pmap (fn [n] (call :math.add {:a n :b 1})) (range from (+ from 10)))})\n";

/// Runs [`TEN_CALLS`].
fn program(programs: &Programs, _: Effort) -> Result<Prepared, String> {
    let folder = programs.fresh("program")?;
    executable(&folder.join("tools/ten.rtfs"), TEN_CALLS)?;
    let call = client::call("ten", &json!({"from": 1}));
    let mut sides = vec![Side::served("bare echo", programs.bare_echo()?, call.clone())];
    for orla in &programs.orlas {
        sides.push(Side::served(&orla.name, orla.start(&folder)?, call.clone()));
    }
    Ok(row("program of ten calls", SOME, sides))
}

/// Returns a call as an MCP client writes it on a pipe.
fn mcp_line(id: usize) -> String {
    let params = format!(r#"{{"name":"echo","arguments":{}}}"#, arguments());
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{params}}}\n")
}

/// Returns a folder with the echoing capsule.
fn capsule_folder(programs: &Programs, name: &str) -> Result<PathBuf, String> {
    let folder = programs.fresh(name)?;
    package(&programs.echo_capsule, &folder.join("tools/echo"), "echo", "")?;
    Ok(folder)
}

/// Calls a capsule, beside its own pipes.
fn capsule(programs: &Programs, _: Effort) -> Result<Prepared, String> {
    let folder = capsule_folder(programs, "capsule")?;
    let call = client::call("echo", &arguments());
    let pipes = Pipes::greeted(&programs.echo_capsule)?;
    let mut sides = vec![
        Side::piped("its pipes", pipes, mcp_line, "structuredContent"),
        Side::served("bare echo", programs.bare_echo()?, call.clone()),
    ];
    for orla in &programs.orlas {
        sides.push(Side::served(&orla.name, orla.ready(&folder, &call)?, call.clone()));
    }
    Ok(row("capsule call", MANY, sides))
}

/// Calls a plugin, beside its own pipes.
fn plugin(programs: &Programs, _: Effort) -> Result<Prepared, String> {
    let folder = programs.fresh("plugin")?;
    let config = format!("plugins:\n  echo: {}\n", programs.echo_plugin.display());
    fs::write(folder.join("orla.yaml"), config).map_err(|err| err.to_string())?;
    let call = client::call("echo", &arguments());
    let line = |id: usize| format!("{{\"id\":{id},\"function\":\"echo\",\"input\":{}}}\n", arguments());
    let pipes = Pipes::start(&programs.echo_plugin)?;
    let mut sides = vec![
        Side::piped("its pipes", pipes, line, "Paris"),
        Side::served("bare echo", programs.bare_echo()?, call.clone()),
    ];
    for orla in &programs.orlas {
        sides.push(Side::served(&orla.name, orla.ready(&folder, &call)?, call.clone()));
    }
    Ok(row("plugin call", MANY, sides))
}

/// Calls a capsule of another instance, beside that instance.
fn remote(programs: &Programs, _: Effort) -> Result<Prepared, String> {
    let there = capsule_folder(programs, "remote-there")?;
    let call = client::call("echo", &arguments());
    let other = programs.orla().ready(&there, &call)?;
    let here = programs.fresh("remote-here")?;
    let config = json!({"remotes": {"there": {"url": format!("http://{}", other.address)}}});
    fs::write(here.join("orla.yaml"), config.to_string()).map_err(|err| err.to_string())?;
    let relayed = client::call("there__echo", &arguments());
    let mut sides = vec![Side::served("that instance", other, call)];
    for orla in &programs.orlas {
        sides.push(Side::served(&orla.name, orla.ready(&here, &relayed)?, relayed.clone()));
    }
    Ok(row("remote call", MANY, sides))
}

/// Calls an MCP server behind its pipes, beside a relay that reads nothing but the id, beside one on the HTTP stack of the
/// product, and in a full run beside published gateways.
///
/// The server is the smallest there is (`xtask/fixtures/echo_mcp.rs`), so that what is measured is what stands in between.
fn proxied(programs: &Programs, effort: Effort) -> Result<Prepared, String> {
    let call = client::call("echo", &arguments());
    let pipes = Pipes::start(&programs.echo_mcp)?;
    let mut sides = vec![
        Side::served("bare relay", programs.relay()?, call.clone()),
        Side::served("hyper relay", programs.hyper_relay()?, call.clone()),
        Side::piped("its pipes", pipes, mcp_line, "structuredContent"),
    ];
    let upstream = json!({"command": programs.echo_mcp});
    for orla in &programs.orlas {
        let server = in_front_of(orla, &programs.fresh(&format!("stdio-{}", orla.name))?, &upstream)?;
        sides.push(Side::served(&orla.name, server, call.clone()));
        let folder = programs.fresh(&format!("session-{}", orla.name))?;
        let server = in_front_of(orla, &folder, &upstream)?;
        let sessions = (0..MOST_CLIENTS)
            .map(|_| Ok(Session::open(&server.address, "/mcp")?.call("echo", &arguments())))
            .collect::<Result<_, String>>()?;
        sides.push(Side::served_to_sessions(&format!("{}, session", orla.name), server, sessions));
    }
    let mut skipped = Vec::new();
    if effort.gateways {
        for gateway in Gateway::ALL {
            match gateway.start(programs, &arguments()) {
                // Its answers may be events, each with an id of its own.
                Ok((server, call)) => sides.push(
                    Side::served_to_threads(gateway.name(), server, call).foreign(GATEWAY_CLIENTS),
                ),
                Err(problem) => {
                    let why = problem.lines().next().unwrap_or_default();
                    skipped.push(format!("{PROXIED}, {}: {why}", gateway.name()));
                }
            }
        }
    }
    Ok((Row { name: PROXIED, clients: MANY, sides }, skipped))
}

/// Calls an MCP server over HTTP, beside itself.
fn proxied_http(programs: &Programs, _: Effort) -> Result<Prepared, String> {
    let call = client::call("echo", &arguments());
    let upstream = programs.embedded()?;
    let entry = json!({"url": format!("http://{}/mcp", upstream.address)});
    let mut sides = vec![Side::served("upstream", upstream, call.clone())];
    for orla in &programs.orlas {
        let server = in_front_of(orla, &programs.fresh(&format!("http-{}", orla.name))?, &entry)?;
        sides.push(Side::served(&orla.name, server, call.clone()));
    }
    Ok(row("proxied call over HTTP", MANY, sides))
}

/// Large answers of an MCP server behind its pipes.
fn relayed(programs: &Programs, name: &'static str, tool: &str) -> Result<Prepared, String> {
    let call = client::call(tool, &json!({}));
    let mut sides = vec![
        Side::served("bare relay", programs.relay()?, call.clone()),
        Side::served("hyper relay", programs.hyper_relay()?, call.clone()),
    ];
    let upstream = json!({"command": programs.echo_mcp});
    for orla in &programs.orlas {
        let server = in_front_of(orla, &programs.fresh(&format!("{tool}-{}", orla.name))?, &upstream)?;
        sides.push(Side::served(&orla.name, server, call.clone()));
    }
    Ok(row(name, SOME, sides))
}

/// Orla with one MCP server behind it, which has answered once.
fn in_front_of(orla: &Orla, folder: &Path, entry: &Value) -> Result<Server, String> {
    let mut entry = entry.clone();
    entry["prefix"] = json!("");
    let config = json!({"mcpServers": {"upstream": entry}});
    fs::write(folder.join("orla.yaml"), config.to_string())
        .map_err(|err| format!("{}: {err}", folder.display()))?;
    orla.ready(folder, &client::call("echo", &arguments()))
}

impl Orla {
    /// Serves a folder.
    fn start(&self, folder: &Path) -> Result<Server, String> {
        let logs = folder.join("logs").join(&self.name);
        fs::create_dir_all(&logs).map_err(|err| format!("{}: {err}", logs.display()))?;
        Server::start(&self.binary, folder, &logs)
    }

    /// Serves a folder, and has listed its tools and answered a call.
    fn ready(&self, folder: &Path, call: &[u8]) -> Result<Server, String> {
        let server = self.start(folder)?;
        let mut connection = Connection::open(&server.address)?;
        connection.exchange(&client::sessionless("tools/list", json!({})))?;
        let answer = connection.exchange(call)?;
        if !client::is_good(&answer) {
            return Err(format!("unexpected answer: {}", String::from_utf8_lossy(answer.body)));
        }
        Ok(server)
    }
}

impl Programs {
    /// Returns the binary that is built from this tree.
    fn orla(&self) -> &Orla {
        &self.orlas[0]
    }

    /// Creates an empty folder with an empty `tools`.
    fn fresh(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.folder.join(name);
        fresh(&folder)?;
        fresh(&folder.join("tools"))?;
        Ok(folder)
    }

    fn bare_echo(&self) -> Result<Server, String> {
        example(&self.bare_echo, &self.folder)
    }

    fn embedded(&self) -> Result<Server, String> {
        example(&self.embedded, &self.folder)
    }

    fn relay(&self) -> Result<Server, String> {
        self.relay_to_echo(&self.relay)
    }

    fn hyper_relay(&self) -> Result<Server, String> {
        self.relay_to_echo(&self.hyper_relay)
    }

    /// Starts a relay in front of the echoing MCP server.
    fn relay_to_echo(&self, binary: &Path) -> Result<Server, String> {
        let mut relay = Command::new(binary);
        relay.arg(&self.echo_mcp);
        let log = self.folder.join(binary.file_name().unwrap_or_default()).with_extension("log");
        Server::listening(relay, &log, |line| {
            line.strip_prefix("listening on http://").map(str::to_owned)
        })
    }
}

/// One of the server crate's examples, which says where it listens on its first line.
fn example(binary: &Path, folder: &Path) -> Result<Server, String> {
    let mut command = Command::new(binary);
    command.arg("0");
    let log = folder.join(binary.file_name().unwrap_or_default()).with_extension("log");
    Server::listening(command, &log, |line| {
        Some(line.strip_prefix("listening on http://")?.strip_suffix("/mcp")?.to_owned())
    })
}
