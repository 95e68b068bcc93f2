//! Parts of texts and conversions.

use heck::{
    ToKebabCase as _, ToLowerCamelCase as _, ToPascalCase as _, ToShoutySnakeCase as _,
    ToSnakeCase as _, ToTitleCase as _,
};
use icu_normalizer::{
    ComposingNormalizerBorrowed as Composing, DecomposingNormalizerBorrowed as Decomposing,
};
use rtfs::Value;
use unicode_segmentation::UnicodeSegmentation as _;

use super::Result;
use crate::arguments::Arguments;
use crate::error::BuiltinError;
use crate::groups::size;
use crate::limits::{BoundedText, items_fit, text_fits, vector};

type Rewrite = fn(&str) -> String;
type Measure = fn(&str) -> usize;

/// Returns a text whose length grew by a small factor at most.
pub(super) fn bounded(text: String) -> Result<Value> {
    text_fits(Some(text.len()))?;
    Ok(Value::from(text))
}

pub(super) fn some_part<'a>(args: &Arguments<'a>) -> Result<&'a str> {
    match args.text("part")? {
        "" => Err(BuiltinError::content("part", "it must not be empty")),
        part => Ok(part),
    }
}

pub(super) fn case(args: &Arguments<'_>) -> Result<Value> {
    let text = args.text("text")?;
    args.text("style")?;
    let styles: [(&str, Rewrite); 6] = [
        ("snake", |text| text.to_snake_case()),
        ("kebab", |text| text.to_kebab_case()),
        ("camel", |text| text.to_lower_camel_case()),
        ("pascal", |text| text.to_pascal_case()),
        ("constant", |text| text.to_shouty_snake_case()),
        ("title", |text| text.to_title_case()),
    ];
    bounded(args.choice("style", &styles, styles[0].1)?(text))
}

pub(super) fn index_of(args: &Arguments<'_>) -> Result<Value> {
    let (text, part) = (args.text("text")?, args.text("part")?);
    let at = if args.flag("last", false)? { text.rfind(part) } else { text.find(part) };
    Ok(at.map_or(Value::Nil, |at| size(text[..at].chars().count())))
}

pub(super) fn join(args: &Arguments<'_>) -> Result<Value> {
    let (items, separator) = (args.list("items")?, args.text_or("separator", "")?);
    let mut out = BoundedText::default();
    let mut first = true;
    for (i, item) in items.iter().enumerate() {
        if matches!(item, Value::Nil) {
            continue;
        }
        if !first {
            out.push(separator)?;
        }
        first = false;
        match item {
            Value::Str(text) => out.push(text.as_str())?,
            Value::Keyword(keyword) => out.push(keyword.name())?,
            Value::Bool(_) | Value::Int(_) | Value::BigInt(_) | Value::Float(_) => out.write(item)?,
            Value::Instant(_) | Value::Uuid(_) => out.write(item)?,
            other => {
                let expected = "a text, a number or a boolean";
                return Err(BuiltinError::argument(format!("items[{i}]"), expected, other));
            }
        }
    }
    Ok(out.finish())
}

pub(super) fn length(args: &Arguments<'_>) -> Result<Value> {
    let text = args.text("text")?;
    let units: [(&str, Measure); 5] = [
        ("characters", |text| text.chars().count()),
        ("graphemes", |text| text.graphemes(true).count()),
        ("bytes", str::len),
        ("words", |text| text.unicode_words().count()),
        ("lines", |text| text.lines().count()),
    ];
    Ok(size(args.choice("unit", &units, units[0].1)?(text)))
}

pub(super) fn normalize(args: &Arguments<'_>) -> Result<Value> {
    let text = args.text("text")?;
    let forms: [(&str, Rewrite); 4] = [
        ("nfc", |text| Composing::new_nfc().normalize(text).into_owned()),
        ("nfd", |text| Decomposing::new_nfd().normalize(text).into_owned()),
        ("nfkc", |text| Composing::new_nfkc().normalize(text).into_owned()),
        ("nfkd", |text| Decomposing::new_nfkd().normalize(text).into_owned()),
    ];
    // One character becomes up to 18, of three bytes, so the intermediate text stays within 18 times the
    // limit.
    bounded(args.choice("form", &forms, forms[0].1)?(text))
}

pub(super) fn repeat(args: &Arguments<'_>) -> Result<Value> {
    let (text, count, separator) =
        (args.text("text")?, args.count("count")?, args.text_or("separator", "")?);
    let gaps = count.saturating_sub(1).checked_mul(separator.len());
    let bytes = text.len().checked_mul(count).and_then(|bytes| bytes.checked_add(gaps?));
    // Repeating an empty text forever would not end.
    if text.is_empty() && separator.is_empty() {
        return Ok(Value::from(""));
    }
    let mut out = String::with_capacity(text_fits(bytes)?);
    for i in 0..count {
        if i > 0 {
            out.push_str(separator);
        }
        out.push_str(text);
    }
    Ok(Value::from(out))
}

pub(super) fn replace(args: &Arguments<'_>) -> Result<Value> {
    let (text, from, to) = (args.text("text")?, args.text("from")?, args.text("to")?);
    if from.is_empty() {
        return Err(BuiltinError::content("from", "it must not be empty"));
    }
    let limit = args.optional_count("limit")?.unwrap_or(usize::MAX);
    let mut out = BoundedText::default();
    let mut done = 0;
    for (at, _) in text.match_indices(from).take(limit) {
        out.push(&text[done..at])?;
        out.push(to)?;
        done = at + from.len();
    }
    out.push(&text[done..])?;
    Ok(out.finish())
}

pub(super) fn split(args: &Arguments<'_>) -> Result<Value> {
    let (text, limit) = (args.text("text")?, args.optional_count("limit")?.unwrap_or(usize::MAX));
    if limit == 0 {
        return Err(BuiltinError::content("limit", "expected at least 1"));
    }
    let parts: Vec<Value> = match args.optional_text("separator")? {
        Some("") => return Err(BuiltinError::content("separator", "it must not be empty")),
        Some(separator) => text.splitn(limit, separator).map(Value::from).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim();
            while !rest.is_empty() {
                match rest.split_once(char::is_whitespace).filter(|_| parts.len() + 1 < limit) {
                    Some((part, after)) => {
                        parts.push(Value::from(part));
                        rest = after.trim_start();
                    }
                    None => {
                        parts.push(Value::from(rest));
                        rest = "";
                    }
                }
            }
            parts
        }
    };
    items_fit(Some(parts.len()))?;
    vector(parts)
}

pub(super) fn trim(args: &Arguments<'_>) -> Result<Value> {
    let text = args.text("text")?;
    let characters = args.optional_text("characters")?.map(|text| {
        let mut characters: Vec<char> = text.chars().collect();
        characters.sort_unstable();
        characters
    });
    let (start, end) = args.choice(
        "side",
        &[("both", (true, true)), ("start", (true, false)), ("end", (false, true))],
        (true, true),
    )?;
    let is_cut = |c: char| {
        characters.as_ref().map_or(c.is_whitespace(), |characters| characters.binary_search(&c).is_ok())
    };
    let text = if start { text.trim_start_matches(is_cut) } else { text };
    Ok(Value::from(if end { text.trim_end_matches(is_cut) } else { text }))
}
