//! Reloading: the snapshot that a request sees, and that nothing is lost (rows F2 to F4).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use orla_e2e::{Client, Request, Server, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{sh, world};

#[test]
fn a_session_calls_what_it_listed_until_it_lists_again_and_a_sessionless_request_sees_the_newest() {
    let server = world().tool("a", sh("echo a1")).serve();
    let mut old = server.session();
    assert_eq!(old.tool_names(), ["a"]);
    server.remove("tools/a");
    server.write("tools/b", sh("echo b"), 0o755);
    server.reload();
    assert_eq!(server.client().tool_names(), ["b"]);
    assert_eq!(server.session().tool_names(), ["b"]);
    assert_eq!(server.client().try_call("a", json!({})).unwrap_err().code, -32602);
    assert_eq!(old.try_call("b", json!({})).unwrap_err().code, -32602, "not listed to it yet");
    // The old session still knows it, though the file is another by now.
    server.write("tools/a", sh("echo a2"), 0o755);
    assert_eq!(old.call("a", json!({})).stdout(), "a2\n");
    assert_eq!(old.tool_names(), ["b"]);
    assert_eq!(old.try_call("a", json!({})).unwrap_err().code, -32602);
    assert_eq!(old.call("b", json!({})).stdout(), "b\n");
}

#[test]
fn a_session_that_never_lists_keeps_the_snapshot_it_began_on() {
    let server = world().tool("a", sh("echo a")).serve();
    let mut client = server.session();
    server.write("tools/b", sh("echo b"), 0o755);
    server.remove("tools/a");
    server.reload();
    assert_eq!(client.try_call("b", json!({})).unwrap_err().code, -32602);
    server.write("tools/a", sh("echo a again"), 0o755);
    assert_eq!(client.call("a", json!({})).stdout(), "a again\n");
}

#[test]
fn a_session_is_notified_that_the_tool_list_changed() {
    let server = world().tool("a", sh("echo a")).serve();
    let mut client = server.session();
    client.tool_names();
    let mut stream = client.notification_stream(server.address());
    server.write("tools/b", sh("echo b"), 0o755);
    server.reload();
    let event = stream.next_event().unwrap().expect("a notification");
    let message: Value = serde_json::from_str(&event).unwrap();
    assert_eq!(message["method"], "notifications/tools/list_changed");
    assert_eq!(client.tool_names(), ["a", "b"]);
}

#[test]
fn a_sessionless_client_listens_for_changes() {
    let server = world().tool("a", sh("echo a")).serve();
    let mut client = server.client();
    let mut stream =
        client.begin("subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    let acknowledged = stream.next_message().expect("the acknowledgement");
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged", "{acknowledged}");
    server.write("tools/b", sh("echo b"), 0o755);
    server.reload();
    let message = stream.next_message().expect("a notification");
    assert_eq!(message["method"], "notifications/tools/list_changed", "{message}");
}

#[test]
fn a_session_is_notified_that_the_prompts_changed() {
    let server = world().file("prompts/a.md", "A\n").serve();
    let mut client = server.session();
    client.request("prompts/list", json!({})).unwrap();
    let mut stream = client.notification_stream(server.address());
    server.write("prompts/b.md", "B\n", 0o644);
    server.reload();
    let found = (0..3).any(|_| {
        stream
            .next_event()
            .unwrap()
            .is_some_and(|event| event.contains("notifications/prompts/list_changed"))
    });
    assert!(found);
}

#[test]
fn a_call_that_waits_for_its_turn_is_refused_if_a_reload_denies_it() {
    let config = "tools: {one: {max_concurrency: 1}}\npolicy: [{allow: exec}]\n";
    let wait = sh("echo run >> ran; until [ -e gate ]; do sleep 0.01; done");
    let server = world().tool("one", wait).config(config).serve();
    let call = || {
        let mut client = server.client();
        move || client.try_call("one", json!({})).map_err(|error| error.message)
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(call());
        eventually("the first call runs", || server.path("ran").exists());
        let second = scope.spawn(call());
        eventually("the second call waits", || server.status()["waiting"] == 1);
        server.write("orla.yaml", config.replace("allow", "deny"), 0o644);
        server.reload();
        server.write("gate", "", 0o644);
        assert!(!first.join().unwrap().unwrap().is_error());
        let refused = second.join().unwrap();
        assert!(refused.is_err() || refused.unwrap().is_error());
    });
    assert_eq!(server.read("ran"), "run\n");
}

#[test]
fn settings_change_on_a_reload_and_the_address_does_not() {
    let server = world().tool("slow", sh("sleep 100")).config("timeout: 0.4\nlog_level: info\n").serve();
    assert_eq!(server.client().call("slow", json!({})).sentence(), "slow timed out after 0.4 s");
    server.write("orla.yaml", "timeout: 0.2\nhost: 127.0.0.2\nmax_output_bytes: 10\nport: 1\n", 0o644);
    server.reload();
    assert_eq!(server.client().call("slow", json!({})).sentence(), "slow timed out after 0.2 s");
    server.log_says(&["restart", "host"]);
}

#[test]
fn a_reload_logs_changes_that_need_a_restart() {
    let server = world().config("timeout: 5\n").serve();
    let changed = "history: {path: ./h}\nstate_dir: ./st\nstate: memory\n\
        telemetry: {otlp: 'http://127.0.0.1:9'}\na2a: {allow_private_push: true}\n";
    server.write("orla.yaml", changed, 0o644);
    server.reload();
    for key in ["history.path", "state_dir", "state", "telemetry.otlp", "a2a.allow_private_push"] {
        server.log_says(&["needs a restart", &format!("\"{key}\"")]);
    }
}

#[test]
fn flags_survive_a_reload() {
    let world = world()
        .config("timeout: 60\ntools_dir: nowhere\n")
        .arg("--tools-dir")
        .arg("own")
        .arg("--timeout")
        .arg("0.3");
    world.write("own/slow", sh("sleep 100"), 0o755);
    let server = world.serve();
    server.reload();
    assert_eq!(server.client().tool_names(), ["slow"]);
    assert_eq!(server.client().call("slow", json!({})).sentence(), "slow timed out after 0.3 s");
}

#[test]
fn new_tokens_and_patterns_take_effect_on_a_reload() {
    let server = world().tool("a", sh("echo a")).tool("b", sh("echo b")).serve();
    assert_eq!(server.client().tool_names(), ["a", "b"]);
    server.write("orla.yaml", "deny: [a]\n", 0o644);
    server.reload();
    assert_eq!(server.client().tool_names(), ["b"]);
    assert_eq!(server.client().try_call("a", json!({})).unwrap_err().code, -32602);
    server.write("orla.yaml", "auth_tokens: [t]\n", 0o644);
    server.signal(Signal::HUP);
    eventually("a token is asked for", || server.http().get("/status").status == 401);
}

/// F2
#[test]
fn a_broken_file_changes_nothing_and_the_next_good_one_does() {
    let server = world().tool("a", sh("echo a")).config("timeout: 20\n").serve();
    let generation = server.generation();
    for (broken, place) in [
        ("timeout: [\n", "orla.yaml:"),
        ("timeout: -1\n", "orla.yaml:1:10"),
        ("tool_dir: x\n", "orla.yaml:1:1"),
    ] {
        let before = server.logged("error").len();
        server.write("orla.yaml", broken, 0o644);
        server.write("tools/b", sh("echo b"), 0o755);
        server.signal(Signal::HUP);
        eventually("the mistake is logged", || server.logged("error").len() > before);
        let errors = server.logged("error");
        assert!(errors[before..].iter().any(|line| line.says(&[place])), "{errors:?}");
        assert_eq!(server.client().tool_names(), ["a"], "nothing has changed");
        assert_eq!(server.generation(), generation);
    }
    server.write("orla.yaml", "timeout: 20\n", 0o644);
    server.reload();
    assert_eq!(server.client().tool_names(), ["a", "b"]);
    // The file may also go away; then there are the defaults.
    server.remove("orla.yaml");
    server.reload();
    assert_eq!(server.client().tool_names(), ["a", "b"]);
}

/// F3
#[test]
fn a_hundred_hangups_under_load_fail_no_call() {
    let server = world().tool("t", sh("cat")).config("log_level: warn\n").serve_quietly();
    let (stop, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let (server, stop, calls) = (&server, &stop, &calls);
            scope.spawn(move || {
                let mut client = if worker % 2 == 0 { server.client() } else { server.session() };
                while !stop.load(Ordering::Relaxed) {
                    let text = format!("{worker} {}", calls.load(Ordering::Relaxed));
                    let result = client.call("t", json!({"stdin": text}));
                    assert_eq!(result.stdout(), text);
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let guard = StopOnDrop(&stop);
        for n in 0..100 {
            server.write("tools/extra", sh(&format!("echo {n}")), 0o755);
            server.signal(Signal::HUP);
            let before = calls.load(Ordering::Relaxed);
            eventually("calls go on", || calls.load(Ordering::Relaxed) > before);
        }
        drop(guard);
    });
    assert!(calls.load(Ordering::Relaxed) >= 100);
    server.reload();
    assert_eq!(server.client().tool_names(), ["extra", "t"]);
    assert_eq!(server.client().call("extra", json!({})).stdout(), "99\n");
    server.assert_no_tool_is_left();
}

/// F3
#[test]
fn hangups_in_a_burst_are_coalesced() {
    let server = world().tool("t", sh("echo ok")).serve();
    for _ in 0..100 {
        server.signal(Signal::HUP);
    }
    eventually("a reload happens", || server.generation() > 1 || server.log().contains("reload"));
    assert_eq!(server.client().call("t", json!({})).stdout(), "ok\n");
    server.reload();
    assert!(server.generation() < 110, "at most one reload for each signal");
}

/// F4
#[test]
fn a_tool_that_is_removed_while_it_runs_finishes() {
    let server = world()
        .tool("t", sh("touch started; while [ ! -e go ]; do sleep 0.02; done; echo finished"))
        .serve();
    for mut client in server.clients() {
        let pending = client.begin_call("t", json!({}));
        eventually("it runs", || server.path("started").exists());
        let script = server.read("tools/t");
        server.remove("tools/t");
        server.reload();
        assert_eq!(server.client().tool_names(), Vec::<String>::new());
        server.write("go", "", 0o644);
        assert_eq!(client.finish_call(pending).unwrap().stdout(), "finished\n");
        server.remove("go");
        server.remove("started");
        server.write("tools/t", script, 0o755);
        server.reload();
    }
}

/// RFC 1 §7.1: `kill -HUP $(pgrep orla)` reloads the server, and its tools still die with it afterwards.
#[test]
fn a_hangup_to_everything_called_orla_reloads_and_leaves_the_tools_protected() {
    let mut server = world()
        .tool("plain", sh("sleep 300"))
        .tool("stubborn", sh("trap '' TERM HUP; setsid sh -c 'trap \"\" TERM HUP; sleep 300; sleep 300' & sleep 300; sleep 300"))
        .serve();
    for signal in [Signal::HUP, Signal::HUP] {
        let before = server.generation();
        for process in called_orla(&server) {
            signal_process(process, signal);
        }
        eventually("the reload takes effect", || server.generation() > before);
    }
    // Terminals and process managers signal whole process groups. Processes other than the server ignore
    // the signal.
    for helper in server.children() {
        for signal in [Signal::HUP, Signal::INT, Signal::TERM] {
            signal_process(helper.id, signal);
        }
    }
    let mut clients: Vec<_> = (0..6).map(|_| server.client()).collect();
    let names = ["plain", "stubborn"];
    let pending: Vec<_> = clients
        .iter_mut()
        .enumerate()
        .map(|(n, client)| client.begin_call(names[n % 2], json!({})))
        .collect();
    eventually("all run", || server.tool_processes().len() >= 9);
    server.kill();
    eventually("nothing is left", || server.processes().is_empty());
    drop(pending);
}

/// What `pgrep orla` finds of this server's processes: the server, and nothing else.
fn called_orla(server: &Server) -> Vec<u32> {
    let mut own = server.processes();
    own.extend(server.children());
    let mut found: Vec<_> =
        own.iter().filter(|process| process.name().contains("orla")).map(|p| p.id).collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, [server.id()], "only the server is called orla");
    found
}

fn signal_process(id: u32, signal: Signal) {
    if let Some(id) = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(id, signal);
    }
}

#[test]
fn watching_reloads_when_tools_prompts_or_the_configuration_change() {
    let server = world().tool("a", sh("echo a")).config("timeout: 20\n").arg("--watch").serve();
    let names = |client: &mut Client| client.tool_names();
    assert_eq!(names(&mut server.client()), ["a"]);
    server.write("tools/b", sh("echo b"), 0o755);
    eventually("the new tool is served", || names(&mut server.client()) == ["a", "b"]);
    server.remove("tools/a");
    eventually("the removed tool is not", || names(&mut server.client()) == ["b"]);
    server.write("orla.yaml", "deny: [b]\n", 0o644);
    eventually("the configuration is read again", || names(&mut server.client()).is_empty());
    server.write("orla.yaml", "deny: [\n", 0o644);
    eventually("a broken one is logged", || !server.logged("error").is_empty());
    assert!(names(&mut server.client()).is_empty());
    server.write("orla.yaml", "timeout: 10\n", 0o644);
    eventually("and a good one works", || names(&mut server.client()) == ["b"]);
    std::fs::set_permissions(
        server.path("tools/b"),
        std::os::unix::fs::PermissionsExt::from_mode(0o644),
    )
    .unwrap();
    eventually("a mode is a change too", || names(&mut server.client()).is_empty());
}

#[test]
fn watching_reloads_when_the_manifest_of_a_package_changes_or_comes() {
    let manifest = |name: &str, description: &str| {
        format!("name: {name}\nversion: 1.0.0\nentrypoint: run.sh\ndescription: {description}\n")
    };
    let server = world()
        .tool("pusher/run.sh", sh("echo pushed"))
        .file("tools/pusher/tool.yaml", manifest("pusher", "Original."))
        .tool("later/run.sh", sh("echo later"))
        .tool("family/1.0.0/run.sh", sh("echo family"))
        .file("tools/family/1.0.0/tool.yaml", manifest("family", "First."))
        .arg("--watch")
        .serve();
    let describe = |name: &str| {
        let tools = server.client().tools();
        let tool = tools.iter().find(|tool| tool["name"] == name);
        tool.map(|tool| tool["description"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(describe("pusher").as_deref(), Some("Original."));
    server.write("tools/pusher/tool.yaml", manifest("pusher", "In place."), 0o644);
    eventually("a write is seen", || describe("pusher").as_deref() == Some("In place."));
    server.write("new.yaml", manifest("pusher", "Replaced."), 0o644);
    std::fs::rename(server.path("new.yaml"), server.path("tools/pusher/tool.yaml")).unwrap();
    eventually("a rename is seen", || describe("pusher").as_deref() == Some("Replaced."));
    server.write("tools/later/tool.yaml", manifest("later", "Came later."), 0o644);
    eventually("a manifest that comes is seen", || describe("later").as_deref() == Some("Came later."));
    server.write("tools/family/2.0.0/run.sh", sh("echo family 2"), 0o755);
    server.write(
        "tools/family/2.0.0/tool.yaml",
        manifest("family", "Second.").replace("1.0", "2.0"),
        0o644,
    );
    eventually("a new version is seen", || describe("family").as_deref() == Some("Second."));
    server.write("tools/pusher/tool.yaml", "name: [broken\n", 0o644);
    eventually("a broken one is seen, too", || describe("pusher").is_none());
    server.log_says(&["tools/pusher/tool.yaml:"]);
    server.write("tools/pusher/tool.yaml", manifest("pusher", "Mended."), 0o644);
    eventually("and mended", || describe("pusher").as_deref() == Some("Mended."));
}

#[test]
fn a_tools_directory_that_appears_later_is_found_by_a_reload() {
    let server = world().serve();
    assert_eq!(server.client().tool_names(), Vec::<String>::new());
    server.write("tools/a", sh("echo a"), 0o755);
    server.reload();
    assert_eq!(server.client().tool_names(), ["a"]);
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_program_that_runs_keeps_its_snapshot() {
    let server = world()
        .tool("nap", sh("echo > napping; until test -e rested; do sleep 0.01; done"))
        .tool("work", sh("echo done"))
        .config("log_level: info\n")
        .serve();
    let program = json!({"program": "(do (call :nap {}) (:stdout (call :work {})))"}).to_string();
    let run = || {
        let request = Request::new("POST", "/rtfs").header("content-type", "application/json");
        server.http().send(&request.body(program.as_str())).expect("an answer").json()
    };
    std::thread::scope(|scope| {
        let running = scope.spawn(run);
        eventually("it naps", || server.path("napping").exists());
        server.write("orla.yaml", "log_level: info\ndeny: [work]\n", 0o644);
        server.signal(Signal::HUP);
        eventually("it is denied", || !server.client().tool_names().contains(&"work".to_owned()));
        server.write("rested", "", 0o644);
        assert_eq!(running.join().expect("it ends")["value"], "done\n");
    });
    let anew = run();
    assert_eq!(anew["error"]["kind"], "unknown-capability", "{anew}");
}
