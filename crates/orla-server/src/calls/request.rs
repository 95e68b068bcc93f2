//! The requests to the history. No I/O.

use bytes::Bytes;
use orla_history::{MAX_LIMIT, Query, time_of};
use orla_marketplace::JsonText;
use orla_marketplace::id::Pattern;
use orla_marketplace::rtfs::text::excerpt;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::http::json_body::is_other_than_object;
use crate::http::url::pairs;

/// The selection of calls for a list.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) query: Query,
    /// Selects running calls instead of finished ones.
    pub(super) running: bool,
}

/// Reads the query of a list.
///
/// # Errors
///
/// Returns what is wrong with it.
pub(super) fn wanted(text: &str) -> Result<Wanted, String> {
    let (mut query, mut running) = (Query::default(), false);
    for (name, value) in pairs(text) {
        match &*name {
            "capability" => query.capability = Some(Pattern::new(value)),
            "failed" => query.failed = flag("failed", &value)?,
            "running" => running = flag("running", &value)?,
            "since" => {
                let since = time_of(&value);
                query.since = Some(since.ok_or(
                    "`since` is a duration such as 10m, or a time such as 2026-11-20T08:00:00Z",
                )?);
            }
            "principal" => query.principal = Some(value),
            "client" => query.client = Some(value),
            "session" => query.session = Some(value),
            "before" => query.before = Some(value),
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
                query.limit =
                    limit.ok_or_else(|| format!("`limit` is a number from 1 to {MAX_LIMIT}"))?;
            }
            other => {
                return Err(format!("the parameter {:?} is not known here", excerpt(other, 40)));
            }
        }
    }
    if running && (query.failed || query.before.is_some()) {
        return Err("`running` goes with neither `failed` nor `before`".to_owned());
    }
    Ok(Wanted { query, running })
}

fn flag(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "" | "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(format!("`{name}` is true or false")),
    }
}

/// Reads the body of a request to repeat a call: nothing, or `{input?}`.
///
/// # Errors
///
/// Returns what is wrong with the body.
pub(super) fn replay_input(body: &Bytes) -> Result<Option<JsonText>, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wanted<'a> {
        #[serde(borrow)]
        input: Option<&'a RawValue>,
    }
    if body.trim_ascii().is_empty() {
        return Ok(None);
    }
    const EXPECTED: &str = r#"{"input": {…}} is expected"#;
    if is_other_than_object(body) {
        return Err(format!("the body is not an object: {EXPECTED}"));
    }
    let wanted: Wanted<'_> = serde_json::from_slice(body).map_err(|err| format!("{EXPECTED}: {err}"))?;
    Ok(wanted.input.map(|input| JsonText::slice_of(body, input)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_or_explained() {
        let query = |text: &str| wanted(text).map(|wanted| wanted.query);
        let read =
            query("capability=math.*&failed&since=10m&limit=5&before=a-1&client=a&session=b").unwrap();
        assert_eq!((read.client.as_deref(), read.session.as_deref()), (Some("a"), Some("b")));
        assert!(read.failed && read.since.is_some() && read.capability.unwrap().matches("math.add"));
        assert_eq!((read.limit, read.before.as_deref()), (5, Some("a-1")));
        assert!(
            wanted("running&principal=ada").unwrap().running && !wanted("running=0").unwrap().running
        );
        for wrong in [
            "failed=maybe",
            "since=soon",
            "limit=0",
            "limit=1001",
            "other=1",
            "running=now",
            "running&failed",
            "running&before=a-1",
        ] {
            assert!(query(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_replay_takes_the_old_input_or_another() {
        let read = |text: &'static str| replay_input(&Bytes::from_static(text.as_bytes()));
        assert_eq!(read(" "), Ok(None));
        assert_eq!(read("{}"), Ok(None));
        let input = read(r#"{"input": {"n": 1.10}}"#).unwrap().unwrap();
        assert_eq!(input.as_str(), r#"{"n": 1.10}"#);
        assert!(read(r#"{"inputs": {}}"#).is_err() && read("[").is_err());
    }
}
