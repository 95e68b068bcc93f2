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
