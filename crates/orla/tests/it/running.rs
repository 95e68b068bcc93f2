//! What a call gives to a tool, and what comes back.

use std::time::Duration;

use orla_e2e::eventually;
use serde_json::{Value, json};

use crate::{sh, world};

/// Prints its arguments, one in brackets a line.
const ARGUMENTS: &str = "#!/bin/sh\nfor argument in \"$@\"; do printf '[%s]\\n' \"$argument\"; done\n";
const CAT: &str = "#!/bin/sh\ncat\n";

#[test]
fn output_errors_and_exit_code_come_back() {
    let server = world()
        .tool("t.sh", sh("echo out; echo err >&2; exit 3"))
        .tool("ok", sh("echo fine; echo hm >&2"))
        .serve();
    for mut client in server.clients() {
        let failed = client.call("t", json!({}));
        assert!(failed.is_error());
        assert_eq!(*failed.structured(), json!({"stdout": "out\n", "stderr": "err\n", "exit_code": 3}));
        let execution = failed.execution();
        assert_eq!(execution["exit_code"], 3);
        assert_eq!(execution["stderr"], "err\n");
        assert_eq!(execution["timed_out"], false);
        assert!(execution["duration_ms"].as_f64().is_some_and(|ms| ms >= 0.0), "{execution}");
        assert!(
            execution.get("signal").is_none() && execution.get("truncated").is_none(),
            "{execution}"
        );
        assert_eq!(failed.content()[0], json!({"type": "text", "text": "out\n"}));
        assert_eq!(failed.sentence(), "t exited with code 3: err");

        let ok = client.call("ok", json!({}));
        assert!(!ok.is_error());
        assert_eq!(*ok.structured(), json!({"stdout": "fine\n", "stderr": "hm\n", "exit_code": 0}));
        assert_eq!(ok.content().len(), 1);
    }
}

#[test]
fn without_a_declared_schema_the_advertised_one_is_that_of_the_streams() {
    let server = world().tool("t", sh("echo")).serve();
    let tool = server.client().tool("t");
    let properties = tool["outputSchema"]["properties"].as_object().unwrap();
    assert_eq!(properties.keys().collect::<Vec<_>>(), ["stdout", "stderr", "exit_code"]);
    let input = &tool["inputSchema"];
    assert_eq!(input["type"], "object");
    let documented: Vec<_> = input["properties"].as_object().unwrap().keys().collect();
    assert_eq!(documented, ["args", "stdin"]);
    assert_eq!(input["properties"]["args"]["items"]["type"], "string");
    assert_ne!(input["additionalProperties"], false);
}

#[test]
fn arguments_become_flags_in_the_order_written() {
    let server = world().tool("argv", ARGUMENTS).serve();
    let arguments = json!({
        "zeta": "1", "alpha_beta": 2, "flag": true, "off": false, "none": null, "many": ["a", "b"],
        "obj": {"k": [1], "a": null}, "x": 1.5, "args": ["-l", "--", "a b"], "empty": "", "nothing": [],
    });
    let expected = [
        "--zeta",
        "1",
        "--alpha-beta",
        "2",
        "--flag",
        "--many",
        "a",
        "--many",
        "b",
        "--obj",
        r#"{"k":[1],"a":null}"#,
        "--x",
        "1.5",
        "--empty",
        "",
        "-l",
        "--",
        "a b",
    ];
    let expected: String = expected.iter().map(|argument| format!("[{argument}]\n")).collect();
    for mut client in server.clients() {
        assert_eq!(client.call("argv", arguments.clone()).stdout(), expected);
    }
}

#[test]
fn no_shell_ever_sees_an_argument() {
    let server = world().tool("argv", ARGUMENTS).serve();
    let hostile = "$(touch pwned); `touch pwned` | x && \"y\" 'z' \\ * ~ é 漢 \n end";
    let result = server.client().call("argv", json!({"q": hostile}));
    assert_eq!(result.stdout(), format!("[--q]\n[{hostile}]\n"));
    assert!(!server.path("pwned").exists());
}

#[test]
fn standard_input_is_the_text_in_stdin_or_the_arguments_as_one_line() {
    let server = world().tool("cat", CAT).tool("argv", ARGUMENTS).serve();
    let mut client = server.client();
    assert_eq!(client.call("cat", json!({"stdin": "héllo\nworld"})).stdout(), "héllo\nworld");
    assert_eq!(client.call("cat", json!({"stdin": ""})).stdout(), "");
    assert_eq!(
        client.call("cat", json!({"b": 1, "a": [true, null]})).stdout(),
        "{\"b\":1,\"a\":[true,null]}\n"
    );
    assert_eq!(client.call("cat", json!({})).stdout(), "{}\n");
    // `stdin` is not also a flag.
    assert_eq!(client.call("argv", json!({"stdin": "x", "a": 1})).stdout(), "[--a]\n[1]\n");
    let without = client.request("tools/call", json!({"name": "cat"})).unwrap();
    assert_eq!(without["structuredContent"]["stdout"], "{}\n", "arguments may be left out");
}

#[test]
fn the_environment_names_the_call_and_the_directory_is_the_servers() {
    let body =
        r#"printf '%s|%s|%s|%s|%s\n' "$ORLA_TOOL" "$ORLA_CALL_ID" "$ORLA_INSTANCE" "$OWN" "$(pwd -P)""#;
    let server = world()
        .tool("env.sh", sh(body))
        .env("OWN", "from the server")
        .config("pass_env: [OWN]\n")
        .serve();
    let mut client = server.client();
    let call = |client: &mut orla_e2e::Client| {
        let result = client.call("env", json!({}));
        result.stdout().trim().split('|').map(str::to_owned).collect::<Vec<_>>()
    };
    let (first, second) = (call(&mut client), call(&mut client));
    assert_eq!(first[0], "env");
    assert!(
        !first[1].is_empty() && first[1] != second[1],
        "every call has an id of its own: {first:?} {second:?}"
    );
    assert!(!first[2].is_empty() && first[2] == second[2], "one instance: {first:?} {second:?}");
    assert_eq!(first[3], "from the server");
    assert_eq!(first[4], server.dir().canonicalize().unwrap().to_str().unwrap());
}

#[test]
fn a_trace_parent_reaches_the_tool() {
    let server = world().tool("t", sh("echo \"$TRACEPARENT\"")).serve();
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let params = json!({"name": "t", "arguments": {}, "_meta": {"traceparent": parent}});
    let result = server.client().request("tools/call", params).unwrap();
    let seen = result["structuredContent"]["stdout"].as_str().unwrap();
    assert!(seen.trim().is_empty() || seen.contains("0af7651916cd43dd8448eb211c80319c"), "{seen}");
}

#[test]
fn output_with_a_declared_schema_is_parsed_and_validated() {
    let tool = r#"#!/bin/sh
# /// orla
# output_schema:
#   type: object
#   properties: {sum: {type: number}}
#   required: [sum]
# ///
cat
"#;
    let server = world().tool("echo", tool).serve();
    let mut client = server.client();
    let good = client.call("echo", json!({"stdin": " {\"sum\": 1.10, \"more\": [1, 2]}\n"}));
    assert!(!good.is_error(), "{}", good.json);
    assert_eq!(*good.structured(), json!({"sum": 1.1, "more": [1, 2]}));
    assert_eq!(
        good.content()[0]["text"],
        " {\"sum\": 1.10, \"more\": [1, 2]}\n",
        "the text as it was written"
    );
    assert!(good.json.to_string().contains("1.1"), "{}", good.json);
}

#[test]
fn output_in_the_form_of_a_tool_result_goes_out_as_it_is() {
    let tool =
        |json: &str| format!("#!/bin/sh\n# /// orla\n# output: mcp\n# ///\ncat <<'END'\n{json}\nEND\n");
    let image = r#"{"content":[{"type":"image","data":"aGk=","mimeType":"image/png"},{"type":"text","text":"hi","annotations":{"priority":0.5}}]}"#;
    let failure = r#"{"content":[{"type":"text","text":"no such city"}],"isError":true}"#;
    let structured = r#"{"content":[],"structuredContent":{"n":[1,{"a":null}]}}"#;
    let server = world()
        .tool("image", tool(image))
        .tool("failure", tool(failure))
        .tool("structured", tool(structured))
        .tool("garbage", tool("nonsense"))
        .tool("unlike", tool("[1]"))
        .tool("members", tool(r#"[[{"type":"text","text":"x"}],{"a":1},false,{}]"#))
        .tool("number", tool("7"))
        .tool("block", tool(r#"{"content":[["text"]]}"#))
        .serve();
    for mut client in server.clients() {
        let shown = client.call("image", json!({}));
        let expected: Value = serde_json::from_str(image).unwrap();
        assert_eq!(shown.json["content"], expected["content"]);
        assert!(!shown.is_error());
        let failed = client.call("failure", json!({}));
        assert!(failed.is_error() && failed.text().contains("no such city"), "{}", failed.json);
        let made = client.call("structured", json!({}));
        assert_eq!(*made.structured(), json!({"n": [1, {"a": null}]}), "{}", made.json);
        let object = "JSON that is not an object";
        for name in ["unlike", "members", "number"] {
            let result = client.call(name, json!({}));
            assert!(result.is_error() && result.sentence().ends_with(object), "{}", result.json);
        }
        let result = client.call("block", json!({}));
        assert!(result.sentence().contains("expected an array of content blocks"), "{}", result.json);
        for (name, written) in [("garbage", "nonsense"), ("unlike", "[1]")] {
            let result = client.call(name, json!({}));
            assert!(result.is_error() && result.text().contains(written), "{}", result.json);
        }
    }
}

#[test]
fn progress_and_log_lines_on_stderr_become_notifications_and_nothing_else_does() {
    let body = r#"
for i in 1 2 3; do echo "::progress $i/3 step $i" >&2; done
echo "::progress 0.5 half" >&2
echo "::log warning careful now" >&2
echo "::log shout what" >&2
echo "::progress much" >&2
echo "plain" >&2
echo done"#;
    let server = world().tool("p", sh(body)).serve();
    let mut client = server.client();
    let meta = json!({"progressToken": "token", "io.modelcontextprotocol/logLevel": "debug"});
    let pending = client.begin("tools/call", json!({"name": "p", "arguments": {}, "_meta": meta}));
    let result = client.finish_call(pending).unwrap();
    let progress = result.notified("notifications/progress");
    let expected = [(1.0, 3.0, "step 1"), (2.0, 3.0, "step 2"), (3.0, 3.0, "step 3")];
    for (note, (done, total, message)) in progress.iter().zip(expected) {
        assert_eq!(note["progressToken"], "token");
        assert_eq!(note["progress"].as_f64(), Some(done), "{note}");
        assert_eq!(note["total"].as_f64(), Some(total), "{note}");
        assert_eq!(note["message"], message, "{note}");
    }
    assert!(progress.len() >= 3, "{progress:?}");
    let logs = result.notified("notifications/message");
    let said: Vec<_> = logs.iter().map(|log| (log["level"].as_str(), log["data"].as_str())).collect();
    // Half is less than three of three.
    assert_eq!(said, [(Some("info"), Some("half")), (Some("warning"), Some("careful now"))]);
    assert_eq!(result.structured()["stderr"], "::log shout what\n::progress much\nplain\n");
    assert_eq!(result.stdout(), "done\n");
}

#[test]
fn progress_in_both_forms_is_on_the_scale_of_the_first() {
    type Case<'a> = (&'a str, &'a [(f64, f64)], &'a [&'a str]);
    let cases: [Case<'_>; 4] = [
        ("3/10 a; 0.5 b; 0.9 c", &[(3.0, 10.0), (5.0, 10.0), (9.0, 10.0)], &[]),
        ("0.5 a; 3/4 b; 1 c", &[(0.5, 1.0), (0.75, 1.0), (1.0, 1.0)], &[]),
        ("1/3 a; 1/3 b; 2/3 c", &[(1.0, 3.0), (2.0, 3.0)], &["b"]),
        ("1/10 a; 2/20 b", &[(1.0, 10.0), (2.0, 20.0)], &[]),
    ];
    let mut world = world();
    for (at, (lines, ..)) in cases.iter().enumerate() {
        let lines = lines.split("; ").map(|line| format!("echo '::progress {line}' >&2\n"));
        world = world.tool(format!("p{at}"), sh(&lines.collect::<String>()));
    }
    let server = world.serve();
    for (at, (lines, expected, logged)) in cases.iter().enumerate() {
        let meta = json!({"progressToken": "token", "io.modelcontextprotocol/logLevel": "info"});
        let params = json!({"name": format!("p{at}"), "arguments": {}, "_meta": meta});
        let mut client = server.client();
        let pending = client.begin("tools/call", params);
        let result = client.finish_call(pending).unwrap();
        let number = |note: &Value, key: &str| note[key].as_f64().unwrap();
        let progress = result.notified("notifications/progress");
        let progress: Vec<_> =
            progress.iter().map(|note| (number(note, "progress"), number(note, "total"))).collect();
        assert_eq!(progress, *expected, "{lines}");
        let logs = result.notified("notifications/message");
        let logs: Vec<_> = logs.iter().map(|log| log["data"].as_str().unwrap()).collect();
        assert_eq!(logs, *logged, "{lines}");
    }
}

#[test]
fn unrequested_progress_is_not_sent_and_its_lines_are_no_output() {
    let server = world()
        .tool("p", sh("echo '::progress 1/2 x' >&2; echo '::log info y' >&2; echo z >&2"))
        .serve();
    let result = server.client().call("p", json!({}));
    assert_eq!(result.notifications, Vec::<Value>::new());
    assert_eq!(result.structured()["stderr"], "z\n");
}

#[test]
fn progress_arrives_while_the_tool_runs() {
    let body = "echo '::progress 1/2 first' >&2\nwhile [ ! -e go ]; do sleep 0.02; done\necho ok";
    let server = world().tool("p", sh(body)).serve();
    for mut client in server.clients() {
        let meta = json!({"progressToken": 7});
        let mut pending =
            client.begin("tools/call", json!({"name": "p", "arguments": {}, "_meta": meta}));
        let first = pending.next_message().expect("the progress comes before the end");
        assert_eq!(first["method"], "notifications/progress");
        assert_eq!(first["params"]["progressToken"], 7);
        server.write("go", "", 0o644);
        let result = client.finish_call(pending).unwrap();
        assert_eq!(result.stdout(), "ok\n");
        server.remove("go");
    }
}

/// Within 50 ms of being written. Each message says when that was; on a busy machine some are late.
#[test]
fn progress_is_not_held_back() {
    let body = "i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo \"::progress $i/200 $(date +%s%N)\" >&2; sleep 0.1; done";
    let server = world().tool("p", sh(body)).serve();
    let mut client = server.client();
    let params = json!({"name": "p", "arguments": {}, "_meta": {"progressToken": 1}});
    let mut pending = client.begin("tools/call", params);
    let mut delays = Vec::new();
    // On a busy machine, one of many is not delayed by others.
    while delays.len() < 100 && delays.iter().all(|delay| *delay >= Duration::from_millis(50)) {
        let note = pending.next_message().expect("a notification");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let written = note["params"]["message"].as_str().unwrap().parse().unwrap();
        delays.push(now.saturating_sub(Duration::from_nanos(written)));
    }
    assert!(delays.iter().min().unwrap() < &Duration::from_millis(50), "{delays:?}");
}

#[test]
fn a_session_gets_log_lines_at_the_level_that_it_set() {
    let server = world()
        .tool("p", sh("echo '::log info quiet' >&2; echo '::log error loud' >&2; echo ok"))
        .serve();
    let mut client = server.session();
    client.request("logging/setLevel", json!({"level": "error"})).unwrap();
    let mut stream = client.notification_stream(server.address());
    let result = client.call("p", json!({}));
    let mut seen = result.notifications;
    // They may come on the call's own stream or on the session's.
    if seen.is_empty() {
        let event = stream.next_event().unwrap().expect("a notification");
        seen.push(serde_json::from_str(&event).unwrap());
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0]["method"], "notifications/message");
    assert_eq!(seen[0]["params"]["level"], "error");
    let err = client.request("logging/setLevel", json!({"level": "shout"})).unwrap_err();
    assert_eq!(err.code, -32602, "{err}");
}

#[test]
fn a_timeout_ends_the_call_and_keeps_what_was_written() {
    let server =
        world().tool("slow", sh("echo before; echo why >&2; sleep 1000")).config("timeout: 3\n").serve();
    for mut client in server.clients() {
        let result = client.call("slow", json!({}));
        assert!(result.is_error());
        assert_eq!(result.sentence(), "slow timed out after 3 s");
        assert_eq!(result.content()[0]["text"], "before\n");
        assert_eq!(result.execution()["timed_out"], true);
        assert_eq!(result.execution()["signal"], "SIGTERM");
        assert_eq!(result.execution()["stderr"], "why\n");
        assert_eq!(result.structured()["stdout"], "before\n");
        assert!(result.structured()["exit_code"].is_i64(), "always an integer: {}", result.json);
    }
    server.assert_no_tool_is_left();
}

#[test]
fn a_timeout_may_be_set_for_one_tool_in_its_file_or_in_the_configuration() {
    let slow = |head: &str| format!("#!/bin/sh\n{head}sleep 100\n");
    let server = world()
        .tool("own", slow("# /// orla\n# timeout: 0.3\n# ///\n"))
        .tool("configured", slow("# /// orla\n# timeout: 50\n# ///\n"))
        .config("timeout: 60\ntools:\n  configured: {timeout: 0.2}\n")
        .serve();
    let mut client = server.client();
    assert_eq!(client.call("own", json!({})).sentence(), "own timed out after 0.3 s");
    assert_eq!(client.call("configured", json!({})).sentence(), "configured timed out after 0.2 s");
}

#[test]
fn the_leaders_end_is_the_calls_end_and_its_group_ends_with_it() {
    let server = world().tool("t", sh("sleep 1000 & echo started")).serve();
    assert_eq!(server.client().call("t", json!({})).stdout(), "started\n");
    server.assert_no_tool_is_left();
}

#[test]
fn overrides_rename_describe_and_disable_tools() {
    let config = "tools:\n  a: {rename: alpha, description: The first}\n  b: {enabled: false}\ndeny: ['secret*']\n";
    let server = world()
        .tool("a", sh("echo a"))
        .tool("b", sh("echo b"))
        .tool("c", sh("echo c"))
        .tool("secret_one", sh("echo secret"))
        .config(config)
        .serve();
    let mut client = server.client();
    assert_eq!(client.tool_names(), ["alpha", "c"]);
    assert_eq!(client.tool("alpha")["description"], "The first");
    assert_eq!(client.call("alpha", json!({})).stdout(), "a\n");
    for hidden in ["b", "secret_one"] {
        let err = client.try_call(hidden, json!({})).unwrap_err();
        assert_eq!(err.code, -32602, "enforced when calling too: {err}");
    }
}

#[test]
fn a_tool_cannot_be_renamed_to_another_ones_name() {
    let world =
        world().tool("a", sh("echo a")).tool("b", sh("echo b")).config("tools:\n  a: {rename: b}\n");
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(checked.all().contains("orla.yaml:2:15"), "{checked:?}");
    let server = world.serve();
    let mut client = server.client();
    assert_eq!(client.tool_names(), ["a", "b"]);
    assert_eq!(client.call("b", json!({})).stdout(), "b\n");
}

#[test]
fn only_what_is_allowed_is_listed_and_called() {
    let server = world()
        .tool("ls", sh("echo a"))
        .tool("ls_all", sh("echo b"))
        .tool("rm", sh("touch removed"))
        .config("allow: ['ls']\n")
        .serve();
    let mut client = server.client();
    assert_eq!(client.tool_names(), ["ls"]);
    for hidden in ["rm", "ls_all"] {
        assert_eq!(client.try_call(hidden, json!({})).unwrap_err().code, -32602);
    }
    assert!(!server.path("removed").exists());
}

#[test]
fn many_calls_leave_no_process_no_zombie_and_no_descriptor() {
    let server =
        world().tool("quick", sh("echo hi; echo oops >&2")).tool("bad", "#!/nowhere/at/all\n").serve();
    let mut client = server.client();
    let round = |client: &mut orla_e2e::Client| {
        for _ in 0..40 {
            client.call("quick", json!({}));
            client.call("bad", json!({}));
        }
    };
    round(&mut client);
    server.assert_no_tool_is_left();
    let before = server.descriptors();
    round(&mut client);
    server.assert_no_tool_is_left();
    if let Some(before) = before {
        eventually("no descriptor is left open", || {
            server.descriptors().is_some_and(|now| now <= before)
        });
    }
}
