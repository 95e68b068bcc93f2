//! Compares the content that a capability runs with the attested content.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::future::BoxFuture;

/// The content that runs when one capability is called.
pub trait Content: Send + Sync {
    /// Returns the hash of the present content, as [`hash_text`](crate::attestation::hash_text) writes
    /// it. May block: reads files that have changed since they were last read.
    ///
    /// # Errors
    /// Why it cannot be read, as one clause.
    fn hash(&self) -> Result<String, String>;

    /// Returns the hash, if it is known without reading because nothing has changed. Fast enough for
    /// every call.
    fn known_hash(&self) -> Option<Arc<str>>;

    /// Returns whether nothing has changed since it was last read, nor since `at`. May block: reads file
    /// metadata.
    fn is_unchanged_since(&self, at: SystemTime) -> bool;

    /// Like [`hash`](Self::hash), for callers that must not block.
    fn hash_later(&self) -> BoxFuture<'static, Result<String, String>>;
}

/// The content of one capability and, if it is attested, its required state.
#[derive(Clone)]
pub struct Custody {
    content: Arc<dyn Content>,
    attested: Option<AttestedContent>,
}

/// The attested state.
#[derive(Clone, PartialEq, Eq)]
struct AttestedContent {
    /// The hash of the content.
    hash: Arc<str>,
    /// The end of the validity, if limited.
    until: Option<SystemTime>,
    /// Whether other content is prevented from running.
    enforced: bool,
}

impl Custody {
    /// Creates the custody of a capability without attestation.
    pub fn new(content: Arc<dyn Content>) -> Self {
        Self { content, attested: None }
    }

    /// Attests the content while it has this hash, until `until` if set. If `enforced`, other content
    /// does not run.
    #[must_use]
    pub fn attested(mut self, hash: &str, until: Option<SystemTime>, enforced: bool) -> Self {
        self.attested = Some(AttestedContent { hash: hash.into(), until, enforced });
        self
    }

    /// Returns the hash of the present content; see [`Content::hash`].
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn content_hash(&self) -> Result<String, String> {
        self.content.hash()
    }

    /// Like [`content_hash`](Self::content_hash), for callers that must not block.
    pub(crate) async fn present_hash(&self) -> Result<String, String> {
        match self.content.known_hash() {
            Some(known) => Ok((*known).to_owned()),
            None => self.content.hash_later().await,
        }
    }

    /// Returns whether the present content is attested. Reads it again only if it may have changed.
    pub fn holds(&self) -> bool {
        let Some(attested) = &self.attested else { return false };
        let same = match self.content.known_hash() {
            Some(known) => *known == *attested.hash,
            None => self.content.hash().is_ok_and(|hash| *hash == *attested.hash),
        };
        same && !attested.is_expired()
    }

    /// Returns the hash of the only content that may run, if an attestation is required.
    pub fn required(&self) -> Option<&Arc<str>> {
        self.attested.as_ref().filter(|attested| attested.enforced).map(|attested| &attested.hash)
    }

    /// Returns whether the content has been the attested one from `at` until now. May block.
    pub fn has_held_since(&self, at: SystemTime) -> bool {
        self.holds() && self.content.is_unchanged_since(at)
    }

    /// Checks whether the capability may be called.
    ///
    /// # Errors
    /// What it requires, to be read after "requires".
    pub(crate) async fn admit(&self) -> Result<(), String> {
        let Some(attested) = self.attested.as_ref().filter(|attested| attested.enforced) else {
            return Ok(());
        };
        if attested.is_expired() {
            return Err("a valid attestation: the present one has expired".to_owned());
        }
        // The reason why the content cannot be read is not for the caller, because it contains a path.
        if self.present_hash().await.is_ok_and(|hash| *hash == *attested.hash) {
            return Ok(());
        }
        Err("a valid attestation: its content has changed".to_owned())
    }
}

impl AttestedContent {
    fn is_expired(&self) -> bool {
        self.until.is_some_and(|until| until <= SystemTime::now())
    }
}

/// Two values are equal if they require the same; the content itself is not compared.
impl PartialEq for Custody {
    fn eq(&self, other: &Self) -> bool {
        self.attested == other.attested
    }
}

impl Eq for Custody {}

impl fmt::Debug for Custody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = self.attested.as_ref().map(|attested| &attested.hash);
        f.debug_struct("Custody").field("vouched", &hash).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::time::Duration;

    use parking_lot::Mutex;

    /// A content that consists of a text. If `known`, nothing has changed since it was read.
    struct Text {
        text: Mutex<&'static str>,
        known: bool,
    }

    impl Content for Text {
        fn hash(&self) -> Result<String, String> {
            Ok((*self.text.lock()).to_owned())
        }

        fn known_hash(&self) -> Option<Arc<str>> {
            self.known.then(|| (*self.text.lock()).into())
        }

        fn is_unchanged_since(&self, _: SystemTime) -> bool {
            self.known
        }

        fn hash_later(&self) -> BoxFuture<'static, Result<String, String>> {
            let hash = self.hash();
            async move { hash }.boxed()
        }
    }

    #[test]
    fn changed_or_expired_content_does_not_run() {
        let hour = Duration::from_secs(3600);
        let (past, future) = (SystemTime::now() - hour, SystemTime::now() + hour);
        let cases = [
            ("as it was", "a", None, true, true),
            ("within its time", "a", Some(future), true, true),
            ("after its time", "a", Some(past), false, false),
            ("changed", "b", None, false, false),
        ];
        for known in [true, false] {
            for (name, text, until, holds, runs) in cases {
                let content = Arc::new(Text { text: Mutex::new(text), known });
                let custody = Custody::new(content);
                assert!(!custody.holds(), "it is not attested");
                assert_eq!(
                    custody.admit().now_or_never().unwrap(),
                    Ok(()),
                    "and no attestation is required"
                );
                let lenient = custody.clone().attested("a", until, false);
                assert_eq!(lenient.holds(), holds, "{name}");
                assert_eq!(lenient.admit().now_or_never().unwrap(), Ok(()), "{name}");
                let strict = custody.attested("a", until, true);
                assert_eq!(strict.holds(), holds, "{name}");
                assert_eq!(strict.admit().now_or_never().unwrap().is_ok(), runs, "{name}");
            }
        }
    }
}
