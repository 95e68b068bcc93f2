//! The simple tool: an executable file as a capability (RFC 1).
//!
//! [`Loader`] makes capabilities of a directory; [`ToolExecutor`] runs their calls, one process each.
//! Both stand on the marketplace's public seam: a third party could have written them.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use orla_marketplace::attestation::{ContentSource, Custody};
use orla_marketplace::id::Pattern;
use orla_marketplace::{
    ANNOTATIONS, CallContext, CapabilityExecutor, CapabilityManifest, CustomProvider, JsonText, Outcome,
    Payload, ProviderStatus, ProviderType, Registration, RuntimeError, RuntimeResult, TITLE, Violation,
};
use rustix::io::Errno;
use serde_json::json;

use crate::arguments;
use crate::child::{self, NO_PYTHON_CACHE, Program};
use crate::discovery::{self, Described, DirectoryError, Finding, Found, ProgramFile, Scanner};
use crate::limits::{Limits, PoolLimits};
use crate::metadata::OutputForm;
use crate::reaper::{INSTANCE, Instance};
use crate::result::{self, Context};
use crate::runner::{Cause, Ended, Job, Runners};
use crate::start_failure::{self, NOT_FOUND};

/// The capabilities of a directory, and what there is to say about it.
#[derive(Debug)]
pub struct Loaded {
    /// One capability for each tool, in the order of their names.
    pub registrations: Vec<Registration>,
    /// Programs in RTFS, which are tools of another kind, in the order of their names.
    pub programs: Vec<ProgramFile>,
    /// Directories with a manifest of their own.
    pub packages: Vec<PathBuf>,
    /// What the owner of the directory should know.
    pub warnings: Vec<Finding>,
    /// What was declared and cannot be in force. The tools are unavailable.
    pub problems: Vec<Finding>,
    /// What is no tool, with the reason.
    pub skipped: Vec<Finding>,
}

/// Makes capabilities of directories, and remembers what it has read of them.
#[derive(Debug, Default)]
pub struct Loader {
    scanner: Scanner,
    /// The capabilities of the newest scan, and what they were made of.
    made: HashMap<PathBuf, Made>,
}

#[derive(Debug)]
struct Made {
    of: Arc<Described>,
    limits: Limits,
    pass_env: Vec<Pattern>,
    registration: Registration,
}

impl Loader {
    /// Makes capabilities of the executable files in `directory`. Each call of one of them is bounded
    /// by `limits`. `pass_env` has patterns of variables, by the name of the tool that gets them besides
    /// those of its own declaration. Blocks while it reads the directory; starts no process.
    ///
    /// # Errors
    /// The directory is there and cannot be used.
    pub fn load(
        &mut self,
        directory: &Path,
        limits: Limits,
        pass_env: &HashMap<String, Vec<Pattern>>,
    ) -> Result<Loaded, DirectoryError> {
        let found = self.scanner.scan(directory)?;
        let mut registrations = Vec::with_capacity(found.tools.len());
        let mut before = std::mem::take(&mut self.made);
        for tool in found.tools {
            let (path, read) = (tool.path.clone(), Arc::clone(&tool.read));
            let pass_env = pass_env.get(&tool.name).cloned().unwrap_or_default();
            let same = before.remove(&path).filter(|made| {
                let manifest = &made.registration.manifest;
                let same_rules = made.limits == limits && made.pass_env == pass_env;
                Arc::ptr_eq(&made.of, &read) && same_rules && manifest.id == tool.name
            });
            // One provider as long as the file is the same: so the catalogue knows that nothing changed.
            let made = match same {
                Some(made) => made,
                None => match registration(tool, limits, &pass_env) {
                    Ok(registration) => Made { of: read, limits, pass_env, registration },
                    Err(err) => return Err(DirectoryError { path, reason: discovery::reason(&err) }),
                },
            };
            registrations.push(made.registration.clone());
            self.made.insert(path, made);
        }
        Ok(Loaded {
            registrations,
            programs: found.programs,
            packages: found.packages,
            warnings: found.warnings,
            problems: found.problems,
            skipped: found.skipped,
        })
    }
}

fn registration(tool: Found, limits: Limits, pass_env: &[Pattern]) -> io::Result<Registration> {
    let mut metadata = tool.metadata;
    metadata.pass_env.extend_from_slice(pass_env);
    let provider = ToolProvider {
        program: Arc::new(Program::new(&tool.path)?.with_env(Vec::new(), metadata.pass_env)),
        interpreter: tool.interpreter,
        args: metadata.args,
        form: metadata.output.unwrap_or_default(),
        has_output_schema: metadata.output_schema.is_some(),
        limits,
        package: None,
    };
    let mut manifest =
        CapabilityManifest::new(tool.name, tool.description, ProviderType::Custom(Arc::new(provider)));
    manifest.input_schema = metadata.input_schema;
    manifest.output_schema = metadata.output_schema;
    manifest.permissions = metadata.permissions;
    if let Some(title) = metadata.title {
        manifest.metadata.insert(TITLE.to_owned(), title);
    }
    if let Some(annotations) = metadata.annotations {
        manifest.metadata.insert(ANNOTATIONS.to_owned(), annotations.to_string());
    }
    let mut registration = Registration::from(manifest);
    registration.policy.timeout = metadata.timeout;
    if let Some(fault) = tool.fault {
        registration.policy = registration.policy.unavailable(fault);
    }
    Ok(registration)
}

/// An executable file, and how to run it.
#[derive(Debug)]
pub struct ToolProvider {
    pub(crate) program: Arc<Program>,
    /// What runs it, for people; none for a binary.
    pub(crate) interpreter: Option<String>,
    /// Arguments that come before those of the call.
    pub(crate) args: Vec<String>,
    pub(crate) form: OutputForm,
    pub(crate) has_output_schema: bool,
    pub(crate) limits: Limits,
    /// The directory of the package that it is the program of.
    pub(crate) package: Option<PathBuf>,
}

/// The permission to run a program, which is named by its absolute path.
pub(crate) fn requires(program: &Path) -> String {
    format!("exec:{}", program.display())
}

impl ToolProvider {
    /// The file.
    pub fn path(&self) -> &Path {
        self.program.path()
    }

    /// What runs.
    pub fn program(&self) -> &Program {
        &self.program
    }
}

impl CustomProvider for ToolProvider {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        "tool"
    }

    fn requires(&self) -> Vec<String> {
        vec![requires(self.path())]
    }

    fn content(&self) -> ContentSource {
        match &self.package {
            Some(directory) => ContentSource::Directory(directory.clone()),
            None => ContentSource::File(self.path().to_owned()),
        }
    }

    fn advertised_input(&self) -> Option<JsonText> {
        static ANY_ARGUMENTS: LazyLock<Option<JsonText>> = LazyLock::new(|| {
            JsonText::of(&json!({
                "type": "object",
                "properties": {
                    "args": {
                        "type": "array",
                        "items": { "type": "string" },
                        "description": "Arguments appended to the command line as they are",
                    },
                    "stdin": { "type": "string", "description": "Text piped to standard input" },
                },
                "additionalProperties": true,
            }))
            .ok()
        });
        ANY_ARGUMENTS.clone()
    }

    fn advertised_output(&self) -> Option<JsonText> {
        static STREAMS: LazyLock<Option<JsonText>> = LazyLock::new(|| {
            JsonText::of(&json!({
                "type": "object",
                "properties": {
                    "stdout": { "type": "string" },
                    "stderr": { "type": "string" },
                    "exit_code": { "type": "integer" },
                },
                "required": ["stdout", "stderr", "exit_code"],
            }))
            .ok()
        });
        // What else a tool writes is known only where it declares a schema.
        (self.form == OutputForm::Text).then(|| STREAMS.clone()).flatten()
    }
}

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
            notices: ctx.scope.notices.clone(),
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
