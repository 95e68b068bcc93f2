//! The pipe transport, over in-memory pipes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use orla_marketplace::CapabilityMarketplace;
use orla_server::{Server, ServerOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, duplex};
use tokio_util::sync::CancellationToken;

use crate::support::{DEADLINE, Seen, everything, load, market};

struct Pipe {
    market: Arc<CapabilityMarketplace>,
    seen: Arc<Seen>,
    input: Option<DuplexStream>,
    output: Lines<BufReader<DuplexStream>>,
    serving: tokio::task::JoinHandle<()>,
    shutdown: CancellationToken,
}

impl Pipe {
    fn new() -> Self {
        let mut options = ServerOptions::default();
        options.max_line_bytes = 100_000;
        Self::with(options)
    }

    fn with(options: ServerOptions) -> Self {
        let seen = Arc::default();
        let market = market(&seen);
        let server = Server::new(Arc::clone(&market), options);
        let (input, reader) = duplex(1 << 20);
        let (writer, output) = duplex(1 << 20);
        let shutdown = CancellationToken::new();
        let token = shutdown.clone();
        let serving = tokio_util::task::TaskTracker::new()
            .spawn(async move { server.serve_stdio(reader, writer, token).await });
        let output = BufReader::new(output).lines();
        Self { market, seen, input: Some(input), output, serving, shutdown }
    }

    async fn initialized() -> Self {
        let mut pipe = Self::new();
        pipe.send(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params":
            {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}}))
            .await;
        assert_eq!(pipe.next().await["result"]["serverInfo"]["name"], "orla");
        pipe.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        pipe
    }

    async fn send(&mut self, message: Value) {
        self.line(message.to_string().as_bytes()).await;
    }

    async fn line(&mut self, line: &[u8]) {
        let input = self.input.as_mut().unwrap();
        input.write_all(line).await.unwrap();
        input.write_all(b"\n").await.unwrap();
    }

    async fn call(&mut self, id: Value, tool: &str, arguments: Value) {
        let params = json!({"name": tool, "arguments": arguments});
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})).await;
    }

    async fn next(&mut self) -> Value {
        self.read().await.expect("the output ended")
    }

    async fn read(&mut self) -> Option<Value> {
        let line = tokio::time::timeout(DEADLINE, self.output.next_line()).await.expect("nothing came");
        line.unwrap().map(|line| serde_json::from_str(&line).unwrap())
    }

    /// Closes the input and waits for the server's end. Returns the remaining output.
    async fn close(mut self) -> Vec<Value> {
        self.input = None;
        let mut rest = Vec::new();
        while let Some(message) = self.read().await {
            rest.push(message);
        }
        tokio::time::timeout(DEADLINE, self.serving).await.expect("it ends").unwrap();
        rest
    }
}

#[tokio::test]
async fn both_eras_are_served_on_one_pipe() {
    let mut pipe = Pipe::new();
    pipe.send(json!({"jsonrpc": "2.0", "id": 1, "method": "ping"})).await;
    assert_eq!(pipe.next().await["result"], json!({}));
    pipe.call(json!(2), "echo", json!({})).await;
    assert_eq!(pipe.next().await["error"]["code"], -32600, "not initialized");
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
    for (method, member) in [("server/discover", "supportedVersions"), ("tools/list", "tools")] {
        pipe.send(
            json!({"jsonrpc": "2.0", "id": 3, "method": method, "params": {"_meta": meta.clone()}}),
        )
        .await;
        let answer = pipe.next().await;
        assert!(
            answer["result"][member].is_array() && answer["result"]["resultType"] == "complete",
            "{answer}"
        );
    }
    pipe.send(json!({"jsonrpc": "2.0", "id": 4, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}})).await;
    assert_eq!(pipe.next().await["result"]["protocolVersion"], "2025-06-18");
    pipe.send(json!({"jsonrpc": "2.0", "id": 5, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}})).await;
    assert_eq!(pipe.next().await["error"]["code"], -32600);
    pipe.call(json!("x"), "echo", json!({"a": 1})).await;
    let answer = pipe.next().await;
    assert_eq!((&answer["id"], &answer["result"]["structuredContent"]), (&json!("x"), &json!({"a": 1})));
    assert!(pipe.close().await.is_empty());
}

#[tokio::test]
async fn invalid_input_is_answered_and_later_requests_are_served() {
    let mut pipe = Pipe::initialized().await;
    for (line, code) in
        [(&b"garbage"[..], -32700), (b"[]", -32600), (b"\xff\xfe", -32700), (&[b'x'; 200_000], -32600)]
    {
        pipe.line(line).await;
        let answer = pipe.next().await;
        assert_eq!((&answer["error"]["code"], answer.get("id")), (&json!(code), Some(&Value::Null)));
    }
    pipe.line(b"").await;
    pipe.line(b" \t\r").await;
    pipe.call(json!(1), "echo", json!({})).await;
    assert_eq!(pipe.next().await["id"], 1);
}

#[tokio::test]
async fn an_unterminated_last_line_is_read() {
    let mut pipe = Pipe::initialized().await;
    let input = pipe.input.as_mut().unwrap();
    input.write_all(br#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#).await.unwrap();
    let rest = pipe.close().await;
    assert_eq!(rest, [json!({"jsonrpc": "2.0", "id": 7, "result": {}})]);

    let mut pipe = Pipe::initialized().await;
    pipe.input.as_mut().unwrap().write_all(br#"{"jsonrpc":"2.0","id":7,"#).await.unwrap();
    assert_eq!(pipe.close().await[0]["error"]["code"], -32700);
}

#[tokio::test]
async fn requests_run_at_once_and_a_cancelled_one_has_no_answer() {
    let mut pipe = Pipe::initialized().await;
    pipe.call(json!("slow"), "sleep", json!({"ms": 60_000})).await;
    pipe.call(json!(1), "sleep", json!({"ms": 150})).await;
    pipe.call(json!(2), "echo", json!({})).await;
    assert_eq!(pipe.next().await["id"], 2);
    pipe.call(json!("slow"), "echo", json!({})).await;
    assert_eq!(pipe.next().await["error"]["code"], -32600, "the id is in use");
    for id in ["unknown", "slow"] {
        let cancel =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
        pipe.send(cancel).await;
    }
    pipe.seen.until(|seen| &seen.cancelled, 1).await;
    assert_eq!(pipe.next().await["id"], 1);
    assert!(pipe.close().await.is_empty());
}

#[tokio::test]
async fn the_end_of_input_ends_calls_that_take_long_and_lets_short_ones_finish() {
    let mut pipe = Pipe::initialized().await;
    let seen = Arc::clone(&pipe.seen);
    pipe.call(json!(1), "sleep", json!({"ms": 60_000})).await;
    pipe.call(json!(2), "sleep", json!({"ms": 50})).await;
    let rest = pipe.close().await;
    assert_eq!(rest.iter().map(|message| &message["id"]).collect::<Vec<_>>(), [2]);
    assert_eq!((seen.cancelled.load(Ordering::SeqCst), seen.finished.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn a_closed_output_ends_everything() {
    let mut pipe = Pipe::initialized().await;
    pipe.call(json!(1), "sleep", json!({"ms": 60_000})).await;
    pipe.seen.until(|seen| &seen.began, 1).await;
    let Pipe { mut input, output, serving, seen, .. } = pipe;
    drop(output);
    let ping = b"{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\"}\n";
    input.as_mut().unwrap().write_all(ping).await.unwrap();
    tokio::time::timeout(DEADLINE, serving).await.expect("it ends").unwrap();
    seen.until(|seen| &seen.cancelled, 1).await;
}

#[tokio::test]
async fn a_server_that_shuts_down_lets_calls_finish() {
    let mut pipe = Pipe::initialized().await;
    pipe.call(json!(1), "sleep", json!({"ms": 700})).await;
    pipe.seen.until(|seen| &seen.began, 1).await;
    pipe.shutdown.cancel();
    assert_eq!(pipe.next().await["id"], 1);
    assert!(pipe.read().await.is_none());
}

#[tokio::test]
async fn a_client_receives_progress_and_changes() {
    let mut pipe = Pipe::initialized().await;
    let params = json!({"name": "noise", "arguments": {"ms": 1}, "_meta": {"progressToken": "t"}});
    pipe.send(json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})).await;
    let mut progress = Vec::new();
    loop {
        let message = pipe.next().await;
        match message["method"].as_str() {
            Some("notifications/progress") => progress.push(message["params"]["progress"].clone()),
            Some(_) => {}
            None => break assert_eq!(message["id"], 1),
        }
    }
    assert_eq!(progress, [1, 2, 3]);
    load(&pipe.market, &pipe.seen, &["new"]);
    assert_eq!(pipe.next().await["method"], "notifications/tools/list_changed");
    assert_eq!(pipe.next().await["method"], "notifications/prompts/list_changed");
    pipe.call(json!(2), "new", json!({})).await;
    assert_eq!(pipe.next().await["error"]["code"], -32602, "not listed yet");
    pipe.send(json!({"jsonrpc": "2.0", "id": 3, "method": "tools/list"})).await;
    assert_eq!(pipe.next().await["result"]["tools"][0]["name"], "new");
    pipe.call(json!(4), "new", json!({})).await;
    assert!(pipe.next().await.get("result").is_some());
}

#[tokio::test]
async fn a_client_is_asked_over_its_pipe() {
    let mut pipe = Pipe::new();
    pipe.send(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params":
        {"protocolVersion": "2025-11-25", "capabilities": everything(), "clientInfo": {}}}))
        .await;
    pipe.next().await;
    let question = json!({"method": "roots/list", "params": {}});
    pipe.call(json!(1), "ask", json!({"rounds": [[question]]})).await;
    let asked = pipe.next().await;
    assert_eq!((&asked["method"], &asked["params"]), (&json!("roots/list"), &json!({})));
    pipe.send(json!({"jsonrpc": "2.0", "id": 77, "result": {}})).await;
    pipe.send(json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": []}})).await;
    assert_eq!(pipe.next().await["result"]["structuredContent"]["got"], json!([{"roots": []}]));

    // The same pipe without a session, and its end while a call waits for its answer.
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": everything(),
    });
    let mut params = json!({"name": "ask", "arguments": {"rounds": [[question]]}, "_meta": meta});
    let request = |id: u32, params: &Value| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
    pipe.send(request(2, &params)).await;
    let asked = pipe.next().await["result"].clone();
    assert_eq!(asked["inputRequests"], json!({"roots-1": question}));
    params["requestState"] = asked["requestState"].clone();
    params["inputResponses"] = json!({"roots-1": {"roots": []}});
    pipe.send(request(3, &params)).await;
    let answer = pipe.next().await;
    assert_eq!((&answer["id"], &answer["result"]["resultType"]), (&json!(3), &json!("complete")));
    params.as_object_mut().unwrap().retain(|key, _| !key.starts_with("inputR") && key != "requestState");
    pipe.send(request(4, &params)).await;
    assert_eq!(pipe.next().await["result"]["resultType"], "input_required");
    let seen = Arc::clone(&pipe.seen);
    assert!(pipe.close().await.is_empty());
    assert_eq!(seen.finished.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_client_that_does_not_read_costs_bounded_memory_and_can_still_cancel() {
    let mut options = ServerOptions::default();
    options.max_piped_requests = 8;
    let mut pipe = Pipe::with(options);
    pipe.send(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}})).await;
    pipe.next().await;
    pipe.call(json!("slow"), "sleep", json!({"ms": 60_000})).await;
    pipe.seen.until(|seen| &seen.began, 1).await;
    let text = "x".repeat(50_000);
    for id in 0..200 {
        pipe.call(json!(id), "echo", json!({"text": text})).await;
    }
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "slow"}});
    tokio::time::timeout(DEADLINE, pipe.send(cancel)).await.expect("the input is being read");
    pipe.seen.until(|seen| &seen.cancelled, 1).await;
}
