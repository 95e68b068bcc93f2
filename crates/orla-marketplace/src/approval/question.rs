//! The question to the caller's own client: an elicitation (MCP 2025-11-25 and 2026-07-28, elicitation).

use rtfs::text::excerpt;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::client::{Client, INPUT_KEY};
use crate::payload::JsonText;

/// The maximum number of characters of an input that a question shows.
const SHOWN: usize = 4000;

/// Returns whether the client can be asked with a form. An elicitation capability that names no mode
/// means forms.
pub(super) fn can_be_asked(client: &dyn Client) -> bool {
    let capabilities: Json = serde_json::from_str(client.capabilities().as_str()).unwrap_or_default();
    let elicitation = capabilities.get("elicitation").and_then(Json::as_object);
    elicitation.is_some_and(|modes| modes.contains_key("form") || !modes.contains_key("url"))
}

/// Returns the sentence that asks for the approval of a call.
pub(super) fn sentence(capability: &str, caller: &str, input: &str) -> String {
    format!("{caller} wants to call {capability} with {}. Allow it?", excerpt(input, SHOWN))
}

/// Asks the client. `key` is the name of the question. It cannot be guessed, so no client can answer
/// before it is asked. Returns `None` if the client gives no answer.
pub(super) async fn ask(client: &dyn Client, key: &str, message: &str) -> Option<bool> {
    let form = json!({
        "mode": "form",
        "message": message,
        "requestedSchema": {
            "type": "object",
            "properties": {"approve": {
                "type": "boolean",
                "title": "Allow this call",
                "description": "The approval is for this one call with exactly this input.",
            }},
            "required": ["approve"],
        },
        "_meta": {INPUT_KEY: key},
    });
    let form = JsonText::of(&form).ok()?;
    let answer = client.request("elicitation/create", form).await.ok()?;
    Some(is_yes(answer.as_str()))
}

/// Returns whether an answer is an explicit approval.
fn is_yes(answer: &str) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Answer {
        action: String,
        content: Option<Json>,
    }
    let answer: Answer = serde_json::from_str(answer).unwrap_or_default();
    let content = answer.content.unwrap_or_default();
    answer.action == "accept" && content.get("approve") == Some(&Json::Bool(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_explicit_yes_is_one() {
        for (answer, expected) in [
            (r#"{"action":"accept","content":{"approve":true}}"#, true),
            (r#"{"action":"accept","content":{"approve":true,"more":1}}"#, true),
            (r#"{"action":"accept","content":{"approve":"true"}}"#, false),
            (r#"{"action":"accept","content":{"approve":false}}"#, false),
            (r#"{"action":"accept","content":{}}"#, false),
            (r#"{"action":"accept"}"#, false),
            (r#"{"action":"decline","content":{"approve":true}}"#, false),
            (r#"{"action":"cancel"}"#, false),
            (r#"{"content":{"approve":true}}"#, false),
            ("[]", false),
            ("true", false),
        ] {
            assert_eq!(is_yes(answer), expected, "{answer}");
        }
    }
}
