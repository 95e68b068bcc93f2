//! A scripted model: a server on loopback that speaks the wire formats of the providers, and records its
//! requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

/// A request that a model was sent.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) path: String,
    /// The head as it came, in lower case.
    pub(crate) head: String,
    pub(crate) body: Value,
}

/// The server's reaction to a request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// A streamed answer, in these parts.
    Stream(&'static str, Vec<String>),
    /// The beginning of one, after which the connection is closed in the middle of the framing.
    Cut(&'static str, Vec<String>),
    /// The beginning of one, which ends as if it were whole.
    Short(&'static str, Vec<String>),
    /// Sends the beginning of an answer, and then nothing while the client waits.
    Hang(&'static str, Vec<String>),
    Status(u16, String),
    /// Sends exactly these bytes.
    Raw(Vec<u8>),
}

/// A running server. It answers each request with the next reply, and the last one again and again.
pub(crate) struct Scripted {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Scripted {
    pub(crate) fn new(replies: Vec<Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let requests: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
        let seen = Arc::clone(&requests);
        // It ends with the process of the tests.
        std::thread::spawn(move || {
            let last = replies.last().cloned();
            let mut replies = replies.into_iter();
            while let Ok((stream, _)) = listener.accept() {
                let Some(request) = read(&stream) else { continue };
                seen.lock().push(request);
                let Some(reply) = replies.next().or_else(|| last.clone()) else { continue };
                // A client that has gone away is no failure of the server.
                let _ = write(stream, &reply);
            }
        });
        Self { address, requests }
    }

    pub(crate) fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().clone()
    }
}

fn read(stream: &TcpStream) -> Option<ReceivedRequest> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while reader.read_line(&mut head).ok()? > 2 {}
    let path = head.split(' ').nth(1)?.to_owned();
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some(ReceivedRequest { path, head, body: serde_json::from_slice(&body).unwrap_or_default() })
}

fn write(mut stream: TcpStream, reply: &Reply) -> std::io::Result<()> {
    let chunked = |stream: &mut TcpStream, kind: &str, parts: &[String]| {
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        )?;
        parts.iter().try_for_each(|part| {
            write!(stream, "{:x}\r\n{part}\r\n", part.len())?;
            stream.flush()
        })
    };
    match reply {
        Reply::Stream(kind, parts) | Reply::Short(kind, parts) => {
            chunked(&mut stream, kind, parts)?;
            stream.write_all(b"0\r\n\r\n")?;
        }
        Reply::Cut(kind, parts) => chunked(&mut stream, kind, parts)?,
        Reply::Hang(kind, parts) => {
            chunked(&mut stream, kind, parts)?;
            // Until the client goes away.
            return std::io::copy(&mut stream, &mut std::io::sink()).map(drop);
        }
        Reply::Status(status, body) => write!(
            stream,
            "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?,
        Reply::Raw(bytes) => stream.write_all(bytes)?,
    }
    stream.shutdown(Shutdown::Write)
}

type Answering = fn(&[&str], &[(&str, Value)]) -> Reply;

/// A provider's wire format.
pub(crate) struct Wire {
    /// The argument of `--model`.
    pub(crate) model: &'static str,
    /// The path after the base URL.
    pub(crate) path: &'static str,
    /// The variable with the key, and the beginning of the header line that carries the key, in lower
    /// case.
    pub(crate) key: Option<(&'static str, &'static str)>,
    /// The stream of an answer with this text and these calls.
    pub(crate) answer: Answering,
    /// The results in a request, in the order of the calls.
    pub(crate) results: fn(&Value) -> Vec<String>,
    /// The names of the tools in a request.
    pub(crate) tools: fn(&Value) -> Vec<String>,
}

pub(crate) const WIRES: [Wire; 4] = [
    Wire {
        model: "openai::m",
        path: "/chat/completions",
        key: Some(("OPENAI_API_KEY", "authorization: bearer ")),
        answer: openai,
        results: |body| texts(body, "/messages", |message| vec![message["content"].clone()], "tool"),
        tools: |body| names(&body["tools"], "/function/name"),
    },
    Wire {
        model: "anthropic::m",
        path: "/messages",
        key: Some(("ANTHROPIC_API_KEY", "x-api-key: ")),
        answer: anthropic,
        results: |body| {
            let blocks = |message: &Value| {
                let blocks = message["content"].as_array().cloned().unwrap_or_default();
                let results = blocks.into_iter().filter(|block| block["type"] == "tool_result");
                results.map(|block| block["content"].clone()).collect()
            };
            texts(body, "/messages", blocks, "user")
        },
        tools: |body| names(&body["tools"], "/name"),
    },
    Wire {
        model: "gemini::m",
        path: "/models/m:streamGenerateContent?alt=sse",
        key: Some(("GEMINI_API_KEY", "x-goog-api-key: ")),
        answer: gemini,
        results: |body| {
            let parts = |message: &Value| {
                let parts = message["parts"].as_array().cloned().unwrap_or_default();
                parts
                    .iter()
                    .filter_map(|part| part.pointer("/functionResponse/response").cloned())
                    .collect()
            };
            texts(body, "/contents", parts, "user")
        },
        tools: |body| names(&body["tools"][0]["functionDeclarations"], "/name"),
    },
    Wire {
        model: "ollama::m",
        path: "/api/chat",
        key: None,
        answer: ollama,
        results: |body| texts(body, "/messages", |message| vec![message["content"].clone()], "tool"),
        tools: |body| names(&body["tools"], "/function/name"),
    },
];

fn texts(body: &Value, at: &str, of: impl Fn(&Value) -> Vec<Value>, role: &str) -> Vec<String> {
    let messages = body.pointer(at).and_then(Value::as_array).cloned().unwrap_or_default();
    let own = messages.iter().filter(|message| message["role"] == role);
    let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    own.flat_map(of).map(text).collect()
}

fn names(tools: &Value, at: &str) -> Vec<String> {
    let tools = tools.as_array().cloned().unwrap_or_default();
    tools.iter().filter_map(|tool| Some(tool.pointer(at)?.as_str()?.to_owned())).collect()
}

const SSE: &str = "text/event-stream";

fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

/// Chat completions.
pub(crate) fn openai(texts: &[&str], calls: &[(&str, Value)]) -> Reply {
    let delta = |delta: &Value, finish: &Value| {
        event(&json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}))
    };
    let mut parts = vec![delta(&json!({"role": "assistant", "content": ""}), &Value::Null)];
    parts.extend(texts.iter().map(|text| delta(&json!({"content": text}), &Value::Null)));
    for (index, (name, arguments)) in calls.iter().enumerate() {
        let text = arguments.as_str().map_or_else(|| arguments.to_string(), str::to_owned);
        let (first, second) = text.split_at(text.len() / 2);
        let begin = json!({"index": index, "id": format!("call_{index}"), "type": "function",
            "function": {"name": name, "arguments": ""}});
        parts.push(delta(&json!({"tool_calls": [begin]}), &Value::Null));
        for piece in [first, second] {
            let more = json!({"index": index, "function": {"arguments": piece}});
            parts.push(delta(&json!({"tool_calls": [more]}), &Value::Null));
        }
    }
    let finish = if calls.is_empty() { "stop" } else { "tool_calls" };
    parts.push(delta(&json!({}), &finish.into()));
    parts.push(event(&json!({"id": "c", "choices": [],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}})));
    parts.push("data: [DONE]\n\n".to_owned());
    Reply::Stream(SSE, parts)
}

fn anthropic(texts: &[&str], calls: &[(&str, Value)]) -> Reply {
    let named =
        |data: Value| format!("event: {}\n{}", data["type"].as_str().unwrap_or(""), event(&data));
    let mut parts =
        vec![named(json!({"type": "message_start", "message": {"id": "m", "type": "message",
        "role": "assistant", "content": [], "model": "m", "stop_reason": null,
        "usage": {"input_tokens": 11, "output_tokens": 1}}}))];
    let mut block = |index: usize, begin: Value, deltas: Vec<Value>| {
        parts
            .push(named(json!({"type": "content_block_start", "index": index, "content_block": begin})));
        for delta in deltas {
            parts.push(named(json!({"type": "content_block_delta", "index": index, "delta": delta})));
        }
        parts.push(named(json!({"type": "content_block_stop", "index": index})));
    };
    let deltas = texts.iter().map(|text| json!({"type": "text_delta", "text": text})).collect();
    block(0, json!({"type": "text", "text": ""}), deltas);
    for (at, (name, arguments)) in calls.iter().enumerate() {
        let text = arguments.to_string();
        let (first, second) = text.split_at(text.len() / 2);
        let delta = |piece: &str| json!({"type": "input_json_delta", "partial_json": piece});
        let begin = json!({"type": "tool_use", "id": format!("toolu_{at}"), "name": name, "input": {}});
        block(at + 1, begin, vec![delta(first), delta(second)]);
    }
    let stop = if calls.is_empty() { "end_turn" } else { "tool_use" };
    parts.push(named(
        json!({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null},
        "usage": {"output_tokens": 7}}),
    ));
    parts.push(named(json!({"type": "message_stop"})));
    Reply::Stream(SSE, parts)
}

fn gemini(texts: &[&str], calls: &[(&str, Value)]) -> Reply {
    let chunk = |parts: Value, finish: Option<&str>| {
        let mut candidate = json!({"content": {"role": "model", "parts": parts}, "index": 0});
        if let Some(finish) = finish {
            candidate["finishReason"] = finish.into();
        }
        event(&json!({"candidates": [candidate], "modelVersion": "m",
            "usageMetadata": {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}}))
    };
    let mut parts: Vec<String> = texts.iter().map(|text| chunk(json!([{"text": text}]), None)).collect();
    let called: Vec<Value> = calls
        .iter()
        .map(|(name, arguments)| json!({"functionCall": {"name": name, "args": arguments}}))
        .collect();
    if !called.is_empty() {
        parts.push(chunk(called.into(), None));
    }
    parts.push(chunk(json!([{"text": ""}]), Some("STOP")));
    Reply::Stream(SSE, parts)
}

fn ollama(texts: &[&str], calls: &[(&str, Value)]) -> Reply {
    let line = |message: Value| {
        let line = json!({"model": "m", "created_at": "2026-11-20T08:00:00Z", "message": message, "done": false});
        format!("{line}\n")
    };
    let mut parts: Vec<String> =
        texts.iter().map(|text| line(json!({"role": "assistant", "content": text}))).collect();
    let called: Vec<Value> = calls
        .iter()
        .map(|(name, arguments)| json!({"function": {"name": name, "arguments": arguments}}))
        .collect();
    if !called.is_empty() {
        parts.push(line(json!({"role": "assistant", "content": "", "tool_calls": called})));
    }
    let last = json!({"model": "m", "message": {"role": "assistant", "content": ""}, "done": true,
        "done_reason": "stop", "prompt_eval_count": 11, "eval_count": 7});
    parts.push(format!("{last}\n"));
    Reply::Stream("application/x-ndjson", parts)
}
