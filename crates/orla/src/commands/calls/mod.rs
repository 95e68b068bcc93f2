//! `orla calls`: the calls of a running server or in the file of the history.

mod print;

use std::collections::HashSet;
use std::time::Duration;

use orla_history::{Query, Recorded, Row, case, indented, recorded, time_of};
use orla_marketplace::id::Pattern;
use serde_json::Value;

use super::client::{Server, readable};
use crate::cli::{Calls, CallsCommand, CallsFilter};
use crate::config::{Config, Source};
use crate::signals::Signals;
use crate::text::encoded;
use crate::{Failure, render};

/// How often `--tail` looks.
const LOOK: Duration = Duration::from_millis(500);
/// How long a server may take to write its newest calls.
const ANSWER: Duration = Duration::from_secs(2);
/// The number of calls that each further request of `--tail` fetches if the first request is not enough.
const PAGE: u16 = 1000;
/// The maximum number of calls that one look of `--tail` prints.
const MAX_FURTHER: usize = 100_000;

pub(crate) fn run(calls: &Calls, source: &Source) -> Result<(), Failure> {
    if calls.command.is_some() && calls.filter != CallsFilter::default() {
        return Err(Failure::usage("calls show, calls cancel and calls export take no filter"));
    }
    let config = super::load_local_or_for_client(calls.url.as_deref(), source)?;
    let runtime = super::small_runtime()?;
    let done = runtime.block_on(async {
        let place = Place::of(calls, &config).await?;
        match &calls.command {
            Some(CallsCommand::Show { id }) => {
                let text = place.detail(id).await?;
                match calls.json {
                    true => render::json_line(text.trim_end()),
                    false => render::out(&print::detail(&read(&text)?)),
                }
                Ok(())
            }
            Some(CallsCommand::Cancel { id }) => {
                place.cancel(id).await?;
                render::note("Cancelled.");
                Ok(())
            }
            Some(CallsCommand::Export { ids }) => export(&place, ids).await,
            None if calls.filter.tail => tail(&place, calls).await,
            None => {
                let text = place.list(&calls.filter).await?;
                let none = match calls.filter.running {
                    true => "No call runs.",
                    false => "There are no calls.",
                };
                super::print_rows("/calls", &text, calls.json, none, print::table)
            }
        }
    });
    runtime.shutdown_background();
    done
}

/// Where calls are looked up.
enum Place {
    Server(Server),
    File(Recorded),
}

impl Place {
    async fn of(calls: &Calls, config: &Config) -> Result<Self, Failure> {
        // No file has what runs.
        let is_live = calls.filter.running || matches!(calls.command, Some(CallsCommand::Cancel { .. }));
        match (&calls.url, config.history_file()) {
            (None, Some(path)) if !is_live => {
                written(config).await;
                Recorded::open(&path).map(Self::File).map_err(|error| Failure::usage(error.to_string()))
            }
            (url, _) => Server::at(url.as_deref(), config).map(Self::Server),
        }
    }

    /// Returns the calls that a filter lets through, as a JSON array.
    async fn list(&self, filter: &CallsFilter) -> Result<String, Failure> {
        let query = query(filter)?;
        match self {
            Self::Server(server) => server.get(&path(filter)).await,
            Self::File(file) => {
                let calls = file.list(&query).map_err(failed)?;
                serde_json::to_string(&calls).map_err(failed)
            }
        }
    }

    /// Cancels a call that runs.
    async fn cancel(&self, id: &str) -> Result<(), Failure> {
        match self {
            Self::Server(server) => server.delete(&format!("/calls/{}", encoded(id))).await.map(drop),
            Self::File(_) => Err(Failure::usage("only a server can cancel a call")),
        }
    }

    /// Returns a call with its data, as a JSON object.
    async fn detail(&self, id: &str) -> Result<String, Failure> {
        match self {
            Self::Server(server) => server.get(&format!("/calls/{}", encoded(id))).await,
            Self::File(file) => match file.detail(id).map_err(failed)? {
                Some(detail) => serde_json::to_string(&detail).map_err(failed),
                None => Err(Failure::failed(format!("no call has the id {id}"))),
            },
        }
    }
}

/// Makes the server of this configuration write the ended calls to its file. The server does so before
/// it answers a question about them. Without an answer, the current content of the file is used, and a
/// note says so if there is a server.
async fn written(config: &Config) {
    let Ok(server) = Server::at(None, config) else { return };
    let written = async {
        match server.is_reachable().await {
            true => {
                server.get("/calls?limit=1").await.map(drop).map_err(|why| why.into_lines().join("; "))
            }
            false => Ok(()),
        }
    };
    let written = tokio::time::timeout(ANSWER, written).await;
    if let Err(why) = written.unwrap_or_else(|_| Err(format!("no answer in {} s", ANSWER.as_secs()))) {
        render::note(&format!("the newest calls may be missing: the server did not write them ({why})"));
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::failed(error.to_string())
}

/// Returns the request for a list.
fn path(filter: &CallsFilter) -> String {
    let CallsFilter {
        running,
        failed,
        capability,
        since,
        principal,
        client,
        session,
        before,
        limit,
        ..
    } = filter;
    let mut path = format!("/calls?limit={limit}");
    if *running {
        path.push_str("&running=true");
    }
    if *failed {
        path.push_str("&failed=true");
    }
    let texts = [
        ("capability", capability),
        ("since", since),
        ("principal", principal),
        ("client", client),
        ("session", session),
        ("before", before),
    ];
    for (name, value) in texts {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", encoded(value)));
        }
    }
    path
}

fn query(filter: &CallsFilter) -> Result<Query, Failure> {
    let mut query = Query::default();
    query.failed = filter.failed;
    query.capability = filter.capability.clone().map(Pattern::new);
    query.principal.clone_from(&filter.principal);
    query.client.clone_from(&filter.client);
    query.session.clone_from(&filter.session);
    query.before.clone_from(&filter.before);
    query.limit = filter.limit.into();
    if let Some(since) = &filter.since {
        let what = format!(
            "--since {since}: expected a duration such as 10m, or a time such as 2026-11-20T08:00:00Z"
        );
        query.since = Some(time_of(since).ok_or_else(|| Failure::usage(what))?);
    }
    Ok(query)
}

fn read(text: &str) -> Result<Value, Failure> {
    readable(text).ok_or_else(|| Failure::failed("the server's answer is not a call: is it orla?"))
}

/// Prints calls as they end, after the calls that ended before.
async fn tail(place: &Place, calls: &Calls) -> Result<(), Failure> {
    let mut signals = Signals::install().map_err(failed)?;
    let mut printed: Option<HashSet<String>> = None;
    loop {
        let rows = further(place, &calls.filter, printed.as_ref()).await?;
        for row in rows.iter().rev() {
            match calls.json {
                true => render::json_line(&row.to_string()),
                false => render::line(&print::line(row)),
            }
        }
        // Calls older than these are not fetched again.
        if !rows.is_empty() || printed.is_none() {
            printed = Some(rows.iter().map(id_of).collect());
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = signals.end() => return Ok(()),
        }
    }
}

fn id_of(row: &Value) -> String {
    row["id"].as_str().unwrap_or_default().to_owned()
}

/// Returns the calls that ended after the printed ones, the newest first. At first, returns the list
/// that the filter selects.
async fn further(
    place: &Place,
    filter: &CallsFilter,
    printed: Option<&HashSet<String>>,
) -> Result<Vec<Value>, Failure> {
    let mut filter = filter.clone();
    let mut found: Vec<Value> = Vec::new();
    loop {
        let text = place.list(&filter).await?;
        let page: Vec<Value> = serde_json::from_str(&text)
            .map_err(|_| Failure::failed("the server's /calls is not a JSON array: is it orla?"))?;
        let Some(printed) = printed else { return Ok(page) };
        let is_last = page.len() < filter.limit.into();
        for row in page {
            if printed.contains(&id_of(&row)) {
                return Ok(found);
            }
            found.push(row);
        }
        if is_last || found.len() >= MAX_FURTHER {
            return Ok(found);
        }
        filter.before = found.last().map(id_of);
        filter.limit = PAGE;
    }
}

/// Prints calls as cases.
async fn export(place: &Place, ids: &[String]) -> Result<(), Failure> {
    let mut cases = Vec::new();
    for id in ids {
        let detail = print::parsed(&place.detail(id).await?)?;
        let mut within: Vec<Row> = Vec::new();
        for id in recorded(&detail) {
            within.push(print::parsed(&place.detail(id).await?)?.row);
        }
        cases.push(case(&detail.row, &within).map_err(Failure::failed)?);
    }
    render::json_line(&indented(&format!("[{}]", cases.join(","))));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_the_same_for_the_server_and_the_file() {
        let mut filter = CallsFilter {
            failed: true,
            capability: Some("a b*".to_owned()),
            since: Some("10m".to_owned()),
            before: Some("x-1".to_owned()),
            limit: 5,
            ..CallsFilter::default()
        };
        assert_eq!(path(&filter), "/calls?limit=5&failed=true&capability=a%20b%2A&since=10m&before=x-1");
        let read = query(&filter).unwrap();
        assert!(read.failed && read.since.is_some() && read.capability.unwrap().matches("a bc"));
        filter.since = Some("soon".to_owned());
        assert!(query(&filter).is_err());
    }
}
