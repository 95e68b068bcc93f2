//! Runs simple tools: one process for each call.

use std::any::TypeId;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use orla_marketplace::attestation::Custody;
use orla_marketplace::{
    CallContext, CapabilityExecutor, Outcome, Payload, ProviderStatus, ProviderType, RuntimeError,
    RuntimeResult, SandboxStatus, SpanKind, Violation,
};
use orla_process::child::{self, NO_PYTHON_CACHE};
use orla_process::reaper::INSTANCE;
use orla_process::runner::{Cause, Ended, Job, Process, Runners, Start, Status};
use orla_process::signal;
use orla_process::standby::{Standby, Wanted};
use orla_process::start_failure::{self, NOT_FOUND, StartFailure};
use orla_process::{Instance, PoolLimits};
use rustix::io::Errno;

use super::arguments;
use super::directives::Filter;
use super::metadata::OutputForm;
use super::result::{self, Context};
use super::settings::ToolProvider;

/// Runs the calls of [`ToolProvider`]s.
#[derive(Debug)]
pub struct ToolExecutor {
    runners: Arc<Runners>,
    instance: Arc<Instance>,
    /// Processes that were started before their call.
    standby: Option<Arc<Standby>>,
}

impl ToolExecutor {
    /// Creates an executor for the tools of `instance`.
    pub fn new(instance: Arc<Instance>, limits: PoolLimits) -> Self {
        Self { runners: Runners::new(limits), instance, standby: None }
    }

    /// Sets the standby with processes that were started before their calls, if they are
    /// [wanted](prestarted).
    #[must_use]
    pub fn with_standby(self, standby: Arc<Standby>) -> Self {
        Self { standby: Some(standby), ..self }
    }

    /// Takes a waiting process, or returns how to start one.
    fn process(
        &self,
        tool: &ToolProvider,
        args: Vec<OsString>,
        ctx: &CallContext,
    ) -> Result<Process, Arc<StartFailure>> {
        let attested = ctx.custody.as_ref().and_then(Custody::required).cloned();
        // A waiting process was started before the attestation was checked, so it may not serve a call
        // that needs one. Its environment is older than the call: the call's id and trace come on
        // standard input.
        if let Some(standby) = self.standby.as_ref().filter(|_| tool.prestart > 0 && attested.is_none())
            && let Some(started) = standby.take(&tool.program)?
        {
            return Ok(Process::Waiting(started));
        }
        let mut env = variables(&ctx.name, &self.instance).to_vec();
        env.push(("ORLA_CALL_ID", OsString::from(&*ctx.call_id)));
        if attested.is_some() && tool.package.is_some() {
            let (name, value) = NO_PYTHON_CACHE;
            env.push((name, value.into()));
        }
        env.extend(traceparent(ctx).map(|text| ("TRACEPARENT", OsString::from(text))));
        Ok(Process::New(Start {
            program: Arc::clone(&tool.program),
            args,
            attested: attested.filter(|_| tool.package.is_none()),
            environment: self.instance.environment(),
            env,
        }))
    }

    /// Runs a program. For a package that must be attested, fails if any of its files changes while the
    /// program runs. A single file needs no check here: it runs from a sealed copy.
    async fn run_attested(&self, tool: &ToolProvider, job: Job, ctx: &CallContext) -> io::Result<Ended> {
        let Some(custody) = ctx.custody.clone().filter(|_| tool.package.is_some()) else {
            return self.run(job, ctx).await;
        };
        let changed = || io::Error::other("its files are changing, and attestation is required");
        let since = settled(&custody).await.ok_or_else(changed)?;
        let ended = self.run(job, ctx).await?;
        if has_held(&custody, since).await { Ok(ended) } else { Err(changed()) }
    }

    async fn run(&self, job: Job, ctx: &CallContext) -> io::Result<Ended> {
        self.instance.watch_over_children();
        let mut running = self.runners.run(job)?;
        let cause = tokio::select! {
            biased;
            ended = &mut running => return ended,
            () = ctx.scope.cancellation.cancelled() => Cause::Cancelled,
            // Once the program has started, its thread enforces the deadline.
            () = tokio::time::sleep_until(ctx.deadline), if running.is_queued() => Cause::Deadline,
        };
        if running.withdraw() {
            return Ok(Ended::never(cause));
        }
        if cause == Cause::Cancelled {
            running.cancel();
        }
        running.await
    }
}

/// How often the files of an attested package are checked until they are settled, and the pause between
/// checks.
const LOOKS: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);

/// Returns a moment at which the files match the attestation, and so long after their last change that
/// any later change is visible in the times of the files. `None` if they keep changing.
async fn settled(custody: &Custody) -> Option<SystemTime> {
    for _ in 0..LOOKS {
        let now = SystemTime::now();
        if has_held(custody, now).await {
            return Some(now);
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    None
}

/// Returns whether the files have matched the attestation ever since `since`.
async fn has_held(custody: &Custody, since: SystemTime) -> bool {
    let custody = custody.clone();
    // The check examines files.
    tokio::task::spawn_blocking(move || custody.has_held_since(since)).await.unwrap_or(false)
}

/// Returns the trace that the call belongs to, if it is well-formed. The caller chooses its text, and
/// not every text can be in an environment.
fn traceparent(ctx: &CallContext) -> Option<&str> {
    let is_plain = |text: &&str| text.len() <= 256 && text.bytes().all(|byte| byte.is_ascii_graphic());
    ctx.scope.traceparent.as_deref().filter(is_plain)
}

/// Returns the environment variables of every process of a tool.
fn variables(name: &str, instance: &Instance) -> [(&'static str, OsString); 2] {
    [("ORLA_TOOL", OsString::from(name)), (INSTANCE, OsString::from(instance.mark()))]
}

/// Returns the process to prestart for a tool that is served as `name`; `None` if it declares no
/// `prestart`.
pub fn prestarted(tool: &ToolProvider, name: &str, instance: &Instance) -> Option<Wanted> {
    (tool.prestart > 0).then(|| Wanted {
        program: Arc::clone(&tool.program),
        args: tool.args.iter().map(OsString::from).collect(),
        env: variables(name, instance).to_vec(),
        count: tool.prestart,
    })
}

#[async_trait]
impl CapabilityExecutor for ToolExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<ToolProvider>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let began = Instant::now();
        let tool: &ToolProvider = provider.settings()?;
        let arguments = mapped(tool, inputs, ctx)?;
        let size: usize = arguments.argv.iter().map(String::len).sum();
        let context = Context {
            name: &ctx.name,
            call_id: &ctx.call_id,
            timeout: ctx.timeout,
            form: tool.form,
            has_schema: tool.has_output_schema,
            sandbox: tool.program.sandbox().map(|sandbox| &**sandbox),
        };
        let args = arguments.argv.into_iter().map(OsString::from).collect();
        let process = self
            .process(tool, args, ctx)
            .map_err(|failure| result::of_start_failure(&context, &failure, None))?;
        let job = Job {
            process,
            stdin: arguments.stdin,
            deadline: ctx.deadline.into_std(),
            limits: tool.limits,
            stderr: Some(Box::new(Filter::new(ctx.scope.notices.clone()))),
        };
        let mut span =
            ctx.scope.notices.begin_span(SpanKind::Process, || file_name(tool.program.path()));
        let ran = self.run_attested(tool, job, ctx).await;
        if let Ok(Ended { status: Status::Exited(status), .. }) = &ran {
            span.set_code(signal::exit_code(*status));
        }
        drop(span);
        match ran {
            Ok(mut ended) => {
                // The duration counts from the arrival of the call, as its timeout does, not from the
                // start of the process.
                ended.duration = began.elapsed();
                // `env` reports a missing interpreter with this code, after a successful start.
                if ended.cause == Cause::Itself
                    && result::exit_code(ended.status) == NOT_FOUND
                    && let Some(failure) = start_failure::explain_env(tool.program.path())
                {
                    return Err(result::of_start_failure(&context, &failure, Some(&ended)));
                }
                result::of_ended(&context, ended)
            }
            Err(err) if child::is(&err, Errno::TOOBIG) => Err(invalid(
                ctx,
                vec![Violation {
                    path: "input".to_owned(),
                    expected: "arguments that fit on a command line (larger text goes in `stdin`)"
                        .to_owned(),
                    got: format!("{size} bytes"),
                }],
            )),
            Err(err) => {
                let failure = start_failure::explain(tool.program.path(), &err);
                Err(result::of_start_failure(&context, &failure, None))
            }
        }
    }

    fn check_input(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<()> {
        mapped(provider.settings()?, inputs, ctx).map(drop)
    }

    fn status(&self, provider: &ProviderType) -> ProviderStatus {
        let mut status = ProviderStatus::default();
        if let Ok(tool) = provider.settings::<ToolProvider>() {
            let source = tool.package().filter(|_| tool.is_capsule).unwrap_or(tool.path());
            status.source = Some(source.to_string_lossy().into_owned());
            status.interpreter.clone_from(&tool.interpreter);
            let sandbox = tool.program.sandbox();
            status.sandbox =
                Some(sandbox.map_or_else(SandboxStatus::unconfined, |sandbox| sandbox.status()));
        }
        status
    }
}

/// Returns the file name of a program.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the arguments of a call as the tool gets them.
fn mapped(tool: &ToolProvider, inputs: &Payload, ctx: &CallContext) -> RuntimeResult<arguments::Mapped> {
    let json = inputs.json()?;
    let mapped = if tool.prestart > 0 {
        arguments::line_with_meta(json.as_str(), &ctx.call_id, traceparent(ctx))
            .map(|stdin| arguments::Mapped { argv: tool.args.clone(), stdin })
    } else {
        // A tool that answers in JSON reads JSON.
        arguments::map(json.as_str(), &tool.args, tool.form != OutputForm::Text)
    };
    mapped.map_err(|violations| invalid(ctx, violations))
}

fn invalid(ctx: &CallContext, violations: Vec<Violation>) -> RuntimeError {
    RuntimeError::InvalidInput { id: ctx.name.to_string(), violations }
}

#[cfg(test)]
mod tests;
