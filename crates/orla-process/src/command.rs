//! A program as a configuration declares it.

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

use crate::child::Program;
use crate::confinement::Sandbox;
use crate::file::{program_in, reason};
use crate::reaper::Instance;
use crate::start_failure;
use crate::supervisor::Process;

/// A long-running program as a configuration declares it.
#[derive(Clone, PartialEq)]
pub struct Command {
    /// The name of the service, unique among its kind.
    pub name: String,
    /// A program's path, or its name in `PATH`.
    pub command: String,
    /// The arguments, passed without a shell.
    pub args: Vec<String>,
    /// Added to the environment.
    pub env: Vec<(String, String)>,
    /// Patterns of the server's variables that the program gets besides the usual ones.
    pub pass_env: Vec<Pattern>,
    /// The working directory; orla's own directory if absent.
    pub directory: Option<PathBuf>,
    /// The sandbox; `None` for no confinement.
    pub sandbox: Option<Arc<Sandbox>>,
    /// The maximum time until the program answers its first request.
    pub startup_timeout: Duration,
    /// Whether the program is started with the server instead of at its first use.
    pub eager: bool,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments and variables often hold keys.
        f.debug_struct("Command")
            .field("name", &self.name)
            .field("command", &self.command)
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

impl Command {
    /// Removes the values of variables that look like secrets from a text that the process wrote. Some
    /// programs print invalid values, and the text goes to logs and messages.
    pub fn without_secrets<'t>(&self, mut text: Cow<'t, str>) -> Cow<'t, str> {
        for (_, value) in self.env.iter().filter(|(name, value)| looks_secret(name, value)) {
            if text.contains(value.as_str()) {
                text = text.replace(value.as_str(), "***").into();
            }
        }
        text
    }
}

/// Returns whether a variable's value is a secret: its name says so, or the value is long and looks
/// random.
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

impl Command {
    /// Returns the content that an attestation can cover: a program that is declared by its path.
    pub fn content(&self) -> ContentSource {
        if !self.command.contains('/') {
            return ContentSource::Unknown;
        }
        let env = self.env.iter().map(|(name, value)| (name, value));
        ContentSource::of_program(&self.path(), &self.args, env, self.directory.as_deref())
    }

    /// Returns the program's path for messages, as far as it is known.
    pub fn path(&self) -> PathBuf {
        self.program().map_or_else(|_| PathBuf::from(&self.command), Cow::into_owned)
    }

    /// Explains why the program could not be started.
    pub fn explain(&self, error: &io::Error) -> String {
        if let Err(problem) = self.check_directory() {
            return format!("its directory {problem} (cwd)");
        }
        let path = self.path();
        // The program may never have existed, because the file was not checked before.
        if error.kind() == io::ErrorKind::NotFound && path.metadata().is_err() {
            return format!("{} was not found", path.display());
        }
        start_failure::explain(&path, error).reason
    }

    /// Returns the program with its environment and directory, and its arguments.
    ///
    /// # Errors
    /// There is no such program, or no current directory.
    pub fn launch(&self) -> io::Result<(Program, Vec<OsString>)> {
        let mut program =
            Program::new(&self.program()?)?.with_env(self.env.clone(), self.pass_env.clone());
        // A `PATH` in `env` comes from the declaration, which must not choose what the program may read.
        if !self.command.contains('/') && self.env.iter().all(|(name, _)| name != "PATH") {
            program = program.installed();
        }
        if let Some(directory) = &self.directory {
            program = program.in_directory(directory.clone());
        }
        let files = self.files();
        program = match &self.sandbox {
            Some(sandbox) => program.confined(Arc::clone(sandbox), files),
            None => program.with_files(files),
        };
        Ok((program, self.args.iter().map(OsString::from).collect()))
    }

    /// Returns the program's files besides the executable: the scripts among the arguments that the
    /// configuration declares.
    fn files(&self) -> Vec<PathBuf> {
        // In a foreign declaration, the arguments would let a third party choose what the program reads.
        if self.sandbox.as_ref().is_some_and(|sandbox| sandbox.is_foreign()) {
            return Vec::new();
        }
        let directory = self.directory.as_deref().unwrap_or(Path::new(""));
        let files = self.args.iter().map(|arg| directory.join(arg)).filter(|path| path.is_file());
        files.filter_map(|path| std::path::absolute(path).ok()).collect()
    }

    /// Starts the program unsupervised. The program runs until the process is dropped.
    ///
    /// # Errors
    /// The system's reason; nothing runs then.
    pub async fn start(&self, instance: Arc<Instance>) -> io::Result<Process> {
        let (program, args) = self.launch()?;
        Process::start(program, args, instance).await
    }

    /// Checks whether the program's file can be started.
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
            Err(err) => Err(format!("{} cannot be read: {}", path.display(), reason(&err))),
        }
    }

    /// Checks whether the working directory exists.
    ///
    /// # Errors
    /// Why it cannot run in it, after its path.
    pub fn check_directory(&self) -> Result<(), String> {
        let Some(directory) = &self.directory else { return Ok(()) };
        match directory.metadata() {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(format!("{} is not a directory", directory.display())),
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                Err(format!("{} does not exist", directory.display()))
            }
            Err(err) => Err(format!("{} cannot be read: {}", directory.display(), reason(&err))),
        }
    }

    /// Returns advice for the case that the program is not in `PATH`.
    fn remedy(&self) -> String {
        let words: Vec<&str> = self.command.split_whitespace().collect();
        let package = || self.args.iter().find(|arg| !arg.starts_with('-')).map_or("PACKAGE", |arg| arg);
        match words.as_slice() {
            ["npx"] => "; install Node.js".to_owned(),
            ["uvx"] => {
                format!("; install uv, or let orla install the server: orla add pypi:{}", package())
            }
            [program, args @ ..] if !args.is_empty() => {
                let args = args.join(", ");
                format!("; arguments belong in args: command: {program}, args: [{args}]")
            }
            _ => String::new(),
        }
    }

    /// Returns the program's path: the command itself, or the program of that name in `PATH`. A relative
    /// path is relative to the working directory.
    fn program(&self) -> io::Result<Cow<'_, Path>> {
        let command = Path::new(&self.command);
        if self.command.contains('/') {
            return Ok(match &self.directory {
                Some(directory) => directory.join(command).into(),
                None => command.into(),
            });
        }
        // A third party does not choose what a name stands for.
        let is_foreign = self.sandbox.as_ref().is_some_and(|sandbox| sandbox.is_foreign());
        let own = self.env.iter().find(|(name, _)| name == "PATH" && !is_foreign);
        let own = own.map(|(_, path)| path.into());
        let path = own.or_else(|| env::var_os("PATH")).unwrap_or_default();
        let not_found = || {
            let text = format!("{} is not in PATH{}", self.command, self.remedy());
            io::Error::new(io::ErrorKind::NotFound, text)
        };
        program_in(&path, command).map(Cow::from).ok_or_else(not_found)
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
            sandbox: None,
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
        let uvx = Command {
            args: vec!["--quiet".into(), "mcp-server-time".into()],
            env: vec![("PATH".into(), "/nowhere".into())],
            ..server("uvx")
        };
        let error = uvx.check().unwrap_err();
        assert!(
            error.ends_with("let orla install the server: orla add pypi:mcp-server-time"),
            "{error}"
        );
    }
}
