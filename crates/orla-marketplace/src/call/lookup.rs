//! The first steps of a call: which capability it calls, in which snapshot, and how long it may take.

use std::sync::Arc;
use std::time::Duration;

use rtfs::text::excerpt;
use tokio::time::Instant;

use super::prepared::{Losses, PreparedCall};
use super::{Call, CallContext};
use crate::admission::{CallPermit, HeldPermits};
use crate::catalog::{Catalog, Entry};
use crate::error::{MAX_SHOWN_CHARS, RuntimeError, RuntimeResult};
use crate::manifest::Availability;
use crate::marketplace::CapabilityMarketplace;
use crate::principal::{ANONYMOUS, Principal};

impl CapabilityMarketplace {
    /// Looks up the capability in the call's snapshot, and computes the context of the call.
    ///
    /// # Errors
    /// There is no such capability, its provider wants a sign-in, or the call ends before it is found.
    pub(super) async fn prepare(&self, call: Call) -> RuntimeResult<PreparedCall<'_>> {
        let mut began = Instant::now();
        // The future is created only if the call has to wait.
        let late = async {
            let newest = self.snapshot();
            let limit = timeout_of(&newest, newest.get(&call.target), &call);
            tokio::time::sleep_until(began + limit).await;
            limit
        };
        let id = || excerpt(&call.target, MAX_SHOWN_CHARS);
        let mut catalog = tokio::select! {
            biased;
            catalog = self.catalog_for(&call) => catalog,
            () = call.scope.cancellation.cancelled() => {
                return Err(RuntimeError::Cancelled { id: id(), outcome: None });
            }
            limit = late => return Err(RuntimeError::TimedOut { id: id(), limit, outcome: None }),
        };
        let principal = call.scope.principal.as_ref();
        if catalog.get(&call.target).is_none_or(|entry| !entry.is_shown_to(principal))
            && let Some(signed_in) = self.sign_in(&catalog, &call).await
        {
            signed_in?;
            // The caller, not the call, took the time until here.
            began = Instant::now();
            let limit = timeout_of(&catalog, None, &call);
            let _ = tokio::time::timeout(limit, self.prepare_for(&call.target)).await;
            catalog = self.snapshot();
        }
        let Some(entry) = catalog.get(&call.target).cloned() else {
            let caller = call.scope.principal.as_ref().map_or(ANONYMOUS, Principal::name);
            tracing::info!(tool = excerpt(&call.target, MAX_SHOWN_CHARS), caller, "unknown tool");
            return Err(self.unknown(&catalog, &call.target, &call.scope.principal));
        };
        let timeout = timeout_of(&catalog, Some(&entry), &call);
        let Call { target, input, mut scope, .. } = call;
        let call_id = scope.call_id.take().unwrap_or_else(|| self.reserve_call_id());
        let mut ctx = CallContext::new(call_id, Arc::clone(&entry.name), (began, timeout), scope);
        ctx.custody = entry.required_custody();
        let permit = CallPermit::new(catalog.admission_of(&entry), &entry.provider);
        let held = HeldPermits::with(entry.admission.as_ref(), ctx.held());
        let mut ctx = ctx.with_permits(&permit, held);
        ctx.catalog = Some(Arc::clone(&catalog));
        if let Some(redactor) = &entry.policy.redaction {
            ctx.scope.notices = ctx.scope.notices.redacted(redactor);
        }
        let counted = ctx.scope.counted.clone();
        Ok(PreparedCall {
            market: self,
            catalog,
            entry,
            target,
            input,
            ctx,
            permit,
            counted,
            losses: Losses::default(),
            approved: None,
        })
    }

    /// Returns the snapshot in which a call is looked up. Waits for the providers that may serve it and
    /// have not answered yet.
    pub async fn catalog_for(&self, call: &Call) -> Arc<Catalog> {
        let (catalog, is_named) = self.current_for(call);
        // A capability whose provider has not reported it yet is found too: the call waits for that provider alone, when it
        // has begun. A session knows the capabilities it has listed.
        if catalog.get(&call.target).is_some() || (is_named && call.scope.depth == 0) {
            return catalog;
        }
        self.prepare_for(&call.target).await;
        let newest = self.snapshot();
        if !is_named || newest.is_of_the_same_sources(&catalog) { newest } else { catalog }
    }

    /// Returns the call's own snapshot, or else the newest, and whether it is the call's own.
    fn current_for(&self, call: &Call) -> (Arc<Catalog>, bool) {
        let newest = self.peek();
        // What is unavailable now is not called, although a session has listed it; and a session may call
        // what has become available since.
        let is_unavailable = |catalog: &Catalog| {
            catalog.get(&call.target).is_some_and(|entry| entry.unavailable().is_some())
        };
        let named = call.scope.catalog.as_ref().filter(|named| {
            Arc::ptr_eq(named, &newest) || (!is_unavailable(&newest) && !is_unavailable(named))
        });
        (Arc::clone(named.unwrap_or(&newest)), named.is_some())
    }
}

impl PreparedCall<'_> {
    /// Returns whether the provider has not reported the capability yet.
    pub(super) fn is_unlearned(&self) -> bool {
        self.entry.policy.availability == Availability::Unlearned
    }

    /// Waits while the provider starts or is restarted, and looks the capability up again. Returns
    /// whether it has changed.
    ///
    /// # Errors
    /// The provider is not ready within the call's time, or no longer has the capability.
    pub(super) async fn settle(&mut self) -> RuntimeResult<bool> {
        let Ok(executor) = self.executor() else { return Ok(false) };
        // Nested calls are answered from the recording, so their providers need not start. What a provider reports only when
        // it starts is then not checked.
        if self.ctx.scope.answers.is_some() && self.ctx.scope.depth > 0 {
            return Ok(false);
        }
        let provider = &self.entry.manifest.provider;
        if !self.is_unlearned() && executor.is_settled(provider) {
            return Ok(false);
        }
        self.guarded(executor.settle(provider, &self.ctx)).await?;
        let newest = self.market.refreshed();
        // A call in a snapshot of an earlier configuration stays in it, if it can run there: unless its provider has reported
        // meanwhile what is not checked there, a schema or annotations.
        let is_reported = |entry: &Arc<Entry>| entry.policy.availability != Availability::Unlearned;
        let is_outdated = self.is_unlearned() && newest.get(&self.target).is_some_and(is_reported);
        if !newest.is_of_the_same_sources(&self.catalog) && executor.is_settled(provider) && !is_outdated
        {
            return Ok(false);
        }
        let Some(entry) = newest.get(&self.target).cloned() else {
            return Err(self.market.unknown(&newest, &self.target, &self.ctx.scope.principal));
        };
        let is_another = !Arc::ptr_eq(&entry, &self.entry);
        self.ctx.custody = entry.required_custody();
        self.ctx.catalog = Some(Arc::clone(&newest));
        (self.catalog, self.entry) = (newest, entry);
        Ok(is_another)
    }
}

/// Returns how long a call may take: as long as its capability may, if that is known, and no longer than its caller waits.
fn timeout_of(catalog: &Catalog, entry: Option<&Arc<Entry>>, call: &Call) -> Duration {
    let own = entry.and_then(|entry| entry.policy.timeout.or_else(|| entry.manifest.provider.timeout()));
    let own = own.or(call.default_timeout).unwrap_or(catalog.limits.timeout);
    call.timeout.map_or(own, |caller| caller.min(own))
}
