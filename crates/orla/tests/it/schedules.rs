//! Tasks that start at set times.

use std::process::Command;
use std::time::SystemTime;

use jiff::Timestamp;
use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use orla_e2e::{Request, Server, World, eventually};
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

/// Returns the tasks that a schedule has started, the newest first.
fn tasks_of(server: &Server, schedule: &str) -> Vec<Value> {
    let Value::Array(tasks) = server.http().get("/tasks?limit=1000").json() else { panic!("an array") };
    tasks.into_iter().filter(|task| task["schedule"] == schedule).collect()
}

fn started(server: &Server, schedule: &str) -> usize {
    tasks_of(server, schedule).len()
}

/// Stops a server once its schedules are known, moves their last firing back by some hours, and starts it
/// again.
fn set_back_and_start(server: &mut Server, hours: i64) {
    eventually("the schedules are known", || {
        server.path(".orla/state.db").exists() && !names(server).is_empty()
    });
    server.terminate();
    set_back(server, hours);
    server.start_again();
}

/// Moves the last firing of the schedules back by some hours, while no server runs.
fn set_back(world: &World, hours: i64) {
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
fn missed_runs_wait_for_each_other_unless_they_may_overlap() {
    let entry = |name: &str, overlap: &str| {
        format!(
            "  - {{name: {name}, program: '(await-event \"go\")', schedule: '0 * * * *', catch_up: 3, overlap: {overlap}}}\n"
        )
    };
    let tasks = [entry("skipping", "skip"), entry("queueing", "queue"), entry("allowing", "allow")];
    let mut server = world().config(&format!("tasks:\n{}", tasks.concat())).serve();
    set_back_and_start(&mut server, 10);
    eventually("all that may overlap run", || started(&server, "allowing") >= 3);
    for name in ["skipping", "queueing"] {
        let first = tasks_of(&server, name);
        assert_eq!(first.len(), 1, "{first:?}");
        let id = first[0]["id"].as_str().expect("an id");
        let event = Request::new("POST", &format!("/tasks/{id}/events/go"));
        let event = event.header("content-type", "application/json").body("1");
        assert_eq!(server.http().send(&event).expect("an answer").status, 202);
        eventually("the next one runs", || started(&server, name) == 2);
    }
}

#[test]
fn an_instant_is_made_up_for_across_a_change_of_the_clocks() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    let now = Timestamp::from_second(now.cast_signed()).expect("a time").to_zoned(TimeZone::UTC).date();
    // The last Sunday of a month, when Berlin changes its clocks, of this year or the last one.
    let last = |month: i8| {
        let of = |year: i16| {
            let first = Date::new(year, month, 1).expect("a date");
            first.nth_weekday_of_month(-1, Weekday::Sunday).expect("a Sunday")
        };
        let this = of(now.year());
        if this <= now { this } else { of(now.year() - 1) }
    };
    let (gap, fold) = (last(3), last(10));
    if [gap, fold].contains(&now) {
        // Whether today's instant has passed depends on the hour.
        return;
    }
    let entry = |name: &str, date: Date| {
        let schedule = format!("30 2 {} {} *", date.day(), date.month());
        format!("  - {{name: {name}, program: '1', schedule: '{schedule}', time_zone: Europe/Berlin}}\n")
    };
    let tasks = format!("tasks:\n{}{}", entry("gap", gap), entry("fold", fold));
    let mut server = world().config(&tasks).serve();
    set_back_and_start(&mut server, 400 * 24);
    // 02:30 does not exist on the first date, and exists twice on the second one.
    for (name, date, time) in [("gap", gap, "01:00"), ("fold", fold, "00:30")] {
        let tasks = eventually("its task is there", || {
            Some(tasks_of(&server, name)).filter(|tasks| !tasks.is_empty())
        });
        let keys: Vec<&Value> = tasks.iter().map(|task| &task["key"]).collect();
        assert_eq!(keys, [&format!("schedule/{name}/{date}T{time}:00.000Z")]);
    }
}

#[test]
fn a_record_from_a_wrong_clock_does_not_stop_a_schedule() {
    let mut server = world().tool("hello", sh("echo hello")).config(HOURLY).serve();
    // It has fired two days from now.
    set_back_and_start(&mut server, -48);
    set_back_and_start(&mut server, 10);
    eventually("the newest three are made up for", || started(&server, "tick") >= 3);
}

#[test]
fn variables_and_secrets_are_filled_into_the_input_of_a_schedule() {
    let tool = "# /// orla\n# input_schema: {text: string, key: string}\n# ///\necho \"$*\" | tee got";
    let tasks = "tasks:\n  - {name: tell, capability: tell, input: {text: 'to ${PLACE}', key: '${file:key}'}, schedule: '0 * * * *'}\n";
    let mut server = world()
        .tool("tell", sh(tool))
        .file("key", "s3cr3t-0f-the-f1le")
        .config(tasks)
        .env("PLACE", "Oslo")
        .serve();
    set_back_and_start(&mut server, 10);
    let task = eventually("its task ends", || {
        tasks_of(&server, "tell").into_iter().find(|task| task["state"] == "completed")
    });
    let id = task["id"].as_str().expect("an id");
    let shown = server.http().get(&format!("/tasks/{id}")).text();
    assert!(shown.contains("to Oslo") && shown.contains("[redacted]"), "{shown}");
    let got = server.read("got");
    assert!(got.contains("to Oslo") && got.contains("s3cr3t-0f-the-f1le"), "{got}");
    assert!(!shown.contains("s3cr3t"), "{shown}");
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
