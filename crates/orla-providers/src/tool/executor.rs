//! Runs simple tools: one process for each call.

use std::any::TypeId;
use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use orla_marketplace::attestation::Custody;
use orla_marketplace::{
    CallContext, CapabilityExecutor, Outcome, Payload, ProviderStatus, ProviderType, RuntimeError,
    RuntimeResult, Violation,
};
use orla_process::child::{self, NO_PYTHON_CACHE};
use orla_process::reaper::INSTANCE;
use orla_process::runner::{Cause, Ended, Job, Runners};
use orla_process::start_failure::{self, NOT_FOUND};
use orla_process::{Instance, PoolLimits};
use rustix::io::Errno;

use super::arguments;
use super::directives::Filter;
use super::result::{self, Context};
use super::settings::ToolProvider;

/// Runs the calls of [`ToolProvider`]s.
#[derive(Debug)]
pub struct ToolExecutor {
    runners: Arc<Runners>,
    instance: Arc<Instance>,
}

impl ToolExecutor {
    /// An executor for the tools of `instance`.
    pub fn new(instance: Arc<Instance>, limits: PoolLimits) -> Self {
        Self { runners: Runners::new(limits), instance }
    }

    fn job(&self, tool: &ToolProvider, arguments: arguments::Mapped, ctx: &CallContext) -> Job {
        let attested = ctx.custody.as_ref().and_then(Custody::required).cloned();
        let mut env = vec![
            ("ORLA_TOOL", OsString::from(&*ctx.name)),
            ("ORLA_CALL_ID", OsString::from(&*ctx.call_id)),
            (INSTANCE, OsString::from(self.instance.mark())),
        ];
        if attested.is_some() && tool.package.is_some() {
            let (name, value) = NO_PYTHON_CACHE;
            env.push((name, value.into()));
        }
        // It is the caller's text, and not every text can be in an environment.
        if let Some(traceparent) = ctx.scope.traceparent.as_ref().filter(|text| is_plain(text)) {
            env.push(("TRACEPARENT", OsString::from(&**traceparent)));
        }
        Job {
            program: Arc::clone(&tool.program),
            args: arguments.argv.into_iter().map(OsString::from).collect(),
            attested: attested.filter(|_| tool.package.is_none()),
            environment: self.instance.environment(),
            env,
            stdin: arguments.stdin,
            deadline: ctx.deadline.into_std(),
            limits: tool.limits,
            stderr: Some(Box::new(Filter::new(ctx.scope.notices.clone()))),
        }
    }

    /// Runs a program. Of a package that has to be attested, no file may change from before the start to the end; the
    /// job of a single file sees to that by itself.
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
            // Once it is started, its thread minds the time.
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

/// How often the files of an attested package are looked at until they are settled, and how long it waits between.
const LOOKS: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);

/// A time at which the files of a package are what was attested, and far enough from their last change that the
/// next one can be told from it.
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

/// Whether what runs has been what was attested, from `since` on.
async fn has_held(custody: &Custody, since: SystemTime) -> bool {
    let custody = custody.clone();
    // It looks at files.
    tokio::task::spawn_blocking(move || custody.has_held_since(since)).await.unwrap_or(false)
}

/// Whether a text has the form of a trace context: short, and without what no variable can hold.
fn is_plain(traceparent: &str) -> bool {
    traceparent.len() <= 256 && traceparent.bytes().all(|byte| byte.is_ascii_graphic())
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
        let refused = |violations| RuntimeError::InvalidInput { id: ctx.name.to_string(), violations };
        let arguments = arguments::map(inputs.json()?.as_str(), &tool.args).map_err(refused)?;
        let size: usize = arguments.argv.iter().map(String::len).sum();
        let context = Context {
            name: &ctx.name,
            call_id: &ctx.call_id,
            timeout: ctx.timeout,
            form: tool.form,
            has_schema: tool.has_output_schema,
        };
        match self.run_attested(tool, self.job(tool, arguments, ctx), ctx).await {
            Ok(mut ended) => {
                // The whole of it, which is what the timeout counts from.
                ended.duration = began.elapsed();
                // `env` reports a missing interpreter by this code, after a start that succeeded.
                if ended.cause == Cause::Itself
                    && result::exit_code(ended.status) == NOT_FOUND
                    && let Some(failure) = start_failure::explain_env(tool.program.path())
                {
                    return Err(result::of_start_failure(&context, &failure, Some(&ended)));
                }
                result::of_ended(&context, ended)
            }
            Err(err) if child::is(&err, Errno::TOOBIG) => Err(refused(vec![Violation {
                path: "input".to_owned(),
                expected: "arguments that fit on a command line (larger text goes in `stdin`)"
                    .to_owned(),
                got: format!("{size} bytes"),
            }])),
            Err(err) => {
                let failure = start_failure::explain(tool.program.path(), &err);
                Err(result::of_start_failure(&context, &failure, None))
            }
        }
    }

    fn status(&self, provider: &ProviderType) -> ProviderStatus {
        let mut status = ProviderStatus::default();
        if let Ok(tool) = provider.settings::<ToolProvider>() {
            status.source = Some(tool.program.path().to_string_lossy().into_owned());
            status.interpreter.clone_from(&tool.interpreter);
        }
        status
    }
}

#[cfg(test)]
mod tests;
