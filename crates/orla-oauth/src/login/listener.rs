//! The redirect target of a sign-in: a loopback port of this machine (RFC 8252 §7.3).

use std::convert::Infallible;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, REFERRER_POLICY};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::TaskTracker;

use super::{Rejected, SignIn};
use crate::error::Error;
use crate::upstream::{Subject, Upstream};

/// The path that the browser returns to.
const PATH: &str = "/callback";
/// The timeout of a browser's request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of open connections that one waiting sign-in has accepted.
const MAX_CONNECTIONS: usize = 16;

/// A port that waits for a browser.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    port: u16,
}

impl Listener {
    /// Listens on this port, or on any free one.
    ///
    /// # Errors
    /// The port is taken.
    pub async fn bind(port: Option<u16>) -> Result<Self, Error> {
        let failed = |err: std::io::Error| {
            let port = port.map_or_else(|| "any port".to_owned(), |port| format!("port {port}"));
            Error::Failed(format!(
                "cannot listen at {port} of 127.0.0.1 for the end of the sign-in: {err}"
            ))
        };
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, port.unwrap_or(0))).await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        Ok(Self { listener, port })
    }

    /// Returns the address that the browser returns to.
    pub fn redirect_uri(&self) -> String {
        format!("http://127.0.0.1:{}{PATH}", self.port)
    }

    /// Waits for the browser, and completes the sign-in. The browser shows the result.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn finish(
        self,
        upstream: &Arc<Upstream>,
        subject: &Subject,
        sign_in: &SignIn,
    ) -> Result<(), Error> {
        let waiting = Arc::new(Waiting::default());
        let mut ended = waiting.add(upstream, subject, sign_in);
        self.serve(&waiting, &mut ended).await
    }

    /// Serves the browsers of all waiting sign-ins, until the first of them has ended.
    async fn serve(&self, waiting: &Arc<Waiting>, end: &mut SignInResult) -> Result<(), Error> {
        // Dropping the tracker ends no connection: it may belong to a sign-in that outlasts this one.
        let connections = TaskTracker::new();
        let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let accept = async || {
            let place = Arc::clone(&free).acquire_owned().await;
            (place, self.listener.accept().await)
        };
        loop {
            tokio::select! {
                biased;
                Some(end) = end.recv() => {
                    // The browser still gets its page.
                    connections.close();
                    let _ = tokio::time::timeout(Duration::from_secs(1), connections.wait()).await;
                    return end;
                }
                (place, accepted) = accept() => {
                    let Ok((stream, _)) = accepted else {
                        // An error such as too many open files does not pass immediately.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    };
                    let waiting = Arc::clone(waiting);
                    connections.spawn(async move {
                        serve(stream, waiting).await;
                        drop(place);
                    });
                }
            }
        }
    }
}

/// A fixed port, to which the browsers of several sign-ins return. The state in a response identifies
/// its sign-in. Each sign-in serves the port while it waits, so that a sign-in that ends does not close
/// the port for the others.
#[derive(Debug)]
pub(crate) struct Port {
    listener: Listener,
    waiting: Arc<Waiting>,
}

impl Port {
    /// Listens on this port.
    ///
    /// # Errors
    /// The port is taken.
    pub(crate) async fn bind(port: u16) -> Result<Self, Error> {
        Ok(Self { listener: Listener::bind(Some(port)).await?, waiting: Arc::default() })
    }

    /// Returns the address that browsers return to.
    pub(crate) fn redirect_uri(&self) -> String {
        self.listener.redirect_uri()
    }

    /// Adds a sign-in whose browser will return to this port. Its result is received once; the sign-in is
    /// forgotten when the receiver is dropped.
    pub(crate) fn add(
        &self,
        upstream: &Arc<Upstream>,
        subject: &Subject,
        sign_in: &SignIn,
    ) -> SignInResult {
        self.waiting.add(upstream, subject, sign_in)
    }

    /// Waits for the browser of a sign-in that was [added](Self::add), and completes the sign-in, as
    /// [`Listener::finish`] does.
    ///
    /// # Errors
    /// See [`Error`].
    pub(crate) async fn finish(&self, mut result: SignInResult) -> Result<(), Error> {
        self.listener.serve(&self.waiting, &mut result).await
    }
}

/// Receives the result of a sign-in.
pub(crate) type SignInResult = mpsc::Receiver<Result<(), Error>>;

/// The sign-ins that wait for their browsers at one port.
#[derive(Default)]
struct Waiting(Mutex<Vec<Arc<Work>>>);

impl Waiting {
    /// Adds a sign-in. Its result is sent once; it no longer waits when the receiver is dropped.
    fn add(&self, upstream: &Arc<Upstream>, subject: &Subject, sign_in: &SignIn) -> SignInResult {
        let (ended, end) = mpsc::channel(1);
        let work = Work {
            upstream: Arc::clone(upstream),
            subject: subject.clone(),
            sign_in: sign_in.clone(),
            ended,
        };
        let mut waiting = self.0.lock();
        waiting.retain(|work| !work.ended.is_closed());
        waiting.push(Arc::new(work));
        end
    }

    fn all(&self) -> Vec<Arc<Work>> {
        self.0.lock().iter().filter(|work| !work.ended.is_closed()).cloned().collect()
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Waiting({})", self.0.lock().len())
    }
}

struct Work {
    upstream: Arc<Upstream>,
    subject: Subject,
    sign_in: SignIn,
    ended: mpsc::Sender<Result<(), Error>>,
}

async fn serve(stream: TcpStream, waiting: Arc<Waiting>) {
    let service = service_fn(move |request| {
        let waiting = Arc::clone(&waiting);
        async move { Ok::<_, Infallible>(answer(&waiting, &request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "the browser's connection ended");
    }
}

async fn answer(waiting: &Waiting, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET || request.uri().path() != PATH {
        return page(StatusCode::NOT_FOUND, "There is nothing here.");
    }
    let query = request.uri().query().unwrap_or_default();
    for work in waiting.all() {
        match work.upstream.finish(&work.subject, &work.sign_in, query).await {
            Ok(()) => {
                let _ = work.ended.try_send(Ok(()));
                return page(StatusCode::OK, "You are signed in. You can close this window.");
            }
            // The response may belong to another waiting sign-in.
            Err(Rejected::Foreign) => {}
            Err(Rejected::Failed(error)) => {
                let _ = work.ended.try_send(Err(error));
                return page(StatusCode::BAD_REQUEST, "The sign-in failed. The terminal shows why.");
            }
        }
    }
    page(StatusCode::BAD_REQUEST, "This answer belongs to another sign-in.")
}

/// Returns a page with one fixed sentence.
fn page(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}
