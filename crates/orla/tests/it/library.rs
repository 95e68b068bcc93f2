//! orla as a library (RTFS capability system §2.2, §5, §8): runs the unchanged examples of
//! `crates/orla`.

use std::path::{Path, PathBuf};

use orla_e2e::{Request, World};
use serde_json::{Value, json};

use crate::world;

/// Returns an example, which `cargo test` builds beside the binaries of the tests.
fn example(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_orla")).with_file_name("examples").join(name);
    assert!(path.exists(), "{} is not built: cargo build -p orla --examples", path.display());
    path
}

/// Returns a configuration with one greeting, in this word.
fn greets(word: &str) -> String {
    let provider = format!("{{Custom: {{kind: greeting, word: {word}}}}}");
    format!("capabilities:\n  - id: greet\n    description: Greets.\n    provider: {provider}\n")
}

/// Returns the server with a kind of its own.
fn greeting_world() -> World {
    World::new(example("greeting_server")).env("ORLA_PORT", "0").env("WORD", "Hej")
}

#[test]
fn the_seven_executors_are_registered_by_hand_and_called() {
    let ran = World::new(example("executors")).run::<&str>(&[]);
    let expected = [
        "local: 3",
        r#"http: "ok\n""#,
        "mcp: 3",
        "a2a: 3",
        "plugin: 3",
        "remote: 3",
        r#"stream: {:items [1 2 3], :ended_by "end"}"#,
    ];
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!((ran.code, &lines[..]), (Some(0), &expected[..]), "{}", ran.stderr);
}

#[test]
fn a_kind_of_ones_own_is_configured_and_reloaded() {
    let server = greeting_world().config(&greets("'${WORD}'")).serve();
    assert_eq!(server.client().tool_names(), ["greet", "hello"]);
    let greeted = || server.client().call("greet", json!({"name": "Ada"})).text();
    assert_eq!(greeted(), "Hej, Ada!");
    assert_eq!(server.client().call("hello", json!({"name": "Ada"})).text(), "Hello, Ada!");

    server.write("orla.yaml", greets("Salut"), 0o644);
    server.reload();
    assert_eq!(greeted(), "Salut, Ada!");
    // Capabilities with an unchanged configuration keep their provider, and so their entry.
    server.reload();
    server.log_says(&["\"reloaded\"", "\"changed\":1"]);
    server.log_says(&["\"reloaded\"", "\"changed\":0"]);
}

#[test]
fn a_reload_whose_settings_the_kind_refuses_changes_nothing() {
    let server = greeting_world().config(&greets("Hej")).serve();
    let refused = greets("Hej").replace("word", "words");
    server.write("orla.yaml", refused, 0o644);
    server.signal(rustix::process::Signal::HUP);
    let line = server.log_says(&["unknown field `words`"]);
    let place =
        "capabilities[0].provider.Custom: unknown field `words`, expected `word` at orla.yaml:4:16";
    assert!(line.contains(place), "{line}");
    assert_eq!(server.client().call("greet", json!({"name": "Ada"})).text(), "Hej, Ada!");
}

#[test]
fn every_way_in_reaches_a_kind_of_ones_own() {
    let typed =
        "  - {id: typed, description: Greets., provider: {type: custom, kind: greeting, word: Salut}}";
    let server = greeting_world().config(&format!("{}{typed}\n", greets("Hej"))).serve();
    assert_eq!(server.client().call("typed", json!({"name": "Ada"})).text(), "Salut, Ada!");
    let program = json!({"program": "(call :greet {:name \"Ada\"})"}).to_string();
    let request = Request::new("POST", "/rtfs").header("content-type", "application/json").body(program);
    let answer = server.http().send(&request).unwrap();
    assert!(answer.text().contains("Hej, Ada!"), "{}", answer.text());
    let status = server.status();
    let kinds: Vec<&Value> =
        status["capabilities"].as_array().unwrap().iter().map(|one| &one["kind"]).collect();
    assert_eq!(kinds, [&json!("greeting"); 3], "{status}");

    let world = greeting_world().env("ORLA_TRANSPORT", "stdio").config(&greets("Hej"));
    let mut client = world.serve_stdio().initialized();
    assert_eq!(client.call("greet", json!({"name": "Ada"})).text(), "Hej, Ada!");
}

#[test]
fn a_kind_that_the_program_does_not_add_is_an_error_of_the_configuration_with_its_place() {
    let checked = world().config(&greets("Hej")).run(&["check"]);
    let problem = "capabilities[0].provider.Custom.kind: unknown kind \"greeting\": this program adds no kinds of its own at orla.yaml:4:31";
    assert_eq!(checked.code, Some(1));
    assert!(checked.all().contains(problem), "{}", checked.all());

    let started = greeting_world().config(&greets("Hej").replace("kind: greeting", "kind: greting"));
    let started = started.run::<&str>(&[]);
    assert_eq!(started.code, Some(2));
    assert!(
        started.stderr.contains("unknown kind \"greting\", did you mean greeting?"),
        "{}",
        started.stderr
    );
}

#[test]
fn the_example_of_a_server_is_short() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/greeting_server.rs");
    let text = std::fs::read_to_string(source).unwrap();
    let main = text.lines().skip_while(|line| !line.starts_with("fn main")).count();
    assert!(main <= 8 && text.lines().count() <= 55, "{main} lines of {}", text.lines().count());
}

#[test]
fn the_map_of_the_document_names_files_and_tests_that_exist() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let map = std::fs::read_to_string(crates.join("../docs/rtfs-capability-system.md")).unwrap();
    let mut sources = String::new();
    let mut directories = vec![crates.clone()];
    while let Some(directory) = directories.pop() {
        for path in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let is_test = |name: &str| {
        name.matches('_').count() > 3 && name.bytes().all(|b| b == b'_' || b.is_ascii_lowercase())
    };
    for name in map.split('`').skip(1).step_by(2) {
        if name.starts_with("orla") || name.starts_with("rtfs/") {
            let path = name.split(':').next().unwrap_or(name);
            assert!(crates.join(path).exists(), "{path}");
        } else if is_test(name) {
            assert!(sources.contains(&format!("fn {name}(")), "{name}");
        }
    }
}
