//! `packages`: which packages must be signed, and by whom.

use std::path::PathBuf;

use orla_document::Node;
use orla_marketplace::id::Pattern;
use serde_json::{Value, json};

use super::Config;
use super::forms::{Choice, File};
use super::keys::{Key, key, own};
use super::read::{Reader, excerpt};

/// The keys of `packages`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PackagesConfig {
    pub(crate) signatures: Signatures,
    /// Patterns of sources, each with the pattern of the signers of its packages.
    pub(crate) signers: Vec<(Pattern, Pattern)>,
    /// The root of trust; empty for that of Sigstore's public instance.
    pub(crate) trusted_root: PathBuf,
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
        key("trusted_root", File, |c| &mut c.packages.trusted_root,
            "the root of trust of signatures: a `trusted_root.json` of Sigstore; by default, that of Sigstore's public instance, which orla contains"),
    ]
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
        config.packages.signers.push((Pattern::new(source.text.clone()), Pattern::new(signer)));
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
        let text = "packages:\n  signatures: if-present\n  signers: {'npm:@acme/*': 'https://github.com/acme/*'}\n  trusted_root: root.json\n";
        let own = Config::of(text).unwrap_or_else(|problems| panic!("{problems:?}")).packages;
        assert_eq!(own.signatures, Signatures::IfPresent);
        let signers = vec![(Pattern::new("npm:@acme/*"), Pattern::new("https://github.com/acme/*"))];
        assert_eq!((own.signers, own.trusted_root), (signers, PathBuf::from("root.json")));
        assert_eq!(Config::of("").unwrap().packages, PackagesConfig::default());
        for wrong in ["signatures: sometimes", "signers: [a]", "signers: {a: []}", "signer: {}"] {
            assert!(Config::of(&format!("packages: {{{wrong}}}\n")).is_err(), "{wrong}");
        }
    }
}
