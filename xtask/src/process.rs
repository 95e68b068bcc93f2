//! Running a program to its end, with a limit on the time it may take.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What a finished program left.
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// Returns the program's standard output, or an error with the end of what it wrote.
    pub(crate) fn stdout_of_success(self) -> Result<String, String> {
        if self.status.success() {
            return Ok(self.stdout);
        }
        let all = format!("{}{}", self.stdout, self.stderr);
        let tail = all.trim_end().char_indices().rev().nth(1500).map_or(0, |(at, _)| at);
        Err(format!("{}: {}", self.status, all[tail..].trim()))
    }
}

/// Runs a program with no standard input; it is killed when the limit has passed.
///
/// Output goes through files in `scratch`, so that a program that writes much never waits for us.
pub(crate) fn run(command: &mut Command, scratch: &Path, limit: Duration) -> Result<Finished, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut stdout = scratch_file(&scratch.join("stdout.txt"))?;
    let mut stderr = scratch_file(&scratch.join("stderr.txt"))?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().map_err(|err| err.to_string())?)
        .stderr(stderr.try_clone().map_err(|err| err.to_string())?)
        .spawn()
        .map_err(|err| format!("{program}: {err}"))?;
    let end = Instant::now() + limit;
    let status = loop {
        match child.try_wait().map_err(|err| format!("{program}: {err}"))? {
            Some(status) => break status,
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            None => {
                child.kill().and_then(|()| child.wait()).map_err(|err| format!("{program}: {err}"))?;
                return Err(format!(
                    "{program} took longer than {limit:?}: {}",
                    text(&mut stderr)?.trim()
                ));
            }
        }
    };
    Ok(Finished { status, stdout: text(&mut stdout)?, stderr: text(&mut stderr)? })
}

fn scratch_file(path: &Path) -> Result<File, String> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(|err| format!("{}: {err}", path.display()))
}

fn text(file: &mut File) -> Result<String, String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.read_to_end(&mut bytes))
        .map_err(|err| format!("output of a program: {err}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
