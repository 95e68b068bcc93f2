//! The cases of a file. No I/O.

use std::path::{Path, PathBuf};
use std::time::Duration;

use orla_document::{Kind as Shape, Node, Position, parse};
use orla_marketplace::JsonText;
use orla_marketplace::schema::{Validator, type_from_json_schema};
use serde_json::{Value, json};

use super::expect::{Expectation, problem_of};
use crate::text::{list_of, suggestion};

const KEYS: [&str; 6] = ["name", "capability", "program", "input", "expect", "calls"];
const EXPECTED: [&str; 4] = ["output", "error", "contains", "schema"];
const CALL: [&str; 5] = ["capability", "input", "output", "error", "duration_ms"];

/// One case.
#[derive(Debug)]
pub(super) struct Case {
    /// The name, or the place of a case without a name.
    pub(super) name: String,
    pub(super) target: Target,
    pub(super) input: JsonText,
    pub(super) expect: Expectation,
    /// The recorded calls within it.
    pub(super) calls: Vec<RecordedCall>,
    pub(super) place: Place,
}

/// The place of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: PathBuf,
    /// Its index in the file; `None` if it is the whole file.
    pub(super) index: Option<usize>,
}

/// The target of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Capability(String),
    /// A program in RTFS.
    Program(String),
}

/// A call that was made within a case when it was recorded.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RecordedCall {
    pub(super) capability: String,
    pub(super) input: Value,
    pub(super) answer: Result<JsonText, RecordedError>,
    /// How long it took, if that was recorded.
    pub(super) took: Option<Duration>,
}

/// How a recorded call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordedError {
    pub(super) kind: String,
    pub(super) message: String,
}

/// Reads the cases of a file. `beside` is the tool next to the file, for cases that name no capability.
///
/// # Errors
///
/// Returns every problem with its place, one line each.
pub(super) fn cases(file: &Path, text: &str, beside: Option<&str>) -> Result<Vec<Case>, Vec<String>> {
    let mut reader = Reader { file, beside, problems: Vec::new() };
    let found = match parse(text) {
        Err(error) => {
            reader.problem(error.at, &error.problem);
            Vec::new()
        }
        Ok(None) => {
            reader.problem(Position::START, "no case is in this file");
            Vec::new()
        }
        Ok(Some(node)) => match &node.kind {
            Shape::List(items) => {
                let cases = items.iter().enumerate();
                cases.filter_map(|(index, item)| reader.case(item, Some(index))).collect()
            }
            _ => reader.case(&node, None).into_iter().collect(),
        },
    };
    if reader.problems.is_empty() { Ok(found) } else { Err(reader.problems) }
}

struct Reader<'a> {
    file: &'a Path,
    beside: Option<&'a str>,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn problem(&mut self, at: Position, problem: &str) {
        self.problems.push(format!("{}:{}:{}: {problem}", self.file.display(), at.line, at.column));
    }

    /// Returns the members of a mapping with these keys and no others.
    fn members<'n>(
        &mut self,
        node: &'n Node,
        what: &str,
        keys: &[&'static str],
    ) -> Option<Vec<(&'static str, &'n Node)>> {
        let Shape::Map(pairs) = &node.kind else {
            let got = node.describe();
            self.problem(
                node.at,
                &format!("{what}: expected a mapping with {}, got {got}", list_of(keys)),
            );
            return None;
        };
        let mut members = Vec::new();
        for (key, value) in pairs {
            match keys.iter().find(|known| **known == key.text) {
                Some(known) => members.push((*known, value)),
                None => {
                    let hint = suggestion(&key.text, keys.iter().copied());
                    self.problem(key.at, &format!("{}: unknown key{hint}", key.text));
                }
            }
        }
        Some(members)
    }

    /// Returns the data of a call, with its numbers as they are written.
    fn json(&mut self, node: &Node) -> JsonText {
        JsonText::parse(node.to_json_text()).unwrap_or_else(|err| {
            self.problem(node.at, &err.to_string());
            JsonText::default()
        })
    }

    fn text(&mut self, node: &Node, what: &str) -> Option<String> {
        match node.as_text() {
            Some(text) if !text.is_empty() => Some(text.to_owned()),
            _ => {
                self.problem(node.at, &format!("{what}: expected a text, got {}", node.describe()));
                None
            }
        }
    }

    fn millis(&mut self, node: &Node) -> Option<Duration> {
        let millis = node.to_json().as_f64();
        let took = millis.and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok());
        if took.is_none() {
            let got = node.describe();
            self.problem(node.at, &format!("duration_ms: expected milliseconds, got {got}"));
        }
        took
    }

    fn case(&mut self, node: &Node, index: Option<usize>) -> Option<Case> {
        let before = self.problems.len();
        let members = self.members(node, "a case", &KEYS)?;
        let mut name = None;
        let mut targets = Vec::new();
        let (mut input, mut expect, mut calls) = (None, Expectation::default(), Vec::new());
        for (key, value) in members {
            match key {
                "name" => name = self.text(value, "name"),
                "capability" => targets.extend(self.text(value, key).map(Target::Capability)),
                "program" => targets.extend(self.text(value, key).map(Target::Program)),
                "input" => input = Some(self.json(value)),
                "expect" => expect = self.expect(value)?,
                _ => calls = self.calls(value),
            }
        }
        if targets.is_empty()
            && let Some(beside) = self.beside
        {
            targets.push(Target::Capability(beside.to_owned()));
        }
        let target = match <[Target; 1]>::try_from(targets) {
            Ok([target]) => Some(target),
            Err(_) => {
                self.problem(node.at, "a case names one of capability and program");
                None
            }
        };
        if self.problems.len() > before {
            return None;
        }
        let at = format!("{}:{}", self.file.display(), node.at.line);
        let place = Place { file: self.file.to_owned(), index };
        let input = input.unwrap_or_else(|| JsonText::parse("{}".to_owned()).unwrap_or_default());
        Some(Case { name: name.unwrap_or(at), target: target?, input, expect, calls, place })
    }

    fn expect(&mut self, node: &Node) -> Option<Expectation> {
        let mut expect = Expectation::default();
        for (key, value) in self.members(node, "expect", &EXPECTED)? {
            match key {
                "output" => {
                    let output = value.to_json();
                    if let Some(problem) = problem_of(&output) {
                        self.problem(value.at, &format!("expect.output: {problem}"));
                    }
                    expect.output = Some(output);
                }
                "error" => expect.error = self.text(value, "expect.error"),
                "contains" => expect.contains = self.text(value, "expect.contains"),
                _ => match Validator::compile(&type_from_json_schema(&value.to_json())) {
                    Ok(schema) => expect.schema = Some(schema),
                    Err(error) => self.problem(value.at, &format!("expect.schema: {error}")),
                },
            }
        }
        if expect.error.is_some()
            && (expect.output.is_some() || expect.contains.is_some() || expect.schema.is_some())
        {
            self.problem(node.at, "expect: a call that fails has no output to expect");
        }
        Some(expect)
    }

    fn calls(&mut self, node: &Node) -> Vec<RecordedCall> {
        let Shape::List(items) = &node.kind else {
            self.problem(node.at, &format!("calls: expected a list, got {}", node.describe()));
            return Vec::new();
        };
        items.iter().filter_map(|item| self.call(item)).collect()
    }

    fn call(&mut self, node: &Node) -> Option<RecordedCall> {
        let members = self.members(node, "a recorded call", &CALL)?;
        let of = |name: &str| members.iter().find(|(key, _)| *key == name).map(|(_, node)| *node);
        let Some(capability) = of("capability") else {
            self.problem(node.at, "a recorded call names its capability");
            return None;
        };
        let capability = self.text(capability, "capability")?;
        let answer = match of("error") {
            Some(error) => {
                let members = self.members(error, "error", &["kind", "message"])?;
                let of = |name: &str| members.iter().find(|(key, _)| *key == name);
                let text =
                    |name: &str| of(name).and_then(|(_, node)| node.as_text()).unwrap_or_default();
                Err(RecordedError { kind: text("kind").to_owned(), message: text("message").to_owned() })
            }
            None => Ok(of("output").map(|output| self.json(output)).unwrap_or_default()),
        };
        let input = of("input").map_or_else(|| json!({}), Node::to_json);
        let took = of("duration_ms").and_then(|node| self.millis(node));
        Some(RecordedCall { capability, input, answer, took })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Case>, Vec<String>> {
        cases(Path::new("t.yaml"), text, None)
    }

    #[test]
    fn a_file_has_one_case_or_a_list() {
        let one = read("name: a\ncapability: add\ninput: {a: 1}\nexpect: {output: {sum: 1}}\n").unwrap();
        assert_eq!((one.len(), &*one[0].name, one[0].place.index), (1, "a", None));
        let list =
            read(r#"[{"program": "1"}, {"capability": "x", "expect": {"error": "failed"}}]"#).unwrap();
        assert_eq!((list.len(), &*list[0].name, list[1].place.index), (2, "t.yaml:1", Some(1)));
        assert_eq!(list[0].target, Target::Program("1".to_owned()));
        let beside = cases(Path::new("tools/add.test.json"), "{}", Some("add")).unwrap();
        assert_eq!(beside[0].target, Target::Capability("add".to_owned()));
    }

    #[test]
    fn problems_are_reported_with_their_place() {
        for (text, problem) in [
            (
                "- {name: a, capability: add, inputs: {a: 1}}",
                "t.yaml:1:30: inputs: unknown key, did you mean input?",
            ),
            ("- {name: a}", "t.yaml:1:3: a case names one of capability and program"),
            ("- {capability: a, program: b}", "t.yaml:1:3: a case names one of capability and program"),
            (
                "capability: a\nexpect:\n  output: {$type: text}",
                "t.yaml:3:11: expect.output: $type: expected",
            ),
            ("capability: a\nexpect: {error: x, contains: y}", "t.yaml:2:9: expect: a call that fails"),
            (
                "program: x\ncalls: [{capability: a, duration_ms: -1}]",
                "t.yaml:2:38: duration_ms: expected milliseconds, got",
            ),
            ("- 7", "t.yaml:1:3: a case: expected a mapping with name, capability"),
            ("", "t.yaml:1:1: no case is in this file"),
            ("[", "t.yaml:1:"),
        ] {
            let problems = read(text).unwrap_err();
            assert!(problems[0].starts_with(problem), "{text}: {problems:?}");
        }
    }

    #[test]
    fn recorded_calls_are_read() {
        let cases = read("program: x\ncalls:\n- {capability: a, input: {n: 1}, output: 2, duration_ms: 1.5}\n- {capability: b, error: {kind: failed, message: no}}\n").unwrap();
        let calls = &cases[0].calls;
        assert_eq!(
            (&calls[0].input, &calls[0].answer),
            (&json!({"n": 1}), &Ok(JsonText::parse("2").unwrap()))
        );
        assert_eq!(calls[1].answer.as_ref().unwrap_err().kind, "failed");
        assert_eq!((calls[0].took, calls[1].took), (Some(Duration::from_micros(1500)), None));
    }
}
