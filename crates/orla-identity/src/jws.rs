//! A signed token in its compact form (RFC 7515 §7.1): `HEADER.CLAIMS.SIGNATURE`, parsed and not yet
//! verified.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::algorithm::Algorithm;
use crate::json::{Object, object};

/// The maximum length of a token, in bytes.
pub(crate) const MAX_TOKEN: usize = 16 * 1024;

/// A parsed token.
pub(crate) struct Signed<'a> {
    pub(crate) header: Object,
    pub(crate) claims: Object,
    pub(crate) algorithm: Algorithm,
    /// The signed bytes.
    pub(crate) message: &'a [u8],
    pub(crate) signature: Vec<u8>,
}

/// Returns whether a token has the form of a signed one, not of an opaque one.
pub(crate) fn looks_signed(token: &str) -> bool {
    token.bytes().filter(|byte| *byte == b'.').count() >= 2
}

impl<'a> Signed<'a> {
    /// Parses a token.
    ///
    /// # Errors
    /// Why it is not one, for the log.
    pub(crate) fn parse(token: &'a str) -> Result<Self, &'static str> {
        if token.len() > MAX_TOKEN {
            return Err("the token is too long");
        }
        let (message, signature) = token.rsplit_once('.').ok_or("the token is not a JWT")?;
        let (header, claims) = message.split_once('.').ok_or("the token is not a JWT")?;
        if claims.contains('.') {
            return Err("the token is not a signed JWT");
        }
        let decode =
            |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).map_err(|_| "the token is not base64url");
        let part = |text: &str| object(&decode(text)?).ok_or("the token is not made of JSON objects");
        let (header, claims) = (part(header)?, part(claims)?);
        // Extensions that must be understood (RFC 7515 §4.1.11), and nested tokens (RFC 7519 §5.2) are
        // refused.
        if header.contains_key("crit") {
            return Err("the token has a critical extension");
        }
        // A payload in any other encoding than base64url is refused too (RFC 7797 §3).
        if ["cty", "enc", "zip", "b64"].iter().any(|name| header.contains_key(*name)) {
            return Err("the token is nested, encrypted, compressed or not encoded");
        }
        let algorithm = header.get("alg").and_then(Value::as_str).and_then(Algorithm::named);
        let algorithm = algorithm.ok_or("the algorithm is not supported")?;
        Ok(Self {
            header,
            claims,
            algorithm,
            message: message.as_bytes(),
            signature: decode(signature)?,
        })
    }

    /// Returns the name of the key that signed it.
    ///
    /// # Errors
    /// It is not a text.
    pub(crate) fn key_id(&self) -> Result<Option<&str>, &'static str> {
        match self.header.get("kid") {
            None => Ok(None),
            Some(Value::String(id)) => Ok(Some(id)),
            Some(_) => Err("the key id is not a text"),
        }
    }

    /// Returns the media type, in lower case and without `application/` (RFC 7515 §4.1.9). A token that names
    /// none is a `jwt` (RFC 7519 §5.1).
    pub(crate) fn media_type(&self) -> Option<String> {
        let Some(name) = self.header.get("typ") else { return Some("jwt".to_owned()) };
        let name = name.as_str()?.to_ascii_lowercase();
        Some(name.strip_prefix("application/").map_or_else(|| name.clone(), str::to_owned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(header: &str, claims: &str) -> String {
        let encode = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}.AAAA", encode(header), encode(claims))
    }

    #[test]
    fn a_token_with_anything_that_is_not_understood_is_refused() {
        let good = r#"{"alg":"RS256"}"#;
        for (token, is_read) in [
            (token(good, "{}"), true),
            (token(r#"{"alg":"none"}"#, "{}"), false),
            (token(r#"{"alg":"NoNe"}"#, "{}"), false),
            (token(r#"{"alg":"HS256"}"#, "{}"), false),
            (token(r#"{"alg":["RS256"]}"#, "{}"), false),
            (token("{}", "{}"), false),
            (token(r#"{"alg":"RS256","alg":"none"}"#, "{}"), false),
            (token(r#"{"alg":"RS256","crit":[]}"#, "{}"), false),
            (token(r#"{"alg":"RS256","crit":["exp"],"exp":1}"#, "{}"), false),
            (token(r#"{"alg":"RS256","cty":"JWT"}"#, "{}"), false),
            (token(r#"{"alg":"RS256","zip":"DEF"}"#, "{}"), false),
            (token(good, r#"{"sub":"a","sub":"b"}"#), false),
            (token(good, "[]"), false),
            (token(good, "{}") + "==", false),
            (token(good, "{}") + ".x", false),
            (token(good, "{}") + "\n", false),
            (token(good, &format!(r#"{{"a":"{}"}}"#, "x".repeat(MAX_TOKEN))), false),
            ("..".to_owned(), false),
            ("x".to_owned(), false),
        ] {
            assert_eq!(Signed::parse(&token).is_ok(), is_read, "{token:.60}");
        }
    }

    #[test]
    fn a_media_type_is_compared_without_its_prefix_and_its_case() {
        for (header, wanted) in [
            (r#"{"alg":"RS256","typ":"at+jwt"}"#, Some("at+jwt")),
            (r#"{"alg":"RS256","typ":"application/AT+JWT"}"#, Some("at+jwt")),
            (r#"{"alg":"RS256","typ":7}"#, None),
            (r#"{"alg":"RS256","typ":null}"#, None),
            (r#"{"alg":"RS256"}"#, Some("jwt")),
        ] {
            let token = token(header, "{}");
            assert_eq!(Signed::parse(&token).unwrap().media_type().as_deref(), wanted, "{header}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_fail(text in "\\PC{0,80}", dots in "[A-Za-z0-9_.=-]{0,80}") {
            let _ = Signed::parse(&text).is_ok() || Signed::parse(&dots).is_ok();
        }

        #[test]
        fn a_changed_byte_changes_what_is_read_or_is_refused(at in 0..60_usize, byte in 0x2d..0x7b_u8) {
            let original = token(r#"{"alg":"ES256","kid":"k"}"#, r#"{"sub":"ada","iss":"i"}"#);
            let mut bytes = original.clone().into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            let changed = String::from_utf8(bytes).unwrap();
            let (before, after) = (Signed::parse(&original).unwrap(), Signed::parse(&changed));
            if changed != original && let Ok(after) = after {
                prop_assert!(after.message != before.message || after.signature != before.signature);
            }
        }
    }
}
