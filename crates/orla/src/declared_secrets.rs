//! Secrets that tools and packages ask for: `${secret:NAME}` and `${file:PATH}` in the `env` and `args` of their
//! declarations.

use std::path::Path;
use std::sync::Arc;

use orla_marketplace::Redactor;
use orla_providers::capsule::packages::{Package, Unfilled};
use orla_providers::tool::Filled;
use orla_secrets::{Resolver, Secret, Source};

use crate::config::expand::expand_references;

/// Where a declaration in a directory may read its secrets.
pub(crate) fn place(directory: &Path, is_confined: bool) -> Source<'_> {
    if is_confined { Source::ConfinedPackage(directory) } else { Source::Package(directory) }
}

/// Returns the text of a declaration with secrets in place of the references. A reference without a
/// value stays unchanged, and is listed with the reason.
pub(crate) fn fill_texts(declared: Filled, place: Source<'_>, secrets: &Resolver) -> Filled {
    let (since, mut filled) = (secrets.count(), declared);
    let texts = filled.env.iter_mut().map(|(_, value)| value).chain(&mut filled.args);
    for text in texts {
        match expand_references(text, &|reference| secrets.resolve(reference, place)) {
            Ok(filled) => *text = filled,
            Err(problem) => filled.unfilled.push((text.clone(), problem.to_string())),
        }
    }
    let redactor = Redactor::new(secrets.resolved(since).iter().map(Secret::expose));
    filled.redaction = (!redactor.is_empty()).then(|| Arc::new(redactor));
    filled
}

/// Fills in the references in the manifest of a package whose confinement is known. A package with a reference that has no
/// value is unavailable; the sentences say why.
pub(crate) fn fill(package: &mut Package, secrets: &Resolver) -> Vec<String> {
    let own = &mut package.manifest;
    let declared = Unfilled { env: own.env.clone(), args: own.args.clone() };
    let texts = Filled {
        env: std::mem::take(&mut own.env),
        args: std::mem::take(&mut own.args),
        ..Filled::default()
    };
    let is_confined = package.sandbox.as_ref().is_some_and(|sandbox| !sandbox.is_off());
    let filled = fill_texts(texts, place(&package.directory, is_confined), secrets);
    (own.env, own.args, package.redaction) = (filled.env, filled.args, filled.redaction);
    if own.env != declared.env || own.args != declared.args {
        package.unfilled = Some(declared);
    }
    let found =
        filled.unfilled.into_iter().map(|(text, why)| package.finding_at(&text, why).to_string());
    let problems: Vec<String> = found.collect();
    if !problems.is_empty() {
        package.fault.get_or_insert_with(|| problems.join("; "));
    }
    problems
}
