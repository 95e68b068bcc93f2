//! `GET /quotas`: the usage of quotas, as JSON. `/status` shows callers their own part.

use std::sync::Arc;

use orla_marketplace::id::Pattern;
use orla_marketplace::{Entry, Principal, QuotaUsage, millis_up};
use serde::Serialize;

use crate::state::Core;

/// The permission to see the usage of others.
const READ: &str = "quotas:read";
/// The maximum number of rows of an answer.
const MAX_ROWS: usize = 10_000;

/// One rule and its usage by one caller. Members that do not apply are left out.
#[derive(Serialize)]
pub(crate) struct QuotaRow {
    /// The rule, such as `quotas[0]`.
    rule: String,
    /// The owner of the count: a caller, a group or scope, or `*` for all callers; `null` if nothing has
    /// been counted.
    caller: Option<String>,
    /// How the caller was identified, if the owner is a caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    identified_by: Option<String>,
    to: Vec<String>,
    capabilities: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    per: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<u64>,
    /// The number of whole calls left.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrent: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<usize>,
    /// The time until the next call is possible; 0 if it is possible now.
    retry_after_ms: u64,
}

impl From<QuotaUsage> for QuotaRow {
    fn from(usage: QuotaUsage) -> Self {
        let rule = usage.rule;
        Self {
            caller: usage.caller,
            identified_by: usage.identified_by,
            to: rule.to.entries().iter().map(ToString::to_string).collect(),
            capabilities: rule.capabilities.iter().map(|one| one.as_str().to_owned()).collect(),
            per: rule.rate.as_ref().map(|rate| rate.per.name()),
            calls: rule.rate.as_ref().map(|rate| rate.calls),
            remaining: usage.remaining,
            concurrent: rule.concurrent,
            running: rule.concurrent.map(|_| usage.running),
            retry_after_ms: millis_up(usage.retry_after),
            rule: rule.name,
        }
    }
}

/// Returns the rules that concern this caller, without names that the policy conceals from it.
pub(crate) fn own(core: &Core, principal: Option<&Principal>) -> Vec<QuotaRow> {
    let catalog = core.market.snapshot();
    let is_permitted = |entry: &&Arc<Entry>| catalog.permits(principal, entry).is_ok();
    let permitted: Option<Vec<_>> = (catalog.has_policy() && catalog.conceals())
        .then(|| catalog.entries().iter().filter(is_permitted).collect());
    let is_shown = |pattern: &String| {
        let pattern = Pattern::new(&**pattern);
        let fits = |entry: &&Arc<Entry>| pattern.fits(&entry.manifest.id, &entry.name);
        permitted.as_ref().is_none_or(|entries| entries.iter().any(fits))
    };
    let mut rows: Vec<_> =
        core.market.quotas().usage_of(principal).into_iter().map(QuotaRow::from).collect();
    rows.iter_mut().for_each(|row| row.capabilities.retain(is_shown));
    rows.retain(|row| !row.capabilities.is_empty());
    rows
}

/// Returns the answer: all rows for callers with the permission `quotas:read`, and their own rows for
/// others.
pub(crate) fn render(core: &Arc<Core>, principal: Option<&Principal>) -> Vec<u8> {
    let rows = match core.market.snapshot().permits_part(principal, "quotas", READ) {
        true => core.market.quotas().usage().into_iter().take(MAX_ROWS).map(QuotaRow::from).collect(),
        false => own(core, principal),
    };
    serde_json::to_vec(&rows).unwrap_or_default()
}
