//! The packages of the tools directories and of `orla.lock`.

use std::path::PathBuf;
use std::sync::Arc;

use orla_marketplace::Redactor;
use orla_marketplace::attestation::ContentSource;
use orla_process::confinement::Declared;
use orla_providers::NameRules;
use orla_providers::capsule::{Mode, packages};
use orla_providers::tool::Loaded;
use orla_secrets::Resolver;

use crate::config::Config;
use crate::declared_secrets;
use crate::findings::{Findings, sentences};
use crate::governance::Rules;
use crate::packages::Installed;
use crate::unserved;

use super::load::{base_of, declared, gate, overrides, pairs};
use super::{App, is_alone, policy};

/// The terms on which packages are served.
pub(super) struct Terms<'a> {
    pub(super) config: &'a Config,
    /// The limits of the processes of their calls.
    pub(super) process: orla_process::Limits,
    pub(super) rules: &'a Arc<Rules>,
    /// Resolves the references to secrets in their manifests.
    pub(super) secrets: &'a Resolver,
}

impl App {
    /// Finds the packages: simple ones are tools like others, capsules have their own supervisor. Returns what replaces
    /// the secrets that they are given.
    pub(super) fn load_packages(
        &self,
        terms: &Terms<'_>,
        installed: Installed,
        found: &mut Loaded,
        findings: &mut Findings,
    ) -> (Redactor, Installed) {
        let Terms { config, process, rules, secrets } = *terms;
        let home = user_packages(config).filter(|_| self.candidate.is_none());
        let mut packages = packages::find(&config.tools_dir, home.as_deref());
        findings.warnings.extend(sentences(&packages.warnings));
        findings.problems.extend(sentences(&packages.problems));
        *self.refused.lock() =
            packages.refused.iter().map(|(name, why)| (name.clone(), why.to_string())).collect();
        let installed = installed.without(|name| {
            let of_user = packages.packages.iter().find(|package| package.manifest.name == *name)?;
            let why = format!("{name} of orla.lock: {} has this name", of_user.directory.display());
            findings.problems.push(why.clone());
            Some(why)
        });
        self.refused.lock().extend(installed.refused().iter().cloned());
        let (folders, mut missing) = installed.folders(&base_of(config));
        packages.packages.extend(folders);
        let sandboxes = self.instance.sandboxes();
        let changes = overrides(config);
        let mut made = self.foreign_tools.lock();
        let (tools, unserved) =
            installed.tools(&base_of(config), process, &changes, sandboxes, &mut made);
        drop(made);
        found.registrations.extend(tools);
        missing.extend(unserved);
        let (operations, warnings, unserved) = installed.operations(&base_of(config));
        found.registrations.extend(operations);
        findings.warnings.extend(warnings);
        missing.extend(unserved);
        self.refuse(missing, findings);
        for package in &mut packages.packages {
            let change = config.change_of(&package.manifest.name);
            package.pass_env.extend(change.into_iter().flat_map(|change| change.pass_env.clone()));
            let changed = change.map(|change| declared(config, change)).unwrap_or_default();
            package.confine(self.instance.sandboxes(), &changed);
            findings.problems.extend(declared_secrets::fill(package, secrets));
            if let Some(change) = change {
                package.env = pairs(&change.env);
                package.redaction =
                    Redactor::united(package.redaction.take(), change.redaction.as_ref());
            }
        }
        let of_tools = found.registrations.iter().filter_map(|tool| tool.policy.redaction.as_deref());
        let of_packages = packages.packages.iter().filter_map(|package| package.redaction.as_deref());
        let given = Redactor::of_all(of_tools.chain(of_packages));
        *self.secret_files.lock() = secrets.files();
        let names: Vec<String> =
            found.registrations.iter().map(|tool| tool.manifest.id.clone()).collect();
        let renamed = packages::rename_conflicts(&mut found.registrations, &packages.packages);
        findings.warnings.extend(sentences(&renamed));
        for (tool, name) in found.registrations.iter_mut().zip(names) {
            let id = &tool.manifest.id;
            let change = config.tools.get(id).filter(|_| *id != name);
            if let Some(change) = change.filter(|change| change.declared != Declared::default()) {
                let text = format!(
                    "tools.{id}: the tool has this name because of a package named {name}; write its permissions and limits into the tool itself"
                );
                tool.policy = tool.policy.clone().unavailable(&text);
                findings.problems.push(match change.at {
                    Some(at) => config.placed(at, text),
                    None => text,
                });
            }
        }
        // An unavailable package has no process to supervise.
        let is_capsule = |package: &packages::Package| {
            package.manifest.mode == Mode::Capsule && package.fault.is_none()
        };
        let (capsules, simple): (Vec<_>, Vec<_>) = packages.packages.into_iter().partition(is_capsule);
        let is_open = |package: &packages::Package| {
            !self.is_denied(config, &package.manifest.name, &NameRules::default())
        };
        let capsules = capsules.into_iter().filter(is_open);
        for package in &simple {
            match packages::registration(package, process) {
                Ok(registration) => found.registrations.push(registration),
                Err(err) => findings.problems.push(format!("{}: {err}", package.directory.display())),
            }
        }
        // A capsule without a required attestation is never started, not even to learn its tools.
        let (capsules, refused): (Vec<_>, Vec<_>) = capsules
            .map(|package| {
                let content = ContentSource::Directory(package.directory.clone());
                (rules.may_start(content, None), package)
            })
            .partition(|(may_start, _)| may_start.is_ok());
        findings.problems.extend(refused.into_iter().filter_map(|(why, package)| {
            Some(format!("{}: not served: {}", package.manifest.name, why.err()?))
        }));
        self.capsules.supervisor().guard(gate(rules));
        let watched = capsules.into_iter().map(|(_, capsule)| {
            // `watch` includes the files of capsules.
            if config.watch { capsule.hot_loaded() } else { capsule }
        });
        self.capsules.supervisor().load(watched, policy(config));
        (given, installed)
    }

    /// Returns whether no capability of the capsule or server with this name is served. The answer is
    /// cached.
    pub(super) fn is_denied(&self, config: &Config, name: &str, names: &NameRules) -> bool {
        // The tools of an inspected package must be known whether they will be served or not.
        let is_denied = self.candidate.is_none() && unserved::is_denied(config, name, names);
        if is_denied {
            self.denied.lock().push(name.to_owned());
        }
        is_denied
    }

    /// Keeps why packages of the lock cannot be served, each with its name.
    pub(super) fn refuse(&self, packages: Vec<(String, String)>, findings: &mut Findings) {
        findings.problems.extend(packages.iter().map(|(_, why)| why.clone()));
        self.refused.lock().extend(packages);
    }
}

/// Returns the directories of packages besides the tools directory: that of the user.
pub(crate) fn user_packages(config: &Config) -> Option<PathBuf> {
    home_packages().filter(|_| !is_alone(config))
}

/// Where packages for all projects are.
pub(super) fn home_packages() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty())?;
    Some(PathBuf::from(home).join(".orla/tools"))
}
