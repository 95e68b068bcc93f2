//! The language as capabilities: `rtfs` runs a program, `rtfs_check` lists its errors.

use std::any::TypeId;
use std::borrow::Cow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use rtfs::{
    Diagnostic, Diagnostics, Error, Limits, Options, Origin, Program, Severity, Source, Value, compile,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};
use tokio::sync::Semaphore;

use super::check::{self, Served, described as problem};
use super::compiler::{self, Compiler};
use super::host::catalog;
use super::{Job, run};
use crate::call::CallContext;
use crate::error::{RuntimeError, RuntimeResult, Violation};
use crate::executor::CapabilityExecutor;
use crate::json::{value_from_json, value_to_json};
use crate::manifest::{ANNOTATIONS, CapabilityManifest, Listing, Registration, TITLE};
use crate::marketplace::CapabilityMarketplace;
use crate::outcome::Outcome;
use crate::payload::{JsonText, Payload};
use crate::provider::{Language, ProviderType};
use crate::schema::type_from_json_schema;

/// The name under which a program sees its input.
pub(crate) const INPUT: &str = "input";

/// The ids of the capabilities of the language.
pub const IDS: [&str; 2] = ["rtfs", "rtfs_check"];

/// Returns the capabilities of the language, unlisted; the caller decides whether to list them.
pub fn registrations() -> Vec<Registration> {
    vec![Language::Run.registration(), Language::Check.registration()]
}

const TEACH: &str = include_str!("teach.txt");
const CHECK: &str = "Checks an RTFS program without running it: gives every mistake at once (syntax, unknown names, \
    wrong numbers of arguments, values of wrong types, capabilities that do not exist or do not take what they are \
    given), and what is hardly meant as warnings, with line, column and the text it stands in. See the tool rtfs for \
    the language.";

impl Language {
    fn registration(self) -> Registration {
        let (id, title, description) = match self {
            Self::Run => ("rtfs", "Run a program over capabilities", TEACH),
            Self::Check => ("rtfs_check", "Check a program", CHECK),
        };
        let mut manifest =
            CapabilityManifest::new(id, description, ProviderType::Custom(Arc::new(self)));
        manifest.version = env!("CARGO_PKG_VERSION").to_owned();
        manifest.input_schema = Some(type_from_json_schema(&self.input()));
        manifest.metadata.insert(TITLE.to_owned(), title.to_owned());
        if self == Self::Check {
            let hints = r#"{"readOnlyHint":true,"openWorldHint":false}"#;
            manifest.metadata.insert(ANNOTATIONS.to_owned(), hints.to_owned());
        }
        let mut registration = Registration::from(manifest);
        registration.policy.listing = Listing::Unlisted;
        registration
    }

    fn input(self) -> Json {
        let program =
            json!({"type": "string", "description": "The program. Its last form is the result."});
        let most = |what: &str| json!({"type": "integer", "minimum": 1, "description": what});
        match self {
            Self::Run => json!({
                "type": "object",
                "properties": {
                    "program": program,
                    "input": {"description": "What the program sees as `input`; nil without it."},
                    "limits": {
                        "type": "object",
                        "description": "Tighter limits than the server's own.",
                        "properties": {
                            "steps": most("Steps of the machine."),
                            "memory": most("Bytes of live values."),
                            "depth": most("Calls of functions within each other."),
                            "calls": most("Calls of capabilities."),
                            "calls_at_once": most("Calls of capabilities at the same time."),
                            "output": most("Bytes of the result."),
                            "timeout_ms": most("Milliseconds."),
                        },
                        "additionalProperties": false,
                    },
                },
                "required": ["program"],
                "additionalProperties": false,
            }),
            Self::Check => json!({
                "type": "object",
                "properties": {"program": program},
                "required": ["program"],
                "additionalProperties": false,
            }),
        }
    }
}

/// Runs [`Language`] providers against a marketplace, which it does not keep alive.
pub struct LanguageExecutor {
    marketplace: Weak<CapabilityMarketplace>,
    compiler: Compiler,
}

impl LanguageExecutor {
    /// Returns an executor whose programs call the capabilities of this marketplace, within its limits.
    pub fn new(marketplace: &Arc<CapabilityMarketplace>) -> Self {
        Self { marketplace: Arc::downgrade(marketplace), compiler: Compiler::new() }
    }

    fn market(&self, ctx: &CallContext) -> RuntimeResult<Arc<CapabilityMarketplace>> {
        self.marketplace.upgrade().ok_or_else(|| RuntimeError::Unavailable {
            id: ctx.name.to_string(),
            reason: "the marketplace is gone".to_owned(),
            source: None,
        })
    }

    async fn run(&self, inputs: &Payload, ctx: &CallContext) -> RuntimeResult<Outcome> {
        let arguments: RunArguments<'_> = arguments(inputs, ctx)?;
        let market = self.market(ctx)?;
        let requested = arguments.limits.unwrap_or_default();
        let mut limits = requested.capped_by(&market.snapshot().limits().programs);
        let ctx = &requested.shorten(ctx);
        let program = match self.compiled(&arguments.program, limits.steps, ctx).await? {
            Ok(program) => program,
            Err(problems) => {
                // All errors are reported, not only syntax errors.
                let found = match limit_of(&problems.0) {
                    Some(_) => Vec::new(),
                    None => errors(self.checked(&market, &arguments.program, limits.steps, ctx).await?),
                };
                let problems = if found.is_empty() { problems } else { Diagnostics(found) };
                return Err(invalid(&ctx.name, &problems));
            }
        };
        limits.steps = limits.steps.saturating_sub(program.macro_steps());
        let input = match arguments.input {
            None => Value::Nil,
            Some(json) => value_from_json(json.get())
                .map_err(|err| unreadable(ctx, Violation::unreadable(&err, "input.input")))?,
        };
        let trace = ctx.scope.notices.trace().clone();
        let job = Job { inputs: vec![(INPUT, input)], limits, trace, ..Job::new(program) };
        let value = match run(&market, job, ctx).await {
            Ok(value) => value,
            Err(error) => {
                let more = if is_mistake(&error) {
                    errors(self.checked(&market, &arguments.program, limits.steps, ctx).await?)
                } else {
                    Vec::new()
                };
                return Err(run_error_with(ctx, &error, &more));
            }
        };
        let json = value_to_json(&value)
            .map_err(|err| failed(ctx, format!("the result cannot be given as JSON: {err}")))?;
        outcome(&format!(r#"{{"value":{json}}}"#), &json)
    }

    async fn compiled(
        &self,
        program: &str,
        macro_steps: u64,
        ctx: &CallContext,
    ) -> RuntimeResult<Result<Arc<Program>, Diagnostics>> {
        if let Some(cached) = self.compiler.cached(program, macro_steps) {
            return Ok(Ok(cached));
        }
        let compiled = move |text: &str| compile(&Source::new("", text), &options(macro_steps));
        let compiled = self.compiler.run(program, ctx, compiled).await?;
        if let Ok(compiled) = &compiled {
            self.compiler.cache(program, macro_steps, compiled);
        }
        Ok(compiled)
    }

    /// Returns all problems of a program for the caller.
    async fn checked(
        &self,
        market: &CapabilityMarketplace,
        program: &str,
        macro_steps: u64,
        ctx: &CallContext,
    ) -> RuntimeResult<Vec<Diagnostic>> {
        let served = Served::new(catalog(market, ctx).await, ctx.scope.principal.clone());
        let checked = move |text: &str| check::check(text, &options(macro_steps), served);
        self.compiler.run(program, ctx, checked).await
    }
}

#[async_trait]
impl CapabilityExecutor for LanguageExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<Language>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        match provider.settings::<Language>()? {
            Language::Run => self.run(inputs, ctx).await,
            Language::Check => {
                let arguments: CheckArguments<'_> = arguments(inputs, ctx)?;
                let market = self.market(ctx)?;
                let steps = market.snapshot().limits().programs.steps;
                let found = self.checked(&market, &arguments.program, steps, ctx).await?;
                let problems: Vec<_> = found.iter().map(problem).collect();
                let checked = json!({"ok": !check::has_errors(&found), "problems": problems});
                let text = match found.is_empty() {
                    true => "No mistakes were found.".to_owned(),
                    false => Diagnostics(found).to_string(),
                };
                outcome(&checked.to_string(), &text)
            }
        }
    }
}

/// Checks that the program in an input of `rtfs` can be compiled, before a task is made of it. Leaves
/// a program whose macros need many steps to its run.
///
/// # Errors
/// All problems of the program, with their places.
pub async fn check_syntax(input: &Payload) -> RuntimeResult<()> {
    const MACRO_STEPS: u64 = 100_000;
    /// One large program at a time: this is not the work of a call, which has its own limits.
    static TURN: Semaphore = Semaphore::const_new(1);
    let Ok(arguments) = serde_json::from_str::<RunArguments<'_>>(input.json()?.as_str()) else {
        return Ok(());
    };
    let compiled = |text: &str| compile(&Source::new("", text), &options(MACRO_STEPS)).err();
    let problems = match compiler::is_small(&arguments.program) {
        true => compiled(&arguments.program),
        false => {
            let text = arguments.program.into_owned();
            let _turn = TURN.acquire().await;
            let done = tokio::task::spawn_blocking(move || compiled(&text)).await;
            done.map_err(|_| RuntimeError::Panicked { id: IDS[0].to_owned() })?
        }
    };
    match problems {
        Some(problems) if limit_of(&problems.0).is_none() => Err(invalid(IDS[0], &problems)),
        _ => Ok(()),
    }
}

#[derive(Deserialize)]
struct RunArguments<'a> {
    #[serde(borrow)]
    program: Cow<'a, str>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    limits: Option<RequestedLimits>,
}

#[derive(Deserialize)]
struct CheckArguments<'a> {
    #[serde(borrow)]
    program: Cow<'a, str>,
}

/// The limits that a caller requests. They only tighten the host's.
#[derive(Default, Deserialize)]
struct RequestedLimits {
    steps: Option<u64>,
    memory: Option<usize>,
    depth: Option<usize>,
    calls: Option<u64>,
    calls_at_once: Option<usize>,
    output: Option<usize>,
    timeout_ms: Option<u64>,
}

impl RequestedLimits {
    /// Returns the context of a run, with a shorter deadline if requested.
    fn shorten(&self, ctx: &CallContext) -> CallContext {
        match self.timeout_ms {
            Some(ms) => ctx.shortened(Duration::from_millis(ms)),
            None => ctx.clone(),
        }
    }

    fn capped_by(&self, host: &Limits) -> Limits {
        fn least<T: Ord + Copy>(requested: Option<T>, host: T) -> T {
            requested.map_or(host, |requested| requested.min(host))
        }
        Limits {
            steps: least(self.steps, host.steps),
            memory: least(self.memory, host.memory),
            depth: least(self.depth, host.depth),
            calls: least(self.calls, host.calls),
            calls_at_once: least(self.calls_at_once, host.calls_at_once),
            output: least(self.output, host.output),
        }
    }
}

fn options(macro_steps: u64) -> Options {
    Options { inputs: vec![INPUT.to_owned()], macro_steps, ..Options::default() }
}

/// Returns the finding that the text exceeds its limits, if there is one.
fn limit_of(found: &[Diagnostic]) -> Option<&Diagnostic> {
    found.iter().find(|found| found.kind == "limit")
}

fn errors(mut found: Vec<Diagnostic>) -> Vec<Diagnostic> {
    found.retain(|found| found.severity == Severity::Error);
    found
}

/// Returns whether an error is a mistake in the program, which may contain others of its kind.
fn is_mistake(error: &Error) -> bool {
    matches!(&*error.kind, "undefined" | "arity" | "type" | "unknown-capability" | "invalid-input")
}

fn arguments<'a, T: Deserialize<'a>>(inputs: &'a Payload, ctx: &CallContext) -> RuntimeResult<T> {
    serde_json::from_str(inputs.json()?.as_str()).map_err(|err| failed(ctx, err.to_string()))
}

/// Returns the error for an input that no value can hold.
pub(super) fn unreadable(ctx: &CallContext, violation: Violation) -> RuntimeError {
    RuntimeError::InvalidInput { id: ctx.name.to_string(), violations: vec![violation] }
}

pub(super) fn failed(ctx: &CallContext, message: String) -> RuntimeError {
    RuntimeError::Failed { id: ctx.name.to_string(), message, outcome: None }
}

/// Returns why a program returned no value, for its caller: with the place and its text, which a model
/// needs to correct the program.
pub(super) fn run_error(ctx: &CallContext, error: &Error) -> RuntimeError {
    run_error_with(ctx, error, &[])
}

/// Like [`run_error`], with the other errors of the program, so that all can be corrected together.
fn run_error_with(ctx: &CallContext, error: &Error, found: &[Diagnostic]) -> RuntimeError {
    let id = || ctx.name.to_string();
    match &*error.kind {
        _ if ctx.scope.journal.as_ref().is_some_and(|journal| journal.is_suspended()) => {
            RuntimeError::Suspended { id: id() }
        }
        "cancelled" if ctx.scope.cancellation.is_cancelled() => {
            RuntimeError::Cancelled { id: id(), outcome: None }
        }
        _ => {
            let more = other_findings(error, found);
            let mut message = error.report();
            let mut described = described(error);
            if !more.is_empty() {
                message.push_str("\n\nThis would fail as well:");
                more.iter().for_each(|found| message.push_str(&format!("\n{found}")));
                described["problems"] = more.iter().copied().map(problem).collect();
            }
            structured_error(&ctx.name, message, error.clone(), &described)
        }
    }
}

/// Returns the findings that differ from this error. The checker may have found the same error at a part
/// of the form that failed.
fn other_findings<'f>(error: &Error, found: &'f [Diagnostic]) -> Vec<&'f Diagnostic> {
    let failed = error.at.as_deref();
    let is_this = |found: &Diagnostic| {
        let within = failed.and_then(|at| at.source.as_ref());
        let is_within = within.is_some_and(|(_, span)| {
            span.start <= found.span.start && found.span.start < span.end && *found.kind == *error.kind
        });
        is_within || failed.is_some_and(|at| at.position == found.position)
    };
    let this = found.iter().position(is_this);
    found.iter().enumerate().filter(|(at, _)| Some(*at) != this).map(|(_, found)| found).collect()
}

/// Returns the error of a program that cannot run, with all its problems.
fn invalid(name: &str, problems: &Diagnostics) -> RuntimeError {
    let message = problems.to_string();
    let all: Vec<Json> = problems.0.iter().map(problem).collect();
    let data = value_from_json(&json!({ "problems": all }).to_string()).unwrap_or_default();
    let limit = limit_of(&problems.0);
    let first = limit.or(problems.0.first());
    let text = first.map_or_else(|| message.clone(), |first| first.message.clone());
    let kind = if limit.is_some() { "limit" } else { "syntax" };
    let mut error = Error::new(kind, text).with_data(data);
    error.at = first.map(|first| Box::new(Origin { position: first.position, source: None }));
    let described = described(&error);
    structured_error(name, message, error, &described)
}

fn structured_error(name: &str, message: String, error: Error, described: &Json) -> RuntimeError {
    // The text is the message, and is not repeated.
    let structured = JsonText::parse(json!({ "error": described }).to_string()).ok();
    let structured = structured.map(Payload::from_json);
    RuntimeError::structured(name, message, error, structured)
}

/// Returns an error of a program as data: `{kind, message, capability?, data, at, cause?}`.
pub fn described(error: &Error) -> Json {
    let mut described = json!({"kind": error.kind, "message": error.message});
    if let Some(id) = &error.capability {
        described["capability"] = json!(id);
    }
    // Values that are not data (such as a function) are left out.
    let data = |value| value_to_json(value).ok().and_then(|json| serde_json::from_str(&json).ok());
    described["data"] = data(&error.data).unwrap_or_default();
    let at = error.at.as_ref().map(|at| json!({"line": at.position.line, "column": at.position.column}));
    described["at"] = at.unwrap_or_default();
    if !matches!(error.cause, Value::Nil)
        && let Some(cause) = data(&error.cause)
    {
        described["cause"] = cause;
    }
    described
}

fn outcome(structured: &str, text: &str) -> RuntimeResult<Outcome> {
    let structured = JsonText::parse(structured.to_owned());
    let content = JsonText::of(&json!([{"type": "text", "text": text}]));
    match (structured, content) {
        (Ok(structured), Ok(content)) => Ok(Outcome {
            structured: Some(Payload::from_json(structured)),
            content: Some(content),
            ..Outcome::default()
        }),
        (Err(err), _) | (_, Err(err)) => Err(RuntimeError::Generic(err.to_string())),
    }
}
