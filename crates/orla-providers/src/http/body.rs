//! Bodies of requests: unchanged JSON, forms, multipart, text and bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use bytes::Bytes;
use orla_marketplace::{HttpParameter, HttpPart, ParameterPlace};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::arguments::{Arguments, Refused, Shape, shape, text};
use super::parameter::query_pairs;

/// The source of a body.
pub(super) enum Source<'a> {
    /// Several arguments.
    Members(Vec<(&'a str, &'a RawValue)>),
    /// One argument.
    Argument(&'a str, &'a RawValue),
}

/// A body and its media type; `None` if there is nothing to send.
pub(super) type Body = Option<(Bytes, String)>;

/// Encodes a body as a media type.
pub(super) fn write(
    source: &Source<'_>,
    media_type: &str,
    parts: &BTreeMap<String, HttpPart>,
) -> Result<Body, Refused> {
    let kind = essence(media_type);
    let body = match Form::of(&kind) {
        Form::Json => Bytes::from(json(source)),
        Form::Urlencoded => urlencoded(source),
        Form::Multipart => {
            let (boundary, body) = multipart(&members(source)?, parts)?;
            return Ok(Some((body, format!("multipart/form-data; boundary={boundary}"))));
        }
        Form::Text | Form::Bytes => {
            let (name, raw) = match source {
                Source::Argument(name, raw) => (*name, *raw),
                Source::Members(members) => match members[..] {
                    [] => return Ok(None),
                    [only] => only,
                    [_, (second, _), ..] => {
                        let expected = format!("one argument as the body of {kind}");
                        return Err(Refused::argument(second, &expected, "one more"));
                    }
                },
            };
            let text = text(raw);
            if Form::of(&kind) == Form::Text { text.into_owned().into() } else { base64(name, &text)? }
        }
    };
    Ok(Some((body, media_type.to_owned())))
}

/// The encoding of a media type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Urlencoded,
    Multipart,
    Text,
    Bytes,
}

impl Form {
    fn of(kind: &str) -> Self {
        match kind {
            "application/x-www-form-urlencoded" => Self::Urlencoded,
            "multipart/form-data" => Self::Multipart,
            _ if is_json(kind) => Self::Json,
            _ if is_text(kind) => Self::Text,
            _ => Self::Bytes,
        }
    }
}

/// Returns a media type without its parameters, in lower case.
pub(crate) fn essence(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns whether a media type without parameters is JSON.
pub(crate) fn is_json(kind: &str) -> bool {
    matches!(kind, "application/json" | "text/json") || kind.ends_with("+json")
}

/// Returns whether a media type without parameters is some other text.
pub(crate) fn is_text(kind: &str) -> bool {
    const TEXTS: [&str; 10] = [
        "application/xml",
        "application/yaml",
        "application/x-yaml",
        "application/toml",
        "application/javascript",
        "application/graphql",
        "application/sql",
        "application/x-ndjson",
        "application/jsonl",
        "application/x-www-form-urlencoded",
    ];
    kind.starts_with("text/")
        || kind.ends_with("+xml")
        || kind.ends_with("+yaml")
        || TEXTS.contains(&kind)
}

fn json(source: &Source<'_>) -> Vec<u8> {
    match source {
        Source::Argument(_, raw) => raw.get().into(),
        Source::Members(members) => {
            let mut out = Vec::from(b"{");
            for (name, raw) in members {
                if out.len() > 1 {
                    out.push(b',');
                }
                out.extend_from_slice(serde_json::Value::from(*name).to_string().as_bytes());
                out.push(b':');
                out.extend_from_slice(raw.get().as_bytes());
            }
            out.push(b'}');
            out
        }
    }
}

fn urlencoded(source: &Source<'_>) -> Bytes {
    let Ok(members) = members(source) else {
        // A string argument is the encoded form itself.
        let Source::Argument(_, raw) = source else { return Bytes::new() };
        return text(raw).into_owned().into();
    };
    let mut pairs = Vec::new();
    for (name, raw) in members.iter().filter(|(_, raw)| raw.get() != "null") {
        let parameter = HttpParameter::new(&**name, &**name, ParameterPlace::Query);
        match shape(raw) {
            Shape::Members(_) => {
                let mut whole = parameter;
                whole.style = orla_marketplace::ParameterStyle::Json;
                pairs.extend(query_pairs(&whole, raw));
            }
            Shape::One(_) | Shape::Many(_) => pairs.extend(query_pairs(&parameter, raw)),
        }
    }
    pairs.join("&").into()
}

type Members<'a> = Vec<(Cow<'a, str>, &'a RawValue)>;

fn members<'a>(source: &Source<'a>) -> Result<Members<'a>, Refused> {
    match source {
        Source::Members(members) => {
            Ok(members.iter().map(|(name, raw)| (Cow::Borrowed(*name), *raw)).collect())
        }
        Source::Argument(name, raw) => {
            let members = Arguments::parse(raw.get())
                .map_err(|_| Refused::argument(name, "an object", raw.get()))?;
            Ok(members.into_members())
        }
    }
}

fn multipart(
    members: &Members<'_>,
    parts: &BTreeMap<String, HttpPart>,
) -> Result<(String, Bytes), Refused> {
    let mut written: Vec<(String, Vec<u8>)> = Vec::new();
    for (name, raw) in members.iter().filter(|(_, raw)| raw.get() != "null") {
        let part = parts.get(&**name).cloned().unwrap_or_default();
        let quoted = quoted(name);
        let media_type = |usual: Option<&str>| match part.media_type.as_deref().or(usual) {
            Some(media_type) => format!("Content-Type: {media_type}\r\n"),
            None => String::new(),
        };
        match shape(raw) {
            items @ (Shape::One(_) | Shape::Many(_)) => {
                let items = match items {
                    Shape::Many(items) => items,
                    Shape::One(item) => vec![item],
                    Shape::Members(_) => Vec::new(),
                };
                for item in items {
                    if part.is_file {
                        let head = format!(
                            "Content-Disposition: form-data; name={quoted}; filename={quoted}\r\n{}",
                            media_type(Some("application/octet-stream"))
                        );
                        written.push((head, base64(name, &item)?.to_vec()));
                    } else {
                        let head = format!(
                            "Content-Disposition: form-data; name={quoted}\r\n{}",
                            media_type(None)
                        );
                        written.push((head, item.into_owned().into_bytes()));
                    }
                }
            }
            Shape::Members(_) => {
                let head = format!(
                    "Content-Disposition: form-data; name={quoted}\r\n{}",
                    media_type(Some("application/json"))
                );
                written.push((head, raw.get().into()));
            }
        }
    }
    // The boundary is a hash of the parts, so that a part can contain it only by breaking the hash.
    let mut hash = Sha256::new();
    for (head, content) in &written {
        hash.update(head);
        hash.update(content);
    }
    let boundary = format!("orla-{}", hex::encode(&hash.finalize()[..16]));
    let mut out = Vec::new();
    for (head, content) in &written {
        out.extend_from_slice(format!("--{boundary}\r\n{head}\r\n").as_bytes());
        out.extend_from_slice(content);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    Ok((boundary, out.into()))
}

/// Escapes a name in a part's header as browsers do (HTML §4.10.22.8).
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\r', "%0D").replace('\n', "%0A").replace('"', "%22"))
}

fn base64(name: &str, text: &str) -> Result<Bytes, Refused> {
    let compact: String = text.split_ascii_whitespace().collect();
    STANDARD
        .decode(&compact)
        .or_else(|_| URL_SAFE.decode(&compact))
        .map(Bytes::from)
        .map_err(|_| Refused::argument(name, "bytes as base64 text", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(json: &str, media_type: &str) -> (String, String) {
        let arguments = Arguments::parse(json).unwrap();
        let parts = BTreeMap::from([(
            "f".to_owned(),
            HttpPart { media_type: Some("image/png".into()), is_file: true },
        )]);
        let (body, media_type) =
            write(&Source::Members(arguments.iter().collect()), media_type, &parts).unwrap().unwrap();
        (String::from_utf8_lossy(&body).into_owned(), media_type)
    }

    #[test]
    fn members_are_written_as_the_media_type_says() {
        let cases = [
            (r#"{"a": 1.10, "b\n": [1]}"#, "application/json", r#"{"a":1.10,"b\n":[1]}"#),
            (r#"{"a": 1e400}"#, "application/merge-patch+json; charset=utf-8", r#"{"a":1e400}"#),
            (
                r#"{"a b": "x&y", "l": [1, 2], "o": {"k": 1}, "n": null}"#,
                "application/x-www-form-urlencoded",
                "a%20b=x%26y&l=1&l=2&o=%7B%22k%22%3A%201%7D",
            ),
            (r#"{"t": "hi\nthere"}"#, "text/plain", "hi\nthere"),
            (r#"{"t": "aGk="}"#, "application/octet-stream", "hi"),
        ];
        for (json, media_type, expected) in cases {
            assert_eq!(written(json, media_type), (expected.to_owned(), media_type.to_owned()));
        }
    }

    #[test]
    fn a_multipart_body_holds_texts_json_and_files() {
        let (body, media_type) = written(
            r#"{"t": "x", "o": {"k": 1.0}, "f": "aGk=", "e\"\r\nX: y": 1}"#,
            "multipart/form-data",
        );
        let boundary = media_type.split_once("boundary=").unwrap().1;
        let expected = [
            "Content-Disposition: form-data; name=\"t\"\r\n\r\nx",
            "Content-Disposition: form-data; name=\"o\"\r\nContent-Type: application/json\r\n\r\n{\"k\": 1.0}",
            "Content-Disposition: form-data; name=\"f\"; filename=\"f\"\r\nContent-Type: image/png\r\n\r\nhi",
            "Content-Disposition: form-data; name=\"e%22%0D%0AX: y\"\r\n\r\n1",
        ];
        let expected: String =
            expected.iter().map(|part| format!("--{boundary}\r\n{part}\r\n")).collect();
        assert_eq!(body, format!("{expected}--{boundary}--\r\n"));
    }

    #[test]
    fn invalid_base64_is_refused() {
        let raw: &RawValue = serde_json::from_str(r#""not base64!""#).unwrap();
        let refused = write(&Source::Argument("data", raw), "image/png", &BTreeMap::new()).unwrap_err();
        assert_eq!(refused.to_string(), "input.data: expected bytes as base64 text, got not base64!");
    }
}
