//! `orla sandbox learn`: one call with everything recorded, and the permissions that it would have needed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use orla_marketplace::id::Pattern;
use orla_process::child::Program;
use orla_process::confinement::{STRACE, Surroundings, Trace, base};
use orla_process::file::program_in_path;
use orla_process::{Instance, foreground};
use orla_providers::tool::ToolProvider;
use serde_json::json;

use crate::app::App;
use crate::commands::load;
use crate::config::{Config, Source};
use crate::{Failure, cli, render};

/// What is known of a capability before its call.
struct Subject {
    /// What runs, where that is one file for each call.
    program: Option<PathBuf>,
    /// Its own files, which it may always read.
    own: Vec<PathBuf>,
    /// The directory of the file that declares its permissions.
    directory: PathBuf,
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
    let recording = tempfile::NamedTempFile::new()
        .map_err(|err| Failure::failed(format!("no file for the recording: {err}")))?;
    let itself = std::env::current_exe().map_err(|err| Failure::failed(err.to_string()))?;
    let mut args: Vec<OsString> = STRACE.iter().map(OsString::from).collect();
    args.extend(["-o".into(), recording.path().into(), "--".into(), itself.into()]);
    args.extend(flags(source));
    args.extend(["call".into(), (&learn.name).into()]);
    args.extend(learn.arguments.iter().map(OsString::from));
    // What it needs shows only where nothing is refused.
    let unconfined = ("ORLA_SANDBOX".to_owned(), "off".to_owned());
    let program = Program::new(&strace).map_err(|err| Failure::failed(err.to_string()))?;
    let program = program.with_env(vec![unconfined], vec![Pattern::new("*")]);
    // The output of this command is the proposal.
    let ended = foreground::run_aside(&program, &args, &Instance::guarded())
        .map_err(|err| Failure::failed(format!("strace could not be started: {err}")))?;
    if !ended.status.success() {
        render::warning("the call failed, so the recording may end before all that it needs");
    }
    let recorded = std::fs::read(recording.path())
        .map_err(|err| Failure::failed(format!("the recording cannot be read: {err}")))?;
    let here = std::env::current_dir().unwrap_or_default();
    let trace = Trace::of(&recorded, subject.program.as_deref(), &here);
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let own: Vec<PathBuf> = base().into_iter().chain(subject.own).collect();
    let words = trace.permissions(&Surroundings {
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
    if learn.json {
        return crate::commands::print_json(&json!({"permissions": words}));
    }
    render::out(&declaration(&words, subject.program.is_some()));
    Ok(())
}

async fn subject(name: &str, config: &Config) -> Result<Subject, Failure> {
    let app = App::build_local(config)?;
    let snapshot = app.marketplace().snapshot();
    let found = snapshot.get(name).map(|entry| {
        let status = app.marketplace().status(entry);
        let source = status.source.map(PathBuf::from).unwrap_or_default();
        let parent = |path: &Path| path.parent().unwrap_or(path).to_owned();
        match entry.manifest.provider.settings::<ToolProvider>() {
            Ok(tool) => {
                let path = tool.path().to_owned();
                let own = tool.program().own_files(&app.environment());
                let directory = tool.package().map_or_else(|| parent(&path), Path::to_owned);
                Some(Subject { own, directory, program: Some(path) })
            }
            Err(_) if status.sandbox.is_some() => {
                let directory = match source.is_dir() {
                    true => source.clone(),
                    false => config.file.as_deref().map(parent).unwrap_or_default(),
                };
                let directory = std::path::absolute(&directory).unwrap_or(directory);
                Some(Subject { program: None, own: vec![source], directory })
            }
            Err(_) => None,
        }
    });
    app.end_providers().await;
    match found {
        Some(Some(subject)) => Ok(subject),
        Some(None) => Err(Failure::failed(format!("{name} has no process of its own to record"))),
        None => Err(Failure::failed(crate::commands::not_served(&snapshot, name))),
    }
}

/// The flags of this command that `orla call` needs to find the same.
fn flags(source: &Source) -> Vec<OsString> {
    let file = source.file.iter().flat_map(|file| [OsString::from("--config"), file.into()]);
    let known = ["--tools-dir", "--timeout", "--log-format", "--log-level"];
    let others = source.flags.iter().filter(|(flag, _, _)| known.contains(flag));
    file.chain(others.flat_map(|(flag, _, value)| [OsString::from(*flag), value.clone()])).collect()
}

/// The permissions, ready to be pasted.
fn declaration(words: &[String], is_header: bool) -> String {
    let quoted: Vec<String> =
        words.iter().map(|word| format!("'{}'", word.replace('\'', "''"))).collect();
    let line = format!("permissions: [{}]", quoted.join(", "));
    match is_header {
        true => format!("# /// orla\n# {line}\n# ///\n"),
        false => format!("{line}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declaration_can_be_pasted() {
        let words = ["fs:read:../it's".to_owned(), "net".to_owned()];
        assert_eq!(
            declaration(&words, true),
            "# /// orla\n# permissions: ['fs:read:../it''s', 'net']\n# ///\n"
        );
        assert_eq!(declaration(&[], false), "permissions: []\n");
    }
}
