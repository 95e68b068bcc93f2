//! The executor against servers on loopback that say what a test wants.

use orla_marketplace::testing::eventually;
use orla_marketplace::{
    CallContext, CapabilityExecutor, JsonText, Outcome, Payload, ProviderType, RemoteRTFSCapability,
    RuntimeError, RuntimeResult, Source,
};

use super::{RemoteRTFSExecutor, RemoteSettings, Remotes};
use crate::http::test_server::{Server, answer, redirect, wait_for_end};

async fn call(remote: &RemoteRTFSCapability, ctx: &CallContext) -> RuntimeResult<Outcome> {
    let input = Payload::from_json(JsonText::parse(r#"{"n": 1.10}"#).unwrap());
    RemoteRTFSExecutor::new().execute(&ProviderType::RemoteRTFS(remote.clone()), &input, ctx).await
}

#[tokio::test]
async fn a_call_is_posted_once_and_its_value_is_returned() {
    let server = Server::start(|request, to| {
        let body = format!(r#"{{"value":{}}}"#, request.body);
        answer(to, "200 OK", "content-type: application/json\r\n", body.as_bytes());
    });
    let remote = RemoteRTFSCapability::new(server.url(), 0, Some("t0ken".into()));
    let outcome = call(&remote, &CallContext::for_tests("echo")).await.unwrap();
    let value = outcome.structured.unwrap().json().unwrap().as_str().to_owned();
    assert_eq!(value, r#"{"call":"echo","input":{"n": 1.10}}"#);
    let requests = server.requests();
    assert_eq!((requests.len(), requests[0].path()), (1, "/rtfs"));
    assert!(requests[0].head.contains("\r\nauthorization: Bearer t0ken\r\n"), "{}", requests[0].head);
}

#[tokio::test]
async fn no_redirect_gets_the_token() {
    let other = Server::start(|_, to| answer(to, "200 OK", "", br#"{"value":1}"#));
    let target = other.url();
    let server = Server::start(move |_, to| redirect(to, 307, &target));
    let remote = RemoteRTFSCapability::new(server.url(), 0, Some("t0ken".into()));
    let error = call(&remote, &CallContext::for_tests("echo")).await.unwrap_err();
    assert!(error.to_string().contains("redirects are not followed"), "{error}");
    assert_eq!(other.connections(), 0);
}

#[tokio::test]
async fn a_call_that_is_dropped_or_withdrawn_or_too_slow_ends_its_request() {
    let server = Server::start(|_, to| wait_for_end(to));
    let mut remote = RemoteRTFSCapability::new(server.url(), 0, None);
    let dropped = CallContext::for_tests("slow");
    let begun = || server.requests().len();
    tokio::select! {
        _ = call(&remote, &dropped) => panic!("it has no answer"),
        () = eventually("the call", || begun() == 1) => {}
    }
    server.eventually_ended(1).await;
    let withdrawn = CallContext::for_tests("slow");
    let (result, ()) = tokio::join!(call(&remote, &withdrawn), async {
        eventually("the call", || begun() == 2).await;
        withdrawn.scope.cancellation.cancel();
    });
    assert!(matches!(result, Err(RuntimeError::Cancelled { .. })));
    server.eventually_ended(2).await;
    remote.timeout_ms = 30;
    let error = call(&remote, &CallContext::for_tests("slow")).await.unwrap_err();
    assert_eq!(error.to_string(), "slow timed out after 0.03 s");
    server.eventually_ended(3).await;
}

#[tokio::test]
async fn an_answer_is_bounded_and_one_that_breaks_off_may_be_asked_for_again() {
    let server = Server::start(|_, to| {
        to.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"value\":");
    });
    let mut remote = RemoteRTFSCapability::new(server.url(), 0, None);
    let error = call(&remote, &CallContext::for_tests("cut")).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("ended early"), "{error}");
    remote.options.max_answer_bytes = 50;
    let error = call(&remote, &CallContext::for_tests("cut")).await.unwrap_err();
    assert_eq!(error.kind(), "limit");
}

#[tokio::test]
async fn a_circle_is_found_before_anything_is_sent() {
    let server = Server::start(|_, to| answer(to, "200 OK", "", br#"{"value":1}"#));
    let remote = RemoteRTFSCapability::new(server.url(), 0, None);
    let mut ctx = CallContext::for_tests("round");
    for name in ["a", "b"].into_iter().cycle().take(8) {
        ctx.scope.hops = ctx.scope.hops.through(name).unwrap();
    }
    let error = call(&remote, &ctx).await.unwrap_err();
    assert!(error.to_string().contains("the hop limit of 8 instances, by a → b → a"), "{error}");
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_catalogue_is_followed_through_changes_and_failures() {
    let server = Server::start(|request, to| {
        let one = |id: &str| {
            format!(
                r#"{{"id":"{id}","via":["b"],"tool":{{"name":"{id}","description":"d","inputSchema":{{"type":"object"}}}}}}"#
            )
        };
        let catalogue = |version: &str, ids: &[&str]| {
            let all: Vec<String> = ids.iter().map(|id| one(id)).collect();
            format!(r#"{{"version":"{version}","instance":"b","capabilities":[{}]}}"#, all.join(","))
        };
        if request.path().contains("after=b-2") {
            wait_for_end(to);
        } else if request.path().contains("after=b-1") {
            answer(to, "200 OK", "", catalogue("b-2", &["x", "y"]).as_bytes());
        } else {
            answer(to, "200 OK", "", catalogue("b-1", &["x"]).as_bytes());
        }
    });
    let remotes = Remotes::new("me".into());
    let nowhere = RemoteSettings::new("gone", "http://127.0.0.1:1");
    remotes.load([RemoteSettings::new("b", server.url()), nowhere]);
    assert!(remotes.registrations().is_empty() && server.connections() == 0, "nobody has asked");
    assert!(remotes.may_serve("b.x") && !remotes.may_serve("c.x"));
    let mut changes = remotes.changes();
    remotes.learn().await;
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    assert!(remotes.problems(None)[0].text.starts_with("remote gone: "), "{:?}", remotes.problems(None));
    eventually("two capabilities", || remotes.registrations().len() == 2).await;
    let ids: Vec<String> = remotes.registrations().into_iter().map(|one| one.manifest.id).collect();
    assert_eq!(ids, ["b.x", "b.y"]);
    // Settings that stay keep what is known; those that go end their request.
    remotes.load([RemoteSettings::new("b", server.url())]);
    assert_eq!(remotes.registrations().len(), 2);
    eventually("the next question", || {
        server.requests().iter().any(|request| request.path().contains("after=b-2"))
    })
    .await;
    remotes.load([]);
    server.eventually_ended(1).await;
    let ended = tokio::time::timeout(orla_marketplace::testing::TEST_TIMEOUT, remotes.shutdown()).await;
    assert!(ended.is_ok());
}
