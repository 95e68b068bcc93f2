//! The look of a text: padding, wrapping, indentation, escapes.

use icu_normalizer::DecomposingNormalizerBorrowed as Decomposing;
use rtfs::Value;
use rtfs::json::push_string;
use unicode_segmentation::UnicodeSegmentation as _;

use super::Result;
use crate::arguments::Arguments;
use crate::error::BuiltinError;
use crate::limits::{BoundedText, text_fits};

pub(super) fn pad(args: &Arguments<'_>) -> Result<Value> {
    #[derive(Clone, Copy)]
    enum Align {
        Left,
        Right,
        Center,
    }
    let (text, width, fill) = (args.text("text")?, args.count("width")?, args.text_or("fill", " ")?);
    let mut chars = fill.chars();
    let (Some(fill), None) = (chars.next(), chars.next()) else {
        return Err(BuiltinError::content("fill", "expected one character"));
    };
    let words = [("left", Align::Left), ("right", Align::Right), ("center", Align::Center)];
    let align = args.choice("align", &words, Align::Left)?;
    let missing = width.saturating_sub(text.chars().count());
    text_fits(missing.checked_mul(fill.len_utf8()).and_then(|bytes| bytes.checked_add(text.len())))?;
    let before = match align {
        Align::Left => 0,
        Align::Right => missing,
        Align::Center => missing / 2,
    };
    let filler = |count: usize| std::iter::repeat_n(fill, count);
    Ok(Value::from(
        filler(before).chain(text.chars()).chain(filler(missing - before)).collect::<String>(),
    ))
}

pub(super) fn truncate(args: &Arguments<'_>) -> Result<Value> {
    let (text, length, ellipsis) =
        (args.text("text")?, args.count("length")?, args.text_or("ellipsis", "…")?);
    if text.graphemes(true).nth(length).is_none() {
        return Ok(Value::from(text));
    }
    let kept = length.saturating_sub(ellipsis.graphemes(true).count());
    let mut out = BoundedText::default();
    for grapheme in text.graphemes(true).take(kept) {
        out.push(grapheme)?;
    }
    for grapheme in ellipsis.graphemes(true).take(length - kept) {
        out.push(grapheme)?;
    }
    Ok(out.finish())
}

pub(super) fn wrap(args: &Arguments<'_>) -> Result<Value> {
    let (text, width) = (args.text("text")?, args.integer_or("width", 1..=i64::MAX, 80)?);
    let width = usize::try_from(width).unwrap_or(usize::MAX);
    let mut out = String::with_capacity(text.len());
    for (i, line) in text.lines().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let mut used = 0;
        for word in line.split_whitespace() {
            let length = word.graphemes(true).count();
            if used > 0 && used + 1 + length > width {
                out.push('\n');
                used = 0;
            } else if used > 0 {
                out.push(' ');
                used += 1;
            }
            out.push_str(word);
            used += length;
        }
    }
    if text.ends_with('\n') {
        out.push('\n');
    }
    Ok(Value::from(out))
}

pub(super) fn indent(args: &Arguments<'_>) -> Result<Value> {
    let (text, prefix) = (args.text("text")?, args.text_or("prefix", "  ")?);
    let mut out = BoundedText::default();
    for line in text.split_inclusive('\n') {
        if !line.trim_end_matches(['\r', '\n']).is_empty() {
            out.push(prefix)?;
        }
        out.push(line)?;
    }
    Ok(out.finish())
}

pub(super) fn dedent(args: &Arguments<'_>) -> Result<Value> {
    let text = args.text("text")?;
    let mut common: Option<&str> = None;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let indentation = &line[..line.len() - line.trim_start_matches([' ', '\t']).len()];
        common = Some(match common {
            None => indentation,
            Some(common) => {
                let same = common.bytes().zip(indentation.bytes()).take_while(|(a, b)| a == b).count();
                &common[..same]
            }
        });
    }
    let common = common.unwrap_or_default();
    let mut out = BoundedText::default();
    for line in text.split_inclusive('\n') {
        match line.strip_prefix(common).filter(|_| !line.trim().is_empty()) {
            Some(line) => out.push(line)?,
            None => out.push(&line[line.trim_end_matches(['\r', '\n']).len()..])?,
        }
    }
    Ok(out.finish())
}

pub(super) fn slug(args: &Arguments<'_>) -> Result<Value> {
    let text = args.text("text")?;
    let mut out = BoundedText::default();
    let mut gap = false;
    let mut empty = true;
    for c in Decomposing::new_nfkd().normalize_iter(text.chars()).flat_map(char::to_lowercase) {
        if c.is_alphanumeric() {
            if gap && !empty {
                out.push_char('-')?;
            }
            out.push_char(c)?;
            (gap, empty) = (false, false);
        } else if !is_mark(c) {
            gap = true;
        }
    }
    Ok(out.finish())
}

/// Returns whether a character is an accent or apostrophe, which joins its neighbours.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}' | '\u{20d0}'..='\u{20ff}' | '\'' | '’')
}

pub(super) fn escape(args: &Arguments<'_>) -> Result<Value> {
    type Escape = fn(&str, &mut BoundedText) -> Result<()>;
    let text = args.text("text")?;
    args.text("for")?;
    let ways: [(&str, Escape); 4] = [("html", html), ("json", json), ("shell", shell), ("regex", regex)];
    let mut out = BoundedText::default();
    args.choice("for", &ways, ways[0].1)?(text, &mut out)?;
    Ok(out.finish())
}

pub(in crate::groups) fn html(text: &str, out: &mut BoundedText) -> Result<()> {
    text.chars().try_for_each(|c| match c {
        '&' => out.push("&amp;"),
        '<' => out.push("&lt;"),
        '>' => out.push("&gt;"),
        '"' => out.push("&quot;"),
        '\'' => out.push("&#39;"),
        c => out.push_char(c),
    })
}

fn json(text: &str, out: &mut BoundedText) -> Result<()> {
    let mut literal = String::new();
    push_string(&mut literal, text);
    out.push(&literal)
}

fn shell(text: &str, out: &mut BoundedText) -> Result<()> {
    out.push("'")?;
    for (i, part) in text.split('\'').enumerate() {
        if i > 0 {
            out.push("'\\''")?;
        }
        out.push(part)?;
    }
    out.push("'")
}

fn regex(text: &str, out: &mut BoundedText) -> Result<()> {
    text.chars().try_for_each(|c| {
        if crate::pattern::is_special(c) {
            out.push("\\")?;
        }
        out.push_char(c)
    })
}
