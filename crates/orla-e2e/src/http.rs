//! A small blocking HTTP/1.1 client that can do what well-behaved clients cannot.
//!
//! Connections are kept alive. Answers are read whole or as an event stream. A request may be left
//! unanswered (dropping an [`Unanswered`] or an [`Exchange`] disconnects), or may consist of arbitrary
//! bytes ([`Http::raw`]). The client checks the server's framing: an answer that ends early is an error.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::TEST_TIMEOUT;

/// A kept-alive connection to one server, opened when needed.
#[derive(Debug)]
pub struct Http {
    address: SocketAddr,
    stream: Option<TcpStream>,
}

/// A request to send.
#[derive(Clone, Debug)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// Headers; `host` and `content-length` are added where they are missing.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// A request that was sent and whose answer was not read yet. Dropping it disconnects.
#[derive(Debug)]
pub struct Unanswered {
    stream: TcpStream,
}

/// An answer whose body is still being read. Dropping it before its end disconnects.
#[derive(Debug)]
pub struct Exchange {
    /// The status code.
    pub status: u16,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    stream: TcpStream,
    /// Received and not yet decoded.
    wire: Vec<u8>,
    /// Decoded and not yet taken.
    body: Vec<u8>,
    framing: Framing,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Framing {
    Length(usize),
    /// Chunked, with the rest of the current chunk.
    Chunk(usize),
    UntilClose,
    Done,
}

impl Request {
    /// Creates a request without additional headers.
    pub fn new(method: &str, path: &str) -> Self {
        Self { method: method.to_owned(), path: path.to_owned(), headers: Vec::new(), body: Vec::new() }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds this bearer token.
    #[must_use]
    pub fn bearer(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    fn bytes(&self, address: SocketAddr) -> Vec<u8> {
        let has = |wanted: &str| self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted));
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        if !has("host") {
            let _ = write!(head, "host: {address}\r\n");
        }
        if !has("content-length") && !has("transfer-encoding") && (self.method != "GET") {
            let _ = write!(head, "content-length: {}\r\n", self.body.len());
        }
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

impl Http {
    /// A client of the server at this address.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, stream: None }
    }

    /// `GET path`, answered whole.
    pub fn get(&mut self, path: &str) -> Response {
        self.send(&Request::new("GET", path)).expect("GET is answered")
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    ///
    /// The connection's error. A request is never sent twice.
    pub fn send(&mut self, request: &Request) -> io::Result<Response> {
        let exchange = self.write(request)?.head()?;
        let (answer, stream) = exchange.whole()?;
        self.stream = stream;
        Ok(answer)
    }

    /// Sends a request and leaves its answer to the caller.
    ///
    /// # Errors
    ///
    /// The connection's error.
    pub fn write(&mut self, request: &Request) -> io::Result<Unanswered> {
        let bytes = request.bytes(self.address);
        self.raw(&bytes)
    }

    /// Sends any bytes.
    ///
    /// # Errors
    ///
    /// The connection's error. A server that answers before it has read everything and then closes is no
    /// error: its answer is there to be read.
    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<Unanswered> {
        let mut stream = self.connection()?;
        match stream.write_all(bytes) {
            Err(err) if !matches!(err.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                Err(err)
            }
            _ => Ok(Unanswered { stream }),
        }
    }

    /// Keeps a connection for the next request.
    pub(crate) fn put_back(&mut self, stream: Option<TcpStream>) {
        self.stream = stream;
    }

    /// Returns the kept connection if the server has not closed it, else a new one.
    fn connection(&mut self) -> io::Result<TcpStream> {
        if let Some(stream) = self.stream.take() {
            stream.set_nonblocking(true)?;
            let idle = matches!(stream.peek(&mut [0]), Err(err) if err.kind() == ErrorKind::WouldBlock);
            stream.set_nonblocking(false)?;
            if idle {
                return Ok(stream);
            }
        }
        let stream = TcpStream::connect_timeout(&self.address, TEST_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TEST_TIMEOUT))?;
        stream.set_write_timeout(Some(TEST_TIMEOUT))?;
        Ok(stream)
    }
}

impl Unanswered {
    /// Sends more of the request.
    ///
    /// # Errors
    ///
    /// The connection's error.
    pub fn more(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Returns the connection itself.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Waits for the head of the answer.
    ///
    /// # Errors
    ///
    /// Returns the connection's, and `InvalidData` where the answer is not HTTP.
    pub fn head(self) -> io::Result<Exchange> {
        let mut stream = self.stream;
        let mut wire = Vec::new();
        loop {
            if let Some(end) = find(&wire, b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&wire[..end]).into_owned();
                wire.drain(..end + 4);
                let (status, headers) = parse_head(&head).ok_or_else(|| invalid(&head))?;
                if status == 100 {
                    continue;
                }
                let framing = Framing::of(status, &headers);
                return Ok(Exchange { status, headers, stream, wire, body: Vec::new(), framing });
            }
            read_more(&mut stream, &mut wire)?;
        }
    }

    /// Waits for the whole answer.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::head`], and `UnexpectedEof` where the body ends early.
    pub fn answer(self) -> io::Result<Response> {
        Ok(self.head()?.whole()?.0)
    }
}

impl Exchange {
    /// Returns a header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// Returns the rest of the body.
    pub(crate) fn rest(&mut self) -> io::Result<Vec<u8>> {
        while self.framing != Framing::Done {
            self.read()?;
        }
        Ok(std::mem::take(&mut self.body))
    }

    /// Reads the rest; the connection comes back where it can be used again.
    pub(crate) fn whole(mut self) -> io::Result<(Response, Option<TcpStream>)> {
        while self.framing != Framing::Done {
            self.read()?;
        }
        let closes = self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let reusable = !closes && self.wire.is_empty();
        let answer = Response { status: self.status, headers: self.headers, body: self.body };
        Ok((answer, reusable.then_some(self.stream)))
    }

    /// Returns the data of the next event of an event stream that has some; `None` at its end.
    ///
    /// # Errors
    ///
    /// The connection's.
    pub fn next_event(&mut self) -> io::Result<Option<String>> {
        loop {
            match self.next_event_text()? {
                None => return Ok(None),
                Some(text) => {
                    let data = fields(&text, "data").join("\n");
                    if !data.trim().is_empty() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Returns the id of the next event that has one; `None` at the end of the stream.
    ///
    /// # Errors
    ///
    /// The connection's.
    pub fn next_event_id(&mut self) -> io::Result<Option<String>> {
        loop {
            match self.next_event_text()? {
                None => return Ok(None),
                Some(text) => {
                    if let Some(id) = fields(&text, "id").pop() {
                        return Ok(Some(id.to_owned()));
                    }
                }
            }
        }
    }

    /// Returns the lines of the next event, comments included.
    fn next_event_text(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some((event, length)) = first_event(&self.body) {
                self.body.drain(..length);
                return Ok(Some(event));
            }
            if self.framing == Framing::Done {
                return Ok(None);
            }
            self.read()?;
        }
    }

    /// Takes the connection back if the body happens to be at its end.
    pub(crate) fn into_stream_if_done(mut self) -> Option<TcpStream> {
        // The last chunk usually comes with the last event or right behind it.
        self.stream.set_read_timeout(Some(std::time::Duration::from_millis(50))).ok()?;
        while self.framing != Framing::Done {
            self.read().ok()?;
        }
        self.stream.set_read_timeout(Some(TEST_TIMEOUT)).ok()?;
        self.wire.is_empty().then_some(self.stream)
    }

    /// Decodes the received bytes, and receives more if there are none.
    fn read(&mut self) -> io::Result<()> {
        while !self.decode()? {
            if self.framing == Framing::UntilClose {
                let mut piece = [0; 8192];
                match self.stream.read(&mut piece)? {
                    0 => self.framing = Framing::Done,
                    count => self.body.extend_from_slice(&piece[..count]),
                }
                return Ok(());
            }
            read_more(&mut self.stream, &mut self.wire)?;
        }
        Ok(())
    }

    /// Moves from `wire` to `body`; whether it got anywhere.
    fn decode(&mut self) -> io::Result<bool> {
        match self.framing {
            Framing::Done => Ok(true),
            Framing::UntilClose => {
                let moved = !self.wire.is_empty();
                self.body.append(&mut self.wire);
                Ok(moved)
            }
            Framing::Length(left) => {
                let taken = left.min(self.wire.len());
                self.body.extend(self.wire.drain(..taken));
                self.framing = if left == taken { Framing::Done } else { Framing::Length(left - taken) };
                Ok(taken > 0 || left == 0)
            }
            Framing::Chunk(0) => {
                let Some(end) = find(&self.wire, b"\r\n") else { return Ok(false) };
                let line = String::from_utf8_lossy(&self.wire[..end]).into_owned();
                let size = line.split(';').next().unwrap_or_default().trim();
                let size = usize::from_str_radix(size, 16).map_err(|_| invalid(&line))?;
                if size == 0 {
                    if self.wire.len() < end + 4 {
                        return Ok(false);
                    }
                    self.wire.drain(..end + 4);
                    self.framing = Framing::Done;
                } else {
                    self.wire.drain(..end + 2);
                    // The chunk and the line end behind it.
                    self.framing = Framing::Chunk(size + 2);
                }
                Ok(true)
            }
            Framing::Chunk(left) => {
                let taken = left.min(self.wire.len());
                let data = taken.min(left.saturating_sub(2));
                self.body.extend_from_slice(&self.wire[..data]);
                self.wire.drain(..taken);
                self.framing = Framing::Chunk(left - taken);
                Ok(taken > 0)
            }
        }
    }
}

impl Response {
    /// Returns a header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|err| panic!("{err}: status {}, body {:?}", self.status, self.text()))
    }
}

impl Framing {
    fn of(status: u16, headers: &[(String, String)]) -> Self {
        let chunked =
            header(headers, "transfer-encoding").is_some_and(|value| value.contains("chunked"));
        match header(headers, "content-length").and_then(|value| value.parse().ok()) {
            _ if chunked => Self::Chunk(0),
            _ if matches!(status, 204 | 304) => Self::Done,
            Some(0) => Self::Done,
            Some(length) => Self::Length(length),
            None => Self::UntilClose,
        }
    }
}

/// Returns the lines of the first event of a stream, and how many bytes it took.
fn first_event(stream: &[u8]) -> Option<(String, usize)> {
    let (end, gap) = match (find(stream, b"\n\n"), find(stream, b"\r\n\r\n")) {
        (Some(lf), Some(crlf)) if crlf < lf => (crlf, 4),
        (Some(lf), _) => (lf, 2),
        (None, Some(crlf)) => (crlf, 4),
        (None, None) => return None,
    };
    Some((String::from_utf8_lossy(&stream[..end]).into_owned(), end + gap))
}

/// Returns the values of one field of an event.
fn fields<'a>(event: &'a str, name: &str) -> Vec<&'a str> {
    let values = event.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    values.map(|value| value.strip_prefix(' ').unwrap_or(value)).collect()
}

fn parse_head(head: &str) -> Option<(u16, Vec<(String, String)>)> {
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    });
    Some((status, headers.collect::<Option<_>>()?))
}

fn header<'a>(headers: &'a [(String, String)], wanted: &str) -> Option<&'a str> {
    headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn read_more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<()> {
    let mut piece = [0; 65536];
    match stream.read(&mut piece)? {
        0 => Err(io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")),
        count => {
            buffer.extend_from_slice(&piece[..count]);
            Ok(())
        }
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("not HTTP: {text:?}"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Answers one connection with these bytes, in pieces of this size.
    fn answering(bytes: &'static [u8], piece: usize) -> Http {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            for part in bytes.chunks(piece) {
                let _ = stream.write_all(part);
            }
        });
        Http::new(address)
    }

    #[test]
    fn a_chunked_body_is_joined_from_any_chunks() {
        for piece in [1, 3, 1000] {
            let bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n!\r\n0\r\n\r\n";
            assert_eq!(answering(bytes, piece).get("/").text(), "hello!");
        }
    }

    #[test]
    fn events_are_cut_at_empty_lines_and_comments_are_skipped() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 47\r\n\r\n: hi\n\nid: 1\ndata: a\ndata: b\n\nretry: 1\ndata: c\n\n";
        let mut exchange = answering(bytes, 7).write(&Request::new("GET", "/")).unwrap().head().unwrap();
        assert_eq!(exchange.next_event().unwrap().as_deref(), Some("a\nb"));
        assert_eq!(exchange.next_event().unwrap().as_deref(), Some("c"));
        assert_eq!(exchange.next_event().unwrap(), None);
    }

    #[test]
    fn an_answer_that_ends_early_is_an_error() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello";
        let err = answering(bytes, 100).send(&Request::new("GET", "/")).unwrap_err();
        assert_eq!(err.kind(), ErrorKind::UnexpectedEof);
    }
}
