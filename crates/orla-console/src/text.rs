//! Foreign text on a page: escaped by the templates, and without characters that act on their reader. Pure.

use std::time::Duration;

use maud::{Markup, html};

/// The maximum number of bytes of one text that a page shows.
pub(crate) const MAX_SHOWN: usize = 128 * 1024;

/// Returns a text in which every character is visible. Control characters and characters that change the
/// direction of text are escaped. Line breaks and tabs stay.
pub(crate) fn plain(text: &str) -> Markup {
    let (text, cut) = shortened(text, MAX_SHOWN);
    let mut parts: Vec<(&str, Option<char>)> = Vec::new();
    let mut rest = text;
    while let Some((at, odd)) = rest.char_indices().find(|(_, c)| acts(*c)) {
        parts.push((&rest[..at], Some(odd)));
        rest = &rest[at + odd.len_utf8()..];
    }
    parts.push((rest, None));
    html! {
        @for (part, odd) in parts { (part) @if let Some(odd) = odd { span.escape { (escaped(odd)) } } }
        @if cut > 0 { span.escape { "… " (cut) " bytes more" } }
    }
}

/// Returns a text in which every character is visible, for titles and attributes.
pub(crate) fn visible(text: &str) -> String {
    let (text, cut) = shortened(text, MAX_SHOWN);
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if acts(c) { out.push_str(&escaped(c)) } else { out.push(c) }
    }
    if cut > 0 {
        out.push('…');
    }
    out
}

/// Returns JSON, or a program, in which potentially harmful characters of strings are written as
/// `\uXXXX`. The meaning is unchanged.
pub(crate) fn escaped_strings(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if acts(c) {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
    }
    out
}

/// Returns a word as a shell takes it literally. One with characters that act on their reader needs a
/// shell that knows `$'…'`.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if !word.contains(acts) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut out = String::from("$'");
    for c in word.chars() {
        match c {
            '\'' | '\\' => out.extend(['\\', c]),
            c if acts(c) => {
                let bytes = c.encode_utf8(&mut [0; 4]).to_owned();
                bytes.bytes().for_each(|byte| out.push_str(&format!("\\{byte:03o}")));
            }
            c => out.push(c),
        }
    }
    out + "'"
}

/// Returns the first line of a text, for lists.
pub(crate) fn first_line(text: &str) -> &str {
    let line = text.trim_start().lines().next().unwrap_or_default();
    shortened(line, 300).0
}

/// Returns the beginning of a text, and how much of it is left out.
pub(crate) fn shortened(text: &str, most: usize) -> (&str, usize) {
    let end = text.floor_char_boundary(most);
    (&text[..end], text.len() - end)
}

/// Returns a span of time with three digits.
pub(crate) fn duration(took: Duration) -> String {
    let seconds = took.as_secs_f64();
    match seconds {
        s if s < 0.000_999_5 => format!("{:.0} µs", s * 1e6),
        s if s < 0.009_995 => format!("{:.2} ms", s * 1e3),
        s if s < 0.099_95 => format!("{:.1} ms", s * 1e3),
        s if s < 0.999_5 => format!("{:.0} ms", s * 1e3),
        s if s < 99.95 => format!("{s:.1} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3_600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}

fn escaped(c: char) -> String {
    match c {
        '\u{1b}' => "\\e".to_owned(),
        '\r' => "\\r".to_owned(),
        c if u32::from(c) < 0x100 => format!("\\x{:02x}", u32::from(c)),
        c => format!("\\u{{{:x}}}", u32::from(c)),
    }
}

/// Returns whether a character acts on the text around it, or cannot be seen.
pub(crate) fn acts(c: char) -> bool {
    let is_control = c.is_control() && c != '\n' && c != '\t';
    is_control
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copied_text_has_the_same_value() {
        let json = "{\"a\":\"x\u{202e}y\u{e0041}\\n\"}";
        let escaped = escaped_strings(json);
        assert_eq!(escaped, r#"{"a":"x\u202ey\udb40\udc41\n"}"#);
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&escaped), value(json));
        assert_eq!(
            (quoted("a-b"), quoted("it's"), quoted("")),
            ("a-b".into(), r"'it'\''s'".into(), "''".into())
        );
        assert_eq!(quoted("a\u{200d}'\\\u{1b}"), r"$'a\342\200\215\'\\\033'");
    }

    #[test]
    fn characters_that_act_are_shown_as_escapes() {
        let text = "a\u{202e}<b>\u{1b}[31m\r\n\tc\0";
        assert_eq!(visible(text), "a\\u{202e}<b>\\e[31m\\r\n\tc\\x00");
        let html = plain(text).into_string();
        assert!(html.starts_with("a<span class=\"escape\">\\u{202e}</span>&lt;b&gt;"), "{html}");
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let html = plain(&"ü".repeat(100_000)).into_string();
        assert!(html.len() < 140_000 && html.contains("bytes more"));
    }

    #[test]
    fn spans_of_time_have_three_digits() {
        let cases = [
            (12, "12 µs"),
            (1_234, "1.23 ms"),
            (45_678, "45.7 ms"),
            (456_789, "457 ms"),
            (1_234_567, "1.2 s"),
        ];
        for (micros, text) in cases {
            assert_eq!(duration(Duration::from_micros(micros)), text);
        }
        assert_eq!(duration(Duration::from_secs(600)), "10 min");
        assert_eq!(duration(Duration::from_secs(604_800)), "7 d");
    }
}
