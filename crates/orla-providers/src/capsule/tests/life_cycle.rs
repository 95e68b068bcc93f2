//! The life of a process: its starts, failures, restarts and its end.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_capsule_keeps_its_state_and_runs_where_and_how_its_manifest_says() {
    let world = World::new(&Bare::default().code(), r#""language": "python""#);
    assert_eq!(world.status().state.as_deref(), Some("CREATED"));
    let first = world.text("{}").await;
    let cwd = world.path("tools/cap");
    assert_eq!(first, format!("n=1 v=0 cwd={} env=debug args=['--fast'] name=cap", cwd.display()));
    assert!(world.text("{\n}").await.starts_with("n=2 "));
    let status = world.status();
    assert_eq!((status.state.as_deref(), status.restarts), (Some("READY"), Some(0)));
    assert!(status.pid.is_some_and(is_alive) && status.uptime_ms.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_never_says_hello_is_stopped_and_callers_are_told_why() {
    let world = World::new("#!/bin/sh\nexec sleep 100\n", r#""startup_timeout_ms": 50"#);
    let error = world.error("{}").await;
    assert_eq!(
        error,
        "cap is unavailable: it was stopped after 5 failures in a row, the last of which was: it did not say orla.hello within 0.05 s \
         (startup_timeout_ms of its manifest; an MCP server that does not say orla.hello belongs in mcpServers); \
         it starts again when its files change, or after a reload (SIGHUP)"
    );
    assert_eq!(world.status().state.as_deref(), Some("STOPPED"));
    assert_eq!(world.error("{}").await, error);
    // Loading the configuration anew lets it try again.
    world.write_manifest("");
    world.write_code(&Bare::default().code());
    world.load();
    assert!(world.text("{}").await.starts_with("n=1 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_waits_in_vain_learns_what_is_wrong() {
    let world = World::new("#!/bin/sh\nexec sleep 100\n", r#""startup_timeout_ms": 60000"#);
    let mut call = call("cap", "{}");
    call.timeout = Some(Duration::from_millis(100));
    let error = world.call_with(call).await.unwrap_err().to_string();
    assert_eq!(error, "cap is unavailable: it was not ready within 0.1 s: it has not said orla.hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_a_call_is_answered_at_once_and_the_next_call_meets_a_new_process() {
    let world = World::new(&Bare { call: "if n == 2: os._exit(7)", ..Bare::default() }.code(), "");
    world.text("{}").await;
    let error = world.error("{}").await;
    assert_eq!(error, "cap is unavailable: it ended during the call: it exited with code 7");
    assert!(world.text("{}").await.starts_with("n=1 "));
    let status = world.status();
    assert_eq!(
        (status.restarts, status.last_failure.as_deref()),
        (Some(1), Some("it exited with code 7"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_crashes_at_its_start_is_retried_and_then_stopped() {
    let code = "#!/bin/sh\necho no database >&2\nexit 3\n";
    let world = World::with_policy(code, "", Policy { max_failures: 3, ..quick() });
    let error = world.error("{}").await;
    assert!(
        error.contains(
            "it exited with code 3 before it said orla.hello; it last wrote to standard error: no database"
        ),
        "{error}"
    );
    assert!(error.contains("after 3 failures in a row"), "{error}");
    assert_eq!(world.status().restarts, Some(2));
    let world = World::with_policy(code, "", Policy { max_failures: 1, ..quick() });
    let error = world.error("{}").await;
    assert!(error.contains("it was stopped after its first failure: it exited with code 3"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_nobody_asked_for_is_a_failure_also_with_code_0() {
    let world = World::new(
        &Bare { call: "if n == 1: answer(m['id'], 'last'); os._exit(0)", ..Bare::default() }.code(),
        "",
    );
    assert_eq!(world.text("{}").await, "last");
    eventually("a restart", || world.status().restarts == Some(1)).await;
    assert_eq!(world.status().last_failure.as_deref(), Some("it exited with code 0"));
}

const WATCHED: &str =
    r#""hot_load": {"watch": ["./main.py", "orla-tool.json"], "mode": "restart", "debounce_ms": 20}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_waits_for_the_call_in_flight_and_new_calls_meet_the_new_code() {
    let world = Arc::new(World::new(&Bare { version: 1, ..Bare::default() }.code(), WATCHED));
    world.text("{}").await;
    let long = {
        let world = Arc::clone(&world);
        TaskTracker::new().spawn(async move { world.text(r#"{"sleep": 0.5}"#).await })
    };
    sleep(Duration::from_millis(100)).await;
    world.write_code(&Bare { version: 2, ..Bare::default() }.code());
    world.until_state("RELOADING").await;
    assert!(world.text("{}").await.starts_with("n=1 v=2 "));
    assert_eq!(long.await.unwrap(), "slept v=1");
    assert_eq!((world.starts(), world.status().last_failure), (2, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_not_over_when_the_drain_is_ends_with_the_reason() {
    let policy = Policy { drain: Duration::from_millis(50), ..quick() };
    let world = Arc::new(World::with_policy(&Bare::default().code(), WATCHED, policy));
    world.text("{}").await;
    let long = {
        let world = Arc::clone(&world);
        TaskTracker::new().spawn(async move { world.error(r#"{"sleep": 60}"#).await })
    };
    eventually("the call is sent", || world.records().len() == 1).await;
    sleep(Duration::from_millis(100)).await;
    world.write_code(&Bare { version: 2, ..Bare::default() }.code());
    let error = long.await.unwrap();
    assert!(error.contains("it was reloaded, and its calls in flight were not over in time"), "{error}");
    assert!(world.text("{}").await.contains("v=2"));
    world.starts();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_changes_at_once_are_one_restart() {
    let world = World::new(&Bare::default().code(), WATCHED);
    world.text("{}").await;
    for version in 1..200 {
        world.write_code(&Bare { version, ..Bare::default() }.code());
    }
    let deadline = Instant::now() + PATIENCE;
    while !world.text("{}").await.contains("v=199") {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(5)).await;
    }
    assert!(world.starts() <= 4, "{}", world.starts());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_keeps_an_unchanged_capsule_and_restarts_a_changed_one() {
    let world = World::new(&Bare::default().code(), "");
    world.text("{}").await;
    let pid = world.status().pid;
    for _ in 0..20 {
        world.load();
    }
    assert!(world.text("{}").await.starts_with("n=2 "));
    assert_eq!(world.status().pid, pid);
    world.write_manifest(r#""language": "python", "startup_timeout_ms": 4000"#);
    world.load();
    eventually("another process", || {
        let status = world.status();
        status.pid.is_some() && status.pid != pid && status.state.as_deref() == Some("READY")
    })
    .await;
    assert!(world.text("{}").await.starts_with("n=1 "));
    assert_eq!(world.starts(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_manifest_takes_effect_with_the_restart_and_a_broken_one_does_not() {
    let world = World::new(&Bare::default().code(), WATCHED);
    world.text("{}").await;
    world.write_manifest(&format!(r#"{WATCHED}, "description": "New.""#));
    eventually("the restart", || world.status().restarts == Some(1)).await;
    let package = world.capsules.supervisor().current()[0].service();
    assert_eq!(package.manifest.description.as_deref(), Some("New."));
    world.text("{}").await;
    fs::write(world.path("tools/cap/orla-tool.json"), "{").unwrap();
    eventually("another restart", || world.status().restarts == Some(2)).await;
    assert!(world.text("{}").await.contains("args=['--fast']"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entrypoint_that_vanishes_stops_it_and_its_return_revives_it() {
    let world = World::new(&Bare::default().code(), WATCHED);
    world.text("{}").await;
    fs::remove_file(world.path("tools/cap/main.py")).unwrap();
    world.until_state("STOPPED").await;
    let error = world.error("{}").await;
    assert!(error.contains("it could not start: its file is gone; it starts again"), "{error}");
    world.write_code(&Bare { version: 2, ..Bare::default() }.code());
    world.until_state("READY").await;
    assert!(world.text("{}").await.contains("v=2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_writes_below_what_it_watches_is_slowed_down() {
    let code = Bare { pre: "open('touched', 'w').write(str(time.time()))", ..Bare::default() }.code();
    let policy =
        Policy { backoff_min: Duration::from_secs(60), backoff_max: Duration::from_secs(60), ..quick() };
    let world = World::with_policy(&code, r#""hot_load": {"watch": ["./"], "debounce_ms": 10}"#, policy);
    world.text("{}").await;
    eventually("some reloads", || world.status().restarts >= Some(5)).await;
    sleep(Duration::from_millis(500)).await;
    assert_eq!(world.status().restarts, Some(5));
    world.text("{}").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_leaves_nothing_not_even_what_ignores_every_request_to_end() {
    let code = Bare {
        post: "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.system('sleep 1000 &')",
        ..Bare::default()
    };
    let code = code.code().replace("\nbye()", "\ntime.sleep(1000)");
    let world = World::new(&code, "");
    world.text("{}").await;
    let pid = world.status().pid.unwrap();
    let group = || {
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
            .any(|stat| {
                let rest = stat.rsplit(") ").next().unwrap_or_default();
                let fields: Vec<&str> = rest.split(' ').collect();
                fields.get(2) == Some(&pid.to_string().as_str()) && fields[0] != "Z"
            })
    };
    assert!(group());
    world.capsules.shutdown().await;
    assert!(!is_alive(pid));
    eventually("the group is gone", || !group()).await;
    assert_eq!(world.status().state.as_deref(), Some("STOPPED"));
    assert!(world.error("{}").await.contains("it was stopped"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_starts_after_a_shutdown() {
    let world = World::new(&Bare::default().code(), "");
    world.capsules.shutdown().await;
    assert!(world.error("{}").await.contains("it was stopped"));
    assert_eq!(world.records(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capsule_that_nobody_can_call_any_more_ends() {
    let world = World::new(&Bare::default().code(), "");
    world.text("{}").await;
    let pid = world.status().pid.unwrap();
    let old = world.market.snapshot();
    world.capsules.supervisor().load([], world.policy);
    world.serve();
    // Someone who listed it before may still call it.
    let mut call = call("cap", "{}");
    call.scope.catalog = Some(Arc::clone(&old));
    assert!(world.call_with(call).await.is_ok());
    assert!(is_alive(pid));
    drop(old);
    eventually("its end", || !is_alive(pid)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_goes_and_comes_back_waits_for_the_end_of_its_predecessor() {
    let slow = Bare { post: "signal.signal(signal.SIGTERM, signal.SIG_IGN)", ..Bare::default() };
    let slow = slow.code().replace("\nbye()", "\ntime.sleep(0.15); bye()");
    let world = World::new(&slow, "");
    world.text("{}").await;
    world.capsules.supervisor().load([], world.policy);
    world.serve();
    eventually("nobody can call it", || world.market.get("cap").is_none()).await;
    world.load();
    assert!(world.text("{}").await.starts_with("n=1 "));
    assert_eq!(world.starts(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_survive_a_file_that_is_saved_again_and_again() {
    let world = Arc::new(World::new(&Bare::default().code(), WATCHED));
    world.text("{}").await;
    let tasks = TaskTracker::new();
    let enough = CancellationToken::new();
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (world, enough) = (Arc::clone(&world), enough.clone());
            tasks.spawn(async move {
                let mut calls = 0;
                while !enough.is_cancelled() {
                    world.text("{}").await;
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let mut version = 0;
    let deadline = Instant::now() + PATIENCE;
    while world.status().restarts < Some(4) {
        assert!(Instant::now() < deadline, "it is not restarted");
        version += 1;
        world.write_code(&Bare { version, ..Bare::default() }.code());
        sleep(Duration::from_millis(150)).await;
    }
    enough.cancel();
    for caller in callers {
        assert!(caller.await.unwrap() > 0);
    }
    // Never two at once.
    assert!(world.starts() > 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_is_answered_although_the_process_is_killed_again_and_again() {
    let policy = Policy { max_failures: u32::MAX, backoff_max: Duration::from_millis(20), ..quick() };
    let world = Arc::new(World::with_policy(&Bare::default().code(), "", policy));
    world.text("{}").await;
    let tasks = TaskTracker::new();
    let enough = CancellationToken::new();
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (world, enough) = (Arc::clone(&world), enough.clone());
            tasks.spawn(async move {
                let (mut good, mut lost) = (0, 0);
                while !enough.is_cancelled() {
                    match world.call("{}").await {
                        Ok(_) => good += 1,
                        Err(error) => {
                            let text = error.to_string();
                            assert_eq!(
                                text,
                                "cap is unavailable: it ended during the call: it was killed by SIGKILL"
                            );
                            lost += 1;
                        }
                    }
                }
                (good, lost)
            })
        })
        .collect();
    let deadline = Instant::now() + PATIENCE;
    while world.status().restarts < Some(5) {
        assert!(Instant::now() < deadline, "it is not restarted");
        sleep(Duration::from_millis(200)).await;
        if let Some(pid) = world.status().pid.and_then(|pid| rustix::process::Pid::from_raw(pid as i32))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    enough.cancel();
    let mut all = (0, 0);
    for caller in callers {
        let (good, lost) = caller.await.unwrap();
        all = (all.0 + good, all.1 + lost);
    }
    assert!(all.0 > 0, "{all:?}");
}
