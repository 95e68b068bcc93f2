//! The built-in capabilities: trusted functions on values that cannot do I/O
//! (RTFS capability system §2.3).
//!
//! A [`Builtin`] is a total function `&Value → Result<Value>` with a name, a description and types. The
//! [`CapabilityRegistry`] finds it by its name. Nothing here knows the marketplace, a clock, a source of
//! randomness, a file or a socket; what a function needs of them is handed in.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

use rtfs::Value;

/// Finds and runs the built-in capabilities (RTFS capability system §2.3).
#[derive(Clone, Copy, Debug, Default)]
pub struct CapabilityRegistry;

/// One built-in capability.
#[derive(Debug)]
#[non_exhaustive]
pub struct Builtin {
    /// Its id, `GROUP.NAME`, such as `math.add`.
    pub name: &'static str,
    /// What it does, in words a model can choose by.
    pub description: &'static str,
    /// The JSON Schema of its input, an object.
    pub input_schema: &'static str,
    /// The JSON Schema of its output.
    pub output_schema: &'static str,
    run: fn(&Value) -> Result<Value, BuiltinError>,
}

/// Why a built-in gave no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BuiltinError {
    /// What is wrong with the input, as one sentence.
    pub message: String,
}

impl CapabilityRegistry {
    /// Every built-in, in the order of their names.
    pub fn builtins(&self) -> &'static [Builtin] {
        &[]
    }

    /// The built-in with this name.
    pub fn get(&self, name: &str) -> Option<&'static Builtin> {
        self.builtins().iter().find(|builtin| builtin.name == name)
    }
}

impl Builtin {
    /// Runs it.
    ///
    /// # Errors
    /// The input is not one that the function is defined for.
    pub fn call(&self, input: &Value) -> Result<Value, BuiltinError> {
        (self.run)(input)
    }
}
