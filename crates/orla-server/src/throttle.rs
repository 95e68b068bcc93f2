//! Counts the failures of each peer, to limit failed authentications, so that tokens cannot be guessed by trying,
//! and reports of forbidden requests. Pure except for the clock, which is passed in.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// How long failures count.
const WINDOW: Duration = Duration::from_secs(60);
/// The maximum number of peers that are counted by themselves; the others share one count. Good tokens
/// are not affected by any count.
const MAX_PEERS: usize = 4096;
/// The key of the peers that share a count.
const SHARED: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// The bounds (`auth.limits`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthLimits {
    /// Failures that one peer may have in a minute: 20. 0 means any number.
    pub failures_per_minute: usize,
    /// Whether the limit applies to peers on this machine too: no by default.
    pub loopback: bool,
}

impl AuthLimits {
    /// Returns how many failures a peer may have in a minute; `None` means any number.
    pub(crate) fn bound(self, peer: IpAddr) -> Option<usize> {
        let is_exempt = peer.to_canonical().is_loopback() && !self.loopback;
        (self.failures_per_minute > 0 && !is_exempt).then_some(self.failures_per_minute)
    }
}

impl Default for AuthLimits {
    fn default() -> Self {
        Self { failures_per_minute: 20, loopback: false }
    }
}

/// How to treat a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The peer may try again.
    Tolerated,
    /// The peer has to wait.
    Limited {
        /// How long.
        wait: Duration,
        /// Whether this failure is the first beyond the limit.
        is_first: bool,
    },
}

/// The failures of the last minute.
#[derive(Debug, Default)]
pub(crate) struct Failures(HashMap<IpAddr, Count>);

#[derive(Debug)]
struct Count {
    since: Instant,
    failures: usize,
}

impl Failures {
    /// Counts a failure of this peer, which may have `most` in a minute.
    pub(crate) fn count(&mut self, peer: IpAddr, most: usize, now: Instant) -> Verdict {
        let mut peer = network(peer);
        if self.0.len() >= MAX_PEERS && !self.0.contains_key(&peer) {
            self.0.retain(|_, count| now.duration_since(count.since) < WINDOW);
            if self.0.len() >= MAX_PEERS {
                peer = SHARED;
            }
        }
        let count = self.0.entry(peer).or_insert(Count { since: now, failures: 0 });
        if now.duration_since(count.since) >= WINDOW {
            *count = Count { since: now, failures: 0 };
        }
        count.failures += 1;
        match count.failures.checked_sub(most) {
            None | Some(0) => Verdict::Tolerated,
            Some(beyond) => {
                let wait = WINDOW.saturating_sub(now.duration_since(count.since));
                Verdict::Limited { wait, is_first: beyond == 1 }
            }
        }
    }
}

/// Returns the identity of a peer: an IPv4 address, or an IPv6 network of 64 bits.
pub(crate) fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 3;

    fn is_limited(verdict: Verdict) -> bool {
        matches!(verdict, Verdict::Limited { .. })
    }

    #[test]
    fn a_peer_may_fail_so_often_in_a_minute_and_no_other_peer_is_affected() {
        let (mut failures, began) = (Failures::default(), Instant::now());
        let peer = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut fail =
            |who: &str, after| failures.count(peer(who), MOST, began + Duration::from_secs(after));
        for second in 0..3 {
            assert_eq!(fail("192.0.2.1", second), Verdict::Tolerated);
        }
        let wait = Duration::from_secs(57);
        assert_eq!(fail("192.0.2.1", 3), Verdict::Limited { wait, is_first: true });
        assert_eq!(fail("::ffff:192.0.2.1", 3), Verdict::Limited { wait, is_first: false });
        assert_eq!(fail("192.0.2.2", 3), Verdict::Tolerated);
        assert_eq!(fail("192.0.2.1", 60), Verdict::Tolerated);
    }

    #[test]
    fn a_network_of_ipv6_is_one_peer() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let limited = (0..4u16).map(|n| {
            let peer = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, n, 0, 0, 1);
            is_limited(failures.count(peer.into(), MOST, now))
        });
        assert_eq!(limited.collect::<Vec<_>>(), [false, false, false, true]);
    }

    #[test]
    fn this_machine_is_exempt_unless_it_is_counted_and_0_is_no_limit() {
        let bound = |failures_per_minute, loopback, peer: &str| {
            AuthLimits { failures_per_minute, loopback }.bound(peer.parse().unwrap())
        };
        assert_eq!(bound(3, false, "127.0.0.1"), None);
        assert_eq!(bound(3, false, "::ffff:127.0.0.1"), None);
        assert_eq!(bound(3, false, "192.0.2.1"), Some(3));
        assert_eq!(bound(3, true, "::1"), Some(3));
        assert_eq!(bound(0, true, "192.0.2.1"), None);
    }

    #[test]
    fn peers_beyond_the_limit_share_a_count() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let peers = (0..20_000u32).map(|n| IpAddr::from((0x0b00_0000 + n).to_be_bytes()));
        let limited = peers.filter(|peer| is_limited(failures.count(*peer, MOST, now))).count();
        assert!(limited > 10_000, "{limited}");
        assert!(failures.0.len() <= MAX_PEERS + 1);
    }
}
