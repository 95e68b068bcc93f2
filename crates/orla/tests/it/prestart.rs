//! Tools whose processes are started before they are called (`prestart`).

use std::collections::HashSet;

use orla_e2e::{Client, Server, World, eventually};
use serde_json::{Value, json};

use crate::{sh, world};

/// Waits for its input, and returns it with the process id.
const ECHO: &str = "#!/usr/bin/env python3
# /// orla
# description: Gives back what it gets.
# prestart: 4
# ///
import json, os, sys
with open('starts', 'a') as starts: starts.write(f'{os.getpid()}\\n')
given = json.load(sys.stdin)
print(json.dumps({'given': given, 'pid': os.getpid(), 'args': sys.argv[1:], 'call': os.environ.get('ORLA_CALL_ID'), 'tool': os.environ['ORLA_TOOL']}))
";

fn starts(world: &World) -> Vec<String> {
    std::fs::read_to_string(world.path("starts"))
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect()
}

fn answer(client: &mut Client, name: &str, input: Value) -> Value {
    let result = client.call(name, input);
    assert!(!result.is_error(), "{}", result.sentence());
    serde_json::from_str(result.stdout()).expect("the tool answers with JSON")
}

fn serve_echo() -> Server {
    let server = world().tool("echo.py", ECHO).serve();
    eventually("four wait", || starts(&server).len() >= 4);
    server
}

#[test]
fn arguments_come_on_standard_input_and_the_call_is_named_there() {
    let server = serve_echo();
    let before = starts(&server);
    let mut client = server.client();
    let answer = answer(
        &mut client,
        "echo",
        json!({"city": "Paris", "args": ["-x"], "stdin": "text", "_meta": 1}),
    );
    let given = &answer["given"];
    assert_eq!(
        (&given["city"], &given["args"], &given["stdin"]),
        (&json!("Paris"), &json!(["-x"]), &json!("text"))
    );
    assert!(given["_meta"]["call_id"].is_string(), "{given}");
    assert_eq!(
        (&answer["args"], &answer["call"], &answer["tool"]),
        (&json!([]), &Value::Null, &json!("echo"))
    );
    assert!(before.contains(&answer["pid"].to_string()), "it was started before the call");
}

#[test]
fn every_one_of_many_callers_gets_its_own_answer_from_a_process_of_its_own() {
    let server = serve_echo();
    let callers = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..8)
            .map(|caller| {
                let mut client = server.client();
                scope.spawn(move || {
                    let call = |turn: i32| {
                        let answer =
                            answer(&mut client, "echo", json!({"caller": caller, "turn": turn}));
                        assert_eq!(answer["given"]["caller"], caller);
                        assert_eq!(answer["given"]["turn"], turn);
                        answer["pid"].to_string()
                    };
                    (0..25).map(call).collect::<Vec<_>>()
                })
            })
            .collect();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(callers.len(), 200);
    assert_eq!(callers.iter().collect::<HashSet<_>>().len(), 200, "no process serves two calls");
}

#[test]
fn a_reload_under_load_loses_no_call() {
    let server = serve_echo();
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|_| {
                let mut client = server.client();
                scope.spawn(move || {
                    for turn in 0..30 {
                        answer(&mut client, "echo", json!({"turn": turn}));
                    }
                })
            })
            .collect();
        for turn in 0..5 {
            server.write(
                "tools/echo.py",
                ECHO.replace("what it gets.", &format!("what it gets, {turn}.")),
                0o755,
            );
            server.reload();
        }
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    });
}

#[test]
fn a_reload_that_changes_nothing_of_a_tool_keeps_its_processes() {
    let server = serve_echo();
    let mut client = server.client();
    let before = starts(&server);
    server.write("tools/other", sh("echo other"), 0o755);
    server.reload();
    server.log_says(&[r#""message":"reloaded","added":1,"removed":0,"changed":0"#]);
    // A call right after the reload may start a new process.
    eventually("one that waited before is called", || {
        let answer = answer(&mut client, "echo", json!({}));
        before.contains(&answer["pid"].to_string())
    });
    // A changed file has new processes.
    server.write("tools/echo.py", ECHO.replace("'call'", "'now': 1, 'call'"), 0o755);
    server.reload();
    assert_eq!(answer(&mut client, "echo", json!({}))["now"], 1);
}

#[test]
fn nothing_waits_once_the_server_has_ended_however_it_ends() {
    let mut server = serve_echo();
    assert_eq!(server.terminate().code(), Some(0));
    eventually("nothing is left", || server.processes().is_empty());
    let mut server = serve_echo();
    server.kill();
    eventually("nothing is left", || server.processes().is_empty());
}

#[test]
fn unsuitable_prestarted_tools_are_reported_and_do_no_harm() {
    let cases = [
        ("echo done >> runs; exit 4", "a prestarted process exits before a call (exit code 4)", 4),
        (
            "echo done >> runs; echo said >&2; (sleep 1000) & echo hello; sleep 1000",
            "a prestarted process writes to standard output before a call: said",
            137,
        ),
    ];
    for (body, expected, exit_code) in cases {
        let server =
            world().tool("hasty", sh(&format!("# /// orla\n# prestart: 1\n# ///\n{body}"))).serve();
        eventually("it is given up", || server.log().contains("before a call"));
        let result = server.client().call("hasty", json!({}));
        assert!(result.is_error(), "{}", result.json);
        assert!(result.sentence().contains(expected), "{}", result.sentence());
        let execution = &result.json["_meta"]["orla/execution"];
        assert_eq!(execution["exit_code"], exit_code, "{}", result.json);
        assert_eq!(result.structured()["exit_code"], exit_code, "{}", result.json);
        assert!(result.sentence().contains("remove `prestart`"), "{}", result.sentence());
        assert_eq!(server.read("runs").lines().count(), 3);
        eventually("nothing of it is left", || server.tool_processes().is_empty());
        server.write("tools/hasty", sh("cat > /dev/null; echo mended"), 0o755);
        assert_eq!(server.client().call("hasty", json!({})).stdout(), "mended\n");
    }
}

#[test]
fn the_configuration_sets_and_bounds_prestart() {
    let plain = ECHO.replace("# prestart: 4\n", "");
    let server = world()
        .tool("echo.py", &plain)
        .tool("other.py", &plain)
        .config("max_prestarted: 3\ntools: {echo: {prestart: 2}, other: {prestart: 2}}\n")
        .serve();
    eventually("three wait", || server.tool_processes().len() == 3 && starts(&server).len() == 3);
    server.log_says(&["raise max_prestarted"]);
    // Prestarted and new processes give the same result.
    for name in ["echo", "other", "other", "echo"] {
        let answer = answer(&mut server.client(), name, json!({"n": 18_446_744_073_709_551_615_u64}));
        assert_eq!(answer["given"]["n"], json!(18_446_744_073_709_551_615_u64));
        assert_eq!(answer["tool"], name);
    }
}

#[test]
fn a_waiting_process_ends_after_its_time_and_the_next_call_brings_it_back() {
    let tool = sh("# /// orla\n# prestart: 1\n# ///\necho $$ >> starts\ncat");
    let server = world().tool("echo", tool).config("prestart_idle: 1\n").serve();
    eventually("one has waited", || starts(&server).len() == 1 && server.tool_processes().is_empty());
    assert!(!server.client().call("echo", json!({})).is_error());
    eventually("another waits", || starts(&server).len() == 3);
}

#[test]
fn a_timeout_and_a_large_input_are_as_for_every_tool() {
    let slow = "#!/bin/sh\n# /// orla\n# prestart: 1\n# timeout: 0.2\n# ///\ncat > /dev/null\nexec sleep 1000\n";
    let server = world().tool("slow", slow).tool("echo.py", ECHO).serve();
    let result = server.client().call("slow", json!({}));
    assert!(result.is_error() && result.sentence().contains("timed out"), "{}", result.sentence());
    let text = "x".repeat(1 << 20);
    let answer =
        answer(&mut server.client(), "echo", json!({"length": text.len(), "text": &text[..300_000]}));
    assert_eq!(answer["given"]["length"], 1 << 20);
}

#[test]
fn the_check_names_a_script_that_reads_nothing_and_a_wrong_count() {
    let world = world()
        .tool("hasty", sh("# /// orla\n# description: Says hello.\n# prestart: 1\n# ///\necho hello"))
        .tool(
            "quiet",
            sh("# /// orla\n# description: Says nothing.\n# prestart: 1\n# ///\ncat > /dev/null"),
        );
    let checked = world.run(&["check"]);
    assert!(
        checked.all().contains("hasty: prestart: its script does not seem to read standard input"),
        "{}",
        checked.all()
    );
    assert!(!checked.all().contains("quiet: prestart"), "{}", checked.all());
    world.write("tools/hasty", sh("# /// orla\n# prestart: many\n# ///\ncat"), 0o755);
    let checked = world.run(&["check"]);
    assert!(
        checked.all().contains("prestart: expected a whole number from 0 to 64, got \"many\""),
        "{}",
        checked.all()
    );
}

#[test]
fn a_tool_that_nobody_may_call_freely_is_not_prestarted() {
    let of = |name: &str| sh(&format!("# /// orla\n# prestart: 1\n# ///\necho {name} >> starts\ncat"));
    let config = "policy: [{to: '*', allow: ['*']}, {to: '*', capabilities: denied, deny: ['*']}]\napprove: [{capabilities: asked}]\n";
    let world =
        ["open", "denied", "asked"].iter().fold(world(), |world, name| world.tool(name, of(name)));
    let server = world.config(config).serve();
    eventually("one waits", || !starts(&server).is_empty());
    assert!(!server.client().call("open", json!({})).is_error());
    // Processes start in the order of their tools, so the others would have started before this one is replaced.
    eventually("it is replaced", || starts(&server).len() >= 2);
    assert_eq!(starts(&server), ["open", "open"]);
}
