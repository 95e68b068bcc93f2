//! The broker: a proxy through which a confined process reaches the hosts that it declares.
//!
//! # How it works
//!
//! A process with `net:HOST` permissions runs in a network namespace that has only a loopback interface.
//! Its launcher opens a listening socket there and passes it to the server, which serves it with a
//! [`Broker`]. The first byte of a connection distinguishes SOCKS5 (`socks`) from HTTP (`http`:
//! `CONNECT`, and requests for `http:` URLs). Both ask `gate` for a connection. The gate looks the host
//! and port up among the declared ones ([`Allowed`], pure), resolves the name, drops the addresses that
//! the declaration does not cover, and connects to one of the others.
//!
//! # Invariants
//!
//! - A connection goes to a checked address: no name is resolved between the check and the connect.
//! - A name leads only to public addresses. Any other address must be declared itself.
//! - Connections, the head of a request, the time to connect and idle time are bounded.
//!
//! # What is deliberately absent
//!
//! DNS. Without a route, an address is useless to the process. UDP sockets in a namespace that the
//! calls of a profile share would let these calls talk to each other.

#![warn(missing_docs)]

mod allow;
mod clients;
mod gate;
mod http;
mod meter;
mod socks;

use std::io;
use std::net::TcpListener;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::process::{Resource, getrlimit};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

pub use allow::{Allowed, Host};
pub use clients::Clients;

use gate::Gate;
use meter::{Limits, Metered};

/// A host that no declaration should name. A probe asks for it, and its refusal is not logged.
pub const PROBE_HOST: &str = "probe.invalid";

/// The maximum number of connections of one profile. Further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 128;
/// The number of connections that each profile may have in any case, so that others cannot take the network from it altogether.
const OWN_CONNECTIONS: usize = 8;
/// Admits the other connections of all profiles. Each takes two descriptors of the server, and all together no more than half of them.
static ADMITTED: LazyLock<Arc<Semaphore>> = LazyLock::new(|| {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let permits = usize::try_from(descriptors / 4).unwrap_or(Semaphore::MAX_PERMITS);
    Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)))
});
/// Bytes of the receive buffer of a connection.
const RECEIVE_BUFFER: usize = 256 * 1024;
/// The maximum size of the head of an HTTP request, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// How long a client may take to send a head or a SOCKS request, and to begin the next one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of resolving a name, and of connecting to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long no byte may be sent or received on a connection. Its process may be gone when it sends nothing more, or when the
/// other side does not take what it has sent: then the other side has less time, because connections are bounded.
const SILENCE: Limits = Limits {
    open: Duration::from_secs(10 * 60),
    stalled: Duration::from_secs(60),
    closed: Duration::from_secs(10),
};
/// The pause after a connection could not be accepted, for example because this process has too many
/// open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of threads that resolve names.
const MAX_RESOLVERS: usize = 8;

/// A running broker. Dropping it ends the broker and its connections.
#[derive(Debug)]
pub struct Broker {
    _task: AbortOnDropHandle<()>,
}

impl Broker {
    /// Serves a socket that listens inside the namespace of `profile`. The hash and the names of the clients
    /// appear in the log.
    ///
    /// # Errors
    /// The socket cannot be served, or no thread can be started.
    pub fn serve(
        listener: TcpListener,
        allowed: Allowed,
        profile: String,
        clients: Clients,
    ) -> io::Result<Self> {
        let runtime = runtime()?;
        listener.set_nonblocking(true)?;
        // Its connections inherit it. The kernel keeps what a process has sent, also after its end.
        set_socket_recv_buffer_size(&listener, RECEIVE_BUFFER)?;
        let listener = {
            let _entered = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let gate = Arc::new(Gate::new(allowed, profile, clients));
        let task = runtime.spawn(accept(listener, gate, Arc::clone(&ADMITTED)));
        Ok(Self { _task: AbortOnDropHandle::new(task) })
    }
}

/// Returns the runtime of all brokers. It has one thread, so that the traffic of confined processes
/// takes no time from the calls of a server.
fn runtime() -> io::Result<&'static Runtime> {
    static RUNTIME: LazyLock<io::Result<Runtime>> = LazyLock::new(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(MAX_RESOLVERS)
            .thread_name("broker")
            .enable_all()
            .build()
    });
    RUNTIME.as_ref().map_err(|err| io::Error::new(err.kind(), err.to_string()))
}

/// Accepts the connections of a profile, as long as it has some of its own left or `admitted` admits further ones.
async fn accept(listener: tokio::net::TcpListener, gate: Arc<Gate>, admitted: Arc<Semaphore>) {
    let own = Arc::new(Semaphore::new(OWN_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= MAX_CONNECTIONS {
            connections.join_next().await;
            continue;
        }
        let permit = tokio::select! {
            biased;
            permit = Arc::clone(&own).acquire_owned() => permit,
            permit = Arc::clone(&admitted).acquire_owned() => permit,
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let gate = Arc::clone(&gate);
                connections.spawn(async move {
                    serve(stream, gate).await;
                    drop(permit);
                });
            }
            Err(err) => {
                tracing::debug!(error = %err, "a connection to the broker was not accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one connection.
async fn serve(stream: TcpStream, gate: Arc<Gate>) {
    let mut first = [0];
    let Ok(Ok(1)) = timeout(HEAD_TIMEOUT, stream.peek(&mut first)).await else { return };
    let _ = stream.set_nodelay(true);
    let stream = Metered::new(stream);
    let served = async {
        match first {
            [socks::VERSION] => socks::serve(stream.clone(), &gate).await,
            _ => http::serve(stream.clone(), Arc::clone(&gate)).await,
        }
    };
    tokio::select! {
        () = served => {}
        () = stream.silent(SILENCE) => {}
    }
    let (sent, received) = stream.totals();
    tracing::debug!(
        profile = gate.profile(),
        sent,
        received,
        "a connection of a confined process ended"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Serves a profile that may connect nowhere.
    async fn broker(brokers: &mut JoinSet<()>, admitted: &Arc<Semaphore>) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let gate = Gate::new(Allowed::default(), "profile".to_owned(), Clients::default());
        brokers.spawn(accept(listener, Arc::new(gate), Arc::clone(admitted)));
        address
    }

    async fn request(broker: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(broker).await.unwrap();
        stream.write_all(b"CONNECT a.example:443 HTTP/1.1\r\n\r\n").await.unwrap();
        stream
    }

    async fn is_answered(stream: &mut TcpStream) {
        let mut start = [0; 9];
        timeout(Duration::from_secs(60), stream.read_exact(&mut start)).await.unwrap().unwrap();
        assert_eq!(&start, b"HTTP/1.1 ");
    }

    #[tokio::test]
    async fn a_profile_with_many_connections_leaves_every_other_its_own() {
        const SHARED: usize = 2;
        let admitted = Arc::new(Semaphore::new(SHARED));
        let mut brokers = JoinSet::new();
        let greedy = broker(&mut brokers, &admitted).await;
        let modest = broker(&mut brokers, &admitted).await;
        let mut open = Vec::new();
        for _ in 0..OWN_CONNECTIONS + SHARED {
            open.push(TcpStream::connect(greedy).await.unwrap());
        }
        let mut further = request(greedy).await;
        for _ in 1..OWN_CONNECTIONS {
            open.push(TcpStream::connect(modest).await.unwrap());
        }
        is_answered(&mut request(modest).await).await;
        let unanswered = further.try_read(&mut [0]).unwrap_err();
        assert_eq!(unanswered.kind(), io::ErrorKind::WouldBlock);
        drop(open.remove(0));
        is_answered(&mut further).await;
    }
}
