//! Parses requests about tasks. No I/O.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use orla_marketplace::rtfs::text::excerpt;
use orla_marketplace::{JsonText, Payload, Principal};
use orla_tasks::{Filter, NewTask, TaskId};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::json::ResultForm;
use crate::http::url::pairs;

/// The longest time that a request waits for a task.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The body of a request for a task.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestBody<'a> {
    #[serde(borrow)]
    capability: Option<Cow<'a, str>>,
    #[serde(borrow)]
    program: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
}

/// Reads the body of a request for a task.
///
/// # Errors
///
/// Returns what is wrong with it.
pub(super) fn wanted(body: &Bytes, caller: Option<Principal>) -> Result<NewTask, String> {
    const EXPECTED: &str = r#"{"capability": "id", "input": {…}} or {"program": "…"} is expected"#;
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(format!("the body is not an object: {EXPECTED}"));
    }
    let body: Bytes = body.clone();
    let asked: RequestBody<'_> =
        serde_json::from_slice(&body).map_err(|err| format!("the body cannot be read: {err}"))?;
    let mut task = match (asked.capability, asked.program) {
        (Some(capability), None) => {
            let input = asked.input.filter(|input| input.get() != "null");
            let input = input.map_or_else(Payload::empty, |input| {
                Payload::from_json(JsonText::slice_of(&body, input))
            });
            NewTask::call(capability, input, caller)
        }
        (None, Some(program)) => {
            let input = asked.input.map_or("null", RawValue::get);
            let input = JsonText::parse(format!(r#"{{"program":{program},"input":{input}}}"#));
            let input = input.map_err(|err| err.to_string())?;
            NewTask::program(Payload::from_json(input), caller)
        }
        _ => return Err(format!("either `capability` or `program` is expected: {EXPECTED}")),
    };
    task.key = asked.key.map(Cow::into_owned);
    Ok(task)
}

/// Reads the query of a list.
///
/// # Errors
///
/// Returns what is wrong with it.
pub(super) fn filter(query: &str) -> Result<Filter, String> {
    let mut filter = Filter::default();
    for (name, value) in pairs(query) {
        match &*name {
            "state" => {
                for word in value.split(',') {
                    let state = word.parse().map_err(|problem| format!("state: {problem}"))?;
                    filter.states.push(state);
                }
            }
            "capability" => filter.capability = Some(value),
            "before" => {
                let id = TaskId::parse(&value);
                filter.before = Some(id.ok_or("`before` is not the id of a task")?);
            }
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=1000).contains(limit));
                filter.limit = Some(limit.ok_or("`limit` is a number from 1 to 1000")?);
            }
            other => return Err(unknown(other)),
        }
    }
    Ok(filter)
}

/// How a task is looked at.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TaskQuery {
    /// How long the request waits for its end, one minute at most.
    pub(super) wait: Duration,
    pub(super) form: ResultForm,
}

/// Reads the query of a request for one task: `?wait=SECONDS` and `?result=mcp`.
///
/// # Errors
///
/// Returns what is wrong with it.
pub(super) fn task_query(query: &str) -> Result<TaskQuery, String> {
    let mut task_query = TaskQuery::default();
    for (name, value) in pairs(query) {
        match &*name {
            "wait" => {
                let seconds = value.parse::<f64>().ok().filter(|seconds| *seconds >= 0.0);
                let seconds = seconds.ok_or("`wait` is a number of seconds")?;
                task_query.wait = Duration::from_secs_f64(seconds.min(MAX_WAIT.as_secs_f64()));
            }
            "result" if value == "mcp" => task_query.form = ResultForm::Mcp,
            "result" => return Err("`result` is mcp, or left out".to_owned()),
            other => return Err(unknown(other)),
        }
    }
    Ok(task_query)
}

fn unknown(name: &str) -> String {
    format!("the parameter {:?} is not known here", excerpt(name, 40))
}

#[cfg(test)]
mod tests {
    use super::*;
    use orla_tasks::State;

    fn read(body: &str) -> Result<(NewTask, String), String> {
        let task = wanted(&Bytes::copy_from_slice(body.as_bytes()), None)?;
        let input = task.input.json().unwrap().to_string();
        Ok((task, input))
    }

    #[test]
    fn a_body_names_a_capability_or_a_program() {
        let (call, input) = read(r#"{"capability": "ls", "input": {"n": 1.10}, "key": "k"}"#).unwrap();
        assert_eq!((&*call.capability, call.is_program, call.key.as_deref()), ("ls", false, Some("k")));
        assert_eq!(input, r#"{"n": 1.10}"#);
        assert_eq!(read(r#"{"capability": "ls"}"#).unwrap().1, "{}");
        let (program, input) = read(r#"{"program": "(+ 1 2)", "input": [1]}"#).unwrap();
        assert_eq!((program.is_program, &*input), (true, r#"{"program":"(+ 1 2)","input":[1]}"#));
        for wrong in ["", "[]", "{}", r#"{"capability": "a", "program": "b"}"#, r#"{"capability": 1}"#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(read(r#"{"capability": "a", "inputs": {}}"#).err().unwrap().contains("inputs"));
    }

    #[test]
    fn a_query_is_read_or_explained() {
        let filter = filter("state=working,queued&limit=5&capability=a%20b").unwrap();
        assert_eq!(filter.states, [State::Working, State::Queued]);
        assert_eq!((filter.limit, filter.capability.as_deref()), (Some(5), Some("a b")));
        for wrong in ["state=no", "limit=0", "limit=x", "before=x", "other=1"] {
            assert!(super::filter(wrong).is_err(), "{wrong}");
        }
        assert_eq!(task_query(""), Ok(TaskQuery::default()));
        let half = TaskQuery { wait: Duration::from_millis(500), form: ResultForm::Mcp };
        assert_eq!(task_query("wait=0.5&result=mcp"), Ok(half));
        assert_eq!(task_query("wait=1e9").map(|task_query| task_query.wait), Ok(MAX_WAIT));
        for wrong in ["wait=-1", "wait=nan", "w=1", "result=x"] {
            assert!(task_query(wrong).is_err(), "{wrong}");
        }
    }
}
