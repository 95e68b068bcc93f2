//! The runner against real programs. Every wait has a deadline; none is a fixed sleep.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::limits::PoolLimits;

/// Far beyond what anything here takes on a busy machine.
use orla_marketplace::testing::TEST_TIMEOUT;

fn start(job: &mut Job) -> &mut Start {
    match &mut job.process {
        Process::New(start) => start,
        Process::Waiting(_) => panic!("it was started already"),
    }
}

struct Script {
    directory: tempfile::TempDir,
    job: Job,
    runners: Arc<Runners>,
}

impl Script {
    fn sh(body: &str) -> Self {
        Self::of(&format!("#!/bin/sh\n{body}\n"))
    }

    fn of(content: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("script");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let job = Job {
            process: Process::New(Start {
                program: Arc::new(Program::new(&path).unwrap()),
                args: vec![],
                attested: None,
                environment: Arc::default(),
                env: vec![("DIR", directory.path().into())],
            }),
            stdin: vec![],
            deadline: Instant::now() + TEST_TIMEOUT,
            limits: Limits::default(),
            stderr: None,
        };
        Self { directory, job, runners: Runners::new(PoolLimits::default()) }
    }

    fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.job.stdin = bytes.into();
        self
    }

    fn keeps(mut self, bytes: usize) -> Self {
        self.job.limits.max_output_bytes = bytes;
        self
    }

    fn timeout(mut self, timeout: Duration, grace: Duration) -> Self {
        self.job.deadline = Instant::now() + timeout;
        self.job.limits.grace = grace;
        self
    }

    /// What the script wrote to a file in its directory, once it has.
    fn wrote(directory: &tempfile::TempDir, file: &str) -> String {
        eventually(|| {
            fs::read_to_string(directory.path().join(file)).ok().filter(|text| text.ends_with('\n'))
        })
    }

    fn start(self) -> (Running, tempfile::TempDir, Arc<Runners>) {
        (self.runners.run(self.job).unwrap(), self.directory, self.runners)
    }

    fn run(self) -> Ended {
        let (running, _directory, _runners) = self.start();
        wait(running).unwrap()
    }
}

fn wait(running: Running) -> io::Result<Ended> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime
        .block_on(async { tokio::time::timeout(TEST_TIMEOUT, running).await.expect("it never ended") })
}

fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "it never happened");
        std::thread::yield_now();
    }
}

/// Returns whether the process of this id is gone, or is a zombie of the process that has inherited it.
fn is_gone(pid: &str) -> Option<()> {
    match fs::read_to_string(format!("/proc/{}/stat", pid.trim())) {
        Err(_) => Some(()),
        Ok(stat) => stat.rsplit(')').next()?.trim_start().starts_with(['Z', 'X']).then_some(()),
    }
}

fn text(captured: &Captured) -> &str {
    str::from_utf8(&captured.bytes).unwrap()
}

#[test]
fn output_and_status_come_back() {
    let ended = Script::sh("echo out; echo err >&2; exit 3").run();
    assert_eq!((text(&ended.stdout), text(&ended.stderr)), ("out\n", "err\n"));
    assert_eq!(ended.status.exit().unwrap().code(), Some(3));
    assert_eq!(ended.cause, Cause::Itself);
}

#[test]
fn a_signal_is_reported() {
    for signal in ["KILL", "TERM", "SEGV"] {
        let ended = Script::sh(&format!("kill -{signal} $$")).run();
        assert!(ended.status.exit().unwrap().signal().is_some(), "{signal}");
        assert_eq!(ended.cause, Cause::Itself);
    }
}

#[test]
fn standard_input_is_fed_while_output_is_read() {
    let input = vec![b'x'; 5_000_000];
    let ended = Script::sh("cat").stdin(input.clone()).keeps(input.len()).run();
    assert!(ended.stdout.bytes == input);
}

#[test]
fn a_program_need_not_read_its_input() {
    let ended = Script::sh("exec <&-; echo done").stdin(vec![b'x'; 10_000_000]).run();
    assert_eq!((text(&ended.stdout), ended.status.exit().unwrap().code()), ("done\n", Some(0)));
    let ended = Script::sh("head -c 1000000 /dev/zero").stdin(vec![b'x'; 10_000_000]).run();
    assert_eq!(ended.stdout.bytes.len(), 1_000_000);
}

#[test]
fn output_beyond_the_limit_is_counted_on_both_streams_at_once() {
    let ended = Script::sh("head -c 30000000 /dev/zero & head -c 20000000 /dev/zero >&2; wait")
        .keeps(1000)
        .run();
    assert_eq!((ended.stdout.bytes.len(), ended.stdout.dropped), (1000, 29_999_000));
    assert_eq!((ended.stderr.bytes.len(), ended.stderr.dropped), (1000, 19_999_000));
}

#[test]
fn a_daemon_that_holds_the_pipes_does_not_hold_the_call() {
    let script = Script::sh("sleep 1000 & echo $! > $DIR/pid; echo done");
    let (running, directory, _runners) = script.start();
    let ended = wait(running).unwrap();
    assert_eq!(text(&ended.stdout), "done\n");
    // What is left of its group is ended with the leader.
    let pid = Script::wrote(&directory, "pid");
    eventually(|| is_gone(&pid));
}

#[test]
fn an_escaped_daemon_that_writes_for_ever_does_not_hold_the_call() {
    let script = Script::sh(
        "setsid sh -c 'echo $$ > $DIR/pid; exec yes' & while ! [ -s $DIR/pid ]; do :; done; echo done >&2",
    );
    let (running, directory, _runners) = script.start();
    let ended = wait(running).unwrap();
    assert_eq!(text(&ended.stderr), "done\n");
    let pid = Script::wrote(&directory, "pid");
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
}

#[test]
fn a_deadline_ends_the_group_and_keeps_what_was_written() {
    let script = Script::sh("sleep 1000 & echo $! > $DIR/pid; echo started; wait")
        .timeout(Duration::from_secs(2), Duration::from_secs(20));
    let (running, directory, _runners) = script.start();
    let ended = wait(running).unwrap();
    assert_eq!((ended.cause, text(&ended.stdout)), (Cause::Deadline, "started\n"));
    // SIGTERM was enough, so the grace was not used up.
    assert_eq!(ended.status.exit().unwrap().signal(), Some(15));
    eventually(|| is_gone(&Script::wrote(&directory, "pid")));
}

#[test]
fn a_program_that_ignores_sigterm_is_killed_after_the_grace() {
    let body = "trap '' TERM; sh -c 'echo $$ > $DIR/pid; while :; do sleep 1; done' & \
                echo $$ > $DIR/leader; while :; do sleep 1; done";
    let script = Script::sh(body).timeout(TEST_TIMEOUT, Duration::from_millis(300));
    let (running, directory, _runners) = script.start();
    let (pid, _) = (Script::wrote(&directory, "pid"), Script::wrote(&directory, "leader"));
    let asked = Instant::now();
    running.cancel();
    let ended = wait(running).unwrap();
    assert_eq!((ended.cause, ended.status.exit().unwrap().signal()), (Cause::Cancelled, Some(9)));
    assert!(asked.elapsed() >= Duration::from_millis(300), "{:?}", asked.elapsed());
    eventually(|| is_gone(&pid));
}

#[test]
fn the_grace_is_for_the_whole_group_and_not_for_its_leader_alone() {
    let body = "sh -c 'trap \"echo cleaned up; exit\" TERM; echo > $DIR/ready; while :; do sleep 0.01; done' & wait";
    let script = Script::sh(body).timeout(TEST_TIMEOUT, Duration::from_secs(20));
    let (running, directory, _runners) = script.start();
    Script::wrote(&directory, "ready");
    running.cancel();
    let ended = wait(running).unwrap();
    assert_eq!((ended.cause, text(&ended.stdout)), (Cause::Cancelled, "cleaned up\n"));
}

#[test]
fn a_stopped_program_is_ended_too() {
    let (running, directory, _runners) = Script::sh("echo $$ > $DIR/pid; kill -STOP $$")
        .timeout(TEST_TIMEOUT, Duration::from_secs(20))
        .start();
    let pid = Script::wrote(&directory, "pid");
    eventually(|| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).ok()?;
        stat.rsplit(')').next()?.trim_start().starts_with('T').then_some(())
    });
    running.cancel();
    assert_eq!(wait(running).unwrap().status.exit().unwrap().signal(), Some(15));
}

#[test]
fn dropping_the_call_ends_the_program() {
    let (running, directory, runners) = Script::sh("echo $$ > $DIR/pid; exec sleep 1000").start();
    let pid = Script::wrote(&directory, "pid");
    drop(running);
    eventually(|| is_gone(&pid));
    drop(runners);
}

#[test]
fn a_call_that_is_cancelled_before_its_turn_never_starts() {
    let runners = Runners::new(PoolLimits { max_threads: 1, ..PoolLimits::default() });
    let mut first = Script::sh("echo > $DIR/ready; exec sleep 1000");
    first.runners = Arc::clone(&runners);
    let (first, directory, _) = first.start();
    Script::wrote(&directory, "ready");
    let mut second = Script::sh("echo ran");
    second.runners = Arc::clone(&runners);
    let (second, _directory, _) = second.start();
    second.cancel();
    first.cancel();
    assert_eq!(wait(first).unwrap().cause, Cause::Cancelled);
    let ended = wait(second).unwrap();
    assert_eq!(
        (ended.cause, ended.status == Status::NeverStarted, text(&ended.stdout)),
        (Cause::Cancelled, true, "")
    );
}

#[test]
fn a_call_that_is_withdrawn_before_its_turn_makes_room_for_another() {
    let runners = Runners::new(PoolLimits { max_threads: 1, max_waiting: 1, ..PoolLimits::default() });
    let call = |body: &str| {
        let mut script = Script::sh(body);
        script.runners = Arc::clone(&runners);
        let running = runners.run(script.job);
        (running, script.directory)
    };
    let (first, directory) = call("echo > $DIR/ready; exec sleep 1000");
    let first = first.unwrap();
    Script::wrote(&directory, "ready");
    assert!(!first.is_queued() && !first.withdraw());
    let (second, second_directory) = call("echo > $DIR/ran");
    let second = second.unwrap();
    assert!(second.is_queued());
    assert!(call("exit 0").0.is_err());
    assert!(second.withdraw());
    let (third, _directory) = call("echo third");
    first.cancel();
    assert_eq!(text(&wait(third.unwrap()).unwrap().stdout), "third\n");
    assert!(!second_directory.path().join("ran").exists());
}

#[derive(Debug)]
struct Panics;

impl OutputFilter for Panics {
    fn feed(&mut self, _: &[u8], _: &mut dyn FnMut(&[u8])) {
        panic!("on purpose");
    }

    fn finish(&mut self, _: &mut dyn FnMut(&[u8])) {}
}

#[test]
fn a_filter_that_panics_costs_its_call_alone_and_leaves_no_process() {
    let mut script = Script::sh("echo $$ > $DIR/pid; echo something >&2; exec sleep 1000");
    script.job.stderr = Some(Box::new(Panics));
    let (running, directory, runners) = script.start();
    assert!(wait(running).is_err());
    let pid = Script::wrote(&directory, "pid");
    eventually(|| is_gone(&pid));
    let mut next = Script::sh("echo next");
    next.runners = Arc::clone(&runners);
    assert_eq!(text(&next.run().stdout), "next\n");
    eventually(|| {
        let mut next = Script::sh("exit 0");
        next.runners = Arc::clone(&runners);
        next.run();
        (runners.unreaped() == 0).then_some(())
    });
}

#[test]
fn a_leader_that_has_left_its_group_is_killed_all_the_same() {
    let script = Script::of(
        "#!/usr/bin/env perl\nsetpgrp(0, getpgrp(getppid())); open(F, '>', \"$ENV{DIR}/pid\"); print F \"$$\\n\"; close F; sleep 1000;\n",
    )
    .timeout(TEST_TIMEOUT, Duration::from_millis(50));
    let (running, directory, _runners) = script.start();
    let pid = Script::wrote(&directory, "pid");
    running.cancel();
    assert_eq!(wait(running).unwrap().status.exit().and_then(|status| status.signal()), Some(9));
    eventually(|| is_gone(&pid));
}

#[test]
fn calls_beyond_the_threads_wait_and_beyond_the_queue_are_refused() {
    let runners = Runners::new(PoolLimits { max_threads: 2, max_waiting: 2, ..PoolLimits::default() });
    let (mut running, mut refused) = (Vec::new(), 0);
    let gate = tempfile::tempdir().unwrap();
    let open = gate.path().join("open");
    let waits = format!("while [ ! -e {} ]; do sleep 0.01; done; cat", open.display());
    for _ in 0..5 {
        let mut script = Script::sh("echo > $DIR/ready; read line; echo $line");
        script.runners = Arc::clone(&runners);
        script.job.stdin = b"hello\n".to_vec();
        start(&mut script.job).program = Script::sh(&waits).keep_directory();
        match runners.run(script.job) {
            Ok(call) => running.push(call),
            Err(_) => refused += 1,
        }
    }
    assert_eq!((running.len(), refused), (4, 1));
    fs::write(open, "").unwrap();
    for call in running {
        assert_eq!(text(&wait(call).unwrap().stdout), "hello\n");
    }
}

impl Script {
    fn keep_directory(mut self) -> Arc<Program> {
        let program = Arc::clone(&start(&mut self.job).program);
        let _ = self.directory.keep();
        program
    }
}

#[test]
fn idle_threads_end() {
    let runners = Runners::new(PoolLimits { idle: Duration::from_millis(20), ..PoolLimits::default() });
    for _ in 0..3 {
        let mut script = Script::sh("exit 0");
        script.runners = Arc::clone(&runners);
        script.run();
    }
    eventually(|| (runners.threads() == 0).then_some(()));
}

#[test]
fn a_program_that_outlasts_its_kill_does_not_hold_the_call_and_is_reaped_later() {
    // No max_wait at all stands for a process which the kernel will not let go of.
    let mut script = Script::sh("exec sleep 1000").timeout(Duration::from_millis(100), Duration::ZERO);
    script.job.limits.kill_wait = Duration::ZERO;
    let (running, _directory, runners) = script.start();
    let ended = wait(running).unwrap();
    assert_eq!(ended.cause, Cause::Deadline);
    let mut next = Script::sh("exit 0");
    next.runners = Arc::clone(&runners);
    next.run();
    eventually(|| {
        let mut next = Script::sh("exit 0");
        next.runners = Arc::clone(&runners);
        next.run();
        (runners.unreaped() == 0).then_some(())
    });
}

/// Keeps lower case, and passes everything on.
#[derive(Debug)]
struct Lowercase(Arc<Mutex<Vec<u8>>>);

impl OutputFilter for Lowercase {
    fn feed(&mut self, bytes: &[u8], keep: &mut dyn FnMut(&[u8])) {
        self.0.lock().extend_from_slice(bytes);
        bytes.iter().filter(|byte| !byte.is_ascii_uppercase()).for_each(|byte| keep(&[*byte]));
    }

    fn finish(&mut self, keep: &mut dyn FnMut(&[u8])) {
        keep(b"end");
    }
}

#[test]
fn a_filter_reads_standard_error_while_the_program_runs_and_says_what_is_kept() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut script = Script::sh("echo aBc >&2; exec sleep 1000");
    script.job.stderr = Some(Box::new(Lowercase(Arc::clone(&seen))));
    let (running, _directory, _runners) = script.start();
    eventually(|| (*seen.lock() == b"aBc\n").then_some(()));
    running.cancel();
    assert_eq!(text(&wait(running).unwrap().stderr), "ac\nend");
}

#[test]
fn text_without_a_shebang_is_run_by_the_shell_now_and_ever_after() {
    let runners = Runners::new(PoolLimits::default());
    let Script { directory, job, .. } = Script::of("echo plain $1\n");
    let job = |program: &Arc<Program>| Job {
        process: Process::New(Start {
            program: Arc::clone(program),
            args: vec!["arg".into()],
            attested: None,
            environment: Arc::default(),
            env: vec![],
        }),
        stdin: vec![],
        deadline: job.deadline,
        limits: job.limits,
        stderr: None,
    };
    let path = directory.path().join("script");
    let program = Arc::new(Program::new(&path).unwrap());
    for _ in 0..2 {
        let ended = wait(runners.run(job(&program)).unwrap()).unwrap();
        assert_eq!(text(&ended.stdout), "plain arg\n");
    }
    // Another file of the same name is what the kernel says it is.
    let other = directory.path().join("other");
    fs::write(&other, "#!/bin/cat\n").unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&other, &path).unwrap();
    let mut cat = job(&program);
    start(&mut cat).args.clear();
    assert_eq!(text(&wait(runners.run(cat).unwrap()).unwrap().stdout), "#!/bin/cat\n");
}

#[test]
fn an_empty_file_does_nothing_and_a_foreign_binary_cannot_start() {
    assert_eq!(Script::of("").run().status.exit().unwrap().code(), Some(0));
    let (running, _directory, _runners) = Script::of("\x7fELF\u{2}\u{1}\0foreign").start();
    assert!(crate::child::is(&wait(running).unwrap_err(), rustix::io::Errno::NOEXEC));
}

#[test]
fn a_file_that_is_being_written_is_tried_again() {
    let script = Script::sh("echo ran");
    let path = script.directory.path().join("script");
    // A copy, as a script's text is read by its interpreter and not by the kernel.
    fs::copy("/bin/true", &path).unwrap();
    let writer = fs::OpenOptions::new().append(true).open(&path).unwrap();
    let (running, _directory, _runners) = script.start();
    let error = wait(running).unwrap_err();
    assert!(crate::child::is(&error, rustix::io::Errno::TXTBSY), "{error}");
    drop(writer);
}
