//! A prompt that is served, as the messages that a run begins with.

use genai::chat::{ChatMessage, ContentPart};
use orla_marketplace::{Call, CallContext, CapabilityMarketplace, Catalog, JsonText, Subject};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Returns the messages of a prompt of the snapshot with these arguments.
///
/// # Errors
///
/// Returns a sentence if the prompt does not exist, or if it does not accept the arguments.
pub(super) async fn messages(
    market: &CapabilityMarketplace,
    catalog: &Catalog,
    ctx: &CallContext,
    name: &str,
    arguments: Option<Map<String, Value>>,
) -> Result<Vec<ChatMessage>, String> {
    let params = json!({"name": name, "arguments": arguments.unwrap_or_default()});
    let params = JsonText::of(&params).map_err(|err| err.to_string())?;
    let call = Call::within(ctx, "");
    let subject = Subject::Prompt(name);
    let asked = market.request(catalog, &call, METHOD, subject, &params).await;
    asked.map_err(|err| err.to_string()).and_then(|(_, prompt)| read(&prompt))
}

const METHOD: &str = "prompts/get";

/// The result of `prompts/get`, as the model receives it.
#[derive(Deserialize)]
struct Prompt {
    messages: Vec<Message>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: Value,
}

fn read(prompt: &JsonText) -> Result<Vec<ChatMessage>, String> {
    let prompt: Prompt = serde_json::from_str(prompt.as_str())
        .map_err(|err| format!("the prompt is malformed: {err}"))?;
    let messages = prompt.messages.into_iter().map(|message| {
        let blocks = match message.content {
            Value::Array(blocks) => blocks,
            block => vec![block],
        };
        let parts: Vec<ContentPart> = blocks.iter().map(part).collect();
        match message.role.as_str() {
            "assistant" => ChatMessage::assistant(parts),
            _ => ChatMessage::user(parts),
        }
    });
    Ok(messages.collect())
}

/// Returns a content block. Content that a model cannot be shown is described.
fn part(block: &Value) -> ContentPart {
    let text = |place: &str| block.pointer(place).and_then(Value::as_str);
    let made = match block["type"].as_str() {
        Some("text") => text("/text").map(ContentPart::from_text),
        Some("image") => text("/mimeType")
            .zip(text("/data"))
            .map(|(kind, data)| ContentPart::from_binary_base64(kind, data, None)),
        Some("resource") => text("/resource/uri")
            .zip(text("/resource/text"))
            .map(|(uri, text)| ContentPart::from_text(format!("{uri}:\n{text}"))),
        Some("resource_link") => text("/uri").map(ContentPart::from_text),
        _ => None,
    };
    made.unwrap_or_else(|| {
        let kind = block["type"].as_str().unwrap_or("content");
        ContentPart::from_text(format!("[{kind} that cannot be shown here]"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_becomes_messages_and_unsupported_content_is_described() {
        let prompt = json!({"messages": [
            {"role": "user", "content": {"type": "text", "text": "Hello"}},
            {"role": "assistant", "content": [{"type": "text", "text": "Yes?"}]},
            {"role": "user", "content": [
                {"type": "resource", "resource": {"uri": "file:///a", "text": "A"}},
                {"type": "resource_link", "uri": "file:///b", "name": "b"},
                {"type": "audio", "data": "AA==", "mimeType": "audio/wav"},
                {"type": "image", "data": "AA==", "mimeType": "image/png"}]},
        ]});
        let messages = read(&JsonText::of(&prompt).unwrap()).unwrap();
        let texts: Vec<Vec<&str>> = messages.iter().map(|message| message.content.texts()).collect();
        let last = vec!["file:///a:\nA", "file:///b", "[audio that cannot be shown here]"];
        assert_eq!(texts, [vec!["Hello"], vec!["Yes?"], last]);
        assert_eq!(messages[2].content.binaries().len(), 1);
        assert!(read(&JsonText::parse("{}").unwrap()).is_err());
    }
}
