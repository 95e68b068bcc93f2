//! What a user approves besides the input of a call: the capability as it was when the question was
//! asked.

use crate::attestation::{hash_text, manifest_form};
use crate::catalog::Entry;

/// The digests of the manifest and the program that were approved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ApprovalSubject {
    pub(super) manifest: String,
    /// The digest of the content, or why it has none; `None` if the capability has no content of its
    /// own.
    content: Option<Result<String, String>>,
}

impl ApprovalSubject {
    /// Returns the current digests of a capability. Reads its content only if it has changed since it
    /// was last read.
    ///
    /// # Errors
    /// Why the manifest has no digest, as one clause.
    pub(crate) async fn of(entry: &Entry) -> Result<Self, String> {
        let form = manifest_form(&entry.manifest).map_err(|err| format!("its manifest has {err}"))?;
        let content = match &entry.policy.custody {
            Some(custody) => Some(custody.present_hash().await),
            None => None,
        };
        Ok(Self { manifest: hash_text(form.as_bytes()), content })
    }
}
