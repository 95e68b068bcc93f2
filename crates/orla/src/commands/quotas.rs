//! `orla quotas`: the remaining quotas of a running server.

use serde_json::Value;

use super::client::Server;
use super::text_of;
use crate::Failure;
use crate::config::Source;

pub(crate) fn run(url: Option<&str>, json: bool, source: &Source) -> Result<(), Failure> {
    let config = super::load_for_client(url, source)?;
    let server = Server::at(url, &config)?;
    let text = super::small_runtime()?.block_on(server.get("/quotas"))?;
    super::print_rows("/quotas", &text, json, "No quota applies to you.", table)
}

fn table(rows: &[Value]) -> String {
    let column = |head, cell: fn(&Value) -> String| (head, rows.iter().map(cell).collect::<Vec<_>>());
    let mut columns = vec![
        column("RULE", |row| text_of(&row["rule"])),
        column("CALLER", |row| text_of(&row["caller"])),
        column("CAPABILITIES", |row| {
            let patterns = row["capabilities"].as_array().into_iter().flatten();
            patterns.map(text_of).collect::<Vec<_>>().join(", ")
        }),
        column("CALLS", |row| match (&row["calls"], &row["per"]) {
            (Value::Null, _) => String::new(),
            (calls, per) => {
                format!("{} of {calls} left per {}", text_of(&row["remaining"]), text_of(per))
            }
        }),
        column("AT ONCE", |row| match &row["concurrent"] {
            Value::Null => String::new(),
            most => format!("{} of {most} running", text_of(&row["running"])),
        }),
        column("NEXT IN", |row| match row["retry_after_ms"].as_u64() {
            Some(ms) if ms > 0 => spoken(ms),
            _ => String::new(),
        }),
    ];
    columns.retain(|(_, cells)| cells.iter().any(|cell| !cell.is_empty()));
    super::table_of(&columns, 200)
}

/// Returns a time to wait, as a person reads it.
fn spoken(ms: u64) -> String {
    let seconds = ms.div_ceil(1000);
    match seconds {
        0..120 => super::uptime(ms.max(100)),
        120..7200 => format!("{} min", seconds.div_ceil(60)),
        7200..172_800 => format!("{} h", seconds.div_ceil(3600)),
        _ => format!("{} d", seconds.div_ceil(86_400)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_is_shown_in_human_units() {
        let cases = [
            (1, "0.1 s"),
            (1500, "1.5 s"),
            (600_000, "10 min"),
            (43_198_600, "12 h"),
            (600_000_000, "7 d"),
        ];
        for (ms, text) in cases {
            assert_eq!(spoken(ms), text);
        }
    }

    #[test]
    fn a_row_says_what_is_left_of_how_much() {
        let rows = [
            serde_json::json!({
                "rule": "quotas[0]", "caller": "bob", "to": ["bob"], "capabilities": ["a"], "per": "minute", "calls": 5,
                "remaining": 2, "retry_after_ms": 0,
            }),
            serde_json::json!({
                "rule": "quotas[1]", "caller": null, "to": ["*"], "capabilities": ["*"], "concurrent": 2, "running": 0,
                "retry_after_ms": 1500,
            }),
        ];
        let table = table(&rows);
        let lines: Vec<&str> = table.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "RULE       CALLER  CAPABILITIES  CALLS                   AT ONCE         NEXT IN",
                "quotas[0]  bob     a             2 of 5 left per minute",
                "quotas[1]          *                                     0 of 2 running  1.5 s",
            ]
        );
    }
}
