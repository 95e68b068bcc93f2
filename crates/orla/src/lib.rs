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
mod unserved;

use std::process::ExitCode;

use clap::Parser;

use cli::{Audit, Cli, Cluster, Command, Policy, Sandbox, Token};
use config::{Problem, Source};

pub use async_trait::async_trait;
pub use orla_marketplace as marketplace;
pub use orla_providers as providers;
/// MCP, A2A and RTFS over HTTP and stdio in front of a marketplace: the transports of [`Server`].
pub use orla_server as front_end;
pub use server::Server;

/// Calls need blocks of many sizes on several threads at once; docs/design/speed.md has what other allocators cost.
#[cfg(all(target_os = "linux", feature = "jemalloc"))]
#[global_allocator]
static ALLOCATOR: orla_sys::Jemalloc = orla_sys::Jemalloc;

/// Runs the command line and returns the exit code, like [`Server::main`] without additions.
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
    // This program is its own reaper. No code that starts threads or opens files may run before this.
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
            // The arguments may have been pasted. `plain` lacks their escape sequences, so the arguments
            // are checked too.
            let is_safe =
                |arg: std::ffi::OsString| arg.to_str().is_some_and(|arg| text::on_lines(arg) == arg);
            // Help does not quote the arguments.
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
    let Cli { serve: before, command } = cli;
    let Some(mut command) = command else {
        return commands::serve::run(Cli::serve_source(before, None));
    };
    let source = Cli::source(before.clone(), command.take_settings());
    match command {
        Command::Serve(after) => commands::serve::run(Cli::serve_source(before, Some(after))),
        Command::Dev { dir, serve } => commands::serve::dev(dir, before, serve),
        Command::Schema => commands::schema(),
        Command::Init { dir } => commands::init::run(&dir),
        Command::New { kind, name, language, dir } => {
            commands::new::run(kind, &name, language, dir, &source)
        }
        Command::Connect(connect) => commands::connect::run(&connect, &source),
        Command::Completions { shell } => commands::completions(shell),
        Command::Man { dir } => commands::manual(&dir),
        Command::List(list) => commands::list::run(&list, &source),
        Command::Doctor(doctor) => commands::doctor::run(&doctor, &source),
        Command::Sandbox { command } => match command {
            Sandbox::Run(run) => commands::sandbox::run(&run, &source),
            Sandbox::Explain(explain) => commands::sandbox::explain(&explain, &source),
            Sandbox::Learn(learn) => commands::sandbox::learn(&learn, &source),
        },
        Command::Add(add) => commands::packages::add(&add, &source),
        Command::Remove { name, .. } => commands::packages::remove(&name, &source),
        Command::Update(update) => commands::packages::update(&update, &source),
        Command::Outdated { json, .. } => commands::packages::outdated(json, &source),
        Command::Sync(sync) => commands::packages::sync(&sync, &source),
        Command::Publish(publish) => commands::packages::publish(&publish, &source),
        Command::Search(search) => commands::search::run(&search, &source),
        Command::Describe(describe) => commands::describe::run(&describe, &source),
        Command::Check { url, .. } => commands::check::run(url.as_deref(), &source),
        Command::Call(call) => commands::call::run(&call, &source),
        #[cfg(feature = "agent")]
        Command::Agent(agent) => commands::agent::run(&agent, &source),
        Command::Rtfs(rtfs) => commands::rtfs::run(&rtfs, &source),
        Command::Status { url, health: true, .. } => commands::status::health(url.as_deref(), &source),
        Command::Status { url, json, watch, .. } => match watch {
            true => commands::status::watch(url.as_deref(), &source),
            false => commands::status::run(url.as_deref(), json, &source),
        },
        Command::Cluster { command } => match command {
            Cluster::Drain { node, undo, url, .. } => {
                commands::cluster::drain(&node, !undo, url.as_deref(), &source)
            }
            Cluster::Status { url, json, .. } => {
                commands::cluster::status(url.as_deref(), json, &source)
            }
        },
        Command::Task(task) => commands::task::run(&task, &source),
        Command::Calls(calls) => commands::calls::run(&calls, &source),
        Command::Test(test) => commands::test::run(&test, &source),
        Command::Approvals { answer, url, json, .. } => {
            commands::approvals::run(answer.as_ref(), url.as_deref(), json, &source)
        }
        Command::Quotas { url, json, .. } => commands::quotas::run(url.as_deref(), json, &source),
        Command::Login(login) => commands::login::login(&login, &source),
        Command::Logout(logout) => commands::login::logout(&logout, &source),
        Command::Attest(attest) => commands::attest::run(&attest, &source),
        Command::Verify(verify) => commands::verify::run(&verify, &source),
        Command::Secret { command } => commands::secret::run(&command),
        Command::Audit { command: Audit::Verify { files, key, heads, .. } } => {
            commands::audit::verify(&files, &key, heads.as_deref(), &source)
        }
        Command::Token { command } => match command {
            Token::Create(create) => commands::token::create(&create, &source),
            Token::List { json, .. } => commands::token::list(json, &source),
            Token::Revoke { name, .. } => commands::token::revoke(&name, &source),
        },
        Command::Policy { command: Policy::Explain(explain) } => {
            commands::policy::explain(&explain, &source)
        }
    }
}

/// The reason why a command fails.
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
    /// Returns all of it in one line.
    fn text(&self) -> String {
        self.lines.join("; ")
    }

    /// Returns the lines of the message.
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

    /// The arguments of the command are invalid, for several reasons.
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
