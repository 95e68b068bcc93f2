//! Tasks that start at set times.

use std::process::Command;

use orla_e2e::{Server, World, eventually};
use serde_json::Value;

use crate::{sh, world};

/// Tokens of a caller, of a caller that may see the tasks of others, and of one that may change them
/// too.
const CALLERS: &str = "auth_tokens: {ada: token-of-ada, ops: token-of-ops, boss: token-of-boss}\n\
    policy:\n  - {to: [ada], capabilities: [hello], allow: ['*']}\n  - {to: [ops], allow: ['tasks:read']}\n\
    \x20 - {to: [boss], allow: ['tasks:read', 'tasks:manage']}\n";

/// A schedule that fires every hour.
const HOURLY: &str = "tasks:\n  - {name: tick, capability: hello, schedule: \"0 * * * *\", catch_up: 3, overlap: allow}\n";

/// Returns the names of the schedules, as `/status` has them.
fn names(server: &Server) -> Vec<String> {
    let status = server.status();
    let all = status["schedules"].as_array().cloned().unwrap_or_default();
    all.iter().map(|schedule| schedule["name"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Returns how many tasks a schedule has started.
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
fn missed_runs_are_caught_up_once_as_configured() {
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
fn the_tasks_of_a_schedule_are_seen_and_cancelled_by_whom_the_policy_permits() {
    let tasks = "tasks: [{name: nightly, program: \"(await-event \\\"go\\\")\", schedule: \"* * * * *\", catch_up: 1}]\n";
    let mut server =
        world().tool("hello", sh("echo hello")).config(&format!("{CALLERS}{tasks}")).serve();
    eventually("the schedule is known", || {
        let status = server.get_as("/status", "token-of-ops").json();
        server.path(".orla/state.db").exists() && status["schedules"][0]["name"] == "nightly"
    });
    server.terminate();
    set_back(&server, 1);
    server.start_again();
    let list =
        |token: &str| server.get_as("/tasks", token).json().as_array().cloned().expect("an array");
    let nightly = eventually("its task is there", || {
        list("token-of-ops").into_iter().find(|task| task["schedule"] == "nightly")
    });
    assert_eq!(nightly["principal"], "nightly");
    let path = format!("/tasks/{}", nightly["id"].as_str().expect("an id"));
    assert_eq!(server.get_as(&path, "token-of-ops").status, 200);
    assert_eq!((list("token-of-ada").len(), server.get_as(&path, "token-of-ada").status), (0, 404));
    let page = |token: &str| server.get_as("/console/tasks", token).text();
    assert!(!page("token-of-ada").contains("nightly"));
    let change = |method: &str, path: &str, token: &str| server.send_as(method, path, token, "1");
    let event = format!("{path}/events/other");
    for (method, path) in [("DELETE", &path), ("POST", &event)] {
        assert_eq!(change(method, path, "token-of-ada").status, 404);
        let refused = change(method, path, "token-of-ops");
        assert_eq!((refused.status, &refused.json()["error"]["kind"]), (403, &Value::from("denied")));
        assert!(refused.text().contains("tasks:manage"), "{}", refused.text());
    }
    server.log_says(&["request refused", "ops", "tasks:manage"]);
    let counted = r#"orla_forbidden_requests_total{by="policy"} 2"#;
    assert!(server.get_as("/metrics", "token-of-boss").text().contains(counted));
    assert_eq!(change("POST", &event, "token-of-boss").status, 202);
    let cancelled = change("DELETE", &path, "token-of-boss");
    assert_eq!((cancelled.status, &cancelled.json()["state"]), (200, &Value::from("cancelled")));
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
fn check_finds_impossible_schedules_with_their_places() {
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
