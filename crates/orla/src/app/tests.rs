//! Tests of the wiring.

use super::*;
use crate::served::MAX_NAMED;
use orla_marketplace::rtfs::Value;
use orla_marketplace::{
    Call, CallContext, CapabilityExecutor, CapabilityManifest, CustomProvider, LocalCapability, Outcome,
    Payload, ProviderType, RuntimeResult,
};
use std::any::{Any, TypeId};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn tool(dir: &Path, name: &str, text: &str) {
    let path = dir.join("tools").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn config(dir: &Path, text: &str) -> Config {
    let mut config = Config::of(text).unwrap_or_else(|problems| panic!("{problems:?}"));
    config.tools_dir = dir.join("tools");
    config.prompts_dir = dir.join("prompts");
    config
}

fn names(app: &App) -> Vec<String> {
    app.marketplace().snapshot().listed().map(|entry| entry.name.to_string()).collect()
}

#[test]
fn overrides_and_patterns_decide_what_is_served() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c", "internal_x"] {
        tool(dir.path(), name, "#!/bin/sh\n");
    }
    let text = "tools:\n  a: {rename: first, timeout: 0.5, description: One}\n  b: {enabled: false}\n  intrnal_x: {timeout: 1}\nallow: ['*']\ndeny: ['internal_*']\n";
    let app = App::build(&config(dir.path(), text)).unwrap();
    assert_eq!(names(&app), ["c", "first"]);
    let entry = app.marketplace().get("first").unwrap();
    assert_eq!(entry.policy.timeout, Some(Duration::from_millis(500)));
    assert_eq!(entry.manifest.description, "One");
    assert_eq!(
        app.findings().warnings,
        ["tools.intrnal_x: no tool has this name, did you mean internal_x? at orla.yaml:4:3"]
    );
    let none = App::build(&config(dir.path(), "allow: []\n")).unwrap();
    assert_eq!(names(&none), Vec::<String>::new());
}

/// An executor for built-ins that answers with a fixed text.
struct Constant(&'static str);

#[async_trait::async_trait]
impl CapabilityExecutor for Constant {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<LocalCapability>()
    }

    async fn execute(&self, _: &ProviderType, _: &Payload, _: &CallContext) -> RuntimeResult<Outcome> {
        Ok(Value::String(self.0).into())
    }
}

#[derive(Debug)]
struct NoExecutor;

impl CustomProvider for NoExecutor {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        "lonely"
    }
}

#[tokio::test]
async fn extensions_are_served_and_unusable_ones_are_problems() {
    let dir = tempfile::tempdir().unwrap();
    tool(dir.path(), "a", "#!/bin/sh\n");
    let mut config = config(dir.path(), "");
    config.extensions.executors.push(Arc::new(Constant("replaced")));
    let custom = ProviderType::Custom(Arc::new(NoExecutor));
    let local = ProviderType::Local(LocalCapability::new("math.pi"));
    for (id, provider) in [("b", local), ("c", custom)] {
        config.extensions.capabilities.push(CapabilityManifest::new(id, "Added.", provider).into());
    }
    let app = App::build(&config).unwrap();
    assert_eq!(names(&app), ["a", "b"]);
    let outcome = app.marketplace().call(Call::to("b")).await.unwrap();
    assert_eq!(outcome.value().unwrap(), Value::from("replaced"));
    let problems = &app.findings().problems;
    assert!(matches!(&problems[..], [one] if one.contains("lonely")), "{problems:?}");
}

#[test]
fn a_name_that_a_tool_has_by_itself_is_not_given_to_another() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c", "d"] {
        tool(dir.path(), name, "#!/bin/sh\n");
    }
    let text = "tools:\n  a:\n    rename: b\n  c: {rename: d}\n  d: {rename: c}\n";
    let app = App::build(&config(dir.path(), text)).unwrap();
    assert_eq!(names(&app), ["a", "b", "c", "d"]);
    let source =
        |name: &str| app.marketplace().status(&app.marketplace().get(name).unwrap()).source.unwrap();
    assert!(source("a").ends_with("/a") && source("c").ends_with("/d") && source("d").ends_with("/c"));
    assert_eq!(
        app.findings().problems,
        ["tools.a.rename: another tool is called b; a keeps its name at orla.yaml:3:13"]
    );
}

#[test]
fn many_names_that_no_tool_has_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let tools: String = (0..10_000).map(|n| format!("  t{n}: {{timeout: 1}}\n")).collect();
    let app = App::build(&config(dir.path(), &format!("tools:\n{tools}"))).unwrap();
    let warnings = &app.findings().warnings;
    assert_eq!(warnings.len(), MAX_NAMED + 2);
    assert_eq!(warnings[MAX_NAMED + 1], "tools: no tool has any of 9980 more names");
}

#[test]
fn a_prompt_says_which_tools_it_misses() {
    let dir = tempfile::tempdir().unwrap();
    tool(dir.path(), "list_files", "#!/bin/sh\n");
    fs::create_dir(dir.path().join("prompts")).unwrap();
    fs::write(dir.path().join("prompts/p.md"), "---\ntools: [list_file]\n---\nx").unwrap();
    let app = App::build(&config(dir.path(), "")).unwrap();
    assert_eq!(app.findings().prompts, 1);
    let warning = &app.findings().warnings[0];
    assert!(
        warning.ends_with("p.md:2:9: tools: no tool list_file is served, did you mean list_files?"),
        "{warning}"
    );
}

#[test]
fn an_unusable_tools_directory_keeps_the_current_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    tool(dir.path(), "a", "#!/bin/sh\n");
    let config = config(dir.path(), "");
    let mut app = App::build(&config).unwrap();
    fs::remove_dir_all(dir.path().join("tools")).unwrap();
    fs::write(dir.path().join("tools"), "a file").unwrap();
    let problem = app.load(&config).unwrap_err();
    assert!(problem.contains("tools: Not a directory"), "{problem}");
    assert_eq!(names(&app), ["a"]);
    assert!(App::build(&config).is_err());
}

#[test]
fn packages_are_served_and_a_broken_one_costs_itself() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = |name: &str, mode: &str| {
        format!("name: {name}\nversion: 1.0.0\nentrypoint: run.sh\nruntime: {{mode: {mode}}}\n")
    };
    tool(dir.path(), "simple/tool.yaml", &manifest("simple", "simple"));
    tool(dir.path(), "simple/run.sh", "#!/bin/sh\n");
    tool(dir.path(), "cap/2.0.0/tool.yaml", &manifest("cap", "capsule"));
    tool(dir.path(), "cap/2.0.0/run.sh", "#!/bin/sh\n");
    tool(dir.path(), "cap.sh", "#!/bin/sh\n");
    tool(dir.path(), "broken/tool.yaml", "name: broken\n");
    let app = App::build(&config(dir.path(), "tools: {cap__x: {timeout: 1}}\n")).unwrap();
    assert_eq!(names(&app), ["cap", "cap_sh", "simple"]);
    let kinds: Vec<&str> =
        app.marketplace().snapshot().listed().map(|entry| entry.manifest.provider.kind()).collect();
    assert_eq!(kinds, ["capsule", "tool", "tool"]);
    let findings = app.findings();
    assert_eq!(findings.problems.len(), 2);
    assert!(findings.problems[0].ends_with("broken/tool.yaml:1:1: version: missing, and required"));
    assert_eq!(findings.warnings.len(), 1);
    assert!(findings.warnings[0].contains("is a package named cap; served as cap_sh"));
}

#[test]
fn a_server_with_the_name_of_a_capsule_gives_way() {
    let dir = tempfile::tempdir().unwrap();
    tool(
        dir.path(),
        "notes/tool.yaml",
        "name: notes\nversion: 1.0.0\nentrypoint: run.sh\nruntime: {mode: capsule}\n",
    );
    tool(dir.path(), "notes/run.sh", "#!/bin/sh\n");
    let text = "mcpServers:\n  notes: {command: sh, colour: red}\n  other: {command: sh}\n";
    let app = App::build(&config(dir.path(), text)).unwrap();
    assert_eq!(app.findings().problems, Vec::<String>::new());
    assert_eq!(
        app.findings().warnings,
        [
            "mcpServers.notes.colour: unknown key, ignored at orla.yaml:2:24",
            "mcpServers.notes: a capsule has this name; the server's tools are called notes_2__… at orla.yaml:2:3",
        ]
    );
}

#[test]
fn builtins_are_served_unlisted_and_yield_to_declared_ids() {
    let dir = tempfile::tempdir().unwrap();
    tool(dir.path(), "a", "#!/bin/sh\n");
    let text = "capabilities: [{id: math.add, description: Mine, provider: {Local: {function: math.subtract}}}]\ntools: {math.abs: {enabled: false}, text.upper: {timeout: 2}}\n";
    let app = App::build(&config(dir.path(), text)).unwrap();
    assert_eq!((&app.findings().problems, &app.findings().warnings), (&vec![], &vec![]));
    let listed: Vec<String> =
        app.marketplace().snapshot().listed().map(|entry| entry.name.to_string()).collect();
    assert_eq!(listed, ["a", "math__add"]);
    let entry = |id: &str| app.marketplace().get(id);
    assert_eq!(entry("math.add").unwrap().manifest.description, "Mine");
    assert_eq!(entry("text.upper").unwrap().policy.timeout, Some(Duration::from_secs(2)));
    assert!(entry("math.abs").is_none() && entry("math.subtract").is_some());
    let none = App::build(&config(dir.path(), "builtins: false\n")).unwrap();
    assert!(none.marketplace().get("math.add").is_none());
}
