//! `orla status`: the state of a running server.

use serde_json::Value;

use super::client::Server;
use super::text_of;
use crate::Failure;
use crate::config::Source;
use crate::render;

pub(crate) fn run(url: Option<&str>, json: bool, source: &Source) -> Result<(), Failure> {
    let config = super::load_for_client(url, source)?;
    let server = Server::at(url, &config)?;
    let runtime = super::small_runtime()?;
    if json {
        render::json_line(runtime.block_on(server.get("/status"))?.trim_end());
        return Ok(());
    }
    let status = runtime.block_on(get(&server))?;
    warn(&status);
    render::out(&shown(&status));
    Ok(())
}

/// `--watch`: shows it again as it changes.
pub(crate) fn watch(url: Option<&str>, source: &Source) -> Result<(), Failure> {
    let config = super::load_for_client(url, source)?;
    let server = Server::at(url, &config)?;
    let look = async |server: &mut Server| Ok(shown(&get(server).await?));
    super::small_runtime()?.block_on(super::watch::watch_server(server, look))
}

/// `--health`: whether it answers.
pub(crate) fn health(url: Option<&str>, source: &Source) -> Result<(), Failure> {
    let config = super::load_for_client(url, source)?;
    let server = Server::at(url, &config)?;
    render::out(&super::small_runtime()?.block_on(server.get("/healthz"))?);
    Ok(())
}

/// Returns the state of a server.
pub(super) async fn get(server: &Server) -> Result<Value, Failure> {
    read(&server.get("/status").await?)
}

/// Returns the state of a server after it has asked its providers for their capabilities. Without a
/// client, it would not have started them yet.
pub(super) async fn get_listed(server: &Server) -> Result<Value, Failure> {
    read(&server.get_listed("/status?learn=true").await?)
}

fn read(text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text)
        .map_err(|_| Failure::failed("the server's /status is not JSON: is it orla?"))
}

/// Prints why providers serve nothing.
pub(super) fn warn(status: &Value) {
    for problem in status["problems"].as_array().into_iter().flatten() {
        render::warning(&text_of(problem));
    }
}

fn shown(status: &Value) -> String {
    let uptime = status["uptime_ms"].as_f64().unwrap_or_default() / 1000.0;
    let nothing = Vec::new();
    let capabilities = status["capabilities"].as_array().unwrap_or(&nothing);
    let unlisted = status["unlisted"].as_u64().filter(|more| *more > 0);
    let mut out = format!(
        "orla {}, up {uptime:.1} s, generation {}, {} capabilit{}{}\n",
        text_of(&status["version"]),
        text_of(&status["generation"]),
        capabilities.len(),
        if capabilities.len() == 1 { "y" } else { "ies" },
        unlisted.map(|more| format!(" (and {more} that are not listed)")).unwrap_or_default()
    );
    if !capabilities.is_empty() {
        out.push('\n');
        out.push_str(&table(status));
    }
    let schedules = schedules(status);
    if !schedules.is_empty() {
        out.push('\n');
        out.push_str(&schedules);
    }
    out
}

/// Returns the schedules as a table.
fn schedules(status: &Value) -> String {
    let nothing = Vec::new();
    let all = status["schedules"].as_array().unwrap_or(&nothing);
    if all.is_empty() {
        return String::new();
    }
    let column = |head, key: &str| (head, all.iter().map(|one| text_of(&one[key])).collect::<Vec<_>>());
    let mut columns = vec![
        column("SCHEDULE", "name"),
        column("WHEN", "schedule"),
        column("TIME ZONE", "time_zone"),
        column("NEXT", "next"),
        column("LAST FAULT", "problem"),
    ];
    columns.retain(|(_, cells)| cells.iter().any(|cell| !cell.is_empty()));
    super::table_of(&columns, 200)
}

/// Returns the capabilities of a server as a table.
pub(super) fn table(status: &Value) -> String {
    let nothing = Vec::new();
    let capabilities = status["capabilities"].as_array().unwrap_or(&nothing);
    if capabilities.is_empty() {
        return String::new();
    }
    let column = |head, key: &str| {
        let cell = |capability: &Value| match &capability[key] {
            Value::Number(ms) if key == "uptime_ms" => super::uptime(ms.as_u64().unwrap_or_default()),
            value => text_of(value),
        };
        (head, capabilities.iter().map(cell).collect::<Vec<_>>())
    };
    let mut columns = vec![
        column("NAME", "name"),
        column("KIND", "kind"),
        column("INTERPRETER", "interpreter"),
        column("STATE", "state"),
        column("PID", "pid"),
        column("UPTIME", "uptime_ms"),
        column("RESTARTS", "restarts"),
        column("LAST FAILURE", "last_failure"),
        column("SOURCE", "source"),
    ];
    columns.retain(|(_, cells)| cells.iter().any(|cell| !cell.is_empty()));
    super::table_of(&columns, 200)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_a_headline_and_a_table() {
        let status = serde_json::json!({
            "version": "0.1.0", "uptime_ms": 1500, "generation": 2,
            "capabilities": [{"name": "ls", "kind": "tool", "interpreter": "sh", "source": "./tools/ls.sh"}],
        });
        assert_eq!(
            shown(&status),
            "orla 0.1.0, up 1.5 s, generation 2, 1 capability\n\nNAME  KIND  INTERPRETER  SOURCE\nls    tool  sh           ./tools/ls.sh\n"
        );
        let status = serde_json::json!({
            "version": "0.1.0", "uptime_ms": 1500, "generation": 2,
            "capabilities": [
                {"name": "ls", "kind": "tool"},
                {"name": "notes", "kind": "capsule", "state": "READY", "pid": 7, "uptime_ms": 250,
                 "restarts": 2, "last_failure": "it exited with code 7"},
            ],
        });
        let table = shown(&status);
        let fired = serde_json::json!({"schedules": [
            {"name": "tick", "schedule": "0 * * * *", "time_zone": "UTC", "next": "2026-11-22T13:00:00Z"},
            {"name": "tock", "schedule": "* * * * *", "time_zone": "UTC", "problem": "unknown tool: x"},
        ]});
        let fired = schedules(&fired);
        let rows: Vec<&str> = fired.lines().map(str::trim_end).collect();
        assert_eq!(
            rows,
            [
                "SCHEDULE  WHEN       TIME ZONE  NEXT                  LAST FAULT",
                "tick      0 * * * *  UTC        2026-11-22T13:00:00Z",
                "tock      * * * * *  UTC                              unknown tool: x",
            ]
        );
        let lines: Vec<&str> = table.lines().skip(2).map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "NAME   KIND     STATE  PID  UPTIME  RESTARTS  LAST FAILURE",
                "ls     tool",
                "notes  capsule  READY  7    0.2 s   2         it exited with code 7",
            ]
        );
    }
}
