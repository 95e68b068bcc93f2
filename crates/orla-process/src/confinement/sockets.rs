//! The socket calls that are refused to a confined process.

use std::io;

use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};

use super::NetworkMode;
use super::refusals::Refusals;

/// The bits of a socket's type that hold its kind.
const KIND: u32 = 0xf;
/// Options that choose the interface of outgoing packets, by level and name. With them, packets for a
/// loopback address could leave the machine.
const ROUTING: [(i32, i32); 11] = [
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
    (libc::SOL_SOCKET, SO_BINDTOIFINDEX),
    (libc::SOL_IP, libc::IP_OPTIONS),
    (libc::SOL_IP, IP_UNICAST_IF),
    (libc::SOL_IPV6, IPV6_UNICAST_IF),
    (libc::SOL_IPV6, libc::IPV6_PKTINFO),
    (libc::SOL_IPV6, IPV6_2292PKTINFO),
    (libc::SOL_IPV6, libc::IPV6_RTHDR),
    (libc::SOL_IPV6, IPV6_2292RTHDR),
    (libc::SOL_IPV6, IPV6_2292PKTOPTIONS),
    (libc::SOL_IPV6, libc::IPV6_HOPOPTS),
];
const SO_BINDTOIFINDEX: i32 = 62;
const IP_UNICAST_IF: i32 = 50;
const IPV6_UNICAST_IF: i32 = 76;
const IPV6_2292PKTINFO: i32 = 2;
const IPV6_2292RTHDR: i32 = 5;
const IPV6_2292PKTOPTIONS: i32 = 6;

/// Refuses the socket calls that this network access does not allow, with or without UNIX sockets to
/// connect to.
pub(super) fn refuse(refusals: &mut Refusals, network: NetworkMode, has_unix: bool) -> io::Result<()> {
    let number = |number: i32| u64::from(number.unsigned_abs());
    let (unix, inet, inet6, netlink) =
        (number(libc::AF_UNIX), number(libc::AF_INET), number(libc::AF_INET6), number(libc::AF_NETLINK));
    // A connected pair reaches only itself. A pair of datagram sockets can send to any path.
    refusals.refuse_if(libc::SYS_socketpair, &[(0, Ne, unix)])?;
    let connected = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].map(i32::unsigned_abs);
    for kind in (0..=KIND).filter(|kind| !connected.contains(kind)) {
        refusals.refuse_if(libc::SYS_socketpair, &[(1, MaskedEq(KIND.into()), kind.into())])?;
    }
    let families: &[u64] = match network {
        NetworkMode::None => &[],
        NetworkMode::Hosts | NetworkMode::Loopback => &[inet, inet6],
        NetworkMode::All => &[inet, inet6, netlink],
    };
    let families: Vec<u64> = families.iter().copied().chain(has_unix.then_some(unix)).collect();
    if families.is_empty() {
        refusals.refuse(libc::SYS_socket);
        refusals.refuse(libc::SYS_listen);
        return Ok(());
    }
    let others: Vec<_> = families.iter().map(|family| (0, Ne, *family)).collect();
    refusals.refuse_if(libc::SYS_socket, &others)?;
    // Every kind other than SOCK_STREAM, which is 1, differs from it in one of these bits.
    let not_stream = [(1, 0), (2, 2), (4, 4), (8, 8)].map(|(bit, value)| (1, MaskedEq(bit), value));
    if network == NetworkMode::All {
        // Of netlink, only the requests of resolvers about routes and addresses are allowed.
        refusals.refuse_if(libc::SYS_socket, &[(0, Eq, netlink), (2, Ne, 0)])?;
        for kind in not_stream {
            refusals.refuse_if(libc::SYS_socket, &[(0, Eq, unix), kind])?;
        }
        return Ok(());
    }
    for kind in not_stream {
        refusals.refuse_if(libc::SYS_socket, &[kind])?;
    }
    let not_tcp = [(0, Ne, unix), (2, Ne, 0), (2, Ne, number(libc::IPPROTO_TCP))];
    refusals.refuse_if(libc::SYS_socket, &not_tcp)?;
    refusals.refuse(libc::SYS_bind);
    refusals.refuse(libc::SYS_listen);
    for (level, name) in ROUTING {
        refusals.refuse_if(libc::SYS_setsockopt, &[(1, Eq, number(level)), (2, Eq, number(name))])?;
    }
    // This flag connects without the call `connect`.
    let fast_open = number(libc::MSG_FASTOPEN);
    for (call, flags) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
        refusals.refuse_if(call, &[(flags, MaskedEq(fast_open), fast_open)])?;
    }
    Ok(())
}
