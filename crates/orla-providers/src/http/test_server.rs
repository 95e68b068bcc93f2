//! Servers on loopback that send exactly the bytes that a test gives them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use orla_marketplace::testing::{TEST_TIMEOUT, eventually};
use parking_lot::Mutex;

/// A received request.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedRequest {
    pub(crate) head: String,
    pub(crate) body: String,
}

impl ReceivedRequest {
    pub(crate) fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }
}

/// The connection that an answer is written to.
pub(crate) struct Answer {
    pub(crate) stream: TcpStream,
    /// Whether another request may follow.
    is_whole: bool,
}

impl Answer {
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }
}

type Handler = dyn Fn(&ReceivedRequest, &mut Answer) + Send + Sync;

#[derive(Default)]
struct Seen {
    requests: Mutex<Vec<ReceivedRequest>>,
    connections: AtomicUsize,
    ended: AtomicUsize,
    stop: AtomicBool,
}

/// A server with a thread for each connection. Dropping it ends the server.
pub(crate) struct Server {
    address: SocketAddr,
    seen: Arc<Seen>,
}

impl Server {
    pub(crate) fn start(handle: impl Fn(&ReceivedRequest, &mut Answer) + Send + Sync + 'static) -> Self {
        Self::at([127, 0, 0, 1], handle)
    }

    pub(crate) fn at(
        ip: [u8; 4],
        handle: impl Fn(&ReceivedRequest, &mut Answer) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(SocketAddr::from((ip, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let handle: Arc<Handler> = Arc::new(handle);
        let shared = Arc::clone(&seen);
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if shared.stop.load(Ordering::Relaxed) {
                    return;
                }
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let (shared, handle) = (Arc::clone(&shared), Arc::clone(&handle));
                thread::spawn(move || {
                    serve(stream, &shared, &*handle);
                    shared.ended.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        Self { address, seen }
    }

    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.seen.requests.lock().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::Relaxed)
    }

    /// Waits until this many connections have ended.
    pub(crate) async fn eventually_ended(&self, count: usize) {
        eventually("it ended", || self.seen.ended.load(Ordering::Relaxed) >= count).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.seen.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

/// Answers requests until an answer is incomplete, or the client disconnects.
fn serve(stream: TcpStream, seen: &Seen, handle: &Handler) {
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader) {
        seen.requests.lock().push(request.clone());
        let mut to = Answer { stream: reader.get_ref().try_clone().unwrap(), is_whole: false };
        handle(&request, &mut to);
        if !to.is_whole {
            let _ = to.stream.shutdown(Shutdown::Both);
            return;
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<ReceivedRequest> {
    let mut request = ReceivedRequest::default();
    let mut length = 0;
    loop {
        let before = request.head.len();
        if reader.read_line(&mut request.head).ok()? == 0 {
            return None;
        }
        let line = request.head[before..].trim_end();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    request.body = String::from_utf8(body).unwrap();
    Some(request)
}

/// Writes a complete answer, after which the connection stays open.
pub(crate) fn answer(to: &mut Answer, status: &str, fields: &str, body: &[u8]) {
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{fields}\r\n", body.len());
    to.is_whole = to.send(head.as_bytes()) && to.send(body);
}

pub(crate) fn redirect(to: &mut Answer, status: u16, target: &str) {
    answer(to, &format!("{status} Elsewhere"), &format!("location: {target}\r\n"), b"");
}

/// Sends nothing until the client disconnects.
pub(crate) fn wait_for_end(to: &mut Answer) {
    let mut byte = [0];
    while to.stream.read(&mut byte).is_ok_and(|count| count > 0) {}
}

/// Starts a server without TLS, for one connection.
pub(crate) fn without_tls() -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    (address, thread)
}

/// Starts a TLS server with an untrusted certificate, for one connection.
pub(crate) fn tls() -> (SocketAddr, JoinHandle<()>) {
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let mut connection = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let mut seen = Vec::new();
        while connection.complete_io(&mut stream).is_ok_and(|(read, _)| read > 0) {
            let _ = connection.reader().read_to_end(&mut seen);
        }
        assert!(seen.is_empty(), "nothing is said to a stranger");
    });
    (address, thread)
}
