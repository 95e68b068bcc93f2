//! What durable work costs: a task beside the plain call and beside one `fdatasync`, and programs that wake together.

use std::fs;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::client::{self, Connection};
use super::life::fresh;
use super::report::Figure;
use super::stats::median;
use super::{Effort, Programs};
use crate::server::Server;

/// How long programs that wake together may take before the bench gives up.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Compares accepting a task with the plain program and one `fdatasync`, in interleaved rounds.
pub(crate) fn acceptance(binary: &Path, folder: &Path, rounds: usize) -> Result<Vec<Figure>, String> {
    let (folder, server) = serve(binary, folder, "task-acceptance")?;
    let mut connection = Connection::open(&server.address)?;
    let program = json!({"program": "(+ 1 2)"});
    let plain = client::post("/rtfs", &[], &program);
    let task = client::post("/tasks", &[], &program);
    let mut disk = File::create(folder.join("disk")).map_err(|err| err.to_string())?;
    let (mut plains, mut tasks, mut syncs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds * 400 {
        let began = Instant::now();
        disk.write_all(&[0; 4096]).and_then(|()| disk.sync_data()).map_err(|err| err.to_string())?;
        syncs.push(micros(began));
        plains.push(exchange(&mut connection, &plain, 200)?);
        tasks.push(exchange(&mut connection, &task, 202)?);
    }
    let [plain, task, sync] = [plains, tasks, syncs].map(median);
    let more = task - plain - sync;
    let text = format!("{task:.0} µs; the program {plain:.0} µs, fdatasync {sync:.0} µs");
    let values = json!({"task_us": task, "program_us": plain, "fdatasync_us": sync});
    let figure = Figure::new("an accepted task, p50", text, values);
    Ok(vec![figure.goal("program + fdatasync + 100 µs", more <= 100.0)])
}

/// Compares a program of built-in calls as a task with the same program as a plain call.
pub(crate) fn durable(binary: &Path, folder: &Path, rounds: usize) -> Result<Vec<Figure>, String> {
    let (_, server) = serve(binary, folder, "durable-program")?;
    let mut connection = Connection::open(&server.address)?;
    // A hundred times ten calls, so that what the acceptance costs is little.
    let text = "(loop [i 0] (if (< i 100) (do (pmap (fn [n] (call :math.add {:a n :b 1})) (range 10)) (recur (inc i))) i))";
    let program = json!({"program": text});
    let (plain, task) = (client::post("/rtfs", &[], &program), client::post("/tasks", &[], &program));
    let (mut plains, mut tasks) = (Vec::new(), Vec::new());
    for _ in 0..rounds * 20 {
        plains.push(exchange(&mut connection, &plain, 200)?);
        let began = Instant::now();
        let accepted = connection.exchange(&task)?;
        let accepted: Value = serde_json::from_slice(accepted.body).map_err(|err| err.to_string())?;
        let id = accepted["id"].as_str().ok_or("a task without an id")?;
        let over = connection.exchange(&get(&format!("/tasks/{id}?wait=60")))?;
        let took = micros(began);
        let over: Value = serde_json::from_slice(over.body).map_err(|err| err.to_string())?;
        if over["state"] != "completed" {
            return Err(format!("a task is not completed: {over}"));
        }
        tasks.push(took);
    }
    let [plain, task] = [plains, tasks].map(median);
    let text = format!("{:.2} × the plain program ({task:.0} and {plain:.0} µs)", task / plain);
    let values = json!({"task_us": task, "program_us": plain});
    let figure = Figure::new("a durable program of a thousand built-in calls", text, values);
    Ok(vec![figure.goal("≤ 1.2 ×", task <= 1.2 * plain)])
}

/// Programs that sleep until the same instant.
pub(super) fn wake(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let count = effort.sessions;
    let (_, server) = serve(programs.binary(), &programs.folder, "sleeping-programs")?;
    let until = SystemTime::now() + Duration::from_secs(5) + Duration::from_millis(2) * count as u32;
    let seconds = until.duration_since(SystemTime::UNIX_EPOCH).map_err(|err| err.to_string())?.as_secs();
    let until = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let instant = i64::try_from(seconds).map_err(|err| err.to_string())?;
    let instant = jiff::Timestamp::from_second(instant).map_err(|err| err.to_string())?;
    let text = format!("(do (sleep-until \"{instant}\") 1)");
    let request = client::post("/tasks", &[], &json!({"program": text}));
    let left = AtomicUsize::new(count);
    client::side_by_side(16, || {
        let mut connection = Connection::open(&server.address)?;
        let take =
            || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        while take().is_ok() {
            exchange(&mut connection, &request, 202)?;
        }
        Ok(Vec::<()>::new())
    })?;
    let mut connection = Connection::open(&server.address)?;
    if SystemTime::now() > until {
        return Err("they were not all accepted before they were due".to_owned());
    }
    let began = Instant::now();
    let over = loop {
        let status = connection.exchange(&get("/status"))?;
        let status: Value = serde_json::from_slice(status.body).map_err(|err| err.to_string())?;
        if status["tasks"]["completed"].as_u64() >= Some(count as u64) {
            break SystemTime::now();
        }
        if began.elapsed() > TIMEOUT {
            return Err(format!("not all have ended: {}", status["tasks"]));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let took = over.duration_since(until).unwrap_or_default().as_secs_f64();
    let text = format!("all over {took:.1} s after their instant");
    let figure = Figure::new(format!("{count} programs that wake together"), text, json!({"s": took}));
    Ok(vec![figure.goal("≤ 1 s", took <= 1.0)])
}

/// Starts a server in an empty folder, which exists as long as the bench.
pub(crate) fn serve(binary: &Path, folder: &Path, name: &str) -> Result<(PathBuf, Server), String> {
    let folder = folder.join(name);
    fresh(&folder)?;
    write(&folder.join("orla.yaml"), "builtins: true\n")?;
    let server = Server::start(binary, &folder, &folder)?;
    Ok((folder, server))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|err| format!("{}: {err}", file.display()))
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes()
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

/// Returns how long a request takes whose answer has this status, in microseconds.
fn exchange(connection: &mut Connection, request: &[u8], status: u16) -> Result<f64, String> {
    let began = Instant::now();
    let answer = connection.exchange(request)?;
    let took = micros(began);
    if answer.status != status {
        return Err(format!("unexpected answer: {}", String::from_utf8_lossy(answer.body)));
    }
    Ok(took)
}
