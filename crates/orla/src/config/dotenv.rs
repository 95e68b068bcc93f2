//! Files of environment variables, as the key `envFile` names them. Pure.
//!
//! A line is `NAME=VALUE`, blank, or a comment after `#`; `export ` may precede the name. A value in
//! single quotes is taken literally. In double quotes, `\n`, `\r`, `\t`, `\"`, `\\` and `\$` have their
//! usual meaning. Without quotes, a `#` after a blank begins a comment.
//!
//! Deliberately absent: values over several lines, and variables within values.

use std::collections::BTreeMap;

/// A problem with such a file, and its line.
#[derive(Debug, PartialEq)]
pub(super) struct LineError {
    /// From 1.
    pub(super) line: usize,
    pub(super) problem: &'static str,
}

/// Reads a whole file; of a name that comes twice the last value holds.
///
/// # Errors
///
/// Returns the place of the first invalid line. The error does not repeat it, because it may be secret.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, String>, LineError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut variables = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = entry(line).map_err(|problem| LineError { line: index + 1, problem })?;
        variables.insert(name, value);
    }
    Ok(variables)
}

fn entry(line: &str) -> Result<(String, String), &'static str> {
    let line = line.strip_prefix("export ").unwrap_or(line);
    let (name, value) = line.split_once('=').ok_or("expected NAME=VALUE")?;
    let name = name.trim();
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '\0') {
        return Err("expected a name before `=`");
    }
    Ok((name.to_owned(), value_of(value.trim())?))
}

fn value_of(text: &str) -> Result<String, &'static str> {
    let Some(quote) = text.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
        let comment =
            text.match_indices('#').find(|(at, _)| text[..*at].ends_with([' ', '\t']) || *at == 0);
        let end = comment.map_or(text.len(), |(at, _)| at);
        return Ok(text[..end].trim_end().to_owned());
    };
    let mut value = String::new();
    let mut rest = text[1..].chars();
    while let Some(c) = rest.next() {
        match c {
            _ if c == quote => {
                let after = rest.as_str().trim_start();
                let is_comment = after.is_empty() || after.starts_with('#');
                return if is_comment { Ok(value) } else { Err("expected nothing after the quotes") };
            }
            '\\' if quote == '"' => match rest.next() {
                Some('n') => value.push('\n'),
                Some('r') => value.push('\r'),
                Some('t') => value.push('\t'),
                Some(c @ ('"' | '\\' | '$')) => value.push(c),
                Some(c) => value.extend(['\\', c]),
                None => break,
            },
            c => value.push(c),
        }
    }
    Err("expected a closing quote")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_are_read_with_and_without_quotes() {
        let cases = [
            ("A=1", "1"),
            ("  export A = b c  ", "b c"),
            ("A=", ""),
            ("A=x # a comment", "x"),
            ("A=#", ""),
            ("A=x#y", "x#y"),
            ("A='a \"b\" \\n'", "a \"b\" \\n"),
            ("A=\"a\\n\\\"b\\\" \\$c\" # d", "a\n\"b\" $c"),
            ("A=a=b", "a=b"),
            ("# c\n\nA=1\nA=2\n", "2"),
        ];
        for (text, value) in cases {
            assert_eq!(parse(text).unwrap()["A"], value, "{text}");
        }
    }

    #[test]
    fn an_invalid_line_is_reported_without_its_content() {
        let cases = [
            ("A=1\nsecret", 2, "expected NAME=VALUE"),
            ("=secret", 1, "expected a name before `=`"),
            ("a b=secret", 1, "expected a name before `=`"),
            ("A='secret", 1, "expected a closing quote"),
            ("A=\"secret\\", 1, "expected a closing quote"),
            ("A='a'b", 1, "expected nothing after the quotes"),
        ];
        for (text, line, problem) in cases {
            assert_eq!(parse(text), Err(LineError { line, problem }), "{text}");
        }
    }

    proptest! {
        #[test]
        fn quoted_values_round_trip(value in "[^\r\n\0]{0,40}") {
            let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
            let read = parse(&format!("A=\"{quoted}\"")).unwrap();
            prop_assert_eq!(&read["A"], &value);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "(?s).{0,200}") {
            let _ = parse(&text);
        }
    }
}
