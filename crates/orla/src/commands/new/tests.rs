//! Skeletons are written to a directory, read as the server reads them, and run as it runs them.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::*;
use crate::app::App;
use crate::config::Config;

const KINDS: [Kind; 2] = [Kind::Tool, Kind::Capsule];

fn written(kind: Kind, language: Language, dir: &Path) -> Vec<PathBuf> {
    let paths = Skeleton::of(kind, "greet-1", language).write(dir, "greet-1").unwrap();
    if language == Language::Rust {
        // The versions that are here already: no test needs a network.
        let locked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
        fs::copy(locked, dir.join("greet-1/Cargo.lock")).unwrap();
    }
    paths
}

/// Starts the generated program. Its own build needs no network.
fn start(paths: &[PathBuf], arguments: &[&str]) -> Child {
    let mut command = Command::new(program(paths));
    command.env("CARGO_NET_OFFLINE", "true").args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    loop {
        match command.spawn() {
            // A process that another test is starting still has the file open for writing.
            Err(err) if err.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            child => return child.unwrap(),
        }
    }
}

/// Returns the generated program.
fn program(paths: &[PathBuf]) -> &PathBuf {
    let is_program = |path: &&PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o111 == 0o111;
    paths.iter().find(is_program).unwrap()
}

/// Returns whether a language can be tried here. Go skeletons are built where there is a Go.
fn is_installed(language: Language) -> bool {
    let (program, argument) = match language {
        Language::Python => ("python3", "--version"),
        Language::Node => ("node", "--version"),
        Language::Rust => ("cargo", "--version"),
        Language::Go => ("go", "version"),
        Language::Bash => ("jq", "--version"),
    };
    Command::new(program).arg(argument).output().is_ok_and(|output| output.status.success())
}

#[test]
fn names_are_plain_words() {
    for good in ["a", "7zip", "word-count_2", &"x".repeat(64)] {
        assert!(check(good).is_ok(), "{good}");
    }
    for bad in ["", "-a", "_a", "A", "a b", "a.py", "../a", "ä", "a\n", &"x".repeat(65)] {
        let failure = check(bad).unwrap_err();
        assert!(failure.lines[0].contains(" cannot be a name: "), "{bad}");
    }
}

#[test]
fn every_skeleton_is_served_without_a_remark() {
    for kind in KINDS {
        for language in Language::value_variants() {
            let dir = tempfile::tempdir().unwrap();
            let paths = written(kind, *language, dir.path());
            program(&paths);
            let config = Config { tools_dir: dir.path().to_owned(), ..Config::default() };
            let app = App::build(&config).unwrap();
            let findings = app.findings();
            assert!(findings.problems.is_empty() && findings.warnings.is_empty(), "{findings:?}");
            let catalog = app.marketplace().snapshot();
            let served: Vec<_> = catalog.listed().collect();
            let [entry] = served[..] else { panic!("{kind:?} {language:?}") };
            assert_eq!(&*entry.name, "greet-1");
            assert_eq!(entry.manifest.input_schema.is_some(), kind == Kind::Tool, "{language:?}");
            for path in paths {
                let text = fs::read_to_string(&path).unwrap();
                assert!(!text.contains("__NAME") && !text.contains("__ENTRY"), "{}", path.display());
            }
        }
    }
}

#[test]
fn nothing_that_exists_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("greet-1.rb"), "mine").unwrap();
    for kind in KINDS {
        for language in Language::value_variants() {
            let failure =
                Skeleton::of(kind, "greet-1", *language).write(dir.path(), "greet-1").unwrap_err();
            assert!(failure.lines[0].ends_with("greet-1.rb exists already; nothing was written"));
        }
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn every_tool_gives_its_result() {
    for language in Language::value_variants().iter().filter(|language| is_installed(**language)) {
        let dir = tempfile::tempdir().unwrap();
        let paths = written(Kind::Tool, *language, dir.path());
        let mut child = start(&paths, &["--name", "Ada", "--times", "2"]);
        // A program that does not read its input may have ended before the write.
        let _ = child.stdin.take().unwrap().write_all(b"{\"name\":\"Ada\",\"times\":2}\n");
        let output = child.wait_with_output().unwrap();
        let (out, err) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(output.status.success(), "{language:?}: {err}");
        match serde_json::from_str::<Value>(&out) {
            Ok(result) => assert_eq!(result, json!({"greetings": ["Hello, Ada!", "Hello, Ada!"]})),
            Err(_) => assert_eq!(out, "Hello, Ada!\nHello, Ada!\n"),
        }
        assert_eq!(err, "::progress 1/2 greeting 1\n::progress 2/2 greeting 2\n", "{language:?}");
    }
}

#[test]
fn every_capsule_speaks_mcp_and_keeps_its_state() {
    for language in Language::value_variants().iter().filter(|language| is_installed(**language)) {
        let dir = tempfile::tempdir().unwrap();
        let paths = written(Kind::Capsule, *language, dir.path());
        let mut child = start(&paths, &[]);
        let mut stdin = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut read = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
        let hello = read();
        assert_eq!(
            (&hello["method"], &hello["params"]["name"]),
            (&json!("orla.hello"), &json!("greet-1"))
        );
        let mut ask = |method: &str, params: Value| {
            let notification = json!({"jsonrpc": "2.0", "method": "notifications/x", "params": {}});
            let request = json!({"jsonrpc": "2.0", "id": "a \"b\"", "method": method, "params": params});
            write!(stdin, "{notification}\n{request}\n").unwrap();
            let answer = read();
            assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!("a \"b\"")));
            answer
        };
        let opened = ask("initialize", json!({"protocolVersion": "2025-11-25", "capabilities": {}}));
        assert_eq!(opened["result"]["protocolVersion"], "2025-11-25", "{language:?}");
        assert_eq!(opened["result"]["capabilities"], json!({"tools": {}}));
        let listed = ask("tools/list", json!({}));
        assert_eq!(listed["result"]["tools"][0]["name"], "greet-1");
        assert_eq!(ask("ping", json!({}))["result"], json!({}));
        let call = |arguments| json!({"name": "greet-1", "arguments": arguments});
        assert_eq!(
            ask("tools/call", call(json!({"by": 2})))["result"],
            json!({"content": [{"type": "text", "text": "The total is 2."}], "structuredContent": {"total": 2}})
        );
        let total = ask("tools/call", call(json!({})));
        assert_eq!(total["result"]["structuredContent"]["total"], 3, "{language:?}");
        assert_eq!(
            ask("no/such", json!({}))["error"],
            json!({"code": -32601, "message": "no method no/such"}),
            "{language:?}"
        );
        drop(stdin);
        assert!(child.wait().unwrap().success(), "{language:?}");
    }
}
