//! Regular expressions. They run in linear time: there are no back-references.

use super::{Answer, Entry, many, text_of, two};
use crate::machine::Context;
use crate::value::Value;

pub(super) static ENTRIES: &[Entry] = &[
    two("re-find", |context, re, s| find(context, "re-find", re, s, false)),
    two("re-matches", |context, re, s| find(context, "re-matches", re, s, true)),
    two("re-seq", seq),
    many("re-replace", 3, 3, replace),
];

/// Returns a match: its text, or, with groups, a vector of the text and the groups.
fn matched(captures: &regex::Captures<'_>) -> Answer {
    let text = |group: Option<regex::Match<'_>>| group.map_or(Value::Nil, |group| group.as_str().into());
    if captures.len() == 1 {
        return Ok(text(captures.get(0)));
    }
    super::vector(captures.iter().map(text).collect())
}

fn find(context: &mut Context, name: &str, re: &Value, s: &Value, whole: bool) -> Answer {
    let (pattern, text) = (text_of(name, re)?, text_of(name, s)?);
    context.cost += text.len() as u64 / 64;
    let regex =
        if whole { context.regex(&format!("^(?:{pattern})$"))? } else { context.regex(pattern)? };
    let full = |captures: &regex::Captures<'_>| {
        !whole || captures.get(0).is_some_and(|all| all.len() == text.len())
    };
    match regex.captures(text).filter(full) {
        Some(captures) => matched(&captures),
        None => Ok(Value::Nil),
    }
}

fn seq(context: &mut Context, re: &Value, s: &Value) -> Answer {
    let (pattern, text) = (text_of("re-seq", re)?, text_of("re-seq", s)?);
    context.reserve(text.len().saturating_mul(8))?;
    let regex = context.regex(pattern)?;
    let found =
        regex.captures_iter(text).map(|captures| matched(&captures)).collect::<Result<Vec<_>, _>>()?;
    context.allocated(found.len() * 80);
    super::vector(found)
}

/// Replaces matches. `$1` and `${name}` in the replacement refer to groups.
fn replace(context: &mut Context, args: &mut [Value]) -> Answer {
    let (pattern, text, to) = (
        text_of("re-replace", &args[0])?,
        text_of("re-replace", &args[1])?,
        text_of("re-replace", &args[2])?,
    );
    let regex = context.regex(pattern)?;
    let count = regex.find_iter(text).count();
    let groups = 1 + to.matches('$').count();
    context.reserve(count.saturating_mul(to.len()).saturating_add(text.len().saturating_mul(groups)))?;
    Ok(regex.replace_all(text, to).into_owned().into())
}
