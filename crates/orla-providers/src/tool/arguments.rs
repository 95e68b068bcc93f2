//! Converts the arguments of a call to a command line and standard input (RFC 1 §5.3).
//!
//! Works on the caller's original JSON text: order is kept, and a number is passed on with its digits.
//! The result is an argument vector, which no shell parses. Pure functions.
//!
//! | in the call | on the command line |
//! |---|---|
//! | `"max_depth": 2` | `--max-depth 2` |
//! | `"all": true` | `--all` |
//! | `false`, `null` | nothing |
//! | `"tag": ["a", "b"]` | `--tag a --tag b` |
//! | `"filter": {"a": 1}`, and a list within a list | `--filter {"a":1}` |
//! | `"args": ["-l", "x"]` | `-l x`, after everything else |
//! | `"stdin": "text"` | nothing: it is piped to standard input |
//!
//! A key is never taken for more than one option: `-rf` becomes `---rf`, `a=b` becomes `--a=b`.

use std::borrow::Cow;

use orla_marketplace::Violation;
use orla_marketplace::json::{RawObject, compact};
use serde_json::value::RawValue;

use orla_marketplace::rtfs::text::excerpt;

/// The maximum number of bytes of one argument: Linux's `MAX_ARG_STRLEN` (128 KiB) minus the NUL at the
/// end. Larger text goes in `stdin`.
pub const MAX_ARGUMENT: usize = 128 * 1024 - 1;

/// The command line and standard input of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// The arguments, without the program's own name.
    pub argv: Vec<String>,
    /// The bytes for standard input: the text of `stdin`, and otherwise all arguments as one line of
    /// JSON.
    pub stdin: Vec<u8>,
}

/// Maps the JSON text of a call's arguments. `fixed` are the tool's own leading arguments. A program
/// that `reads_json` finds every argument on standard input. Arguments that no command line can hold
/// (NUL, an empty name, more than [`MAX_ARGUMENT`] bytes) are only there.
///
/// # Errors
/// Every place that cannot be passed on, in words with which a model can correct it.
pub fn map(json: &str, fixed: &[String], reads_json: bool) -> Result<Mapped, Vec<Violation>> {
    let members = members(json)?;
    // An explicit input replaces the arguments on standard input.
    let has_input = members.iter().any(|(key, value)| key == "stdin" && value.get() != "null");
    let mut mapper = Mapper {
        argv: fixed.to_vec(),
        rest: Vec::new(),
        stdin: None,
        violations: Vec::new(),
        is_input_whole: reads_json && !has_input,
    };
    for (key, value) in members {
        mapper.member(&key, value);
    }
    if !mapper.violations.is_empty() {
        return Err(mapper.violations);
    }
    mapper.argv.append(&mut mapper.rest);
    let stdin = mapper.stdin.unwrap_or_else(|| {
        let mut line = compact(json);
        line.push('\n');
        line
    });
    Ok(Mapped { argv: mapper.argv, stdin: stdin.into_bytes() })
}

/// Returns the standard input of a process that was started before its call: the arguments as one line
/// of JSON. The member `_meta` holds the data that is otherwise in the environment. A member of that
/// name in the call is replaced.
///
/// # Errors
/// The text is no JSON object.
pub fn line_with_meta(
    json: &str,
    call_id: &str,
    traceparent: Option<&str>,
) -> Result<Vec<u8>, Vec<Violation>> {
    let mut meta = serde_json::Map::from_iter([("call_id".to_owned(), call_id.into())]);
    meta.extend(traceparent.map(|text| ("traceparent".to_owned(), text.into())));
    let mut line = String::with_capacity(json.len() + 160);
    for (key, value) in members(json)? {
        if key != META {
            line.push(if line.is_empty() { '{' } else { ',' });
            line.push_str(&serde_json::Value::from(key).to_string());
            line.push(':');
            line.push_str(&compact(value.get()));
        }
    }
    line.push(if line.is_empty() { '{' } else { ',' });
    line.push_str(&format!("\"{META}\":{}}}\n", serde_json::Value::Object(meta)));
    Ok(line.into_bytes())
}

/// The member that gives a prestarted process the data of its call.
const META: &str = "_meta";

struct Mapper {
    argv: Vec<String>,
    /// The elements of `args`.
    rest: Vec<String>,
    stdin: Option<String>,
    violations: Vec<Violation>,
    /// Whether the program also finds all arguments on standard input.
    is_input_whole: bool,
}

impl Mapper {
    fn member(&mut self, key: &str, value: &RawValue) {
        match key {
            "stdin" => self.stdin(value.get()),
            "args" => self.args(value),
            _ => {
                let path = format!("input.{key}");
                if key.is_empty() && self.is_input_whole {
                    return;
                }
                if key.is_empty() {
                    return self.violation(
                        "input",
                        "names that are not empty",
                        "an empty name".to_owned(),
                    );
                }
                let flag = format!("--{}", key.replace('_', "-"));
                if !self.is_option(&path, &flag) {
                    return;
                }
                match elements(value) {
                    Some(elements) => {
                        for (index, element) in elements.iter().enumerate() {
                            self.option(&format!("{path}[{index}]"), &flag, element.get());
                        }
                    }
                    None => self.option(&path, &flag, value.get()),
                }
            }
        }
    }

    fn option(&mut self, path: &str, flag: &str, json: &str) {
        let text = match json.as_bytes().first() {
            Some(b't') => return self.argv.push(flag.to_owned()),
            Some(b'f' | b'n') => return,
            Some(b'"') => match self.text(path, json) {
                Some(text) => text,
                None => return,
            },
            Some(b'{' | b'[') => compact(json),
            _ => json.to_owned(),
        };
        if self.is_option(path, &text) {
            self.argv.extend([flag.to_owned(), text]);
        }
    }

    fn args(&mut self, value: &RawValue) {
        if value.get() == "null" {
            return;
        }
        let Some(elements) = elements(value) else {
            return self.violation("input.args", "an array of strings", shown(value.get()));
        };
        for (index, element) in elements.iter().enumerate() {
            let path = format!("input.args[{index}]");
            if !element.get().starts_with('"') {
                self.violation(&path, "a string", shown(element.get()));
            } else if let Some(text) = self.text(&path, element.get())
                && self.fits(&path, &text)
            {
                self.rest.push(text);
            }
        }
    }

    fn stdin(&mut self, json: &str) {
        if json.starts_with('"') {
            self.stdin = self.text("input.stdin", json);
        } else if json != "null" {
            self.violation("input.stdin", "a string", shown(json));
        }
    }

    /// Returns the text of a JSON string.
    fn text(&mut self, path: &str, json: &str) -> Option<String> {
        serde_json::from_str(json)
            // The text is well-formed JSON, so only one error is possible.
            .inspect_err(|_| {
                self.violation(
                    path,
                    "text that UTF-8 can hold",
                    "half a character (a lone surrogate)".to_owned(),
                );
            })
            .ok()
    }

    /// Returns whether `text` can be a part of an option. If it cannot, that is a violation, unless
    /// standard input contains the argument.
    fn is_option(&mut self, path: &str, text: &str) -> bool {
        match self.is_input_whole {
            true => text.len() <= MAX_ARGUMENT && !text.contains('\0'),
            false => self.fits(path, text),
        }
    }

    /// Returns whether the kernel accepts `text` as one argument.
    fn fits(&mut self, path: &str, text: &str) -> bool {
        if text.len() > MAX_ARGUMENT {
            let expected =
                format!("at most {MAX_ARGUMENT} bytes in one argument (larger text goes in `stdin`)");
            self.violation(path, &expected, format!("{} bytes", text.len()));
        } else if text.contains('\0') {
            self.violation(path, "text without NUL", "a NUL character".to_owned());
        } else {
            return true;
        }
        false
    }

    fn violation(&mut self, path: &str, expected: &str, got: String) {
        self.violations.push(Violation { path: path.to_owned(), expected: expected.to_owned(), got });
    }
}

/// Returns the members of a JSON object in their original order.
fn members(json: &str) -> Result<Vec<(Cow<'_, str>, &RawValue)>, Vec<Violation>> {
    let violation = |path: String, expected: &str, got: String| {
        vec![Violation { path, expected: expected.to_owned(), got }]
    };
    if !json.trim_start().starts_with('{') {
        return Err(violation("input".to_owned(), "an object", shown(json.trim())));
    }
    let members: RawObject<'_> = serde_json::from_str(json)
        .map_err(|err| violation("input".to_owned(), "a JSON object", err.to_string()))?;
    let twice: Vec<Violation> = members
        .repeated()
        .flat_map(|key| violation(format!("input.{key}"), "one value", "the name twice".to_owned()))
        .collect();
    if twice.is_empty() { Ok(members.0) } else { Err(twice) }
}

/// Returns the elements of a JSON array.
fn elements(value: &RawValue) -> Option<Vec<&RawValue>> {
    value.get().starts_with('[').then(|| serde_json::from_str(value.get()).ok()).flatten()
}

/// Returns a value for a message, cut at 60 bytes.
fn shown(json: &str) -> String {
    excerpt(json, 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn argv(json: &str) -> Vec<String> {
        map(json, &[], false).unwrap().argv
    }

    fn refusal(json: &str) -> String {
        map(json, &[], false).unwrap_err().iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn values_become_options_in_the_order_written() {
        let cases: &[(&str, &[&str])] = &[
            ("{}", &[]),
            (r#"{"path": "/tmp", "max_depth": 2}"#, &["--path", "/tmp", "--max-depth", "2"]),
            (r#"{"zeta": 1, "alpha": 2}"#, &["--zeta", "1", "--alpha", "2"]),
            (r#"{"flag": true, "off": false, "none": null}"#, &["--flag"]),
            (
                r#"{"many": ["a", 1, true, null, {"k": [1]}]}"#,
                &["--many", "a", "--many", "1", "--many", "--many", r#"{"k":[1]}"#],
            ),
            (r#"{"empty": [], "nested": [[1, 2]]}"#, &["--nested", "[1,2]"]),
            (r#"{"obj": {"k" : [1, "a b"]}}"#, &["--obj", r#"{"k":[1,"a b"]}"#]),
            (r#"{"args": ["-l", "--", "a b"], "x": 1.5}"#, &["--x", "1.5", "-l", "--", "a b"]),
            (r#"{"args": null, "stdin": null}"#, &[]),
            (r#"{"s": "", "u": "h\u00e9\n"}"#, &["--s", "", "--u", "hé\n"]),
            (
                r#"{"q": "$(touch x); `id` | \"y\" 'z' \\ *"}"#,
                &["--q", "$(touch x); `id` | \"y\" 'z' \\ *"],
            ),
            (
                r#"{"--": 1, "-rf": 2, ";rm": 3, "a=b": 4, "a b": 5}"#,
                &["----", "1", "---rf", "2", "--;rm", "3", "--a=b", "4", "--a b", "5"],
            ),
        ];
        for (json, expected) in cases {
            assert_eq!(argv(json), *expected, "{json}");
        }
    }

    #[test]
    fn numbers_keep_their_text() {
        for number in ["9007199254740993", "1e400", "-0.0", "1.10", "18446744073709551616", "1E+2"] {
            assert_eq!(argv(&format!(r#"{{"n": {number}}}"#)), ["--n", number]);
        }
    }

    #[test]
    fn fixed_arguments_come_first() {
        let mapped =
            map(r#"{"a": 1, "args": ["z"]}"#, &["sub".to_owned(), "-q".to_owned()], false).unwrap();
        assert_eq!(mapped.argv, ["sub", "-q", "--a", "1", "z"]);
    }

    #[test]
    fn arguments_with_nul_are_passed_on_standard_input_only() {
        let mapped = map(r#"{"a": "x\u0000y", "b": 1, "": 2}"#, &[], true).unwrap();
        assert_eq!(mapped.argv, ["--b", "1"]);
        assert_eq!(mapped.stdin, b"{\"a\":\"x\\u0000y\",\"b\":1,\"\":2}\n");
        for refused in [r#"{"a": "\u0000", "stdin": ""}"#, r#"{"args": ["\u0000"]}"#] {
            assert!(map(refused, &[], true).is_err(), "{refused}");
        }
    }

    #[test]
    fn standard_input_is_the_text_or_the_arguments_as_one_line() {
        let cases = [
            (r#"{"stdin": "héllo\nworld", "a": 1}"#, "héllo\nworld"),
            (r#"{"stdin": ""}"#, ""),
            (
                "{ \"b\" : 1,\n \"a\": [true, null], \"s\": \"x \\\" y\" }",
                "{\"b\":1,\"a\":[true,null],\"s\":\"x \\\" y\"}\n",
            ),
            ("{}", "{}\n"),
            (r#"{"n": 1.10, "args": ["x"]}"#, "{\"n\":1.10,\"args\":[\"x\"]}\n"),
        ];
        for (json, stdin) in cases {
            assert_eq!(
                String::from_utf8(map(json, &[], false).unwrap().stdin).unwrap(),
                stdin,
                "{json}"
            );
        }
    }

    #[test]
    fn a_prestarted_process_gets_the_arguments_as_written_and_learns_of_its_call() {
        let line =
            |json: &str, trace| String::from_utf8(line_with_meta(json, "c-1", trace).unwrap()).unwrap();
        let cases = [
            ("{}", None, r#"{"_meta":{"call_id":"c-1"}}"#),
            (
                "{ \"n\": 18446744073709551616,\n\"k\\u0022\": [ 1.10 ] }",
                Some("00-ab-cd-01"),
                r#"{"n":18446744073709551616,"k\"":[1.10],"_meta":{"call_id":"c-1","traceparent":"00-ab-cd-01"}}"#,
            ),
            (r#"{"_meta": {"call_id": "mine"}, "a": 1}"#, None, r#"{"a":1,"_meta":{"call_id":"c-1"}}"#),
        ];
        for (json, trace, expected) in cases {
            assert_eq!(line(json, trace), format!("{expected}\n"), "{json}");
        }
        assert!(line_with_meta("[1]", "c-1", None).is_err());
    }

    #[test]
    fn arguments_that_cannot_be_passed_are_named() {
        let cases = [
            ("[1]", "input: expected an object, got [1]"),
            (r#"{"args": "ls"}"#, r#"input.args: expected an array of strings, got "ls""#),
            (r#"{"args": ["a", 1]}"#, "input.args[1]: expected a string, got 1"),
            (r#"{"stdin": 1}"#, "input.stdin: expected a string, got 1"),
            (r#"{"a": "x\u0000y"}"#, "input.a: expected text without NUL, got a NUL character"),
            (r#"{"a\u0000": 1}"#, "input.a\0: expected text without NUL, got a NUL character"),
            (r#"{"": 1}"#, "input: expected names that are not empty, got an empty name"),
            (r#"{"a": 1, "b": 2, "a": 3}"#, "input.a: expected one value, got the name twice"),
            (
                r#"{"args": {}, "stdin": []}"#,
                "input.args: expected an array of strings, got {}; input.stdin: expected a string, got []",
            ),
        ];
        for (json, expected) in cases {
            assert_eq!(refusal(json), expected, "{json}");
        }
    }

    #[test]
    fn an_argument_beyond_the_kernels_limit_is_refused_with_the_way_out() {
        let fits = format!(r#"{{"a": "{}"}}"#, "x".repeat(MAX_ARGUMENT));
        assert_eq!(argv(&fits)[1].len(), MAX_ARGUMENT);
        let long = format!(r#"{{"a": "{}"}}"#, "x".repeat(MAX_ARGUMENT + 1));
        assert_eq!(
            refusal(&long),
            "input.a: expected at most 131071 bytes in one argument (larger text goes in `stdin`), got 131072 bytes"
        );
    }

    #[test]
    fn a_lone_surrogate_is_refused_as_text_and_passed_on_within_json() {
        assert!(refusal(r#"{"a": "\ud800"}"#).starts_with("input.a: expected text that UTF-8 can hold"));
        assert_eq!(argv(r#"{"a": {"b": "\ud800"}}"#), ["--a", r#"{"b":"\ud800"}"#]);
    }

    #[test]
    fn deep_nesting_does_not_overflow_the_stack() {
        let deep = format!(r#"{{"a": {}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        // 200,000 bytes are too long for an argument at any depth.
        assert!(refusal(&deep).starts_with("input.a[0]: expected at most"));
    }

    proptest! {
        #[test]
        fn any_text_arrives_as_one_argument(text in "[^\0]{0,60}") {
            let json = serde_json::json!({ "k": text.clone() }).to_string();
            prop_assert_eq!(argv(&json), ["--k".to_owned(), text]);
        }
    }
}
