//! Plugins: programs that answer one JSON line with another (RTFS capability system §3.3, §4), through the real
//! binary over MCP.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use orla_e2e::{Client, Server, ToolResult, World, eventually};
use serde_json::{Value, json};

use crate::{sh, world};

/// Returns a plugin with these functions, each the body of a Python function of `input` and `id`. It
/// answers one call after the other; `raw` writes a line, `start` counts its processes.
fn plugin(functions: &[(&str, &str)]) -> String {
    let bodies: Vec<String> =
        functions.iter().map(|(name, body)| format!("def {name}(input, id):\n    {body}\n")).collect();
    let table: Vec<String> = functions.iter().map(|(name, _)| format!("'{name}': {name}")).collect();
    format!(
        r#"#!/usr/bin/env python3
import json, os, signal, sys, threading, time
here = os.path.dirname(os.path.abspath(__file__))
lock = threading.Lock()
def raw(line):
    with lock:
        print(line, flush=True)
def say(**line):
    raw(json.dumps(line))
def note(what):
    with open(os.path.join(here, 'notes'), 'a') as notes:
        notes.write(what + '\n')
class Own(Exception):
    pass
note('start')
{}
functions = {{{}}}
def describe(input, id):
    return {{'functions': [{{'name': name, 'description': 'Does ' + name + '.'}} for name in functions]}}
for line in sys.stdin:
    call = json.loads(line)
    if 'cancel' in call:
        note('cancel')
        continue
    try:
        function = {{'describe': describe, **functions}}[call['function']]
        value = function(call.get('input'), call['id'])
        if value is not Own:
            say(id=call['id'], ok=value)
    except Exception as error:
        say(id=call['id'], error={{'kind': type(error).__name__, 'message': str(error)}})
"#,
        bodies.join(""),
        table.join(", ")
    )
}

/// Returns a world with the plugin at `p.py`, which `plugins.p` names with these further settings.
fn with(functions: &[(&str, &str)], more: &str) -> World {
    let config = format!(
        "capsules: {{backoff_min_ms: 1, backoff_max_ms: 1}}\nplugins:\n  p: {{path: ./p.py{more}}}\n"
    );
    let world = world().config(&config);
    world.write("p.py", plugin(functions), 0o755);
    world
}

fn status(server: &Server, name: &str) -> Value {
    let all = server.status();
    let all = all["capabilities"].as_array().expect("capabilities").clone();
    all.into_iter().find(|one| one["name"] == name).unwrap_or_default()
}

fn notes(server: &Server, what: &str) -> usize {
    let path = server.path("notes");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter(|line| *line == what).count()
}

/// Returns a call whose client requests progress.
fn with_progress(client: &mut Client, name: &str, arguments: &Value) -> ToolResult {
    let params = json!({"name": name, "arguments": arguments, "_meta": {"progressToken": 1}});
    let call = client.begin("tools/call", params);
    client.finish_call(call).expect("an answer")
}

#[test]
fn a_program_can_read_the_error_of_a_plugin() {
    let fail = "say(id=id, error={'kind': 'not-found', 'message': 'no such city', 'city': 'Atlantis'}); return Own";
    let world = with(&[("find", fail)], "");
    let program =
        "(try (call :p {}) (catch :failed e (match (:data e) {:kind \"not-found\" :city c} c _ e)))";
    let ran = world.run(&["rtfs", "-e", program]);
    assert_eq!(ran.stdout.trim(), "\"Atlantis\"", "{}", ran.all());
}

#[test]
fn functions_are_served_under_the_names_of_capsules() {
    let server = with(
        &[("echo", "return input"), ("fail", "raise KeyError('no such thing')"), ("hidden", "return 1")],
        ", exclude: [hidden], permissions: ['db:example', 'fs:write:.']",
    )
    .serve();
    for mut client in server.clients() {
        let names = client.tool_names();
        assert!(names.iter().any(|name| name == "p__echo"), "{names:?}");
        assert!(!names.iter().any(|name| name == "p__hidden"), "{names:?}");
        assert_eq!(client.tool("p__echo")["description"], "Does echo.");
        let echoed =
            client.call_text("p__echo", r#"{"n": 1.10, "big": 18446744073709551616, "t": "a\nb"}"#);
        let echoed = echoed.unwrap();
        assert_eq!(echoed.structured()["t"], "a\nb");
        assert!(echoed.json.to_string().contains("18446744073709551616"), "{}", echoed.json);
        let failed = client.call("p__fail", json!({}));
        assert!(failed.is_error(), "{}", failed.json);
        for part in ["p__fail failed", "no such thing", "KeyError", "function fail of plugin p"] {
            assert!(failed.sentence().contains(part), "{}", failed.sentence());
        }
    }
    assert_eq!(notes(&server, "start"), 1);
    let shown = status(&server, "p__echo");
    assert_eq!((&shown["kind"], &shown["state"]), (&json!("plugin"), &json!("READY")));
    assert!(shown["pid"].is_u64() && shown["restarts"] == 0, "{shown}");
}

#[test]
fn single_functions_are_capabilities_and_share_a_process() {
    let world = world().config(
        r#"
capabilities:
  - id: math.add
    description: Adds.
    provider: {Plugin: {plugin_path: ./p.py, function_name: add}}
    input_schema: {a: integer, b: integer}
  - id: math.neg
    description: Negates.
    provider: {type: plugin, plugin_path: ./p.py, function_name: neg}
"#,
    );
    world.write(
        "p.py",
        plugin(&[("add", "return input['a'] + input['b']"), ("neg", "return -input['a']")]),
        0o755,
    );
    let server = world.serve();
    let mut client = server.client();
    assert_eq!(notes(&server, "start"), 0, "nothing is started before it is needed");
    assert_eq!(client.call("math__add", json!({"a": 1, "b": 2})).text(), "3");
    assert_eq!(client.call("math__neg", json!({"a": 1})).text(), "-1");
    assert!(client.call("math__add", json!({"a": "x", "b": 2})).sentence().contains("input.a"));
    assert_eq!(notes(&server, "start"), 1);
    let program = "(let [x (call :math.add {:a 2 :b 3})] (call :math.neg {:a x}))";
    let run = client.call("rtfs", json!({ "program": program }));
    assert!(run.text().contains("-5"), "{}", run.json);
}

#[test]
fn calls_go_to_one_process_at_once_and_are_answered_in_any_order() {
    // Each call waits for the next one, so that only the last has its answer at once.
    let functions = [(
        "swap",
        "waiting.append((id, input['n']))\n    if len(waiting) == 3:\n        [say(id=i, ok=n) for i, n in reversed(waiting)]\n    return Own\nwaiting = []",
    )];
    let server = with(&functions, "").serve();
    let mut client = server.client();
    let calls: Vec<_> = (0..3).map(|n| client.begin_call("p", json!({ "n": n }))).collect();
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(client.finish_call(call).unwrap().text(), n.to_string());
    }
}

#[test]
fn each_process_gets_one_call_at_a_time() {
    let body = "mine = open(os.path.join(here, 'gate'), 'a')\n    mine.write('x'); mine.close()\n    while os.path.getsize(os.path.join(here, 'gate')) < input['of']: time.sleep(0.005)\n    return os.getpid()";
    let server = with(&[("meet", body)], ", processes: 3").serve();
    let mut client = server.client();
    let calls: Vec<_> = (0..3).map(|_| client.begin_call("p", json!({"of": 3}))).collect();
    let mut pids: Vec<String> =
        calls.into_iter().map(|call| client.finish_call(call).unwrap().text()).collect();
    pids.sort();
    pids.dedup();
    assert_eq!(pids.len(), 3, "three calls meet in three processes: {pids:?}");
    assert_eq!(notes(&server, "start"), 3);
}

#[test]
fn progress_goes_to_the_client_of_the_call() {
    let body = "say(id=id, progress=0.5, message='half'); say(id=id, progress=1)\n    return 'done'";
    let server = with(&[("slow", body)], "").serve();
    let mut client = server.client();
    let result = with_progress(&mut client, "p", &json!({}));
    assert_eq!(result.text(), "done");
    let progress = result.notified("notifications/progress");
    let first = &progress[0];
    assert_eq!((first["progress"].as_f64(), first["total"].as_f64()), (Some(0.5), Some(1.0)), "{first}");
    assert_eq!(first["message"], "half");
    assert_eq!(progress.len(), 2);
}

#[test]
fn a_changed_file_answers_next() {
    let server = with(&[("f", "return 'old'")], "").serve();
    let mut client = server.client();
    assert_eq!(client.call("p", json!({})).text(), "old");
    server.write("p.py", plugin(&[("f", "return 'new'"), ("g", "return 'g'")]), 0o755);
    eventually("the new code answers", || client.tool_names().iter().any(|name| name == "p__g"));
    assert_eq!(client.call("p__f", json!({})).text(), "new");
    let shown = status(&server, "p__f");
    assert_eq!(shown["restarts"], 1, "{shown}");
}

#[test]
fn v4_garbage_is_logged_once_and_ignored() {
    let body = "[raw(line) for line in ['*** hello', '{\"id\":', '[1,2]', '{\"id\": 4711, \"ok\": 1}', '{\"id\": %d, \"progress\": \"x\"}' % id, 'x' * 100000]]\n    return 'fine'";
    let server = with(&[("noisy", body), ("other", "return 'other'")], "").serve();
    let mut client = server.client();
    for _ in 0..3 {
        assert_eq!(client.call("p__noisy", json!({})).text(), "fine");
        assert_eq!(client.call("p__other", json!({})).text(), "other");
    }
    let line = server.log_says(&["*** hello"]);
    assert!(line.contains("\"warn\"") && line.contains("\"plugin\":\"p\""), "{line}");
    server.log_says(&["warn", "never sent"]);
    let warnings = server.logged("warn");
    let about = |words: &str| warnings.iter().filter(|line| line.message().contains(words)).count();
    assert_eq!((about("not an answer"), about("never sent")), (1, 1), "{}", server.log());
    assert_eq!(notes(&server, "start"), 1);
}

#[test]
fn v4_a_crash_fails_its_calls_alone_and_names_plugin_and_function() {
    let functions = [
        ("die", "print('Error: out of luck', file=sys.stderr, flush=True); os._exit(3)"),
        ("killed", "os.kill(os.getpid(), signal.SIGKILL)"),
        ("echo", "return input"),
    ];
    let server = with(&functions, "").serve();
    let mut client = server.client();
    for (function, reason) in [("die", "exited with code 3"), ("killed", "killed by SIGKILL")] {
        let failed = client.call(&format!("p__{function}"), json!({}));
        assert!(failed.is_error(), "{}", failed.json);
        for part in [reason, "of plugin p", &format!("function {function}")] {
            assert!(failed.sentence().contains(part), "{}", failed.sentence());
        }
        assert_eq!(client.call("p__echo", json!({"x": 1})).structured(), &json!({"x": 1}));
    }
    server.log_says(&["Error: out of luck"]);
    assert_eq!(notes(&server, "start"), 3);
    assert_eq!(status(&server, "p__echo")["restarts"], 2);
}

#[test]
fn v4_what_never_ends_is_cancelled_and_then_ended_and_others_go_on() {
    let functions = [("never", "note('in'); time.sleep(3600)"), ("echo", "return input")];
    let world = with(&functions, "");
    let config = format!("{}tools: {{p__never: {{timeout: 3}}}}\n", world.read("orla.yaml"));
    let server = world.config(&config).serve();
    let mut client = server.client();
    let failed = client.call("p__never", json!({}));
    assert!(failed.is_error(), "{}", failed.json);
    for part in ["timed out after 3 s", "function never of plugin p"] {
        assert!(failed.sentence().contains(part), "{}", failed.sentence());
    }
    // It is busy with a cancelled call; this call waits for the next process.
    assert_eq!(client.call("p__echo", json!({"x": 1})).structured(), &json!({"x": 1}));
    server.log_says(&["ignored a cancellation", "never"]);
    assert_eq!((notes(&server, "start"), notes(&server, "in")), (2, 1));
}

#[test]
fn v4_a_concurrent_plugin_gets_calls_although_another_call_failed() {
    let apart = "threading.Thread(target=lambda: (time.sleep(input['s']), say(id=id, ok=input['s']))).start(); return Own";
    let functions = [("nap", apart), ("pid", "return os.getpid()")];
    let config =
        format!("{}tools: {{p__nap: {{timeout: 3}}}}\n", with(&functions, "").read("orla.yaml"));
    let server = with(&functions, "").config(&config).serve();
    let mut client = server.client();
    let pid = client.call("p__pid", json!({})).text();
    assert!(client.call("p__nap", json!({"s": 3600})).sentence().contains("timed out after 3 s"));
    // One that had to wait for the next process would be answered by another one.
    assert_eq!(client.call("p__pid", json!({})).text(), pid);
    assert_eq!(client.call("p__nap", json!({"s": 0})).text(), "0");
    assert_eq!(notes(&server, "start"), 1);
}

#[test]
fn v4_a_plugin_that_obeys_a_cancellation_is_not_restarted() {
    let code = r#"#!/usr/bin/env python3
import json, sys
waiting = {}
for line in sys.stdin:
    call = json.loads(line)
    def say(**line):
        print(json.dumps(line), flush=True)
    if 'cancel' in call:
        waiting.pop(call['cancel'])
        say(id=call['cancel'], error={'kind': 'cancelled', 'message': 'as asked'})
    elif call['function'] == 'describe':
        say(id=0, ok={'functions': [{'name': 'never'}, {'name': 'waiting'}]})
    elif call['function'] == 'waiting':
        say(id=call['id'], ok=len(waiting))
    else:
        waiting[call['id']] = True
"#;
    let world = world().config("plugins: {p: {path: ./p.py, timeout: 0.3}}\n");
    world.write("p.py", code, 0o755);
    let server = world.serve();
    let mut client = server.client();
    assert!(client.call("p__never", json!({})).sentence().contains("timed out"));
    eventually("it has heard of it", || client.call("p__waiting", json!({})).text() == "0");
    let pid = status(&server, "p__never")["pid"].clone();
    assert!(client.call("p__never", json!({})).sentence().contains("timed out"));
    assert_eq!(client.call("p__waiting", json!({})).text(), "0");
    assert_eq!(status(&server, "p__never")["pid"], pid, "the same process");
}

#[test]
fn v4_a_plugin_that_cannot_start_reports_why() {
    let world = world().config(
        r#"
capsules: {max_failures: 2, backoff_min_ms: 1, backoff_max_ms: 1}
timeout: 20
plugins:
  dies: ./dies.py
  mute: {path: ./mute.py, startup_timeout: 0.2}
  odd: ./odd.py
  names: ./names.py
capabilities:
  - id: one
    description: One.
    provider: {plugin: {plugin_path: ./dies.py, function_name: f}}
  - id: none
    description: None.
    provider: {plugin: {plugin_path: ./none.py, function_name: f}}
"#,
    );
    world.write("dies.py", "#!/bin/sh\necho 'Error: no luck' >&2\nexit 7\n", 0o755);
    world.write("mute.py", "#!/bin/sh\nexec sleep 1000\n", 0o755);
    let names =
        "#!/bin/sh\nwhile read line; do echo '{\"id\":0,\"ok\":{\"functions\":[\"f\"]}}'; done\n";
    world.write("names.py", names, 0o755);
    world.write("odd.py", "#!/bin/sh\nwhile read line; do echo '{\"id\":0,\"ok\":[]}'; done\n", 0o755);
    let (why, names) = ("functions[0]: expected an object with \"name\", got \"f\"", "names");
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{}", checked.all());
    for command in [vec!["check"], vec!["list"], vec!["call", "names__f"]] {
        let done = world.run(&command);
        assert!(done.all().contains(names) && done.all().contains(why), "{}", done.all());
    }
    let server = world.serve();
    let mut client = server.client();
    let one = client.call("one", json!({}));
    for part in ["exited with code 7", "no luck", "function f of plugin dies.py"] {
        assert!(one.sentence().contains(part), "{}", one.json);
    }
    let none = client.call("none", json!({}));
    assert!(none.is_error() && none.sentence().contains("plugin none.py"), "{}", none.json);
    client.tool_names();
    for (plugin, reason) in [
        ("dies", "before it answered describe"),
        ("mute", "did not answer describe within 0.2 s"),
        ("odd", "does not answer describe with its functions"),
    ] {
        server.log_says(&[&format!("\"plugin\":\"{plugin}\""), reason]);
        let failed = client.call(&format!("{plugin}__f"), json!({}));
        let sentence = failed.sentence();
        let is_named = sentence.contains(&format!("{plugin}__f is unavailable: plugin {plugin}: "));
        assert!(is_named && sentence.contains(reason), "{sentence}");
    }
    assert!(client.call("names__f", json!({})).sentence().contains(why));
    assert!(server.status().to_string().contains("plugin names: "), "{}", server.status());
    server.log_says(&["\"level\":\"warn\"", "did not answer describe within 0.2 s"]);
    server.log_says(&["none.py does not exist"]);
}

#[test]
fn v4_a_function_that_a_plugin_does_not_have_is_refused_at_once() {
    let config = |more: &str| {
        format!(
            "plugins:\n  p: {{path: ./p.py{more}}}\ncapabilities:\n  - id: gone\n    provider: {{plugin: {{plugin_path: 'plugin:p', function_name: gone}}}}\n"
        )
    };
    // The plugin does not answer unknown requests.
    let deaf = plugin(&[("real", "return 1")]).replace(
        "function = {",
        "if call['function'] == 'gone':\n            continue\n        function = {",
    );
    for more in ["", ", processes: 2"] {
        let world = world().config(&config(more));
        world.write("p.py", &deaf, 0o755);
        let server = world.serve();
        let mut client = server.client();
        // Whether it has been started or not.
        for _ in 0..3 {
            let refused = client.call("gone", json!({}));
            let sentence = refused.sentence();
            assert!(
                sentence.contains(
                    "it has no such function, only real (unknown-function); function gone of plugin p"
                ),
                "{sentence}"
            );
        }
        assert_eq!(client.call("p", json!({})).text(), "1");
    }
}

#[test]
fn a_plugin_ends_with_its_server() {
    let mut server = with(&[("pid", "return os.getpid()")], "").serve();
    let pid = server.client().call("p", json!({})).text();
    server.kill();
    eventually("it is gone", || !Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn check_reports_problems_with_their_places() {
    let world = world().config(
        r#"
plugins:
  gone: ./gone.py
  wasm: {path: ./x.wasm}
  plain: {path: ./plain.txt, procesess: 2}
  both: {path: a, command: b}
  none: {args: [x]}
  many: {command: sh, processes: 0}
capabilities:
  - {id: a, provider: {plugin: {plugin_path: ./p.py}}}
  - {id: b, provider: {plugin: {plugin_path: 'plugin:gome', function_name: f}}}
"#,
    );
    world.write("plain.txt", "x", 0o644);
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1));
    for problem in [
        "plugins.plain.procesess: unknown key, did you mean processes? at orla.yaml:5:30",
        "plugins.both: path and command exclude each other at orla.yaml:6:3",
        "plugins.none.path: missing, and required at orla.yaml:7:3",
        "plugins.many.processes: expected a whole number from 1 to 64, got 0 at orla.yaml:8:34",
        "capabilities[0].provider.plugin.function_name: missing, and required at orla.yaml:10:24",
        "b: plugins has no plugin gome, did you mean gone? at orla.yaml:11:10",
    ] {
        assert!(checked.all().contains(problem), "{problem}\n{}", checked.all());
    }
    world.write("orla.yaml", "plugins:\n  gone: ./gone.py\n  plain: {path: ./plain.txt}\n", 0o644);
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1));
    for problem in ["gone.py does not exist at orla.yaml:2:3", "plain.txt is not executable (chmod +x "]
    {
        assert!(checked.all().contains(problem), "{problem}\n{}", checked.all());
    }
}

#[test]
#[cfg(not(feature = "wasm"))]
fn a_component_is_an_error_without_webassembly() {
    let world = world().config("plugins:\n  size: {path: ./size.wasm}\n");
    world.write("size.wasm", "", 0o644);
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1));
    let problem =
        "size.wasm: this orla was built without WebAssembly; a plugin is a program at orla.yaml:2:3";
    assert!(checked.all().contains(problem), "{}", checked.all());
}

#[test]
#[cfg(feature = "wasm")]
fn the_example_component_answers_and_what_is_no_component_is_reported() {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/wasm/size.wat");
    let world = world().config("plugins: {size: ./size.wasm}\n");
    world.write("size.wasm", wat::parse_file(text).unwrap(), 0o644);
    let server = world.serve();
    assert_eq!(server.client().call("size", json!({"a": 1})).text(), r#"{"a":1}"#.len().to_string());
    server.write("size.wasm", "no component", 0o644);
    let checked = server.run(&["check"]);
    assert!(checked.all().contains("plugins.size: it is not a component"), "{}", checked.all());
}

#[test]
fn running_a_plugin_needs_the_permission_to() {
    let policy = "policy_reveal: true\npolicy:\n- {allow: ['*']}\n- {capabilities: ['p__f'], deny: ['exec:*/p.py']}\n";
    let world = world().config(&format!("{policy}plugins: {{p: ./p.py}}\n"));
    world.write("p.py", plugin(&[("f", "return 1"), ("g", "return 2")]), 0o755);
    let server = world.serve();
    let mut client = server.client();
    let names = client.tool_names();
    assert!(
        names.iter().any(|name| name == "p__g") && !names.iter().any(|name| name == "p__f"),
        "{names:?}"
    );
    let denied = client.call("p__f", json!({}));
    assert!(denied.is_error() && denied.sentence().contains("permission denied"), "{}", denied.json);
}

#[test]
fn the_examples_answer() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/plugins");
    // Beside the binaries of the tests.
    let built = Path::new(env!("CARGO_BIN_EXE_orla")).with_file_name("examples/words");
    let text = fs::read_to_string(examples.join("orla.yaml")).unwrap();
    let text = text.replace("../../target/debug/examples/words", &built.display().to_string());
    let world = world().config(&text);
    for program in ["calc.py", "words.sh"] {
        world.write(program, fs::read(examples.join(program)).unwrap(), 0o755);
    }
    let server = world.serve();
    let mut client = server.client();
    assert_eq!(client.call("calc__add", json!({"a": 1, "b": 2.5})).text(), "3.5");
    assert_eq!(client.call("sum", json!({"a": 1, "b": 2})).text(), "3");
    let factorials = with_progress(&mut client, "calc__factorials", &json!({"upto": 4}));
    assert_eq!(factorials.notified("notifications/progress").len(), 4);
    assert_eq!(factorials.text(), "[1, 2, 6, 24]");
    assert_eq!(client.call("words", json!({"text": "to be or not"})).structured(), &json!({"words": 4}));
    for program in ["calc.py", "words.rs"] {
        let lines = fs::read_to_string(examples.join(program)).unwrap().lines().count();
        assert!(lines < 30, "{program} has {lines} lines");
    }
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode();
    assert!(mode(examples.join("calc.py")) & 0o111 != 0);
}

/// The author of a plugin needs to see the text that the plugin writes instead of an answer.
#[test]
fn a_line_that_is_no_answer_is_quoted_to_the_caller() {
    let functions = [
        ("garbage", "raw('oops \\x1b[2J' + 'x' * 1000)\n    return Own"),
        ("nameless", "say(ok=1)\n    return Own"),
        ("ends", "raw('panic: at the disco')\n    os._exit(3)"),
    ];
    let server = with(&functions, ", timeout: 5").serve();
    for (function, quoted) in
        [("garbage", "oops"), ("nameless", "{\\\"ok\\\": 1}"), ("ends", "panic: at the disco")]
    {
        let result = server.client().call(&format!("p__{function}"), json!({}));
        let sentence = result.sentence();
        assert!(result.is_error() && sentence.contains(quoted), "{function}: {sentence}");
        assert!(sentence.len() < 500 && !sentence.contains('\u{1b}'), "{sentence}");
    }
}

#[test]
fn a_flood_on_standard_error_stops_nobody_and_is_not_logged_whole() {
    let flood = "return sys.stderr.write('short line\\n' * 500000 + 'the end\\n')";
    let server =
        with(&[("flood", flood), ("other", "return 1")], "").tool("ok", sh("echo fine")).serve();
    let mut client = server.client();
    let flooding = client.begin_call("p__flood", json!({}));
    assert_eq!(server.client().call("ok", json!({})).stdout(), "fine\n");
    client.finish_call(flooding).unwrap();
    server.log_says(&["lines of standard error are left out"]);
    server.log_says(&["the end"]);
    let logged = server.log().matches("short line").count();
    assert!(logged < 100_000, "{logged}");
}
