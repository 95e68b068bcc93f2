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
    vouched: Option<Vouched>,
}

/// The attested state.
#[derive(Clone, PartialEq, Eq)]
struct Vouched {
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
        Self { content, vouched: None }
    }

    /// Attests the content while it has this hash, until `until` if set. If `enforced`, other content
    /// does not run.
    #[must_use]
    pub fn vouched(mut self, hash: &str, until: Option<SystemTime>, enforced: bool) -> Self {
        self.vouched = Some(Vouched { hash: hash.into(), until, enforced });
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
        let Some(vouched) = &self.vouched else { return false };
        let same = match self.content.known_hash() {
            Some(known) => *known == *vouched.hash,
            None => self.content.hash().is_ok_and(|hash| *hash == *vouched.hash),
        };
        same && !vouched.is_over()
    }

    /// Returns the hash of the only content that may run, if an attestation is required.
    pub fn required(&self) -> Option<&Arc<str>> {
        self.vouched.as_ref().filter(|vouched| vouched.enforced).map(|vouched| &vouched.hash)
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
        let Some(vouched) = self.vouched.as_ref().filter(|vouched| vouched.enforced) else {
            return Ok(());
        };
        if vouched.is_over() {
            return Err("a valid attestation: the present one has expired".to_owned());
        }
        // The reason why the content cannot be read is not for the caller, because it contains a path.
        if self.present_hash().await.is_ok_and(|hash| *hash == *vouched.hash) {
            return Ok(());
        }
        Err("a valid attestation: its content has changed".to_owned())
    }
}

impl Vouched {
    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= SystemTime::now())
    }
}

/// Two values are equal if they require the same; the content itself is not compared.
impl PartialEq for Custody {
    fn eq(&self, other: &Self) -> bool {
        self.vouched == other.vouched
    }
}

impl Eq for Custody {}

impl fmt::Debug for Custody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = self.vouched.as_ref().map(|vouched| &vouched.hash);
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
    fn what_is_not_what_was_vouched_for_does_not_run() {
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
                let lenient = custody.clone().vouched("a", until, false);
                assert_eq!(lenient.holds(), holds, "{name}");
                assert_eq!(lenient.admit().now_or_never().unwrap(), Ok(()), "{name}");
                let strict = custody.vouched("a", until, true);
                assert_eq!(strict.holds(), holds, "{name}");
                assert_eq!(strict.admit().now_or_never().unwrap().is_ok(), runs, "{name}");
            }
        }
    }
}
