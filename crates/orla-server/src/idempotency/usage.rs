//! The stored amount, in total and for each caller. No I/O.

use std::collections::HashMap;

use tokio::time::Instant;

/// The maximum number of keys of all callers.
pub(super) const MAX_KEYS: usize = 100_000;
/// The maximum number of bytes of all stored answers.
pub(super) const MAX_BYTES: usize = 256 << 20;
/// One caller may use one part in this many of both limits: a quarter.
pub(super) const SHARE: usize = 4;

/// The stored amount.
#[derive(Default)]
pub(super) struct Usage {
    pub(super) all: Amount,
    pub(super) of_caller: HashMap<Box<str>, Amount>,
    /// The time of the last count.
    pub(super) counted: Option<Instant>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Amount {
    pub(super) keys: usize,
    pub(super) bytes: usize,
}

impl Usage {
    pub(super) fn has_room(&self, owner: &str, more: Amount) -> bool {
        let own = self.of_caller.get(owner).copied().unwrap_or_default();
        let fits = |amount: Amount, part: usize| {
            amount.keys + more.keys <= MAX_KEYS / part && amount.bytes + more.bytes <= MAX_BYTES / part
        };
        fits(self.all, 1) && fits(own, SHARE)
    }

    pub(super) fn add(&mut self, owner: &str, more: Amount) {
        let own = self.of_caller.entry(owner.into()).or_default();
        for amount in [own, &mut self.all] {
            amount.keys += more.keys;
            amount.bytes += more.bytes;
        }
    }

    pub(super) fn remove(&mut self, owner: &str, less: Amount) {
        let Some(own) = self.of_caller.get_mut(owner) else { return };
        for amount in [own, &mut self.all] {
            amount.keys = amount.keys.saturating_sub(less.keys);
            amount.bytes = amount.bytes.saturating_sub(less.bytes);
        }
        self.of_caller.retain(|_, amount| amount.keys > 0);
    }
}
