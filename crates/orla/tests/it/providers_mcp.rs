//! MCP servers out of a configuration, as their clients' own files have it.

use orla_e2e::{Server, World, eventually};
use serde_json::{Value, json};

use crate::mcp_script::mcp_script;
use crate::upstream::Upstream;
use crate::world;

/// A server over standard input and output, without an SDK. `TOOLS` names its tools.
const SERVER: &str = r#"
import json, os, sys
def out(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n"); sys.stdout.flush()
names = os.environ.get("TOOLS", "add,env").split(",")
schema = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
tools = [{"name": n, "description": f"Does {n}.", "inputSchema": schema} for n in names]
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m: continue
    method, p = m.get("method"), m.get("params") or {}
    if method == "initialize":
        result = {"protocolVersion": p["protocolVersion"], "capabilities": {"tools": {}, "prompts": {}},
                  "serverInfo": {"name": "calc", "version": "1"}}
    elif method == "tools/list": result = {"tools": tools}
    elif method == "prompts/list": result = {"prompts": [{"name": "plan", "description": "Plans."}]}
    elif method == "tools/call":
        a = p.get("arguments") or {}
        text = str(a["a"] + a["b"]) if p["name"] == "add" else f"{p['name']} {os.environ.get('GREETING')} {os.getpid()}"
        result = {"content": [{"type": "text", "text": text}]}
        if p["name"] == "explicit": result["isError"] = False
    else:
        out({"id": m["id"], "error": {"code": -32601, "message": "not here"}}); continue
    out({"id": m["id"], "result": result})
"#;

fn calc() -> World {
    world().file("calc.py", SERVER)
}

/// Returns how many servers run.
fn processes(server: &Server) -> usize {
    server.processes().iter().filter(|process| process.command_line.contains("calc.py")).count()
}

fn row(server: &Server, name: &str) -> Value {
    let status = server.status();
    let rows = status["capabilities"].as_array().expect("a list");
    rows.iter().find(|row| row["name"] == name).cloned().unwrap_or_default()
}

#[test]
fn a_rule_that_matches_no_tool_of_a_listed_server_is_warned_of() {
    let config = "mcpServers:\n  calc: {command: python3, args: [calc.py], exclude: ['evn*'], rename: {adn: x}}\n  \
        gone: {command: no-such-program, exclude: [y]}\n\
        approve:\n- {capabilities: [calc.ad, calc.add, calc__env, gone.x, 'calc.*']}\n";
    let listed = calc().config(config).run(&["list"]);
    for rule in ["calc.exclude: `evn*`", "calc.rename: `adn`"] {
        assert!(listed.stderr.contains(&format!("mcpServers.{rule} fits no tool")), "{listed:?}");
    }
    assert!(!listed.stderr.contains("gone.exclude"), "{listed:?}");
    let warned = |name: &str| listed.stderr.contains(&format!("`{name}` fits no capability"));
    assert!(warned("calc.ad") && listed.stderr.contains("did you mean calc.add?"), "{listed:?}");
    for name in ["calc.add", "calc__env", "gone.x", "calc.*"] {
        assert!(!warned(name), "{listed:?}");
    }
    // A running server says it when its MCP server has listed its tools.
    let server = calc().config(config).serve();
    assert!(server.client().tool_names().iter().any(|name| name == "calc__env"));
    server.log_says(&["`calc.ad` fits no capability"]);
    server.log_says(&["mcpServers.calc.exclude: `evn*` fits no tool"]);
}

#[test]
fn a_success_that_a_server_states_is_passed_on() {
    let config = r#"{"mcpServers": {"calc": {"command": "python3", "args": ["calc.py"], "env": {"TOOLS": "explicit,plain"}}}}"#;
    let server = calc().file("orla.json", config).serve();
    let mut client = server.client();
    assert_eq!(client.call("calc__explicit", json!({})).json["isError"], json!(false));
    assert_eq!(client.call("calc__plain", json!({})).json.get("isError"), None);
}

#[test]
fn a_server_pasted_from_another_clients_file_is_served() {
    let config = r#"{
      // As VS Code has it.
      "inputs": [{"type": "promptString", "id": "greet", "description": "How?", "default": "hello"}],
      "servers": {
        "calc": {
          "type": "stdio", "command": "python3", "args": ["${workspaceFolder}/calc.py"],
          "env": {"GREETING": "${input:greet}"}, "gallery": true,
        },
      }
    }"#;
    let world = calc().file(".vscode/mcp.json", config).file("orla.json", "{}");
    let arguments = ["--config", ".vscode/mcp.json"];
    let called = world.run(&[&["call"], &arguments[..], &["calc__env"]].concat());
    assert!(called.stdout.starts_with("env hello "), "{}", called.all());
    let server = world.arg("--config").arg(".vscode/mcp.json").serve();
    for mut client in server.clients() {
        assert_eq!(client.tool_names(), ["calc__add", "calc__env"]);
        assert_eq!(client.tool("calc__add")["description"], "Does add.");
        assert_eq!(client.call("calc__add", json!({"a": 1, "b": 2})).text(), "3");
        assert_eq!(client.call("calc.add", json!({"a": 2, "b": 2})).text(), "4");
        let prompts = client.request("prompts/list", json!({})).unwrap();
        assert_eq!(prompts["prompts"][0]["name"], "calc__plan");
    }
    let shown = row(&server, "calc__add");
    assert_eq!((&shown["kind"], &shown["state"]), (&json!("mcp"), &json!("READY")));
    assert_eq!(server.logged("warn").iter().filter(|line| line.says(&["gallery"])).count(), 0);
}

#[test]
fn settings_of_a_server_entry_change_what_is_served() {
    let config = "mcpServers:\n  calc:\n    command: python3\n    args: [calc.py]\n    cwd: .\n    env: {TOOLS: 'add,env,drop_all,log'}\n    prefix: c_\n    rename: {env: surroundings}\n    exclude: ['drop_*', log]\ntools:\n  c_add: {description: Adds two numbers.}\n";
    let server = calc().config(config).serve();
    let mut client = server.client();
    let names = client.tool_names();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names.contains(&"c_add".to_owned()), "{names:?}");
    assert_eq!(client.tool("c_add")["description"], "Adds two numbers.");
    assert_eq!(client.call("c_add", json!({"a": 1, "b": 2})).text(), "3");
}

#[test]
fn reload_adds_keeps_and_removes_servers() {
    let entry = |name: &str, greeting: &str| {
        format!(
            "  {name}: {{command: python3, args: [calc.py], cwd: ., env: {{TOOLS: env, GREETING: {greeting}}}}}\n"
        )
    };
    let server = calc().config(&format!("mcpServers:\n{}", entry("one", "a"))).serve();
    assert_eq!(server.client().tool_names(), ["one__env"]);
    let first = server.client().call("one__env", json!({})).text();
    server.write("orla.yaml", format!("mcpServers:\n{}{}", entry("one", "a"), entry("two", "b")), 0o644);
    server.reload();
    eventually("both are served", || server.client().tool_names() == ["one__env", "two__env"]);
    assert_eq!(server.client().call("one__env", json!({})).text(), first, "the process is the same");
    assert!(server.client().call("two__env", json!({})).text().starts_with("env b "));
    server.write("orla.yaml", format!("mcpServers:\n{}", entry("two", "c")), 0o644);
    server.reload();
    eventually("one is gone", || server.client().tool_names() == ["two__env"]);
    eventually("the changed one runs anew", || {
        server.client().call("two__env", json!({})).text().starts_with("env c ")
    });
    eventually("no process is left behind", || processes(&server) == 1);
    server.write("orla.yaml", "mcpServers: {two: {comand: x}}\n", 0o644);
    server.signal(rustix::process::Signal::HUP);
    server.log_says(&["the new configuration is invalid", "did you mean command"]);
    assert_eq!(server.client().tool_names(), ["two__env"]);
}

#[test]
fn a_capability_is_one_tool_of_a_server_or_all_of_them() {
    let config = "mcpServers: {calc: {command: python3, args: [calc.py], cwd: ., include: none}}\ncapabilities:\n- {id: sum, description: Adds., provider: {MCP: {server_url: 'mcp:calc', tool_name: add, timeout_ms: 5000}}}\n- {id: all, provider: {type: mcp, server_url: 'stdio:python3 calc.py'}}\n";
    let server = calc().config(config).serve();
    let mut client = server.client();
    assert_eq!(client.tool_names(), ["all__add", "all__env", "sum"]);
    assert_eq!(client.call("sum", json!({"a": 1, "b": 2})).text(), "3");
    assert_eq!(client.call("all.add", json!({"a": 1, "b": 3})).text(), "4");
    assert_eq!(client.tool("sum")["description"], "Adds.");
    assert_eq!(processes(&server), 2, "one for each server");
}

#[test]
fn a_tool_name_may_be_a_pattern_and_one_that_no_tool_has_is_a_finding() {
    let config = "mcpServers: {calc: {command: python3, args: [calc.py], cwd: ., include: none}}\ncapabilities:\n- {id: some, provider: {MCP: {server_url: 'mcp:calc', tool_name: 'a*', timeout_ms: 5000}}}\n";
    let world = calc().config(config);
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{}", checked.all());
    let server = world.serve();
    let mut client = server.client();
    assert_eq!(client.tool_names(), ["some__add"]);
    assert_eq!(client.call("some__add", json!({"a": 1, "b": 2})).text(), "3");

    let lost = "- {id: lost, description: Lost., provider: {MCP: {server_url: 'mcp:calc', tool_name: none}}}\n- {id: gone, provider: {MCP: {server_url: 'mcp:calc', tool_name: 'z*'}}}\n- {id: dead, provider: {MCP: {server_url: 'stdio:/nonexistent', tool_name: x}}}\n";
    let world = calc().config(&format!("{config}{lost}"));
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{}", checked.all());
    for problem in [
        "lost: the MCP server calc has no tool none; it has add, env",
        "gone: the MCP server calc has no tool z*; it has add, env",
        "dead: MCP server",
        "orla.yaml:4:8",
    ] {
        assert!(checked.stderr.contains(problem), "{problem} in {}", checked.stderr);
    }
    let server = world.serve();
    let mut client = server.client();
    eventually("what is not there is not listed", || {
        let names = client.tool_names();
        names.contains(&"some__add".to_owned()) && !names.contains(&"lost".to_owned())
    });
    server.log_says(&["lost: the MCP server calc has no tool none"]);
    let called = client.call("lost", json!({}));
    assert!(called.is_error() && called.text().contains("has no tool none"), "{}", called.json);
}

#[test]
fn a_server_that_does_not_start_delays_no_other_and_reports_why() {
    let config = "mcpServers:\n  none: {command: /no/such/program}\n  calc: {command: python3, args: [calc.py], cwd: .}\n";
    let world = calc().config(config);
    assert_eq!(world.run(&["check"]).code, Some(1));
    let server = world.serve();
    assert_eq!(server.client().tool_names(), ["calc__add", "calc__env"]);
    server.log_says(&["none", "could not start"]);
    let status = server.status();
    let problem = status["problems"][0].as_str().unwrap_or_default();
    assert!(problem.starts_with("MCP server none: "), "{status}");
    assert_eq!(status["problems"].as_array().map(Vec::len), Some(1));
    let listed = server.run(&["list"]);
    assert!(listed.stderr.contains("MCP server none: "), "{}", listed.all());
    let url = format!("http://{}", server.address());
    for (command, code) in [("list", 0), ("status", 0), ("check", 1)] {
        let output = server.run(&[command, "--url", &url]);
        assert_eq!(output.code, Some(code), "{command}: {}", output.all());
        assert!(output.stderr.contains("MCP server none: "), "{command}: {}", output.all());
    }
}

/// No client has come, so nothing has started them.
#[test]
fn a_server_is_listed_and_checked_with_what_its_servers_serve() {
    let serve = |more: &str| {
        let config = "mcpServers:\n  calc: {command: python3, args: [calc.py], cwd: .}\n";
        calc().config(&format!("{config}{more}")).serve()
    };
    let run = |server: &Server, command: &str| {
        server.run(&[command, "--url", &format!("http://{}", server.address())])
    };
    for command in ["list", "check"] {
        let server = serve("  none: {command: /no/such/program}\n");
        let output = run(&server, command);
        assert_eq!(output.code, Some(i32::from(command == "check")), "{}", output.all());
        assert!(output.stderr.contains("MCP server none: "), "{command}: {}", output.all());
        assert!(command == "check" || output.stdout.contains("calc__add"), "{}", output.all());
    }
    let server = serve("");
    let checked = run(&server, "check");
    assert_eq!(
        (checked.code, checked.stdout.contains("2 capabilities")),
        (Some(0), true),
        "{checked:?}"
    );
}

#[test]
fn a_session_that_calls_before_it_lists_finds_what_a_server_serves() {
    let config = "mcpServers: {calc: {command: python3, args: [calc.py], cwd: .}}\n";
    let server = calc().config(config).serve();
    let mut client = server.session();
    assert_eq!(client.call("calc__add", json!({"a": 1, "b": 2})).text(), "3");
    assert_eq!(client.try_call("calc__none", json!({})).unwrap_err().code, -32602);
}

#[test]
fn keys_in_a_servers_output_are_redacted() {
    let config = "mcpServers:\n  bad: {command: /bin/sh, args: [-c, 'echo the key is $API_KEY >&2; exit 3'], env: {API_KEY: canary-4242}}\n";
    let server = world().config(config).serve();
    server.client().tool_names();
    server.log_says(&["the key is ***"]);
    let listed = server.run(&["list"]);
    let output = format!("{} {} {}", server.log(), server.status(), listed.all());
    assert!(!output.contains("canary-4242"), "{output}");
}

#[test]
fn a_program_that_does_not_exist_is_found_by_check_and_named_in_the_error() {
    let config = "mcpServers:
  gone: {command: /nowhere/server}
  unknown: {command: no-such-server-anywhere}
  plain: {command: ./plain.txt}
capabilities:
  - {id: own, provider: {MCP: {server_url: 'stdio:/nonexistent --flag', tool_name: t, timeout_ms: 9000}}}
";
    let world = world().file("plain.txt", "").config(config);
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{}", checked.all());
    for problem in [
        "mcpServers.gone.command: /nowhere/server was not found at orla.yaml:2:3",
        "mcpServers.unknown.command: no-such-server-anywhere is not in PATH at orla.yaml:3:3",
        "plain.txt is not executable",
        "own: /nonexistent was not found at orla.yaml:6:10",
    ] {
        assert!(checked.stderr.contains(problem), "{problem}\n{}", checked.stderr);
    }
    let server = world.serve();
    let result = server.client().call("own", json!({}));
    let sentence = result.sentence();
    assert!(sentence.contains("/nonexistent was not found") && !sentence.contains("gone"), "{sentence}");
}

/// Returns a server whose start lasts until the file `gate` is there.
fn with_a_slow_server(more: &str) -> World {
    let slow = mcp_script(
        "t",
        "import time\nwhile not os.path.exists('gate'): time.sleep(0.01)",
        "        result = {}",
    );
    let config = "mcpServers:\n  calc: {command: python3, args: [calc.py], cwd: .}\n  slow: {command: python3, args: [slow.py], \
                  cwd: ., startup_timeout: 3600}\n";
    calc().file("slow.py", slow).config(&format!("{config}{more}"))
}

#[test]
fn a_server_that_starts_slowly_does_not_hold_up_the_tools_of_the_others() {
    let server = with_a_slow_server("listing_timeout: 0.5\n").serve();
    let mut session = server.session();
    let mut changes = session.notification_stream(server.address());
    eventually("the others are listed", || session.tool_names() == ["calc__add", "calc__env"]);
    let prompts = session.request("prompts/list", json!({})).unwrap();
    assert_eq!(prompts["prompts"][0]["name"], "calc__plan");
    server.write("gate", "", 0o644);
    loop {
        let event = changes.next_event().unwrap().expect("a notification");
        let is_there = |names: Vec<String>| names == ["calc__add", "calc__env", "slow__t"];
        if event.contains("notifications/tools/list_changed") && is_there(session.tool_names()) {
            break;
        }
    }
}

#[test]
fn list_waits_for_slow_servers_and_names_them() {
    let mut listing = with_a_slow_server("listing_timeout: 0.5\n").at_terminal(&["list"]);
    listing.shows(0, "Waiting for slow");
    listing.write("gate", "", 0o644);
    let shown = listing.shows_to_its_end();
    assert!(shown.contains("slow__t") && shown.contains("calc__add"), "{shown}");
}

#[test]
fn a_server_that_refuses_orla_is_logged_once_with_advice() {
    let upstream = Upstream::start();
    for (path, status) in [("/old", 405), ("/closed", 403)] {
        upstream.set(&format!("POST {path}"), status, "");
    }
    let entry = |name: &str| format!("  {name}: {{url: '{}/{name}'}}\n", upstream.url());
    let server = world().config(&format!("mcpServers:\n{}{}", entry("old"), entry("closed"))).serve();
    assert_eq!(server.client().tool_names(), [] as [&str; 0]);
    for (name, words) in [("old", "ends in /mcp"), ("closed", "are its headers right?")] {
        server.log_says(&[name, "CRASHED", words]);
        let count =
            upstream.requests().iter().filter(|request| request.line == format!("POST /{name}")).count();
        // As 2026-07-28 and as the older revisions do.
        assert_eq!(count, 2, "{name} is not asked again soon");
    }
    assert_eq!(server.logged("warn").iter().filter(|line| line.says(&["CRASHED"])).count(), 2);
    let unknown = server.run(&["login", "nosuch"]);
    assert!(unknown.stderr.contains("the configuration has none"), "{}", unknown.all());
}

#[test]
fn a_directory_that_does_not_exist_is_named_as_such() {
    let config = "mcpServers:\n  calc: {command: python3, args: [calc.py], cwd: nowhere}\n";
    let world = calc().config(config);
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{}", checked.all());
    assert!(
        checked.stderr.contains("mcpServers.calc.cwd: ") && checked.stderr.contains("orla.yaml:2:3")
    );
    let listed = world.run(&["list"]);
    let words = ["it could not start: its directory ", "nowhere does not exist (cwd)"];
    assert!(words.iter().all(|words| listed.stderr.contains(words)), "{}", listed.all());
}

/// A server with one thread. `long` waits for a file, `deaf` never reads again.
const SINGLE: &str = r#"
import json, os, sys, time
def out(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n"); sys.stdout.flush()
tools = [{"name": n, "inputSchema": {"type": "object"}} for n in ("long", "deaf", "quick")]
for line in sys.stdin:
    m = json.loads(line)
    method, p = m.get("method"), m.get("params") or {}
    if "id" not in m: continue
    result = {}
    if method == "initialize":
        result = {"protocolVersion": p["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list": result = {"tools": tools}
    elif method == "tools/call":
        while p["name"] == "long" and not os.path.exists("gate"): time.sleep(0.01)
        while p["name"] == "deaf": time.sleep(1)
        result = {"content": [{"type": "text", "text": str(os.getpid())}]}
    elif method != "ping":
        out({"id": m["id"], "error": {"code": -32601, "message": "not here"}}); continue
    out({"id": m["id"], "result": result})
"#;

fn single() -> Server {
    let config = "mcpServers: {s: {command: python3, args: [single.py], cwd: .}}\ntools: {s__quick: {timeout: 0.3}, s__deaf: {timeout: 0.3}}\n";
    let server = world().file("single.py", SINGLE).config(config).serve();
    eventually("it is ready", || server.client().tool_names().len() == 3);
    server
}

#[test]
fn a_server_that_is_busy_with_one_long_call_is_left_alone() {
    let server = single();
    let (mut first, mut others) = (server.client(), server.client());
    let long = first.begin_call("s__long", json!({}));
    eventually("the call is under way", || {
        server.client().call("s__quick", json!({})).sentence().contains("timed out")
    });
    for _ in 0..5 {
        assert!(others.call("s__quick", json!({})).is_error());
    }
    server.write("gate", "", 0o644);
    let pid = first.finish_call(long).unwrap().text();
    eventually("it answers others", || others.call("s__quick", json!({})).text() == pid);
    assert_eq!(row(&server, "s__quick")["restarts"], 0);
}

#[test]
fn a_server_that_does_not_answer_a_ping_while_calls_wait_is_restarted() {
    let server = single();
    let mut client = server.client();
    assert!(client.call("s__deaf", json!({})).sentence().contains("timed out"));
    // This one waits behind the ping, and would for as long as it may.
    let lost = client.call("s__long", json!({}));
    assert!(lost.is_error() && lost.sentence().contains("does not answer a ping"), "{}", lost.json);
    eventually("the next process answers", || !server.client().call("s__quick", json!({})).is_error());
    server.log_says(&["warn", "it hung", "does not answer a ping"]);
}
