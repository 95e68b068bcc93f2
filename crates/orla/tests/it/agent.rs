//! `orla agent`: from a prompt to the execution of tools (RFC 1 §9.1), with a scripted model.

use std::net::TcpStream;

use orla_e2e::{Finished, World};
use serde_json::{Value, json};

use crate::model::{Reply, Scripted, WIRES, Wire, openai};
use crate::{sh, world};

const KEY: &str = "sk-do-not-tell";

/// Returns a tool that declares that it only reads.
pub(crate) fn safe(body: &str) -> String {
    sh(&format!("# /// orla\n# annotations: {{readOnlyHint: true}}\n# ///\n{body}"))
}

/// Runs `orla agent` against a scripted model.
fn run(world: &World, model: &Scripted, wire: &Wire, arguments: &[&str]) -> Finished {
    let base = model.base();
    let mut all = vec!["agent", "--model", wire.model, "--base-url", &base];
    all.extend(arguments);
    world.run(&all)
}

/// Returns the same, and the provider's key is sent to it.
fn run_with_key(world: &World, model: &Scripted, wire: &Wire, arguments: &[&str]) -> Finished {
    let key = wire.key.map(|(variable, _)| ["--api-key-env", variable]);
    run(world, model, wire, &[key.as_ref().map_or(&[][..], |key| key), arguments].concat())
}

fn with_keys(mut world: World) -> World {
    for (variable, _) in WIRES.iter().filter_map(|wire| wire.key) {
        world = world.env(variable, KEY);
    }
    world
}

fn lines(finished: &Finished) -> Vec<Value> {
    finished.stdout.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn a_model_of_each_provider_calls_tools_and_answers_with_what_they_gave() {
    for wire in &WIRES {
        let calls = [("greet", json!({"stdin": "Ada"})), ("add", json!({"stdin": "é"}))];
        let answer = (wire.answer)(&["Hello ", "Ada, it is ", "5 °C.\n"], &[]);
        let model = Scripted::new(vec![(wire.answer)(&["Let me ", "see."], &calls), answer]);
        let world = with_keys(world().tool("greet", safe("echo hello $(cat)")).tool("add", safe("cat")));
        let done = run_with_key(&world, &model, wire, &["greet Ada"]);
        assert_eq!(done.code, Some(0), "{}: {}", wire.model, done.all());
        assert_eq!(done.stdout, "Let me see.\nHello Ada, it is 5 °C.\n", "{}", wire.model);
        let noted: Vec<&str> = done.stderr.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(noted.contains(&"greet") && noted.contains(&"add"), "{}", done.stderr);

        let requests = model.requests();
        assert_eq!(requests.len(), 2, "{}", wire.model);
        for request in &requests {
            assert_eq!(request.path, wire.path);
            assert_eq!((wire.tools)(&request.body), ["add", "greet"], "{}", request.body);
            if let Some((_, header)) = wire.key {
                assert!(request.head.contains(&format!("{header}{KEY}")), "{}", request.head);
            }
        }
        assert!((wire.results)(&requests[0].body).is_empty());
        let results = (wire.results)(&requests[1].body);
        assert_eq!(results.len(), 2, "{}", requests[1].body);
        assert!(results[0].contains("hello Ada") && results[1].contains('é'), "{results:?}");
        assert!(requests[1].body.to_string().contains("greet Ada"), "the prompt is said again");
    }
}

#[test]
fn calls_of_one_answer_run_at_the_same_time() {
    // Each waits for the other.
    let tool = |own: &str, other: &str| {
        safe(&format!("touch {own}; while ! test -e {other}; do sleep 0.02; done; echo {own}"))
    };
    let calls = [("a", json!({})), ("b", json!({}))];
    let model = Scripted::new(vec![openai(&[], &calls), openai(&["done"], &[])]);
    let world = world().tool("a", tool("x", "y")).tool("b", tool("y", "x"));
    let done = run(&world, &model, &WIRES[0], &["go"]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "done\n"), "{}", done.stderr);
}

#[test]
fn errors_of_calls_are_returned_to_the_model() {
    let calls = [
        ("broken", json!({})),
        ("brokn", json!({})),
        ("typed", json!({"n": "x"})),
        ("typed", json!("{\"n\": ")),
    ];
    let model = Scripted::new(vec![openai(&[], &calls), openai(&["I could not."], &[])]);
    let typed = "; Doubles.\n(defn main [{:keys [n]} :- [:map [:n :int]]] :- :int (* 2 n))";
    let world = world().tool("broken", safe("echo oh no >&2; exit 3")).file("tools/typed.rtfs", typed);
    let done = run(&world, &model, &WIRES[0], &["--yes", "go"]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "I could not.\n"), "{}", done.stderr);
    let results = (WIRES[0].results)(&model.requests()[1].body);
    let expected = ["exited with code 3", "broken", "input.n", "not a JSON object"];
    assert_eq!(results.len(), expected.len());
    for (result, expected) in results.iter().zip(expected) {
        assert!(result.starts_with("error: ") && result.contains(expected), "{result}");
    }
}

#[test]
fn destructive_tools_are_not_called_without_an_approver() {
    let world = world()
        .tool("wipe", sh("touch wiped"))
        .tool("look", safe("echo looked"))
        .config("builtins: [math.*]\n");
    let calls = [
        ("wipe", json!({})),
        ("look", json!({})),
        ("math__add", json!({"a": 1, "b": 2})),
        ("capability_call", json!({"id": "wipe", "input": {}})),
    ];
    let script = || Scripted::new(vec![openai(&[], &calls), openai(&["so"], &[])]);
    let model = script();
    let done = run(&world, &model, &WIRES[0], &["go"]);
    assert_eq!(done.code, Some(0), "{}", done.all());
    let results = (WIRES[0].results)(&model.requests()[1].body);
    assert!(results[0].contains("not called") && results[0].contains("--yes"), "{results:?}");
    assert!(results[1].contains("looked") && results[2].contains('3'), "{results:?}");
    assert!(results[3].contains("not called"), "{results:?}");
    assert!(!world.path("wiped").exists());

    for (flags, is_wiped, is_looked) in [
        (&["--approve", "always"][..], false, false),
        (&["--yes"], true, true),
        (&["--approve=never"], true, true),
    ] {
        let model = script();
        let done = run(&world, &model, &WIRES[0], &[flags, &["go"]].concat());
        assert_eq!(done.code, Some(0), "{}", done.all());
        let results = (WIRES[0].results)(&model.requests()[1].body);
        assert_eq!(world.path("wiped").exists(), is_wiped, "{flags:?}");
        assert_eq!(results[1].contains("looked"), is_looked, "{flags:?}");
        if is_wiped {
            world.remove("wiped");
        }
    }
}

#[test]
fn each_limit_ends_the_run_with_a_sentence() {
    let again = || Scripted::new(vec![openai(&["again"], &[("look", json!({}))])]);
    for (config, flags, requests, sentence) in [
        ("", &["--max-steps", "3"][..], 3, "answered 3 times"),
        ("agent: {max_steps: 2}", &[], 2, "answered 2 times"),
        ("agent: {max_tokens: 30}", &[], 2, "30 tokens are used up"),
        ("agent: {max_cost: 0.5, input_price: 10000, output_price: 20000}", &[], 2, "has cost 0.5"),
    ] {
        let world = world().tool("look", safe("echo x")).config(config);
        let model = again();
        let done = run(&world, &model, &WIRES[0], &[flags, &["go"]].concat());
        assert_eq!(done.code, Some(1), "{}", done.all());
        assert!(done.stderr.contains(sentence), "{}", done.stderr);
        assert_eq!(model.requests().len(), requests, "{config}");
    }
}

#[test]
fn a_run_that_takes_too_long_or_is_interrupted_leaves_nothing_running() {
    let slow = || safe("touch started; exec sleep 600");
    let script = || Scripted::new(vec![openai(&[], &[("slow", json!({}))])]);
    let world_of = |config: &str| world().tool("slow", slow()).config(config);

    let world = world_of("timeout: 500\nagent: {timeout: 0.5}\n");
    let done = run(&world, &script(), &WIRES[0], &["go"]);
    assert_eq!(done.code, Some(1), "{}", done.all());
    assert!(done.stderr.contains("took too long"), "{}", done.stderr);
    assert!(world.tool_processes().is_empty());

    let interrupting =
        "\"$@\" & id=$!; while ! test -e started; do sleep 0.02; done; kill -INT $id; wait $id";
    let world = world_of("timeout: 500\n").through(&["sh", "-c", interrupting, "--"]);
    let done = run(&world, &script(), &WIRES[0], &["--json", "go"]);
    assert_eq!(done.code, Some(1), "{}", done.all());
    assert!(done.stderr.contains("stopped by SIGINT"), "{}", done.stderr);
    assert_eq!(lines(&done).last().map(|line| line["reason"].clone()), Some(json!("cancelled")));
    assert!(world.tool_processes().is_empty());
}

#[test]
fn a_model_that_answers_nonsense_or_breaks_off_is_an_error_in_one_line() {
    let begin = |wire: &Wire, keep: usize| match (wire.answer)(&["He", "llo"], &[]) {
        Reply::Stream(kind, parts) => (kind, parts[..keep].to_vec()),
        other => panic!("{other:?}"),
    };
    for wire in &WIRES {
        let (kind, parts) = begin(wire, 2);
        let garbage = vec!["data: {\"choices\": oops\n\n\u{0}\n".to_owned()];
        let denied = json!({"error": {"message": format!("Incorrect key: {KEY}"), "type": "x"}});
        for (reply, expected) in [
            (Reply::Cut(kind, parts.clone()), ""),
            (Reply::Short(kind, parts), "ended early"),
            (Reply::Short(kind, vec![]), "ended early"),
            (Reply::Stream(kind, garbage), ""),
            (Reply::Status(401, denied.to_string()), "Incorrect key: …"),
            (Reply::Status(500, "<html>".repeat(1000)), "500"),
            (Reply::Raw(b"\x00\xffnot http\r\n\r\n".to_vec()), ""),
            (Reply::Raw(Vec::new()), ""),
        ] {
            let model = Scripted::new(vec![reply.clone()]);
            let world = match wire.key {
                Some((variable, _)) => world().env(variable, KEY),
                None => world().env("OPENAI_API_KEY", KEY),
            };
            let done = run_with_key(&world, &model, wire, &["--json", "go"]);
            let shown = format!("{}: {reply:?}: {}", wire.model, done.all());
            assert_eq!(done.code, Some(1), "{shown}");
            assert_eq!(done.stderr.lines().count(), 1, "{shown}");
            assert!(done.stderr.starts_with("error: ") && done.stderr.contains(wire.model), "{shown}");
            let is_ollama_denied = wire.key.is_none() && expected.starts_with("Incorrect");
            assert!(is_ollama_denied || done.stderr.contains(expected), "{shown}");
            assert!(is_ollama_denied || !done.all().contains(KEY), "{shown}");
            let end = lines(&done).pop().unwrap_or_default();
            assert_eq!(end["reason"], "failed", "{shown}");
            assert!(done.stderr.len() < 600, "{shown}");
        }
    }
}

#[test]
fn a_transcript_is_lines_of_json_without_secrets() {
    let calls = [("look", json!({"stdin": "x"}))];
    let model = Scripted::new(vec![openai(&["Looking."], &calls), openai(&["Done."], &[])]);
    let world = with_keys(world().tool("look", safe("cat"))).file("me.md", "You are terse.");
    let done = run_with_key(&world, &model, &WIRES[0], &["--json", "--system", "me.md", "go"]);
    assert_eq!(done.code, Some(0), "{}", done.all());
    assert_eq!(done.stderr, "");
    assert!(!done.stdout.contains(KEY));
    let lines = lines(&done);
    let kinds: Vec<&str> = lines.iter().filter_map(|line| line["type"].as_str()).collect();
    let expected = ["prompt", "text", "usage", "tool_call", "tool_result", "text", "usage", "end"];
    assert_eq!(kinds, expected);
    assert_eq!(lines[0], json!({"type": "prompt", "model": "openai::m", "text": "go"}));
    assert_eq!(lines[2], json!({"type": "usage", "input_tokens": 11, "output_tokens": 7}));
    assert_eq!(lines[3]["arguments"], json!({"stdin": "x"}));
    assert_eq!((&lines[4]["text"], &lines[4]["is_error"]), (&json!("x"), &json!(false)));
    assert_eq!(lines[4]["id"], lines[3]["id"]);
    assert_eq!(lines[7]["reason"], "answered");
    assert_eq!(lines[7]["input_tokens"], 22);
    assert!(model.requests()[0].body.to_string().contains("You are terse."));
}

#[test]
fn a_key_that_is_not_named_is_not_sent_to_a_server_of_ones_own() {
    let denied = Reply::Status(401, json!({"error": {"message": "who are you?"}}).to_string());
    for wire in &WIRES {
        let model = Scripted::new(vec![denied.clone()]);
        let done = run(&with_keys(world()), &model, wire, &["go"]);
        assert_eq!(done.code, Some(1), "{}", done.all());
        let request = &model.requests()[0];
        assert!(!request.head.contains(KEY) && !request.path.contains(KEY), "{}", request.head);
        assert!(
            wire.key.is_none() || done.stderr.contains("who are you? (no key was sent: --api-key-env"),
            "{}",
            done.stderr
        );
    }
}

#[test]
fn an_answer_that_wants_too_many_calls_ends_the_run_before_any_is_made() {
    let calls: Vec<(&str, Value)> = (0..65).map(|_| ("look", json!({}))).collect();
    let model = Scripted::new(vec![openai(&[], &calls)]);
    let done = run(&world().tool("look", safe("touch ran")), &model, &WIRES[0], &["go"]);
    let sentence = "error: the model wants 65 calls at once; at most 64 are made\n";
    assert_eq!((done.code, done.stderr.as_str()), (Some(1), sentence));
    assert_eq!(model.requests().len(), 1);
}

#[test]
fn text_that_came_before_a_limit_ended_the_run_is_in_its_transcript() {
    let Reply::Stream(kind, parts) = openai(&["Half of ", "an answer"], &[]) else { panic!() };
    let model = Scripted::new(vec![Reply::Hang(kind, parts[..3].to_vec())]);
    let world = world().config("agent: {timeout: 5}\n");
    let done = run(&world, &model, &WIRES[0], &["--json", "go"]);
    let lines = lines(&done);
    assert_eq!(lines[1], json!({"type": "text", "text": "Half of an answer", "partial": true}));
    assert_eq!(lines[2]["reason"], "timeout");
}

#[test]
fn a_prompt_comes_from_standard_input_and_the_answer_goes_to_a_pipe() {
    let model = Scripted::new(vec![openai(&["no end of line"], &[])]);
    let world = world();
    let base = model.base();
    let words = ["agent", "-", "--model", "openai::m", "--base-url", base.as_str()];
    let done = world.run_with_input(&words, "what is\nthis?".as_bytes());
    assert_eq!((done.code, done.all().as_str()), (Some(0), "no end of line\n"));
    assert!(model.requests()[0].body.to_string().contains(r"what is\nthis?"));
    let empty = world.run_with_input(&words, b" \n");
    assert_eq!((empty.code, empty.stderr.as_str()), (Some(2), "error: the prompt is empty\n"));
    let missing = world.run(&["agent", "--system", "nothing.md", "go"]);
    assert_eq!(missing.code, Some(2));
    assert!(missing.stderr.contains("nothing.md cannot be read"), "{}", missing.stderr);
}

#[test]
fn of_a_large_catalogue_the_model_is_offered_the_way_to_the_rest() {
    let calls = [
        ("capability_search", json!({"query": "greeting"})),
        ("capability_call", json!({"id": "greet", "input": {}})),
        ("rtfs", json!({"program": "(:stdout (call :greet {}))"})),
    ];
    let model = Scripted::new(vec![openai(&[], &calls), openai(&["ok"], &[])]);
    let world = world()
        .tool("greet", safe("echo a greeting"))
        .tool("other", safe("echo other"))
        .config("agent: {max_tools: 1}\n");
    let done = run(&world, &model, &WIRES[0], &["--yes", "go"]);
    assert_eq!(done.code, Some(0), "{}", done.all());
    let requests = model.requests();
    let expected = ["capability_search", "capability_describe", "capability_call", "rtfs", "rtfs_check"];
    assert_eq!((WIRES[0].tools)(&requests[0].body), expected);
    for result in (WIRES[0].results)(&requests[1].body) {
        assert!(result.contains("greet"), "{result}");
    }
}

#[test]
fn policy_holds_for_a_model_as_for_everyone_and_its_calls_are_audited() {
    let calls = [("allowed", json!({})), ("denied", json!({}))];
    let model = Scripted::new(vec![openai(&[], &calls), openai(&["ok"], &[])]);
    let world = world()
        .tool("allowed", safe("echo yes"))
        .tool("denied", safe("touch ran"))
        .config("deny: [denied]\naudit: audit.jsonl\n");
    let done = run(&world, &model, &WIRES[0], &["go"]);
    assert_eq!(done.code, Some(0), "{}", done.all());
    assert_eq!((WIRES[0].tools)(&model.requests()[0].body), ["allowed"]);
    assert!((WIRES[0].results)(&model.requests()[1].body)[1].starts_with("error: "));
    assert!(!world.path("ran").exists());
    assert!(world.read("audit.jsonl").contains("allowed"));
}

#[test]
fn without_a_name_the_first_ollama_model_is_used_or_the_error_gives_advice() {
    let tags = json!({"models": [{"name": "first:8b"}, {"name": "second"}]}).to_string();
    let model = Scripted::new(vec![Reply::Status(200, tags), (WIRES[3].answer)(&["hi"], &[])]);
    let world = world().env("OPENAI_API_KEY", "").env("ANTHROPIC_API_KEY", "").env("GEMINI_API_KEY", "");
    let done = world.run(&["agent", "--base-url", &model.base(), "go"]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "hi\n"), "{}", done.stderr);
    let requests = model.requests();
    assert_eq!((requests[0].path.as_str(), requests[1].path.as_str()), ("/api/tags", "/api/chat"));
    assert_eq!(requests[1].body["model"], "first:8b");

    let other = Scripted::new(vec![Reply::Status(404, "{}".to_owned())]);
    let unnamed = world.run(&["agent", "--base-url", &other.base(), "go"]);
    assert_eq!(unnamed.code, Some(2));
    assert!(unnamed.stderr.contains("--model"), "{}", unnamed.stderr);

    let keyless = world.run(&["agent", "--model", "claude-sonnet-4-6", "go"]);
    assert_eq!(keyless.code, Some(2));
    assert!(keyless.stderr.contains("ANTHROPIC_API_KEY is not set"), "{}", keyless.stderr);
    // Unless this machine has one.
    if TcpStream::connect("127.0.0.1:11434").is_err() {
        let none = world.run(&["agent", "go"]);
        assert_eq!(none.code, Some(2));
        for word in ["ollama serve", "OPENAI_API_KEY", "--model"] {
            assert!(none.stderr.contains(word), "{}", none.stderr);
        }
    }
}

#[test]
fn progress_has_a_bar_and_control_sequences_do_not_reach_the_terminal() {
    let wire = &WIRES[0];
    let calls = [("slow", json!({"stdin": "x"}))];
    let answer = (wire.answer)(&["done \u{1b}]0;pwned\u{7}"], &[]);
    let model = Scripted::new(vec![(wire.answer)(&[], &calls), answer]);
    let base = model.base();
    let slow =
        safe("echo '::progress 1/2 half' >&2; sleep 0.3; printf '\\033]0;pwned\\007' >&2; exit 1");
    let world = with_keys(world().env("TERM", "xterm-256color").tool("slow", slow));
    let arguments = ["agent", "--model", wire.model, "--base-url", &base, "go"];
    let shown = world.at_terminal(&arguments).shows_to_its_end();
    assert!(shown.contains("slow 1/2 [") && shown.contains("done "), "{shown:?}");
    assert!(!shown.contains("\u{1b}]") && !shown.contains('\u{7}'), "{shown:?}");
}
