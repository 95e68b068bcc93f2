//! The capability `agent`: the configured model answers a prompt with the help of the served
//! capabilities (RFC 1 §9.1), for clients without a model, or with one that delegates a task.
//!
//! # How it works
//!
//! The capability has its own kind of provider ([`Prompted`]) and executor ([`PromptedExecutor`]), and
//! exists if a model is configured. A call is a run ([`Agent`]). The model's calls are nested in that
//! call. They have the same principal and the same snapshot, and use the remaining time. The caller
//! receives each step as progress and the answer while it is written, and approves destructive calls by
//! elicitation. If `agent.model` is `sampling`, the model is that of the caller's client.
//!
//! A run within a run, by a program or through `capability_call`, shares the limits of the outer run, so
//! that they apply to all of them together.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use genai::chat::{ChatMessage, ToolCall};
use orla_marketplace::attestation::{ContentSource, Definition};
use orla_marketplace::schema::type_from_json_schema;
use orla_marketplace::{
    CallContext, CapabilityExecutor, CapabilityManifest, CapabilityMarketplace, CustomProvider,
    HttpCapability, JsonText, Notice, NoticeSink, Outcome, Payload, Progress, ProviderType,
    Registration, RuntimeError, RuntimeResult, TITLE,
};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::model::{Named, Variable};
use super::run::ModelReply;
use super::sampling::{self, Sampling};
use super::{
    Agent, Approval, Budget, End, Model, ModelSource, Run, RunObserver, SYSTEM, Tools, prompts,
};
use crate::config::AgentConfig;
use crate::{Failure, render};

/// Its id.
pub(crate) const ID: &str = "agent";

const DESCRIPTION: &str = "Gives a prompt to a language model, which answers it with the help of the tools that are served here, and \
    gives its answer. For a task of several steps that is to be left to another model as a whole. Takes either a `prompt` in words, \
    or the `name` of one of the prompts that are served here, with its `arguments`.";
/// Characters of arguments and errors that a notice shows.
const SHOWN: usize = 200;
/// Bytes of text that are sent together, unless a line ends before.
const PIECE: usize = 80;
/// How long text is held for more of it.
const TEXT_DELAY: Duration = Duration::from_millis(100);

/// The settings of the capability that answers prompts: a model and its limits.
pub(crate) struct Prompted {
    config: AgentConfig,
    /// `None` if the model of each client is asked.
    named: Option<Named>,
    model: OnceLock<Model>,
}

impl fmt::Debug for Prompted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prompted({})", self.name())
    }
}

impl CustomProvider for Prompted {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        "agent"
    }

    fn answers_prompts(&self) -> bool {
        true
    }

    fn requires(&self) -> Vec<String> {
        let Some(named) = &self.named else { return Vec::new() };
        ProviderType::Http(HttpCapability::new(named.address(), None, 0)).requires()
    }

    fn content(&self) -> ContentSource {
        let at = Definition::new(self.named.as_ref().map_or(sampling::NAME, Named::address));
        ContentSource::Definition(at.with("model", self.name()))
    }
}

/// Returns the capability of this configuration, or `None` if it names no model.
///
/// # Errors
///
/// Returns which setting is missing.
pub(crate) fn registration(
    config: &AgentConfig,
    variable: Variable<'_>,
) -> Result<Option<Registration>, Failure> {
    let named = match config.model.as_deref() {
        None => return Ok(None),
        Some(sampling::NAME) => None,
        Some(_) => Named::configured(config, variable)?,
    };
    let provider = Prompted { config: config.clone(), named, model: OnceLock::new() };
    let provider = ProviderType::Custom(Arc::new(provider));
    let mut manifest = CapabilityManifest::new(ID, DESCRIPTION, provider);
    manifest.version = env!("CARGO_PKG_VERSION").to_owned();
    manifest.input_schema = Some(type_from_json_schema(&input()));
    manifest.output_schema = Some(type_from_json_schema(&output()));
    manifest.metadata.insert(TITLE.to_owned(), "Carry out a prompt".to_owned());
    let mut registration = Registration::from(manifest);
    registration.policy = registration.policy.with_timeout(config.timeout);
    Ok(Some(registration))
}

fn input() -> Value {
    json!({
        "type": "object",
        "properties": {
            "prompt": {"type": "string", "minLength": 1, "description": "What is to be done, in words."},
            "name": {"type": "string", "minLength": 1, "description": "A prompt that is served here, instead of `prompt`."},
            "arguments": {"type": "object", "additionalProperties": {"type": "string"},
                "description": "The arguments of the prompt that `name` names."},
        },
        "additionalProperties": false,
    })
}

fn output() -> Value {
    let count = |about: &str| json!({"type": "integer", "description": about});
    json!({
        "type": "object",
        "properties": {
            "answer": {"type": "string", "description": "What the model answers in the end."},
            "reason": {"type": "string", "description": "Why it ended: `answered`, or what kept it from an answer."},
            "model": {"type": "string"},
            "steps": count("How often the model was asked."),
            "calls": {"type": "array", "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "is_error": {"type": "boolean"}, "duration_ms": {"type": "number"}},
                "required": ["name", "is_error", "duration_ms"],
            }},
            "input_tokens": count("What the model has read."),
            "output_tokens": count("What it has written."),
        },
        "required": ["answer", "reason", "model", "steps", "calls", "input_tokens", "output_tokens"],
    })
}

/// Runs [`Prompted`] providers against a marketplace. The executor does not keep the marketplace alive.
pub(crate) struct PromptedExecutor {
    marketplace: Weak<CapabilityMarketplace>,
}

impl PromptedExecutor {
    /// An executor whose models call the capabilities of this marketplace.
    pub(crate) fn new(marketplace: &Arc<CapabilityMarketplace>) -> Self {
        Self { marketplace: Arc::downgrade(marketplace) }
    }
}

#[async_trait]
impl CapabilityExecutor for PromptedExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<Prompted>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let prompted = provider.settings::<Prompted>()?;
        let unavailable = |reason: String| RuntimeError::Unavailable {
            id: ctx.name.to_string(),
            reason,
            source: None,
        };
        let gone = || unavailable("the marketplace is gone".to_owned());
        let market = self.marketplace.upgrade().ok_or_else(gone)?;
        let budget = ctx.shared().unwrap_or_else(|| Budget::new(&prompted.config));
        let catalog = match &ctx.scope.catalog {
            Some(catalog) => Arc::clone(catalog),
            None => {
                market.prepare_listing().await;
                market.snapshot()
            }
        };
        let wanted: PromptInput = serde_json::from_str(inputs.json()?.as_str())
            .map_err(|err| failed(ctx, &err.to_string(), None))?;
        let messages = match (wanted.prompt, wanted.name) {
            (Some(prompt), None) => vec![ChatMessage::user(prompt)],
            (None, Some(name)) => prompts::messages(&market, &catalog, ctx, &name, wanted.arguments)
                .await
                .map_err(|problem| failed(ctx, &problem, None))?,
            _ => return Err(failed(ctx, "give either `prompt` or `name`", None)),
        };
        let model = match (prompted.model(), &ctx.scope.client) {
            (Ok(Some(model)), _) => ModelSource::Model(model),
            (Ok(None), Some(client)) => ModelSource::Client(Sampling(Arc::clone(client))),
            (Ok(None), None) => {
                return Err(failed(ctx, "the caller's client has no model that can be asked", None));
            }
            (Err(failure), _) => return Err(unavailable(failure.text())),
        };
        let reporter = Arc::new(ProgressReporter::new(ctx.scope.notices.clone()));
        let cancellation = ctx.scope.cancellation.child_token();
        let mut run = Run::new(Arc::clone(&budget), SYSTEM.to_owned(), messages);
        let agent = Agent {
            marketplace: market,
            model,
            tools: Tools::of(catalog, prompted.config.max_tools, ctx.scope.principal.as_ref()),
            observer: &reporter,
            budget,
            approve: prompted.config.approve,
            within: Some(ctx),
            traceparent: None,
            timeout: None,
            max_result: prompted.config.max_result_bytes,
            cancellation: cancellation.clone(),
        };
        let end = {
            let driving = agent.drive(&mut run, Approval::by_client(ctx.scope.client.as_ref()));
            tokio::pin!(driving);
            loop {
                tokio::select! {
                    end = &mut driving => break end,
                    () = ctx.expired() => {
                        cancellation.cancel();
                        // Its calls have their grace period.
                        break driving.await.map(|_| End::Timeout);
                    }
                    () = reporter.held() => reporter.end_piece(),
                }
            }
        };
        reporter.end_piece();
        let reason = end.as_ref().map_or("failed", |end| end.word());
        let outcome = reporter.outcome(&prompted.name(), reason, &run)?;
        let id = ctx.name.to_string();
        match end {
            Ok(End::Answered) => Ok(outcome),
            Ok(End::Timeout) => {
                Err(RuntimeError::TimedOut { id, limit: ctx.timeout, outcome: Some(Box::new(outcome)) })
            }
            Ok(End::Cancelled) => Err(RuntimeError::Cancelled { id, outcome: Some(Box::new(outcome)) }),
            Ok(end) => Err(failed(ctx, &end.problem().unwrap_or_default(), Some(outcome))),
            Err(problem) => Err(failed(ctx, &problem, Some(outcome))),
        }
    }
}

impl Prompted {
    fn name(&self) -> String {
        self.named.as_ref().map_or_else(|| sampling::NAME.to_owned(), Named::name)
    }

    /// Returns its model, if it has one: made at the first use.
    fn model(&self) -> Result<Option<&Model>, Failure> {
        let Some(named) = &self.named else { return Ok(None) };
        if let Some(model) = self.model.get() {
            return Ok(Some(model));
        }
        let model = Model::connect(named)?;
        Ok(Some(self.model.get_or_init(|| model)))
    }
}

fn failed(ctx: &CallContext, problem: &str, outcome: Option<Outcome>) -> RuntimeError {
    let message = format!("{}: {problem}", ctx.name);
    RuntimeError::Failed { id: ctx.name.to_string(), message, outcome: outcome.map(Box::new) }
}

#[derive(Deserialize)]
struct PromptInput {
    prompt: Option<String>,
    name: Option<String>,
    arguments: Option<Map<String, Value>>,
}

/// Reports the progress of a run to the caller, and collects the metadata of the run for the result.
struct ProgressReporter {
    notices: NoticeSink,
    inner: Mutex<Inner>,
    /// Notified when the first text is buffered.
    begins: Notify,
}

#[derive(Default)]
struct Inner {
    /// The last progress value; each is one more than the one before.
    progress: u32,
    /// Text that has not been sent.
    piece: String,
    /// Until when it is buffered.
    until: Option<Instant>,
    /// The text of the newest reply so far.
    answer: String,
    calls: Vec<Value>,
}

impl ProgressReporter {
    fn new(notices: NoticeSink) -> Self {
        Self { notices, inner: Mutex::default(), begins: Notify::new() }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        change(&mut self.inner.lock())
    }

    fn step(&self, message: String) {
        // Sent under the lock, so that increasing progress arrives in order.
        self.with(|inner| {
            inner.progress += 1;
            let progress =
                Progress { progress: inner.progress.into(), total: None, message: Some(message) };
            self.notices.send(Notice::Progress(progress));
        });
    }

    /// Waits until text has been buffered for long enough, so that text is also sent if the model pauses within a line.
    async fn held(&self) {
        loop {
            match self.with(|inner| inner.until) {
                Some(until) => return sleep_until(until).await,
                None => self.begins.notified().await,
            }
        }
    }

    /// Sends the rest of the text.
    fn end_piece(&self) {
        let piece = self.with(|inner| {
            inner.until = None;
            std::mem::take(&mut inner.piece)
        });
        if !piece.is_empty() {
            self.notices.send(Notice::Text(piece));
        }
    }

    fn outcome(&self, model: &str, reason: &str, run: &Run) -> RuntimeResult<Outcome> {
        let (answer, calls) =
            self.with(|inner| (std::mem::take(&mut inner.answer), std::mem::take(&mut inner.calls)));
        let json =
            |value: Value| JsonText::of(&value).map_err(|err| RuntimeError::Generic(err.to_string()));
        let content = match answer.is_empty() {
            true => None,
            false => Some(json(json!([{"type": "text", "text": answer}]))?),
        };
        let structured = json(json!({
            "answer": answer, "reason": reason, "model": model, "steps": run.steps, "calls": calls,
            "input_tokens": run.spent.input, "output_tokens": run.spent.output,
        }))?;
        Ok(Outcome { structured: Some(Payload::from_json(structured)), content, ..Outcome::default() })
    }
}

impl RunObserver for Arc<ProgressReporter> {
    fn text(&self, part: &str) {
        let is_due = self.with(|inner| {
            inner.answer.push_str(part);
            inner.piece.push_str(part);
            if inner.until.is_none() {
                inner.until = Some(Instant::now() + TEXT_DELAY);
                self.begins.notify_one();
            }
            inner.piece.len() >= PIECE || part.contains('\n')
        });
        if is_due {
            self.end_piece();
        }
    }

    fn answered(&self, answer: &ModelReply) {
        self.end_piece();
        // An answer with calls is a step towards another one.
        if answer.content.contains_tool_call() {
            self.with(|inner| inner.answer.clear());
        }
    }

    fn calls(&self, call: &ToolCall) {
        let arguments = render::cut(&call.fn_arguments.to_string(), SHOWN);
        self.step(format!("{} {arguments}", call.fn_name));
    }

    fn call_finished(&self, call: &ToolCall, text: &str, is_error: bool, took: Duration) {
        let ms = (took.as_secs_f64() * 10_000.0).round() / 10.0;
        let problem = if is_error { format!(": {}", render::cut(text, SHOWN)) } else { String::new() };
        let name = &call.fn_name;
        self.with(|inner| {
            inner.calls.push(json!({"name": name, "is_error": is_error, "duration_ms": ms}));
        });
        self.step(format!("{name} ({ms} ms){problem}"));
    }

    /// A call's own progress is part of the progress of the run. Its messages are passed on unchanged.
    /// Its text is not passed on, because only the model reads it.
    fn notices(&self, call: &ToolCall) -> NoticeSink {
        if !self.notices.is_wanted() {
            return NoticeSink::default();
        }
        let (reporter, name) = (Self::clone(self), call.fn_name.clone());
        NoticeSink::new(move |notice| match notice {
            Notice::Progress(Progress { message: Some(message), .. }) => {
                reporter.step(format!("{name}: {message}"));
            }
            Notice::Progress(progress) => reporter.step(format!("{name}: {}", progress.progress)),
            Notice::Log { .. } => reporter.notices.send(notice),
            Notice::Text(_) => {}
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_sent_by_line_by_size_and_after_a_delay() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let notices = Arc::new(Mutex::new(Vec::new()));
            let sink = Arc::clone(&notices);
            let reporter = Arc::new(ProgressReporter::new(NoticeSink::new(move |notice| {
                if let Notice::Text(text) = notice {
                    sink.lock().push(text);
                }
            })));
            let take = || std::mem::take(&mut *notices.lock());
            reporter.text("a");
            reporter.text("b\n");
            assert_eq!(take(), ["ab\n"]);
            reporter.text(&"x".repeat(PIECE));
            assert_eq!(take().len(), 1);
            reporter.text("one ");
            reporter.text("two");
            assert!(take().is_empty());
            // It ends without a line's end.
            reporter.held().await;
            reporter.end_piece();
            assert_eq!(take(), ["one two"]);
            assert!(reporter.with(|inner| inner.until.is_none()));
        });
    }
}
