//! The settings of HTTP capabilities (RTFS capability system §3.3).

use std::collections::BTreeMap;
use std::fmt;

/// An HTTP endpoint (RTFS capability system §3.3).
///
/// With only the fields of the RTFS document, a call posts its whole input as JSON to the base URL.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpCapability {
    /// The origin and the path below which requests are sent. No caller can change it.
    pub base_url: String,
    /// The bearer token, sent only to the base URL's origin.
    pub auth_token: Option<String>,
    /// The timeout of one request, in milliseconds; 0 leaves it to the call's own deadline.
    pub timeout_ms: u64,
    /// Settings beyond the RTFS document: how a call becomes a request.
    pub options: HttpOptions,
}

impl HttpCapability {
    /// Settings with every field of the document, and the options' defaults.
    pub fn new(base_url: impl Into<String>, auth_token: Option<String>, timeout_ms: u64) -> Self {
        Self { base_url: base_url.into(), auth_token, timeout_ms, options: HttpOptions::default() }
    }

    /// Returns the base URL for display: without user name and password, query and fragment.
    pub fn address(&self) -> String {
        shown_address(&self.base_url)
    }
}

/// Returns an address without user name and password, query and fragment.
pub(super) fn shown_address(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

impl fmt::Debug for HttpCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpCapability")
            .field("base_url", &self.address())
            .field("auth_token", &self.auth_token.as_ref().map(|_| Hidden))
            .field("timeout_ms", &self.timeout_ms)
            .field("options", &self.options)
            .finish()
    }
}

/// How a call becomes an HTTP request, and which answers are accepted.
///
/// In the templates of `path`, `query` and `headers`, `{name}` stands for that argument and `{{` for a brace. A
/// query parameter or header whose argument is absent or null is left out; in the path the argument is required.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpOptions {
    /// The method; `None` means `POST`.
    pub method: Option<String>,
    /// Template that is appended to the base URL, such as `/v1/{city}` or `/find?name={name}`.
    pub path: String,
    /// Query parameters: name → template.
    pub query: BTreeMap<String, String>,
    /// Header fields: name → template.
    pub headers: BTreeMap<String, String>,
    /// Arguments that are not written as templates, but in one of the styles of OpenAPI.
    pub parameters: Vec<HttpParameter>,
    /// The part of the input that becomes the body.
    pub body: BodyMapping,
    /// The media type of the body, which decides its encoding. JSON, `application/x-www-form-urlencoded`
    /// and `multipart/form-data` have their own encodings. For any other type, text is sent unchanged if
    /// the type is textual, and decoded as base64 otherwise. `None` means `application/json`.
    pub media_type: Option<String>,
    /// The parts of a multipart body that are not just text or JSON.
    pub parts: BTreeMap<String, HttpPart>,
    /// Sent with every request to the base URL's origin, and never shown.
    pub credentials: Vec<HttpCredential>,
    /// The key of the sign-in that provides the token of requests; `None` for none. A token is sent only
    /// to the base URL's origin.
    pub sign_in: Option<String>,
    /// The media types of answers, wildcards included. Any other type is an error. If empty, any type is accepted.
    pub accept: Vec<String>,
    /// Which redirects are followed.
    pub redirects: Redirects,
    /// The maximum number of redirects within one call.
    pub max_redirects: u32,
    /// Whether a redirect may lead from a public address to a private one (loopback, link-local, a
    /// private network).
    pub allow_private_redirects: bool,
    /// The maximum size of an answer, in bytes after decompression.
    pub max_answer_bytes: usize,
}

impl HttpOptions {
    /// The default maximum number of redirects.
    pub const MAX_REDIRECTS: u32 = 5;
    /// The default maximum size of an answer.
    pub const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            method: None,
            path: String::new(),
            query: BTreeMap::new(),
            headers: BTreeMap::new(),
            parameters: Vec::new(),
            body: BodyMapping::Rest,
            media_type: None,
            parts: BTreeMap::new(),
            credentials: Vec::new(),
            sign_in: None,
            accept: Vec::new(),
            redirects: Redirects::default(),
            max_redirects: Self::MAX_REDIRECTS,
            allow_private_redirects: false,
            max_answer_bytes: Self::MAX_ANSWER_BYTES,
        }
    }
}

impl fmt::Debug for HttpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers and query parameters may contain keys.
        f.debug_struct("HttpOptions")
            .field("method", &self.method)
            .field("path", &self.path.split('?').next())
            .field("query", &self.query.keys())
            .field("headers", &self.headers.keys())
            .field("parameters", &self.parameters)
            .field("body", &self.body)
            .field("media_type", &self.media_type)
            .field("credentials", &self.credentials)
            .field("accept", &self.accept)
            .field("redirects", &self.redirects)
            .finish_non_exhaustive()
    }
}

/// The part of the input that becomes the body of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BodyMapping {
    /// The arguments that path, query and headers did not use, as an object. Methods without a body (`GET`,
    /// `HEAD`, `OPTIONS`, `DELETE`) send them as query parameters.
    #[default]
    Rest,
    /// This argument; no body if it is absent.
    Argument(String),
    /// No body.
    None,
}

/// An argument that becomes a part of a request as described by OpenAPI.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpParameter {
    /// The argument.
    pub argument: String,
    /// The parameter's own name.
    pub name: String,
    /// The place of the parameter.
    pub place: ParameterPlace,
    /// How lists and objects are written.
    pub style: ParameterStyle,
    /// Whether each item of a list, and each property of an object, is written separately.
    pub explode: bool,
    /// Whether reserved characters of URLs stay unencoded, where that is safe.
    pub allow_reserved: bool,
}

impl HttpParameter {
    /// Creates a parameter in the default style of its place.
    pub fn new(argument: impl Into<String>, name: impl Into<String>, place: ParameterPlace) -> Self {
        let style = match place {
            ParameterPlace::Path | ParameterPlace::Header => ParameterStyle::Simple,
            ParameterPlace::Query | ParameterPlace::Cookie => ParameterStyle::Form,
        };
        Self {
            argument: argument.into(),
            name: name.into(),
            place,
            style,
            explode: style == ParameterStyle::Form,
            allow_reserved: false,
        }
    }
}

/// The place of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterPlace {
    /// Replaces `{name}` in the path.
    Path,
    /// In the query.
    Query,
    /// In a header field.
    Header,
    /// In the header field `Cookie`.
    Cookie,
}

/// The notation of lists and objects. The names are OpenAPI's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterStyle {
    /// `a,b`
    Simple,
    /// `.a.b`
    Label,
    /// `;name=a,b`
    Matrix,
    /// `name=a,b`
    Form,
    /// `name=a b`
    SpaceDelimited,
    /// `name=a|b`
    PipeDelimited,
    /// `name[key]=value`
    DeepObject,
    /// JSON text.
    Json,
}

/// The encoding of one part of a multipart body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpPart {
    /// Its media type.
    pub media_type: Option<String>,
    /// Whether the part is a file. The argument is then base64 text.
    pub is_file: bool,
}

/// A secret that is sent with every request.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpCredential {
    /// The place of the secret.
    pub place: CredentialPlace,
    /// The value.
    pub value: String,
}

impl fmt::Debug for HttpCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpCredential").field("place", &self.place).field("value", &Hidden).finish()
    }
}

/// The place of a credential, and its name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialPlace {
    /// A header field.
    Header(String),
    /// A query parameter.
    Query(String),
    /// A cookie.
    Cookie(String),
}

/// Which redirects are followed.
///
/// Credentials, configured headers and bodies are never sent to another origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redirects {
    /// No redirect.
    None,
    /// Redirects within the origin.
    SameOrigin,
    /// Redirects to any origin.
    #[default]
    Any,
}

/// The replacement for a secret.
pub(super) struct Hidden;

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let mut http =
            HttpCapability::new("https://me:pw@api.example.com/v1?key=k1#x", Some("t0ken".into()), 1);
        http.options.headers.insert("X-Key".into(), "k2".into());
        http.options.query.insert("key".into(), "k3".into());
        let place = CredentialPlace::Cookie("session".into());
        http.options.credentials.push(HttpCredential { place, value: "k4".into() });
        http.options.path = "/x?key=k5".into();
        let shown = format!("{http:?}");
        for secret in ["pw", "k1", "t0ken", "k2", "k3", "k4", "k5"] {
            assert!(!shown.contains(secret), "{secret} in {shown}");
        }
        assert!(shown.contains("https://api.example.com/v1"), "{shown}");
        assert!(shown.contains("X-Key") && shown.contains("session"), "{shown}");
    }
}
