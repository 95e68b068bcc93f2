//! Questions without a session, whose answers come to another server of the cluster.

use std::sync::atomic::Ordering;

use orla_server::ServerOptions;
use serde_json::{Value, json};

use super::nodes::{servers, servers_with};
use super::questions::{ask, call, elicitation, message, retry};
use super::support::{eventually, everything};

#[tokio::test]
async fn a_question_without_a_session_is_answered_at_any_server() {
    let ([alpha, beta], _, network) = servers().await;
    let (mut at_alpha, mut at_beta) = (alpha.connect().await, beta.connect().await);
    let rounds = json!([[elicitation("a")], [elicitation("b")], [elicitation("c")]]);
    let (_, first) = ask(&mut at_alpha, call(&rounds), everything()).await;
    assert!(first["result"]["requestState"].as_str().unwrap().starts_with("a1."), "{first}");
    // The answer is larger than a message between the servers, and so is the result.
    let long = json!({"action": "accept", "content": {"long": "x".repeat(4000)}});
    let answers = json!({ "a": long });
    let (_, second) = ask(&mut at_beta, retry(&rounds, &first, answers), everything()).await;
    assert_eq!(second["result"]["resultType"], "input_required", "{second}");
    let (_, third) = ask(&mut at_alpha, retry(&rounds, &second, json!({"b": {}})), everything()).await;
    // Messages between the servers are lost.
    network.losses.store(3, Ordering::SeqCst);
    let (status, last) = ask(&mut at_beta, retry(&rounds, &third, json!({"c": {}})), everything()).await;
    assert_eq!((status, &last["id"]), (200, &json!(1)));
    assert_eq!(last["result"]["structuredContent"]["got"], json!([long, {}, {}]));
    assert_eq!(network.losses.load(Ordering::SeqCst), 0);
    assert_eq!(alpha.seen.began.load(Ordering::SeqCst), 1, "it was one call all the time");
    assert_eq!(beta.seen.began.load(Ordering::SeqCst), 0);
    for used in [&first, &second, &third] {
        for client in [&mut at_alpha, &mut at_beta] {
            let (status, answer) = ask(client, retry(&rounds, used, json!({})), everything()).await;
            assert_eq!((status, &answer["error"]["code"]), (200, &json!(-32602)), "{answer}");
        }
    }
}

#[tokio::test]
async fn a_state_is_good_for_its_own_request_at_any_server() {
    let mut options = ServerOptions::default();
    options.auth.tokens = vec!["one".into(), "two".into()];
    let ([alpha, beta], _, network) = servers_with(options.clone()).await;
    let (mut at_alpha, mut at_beta) = (alpha.connect().await, beta.connect().await);
    (at_alpha.bearer, at_beta.bearer) = (Some("one"), Some("one"));
    let rounds = json!([[elicitation("a")]]);
    let (_, asked) = ask(&mut at_alpha, call(&rounds), everything()).await;
    let good = retry(&rounds, &asked, json!({"a": {}}));
    let state = asked["result"]["requestState"].as_str().unwrap();
    // A cluster with nodes of the same names.
    let ([foreign, _], ..) = servers_with(options).await;
    let mut stranger = foreign.connect().await;
    stranger.bearer = Some("one");
    let (_, theirs) = ask(&mut stranger, call(&rounds), everything()).await;
    for bad in [
        format!("{state}-TAMPERED").as_str(),
        &state.replacen('A', "B", 1),
        &state.replace("a1.", "b2."),
        &state.replace("a1.", "c3."),
        &state.replace("a1.", ""),
        "a1.",
        ".",
        "",
        theirs["result"]["requestState"].as_str().unwrap(),
    ] {
        let mut params = good.clone();
        params["requestState"] = json!(bad);
        let (status, answer) = ask(&mut at_beta, params, everything()).await;
        assert_eq!((status, &answer["error"]["code"]), (200, &json!(-32602)), "{bad}");
    }
    // Another tool, other arguments, another method, another caller.
    let (mut tool, mut arguments) = (good.clone(), good.clone());
    tool["name"] = json!("echo");
    arguments["arguments"]["strict"] = json!(true);
    for params in [tool, arguments] {
        assert_eq!(ask(&mut at_beta, params, everything()).await.1["error"]["code"], -32602);
    }
    assert_eq!(at_beta.ask("prompts/get", good.clone()).await.1["error"]["code"], -32602);
    at_beta.bearer = Some("two");
    assert_eq!(ask(&mut at_beta, good.clone(), everything()).await.1["error"]["code"], -32602);
    // None of this has harmed it.
    at_beta.bearer = Some("one");
    let (_, answer) = ask(&mut at_beta, good.clone(), everything()).await;
    assert_eq!(answer["result"]["structuredContent"]["got"], json!([{}]), "{answer}");

    let (_, asked) = ask(&mut at_alpha, call(&rounds), everything()).await;
    network.servers.lock().remove("a1");
    let (_, answer) = ask(&mut at_beta, retry(&rounds, &asked, json!({"a": {}})), everything()).await;
    assert_eq!(answer["error"]["code"], -32602);
    assert_eq!(answer["error"]["message"], "requestState: the request that it continues has ended");
}

#[tokio::test]
async fn progress_goes_to_the_server_where_the_client_is() {
    let ([alpha, beta], ..) = servers().await;
    let (mut at_alpha, mut at_beta) = (alpha.connect().await, beta.connect().await);
    let rounds = json!([[elicitation("a")], [elicitation("b")]]);
    let wanted = |mut params: Value, token: &str| {
        params["_meta"] = json!({
            "io.modelcontextprotocol/clientCapabilities": everything(),
            "progressToken": token,
        });
        params
    };
    at_alpha.begin(1, "tools/call", wanted(call(&rounds), "first")).await;
    assert!(at_alpha.head().await.is_stream());
    let mut asked = Value::Null;
    while let Some(next) = message(&mut at_alpha).await {
        asked = next;
    }
    at_beta.begin(2, "tools/call", wanted(retry(&rounds, &asked, json!({"a": {}})), "second")).await;
    assert!(at_beta.head().await.is_stream());
    let progress = message(&mut at_beta).await.unwrap();
    assert_eq!(progress["params"], json!({"progressToken": "second", "progress": 2}));
    let asked = message(&mut at_beta).await.unwrap();
    assert_eq!((&asked["id"], &asked["result"]["resultType"]), (&json!(2), &json!("input_required")));
    assert!(message(&mut at_beta).await.is_none());
}

#[tokio::test]
async fn a_client_that_disconnects_from_another_server_ends_the_call() {
    let ([alpha, beta], ..) = servers().await;
    let mut params =
        json!({"name": "ask", "arguments": {"rounds": [[elicitation("a")]], "then": 60_000}});
    let (_, asked) = ask(&mut alpha.connect().await, params.clone(), everything()).await;
    params["inputResponses"] = json!({"a": {}});
    params["requestState"] = asked["result"]["requestState"].clone();
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = everything();
    let mut at_beta = beta.connect().await;
    at_beta.begin(1, "tools/call", params).await;
    alpha.seen.until(|seen| &seen.answered, 1).await;
    drop(at_beta);
    alpha.seen.until(|seen| &seen.cancelled, 1).await;
    eventually(|| alpha.market.running() == 0).await;
}
