//! The part of a run that the functions of the standard library can access.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::error::Error;
use crate::lazy::Seq;
use crate::sequence::TooLarge;
use crate::types::{Definitions, TypeExpr};
use crate::value::Value;

/// Meters and caches of a run.
pub(crate) struct Context {
    /// Bytes that were allocated since the last memory measurement.
    pub(crate) since: usize,
    /// The maximum of these bytes before the next measurement.
    pub(crate) slack: usize,
    /// Live bytes at the last measurement.
    pub(crate) live: usize,
    pub(crate) limit: usize,
    /// The cost in steps of operations on large data, not yet taken from the run.
    pub(crate) cost: u64,
    /// The cost beyond the quota, which the run still has to pay.
    pub(crate) debt: u64,
    pub(crate) regexes: HashMap<String, Arc<regex::Regex>>,
    /// Counts generated names.
    pub(crate) fresh: u64,
    /// Whether a lazy sequence was ever created.
    pub(crate) has_lazy: bool,
    /// Streams whose last reference was dropped.
    pub(crate) closed: Arc<Mutex<Vec<u64>>>,
    pub(crate) types: Arc<Definitions>,
    pub(crate) type_cache: Vec<(Value, Arc<TypeExpr>)>,
}

/// The reason why an operation returned no value.
pub(crate) enum Fault {
    /// It failed.
    Error(Error),
    /// The operation must be repeated when the next item of this sequence is known.
    Force(Seq),
    /// The operation must be repeated when all items of this sequence are known.
    Realize(Seq),
    /// The operation must be repeated when this function of the prelude has run.
    Help(&'static str, Value),
    /// The operation needs this many bytes, and is repeated if they are available.
    Memory(usize),
}

impl From<Error> for Box<Fault> {
    fn from(error: Error) -> Self {
        Self::new(Fault::Error(error))
    }
}

impl From<TooLarge> for Error {
    fn from(large: TooLarge) -> Self {
        let limit = match large {
            TooLarge::Levels => "nesting",
            TooLarge::Parts => "parts",
        };
        Self::limit(limit, format!("a collection would be {large}"))
    }
}

impl From<TooLarge> for Box<Fault> {
    fn from(large: TooLarge) -> Self {
        Error::from(large).into()
    }
}

/// Returns an error of this kind, for `?` and `Err`.
#[cold]
pub(crate) fn fault(kind: &'static str, message: impl Into<String>) -> Box<Fault> {
    Error::new(kind, message).into()
}

impl Context {
    pub(crate) fn new(limit: usize, types: Arc<Definitions>) -> Self {
        Self {
            since: 0,
            slack: (limit / 8).max(1 << 20),
            live: 0,
            limit,
            cost: 0,
            debt: 0,
            regexes: HashMap::new(),
            fresh: 0,
            has_lazy: false,
            closed: Arc::default(),
            types,
            type_cache: Vec::new(),
        }
    }

    /// Records an allocation of this size.
    #[inline(always)]
    pub(crate) fn allocated(&mut self, bytes: usize) {
        self.since += bytes;
    }

    /// Checks whether an allocation of this size is allowed, before anything is changed.
    #[inline]
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), Box<Fault>> {
        if bytes > 4_096 && self.live.saturating_add(self.since).saturating_add(bytes) > self.limit {
            return Err(Box::new(Fault::Memory(bytes)));
        }
        self.since += bytes;
        self.cost += bytes as u64 / 256;
        Ok(())
    }

    /// Returns the remaining bytes, as known without a memory measurement.
    pub(crate) fn remaining(&self) -> usize {
        self.limit.saturating_sub(self.live.saturating_add(self.since))
    }

    /// Returns the fault of an allocation that needs more bytes than [`remaining`](Self::remaining) returns.
    #[cold]
    pub(crate) fn crowded(&self) -> Box<Fault> {
        Box::new(Fault::Memory(self.remaining().saturating_add(1)))
    }

    /// Returns the remaining steps after the last operations are paid.
    pub(crate) fn charge(&mut self, left: u64) -> u64 {
        let cost = std::mem::take(&mut self.cost);
        self.debt += cost.saturating_sub(left);
        left.saturating_sub(cost)
    }

    /// Returns the compiled expression.
    pub(crate) fn regex(&mut self, text: &str) -> Result<Arc<regex::Regex>, Box<Fault>> {
        /// The size of the cache. Further expressions are compiled at each use.
        const CACHED: usize = 64;
        if let Some(known) = self.regexes.get(text) {
            return Ok(known.clone());
        }
        self.cost += 100 + text.len() as u64;
        let built = regex::RegexBuilder::new(text).size_limit(1 << 20).dfa_size_limit(1 << 20).build();
        let regex = Arc::new(built.map_err(|error| {
            let message = error.to_string();
            let what = message.lines().last().unwrap_or_default().trim();
            let what = what.strip_prefix("error: ").unwrap_or(what);
            fault("invalid-argument", format!("`{text}` is no regular expression: {what}"))
        })?);
        if self.regexes.len() < CACHED {
            self.regexes.insert(text.to_owned(), regex.clone());
        }
        Ok(regex)
    }
}
