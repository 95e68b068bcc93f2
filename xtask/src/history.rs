//! The console over a long history, and beside many calls.
//!
//! - `rows`: how long the first byte of its pages takes with 1,000,000 calls in the file of the history
//! - `live`: how far the live table is behind while 2,000 calls end each second

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use orla_e2e::{Http, Request};

use crate::bench::stats::percentile;
use crate::parts::{self, Parts};
use crate::server::Server;
use crate::tally::Tally;
use crate::{Outcome, process, server};

const PARTS: &[&str] = &["rows", "live"];

/// The calls in the file.
const ROWS: u32 = 1_000_000;
const QUICK_ROWS: u32 = 100_000;
/// How long the file may take to be filled.
const FILL: Duration = Duration::from_secs(900);
/// How often each page is opened.
const VISITS: usize = 100;
/// The milliseconds that the first byte of the first page may take.
const FIRST_BYTE: f64 = 50.0;
/// The pages whose first byte is measured. The first is the one that a person opens.
const PAGES: [(&str, &str); 6] = [
    ("the first page", "/console"),
    ("with nested calls", "/console?within=1"),
    ("failed calls", "/console?failed=1"),
    ("calls of one capability", "/console?within=1&capability=shop.tool7"),
    ("calls of the last hour", "/console?since=1h"),
    ("GET /calls", "/calls"),
];

/// Calls each second, and the connections that make them.
const RATE: u32 = 2_000;
const CONNECTIONS: u32 = 4;
/// How long the calls are made.
const LOAD: Duration = Duration::from_secs(30);
const QUICK_LOAD: Duration = Duration::from_secs(5);
/// How far the table may be behind: it is sent once a second.
const BEHIND: Duration = Duration::from_secs(2);

/// Runs the named parts, or all of them.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let parts = Parts::of(arguments, &[parts::QUICK], PARTS)?;
    let binary = server::binary()?;
    let binary = std::path::absolute(&binary).map_err(|err| format!("{}: {err}", binary.display()))?;
    let mut tally = Tally::default();
    if parts.has("rows") {
        rows(&binary, if parts.is_quick { QUICK_ROWS } else { ROWS }, &mut tally)?;
    }
    if parts.has("live") {
        live(&binary, if parts.is_quick { QUICK_LOAD } else { LOAD }, &mut tally)?;
    }
    Ok(tally.close())
}

/// Makes a folder anew whose server keeps its history in a file.
fn folder(name: &str) -> Result<PathBuf, String> {
    let folder = crate::target("history")?.join(name);
    let problem = |err: std::io::Error| format!("{}: {err}", folder.display());
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("tools")).map_err(problem)?;
    let config = "history: {path: calls.db, max_rows: 2000000}\n";
    std::fs::write(folder.join("orla.yaml"), config).map_err(problem)?;
    Ok(folder)
}

fn start(binary: &Path, folder: &Path) -> Result<(Server, SocketAddr), String> {
    let server = Server::start(binary, folder, folder)?;
    let address = server.address.parse().map_err(|err| format!("{}: {err}", server.address))?;
    Ok((server, address))
}

/// A call of a built-in.
fn add() -> Request {
    Request::new("POST", "/api/math__add")
        .header("content-type", "application/json")
        .body(r#"{"a":1,"b":2}"#)
}

fn call(http: &mut Http) -> Result<(), String> {
    match http.send(&add()).map_err(|err| err.to_string())? {
        answer if answer.status == 200 => Ok(()),
        answer => Err(format!("a call was answered with {}: {}", answer.status, answer.text())),
    }
}

/// Fills the file of a history, and opens pages.
fn rows(binary: &Path, count: u32, tally: &mut Tally) -> Result<(), String> {
    let folder = folder("rows")?;
    let (server, address) = start(binary, &folder)?;
    call(&mut Http::new(address))?;
    // It makes the file when it ends.
    server.end(Duration::from_secs(30))?;
    let mut fill = Command::new("python3");
    fill.arg(crate::root().join("xtask/fixtures/history/fill.py"));
    fill.arg(folder.join("calls.db")).arg(count.to_string());
    let filled = process::run(&mut fill, &folder, FILL)?.stdout_of_success()?;
    println!("{} calls in the file; milliseconds to the first byte:", filled.trim());

    let (_server, address) = start(binary, &folder)?;
    println!("{:<26} {:>8} {:>8} {:>8} {:>8}", "", "first", "p50", "p95", "max");
    for (at, (title, path)) in PAGES.into_iter().enumerate() {
        let visits: Vec<f64> =
            (0..VISITS).map(|_| first_byte(address, path)).collect::<Result<_, _>>()?;
        let of = |percent| percentile(visits.clone(), percent);
        println!("{title:<26} {:>8.2} {:>8.2} {:>8.2} {:>8.2}", visits[0], of(50), of(95), of(100));
        if at == 0 {
            let slow = (of(95) > FIRST_BYTE).then(|| format!("p95 is {:.1} ms", of(95)));
            let what = format!("its first byte comes within {FIRST_BYTE} ms in 95 of 100 visits");
            tally.check(&format!("rows: {title} of {count} calls: {what}"), slow.map_or(Ok(()), Err));
        }
    }
    Ok(())
}

/// Returns the milliseconds from the connection to the head of the answer.
fn first_byte(address: SocketAddr, path: &str) -> Result<f64, String> {
    let began = Instant::now();
    let sent = Http::new(address).write(&Request::new("GET", path));
    let answer = sent.and_then(orla_e2e::Unanswered::head).map_err(|err| format!("{path}: {err}"))?;
    let took = began.elapsed().as_secs_f64() * 1e3;
    match answer.status {
        200 => Ok(took),
        status => Err(format!("{path} was answered with {status}")),
    }
}

/// Makes calls at a rate, and follows the live table.
fn live(binary: &Path, length: Duration, tally: &mut Tally) -> Result<(), String> {
    let folder = folder("live")?;
    let (_server, address) = start(binary, &folder)?;
    let followed = Http::new(address).write(&Request::new("GET", "/console/live"));
    let mut table =
        followed.and_then(orla_e2e::Unanswered::head).map_err(|err| format!("the live table: {err}"))?;
    let (began, made) = (Instant::now(), AtomicU64::new(0));
    let (lags, failed) = thread::scope(|scope| {
        let callers: Vec<_> =
            (0..CONNECTIONS).map(|_| scope.spawn(|| calls(address, began, length, &made))).collect();
        let mut lags = Vec::new();
        while began.elapsed() < length {
            let Ok(Some(event)) = table.next_event() else { break };
            lags.extend(newest(&event).map(|newest| (now() - newest) as f64 / 1e3));
        }
        let joined =
            callers.into_iter().map(|caller| caller.join().unwrap_or(Err("it panicked".into())));
        (lags, joined.filter_map(Result::err).next())
    });
    let rate = made.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
    let of = |percent| percentile(lags.clone(), percent);
    println!(
        "{rate:.0} calls a second for {} s; {} tables, whose newest call began {:.2} s before (p50), at most {:.2} s",
        length.as_secs(),
        lags.len(),
        of(50),
        of(100)
    );
    tally.check("live: every call is answered", failed.map_or(Ok(()), Err));
    let enough = rate >= f64::from(RATE) * 0.95;
    let what = format!("live: {RATE} calls are made each second");
    tally
        .check(&what, if enough { Ok(()) } else { Err(format!("{rate:.0}: this machine is too busy")) });
    let expected = length.as_secs() / 2;
    let tables = lags.len() as u64;
    let regular = if tables >= expected { Ok(()) } else { Err(format!("{tables} in {length:?}")) };
    tally.check("live: a table comes at least every two seconds", regular);
    let late = of(100) > BEHIND.as_secs_f64();
    let why = format!("the newest call of a table began {:.2} s before", of(100));
    tally.check(
        &format!("live: no table is more than {} s behind", BEHIND.as_secs()),
        if late { Err(why) } else { Ok(()) },
    );
    let page = Http::new(address).get("/console").text();
    let missing =
        page.contains("calls are missing").then(|| "the page says that calls are missing".to_owned());
    tally.check("live: no call is left out of the history", missing.map_or(Ok(()), Err));
    Ok(())
}

/// Makes the calls of one connection.
fn calls(address: SocketAddr, began: Instant, length: Duration, made: &AtomicU64) -> Result<(), String> {
    let mut http = Http::new(address);
    let every = Duration::from_secs(1) * CONNECTIONS / RATE;
    for turn in 0.. {
        let at = every * turn;
        if at >= length {
            return Ok(());
        }
        thread::sleep(at.saturating_sub(began.elapsed()));
        call(&mut http)?;
        made.fetch_add(1, Ordering::Relaxed);
        if began.elapsed() > length * 2 {
            return Err("the calls take longer than they may".to_owned());
        }
    }
    Ok(())
}

/// Milliseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Returns when the newest call of a table that has ended began, in milliseconds since 1970.
fn newest(table: &str) -> Option<i64> {
    // The rows of calls that run come before, and have a class.
    let (_, ended) = table.split_once("<tr id=\"c-")?;
    let times = ended.split("datetime=\"").skip(1).filter_map(|rest| rest.split('"').next());
    times.filter_map(|time| Some(time.parse::<jiff::Timestamp>().ok()?.as_millisecond())).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_call_of_a_table_is_found() {
        let table = r#"<tr class="running" id="c-3"><td><time datetime="2026-11-20T08:00:03Z"></td></tr>
            <tr id="c-2"><td><time datetime="2026-11-20T08:00:01.500Z"></td></tr>
            <tr id="c-1"><td><time datetime="2026-11-20T08:00:02Z"></td></tr>"#;
        assert_eq!(newest(table), Some(1_795_161_602_000));
        assert_eq!(newest("<p>No calls yet.</p>"), None);
    }
}
