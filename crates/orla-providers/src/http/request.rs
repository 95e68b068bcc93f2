//! Converts settings and input to the request that is sent. Pure: nothing is resolved, opened or read.
//!
//! # Invariants
//!
//! - With any input, the request goes to the base URL's origin, below its path.
//! - No argument leaves its segment of the path, its query parameter, its header field.

use std::borrow::Cow;
use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use orla_marketplace::{
    BodyMapping, CredentialPlace, HttpCapability, HttpParameter, JsonText, ParameterPlace,
    ParameterStyle,
};
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, COOKIE, HeaderMap, HeaderName, HeaderValue, USER_AGENT,
};
use reqwest::{Method, Url};
use serde_json::value::RawValue;

use super::arguments::{Arguments, Refused, text};
use super::template::{self, Piece};
use super::{body, encode, parameter};

/// A request that is ready to be sent.
#[derive(Clone)]
pub(crate) struct Prepared {
    pub(crate) method: Method,
    pub(crate) url: Url,
    /// Headers that any server may see.
    pub(crate) common: HeaderMap,
    /// Headers for the base URL's origin only.
    pub(crate) own: HeaderMap,
    pub(crate) body: Option<Bytes>,
}

/// The reason why there is no request.
#[derive(Debug)]
pub(crate) enum InvalidRequest {
    /// The settings are wrong for every input.
    Settings(String),
    /// The input does not match the settings.
    Input(Refused),
}

impl From<Refused> for InvalidRequest {
    fn from(refused: Refused) -> Self {
        Self::Input(refused)
    }
}

/// Creates the request for an input.
pub(crate) fn prepare(http: &HttpCapability, input: &JsonText) -> Result<Prepared, InvalidRequest> {
    let plan = Plan::of(http)?;
    if plan.takes_whole_input(http) {
        // The usual case: the body is the unchanged input.
        return plan.finish(http, &CallArguments::default(), Some(input.bytes().clone()));
    }
    let arguments = Arguments::parse(input.as_str())?;
    let used = CallArguments { arguments: Some(&arguments), used: plan.used() };
    plan.finish(http, &used, None)
}

/// Checks whether settings can produce requests.
///
/// # Errors
/// What is wrong with them, as a sentence.
pub fn check(http: &HttpCapability) -> Result<(), String> {
    let message = |invalid| match invalid {
        InvalidRequest::Settings(problem) => problem,
        InvalidRequest::Input(refused) => refused.to_string(),
    };
    let plan = Plan::of(http).map_err(message)?;
    for (name, pieces) in &plan.headers {
        if pieces.iter().all(|piece| matches!(piece, Piece::Text(_))) {
            header_value(name.as_str(), &CallArguments::default(), pieces).map_err(message)?;
        }
    }
    let mut headers = HeaderMap::new();
    add_credentials(http, &mut headers, &mut Vec::new(), &mut Vec::new()).map_err(message)
}

/// Returns the arguments in the path. All of them are required.
pub fn path_arguments(http: &HttpCapability) -> Vec<&str> {
    let path = http.options.path.split('?').next().unwrap_or_default();
    let pieces = template::parse(path).unwrap_or_default().into_iter();
    pieces
        .filter_map(|piece| match piece {
            Piece::Argument(name) => Some(name),
            Piece::Text(_) => None,
        })
        .collect()
}

/// Returns the origin of the requests, such as `https://api.example.com`: the upstream of its
/// capabilities ([`CallPolicy::upstream`](orla_marketplace::CallPolicy)).
pub fn origin(http: &HttpCapability) -> Option<String> {
    base_url(&http.base_url).ok().map(|url| url.origin().ascii_serialization())
}

/// Returns an address without secrets, for display.
pub(crate) fn shown(address: &str) -> String {
    HttpCapability::new(address, None, 0).address()
}

/// The parts of the request that do not depend on the input.
struct Plan<'a> {
    base: Url,
    method: Method,
    path: Vec<Piece<'a>>,
    query: Vec<(String, Vec<Piece<'a>>)>,
    headers: Vec<(HeaderName, Vec<Piece<'a>>)>,
    parameters: &'a [HttpParameter],
}

/// The arguments of a call, and which of them the templates use.
#[derive(Default)]
struct CallArguments<'a> {
    arguments: Option<&'a Arguments<'a>>,
    used: HashSet<&'a str>,
}

impl<'a> CallArguments<'a> {
    fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.arguments.and_then(|arguments| arguments.get(name))
    }

    fn rest(&self) -> Vec<(&'a str, &'a RawValue)> {
        let all = self.arguments.into_iter().flat_map(Arguments::iter);
        all.filter(|(name, _)| !self.used.contains(name)).collect()
    }
}

/// Fields that the HTTP client writes itself.
const OWN_FIELDS: [&str; 6] =
    ["host", "content-length", "transfer-encoding", "connection", "upgrade", "te"];

impl<'a> Plan<'a> {
    fn of(http: &'a HttpCapability) -> Result<Self, InvalidRequest> {
        let options = &http.options;
        let settings = |problem: String| InvalidRequest::Settings(problem);
        let method = match options.method.as_deref() {
            None => Method::POST,
            Some(name) => Method::from_bytes(name.to_ascii_uppercase().as_bytes())
                .map_err(|_| settings(format!("{name:?} is not an HTTP method")))?,
        };
        let (path, in_path) = match options.path.split_once('?') {
            Some((path, query)) => (path, query),
            None => (options.path.as_str(), ""),
        };
        let mut query = Vec::new();
        let pairs = in_path.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let named = options.query.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in pairs.chain(named) {
            query.push((encode::strict(name), template::parse(value).map_err(settings)?));
        }
        let mut headers = Vec::new();
        for (name, value) in &options.headers {
            let field = header_name(name)?;
            headers.push((field, template::parse(value).map_err(settings)?));
        }
        Ok(Self {
            base: base_url(&http.base_url).map_err(settings)?,
            method,
            path: template::parse(path).map_err(settings)?,
            query,
            headers,
            parameters: &options.parameters,
        })
    }

    fn has_body(&self) -> bool {
        !matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS | Method::DELETE)
    }

    fn takes_whole_input(&self, http: &HttpCapability) -> bool {
        let media_type = http.options.media_type.as_deref();
        http.options.body == BodyMapping::Rest
            && self.has_body()
            && media_type.is_none_or(|media_type| body::is_json(&body::essence(media_type)))
            && self.used().is_empty()
    }

    /// Returns the arguments that templates and parameters name.
    fn used(&self) -> HashSet<&'a str> {
        let templates = self.query.iter().map(|(_, pieces)| pieces);
        let templates = templates.chain(self.headers.iter().map(|(_, pieces)| pieces));
        let named = templates.chain([&self.path]).flat_map(|pieces| template::arguments(pieces));
        let in_path = |name: &&str| !self.parameters.iter().any(|p| is_for_path(p, name));
        named
            .filter(in_path)
            .chain(self.parameters.iter().map(|parameter| parameter.argument.as_str()))
            .collect()
    }

    fn finish(
        &self,
        http: &HttpCapability,
        given: &CallArguments<'_>,
        whole: Option<Bytes>,
    ) -> Result<Prepared, InvalidRequest> {
        let mut url = self.base.clone();
        let user = take_user(&mut url);
        let path = self.path_text(given)?;
        if !path.is_empty() {
            let base = url.path().trim_end_matches('/');
            let slash = if path.starts_with('/') { "" } else { "/" };
            url.set_path(&format!("{base}{slash}{path}"));
        }
        let mut pairs: Vec<String> = url.query().into_iter().map(str::to_owned).collect();
        self.add_query(given, &mut pairs);
        let mut own = HeaderMap::new();
        let mut cookies = Vec::new();
        if let Some(user) = user {
            own.insert(AUTHORIZATION, value_of("the base URL's user", &user)?);
        }
        self.add_headers(given, &mut own, &mut cookies)?;
        let written = match whole {
            Some(body) => Some((body, media_type(http).to_owned())),
            None => self.body(http, given, &mut pairs)?,
        };
        let body = written.map(|(body, media_type)| {
            if let (false, Ok(value)) =
                (own.contains_key(CONTENT_TYPE), HeaderValue::try_from(media_type))
            {
                own.insert(CONTENT_TYPE, value);
            }
            body
        });
        add_credentials(http, &mut own, &mut pairs, &mut cookies)?;
        if !cookies.is_empty() {
            own.insert(COOKIE, value_of("cookie", &cookies.join("; "))?);
        }
        url.set_query((!pairs.is_empty()).then(|| pairs.join("&")).as_deref());
        Ok(Prepared { method: self.method.clone(), url, common: common(http), own, body })
    }

    fn path_text(&self, given: &CallArguments<'_>) -> Result<String, Refused> {
        let mut path = String::new();
        for piece in &self.path {
            match piece {
                Piece::Text(text) => path.push_str(text),
                Piece::Argument(name) => {
                    let plain;
                    let parameter = match self.parameters.iter().find(|p| is_for_path(p, name)) {
                        Some(parameter) => parameter,
                        None => {
                            plain = HttpParameter::new(*name, *name, ParameterPlace::Path);
                            &plain
                        }
                    };
                    let argument = &parameter.argument;
                    let raw = given.get(argument).ok_or_else(|| Refused::missing(argument))?;
                    let text = parameter::path_text(parameter, raw);
                    if text.is_empty() {
                        return Err(Refused::argument(argument, "something", raw.get()));
                    }
                    path.push_str(&text);
                    // A segment of dots would step upwards, here or at the server.
                    let segment = path.rsplit('/').next().unwrap_or_default();
                    if encode::is_dots(segment) {
                        return Err(Refused::argument(argument, "the name of something", raw.get()));
                    }
                }
            }
        }
        Ok(path)
    }

    fn add_query(&self, given: &CallArguments<'_>, pairs: &mut Vec<String>) {
        for (name, pieces) in &self.query {
            if let [Piece::Argument(argument)] = pieces[..] {
                let Some(raw) = given.get(argument) else { continue };
                let mut parameter = HttpParameter::new(argument, "", ParameterPlace::Query);
                if raw.get().starts_with('{') {
                    parameter.style = ParameterStyle::Json;
                }
                // The name is encoded already.
                let written = parameter::query_pairs(&parameter, raw);
                pairs.extend(written.into_iter().map(|pair| format!("{name}{pair}")));
            } else if let Some(value) = expanded(given, pieces) {
                pairs.push(format!("{name}={}", encode::strict(&value)));
            }
        }
        for parameter in self.parameters.iter().filter(|p| p.place == ParameterPlace::Query) {
            if let Some(raw) = given.get(&parameter.argument) {
                pairs.extend(parameter::query_pairs(parameter, raw));
            }
        }
    }

    fn add_headers(
        &self,
        given: &CallArguments<'_>,
        headers: &mut HeaderMap,
        cookies: &mut Vec<String>,
    ) -> Result<(), InvalidRequest> {
        for (name, pieces) in &self.headers {
            if let Some(value) = header_value(name.as_str(), given, pieces)? {
                headers.insert(name.clone(), value);
            }
        }
        for parameter in self.parameters {
            let Some(raw) = given.get(&parameter.argument) else { continue };
            match parameter.place {
                ParameterPlace::Header => {
                    let text = parameter::header_text(parameter, raw);
                    let value = argument_value(&parameter.argument, &text)?;
                    headers.insert(header_name(&parameter.name)?, value);
                }
                ParameterPlace::Cookie => cookies.extend(parameter::query_pairs(parameter, raw)),
                ParameterPlace::Path | ParameterPlace::Query => {}
            }
        }
        Ok(())
    }

    fn body(
        &self,
        http: &HttpCapability,
        given: &CallArguments<'_>,
        pairs: &mut Vec<String>,
    ) -> Result<body::Body, Refused> {
        let parts = &http.options.parts;
        match &http.options.body {
            BodyMapping::None => Ok(None),
            BodyMapping::Argument(name) => match given.arguments.and_then(|all| all.any(name)) {
                Some(raw) => body::write(&body::Source::Argument(name, raw), media_type(http), parts),
                None => Ok(None),
            },
            BodyMapping::Rest if self.has_body() => {
                body::write(&body::Source::Members(given.rest()), media_type(http), parts)
            }
            BodyMapping::Rest => {
                for (name, raw) in given.rest().into_iter().filter(|(_, raw)| raw.get() != "null") {
                    let mut parameter = HttpParameter::new(name, name, ParameterPlace::Query);
                    if raw.get().starts_with('{') {
                        parameter.style = ParameterStyle::Json;
                    }
                    pairs.extend(parameter::query_pairs(&parameter, raw));
                }
                Ok(None)
            }
        }
    }
}

fn is_for_path(parameter: &HttpParameter, name: &str) -> bool {
    parameter.place == ParameterPlace::Path && parameter.name == name
}

fn media_type(http: &HttpCapability) -> &str {
    http.options.media_type.as_deref().unwrap_or("application/json")
}

/// Removes the user name and password from a URL. Returns the value of `Authorization` for them (RFC
/// 7617).
fn take_user(url: &mut Url) -> Option<String> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let plain = |text: &str| percent_encoding::percent_decode_str(text).collect::<Vec<u8>>();
    let mut pair = plain(url.username());
    pair.push(b':');
    pair.extend(plain(url.password().unwrap_or_default()));
    // Neither fails for a URL with a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    Some(format!("Basic {}", BASE64.encode(pair)))
}

/// Returns the value of a cookie, encoded if it is invalid (RFC 6265 §4.1.1).
fn cookie(value: &str) -> Cow<'_, str> {
    let is_octet =
        |byte: u8| matches!(byte, 0x21 | 0x23..=0x2b | 0x2d..=0x3a | 0x3c..=0x5b | 0x5d..=0x7e);
    if value.bytes().all(is_octet) { value.into() } else { encode::strict(value).into() }
}

/// Returns the base URL, if requests can be sent there.
pub(super) fn base_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|err| format!("the base URL is invalid: {err}"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err("the base URL has to begin with http:// or https://".to_owned());
    }
    Ok(url)
}

/// Expands a template; `None` if an argument is absent.
fn expanded(given: &CallArguments<'_>, pieces: &[Piece<'_>]) -> Option<String> {
    pieces
        .iter()
        .map(|piece| match piece {
            Piece::Text(text) => Some((*text).into()),
            Piece::Argument(name) => given.get(name).map(text),
        })
        .collect()
}

fn header_name(name: &str) -> Result<HeaderName, InvalidRequest> {
    HeaderName::try_from(name)
        .ok()
        .filter(|name| !OWN_FIELDS.contains(&name.as_str()))
        .ok_or_else(|| InvalidRequest::Settings(format!("the header {name:?} cannot be set")))
}

fn header_value(
    name: &str,
    given: &CallArguments<'_>,
    pieces: &[Piece<'_>],
) -> Result<Option<HeaderValue>, InvalidRequest> {
    let Some(text) = expanded(given, pieces) else { return Ok(None) };
    let value = match template::arguments(pieces).next() {
        Some(argument) => argument_value(argument, &text)?,
        None => value_of(name, &text)?,
    };
    Ok(Some(value))
}

/// Returns a header's value with an argument in it. The value is one line, so that it stays one field.
fn argument_value(argument: &str, text: &str) -> Result<HeaderValue, Refused> {
    let mut value = HeaderValue::from_bytes(text.trim().as_bytes())
        .map_err(|_| Refused::argument(argument, "text without line breaks (for a header)", text))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns a configured value of a header, which errors never repeat.
fn value_of(name: &str, text: &str) -> Result<HeaderValue, InvalidRequest> {
    let mut value = HeaderValue::from_bytes(text.trim().as_bytes()).map_err(|_| {
        InvalidRequest::Settings(format!("the value of {name} has characters that no header can have"))
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn add_credentials(
    http: &HttpCapability,
    headers: &mut HeaderMap,
    pairs: &mut Vec<String>,
    cookies: &mut Vec<String>,
) -> Result<(), InvalidRequest> {
    for credential in &http.options.credentials {
        match &credential.place {
            CredentialPlace::Header(name) => {
                headers.insert(header_name(name)?, value_of(name, &credential.value)?);
            }
            CredentialPlace::Query(name) => {
                pairs.push(format!("{}={}", encode::strict(name), encode::strict(&credential.value)));
            }
            CredentialPlace::Cookie(name) => {
                cookies.push(format!("{}={}", encode::strict(name), cookie(&credential.value)));
            }
        }
    }
    if let Some(token) = &http.auth_token {
        headers.insert(AUTHORIZATION, value_of("the token", &format!("Bearer {token}"))?);
    }
    Ok(())
}

/// Returns the header fields of every request, including those that follow a redirect to another origin.
fn common(http: &HttpCapability) -> HeaderMap {
    let accept = match &http.options.accept[..] {
        [] => "application/json, text/*;q=0.9, */*;q=0.8".to_owned(),
        some => some.join(", "),
    };
    let mut headers = HeaderMap::new();
    if let Ok(accept) = HeaderValue::try_from(accept) {
        headers.insert(ACCEPT, accept);
    }
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("orla/", env!("CARGO_PKG_VERSION"))));
    headers
}

/// Returns the secrets that must not appear in a message: tokens, and the values of headers that look
/// like tokens.
pub(super) fn secrets(http: &HttpCapability) -> Vec<&str> {
    const HINTS: [&str; 6] = ["auth", "token", "key", "secret", "cookie", "password"];
    let is_secret = |name: &str| {
        let name = name.to_ascii_lowercase();
        HINTS.iter().any(|hint| name.contains(hint))
    };
    let options = &http.options;
    let configured = options.headers.iter().chain(&options.query);
    let configured = configured.filter(|(name, _)| is_secret(name)).map(|(_, value)| value.as_str());
    let credentials = options.credentials.iter().map(|credential| credential.value.as_str());
    http.auth_token.as_deref().into_iter().chain(credentials).chain(configured).collect()
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
