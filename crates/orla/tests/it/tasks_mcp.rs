//! Tasks over MCP: the methods of 2025-11-25, and the notifications of both revisions.

use orla_e2e::{Server, eventually};
use serde_json::{Value, json};

use crate::{sh, world};

/// Returns a tool that ends when the file `go` is there. It may be run again.
fn waits() -> String {
    sh(
        "# /// orla\n# description: Waits.\n# task: optional\n# annotations: {idempotentHint: true}\n# ///\n\
        while [ ! -e go ]; do sleep 0.02; done\necho done",
    )
}

fn world_with_waits() -> Server {
    world().tool("waits", waits()).serve()
}

#[test]
fn a_session_runs_a_tool_as_a_task_and_a_later_session_has_its_result_after_a_kill() {
    let mut server = world_with_waits();
    let mut client = server.session();
    assert_eq!(client.tool("waits")["execution"]["taskSupport"], "optional");
    let call = json!({"name": "waits", "arguments": {}, "task": {"ttl": 600_000}});
    let created = client.request("tools/call", call.clone()).unwrap();
    let id = created["task"]["taskId"].as_str().expect("a task").to_owned();
    assert_eq!(created["task"]["status"], "working", "{created}");
    let other = client.request("tools/call", call).unwrap();
    let other = other["task"]["taskId"].as_str().expect("a task").to_owned();
    let cancelled = client.request("tasks/cancel", json!({"taskId": other})).unwrap();
    assert_eq!(cancelled["status"], "cancelled");
    let again = client.request("tasks/cancel", json!({"taskId": other})).unwrap_err();
    assert_eq!(again.code, -32602, "it is over");

    server.kill();
    server.start_again();
    let mut client = server.session();
    let listed = client.request("tasks/list", json!({})).unwrap();
    let ids: Vec<&Value> =
        listed["tasks"].as_array().unwrap().iter().map(|task| &task["taskId"]).collect();
    assert_eq!(ids, [&json!(other), &json!(id)], "the newest first, also of an earlier session");
    let pending = client.begin("tasks/result", json!({"taskId": id}));
    server.write("go", "", 0o644);
    let (result, _) = client.complete(pending).unwrap();
    assert_eq!(result["content"][0]["text"], "done\n", "{result}");
    let related = &result["_meta"]["io.modelcontextprotocol/related-task"]["taskId"];
    assert_eq!(related, &json!(id), "{result}");
    let got = client.request("tasks/get", json!({"taskId": id})).unwrap();
    assert_eq!(got["status"], "completed");
    let unknown = client.request("tasks/get", json!({"taskId": "no-such"})).unwrap_err();
    assert_eq!(unknown.code, -32602);
}

#[test]
fn a_session_that_waits_for_a_result_gets_status_notifications() {
    let tool = "# /// orla\n# description: Says how far it is.\n# task: optional\n# ///\n\
        while [ ! -e go ]; do echo '::progress 1/2 half' >&2; sleep 0.02; echo '::progress 0/2 none' >&2; sleep 0.02; done\necho done";
    let server = world().tool("tells", sh(tool)).serve();
    let mut client = server.session();
    let call = json!({"name": "tells", "arguments": {}, "task": {}});
    let created = client.request("tools/call", call).unwrap();
    let id = created["task"]["taskId"].clone();
    let mut waiting = client.begin("tasks/result", json!({"taskId": id}));
    let status = waiting.next_message().expect("how it stands");
    assert_eq!(status["method"], "notifications/tasks/status", "{status}");
    assert_eq!((&status["params"]["taskId"], &status["params"]["status"]), (&id, &json!("working")));
    server.write("go", "", 0o644);
    let (result, later) = client.complete(waiting).unwrap();
    assert_eq!(result["content"][0]["text"], "done\n", "{result}");
    assert!(later.iter().all(|notice| notice["params"]["taskId"] == id), "{later:?}");
}

#[test]
fn a_session_cannot_see_cancel_or_wait_for_a_task_of_another_caller() {
    let config = "auth_tokens: {ada: ada-token-0123456789abcdef, bob: bob-token-0123456789abcdef}\n";
    let server = world().tool("waits", waits()).config(config).serve();
    let mut ada = server.session_as("ada-token-0123456789abcdef");
    let mut bob = server.session_as("bob-token-0123456789abcdef");
    let call = json!({"name": "waits", "arguments": {}, "task": {}});
    let created = ada.request("tools/call", call).unwrap();
    let id = created["task"]["taskId"].clone();
    for method in ["tasks/get", "tasks/cancel", "tasks/result"] {
        let refused = bob.request(method, json!({"taskId": id})).unwrap_err();
        let unknown = bob.request(method, json!({"taskId": "01890000-0000-7000-8000-000000000000"}));
        let unknown = unknown.unwrap_err();
        assert_eq!((refused.code, unknown.code), (-32602, -32602), "{method}: {refused:?}");
    }
    assert_eq!(bob.request("tasks/list", json!({})).unwrap()["tasks"], json!([]));
    let listed = ada.request("tasks/list", json!({})).unwrap();
    assert_eq!(listed["tasks"][0]["taskId"], id, "{listed}");
    let cancelled = ada.request("tasks/cancel", json!({"taskId": id})).unwrap();
    assert_eq!(cancelled["status"], "cancelled");
}

#[test]
fn a_listening_client_is_notified_of_its_own_tasks_only() {
    let server = world_with_waits();
    let mut client = server.client();
    let meta = json!({"io.modelcontextprotocol/clientCapabilities":
        {"extensions": {"io.modelcontextprotocol/tasks": {}}}});
    let call = json!({"name": "waits", "arguments": {}, "_meta": meta});
    let created = eventually("it is a task", || {
        let answer = client.request("tools/call", call.clone()).unwrap();
        answer["taskId"].is_string().then_some(answer)
    });
    let id = created["taskId"].clone();
    let wanted = json!({"notifications": {"taskIds": [id, "no-such"]}, "_meta": meta});
    let mut listening = server.client().begin("subscriptions/listen", wanted);
    let acknowledged = listening.next_message().expect("an acknowledgement");
    assert_eq!(acknowledged["params"]["notifications"]["taskIds"], json!([id]), "{acknowledged}");
    let now = listening.next_message().expect("how it stands");
    assert_eq!(now["method"], "notifications/tasks");
    assert_eq!((&now["params"]["taskId"], &now["params"]["status"]), (&id, &json!("working")));
    server.write("go", "", 0o644);
    let end = loop {
        let notice = listening.next_message().expect("its end");
        if notice["params"]["status"] != "working" {
            break notice;
        }
    };
    assert_eq!(end["params"]["status"], "completed", "{end}");
    assert_eq!(end["params"]["result"]["content"][0]["text"], "done\n", "{end}");
}
