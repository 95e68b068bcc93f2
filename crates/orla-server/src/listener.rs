//! The listener: accepts connections, serves each with hyper, and ends them in order.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::forbidden;
use crate::http::forbidden::{Forbidden, ForbiddenBy};
use crate::http::idle_timeout::{IdleTimeoutStream, Serving};
use crate::http::repoll::Repoll;
use crate::mcp::notify::changes::fan_out;
use crate::mcp::session::shared;
use crate::routes::{self, ConnectionInfo};
use crate::state::Core;
use crate::tls::{self, ClientCertificate, Tls, TlsError};

/// The pauses before accepting again when the system has no file descriptors left. Each pause doubles,
/// from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// How long all activities may take to end after the abort.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(4);
/// How long connections stay open after the abort, for the answers to the calls that it ends. The time
/// is shorter than [`SHUTDOWN_GRACE`], because activities without a connection are awaited too.
const LAST_ANSWERS: Duration = Duration::from_millis(3500);
/// The interval between two checks of the certificate files.
const CERTIFICATE_CHECK: Duration = Duration::from_secs(1);
/// The maximum number of concurrent streams of one HTTP/2 connection.
const MAX_HTTP2_STREAMS: u32 = 256;
/// The maximum size of the header fields of one HTTP/2 request, in bytes: several times that of a token.
const MAX_HTTP2_HEADERS: u32 = 64 * 1024;

/// The reason why the server cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The address is in use.
    #[error(
        "cannot listen on {address}: the address is in use; stop what uses it or choose another port"
    )]
    InUse {
        /// The address.
        address: String,
    },
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Any other error, such as a name that does not resolve or a port that needs privileges.
    #[error("cannot listen on {address}: {source}")]
    Other {
        /// The address.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
}

/// A server that has bound its socket and does not accept requests yet.
pub struct Bound {
    core: Arc<Core>,
    listener: TcpListener,
    address: SocketAddr,
}

impl Bound {
    /// Binds the socket.
    pub(crate) async fn bind(core: Arc<Core>, host: &str, port: u16) -> Result<Self, BindError> {
        core.tls.load(core.settings.load().options.tls.as_ref())?;
        let shown =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let fail = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse { address: shown.clone() },
            _ => BindError::Other { address: shown.clone(), source },
        };
        let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(fail)?.collect();
        let listener = TcpListener::bind(&addresses[..]).await.map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        Ok(Self { core, listener, address })
    }

    /// Returns the bound address. For port 0, it contains the selected port.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` is cancelled and all requests have ended. Requests have
    /// [`drain`](crate::ServerOptions::drain) to finish, then they are cancelled.
    pub async fn serve(self, shutdown: CancellationToken) {
        let Self { core, listener, .. } = self;
        core.set_serving();
        core.tracker.spawn(sweep(Arc::clone(&core)));
        core.tracker.spawn(fan_out(Arc::clone(&core)));
        if core.tls.get().is_some() {
            core.tracker.spawn(follow_certificates(Arc::clone(&core)));
        }
        let slots = Arc::new(Semaphore::new(core.settings.load().options.max_connections.max(1)));
        let mut pause = FIRST_PAUSE;
        loop {
            let accepted = tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                slot = Arc::clone(&slots).acquire_owned() => tokio::select! {
                    biased;
                    () = shutdown.cancelled() => break,
                    accepted = listener.accept() => accepted.map(|(stream, peer)| (stream, peer, slot)),
                },
            };
            match accepted {
                Ok((stream, peer, slot)) => {
                    pause = FIRST_PAUSE;
                    let core = Arc::clone(&core);
                    core.tracker.clone().spawn(async move {
                        core.metrics.connections.inc();
                        begin(&core, stream, peer.ip()).await;
                        core.metrics.connections.dec();
                        drop(slot);
                    });
                }
                Err(err) if is_of_one_connection(&err) => {}
                Err(err) => {
                    if pause == FIRST_PAUSE {
                        tracing::warn!(error = %err, "cannot accept connections for the moment");
                    }
                    tokio::select! {
                        () = shutdown.cancelled() => break,
                        () = tokio::time::sleep(pause) => {}
                    }
                    pause = (pause * 2).min(LAST_PAUSE);
                }
            }
        }
        drop(listener);
        drain(&core).await;
    }
}

/// Ends all activities: streams at once, and requests when they are done or their time is over.
pub(crate) async fn drain(core: &Core) {
    core.draining.cancel();
    core.tracker.close();
    let time = core.settings.load().options.drain;
    let tasks = async {
        if let Some(tasks) = core.tasks() {
            tasks.close(time).await;
        }
    };
    tokio::join!(end_requests(core, time), tasks);
}

async fn end_requests(core: &Core, time: Duration) {
    if tokio::time::timeout(time, core.tracker.wait()).await.is_ok() {
        return;
    }
    tracing::warn!(after_ms = time.as_secs_f64() * 1000.0, "calls still run and are cancelled");
    core.end_calls();
    if tokio::time::timeout(SHUTDOWN_GRACE, core.tracker.wait()).await.is_err() {
        tracing::error!("calls did not end when they were cancelled");
    }
}

/// Serves one connection to its end, after the TLS handshake if TLS is configured.
async fn begin(core: &Arc<Core>, stream: TcpStream, peer: IpAddr) {
    // Each answer is written in one piece, so waiting for more data would only add the client's delayed
    // ACK.
    let _ = stream.set_nodelay(true);
    match core.tls.get() {
        None => {
            let limit = core.settings.load().options.header_timeout;
            let is_http1 = tokio::select! {
                biased;
                is_http1 = tokio::time::timeout(limit, is_http1(&stream)) => is_http1,
                () = core.draining.cancelled() => return,
            };
            let Ok(is_http1) = is_http1 else {
                tracing::debug!(%peer, "no request came in time");
                return;
            };
            let builder = auto::Builder::new(Tracked(core.tracker.clone()));
            let builder = if is_http1 { builder.http1_only() } else { builder };
            serve_connection(core, builder, stream, peer, None).await;
        }
        // Boxed, because it would enlarge the future of every other connection.
        Some(tls) => Box::pin(handshake(core, &tls, stream, peer)).await,
    }
}

/// Waits for the first bytes of a client, and returns whether they can only be a request of HTTP/1. Otherwise the version is still
/// unknown: to learn it, hyper reads a few bytes alone, and then needs a second buffer for the rest of the request.
async fn is_http1(stream: &TcpStream) -> bool {
    const HTTP2: &[u8] = b"PRI";
    let mut first = [0; HTTP2.len()];
    let read = stream.peek(&mut first).await.unwrap_or(0);
    read > 0 && !HTTP2.starts_with(&first[..read])
}

async fn handshake(core: &Arc<Core>, tls: &Arc<Tls>, stream: TcpStream, peer: IpAddr) {
    let limit = core.settings.load().options.header_timeout;
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(limit, tls::accept(tls, stream)) => accepted,
        () = core.draining.cancelled() => return,
    };
    match accepted {
        Ok(Ok((stream, client))) => {
            let builder = auto::Builder::new(Tracked(core.tracker.clone()));
            serve_connection(core, builder, stream, peer, client).await;
        }
        Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS connection"),
        Err(_) => tracing::debug!(%peer, "the TLS handshake took too long"),
    }
}

/// Serves the requests of a connection.
async fn serve_connection(
    core: &Arc<Core>,
    mut builder: auto::Builder<Tracked>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: IpAddr,
    client: Option<ClientCertificate>,
) {
    let serving = Serving::default();
    let (header_timeout, keep_alive) = {
        let settings = core.settings.load();
        (settings.options.header_timeout, settings.options.keep_alive)
    };
    let io = TokioIo::new(IdleTimeoutStream::new(stream, serving.clone(), header_timeout, keep_alive));
    let service = service_fn(|mut request: Request<Incoming>| {
        let core = Arc::clone(core);
        if let Some(client) = &client {
            request.extensions_mut().insert(client.clone());
        }
        let (guard, is_ambiguous) = (serving.begin(), serving.is_ambiguous());
        async move {
            let response = routes::serve(core, request, ConnectionInfo { peer, is_ambiguous }).await;
            Ok::<_, std::convert::Infallible>(response.map(|body| body.until_end(guard)))
        }
    });
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(Duration::from_secs(30)))
        .max_concurrent_streams(MAX_HTTP2_STREAMS)
        .max_header_list_size(MAX_HTTP2_HEADERS);
    let connection = std::pin::pin!(builder.serve_connection(io, service));
    let mut connection = Repoll::new(connection);
    let ended = tokio::select! {
        biased;
        ended = &mut connection => ended,
        () = core.draining.cancelled() => {
            connection.get_mut().as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                // Dropping the connection cancels its requests. Their tasks are awaited.
                () = wait_for_answers(core) => Ok(()),
            }
        }
    };
    if let Err(err) = ended {
        if err.downcast_ref().is_some_and(hyper::Error::is_parse_too_large) {
            let reason = "its head is larger than the server reads".into();
            let refused = Forbidden { by: ForbiddenBy::Head, reason };
            forbidden::report(core, peer, None, None, refused);
        }
        tracing::debug!(error = %err, "a connection broke");
    }
}

/// Waits until cancelled calls have had time to send their answers.
async fn wait_for_answers(core: &Core) {
    core.abort.cancelled().await;
    tokio::time::sleep(LAST_ANSWERS).await;
}

/// Removes idle sessions, and ends the activities of callers whose credential is no longer accepted,
/// while the server runs.
async fn sweep(core: Arc<Core>) {
    loop {
        let settings = core.settings.load_full();
        let idle = settings.options.session_idle;
        let pause = (idle / 4).clamp(Duration::from_millis(50), Duration::from_secs(10));
        tokio::select! {
            () = core.draining.cancelled() => return,
            () = tokio::time::sleep(pause) => {
                core.end_unknown();
                core.sessions.sweep(idle);
                shared::sweep(&core, idle).await;
            }
        }
    }
}

/// Reloads replaced certificates while the server runs.
async fn follow_certificates(core: Arc<Core>) {
    let mut tried = Vec::new();
    loop {
        tokio::select! {
            () = core.draining.cancelled() => return,
            () = tokio::time::sleep(CERTIFICATE_CHECK) => {
                if core.tls.refresh(&mut tried) {
                    core.credentials.send_replace(());
                }
            }
        }
    }
}

/// Returns whether an error of accept concerns only the connection that was about to be accepted.
fn is_of_one_connection(err: &io::Error) -> bool {
    matches!(
        err.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// Runs hyper's tasks in the tracker, which awaits them.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}
