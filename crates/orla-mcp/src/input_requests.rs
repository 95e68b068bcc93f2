//! Multi round-trip requests (2026-07-28): without sessions, a server asks questions in its results, and
//! gets its state back with the answers.

use std::sync::Arc;

use futures_util::future::try_join_all;
use orla_marketplace::{Client, ClientError, INPUT_KEY, JsonText};
use serde_json::json;

use super::answer::{INPUT_REQUIRED, Offers};
use super::object::{self, Object, json_string, push_text};

/// The requests that a server may send to a client.
pub const QUESTIONS: [&str; 3] = ["sampling/createMessage", "elicitation/create", "roots/list"];
/// The maximum number of round trips of one request.
pub const MAX_ROUND_TRIPS: usize = 16;
/// The maximum number of questions of one round.
const MAX_QUESTIONS: usize = 64;

/// Returns the parameters of `subscriptions/listen`: all offered changes, and these resources.
pub fn listen(offers: &Offers, uris: &[String]) -> String {
    let mut wanted = serde_json::Map::new();
    let lists = [
        ("toolsListChanged", offers.tools),
        ("promptsListChanged", offers.prompts),
        ("resourcesListChanged", offers.resources),
    ];
    for (list, _) in lists.into_iter().filter(|(_, is_offered)| *is_offered) {
        wanted.insert(list.to_owned(), true.into());
    }
    if offers.subscriptions && !uris.is_empty() {
        wanted.insert("resourceSubscriptions".to_owned(), json!(uris));
    }
    json!({ "notifications": wanted }).to_string()
}

/// Returns whether a result asks for input.
pub fn is_question(result: &JsonText) -> bool {
    // The word must occur, so that large results are not parsed for this check.
    memchr::memmem::find(result.bytes(), INPUT_REQUIRED.as_bytes()).is_some()
        && Object::parse(result.as_str()).and_then(|result| result.text("resultType")).as_deref()
            == Some(INPUT_REQUIRED)
}

/// The reason why the questions of a result have no answers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// There is no client that could be asked.
    #[error("it requests input, but its caller has no client that can answer")]
    NoClient,
    /// The client did not answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The result is not in the form of a question.
    #[error("invalid input request: {0}")]
    Malformed(String),
}

/// Passes all input requests of a result to the client concurrently. Returns the additional members of
/// the next request, each preceded by a comma.
///
/// # Errors
/// See [`Unanswered`].
pub async fn answer(
    result: &JsonText,
    client: Option<&Arc<dyn Client>>,
) -> Result<Box<str>, Unanswered> {
    let malformed = |what: &str| Unanswered::Malformed(what.to_owned());
    let result =
        Object::parse(result.as_str()).ok_or_else(|| malformed("the result is not an object"))?;
    let requests = match result.get("inputRequests").filter(|requests| *requests != "null") {
        Some(requests) => {
            Some(Object::parse(requests).ok_or_else(|| malformed("inputRequests is not an object"))?)
        }
        None => None,
    };
    let mut questions = Vec::new();
    for (key, request) in requests.iter().flat_map(Object::members) {
        let request = Object::parse(request).ok_or_else(|| malformed("an entry is not a request"))?;
        let method = request.text("method").unwrap_or_default();
        if !QUESTIONS.contains(&method.as_str()) {
            return Err(Unanswered::Malformed(format!("no client answers {method:.60}")));
        }
        let params = named(request.get("params").unwrap_or("{}"), key)
            .ok_or_else(|| malformed("an entry is not a request"))?;
        questions.push((key, method, params));
    }
    if questions.len() > MAX_QUESTIONS {
        return Err(Unanswered::Malformed(format!("more than {MAX_QUESTIONS} at once")));
    }
    let mut more = Vec::new();
    if !questions.is_empty() {
        let client = client.ok_or(Unanswered::NoClient)?;
        let questions = questions.into_iter().map(async |(key, method, params)| {
            client.request(&method, params).await.map(|answer| (key, answer))
        });
        more.extend_from_slice(br#","inputResponses":{"#);
        for (number, (key, answer)) in try_join_all(questions).await?.into_iter().enumerate() {
            if number > 0 {
                more.push(b',');
            }
            push_text(&mut more, key);
            more.push(b':');
            more.extend_from_slice(answer.bytes());
        }
        more.push(b'}');
    }
    if let Some(state) = result.get("requestState").filter(|state| *state != "null") {
        more.extend_from_slice(br#","requestState":"#);
        more.extend_from_slice(state.as_bytes());
    }
    // All parts were text, so the result is text.
    Ok(String::from_utf8(more).unwrap_or_default().into())
}

/// Returns the parameters of a question with its key, by which its client may identify it.
fn named(params: &str, key: &str) -> Option<JsonText> {
    let mut params = Object::parse(params)?;
    let mut meta = Object::parse(params.get("_meta").unwrap_or("{}"))?;
    meta.set(INPUT_KEY, json_string(key));
    let meta = meta.to_json().to_string();
    params.set("_meta", meta);
    Some(params.to_json())
}

/// Adds the members of the next round trip to the parameters.
pub fn add(params: &JsonText, more: &str) -> JsonText {
    if more.is_empty() {
        return params.clone();
    }
    let Some(open) = params.as_str().strip_suffix('}').map(str::trim_ascii_end) else {
        return params.clone();
    };
    let more = if open.ends_with('{') { more.trim_start_matches(',') } else { more };
    object::trusted(format!("{open}{more}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> JsonText {
        JsonText::parse(text.to_owned()).unwrap()
    }

    /// Answers with what it was asked.
    struct Echo;

    #[async_trait::async_trait]
    impl Client for Echo {
        fn capabilities(&self) -> JsonText {
            json("{}")
        }

        async fn request(&self, method: &str, params: JsonText) -> Result<JsonText, ClientError> {
            match method {
                "roots/list" => Err(ClientError::Unsupported(method.to_owned())),
                _ => Ok(json(&format!(r#"{{"{method}":{params}}}"#))),
            }
        }
    }

    #[tokio::test]
    async fn every_question_is_answered_under_its_key_and_the_state_is_returned() {
        let echo: Arc<dyn Client> = Arc::new(Echo);
        let cases = [
            (r#"{"resultType":"input_required","requestState":"s\n"}"#, Ok(r#","requestState":"s\n""#)),
            (r#"{"resultType":"input_required"}"#, Ok("")),
            (
                r#"{"resultType":"input_required","inputRequests":{"a \"b\"":{"method":"elicitation/create","params":{"n":1.10,"_meta":{"k":1}}},"c":{"method":"sampling/createMessage"}},"requestState":"s"}"#,
                Ok(
                    r#","inputResponses":{"a \"b\"":{"elicitation/create":{"n":1.10,"_meta":{"k":1,"orla/key":"a \"b\""}}},"c":{"sampling/createMessage":{"_meta":{"orla/key":"c"}}}},"requestState":"s""#,
                ),
            ),
            (
                r#"{"inputRequests":{"r":{"method":"roots/list"}}}"#,
                Err("the client does not support roots/list"),
            ),
            (
                r#"{"inputRequests":{"r":{"method":"tools/call"}}}"#,
                Err("invalid input request: no client answers tools/call"),
            ),
            (r#"{"inputRequests":{"r":7}}"#, Err("invalid input request: an entry is not a request")),
            (r#"{"inputRequests":[]}"#, Err("invalid input request: inputRequests is not an object")),
        ];
        for (result, expected) in cases {
            let answer = answer(&json(result), Some(&echo)).await.map_err(|err| err.to_string());
            assert_eq!(answer.as_deref().map_err(String::as_str), expected, "{result}");
        }
        let asks = json(r#"{"inputRequests":{"r":{"method":"roots/list"}}}"#);
        assert_eq!(answer(&asks, None).await, Err(Unanswered::NoClient));
    }

    #[test]
    fn a_question_is_distinguished_from_a_result() {
        for (result, is_one) in [
            (r#"{"resultType":"input_required"}"#, true),
            (r#"{"content":[{"text":"input_required"}]}"#, false),
            (r#"{"resultType":"complete"}"#, false),
            ("7", false),
        ] {
            assert_eq!(is_question(&json(result)), is_one, "{result}");
        }
    }

    #[test]
    fn answers_are_added_to_the_parameters() {
        assert_eq!(add(&json("{}"), r#","a":1"#).as_str(), r#"{"a":1}"#);
        assert_eq!(add(&json(r#"{"b": 2 }"#), r#","a":1"#).as_str(), r#"{"b": 2,"a":1}"#);
        assert_eq!(add(&json(r#"{"b": 2 }"#), "").as_str(), r#"{"b": 2 }"#);
    }

    #[test]
    fn the_offered_notifications_are_subscribed_to() {
        let offers = Offers { tools: true, resources: true, subscriptions: true, ..Offers::default() };
        assert_eq!(
            listen(&offers, &["a://b".to_owned()]),
            r#"{"notifications":{"toolsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["a://b"]}}"#
        );
        assert_eq!(listen(&Offers::default(), &["a://b".to_owned()]), r#"{"notifications":{}}"#);
    }
}
