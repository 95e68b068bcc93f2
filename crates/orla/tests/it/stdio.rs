//! MCP over standard input and output (row P8 and the contract of that transport).

use orla_e2e::{SESSION_BASED, SESSIONLESS, eventually};
use rustix::process::Signal;
use serde_json::json;

use crate::{sh, world};

#[test]
fn a_session_is_served_and_ends_with_its_input() {
    let mut server = world().tool("hi.sh", sh("echo hi")).serve_stdio().initialized();
    assert_eq!(server.request("ping", json!({})).unwrap(), json!({}));
    let listed = server.request("tools/list", json!({})).unwrap();
    assert_eq!(listed["tools"][0]["name"], "hi");
    let result = server.call("hi", json!({}));
    assert_eq!(result.stdout(), "hi\n");
    assert!(!result.is_error());
    server.close_input();
    assert_eq!(server.wait().code(), Some(0));
    assert!(server.next_message().is_none(), "nothing was written without a request");
}

#[test]
fn the_sessionless_revision_is_served_as_well() {
    let mut server = world().tool("hi.sh", sh("echo hi")).serve_stdio();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": SESSIONLESS,
        "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let discovered = server.request("server/discover", json!({"_meta": meta})).unwrap();
    assert!(
        discovered["supportedVersions"].as_array().unwrap().contains(&json!(SESSIONLESS)),
        "{discovered}"
    );
    let params = json!({"name": "hi", "arguments": {}, "_meta": meta});
    let result = server.request("tools/call", params).unwrap();
    assert_eq!(result["structuredContent"]["stdout"], "hi\n");
    assert_eq!(result["resultType"], "complete");
}

#[test]
fn standard_output_carries_nothing_but_the_protocol_and_the_log_is_on_standard_error() {
    let world =
        world().tool("t", sh("echo out; echo err >&2")).config("log_level: debug\ntransport: stdio\n");
    let mut server = world.serve_stdio().initialized();
    for n in 0..5 {
        assert_eq!(server.call("t", json!({"n": n})).stdout(), "out\n");
    }
    eventually("the calls are logged", || server.log().contains("call finished"));
}

#[test]
fn calls_run_side_by_side_and_answers_find_their_requests() {
    let mut server = world()
        .tool("wait", sh("while [ ! -e go ]; do sleep 0.02; done; cat"))
        .tool("quick", sh("cat"))
        .serve_stdio()
        .initialized();
    let slow = server.begin("tools/call", json!({"name": "wait", "arguments": {"stdin": "slow"}}));
    assert_eq!(server.call("quick", json!({"stdin": "quick"})).stdout(), "quick");
    server.write("go", "", 0o644);
    let result = server.answer(slow, &mut Vec::new()).unwrap();
    assert_eq!(result["structuredContent"]["stdout"], "slow");
}

#[test]
fn progress_comes_while_the_tool_runs() {
    let body = "echo '::progress 1/2 half' >&2; while [ ! -e go ]; do sleep 0.02; done; echo ok";
    let mut server = world().tool("p", sh(body)).serve_stdio().initialized();
    let id =
        server.begin("tools/call", json!({"name": "p", "arguments": {}, "_meta": {"progressToken": 1}}));
    let note = server.next_message().unwrap();
    assert_eq!(note["method"], "notifications/progress", "{note}");
    assert_eq!(note["params"]["message"], "half");
    server.write("go", "", 0o644);
    assert_eq!(server.answer(id, &mut Vec::new()).unwrap()["structuredContent"]["stdout"], "ok\n");
}

/// X13 on this transport
#[test]
fn a_cancelled_call_ends_its_processes_and_the_connection_stays_open() {
    let mut server = world()
        .tool("t", sh("sleep 100 & sleep 100"))
        .tool("quick", sh("echo ok"))
        .serve_stdio()
        .initialized();
    let id = server.begin("tools/call", json!({"name": "t", "arguments": {}}));
    eventually("it runs", || server.tool_processes().len() >= 2);
    server.notify("notifications/cancelled", json!({"requestId": id}));
    eventually("it has ended", || server.tool_processes().is_empty());
    assert_eq!(server.call("quick", json!({})).stdout(), "ok\n");
}

/// X13 and P8: the end of the input is the end of the client.
#[test]
fn the_end_of_the_input_ends_what_runs() {
    let mut server =
        world().tool("t", sh("trap '' TERM; sleep 100; sleep 100")).serve_stdio().initialized();
    server.begin("tools/call", json!({"name": "t", "arguments": {}}));
    eventually("it runs", || server.tool_processes().len() >= 2);
    server.close_input();
    assert_eq!(server.wait().code(), Some(0));
    eventually("nothing is left", || server.processes().is_empty());
}

/// P8
#[test]
fn garbage_lines_get_an_error_and_the_connection_stays_open() {
    let mut server = world().tool("t", sh("echo ok")).serve_stdio().initialized();
    for garbage in [
        &b"garbage\n"[..],
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\n",
        b"\xff\xfe\n",
        b"[]\n",
        b"{}\n",
        b"null\n",
        b"{\"jsonrpc\":\"2.0\",\"id\":900,\"method\":\"no/such/method\"}\n",
    ] {
        server.raw(garbage).unwrap();
        let message = server.next_message().unwrap();
        let code = message["error"]["code"].as_i64();
        assert!(
            matches!(code, Some(-32700 | -32600 | -32601)),
            "{}: {message}",
            String::from_utf8_lossy(garbage)
        );
    }
    // Empty lines are not messages.
    server.raw(b"\n\r\n  \n").unwrap();
    server.raw(b"{\"jsonrpc\":\"2.0\",\"id\":901,\"method\":\"ping\"}\r\n").unwrap();
    assert_eq!(server.next_message().unwrap()["id"], 901);
    assert_eq!(server.call("t", json!({})).stdout(), "ok\n");
}

/// P8
#[test]
fn half_a_line_and_the_end_is_a_clean_end() {
    let mut server = world().serve_stdio().initialized();
    server.raw(b"{\"jsonrpc\":\"2.0\",\"id\":5,\"meth").unwrap();
    server.close_input();
    assert_eq!(server.wait().code(), Some(0));
}

/// P8
#[test]
fn a_line_of_a_hundred_megabytes_is_refused_in_bounded_memory() {
    let mut server = world().tool("t", sh("echo ok")).serve_stdio().initialized();
    let piece = vec![b'x'; 1 << 20];
    let mut open = true;
    for _ in 0..100 {
        open = open && server.raw(&piece).is_ok();
    }
    let peak = server.peak_resident_kib();
    assert!(peak < 128 * 1024, "{peak} KiB at the peak");
    if open && server.raw(b"\n").is_ok() {
        let message = server.next_message().unwrap();
        assert!(message["error"]["code"].is_i64(), "{message}");
        assert_eq!(server.call("t", json!({})).stdout(), "ok\n");
    } else {
        server.wait();
    }
}

/// P8
#[test]
fn a_closed_output_is_the_end_and_children_end_with_it() {
    let init = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": SESSION_BASED, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}});
    // `head` reads one line and goes.
    let world = world().tool("t", sh("echo $$ > running; sleep 100")).through(&[
        "sh",
        "-c",
        "\"$@\" | head -n 1",
        "--",
    ]);
    let mut server = world.serve_stdio();
    server.send(init);
    assert_eq!(server.next_message().unwrap()["id"], 1);
    server.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    server.send(json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "t", "arguments": {}}}));
    eventually("the tool runs", || !server.read("running").trim().is_empty());
    eventually("writing to it ends the server", || {
        let _ = server.raw(b"{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"ping\"}\n");
        server.tool_processes().is_empty()
    });
    server.wait();
    eventually("nothing is left", || server.processes().is_empty());
}

#[test]
fn a_client_that_reads_late_gets_every_answer_and_holds_no_tool_up() {
    let late = "\"$@\" | (while [ ! -e read ]; do sleep 0.05; done; exec cat)";
    let mut server = world()
        .tool("t", sh("head -c 500000 /dev/zero | tr '\\0' 'x'; touch ended_$2"))
        .through(&["sh", "-c", late, "--"])
        .serve_stdio();
    server.begin(
        "initialize",
        json!({"protocolVersion": SESSION_BASED, "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"}}),
    );
    server.notify("notifications/initialized", json!({}));
    for n in 0..20 {
        server.begin("tools/call", json!({"name": "t", "arguments": {"n": n}}));
    }
    let ended = || (0..20).all(|n| server.path(format!("ended_{n}")).exists());
    eventually("all have run, far beyond what the pipe holds", ended);
    server.write("read", "", 0o644);
    let mut answered = std::collections::BTreeSet::new();
    while answered.len() < 21 {
        let message = server.next_message().unwrap();
        assert!(
            message["result"].is_object() && message["result"]["isError"] != true,
            "{:.300}",
            message.to_string()
        );
        answered.insert(message["id"].as_u64().unwrap());
    }
}

#[test]
fn a_hangup_reloads_and_tells_the_client() {
    let mut server = world().tool("a", sh("echo a")).serve_stdio().initialized();
    server.request("tools/list", json!({})).unwrap();
    server.write("tools/b", sh("echo b"), 0o755);
    server.signal(Signal::HUP);
    let note = server.next_message().unwrap();
    assert_eq!(note["method"], "notifications/tools/list_changed", "{note}");
    let listed = server.request("tools/list", json!({})).unwrap();
    assert_eq!(listed["tools"].as_array().unwrap().len(), 2);
}

#[test]
fn a_client_calls_what_it_listed_until_it_lists_again() {
    let mut server = world().tool("a", sh("echo a1")).serve_stdio().initialized();
    server.request("tools/list", json!({})).unwrap();
    server.remove("tools/a");
    server.write("tools/b", sh("echo b"), 0o755);
    server.signal(Signal::HUP);
    assert_eq!(server.next_message().unwrap()["method"], "notifications/tools/list_changed");
    server.write("tools/a", sh("echo a2"), 0o755);
    assert_eq!(server.call("a", json!({})).stdout(), "a2\n");
    let listed = server.request("tools/list", json!({})).unwrap();
    assert_eq!(listed["tools"][0]["name"], "b");
    let params = json!({"name": "a", "arguments": {}});
    assert_eq!(server.request("tools/call", params).unwrap_err().code, -32602);
}

#[test]
fn sigterm_finishes_what_runs_and_exits_0() {
    let mut server = world()
        .tool("t", sh("touch started; while [ ! -e go ]; do sleep 0.02; done; echo done"))
        .serve_stdio()
        .initialized();
    let id = server.begin("tools/call", json!({"name": "t", "arguments": {}}));
    eventually("it runs", || server.path("started").exists());
    server.signal(Signal::TERM);
    server.write("go", "", 0o644);
    assert_eq!(server.answer(id, &mut Vec::new()).unwrap()["structuredContent"]["stdout"], "done\n");
    assert_eq!(server.wait().code(), Some(0));
}

/// X14 on this transport
#[test]
fn tools_die_with_a_server_that_is_killed() {
    let mut server = world()
        .tool("t", sh("trap '' TERM HUP; sleep 300 & sleep 300; sleep 300"))
        .serve_stdio()
        .initialized();
    for _ in 0..5 {
        server.begin("tools/call", json!({"name": "t", "arguments": {}}));
    }
    eventually("all run", || server.tool_processes().len() >= 15);
    server.signal(Signal::KILL);
    server.wait();
    eventually("nothing is left", || server.processes().is_empty());
}
