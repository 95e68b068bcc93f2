//! `orla sandbox run`: one command in a sandbox with permissions from the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use orla_process::child::Program;
use orla_process::confinement::{self, Declared, Fallback, Limits, Mode, Rules};
use orla_process::signal::exit_code;
use orla_process::{Instance, foreground, start_failure};
use orla_providers::tool::metadata::limits;

use crate::commands::load;
use crate::config::Source;
use crate::{Failure, cli};

/// Runs it with the streams of this process, and ends with its exit code.
pub(crate) fn run(run: &cli::SandboxRun, source: &Source) -> Result<(), Failure> {
    let config = load(source)?;
    let _log = crate::commands::log(&config);
    let limits = limits_of(&run.limits).map_err(Failure::usage)?;
    let wrong: Vec<String> =
        run.permissions.iter().filter_map(|word| confinement::check(word).err()).collect();
    if !wrong.is_empty() {
        return Err(Failure::usage_with(wrong));
    }
    let Some((command, args)) = run.command.split_first() else {
        return Err(Failure::usage("a command is missing"));
    };
    let shown = command.to_string_lossy();
    let path = find(command).ok_or_else(|| Failure::exit(127, format!("{shown} was not found")))?;
    let directory = std::env::current_dir()
        .map_err(|err| Failure::failed(format!("the current directory cannot be used: {err}")))?;
    let instance = Instance::guarded();
    instance.set_environment(config.environment());
    let sandboxes = instance.sandboxes();
    sandboxes.set_rules(Rules { mode: Mode::Declared, fallback: Fallback::Refuse });
    let declared =
        Declared { permissions: Some(run.permissions.clone()), limits, ..Declared::default() };
    let wall = declared.limits.wall;
    let sandbox = sandboxes
        .of(&declared, &directory)
        .ok_or_else(|| Failure::failed("this command cannot be confined"))?;
    if sandbox.available().is_err() {
        return Err(Failure::failed_with(sandbox.missing().to_vec()));
    }
    let program = Program::new(&path).map_err(|err| Failure::failed(err.to_string()))?;
    let is_named = !command.as_encoded_bytes().contains(&b'/');
    let program = if is_named { program.installed() } else { program };
    let program = program.confined(Arc::clone(&sandbox), Vec::new());
    let ended = foreground::run(&program, args, wall, &instance).map_err(|err| {
        let failure = start_failure::explain(&path, &err);
        Failure::exit(failure.exit_code, format!("{shown} could not start: {}", failure.reason))
    })?;
    let code = exit_code(ended.status);
    match ended.breach {
        Some(limit) => {
            let text = format!("{shown} was ended because it went over its limit of {limit}");
            Err(Failure::exit(code.max(1), text))
        }
        None if code == 0 => Ok(()),
        None => Err(Failure::exit_silently(code)),
    }
}

/// Returns the program that a shell would run.
fn find(command: &OsString) -> Option<PathBuf> {
    if command.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(command));
    }
    orla_process::file::program_in_path(command)
}

/// Limits such as `memory=64Mi`.
fn limits_of(texts: &[String]) -> Result<Limits, String> {
    let mut all = Limits::default();
    for text in texts {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| format!("--limit {text}: expected NAME=VALUE, such as memory=64Mi"))?;
        let yaml = format!("{name}: {value}");
        let node = orla_document::parse(&yaml).ok().flatten();
        let node = node.ok_or_else(|| format!("--limit {text}: expected NAME=VALUE"))?;
        let limit = limits(&node).map_err(|problem| format!("--limit {problem}"))?;
        all = all.changed_by(&limit);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_in_a_declaration() {
        let read =
            |texts: &[&str]| limits_of(&texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>());
        let limits = read(&["memory=64Mi", "processes=4"]).unwrap();
        assert_eq!((limits.memory, limits.processes), (Some(64 << 20), Some(4)));
        assert_eq!(
            read(&["memory"]).unwrap_err(),
            "--limit memory: expected NAME=VALUE, such as memory=64Mi"
        );
        assert!(read(&["memry=1"]).unwrap_err().contains("did you mean memory?"));
    }
}
