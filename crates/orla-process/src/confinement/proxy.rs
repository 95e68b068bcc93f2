//! The only way out of the namespace of a profile that declares hosts: a socket that listens in the
//! namespace and that the server's broker serves.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// The port of the broker. The namespace has no other listener, so the port is always free. The kernel
/// never chooses it as the local port of a connection, so no connection can connect to itself.
pub(super) const PORT: u16 = 3128;
pub(super) const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);

/// Brings up the loopback interface of this namespace and listens on it.
pub(super) fn listen() -> io::Result<TcpListener> {
    bring_up()?;
    TcpListener::bind(ADDRESS)
}

/// Returns the variables that direct programs to the broker. Every client understands an HTTP address.
/// Some clients fail at startup if `ALL_PROXY` is a SOCKS address and a library is missing.
pub(super) fn variables() -> impl Iterator<Item = (String, String)> {
    let http = format!("http://{ADDRESS}");
    let proxies = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"].map(|name| (name, http.clone()));
    // Node.js would otherwise send the requests that a library sends to the broker through the broker.
    let others = [("SOCKS_PROXY", format!("socks5h://{ADDRESS}")), ("NO_PROXY", ADDRESS.to_string())];
    let both = proxies.into_iter().chain(others);
    both.flat_map(|(name, value)| [(name.to_owned(), value.clone()), (name.to_lowercase(), value)])
        // Node.js uses the other variables only with this one.
        .chain([("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned())])
}

/// Sets `IFF_UP` of the loopback interface, which is the first interface of every namespace
/// (rtnetlink(7)).
fn bring_up() -> io::Result<()> {
    const RTM_NEWLINK: u16 = 16;
    const REQUEST_AND_ACKNOWLEDGE: u16 = 1 | 4;
    const NLMSG_ERROR: u16 = 2;
    const LOOPBACK: i32 = 1;
    const IFF_UP: u32 = 1;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    // The header has length, type, flags, sequence number and port. The interface has family, type,
    // index, flags and changed flags.
    let mut message = Vec::with_capacity(32);
    message.extend(32_u32.to_ne_bytes());
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend(REQUEST_AND_ACKNOWLEDGE.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([0; 4]);
    message.extend(LOOPBACK.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    sendto(&socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; 256];
    let (length, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    // The header has its type at offset 4. The negative error number follows the header.
    let answer = answer.get(..length).ok_or_else(malformed)?;
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let error = answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, error) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(error)) => Err(io::Error::from_raw_os_error(-error)),
        _ => Err(malformed()),
    }
}
