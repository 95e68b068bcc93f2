//! Opens connections to declared hosts, and refuses others.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::allow::{Allowed, Host};
use crate::clients::Clients;
use crate::{CONNECT_TIMEOUT, PROBE_HOST};

/// The maximum number of refusals of one profile that are logged, each once.
const MAX_LOGGED: usize = 1024;
/// The maximum number of concurrent name lookups of one profile.
const MAX_LOOKUPS: usize = 2;
/// The maximum number of addresses of a name that are tried.
const MAX_ADDRESSES: usize = 8;

/// The gate for the connections of one profile.
#[derive(Debug)]
pub(crate) struct Gate {
    allowed: Allowed,
    profile: String,
    clients: Clients,
    logged: Mutex<HashSet<String>>,
    /// Limits concurrent lookups of one profile, so that slow ones do not occupy all threads.
    lookups: Arc<Semaphore>,
}

/// The reason why there is no connection. Its text is sent to the process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// The host and port are not declared.
    #[error("{0} is not among the permissions")]
    Undeclared(String),
    /// The name leads to addresses that are not public and not declared.
    #[error(
        "{host} has the address {address}, which is not public, and {permission} is not among the permissions"
    )]
    NotPublic { host: Host, address: IpAddr, permission: String },
    /// The host cannot be reached.
    #[error("{host}:{port}: {reason}")]
    Unreachable { host: Host, port: u16, reason: io::Error },
}

impl Gate {
    pub(crate) fn new(allowed: Allowed, profile: String, clients: Clients) -> Self {
        Self {
            allowed,
            profile,
            clients,
            logged: Mutex::default(),
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)),
        }
    }

    pub(crate) fn profile(&self) -> &str {
        &self.profile
    }

    /// Connects to a host.
    ///
    /// # Errors
    /// It is not declared, or it cannot be reached.
    pub(crate) async fn open(&self, host: &Host, port: u16) -> Result<TcpStream, Refusal> {
        if !self.allowed.names(host, port) {
            let permission = host.permission(port);
            self.log(host, &permission);
            return Err(Refusal::Undeclared(permission));
        }
        let unreachable = |reason| Refusal::Unreachable { host: host.clone(), port, reason };
        let found = self.resolve(host, port).await.map_err(unreachable)?;
        let (open, closed): (Vec<SocketAddr>, Vec<SocketAddr>) =
            found.into_iter().partition(|found| self.allowed.leads(host, found.ip(), port));
        if let ([], [address, ..]) = (&*open, &*closed) {
            let address = address.ip();
            let permission = Host::Address(address.to_canonical()).permission(port);
            self.log(host, &permission);
            return Err(Refusal::NotPublic { host: host.clone(), address, permission });
        }
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in open.into_iter().take(MAX_ADDRESSES) {
            match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(err)) => last = err,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(unreachable(last))
    }

    /// Counts a refusal, and logs it once.
    fn log(&self, host: &Host, permission: &str) {
        if matches!(host, Host::Name(name) if name == PROBE_HOST) {
            return;
        }
        self.clients.count_refusal();
        let mut logged = self.logged.lock();
        if logged.len() < MAX_LOGGED && logged.insert(format!("{host} {permission}")) {
            tracing::warn!(
                capabilities = self.clients.names(),
                profile = self.profile,
                host = %host,
                permission,
                "a confined process was refused a connection"
            );
        }
    }
}

impl Gate {
    async fn resolve(&self, host: &Host, port: u16) -> io::Result<Vec<SocketAddr>> {
        let name = match host {
            Host::Address(address) => return Ok(vec![SocketAddr::new(*address, port)]),
            Host::Name(name) => name.clone(),
        };
        let found = timeout(CONNECT_TIMEOUT, async {
            let turn = Arc::clone(&self.lookups).acquire_owned().await.map_err(io::Error::other)?;
            let lookup = move || {
                // A lookup that is no longer awaited keeps its permit until it has ended.
                let _turn = turn;
                (name.as_str(), port).to_socket_addrs().map(Iterator::collect)
            };
            tokio::task::spawn_blocking(lookup).await.map_err(io::Error::other)?
        });
        found.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}
