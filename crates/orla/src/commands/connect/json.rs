//! Sets one value in a JSON text, which may have comments, and leaves every other character unchanged.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstObjectProp, CstRootNode};
use serde_json::Value;

/// The JSON that editors accept in their settings, with comments and trailing commas.
const EDITORS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// Sets the member `key` of the object that is the member `below` of the root object. Objects that do
/// not exist are created. A new member is the first one, so that commas and comments after the last
/// member do not matter.
///
/// # Errors
///
/// Returns what is wrong with the text, with line and column.
pub(super) fn set(text: &str, below: &str, key: &str, value: &Value) -> Result<String, String> {
    let (mark, text) = match text.strip_prefix('\u{feff}') {
        Some(text) if !text.trim().is_empty() => ("\u{feff}", text),
        _ => ("", text.trim_start_matches('\u{feff}')),
    };
    let text = if text.trim().is_empty() { "{}\n" } else { text };
    let root = parse(text)?;
    let object = root.object_value().ok_or("1:1: expected an object")?;
    let servers = match last(&object, below) {
        Some(member) => member.object_value().ok_or_else(|| format!("{below} is not an object"))?,
        None => {
            let member = object.insert(0, below, CstInputValue::Object(Vec::new()));
            member.object_value_or_set()
        }
    };
    match last(&servers, key) {
        Some(member) => member.set_value(input(value)),
        None => drop(servers.insert(0, key, input(value))),
    }
    Ok(format!("{mark}{root}"))
}

/// Returns whether the object that is the member `below` of the root object has the member `key`.
pub(super) fn has(text: &str, below: &str, key: &str) -> bool {
    let member = |object: CstObject| last(&last(&object, below)?.object_value()?, key);
    parse(text).ok().and_then(|root| member(root.object_value()?)).is_some()
}

/// Returns the last member with this key, which takes effect in JavaScript.
fn last(object: &CstObject, key: &str) -> Option<CstObjectProp> {
    let named = |member: &CstObjectProp| {
        member.name().and_then(|name| name.decoded_value().ok()).is_some_and(|name| name == key)
    };
    object.properties().into_iter().rev().find(named)
}

fn parse(text: &str) -> Result<CstRootNode, String> {
    let text = text.trim_start_matches('\u{feff}');
    CstRootNode::parse(text, &EDITORS).map_err(|error| {
        format!("{}:{}: {}", error.line_display(), error.column_display(), error.kind())
    })
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(*value),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(items) => CstInputValue::Array(items.iter().map(input).collect()),
        Value::Object(members) => CstInputValue::Object(
            members.iter().map(|(key, value)| (key.clone(), input(value))).collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set_orla(text: &str) -> Result<String, String> {
        set(text, "mcpServers", "orla", &json!({"command": "/bin/orla"}))
    }

    #[test]
    fn an_empty_file_becomes_one_with_the_entry() {
        let expected =
            "{\n  \"mcpServers\": {\n    \"orla\": {\n      \"command\": \"/bin/orla\"\n    }\n  }\n}\n";
        for text in ["", " \n", "\u{feff}"] {
            assert_eq!(set_orla(text).unwrap(), expected);
        }
        assert_eq!(set_orla("{}\n").unwrap(), expected);
    }

    #[test]
    fn everything_else_stays_as_it_is() {
        let text = "// mine\n{\n\t\"theme\": \"dark\", // yes\n\t\"mcpServers\": {\n\t\t\"a\": {\"command\": \"x\"}, /* , */\n\t},\n}\n";
        let expected = "// mine\n{\n\t\"theme\": \"dark\", // yes\n\t\"mcpServers\": {\n\t\t\"orla\": {\n\t\t\t\"command\": \"/bin/orla\",\n\t\t},\n\t\t\"a\": {\"command\": \"x\"}, /* , */\n\t},\n}\n";
        assert_eq!(set_orla(text).unwrap(), expected);
    }

    #[test]
    fn an_entry_is_replaced_in_place() {
        let once = set_orla("{\"x\": [1, {\"y\": \"}\\\"\"}], \"mcpServers\": {\"orla\": {\"command\": \"old\"}, \"b\": 1}}").unwrap();
        assert_eq!(
            once,
            "{\"x\": [1, {\"y\": \"}\\\"\"}], \"mcpServers\": {\"orla\": {\n      \"command\": \"/bin/orla\"\n    }, \"b\": 1}}"
        );
        assert_eq!(set_orla(&once).unwrap(), once);
    }

    #[test]
    fn a_byte_order_mark_stays_and_the_last_of_equal_keys_counts() {
        let text = "\u{feff}{\"mcpServers\": {\"orla\": 1, \"orla\": 2}}";
        let edited = set_orla(text).unwrap();
        assert!(edited.starts_with("\u{feff}{\"mcpServers\": {\"orla\": 1, \"orla\": {"), "{edited}");
        assert!(has(text, "mcpServers", "orla") && !has(text, "mcpServers", "other"));
    }

    #[test]
    fn text_that_is_not_json_is_refused_with_its_place() {
        let cases = [
            ("[1]", "1:1: expected an object"),
            ("{\n \"a\" 1}", "2:6: Expected colon after the string or word in object property"),
            ("{\"a\": 1", "1:1: Unterminated object"),
            ("{} x", "1:4: Text cannot contain more than one JSON value"),
            ("{\"mcpServers\": 7}", "mcpServers is not an object"),
            ("{\"a\": tru}", "1:7: Unexpected token"),
            ("{\"a", "1:2: Unterminated string literal"),
            ("/* {}", "1:1: Unterminated comment block"),
        ];
        for (text, expected) in cases {
            assert_eq!(set_orla(text).unwrap_err(), expected, "{text}");
        }
        assert!(set_orla(&"{\"a\":".repeat(1000)).unwrap_err().ends_with("nesting depth exceeded"));
    }

    proptest::proptest! {
        #[test]
        fn the_result_has_the_entry_and_everything_before(
            keys in proptest::collection::btree_map("[a-z]{1,3}", "[a-z\"\\\\ {},]{0,5}", 0..4),
            wide in proptest::bool::ANY,
        ) {
            let old = json!({"mcpServers": keys, "other": [keys, 1, null]});
            let text = if wide { format!("{old:#}") } else { old.to_string() };
            let mut expected = old;
            expected["mcpServers"]["orla"] = json!({"command": "/bin/orla"});
            let new: Value = serde_json::from_str(&set_orla(&text).unwrap()).unwrap();
            proptest::prop_assert_eq!(new, expected);
        }
    }
}
