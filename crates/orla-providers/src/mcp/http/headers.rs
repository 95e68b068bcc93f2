//! The header fields of requests over HTTP. Pure.

use std::collections::HashMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use orla_marketplace::JsonText;
use orla_mcp::ParamHeader;
use orla_mcp::answer::ListedTool;
use orla_mcp::object::Object;
use reqwest::header::{HeaderName, HeaderValue};

pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(super) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub(super) const METHOD: HeaderName = HeaderName::from_static("mcp-method");
pub(super) const NAME: HeaderName = HeaderName::from_static("mcp-name");
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The arguments that header fields must repeat (`x-mcp-header`), by tool.
pub(super) type Repeated = HashMap<String, Vec<ParamHeader>>;

/// Returns the arguments of these tools that must be repeated.
pub(super) fn repeated(tools: &[ListedTool]) -> Repeated {
    let mut repeated = Repeated::new();
    for tool in tools {
        let found = tool.input_schema.as_ref().map(ParamHeader::of_schema).unwrap_or_default();
        if !found.is_empty() {
            repeated.insert(tool.name.clone(), found);
        }
    }
    repeated
}

/// Returns the header fields for these arguments.
pub(super) fn of_arguments(
    parameters: &[ParamHeader],
    arguments: &JsonText,
) -> Vec<(HeaderName, HeaderValue)> {
    let field = |parameter: &ParamHeader| {
        let value = parameter.value(arguments.as_str())?;
        Some((parameter.header.clone(), encoded(&value)))
    };
    parameters.iter().filter_map(field).collect()
}

/// Encodes a text as the value of a header field of MCP, such as `Mcp-Name`: in base64 if it is not
/// plain ASCII.
pub fn encoded(text: &str) -> HeaderValue {
    let has_margin = text.starts_with([' ', '\t']) || text.ends_with([' ', '\t']);
    let is_plain = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    let looks_encoded = text.starts_with("=?base64?") && text.ends_with("?=");
    let value = if is_plain && !has_margin && !looks_encoded {
        HeaderValue::from_str(text)
    } else {
        HeaderValue::from_str(&format!("=?base64?{}?=", BASE64_STANDARD.encode(text)))
    };
    // Both are printable ASCII.
    value.unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Returns the subject of a request: the value of `Mcp-Name`.
pub(super) fn name_of(method: &str, params: &JsonText) -> Option<String> {
    let member = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => "uri",
        _ => return None,
    };
    Object::parse(params.as_str())?.text(member)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> JsonText {
        JsonText::parse(text.to_owned()).unwrap()
    }

    #[test]
    fn a_text_is_encoded_where_it_has_to_be() {
        for (text, value) in [
            ("plain", "plain"),
            ("", ""),
            ("a b", "a b"),
            (" a", "=?base64?IGE=?="),
            ("ü", "=?base64?w7w=?="),
            ("a\nb", "=?base64?YQpi?="),
            ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
        ] {
            assert_eq!(encoded(text), value, "{text:?}");
        }
    }

    #[test]
    fn arguments_are_repeated_as_the_schema_says() {
        let schema = r#"{"properties":{"region":{"type":"string","x-mcp-header":"Region"},"at":{"properties":{"n":{"x-mcp-header":"N"}}},"odd":{"x-mcp-header":"not a token"},"x":{}}}"#;
        let tool = format!(r#"{{"name":"t","inputSchema":{schema}}}"#);
        let tools: Vec<ListedTool> = vec![serde_json::from_str(&tool).unwrap()];
        let repeated = repeated(&tools);
        let fields = |arguments: &str| {
            let fields = of_arguments(&repeated["t"], &json(arguments));
            let shown = fields.iter().map(|(name, value)| format!("{name}={}", value.to_str().unwrap()));
            shown.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            fields(r#"{"region":"a \"b\"","at":{"n":1.10},"odd":1}"#),
            "mcp-param-region=a \"b\" mcp-param-n=1.10"
        );
        assert_eq!(fields(r#"{"region":null,"at":{"n":true}}"#), "mcp-param-n=true");
        assert_eq!(fields(r#"{"region":["a"],"at":7}"#), "");
    }

    #[test]
    fn a_request_names_what_it_is_about() {
        assert_eq!(name_of("prompts/get", &json(r#"{"name":"p"}"#)).as_deref(), Some("p"));
        assert_eq!(name_of("resources/read", &json(r#"{"uri":"a:b"}"#)).as_deref(), Some("a:b"));
        assert_eq!(name_of("tools/list", &json("{}")), None);
    }
}
