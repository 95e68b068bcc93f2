//! Finds packages: directories with a manifest.
//!
//! # How it works
//!
//! A tools directory that is a package itself contains only that package. In any other tools directory,
//! a package is `DIR/` or, one level down, `DIR/VERSION/`; in the home directory it is `NAME/VERSION/`.
//! The highest of several versions is served. Of packages with the same name in different places, the
//! lexically first is served, and the other is refused by name. A broken package affects only itself.
//!
//! # What is deliberately absent
//!
//! A package is opaque (RFC 2 §5.2): only its manifest is read and its entrypoint checked.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orla_document::Position;
use orla_marketplace::Redactor;
use orla_marketplace::id::Pattern;
use orla_marketplace::{CapabilityManifest, ProviderType, Registration};
use orla_process::Limits;
use orla_process::child::Program;
use orla_process::confinement::{Declared, Sandbox, Sandboxes};
use orla_process::file::{self, reason};
use orla_process::shebang::FileKind;

use super::manifest::{self, Form, HotLoad, Manifest, Mode};
use crate::tool::metadata::{OutputForm, Remark};
use crate::tool::{Finding, ToolProvider, united};

/// The names of manifests.
pub const MANIFESTS: [&str; 2] = ["tool.yaml", "orla-tool.json"];
/// The maximum size of a manifest.
const MAX_MANIFEST: u64 = 1024 * 1024;
/// The maximum number of files that are watched for packages.
const MAX_WATCHED: usize = 2000;

/// One package that can be served.
#[derive(Clone, Debug, PartialEq)]
pub struct Package {
    /// The directory, absolute.
    pub directory: PathBuf,
    /// The form of the manifest.
    pub form: Form,
    /// The manifest.
    pub manifest: Manifest,
    /// The interpreter of the program, such as `python3`; `None` for a binary.
    pub interpreter: Option<String>,
    /// Patterns of the server's variables that the configuration passes to it, in addition to those of its
    /// manifest.
    pub pass_env: Vec<Pattern>,
    /// Variables that the configuration gives to it, in addition to those of its manifest.
    pub env: Vec<(String, String)>,
    /// The sandbox of the processes; `None` for no confinement.
    pub sandbox: Option<Arc<Sandbox>>,
    /// Permissions and limits that the configuration adds to the manifest.
    pub changed: Declared,
    /// The first schema that cannot be enforced, with its place. The package must not run then.
    pub fault: Option<String>,
    /// Hides the package's secrets in everything that it returns.
    pub redaction: Option<Arc<Redactor>>,
    /// The original texts of the manifest, if `manifest` has secrets in place of references.
    pub unfilled: Option<Unfilled>,
}

/// The environment and the arguments of a manifest as written, with references to secrets.
#[derive(Clone, Debug, PartialEq)]
pub struct Unfilled {
    /// `runtime.env`.
    pub env: Vec<(String, String)>,
    /// `runtime.args`.
    pub args: Vec<String>,
}

impl Package {
    /// Returns the path of the program, absolute.
    pub fn entrypoint(&self) -> PathBuf {
        self.directory.join(&self.manifest.entrypoint)
    }

    /// Returns the program, with its environment.
    ///
    /// # Errors
    /// There is no current directory.
    pub fn program(&self) -> io::Result<Program> {
        let own = &self.manifest;
        let pass_env = [own.pass_env.as_slice(), &self.pass_env].concat();
        let program = Program::new(&self.entrypoint())?.with_env(united(&own.env, &self.env), pass_env);
        Ok(match &self.sandbox {
            Some(sandbox) => program.confined(Arc::clone(sandbox), vec![self.directory.clone()]),
            None => program,
        })
    }

    /// Returns a finding about a value of the manifest, at the first place where it is written.
    pub fn finding_at(&self, value: &str, message: String) -> Finding {
        let path = self.directory.join(self.form.file_name());
        let at = read(&path).ok().and_then(|bytes| manifest::place_of(&bytes, self.form, value));
        Finding { path, at, message }
    }

    /// Confines the package to its declaration, with the changes of the configuration.
    pub fn confine(&mut self, sandboxes: &Sandboxes, changed: &Declared) {
        let declared = self.manifest.declared.changed_by(changed);
        self.sandbox = sandboxes.of(&declared, &self.directory);
        self.manifest.declared = declared;
        self.changed.clone_from(changed);
        if let Some(Err(why)) = self.sandbox.as_ref().map(|sandbox| sandbox.available()) {
            self.fault.get_or_insert(why);
        }
    }

    /// Takes over the secrets of the previous version of the package, if it requests the same secrets.
    /// Returns whether it has all that it requests.
    pub(super) fn keep_secrets_of(&mut self, old: &Self) -> bool {
        let declared = Unfilled { env: self.manifest.env.clone(), args: self.manifest.args.clone() };
        self.redaction.clone_from(&old.redaction);
        if old.unfilled.as_ref() == Some(&declared) {
            self.manifest.env.clone_from(&old.manifest.env);
            self.manifest.args.clone_from(&old.manifest.args);
            self.unfilled = Some(declared);
            return true;
        }
        let mut texts = declared.env.iter().map(|(_, value)| value).chain(&declared.args);
        !texts.any(|text| text.contains("${"))
    }

    /// Makes changes of any of its files restart the package, unless its manifest names the files.
    #[must_use]
    pub fn hot_loaded(mut self) -> Self {
        self.manifest.hot_load.get_or_insert_with(HotLoad::default);
        self
    }

    /// Returns the package as one capability under its own name.
    pub(crate) fn capability(&self, provider: ProviderType) -> CapabilityManifest {
        let own = &self.manifest;
        let description = own.description.clone();
        let description = description.unwrap_or_else(|| format!("Runs the package {}.", own.name));
        let mut manifest = CapabilityManifest::new(own.name.clone(), description, provider);
        manifest.version = own.version.to_string();
        manifest.input_schema.clone_from(&own.input_schema);
        manifest.output_schema.clone_from(&own.output_schema);
        manifest.permissions = own.declared.permissions.clone().unwrap_or_default();
        if let Some(support) = own.task {
            manifest.set_task_support(support);
        }
        manifest
    }
}

/// The found packages, and the problems of the others.
#[derive(Debug, Default)]
pub struct Packages {
    /// One for each name, in the order of their names.
    pub packages: Vec<Package>,
    /// Findings about valid settings that may be unintended.
    pub warnings: Vec<Finding>,
    /// Problems of packages. Not every problem keeps a package from being served.
    pub problems: Vec<Finding>,
    /// Packages that are not served, by the name of their directory, because their own name may be
    /// unknown.
    pub refused: Vec<(String, Finding)>,
}

/// Finds the packages below the tools directory, and below `home`, which contains installed ones.
/// Unreadable directories count as empty. Blocks while it reads; starts no process.
pub fn find(tools: &Path, home: Option<&Path>) -> Packages {
    let mut found = Packages::default();
    // The best package of each place: a directory, or the directory around the versions of one name.
    let mut best: BTreeMap<(PathBuf, String), Package> = BTreeMap::new();
    for place in places(tools, home) {
        let problems = found.problems.len();
        let loaded = found.load(&place.directory);
        if loaded.is_none()
            && let Some(name) = place.family.file_name()
            && let Some(problem) = found.problems.get(problems..).and_then(<[Finding]>::last)
        {
            found.refused.push((name.to_string_lossy().into_owned(), problem.clone()));
        }
        if let Some(package) = loaded {
            let key = (place.family, package.manifest.name.clone());
            let known =
                best.get(&key).is_some_and(|known| known.manifest.version >= package.manifest.version);
            if !known {
                best.insert(key, package);
            }
        }
    }
    let mut by_name: BTreeMap<String, Package> = BTreeMap::new();
    for ((_, name), package) in best {
        if let Some(first) = by_name.get(&name) {
            found.problems.push(Finding {
                path: package.directory,
                at: None,
                message: format!(
                    "not served: {} is a package named {name} already",
                    first.directory.display()
                ),
            });
        } else {
            by_name.insert(name, package);
        }
    }
    found.refused.retain(|(name, _)| !by_name.contains_key(name));
    found.packages = by_name.into_values().collect();
    found
}

/// Returns the files whose change may change the result of [`find`], besides the entries of `tools`:
/// existing and possible manifests, and the directories of versions; at most 2,000. Blocks while it
/// reads.
pub fn watched(tools: &Path, home: Option<&Path>) -> Vec<PathBuf> {
    let manifests = |directory: &Path| MANIFESTS.map(|name| directory.join(name));
    let places = places(tools, home);
    let mut watched: Vec<PathBuf> = Vec::new();
    for place in &places {
        watched.extend(manifests(&place.directory));
        if place.family != place.directory {
            watched.push(place.family.clone());
        }
    }
    watched.extend(home.map(Path::to_owned));
    if !is_package(tools) {
        // A manifest may be written long after its directory was created.
        let own = directories(tools);
        watched.extend(own.iter().flat_map(|directory| manifests(directory)));
    }
    let mut seen = HashSet::new();
    watched.retain(|path| seen.insert(path.clone()));
    watched.truncate(MAX_WATCHED);
    watched
}

/// Reads the package in one directory.
///
/// # Errors
/// It cannot be served; the findings say why.
pub fn load(directory: &Path) -> Result<(Package, Vec<Finding>), Vec<Finding>> {
    let mut found = Packages::default();
    match found.load(directory) {
        Some(package) => Ok((package, found.warnings)),
        None => Err(found.problems),
    }
}

/// Returns whether a directory is a package, broken or not.
pub fn is_package(directory: &Path) -> bool {
    form_of(directory).is_some()
}

/// Renames simple tools that have the same name as a package.
pub fn rename_conflicts(tools: &mut [Registration], packages: &[Package]) -> Vec<Finding> {
    let mut warnings = Vec::new();
    for package in packages {
        let name = &package.manifest.name;
        let Some(at) = tools.iter().position(|tool| tool.manifest.id == *name) else { continue };
        let path = tools[at].manifest.provider.settings::<ToolProvider>().map(ToolProvider::path);
        let path = path.map(Path::to_owned).unwrap_or_default();
        let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
        let is_taken = |candidate: &str| {
            tools.iter().any(|tool| tool.manifest.id == candidate)
                || packages.iter().any(|package| package.manifest.name == candidate)
        };
        let by_extension = extension.map(|extension| format!("{name}_{extension}"));
        let other = by_extension
            .into_iter()
            .chain((2_u32..).map(|number| format!("{name}_{number}")))
            .find(|candidate| !is_taken(candidate))
            .unwrap_or_default();
        warnings.push(Finding {
            path,
            at: None,
            message: format!(
                "{} is a package named {name}; served as {other}",
                package.directory.display()
            ),
        });
        tools[at].manifest.id.clone_from(&other);
        tools[at].manifest.name = other;
    }
    warnings
}

/// A directory with a manifest.
struct Place {
    directory: PathBuf,
    /// The directory around the package if it is one of several versions, and otherwise the package
    /// itself.
    family: PathBuf,
}

fn places(tools: &Path, home: Option<&Path>) -> Vec<Place> {
    if is_package(tools) {
        let directory = std::path::absolute(tools).unwrap_or_else(|_| tools.to_owned());
        return vec![Place { family: directory.clone(), directory }];
    }
    let mut places = Vec::new();
    for directory in directories(tools) {
        if form_of(&directory).is_some() {
            places.push(Place { family: directory.clone(), directory });
        } else {
            add_versions(&mut places, &directory);
        }
    }
    // A directory that appears twice is read once.
    let same = |home: &&Path| home.canonicalize().ok() == tools.canonicalize().ok();
    for directory in home.filter(|home| !same(home)).map(directories).unwrap_or_default() {
        add_versions(&mut places, &directory);
    }
    places
}

fn add_versions(places: &mut Vec<Place>, family: &Path) {
    for directory in directories(family) {
        if form_of(&directory).is_some() {
            places.push(Place { directory, family: family.to_owned() });
        }
    }
}

/// Returns the directories in a directory, absolute and in order, without hidden ones.
fn directories(directory: &Path) -> Vec<PathBuf> {
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .filter(|entry| match entry.file_type() {
            Ok(kind) if kind.is_symlink() => entry.path().is_dir(),
            kind => kind.is_ok_and(|kind| kind.is_dir()),
        })
        .map(|entry| entry.path())
        .collect();
    found.sort_unstable();
    found
}

fn form_of(directory: &Path) -> Option<Form> {
    let has = |form: &Form| directory.join(form.file_name()).symlink_metadata().is_ok();
    [Form::Yaml, Form::Json].into_iter().find(has)
}

impl Packages {
    fn load(&mut self, directory: &Path) -> Option<Package> {
        let finding =
            |path: PathBuf, at, message: &str| Finding { path, at, message: message.to_owned() };
        let Some(form) = form_of(directory) else {
            self.problems.push(finding(directory.to_owned(), None, "no manifest"));
            return None;
        };
        let path = directory.join(form.file_name());
        if form == Form::Yaml && directory.join(Form::Json.file_name()).symlink_metadata().is_ok() {
            let other = directory.join(Form::Json.file_name());
            let message = "not read: the tool.yaml beside it is; orla-tool.json is deprecated (RFC 2 §15) and can be removed";
            self.warnings.push(finding(other, None, message));
        }
        let bytes = match read(&path) {
            Ok(bytes) => bytes,
            Err(err) => {
                self.problems.push(finding(path, None, &reason(&err)));
                return None;
            }
        };
        let (manifest, remarks) = manifest::read(&bytes, form);
        let at_fault = manifest.as_ref().and_then(|manifest| manifest.fault.as_ref());
        let fault = at_fault.map(|Remark { at, message, .. }| {
            Finding { path: path.clone(), at: Some(*at), message: message.clone() }.to_string()
        });
        for Remark { at, message, is_problem } in remarks {
            let list = if is_problem { &mut self.problems } else { &mut self.warnings };
            list.push(Finding { path: path.clone(), at: Some(at), message });
        }
        let manifest = manifest?;
        if let Err(problem) = check_entrypoint(directory, &manifest.entrypoint) {
            let at: Position = manifest.entrypoint_at;
            let message = format!("entrypoint: {} {problem}", manifest.entrypoint.display());
            self.problems.push(Finding { path, at: Some(at), message });
            return None;
        }
        let watched = manifest.hot_load.iter().flat_map(|hot_load| &hot_load.watch);
        for missing in watched.filter(|watched| !directory.join(watched).exists()) {
            let shown = missing.display();
            let message = format!(
                "runtime.hot_load.watch: {shown} does not exist; name a file or a directory, not a pattern"
            );
            self.warnings.push(Finding { path: path.clone(), at: None, message });
        }
        let head = file::read_head(&directory.join(&manifest.entrypoint)).unwrap_or_default();
        let interpreter = FileKind::of(&head).interpreter();
        let directory = directory.to_owned();
        Some(Package {
            directory,
            form,
            manifest,
            interpreter,
            pass_env: Vec::new(),
            env: Vec::new(),
            sandbox: None,
            changed: Declared::default(),
            fault,
            redaction: None,
            unfilled: None,
        })
    }
}

/// Makes a tool from a package with a process for each call (`runtime.mode: simple`), with its
/// manifest's arguments, environment and schemas. A capsule with a fault becomes an unavailable tool.
///
/// # Errors
/// The current directory is gone.
pub fn registration(package: &Package, limits: Limits) -> io::Result<Registration> {
    let own = &package.manifest;
    let provider = ToolProvider {
        program: Arc::new(package.program()?),
        interpreter: package.interpreter.clone(),
        args: own.args.clone(),
        // Output with a schema is JSON.
        form: if own.output_schema.is_some() { OutputForm::Json } else { OutputForm::Text },
        has_output_schema: own.output_schema.is_some(),
        limits,
        prestart: 0,
        package: Some(package.directory.clone()),
        declaration: None,
        is_capsule: own.mode == Mode::Capsule,
    };
    let provider = ProviderType::Custom(Arc::new(provider));
    let mut registration = Registration::from(package.capability(provider));
    registration.policy.timeout = own.declared.limits.wall;
    registration.policy.redaction.clone_from(&package.redaction);
    if let Some(fault) = &package.fault {
        registration.policy = registration.policy.unavailable(fault);
    }
    Ok(registration)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = file::open_regular(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_MANIFEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_MANIFEST {
        return Err(io::Error::other(format!("larger than {} KiB", MAX_MANIFEST / 1024)));
    }
    Ok(bytes)
}

/// Checks a package's program.
fn check_entrypoint(directory: &Path, entrypoint: &Path) -> Result<(), String> {
    let path = directory.join(entrypoint);
    let real = path.canonicalize().map_err(|err| match err.kind() {
        io::ErrorKind::NotFound => "does not exist".to_owned(),
        _ => format!("cannot be looked at: {}", reason(&err)),
    })?;
    if !directory.canonicalize().is_ok_and(|directory| real.starts_with(directory)) {
        return Err("is a link that leads out of the package".to_owned());
    }
    let file = fs::metadata(&real).map_err(|err| format!("cannot be looked at: {}", reason(&err)))?;
    if !file.is_file() {
        return Err("is not a regular file".to_owned());
    }
    if file.permissions().mode() & 0o111 == 0 {
        return Err("is not executable (chmod +x)".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct World(tempfile::TempDir);

    impl World {
        fn new(files: &[(&str, &str)]) -> Self {
            let world = Self(tempfile::tempdir().unwrap());
            for (path, text) in files {
                let path = world.path(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, text).unwrap();
                let mode = if path.extension().is_some_and(|end| end == "sh") { 0o755 } else { 0o644 };
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
            world
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn find(&self) -> Packages {
            find(&self.path("tools"), Some(&self.path("home")))
        }

        fn say(&self, findings: &[Finding]) -> Vec<String> {
            let root = format!("{}/", self.0.path().display());
            findings.iter().map(|finding| finding.to_string().replace(&root, "")).collect()
        }
    }

    fn yaml(name: &str, version: &str) -> String {
        format!("name: {name}\nversion: {version}\nentrypoint: run.sh\n")
    }

    #[test]
    fn the_highest_version_of_a_name_is_served() {
        let world = World::new(&[
            ("tools/cap/1.9.0/tool.yaml", &yaml("cap", "1.9.0")),
            ("tools/cap/1.9.0/run.sh", ""),
            ("tools/cap/1.10.0/tool.yaml", &yaml("cap", "1.10.0")),
            ("tools/cap/1.10.0/run.sh", ""),
            ("tools/cap/1.11.0/tool.yaml", "name: cap\n"),
            (
                "tools/one/orla-tool.json",
                r#"{"name": "one", "version": "1.0.0", "entrypoint": "run.sh"}"#,
            ),
            ("tools/one/run.sh", ""),
            ("tools/none/readme", ""),
            ("tools/.hidden/tool.yaml", ""),
            ("home/far/0.1.0/tool.yaml", &yaml("far", "0.1.0")),
            ("home/far/0.1.0/run.sh", ""),
            ("home/flat/tool.yaml", &yaml("flat", "1.0.0")),
        ]);
        let found = world.find();
        let served: Vec<String> = found
            .packages
            .iter()
            .map(|package| {
                format!("{} {} {:?}", package.manifest.name, package.manifest.version, package.form)
            })
            .collect();
        assert_eq!(served, ["cap 1.10.0 Yaml", "far 0.1.0 Yaml", "one 1.0.0 Json"]);
        assert_eq!(
            world.say(&found.problems),
            [
                "tools/cap/1.11.0/tool.yaml:1:1: version: missing, and required",
                "tools/cap/1.11.0/tool.yaml:1:1: entrypoint: missing, and required",
            ]
        );
    }

    #[test]
    fn of_two_packages_with_one_name_the_first_path_is_served_and_both_are_named() {
        let world = World::new(&[
            ("tools/b/tool.yaml", &yaml("cap", "9.0.0")),
            ("tools/b/run.sh", ""),
            ("tools/a/tool.yaml", &yaml("cap", "1.0.0")),
            ("tools/a/run.sh", ""),
            ("tools/a/orla-tool.json", "not even JSON"),
        ]);
        let found = world.find();
        assert_eq!(found.packages[0].directory, world.path("tools/a"));
        let [problem] = &world.say(&found.problems)[..] else { panic!("{:?}", found.problems) };
        assert!(
            problem.starts_with("tools/b: not served: ") && problem.contains("tools/a"),
            "{problem}"
        );
        assert_eq!(
            world.say(&found.warnings),
            [
                "tools/a/orla-tool.json: not read: the tool.yaml beside it is; orla-tool.json is deprecated (RFC 2 §15) and can be removed"
            ]
        );
    }

    #[test]
    fn an_entrypoint_that_cannot_run_is_named_with_its_place() {
        let world = World::new(&[
            ("tools/a/tool.yaml", "name: a\nversion: 1.0.0\nentrypoint: missing\n"),
            ("tools/b/tool.yaml", "name: b\nversion: 1.0.0\nentrypoint: file\n"),
            ("tools/b/file", ""),
            ("tools/c/tool.yaml", "name: c\nversion: 1.0.0\nentrypoint: link\n"),
            ("tools/d/tool.yaml", "name: d\nversion: 1.0.0\nentrypoint: bin\n"),
            ("tools/d/bin/x", ""),
            ("tools/e/tool.yaml", "name: e\nversion: 1.0.0\nentrypoint: link\n"),
            ("tools/e/real.sh", ""),
        ]);
        symlink("/bin/sh", world.path("tools/c/link")).unwrap();
        symlink("real.sh", world.path("tools/e/link")).unwrap();
        let found = world.find();
        assert_eq!(
            world.say(&found.problems),
            [
                "tools/a/tool.yaml:3:13: entrypoint: missing does not exist",
                "tools/b/tool.yaml:3:13: entrypoint: file is not executable (chmod +x)",
                "tools/c/tool.yaml:3:13: entrypoint: link is a link that leads out of the package",
                "tools/d/tool.yaml:3:13: entrypoint: bin is not a regular file",
            ]
        );
        assert_eq!(found.packages.len(), 1);
    }

    #[test]
    fn a_directory_that_is_a_package_itself_holds_that_alone() {
        let world = World::new(&[
            ("tools/tool.yaml", &yaml("cap", "1.0.0")),
            ("tools/run.sh", ""),
            ("tools/inner/tool.yaml", &yaml("inner", "1.0.0")),
            ("tools/inner/run.sh", ""),
            ("home/far/0.1.0/tool.yaml", &yaml("far", "0.1.0")),
            ("home/far/0.1.0/run.sh", ""),
        ]);
        let found = world.find();
        assert!(is_package(&world.path("tools")) && !is_package(&world.path("home")));
        let [package] = &found.packages[..] else { panic!("{found:?}") };
        assert_eq!(package.manifest.name, "cap");
        let watch = package.clone().hot_loaded().manifest.hot_load.unwrap().watch;
        assert_eq!(watch, [PathBuf::from(".")]);
    }

    #[test]
    fn a_missing_watched_path_is_a_warning() {
        let manifest =
            yaml("cap", "1.0.0") + "runtime: {mode: capsule, hot_load: {watch: [run.sh, '*.py']}}\n";
        let world = World::new(&[("tools/cap/tool.yaml", &manifest), ("tools/cap/run.sh", "")]);
        let found = world.find();
        assert_eq!(
            world.say(&found.warnings),
            [
                "tools/cap/tool.yaml: runtime.hot_load.watch: *.py does not exist; name a file or a directory, not a pattern"
            ]
        );
    }

    #[test]
    fn a_manifest_that_is_no_file_or_too_large_is_refused() {
        let world = World::new(&[("tools/b/tool.yaml", &"#".repeat(2 * 1024 * 1024))]);
        fs::create_dir_all(world.path("tools/a/tool.yaml")).unwrap();
        let problems = world.say(&world.find().problems);
        assert_eq!(
            problems,
            ["tools/a/tool.yaml: not a regular file", "tools/b/tool.yaml: larger than 1024 KiB"]
        );
    }

    #[test]
    fn manifests_are_watched_wherever_a_package_is_or_may_come() {
        let world = World::new(&[
            ("tools/cap/tool.yaml", &yaml("cap", "1.0.0")),
            ("tools/data/notes.txt", ""),
            ("tools/family/1.0.0/tool.yaml", &yaml("family", "1.0.0")),
            ("home/far/0.1.0/tool.yaml", &yaml("far", "0.1.0")),
        ]);
        let watched = watched(&world.path("tools"), Some(&world.path("home")));
        for path in [
            "tools/cap/tool.yaml",
            "tools/data/tool.yaml",
            "tools/data/orla-tool.json",
            "tools/family",
            "tools/family/1.0.0/tool.yaml",
            "home",
            "home/far",
            "home/far/0.1.0/tool.yaml",
        ] {
            assert!(watched.contains(&world.path(path)), "{path}: {watched:?}");
        }
        assert!(
            !watched.contains(&world.path("tools/data")),
            "what is no package changes without notice"
        );
    }

    #[test]
    fn no_directory_holds_no_package() {
        let world = World::new(&[]);
        let found = world.find();
        assert!(found.packages.is_empty() && found.problems.is_empty() && found.warnings.is_empty());
    }
}
