//! Connects sockets on behalf of a confined program if the decision depends on the address:
//! `net:loopback` and `unix:PATH`.
//!
//! The first process of the compartment ([`answers`](super::answers)) takes the program's own socket
//! (pidfd_getfd(2)) and connects it to a copy of the address that it has checked.

use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use orla_sys::Notification;
use rustix::fs::OFlags;
use rustix::net::SocketAddrUnix;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::answers::{Errno, Named, own, read_exact_memory};
use super::{NetworkMode, proxy};

/// The maximum length of an address in bytes.
const MAX_ADDRESS: usize = 128;

/// The addresses that a program may connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Connects {
    pub(super) network: NetworkMode,
    /// Real paths of UNIX sockets.
    pub(super) unix: Vec<PathBuf>,
}

/// An address that a program has given.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Address {
    Internet(SocketAddr),
    /// A path, relative to the working directory of the program if not absolute.
    Unix(PathBuf),
    /// No address: the socket drops its peer.
    None,
}

impl Connects {
    /// Returns whether the kernel alone cannot decide.
    pub(super) fn need_answers(&self) -> bool {
        self.network == NetworkMode::Loopback || !self.unix.is_empty()
    }

    fn allows(&self, address: &SocketAddr) -> bool {
        match self.network {
            NetworkMode::None => false,
            NetworkMode::Hosts => *address == proxy::ADDRESS,
            NetworkMode::Loopback => address.ip().to_canonical().is_loopback(),
            NetworkMode::All => true,
        }
    }
}

/// A socket of the program, and the address to connect it to.
pub(super) struct Target {
    socket: OwnedFd,
    to: Endpoint,
}

enum Endpoint {
    Internet(SocketAddr),
    /// The socket file at an allowed path.
    Unix(OwnedFd),
    None,
}

impl Target {
    /// Returns whether connecting may block.
    pub(super) fn blocks(&self) -> bool {
        rustix::fs::fcntl_getfl(&self.socket).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
    }

    pub(super) fn connect(&self) -> Result<(), Errno> {
        let connected = match &self.to {
            Endpoint::Internet(address) => rustix::net::connect(&self.socket, address),
            Endpoint::Unix(file) => SocketAddrUnix::new(own(file))
                .and_then(|address| rustix::net::connect(&self.socket, &address)),
            Endpoint::None => rustix::net::connect_unspec(&self.socket),
        };
        connected.map_err(rustix::io::Errno::raw_os_error)
    }
}

impl Connects {
    /// Returns the target of a call, if it is allowed.
    ///
    /// # Errors
    /// `EACCES` if the program may not connect to it, or another number of the call.
    pub(super) fn target(&self, call: &Notification) -> Result<Target, Errno> {
        let [descriptor, pointer, length, ..] = call.arguments;
        // The kernel uses only the lower half of both numbers.
        let (descriptor, length) = (descriptor as u32 as i32, length as u32 as usize);
        if descriptor < 0 {
            return Err(libc::EBADF);
        }
        if !(2..=MAX_ADDRESS).contains(&length) {
            return Err(libc::EINVAL);
        }
        let mut bytes = [0; MAX_ADDRESS];
        let bytes = &mut bytes[..length];
        read_exact_memory(call.thread, pointer, bytes)?;
        let to = match parse(bytes).ok_or(libc::EACCES)? {
            Address::Internet(address) if self.allows(&address) => Endpoint::Internet(address),
            Address::None if self.network == NetworkMode::All => Endpoint::None,
            Address::Unix(path) => Endpoint::Unix(self.open(call.thread, &path)?),
            Address::Internet(_) | Address::None => return Err(libc::EACCES),
        };
        let socket = take(call.thread, descriptor).map_err(rustix::io::Errno::raw_os_error)?;
        Ok(Target { socket, to })
    }

    /// Opens the file at a path, if the path is allowed.
    fn open(&self, thread: i32, path: &Path) -> Result<OwnedFd, Errno> {
        let thread = Named(thread);
        let opened = thread.directory().and_then(|from| thread.open(&from, path, OFlags::empty()));
        let file = opened.map_err(|_| libc::EACCES)?;
        let real = fs::read_link(own(&file)).map_err(|_| libc::EACCES)?;
        if self.unix.contains(&real) { Ok(file) } else { Err(libc::EACCES) }
    }
}

/// Copies a descriptor of a thread's process.
fn take(thread: i32, descriptor: i32) -> rustix::io::Result<OwnedFd> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    let process = process.and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH)?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    pidfd_getfd(process, descriptor, PidfdGetfdFlags::empty())
}

/// Parses an address in the form that `connect` takes.
fn parse(bytes: &[u8]) -> Option<Address> {
    let (family, rest) = bytes.split_first_chunk::<2>()?;
    match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_UNSPEC => Some(Address::None),
        libc::AF_INET => {
            let (port, rest) = rest.split_first_chunk()?;
            let address: [u8; 4] = *rest.first_chunk()?;
            let address = IpAddr::V4(Ipv4Addr::from(address));
            Some(Address::Internet(SocketAddr::new(address, u16::from_be_bytes(*port))))
        }
        libc::AF_INET6 => {
            let (port, rest) = rest.split_first_chunk()?;
            let (address, rest) = rest.get(4..)?.split_first_chunk::<16>()?;
            let scope = rest.first_chunk().copied().map_or(0, u32::from_ne_bytes);
            let address = Ipv6Addr::from(*address);
            let address = SocketAddrV6::new(address, u16::from_be_bytes(*port), 0, scope);
            Some(Address::Internet(address.into()))
        }
        libc::AF_UNIX => {
            let path = rest.split(|byte| *byte == 0).next()?;
            (!path.is_empty()).then(|| Address::Unix(OsStr::from_bytes(path).into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(family: i32, rest: &[u8]) -> Vec<u8> {
        [&u16::try_from(family).unwrap().to_ne_bytes()[..], rest].concat()
    }

    #[test]
    fn addresses_are_read_as_the_kernel_reads_them() {
        let internet = |text: &str| Some(Address::Internet(text.parse().unwrap()));
        assert_eq!(parse(&bytes(libc::AF_INET, &[0, 80, 127, 0, 0, 1])), internet("127.0.0.1:80"));
        let v6 = [&[0, 80, 9, 9, 9, 9][..], &[0; 15], &[1]].concat();
        assert_eq!(parse(&bytes(libc::AF_INET6, &v6)), internet("[::1]:80"));
        assert_eq!(parse(&bytes(libc::AF_UNIX, b"/run/x\0y")), Some(Address::Unix("/run/x".into())));
        // Abstract names, truncated addresses, and other families.
        for bytes in [
            bytes(libc::AF_UNIX, b"\0x"),
            bytes(libc::AF_INET, &[0, 80, 127, 0]),
            bytes(libc::AF_NETLINK, &[0; 10]),
            vec![2],
        ] {
            assert_eq!(parse(&bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn each_access_to_the_network_has_its_addresses() {
        let allows =
            |network, text: &str| Connects { network, unix: Vec::new() }.allows(&text.parse().unwrap());
        for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(
                allows(NetworkMode::Loopback, address) && !allows(NetworkMode::None, address),
                "{address}"
            );
        }
        for address in
            ["10.0.0.1:1", "0.0.0.0:1", "[::]:1", "[::ffff:10.0.0.1]:1", "[fe80::1]:1", "128.0.0.1:1"]
        {
            assert!(
                !allows(NetworkMode::Loopback, address) && allows(NetworkMode::All, address),
                "{address}"
            );
        }
        assert!(
            allows(NetworkMode::Hosts, "127.0.0.1:3128") && !allows(NetworkMode::Hosts, "127.0.0.1:80")
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(family in 0..20_u16, rest in proptest::collection::vec(any::<u8>(), 0..130)) {
            let _ = parse(&rest);
            let _ = parse(&bytes(i32::from(family), &rest));
        }
    }
}
