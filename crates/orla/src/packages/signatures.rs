//! Which packages must be signed, and by whom.

use orla_marketplace::id::Pattern;
use orla_packages::lock::Entry;
use orla_packages::signature::Signer;
use orla_packages::source::Source;
use orla_packages::store::Store;

use crate::config::{PackagesConfig, Signatures};

/// What the configuration and the lock demand of the signature of a package.
#[derive(Debug)]
pub(crate) struct Demand<'a> {
    is_required: bool,
    /// The patterns that the signer must match, all of them.
    signers: Vec<&'a Pattern>,
    /// The signer in the lock.
    locked: Option<&'a str>,
}

impl<'a> Demand<'a> {
    /// Returns the demand on a package from a source, which may be a name in a registry for the second
    /// one. `None` if no signature of it is verified.
    pub(crate) fn of(
        config: &'a PackagesConfig,
        source: &Source,
        resolved: Option<&Source>,
    ) -> Option<Self> {
        let sources: Vec<String> = [Some(source), resolved].into_iter().flatten().map(plain).collect();
        Self::of_texts(config, &sources)
    }

    fn of_texts(config: &'a PackagesConfig, sources: &[String]) -> Option<Self> {
        let is_of = |pattern: &Pattern| sources.iter().any(|source| pattern.matches(source));
        let signers: Vec<&Pattern> =
            config.signers.iter().filter_map(|(of, signer)| is_of(of).then_some(signer)).collect();
        match config.signatures {
            Signatures::Off if signers.is_empty() => None,
            signatures => {
                let is_required = signatures == Signatures::Required || !signers.is_empty();
                Some(Self { is_required, signers, locked: None })
            }
        }
    }

    /// Returns the demand on a package of the lock: it must have the signer that it had when it was locked.
    pub(crate) fn of_locked(
        config: &'a PackagesConfig,
        entry: &'a Entry,
        store: &Store,
    ) -> Option<Self> {
        let is_folder = |path: &str| store.project().join(path).is_dir();
        // A text that is no source, such as a commit, stays as it is.
        let text = |text: &String| {
            Source::parse(text, is_folder).map_or_else(|_| text.clone(), |source| plain(&source))
        };
        let sources: Vec<String> =
            [Some(&entry.source), entry.resolved.as_ref()].into_iter().flatten().map(text).collect();
        let demand = Self::of_texts(config, &sources)?;
        Some(Self { locked: entry.signed_by.as_deref(), ..demand })
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
                    Err("it is not signed, and `packages` of the configuration demands a signature"
                        .to_owned())
                }
                (_, Some(locked)) => Err(format!("it is not signed, and was signed by {locked}")),
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
    /// It was not verified here, or is another one.
    pub(crate) fn check_here(&self, entry: &Entry, store: &Store) -> Result<(), String> {
        let signer = store.signer(&entry.sha256);
        self.check(signer.as_ref()).map_err(|why| match signer {
            Some(_) => why,
            None => "its signature was not verified on this machine: run `orla sync`".to_owned(),
        })
    }
}

/// Returns the text of a source in any version.
fn plain(source: &Source) -> String {
    source.clone().without_version().to_string()
}

#[cfg(test)]
mod tests {
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
        let source = Source::parse("npm:@acme/tool@1.0.0", |_| false).unwrap();
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
        let listed = Source::parse("io.github.acme/tool", |_| false).unwrap();
        assert!(Demand::of(&config(Off, &acme), &listed, Some(&source)).is_some());
    }
}
