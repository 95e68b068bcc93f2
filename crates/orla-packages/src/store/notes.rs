//! What the user agreed to, and whose signatures were verified on this machine. Both are kept outside of
//! projects, because a project may come from a third party.

use std::path::PathBuf;

use super::{Own, Store, StoreError, io_at, make_private, read, write_shared};
use crate::sha256;
use crate::signature::Signer;

/// The maximum size of the note of a signer, in bytes.
const MAX_SIGNER: u64 = 64 << 10;

impl Store {
    /// Records that the user agreed to give an archive the settings of its source. The text identifies
    /// both.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn agree(&self, to: &str) -> Result<(), StoreError> {
        self.note(|own| agreed(own, to), b"")
    }

    /// Returns whether the user [agreed](Self::agree) to it.
    pub fn is_agreed(&self, to: &str) -> bool {
        self.own.as_ref().is_some_and(|own| agreed(own, to).is_file())
    }

    /// Records who signed the archive with this SHA-256. The signature was verified with the root of trust
    /// of this [digest](crate::signature::digest_of_root).
    ///
    /// # Errors
    /// It cannot be written.
    pub fn note_signer(&self, digest: &str, root: &str, signer: &Signer) -> Result<(), StoreError> {
        let text = serde_json::to_vec(signer).unwrap_or_default();
        self.note(|own| signed(own, digest, root), &text)
    }

    /// Returns the signer of an archive, if its signature was verified on this machine with this root of
    /// trust.
    pub fn signer(&self, digest: &str, root: &str) -> Option<Signer> {
        let text = read(&signed(self.own.as_ref()?, digest, root), MAX_SIGNER).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn note(&self, place: impl FnOnce(&Own) -> PathBuf, text: &[u8]) -> Result<(), StoreError> {
        let own = self.own.as_ref().ok_or(StoreError::Homeless)?;
        let path = place(own);
        make_private(&own.contents).and_then(|()| write_shared(&path, text)).map_err(io_at(&path))
    }
}

fn agreed(own: &Own, to: &str) -> PathBuf {
    own.contents.join(format!("{}.agreed", sha256(to.as_bytes())))
}

fn signed(own: &Own, digest: &str, root: &str) -> PathBuf {
    own.contents.join(format!("{digest}.{root}.signed"))
}

#[cfg(test)]
mod tests {
    use std::{fs, io};

    use super::*;
    use crate::signature::digest_of_root;

    #[test]
    fn a_signer_is_noted_for_one_archive_and_one_root_of_trust() -> io::Result<()> {
        let place = tempfile::tempdir()?;
        let path = |name: &str| place.path().join(name);
        let own = Own { archives: path("archives"), contents: path("contents") };
        let store = Store::new(path("project"), Some(own.clone()));
        let (one, other) = (sha256(b"one"), sha256(b"other"));
        let signer = Signer { name: "https://a.example/b".to_owned(), workflow: None };
        let (root, other_root) = (digest_of_root(None), digest_of_root(Some("{}")));
        store.note_signer(&one, &root, &signer).map_err(io::Error::other)?;
        assert_eq!(store.signer(&one, &root), Some(signer));
        assert_eq!((store.signer(&other, &root), store.signer(&one, &other_root)), (None, None));
        fs::write(signed(&own, &other, &root), "cut")?;
        assert_eq!(store.signer(&other, &root), None);
        assert_eq!(Store::new(path("project"), None).signer(&one, &root), None);
        Ok(())
    }
}
