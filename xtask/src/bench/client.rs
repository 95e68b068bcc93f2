//! The client side: HTTP/1.1 over plain sockets, and MCP requests as bytes.
//!
//! Two ways to make load. [`threads`] has a thread for each connection, like clients that wait for
//! each answer: right where the server's work is large. [`polled`] has one thread for all of them:
//! right where the server's work is so small that the threads of the client would be most of what
//! is measured.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};

use super::stats::Round;

/// How long one answer may take before the bench gives up.
const TIMEOUT: Duration = Duration::from_secs(100);

/// One keep-alive connection.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// An answer whose body is still in the connection's buffer.
pub(crate) struct Answer<'a> {
    pub(crate) status: u16,
    pub(crate) head: &'a str,
    pub(crate) body: &'a [u8],
}

impl Connection {
    pub(crate) fn open(address: &str) -> Result<Self, String> {
        let stream = TcpStream::connect(address).map_err(|err| format!("{address}: {err}"))?;
        stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(TIMEOUT)))
            .map_err(|err| err.to_string())?;
        Ok(Self { stream, buffer: Vec::with_capacity(4096) })
    }

    /// Sends a request and waits for the whole answer.
    pub(crate) fn exchange(&mut self, request: &[u8]) -> Result<Answer<'_>, String> {
        self.send(request)?;
        self.answered()
    }

    /// Waits for the whole answer to what was sent.
    pub(crate) fn answered(&mut self) -> Result<Answer<'_>, String> {
        while !self.is_complete()? {
            self.read_some()?;
        }
        self.answer()
    }

    /// Sends a request and waits for nothing.
    pub(crate) fn send(&mut self, request: &[u8]) -> Result<(), String> {
        self.buffer.clear();
        self.stream.write_all(request).map_err(|err| format!("send: {err}"))
    }

    /// Waits for the head of an answer whose body stays open.
    fn begun(&mut self) -> Result<Answer<'_>, String> {
        while head_end(&self.buffer).is_none() {
            self.read_some()?;
        }
        self.answer()
    }

    fn read_some(&mut self) -> Result<(), String> {
        let mut chunk = [0; 16 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err("the server closed the connection".to_owned()),
            Ok(count) => {
                self.buffer.extend_from_slice(&chunk[..count]);
                Ok(())
            }
            Err(err) if err.kind() == ErrorKind::Interrupted => Ok(()),
            Err(err) => Err(format!("receive: {err}")),
        }
    }

    fn is_complete(&self) -> Result<bool, String> {
        let Some(end) = head_end(&self.buffer) else { return Ok(false) };
        let head = std::str::from_utf8(&self.buffer[..end]).map_err(|err| err.to_string())?;
        Ok(match header(head, "content-length") {
            Some(length) => {
                self.buffer.len() - end >= length.parse::<usize>().map_err(|err| err.to_string())?
            }
            // Chunked (an event stream): the last chunk is empty. Accepted has no body at all.
            None => head.starts_with("HTTP/1.1 202") || self.buffer.ends_with(b"\r\n0\r\n\r\n"),
        })
    }

    fn answer(&self) -> Result<Answer<'_>, String> {
        let end = head_end(&self.buffer).ok_or("no head")?;
        let head = std::str::from_utf8(&self.buffer[..end]).map_err(|err| err.to_string())?;
        let status = head.get(9..12).and_then(|code| code.parse().ok()).ok_or("no status")?;
        Ok(Answer { status, head, body: &self.buffer[end..] })
    }
}

fn head_end(buffer: &[u8]) -> Option<usize> {
    buffer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// Returns a header of an answer's head.
pub(crate) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.split("\r\n").find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// Returns a `POST` as it goes over the wire.
pub(crate) fn post(path: &str, headers: &[(&str, &str)], body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    request.push_str(&body);
    request.into_bytes()
}

/// Opens the stream of a session, and returns its connection.
pub(super) fn stream(address: &str, path: &str, headers: &[(&str, &str)]) -> Result<Connection, String> {
    let mut request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    let mut connection = Connection::open(address)?;
    connection.send(request.as_bytes())?;
    match connection.begun()?.status {
        200 => Ok(connection),
        status => Err(format!("a stream is refused with HTTP {status}")),
    }
}

/// Returns a request of the revision without sessions.
pub(crate) fn sessionless(method: &str, mut params: Value) -> Vec<u8> {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let name = params["name"].as_str().map(str::to_owned);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let mut headers = vec![("mcp-protocol-version", "2026-07-28"), ("mcp-method", method)];
    if let Some(name) = &name {
        headers.push(("mcp-name", name));
    }
    post("/mcp", &headers, &body)
}

/// Returns a call of a tool, sessionless.
pub(crate) fn call(tool: &str, arguments: &Value) -> Vec<u8> {
    sessionless("tools/call", json!({"name": tool, "arguments": arguments}))
}

/// Returns a request with one more header.
pub(super) fn with_header(request: &[u8], name: &str, value: &str) -> Vec<u8> {
    let line = request.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    [&request[..line], format!("{name}: {value}\r\n").as_bytes(), &request[line..]].concat()
}

/// Returns whether an answer is a result, and no error of any kind.
pub(crate) fn is_good(answer: &Answer<'_>) -> bool {
    answer.status == 200
        && contains(answer.body, b"\"result\"")
        && !contains(answer.body, b"\"isError\":true")
}

/// Returns the message of an answer. That of a call that took long is the last event of a stream.
///
/// # Errors
///
/// Returns an error with the body if it has no message.
pub(crate) fn message_of(body: &[u8]) -> Result<Value, String> {
    let body = String::from_utf8_lossy(body);
    let event = body.lines().rev().find_map(|line| line.strip_prefix("data: "));
    serde_json::from_str(event.unwrap_or(&body)).map_err(|err| format!("{err}: {body}"))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Load from a thread for each connection, each waiting for its answer before it asks again. Connections take turns with the
/// requests: each session has its own.
pub(super) fn threads(
    address: &str,
    requests: &[Vec<u8>],
    connections: usize,
    time: Duration,
) -> Result<Round, String> {
    let started = Instant::now();
    let turn = AtomicUsize::new(0);
    let latencies = side_by_side(connections, || {
        let request = &requests[turn.fetch_add(1, Ordering::Relaxed) % requests.len()];
        let mut connection = Connection::open(address)?;
        let mut latencies = Vec::new();
        while started.elapsed() < time {
            let asked = Instant::now();
            let answer = connection.exchange(request)?;
            latencies.push(asked.elapsed());
            check(&answer)?;
        }
        Ok(latencies)
    })?;
    Ok(Round { latencies, elapsed: started.elapsed() })
}

/// Returns the same work in several threads, the results in one list.
pub(crate) fn side_by_side<T: Send>(
    count: usize,
    work: impl Fn() -> Result<Vec<T>, String> + Sync,
) -> Result<Vec<T>, String> {
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..count).map(|_| scope.spawn(&work)).collect();
        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.join().map_err(|_| "a worker panicked")??);
        }
        Ok(all)
    })
}

/// Load from one thread that serves all connections, which take turns with the requests.
///
/// The client must cost less than what it measures, so an answer is read as text only once: every
/// other one has to be as long, and its body the same.
pub(super) fn polled(
    address: &str,
    requests: &[Vec<u8>],
    connections: usize,
    time: Duration,
) -> Result<Round, String> {
    let model = {
        let mut connection = Connection::open(address)?;
        check(&connection.exchange(&requests[0])?)?;
        connection.buffer
    };
    let body = head_end(&model).ok_or("no head")?;
    let streams = (0..connections)
        .map(|_| Connection::open(address).map(|it| it.stream))
        .collect::<Result<Vec<_>, _>>()?;
    let mut watched: Vec<PollFd<'_>> =
        streams.iter().map(|stream| PollFd::new(stream, PollFlags::IN)).collect();
    // One byte more than is expected, so that a longer answer is noticed.
    let mut buffers = vec![(vec![0; model.len() + 1], 0); connections];
    let mut latencies = Vec::with_capacity(1 << 20);
    let started = Instant::now();
    let mut asked = vec![started; connections];
    let send = |index: usize| {
        let request = &requests[index % requests.len()];
        (&streams[index]).write_all(request).map_err(|err| format!("send: {err}"))
    };
    (0..connections).try_for_each(send)?;
    let mut waiting = connections;
    while waiting > 0 {
        poll(&mut watched, None).map_err(|err| format!("poll: {err}"))?;
        for index in 0..connections {
            if watched[index].revents().is_empty() {
                continue;
            }
            let (buffer, filled) = &mut buffers[index];
            match (&streams[index]).read(&mut buffer[*filled..]) {
                Ok(0) => {
                    return Err(
                        "an answer is longer than the first, or the connection was closed".to_owned()
                    );
                }
                Ok(count) => *filled += count,
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) => return Err(format!("receive: {err}")),
            }
            if *filled < model.len() {
                continue;
            }
            if *filled > model.len() || buffer[body..*filled] != model[body..] {
                let text = String::from_utf8_lossy(&buffer[..*filled]);
                return Err(format!("an answer differs from the first: {text}"));
            }
            latencies.push(asked[index].elapsed());
            *filled = 0;
            if started.elapsed() < time {
                asked[index] = Instant::now();
                send(index)?;
            } else {
                waiting -= 1;
            }
        }
    }
    Ok(Round { latencies, elapsed: started.elapsed() })
}

fn check(answer: &Answer<'_>) -> Result<(), String> {
    if is_good(answer) {
        return Ok(());
    }
    Err(format!("unexpected answer: {}{}", answer.head, String::from_utf8_lossy(answer.body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_found_whatever_their_case() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\nX-A: b\r\n\r\n";
        assert_eq!(header(head, "content-length"), Some("12"));
        assert_eq!(header(head, "missing"), None);
        assert_eq!(head_end(head.as_bytes()), Some(head.len()));
    }
}
