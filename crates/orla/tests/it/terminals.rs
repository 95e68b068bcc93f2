//! The output on a terminal: no text can control the terminal, and progress, images and lists fit the
//! terminal.

use std::os::unix::fs::PermissionsExt;

use orla_e2e::{Terminal, World, eventually};

use crate::{sh, world};

/// Sets the title, clears the screen, rings, in C0 and in C1; reorders text; hides a tag.
const EVIL: &str = "\u{1b}]0;pwned\u{7}\u{1b}[2J\u{9b}31m\u{202e}\u{e0041}";

/// Returns a tool and an MCP server that put such texts into every field they control.
fn evil() -> World {
    // As YAML and Python both read it.
    let quoted = EVIL.chars().map(|c| match u32::from(c) {
        _ if c.is_ascii_graphic() && c != '"' => c.to_string(),
        code => format!("\\U{code:08x}"),
    });
    let quoted = format!("\"{}\"", quoted.collect::<String>());
    let header = format!("# /// orla\n# title: {quoted}\n# description: {quoted}\n# ///\n");
    let body = format!(
        "printf '%s' '{EVIL}'; printf '%s' '{EVIL}' >&2; echo '::progress 1/2 {EVIL}' >&2; exit $#"
    );
    let server = format!(
        r#"import json, sys
evil = {quoted}
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m: continue
    r = {{}}
    if m["method"] == "initialize":
        r = {{"protocolVersion": "2025-06-18", "serverInfo": {{"name": evil, "version": "1"}}, "capabilities": {{"tools": {{}}}}}}
    elif m["method"] == "tools/list":
        r = {{"tools": [{{"name": "m", "description": evil, "inputSchema": {{"type": "object", "properties": {{"a": {{"type": "string", "description": evil}}}}}}}}]}}
    elif m["method"] == "tools/call":
        r = {{"content": [{{"type": "text", "text": "one\n" + evil + "\nthree"}}], "isError": True}}
    print(json.dumps({{"jsonrpc": "2.0", "id": m["id"], "result": r}}), flush=True)
"#
    );
    world()
        .env("TERM", "xterm-256color")
        .tool("evil", format!("#!/bin/sh\n{header}{body}\n"))
        .file("server.py", server)
        .config("mcpServers: {up: {command: python3, args: [server.py]}}\n")
}

/// Runs a command at a terminal to its end, and returns its output.
fn shown(world: World, arguments: &[&str]) -> String {
    world.at_terminal(arguments).shows_to_its_end()
}

fn assert_harmless(shown: &str, what: &str) {
    // orla's own sequences are colours and the moves of a progress bar. Foreign sequences are shown
    // escaped.
    for bad in ["\u{1b}]", "\u{1b}[2J", "\u{7}", "\u{9b}", "\u{202e}", "\u{e0041}"] {
        assert!(!shown.contains(bad), "{what} shows {bad:?}: {shown:?}");
    }
}

#[test]
fn no_escape_of_foreign_text_reaches_a_terminal() {
    let program = format!("(log :info \"{EVIL}\") (throw {{:kind :x :message \"{EVIL}\"}})");
    for arguments in [
        &["list"][..],
        &["list", "--json"],
        &["search", "evil"],
        &["describe", "evil"],
        &["describe", "evil", "--json"],
        &["describe", "up.m"],
        &["check"],
        &["verify"],
        &["call", "evil"],
        &["call", "evil", "--raw"],
        &["call", "evil", "args=[\"x\"]"],
        &["call", "up.m"],
        &["call", EVIL],
        &[EVIL],
        &["list", "--nonsense", EVIL],
        &["rtfs", "-e", "(call :evil {})"],
        &["rtfs", "-e", "(call :evil {})", "--json", "--trace"],
        &["rtfs", "-e", &program],
        &["rtfs", "check", "-e", EVIL],
        &["--log-format", "pretty", "--log-level", "debug", "call", "evil"],
        &["--log-format", "json", "--log-level", "debug", "call", "evil"],
    ] {
        let shown = shown(evil(), arguments);
        assert!(shown.len() > 3, "{arguments:?} shows nothing");
        assert_harmless(&shown, &format!("{arguments:?}"));
    }
    let mut serving = evil().at_terminal(&["serve", "--port", "0", "--log-format", "pretty"]);
    serving.shows(0, "listening");
    serving.types("\u{3}");
    assert_harmless(&serving.shows_to_its_end(), "serve");
}

#[test]
fn no_escape_of_a_running_server_reaches_a_terminal() {
    let server = evil().serve();
    let url = format!("http://{}", server.address());
    for arguments in [
        &["status", "--url", &url][..],
        &["list", "--url", &url],
        &["check", "--url", &url],
        &["search", "evil", "--url", &url],
        &["describe", "up.m", "--url", &url],
        &["call", "evil", "--url", &url],
    ] {
        let shown = shown(world().env("TERM", "xterm-256color"), arguments);
        assert!(shown.len() > 3, "{arguments:?} shows nothing");
        assert_harmless(&shown, &format!("{arguments:?}"));
    }
}

#[test]
fn the_dialogue_shows_no_escape_of_what_it_evaluates() {
    let mut terminal = evil().at_terminal(&["rtfs"]);
    let at = terminal.shows(0, "rtfs> ");
    terminal.enters("(get (call :evil {}) :stdout)");
    let at = terminal.shows(at, "pwned");
    let at = terminal.shows(at, "rtfs> ");
    terminal.enters(":doc :evil");
    let at = terminal.shows(at, "pwned");
    terminal.shows(at, "rtfs> ");
    terminal.types("\u{4}");
    let own = terminal.shows_to_its_end().replace("\u{1b}[2J", "?");
    assert!(
        !own.contains("\u{1b}]0;") && !own.contains('\u{9b}') && !own.contains('\u{202e}'),
        "{own:?}"
    );
}

#[test]
fn a_pipe_gets_the_bytes_of_a_tool_as_they_are() {
    let world = evil();
    let called = world.run(&["call", "evil"]);
    assert_eq!(called.stdout, EVIL);
    assert!(called.stderr.contains(EVIL), "{called:?}");
}

#[test]
fn an_error_of_several_lines_is_several_lines() {
    let called = evil().run(&["call", "up.m"]);
    assert_eq!(called.code, Some(1));
    let lines: Vec<&str> = called.stderr.lines().collect();
    assert!(lines[0].starts_with("error: ") && lines[0].ends_with("one"), "{called:?}");
    assert_eq!(lines.last(), Some(&"three"), "{called:?}");
}

#[test]
fn progress_is_one_bar_that_moves_in_place_with_messages_above_it() {
    let tool = sh(
        "for n in 1 2 3; do echo \"::progress $n/3 part $n\" >&2; sleep 0.2; done; echo '::log warning careful' >&2; echo done",
    );
    let slow = || world().env("TERM", "xterm-256color").tool("slow", &tool);
    let server = slow().serve();
    let url = format!("http://{}", server.address());
    for arguments in [&["call", "slow"][..], &["call", "slow", "--url", &url]] {
        let shown = shown(slow(), arguments);
        assert!(shown.contains("slow 1/3 [") && shown.contains("slow 3/3 ["), "{shown:?}");
        assert!(shown.contains("part 2") && shown.contains(" left"), "{shown:?}");
        assert!(shown.contains("[warning] careful") && shown.contains("done"), "{shown:?}");
        // The bar itself never ends a line.
        assert!(shown.matches('\n').count() <= 4, "{shown:?}");
    }
    let piped = slow().run(&["call", "slow"]);
    assert_eq!((piped.stdout.as_str(), piped.stderr.as_str()), ("done\n", ""), "{piped:?}");
}

#[test]
fn each_call_within_a_program_has_a_bar_of_its_own() {
    let tool = |name: &str| {
        sh(&format!("for n in 1 2; do echo \"::progress $n/2 {name}\" >&2; sleep 0.3; done"))
    };
    let world = world().env("TERM", "xterm-256color").tool("left", tool("a")).tool("right", tool("b"));
    let shown = shown(world, &["rtfs", "-e", "(parallel (call :left {}) (call :right {}))"]);
    assert!(shown.contains("left 1/2 [") && shown.contains("right 1/2 ["), "{shown:?}");
}

/// A PNG of one pixel.
const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

fn picture() -> World {
    world().tool("picture", sh(&format!("printf %s '{PIXEL}' | base64 -d")))
}

#[test]
fn an_image_is_shown_where_the_terminal_can_and_described_where_it_cannot() {
    let plain = shown(picture().env("TERM", "xterm-256color"), &["call", "picture"]);
    assert!(
        plain.contains("[image, image/png, 70 bytes]") && plain.contains("--output FILE"),
        "{plain:?}"
    );
    let kitty = shown(picture().env("TERM", "xterm-kitty"), &["call", "picture"]);
    assert!(kitty.contains(&format!("\u{1b}_Ga=T,f=100,q=2,m=0;{PIXEL}\u{1b}\\")), "{kitty:?}");
    let iterm = picture().env("TERM", "xterm-256color").env("TERM_PROGRAM", "iTerm.app");
    let iterm = shown(iterm, &["call", "picture"]);
    assert!(iterm.contains(&format!("\u{1b}]1337;File=inline=1;size=70:{PIXEL}\u{7}")), "{iterm:?}");
}

#[test]
fn output_writes_binary_content_to_a_file() {
    let world = picture().tool("words", sh("echo hello"));
    let called = world.run(&["call", "picture", "--output", "pixel.png"]);
    assert_eq!((called.code, called.stdout.as_str()), (Some(0), ""), "{called:?}");
    assert_eq!(std::fs::metadata(world.path("pixel.png")).unwrap().len(), 70);
    assert!(called.stderr.contains("70 bytes written to pixel.png"), "{called:?}");
    let called = world.run(&["call", "words", "-o", "words.txt"]);
    assert_eq!((called.code, world.read("words.txt").as_str()), (Some(0), "hello\n"), "{called:?}");
    let nowhere = world.run(&["call", "picture", "--output", "no/where.png"]);
    assert_eq!(nowhere.code, Some(1));
    assert!(nowhere.stderr.contains("no/where.png cannot be written"), "{nowhere:?}");
}

#[test]
fn a_list_of_objects_is_a_table_at_a_terminal_and_json_in_a_pipe() {
    let json = r#"[{"name":"ada","age":36},{"name":"bob","age":7}]"#;
    let people = || world().env("TERM", "xterm").tool("people", sh(&format!("echo '{json}'")));
    let table = shown(people(), &["call", "people"]);
    assert!(table.contains("name  age\r\nada   36\r\nbob   7\r\n"), "{table:?}");
    assert_eq!(people().run(&["call", "people"]).stdout, format!("{json}\n"));
}

fn ends_with_zero_on_ctrl_c(terminal: &mut Terminal) {
    terminal.types("\u{3}");
    assert!(terminal.ends().success(), "{:?}", terminal.shown());
}

#[test]
fn list_and_status_watch_until_ctrl_c() {
    let here = world().env("TERM", "xterm").tool("one", sh("echo"));
    let mut terminal = here.at_terminal(&["list", "--watch"]);
    let at = terminal.shows(0, "one");
    let path = terminal.write("tools/two", sh("echo"), 0o755);
    assert!(std::fs::metadata(path).unwrap().permissions().mode() & 0o111 != 0);
    terminal.shows(at, "two");
    ends_with_zero_on_ctrl_c(&mut terminal);

    let server = world().tool("one", sh("echo")).serve();
    let url = format!("http://{}", server.address());
    for command in ["list", "status"] {
        let here = world().env("TERM", "xterm");
        let mut terminal = here.at_terminal(&[command, "--watch", "--url", &url]);
        let at = terminal.shows(0, "one");
        server.write(format!("tools/of_{command}"), sh("echo"), 0o755);
        server.reload();
        terminal.shows(at, &format!("of_{command}"));
        ends_with_zero_on_ctrl_c(&mut terminal);
    }
}

#[test]
fn a_running_server_is_listed_and_checked_by_its_url() {
    let mut server = world()
        .tool("one", sh("echo"))
        .config("auth_tokens: {ada: tok-ada-0123456789abcdef}\ncapsules: {max_failures: 1}\n")
        .serve();
    let url = format!("http://{}", server.address());
    let other = world().env("ORLA_TOKEN", "tok-ada-0123456789abcdef");
    let listed = other.run(&["list", "--url", &url]);
    assert!(listed.code == Some(0) && listed.stdout.contains("one"), "{listed:?}");
    let rows: serde_json::Value =
        serde_json::from_str(&other.run(&["list", "--json", "--url", &url]).stdout).unwrap();
    assert_eq!(rows[0]["name"], "one", "{rows}");
    let checked = other.run(&["check", "--url", &url]);
    assert!(checked.code == Some(0) && checked.stdout.starts_with("ok: "), "{checked:?}");
    assert_eq!(world().run(&["list", "--url", &url]).code, Some(1), "without the token");
    let manifest =
        "name: dead\nversion: 1.0.0\nentrypoint: run.sh\nruntime: {mode: capsule, eager: true}\n";
    server.write("tools/dead/run.sh", sh("exit 7"), 0o755);
    server.write("tools/dead/tool.yaml", manifest, 0o644);
    server.signal(rustix::process::Signal::HUP);
    eventually("the server says that the capsule has stopped", || {
        let checked = other.run(&["check", "--url", &url]);
        checked.code == Some(1) && checked.stderr.contains("dead: ") && checked.stderr.contains("code 7")
    });
    server.terminate();
    assert_eq!(other.run(&["check", "--url", &url]).code, Some(1), "no server answers");
}
