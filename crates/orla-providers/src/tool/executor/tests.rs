//! Tools through the marketplace's call path, as a server calls them.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use orla_marketplace::{Call, CapabilityMarketplace, JsonText};
use orla_process::Limits;
use serde_json::{Value, json};

use super::super::Loader;
use super::*;

/// A directory of tools, served.
struct Tools {
    directory: tempfile::TempDir,
    market: CapabilityMarketplace,
}

impl Tools {
    fn of(files: &[(&str, &str)]) -> Self {
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
                Limits::default(),
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
async fn advertised_schemas_match_the_contract() {
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
