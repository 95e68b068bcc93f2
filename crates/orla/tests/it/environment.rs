//! The environment, signals and limits that a tool inherits from the server.

use orla_e2e::eventually;
use serde_json::json;

use crate::{sh, world};

/// The server may have been started by something that left descriptors open.
#[test]
fn a_tool_has_three_descriptors_and_no_others() {
    let server = world()
        .tool("fds", sh("exec ls -l /proc/self/fd"))
        .file("inherited", "")
        .through(&["sh", "-c", "exec 7<inherited 8<inherited; exec \"$@\"", "--"])
        .serve();
    let mut clients: Vec<_> = (0..8).map(|_| server.client()).collect();
    let pending: Vec<_> = clients.iter_mut().map(|client| client.begin_call("fds", json!({}))).collect();
    for (client, pending) in clients.iter_mut().zip(pending) {
        let result = client.finish_call(pending).unwrap();
        let target = |line: &str| Some(line.split_once(" -> ")?.1.to_owned());
        let mut open: Vec<_> = result.stdout().lines().filter_map(target).collect();
        // The directory that `ls` reads.
        open.retain(|target| !target.starts_with("/proc/"));
        assert!(open.len() == 3 && open.iter().all(|target| target.starts_with("pipe:")), "{open:?}");
    }
}

/// `nohup` and background shells leave signals ignored; a tool that relies on them would hang.
#[test]
fn a_tool_starts_with_no_signal_ignored_or_blocked() {
    let server = world()
        .tool("signals", sh("exec grep -E 'Sig(Ign|Blk)' /proc/self/status"))
        .through(&["sh", "-c", "trap '' INT QUIT PIPE USR1; exec \"$@\"", "--"])
        .serve();
    let result = server.client().call("signals", json!({}));
    for line in result.stdout().lines() {
        let mask = line.split_whitespace().last().unwrap();
        // The C library reserves signals 32 and 33. No program can reset their inherited state.
        let mask = u64::from_str_radix(mask, 16).unwrap() & !(0b11 << 31);
        assert_eq!(mask, 0, "{}", result.stdout());
    }
}

/// `nohup orla &` must still reload: the signal's meaning is the server's own.
#[test]
fn a_server_that_was_started_with_hangups_ignored_still_reloads() {
    let server =
        world().tool("a", sh("echo a")).through(&["sh", "-c", "trap '' HUP; exec \"$@\"", "--"]).serve();
    server.write("tools/b", sh("echo b"), 0o755);
    server.reload();
    assert_eq!(server.client().tool_names(), ["a", "b"]);
}

#[test]
fn each_tool_is_the_leader_of_a_process_group_of_its_own() {
    let server =
        world().tool("group", sh("read -r _ _ _ _ group rest < /proc/$$/stat; echo $$ $group")).serve();
    let result = server.client().call("group", json!({}));
    let ids: Vec<_> = result.stdout().split_whitespace().collect();
    assert_eq!(ids[0], ids[1], "{}", result.stdout());
    assert_ne!(ids[0], server.id().to_string());
}

/// A relative `tools_dir` works from every working directory of a tool.
#[test]
fn tools_run_with_a_relative_directory_and_in_deep_ones() {
    let world = world().config("tools_dir: a/b/../c d/tools\n");
    std::fs::create_dir_all(world.path("a/b")).unwrap();
    world.write("a/c d/tools/it's.sh", sh("echo \"$0\"; pwd -P"), 0o755);
    let server = world.serve();
    let result = server.client().call("it_s", json!({}));
    assert!(!result.is_error(), "{}", result.json);
    let here = server.dir().canonicalize().unwrap();
    assert_eq!(result.stdout().lines().last(), here.to_str());
}

/// A script may find itself by `$0`, and its neighbours from there.
#[test]
fn a_script_finds_its_neighbours() {
    let server = world()
        .tool("t.sh", sh("cat \"$(dirname \"$0\")/data.txt\""))
        .file("tools/data.txt", "found\n")
        .serve();
    assert_eq!(server.client().call("t", json!({})).stdout(), "found\n");
}

/// A tool's changes to its own limits and its own directory affect only the tool.
#[test]
fn a_tool_changes_nothing_for_the_next_call() {
    let server = world()
        .tool("t", sh("pwd -P; umask; ulimit -n; cd /; umask 777; ulimit -n 10; export ORLA_TOOL=x"))
        .serve();
    let mut client = server.client();
    let first = client.call("t", json!({})).stdout().to_owned();
    assert_eq!(client.call("t", json!({})).stdout(), first);
}

/// On a terminal, a tool that asks for a password would wait forever. It gets an error instead, or ends
/// at its timeout. `script` gives the server a terminal.
#[test]
fn a_tool_that_reads_the_terminal_ends_at_its_timeout_at_the_latest() {
    let world = world()
        .tool("ask", sh("read -r answer < /dev/tty && echo \"got $answer\""))
        .config("timeout: 1\n");
    let probe = std::process::Command::new("script").arg("--version").output();
    if probe.is_err() {
        return;
    }
    let server = world
        .through(&["sh", "-c", "exec script -qec \"$* 2>log\" /dev/null >/dev/null", "--"])
        .serve_quietly();
    let result = server.client().call("ask", json!({}));
    assert!(result.is_error(), "{}", result.json);
    eventually("nothing is left of it", || server.tool_processes().is_empty());
}

/// A program that writes the names of its variables to the file `seen.NAME`, where NAME is its argument.
const RECORDS: &str = "env | sed -n 's/^\\([A-Za-z_][A-Za-z_0-9]*\\)=.*/\\1/p' | sort >\"$HOME/part.$1\"
mv \"$HOME/part.$1\" \"$HOME/seen.$1\"; echo recorded";

/// Returns the variables that a program with this argument has recorded, without those that every
/// process gets.
fn seen(server: &orla_e2e::Server, name: &str) -> Vec<String> {
    let text = eventually("the program has recorded its environment", || {
        std::fs::read_to_string(server.path(format!("seen.{name}"))).ok()
    });
    let usual = [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "TERM",
        "TMPDIR",
        "TZ",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "ORLA_TOOL",
        "ORLA_CALL_ID",
        "ORLA_INSTANCE",
        "TRACEPARENT",
        "E2E_WORLD",
    ];
    let is_usual = |name: &str| {
        usual.contains(&name)
            || ["LC_", "XDG_"].iter().any(|start| name.starts_with(start))
            || name.to_lowercase().ends_with("_proxy")
            || [
                "SSL_CERT_FILE",
                "SSL_CERT_DIR",
                "NODE_EXTRA_CA_CERTS",
                "REQUESTS_CA_BUNDLE",
                "CURL_CA_BUNDLE",
            ]
            .contains(&name)
    };
    text.lines().filter(|name| !is_usual(name)).map(str::to_owned).collect()
}

/// Returns a header that gives a recording tool its argument.
fn recording(name: &str, more: &str) -> String {
    sh(&format!("# /// orla\n# args: [{name}]\n{more}# ///\n{RECORDS}"))
}

/// Everything that runs as a process gets a small environment, and what `pass_env` adds where it is declared.
#[test]
fn every_process_gets_only_what_is_passed_to_it() {
    let config = "pass_env: ['GENERAL_*']
tools: {named: {pass_env: [OF_NAME]}, package: {pass_env: [OF_PACKAGE]}}
plugins: {plug: {path: ./records, args: [plug], env: {OWN: x}, pass_env: [OF_PLUGIN]}}
mcpServers: {srv: {command: ./records, args: [srv], pass_env: OF_SERVER}}
capabilities:
  - {id: lines, provider: {stream: {command: ./records, args: [lines], pass_env: [OF_STREAM]}}}
  - {id: bare, provider: {MCP: {server_url: 'stdio:./records bare', tool_name: '*', timeout_ms: 9000}}}
";
    let mut world = world()
        .tool("plain", recording("plain", ""))
        .tool("header", recording("header", "# pass_env: [OF_HEADER, 'PART_*']\n"))
        .tool("named", recording("named", ""))
        .file("tools/package/tool.yaml", "name: package\nversion: 1.0.0\nentrypoint: run\nruntime: {args: [package], env: {OF_PACKAGE: own}, pass_env: [OF_YAML]}\n")
        .file("tools/capsule/orla-tool.json", r#"{"name": "capsule", "version": "1.0.0", "entrypoint": "run", "args": ["capsule"], "pass_env": ["OF_JSON"]}"#)
        .config(config)
        .env("ORLA_PASS_ENV", "E2E_WORLD, BY_VARIABLE");
    for path in ["records", "tools/package/run", "tools/capsule/run"] {
        world.write(path, sh(RECORDS), 0o755);
    }
    let names = [
        "OF_NAME",
        "OF_PACKAGE",
        "OF_PLUGIN",
        "OF_SERVER",
        "OF_STREAM",
        "OF_HEADER",
        "OF_YAML",
        "OF_JSON",
    ];
    for name in names.into_iter().chain([
        "PART_A",
        "GENERAL_A",
        "BY_VARIABLE",
        "AWS_SECRET_ACCESS_KEY",
        "ORLA_TOKEN",
    ]) {
        world = world.env(name, "value");
    }
    let server = world.serve();
    let mut client = server.client();
    client.tool_names();
    for tool in ["plain", "header", "named", "package", "lines"] {
        client.call(tool, json!({}));
    }
    for (name, more) in [
        ("plain", &[][..]),
        ("header", &["OF_HEADER", "PART_A"]),
        ("named", &["OF_NAME"]),
        ("package", &["OF_PACKAGE", "OF_YAML"]),
        ("capsule", &["OF_JSON"]),
        ("plug", &["OF_PLUGIN", "OWN"]),
        ("srv", &["OF_SERVER"]),
        ("bare", &[]),
        ("lines", &["OF_STREAM", "ORLA_INPUT"]),
    ] {
        let mut expected = [&["BY_VARIABLE", "GENERAL_A"], more].concat();
        expected.sort_unstable();
        assert_eq!(seen(&server, name), expected, "{name}");
    }
}

/// Variables that the configuration expands are secrets of orla, and so is its token: `*` does not pass
/// them.
#[test]
fn a_secret_of_the_configuration_is_passed_by_its_name_alone() {
    let server = world()
        .tool("all", recording("all", "# pass_env: '*'\n"))
        .tool("one", recording("one", "# pass_env: [ADA, ORLA_TOKEN]\n"))
        .config("auth_tokens: {ada: '${ADA}'}\ntools_dir: ${WHERE:-tools}\n")
        .env("ADA", "a-secret-of-ada-0123456789")
        .env("ORLA_TOKEN", "a-secret-of-ada-0123456789")
        .env("FREE", "x");
    for tool in ["all", "one"] {
        let called = server.run(&["call", tool]);
        assert_eq!(called.code, Some(0), "{}", called.all());
    }
    let server = server.env("ORLA_PORT", "0").serve();
    let all = seen(&server, "all");
    assert!(all.contains(&"FREE".to_owned()), "{all:?}");
    assert!(!all.iter().any(|name| name == "ADA" || name == "ORLA_TOKEN"), "{all:?}");
    assert_eq!(seen(&server, "one"), ["ADA", "ORLA_TOKEN"]);
}

/// A capsule that runs is restarted when the configuration passes it something else.
#[test]
fn passed_variables_take_effect_on_reload() {
    let manifest = r#"{"name": "c", "version": "1.0.0", "entrypoint": "run"}"#;
    let code = r#"#!/usr/bin/env python3
import json, os, sys
print(json.dumps({"jsonrpc": "2.0", "method": "orla.hello", "params": {"name": "c", "version": "1.0.0"}}), flush=True)
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "tools/call":
        text = f"{os.getpid()} {os.environ.get('LATER')}"
        result = {"result": {"content": [{"type": "text", "text": text}]}}
    else:
        result = {"error": {"code": -32601, "message": "no"}}
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], **result}), flush=True)
"#;
    let world =
        world().file("tools/c/orla-tool.json", manifest).config("pass_env: []\n").env("LATER", "now");
    world.write("tools/c/run", code, 0o755);
    let server = world.serve();
    let before = server.client().call("c", json!({})).text();
    server.reload();
    assert_eq!(server.client().call("c", json!({})).text(), before, "the same process");
    server.write("orla.yaml", "pass_env: [LATER]\n", 0o644);
    server.reload();
    assert!(before.ends_with(" None"), "{before}");
    eventually("it gets the variable", || server.client().call("c", json!({})).text().ends_with(" now"));
}

#[test]
fn check_names_scripts_that_mention_what_they_do_not_get() {
    let world = world()
        .tool("shell.sh", sh("curl -H \"key: ${API_KEY:-none}\" $PATH $UNSET"))
        .tool("fine.sh", sh("# /// orla\n# pass_env: [API_KEY]\n# ///\necho $API_KEY"))
        .file("server.py", "import os\nos.environ.get(\"OTHER_KEY\")\n")
        .file("plugin.js", "")
        .config("mcpServers: {srv: {command: python3, args: [server.py], cwd: .}}\n")
        .env("API_KEY", "s3cret-value")
        .env("OTHER_KEY", "s3cret-value");
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{}", checked.all());
    for words in [["shell", "API_KEY", "pass_env"], ["srv", "OTHER_KEY", "pass_env"]] {
        let line = checked.stderr.lines().find(|line| words.iter().all(|word| line.contains(word)));
        assert!(line.is_some(), "{words:?}: {}", checked.stderr);
    }
    let all = checked.all();
    assert!(!all.contains("UNSET") && !all.contains("fine") && !all.contains("s3cret"), "{all}");
}

/// A tool that runs as the server's user can read nothing of the server: not its environment, memory or
/// descriptors.
#[test]
fn the_server_and_its_reaper_are_closed_to_their_tools() {
    let body = r#"
look() {
    for file in environ fd/0 mem; do
        if dd if="/proc/$1/$file" of=/dev/null bs=1 count=1 2>/dev/null; then echo "$2 $file open"; else echo "$2 $file closed"; fi
    done
}
reaper=$(grep -lsax 'tool-reaper.*' /proc/[0-9]*/cmdline | cut -d/ -f3 | while read -r id; do
    [ "$(awk '/PPid/ { print $2 }' "/proc/$id/status")" = "$PPID" ] && echo "$id"; done)
sleep 100 </dev/null & child=$!
until [ "$(cat /proc/$child/comm)" = sleep ]; do :; done
# The reaper closes itself as the first thing that it does.
while dd if="/proc/$reaper/environ" of=/dev/null bs=1 count=1 2>/dev/null; do :; done
look "$PPID" server; look "$reaper" reaper; look "$child" child; kill $child"#;
    let world = world().tool("look", sh(body));
    let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(world.dir(), everyone).unwrap();
    // The superuser may read everything.
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    let is_root = rustix::process::geteuid().is_root();
    let server = if is_root { world.through(&user).serve() } else { world.serve() };
    let result = server.client().call("look", json!({}));
    let seen: Vec<&str> = result.stdout().lines().collect();
    let expected = [
        "server environ closed",
        "server fd/0 closed",
        "server mem closed",
        "reaper environ closed",
        "reaper fd/0 closed",
        "reaper mem closed",
    ];
    assert_eq!(seen[..6.min(seen.len())], expected, "{}", result.json);
    // The same look at a process that is not closed.
    assert_eq!(seen[6], "child environ open", "{}", result.json);
}
