//! MCP over HTTP as well-behaved clients use it, and requests that are merely wrong (rows P3 and P7).

use orla_e2e::{Pending, SESSION_BASED, SESSIONLESS, eventually};
use serde_json::{Value, json};

use crate::{sh, world};

#[test]
fn both_kinds_of_connections_are_served_on_one_endpoint() {
    let server = world().tool("t", sh("echo ok")).serve();
    let mut session = server.session();
    assert_eq!(session.server["protocolVersion"], SESSION_BASED);
    assert_eq!(session.server["serverInfo"]["name"], "orla");
    assert!(session.server["capabilities"]["tools"].is_object(), "{}", session.server);
    assert_eq!(session.call("t", json!({})).stdout(), "ok\n");
    assert_eq!(session.request("ping", json!({})).unwrap(), json!({}));

    let mut client = server.client();
    let discovered = client.request("server/discover", json!({})).unwrap();
    let versions = discovered["supportedVersions"].as_array().unwrap();
    assert!(versions.iter().any(|version| version == SESSIONLESS), "{discovered}");
    assert!(discovered["capabilities"]["tools"].is_object(), "{discovered}");
    assert_eq!(client.call("t", json!({})).stdout(), "ok\n");
}

#[test]
fn the_version_of_a_session_is_negotiated() {
    let server = world().serve();
    for (asked, given) in [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2026-07-28", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ] {
        let mut client = server.session();
        client.set_session(None);
        let params = json!({"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}});
        assert_eq!(client.request("initialize", params).unwrap()["protocolVersion"], given, "{asked}");
    }
}

#[test]
fn the_endpoint_is_also_at_the_root() {
    let server = world().tool("t", sh("echo ok")).serve();
    let client = server.client();
    let mut request = client.post("tools/list", None);
    request.path = "/".to_owned();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": SESSIONLESS,
        "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = json!({"jsonrpc": "2.0", "id": "abc", "method": "tools/list", "params": {"_meta": meta}});
    let answer = server.http().send(&request.body(body.to_string())).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["id"], "abc", "an id may be text");
    assert_eq!(answer.json()["result"]["tools"][0]["name"], "t");
}

#[test]
fn a_sessionless_list_has_a_time_to_live() {
    let server = world().tool("t", sh("echo ok")).serve();
    let listed = server.client().request("tools/list", json!({})).unwrap();
    assert!(listed["ttlMs"].is_u64(), "{listed}");
    assert_eq!(listed["resultType"], "complete", "{listed}");
}

/// P3
#[test]
fn errors_name_unknown_methods_and_tools_with_a_suggestion() {
    let server = world().tool("summarize", sh("cat")).tool("word_count", sh("cat")).serve();
    for mut client in server.clients() {
        let err = client.request("tools/shout", json!({})).unwrap_err();
        assert_eq!(err.code, -32601, "{err}");
        assert!(err.message.contains("tools/shout"), "{err}");
        let err = client.try_call("sumarize", json!({})).unwrap_err();
        assert_eq!(err.code, -32602, "{err}");
        assert!(
            err.message.contains("sumarize") && err.message.contains("did you mean summarize?"),
            "{err}"
        );
        let err = client.try_call("entirely_else", json!({})).unwrap_err();
        assert_eq!(err.code, -32602, "{err}");
        assert!(err.message.contains("entirely_else") && !err.message.contains("did you mean"), "{err}");
    }
}

/// P3
#[test]
fn a_malformed_request_is_a_protocol_error_and_names_the_tool() {
    let server = world().tool("cat", sh("cat")).serve();
    for mut client in server.clients() {
        for arguments in ["[1]", "7", "\"text\"", "true"] {
            let err = client.call_text("cat", arguments).unwrap_err();
            assert_eq!(err.code, -32602, "{arguments}: {err}");
            assert!(err.message.contains("cat"), "{arguments}: {err}");
        }
        let err = client.request("tools/call", json!({"arguments": {}})).unwrap_err();
        assert!(matches!(err.code, -32602 | -32020), "no name: {err}");
        let err = client.request("tools/call", json!({"name": 7})).unwrap_err();
        assert!(matches!(err.code, -32602 | -32020), "{err}");
        assert_eq!(client.call("cat", json!({"stdin": "x"})).stdout(), "x", "the connection goes on");
    }
}

/// P7
#[test]
fn answers_are_never_mixed_up() {
    let server = world().tool("echo", sh("sleep 0.0$2; cat")).serve();
    // The same id twice at once, on two connections without a session: two separate requests.
    let (mut a, mut b) = (server.client(), server.client());
    let first =
        a.begin_as(7, "tools/call", json!({"name": "echo", "arguments": {"n": 9, "stdin": "first"}}));
    let second =
        b.begin_as(7, "tools/call", json!({"name": "echo", "arguments": {"n": 1, "stdin": "second"}}));
    assert_eq!(b.finish_call(second).unwrap().stdout(), "second");
    assert_eq!(a.finish_call(first).unwrap().stdout(), "first");

    // Many at once in one session, answered in any order.
    let session = server.session();
    let mut clients: Vec<_> = (0..20).map(|_| same_session(&server, &session)).collect();
    let pending: Vec<Pending> = clients
        .iter_mut()
        .enumerate()
        .map(|(n, client)| {
            let arguments = json!({"n": 9 - n % 9, "stdin": format!("text {n}")});
            client.begin_as(
                100 + n as u64,
                "tools/call",
                json!({"name": "echo", "arguments": arguments}),
            )
        })
        .collect();
    for (n, (client, pending)) in clients.iter_mut().zip(pending).enumerate() {
        assert_eq!(client.finish_call(pending).unwrap().stdout(), format!("text {n}"));
    }
}

/// P7: within one session, an id that is still in use is refused or answered, but not mixed up.
#[test]
fn the_same_id_twice_at_once_in_a_session_is_well_defined() {
    let server = world().tool("echo", sh("while [ ! -e go ]; do sleep 0.02; done; cat")).serve();
    let session = server.session();
    let (mut a, mut b) = (same_session(&server, &session), same_session(&server, &session));
    let first = a.begin_as(7, "tools/call", json!({"name": "echo", "arguments": {"stdin": "first"}}));
    eventually("the first runs", || !server.tool_processes().is_empty());
    let second = b.begin_as(7, "tools/call", json!({"name": "echo", "arguments": {"stdin": "second"}}));
    server.write("go", "", 0o644);
    match b.finish_call(second) {
        Ok(result) => assert_eq!(result.stdout(), "second"),
        Err(err) => assert_eq!(err.code, -32600, "{err}"),
    }
    assert_eq!(a.finish_call(first).unwrap().stdout(), "first");
    server.assert_no_tool_is_left();
}

/// P7
#[test]
fn cancelling_what_does_not_run_does_nothing() {
    let server = world().tool("t", sh("echo ok")).serve();
    let mut client = server.session();
    for params in
        [json!({"requestId": 4711}), json!({"requestId": "text"}), json!({"requestId": 2}), json!({})]
    {
        let status = client.notify("notifications/cancelled", params.clone());
        assert!(status == 202 || status == 400, "{params}: {status}");
        assert_eq!(client.call("t", json!({})).stdout(), "ok\n");
    }
    assert_eq!(client.notify("notifications/never_heard_of", json!({})), 202);
}

/// P7: one session cannot cancel another's call.
#[test]
fn a_cancellation_reaches_its_own_session_only() {
    let server =
        world().tool("t", sh("touch started; while [ ! -e go ]; do sleep 0.02; done; echo ok")).serve();
    let (mut one, mut other) = (server.session(), server.session());
    let pending = one.begin_as(7, "tools/call", json!({"name": "t", "arguments": {}}));
    eventually("it runs", || server.path("started").exists());
    assert_eq!(other.notify("notifications/cancelled", json!({"requestId": 7})), 202);
    assert_eq!(other.request("ping", json!({})).unwrap(), json!({}));
    server.write("go", "", 0o644);
    assert_eq!(one.finish_call(pending).unwrap().stdout(), "ok\n");
}

/// P7
#[test]
fn a_progress_token_may_be_reused() {
    let server = world().tool("p", sh("echo \"::progress 1/1 $2\" >&2; echo $2")).serve();
    let session = server.session();
    let mut clients: Vec<_> = (0..5).map(|_| same_session(&server, &session)).collect();
    let begin = |(n, client): (usize, &mut orla_e2e::Client)| {
        let params = json!({"name": "p", "arguments": {"n": n}, "_meta": {"progressToken": "same"}});
        client.begin_as(50 + n as u64, "tools/call", params)
    };
    let pending: Vec<_> = clients.iter_mut().enumerate().map(begin).collect();
    for (n, (client, pending)) in clients.iter_mut().zip(pending).enumerate() {
        let result = client.finish_call(pending).unwrap();
        assert_eq!(result.stdout(), format!("{n}\n"));
        for note in result.notified("notifications/progress") {
            assert_eq!(note["message"], n.to_string(), "each call's progress is on its own stream");
        }
    }
}

#[test]
fn completion_offers_what_a_schema_enumerates() {
    let tool = "#!/bin/sh\n# /// orla\n# input_schema:\n#   type: object\n#   properties: {unit: {enum: [metre, mile, minute]}}\n# ///\n";
    let prompt = "---\narguments: [{name: who}]\n---\nHi {{who}}\n";
    let server = world().tool("t", tool).file("prompts/hello.md", prompt).serve();
    for mut client in server.clients() {
        let params = json!({"ref": {"type": "ref/prompt", "name": "hello"}, "argument": {"name": "who", "value": ""}});
        let result = client.request("completion/complete", params).unwrap();
        assert!(result["completion"]["values"].is_array(), "{result}");
    }
}

#[test]
fn a_request_that_mixes_revisions_is_refused() {
    let server = world().tool("t", sh("echo ok")).serve();
    let mut client = server.client();
    let good = client.begin_call("t", json!({}));
    client.finish_call(good).unwrap();
    // The header names another method than the body.
    let request = client.post("tools/list", None).body(
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "t", "arguments": {}, "_meta": {
            "io.modelcontextprotocol/protocolVersion": SESSIONLESS,
            "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }}})
        .to_string(),
    );
    let answer = server.http().send(&request).unwrap();
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], -32020, "{}", answer.text());
}

fn same_session(server: &orla_e2e::Server, session: &orla_e2e::Client) -> orla_e2e::Client {
    orla_e2e::Client::resume(server.address(), session)
}

/// The list of tools is the same in both revisions, except for one member that only sessions have.
#[test]
fn both_revisions_list_the_same_tools() {
    let server = world().tool("a", sh("# First.\necho")).tool("b", sh("echo")).serve();
    let [mut sessionless, mut session] = server.clients();
    let [tools, mut of_session]: [Vec<Value>; 2] = [sessionless.tools(), session.tools()];
    for tool in &mut of_session {
        let execution = tool.as_object_mut().expect("an object").remove("execution");
        assert_eq!(execution, Some(json!({"taskSupport": "optional"})));
    }
    assert_eq!(tools, of_session);
}
