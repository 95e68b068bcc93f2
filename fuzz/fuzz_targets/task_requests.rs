//! Requests about tasks over HTTP: every one is answered with JSON, and is never an error of the server.
//!
//! Each line is a request: its first byte says which, the rest is its body, its query or its parameters. `ID` is the id of a
//! program that waits.
#![no_main]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use orla_marketplace::program::{LanguageExecutor, registrations};
use orla_marketplace::testing::{Canned, MockExecutor};
use orla_marketplace::{CapabilityMarketplace, JsonText, Limits, Payload};
use orla_server::{Server, ServerOptions};
use orla_state::{Limits as StateLimits, Memory};
use orla_tasks::{NewTask, TaskOptions, Tasks};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// How many requests of one input are made.
const REQUESTS: usize = 8;
const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#;

fn market() -> Arc<CapabilityMarketplace> {
    let market = Arc::new(CapabilityMarketplace::new(Limits::default()));
    market.register_executor(Arc::new(MockExecutor)).expect("the first of its kind");
    market.register_executor(Arc::new(LanguageExecutor::new(&market))).expect("the first of its kind");
    market.register_capability(Canned::Echoes.manifest("echo")).expect("a fresh id");
    for registration in registrations() {
        market.register_capability(registration).expect("a fresh id");
    }
    market
}

/// Returns the head and the body of a request.
fn request(line: &str, id: &str) -> Option<(String, String)> {
    let mut characters = line.chars();
    let (which, rest) = (characters.next()?, characters.as_str().replace("ID", id));
    // A query is one word of a head.
    let query = || rest.chars().filter(char::is_ascii_graphic).collect::<String>();
    let method = match which {
        'p' => return Some(("POST /tasks".to_owned(), rest)),
        'e' => return Some((format!("POST /tasks/{id}/events/e"), rest)),
        'd' => return Some((format!("DELETE /tasks/{id}?{}", query()), String::new())),
        'l' => return Some((format!("GET /tasks?{}", query()), String::new())),
        // It would wait.
        'g' if rest.contains(['w', '%']) => return None,
        'g' => return Some((format!("GET /tasks/{id}?{}", query()), String::new())),
        't' => "tasks/get",
        'u' => "tasks/update",
        'c' => "tasks/cancel",
        _ => return None,
    };
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{rest},{META}}}}}"#);
    let head = format!(
        "POST /mcp HTTP/1.1\r\nmcp-protocol-version: 2026-07-28\r\nmcp-method: {method}\r\nmcp-name: {id}"
    );
    Some((head, body))
}

async fn ask(address: SocketAddr, (head, body): (String, String)) {
    let version = if head.contains(" HTTP/1.1\r\n") { "" } else { " HTTP/1.1" };
    let request = format!(
        "{head}{version}\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.expect("the server listens");
    stream.write_all(request.as_bytes()).await.expect("the server reads");
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    tokio::time::timeout(Duration::from_secs(5), read).await.expect("an answer").expect("an answer");
    let answer = String::from_utf8(answer).expect("answers are UTF-8");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a whole head");
    assert!(["2", "4"].contains(&head.get(9..10).unwrap_or_default()), "{request}: {answer}");
    assert!(body.is_empty() || serde_json::from_str::<Value>(body).is_ok(), "{request}: {answer}");
}

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let market = market();
        let store = Arc::new(Memory::new(StateLimits::default()));
        let tasks = Tasks::open(store, Arc::clone(&market), TaskOptions::default());
        tasks.resume().await.expect("an empty store");
        let waits = JsonText::of(&json!({"program": r#"(await-event "never")"#})).expect("JSON");
        let new = NewTask::program(Payload::from_json(waits), None);
        let id = tasks.start(new).await.expect("room").task.id.to_string();
        let server = Server::new(market, ServerOptions::default());
        server.serve_tasks(tasks);
        let bound = server.bind("127.0.0.1", 0).await.expect("a free port");
        let address = bound.local_addr();
        // It ends with the runtime.
        let _serving = tokio::spawn(bound.serve(CancellationToken::new()));
        for request in text.lines().filter_map(|line| request(line, &id)).take(REQUESTS) {
            ask(address, request).await;
        }
    });
});
