//! An HTTP server for tests. It answers each path with a configured answer, and records its requests.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

/// The server. It answers for as long as the test's process lives.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// `METHOD /path` → status and body. Other requests get 404.
    answers: BTreeMap<String, (u16, String)>,
    requests: Vec<ReceivedRequest>,
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    /// `METHOD /path?query`
    pub(crate) line: String,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
    /// The body as it came.
    pub(crate) bytes: Vec<u8>,
}

impl Upstream {
    /// Starts a server on a free port.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let upstream =
            Self { address: listener.local_addr().expect("its address"), state: Arc::default() };
        let serving = upstream.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                std::thread::spawn(move || serving.serve(&stream));
            }
        });
        upstream
    }

    /// Answers a request with this, from now on.
    pub(crate) fn set(&self, request: &str, status: u16, body: &str) {
        self.state.lock().answers.insert(request.to_owned(), (status, body.to_owned()));
    }

    /// Where it is reached.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the requests so far.
    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.state.lock().requests.clone()
    }

    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        while let Some(request) = read(&mut reader) {
            let key = request.line.split('?').next().unwrap_or_default().to_owned();
            let (status, body) = {
                let mut state = self.state.lock();
                state.requests.push(request);
                state.answers.get(&key).cloned().unwrap_or((404, "{\"no\":\"such thing\"}".to_owned()))
            };
            let head = format!(
                "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let mut stream = stream;
            if stream
                .write_all(head.as_bytes())
                .and_then(|()| stream.write_all(body.as_bytes()))
                .is_err()
            {
                return;
            }
        }
    }
}

fn read(reader: &mut impl BufRead) -> Option<ReceivedRequest> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
    let line = line.trim_end().strip_suffix(" HTTP/1.1")?.to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(ReceivedRequest {
        line,
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
        bytes: body,
    })
}
