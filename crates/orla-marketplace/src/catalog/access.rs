//! The policies that apply to a snapshot.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::permission::Permission;
use crate::policy::{AccessPolicy, Decision, Disclosure};
use crate::principal::Principal;
use crate::surface::Item;

/// The reason why a caller may not use something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The permission that the caller lacks.
    pub permission: String,
    /// The decision of the policy, if the policy decided.
    pub decision: Option<Decision>,
}

impl Denial {
    /// Returns the rule that decided, such as `policy[0]`.
    pub fn rule(&self) -> Option<String> {
        self.decision.map(Decision::rule)
    }
}

/// The policy of a snapshot, and the newest policy. A denial by either counts. After a reload, the
/// holder of an older snapshot gets nothing that has been denied since, and learns nothing about it.
#[derive(Clone, Default)]
pub(super) struct Access {
    /// The snapshot's policy; `None` permits everything.
    pub(super) own: Option<Arc<AccessPolicy>>,
    newest: Arc<ArcSwapOption<AccessPolicy>>,
}

impl Access {
    /// Returns the access of the next snapshot, which has no policy yet.
    pub(super) fn successor(&self) -> Self {
        Self { own: None, newest: Arc::clone(&self.newest) }
    }

    /// Makes this policy the newest one, also for older snapshots.
    pub(super) fn publish(&self) {
        self.newest.store(self.own.clone());
    }

    /// Returns whether there is a policy.
    pub(super) fn is_some(&self) -> bool {
        self.own.is_some() || self.newest.load().is_some()
    }

    /// Checks whether this caller may use an item.
    ///
    /// # Errors
    /// The permission that the caller lacks, and the decision on it.
    pub(super) fn permits(
        &self,
        principal: Option<&Principal>,
        id: &str,
        name: &str,
        needs: &[Permission],
    ) -> Result<(), Denial> {
        self.each(|policy| match policy.missing(principal, id, name, needs) {
            Some((need, decision)) => {
                Err(Denial { permission: need.to_string(), decision: Some(decision) })
            }
            None => Ok(()),
        })
    }

    /// Returns whether no caller may use an item.
    pub(super) fn excludes_everyone(&self, id: &str, name: &str, needs: &[Permission]) -> bool {
        let ask = |policy: &AccessPolicy| policy.excludes_everyone(id, name, needs);
        self.each(|policy| if ask(policy) { Err(()) } else { Ok(()) }).is_err()
    }

    /// Returns whether a denied name is answered like one that does not exist.
    pub(super) fn conceals(&self) -> bool {
        self.each(|policy| if policy.disclosure == Disclosure::Conceal { Err(()) } else { Ok(()) })
            .is_err()
    }

    /// Returns the scopes that would permit this caller what the policy denies it.
    pub(super) fn helpful_scopes(&self, principal: &Principal, item: &Item) -> Vec<String> {
        let mut scopes = Vec::new();
        let _ = self.each(|policy| {
            scopes = policy.helpful_scopes(principal, &item.id, &item.name, &item.needs);
            if scopes.is_empty() { Ok(()) } else { Err(()) }
        });
        scopes
    }

    /// Asks the policies in turn until one denies.
    fn each<E>(&self, mut ask: impl FnMut(&AccessPolicy) -> Result<(), E>) -> Result<(), E> {
        if let Some(own) = &self.own {
            ask(own)?;
        }
        let newest = self.newest.load();
        match newest
            .as_ref()
            .filter(|newest| self.own.as_ref().is_none_or(|own| !Arc::ptr_eq(own, newest)))
        {
            Some(newest) => ask(newest),
            None => Ok(()),
        }
    }
}
