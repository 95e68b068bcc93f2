//! Questions of providers to their callers' clients: on sessions, on pipes, and without a session.

use std::sync::atomic::Ordering;

use orla_marketplace::ApprovalRule;
use orla_marketplace::id::Pattern;
use orla_server::ServerOptions;
use serde_json::{Value, json};

use crate::support::{Connection, World, everything};

fn question(method: &str, key: &str) -> Value {
    json!({"method": method, "params": {"message": "Which?", "_meta": {"orla/key": key}}})
}

pub(super) fn elicitation(key: &str) -> Value {
    question("elicitation/create", key)
}

pub(super) fn call(rounds: &Value) -> Value {
    json!({"name": "ask", "arguments": {"rounds": rounds}})
}

async fn begin(client: &mut Connection, id: u32, method: &str, params: Value) {
    let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    client.send(body.to_string().as_bytes(), &[]).await;
}

/// Sends a message other than a request, on its own connection.
async fn send(world: &World, session: Option<&String>, message: Value) -> u16 {
    let mut other = world.connect().await;
    other.session = session.cloned();
    other.send(message.to_string().as_bytes(), &[]).await;
    other.head().await.status
}

/// Returns the next message of a stream that is not empty.
pub(super) async fn message(client: &mut Connection) -> Option<Value> {
    loop {
        let event = client.event().await?;
        if !event.message.is_null() && event.message["method"] != "notifications/message" {
            return Some(event.message);
        }
    }
}

#[tokio::test]
async fn a_session_is_asked_on_the_stream_of_the_call() {
    let world = World::new().await;
    let mut client = world.answering_session().await;
    let session = client.session.clone();
    let rounds =
        json!([[elicitation("a"), question("sampling/createMessage", "b")], [elicitation("c")]]);
    begin(&mut client, 5, "tools/call", call(&rounds)).await;
    assert!(client.head().await.is_stream());
    let first = message(&mut client).await.unwrap();
    assert_eq!(
        (&first["method"], &first["params"]),
        (&json!("elicitation/create"), &json!({"message": "Which?"}))
    );
    let second = message(&mut client).await.unwrap();
    assert_eq!(second["method"], "sampling/createMessage");
    assert_ne!(first["id"], second["id"]);
    // The answers come in another order than the questions, one of them with an error.
    let error = json!({"code": -1, "message": "I would rather not", "data": 7});
    let refusal = json!({"jsonrpc": "2.0", "id": second["id"], "error": error});
    assert_eq!(send(&world, session.as_ref(), refusal).await, 202);
    let answer = |id: &Value| json!({"jsonrpc": "2.0", "id": id, "result": {"n": 1}});
    assert_eq!(send(&world, session.as_ref(), answer(&first["id"])).await, 202);
    let third = message(&mut client).await.unwrap();
    // Some answers come twice, and some have no question.
    for id in [&first["id"], &json!(999), &json!("x"), &third["id"]] {
        assert_eq!(send(&world, session.as_ref(), answer(id)).await, 202);
    }
    let result = message(&mut client).await.unwrap();
    assert_eq!(result["id"], 5);
    let refused = json!({"error": "the client refused: I would rather not (-1)"});
    let got = &result["result"]["structuredContent"]["got"];
    assert_eq!(*got, json!([{"n": 1}, refused, {"n": 1}]));
    assert!(message(&mut client).await.is_none());
}

#[tokio::test]
async fn two_clients_never_see_each_others_questions() {
    let world = World::new().await;
    let mut ours = world.answering_session().await;
    let mut theirs = world.answering_session().await;
    let mut asked = Vec::new();
    for client in [&mut ours, &mut theirs] {
        begin(client, 1, "tools/call", call(&json!([[elicitation("a")]]))).await;
        assert!(client.head().await.is_stream());
        asked.push(message(client).await.unwrap()["id"].clone());
    }
    assert_ne!(asked[0], asked[1]);
    let answer = |id: &Value, who: &str| json!({"jsonrpc": "2.0", "id": id, "result": {"who": who}});
    // Each client answers the other's question first. These answers are dropped.
    for (session, id, who) in [
        (&ours.session, &asked[1], "not mine"),
        (&theirs.session, &asked[0], "not mine"),
        (&ours.session, &asked[0], "we"),
        (&theirs.session, &asked[1], "they"),
    ] {
        assert_eq!(send(&world, session.as_ref(), answer(id, who)).await, 202);
    }
    for (client, who) in [(&mut ours, "we"), (&mut theirs, "they")] {
        let result = message(client).await.unwrap();
        assert_eq!(result["result"]["structuredContent"]["got"], json!([{"who": who}]));
    }
}

#[tokio::test]
async fn a_session_is_not_asked_what_it_did_not_declare() {
    let world = World::new().await;
    let mut client = world.connect().await;
    client.initialize_as("2025-11-25", json!({"sampling": {}})).await;
    let (_, answer) = client.post("tools/call", call(&json!([[elicitation("a")]])), &[]).await;
    let refused = json!([{"error": "the client does not support elicitation/create"}]);
    assert_eq!(answer["result"]["structuredContent"]["got"], refused);
    let mut nothing = world.session().await;
    let (_, answer) = nothing.post("tools/call", call(&json!([[elicitation("a")]])), &[]).await;
    let none = json!([{"error": "there is no client"}]);
    assert_eq!(answer["result"]["structuredContent"]["got"], none);
}

#[tokio::test]
async fn abandoned_questions_are_withdrawn() {
    let world = World::new().await;
    let mut client = world.answering_session().await;
    // The provider gives up.
    let params = json!({"name": "ask", "arguments": {"rounds": [[elicitation("a")]], "ms": 50}});
    begin(&mut client, 1, "tools/call", params).await;
    assert!(client.head().await.is_stream());
    let asked = message(&mut client).await.unwrap();
    let withdrawn = message(&mut client).await.unwrap();
    assert_eq!(withdrawn["method"], "notifications/cancelled");
    assert_eq!(withdrawn["params"]["requestId"], asked["id"]);
    let result = message(&mut client).await.unwrap();
    assert_eq!(result["result"]["content"][0]["text"], "waited long enough");
    assert!(message(&mut client).await.is_none());
    // The session ends.
    begin(&mut client, 2, "tools/call", call(&json!([[elicitation("a")]]))).await;
    assert!(client.head().await.is_stream());
    message(&mut client).await.unwrap();
    let session = client.session.clone().unwrap();
    let mut other = world.connect().await;
    assert_eq!(other.request("DELETE /mcp", &[("mcp-session-id", &session)]).await.0.status, 204);
    world.seen.until(|seen| &seen.finished, 2).await;
}

/// Makes a sessionless call, and provides the requests of the first answer.
pub(super) async fn ask(
    client: &mut Connection,
    mut params: Value,
    capabilities: Value,
) -> (u16, Value) {
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    let (head, answer) = client.ask("tools/call", params).await;
    (head.status, answer)
}

/// Returns the next request of a client that was asked.
pub(super) fn retry(rounds: &Value, answer: &Value, responses: Value) -> Value {
    let mut params = call(rounds);
    params["inputResponses"] = responses;
    params["requestState"] = answer["result"]["requestState"].clone();
    params
}

#[tokio::test]
async fn calls_that_wait_for_their_clients_take_no_places() {
    let world = World::new().await;
    world.reload_with_places(&["ask", "echo"], 1);
    let mut client = world.connect().await;
    let rounds = json!([[elicitation("name")]]);
    let (_, first) = ask(&mut client, call(&rounds), everything()).await;
    let (_, second) = ask(&mut client, call(&rounds), everything()).await;
    assert_eq!(second["result"]["resultType"], "input_required");
    let mut session = world.answering_session().await;
    begin(&mut session, 5, "tools/call", call(&rounds)).await;
    assert!(session.head().await.is_stream());
    message(&mut session).await.unwrap();
    assert_eq!(world.market.running(), 0);
    let (head, _) = client.call("echo", json!({"x": 1})).await;
    assert_eq!(head.status, 200);
    for asked in [&first, &second] {
        let named = json!({"name": {"action": "accept"}});
        let (_, last) = ask(&mut client, retry(&rounds, asked, named), everything()).await;
        assert_eq!(last["result"]["resultType"], "complete");
    }
}

#[tokio::test]
async fn without_a_session_questions_are_rounds() {
    let world = World::new().await;
    let mut client = world.connect().await;
    let rounds = json!([
        [elicitation("name"), json!({"method": "roots/list", "params": {}})],
        [question("sampling/createMessage", "name")],
    ]);
    let (status, first) = ask(&mut client, call(&rounds), everything()).await;
    let result = &first["result"];
    assert_eq!((status, &result["resultType"]), (200, &json!("input_required")));
    let name = json!({"method": "elicitation/create", "params": {"message": "Which?"}});
    let roots = json!({"method": "roots/list", "params": {}});
    assert_eq!(result["inputRequests"], json!({"name": name, "roots-2": roots}));

    // A part of the answers: the other questions are asked again. Answers without a question are
    // ignored.
    let some = json!({"roots-2": {"roots": []}, "odd": {"n": 1}});
    let (_, second) = ask(&mut client, retry(&rounds, &first, some), everything()).await;
    assert_eq!(second["result"]["inputRequests"], json!({"name": name}));
    assert_ne!(second["result"]["requestState"], first["result"]["requestState"]);

    // On another connection, because questions belong to no connection.
    let mut other = world.connect().await;
    let named = json!({"name": {"action": "accept"}});
    let (_, third) = ask(&mut other, retry(&rounds, &second, named), everything()).await;
    let asked = &third["result"]["inputRequests"]["name"];
    assert_eq!(asked["method"], "sampling/createMessage");

    let drawn = json!({"name": {"role": "assistant"}});
    let (_, last) = ask(&mut other, retry(&rounds, &third, drawn), everything()).await;
    assert_eq!(last["result"]["resultType"], "complete");
    assert_eq!(
        last["result"]["structuredContent"]["got"],
        json!([{"action": "accept"}, {"roots": []}, {"role": "assistant"}])
    );
    assert_eq!(world.seen.began.load(Ordering::SeqCst), 1, "it was one call all the time");
    for used in [&first, &second, &third] {
        let (status, answer) = ask(&mut other, retry(&rounds, used, json!({})), everything()).await;
        assert_eq!((status, &answer["error"]["code"]), (200, &json!(-32602)));
    }
}

#[tokio::test]
async fn a_state_is_good_once_and_for_its_own_request() {
    let world = World::new().await;
    let mut client = world.connect().await;
    let rounds = json!([[elicitation("a")]]);
    let (_, asked) = ask(&mut client, call(&rounds), everything()).await;
    let good = retry(&rounds, &asked, json!({"a": {}}));
    let state = asked["result"]["requestState"].as_str().unwrap();
    let foreign = World::new().await;
    let (_, theirs) = ask(&mut foreign.connect().await, call(&rounds), everything()).await;
    for bad in [
        json!(format!("{state}-TAMPERED")),
        json!(state.replacen('A', "B", 1)),
        json!(""),
        json!("rs1.AAAA.BBBB"),
        json!(7),
        theirs["result"]["requestState"].clone(),
    ] {
        let mut params = good.clone();
        params["requestState"] = bad.clone();
        let (status, answer) = ask(&mut client, params, everything()).await;
        assert_eq!((status, &answer["error"]["code"]), (200, &json!(-32602)), "{bad}");
    }
    for responses in [json!([]), json!(7), Value::Null] {
        let mut params = good.clone();
        params["inputResponses"] = responses.clone();
        let (_, answer) = ask(&mut client, params, everything()).await;
        assert_eq!(answer["error"]["code"], -32602, "{responses}");
    }
    // Another tool, another method.
    let mut params = good.clone();
    params["name"] = json!("echo");
    assert_eq!(ask(&mut client, params, everything()).await.1["error"]["code"], -32602);
    let (_, answer) = client.ask("prompts/get", good.clone()).await;
    assert_eq!(answer["error"]["code"], -32602);
    // None of this has harmed it.
    let (_, answer) = ask(&mut client, good.clone(), everything()).await;
    assert_eq!(answer["result"]["structuredContent"]["got"], json!([{}]));
    assert_eq!(ask(&mut client, good, everything()).await.1["error"]["code"], -32602);
}

#[tokio::test]
async fn a_state_belongs_to_its_principal() {
    let mut options = ServerOptions::default();
    options.auth.tokens = vec!["one".into(), "two".into()];
    let world = World::with(options).await;
    let mut client = world.connect().await;
    let rounds = json!([[elicitation("a")]]);
    client.bearer = Some("one");
    let (_, asked) = ask(&mut client, call(&rounds), everything()).await;
    let params = retry(&rounds, &asked, json!({"a": {}}));
    client.bearer = Some("two");
    assert_eq!(ask(&mut client, params.clone(), everything()).await.1["error"]["code"], -32602);
    client.bearer = Some("one");
    assert!(ask(&mut client, params, everything()).await.1.get("result").is_some());
}

#[tokio::test]
async fn a_missing_client_capability_is_named() {
    let world = World::new().await;
    let mut client = world.connect().await;
    let rounds = json!([[elicitation("a"), json!({"method": "roots/list", "params": {}})]]);
    let mut strict = call(&json!([[elicitation("a")]]));
    strict["arguments"]["strict"] = json!(true);
    let (status, answer) = ask(&mut client, strict.clone(), json!({"sampling": {}})).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32021)));
    assert_eq!(answer["error"]["data"]["requiredCapabilities"], json!({"elicitation": {}}));
    // The output before the error is not lost.
    strict["arguments"]["gives"] = json!("half of it");
    let (status, answer) = ask(&mut client, strict, json!({"sampling": {}})).await;
    assert_eq!((status, &answer["result"]["isError"]), (200, &json!(true)));
    assert_eq!(answer["result"]["structuredContent"], "half of it", "{answer}");
    // A client that manages without does not need it.
    let (_, answer) = ask(&mut client, call(&rounds), json!({"roots": {}})).await;
    let asked = answer["result"]["inputRequests"].as_object().unwrap();
    assert_eq!(asked.keys().collect::<Vec<_>>(), ["roots-1"]);
}

#[tokio::test]
async fn a_client_that_knows_the_questions_may_answer_first() {
    let world = World::new().await;
    let mut client = world.connect().await;
    let rounds = json!([[elicitation("a")], [elicitation("b")]]);
    let mut params = call(&rounds);
    params["inputResponses"] = json!({"a": {"n": 1}, "b": 12345, "c": {}});
    let (_, answer) = ask(&mut client, params, everything()).await;
    let asked = answer["result"]["inputRequests"].as_object().unwrap();
    assert_eq!(asked.keys().collect::<Vec<_>>(), ["b"], "a number is not an answer");
}

#[tokio::test]
async fn a_prompt_may_ask_too() {
    let world = World::new().await;
    let mut client = world.connect().await;
    let mut params = json!({"name": "ask", "arguments": {"rounds": [[elicitation("a")]]}});
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = everything();
    let (_, asked) = client.ask("prompts/get", params.clone()).await;
    assert_eq!(asked["result"]["resultType"], "input_required");
    params["requestState"] = asked["result"]["requestState"].clone();
    params["inputResponses"] = json!({"a": {"n": 1}});
    let (_, answer) = client.ask("prompts/get", params).await;
    assert_eq!(answer["result"], json!({"resultType": "complete", "messages": [{"n": 1}]}));
    let mut session = world.answering_session().await;
    let params = json!({"name": "ask", "arguments": {"rounds": [[elicitation("a")]]}});
    begin(&mut session, 1, "prompts/get", params).await;
    assert!(session.head().await.is_stream());
    let id = message(&mut session).await.unwrap()["id"].clone();
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": {"n": 2}});
    assert_eq!(send(&world, session.session.as_ref(), answer).await, 202);
    let result = message(&mut session).await.unwrap();
    assert_eq!(result["result"], json!({"messages": [{"n": 2}]}));
}

#[tokio::test]
async fn progress_goes_to_the_request_that_is_open() {
    let world = World::new().await;
    let mut client = world.connect().await;
    let rounds = json!([[elicitation("a")], [elicitation("b")]]);
    let mut params = call(&rounds);
    let mut answers = Vec::new();
    for (token, answer) in
        [("first", json!({"a": {}})), ("second", json!({"b": {}})), ("third", json!({}))]
    {
        params["_meta"] = json!({
            "io.modelcontextprotocol/clientCapabilities": everything(),
            "progressToken": token,
        });
        client.begin(1, "tools/call", params).await;
        let head = client.head().await;
        let mut tokens = Vec::new();
        let mut last = Value::Null;
        if head.is_stream() {
            while let Some(event) = client.event().await {
                if let Some(token) = event.message["params"]["progressToken"].as_str() {
                    tokens.push(token.to_owned());
                }
                last = event.message;
            }
        } else {
            last = serde_json::from_slice(&client.body(&head).await).unwrap();
        }
        answers.push((tokens, last["result"]["resultType"].clone()));
        params = retry(&rounds, &last, answer);
    }
    assert_eq!(
        answers,
        [
            (vec!["first".to_owned()], json!("input_required")),
            (vec!["second".to_owned()], json!("input_required")),
            (vec![], json!("complete")),
        ]
    );
}

#[tokio::test]
async fn parked_calls_are_bounded_and_end_with_the_server() {
    let mut options = ServerOptions::default();
    options.max_pending = 2;
    let world = World::with(options).await;
    let mut client = world.connect().await;
    for _ in 0..2 {
        let (_, answer) = ask(&mut client, call(&json!([[elicitation("a")]])), everything()).await;
        assert_eq!(answer["result"]["resultType"], "input_required");
    }
    let (_, answer) = ask(&mut client, call(&json!([[elicitation("a")]])), everything()).await;
    assert_eq!(answer["error"]["code"], -32603);
    world.seen.until(|seen| &seen.finished, 1).await;
    assert_eq!(world.market.running(), 0, "their places are free");
    world.shutdown.cancel();
    world.seen.until(|seen| &seen.finished, 3).await;
}

#[tokio::test]
async fn one_caller_cannot_take_all_places_of_parked_calls() {
    let mut options = ServerOptions::default();
    options.max_pending = 4;
    options.auth.tokens = vec!["one".into(), "two".into()];
    let world = World::with(options).await;
    let mut client = world.connect().await;
    for (bearer, expected) in [("one", "input_required"), ("one", ""), ("two", "input_required")] {
        client.bearer = Some(bearer);
        let (_, answer) = ask(&mut client, call(&json!([[elicitation("a")]])), everything()).await;
        assert_eq!(answer["result"]["resultType"].as_str().unwrap_or_default(), expected, "{answer}");
    }
}

#[tokio::test]
async fn a_client_that_disconnects_after_its_answer_ends_the_call() {
    let world = World::new().await;
    let mut client = world.connect().await;
    let mut params =
        json!({"name": "ask", "arguments": {"rounds": [[elicitation("a")]], "then": 60_000}});
    let (_, asked) = ask(&mut client, params.clone(), everything()).await;
    params["inputResponses"] = json!({"a": {}});
    params["requestState"] = asked["result"]["requestState"].clone();
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = everything();
    client.begin(1, "tools/call", params).await;
    world.seen.until(|seen| &seen.answered, 1).await;
    drop(client);
    world.seen.until(|seen| &seen.cancelled, 1).await;
    crate::support::eventually(|| world.market.running() == 0).await;
}

#[tokio::test]
async fn a_parked_call_ends_at_its_deadline() {
    let world = World::new().await;
    // A longer wait that is permitted for another capability changes nothing.
    let mut rule = ApprovalRule::new("approve[0]");
    rule.capabilities = vec![Pattern::new("echo")];
    world.market.approvals().configure(vec![rule]);
    world.reload_with_timeout(&["ask"], std::time::Duration::from_secs(8));
    let mut client = world.connect().await;
    let rounds = json!([[elicitation("a")]]);
    let (_, asked) = ask(&mut client, call(&rounds), everything()).await;
    assert_eq!(asked["result"]["resultType"], "input_required");
    world.seen.until(|seen| &seen.finished, 1).await;
    crate::support::eventually(|| world.market.running() == 0).await;
    let (_, late) = ask(&mut client, retry(&rounds, &asked, json!({"a": {}})), everything()).await;
    assert_eq!(late["error"]["code"], -32602);
}
