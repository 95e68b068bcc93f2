//! Where a configuration comes from: the file, the environment and flags, in rising precedence (RFC 1 §6).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use orla_document::Position;
use orla_secrets::Resolver;

use super::file::read_file;
use super::table::KEYS;
use super::{Config, Problem, keys, read, reason};
use crate::extensions::Extensions;

/// Looked for in the current directory, in this order, where no `--config` is given.
pub(crate) const DEFAULT_FILES: [&str; 3] = ["orla.yaml", "orla.yml", "orla.json"];
/// The keys of the file that a client of a running server needs.
const CLIENT_KEYS: &[&str] = &["host", "port", "auth.tls", "ca"];
/// The keys that the client needs if it has no token.
const CLIENT_KEYS_AND_TOKENS: &[&str] =
    &["host", "port", "auth.tls", "ca", "auth_tokens", "auth.tokens"];

/// The configuration's sources on the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Source {
    /// `--config`.
    pub(crate) file: Option<PathBuf>,
    /// Flags as (flag, key, value), in the order in which they take effect.
    pub(crate) flags: Vec<(&'static str, &'static str, OsString)>,
    /// The program's additions to the built-in kinds.
    pub(crate) extensions: Extensions,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Origin {
    File(Position),
    /// The name of the environment variable.
    Environment(String),
    /// The flag, as it is written: `--port`.
    Flag(&'static str),
}

/// The environment, as a function so that tests need not change the process's own.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

impl Source {
    /// Reads the current configuration, in this precedence: flags, `ORLA_*`, the file, defaults.
    ///
    /// # Errors
    ///
    /// Returns all problems, with those of the file in its order.
    pub(crate) fn load(&self) -> Result<Config, Vec<Problem>> {
        self.load_with(&|name| std::env::var_os(name))
    }

    /// Reads the configuration for the commands that make and revoke tokens. A host that needs
    /// credentials and has none is no problem for them, because they mend it.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`load`](Self::load).
    pub(crate) fn load_for_tokens(&self) -> Result<Config, Vec<Problem>> {
        let (config, mut problems) = self.read(&|name| std::env::var_os(name));
        problems.extend(config.contradictions_of_keys());
        if problems.is_empty() { Ok(config) } else { Err(problems) }
    }

    /// Reads the keys that a client of a running server needs: the server's address, the certificates to
    /// trust and, without `ORLA_TOKEN`, the tokens. Other keys of the file are ignored. If the server is
    /// named by its address, a problem of the file is a warning.
    ///
    /// # Errors
    ///
    /// Returns every problem of these keys, of the variables and of the flags.
    pub(crate) fn load_for_client(&self, is_named: bool) -> Result<Config, Vec<Problem>> {
        let env: Lookup<'_> = &|name| std::env::var_os(name);
        let has_token = env("ORLA_TOKEN").is_some_and(|token| !token.is_empty());
        let keys = if has_token { CLIENT_KEYS } else { CLIENT_KEYS_AND_TOKENS };
        let (mut config, mut problems) = self.read_keys(Some(keys), env);
        if is_named && !problems.is_empty() {
            // The address of the server may be among them, and the tokens are for this address only.
            config.auth_tokens.clear();
            config.warnings.append(&mut problems);
        }
        self.overlay(&mut config, env, &mut problems);
        if problems.is_empty() { Ok(config) } else { Err(problems) }
    }

    pub(super) fn load_with(&self, env: Lookup<'_>) -> Result<Config, Vec<Problem>> {
        let (config, mut problems) = self.read(env);
        let earlier = problems.len();
        problems.extend(config.contradictions());
        for problem in &mut problems[earlier..] {
            problem.redact(&config.secrets);
        }
        if problems.is_empty() { Ok(config) } else { Err(problems) }
    }

    /// Reads each key by itself, and the file of tokens.
    fn read(&self, env: Lookup<'_>) -> (Config, Vec<Problem>) {
        let (mut config, mut problems) = self.read_keys(None, env);
        self.overlay(&mut config, env, &mut problems);
        problems.extend(config.read_own_tokens().err());
        problems.extend(config.misread_addresses());
        config.warn_of_idle_scopes();
        config.warn_of_shared_names();
        config.follow_renames();
        (config, problems)
    }

    /// Reads the keys of the file with these paths, or all.
    fn read_keys(&self, only: Option<&[&str]>, env: Lookup<'_>) -> (Config, Vec<Problem>) {
        let mut config = Config { extensions: self.extensions.clone(), ..Config::default() };
        let mut problems = Vec::new();
        match self.find() {
            Ok(Some(path)) => {
                match read_file(&path) {
                    Ok(text) => {
                        let expanded = RefCell::new(BTreeSet::new());
                        let lookup = |name: &str| {
                            let value = env(name)?.into_string().ok()?;
                            expanded.borrow_mut().insert(name.to_owned());
                            Some(value)
                        };
                        let secrets = Resolver::of_user();
                        read::file(&mut config, &path, &text, only, &lookup, &secrets, &mut problems);
                        config.expanded = expanded.into_inner();
                    }
                    Err(problem) => problems.push(problem),
                }
                config.file = Some(path);
            }
            Ok(None) => {}
            Err(problem) => problems.push(problem),
        }
        (config, problems)
    }

    /// Returns the file to read: the named one, else the first of the default names that exists.
    pub(super) fn find(&self) -> Result<Option<PathBuf>, Problem> {
        if let Some(path) = &self.file {
            return Ok(Some(path.clone()));
        }
        for name in DEFAULT_FILES {
            match std::fs::symlink_metadata(name) {
                Ok(_) => return Ok(Some(name.into())),
                Err(err) if err.kind() == std::io::ErrorKind::NotFound => {}
                Err(err) => {
                    return Err(Problem::new(format!("{name} cannot be read: {}", reason(&err))));
                }
            }
        }
        Ok(None)
    }

    fn overlay(&self, config: &mut Config, env: Lookup<'_>, problems: &mut Vec<Problem>) {
        for key in &*KEYS {
            let Some(variable) = key.variable() else { continue };
            // As in a shell, an empty variable counts as unset.
            let Some(value) = env(&variable).filter(|value| !value.is_empty()) else { continue };
            let origin = Origin::Environment(variable.clone());
            set(config, key, &variable, &value, origin, problems);
        }
        for (flag, name, value) in &self.flags {
            match keys::find(&KEYS, name) {
                Some(key) => set(config, key, flag, value, Origin::Flag(flag), problems),
                None => problems.push(Problem::new(format!("{name}: unknown key"))),
            }
        }
    }
}

fn set(
    config: &mut Config,
    key: &keys::Key<Config>,
    shown: &str,
    value: &OsStr,
    origin: Origin,
    problems: &mut Vec<Problem>,
) {
    match key.read_variable(config, value) {
        Ok(()) => {
            config.origins.insert(key.name, origin);
        }
        Err(problem) => problems.push(Problem::new(format!("{shown}: {problem}"))),
    }
}
