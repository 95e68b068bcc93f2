//! The system calls on sockets that a confined process is refused.

use std::collections::BTreeMap;
use std::io;

use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::SeccompRule;

use super::NetworkMode;
use super::filters::rule;

/// The bits of a socket's type that are its kind.
const KIND: u32 = 0xf;
/// Options that choose where packets leave, by level and name. With them, packets for a loopback address could leave the machine.
const ROUTING: [(i32, i32); 10] = [
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
    (libc::SOL_SOCKET, SO_BINDTOIFINDEX),
    (libc::SOL_IP, libc::IP_OPTIONS),
    (libc::SOL_IP, IP_UNICAST_IF),
    (libc::SOL_IPV6, IPV6_UNICAST_IF),
    (libc::SOL_IPV6, libc::IPV6_PKTINFO),
    (libc::SOL_IPV6, IPV6_2292PKTINFO),
    (libc::SOL_IPV6, libc::IPV6_RTHDR),
    (libc::SOL_IPV6, IPV6_2292RTHDR),
    (libc::SOL_IPV6, libc::IPV6_HOPOPTS),
];
const SO_BINDTOIFINDEX: i32 = 62;
const IP_UNICAST_IF: i32 = 50;
const IPV6_UNICAST_IF: i32 = 76;
const IPV6_2292PKTINFO: i32 = 2;
const IPV6_2292RTHDR: i32 = 5;

/// What of sockets is refused to a process with this access to the network, with or without UNIX sockets to connect, by the number of
/// the call. A call without rules is refused altogether.
pub(super) fn rules(
    network: NetworkMode,
    has_unix: bool,
) -> io::Result<BTreeMap<i64, Vec<SeccompRule>>> {
    let number = |number: i32| u64::from(number.unsigned_abs());
    let (unix, inet, inet6, netlink) =
        (number(libc::AF_UNIX), number(libc::AF_INET), number(libc::AF_INET6), number(libc::AF_NETLINK));
    let mut rules = BTreeMap::new();
    // A connected pair reaches nothing but itself; a pair of datagram sockets can send to any path.
    let kinds = (0..=KIND)
        .filter(|kind| ![libc::SOCK_STREAM, libc::SOCK_SEQPACKET].map(i32::unsigned_abs).contains(kind))
        .map(|kind| rule(&[(1, MaskedEq(KIND.into()), kind.into())]));
    let family = [rule(&[(0, Ne, unix)])];
    rules.insert(libc::SYS_socketpair, family.into_iter().chain(kinds).collect::<io::Result<_>>()?);
    let families: &[u64] = match network {
        NetworkMode::None => &[],
        NetworkMode::Hosts | NetworkMode::Loopback => &[inet, inet6],
        NetworkMode::All => &[inet, inet6, netlink],
    };
    let families: Vec<u64> = families.iter().copied().chain(has_unix.then_some(unix)).collect();
    let others: Vec<_> = families.iter().map(|family| (0, Ne, *family)).collect();
    // A kind that is not SOCK_STREAM, which is 1, differs from it in one of the bits.
    let not_stream = [(1, 0), (2, 2), (4, 4), (8, 8)].map(|(bit, value)| (1, MaskedEq(bit), value));
    let mut socket = Vec::new();
    if !families.is_empty() {
        socket.push(rule(&others)?);
    }
    match network {
        NetworkMode::All => {
            // Of netlink, what resolvers ask about routes and addresses.
            socket.push(rule(&[(0, Eq, netlink), (2, Ne, 0)])?);
            for kind in not_stream {
                socket.push(rule(&[(0, Eq, unix), kind])?);
            }
        }
        NetworkMode::None | NetworkMode::Hosts | NetworkMode::Loopback if families.is_empty() => {
            rules.insert(libc::SYS_listen, Vec::new());
        }
        NetworkMode::None | NetworkMode::Hosts | NetworkMode::Loopback => {
            for kind in not_stream {
                socket.push(rule(&[kind])?);
            }
            socket.push(rule(&[(0, Ne, unix), (2, Ne, 0), (2, Ne, number(libc::IPPROTO_TCP))])?);
            rules.insert(libc::SYS_bind, Vec::new());
            rules.insert(libc::SYS_listen, Vec::new());
            let options =
                ROUTING.map(|(level, name)| rule(&[(1, Eq, number(level)), (2, Eq, number(name))]));
            rules.insert(libc::SYS_setsockopt, options.into_iter().collect::<io::Result<_>>()?);
            // It connects without the call of that name.
            let fast_open = number(libc::MSG_FASTOPEN);
            let flags = [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)];
            for (call, argument) in flags {
                rules.insert(call, vec![rule(&[(argument, MaskedEq(fast_open), fast_open)])?]);
            }
        }
    }
    rules.insert(libc::SYS_socket, socket);
    Ok(rules)
}
