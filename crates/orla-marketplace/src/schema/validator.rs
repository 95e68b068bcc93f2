//! Checks data against a declared schema of any kind.

use std::sync::OnceLock;

use rtfs::{Checking, Definitions, Form, TypeExpr, Value};

use super::SchemaError;
use super::metered::time_left;
use super::validate::JsonValidator;
use crate::error::Violation;
use crate::json::{value_from_json, value_to_json};
use crate::payload::Payload;

/// The maximum cost of a quick check: bytes of the schema times bytes of the data.
const QUICK_CHECK: usize = 64 << 20;
/// The approximate size of a type in RTFS notation.
const TYPE_BYTES: usize = 1 << 10;

/// A schema that is ready to check data.
///
/// JSON Schema is enforced on JSON. A type in RTFS notation is enforced on values, and the JSON Schemas inside it
/// on their JSON.
#[derive(Debug)]
pub struct Validator {
    schema: TypeExpr,
    /// The compiled schema, created on first use, or earlier.
    compiled: OnceLock<Result<Compiled, SchemaError>>,
}

#[derive(Debug)]
struct Compiled {
    /// The type, unless it is only JSON Schema.
    ty: Option<TypeExpr>,
    /// The JSON Schema, if there is one.
    json: Option<JsonValidator>,
}

impl Validator {
    /// Prepares a type.
    ///
    /// # Errors
    /// The JSON Schema is invalid, refers to something outside of itself, or has regular expressions that need
    /// more than linear time; or a type has such an expression or an undefined name.
    pub fn compile(ty: &TypeExpr) -> Result<Self, SchemaError> {
        Ok(Self { schema: ty.clone(), compiled: Ok(Compiled::of(ty)?).into() })
    }

    /// Creates a validator that compiles its type when the first data is checked. It is used for
    /// built-in types, which are known to be valid. If the type is invalid, no data matches it.
    pub(crate) fn deferred(ty: &TypeExpr) -> Self {
        Self { schema: ty.clone(), compiled: OnceLock::new() }
    }

    /// Returns whether the type was compiled successfully.
    pub(crate) fn is_good(&self) -> bool {
        matches!(self.compiled.get(), Some(Ok(_)))
    }

    /// Returns whether a check of a payload may take long: its size times that of the schema is large.
    pub(crate) fn may_take_long(&self, payload: &Payload) -> bool {
        let (schema, data) = match self.schema.json_schema() {
            // The check needs the text anyway.
            Some(schema) => (schema.len(), payload.json().map_or(0, |text| text.as_str().len())),
            None => (TYPE_BYTES, payload.text_bytes()),
        };
        schema.saturating_mul(data) > QUICK_CHECK
    }

    /// Returns the cost of its regular expressions, in states of their automata; zero until the type is
    /// compiled.
    pub(crate) fn pattern_cost(&self) -> u64 {
        let compiled = self.compiled.get().and_then(|compiled| compiled.as_ref().ok());
        compiled.and_then(|compiled| compiled.json.as_ref()).map_or(0, JsonValidator::pattern_cost)
    }

    fn compiled(&self, root: &str) -> Result<&Compiled, Vec<Violation>> {
        let compiled = self.compiled.get_or_init(|| Compiled::of(&self.schema));
        compiled.as_ref().map_err(|error| {
            let expected = "a schema that can be enforced".to_owned();
            vec![Violation { path: root.to_owned(), expected, got: error.to_string() }]
        })
    }

    /// Checks JSON text. `root` is the beginning of the paths, such as `input`.
    ///
    /// # Errors
    /// All violations (up to 1,000) in the order of the schema. One of them is text that is not JSON or cannot be
    /// checked: for JSON Schema data nested deeper than 127 levels, for types a repeated key, for both a number
    /// beyond the largest float.
    pub fn check(&self, json_text: &str, root: &str) -> Result<(), Vec<Violation>> {
        let compiled = self.compiled(root)?;
        if let Some(ty) = &compiled.ty {
            let value =
                value_from_json(json_text).map_err(|error| vec![Violation::unreadable(&error, root)])?;
            of_type(ty, &value, Form::Json, root)?;
        }
        compiled.json.as_ref().map_or(Ok(()), |json| json.check(json_text, root))
    }

    /// Checks an RTFS value.
    ///
    /// # Errors
    /// As [`check`](Self::check). For JSON Schema, a value that has no JSON is a violation, too.
    pub fn check_value(&self, value: &Value, root: &str) -> Result<(), Vec<Violation>> {
        let compiled = self.compiled(root)?;
        if let Some(ty) = &compiled.ty {
            of_type(ty, value, Form::Value, root)?;
        }
        let Some(json) = &compiled.json else { return Ok(()) };
        let text = value_to_json(value).map_err(|error| vec![Violation::unreadable(&error, root)])?;
        json.check(&text, root)
    }

    /// Checks a payload in its original form, and converts it only if the other form is needed.
    ///
    /// # Errors
    /// As [`check`](Self::check) and [`check_value`](Self::check_value).
    pub fn check_payload(&self, payload: &Payload, root: &str) -> Result<(), Vec<Violation>> {
        let form = if payload.came_as_json() { Form::Json } else { Form::Value };
        let compiled = self.compiled(root)?;
        if let Some(ty) = &compiled.ty {
            match payload.value() {
                Ok(value) => of_type(ty, value, form, root)?,
                Err(_) => return self.check(payload.json().map_or("null", |json| json.as_str()), root),
            }
        }
        let Some(json) = &compiled.json else { return Ok(()) };
        // Either form is created only if it is needed.
        if let Ok(text) = payload.json() {
            return json.check(text.as_str(), root);
        }
        payload.value().map_or(Ok(()), |value| self.check_value(value, root))
    }
}

impl Compiled {
    fn of(ty: &TypeExpr) -> Result<Self, SchemaError> {
        if ty.json_schema().is_some() {
            return Ok(Self { ty: None, json: Some(JsonValidator::compile(ty)?) });
        }
        ty.verify(&Definitions::new())
            .map_err(|problem| SchemaError { path: String::new(), problem })?;
        let json = has_json_schema(ty).then(|| JsonValidator::compile(ty));
        Ok(Self { ty: Some(ty.clone()), json: json.transpose()? })
    }
}

fn of_type(ty: &TypeExpr, value: &Value, form: Form, root: &str) -> Result<(), Vec<Violation>> {
    let checking = Checking { form, ..Checking::default() };
    // The default is about one second.
    let max_steps = time_left().map_or(checking.max_steps, |left| {
        let part = left.as_micros().min(1_000_000) as u64;
        checking.max_steps / 1_000_000 * part
    });
    let checking = Checking { max_steps, ..checking };
    checking.check(ty, value, root).map_err(|violations| {
        let ours = violations.into_iter();
        ours.map(|rtfs::Violation { path, expected, got }| Violation { path, expected, got }).collect()
    })
}

/// Returns whether a type contains JSON Schema.
fn has_json_schema(ty: &TypeExpr) -> bool {
    let in_names = |definitions: &Definitions| definitions.iter().any(|(_, ty)| has_json_schema(ty));
    match ty {
        TypeExpr::JsonSchema { .. } => true,
        TypeExpr::Defined { definitions, .. } if in_names(definitions) => true,
        ty => ty.parts().into_iter().any(has_json_schema),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::payload::JsonText;
    use crate::schema::{schema_from_declaration, type_from_json_schema};

    fn texts(checked: Result<(), Vec<Violation>>) -> Vec<String> {
        checked.err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_type_in_rtfs_notation_is_enforced_in_full_and_explained_in_words() {
        let declared =
            json!("[:map {:city :string, :at :instant?, :email [:and :string [:is-email]] ?}]");
        let validator = Validator::compile(&schema_from_declaration(&declared).unwrap()).unwrap();
        let cases: &[(&str, &[&str])] = &[
            (r#"{"city": "Paris"}"#, &[]),
            (r#"{"city": "Paris", "at": "2026-11-20T10:00:00Z", "email": "a@b.c", "more": 1}"#, &[]),
            (r#"{"city": 7}"#, &["input.city: expected a string, got 7"]),
            (
                r#"{"at": "now", "email": "a"}"#,
                &[
                    r#"missing required property "city" (a string)"#,
                    r#"input.at: expected a date with a time or null, got "now""#,
                    r#"input.email: expected a string that is an email address, got "a""#,
                ],
            ),
            (
                r#"{"city": "a", "city": "b"}"#,
                &["input.city: expected JSON that can be checked, got a problem: this key comes twice"],
            ),
        ];
        for (json, expected) in cases {
            assert_eq!(texts(validator.check(json, "input")), *expected, "{json}");
            let payload = Payload::from_json(JsonText::parse(json.to_string()).unwrap());
            assert_eq!(texts(validator.check_payload(&payload, "input")), *expected, "{json}");
        }
    }

    #[test]
    fn a_value_is_checked_as_what_it_is_and_json_as_what_it_can_be() {
        let ty: TypeExpr = "[:enum :low :high]".parse().unwrap();
        let validator = Validator::compile(&ty).unwrap();
        assert_eq!(validator.check("\"low\"", "input"), Ok(()));
        assert_eq!(validator.check_value(&Value::keyword("low"), "input"), Ok(()));
        let violation = r#"input: expected one of :low, :high, got "low""#;
        assert_eq!(texts(validator.check_value(&"low".into(), "input")), [violation]);
        let payload = Payload::from_value("low".into());
        assert!(payload.json().is_ok()); // regardless of earlier conversions
        assert_eq!(texts(validator.check_payload(&payload, "input")), [violation]);
    }

    #[test]
    fn json_schema_inside_of_a_type_is_enforced_too() {
        let inner = type_from_json_schema(
            &json!({"type": "string", "contentEncoding": "base64", "if": {"maxLength": 3}, "then": {"const": "abc"}}),
        );
        let validator = Validator::compile(&TypeExpr::Vector(Box::new(inner))).unwrap();
        assert_eq!(texts(validator.check(r#"["abcd", "abc"]"#, "x")), [""; 0]);
        assert_eq!(
            texts(validator.check(r#"["abcd", "ab"]"#, "x")),
            [r#"x[1]: expected "abc", got "ab""#]
        );
        assert_eq!(texts(validator.check("[7]", "x")), ["x[0]: expected a string, got 7"]);
        let nan = Value::vector(vec!["abc".into(), f64::NAN.into()]).unwrap();
        assert_eq!(texts(validator.check_value(&nan, "x")), ["x[1]: expected a string, got ##NaN"]);
    }

    #[test]
    fn a_value_without_json_breaks_every_json_schema() {
        let validator = Validator::compile(&type_from_json_schema(&json!({}))).unwrap();
        let nan = Value::vector(vec![f64::NAN.into()]).unwrap();
        let text =
            "x[0]: expected JSON that can be checked, got a problem: ##NaN cannot be written as JSON";
        assert_eq!(texts(validator.check_value(&nan, "x")), [text]);
        assert_eq!(texts(validator.check_payload(&Payload::from_value(nan), "x")), [text]);
    }

    #[test]
    fn a_large_value_may_take_long_as_its_text_does() {
        let schema = json!({"type": "object", "description": "x".repeat(1000)});
        let validator = Validator::compile(&type_from_json_schema(&schema)).unwrap();
        let text = "x".repeat(QUICK_CHECK / 1000);
        let json = JsonText::of(text.as_str()).unwrap();
        assert!(validator.may_take_long(&Payload::from_json(json)));
        assert!(validator.may_take_long(&Payload::from_value(text.as_str().into())));
        assert!(!validator.may_take_long(&Payload::from_value("short".into())));
    }

    #[test]
    fn refuses_a_type_that_cannot_be_checked() {
        let cases = [("[:vector [:ref Tree]]", "expected the name of a type, got Tree, which none has")];
        for (notation, problem) in cases {
            let ty: TypeExpr = notation.parse().unwrap();
            assert_eq!(Validator::compile(&ty).unwrap_err().to_string(), problem);
        }
    }
}
