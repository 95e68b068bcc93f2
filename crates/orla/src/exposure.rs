//! What clients see when they list: everything, or three tools to search, describe and call the rest.

use std::sync::Arc;

use orla_marketplace::{Catalog, CatalogBuilder, Entry, discovery};

/// What clients see when they list. All can be found and called either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Exposure {
    /// Everything.
    #[default]
    All,
    /// The tools of discovery alone, so that a large catalogue costs a client's context nothing.
    Search,
}

impl Exposure {
    pub(crate) const WORDS: &[(&'static str, Self)] = &[("all", Self::All), ("search", Self::Search)];

    /// Adds the tools of discovery to a snapshot that holds everything else, and has it listed as it is to
    /// be. A capability that has the id of one of the tools keeps it.
    pub(crate) fn apply(self, builder: &mut CatalogBuilder) {
        for tool in discovery::registrations() {
            // The only thing that can be wrong is that the id is taken.
            drop(builder.capability(tool));
        }
        if self == Self::Search {
            builder.list_only(&discovery::IDS);
        }
    }

    /// How many capabilities a snapshot serves, for people: what is listed, or where that is only the way
    /// to the rest, the rest without built-ins.
    pub(crate) fn count(self, catalog: &Catalog) -> usize {
        let is_own = |entry: &&Arc<Entry>| {
            let kind = entry.manifest.provider.kind();
            !discovery::IDS.contains(&&*entry.manifest.id) && kind != "local"
        };
        match self {
            Self::All => catalog.listed().count(),
            Self::Search => catalog.entries().iter().filter(is_own).count(),
        }
    }
}
