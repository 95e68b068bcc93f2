//! The stored record of one count.

use std::collections::BTreeMap;
use std::time::Duration;

use orla_marketplace::{Claim, Count};
use serde::{Deserialize, Serialize};

/// The largest record that is read, in bytes.
const MAX_BYTES: usize = 256 << 10;

/// One count, with the places that are taken, by the life of the node that has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Identifies the rule.
    pub(super) rule: String,
    /// The caller, group or scope of the count.
    pub(super) caller: String,
    /// The amount missing from the bucket, in the units of [`Count::spent`]. It is a text, as it may
    /// exceed JSON numbers.
    spent: String,
    /// When, in nanoseconds since 1970 by the clock of NATS.
    at: u64,
    /// When the bucket is full.
    full_at: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) held: BTreeMap<String, usize>,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Tally {
    /// An unused count.
    pub(super) fn of(claim: &Claim) -> Self {
        Self {
            rule: claim.rule().id().to_owned(),
            caller: claim.caller(),
            spent: "0".to_owned(),
            ..Self::default()
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    ///
    /// Returns an error if it is none.
    pub(super) fn read(value: &[u8]) -> Result<Self, String> {
        if value.len() > MAX_BYTES {
            return Err(format!("it has {} bytes", value.len()));
        }
        let tally: Self = serde_json::from_slice(value).map_err(|err| err.to_string())?;
        tally.spent.parse::<u128>().map_err(|err| err.to_string())?;
        Ok(tally)
    }

    pub(super) fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn count(&self) -> Count {
        let running = self.held.values().fold(0_usize, |all, held| all.saturating_add(*held));
        // Only digits were read.
        let spent = self.spent.parse().unwrap_or(u128::MAX);
        Count::new(spent, Duration::from_nanos(self.at), running)
    }

    /// Adds a call of this life of a node.
    pub(super) fn add(&mut self, claim: &Claim, life: &str, now: Duration) {
        let count = claim.added_to(self.count(), now);
        let (spent, at) = count.spent();
        (self.spent, self.at) = (spent.to_string(), nanos(at));
        self.full_at = nanos(claim.full_at(&count));
        if claim.bounds_running() {
            *self.held.entry(life.to_owned()).or_default() += 1;
        }
    }

    /// Returns whether the record can be removed without loss.
    pub(super) fn is_unused(&self, now: Duration) -> bool {
        self.held.is_empty() && self.full_at <= nanos(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_round_trip() {
        let held = BTreeMap::from([("a".to_owned(), 2)]);
        let tally =
            Tally { rule: "r".to_owned(), spent: u128::MAX.to_string(), held, ..Tally::default() };
        assert_eq!(Tally::read(&tally.write()), Ok(tally));
        for bad in ["", "{}", "7", r#"{"rule":"","caller":"","spent":"-1","at":0,"full_at":0}"#] {
            assert!(Tally::read(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(Tally::read(&vec![b' '; MAX_BYTES + 1]).is_err());
    }

    proptest! {
        #[test]
        fn any_record_can_be_read(text in r#"[\{\}\[\]",:a-z0-9 ]{0,80}"#) {
            let _ = Tally::read(text.as_bytes());
        }
    }
}
