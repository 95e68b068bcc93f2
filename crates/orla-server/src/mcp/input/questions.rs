//! The questions that a provider may ask its caller's client, and the capabilities that they require. Pure.

use orla_marketplace::{ClientError, INPUT_KEY, JsonText};
use rmcp::model::{
    ClientCapabilities, ElicitationCapability, ErrorCode, ErrorData, RootsCapabilities,
    SamplingCapability, UrlElicitationCapability,
};

use serde_json::value::RawValue;

use orla_mcp::object::Object;

/// The maximum number of open questions to one client, or of one sessionless call.
pub(crate) const MAX_OPEN: usize = 64;
/// The code of an internal error in JSON-RPC.
pub(crate) const INTERNAL: i64 = -32603;

/// Returns the refusal of a question beyond the limit.
pub(crate) fn too_many() -> ClientError {
    let message = format!("more than {MAX_OPEN} questions to this client wait for an answer");
    ClientError::Refused { code: INTERNAL, message, data: None }
}

/// The capability that a question requires of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requirement {
    Sampling,
    /// Sampling with tools.
    SamplingTools,
    /// A form to fill in.
    Elicitation,
    /// A page to visit.
    UrlElicitation,
    Roots,
}

impl Requirement {
    /// Returns the capability that a request with this method and these parameters requires, or `None`
    /// if clients are never asked this.
    pub(crate) fn of(method: &str, params: &JsonText) -> Option<Self> {
        match method {
            "sampling/createMessage" => {
                let params = Object::parse(params.as_str());
                let has = |key: &str| params.as_ref().is_some_and(|params| params.get(key).is_some());
                let tools = has("tools") || has("toolChoice");
                Some(if tools { Self::SamplingTools } else { Self::Sampling })
            }
            "elicitation/create" => {
                let mode = Object::parse(params.as_str()).and_then(|params| params.text("mode"));
                let url = mode.as_deref() == Some("url");
                Some(if url { Self::UrlElicitation } else { Self::Elicitation })
            }
            "roots/list" => Some(Self::Roots),
            _ => None,
        }
    }

    /// Returns whether a client with these capabilities meets the requirement. An elicitation capability
    /// without a mode means forms (MCP 2025-11-25, elicitation, capabilities).
    pub(crate) fn is_met(self, capabilities: &str) -> bool {
        let Some(capabilities) = Object::parse(capabilities) else { return false };
        let declared = |name: &str| Object::parse(capabilities.get(name)?);
        match self {
            Self::Sampling => declared("sampling").is_some(),
            Self::SamplingTools => declared("sampling").is_some_and(|it| it.get("tools").is_some()),
            Self::Elicitation => declared("elicitation")
                .is_some_and(|it| it.get("form").is_some() || it.get("url").is_none()),
            Self::UrlElicitation => declared("elicitation").is_some_and(|it| it.get("url").is_some()),
            Self::Roots => declared("roots").is_some(),
        }
    }

    /// Returns the error for a request that cannot be answered because its client did not declare this.
    pub(crate) fn missing(self) -> ErrorData {
        let mut required = ClientCapabilities::default();
        match self {
            Self::Sampling => required.sampling = Some(SamplingCapability::default()),
            Self::SamplingTools => {
                let mut sampling = SamplingCapability::default();
                sampling.tools = Some(serde_json::Map::new());
                required.sampling = Some(sampling);
            }
            Self::Elicitation => required.elicitation = Some(ElicitationCapability::default()),
            Self::UrlElicitation => {
                let url = ElicitationCapability::new().with_url(UrlElicitationCapability::new());
                required.elicitation = Some(url);
            }
            Self::Roots => required.roots = Some(RootsCapabilities::default()),
        }
        ErrorData::missing_required_client_capability(required)
    }

    /// Returns the prefix of the keys of questions without a name from their provider.
    pub(crate) fn stem(self) -> &'static str {
        match self {
            Self::Sampling | Self::SamplingTools => "sampling",
            Self::Elicitation | Self::UrlElicitation => "elicitation",
            Self::Roots => "roots",
        }
    }
}

/// Returns the capabilities in an `initialize`, if they allow any question.
pub(crate) fn askable(capabilities: Option<&RawValue>) -> Option<JsonText> {
    let declared = Object::parse(capabilities?.get())?;
    let can = ["sampling", "elicitation", "roots"].iter().any(|name| declared.get(name).is_some());
    // A copy, because the session outlives the request's body.
    let text = can.then(|| capabilities.map(|raw| raw.get().to_owned())).flatten()?;
    JsonText::parse(text).ok()
}

/// Checks that the parameters of a question are an object.
pub(crate) fn check_params(params: &JsonText) -> Result<(), ClientError> {
    if params.as_str().trim_start().starts_with('{') {
        return Ok(());
    }
    let message = "the parameters of a question must be an object".to_owned();
    let code = ErrorCode::INVALID_PARAMS.0.into();
    Err(ClientError::Refused { code, message, data: None })
}

/// Removes the provider's own name of the question from the parameters, and the other members of `_meta`
/// that concern only the provider.
pub(crate) fn take_key(params: JsonText) -> (Option<String>, JsonText) {
    if !params.as_str().contains(OWN_PREFIX) {
        return (None, params);
    }
    let taken = || {
        let mut object = Object::parse(params.as_str())?;
        let mut meta = Object::parse(object.get("_meta")?)?;
        let key = meta.text(INPUT_KEY);
        meta.retain(|name| !name.starts_with(OWN_PREFIX));
        let rest = meta.to_json();
        match rest.as_str() {
            "{}" => object.remove("_meta"),
            rest => object.set("_meta", rest.to_owned()),
        }
        Some((key, object.to_json()))
    };
    taken().unwrap_or_else(|| (None, params.clone()))
}

/// The prefix of orla's own members of `_meta`.
const OWN_PREFIX: &str = "orla/";

#[cfg(test)]
mod tests {
    use super::*;
    use Requirement::{Elicitation, Roots, Sampling, SamplingTools, UrlElicitation};

    fn text(json: &str) -> JsonText {
        JsonText::parse(json.to_owned()).unwrap()
    }

    #[test]
    fn a_question_requires_a_capability_of_the_client() {
        let cases = [
            ("sampling/createMessage", "{}", Some(Sampling)),
            ("sampling/createMessage", r#"{"tools":[]}"#, Some(SamplingTools)),
            ("elicitation/create", r#"{"message":"?"}"#, Some(Elicitation)),
            ("elicitation/create", r#"{"mode":"form"}"#, Some(Elicitation)),
            ("elicitation/create", r#"{"mode":"url"}"#, Some(UrlElicitation)),
            ("roots/list", "{}", Some(Roots)),
            ("tools/call", "{}", None),
            ("ping", "{}", None),
        ];
        for (method, params, needed) in cases {
            assert_eq!(Requirement::of(method, &text(params)), needed, "{method} {params}");
        }
    }

    #[test]
    fn a_client_is_asked_what_it_declared() {
        let all = [Sampling, SamplingTools, Elicitation, UrlElicitation, Roots];
        let cases: [(&str, &[Requirement]); 9] = [
            ("{}", &[]),
            (r#"{"sampling":{}}"#, &[Sampling]),
            (r#"{"sampling":{"tools":{}}}"#, &[Sampling, SamplingTools]),
            (r#"{"elicitation":{}}"#, &[Elicitation]),
            (r#"{"elicitation":{"form":{}}}"#, &[Elicitation]),
            (r#"{"elicitation":{"url":{}}}"#, &[UrlElicitation]),
            (r#"{"elicitation":{"form":{},"url":{}}}"#, &[Elicitation, UrlElicitation]),
            (r#"{"roots":{"listChanged":true},"sampling":null}"#, &[Roots]),
            ("[]", &[]),
        ];
        for (capabilities, met) in cases {
            let meets: Vec<_> = all.into_iter().filter(|need| need.is_met(capabilities)).collect();
            assert_eq!(meets, met, "{capabilities}");
        }
    }

    #[test]
    fn parameters_are_an_object() {
        assert!(check_params(&text(r#" {"a":1}"#)).is_ok());
        for odd in ["[1]", "7", "null", r#""{""#] {
            assert!(check_params(&text(odd)).is_err(), "{odd}");
        }
    }

    #[test]
    fn capabilities_are_kept_if_the_client_can_be_asked() {
        let kept = |json: &str| askable(Some(serde_json::from_str(json).unwrap()));
        let some = r#"{"sampling": {}, "x": 1.10}"#;
        assert_eq!(kept(some).unwrap().as_str(), some);
        for nothing in ["{}", r#"{"experimental":{}}"#, "[]", "null"] {
            assert!(kept(nothing).is_none(), "{nothing}");
        }
        assert!(askable(None).is_none());
    }

    #[test]
    fn the_error_names_the_capability_as_the_schema_has_it() {
        let required = |need: Requirement| need.missing().data.unwrap()["requiredCapabilities"].clone();
        assert_eq!(required(Sampling), serde_json::json!({"sampling": {}}));
        assert_eq!(required(SamplingTools), serde_json::json!({"sampling": {"tools": {}}}));
        assert_eq!(required(UrlElicitation), serde_json::json!({"elicitation": {"url": {}}}));
        assert_eq!(required(Roots).to_string(), r#"{"roots":{}}"#);
        assert_eq!(Elicitation.missing().code.0, -32021);
    }

    #[test]
    fn the_name_of_a_question_is_removed_and_the_rest_stays_unchanged() {
        let cases = [
            (r#"{"a":1.10}"#, None, r#"{"a":1.10}"#),
            (r#"{"a":1.10,"_meta":{"orla/key":"k"}}"#, Some("k"), r#"{"a":1.10}"#),
            (r#"{"_meta":{"orla/key":"k"}}"#, Some("k"), "{}"),
            (r#"{"_meta":{"x":1,"orla/key":"k"}}"#, Some("k"), r#"{"_meta":{"x":1}}"#),
            (
                r#"{"a":2,"_meta":{"x":1,"orla/key":"k"},"b":3}"#,
                Some("k"),
                r#"{"a":2,"_meta":{"x":1},"b":3}"#,
            ),
            (r#"{"a":"orla/key"}"#, None, r#"{"a":"orla/key"}"#),
            (r#"{"_meta":{"orla/key":7}}"#, None, "{}"),
            (r#"{"_meta":{"orla/call":7,"x/y":1}}"#, None, r#"{"_meta":{"x/y":1}}"#),
        ];
        for (params, key, rest) in cases {
            let (found, left) = take_key(text(params));
            assert_eq!((found.as_deref(), left.as_str()), (key, rest), "{params}");
        }
    }
}
