//! The power fails at any moment: what was acknowledged is there, whatever the disk has lost of what was not synced.
//!
//! strace records what a server does to its state while tasks are accepted and end, over two starts of it, and what it
//! answers. [`disk`] replays that, and makes the files that a loss of power after any of the steps can leave: with all of what
//! was not synced, with nothing of it, or with some sectors of it. The binary opens each of them.

mod disk;
mod trace;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::{Context, TIMEOUT, ask, get, problem, start, strace, write};
use crate::bench::client::{Connection, side_by_side};
use crate::process;
use crate::server::{self, Server};
use disk::{Disk, Loss};
use trace::Event;

/// How many moments there are at which the power fails, and how many where it has to be quick.
const MOMENTS: (usize, usize) = (5_000, 200);
/// How many tasks each of the two starts accepts.
const TASKS: (usize, usize) = (450, 150);
/// How many clients start them at once.
const CLIENTS: usize = 4;
/// At every so many moments, a task is started again by its key.
const KEYS_OF: usize = 7;
/// How many states are opened at once.
const AT_ONCE: usize = 2;
const STATE: &str = ".orla";
const PROGRAM: &str = "(count (:text input))";

/// What a server has answered about tasks: their keys and states, by their ids.
type Acknowledged = BTreeMap<String, (String, String)>;

/// A moment at which the power fails.
struct Moment {
    number: usize,
    loss: Loss,
    acknowledged: Acknowledged,
    files: Option<BTreeMap<String, Vec<u8>>>,
}

pub(super) fn run(context: &mut Context) -> Result<(), String> {
    if !strace::is_there() {
        println!("      left out: losses of power, which need strace");
        return Ok(());
    }
    let folder = context.folder("power")?;
    let folder = fs::canonicalize(&folder).map_err(problem(&folder))?;
    let steps = recorded(&context.orla, &folder, context.some(TASKS.0, TASKS.1))?;
    let result = fail_at(&context.orla, &folder, &steps, context.some(MOMENTS.0, MOMENTS.1));
    context.seen("what was acknowledged survives a loss of power", result);
    Ok(())
}

/// Returns the steps of a server that accepts tasks, ends, and does so again after another start.
fn recorded(orla: &Path, folder: &Path, tasks: usize) -> Result<Vec<Event>, String> {
    let record = folder.join("strace");
    let expected = AtomicUsize::new(0);
    for round in 0..2 {
        let command =
            strace::command(orla, folder, &record, &["-y", "-xx", "-s", "16777216", "-e", trace::CALLS]);
        let server = Server::listening(command, &folder.join("server.log"), server::address)?;
        let next = AtomicUsize::new(0);
        side_by_side(CLIENTS, || {
            let mut connection = Connection::open(&server.address)?;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= tasks {
                    return Ok(Vec::<()>::new());
                }
                let key = format!("{round}-{number}");
                let task = json!({"program": PROGRAM, "input": input(&key), "key": key});
                let id = start(&mut connection, &task)?;
                expected.fetch_add(1, Ordering::Relaxed);
                if number.is_multiple_of(2) {
                    ask(&mut connection, &get(&format!("/tasks/{id}?wait=60")), 200)?;
                }
            }
        })?;
        strace::end(server, &record)?;
    }
    let text = fs::read_to_string(&record).map_err(problem(&record))?;
    let state = folder.join(STATE);
    let steps = trace::read(&text, state.to_str().ok_or("a path that is not UTF-8")?)?;
    let mut acknowledged = Acknowledged::new();
    steps.iter().for_each(|step| acknowledge(&mut acknowledged, step));
    let expected = expected.into_inner();
    if acknowledged.len() != expected {
        return Err(format!("{} of {expected} answers are in the record", acknowledged.len()));
    }
    Ok(steps)
}

/// Notes what an answer says about a task.
fn acknowledge(acknowledged: &mut Acknowledged, step: &Event) {
    let Event::Sent(answer) = step else { return };
    let body =
        answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(&[][..], |at| &answer[at + 4..]);
    let Ok(task) = serde_json::from_slice::<Value>(body) else { return };
    let text = |name: &str| task[name].as_str().map(str::to_owned);
    if let (Some(id), Some(key), Some(state)) = (text("id"), text("key"), text("state")) {
        acknowledged.insert(id, (key, state));
    }
}

/// Lets the power fail at so many moments, and opens what each leaves.
fn fail_at(orla: &Path, folder: &Path, steps: &[Event], count: usize) -> Result<String, String> {
    let mut random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), folder) | 1;
    let mut below = |end: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) as usize % end.max(1)
    };
    let mut moments: Vec<usize> = (0..count).map(|_| below(steps.len() + 1)).collect();
    moments.sort_unstable();
    write(&folder.join("program.rtfs"), PROGRAM)?;
    let (mut disk, mut made, mut acknowledged) = (Disk::default(), 0, Acknowledged::new());
    let mut moments = moments.into_iter().enumerate();
    // The disks are made in the order of the moments, and each is opened by whoever is free.
    let next = Mutex::new(|| {
        let (number, at) = moments.next()?;
        for step in &steps[made..at] {
            disk.apply(step);
            acknowledge(&mut acknowledged, step);
        }
        made = at;
        let loss = [Loss::All, Loss::Some, Loss::Some, Loss::Nothing][number % 4];
        let files = disk.image(loss, &mut below);
        Some(Moment { number, loss, acknowledged: acknowledged.clone(), files })
    });
    let checked = side_by_side(AT_ONCE, || {
        let mut checked = Vec::new();
        loop {
            let moment = next.lock().map_err(|_| "a worker panicked")?();
            let Some(moment) = moment else { return Ok(checked) };
            checked.push(moment.check(orla, folder));
        }
    })?;
    let wrong: Vec<&String> = checked.iter().filter_map(|result| result.as_ref().err()).collect();
    let tasks = acknowledged.len();
    match wrong[..] {
        [] => Ok(format!("{tasks} tasks, {} steps, {count} losses of power", steps.len())),
        [first, ..] => Err(format!("{} of {count}: {first}", wrong.len())),
    }
}

/// Returns the input of a task with a key.
fn input(key: &str) -> Value {
    let number: usize =
        key.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or_default();
    json!({"text": "x".repeat(number * 97 % 9_000)})
}

impl Moment {
    /// Opens what is left, and looks for everything that was acknowledged. What is wrong stays in a folder.
    fn check(&self, orla: &Path, folder: &Path) -> Result<(), String> {
        let place = folder.join("moments").join(self.number.to_string());
        let [opened, left] = ["opened", "left"].map(|name| place.join(name));
        self.leave(&opened)?;
        match self.find(orla, &opened) {
            Ok(()) => fs::remove_dir_all(&place).map_err(problem(&place)),
            Err(why) => {
                self.leave(&left)?;
                Err(format!("{} with {:?} lost: {why}", left.display(), self.loss))
            }
        }
    }

    fn leave(&self, folder: &Path) -> Result<(), String> {
        fs::create_dir_all(folder).map_err(problem(folder))?;
        let Some(files) = &self.files else { return Ok(()) };
        let state = folder.join(STATE);
        fs::create_dir(&state).map_err(problem(&state))?;
        files
            .iter()
            .try_for_each(|(name, bytes)| fs::write(state.join(name), bytes).map_err(problem(&state)))
    }

    fn find(&self, orla: &Path, folder: &Path) -> Result<(), String> {
        let command = |arguments: &[&str]| {
            let mut command = Command::new(orla);
            command.arg("task").args(arguments).current_dir(folder);
            process::run(&mut command, folder, TIMEOUT)?.stdout_of_success()
        };
        let listed = command(&["list", "--limit", "1000", "--json"])?;
        let listed: Vec<Value> =
            serde_json::from_str(&listed).map_err(|err| format!("{err}: {listed}"))?;
        let by = |name: &str| -> BTreeMap<&str, &Value> {
            listed.iter().filter_map(|task| Some((task[name].as_str()?, task))).collect()
        };
        let (tasks, keys) = (by("id"), by("key"));
        if keys.len() != listed.len() {
            return Err(format!("{} tasks have {} keys", listed.len(), keys.len()));
        }
        for (id, (key, state)) in &self.acknowledged {
            let task = tasks.get(id.as_str()).ok_or_else(|| format!("task {id} is lost"))?;
            if task["key"] != key.as_str() || (state == "completed" && task["state"] != "completed") {
                return Err(format!("task {id} was {state} with the key {key}, and is {task}"));
            }
        }
        let last = self.acknowledged.last_key_value().filter(|_| self.number.is_multiple_of(KEYS_OF));
        let Some((id, (key, _))) = last else { return Ok(()) };
        let (program, input) = ("../../../program.rtfs", input(key).to_string());
        let again = command(&["run", "--program", program, "--input", &input, "--key", key])?;
        match again.trim() == id {
            true => Ok(()),
            false => Err(format!("the key of task {id} starts {again}")),
        }
    }
}
