//! Tasks that start at set times.

use std::process::Command;

use orla_e2e::{Server, World, eventually};
use serde_json::Value;

use crate::{sh, world};

/// A schedule that fires every hour.
const HOURLY: &str = "tasks:\n  - {name: tick, capability: hello, schedule: \"0 * * * *\", catch_up: 3, overlap: allow}\n";

/// The names of the schedules, as `/status` has them.
fn names(server: &Server) -> Vec<String> {
    let status = server.status();
    let all = status["schedules"].as_array().cloned().unwrap_or_default();
    all.iter().map(|schedule| schedule["name"].as_str().unwrap_or_default().to_owned()).collect()
}

/// How many tasks a schedule has started.
fn started(server: &Server, schedule: &str) -> usize {
    let tasks = server.http().get("/tasks?limit=1000").json();
    let of = |task: &&Value| task["schedule"] == schedule;
    tasks.as_array().expect("an array").iter().filter(of).count()
}

/// Lets the schedules have fired last some hours earlier than they did, while no server runs.
fn set_back(world: &World, hours: u64) {
    let script = "import json, sqlite3, sys\n\
        state = sqlite3.connect(sys.argv[1])\n\
        rows = state.execute(\"SELECT key, value FROM records WHERE key LIKE 'schedule/%'\").fetchall()\n\
        assert rows\n\
        for key, value in rows:\n    \
            record = json.loads(value)\n    \
            record['last'] -= int(sys.argv[2]) * 3600_000\n    \
            state.execute('UPDATE records SET value = ? WHERE key = ?', (json.dumps(record).encode(), key))\n\
        state.commit()";
    let file = world.path(".orla/state.db");
    let done = Command::new("python3").args(["-c", script]).arg(file).arg(hours.to_string()).status();
    assert!(done.expect("python3 runs").success());
}

#[test]
fn instants_that_were_missed_are_made_up_for_once_as_far_as_the_schedule_says() {
    let mut server = world().tool("hello", sh("echo hello")).config(HOURLY).serve();
    eventually("the schedule is known", || {
        server.path(".orla/state.db").exists() && names(&server) == ["tick"]
    });
    assert_eq!(started(&server, "tick"), 0, "nothing was missed");
    server.terminate();
    set_back(&server, 10);
    server.start_again();
    eventually("the newest three are made up for", || started(&server, "tick") >= 3);
    server.kill();
    server.start_again();
    eventually("it is there again", || names(&server) == ["tick"]);
    // Four, if an hour has passed meanwhile.
    assert!(started(&server, "tick") <= 4, "no instant starts two tasks");
}

#[test]
fn a_reload_changes_the_schedules_and_a_wrong_one_changes_nothing() {
    let server = world().tool("hello", sh("echo hello")).config(HOURLY).serve();
    assert_eq!(names(&server), ["tick"]);
    let more = format!("{HOURLY}  - {{name: tock, program: \"(+ 1 2)\", schedule: \"30 4 * * 1\"}}\n");
    server.write("orla.yaml", &more, 0o644);
    server.reload();
    eventually("both are there", || names(&server) == ["tick", "tock"]);
    server.write("orla.yaml", more.replace("30 4 * * 1", "30 25 * * 1"), 0o644);
    server.signal(rustix::process::Signal::HUP);
    server.log_says(&["orla.yaml:3:", "schedule"]);
    assert_eq!(names(&server), ["tick", "tock"]);
    server.write("orla.yaml", "{}\n", 0o644);
    server.reload();
    eventually("all schedules are gone", || names(&server).is_empty());
}
