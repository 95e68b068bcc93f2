//! The challenge of a 401 or 403: `WWW-Authenticate` (RFC 9110 §11.6.1, RFC 6750 §3, RFC 9728 §5.1).
//! Pure.

use crate::scope::Scopes;

/// The most bytes of a header field that are read.
const MAX_FIELD: usize = 8 * 1024;

/// The parameters of a challenge of the scheme `Bearer`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Challenge {
    /// The address of the resource's metadata.
    pub resource_metadata: Option<String>,
    /// The scopes that the request needs.
    pub scopes: Option<Scopes>,
    /// The code of the error; `None` if no token was sent.
    pub error: Option<String>,
}

/// Returns the parameters of the first challenge of the scheme `Bearer`, with their names in lower case.
pub fn bearer_parameters<'a>(
    values: impl IntoIterator<Item = &'a str>,
) -> Option<Vec<(String, String)>> {
    let mut challenges = values.into_iter().flat_map(challenges);
    challenges
        .find(|challenge| challenge.scheme.eq_ignore_ascii_case("bearer"))
        .map(|bearer| bearer.parameters)
}

impl Challenge {
    /// Returns the first challenge of the scheme `Bearer` in the values of the header field.
    pub fn of<'a>(values: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let parameters = bearer_parameters(values)?;
        let parameter = |name: &str| {
            let mut found = parameters.iter().filter(|(known, _)| known == name);
            found.next().map(|(_, value)| value.clone())
        };
        Some(Self {
            resource_metadata: parameter("resource_metadata"),
            scopes: parameter("scope").map(|scope| Scopes::parse(&scope)),
            error: parameter("error"),
        })
    }

    /// Returns whether the token lacks scopes (RFC 6750 §3.1).
    pub fn is_step_up(&self) -> bool {
        self.error.as_deref() == Some("insufficient_scope")
    }
}

#[derive(Debug, Default)]
struct Raw {
    scheme: String,
    /// Names in lower case.
    parameters: Vec<(String, String)>,
}

/// Returns the challenges of one header field. Unreadable parts are skipped.
fn challenges(field: &str) -> Vec<Raw> {
    let mut rest = Rest(&field.as_bytes()[..field.len().min(MAX_FIELD)]);
    let mut found: Vec<Raw> = Vec::new();
    loop {
        rest.skip(|byte| matches!(byte, b' ' | b'\t' | b','));
        if rest.0.is_empty() {
            return found;
        }
        let name = rest.take(is_token);
        if name.is_empty() {
            rest.0 = &rest.0[1..];
            continue;
        }
        rest.skip(|byte| matches!(byte, b' ' | b'\t'));
        match (rest.0.first(), found.last_mut()) {
            (Some(b'='), Some(challenge)) => {
                rest.0 = &rest.0[1..];
                rest.skip(|byte| matches!(byte, b' ' | b'\t'));
                let value = rest.value();
                challenge.parameters.push((name.to_ascii_lowercase(), value));
            }
            _ => found.push(Raw { scheme: name, parameters: Vec::new() }),
        }
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The unread bytes.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn skip(&mut self, is_skipped: fn(u8) -> bool) {
        let end = self.0.iter().position(|byte| !is_skipped(*byte)).unwrap_or(self.0.len());
        self.0 = &self.0[end..];
    }

    fn take(&mut self, is_part: fn(u8) -> bool) -> String {
        let end = self.0.iter().position(|byte| !is_part(*byte)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at(end);
        self.0 = rest;
        String::from_utf8_lossy(taken).into_owned()
    }

    /// Returns a quoted string, or everything up to a space or a comma.
    fn value(&mut self) -> String {
        let Some(quoted) = self.0.strip_prefix(b"\"") else {
            return self.take(|byte| !matches!(byte, b' ' | b'\t' | b','));
        };
        let mut value = Vec::new();
        let mut bytes = quoted.iter();
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' => break,
                b'\\' => value.extend(bytes.next()),
                byte => value.push(*byte),
            }
        }
        self.0 = bytes.as_slice();
        String::from_utf8_lossy(&value).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_challenge_is_found_among_others() {
        let of = |field: &str| Challenge::of([field]);
        let full = of(
            r#"Basic realm="a, Bearer b", DPoP algs="ES256", bearer Error = "insufficient_scope" , scope="a  b\"c", resource_metadata="https://x.example/.well-known/oauth-protected-resource/mcp""#,
        )
        .unwrap();
        assert_eq!(full.error.as_deref(), Some("insufficient_scope"));
        assert!(full.is_step_up());
        assert_eq!(full.scopes.unwrap().to_string(), "a");
        assert_eq!(
            full.resource_metadata.as_deref(),
            Some("https://x.example/.well-known/oauth-protected-resource/mcp")
        );
        assert_eq!(of("Bearer"), Some(Challenge::default()));
        assert_eq!(of("Bearer scope=read").unwrap().scopes, Some(Scopes::parse("read")));
        assert_eq!(of("Basic abc=="), None);
        assert_eq!(of(""), None);
        assert_eq!(Challenge::of(["Basic x", "Bearer error=e"]).unwrap().error.as_deref(), Some("e"));
        // The first of two values counts.
        assert_eq!(of(r#"Bearer error="a", error="b""#).unwrap().error.as_deref(), Some("a"));
    }

    proptest! {
        #[test]
        fn any_field_is_read_to_its_end(field in ".{0,200}") {
            let _ = Challenge::of([field.as_str()]);
        }

        #[test]
        fn a_quoted_value_is_read_as_it_was(value in "[ -~]{0,60}") {
            let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
            let field = format!("Bearer resource_metadata=\"{quoted}\", error=x");
            let challenge = Challenge::of([field.as_str()]).unwrap();
            prop_assert_eq!(challenge.resource_metadata, Some(value));
            prop_assert_eq!(challenge.error.as_deref(), Some("x"));
        }
    }
}
