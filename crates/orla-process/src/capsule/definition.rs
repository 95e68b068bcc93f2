//! What is supervised: the package of a capsule, a server of MCP, or a plugin.

use std::borrow::Cow;
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::attestation::ContentSource;
use orla_marketplace::id::Pattern;

use super::manifest::DEBOUNCE;
use super::packages::Package;
use super::process::Process;
use crate::child::Program;
use crate::reaper::Instance;
use crate::start_failure;

/// What a supervised process is started from, and how it is spoken to.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "each is held once, behind a shared pointer")]
pub enum Definition {
    /// A tool capsule (RFC 2).
    Package(Package),
    /// A server of MCP that is a child process.
    Server(Command),
    /// A plugin: a program that answers lines with lines.
    Plugin(Plugin),
}

/// A plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct Plugin {
    /// What is started.
    pub command: Command,
    /// Whether it is asked what it serves, and sent calls when it has answered; else it is sent calls at once.
    pub describes: bool,
    /// Whether it is given one call at a time; else every call goes to it at once.
    pub is_serial: bool,
    /// The files and directories whose changes restart it, by their absolute paths.
    pub watch: Vec<PathBuf>,
}

/// A program that stays between calls, as a configuration has it.
#[derive(Clone, PartialEq)]
pub struct Command {
    /// The name of what it serves: unique among its kind.
    pub name: String,
    /// A program's path, or its name in `PATH`.
    pub command: String,
    /// Its arguments; no shell sees them.
    pub args: Vec<String>,
    /// Added to the environment.
    pub env: Vec<(String, String)>,
    /// Patterns of the server's variables that it gets besides the usual ones.
    pub pass_env: Vec<Pattern>,
    /// Where it runs; in orla's own directory where absent.
    pub directory: Option<PathBuf>,
    /// How long it may take to answer its first request.
    pub startup_timeout: Duration,
    /// Whether it is started before anyone needs it.
    pub eager: bool,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments and variables are where people put keys.
        f.debug_struct("Command")
            .field("name", &self.name)
            .field("command", &self.command)
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

impl Command {
    /// A text of the process without the values of the variables that were set for it, where these look like
    /// secrets: some programs print what they do not like, and the text goes to logs and messages.
    pub fn without_secrets<'t>(&self, mut text: Cow<'t, str>) -> Cow<'t, str> {
        for (_, value) in self.env.iter().filter(|(name, value)| looks_secret(name, value)) {
            if text.contains(value.as_str()) {
                text = text.replace(value.as_str(), "***").into();
            }
        }
        text
    }
}

/// Whether a variable's value is one that nobody should read: its name says so, or it is long and looks like
/// nothing that a person wrote.
fn looks_secret(name: &str, value: &str) -> bool {
    const HINTS: [&str; 8] =
        ["AUTH", "TOKEN", "KEY", "SECRET", "COOKIE", "PASS", "CREDENTIAL", "PRIVATE"];
    let name = name.to_ascii_uppercase();
    let is_named = HINTS.iter().any(|hint| name.contains(hint));
    let is_opaque = value.len() >= 16
        && value.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/')
        && value.bytes().any(|byte| byte.is_ascii_digit());
    (is_named && value.len() > 3) || is_opaque
}

impl Definition {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Package(package) => &package.manifest.name,
            Self::Server(command) | Self::Plugin(Plugin { command, .. }) => &command.name,
        }
    }

    /// The package, where it is one.
    pub fn package(&self) -> Option<&Package> {
        match self {
            Self::Package(package) => Some(package),
            Self::Server(_) | Self::Plugin(_) => None,
        }
    }

    /// What runs, as far as somebody can vouch for it.
    pub fn content(&self) -> ContentSource {
        match self {
            Self::Package(package) => ContentSource::Directory(package.directory.clone()),
            Self::Plugin(Plugin { command, .. }) if command.command.contains('/') => {
                let env = command.env.iter().map(|(name, value)| (name, value));
                let directory = command.directory.as_deref();
                ContentSource::of_program(&self.path(), &command.args, env, directory)
            }
            Self::Server(_) | Self::Plugin(_) => ContentSource::Unknown,
        }
    }

    /// What is started, where a configuration says it.
    fn command(&self) -> Option<&Command> {
        match self {
            Self::Package(_) => None,
            Self::Server(command) | Self::Plugin(Plugin { command, .. }) => Some(command),
        }
    }

    /// What it has to do before it is sent calls, and how that is said when it is done.
    pub(crate) fn opening(&self) -> [&'static str; 2] {
        match self {
            Self::Package(_) => ["say orla.hello", "said orla.hello"],
            Self::Server(_) => ["answer initialize", "answered initialize"],
            Self::Plugin(_) => ["answer describe", "answered describe"],
        }
    }

    /// Its kind, and its name at the place of that: of capsules, servers and plugins.
    pub(crate) fn shown(&self) -> (&'static str, [Option<&str>; 3]) {
        let name = Some(self.name());
        match self {
            Self::Package(_) => ("capsule", [name, None, None]),
            Self::Server(_) => ("server", [None, name, None]),
            Self::Plugin(_) => ("plugin", [None, None, name]),
        }
    }

    /// How long it may take to open the conversation.
    pub(crate) fn startup_timeout(&self) -> Duration {
        match self {
            Self::Package(package) => package.manifest.startup_timeout,
            Self::Server(command) | Self::Plugin(Plugin { command, .. }) => command.startup_timeout,
        }
    }

    pub(crate) fn is_eager(&self) -> bool {
        match self {
            Self::Package(package) => package.manifest.eager,
            Self::Server(command) | Self::Plugin(Plugin { command, .. }) => command.eager,
        }
    }

    /// Which files are watched, and how long nothing of them may change before the restart.
    pub(crate) fn watched(&self) -> Option<(Vec<PathBuf>, Duration)> {
        match self {
            Self::Package(package) => {
                let hot_load = package.manifest.hot_load.as_ref()?;
                let path = |path: &PathBuf| package.directory.join(path).components().collect();
                Some((hot_load.watch.iter().map(path).collect(), hot_load.debounce))
            }
            Self::Server(_) => None,
            Self::Plugin(plugin) => (!plugin.watch.is_empty()).then(|| (plugin.watch.clone(), DEBOUNCE)),
        }
    }

    /// The permissions that every use of it needs: those that its manifest declares, and to run its program.
    pub(crate) fn requires(&self) -> Vec<String> {
        let declared = self.package().map(|package| package.manifest.permissions.clone());
        let mut needs = declared.unwrap_or_default();
        needs.push(crate::tool::requires(&self.path()));
        needs
    }

    /// What its manifest puts before the names of its tools and prompts.
    pub(crate) fn prefix(&self) -> Option<&str> {
        self.package()?.manifest.prefix.as_deref()
    }

    /// Where it comes from, for people. Arguments may hold secrets and are not shown.
    pub(crate) fn source(&self) -> String {
        match self {
            Self::Package(package) => package.directory.to_string_lossy().into_owned(),
            Self::Server(command) | Self::Plugin(Plugin { command, .. }) => command.command.clone(),
        }
    }

    /// A text of the process without the secrets that it was given.
    pub(crate) fn without_secrets<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        match self.command() {
            Some(command) => command.without_secrets(text),
            None => text,
        }
    }

    /// What runs it, such as `python3`.
    pub(crate) fn interpreter(&self) -> Option<String> {
        self.package()?.interpreter.clone()
    }

    /// The program's path, as far as it is known, for messages.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::Package(package) => package.entrypoint(),
            Self::Server(command) | Self::Plugin(Plugin { command, .. }) => {
                command.program().map_or_else(|_| PathBuf::from(&command.command), Cow::into_owned)
            }
        }
    }

    /// Why its program could not be started.
    pub(crate) fn explain(&self, error: &io::Error) -> String {
        let path = self.path();
        // Nothing has seen the file of a command before, so it is not known to have been there.
        match self {
            Self::Server(_) | Self::Plugin(_)
                if error.kind() == io::ErrorKind::NotFound && path.metadata().is_err() =>
            {
                format!("{} was not found", path.display())
            }
            _ => start_failure::explain(&path, error).reason,
        }
    }

    /// What to start.
    ///
    /// # Errors
    /// No such program, or no current directory.
    pub(crate) fn launch(&self) -> io::Result<(Program, Vec<OsString>)> {
        let (program, args) = match self {
            Self::Package(package) => {
                let program = package.program()?.in_directory(package.directory.clone());
                (program, &package.manifest.args)
            }
            Self::Server(command) | Self::Plugin(Plugin { command, .. }) => {
                let mut program = Program::new(&command.program()?)?
                    .with_env(command.env.clone(), command.pass_env.clone());
                if let Some(directory) = &command.directory {
                    program = program.in_directory(directory.clone());
                }
                (program, &command.args)
            }
        };
        Ok((program, args.iter().map(OsString::from).collect()))
    }
}

impl Command {
    /// Starts the program without supervising it: it runs for as long as what this gives is kept.
    ///
    /// # Errors
    /// The system's reason; nothing runs then.
    pub async fn start(&self, instance: Arc<Instance>) -> io::Result<Process> {
        let (program, args) = Definition::Server(self.clone()).launch()?;
        Process::start(Arc::new(program), args, instance).await
    }

    /// Whether there is a program to start, going by its file.
    ///
    /// # Errors
    /// Why the program cannot be started.
    pub fn check(&self) -> Result<(), String> {
        let path = self.program().map_err(|err| err.to_string())?;
        match path.metadata() {
            Ok(file) if !file.is_file() => Err(format!("{} is not a file", path.display())),
            Ok(file) if file.permissions().mode() & 0o111 == 0 => {
                Err(format!("{0} is not executable (chmod +x {0})", path.display()))
            }
            Ok(_) => Ok(()),
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                Err(format!("{} was not found", path.display()))
            }
            Err(err) => Err(format!("{} cannot be read: {err}", path.display())),
        }
    }

    /// The program: what the command says, or what `PATH` has under that name. A relative path is relative
    /// to where it runs.
    fn program(&self) -> io::Result<Cow<'_, Path>> {
        let command = Path::new(&self.command);
        if self.command.contains('/') {
            return Ok(match &self.directory {
                Some(directory) => directory.join(command).into(),
                None => command.into(),
            });
        }
        let own = self.env.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.into());
        let path = own.or_else(|| env::var_os("PATH")).unwrap_or_default();
        let is_program = |path: &PathBuf| {
            path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        };
        let not_found = || {
            let hint = match self.command.split_whitespace().collect::<Vec<_>>().as_slice() {
                [program, args @ ..] if !args.is_empty() => {
                    format!(
                        "; arguments belong in args: command: {program}, args: [{}]",
                        args.join(", ")
                    )
                }
                _ => String::new(),
            };
            io::Error::new(io::ErrorKind::NotFound, format!("{} is not in PATH{hint}", self.command))
        };
        env::split_paths(&path)
            .map(|directory| directory.join(command))
            .find(is_program)
            .map(Cow::from)
            .ok_or_else(not_found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(command: &str) -> Command {
        Command {
            name: "s".to_owned(),
            command: command.to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            pass_env: Vec::new(),
            directory: None,
            startup_timeout: Duration::ZERO,
            eager: false,
        }
    }

    #[test]
    fn a_command_is_a_path_or_a_name_in_path() {
        let found = |server: &Command| server.program().map(Cow::into_owned).ok();
        let sh = found(&server("sh")).unwrap();
        assert!(sh.is_absolute() && sh.ends_with("sh"), "{sh:?}");
        assert_eq!(found(&server("./x")), Some(PathBuf::from("./x")));
        let below = Command { directory: Some("/srv".into()), ..server("bin/x") };
        assert_eq!(found(&below), Some(PathBuf::from("/srv/bin/x")));
        let elsewhere = Command { env: vec![("PATH".into(), "/nowhere".into())], ..server("sh") };
        assert_eq!(found(&elsewhere), None);
        let error = server("no-such-program").program().unwrap_err().to_string();
        assert_eq!(error, "no-such-program is not in PATH");
        let error = server("npx -y foo").check().unwrap_err();
        assert_eq!(
            error,
            "npx -y foo is not in PATH; arguments belong in args: command: npx, args: [-y, foo]"
        );
    }
}
