//! The file beside the configuration that holds attestations: `orla.attestations.json`.
//!
//! orla never changes packages or tools, so attestations are kept in a file of their own. The file contains no
//! secrets, and everything in it can be verified. It belongs in version control.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use orla_marketplace::CapabilityAttestation;
use orla_marketplace::attestation::{format_instant, parse_instant};
use serde::{Deserialize, Serialize};

use crate::config::read_text;

/// The default name of the file.
pub(crate) const DEFAULT_FILE: &str = "orla.attestations.json";
/// The version of the form.
const VERSION: u32 = 1;
/// The largest file that is read.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// Attestations by the ids of their capabilities.
pub(crate) type Attestations = BTreeMap<String, CapabilityAttestation>;

/// Reads a file; a missing one has no attestations.
///
/// # Errors
///
/// Returns a sentence with the path if the file cannot be read, or is not a file of attestations.
pub(crate) fn load(path: &Path) -> Result<Attestations, String> {
    if matches!(fs::symlink_metadata(path), Err(err) if err.kind() == std::io::ErrorKind::NotFound) {
        return Ok(Attestations::new());
    }
    let text = read_text(path, MAX_FILE)?;
    parse(&text).map_err(|problem| format!("{}: {problem}", path.display()))
}

fn parse(text: &str) -> Result<Attestations, String> {
    let file: Document = serde_json::from_str(text).map_err(|err| err.to_string())?;
    if file.version != VERSION {
        return Err(format!("expected version {VERSION}, got {}", file.version));
    }
    let read = |(id, row): (String, Row)| {
        let attestation = row.read().map_err(|problem| format!("attestations.{id}.{problem}"))?;
        Ok((id, attestation))
    };
    file.attestations.into_iter().map(read).collect()
}

/// Returns the text of a file with these attestations.
pub(crate) fn print(attestations: &Attestations) -> String {
    let rows = attestations.iter().map(|(id, attestation)| (id.clone(), Row::of(attestation)));
    let file = Document { version: VERSION, attestations: rows.collect() };
    // Texts in maps can always be written.
    let text = serde_json::to_string_pretty(&file).unwrap_or_default();
    format!("{text}\n")
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    attestations: BTreeMap<String, Row>,
}

/// An attestation in the form of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    authority: String,
    created_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    metadata: BTreeMap<String, String>,
    signature: String,
}

impl Row {
    pub(crate) fn of(attestation: &CapabilityAttestation) -> Self {
        Self {
            authority: attestation.authority.clone(),
            created_at: format_instant(attestation.created_at),
            expires_at: attestation.expires_at.map(format_instant),
            metadata: attestation.metadata.clone(),
            signature: attestation.signature.clone(),
        }
    }

    /// # Errors
    ///
    /// Returns a text that names the invalid time, if there is one.
    pub(crate) fn read(self) -> Result<CapabilityAttestation, String> {
        let time = |name: &str, text: &str| -> Result<SystemTime, String> {
            let expected =
                || format!("{name}: expected a time such as 2026-11-20T08:00:00Z, got {text:?}");
            parse_instant(text).ok_or_else(expected)
        };
        Ok(CapabilityAttestation {
            created_at: time("created_at", &self.created_at)?,
            expires_at: self.expires_at.map(|text| time("expires_at", &text)).transpose()?,
            signature: self.signature,
            authority: self.authority,
            metadata: self.metadata,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn attestations() -> Attestations {
        let attestation = CapabilityAttestation {
            signature: "AAAA".into(),
            authority: "ops".into(),
            created_at: UNIX_EPOCH + Duration::from_secs(1_795_161_600),
            expires_at: None,
            metadata: [("content_hash".to_owned(), "sha256:00".to_owned())].into(),
        };
        let until = CapabilityAttestation {
            expires_at: Some(UNIX_EPOCH + Duration::from_secs(1_800_000_000)),
            ..attestation.clone()
        };
        [("a".to_owned(), attestation), ("b.c".to_owned(), until)].into()
    }

    #[test]
    fn written_attestations_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DEFAULT_FILE);
        assert_eq!(load(&path), Ok(Attestations::new()));
        fs::write(&path, print(&attestations())).unwrap();
        assert_eq!(load(&path), Ok(attestations()));
    }

    #[test]
    fn an_invalid_file_is_refused_with_the_place() {
        let good = print(&attestations());
        let cases = [
            ("cut off", good[..good.len() / 2].to_owned(), "line"),
            ("another version", good.replace("\"version\": 1", "\"version\": 2"), "expected version 1"),
            ("an unknown key", good.replace("\"authority\"", "\"authorty\""), "authorty"),
            ("no time", good.replace("2026-11-20T08:00:00Z", "today"), "attestations.a.created_at"),
            ("a list", "[]".to_owned(), "line 1"),
        ];
        for (name, text, says) in cases {
            let problem = parse(&text).unwrap_err();
            assert!(problem.contains(says), "{name}: {problem}");
        }
    }
}
