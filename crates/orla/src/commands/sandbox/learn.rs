//! `orla sandbox learn`: one call with everything recorded, and the permissions that it would have needed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use orla_confine::{Limits, Places, Profile, Word};
use orla_marketplace::id::Pattern;
use orla_packages::store::Presence;
use orla_process::child::Program;
use orla_process::confinement::{Environment, STRACE, Trace, Traced, base, placed};
use orla_process::file::program_in_path;
use orla_process::supervisor::Managed;
use orla_process::{Instance, foreground};
use orla_providers::tool::ToolProvider;
use serde_json::json;

use crate::app::App;
use crate::commands::load;
use crate::commands::packages::agrees;
use crate::config::{Config, Source};
use crate::packages::{project_of, store_of};
use crate::{Failure, cli, render};

/// The known facts about a capability, or about a provider, before it runs.
struct Subject {
    /// The program to start.
    program: PathBuf,
    /// Its arguments; `None` for those of the call.
    args: Option<Vec<OsString>>,
    /// Where it runs.
    runs_in: PathBuf,
    /// Its own files, which it may always read.
    own: Vec<PathBuf>,
    /// The base directory of relative paths in its permissions.
    directory: PathBuf,
    /// Where its permissions are written.
    grant: Grant,
    /// The permissions that it already has.
    granted: Vec<String>,
    /// The name of the process that stays between calls, where it has one.
    provider: Option<String>,
}

/// Where permissions are written.
enum Grant {
    /// In the header of a script.
    Header,
    /// In the manifest of a package.
    Manifest,
    /// In an entry of `mcpServers`.
    Server,
    /// In the lock, of a package of others with this name.
    Lock(String),
}

pub(crate) fn run(learn: &cli::SandboxLearn, source: &Source) -> Result<(), Failure> {
    let config = load(source)?;
    let _log = crate::commands::log(&config);
    let strace = program_in_path("strace").ok_or_else(|| {
        Failure::failed(
            "strace records what a tool does, and is not in PATH; install it with `apt install strace`, `dnf install strace` or \
             `apk add strace`",
        )
    })?;
    let subject = crate::commands::small_runtime()?.block_on(subject(&learn.name, &config))?;
    if let Grant::Lock(package) = &subject.grant
        && !learn.yes
    {
        let question =
            format!("{package} is software of others, and runs without confinement for this. Run it?");
        if !agrees(&question)? {
            let why = "you did not agree; --yes runs it without the question";
            return Err(Failure::failed(format!("{} was not run: {why}", learn.name)));
        }
    }
    let recording = tempfile::NamedTempFile::new().map_err(|err| {
        Failure::failed(format!(
            "cannot create a temporary file for the recording: {err}; set TMPDIR to a directory that can be written"
        ))
    })?;
    let itself = std::env::current_exe()
        .map_err(|err| Failure::failed(format!("cannot find orla's own executable: {err}")))?;
    let mut args: Vec<OsString> = STRACE.iter().map(OsString::from).collect();
    args.extend(["-o".into(), recording.path().into(), "--".into(), itself.into()]);
    args.extend(flags(source));
    args.push("call".into());
    args.extend(subject.provider.iter().map(|name| format!("--alone={name}").into()));
    args.push((&learn.name).into());
    args.extend(learn.arguments.iter().map(OsString::from));
    // The needed permissions show only if no access is denied.
    let unconfined = ("ORLA_SANDBOX".to_owned(), "off".to_owned());
    let program = Program::new(&strace).map_err(|err| Failure::failed(err.to_string()))?;
    let program = program.with_env(vec![unconfined], vec![Pattern::new("*")]);
    // The output of this command is the proposal.
    let ended = foreground::run_aside(&program, &args, &Instance::guarded())
        .map_err(|err| Failure::failed(format!("strace could not be started: {err}")))?;
    let has_failed = !ended.status.success();
    if has_failed {
        render::warning("the call failed, so the recording may end before all that it needs");
    }
    let recorded = std::fs::read(recording.path())
        .map_err(|err| Failure::failed(format!("the recording cannot be read: {err}")))?;
    let traced =
        Traced { program: &subject.program, args: subject.args.as_deref(), directory: &subject.runs_in };
    let trace = Trace::of(&recorded, &traced);
    if trace == Trace::default() {
        return Err(Failure::failed(format!("{} did not run, so nothing was recorded", learn.name)));
    }
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let preset = preset(&subject, home.as_deref());
    let downloaded = preset.iter().flat_map(|(_, caches)| caches.clone());
    let own: Vec<PathBuf> = base().into_iter().chain(subject.own).chain(downloaded).collect();
    let mut words = trace.permissions(&Environment {
        base: &own,
        directory: &subject.directory,
        home: home.as_deref(),
        temporary: &std::env::temp_dir(),
    });
    if let Some(first) = trace.owned.first() {
        render::warning(&format!(
            "it changes owners of files ({}), which is refused in every sandbox",
            first.display()
        ));
    }
    if let Grant::Lock(package) = &subject.grant {
        words.retain(|word| !is_granted(word, &subject.granted, &subject.directory));
        warn_if_changed(package, &config);
    }
    if let Some((preset, _)) = preset {
        words.retain(|word| !word.starts_with("net"));
        words.insert(0, preset.to_owned());
    }
    if learn.json {
        return crate::commands::print_json(&json!({"permissions": words}));
    }
    if let (Grant::Lock(package), []) = (&subject.grant, &*words) {
        let needs = format!("{package} needs nothing that it is not granted");
        if has_failed {
            return Err(Failure::failed(format!("as far as it was recorded, {needs}")));
        }
        render::note(&needs);
        return Ok(());
    }
    render::out(&declaration(&words, &subject.grant, subject.provider.as_deref()));
    Ok(())
}

async fn subject(name: &str, config: &Config) -> Result<Subject, Failure> {
    let app = App::build_local(config)?;
    let found = found(name, config, &app);
    app.end_providers().await;
    found
}

fn found(name: &str, config: &Config, app: &App) -> Result<Subject, Failure> {
    let market = app.marketplace();
    let snapshot = market.snapshot();
    let entry = snapshot.get(name);
    let tool = entry.and_then(|entry| entry.manifest.provider.settings::<ToolProvider>().ok());
    if let Some(tool) = tool {
        let own = tool.program().own_files(&app.environment());
        return Ok(Subject::of_tool(tool, own, config));
    }
    let several = |names: Vec<String>| {
        Failure::failed(format!(
            "{name} may be a tool of {}: give the name of one of them, to record its start",
            names.join(" or ")
        ))
    };
    if let Some(process) = app.process_for(name).map_err(several)? {
        return Subject::of_process(&*process, config, app);
    }
    Err(match (entry, app.findings().why_not_served(name)) {
        (Some(_), _) => Failure::failed(format!("{name} has no process of its own to record")),
        (None, Some(why)) => Failure::failed(why),
        (None, None) => Failure::failed(crate::commands::not_served(&snapshot, name)),
    })
}

impl Subject {
    fn of_tool(tool: &ToolProvider, own: Vec<PathBuf>, config: &Config) -> Self {
        let path = tool.path().to_owned();
        let installed = tool.package().and_then(|directory| installed_at(directory, config));
        let (directory, grant) = match (installed, tool.package()) {
            (Some(name), _) => (project_of(config), Grant::Lock(name)),
            (None, Some(package)) => (package.to_owned(), Grant::Manifest),
            (None, None) => (path.parent().unwrap_or(&path).to_owned(), Grant::Header),
        };
        let runs_in = std::env::current_dir().unwrap_or_default();
        let granted = granted(tool.program());
        Self { program: path, args: None, runs_in, own, directory, grant, granted, provider: None }
    }

    /// # Errors
    ///
    /// Returns an error if there is nothing to start.
    fn of_process(process: &dyn Managed, config: &Config, app: &App) -> Result<Self, Failure> {
        let name = process.name().to_owned();
        let (program, args) =
            process.launch().map_err(|err| Failure::failed(format!("{name}: {err}")))?;
        let mut own = program.own_files(&app.environment());
        let runs_in = program.directory().map_or_else(
            || std::env::current_dir().unwrap_or_default(),
            |directory| std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned()),
        );
        let project = project_of(config);
        let is_server = config.servers.iter().any(|server| server.value.name == name);
        let (directory, grant) = match installed_at(&runs_in, config) {
            Some(package) => {
                own.push(runs_in.clone());
                (project, Grant::Lock(package))
            }
            None if is_server => {
                // As where it declares permissions: the scripts among its arguments are its own.
                own.extend(args.iter().map(|arg| runs_in.join(arg)).filter(|path| path.is_file()));
                (project, Grant::Server)
            }
            None => {
                own.push(runs_in.clone());
                (runs_in.clone(), Grant::Manifest)
            }
        };
        let (program, granted) = (program.path().to_owned(), granted(&program));
        let (args, provider) = (Some(args), Some(name));
        Ok(Self { program, args, runs_in, own, directory, grant, granted, provider })
    }
}

/// Returns the preset of a configured server that is downloaded as it is started, and the directories
/// that the preset grants. It grants the network, too.
fn preset(subject: &Subject, home: Option<&Path>) -> Option<(&'static str, Vec<PathBuf>)> {
    let name = subject.program.file_name().filter(|_| matches!(subject.grant, Grant::Server))?;
    let preset = match name.to_str()? {
        "npx" => "preset:npx",
        "uvx" => "preset:uvx",
        _ => return None,
    };
    let places = Places { base: &subject.directory, home, variable: &|_| None, program: &|_| None };
    let profile = Profile::of(&[preset.to_owned()], &Limits::default(), &places).ok()?;
    Some((preset, profile.caches.into_keys().chain(profile.optional).collect()))
}

/// Returns the permissions of a program.
fn granted(program: &Program) -> Vec<String> {
    program.sandbox().map(|sandbox| sandbox.permissions().to_vec()).unwrap_or_default()
}

/// Returns the name of the package of the lock that is in this directory.
fn installed_at(directory: &Path, config: &Config) -> Option<String> {
    let store = store_of(config);
    let lock = store.lock().ok()?;
    let entry = lock.entries().iter().find(|entry| store.directory(entry) == directory)?;
    Some(entry.name.clone())
}

/// Warns if a package of the lock has changed its own files during the recording.
fn warn_if_changed(package: &str, config: &Config) {
    let store = store_of(config);
    let Ok(lock) = store.lock() else { return };
    if lock.get(package).is_some_and(|entry| store.presence(entry) == Presence::Changed) {
        render::warning(&format!(
            "{package} has changed files in its own directory, which is refused in its sandbox; it is not served until `orla sync` restores them"
        ));
    }
}

/// Returns whether one of these permissions has another one.
fn is_granted(wanted: &str, granted: &[String], base: &Path) -> bool {
    let word = |word: &str| placed(word, base).replace("/./", "/").parse::<Word>().ok();
    let Some(wanted) = word(wanted) else { return false };
    granted.iter().filter_map(|granted| word(granted)).any(|granted| granted.covers(&wanted))
}

/// Returns the flags of this command that `orla call` needs to find the same.
fn flags(source: &Source) -> Vec<OsString> {
    let file = source.file.iter().flat_map(|file| [OsString::from("--config"), file.into()]);
    let known = ["--tools-dir", "--timeout", "--log-format", "--log-level"];
    let others = source.flags.iter().filter(|(flag, _, _)| known.contains(flag));
    file.chain(others.flat_map(|(flag, _, value)| [OsString::from(*flag), value.clone()])).collect()
}

/// Returns the permissions, ready to be pasted where they are granted. `provider` is the name of the
/// server that needs them.
fn declaration(words: &[String], grant: &Grant, provider: Option<&str>) -> String {
    let quoted = |word: &String| format!("'{}'", word.replace('\'', "''"));
    let line = format!("permissions: [{}]", words.iter().map(quoted).collect::<Vec<_>>().join(", "));
    match (grant, provider) {
        (Grant::Lock(package), _) => {
            let allowed = words.iter().map(|word| format!(" --allow {}", in_shell(word)));
            format!("orla update {package}{}\n", allowed.collect::<String>())
        }
        (Grant::Server, Some(name)) => {
            let is_plain = name.chars().all(|ch| ch.is_ascii_alphanumeric() || "-_".contains(ch));
            let key = if is_plain { name.to_owned() } else { serde_json::Value::from(name).to_string() };
            format!("mcpServers:\n  {key}:\n    {line}\n")
        }
        (Grant::Header, _) => format!("# /// orla\n# {line}\n# ///\n"),
        (Grant::Manifest | Grant::Server, _) => format!("{line}\n"),
    }
}

/// Returns a word as a shell reads it.
fn in_shell(word: &str) -> String {
    let is_plain = |ch: char| ch.is_ascii_alphanumeric() || "-_./:~".contains(ch);
    match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declaration_can_be_pasted() {
        let words = ["fs:read:../it's".to_owned(), "net".to_owned()];
        assert_eq!(
            declaration(&words, &Grant::Header, None),
            "# /// orla\n# permissions: ['fs:read:../it''s', 'net']\n# ///\n"
        );
        assert_eq!(declaration(&[], &Grant::Manifest, Some("c")), "permissions: []\n");
        let server = declaration(&words[1..], &Grant::Server, Some("a b"));
        assert_eq!(server, "mcpServers:\n  \"a b\":\n    permissions: ['net']\n");
        assert!(declaration(&[], &Grant::Server, Some("a")).starts_with("mcpServers:\n  a:\n"));
        assert_eq!(in_shell(&words[0]), "'fs:read:../it'\\''s'");
        assert_eq!(in_shell("fs:read:~/a.b"), "fs:read:~/a.b");
    }

    #[test]
    fn granted_permissions_are_not_proposed_again() {
        let granted = ["fs:write:./data".to_owned(), "net:a.example".to_owned()];
        let is = |word: &str| is_granted(word, &granted, Path::new("/p"));
        assert!(is("fs:read:/p/data/x") && is("fs:write:./data") && is("net:a.example:443"));
        assert!(!is("fs:read:./other") && !is("net:b.example"));
    }
}
