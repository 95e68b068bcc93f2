//! The life of a process: its starts, failures, restarts and its end.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_waits_in_vain_learns_what_is_wrong() {
    let world = World::new("#!/bin/sh\nexec sleep 100\n", r#""startup_timeout_ms": 60000"#);
    let first = world.call("{}");
    let second = async {
        eventually("a start", || world.status().state.as_deref() == Some("STARTING")).await;
        let mut call = call("cap", "{}");
        call.timeout = Some(Duration::from_millis(100));
        world.call_with(call).await.unwrap_err().to_string()
    };
    let error = tokio::select! {
        outcome = first => panic!("the first call ended: {outcome:?}"),
        error = second => error,
    };
    assert_eq!(error, "cap is unavailable: it was not ready within 0.1 s: it has not said orla.hello");
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
async fn nothing_starts_after_a_shutdown() {
    let world = World::new(&Bare::default().code(), "");
    world.capsules.shutdown().await;
    assert!(world.error("{}").await.contains("it was stopped"));
    assert_eq!(world.records(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capsule_that_is_added_again_waits_for_the_end_of_its_predecessor() {
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
    let deadline = Instant::now() + TEST_TIMEOUT;
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
