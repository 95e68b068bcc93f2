//! `packages`: which packages must be signed, and by whom.

use orla_document::Node;
use orla_marketplace::id::Pattern;
use orla_packages::signature::{Verifier, digest_of_root};
use orla_packages::source::pypi_name;
use serde_json::{Value, json};

use super::Config;
use super::forms::{Choice, Read, text_schema};
use super::keys::{Key, key, own};
use super::read::{Reader, excerpt};

/// The maximum size of a root of trust, in bytes.
const MAX_ROOT: u64 = 1 << 20;

/// The keys of `packages`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PackagesConfig {
    pub(crate) signatures: Signatures,
    /// Patterns of sources, each with the pattern of the signers of its packages.
    pub(crate) signers: Vec<(Pattern, Pattern)>,
    /// The text of the root of trust; without one, it is that of Sigstore's public instance.
    pub(crate) trusted_root: Option<String>,
}

impl PackagesConfig {
    /// Returns the SHA-256 of the root of trust.
    pub(crate) fn root_digest(&self) -> String {
        digest_of_root(self.trusted_root.as_deref())
    }
}

/// Which signatures of packages are verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Signatures {
    /// None.
    #[default]
    Off,
    /// Those that a package has.
    IfPresent,
    /// Those of all packages, which must have one.
    Required,
}

impl Signatures {
    pub(crate) const WORDS: &'static [(&'static str, Self)] =
        &[("off", Self::Off), ("if-present", Self::IfPresent), ("required", Self::Required)];
}

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
pub(super) fn keys() -> Vec<Key<Config>> {
    vec![
        key("signatures", Choice(Signatures::WORDS), |c: &mut Config| &mut c.packages.signatures,
            "which [signatures of packages](packages.md#signatures) orla verifies: `off`, none; `if-present`, those that a package has; `required`, all, and it refuses packages without one"),
        own("signers", read_signers, signers_schema,
            "who must have signed a package: `SOURCE: SIGNER`, with `*` in both, such as `\"npm:@acme/*\": \"https://github.com/acme/*\"`; a package whose source matches must have a valid signature, with any value of `signatures`"),
        key("trusted_root", Read(read_root, text_schema), |c| &mut c.packages.trusted_root,
            "the root of trust of signatures: a `trusted_root.json` of Sigstore; by default, that of Sigstore's public instance, which orla contains"),
    ]
}

/// Returns the root of trust in a file.
fn read_root(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    let file = reader.path_at(path, node)?;
    let root = super::read_text(&file, MAX_ROOT)
        .and_then(|text| match Verifier::new(Some(&text)) {
            Ok(_) => Ok(text),
            Err(problem) => Err(format!("{}: {problem}", file.display())),
        })
        .map_err(|problem| format!(": {problem}"));
    reader.named_files.push(file);
    reader.noted(path, node, root)
}

fn read_signers(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let Some(pairs) =
        reader.pairs(path, node, "a mapping from patterns of sources to patterns of their signers")
    else {
        return;
    };
    for (source, node) in pairs {
        let path = format!("{path}.{}", excerpt(&source.text));
        let Some(signer) = reader.line(&path, node, "a signer, such as https://github.com/acme/tools")
        else {
            continue;
        };
        let source = match source.text.strip_prefix("pypi:") {
            Some(name) => format!("pypi:{}", pypi_name(name)),
            None => source.text.clone(),
        };
        config.packages.signers.push((Pattern::new(source), Pattern::new(signer)));
    }
}

fn signers_schema() -> Value {
    json!({"type": "object", "additionalProperties": {"type": "string", "minLength": 1}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signers_are_read_by_patterns_of_sources() {
        let text = "packages:\n  signatures: if-present\n  signers: {'npm:@acme/*': 'https://github.com/acme/*', 'pypi:Acme_*': x}\n";
        let own = Config::of(text).unwrap_or_else(|problems| panic!("{problems:?}")).packages;
        assert_eq!(own.signatures, Signatures::IfPresent);
        let signers = vec![
            (Pattern::new("npm:@acme/*"), Pattern::new("https://github.com/acme/*")),
            (Pattern::new("pypi:acme-*"), Pattern::new("x")),
        ];
        assert_eq!((own.signers, own.trusted_root), (signers, None));
        assert_eq!(Config::of("").unwrap().packages, PackagesConfig::default());
        for wrong in ["signatures: sometimes", "signers: [a]", "signers: {a: []}", "signer: {}"] {
            assert!(Config::of(&format!("packages: {{{wrong}}}\n")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_root_of_trust_is_read_with_the_configuration() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("root.json");
        let text = format!("packages: {{trusted_root: {}}}\n", file.display());
        let problem = |text: &str| Config::of(text).err().unwrap()[0].to_string();
        let refused = || problem(&text);
        assert!(refused().contains("root.json cannot be read"), "{}", refused());
        std::fs::write(&file, "{}").unwrap();
        assert!(refused().contains("root.json: not a root of trust"), "{}", refused());
        assert!(problem("packages: {trusted_root: /dev/zero}\n").contains("not a regular file"));
    }
}
