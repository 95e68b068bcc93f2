//! Access tokens, and the responses of a token endpoint (OAuth 2.1 §3.2, RFC 8693 §2.2). Pure.

use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::Value;

use crate::error::Error;
use crate::scope::Scopes;
use crate::secret::Secret;

/// The maximum time before its expiry at which a token is renewed.
const MARGIN: Duration = Duration::from_secs(30);
/// The maximum accepted lifetime of a token.
const MAX_LIFE: Duration = Duration::from_secs(366 * 24 * 3600);
/// The maximum number of characters of an error's description.
const MAX_DESCRIPTION: usize = 200;
/// The maximum size of a token in bytes, which must fit into a header field.
const MAX_TOKEN: usize = 32 * 1024;

/// An access token and its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The token itself.
    pub access: Secret,
    /// The refresh token.
    pub refresh: Option<Secret>,
    /// The time from which it is renewed; `None` if its lifetime is unknown.
    pub renew_at: Option<SystemTime>,
    /// Its scopes, if known.
    pub scopes: Scopes,
}

impl Token {
    /// Returns whether it may be sent at this time.
    pub fn is_fresh(&self, now: SystemTime) -> bool {
        self.renew_at.is_none_or(|renew_at| now < renew_at)
    }
}

/// The answer of a token endpoint.
#[derive(Deserialize)]
struct Response {
    access_token: Option<Secret>,
    token_type: Option<String>,
    refresh_token: Option<Secret>,
    expires_in: Option<Value>,
    scope: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
}

/// The reason why a token endpoint returned no token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An error with this code, and this sentence for users.
    Code(String, String),
    /// An unreadable answer.
    Unreadable(String),
}

impl Refusal {
    /// Returns whether the grant itself is no longer valid, so that only a new sign-in helps (OAuth 2.1
    /// §3.2.4).
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Code(code, _) if code == "invalid_grant")
    }

    /// Returns whether this is the code.
    pub fn is(&self, code: &str) -> bool {
        matches!(self, Self::Code(known, _) if known == code)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Code(_, text) => Self::Refused(text),
            Refusal::Unreadable(text) => Self::Failed(text),
        }
    }
}

/// Parses the answer of a token endpoint. A response without `scope` has the requested scopes, and one
/// without a refresh token keeps the previous one. An error shows none of the `secrets` of the request.
///
/// # Errors
/// See [`Refusal`].
pub fn read(
    status: u16,
    body: &[u8],
    requested: &Scopes,
    before: Option<&Secret>,
    secrets: &[Secret],
    now: SystemTime,
) -> Result<Token, Refusal> {
    let unreadable =
        |what: &str| Refusal::Unreadable(format!("the authorization server {what} (HTTP {status})"));
    let response: Response =
        serde_json::from_slice(body).map_err(|_| unreadable("did not answer with JSON"))?;
    if let Some(code) = response.error {
        return Err(refusal(&code, response.error_description.as_deref(), secrets));
    }
    if !(200..300).contains(&status) {
        return Err(unreadable("refused without an error"));
    }
    let access = response.access_token.ok_or_else(|| unreadable("answered without a token"))?;
    if !is_sendable(access.expose()) {
        return Err(unreadable("answered with a token that cannot be sent"));
    }
    let kind = response.token_type.unwrap_or_else(|| "Bearer".to_owned());
    if !kind.eq_ignore_ascii_case("bearer") {
        return Err(unreadable("answered with a token that is not a bearer token"));
    }
    let life = response.expires_in.as_ref().and_then(seconds);
    Ok(Token {
        access,
        refresh: response.refresh_token.or_else(|| before.cloned()),
        renew_at: life.map(|life| now + life - MARGIN.min(life / 10)),
        scopes: response.scope.map_or_else(|| requested.clone(), |scope| Scopes::parse(&scope)),
    })
}

/// Returns the error of a response, as a sentence without the `secrets` of the request, which some
/// servers quote.
pub fn refusal(code: &str, description: Option<&str>, secrets: &[Secret]) -> Refusal {
    let shown = |text: &str| plain(&without(text, secrets));
    let mut text = format!("the authorization server refused: {}", shown(code));
    let description = description.map(shown).filter(|description| !description.is_empty());
    if let Some(description) = description {
        text.push_str(&format!(" ({description})"));
    }
    Refusal::Code(plain(code), text)
}

fn without(text: &str, secrets: &[Secret]) -> String {
    let secrets = secrets.iter().map(Secret::expose).filter(|secret| !secret.is_empty());
    secrets.fold(text.to_owned(), |text, secret| text.replace(secret, "…"))
}

/// Sanitises foreign text for users: one line without control characters, of a limited length.
fn plain(text: &str) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(printable).take(MAX_DESCRIPTION).collect::<String>().trim().to_owned()
}

/// Returns a number of seconds, which some servers write as text.
fn seconds(value: &Value) -> Option<Duration> {
    let seconds = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.parse().ok()?,
        _ => return None,
    };
    Duration::try_from_secs_f64(seconds.max(0.0)).ok().map(|life| life.min(MAX_LIFE))
}

fn is_sendable(token: &str) -> bool {
    !token.is_empty() && token.len() <= MAX_TOKEN && token.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn read_text(status: u16, body: &str) -> Result<Token, Refusal> {
        read(status, body.as_bytes(), &Scopes::parse("a b"), Some(&Secret::new("old")), &[], NOW)
    }

    #[test]
    fn a_response_becomes_a_token() {
        let token = read_text(
            200,
            r#"{"access_token":"t","token_type":"bearer","expires_in":300,"refresh_token":"r","scope":"a"}"#,
        )
        .unwrap();
        assert_eq!(token.access.expose(), "t");
        assert_eq!(token.refresh, Some(Secret::new("r")));
        assert_eq!(token.renew_at, Some(NOW + Duration::from_secs(270)));
        assert_eq!(token.scopes.to_string(), "a");
        assert!(token.is_fresh(NOW) && !token.is_fresh(NOW + Duration::from_secs(270)));
        // Omitted members keep their values.
        let token = read_text(200, r#"{"access_token":"t","expires_in":"60"}"#).unwrap();
        assert_eq!(token.refresh, Some(Secret::new("old")));
        assert_eq!(token.renew_at, Some(NOW + Duration::from_secs(54)));
        assert_eq!(token.scopes.to_string(), "a b");
        assert!(read_text(200, r#"{"access_token":"t"}"#).unwrap().is_fresh(SystemTime::now()));
    }

    #[test]
    fn a_refusal_is_one_sentence() {
        let refusal = read_text(400, r#"{"error":"invalid_grant","error_description":"it\n is over"}"#)
            .unwrap_err();
        assert!(refusal.is_final());
        assert_eq!(
            Error::from(refusal).to_string(),
            "the authorization server refused: invalid_grant (it  is over)"
        );
        let long = format!(r#"{{"error":"x","error_description":"{}"}}"#, "y".repeat(9000));
        assert!(Error::from(read_text(200, &long).unwrap_err()).to_string().len() < 300);
        assert!(!read_text(500, "{}").unwrap_err().is_final());
    }

    #[test]
    fn an_answer_without_a_usable_token_is_an_error() {
        for (status, body) in [
            (200, "<html>"),
            (200, "[]"),
            (200, "{}"),
            (500, r#"{"access_token":"t"}"#),
            (200, r#"{"access_token":""}"#),
            (200, r#"{"access_token":"a b"}"#),
            (200, r#"{"access_token":"a\r\nX: y"}"#),
            (200, r#"{"access_token":"t","token_type":"mac"}"#),
        ] {
            let error = Error::from(read_text(status, body).unwrap_err()).to_string();
            assert!(error.starts_with("the authorization server "), "{body}: {error}");
        }
    }

    #[test]
    fn a_refusal_does_not_quote_the_secrets_of_the_request() {
        let secrets = [Secret::new("hunter2"), Secret::new("t0ken".repeat(100)), Secret::new("")];
        let token = secrets[1].expose();
        let description = format!("{} is no token of hunter2: {token}", "x".repeat(150));
        let Refusal::Code(code, text) = refusal("invalid_grant", Some(&description), &secrets) else {
            panic!("it is a refusal with a code");
        };
        assert_eq!(code, "invalid_grant");
        assert!(text.ends_with("x is no token of …: …)"), "{text}");
    }

    #[test]
    fn no_token_is_shown() {
        let token = read_text(200, r#"{"access_token":"s3cret","refresh_token":"s3cret"}"#).unwrap();
        assert!(!format!("{token:?}").contains("s3cret"));
    }
}
