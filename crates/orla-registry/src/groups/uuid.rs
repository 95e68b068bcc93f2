//! UUIDs (RFC 9562) from arguments: a name, or a seed in place of random bytes.

use md5::Md5;
use rtfs::Value;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::arguments::Arguments;
use crate::builtin::{Builtin, Parameter, example, required};
use crate::error::BuiltinError;
use crate::groups::{date, record};
use crate::schema::TEXT;

type Result<T> = std::result::Result<T, BuiltinError>;

const UUID: &str = r#""type":"string","format":"uuid""#;
const SEED: Parameter = required(
    "seed",
    TEXT,
    "Any text; the same seed gives the same UUID. It takes the place of random bytes, and is as unique as it is.",
);
const NAMESPACE: Parameter =
    required("namespace", TEXT, "A UUID, or one of the well-known namespaces dns, url, oid and x500.");
const NAME: Parameter = required("name", TEXT, "The name within the namespace.");

pub(super) static BUILTINS: &[Builtin] = &[
    Builtin {
        name: "uuid.parse",
        title: "Read a UUID",
        description: "A UUID in its usual form, with its version, from any form: with or without hyphens and braces, \
                      as a URN, in either case.",
        parameters: &[required("text", TEXT, "The UUID.")],
        output: r#""type":"object","properties":{"uuid":{"type":"string"},"version":{"type":"integer"},"variant":{"type":"string"}}"#,
        examples: &[example(
            r#"{"text":"urn:uuid:F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6"}"#,
            r#"{"uuid":"f81d4fae-7dec-11d0-a765-00a0c91e6bf6","version":1,"variant":"rfc9562"}"#,
        )],
        run: parse,
    },
    Builtin {
        name: "uuid.v3",
        title: "UUID of a name, MD5",
        description: "The version 3 UUID of a name in a namespace. Where nothing asks for version 3, see uuid.v5.",
        parameters: &[NAMESPACE, NAME],
        output: UUID,
        examples: &[example(
            r#"{"namespace":"dns","name":"www.example.com"}"#,
            r#""5df41881-3aed-3515-88a7-2f4a814cf09e""#,
        )],
        run: |args| {
            let hash = Md5::new().chain_update(namespace(args)?.to_be_bytes());
            Ok(text(stamp(first(&hash.chain_update(args.text("name")?).finalize()), 3)))
        },
    },
    Builtin {
        name: "uuid.v4",
        title: "UUID of a seed",
        description: "A UUID in the form of version 4, made from a seed in place of random bytes.",
        parameters: &[SEED],
        output: UUID,
        examples: &[example(r#"{"seed":"order 7"}"#, r#""0fc89f8a-e193-44b4-8deb-d6353bb9ad33""#)],
        run: |args| Ok(text(stamp(seeded(args)?, 4))),
    },
    Builtin {
        name: "uuid.v5",
        title: "UUID of a name",
        description: "The version 5 UUID (SHA-1) of a name in a namespace.",
        parameters: &[NAMESPACE, NAME],
        output: UUID,
        examples: &[example(
            r#"{"namespace":"dns","name":"www.example.com"}"#,
            r#""2ed6657d-e927-568b-95e1-2665a8aea6a2""#,
        )],
        run: |args| {
            let hash = Sha1::new().chain_update(namespace(args)?.to_be_bytes());
            Ok(text(stamp(first(&hash.chain_update(args.text("name")?).finalize()), 5)))
        },
    },
    Builtin {
        name: "uuid.v7",
        title: "UUID of an instant",
        description: "A UUID of version 7, which sorts by time: from an instant, to the millisecond, and a seed in place \
                      of random bytes.",
        parameters: &[required("instant", TEXT, "The instant, such as 2026-11-20T10:00:00Z."), SEED],
        output: UUID,
        examples: &[example(
            r#"{"instant":"2026-11-20T10:00:00Z","seed":"order 7"}"#,
            r#""01a1f866-0d00-74b4-8deb-d6353bb9ad33""#,
        )],
        run: |args| {
            let milliseconds = date::milliseconds(args, "instant")?;
            let milliseconds = u64::try_from(milliseconds)
                .ok()
                .filter(|ms| *ms < 1 << 48)
                .ok_or_else(|| BuiltinError::content("instant", "expected an instant from 1970 on"))?;
            let random = seeded(args)? & ((1 << 80) - 1);
            Ok(text(stamp(u128::from(milliseconds) << 80 | random, 7)))
        },
    },
    Builtin {
        name: "uuid.v8",
        title: "UUID of one's own",
        description: "A UUID of version 8, which is for forms of one's own: from a seed.",
        parameters: &[SEED],
        output: UUID,
        examples: &[example(r#"{"seed":"order 7"}"#, r#""0fc89f8a-e193-84b4-8deb-d6353bb9ad33""#)],
        run: |args| Ok(text(stamp(seeded(args)?, 8))),
    },
];

fn text(bits: u128) -> Value {
    Value::from(rtfs::Uuid::from_u128(bits).to_string())
}

/// Returns the bits with a version, and the variant of RFC 9562.
fn stamp(bits: u128, version: u128) -> u128 {
    bits & !(0xf << 76) & !(0b11 << 62) | version << 76 | 0b10 << 62
}

fn first(hash: &[u8]) -> u128 {
    hash.iter().take(16).fold(0, |bits, byte| bits << 8 | u128::from(*byte))
}

fn seeded(args: &Arguments<'_>) -> Result<u128> {
    Ok(first(&Sha256::digest(args.text("seed")?)))
}

fn namespace(args: &Arguments<'_>) -> Result<u128> {
    const DNS: u128 = 0x6ba7_b810_9dad_11d1_80b4_00c0_4fd4_30c8;
    if let Some(Value::Uuid(uuid)) = args.given("namespace") {
        return Ok(uuid.as_u128());
    }
    match args.text("namespace")? {
        "dns" => Ok(DNS),
        "url" => Ok(DNS + (1 << 96)),
        "oid" => Ok(DNS + (2 << 96)),
        "x500" => Ok(DNS + (4 << 96)),
        text => bits(text)
            .ok_or_else(|| BuiltinError::content("namespace", "expected a UUID, dns, url, oid or x500")),
    }
}

fn bits(text: &str) -> Option<u128> {
    let text = text.trim();
    let text = text
        .get(..9)
        .filter(|urn| urn.eq_ignore_ascii_case("urn:uuid:"))
        .map_or(text, |urn| &text[urn.len()..]);
    let text = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
    let hyphens: Vec<usize> = text.match_indices('-').map(|(at, _)| at).collect();
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let whole = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let grouped = hyphens.is_empty() || hyphens == [8, 13, 18, 23];
    if whole && grouped { u128::from_str_radix(&digits, 16).ok() } else { None }
}

fn parse(args: &Arguments<'_>) -> Result<Value> {
    let bits = match args.given("text") {
        Some(Value::Uuid(uuid)) => uuid.as_u128(),
        _ => bits(args.text("text")?)
            .ok_or_else(|| BuiltinError::content("text", "expected a UUID of 32 digits"))?,
    };
    let variant = match bits >> 60 & 0xf {
        0..8 => "ncs",
        8..12 => "rfc9562",
        12 | 13 => "microsoft",
        _ => "reserved",
    };
    let version = i64::try_from(bits >> 76 & 0xf).unwrap_or(0);
    record([("uuid", text(bits)), ("version", Value::Int(version)), ("variant", Value::from(variant))])
}
