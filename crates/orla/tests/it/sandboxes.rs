//! Checks that the statements about sandboxes are true: `orla doctor`, `/status`, `orla check`, `orla
//! sandbox`.

use serde_json::{Value, json};

use crate::capsule::{manifest, with};
use crate::mcp_script::mcp_script;
use crate::{sh, world};
use orla_e2e::{Server, World, eventually};

/// A permission that cannot be enforced.
const UNENFORCEABLE: &str = "fs:read:/no/such/path";

/// Returns a tool with this metadata.
fn tool(header: &str, code: &str) -> String {
    let header: String = header.lines().map(|line| format!("# {line}\n")).collect();
    sh(&format!("# /// orla\n{header}# ///\n{code}"))
}

fn python(header: &str, code: &str) -> String {
    let header: String = header.lines().map(|line| format!("# {line}\n")).collect();
    format!("#!/usr/bin/env python3\n# /// orla\n{header}# ///\n{code}\n")
}

/// Returns the rows of `orla doctor` by name, and its exit code.
fn doctor(world: &World) -> (Option<i32>, Value) {
    let output = world.run(&["doctor", "--json"]);
    let report =
        serde_json::from_str(&output.stdout).unwrap_or_else(|err| panic!("{err}: {}", output.all()));
    (output.code, report)
}

fn row<'v>(rows: &'v Value, name: &str) -> &'v Value {
    let rows = rows["capabilities"].as_array().expect("capabilities are a list");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name} in {rows:?}"))
}

fn stdout(server: &Server, name: &str) -> String {
    let called = server.client().call(name, json!({}));
    assert!(!called.is_error(), "{}", called.json);
    called.structured()["stdout"]
        .as_str()
        .expect("text")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

const PLUGIN: &str = r#"#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    call = json.loads(line)
    if call.get("function") == "describe":
        print(json.dumps({"id": call["id"], "ok": {"functions": [{"name": "look"}]}}), flush=True)
        continue
    try:
        value = open(call["input"]["path"]).read()
    except OSError as error:
        value = error.strerror
    print(json.dumps({"id": call["id"], "ok": value}), flush=True)
"#;

#[test]
fn providers_that_cannot_be_confined_are_shown_as_unavailable() {
    let config = format!(
        "mcpServers: {{server: {{command: cat, permissions: ['{UNENFORCEABLE}']}}}}\n\
         plugins: {{plug: {{path: ./p.py, permissions: ['{UNENFORCEABLE}']}}}}\n"
    );
    let world = world().config(&config);
    world.write("p.py", PLUGIN, 0o755);
    let (code, report) = doctor(&world);
    assert_eq!(code, Some(1));
    for name in ["server", "plug"] {
        let row = row(&report, name);
        assert_eq!(
            (&row["sandbox"], &row["permissions"]),
            (&json!("unavailable"), &json!([UNENFORCEABLE]))
        );
        assert!(row["missing"][0].as_str().unwrap().contains(UNENFORCEABLE), "{row}");
    }
    let explained = world.run(&["sandbox", "explain", "plug"]);
    assert!(explained.stdout.contains("does not run") && explained.stdout.contains(UNENFORCEABLE));
    let server = world.serve();
    server.client().tool_names();
    let status = server.status();
    for name in ["server", "plug"] {
        assert_eq!(row(&status, name)["sandbox"]["level"], "unavailable", "{status}");
    }
}

#[test]
fn a_tool_whose_declaration_has_a_fault_counts_as_unavailable() {
    let world = world()
        .tool("words", tool("permissions: 7", "echo ran"))
        .tool("key", tool("Permission: []", "echo ran"))
        .tool("fallback", tool("permissions: []\nsandbox_fallback: allow", "echo ran"));
    let (code, report) = doctor(&world);
    assert_eq!(code, Some(1));
    for name in ["words", "key", "fallback"] {
        assert_eq!(row(&report, name)["sandbox"], "unavailable", "{report}");
    }
    let checked = world.run(&["check"]);
    assert!(checked.all().contains("did you mean permissions?"), "{}", checked.all());
    let server = world.serve();
    for name in ["words", "key", "fallback"] {
        assert!(server.client().call(name, json!({})).is_error());
    }
}

/// A declaration that is not read would leave its tool unconfined.
#[test]
fn a_tool_whose_confinement_is_not_read_is_unavailable() {
    let long = "# A comment.\n".repeat(400);
    let package =
        r#"{"name": "cap", "version": "1.0.0", "entrypoint": "run.sh", "runtime": {"permissions": []}}"#;
    let world = world()
        .tool("below", tool("runtime: {permissions: []}", "echo ran"))
        .tool("mode", tool("sandbox: strict", "echo ran"))
        .tool("opening", sh("# // orla\n# permissions: []\n# ///\necho ran"))
        .tool("far", sh(&format!("{long}# /// orla\n# permissions: nothing\n# ///\necho ran")))
        .tool("both", tool("title: Both", "echo ran"))
        .file("tools/both.orla.yaml", "permissions: []\n")
        .tool("other.sh", sh("echo ran"))
        .file("tools/other.orla.yml", "permissions: []\n")
        .file("tools/cap/orla-tool.json", package);
    world.write("tools/cap/run.sh", sh("echo ran"), 0o755);
    let (code, report) = doctor(&world);
    assert_eq!(code, Some(1));
    for name in ["below", "mode", "opening", "far", "both", "other", "cap"] {
        assert_eq!(row(&report, name)["sandbox"], "unavailable", "{name}: {report}");
    }
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1));
    for place in [
        "below:3:3: runtime: ",
        "mode:3:3: sandbox: ",
        "opening:2:1: a metadata block begins with `# /// orla`",
        "far:403:16: permissions: ",
        "both.orla.yaml:1:1: not read",
        "other.orla.yml: not read, did you mean other.orla.yaml?",
        "orla-tool.json:1:61: runtime: ",
    ] {
        assert!(checked.all().contains(place), "{place}: {}", checked.all());
    }
    let server = world.serve();
    assert_eq!(server.client().tool_names(), [] as [&str; 0]);
    for name in ["below", "mode", "opening", "far", "both", "other", "cap"] {
        let result = server.client().call(name, json!({}));
        assert!(result.is_error() && !result.json.to_string().contains("ran"), "{}", result.json);
    }
    // Without the file, the tool runs again after a reload.
    std::fs::remove_file(server.path("tools/other.orla.yml")).expect("the file");
    server.reload();
    assert_eq!(server.client().call("other", json!({})).stdout(), "ran\n");
}

#[test]
fn a_fault_that_has_nothing_to_do_with_confinement_is_no_missing_one() {
    let world = world()
        .tool("schema", tool("input_schema: 7", "echo ran"))
        .tool("confined", tool("permissions: []\ninput_schema: 7", "echo ran"));
    let (code, report) = doctor(&world);
    for name in ["schema", "confined"] {
        let row = row(&report, name);
        assert_eq!((&row["sandbox"], &row["missing"]), (&json!("unavailable"), &json!([])), "{row}");
    }
    assert_eq!(code, Some(0), "{report}");
}

#[test]
fn sandbox_off_is_reported_for_every_tool_with_a_declaration() {
    let world = world()
        .config("sandbox: off\n")
        .tool("plain", sh("echo ran"))
        .tool("none", tool("permissions: []", "echo ran"))
        .tool("bound", tool("limits: {open_files: 20}", "ulimit -n"));
    let (code, report) = doctor(&world);
    assert_eq!(code, Some(1));
    for (name, missing) in
        [("plain", json!([])), ("none", json!(["sandbox: off"])), ("bound", json!(["sandbox: off"]))]
    {
        let row = row(&report, name);
        assert_eq!((&row["sandbox"], &row["missing"]), (&json!("unconfined"), &missing), "{row}");
    }
    let server = world.serve();
    assert_eq!(stdout(&server, "none"), "ran");
    assert_ne!(stdout(&server, "bound"), "20");
}

#[test]
fn an_attested_single_file_is_confined_and_what_runs_is_what_was_attested() {
    let look = "cat data/in; cat other/out 2>/dev/null || echo refused";
    let world = world()
        .file("data/in", "inside\n")
        .file("other/out", "outside\n")
        .tool("shell", tool("permissions: ['fs:read:../data']", look))
        .tool("plain", format!("# /// orla\n# permissions: ['fs:read:../data']\n# ///\n{look}\n"))
        .tool("snake", python("permissions: ['fs:read:../data']", "print(open('data/in').read())"));
    let trusted = world.run(&["attest", "--new-key", "key.pem", "--authority", "ops"]).stdout;
    let world = world.config(&format!("{trusted}require_attestation: true\n"));
    let attested = world.run(&["attest", "--key", "key.pem"]);
    assert_eq!(attested.code, Some(0), "{attested:?}");
    assert_eq!(doctor(&world).0, Some(0));
    let server = world.serve();
    assert_eq!(stdout(&server, "shell"), "inside refused");
    assert_eq!(stdout(&server, "plain"), "inside refused");
    assert_eq!(stdout(&server, "snake"), "inside");
    server.write("tools/shell", tool("permissions: ['fs:read:../data']", "echo other"), 0o755);
    assert!(server.client().call("shell", json!({})).is_error());
}

#[test]
fn permissions_of_capabilities_confine_the_processes_that_they_start() {
    let capability = |id: &str, permissions: &str| {
        format!(
            "  - id: {id}\n    name: {id}\n    description: Looks.\n    permissions: {permissions}\n    provider: {{Plugin: {{plugin_path: ./p.py, function_name: look}}}}\n"
        )
    };
    let config = format!(
        "capabilities:\n{}{}",
        capability("one", "['fs:read:data', 'db:x']"),
        capability("two", "[]")
    );
    let world = world().config(&config).file("data/in", "inside").file("other/out", "outside");
    world.write("p.py", PLUGIN, 0o755);
    assert_eq!(row(&doctor(&world).1, "one")["sandbox"], "enforced");
    let (inside, outside) = (world.path("data/in"), world.path("other/out"));
    let server = world.serve();
    let look = |path: &std::path::Path| server.client().call("one", json!({"path": path})).text();
    assert!(look(&inside).contains("inside"));
    assert!(look(&outside).contains("Permission denied"));
    let world =
        crate::world().config(&format!("capabilities:\n{}", capability("one", "['fs:raed:data']")));
    world.write("p.py", PLUGIN, 0o755);
    assert_eq!(doctor(&world).0, Some(1));
    assert_eq!(world.run(&["check"]).code, Some(1));
}

/// Returns an MCP server over stdio with the tool `look`, which reads a file.
fn looking_server() -> String {
    let look = "
        try: text = open(p['arguments']['path']).read()
        except OSError as error: text = error.strerror
        result = {'content': [{'type': 'text', 'text': text}]}";
    mcp_script("look", "", look)
}

/// The programs that a capability can start by its own address, as providers.
const OWN: [&str; 2] = [
    "{Plugin: {plugin_path: ./p.py, function_name: look}}",
    "{MCP: {server_url: 'stdio:python3 s.py', tool_name: look}}",
];

fn looking_world() -> World {
    let world =
        world().file("data/in", "inside").file("other/out", "outside").file("s.py", looking_server());
    world.write("p.py", PLUGIN, 0o755);
    world
}

#[test]
fn permissions_of_a_capability_confine_the_programs_among_its_providers() {
    let declared = |id: &str, permissions: &str, providers: &str| {
        format!("- {{id: {id}, permissions: {permissions}, route: failover, providers: {providers}}}\n")
    };
    let mut config = "sandbox: declared\ncapabilities:\n".to_owned();
    for (index, provider) in OWN.iter().enumerate() {
        let own = format!("[{provider}]");
        config += &declared(&format!("confined{index}"), "['fs:read:data', 'fs:read:s.py']", &own);
        config += &declared(&format!("open{index}"), "['db:x']", &own);
    }
    let world = looking_world().config(&config);
    for index in 0..OWN.len() {
        let name = format!("confined{index}");
        assert_eq!(row(&doctor(&world).1, &name)["sandbox"], "enforced", "{name}");
        assert!(world.run(&["describe", &name]).stdout.contains("sandbox      enforced"), "{name}");
        let explained = world.run(&["sandbox", "explain", &name]);
        assert!(explained.stdout.contains("/data and everything below it"), "{explained:?}");
    }
    let server = world.serve();
    let look = |name: &str, place: &str| {
        let path = server.path(place);
        server.client().call(name, json!({ "path": path })).text()
    };
    for index in 0..OWN.len() {
        let (confined, open) = (format!("confined{index}"), format!("open{index}"));
        assert!(look(&confined, "data/in").contains("inside"));
        assert!(look(&confined, "other/out").contains("Permission denied"), "{confined}");
        // The same program with another declaration is another process.
        assert!(look(&open, "other/out").contains("outside"), "{open}");
        let level = |name: &str| row(&server.status(), name)["sandbox"]["level"].clone();
        assert_eq!((level(&confined), level(&open)), (json!("enforced"), json!("unconfined")));
    }
}

#[test]
fn a_capability_whose_providers_cannot_be_confined_does_not_run() {
    for provider in OWN {
        let config = format!(
            "capabilities:\n- {{id: x, permissions: ['{UNENFORCEABLE}'], route: failover, providers: [{provider}, {{type: local, function: math.add}}]}}\n"
        );
        let world = looking_world().config(&config);
        let checked = world.run(&["check"]);
        let text = format!("x: it cannot be confined as declared: {UNENFORCEABLE}");
        assert!(checked.code == Some(1) && checked.stderr.contains(&text), "{checked:?}");
        assert!(checked.stderr.contains("orla.yaml:2:8"), "{checked:?}");
        assert_eq!(row(&doctor(&world).1, "x")["sandbox"], "unavailable");
        let server = world.serve();
        let called = server.client().call("x", json!({"a": 1, "b": 2}));
        assert!(called.is_error(), "no other provider answers: {}", called.json);
    }
}

#[test]
fn programs_of_capabilities_with_different_permissions_are_different_processes() {
    for provider in OWN {
        let declared = |id: &str, permissions: &str| {
            format!("- {{id: {id}, permissions: {permissions}, provider: {provider}}}\n")
        };
        let config = format!(
            "capabilities:\n{}{}{}",
            declared("data", "['fs:read:data', 'fs:read:s.py']"),
            declared("other", "['fs:read:other', 'fs:read:s.py']"),
            declared("open", "[]")
        );
        let server = looking_world().config(&config).serve();
        let look = |name: &str| {
            ["data/in", "other/out"].map(|place| {
                let path = server.path(place);
                let text = server.client().call(name, json!({ "path": path })).text();
                text.trim_matches('"').to_owned()
            })
        };
        assert_eq!(look("data"), ["inside", "Permission denied"], "{provider}");
        assert_eq!(look("other"), ["Permission denied", "outside"], "{provider}");
        assert_eq!(look("open"), ["inside", "outside"], "{provider}");
    }
}

#[test]
fn a_call_in_an_older_snapshot_has_the_permissions_of_that_snapshot() {
    for provider in OWN {
        for providers in [format!("provider: {provider}"), format!("providers: [{provider}]")] {
            let declared = format!(
                "capabilities:\n- {{id: x, permissions: ['fs:read:data', 'fs:read:s.py'], {providers}}}\n"
            );
            for next in [format!("capabilities:\n- {{id: x, {providers}}}\n"), "{}\n".to_owned()] {
                let server = looking_world().config(&declared).serve();
                let outside = server.path("other/out");
                let mut older = server.session();
                assert!(older.tools().iter().any(|tool| tool["name"] == "x"));
                server.write("orla.yaml", &next, 0o644);
                server.reload();
                let called = older.call("x", json!({ "path": outside }));
                let text = called.text();
                assert!(text.contains("Permission denied"), "{providers}, {next}: {}", called.json);
                if next.contains("id: x") {
                    let text = server.client().call("x", json!({ "path": outside })).text();
                    assert!(text.contains("outside"), "{providers}: {text}");
                }
            }
        }
    }
}

#[test]
fn permissions_apply_to_the_final_name_of_a_tool() {
    let look = || sh("cat other/out || echo refused");
    let world = world()
        .file("other/out", "outside")
        .tool("a", look())
        .tool("pk", look())
        .tool("pk_dir/run", look())
        .file("tools/pk_dir/tool.yaml", "name: pk\nversion: 1.0.0\nentrypoint: run\n")
        .config("tools: {a: {rename: b}, b: {permissions: []}, pk_2: {permissions: []}, nothere: {permissions: []}}");
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1));
    assert!(checked.all().contains("tools.nothere") && checked.all().contains("tools.pk_2"));
    assert!(!checked.all().contains("tools.b:"), "{}", checked.all());
    let server = world.serve();
    assert_eq!(stdout(&server, "b"), "refused");
    assert!(server.client().call("pk_2", json!({})).is_error());
}

#[test]
fn tools_that_cannot_start_fail_the_check() {
    let world = world()
        .tool("t", tool("permissions: ['fs:read:/nowhere/data']", "true"))
        .config("capabilities:\n- id: feed\n  provider: {stream: {command: no-such-program}}\n");
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    for words in [
        "tools/t: it cannot be confined as declared: fs:read:/nowhere/data",
        "feed: no-such-program is not in PATH at orla.yaml:2:7",
    ] {
        assert!(checked.stderr.contains(words), "{words}: {checked:?}");
    }
}

#[test]
fn doctor_warns_of_tools_that_can_write_declarations() {
    let world = world()
        .file("out/x", "")
        .tool("tools", tool("permissions: ['fs:write:.']", "true"))
        .tool("around", tool("permissions: ['fs:write:..']", "true"))
        .tool("beside", tool("permissions: ['fs:write:../out']", "true"));
    let report = doctor(&world).1;
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("tools: it may write to") && warnings.contains("around: it may write to"));
    assert!(!warnings.contains("beside:"), "{warnings}");
    let checked = world.run(&["check"]);
    assert!(checked.code == Some(0) && checked.stderr.contains("tools: it may write to"), "{checked:?}");
}

#[test]
fn running_any_program_does_not_allow_to_read_files_and_a_preset_has_its_cache() {
    let code = "data/run yes && echo ran; cat other/out 2>/dev/null || echo refused";
    let cached = "$npm_config_cache/run yes && echo ran && echo x > $npm_config_cache/new && echo wrote; cat other/out 2>/dev/null || echo refused";
    let world = world()
        .file("other/out", "outside")
        .file(".npm/keep", "")
        .tool("any", tool("permissions: [exec, 'fs:read:../data']", code))
        .tool("none", tool("permissions: ['fs:read:../data']", code))
        .tool("npx", tool("permissions: ['preset:npx']", cached))
        .tool("uvx", tool("permissions: ['preset:uvx']", "true"));
    for place in ["data/run", ".npm/run"] {
        let program = std::fs::read("/bin/true").unwrap();
        world.write(place, program, 0o755);
    }
    let report = doctor(&world).1;
    assert_eq!(row(&report, "any")["sandbox"], "enforced", "{report}");
    assert_eq!(row(&report, "npx")["sandbox"], "enforced", "{report}");
    let missing = row(&report, "uvx")["missing"][0].as_str().unwrap();
    assert!(missing.contains("/.cache/uv does not exist"), "{missing}");
    let server = world.serve();
    assert_eq!(stdout(&server, "any"), "ran refused");
    assert_eq!(stdout(&server, "none"), "refused");
    assert_eq!(stdout(&server, "npx"), "ran wrote refused");
}

#[test]
fn threads_children_that_are_not_waited_for_and_answers_of_system_calls_count() {
    let threads = "import threading, time\nfor _ in range(20): threading.Thread(target=time.sleep, args=(20,), daemon=True).start()\ntime.sleep(20)";
    let ignored = "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nfor _ in range(40):\n    if os.fork() == 0:\n        end = time.process_time() + 0.3\n        while time.process_time() < end: pass\n        os._exit(0)\n    try: os.wait()\n    except ChildProcessError: pass\nprint('escaped')";
    // Another process follows the links, which costs far more processor time than the calls cost the program.
    let links = "import os, time\nos.chdir(os.environ['TMPDIR'])\nfor i in range(35): os.symlink('./' * 1950 + ('.' if i == 0 else f'l{i - 1}'), f'l{i}')\nwhile time.process_time() < 0.8: os.chmod('l34', 0o700)\nprint('escaped')";
    let server = world()
        .tool("threads", python("permissions: []\nlimits: {processes: 8}", threads))
        .tool("ignored", python("permissions: []\nlimits: {cpu_seconds: 1}", ignored))
        .tool("links", python("permissions: []\nlimits: {cpu_seconds: 1}", links))
        .serve();
    let limits = [
        ("threads", "limit of processes"),
        ("ignored", "limit of cpu_seconds"),
        ("links", "limit of cpu_seconds"),
    ];
    for (name, limit) in limits {
        let called = server.client().call(name, json!({}));
        assert!(called.is_error() && called.sentence().contains(limit), "{}", called.json);
    }
}

#[test]
fn limits_alone_cannot_be_escaped_by_hiding_from_the_watch() {
    let code = "import ctypes, mmap\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.mount(b'none', b'/proc', b'tmpfs', 0, None), libc.ptrace(0x4206, 1, 0, 0))\nimport sys; sys.stdout.flush()\nall = []\nfor i in range(64): all.append(bytearray(16 << 20))\nprint('escaped')";
    let server = world().tool("t", python("limits: {memory: 256Mi}", code)).serve();
    let called = server.client().call("t", json!({}));
    assert!(called.is_error(), "{}", called.json);
    assert_eq!(called.structured()["stdout"], "-1 -1\n", "{}", called.json);
}

#[test]
fn each_call_follows_links_anew() {
    let world = world()
        .file("a/x", "first")
        .file("b/x", "second")
        .tool("t", tool("permissions: ['fs:read:../current']", "cat a/x b/x 2>/dev/null; echo"));
    let link = world.path("current");
    std::os::unix::fs::symlink("a", &link).unwrap();
    let server = world.serve();
    assert_eq!(stdout(&server, "t"), "first");
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("b", &link).unwrap();
    assert_eq!(stdout(&server, "t"), "second");
}

/// Returns a capsule with one tool. `call` answers the call `id` with `out`.
fn capsule(tool: &Value, call: &str) -> String {
    r#"#!/usr/bin/env python3
import json, sys
def out(message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
out({"method": "orla.hello", "params": {"name": "cap", "version": "1.0.0", "capabilities": ["tools"]}})
for line in sys.stdin:
    m = json.loads(line)
    id, method = m.get("id"), m.get("method")
    if id is None: continue
    if method == "initialize":
        out({"id": id, "result": {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}})
    elif method == "tools/list":
        out({"id": id, "result": {"tools": [TOOL]}})
    else: CALL
"#
    .replace("TOOL", &tool.to_string())
    .replace("else: CALL", &format!("else: {call}"))
}

#[test]
fn a_capsule_stays_confined_when_its_files_change() {
    let capsule = capsule(
        &json!({"name": "look", "inputSchema": {"type": "object"}}),
        r#"
        try: text = open("../../other/out").read()
        except OSError: text = "refused"
        out({"id": id, "result": {"content": [{"type": "text", "text": text + " VERSION"}]}})"#,
    );
    let manifest = "name: cap\nversion: 1.0.0\nentrypoint: run.py\npermissions: []\nruntime: {mode: capsule, hot_load: {watch: [run.py, tool.yaml], debounce_ms: 10}}\n";
    let server = world()
        .file("other/out", "outside")
        .file("tools/cap/tool.yaml", manifest)
        .tool("cap/run.py", capsule.replace("VERSION", "1"))
        .serve();
    assert_eq!(server.client().call("cap", json!({})).text(), "refused 1");
    server.write("tools/cap/tool.yaml", format!("{manifest}description: Changed.\n"), 0o644);
    server.write("tools/cap/run.py", capsule.replace("VERSION", "2"), 0o755);
    eventually("the capsule was restarted", || {
        let text = server.client().call("cap", json!({})).text();
        assert!(!text.contains("outside"), "{text}");
        text == "refused 2"
    });
}

#[test]
fn the_attestation_of_a_capsule_with_one_tool_is_not_doubted_before_it_runs() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let tool = json!({"name": "look", "description": "Its own.", "inputSchema": schema});
    let capsule = capsule(&tool, "pass");
    for required in ["", "require_attestation: true\n"] {
        let world = world()
            .file(
                "tools/cap/tool.yaml",
                "name: cap\nversion: 1.0.0\nentrypoint: run.py\nruntime: {mode: capsule}\n",
            )
            .tool("cap/run.py", &capsule);
        let trusted = world.run(&["attest", "--new-key", "key.pem", "--authority", "ops"]).stdout;
        let world = world.config(&format!("{trusted}{required}"));
        assert_eq!(world.run(&["attest", "--key", "key.pem"]).code, Some(0));
        assert_eq!(world.run(&["verify"]).code, Some(0));
        let checked = world.run(&["check"]);
        assert!(
            checked.code == Some(0) && !checked.all().contains("does not hold"),
            "{}",
            checked.all()
        );
        assert_eq!(world.serve().client().tool_names(), ["cap"]);
    }
}

#[test]
fn sandbox_run_applies_the_given_permissions() {
    let world = world().file("data/in", "inside\n").file("other/out", "outside\n");
    let run = |arguments: &[&str]| world.run(&[&["sandbox", "run"][..], arguments].concat());
    let read = run(&["--permission", "fs:read:data", "--", "cat", "data/in"]);
    assert_eq!((read.code, &*read.stdout), (Some(0), "inside\n"), "{read:?}");
    let refused = run(&["--permission", "fs:read:data", "--", "cat", "other/out"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("Permission denied"), "{refused:?}");
    assert_eq!(run(&["--", "sh", "-c", "exit 7"]).code, Some(7));
    assert_eq!(run(&["sh", "-c", "kill -TERM $$"]).code, Some(143));
    assert_eq!(run(&["--", "no-such-program"]).code, Some(127));
    let limited = run(&["--limit", "wall=0.2", "--", "sleep", "20"]);
    assert!(limited.code == Some(137) && limited.stderr.contains("its limit of wall"), "{limited:?}");
    let misspelt = run(&["--permission", "fs:raed:data", "--", "true"]);
    assert!(misspelt.code == Some(2) && misspelt.stderr.contains("did you mean read?"), "{misspelt:?}");
    assert_eq!(run(&["--limit", "memry=1", "--", "true"]).code, Some(2));
    let piped = world.run_with_input(&["sandbox", "run", "--", "tr", "a-z", "A-Z"], b"hello");
    assert_eq!(piped.stdout, "HELLO");
}

#[test]
fn a_sandbox_is_explained_in_sentences() {
    let world = world()
        .file("data/in", "inside")
        .tool("t", tool("permissions: ['fs:read:../data', 'env:X_*']\nlimits: {memory: 64Mi}", "true"))
        .tool("u", sh("true"));
    let output = world.run(&["sandbox", "explain", "t"]).stdout;
    let data = std::fs::canonicalize(world.path("data")).unwrap();
    for sentence in [
        "t is confined",
        &format!("It may read {} and everything below it.", data.display()),
        "It has no network.",
        "It gets the variables X_*.",
        "at most 64 MiB of memory.",
        "Landlock ABI",
    ] {
        assert!(output.contains(sentence), "{sentence}: {output}");
    }
    assert!(world.run(&["sandbox", "explain", "u"]).stdout.starts_with("u is not confined"));
    let json = world.run(&["sandbox", "explain", "t", "--json"]).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["sandbox"], &json["read"]), (&json!("enforced"), &json!([data])));
    let unknown = world.run(&["sandbox", "explain", "tt"]);
    assert!(unknown.code == Some(1) && unknown.stderr.contains("did you mean t?"), "{unknown:?}");
}

#[test]
fn a_confined_tool_that_fails_names_the_permission_that_it_probably_lacks() {
    let world = world()
        .file("other/out", "outside")
        .tool("sh", tool("permissions: []", "echo x > other/new"))
        .tool("py", python("permissions: []", "open('other/out')"))
        .tool("fine", tool("permissions: []", "cat other/out; true"))
        .tool("open", sh("cat /no/such/file"));
    let other = std::fs::canonicalize(world.path("other")).unwrap();
    let called = world.run(&["call", "sh"]);
    assert!(called.stderr.contains(&format!("fs:write:{}", other.display())), "{called:?}");
    let server = world.serve();
    let refused = |name: &str| {
        server.client().call(name, json!({})).json["_meta"]["orla/execution"]["sandbox"]["refused"]
            .clone()
    };
    let permission = |kind: &str| json!(format!("{kind}:{}", other.display()));
    assert_eq!(refused("sh")["permission"], permission("fs:write"));
    assert_eq!(refused("py")["permission"], permission("fs:read"));
    assert_eq!((refused("fine"), refused("open")), (Value::Null, Value::Null));
}

#[test]
fn the_permissions_that_a_call_needs_are_learned_from_it() {
    let code =
        "cat data/in; echo x > work/new; cat /etc/hostname /usr/share/misc/none 2>/dev/null; true";
    let world = world().file("data/in", "inside").file("work/old", "").tool("t", sh(code));
    let learned = world.run(&["sandbox", "learn", "t"]);
    if learned.stderr.contains("strace records what a tool does") {
        // Not every system has it.
        return;
    }
    assert_eq!(learned.code, Some(0), "{learned:?}");
    let line = "# permissions: ['fs:read:/etc/hostname', 'fs:read:../data/in', 'fs:write:../work']";
    assert_eq!(learned.stdout, format!("# /// orla\n{line}\n# ///\n"), "{learned:?}");
    let header = line.trim_start_matches("# ");
    let server = world.tool("t", tool(header, code)).serve();
    assert!(stdout(&server, "t").starts_with("inside"));
}

#[test]
fn describe_shows_how_far_a_tool_is_confined() {
    let world = world()
        .tool("plain", sh("echo p"))
        .tool("confined", tool("permissions: []", "echo c"))
        .tool("impossible", tool(&format!("permissions: ['{UNENFORCEABLE}']"), "echo i"));
    let described = |name: &str| -> Value {
        let output = world.run(&["describe", name, "--json"]);
        serde_json::from_str(&output.stdout).unwrap_or_else(|err| panic!("{err}: {}", output.all()))
    };
    assert_eq!(described("plain")["sandbox"], Value::Null);
    assert_eq!(described("confined")["sandbox"], json!({"level": "enforced", "missing": []}));
    let impossible = &described("impossible")["sandbox"];
    assert_eq!(impossible["level"], "unavailable", "{impossible}");
    assert!(impossible["missing"][0].as_str().unwrap().contains("/no/such/path"), "{impossible}");
    assert!(world.run(&["describe", "confined"]).stdout.contains("enforced"));
}

#[test]
fn a_reload_to_strict_confines_the_programs_of_capabilities_that_run_already() {
    let config = |mode: &str| {
        let capabilities = OWN.iter().enumerate();
        let capabilities = capabilities.map(|(k, own)| format!("- {{id: own{k}, provider: {own}}}\n"));
        format!("sandbox: {mode}\ncapabilities:\n{}", capabilities.collect::<String>())
    };
    let server = looking_world().config(&config("declared")).serve();
    let reads = |name: &str| {
        let path = server.path("other/out");
        server.client().call(name, json!({ "path": path })).text().contains("outside")
    };
    assert!(reads("own0") && reads("own1"));
    server.write("orla.yaml", config("strict"), 0o644);
    server.signal(rustix::process::Signal::HUP);
    server.log_says(&["reloaded"]);
    assert!(!reads("own0") && !reads("own1"));
}

/// A package that runs one program for each call.
const PACKAGE: &str =
    "name: my.tool\nversion: 1.0.0\ndescription: Looks.\nentrypoint: run.sh\nruntime: {mode: simple}\n";

#[test]
fn a_confinement_of_a_package_holds_under_its_name_for_mcp_too() {
    let world = world()
        .config("tools: {my__tool: {permissions: []}}\n")
        .file("other/out", "outside")
        .file("tools/pack/tool.yaml", PACKAGE);
    world.write(
        "tools/pack/run.sh",
        sh(&format!("cat {}; echo", world.path("other/out").display())),
        0o755,
    );
    assert_eq!(row(&doctor(&world).1, "my__tool")["sandbox"], "enforced");
    assert!(!world.serve().client().call("my__tool", json!({})).text().contains("outside"));
}

#[test]
fn a_confinement_of_one_tool_of_a_capsule_makes_that_tool_unavailable() {
    let code = include_str!("../fixtures/full_capsule.py");
    let config = "tools:\n  cap.one: {permissions: []}\n  cap.thre: {permissions: []}\n";
    let server = with(world().config(config), &manifest(json!({})), code).serve();
    eventually("its tools are known", || server.client().tool_names().contains(&"cap__two".to_owned()));
    let one = server.client().call("cap__one", json!({}));
    assert!(one.is_error() && one.sentence().contains("write them in tools.cap"), "{}", one.json);
    server.log_says(&["tools.cap.thre", "no tool has this name"]);
    let pattern = world().config("tools: {'cap.*': {permissions: []}}\n").run(&["check"]);
    assert!(pattern.code != Some(0) && pattern.stderr.contains("without `*`"), "{pattern:?}");
}

#[test]
fn a_confinement_of_a_capsule_is_known_by_the_capsules_own_name() {
    let code = include_str!("../fixtures/full_capsule.py");
    for (more, key, tool) in [
        (json!({"mcp": {"prefix": "p_"}}), "cap", "p_one"),
        (json!({"name": "My Tool"}), "My_Tool", "My_Tool__one"),
    ] {
        let config = format!("tools: {{{key}: {{permissions: []}}, zzz: {{permissions: []}}}}\n");
        let name = more["name"].as_str().unwrap_or("cap");
        let code = code.replace("\"name\": \"cap\"", &format!("\"name\": \"{name}\""));
        let server = with(world().config(&config), &manifest(more), &code).serve();
        eventually("its tools are known", || server.client().tool_names().contains(&tool.to_owned()));
        // At the start, and when the tools are known.
        let unknown = |name: &str| server.log().matches(&format!("tools.{name}: no tool")).count();
        eventually("the names are compared again", || unknown("zzz") >= 2);
        assert_eq!(unknown(key), 0, "{}", server.log());
    }
}
