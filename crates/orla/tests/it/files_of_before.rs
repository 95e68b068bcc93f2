//! Files of earlier versions can be read (`docs/stability.md`). A folder `tests/fixtures/files-VERSION`
//! has one file of each format, as that version wrote it. These folders never change. A version that
//! changes a format adds its own folder.

use std::fs;
use std::path::Path;

use orla_e2e::World;
use serde_json::Value;

use crate::world;

/// The key with which the audit log of each version was signed.
const AUDIT_KEY: &str = "ed25519:trku0B4yqw6j44dzbdTNbgXVBhr/czb3xNEuqD2ujBM=";

/// Returns a copy of the files of each version.
fn versions() -> Vec<World> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let folders = fs::read_dir(fixtures).expect("the fixtures").flatten().map(|entry| entry.path());
    let is_version = |folder: &std::path::PathBuf| {
        folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("files-"))
    };
    let worlds: Vec<World> = folders
        .filter(is_version)
        .map(|folder| {
            let world = world();
            copy(&folder, &folder, &world);
            world
        })
        .collect();
    assert!(!worlds.is_empty(), "there is no version");
    worlds
}

fn copy(root: &Path, folder: &Path, world: &World) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            copy(root, &path, world);
            continue;
        }
        // What git keeps of a mode is whether a file is executable.
        let mode = if path.extension().is_some_and(|kind| kind == "sh") { 0o755 } else { 0o600 };
        let below = path.strip_prefix(root).expect("below");
        world.write(below, fs::read(&path).expect("a file"), mode);
    }
}

/// Returns the output of a command, which must succeed.
fn printed(world: &World, arguments: &[&str]) -> String {
    let done = world.run(arguments);
    assert_eq!(done.code, Some(0), "{arguments:?}: {}", done.all());
    done.stdout
}

fn json(world: &World, arguments: &[&str]) -> Vec<Value> {
    let text = printed(world, arguments);
    serde_json::from_str(&text).unwrap_or_else(|err| panic!("{arguments:?}: {err}: {text}"))
}

#[test]
fn a_lock_of_before_is_installed_and_not_rewritten() {
    for world in versions() {
        let lock = world.read("orla.lock");
        printed(&world, &["sync"]);
        assert_eq!(world.read("orla.lock"), lock);
        assert_eq!(printed(&world, &["call", "greet"]), "hello\n");
    }
}

#[test]
fn an_audit_log_of_before_is_verified_and_continued() {
    for world in versions() {
        let output = printed(&world, &["audit", "verify", "--key", AUDIT_KEY]);
        assert!(
            output.contains("ok: 9 records") && output.contains("signed up to record 9"),
            "{output}"
        );
        let lines = world.read("audit.jsonl").lines().count();
        let mut server = world.serve();
        assert!(server.terminate().success(), "{}", server.log());
        let output = server.run(&["audit", "verify"]);
        assert_eq!(output.code, Some(0), "{}", output.all());
        assert!(server.read("audit.jsonl").lines().count() > lines, "nothing was added");
    }
}

#[test]
fn an_attestation_of_before_holds() {
    for world in versions() {
        let output = world.run(&["verify"]).stdout;
        assert!(output.lines().any(|line| line.starts_with("weather.current  verified")), "{output}");
    }
}

#[test]
fn tokens_tasks_and_calls_of_before_are_listed() {
    for world in versions() {
        let tokens = json(&world, &["token", "list", "--json"]);
        assert!(tokens.len() == 1 && tokens[0]["name"] == "ada", "{tokens:?}");
        let tasks = json(&world, &["task", "list", "--json"]);
        assert!(tasks.len() == 1 && tasks[0]["state"] == "working", "{tasks:?}");
        let calls = json(&world, &["calls", "--json"]);
        let outcomes: Vec<&Value> = calls.iter().map(|call| &call["outcome"]).collect();
        assert_eq!(outcomes, ["ok", "ok", "unavailable", "ok"], "{calls:?}");
    }
}
