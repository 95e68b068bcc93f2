//! The history of calls: what of it a server keeps.

use std::sync::Arc;

use orla_history::{History, Options};
use orla_marketplace::CapabilityMarketplace;

use crate::Failure;

/// The history of a server.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn of_server(market: &Arc<CapabilityMarketplace>) -> Result<History, Failure> {
    History::in_memory(market, Options::default())
        .map_err(|err| Failure::failed(format!("history: {err}")))
}
