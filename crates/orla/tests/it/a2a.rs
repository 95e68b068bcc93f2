//! Agents as providers: a scripted agent on loopback, over JSON-RPC, HTTP+JSON and a WebSocket, in both generations of the
//! protocol; and agents that misbehave (row V3).

use orla_e2e::{Server, eventually};
use serde_json::json;

use crate::scripted_agent::{Agent, Binding};
use crate::world;

fn entry(agent: &Agent, more: &str) -> String {
    format!(
        "agents:\n  helper: {{url: \"{}\", startup_timeout: 10{more}}}\nbuiltins: false\n",
        agent.url()
    )
}

fn serve(agent: &Agent, more: &str) -> Server {
    world().config(&entry(agent, more)).serve()
}

#[test]
fn every_skill_is_a_tool_and_every_binding_gives_the_same() {
    let (rpc, rest) = (Agent::of(Binding::JsonRpc), Agent::of(Binding::Rest));
    let (older, socket) = (Agent::of(Binding::Older), Agent::of(Binding::WebSocket));
    let socket_origin = format!(", protocol: websocket, origins: [\"{}\"]", socket.socket_url());
    for (agent, more) in [(&rpc, ""), (&rest, ""), (&older, ""), (&socket, &*socket_origin)] {
        let server = serve(agent, more);
        let mut client = server.client();
        assert_eq!(client.tool_names(), ["helper__add", "helper__talk"], "{agent:?}");
        let tool = client.tool("helper__talk");
        assert_eq!(
            (&tool["title"], &tool["description"]),
            (&json!("Talk"), &json!("Talks. For example: hello"))
        );
        assert_eq!(tool["inputSchema"]["properties"]["message"]["type"], "string");

        let result = client.call("helper__talk", json!({"message": "echo hello"}));
        assert_eq!(
            (result.is_error(), result.text().as_str()),
            (false, "hello"),
            "{agent:?} {result:?}"
        );
        assert_eq!(result.json["_meta"]["orla/a2a"]["state"], "completed");
        let data = client.call("helper__add", json!({"a": 1, "b": [2]}));
        assert_eq!(data.structured(), &json!({"a": 1, "b": [2], "skill": "add"}), "{agent:?} {data:?}");
        let nothing = client.call("helper__add", json!({}));
        assert_eq!(nothing.structured(), &json!({"skill": "add"}), "{agent:?} {nothing:?}");
        let pieces = client.call("helper__talk", json!({"message": "pieces"}));
        assert_eq!(pieces.text(), "one two three", "{agent:?} {pieces:?}");
        let file = client.call("helper__talk", json!({"message": "file"}));
        assert_eq!(file.content()[0], json!({"type": "image", "data": "AQI=", "mimeType": "image/png"}));
        let message = client.call("helper__talk", json!({"message": "answer at once"}));
        assert_eq!(message.text(), "at once");
        for (word, says) in [
            ("fail", "helper__talk failed at the agent: no luck"),
            ("reject", "helper__talk failed: the agent rejects the task: no luck"),
        ] {
            let failed = client.call("helper__talk", json!({"message": word}));
            assert_eq!((failed.is_error(), failed.sentence()), (true, says), "{agent:?}");
        }
    }
}

#[test]
fn a_task_without_a_stream_is_polled_until_it_is_done() {
    let agent = Agent::without_streams();
    let server = serve(&agent, "");
    let result = server.client().call("helper__talk", json!({"message": "later"}));
    assert_eq!(result.text(), "later done");
    assert!(agent.request_count("GetTask") >= 3, "it was asked again until then");
    assert_eq!(agent.request_count("SendMessage"), 1);
}

#[test]
fn a_single_capability_names_its_agent_by_itself() {
    let agent = Agent::of(Binding::JsonRpc);
    let config = format!(
        "capabilities:\n  - id: my.agent\n    provider: {{a2a: {{agent_id: helper, endpoint: \"{}\", protocol: http, timeout_ms: 5000, auth_token: t0ken}}}}\nbuiltins: false\n",
        agent.url()
    );
    let server = world().config(&config).serve();
    let result = server.client().call("my__agent", json!({"message": "echo hi"}));
    assert_eq!(result.text(), "hi");
    assert!(agent.seen().iter().all(|head| head.contains("authorization: Bearer t0ken\r\n")));
    assert!(!server.log().contains("t0ken") && !server.status().to_string().contains("t0ken"));
    let program =
        server.client().call("rtfs", json!({"program": "(call :my.agent \"echo from a program\")"}));
    assert!(program.text().contains("from a program"), "{program:?}");
}

#[test]
fn progress_of_an_agent_reaches_the_caller() {
    let agent = Agent::of(Binding::JsonRpc);
    let server = serve(&agent, "");
    let params = json!({"name": "helper__talk", "arguments": {"message": "pieces"}, "_meta": {"progressToken": 7}});
    let mut client = server.client();
    let pending = client.begin("tools/call", params);
    let (_, notifications) = client.complete(pending).unwrap();
    let said: Vec<&str> =
        notifications.iter().filter_map(|note| note["params"]["message"].as_str()).collect();
    assert_eq!(said, ["thinking", "artifact a", "artifact a", "artifact a"], "{notifications:?}");
}

#[test]
fn a_question_of_the_agent_reaches_the_client_or_is_an_error_with_instructions() {
    let agent = Agent::of(Binding::JsonRpc);
    let server = serve(&agent, "");
    let mut client = server.client();
    let asked = client.call("helper__talk", json!({"message": "ask"}));
    let sentence = asked.sentence().to_owned();
    assert!(
        asked.is_error()
            && sentence
                .starts_with("helper__talk needs an answer: which one?; call it again with task_id"),
        "{sentence}"
    );
    let about = &asked.json["_meta"]["orla/a2a"];
    let answer =
        json!({"message": "the first", "task_id": about["task_id"], "context_id": about["context_id"]});
    assert_eq!(client.call("helper__talk", answer).text(), "you said the first");

    let mut client = server.session_able_to(&json!({"elicitation": {}}));
    let mut call = client.begin_call("helper__talk", json!({"message": "ask"}));
    let question = loop {
        let message = call.next_message().expect("a question comes");
        if message.get("id").is_some() {
            break message;
        }
    };
    assert_eq!(
        (&question["method"], &question["params"]["message"]),
        (&json!("elicitation/create"), &json!("which one?"))
    );
    let body = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"answer": "the last"}}});
    server.http().send(&client.post("", None).body(body.to_string())).unwrap();
    let answer = loop {
        let message = call.next_message().expect("an answer comes");
        if message.get("result").is_some() {
            break message;
        }
    };
    assert_eq!(answer["result"]["content"][0]["text"], "you said the last");
    assert_eq!(agent.request_count("reply for \"talk\""), 2, "the same skill goes on");
}

#[test]
fn v3_an_interrupted_stream_is_resumed_without_loss_or_duplicates() {
    for binding in [Binding::JsonRpc, Binding::Rest, Binding::Older] {
        let agent = Agent::of(binding);
        let server = serve(&agent, "");
        let result = server.client().call("helper__talk", json!({"message": "cut"}));
        assert_eq!(result.text(), "one two three", "{binding:?} {result:?}");
        assert_eq!(agent.request_count("SendStreamingMessage"), 1, "a message is sent once");
    }
}

#[test]
fn v3_a_task_that_never_ends_costs_its_deadline_is_cancelled_and_what_came_is_reported() {
    for binding in [Binding::JsonRpc, Binding::Rest, Binding::Older] {
        let agent = Agent::of(binding);
        let server = serve(&agent, ", timeout: 5");
        let result = server.client().call("helper__talk", json!({"message": "never"}));
        assert!(result.is_error(), "{result:?}");
        assert_eq!(result.sentence(), "helper__talk timed out after 5 s", "{result:?}");
        assert!(result.text().contains("one "), "what had arrived: {result:?}");
        eventually("the task is cancelled", || agent.request_count("CancelTask") == 1);
    }
}

#[test]
fn a_call_that_is_withdrawn_ends_the_task() {
    let agent = Agent::of(Binding::JsonRpc);
    let server = serve(&agent, "");
    let mut client = server.client();
    let call = client.begin_call("helper__talk", json!({"message": "never"}));
    eventually("the task runs", || agent.request_count("SendStreamingMessage") == 1);
    drop(call);
    eventually("the task is cancelled", || agent.request_count("CancelTask") == 1);
}

#[test]
fn v3_an_agent_that_lies_is_an_error_of_its_own_call_and_gets_nothing() {
    let stranger = Agent::of(Binding::JsonRpc);
    let lies: [(&str, &str); 5] = [
        ("elsewhere", "which is not the configured origin; if that is intended, add it to origins"),
        ("nowhere", "its card has no address"),
        ("garbage", "its card is not JSON"),
        ("forged", "the signature of its card is wrong: someone may have changed the card"),
        ("missing", "answers 404 Not Found"),
    ];
    for (card, says) in lies {
        let agent = Agent::with_card(card, &stranger.url());
        let config = format!(
            "capabilities:\n  - id: a\n    provider: {{a2a: {{agent_id: helper, endpoint: \"{}\", protocol: http, auth_token: t0ken}}}}\nbuiltins: false\n",
            agent.url()
        );
        let server = world().config(&config).serve();
        let result = server.client().call("a", json!({"message": "echo hi"}));
        assert!(result.is_error() && result.sentence().contains(says), "{card}: {}", result.sentence());
        let listed = serve(&agent, "");
        assert!(listed.client().tool_names().is_empty());
    }
    assert!(stranger.seen().is_empty(), "the stranger was sent {:?}", stranger.seen());

    let agent = Agent::of(Binding::JsonRpc);
    let server = serve(&agent, "");
    let mut client = server.client();
    for (word, says) in [
        ("foreign", "it answered with another task than the one that was asked for"),
        ("no json", "it answers with something else than JSON"),
        ("error", "refuses: no such thing (-32004)"),
        ("huge", "answers with more than 16 MiB"),
    ] {
        let result = client.call("helper__talk", json!({ "message": word }));
        assert!(result.is_error() && result.sentence().contains(says), "{word}: {}", result.sentence());
    }
    assert_eq!(
        client.call("helper__talk", json!({"message": "echo still there"})).text(),
        "still there"
    );
}

#[test]
fn v3_an_agent_without_a_card_delays_one_listing_and_is_announced_later() {
    // The listener does not accept, so clients wait.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let config = format!(
        "agents:\n  helper: {{url: \"http://{address}\", startup_timeout: 1}}\nbuiltins: false\n"
    );
    let server = world().config(&config).serve();
    let mut client = server.session();
    assert!(client.tool_names().is_empty());
    server.log_says(&["helper", "did not return its card within 1 s"]);
    let mut stream = client.notification_stream(server.address());
    let _agent = Agent::at(listener);
    let event = stream.next_event().expect("a stream").expect("an event");
    assert!(event.contains("notifications/tools/list_changed"), "{event}");
    assert_eq!(client.tool_names(), ["helper__add", "helper__talk"]);
}

#[test]
fn a_valid_card_signature_is_accepted_and_can_be_required() {
    let agent = Agent::with_card("signed", "");
    let server = serve(&agent, "");
    assert_eq!(server.client().tool_names(), ["helper__add", "helper__talk"]);
    let unsigned = Agent::of(Binding::JsonRpc);
    let config = entry(&unsigned, ", keys: keys.json");
    let server = world().file("keys.json", agent.keys()).config(&config).serve();
    let mut client = server.client();
    assert!(client.tool_names().is_empty());
    server.log_says(&["agent", "not signed"]);
}

#[test]
fn the_permission_to_reach_an_agent_is_that_of_its_host() {
    let agent = Agent::of(Binding::JsonRpc);
    let config = format!(
        "{}policy:\n  - {{to: [anonymous], allow: ['net:elsewhere.example']}}\n",
        entry(&agent, "")
    );
    let server = world().config(&config).serve();
    assert!(server.client().tool_names().is_empty());
    assert!(agent.seen().iter().all(|head| head.starts_with("GET ")), "no message was sent");
}

#[test]
fn a_call_times_out_even_if_the_agent_never_names_its_task() {
    let agent = Agent::of(Binding::JsonRpc);
    let config = format!(
        "capabilities:\n  - id: mute\n    description: Says nothing.\n    provider: {{A2A: {{agent_id: helper, endpoint: \"{}\", protocol: http, timeout_ms: 5000}}}}\n",
        agent.url()
    );
    let server = world().config(&config).serve();
    let mut client = server.client();
    assert_eq!(client.call("mute", json!({"message": "echo hi"})).text(), "hi");
    let result = client.call("mute", json!({"message": "mute"}));
    assert_eq!(result.sentence(), "mute timed out after 5 s", "{result:?}");
    let took = eventually("the call is logged", || {
        let lines = server.log_lines();
        let of_mute = lines.iter().rev().find(|line| line.says(&["mute", "timed out"]))?;
        of_mute.field("duration_ms").as_f64()
    });
    assert!(took >= 5000.0, "{took} ms");
}
