//! The content of an archive: its kind (bundle or folder), its author, the programs that it runs and the
//! permissions that it wants.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use orla_document::{Kind, Node};
use orla_marketplace::{Redactor, Registration};
use orla_packages::archive::Archive;
use orla_packages::bundle::{self, Bundle, MANIFEST, MAX_MANIFEST, Setting};
use orla_packages::lock::{Entry, FILE, PackageKind};
use orla_packages::openapi::{self, OpenApi};
use orla_packages::platform::Platform;
use orla_packages::remote::{DOCUMENT, Remote};
use orla_packages::source::Source;
use orla_process::child::NO_PYTHON_CACHE;
use orla_process::confinement::Declared;
use orla_providers::capsule::manifest::{self, Form, Manifest};
use orla_providers::capsule::packages::MANIFESTS;
use orla_providers::mcp::{Reach, ServerSettings};
use orla_providers::openapi::{Imported, Location, OpenApiSettings, Warning, import_bundled};
use orla_providers::tool;
use orla_providers::tool::metadata::Remark;
use orla_secrets::{Reference, ReferenceError, Secret, SecretStore};

use crate::config::expand::expand_references;

/// The self-description of an archive.
pub(crate) struct Content {
    pub(crate) kind: PackageKind,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) description: String,
    /// The author that the archive names.
    pub(crate) author: String,
    /// The program that is started.
    pub(crate) runs: String,
    /// The variables that it sets: `NAME=VALUE`.
    pub(crate) env: Vec<String>,
    /// The servers that receive the data of its tools, if no part of the package runs here.
    pub(crate) urls: Vec<String>,
    /// The permissions that it declares.
    pub(crate) wants: Vec<String>,
    /// The keys of settings, with their meanings and whether they are required.
    pub(crate) settings: Vec<(String, Setting)>,
    /// The permissions for files and directories that the user names in its settings.
    pub(crate) grants: Vec<String>,
    /// What a document means and its operations do not have.
    pub(crate) warnings: Vec<String>,
}

/// The command of a bundle that orla made of a folder or of executables.
pub(crate) const PUBLISHED: &str = "orla";
/// The maximum number of permissions that a package may want, and the longest one: a person reads them.
const MAX_WANTS: usize = 100;
const MAX_WANT: usize = 400;
/// The maximum number of servers of an OpenAPI document: a person reads them.
const MAX_SERVERS: usize = 20;
/// The maximum number of warnings of one document.
const MAX_WARNINGS: usize = 20;

/// Checks that an installed package is of the kind in the lock. The content of its directory decides, as
/// in [`Content::read`].
///
/// # Errors
///
/// Returns an error if the package is of another kind, because orla would serve nothing of it, or
/// something else.
pub(crate) fn check_kind(entry: &Entry, directory: &Path) -> Result<(), String> {
    let has = |file: &str| directory.join(file).is_file();
    let is_published = || {
        let text = std::fs::read(directory.join(MANIFEST)).unwrap_or_default();
        bundle::read(&text, Platform::HERE.system).is_ok_and(|bundle| bundle.command == PUBLISHED)
    };
    let found = if has(MANIFEST) && !is_published() {
        PackageKind::Bundle
    } else if has(DOCUMENT) {
        PackageKind::Remote
    } else if has(openapi::DOCUMENT) {
        PackageKind::OpenApi
    } else if MANIFESTS.iter().any(|name| has(name)) {
        PackageKind::Folder
    } else {
        PackageKind::Tools
    };
    if found == entry.kind {
        return Ok(());
    }
    let (locked, found) = (entry.kind.word(), found.word());
    Err(format!(
        "{FILE} says kind {locked}, and its files are of kind {found}: take {FILE} back from version control, or write `kind: {found}`"
    ))
}

impl Content {
    /// Reads the manifest of an archive. `place` is the last part of its source, the name of executables
    /// without a manifest.
    ///
    /// # Errors
    ///
    /// Returns an error if it has none, or a broken one.
    pub(crate) fn read(archive: &Archive<'_>, place: &str) -> Result<Self, String> {
        let file = |name: &str| archive.file(name, MAX_MANIFEST).map_err(|error| error.to_string());
        let mut named = None;
        if let Some(text) = file(MANIFEST)? {
            let bundle = bundle::read(&text, Platform::HERE.system)?;
            // A program that orla would publish is served by orla itself.
            if bundle.command == PUBLISHED {
                named = Some(bundle);
            } else {
                return Ok(Self::of_bundle(bundle));
            }
        }
        if let Some(text) = file(DOCUMENT)? {
            return Remote::read(&text).map(Self::of_remote);
        }
        let document = archive.file(openapi::DOCUMENT, openapi::MAX_DOCUMENT);
        if let Some(text) = document.map_err(|error| error.to_string())? {
            return Self::of_openapi(&OpenApi::read(&text)?);
        }
        for name in MANIFESTS {
            if let Some(text) = file(name)? {
                return Self::of_folder(name, &text);
            }
        }
        Self::of_tools(archive, named.as_ref(), place)
    }

    fn of_bundle(bundle: Bundle) -> Self {
        let runs = format!("{} {}", bundle.command, bundle.args.join(" "));
        Self {
            kind: PackageKind::Bundle,
            grants: bundle.grants().collect(),
            warnings: Vec::new(),
            name: bundle.name,
            version: bundle.version,
            description: bundle.description,
            author: bundle.author,
            runs,
            env: bundle.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
            urls: Vec::new(),
            wants: Vec::new(),
            settings: bundle.settings.into_iter().collect(),
        }
    }

    fn of_remote(remote: Remote) -> Self {
        let settings = remote.settings().into_iter().collect();
        let env = remote.fixed_headers();
        Self {
            kind: PackageKind::Remote,
            name: remote.name,
            version: remote.version,
            description: remote.description,
            author: remote.author,
            runs: "nothing on this machine".to_owned(),
            env,
            urls: vec![remote.url],
            wants: Vec::new(),
            settings,
            grants: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn of_openapi(api: &OpenApi) -> Result<Self, String> {
        let imported = imported(api, |_| {})?;
        let count = imported.registrations.len();
        if count == 0 {
            let why = imported.warnings.first().map(ToString::to_string).unwrap_or_default();
            return Err(format!(
                "it has no operation that can be called: {why} (`openapi` in orla.yaml has more settings)"
            ));
        }
        let servers = imported.registrations.iter().filter_map(|one| one.policy.upstream.as_deref());
        let urls: BTreeSet<String> = servers.map(str::to_owned).collect();
        if urls.len() > MAX_SERVERS {
            return Err(format!("its operations are at more than {MAX_SERVERS} servers"));
        }
        let is_key = |key: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
            !key.is_empty() && key.bytes().all(fits)
        };
        if let Some(scheme) = imported.schemes.iter().find(|scheme| !is_key(&scheme.name)) {
            return Err(format!("{:?} is not a name of a security scheme", scheme.name));
        }
        let settings = imported.schemes.iter().map(|scheme| {
            let wanted = if scheme.is_missing { ", which operations want" } else { "" };
            let title = format!("{} of its scheme {}{wanted}", scheme.credential, scheme.name);
            let (default, is_required, is_secret, is_multiple) = (None, false, true, false);
            (scheme.name.clone(), Setting { title, default, is_required, is_secret, is_multiple })
        });
        let version = Some(api.info("version")).filter(|version| !version.is_empty());
        let contact = api.document.pointer("/info/contact/name").and_then(serde_json::Value::as_str);
        Ok(Self {
            kind: PackageKind::OpenApi,
            name: imported.name,
            version: version.unwrap_or("0.0.0").to_owned(),
            description: api.info("title").to_owned(),
            author: contact.unwrap_or_default().to_owned(),
            runs: format!("nothing on this machine; it has {count} operations"),
            env: Vec::new(),
            urls: urls.into_iter().collect(),
            wants: Vec::new(),
            settings: settings.collect(),
            grants: Vec::new(),
            warnings: told(&imported.warnings),
        })
    }

    /// Returns the content of executable files, each of which is a tool.
    fn of_tools(archive: &Archive<'_>, named: Option<&Bundle>, place: &str) -> Result<Self, String> {
        let unpacked = tempfile::tempdir().map_err(|error| error.to_string())?;
        archive.unpack(unpacked.path()).map_err(|error| error.to_string())?;
        let (tools, problems) = tool::foreign(unpacked.path()).map_err(|error| error.to_string())?;
        if let Some(problem) = problems.first() {
            return Err(problem.message.clone());
        }
        if tools.is_empty() {
            return Err(format!(
                "it has neither {MANIFEST} nor {} at its top, and no executable file",
                MANIFESTS.join(" nor ")
            ));
        }
        let names: Vec<&str> = tools.iter().map(tool::ForeignTool::name).collect();
        let runs = names.join(", ");
        let wants: BTreeSet<String> = tools.iter().flat_map(tool::ForeignTool::wants).collect();
        let wants = readable(wants.into_iter().collect())?;
        writes_elsewhere(wants.iter())?;
        let (version, description, author) = match named {
            Some(bundle) => (&*bundle.version, &*bundle.description, &*bundle.author),
            None => ("0.0.0", "", ""),
        };
        Ok(Self {
            kind: PackageKind::Tools,
            name: named.map_or(place, |bundle| &bundle.name).to_owned(),
            version: version.to_owned(),
            description: description.to_owned(),
            author: author.to_owned(),
            runs,
            env: Vec::new(),
            urls: Vec::new(),
            wants,
            settings: Vec::new(),
            grants: Vec::new(),
            warnings: Vec::new(),
        })
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
            // The permission is not served, and adding the package reports the reason.
            None => wants,
        };
        let wants = readable(wants).map_err(|why| format!("{name}: {why}"))?;
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
            urls: Vec::new(),
            wants,
            settings: Vec::new(),
            grants: Vec::new(),
            warnings: Vec::new(),
        })
    }
}

/// Permissions that a person can read.
fn readable(wants: Vec<String>) -> Result<Vec<String>, String> {
    match wants.len() > MAX_WANTS || wants.iter().any(|word| word.len() > MAX_WANT) {
        true => Err(format!("permissions: more than {MAX_WANTS}, or one of more than {MAX_WANT} bytes")),
        false => Ok(wants),
    }
}

/// Returns the wishes of a folder: the permissions that it declares, and the variables that are passed
/// to it.
pub(crate) fn wants(manifest: &Manifest) -> Vec<String> {
    let mut wants: Vec<String> = Vec::new();
    for word in manifest.declared.wanted(&manifest.pass_env) {
        if !wants.contains(&word) {
            wants.push(word);
        }
    }
    wants
}

/// Refuses declarations that a third-party folder must not have.
///
/// # Errors
///
/// Returns an error if the folder refers to the user's secrets or files, writes to itself, or has an
/// unreadable confinement.
pub(crate) fn check_folder(manifest: &Manifest) -> Result<(), String> {
    if let Some(Remark { at, message, .. }) =
        manifest.fault.as_ref().filter(|_| manifest.declared.is_unclear)
    {
        return Err(format!("{message} at line {}, column {}", at.line, at.column));
    }
    let texts = manifest.env.iter().map(|(_, value)| value).chain(&manifest.args);
    let refused = |reference: Reference<'_>| Err(ReferenceError::Name { name: reference.to_string() });
    if let Some(text) = texts.into_iter().find(|text| expand_references(text, &refused).is_err()) {
        return Err(format!(
            "runtime: {} is a reference, and a package of others gets none of the user's values",
            crate::text::cut(text, 100)
        ));
    }
    writes_elsewhere(manifest.declared.permissions.iter().flatten())
}

/// Refuses to write to the package's own files.
fn writes_elsewhere<'w>(mut words: impl Iterator<Item = &'w String>) -> Result<(), String> {
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

/// Returns a bundle as an MCP server, confined to the permissions of the lock. Its settings are secrets
/// ([`setting`]), which it gets only if the user agreed to that ([`agreement`]).
///
/// # Errors
///
/// Returns an error if its manifest is broken, it runs a program that it may not run, or a required
/// setting has no value.
pub(crate) fn server(
    entry: &Entry,
    directory: &Path,
    base: &Path,
    has_settings: bool,
) -> Result<ServerSettings, String> {
    let name = &entry.name;
    let text = std::fs::read(directory.join(MANIFEST))
        .map_err(|error| format!("{name}: {MANIFEST}: {error}"))?;
    let bundle = bundle::read(&text, Platform::HERE.system).map_err(|why| format!("{name}: {why}"))?;
    let setting_values = SettingValues::of(entry, base, bundle.settings.keys(), has_settings)?;
    let home = std::env::var("HOME").unwrap_or_default();
    let values = |key: &str| setting_values.values(key, bundle.settings.get(key)?);
    let command = bundle.command(&directory.to_string_lossy(), &home, values);
    let mut command = command.map_err(|missing| setting_values.missing(&missing))?;
    command.args.extend(entry.arguments.iter().map(|argument| placed_argument(argument, base)));
    let (variable, value) = NO_PYTHON_CACHE;
    command.env.insert(variable.to_owned(), value.to_owned());
    let paths = |key: &str| values(key).filter(|_| bundle.settings[key].is_path());
    let permissions = entry.permissions.iter().flat_map(|word| in_force(word, paths));
    let mut permissions: Vec<String> =
        permissions.map(|word| orla_process::confinement::placed(&word, base)).collect();
    may_run(&command.command, directory, &permissions).map_err(|why| {
        format!("{name}: {why}: run `orla update {name} --allow exec:{}`", command.command)
    })?;
    // Programs of npm and PyPI often start others that they bring.
    permissions.extend(["fs:read", "exec"].map(|may| format!("{may}:{}", directory.display())));
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
    settings.redaction =
        setting_values.redactor(|key| bundle.settings.get(key).is_none_or(|one| one.is_secret));
    Ok(settings)
}

/// Splits the argument `--OPTION=VALUE` before the value. Any other argument is a value.
pub(crate) fn split_option(argument: &str) -> (&str, &str) {
    match argument.find('=') {
        Some(at) if argument.starts_with('-') => argument.split_at(at + 1),
        _ => ("", argument),
    }
}

/// Returns the path in an argument: an absolute one, or one that is relative to the project because it
/// begins with `./` or `../`.
pub(crate) fn path_in(argument: &str) -> Option<&str> {
    let (_, value) = split_option(argument);
    let is_path =
        matches!(value, "." | "..") || ["/", "./", "../"].iter().any(|begin| value.starts_with(begin));
    is_path.then_some(value)
}

/// Returns an argument of the lock as the program gets it: its path is absolute.
fn placed_argument(argument: &str, project: &Path) -> String {
    let Some(path) = path_in(argument) else { return argument.to_owned() };
    let (option, _) = split_option(argument);
    let place = project.join(path);
    let place = std::path::absolute(&place).unwrap_or(place);
    format!("{option}{}", place.display())
}

/// Returns the effective form of a permission of the lock. A permission that names a setting covers the
/// paths that the user has set, and never a default of the bundle.
fn in_force(word: &str, paths: impl Fn(&str) -> Option<Vec<String>>) -> Vec<String> {
    let mut kinds = ["fs:read:", "fs:write:"].into_iter();
    let named = kinds.find_map(|kind| Some((kind, bundle::setting_in(word.strip_prefix(kind)?)?)));
    let Some((kind, key)) = named else { return vec![word.to_owned()] };
    let paths = paths(key).unwrap_or_default().into_iter();
    paths.filter(|path| Path::new(path).exists()).map(|path| format!("{kind}{path}")).collect()
}

/// Returns whether a path is in a directory of the system, which every confined process may read.
pub(crate) fn is_of_system(path: &Path) -> bool {
    let directories = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"];
    directories.iter().any(|directory| path.starts_with(directory))
}

/// Checks that a command is a program of the bundle itself, of the system, or one that was granted.
///
/// # Errors
///
/// Returns an error if it is none of these.
fn may_run(command: &str, directory: &Path, granted: &[String]) -> Result<(), String> {
    let path = directory.join(command);
    if !command.contains('/') {
        return Ok(());
    }
    if path.components().any(|part| part == std::path::Component::ParentDir) {
        return Err(format!("its command {command} leads out of a directory with `..`"));
    }
    let is_known = path.starts_with(directory)
        || is_of_system(&path)
        || granted.contains(&format!("exec:{}", path.display()));
    match is_known {
        true => Ok(()),
        false => Err(format!("it runs {command}, which is neither its own nor the system's")),
    }
}

/// Returns a server behind a URL as an MCP server, with the settings of the user in its headers.
///
/// # Errors
///
/// Returns an error if its document is broken, or if a required setting has no value.
pub(crate) fn remote(
    entry: &Entry,
    directory: &Path,
    project: &Path,
    has_settings: bool,
) -> Result<ServerSettings, String> {
    let name = &entry.name;
    let text = std::fs::read(directory.join(DOCUMENT))
        .map_err(|error| format!("{name}: {DOCUMENT}: {error}"))?;
    let remote = Remote::read(&text).map_err(|why| format!("{name}: {why}"))?;
    let setting_values = SettingValues::of(entry, project, remote.settings.keys(), has_settings)?;
    let headers = remote
        .filled(|key| setting_values.get(key))
        .map_err(|missing| setting_values.missing(&missing))?;
    let mut settings = ServerSettings::new(name.clone(), Reach::Http { url: remote.url, headers });
    settings.redaction = setting_values.redactor(|_| true);
    Ok(settings)
}

/// Returns the first warnings, and how many more there are.
pub(crate) fn told(warnings: &[Warning]) -> Vec<String> {
    let more = warnings.len().saturating_sub(MAX_WARNINGS);
    let told = warnings.iter().take(MAX_WARNINGS).map(ToString::to_string);
    told.chain((more > 0).then(|| format!("and {more} more warnings"))).collect()
}

/// Returns the operations of an OpenAPI document as capabilities, with the credentials of the user, and
/// the warnings.
///
/// # Errors
///
/// Returns an error if the document is broken.
pub(crate) fn operations(
    entry: &Entry,
    directory: &Path,
    project: &Path,
    has_settings: bool,
) -> Result<(Vec<Registration>, Vec<String>), String> {
    let name = &entry.name;
    let text = std::fs::read(directory.join(openapi::DOCUMENT));
    let text = text.map_err(|error| format!("{name}: {}: {error}", openapi::DOCUMENT))?;
    let api = OpenApi::read(&text).map_err(|why| format!("{name}: {why}"))?;
    // Its address decides which servers it may name, so another document must not claim it.
    let is_own = match Source::parse(&entry.source) {
        Ok(Source::OpenApiUrl(url)) => api.url == Some(url),
        Ok(Source::OpenApiFile(_)) => api.url.is_none(),
        _ => false,
    };
    if !is_own {
        return Err(format!(
            "{name}: {} in {FILE} is not the source of its document: take {FILE} back from version control",
            entry.source
        ));
    }
    let schemes = api.document.pointer("/components/securitySchemes");
    let schemes = schemes.and_then(serde_json::Value::as_object);
    let keys = schemes.into_iter().flat_map(|schemes| schemes.keys());
    let setting_values = SettingValues::of(entry, project, keys, has_settings)?;
    let imported = imported(&api, |settings| {
        let secrets = setting_values.values.iter();
        settings.security =
            secrets.map(|(scheme, secret)| (scheme.clone(), secret.expose().to_owned())).collect();
        settings.redaction = setting_values.redactor(|_| true);
    });
    let imported = imported.map_err(|why| format!("{name}: {why}"))?;
    let warnings = told(&imported.warnings).into_iter().map(|warning| format!("{name}: {warning}"));
    let registrations = imported.registrations.into_iter().map(|mut one| {
        // The name in the lock may be one that a document cannot have.
        let own = one.manifest.id.strip_prefix(&imported.name).unwrap_or(&one.manifest.id);
        one.manifest.id = format!("{name}{own}");
        one
    });
    Ok((registrations.collect(), warnings.collect()))
}

/// Imports a document that has all of its files.
fn imported(api: &OpenApi, set: impl FnOnce(&mut OpenApiSettings)) -> Result<Imported, String> {
    let file = || Location::File(openapi::DOCUMENT.into());
    let mut settings = OpenApiSettings::new(api.url.clone().map_or_else(file, Location::Url));
    set(&mut settings);
    let imported = import_bundled(&api.document, &settings);
    imported.map_err(|error| error.to_string())
}

/// The settings that were made for a package.
struct SettingValues<'a> {
    entry: &'a Entry,
    project: &'a Path,
    has_settings: bool,
    values: BTreeMap<String, Secret>,
}

impl<'a> SettingValues<'a> {
    fn of<'k>(
        entry: &'a Entry,
        project: &'a Path,
        keys: impl Iterator<Item = &'k String>,
        has_settings: bool,
    ) -> Result<Self, String> {
        let mut values = BTreeMap::new();
        let mut keys = keys.filter(|_| has_settings).peekable();
        let store = keys.peek().and_then(|_| SecretStore::of_user());
        for (key, store) in keys.filter_map(|key| Some((key, store.as_ref()?))) {
            let secret = store.get(&setting(entry, project, key)).map_err(|error| error.to_string())?;
            values.extend(secret.map(|secret| (key.clone(), secret)));
        }
        Ok(Self { entry, project, has_settings, values })
    }

    fn get(&self, key: &str) -> Option<String> {
        self.values.get(key).map(|secret| secret.expose().to_owned())
    }

    /// Returns the values set for a key of a bundle. Paths are absolute, because a bundle runs in its
    /// own directory.
    fn values(&self, key: &str, setting: &Setting) -> Option<Vec<String>> {
        let values = setting.values(&self.get(key)?);
        let place = |path: String| match (setting.is_path(), path.strip_prefix('~')) {
            (false, _) => Some(path),
            (true, Some(below)) if below.is_empty() || below.starts_with('/') => {
                std::env::var("HOME").ok().filter(|home| !home.is_empty()).map(|home| home + below)
            }
            (true, _) => Some(self.project.join(path).to_string_lossy().into_owned()),
        };
        let values: Option<Vec<String>> = values.into_iter().map(place).collect();
        values.filter(|values| !values.is_empty())
    }

    /// Returns why it cannot be served without the values of these keys.
    fn missing(&self, keys: &[String]) -> String {
        let (name, listed) = (&self.entry.name, keys.join(", "));
        if !self.has_settings {
            return format!(
                "{name} needs {listed}, and gets nothing that is set for its source before you agree to this archive: run `orla sync`"
            );
        }
        let commands = keys.iter().map(|key| setting(self.entry, self.project, key));
        let commands: Vec<String> = commands.map(|name| format!("`orla secret set {name}`")).collect();
        format!("{name} needs {listed}: run {}", commands.join(" and "))
    }

    fn redactor(&self, is_secret: impl Fn(&str) -> bool) -> Option<Arc<Redactor>> {
        let secrets = self.values.iter().filter(|(key, _)| is_secret(key));
        let redactor = Redactor::new(secrets.map(|(_, value)| value.expose()));
        (!redactor.is_empty()).then(|| Arc::new(redactor))
    }
}

/// Returns the files and directories that are set for a package.
pub(crate) fn paths(entry: &Entry, project: &Path, key: &str, setting: &Setting) -> Vec<String> {
    let keys = [key.to_owned()];
    let setting_values =
        SettingValues::of(entry, project, keys.iter().filter(|_| setting.is_path()), true);
    setting_values
        .ok()
        .and_then(|setting_values| setting_values.values(key, setting))
        .unwrap_or_default()
}

/// Returns the name of the secret for a setting: `PACKAGE-SOURCE.KEY`. A package chooses its own name,
/// which may be the name of another package. With its source in the name of the secret, it gets only the
/// settings for this source.
pub(crate) fn setting(entry: &Entry, project: &Path, key: &str) -> String {
    let digest = orla_packages::sha256(origin(entry, project).as_bytes());
    format!("{}-{}.{key}", entry.name, &digest[..12])
}

/// Returns the consent that is needed before an archive gets the settings for its source. The lock comes
/// with a project, and therefore from others: they may name another archive in it.
pub(crate) fn agreement(entry: &Entry, project: &Path) -> String {
    let permissions = entry.permissions.join("\n");
    let (sha256, kind) = (&entry.sha256, entry.kind.word());
    let mut text = format!("{}\n{sha256}\n{kind}\n{permissions}", origin(entry, project));
    if !entry.arguments.is_empty() {
        // No permission is an empty line.
        text.push_str(&format!("\n\n{}", serde_json::json!(entry.arguments)));
    }
    text
}

/// Returns the source of a package, in any version.
fn origin(entry: &Entry, project: &Path) -> String {
    let source = Source::parse(&entry.source);
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
    fn a_path_in_an_argument_is_relative_to_the_project() {
        for (argument, placed) in [
            ("./data", "/p/q/data"),
            (".", "/p/q"),
            ("../x", "/p/q/../x"),
            ("--root=./data", "--root=/p/q/data"),
            ("data", "data"),
            ("/data", "/data"),
            ("-v", "-v"),
            ("a=./b", "a=./b"),
            (".hidden", ".hidden"),
        ] {
            assert_eq!(placed_argument(argument, Path::new("/p/q")), placed);
        }
    }

    #[test]
    fn a_setting_belongs_to_the_source_and_not_to_the_name() {
        let entry = |name: &str, source: &str, registry: Option<&str>| Entry {
            name: name.to_owned(),
            source: source.to_owned(),
            registry: registry.map(str::to_owned),
            resolved: None,
            signed_by: None,
            requires: Vec::new(),
            kind: PackageKind::Bundle,
            version: "1".to_owned(),
            sha256: String::new(),
            tools_digest: String::new(),
            tools: BTreeMap::new(),
            arguments: Vec::new(),
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
        let remote = Entry { kind: PackageKind::Remote, ..version.clone() };
        let granted = Entry { permissions: vec!["net".to_owned()], ..version.clone() };
        for other in [other, remote, granted] {
            assert_ne!(agreement(&version, Path::new("/p")), agreement(&other, Path::new("/p")));
        }
        let file = entry("w", "mcpb:./w.mcpb", None);
        assert_ne!(of(&file, "/p"), of(&file, "/q"));
    }

    #[test]
    fn a_bundle_runs_its_own_program_or_one_of_the_system() {
        let runs = |command: &str| may_run(command, Path::new("/p/w"), &["exec:/srv/x".to_owned()]);
        for command in ["python3", "/usr/bin/env", "/srv/x", "/p/w/run", "run/it"] {
            assert_eq!(runs(command), Ok(()), "{command}");
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
