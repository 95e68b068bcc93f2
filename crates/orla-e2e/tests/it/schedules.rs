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

#[test]
fn what_a_schedule_or_a_program_can_never_do_is_found_by_check_with_its_place() {
    let price = "# /// orla\n# input_schema: {bytes: integer}\n# ///\necho 1";
    let tasks = "tasks:\n\
        \x20 - {name: fine, capability: price, input: {bytes: 3}, schedule: \"* * * * *\"}\n\
        \x20 - {name: nocap, capability: prise, schedule: \"* * * * *\"}\n\
        \x20 - {name: noinput, capability: price, schedule: \"* * * * *\"}\n\
        \x20 - {name: cut, program: \"(call :price\", schedule: \"* * * * *\"}\n\
        \x20 - {name: calls, program: \"(call :prise {})\", schedule: \"* * * * *\"}\n\
        \x20 - {name: later, capability: far__tool, schedule: \"* * * * *\"}\n\
        mcpServers: {far: {command: sh}}\n";
    let world = world()
        .tool("price", sh(price))
        .file("tools/bad.rtfs", "(defn main [input]\n  (call :prise input))\n")
        .file("tools/good.rtfs", "(defn main []\n  (call :price {:bytes 3}))\n")
        .config(tasks);
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let says = |words: &[&str]| {
        let is_line = |line: &str| words.iter().all(|word| line.contains(word));
        assert!(checked.stderr.lines().any(is_line), "{words:?}: {checked:?}");
    };
    says(&["tasks[1].capability: there is no capability prise; did you mean price?", "orla.yaml:3:31"]);
    says(&["tasks[2].input: price: invalid input", "bytes", "orla.yaml:4:33"]);
    says(&["tasks[3].program: 1:", "orla.yaml:5:26"]);
    says(&["tasks[4].program: 1:7: there is no capability `prise`", "orla.yaml:6:28"]);
    says(&["tools/bad.rtfs:2:9: there is no capability `prise`"]);
    for fine in ["tasks[0]", "tasks[5]", "good.rtfs"] {
        assert!(!checked.stderr.contains(fine), "{fine}: {checked:?}");
    }
}

#[test]
fn the_state_of_a_server_shows_its_schedules() {
    let server = world().tool("hello", sh("echo hello")).config(HOURLY).serve();
    let url = format!("http://{}", server.address());
    let shown = server.run(&["status", "--url", &url]).stdout;
    let row = shown.lines().find(|line| line.starts_with("tick")).unwrap_or_else(|| panic!("{shown}"));
    assert!(row.contains("0 * * * *") && row.contains("UTC") && row.contains(":00:00"), "{shown}");
}
