//! One built-in as data: its name, parameters and result, and the function itself.

use rtfs::json::push_string;
use rtfs::{Map, Value};

use crate::arguments::Arguments;
use crate::error::BuiltinError;
use crate::limits::{Budget, depth_fits};

/// One built-in capability.
#[derive(Debug)]
#[non_exhaustive]
pub struct Builtin {
    /// The id, `GROUP.NAME`, such as `math.add`.
    pub name: &'static str,
    /// The name for users.
    pub title: &'static str,
    /// The description, in words that help a model choose.
    pub description: &'static str,
    /// The parameters, in the order of positional arguments.
    pub parameters: &'static [Parameter],
    /// The members of the JSON Schema of its result, such as `"type":"number"`.
    pub(crate) output: &'static str,
    /// Calls with their results. A test checks each of them.
    pub examples: &'static [Example],
    pub(crate) run: fn(&Arguments<'_>) -> Result<Value, BuiltinError>,
}

/// A named argument of a built-in.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// The meaning, with its unit.
    pub description: &'static str,
    /// Whether it is required.
    pub required: bool,
    /// The JSON text of its default value, if it has one.
    pub default: Option<&'static str>,
    /// The members of its JSON Schema.
    pub(crate) schema: &'static str,
}

/// A call of a built-in and its result, both as JSON text.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Example {
    /// The arguments, an object.
    pub input: &'static str,
    /// The result.
    pub output: &'static str,
}

impl Builtin {
    /// Calls it with a map of named arguments.
    ///
    /// # Errors
    /// An argument is missing, unknown or wrong, the function has no value for them, or a bound
    /// (see the crate's documentation) is exceeded.
    pub fn call(&self, input: &Value) -> Result<Value, BuiltinError> {
        let empty = Map::new();
        let map = match input {
            Value::Map(map) => map,
            Value::Nil => &empty,
            other => return Err(BuiltinError::argument("input", "a map of named arguments", other)),
        };
        depth_fits(input)?;
        Budget::new().weigh(input)?;
        (self.run)(&Arguments::new(map, self.parameters)?)
    }

    /// Returns the part of its name before the point.
    pub fn group(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(group, _)| group)
    }

    /// Returns the JSON Schema of its input: an object with a described property for each parameter.
    pub fn input_schema(&self) -> String {
        let mut out = String::from(r#"{"type":"object","properties":{"#);
        for (i, parameter) in self.parameters.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            push_string(&mut out, parameter.name);
            out.push_str(":{");
            if !parameter.schema.is_empty() {
                out.push_str(parameter.schema);
                out.push(',');
            }
            out.push_str(r#""description":"#);
            push_string(&mut out, parameter.description);
            if let Some(default) = parameter.default {
                out.push_str(r#","default":"#);
                out.push_str(default);
            }
            out.push('}');
        }
        out.push('}');
        let required = self.parameters.iter().filter(|parameter| parameter.required);
        for (i, parameter) in required.enumerate() {
            out.push_str(if i == 0 { r#","required":["# } else { "," });
            push_string(&mut out, parameter.name);
        }
        if self.parameters.iter().any(|parameter| parameter.required) {
            out.push(']');
        }
        out.push_str(r#","additionalProperties":false}"#);
        out
    }

    /// Returns the JSON Schema of its result.
    pub fn output_schema(&self) -> String {
        format!("{{{}}}", self.output)
    }
}

/// Returns a required argument.
pub(crate) const fn required(
    name: &'static str,
    schema: &'static str,
    description: &'static str,
) -> Parameter {
    Parameter { name, description, required: true, default: None, schema }
}

/// Returns an argument that may be left out.
pub(crate) const fn optional(
    name: &'static str,
    schema: &'static str,
    description: &'static str,
) -> Parameter {
    Parameter { name, description, required: false, default: None, schema }
}

/// Returns an argument with a default value, a JSON text.
pub(crate) const fn defaulted(
    name: &'static str,
    schema: &'static str,
    default: &'static str,
    description: &'static str,
) -> Parameter {
    Parameter { name, description, required: false, default: Some(default), schema }
}

pub(crate) const fn example(input: &'static str, output: &'static str) -> Example {
    Example { input, output }
}
