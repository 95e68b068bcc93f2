//! Attestations: which authorities attest the content of capabilities, and the effects of changed
//! content.

use std::os::unix::fs::PermissionsExt;

use orla_e2e::{Finished, World, eventually};
use serde_json::{Value, json};

use crate::audit::events;
use crate::{sh, world};

/// Returns the line of `trusted_keys` for a new key in `key.pem`.
fn key(world: &World) -> String {
    let made = world.run(&["attest", "--new-key", "key.pem", "--authority", "ops"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    made.stdout
}

/// Returns a world with two tools that `ops` attests, and this additional configuration.
fn attested(config: &str) -> World {
    let world = world().tool("one", sh("# One.\necho 1")).tool("two", sh("# Two.\necho 2"));
    let trusted = key(&world);
    let world = world.config(&format!("{trusted}{config}"));
    let done = world.run(&["attest", "--key", "key.pem"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    world
}

fn statuses(world: &World, arguments: &[&str]) -> (Option<i32>, Vec<(String, String)>) {
    let verified = world.run(&[&["verify", "--json"][..], arguments].concat());
    let rows: Value =
        serde_json::from_str(&verified.stdout).unwrap_or_else(|err| panic!("{err}: {verified:?}"));
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let rows = rows.as_array().expect("a list").iter();
    (verified.code, rows.map(|row| (text(row, "id"), text(row, "status"))).collect())
}

fn rows(rows: &[(&str, &str)]) -> Vec<(String, String)> {
    rows.iter().map(|(id, status)| ((*id).to_owned(), (*status).to_owned())).collect()
}

#[test]
fn a_new_key_is_its_owners_alone_and_overwrites_nothing() {
    let world = world();
    let trusted = key(&world);
    assert!(trusted.starts_with("trusted_keys:\n  ops: \"ed25519:"), "{trusted}");
    let mode = std::fs::metadata(world.path("key.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let before = world.read("key.pem");
    let again = world.run(&["attest", "--new-key", "key.pem"]);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert_eq!(world.read("key.pem"), before);
    assert_eq!(world.run(&["attest"]).code, Some(2), "which key?");
    let world = world.tool("t", sh("echo"));
    let whose = world.run(&["attest", "--key", "key.pem"]);
    assert!(whose.code == Some(2) && whose.stderr.contains("--authority"), "{whose:?}");
}

#[test]
fn verify_reports_what_holds_and_what_changed() {
    let world = attested("");
    assert_eq!(statuses(&world, &[]), (Some(0), rows(&[("one", "verified"), ("two", "verified")])));
    world.write("tools/two", sh("# Two.\necho 3"), 0o755);
    world.write("tools/new", sh("# New.\necho"), 0o755);
    let expected = rows(&[("new", "not attested"), ("one", "verified"), ("two", "broken")]);
    assert_eq!(statuses(&world, &[]), (Some(1), expected));
    assert_eq!(statuses(&world, &["one"]).0, Some(0));
    let output = world.run(&["verify"]);
    assert!(output.stdout.contains("the content has changed"), "{output:?}");
    // The description is part of the attested content.
    let text = world.read("orla.yaml");
    world.write("orla.yaml", format!("{text}tools: {{one: {{description: Other}}}}\n"), 0o644);
    let output = world.run(&["verify", "one"]);
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.stdout.contains("its manifest has changed"), "{output:?}");
    // No attestation is required, so everything is served, and invalid attestations are not shown.
    let server = world.serve();
    assert_eq!(server.client().tool_names(), ["new", "one", "two"]);
    assert!(!server.status().to_string().contains("attested_by"), "{}", server.status());
}

/// A sidecar chooses what runs and how it is confined, so it is a part of what is attested.
#[test]
fn a_changed_added_or_removed_sidecar_breaks_an_attestation() {
    let names = ["block", "changed", "confined", "none", "removed"];
    let mut world = world().tool("block", sh("# /// orla\n# permissions: []\n# ///\necho"));
    for name in &names[1..] {
        world = world.tool(name, sh("# Says hello.\necho hello"));
    }
    let sidecar = |name: &str, text: &str| {
        world.write(format!("tools/{name}.orla.yaml"), text, 0o644);
    };
    sidecar("changed", "args: [-v]\n");
    sidecar("confined", "permissions: []\n");
    sidecar("removed", "env: {MODE: safe}\n");
    let trusted = key(&world);
    world.write("orla.yaml", format!("{trusted}require_attestation: true\n"), 0o644);
    assert_eq!(world.run(&["attest", "--key", "key.pem"]).code, Some(0));
    let verified = names.map(|name| (name, "verified"));
    assert_eq!(statuses(&world, &[]), (Some(0), rows(&verified)));
    sidecar("changed", "args: [-c]\n");
    sidecar("confined", "");
    sidecar("none", "env: {PATH: /tmp}\n");
    std::fs::remove_file(world.path("tools/removed.orla.yaml")).expect("the sidecar");
    let broken = names.map(|name| (name, if name == "block" { "verified" } else { "broken" }));
    assert_eq!(statuses(&world, &[]), (Some(1), rows(&broken)));
    assert_eq!(world.run(&["call", "none"]).code, Some(1));
    assert_eq!(world.serve().client().tool_names(), ["block"]);
}

#[test]
fn an_attestation_that_was_forged_or_has_expired_does_not_hold() {
    let world = attested("");
    let text = world.read("orla.attestations.json");
    let forged = text.replacen("\"signature\": \"", "\"signature\": \"AAAA", 1);
    world.write("orla.attestations.json", forged, 0o644);
    assert_eq!(statuses(&world, &[]).0, Some(1));
    let swapped = text.replace("\"one\"", "\"x\"").replace("\"two\"", "\"one\"");
    world.write("orla.attestations.json", swapped.replace("\"x\"", "\"two\""), 0o644);
    let both = rows(&[("one", "broken"), ("two", "broken")]);
    assert_eq!(statuses(&world, &[]), (Some(1), both), "one is no attestation of the other");
    let until = world.run(&["attest", "one", "--key", "key.pem", "--expires", "1"]);
    assert_eq!(until.code, Some(0), "{until:?}");
    let text = world.read("orla.attestations.json");
    assert_eq!(statuses(&world, &["one"]).0, Some(0));
    let at = text.find("\"expires_at\": \"").expect("an end") + "\"expires_at\": \"".len();
    let longer = format!("{}2099{}", &text[..at], &text[at + 4..]);
    world.write("orla.attestations.json", longer, 0o644);
    assert_eq!(statuses(&world, &["one"]).0, Some(1), "its end cannot be moved");
}

#[test]
fn tools_without_a_required_attestation_are_not_listed_or_called() {
    let world = attested("require_attestation: true\nbuiltins: true\n");
    world.write("tools/new", sh("touch ran"), 0o755);
    world.write("tools/two", sh("# Two.\ntouch ran"), 0o755);
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    for words in
        ["new: not served", "there is no attestation for", "two: not served", "the content has changed"]
    {
        assert!(checked.stderr.contains(words), "{words}: {checked:?}");
    }
    for words in [["call", "new"], ["describe", "new"]] {
        let refused = world.run(&words);
        let why = "error: new: not served, because require_attestation is set: there is no attestation";
        assert!(refused.code == Some(1) && refused.stderr.starts_with(why), "{refused:?}");
    }
    assert_eq!(statuses(&world, &[]).0, Some(1));
    let server = world.serve();
    for mut client in server.clients() {
        let names = client.tool_names();
        assert!(names.contains(&"one".to_owned()) && names.len() > 3, "with the built-ins: {names:?}");
        for name in ["new", "two"] {
            assert!(!names.contains(&name.to_owned()), "{names:?}");
            assert!(client.try_call(name, json!({})).is_err(), "{name}");
        }
        assert_eq!(client.call("one", json!({})).stdout(), "1\n");
    }
    assert!(!server.path("ran").exists());
    let row = server.status()["capabilities"].as_array().unwrap().clone();
    let row = row.iter().find(|row| row["name"] == "one").expect("one");
    assert_eq!(row["attested_by"], "ops");
}

#[test]
fn a_tool_that_changed_after_loading_does_not_run() {
    let server = attested("require_attestation: true\naudit: audit.jsonl\n").serve();
    let mut client = server.session();
    assert_eq!(client.call("one", json!({})).stdout(), "1\n");
    server.write("tools/one", sh("# One.\ntouch ran"), 0o755);
    let refused = client.call("one", json!({}));
    assert!(refused.is_error() && refused.text().contains("attestation"), "{}", refused.json);
    assert!(!server.path("ran").exists());
    assert!(!server.status().to_string().contains("\"name\":\"one\",\"attested_by\""));
    // The attested content runs again, immediately.
    server.write("tools/one", sh("# One.\necho 1"), 0o755);
    assert_eq!(client.call("one", json!({})).stdout(), "1\n");
    assert_eq!(client.call("two", json!({})).stdout(), "2\n");
    server.write("tools/two", sh("# Two.\ntouch ran"), 0o755);
    server.reload();
    assert_eq!(server.client().tool_names(), ["one"]);
    server.log_says(&["two: not served", "the content has changed"]);
    eventually("the denial is recorded", || {
        events(&server, "audit.jsonl").contains(&"denied".to_owned())
    });
}

#[test]
fn a_stream_that_changed_after_loading_is_denied_as_a_resource() {
    let world = world();
    world.write("feed.sh", "#!/bin/sh\necho 1\n", 0o755);
    let trusted = key(&world);
    let world = world.config(&format!(
        "{trusted}require_attestation: true\naudit: audit.jsonl\ncapabilities:\n- id: feed\n  provider: {{stream: {{command: ./feed.sh}}}}\n"
    ));
    assert_eq!(world.run(&["attest", "--key", "key.pem"]).code, Some(0));
    let server = world.serve();
    let mut client = server.client();
    let mut read = || client.request("resources/read", json!({"uri": "stream://feed"}));
    read().expect("an answer");
    server.write("feed.sh", "#!/bin/sh\necho 2\n", 0o755);
    read().unwrap_err();
    let is_it =
        |line: &&str| line.contains(r#""method":"resources/read""#) && line.contains(r#""denied""#);
    let denied = || server.read("audit.jsonl").lines().find(is_it).map(str::to_owned);
    eventually("the denial is recorded", || denied().is_some());
    assert!(denied().is_some_and(|line| line.contains("requires a valid attestation")));
}

#[test]
fn an_attestation_covers_every_file_of_a_package() {
    let manifest = "name: pack\nversion: 1.0.0\nentrypoint: run.sh\n";
    let world = world().tool("pack/run.sh", sh(r#". "$(dirname "$0")/lib.sh"; echo $X"#));
    world.write("tools/pack/tool.yaml", manifest, 0o644);
    world.write("tools/pack/lib.sh", "X=good\n", 0o644);
    let trusted = key(&world);
    let world = world.config(&format!("{trusted}require_attestation: true\n"));
    assert_eq!(world.run(&["attest", "pack", "--key", "key.pem"]).code, Some(0));
    let server = world.serve();
    let mut client = server.client();
    assert!(!client.call("pack", json!({})).is_error());
    for change in ["tools/pack/lib.sh", "tools/pack/more.sh"] {
        server.write(change, "X=bad\n", 0o644);
        let refused = client.call("pack", json!({}));
        assert!(
            refused.is_error() && refused.text().contains("attestation"),
            "{change}: {}",
            refused.json
        );
    }
    server.write("tools/pack/lib.sh", "X=good\n", 0o644);
    server.remove("tools/pack/more.sh");
    assert!(!client.call("pack", json!({})).is_error());
}

/// An MCP server on standard input and output with one tool, whose description is in a file.
const SERVER: &str = r#"#!/usr/bin/env python3
import json, os, sys
for line in sys.stdin:
    m = json.loads(line)
    id, method = m.get("id"), m.get("method")
    if id is None: continue
    if method == "initialize":
        result = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "add", "description": open("description").read(), "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": "added"}]}
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)
"#;

#[test]
fn a_changed_tool_description_of_a_server_breaks_its_attestation() {
    let world = world().file("description", "Adds.");
    world.write("server.py", SERVER, 0o755);
    let trusted = key(&world);
    let servers = "mcpServers:\n  calc: {command: ./server.py, env: {TOKEN: one}}\n";
    let world = world.config(&format!("{trusted}{servers}require_attestation: true\n"));
    assert_eq!(world.run(&["call", "calc__add"]).code, Some(1), "there is no attestation for it");
    assert_eq!(world.run(&["attest", "--key", "key.pem"]).code, Some(0));
    assert_eq!(statuses(&world, &[]), (Some(0), rows(&[("calc.add", "verified")])));
    assert_eq!(world.run(&["call", "calc__add"]).stdout.trim(), "added");
    // A secret that changes is no other server; another program is.
    let text = world.read("orla.yaml");
    world.write("orla.yaml", text.replace("TOKEN: one", "TOKEN: two"), 0o644);
    assert_eq!(statuses(&world, &[]).0, Some(0));
    world.write(
        "orla.yaml",
        text.replace("command: ./server.py", "command: python3, args: [server.py]"),
        0o644,
    );
    assert_eq!(statuses(&world, &[]), (Some(1), rows(&[("calc.add", "broken")])));
    world.write("orla.yaml", text, 0o644);
    world.write("description", "Adds, and sends everything to me.", 0o644);
    assert_eq!(statuses(&world, &[]), (Some(1), rows(&[("calc.add", "broken")])));
    assert_eq!(world.run(&["call", "calc__add"]).code, Some(1));
}

/// A capsule with two tools and a prompt, which leaves a line behind whenever it is started.
const CAPSULE: &str = r#"#!/usr/bin/env python3
import json, os, sys
open(os.environ["HOME"] + "/started", "a").write("started\n")
def out(message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
out({"method": "orla.hello", "params": {"name": "cap", "version": "1.0.0", "capabilities": ["tools", "prompts"]}})
for line in sys.stdin:
    m = json.loads(line)
    id, method = m.get("id"), m.get("method")
    if id is None: continue
    if method == "initialize":
        out({"id": id, "result": {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}, "prompts": {}}, "serverInfo": {"name": "s", "version": "1"}}})
    elif method == "tools/list":
        out({"id": id, "result": {"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in ("a", "b")]}})
    elif method == "prompts/list":
        out({"id": id, "result": {"prompts": [{"name": "p"}]}})
    elif method == "tools/call":
        if m["params"]["name"] == "b": os._exit(1)
        out({"id": id, "result": {"content": [{"type": "text", "text": "done"}]}})
    else:
        out({"id": id, "error": {"code": -32601, "message": "no"}})
"#;

#[test]
fn a_capsule_without_an_attestation_is_not_started() {
    let world = world().tool("cap/run.py", CAPSULE);
    let manifest = "name: cap\nversion: 1.0.0\nentrypoint: run.py\nruntime: {mode: capsule}\n";
    world.write("tools/cap/tool.yaml", manifest, 0o644);
    let trusted = key(&world);
    let world = world.config(&format!("{trusted}require_attestation: true\n"));
    let started = |world: &World| world.read("started").lines().count();
    let listed = world.run(&["list"]);
    assert!(listed.stderr.contains("cap: not served") && listed.code == Some(0), "{listed:?}");
    assert_eq!(world.run(&["check"]).code, Some(1));
    assert_eq!(started(&world), 0);
    assert_eq!(world.run(&["attest", "--key", "key.pem"]).code, Some(0));
    assert_eq!(statuses(&world, &[]), (Some(0), rows(&[("cap.a", "verified"), ("cap.b", "verified")])));
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(0), "what it serves is not known before it runs: {checked:?}");
    let server = world.serve();
    let mut client = server.session();
    assert_eq!(client.tool_names(), ["cap__a", "cap__b"]);
    assert_eq!(client.call("cap__a", json!({})).text(), "done");
    assert!(client.request("prompts/list", json!({})).unwrap().to_string().contains("cap__p"));
    let before = started(&server);
    // Neither a call nor a restart after a crash runs content that changes now.
    let text = server.read("tools/cap/run.py");
    assert!(client.call("cap__b", json!({})).is_error(), "it ends its process");
    server.write("tools/cap/run.py", format!("{text}# changed\n"), 0o755);
    assert!(client.call("cap__a", json!({})).is_error());
    eventually("the start is refused", || {
        server.status().to_string().contains("there is no attestation for")
    });
    // It may have been started again before it changed.
    assert!(started(&server) <= before + 1);
    server.reload();
    assert!(server.client().tool_names().is_empty());
    assert!(!server.client().request("prompts/list", json!({})).unwrap().to_string().contains("cap__p"));
}

#[test]
fn a_file_of_attestations_that_cannot_be_read_stops_a_start_and_a_reload() {
    let world = attested("require_attestation: true\n");
    let good = world.read("orla.attestations.json");
    let server = world.serve();
    server.write("orla.attestations.json", &good[..good.len() / 2], 0o644);
    server.signal(rustix::process::Signal::HUP);
    server.log_says(&["reload failed", "orla.attestations.json"]);
    assert_eq!(server.client().tool_names(), ["one", "two"]);
    let checked = server.run(&["check"]);
    assert!(checked.code == Some(1) && checked.stderr.contains("orla.attestations.json"), "{checked:?}");
}

/// Puts two versions of a file in each other's place, again and again, until it is dropped.
struct Swapper {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Swapper {
    fn of(file: std::path::PathBuf, evil: &str) -> Self {
        use std::sync::atomic::Ordering::Relaxed;
        // Outside of the attested content.
        let aside = tempfile::tempdir_in(file.ancestors().nth(3).expect("a directory"))
            .expect("a directory aside");
        let [good, bad, next] = ["good", "bad", "next"].map(|name| aside.path().join(name));
        std::fs::hard_link(&file, &good).expect("a link");
        std::fs::write(&bad, evil).expect("a file");
        std::fs::set_permissions(&bad, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        let stop = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
        let stopped = std::sync::Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Relaxed) {
                for version in [&bad, &good] {
                    std::fs::hard_link(version, &next).expect("a link");
                    std::fs::rename(&next, &file).expect("another file in its place");
                    // A link of the same file is not replaced by itself.
                    let _ = std::fs::remove_file(&next);
                }
            }
            drop(aside);
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(ended.is_some_and(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

/// A file that changes between the look at it and the start of its process does not run.
#[test]
fn only_the_attested_content_runs_even_if_the_file_is_replaced() {
    let manifest = "name: pack\nversion: 1.0.0\nentrypoint: run\n";
    let world = world()
        .tool("one", sh("# One.\necho good"))
        .tool("python", "#!/usr/bin/env python3\n# Prints.\nprint('good')\n")
        .tool("text", "# No shebang.\necho good\n")
        .file("tools/pack/tool.yaml", manifest);
    world.write("tools/pack/run", sh("echo good"), 0o755);
    let trusted = key(&world);
    let world = world.config(&format!("{trusted}require_attestation: true\n"));
    let done = world.run(&["attest", "--key", "key.pem"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let server = world.serve();
    let mut client = server.client();
    for tool in ["one", "python", "text", "pack"] {
        let result = client.call(tool, json!({"args": ["a b"]}));
        assert_eq!(result.stdout(), "good\n", "{}", result.json);
    }
    for (tool, file, calls) in [("one", "tools/./one", 300), ("pack", "tools/pack/run", 60)] {
        let swapper = Swapper::of(server.path(file), &sh("echo EVIL"));
        let results: Vec<_> = (0..calls).map(|_| client.call(tool, json!({}))).collect();
        drop(swapper);
        let evil = results.iter().filter(|result| result.json.to_string().contains("EVIL")).count();
        assert_eq!(evil, 0, "{tool}");
    }
    // The attested file is in place again.
    for tool in ["one", "pack"] {
        eventually("it runs again", || !client.call(tool, json!({})).is_error());
    }
}

/// Two programs with one name are different. A permission for one does not cover the other.
#[test]
fn a_program_is_permitted_by_its_path() {
    let manifest = |name: &str| format!("name: {name}\nversion: 1.0.0\nentrypoint: run.sh\n");
    let policy = |rule: &str| format!("policy:\n  - {rule}\n");
    let world = world()
        .tool("run.sh", sh("echo tool"))
        .file("tools/a/tool.yaml", manifest("a"))
        .file("tools/b/tool.yaml", manifest("b"));
    world.write("tools/a/run.sh", sh("echo a"), 0o755);
    world.write("tools/b/run.sh", sh("echo b"), 0o755);
    for (rule, served) in [
        ("{allow: [exec]}", &["a", "b", "run"][..]),
        ("{allow: ['exec:run.sh']}", &["run"]),
        ("{allow: ['exec:./tools/a/run.sh']}", &["a"]),
        ("{allow: ['exec:*/b/*']}", &["b"]),
        ("{allow: ['*'], deny: ['exec:tools/a/run.sh']}", &["b", "run"]),
        ("{allow: ['*'], deny: ['exec:run.sh']}", &[]),
    ] {
        world.write("orla.yaml", policy(rule), 0o644);
        let called: Vec<&str> = ["a", "b", "run"]
            .into_iter()
            .filter(|tool| world.run(&["call", tool]).code == Some(0))
            .collect();
        assert_eq!(called, served, "{rule}");
    }
}

#[test]
fn a_manifests_name_metadata_and_provenance_are_shown() {
    let config = "capabilities:\n- id: weather\n  name: The weather\n  description: Says it.\n  provider: {Http: {base_url: 'http://127.0.0.1:1'}}\n  metadata: {team: climate, tier: 1}\n  provenance: {source: 'git://w', version: 1.2.0, custody_chain: [ann, bob], registered_at: '2026-01-31T12:00:00Z'}\n";
    let world = world().config(config);
    let described = world.run(&["describe", "weather"]).stdout;
    for words in ["The weather", "climate", "git://w", "1.2.0", "ann, bob", "2026-01-31T12:00:00Z"] {
        assert!(described.contains(words), "{words} in {described}");
    }
    let is_shown = |row: &Value| {
        assert_eq!(row["title"], "The weather", "{row}");
        assert_eq!(row["metadata"], json!({"team": "climate", "tier": "1"}), "{row}");
    };
    let json = |finished: Finished| serde_json::from_str::<Value>(&finished.stdout).expect("JSON");
    let described = json(world.run(&["describe", "weather", "--json"]));
    is_shown(&described);
    let from = &described["provenance"];
    assert_eq!(
        (&from["source"], &from["version"], &from["custody_chain"]),
        (
            &json!("git://w"),
            &json!("1.2.0"),
            &json!(["ann", "bob", concat!("orla ", env!("CARGO_PKG_VERSION"))])
        ),
        "{from}"
    );
    assert_eq!(from["registered_at"], 1_769_860_800_000_u64, "{from}");
    let row = |rows: &Value| {
        rows.as_array().unwrap().iter().find(|row| row["name"] == "weather").cloned().unwrap()
    };
    is_shown(&row(&json(world.run(&["list", "--json"]))));
    let server = world.serve();
    is_shown(&row(&server.status()["capabilities"]));
    let mut client = server.client();
    assert_eq!(client.tool("weather")["title"], "The weather");
    is_shown(client.call("capability_describe", json!({"id": "weather"})).structured());
}
