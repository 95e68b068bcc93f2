//! Servers of others, spoken to directly and through orla: what comes has to be the same.
//!
//! One client (`xtask/fixtures/upstreams/peer.py`) lists everything, calls every tool, reads every resource, gets every
//! prompt, and prints what came as text, without what the specification makes each hop say by itself. It does so directly and
//! through orla, over both transports of the server and in both revisions of the client.
//!
//! For every revision of the client, orla speaks one revision to the server, and a server may write the same thing in another
//! order of keys in another revision. So an answer has to be what the server gives in one of the two.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::upstream::{Upstream, entry, fixtures, in_front};
use crate::install::Foreign;
use crate::process;
use crate::tally::Tally;

/// How long one round of all questions may take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The revisions of a client.
const REVISIONS: [&str; 2] = ["legacy", "2026-07-28"];

/// The exit code of a client that cannot speak to the server in the revision it was given.
const UNSUPPORTED_REVISION: i32 = 3;

/// What was asked, and what came.
type Report = BTreeMap<String, String>;

/// Compares every server over both transports.
pub(super) fn run(binary: &Path, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    let folder = foreign.folder.join("differential");
    std::fs::create_dir_all(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    for upstream in [Upstream::Everything, Upstream::PythonSdk, Upstream::FastMcp] {
        let command = upstream.command(foreign);
        compare(binary, foreign, upstream, "stdio", &command, &entry(&command), tally)?;
        let listening = upstream.listen(foreign, &folder)?;
        let target = [OsString::from(&listening.url)];
        compare(binary, foreign, upstream, "http", &target, &json!({"url": listening.url}), tally)?;
    }
    Ok(())
}

/// Compares one server over one transport.
fn compare(
    binary: &Path,
    foreign: &Foreign,
    upstream: Upstream,
    transport: &str,
    target: &[OsString],
    entry: &Value,
    tally: &mut Tally,
) -> Result<(), String> {
    let mut direct = Vec::new();
    for era in REVISIONS {
        direct.extend(ask(foreign, upstream, era, target)?);
    }
    for era in REVISIONS {
        // Each client has a server of its own, as it has directly: some keep what they were told.
        let orla = in_front(binary, &foreign.folder.join("differential/orla"), entry.clone())?;
        let url = format!("http://{}/mcp", orla.address);
        let through = ask(foreign, upstream, era, &[url.into()])?
            .ok_or_else(|| format!("orla does not speak {era}"))?;
        let title = format!("{} over {transport}, client {era}", upstream.title());
        judge(&title, &direct, &through, tally);
    }
    Ok(())
}

/// Returns all questions in one revision; nothing if the server does not know it.
fn ask(
    foreign: &Foreign,
    upstream: Upstream,
    era: &str,
    target: &[OsString],
) -> Result<Option<Report>, String> {
    let mut client = Command::new("python3");
    client.arg(fixtures().join("peer.py")).arg(era).arg(upstream.plan()).args(target);
    client.current_dir(&foreign.folder);
    let finished = process::run(&mut client, &foreign.folder, TIMEOUT)?;
    if finished.status.code() == Some(UNSUPPORTED_REVISION) {
        return Ok(None);
    }
    let printed =
        finished.stdout_of_success().map_err(|err| format!("{}, {era}: {err}", upstream.title()))?;
    serde_json::from_str(&printed).map(Some).map_err(|err| format!("its report: {err}: {printed}"))
}

/// One check for everything that was asked.
fn judge(title: &str, direct: &[Report], through: &Report, tally: &mut Tally) {
    let mut questions: Vec<&String> = direct.iter().flat_map(|report| report.keys()).collect();
    questions.extend(through.keys());
    questions.sort_unstable();
    questions.dedup();
    let mut same = 0;
    for question in questions {
        let wanted: Vec<&String> = direct.iter().filter_map(|report| report.get(question)).collect();
        match (wanted.first(), through.get(question)) {
            (Some(_), Some(came)) if wanted.contains(&came) => same += 1,
            (Some(first), came) => {
                let came = came.map_or("nothing", String::as_str);
                tally.check(&format!("{title}: {question}"), Err(difference(first, came)));
            }
            (None, Some(came)) => {
                tally.check(
                    &format!("{title}: {question}"),
                    Err(format!("there is no direct result: {came}")),
                );
            }
            (None, None) => {}
        }
    }
    let enough = if same > 0 { Ok(()) } else { Err("nothing was compared".to_owned()) };
    tally.check(&format!("{title}: {same} answers are the same"), enough);
}

/// Returns where two texts begin to differ, with a little of what surrounds it.
fn difference(direct: &str, through: &str) -> String {
    let at = direct.chars().zip(through.chars()).take_while(|(one, other)| one == other).count();
    let around = |text: &str| text.chars().skip(at.saturating_sub(40)).take(160).collect::<String>();
    format!("directly …{}…, through orla …{}…", around(direct), around(through))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_what_the_server_gives_in_one_of_its_revisions() {
        let report = |rows: &[(&str, &str)]| -> Report {
            rows.iter().map(|(question, came)| ((*question).to_owned(), (*came).to_owned())).collect()
        };
        let direct = [report(&[("a", "1"), ("b", "2")]), report(&[("a", "one"), ("c", "3")])];
        let cases: [(&[(&str, &str)], bool); 5] = [
            (&[("a", "1"), ("b", "2"), ("c", "3")], true),
            (&[("a", "one"), ("b", "2"), ("c", "3")], true),
            (&[("a", "2"), ("b", "2"), ("c", "3")], false),
            (&[("a", "1"), ("b", "2")], false),
            (&[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")], false),
        ];
        for (through, holds) in cases {
            let mut tally = Tally::default();
            judge("it", &direct, &report(through), &mut tally);
            assert_eq!(tally.close(), holds, "{through:?}");
        }
    }

    #[test]
    fn a_difference_is_shown_where_it_begins() {
        assert_eq!(difference("äab", "äac"), "directly …äab…, through orla …äac…");
    }
}
