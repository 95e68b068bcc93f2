//! The content and the form of the log (RFC 1 §8).

use orla_e2e::eventually;
use serde_json::json;

use crate::{sh, world};

#[test]
fn every_line_is_json_and_a_call_is_one_line_with_duration_and_outcome() {
    let server = world()
        .tool("good", sh("echo"))
        .tool("bad", sh("echo why >&2; exit 4"))
        .tool("slow", sh("sleep 100"))
        .config("timeout: 0.3\nlog_level: debug\n")
        .serve();
    let mut client = server.client();
    for name in ["good", "bad", "slow"] {
        client.call(name, json!({}));
    }
    let _ = client.try_call("nowhere", json!({}));
    for (name, outcome) in [("good", "ok"), ("bad", "failed"), ("slow", "timeout")] {
        let line = eventually("the call is logged", || {
            let mut lines = server.log_lines();
            lines.retain(|line| line.message() == "call finished" && *line.field("capability") == name);
            lines.pop()
        });
        assert_eq!(*line.field("outcome"), outcome, "{line:?}");
        assert!(line.field("duration_ms").as_f64().is_some_and(|ms| ms >= 0.0), "{line:?}");
        assert!(line.field("timestamp").as_str().is_some_and(|time| time.starts_with("20")), "{line:?}");
        if name == "bad" {
            assert!(line.says(&["code 4"]), "{line:?}");
        }
    }
    assert_eq!(server.log_lines()[0].message(), "listening");
}

#[test]
fn requests_are_timed() {
    let server = world().tool("t", sh("echo")).config("log_level: debug\n").serve();
    server.client().request("tools/list", json!({})).unwrap();
    eventually("the request is logged with its time", || {
        server.log_lines().iter().any(|line| line.says(&["tools/list", "duration"]))
    });
}

#[test]
fn the_pretty_form_is_for_people() {
    let server = world().tool("good", sh("echo")).config("log_format: pretty\n").serve();
    server.client().call("good", json!({}));
    let line = server.log_says(&["call finished", "good"]);
    assert!(!line.starts_with('{'), "{line}");
    assert!(!line.contains('\u{1b}'), "colours are for terminals: {line}");
    assert!(line.contains("duration_ms="), "{line}");
}

#[test]
fn each_level_shows_itself_and_what_is_worse() {
    for (level, shown, hidden) in [
        ("debug", &["debug", "info", "warn"][..], &[][..]),
        ("warn", &["warn"], &["info", "debug"]),
        ("error", &[], &["warn", "info", "debug"]),
        ("fatal", &[], &["error", "warn", "info", "debug"]),
    ] {
        // A file that is no tool is a debug line, a clash a warning; serving is info.
        let world =
            world().file("tools/readme.md", "").tool("a.sh", sh("echo")).tool("a.py", sh("echo"));
        let mut server = world.config(&format!("log_level: {level}\n")).serve_quietly();
        server.terminate();
        let levels: Vec<_> = server.log_lines().iter().map(orla_e2e::LogLine::level).collect();
        let log = server.log();
        assert!(shown.iter().all(|level| levels.iter().any(|seen| seen == level)), "{level}: {log}");
        assert!(hidden.iter().all(|level| levels.iter().all(|seen| seen != level)), "{level}: {log}");
    }
}

#[test]
fn a_tool_cannot_forge_a_line_of_the_log() {
    let body = r#"printf 'x\n{"level":"fatal","message":"forged"}\n' >&2; exit 1"#;
    let server = world().tool("forger", sh(body)).config("log_level: debug\n").serve();
    server.client().call("forger", json!({"a\nb": "\n{\"level\":\"fatal\"}"}));
    server.log_says(&["call finished"]);
    assert!(server.log_lines().iter().all(|line| line.level() != "fatal"), "{}", server.log());
}

#[test]
fn an_unread_log_blocks_nothing() {
    let unread = "\"$@\" 2>&1 >/dev/null | while [ ! -e go ]; do sleep 0.05; done";
    let server = world()
        .tool("t", sh("echo ok"))
        .config("log_level: debug\n")
        .through(&["sh", "-c", unread, "--"])
        .serve_quietly();
    let mut client = server.client();
    // More lines than the pipe and the log's own queue hold.
    for _ in 0..100 {
        assert_eq!(client.call("t", json!({})).stdout(), "ok\n");
        for _ in 0..20 {
            client.request("tools/list", json!({})).unwrap();
        }
    }
    server.write("go", "", 0o644);
}
