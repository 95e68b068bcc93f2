//! The sources of the configuration, and the messages for mistakes (row F1).

use std::net::TcpListener;

use orla_e2e::World;
use serde_json::{Value, json};

use crate::{sh, world};

/// F1: serving with a bad configuration exits 2, checking it exits 1, and both name the place.
#[test]
fn every_mistake_is_named_with_its_place_and_what_would_be_right() {
    for (yaml, words) in [
        ("# a comment\n\nport: 1\nprot: 2\n", &["prot", "port", "orla.yaml:4:1"][..]),
        ("timeout: soon\n", &["timeout", "soon", "orla.yaml:1:10"]),
        ("tools_dir: [\n", &["orla.yaml:"]),
        ("host: 0.0.0.0\n", &["host", "auth_tokens", "allow_unauthenticated"]),
    ] {
        let world = world().config(yaml);
        let checked = world.run(&["check"]);
        assert_eq!(checked.code, Some(1), "{yaml:?}: {checked:?}");
        let served = world.run(&["serve"]);
        assert_eq!(served.code, Some(2), "{yaml:?}: {served:?}");
        assert_eq!(served.stdout, "", "{yaml:?}");
        for word in words {
            assert!(checked.all().contains(word), "{yaml:?} lacks {word:?}: {}", checked.all());
            assert!(served.stderr.contains(word), "{yaml:?} lacks {word:?}: {}", served.stderr);
        }
        assert!(
            served.stderr.lines().all(|line| line.starts_with("error: ")),
            "plain text: {}",
            served.stderr
        );
    }
}

/// A client does not need the keys that a server needs.
#[test]
fn a_command_that_asks_a_server_needs_its_address_alone() {
    let server = world().tool("t", sh("echo ok")).serve();
    let url = format!("http://{}", server.address());
    let config = format!(
        "port: {}\nmcpServers:\n  keyed: {{url: 'http://127.0.0.1:9', headers: {{X-Api-Key: '${{NOT_SET_HERE}}'}}}}\n",
        server.address().port()
    );
    server.write("orla.yaml", config, 0o644);
    server.write("orla.tokens.json", "{", 0o600);
    for command in ["status", "quotas", "approvals"] {
        let answered = server.run(&[command]);
        assert_eq!(answered.code, Some(0), "{command}: {}", answered.all());
    }
    let commands: [&[&str]; 9] = [
        &["list"],
        &["status"],
        &["check"],
        &["call", "t"],
        &["search", "t"],
        &["describe", "t"],
        &["calls"],
        &["approvals"],
        &["task", "list"],
    ];
    let asked = |command: &[&str]| server.run(&[command, &["--url", &url]].concat());
    for command in commands {
        let answered = asked(command);
        assert_eq!(answered.code, Some(0), "{command:?}: {}", answered.all());
        assert!(!answered.stderr.contains("NOT_SET_HERE"), "{command:?}: {}", answered.stderr);
    }
    server.write("orla.yaml", "port: [\n", 0o644);
    for command in commands {
        let answered = asked(command);
        assert_eq!(answered.code, Some(0), "{command:?}: {}", answered.all());
        assert!(answered.stderr.starts_with("warning: "), "{command:?}: {}", answered.stderr);
    }
    assert_eq!(server.run(&["status"]).code, Some(2));
}

/// F1: a file that would take all memory or all time is refused soon.
#[test]
fn a_file_that_explodes_is_refused_in_bounded_time_and_memory() {
    let bomb = (1..40).fold("a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned(), |text, n| {
        let last = n - 1;
        format!("{text}a{n}: &a{n} [*a{last}, *a{last}, *a{last}, *a{last}, *a{last}, *a{last}]\n")
    });
    let deep = format!("tools_dir: {}", "[".repeat(100_000));
    let deeper: String = (0..1000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    let keys: String = (0..60_000).map(|n| format!("key{n}: 1\n")).collect();
    let tools: String = (0..50_000).map(|n| format!("  t{n}: {{timeout: x}}\n")).collect();
    let tools = format!("tools:\n{tools}");
    let large = format!("tools_dir: {}\n", "x".repeat(100 * 1024 * 1024));
    for (what, text) in [
        ("anchors", bomb),
        ("deep", deep),
        ("deeper", deeper),
        ("unknown keys", keys),
        ("tools", tools),
        ("100 MB", large),
    ] {
        let world = world().config(&text);
        // 1 GiB of address space and 15 s of processor time.
        let served = world.through(&["prlimit", "--as=1073741824", "--cpu=15"]).run(&["serve"]);
        assert_eq!(served.code, Some(2), "{what}: {:.500}", served.stderr);
        assert!(served.stderr.contains("orla.yaml:"), "{what}: {:.500}", served.stderr);
        assert!(served.stderr.len() < 100_000, "{what}: no flood of text");
    }
}

/// F1
#[test]
fn an_empty_file_is_all_defaults() {
    for text in ["", "\n\n", "# nothing\n", "---\n", "{}", "\u{feff}", "null\n"] {
        let server = world().tool("t", sh("echo ok")).config(text).serve();
        assert_eq!(server.client().tool_names(), ["t"], "{text:?}");
    }
}

/// F1
#[test]
fn port_zero_is_any_free_port_and_printed() {
    let one = world().config("port: 0\n").serve();
    let other = world().config("port: 0\n").serve();
    assert_ne!(one.address().port(), 0);
    assert_ne!(one.address(), other.address());
    let first = &one.log_lines()[0];
    assert_eq!(first.message(), "listening", "the first line of a serving server");
    assert_eq!(*first.field("address"), one.address().to_string());
}

/// F1
#[test]
fn a_port_in_use_is_one_clear_line_and_exit_code_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for config in ["", "log_format: pretty\n"] {
        let finished = world().config(config).run(&["serve", "--port", &port]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let lines: Vec<_> = finished.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(lines.len(), 1, "{finished:?}");
        assert!(lines[0].contains(&port) && lines[0].contains("in use"), "{finished:?}");
    }
}

#[test]
fn a_configuration_that_is_missing_or_no_file_is_named() {
    let world = world();
    let missing = world.run(&["--config", "nowhere.yaml"]);
    assert_eq!(missing.code, Some(2), "{missing:?}");
    assert!(missing.stderr.contains("nowhere.yaml"), "{missing:?}");
    std::fs::create_dir(world.path("dir.yaml")).unwrap();
    let directory = world.run(&["--config", "dir.yaml"]);
    assert_eq!(directory.code, Some(2), "{directory:?}");
    let bytes = world.file("bytes.yaml", b"port: 1\nhost: \xff\xfe\n");
    let bytes = bytes.run(&["--config", "bytes.yaml"]);
    assert_eq!(bytes.code, Some(2), "{bytes:?}");
    assert!(bytes.stderr.contains("bytes.yaml:2:"), "{bytes:?}");
}

#[test]
fn a_flag_wins_over_the_environment_that_over_the_file_and_that_over_the_default() {
    let seconds = |world: World| world.serve().client().call("slow", json!({})).sentence().to_owned();
    let slow = || world().tool("slow", sh("sleep 100"));
    assert_eq!(seconds(slow().config("timeout: 0.3\n")), "slow timed out after 0.3 s");
    assert_eq!(
        seconds(slow().config("timeout: 60\n").env("ORLA_TIMEOUT", "0.4")),
        "slow timed out after 0.4 s"
    );
    let flagged = slow().config("timeout: 60\n").env("ORLA_TIMEOUT", "70").arg("--timeout").arg("0.2");
    assert_eq!(seconds(flagged), "slow timed out after 0.2 s");
}

#[test]
fn configuration_files_are_found_by_name_and_parsed_by_content() {
    let tools = |world: World| world.serve().client().tool_names();
    let filled = || {
        let world = world();
        world.write("own/x", sh("echo x"), 0o755);
        world
    };
    assert_eq!(tools(filled().file("orla.yml", "tools_dir: own\n")), ["x"]);
    assert_eq!(tools(filled().file("orla.json", r#"{"tools_dir": "own"}"#)), ["x"]);
    assert_eq!(tools(filled().file("orla.yaml", r#"{"tools_dir": "own"}"#)), ["x"]);
    assert_eq!(tools(filled().file("orla.json", "tools_dir: own\n")), ["x"]);
    // orla.yaml comes first.
    let both =
        filled().file("orla.yaml", "tools_dir: own\n").file("orla.json", r#"{"tools_dir": "nowhere"}"#);
    assert_eq!(tools(both), ["x"]);
}

#[test]
fn a_relative_path_is_relative_to_the_file_or_to_the_current_directory() {
    let filled = || {
        let world = world().tool("here", sh("echo"));
        world.write("conf/tools/there", sh("echo"), 0o755);
        world
    };
    let by_file =
        filled().file("conf/orla.yaml", "tools_dir: tools\n").arg("--config").arg("conf/orla.yaml");
    assert_eq!(by_file.serve().client().tool_names(), ["there"]);
    let by_flag = filled()
        .file("conf/orla.yaml", "tools_dir: nowhere\n")
        .arg("--config")
        .arg("conf/orla.yaml")
        .arg("--tools-dir")
        .arg("tools");
    assert_eq!(by_flag.serve().client().tool_names(), ["here"]);
    let by_environment = filled().env("ORLA_TOOLS_DIR", "conf/tools");
    assert_eq!(by_environment.serve().client().tool_names(), ["there"]);
}

#[test]
fn variables_are_filled_in_where_text_is_written() {
    let world =
        world().tool("t", sh("echo")).env("WHERE", "too").config("tools_dir: ${ROOT:-.}/${WHERE}ls\n");
    assert_eq!(world.serve().client().tool_names(), ["t"]);
}

#[test]
fn an_unknown_variable_of_ours_is_ignored_and_a_wrong_one_is_named() {
    let world = world().tool("t", sh("echo")).env("ORLA_SOMETHING", "else").env("ORLA_MARKER", "x");
    assert_eq!(world.serve().client().tool_names(), ["t"]);
    for (name, value, expected) in [
        ("ORLA_TASK_KEEP", "bogus", "expected a time such as 30s"),
        ("ORLA_TASK_TIMEOUT", "0", "expected a time such as 30s"),
        ("ORLA_HISTORY", "bogus", "expected true or false"),
    ] {
        let wrong = crate::world().env(name, value).run(&["check"]);
        assert!(
            wrong.code == Some(1) && wrong.stderr.contains(&format!("{name}: {expected}")),
            "{wrong:?}"
        );
    }
    for (text, expected) in [
        ("a2a: {url: x}\n", "a2a.url: expected an address"),
        ("allowed_origins: ['not an origin']\n", "allowed_origins: expected an origin"),
        ("prompts_dir: ./none\n", "prompts_dir: "),
        (
            "tasks: [{name: a, program: '1', schedule: '61 * * * *'}]\n",
            "tasks[0].schedule: minute: expected 0 to 59",
        ),
    ] {
        let wrong = crate::world().config(text).run(&["check"]);
        let line = wrong.stderr.lines().find(|line| line.contains(expected));
        let is_placed = line.is_some_and(|line| line.contains("at orla.yaml:1:"));
        assert!(wrong.code == Some(1) && is_placed, "{wrong:?}");
    }
    let kept = crate::world().env("ORLA_TASK_KEEP", "2h").env("ORLA_HISTORY", "false").serve();
    assert_eq!(kept.http().get("/calls").status, 404);
    let wrong = crate::world().env("ORLA_PORT", "eighty").run(&["serve"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("ORLA_PORT") && wrong.stderr.contains("eighty"), "{wrong:?}");
    let wrong = crate::world().run(&["--port", "70000"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("--port") && wrong.stderr.contains("70000"), "{wrong:?}");
}

#[test]
fn a_good_configuration_with_every_key_is_accepted() {
    let every = r"
tools_dir: ./tools
prompts_dir: ./prompts
transport: http
host: 127.0.0.1
port: 0
timeout: 1.5
log_format: json
log_level: debug
max_output_bytes: 1000
max_concurrency: 2
max_queue: 3
max_body_bytes: 100000
session_idle: 60
auth_tokens: [secret]
allow_unauthenticated: false
allowed_hosts: [example.com]
allowed_origins: ['https://example.com']
allow: ['*']
deny: [x]
watch: false
tools:
  t: {timeout: 2, enabled: true, description: T, rename: u}
";
    let world = world().tool("t", sh("echo ok")).file("prompts/p.md", "hello\n").config(every);
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let server = world.serve();
    let mut client = server.client_as("secret");
    assert_eq!(client.tool_names(), ["u"]);
}

#[test]
fn secrets_are_in_no_log_and_no_answer() {
    let config = "auth_tokens: ['very-secret-token']\nlog_level: debug\n";
    let server = world().tool("t", sh("echo ok")).config(config).serve();
    let mut client = server.client_as("very-secret-token");
    assert_eq!(client.call("t", json!({})).stdout(), "ok\n");
    assert!(!server.log().contains("very-secret-token"), "{}", server.log());
}

#[test]
fn a_dump_of_the_documents_structs_with_their_nulls_is_a_configuration() {
    let manifest = |id: &str, provider: Value| {
        json!({"id": id, "name": id, "description": "Dumped.", "provider": provider, "version": null,
            "input_schema": null, "output_schema": null, "attestation": null, "permissions": [], "metadata": {"note": null},
            "provenance": {"source": "s", "version": null, "content_hash": null, "custody_chain": [], "registered_at": null}})
    };
    let url = "http://127.0.0.1:1";
    let http =
        json!({"Http": {"base_url": url, "auth_token": null, "timeout_ms": null, "options": null}});
    let stream = json!({"Stream": {"provider": http, "stream_type": "unidirectional", "input_schema": null, "output_schema": null,
        "supports_progress": null, "supports_cancellation": true, "bidirectional_config": null, "duplex_config": null, "stream_config": null}});
    let remote = json!({"RemoteRTFS": {"endpoint": url, "timeout_ms": 1, "auth_token": null}});
    let agent =
        json!({"A2A": {"agent_id": "a", "endpoint": url, "protocol": "http", "timeout_ms": null}});
    let mut typed = manifest("typed", http.clone());
    typed["input_schema"] =
        json!({"type": "object", "properties": {"a": {"enum": [1, null], "default": null}}});
    let config = json!({"capabilities": [
        manifest("http", http), manifest("stream", stream), manifest("remote", remote), manifest("agent", agent),
        manifest("math.add", json!({"Local": null})), typed,
    ]});
    let world = world().file("orla.json", config.to_string());
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{}", checked.all());
    let server = world.serve();
    let schema = server.client().tool("typed")["inputSchema"]["properties"]["a"].clone();
    assert_eq!(schema, json!({"enum": [1, null], "default": null}), "nulls within a schema are data");
}
