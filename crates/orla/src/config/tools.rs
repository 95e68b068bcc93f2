//! `tools`: settings of single capabilities, by name.

use std::collections::HashMap;

use orla_document::Node;
use orla_marketplace::TaskSupport;
use orla_providers::tool::metadata::MAX_PRESTART;
use serde_json::{Value, json};

use super::forms::{
    CONFINING, Choice, Count, DAY, ENVIRONMENT, FALLBACK, Flag, LIMITS, Read, Seconds, Text, Variables,
};
use super::keys::{self, Key, MAX_RETRIES, MAX_TOOL_CONCURRENCY, key, own};
use super::quotas::{read_scope, scope_schema};
use super::read::{Reader, is_tool_name};
use super::{Config, Rename, ToolOverride};

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
fn keys() -> Vec<Key<ToolOverride>> {
    vec![
        key("timeout", Seconds(DAY), |t| &mut t.timeout, "maximum seconds for one call of this tool"),
        key("enabled", Flag, |t| &mut t.enabled, "whether the tool is served"),
        key("description", Text("text"), |t| &mut t.description, "replaces the tool's own description"),
        own("rename", rename, rename_schema, "the name under which the tool is served"),
        key("max_concurrency", Count(1, MAX_TOOL_CONCURRENCY), |t| &mut t.max_concurrency,
            "maximum number of calls of this tool at once"),
        key("scope", Read(read_scope, scope_schema), |t| &mut t.scope,
            "where `max_concurrency` holds: on this `node`, or over all nodes of the [`cluster`](cluster.md#limits)"),
        key("retries", Count(0, MAX_RETRIES), |t| &mut t.retries,
            "how often orla repeats a call that failed for a temporary reason, if the tool says that repeating it is harmless"),
        key("prestart", Count(0, MAX_PRESTART), |t| &mut t.prestart,
            "how many processes of a tool [wait for a call](tools.md#prestarted-tools) before it comes"),
        key("task", Choice(&TaskSupport::WORDS), |t| &mut t.task,
            "whether the tool is called as a [task](tasks.md): `required`, `optional` or `forbidden`"),
        key("env", ENVIRONMENT, |t| &mut t.env,
            "environment variables of a tool or package, in addition to those that it declares"),
        key("pass_env", Variables, |t| &mut t.pass_env,
            "environment variables that the process gets in addition to the default ones: names, or patterns with `*`"),
        key("permissions", CONFINING, |t| &mut t.declared.permissions,
            "permissions of a tool or package in addition to those that it declares; its processes are [confined](sandbox.md) to them"),
        key("limits", LIMITS, |t| &mut t.declared.limits,
            "[limits](sandbox.md#limits) of its processes: `memory`, `cpu_seconds`, `processes`, `open_files`, `file_size`, `wall`"),
        key("sandbox_fallback", Choice(FALLBACK), |t| &mut t.declared.fallback,
            "overrides `sandbox_fallback` of the server"),
    ]
}

pub(super) fn read(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let expected = "a mapping from names of tools to what is changed of them";
    let Some(pairs) = reader.pairs(path, node, expected) else { return };
    let keys = keys();
    let expected = format!("a mapping with {}", keys::names(&keys));
    let mut renamed: HashMap<String, &str> = HashMap::new();
    for (name, node) in pairs {
        let place = format!("{path}.{}", name.text);
        let mut entry = ToolOverride { at: Some(name.at), ..ToolOverride::default() };
        if name.text.contains('*') {
            reader.problem(name.at, || format!("{place}: expected the name of a tool, without `*`"));
        }
        let since = reader.secrets.count();
        if let Some(pairs) = reader.pairs(&place, node, &expected) {
            reader.mapping(&place, node.at, pairs, &keys, &mut entry);
        }
        entry.redaction = reader.redaction(since);
        if entry.scope.is_some() && entry.max_concurrency.is_none() {
            reader.problem(name.at, || {
                format!("{place}.scope: needs `max_concurrency`, whose scope it is")
            });
        }
        if let Some(Rename { to, at }) = &entry.rename
            && let Some(other) = renamed.insert(to.clone(), &name.text)
        {
            reader.problem(*at, || format!("{place}.rename: {path}.{other} is already called {to}"));
        }
        config.tools.insert(name.text.clone(), entry);
    }
}

fn rename(reader: &mut Reader<'_>, entry: &mut ToolOverride, path: &str, node: &Node) {
    let Some(to) = reader.line(path, node, "text") else { return };
    if is_tool_name(&to) {
        entry.rename = Some(Rename { to, at: node.at });
    } else {
        let got = node.describe();
        reader.problem(node.at, || {
            format!("{path}: expected 1 to 64 letters, digits, `_` or `-`, got {got}")
        });
    }
}

fn rename_schema() -> Value {
    json!({"type": "string", "pattern": "^([a-zA-Z0-9_-]{1,64}|.*\\$\\{.*)$"})
}

pub(super) fn schema() -> Value {
    let tool = keys::object(&keys(), &mut ToolOverride::default());
    json!({"type": "object", "additionalProperties": tool})
}
