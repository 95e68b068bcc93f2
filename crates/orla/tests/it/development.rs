//! The development loop: `orla new`, `orla dev`, and the examples that come with the repository.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::{sh, world};

/// Returns whether a program is installed. Tests that need it are skipped otherwise.
fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[test]
fn a_new_tool_can_be_called_at_once_and_is_never_overwritten() {
    for (language, needs) in [("python", "python3"), ("node", "node"), ("bash", "jq")] {
        if !is_installed(needs) {
            continue;
        }
        let world = world();
        for (kind, argument, expected) in
            [("tool", "name=Ada", "Hello, Ada!"), ("capsule", "by=2", "The total is 2.")]
        {
            let name = format!("my-{kind}");
            let new = ["new", kind, &name, "--lang", language];
            let written = world.run(&new);
            assert_eq!(written.code, Some(0), "{written:?}");
            assert!(written.stdout.contains(&format!("orla call {name} {argument} ")), "{written:?}");
            let called = world.run(&["call", &name, argument]);
            assert!(called.code == Some(0) && called.stdout.contains(expected), "{called:?}");
            let again = world.run(&new);
            assert!(again.code == Some(1) && again.stderr.contains("exists already"), "{again:?}");
        }
        let checked = world.run(&["check"]);
        assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""), "{language}");
    }
}

#[test]
fn a_name_that_cannot_be_one_is_explained() {
    let world = world();
    let refused = world.run(&["new", "tool", "../Evil", "--lang", "bash"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("\"../Evil\" cannot be a name"), "{refused:?}");
    assert!(!world.path("tools").exists());
}

#[test]
fn saved_code_answers_the_next_call() {
    let world = world();
    assert_eq!(world.run(&["new", "capsule", "count", "--lang", "python"]).code, Some(0));
    let program = "tools/count/main.py";
    let text = world.read(program);
    let server = world.arg("dev").arg("tools/count").serve_quietly();
    let mut client = server.client();
    assert_eq!(client.call("count", json!({"by": 2})).text(), "The total is 2.");
    server.write(program, text.replace("The total is", "Now it is"), 0o755);
    orla_e2e::eventually("the new code answers", || {
        client.call("count", json!({})).text().starts_with("Now it is ")
    });
}

#[test]
fn the_examples_answer() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/capsules");
    let mut world = world();
    // The examples that only need programs of the system.
    for file in ["python-counter/counter.py", "sql/main.py", "bash-clock/clock.sh"] {
        let manifest = Path::new(file).with_file_name("tool.yaml");
        world =
            world.file(Path::new("tools").join(&manifest), fs::read(examples.join(&manifest)).unwrap());
        world = world.tool(file, fs::read(examples.join(file)).unwrap());
    }
    let server = world.serve();
    let mut client = server.client();
    let add = client.call("counter__add", json!({"by": 2}));
    assert_eq!(add.structured(), &json!({"total": 2}));
    let sql = client.call("sql", json!({"statement": "select 6 * 7 as answer"}));
    assert_eq!(sql.text(), r#"[{"answer": 42}]"#);
    if is_installed("jq") {
        let time = client.call("clock", json!({"zone": "UTC"}));
        assert!(time.text().contains("UTC (call 1 in "), "{}", time.text());
    }
}

#[test]
fn every_example_passes_the_check_from_a_fresh_clone() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut checked = 0;
    for folder in fs::read_dir(&examples).unwrap().map(|entry| entry.unwrap().path()) {
        let config = folder.join("orla.yaml");
        if !config.is_file() {
            continue;
        }
        let done = world().run(&["check".as_ref(), "--config".as_ref(), config.as_os_str()]);
        assert_eq!(done.code, Some(0), "{}: {done:?}", folder.display());
        checked += 1;
    }
    assert!(checked >= 8, "{checked} examples have a configuration");
    for tools in ["tools", "capsules", "tasks/tools"] {
        let done =
            world().run(&["check".as_ref(), "--tools-dir".as_ref(), examples.join(tools).as_os_str()]);
        assert_eq!(done.code, Some(0), "{tools}: {done:?}");
    }
    let done =
        world().run(&["check".as_ref(), "--config".as_ref(), examples.join("orla.yaml").as_os_str()]);
    assert_eq!(done.code, Some(0), "{done:?}");
}

/// Returns a project with two packages in its tools directory.
fn project() -> orla_e2e::World {
    let mut world = world().env("TERM", "xterm");
    for name in ["first", "second"] {
        let manifest = format!("name: {name}\nversion: 1.0.0\nentrypoint: run.sh\n");
        world = world.file(format!("tools/{name}/tool.yaml"), manifest);
        world.write(format!("tools/{name}/run.sh"), sh("echo"), 0o755);
    }
    world
}

#[test]
fn dev_without_a_directory_asks_which_package() {
    let refused = project().run(&["dev"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    for words in ["several packages", "tools/first", "tools/second"] {
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
    let mut terminal = project().at_terminal(&["dev", "--port", "0"]);
    let at = terminal.shows(0, "2  tools/second");
    let at = terminal.shows(at, "[1-2] ");
    terminal.enters("2");
    terminal.shows(at, "listening");
    terminal.types("\u{3}");
    assert!(terminal.ends().success());
    let mut terminal = project().at_terminal(&["dev"]);
    terminal.shows(0, "[1-2] ");
    terminal.enters("3");
    assert_eq!(terminal.ends().code(), Some(2));
}

#[test]
fn dev_without_a_directory_serves_the_only_package() {
    let world = project();
    fs::remove_dir_all(world.path("tools/second")).unwrap();
    let server = world.arg("dev").serve_quietly();
    assert_eq!(server.client().tool_names(), ["first"]);
}
