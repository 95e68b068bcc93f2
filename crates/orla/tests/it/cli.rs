//! The command line: the output of each command, and its exit code.

use orla_e2e::{Finished, Server, eventually};
use serde_json::{Value, json};

use crate::{sh, world};

fn json_of(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|err| panic!("{err}: {finished:?}"))
}

#[test]
fn serve_and_run_and_nothing_are_the_same() {
    for command in [None, Some("serve"), Some("run")] {
        let mut world = world().tool("t", sh("echo ok"));
        if let Some(command) = command {
            world = world.arg(command);
        }
        assert_eq!(world.serve().client().tool_names(), ["t"]);
    }
}

#[test]
fn wrong_usage_is_explained_with_exit_code_2() {
    let world = world();
    for arguments in [
        &["--no-such-flag"][..],
        &["no-such-command"],
        &["call"],
        &["connect", "no-such-client"],
        &["completions", "x"],
    ] {
        let finished = world.run(arguments);
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(!finished.stderr.is_empty() && finished.stdout.is_empty(), "{finished:?}");
    }
    let help = world.run(&["--help"]);
    assert_eq!(help.code, Some(0));
    for word in [
        "list",
        "call",
        "check",
        "schema",
        "init",
        "connect",
        "completions",
        "status",
        "--config",
        "--stdio",
    ] {
        assert!(help.stdout.contains(word), "{word}: {}", help.stdout);
    }
    let version = world.run(&["--version"]);
    assert!(version.code == Some(0) && version.stdout.starts_with("orla "), "{version:?}");
}

#[test]
fn list_shows_what_would_be_served() {
    let world = world()
        .tool("ls.sh", sh("# Lists files.\nls"))
        .tool("count.py", "#!/usr/bin/env python3 -u\n# Counts.\n")
        .tool("hidden", sh("echo"))
        .config("deny: [hidden]\n");
    let listed = world.run(&["list"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    for word in ["ls", "count", "python3", "sh"] {
        assert!(listed.stdout.contains(word), "{word}: {}", listed.stdout);
    }
    assert!(!listed.stdout.contains("hidden"), "{}", listed.stdout);

    let as_json = json_of(&world.run(&["list", "--json"]));
    let names: Vec<_> =
        as_json.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["count", "ls"]);
    assert_eq!(as_json[0]["interpreter"], "python3");
    assert_eq!(as_json[0]["kind"], "tool");
    let server = world.serve();
    assert_eq!(server.status()["capabilities"], as_json, "the objects of /status");
}

#[test]
fn list_without_tools_explains_how_to_add_one() {
    let listed = world().run(&["list"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    assert!(listed.all().contains("tools"), "{listed:?}");
    assert_eq!(json_of(&world().run(&["list", "--json"])), json!([]));
}

#[test]
fn call_prints_the_text_to_stdout_and_the_errors_to_stderr() {
    let world = world()
        .tool("both", sh("echo out; echo err >&2"))
        .tool("argv", sh("for a in \"$@\"; do printf '[%s]' \"$a\"; done"))
        .tool("cat", sh("cat"))
        .tool("bad", sh("echo partial; echo reason >&2; exit 3"));
    let both = world.run(&["call", "both"]);
    assert_eq!((both.code, both.stdout.as_str()), (Some(0), "out\n"), "{both:?}");
    assert!(both.stderr.contains("err"), "{both:?}");

    let argv = world.run(&[
        "call",
        "argv",
        "path=/tmp",
        "depth=2",
        "all=true",
        "off=false",
        r#"list=["a","b"]"#,
        "text=a=b",
        "x=1.50",
    ]);
    assert_eq!(
        argv.stdout.trim_end(),
        "[--path][/tmp][--depth][2][--all][--list][a][--list][b][--text][a=b][--x][1.50]"
    );
    let cat = world.run(&["call", "cat", "--json", r#"{"big": 9007199254740993, "a": null}"#]);
    assert_eq!(cat.stdout.trim_end(), r#"{"big":9007199254740993,"a":null}"#, "{cat:?}");
    let cat = world.run(&["call", "cat", "stdin=hello"]);
    assert_eq!(cat.stdout.trim_end(), "hello", "{cat:?}");

    let bad = world.run(&["call", "bad"]);
    assert_eq!(bad.code, Some(1), "{bad:?}");
    assert!(bad.stdout.starts_with("partial\n"), "{bad:?}");
    assert!(bad.all().contains("bad exited with code 3"), "{bad:?}");

    let raw = json_of(&world.run(&["call", "both", "--raw"]));
    assert_eq!(raw["structuredContent"]["stdout"], "out\n");
    assert_eq!(raw["_meta"]["orla/execution"]["exit_code"], 0);

    let unknown = world.run(&["call", "bot"]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stderr.contains("bot") && unknown.stderr.contains("both"), "{unknown:?}");
    let broken = world.run(&["call", "cat", "--json", "{nonsense"]);
    assert_eq!(broken.code, Some(2), "{broken:?}");
    let broken = world.run(&["call", "cat", "no-equals-sign"]);
    assert_eq!(broken.code, Some(2), "{broken:?}");
}

#[test]
fn the_command_line_cannot_call_what_is_not_served() {
    let world = world()
        .tool("secret", sh("touch ran"))
        .tool("off", sh("touch ran"))
        .config("deny: [secret]\ntools:\n  off: {enabled: false}\n");
    for name in ["secret", "off"] {
        let finished = world.run(&["call", name]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert!(finished.stderr.contains(name), "{finished:?}");
    }
    assert!(!world.path("ran").exists());
}

#[test]
fn rules_apply_to_the_final_name_of_a_tool() {
    let serve = |rule: &str| {
        let config = format!(
            "auth_tokens: {{ada: a-secret}}\nhistory: false\ntools: {{a: {{rename: z}}, b: {{rename: y}}}}\n{rule}"
        );
        world().tool("a", sh("echo done")).tool("b", sh("echo done")).config(&config)
    };
    let denied = "policy: [{capabilities: [a, b], deny: ['*']}, {allow: ['*']}]\n";
    for rule in ["deny: [a, b]\n", "deny: ['a*', b]\n", denied] {
        let world = serve(rule);
        let check = world.run(&["check"]);
        assert_eq!(
            (check.code, check.all().contains("matches no")),
            (Some(0), false),
            "{rule}: {check:?}"
        );
        let server = world.serve();
        let names = server.client_as("a-secret").tool_names();
        assert!(!names.iter().any(|name| name == "z" || name == "y"), "{rule}: {names:?}");
        for name in ["z", "y"] {
            assert!(server.client_as("a-secret").try_call(name, json!({})).is_err(), "{rule}: {name}");
        }
    }
    // The new name may be that of another tool, so a grant must use it.
    let world = serve("allow: [a]\n");
    let check = world.run(&["check"]);
    assert!(check.stderr.contains("allow: a is called z here"), "{check:?}");
    assert!(world.serve().client_as("a-secret").tool_names().is_empty());
    assert_eq!(serve("allow: [z]\n").serve().client_as("a-secret").tool_names(), ["z"]);
    let rules = "quotas: [{capabilities: [b], per: day, calls: 5, cost: {b: 5}}]\napprove: [{capabilities: [a], expires: 1s}]\n";
    let server = serve(rules).serve();
    let call = |name: &str| server.client_as("a-secret").call(name, json!({})).json.to_string();
    assert!(call("z").contains("not approved"));
    assert!(!call("y").contains("quota exceeded"));
    assert!(call("y").contains("quota exceeded"));
}

#[test]
fn a_call_leaves_nothing_running_and_keeps_its_timeout() {
    let world = world()
        .tool("slow", sh("sleep 100 & sleep 100"))
        .tool("escaped", sh("setsid sleep 100 & echo ok"));
    let slow = world.run(&["call", "slow", "--timeout", "0.3"]);
    assert_eq!(slow.code, Some(1), "{slow:?}");
    assert!(slow.all().contains("slow timed out after 0.3 s"), "{slow:?}");
    let escaped = world.run(&["call", "escaped"]);
    assert_eq!(escaped.stdout, "ok\n");
    eventually("nothing is left", || world.processes().is_empty());
}

#[test]
fn call_and_status_speak_to_a_running_server() {
    let server = world().tool("both", sh("echo out; echo err >&2")).tool("bad", sh("exit 3")).serve();
    let url = format!("http://{}", server.address());
    let elsewhere = world();
    let both = elsewhere.run(&["call", "both", "--url", &url]);
    assert_eq!((both.code, both.stdout.as_str()), (Some(0), "out\n"), "{both:?}");
    assert!(both.stderr.contains("err"), "{both:?}");
    assert_eq!(elsewhere.run(&["call", "bad", "--url", &url]).code, Some(1));
    let unknown = elsewhere.run(&["call", "bot", "--url", &url]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stderr.contains("bot"), "{unknown:?}");

    let status = elsewhere.run(&["status", "--url", &url]);
    assert_eq!(status.code, Some(0), "{status:?}");
    assert!(status.stdout.contains("both") && status.stdout.contains("bad"), "{status:?}");
    let as_json = json_of(&elsewhere.run(&["status", "--url", &url, "--json"]));
    assert_eq!(as_json["capabilities"], server.status()["capabilities"]);

    let nobody = elsewhere.run(&["status", "--url", "http://127.0.0.1:1"]);
    assert_eq!(nobody.code, Some(1), "{nobody:?}");
    assert!(nobody.stderr.contains("127.0.0.1:1"), "{nobody:?}");
}

#[test]
fn check_finds_every_mistake_and_praises_what_is_good() {
    let good = world()
        .tool("t", sh("echo"))
        .file("prompts/p.md", "Hi\n")
        .config("timeout: 3\n")
        .run(&["check"]);
    assert_eq!(good.code, Some(0), "{good:?}");
    let bad = world()
        .tool("a.sh", "#!/bin/sh\n# /// orla\n# timeout: -3\n# ///\n")
        .file("prompts/p.md", "---\ndescription: [\n---\n")
        .config("timeout: 3\ntools:\n  nowhere: {timeout: 1}\n")
        .run(&["check"]);
    assert_eq!(bad.code, Some(1), "{bad:?}");
    for place in ["a.sh:3:", "p.md:"] {
        assert!(bad.all().contains(place), "{place}: {}", bad.all());
    }
}

#[test]
fn schema_is_a_json_schema_of_every_key() {
    let schema = json_of(&world().run(&["schema"]));
    assert!(schema["$schema"].is_string(), "{schema}");
    for key in [
        "tools_dir",
        "port",
        "timeout",
        "log_format",
        "log_level",
        "tools",
        "allow",
        "deny",
        "watch",
        "auth_tokens",
    ] {
        assert!(schema["properties"][key].is_object(), "{key}");
        assert!(schema["properties"][key]["description"].is_string(), "{key}");
    }
    assert_eq!(schema["additionalProperties"], false);
}

#[test]
fn init_writes_what_can_be_served_at_once_and_overwrites_nothing() {
    let world = world();
    let first = world.run(&["init"]);
    assert_eq!(first.code, Some(0), "{first:?}");
    let config = world.read("orla.yaml");
    assert!(!config.is_empty());
    assert_eq!(world.run(&["check"]).code, Some(0), "{:?}", world.run(&["check"]));
    world.write("orla.yaml", "timeout: 9\n", 0o644);
    let again = world.run(&["init"]);
    assert_eq!(world.read("orla.yaml"), "timeout: 9\n", "{again:?}");
    let server: Server = world.serve();
    let mut client = server.client();
    let tools = client.tools();
    assert!(!tools.is_empty());
    for tool in tools {
        let required = tool["inputSchema"]["required"].as_array().cloned().unwrap_or_default();
        let arguments: serde_json::Map<_, _> =
            required.iter().map(|key| (key.as_str().unwrap().to_owned(), json!("Ada"))).collect();
        let result = client.call(tool["name"].as_str().unwrap(), arguments.into());
        assert!(!result.is_error(), "{}", result.json);
    }
    let prompts = client.request("prompts/list", json!({})).unwrap();
    assert!(!prompts["prompts"].as_array().unwrap().is_empty());
}

#[test]
fn connect_prints_or_writes_the_entry_of_every_client() {
    let clients = [
        "claude-desktop",
        "claude-code",
        "vscode",
        "cursor",
        "codex",
        "gemini",
        "goose",
        "zed",
        "opencode",
        "lmstudio",
    ];
    let world = world().tool("t", sh("echo")).config("timeout: 3\n");
    for client in clients {
        let printed = world.run(&["connect", client]);
        assert_eq!(printed.code, Some(0), "{client}: {printed:?}");
        assert!(printed.stdout.contains("--stdio"), "{client}: {}", printed.stdout);
        assert!(printed.stdout.contains("orla"), "{client}: {}", printed.stdout);
        let written = world.run(&["connect", client, "--write"]);
        assert_eq!(written.code, Some(0), "{client}: {written:?}");
        let again = world.run(&["connect", client, "--write"]);
        assert_eq!(again.code, Some(0), "{client}: {again:?}");
    }
    let cursor: Value = serde_json::from_str(&world.read(".cursor/mcp.json")).unwrap();
    let entry = &cursor["mcpServers"]["orla"];
    let command = entry["command"].as_str().unwrap();
    assert!(std::path::Path::new(command).is_absolute(), "{entry}");
    assert!(entry["args"].as_array().unwrap().contains(&json!("--stdio")), "{entry}");
}

#[test]
fn connect_reports_what_keeps_the_client_from_starting_orla() {
    let old = r#"{"mcpServers": {"files": {"command": "npx"}, "mine": {"command": "x"}}}"#;
    let config = "audit: a.jsonl\nmcpServers: {files: {url: 'http://127.0.0.1:9', headers: {k: '${CORP_KEY} ${HOME}'}}}\n";
    let world = world().config(config).file(".cursor/mcp.json", old);
    let written = world.run(&["connect", "cursor", "--write"]);
    assert_eq!(written.code, Some(0), "{}", written.all());
    for words in [
        "orla.yaml needs CORP_KEY, which Cursor must have",
        "orla secret set corp-key",
        "orla connect cursor --url http://127.0.0.1:8080",
        "The file still has files, which orla serves too",
    ] {
        assert!(written.stderr.contains(words), "{words}: {}", written.all());
    }
    assert_eq!(world.run(&["connect", "cursor", "--write", "--name", "again"]).code, Some(0));
    assert_eq!(world.read(".cursor/mcp.json.orla-backup"), old);
    assert!(world.read(".cursor/mcp.json.orla-backup-2").contains("--stdio"));
    world.write("orla.yaml", "prot: 1\n", 0o644);
    let broken = world.run(&["connect", "cursor"]);
    assert_eq!(broken.code, Some(0), "{}", broken.all());
    let warning = "warning: prot: unknown key, did you mean port? at ";
    assert!(broken.stderr.contains(warning), "{}", broken.all());
    assert!(!written.stderr.contains("warning"), "a variable has a note: {}", written.all());
}

#[test]
fn a_mistake_of_an_argument_exits_2_in_plain_words() {
    let world = world().tool("hello", sh("echo hello")).file("file", "x").file("cases.yaml", "- 1\n");
    for (arguments, code, words) in [
        (&["sandbox", "run", "-p", "fs:raed:.", "--", "ls"][..], 2, "fs:read:PATH"),
        (&["task", "list", "--state", "wrking"], 2, "--state: expected queued, working, "),
        (&["task", "list", "--limit", "x"], 2, "expected a whole number from 1 to 1000"),
        (&["task", "event", "a", "paid", "{"], 2, "the value of an event: expected JSON such as"),
        (&["attest", "--expires", "soon"], 2, "expected a number of days"),
        (&["rtfs", "-e", "input", "--input", "{a: 1}"], 2, "--input: expected a key in quotes, got 'a'"),
        (&["man", "/proc/x"], 1, "/proc/x: No such file or directory"),
        (&["publish", "nowhere"], 1, "No such file or directory"),
        (&["add", "mcpb:nowhere.mcpb"], 1, "nowhere.mcpb: No such file or directory"),
        (&["call", "hello", "--tools-dir", "file"], 1, "tools_dir: "),
    ] {
        let run = world.run(arguments);
        assert_eq!(run.code, Some(code), "{arguments:?}: {}", run.all());
        assert!(run.stderr.contains(words), "{arguments:?}: {}", run.all());
        for leaked in ["os error", "invalid digit", "EOF", "$:"] {
            assert!(!run.stderr.contains(leaked), "{arguments:?}: {}", run.all());
        }
    }
    let lines = world.run_with_input(&["rtfs", "--jsonl"], b"{\"sorc\": \"1\"}\n{\n");
    assert!(lines.stdout.contains("src is missing"), "{}", lines.all());
    assert!(lines.stdout.contains("got the end of the text"), "{}", lines.all());
    world.write("orla.yaml", "tools_dir: ./file\n", 0o644);
    let listed = world.run(&["list"]);
    assert!(listed.stderr.contains(" at orla.yaml:1:12"), "{}", listed.all());
}

#[test]
fn connect_writes_the_address_of_a_remote_server() {
    let world = world();
    let there = ["--url", "https://orla.example:8443", "--token-env", "MY_TOKEN"];
    let written = world.run(&[&["connect", "cursor", "--write"][..], &there].concat());
    assert_eq!(written.code, Some(0), "{}", written.all());
    let cursor: Value = serde_json::from_str(&world.read(".cursor/mcp.json")).unwrap();
    let headers = json!({"Authorization": "Bearer ${env:MY_TOKEN}"});
    let entry = json!({"url": "https://orla.example:8443/mcp", "headers": headers});
    assert_eq!(cursor["mcpServers"]["orla"], entry);
    let printed = world.run(&[&["connect", "zed"][..], &there].concat());
    assert!(printed.stdout.contains("orla.example") && printed.stderr.contains("no token from"));
    for (arguments, code, words) in [
        (&["connect", "claude-desktop", "--url", "https://h"][..], 1, "Connectors"),
        (&["connect", "cursor", "--url", "h:1"], 2, "expected an address"),
        (&["connect", "cursor", "--url", "https://h", "--tools-dir", "t"], 2, "--url"),
        (&["connect", "cursor", "--token-env", "T"], 2, "--url"),
    ] {
        let refused = world.run(arguments);
        assert!(refused.code == Some(code) && refused.stderr.contains(words), "{}", refused.all());
    }
}

#[test]
fn connect_keeps_what_a_client_has_and_leaves_a_file_that_it_cannot_read_alone() {
    let world = world()
        .file(".cursor/mcp.json", r#"{"mcpServers": {"other": {"command": "x"}}, "more": [1.10]}"#);
    let written = world.run(&["connect", "cursor", "--write"]);
    assert_eq!(written.code, Some(0), "{written:?}");
    let text = world.read(".cursor/mcp.json");
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["mcpServers"]["other"]["command"], "x");
    assert!(json["mcpServers"]["orla"].is_object() && text.contains("more"), "{text}");
    world.write(".cursor/mcp.json", "{broken", 0o644);
    let refused = world.run(&["connect", "cursor", "--write"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert_eq!(world.read(".cursor/mcp.json"), "{broken");
}

#[test]
fn completions_are_printed_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = world().run(&["completions", shell]);
        assert_eq!(script.code, Some(0), "{shell}");
        assert!(script.stdout.contains("connect"), "{shell}");
    }
}

#[test]
fn output_to_a_closed_pipe_is_no_panic() {
    let world = world().tool("t", sh("echo")).through(&["sh", "-c", "\"$@\" | :", "--"]);
    for arguments in [&["schema"][..], &["list"], &["completions", "bash"], &["--help"]] {
        let finished = world.run(arguments);
        assert!(!finished.stderr.contains("panicked"), "{finished:?}");
    }
}

#[test]
fn connect_reports_a_replaced_entry_and_does_not_wait_for_a_pipe() {
    let world = world();
    let written = world.run(&["connect", "cursor", "--write"]);
    assert!(written.stdout.contains("Wrote orla to"), "{written:?}");
    let replaced = world.run(&["connect", "cursor", "--write", "--timeout", "7"]);
    assert!(replaced.code == Some(0) && replaced.stdout.contains("Replaced orla in"), "{replaced:?}");
    let file = world.path(".cursor/mcp.json");
    std::fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    let refused = world.run(&["connect", "cursor", "--write"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("is not a regular file"), "{refused:?}");
}

#[test]
fn check_names_characters_that_a_reader_cannot_see() {
    let header = "# /// orla\n# title: \"pay\\u200Bpal\"\n# description: \"Sends money.\\u202E\\U000E0041\"\n# ///\n";
    let world = world().tool("pay", format!("#!/bin/sh\n{header}echo\n")).tool("plain", sh("echo"));
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    for words in [
        "warning: pay: its title has U+200B (invisible)",
        "warning: pay: its description has U+202E (bidirectional), U+E0041 (a tag character)",
    ] {
        assert!(checked.stderr.contains(words), "{checked:?}");
    }
    assert!(!checked.stderr.contains("plain"), "{checked:?}");
}

#[test]
fn check_names_programs_that_cannot_start_with_the_words_of_the_call() {
    let world = world()
        .tool("gone", "#!/usr/bin/env no-such-python\n")
        .tool("windows", "#!/bin/sh\r\necho\r\n")
        .tool("broken", "\x7fELF broken")
        .tool("fine", sh("echo"));
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    for (tool, words) in [
        ("gone", "interpreter no-such-python not found"),
        ("windows", "save the file with Unix line endings (LF)"),
        ("broken", "it is not a program that this machine can run"),
    ] {
        let line = checked.stderr.lines().find(|line| line.contains(&format!("tools/{tool}: ")));
        assert!(line.is_some_and(|line| line.contains(words)), "{tool}: {checked:?}");
        let called = world.run(&["call", tool]);
        assert!(called.all().contains(words), "{tool}: {called:?}");
    }
    assert!(!checked.stderr.contains("fine"), "{checked:?}");
}

#[test]
fn check_reports_skipped_servers_and_unmatched_patterns() {
    let world = world().config("allow: ['wrod_*', 'wo*']\ndeny: [world]\n").tool("word", sh("echo"));
    let checked = world.run(&["check"]);
    assert_eq!((checked.code, checked.stdout.contains("not asked")), (Some(0), false), "{checked:?}");
    for words in [
        "allow: wrod_* matches no tool at orla.yaml:1:8",
        "deny: world matches no tool, did you mean word? at orla.yaml:2:7",
    ] {
        assert!(checked.stderr.contains(words), "{checked:?}");
    }
    assert!(!checked.stderr.contains("wo* "), "{checked:?}");
    world.write("orla.yaml", "mcpServers: {a: {command: 'false'}}\nallow: [a__x]\n", 0o644);
    let checked = world.run(&["check"]);
    assert!(checked.stdout.contains("(not asked: MCP servers; orla list asks them)"), "{checked:?}");
    assert!(!checked.stderr.contains("fits no"), "{checked:?}");
}

#[test]
fn check_names_rules_that_fit_nothing_and_their_places() {
    let rules = |capability: &str, denied: &str| {
        format!(
            "mcpServers: {{memory: {{command: 'false'}}}}\npolicy:\n  - {{allow: ['*'], deny: ['{denied}']}}\napprove:\n  - {{capabilities: ['{capability}']}}\nquotas:\n  - {{capabilities: [word,\n      {capability}], per: day, calls: 2}}\n"
        )
    };
    let world = world().config(&rules("memory.delete_*", "mcp:memory/delete_*"));
    let world = world.tool("word", sh("echo"));
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{}", checked.all());
    assert!(!checked.stderr.contains("fits no"), "{}", checked.all());
    world.write("orla.yaml", rules("word", "memory.delete_*"), 0o644);
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{}", checked.all());
    for words in ["policy[0].deny[0]: expected a permission", "mcp:SERVER/TOOL", "orla.yaml:3:27"] {
        assert!(checked.stderr.contains(words), "{words}: {}", checked.all());
    }
    world.write("orla.yaml", rules("wrod", "word"), 0o644);
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{}", checked.all());
    for words in [
        "policy[0].deny: `word` is no permission",
        "orla.yaml:3:27",
        "mcp:SERVER/TOOL",
        "approve[0].capabilities: `wrod` fits no capability",
        "orla.yaml:5:21",
        "quotas[0].capabilities: `wrod` fits no capability",
        "orla.yaml:8:7",
        "SERVER__TOOL",
    ] {
        assert!(checked.stderr.contains(words), "{words}: {}", checked.all());
    }
}

#[test]
fn a_missing_default_tools_directory_is_reported_only_if_needed() {
    let world = world().config("mcpServers: {a: {command: 'false'}}\n");
    assert!(!world.run(&["check"]).all().contains("no such directory"));
    for config in ["", "tools_dir: ./tools\nmcpServers: {a: {command: 'false'}}\n"] {
        world.write("orla.yaml", config, 0o644);
        let checked = world.run(&["check"]);
        assert!(checked.stderr.contains("no such directory"), "{}", checked.all());
    }
}

#[test]
fn an_unknown_function_of_a_plugin_and_a_wrong_url_are_one_error_each() {
    let world = world().config("plugins: {calc: ./calc.sh}\n");
    let describe = r#"{"id":0,"ok":{"functions":[{"name":"calc"}]}}"#;
    world.write("calc.sh", format!("#!/bin/sh\nread line\necho '{describe}'\nread line\n"), 0o755);
    let called = world.run(&["call", "calc__add", "a=1"]);
    assert_eq!(called.stderr.trim(), "error: unknown tool: calc__add; did you mean calc?");
    let called = world.run(&["call", "calc", "--url", "http://127.0.0.1:1/rtfs"]);
    assert!(called.stderr.contains("expected http://HOST:PORT, without /rtfs"), "{called:?}");
}

#[test]
fn every_command_has_a_manual_page() {
    let world = world();
    let done = world.run(&["man", "manual"]);
    assert_eq!(done.code, Some(0), "{}", done.all());
    for (page, shown) in [("orla.1", "orla-call(1)"), ("orla-task-run.1", "orla-task-run")] {
        let text = world.read(format!("manual/{page}")).replace("\\-", "-");
        assert!(text.contains(shown), "{page}: {text}");
    }
}

#[test]
fn a_call_on_a_server_ends_at_the_requested_timeout() {
    let server = world().tool("slow", sh("exec sleep 600")).config("timeout: 600\n").serve();
    let url = format!("http://{}", server.address());
    for raw in [false, true] {
        let mut arguments = vec!["call", "slow", "--url", &url, "--timeout", "1"];
        arguments.extend(raw.then_some("--raw"));
        let finished = server.run(&arguments);
        assert!(
            finished.code == Some(1) && finished.all().contains("slow timed out after 1 s"),
            "{finished:?}"
        );
    }
    let outcomes = || {
        let calls = server.http().get("/calls").json();
        let calls = calls.as_array().cloned().unwrap_or_default();
        calls
            .iter()
            .map(|call| call["outcome"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    eventually("the server has ended both", || outcomes() == ["cancelled", "cancelled"]);
    server.assert_no_tool_is_left();
}

#[test]
fn check_names_files_that_were_meant_to_be_tools_and_tools_that_were_not() {
    let block = "# /// orla\n# description: Counts.\n# ///\n";
    let world = world()
        .file("tools/count.py", format!("#!/usr/bin/env python3\n{block}"))
        .tool("nosheb.py", "import sys\nprint(1)\n")
        .tool("README.md", "# Notes\n")
        .tool("empty", "")
        .tool("plain", "echo plain\n")
        .tool("also.sh", "echo also\n");
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let warned = |file: &str, words: &str| {
        let is_line = |line: &str| line.contains(file) && line.contains(words);
        assert!(checked.stderr.lines().any(is_line), "{file}: {checked:?}");
    };
    warned("tools/count.py", "is not executable");
    warned("tools/nosheb.py", "it has no first line `#!PROGRAM`, so sh runs it");
    warned("tools/README.md", "so sh runs it");
    warned("tools/empty", "the file is empty");
    for fine in ["tools/plain", "tools/also.sh"] {
        assert!(!checked.stderr.contains(fine), "{fine}: {checked:?}");
    }
    let server = world.serve();
    server.log_says(&["tools/count.py", "is not executable"]);
    assert_eq!(server.client().call("plain", json!({})).stdout(), "plain\n");
}

#[test]
fn common_beginners_mistakes_get_advice() {
    let world = world()
        .tool("pack", sh("# /// orla\n# input_schema: {folder: string}\n# ///\necho packed"))
        .config("audit: nowhere/audit.jsonl\n");
    let checked = world.run(&["check"]);
    assert!(checked.code == Some(1) && checked.stderr.contains("audit: "), "{checked:?}");
    assert!(
        checked.stderr.contains("its directory cannot be used")
            && checked.stderr.contains("orla.yaml:1:"),
        "{checked:?}"
    );
    world.write("orla.yaml", "{}\n", 0o644);
    let called = world.run(&["call", "pack", "folder=2026"]);
    assert!(called.stderr.contains(r#"write 'folder="2026"'"#), "{called:?}");
    assert_eq!(world.run(&["call", "pack", "folder=\"2026\""]).code, Some(0));
    let nobody = world.run(&["calls", "--url", "http://127.0.0.1:1"]);
    assert!(nobody.stderr.contains("start a server with `orla`, or name one with --url"), "{nobody:?}");
}

#[test]
fn a_full_disk_is_a_failure_and_a_closed_pipe_is_not() {
    let world = |script| world().tool("hello", sh("echo hello")).through(&["sh", "-c", script, "--"]);
    for arguments in [&["call", "hello"][..], &["list"], &["rtfs", "-e", "1"]] {
        let ran = world("exec \"$@\" > /dev/full").run(arguments);
        assert_eq!(ran.code, Some(1), "{arguments:?}: {}", ran.all());
        assert!(
            ran.stderr.contains("could not be written: No space left"),
            "{arguments:?}: {}",
            ran.all()
        );
    }
    let ran = world("{ \"$@\"; echo $? >&2; } | true").run(&["list"]);
    assert_eq!(ran.stderr, "0\n");
}

#[test]
fn a_denied_call_of_this_process_says_that_it_is_anonymous() {
    let world = world().tool("hi.sh", sh("echo hi")).config("policy:\n- {to: [ada], allow: ['*']}\n");
    let refused = world.run(&["call", "hi"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for words in ["permission denied", "a call is anonymous", "ORLA_TOKEN"] {
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
    let raw = world.run(&["call", "hi", "--raw"]);
    assert!(!raw.stderr.contains("ORLA_TOKEN"), "{raw:?}");
}
