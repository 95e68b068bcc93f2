//! JSON text and RTFS values.
use rtfs::Value;
/// Placeholder error until the module is complete.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct JsonError(pub String);
/// JSON to value.
pub fn value_from_json(text: &str) -> Result<Value, JsonError> {
    Err(JsonError(text.len().to_string()))
}
/// Value to JSON.
pub fn value_to_json(value: &Value) -> Result<String, JsonError> {
    Err(JsonError(format!("{value:?}")))
}
