//! Capsules that misbehave (rows C1 to C6): the server continues to run, other calls continue, and
//! nothing is lost.

use std::time::Instant;

use orla_e2e::{Server, eventually};
use serde_json::json;

use crate::capsule::{
    bare, manifest, open, pid_in, serve, serve_with, starts, status, until_state, watched, with,
};
use crate::{sh, world};

/// Returns how many warnings of the log have this in their message.
fn warnings(server: &Server, words: &str) -> usize {
    server.logged("warn").iter().filter(|line| line.message().contains(words)).count()
}

/// Returns a server with the capsule, a tool of another kind, and calls that last 1.5 s at most.
fn impatient(code: &crate::capsule::Source) -> Server {
    let world = world().config("timeout: 1.5\n").tool("other", sh("echo other"));
    let yaml = "name: cap\nversion: 1.0.0\nentrypoint: main.py\nruntime: {mode: capsule, eager: true, startup_timeout_ms: 30000}\n";
    let server = world.tool("cap/main.py", code.python()).file("tools/cap/tool.yaml", yaml).serve();
    until_state(&server, "READY");
    server
}

#[test]
fn c1_a_missing_handshake_is_reported_to_the_caller_and_the_log() {
    let server = serve_with(
        "max_failures: 2, backoff_min_ms: 1, backoff_max_ms: 1",
        &manifest(json!({"startup_timeout_ms": 300})),
        &bare().hello("pass"),
    );
    for mut client in server.clients() {
        let result = client.call("cap", json!({}));
        assert_eq!(
            result.sentence(),
            "cap is unavailable: it was stopped after 2 failures in a row, the last of which was: it did not say orla.hello within 0.3 s \
             (startup_timeout_ms of its manifest; an MCP server that does not say orla.hello belongs in mcpServers); \
             it starts again when its files change, or after a reload (SIGHUP)"
        );
    }
    until_state(&server, "STOPPED");
    server.log_says(&["CRASHED", "orla.hello within 0.3 s"]);
    assert_eq!(server.read("calls.log"), "", "nothing was sent to it");
}

#[test]
fn c1_a_handshake_after_the_timeout_does_not_count() {
    let code = bare().before("if runs() == 1: wait('late')");
    let manifest = manifest(json!({"startup_timeout_ms": 1500}));
    let server = serve(&manifest, &code);
    let mut client = server.client();
    let call = client.begin_call("cap", json!({}));
    server.log_says(&["CRASHED", "orla.hello"]);
    open(&server, "late");
    assert!(client.finish_call(call).unwrap().text().starts_with("n=1 "));
    assert!(status(&server)["restarts"].as_u64() > Some(0));
    starts(&server);
}

#[test]
fn c1_odd_handshakes_are_warned_of_and_good_enough() {
    let cases = [
        ("hello(); hello()", "more than once"),
        (
            "hello({'name': 'other', 'version': '1.0.0', 'capabilities': []})",
            "differs from the manifest",
        ),
        ("hello({'name': 7})", "has no params.name"),
        ("hello([])", "has no params.name"),
        ("out({'method': 'orla.hello'})", "has no params.name"),
        ("out({'method': 'orla.hello', 'params': None})", "has no params.name"),
    ];
    std::thread::scope(|scope| {
        for (hello, warning) in cases {
            scope.spawn(move || {
                let server = serve(&manifest(json!({})), &bare().hello(hello));
                let text = server.client().call("cap", json!({})).text();
                assert!(text.starts_with("n=1 "), "{hello}: {text}");
                let line = server.log_says(&["warn", warning]);
                // Repeated messages are quoted.
                assert!(warning != "more than once" || line.contains("\"text\":"), "{line}");
                assert_eq!(starts(&server), 1, "{hello}");
            });
        }
    });
}

#[test]
fn c2_what_is_no_message_is_quoted_once_cut_and_ignored() {
    let code = bare()
        .before("raw('*** Welcome \\u00e9 ' + 'x' * 5000); raw('2026-01-01 INFO up'); raw('')")
        .after("raw('{\"half\": '); raw('[1, 2]'); raw('null'); sys.stdout.buffer.write(b'\\xff\\xfe\\x00\\n'); raw('{\"jsonrpc\": \"1.0\", \"id\": 1, \"result\": 0}')")
        .call("raw('calling ' + str(n)); raw('')");
    let server = serve(&watched(), &code);
    for number in 1..4 {
        assert!(server.client().call("cap", json!({})).text().starts_with(&format!("n={number} ")));
    }
    let line = server.log_says(&["*** Welcome"]);
    assert!(
        line.contains("\"warn\"") && line.len() < 1000 && !line.contains(&"x".repeat(200)),
        "{line}"
    );
    assert_eq!(warnings(&server, "standard output"), 1, "{}", server.log());
    // Once for each process.
    server.write("tools/cap/main.py", code.version("two").python(), 0o755);
    eventually("the new code answers", || {
        server.client().call("cap", json!({})).text().ends_with("two")
    });
    eventually("it is warned of again", || warnings(&server, "standard output") == 2);
}

#[test]
fn c2_messages_before_the_handshake_are_ignored() {
    let code = bare().before(
        "out({'id': 1, 'result': {}}); out({'id': 'x', 'method': 'roots/list'}); out({'method': 'notifications/tools/list_changed'}); wait('go')",
    );
    let server = serve(&manifest(json!({})), &code);
    let mut client = server.client();
    let call = client.begin_call("cap", json!({}));
    server.log_says(&["warn", "before orla.hello"]);
    assert_eq!(status(&server)["state"], "STARTING");
    open(&server, "go");
    assert!(client.finish_call(call).unwrap().text().starts_with("n=1 "));
    assert_eq!(warnings(&server, "standard output"), 1);
}

#[test]
fn c3_crashes_and_ends_of_every_kind_are_failures_with_a_reason() {
    let cases = [
        ("os._exit(0)", "exited with code 0"),
        ("os._exit(255)", "exited with code 255"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("raise ValueError('no such city')", "no such city"),
        ("os.close(1); time.sleep(1000)", "closed its standard output"),
    ];
    std::thread::scope(|scope| {
        for (code, reason) in cases {
            scope.spawn(move || {
                let code = bare().call(&format!("if n == 3: {code}"));
                let policy = "max_failures: 2, backoff_min_ms: 1, backoff_max_ms: 1";
                let server = serve_with(policy, &manifest(json!({})), &code);
                let mut client = server.client();
                let mut call = || client.call("cap", json!({}));
                for _ in 0..2 {
                    assert!(call().text().starts_with("n=1 "));
                    assert!(call().text().starts_with("n=2 "));
                    let failed = call();
                    assert!(failed.is_error() && failed.sentence().contains(reason), "{}", failed.json);
                }
                // The second failure in a row was its last.
                until_state(&server, "STOPPED");
                let failed = call();
                assert!(failed.is_error() && failed.sentence().contains(reason), "{}", failed.json);
                assert!(status(&server)["last_failure"].as_str().unwrap().contains(reason));
            });
        }
    });
}

#[test]
fn c3_one_that_crashes_only_when_it_is_reloaded_is_cured_by_the_next_edit() {
    let server =
        serve_with("max_failures: 2, backoff_min_ms: 1, backoff_max_ms: 1", &watched(), &bare());
    assert!(server.client().call("cap", json!({})).text().starts_with("n=1 "));
    let broken = "#!/usr/bin/env python3\nimport sys\nsys.exit('broken on purpose')\n";
    server.write("tools/cap/main.py", broken, 0o755);
    until_state(&server, "STOPPED");
    let failed = server.client().call("cap", json!({}));
    assert!(failed.is_error() && failed.sentence().contains("broken on purpose"), "{}", failed.json);
    server.write("tools/cap/main.py", bare().version("cured").python(), 0o755);
    until_state(&server, "READY");
    assert!(server.client().call("cap", json!({})).text().ends_with("v=cured"));
}

#[test]
fn c4_one_that_stops_reading_or_answering_costs_its_callers_their_time_alone() {
    let deaf = bare().after("wait('never')");
    let mute = bare().call("if 'mute' in a: continue");
    for (code, argument) in [(deaf, "x".repeat(1 << 20)), (mute, String::new())] {
        let server = impatient(&code);
        let mut stuck = server.clients();
        let calls: Vec<_> =
            stuck.iter_mut().map(|client| client.begin_call("cap", json!({"mute": argument}))).collect();
        assert_eq!(server.client().call("other", json!({})).stdout(), "other\n");
        for (client, call) in stuck.iter_mut().zip(calls) {
            let result = client.finish_call(call).unwrap();
            assert!(result.is_error(), "{}", result.json);
            assert_eq!(result.sentence(), "cap timed out after 1.5 s");
        }
        assert_eq!(status(&server)["state"], "READY");
    }
}

#[test]
fn c4_late_second_and_unknown_answers_meet_no_other_call() {
    let code = bare().call(
        "if 'late' in a: late = id; continue\n\
         if 'twice' in a: answer(id, 'first'); answer(id, 'second'); continue\n\
         if 'odd' in a:\n    for odd in (10**9, -1, 'x', None, 1.5, [], str(id)): answer(odd, 'nobody asked')\n\
         if 'now' in a: answer(late, 'too late')",
    );
    let server = impatient(&code);
    let mut client = server.client();
    let mut call = |argument: &str| client.call("cap", json!({argument: 1})).text();
    assert!(call("late").ends_with("timed out after 1.5 s"));
    // It got the cancellation.
    eventually("it is told", || server.read("notes.log").contains("notifications/cancelled"));
    assert!(call("now").starts_with("n=2 "));
    assert_eq!(call("twice"), "first");
    assert!(call("none").starts_with("n=4 "));
    assert!(call("odd").starts_with("n=5 "));
    assert!(call("none").starts_with("n=6 "));
    server.log_says(&["warn", "never sent"]);
    assert_eq!(warnings(&server, "never sent"), 1, "{}", server.log());
    assert_eq!(starts(&server), 1);
}

#[test]
fn c4_what_is_no_result_is_the_calls_failure_alone() {
    let code = bare().call(
        "if 'result' in a: out({'id': id, 'result': a['result']}); continue\n\
         if 'error' in a: out({'id': id, 'error': a['error']}); continue\n\
         if 'neither' in a: out({'id': id, 'error': {'code': -5, 'message': 'not today'}}); continue",
    );
    let server = serve(&manifest(json!({})), &code);
    for mut client in server.clients() {
        for bad in [
            json!({"result": {"content": "text"}}),
            json!({"result": {"content": 7, "isError": false}}),
            json!({"error": {"code": -1, "message": "no"}}),
            json!({"error": "no"}),
            json!({"error": {}}),
        ] {
            let result = client.call("cap", bad.clone());
            assert!(result.is_error(), "{bad}: {}", result.json);
        }
        let said = client.call("cap", json!({"neither": 1}));
        assert!(said.sentence().contains("not today"), "{}", said.json);
        for plain in [json!(7), json!("text"), json!({"sum": 3}), json!([1])] {
            let result = client.call("cap", json!({"result": plain}));
            assert!(!result.is_error(), "{}", result.json);
        }
        let own = json!({"content": [{"type": "text", "text": "mine"}], "isError": true});
        let result = client.call("cap", json!({"result": own}));
        assert_eq!((result.is_error(), result.text().as_str()), (true, "mine"));
        assert!(client.call("cap", json!({})).text().starts_with("n="));
    }
    assert_eq!(starts(&server), 1);
}

#[test]
fn c5_a_message_of_100_mb_ends_it_with_a_reason_and_in_bounded_memory() {
    let code = bare().call(
        "if 'big' in a:\n    try:\n        for _ in range(100): sys.stdout.write('x' * 1000000)\n    except BrokenPipeError: pass\n    wait('never')",
    );
    let server = serve(&manifest(json!({})), &code);
    let mut client = server.client();
    assert!(client.call("cap", json!({})).text().starts_with("n=1 "));
    let before = server.peak_resident_kib();
    let failed = client.call("cap", json!({"big": true}));
    assert_eq!(
        failed.sentence(),
        "cap is unavailable: it ended during the call: it wrote a message of more than 16 MiB"
    );
    assert!(server.peak_resident_kib() - before < 100 * 1024, "{} KiB", server.peak_resident_kib());
    assert!(client.call("cap", json!({})).text().starts_with("n=1 "));
    server.log_says(&["CRASHED", "16 MiB"]);
}

#[test]
fn c5_floods_of_notifications_and_of_diagnostics_are_bounded() {
    let code = bare().call(
        "if 'flood' in a:\n    line = json.dumps({'jsonrpc': '2.0', 'method': 'notifications/message', 'params': {'level': 'info', 'data': n}}) + '\\n'\n    for _ in range(100): sys.stdout.write(line * 1000)\n    sys.stderr.write('e' * 30000000 + '\\n')",
    );
    // On a machine with much to do, the flood takes longer than a call may by default.
    let world = world().config("timeout: 110\n");
    let server = with(world, &manifest(json!({})), &code.python()).serve();
    let mut client = server.client();
    assert!(client.call("cap", json!({})).text().starts_with("n=1 "));
    let before = server.peak_resident_kib();
    let text = client.call("cap", json!({"flood": true})).text();
    assert!(text.starts_with("n=2 "), "{text}");
    assert!(server.peak_resident_kib() - before < 100 * 1024, "{} KiB", server.peak_resident_kib());
    assert_eq!(starts(&server), 1);
}

#[test]
fn c6_a_thousand_changes_are_one_restart() {
    let manifest = manifest(json!({"hot_load": {"watch": ["."], "debounce_ms": 400}}));
    let server = serve(&manifest, &bare());
    let first = server.client().call("cap", json!({})).text();
    let begun = Instant::now();
    for number in 0..1000 {
        server.write(format!("tools/cap/data/{}", number % 50), number.to_string(), 0o644);
    }
    // On a machine with much to do there were pauses, and each may have been the end of a change.
    let pauses = begun.elapsed().as_millis() / 400;
    eventually("the new code answers", || {
        pid_in(&server.client().call("cap", json!({})).text()) != pid_in(&first)
    });
    let restarts = starts(&server) - 1;
    assert!(restarts as u128 <= 1 + pauses, "{restarts} restarts, at most {pauses} pauses");
}

#[test]
fn c6_a_change_while_it_starts_is_served() {
    let server = serve(&watched(), &bare().before("wait('never')").version("one"));
    let mut client = server.client();
    let call = client.begin_call("cap", json!({}));
    eventually("it starts", || server.read("record.log").contains("start"));
    server.write("tools/cap/main.py", bare().version("two").python(), 0o755);
    assert!(client.finish_call(call).unwrap().text().ends_with("v=two"));
    assert_eq!(starts(&server), 2);
}

#[test]
fn c6_an_entrypoint_that_vanishes_is_named_and_its_return_is_noticed() {
    let server =
        serve_with("max_failures: 2, backoff_min_ms: 1, backoff_max_ms: 1", &watched(), &bare());
    assert!(server.client().call("cap", json!({})).text().starts_with("n=1 "));
    server.remove("tools/cap/main.py");
    until_state(&server, "STOPPED");
    for mut client in server.clients() {
        let failed = client.call("cap", json!({}));
        let sentence = failed.sentence();
        assert!(failed.is_error(), "{}", failed.json);
        assert!(sentence.contains("could not start: its file is gone; it starts again"), "{sentence}");
    }
    server.write("tools/cap/main.py", bare().version("back").python(), 0o755);
    until_state(&server, "READY");
    assert!(server.client().call("cap", json!({})).text().ends_with("v=back"));
}

#[test]
fn a_capsule_that_is_killed_repeatedly_answers_every_call() {
    let server = serve_with(
        "max_failures: 1000000, backoff_min_ms: 5, backoff_max_ms: 20",
        &manifest(json!({})),
        &bare(),
    );
    let (mut client, mut other) = (server.client(), server.session());
    for round in 0..6 {
        let pid = pid_in(&client.call("cap", json!({})).text());
        let lost = other.begin_call("cap", json!({"gate": "never", "round": round}));
        eventually("the call is there", || {
            server.read("calls.log").contains(&format!("\"round\": {round}"))
                || server.read("calls.log").contains(&format!("\"round\":{round}"))
        });
        let id = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::KILL).unwrap();
        for _ in 0..5 {
            let result = client.call("cap", json!({}));
            let is_crash = result.is_error() && result.sentence().contains("SIGKILL");
            assert!(is_crash || result.text().starts_with("n="), "{}", result.json);
        }
        assert_eq!(
            other.finish_call(lost).unwrap().sentence(),
            "cap is unavailable: it ended during the call: it was killed by SIGKILL"
        );
    }
    assert_eq!(status(&server)["restarts"], 6);
    assert_eq!(server.zombies(), 0);
}

#[test]
fn children_of_a_dead_capsule_do_not_delay_its_restart() {
    // A child in its own process group keeps the pipes open.
    let code = bare().call(
        "if 'die' in a:\n    import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True); os._exit(3)",
    );
    let server = serve(&manifest(json!({})), &code);
    let mut client = server.client();
    let failed = client.call("cap", json!({"die": true}));
    assert!(failed.is_error() && failed.sentence().contains("code 3"), "{}", failed.json);
    assert!(client.call("cap", json!({})).text().starts_with("n=1 "));
}

#[test]
fn large_messages_both_ways_at_once_do_not_stall() {
    let code = bare().call("if 'big' in a: answer(id, a['big']); continue");
    let server = with(world(), &manifest(json!({})), &code.python()).serve();
    let big = "x".repeat(100_000);
    std::thread::scope(|scope| {
        for number in 0..32 {
            let (server, big) = (&server, &big);
            scope.spawn(move || {
                let mut client = if number % 2 == 0 { server.client() } else { server.session() };
                for _ in 0..3 {
                    assert_eq!(client.call("cap", json!({"big": big})).text(), *big);
                }
            });
        }
    });
}

/// Calls a capsule until it answers, and returns the process that answered.
fn answered_by(server: &Server) -> u32 {
    eventually("it answers", || {
        let result = server.client().call("cap", json!({}));
        (!result.is_error()).then(|| pid_in(&result.text()))
    })
}

#[test]
fn a_capsule_that_hangs_for_three_calls_in_a_row_is_restarted() {
    let code = bare().call("if 'hang' in a: time.sleep(1000)");
    let server = impatient(&code);
    let first = answered_by(&server);
    for _ in 0..3 {
        let result = server.client().call("cap", json!({"hang": 1}));
        assert_eq!(result.sentence(), "cap timed out after 1.5 s");
    }
    assert_ne!(answered_by(&server), first);
    server.log_says(&["warn", "it hung", "3 calls in a row"]);
    assert!(status(&server)["last_failure"].as_str().is_some_and(|why| why.contains("hung")));
    assert_eq!(starts(&server), 2);
}

/// A process with one thread is silent while it works on a call, and is not restarted for that.
#[test]
fn a_capsule_busy_with_an_older_call_is_not_restarted() {
    let code = bare().call("if 'busy' in a: wait('done')");
    let server = impatient(&code);
    let first = answered_by(&server);
    // Two calls pass their deadlines; then it is free again, and its byte ends the row.
    for _ in 0..2 {
        let result = server.client().call("cap", json!({"busy": 1}));
        assert!(result.is_error(), "{}", result.json);
    }
    open(&server, "done");
    eventually("it answers again", || !server.client().call("cap", json!({})).is_error());
    assert_eq!(pid_in(&server.client().call("cap", json!({})).text()), first);
    assert_eq!(starts(&server), 1);
}

#[test]
fn a_capsule_stopped_by_a_signal_is_restarted() {
    let server = serve(&manifest(json!({})), &bare());
    let first = answered_by(&server);
    let id = rustix::process::Pid::from_raw(i32::try_from(first).unwrap()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::STOP).unwrap();
    let lost = server.client().call("cap", json!({}));
    assert!(lost.is_error() && lost.sentence().contains("stopped by a signal"), "{}", lost.json);
    assert_ne!(answered_by(&server), first);
    server.log_says(&["warn", "it hung", "stopped by a signal"]);
}

#[test]
fn a_capsule_that_closed_its_standard_input_is_restarted() {
    let code = bare().call("if 'close' in a: answer(id, 'closed'); os.close(0); time.sleep(1000)");
    let server = serve(&manifest(json!({})), &code);
    let first = answered_by(&server);
    assert_eq!(server.client().call("cap", json!({"close": 1})).text(), "closed");
    assert_ne!(answered_by(&server), first);
    server.log_says(&["warn", "closed its standard input"]);
}
