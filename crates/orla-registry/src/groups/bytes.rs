//! Bytes as text: base64 and hexadecimal digits.

use data_encoding::{
    BASE64, BASE64_NOPAD, BASE64URL, BASE64URL_NOPAD, Encoding, HEXLOWER, HEXLOWER_PERMISSIVE,
};
use rtfs::Value;

use crate::arguments::Arguments;
use crate::builtin::{Builtin, Parameter, defaulted, example, required};
use crate::error::BuiltinError;
use crate::limits::text_fits;
use crate::schema::{BOOLEAN, TEXT};

type Result<T> = std::result::Result<T, BuiltinError>;

/// The encoding of bytes in a text that is read.
pub(super) const FROM: Parameter = defaulted(
    "from",
    r#""enum":["text","hex","base64"]"#,
    "\"text\"",
    "How the bytes are written: as text (its UTF-8), as hexadecimal digits, or in base64.",
);
/// The encoding of written bytes.
pub(super) const TO: Parameter =
    defaulted("to", r#""enum":["hex","base64"]"#, "\"hex\"", "How the result is written.");
const ALPHABET: Parameter = defaulted(
    "alphabet",
    r#""enum":["standard","url"]"#,
    "\"standard\"",
    "`url` has - and _ for + and /.",
);
const HEX_OR_TEXT: Parameter = defaulted(
    "to",
    r#""enum":["text","hex","base64"]"#,
    "\"text\"",
    "How the bytes are written: as text, which they must be the UTF-8 of, as hexadecimal digits, or in base64.",
);

pub(super) static BASE64_BUILTINS: &[Builtin] = &[
    Builtin {
        name: "base64.decode",
        title: "Decode base64",
        description: "What base64 stands for, with either alphabet, with or without padding; white space is ignored.",
        parameters: &[required("text", TEXT, "The base64 text."), HEX_OR_TEXT],
        output: TEXT,
        examples: &[
            example(r#"{"text":"w7xiZXI"}"#, r#""über""#),
            example(r#"{"text":"_-8=","to":"hex"}"#, r#""ffef""#),
        ],
        run: |args| print(args, &from_base64("text", args.text("text")?)?),
    },
    Builtin {
        name: "base64.encode",
        title: "Encode in base64",
        description: "A text or bytes in base64.",
        parameters: &[
            required("data", TEXT, "What is encoded."),
            FROM,
            ALPHABET,
            defaulted("padding", BOOLEAN, "true", "Whether = fills up the end."),
        ],
        output: TEXT,
        examples: &[
            example(r#"{"data":"über"}"#, r#""w7xiZXI=""#),
            example(r#"{"data":"ffef","from":"hex","alphabet":"url","padding":false}"#, r#""_-8""#),
        ],
        run: encode,
    },
];

pub(super) static HEX_BUILTINS: &[Builtin] = &[
    Builtin {
        name: "hex.decode",
        title: "Decode hexadecimal digits",
        description: "What hexadecimal digits, two for each byte, stand for; white space and colons are ignored.",
        parameters: &[required("text", TEXT, "The digits, in either case."), HEX_OR_TEXT],
        output: TEXT,
        examples: &[example(r#"{"text":"C3BC 62"}"#, r#""üb""#)],
        run: |args| print(args, &from_hex("text", args.text("text")?)?),
    },
    Builtin {
        name: "hex.encode",
        title: "Encode in hexadecimal digits",
        description: "The UTF-8 of a text, or other bytes, as hexadecimal digits.",
        parameters: &[required("data", TEXT, "What is encoded."), FROM],
        output: TEXT,
        examples: &[example(r#"{"data":"üb"}"#, r#""c3bc62""#)],
        run: |args| encoded(&HEXLOWER, &read(args, "data")?),
    },
];

/// Returns the bytes of an argument, by the argument `from`.
pub(super) fn read(args: &Arguments<'_>, name: &str) -> Result<Vec<u8>> {
    type Read = fn(&str, &str) -> Result<Vec<u8>>;
    let ways: [(&str, Read); 3] =
        [("text", |_, text| Ok(text.as_bytes().to_vec())), ("hex", from_hex), ("base64", from_base64)];
    args.choice("from", &ways, ways[0].1)?(name, args.text(name)?)
}

/// Encodes bytes as the argument `to` requests.
pub(super) fn write(args: &Arguments<'_>, bytes: &[u8]) -> Result<Value> {
    let base64 = args.choice("to", &[("hex", false), ("base64", true)], false)?;
    encoded(&if base64 { BASE64 } else { HEXLOWER }, bytes)
}

fn print(args: &Arguments<'_>, bytes: &[u8]) -> Result<Value> {
    match args.choice(
        "to",
        &[("text", None), ("hex", Some(&HEXLOWER)), ("base64", Some(&BASE64))],
        None,
    )? {
        Some(encoding) => encoded(encoding, bytes),
        None => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Value::from(text)),
            Err(error) => {
                let problem =
                    format!("its bytes are not text (at byte {}); ask for hex", error.valid_up_to());
                Err(BuiltinError::content("text", problem))
            }
        },
    }
}

fn encode(args: &Arguments<'_>) -> Result<Value> {
    let url = args.choice("alphabet", &[("standard", false), ("url", true)], false)?;
    let encoding = match (url, args.flag("padding", true)?) {
        (false, true) => BASE64,
        (false, false) => BASE64_NOPAD,
        (true, true) => BASE64URL,
        (true, false) => BASE64URL_NOPAD,
    };
    encoded(&encoding, &read(args, "data")?)
}

fn encoded(encoding: &Encoding, bytes: &[u8]) -> Result<Value> {
    text_fits(bytes.len().checked_mul(2))?;
    Ok(Value::from(encoding.encode(bytes)))
}

fn from_hex(name: &str, text: &str) -> Result<Vec<u8>> {
    let digits: String = text.chars().filter(|c| !c.is_whitespace() && *c != ':').collect();
    HEXLOWER_PERMISSIVE
        .decode(digits.as_bytes())
        .map_err(|_| BuiltinError::content(name, "expected hexadecimal digits, two for each byte"))
}

fn from_base64(name: &str, text: &str) -> Result<Vec<u8>> {
    let standard = |c: char| match c {
        '-' => '+',
        '_' => '/',
        c => c,
    };
    let text = text.trim_end_matches(|c: char| c == '=' || c.is_whitespace());
    let text: String = text.chars().filter(|c| !c.is_whitespace()).map(standard).collect();
    BASE64_NOPAD.decode(text.as_bytes()).map_err(|error| {
        BuiltinError::content(name, format_args!("not base64 at character {}", error.position + 1))
    })
}
