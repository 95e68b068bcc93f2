//! The smallest relay on the HTTP stack of the product: hyper on tokio, and a reader of the envelope of JSON-RPC alone. What
//! `cargo xtask bench` measures beside it is what orla adds to its own stack.
//!
//! `hyper_relay COMMAND ARGUMENT…` starts the MCP server and writes `listening on http://ADDRESS` to standard error. It has no
//! lists, limits, validation, deadlines, cancellation, logs or history.

#![forbid(unsafe_code)]
#![expect(clippy::print_stderr, reason = "the address is what the bench waits for")]

use std::collections::HashMap;
use std::error::Error;
use std::io::{Error as IoError, Write as _};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, Command};
use tokio::sync::{Mutex as AsyncMutex, oneshot};

type Failure = Box<dyn Error + Send + Sync>;

/// A request, as far as a relay needs it.
#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    #[serde(borrow)]
    method: &'a RawValue,
    #[serde(borrow)]
    params: &'a RawValue,
}

/// The answer to a request, as far as a relay needs it.
#[derive(Deserialize)]
struct Answer<'a> {
    id: u64,
    #[serde(borrow)]
    result: &'a RawValue,
}

/// What all connections share.
struct Upstream {
    input: AsyncMutex<ChildStdin>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<String>>>,
    next: AtomicU64,
}

impl Upstream {
    async fn relay(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Failure> {
        let body = request.into_body().collect().await?.to_bytes();
        let call: Call<'_> = serde_json::from_slice(&body)?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
        let (method, params) = (call.method, call.params);
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":{method},\"params\":{params}}}\n");
        self.input.lock().await.write_all(line.as_bytes()).await?;
        let line = answer.await?;
        let answer: Answer<'_> = serde_json::from_str(&line)?;
        let mut body = Vec::with_capacity(line.len() + 16);
        write!(body, "{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{}}}", call.id, answer.result)?;
        let mut response = Response::new(Full::from(body));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(response)
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let program = words.first().ok_or("usage: hyper_relay COMMAND ARGUMENT…")?;
    let mut child =
        Command::new(program).args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(IoError::other("no pipes").into());
    };
    let upstream = Arc::new(Upstream {
        input: AsyncMutex::new(input),
        waiting: Mutex::default(),
        next: AtomicU64::new(1),
    });
    let answers = Arc::clone(&upstream);
    tokio::spawn(async move {
        let mut lines = BufReader::with_capacity(1 << 18, output).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let Ok(Answer { id, .. }) = serde_json::from_str(&line) else { continue };
            let waiting = answers.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            if let Some(waiting) = waiting {
                let _ = waiting.send(line);
            }
        }
        std::process::exit(1);
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    eprintln!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let upstream = Arc::clone(&upstream);
        let service = service_fn(move |request| {
            let upstream = Arc::clone(&upstream);
            async move { upstream.relay(request).await }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}
