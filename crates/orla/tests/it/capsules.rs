//! The life of a capsule: start, crash, reload, end (RFC 2 §7 to §11).

use std::time::Duration;

use orla_e2e::{Server, eventually};
use rustix::process::Signal;
use serde_json::json;

use crate::capsule::{
    bare, manifest, open, pid_in, serve, serve_with, starts, status, until_state, watched, with,
};
use crate::{sh, world};

fn is_alive(server: &Server, pid: u32) -> bool {
    server.processes().iter().any(|process| process.id == pid)
}

#[test]
fn a_capsule_keeps_its_state_and_runs_as_its_manifest_declares() {
    let code = bare().call("answer(id, json.dumps([n, os.getcwd(), os.environ['LEVEL'], os.environ['FROM'], sys.argv[1:], 'ORLA_INSTANCE' in os.environ]))\ncontinue");
    let manifest =
        manifest(json!({"env": {"LEVEL": "debug"}, "args": ["--fast", "a b"], "language": "cobol"}));
    let server =
        with(world().env("FROM", "outside").config("pass_env: [FROM]\n"), &manifest, &code.python())
            .serve();
    let root = server.path("tools/cap").canonicalize().unwrap();
    for (number, mut client) in (1..).zip(server.clients()) {
        let seen: serde_json::Value =
            serde_json::from_str(&client.call("cap", json!({})).text()).unwrap();
        assert_eq!(seen, json!([number, root, "debug", "outside", ["--fast", "a b"], true]));
    }
    let now = status(&server);
    assert_eq!(
        (&now["state"], &now["restarts"], &now["kind"]),
        (&json!("READY"), &json!(0), &json!("capsule"))
    );
    assert!(now["pid"].as_u64() > Some(0) && now["uptime_ms"].is_u64(), "{now}");
}

#[test]
fn it_starts_at_its_first_use_and_an_eager_one_with_the_server() {
    let server = serve(&manifest(json!({})), &bare());
    assert_eq!((&status(&server)["state"], starts(&server)), (&json!("CREATED"), 0));
    server.client().tool_names();
    assert_eq!((&status(&server)["state"], starts(&server)), (&json!("READY"), 1));

    let yaml = "name: cap\nversion: 1.0.0\nentrypoint: main.py\nruntime: {mode: capsule, eager: true}\n";
    let eager = world().tool("cap/main.py", bare().python()).file("tools/cap/tool.yaml", yaml).serve();
    until_state(&eager, "READY");
    let all = serve_with("eager: true", &manifest(json!({})), &bare());
    until_state(&all, "READY");
}

#[test]
fn one_of_which_nothing_is_served_is_not_started() {
    for shut in
        ["tools: {cap: {enabled: false}, up: {enabled: false}}", "deny: [cap, up]", "deny: ['*']"]
    {
        let world = with(world(), &manifest(json!({})), &bare().python());
        let note = format!("echo x >> {}; exit 1", world.path("up.log").display());
        let servers = json!({"up": {"command": "/bin/sh", "args": ["-c", note]}});
        let shut = format!("mcpServers: {servers}\n{shut}\n");
        let world = world.config(&shut);
        let checked = world.run(&["check"]);
        assert!(checked.code == Some(0) && !checked.all().contains("no tool"), "{}", checked.all());
        let server = world.serve();
        assert_eq!(server.client().tool_names(), Vec::<String>::new());
        assert!(starts(&server) == 0 && !server.path("up.log").exists(), "{shut}");
        // It runs as soon as it is served, and as long.
        server.write("orla.yaml", format!("mcpServers: {servers}\n"), 0o644);
        server.reload();
        assert_eq!(server.client().tool_names(), ["cap"]);
        assert!(starts(&server) == 1 && server.path("up.log").exists(), "{shut}");
        server.write("orla.yaml", shut, 0o644);
        server.reload();
        server.assert_no_tool_is_left();
    }
}

#[test]
fn a_listing_does_not_wait_longer_than_a_start_may_take() {
    let code = bare().hello("wait('never')");
    let manifest = manifest(json!({"startup_timeout_ms": 300}));
    let world = with(world(), &manifest, &code.python()).tool("other", sh("echo other"));
    let server = world.serve();
    let mut client = server.client();
    assert_eq!(client.tool_names(), ["cap", "other"]);
    assert_eq!(client.call("other", json!({})).stdout(), "other\n");
}

#[test]
fn its_first_call_waits_for_no_other_provider_and_no_longer_than_its_own_timeout() {
    let hanging = "mcpServers: {hang: {command: python3, args: [-c, 'import time; time.sleep(600)']}}\n";
    let beside = with(world(), &manifest(json!({})), &bare().python()).config(hanging).serve();
    for mut client in beside.clients() {
        assert!(client.call("cap", json!({})).text().starts_with("n="));
    }
    // The start of the other one has not ended yet, one way or the other.
    assert!(beside.status()["problems"].is_null(), "{}", beside.status());

    let slow = bare().before("wait('go')");
    let server = with(world(), &manifest(json!({})), &slow.python()).config("timeout: 0.3\n").serve();
    for mut client in server.clients() {
        let late = client.call("cap", json!({}));
        assert!(late.is_error() && late.sentence().contains("0.3 s"), "{}", late.json);
    }
    server.log_says(&["call finished", "cap", "0.3 s"]);
}

#[test]
fn standard_error_goes_to_the_log_line_by_line_and_is_never_parsed() {
    let hello =
        r#"{"jsonrpc": "2.0", "method": "orla.hello", "params": {"name": "cap", "version": "1.0.0"}}"#;
    let code = bare()
        .before(&format!("sys.stderr.write('first\\nsecond \\u00e9\\n' + '{hello}\\n'); sys.stderr.flush(); wait('go')"))
        .call(r#"sys.stderr.write(json.dumps({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": "wrong"}]}}) + "\n"); sys.stderr.flush()"#);
    let server = serve(&manifest(json!({})), &code);
    let mut client = server.client();
    let call = client.begin_call("cap", json!({}));
    server.log_says(&["orla.hello", "stderr"]);
    assert_eq!(status(&server)["state"], "STARTING");
    open(&server, "go");
    assert!(client.finish_call(call).unwrap().text().starts_with("n=1 "));
    let lines: Vec<String> = eventually("all lines are in the log", || {
        let lines = server.log_lines();
        let stderr = lines.iter().filter(|line| line.message() == "stderr");
        let lines: Vec<String> =
            stderr.map(|line| line.field("line").as_str().unwrap().to_owned()).collect();
        (lines.len() == 4).then_some(lines)
    });
    assert_eq!(lines[..3], ["first", "second é", hello]);
}

#[test]
fn calls_wait_while_it_starts_and_one_that_only_answers_calls_is_not_delayed() {
    // The capsule does not answer `initialize`, neither with a result nor with an error.
    let code = bare().before("wait('go')").other("continue");
    let server = serve(&manifest(json!({})), &code);
    let mut clients = [server.client(), server.session(), server.client()];
    let calls: Vec<_> = clients.iter_mut().map(|client| client.begin_call("cap", json!({}))).collect();
    until_state(&server, "STARTING");
    assert_eq!(server.read("calls.log"), "", "nothing is sent before READY");
    open(&server, "go");
    let started = std::time::Instant::now();
    for (client, call) in clients.iter_mut().zip(calls) {
        assert!(client.finish_call(call).unwrap().text().starts_with("n="));
    }
    assert!(
        started.elapsed() < Duration::from_millis(crate::capsule::PATIENCE_MS),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(starts(&server), 1);
}

#[test]
fn calls_in_flight_at_a_crash_fail_at_once_and_the_next_meets_a_new_process() {
    let code = bare().call("if a.get('die'): record('end'); os._exit(7)");
    let server = serve(&manifest(json!({})), &code);
    let mut waiting = server.clients();
    let calls: Vec<_> =
        waiting.iter_mut().map(|client| client.begin_call("cap", json!({"gate": "never"}))).collect();
    eventually("both calls are there", || server.read("calls.log").lines().count() == 2);
    let died = server.client().call("cap", json!({"die": true}));
    assert!(died.is_error() && died.sentence().contains("exited with code 7"), "{}", died.json);
    for (client, call) in waiting.iter_mut().zip(calls) {
        assert_eq!(
            client.finish_call(call).unwrap().sentence(),
            "cap is unavailable: it ended during the call: it exited with code 7"
        );
    }
    assert!(server.client().call("cap", json!({})).text().starts_with("n=1 "));
    let now = status(&server);
    assert_eq!(now["restarts"], 1, "{now}");
    assert!(now["last_failure"].as_str().unwrap().contains("exited with code 7"), "{now}");
    server.log_says(&["CRASHED", "exited with code 7"]);
}

#[test]
fn calls_wait_through_crashes_until_it_is_ready_or_their_own_time_is_over() {
    let code = bare().before("if runs() < 3: record('end'); os._exit(4)");
    let server = serve_with("backoff_min_ms: 20, backoff_max_ms: 80", &manifest(json!({})), &code);
    assert!(server.client().call("cap", json!({})).text().starts_with("n=1 "));
    assert_eq!(status(&server)["restarts"], 2);

    let policy =
        "capsules: {max_failures: 1000, backoff_min_ms: 10000, backoff_max_ms: 10000}\ntimeout: 1.5\n";
    let code = "#!/bin/sh\nexit 4\n";
    let server = with(world().config(policy), &manifest(json!({})), code).serve();
    let result = server.client().call("cap", json!({}));
    assert!(result.is_error() && result.sentence().contains("exited with code 4"), "{}", result.json);
}

#[test]
fn it_is_stopped_after_its_failures_and_the_reason_is_everywhere() {
    let code = bare().before("sys.stderr.write('no licence\\n'); record('end'); os._exit(9)");
    let server = serve_with("max_failures: 2, backoff_min_ms: 1, backoff_max_ms: 5", &watched(), &code);
    let first = server.client().call("cap", json!({}));
    let sentence = first.sentence();
    assert!(sentence.contains("it was stopped after 2 failures in a row"), "{sentence}");
    assert!(
        sentence.contains(
            "it exited with code 9 before it said orla.hello; it last wrote to standard error: no licence"
        ),
        "{sentence}"
    );
    until_state(&server, "STOPPED");
    assert_eq!(starts(&server), 2);
    // At once, with the reason, and without another attempt.
    for mut client in server.clients() {
        let result = client.call("cap", json!({}));
        assert!(result.is_error() && result.sentence().contains("code 9"), "{}", result.json);
    }
    assert_eq!(starts(&server), 2);
    let now = status(&server);
    assert!(now["last_failure"].as_str().unwrap().contains("no licence"), "{now}");
    assert_eq!((&now["pid"], &now["restarts"]), (&json!(null), &json!(1)), "{now}");
    assert!(server.http().get("/readyz").text().contains("STOPPED 1"));
    assert!(server.http().get("/metrics").text().contains(r#"state="STOPPED"} 1"#));
    let address = server.address().to_string();
    let shown = server.run(&["status", "--url", &format!("http://{address}")]);
    assert!(shown.all().contains("STOPPED"), "{shown:?}");
    server.log_says(&["STOPPED", "code 9"]);
    // A changed file is a new chance.
    server.write("tools/cap/main.py", bare().python(), 0o755);
    eventually("it is ready", || status(&server)["state"] == "READY");
    assert!(server.client().call("cap", json!({})).text().starts_with("n=1 "));
}

#[test]
fn a_reload_gives_a_stopped_one_another_chance() {
    let code = bare().before("if not os.path.exists(HOME + '/cured'): os._exit(1)");
    let server = serve_with("max_failures: 1", &manifest(json!({})), &code);
    assert!(server.client().call("cap", json!({})).is_error());
    until_state(&server, "STOPPED");
    open(&server, "cured");
    let stopped = server.client().call("cap", json!({}));
    let sentence = stopped.sentence();
    assert!(
        sentence.contains("it was stopped after its first failure: it exited with code 1"),
        "{sentence}"
    );
    server.reload();
    assert!(server.client().call("cap", json!({})).text().starts_with("n=1 "));
}

#[test]
fn a_changed_file_is_served_after_the_calls_in_flight_and_no_two_processes_live_at_once() {
    let server = serve(&watched(), &bare().version("one"));
    let mut old = server.client();
    let in_flight = old.begin_call("cap", json!({"gate": "go"}));
    eventually("the call is there", || server.read("calls.log").contains("gate"));
    server.write("tools/cap/main.py", bare().version("two").python(), 0o755);
    until_state(&server, "RELOADING");
    // Calls that arrive in the meantime wait, and run on the new code.
    let mut new = server.session();
    let meanwhile = new.begin_call("cap", json!({}));
    eventually("the call waits", || !server.read("calls.log").is_empty());
    assert_eq!(status(&server)["state"], "RELOADING");
    open(&server, "go");
    assert_eq!(old.finish_call(in_flight).unwrap().text(), "gate go v=one");
    assert!(new.finish_call(meanwhile).unwrap().text().ends_with("v=two"));
    assert_eq!(starts(&server), 2);
    assert!(status(&server)["last_failure"].is_null(), "a reload is no failure");
}

#[test]
fn a_drain_has_an_end() {
    let code = bare().call("if 'stay' in a: signal.signal(signal.SIGTERM, signal.SIG_IGN); continue");
    let server = serve_with("drain_ms: 150", &watched(), &code);
    let mut client = server.client();
    let stuck = client.begin_call("cap", json!({"gate": "never"}));
    eventually("the call is there", || server.read("calls.log").contains("gate"));
    server.write("tools/cap/main.py", bare().version("two").python(), 0o755);
    let result = client.finish_call(stuck).unwrap();
    let sentence = result.sentence();
    assert!(
        sentence.contains("it was reloaded, and its calls in flight were not over in time"),
        "{sentence}"
    );
    assert!(server.client().call("cap", json!({})).text().ends_with("v=two"));
    assert_eq!(starts(&server), 2);
}

#[test]
fn an_edited_manifest_takes_effect_and_a_broken_one_leaves_the_old_in_force() {
    let with_env = |level: &str| {
        manifest(json!({"env": {"LEVEL": level}, "hot_load": {"watch": ["."], "debounce_ms": 30}}))
    };
    let code = bare().call("answer(id, os.environ['LEVEL'])\ncontinue");
    let server = serve(&with_env("one"), &code);
    assert_eq!(server.client().call("cap", json!({})).text(), "one");
    server.write("tools/cap/orla-tool.json", with_env("two"), 0o644);
    eventually("the new manifest is in force", || {
        server.client().call("cap", json!({})).text() == "two"
    });
    server.write("tools/cap/orla-tool.json", "{\"name\": \"cap\",\n \"version\": \"1.0\"}", 0o644);
    server.log_says(&["orla-tool.json:2:"]);
    assert_eq!(server.client().call("cap", json!({})).text(), "two");
    server.write("tools/cap/orla-tool.json", with_env("three"), 0o644);
    eventually("the cured manifest is in force", || {
        server.client().call("cap", json!({})).text() == "three"
    });
    starts(&server);
}

#[test]
fn caches_and_build_directories_are_not_watched() {
    let manifest = manifest(json!({"hot_load": {"watch": ["./"], "debounce_ms": 30}}));
    let server = serve(&manifest, &bare());
    server.client().call("cap", json!({}));
    for ignored in
        [".git/HEAD", "node_modules/a/b.js", "__pycache__/x.pyc", "target/debug/x", "sub/.git/x"]
    {
        server.write(format!("tools/cap/{ignored}"), "x", 0o644);
    }
    server.write("tools/cap/sub/own.py", "", 0o644);
    eventually("a change is noticed", || status(&server)["restarts"] == 1);
    let cause = server.log_says(&["RELOADING", "has changed"]);
    assert!(!cause.contains("__pycache__") && !cause.contains(".git"), "{cause}");
}

#[test]
fn a_capsule_that_writes_to_its_watched_folder_is_logged_and_slowed_down() {
    let code = bare().after("open('own.db', 'w').write(str(time.time()))");
    let manifest = manifest(json!({"hot_load": {"watch": ["./"], "debounce_ms": 10}}));
    let server = serve_with("backoff_min_ms: 5000", &manifest, &code);
    server.client().call("cap", json!({}));
    let line = server.log_says(&["again and again"]);
    assert!(line.contains("own.db"), "{line}");
    assert!(starts(&server) <= 7, "{}", server.read("record.log"));
    assert!(server.client().call("cap", json!({})).text().starts_with("n="));
}

#[test]
fn an_unchanged_capsule_keeps_its_process_over_reloads() {
    let server = serve(&manifest(json!({})), &bare());
    let mut client = server.client();
    let first = client.call("cap", json!({})).text();
    let in_flight = client.begin_call("cap", json!({"gate": "go"}));
    for _ in 0..5 {
        server.reload();
    }
    let last = server.client().call("cap", json!({})).text();
    assert!(last.starts_with("n=3 ") && pid_in(&last) == pid_in(&first), "{first} {last}");
    open(&server, "go");
    assert_eq!(client.finish_call(in_flight).unwrap().text(), "gate go v=1");
    // One whose manifest is another is restarted.
    server.write("tools/cap/orla-tool.json", manifest(json!({"args": ["x"]})), 0o644);
    server.reload();
    let changed = server.client().call("cap", json!({})).text();
    assert!(changed.starts_with("n=1 ") && pid_in(&changed) != pid_in(&first), "{changed}");
    assert_eq!(starts(&server), 2);
}

#[test]
fn a_removed_capsule_serves_open_sessions_and_then_ends() {
    let server = serve(&manifest(json!({})), &bare());
    let mut old = server.session();
    assert_eq!(old.tool_names(), ["cap"]);
    let pid = pid_in(&old.call("cap", json!({})).text());
    server.remove("tools/cap/orla-tool.json");
    server.reload();
    assert_eq!(server.client().tool_names(), Vec::<String>::new());
    assert_eq!(pid_in(&old.call("cap", json!({})).text()), pid);
    old.end_session(server.address());
    eventually("the process ends", || !is_alive(&server, pid));
    assert!(server.read("record.log").contains("end"), "it was ended gracefully");
}

#[test]
fn a_server_that_ends_ends_its_capsules_gracefully() {
    let mut server = serve(&manifest(json!({})), &bare());
    let pid = pid_in(&server.client().call("cap", json!({})).text());
    assert_eq!(server.terminate().code(), Some(0));
    assert!(server.read("record.log").contains("end"));
    assert!(!is_alive(&server, pid));
    server.assert_no_tool_is_left();
}

#[test]
fn a_server_that_is_killed_leaves_no_capsule() {
    // It ignores every polite request, and has a child that holds its pipes.
    let code = bare().before("signal.signal(signal.SIGTERM, signal.SIG_IGN); import subprocess; subprocess.Popen(['sleep', '1000'])").call("if 'end' in a: pass");
    let code = code.python().replace("\nbye()\n", "\ntime.sleep(1000)\n");
    let mut server = with(world(), &manifest(json!({})), &code).serve();
    let pid = pid_in(&server.client().call("cap", json!({})).text());
    assert!(is_alive(&server, pid));
    server.kill();
    eventually("nothing is left", || server.processes().is_empty());
}

#[test]
fn a_capsule_that_ignores_signals_is_killed_with_its_children() {
    let code = bare().before("import subprocess; subprocess.Popen(['sleep', '1000'])\nfor s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(s, signal.SIG_IGN)");
    let code = code.python().replace("\nbye()\n", "\ntime.sleep(1000)\n");
    let mut server = with(world(), &manifest(json!({})), &code).serve();
    server.client().call("cap", json!({}));
    server.signal(Signal::TERM);
    server.wait();
    eventually("nothing is left", || server.processes().is_empty());
}
