//! Tools and arguments that misbehave (rows X1, X2, X4 and X6 to X11).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use orla_e2e::{eventually, processes_with};
use serde_json::{Value, json};

use crate::{sh, world};

/// X1
#[test]
fn start_failures_are_explained() {
    let mut foreign = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\xf3\xf3\x01\0\0\0".to_vec();
    foreign.resize(4096, 0);
    let server = world()
        .tool("missing", "#!/nowhere/python9\nprint(1)\n")
        .tool("env", "#!/usr/bin/env python9\n")
        .tool("own", sh("no_such_command_here 2>/dev/null"))
        .tool("crlf", "#!/bin/sh\r\necho hi\r\n")
        .tool("foreign", foreign)
        .tool("garbage", b"\0\x01\x02\xff not a program")
        .tool("loop", "#!./tools/loop\n")
        .serve();
    let mut client = server.client();
    for (name, why, code) in [
        ("missing", "interpreter python9 not found", 127),
        ("env", "interpreter python9 not found", 127),
        (
            "crlf",
            "interpreter sh not found, because the first line ends in a carriage return (CRLF); save the file with Unix line endings (LF)",
            127,
        ),
        ("foreign", "", 126),
        ("garbage", "", 126),
        ("loop", "", 126),
    ] {
        let result = client.call(name, json!({}));
        assert!(result.is_error(), "{name}: {}", result.json);
        let sentence = result.sentence();
        let whole = format!("{name} could not start: {why}");
        assert!(sentence == whole || why.is_empty() && sentence.starts_with(&whole), "{sentence}");
        assert!(!sentence.contains("os error"), "{name}: {sentence}");
        assert_eq!(result.exit_code(), code, "{name}: {sentence}");
        assert_eq!(result.structured()["exit_code"], code, "{name}: {}", result.json);
        assert_eq!(result.stdout(), "");
        let detail = &result.execution()["stderr"];
        assert!(name != "missing" || detail == "/nowhere/python9: no such file\n", "{detail}");
    }
    // A tool that itself finds a command missing has started.
    assert_eq!(client.call("own", json!({})).sentence(), "own exited with code 127");
    server.assert_no_tool_is_left();
}

/// X1: `env` is there and the program that it looks for is not.
#[test]
fn an_interpreter_that_env_does_not_find_is_named() {
    let server = world().tool("t", "#!/usr/bin/env python9\n").env("PATH", "/usr/bin:/bin").serve();
    let result = server.client().call("t", json!({}));
    assert!(result.is_error() && result.exit_code() == 127, "{}", result.json);
    assert_eq!(result.sentence(), "t could not start: interpreter python9 not found");
}

/// X1
#[test]
fn text_without_a_shebang_runs_under_the_shell() {
    let server = world()
        .tool("text", "echo \"hi $1 $2\"\n")
        .tool("empty", "")
        .tool("comment", "# only a comment")
        .tool("options", "#!/bin/sh -e\nfalse\necho not reached\n")
        .serve();
    let mut client = server.client();
    assert_eq!(client.call("text", json!({"a": "b"})).stdout(), "hi --a b\n");
    for name in ["empty", "comment"] {
        let result = client.call(name, json!({"a": 1}));
        assert_eq!(*result.structured(), json!({"stdout": "", "stderr": "", "exit_code": 0}), "{name}");
        assert!(!result.is_error());
    }
    assert_eq!(
        client.call("options", json!({})).exit_code(),
        1,
        "what runs is what the kernel would run"
    );
}

/// X2
#[test]
fn exits_are_reported_by_code_or_signal_name() {
    let server = world()
        .tool("exit", sh("exit $2"))
        .tool("kill", sh("echo before; kill -$2 $$; sleep 10"))
        .serve();
    let mut client = server.client();
    for code in [1, 2, 126, 127, 128, 255] {
        let result = client.call("exit", json!({"code": code}));
        assert!(result.is_error());
        assert!(
            result.sentence().starts_with(&format!("exit exited with code {code}")),
            "{}",
            result.sentence()
        );
        assert_eq!(result.exit_code(), code);
        assert!(result.execution().get("signal").is_none_or(Value::is_null), "{}", result.json);
    }
    for (signal, number) in
        [("SEGV", 11), ("KILL", 9), ("TERM", 15), ("ABRT", 6), ("PIPE", 13), ("HUP", 1)]
    {
        let result = client.call("kill", json!({"signal": signal}));
        assert!(result.is_error());
        assert!(
            result.sentence().starts_with(&format!("kill was killed by SIG{signal}")),
            "{}",
            result.sentence()
        );
        assert_eq!(result.exit_code(), 128 + number);
        assert_eq!(result.structured()["exit_code"], 128 + number);
        assert_eq!(result.execution()["signal"], format!("SIG{signal}"));
        assert_eq!(result.content()[0]["text"], "before\n");
    }
}

/// X4
#[test]
fn a_daemon_in_a_session_of_its_own_holds_nothing_up_and_ends_with_the_server() {
    let server = world().tool("daemon", sh("setsid sh -c 'touch up; sleep 1000; :' & while [ ! -e up ]; do sleep 0.02; done; echo started")).serve();
    assert_eq!(server.client().call("daemon", json!({})).stdout(), "started\n");
    let mut server = server;
    eventually("the daemon lives on", || !server.tool_processes().is_empty());
    assert!(server.terminate().success());
    eventually("and ends with the server", || server.tool_processes().is_empty());
}

/// X4
#[test]
fn a_daemon_that_keeps_the_pipes_does_not_keep_the_call() {
    let server = world()
        .tool("daemon", sh("(trap '' HUP TERM; while :; do sleep 1; done) & echo started; exit 0"))
        .serve();
    let mut client = server.client();
    for _ in 0..3 {
        let result = client.call("daemon", json!({}));
        assert!(!result.is_error());
        assert_eq!(result.stdout(), "started\n");
    }
    server.assert_no_tool_is_left();
}

/// X6
#[test]
fn no_bytes_of_a_tool_are_lost() {
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89";
    let mut wav = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    wav.extend([0x44, 0xac, 0, 0, 0x88, 0x58, 0x01, 0, 0x02, 0, 0x10, 0]);
    wav.extend(b"data\0\0\0\0\xff\xfe");
    let server = world()
        .tool("cat", sh("cat \"$2\""))
        .file("invalid", b"ab\xff\xfecd\n")
        .file("cut", &"é".as_bytes()[..1])
        .file("nul", b"a\0b\n")
        .file("ansi", b"\x1b[31mred\x1b[0m\r\n\x07")
        .file("image", png)
        .file("sound", &wav)
        .file("bom", "\u{feff}text\u{2028}".as_bytes())
        .serve();
    for mut client in server.clients() {
        let mut cat = |file: &str| client.call("cat", json!({"file": file}));
        for (file, text) in
            [("nul", "a\0b\n"), ("ansi", "\x1b[31mred\x1b[0m\r\n\x07"), ("bom", "\u{feff}text\u{2028}")]
        {
            let result = cat(file);
            assert_eq!(result.content()[0], json!({"type": "text", "text": text}), "{file}");
            assert_eq!(result.stdout(), text, "{file}");
        }
        for (file, bytes, shown) in [
            ("invalid", &b"ab\xff\xfecd\n"[..], "ab\u{fffd}\u{fffd}cd\n"),
            ("cut", &b"\xc3"[..], "\u{fffd}"),
        ] {
            let result = cat(file);
            let block = &result.content()[0];
            assert_eq!(block["type"], "resource", "{}", result.json);
            let uri = block["resource"]["uri"].as_str().unwrap();
            assert!(uri.starts_with("orla://call/") && uri.ends_with("/stdout"), "{uri}");
            assert_eq!(STANDARD.decode(block["resource"]["blob"].as_str().unwrap()).unwrap(), bytes);
            assert_eq!(result.stdout(), shown);
            assert!(!result.is_error());
        }
        for (file, bytes, kind, media) in
            [("image", &png[..], "image", "image/png"), ("sound", &wav[..], "audio", "audio/")]
        {
            let result = cat(file);
            let block = &result.content()[0];
            assert_eq!(block["type"], kind, "{}", result.json);
            assert!(block["mimeType"].as_str().unwrap().starts_with(media), "{block}");
            assert_eq!(STANDARD.decode(block["data"].as_str().unwrap()).unwrap(), bytes);
        }
    }
}

/// X6, on the other stream
#[test]
fn stderr_that_is_not_utf8_is_shown_with_replacement_characters() {
    let server = world().tool("t", sh(r"printf 'a\377b\n' >&2; exit 1")).serve();
    let result = server.client().call("t", json!({}));
    assert_eq!(result.structured()["stderr"], "a\u{fffd}b\n");
    assert_eq!(result.execution()["stderr"], "a\u{fffd}b\n");
}

/// X7
#[test]
fn a_tool_that_closes_its_input_at_once_succeeds() {
    let server =
        world().tool("deaf", sh("exec 0<&-; echo done")).config("max_body_bytes: 20000000\n").serve();
    let input = "x".repeat(10_000_000);
    for mut client in server.clients() {
        let result = client.call("deaf", json!({"stdin": input}));
        assert!(!result.is_error(), "{}", result.json);
        assert_eq!(result.stdout(), "done\n");
    }
}

/// X8
#[test]
fn a_tool_that_writes_and_never_reads_does_not_hang() {
    let server = world().tool("t", sh("head -c 1000000 /dev/zero | tr '\\0' 'y'")).serve();
    let result = server.client().call("t", json!({"stdin": "x".repeat(1_000_000)}));
    assert!(!result.is_error(), "{}", result.sentence());
    assert_eq!(result.stdout().len(), 1_000_000);
}

/// A tool that echoes more than a pipe holds while more is still coming in.
#[test]
fn input_and_output_flow_at_the_same_time() {
    let server = world().tool("cat", sh("cat")).config("max_output_bytes: 4000000\n").serve();
    let input = "0123456789".repeat(300_000);
    let result = server.client().call("cat", json!({"stdin": input}));
    assert!(result.stdout() == input, "3 MB come back unchanged");
}

/// X9
#[test]
fn strange_arguments_run_safely_or_are_refused_with_the_reason() {
    let server =
        world().tool("count", sh("echo $#; for a in \"$@\"; do echo ${#a}; done | head -n 3")).serve();
    let mut client = server.client();

    let large = client.call("count", json!({"q": "x".repeat(200_000)}));
    assert!(large.is_error(), "the system takes 128 KiB for one argument");
    assert!(
        large.sentence().starts_with("count: ") && large.sentence().contains("bytes"),
        "{}",
        large.sentence()
    );
    let many: Vec<_> = (0..5000).map(|n| n.to_string()).collect();
    assert!(client.call("count", json!({"args": many})).stdout().starts_with("5000\n"));
    let long = vec!["x".repeat(100_000); 39];
    assert_eq!(
        client.call("count", json!({"args": long})).sentence(),
        "count: invalid input: input: expected arguments that fit on a command line (larger text goes in `stdin`), got 3900000 bytes"
    );

    for arguments in [json!({"q": "a\0b"}), json!({"args": ["a\0b"]}), json!({"a\0b": 1})] {
        let result = client.call("count", arguments);
        assert!(result.is_error() && result.sentence().contains("NUL"), "{}", result.sentence());
    }
    for arguments in [
        json!({"": "x"}),
        json!({"a=b": "c"}),
        json!({"--": "x"}),
        json!({"-rf": "/"}),
        json!({";rm": "x"}),
        json!({"a b": "c d"}),
        json!({"$(touch pwned)": "`touch pwned`"}),
        json!({"args": "not a list"}),
        json!({"args": [1, null, {"a": 1}]}),
        json!({"stdin": 5}),
        json!({"args": [], "stdin": null}),
    ] {
        let result = client.try_call("count", arguments.clone());
        let result = result.unwrap_or_else(|err| panic!("{arguments}: {err}"));
        assert!(!result.is_error() || !result.sentence().is_empty(), "{arguments}: {}", result.json);
    }
    assert!(!server.path("pwned").exists());
    // NUL in the text for standard input is just a byte.
    let server = world().tool("cat", sh("cat")).serve();
    assert_eq!(server.client().call("cat", json!({"stdin": "a\0b"})).stdout(), "a\0b");
}

/// X10
#[test]
fn numbers_keep_their_text() {
    let server = world().tool("both", sh("cat; echo \"$@\"")).serve();
    let text = r#"{"big":9007199254740993,"huge":123456789012345678901234567890,"e":1e400,"z":-0.0,"t":1.10,"x":1E+2}"#;
    let flags = "--big 9007199254740993 --huge 123456789012345678901234567890 --e 1e400 --z -0.0 --t 1.10 --x 1E+2";
    for mut client in server.clients() {
        let result = client.call_text("both", text).unwrap();
        assert_eq!(result.stdout(), format!("{text}\n{flags}\n"));
    }
}

/// X10
#[test]
fn json_that_is_hard_to_read_is_passed_on_or_refused_and_never_fatal() {
    let mut server = world().tool("cat", sh("cat")).serve();
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let deeper = format!("{{\"a\":{}{}}}", "{\"a\":[".repeat(50_000), "]}".repeat(50_000));
    let cases = [
        ("deep nesting", deep.as_str(), None),
        ("deeper nesting", deeper.as_str(), None),
        ("lone surrogate", r#"{"a":"\ud800"}"#, Some("{\"a\":\"\\ud800\"}\n")),
        ("swapped surrogates", r#"{"a":"\udc00\ud800"}"#, Some("{\"a\":\"\\udc00\\ud800\"}\n")),
        ("escapes", r#"{"\u0061":"\u00e9\n"}"#, None),
        ("white space", "{ \"a\" :\t[ 1 ,\n2 ] }", Some("{\"a\":[1,2]}\n")),
    ];
    for (what, arguments, expected) in cases {
        for mut client in server.clients() {
            match client.call_text("cat", arguments) {
                Ok(result) if result.is_error() => {
                    assert!(!result.sentence().is_empty(), "{what}: {}", result.json);
                }
                Ok(result) => {
                    if let Some(expected) = expected {
                        assert_eq!(result.stdout(), expected, "{what}");
                    }
                }
                Err(err) => assert!(matches!(err.code, -32700 | -32600 | -32602), "{what}: {err}"),
            }
            assert!(server.is_alive(), "{what}");
        }
    }
    assert_eq!(server.client().call("cat", json!({"stdin": "still here"})).stdout(), "still here");
}

/// X10: two values under one key are not silently one.
#[test]
fn duplicate_keys_are_passed_on_or_refused() {
    let server = world().tool("cat", sh("cat")).serve();
    match server.client().call_text("cat", r#"{"a":1,"a":2}"#) {
        Ok(result) if result.is_error() => assert!(result.sentence().contains('a'), "{}", result.json),
        Ok(result) => assert_eq!(result.stdout(), "{\"a\":1,\"a\":2}\n"),
        Err(err) => assert!(matches!(err.code, -32700 | -32600 | -32602), "{err}"),
    }
}

/// X11
#[test]
fn output_that_breaks_its_schema_is_an_error_with_the_path_and_keeps_the_text() {
    let tool = r#"#!/bin/sh
# /// orla
# output_schema:
#   type: object
#   properties: {sum: {type: number}, list: {type: array, items: {type: string}}}
#   required: [sum]
# ///
cat
"#;
    let server = world().tool("t", tool).serve();
    for mut client in server.clients() {
        for (output, words) in [
            ("oops", ["JSON", ""]),
            ("", ["JSON", ""]),
            ("[1]", ["object", ""]),
            (r#"{"sum": "x"}"#, ["output.sum", "number"]),
            (r#"{"sum": 1, "list": ["a", 7]}"#, ["output.list", "string"]),
            (r#"{"list": []}"#, ["sum", ""]),
            (r#"{"sum": 1} {"sum": 2}"#, ["JSON", ""]),
            (r#"{"sum": 1"#, ["JSON", ""]),
        ] {
            let result = client.call("t", json!({"stdin": output}));
            assert!(result.is_error(), "{output}: {}", result.json);
            let sentence = result.sentence();
            assert!(
                sentence.starts_with("t: ") && words.iter().all(|word| sentence.contains(word)),
                "{output}: {sentence}"
            );
            assert_eq!(result.content()[0]["text"], output, "the raw text is kept");
            assert!(result.structured().is_null(), "no structuredContent: {}", result.json);
            assert_eq!(result.exit_code(), 0);
        }
    }
}

#[test]
fn a_failing_tool_with_a_declared_schema_has_no_structured_content() {
    let tool = "#!/bin/sh\n# /// orla\n# output_schema: {type: object}\n# ///\necho '{}'; exit 4\n";
    let server = world().tool("t", tool).serve();
    let result = server.client().call("t", json!({}));
    assert!(result.is_error() && result.structured().is_null(), "{}", result.json);
    assert_eq!(result.content()[0]["text"], "{}\n");
    assert!(result.sentence().starts_with("t exited with code 4"), "{}", result.sentence());
}

#[test]
fn arguments_that_break_the_declared_schema_are_explained_with_every_path() {
    let tool = r#"#!/bin/sh
# /// orla
# input_schema:
#   type: object
#   properties: {city: {type: string}, days: {type: integer, minimum: 1}}
#   required: [city]
#   additionalProperties: false
# ///
touch ran
"#;
    let server = world().tool("t", tool).serve();
    for mut client in server.clients() {
        let result = client.call("t", json!({"city": 7, "days": 0}));
        assert!(result.is_error());
        let text = result.text();
        assert!(text.contains("input.city") && text.contains("string") && text.contains('7'), "{text}");
        assert!(text.contains("input.days"), "every violation: {text}");
        for (arguments, word) in [(json!({}), "city"), (json!({"city": "x", "extra": 1}), "extra")] {
            let result = client.call("t", arguments);
            assert!(result.is_error() && result.text().contains(word), "{}", result.json);
        }
    }
    assert!(!server.path("ran").exists(), "the tool was never started");
    let declared = server.client().call("t", json!({"city": "x", "days": 2}));
    assert!(!declared.is_error(), "{}", declared.json);
}

/// Nothing of one world is seen by another: what the leak checks rest on.
#[test]
fn a_process_is_found_by_its_mark() {
    let server = world().tool("t", sh("exec sleep 100")).env("E2E_OTHER_MARK", "here").serve();
    let mut client = server.client();
    let pending = client.begin_call("t", json!({}));
    eventually("the tool is seen", || server.tool_processes().len() == 1);
    assert!(!processes_with("E2E_OTHER_MARK=here").is_empty());
    drop(pending);
    server.assert_no_tool_is_left();
}
