//! Strings. Indices count characters.

use super::draft::{Draft, itoa};
use super::{
    ANY, Answer, Entry, count_of, int_of, items_of, len_of, many, one, shown, text_of, two, wrong,
};
use crate::error::counted;
use crate::machine::{Context, Fault, fault};
use crate::scalar::{Keyword, Str, Symbol};
use crate::sequence::{MAX_PARTS, Vector};
use crate::value::Value;

pub(super) static ENTRIES: &[Entry] = &[
    many("str", 0, ANY, str_of),
    many("pr-str", 0, ANY, pr_str),
    many("substring", 2, 3, substring),
    two("string-contains?", |_, s, part| {
        Ok(Value::Bool(text_of("string-contains?", s)?.contains(text_of("string-contains?", part)?)))
    })
    .walks()
    .scalar(),
    two("starts-with?", |_, s, part| {
        Ok(Value::Bool(text_of("starts-with?", s)?.starts_with(text_of("starts-with?", part)?)))
    })
    .scalar(),
    two("ends-with?", |_, s, part| {
        Ok(Value::Bool(text_of("ends-with?", s)?.ends_with(text_of("ends-with?", part)?)))
    })
    .scalar(),
    one("string-upper", |context, s| changed(context, "string-upper", s, str::to_uppercase)),
    one("string-lower", |context, s| changed(context, "string-lower", s, str::to_lowercase)),
    one("string-trim", |context, s| part(context, text_of("string-trim", s)?.trim())),
    one("trim-start", |context, s| part(context, text_of("trim-start", s)?.trim_start())),
    one("trim-end", |context, s| part(context, text_of("trim-end", s)?.trim_end())),
    many("string-join", 1, 2, join),
    two("split", split),
    one("split-lines", |context, s| {
        context.reserve(s.items().map_or(0, <[_]>::len))?;
        flat(text_of("split-lines", s)?.lines().map(Value::from).collect())
    }),
    many("replace", 3, 3, |context, args| replace(context, "replace", args, false)),
    many("replace-first", 3, 3, |context, args| replace(context, "replace-first", args, true)),
    two("repeat-string", repeat_string),
    many("pad-start", 2, 3, |context, args| pad(context, "pad-start", args, true)),
    many("pad-end", 2, 3, |context, args| pad(context, "pad-end", args, false)),
    one("reverse-string", |context, s| {
        changed(context, "reverse-string", s, |text| text.chars().rev().collect())
    }),
    one("blank?", |_, s| {
        Ok(Value::Bool(
            matches!(s, Value::Nil) || text_of("blank?", s)?.chars().all(char::is_whitespace),
        ))
    })
    .walks()
    .scalar(),
    many("char-code", 1, 2, char_code).walks().scalar(),
    many("from-char-codes", 0, ANY, from_char_codes).walks(),
    many("keyword", 1, 2, |_, args| named(args, |name| Value::Keyword(Keyword::new(name)))).walks(),
    many("symbol", 1, 2, |_, args| named(args, |name| Value::Symbol(Symbol::new(name)))).walks(),
    one("name", |_, x| match x {
        Value::Keyword(keyword) => Ok(keyword.name().into()),
        Value::Symbol(symbol) => Ok(symbol.name().into()),
        Value::Str(_) => Ok(x.clone()),
        other => Err(wrong("name", "a keyword, a symbol or a string", other)),
    })
    .walks(),
    many("gensym", 0, 1, gensym),
];

fn str_of(context: &mut Context, args: &mut [Value]) -> Answer {
    for arg in args.iter() {
        super::data::known(arg)?;
    }
    // A text that is not shared grows in place.
    if let [Value::Str(own), others @ ..] = args
        && !others.is_empty()
        && own.is_unique()
    {
        let before = own.capacity();
        append(context, own, others)?;
        let more = own.capacity().saturating_sub(before);
        context.allocated(more);
        context.cost += more as u64 / 256;
        return Ok(std::mem::take(&mut args[0]));
    }
    let mut draft = Draft::new(context);
    for arg in args.iter() {
        draft.push(context, arg)?;
    }
    draft.done(context)
}

/// Appends the `str` forms of these values, if there is room for all of them.
fn append(context: &mut Context, own: &mut Str, others: &[Value]) -> Result<(), Box<Fault>> {
    let size = |arg: &Value| match arg {
        Value::Str(more) => Some(more.as_str().len()),
        Value::Int(_) => Some(20),
        _ => None,
    };
    match others.iter().map(size).sum::<Option<usize>>() {
        Some(size) if size > context.remaining() => return Err(context.crowded()),
        Some(_) => {
            for arg in others {
                match arg {
                    Value::Str(more) => own.push_str(more.as_str()),
                    Value::Int(n) => own.push_str(itoa(*n, &mut [0; 20])),
                    _ => {}
                }
            }
        }
        None => {
            let mut draft = Draft::new(context);
            others.iter().try_for_each(|arg| draft.push(context, arg))?;
            own.push_str(draft.text());
        }
    }
    Ok(())
}

fn made(context: &mut Context, text: String) -> Answer {
    context.allocated(56 + text.len());
    context.cost += text.len() as u64 / 256;
    Ok(text.into())
}

fn pr_str(context: &mut Context, args: &mut [Value]) -> Answer {
    let mut draft = Draft::new(context);
    for (at, arg) in args.iter().enumerate() {
        super::data::known(arg)?;
        let space = if at > 0 { " " } else { "" };
        draft.put(context, format_args!("{space}{arg:?}"))?;
    }
    draft.done(context)
}

/// Returns the byte where a character begins; `None` beyond the end.
pub(super) fn byte_of(text: &Str, at: usize) -> Option<usize> {
    let len = text.as_str().len();
    if text.is_ascii() {
        return (at <= len).then_some(at);
    }
    if at == text.char_count() {
        return Some(len);
    }
    text.as_str().char_indices().nth(at).map(|(byte, _)| byte)
}

/// Returns a part of a text as a new text.
fn part(context: &mut Context, part: &str) -> Answer {
    context.reserve(part.len())?;
    Ok(part.into())
}

fn substring(context: &mut Context, args: &mut [Value]) -> Answer {
    let Value::Str(text) = &args[0] else { return Err(wrong("substring", "a string", &args[0])) };
    let start = int_of("substring", &args[1])?;
    let end = args.get(2).filter(|end| !matches!(end, Value::Nil));
    let end = end.map_or(Ok(text.char_count() as i64), |end| int_of("substring", end))?;
    if !text.is_ascii() {
        context.cost += text.as_str().len() as u64 / 256;
    }
    let byte = |at: i64| usize::try_from(at).ok().and_then(|at| byte_of(text, at));
    match (byte(start), byte(end)) {
        (Some(from), Some(to)) if from <= to => part(context, &text.as_str()[from..to]),
        _ => {
            let message = format!(
                "{start} to {end} is outside of a string of {}",
                counted(text.char_count() as u64, "character")
            );
            Err(fault("index", message))
        }
    }
}

fn changed(context: &mut Context, name: &str, s: &Value, change: fn(&str) -> String) -> Answer {
    let text = text_of(name, s)?;
    context.reserve(text.len())?;
    made(context, change(text))
}

/// `(string-join sep coll)`, `(string-join coll)`
fn join(context: &mut Context, args: &mut [Value]) -> Answer {
    let (separator, coll) = match &*args {
        [coll] => ("", coll),
        [separator, coll] => (text_of("string-join", separator)?, coll),
        _ => return Ok(Value::Nil),
    };
    let items = items_of("string-join", coll)?;
    for item in &items {
        super::data::known(item)?;
    }
    let mut draft = Draft::new(context);
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            draft.put(context, format_args!("{separator}"))?;
        }
        draft.push(context, item)?;
    }
    draft.done(context)
}

fn split(context: &mut Context, s: &Value, separator: &Value) -> Answer {
    let (text, separator) = (text_of("split", s)?, text_of("split", separator)?);
    if separator.is_empty() {
        // Memory is reserved once: a function that reserves twice and gets only the first part would be
        // repeated forever.
        context.reserve(text.len().saturating_mul(81))?;
        let characters = text.split("").filter(|part| !part.is_empty());
        return flat(characters.map(Value::from).collect());
    }
    if let &[byte] = separator.as_bytes() {
        let ends = memchr::memchr_iter(byte, text.as_bytes());
        let count = ends.clone().count() + 1;
        context.reserve(count.saturating_mul(80).saturating_add(text.len()))?;
        let mut parts = Vec::with_capacity(count);
        let mut start = 0;
        for end in ends {
            parts.push(Value::from(&text[start..end]));
            start = end + 1;
        }
        parts.push(Value::from(&text[start..]));
        return flat(parts);
    }
    let parts: Vec<&str> = text.split(separator).collect();
    context.reserve(parts.len().saturating_mul(80).saturating_add(text.len()))?;
    flat(parts.into_iter().map(Value::from).collect())
}

/// Returns a vector of texts.
fn flat(texts: Vec<Value>) -> Answer {
    // The depth is known, and the number of parts equals the number of texts.
    if texts.len() < MAX_PARTS as usize {
        Ok(Value::Vector(Vector::flat(texts)))
    } else {
        super::vector(texts)
    }
}

fn replace(context: &mut Context, name: &str, args: &[Value], first: bool) -> Answer {
    let (text, from, to) =
        (text_of(name, &args[0])?, text_of(name, &args[1])?, text_of(name, &args[2])?);
    if first {
        return made(context, text.replacen(from, to, 1));
    }
    let times = if from.is_empty() { text.len() + 1 } else { text.len() / from.len() };
    if to.len() > from.len() {
        let found = if from.is_empty() { times } else { text.matches(from).count() };
        context.reserve(found.saturating_mul(to.len()).saturating_add(text.len()))?;
    }
    made(context, text.replace(from, to))
}

fn repeat_string(context: &mut Context, s: &Value, n: &Value) -> Answer {
    // The arguments may be in either order.
    let (s, n) = if matches!(s, Value::Int(_)) { (n, s) } else { (s, n) };
    let (text, n) = (text_of("repeat-string", s)?, count_of("repeat-string", n)?);
    context.reserve(text.len().saturating_mul(n))?;
    Ok(text.repeat(n).into())
}

fn pad(context: &mut Context, name: &str, args: &[Value], at_start: bool) -> Answer {
    let Value::Str(text) = &args[0] else { return Err(wrong(name, "a string", &args[0])) };
    let width = count_of(name, &args[1])?;
    let fill = args.get(2).map_or(Ok(" "), |fill| text_of(name, fill))?;
    let missing = width.saturating_sub(text.char_count());
    if missing == 0 || fill.is_empty() {
        return Ok(args[0].clone());
    }
    context.reserve(missing.saturating_mul(4))?;
    let padding: String = fill.chars().cycle().take(missing).collect();
    let text = text.as_str();
    Ok(if at_start { format!("{padding}{text}") } else { format!("{text}{padding}") }.into())
}

fn char_code(_: &mut Context, args: &mut [Value]) -> Answer {
    let text = text_of("char-code", &args[0])?;
    let at = args.get(1).map_or(Ok(0), |at| int_of("char-code", at))?;
    let found = usize::try_from(at).ok().and_then(|at| text.chars().nth(at));
    match found {
        Some(c) => Ok(Value::Int(u32::from(c).into())),
        None => Err(fault("index", format!("{at} is outside of {}", shown(&args[0])))),
    }
}

/// Creates a text from a collection of code points, or from code points as arguments.
fn from_char_codes(context: &mut Context, args: &mut [Value]) -> Answer {
    context.reserve(args.first().and_then(len_of).unwrap_or(0).saturating_mul(4))?;
    let codes = match &*args {
        [coll] if !matches!(coll, Value::Int(_)) => items_of("from-char-codes", coll)?,
        _ => args.to_vec(),
    };
    let char_of = |code: &Value| -> Result<char, Box<Fault>> {
        let n = int_of("from-char-codes", code)?;
        let c = u32::try_from(n).ok().and_then(char::from_u32);
        c.ok_or_else(|| fault("invalid-argument", format!("`from-char-codes`: {n} is no character")))
    };
    Ok(codes.iter().map(char_of).collect::<Result<String, _>>()?.into())
}

fn named(args: &[Value], make: fn(String) -> Value) -> Answer {
    let text = |value: &Value| match value {
        Value::Keyword(keyword) => Ok(keyword.name().to_owned()),
        Value::Symbol(symbol) => Ok(symbol.name().to_owned()),
        Value::Str(text) => Ok(text.as_str().to_owned()),
        other => Err(wrong("keyword", "a string, a keyword or a symbol", other)),
    };
    Ok(make(match args {
        [space, name] => format!("{}/{}", text(space)?, text(name)?),
        _ => text(&args[0])?,
    }))
}

fn gensym(context: &mut Context, args: &mut [Value]) -> Answer {
    let stem = match args.first() {
        Some(stem) => stem.to_string(),
        None => "G__".to_owned(),
    };
    context.fresh += 1;
    Ok(Value::Symbol(Symbol::new(format!("{stem}{}", context.fresh))))
}
