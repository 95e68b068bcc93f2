//! `orla task`: tasks of a running server, or those in the state of this directory if no server uses it.

mod local;
mod print;
mod remote;

use std::io::Read;
use std::path::Path;

use orla_marketplace::JsonText;
use orla_marketplace::rtfs::text::excerpt;
use orla_marketplace::rtfs::{Options, Source as Text, compile};
use serde_json::Value;

use super::client::Server;
use crate::Failure;
use crate::cli::{Task, TaskCommand, TaskRun};
use crate::config::{Source, reason};
use crate::text::json_problem;

pub(crate) fn run(task: &Task, source: &Source) -> Result<(), Failure> {
    let config = super::load_local_or_for_client(task.url.as_deref(), source)?;
    let _log = super::log(&config);
    // Checked before the state is opened or a server is asked.
    let wanted = match &task.command {
        TaskCommand::Run(run) => Some(wanted(run)?),
        TaskCommand::Event { value, .. } => Some(event_value(value.as_deref())?),
        _ => None,
    };
    let runtime = super::small_runtime()?;
    let done = runtime.block_on(async {
        match &task.url {
            Some(url) => remote::run(&task.command, wanted, &Server::at(Some(url), &config)?).await,
            None => local::run(&task.command, wanted, &config).await,
        }
    });
    runtime.shutdown_background();
    done
}

/// Returns the input of the capability, or of the program with its text.
fn wanted(run: &TaskRun) -> Result<JsonText, Failure> {
    let Some(file) = &run.program else {
        return super::call::input(run.json.as_deref(), &run.arguments).map_err(Failure::usage);
    };
    let text = match file.as_os_str() == "-" {
        true => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        false => std::fs::read_to_string(file),
    };
    let text =
        text.map_err(|err| Failure::usage(format!("--program {}: {}", file.display(), reason(&err))))?;
    check_syntax(file, &text)?;
    let arguments: Vec<String> = run.name.iter().chain(&run.arguments).cloned().collect();
    let input = if run.json.is_some() || !arguments.is_empty() {
        super::call::input(run.json.as_deref(), &arguments).map_err(Failure::usage)?
    } else {
        let input = run.input.as_deref().unwrap_or("null");
        JsonText::parse(input.to_owned()).map_err(|err| {
            let problem = json_problem(input).unwrap_or_else(|| err.to_string());
            Failure::usage(format!("--input: {problem}"))
        })?
    };
    JsonText::parse(format!(r#"{{"program":{},"input":{input}}}"#, Value::from(text)))
        .map_err(|err| Failure::usage(err.to_string()))
}

/// Checks that a program can be compiled. Its macros may need more steps here than where it runs.
fn check_syntax(file: &Path, text: &str) -> Result<(), Failure> {
    let name = if file == Path::new("-") { String::new() } else { file.display().to_string() };
    let options = Options { inputs: vec!["input".to_owned()], ..Options::default() };
    let problems = compile(&Text::new(name, text), &options).err();
    problems.map_or(Ok(()), |problems| Err(Failure::failed(problems.to_string())))
}

fn event_value(text: Option<&str>) -> Result<JsonText, Failure> {
    JsonText::parse(text.unwrap_or("null").to_owned()).map_err(|_| {
        let got = excerpt(text.unwrap_or_default(), 60);
        Failure::usage(format!(
            r#"the value of an event: expected JSON such as '{{"amount": 77}}', got {got:?}"#
        ))
    })
}
