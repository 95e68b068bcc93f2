//! `orla test`: cases beside tools and from real calls, their findings, and replays without a network.

use orla_e2e::{Request, Server, World};
use serde_json::{Value, json};

use crate::upstream::Upstream;
use crate::{sh, world};

const ADD: &str = "#!/bin/sh\n# /// orla\n# output: json\n# input_schema: {type: object, required: [a, b], properties: {a: {type: integer}, b: {type: integer}}}\n# ///\nread -r input\npython3 -c 'import json,sys; i=json.loads(sys.argv[1]); print(json.dumps({\"sum\": i[\"a\"]+i[\"b\"], \"id\": \"0af3\", \"at\": 17.004}))' \"$input\"\n";

fn tools() -> World {
    world().tool("add", ADD).tool("broken", sh("echo oh >&2; exit 3"))
}

/// Returns the name of each case of a run, and whether it passed.
fn results(ran: &orla_e2e::Finished) -> Vec<Value> {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|err| panic!("{err}: {}", ran.all()))
}

const CASES: &str = r#"
- name: sums
  capability: add
  input: {a: 1, b: 2}
  expect: {output: {sum: 3, id: {$regex: '^[0-9a-f]+$'}, at: {$approx: 17, within: 0.01}}}
- name: of a type
  capability: add
  input: {a: 1, b: 2}
  expect:
    output: {sum: {$type: integer}, id: {$any: true}, at: {$any: true}}
    contains: 0af
    schema: {type: object, required: [sum]}
- name: refuses
  capability: add
  input: {a: x, b: 2}
  expect: {error: invalid-input}
- name: fails
  capability: broken
  expect: {error: failed}
- name: a program
  program: '(:sum (call :add {:a 20 :b (:x input)}))'
  input: {x: 22}
  expect: {output: 42}
"#;

#[test]
fn cases_say_what_is_not_as_expected() {
    let world = tools().file("cases.yaml", CASES);
    let passed = world.run(&["test", "cases.yaml"]);
    assert!(
        passed.code == Some(0) && passed.stdout.ends_with("5 passed, 0 failed\n"),
        "{}",
        passed.all()
    );

    world.write("wrong.yaml", CASES.replace("sum: 3", "sum: 4").replace("17, w", "18, w"), 0o644);
    let failed = world.run(&["test", "cases.yaml", "wrong.yaml", "--json", "--junit", "report.xml"]);
    assert_eq!(failed.code, Some(1), "{}", failed.all());
    let rows = results(&failed);
    assert_eq!(rows.len(), 10);
    let wrong: Vec<&Value> = rows.iter().filter(|row| row["ok"] == false).collect();
    assert!(wrong.len() == 1 && wrong[0]["name"] == "sums", "{rows:?}");
    let message = wrong[0]["message"].as_str().expect("a text");
    assert!(
        message.contains("output.sum: expected 4, got 3") && message.contains("18 ± 0.01"),
        "{message}"
    );
    let report = world.read("report.xml");
    assert!(report.contains("tests=\"10\" failures=\"1\"") && report.contains("output.sum"), "{report}");

    for (text, words) in [
        ("- {capability: add, inputs: {}}", "bad.yaml:1:21: inputs: unknown key, did you mean input?"),
        ("capability: add\nexpect: {output: {$type: text}}", "bad.yaml:2:18: expect.output: $type"),
        ("[", "bad.yaml:1:"),
    ] {
        world.write("bad.yaml", text, 0o644);
        let ran = world.run(&["test", "bad.yaml"]);
        assert!(ran.code == Some(2) && ran.stderr.contains(words), "{}", ran.all());
    }
    let none = world.run(&["test", "nowhere.yaml"]);
    assert!(none.code == Some(2) && none.stderr.contains("nowhere.yaml"), "{}", none.all());
}

#[test]
fn cases_beside_tools_are_found_and_updated() {
    let world = tools()
        .file(
            "tools/add.test.yaml",
            "# Sums.\n- {name: sums, input: {a: 1, b: 2}, expect: {output: {sum: 4}}}\n",
        )
        .file("tools/broken.test.json", r#"{"expect": {"error": "code 3"}}"#);
    assert_eq!(world.run(&["test"]).code, Some(1));
    let updated = world.run(&["test", "--update"]);
    assert_eq!(updated.code, Some(0), "{}", updated.all());
    let text = world.read("tools/add.test.yaml");
    assert!(text.starts_with("# Sums.\n") && text.contains("sum: 3"), "{text}");
    let again = world.run(&["test"]);
    assert!(again.code == Some(0) && again.stdout.ends_with("2 passed, 0 failed\n"), "{}", again.all());
    let server = world.serve();
    assert_eq!(server.client().tool_names(), ["add", "broken"], "cases are no tools");
}

/// A program that asks an HTTP server ten times, several times at once, and sums the answers.
const TEN: &str = r#"(defn main [{:keys [scale]} :- [:map [:scale :any]]]
  (let [first (map (fn [n] (:n (call :up.number {:n n :scale scale}))) [1 2 3 4 5 6 7])
        rest (parallel (:n (call :up.number {:n 8 :scale scale})) (:n (call :up.number {:n 9 :scale scale}))
                       (:n (call :up.number {:n 10 :scale scale})))]
    {:sum (apply + (concat first rest))}))
"#;

fn asking(upstream: &Upstream) -> World {
    for n in 1..=10 {
        upstream.set(&format!("GET /numbers/{n}"), 200, &json!({"n": n * 10}).to_string());
    }
    let config = format!(
        "capabilities:\n- id: up.number\n  provider: {{Http: {{base_url: '{}', method: GET, path: '/numbers/{{n}}', query: {{scale: '{{scale}}'}}}}}}\n  input_schema: {{n: integer, scale: any}}\n",
        upstream.url()
    );
    world().file("tools/ten.rtfs", TEN).config(&config)
}

/// Returns the id of the last call of a capability.
fn last_call(server: &Server, capability: &str) -> String {
    let url = format!("http://{}", server.address());
    let listed =
        server.run(&["calls", "--json", "--capability", capability, "--limit", "1", "--url", &url]);
    let rows: Vec<Value> = serde_json::from_str(&listed.stdout).expect("JSON");
    rows[0]["id"].as_str().expect("an id").to_owned()
}

/// Returns the case of the newest call of a capability.
fn exported(server: &Server, capability: &str) -> String {
    let url = format!("http://{}", server.address());
    let case = server.run(&["calls", "export", &last_call(server, capability), "--url", &url]);
    assert_eq!(case.code, Some(0), "{}", case.all());
    case.stdout
}

#[test]
fn a_recorded_program_of_ten_requests_is_tested_without_a_network() {
    let upstream = Upstream::start();
    let mut server = asking(&upstream).serve();
    let result = server.client().call_text("ten", r#"{"scale": 1.10}"#).expect("a result");
    assert_eq!(result.structured(), &json!({"sum": 550}), "{result:?}");
    let case = exported(&server, "ten");
    server.write("case.test.json", &case, 0o644);
    let read: Value = serde_json::from_str(&case).expect("JSON");
    assert_eq!(read[0]["calls"].as_array().map(Vec::len), Some(10), "{case}");
    server.terminate();

    let online = server.run(&["test", "case.test.json"]);
    assert_eq!(online.code, Some(0), "{}", online.all());
    let count = upstream.requests().len();
    assert_eq!(count, 20);
    for n in 1..=10 {
        upstream.set(&format!("GET /numbers/{n}"), 500, "{}");
    }
    let offline = server.run(&["test", "--replay", "case.test.json", "--json"]);
    assert!(offline.code == Some(0) && results(&offline)[0]["ok"] == true, "{}", offline.all());
    assert_eq!(upstream.requests().len(), count, "nothing was asked");
    let calls = read[0]["calls"].as_array().expect("calls");
    let took: f64 = calls.iter().filter_map(|call| call["duration_ms"].as_f64()).sum();
    let recorded = results(&offline)[0]["recorded_ms"].as_f64().expect("milliseconds");
    assert!(took > 0.0 && (recorded - took).abs() < 0.01, "{recorded} {took}");
    assert_eq!(server.run(&["test", "case.test.json"]).code, Some(1), "without --replay it is");

    // One call was not recorded, and one recorded call is not made.
    server.write("tools/ten.rtfs", TEN.replace("[1 2 3 4 5 6 7]", "[1 2 3 4 5 6 11]"), 0o644);
    let other = server.run(&["test", "--replay", "case.test.json"]);
    assert!(
        other.code == Some(1) && other.stdout.contains("no call with this input"),
        "{}",
        other.all()
    );
    server.write("tools/ten.rtfs", TEN.replace("[1 2 3 4 5 6 7]", "[1 2 3 4 5 6]"), 0o644);
    let fewer = server.run(&["test", "--replay", "case.test.json"]);
    assert!(
        fewer.code == Some(1) && fewer.stdout.contains("were not made: up.number"),
        "{}",
        fewer.all()
    );

    // The capability was removed with its configuration. The recording replaces it.
    server.write("tools/ten.rtfs", TEN, 0o644);
    server.write("orla.yaml", "", 0o644);
    let without = server.run(&["test", "--replay", "case.test.json"]);
    assert_eq!(without.code, Some(0), "{}", without.all());
}

#[test]
fn a_program_that_failed_beside_running_calls_is_replayed_to_the_same_end() {
    // `x` fails while `slow` runs, whichever of them begins first.
    let pack = "# /// orla\n# input_schema: {folder: string}\n# ///\n\
                case $2 in x) until [ -e slow-runs ]; do :; done; exit 3;; slow) touch slow-runs; exec sleep 600;; esac; echo packed";
    let cost = "(defn main [{:keys [folders]}]\n  (pmap (fn [f] (call :pack {:folder f})) folders))\n";
    let server = world().tool("pack", sh(pack)).file("tools/cost.rtfs", cost).serve();
    for folders in
        [json!(["slow", "x"]), json!(["x", "slow"]), json!(["x"]), json!(["fine", "slow", "x"])]
    {
        let _ = std::fs::remove_file(server.path("slow-runs"));
        if folders == json!(["x"]) {
            server.write("slow-runs", "", 0o644);
        }
        let result = server.client().call("cost", json!({"folders": folders}));
        assert!(result.is_error() && result.sentence().contains("exited with code 3"), "{result:?}");
        let case = exported(&server, "cost");
        server.write("case.test.json", &case, 0o644);
        let replayed = server.run(&["test", "--replay", "case.test.json"]);
        assert_eq!(replayed.code, Some(0), "{folders}: {}\n{case}", replayed.all());
    }
}

#[test]
fn a_tool_that_runs_only_as_a_task_is_tested_and_replayed() {
    let job = "# /// orla\n# task: required\n# ///\necho done";
    let server = world()
        .tool("job", sh(job))
        .file("job.yaml", "- {name: runs, capability: job, expect: {contains: done}}\n")
        .serve();
    let tested = server.run(&["test", "job.yaml"]);
    assert_eq!(tested.code, Some(0), "{}", tested.all());
    let url = format!("http://{}", server.address());
    let ran = server.run(&["task", "run", "job", "--wait", "--url", &url]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let replay = format!("/calls/{}/replay", last_call(&server, "job"));
    let request = Request::new("POST", &replay).header("content-type", "application/json");
    let answer = server.http().send(&request.body("{}".to_owned())).expect("an answer");
    assert_eq!(answer.status, 202, "{answer:?}");
}

#[test]
fn a_program_that_handles_a_refused_call_is_replayed() {
    let add = "# /// orla\n# input_schema: {a: number, b: number}\n# ///\necho added";
    let sum = "(defn main [_] (try (call :add {:a \"x\"}) (catch e (:kind e))))\n";
    let server = world().tool("add", sh(add)).file("tools/sum.rtfs", sum).serve();
    assert_eq!(server.client().call("sum", json!({})).text(), "invalid-input");
    let case = exported(&server, "sum");
    server.write("case.test.json", &case, 0o644);
    let replayed = server.run(&["test", "--replay", "case.test.json"]);
    assert_eq!(replayed.code, Some(0), "{}\n{case}", replayed.all());
}

#[test]
fn a_replayed_program_opens_no_stream() {
    let config = "capabilities:\n- id: ticks\n  provider: {stream: {command: ./ticks}}\n";
    let server = world()
        .config(config)
        .tool("../ticks", sh("echo x >> opened; echo 1; echo 2"))
        .file("tools/all.rtfs", "(defn main [_] (vec (stream :ticks {})))\n")
        .serve();
    assert_eq!(server.client().call("all", json!({})).text(), "[1,2]");
    server.write("case.test.json", exported(&server, "all"), 0o644);
    let replayed = server.run(&["test", "--replay", "case.test.json"]);
    let why = "a recording has no items of a stream";
    assert!(replayed.code == Some(1) && replayed.stdout.contains(why), "{}", replayed.all());
    assert_eq!(server.read("opened"), "x\n", "only the recorded call opened it");
}

#[test]
fn an_exported_case_has_the_numbers_of_the_call() {
    let server = world().tool("echo", "#!/bin/sh\n# /// orla\n# output: json\n# ///\ncat\n").serve();
    let input = r#"{"amount":1.10,"big":18446744073709551617,"deep":[-0.0,1.5e3]}"#;
    server.client().call_text("echo", input).expect("a result");
    let case = exported(&server, "echo");
    for number in ["1.10", "18446744073709551617", "-0.0", "1.5e3"] {
        assert_eq!(case.matches(number).count(), 2, "{number}, as input and as output: {case}");
    }
    server.write("case.test.json", &case, 0o644);
    let ran = server.run(&["test", "case.test.json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    // The tool gets the input of the call.
    server.write(
        "tools/echo",
        sh("cat > got; cat got").replacen('\n', "\n# /// orla\n# output: json\n# ///\n", 1),
        0o755,
    );
    server.run(&["test", "case.test.json"]);
    assert!(server.read("got").contains("1.10") && server.read("got").contains("18446744073709551617"));
}

#[test]
fn a_call_with_a_redacted_secret_becomes_no_case() {
    let login = "#!/bin/sh\n# /// orla\n# input_schema: {type: object, properties: {pin: {type: string, writeOnly: true}}}\n# ///\necho in\n";
    let server = world().tool("login", login).serve();
    server.client().call("login", json!({"pin": "hunter2-hunter2"}));
    let url = format!("http://{}", server.address());
    let rows = server.http().get("/calls").json();
    let ran = server.run(&["calls", "export", rows[0]["id"].as_str().expect("an id"), "--url", &url]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("secret") && ran.stdout.is_empty(),
        "{}",
        ran.all()
    );
}
