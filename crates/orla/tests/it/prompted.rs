//! The tool `agent`: a client's prompt, carried out by the configured model (RFC 1 §9.1), with a scripted model.

use orla_e2e::{Client, Pending, Request, Revision, Server, World, eventually};
use serde_json::{Value, json};

use crate::a2a_server::{message, rpc, state, task};
use crate::agent::safe;
use crate::model::{Reply, Scripted, WIRES, openai};
use crate::{sh, world};

/// Returns the configuration that names a scripted model, with more of its keys.
fn asking(model: &Scripted, more: &str) -> String {
    format!("agent: {{model: 'openai::m', base_url: '{}'{more}}}\n", model.base())
}

/// Returns a server whose model greets with the tool `greet` and answers then.
fn greeting(model: &Scripted, more: &str) -> Server {
    world().tool("greet", safe("echo hello $(cat)")).config(&asking(model, more)).serve()
}

fn greets() -> Scripted {
    let call = [("greet", json!({"stdin": "Ada"}))];
    Scripted::new(vec![
        openai(&["Let me ", "see."], &call),
        openai(&["Hello ", "Ada.\nThat ", "is all."], &[]),
    ])
}

#[test]
fn a_prompt_of_a_client_is_carried_out_by_the_model_with_the_tools_that_are_served() {
    for revision in [Revision::Sessionless, Revision::Session] {
        let model = greets();
        let server = greeting(&model, "");
        let mut client = Client::connect(server.address(), revision, None);
        assert_eq!(client.tool_names(), ["agent", "greet"]);
        let result = client.call("agent", json!({"prompt": "greet Ada"}));
        assert_eq!(result.text(), "Hello Ada.\nThat is all.", "{result:?}");
        let structured = result.structured();
        assert_eq!(structured["answer"], "Hello Ada.\nThat is all.");
        assert_eq!((&structured["reason"], &structured["steps"]), (&json!("answered"), &json!(2)));
        assert_eq!(
            (&structured["model"], &structured["input_tokens"]),
            (&json!("openai::m"), &json!(22))
        );
        assert_eq!(structured["calls"][0]["name"], "greet");
        assert_eq!(structured["calls"][0]["is_error"], false);

        let requests = model.requests();
        // It is not offered to begin the same once more.
        assert_eq!((WIRES[0].tools)(&requests[0].body), ["greet"]);
        assert!(requests[0].body.to_string().contains("greet Ada"));
        assert!((WIRES[0].results)(&requests[1].body)[0].contains("hello Ada"));
    }
}

#[test]
fn each_step_is_progress_and_the_answer_can_be_read_while_it_is_written() {
    let server = greeting(&greets(), "");
    let mut client = server.client();
    let meta = json!({"progressToken": 7, "io.modelcontextprotocol/logLevel": "info"});
    let params = json!({"name": "agent", "arguments": {"prompt": "greet Ada"}, "_meta": meta});
    let pending = client.begin("tools/call", params);
    let result = client.finish_call(pending).unwrap();
    let steps: Vec<Value> = result.notified("notifications/progress");
    let steps: Vec<&str> = steps.iter().filter_map(|step| step["message"].as_str()).collect();
    assert_eq!(steps[0], r#"greet {"stdin":"Ada"}"#);
    assert!(steps[1].starts_with("greet (") && steps[1].ends_with(" ms)"), "{steps:?}");
    assert_eq!(steps.len(), 2);
    let texts = result.notified("notifications/message");
    let texts: Vec<&str> = texts.iter().filter_map(|text| text["data"].as_str()).collect();
    assert_eq!(texts, ["Let me see.", "Hello Ada.\nThat ", "is all."]);
}

#[test]
fn one_of_the_prompts_that_are_served_is_carried_out_by_its_name() {
    let model = greets();
    let prompt =
        "---\narguments: [{name: who, required: true}]\ntools: [greet]\n---\nGreet {{who}} well.\n";
    let server = world()
        .tool("greet", safe("# Greets.\necho hello"))
        .file("prompts/welcome.md", prompt)
        .config(&asking(&model, ""))
        .serve();
    let mut client = server.client();
    let result = client.call("agent", json!({"name": "welcome", "arguments": {"who": "Ada"}}));
    assert_eq!(result.text(), "Hello Ada.\nThat is all.", "{result:?}");
    let text = model.requests()[0].body.to_string();
    assert!(text.contains("Greet Ada well.") && text.contains("Use these tools:"), "{text}");

    for (arguments, sentence) in [
        (json!({"name": "welcom"}), "agent: unknown prompt: welcom; did you mean welcome?"),
        (json!({"name": "welcome"}), "agent: prompt welcome needs the argument who"),
        (json!({}), "agent: give either `prompt` or `name`"),
        (json!({"prompt": "x", "name": "welcome"}), "agent: give either `prompt` or `name`"),
    ] {
        let result = client.call("agent", arguments);
        assert!(result.is_error());
        assert_eq!(result.sentence(), sentence);
    }
    assert_eq!(model.requests().len(), 2, "the model is asked nothing that makes no sense");
}

#[test]
fn without_a_model_or_its_key_the_tool_is_absent() {
    let none = world().tool("greet", safe("true")).serve();
    assert_eq!(none.client().tool_names(), ["greet"]);
    for (config, said) in [
        ("agent: {model: claude-sonnet-4-6}\n", "ANTHROPIC_API_KEY is not set"),
        (
            "agent: {model: 'openai::m', base_url: 'http://127.0.0.1:9', api_key_env: MINE}\n",
            "MINE is not set",
        ),
    ] {
        let world = world().tool("greet", safe("true")).env("ANTHROPIC_API_KEY", "").config(config);
        let server = world.serve();
        assert_eq!(server.client().tool_names(), ["greet"]);
        server.log_says(&["no prompts are answered", said]);
    }
    let off = asking(&greets(), "") + "tools: {agent: {enabled: false}}\n";
    assert!(world().config(&off).serve().client().tool_names().is_empty());
    // An existing tool of this name stays.
    let own = world().tool("agent", safe("echo my own")).config(&asking(&greets(), "")).serve();
    assert!(own.client().call("agent", json!({})).text().contains("my own"));
}

#[test]
fn a_destructive_call_needs_the_approval_of_the_caller() {
    let calls = [("wipe", json!({"stdin": "all"})), ("wipe", json!({"stdin": "more"}))];
    let script = || Scripted::new(vec![openai(&[], &calls), openai(&["done"], &[])]);
    let serve = |model: &Scripted| {
        world().tool("wipe", sh("echo $(cat) >> wiped")).config(&asking(model, "")).serve()
    };
    let model = script();
    let server = serve(&model);
    let result = server.client().call("agent", json!({"prompt": "wipe"}));
    assert_eq!(result.text(), "done");
    for result in (WIRES[0].results)(&model.requests()[1].body) {
        assert!(
            result.contains("no one to agree") && result.contains("agent: {approve: never}"),
            "{result}"
        );
    }
    assert!(!server.path("wiped").exists());

    for (answers, wiped) in [
        (&["yes", "no"][..], &["all"][..]),
        (&["always"], &["all", "more"]),
        (&["decline", "cancel"], &[]),
    ] {
        let model = script();
        let server = serve(&model);
        let mut client = server.session_able_to(&json!({"elicitation": {}}));
        let mut call = client.begin_call("agent", json!({"prompt": "wipe"}));
        for answer in answers {
            let question = question(&mut call);
            assert_eq!(question["method"], "elicitation/create");
            let message = question["params"]["message"].as_str().unwrap_or_default();
            assert!(message.contains("wipe") && message.contains("stdin"), "{message}");
            let result = match *answer {
                "decline" | "cancel" => json!({ "action": answer }),
                answer => json!({"action": "accept", "content": {"answer": answer}}),
            };
            let body = json!({"jsonrpc": "2.0", "id": question["id"], "result": result});
            server.http().send(&client.post("", None).body(body.to_string())).unwrap();
        }
        assert_eq!(client.finish_call(call).unwrap().text(), "done");
        let done = std::fs::read_to_string(server.path("wiped")).unwrap_or_default();
        // They run at the same time.
        let mut done: Vec<&str> = done.lines().collect();
        done.sort_unstable();
        assert_eq!(done, wiped, "{answers:?}");
    }
}

/// A model that deletes twice, one call after the other.
fn deleting() -> Scripted {
    let first = [("wipe", json!({"stdin": "all"}))];
    let second = [("wipe", json!({"stdin": "more"}))];
    Scripted::new(vec![openai(&[], &first), openai(&[], &second), openai(&["done"], &[])])
}

fn deletable(model: &Scripted) -> Server {
    let rule = "approve: [{capabilities: [wipe], expires: 60s}]\n";
    world().tool("wipe", sh("echo $(cat) >> wiped")).config(&(asking(model, "") + rule)).serve()
}

#[test]
fn a_call_of_the_model_waits_for_the_approval_that_a_rule_requires() {
    let model = deleting();
    let server = deletable(&model);
    let mut client = server.client();
    let run = client.begin_call("agent", json!({"prompt": "wipe"}));
    let waiting = || {
        eventually("a call waits for its approval", || {
            let rows = server.http().get("/approvals").json();
            let row = rows.as_array().filter(|rows| rows.len() == 1)?[0].clone();
            Some((row["id"].as_str()?.to_owned(), row))
        })
    };
    let answer = |id: &str, approve: bool| {
        let request = Request::new("POST", &format!("/approvals/{id}"));
        let request = request.header("content-type", "application/json");
        let body = json!({ "approve": approve }).to_string();
        server.http().send(&request.body(body)).expect("an answer").status
    };
    let (first, row) = waiting();
    assert_eq!((&row["capability"], &row["input"]), (&json!("wipe"), &json!({"stdin": "all"})));
    assert!(!server.path("wiped").exists());
    assert_eq!(answer(&first, true), 200);
    // An approval is for one call.
    let second = eventually("the next call waits", || Some(waiting().0).filter(|id| *id != first));
    assert_eq!(server.read("wiped"), "all\n");
    assert_eq!(answer(&second, false), 200);
    assert_eq!(client.finish_call(run).unwrap().text(), "done");
    assert_eq!(server.read("wiped"), "all\n");
    let requests = model.requests();
    let denied = (WIRES[0].results)(&requests[2].body).pop().unwrap_or_default();
    assert!(denied.contains("not approved: the call was denied"), "{denied}");
}

#[test]
fn a_call_of_the_model_that_a_rule_asks_about_is_asked_about_once() {
    let server = deletable(&deleting());
    let mut client = server.session_able_to(&json!({"elicitation": {}}));
    let mut run = client.begin_call("agent", json!({"prompt": "wipe"}));
    let mut answers = [true, false].into_iter();
    let mut questions = 0;
    let done = loop {
        let message = run.next_message().expect("a message");
        if message["method"] != "elicitation/create" {
            match message.get("id") {
                Some(_) => break message,
                None => continue,
            }
        }
        questions += 1;
        let approve = answers.next().expect("no more than one question for each call");
        let result = json!({"action": "accept", "content": {"approve": approve}});
        let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        server.http().send(&client.post("", None).body(body.to_string())).expect("an answer");
    };
    assert_eq!(done["result"]["content"][0]["text"], "done", "{done}");
    assert_eq!((questions, server.read("wiped").as_str()), (2, "all\n"));
}

fn question(call: &mut Pending) -> Value {
    loop {
        let message = call.next_message().expect("a question comes");
        if message.get("id").is_some() {
            return message;
        }
    }
}

#[test]
fn a_run_has_the_rights_of_its_caller_and_each_of_its_calls_is_audited() {
    let call = [("greet", json!({})), ("other", json!({}))];
    let model = Scripted::new(vec![openai(&[], &call), openai(&["so"], &[])]);
    let policy = "auth_tokens: {ada: ada-token, eve: eve-token}\naudit: audit.jsonl\npolicy:\n  \
        - {to: [ada], allow: ['net:127.0.0.1:*', 'exec:greet']}\n  - {to: [eve], allow: ['exec']}\n";
    let server = world()
        .tool("greet", safe("echo hello"))
        .tool("other", safe("echo other"))
        .config(&(asking(&model, "") + policy))
        .serve();
    let mut eve = server.client_as("eve-token");
    assert_eq!(eve.tool_names(), ["greet", "other"], "who may not reach the model has no agent");
    let unknown = eve.try_call("agent", json!({"prompt": "x"})).unwrap_err();
    assert!(unknown.message.starts_with("unknown tool: agent"), "{unknown}");
    let mut ada = server.client_as("ada-token");
    assert_eq!(ada.tool_names(), ["agent", "greet"]);
    assert_eq!(ada.call("agent", json!({"prompt": "x"})).text(), "so");
    let requests = model.requests();
    assert_eq!((WIRES[0].tools)(&requests[0].body), ["greet"]);
    let results = (WIRES[0].results)(&requests[1].body);
    assert!(results[0].contains("hello"), "{results:?}");
    assert!(results[1].contains("unknown tool: other"), "{results:?}");
    let world = &server;
    eventually("it is all in the audit", || {
        let audit = world.read("audit.jsonl");
        let has = |name: &str| audit.lines().any(|line| line.contains(name) && line.contains("ada"));
        has("\"agent\"") && has("\"greet\"") && has("\"other\"")
    });
}

#[test]
fn limits_and_cancellation_end_the_run_and_its_calls() {
    let again = Scripted::new(vec![openai(&["again"], &[("greet", json!({}))])]);
    let result = greeting(&again, ", max_steps: 3").client().call("agent", json!({"prompt": "x"}));
    assert!(result.is_error());
    let sentence = "agent: the model has answered 3 times without a final answer (agent.max_steps)";
    assert_eq!((result.sentence(), &result.structured()["reason"]), (sentence, &json!("max_steps")));
    assert_eq!((&result.structured()["steps"], again.requests().len()), (&json!(3), 3));

    let slow = Scripted::new(vec![openai(&["Wait."], &[("slow", json!({}))])]);
    let serve = |more: &str| {
        let tool = safe("echo $$ > started; exec sleep 600");
        world().tool("slow", tool).config(&(asking(&slow, more) + "timeout: 500\n")).serve()
    };
    let server = serve(", timeout: 1");
    let result = server.client().call("agent", json!({"prompt": "x"}));
    assert_eq!(result.sentence(), "agent timed out after 1 s");
    server.assert_no_tool_is_left();

    let server = serve("");
    let mut client = server.client();
    let call = client.begin_call("agent", json!({"prompt": "x"}));
    eventually("the tool runs", || server.path("started").exists());
    drop(call);
    eventually("nothing goes on", || server.children().iter().all(|child| child.name() != "sleep"));

    let broken = Scripted::new(vec![Reply::Status(500, "{\"error\": \"on fire\"}".to_owned())]);
    let result = greeting(&broken, "").client().call("agent", json!({"prompt": "x"}));
    assert!(result.is_error() && result.sentence().contains("on fire"), "{}", result.sentence());
}

#[test]
fn a_run_that_begins_runs_of_its_own_ends_with_all_of_them() {
    for call in [
        ("agent", json!({"prompt": "again"})),
        ("capability_call", json!({"id": "agent", "input": {"prompt": "again"}})),
        ("rtfs", json!({"program": "(pmap (fn [n] (call :agent {:prompt (str n)})) [1 2 3])"})),
    ] {
        let model = Scripted::new(vec![openai(&[], &[call])]);
        let server = greeting(&model, ", max_steps: 12, approve: never");
        let result = server.client().call("agent", json!({"prompt": "x"}));
        assert!(result.is_error());
        assert!(
            result.sentence().contains("agent: the model has answered 12 times"),
            "{}",
            result.sentence()
        );
        assert!(model.requests().len() <= 12, "{}", model.requests().len());
    }
    // Where there are steps enough, it is the depth that ends.
    let model = Scripted::new(vec![openai(&[], &[("agent", json!({"prompt": "again"}))])]);
    let server = greeting(&model, ", max_steps: 100, approve: never");
    let result = server.client().call("agent", json!({"prompt": "x"}));
    assert!(result.is_error(), "{result:?}");
    let results = model
        .requests()
        .iter()
        .flat_map(|request| (WIRES[0].results)(&request.body))
        .collect::<Vec<_>>();
    assert!(
        results.iter().any(|result| result.contains("calls nested 64 deep (max_depth)")),
        "{results:?}"
    );
}

#[test]
fn a_text_that_an_agent_sends_is_a_prompt_and_what_has_to_be_agreed_to_a_question() {
    let wipe = [("wipe", json!({"stdin": "all"}))];
    let model = Scripted::new(vec![openai(&["I will.\n"], &wipe), openai(&["It is\n", "gone."], &[])]);
    // It goes on until a step was seen, because what is newer replaces one that was not read.
    let wipe = sh(
        "cat > wiped; n=0; until [ -e seen ]; do n=$((n + 1)); printf '::progress 0.%03d half\\n' $n >&2; sleep 0.05; done",
    );
    let server = world().tool("wipe", wipe).config(&asking(&model, "")).serve();
    let task_asking = task(&server, &message(&json!({"text": "tidy up"})));
    assert_eq!(state(&task_asking), "TASK_STATE_INPUT_REQUIRED", "{task_asking}");
    let question = task_asking["status"]["message"]["parts"][0]["text"].as_str().unwrap_or_default();
    assert!(question.contains("wants to call wipe"), "{task_asking}");
    assert!(!server.path("wiped").exists());

    // A follower receives the text while it is written.
    let mut events = server
        .http()
        .write(&rpc("SubscribeToTask", &json!({"id": task_asking["id"]})))
        .unwrap()
        .head()
        .unwrap();
    let mut yes = message(&json!({"text": "yes"}));
    yes["message"]["taskId"] = task_asking["id"].clone();
    let (mut texts, mut steps) = (Vec::new(), Vec::new());
    let done = std::thread::scope(|scope| {
        let answered = scope.spawn(|| task(&server, &yes));
        while let Some(event) = events.next_event().unwrap() {
            let event: Value = serde_json::from_str(&event).unwrap();
            let update = &event["result"]["artifactUpdate"];
            if let Some(text) = update["artifact"]["parts"][0]["text"].as_str() {
                texts.push((text.to_owned(), update["append"] == true));
            }
            let said = &event["result"]["statusUpdate"]["status"]["message"]["parts"][0]["text"];
            if let Some(step) = said.as_str().filter(|step| *step == "wipe: half") {
                server.write("seen", "", 0o644);
                steps.push(step.to_owned());
            }
        }
        answered.join().unwrap()
    });
    assert_eq!(state(&done), "TASK_STATE_COMPLETED", "{done}");
    let parts = &done["artifacts"][0]["parts"];
    assert_eq!(
        (&parts[0]["text"], &parts[1]["data"]["reason"]),
        (&json!("It is\ngone."), &json!("answered")),
        "{done}"
    );
    assert_eq!(done["artifacts"].as_array().map(Vec::len), Some(1), "{done}");
    assert_eq!(server.read("wiped"), "all");
    assert!(model.requests()[0].body.to_string().contains("tidy up"));
    let expected = [("It is\n", true), ("gone.", true), ("It is\ngone.", false)];
    assert_eq!(texts, expected.map(|(text, append)| (text.to_owned(), append)));
    steps.dedup();
    assert_eq!(steps, ["wipe: half"]);

    // Named for texts, it is given the prompt alone.
    let named = Scripted::new(vec![openai(&["Hello."], &[])]);
    let server = world().config(&(asking(&named, "") + "a2a: {text: agent}\n")).serve();
    assert_eq!(state(&task(&server, &message(&json!({"text": "hi"})))), "TASK_STATE_COMPLETED");
    // Without a model, it is said what to send instead.
    let silent = task(&world().serve(), &message(&json!({"text": "hi"})));
    assert_eq!(state(&silent), "TASK_STATE_REJECTED");
}

#[test]
fn a_configured_agent_samples_the_clients_model() {
    let config = "agent: {model: sampling}\n";
    let server = world().tool("greet", safe("echo hello $(cat)")).config(config).serve();
    let mut client = server.session_able_to(&json!({"sampling": {"tools": {}}}));
    let mut call = client.begin_call("agent", json!({"prompt": "greet Ada"}));
    let messages =
        |question: &Value| question["params"]["messages"].as_array().cloned().unwrap_or_default();
    let use_it = json!({"type": "tool_use", "id": "1", "name": "greet", "input": {"stdin": "Ada"}});
    let mut count = 0;
    for (content, stop) in
        [(json!([use_it]), "toolUse"), (json!({"type": "text", "text": "Hello."}), "endTurn")]
    {
        let question = question(&mut call);
        assert_eq!(question["method"], "sampling/createMessage");
        assert_eq!(question["params"]["tools"][0]["name"], "greet", "{question}");
        count = messages(&question).len();
        if let Some(result) = messages(&question).get(2) {
            assert!(
                result["content"][0]["content"][0]["text"]
                    .as_str()
                    .is_some_and(|text| text.contains("hello Ada")),
                "{result}"
            );
        }
        let result =
            json!({"role": "assistant", "model": "theirs", "content": content, "stopReason": stop});
        let body = json!({"jsonrpc": "2.0", "id": question["id"], "result": result});
        server.http().send(&client.post("", None).body(body.to_string())).unwrap();
    }
    let result = client.finish_call(call).unwrap();
    assert_eq!((result.text().as_str(), count), ("Hello.", 3));
    assert_eq!(
        (&result.structured()["model"], &result.structured()["steps"]),
        (&json!("sampling"), &json!(2))
    );

    let mut unable = server.session_able_to(&json!({"sampling": {}, "elicitation": {}}));
    let result = unable.call("agent", json!({"prompt": "x"}));
    assert_eq!(result.sentence(), "agent: the client has no model with tools (sampling.tools)");
    let alone = server.run(&["agent", "go"]);
    assert_eq!(alone.code, Some(2));
    assert!(alone.stderr.contains("sampling is the model of a client"), "{}", alone.stderr);
}

#[test]
fn a_program_calls_the_agent_and_uses_its_answer() {
    let model = Scripted::new(vec![openai(&["Lisbon"], &[])]);
    let world: World = world().config(&asking(&model, ""));
    let program = "(str \"Go to \" (:answer (call :agent {:prompt \"where to?\"})) \".\")";
    let done = world.run(&["rtfs", "-e", program]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "\"Go to Lisbon.\"\n"), "{}", done.all());
}
