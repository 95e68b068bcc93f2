//! The types of arguments and results: members of a JSON Schema object.

pub(crate) const ANY: &str = "";
pub(crate) const BOOLEAN: &str = r#""type":"boolean""#;
pub(crate) const INTEGER: &str = r#""type":"integer""#;
pub(crate) const COUNT: &str = r#""type":"integer","minimum":0"#;
pub(crate) const NUMBER: &str = r#""type":"number""#;
pub(crate) const TEXT: &str = r#""type":"string""#;
pub(crate) const LIST: &str = r#""type":"array""#;
pub(crate) const NUMBERS: &str = r#""type":"array","items":{"type":"number"}"#;
pub(crate) const INTEGERS: &str = r#""type":"array","items":{"type":"integer"}"#;
pub(crate) const TEXTS: &str = r#""type":"array","items":{"type":"string"}"#;
pub(crate) const LISTS: &str = r#""type":"array","items":{"type":"array"}"#;
pub(crate) const OBJECT: &str = r#""type":"object""#;
pub(crate) const OBJECTS: &str = r#""type":"array","items":{"type":"object"}"#;
