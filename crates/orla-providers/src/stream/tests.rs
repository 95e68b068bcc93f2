//! Streams against servers and programs that do what such do: cut, begin anew, flood, fall silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::routing::post;
use orla_marketplace::testing::eventually;
use orla_marketplace::{
    CallContext, CapabilityExecutor, HttpCapability, JsonText, Notice, NoticeSink, Outcome, Payload,
    PluginCapability, ProviderType, RuntimeError, RuntimeResult, StreamCapabilityImpl, StreamHandle,
    StreamItems, StreamTransport, StreamType,
};
use tokio_tungstenite::tungstenite::{self, Message};

use super::StreamExecutor;
use crate::http::test_server::{Answer, Server, answer};

fn executor() -> StreamExecutor {
    StreamExecutor::new()
}

fn over_http(url: &str, transport: StreamTransport, stream_type: StreamType) -> StreamCapabilityImpl {
    let http = HttpCapability::new(url, None, 0);
    let mut stream = StreamCapabilityImpl::new(ProviderType::Http(http), stream_type);
    stream.options.transport = transport;
    stream
}

fn shell(script: &str, stream_type: StreamType) -> StreamCapabilityImpl {
    let program = ProviderType::Plugin(PluginCapability::new("/bin/sh", ""));
    let mut stream = StreamCapabilityImpl::new(program, stream_type);
    stream.options.transport = StreamTransport::Lines;
    stream.options.args = vec!["-c".into(), script.into()];
    stream
}

fn sort_lines(stream_type: StreamType) -> StreamCapabilityImpl {
    shell("exec sort", stream_type)
}

async fn open_with(stream: &StreamCapabilityImpl, input: &str) -> RuntimeResult<Box<dyn StreamHandle>> {
    let input = Payload::from_json(JsonText::parse(input.to_owned()).unwrap());
    let provider = ProviderType::Stream(stream.clone());
    executor().open(&provider, &input, &CallContext::for_tests("feed")).await
}

async fn open(stream: &StreamCapabilityImpl) -> Box<dyn StreamHandle> {
    open_with(stream, "{}").await.unwrap()
}

async fn call(stream: &StreamCapabilityImpl, input: &str, ctx: &CallContext) -> RuntimeResult<Outcome> {
    let input = Payload::from_json(JsonText::parse(input.to_owned()).unwrap());
    executor().execute(&ProviderType::Stream(stream.clone()), &input, ctx).await
}

async fn called(stream: &StreamCapabilityImpl, input: &str) -> String {
    text(&call(stream, input, &CallContext::for_tests("feed")).await.unwrap())
}

fn text(outcome: &Outcome) -> String {
    outcome.structured.as_ref().unwrap().json().unwrap().as_str().to_owned()
}

/// Returns the items as JSON, to the end of the stream, and the error that ended it.
async fn all(stream: &dyn StreamHandle) -> (Vec<String>, Option<RuntimeError>) {
    let mut items = Vec::new();
    while let Some(item) = stream.next().await {
        match item {
            Ok(item) => items.push(item.json().unwrap().as_str().to_owned()),
            Err(error) => return (items, Some(error)),
        }
    }
    (items, None)
}

const EVENTS: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nretry: 1\n\n";

fn events(to: &mut Answer, ids: impl IntoIterator<Item = usize>) {
    to.send(EVENTS);
    for id in ids {
        to.send(format!("id: {id}\ndata: {{\"n\": {id}}}\n\n").as_bytes());
    }
}

fn numbers(range: std::ops::RangeInclusive<usize>) -> Vec<String> {
    range.map(|n| format!("{{\"n\": {n}}}")).collect()
}

#[tokio::test]
async fn events_that_are_cut_are_taken_up_behind_the_last_one() {
    let server = Server::start(|request, to| {
        let last = request.head.lines().find_map(|line| line.strip_prefix("last-event-id: "));
        match last.map(|id| id.trim().parse::<usize>().unwrap()) {
            // Cut in the middle of an event.
            None => {
                events(to, 1..=3);
                to.send(b"id: 4\ndata: {\"n\":");
            }
            // This one counts the last one in, as some do.
            Some(3) => events(to, 3..=7),
            Some(7) => events(to, 8..=10),
            Some(_) => answer(to, "204 No Content", "", b""),
        }
    });
    let stream = over_http(&server.url(), StreamTransport::Sse, StreamType::Source);
    let (items, error) = all(&*open(&stream).await).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(items, numbers(1..=10));
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn a_server_that_knows_no_ids_again_gives_nothing_twice() {
    let server = Server::start(|_, to| events(to, 1..=5));
    let stream = over_http(&server.url(), StreamTransport::Sse, StreamType::Source);
    let (items, error) = all(&*open(&stream).await).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(items, numbers(1..=5));
    // One whose last event alone has an id.
    let server = Server::start(|_, to| {
        to.send(EVENTS);
        to.send(b"data: 1\n\ndata: 2\n\nid: x\ndata: 3\n\n");
    });
    let stream = over_http(&server.url(), StreamTransport::Sse, StreamType::Source);
    let (items, error) = all(&*open(&stream).await).await;
    assert_eq!((items.join(" ").as_str(), error.is_none()), ("1 2 3", true));
}

#[tokio::test]
async fn streams_that_cannot_be_resumed_fail_with_the_position() {
    let server = Server::start(|request, to| match request.path() {
        "/lines" => {
            to.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"n\":1}\nplain\n{\"n\":");
        }
        "/whole" => answer(to, "200 OK", "", b"1\n2\n\n3"),
        "/page" => answer(to, "200 OK", "content-type: text/html\r\n", b"<html>"),
        "/busy" => answer(to, "503 Busy", "", b""),
        _ => answer(to, "404 Not Found", "", b""),
    });
    let at = |path: &str, transport| {
        over_http(&format!("{}{path}", server.url()), transport, StreamType::Source)
    };
    let (items, error) = all(&*open(&at("/lines", StreamTransport::Ndjson)).await).await;
    assert_eq!(items, [r#"{"n":1}"#, r#""plain""#]);
    let error = error.unwrap();
    assert_eq!(error.to_string(), "feed is unavailable: after 2 items: the connection broke");
    assert!(error.is_transient());
    let (items, error) = all(&*open(&at("/whole", StreamTransport::Ndjson)).await).await;
    assert_eq!((items, error.is_none()), (vec!["1".into(), "2".into(), "3".into()], true));
    for (path, words) in [
        ("/page", "answers with text/html instead of text/event-stream"),
        ("/busy", "answers 503 Service Unavailable; trying again may help"),
        ("/none", "answers 404 Not Found"),
    ] {
        let error = open_with(&at(path, StreamTransport::Sse), "{}").await.err().unwrap();
        assert!(error.to_string().contains(words), "{path}: {error}");
    }
}

#[tokio::test]
async fn v5_a_flood_waits_and_ends_when_nobody_wants_it_any_more() {
    static SENT: AtomicUsize = AtomicUsize::new(0);
    let server = Server::start(|_, to| {
        to.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n");
        let line = format!("{{\"text\":\"{}\"}}\n", "x".repeat(1000)).repeat(100);
        while to.send(line.as_bytes()) {
            SENT.fetch_add(line.len(), Ordering::Relaxed);
        }
    });
    let stream = over_http(&server.url(), StreamTransport::Ndjson, StreamType::Source);
    let handle = open(&stream).await;
    assert!(handle.next().await.unwrap().is_ok());
    // It comes to rest: what is sent waits in the connection, and not here.
    let mut before = usize::MAX;
    eventually("it waits", || {
        std::mem::replace(&mut before, SENT.load(Ordering::Relaxed)) == before && before > 0
    })
    .await;
    assert!(before < 64 * 1024 * 1024, "{before}");
    drop(handle);
    tokio::time::timeout(orla_marketplace::testing::TEST_TIMEOUT, server.eventually_ended(1))
        .await
        .unwrap();

    let called = called(&stream, r#"{"limit": 1000, "for_ms": 20000}"#).await;
    assert!(called.ends_with(r#"],"ended_by":"limit"}"#), "{}", &called[called.len() - 50..]);
    server.eventually_ended(2).await;
}

#[tokio::test]
async fn a_silent_connection_counts_as_cut_and_a_silent_stream_ends() {
    let silent = Server::start(|request, to| {
        match request.head.contains("last-event-id") {
            false => events(to, 1..=1),
            true => events(to, 2..=2),
        }
        crate::http::test_server::wait_for_end(to);
    });
    let mut stream = over_http(&silent.url(), StreamTransport::Sse, StreamType::Source);
    stream.options.heartbeat = Some(Duration::from_millis(100));
    let handle = open(&stream).await;
    for n in 1..=2 {
        let item = handle.next().await.unwrap().unwrap();
        assert_eq!(item.json().unwrap().as_str(), format!("{{\"n\": {n}}}"));
    }
    stream.options.heartbeat = None;
    stream.options.idle = Some(Duration::from_secs(2));
    let handle = open(&stream).await;
    assert!(handle.next().await.unwrap().is_ok());
    let error = handle.next().await.unwrap().err().unwrap();
    assert_eq!(error.to_string(), "the next item of feed timed out after 2 s");
}

#[tokio::test]
async fn a_call_collects_up_to_a_limit_or_a_time_with_progress() {
    let stream = shell(
        "i=0; while :; do i=$((i+1)); echo $i; [ $i = 3 ] && exec sleep 600; done",
        StreamType::Source,
    );
    let mut ctx = CallContext::for_tests("feed");
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    ctx.scope.notices = NoticeSink::new(move |notice| {
        if let Notice::Progress(progress) = notice {
            assert_eq!(progress.total, Some(2.0));
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let outcome = call(&stream, r#"{"limit": 2}"#, &ctx).await.unwrap();
    assert_eq!(text(&outcome), r#"{"items":[1,2],"ended_by":"limit"}"#);
    assert_eq!(told.load(Ordering::Relaxed), 2);
    assert_eq!(called(&stream, r#"{"for_ms": 300}"#).await, r#"{"items":[1,2,3],"ended_by":"time"}"#);
}

#[tokio::test]
async fn programs_give_take_and_transform_lines() {
    let given = shell(r#"echo "$ORLA_INPUT"; echo oh >&2; exit 3"#, StreamType::Source);
    let (items, error) = all(&*open_with(&given, r#"{"n": 1.10}"#).await.unwrap()).await;
    assert_eq!(items, [r#"{"n": 1.10}"#]);
    let error = error.unwrap().to_string();
    assert_eq!(error, "feed is unavailable: after one item: the program exited with code 3: oh");
    let mut secret =
        shell(r#"echo 1; echo "no $API_KEY $(printf '%496s' x)" >&2; exit 3"#, StreamType::Source);
    secret.options.env.insert("API_KEY".to_owned(), "hunter22".to_owned());
    let error = all(&*open(&secret).await).await.1.unwrap().to_string();
    assert!(!error.contains("22") && error.contains("code 3: **"), "{error}");
    let came = call(&secret, "{}", &CallContext::for_tests("feed")).await.unwrap_err();
    let came = text(came.outcome().unwrap());
    assert_eq!(came, r#"{"items":[1],"ended_by":"error"}"#);

    let sort = shell("exec sort", StreamType::Transform);
    let sorted = open_with(&sort, "[3, 1, 2]").await.unwrap();
    assert_eq!(all(&*sorted).await.0, ["1", "2", "3"], "a list is what it transforms");
    assert_eq!(
        called(&sort, r#"{"send": ["b", "a"]}"#).await,
        r#"{"items":["\"a\"","\"b\""],"ended_by":"end"}"#.replace(r#"\""#, "")
    );

    let dir = tempfile::tempdir().unwrap();
    let mut sink = shell("cat > taken", StreamType::Sink);
    sink.options.directory = Some(dir.path().to_owned());
    assert_eq!(called(&sink, r#"{"send": [1, {"a": 2}]}"#).await, r#"{"sent":2}"#);
    assert_eq!(std::fs::read_to_string(dir.path().join("taken")).unwrap(), "1\n{\"a\": 2}\n");
    let talkative = shell("exec tee /dev/stderr", StreamType::Sink);
    let long = "x".repeat(300_000);
    let sent = called(&talkative, &format!(r#"{{"send": ["{long}", "{long}"]}}"#)).await;
    assert_eq!(sent, r#"{"sent":2}"#, "what it says is no matter");

    let echo = open(&shell("exec cat", StreamType::Duplex)).await;
    for n in 0..3 {
        echo.send(Payload::from_value(n.into())).await.unwrap();
        assert_eq!(echo.next().await.unwrap().unwrap().json().unwrap().as_str(), n.to_string());
    }
    echo.close().await;
    assert!(echo.next().await.is_none());
    // Who says that nothing more comes still gets what comes of it.
    for kind in [StreamType::Bidirectional, StreamType::Duplex, StreamType::Transform] {
        let sorting = open(&sort_lines(kind)).await;
        for n in [3, 1, 2] {
            sorting.send(Payload::from_value(n.into())).await.unwrap();
        }
        assert!(sorting.finish().await && sorting.finish().await);
        let refused = sorting.send(Payload::from_value(4.into())).await.unwrap_err();
        assert!(refused.to_string().contains("it accepts no more values"), "{refused}");
        let (items, error) = all(&*sorting).await;
        assert_eq!((items.join(" ").as_str(), error.is_none()), ("1 2 3", true));
    }
    assert!(!open(&given).await.finish().await, "a source ends with that");
    let source = open(&shell("echo 1", StreamType::Source)).await;
    let refused = source.send(Payload::from_value(1.into())).await.unwrap_err();
    assert!(refused.to_string().contains("accepts no values"), "{refused}");
}

#[tokio::test]
async fn an_endless_program_ends_with_its_stream() {
    let dir = tempfile::tempdir().unwrap();
    let mut endless = shell("echo $$ > pid; exec yes", StreamType::Source);
    endless.options.directory = Some(dir.path().to_owned());
    let handle = open(&endless).await;
    for _ in 0..1000 {
        assert_eq!(handle.next().await.unwrap().unwrap().json().unwrap().as_str(), r#""y""#);
    }
    let pid = std::fs::read_to_string(dir.path().join("pid")).unwrap();
    let process = std::path::PathBuf::from(format!("/proc/{}", pid.trim()));
    let state = || std::fs::read_to_string(process.join("stat")).unwrap_or_default();
    assert!(!state().is_empty());
    drop(handle);
    let gone = eventually("its end", || state().is_empty() || state().contains(") Z "));
    tokio::time::timeout(orla_marketplace::testing::TEST_TIMEOUT, gone).await.unwrap();
}

#[tokio::test]
async fn items_are_bounded_and_of_their_type() {
    let mut long = shell("echo 12345; echo 123456", StreamType::Source);
    long.options.max_item_bytes = 5;
    let (items, error) = all(&*open(&long).await).await;
    assert_eq!(items, ["12345"]);
    assert!(error.unwrap().to_string().contains("larger than 5 bytes (max_item_bytes)"));
    let mut typed = shell("echo 1; echo '\"a\"'", StreamType::Source);
    typed.output_schema = Some(":int".parse().unwrap());
    let (items, error) = all(&*open(&typed).await).await;
    let error = error.unwrap();
    assert_eq!((items.len(), error.kind()), (1, "invalid-output"));
    assert!(error.to_string().contains("items[1]: expected an integer, got"), "{error}");
    typed.options.items = StreamItems::Json;
    typed.options.args[1] = "echo 1; echo 2; echo oh".into();
    let error = all(&*open(&typed).await).await.1.unwrap().to_string();
    assert!(error.starts_with("feed failed: items[2] is no JSON"), "{error}");
    let mut taking = shell("cat", StreamType::Duplex);
    taking.input_schema = Some(":int".parse().unwrap());
    let refused = open(&taking).await.send(Payload::from_value("a".into())).await.unwrap_err();
    assert_eq!(refused.kind(), "invalid-input");
}

/// Echoes until the other end has enough; `cut` drops the connection after so many messages.
fn web_socket(cut: Option<usize>) -> (String, Arc<AtomicUsize>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let ended = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&ended);
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let counted = Arc::clone(&counted);
            std::thread::spawn(move || {
                let Ok(mut socket) = tungstenite::accept(stream) else { return };
                let mut echoed = 0;
                let _ = socket.send(Message::Ping("are you there".into()));
                while let Ok(message) = socket.read() {
                    match message {
                        Message::Text(text) if text.as_str() == "bye" => {
                            let _ = socket.close(None);
                        }
                        message @ Message::Text(_) => {
                            let _ = socket.send(message);
                            echoed += 1;
                            if cut == Some(echoed) {
                                break;
                            }
                        }
                        _ => {}
                    }
                }
                counted.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    (url, ended)
}

#[tokio::test]
async fn a_web_socket_goes_both_ways() {
    let (url, ended) = web_socket(None);
    let stream = over_http(&url, StreamTransport::WebSocket, StreamType::Duplex);
    let handle = open(&stream).await;
    for text in ["a", "b"] {
        handle.send(Payload::from_value(text.into())).await.unwrap();
        assert_eq!(
            handle.next().await.unwrap().unwrap().json().unwrap().as_str(),
            format!("\"{text}\"")
        );
    }
    handle.send(Payload::from_value("bye".into())).await.unwrap();
    assert!(handle.next().await.is_none(), "the other end has said goodbye");
    eventually("the first end", || ended.load(Ordering::Relaxed) == 1).await;
    let finished = open(&stream).await;
    for n in 0..50 {
        finished.send(Payload::from_value(n.into())).await.unwrap();
    }
    assert!(finished.finish().await);
    let (items, error) = all(&*finished).await;
    assert_eq!((items.len(), error.is_none()), (50, true), "what was under way has come");
    eventually("the second end", || ended.load(Ordering::Relaxed) == 2).await;
    let dropped = open(&stream).await;
    drop(dropped);
    eventually("the third end", || ended.load(Ordering::Relaxed) == 3).await;
    let transform = over_http(&url, StreamTransport::WebSocket, StreamType::Transform);
    assert_eq!(called(&transform, r#"{"send": [1, 2]}"#).await, r#"{"items":[1,2],"ended_by":"limit"}"#);
    let page = Server::start(|_, to| answer(to, "200 OK", "", b"hello"));
    let error =
        open_with(&over_http(&page.url(), StreamTransport::WebSocket, StreamType::Duplex), "{}").await;
    assert!(error.err().unwrap().to_string().contains("instead of opening a WebSocket"));
}

#[tokio::test]
async fn a_broken_web_socket_fails_or_reconnects_as_configured() {
    let (url, _) = web_socket(Some(1));
    let mut stream = over_http(&url, StreamTransport::WebSocket, StreamType::Duplex);
    let handle = open(&stream).await;
    handle.send(Payload::from_value(1.into())).await.unwrap();
    let (items, error) = all(&*handle).await;
    assert_eq!(items, ["1"]);
    assert!(error.unwrap().to_string().contains("after one item: the connection"));
    stream.options.reconnect = true;
    let handle = open(&stream).await;
    handle.send(Payload::from_value(1.into())).await.unwrap();
    assert_eq!(handle.next().await.unwrap().unwrap().json().unwrap().as_str(), "1");
    // Until it has been connected again there is nobody to send to.
    let waiting = handle.next();
    tokio::pin!(waiting);
    let item = loop {
        tokio::select! {
            item = &mut waiting => break item,
            () = tokio::time::sleep(Duration::from_millis(20)) => {
                let _ = handle.send(Payload::from_value(2.into())).await;
            }
        }
    };
    assert_eq!(item.unwrap().unwrap().json().unwrap().as_str(), "2");
}

#[tokio::test]
async fn lines_over_http_go_both_ways_at_once() {
    let echo = |body: Body| async move { Body::from_stream(body.into_data_stream()) };
    let count = |body: String| async move { format!("{}\n", body.lines().count()) };
    let routes = axum::Router::new().route("/echo", post(echo)).route("/count", post(count));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio_util::task::TaskTracker::new();
    serving.spawn(async move { axum::serve(listener, routes).await });
    let duplex = over_http(&format!("{url}/echo"), StreamTransport::Ndjson, StreamType::Duplex);
    let handle = open(&duplex).await;
    for n in 0..3 {
        handle.send(Payload::from_value(n.into())).await.unwrap();
        assert_eq!(handle.next().await.unwrap().unwrap().json().unwrap().as_str(), n.to_string());
    }
    handle.close().await;
    let counted = over_http(&format!("{url}/count"), StreamTransport::Ndjson, StreamType::Transform);
    let many: Vec<String> = (0..500).map(|n| n.to_string()).collect();
    let input = format!(r#"{{"send": [{}]}}"#, many.join(","));
    assert_eq!(called(&counted, &input).await, r#"{"items":[500],"ended_by":"end"}"#);
    let sink = over_http(&format!("{url}/count"), StreamTransport::Ndjson, StreamType::Sink);
    assert_eq!(called(&sink, r#"{"send": [1, 2]}"#).await, r#"{"sent":2}"#);
    let refusing = over_http(&format!("{url}/nowhere"), StreamTransport::Ndjson, StreamType::Sink);
    let error = call(&refusing, r#"{"send": [1]}"#, &CallContext::for_tests("feed")).await.unwrap_err();
    assert!(error.to_string().contains("404"), "{error}");
}
