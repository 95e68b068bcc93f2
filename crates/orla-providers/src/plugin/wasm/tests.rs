//! Components as they behave, with one that is written by hand: see `test.wat`.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use orla_marketplace::CallContext;
use tokio::time::Instant;

use super::*;

/// Returns a directory with the component in it.
fn world() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("c.wasm"), wat::parse_str(include_str!("test.wat")).unwrap()).unwrap();
    dir
}

fn settings(dir: &tempfile::TempDir) -> PluginSettings {
    PluginSettings::new("c", dir.path().join("c.wasm").display().to_string())
}

fn component(settings: &PluginSettings) -> Component {
    Component::new(settings, Arc::new(|| Ok(()))).unwrap()
}

fn json(text: &str) -> JsonText {
    JsonText::parse(text.to_owned()).unwrap()
}

async fn called(component: &Component, function: &str, permissions: &[&str]) -> String {
    let permissions: Arc<[String]> = permissions.iter().map(|one| (*one).to_owned()).collect();
    let mut ctx = CallContext::for_tests("c");
    ctx.deadline = Instant::now() + Duration::from_secs(if function == "loop" { 1 } else { 20 });
    match component.call(function, &json(r#"{"n": 1.10}"#), &permissions, &ctx).await {
        Ok(value) => value.to_string(),
        Err(Ending::Fault(Fault::Failed(Failure { kind, message, .. }))) => format!("{kind}: {message}"),
        Err(Ending::Fault(Fault::Unavailable(reason))) => format!("gone: {reason}"),
        Err(other) => format!("{other:?}"),
    }
}

#[tokio::test]
async fn the_component_that_the_examples_have_as_text_answers() {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/wasm/size.wat");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("c.wasm"), wat::parse_file(text).unwrap()).unwrap();
    let component = component(&settings(&dir));
    assert!(component.learn(&Arc::default()).await);
    let tools = component.info().unwrap().tools.clone().unwrap();
    assert_eq!((tools.len(), &*tools[0].name), (1, "size"));
    for _ in 0..3 {
        assert_eq!(called(&component, "size", &[]).await, "11");
    }
}

#[tokio::test]
async fn a_component_describes_itself_and_answers() {
    let dir = world();
    let component = component(&settings(&dir));
    assert_eq!(component.status(&[]).state.as_deref(), Some("CREATED"));
    let none: Arc<[String]> = Arc::default();
    assert!(component.learn(&none).await && !component.learn(&none).await);
    let tools = component.info().unwrap().tools.clone().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| &*tool.name).collect();
    assert_eq!(names, ["echo", "fail"]);
    for _ in 0..3 {
        assert_eq!(called(&component, "echo", &[]).await, r#"{"n": 1.10}"#);
    }
    assert_eq!(called(&component, "fail", &[]).await, ": no luck");
    assert!(called(&component, "garbage", &[]).await.starts_with("no-json: its value is not JSON"));
    assert_eq!(component.status(&[]).state.as_deref(), Some("READY"));
}

#[tokio::test]
async fn a_runaway_call_is_ended_and_the_next_call_is_answered() {
    let dir = world();
    let mut settings = settings(&dir);
    settings.memory = 4 * 1024 * 1024;
    let component = component(&settings);
    for (function, ending) in [
        ("trap", "gone: it ended: wasm trap: wasm `unreachable` instruction executed"),
        ("more", "gone: it ended: wasm trap: wasm `unreachable` instruction executed"),
        ("loop", "TimedOut { not_ready: None, wrong_answer: None }"),
    ] {
        assert_eq!(called(&component, function, &[]).await, ending, "{function}");
        assert_eq!(called(&component, "echo", &[]).await, r#"{"n": 1.10}"#);
    }
    settings.fuel = 1_000_000;
    let poor = Component::new(&settings, Arc::new(|| Ok(()))).unwrap();
    assert_eq!(called(&poor, "loop", &[]).await, "gone: it used up its fuel, 1000000");
}

#[tokio::test]
async fn an_instance_that_has_grown_large_is_not_kept() {
    let dir = world();
    let component = component(&settings(&dir));
    let kept = || component.state().loaded.as_ref().unwrap().idle.lock().len();
    assert_eq!(called(&component, "echo", &[]).await, r#"{"n": 1.10}"#);
    assert_eq!(kept(), 1);
    assert_eq!(called(&component, "keep", &[]).await, r#"{"n": 1.10}"#);
    assert_eq!(kept(), 0);
    assert_eq!(called(&component, "echo", &[]).await, r#"{"n": 1.10}"#);
    assert_eq!(kept(), 1);
}

#[tokio::test]
async fn a_call_that_is_cancelled_ends() {
    let dir = world();
    let component = component(&settings(&dir));
    let ctx = CallContext::for_tests("c");
    ctx.scope.cancellation.cancel();
    let ended = component.call("loop", &json("{}"), &Arc::default(), &ctx).await;
    assert!(matches!(ended, Err(Ending::Cancelled)), "{ended:?}");
}

#[tokio::test]
async fn directories_are_those_that_are_granted() {
    let dir = world();
    let mut settings = settings(&dir);
    settings.base = dir.path().to_owned();
    let component = component(&settings);
    assert_eq!(called(&component, "directories", &["fs:read:."]).await, "1");
    let refused = called(&component, "directories", &["fs:read:./target"]).await;
    assert!(refused.starts_with("gone: fs:read:./target cannot be granted"), "{refused}");
    let read = format!("fs:read:{}", dir.path().display());
    let write = format!("fs:write:{}", dir.path().display());
    assert_eq!(called(&component, "directories", &[]).await, "0");
    assert_eq!(called(&component, "directories", &[&read, "exec:c"]).await, "1");
    assert_eq!(called(&component, "directories", &[&read, &write]).await, "2");
    assert_eq!(called(&component, "directories", &[]).await, "0");
    let refused = called(&component, "directories", &["fs:read:/no/such/directory"]).await;
    assert!(
        refused.starts_with("gone: fs:read:/no/such/directory cannot be granted to it"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_changed_file_is_recompiled_and_an_invalid_one_is_reported() {
    let dir = world();
    let compiled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&compiled);
    let may_start = move || {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let component = Component::new(&settings(&dir), Arc::new(may_start)).unwrap();
    assert_eq!(called(&component, "fail", &[]).await, ": no luck");
    let text = include_str!("test.wat").replace("no luck", "as new!");
    fs::write(dir.path().join("new"), wat::parse_str(&text).unwrap()).unwrap();
    fs::rename(dir.path().join("new"), dir.path().join("c.wasm")).unwrap();
    assert_eq!(called(&component, "fail", &[]).await, ": as new!");
    fs::write(dir.path().join("new"), "(module)").unwrap();
    fs::rename(dir.path().join("new"), dir.path().join("c.wasm")).unwrap();
    let broken = called(&component, "fail", &[]).await;
    assert!(broken.starts_with("gone: it is not a component"), "{broken}");
    assert_eq!(called(&component, "fail", &[]).await, broken);
    assert_eq!(compiled.load(Ordering::Relaxed), 3, "what is broken is compiled once");
    assert_eq!(component.status(&[]).state.as_deref(), Some("CRASHED"));
    fs::remove_file(dir.path().join("c.wasm")).unwrap();
    assert!(called(&component, "fail", &[]).await.starts_with("gone: its file cannot be read"));
}

#[tokio::test]
async fn a_refused_component_does_not_run() {
    let dir = world();
    let component =
        Component::new(&settings(&dir), Arc::new(|| Err("nobody vouches".to_owned()))).unwrap();
    assert_eq!(called(&component, "echo", &[]).await, "gone: nobody vouches");
}
