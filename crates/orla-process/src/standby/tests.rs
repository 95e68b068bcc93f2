//! Waiting processes of real scripts.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use orla_marketplace::testing::TEST_TIMEOUT;

use super::*;

struct Fixture {
    directory: tempfile::TempDir,
    standby: Standby,
}

impl Fixture {
    fn new() -> Self {
        let standby = Standby::new(Instance::unguarded()).unwrap();
        Self { directory: tempfile::tempdir().unwrap(), standby }
    }

    /// Returns a script that says which process it is when it starts, and then does this.
    fn script(&self, body: &str) -> PathBuf {
        let path = self.directory.path().join("script");
        let other = self.directory.path().join("other");
        fs::write(&other, format!("#!/bin/sh\necho $$ >> {}\n{body}\n", self.starts().display()))
            .unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
        // A new file in place of the old one: one that is open for writing cannot be run.
        fs::rename(&other, &path).unwrap();
        path
    }

    fn starts(&self) -> PathBuf {
        self.directory.path().join("starts")
    }

    /// Returns the processes that have started, in order.
    fn started(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.starts()).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    fn keep(&self, path: &Path, count: usize) -> Arc<Program> {
        let program = Arc::new(Program::new(path).unwrap());
        self.keep_same(&program, count, StandbyLimits::default());
        program
    }

    fn keep_same(&self, program: &Arc<Program>, count: usize, limits: StandbyLimits) {
        let program = Arc::clone(program);
        self.standby.prestart(vec![Wanted { program, args: vec![], env: vec![], count }], limits);
    }

    /// Waits until so many have started, and the thread knows of them.
    fn waits(&self, count: usize) {
        eventually("so many have started", || {
            self.started().len() >= count && self.standby.shared.lock().next_start().is_none()
        });
    }
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + TEST_TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn answer(started: Started, input: &str) -> String {
    let mut child = started.into_child().unwrap();
    File::from(child.stdin.take().unwrap()).write_all(input.as_bytes()).unwrap();
    let mut text = String::new();
    File::from(child.stdout.take().unwrap()).read_to_string(&mut text).unwrap();
    child.wait().unwrap();
    text
}

fn is_gone(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

const ECHO: &str = "cat; echo $$";

#[test]
fn a_call_gets_a_process_that_waited_and_the_next_is_started() {
    let fixture = Fixture::new();
    let program = fixture.keep(&fixture.script(ECHO), 1);
    for turn in 1..4 {
        fixture.waits(turn);
        let first = fixture.started()[turn - 1];
        let started = fixture.standby.take(&program).unwrap().expect("it waits");
        assert_eq!(answer(started, "hello\n"), format!("hello\n{first}\n"));
    }
}

#[test]
fn a_program_that_is_not_wanted_has_no_process() {
    let fixture = Fixture::new();
    let path = fixture.script(ECHO);
    let program = fixture.keep(&path, 2);
    fixture.waits(2);
    fixture.standby.prestart(Vec::new(), StandbyLimits::default());
    assert!(fixture.standby.take(&program).unwrap().is_none());
    eventually("both end", || fixture.started().into_iter().all(is_gone));
}

#[test]
fn a_changed_file_is_noticed_at_the_call() {
    let fixture = Fixture::new();
    let program = fixture.keep(&fixture.script("cat; echo old"), 1);
    fixture.waits(1);
    fixture.script("cat; echo new");
    assert!(fixture.standby.take(&program).unwrap().is_none(), "the old one is not used");
    fixture.waits(2);
    eventually("the old one ends", || is_gone(fixture.started()[0]));
    eventually("the new one answers", || {
        fixture.standby.take(&program).unwrap().is_some_and(|started| answer(started, "") == "new\n")
    });
}

#[test]
fn a_program_that_does_not_wait_fails_after_three_starts() {
    let bodies = [
        ("echo why >&2; exit 3", 3, "exits before a call (exit code 3): why; "),
        ("kill -SEGV $$", 139, "ends or closes standard output before a call"),
        ("echo hello; cat", 137, "writes to standard output before a call"),
        ("exec >&-; read line", 137, "closes standard output before a call"),
    ];
    for (body, exit_code, expected) in bodies {
        let fixture = Fixture::new();
        let program = fixture.keep(&fixture.script(body), 1);
        // Seen without a call: it is the thread that looks.
        eventually("it has failed", || {
            let state = fixture.standby.shared.lock();
            matches!(state.pools[0].activity, Activity::Failed(_))
        });
        let failure = fixture.standby.take(&program).unwrap_err();
        assert!(failure.reason.contains(expected), "{failure:?}");
        assert_eq!(failure.exit_code, exit_code, "{body}");
        assert_eq!(fixture.started().len(), 3);
        eventually("nothing is left", || fixture.started().into_iter().all(is_gone));
        // Another version of the file has another chance.
        fixture.script(ECHO);
        assert!(fixture.standby.take(&program).unwrap().is_none());
        fixture.waits(4);
    }
}

#[test]
fn a_program_that_cannot_start_is_retried_by_the_next_call() {
    let fixture = Fixture::new();
    let path = fixture.directory.path().join("script");
    let program = fixture.keep(&path, 1);
    eventually("it was tried", || {
        matches!(fixture.standby.shared.lock().pools[0].activity, Activity::Asleep)
    });
    assert!(fixture.standby.take(&program).unwrap().is_none());
    fixture.script(ECHO);
    eventually("it waits", || fixture.standby.take(&program).unwrap().is_some());
}

#[test]
fn an_idle_process_ends_and_is_restarted_by_the_next_call() {
    let fixture = Fixture::new();
    let program = Arc::new(Program::new(&fixture.script(ECHO)).unwrap());
    let limits = StandbyLimits { max_idle: Duration::from_millis(20), ..StandbyLimits::default() };
    fixture.keep_same(&program, 1, limits);
    fixture.waits(1);
    eventually("it ends", || is_gone(fixture.started()[0]));
    assert_eq!(fixture.started().len(), 1);
    drop(fixture.standby.take(&program).unwrap());
    fixture.waits(2);
}

#[test]
fn no_more_wait_than_the_limit_and_none_after_the_end() {
    let fixture = Fixture::new();
    let program = Arc::new(Program::new(&fixture.script(ECHO)).unwrap());
    fixture.keep_same(&program, 5, StandbyLimits { max_processes: 2, ..StandbyLimits::default() });
    fixture.waits(2);
    assert_eq!(fixture.standby.shared.lock().watched().count(), 2);
    let Fixture { directory, standby } = fixture;
    drop(standby);
    let started = fs::read_to_string(directory.path().join("starts")).unwrap();
    let started: Vec<u32> = started.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(started.len(), 2);
    eventually("all end", || started.iter().copied().all(is_gone));
}

#[test]
fn a_reload_is_another_chance_and_a_lower_limit_ends_the_rest() {
    let fixture = Fixture::new();
    let program = fixture.keep(&fixture.script("exit 1"), 1);
    eventually("it has failed", || fixture.standby.take(&program).is_err());
    fixture.keep_same(&program, 1, StandbyLimits::default());
    eventually("it is tried again", || fixture.started().len() > 3);
    let program = fixture.keep(&fixture.script(ECHO), 3);
    eventually("three wait", || fixture.standby.shared.lock().watched().count() == 3);
    fixture.keep_same(&program, 3, StandbyLimits { max_processes: 1, ..StandbyLimits::default() });
    assert_eq!(fixture.standby.shared.lock().watched().count(), 1);
    fixture.standby.end();
    eventually("all end", || fixture.started().into_iter().all(is_gone));
}

#[test]
fn a_process_that_is_not_used_ends() {
    let fixture = Fixture::new();
    let program = fixture.keep(&fixture.script(ECHO), 1);
    fixture.waits(1);
    drop(fixture.standby.take(&program).unwrap().expect("it waits"));
    eventually("it ends", || is_gone(fixture.started()[0]));
}
