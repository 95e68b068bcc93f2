//! A capsule that speaks MCP: all messages pass through, and only to their recipients.

use orla_e2e::{Client, Exchange, Pending, SESSION_BASED, Server, eventually};
use serde_json::{Value, json};

use crate::capsule::{bare, manifest, open, pid_in, serve, until_state, watched, with};
use crate::world;

/// A capsule with two tools, resources, prompts and completion, which handles each call in its own
/// thread.
const FULL: &str = include_str!("../fixtures/full_capsule.py");

/// Returns a server that serves the capsule and knows its capabilities. On a busy machine, this takes a
/// while.
fn full() -> Server {
    let server = with(world(), &manifest(json!({})), FULL).serve();
    eventually("its tools are known", || server.client().tool_names() == ["cap__one", "cap__two"]);
    server
}

/// Returns clients of both kinds that have listed the capabilities.
fn clients(server: &Server) -> [Client; 2] {
    let mut clients = server.clients();
    for client in &mut clients {
        client.tool_names();
    }
    clients
}

/// Returns a session whose client can be asked everything.
fn answering(server: &Server) -> Client {
    let mut client = server.session_able_to(&json!({"elicitation": {}, "sampling": {}, "roots": {}}));
    client.tool_names();
    client
}

/// Returns the next message of a call that is a request to the client.
fn question(call: &mut Pending) -> Value {
    loop {
        let message = call.next_message().expect("a question comes");
        assert!(message.get("result").is_none(), "no question but an answer: {message}");
        if message.get("id").is_some() {
            return message;
        }
    }
}

/// Answers a question in a session.
fn reply(server: &Server, client: &Client, question: &Value, result: &Value) {
    let body = json!({"jsonrpc": "2.0", "id": question["id"], "result": result});
    let answer = server.http().send(&client.post("", None).body(body.to_string()));
    assert_eq!(answer.expect("an answer is accepted").status, 202);
}

/// Returns the text of the result that ends a call.
fn text_of(call: &mut Pending) -> String {
    loop {
        let message = call.next_message().expect("an answer comes");
        if let Some(text) = message["result"]["content"][0]["text"].as_str() {
            return text.to_owned();
        }
        assert!(message.get("error").is_none(), "{message}");
    }
}

fn elicitation(message: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    json!(["elicitation/create", {"message": message, "requestedSchema": schema}])
}

fn asking(questions: &Value) -> Value {
    json!({"do": "ask", "questions": questions})
}

#[test]
fn tools_are_served_as_the_capsule_describes_them() {
    let server = full();
    for mut client in server.clients() {
        assert_eq!(client.tool_names(), ["cap__one", "cap__two"]);
        let one = client.tool("cap__one");
        let schema =
            json!({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]});
        assert_eq!((&one["inputSchema"], &one["outputSchema"]), (&schema, &schema));
        assert_eq!((&one["title"], &one["description"]), (&json!("Number one"), &json!("The first.")));
        assert_eq!(one["annotations"]["readOnlyHint"], true);
        let result = client.call("cap__one", json!({"x": 5})).json;
        assert_eq!(result["content"][0]["text"], "one");
        assert_eq!(
            result["content"][1],
            json!({"type": "image", "data": "aGk=", "mimeType": "image/png"})
        );
        assert_eq!(
            (&result["structuredContent"], &result["_meta"]["k"]),
            (&json!({"x": 5}), &json!("v"))
        );
        let calls = server.read("calls.log").lines().count();
        let refused = client.call("cap__one", json!({"x": "five"}));
        assert!(refused.is_error() && refused.sentence().contains("integer"), "{}", refused.json);
        assert_eq!(server.read("calls.log").lines().count(), calls, "it never reached the capsule");
        assert_eq!(client.try_call("cap", json!({})).unwrap_err().code, -32602);
    }
}

#[test]
fn a_single_tool_gets_the_capsules_name() {
    let code = bare().other(
        "if method == 'initialize': out({'id': id, 'result': {'protocolVersion': p['protocolVersion'], 'capabilities': {'tools': {}}, 'serverInfo': {'name': 'x', 'version': '1'}}}); continue\n\
         if method == 'tools/list': out({'id': id, 'result': {'tools': [{'name': 'own', 'description': 'Its own.', 'inputSchema': {'type': 'object'}}]}}); continue",
    ).call("answer(id, p['name'])\ncontinue");
    let server = serve(&manifest(json!({})), &code);
    for mut client in server.clients() {
        assert_eq!(client.tool_names(), ["cap"]);
        assert_eq!(client.tool("cap")["description"], "Its own.");
        assert_eq!(client.call("cap", json!({})).text(), "own");
    }
}

/// The first call waits for the tools of the capsule, and is validated against them.
#[test]
fn the_first_call_is_validated_approved_and_counted_like_any_other() {
    let listing = "if method == 'initialize': out({'id': id, 'result': {'protocolVersion': p['protocolVersion'], 'capabilities': {'tools': {}}, 'serverInfo': {'name': 'x', 'version': '1'}}}); continue\n\
         if method == 'tools/list': out({'id': id, 'result': {'tools': TOOLS}}); continue";
    let code = |tools: &str| {
        bare().other(&listing.replace("TOOLS", tools)).call("answer(id, p['name'])\ncontinue").python()
    };
    let one = code(
        "[{'name': 'cap', 'inputSchema': {'type': 'object', 'properties': {'x': {'type': 'integer'}}, 'required': ['x']}, 'annotations': {'destructiveHint': True}}]",
    );
    let ran = with(world(), &manifest(json!({})), &one).run(&["call", "cap", "x=\"no\""]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert!(ran.all().contains("expected an integer"), "{}", ran.all());

    let server = with(world(), &manifest(json!({})), &one).serve();
    let refused = server.client().call("cap", json!({"x": "no"}));
    assert!(refused.sentence().contains("expected an integer"), "{}", refused.json);
    assert!(!server.path("calls.log").exists(), "it never reached the capsule");

    let rule = "approve:\n- {capabilities: ['*'], annotations: {destructiveHint: true}, expires: 1s}\n";
    let server = with(world().config(rule), &manifest(json!({})), &one).serve();
    let unasked = server.client().call("cap", json!({"x": 1}));
    assert!(unasked.sentence().contains("not approved"), "{}", unasked.json);
    assert!(!server.path("calls.log").exists(), "it never reached the capsule");

    let two = code(
        "[{'name': 'cap', 'inputSchema': {'type': 'object'}}, {'name': 'two', 'inputSchema': {'type': 'object'}}]",
    );
    let server = with(world().config("deny: [cap__cap]\n"), &manifest(json!({})), &two).serve();
    assert!(server.client().try_call("cap", json!({})).is_err());
    assert_eq!(server.client().call("cap__two", json!({})).text(), "two");
}

/// A capsule cannot leave the rules about it by listing a second tool.
#[test]
fn a_rule_that_names_a_capsule_is_about_all_of_its_tools() {
    let serve = |config: &str| with(world().config(config), &manifest(json!({})), FULL).serve();
    let lists = |config: &str, expected: &[&str]| {
        let server = serve(config);
        eventually("its tools are known", || server.client().tool_names() == expected);
        let of_others = ["cap__one", "cap__two"].into_iter().filter(|name| !expected.contains(name));
        for name in of_others {
            assert!(server.client().try_call(name, json!({"x": 1})).is_err(), "{config}: {name}");
        }
    };
    lists("deny: [cap]\n", &[]);
    lists("allow: [cap]\n", &["cap__one", "cap__two"]);
    lists("allow: [cap.one]\n", &["cap__one"]);
    lists("tools: {cap: {enabled: false}}\n", &[]);
    lists("tools: {cap: {enabled: false}, cap__two: {enabled: true}}\n", &["cap__two"]);
    lists("policy: [{capabilities: [cap], deny: ['*']}, {allow: ['*']}]\n", &[]);
    let renamed = "tools: {cap.two: {rename: other}}\n";
    lists(&format!("{renamed}deny: [cap]\n"), &[]);
    lists(&format!("{renamed}deny: [cap__two]\n"), &["cap__one"]);

    let two = |server: &Server| server.client().call("cap__two", json!({"x": 1})).json.to_string();
    let server = serve("approve: [{capabilities: [cap], expires: 1s}]\n");
    assert!(two(&server).contains("not approved"), "{}", two(&server));
    let server = serve("quotas: [{capabilities: [cap], per: day, calls: 1}]\n");
    assert!(!two(&server).contains("quota exceeded"));
    assert!(two(&server).contains("quota exceeded"), "{}", two(&server));

    let server = serve("tools:\n  cap: {rename: pac}\n");
    eventually("its tools are known", || server.client().tool_names() == ["cap__one", "cap__two"]);
    server.log_says(&["orla.yaml:2:", "tools.cap", "has several", "`tools.cap__one`"]);
}

#[test]
fn resources_prompts_and_completion_pass_through() {
    let server = full();
    for mut client in server.clients() {
        let mut ask = |method: &str, params: Value| client.request(method, params);
        assert_eq!(ask("resources/list", json!({})).unwrap()["resources"][0]["uri"], "cap://a");
        let templates = ask("resources/templates/list", json!({})).unwrap();
        assert_eq!(templates["resourceTemplates"][0]["uriTemplate"], "cap://{x}");
        let read = ask("resources/read", json!({"uri": "cap://b"})).unwrap();
        assert_eq!(read["contents"], json!([{"uri": "cap://b", "text": "content of cap://b"}]));
        assert!(ask("resources/read", json!({"uri": "other://b"})).is_err());
        let prompts = ask("prompts/list", json!({})).unwrap();
        assert_eq!(prompts["prompts"][0]["name"], "cap__hello");
        let got =
            ask("prompts/get", json!({"name": "cap__hello", "arguments": {"who": "you"}})).unwrap();
        assert_eq!(got["messages"][0]["content"]["text"], "hi you");
        let reference = json!({"type": "ref/prompt", "name": "cap__hello"});
        let argument = json!({"name": "who", "value": "par"});
        let completed =
            ask("completion/complete", json!({"ref": reference, "argument": argument})).unwrap();
        assert_eq!(completed["completion"]["values"], json!(["hello", "paris"]));
    }
}

#[test]
fn progress_reaches_the_caller_alone_under_its_own_token() {
    let server = full();
    let mut clients: Vec<Client> = clients(&server).into_iter().chain(clients(&server)).collect();
    let calls: Vec<Pending> = clients
        .iter_mut()
        .enumerate()
        .map(|(number, client)| {
            let arguments = json!({"do": "progress", "who": format!("caller {number}"), "gate": "go"});
            // Two of them chose the same token.
            let meta = json!({"progressToken": format!("token {}", number / 2)});
            client
                .begin("tools/call", json!({"name": "cap__two", "arguments": arguments, "_meta": meta}))
        })
        .collect();
    eventually("all calls are there", || server.read("calls.log").lines().count() == 4);
    open(&server, "go");
    for (number, (client, call)) in clients.iter_mut().zip(calls).enumerate() {
        let result = client.finish_call(call).unwrap();
        let progress = result.notified("notifications/progress");
        assert!(!progress.is_empty(), "caller {number} sees progress");
        for params in progress {
            assert_eq!(params["progressToken"], format!("token {}", number / 2));
            assert_eq!(params["message"], format!("caller {number}"), "{params}");
        }
    }
}

#[test]
fn log_messages_reach_the_caller_from_the_level_on_that_it_wants() {
    let server = full();
    let call = |client: &mut Client, meta: Value| {
        let arguments = json!({"do": "log", "who": "me"});
        let params = json!({"name": "cap__two", "arguments": arguments, "_meta": meta});
        let pending = client.begin("tools/call", params);
        client.finish_call(pending).unwrap().notified("notifications/message")
    };
    let level = json!({"io.modelcontextprotocol/logLevel": "info"});
    let heard = call(&mut server.client(), level);
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert_eq!((&heard[0]["level"], &heard[0]["data"]), (&json!("warning"), &json!("me")));
    assert!(call(&mut server.client(), json!({})).is_empty(), "no client asked for it");
}

#[test]
fn a_cancelled_call_is_cancelled_in_the_capsule() {
    let server = full();
    let cancelled = |count: usize| {
        eventually("it is told", || {
            let notes = server.read("notes.log");
            let lines: Vec<Value> =
                notes.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let cancelled = lines.iter().filter(|note| note["method"] == "notifications/cancelled");
            let ids: Vec<Value> = cancelled.map(|note| note["params"]["requestId"].clone()).collect();
            (ids.len() == count).then_some(ids)
        })
    };
    // A session cancels; a sessionless client disconnects.
    let [_, mut session] = clients(&server);
    let call = session.begin_call("cap__two", json!({"do": "wait", "gate": "never"}));
    eventually("the call is there", || server.read("calls.log").lines().count() == 1);
    assert_eq!(session.notify("notifications/cancelled", json!({"requestId": call.id})), 202);
    cancelled(1);
    drop(call);
    let call = server.client().begin_call("cap__two", json!({"do": "wait", "gate": "never"}));
    eventually("the call is there", || server.read("calls.log").lines().count() == 2);
    drop(call);
    let ids = cancelled(2);
    let calls = server.read("calls.log");
    let sent: Vec<Value> =
        calls.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone()).collect();
    assert_eq!(ids, sent, "the ids are those that the capsule knows");
}

#[test]
fn clients_are_notified_when_its_tools_change() {
    let server = full();
    let mut session = server.session();
    session.tool_names();
    let mut stream = session.notification_stream(server.address());
    let mut client = server.client();
    let mut listening =
        client.begin("subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    listening.next_message().expect("the acknowledgement");
    server.client().call("cap__two", json!({"do": "grow", "name": "three"}));
    // The first notification may concern the capabilities that were read when the capsule started.
    let is_there = |names: Vec<String>| names == ["cap__one", "cap__three", "cap__two"];
    loop {
        let event = stream.next_event().unwrap().expect("a notification");
        if event.contains("notifications/tools/list_changed") && is_there(session.tool_names()) {
            break;
        }
    }
    loop {
        let message = listening.next_message().expect("a notification");
        if message["method"] == "notifications/tools/list_changed"
            && is_there(server.client().tool_names())
        {
            break;
        }
    }
}

#[test]
fn only_subscribers_are_notified_of_a_resource() {
    let server = full();
    let [_, mut subscriber] = clients(&server);
    subscriber.request("resources/subscribe", json!({"uri": "cap://a"})).unwrap();
    let mut other = server.session();
    other.request("resources/subscribe", json!({"uri": "cap://b"})).unwrap();
    let mut ours = subscriber.notification_stream(server.address());
    let mut theirs = other.notification_stream(server.address());
    let mut client = server.client();
    let mut listening = client
        .begin("subscriptions/listen", json!({"notifications": {"resourceSubscriptions": ["cap://a"]}}));
    listening.next_message().expect("the acknowledgement");
    let touch = |uri: &str| {
        let arguments =
            json!({"do": "tell", "method": "notifications/resources/updated", "params": {"uri": uri}});
        server.client().call("cap__two", arguments);
    };
    let updated = |stream: &mut Exchange| {
        loop {
            let event = stream.next_event().unwrap().expect("a notification");
            let message: Value = serde_json::from_str(&event).unwrap();
            if message["method"] == "notifications/resources/updated" {
                return message["params"]["uri"].clone();
            }
        }
    };
    touch("cap://a");
    assert_eq!(updated(&mut ours), "cap://a");
    assert_eq!(listening.next_message().expect("a notification")["params"]["uri"], "cap://a");
    // The first notification of the other client is its own.
    touch("cap://b");
    assert_eq!(updated(&mut theirs), "cap://b");
    subscriber.request("resources/unsubscribe", json!({"uri": "cap://a"})).unwrap();
    drop(listening);
    eventually("the capsule is told", || {
        server.read("asked.log").contains("resources/unsubscribe cap://a")
    });
    assert_eq!(server.read("asked.log").matches("resources/subscribe cap://a").count(), 1);
}

#[test]
fn a_change_that_is_reported_with_the_subscription_is_not_lost() {
    let server = full();
    let [_, mut subscriber] = clients(&server);
    let mut stream = subscriber.notification_stream(server.address());
    subscriber.request("resources/subscribe", json!({"uri": "cap://eager"})).unwrap();
    let updated = loop {
        let event = stream.next_event().unwrap().expect("a notification");
        let message: Value = serde_json::from_str(&event).unwrap();
        if message["method"] == "notifications/resources/updated" {
            break message;
        }
    };
    assert_eq!(updated["params"]["uri"], "cap://eager");
}

#[test]
fn questions_reach_the_session_and_answers_reach_the_call() {
    let server = full();
    let mut client = answering(&server);
    let sampling = json!(["sampling/createMessage", {"messages": [], "maxTokens": 5}]);
    let roots = json!(["roots/list", {}]);
    let questions = json!([elicitation("Who?"), sampling, roots]);
    let mut call = client.begin_call("cap__two", asking(&questions));
    let mut results = Vec::new();
    for method in ["elicitation/create", "sampling/createMessage", "roots/list"] {
        let asked = question(&mut call);
        assert_eq!(asked["method"], method);
        assert!(
            asked["params"]["_meta"].get("orla/call").is_none(),
            "that is between us and it: {asked}"
        );
        let result = json!({"answers": method});
        reply(&server, &client, &asked, &result);
        results.push(result);
    }
    assert_eq!(serde_json::from_str::<Value>(&text_of(&mut call)).unwrap(), json!(results));
}

#[test]
fn two_clients_never_see_each_others_questions() {
    let server = full();
    let mut clients = [answering(&server), answering(&server)];
    let mut calls: Vec<Pending> = ["first", "second"]
        .iter()
        .zip(&mut clients)
        .map(|(who, client)| client.begin_call("cap__two", asking(&json!([elicitation(who)]))))
        .collect();
    let asked: Vec<Value> = calls.iter_mut().map(question).collect();
    for (question, who) in asked.iter().zip(["first", "second"]) {
        assert_eq!(question["params"]["message"], who);
    }
    // Each client also answers the other's question. These answers are dropped.
    for (mine, (client, question)) in clients.iter().zip(&asked).enumerate() {
        let foreign = &asked[1 - mine];
        if foreign["id"] != question["id"] {
            reply(&server, client, foreign, &json!({"from": "a stranger"}));
        }
        reply(&server, client, question, &json!({"from": mine}));
    }
    for (mine, call) in calls.iter_mut().enumerate() {
        assert_eq!(serde_json::from_str::<Value>(&text_of(call)).unwrap(), json!([{"from": mine}]));
    }
}

#[test]
fn without_a_session_a_question_is_a_round_and_its_state_is_sealed() {
    let server = full();
    let mut client = server.client();
    let capabilities = json!({"elicitation": {}, "sampling": {}});
    let params = |more: Value| {
        let mut params = json!({"name": "cap__two", "arguments": asking(&json!([elicitation("Who?"), elicitation("And?")])),
            "_meta": {"io.modelcontextprotocol/clientCapabilities": capabilities}});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    let mut round = client.request("tools/call", params(json!({}))).unwrap();
    for (number, message) in ["Who?", "And?"].iter().enumerate() {
        assert_eq!(round["resultType"], "input_required", "{round}");
        let asked = round["inputRequests"].as_object().unwrap();
        let (key, question) = asked.iter().next().unwrap();
        assert_eq!(
            (&question["method"], &question["params"]["message"]),
            (&json!("elicitation/create"), &json!(message))
        );
        let responses = json!({key: {"action": "accept", "content": {"name": number}}});
        let state = round["requestState"].as_str().unwrap().to_owned();
        let tampered = json!({"requestState": format!("{state}x"), "inputResponses": responses});
        assert_eq!(client.request("tools/call", params(tampered)).unwrap_err().code, -32602);
        let answered = json!({"requestState": state, "inputResponses": responses});
        round = client.request("tools/call", params(answered)).unwrap();
    }
    let text = round["content"][0]["text"].as_str().unwrap();
    let accepted = |number: u64| json!({"action": "accept", "content": {"name": number}});
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!([accepted(0), accepted(1)]));
    assert_eq!(server.read("calls.log").lines().count(), 1, "it was one call all the time");
}

#[test]
fn a_question_that_cannot_be_asked_is_answered_with_an_error() {
    let server = full();
    let questions = json!([elicitation("Who?"), ["roots/list", {}], ["tasks/list", {}]]);
    for mut client in clients(&server) {
        let text = client.call("cap__two", asking(&questions)).text();
        let answers: Vec<Value> = serde_json::from_str(&text).unwrap();
        assert!(answers.iter().all(|answer| answer["code"].is_i64()), "{text}");
    }
    // A capsule that does not say for which of several calls it asks gets no answer from either client.
    let mut first = answering(&server);
    let waiting = first.begin_call("cap__two", json!({"do": "wait", "gate": "go"}));
    eventually("the call is there", || server.read("calls.log").contains("\"go\""));
    let unnamed = json!({"do": "ask", "named": false, "questions": [elicitation("Who?")]});
    let text = answering(&server).call("cap__two", unnamed).text();
    assert!(text.contains("orla/call"), "{text}");
    open(&server, "go");
    assert_eq!(first.finish_call(waiting).unwrap().text(), "waited");
}

#[test]
fn it_learns_what_the_callers_client_can_and_where_the_call_belongs() {
    let server = full();
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let meta =
        json!({"io.modelcontextprotocol/clientCapabilities": {"roots": {}}, "traceparent": traceparent});
    let params = json!({"name": "cap__two", "arguments": {"do": "meta"}, "_meta": meta});
    let mut client = server.client();
    let pending = client.begin("tools/call", params);
    let text = client.finish_call(pending).unwrap().text();
    let seen: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(seen["io.modelcontextprotocol/clientCapabilities"], json!({"roots": {}}), "{text}");
    assert!(
        seen["traceparent"].as_str().unwrap().starts_with("00-0af7651916cd43dd8448eb211c80319c-"),
        "{text}"
    );
}

#[test]
fn over_stdio_a_capsule_is_served_too_and_ends_with_its_client() {
    let mut client = with(world(), &manifest(json!({})), FULL).serve_stdio();
    let hello = json!({
        "protocolVersion": SESSION_BASED,
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "orla-e2e", "version": "1"},
    });
    client.request("initialize", hello).unwrap();
    client.notify("notifications/initialized", json!({}));
    eventually("its tools are known", || {
        let tools = client.request("tools/list", json!({})).unwrap();
        tools["tools"].as_array().is_some_and(|tools| tools.len() == 2)
    });
    let arguments = asking(&json!([elicitation("Who?")]));
    let id = client.begin("tools/call", json!({"name": "cap__two", "arguments": arguments}));
    let asked = loop {
        let message = client.next_message().expect("a question comes");
        if message["method"] == "elicitation/create" {
            break message;
        }
    };
    client.send(json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}));
    let result = client.answer(id, &mut Vec::new()).unwrap();
    assert_eq!(result["content"][0]["text"], r#"[{"action": "decline"}]"#);
    client.close_input();
    assert_eq!(client.wait().code(), Some(0));
    eventually("nothing is left", || client.processes().is_empty());
}

#[test]
fn a_capsule_that_lists_no_tools_is_reported_as_a_problem() {
    let code = |capabilities: &str, tools: &str| {
        bare().other(&format!(
            "if method == 'initialize': out({{'id': id, 'result': {{'protocolVersion': p['protocolVersion'], 'capabilities': {capabilities}, 'serverInfo': {{'name': 'x', 'version': '1'}}}}}}); continue\n\
             if method == 'tools/list': out({{'id': id, 'result': {{'tools': {tools}}}}}); continue"
        ))
    };
    let unnamed = "it serves no tools: its answer to initialize does not name the capability tools";
    for (capabilities, why) in [
        ("{}", Some(unnamed)),
        ("{'tools': {}}", Some("it lists no tools")),
        ("{'resources': {}}", None),
    ] {
        let source = code(capabilities, "[]").python();
        let silent = code(capabilities, "[]").hello("pass").python();
        let plugin = "#!/usr/bin/env python3\nimport json, sys\nfor line in sys.stdin:\n    print(json.dumps({'id': json.loads(line)['id'], 'ok': {'functions': []}}), flush=True)\n";
        let config = "mcpServers: {srv: {command: ./srv.py}}\nplugins: {plug: {path: ./plug.py}}\n";
        let world = with(world().config(config), &manifest(json!({})), &source);
        world.write("srv.py", &silent, 0o755);
        world.write("plug.py", plugin, 0o755);
        let server = world.serve();
        assert!(server.client().tool_names().is_empty());
        let status = server.status();
        let mut expected = vec!["plugin plug: it describes no functions".to_owned()];
        if let Some(why) = why {
            expected.insert(0, format!("MCP server srv: {why}"));
            expected.insert(0, format!("capsule cap: {why}"));
            let called = server.client().call("cap", json!({}));
            assert!(called.sentence().contains(why), "{}", called.json);
        }
        let mut problems: Vec<&str> =
            status["problems"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        problems.sort_unstable_by_key(|text| text.to_lowercase());
        expected.sort_unstable_by_key(|text| text.to_lowercase());
        assert_eq!(problems, expected, "{capabilities}: {status}");
        let listed = server.run(&["list"]);
        for problem in expected {
            assert!(listed.stderr.contains(&problem), "{problem} is not in {}", listed.all());
        }
    }

    let twice =
        "[{'name': 'a', 'description': 'first'}, {'name': 'b'}, {'name': 'a', 'description': 'second'}]";
    let server = serve(&manifest(json!({})), &code("{'tools': {}}", twice));
    let mut client = server.client();
    assert_eq!(client.tool_names(), ["cap__a", "cap__b"]);
    assert_eq!(client.tool("cap__a")["description"], "first");
    server.log_says(&["a tool is listed twice"]);
    assert_eq!(server.log().matches("a tool is listed twice").count(), 1, "{}", server.log());
}

/// The description of a tool that a starting process sends applies to the calls that wait for it.
#[test]
fn a_call_that_waits_for_a_restart_is_validated_against_the_new_schema() {
    let code = |kind: &str, version: &str, before: &str| {
        bare()
            .before(before)
            .version(version)
            .other(&format!(
                "if method == 'initialize': out({{'id': id, 'result': {{'protocolVersion': p['protocolVersion'], 'capabilities': {{'tools': {{}}}}, 'serverInfo': {{'name': 'x', 'version': '1'}}}}}}); continue\n\
                 if method == 'tools/list': out({{'id': id, 'result': {{'tools': [{{'name': 'cap', 'inputSchema': {{'type': 'object', 'properties': {{'x': {{'type': '{kind}'}}}}, 'required': ['x']}}}}]}}}}); continue"
            ))
            .python()
    };
    for is_crash in [false, true] {
        let config = "capsules: {backoff_min_ms: 20, backoff_max_ms: 50}\n";
        let server = with(world().config(config), &watched(), &code("integer", "1", "pass")).serve();
        let first = server.client().call("cap", json!({"x": 1}));
        assert!(first.text().contains("v=1"), "{}", first.json);
        server.write("tools/cap/main.py", code("string", "2", "wait('go')"), 0o755);
        if is_crash {
            let pid = pid_in(&first.text());
            let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
            assert!(killed.unwrap().success());
        }
        until_state(&server, "STARTING");
        let (mut one, mut other) = (server.client(), server.client());
        let number = one.begin_call("cap", json!({"x": 5}));
        let text = other.begin_call("cap", json!({"x": "s"}));
        open(&server, "go");
        let (number, text) = (one.finish_call(number).unwrap(), other.finish_call(text).unwrap());
        assert!(number.sentence().contains("expected a string"), "{}", number.json);
        assert!(!text.is_error() && text.text().contains("v=2"), "{}", text.json);
    }
}

#[test]
fn a_call_that_waits_for_the_first_start_is_validated_also_after_a_reload_in_between() {
    let code = bare().before("wait('go')").other(
        "if method == 'initialize': out({'id': id, 'result': {'protocolVersion': p['protocolVersion'], 'capabilities': {'tools': {}}, 'serverInfo': {'name': 'x', 'version': '1'}}}); continue\n\
         if method == 'tools/list': out({'id': id, 'result': {'tools': [{'name': 'cap', 'inputSchema': {'type': 'object', 'required': ['x']}}]}}); continue",
    );
    let server = serve(&manifest(json!({})), &code);
    let mut clients = server.clients();
    let calls: Vec<_> = clients.iter_mut().map(|client| client.begin_call("cap", json!({}))).collect();
    until_state(&server, "STARTING");
    server.write("tools/other", crate::sh("echo other"), 0o755);
    server.reload();
    open(&server, "go");
    for (client, call) in clients.iter_mut().zip(calls) {
        let refused = client.finish_call(call).unwrap();
        assert!(refused.sentence().contains("required property \"x\""), "{}", refused.json);
    }
}

/// A listing that gave up does not let the next call through without validation.
#[test]
fn a_call_waits_for_the_list_of_a_capsule_whose_first_list_came_too_late() {
    let listing = "if method == 'initialize': out({'id': id, 'result': {'protocolVersion': p['protocolVersion'], 'capabilities': {'tools': {}}, 'serverInfo': {'name': 'x', 'version': '1'}}}); continue\n\
         if method == 'tools/list': out({'id': id, 'result': {'tools': [{'name': 'cap', 'inputSchema': {'type': 'object', 'required': ['x']}}]}}); continue";
    let code = bare().before("if runs() == 1: time.sleep(600)\nwait('go')").other(listing);
    let server = serve(&manifest(json!({"startup_timeout_ms": 3000})), &code);
    server.client().tool_names();
    open(&server, "go");
    // A busy machine may need more than one start.
    eventually("the call is refused", || {
        server.client().call("cap", json!({})).sentence().contains("required property \"x\"")
    });
    assert!(!server.path("calls.log").exists(), "no call reached the capsule");
}
