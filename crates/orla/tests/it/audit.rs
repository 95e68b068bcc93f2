//! The audit log: every call is recorded once, in a chain that shows every change.

use orla_e2e::{Client, Finished, Revision, Server, World, eventually};
use serde_json::{Value, json};

use crate::{sh, world};

/// Returns the records of an audit log.
fn records(world: &World, path: &str) -> Vec<Value> {
    let text = world.read(path);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

pub(crate) fn events(world: &World, path: &str) -> Vec<String> {
    let event = |record: &Value| record["event"].as_str().unwrap_or_default().to_owned();
    records(world, path).iter().map(event).collect()
}

/// Reloads a server whose status is not for everyone.
pub(crate) fn reload(server: &Server) {
    server.signal(rustix::process::Signal::HUP);
    server.log_says(&["reloaded"]);
}

fn audit(world: &World) -> Finished {
    world.run(&["audit", "verify"])
}

#[test]
fn every_call_is_in_the_audit_log_once_and_in_a_chain() {
    let tools = world()
        .tool("ok", sh("echo ok"))
        .tool("bad", sh("exit 3"))
        .config("audit: audit.jsonl\nauth_tokens: {ada: s3cret-CANARY}\n");
    let mut server = tools.serve();
    let address = server.address();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(move || {
                let mut client = Client::connect(address, Revision::Sessionless, Some("s3cret-CANARY"));
                for _ in 0..25 {
                    assert_eq!(client.call("ok", json!({"secret": "INPUT-CANARY"})).stdout(), "ok\n");
                }
            });
        }
    });
    let mut client = Client::connect(address, Revision::Session, Some("s3cret-CANARY"));
    assert!(client.call("bad", json!({})).is_error());
    reload(&server);
    assert!(server.terminate().success());
    let log = records(&server, "audit.jsonl");
    let of = |event: &str| log.iter().filter(|record| record["event"] == event).count();
    assert_eq!((of("started"), of("call"), of("reloaded"), of("stopped")), (1, 201, 1, 1));
    let ids: std::collections::BTreeSet<_> =
        log.iter().filter_map(|record| record["call_id"].as_str()).collect();
    assert_eq!(ids.len(), 201);
    let bad = log.iter().find(|record| record["capability"] == "bad").expect("the call of bad");
    assert_eq!(
        (&bad["outcome"], &bad["principal"], &bad["kind"]),
        (&json!("failed"), &json!("ada"), &json!("tool"))
    );
    assert!(bad["duration_ms"].is_number() && bad["time"].is_string() && bad["depth"] == 0, "{bad}");
    assert!(!server.read("audit.jsonl").contains("CANARY"));
    let verified = audit(&server);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    assert!(verified.stdout.starts_with("ok: 204 records"), "{verified:?}");
    assert!(verified.stdout.contains(log[203]["hash"].as_str().unwrap()), "{verified:?}");
}

#[test]
fn a_changed_line_is_found_and_named() {
    let mut server = world().tool("t", sh("echo")).config("audit: audit.jsonl\n").serve();
    for _ in 0..3 {
        server.client().call("t", json!({}));
    }
    server.terminate();
    let text = server.read("audit.jsonl");
    let lines: Vec<&str> = text.lines().collect();
    let changed = lines[2].replace("\"outcome\":\"ok\"", "\"outcome\":\"no\"");
    let cases = [
        ("a line that says something else", [&lines[..2], &[&changed], &lines[3..]].concat(), 3),
        ("a line less", [&lines[..2], &lines[3..]].concat(), 3),
        ("two that changed places", [&lines[..1], &[lines[2], lines[1]], &lines[3..]].concat(), 2),
    ];
    for (name, lines, line) in cases {
        server.write("audit.jsonl", format!("{}\n", lines.join("\n")), 0o600);
        let verified = audit(&server);
        assert_eq!(verified.code, Some(1), "{name}: {verified:?}");
        assert!(verified.stderr.contains(&format!("line {line} is broken")), "{name}: {verified:?}");
    }
    assert_eq!(server.run(&["audit", "verify", "nowhere"]).code, Some(1));
    assert_eq!(world().run(&["audit", "verify"]).code, Some(2), "which file?");
}

#[test]
fn the_chain_continues_after_a_restart_and_after_a_crash() {
    let first = world().tool("t", sh("echo")).config("audit: logs/audit.jsonl\n").file("logs/.keep", "");
    let mut server = first.serve();
    server.client().call("t", json!({}));
    eventually("the call is recorded", || events(&server, "logs/audit.jsonl").len() == 2);
    server.kill();
    let torn = format!("{}{}", server.read("logs/audit.jsonl"), "{\"seq\":3,\"time\":\"20");
    // A new world, as a server ends with its own.
    let second = world().tool("t", sh("echo")).config("audit: audit.jsonl\n").file("audit.jsonl", &torn);
    let cut = audit(&second);
    assert!(
        cut.code == Some(1) && cut.stderr.contains("line 3") && cut.stderr.contains("incomplete"),
        "{cut:?}"
    );
    let mut server = second.serve();
    server.client().call("t", json!({}));
    server.terminate();
    assert!(server.read("audit.jsonl").starts_with(&torn), "nothing is taken away");
    let verified = audit(&server);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    let text = server.read("audit.jsonl");
    let after: Vec<&str> = text.lines().skip(3).collect();
    let after: Vec<Value> = after.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let events: Vec<&str> = after.iter().filter_map(|record| record["event"].as_str()).collect();
    assert_eq!(events, ["recovered", "started", "call", "stopped"]);
}

#[test]
fn a_second_server_does_not_write_the_same_log() {
    let server = world().tool("t", sh("echo ok")).config("audit: audit.jsonl\n").serve();
    for arguments in [&["serve", "--port", "0"][..], &["call", "t"]] {
        let second = server.run(arguments);
        assert_eq!(second.code, Some(1), "{second:?}");
        assert!(second.stderr.contains("audit.jsonl: another orla"), "{second:?}");
        assert!(second.stderr.contains("--url http://"), "{second:?}");
    }
    assert_eq!(server.client().call("t", json!({})).stdout(), "ok\n");
}

#[test]
fn a_deleted_or_replaced_log_continues_and_verify_reports_it() {
    let server = world().tool("t", sh("echo")).config("audit: audit.jsonl\n").serve();
    server.client().call("t", json!({}));
    eventually("the call is recorded", || events(&server, "audit.jsonl").contains(&"call".to_owned()));
    // As `sed -i` does it.
    let changed = server.read("audit.jsonl").replace("\"outcome\":\"ok\"", "\"outcome\":\"no\"");
    server.write("changed", changed, 0o600);
    std::fs::rename(server.path("changed"), server.path("audit.jsonl")).unwrap();
    server.client().call("t", json!({}));
    eventually("the next call is there", || {
        events(&server, "audit.jsonl") == ["started", "call", "replaced", "call"]
    });
    server.log_says(&["the audit log was replaced while it was written"]);
    let verified = audit(&server);
    assert!(verified.code == Some(1) && verified.stderr.contains("line 2 is broken"), "{verified:?}");
    server.remove("audit.jsonl");
    server.client().call("t", json!({}));
    eventually("and the one after it was deleted", || {
        server.path("audit.jsonl").exists() && events(&server, "audit.jsonl") == ["replaced", "call"]
    });
    server.log_says(&["the audit log was deleted while it was written"]);
    let verified = audit(&server);
    assert!(verified.stderr.contains("line 1 is broken: lines before it are missing"), "{verified:?}");
}

#[test]
fn a_call_from_the_command_line_is_recorded_too() {
    let world = world().tool("t", sh("echo ok")).config("audit: audit.jsonl\n");
    assert_eq!(world.run(&["call", "t"]).code, Some(0));
    assert_eq!(world.run(&["call", "t"]).code, Some(0));
    assert_eq!(events(&world, "audit.jsonl"), ["call", "call"]);
    assert_eq!(audit(&world).code, Some(0));
}

/// Returns a world whose audit log is signed by a key, and the public half of it.
fn signed_world(heads: &str) -> (World, String) {
    let world = world().tool("t", sh("echo"));
    let made = world.run(&["attest", "--new-key", "audit.pem"]);
    let key = made.stdout.split('"').nth(1).expect("the public key").to_owned();
    (world.config(&format!("audit: audit.jsonl\naudit_key: audit.pem\naudit_heads: {heads}\n")), key)
}

#[test]
fn a_signed_log_reveals_that_it_was_recreated_or_truncated() {
    let (world, key) = signed_world("heads.jsonl\naudit_sync: always");
    let mut server = world.serve();
    for _ in 0..5 {
        server.client().call("t", json!({}));
    }
    server.terminate();
    let verify = |more: &[&str]| server.run(&[&["audit", "verify", "--key", &key][..], more].concat());
    let heads = &["--heads", "heads.jsonl"][..];
    let whole = verify(heads);
    assert!(whole.code == Some(0) && whole.stdout.contains("signed up to record"), "{whole:?}");
    assert!(!whole.stderr.contains("Not checked"), "{whole:?}");
    assert!(verify(&[]).stderr.contains("missing at the end"), "what was not checked is said");
    assert!(audit(&server).stderr.contains("replaced"), "what was not checked is said");
    let text = server.read("audit.jsonl");
    let anew = |keep: fn(&Value) -> bool| -> String {
        // Every hash can be computed without the key.
        let mut prev = "0".repeat(64);
        let mut seq = 0;
        let mut log = String::new();
        for line in text.lines() {
            let mut record: serde_json::Map<String, Value> = serde_json::from_str(line).unwrap();
            if !keep(&Value::Object(record.clone())) {
                continue;
            }
            seq += 1;
            record.insert("seq".into(), json!(seq));
            if record["event"] == "call" {
                record.insert("outcome".into(), json!("denied"));
            }
            record.insert("prev".into(), json!(prev));
            record.shift_remove("hash");
            let mut line = Value::Object(record).to_string();
            line.pop();
            prev = sha256(line.as_bytes());
            log.push_str(&format!("{line},\"hash\":\"{prev}\"}}\n"));
        }
        log
    };
    let lines: Vec<&str> = text.lines().collect();
    let cut = |count: usize| {
        lines[..lines.len() - count].iter().map(|line| format!("{line}\n")).collect::<String>()
    };
    let last_signed = lines.iter().rposition(|line| line.contains("\"event\":\"signed\"")).unwrap();
    let first_signed = lines.iter().position(|line| line.contains("\"event\":\"signed\"")).unwrap();
    assert!(last_signed > first_signed, "there is a signature to cut back to");
    let cases = [
        ("made anew with the old signatures", anew(|_| true), true),
        ("made anew without signatures", anew(|record| record["event"] != "signed"), true),
        ("cut after a signature", cut(lines.len() - 1 - first_signed), false),
        ("emptied", String::new(), false),
    ];
    for (name, log, shows_without_heads) in cases {
        server.write("audit.jsonl", &log, 0o600);
        assert_eq!(audit(&server).code, Some(0), "{name}: without a key it cannot be seen");
        let without = verify(&[]);
        assert_eq!(without.code, Some(i32::from(shows_without_heads)), "{name}: {without:?}");
        let with = verify(heads);
        assert_eq!(with.code, Some(1), "{name}: {with:?}");
    }
    server.write("audit.jsonl", &text, 0o600);
    let (_, other) = signed_world("heads.jsonl");
    assert_eq!(server.run(&["audit", "verify", "--key", &other]).code, Some(1), "another key");
    assert_eq!(verify(heads).code, Some(0), "as it was");
}

#[test]
fn a_head_is_signed_at_each_sync_and_not_for_each_line() {
    let (world, _) = signed_world("heads.jsonl");
    let mut server = world.serve();
    for _ in 0..5 {
        server.client().call("t", json!({}));
    }
    server.terminate();
    let events = events(&server, "audit.jsonl");
    let count = |what: &str| events.iter().filter(|event| *event == what).count();
    assert_eq!(count("call"), 5);
    assert!((1..5).contains(&count("signed")), "{events:?}");
    assert_eq!(events.last().map(String::as_str), Some("signed"));
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_signed_log_is_verified_while_it_is_written_and_after_it_was_moved() {
    let (world, key) = signed_world("heads.jsonl");
    let mut server = world.serve();
    server.client().call("t", json!({}));
    eventually("a head is written", || !server.read("heads.jsonl").is_empty());
    let verify = |server: &Server, file: &str| {
        server.run(&["audit", "verify", file, "--key", &key, "--heads", "heads.jsonl"])
    };
    let running = verify(&server, "audit.jsonl");
    assert_eq!(running.code, Some(0), "{running:?}");
    std::fs::rename(server.path("audit.jsonl"), server.path("audit.1.jsonl")).unwrap();
    reload(&server);
    server.client().call("t", json!({}));
    server.terminate();
    for file in ["audit.1.jsonl", "audit.jsonl"] {
        let verified = verify(&server, file);
        assert_eq!(verified.code, Some(0), "{file}: {verified:?}");
    }
    let together =
        |files: &[&str]| server.run(&[&["audit", "verify"], files, &["--key", &*key]].concat());
    let both = together(&["audit.1.jsonl", "audit.jsonl"]);
    assert_eq!((both.code, both.stderr.contains("that it continues")), (Some(0), false), "{both:?}");
    let alone = together(&["audit.jsonl"]);
    assert!(alone.stderr.contains("Not checked: the log that it continues"), "{alone:?}");
    let turned = together(&["audit.jsonl", "audit.1.jsonl"]);
    assert_eq!(turned.code, Some(1), "{turned:?}");
    assert!(turned.stderr.contains("does not follow audit.jsonl"), "{turned:?}");
    assert_eq!(events(&server, "audit.1.jsonl").last().map(String::as_str), Some("signed"));
    assert_eq!(events(&server, "audit.jsonl")[0], "continued");
}

#[test]
fn heads_are_passed_to_a_command() {
    let (world, key) = signed_world("[sh, -c, 'cat >> elsewhere.jsonl']");
    assert_eq!(world.run(&["call", "t"]).code, Some(0));
    let verified = world.run(&["audit", "verify", "--key", &key, "--heads", "elsewhere.jsonl"]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
}

#[test]
fn a_key_that_cannot_be_used_is_refused_before_anything_is_served() {
    let world = world().tool("t", sh("echo")).file("key.pem", "CANARY");
    let config = |text: &str| world.write("orla.yaml", text, 0o644);
    for (text, words) in [
        ("audit: a.jsonl\naudit_key: nowhere.pem\n", "nowhere.pem cannot be read"),
        ("audit: a.jsonl\naudit_key: key.pem\n", "expected an Ed25519 private key"),
        ("audit_key: key.pem\n", "there is no audit log"),
        ("audit_heads: heads.jsonl\n", "there is no audit log"),
    ] {
        config(text);
        for command in [&["check"][..], &["serve", "--port", "0"], &["call", "t"]] {
            let refused = world.run(command);
            assert!(
                refused.code != Some(0) && refused.stderr.contains(words),
                "{command:?}: {refused:?}"
            );
            assert!(!refused.stderr.contains("CANARY"), "{refused:?}");
        }
    }
}

#[test]
fn a_file_that_is_no_audit_log_is_left_alone_and_nothing_is_served() {
    let world =
        world().tool("t", sh("echo")).config("audit: notes.txt\n").file("notes.txt", "dear diary\n");
    let refused = world.run(&["serve", "--port", "0"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("notes.txt"), "{refused:?}");
    assert_eq!(world.read("notes.txt"), "dear diary\n");
}
