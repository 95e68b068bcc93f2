//! States that cannot be used: one line on standard error, exit code 2, and every file is as before.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::{Context, TIMEOUT, all_tasks, ask, get, problem, start};
use crate::bench::client::{self, Connection};
use crate::process::{self, Finished};
use crate::server::Server;

/// Where a state and the folder of a server are.
const STATE: &str = ".orla";
const FILE: &str = "state.db";
/// How many tasks the state has that is damaged: several pages of it.
const TASKS: usize = 100;
/// Where SQLite keeps the version of the format (`user_version`).
const VERSION: std::ops::Range<usize> = 60..64;

/// How a state is made unusable, and words of the line that says so.
type Damage = (&'static str, fn(&Path) -> Result<(), String>, &'static [&'static str]);

const DAMAGES: &[Damage] = &[
    ("is cut in half", |state| cut(state, 2), &["damaged"]),
    ("is cut to its header", |state| cut(state, usize::MAX), &["damaged"]),
    ("is empty", |state| overwrite(state, Vec::clear), &["damaged"]),
    (
        "has another version",
        |state| overwrite(state, |bytes| bytes[VERSION].copy_from_slice(&[0, 0, 0, 99])),
        &["format 99"],
    ),
    (
        "has pages of something else",
        |state| overwrite(state, |bytes| bytes[5_000..9_000].fill(0xa5)),
        &["damaged"],
    ),
    ("is something else", |state| overwrite(state, |bytes| bytes.fill(b'x')), &["not a state file"]),
    ("is read-only", |state| allow(&state.join(FILE), 0o400), &["read-only"]),
    ("is in a read-only folder", |state| allow(state, 0o500), &["read-only"]),
];

pub(super) fn run(context: &mut Context) -> Result<(), String> {
    let folder = context.folder("files")?;
    let good = folder.join("good");
    stopped(&context.orla, &good)?;
    for (number, (what, damage, words)) in DAMAGES.iter().enumerate() {
        let folder = folder.join(number.to_string());
        crate::copy_folder(&good, &folder)?;
        let state = folder.join(STATE);
        damage(&state)?;
        let result = refused(&context.orla, &folder, words);
        allow(&state, 0o700)?;
        context.tally.check(&format!("a state that {what} is refused and left as it is"), result);
    }
    let held = held(&context.orla, &good);
    context.tally.check("a state in use is refused and left as it is", held);
    full_disks(context, &good)
}

/// Makes the state of a stopped server with some completed tasks.
fn stopped(orla: &Path, folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(problem(folder))?;
    let server = Server::start(orla, folder, folder)?;
    let mut connection = Connection::open(&server.address)?;
    for _ in 0..TASKS {
        start(&mut connection, &json!({"program": "(+ 1 2)"}))?;
    }
    for task in all_tasks(&mut connection)? {
        let id = task["id"].as_str().unwrap_or_default();
        ask(&mut connection, &get(&format!("/tasks/{id}?wait=20")), 200)?;
    }
    drop(connection);
    server.end(TIMEOUT)?;
    Ok(())
}

/// Returns the command of a server, and a command that opens the state itself.
fn commands(orla: &Path, folder: &Path) -> [Command; 2] {
    [&["--port", "0"][..], &["task", "list"]].map(|arguments| {
        let mut command = Command::new(orla);
        command.args(arguments).current_dir(folder);
        command
    })
}

/// Neither a server nor a command uses the state, and no file is changed.
fn refused(orla: &Path, folder: &Path, words: &[&str]) -> Result<(), String> {
    let before = contents(&folder.join(STATE))?;
    for mut command in commands(orla, folder) {
        let finished = process::run(&mut command, folder, TIMEOUT)?;
        one_line(&finished, words)?;
        if contents(&folder.join(STATE))? != before {
            return Err("a file was changed".to_owned());
        }
    }
    Ok(())
}

/// One line on standard error that begins with `error` and has these words, and exit code 2.
fn one_line(finished: &Finished, words: &[&str]) -> Result<(), String> {
    let lines: Vec<&str> = finished.stderr.lines().filter(|line| !line.trim().is_empty()).collect();
    match lines[..] {
        [line]
            if finished.status.code() == Some(2)
                && line.starts_with("error")
                && words.iter().chain(&[FILE]).all(|word| line.contains(word)) =>
        {
            Ok(())
        }
        _ => {
            Err(format!("{}, expected one line with {words:?}: {:?}", finished.status, finished.stderr))
        }
    }
}

fn held(orla: &Path, folder: &Path) -> Result<(), String> {
    let holder = Server::start(orla, folder, folder)?;
    refused(orla, folder, &["in use"])?;
    let listed = all_tasks(&mut Connection::open(&holder.address)?)?;
    if listed.len() == TASKS { Ok(()) } else { Err(format!("{} tasks are left", listed.len())) }
}

/// File systems without room: of a few megabytes, each in a mount namespace that ends with its commands.
fn full_disks(context: &mut Context, good: &Path) -> Result<(), String> {
    let folder = context.folder.join("files/full");
    fs::create_dir_all(&folder).map_err(problem(&folder))?;
    let may_mount = "mount -t tmpfs -o size=1m tmpfs .";
    if !process::run(&mut unshared(&folder, may_mount, &[]), &folder, TIMEOUT)
        .is_ok_and(|finished| finished.status.success())
    {
        println!("      left out: full disks, which need unshare and the right to mount");
        return Ok(());
    }
    let result = opened_on_a_full_disk(&context.orla, good, &folder);
    context.tally.check("a state on a full disk is refused and left as it is", result);
    let result = filled(context, &folder);
    context.seen("a disk that gets full under a server loses nothing that was accepted", result);
    Ok(())
}

/// Returns a command that runs a script in a mount namespace of its own.
fn unshared(folder: &Path, script: &str, arguments: &[&Path]) -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["--mount", "sh", "-euc", script, "sh"]).args(arguments).current_dir(folder);
    command
}

fn opened_on_a_full_disk(orla: &Path, good: &Path, folder: &Path) -> Result<(), String> {
    const SCRIPT: &str = r#"
        mount -t tmpfs -o size=4m tmpfs . && cd .
        cp -a "$2/.orla" . && (cat /dev/zero > filler 2> /dev/null || true)
        sums() { (cd .orla && ls -A && cat ./* | cksum); }
        before=$(sums)
        for arguments in "--port 0" "task list"; do
            code=0; "$1" $arguments < /dev/null || code=$?
            echo "code $code"
        done
        [ "$before" = "$(sums)" ] && echo same
    "#;
    let finished = process::run(&mut unshared(folder, SCRIPT, &[orla, good]), folder, TIMEOUT)?;
    let lines: Vec<&str> = finished.stderr.lines().collect();
    let is_said =
        |line: &&str| line.starts_with("error") && line.contains(FILE) && line.contains("full");
    if finished.stdout != "code 2\ncode 2\nsame\n" || lines.len() != 2 || !lines.iter().all(is_said) {
        return Err(format!("{:?} {:?}", finished.stdout, finished.stderr));
    }
    Ok(())
}

/// Tasks are started until the disk is full. Each that was accepted is there after a restart, and has its result.
fn filled(context: &Context, folder: &Path) -> Result<String, String> {
    const SCRIPT: &str =
        "mount -t tmpfs -o size=8m tmpfs . && cd . && exec \"$1\" --port 0 --log-format json";
    /// More tasks of this size than there is room for.
    const MOST: usize = 2_000;
    let text = "x".repeat(20_000);
    let server = |logs: &str| {
        let log = context.folder.join(logs);
        let command = unshared(folder, SCRIPT, &[&context.orla]);
        Server::listening(command, &log, crate::server::address)
    };
    let first = server("files/filled.log")?;
    let mut connection = Connection::open(&first.address)?;
    let mut accepted = Vec::new();
    let refused = loop {
        let task = json!({"program": "(count (:text input))", "input": {"text": text}});
        let answer = connection.exchange(&client::post("/tasks", &[], &task))?;
        let body = String::from_utf8_lossy(answer.body).into_owned();
        match answer.status {
            202 => accepted.push(id(&body)?),
            503 => break body,
            other => return Err(format!("{other}: {body}")),
        }
        if accepted.len() > MOST {
            return Err("the disk does not get full".to_owned());
        }
    };
    // The file system is there as long as a process is in its namespace.
    first.pause()?;
    let place = PathBuf::from(format!("/proc/{}/cwd", first.pid()));
    let left = context.folder("files/left")?;
    crate::copy_folder(&place.join(STATE), &left.join(STATE))?;
    first.kill()?;
    let next = Server::start(&context.orla, &left, &left)?;
    let mut connection = Connection::open(&next.address)?;
    for id in &accepted {
        let task = ask(&mut connection, &get(&format!("/tasks/{id}?wait=20")), 200)?;
        if task["result"]["value"] != json!(text.len()) {
            return Err(format!("an accepted task gave {task}"));
        }
    }
    let listed = all_tasks(&mut connection)?.len();
    // One more may have been written that was not acknowledged.
    if !(accepted.len()..=accepted.len() + 1).contains(&listed) {
        return Err(format!("{listed} tasks are there, {} were accepted", accepted.len()));
    }
    Ok(format!("{} tasks, then {}", accepted.len(), refused.trim()))
}

fn id(body: &str) -> Result<String, String> {
    let task: serde_json::Value = serde_json::from_str(body).map_err(|err| format!("{err}: {body}"))?;
    task["id"].as_str().map(str::to_owned).ok_or_else(|| format!("a task without an id: {body}"))
}

fn cut(state: &Path, by: usize) -> Result<(), String> {
    overwrite(state, |bytes| bytes.truncate((bytes.len() / by).max(100)))
}

fn overwrite(state: &Path, change: impl Fn(&mut Vec<u8>)) -> Result<(), String> {
    let path = state.join(FILE);
    let mut bytes = fs::read(&path).map_err(problem(&path))?;
    change(&mut bytes);
    fs::write(&path, bytes).map_err(problem(&path))
}

fn allow(path: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(problem(path))
}

/// Returns the names and contents of all files of a folder.
fn contents(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let files = fs::read_dir(folder).map_err(problem(folder))?.flatten();
    files
        .map(|file| {
            let bytes = fs::read(file.path()).map_err(problem(&file.path()))?;
            Ok((file.file_name().to_string_lossy().into_owned(), bytes))
        })
        .collect()
}
