//! Confined processes: the kernel restricts a process to its declaration.
//!
//! # How it works
//!
//! [`Sandboxes::of`] makes a [`Sandbox`] from a declaration. Equal declarations in one directory share a
//! sandbox. A sandbox that confines has a launcher, a small separate process (`inside`), which is replaced when a path
//! of its profile leads elsewhere (`current`). The launcher gets the profile and opens compartments for it (`compartment`). Each compartment runs one program at
//! a time. [`Program`](crate::child::Program) asks its sandbox to start it.
//!
//! | what | by what |
//! |---|---|
//! | files | Landlock (`inside`) |
//! | modes and times of files | seccomp: the first process of a compartment changes them for the program, where it may write (`metadata`) |
//! | other metadata | seccomp |
//! | network, UNIX sockets | a network namespace without interfaces, and seccomp |
//! | declared hosts | a network namespace of a loopback interface, where the broker (`orla_broker`) listens; Landlock and seccomp leave connections to it alone |
//! | `net:loopback`, `unix:PATH` | seccomp: the first process of a compartment connects for the program, to addresses that it has checked (`connects`) |
//! | other processes, the end of the whole tree | a PID namespace, which is emptied after each program |
//! | temporary directory | a file system in memory, which is emptied after each program |
//! | privileges | a user namespace, no capabilities, no new privileges, seccomp |
//! | limits | rlimits, and control groups if one is delegated (`cgroup`); otherwise the first process of the tree looks at what the tree uses |
//!
//! # Invariants
//!
//! - A declaration that cannot be enforced makes its capability unavailable, unless the configuration
//!   allows it to run unconfined.
//! - A sandbox is `enforced` only after every operation that must be refused was refused to a probe
//!   inside.

#[cfg(target_os = "linux")]
mod answers;
#[cfg(target_os = "linux")]
mod compartment;
#[cfg(target_os = "linux")]
mod connects;
#[cfg(target_os = "linux")]
mod current;
#[cfg(target_os = "linux")]
mod filters;
#[cfg(target_os = "linux")]
mod inside;
#[cfg(target_os = "linux")]
mod launcher;
#[cfg(target_os = "linux")]
mod metadata;
#[cfg(target_os = "linux")]
mod network_probe;
#[cfg(target_os = "linux")]
mod proxy;
#[cfg(target_os = "linux")]
mod refusals;
#[cfg(target_os = "linux")]
mod resolve;
#[cfg(target_os = "linux")]
mod sockets;
mod support;
mod unenforced;
#[cfg(target_os = "linux")]
mod usage;
#[cfg(target_os = "linux")]
mod walk;
#[cfg(target_os = "linux")]
mod wire;

use std::collections::HashMap;
#[cfg(target_os = "linux")]
use std::collections::HashSet;
use std::ffi::OsStr;
#[cfg(target_os = "linux")]
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(target_os = "linux")]
use orla_broker::Clients;
use orla_confine::{Allowed, Places, Profile};
use orla_marketplace::id::Pattern;
use orla_marketplace::id::short_hash;
use orla_marketplace::{ConfinedBy, SandboxGrants, SandboxLevel, SandboxStatus};
use parking_lot::{Mutex, RwLock};

#[cfg(target_os = "linux")]
pub(crate) use launcher::{Start, installation};
pub use orla_confine::{
    Environment, Limits, Refusal, STRACE, Trace, Traced, check, misspelt_key, placed, size,
};
pub use support::{Support, use_control_groups};
use unenforced::{Cause, Unenforced};

/// The hidden command that makes the server's program run as a launcher.
const COMMAND: &str = "__launch";
/// A launcher sends this when it has entered its profile.
#[cfg(target_os = "linux")]
const READY: &str = "ready";
/// The maximum time that a launcher or a broker may take to answer.
#[cfg(target_os = "linux")]
const ANSWER: std::time::Duration = std::time::Duration::from_secs(30);
/// The answer of a successful probe. It is neither an error nor a process id.
#[cfg(target_os = "linux")]
const REFUSED: &str = "refused";

/// A placeholder for the number of a limit.
#[cfg(target_os = "linux")]
const NO_LIMIT: u8 = u8::MAX;

/// System directories that every confined process may read and run programs from.
const BASE_EXECUTE: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// The parts of `/etc` that the loader, name service, time zone and TLS need.
const BASE_READ: &[&str] = &[
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/networks",
    "/etc/passwd",
    "/etc/group",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/locale.alias",
    "/etc/locale.conf",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/openssl.cnf",
    "/etc/pki/ca-trust",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/crypto-policies",
];
/// Devices without side effects.
const BASE_DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Returns the paths that every confined process may read, as real paths and as they are usually
/// written.
pub fn base() -> Vec<PathBuf> {
    let all = [BASE_EXECUTE, BASE_READ, BASE_DEVICES, &["/proc", "/dev/tty"]].concat();
    let real = all.iter().filter_map(|path| std::fs::canonicalize(path).ok());
    all.iter().map(PathBuf::from).chain(real).collect()
}

/// The network access that the kernel leaves to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg(target_os = "linux")]
enum NetworkMode {
    None,
    /// Connections to the broker, in a separate namespace.
    Hosts,
    /// TCP to loopback addresses, in the namespace of the host.
    Loopback,
    All,
}

#[cfg(target_os = "linux")]
impl NetworkMode {
    const NAMES: [(Self, &str); 4] =
        [(Self::None, "none"), (Self::Hosts, "hosts"), (Self::Loopback, "loopback"), (Self::All, "all")];

    fn of(network: &orla_confine::Network) -> Self {
        match network {
            network if network.all => Self::All,
            network if !network.hosts.is_empty() => Self::Hosts,
            network if network.loopback => Self::Loopback,
            _ => Self::None,
        }
    }

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(mode, _)| *mode == self).map_or("", |(_, name)| name)
    }

    fn named(name: &[u8]) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| known.as_bytes() == name).map(|(mode, _)| *mode)
    }

    fn has_namespace(self) -> bool {
        matches!(self, Self::None | Self::Hosts)
    }
}

/// The value of `sandbox`: which processes are confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// No process.
    Off,
    /// Processes whose declaration has permissions.
    #[default]
    Declared,
    /// All processes.
    Strict,
}

impl Mode {
    /// Returns the value's name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Declared => "declared",
            Self::Strict => "strict",
        }
    }
}

/// The value of `sandbox_fallback`: how a process is treated that cannot be confined as declared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// The process is unavailable.
    #[default]
    Refuse,
    /// The process runs unconfined, and its status shows that.
    Allow,
}

/// The parts of a declaration that concern confinement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// The permissions; `None` if the declaration has none, which differs from an empty list.
    pub permissions: Option<Vec<String>>,
    /// The resource limits.
    pub limits: Limits,
    /// Replaces the server's own fallback.
    pub fallback: Option<Fallback>,
    /// Whether a third party wrote the program and its arguments. Then only permissions say what the
    /// program may read: files among its arguments and the installation of an interpreter that a script
    /// names by path do not belong to the program.
    pub is_foreign: bool,
    /// Whether a part that may concern confinement is unreadable. Then nothing runs.
    pub is_unclear: bool,
}

impl Declared {
    /// Returns whether the declaration confines processes.
    fn confines(&self) -> bool {
        self.permissions.is_some() || self.limits.confine() || self.is_unclear
    }

    /// Returns the permissions that a user is asked to grant, and the variables that `pass_env` names as
    /// `env:PATTERN`.
    pub fn wanted(&self, pass_env: &[Pattern]) -> impl Iterator<Item = String> {
        let passed = pass_env.iter().map(|pattern| format!("env:{}", pattern.as_str()));
        self.permissions.iter().flatten().cloned().chain(passed)
    }

    /// Creates a declaration from permissions that policies also read. It contains those that confine,
    /// if there are any.
    pub fn of_words(words: &[String]) -> Self {
        let words: Vec<String> =
            words.iter().filter(|word| orla_confine::confines(word)).cloned().collect();
        Self { permissions: (!words.is_empty()).then_some(words), ..Self::default() }
    }

    /// Returns the declaration with the permissions of `other` added, and with the limits of `other`
    /// replacing its own.
    #[must_use]
    pub fn changed_by(&self, other: &Self) -> Self {
        let permissions = match (&self.permissions, &other.permissions) {
            (None, None) => None,
            (own, more) => {
                Some([own.as_deref().unwrap_or_default(), more.as_deref().unwrap_or_default()].concat())
            }
        };
        Self {
            permissions,
            limits: self.limits.changed_by(&other.limits),
            fallback: other.fallback.or(self.fallback),
            is_foreign: self.is_foreign || other.is_foreign,
            is_unclear: self.is_unclear || other.is_unclear,
        }
    }
}

/// Identifies a process that a capability names by itself, without an entry of the configuration: by its address
/// and the permissions to which it is confined. Another confinement has another process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProcessKey {
    address: String,
    permissions: Vec<String>,
}

impl ProcessKey {
    /// Returns the key of a process for a capability with these permissions, of which only those that confine
    /// matter.
    pub fn new(address: impl Into<String>, permissions: &[String]) -> Self {
        let mut permissions = Declared::of_words(permissions).permissions.unwrap_or_default();
        permissions.sort();
        permissions.dedup();
        Self { address: address.into(), permissions }
    }

    /// Returns the address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the sandbox of the process; `None` if it is not confined.
    pub fn sandbox(&self, sandboxes: &Sandboxes) -> Option<Arc<Sandbox>> {
        sandboxes.of_words(&self.permissions)
    }

    /// Returns the name of the process: `name`, and a short hash of the permissions, if there are any.
    #[must_use]
    pub fn name(&self, name: String) -> String {
        if self.permissions.is_empty() {
            return name;
        }
        let declared = format!("{}\n{}", self.address, self.permissions.join("\n"));
        format!("{name}-{:08x}", short_hash(declared.as_bytes()))
    }
}

/// The confinement of the processes of one declaration.
#[derive(Debug)]
pub struct Sandbox {
    level: SandboxLevel,
    profile: Option<String>,
    permissions: Vec<String>,
    missing: Vec<String>,
    env: Vec<Pattern>,
    variables: Vec<(String, String)>,
    is_foreign: bool,
    /// What the declaration granted when the sandbox was made.
    grants: Option<Arc<SandboxGrants>>,
    #[cfg(target_os = "linux")]
    launcher: Option<current::CurrentLauncher>,
}

/// Two sandboxes are equal if they are the same object, or if neither confines anything and their
/// declarations are equal.
impl PartialEq for Sandbox {
    fn eq(&self, other: &Self) -> bool {
        let is_unconfined = self.profile.is_none() && other.profile.is_none();
        let say_the_same = || {
            (self.level, &self.permissions, &self.missing)
                == (other.level, &other.permissions, &other.missing)
                && (&self.env, &self.variables) == (&other.env, &other.variables)
        };
        std::ptr::eq(self, other) || is_unconfined && say_the_same()
    }
}

impl Sandbox {
    /// Returns how far the processes are confined.
    pub fn level(&self) -> SandboxLevel {
        self.level
    }

    /// Returns the hash of the profile; `None` if nothing is confined.
    pub fn profile(&self) -> Option<&str> {
        self.profile.as_deref()
    }

    /// Returns whether a third party wrote the program that runs in the sandbox, and its arguments.
    pub(crate) fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    /// Returns the permissions as declared.
    pub fn permissions(&self) -> &[String] {
        &self.permissions
    }

    /// Returns what is declared and not in force, with the reasons.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Returns the status to show.
    pub fn status(&self) -> SandboxStatus {
        SandboxStatus {
            level: self.level,
            by: ConfinedBy::Kernel,
            profile: self.profile.clone(),
            permissions: self.permissions.clone(),
            missing: self.missing.clone(),
            grants: self.grants(),
            refused_connections: self.refused_connections(),
        }
    }

    fn name_clients(&self, names: Vec<String>) {
        #[cfg(target_os = "linux")]
        if let Some(launcher) = &self.launcher {
            launcher.clients().set_names(names);
        }
        #[cfg(not(target_os = "linux"))]
        drop(names);
    }

    fn refused_connections(&self) -> u64 {
        #[cfg(target_os = "linux")]
        return self.launcher.as_ref().map_or(0, |launcher| launcher.clients().refused());
        #[cfg(not(target_os = "linux"))]
        0
    }

    /// Returns whether nothing is confined because of `sandbox: off`.
    pub fn is_off(&self) -> bool {
        self.level == SandboxLevel::Unconfined && self.grants.is_none()
    }

    /// Returns patterns of variables that the processes get besides the usual ones.
    pub fn env(&self) -> &[Pattern] {
        &self.env
    }

    /// Returns whether the processes run Python.
    pub(crate) fn is_for_python(&self) -> bool {
        self.permissions.iter().any(|word| word == "preset:python")
    }

    /// Returns the package that a script may read besides its own file. With `preset:node`, this is the
    /// directory that holds the script's imports.
    pub(crate) fn package_of(&self, script: &Path) -> Option<PathBuf> {
        let is_node = self.permissions.iter().any(|word| word == "preset:node" || word == "preset:npx");
        let script = std::fs::canonicalize(script).ok().filter(|_| is_node)?;
        let home = std::env::var_os("HOME");
        let owner = std::fs::metadata(&script).ok()?.uid();
        node_package(&script, |directory| {
            // A file that another user can create does not make a directory a package.
            let is_own = std::fs::metadata(directory.join("package.json"))
                .is_ok_and(|file| file.is_file() && [owner, 0].contains(&file.uid()));
            is_own && !is_wide(directory, home.as_deref())
        })
    }

    /// Returns variables that name resources for the processes.
    pub(crate) fn variables(&self) -> &[(String, String)] {
        &self.variables
    }

    /// Returns what the processes may do besides the base; `None` if the declaration is invalid.
    pub fn grants(&self) -> Option<Arc<SandboxGrants>> {
        #[cfg(target_os = "linux")]
        if let Some(launcher) = self.launcher.as_ref().filter(|launcher| launcher.is_replaced()) {
            return Some(Arc::new(launcher.grants()));
        }
        self.grants.clone()
    }

    /// Returns the operation that was probably refused to a failed program, judged by its output.
    /// `directory` is its working directory; without one, relative paths are ignored.
    pub fn refusal(&self, stderr: &str, directory: Option<&Path>) -> Option<Refusal> {
        let grants = self.grants()?;
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let allowed = Allowed {
            read: &grants.read,
            write: &grants.write,
            run: &grants.run,
            network: !grants.network.is_empty(),
            home: home.as_deref(),
        };
        orla_confine::refusal(stderr, directory, &allowed)
    }

    /// Returns whether the paths of the declaration lead to the files and directories to which they led
    /// when the sandbox was made. If not, a reload restarts its long-running processes.
    fn is_current(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.launcher.as_ref().is_none_or(current::CurrentLauncher::is_unchanged);
        #[cfg(not(target_os = "linux"))]
        true
    }

    /// Returns a number that changes when a path of the declaration leads to another file or directory. A
    /// process is confined to those to which the paths led when it was started.
    pub(crate) fn version(&self) -> u64 {
        #[cfg(target_os = "linux")]
        return self.launcher.as_ref().map_or(0, current::CurrentLauncher::version);
        #[cfg(not(target_os = "linux"))]
        0
    }

    /// Checks whether processes of the sandbox can run.
    ///
    /// # Errors
    /// The reason why they cannot.
    pub fn available(&self) -> Result<(), String> {
        match self.level {
            SandboxLevel::Unavailable => self.status().unconfinable().map_or(Ok(()), Err),
            SandboxLevel::Enforced | SandboxLevel::Unconfined => Ok(()),
        }
    }

    /// Returns the launcher of the next process; `None` if nothing is confined.
    ///
    /// # Errors
    /// A path of the declaration leads to another file by now, with which the declaration cannot be
    /// enforced.
    #[cfg(target_os = "linux")]
    pub(crate) fn launcher(&self) -> io::Result<Option<Arc<launcher::Launcher>>> {
        self.launcher.as_ref().map(current::CurrentLauncher::get).transpose()
    }

    fn unconfined(permissions: Vec<String>, missing: Vec<String>) -> Self {
        Self {
            level: SandboxLevel::Unconfined,
            profile: None,
            permissions,
            missing,
            env: Vec::new(),
            variables: Vec::new(),
            is_foreign: false,
            grants: None,
            #[cfg(target_os = "linux")]
            launcher: None,
        }
    }

    fn unavailable(permissions: Vec<String>, missing: Vec<String>) -> Self {
        Self { level: SandboxLevel::Unavailable, ..Self::unconfined(permissions, missing) }
    }
}

/// Returns whether a real directory holds more than one installation or package: a home directory, its
/// ancestors, and directories at the root of the file system.
fn is_wide(directory: &Path, home: Option<&OsStr>) -> bool {
    let home = home.map(|home| std::fs::canonicalize(home).unwrap_or_else(|_| PathBuf::from(home)));
    directory.components().count() <= 2 || home.is_some_and(|home| home.starts_with(directory))
}

/// Returns the directory that holds the imports of a Node.js script: the outermost `node_modules` around
/// it, or the nearest package.
fn node_package(script: &Path, is_package: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let around = || script.ancestors().skip(1);
    let outermost = around().filter(|directory| directory.ends_with("node_modules")).last();
    outermost.or_else(|| around().find(|directory| is_package(directory))).map(Path::to_owned)
}

/// The maximum number of different declarations of the tools of one package. Each has processes of its own from the start on.
const MAX_OF_PACKAGE: usize = 32;

/// The reason why a declaration is not enforced.
const OFF: &str = "sandbox: off";

/// The server-wide settings of all sandboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// `sandbox`
    pub mode: Mode,
    /// `sandbox_fallback`
    pub fallback: Fallback,
}

/// The sandboxes of a server.
#[derive(Debug, Default)]
pub struct Sandboxes {
    rules: RwLock<Rules>,
    /// The sandboxes by declaration and directory.
    known: Mutex<HashMap<(Declared, PathBuf), Arc<Sandbox>>>,
    /// The users of each profile, by its hash.
    #[cfg(target_os = "linux")]
    clients: Mutex<HashMap<String, Clients>>,
    /// Whether the running program can be its own launcher.
    has_launcher: bool,
}

impl std::hash::Hash for Declared {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.permissions.hash(state);
    }
}

impl Sandboxes {
    /// Creates the sandboxes of a server. `has_launcher` says whether its program begins with
    /// [`run_if_asked`].
    pub(crate) fn new(has_launcher: bool) -> Self {
        Self { has_launcher, ..Self::default() }
    }

    /// Returns the rules in force.
    pub fn rules(&self) -> Rules {
        *self.rules.read()
    }

    /// Sets the rules for sandboxes that are made from now on.
    pub fn set_rules(&self, rules: Rules) {
        if std::mem::replace(&mut *self.rules.write(), rules) != rules {
            self.known.lock().clear();
        }
    }

    /// Ends unused launchers, and forgets which declarations could not be confined, because that may
    /// have changed.
    pub fn tidy(&self) {
        let mut known = self.known.lock();
        known.retain(|_, sandbox| Arc::strong_count(sandbox) > 1 && sandbox.profile.is_some());
        #[cfg(target_os = "linux")]
        {
            let profiles: HashSet<&str> =
                known.values().filter_map(|sandbox| sandbox.profile()).collect();
            self.clients.lock().retain(|profile, _| profiles.contains(&**profile));
        }
    }

    /// Returns the sandbox of a declaration whose paths are relative to `base`; `None` if nothing is
    /// declared and nothing has to be confined. A new sandbox starts and tests its launcher, which takes
    /// some milliseconds.
    pub fn of(&self, declared: &Declared, base: &Path) -> Option<Arc<Sandbox>> {
        let rules = self.rules();
        match rules.mode {
            Mode::Off if declared.confines() => {
                let permissions = declared.permissions.clone().unwrap_or_default();
                return Some(Arc::new(Sandbox::unconfined(permissions, vec![OFF.to_owned()])));
            }
            Mode::Declared if declared.confines() => {}
            Mode::Strict => {}
            Mode::Off | Mode::Declared => return None,
        }
        let key = (declared.clone(), base.to_owned());
        let known = self.known.lock().get(&key).cloned();
        if let Some(known) = known.filter(|known| known.is_current()) {
            return Some(known);
        }
        if declared.is_foreign && !self.has_room_for_package(base, &key) {
            let permissions = declared.permissions.clone().unwrap_or_default();
            let problem = format!(
                "the tools of its package have more than {MAX_OF_PACKAGE} different declarations"
            );
            return Some(Arc::new(Sandbox::unavailable(permissions, vec![problem])));
        }
        let made = Arc::new(self.make(declared, base, rules));
        self.known.lock().insert(key, Arc::clone(&made));
        Some(made)
    }

    /// Returns whether the package in this directory may have one more declaration, if it is another one.
    fn has_room_for_package(&self, directory: &Path, key: &(Declared, PathBuf)) -> bool {
        let known = self.known.lock();
        let of_package =
            known.keys().filter(|(declared, base)| declared.is_foreign && base == directory);
        known.contains_key(key) || of_package.count() < MAX_OF_PACKAGE
    }

    /// Sets the names of the capabilities whose processes have the profile of each sandbox, for the log.
    pub fn name_clients(confined: &[(String, Arc<Sandbox>)]) {
        let mut by_profile: HashMap<&str, (&Sandbox, Vec<String>)> = HashMap::new();
        for (name, sandbox) in confined {
            let Some(profile) = sandbox.profile() else { continue };
            let (_, names) = by_profile.entry(profile).or_insert((sandbox, Vec::new()));
            names.push(name.clone());
        }
        for (sandbox, names) in by_profile.into_values() {
            sandbox.name_clients(names);
        }
    }

    /// Returns the sandbox of a program that a capability with these permissions starts by its own address;
    /// `None` if none of them confines and nothing else has to be confined. Paths are absolute.
    pub fn of_words(&self, permissions: &[String]) -> Option<Arc<Sandbox>> {
        self.of(&Declared::of_words(permissions), Path::new("/"))
    }

    /// Returns the status of a sandbox; `None` stands for a process that declares nothing.
    pub fn status_of(&self, sandbox: Option<&Arc<Sandbox>>) -> SandboxStatus {
        let undeclared = || self.of(&Declared::default(), Path::new("/"));
        let sandbox = sandbox.cloned().or_else(undeclared);
        sandbox.map_or_else(SandboxStatus::unconfined, |sandbox| sandbox.status())
    }

    fn make(&self, declared: &Declared, base: &Path, rules: Rules) -> Sandbox {
        let permissions = declared.permissions.clone().unwrap_or_default();
        if declared.is_unclear {
            return Sandbox::unavailable(permissions, Vec::new());
        }
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        let places = Places {
            base,
            home: home.as_deref(),
            variable: &|name| std::env::var(name).ok(),
            program: &|name| crate::file::program_in_path(name),
        };
        // An invalid word is a mistake in the declaration, which no fallback covers.
        let profile = match Profile::of(&permissions, &declared.limits, &places) {
            Ok(profile) => profile,
            Err(problems) => return Sandbox::unavailable(permissions, problems),
        };
        let is_open = declared.permissions.is_none() && rules.mode != Mode::Strict;
        let made = if self.has_launcher {
            self.enforce(&profile, is_open, home.as_deref())
        } else {
            Err(Unenforced::by_system("this program cannot start confined processes"))
        };
        let env = profile.env.iter().map(Pattern::new).collect();
        let exists = |(_, path): &(_, &PathBuf)| path.parent().is_some_and(Path::exists);
        let variables = profile.variables.iter().filter(exists);
        let variables = variables
            .filter_map(|(name, path)| Some((name.clone(), path.to_str()?.to_owned())))
            .collect();
        let grants = Some(Arc::new(grants(&profile, is_open)));
        let sandbox = match made {
            Ok(made) => Sandbox { permissions, ..made },
            Err(Unenforced { problems, cause }) => {
                // No third party decides by a path that nothing confines its program.
                let is_covered = match cause {
                    Cause::System => true,
                    Cause::Declaration => !declared.is_foreign,
                    Cause::Program => false,
                };
                match declared.fallback.unwrap_or(rules.fallback) {
                    Fallback::Allow if is_covered => Sandbox::unconfined(permissions, problems),
                    Fallback::Allow | Fallback::Refuse => Sandbox::unavailable(permissions, problems),
                }
            }
        };
        Sandbox { env, variables, grants, is_foreign: declared.is_foreign, ..sandbox }
    }

    #[cfg(target_os = "linux")]
    fn enforce(
        &self,
        profile: &Profile,
        is_open: bool,
        home: Option<&Path>,
    ) -> Result<Sandbox, Unenforced> {
        let hash = profile.hash();
        let clients = self.clients.lock().entry(hash.clone()).or_default().clone();
        let launcher = current::CurrentLauncher::new(profile, is_open, home, clients)?;
        Ok(Sandbox {
            level: if is_open { SandboxLevel::Unconfined } else { SandboxLevel::Enforced },
            profile: Some(hash),
            launcher: Some(launcher),
            ..Sandbox::unconfined(Vec::new(), Vec::new())
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn enforce(&self, _: &Profile, _: bool, _: Option<&Path>) -> Result<Sandbox, Unenforced> {
        Err(Unenforced::by_system("processes can only be confined on Linux"))
    }
}

/// Describes for users what a profile allows besides the base.
fn grants(profile: &Profile, is_open: bool) -> SandboxGrants {
    let real = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    let shown = |path: &PathBuf| real(path).display().to_string();
    let caches = || profile.caches.keys().chain(&profile.optional).filter(|path| path.exists());
    let limits = profile.limits.enforced().into_iter();
    SandboxGrants {
        is_open,
        read: profile.read.iter().map(shown).collect(),
        write: profile.write.iter().chain(caches()).map(shown).collect(),
        run: profile.execute.iter().chain(caches()).map(shown).collect(),
        network: profile.network.words().map(|word| word.to_string()).collect(),
        sockets: profile.unix.iter().map(shown).collect(),
        variables: profile.env.iter().cloned().collect(),
        limits: limits.filter_map(|(name, limit)| Some((name, limit?))).collect(),
    }
}

/// Returns the number of a limit in messages between processes.
#[cfg(target_os = "linux")]
fn limit_number(name: &str) -> u8 {
    let index = Limits::ENFORCED.iter().position(|known| *known == name);
    index.and_then(|index| u8::try_from(index).ok()).unwrap_or(NO_LIMIT)
}

/// Serves as a launcher if this process was started as one, and returns true when it has finished. Call
/// this function first in `main`, before anything that changes the process.
pub fn run_if_asked() -> bool {
    if std::env::args_os().nth(1).as_deref() != Some(COMMAND.as_ref()) {
        return false;
    }
    // The launcher has reported any error to the server over the socket, if it has one.
    #[cfg(target_os = "linux")]
    let _ = inside::serve();
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_of_node_imports_from_the_outermost_modules_or_from_its_package() {
        let package =
            |script: &str| node_package(Path::new(script), |place| place == Path::new("/w/app"));
        for (script, found) in [
            ("/w/node_modules/.bin/x", Some("/w/node_modules")),
            ("/w/node_modules/a/node_modules/b/dist/index.js", Some("/w/node_modules")),
            ("/w/app/src/index.js", Some("/w/app")),
            ("/w/x.js", None),
        ] {
            assert_eq!(package(script).as_deref(), found.map(Path::new), "{script}");
        }
    }
}
