//! `orla sandbox learn` for processes that stay between calls. It proposes permissions for the observed
//! actions, in the form in which they are granted.

use orla_e2e::World;

use crate::packages::{SERVER, bundle, call, ok, project, refused};
use crate::world;

/// Reads a file of the world for a call, and another one at its start.
fn reader(world: &World) -> String {
    let says = r#""VERSION " + os.environ.get("KEY", "no key")"#;
    assert!(SERVER.contains(says));
    let read = |file: &str| format!("open({:?}).read()", world.path(file).display().to_string());
    let begin = "import sys, json, os\n";
    SERVER.replace(says, &read("data/in")).replacen(
        begin,
        &format!("{begin}try: {}\nexcept OSError: pass\n", read("start/in")),
        1,
    )
}

/// Returns the proposal; `None` where no actions can be recorded.
fn learned(world: &World, arguments: &[&str]) -> Option<String> {
    let output = world.run(&[&["sandbox", "learn"], arguments].concat());
    if output.stderr.contains("strace records what a tool does") {
        // Not every system has it.
        return None;
    }
    assert_eq!(output.code, Some(0), "{}", output.all());
    Some(output.stdout)
}

fn files() -> World {
    project().file("data/in", "inside").file("start/in", "at its start")
}

#[test]
fn permissions_of_an_installed_server_are_learned_and_granted() {
    let world = files();
    world.write("server.py", reader(&world), 0o644);
    bundle(&world, "w.mcpb", "1.0.0", "{}", &[]);
    ok(&world, &["add", "mcpb:w.mcpb", "--yes"]);
    assert!(call(&world, "weather.forecast") != "inside");
    let Some(proposed) = learned(&world, &["weather.forecast", "--yes"]) else { return };
    let grant = "orla update weather --allow fs:read:./data/in --allow fs:read:./start/in\n";
    assert_eq!(proposed, grant);
    refused(&world, &["sandbox", "learn", "weather"], &["without confinement", "--yes"]);
    let start = learned(&world, &["weather", "--yes"]);
    assert_eq!(start.as_deref(), Some("orla update weather --allow fs:read:./start/in\n"));
    let grant: Vec<&str> = proposed.split_whitespace().skip(1).chain(["--yes"]).collect();
    ok(&world, &grant);
    assert_eq!(call(&world, "weather.forecast"), "inside");
    assert_eq!(learned(&world, &["weather__forecast", "--yes"]).as_deref(), Some(""));
    refused(&world, &["sandbox", "learn", "weather.frocast", "--yes"], &["the call failed", "frocast"]);
}

/// Confined, it may not write there, and unconfined it changes itself.
#[test]
fn a_package_that_changes_its_own_files_is_reported() {
    let world = files();
    let begin = "import sys, json, os\n";
    let writes = format!(
        "{begin}try: open(os.path.dirname(os.path.abspath(__file__)) + \"/notes.txt\", \"w\").write(\"x\")\nexcept OSError: pass\n"
    );
    world.write("server.py", reader(&world).replacen(begin, &writes, 1), 0o644);
    bundle(&world, "w.mcpb", "1.0.0", "{}", &[]);
    ok(&world, &["add", "mcpb:w.mcpb", "--yes"]);
    let output = world.run(&["sandbox", "learn", "weather.forecast", "--yes"]);
    if output.stderr.contains("strace records what a tool does") {
        return;
    }
    let proposed = "orla update weather --allow fs:read:./data/in --allow fs:read:./start/in\n";
    assert_eq!(output.stdout, proposed, "{}", output.all());
    let warning = "it is not served until `orla sync` restores them";
    assert!(output.stderr.contains(warning), "{}", output.stderr);
    refused(&world, &["call", "weather.forecast"], &["orla sync"]);
    ok(&world, &["sync", "--yes"]);
    ok(&world, &["update", "weather", "--yes", "--allow", "fs:read:data/in"]);
    assert_eq!(call(&world, "weather.forecast"), "inside");
    let own = world.path(".orla/packages").display().to_string();
    for path in [".orla/packages/x", "./.orla/packages", &own] {
        let allow = format!("fs:write:{path}");
        refused(
            &world,
            &["update", "weather", "--yes", "--allow", &allow],
            &["stay those of their archives"],
        );
    }
}

#[test]
fn permissions_of_a_configured_server_are_learned_and_declared() {
    let world = files();
    world.write("server.py", reader(&world), 0o644);
    // Another server with the same interpreter, which is not to be recorded.
    world.write("other.py", "open('start/in').read()\n", 0o644);
    let entry = "mcpServers:\n  other:\n    command: python3\n    args: [other.py]\n  notes:\n    command: python3\n    args: [server.py]\n";
    world.write("orla.yaml", entry, 0o644);
    let Some(proposed) = learned(&world, &["notes.forecast"]) else { return };
    let line = "    permissions: ['fs:read:./data/in', 'fs:read:./start/in']\n";
    assert_eq!(proposed, format!("mcpServers:\n  notes:\n{line}"));
    world.write("orla.yaml", format!("{entry}    permissions: []\n"), 0o644);
    assert!(call(&world, "notes.forecast") != "inside");
    world.write("orla.yaml", format!("{entry}{line}"), 0o644);
    assert_eq!(call(&world, "notes.forecast"), "inside");
    // The process ends before it reports its capabilities.
    let output = world.run(&["sandbox", "learn", "other"]);
    assert!(output.stderr.contains("the call failed"), "{}", output.all());
}

#[test]
fn permissions_of_npx_itself_are_covered_by_its_preset() {
    let world = files().file(".npm/x", "downloaded");
    world.write("server.py", reader(&world), 0o644);
    world.write("bin/npx", "#!/bin/sh\nread x < ~/.npm/x\nexec python3 server.py\n", 0o755);
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", world.path("bin").display());
    let world = world.env("PATH", path);
    world.write("orla.yaml", "mcpServers: {notes: {command: npx, args: [-y, notes]}}\n", 0o644);
    let Some(proposed) = learned(&world, &["notes.forecast", "--json"]) else { return };
    assert!(proposed.contains("\"preset:npx\"") && proposed.contains("\"fs:read:./data/in\""));
    assert!(!proposed.contains(".npm"), "{proposed}");
}

#[test]
fn permissions_of_a_capsule_are_learned_and_declared() {
    let world = world().config("log_level: info\n").file("data/in", "inside");
    let manifest =
        "name: notes\nversion: 1.0.0\nentrypoint: main.py\nruntime: {mode: capsule}\npermissions: []\n";
    let code = format!(
        r#"#!/usr/bin/env python3
import sys, json
def out(m): print(json.dumps({{"jsonrpc": "2.0", **m}}), flush=True)
out({{"method": "orla.hello", "params": {{"name": "notes", "version": "1.0.0", "capabilities": ["tools"]}}}})
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "tools/call": out({{"id": m["id"], "result": {{"content": [{{"type": "text", "text": open({:?}).read()}}]}}}})
    elif "id" in m: out({{"id": m["id"], "error": {{"code": -32601, "message": "no"}}}})
"#,
        world.path("data/in").display().to_string()
    );
    world.write("tools/notes/tool.yaml", manifest, 0o644);
    world.write("tools/notes/main.py", code, 0o755);
    let Some(proposed) = learned(&world, &["notes"]) else { return };
    assert_eq!(proposed, "permissions: ['fs:read:~/data/in']\n");
    assert!(call(&world, "notes") != "inside");
    world.write("tools/notes/tool.yaml", manifest.replace("permissions: []\n", &proposed), 0o644);
    assert_eq!(call(&world, "notes"), "inside");
}
