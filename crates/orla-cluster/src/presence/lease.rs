//! The lease of a node, which the node renews every few seconds.

use serde::{Deserialize, Serialize};

/// The longest name of a cluster or node, in bytes.
pub const MAX_NAME: usize = 48;
/// The version of all messages between nodes.
pub(crate) const VERSION: u32 = 1;
/// The longest lease, in bytes.
const MAX_BYTES: usize = 4096;
/// The maximum number of parts of an offer.
const MAX_PARTS: u32 = 4096;

/// The state that a node publishes while it is present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) v: u32,
    pub(crate) node: String,
    /// The identifier of this process: random digits, distinct from other processes with its name. Calls
    /// address the instance, not the name.
    pub(crate) instance: String,
    /// When it joined, as a revision of the bucket of offers. Of two instances with one name, the one with the greater
    /// epoch is the node.
    pub(crate) epoch: u64,
    /// The digest of its whole offer, which finds it.
    pub(crate) offer: String,
    /// When it made the offer, as a revision of the bucket of offers.
    pub(crate) since: u64,
    /// The number of parts that the offer is kept in.
    pub(crate) parts: u32,
    /// Calls that run there.
    pub(crate) running: usize,
    /// Calls that may run there at once.
    pub(crate) limit: usize,
    /// Whether it takes no more calls of other nodes.
    #[serde(default)]
    pub(crate) draining: bool,
    /// For how many milliseconds its copy of the store has not kept up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stuck_ms: Option<u64>,
}

impl Lease {
    /// Reads a lease.
    ///
    /// # Errors
    ///
    /// Returns what is wrong with it, for the log.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > MAX_BYTES {
            return Err(format!("a lease has {} bytes: at most {MAX_BYTES} are allowed", bytes.len()));
        }
        let lease: Self = serde_json::from_slice(bytes).map_err(|err| format!("no lease: {err}"))?;
        if lease.v != VERSION {
            return Err(format!("a lease of version {}: this is version {VERSION}", lease.v));
        }
        if !is_name(&lease.node) {
            return Err("a lease has no usable name of a node".to_owned());
        }
        if !is_instance(&lease.instance) {
            return Err(format!("the lease of node {} names no usable instance", lease.node));
        }
        let is_digest = lease.offer.len() == 64 && lease.offer.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_digest || lease.parts > MAX_PARTS {
            return Err(format!("the lease of node {} names no usable offer", lease.node));
        }
        Ok(lease)
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        // Numbers and texts can always be written.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Returns whether a text can be the name of a cluster or node: letters, digits, `_` and `-`.
pub fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(is_plain)
}

/// Returns whether a text can be the identifier of an instance.
pub(crate) fn is_instance(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lease() -> Lease {
        Lease {
            v: VERSION,
            node: "alpha".to_owned(),
            instance: "0123456789abcdef".to_owned(),
            epoch: 3,
            offer: "0a".repeat(32),
            since: 7,
            parts: 1,
            running: 2,
            limit: 64,
            draining: false,
            stuck_ms: None,
        }
    }

    #[test]
    fn leases_round_trip() {
        assert_eq!(Lease::read(&lease().write()), Ok(lease()));
    }

    #[test]
    fn invalid_leases_are_refused_with_a_reason() {
        let with = |change: fn(&mut Lease)| {
            let mut lease = lease();
            change(&mut lease);
            Lease::read(&lease.write()).unwrap_err()
        };
        assert!(with(|lease| lease.v = 2).contains("version 2"));
        assert!(with(|lease| lease.node = "a.b".to_owned()).contains("name"));
        assert!(with(|lease| lease.instance = "*".to_owned()).contains("alpha"));
        assert!(with(|lease| lease.offer = "../x".to_owned()).contains("alpha"));
        assert!(with(|lease| lease.parts = u32::MAX).contains("alpha"));
        assert!(with(|lease| lease.node = "a".repeat(5000)).contains("bytes"));
        assert!(Lease::read(b"7").is_err());
    }

    proptest! {
        #[test]
        fn any_lease_can_be_read(text in r#"[\{\}\[\]",:a-z0-9 ]{0,80}"#) {
            let _ = Lease::read(text.as_bytes());
        }
    }
}
