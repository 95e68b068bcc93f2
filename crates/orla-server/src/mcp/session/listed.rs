//! The versions of capabilities that a session has listed, as all servers that share sessions know them.
//!
//! # How it works
//!
//! [`Versions`] are the versions in one snapshot. Their name is the digest of their text, so all sessions that have listed the
//! same versions share one text. The server that lists keeps its snapshot and tells the others the name. A server that takes the
//! session up compares the versions with those of its newest snapshot, and has the cluster make a snapshot in which those that
//! differ are as the session listed them ([`KnownVersions::catalog`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use orla_marketplace::Catalog;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::nodes::Nodes;

/// The maximum size of a text that servers share, in bytes.
const MAX_TEXT: usize = 256 * 1024;
/// The maximum number of snapshots whose versions are kept, and of snapshots made for sessions. Sessions keep the snapshots alive.
const MAX_SNAPSHOTS: usize = 64;

/// The versions of the capabilities of one snapshot that servers share.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    name: Box<str>,
    text: Bytes,
    /// The digest of each version, by the id of its capability.
    by_id: BTreeMap<String, String>,
}

impl Versions {
    pub(crate) fn new(versions: impl IntoIterator<Item = (String, String)>) -> Self {
        let by_id: BTreeMap<String, String> = versions.into_iter().collect();
        let text = Bytes::from(serde_json::to_vec(&by_id).unwrap_or_default());
        Self { name: name_of(&text), text, by_id }
    }

    /// Reads a text. Returns `None` if it does not have this name, or is not the text of versions.
    pub(crate) fn read(name: &str, text: &Bytes) -> Option<Self> {
        if text.len() > MAX_TEXT || *name_of(text) != *name {
            return None;
        }
        let by_id: BTreeMap<String, String> = serde_json::from_slice(text).ok()?;
        let is_digest = |digest: &String| {
            !digest.is_empty() && digest.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        if !by_id.values().all(is_digest) {
            return None;
        }
        Some(Self { name: name.into(), text: text.clone(), by_id })
    }

    /// Returns the name by which all servers know the versions.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn text(&self) -> &Bytes {
        &self.text
    }

    /// Returns whether the text is small enough to be shared.
    pub(crate) fn is_shareable(&self) -> bool {
        self.text.len() <= MAX_TEXT
    }

    /// Returns those that `other` does not have in the same version, each an id and its digest.
    fn missing_in(&self, other: &Self) -> Vec<(&str, &str)> {
        let is_missing = |(id, digest): &(&String, &String)| other.by_id.get(*id) != Some(digest);
        let missing = self.by_id.iter().filter(is_missing);
        missing.map(|(id, digest)| (id.as_str(), digest.as_str())).collect()
    }
}

fn name_of(text: &[u8]) -> Box<str> {
    hex::encode(&Sha256::digest(text)[..16]).into()
}

/// What a session has listed last.
#[derive(Debug, Default)]
pub(crate) enum Listed {
    /// No tools yet.
    #[default]
    Nothing,
    /// The snapshot that the session keeps, with its versions if other servers can know them.
    Here(Option<Arc<Versions>>),
    /// The versions of this name, at another server, as far as they are known here. The name is empty if other servers cannot
    /// know them.
    Elsewhere(Box<str>, Option<Arc<Versions>>),
}

impl Listed {
    /// Returns the name by which other servers know what was listed; empty if they cannot know it, and `None` if nothing was
    /// listed.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Nothing => None,
            Self::Here(versions) => Some(versions.as_ref().map_or("", |versions| versions.name())),
            Self::Elsewhere(name, _) => Some(name),
        }
    }

    /// Returns the versions, if they are known.
    pub(crate) fn versions(&self) -> Option<&Arc<Versions>> {
        match self {
            Self::Nothing => None,
            Self::Here(versions) | Self::Elsewhere(_, versions) => versions.as_ref(),
        }
    }
}

/// The versions of snapshots and sessions, and the snapshots that were made for sessions. It keeps no snapshot alive.
#[derive(Default)]
pub(crate) struct KnownVersions {
    of_snapshots: Mutex<Vec<(Weak<Catalog>, Arc<Versions>)>>,
    of_sessions: Mutex<HashMap<Box<str>, Weak<Versions>>>,
    made: Mutex<Vec<Made>>,
}

/// A snapshot with listed versions.
struct Made {
    /// The name of the versions.
    name: Box<str>,
    /// The generation of the snapshot that has its other capabilities.
    generation: u64,
    /// Locked while it is made, so that sessions with other versions do not wait for it.
    catalog: Arc<Mutex<Weak<Catalog>>>,
}

impl Made {
    /// Returns whether a session has the snapshot, or waits for it.
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.catalog) > 1 || self.catalog.lock().strong_count() > 0
    }
}

impl KnownVersions {
    /// Returns the versions in a snapshot.
    pub(crate) fn of(&self, nodes: &dyn Nodes, catalog: &Arc<Catalog>) -> Arc<Versions> {
        let mut known = self.of_snapshots.lock();
        known.retain(|(of, _)| of.strong_count() > 0);
        if let Some((_, versions)) = known.iter().find(|(of, _)| of.as_ptr() == Arc::as_ptr(catalog)) {
            return Arc::clone(versions);
        }
        let versions = Arc::new(Versions::new(nodes.versions(catalog)));
        if known.len() >= MAX_SNAPSHOTS {
            known.remove(0);
        }
        known.push((Arc::downgrade(catalog), Arc::clone(&versions)));
        versions
    }

    /// Returns the versions of this name, if any session here has them.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Versions>> {
        self.of_sessions.lock().get(name).and_then(Weak::upgrade)
    }

    /// Returns the same versions, which all sessions share from now on.
    pub(crate) fn share(&self, versions: Versions) -> Arc<Versions> {
        let mut known = self.of_sessions.lock();
        known.retain(|_, versions| versions.strong_count() > 0);
        if let Some(same) = known.get(versions.name()).and_then(Weak::upgrade) {
            return same;
        }
        let versions = Arc::new(versions);
        known.insert(versions.name().into(), Arc::downgrade(&versions));
        versions
    }

    /// Returns the snapshot in which a session calls what it has listed elsewhere: the newest one, in which versions that differ
    /// are those that it has listed. As long as a session has it, it is made once.
    pub(crate) fn catalog(
        &self,
        nodes: &dyn Nodes,
        listed: &Versions,
        newest: Arc<Catalog>,
    ) -> Arc<Catalog> {
        let made = self.made(&listed.name, newest.generation());
        let mut made = made.lock();
        if let Some(catalog) = made.upgrade() {
            return catalog;
        }
        let here = self.of(nodes, &newest);
        let missing = listed.missing_in(&here);
        let catalog = match missing.is_empty() {
            true => newest,
            false => nodes.with_versions(&missing).unwrap_or(newest),
        };
        *made = Arc::downgrade(&catalog);
        catalog
    }

    /// Returns the place of the snapshot of this generation with the versions of this name.
    fn made(&self, name: &str, generation: u64) -> Arc<Mutex<Weak<Catalog>>> {
        let mut made = self.made.lock();
        if let Some(one) = made.iter().find(|one| one.generation == generation && *one.name == *name) {
            return Arc::clone(&one.catalog);
        }
        made.retain(Made::is_used);
        if made.len() >= MAX_SNAPSHOTS {
            made.remove(0);
        }
        let catalog = Arc::default();
        made.push(Made { name: name.into(), generation, catalog: Arc::clone(&catalog) });
        catalog
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn versions(of: &[(&str, &str)]) -> Versions {
        Versions::new(of.iter().map(|(id, digest)| ((*id).to_owned(), (*digest).to_owned())))
    }

    #[test]
    fn equal_versions_have_one_name_and_one_text() {
        let (one, same) = (versions(&[("a", "1"), ("b", "2")]), versions(&[("b", "2"), ("a", "1")]));
        assert_eq!(one, same);
        assert_ne!(one.name(), versions(&[("a", "1"), ("b", "3")]).name());
        assert_eq!(Versions::read(one.name(), one.text()), Some(same));
    }

    #[test]
    fn a_text_without_its_name_or_of_another_form_is_not_read() {
        let one = versions(&[("a", "1")]);
        assert_eq!(Versions::read("", one.text()), None);
        let read = |text: &'static [u8]| Versions::read(&name_of(text), &Bytes::from_static(text));
        assert!(read(b"{}").is_some() && read(br#"{"a":1}"#).is_none() && read(b"7").is_none());
        let large = versions(&[("a", &"1".repeat(MAX_TEXT))]);
        assert!(!large.is_shareable() && Versions::read(large.name(), large.text()).is_none());
    }

    #[test]
    fn only_versions_that_differ_are_missing() {
        let listed = versions(&[("a", "1"), ("b", "2"), ("c", "3")]);
        let here = versions(&[("a", "1"), ("b", "9"), ("d", "4")]);
        assert_eq!(listed.missing_in(&here), [("b", "2"), ("c", "3")]);
        assert!(listed.missing_in(&listed).is_empty());
    }

    #[test]
    fn sessions_share_versions_as_long_as_one_has_them() {
        let known = KnownVersions::default();
        let one = known.share(versions(&[("a", "1")]));
        assert!(Arc::ptr_eq(&one, &known.share(versions(&[("a", "1")]))));
        let name = one.name().to_owned();
        assert!(known.get(&name).is_some());
        drop(one);
        assert!(known.get(&name).is_none());
    }

    proptest! {
        #[test]
        fn any_text_can_be_read(text in r#"[\{\}\[\]",:a-z0-9 ]{0,60}"#) {
            let _ = Versions::read(&name_of(text.as_bytes()), &text.into());
        }
    }
}
