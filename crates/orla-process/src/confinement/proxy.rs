//! The only way out of a namespace of a profile that declares hosts: a socket that listens there and that the server's broker serves.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use orla_broker::PROBE_HOST;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// The port of the broker. The namespace has no other listener, so it is always free; it is none of those that the kernel chooses
/// for the other end of a connection, so no connection can end where it began.
pub(super) const PORT: u16 = 3128;
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);
/// An address that no machine has (RFC 5737).
const ELSEWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), PORT);

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

/// Tries to get out without the broker, and to have the broker connect to what is not declared. Gives what was wrong.
pub(super) fn probe() -> Vec<String> {
    let mut wrong = Vec::new();
    let others = [("another port", (Ipv4Addr::LOCALHOST, 9).into()), ("another address", ELSEWHERE)];
    for (what, address) in others {
        match TcpStream::connect(address) {
            Err(err) if is_refusal(&err) => {}
            Err(err) => wrong.push(format!("a connection to {what} failed by another reason ({err})")),
            Ok(_) => wrong.push(format!("a connection to {what} was possible")),
        }
    }
    for kind in [SocketType::DGRAM, SocketType::RAW, SocketType::SEQPACKET] {
        if socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None).is_ok() {
            wrong.push("a socket that is not of TCP was possible".to_owned());
        }
    }
    match TcpListener::bind((Ipv4Addr::LOCALHOST, 0)) {
        Err(err) if is_refusal(&err) => {}
        result => wrong.push(format!("listening was not refused ({result:?})")),
    }
    match undeclared() {
        Ok(answer) if answer.starts_with("HTTP/1.1 403 ") => {}
        result => wrong.push(format!("the broker did not refuse an undeclared host ({result:?})")),
    }
    wrong
}

/// By a rule, or because there is no route.
fn is_refusal(err: &io::Error) -> bool {
    matches!(err.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::ENETUNREACH))
}

/// Asks the broker for an undeclared host. Gives the beginning of its answer.
fn undeclared() -> io::Result<String> {
    let mut stream = TcpStream::connect(ADDRESS)?;
    stream.set_read_timeout(Some(super::ANSWER))?;
    write!(stream, "CONNECT {PROBE_HOST}:443 HTTP/1.1\r\nHost: {PROBE_HOST}:443\r\n\r\n")?;
    let mut answer = [0; 64];
    let length = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}
