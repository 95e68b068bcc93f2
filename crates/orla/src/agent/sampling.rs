//! The model of the calling client, which is asked with MCP's sampling (`sampling/createMessage`, with
//! tools).

use std::sync::Arc;

use genai::chat::{ChatRequest, ChatRole, ContentPart, MessageContent, StopReason, Tool, ToolCall};
use orla_marketplace::{Client, ClientError, JsonText};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::run::{ModelReply, Tokens};

/// The value of `agent.model` that means the client's model.
pub(crate) const NAME: &str = "sampling";
/// The maximum number of tokens of one answer.
const MAX_TOKENS: u32 = 16_384;

/// A client whose model is asked.
pub(crate) struct Sampling(pub(crate) Arc<dyn Client>);

impl Sampling {
    /// Asks.
    ///
    /// # Errors
    ///
    /// Returns a sentence if the client is unable or unwilling to answer, or if its answer is invalid.
    pub(crate) async fn ask(&self, request: &ChatRequest) -> Result<ModelReply, String> {
        let params = JsonText::of(&question(request)).map_err(|err| err.to_string())?;
        let answer = self.0.request("sampling/createMessage", params).await;
        let answer = answer.map_err(|err| match err {
            ClientError::Unsupported(_) => NO_TOOL_SAMPLING.to_owned(),
            err => format!("{NAME}: {err}"),
        })?;
        read_answer(answer.as_str())
    }
}

const NO_TOOL_SAMPLING: &str = "the client has no model with tools (sampling.tools)";

fn question(request: &ChatRequest) -> Value {
    let messages: Vec<Value> = request
        .messages
        .iter()
        .map(|message| {
            let role = if message.role == ChatRole::Assistant { "assistant" } else { "user" };
            let blocks: Vec<Value> = message.content.parts().iter().filter_map(block).collect();
            json!({"role": role, "content": blocks})
        })
        .collect();
    let mut question = json!({"messages": messages, "maxTokens": MAX_TOKENS});
    if let Some(system) = &request.system {
        question["systemPrompt"] = system.as_str().into();
    }
    if let Some(tools) = request.tools.as_ref().filter(|tools| !tools.is_empty()) {
        question["tools"] = tools.iter().map(tool).collect();
    }
    question
}

fn tool(tool: &Tool) -> Value {
    let mut shown = json!({"name": tool.name.as_str(), "inputSchema": tool.schema});
    if let Some(description) = &tool.description {
        shown["description"] = description.as_str().into();
    }
    shown
}

/// Returns a part of a message, as far as the protocol supports it.
fn block(part: &ContentPart) -> Option<Value> {
    if let Some(text) = part.as_text() {
        return Some(json!({"type": "text", "text": text}));
    }
    if let Some(call) = part.as_tool_call() {
        return Some(
            json!({"type": "tool_use", "id": call.call_id, "name": call.fn_name, "input": call.fn_arguments}),
        );
    }
    let response = part.as_tool_response()?;
    let content = json!([{"type": "text", "text": response.content}]);
    Some(json!({"type": "tool_result", "toolUseId": response.call_id, "content": content}))
}

/// The result of `sampling/createMessage`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CreateMessageResult {
    content: Value,
    stop_reason: Option<String>,
}

fn read_answer(text: &str) -> Result<ModelReply, String> {
    let message: CreateMessageResult = serde_json::from_str(text)
        .map_err(|err| format!("the client's sampling result is invalid: {err}"))?;
    let blocks = match message.content {
        Value::Array(blocks) => blocks,
        block => vec![block],
    };
    let parts: Vec<ContentPart> = blocks.into_iter().enumerate().filter_map(part).collect();
    let stop = message.stop_reason.map(|reason| match reason.as_str() {
        "maxTokens" => StopReason::MaxTokens(reason),
        _ => StopReason::from(reason),
    });
    let content = MessageContent::from_parts(parts);
    // The protocol does not report the cost of an answer.
    Ok(ModelReply { content, reasoning: None, stop, tokens: Tokens::default() })
}

fn part((at, block): (usize, Value)) -> Option<ContentPart> {
    let text = |name: &str| block[name].as_str().map(str::to_owned);
    match block["type"].as_str()? {
        "text" => text("text").map(ContentPart::from_text),
        "tool_use" => Some(ContentPart::ToolCall(ToolCall {
            call_id: text("id").unwrap_or_else(|| format!("call_{at}")),
            fn_name: text("name")?,
            fn_arguments: block.get("input").cloned().unwrap_or_else(|| Value::Object(Map::new())),
            thought_signatures: None,
        })),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use genai::chat::{ChatMessage, ToolResponse};

    #[test]
    fn a_conversation_is_asked_and_answered_in_the_protocols_own_words() {
        let call = ToolCall {
            call_id: "1".to_owned(),
            fn_name: "greet".to_owned(),
            fn_arguments: json!({"who": "Ada"}),
            thought_signatures: None,
        };
        let response = ToolResponse::from_tool_call(&call, "hello");
        let request = ChatRequest::new(vec![
            ChatMessage::user("Greet"),
            ChatMessage::assistant(MessageContent::from_tool_calls(vec![call])),
            ChatMessage::from(vec![response]),
        ])
        .with_system("Be kind.")
        .with_tools(vec![Tool::new("greet").with_schema(json!({"type": "object"}))]);
        assert_eq!(
            question(&request),
            json!({
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "Greet"}]},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "greet", "input": {"who": "Ada"}}]},
                    {"role": "user", "content": [{"type": "tool_result", "toolUseId": "1", "content": [{"type": "text", "text": "hello"}]}]},
                ],
                "maxTokens": MAX_TOKENS, "systemPrompt": "Be kind.",
                "tools": [{"name": "greet", "inputSchema": {"type": "object"}}],
            })
        );

        let reply = read_answer(
            r#"{"role":"assistant","model":"m","content":{"type":"text","text":"Hi"},"stopReason":"endTurn"}"#,
        );
        assert_eq!(reply.unwrap().content.texts(), ["Hi"]);
        let called = read_answer(r#"{"content":[{"type":"tool_use","id":"2","name":"greet","input":{"n":1}}],"stopReason":"toolUse"}"#).unwrap();
        let calls = called.content.tool_calls();
        assert_eq!((calls[0].fn_name.as_str(), &calls[0].fn_arguments), ("greet", &json!({"n": 1})));
        let cut =
            read_answer(r#"{"content":{"type":"text","text":"H"},"stopReason":"maxTokens"}"#).unwrap();
        assert!(matches!(cut.stop, Some(StopReason::MaxTokens(_))));
        for nonsense in ["[]", "{}", "{\"stopReason\": 1}"] {
            assert!(read_answer(nonsense).is_err(), "{nonsense}");
        }
    }
}
