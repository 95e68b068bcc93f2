//! Servers on free ports, each in a folder of its own that is its home.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::install::Foreign;
use crate::process::{self, Finished};
use crate::server::{Server, address};

/// How long a foreign client may take.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);
/// The life of tokens that have to be refreshed soon, in seconds.
pub(super) const LIFE: &str = "4";

/// What all parts use.
pub(super) struct World<'a> {
    binary: PathBuf,
    pub(super) foreign: &'a Foreign,
    folder: PathBuf,
}

/// How long the access tokens of the authorization server live, in seconds.
#[derive(Clone, Copy)]
pub(super) struct Lives {
    /// Those for the resource of the authorization server.
    pub(super) jwt: &'static str,
    /// Those for others.
    pub(super) opaque: &'static str,
}

impl Lives {
    /// Tokens that have to be refreshed soon.
    pub(super) const SHORT: Self = Self { jwt: LIFE, opaque: LIFE };
}

/// The signing keys of the authorization server.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    /// How many there have been. The newest signs.
    pub(super) made: usize,
    /// How many of them, the newest, are published.
    pub(super) kept: usize,
}

impl Keys {
    /// A single key.
    pub(super) const ONE: Self = Self { made: 1, kept: 1 };
}

/// The programs that are authorization servers with the same files and arguments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Software {
    /// `oidc-provider`. The access tokens for `resource` are JWTs, those for others are opaque.
    OidcProvider,
    /// `idpyoidc`. All access tokens are JWTs; they may be exchanged for ones for `resource`.
    Idpyoidc,
}

impl Software {
    /// The types of its access tokens, and of those that are made up as it would make them.
    pub(super) fn types(self) -> &'static str {
        match self {
            Self::OidcProvider => "at+jwt",
            Self::Idpyoidc => "[at+jwt, jwt]",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OidcProvider => "oidc-provider",
            Self::Idpyoidc => "idpyoidc",
        }
    }
}

/// An authorization server.
pub(super) struct Provider {
    pub(super) software: Software,
    pub(super) url: String,
    /// Where it runs, with a list of every token that it issued.
    pub(super) folder: PathBuf,
    _server: Server,
}

impl Provider {
    /// Returns every token that it has issued.
    pub(super) fn issued(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.join("issued.txt")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

impl<'a> World<'a> {
    pub(super) fn new(binary: &Path, foreign: &'a Foreign) -> Result<Self, String> {
        let binary =
            std::path::absolute(binary).map_err(|err| format!("{}: {err}", binary.display()))?;
        let folder = foreign.folder.join("run");
        let _ = std::fs::remove_dir_all(&folder);
        Ok(Self { binary, foreign, folder })
    }

    /// Returns an empty folder.
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.folder.join(name);
        std::fs::create_dir_all(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
        Ok(folder)
    }

    /// An authorization server on a port.
    pub(super) fn provider(
        &self,
        software: Software,
        name: &str,
        port: u16,
        resource: &str,
        keys: Keys,
        lives: Lives,
    ) -> Result<Provider, String> {
        let folder = self.folder(name)?;
        let (interpreter, script) = match software {
            Software::OidcProvider => (&self.foreign.node, "provider.mjs"),
            Software::Idpyoidc => (&self.foreign.python, "idpy.py"),
        };
        let mut command = Command::new(interpreter);
        command.arg(self.foreign.folder.join(script));
        command.args([
            port.to_string(),
            resource.to_owned(),
            keys.made.to_string(),
            keys.kept.to_string(),
        ]);
        command.current_dir(&folder).env("LIFE", lives.jwt).env("OPAQUE_LIFE", lives.opaque);
        let server = Server::listening(command, &folder.join("provider.log"), address)?;
        Ok(Provider { software, url: format!("http://127.0.0.1:{port}"), folder, _server: server })
    }

    /// orla with this configuration and these tools, each of which prints a text.
    pub(super) fn orla(
        &self,
        name: &str,
        config: &str,
        tools: &[(&str, &str)],
    ) -> Result<Server, String> {
        let folder = self.folder(name)?;
        let problem = |err: std::io::Error| format!("{}: {err}", folder.display());
        std::fs::create_dir_all(folder.join("tools")).map_err(problem)?;
        for (tool, text) in tools {
            let path = folder.join("tools").join(tool);
            std::fs::write(&path, format!("#!/bin/sh\necho {text}\n")).map_err(problem)?;
            executable(&path)?;
        }
        std::fs::write(folder.join("orla.yaml"), config).map_err(problem)?;
        self.orla_again(name)
    }

    /// orla once more, in the folder that it was in.
    pub(super) fn orla_again(&self, name: &str) -> Result<Server, String> {
        let folder = self.folder(name)?;
        let mut command = self.command(&folder);
        command.args(["--log-format", "json"]);
        Server::listening(command, &folder.join("server.log"), address)
    }

    /// Returns a command of orla in a folder.
    pub(super) fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(&self.binary);
        command.current_dir(folder).env("HOME", folder).env_remove("ORLA_TOKEN");
        command
    }

    /// Runs a script of the fixtures with Node.
    pub(super) fn script(&self, name: &str, arguments: &[&str]) -> Result<Finished, String> {
        let mut command = Command::new(&self.foreign.node);
        command.arg(self.foreign.folder.join(name)).args(arguments).env("LIFE", LIFE);
        process::run(&mut command, &self.folder("scratch")?, TIMEOUT)
    }
}

fn executable(path: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).map_err(|err| format!("{}: {err}", path.display()))
}
