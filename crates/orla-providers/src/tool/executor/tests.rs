//! Tools through the marketplace's call path, as a server calls them.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use orla_marketplace::{ANNOTATIONS, Call, CapabilityMarketplace, JsonText, Notice, NoticeSink, TITLE};
use orla_process::Limits;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::Loader;
use super::*;

use orla_marketplace::testing::PATIENCE;

/// A directory of tools, served.
struct Tools {
    directory: tempfile::TempDir,
    market: CapabilityMarketplace,
}

impl Tools {
    fn of(files: &[(&str, &str)]) -> Self {
        Self::limited(files, Limits::default())
    }

    fn limited(files: &[(&str, &str)], limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            write(&directory.path().join(name), content);
        }
        let market = CapabilityMarketplace::new(orla_marketplace::Limits::default());
        let executor = ToolExecutor::new(Instance::unguarded(), PoolLimits::default());
        market.register_executor(Arc::new(executor)).unwrap();
        let loaded = Loader::default()
            .load(
                directory.path(),
                limits,
                &HashMap::new(),
                Instance::unguarded().sandboxes(),
                &|_, _, asked| asked,
            )
            .unwrap();
        for registration in loaded.registrations {
            market.register_capability(registration).unwrap();
        }
        Self { directory, market }
    }

    async fn call(&self, name: &str, arguments: Value) -> RuntimeResult<Outcome> {
        self.market.call(call(name, &arguments)).await
    }

    async fn stdout(&self, name: &str, arguments: Value) -> String {
        let outcome = self.call(name, arguments).await.unwrap();
        structured(&outcome)["stdout"].as_str().unwrap().to_owned()
    }

    async fn failure(&self, name: &str, arguments: Value) -> String {
        self.call(name, arguments).await.unwrap_err().to_string()
    }
}

fn write(path: &Path, content: &str) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn call(name: &str, arguments: &Value) -> Call {
    Call::to(name).with(Payload::from_json(JsonText::of(arguments).unwrap()))
}

fn structured(outcome: &Outcome) -> Value {
    serde_json::from_str(outcome.structured.as_ref().unwrap().json().unwrap().as_str()).unwrap()
}

fn execution(outcome: &Outcome) -> Value {
    let meta: Value = serde_json::from_str(outcome.meta.as_ref().unwrap().as_str()).unwrap();
    meta["orla/execution"].clone()
}

#[tokio::test]
async fn a_call_gives_the_three_streams_and_how_it_went() {
    let tools = Tools::of(&[("t.sh", "#!/bin/sh\necho out; echo err >&2; exit 3\n")]);
    let error = tools.call("t", json!({})).await.unwrap_err();
    assert_eq!(error.to_string(), "t exited with code 3: err");
    let outcome = error.outcome().unwrap();
    assert_eq!(structured(outcome), json!({"stdout": "out\n", "stderr": "err\n", "exit_code": 3}));
    assert_eq!(execution(outcome)["timed_out"], false);
}

#[tokio::test]
async fn arguments_and_standard_input_reach_the_tool() {
    let tools = Tools::of(&[
        ("argv.sh", "#!/bin/sh\nfor a in \"$@\"; do printf '[%s]' \"$a\"; done\n"),
        ("cat", "#!/bin/sh\ncat\n"),
    ]);
    let arguments = json!({"max_depth": 2, "flag": true, "q": "$(id) ; `x` *", "args": ["-l", "a b"]});
    assert_eq!(
        tools.stdout("argv", arguments).await,
        "[--max-depth][2][--flag][--q][$(id) ; `x` *][-l][a b]"
    );
    assert_eq!(tools.stdout("cat", json!({"b": 1, "a": [true]})).await, "{\"b\":1,\"a\":[true]}\n");
    assert_eq!(tools.stdout("cat", json!({"stdin": "as it is"})).await, "as it is");
    let many: Vec<String> = (0..5000).map(|number| number.to_string()).collect();
    assert!(tools.stdout("argv", json!({ "args": many })).await.ends_with("[4999]"));
}

#[tokio::test]
async fn a_trace_context_that_no_variable_can_hold_does_not_keep_the_tool_from_running() {
    let tools = Tools::of(&[("env.sh", "#!/bin/sh\necho \"[$TRACEPARENT]\"\n")]);
    for traceparent in ["00-a\0b", "a b", &"x".repeat(200_000)] {
        let mut call = call("env", &json!({}));
        call.scope.traceparent = Some(traceparent.into());
        let outcome = tools.market.call(call).await.unwrap();
        assert_eq!(structured(&outcome)["stdout"], "[]\n");
    }
}

#[tokio::test]
async fn a_call_that_finds_no_thread_ends_at_its_deadline_all_the_same() {
    let tools = Tools::of(&[("hang.sh", "#!/bin/sh\necho > $1; exec sleep 1000\n")]);
    let limits = PoolLimits { max_threads: 1, ..PoolLimits::default() };
    tools.market.replace_executor(Arc::new(ToolExecutor::new(Instance::unguarded(), limits)));
    let ready = tools.directory.path().join("ready");
    let arguments = json!({ "args": [ready.to_str().unwrap()] });
    let first = tools.market.call(call("hang", &arguments));
    let second = async {
        while !ready.exists() {
            tokio::task::yield_now().await;
        }
        let mut call = call("hang", &json!({}));
        call.timeout = Some(Duration::from_millis(50));
        let error = tools.market.call(call).await.unwrap_err();
        assert_eq!(error.to_string(), "hang timed out after 0.05 s");
        // The executor says so, not the marketplace, which gives up a call that does not end.
        assert_eq!(execution(error.outcome().unwrap())["timed_out"], true);
    };
    tokio::select! {
        biased;
        () = second => {}
        ended = first => panic!("{ended:?}"),
    }
}

#[tokio::test]
async fn the_environment_names_the_call() {
    let tools = Tools::of(&[(
        "env.sh",
        "#!/bin/sh\necho $ORLA_TOOL/$ORLA_CALL_ID/$ORLA_INSTANCE/$TRACEPARENT; test -n \"$PATH\"\n",
    )]);
    let mut call = call("env", &json!({}));
    call.scope.traceparent = Some("00-trace".into());
    let outcome = tools.market.call(call).await.unwrap();
    let text = structured(&outcome)["stdout"].as_str().unwrap().trim().to_owned();
    let parts: Vec<&str> = text.split('/').collect();
    assert_eq!((parts[0], parts[3], parts.len()), ("env", "00-trace", 4));
    assert!(!parts[1].is_empty() && !parts[2].is_empty());
}

#[tokio::test]
async fn what_could_not_start_is_explained() {
    let tools = Tools::of(&[
        ("a.py", "#!/usr/bin/env python9\n"),
        ("b.py", "#!/opt/none/python9\n"),
        ("c.sh", "#!/bin/sh\r\necho\r\n"),
        ("gone", "#!/bin/sh\n"),
        ("own.sh", "#!/bin/sh\nno_such_command_here 2>/dev/null\n"),
    ]);
    fs::remove_file(tools.directory.path().join("gone")).unwrap();
    let cases = [
        ("a", "a could not start: interpreter python9 not found"),
        ("b", "b could not start: interpreter python9 not found"),
        (
            "c",
            "c could not start: interpreter sh not found, because the first line ends in a carriage return (CRLF); save the file with Unix line endings (LF)",
        ),
        ("gone", "gone could not start: its file is gone"),
        ("own", "own exited with code 127"),
    ];
    for (name, message) in cases {
        let error = tools.call(name, json!({})).await.unwrap_err();
        assert_eq!(error.to_string(), message);
        let execution = execution(error.outcome().unwrap());
        assert_eq!(execution["exit_code"], 127, "{name}");
        let detail = if name == "b" { "/opt/none/python9: no such file\n" } else { "" };
        let stderr = execution["stderr"].as_str().unwrap();
        assert!(name == "a" || stderr == detail, "{name}: {stderr}");
    }
}

#[tokio::test]
async fn a_file_that_was_replaced_after_it_was_listed_runs_as_it_is_now() {
    let tools = Tools::of(&[("a", "#!/bin/sh\necho one\n")]);
    assert_eq!(tools.stdout("a", json!({})).await, "one\n");
    let path = tools.directory.path().join("a");
    write(&path.with_extension("new"), "echo two\n");
    fs::rename(path.with_extension("new"), &path).unwrap();
    assert_eq!(tools.stdout("a", json!({})).await, "two\n");
}

#[tokio::test]
async fn arguments_that_cannot_be_passed_on_are_refused_with_the_place() {
    let tools = Tools::of(&[("a", "")]);
    assert_eq!(
        tools.failure("a", json!({"args": [1], "stdin": {}})).await,
        "a: invalid input: input.args[0]: expected a string, got 1; input.stdin: expected a string, got {}"
    );
    let long = "x".repeat(100_000);
    let many: Vec<&str> = std::iter::repeat_n(&*long, 100).collect();
    let message = tools.failure("a", json!({ "args": many })).await;
    assert_eq!(
        message,
        "a: invalid input: input: expected arguments that fit on a command line (larger text goes in `stdin`), got 10000000 bytes"
    );
}

#[tokio::test]
async fn a_declared_schema_is_enforced_both_ways() {
    let tools = Tools::of(&[(
        "add.sh",
        "#!/bin/sh\n# /// orla\n# title: Adder\n# timeout: 20\n# args: [fixed]\n# annotations: {readOnlyHint: true}\n\
         # input_schema:\n#   type: object\n#   properties: {out: {type: string}}\n#   required: [out]\n\
         # output_schema:\n#   type: object\n#   properties: {sum: {type: number}}\n#   required: [sum]\n# ///\n\
         [ \"$1\" = fixed ] && printf %s \"$3\"\n",
    )]);
    let entry = tools.market.get("add").unwrap();
    assert_eq!(entry.manifest.metadata[TITLE], "Adder");
    assert_eq!(entry.manifest.metadata[ANNOTATIONS], "{\"readOnlyHint\":true}");
    assert_eq!(entry.policy.timeout, Some(Duration::from_secs(20)));
    let good = tools.call("add", json!({"out": "{\"sum\": 1.50}"})).await.unwrap();
    assert_eq!(good.structured.unwrap().json().unwrap().as_str(), "{\"sum\": 1.50}");
    for (arguments, path) in [
        (json!({}), "out"),
        (json!({"out": "{\"sum\": \"x\"}"}), "sum"),
        (json!({"out": "[]"}), "output"),
        (json!({"out": "oops"}), "not JSON"),
    ] {
        let message = tools.failure("add", arguments).await;
        assert!(message.contains(path), "{message}");
    }
}

#[tokio::test]
async fn a_timeout_ends_the_tool_and_keeps_what_it_wrote() {
    let tools = Tools::of(&[(
        "slow.sh",
        "#!/bin/sh\n# /// orla\n# timeout: 1.5\n# ///\necho started; sleep 1000 & wait\n",
    )]);
    let error = tools.call("slow", json!({})).await.unwrap_err();
    assert_eq!(error.to_string(), "slow timed out after 1.5 s");
    let outcome = error.outcome().unwrap();
    assert_eq!(structured(outcome)["stdout"], "started\n");
    assert_eq!(
        (&execution(outcome)["timed_out"], &execution(outcome)["signal"]),
        (&json!(true), &json!("SIGTERM"))
    );
}

#[tokio::test]
async fn a_cancelled_call_ends_the_tool() {
    let tools = Tools::of(&[("slow.sh", "#!/bin/sh\necho ::log info ready >&2; exec sleep 1000\n")]);
    let mut call = call("slow", &json!({}));
    let token = call.scope.cancellation.clone();
    call.scope.notices = NoticeSink::new(move |_| token.cancel());
    let error = tokio::time::timeout(PATIENCE, tools.market.call(call)).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "slow was cancelled");
}

#[tokio::test]
async fn progress_and_messages_are_told_and_left_out_of_the_result() {
    let tools = Tools::of(&[(
        "p.sh",
        "#!/bin/sh\nfor i in 1 2 3; do echo \"::progress $i/3 step $i\" >&2; done; echo ::log warning careful >&2; echo ::progress soon >&2\n",
    )]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let mut call = call("p", &json!({}));
    call.scope.notices = NoticeSink::new(move |notice| sink.lock().push(notice));
    let outcome = tools.market.call(call).await.unwrap();
    assert_eq!(structured(&outcome)["stderr"], "::progress soon\n");
    let seen = seen.lock();
    let steps: Vec<f64> = seen
        .iter()
        .filter_map(|notice| match notice {
            Notice::Progress(progress) => Some(progress.progress),
            _ => None,
        })
        .collect();
    assert_eq!((steps, seen.len()), (vec![1.0, 2.0, 3.0], 4));
}

#[tokio::test]
async fn a_flood_of_output_is_bounded_and_counted() {
    let limits = Limits { max_output_bytes: 1000, ..Limits::default() };
    let tools = Tools::limited(&[("flood.sh", "#!/bin/sh\nyes é | head -c 30000000\n")], limits);
    let outcome = tools.call("flood", json!({})).await.unwrap();
    let text = structured(&outcome)["stdout"].as_str().unwrap().to_owned();
    let dropped = execution(&outcome)["truncated"]["stdout"].as_u64().unwrap();
    assert_eq!(text.len() as u64 + dropped, 30_000_000);
    assert!(text.len() <= 1000 && !text.contains('\u{fffd}'));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_calls_at_once_are_all_answered() {
    let tools = Tools::of(&[("id.sh", "#!/bin/sh\necho $2\n")]);
    let calls = (0..200).map(|number| tools.stdout("id", json!({ "n": number })));
    let mut pending: Vec<_> = calls.map(Box::pin).collect();
    let mut answers = Vec::new();
    std::future::poll_fn(|cx| {
        pending.retain_mut(|call| match call.as_mut().poll(cx) {
            std::task::Poll::Ready(answer) => {
                answers.push(answer);
                false
            }
            std::task::Poll::Pending => true,
        });
        if pending.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    answers.sort_by_key(|answer| answer.trim().parse::<u32>().unwrap());
    assert_eq!(answers, (0..200).map(|number| format!("{number}\n")).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_is_advertised_says_what_the_contract_says() {
    let tools = Tools::of(&[
        ("plain", "#!/bin/bash\n"),
        ("raw.sh", "#!/bin/sh\n# /// orla\n# output: mcp\n# ///\n"),
    ]);
    let plain = tools.market.get("plain").unwrap();
    let input: Value = serde_json::from_str(plain.input_schema().as_str()).unwrap();
    assert_eq!(input["additionalProperties"], true);
    assert_eq!(input["properties"].as_object().unwrap().keys().collect::<Vec<_>>(), ["args", "stdin"]);
    let output: Value = serde_json::from_str(plain.output_schema().unwrap().as_str()).unwrap();
    assert_eq!(output["required"], json!(["stdout", "stderr", "exit_code"]));
    assert!(tools.market.get("raw").unwrap().output_schema().is_none());
    let status = tools.market.status(&plain);
    assert_eq!(status.interpreter.as_deref(), Some("bash"));
    assert!(status.source.unwrap().ends_with("/plain"));
}
