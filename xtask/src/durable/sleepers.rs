//! Very many programs that sleep: what each takes in the process, and when it wakes, also when the server is killed meanwhile.
//!
//! One round has instants that are spread over a while, the other has one for all. In both, the server is killed when all
//! are asleep, and the server that is started afterwards wakes them. A few programs call a tool when they wake, which must not
//! be called twice.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Context, all_tasks, ask, figure, get, lines, start, tool};
use crate::bench::client::{Connection, side_by_side};
use crate::bench::stats::percentile;
use crate::server::{self, Server};

/// How many programs sleep in a round, and how many where it has to be quick.
const COUNT: (usize, usize) = (100_000, 2_000);
/// Over how many seconds the instants of a round are spread, and where it has to be quick.
const SPREAD: (usize, usize) = (60, 5);
/// How many programs call a tool when they wake.
const CALLING: usize = 100;
/// How many clients start programs at once.
const CLIENTS: usize = 16;
/// Programs are accepted at least that fast, with some time for the restart.
const ACCEPTED: (Duration, Duration) = (Duration::from_secs(12), Duration::from_millis(1));
/// How long after the last instant all have to be over.
const LATE: Duration = Duration::from_secs(300);
/// Of so many programs, the journal is read too.
const SAMPLES: usize = 1_000;
/// What a sleeping program may take, in bytes.
const BYTES: f64 = 200.0;
/// How far from its instant a program may wake, in milliseconds.
const PRECISION: f64 = 1_000.0;

const EARLY: &str = "they were not all asleep before they were due";
const PROGRAM: &str = "(do (sleep-until (:until input)) (:n input))";
const CALLS: &str = "(do (sleep-until (:until input)) (call :mark {:n (:n input)}))";

/// What one round has shown.
struct Round {
    /// Resident bytes for each program, in the process that accepted them and in the next one.
    bytes: [f64; 2],
    start: Duration,
    /// Milliseconds from the instant to when the program went on, of some programs.
    woken: Vec<f64>,
    /// The same, to its end, of all.
    over: Vec<f64>,
}

pub(super) fn run(context: &mut Context) -> Result<(), String> {
    let count = context.some(COUNT.0, COUNT.1);
    let spread = context.some(SPREAD.0, SPREAD.1);
    for (what, name, spread) in
        [(format!("spread over {spread} s"), "spread", spread), ("due at once".to_owned(), "at-once", 0)]
    {
        let folder = context.folder("sleepers")?.join(name);
        let what = format!("{count} sleeping programs, {what}");
        // Programs whose instant comes before all of them sleep say nothing about the machine, and a busy one needs longer.
        let mut done = Err(EARLY.to_owned());
        for times in [1, 4, 16] {
            let folder = folder.join(times.to_string());
            done = round(&context.orla, &folder, count, spread, ACCEPTED.0 * times);
            if !matches!(&done, Err(why) if why == EARLY) {
                break;
            }
        }
        match done {
            Ok(round) => {
                round.show(&what, context.is_quick);
                context.tally.check(&format!("{what}: none is lost, none runs twice"), Ok(()));
            }
            Err(why) => context.tally.check(&what, Err(why)),
        }
    }
    Ok(())
}

impl Round {
    fn show(&self, what: &str, is_quick: bool) {
        let [first, next] = self.bytes;
        for (when, bytes) in [("where they were accepted", first), ("after the restart", next)] {
            let text = format!("{bytes:.0} bytes each {when}");
            if is_quick {
                println!("      {what}: {text} (rough: what is there once is shared by few)");
            } else {
                figure(what, &text, "≤ 200 bytes", bytes <= BYTES);
            }
        }
        println!("      {what}: the start took {:.0} ms", self.start.as_secs_f64() * 1e3);
        for (when, times) in [("went on", &self.woken), ("were over", &self.over)] {
            let least = percentile(times.clone(), 0);
            let [middle, most, last] = [50, 99, 100].map(|percent| percentile(times.clone(), percent));
            let text = format!(
                "{when} after their instant: p50 {middle:.0} ms, p99 {most:.0} ms, max {last:.0} ms"
            );
            figure(what, &text, "± 1 s", least >= -PRECISION && last <= PRECISION);
        }
    }
}

fn round(
    orla: &Path,
    folder: &Path,
    count: usize,
    spread: usize,
    least: Duration,
) -> Result<Round, String> {
    let marks = folder.join("marks");
    let script = format!("echo \"$2\" >> {}\necho \"{{\\\"n\\\": $2}}\"", marks.display());
    tool(folder, "mark", "input_schema: {n: integer}", &script)?;
    // So many processes at once would be most of what is measured.
    let calling = if spread == 0 { 0 } else { CALLING.min(count) };
    let empty = {
        let server = Server::start(orla, folder, folder)?;
        settle(&server)?;
        server.resident()?
    };
    let first = Server::start(orla, folder, folder)?;
    let due = now()? + least + ACCEPTED.1 * count as u32;
    let instant = |at: usize| due + Duration::from_millis((at * spread * 1_000 / count) as u64);
    let tasks = accept(&first, count, calling, instant)?;
    settle(&first)?;
    let in_first = first.resident()?;
    first.kill()?;
    let restart = Instant::now();
    let next = Server::start(orla, folder, folder)?;
    let start = restart.elapsed();
    settle(&next)?;
    let in_next = next.resident()?;
    if now()? > due {
        return Err(EARLY.to_owned());
    }
    let each = |resident: u64| (resident as f64 - empty as f64) / count as f64;
    let bytes = [each(in_first), each(in_next)];
    wait_for_all(&next, count, instant(count))?;
    let mut connection = Connection::open(&next.address)?;
    let over = ends(&all_tasks(&mut connection)?, &tasks)?;
    let woken = samples(&mut connection, &tasks)?;
    let mut marked = lines(&marks);
    marked.sort();
    let calls = marked.len();
    marked.dedup();
    if (calls, marked.len()) != (calling, calling) {
        return Err(format!("{calling} programs called a tool, {} of them {calls} times", marked.len()));
    }
    Ok(Round { bytes, start, woken, over })
}

/// Starts the programs. Gives their instants.
fn accept(
    server: &Server,
    count: usize,
    calling: usize,
    instant: impl Fn(usize) -> Timestamp + Sync,
) -> Result<BTreeMap<String, Timestamp>, String> {
    let (next, tasks) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    side_by_side(CLIENTS, || {
        let mut connection = Connection::open(&server.address)?;
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return Ok(Vec::<()>::new());
            }
            let does_call =
                calling > 0 && at.is_multiple_of(count / calling) && at / (count / calling) < calling;
            let program = if does_call { CALLS } else { PROGRAM };
            let until = instant(at);
            let input = json!({"until": until.to_string(), "n": at});
            let id = start(&mut connection, &json!({"program": program, "input": input}))?;
            tasks.lock().map_err(|_| "a client panicked")?.insert(id, until);
        }
    })?;
    let tasks = tasks.into_inner().map_err(|_| "a client panicked")?;
    if tasks.len() == count {
        Ok(tasks)
    } else {
        Err(format!("{} ids of {count} programs", tasks.len()))
    }
}

/// Waits until a server does nothing for so long that it has returned the memory that it no longer needs.
fn settle(server: &Server) -> Result<(), String> {
    /// Less processor time than that is nothing.
    const IDLE: Duration = Duration::from_millis(10);
    const IN_A_ROW: usize = 10;
    let mut before = server::processor_time(server.pid())?;
    let mut idle = 0;
    for _ in 0..1_000 {
        std::thread::sleep(Duration::from_millis(300));
        let now = server::processor_time(server.pid())?;
        idle = if now.saturating_sub(before) <= IDLE { idle + 1 } else { 0 };
        if idle == IN_A_ROW {
            return Ok(());
        }
        before = now;
    }
    Err("the server does not come to rest".to_owned())
}

fn wait_for_all(server: &Server, count: usize, last: Timestamp) -> Result<(), String> {
    let mut connection = Connection::open(&server.address)?;
    loop {
        let status = ask(&mut connection, &get("/status"), 200)?;
        if status["tasks"]["completed"].as_u64() >= Some(count as u64) {
            return Ok(());
        }
        if now()? > last + LATE {
            return Err(format!("not all have ended: {}", status["tasks"]));
        }
        std::thread::sleep(Duration::from_millis(250));
    }
}

/// Returns how long after its instant each program was over, in milliseconds. Each has to be there once.
fn ends(listed: &[Value], tasks: &BTreeMap<String, Timestamp>) -> Result<Vec<f64>, String> {
    let mut over = BTreeMap::new();
    for task in listed {
        let id = task["id"].as_str().unwrap_or_default();
        let due = tasks.get(id).ok_or_else(|| format!("a task that was not started here: {task}"))?;
        if task["state"] != "completed" {
            return Err(format!("a program is not completed: {task}"));
        }
        if over.insert(id, after(&task["updated_at"], *due)?).is_some() {
            return Err(format!("a program is there twice: {task}"));
        }
    }
    match tasks.len() - over.len() {
        0 => Ok(over.into_values().collect()),
        lost => Err(format!("{lost} programs are lost")),
    }
}

/// Returns how long after its instant a program went on, of some programs, by their journals.
fn samples(
    connection: &mut Connection,
    tasks: &BTreeMap<String, Timestamp>,
) -> Result<Vec<f64>, String> {
    let every = tasks.len().div_ceil(SAMPLES);
    let mut all = Vec::new();
    for (id, due) in tasks.iter().step_by(every) {
        let task = ask(connection, &get(&format!("/tasks/{id}")), 200)?;
        let sleeps = task["journal"].as_array().map_or(&[][..], Vec::as_slice);
        let slept: Vec<&Value> = sleeps.iter().filter(|step| step["action"] == "sleep-until").collect();
        let [slept] = slept[..] else { return Err(format!("it did not sleep once: {task}")) };
        all.push(after(&slept["ended_at"], *due)?);
    }
    Ok(all)
}

/// To the millisecond, as tasks have their times.
fn now() -> Result<Timestamp, String> {
    let since =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(|err| err.to_string())?;
    Timestamp::from_millisecond(since.as_millis() as i64).map_err(|err| err.to_string())
}

fn after(at: &Value, due: Timestamp) -> Result<f64, String> {
    let at: Timestamp = at.as_str().unwrap_or_default().parse().map_err(|err| format!("{at}: {err}"))?;
    Ok((at.as_millisecond() - due.as_millisecond()) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_lost_or_there_twice_is_found() {
        let due = Timestamp::from_second(1_000).unwrap();
        let tasks: BTreeMap<String, Timestamp> = ["a", "b"].map(|id| (id.to_owned(), due)).into();
        let task = |id: &str, state: &str| json!({"id": id, "state": state, "updated_at": "1970-01-01T00:16:41.5Z"});
        let (a, b) = (task("a", "completed"), task("b", "completed"));
        assert_eq!(ends(&[a.clone(), b.clone()], &tasks), Ok(vec![1_500.0, 1_500.0]));
        assert!(ends(std::slice::from_ref(&a), &tasks).is_err());
        assert!(ends(&[a.clone(), b.clone(), b], &tasks).is_err());
        assert!(ends(&[a, task("b", "working")], &tasks).is_err());
    }
}
