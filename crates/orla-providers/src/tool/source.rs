//! The capabilities of a tools directory.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orla_marketplace::id::{Pattern, mcp_name};
use orla_marketplace::{CapabilityManifest, ProviderType, Redactor, Registration};
use orla_process::Limits;
use orla_process::child::Program;
use orla_process::confinement::{Declared, Sandbox, Sandboxes};
use orla_process::file::reason;

use super::discovery::{Described, DirectoryError, Finding, Found, ProgramFile, Scanner};
use super::metadata::Metadata;
use super::settings::ToolProvider;

/// The reason why a foreign tool does not run.
const FOREIGN_REFERENCE: &str =
    "it refers to a secret of yours in its header; packages name the settings that they need instead";

/// The capabilities of a directory, and the findings about it.
#[derive(Debug)]
pub struct Loaded {
    /// One capability for each tool, in the order of their names.
    pub registrations: Vec<Registration>,
    /// Programs in RTFS, in the order of their names.
    pub programs: Vec<ProgramFile>,
    /// Directories with their own manifest.
    pub packages: Vec<PathBuf>,
    /// Warnings for the owner of the directory.
    pub warnings: Vec<Finding>,
    /// Declarations that cannot be enforced. The tools are unavailable.
    pub problems: Vec<Finding>,
    /// Entries that are not tools, with the reason.
    pub skipped: Vec<Finding>,
}

/// Makes capabilities from directories, and caches what it has read of them.
#[derive(Debug, Default)]
pub struct Loader {
    scanner: Scanner,
    /// The capabilities of the newest scan, and the data that they were made from.
    made: HashMap<PathBuf, Made>,
}

/// The configuration's changes to a tool's own declaration.
#[derive(Clone, Default, PartialEq)]
pub struct Override {
    /// Patterns of variables that the tool gets besides those of its declaration.
    pub pass_env: Vec<Pattern>,
    /// Variables that the tool gets besides those of its declaration.
    pub env: Vec<(String, String)>,
    /// Hides the secrets of these variables in everything that the tool returns.
    pub redaction: Option<Arc<Redactor>>,
    /// The number of processes that are started before a call, instead of the declared one.
    pub prestart: Option<usize>,
    /// Permissions and limits besides those of the declaration.
    pub declared: Declared,
}

impl fmt::Debug for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Variables may contain keys.
        f.debug_struct("Override")
            .field("pass_env", &self.pass_env)
            .field("env", &names(&self.env))
            .field("prestart", &self.prestart)
            .field("declared", &self.declared)
            .finish_non_exhaustive()
    }
}

/// The environment and the arguments of a declaration, with secrets in place of the references to them.
#[derive(Clone, Default, PartialEq)]
pub struct Filled {
    /// The environment.
    pub env: Vec<(String, String)>,
    /// The arguments.
    pub args: Vec<String>,
    /// Hides the secrets that were filled in.
    pub redaction: Option<Arc<Redactor>>,
    /// The texts with a reference that has no value, with the reason.
    pub unfilled: Vec<(String, String)>,
    /// The reason why a reference has no value. The tool must not run then.
    pub problem: Option<String>,
}

impl fmt::Debug for Filled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments and variables may contain keys.
        f.debug_struct("Filled")
            .field("env", &names(&self.env))
            .field("args", &self.args.len())
            .field("problem", &self.problem)
            .finish_non_exhaustive()
    }
}

fn names(env: &[(String, String)]) -> Vec<&str> {
    env.iter().map(|(name, _)| name.as_str()).collect()
}

/// Fills in the references to secrets in the environment and the arguments that a file declares. The
/// program may be confined.
pub type Fill<'a> = dyn Fn(&Path, Option<&Sandbox>, Filled) -> Filled + 'a;

#[derive(Debug)]
struct Made {
    of: Arc<Described>,
    fault: Option<String>,
    limits: Limits,
    change: Override,
    filled: Filled,
    sandbox: Option<Arc<Sandbox>>,
    registration: Registration,
}

impl Loader {
    /// Makes capabilities from the executable files in `directory`. `limits` apply to each call.
    /// `changes` are by the names of tools, `sandboxes` confine the tools, and `fill` provides secrets.
    /// Blocks while it reads the directory; starts no tool.
    ///
    /// # Errors
    /// The directory is there and cannot be used.
    pub fn load(
        &mut self,
        directory: &Path,
        limits: Limits,
        changes: &HashMap<String, Override>,
        sandboxes: &Sandboxes,
        fill: &Fill<'_>,
    ) -> Result<Loaded, DirectoryError> {
        let mut found = self.scanner.scan(directory)?;
        let base = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        let mut registrations = Vec::with_capacity(found.tools.len());
        let mut before = std::mem::take(&mut self.made);
        for tool in found.tools {
            let (path, read) = (tool.path.clone(), Arc::clone(&tool.read));
            let fault = tool.fault.clone();
            let change = match changes.is_empty() {
                true => None,
                false => changes.get(&tool.name).or_else(|| changes.get(&mcp_name(&tool.name))),
            };
            let change = change.cloned().unwrap_or_default();
            let declared = tool.metadata.declared.changed_by(&change.declared);
            let sandbox = sandboxes.of(&declared, &base);
            let declared_texts = tool.metadata.texts();
            let mut filled = if declared_texts.refers_to_secrets() {
                fill(&path, sandbox.as_deref(), declared_texts)
            } else {
                declared_texts
            };
            let unfilled: Vec<Finding> =
                filled.unfilled.iter().map(|(text, why)| tool.finding_at(text, why)).collect();
            let sentences: Vec<String> = unfilled.iter().map(Finding::to_string).collect();
            filled.problem = (!sentences.is_empty()).then(|| sentences.join("; "));
            found.problems.extend(unfilled);
            let same = before.remove(&path).filter(|made| {
                let manifest = &made.registration.manifest;
                let same_rules = made.fault == tool.fault
                    && made.limits == limits
                    && made.change == change
                    && made.sandbox == sandbox
                    && made.filled == filled;
                Arc::ptr_eq(&made.of, &read) && same_rules && manifest.id == tool.name
            });
            // The provider is reused as long as the file is the same, so that the catalogue recognises
            // an unchanged tool.
            let made = match same {
                Some(made) => made,
                None => match registration(
                    tool,
                    limits,
                    &change,
                    filled.clone(),
                    declared,
                    sandbox.as_ref(),
                    Default::default(),
                ) {
                    Ok(registration) => {
                        Made { of: read, fault, limits, change, filled, sandbox, registration }
                    }
                    Err(err) => return Err(DirectoryError { path, reason: reason(&err) }),
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

/// A foreign tool, from a foreign directory.
#[derive(Debug)]
pub struct ForeignTool(Found);

/// Caches the capabilities of foreign tools, so that the catalogue recognises unchanged ones.
#[derive(Debug, Default)]
pub struct ForeignTools(HashMap<String, ForeignMade>);

/// A capability, and the data that it was made from. Foreign directories are named by their content, so
/// a path identifies a file's content.
#[derive(Debug)]
struct ForeignMade {
    path: PathBuf,
    limits: Limits,
    change: Override,
    declared: Declared,
    sandbox: Option<Arc<Sandbox>>,
    registration: Registration,
}

impl ForeignTools {
    /// Returns the capability with this id. It is the previous one if nothing has changed.
    ///
    /// # Errors
    /// There is no current directory.
    pub fn registration(
        &mut self,
        before: &mut Self,
        tool: ForeignTool,
        id: String,
        terms: ForeignTerms<'_>,
    ) -> io::Result<Registration> {
        let known = before.0.remove(&id);
        let made = tool.made(id.clone(), terms, known)?;
        let registration = made.registration.clone();
        self.0.insert(id, made);
        Ok(registration)
    }
}

/// The terms under which foreign tools are served.
#[derive(Clone, Copy, Debug)]
pub struct ForeignTerms<'a> {
    /// The tools' directory, which they may read.
    pub directory: &'a Path,
    /// The granted permissions, regardless of the tools' headers.
    pub permissions: &'a [String],
    /// The limits of each call.
    pub limits: Limits,
    /// The user's changes to individual tools, by their ids.
    pub changes: &'a HashMap<String, Override>,
    /// The sandboxes of the tools.
    pub sandboxes: &'a Sandboxes,
}

/// Returns the foreign tools in a directory, in the order of their names, and the problems there.
/// Programs in RTFS are left out.
///
/// # Errors
/// The directory cannot be used.
pub fn foreign(directory: &Path) -> Result<(Vec<ForeignTool>, Vec<Finding>), DirectoryError> {
    let found = Scanner::default().scan(directory)?;
    Ok((found.tools.into_iter().map(ForeignTool).collect(), found.problems))
}

impl ForeignTool {
    /// Returns the tool's name in its directory.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns what the tool requests: permissions, and variables as `env:PATTERN`.
    pub fn wants(&self) -> impl Iterator<Item = String> {
        self.0.metadata.declared.wanted(&self.0.metadata.pass_env)
    }

    fn made(
        mut self,
        id: String,
        terms: ForeignTerms<'_>,
        known: Option<ForeignMade>,
    ) -> io::Result<ForeignMade> {
        let change = terms.changes.get(&id).or_else(|| terms.changes.get(&mcp_name(&id)));
        let change = change.cloned().unwrap_or_default();
        let metadata = &mut self.0.metadata;
        metadata.pass_env.clear();
        metadata.prestart = None;
        let declared = Declared {
            permissions: Some(terms.permissions.to_vec()),
            limits: metadata.declared.limits.clone(),
            is_foreign: true,
            ..Declared::default()
        };
        let declared = declared.changed_by(&change.declared);
        let (limits, path) = (terms.limits, self.0.path.clone());
        let sandbox = terms.sandboxes.of(&declared, terms.directory);
        let is_same = |made: &ForeignMade| {
            (&made.path, made.limits, &made.change, &made.declared, &made.sandbox)
                == (&path, limits, &change, &declared, &sandbox)
        };
        if let Some(known) = known.filter(is_same) {
            return Ok(known);
        }
        self.0.name = id;
        let place = terms.directory.to_owned();
        let place = (vec![place.clone()], Some(place));
        let mut filled = self.0.metadata.texts();
        if filled.refers_to_secrets() {
            filled.problem = Some(FOREIGN_REFERENCE.to_owned());
        }
        let registration =
            registration(self.0, limits, &change, filled, declared.clone(), sandbox.as_ref(), place)?;
        Ok(ForeignMade { path, limits, change, declared, sandbox, registration })
    }
}

/// Returns an unavailable capability in place of the foreign tool `file`.
///
/// # Errors
/// There is no current directory.
pub fn unserved(id: String, file: &Path, directory: &Path, why: &str) -> io::Result<Registration> {
    let provider = ToolProvider {
        program: Arc::new(Program::new(file)?),
        interpreter: None,
        args: Default::default(),
        form: Default::default(),
        has_output_schema: false,
        limits: Limits::default(),
        prestart: 0,
        package: Some(directory.to_owned()),
        declaration: None,
        is_capsule: false,
    };
    let provider = ProviderType::Custom(Arc::new(provider));
    let manifest = CapabilityManifest::new(id, "A tool that cannot be served.".to_owned(), provider);
    let mut registration = Registration::from(manifest);
    registration.policy = registration.policy.unavailable(why);
    Ok(registration)
}

impl Found {
    /// Returns a finding about a text of its `env` or `args`.
    fn finding_at(&self, text: &str, message: &str) -> Finding {
        let mut known = self.metadata.references.iter();
        let at = known.find(|(known, _)| known == text).map(|(_, at)| *at);
        Finding { path: self.declared_in.clone(), at, message: message.to_owned() }
    }
}

impl Metadata {
    /// Returns the texts that may contain references to secrets.
    fn texts(&self) -> Filled {
        Filled { env: self.env.clone(), args: self.args.clone(), ..Filled::default() }
    }
}

impl Filled {
    fn refers_to_secrets(&self) -> bool {
        let mut texts = self.env.iter().map(|(_, value)| value).chain(&self.args);
        texts.any(|text| ["${secret:", "${file:", "${command:"].iter().any(|form| text.contains(form)))
    }
}

fn registration(
    tool: Found,
    limits: Limits,
    change: &Override,
    filled: Filled,
    declared: Declared,
    sandbox: Option<&Arc<Sandbox>>,
    (files, package): (Vec<PathBuf>, Option<PathBuf>),
) -> io::Result<Registration> {
    let mut metadata = tool.metadata;
    metadata.pass_env.extend_from_slice(&change.pass_env);
    let env = united(&filled.env, &change.env);
    let mut program = Program::new(&tool.path)?.with_env(env, std::mem::take(&mut metadata.pass_env));
    if let Some(sandbox) = sandbox {
        program = program.confined(Arc::clone(sandbox), files);
    }
    let provider = ToolProvider {
        program: Arc::new(program),
        interpreter: tool.interpreter,
        args: filled.args,
        form: metadata.output.unwrap_or_default(),
        has_output_schema: metadata.output_schema.is_some(),
        limits,
        prestart: change.prestart.or(metadata.prestart).unwrap_or_default(),
        package,
        declaration: tool.read.sidecar_hash.clone(),
        is_capsule: false,
    };
    let mut manifest =
        CapabilityManifest::new(tool.name, tool.description, ProviderType::Custom(Arc::new(provider)));
    manifest.permissions = declared.permissions.unwrap_or_default();
    let own = metadata.declared.limits.wall_or(metadata.timeout);
    metadata.complete(&mut manifest);
    let mut registration = Registration::from(manifest);
    registration.policy.timeout = change.declared.limits.wall.or(own);
    if let Some(Err(reason)) = sandbox.map(|sandbox| sandbox.available()) {
        registration.policy = registration.policy.unavailable(reason);
    }
    if let Some(fault) = tool.fault.or(filled.problem) {
        registration.policy = registration.policy.unavailable(fault);
    }
    registration.policy.redaction = Redactor::united(filled.redaction, change.redaction.as_ref());
    Ok(registration)
}

/// Returns the variables of a declaration, preceded by those of the configuration.
pub(crate) fn united(declared: &[(String, String)], own: &[(String, String)]) -> Vec<(String, String)> {
    let is_own = |name: &str| own.iter().any(|(known, _)| known == name);
    let declared = declared.iter().filter(|(name, _)| !is_own(name));
    declared.chain(own).cloned().collect()
}
