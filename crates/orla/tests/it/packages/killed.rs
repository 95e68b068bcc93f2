//! Whenever a command is killed, the old or the new package is installed.

use std::time::{Duration, Instant};

use orla_e2e::{World, eventually};
use rustix::process::{Pid, Signal, kill_process};

use super::{call, folder, ok, project};

/// Starts a command and kills it after a part of the time that it takes.
fn kill_after(world: &World, command: &[&str], delay: Duration) {
    let mut child = world.spawn(command, "killed.out");
    let end = Instant::now() + delay;
    eventually("the moment comes", || (Instant::now() >= end).then_some(()));
    let _ = child.kill();
    let _ = child.wait();
}

/// Returns how many times a command is killed: `ORLA_PACKAGE_KILLS` of all three together, or 42.
fn kills() -> u32 {
    let asked = std::env::var("ORLA_PACKAGE_KILLS").ok().and_then(|kills| kills.parse::<u32>().ok());
    asked.unwrap_or(42).div_ceil(3)
}

fn moments(whole: Duration, count: u32) -> impl Iterator<Item = Duration> {
    (0..count).map(move |at| whole * at / count)
}

#[test]
fn a_killed_add_update_or_sync_leaves_the_old_or_the_new_package() {
    let world = project();
    folder(&world, "1.0.0", "[]");
    let began = Instant::now();
    ok(&world, &["add", "./src/greet", "--yes"]);
    let whole = began.elapsed();
    let first = world.read("orla.lock");

    ok(&world, &["remove", "greet"]);
    for delay in moments(whole, kills()) {
        kill_after(&world, &["add", "./src/greet", "--yes"], delay);
        let lock = world.read("orla.lock");
        match lock.contains("greet") {
            true => {
                assert_eq!(call(&world, "greet"), "greetings 1.0.0");
                ok(&world, &["remove", "greet"]);
            }
            false => assert!(lock.is_empty() || lock.ends_with("packages: []\n"), "{lock}"),
        }
    }
    ok(&world, &["add", "./src/greet", "--yes"]);
    assert_eq!(world.read("orla.lock"), first, "a killed add leaves nothing behind that matters");

    for (version, delay) in (2..).zip(moments(whole, kills())) {
        let before = call(&world, "greet");
        folder(&world, &format!("{version}.0.0"), "[]");
        kill_after(&world, &["update", "greet", "--yes"], delay);
        let after = call(&world, "greet");
        let new = format!("greetings {version}.0.0");
        assert!(after == before || after == new, "neither {before} nor {new}: {after}");
    }

    ok(&world, &["update", "greet", "--yes"]);
    let newest = call(&world, "greet");
    for delay in moments(whole, kills()) {
        std::fs::remove_dir_all(world.path(".orla")).unwrap();
        kill_after(&world, &["sync", "--offline"], delay);
        let after = call(&world, "greet");
        assert!(after == newest || after.contains("run `orla sync`"), "{after}");
        ok(&world, &["sync", "--offline"]);
        assert_eq!(call(&world, "greet"), newest);
    }
    let left: Vec<_> = std::fs::read_dir(world.path(".orla/packages")).unwrap().collect();
    assert!(left.len() <= 4, "the package, its tools, the lock and .gitignore: {left:?}");
}

#[test]
fn a_signal_ends_what_a_command_has_started() {
    let world = project();
    let path = format!("{}:{}", world.path("bin").display(), std::env::var("PATH").expect("a path"));
    let world = world.env("PATH", &path);
    // As a `git` that fetches for long, in a process of its own that takes no notice.
    let began = world.path("began");
    let git = format!("#!/bin/sh\n(trap '' TERM; echo > {}; sleep 600) &\nwait\n", began.display());
    world.write("bin/git", &git, 0o755);
    let mut add = world.spawn(&["add", "git:./src/greet#main", "--yes"], "add.out");
    eventually("git fetches", || began.exists());
    kill_process(Pid::from_child(&add), Signal::TERM).expect("it runs");
    let status = eventually("the command ends", || add.try_wait().expect("a child"));
    assert!(!status.success(), "{status}");
    eventually("git and what it started have ended", || world.processes().is_empty());
}
