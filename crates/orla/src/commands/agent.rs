//! `orla agent`: a model answers a prompt with the help of the served capabilities.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use genai::chat::ChatMessage;
use tokio_util::sync::CancellationToken;

use super::records::CallRecords;
use crate::agent::{
    Agent, Approval, Budget, End, Model, ModelSource, Run, SYSTEM, Tools, Transcript, environment,
};
use crate::app::App;
use crate::config::agent::Approve;
use crate::config::{AgentConfig, Config, Source};
use crate::signals::Signals;
use crate::telemetry::PromptTrace;
use crate::{Failure, cli};

/// The largest prompt, in bytes.
const MAX_PROMPT: u64 = 4 * 1024 * 1024;

pub(crate) fn run(agent: &cli::Agent, source: &Source) -> Result<(), Failure> {
    let prompt = match agent.prompt.as_str() {
        "-" => text_of(std::io::stdin(), "standard input")?,
        prompt => prompt.to_owned(),
    };
    if prompt.trim().is_empty() {
        return Err(Failure::usage("the prompt is empty"));
    }
    let system = match &agent.system {
        Some(file) => file_text(file)?,
        None => SYSTEM.to_owned(),
    };
    let mut config = super::load(source)?;
    overlay(&mut config.agent, agent);
    let _log = super::log(&config);
    let runtime = super::small_runtime()?;
    let done = runtime.block_on(answer(agent.json, &config, system, prompt));
    runtime.shutdown_background();
    done
}

/// The command line takes precedence.
fn overlay(config: &mut AgentConfig, flags: &cli::Agent) {
    config.model = flags.model.clone().or(config.model.take());
    config.base_url = flags.base_url.clone().or(config.base_url.take());
    config.api_key_env = flags.api_key_env.clone().or(config.api_key_env.take());
    config.max_steps = flags.max_steps.unwrap_or(config.max_steps);
    config.approve = flags.approve.unwrap_or(config.approve);
    if flags.yes {
        config.approve = Approve::Never;
    }
}

async fn answer(is_json: bool, config: &Config, system: String, prompt: String) -> Result<(), Failure> {
    let mut signals = Signals::install().map_err(|err| Failure::failed(err.to_string()))?;
    let model = Model::choose(&config.agent, &environment).await?;
    let app = App::build_local(config)?;
    let mut records = CallRecords::of(&app, config)?;
    let telemetry = config.telemetry(&|name| std::env::var_os(name)).map_err(Failure::usage)?;
    let trace = match telemetry.traces {
        Some(_) => PromptTrace::begin(telemetry, records.followed(&app, config)?)?,
        None => None,
    };
    app.marketplace().prepare_listing().await;
    let transcript = Transcript::new(is_json);
    transcript.prompt(&model.name(), &prompt);
    let budget = Budget::new(&config.agent);
    let mut run = Run::new(Arc::clone(&budget), system, vec![ChatMessage::user(prompt)]);
    let cancellation = CancellationToken::new();
    let agent = Agent {
        marketplace: Arc::clone(app.marketplace()),
        model: ModelSource::Model(&model),
        tools: Tools::of(app.marketplace().snapshot(), config.agent.max_tools, None),
        observer: &transcript,
        budget,
        within: None,
        traceparent: trace.as_ref().map(PromptTrace::traceparent),
        approve: config.agent.approve,
        timeout: config.is_asked_for("timeout").then_some(config.timeout),
        max_result: config.agent.max_result_bytes,
        cancellation: cancellation.clone(),
    };
    let mut stopped = None;
    let end = {
        let driving = agent.drive(&mut run, Approval::at_terminal());
        tokio::pin!(driving);
        tokio::select! {
            end = &mut driving => end,
            () = tokio::time::sleep(config.agent.timeout) => {
                cancellation.cancel();
                // Its calls have their grace period.
                driving.await.map(|_| End::Timeout)
            }
            stop = signals.end() => {
                cancellation.cancel();
                stopped = Some(stop);
                tokio::select! {
                    end = &mut driving => end,
                    // A second signal does not wait for it.
                    _ = signals.end() => Ok(End::Cancelled),
                }
            }
        }
    };
    app.end_providers().await;
    records.end().await;
    transcript.end(&end, run.spent);
    if let Some(trace) = trace {
        let error = match &end {
            Ok(end) => end.problem().map(|_| end.word().to_owned()),
            Err(_) => Some("failed".to_owned()),
        };
        trace.end(model.name(), (run.spent.input, run.spent.output), error).await;
    }
    match (end, stopped) {
        (_, Some(stop)) => Err(super::call::stopped(stop)),
        (Err(problem), None) => Err(Failure::failed(problem)),
        (Ok(end), None) => end.problem().map_or(Ok(()), |problem| Err(Failure::failed(problem))),
    }
}

fn file_text(file: &Path) -> Result<String, Failure> {
    let shown = file.display().to_string();
    let opened = File::open(file);
    let opened = opened.map_err(|err| {
        Failure::usage(format!("{shown} cannot be read: {}", crate::config::reason(&err)))
    })?;
    text_of(opened, &shown)
}

fn text_of(reader: impl Read, shown: &str) -> Result<String, Failure> {
    let mut text = String::new();
    let read = reader.take(MAX_PROMPT + 1).read_to_string(&mut text);
    read.map_err(|err| {
        Failure::usage(format!("{shown} cannot be read: {}", crate::config::reason(&err)))
    })?;
    if text.len() as u64 > MAX_PROMPT {
        return Err(Failure::usage(format!("{shown}: more than {MAX_PROMPT} bytes")));
    }
    Ok(text)
}
