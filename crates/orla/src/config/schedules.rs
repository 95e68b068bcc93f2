//! `tasks`: the schedules.

use std::collections::HashMap;

use orla_document::{Key as Name, Kind as Shape, Node, Position};
use orla_marketplace::JsonText;
use orla_marketplace::program::IDS;
use orla_tasks::{Expression, ExpressionError, Overlap, Schedule};
use serde_json::{Value, json};

use super::forms::{Choice, Count, Read, Text, text_schema};
use super::keys::{Key, key, object, own};
use super::read::{Reader, excerpt, unexpected};
use super::{Config, Placed};

const ENTRIES: &str =
    "a list of tasks (with name, capability or program, input, schedule, time_zone, overlap, catch_up)";
/// The maximum number of instants that are made up for.
const MAX_CATCH_UP: usize = 100;
/// The longest name.
const MAX_NAME: usize = 64;

/// An entry as it is read.
#[derive(Default)]
struct Draft {
    name: Option<(String, Position)>,
    capability: Option<String>,
    program: Option<String>,
    input: Option<Value>,
    schedule: Option<(String, Position)>,
    time_zone: Option<(String, Position)>,
    overlap: Overlap,
    catch_up: usize,
}

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
fn keys() -> Vec<Key<Draft>> {
    vec![
        own("name", name, name_schema, "unique; 1 to 64 letters, digits, `_`, `-` and `.`").required(),
        key("capability", Text("the id or name of a capability"), |d| &mut d.capability,
            "the capability that is called"),
        key("program", Text("a program in RTFS"), |d| &mut d.program,
            "instead of `capability`: a program in [RTFS](rtfs.md)"),
        key("input", Read(input, || json!({})), |d| &mut d.input,
            "its input; by default `{}`"),
        own("schedule", |reader, draft: &mut Draft, path, node| {
            draft.schedule = reader.line(path, node, "a cron expression of five fields").map(|text| (text, node.at));
        }, text_schema, "when it starts: a cron expression of five fields (minute, hour, day of the month, month, day of the week)").required(),
        own("time_zone", |reader, draft: &mut Draft, path, node| {
            draft.time_zone = reader.line(path, node, "a time zone such as Europe/Berlin").map(|text| (text, node.at));
        }, text_schema, "the time zone of `schedule`, by its name in the IANA database; by default `UTC`"),
        key("overlap", Choice(&Overlap::WORDS), |d| &mut d.overlap,
            "what happens while the task before is not over: `skip`, the instant is left out; `queue`, its task waits; `allow`, it starts"),
        key("catch_up", Count(0, MAX_CATCH_UP), |d| &mut d.catch_up,
            "how many of the instants that passed while the server did not run are made up for, the newest ones"),
    ]
}

fn draft() -> Draft {
    Draft { catch_up: 1, ..Draft::default() }
}

pub(super) fn read(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let Shape::List(items) = &node.kind else {
        return reader.problem(node.at, || format!("{path}{}", unexpected(ENTRIES, node)));
    };
    let (keys, mut names) = (keys(), HashMap::<String, Position>::new());
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let expected = "a mapping with name, schedule, and capability or program";
        let Some(pairs) = reader.pairs(&path, item, expected) else { continue };
        let mut draft = draft();
        if reader.mapping(&path, item.at, pairs, &keys, &mut draft).is_none() {
            continue;
        }
        if let Some((name, at)) = &draft.name
            && let Some(first) = names.insert(name.clone(), *at)
        {
            reader.problem(*at, || {
                format!("{path}.name: {name} is declared twice, first on line {}", first.line)
            });
            continue;
        }
        match draft.finish(item.at) {
            Ok(Some(value)) => {
                let what = if value.is_program { "program" } else { "capability" };
                let at =
                    pairs.iter().find(|(key, _)| key.text == what).map_or(item.at, |(_, what)| what.at);
                config.schedules.push(Placed { value, at });
            }
            Ok(None) => {}
            Err((at, problem)) => reader.problem(at, || format!("{path}{problem}")),
        }
    }
}

impl Draft {
    /// Returns the schedule; `None` if a part of it has been reported.
    ///
    /// # Errors
    ///
    /// Returns what is wrong, where, as a text that continues the path.
    fn finish(self, at: Position) -> Result<Option<Schedule>, (Position, String)> {
        let (Some((name, _)), Some((text, text_at))) = (self.name, self.schedule) else {
            return Ok(None);
        };
        let (zone, zone_at) = self.time_zone.unwrap_or_else(|| ("UTC".to_owned(), text_at));
        let expression = Expression::parse(&text, &zone).map_err(|error| match error {
            ExpressionError::Schedule(problem) => (text_at, format!(".schedule: {problem}")),
            error @ ExpressionError::TimeZone(_) => (zone_at, format!(".time_zone: {error}")),
        })?;
        let is_program = self.program.is_some();
        let input = self.input.unwrap_or_else(|| json!({}));
        let (capability, input) = match (self.capability, self.program) {
            (Some(capability), None) => (capability, input),
            (None, Some(program)) => (IDS[0].to_owned(), json!({ "program": program, "input": input })),
            (None, None) => return Err((at, ": expected `capability` or `program`".to_owned())),
            (Some(_), Some(_)) => {
                return Err((at, ": `capability` and `program` exclude each other".to_owned()));
            }
        };
        if !input.is_object() {
            return Err((at, ".input: expected a mapping".to_owned()));
        }
        let input = JsonText::of(&input).map_err(|err| (at, format!(".input: {err}")))?;
        let (overlap, catch_up) = (self.overlap, self.catch_up);
        Ok(Some(Schedule {
            name,
            expression,
            capability,
            is_program,
            input,
            overlap,
            catch_up,
            owner: None,
        }))
    }
}

/// Returns a value, in whose texts variables and secrets are filled in.
fn input(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Value> {
    match &node.kind {
        Shape::Scalar(scalar) if scalar.as_text().is_some() => match reader.text_of(node, "text") {
            Ok(text) => Some(Value::String(text)),
            Err(problem) => {
                reader.problem(node.at, || format!("{path}{problem}"));
                None
            }
        },
        Shape::Scalar(_) => Some(node.to_json()),
        Shape::List(items) => {
            let items = items.iter().enumerate();
            items.map(|(at, item)| input(reader, &format!("{path}[{at}]"), item)).collect()
        }
        Shape::Map(members) => {
            let member = |(key, node): &(Name, Node)| {
                Some((key.text.clone(), input(reader, &format!("{path}.{}", excerpt(&key.text)), node)?))
            };
            members.iter().map(member).collect::<Option<serde_json::Map<_, _>>>().map(Value::Object)
        }
    }
}

fn name(reader: &mut Reader<'_>, draft: &mut Draft, path: &str, node: &Node) {
    let Some(name) = reader.line(path, node, "text") else { return };
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if name.len() <= MAX_NAME && name.bytes().all(is_part) {
        draft.name = Some((name, node.at));
    } else {
        let got = node.describe();
        reader.problem(node.at, || {
            format!("{path}: expected 1 to {MAX_NAME} letters, digits, `_`, `-` and `.`, got {got}")
        });
    }
}

fn name_schema() -> Value {
    json!({"type": "string", "pattern": "^([a-zA-Z0-9_.-]{1,64}|.*\\$\\{.*)$"})
}

pub(super) fn schema() -> Value {
    json!({"type": "array", "items": object(&keys(), &mut draft())})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tasks: &str) -> Result<Vec<Schedule>, String> {
        let config = Config::of(&format!("tasks: {tasks}\n"));
        config
            .map(|config| config.schedules.into_iter().map(|placed| placed.value).collect())
            .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn an_entry_is_read_with_its_schedule() {
        let tasks = read(
            "[{name: report, capability: report, input: {n: 1}, schedule: '0 7 * * 1-5', time_zone: Europe/Berlin, overlap: queue, catch_up: 3},
              {name: tidy, program: '(call :tidy {})', schedule: '*/5 * * * *'}]",
        );
        let tasks = tasks.unwrap();
        assert_eq!((tasks[0].capability.as_str(), tasks[0].input.as_str()), ("report", r#"{"n":1}"#));
        assert_eq!((tasks[0].overlap, tasks[0].catch_up), (Overlap::Queue, 3));
        assert_eq!(tasks[0].expression.time_zone(), "Europe/Berlin");
        assert_eq!((tasks[1].overlap, tasks[1].catch_up, tasks[1].is_program), (Overlap::Skip, 1, true));
        assert_eq!(tasks[1].input.as_str(), r#"{"program":"(call :tidy {})","input":{}}"#);
    }

    #[test]
    fn problems_are_reported_with_their_place() {
        let cases = [
            ("[{name: a, capability: b, schedule: '0 7 * *'}]", "got 4 at orla.yaml:1:44"),
            (
                "[{name: a, capability: b, schedule: '0 25 * * *'}]",
                "tasks[0].schedule: hour: expected 0 to 23 (also *, 1-5, 1,3 and */5), got 25 at orla.yaml:1:44",
            ),
            (
                "[{name: a, capability: b, schedule: '0 0 30 2 *'}]",
                "tasks[0].schedule: this date never comes at orla.yaml:1:44",
            ),
            (
                "[{name: a, capability: b, schedule: '* * * * *', time_zone: Mars}]",
                "tasks[0].time_zone: expected a time zone",
            ),
            ("[{name: a, schedule: '* * * * *'}]", "tasks[0]: expected `capability` or `program`"),
            ("[{name: a, capability: b, program: c, schedule: '* * * * *'}]", "exclude each other"),
            (
                "[{name: a b, capability: b, schedule: '* * * * *'}]",
                "tasks[0].name: expected 1 to 64 letters",
            ),
            ("[{name: a, capability: b}]", "schedule"),
            (
                "[{name: a, capability: b, schedule: '* * * * *'}, {name: a, capability: b, schedule: '* * * * *'}]",
                "declared twice",
            ),
            (
                "[{name: a, capability: b, schedule: '* * * * *', overlap: perhaps}]",
                "tasks[0].overlap: expected skip, queue or allow",
            ),
            ("{a: b}", "expected a list of tasks"),
        ];
        for (tasks, expected) in cases {
            let problem = read(tasks).unwrap_err();
            assert!(problem.contains(expected), "{tasks}: {problem}");
        }
    }
}
