//! The history of calls: its visibility, the data of a running call, and that a secret of a call is
//! absent from the rows of the surrounding calls.

use std::process::{Child, Command, Stdio};

use orla_e2e::{Request, Server, World, eventually};
use serde_json::{Value, json};

use crate::mcp_script::mcp_script;
use crate::{sh, world};

const LOGIN: &str = "#!/bin/sh\n# /// orla\n# input_schema: {type: object, properties: {user: {type: string}, pass: {type: string, writeOnly: true}}}\n# ///\necho in\n";

/// Returns the calls that a caller sees, those within calls included.
fn calls(server: &Server, token: &str) -> Vec<Value> {
    let answer = server.get_as("/calls", token);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json().as_array().cloned().unwrap_or_default()
}

fn id_of(calls: &[Value], capability: &str) -> Option<String> {
    let call = calls.iter().find(|call| call["capability"] == capability)?;
    Some(call["id"].as_str()?.to_owned())
}

#[test]
fn without_a_policy_identified_callers_see_their_own_calls() {
    let server = world()
        .tool("hello", sh("echo hello"))
        .config("auth_tokens: {ada: token-of-ada, bob: token-of-bob}\n")
        .serve();
    for (token, by) in [("token-of-ada", "ada"), ("token-of-bob", "bob")] {
        server.client_as(token).call("hello", json!({ "by": by }));
    }
    for (token, by) in [("token-of-ada", "ada"), ("token-of-bob", "bob")] {
        let seen = calls(&server, token);
        assert!(seen.len() == 1 && seen[0]["principal"] == by, "{seen:?}");
    }
    let bobs = id_of(&calls(&server, "token-of-bob"), "hello").expect("a call");
    assert_eq!(server.get_as(&format!("/calls/{bobs}"), "token-of-ada").status, 404);
    let replay = server.send_as("POST", &format!("/calls/{bobs}/replay"), "token-of-ada", "{}");
    assert_eq!(replay.status, 404);
    assert!(!server.get_as("/console", "token-of-ada").text().contains(&bobs));
}

/// A file that orla itself opened and closed beside SQLite would take the locks of SQLite with it.
#[test]
fn a_backup_beside_the_server_costs_it_no_history() {
    let server = world().tool("hello", sh("echo hello")).config("state_dir: state\n").serve();
    let copied = || {
        let code =
            "import sqlite3; sqlite3.connect('state/history.db').backup(sqlite3.connect('copy.db'))";
        let copied = Command::new("python3").args(["-c", code]).current_dir(server.path("")).status();
        assert!(copied.unwrap().success());
    };
    let called = || server.client().call("hello", json!({}));
    let count = || server.http().get("/calls").json().as_array().map(Vec::len);
    called();
    eventually("it is written", || server.path("state/history.db").exists());
    for calls in [1, 2] {
        assert_eq!(count(), Some(calls));
        copied();
        called();
        server.reload();
    }
    copied();
    called();
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap();
    let open = open.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
    let gone = open.filter(|path| {
        let path = path.to_string_lossy();
        path.contains("history.db") && path.ends_with("(deleted)")
    });
    assert_eq!(gone.collect::<Vec<_>>(), Vec::<std::path::PathBuf>::new());
    assert_eq!(count(), Some(4));
    server.signal(rustix::process::Signal::KILL);
    let code = "import sqlite3; print(sqlite3.connect('state/history.db').execute('select count(*) from calls').fetchone()[0])";
    let counted = Command::new("python3").args(["-c", code]).current_dir(server.path("")).output();
    assert_eq!(String::from_utf8_lossy(&counted.unwrap().stdout), "4\n");
}

#[test]
fn a_running_call_shows_its_input_and_notices() {
    let server = world()
        .tool("slow", sh("echo '::log info half-way' >&2; until [ -e done ]; do sleep 0.05; done"))
        .serve();
    let mut client = server.client();
    let pending = client.begin_call("slow", json!({"q": "asked"}));
    let mut detail = Value::Null;
    eventually("the call runs and has said something", || {
        let page = server.http().get("/console").text();
        let Some((_, rest)) = page.split_once("/console/calls/") else { return false };
        let id = &rest[..rest.find(['/', '"']).unwrap_or(0)];
        detail = server.http().get(&format!("/calls/{id}")).json();
        detail["notices"].as_array().is_some_and(|notices| !notices.is_empty())
    });
    assert_eq!((&detail["outcome"], &detail["input"]), (&json!("running"), &json!({"q": "asked"})));
    assert!(detail["notices"][0]["message"] == "half-way", "{detail}");
    std::fs::write(server.path("done"), "").unwrap();
    client.finish_call(pending).expect("it ends");
    let id = detail["id"].as_str().unwrap();
    let ended = server.http().get(&format!("/calls/{id}")).json();
    assert!(ended["outcome"] == "ok" && ended["notices"][0]["message"] == "half-way", "{ended}");
}

#[test]
fn a_secret_of_a_call_is_not_in_the_rows_around_it() {
    let server = world().tool("login", LOGIN).tool("hello", sh("echo hello")).serve();
    let program = r#"[(call :hello {:note "hunter2-hunter2"}) (call :login {:user "ada" :pass "hunter2-hunter2"})]"#;
    server.client().call("rtfs", json!({ "program": program }));
    let mut seen = Vec::new();
    eventually("all calls are kept", || {
        seen = server.http().get("/calls").json().as_array().cloned().unwrap_or_default();
        id_of(&seen, "login").is_some() && id_of(&seen, "rtfs").or(id_of(&seen, "rtfs.run")).is_some()
    });
    for call in seen.iter().filter(|call| call["capability"] != "hello") {
        let id = call["id"].as_str().unwrap();
        let detail = server.http().get(&format!("/calls/{id}")).text();
        assert!(!detail.contains("hunter2"), "{detail}");
    }
    assert!(server.http().get("/calls").text().contains("login"));
}

#[test]
fn a_call_of_a_running_server_is_shown_and_exported_by_its_id() {
    let server = world().tool("hello", sh("echo hello")).serve();
    server.client().call("hello", json!({}));
    let id = id_of(&server.http().get("/calls").json().as_array().cloned().unwrap_or_default(), "hello")
        .expect("a call");
    let other = world();
    for (command, shown) in [("show", "capability  hello"), ("export", r#""capability": "hello""#)] {
        let done = other.run(&["calls", command, &id, "--url", &format!("http://{}", server.address())]);
        assert!(done.code == Some(0) && done.stdout.contains(shown), "{}", done.all());
    }
}

#[test]
fn a_program_over_http_is_a_call_with_the_calls_within_it() {
    let server = world().tool("hello", sh("echo hello")).serve();
    let request = Request::new("POST", "/rtfs").header("content-type", "application/json");
    let program = json!({"program": "(:stdout (call :hello {}))"}).to_string();
    assert_eq!(server.http().send(&request.body(program)).expect("an answer").status, 200);
    let all = server.http().get("/calls").json();
    let (hello, program) = (&all[1], &all[0]);
    assert_eq!((&program["capability"], &program["parent"]), (&json!("rtfs"), &Value::Null), "{all}");
    assert_eq!((&hello["capability"], &hello["parent"]), (&json!("hello"), &program["id"]), "{all}");
    let detail = server.http().get(&format!("/calls/{}", program["id"].as_str().unwrap())).json();
    assert_eq!(detail["children"][0]["id"], hello["id"], "{detail}");
}

#[test]
fn a_history_that_is_turned_off_keeps_nothing_more() {
    let server = world().tool("hello", sh("echo hello")).config("log_level: info\n").serve();
    server.client().call("hello", json!({}));
    assert_eq!(server.http().get("/calls").json().as_array().map(Vec::len), Some(1));
    server.write("orla.yaml", "history: false\n", 0o644);
    server.reload();
    eventually("nothing is shown", || server.http().get("/calls").status == 404);
    server.client().call("hello", json!({}));
    assert!(!server.http().get("/console/catalogue").text().contains(">Calls<"));
    server.write("orla.yaml", "history: true\n", 0o644);
    server.reload();
    let shown = eventually("it is shown again", || {
        Some(server.http().get("/calls")).filter(|answer| answer.status == 200)
    });
    assert!(shown.json().as_array().is_some_and(|calls| calls.len() < 2), "{}", shown.text());
}

#[test]
fn credentials_in_the_configuration_are_redacted() {
    let config = "mcpServers:\n  far: {url: 'http://ada:pass-in-url@127.0.0.1:9/mcp', headers: {Authorization: 'Bearer literal-credential'}}\n\
                  telemetry: {otlp: 'http://127.0.0.1:9', headers: {x-token: header-of-telemetry}}\n";
    let server = world()
        .tool("tell", sh("echo \"the literal-credential and pass-in-url and header-of-telemetry\""))
        .config(config)
        .serve();
    server.client().call("tell", json!({"note": "literal-credential"}));
    let all = server.http().get("/calls").json();
    let detail = server.http().get(&format!("/calls/{}", all[0]["id"].as_str().unwrap())).text();
    for secret in ["literal-credential", "pass-in-url", "header-of-telemetry"] {
        assert!(!detail.contains(secret), "{secret}: {detail}");
    }
    assert!(detail.contains("the [redacted] and [redacted] and [redacted]"), "{detail}");
}

/// An MCP server that reports its progress on request.
const TELLS: &str = r#"
        token = (p.get("_meta") or {}).get("progressToken")
        if token is not None:
            out({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1, "total": 2, "message": "half-way"}})
        result = {"content": []}"#;

#[test]
fn notices_of_an_mcp_server_are_recorded_without_a_listening_caller() {
    let config = "mcpServers: {far: {command: python3, args: [tells.py]}}\n";
    let server = world().file("tells.py", mcp_script("work", "", TELLS)).config(config).serve();
    eventually("the server is known", || server.client().tool_names().contains(&"far__work".to_owned()));
    let result = server.client().call("far__work", json!({}));
    assert!(result.notifications.is_empty(), "{result:?}");
    let all = server.http().get("/calls").json();
    let detail = server.http().get(&format!("/calls/{}", all[0]["id"].as_str().unwrap())).json();
    let notice = &detail["notices"][0];
    assert_eq!((&notice["message"], &notice["total"]), (&json!("half-way"), &json!(2.0)), "{detail}");
}

#[test]
fn a_call_that_is_made_again_ends_with_its_callers_credential() {
    let tokens = |bob: &str| format!("auth_tokens: {{ada: token-of-ada{bob}}}\n");
    let server = world()
        .tool("hello", sh("if [ -e again ]; then echo $$ > started; exec sleep 600; fi"))
        .config(&tokens(", bob: token-of-bob"))
        .serve();
    server.client_as("token-of-bob").call("hello", json!({}));
    let id = id_of(&calls(&server, "token-of-bob"), "hello").expect("a call");
    server.write("again", "", 0o644);
    let again = || server.send_as("POST", &format!("/calls/{id}/replay"), "token-of-bob", "{}");
    assert_eq!(again().status, 202);
    eventually("it runs", || server.path("started").exists());
    // The number of repeated calls of one caller is limited.
    eventually("further ones are refused", || again().status == 429);
    server.write("orla.yaml", tokens(""), 0o644);
    server.signal(rustix::process::Signal::HUP);
    server.assert_no_tool_is_left();
}

/// A program that keeps the file of a history locked until a file `unlock` is there.
const LOCKS: &str = "
import os, sqlite3, time
c = sqlite3.connect('calls.db', isolation_level=None)
c.execute('BEGIN EXCLUSIVE')
open('locked', 'w').close()
while not os.path.exists('unlock'): time.sleep(0.01)
c.execute('ROLLBACK')
";

/// A child that ends with its test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn kept_in_file() -> World {
    world().tool("hello", sh("echo hello")).config("history: {path: ./calls.db}\n")
}

fn count(server: &Server) -> usize {
    server.http().get("/calls?limit=1000").json().as_array().map_or(0, Vec::len)
}

#[test]
fn a_locked_file_costs_no_call_and_one_line_and_nothing_is_lost() {
    let mut server = kept_in_file().serve();
    server.client().call("hello", json!({}));
    assert_eq!(count(&server), 1);
    let mut locks = Command::new("python3");
    let locks = locks.args(["-c", LOCKS]).current_dir(server.dir()).stdin(Stdio::null()).spawn();
    let _locks = Ends(locks.expect("python3 runs"));
    eventually("the file is locked", || server.path("locked").exists());
    for _ in 0..20 {
        assert!(!server.client().call("hello", json!({})).is_error());
    }
    server.log_says(&["the history cannot be written"]);
    assert_eq!(count(&server), 1, "what was written can be read");
    server.write("unlock", "", 0o644);
    eventually("what waited is written", || count(&server) == 21);
    server.log_says(&["the history is written again"]);
    assert_eq!(server.log().matches("the history cannot be written").count(), 1);
    assert!(server.terminate().success());
    let listed = server.run(&["calls", "--json"]);
    assert_eq!(serde_json::from_str::<Vec<Value>>(&listed.stdout).map(|rows| rows.len()).ok(), Some(21));
}

#[test]
fn a_list_without_the_newest_calls_reports_it() {
    let config = "history: {path: ./calls.db}\nauth_tokens: {ada: a-token-of-ada-1234}\n";
    let server = world().tool("hello", sh("echo hello")).config(config).serve();
    server.client_as("a-token-of-ada-1234").call("hello", json!({}));
    // The command finds the server by the configuration, here without the token.
    let port = server.address().port();
    server.write("there.yaml", format!("history: {{path: ./calls.db}}\nport: {port}\n"), 0o644);
    let listed = server.run(&["calls", "--config", "there.yaml"]);
    assert_eq!(listed.code, Some(0), "{}", listed.all());
    assert!(
        listed.stderr.contains("the newest calls may be missing")
            && listed.stderr.contains("ORLA_TOKEN"),
        "{}",
        listed.all()
    );
}

#[test]
fn a_command_reports_that_its_server_was_stopped() {
    let mut server = world().tool("slow", sh("sleep 60")).serve();
    let url = format!("http://{}", server.address());
    let mut command = server.spawn(&["call", "slow", "--url", &url], "said");
    eventually("it runs", || !server.tool_processes().is_empty());
    server.kill();
    assert_eq!(command.wait().expect("it ends").code(), Some(1));
    let said = server.read("said");
    assert!(said.contains("the connection ended before the answer: the server was stopped"), "{said}");
}

#[test]
fn calls_that_commands_make_are_in_the_file_too() {
    let world = kept_in_file();
    let calls = || {
        let listed = world.run(&["calls", "--capability", "hello", "--json"]);
        serde_json::from_str::<Vec<Value>>(&listed.stdout).map_or(0, |rows| rows.len())
    };
    for (at, arguments) in [
        &["call", "hello"][..],
        &["rtfs", "-e", "(call :hello {})"],
        &["task", "run", "hello", "--wait"],
    ]
    .iter()
    .enumerate()
    {
        let run = world.run(arguments);
        assert_eq!((run.code, &*run.stderr), (Some(0), ""), "{}", run.all());
        assert_eq!(calls(), at + 1, "{arguments:?}");
    }
    let mut locks = Command::new("python3");
    let locks = locks.args(["-c", LOCKS]).current_dir(world.dir()).stdin(Stdio::null()).spawn();
    let _locks = Ends(locks.expect("python3 runs"));
    eventually("the file is locked", || world.path("locked").exists());
    let run = world.run(&["call", "hello"]);
    assert_eq!((run.code, &*run.stdout), (Some(0), "hello\n"), "{}", run.all());
    assert!(
        run.stderr.contains("missing in the history") && run.stderr.lines().count() == 1,
        "{}",
        run.stderr
    );
    assert_eq!(calls(), 3);
    let unwritable = crate::world().tool("hello", sh("echo hello"));
    let unwritable = unwritable.config("history: {path: /proc/x.db}\n").run(&["call", "hello"]);
    assert_eq!(unwritable.code, Some(0), "{}", unwritable.all());
    assert!(unwritable.stderr.contains("missing in the history: /proc/x.db"), "{}", unwritable.stderr);
    assert!(!unwritable.stderr.contains("os error"), "{}", unwritable.stderr);
    let other = world.config("history: {path: ./tools/hello}\n");
    let run = other.run(&["call", "hello"]);
    assert_eq!((run.code, &*run.stdout), (Some(0), "hello\n"), "{}", run.all());
    assert!(run.stderr.contains("no call is kept"), "{}", run.stderr);
}

#[test]
fn a_full_disk_costs_no_call_and_one_line_and_what_was_written_stays() {
    // No file of the server grows beyond 400 KiB.
    let limited = r#"trap '' XFSZ; ulimit -f 800; exec "$@""#;
    let server = kept_in_file()
        .tool("large", sh("head -c 40000 /dev/zero | tr '\\0' x"))
        .config("history: {path: ./calls.db}\nlog_level: warn\n")
        .through(&["sh", "-c", limited, "--"])
        .serve_quietly();
    server.client().call("hello", json!({}));
    assert_eq!(count(&server), 1);
    for _ in 0..40 {
        assert!(!server.client().call("large", json!({})).is_error());
    }
    server.log_says(&["the history cannot be written"]);
    for _ in 0..5 {
        assert!(!server.client().call("hello", json!({})).is_error());
    }
    let rows = server.http().get("/calls?limit=1000").json();
    let rows = rows.as_array().expect("a list");
    assert!(rows.iter().any(|row| row["capability"] == "hello"), "what was written is there: {rows:?}");
    assert_eq!(server.log().matches("the history cannot be written").count(), 1);
}

#[test]
fn a_denied_capability_is_not_in_the_history_of_its_caller() {
    let tokens = "auth_tokens: {ada: token-of-ada, bob: token-of-bob}\n";
    let policy = "policy:\n- {to: [ada], allow: ['*']}\n- {to: [bob], allow: ['exec:*', 'rtfs', 'rtfs_check']}\n- {to: [bob], capabilities: ['hidden*'], deny: ['*']}\n";
    for (history, more, is_seen) in [
        ("", "", false),
        ("history: {path: h.sqlite}\n", "", false),
        ("", "policy_reveal: true\n", true),
    ] {
        let server = world()
            .tool("hidden", sh("echo x"))
            .tool("hello", sh("echo hi"))
            .config(&format!("{tokens}{history}{more}{policy}"))
            .serve();
        for path in ["/api/hidden", "/api/hello"] {
            server.send_as("POST", path, "token-of-bob", "{}");
        }
        let of = |token| {
            eventually("the calls are there", || {
                Some(calls(&server, token)).filter(|calls| id_of(calls, "hello").is_some())
            })
        };
        let own = of("token-of-bob");
        assert_eq!(id_of(&own, "hidden").is_some(), is_seen, "{own:?}");
        // For who may see the calls of others, it is evidence.
        let all = of("token-of-ada");
        let denied = id_of(&all, "hidden").unwrap_or_else(|| panic!("{all:?}"));
        let detail = server.get_as(&format!("/calls/{denied}"), "token-of-bob");
        assert_eq!(detail.status, if is_seen { 200 } else { 404 }, "{}", detail.text());
    }
}

#[test]
fn calls_of_callers_without_a_name_are_those_of_anonymous() {
    for history in ["", "history: {path: ./calls.db}\n"] {
        let server = world().tool("hello", sh("echo hello")).config(history).serve();
        server.client().call("hello", json!({}));
        let found = |name: &str| {
            let calls = server.http().get(&format!("/calls?principal={name}")).json();
            calls.as_array().expect("a list").len()
        };
        eventually("the call is kept", || found("anonymous") == 1);
        assert_eq!(found("ada"), 0);
    }
}
