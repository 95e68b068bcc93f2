//! What is declared of a simple tool.

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
    /// What runs it, for people; none for a binary.
    pub(crate) interpreter: Option<String>,
    /// Arguments that come before those of the call.
    pub(crate) args: Vec<String>,
    pub(crate) form: OutputForm,
    pub(crate) has_output_schema: bool,
    pub(crate) limits: Limits,
    /// How many processes wait for a call before it comes.
    pub(crate) prestart: usize,
    /// The directory of the package that it is the program of.
    pub(crate) package: Option<PathBuf>,
    /// Whether the package is a capsule that cannot be served.
    pub(crate) is_capsule: bool,
}

/// The permission to run a program, which is named by its absolute path.
pub(crate) fn requires(program: &Path) -> String {
    format!("exec:{}", program.display())
}

/// Words of which every script has one that reads standard input, in any usual language.
const READS: [&str; 7] = ["stdin", "input", "read", "cat", "gets", "jq", "<>"];

impl ToolProvider {
    /// The file.
    pub fn path(&self) -> &Path {
        self.program.path()
    }

    /// What runs.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The directory of the package that it is the program of.
    pub fn package(&self) -> Option<&Path> {
        self.package.as_deref()
    }

    /// How many processes wait for a call before it comes. If any do, the arguments go to standard input alone.
    pub fn prestart(&self) -> usize {
        self.prestart
    }

    /// Whether the program may read standard input: a script that says nothing of it does not.
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
        // What else a tool writes is known only where it declares a schema.
        (self.form == OutputForm::Text).then(|| STREAMS.clone()).flatten()
    }
}
