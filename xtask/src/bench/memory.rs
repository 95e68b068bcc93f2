//! What the server occupies: idle, after load, with many sessions, with many capsules, and under what is too large for it.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::client::{self, Connection};
use super::gateways::Session;
use super::life::{fresh, package, script};
use super::report::Figure;
use super::{Effort, Programs};
use crate::server::{Server, peak, private};

/// Capsules of the server that one with many is compared with: what the first ones cost is not each one's.
const FEW: usize = 10;

/// Programs that build large values at the same time, and how long the server has to give their memory back.
const LARGE_PROGRAMS: usize = 64;
const TIME_TO_RETURN: Duration = Duration::from_secs(10);
/// The integers of a large value. To build it, a program needs nearly the 64 MiB that it may have.
const LARGE_VALUE: u32 = 2_000_000;
/// How long the first of them keep it.
const HELD: Duration = Duration::from_secs(2);
/// How much the server has to grow at least for the figure to mean something.
const LEAST_PEAK: u64 = 256 << 20;
/// How long such a program may take before the bench gives up.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Resident memory: idle, after load, and for each session.
pub(super) fn memory(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let folder = programs.folder.join("memory");
    fresh(&folder.join("tools"))?;
    fs::copy(&programs.floor, folder.join("tools/floor")).map_err(|err| err.to_string())?;
    let orla = Server::start(programs.binary(), &folder, &folder)?;
    // One answer, so that whatever is built at the first request is there.
    Connection::open(&orla.address)?.exchange(&client::sessionless("tools/list", json!({})))?;
    let (idle, own) = (orla.resident()?, private(orla.pid())?);
    client::threads(&orla.address, &[client::call("floor", &json!({}))], 8, effort.round * 2)?;
    let loaded = orla.resident()?;
    drop(orla);

    let mut figures = vec![
        Figure::new("resident memory, idle", megabytes(idle), json!({"bytes": idle}))
            .goal("≤ 14 MB", idle <= 14_000_000),
        Figure::new("private memory, idle", megabytes(own), json!({"bytes": own}))
            .goal("≤ 5 MB", own <= 5_000_000),
        Figure::new("resident memory, loaded", megabytes(loaded), json!({"bytes": loaded})),
    ];
    let kinds =
        [("idle sessions", effort.sessions, false), ("sessions with an open stream", 1_000, true)];
    for (kind, count, has_stream) in kinds {
        let orla = Server::start(programs.binary(), &folder, &folder)?;
        let open =
            |count: usize| client::side_by_side(8, || sessions(&orla.address, count / 8, has_stream));
        // What the first sessions build for all is no part of one.
        let _first = open(80)?;
        let before = orla.resident()?;
        let opened = open(count)?;
        let each = orla.resident()?.saturating_sub(before) / opened.len() as u64;
        let what = format!("each of {} {kind}", opened.len());
        let figure = Figure::new(what, format!("{:.1} KB", each as f64 / 1e3), json!({"bytes": each}));
        figures.push(figure.goal("≤ 20 KB", each <= 20_000));
    }
    Ok(figures)
}

/// Opens sessions of the last revision that has them, and returns their streams, which stay open.
fn sessions(address: &str, count: usize, has_stream: bool) -> Result<Vec<Option<Connection>>, String> {
    let mut connection = Connection::open(address)?;
    let mut open = || {
        let session = Session::begin(&mut connection, "/mcp")?;
        if !session.is_open() {
            return Err("no session was opened".to_owned());
        }
        has_stream.then(|| session.stream(address)).transpose()
    };
    (0..count).map(|_| open()).collect()
}

/// What is resident after a burst of programs that build large values.
pub(super) fn burst(programs: &Programs, _effort: Effort) -> Result<Vec<Figure>, String> {
    let folder = programs.folder.join("burst");
    fresh(&folder.join("tools"))?;
    let config = "builtins: true\nmax_memory_bytes: 1073741824\n";
    fs::write(folder.join("orla.yaml"), config).map_err(|err| err.to_string())?;
    let orla = Server::start(programs.binary(), &folder, &folder)?;
    let count_to = |count: u32| {
        // They wait, so that the values of many programs are there at once.
        let since = (SystemTime::now() + HELD).duration_since(SystemTime::UNIX_EPOCH);
        let millis = i64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(0);
        let until = jiff::Timestamp::from_millisecond(millis).map_err(|err| err.to_string())?;
        let program =
            format!("(let [all (vec (range 0 {count}))] (sleep-until \"{until}\") (count all))");
        let call = client::call("rtfs", &json!({"program": program}));
        let run = || {
            let mut connection = Connection::open(&orla.address)?;
            let end = Instant::now() + TIMEOUT;
            loop {
                let answer = connection.exchange(&call)?;
                if client::is_good(&answer) {
                    break;
                }
                let text = String::from_utf8_lossy(answer.body);
                // A program that finds no room in the server's budget is sent again.
                if !text.contains("busy") || Instant::now() > end {
                    return Err(format!("a program failed: {text}"));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(Vec::<()>::new())
        };
        client::side_by_side(LARGE_PROGRAMS, run).map(drop)
    };
    // What the first programs build stays: code, threads, tables.
    count_to(10)?;
    let idle = orla.resident()?;
    count_to(LARGE_VALUE)?;
    let ended = Instant::now();
    let (mut left, highest) = (orla.resident()?, peak(orla.pid())?);
    if highest < idle + LEAST_PEAK {
        return Err(format!("the programs took {} at most", megabytes(highest)));
    }
    while left > 2 * idle && ended.elapsed() < TIME_TO_RETURN {
        std::thread::sleep(Duration::from_millis(20));
        left = orla.resident()?;
    }
    let took = ended.elapsed().as_secs_f64();
    let shown = format!(
        "{} after {took:.1} s ({} idle, {} at most)",
        megabytes(left),
        megabytes(idle),
        megabytes(highest)
    );
    let values = json!({"bytes": left, "idle_bytes": idle, "peak_bytes": highest, "seconds": took});
    let figure =
        Figure::new(format!("resident memory after {LARGE_PROGRAMS} large programs"), shown, values);
    Ok(vec![figure.goal("≤ 2 × idle within 10 s", left <= 2 * idle)])
}

/// How the server grows while a tool writes 1 GB.
pub(super) fn flood(programs: &Programs, _effort: Effort) -> Result<Vec<Figure>, String> {
    let folder = programs.folder.join("flood");
    fresh(&folder.join("tools"))?;
    script(&folder.join("tools/flood.sh"), "# Writes 1 GB.\nexec head -c 1000000000 /dev/zero\n")?;
    let orla = Server::start(programs.binary(), &folder, &folder)?;
    Connection::open(&orla.address)?.exchange(&client::sessionless("tools/list", json!({})))?;
    let before = orla.resident()?;
    let started = Instant::now();
    let mut connection = Connection::open(&orla.address)?;
    if !client::is_good(&connection.exchange(&client::call("flood", &json!({})))?) {
        return Err("the call failed".to_owned());
    }
    let took = started.elapsed().as_secs_f64();
    let growth = peak(orla.pid())?.saturating_sub(before);
    Ok(vec![
        Figure::new(
            "growth while a tool writes 1 GB",
            format!("{} (in {took:.1} s)", megabytes(growth)),
            json!({"bytes": growth, "seconds": took}),
        )
        .goal("< 64 MB", growth < 64_000_000),
    ])
}

/// What the server keeps for each of many capsules that run and are not called.
pub(super) fn idle_capsules(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let mut resident = Vec::new();
    for count in [FEW, FEW + effort.capsules] {
        let folder = programs.folder.join("idle-capsules");
        fresh(&folder.join("tools"))?;
        for number in 0..count {
            let name = format!("echo_{number:04}");
            package(
                &programs.echo_capsule,
                &folder.join("tools").join(&name),
                &name,
                "  eager: true\n",
            )?;
        }
        let orla = Server::start(programs.binary(), &folder, &folder)?;
        let listed = listed(&orla.address)?;
        if listed != count {
            return Err(format!("{listed} of {count} capsules are listed"));
        }
        resident.push(orla.resident()?);
    }
    let each = (resident[1].saturating_sub(resident[0])) as f64 / effort.capsules as f64;
    Ok(vec![
        Figure::new(
            format!("an idle capsule, of {}", effort.capsules),
            format!("{:.1} KB", each / 1e3),
            json!({"bytes": each}),
        )
        .goal("≤ 100 KB", each <= 100_000.0),
    ])
}

/// Returns how many tools a server lists. It waits until it knows them all.
fn listed(address: &str) -> Result<usize, String> {
    let mut connection = Connection::open(address)?;
    let (mut count, mut params) = (0, json!({}));
    loop {
        let body = connection.exchange(&client::sessionless("tools/list", params))?.body;
        let page: Value = serde_json::from_slice(body).map_err(|err| format!("tools/list: {err}"))?;
        count += page["result"]["tools"].as_array().map_or(0, Vec::len);
        match &page["result"]["nextCursor"] {
            Value::String(cursor) => params = json!({"cursor": cursor}),
            _ => return Ok(count),
        }
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
