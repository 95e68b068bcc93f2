//! Determines the work that a message requests. Pure.
//!
//! | message | runs |
//! |---|---|
//! | a data part `{capability, input?}` | that capability |
//! | `metadata.skillId`, and data, or a text that is a JSON object or that becomes the capability's `input` (for a program, `program`) | that capability |
//! | a data part `{program, input?, limits?}` | the program |
//! | a text that begins with `(`, after white space and comments | that program |
//! | any other text | the capability for texts, where one is configured; else the capability that answers prompts, where one is served |

use a2a::{A2AError, Message, Part, PartContent, Role, error_code};
use orla_marketplace::program::IDS;
use orla_marketplace::{Call, JsonText, Payload};
use serde_json::{Map, Value, json};

/// The longest id that a client may choose, in bytes.
const MAX_ID: usize = 256;
/// The media types that a part may declare.
pub(super) const MEDIA_TYPES: [&str; 2] = ["application/json", "text/plain"];

/// The work that a message requests.
#[derive(Debug, PartialEq)]
pub(super) enum Work {
    /// Call a capability with an input.
    Run { target: String, input: Value },
    /// Answer a text.
    Answer { input: Value },
    /// The message cannot be understood, for this reason.
    Unclear(String),
}

/// The capability that answers texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Texts<'a> {
    pub(super) name: &'a str,
    /// Whether its only input is a prompt.
    pub(super) takes_prompt: bool,
}

impl Work {
    /// Returns the call, without a principal.
    ///
    /// # Errors
    ///
    /// Returns why the message makes no call.
    pub(super) fn into_call(self, texts: Option<Texts<'_>>) -> Result<Call, String> {
        let (target, input) = match (self, texts) {
            (Self::Run { target, input }, _) => (target, input),
            (Self::Answer { input }, Some(texts)) => {
                let input = if texts.takes_prompt { prompt(&input) } else { input };
                (texts.name.to_owned(), input)
            }
            (Self::Answer { .. }, None) => {
                return Err("I run capabilities and programs, and cannot answer a text. Send a data part \
                    {\"capability\": NAME, \"input\": {…}}, or a program of RTFS such as (call :NAME {…}); what there is to call is in my card."
                    .to_owned());
            }
            (Self::Unclear(why), _) => return Err(why),
        };
        let input = JsonText::of(&input).map_err(|err| err.to_string())?;
        Ok(Call::to(target).with(Payload::from_json(input)))
    }
}

/// Returns a text as a prompt, followed by the data of the message.
fn prompt(input: &Value) -> Value {
    let text = input["message"].as_str().unwrap_or_default();
    match input.get("data") {
        Some(data) => json!({"prompt": format!("{text}\n\n{data}")}),
        None => json!({ "prompt": text }),
    }
}

/// Checks a message.
///
/// # Errors
///
/// Returns an error that says why the message is invalid.
pub(super) fn check(message: &Message) -> Result<(), A2AError> {
    let ids = [Some(&message.message_id), message.context_id.as_ref(), message.task_id.as_ref()];
    if message.message_id.is_empty() {
        return Err(A2AError::invalid_params("message.messageId: missing, and required"));
    }
    if ids.into_iter().flatten().any(|id| id.len() > MAX_ID) {
        return Err(A2AError::invalid_params(format!("an id is longer than {MAX_ID} bytes")));
    }
    if message.role != Role::User {
        return Err(A2AError::invalid_params("message.role: expected ROLE_USER"));
    }
    if message.parts.is_empty() {
        return Err(A2AError::invalid_params("message.parts: expected at least one part"));
    }
    match message.parts.iter().find(|part| !is_taken(part)) {
        Some(part) => {
            let what = match (&part.content, &part.media_type) {
                (PartContent::Text(_) | PartContent::Data(_), Some(kind)) => {
                    format!("{kind} is not accepted; use {}", MEDIA_TYPES.join(" and "))
                }
                _ => "files (parts with raw or url) are not accepted; use parts with text or data"
                    .to_owned(),
            };
            Err(A2AError::new(error_code::CONTENT_TYPE_NOT_SUPPORTED, what))
        }
        None => Ok(()),
    }
}

fn is_taken(part: &Part) -> bool {
    let essence = part.media_type.as_deref().and_then(|kind| kind.split(';').next()).map(str::trim);
    let is_known = |kind: &str| MEDIA_TYPES.iter().any(|known| known.eq_ignore_ascii_case(kind));
    match part.content {
        PartContent::Raw(_) | PartContent::Url(_) => false,
        PartContent::Text(_) | PartContent::Data(_) => {
            essence.is_none_or(|kind| kind.is_empty() || is_known(kind))
        }
    }
}

/// Determines the work that a message requests.
pub(super) fn read(message: &Message) -> Work {
    let all_data = || {
        message.parts.iter().filter_map(|part| match &part.content {
            PartContent::Data(data) => Some(data),
            _ => None,
        })
    };
    let data = all_data().next();
    let text = message.parts.iter().filter_map(Part::as_text).collect::<Vec<_>>().join("\n");
    let metadata = message.metadata.as_ref();
    let skill = metadata.and_then(|metadata| metadata.get("skillId")).and_then(Value::as_str);
    if all_data().filter(|data| data.get("capability").is_some()).count() > 1 {
        return Work::Unclear(
            "More than one data part has a capability: a message is one call; send each as a message of its own"
                .to_owned(),
        );
    }
    if let Some(Value::Object(members)) = data {
        if let Some(target) = members.get("capability") {
            return capability(target, members);
        }
        if skill.is_none() && members.get("program").is_some_and(Value::is_string) {
            return Work::Run { target: IDS[0].to_owned(), input: Value::Object(members.clone()) };
        }
    }
    if let Some(skill) = skill {
        let input =
            data.cloned().unwrap_or_else(|| match serde_json::from_str::<Map<String, Value>>(&text) {
                Ok(members) => Value::Object(members),
                Err(_) if text.is_empty() => json!({}),
                Err(_) if IDS.contains(&skill) => json!({ "program": text }),
                Err(_) => json!({ "input": text }),
            });
        return Work::Run { target: skill.to_owned(), input };
    }
    if is_program(&text) {
        return Work::Run { target: IDS[0].to_owned(), input: json!({ "program": text }) };
    }
    if text.trim().is_empty() {
        return Work::Unclear(
            "What is to be run? A data part is {\"capability\": NAME, \"input\": {…}} or {\"program\": TEXT}.".to_owned(),
        );
    }
    let mut input = json!({"message": text, "message_id": message.message_id});
    for (name, value) in [("context_id", &message.context_id), ("task_id", &message.task_id)] {
        if let Some(value) = value {
            input[name] = value.as_str().into();
        }
    }
    if let Some(data) = data {
        input["data"] = data.clone();
    }
    Work::Answer { input }
}

/// Returns whether a text is a program. A program begins with a form, after white space and comments.
fn is_program(text: &str) -> bool {
    let mut rest = text.trim_start();
    while let Some(comment) = rest.strip_prefix(';') {
        rest = comment.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
    }
    rest.starts_with('(')
}

/// Reads a data part that names a capability.
fn capability(target: &Value, members: &Map<String, Value>) -> Work {
    let Value::String(target) = target else {
        return Work::Unclear("capability: expected the name of one".to_owned());
    };
    if let Some(unknown) = members.keys().find(|key| !matches!(key.as_str(), "capability" | "input")) {
        let unknown: String = unknown.chars().take(60).collect();
        return Work::Unclear(format!(
            "{unknown}: unknown beside capability; the input goes into input"
        ));
    }
    Work::Run {
        target: target.clone(),
        input: members.get("input").cloned().unwrap_or_else(|| json!({})),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(parts: &Value, metadata: &Value) -> Message {
        let message =
            json!({"messageId": "m", "role": "ROLE_USER", "parts": parts, "metadata": metadata});
        serde_json::from_value(message).unwrap()
    }

    #[test]
    fn a_message_determines_the_call() {
        let (none, skill) = (json!(null), json!({"skillId": "add"}));
        let run = |target: &str, input: Value| Work::Run { target: target.to_owned(), input };
        for (parts, metadata, work) in [
            (
                json!([{"data": {"capability": "math.add", "input": {"a": 1}}}]),
                &none,
                run("math.add", json!({"a": 1})),
            ),
            (json!([{"text": "please"}, {"data": {"capability": "now"}}]), &none, run("now", json!({}))),
            (json!([{"data": {"capability": "now"}}]), &skill, run("now", json!({}))),
            (
                json!([{"data": {"program": "(+ 1 2)"}}]),
                &none,
                run("rtfs", json!({"program": "(+ 1 2)"})),
            ),
            (json!([{"text": " (+ 1 2)"}]), &none, run("rtfs", json!({"program": " (+ 1 2)"}))),
            (
                json!([{"text": "; hi\n\n ;; (\n(+ 1 2)"}]),
                &none,
                run("rtfs", json!({"program": "; hi\n\n ;; (\n(+ 1 2)"})),
            ),
            (
                json!([{"text": "(+ 1 2)"}]),
                &json!({"skillId": "rtfs_check"}),
                run("rtfs_check", json!({"program": "(+ 1 2)"})),
            ),
            (
                json!([{"text": "; (hi)"}]),
                &none,
                Work::Answer { input: json!({"message": "; (hi)", "message_id": "m"}) },
            ),
            (json!([{"data": {"a": 1}}]), &skill, run("add", json!({"a": 1}))),
            (json!([{"data": {"program": "x"}}]), &skill, run("add", json!({"program": "x"}))),
            (json!([{"text": "{\"a\": 1}"}]), &skill, run("add", json!({"a": 1}))),
            (json!([{"text": "one and two"}]), &skill, run("add", json!({"input": "one and two"}))),
            (
                json!([{"text": "hello"}, {"data": [1]}]),
                &none,
                Work::Answer { input: json!({"message": "hello", "message_id": "m", "data": [1]}) },
            ),
        ] {
            assert_eq!(read(&message(&parts, metadata)), work, "{parts}");
        }
        for parts in [
            json!([{"text": " "}]),
            json!([{"data": {"capability": "x", "inputs": 1}}]),
            json!([{"data": {"capability": 1}}]),
            json!([{"data": [1]}]),
            json!([{"data": {"capability": "x"}}, {"data": {"capability": "y"}}]),
        ] {
            assert!(matches!(read(&message(&parts, &none)), Work::Unclear(_)), "{parts}");
        }
    }

    #[test]
    fn a_text_is_for_the_capability_that_answers_texts() {
        let answer = || read(&message(&json!([{"text": "hello"}, {"data": [1]}]), &json!(null)));
        let named =
            |takes_prompt| answer().into_call(Some(Texts { name: "talk", takes_prompt })).unwrap();
        let input = |call: Call| call.input.json().unwrap().as_str().to_owned();
        assert_eq!(named(true).target, "talk");
        let whole = r#"{"message":"hello","message_id":"m","data":[1]}"#;
        assert_eq!(
            (input(named(false)), input(named(true))),
            (whole.into(), r#"{"prompt":"hello\n\n[1]"}"#.into())
        );
        assert!(answer().into_call(None).err().unwrap().contains("cannot answer a text"));
    }

    #[test]
    fn invalid_messages_are_refused() {
        let good =
            message(&json!([{"text": "x", "mediaType": "text/plain; charset=utf-8"}]), &json!(null));
        assert!(check(&good).is_ok());
        let with = |change: fn(&mut Message)| {
            let mut message = good.clone();
            change(&mut message);
            check(&message).unwrap_err().code
        };
        assert_eq!(with(|message| message.parts.clear()), error_code::INVALID_PARAMS);
        assert_eq!(with(|message| message.message_id.clear()), error_code::INVALID_PARAMS);
        assert_eq!(with(|message| message.role = Role::Agent), error_code::INVALID_PARAMS);
        assert_eq!(with(|message| message.task_id = Some("x".repeat(300))), error_code::INVALID_PARAMS);
        assert_eq!(
            with(|message| message.parts = vec![Part::url("x")]),
            error_code::CONTENT_TYPE_NOT_SUPPORTED
        );
        let mut file = Part::raw(b"x".to_vec());
        file.media_type = Some("text/plain".to_owned());
        let file = Message { parts: vec![file], ..good.clone() };
        assert!(check(&file).unwrap_err().message.starts_with("files (parts with raw or url)"));
        assert_eq!(
            with(|message| message.parts[0].media_type = Some("image/png".to_owned())),
            error_code::CONTENT_TYPE_NOT_SUPPORTED
        );
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "\\PC{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            let name =
                prop_oneof![Just("capability".to_owned()), Just("program".to_owned()), "[a-z]{0,4}"];
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec((name, inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_message_is_a_call_or_has_a_reason(data in any_json(), text in "\\PC{0,20}") {
            let message = message(&json!([{"text": text}, {"data": data}]), &json!(null));
            if let Err(why) = read(&message).into_call(None) {
                prop_assert!(!why.is_empty());
            }
        }
    }
}
