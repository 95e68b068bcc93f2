//! The file beside the configuration that holds attestations: `orla.attestations.json`.
//!
//! orla never changes packages or tools, so attestations are kept in a file of their own. The file contains no
//! secrets, and everything in it can be verified. It belongs in version control.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use orla_marketplace::CapabilityAttestation;
use orla_marketplace::attestation::{format_instant, parse_instant};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::config::{read_text, reason};

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
/// A sentence with its path: it cannot be read, or is no such file.
pub(crate) fn load(path: &Path) -> Result<Attestations, String> {
    if matches!(fs::symlink_metadata(path), Err(err) if err.kind() == std::io::ErrorKind::NotFound) {
        return Ok(Attestations::new());
    }
    let text = read_text(path, MAX_FILE)?;
    parse(&text).map_err(|problem| format!("{}: {problem}", path.display()))
}

/// A change of a file. Others wait until it is saved or dropped.
///
/// What is being written is beside the file and is locked. It then takes the place of the file, so that a reader sees the
/// old content or the new content.
pub(crate) struct Change<'p> {
    path: &'p Path,
    partial: PathBuf,
    file: fs::File,
    is_saved: bool,
}

impl<'p> Change<'p> {
    /// Waits until no one else changes the file.
    ///
    /// # Errors
    /// A sentence with the path of the file: it cannot be written.
    pub(crate) fn begin(path: &'p Path) -> Result<Self, String> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        let partial = path.with_file_name(name);
        loop {
            let mut options = fs::OpenOptions::new();
            let options = options.create(true).truncate(false).write(true);
            let file = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(&partial);
            let file =
                file.and_then(|file| file.lock().map(|()| file)).map_err(|err| failed(path, &err))?;
            // Who had the lock may have saved or removed it.
            let is_there = fs::symlink_metadata(&partial).is_ok_and(|there| {
                file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (there.dev(), there.ino()))
            });
            if is_there {
                return Ok(Self { path, partial, file, is_saved: false });
            }
        }
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// A sentence with its path.
    pub(crate) fn save(mut self, attestations: &Attestations) -> Result<(), String> {
        let written = self
            .file
            .set_len(0)
            .and_then(|()| self.file.write_all(print(attestations).as_bytes()))
            .and_then(|()| self.file.sync_all())
            .and_then(|()| fs::rename(&self.partial, self.path));
        self.is_saved = written.is_ok();
        written.map_err(|err| failed(self.path, &err))
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if !self.is_saved {
            drop(fs::remove_file(&self.partial));
        }
    }
}

fn failed(path: &Path, err: &std::io::Error) -> String {
    format!("{} cannot be written: {}", path.display(), reason(err))
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

fn print(attestations: &Attestations) -> String {
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
    /// One of its times is invalid; the text says which.
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
    fn what_is_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DEFAULT_FILE);
        assert_eq!(load(&path), Ok(Attestations::new()));
        Change::begin(&path).unwrap().save(&attestations()).unwrap();
        assert_eq!(load(&path), Ok(attestations()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
        drop(Change::begin(&path).unwrap());
        assert_eq!(load(&path), Ok(attestations()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
        assert!(Change::begin(&dir.path().join("none/x")).is_err());
    }

    #[test]
    fn changes_of_one_file_come_one_after_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DEFAULT_FILE);
        std::thread::scope(|scope| {
            for at in 0..50 {
                let path = &path;
                scope.spawn(move || {
                    let change = Change::begin(path).unwrap();
                    let mut all = load(path).unwrap();
                    all.insert(at.to_string(), attestations().remove("a").unwrap());
                    if at % 5 != 0 {
                        change.save(&all).unwrap();
                    }
                });
            }
        });
        assert_eq!(load(&path).unwrap().len(), 40);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn what_is_no_such_file_is_refused_with_its_place() {
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
