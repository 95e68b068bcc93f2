//! URLs: their parts, by the WHATWG standard, and percent-encoding.

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rtfs::{Map, Value};
use url::Url;

use crate::arguments::{Arguments, list, name_of};
use crate::builtin::{Builtin, Parameter, defaulted, example, optional, required};
use crate::error::BuiltinError;
use crate::groups::record;
use crate::limits::{BoundedText, deep, vector};
use crate::schema::{BOOLEAN, OBJECT, TEXT};

type Result<T> = std::result::Result<T, BuiltinError>;

const PARAMETERS: &str = r#""type":"object","additionalProperties":{"type":["string","number","boolean","null","array"],"items":{"type":["string","number","boolean"]}}"#;
const TEXT_IN: Parameter = required("text", TEXT, "The text.");
/// Encodes all but RFC 3986's unreserved characters.
const COMPONENT: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Encodes all but the characters that a whole URL may contain.
const WHOLE: AsciiSet = CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');
/// The maximum length of a URL.
const MAX_URL: usize = 1 << 20;

pub(super) static BUILTINS: &[Builtin] = &[
    Builtin {
        name: "url.build",
        title: "Build a URL",
        description: "A URL from its parts; what they contain is escaped where it has to be.",
        parameters: &[
            required("base", TEXT, "The URL to begin with, such as https://example.com/api."),
            optional(
                "path",
                r#""type":"array","items":{"type":"string"}"#,
                "Segments to append to the path; slashes in them are escaped.",
            ),
            optional(
                "query",
                OBJECT,
                "Parameters to append: text, number, boolean, or a list of those for several values; null for none.",
            ),
            optional("fragment", TEXT, "What follows #."),
        ],
        output: TEXT,
        examples: &[example(
            r#"{"base":"https://example.com/api","path":["a b","c/d"],"query":{"q":"x&y","n":[1,2]}}"#,
            r#""https://example.com/api/a%20b/c%2Fd?q=x%26y&n=1&n=2""#,
        )],
        run: build,
    },
    Builtin {
        name: "url.decode",
        title: "Decode percent signs",
        description: "The text with each %XX replaced by what it stands for; with `form`, + by a space too.",
        parameters: &[
            TEXT_IN,
            defaulted("form", BOOLEAN, "false", "Whether + stands for a space, as in forms."),
        ],
        output: TEXT,
        examples: &[example(r#"{"text":"a%20b%C3%BC"}"#, r#""a bü""#)],
        run: decode,
    },
    Builtin {
        name: "url.encode",
        title: "Encode with percent signs",
        description: "The text with everything escaped that may not stand in a part of a URL (`component`: letters, \
                      digits and - . _ ~ stay), or in a whole URL (`whole`).",
        parameters: &[
            TEXT_IN,
            defaulted(
                "for",
                r#""enum":["component","whole"]"#,
                "\"component\"",
                "Where the text will stand.",
            ),
        ],
        output: TEXT,
        examples: &[
            example(r#"{"text":"a b&ü"}"#, r#""a%20b%26%C3%BC""#),
            example(r#"{"text":"https://e.example/a b","for":"whole"}"#, r#""https://e.example/a%20b""#),
        ],
        run: encode,
    },
    Builtin {
        name: "url.join",
        title: "Resolve a reference",
        description: "The absolute URL that a reference means within a document at another URL.",
        parameters: &[
            required("base", TEXT, "The document's URL."),
            required("reference", TEXT, "The reference, such as ../a?b."),
        ],
        output: TEXT,
        examples: &[example(
            r#"{"base":"https://example.com/a/b/c","reference":"../d?e=1"}"#,
            r#""https://example.com/a/d?e=1""#,
        )],
        run: |args| {
            let joined = parsed(args, "base")?.join(bounded(args, "reference")?);
            joined
                .map(|url| Value::from(url.as_str()))
                .map_err(|error| BuiltinError::content("reference", error))
        },
    },
    Builtin {
        name: "url.parse",
        title: "Parse a URL",
        description: "The parts of an absolute URL, normalised: scheme, username, host, port (the scheme's own, if none \
                      is written), path, query with its parameters as pairs, fragment, and origin. A password is only \
                      said to be there.",
        parameters: &[required("url", TEXT, "The URL.")],
        output: r#""type":"object","properties":{"url":{"type":"string"},"scheme":{"type":"string"},"username":{"type":["string","null"]},"has_password":{"type":"boolean"},"host":{"type":["string","null"]},"port":{"type":["integer","null"]},"path":{"type":"string"},"query":{"type":["string","null"]},"parameters":{"type":"array","items":{"type":"array"}},"fragment":{"type":["string","null"]},"origin":{"type":["string","null"]}}"#,
        examples: &[example(
            r##"{"url":"HTTPS://me@Example.com/a/../b?x=1&x=2#top"}"##,
            r##"{"url":"https://me@example.com/b?x=1&x=2#top","scheme":"https","username":"me","has_password":false,"host":"example.com","port":443,"path":"/b","query":"x=1&x=2","parameters":[["x","1"],["x","2"]],"fragment":"top","origin":"https://example.com"}"##,
        )],
        run: parse,
    },
    Builtin {
        name: "url.parse_query",
        title: "Parse a query",
        description: "The parameters of a query or form (application/x-www-form-urlencoded), as an object: a text for \
                      what comes once, a list of texts for what comes several times.",
        parameters: &[required("query", TEXT, "The query, with or without its ?.")],
        output: OBJECT,
        examples: &[example(r#"{"query":"?a=1&b=x+y&a=2"}"#, r#"{"a":["1","2"],"b":"x y"}"#)],
        run: parse_query,
    },
    Builtin {
        name: "url.print_query",
        title: "Print a query",
        description: "Parameters as a query or form (application/x-www-form-urlencoded).",
        parameters: &[required(
            "parameters",
            PARAMETERS,
            "Text, number, boolean, or a list of those; null is left out.",
        )],
        output: TEXT,
        examples: &[example(r#"{"parameters":{"a":[1,2],"b":"x y","c":null}}"#, r#""a=1&a=2&b=x+y""#)],
        run: |args| {
            let mut form = url::form_urlencoded::Serializer::new(String::new());
            form.extend_pairs(pairs("parameters", args.map("parameters")?)?);
            let mut out = BoundedText::default();
            out.push(&form.finish())?;
            Ok(out.finish())
        },
    },
];

fn bounded<'a>(args: &Arguments<'a>, name: &str) -> Result<&'a str> {
    let text = args.text(name)?;
    if text.len() > MAX_URL { Err(BuiltinError::limit("the URL", "1 MiB")) } else { Ok(text) }
}

fn parsed(args: &Arguments<'_>, name: &str) -> Result<Url> {
    Url::parse(bounded(args, name)?).map_err(|error| BuiltinError::content(name, error))
}

fn build(args: &Arguments<'_>) -> Result<Value> {
    let mut url = parsed(args, "base")?;
    if let Some(path) = args.given("path") {
        let path = list("path", path)?;
        let mut segments = url.path_segments_mut().map_err(|()| {
            BuiltinError::content("base", "a URL of this scheme has no path of segments")
        })?;
        segments.pop_if_empty();
        for (i, segment) in path.iter().enumerate() {
            // The standard treats these as dot segments, escaped or not.
            let segment = crate::arguments::text(&format!("path[{i}]"), segment)?;
            if matches!(segment, "." | "..") {
                return Err(BuiltinError::content(format!("path[{i}]"), "a segment cannot be . or .."));
            }
            segments.push(segment);
        }
    }
    if args.given("query").is_some() {
        let pairs = pairs("query", args.map("query")?)?;
        if !pairs.is_empty() {
            url.query_pairs_mut().extend_pairs(pairs);
        }
    }
    if let Some(fragment) = args.optional_text("fragment")? {
        url.set_fragment(Some(fragment));
    }
    let mut out = BoundedText::default();
    out.push(url.as_str())?;
    Ok(out.finish())
}

fn pairs(name: &str, map: &Map) -> Result<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    for (key, value) in map.iter() {
        let key = name_of(key).map_or_else(|| key.to_string(), str::to_owned);
        let at = format!("{name}.{key}");
        match value {
            Value::Nil => {}
            Value::Vector(_) | Value::List(_) | Value::Set(_) => {
                for (i, item) in list(&at, value)?.iter().enumerate() {
                    pairs.push((key.clone(), scalar(&format!("{at}[{i}]"), item)?));
                }
            }
            value => pairs.push((key, scalar(&at, value)?)),
        }
    }
    Ok(pairs)
}

fn scalar(at: &str, value: &Value) -> Result<String> {
    match value {
        Value::Str(text) => Ok(text.as_str().to_owned()),
        Value::Keyword(keyword) => Ok(keyword.name().to_owned()),
        Value::Bool(_) | Value::Int(_) | Value::BigInt(_) | Value::Float(_) => Ok(value.to_string()),
        Value::Instant(_) | Value::Uuid(_) => Ok(value.to_string()),
        other => Err(BuiltinError::argument(at, "text, a number or a boolean", other)),
    }
}

fn decode(args: &Arguments<'_>) -> Result<Value> {
    let text = args.text("text")?;
    let spaced = if args.flag("form", false)? { text.replace('+', " ") } else { text.to_owned() };
    let decoded = percent_decode_str(&spaced).decode_utf8();
    decoded
        .map(|text| Value::from(&*text))
        .map_err(|_| BuiltinError::content("text", "the decoded text is not UTF-8"))
}

fn encode(args: &Arguments<'_>) -> Result<Value> {
    let set = args.choice("for", &[("component", &COMPONENT), ("whole", &WHOLE)], &COMPONENT)?;
    let mut out = BoundedText::default();
    for piece in utf8_percent_encode(args.text("text")?, set) {
        out.push(piece)?;
    }
    Ok(out.finish())
}

fn parse(args: &Arguments<'_>) -> Result<Value> {
    let mut url = parsed(args, "url")?;
    let has_password = url.password().is_some();
    if has_password {
        // The result does not matter here.
        let _has_no_host = url.set_password(None);
    }
    let optional = |text: Option<&str>| text.map_or(Value::Nil, Value::from);
    let pairs =
        url.query_pairs().map(|(key, value)| vector(vec![Value::from(&*key), Value::from(&*value)]));
    let origin = url.origin();
    record([
        ("url", Value::from(url.as_str())),
        ("scheme", Value::from(url.scheme())),
        ("username", optional(Some(url.username()).filter(|name| !name.is_empty()))),
        ("has_password", Value::Bool(has_password)),
        ("host", optional(url.host_str())),
        ("port", url.port_or_known_default().map_or(Value::Nil, |port| Value::Int(port.into()))),
        ("path", Value::from(url.path())),
        ("query", optional(url.query())),
        ("parameters", vector(pairs.collect::<Result<_>>()?)?),
        ("fragment", optional(url.fragment())),
        (
            "origin",
            if origin.is_tuple() { Value::from(origin.ascii_serialization()) } else { Value::Nil },
        ),
    ])
}

fn parse_query(args: &Arguments<'_>) -> Result<Value> {
    let query = args.text("query")?;
    let query = query.strip_prefix('?').unwrap_or(query);
    let mut values: Vec<(Value, Vec<Value>)> = Vec::new();
    let mut places = Map::new();
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let key = Value::keyword(&*key);
        let place = match places.get(&key) {
            Some(Value::Int(place)) => usize::try_from(*place).unwrap_or(0),
            _ => {
                deep(places.insert(key.clone(), super::size(values.len())))?;
                values.push((key, Vec::new()));
                values.len() - 1
            }
        };
        values[place].1.push(Value::from(&*value));
    }
    let mut map = Map::new();
    for (key, mut values) in values {
        let value = if values.len() == 1 { values.remove(0) } else { vector(values)? };
        deep(map.insert(key, value))?;
    }
    Ok(map.into())
}
