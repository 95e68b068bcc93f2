//! The system calls that a filter refuses, in general or with certain arguments.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// The system calls that a filter refuses. A later refusal never takes back an earlier one.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// The rules of each call. A call is refused if one of its rules matches. A call without rules is
    /// always refused.
    calls: BTreeMap<i64, Vec<SeccompRule>>,
}

/// A condition on an argument: its index, and how it compares to a value.
pub(super) type Condition = (u8, SeccompCmpOp, u64);

impl Refusals {
    /// Refuses all of these calls.
    pub(super) fn of(calls: impl IntoIterator<Item = i64>) -> Self {
        let mut refusals = Self::default();
        calls.into_iter().for_each(|call| refusals.refuse(call));
        refusals
    }

    /// Refuses a call with any arguments.
    pub(super) fn refuse(&mut self, call: i64) {
        self.calls.insert(call, Vec::new());
    }

    /// Refuses a call if its arguments meet all of these conditions. The kernel ignores the upper half of all
    /// arguments that are compared.
    pub(super) fn refuse_if(&mut self, call: i64, conditions: &[Condition]) -> io::Result<()> {
        let conditions = conditions.iter().map(|(argument, operator, value)| {
            SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, operator.clone(), *value)
        });
        let conditions: Result<Vec<_>, _> = conditions.collect();
        let rule = SeccompRule::new(conditions.map_err(io::Error::other)?).map_err(io::Error::other)?;
        match self.calls.entry(call) {
            Entry::Vacant(place) => drop(place.insert(vec![rule])),
            Entry::Occupied(known) if known.get().is_empty() => {}
            Entry::Occupied(mut known) => known.get_mut().push(rule),
        }
        Ok(())
    }

    /// Compiles a filter that answers refused calls with this error.
    pub(super) fn compile(self, errno: i32) -> io::Result<BpfProgram> {
        let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
        let refused = SeccompAction::Errno(errno.unsigned_abs());
        let filter = SeccompFilter::new(self.calls, SeccompAction::Allow, refused, arch);
        BpfProgram::try_from(filter.map_err(io::Error::other)?).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_apply_in_any_order() {
        let rule = |value: u64| [(0, SeccompCmpOp::Eq, value)];
        let whole = Refusals::of([1]);
        let mut before = Refusals::of([1]);
        before.refuse_if(1, &rule(7)).unwrap();
        let mut after = Refusals::default();
        after.refuse_if(1, &rule(7)).unwrap();
        after.refuse(1);
        assert_eq!(before.calls, whole.calls);
        assert_eq!(after.calls, whole.calls);
        let mut both = Refusals::default();
        both.refuse_if(1, &rule(7)).unwrap();
        both.refuse_if(1, &rule(8)).unwrap();
        assert_eq!(both.calls[&1].len(), 2);
    }
}
