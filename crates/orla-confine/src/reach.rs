//! The reach of an address: which machines can connect to it. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The set of machines that can reach an address, from the largest to the smallest. A redirect never leads to a
/// smaller set than the one that chose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// The internet.
    Public,
    /// A private network, or a range reserved for documentation, benchmarks and protocols.
    Private,
    /// This machine.
    Loopback,
    /// One link, or one virtual machine: link-local addresses and the metadata services of clouds, which hand out
    /// credentials. Also multicast and broadcast, which never answer.
    LinkLocal,
}

impl Reach {
    /// All values, from the largest set to the smallest.
    pub const ALL: [Self; 4] = [Self::Public, Self::Private, Self::Loopback, Self::LinkLocal];

    /// Returns the reach of an address.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => Self::of_v6(address),
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        match address.octets() {
            [0 | 127, ..] => Self::Loopback,
            [169, 254, ..] | [224..=255, ..] => Self::LinkLocal,
            // Metadata services of Alibaba Cloud, Oracle Cloud and Azure.
            [100, 100, 100, 200] | [192, 0, 0, 192] | [168, 63, 129, 16] => Self::LinkLocal,
            [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Self::Private,
            // Carrier networks, protocol assignments, documentation, benchmarks.
            [100, 64..=127, ..]
            | [192, 0, 0 | 2, _]
            | [198, 18..=19, ..]
            | [198, 51, 100, _]
            | [203, 0, 113, _] => Self::Private,
            _ => Self::Public,
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        match address.segments() {
            [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Self::Loopback,
            // An IPv4 address, directly, behind NAT64, or in 6to4.
            [0, 0, 0, 0, 0, 0xffff | 0, high, low]
            | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
            | [0x2002, high, low, ..] => {
                Self::of_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
            }
            [0xfe80..=0xfebf | 0xff00..=0xffff, ..] => Self::LinkLocal,
            // The metadata service of Amazon's cloud.
            [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] => Self::LinkLocal,
            // Only global unicast is public, except for documentation, Teredo and benchmarks.
            [0x2001, 0x0db8 | 0x0000 | 0x0002, ..] | [0x3fff, ..] => Self::Private,
            [0x2000..=0x3fff, ..] => Self::Public,
            _ => Self::Private,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_classified_by_who_can_reach_them() {
        let public =
            ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8"].as_slice();
        let private = &[
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "198.18.0.1",
            "fc00::1",
            "fd12::1",
            "2001:db8::1",
            "::ffff:10.0.0.1",
        ];
        let loopback = &[
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "2002:7f00:1::",
        ];
        let link_local = &[
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "fe80::1",
            "ff02::1",
            "224.0.0.1",
            "255.255.255.255",
            "100.100.100.200",
            "fd00:ec2::254",
        ];
        for (reach, addresses) in Reach::ALL.into_iter().zip([public, private, loopback, link_local]) {
            for address in addresses {
                assert_eq!(Reach::of(address.parse().unwrap()), reach, "{address}");
            }
        }
    }
}
