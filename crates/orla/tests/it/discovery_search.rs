//! Finding, describing and calling capabilities: by people at the command line, and by agents through three
//! tools.

use orla_e2e::{Finished, World, eventually};
use serde_json::{Value, json};

use crate::capsule::{manifest, with};
use crate::{sh, world};

/// A capsule that is a whole MCP server, with tools that ask their client.
const FULL: &str = include_str!("../fixtures/full_capsule.py");

const TOOLS: [&str; 5] =
    ["capability_call", "capability_describe", "capability_search", "rtfs", "rtfs_check"];

fn json_of(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|err| panic!("{err}: {finished:?}"))
}

/// Three tools that describe themselves.
fn shop() -> World {
    let mail = "# /// orla\n# description: Sends a message to someone.\n# input_schema:\n#   type: object\n#   properties:\n#     to: {type: string, examples: [ada@example.com]}\n#     body: {type: string}\n#   required: [to, body]\n# ///\necho \"$@\"";
    world()
        .tool("send_mail.sh", sh(mail))
        .tool("weather.sh", sh("# The weather of a city, now and on the next days.\necho sunny"))
        .tool("fail.sh", sh("# Fails, always.\necho why >&2; exit 3"))
}

fn ids(found: &Value) -> Vec<&str> {
    let results = found["results"].as_array().into_iter().flatten();
    results.filter_map(|result| result["id"].as_str()).collect()
}

#[test]
fn discovery_tools_are_callable_but_not_listed() {
    let server = shop().serve();
    for mut client in server.clients() {
        assert_eq!(client.tool_names(), ["fail", "send_mail", "weather"]);
        let found = client.call("capability_search", json!({"query": "sending messages"}));
        assert_eq!(ids(found.structured())[0], "send_mail");
        assert!(found.text().contains("send_mail: Sends a message to someone."), "{}", found.text());
        let described = client.call("capability_describe", json!({"id": "send_mail"}));
        assert_eq!(described.structured()["kind"], "tool");
        let called = client.call("capability_call", json!({"id": "weather", "input": {}}));
        assert_eq!(called.stdout(), "sunny\n");
    }
    let status = server.status();
    let names: Vec<&str> = status["capabilities"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["fail", "send_mail", "weather"]);
}

#[test]
fn with_expose_search_only_they_are_listed_and_everything_else_can_be_called() {
    let world = shop().tool("other", sh("echo")).config("expose: search\n");
    let listed = json_of(&world.run(&["list", "--json"]));
    let names: Vec<&str> =
        listed.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, TOOLS);
    let checked = world.run(&["check"]);
    assert!(checked.stdout.contains("4 tools"), "its own, and not the tools of discovery: {checked:?}");
    let server = world.serve();
    for mut client in server.clients() {
        assert_eq!(client.tool_names(), TOOLS);
        assert_eq!(client.call("weather", json!({})).stdout(), "sunny\n");
        let found = client.call("capability_search", json!({"query": "weather of a city", "limit": 1}));
        assert_eq!(ids(found.structured()), ["weather"]);
    }
}

#[test]
fn a_call_through_capability_call_gives_the_same_result() {
    let server = shop().serve();
    let mut client = server.client();
    for (id, input) in [("send_mail", json!({"to": "x@y.z", "body": "é"})), ("fail", json!({}))] {
        let direct = client.call(id, input.clone());
        let through = client.call("capability_call", json!({"id": id, "input": input}));
        assert_eq!(through.content(), direct.content());
        assert_eq!(through.is_error(), direct.is_error());
        assert_eq!(through.exit_code(), direct.exit_code());
    }
    let wrong = client.call("capability_call", json!({"id": "send_mail", "input": {"to": 7}}));
    assert!(wrong.is_error() && wrong.sentence().contains("input.to"), "{}", wrong.sentence());
    let unknown = client.call("capability_call", json!({"id": "wether"}));
    assert!(
        unknown.is_error() && unknown.sentence().contains("did you mean weather?"),
        "{}",
        unknown.sentence()
    );
    let missing = client.call("capability_call", json!({}));
    assert!(missing.is_error() && missing.sentence().contains("\"id\""), "{}", missing.sentence());
}

#[test]
fn denied_tools_are_not_found_described_or_called() {
    let server = shop().config("expose: search\nallow: [weather, fail]\ndeny: [fail]\n").serve();
    let mut client = server.client();
    assert_eq!(client.tool_names(), TOOLS, "they lead to what is allowed alone");
    let found = client.call("capability_search", json!({"query": "fails weather message"}));
    assert_eq!(ids(found.structured()), ["weather"]);
    for tool in ["capability_describe", "capability_call"] {
        let refused = client.call(tool, json!({"id": "fail"}));
        assert!(
            refused.is_error() && refused.sentence().starts_with("unknown tool: fail"),
            "{}",
            refused.sentence()
        );
    }
}

#[test]
fn search_finds_by_any_form_of_a_word() {
    let world = shop();
    let found = world.run(&["search", "messages"]);
    assert_eq!(found.code, Some(0), "{found:?}");
    assert!(found.stdout.starts_with("ID") && found.stdout.contains("send_mail"), "{found:?}");
    let found = json_of(&world.run(&["search", "sending", "a", "messag", "--json", "--limit", "1"]));
    assert_eq!(ids(&found), ["send_mail"]);
    let first = &found["results"][0];
    assert_eq!(first["description"], "Sends a message to someone.");
    assert!(first["score"].as_f64().unwrap() > 0.0 && found["total"].as_u64().unwrap() >= 1, "{found}");
    let nothing = world.run(&["search", "xyzzy"]);
    assert!(
        nothing.code == Some(0) && nothing.stdout.is_empty() && nothing.stderr.contains("xyzzy"),
        "{nothing:?}"
    );
    for wrong in [&["search"][..], &["search", "x", "--limit", "0"], &["describe"]] {
        assert_eq!(world.run(wrong).code, Some(2), "{wrong:?}");
    }
}

#[test]
fn describe_shows_types_in_both_notations_and_a_call_that_works() {
    let world = shop();
    let shown = world.run(&["describe", "send_mail"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    for words in [
        "Sends a message to someone.",
        "[:map [:to :string]",
        "\"type\": \"object\"",
        "(call :send_mail {",
    ] {
        assert!(shown.stdout.contains(words), "{words}: {}", shown.stdout);
    }
    let example = shown.stdout.lines().find_map(|line| line.trim().strip_prefix("orla ")).unwrap();
    let words: Vec<&str> = example.split_whitespace().collect();
    let called = world.run(&words);
    assert_eq!(called.code, Some(0), "{words:?} {called:?}");
    assert!(called.stdout.contains("ada@example.com"), "{called:?}");

    let described = json_of(&world.run(&["describe", "send_mail", "--json"]));
    assert_eq!(described["input"]["json_schema"]["properties"]["to"]["type"], "string");
    assert_eq!(described["example"]["json"]["input"]["to"], "ada@example.com");
    let unknown = world.run(&["describe", "send_male"]);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (Some(1), ""), "{unknown:?}");
    assert!(unknown.stderr.contains("did you mean send_mail?"), "{unknown:?}");
}

#[test]
fn a_running_server_is_searched_and_described_like_what_would_be_served_here() {
    let here = shop();
    let server = shop().serve();
    let elsewhere = world();
    let url = format!("http://{}", server.address());
    for command in [&["search", "weather", "--json"][..], &["describe", "weather", "--json"]] {
        let there = json_of(&elsewhere.run(&[command, &["--url", &url]].concat()));
        let mut local = json_of(&here.run(command));
        let mut there = there;
        for described in [&mut local, &mut there].into_iter().filter_map(Value::as_object_mut) {
            // They differ in where they keep their tools.
            described.remove("provenance");
            described.remove("permissions");
        }
        assert_eq!(there, local, "{command:?}");
    }
    let shown = elsewhere.run(&["describe", "weather", "--url", &url]);
    assert!(shown.stdout.contains(&format!("orla call weather --url {url}")), "{shown:?}");
    let unknown = elsewhere.run(&["describe", "wether", "--url", &url]);
    assert!(unknown.code == Some(1) && unknown.stderr.contains("did you mean weather?"), "{unknown:?}");
}

#[test]
fn list_all_shows_what_is_not_listed() {
    let world = shop();
    let all = json_of(&world.run(&["list", "--all", "--json"]));
    let row = |name: &str| all.as_array().unwrap().iter().find(|row| row["name"] == name).cloned();
    assert_eq!(row("capability_search").unwrap()["unlisted"], true);
    assert!(row("weather").unwrap().get("unlisted").is_none());
    let listed = world.run(&["list"]);
    assert!(!listed.stdout.contains("capability_search"), "{listed:?}");
}

#[test]
fn a_tool_of_ones_own_keeps_its_name() {
    let world = shop().tool("capability_search", sh("echo mine"));
    let server = world.serve();
    assert_eq!(server.client().call("capability_search", json!({})).stdout(), "mine\n");
}

#[test]
fn a_reload_changes_the_list_and_the_instructions() {
    let server = shop().config("expose: all\n").serve();
    let tells = |words: &str| {
        server.session().server["instructions"].as_str().unwrap().contains(words)
            && server.client().request("server/discover", json!({})).unwrap()["instructions"]
                .as_str()
                .unwrap()
                .contains(words)
    };
    assert!(!tells("capability_search"));
    let mut session = server.session();
    assert_eq!(session.tool_names().len(), 3);
    server.write("orla.yaml", "expose: search\n", 0o644);
    server.reload();
    assert_eq!(session.tool_names(), TOOLS);
    assert!(tells("capability_search"));
    let wrong = world().config("expose: some\n").run(&["check"]);
    assert!(wrong.code == Some(1) && wrong.stderr.contains("expected all or search"), "{wrong:?}");
}

#[test]
fn unlisted_tools_of_a_capsule_are_found() {
    let server = with(world(), &manifest(json!({})), FULL).serve();
    let found = server.client().call("capability_search", json!({"query": "the first"}));
    assert_eq!(ids(found.structured())[0], "cap.one");
}

#[test]
fn progress_and_questions_reach_the_client_through_the_call_in_between() {
    let server = with(world(), &manifest(json!({})), FULL)
        .tool("p", sh("echo '::progress 1/2 half' >&2; echo done"))
        .serve();
    let mut client = server.client();
    eventually("the capsule's tools are known", || client.tool_names().contains(&"cap__two".to_owned()));
    let params =
        json!({"name": "capability_call", "arguments": {"id": "p"}, "_meta": {"progressToken": "x"}});
    let pending = client.begin("tools/call", params);
    let result = client.finish_call(pending).unwrap();
    assert_eq!(result.notified("notifications/progress")[0]["message"], "half");

    let question = json!(["elicitation/create", {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}]);
    let input = json!({"do": "ask", "questions": [question]});
    let params = |more: Value| {
        let mut params = json!({"name": "capability_call", "arguments": {"id": "cap.two", "input": input},
            "_meta": {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    let round = client.request("tools/call", params(json!({}))).unwrap();
    let (key, asked) = round["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(asked["params"]["message"], "Who?");
    let answer =
        json!({"requestState": round["requestState"], "inputResponses": {key: {"action": "decline"}}});
    let last = client.request("tools/call", params(answer)).unwrap();
    assert_eq!(last["content"][0]["text"], r#"[{"action": "decline"}]"#, "{last}");
}

#[test]
fn cancelling_the_call_in_between_ends_the_tool() {
    let server = world().tool("slow", sh("touch started; sleep 60")).serve();
    let mut session = server.session();
    let params = json!({"name": "capability_call", "arguments": {"id": "slow"}});
    let _pending = session.begin_as(7, "tools/call", params);
    eventually("it runs", || server.path("started").exists());
    assert_eq!(session.notify("notifications/cancelled", json!({"requestId": 7})), 202);
    eventually("nothing is left of it", || server.tool_processes().is_empty());
}
