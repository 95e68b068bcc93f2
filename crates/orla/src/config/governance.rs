//! `trusted_keys`, `attestations`, `require_attestation`, `audit` and related keys: the authorities that
//! attest capabilities, and the record of calls.

use std::path::PathBuf;

use orla_document::{Kind, Node};
use orla_marketplace::attestation::{PublicKey, TrustedKeys};
use serde_json::{Value, json};

use super::Config;
use super::read::{Reader, excerpt};

/// The configuration of attestations and of the audit.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GovernanceConfig {
    /// The file that holds the attestations; beside the configuration where it is empty.
    pub(crate) attestations: PathBuf,
    pub(crate) trusted_keys: TrustedKeys,
    pub(crate) require_attestation: bool,
    /// The audit log; none where it is empty.
    pub(crate) audit: PathBuf,
    pub(crate) audit_sync: AuditSync,
    /// The secret key that signs the audit log's head; none where it is empty.
    pub(crate) audit_key: PathBuf,
    /// Where heads are given to.
    pub(crate) audit_heads: Option<AuditHeads>,
}

/// Where heads of the audit log are given to, beside the log itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AuditHeads {
    /// They are appended, one line each.
    File(PathBuf),
    /// A program and its arguments, which reads one line on its standard input.
    Command(Vec<String>),
}

/// When the audit log is written through to the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AuditSync {
    /// After every batch of lines.
    Always,
    /// Once in a second.
    #[default]
    Second,
    /// When the system likes.
    Never,
}

impl AuditSync {
    pub(crate) const WORDS: &'static [(&'static str, Self)] =
        &[("always", Self::Always), ("second", Self::Second), ("never", Self::Never)];
}

pub(super) fn read_keys(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let Some(pairs) =
        reader.pairs(path, node, "a mapping from names of authorities to their public keys")
    else {
        return;
    };
    for (name, node) in pairs {
        let path = format!("{path}.{}", excerpt(&name.text));
        let Some(text) = reader.line(&path, node, "a public key (ed25519:BASE64)") else { continue };
        match PublicKey::parse(&text) {
            Ok(key) => {
                config.governance.trusted_keys.insert(name.text.clone(), key);
            }
            // The text may be the secret key by mistake, so it is not repeated.
            Err(problem) => reader.problem(node.at, || format!("{path}: {problem}")),
        }
    }
}

pub(super) fn read_heads(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let heads = match &node.kind {
        Kind::List(words) => {
            let words: Option<Vec<String>> =
                words.iter().map(|word| reader.word_at(path, word, "text")).collect();
            let Some(words) = words else { return };
            if words.first().is_none_or(String::is_empty) {
                return reader.problem(node.at, || format!("{path}: expected a command, got none"));
            }
            AuditHeads::Command(words)
        }
        _ => match reader.path_at(path, node) {
            Some(file) => AuditHeads::File(file),
            None => return,
        },
    };
    config.governance.audit_heads = Some(heads);
}

pub(super) fn heads_schema() -> Value {
    json!({"oneOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
    ]})
}

pub(super) fn keys_schema() -> Value {
    json!({
        "type": "object",
        "additionalProperties": {"type": "string", "pattern": "^ed25519:[A-Za-z0-9+/]{43}=$|\\$\\{"},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ed25519:Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";

    #[test]
    fn keys_are_read_by_their_authorities() {
        let text = format!(
            "trusted_keys: {{ops: '{KEY}'}}\nrequire_attestation: true\naudit: a.jsonl\naudit_sync: always\n"
        );
        let own = Config::of(&text).unwrap_or_else(|problems| panic!("{problems:?}")).governance;
        assert_eq!(own.trusted_keys["ops"].to_string(), KEY);
        assert!(own.require_attestation);
        assert_eq!((own.audit, own.audit_sync), (PathBuf::from("a.jsonl"), AuditSync::Always));
        let text = "audit: a\naudit_key: k.pem\naudit_heads: h.jsonl\n";
        let own = Config::of(text).unwrap_or_else(|problems| panic!("{problems:?}")).governance;
        assert_eq!(own.audit_key, PathBuf::from("k.pem"));
        assert_eq!(own.audit_heads, Some(AuditHeads::File("h.jsonl".into())));
        let own = Config::of("audit: a\naudit_heads: [logger, -t, orla]\n").unwrap().governance;
        let command = ["logger", "-t", "orla"].map(str::to_owned).to_vec();
        assert_eq!(own.audit_heads, Some(AuditHeads::Command(command)));
        for text in ["audit_key: k.pem\n", "audit_heads: h\n", "audit: a\naudit_heads: []\n"] {
            assert!(Config::of(text).is_err_and(|problems| !problems.is_empty()), "{text}");
        }
        assert_eq!(Config::of("").unwrap().governance, GovernanceConfig::default());
    }

    #[test]
    fn an_invalid_key_is_refused_with_its_place_and_not_quoted() {
        let problems = Config::of("trusted_keys:\n  ops: CANARY\n").map(|_| ()).unwrap_err();
        let text = problems[0].to_string();
        assert!(text.contains("trusted_keys.ops") && text.contains(":2:8"), "{text}");
        assert!(!text.contains("CANARY"), "{text}");
        assert!(Config::of("trusted_keys: [a]\n").is_err());
        assert!(Config::of("audit_sync: sometimes\n").is_err());
    }
}
