//! Secrets that packages ask for: `${secret:NAME}` and `${file:PATH}` in the `env` and `args` of their manifests.

use std::sync::Arc;

use orla_marketplace::Redactor;
use orla_providers::capsule::packages::{Package, Unfilled};
use orla_secrets::{Resolver, Secret, Source};

use crate::config::expand::expand_references;

/// Fills in the references in the manifest of a package whose confinement is known. A package with a reference that has no value is unavailable; the
/// sentence says why.
pub(crate) fn fill(package: &mut Package, secrets: &Resolver) -> Option<String> {
    let since = secrets.count();
    let source = match package.sandbox {
        Some(_) => Source::ConfinedPackage(&package.directory),
        None => Source::Package(&package.directory),
    };
    let own = &mut package.manifest;
    let asked = Unfilled { env: own.env.clone(), args: own.args.clone() };
    let texts = own.env.iter_mut().map(|(_, value)| value).chain(&mut own.args);
    let problems: Vec<String> = texts
        .filter_map(|text| {
            let filled = expand_references(text, &|reference| secrets.resolve(reference, source));
            filled.map(|filled| *text = filled).err()
        })
        .map(|problem| problem.to_string())
        .collect();
    let given = Redactor::new(secrets.given(since).iter().map(Secret::expose));
    package.redaction = (!given.is_empty()).then(|| Arc::new(given));
    if package.manifest.env != asked.env || package.manifest.args != asked.args {
        package.unfilled = Some(asked);
    }
    if problems.is_empty() {
        return None;
    }
    let problem = format!("{}: {}", package.directory.display(), problems.join("; "));
    package.fault.get_or_insert_with(|| problem.clone());
    Some(problem)
}
