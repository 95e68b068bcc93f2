//! Chooses the model and asks it.
//!
//! The wire formats of the providers are those of the crate `genai`. Keys are read from the environment, are sent
//! only to the model's address, and appear in no message, log or transcript.

use std::fmt;
use std::time::Duration;

use futures_util::StreamExt;
use genai::adapter::AdapterKind;
use genai::chat::{
    ChatMessage, ChatOptions, ChatRequest, ChatRole, ChatStreamEvent, ContentPart, StreamEnd, Usage,
};
use genai::resolver::{AuthData, Endpoint, ProviderConfig};
use genai::{Client, ModelIden, ServiceTarget};
use serde_json::Value;

use super::calls::Calls;
use super::run::{ModelReply, Tokens};
use super::sampling;
use crate::config::AgentConfig;
use crate::http_client;
use crate::{Failure, render};

/// The default address of Ollama.
const OLLAMA: &str = "http://127.0.0.1:11434/";
/// The timeout of a request for its models.
const OLLAMA_ANSWERS: Duration = Duration::from_secs(2);
/// The models that are tried, in this order, if only a key in the environment determines the provider.
const BY_KEY: [(&str, &str); 3] = [
    ("OPENAI_API_KEY", "gpt-5-mini"),
    ("ANTHROPIC_API_KEY", "claude-sonnet-4-6"),
    ("GEMINI_API_KEY", "gemini-2.5-flash"),
];
/// Bytes of one answer.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// Characters of a provider's own words that a message repeats.
const SHOWN: usize = 300;

/// A variable of the environment that is set and not empty.
pub(crate) type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Returns the value of an environment variable.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A model, and how to reach it.
pub(crate) struct Model {
    client: Client,
    named: Named,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Model({})", self.name())
    }
}

/// The model, its address and the variable of its key, as far as they are known without a request.
#[derive(Clone)]
pub(crate) struct Named {
    model: ModelIden,
    base: Option<String>,
    key: Option<String>,
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Named({})", self.name())
    }
}

impl Model {
    /// Returns the model in the configuration; or else the first one of an Ollama on this machine; or
    /// else that of the first provider whose key is in the environment.
    pub(crate) async fn choose(config: &AgentConfig, variable: Variable<'_>) -> Result<Self, Failure> {
        let http = http_client::new()?;
        let mut base = config.base_url.clone();
        let name = match &config.model {
            Some(name) => name.clone(),
            None => {
                let at = base.as_deref().map_or_else(|| OLLAMA.to_owned(), with_slash);
                match (first_of_ollama(&http, &at).await, &base) {
                    (Some(name), _) => {
                        base = Some(at);
                        format!("ollama::{name}")
                    }
                    (None, Some(_)) => return Err(Failure::usage(UNNAMED)),
                    (None, None) => by_key(variable).ok_or_else(|| Failure::usage(NO_MODEL))?.to_owned(),
                }
            }
        };
        Named::of(config, name, base.as_deref(), variable)?.connect(http)
    }

    /// Returns the model that a configuration has named.
    pub(crate) fn connect(named: &Named) -> Result<Self, Failure> {
        named.clone().connect(http_client::new()?)
    }

    /// Returns the name of the model, with its provider.
    pub(crate) fn name(&self) -> String {
        self.named.name()
    }

    /// Sends a request, and passes the text to `on_text` as it arrives.
    ///
    /// # Errors
    ///
    /// Returns a sentence without secrets.
    pub(crate) async fn ask(
        &self,
        mut request: ChatRequest,
        mut on_text: impl FnMut(&str),
    ) -> Result<ModelReply, String> {
        if matches!(self.kind(), AdapterKind::Ollama | AdapterKind::OllamaCloud) {
            request.messages = request.messages.into_iter().flat_map(one_result_each).collect();
        }
        let options = ChatOptions::default()
            .with_capture_usage(true)
            .with_capture_content(true)
            .with_capture_reasoning_content(true)
            .with_capture_tool_calls(!self.comes_in_parts());
        let request =
            self.client.exec_chat_stream(self.named.model.clone(), request, Some(&options)).await;
        let mut stream = request.map_err(|err| self.sentence(&err))?.stream;
        let (mut size, mut calls) = (0, Calls::default());
        while let Some(event) = stream.next().await {
            match event.map_err(|err| self.sentence(&err))? {
                ChatStreamEvent::Chunk(text) => {
                    size += text.content.len();
                    on_text(&text.content);
                }
                ChatStreamEvent::ReasoningChunk(text) => size += text.content.len(),
                ChatStreamEvent::ToolCallChunk(part) if self.comes_in_parts() => {
                    calls.push(part.tool_call);
                }
                ChatStreamEvent::ToolCallChunk(part) => {
                    // The arguments received so far.
                    let arguments = part.tool_call.fn_arguments.as_str().map_or(0, str::len);
                    size = size.max(arguments) + 1;
                }
                ChatStreamEvent::End(end) => return self.whole(end, calls),
                ChatStreamEvent::Start
                | ChatStreamEvent::ThoughtSignatureChunk(_)
                | ChatStreamEvent::Heartbeat => {}
            }
            if size + calls.size > MAX_ANSWER {
                return Err(format!("{}: an answer of more than {MAX_ANSWER} bytes", self.name()));
            }
        }
        Err(self.cut())
    }

    /// Returns a complete answer. For some providers the end of an answer cannot be distinguished from a
    /// closed connection; such an end has no reason.
    fn whole(&self, end: StreamEnd, calls: Calls) -> Result<ModelReply, String> {
        let says_why = [AdapterKind::Ollama, AdapterKind::Gemini, AdapterKind::OpenAIResp];
        if end.captured_stop_reason.is_none() && says_why.contains(&self.kind()) {
            return Err(self.cut());
        }
        let content = end.captured_content.unwrap_or_default();
        Ok(ModelReply {
            content: content.extended(calls.finish().into_iter().map(ContentPart::ToolCall)),
            reasoning: end.captured_reasoning_content,
            stop: end.captured_stop_reason,
            tokens: end.captured_usage.as_ref().map(tokens).unwrap_or_default(),
        })
    }

    /// Returns whether calls arrive in parts, which are put together here: in the format that servers of
    /// every kind use.
    fn comes_in_parts(&self) -> bool {
        self.kind() == AdapterKind::OpenAI
    }

    fn kind(&self) -> AdapterKind {
        self.named.model.adapter_kind
    }

    fn cut(&self) -> String {
        format!("{}: the answer ended early", self.name())
    }

    /// Returns the error without the key, in case the provider has repeated the key.
    fn sentence(&self, err: &genai::Error) -> String {
        let reason = reason(err);
        let reason = match &self.named.key {
            Some(key) => reason.replace(key.as_str(), "…"),
            None if is_refusal(err) => format!("{reason} ({NO_KEY})"),
            None => reason,
        };
        format!("{}: {reason}", self.name())
    }
}

impl Named {
    /// Returns the model in the configuration; `None` if it names none.
    ///
    /// # Errors
    ///
    /// Returns the missing part: its key, or its provider.
    pub(crate) fn configured(
        config: &AgentConfig,
        variable: Variable<'_>,
    ) -> Result<Option<Self>, Failure> {
        let Some(name) = &config.model else { return Ok(None) };
        Self::of(config, name.clone(), config.base_url.as_deref(), variable).map(Some)
    }

    fn of(
        config: &AgentConfig,
        name: String,
        base: Option<&str>,
        variable: Variable<'_>,
    ) -> Result<Self, Failure> {
        if name == sampling::NAME {
            return Err(Failure::usage(SAMPLING));
        }
        let kind = AdapterKind::from_model(&name).map_err(|err| Failure::usage(err.to_string()))?;
        let key = key(config, kind, variable)?;
        Ok(Self { model: ModelIden::new(kind, name), base: base.map(with_slash), key })
    }

    /// Returns its address; `None` if unknown.
    pub(crate) fn address(&self) -> &str {
        self.base.as_deref().unwrap_or(match self.model.adapter_kind {
            AdapterKind::OpenAI | AdapterKind::OpenAIResp => "https://api.openai.com/",
            AdapterKind::Anthropic => "https://api.anthropic.com/",
            AdapterKind::Gemini => "https://generativelanguage.googleapis.com/",
            AdapterKind::Ollama => "http://localhost:11434/",
            _ => "",
        })
    }

    /// Returns the name of the model, with its provider.
    pub(crate) fn name(&self) -> String {
        let (_, name) = self.model.model_name.namespace_and_name();
        format!("{}::{name}", self.model.adapter_kind.as_lower_str())
    }

    fn connect(self, http: reqwest::Client) -> Result<Model, Failure> {
        let endpoint = self.base.clone().map(Endpoint::from_owned);
        // A server of one's own that needs no key receives a placeholder.
        let auth = AuthData::from_single(self.key.as_deref().unwrap_or("none"));
        let target = move |mut target: ServiceTarget| -> genai::resolver::Result<ServiceTarget> {
            if let Some(endpoint) = &endpoint {
                target.endpoint = endpoint.clone();
            }
            target.auth = auth.clone();
            Ok(target)
        };
        let client = Client::builder().with_reqwest(http).with_service_target_resolver_fn(target);
        let client = client.build().map_err(|err| Failure::failed(err.to_string()))?;
        Ok(Model { client, named: self })
    }
}

const SAMPLING: &str =
    "sampling is the model of a client that calls the tool agent; name another one with --model";
const NO_MODEL: &str = "no model to ask: start Ollama (`ollama serve`, with a model), or set OPENAI_API_KEY, \
    ANTHROPIC_API_KEY or GEMINI_API_KEY, or name a model with --model or agent.model in orla.yaml";
const UNNAMED: &str = "no model is named, and what is at agent.base_url is no Ollama with models: name one with \
    --model, as openai::NAME for a server that speaks OpenAI's protocol";

const NO_KEY: &str =
    "no key was sent: --api-key-env or agent.api_key_env names the variable that holds one";

/// Returns whether the model's server requires a key.
fn is_refusal(err: &genai::Error) -> bool {
    match err {
        genai::Error::HttpError { status, .. } => matches!(status.as_u16(), 401 | 403),
        genai::Error::WebStream { error, .. } => error.downcast_ref().is_some_and(is_refusal),
        _ => false,
    }
}

/// The messages of Ollama hold one result each; of several, only the last would be sent.
fn one_result_each(message: ChatMessage) -> Vec<ChatMessage> {
    match message.role {
        ChatRole::Tool => {
            message.content.into_tool_responses().into_iter().map(ChatMessage::from).collect()
        }
        ChatRole::System | ChatRole::User | ChatRole::Assistant => vec![message],
    }
}

fn with_slash(base: &str) -> String {
    if base.ends_with('/') { base.to_owned() } else { format!("{base}/") }
}

async fn first_of_ollama(http: &reqwest::Client, base: &str) -> Option<String> {
    let client = Client::builder().with_reqwest(http.clone()).build().ok()?;
    let provider = ProviderConfig::from_endpoint(Endpoint::from_owned(base));
    let names = client.all_model_names(AdapterKind::Ollama, provider);
    tokio::time::timeout(OLLAMA_ANSWERS, names).await.ok()?.ok()?.into_iter().next()
}

/// Returns the model of the first provider with a key.
fn by_key(variable: Variable<'_>) -> Option<&'static str> {
    BY_KEY.iter().find(|(key, _)| variable(key).is_some()).map(|(_, model)| *model)
}

/// Returns the key to send, if there is one. For another address than the provider's, the variable must
/// be configured: a key that happens to be in the environment is sent only to its provider.
fn key(
    config: &AgentConfig,
    kind: AdapterKind,
    variable: Variable<'_>,
) -> Result<Option<String>, Failure> {
    let own = kind.default_key_env_name().filter(|_| config.base_url.is_none());
    let Some(name) = config.api_key_env.as_deref().or(own) else { return Ok(None) };
    let key = variable(name);
    key.map(Some).ok_or_else(|| Failure::usage(format!("{name} is not set: set it to the model's key")))
}

/// Returns the reason why a model gave no answer, in one line.
fn reason(err: &genai::Error) -> String {
    use genai::Error;
    let text = match err {
        Error::HttpError { status, body, .. } => {
            let text =
                serde_json::from_str(body).map_or_else(|_| body.clone(), |body| error_message(&body));
            return format!("it answers {status}: {}", render::cut(text.trim(), SHOWN));
        }
        Error::WebStream { error, .. } => match error.downcast_ref::<Error>() {
            Some(inner) => return reason(inner),
            None => last_of(&**error),
        },
        Error::WebModelCall { webc_error: genai::webc::Error::Reqwest(err), .. } => last_of(err),
        Error::ChatResponse { body, .. } => error_message(body),
        Error::StreamParse { .. } => "it sent an invalid answer".to_owned(),
        other => other.to_string(),
    };
    render::cut(text.trim(), SHOWN)
}

/// Returns the message in a provider's error.
fn error_message(body: &Value) -> String {
    let places = ["/error/message", "/error", "/message", "/0/error/message"];
    let message = places.iter().find_map(|place| body.pointer(place)?.as_str());
    message.map_or_else(|| body.to_string(), str::to_owned)
}

/// Returns the innermost cause, which is the most specific.
fn last_of(err: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = err;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

fn tokens(usage: &Usage) -> Tokens {
    let count = |tokens: Option<i32>| tokens.and_then(|tokens| u64::try_from(tokens).ok()).unwrap_or(0);
    Tokens { input: count(usage.prompt_tokens), output: count(usage.completion_tokens) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_key_in_the_environment_says_whose_model_is_asked() {
        let only =
            |names: &'static [&str]| move |name: &str| names.contains(&name).then(|| "k".to_owned());
        for (set, expected) in [
            (&[][..], None),
            (&["GEMINI_API_KEY"], Some("gemini-2.5-flash")),
            (&["GEMINI_API_KEY", "ANTHROPIC_API_KEY"], Some("claude-sonnet-4-6")),
            (&["ANTHROPIC_API_KEY", "OPENAI_API_KEY"], Some("gpt-5-mini")),
        ] {
            assert_eq!(by_key(&only(set)), expected, "{set:?}");
        }
    }

    #[test]
    fn a_key_is_needed_by_hosted_providers_and_where_it_is_named() {
        let none = |_: &str| None;
        let config = AgentConfig::default();
        let needed = key(&config, AdapterKind::Anthropic, &none).unwrap_err();
        assert!(format!("{needed:?}").contains("ANTHROPIC_API_KEY is not set"));
        assert_eq!(key(&config, AdapterKind::Ollama, &none).unwrap(), None);
        let own = AgentConfig { base_url: Some("http://127.0.0.1/".into()), ..AgentConfig::default() };
        let all = |_: &str| Some("s3cret".to_owned());
        assert_eq!(key(&own, AdapterKind::OpenAI, &all).unwrap(), None, "it is for the provider alone");
        let named = AgentConfig { api_key_env: Some("MINE".into()), ..own };
        assert!(key(&named, AdapterKind::OpenAI, &none).is_err());
        let set = |name: &str| (name == "MINE").then(|| "s3cret".to_owned());
        assert_eq!(key(&named, AdapterKind::OpenAI, &set).unwrap().as_deref(), Some("s3cret"));
    }

    #[test]
    fn a_providers_error_is_its_message() {
        for (body, expected) in [
            (json!({"error": {"message": "no such model", "type": "x"}}), "no such model"),
            (json!({"error": "model 'x' not found"}), "model 'x' not found"),
            (json!({"type": "overloaded_error", "message": "Overloaded"}), "Overloaded"),
            (json!([{"error": {"message": "m"}}]), "m"),
            (json!({"a": 1}), r#"{"a":1}"#),
        ] {
            assert_eq!(error_message(&body), expected);
        }
    }
}
