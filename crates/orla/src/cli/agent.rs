//! `orla agent`.

use std::path::PathBuf;

use clap::Args;

use super::Settings;
use crate::config::Approve;
use crate::config::table::MAX_STEPS;

#[derive(Args, Clone, Debug)]
pub(crate) struct Agent {
    /// The prompt; `-` is standard input
    pub(crate) prompt: String,
    /// The model; as PROVIDER::NAME if its name does not determine the provider
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Where the model is reached [default: at its provider]
    #[arg(long, value_name = "URL", value_parser = base_url)]
    pub(crate) base_url: Option<String>,
    /// The environment variable that holds the key [default: the provider's own, unless there is a base URL]
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) api_key_env: Option<String>,
    /// A file with the system prompt
    #[arg(long, value_name = "FILE")]
    pub(crate) system: Option<PathBuf>,
    /// Print everything that happens as JSON lines
    #[arg(long)]
    pub(crate) json: bool,
    /// Agree to every call
    #[arg(long, short, conflicts_with = "approve")]
    pub(crate) yes: bool,
    /// Which calls to ask you about: never, destructive or always [default: destructive]
    #[arg(long, value_name = "WHICH", value_parser = approve)]
    pub(crate) approve: Option<Approve>,
    /// How often the model may be asked [default: 20]
    #[arg(long, value_name = "N", value_parser = steps)]
    pub(crate) max_steps: Option<usize>,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

pub(super) const AGENT: &str = "\
orla uses the model that --model or the configuration names; without one, the first model of an Ollama on this \
machine; without Ollama, a model of the first provider whose key is set (OPENAI_API_KEY, ANTHROPIC_API_KEY, \
GEMINI_API_KEY). The answer is streamed to standard output, and each call is one line on standard error. orla asks \
you before a destructive call. Without a terminal, it does not make such a call.

Examples:
  orla agent 'which of my notes are about Lisbon?'
  orla agent --model claude-sonnet-4-6 --yes 'tidy up the notes'
  orla agent --model openai::qwen3 --base-url http://127.0.0.1:8000/v1 hello
  git diff | orla agent --system reviewer.md - > review.md
  orla agent --json 'what time is it?' | jq -r 'select(.type == \"tool_call\").name'";

fn base_url(text: &str) -> Result<String, String> {
    let url = text.parse::<reqwest::Url>().ok();
    let is_one = url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    // It may hold a password, and is not repeated.
    is_one.then(|| text.to_owned()).ok_or_else(|| "expected http://HOST:PORT/PATH".to_owned())
}

fn approve(text: &str) -> Result<Approve, String> {
    Approve::of_word(text).ok_or_else(|| "expected never, destructive or always".to_owned())
}

fn steps(text: &str) -> Result<usize, String> {
    let steps = text.parse().ok().filter(|steps| (1..=MAX_STEPS).contains(steps));
    steps.ok_or_else(|| format!("expected a whole number from 1 to {MAX_STEPS}"))
}
