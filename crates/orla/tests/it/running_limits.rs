//! Time, memory, numbers and ends (rows X3, X5 and X12 to X15).

use std::time::{Duration, Instant};

use orla_e2e::{Pending, Request, World, eventually};
use rustix::process::Signal;
use serde_json::json;

use crate::{sh, world};

/// How much a call may add to the server's memory, for any output of the tool.
const GROWTH_KIB: u64 = 64 * 1024;

/// X3
#[test]
fn a_tool_that_ignores_sigterm_and_all_its_children_end_within_timeout_and_grace() {
    let stubborn = "trap '' TERM\n(trap '' TERM; sleep 1000) &\n(sleep 1000) &\necho started > started\nwait; sleep 1000; sleep 1000";
    let server = world().tool("stubborn", sh(stubborn)).config("timeout: 1\n").serve();
    let mut client = server.client();
    let pending = client.begin_call("stubborn", json!({}));
    eventually("its children run", || server.tool_processes().len() >= 3);
    let result = client.finish_call(pending).unwrap();
    assert_eq!(result.sentence(), "stubborn timed out after 1 s");
    assert!(server.path("started").exists());
    server.assert_no_tool_is_left();
}

/// X3: SIGTERM comes first, so that a tool may tidy up.
#[test]
fn a_tool_may_clean_up_on_sigterm() {
    let body = "trap 'echo tidied; rm -f lock; exit 0' TERM\ntouch lock\nwhile :; do sleep 0.05; done";
    let server = world().tool("tidy", sh(body)).config("timeout: 0.5\n").serve();
    let result = server.client().call("tidy", json!({}));
    assert!(result.is_error());
    assert_eq!(result.sentence(), "tidy timed out after 0.5 s");
    assert_eq!(result.content()[0]["text"], "tidied\n", "what it wrote on its way out is kept");
    assert!(!server.path("lock").exists());
}

/// X5
#[test]
fn a_gigabyte_on_stdout_is_answered_within_bounded_memory() {
    let server = world().tool("flood", sh("head -c 1073741824 /dev/zero | tr '\\0' 'x'")).serve();
    let mut client = server.client();
    client.request("tools/list", json!({})).unwrap();
    let before = server.resident_kib();
    let result = client.call("flood", json!({}));
    let grown = server.peak_resident_kib().saturating_sub(before);
    assert!(grown < GROWTH_KIB, "{grown} KiB more at the peak");
    assert!(!result.is_error(), "{}", result.sentence());
    assert_eq!(result.execution()["truncated"]["stdout"], 1_073_741_824 - 1_048_576);
    assert_eq!(result.stdout().len(), 1_048_576);
}

/// X5
#[test]
fn floods_on_stderr_and_on_both_streams_are_bounded_too() {
    let megabytes = 64;
    let bytes: u64 = megabytes * 1024 * 1024;
    let line = format!("head -c {bytes} /dev/zero | tr '\\0' 'x'");
    let lines = format!("yes 'a line of stderr' | head -c {bytes}");
    let server = world()
        .tool("stderr_line", sh(&format!("({line}) >&2; echo done")))
        .tool("stderr_lines", sh(&format!("({lines}) >&2; echo done")))
        .tool("both", sh(&format!("({lines}) >&2 & {lines}; wait")))
        .config("max_output_bytes: 100000\n")
        .serve();
    let mut client = server.client();
    client.request("tools/list", json!({})).unwrap();
    let before = server.resident_kib();
    for (name, stdout, stderr) in
        [("stderr_line", 5, bytes), ("stderr_lines", 5, bytes), ("both", bytes, bytes)]
    {
        let result = client.call(name, json!({}));
        assert!(!result.is_error(), "{}", result.sentence());
        let truncated = &result.execution()["truncated"];
        let dropped = |stream: &str| truncated[stream].as_u64().unwrap_or(0);
        assert_eq!(dropped("stderr"), stderr - 100_000, "{name}: {truncated}");
        assert_eq!(dropped("stdout"), stdout.saturating_sub(100_000), "{name}: {truncated}");
        assert_eq!(result.structured()["stderr"].as_str().unwrap().len(), 100_000, "{name}");
    }
    let grown = server.peak_resident_kib().saturating_sub(before);
    assert!(grown < GROWTH_KIB, "{grown} KiB more at the peak");
}

/// X5: what never ends is ended by the timeout.
#[test]
fn endless_output_ends_at_the_timeout() {
    let server =
        world().tool("yes", sh("exec yes")).config("timeout: 1\nmax_output_bytes: 1000\n").serve();
    let result = server.client().call("yes", json!({}));
    assert_eq!(result.sentence(), "yes timed out after 1 s");
    assert_eq!(result.stdout().len(), 1000);
    assert!(result.execution()["truncated"]["stdout"].as_u64().unwrap() > 1000);
    server.assert_no_tool_is_left();
}

/// X5: a character is not cut in two.
#[test]
fn output_that_is_cut_in_a_character_is_still_text() {
    let server =
        world().tool("t", sh("printf 'ab\\303\\251\\303\\251'")).config("max_output_bytes: 5\n").serve();
    let result = server.client().call("t", json!({}));
    assert_eq!(result.content()[0]["type"], "text", "{}", result.json);
    assert!(result.stdout().starts_with("abé"), "{}", result.json);
    assert!(result.execution()["truncated"]["stdout"].as_u64().unwrap() >= 1);
}

/// X12
#[test]
fn two_hundred_calls_at_once_run_eight_at_a_time() {
    let body = "mkdir -p running; touch running/$$; ls running | wc -l; sleep 0.05; rm running/$$";
    let server = world().tool("t", sh(body)).config("max_concurrency: 8\n").serve();
    let mut clients: Vec<_> = (0..200).map(|_| server.client()).collect();
    let pending: Vec<Pending> =
        clients.iter_mut().map(|client| client.begin_call("t", json!({}))).collect();
    for (client, pending) in clients.iter_mut().zip(pending) {
        let result = client.finish_call(pending).unwrap();
        assert!(!result.is_error(), "{}", result.sentence());
        let at_once: u32 = result.stdout().trim().parse().unwrap();
        assert!((1..=8).contains(&at_once), "{at_once} at once");
    }
    server.assert_no_tool_is_left();
}

#[test]
fn an_only_tool_may_run_all_calls_and_one_of_several_leaves_room() {
    let waits = || sh("while [ ! -e go ]; do sleep 0.02; done; echo ok");
    for (others, running) in [(false, 4), (true, 3)] {
        let world = world().tool("t", waits()).config("max_concurrency: 4\n");
        let server = if others { world.tool("other", sh("echo other")) } else { world }.serve();
        let mut clients: Vec<_> = (0..4).map(|_| server.client()).collect();
        let pending: Vec<_> =
            clients.iter_mut().map(|client| client.begin_call("t", json!({}))).collect();
        eventually("as many run as may", || server.tool_processes().len() >= running);
        if others {
            assert_eq!(server.client().call("other", json!({})).stdout(), "other\n");
        }
        server.write("go", "", 0o644);
        for (client, pending) in clients.iter_mut().zip(pending) {
            assert_eq!(client.finish_call(pending).unwrap().stdout(), "ok\n");
        }
    }
}

/// X12
#[test]
fn a_call_beyond_the_queue_gets_a_busy_error() {
    let server = world()
        .tool("t", sh("while [ ! -e go ]; do sleep 0.02; done; echo ok"))
        .config("max_concurrency: 2\nmax_queue: 3\n")
        .serve();
    let mut clients: Vec<_> = (0..12).map(|_| server.client()).collect();
    let mut pending = Vec::new();
    for (index, client) in clients.iter_mut().enumerate() {
        pending.push(client.begin_call("t", json!({})));
        if index == 1 {
            eventually("two run", || server.tool_processes().len() >= 2);
        }
    }
    // Seven cannot be admitted; they are answered while the others still wait.
    eventually("the refusals are logged", || server.log().matches(r#""outcome":"busy""#).count() >= 7);
    server.write("go", "", 0o644);
    let (mut ok, mut busy) = (0, 0);
    for (client, pending) in clients.iter_mut().zip(pending) {
        let text = match client.finish_call(pending) {
            Ok(result) if !result.is_error() => {
                ok += 1;
                continue;
            }
            Ok(result) => result.text(),
            Err(err) => err.message,
        };
        assert!(text.to_lowercase().contains("busy"), "{text}");
        busy += 1;
    }
    assert_eq!((ok, busy), (5, 7));
}

/// X13
#[test]
fn a_sessionless_client_that_disconnects_ends_its_call() {
    let server =
        world().tool("t", sh("sleep 100 & sleep 100; wait")).tool("other", sh("echo other")).serve();
    let pending = server.client().begin_call("t", json!({}));
    eventually("it runs", || server.tool_processes().len() >= 2);
    drop(pending);
    server.assert_no_tool_is_left();
    server.log_says(&["cancelled", "\"t\""]);
    assert_eq!(server.client().call("other", json!({})).stdout(), "other\n");
}

/// X13, before a call got its turn
#[test]
fn a_client_that_disconnects_while_it_waits_is_never_run() {
    let server = world()
        .tool("first", sh("while [ ! -e go ]; do sleep 0.02; done"))
        .tool("second", sh("touch second_ran"))
        .config("max_concurrency: 1\n")
        .serve();
    let (mut client, mut waiting) = (server.client(), server.client());
    let first = client.begin_call("first", json!({}));
    eventually("the first runs", || !server.tool_processes().is_empty());
    let second = waiting.begin_call("second", json!({}));
    let gauge = || server.http().get("/metrics").text();
    eventually("the second waits", || {
        gauge().lines().any(|line| line.contains("waiting") && line.ends_with(" 1"))
    });
    drop(second);
    eventually("no call waits", || {
        gauge().lines().any(|line| line.contains("waiting") && line.ends_with(" 0"))
    });
    server.write("go", "", 0o644);
    assert!(!client.finish_call(first).unwrap().is_error());
    assert!(!server.path("second_ran").exists());
}

/// X13
#[test]
fn a_session_ends_a_call_by_cancelling_it_or_by_ending_itself() {
    let server = world().tool("t", sh("sleep 100")).serve();
    let mut cancelling = server.session();
    let mut calling = orla_e2e::Client::resume(server.address(), &cancelling);
    let pending = calling.begin_call("t", json!({}));
    eventually("it runs", || !server.tool_processes().is_empty());
    let status = cancelling
        .notify("notifications/cancelled", json!({"requestId": pending.id, "reason": "enough"}));
    assert_eq!(status, 202);
    server.assert_no_tool_is_left();
    server.log_says(&["cancelled", "\"t\""]);
    assert_ends_without_answer(pending);

    let mut ending = server.session();
    let pending = ending.begin_call("t", json!({}));
    eventually("it runs", || !server.tool_processes().is_empty());
    let status = ending.end_session(server.address());
    assert!((200..300).contains(&status), "{status}");
    server.assert_no_tool_is_left();
    assert_ends_without_answer(pending);
}

/// The specification asks for no answer to a cancelled request; its connection must not hang.
fn assert_ends_without_answer(mut pending: Pending) {
    if pending.is_stream() {
        while let Some(message) = pending.next_message() {
            assert!(message.get("result").is_none(), "{message}");
        }
    }
}

/// X13: on a session, a disconnect alone ends nothing: the client may come back for the answer.
#[test]
fn a_session_that_only_disconnects_does_not_end_its_call() {
    let server = world()
        .tool("t", sh("touch started; while [ ! -e go ]; do sleep 0.02; done; touch finished"))
        .serve();
    let mut client = server.session();
    let pending = client.begin_call("t", json!({}));
    eventually("it runs", || server.path("started").exists());
    drop(pending);
    // A round trip later the server has had its chance to notice.
    assert_eq!(server.client().tool_names(), ["t"]);
    server.write("go", "", 0o644);
    eventually("it finishes", || server.path("finished").exists());
    server.assert_no_tool_is_left();
}

/// X14
#[test]
fn fifty_running_tools_die_with_a_server_that_is_killed() {
    let mut server = world()
        .tool("plain", sh("sleep 300"))
        .tool(
            "stubborn",
            sh("trap '' TERM HUP INT; (trap '' TERM HUP; sleep 300; sleep 300) & sleep 300; sleep 300"),
        )
        .tool("escaped", sh("setsid sh -c 'trap \"\" TERM HUP; sleep 300; sleep 300' & sleep 300"))
        .config("max_concurrency: 64\n")
        .serve();
    let mut clients: Vec<_> = (0..50).map(|_| server.client()).collect();
    let names = ["plain", "stubborn", "escaped"];
    let call =
        |(index, client): (usize, &mut orla_e2e::Client)| client.begin_call(names[index % 3], json!({}));
    let pending: Vec<_> = clients.iter_mut().enumerate().map(call).collect();
    eventually("all run", || server.tool_processes().len() >= 50 + 17 + 16);
    server.kill();
    eventually("nothing is left", || server.processes().is_empty());
    drop(pending);
}

/// X14: at any moment, while tools are being started and while they start others.
#[test]
fn whenever_the_server_is_killed_nothing_is_left() {
    for running in [0, 1, 5, 15, 40] {
        let mut server = world()
            .tool(
                "t",
                sh("sh -c 'sh -c \"sleep 300; :\" & setsid sleep 300 & sleep 300; :' & sleep 300"),
            )
            .serve();
        let mut clients: Vec<_> = (0..15).map(|_| server.client()).collect();
        let pending: Vec<_> =
            clients.iter_mut().map(|client| client.begin_call("t", json!({}))).collect();
        eventually("some run", || server.tool_processes().len() >= running);
        server.kill();
        eventually("nothing is left", || server.processes().is_empty());
        drop(pending);
    }
}

/// X14, politely
#[test]
fn a_terminating_server_finishes_running_calls() {
    let mut server = world()
        .tool("slow", sh("touch started; while [ ! -e go ]; do sleep 0.02; done; echo finished"))
        .serve();
    let address = server.address();
    let mut client = server.client();
    let pending = client.begin_call("slow", json!({}));
    eventually("it runs", || server.path("started").exists());
    server.signal(Signal::TERM);
    eventually("nothing new is accepted", || std::net::TcpStream::connect(address).is_err());
    assert!(server.is_alive());
    server.write("go", "", 0o644);
    assert_eq!(client.finish_call(pending).unwrap().stdout(), "finished\n");
    assert_eq!(server.wait().code(), Some(0));
    eventually("nothing is left", || server.processes().is_empty());
}

/// X14, with a tool that will not end
#[test]
fn a_drain_has_an_end() {
    let mut server = world().tool("slow", sh("trap '' TERM; sleep 1000; sleep 1000")).serve();
    let mut client = server.client();
    let pending = client.begin_call("slow", json!({}));
    eventually("it runs", || server.tool_processes().len() >= 2);
    server.terminate();
    eventually("nothing is left", || server.processes().is_empty());
    let result = client.finish_call(pending).unwrap();
    assert_eq!(result.sentence(), "slow was cancelled: the server is stopping");
}

/// X14: whoever waits is answered, by every way.
#[test]
fn a_call_that_the_end_cuts_short_is_answered_with_what_it_wrote() {
    let mut server =
        world().tool("slow", sh("echo partial; touch \"started.$$\"; exec sleep 1000")).serve();
    let [mut of_session, mut sessionless] = server.clients();
    let pending = [of_session.begin_call("slow", json!({})), sessionless.begin_call("slow", json!({}))];
    let post = |path: &str, body: &str| {
        let request = Request::new("POST", path).header("content-type", "application/json").body(body);
        server.http().write(&request).unwrap()
    };
    let rest = post("/api/slow", "{}");
    let direct = post("/rtfs", r#"{"call": "slow"}"#);
    let program = post("/rtfs", r#"{"program": "(call :slow {})"}"#);
    eventually("all run", || server.tool_processes().len() >= 5);
    server.signal(Signal::TERM);
    const WHY: &str = "slow was cancelled: the server is stopping";
    let mut clients = [of_session, sessionless];
    for (client, pending) in clients.iter_mut().zip(pending) {
        let result = client.finish_call(pending).unwrap();
        assert!(result.is_error());
        assert_eq!((result.sentence(), result.stdout()), (WHY, "partial\n"));
    }
    let rest = rest.answer().unwrap();
    assert_eq!((rest.status, &rest.json()["detail"]), (503, &json!(WHY)));
    assert!(rest.json()["output"].to_string().contains("partial"), "{}", rest.text());
    let direct = direct.answer().unwrap();
    assert_eq!((direct.status, &direct.json()["error"]["message"]), (503, &json!(WHY)));
    let program = program.answer().unwrap();
    assert_eq!(program.status, 503, "{}", program.text());
    assert_eq!(program.json()["error"]["kind"], "cancelled");
    server.wait();
    assert!(!server.log().contains("did not wait"), "{}", server.log());
    server.assert_no_tool_is_left();
}

/// X14, impatiently
#[test]
fn a_second_signal_ends_the_server_and_its_tools_at_once() {
    let mut server = world().tool("slow", sh("trap '' TERM; sleep 1000; sleep 1000")).serve();
    let mut client = server.client();
    let pending = client.begin_call("slow", json!({}));
    eventually("it runs", || server.tool_processes().len() >= 2);
    let started = Instant::now();
    server.signal(Signal::INT);
    eventually("the first is taken", || std::net::TcpStream::connect(server.address()).is_err());
    server.signal(Signal::TERM);
    server.wait();
    // A drain takes 10 s.
    assert!(started.elapsed() < Duration::from_secs(10), "no drain: {:?}", started.elapsed());
    eventually("no tool is left", || server.tool_processes().is_empty());
    drop(pending);
}

/// X15
#[test]
fn a_server_out_of_descriptors_recovers_when_they_come_back() {
    let mut server = world()
        .tool("t", sh("echo ok"))
        .through(&["sh", "-c", "ulimit -n 64; exec \"$@\"", "--"])
        .serve();
    let mut client = server.client();
    assert_eq!(client.call("t", json!({})).stdout(), "ok\n");
    let hoard: Vec<_> =
        (0..100).filter_map(|_| std::net::TcpStream::connect(server.address()).ok()).collect();
    // Every result is fine here; which one comes depends on what is left.
    match client.try_call("t", json!({})) {
        Ok(result) if result.is_error() => {
            assert!(result.sentence().contains("could not start"), "{}", result.sentence());
            assert!(
                result.sentence().to_lowercase().contains("too many open files"),
                "{}",
                result.sentence()
            );
        }
        Ok(result) => assert_eq!(result.stdout(), "ok\n"),
        Err(err) => assert!(!err.message.is_empty()),
    }
    assert!(server.is_alive());
    drop(hoard);
    eventually("it recovers", || server.client().call("t", json!({})).stdout() == "ok\n");
    server.assert_no_tool_is_left();
}

/// X15: a user of its own for the bomb, so that the limit counts no other processes.
#[test]
fn a_fork_bomb_is_ended_and_other_calls_report_why_they_could_not_start() {
    let Some(world) = world_of_its_own_user(60) else { return };
    let mut server = world
        .tool("bomb", "#!/bin/bash\nwhile :; do (sleep 100 & sleep 100) & done\n")
        .tool("t", sh("echo ok"))
        .config("timeout: 5\n")
        .serve();
    let mut client = server.client();
    assert_eq!(client.call("t", json!({})).stdout(), "ok\n");
    let pending = client.begin_call("bomb", json!({}));
    let mut other = server.client();
    eventually("a call is refused by the system", || {
        let result = other.call("t", json!({}));
        result.is_error() && result.text().contains("temporarily unavailable")
    });
    let result = client.finish_call(pending).unwrap();
    assert!(result.is_error(), "{}", result.json);
    server.assert_no_tool_is_left();
    assert!(server.is_alive());
    assert_eq!(server.client().call("t", json!({})).stdout(), "ok\n");
}

/// Returns a world whose server runs as a user that has no other processes; `None` unless we are root
/// and such a user can reach the binary.
fn world_of_its_own_user(processes: u32) -> Option<World> {
    use std::os::unix::fs::{PermissionsExt, chown};
    let user = 40_000 + std::process::id() % 20_000;
    let world = world();
    chown(world.dir(), Some(user), Some(user)).ok()?;
    std::fs::set_permissions(world.dir(), std::fs::Permissions::from_mode(0o755)).ok()?;
    let id = user.to_string();
    let probe = std::process::Command::new("setpriv")
        .args([
            "--reuid",
            &id,
            "--regid",
            &id,
            "--clear-groups",
            env!("CARGO_BIN_EXE_orla"),
            "--version",
        ])
        .current_dir(world.dir())
        .output();
    probe.ok().filter(|output| output.status.success())?;
    let limit = format!("--nproc={processes}");
    Some(world.through(&[
        "prlimit",
        &limit,
        "setpriv",
        "--reuid",
        &id,
        "--regid",
        &id,
        "--clear-groups",
    ]))
}
