//! Arguments in the styles of OpenAPI (3.1 §4.8.12, "Style Values").

use std::borrow::Cow;

use orla_marketplace::{HttpParameter, ParameterStyle as Style};
use serde_json::value::RawValue;

use super::arguments::{Shape, shape};
use super::encode;

/// Returns the encoded pairs `name=value` that an argument adds to a query or to a form.
pub(super) fn query_pairs(parameter: &HttpParameter, raw: &RawValue) -> Vec<String> {
    let value = |text: &str| {
        if parameter.allow_reserved { encode::keeping_reserved(text) } else { encode::strict(text) }
    };
    let name = encode::strict(&parameter.name);
    let pair = |name: &str, text: &str| format!("{name}={text}");
    let shape = match parameter.style {
        Style::Json => Shape::One(raw.get().into()),
        _ => shape(raw),
    };
    let separator = match parameter.style {
        Style::SpaceDelimited => "%20",
        Style::PipeDelimited => "%7C",
        _ => ",",
    };
    match shape {
        Shape::One(text) => vec![pair(&name, &value(&text))],
        Shape::Many(items) if parameter.explode => {
            items.iter().map(|item| pair(&name, &value(item))).collect()
        }
        Shape::Many(items) if items.is_empty() => Vec::new(),
        Shape::Many(items) => {
            vec![pair(&name, &joined(items.iter().map(|item| value(item)), separator))]
        }
        Shape::Members(members) if parameter.style == Style::DeepObject => members
            .iter()
            .map(|(key, text)| pair(&format!("{name}%5B{}%5D", encode::strict(key)), &value(text)))
            .collect(),
        Shape::Members(members) if parameter.explode => {
            members.iter().map(|(key, text)| pair(&encode::strict(key), &value(text))).collect()
        }
        Shape::Members(members) if members.is_empty() => Vec::new(),
        Shape::Members(members) => {
            let flat = members.iter().flat_map(|(key, text)| [value(key), value(text)]);
            vec![pair(&name, &joined(flat, separator))]
        }
    }
}

/// Returns the text of an argument in a path. The text never leaves its segment.
pub(super) fn path_text(parameter: &HttpParameter, raw: &RawValue) -> String {
    let (style, explode) = (parameter.style, parameter.explode);
    let name = encode::strict(&parameter.name);
    match style {
        Style::Json => encode::strict(raw.get()),
        Style::Label => {
            let separator = if explode { "." } else { "," };
            format!(".{}", plain(raw, explode, separator, encode::strict))
        }
        Style::Matrix => match shape(raw) {
            Shape::One(text) => format!(";{name}={}", encode::strict(&text)),
            Shape::Many(items) if explode => {
                items.iter().map(|item| format!(";{name}={}", encode::strict(item))).collect()
            }
            Shape::Members(_) if explode => format!(";{}", plain(raw, true, ";", encode::strict)),
            Shape::Many(_) | Shape::Members(_) => {
                format!(";{name}={}", plain(raw, false, ",", encode::strict))
            }
        },
        _ => plain(raw, explode, ",", encode::strict),
    }
}

/// Returns the value of an argument in a header field.
pub(super) fn header_text(parameter: &HttpParameter, raw: &RawValue) -> String {
    match parameter.style {
        Style::Json => raw.get().to_owned(),
        _ => plain(raw, parameter.explode, ",", str::to_owned),
    }
}

/// Joins items and members: `a,b`, `k,v`, and `k=v` if they are exploded.
fn plain(raw: &RawValue, explode: bool, separator: &str, encoded: impl Fn(&str) -> String) -> String {
    match shape(raw) {
        Shape::One(text) => encoded(&text),
        Shape::Many(items) => joined(items.iter().map(|item| encoded(item)), separator),
        Shape::Members(members) if explode => {
            let pair = |(key, text): &(Cow<'_, str>, Cow<'_, str>)| {
                format!("{}={}", encoded(key), encoded(text))
            };
            joined(members.iter().map(pair), separator)
        }
        Shape::Members(members) => {
            let flat = members.iter().flat_map(|(key, text)| [encoded(key), encoded(text)]);
            joined(flat, separator)
        }
    }
}

fn joined(texts: impl Iterator<Item = String>, separator: &str) -> String {
    texts.collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests {
    use orla_marketplace::ParameterPlace as Place;

    use super::*;

    fn parameter(place: Place, style: Style, explode: bool) -> HttpParameter {
        let mut parameter = HttpParameter::new("color", "color", place);
        (parameter.style, parameter.explode) = (style, explode);
        parameter
    }

    fn raw(json: &str) -> &RawValue {
        serde_json::from_str(json).unwrap()
    }

    const ONE: &str = r#""blue""#;
    const MANY: &str = r#"["blue","black"]"#;
    const MEMBERS: &str = r#"{"R":100,"G":200}"#;

    #[test]
    fn a_query_is_written_in_every_style() {
        let cases = [
            (Style::Form, true, ONE, "color=blue"),
            (Style::Form, true, MANY, "color=blue&color=black"),
            (Style::Form, false, MANY, "color=blue,black"),
            (Style::Form, true, MEMBERS, "R=100&G=200"),
            (Style::Form, false, MEMBERS, "color=R,100,G,200"),
            (Style::SpaceDelimited, false, MANY, "color=blue%20black"),
            (Style::PipeDelimited, false, MANY, "color=blue%7Cblack"),
            (Style::DeepObject, true, MEMBERS, "color%5BR%5D=100&color%5BG%5D=200"),
            (Style::Json, false, r#"{"a": "ü"}"#, "color=%7B%22a%22%3A%20%22%C3%BC%22%7D"),
            (Style::Form, true, r#""a&b=c#d""#, "color=a%26b%3Dc%23d"),
            (Style::Form, true, "[]", ""),
            (Style::Form, false, "[]", ""),
        ];
        for (style, explode, json, expected) in cases {
            let pairs = query_pairs(&parameter(Place::Query, style, explode), raw(json));
            assert_eq!(pairs.join("&"), expected, "{style:?} {explode} {json}");
        }
    }

    #[test]
    fn a_path_is_written_in_every_style() {
        let cases = [
            (Style::Simple, false, ONE, "blue"),
            (Style::Simple, true, MANY, "blue,black"),
            (Style::Simple, false, MEMBERS, "R,100,G,200"),
            (Style::Simple, true, MEMBERS, "R=100,G=200"),
            (Style::Label, false, ONE, ".blue"),
            (Style::Label, false, MANY, ".blue,black"),
            (Style::Label, true, MANY, ".blue.black"),
            (Style::Label, true, MEMBERS, ".R=100.G=200"),
            (Style::Matrix, false, ONE, ";color=blue"),
            (Style::Matrix, false, MANY, ";color=blue,black"),
            (Style::Matrix, true, MANY, ";color=blue;color=black"),
            (Style::Matrix, false, MEMBERS, ";color=R,100,G,200"),
            (Style::Matrix, true, MEMBERS, ";R=100;G=200"),
            (Style::Simple, false, r#""../a?b#c""#, "..%2Fa%3Fb%23c"),
        ];
        for (style, explode, json, expected) in cases {
            let text = path_text(&parameter(Place::Path, style, explode), raw(json));
            assert_eq!(text, expected, "{style:?} {explode} {json}");
        }
    }

    #[test]
    fn a_header_is_written_as_it_is() {
        let text = header_text(&parameter(Place::Header, Style::Simple, false), raw(r#"["a b", 1.10]"#));
        assert_eq!(text, "a b,1.10");
    }
}
