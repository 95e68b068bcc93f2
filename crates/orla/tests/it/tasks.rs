//! Tasks: calls that outlive their callers.

use orla_e2e::{Request, Response, Server, World, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{sh, world};

const ADA: &str = "adas-token-for-tests";
const BOB: &str = "bobs-token-for-tests";

/// Returns a tool that notes that it was called in the file `NAME.ran`, and ends when the file `go` is
/// there.
fn waits(name: &str, is_idempotent: bool) -> String {
    sh(&format!(
        "# /// orla\n# description: Waits.\n# input_schema: {{n: integer}}\n# annotations: {{idempotentHint: {is_idempotent}}}\n# ///\n\
         echo \"$2\" >> {name}.ran\nwhile [ ! -e go ]; do sleep 0.02; done\necho done"
    ))
}

fn runs(world: &World, name: &str) -> usize {
    let file = format!("{name}.ran");
    if world.path(&file).exists() { world.read(&file).lines().count() } else { 0 }
}

fn ask(server: &Server, method: &str, path: &str, body: &Value) -> Response {
    let request = Request::new(method, path).header("content-type", "application/json");
    server.http().send(&request.body(body.to_string())).expect("an answer")
}

/// Starts a task and returns its id.
fn start(server: &Server, body: &Value) -> String {
    let answer = ask(server, "POST", "/tasks", body);
    assert_eq!(answer.status, 202, "{}", answer.text());
    answer.json()["id"].as_str().expect("an id").to_owned()
}

fn show(server: &Server, id: &str) -> Value {
    server.http().get(&format!("/tasks/{id}?wait=1")).json()
}

/// Returns the task once it is in this state.
fn reaches(server: &Server, id: &str, state: &str) -> Value {
    eventually(&format!("the task is {state}"), || {
        let task = server.http().get(&format!("/tasks/{id}")).json();
        (task["state"] == state).then_some(task)
    })
}

#[test]
fn a_task_is_accepted_at_once_and_has_its_result_at_its_end() {
    let server = world().tool("hello", sh("echo hello")).tool("bad", sh("exit 3")).serve();
    assert!(!server.path(".orla").exists(), "nothing is made before the first task");
    let hello = start(&server, &json!({"capability": "hello", "input": {}}));
    let bad = start(&server, &json!({"capability": "bad"}));
    let program = start(&server, &json!({"program": "(* input 6)", "input": 7}));
    let hello = reaches(&server, &hello, "completed");
    assert_eq!(hello["result"], json!({"stdout": "hello\n", "stderr": "", "exit_code": 0}));
    let bad = reaches(&server, &bad, "failed");
    assert_eq!(bad["error"], json!({"kind": "failed", "message": "bad exited with code 3"}));
    let program = reaches(&server, &program, "completed");
    assert_eq!((&program["program"], &program["capability"]), (&json!(true), &Value::Null));
    assert!(program["result"].to_string().contains("42"), "{program}");
    let listed = server.http().get("/tasks").json();
    let ids: Vec<&Value> = listed.as_array().unwrap().iter().map(|task| &task["id"]).collect();
    assert_eq!(ids, [&program["id"], &bad["id"], &hello["id"]], "the newest first");
    let before = format!("/tasks?limit=1&before={}", bad["id"].as_str().unwrap());
    assert_eq!(server.http().get(&before).json()[0]["id"], hello["id"]);
    assert_eq!(server.http().get("/tasks?state=failed").json().as_array().unwrap().len(), 1);
    assert_eq!(server.status()["tasks"]["completed"], 2);
}

#[test]
fn a_key_holds_for_both_names_of_a_capability() {
    let server = world().config("builtins: true\n").serve();
    let task = |name: &str| json!({"capability": name, "input": {"a": 1, "b": 2}, "key": "k"});
    let id = start(&server, &task("math.add"));
    let again = ask(&server, "POST", "/tasks", &task("math__add"));
    assert_eq!((again.status, again.json()["id"].as_str()), (200, Some(&*id)));
    assert_eq!(ask(&server, "POST", "/tasks", &task("math.multiply")).status, 409);
}

#[test]
fn an_invalid_task_is_refused_at_once() {
    let server = world().tool("n", waits("n", false)).serve();
    for (body, status, kind) in [
        (json!({"capability": "nothing"}), 404, "unknown-capability"),
        (json!({"capability": "n", "input": {"n": "x"}}), 400, "invalid-input"),
        (json!({"capability": "n", "input": {"n": 1}, "key": ""}), 400, "invalid-argument"),
        (json!({"capability": "n", "program": "1"}), 400, "invalid-argument"),
        (json!({"program": 1}), 400, "invalid-input"),
        (json!([]), 400, "invalid-argument"),
    ] {
        let answer = ask(&server, "POST", "/tasks", &body);
        assert_eq!((answer.status, &answer.json()["error"]["kind"]), (status, &json!(kind)), "{body}");
    }
    for (method, path, status) in [
        ("GET", "/tasks/nothing", 404),
        ("DELETE", "/tasks/01a1fffb-a07b-705e-914f-fda8c98d6717", 404),
        ("GET", "/tasks?limit=0", 400),
        ("PUT", "/tasks", 405),
        ("GET", "/tasks/a/b", 404),
    ] {
        assert_eq!(ask(&server, method, path, &json!(null)).status, status, "{method} {path}");
    }
    assert_eq!(server.http().get("/tasks").json(), json!([]));
    assert!(!server.path(".orla").exists());
}

#[test]
fn callers_see_their_own_tasks_and_a_withdrawn_token_runs_nothing() {
    let callers = |more: &str| {
        format!(
            "watch: false\nmax_concurrency: 1\nauth_tokens: {{ada: {ADA}{more}}}\npolicy: [{{to: bob, capabilities: [late], allow: ['*']}}, {{to: ada, allow: ['*']}}]\n"
        )
    };
    let server = world()
        .tool("w", waits("w", false))
        .tool("late", waits("late", false))
        .tool("secret", sh("echo s"))
        .config(&callers(&format!(", bob: {BOB}")))
        .serve();
    let as_bob =
        |method: &str, path: &str, body: &Value| server.send_as(method, path, BOB, &body.to_string());
    let denied = as_bob("POST", "/tasks", &json!({"capability": "secret"})).json();
    let unknown = as_bob("POST", "/tasks", &json!({"capability": "secre"})).json();
    assert_eq!(
        denied["error"]["kind"], unknown["error"]["kind"],
        "a denied name looks unknown: {denied}"
    );
    let own = server
        .send_as("POST", "/tasks", ADA, &json!({"capability": "w", "input": {"n": 1}}).to_string())
        .json();
    let path = format!("/tasks/{}", own["id"].as_str().expect("an id"));
    assert_eq!(own["principal"], "ada");
    for method in ["GET", "DELETE"] {
        assert_eq!(as_bob(method, &path, &json!(null)).status, 404);
    }
    assert_eq!(as_bob("GET", "/tasks", &json!(null)).json(), json!([]));
    eventually("the first one runs", || runs(&server, "w") == 1);
    // It waits for its turn, and its caller is gone when that comes.
    let late = as_bob("POST", "/tasks", &json!({"capability": "late", "input": {"n": 1}}));
    assert_eq!(late.status, 202, "{}", late.text());
    server.write("orla.yaml", callers(""), 0o644);
    server.signal(Signal::HUP);
    eventually("the token is withdrawn", || server.get_as("/tasks", BOB).status == 401);
    server.write("go", "", 0o644);
    eventually("the first one ends", || server.get_as(&path, ADA).json()["state"] == "completed");
    eventually("the other one is refused", || {
        server.http().send(&Request::new("GET", "/status").bearer(ADA)).expect("an answer").json()["tasks"]
            ["failed"]
            == 1
    });
    assert_eq!(runs(&server, "late"), 0);
}

#[test]
fn a_program_with_a_mistake_of_its_syntax_makes_no_task() {
    let world = world().file("p.rtfs", "(let [a 1]\n  (+ a 1)");
    let run = world.run(&["task", "run", "--program", "p.rtfs"]);
    assert_eq!(run.code, Some(1), "{}", run.all());
    assert!(run.stderr.contains("p.rtfs:1:1: "), "{}", run.all());
    assert!(world.run(&["task", "list"]).all().contains("There are no tasks."));
    let server = world.serve();
    let refused = ask(&server, "POST", "/tasks", &json!({"program": "(+ 1"}));
    assert_eq!(refused.status, 400, "{}", refused.text());
    let error = &refused.json()["error"];
    assert_eq!((&error["kind"], &error["at"]), (&json!("syntax"), &json!({"line": 1, "column": 1})));
    let tasks = ask(&server, "GET", "/tasks", &Value::Null);
    assert!(!tasks.text().contains("\"id\""), "{}", tasks.text());
}

#[test]
fn a_program_takes_its_input_as_a_capability_does() {
    let world = world().file("p.rtfs", "[(:n input) (:who input)]");
    let run = |more: &[&str]| {
        let begin = ["task", "run", "--wait", "--program", "p.rtfs"];
        world.run(&begin.into_iter().chain(more.iter().copied()).collect::<Vec<_>>())
    };
    for given in [
        &["n=1", "who=ada"][..],
        &["--json", r#"{"n":1,"who":"ada"}"#],
        &["who=ada", "--json", r#"{"n":1}"#],
    ] {
        let run = run(given);
        assert_eq!((run.code, run.stdout.trim()), (Some(0), r#"[1,"ada"]"#), "{}", run.all());
    }
    assert_eq!(run(&["--input", r#"{"n":2}"#]).stdout.trim(), "[2,null]");
    let wrong = run(&["greet"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("expected key=value"), "{}", wrong.all());
    assert_eq!(run(&["n=1", "--input", "3"]).code, Some(2));
}

#[test]
fn a_killed_server_loses_no_task_and_repeats_only_what_may_be_repeated() {
    let mut server = world()
        .tool("may", waits("may", true))
        .tool("mustnot", waits("mustnot", false))
        .tool("queued", waits("queued", false))
        .config("max_concurrency: 2\n")
        .serve();
    let key = json!({"capability": "may", "input": {"n": 1}, "key": "k"});
    let may = start(&server, &key);
    let must_not = start(&server, &json!({"capability": "mustnot", "input": {"n": 1}}));
    eventually("both run", || runs(&server, "may") == 1 && runs(&server, "mustnot") == 1);
    let queued = start(&server, &json!({"capability": "queued", "input": {"n": 1}}));
    assert_eq!(show(&server, &queued)["state"], "queued");
    server.kill();
    server.start_again();
    let interrupted = reaches(&server, &must_not, "interrupted");
    assert_eq!(interrupted["error"]["kind"], "interrupted");
    assert!(interrupted["error"]["message"].as_str().unwrap().starts_with("mustnot was running"));
    eventually("the others run", || runs(&server, "may") == 2 && runs(&server, "queued") == 1);
    let again = ask(&server, "POST", "/tasks", &key);
    assert_eq!((again.status, again.json()["id"].as_str()), (200, Some(&*may)), "the key holds");
    let other = json!({"capability": "may", "input": {"n": 2}, "key": "k"});
    assert_eq!(ask(&server, "POST", "/tasks", &other).status, 409);
    server.write("go", "", 0o644);
    reaches(&server, &may, "completed");
    reaches(&server, &queued, "completed");
    server.kill();
    server.start_again();
    let states: Vec<Value> =
        [&may, &must_not, &queued].iter().map(|id| show(&server, id)["state"].clone()).collect();
    assert_eq!(states, ["completed", "interrupted", "completed"]);
    assert_eq!(["may", "mustnot", "queued"].map(|name| runs(&server, name)), [2, 1, 1]);
}

#[test]
fn a_cancelled_task_ends_its_process_and_stays_cancelled() {
    let mut server = world().tool("w", waits("w", true)).serve();
    let id = start(&server, &json!({"capability": "w", "input": {"n": 1}}));
    eventually("it runs", || runs(&server, "w") == 1);
    let cancelled = ask(&server, "DELETE", &format!("/tasks/{id}"), &json!(null));
    assert_eq!((cancelled.status, &cancelled.json()["state"]), (200, &json!("cancelled")));
    server.assert_no_tool_is_left();
    assert_eq!(ask(&server, "DELETE", &format!("/tasks/{id}"), &json!(null)).status, 200);
    server.kill();
    server.start_again();
    let shown = show(&server, &id);
    assert_eq!((&shown["state"], &shown["error"]["kind"]), (&json!("cancelled"), &json!("cancelled")));
    assert_eq!(runs(&server, "w"), 1);
}

#[test]
fn a_command_beside_one_that_makes_the_state_names_a_server() {
    let world = world().tool("hello", sh("echo hello")).config("state_dir: ./s\n").file("s/x", "");
    // Simulates another command that creates the state.
    let other = std::fs::File::open(world.path("s")).unwrap();
    other.lock().unwrap();
    let run = world.run(&["task", "run", "hello"]);
    assert_eq!(run.code, Some(2), "{}", run.all());
    assert!(
        run.stderr.contains("in use by another orla") && run.stderr.contains("--url"),
        "{}",
        run.all()
    );
    drop(other);
    assert_eq!(world.run(&["task", "run", "hello"]).code, Some(0));
}

#[test]
fn the_commands_use_a_server_or_the_state_itself() {
    let mut server =
        world().tool("hello", sh("echo hello")).tool("bad", sh("echo half; exit 3")).serve();
    let url = format!("http://{}", server.address());
    let there = |arguments: &[&str]| server.run(&[arguments, &["--url", &url]].concat());
    let run = there(&["task", "run", "hello", "--wait"]);
    assert_eq!((run.code, &*run.stdout), (Some(0), "hello\n"), "{}", run.stderr);
    let bad = there(&["task", "run", "bad", "--wait"]);
    assert_eq!((bad.code, &*bad.stdout), (Some(1), "half\n"), "{}", bad.stderr);
    let id = there(&["task", "run", "hello", "--key", "k"]).stdout.trim().to_owned();
    assert_eq!(there(&["task", "run", "hello", "--key", "k"]).stdout.trim(), id);
    assert_eq!(there(&["task", "wait", &id]).stdout, "hello\n");
    assert!(there(&["task", "show", &id]).stdout.contains("completed"));
    let held = server.run(&["task", "list"]);
    assert_eq!(held.code, Some(2));
    assert!(held.stderr.starts_with("error") && held.stderr.contains("--url"), "{}", held.stderr);
    assert_eq!(held.stderr.lines().count(), 1);
    server.terminate();
    let list: Value = serde_json::from_str(&server.run(&["task", "list", "--json"]).stdout).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 3);
    assert_eq!(server.run(&["task", "wait", &id]).stdout, "hello\n");
    assert_eq!(server.run(&["task", "run", "hello", "--wait"]).stdout, "hello\n");
    let stored = server.run(&["task", "run", "hello"]);
    assert!(stored.stderr.contains("runs when a server starts"), "{}", stored.stderr);
    let stored = stored.stdout.trim().to_owned();
    assert_eq!(server.run(&["task", "wait", &stored]).code, Some(1), "no server runs it");
    assert_eq!(
        server.run(&["task", "cancel", server.run(&["task", "run", "hello"]).stdout.trim()]).code,
        Some(0)
    );
    server.start_again();
    reaches(&server, &stored, "completed");
}

#[test]
fn the_journal_of_a_program_is_a_tree_of_its_steps_and_branches_also_after_a_crash() {
    let mut server = world().tool("hello", sh("echo hello")).serve();
    let program = "(step \"greet\"\n  (pmap (fn [_] (call :hello {})) [1 2])\n  (await-event \"go\"))";
    let id = start(&server, &json!({"program": program}));
    let waits = || {
        let task = show(&server, &id);
        let steps = task["journal"].as_array().cloned().unwrap_or_default();
        steps.last().is_some_and(|step| step["action"] == "await-event").then_some(steps)
    };
    let steps = eventually("the program waits", waits);
    let branch = |at: u32| json!([{"form": "step", "number": 1, "name": "greet"}, {"form": "pmap", "number": 2, "branch": at}]);
    assert_eq!(
        steps.iter().map(|step| &step["within"]).collect::<Vec<_>>()[..2],
        [&branch(0), &branch(1)]
    );
    let page = server.http().get(&format!("/console/tasks/{id}")).text();
    for part in ["Journal", "[1] call hello at 2:17", "await-event go"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    server.kill();
    server.start_again();
    let url = format!("http://{}", server.address());
    let shown = server.run(&["task", "show", &id, "--url", &url]).stdout;
    let tree = shown.lines().skip_while(|line| *line != "journal").skip(1);
    // Without the times.
    let without = |line: &str| {
        let is_time = |word: &str| word.ends_with('Z') || word == "ms" || word.parse::<u32>().is_ok();
        line.split(' ').filter(|word| !is_time(word)).collect::<Vec<_>>().join(" ")
    };
    let tree: Vec<String> = tree.take_while(|line| !line.is_empty()).map(without).collect();
    assert_eq!(
        tree,
        [
            "└─  step greet  …  waiting",
            "   ├─  pmap ",
            "   │  ├─  [0] call hello at 2:17   ok",
            "   │  └─  [1] call hello at 2:17   ok",
            "   └─  await-event go at 3:3  …  waiting",
        ],
        "{shown}"
    );
    assert!(shown.ends_with("\n3 |   (await-event \"go\"))\n  |   ^\n"), "{shown}");
}

#[test]
fn a_program_is_one_call_with_all_its_steps_though_it_sleeps_and_its_server_is_killed() {
    let config = "history: {path: ./calls.db}\n";
    let mut server = world().tool("hello", sh("echo hello")).config(config).serve();
    let program = r#"(do (call :hello {}) (await-event "on") (call :hello {}) (await-event "on") (call :hello {}))"#;
    let id = start(&server, &json!({"program": program}));
    let no_parent_is_unknown = |server: &Server, steps: usize| {
        let calls = eventually("the steps are there, and the program sleeps", || {
            let running = server.http().get("/calls?running").json();
            let calls = server.http().get("/calls").json().as_array().cloned().unwrap_or_default();
            (running == json!([]) && calls.len() == steps).then_some(calls)
        });
        for parent in calls.iter().filter_map(|call| call["parent"].as_str()) {
            assert_eq!(server.http().get(&format!("/calls/{parent}")).status, 200, "{calls:?}");
        }
        calls
    };
    no_parent_is_unknown(&server, 1);
    ask(&server, "POST", &format!("/tasks/{id}/events/on"), &json!(1));
    no_parent_is_unknown(&server, 2);
    server.kill();
    server.start_again();
    ask(&server, "POST", &format!("/tasks/{id}/events/on"), &json!(1));
    reaches(&server, &id, "completed");
    let calls = no_parent_is_unknown(&server, 4);
    let program = calls.iter().find(|call| call["capability"] == "rtfs").expect("the program");
    let own = program["id"].as_str().expect("an id");
    assert_eq!(calls.iter().filter(|call| call["parent"] == own).count(), 3, "{calls:?}");
    let shown = server.http().get(&format!("/calls/{own}")).json();
    assert_eq!(shown["children"].as_array().map(Vec::len), Some(3), "{shown}");
}

#[test]
fn a_task_that_cannot_be_stored_fails_its_request() {
    let server = world()
        .tool("hello", sh("echo hello"))
        .file("plain", "no directory")
        .config("state_dir: ./plain/state\n")
        .serve();
    let ready = server.http().get("/readyz");
    assert_eq!(ready.status, 503, "{}", ready.text());
    assert!(ready.text().contains("tasks cannot be kept") && !ready.text().contains("plain"));
    let answer = ask(&server, "POST", "/tasks", &json!({"capability": "hello"}));
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, &error["kind"]), (503, &json!("unavailable")), "{error}");
    let message = "the state cannot be opened; the log of the server says why";
    assert_eq!(error["message"], message, "callers see no path of the server");
    assert_eq!(server.client().call("hello", json!({})).stdout(), "hello\n");
}

#[test]
fn a_server_that_can_no_longer_keep_tasks_is_not_ready_until_it_can() {
    let hello = world().tool("hello", sh("echo hello"));
    let mut server = hello.through(&["sh", "-c", r#"trap '' XFSZ; exec "$@""#, "--"]).serve();
    assert_eq!(server.http().get("/readyz").status, 200);
    let is_ready = |server: &Server| server.http().get("/readyz").status == 200;
    start(&server, &json!({"capability": "hello"}));
    assert!(is_ready(&server));
    // Nothing can be written to a file beyond its first bytes. A limit to the present length would leave
    // room after SQLite has started its log from the beginning.
    let limit = |bytes: Option<u64>| {
        let id = rustix::process::Pid::from_raw(i32::try_from(server.id()).unwrap());
        let limit = rustix::process::Rlimit { current: bytes, maximum: None };
        rustix::process::prlimit(id, rustix::process::Resource::Fsize, limit).unwrap();
    };
    limit(Some(64));
    let input = json!({"capability": "hello"});
    eventually("a task cannot be kept", || ask(&server, "POST", "/tasks", &input).status == 503);
    eventually("the server is not ready", || !is_ready(&server));
    limit(None);
    eventually("the server is ready again", || is_ready(&server));
    start(&server, &json!({"capability": "hello"}));
    assert!(server.terminate().success());
}

#[test]
fn a_server_on_stdio_beside_another_one_serves_without_tasks() {
    let server = world().tool("hello", sh("echo hello")).serve();
    let id = start(&server, &json!({"capability": "hello"}));
    reaches(&server, &id, "completed");
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let beside = server.run_with_input(&["--stdio"], format!("{initialize}\n").as_bytes());
    assert_eq!(beside.code, Some(0), "{}", beside.stderr);
    assert!(beside.stdout.contains("serverInfo"), "{}", beside.stdout);
    let warnings: Vec<&str> = beside.stderr.lines().filter(|line| line.contains("no tasks")).collect();
    assert_eq!(warnings.len(), 1, "{}", beside.stderr);
}

#[test]
fn the_state_in_memory_leaves_nothing_behind() {
    let mut server = world().tool("hello", sh("echo hello")).config("state: memory\n").serve();
    let id = start(&server, &json!({"capability": "hello"}));
    reaches(&server, &id, "completed");
    assert!(!server.path(".orla").exists());
    server.kill();
    server.start_again();
    assert_eq!(server.http().get(&format!("/tasks/{id}")).status, 404);
}

#[test]
fn a_finished_task_is_removed_after_task_keep() {
    let server = world().tool("hello", sh("echo hi")).config("task_keep: 1s\n").serve();
    let id = start(&server, &json!({"capability": "hello"}));
    eventually("it is gone", || server.http().get(&format!("/tasks/{id}")).status == 404);
}
