//! The only way out of a namespace of a profile that declares hosts: a socket that listens there and that the server's broker serves.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// The port of the broker. The namespace has no other listener, so it is always free; it is none of those that the kernel chooses
/// for the other end of a connection, so no connection can end where it began.
pub(super) const PORT: u16 = 3128;
pub(super) const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);

/// Brings the loopback interface of this namespace up and listens there.
pub(super) fn listen() -> io::Result<TcpListener> {
    bring_up()?;
    TcpListener::bind(ADDRESS)
}

/// The variables that lead programs to the broker. Every client understands an address of HTTP; some fail at the start if `ALL_PROXY` is one
/// of SOCKS and a library is missing.
pub(super) fn variables() -> impl Iterator<Item = (String, String)> {
    let http = format!("http://{ADDRESS}");
    let proxies = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"].map(|name| (name, http.clone()));
    let others = [("SOCKS_PROXY", format!("socks5h://{ADDRESS}")), ("NO_PROXY", String::new())];
    let both = proxies.into_iter().chain(others);
    both.flat_map(|(name, value)| [(name.to_owned(), value.clone()), (name.to_lowercase(), value)])
        // Node.js heeds the others only with this.
        .chain([("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned())])
}

/// Sets `IFF_UP` of the loopback interface, which is the first of every namespace (rtnetlink(7)).
fn bring_up() -> io::Result<()> {
    const RTM_NEWLINK: u16 = 16;
    const REQUEST_AND_ACKNOWLEDGE: u16 = 1 | 4;
    const NLMSG_ERROR: u16 = 2;
    const LOOPBACK: i32 = 1;
    const IFF_UP: u32 = 1;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    // A header: length, type, flags, sequence number, port; and of the interface: family, type, index, flags, changed flags.
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
    // After the header, whose type is at 4, the number of an error, negative.
    let answer = answer.get(..length).ok_or_else(malformed)?;
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let error = answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, error) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(error)) => Err(io::Error::from_raw_os_error(-error)),
        _ => Err(malformed()),
    }
}
