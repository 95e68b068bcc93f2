//! A file in RTFS as a capability: each call runs the file and then its `main` with the input.
//!
//! [`capability`] creates the capability from a text. The annotations of `main` are its schemas
//! (`signature`). Its description is the documentation of `main`, or else the comment at the top of the
//! file. The caller reads the files with their comments, and resolves imports.
//!
//! # Deliberately absent
//!
//! State between calls: each call begins with the definitions of the file.

mod signature;

use std::any::{Any, TypeId};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use rtfs::{Diagnostics, Modules, Options, Position, Program, Severity, Source, check, compile};

use super::tool::{failed, run_error, unreadable};
use super::{Job, run};
use crate::attestation::ContentSource;
use crate::call::CallContext;
use crate::error::{RuntimeError, RuntimeResult, Violation};
use crate::executor::{CapabilityExecutor, ProviderStatus};
use crate::json::value_to_json;
use crate::manifest::{CapabilityManifest, Registration};
use crate::marketplace::CapabilityMarketplace;
use crate::outcome::Outcome;
use crate::payload::Payload;
use crate::provider::{CustomProvider, ProviderType};
use signature::Signature;

/// The function that a call calls.
const MAIN: &str = "main";

/// The provider of a capability that is a file in RTFS.
pub struct ProgramFile {
    path: PathBuf,
    /// `None` if the text is not a program: the capability is then unavailable.
    program: Option<Arc<Program>>,
    /// Whether `main` takes the input. Otherwise it takes no argument.
    takes_input: bool,
    /// Whether it imports other files.
    imports: bool,
}

impl ProgramFile {
    /// Returns the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Debug for ProgramFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A mistake in a text and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The position in the text.
    pub at: Position,
    /// The mistake.
    pub message: String,
}

impl From<&rtfs::Diagnostic> for Fault {
    fn from(diagnostic: &rtfs::Diagnostic) -> Self {
        Self { at: diagnostic.position, message: diagnostic.message.clone() }
    }
}

/// A capability made from a file, and the problems of its program.
pub struct Made {
    /// The capability; `None` if the file defines no `main` and is a module for others. It is available if there
    /// is no problem.
    pub registration: Option<Registration>,
    /// All mistakes in the text.
    pub faults: Vec<Fault>,
}

/// Makes a capability from a file's text; `None` if the file defines no `main`, and so is a module for
/// others. `comment` is the comment at the top of the file.
pub fn capability(name: &str, path: &Path, text: &str, comment: Option<&str>, modules: Modules) -> Made {
    let mut made = compiled(name, path, text, comment, modules).unwrap_or_else(|faults| {
        let registration = text.contains(MAIN).then(|| unusable(name, path, comment));
        Made { registration, faults }
    });
    if let (Some(registration), Some(Fault { at, message })) =
        (&mut made.registration, made.faults.first())
    {
        let reason = format!("{}:{}:{}: {message}", path.display(), at.line, at.column);
        registration.policy = registration.policy.clone().unavailable(reason);
    }
    made
}

/// Returns the capability of a file that is not a program, or whose text is not known, with the comment
/// at its top. It cannot be called.
pub fn unusable(name: &str, path: &Path, comment: Option<&str>) -> Registration {
    let file = ProgramFile { path: path.to_owned(), program: None, takes_input: false, imports: false };
    let description = comment.map_or_else(|| made_description(path), str::to_owned);
    CapabilityManifest::new(name, description, ProviderType::Custom(Arc::new(file))).into()
}

fn made_description(path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    format!("Runs the program {}.", file.replace(char::is_control, "?"))
}

fn compiled(
    name: &str,
    path: &Path,
    text: &str,
    comment: Option<&str>,
    modules: Modules,
) -> Result<Made, Vec<Fault>> {
    let faults = |Diagnostics(all): Diagnostics| all.iter().map(Fault::from).collect::<Vec<_>>();
    let source = Source::new(path.to_string_lossy(), text);
    let options = Options { modules: Some(modules), ..Options::default() };
    let errors = || {
        let found = check(&source, &options, None).into_iter();
        found
            .filter(|found| found.severity == Severity::Error)
            .map(|found| Fault::from(&found))
            .collect()
    };
    let program = compile(&source, &options).map_err(|problems| {
        let all: Vec<Fault> = errors();
        if all.is_empty() { faults(problems) } else { all }
    })?;
    let found = errors();
    let Some(main) = program.globals().iter().find(|global| &*global.name == MAIN) else {
        return Ok(Made { registration: None, faults: found });
    };
    let doc = main.doc.as_deref().map(str::trim).filter(|doc| !doc.is_empty()).or(comment);
    let description = doc.map_or_else(|| made_description(path), str::to_owned);
    let forms = rtfs::read(&source).map_err(faults)?;
    let signature = Signature::of(MAIN, &forms)
        .map_err(|message| vec![Fault { at: place_of_main(&source), message }])?;
    let file = ProgramFile {
        path: path.to_owned(),
        program: Some(program),
        takes_input: signature.takes_input,
        imports: !rtfs::imports(&source).is_empty(),
    };
    let mut manifest = CapabilityManifest::new(name, description, ProviderType::Custom(Arc::new(file)));
    manifest.input_schema = signature.input;
    manifest.output_schema = signature.output;
    Ok(Made { registration: Some(Registration::from(manifest)), faults: found })
}

/// Returns where `main` is defined, if the text shows it.
fn place_of_main(source: &Source) -> Position {
    let text = source.text();
    let defined = text.match_indices(MAIN).find(|(at, _)| {
        let before = text[..*at].trim_end();
        before.len() < *at && (before.ends_with("(defn") || before.ends_with("(def"))
    });
    let at = defined.map_or(0, |(at, _)| at);
    source.position(u32::try_from(at).unwrap_or_default())
}

impl CustomProvider for ProgramFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        "rtfs"
    }

    fn is_internal(&self) -> bool {
        true
    }

    fn is_journaled(&self) -> bool {
        true
    }

    fn reaches_others(&self) -> bool {
        true
    }

    /// Returns an attestation of a file does not cover what the file imports.
    fn content(&self) -> ContentSource {
        if self.imports { ContentSource::Unknown } else { ContentSource::File(self.path.clone()) }
    }
}

/// Runs [`ProgramFile`]s against a marketplace, which it does not keep alive.
pub struct ProgramFileExecutor {
    marketplace: Weak<CapabilityMarketplace>,
}

impl ProgramFileExecutor {
    /// Returns an executor whose programs call the capabilities of this marketplace, within its limits.
    pub fn new(marketplace: &Arc<CapabilityMarketplace>) -> Self {
        Self { marketplace: Arc::downgrade(marketplace) }
    }
}

#[async_trait]
impl CapabilityExecutor for ProgramFileExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<ProgramFile>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let file: &ProgramFile = provider.settings()?;
        let market = self.marketplace.upgrade().ok_or_else(|| RuntimeError::Unavailable {
            id: ctx.name.to_string(),
            reason: "the marketplace is gone".to_owned(),
            source: None,
        })?;
        let program = file.program.clone().ok_or_else(|| RuntimeError::Unavailable {
            id: ctx.name.to_string(),
            reason: "the file is not a program".to_owned(),
            source: None,
        })?;
        let input = if file.takes_input {
            let input = inputs.value_or_violation().map_err(|violation| unreadable(ctx, violation))?;
            vec![input.clone()]
        } else {
            Vec::new()
        };
        let job = Job {
            then: Some((MAIN, input)),
            limits: market.snapshot().limits().programs,
            trace: ctx.scope.notices.trace().clone(),
            ..Job::new(program)
        };
        let value = run(&market, job, ctx).await.map_err(|error| match error.broken_result() {
            // The result of `main` is the output of the tool.
            Some(violations) => invalid_output(ctx, violations),
            None => run_error(ctx, &error),
        })?;
        // The error is reported here, because the code that converts to JSON knows no program.
        value_to_json(&value)
            .map_err(|err| failed(ctx, format!("the result cannot be given as JSON: {err}")))?;
        Ok(Outcome::from_value(value))
    }

    fn status(&self, provider: &ProviderType) -> ProviderStatus {
        let mut status = ProviderStatus::default();
        if let Ok(file) = provider.settings::<ProgramFile>() {
            status.source = Some(file.path.to_string_lossy().into_owned());
        }
        status
    }
}

/// Returns the error of a `main` whose result has the wrong type.
fn invalid_output(ctx: &CallContext, violations: Vec<rtfs::Violation>) -> RuntimeError {
    let violation = |rtfs::Violation { path, expected, got }| Violation {
        path: path.replacen("result", "output", 1),
        expected,
        got,
    };
    RuntimeError::InvalidOutput {
        id: ctx.name.to_string(),
        violations: violations.into_iter().map(violation).collect(),
        outcome: Box::default(),
    }
}

#[cfg(test)]
mod tests;
