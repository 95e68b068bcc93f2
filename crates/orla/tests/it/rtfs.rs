//! Programs in RTFS: as files that are tools, on the command line, and from clients.

use orla_e2e::{Request, World, eventually};
use serde_json::{Value, json};

use crate::upstream::Upstream;
use crate::{sh, world};

const GREET: &str = "\
; Greets somebody.
(import words :as w)
(defn main [{:keys [name times], :or {times 1}} :- [:map {:name :string} [:times [:and :int [:> 0]] ?]]]
    :- [:map {:text :string}]
  {:text (join \" \" (repeat-greeting times (w/hello name)))})
(defn repeat-greeting [n text] (vec (take n (repeat text))))
";

#[test]
fn a_file_of_the_language_is_a_tool_and_its_types_are_its_schemas() {
    let world = world()
        .file(
            "tools/greet.rtfs",
            GREET.replace("[:map {:name :string} [:times", "[:map [:name :string] [:times"),
        )
        .file("tools/words.rtfs", "(defn hello [name] (str \"Hello, \" name \"!\"))")
        .file("tools/broken.rtfs", "(defn main [input]\n  (if))")
        .tool("shout", sh("echo loud"))
        .tool("also.rtfs", "(defn main \"Calls a tool.\" [] (trim (:stdout (call :shout))))")
        .config("watch: true\n");
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1));
    assert!(checked.all().contains("broken.rtfs:2:3: "), "{}", checked.all());
    let server = world.serve();
    for mut client in server.clients() {
        assert_eq!(client.tool_names(), ["also", "greet", "shout"], "what is broken costs itself");
        let tool = client.tool("greet");
        assert_eq!(tool["description"], "Greets somebody.");
        assert_eq!(tool["inputSchema"]["required"], json!(["name"]));
        assert_eq!(tool["inputSchema"]["properties"]["name"]["type"], "string");
        assert_eq!(tool["outputSchema"]["required"], json!(["text"]));
        let result = client.call("greet", json!({"name": "Ada", "times": 2}));
        assert_eq!(result.structured(), &json!({"text": "Hello, Ada! Hello, Ada!"}), "{}", result.json);
        let refused = client.call("greet", json!({"name": "Ada", "times": 0}));
        assert!(refused.is_error() && refused.sentence().contains("input.times"), "{}", refused.json);
        assert_eq!(client.call("also", json!({})).text(), "loud");
    }
    let status = server.status();
    let row =
        status["capabilities"].as_array().unwrap().iter().find(|row| row["name"] == "greet").unwrap();
    assert_eq!(row["kind"], "rtfs");
    assert!(row["source"].as_str().unwrap().ends_with("tools/greet.rtfs"), "{row}");
    // A changed module changes the program, and a repaired module is served.
    server.write("tools/words.rtfs", "(defn hello [name] (str \"Bye, \" name))", 0o644);
    server.write("tools/broken.rtfs", "(defn main [input] (count input))", 0o644);
    eventually("both are served", || {
        let mut client = server.client();
        client.tool_names().contains(&"broken".to_owned())
            && client.call("greet", json!({"name": "Ada"})).text().contains("Bye, Ada")
    });
    server.assert_no_tool_is_left();
}

#[test]
fn a_file_of_the_language_describes_itself_in_a_block_or_beside_it() {
    let block = "\
;; /// orla
;; title: Doubler
;; description: Doubles a number.
;; input_schema: {n: integer}
;; output_schema: {twice: integer}
;; annotations: {readOnlyHint: true}
;; permissions: ['db:prod']
;; ///
(defn main [{:keys [n]}] {:twice (if (= n 9) \"many\" (* 2 n))})
";
    let server = world()
        .file("tools/double.rtfs", block)
        .file("tools/beside.rtfs", "; Not this.\n(defn main [input] 1)")
        .file("tools/beside.orla.yaml", "description: From beside it.\n")
        .file(
            "tools/slow.rtfs",
            "; /// orla\n; timeout: 0.2\n; ///\n; Waits.\n(defn main [] (call :sleeps))",
        )
        .tool("sleeps", sh("exec sleep 60"))
        .file("tools/late.rtfs", "(defn main [] 1)")
        .config(
            "auth_tokens: {ada: ada-token-0123456789, bob: bob-token-0123456789}\n\
             tools: {late: {permissions: ['db:prod']}}\n\
             policy:\n- {to: [ada], allow: ['*']}\n- {to: [bob], allow: ['exec:*']}\n",
        )
        .serve();
    let mut ada = server.client_as("ada-token-0123456789");
    let tool = ada.tool("double");
    assert_eq!(
        (&tool["title"], &tool["description"], &tool["annotations"]["readOnlyHint"]),
        (&json!("Doubler"), &json!("Doubles a number."), &json!(true))
    );
    assert_eq!(tool["inputSchema"]["properties"]["n"]["type"], "integer");
    assert_eq!(tool["outputSchema"]["required"], json!(["twice"]));
    assert_eq!(ada.tool("beside")["description"], "From beside it.");
    assert_eq!(ada.tool("slow")["description"], "Waits.", "the block is no comment");
    assert_eq!(ada.call("double", json!({"n": 2})).structured(), &json!({"twice": 4}));
    let refused = ada.call("double", json!({"n": "x"}));
    assert!(refused.sentence().contains("input.n"), "{}", refused.json);
    let broken = ada.call("double", json!({"n": 9}));
    assert!(broken.sentence().contains("output.twice"), "{}", broken.json);
    let late = ada.call("slow", json!({}));
    assert!(late.sentence().contains("longer than 0.2 s"), "{}", late.json);
    let mut bob = server.client_as("bob-token-0123456789");
    assert_eq!(bob.tool_names(), ["beside", "sleeps", "slow"], "bob lacks db:prod");
}

#[test]
fn inapplicable_settings_make_a_program_file_unavailable_with_the_place() {
    let world = world()
        .file("tools/args.rtfs", "; /// orla\n; title: x\n; args: [-n]\n; ///\n(defn main [] 1)")
        .file("tools/soon.rtfs", "; /// orla\n; timeout: soon\n; ///\n(defn main [] 1)")
        .file("tools/open.rtfs", "; /// orla\n; title: x\n(defn main [] 1)")
        .file("tools/side.rtfs", "(defn main [] 1)")
        .file("tools/side.orla.yaml", "limits: {wall: 1}\n")
        .file("tools/bounded.rtfs", "(defn main [] 1)")
        .file("tools/latin.rtfs", b"; Says oui.\n(defn main [] \"\xe9\")")
        .config("tools:\n  bounded: {limits: {wall: 1}, env: {A: b}}\n");
    let faults = [
        ("args", "tools/args.rtfs:3:3: args: a program in RTFS has no process, so this cannot hold"),
        ("soon", "tools/soon.rtfs:2:12: timeout: expected seconds above 0"),
        ("open", "tools/open.rtfs:3:1: the metadata block has no end: expected `; ///`"),
        ("side", "tools/side.orla.yaml:1:1: limits: a program in RTFS has no process"),
        (
            "bounded",
            "tools.bounded.env: a program in RTFS has no process, so this cannot hold; remove it at orla.yaml:2:3",
        ),
        ("latin", "tools/latin.rtfs:2:16: cannot be read: not UTF-8 (at byte 27)"),
    ];
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1));
    let server = world.serve();
    let (mut client, status) = (server.client(), server.status());
    assert_eq!(client.tool_names(), Vec::<String>::new());
    for (name, fault) in faults {
        assert!(checked.all().contains(fault), "{fault}: {}", checked.all());
        let failed = client.call(name, json!({}));
        assert!(failed.is_error() && failed.sentence().contains(fault), "{}", failed.json);
        let rows = status["capabilities"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == name).expect("a row");
        assert!(row.to_string().contains(fault), "{row}");
    }
    assert!(checked.all().contains("tools.bounded.limits: "), "{}", checked.all());
}

#[test]
fn the_language_and_the_search_can_be_switched_off_like_tools() {
    let world = world()
        .tool("t", sh("echo t"))
        .config("expose: search\ntools: {rtfs: {enabled: false}, capability_call: {enabled: false}}\n");
    let checked = world.run(&["check"]);
    assert!(checked.code == Some(0) && !checked.all().contains("warning"), "{}", checked.all());
    let server = world.serve();
    let mut client = server.client();
    let names = client.tool_names();
    assert!(names.contains(&"capability_search".to_owned()), "{names:?}");
    for off in ["rtfs", "capability_call"] {
        assert!(!names.contains(&off.to_owned()), "{names:?}");
        let refused = client.request("tools/call", json!({"name": off, "arguments": {"program": "1"}}));
        assert!(format!("{refused:?}").contains("unknown tool"), "{refused:?}");
    }
    let sent = server.http().send(&Request::new("POST", "/rtfs").body("(+ 1 2)")).unwrap();
    assert_ne!(sent.status, 200);
}

/// Calls of a tool, a file in the language, built-ins and HTTP, one after the other and at once.
const REPORT: &str = r#"
(defn temp [city] (:temp (call :weather.current {:city city})))
(def cities ["Paris" "Oslo" "Rome"])
(def temps (pmap temp cities {:max 2}))
(let [{:keys [tool sum]} (parallel {:tool (call :shout {}) :sum (call :math.add {:a (first temps) :b 0.5})})
      warm (->> (zipmap cities temps) (filter (fn [[_ t]] (> t 10))) (map first))
      bad (try (call :weather.current {:city "Nowhere"}) (catch :failed e (:capability e)))
      words (race (call :doubled {:text "a"}) (call :doubled {:text "a"}))]
  {:temps temps :warm (vec warm) :tool (trim (:stdout tool)) :sum sum :bad bad :words words})
"#;

fn reporting(upstream: &Upstream) -> World {
    for (city, temp) in [("Paris", "21.50"), ("Oslo", "3"), ("Rome", "24")] {
        upstream.set(&format!("GET /v1/{city}"), 200, &format!(r#"{{"temp": {temp}}}"#));
    }
    let config = format!(
        "capabilities:\n- id: weather.current\n  provider: {{Http: {{base_url: '{}/v1', method: GET, path: '/{{city}}'}}}}\n",
        upstream.url()
    );
    world()
        .tool("shout", sh("echo loud"))
        .file("tools/doubled.rtfs", "(defn main [{:keys [text]}] (str text text))")
        .file("report.rtfs", REPORT)
        .config(&config)
}

#[test]
fn programs_are_checked_against_what_is_served() {
    let upstream = Upstream::start();
    let wrong = "(defn f [x] (inc x))\n(f \"a\")\n(call :math.ad {})\n(call :doubled {:txt 1})\n(let [y 1] (zork))";
    let world = reporting(&upstream)
        .file("wrong.rtfs", wrong)
        .file("tools/late.rtfs", "(defn main [input]\n  (if (:all input) (inc \"a\") 1))");

    let good = world.run(&["rtfs", "check", "report.rtfs"]);
    assert_eq!((good.code, good.stdout.trim(), &*good.stderr), (Some(0), "ok: report.rtfs", ""));

    let expected = [
        ("error", "type", 2, 4, "`f` needs a number, got \"a\""),
        (
            "error",
            "unknown-capability",
            3,
            7,
            "there is no capability `math.ad`; did you mean `:math.add`?",
        ),
        ("error", "invalid-input", 4, 16, "`doubled` cannot take this: input.text"),
        ("warning", "unused", 5, 7, "`y` is never used"),
        ("error", "undefined", 5, 13, "`zork` is not defined"),
    ];
    let found = world.run(&["rtfs", "check", "--json", "report.rtfs", "wrong.rtfs"]);
    assert_eq!(found.code, Some(1), "{}", found.all());
    let lines: Vec<Value> =
        found.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let shown = world.run(&["rtfs", "check", "wrong.rtfs"]);
    assert!(
        shown
            .stderr
            .contains("wrong.rtfs:2:4: `f` needs a number, got \"a\"\n2 | (f \"a\")\n  |    ^^^\n"),
        "{}",
        shown.all()
    );
    assert!(shown.stderr.trim_end().ends_with("4 errors, 1 warning"), "{}", shown.all());
    let warned = world.run(&["rtfs", "check", "-e", "(let [y 1] 2)"]);
    assert_eq!((warned.code, warned.stdout.trim()), (Some(0), "ok: 1 warning"), "{}", warned.all());
    let piped = world.run_with_input(&["rtfs", "check", "-"], b"(inc 1 2)");
    assert!(
        piped.code == Some(1) && piped.stderr.contains("1:1: `inc` takes 1 argument, got 2"),
        "{}",
        piped.all()
    );

    // Findings for a file among the tools name calls that cannot succeed.
    let checked = world.run(&["check"]);
    assert!(
        checked.all().contains("late.rtfs:2:25: `inc` takes a number, got \"a\""),
        "{}",
        checked.all()
    );

    let server = world.serve();
    let mut client = server.client();
    let result = client.call("rtfs_check", json!({"program": wrong}));
    let problems = result.structured()["problems"].as_array().unwrap().clone();
    assert_eq!(result.structured()["ok"], false);
    for found in [&lines, &problems] {
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, (severity, kind, line, column, message)) in found.iter().zip(expected) {
            let row = (&found["severity"], &found["kind"], &found["line"], &found["column"]);
            assert_eq!(row, (&json!(severity), &json!(kind), &json!(line), &json!(column)), "{found}");
            assert!(found["message"].as_str().unwrap().starts_with(message), "{found}");
        }
    }
    assert_eq!((&lines[0]["file"], &lines[0]["end_column"]), (&json!("wrong.rtfs"), &json!(7)));

    let late = client.call("late", json!({}));
    assert!(late.is_error() && late.sentence().contains("late.rtfs:2:25"), "{}", late.json);

    // What fails when it runs says what else would.
    let failed = client.call("rtfs", json!({"program": "(inc \"a\")\n(call :math.ad {})"}));
    let text = failed.text();
    assert!(
        failed.is_error() && text.starts_with("1:") && text.contains("2:7: there is no capability"),
        "{text}"
    );
    let runs = client.call("rtfs", json!({"program": "(if (= 1 2) (inc \"a\") (let [y 1] 3))"}));
    assert_eq!(runs.structured(), &json!({"value": 3}));
}

fn post(body: &Value) -> Request {
    Request::new("POST", "/rtfs").header("content-type", "application/json").body(body.to_string())
}

#[test]
fn one_program_gives_the_same_answer_in_every_way_to_run_it() {
    let upstream = Upstream::start();
    let world = reporting(&upstream);
    let expected = json!({
        "temps": [21.5, 3, 24], "warm": ["Paris", "Rome"], "tool": "loud", "sum": 22.0, "bad": "weather.current",
        "words": "aa",
    });
    let of_text =
        |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|err| panic!("{err}: {text}"));

    let ran = world.run(&["rtfs", "report.rtfs", "--json", "--trace"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_eq!(of_text(&ran.stdout), expected);
    assert_eq!(ran.stderr.lines().filter(|line| line.contains("call ")).count(), 7, "{}", ran.stderr);

    let line = json!({"src": REPORT, "type": "[:map [:temps [:vector :number]]]"}).to_string();
    let lines = world.run_with_input(&["rtfs", "--jsonl"], line.as_bytes());
    let answer = of_text(&lines.stdout);
    assert_eq!((&answer["json"], &answer["matches"]), (&expected, &json!(true)), "{}", lines.all());

    let server = world.serve();
    for mut client in server.clients() {
        let result = client.call("rtfs", json!({"program": REPORT}));
        assert_eq!(result.structured(), &json!({"value": expected}), "{}", result.json);
    }
    let answer = server.http().send(&post(&json!({"program": REPORT}))).unwrap();
    assert_eq!((answer.status, answer.json()), (200, json!({"value": expected})));

    let streamed =
        post(&json!({"program": format!("(log :info \"begins\" 1) (step \"Report\" {REPORT})")}))
            .header("accept", "text/event-stream");
    let mut exchange = server.http().write(&streamed).unwrap().head().unwrap();
    assert_eq!(exchange.header("content-type"), Some("text/event-stream"));
    let mut events = Vec::new();
    while let Some(event) = exchange.next_event().unwrap() {
        events.push(of_text(&event));
    }
    assert_eq!(events[0], json!({"level": "info", "message": "begins", "data": 1}));
    assert_eq!(events[1], json!({"name": "Report"}));
    let calls = events.iter().filter(|event| event["capability"].is_string()).count();
    assert!(calls >= 6, "{events:?}");
    assert_eq!(events.last(), Some(&json!({"value": expected})));
    server.assert_no_tool_is_left();
}

#[test]
fn errors_have_a_kind_a_place_and_a_status() {
    let server = reporting(&Upstream::start()).serve();
    let mut http = server.http();
    for (body, status, kind, line) in [
        (json!({"program": "(+ 1\n  (inc \"a\"))"}), 200, "type", Some(2)),
        (json!({"program": "(if)\n(let [x])"}), 200, "syntax", Some(1)),
        (json!({"program": "(throw {:kind :mine :message \"m\" :data {:n 1}})"}), 200, "mine", Some(1)),
        (json!({"program": "(call :nobody {})"}), 200, "unknown-capability", Some(1)),
        (json!({"program": "(loop [] (recur))", "limits": {"steps": 1000}}), 200, "limit", Some(1)),
        (json!({"program": "(loop [] (recur))", "limits": {"timeout_ms": 50}}), 200, "limit", Some(1)),
        (json!({"program": "1", "limits": {"stepps": 1}}), 400, "invalid-input", None),
        (json!({"program": "(stream :math.add {})"}), 200, "type", Some(1)),
        (json!({"program": 1}), 400, "invalid-input", None),
        (json!({"programm": "1"}), 400, "invalid-argument", None),
        (json!({"call": "nobody"}), 200, "unknown-capability", None),
        (json!({"call": "math.add", "input": {"a": "x"}}), 200, "invalid-input", None),
    ] {
        let answer = http.send(&post(&body)).unwrap();
        let error = &answer.json()["error"];
        assert_eq!(
            (answer.status, error["kind"].as_str()),
            (status, Some(kind)),
            "{body}: {}",
            answer.text()
        );
        assert_eq!(error["at"]["line"].as_u64(), line, "{body}: {}", answer.text());
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
    }
    for body in [
        json!({"call": "math.add", "input": {"a": 1, "b": 2}}),
        json!({"program": "(+ 1 input)", "input": 2, "limits": null}),
    ] {
        let answer = http.send(&post(&body)).unwrap();
        assert_eq!((answer.status, answer.json()), (200, json!({"value": 3})));
    }
    // A request that is refused before it runs gets a plain refusal, even from a client that accepts
    // events.
    let streamed = post(&json!({"program": "1", "limits": {"steps": "x"}}));
    let answer = server.http().send(&streamed.header("accept", "text/event-stream")).unwrap();
    assert_eq!((answer.status, &answer.json()["error"]["kind"]), (400, &json!("invalid-input")));
    let plain = Request::new("POST", "/rtfs").header("content-type", "text/plain").body("1");
    assert_eq!(http.send(&plain).unwrap().status, 415);
    assert_eq!(http.get("/rtfs").status, 405);
    let foreign = post(&json!({"program": "1"})).header("origin", "https://evil.example");
    assert_eq!(server.http().send(&foreign).unwrap().status, 403);
    let large = post(&json!({"program": "x".repeat(5 << 20)}));
    assert_eq!(server.http().send(&large).unwrap().status, 413);
}

#[test]
fn recursive_calls_end_at_max_depth() {
    let server = world().file("tools/self.rtfs", "(defn main [input] (call :self input))").serve();
    let mut http = server.http();
    let own = "(call :rtfs {:program (:p input) :input input})";
    for body in [json!({"program": own, "input": {"p": own}}), json!({"call": "self", "input": {}})] {
        let answer = http.send(&post(&body)).unwrap();
        let error = &answer.json()["error"];
        assert_eq!(error["kind"], "limit", "{body}");
        assert!(error["message"].as_str().unwrap().contains("max_depth"), "{body}");
        assert!(answer.text().len() < 1_000, "{}", answer.text());
    }
    assert_eq!(http.send(&post(&json!({"program": "1"}))).unwrap().json(), json!({"value": 1}));
}

#[test]
fn a_recursive_call_beyond_max_concurrency_fails_at_once() {
    // By itself, and through another.
    let server = world()
        .config("tools: {a: {max_concurrency: 1}, b: {max_concurrency: 1}, two: {max_concurrency: 2}}\n")
        .file("tools/a.rtfs", "(defn main [input] (call :a input))")
        .file("tools/b.rtfs", "(defn main [input] (call :c input))")
        .file("tools/c.rtfs", "(defn main [input] (call :b input))")
        .file("tools/two.rtfs", "(defn main [input] (if (:again input) (call :two {}) 2))")
        .serve();
    let mut http = server.http();
    for id in ["a", "b"] {
        let answer = http.send(&post(&json!({"call": id, "input": {}}))).unwrap();
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("only 1 of its calls may run at once (max_concurrency)"), "{message}");
    }
    let again = json!({"call": "two", "input": {"again": true}});
    assert_eq!(http.send(&post(&again)).unwrap().json(), json!({"value": 2}));
}

#[test]
fn an_error_comes_through_programs_as_it_was_thrown() {
    let inner = "(defn main [input]\n  (throw {:kind :mine :message \"boom\" :data {:n 1}}))";
    let world = world()
        .file("tools/inner.rtfs", inner)
        .file("tools/outer.rtfs", "(defn main [input] (call :inner {}))");
    let caught = "(try (call :outer {}) (catch :mine e [(:message e) (:data e) (:capability e)]))";
    let ran = world.run(&["rtfs", "-e", caught]);
    assert_eq!(ran.stdout.trim(), r#"["boom" {:n 1} :outer]"#, "{}", ran.all());
    let stderr = world.run(&["rtfs", "-e", "(call :outer {})"]).stderr;
    assert!(stderr.starts_with("1:1: mine: boom\n"), "{stderr}");
    assert!(stderr.ends_with("\nin outer at 1:20\nin inner at 2:3\n"), "{stderr}");
    let logged = world.run(&["rtfs", "-e", "(do (log :info \"so far\" 1) 2)"]);
    assert_eq!(
        (logged.stdout.trim(), logged.stderr.contains("so far 1")),
        ("2", true),
        "{}",
        logged.all()
    );
    let server = world.serve();
    for mut client in server.clients() {
        let result = client.call("rtfs", json!({"program": "(call :outer {})"}));
        assert!(result.is_error() && result.content().len() == 1, "{}", result.json);
        assert_eq!(result.text().matches("boom").count(), 1, "{}", result.json);
        assert_eq!(result.structured()["error"]["kind"], "mine", "{}", result.json);
        // The mistake that the run met is not found again.
        let result = client.call("rtfs", json!({"program": "(inc \"a\") (inc :b)"}));
        assert_eq!(
            result.structured()["error"]["problems"].as_array().map(Vec::len),
            Some(1),
            "{}",
            result.json
        );
    }
    server.assert_no_tool_is_left();
}

#[test]
fn a_program_is_called_under_the_same_guard_and_policy_as_everything() {
    let server = world().config("auth_tokens: [s3cret]\ndeny: [rtfs]\n").serve_quietly();
    let program = post(&json!({"program": "1"}));
    assert_eq!(server.http().send(&program).unwrap().status, 401);
    let answer = server.http().send(&program.bearer("s3cret")).unwrap();
    assert_eq!(answer.json()["error"]["kind"], "unknown-capability", "{}", answer.text());
}

#[test]
fn a_program_whose_client_goes_away_leaves_nothing_running() {
    let server = world().tool("slow", sh("echo $$ > started; exec sleep 600")).serve();
    let program = json!({"program": "(parallel (call :slow {}) (call :slow {}))"});
    for accept in ["application/json", "text/event-stream"] {
        let asked = server.http().write(&post(&program).header("accept", accept)).unwrap();
        eventually("the tool runs", || server.path("started").exists());
        drop(asked);
        server.assert_no_tool_is_left();
        server.remove("started");
    }
}

#[test]
fn programs_are_laid_out_in_place_or_through_standard_input() {
    let (rough, neat) = ("(def  x ; why\n 1)\n", "(def x ; why\n  1)\n");
    let world =
        world().file("rough.rtfs", rough).file("neat.rtfs", neat).file("broken.rtfs", "(def x\n (f");
    let checked = world.run(&["rtfs", "fmt", "--check", "rough.rtfs", "neat.rtfs"]);
    assert_eq!((checked.code, checked.stdout.as_str()), (Some(1), "rough.rtfs\n"), "{}", checked.all());
    assert_eq!(world.read("rough.rtfs"), rough, "only looked at");
    // A broken file does not affect the others.
    let done = world.run(&["rtfs", "fmt", "broken.rtfs", "nowhere.rtfs", "rough.rtfs", "neat.rtfs"]);
    assert_eq!(done.code, Some(1));
    assert!(
        done.stderr.contains("broken.rtfs:2:2: ") && done.stderr.contains("nowhere.rtfs"),
        "{}",
        done.all()
    );
    assert_eq!(
        (world.read("rough.rtfs").as_str(), world.read("broken.rtfs").as_str()),
        (neat, "(def x\n (f")
    );
    let checked = world.run(&["rtfs", "fmt", "--check", "rough.rtfs", "neat.rtfs"]);
    assert_eq!((checked.code, checked.all().as_str()), (Some(0), ""));
    for arguments in [&["rtfs", "fmt"][..], &["rtfs", "fmt", "-"]] {
        let piped = world.run_with_input(arguments, rough.as_bytes());
        assert_eq!((piped.code, piped.stdout.as_str()), (Some(0), neat), "{}", piped.all());
    }
    let piped = world.run_with_input(&["rtfs", "fmt", "--check", "-"], rough.as_bytes());
    assert_eq!(piped.code, Some(1));
}

#[test]
fn a_program_whose_time_is_over_runs_no_handler_at_any_door() {
    let caught =
        "(try (call :slow {}) (catch _ e :caught) (finally (log :info (str \"too \" \"late\"))))";
    let world = world()
        .tool("slow", sh("sleep 60"))
        .file("tools/plain.rtfs", "(defn main [input] (call :slow {}))")
        .file("tools/catches.rtfs", format!("(defn main [input] {caught})"))
        .config("tools: {plain: {timeout: 1}, catches: {timeout: 1}}\n");
    let server = world.serve();
    let late = |answer: &Value| {
        let error = &answer["error"];
        assert_eq!(
            (&error["kind"], &error["data"]),
            (&json!("limit"), &json!({"limit": "time"})),
            "{answer}"
        );
    };
    let limits = json!({"timeout_ms": 40});
    for program in [caught, "(call :slow {})"] {
        let mut http = server.http();
        for _ in 0..15 {
            late(&http.send(&post(&json!({"program": program, "limits": limits}))).unwrap().json());
        }
    }
    for id in ["plain", "catches"] {
        late(&server.http().send(&post(&json!({"call": id, "input": {}}))).unwrap().json());
        let answer = server.http().send(&Request::new("POST", &format!("/api/{id}"))).unwrap();
        assert_eq!((answer.status, &answer.json()["kind"]), (504, &json!("limit")), "{}", answer.text());
    }
    for mut client in server.clients() {
        let result = client.call("rtfs", json!({"program": caught, "limits": limits}));
        assert!(result.is_error(), "{}", result.json);
        late(result.structured());
    }
    assert!(!server.log().contains("too late"));
    server.assert_no_tool_is_left();
}

#[test]
fn input_and_output_of_a_program_file_are_validated() {
    let world = world()
        .file("tools/rt.rtfs", "(defn main [x :- [:map [:v :any]]] :- [:map [:n :int]] {:n (:v x)})")
        .file("tools/e.rtfs", "(defn main [input] input)");
    let server = world.serve();
    let mut http = server.http();
    let mut answer = |path: &str, body: &str| {
        let request = Request::new("POST", path).header("content-type", "application/json");
        let answer = http.send(&request.body(body)).unwrap();
        (answer.status, answer.json())
    };
    let (_, broken) = answer("/rtfs", r#"{"call": "rt", "input": {"v": "q"}}"#);
    assert_eq!(broken["error"]["kind"], "invalid-output", "{broken}");
    assert_eq!(broken["error"]["data"][0]["path"], "output.n", "{broken}");
    let (status, broken) = answer("/api/rt", r#"{"v": "q"}"#);
    assert_eq!((status, &broken["kind"]), (502, &json!("invalid-output")), "{broken}");
    let caught = "(try (call :rt {:v 1.5}) (catch :invalid-output e (:capability e)))";
    let (_, value) = answer("/rtfs", &json!({ "program": caught }).to_string());
    assert_eq!(value, json!({"value": "rt"}));
    for mut client in server.clients() {
        let result = client.call("rt", json!({"v": "q"}));
        assert!(result.is_error() && result.sentence().contains("output.n"), "{}", result.json);
        assert_eq!(client.call("rt", json!({"v": 3})).structured(), &json!({"n": 3}));
    }

    for (input, path) in
        [(r#"{"v":1e400}"#, "input.v"), (r#"{"v":"\ud800"}"#, "input.v"), (r#"{"v":1,"v":2}"#, "input")]
    {
        let (_, refused) = answer("/rtfs", &format!(r#"{{"call":"e","input":{input}}}"#));
        assert_eq!(refused["error"]["kind"], "invalid-input", "{input}: {refused}");
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("e: invalid input: {path}")), "{message}");
        let (status, refused) = answer("/api/e", input);
        assert_eq!((status, &refused["kind"]), (400, &json!("invalid-input")), "{input}: {refused}");
        let (status, refused) = answer("/rtfs", &format!(r#"{{"program":"input","input":{input}}}"#));
        assert_eq!((status, &refused["error"]["kind"]), (400, &json!("invalid-input")), "{refused}");
    }
}

#[test]
fn nothing_takes_the_name_of_the_language() {
    let world = world().tool("rtfs", sh("echo mine")).config(
        "capabilities: [{id: rtfs_check, description: adds, provider: {Local: {function: math.add}}}]\n",
    );
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{}", checked.all());
    for words in
        ["rtfs: this name is that of the language; the tool is called rtfs_2", "called rtfs_check_2"]
    {
        assert!(checked.all().contains(words), "{}", checked.all());
    }
    let server = world.serve();
    server.log_says(&["rtfs: this name is that of the language"]);
    let mut http = server.http();
    let mut answer = |body: Value| http.send(&post(&body)).unwrap().json();
    assert_eq!(answer(json!({"program": "(+ 1 2)"})), json!({"value": 3}));
    assert_eq!(answer(json!({"call": "rtfs_check_2", "input": {"a": 1, "b": 2}})), json!({"value": 3}));
    assert_eq!(answer(json!({"call": "rtfs", "input": {"program": "7"}})), json!({"value": 7}));
    let task = Request::new("POST", "/tasks").header("content-type", "application/json");
    let task = http.send(&task.body(json!({"program": "(* 6 7)"}).to_string())).unwrap().json();
    let path = format!("/tasks/{}", task["id"].as_str().unwrap());
    eventually("the task is done", || http.get(&path).json()["result"].to_string().contains("42"));
    for mut client in server.clients() {
        assert_eq!(client.tool_names(), ["rtfs_2", "rtfs_check_2"]);
        assert!(client.call("rtfs_2", json!({})).text().contains("mine"));
        assert_eq!(client.call("rtfs", json!({"program": "7"})).structured(), &json!({"value": 7}));
    }
}
