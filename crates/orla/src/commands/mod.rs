//! One module for each command.

pub(crate) mod connect;
pub(crate) mod init;

use clap::CommandFactory;

use crate::Failure;
use crate::cli::Cli;
use crate::config::schema::schema as config_schema;
use crate::render;

/// `orla schema`: the JSON Schema of the configuration.
pub(crate) fn schema() -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(&config_schema());
    render::line(&text.map_err(|err| Failure::failed(err.to_string()))?);
    Ok(())
}

/// `orla completions SHELL`.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "orla", &mut script);
    render::out(&String::from_utf8_lossy(&script));
    Ok(())
}
