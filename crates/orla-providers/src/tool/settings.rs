//! The settings of a simple tool.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use orla_marketplace::attestation::ContentSource;
use orla_marketplace::{CustomProvider, JsonText};
use orla_process::Limits;
use orla_process::child::Program;
use serde_json::json;

use super::metadata::OutputForm;

/// An executable file, and how to run it.
#[derive(Debug)]
pub struct ToolProvider {
    pub(crate) program: Arc<Program>,
    /// The interpreter, for users; `None` for a binary.
    pub(crate) interpreter: Option<String>,
    /// Arguments that precede those of the call.
    pub(crate) args: Vec<String>,
    pub(crate) form: OutputForm,
    pub(crate) has_output_schema: bool,
    pub(crate) limits: Limits,
    /// The number of processes that are started before a call.
    pub(crate) prestart: usize,
    /// The directory of the package that the program belongs to.
    pub(crate) package: Option<PathBuf>,
    /// The hash of the sidecar that declares the tool, if there is one.
    pub(crate) declaration: Option<Arc<str>>,
    /// Whether the package is a capsule that cannot be served.
    pub(crate) is_capsule: bool,
}

/// Returns the permission to run a program, which contains its absolute path.
pub(crate) fn requires(program: &Path) -> String {
    format!("exec:{}", program.display())
}

/// Words of which a script that reads standard input contains at least one, in any usual language.
const READS: [&str; 7] = ["stdin", "input", "read", "cat", "gets", "jq", "<>"];

impl ToolProvider {
    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.program.path()
    }

    /// Returns the program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the directory of the package that the program belongs to.
    pub fn package(&self) -> Option<&Path> {
        self.package.as_deref()
    }

    /// Returns the number of processes that are started before a call. If there are any, the arguments
    /// are passed on standard input only.
    pub fn prestart(&self) -> usize {
        self.prestart
    }

    /// Returns whether the program may read standard input. A script without a related word does not.
    pub fn may_read_input(&self) -> bool {
        self.program.script().is_none_or(|script| READS.iter().any(|word| script.contains(word)))
    }
}

impl CustomProvider for ToolProvider {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        if self.is_capsule { "capsule" } else { "tool" }
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

    fn declaration_hash(&self) -> Option<&str> {
        // The content of a package includes all of its files.
        self.declaration.as_deref().filter(|_| self.package.is_none())
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
        static ANY_OBJECT: LazyLock<Option<JsonText>> = LazyLock::new(|| {
            JsonText::of(&json!({"type": "object", "additionalProperties": true})).ok()
        });
        if self.prestart > 0 { ANY_OBJECT.clone() } else { ANY_ARGUMENTS.clone() }
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
        // The type of other output is known only if the tool declares a schema.
        (self.form == OutputForm::Text).then(|| STREAMS.clone()).flatten()
    }
}
