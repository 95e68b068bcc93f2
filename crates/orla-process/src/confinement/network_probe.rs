//! Attempts, inside a profile, the network operations that it refuses.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use orla_broker::PROBE_HOST;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::{NetworkMode, proxy};

/// A port without a service on most machines (discard).
const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9);
/// An address that no machine has (RFC 5737).
const EXTERNAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), proxy::PORT);

/// Attempts to get around the profile. Returns what was wrong.
pub(super) fn probe(network: NetworkMode) -> Vec<String> {
    // The state of a program after exec. The process that connects on its behalf reads its memory.
    let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
    let mut wrong = Vec::new();
    let mut refused = |what: &str, tried: io::Result<()>| match tried {
        Err(err) if is_refusal(network, &err) => {}
        Err(err) => wrong.push(format!("{what} failed by another reason ({err})")),
        Ok(()) => wrong.push(format!("{what} was possible")),
    };
    if network == NetworkMode::All {
        return wrong;
    }
    refused("listening", TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map(drop));
    refused("a connection to another address", TcpStream::connect(EXTERNAL).map(drop));
    for kind in [SocketType::DGRAM, SocketType::RAW, SocketType::SEQPACKET] {
        let socket = socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None);
        refused("a socket that is not of TCP", socket.map(drop).map_err(io::Error::from));
    }
    let loopback = TcpStream::connect(LOOPBACK).map(drop);
    match network {
        NetworkMode::None | NetworkMode::Hosts => refused("a connection to another port", loopback),
        // A refusal for another reason than the profile would prove nothing.
        NetworkMode::Loopback => {
            if let Err(err) = loopback
                && is_refusal(network, &err)
            {
                wrong.push(format!("a connection to the host's loopback was refused ({err})"));
            }
        }
        NetworkMode::All => {}
    }
    if network == NetworkMode::Hosts {
        match undeclared() {
            Ok(answer) if answer.starts_with("HTTP/1.1 403 ") => {}
            result => wrong.push(format!("the broker did not refuse an undeclared host ({result:?})")),
        }
    }
    wrong
}

/// Returns whether a rule has refused the operation, or whether a separate namespace has no route.
fn is_refusal(network: NetworkMode, err: &io::Error) -> bool {
    match err.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => true,
        Some(libc::ENETUNREACH) => network == NetworkMode::Hosts,
        _ => false,
    }
}

/// Asks the broker for an undeclared host. Returns the beginning of the answer.
fn undeclared() -> io::Result<String> {
    let mut stream = TcpStream::connect(proxy::ADDRESS)?;
    stream.set_read_timeout(Some(super::ANSWER))?;
    write!(stream, "CONNECT {PROBE_HOST}:443 HTTP/1.1\r\nHost: {PROBE_HOST}:443\r\n\r\n")?;
    let mut answer = [0; 64];
    let length = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}
