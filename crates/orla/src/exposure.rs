//! The capabilities in the lists of clients: all of them, or a few tools to search, describe and call
//! the others, one by one or with a program.

use std::sync::Arc;

use orla_marketplace::{Catalog, CatalogBuilder, Entry, ProviderType, discovery, program};

/// The capabilities in the lists of clients. In either mode, all capabilities can be found and called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Exposure {
    /// Everything.
    #[default]
    All,
    /// Only the tools of discovery and of the language, so that a large catalogue costs a client's context
    /// nothing.
    Search,
}

impl Exposure {
    pub(crate) const WORDS: &[(&'static str, Self)] = &[("all", Self::All), ("search", Self::Search)];

    /// Adds these tools to a snapshot that contains all other capabilities, and applies the listing
    /// rules. A capability with the id of a discovery tool keeps it. No other capability takes the ids
    /// of the language.
    pub(crate) fn apply(self, builder: &mut CatalogBuilder) {
        for tool in discovery::registrations().into_iter().chain(program::registrations()) {
            // The only possible error is that the id is taken.
            drop(builder.capability(tool));
        }
        if self == Self::Search {
            let own: Vec<&'static str> = discovery::IDS.into_iter().chain(program::IDS).collect();
            builder.list_only(&own);
        }
    }

    /// Returns the number of served capabilities, for people: the listed ones, or, if these are only the
    /// way to the rest, the rest without built-ins. A file in the language is a user's own.
    pub(crate) fn count(self, catalog: &Catalog) -> usize {
        let is_own = |entry: &&Arc<Entry>| {
            let provider = &entry.manifest.provider;
            let is_built_in = matches!(provider, ProviderType::Local(_))
                || provider.settings::<discovery::Discovery>().is_ok()
                || provider.settings::<program::Language>().is_ok();
            !is_built_in && !provider.answers_prompts()
        };
        match self {
            Self::All => catalog.offered().count(),
            Self::Search => catalog.entries().iter().filter(is_own).count(),
        }
    }
}
