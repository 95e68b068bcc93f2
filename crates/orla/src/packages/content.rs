//! What an archive is: a bundle or a folder, who made it, what it runs and what it wants.

use std::path::Path;
use std::sync::Arc;

use orla_document::{Kind, Node};
use orla_marketplace::Redactor;
use orla_packages::archive::Archive;
use orla_packages::bundle::{self, Bundle, Command, MANIFEST, MAX_MANIFEST, Setting};
use orla_packages::lock::{Entry, PackageKind};
use orla_packages::source::Source;
use orla_process::child::NO_PYTHON_CACHE;
use orla_process::confinement::Declared;
use orla_providers::capsule::manifest::{self, Form, Manifest};
use orla_providers::capsule::packages::MANIFESTS;
use orla_providers::mcp::{Reach, ServerSettings};
use orla_secrets::{Reference, ReferenceError, Secret, SecretStore};

use crate::config::expand::expand_references;

/// What an archive says of itself.
pub(crate) struct Content {
    pub(crate) kind: PackageKind,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) description: String,
    /// Who made it, as it says.
    pub(crate) author: String,
    /// What is started.
    pub(crate) runs: String,
    /// The variables that it sets: `NAME=VALUE`.
    pub(crate) env: Vec<String>,
    /// The permissions that it declares.
    pub(crate) wants: Vec<String>,
    /// Keys of settings, with what they are and whether they are required.
    pub(crate) settings: Vec<(String, Setting)>,
}

/// The name of this system in manifests of bundles.
const SYSTEM: &str = if cfg!(target_os = "macos") { "darwin" } else { "linux" };
/// The most permissions that a package may want, and the longest one: a person reads them.
const MAX_WANTS: usize = 100;
const MAX_WANT: usize = 400;

impl Content {
    /// Reads the manifest of an archive.
    ///
    /// # Errors
    /// It has none, or a broken one.
    pub(crate) fn read(archive: &Archive<'_>) -> Result<Self, String> {
        let file = |name: &str| archive.file(name, MAX_MANIFEST).map_err(|error| error.to_string());
        if let Some(text) = file(MANIFEST)? {
            let bundle = bundle::read(&text, SYSTEM)?;
            let runs = format!("{} {}", bundle.command, bundle.args.join(" "));
            return Ok(Self {
                kind: PackageKind::Bundle,
                name: bundle.name,
                version: bundle.version,
                description: bundle.description,
                author: bundle.author,
                runs,
                env: bundle.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
                wants: Vec::new(),
                settings: bundle.settings.into_iter().collect(),
            });
        }
        for name in MANIFESTS {
            if let Some(text) = file(name)? {
                return Self::of_folder(name, &text);
            }
        }
        Err(format!("it has neither {MANIFEST} nor {} at its top", MANIFESTS.join(" nor ")))
    }

    fn of_folder(name: &str, bytes: &[u8]) -> Result<Self, String> {
        let wrong = |error: orla_document::SyntaxError| format!("{name}:{error}");
        let text = orla_document::decode(bytes).map_err(wrong)?;
        let root = orla_document::parse(text).map_err(wrong)?.unwrap_or_else(Node::nothing);
        let Kind::Map(members) = &root.kind else {
            return Err(format!("{name}: a mapping is expected"));
        };
        let member = |key: &str| members.iter().find(|(name, _)| name.text == key).map(|(_, node)| node);
        let text = |key: &str| member(key)?.as_scalar().map(|scalar| scalar.text.clone());
        let required = |key: &str| text(key).ok_or_else(|| format!("{name}: {key} is missing"));
        let wants = match member("permissions").map(|node| &node.kind) {
            Some(Kind::List(words)) => {
                let words = words.iter().map(|word| Some(word.as_scalar()?.text.clone()));
                words.collect::<Option<_>>()
            }
            None => Some(Vec::new()),
            Some(_) => None,
        };
        let wants = wants.ok_or_else(|| format!("{name}: permissions: a list of words is expected"))?;
        let form = if name == MANIFESTS[0] { Form::Yaml } else { Form::Json };
        let (manifest, _) = manifest::read(bytes, form);
        let wants = match &manifest {
            Some(manifest) => {
                check_folder(manifest).map_err(|why| format!("{name}: {why}"))?;
                self::wants(manifest)
            }
            // It is not served, and adding it says why.
            None => wants,
        };
        if wants.len() > MAX_WANTS || wants.iter().any(|word| word.len() > MAX_WANT) {
            return Err(format!(
                "{name}: permissions: more than {MAX_WANTS}, or one of more than {MAX_WANT} bytes"
            ));
        }
        let env = manifest.iter().flat_map(|manifest| &manifest.env);
        let env = env.map(|(name, value)| format!("{name}={value}")).collect();
        let mut runs = vec![required("entrypoint")?];
        runs.extend(manifest.iter().flat_map(|manifest| manifest.args.iter().cloned()));
        Ok(Self {
            kind: PackageKind::Folder,
            name: required("name")?,
            version: required("version")?,
            description: text("description").unwrap_or_default(),
            author: text("author").unwrap_or_default(),
            runs: runs.join(" "),
            env,
            wants,
            settings: Vec::new(),
        })
    }
}

/// What a folder wants: the permissions that it declares, and the variables that are passed to it.
pub(crate) fn wants(manifest: &Manifest) -> Vec<String> {
    let declared = manifest.declared.permissions.iter().flatten().cloned();
    let passed = manifest.pass_env.iter().map(|pattern| format!("env:{}", pattern.as_str()));
    let mut wants: Vec<String> = Vec::new();
    for word in declared.chain(passed) {
        if !wants.contains(&word) {
            wants.push(word);
        }
    }
    wants
}

/// Refuses what the folder of somebody else must not have.
///
/// # Errors
/// It refers to the user's secrets or files, or writes to itself.
pub(crate) fn check_folder(manifest: &Manifest) -> Result<(), String> {
    let texts = manifest.env.iter().map(|(_, value)| value).chain(&manifest.args);
    let refused = |reference: Reference<'_>| Err(ReferenceError::Name { name: reference.to_string() });
    if let Some(text) = texts.into_iter().find(|text| expand_references(text, &refused).is_err()) {
        return Err(format!(
            "runtime: {} is a reference, and a package of others gets none of the user's values",
            crate::text::cut(text, 100)
        ));
    }
    let mut words = manifest.declared.permissions.iter().flatten();
    let writes = |word: &&String| {
        word.strip_prefix("fs:write:").is_some_and(|path| !path.starts_with(['/', '~', '$']))
    };
    match words.find(writes) {
        Some(word) => Err(format!(
            "permissions: {word} is in the package's own directory, whose files stay those of its archive"
        )),
        None => Ok(()),
    }
}

/// A bundle as an MCP server, confined to the permissions of the lock. Its settings are secrets ([`setting`]), which it has
/// only if the user agreed to that ([`agreement`]).
///
/// # Errors
/// Its manifest is broken, it runs what it may not, or a required setting has no value.
pub(crate) fn server(
    entry: &Entry,
    directory: &Path,
    base: &Path,
    has_settings: bool,
) -> Result<ServerSettings, String> {
    let name = &entry.name;
    let text = std::fs::read(directory.join(MANIFEST))
        .map_err(|error| format!("{name}: {MANIFEST}: {error}"))?;
    let bundle = bundle::read(&text, SYSTEM).map_err(|why| format!("{name}: {why}"))?;
    let (mut command, given) = command(&bundle, entry, directory, base, has_settings)?;
    let (variable, value) = NO_PYTHON_CACHE;
    command.env.insert(variable.to_owned(), value.to_owned());
    let own = format!("fs:read:{}", directory.display());
    let mut permissions: Vec<String> = entry.permissions.clone();
    for word in &mut permissions {
        *word = orla_process::confinement::placed(word, base);
    }
    if let Some(own) = runs_own(&command.command, directory, &permissions).map_err(|why| {
        format!("{name}: {why}: run `orla update {name} --allow exec:{}`", command.command)
    })? {
        permissions.push(own);
    }
    permissions.push(own);
    let reach = Reach::Process {
        command: command.command,
        args: command.args,
        env: command.env,
        pass_env: Vec::new(),
        cwd: Some(directory.to_owned()),
    };
    let mut settings = ServerSettings::new(name.clone(), reach);
    settings.declared =
        Declared { permissions: Some(permissions), is_foreign: true, ..Declared::default() };
    let redactor = Redactor::new(given.iter().map(Secret::expose));
    settings.redaction = (!redactor.is_empty()).then(|| Arc::new(redactor));
    Ok(settings)
}

/// The permission to run a program of the bundle's own; `None` if it is a program of this machine.
///
/// # Errors
/// It is elsewhere, and was not granted.
fn runs_own(command: &str, directory: &Path, granted: &[String]) -> Result<Option<String>, String> {
    const SYSTEM: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"];
    let path = directory.join(command);
    if !command.contains('/') {
        return Ok(None);
    }
    let exec = format!("exec:{}", path.display());
    if path.components().any(|part| part == std::path::Component::ParentDir) {
        return Err(format!("its command {command} leads out of a directory with `..`"));
    }
    if path.starts_with(directory) {
        return Ok(Some(exec));
    }
    match SYSTEM.iter().any(|system| path.starts_with(system)) || granted.contains(&exec) {
        true => Ok(None),
        false => Err(format!("it runs {command}, which is neither its own nor the system's")),
    }
}

/// What is started, and the secrets in it.
fn command(
    bundle: &Bundle,
    entry: &Entry,
    directory: &Path,
    project: &Path,
    has_settings: bool,
) -> Result<(Command, Vec<Secret>), String> {
    let mut given = Vec::new();
    let mut set = std::collections::BTreeMap::new();
    let store = SecretStore::of_user().filter(|_| has_settings && !bundle.settings.is_empty());
    for key in bundle.settings.keys() {
        let secret = store.as_ref().map(|store| store.get(&setting(entry, project, key)));
        if let Some(secret) = secret.transpose().map_err(|error| error.to_string())?.flatten() {
            set.insert(key.clone(), secret.expose().to_owned());
            given.push(secret);
        }
    }
    let home = std::env::var("HOME").unwrap_or_default();
    let command = bundle.command(&directory.to_string_lossy(), &home, |key| set.get(key).cloned());
    command.map(|command| (command, given)).map_err(|missing| {
        if !has_settings {
            return format!(
                "{} needs {}, and gets nothing that is set for its source before you agree to this archive: run `orla sync`",
                entry.name,
                missing.join(", ")
            );
        }
        let commands: Vec<String> = missing
            .iter()
            .map(|key| format!("`orla secret set {}`", setting(entry, project, key)))
            .collect();
        format!("{} needs {}: run {}", entry.name, missing.join(", "), commands.join(" and "))
    })
}

/// The name of the secret that a setting is: `PACKAGE-SOURCE.KEY`. A package chooses its own name, and so that of another
/// one; with its source in the name of the secret, it gets only what was set for this source.
pub(crate) fn setting(entry: &Entry, project: &Path, key: &str) -> String {
    let digest = orla_packages::sha256(origin(entry, project).as_bytes());
    format!("{}-{}.{key}", entry.name, &digest[..12])
}

/// What the user agrees to before an archive gets what is set for its source. The lock comes with a project, and so from
/// others: they may name another archive in it.
pub(crate) fn agreement(entry: &Entry, project: &Path) -> String {
    format!("{}\n{}", origin(entry, project), entry.sha256)
}

/// Where a package comes from, in whatever version.
fn origin(entry: &Entry, project: &Path) -> String {
    let source = Source::parse(&entry.source, |path| project.join(path).is_dir());
    let mut source =
        source.map_or_else(|_| entry.source.clone(), |source| source.without_version().to_string());
    let local = ["./", "mcpb:./", "git:./"].iter().find_map(|prefix| source.strip_prefix(prefix));
    if let Some(below) = local {
        source = project.join(below).to_string_lossy().into_owned();
    }
    format!("{}\n{source}", entry.registry.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_belongs_to_the_source_and_not_to_the_name() {
        let entry = |name: &str, source: &str, registry: Option<&str>| Entry {
            name: name.to_owned(),
            source: source.to_owned(),
            registry: registry.map(str::to_owned),
            resolved: None,
            requires: Vec::new(),
            kind: PackageKind::Bundle,
            version: "1".to_owned(),
            sha256: String::new(),
            tools_digest: String::new(),
            tools: std::collections::BTreeMap::new(),
            permissions: Vec::new(),
        };
        let of = |entry: &Entry, project: &str| setting(entry, Path::new(project), "token");
        let good = of(&entry("github", "io.github.a/b", Some("https://r.example")), "/p");
        assert!(good.starts_with("github-") && good.ends_with(".token"));
        assert_eq!(good, of(&entry("github", "io.github.a/b", Some("https://r.example")), "/q"));
        assert_ne!(good, of(&entry("github", "io.github.a/c", Some("https://r.example")), "/p"));
        assert_ne!(good, of(&entry("github", "io.github.a/b", Some("https://s.example")), "/p"));
        let version = entry("github", "io.github.a/b@1", Some("https://r.example"));
        assert_eq!(good, of(&version, "/p"), "another version of it has the same settings");
        let other = Entry { sha256: "1".to_owned(), ..version.clone() };
        assert_ne!(agreement(&version, Path::new("/p")), agreement(&other, Path::new("/p")));
        let file = entry("w", "mcpb:./w.mcpb", None);
        assert_ne!(of(&file, "/p"), of(&file, "/q"));
    }

    #[test]
    fn a_bundle_runs_its_own_program_or_one_of_the_system() {
        let runs = |command: &str| runs_own(command, Path::new("/p/w"), &["exec:/srv/x".to_owned()]);
        assert_eq!(runs("python3"), Ok(None));
        assert_eq!(runs("/usr/bin/env"), Ok(None));
        assert_eq!(runs("/srv/x"), Ok(None));
        for own in ["/p/w/run", "run/it"] {
            let exec = format!("exec:/p/w/{}", own.trim_start_matches("/p/w/"));
            assert_eq!(runs(own), Ok(Some(exec)));
        }
        for command in ["/p/w/../../home/x", "/usr/../home/x", "/home/x", "../x"] {
            assert!(runs(command).is_err(), "{command}");
        }
    }

    #[test]
    fn permissions_of_a_folder_are_a_list() {
        let read = |permissions: &str| {
            let text = format!("name: a\nversion: 1.0.0\nentrypoint: a.sh\n{permissions}");
            Content::of_folder("tool.yaml", text.as_bytes()).map(|content| content.wants)
        };
        assert_eq!(read("").unwrap(), [""; 0]);
        assert_eq!(read("permissions: [net]").unwrap(), ["net"]);
        assert!(read("permissions: net").unwrap_err().contains("a list"));
        assert!(read("permissions: [[net]]").is_err());
    }
}
