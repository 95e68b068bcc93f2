//! The program orla: the command line, the configuration, and the wiring of all other crates.
//!
//! As a library, this crate is a server that takes additional executors: see [`Server`].
//!
//! Start reading at [`main`], then `commands/serve.rs`, which reads as the story of a server, and
//! `app.rs`, the wiring of providers and executors.
//!
//! # Exit codes
//!
//! | code | meaning |
//! |---|---|
//! | 0 | all went well |
//! | 1 | the operation failed: a call, a check, a port in use, an invalid tools directory |
//! | 2 | wrong usage, or a configuration that cannot be used |
//!
//! `orla check` exits 1 for a bad configuration: finding it is the purpose of the command.

#![warn(missing_docs)]

mod a2a;
#[cfg(feature = "agent")]
mod agent;
mod app;
mod authorization_servers;
mod call_result;
mod cli;
mod commands;
mod config;
mod confined;
mod declared_secrets;
#[cfg(test)]
mod documentation;
mod exposure;
mod extensions;
mod findings;
mod governance;
mod history;
mod http_client;
mod itself;
mod logging;
mod memory;
mod nodes;
mod packages;
mod programs;
mod prompts;
mod quota_days;
mod reload;
mod render;
mod served;
mod server;
mod signals;
mod state;
mod telemetry;
mod terminal_approver;
mod text;
mod tokens;
mod unmatched;

use std::process::ExitCode;

use clap::Parser;

use cli::{Audit, Cli, Command, Sandbox};
use config::{Problem, Source};

pub use async_trait::async_trait;
pub use orla_marketplace as marketplace;
pub use orla_providers as providers;
/// MCP, A2A and RTFS over HTTP and stdio in front of a marketplace: what [`Server`] listens with.
pub use orla_server as front_end;
pub use server::Server;

/// Runs the command line and gives the exit code: [`Server::main`] with nothing added.
pub fn main() -> ExitCode {
    Server::builder().main()
}

/// Prepares the process, runs the program and turns its failure into an exit code.
fn program(run: impl FnOnce() -> Result<(), Failure>) -> ExitCode {
    // This program is its own launcher of confined processes, which has to be able to enter namespaces.
    if orla_process::confinement::run_if_asked() {
        return ExitCode::SUCCESS;
    }
    orla_sys::keep_little_freed_memory();
    orla_process::inheritance::close_to_others();
    // This program is its own reaper; nothing that starts threads or opens files may come before this.
    if orla_process::reaper::run_if_asked() {
        return ExitCode::SUCCESS;
    }
    orla_process::inheritance::keep_to_ourselves();
    // The first process of a container starts the server as its child, and reaps orphans for it.
    if let Some(code) = orla_process::init::run_if_first() {
        return code;
    }
    signals::survive_hangup();
    let ran = run().and_then(|()| match render::unwritten() {
        Some(why) => Err(Failure::failed(format!("the answer could not be written: {why}"))),
        None => Ok(()),
    });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.lines.iter().for_each(|line| render::error(line));
            failure.exit.into()
        }
    }
}

/// Reads the command line and runs it; its flags come on top of `base`.
fn command_line(base: Source) -> Result<(), Failure> {
    let mut cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(err) => {
            // Help and version are answers; everything else is wrong usage. A closed pipe is not an error.
            let plain = err.render().to_string();
            // What was typed may have been pasted. `plain` has lost its escape sequences, so the arguments are
            // looked at too.
            let is_safe =
                |arg: std::ffi::OsString| arg.to_str().is_some_and(|arg| text::on_lines(arg) == arg);
            // Help quotes nothing.
            match !err.use_stderr()
                || (std::env::args_os().all(is_safe) && text::on_lines(&plain) == plain)
            {
                true => drop(err.print()),
                false => render::err(&plain),
            }
            return if err.use_stderr() { Err(Failure::usage_silently()) } else { Ok(()) };
        }
    };
    cli.serve.base = base;
    run(cli)
}

fn run(cli: Cli) -> Result<(), Failure> {
    let before = cli.serve;
    match cli.command {
        Some(Command::Schema) => commands::schema(),
        Some(Command::Init { dir }) => commands::init::run(&dir),
        Some(Command::New { kind, name, language, dir }) => {
            commands::new::run(kind, &name, language, dir, &Cli::serve_source(before, None))
        }
        Some(Command::Connect(mut connect)) => {
            let settings = std::mem::take(&mut connect.settings);
            commands::connect::run(&connect, &Cli::source(before, settings))
        }
        Some(Command::Completions { shell }) => commands::completions(shell),
        Some(Command::Man { dir }) => commands::manual(&dir),
        Some(Command::List(list)) => {
            let source = Cli::source(before, list.settings.clone());
            commands::list::run(&list, &source)
        }
        Some(Command::Doctor(doctor)) => {
            let source = Cli::source(before, doctor.settings.clone());
            commands::doctor::run(&doctor, &source)
        }
        Some(Command::Sandbox { command: Sandbox::Run(run) }) => {
            let source = Cli::source(before, run.settings.clone());
            commands::sandbox::run(&run, &source)
        }
        Some(Command::Sandbox { command: Sandbox::Explain(explain) }) => {
            let source = Cli::source(before, explain.settings.clone());
            commands::sandbox::explain(&explain, &source)
        }
        Some(Command::Sandbox { command: Sandbox::Learn(learn) }) => {
            let source = Cli::source(before, learn.settings.clone());
            commands::sandbox::learn(&learn, &source)
        }
        Some(Command::Add(add)) => {
            let source = Cli::source(before, add.settings.clone());
            commands::packages::add(&add, &source)
        }
        Some(Command::Remove { name, settings }) => {
            commands::packages::remove(&name, &Cli::source(before, settings))
        }
        Some(Command::Update(update)) => {
            let source = Cli::source(before, update.settings.clone());
            commands::packages::update(&update, &source)
        }
        Some(Command::Outdated { json, settings }) => {
            commands::packages::outdated(json, &Cli::source(before, settings))
        }
        Some(Command::Sync(sync)) => {
            let source = Cli::source(before, sync.settings.clone());
            commands::packages::sync(&sync, &source)
        }
        Some(Command::Publish(publish)) => {
            let source = Cli::source(before, publish.settings.clone());
            commands::packages::publish(&publish, &source)
        }
        Some(Command::Search(search)) => {
            let source = Cli::source(before, search.settings.clone());
            commands::search::run(&search, &source)
        }
        Some(Command::Describe(describe)) => {
            let source = Cli::source(before, describe.settings.clone());
            commands::describe::run(&describe, &source)
        }
        Some(Command::Check { url, settings }) => {
            commands::check::run(url.as_deref(), &Cli::source(before, settings))
        }
        Some(Command::Call(call)) => {
            let source = Cli::source(before, call.settings.clone());
            commands::call::run(&call, &source)
        }
        #[cfg(feature = "agent")]
        Some(Command::Agent(agent)) => {
            let source = Cli::source(before, agent.settings.clone());
            commands::agent::run(&agent, &source)
        }
        Some(Command::Rtfs(rtfs)) => {
            let settings = match &rtfs.command {
                Some(cli::RtfsCommand::Check(check)) => &check.settings,
                _ => &rtfs.settings,
            };
            let source = Cli::source(before, settings.clone());
            commands::rtfs::run(&rtfs, &source)
        }
        Some(Command::Status { url, json, watch, settings }) => {
            let source = Cli::source(before, settings);
            match watch {
                true => commands::status::watch(url.as_deref(), &source),
                false => commands::status::run(url.as_deref(), json, &source),
            }
        }
        Some(Command::Cluster { command: cli::Cluster::Drain { node, undo, url, settings } }) => {
            let source = Cli::source(before, settings);
            commands::cluster::drain(&node, !undo, url.as_deref(), &source)
        }
        Some(Command::Cluster { command: cli::Cluster::Status { url, json, settings } }) => {
            commands::cluster::status(url.as_deref(), json, &Cli::source(before, settings))
        }
        Some(Command::Task(task)) => {
            let source = Cli::source(before, task.settings.clone());
            commands::task::run(&task, &source)
        }
        Some(Command::Calls(calls)) => {
            let source = Cli::source(before, calls.settings.clone());
            commands::calls::run(&calls, &source)
        }
        Some(Command::Test(test)) => {
            let source = Cli::source(before, test.settings.clone());
            commands::test::run(&test, &source)
        }
        Some(Command::Approvals { answer, url, json, settings }) => {
            let source = Cli::source(before, settings);
            commands::approvals::run(answer.as_ref(), url.as_deref(), json, &source)
        }
        Some(Command::Quotas { url, json, settings }) => {
            commands::quotas::run(url.as_deref(), json, &Cli::source(before, settings))
        }
        Some(Command::Login(login)) => {
            let source = Cli::source(before, login.settings.clone());
            commands::login::login(&login, &source)
        }
        Some(Command::Logout(logout)) => {
            let source = Cli::source(before, logout.settings.clone());
            commands::login::logout(&logout, &source)
        }
        Some(Command::Attest(attest)) => {
            let source = Cli::source(before, attest.settings.clone());
            commands::attest::run(&attest, &source)
        }
        Some(Command::Verify(verify)) => {
            let source = Cli::source(before, verify.settings.clone());
            commands::verify::run(&verify, &source)
        }
        Some(Command::Secret { command }) => commands::secret::run(&command),
        Some(Command::Audit { command: Audit::Verify { file, key, heads, settings } }) => {
            let source = Cli::source(before, settings);
            commands::audit::verify(file.as_deref(), key, heads.as_deref(), &source)
        }
        Some(Command::Token { command }) => match command {
            cli::Token::Create(create) => {
                let source = Cli::source(before, create.settings.clone());
                commands::token::create(&create, &source)
            }
            cli::Token::List { json, settings } => {
                commands::token::list(json, &Cli::source(before, settings))
            }
            cli::Token::Revoke { name, settings } => {
                commands::token::revoke(&name, &Cli::source(before, settings))
            }
        },
        Some(Command::Policy { command: cli::Policy::Explain(explain) }) => {
            let source = Cli::source(before, explain.settings.clone());
            commands::policy::explain(&explain, &source)
        }
        Some(Command::Dev { dir, serve }) => commands::serve::dev(dir, before, serve),
        Some(Command::Serve(after)) => commands::serve::run(Cli::serve_source(before, Some(after))),
        None => commands::serve::run(Cli::serve_source(before, None)),
    }
}

/// Why a command ends without success.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    /// Printed as `error: …`, one line each; empty if everything has been printed.
    lines: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Failed,
    Usage,
    /// That of a command which was run.
    Of(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Of(code) => code,
        })
    }
}

impl Failure {
    /// All of it in one line.
    fn text(&self) -> String {
        self.lines.join("; ")
    }

    /// Its lines.
    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines
    }

    /// The operation failed.
    pub(crate) fn failed(line: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, lines: vec![line.into()] }
    }

    /// The operation failed, and the reason has been printed.
    pub(crate) fn failed_silently() -> Self {
        Self { exit: Exit::Failed, lines: Vec::new() }
    }

    /// A command that was run ended with this code.
    pub(crate) fn exit_silently(code: i32) -> Self {
        Self { exit: Exit::Of(u8::try_from(code).unwrap_or(1)), lines: Vec::new() }
    }

    /// A command that was run ended with this code, or could not be run.
    pub(crate) fn exit(code: i32, line: impl Into<String>) -> Self {
        Self { lines: vec![line.into()], ..Self::exit_silently(code) }
    }

    /// The command line is wrong, and the error has been printed.
    fn usage_silently() -> Self {
        Self { exit: Exit::Usage, lines: Vec::new() }
    }

    /// The command line makes no sense.
    pub(crate) fn usage(line: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, lines: vec![line.into()] }
    }

    /// What the command was given makes no sense, for several reasons.
    pub(crate) fn usage_with(lines: Vec<String>) -> Self {
        Self { exit: Exit::Usage, lines }
    }

    /// The operation failed, for several reasons.
    pub(crate) fn failed_with(lines: Vec<String>) -> Self {
        Self { exit: Exit::Failed, lines }
    }

    /// The check found a configuration that cannot be used.
    pub(crate) fn check(problems: &[Problem]) -> Self {
        Self::failed_with(problems.iter().map(ToString::to_string).collect())
    }

    /// The configuration cannot be used.
    pub(crate) fn configuration(problems: &[Problem]) -> Self {
        Self { exit: Exit::Usage, lines: problems.iter().map(ToString::to_string).collect() }
    }
}
