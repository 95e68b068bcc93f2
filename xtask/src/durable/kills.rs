//! A program of 40 calls whose server is killed after every step. Each call is counted outside of orla before it does
//! anything, and every third of them may not be made again.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Context, TIMEOUT, ask, get, lines, start, tool};
use crate::bench::client::{Connection, side_by_side};
use crate::server::Server;

/// How many calls a program makes.
const CALLS: usize = 40;
/// How many programs run, and how many where it has to be quick.
const RUNS: (usize, usize) = (200, 10);
/// How many of them run at once, each with a server of its own.
const AT_ONCE: usize = 10;
/// A kill comes so long after a call at most. A call takes about half of that.
const LATEST: u64 = 50;
/// More kills than that say that a program does not come on.
const MOST_KILLS: usize = 20 * CALLS;

/// Which calls may not be made again.
fn is_once(at: usize) -> bool {
    at.is_multiple_of(3)
}

/// What one run has shown.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    kills: usize,
    /// Calls that may not be made again and were in flight.
    interrupted: usize,
    /// Calls that were made again.
    again: usize,
}

/// The servers that a program runs on.
pub(crate) trait Host {
    /// Returns the task of the program, as it is now.
    fn task(&self, id: &str) -> Result<Value, String>;
    /// Kills the server that runs the program, and returns whether there was one.
    fn kill(&mut self, id: &str) -> Result<bool, String>;
    /// Starts what was killed.
    fn revive(&mut self) -> Result<(), String>;
}

pub(super) fn run(context: &mut Context) -> Result<(), String> {
    let runs = context.some(RUNS.0, RUNS.1);
    let folder = context.folder("kills")?;
    let result = run_all(runs, AT_ONCE, |number| {
        OneServer::killed(&context.orla, &folder.join(number.to_string()))
    });
    context.seen("a program whose server is killed after every step ends right", result);
    Ok(())
}

/// Runs so many programs, some of them at once. Says what they have shown.
pub(crate) fn run_all(
    runs: usize,
    at_once: usize,
    run: impl Fn(usize) -> Result<Seen, String> + Sync,
) -> Result<String, String> {
    let next = AtomicUsize::new(0);
    let done = side_by_side(at_once.min(runs), || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= runs {
                return Ok(done);
            }
            done.push(run(number).map_err(|why| format!("run {number}: {why}")));
        }
    })?;
    let wrong: Vec<String> = done.iter().filter_map(|run| run.clone().err()).collect();
    let all: Vec<Seen> = done.into_iter().flatten().collect();
    let sum = |of: fn(&Seen) -> usize| all.iter().map(of).sum::<usize>();
    let seen = format!(
        "{} runs of {CALLS} calls, {} kills; {} calls were interrupted, {} that may be were made again",
        all.len(),
        sum(|seen| seen.kills),
        sum(|seen| seen.interrupted),
        sum(|seen| seen.again)
    );
    match &wrong[..] {
        [] => Ok(seen),
        [first, ..] => Err(format!("{} of {runs} runs; {first}", wrong.len())),
    }
}

/// Makes the tools of the program in a folder. Their calls are counted in a file.
pub(crate) fn tools(folder: &Path, steps: &Path) -> Result<(), String> {
    let script = |name: &str| {
        format!("echo \"{name} $2\" >> {}\nsleep 0.02\necho \"{{\\\"n\\\": $2}}\"", steps.display())
    };
    let block = "input_schema: {n: integer}\noutput_schema: {n: integer}";
    tool(folder, "once", block, &script("once"))?;
    tool(folder, "again", &format!("{block}\nannotations: {{idempotentHint: true}}"), &script("again"))
}

/// Starts the program at a server. Gives the id of its task.
pub(crate) fn begin(server: &Server) -> Result<String, String> {
    let program = format!(
        "(loop [i 0 out []] (if (< i {CALLS}) (recur (inc i) (conj out (if (= 0 (mod i 3)) \
         (try (:n (call :once {{:n i}})) (catch :interrupted e (- -1 i))) (:n (call :again {{:n i}}))))) out))"
    );
    start(&mut Connection::open(&server.address)?, &json!({"program": program}))
}

/// Returns a task as a server shows it.
pub(crate) fn task_at(server: &Server, id: &str) -> Result<Value, String> {
    ask(&mut Connection::open(&server.address)?, &get(&format!("/tasks/{id}")), 200)
}

/// Kills the server of a program after each of its steps, until it is over.
pub(crate) fn kill_after_steps(host: &mut impl Host, id: &str, steps: &Path) -> Result<Seen, String> {
    let (mut kills, mut known) = (0, 0);
    let mut random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), id) | 1;
    let task = loop {
        if let Some(task) = wait_for_more(host, id, steps, known)? {
            break task;
        }
        // Sometimes the call is still in flight then, sometimes its answer is written, sometimes the next one has begun.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(Duration::from_millis(random % LATEST));
        kills += usize::from(host.kill(id)?);
        if kills > MOST_KILLS {
            return Err(format!("it does not end; its calls were {:?}", lines(steps)));
        }
        known = lines(steps).len();
        host.revive()?;
    };
    check(&task, &lines(steps), kills).map_err(|why| format!("{why}: {task}"))
}

/// Waits for another call, or until the program is over. Returns its task if it is.
fn wait_for_more(
    host: &impl Host,
    id: &str,
    steps: &Path,
    known: usize,
) -> Result<Option<Value>, String> {
    let end = Instant::now() + TIMEOUT;
    let mut round = 0_u32;
    loop {
        if lines(steps).len() > known {
            return Ok(None);
        }
        if round.is_multiple_of(20) {
            let task = host.task(id)?;
            let state = task["state"].as_str().unwrap_or_default();
            if !["queued", "working"].contains(&state) {
                return Ok(Some(task));
            }
            if Instant::now() > end {
                return Err(format!("it stands still after {known} calls: {task}"));
            }
        }
        round = round.wrapping_add(1);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The only server of a program.
struct OneServer<'a> {
    orla: &'a Path,
    folder: PathBuf,
    server: Option<Server>,
}

impl<'a> OneServer<'a> {
    /// Runs a program, and kills the server after each of its steps.
    fn killed(orla: &'a Path, folder: &Path) -> Result<Seen, String> {
        let steps = folder.join("steps");
        tools(folder, &steps)?;
        let mut one = Self { orla, folder: folder.to_owned(), server: None };
        one.revive()?;
        let id = begin(one.server()?)?;
        kill_after_steps(&mut one, &id, &steps)
    }

    fn server(&self) -> Result<&Server, String> {
        self.server.as_ref().ok_or_else(|| "the server was killed".to_owned())
    }
}

impl Host for OneServer<'_> {
    fn task(&self, id: &str) -> Result<Value, String> {
        task_at(self.server()?, id)
    }

    fn kill(&mut self, _id: &str) -> Result<bool, String> {
        let Some(server) = self.server.take() else { return Ok(false) };
        server.kill().map(|()| true)
    }

    fn revive(&mut self) -> Result<(), String> {
        self.server = Some(Server::start(self.orla, &self.folder, &self.folder)?);
        Ok(())
    }
}

/// Returns how many calls in the journal of a program have been answered.
pub(crate) fn answered(task: &Value) -> usize {
    let steps = task["journal"].as_array().map(Vec::as_slice).unwrap_or_default();
    steps.iter().filter(|step| step["action"] == "call" && step["ended_at"].is_string()).count()
}

/// Checks what a program gave against the calls that were seen outside.
fn check(task: &Value, steps: &[String], kills: usize) -> Result<Seen, String> {
    let values = task["result"]["value"].as_array().ok_or("no result")?;
    let values: Vec<i64> = values.iter().filter_map(Value::as_i64).collect();
    if task["state"] != "completed" || values.len() != CALLS {
        return Err("it is not completed".to_owned());
    }
    let journal = task["journal"].as_array().ok_or("no journal")?;
    let answered = answered(task);
    if answered != CALLS {
        return Err(format!("the journal has {answered} answered calls"));
    }
    if kills == 0 {
        return Err("no server was killed".to_owned());
    }
    let mut seen = Seen { kills, interrupted: 0, again: 0 };
    for (at, value) in values.iter().enumerate() {
        let name = if is_once(at) { "once" } else { "again" };
        let made = steps.iter().filter(|step| **step == format!("{name} {at}")).count();
        let is_right = match (is_once(at), *value == at as i64) {
            (true, true) => made == 1,
            (true, false) => *value == -1 - at as i64 && made <= 1,
            (false, is_right) => is_right && made > 0,
        };
        if !is_right {
            return Err(format!("call {at} gave {value} and was made {made} times"));
        }
        seen.interrupted += usize::from(*value < 0);
        seen.again += made.saturating_sub(1);
    }
    let outcomes = journal.iter().filter(|step| step["outcome"] == "interrupted").count();
    if outcomes != seen.interrupted {
        return Err(format!("the journal has {outcomes} interrupted calls of {}", seen.interrupted));
    }
    // A kill has one call in flight at most. What had an answer that was written is not made again.
    if seen.interrupted + seen.again > kills {
        return Err("more calls were made again than kills can have caused".to_owned());
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(values: &[i64], outcome: &str) -> Value {
        let step = |outcome: &str| json!({"action": "call", "ended_at": "", "outcome": outcome});
        let journal: Vec<Value> =
            values.iter().map(|value| step(if *value < 0 { outcome } else { "ok" })).collect();
        json!({"state": "completed", "result": {"value": values}, "journal": journal})
    }

    #[test]
    fn a_call_that_was_made_twice_or_is_missing_is_found() {
        let good: Vec<i64> = (0..CALLS as i64).map(|at| if at == 3 { -4 } else { at }).collect();
        let name = |at: usize| if is_once(at) { "once" } else { "again" };
        let steps: Vec<String> = (0..CALLS).map(|at| format!("{} {at}", name(at))).collect();
        let with = |more: &str| [steps.clone(), vec![more.to_owned()]].concat();
        let task = ended(&good, "interrupted");
        assert!(check(&task, &steps, 1).is_ok());
        assert!(check(&task, &with("again 4"), 2).is_ok());
        let cases = [
            ("made twice", check(&task, &with("once 6"), 9)),
            ("made again without a kill", check(&task, &with("again 4"), 1)),
            ("never made", check(&task, &steps[1..], 9)),
            ("not in the journal", check(&ended(&good, "ok"), &steps, 9)),
            ("another result", check(&ended(&[7; CALLS], "ok"), &steps, 9)),
        ];
        for (name, result) in cases {
            assert!(result.is_err(), "{name}");
        }
    }
}
