//! The declared hosts and ports. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use orla_confine::{Network, Reach};

/// A host in a declaration or a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name, in lower case and without a dot at its end.
    Name(String),
    /// An address. IPv4 addresses in IPv6 (`::ffff:192.0.2.1`) are IPv4 addresses.
    Address(IpAddr),
}

impl Host {
    /// Parses a host: a name, an IPv4 address, or an IPv6 address with or without brackets. `None` if it
    /// is not a host. A name consists of ASCII letters, digits, `-`, `_` and `.`; other names are
    /// written in their ASCII form.
    pub fn parse(text: &str) -> Option<Self> {
        let address = |address: IpAddr| Self::Address(address.to_canonical());
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']')?;
            return inner.parse::<Ipv6Addr>().ok().map(|inner| address(inner.into()));
        }
        if let Ok(found) = text.parse() {
            return Some(address(found));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_label = |label: &str| {
            !label.is_empty()
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        let is_name = name.len() <= 253 && name.split('.').all(is_label);
        is_name.then(|| Self::Name(name.to_ascii_lowercase()))
    }

    /// Returns the permission that this host and port need.
    pub fn permission(&self, port: u16) -> String {
        format!("net:{self}:{port}")
    }

    fn is_localhost(&self) -> bool {
        matches!(self, Self::Name(name) if name == LOCALHOST)
    }
}

const LOCALHOST: &str = "localhost";

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// The hosts and ports that a profile declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    hosts: Vec<(Host, Option<u16>)>,
    /// Whether the loopback addresses of this machine are allowed, with any port.
    loopback: bool,
}

impl Allowed {
    /// Returns the hosts and ports that a profile declares.
    ///
    /// # Errors
    /// The hosts that cannot be enforced exactly, a sentence for each.
    pub fn of(network: &Network) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let mut hosts = Vec::new();
        for (text, port) in &network.hosts {
            match Host::parse(text) {
                Some(host) => hosts.push((host, *port)),
                None => problems.push(format!(
                    "net:{text}: a host is one name or one address; name each host, or use `net`"
                )),
            }
        }
        if problems.is_empty() { Ok(Self { hosts, loopback: network.loopback }) } else { Err(problems) }
    }

    /// Returns whether a host and port are declared.
    pub fn names(&self, host: &Host, port: u16) -> bool {
        let is_declared =
            |(known, on): &(Host, Option<u16>)| known == host && on.is_none_or(|on| on == port);
        let is_loopback = match host {
            Host::Name(_) => host.is_localhost(),
            Host::Address(address) => address.is_loopback(),
        };
        self.hosts.iter().any(is_declared) || self.loopback && is_loopback
    }

    /// Returns whether a declared host may resolve to an address: to a declared address, to a public
    /// one, and `localhost` to this machine.
    pub fn leads(&self, host: &Host, address: IpAddr, port: u16) -> bool {
        let address = address.to_canonical();
        match host {
            Host::Address(declared) => *declared == address,
            Host::Name(_) => {
                self.names(&Host::Address(address), port)
                    || Reach::of(address) == Reach::Public
                    || host.is_localhost() && address.is_loopback()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn allowed(hosts: &[(&str, Option<u16>)], loopback: bool) -> Allowed {
        let hosts = hosts.iter().map(|(host, port)| ((*host).to_owned(), *port)).collect();
        Allowed::of(&Network { all: false, loopback, hosts }).unwrap()
    }

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    #[test]
    fn a_host_is_read_in_every_way_to_write_it() {
        assert_eq!(host("API.Example.com."), Host::Name("api.example.com".to_owned()));
        assert_eq!(host("[::1]"), host("::1"));
        assert_eq!(host("[::ffff:127.0.0.1]"), host("127.0.0.1"));
        assert_eq!(host("0:0:0:0:0:0:0:1").to_string(), "[::1]");
        for text in [
            "",
            ".",
            "..",
            "a..b",
            "*.example.com",
            "a b",
            "[::1",
            "[a]",
            "fe80::1%eth0",
            "exämple.com",
            "a\0",
            "a@b",
        ] {
            assert_eq!(Host::parse(text), None, "{text}");
        }
        // Texts that the resolver treats as addresses are names here, and a declared address does not
        // cover them.
        for text in ["2130706433", "0x7f.1", "127.1", "0177.0.0.1"] {
            assert!(matches!(host(text), Host::Name(_)), "{text}");
        }
    }

    #[test]
    fn only_what_is_declared_is_named() {
        let allowed = allowed(
            &[("api.example.com", Some(443)), ("other.example", None), ("10.0.0.5", Some(80))],
            false,
        );
        for (text, port, is_named) in [
            ("api.example.com", 443, true),
            ("API.example.com.", 443, true),
            ("api.example.com", 80, false),
            ("sub.api.example.com", 443, false),
            ("example.com", 443, false),
            ("other.example", 9, true),
            ("10.0.0.5", 80, true),
            ("::ffff:10.0.0.5", 80, true),
            ("10.0.0.5", 81, false),
            ("127.0.0.1", 443, false),
            ("localhost", 443, false),
        ] {
            assert_eq!(allowed.names(&host(text), port), is_named, "{text}:{port}");
        }
    }

    #[test]
    fn a_name_leads_to_public_addresses_and_to_declared_ones() {
        let allowed = allowed(
            &[("api.example.com", Some(443)), ("10.0.0.5", Some(443)), ("localhost", None)],
            false,
        );
        let leads =
            |name: &str, address: &str| allowed.leads(&host(name), address.parse().unwrap(), 443);
        assert!(leads("api.example.com", "8.8.8.8") && leads("api.example.com", "10.0.0.5"));
        for address in [
            "10.0.0.6",
            "127.0.0.1",
            "::1",
            "169.254.169.254",
            "::ffff:10.0.0.6",
            "64:ff9b::a00:6",
            "0.0.0.0",
            "224.0.0.1",
            "fe80::1",
        ] {
            assert!(!leads("api.example.com", address), "{address}");
        }
        assert!(
            leads("localhost", "127.0.0.1")
                && leads("localhost", "::1")
                && !leads("localhost", "10.0.0.6")
        );
        assert!(!leads("10.0.0.5", "8.8.8.8"));
    }

    #[test]
    fn loopback_is_every_port_of_this_machine_alone() {
        let allowed = allowed(&[], true);
        for (text, is_named) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("localhost", true),
            ("10.0.0.1", false),
            ("0.0.0.0", false),
        ] {
            assert_eq!(allowed.names(&host(text), 1234), is_named, "{text}");
        }
    }

    #[test]
    fn a_pattern_is_not_enforced() {
        let network =
            Network { hosts: [("*.example.com".to_owned(), None)].into(), ..Network::default() };
        assert!(Allowed::of(&network).unwrap_err()[0].starts_with("net:*.example.com: "));
    }

    proptest! {
        /// A parsed host is displayed in a form that parses as the same host.
        #[test]
        fn a_host_is_read_back(text in "\\PC{0,40}|[a-zA-Z0-9.:\\[\\]-]{0,30}") {
            if let Some(host) = Host::parse(&text) {
                prop_assert_eq!(Host::parse(&host.to_string()), Some(host));
            }
        }

        /// Only the address itself names an address, regardless of other declarations.
        #[test]
        fn an_address_is_declared_only_literally(address: u32, port: u16, declared: u32, declared_port: Option<u16>) {
            let text = std::net::Ipv4Addr::from(declared).to_string();
            let allowed = allowed(&[(text.as_str(), declared_port), ("api.example.com", None)], false);
            let named = allowed.names(&Host::Address(IpAddr::V4(address.into())), port);
            prop_assert_eq!(named, address == declared && declared_port.is_none_or(|known| known == port));
        }

        /// A name leads only to public addresses.
        #[test]
        fn a_name_leads_nowhere_private(address: u128, v4: u32, port: u16) {
            let allowed = allowed(&[("api.example.com", None)], false);
            for address in [IpAddr::V6(address.into()), IpAddr::V4(v4.into())] {
                let leads = allowed.leads(&host("api.example.com"), address, port);
                prop_assert_eq!(leads, Reach::of(address.to_canonical()) == Reach::Public);
            }
        }
    }
}
