//! Which packages must be signed, and by whom.

use orla_marketplace::id::Pattern;
use orla_packages::lock::Entry;
use orla_packages::signature::Signer;
use orla_packages::source::{Source, pypi_name};
use orla_packages::store::Store;

use crate::config::{PackagesConfig, Signatures};

/// What is said of a package without one.
pub(crate) const UNSIGNED: &str = "no signature that orla can verify";

/// What the configuration and the lock demand of the signature of a package.
#[derive(Debug)]
pub(crate) struct Demand<'a> {
    config: &'a PackagesConfig,
    is_required: bool,
    /// The patterns that the signer must match, all of them.
    signers: Vec<&'a Pattern>,
    /// The signer in the lock.
    locked: Option<&'a str>,
}

impl<'a> Demand<'a> {
    /// Returns the demand on a package from a source. `resolved` is the program that a registry named for
    /// it. `None` if no signature of the package is verified.
    pub(crate) fn of(
        config: &'a PackagesConfig,
        source: &Source,
        resolved: Option<&Source>,
    ) -> Option<Self> {
        let texts: Vec<String> =
            [Some(source), resolved].into_iter().flatten().flat_map(texts).collect();
        Self::matching(config, |pattern| texts.iter().any(|text| pattern.matches(text)))
    }

    /// Returns the demand on a package whose source matches these patterns.
    fn matching(config: &'a PackagesConfig, is_of: impl Fn(&Pattern) -> bool) -> Option<Self> {
        let signers: Vec<&Pattern> =
            config.signers.iter().filter_map(|(of, signer)| is_of(of).then_some(signer)).collect();
        match config.signatures {
            Signatures::Off if signers.is_empty() => None,
            signatures => {
                let is_required = signatures == Signatures::Required || !signers.is_empty();
                Some(Self { config, is_required, signers, locked: None })
            }
        }
    }

    /// Returns the demand on a package of the lock: it must have the signer that it had when it was locked.
    pub(crate) fn of_locked(config: &'a PackagesConfig, entry: &'a Entry) -> Option<Self> {
        let parsed = |text: &String| Source::parse(text).ok();
        let source = parsed(&entry.source);
        // Another text, such as a commit, is no program.
        let resolved = entry.resolved.as_ref().and_then(parsed).filter(is_program);
        let is_known = match &source {
            Some(Source::Registry { .. }) => entry.requires.is_empty() || resolved.is_some(),
            source => source.is_some(),
        };
        let demand = match &source {
            Some(source) if is_known => Self::of(config, source, resolved.as_ref()),
            // A lock that was changed by hand: it could be the package of each pattern.
            _ => Self::matching(config, |_| true),
        };
        Some(Self { locked: entry.signed_by.as_deref(), ..demand? })
    }

    /// Checks that the lock names the signer of a package that must have one. Otherwise, a removed line of
    /// the lock would make any signer the right one.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn check_lock(&self, name: &str) -> Result<(), String> {
        match self.is_required && self.locked.is_none() {
            true => Err(format!(
                "orla.lock does not name its signer, and `packages` of the configuration demands a signature: run `orla update {name}`"
            )),
            false => Ok(()),
        }
    }

    /// Checks the verified signer of a package.
    ///
    /// # Errors
    /// There is none, or another one.
    pub(crate) fn check(&self, signer: Option<&Signer>) -> Result<(), String> {
        let Some(signer) = signer else {
            return match (self.is_required, self.locked) {
                (false, None) => Ok(()),
                (true, None) => {
                    Err(format!("it has {UNSIGNED}, and `packages` of the configuration demands one"))
                }
                (_, Some(locked)) => Err(format!("it has {UNSIGNED}, and was signed by {locked}")),
            };
        };
        if let Some(pattern) = self.signers.iter().find(|pattern| !pattern.matches(&signer.name)) {
            return Err(format!(
                "it is signed by {}, and `packages.signers` of the configuration demands {}",
                signer.name,
                pattern.as_str()
            ));
        }
        match self.locked.filter(|locked| *locked != signer.name) {
            Some(locked) => Err(format!("it is signed by {}, and was signed by {locked}", signer.name)),
            None => Ok(()),
        }
    }

    /// Checks the signer of a package that was verified on this machine.
    ///
    /// # Errors
    /// It was not verified here, is another one, or is missing in the lock.
    pub(crate) fn check_here(&self, entry: &Entry, store: &Store) -> Result<(), String> {
        self.check_lock(&entry.name)?;
        let signer = store.signer(&entry.sha256, &self.config.root_digest());
        self.check(signer.as_ref()).map_err(|why| match signer {
            Some(_) => why,
            None => "its signature was not verified on this machine: run `orla sync`".to_owned(),
        })
    }
}

/// Returns whether it is a program whose source a registry of servers can name.
fn is_program(source: &Source) -> bool {
    matches!(source, Source::Npm { .. } | Source::Pypi { .. } | Source::Cargo { .. })
}

/// Returns the texts of a source in any version that a pattern may match: as it is written, and in the form
/// that all spellings share.
fn texts(source: &Source) -> Vec<String> {
    let written = source.clone().without_version().to_string();
    let shared = match source {
        Source::Pypi { name, .. } => Some(format!("pypi:{}", pypi_name(name))),
        _ => None,
    };
    std::iter::once(written).chain(shared).collect()
}

#[cfg(test)]
mod tests {
    use orla_packages::lock::Lock;

    use super::*;

    fn config(signatures: Signatures, signers: &[(&str, &str)]) -> PackagesConfig {
        let pattern = |text: &str| Pattern::new(text);
        let signers = signers.iter().map(|(source, signer)| (pattern(source), pattern(signer)));
        PackagesConfig { signatures, signers: signers.collect(), ..PackagesConfig::default() }
    }

    #[test]
    fn a_package_is_refused_unless_its_signer_is_the_demanded_one() {
        let acme = [("npm:@acme/*", "https://github.com/acme/*")];
        let both = [acme[0], ("npm:*", "https://github.com/*")];
        let by = |name: &str| Some(Signer { name: name.to_owned(), workflow: None });
        let (ours, other) = (by("https://github.com/acme/a"), by("https://github.com/evil/a"));
        let stranger = by("identity https://github.com/acme/a of https://issuer.example");
        use Signatures::{IfPresent, Off, Required};
        let source = Source::parse("npm:@acme/tool@1.0.0").unwrap();
        for (what, config, locked, signer, is_fine) in [
            ("any signer will do", config(Required, &[]), None, &other, true),
            ("none is refused", config(Required, &[]), None, &None, false),
            ("none will do", config(IfPresent, &[]), None, &None, true),
            (
                "the one of the lock",
                config(IfPresent, &[]),
                Some("https://github.com/acme/a"),
                &ours,
                true,
            ),
            (
                "another than that of the lock",
                config(IfPresent, &[]),
                Some("https://github.com/acme/a"),
                &other,
                false,
            ),
            (
                "none, unlike the lock",
                config(IfPresent, &[]),
                Some("https://github.com/acme/a"),
                &None,
                false,
            ),
            ("the demanded one", config(Off, &acme), None, &ours, true),
            ("another one", config(Off, &acme), None, &other, false),
            ("one of another kind", config(Off, &acme), None, &stranger, false),
            ("none, although one is demanded", config(Off, &acme), None, &None, false),
            ("all patterns match", config(Off, &both), None, &ours, true),
            ("one of two patterns matches", config(Off, &both), None, &other, false),
        ] {
            let demand = Demand { locked, ..Demand::of(&config, &source, None).unwrap() };
            assert_eq!(demand.check(signer.as_ref()).is_ok(), is_fine, "{what}");
        }
        assert!(Demand::of(&config(Off, &[]), &source, None).is_none());
        let elsewhere = [("npm:@other/*", "x")];
        assert!(Demand::of(&config(Off, &elsewhere), &source, None).is_none());
        let listed = Source::parse("io.github.acme/tool").unwrap();
        assert!(Demand::of(&config(Off, &acme), &listed, Some(&source)).is_some());
        // In each spelling, pip installs the same project. The configuration has patterns in one spelling.
        let pypi = [("pypi:weather-mcp", "https://github.com/acme/*")];
        for spelling in ["pypi:Weather_MCP", "pypi:weather.mcp==1.0", "pypi:weather-mcp"] {
            let source = Source::parse(spelling).unwrap();
            assert!(Demand::of(&config(Off, &pypi), &source, None).is_some(), "{spelling}");
        }
    }

    #[test]
    fn a_lock_cannot_leave_out_what_is_demanded() {
        let store = Store::new("/none", None);
        let acme = [("npm:@acme/*", "https://github.com/acme/*")];
        let lock = |source: &str, more: &str| {
            let digest = "0".repeat(64);
            let text = format!(
                "format: 1\npackages:\n  - name: tool\n    source: \"{source}\"\n{more}    kind: bundle\n    version: \"1\"\n    sha256: \"{digest}\"\n    tools_digest: \"{digest}\"\n    permissions: []\n"
            );
            Lock::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}")).entries()[0].clone()
        };
        let npm = |name: &str| format!("    resolved: \"npm:{name}@1.0.0\"\n");
        let requires = "    requires:\n      - \"x\"\n";
        let signers = config(Signatures::Off, &acme);
        for (what, source, more, is_demanded) in [
            ("the program that the registry named", "io.github.a/b", npm("@acme/tool") + requires, true),
            ("another program", "io.github.a/b", npm("other") + requires, false),
            ("a program without its name", "io.github.a/b", requires.to_owned(), true),
            ("a commit", "io.github.a/b", format!("    resolved: \"0a1b\"\n{requires}"), true),
            ("a bundle", "io.github.a/b", String::new(), false),
            ("a text that is no source", "nothing", String::new(), true),
        ] {
            let entry = lock(source, &more);
            let demand = Demand::of_locked(&signers, &entry);
            assert_eq!(demand.is_some(), is_demanded, "{what}");
        }
        let signed = "    signed_by: \"https://github.com/acme/a\"\n";
        for (signatures, more, words) in [
            (Signatures::Required, "", "orla update tool"),
            (Signatures::Required, signed, "orla sync"),
            (Signatures::IfPresent, signed, "orla sync"),
            (Signatures::IfPresent, "", ""),
        ] {
            let (config, entry) = (config(signatures, &[]), lock("npm:tool", more));
            let demand = Demand::of_locked(&config, &entry).unwrap();
            let why = demand.check_here(&entry, &store).err().unwrap_or_default();
            assert!(why.contains(words) && why.is_empty() == words.is_empty(), "{why}");
        }
    }
}
