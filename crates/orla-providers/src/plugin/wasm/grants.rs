//! Translates permissions to the access of a component.
//!
//! - `fs:read:DIRECTORY` and `fs:write:DIRECTORY`: everything below, under the same path. Writing
//!   includes reading. A relative path starts at the configuration's directory.
//! - `net:HOST` and `net:HOST:PORT`: TCP connections to the addresses that the host has when an instance
//!   is created; `net` allows any host. These permissions also allow name lookups. `net:loopback` is
//!   127.0.0.1 and ::1.
//!
//! Other permissions, such as `exec:…`, have no effect on a component.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use orla_marketplace::{ConfinedBy, SandboxGrants, SandboxLevel, SandboxStatus};

use wasmtime_wasi::sockets::SocketAddrUse;
use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxBuilder};

/// One granted access.
#[derive(Debug, PartialEq, Eq)]
enum Grant<'a> {
    Read(&'a str),
    Write(&'a str),
    AnyHost,
    Host(&'a str, Option<u16>),
    Loopback,
    Nothing,
}

/// Creates the WASI context for an instance with these permissions. Relative paths start at `base`.
///
/// # Errors
/// A granted path or host does not exist, or cannot be granted to a component.
pub(super) async fn wasi(permissions: &[String], base: &Path) -> Result<WasiCtx, String> {
    let mut wasi = WasiCtxBuilder::new();
    let (mut addresses, mut any) = (Vec::new(), false);
    for permission in permissions {
        let cannot = |problem: String| format!("{permission} cannot be granted to it: {problem}");
        match read(permission).map_err(|problem| cannot(problem.to_owned()))? {
            Grant::Read(path) => {
                wasi.preopened_dir(base.join(path), path, FsPerms::ReadOnly)
                    .map_err(|err| cannot(err.to_string()))?;
            }
            Grant::Write(path) => {
                wasi.preopened_dir(base.join(path), path, FsPerms::ReadWrite)
                    .map_err(|err| cannot(err.to_string()))?;
            }
            Grant::AnyHost => any = true,
            Grant::Host(host, port) => {
                let found = tokio::net::lookup_host((host, 0)).await;
                let found = found.map_err(|err| cannot(err.to_string()))?;
                addresses.extend(found.map(|address| (address.ip(), port)));
            }
            Grant::Loopback => {
                let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
                addresses.extend(loopback.map(|address: IpAddr| (address, None)));
            }
            Grant::Nothing => {}
        }
    }
    if any || !addresses.is_empty() {
        wasi.allow_tcp(true).allow_ip_name_lookup(true);
        wasi.socket_addr_check(move |address, how| {
            let is_granted = may(any, &addresses, address, how);
            Box::pin(async move { is_granted })
        });
    }
    Ok(wasi.build())
}

/// Returns the status of these permissions in the same form as for processes.
pub(super) fn status(permissions: &[String], base: &Path) -> SandboxStatus {
    let mut grants = SandboxGrants::default();
    let mut missing = Vec::new();
    let place = |path: &str| base.join(path).display().to_string();
    for permission in permissions {
        match read(permission) {
            Ok(Grant::Read(path)) => grants.read.push(place(path)),
            Ok(Grant::Write(path)) => grants.write.push(place(path)),
            Ok(Grant::AnyHost) => grants.network.push("net".to_owned()),
            Ok(Grant::Loopback | Grant::Host(..)) => grants.network.push(permission.clone()),
            Ok(Grant::Nothing) => {}
            Err(problem) => missing.push(format!("{permission} cannot be granted to it: {problem}")),
        }
    }
    let mut status = SandboxStatus::unconfined();
    status.level = if missing.is_empty() { SandboxLevel::Enforced } else { SandboxLevel::Unavailable };
    status.by = ConfinedBy::WebAssembly;
    status.permissions = permissions.to_vec();
    status.missing = missing;
    status.grants = Some(Arc::new(grants));
    status
}

/// Returns whether an address may be used in this way. No permission lets a component listen.
fn may(any: bool, addresses: &[(IpAddr, Option<u16>)], address: SocketAddr, how: SocketAddrUse) -> bool {
    let is_there = |(ip, port): &(IpAddr, Option<u16>)| {
        *ip == address.ip() && port.is_none_or(|port| port == address.port())
    };
    match how {
        SocketAddrUse::TcpConnect => any || addresses.iter().any(is_there),
        // A connection binds its local address.
        SocketAddrUse::TcpBind => address.ip().is_unspecified(),
        _ => false,
    }
}

fn read(permission: &str) -> Result<Grant<'_>, &'static str> {
    if let Some(path) = permission.strip_prefix("fs:read:") {
        return no_pattern(path).map(Grant::Read);
    }
    if let Some(path) = permission.strip_prefix("fs:write:") {
        return no_pattern(path).map(Grant::Write);
    }
    match permission.strip_prefix("net:") {
        Some("*") => Ok(Grant::AnyHost),
        Some("loopback") => Ok(Grant::Loopback),
        Some(place) => {
            let place = no_pattern(place)?;
            let (host, port) = match place.rsplit_once(':') {
                Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                    (host, Some(port.parse().map_err(|_| "its port is not a number from 0 to 65535")?))
                }
                _ => (place, None),
            };
            Ok(Grant::Host(host.trim_start_matches('[').trim_end_matches(']'), port))
        }
        None if permission == "net" => Ok(Grant::AnyHost),
        None if matches!(permission, "*" | "fs" | "fs:read" | "fs:write") => {
            Err("name the directories and hosts")
        }
        None => Ok(Grant::Nothing),
    }
}

fn no_pattern(text: &str) -> Result<&str, &'static str> {
    match text {
        "" => Err("it names nothing"),
        _ if text.contains('*') => Err("it is a pattern; name the directories and hosts"),
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_read() {
        for (permission, grant) in [
            ("fs:read:/srv", Ok(Grant::Read("/srv"))),
            ("fs:write:./x", Ok(Grant::Write("./x"))),
            ("net", Ok(Grant::AnyHost)),
            ("net:*", Ok(Grant::AnyHost)),
            ("net:loopback", Ok(Grant::Loopback)),
            ("net:example.com", Ok(Grant::Host("example.com", None))),
            ("net:example.com:443", Ok(Grant::Host("example.com", Some(443)))),
            ("net:[::1]:80", Ok(Grant::Host("::1", Some(80)))),
            ("net:::1", Ok(Grant::Host("::1", None))),
            ("net:*.example.com", Err("it is a pattern; name the directories and hosts")),
            ("net:a:b", Err("its port is not a number from 0 to 65535")),
            ("fs:read:", Err("it names nothing")),
            ("fs:read", Err("name the directories and hosts")),
            ("*", Err("name the directories and hosts")),
            ("exec:ls", Ok(Grant::Nothing)),
        ] {
            assert_eq!(read(permission), grant, "{permission}");
        }
    }

    #[test]
    fn connections_go_to_what_is_granted_alone() {
        let granted = [(IpAddr::from([127, 0, 0, 1]), Some(80)), (IpAddr::from([10, 0, 0, 1]), None)];
        let at = |text: &str| text.parse().unwrap();
        for (address, how, is_granted) in [
            ("127.0.0.1:80", SocketAddrUse::TcpConnect, true),
            ("127.0.0.1:81", SocketAddrUse::TcpConnect, false),
            ("10.0.0.1:9", SocketAddrUse::TcpConnect, true),
            ("10.0.0.2:9", SocketAddrUse::TcpConnect, false),
            ("0.0.0.0:0", SocketAddrUse::TcpBind, true),
            ("127.0.0.1:80", SocketAddrUse::TcpBind, false),
            ("127.0.0.1:80", SocketAddrUse::UdpBind, false),
        ] {
            assert_eq!(may(false, &granted, at(address), how), is_granted, "{address}");
        }
        assert!(may(true, &[], at("10.0.0.2:9"), SocketAddrUse::TcpConnect));
        assert!(!may(true, &[], at("0.0.0.0:80"), SocketAddrUse::TcpListen));
        assert!(!may(true, &[], at("0.0.0.0:0"), SocketAddrUse::UdpBind));
    }

    #[test]
    fn grants_are_shown_as_for_processes() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let shown = status(&words(&["fs:read:./a", "net:loopback", "exec:ls"]), Path::new("/srv"));
        assert_eq!((shown.level, shown.by), (SandboxLevel::Enforced, ConfinedBy::WebAssembly));
        let grants = shown.grants.unwrap();
        assert_eq!(
            (&*grants.read, &*grants.network),
            (&*words(&["/srv/./a"]), &*words(&["net:loopback"]))
        );
        assert!(grants.run.is_empty());
        let shown = status(&words(&["fs:read"]), Path::new("/srv"));
        assert_eq!(shown.level, SandboxLevel::Unavailable);
        assert_eq!(shown.missing, ["fs:read cannot be granted to it: name the directories and hosts"]);
    }
}
