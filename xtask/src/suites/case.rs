//! A case of a suite as a call, and the server that answers it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::bench::client::{self, Connection};
use crate::server;

/// What a suite needs: capabilities that the server declares, and calls.
#[derive(Default)]
pub(super) struct Plan {
    /// The `capabilities` of the server's configuration.
    pub(super) capabilities: Vec<Value>,
    pub(super) cases: Vec<Case>,
}

/// One call, and what must come of it.
pub(super) struct Case {
    /// What the case is counted with.
    pub(super) group: String,
    pub(super) name: String,
    /// The id of the capability.
    pub(super) id: String,
    pub(super) arguments: Value,
    pub(super) expected: Expected,
}

pub(super) enum Expected {
    /// A value that is equal to one of these. Numbers are equal by value.
    OneOf(Vec<Value>),
    /// Any value.
    Accepted,
    /// An error.
    Refused,
}

/// How a case differs from what it expects.
#[derive(Debug, PartialEq)]
pub(super) struct Failure(pub(super) String);

/// A server and a connection to it.
pub(super) struct Server {
    connection: Connection,
    /// Capabilities that are not served, with the reason.
    unavailable: BTreeMap<String, String>,
    /// Keeps the process alive.
    _process: server::Server,
}

impl Server {
    /// Starts a server with the configuration in a folder.
    pub(super) fn start(binary: &Path, folder: &Path) -> Result<Self, String> {
        let process = server::Server::start(binary, folder, folder)?;
        let mut connection = Connection::open(&process.address)?;
        let status = connection.exchange(b"GET /status HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
        let status: Value =
            serde_json::from_slice(status.body).map_err(|err| format!("/status: {err}"))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let rows = status["capabilities"].as_array().into_iter().flatten();
        let unavailable = rows
            .filter(|row| row["state"] == "unavailable")
            .map(|row| (text(&row["name"]), text(&row["last_failure"])))
            .collect();
        Ok(Self { connection, unavailable, _process: process })
    }

    /// Calls what a case names, and compares what comes with what must come.
    ///
    /// # Errors
    /// The outer one: the server did not answer as MCP demands.
    pub(super) fn run(&mut self, case: &Case) -> Result<Result<(), Failure>, String> {
        if let Some(reason) = self.unavailable.get(&case.id) {
            return Ok(Err(Failure(format!("unavailable: {reason}"))));
        }
        let answer = self.connection.exchange(&client::call(&case.id, &case.arguments))?;
        let message: Value = serde_json::from_slice(answer.body)
            .map_err(|err| format!("{}: {err}: {}", case.name, String::from_utf8_lossy(answer.body)))?;
        let result = &message["result"];
        if result.is_null() {
            return Ok(Err(Failure(format!("no result: {}", message["error"]["message"]))));
        }
        Ok(judge(&case.expected, result))
    }
}

fn judge(expected: &Expected, result: &Value) -> Result<(), Failure> {
    let error =
        (result["isError"] == true).then(|| result["content"][0]["text"].as_str().unwrap_or_default());
    let value = &result["structuredContent"];
    let failure = match (expected, error) {
        (Expected::OneOf(values), None) if values.iter().any(|expected| equal(expected, value)) => {
            return Ok(());
        }
        (Expected::Accepted, None) | (Expected::Refused, Some(_)) => return Ok(()),
        (Expected::OneOf(values), None) => format!("expected {}, got {value}", json!(values)),
        (Expected::Refused, None) => format!("accepted, though it is invalid; got {value}"),
        (_, Some(error)) => format!("refused: {error}"),
    };
    Err(Failure(failure))
}

/// Returns whether two values are the same. Numbers are compared by value, as JSON does not tell `1`
/// from `1.0`, and up to the last place, which `serde_json` does not always read exactly.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            let near = |a: f64, b: f64| (a - b).abs() <= f64::EPSILON * a.abs();
            a == b || a.as_f64().zip(b.as_f64()).is_some_and(|(a, b)| near(a, b))
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_judged_by_what_is_expected() {
        let value = json!({"structuredContent": {"a": [1, "x"]}});
        let error = json!({"isError": true, "content": [{"type": "text", "text": "no"}]});
        let is = |value| Expected::OneOf(vec![json!(null), value]);
        assert_eq!(judge(&is(json!({"a": [1.0, "x"]})), &value), Ok(()));
        assert!(judge(&is(json!({"a": [1]})), &value).is_err());
        assert_eq!(judge(&Expected::Accepted, &value), Ok(()));
        assert_eq!(judge(&Expected::Accepted, &error), Err(Failure("refused: no".to_owned())));
        assert_eq!(judge(&Expected::Refused, &error), Ok(()));
        assert!(judge(&Expected::Refused, &value).is_err());
    }
}
