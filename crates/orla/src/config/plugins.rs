//! `plugins`: programs that answer one JSON line with another, by name.
//!
//! Values of `env` and `args` may be secrets: no message repeats them.

use std::collections::HashMap;
use std::path::PathBuf;

use orla_document::{Key as Name, Kind as Shape, Node, Position};
use orla_providers::plugin::PluginSettings;
use serde_json::{Value, json};

use super::forms::{
    ARGUMENTS, CONFINING, Choice, Count, DAY, ENVIRONMENT, FALLBACK, Flag, LIMITS, PATH, PATTERNS, Read,
    Seconds, Variables, text_schema, texts_or_text,
};
use super::keys::{Key, key, object, present};
use super::read::{Reader, excerpt};
use super::servers::{PREFIX, PROGRAM, RENAMES, safe_name};
use super::{Config, Placed};

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
fn keys() -> Vec<Key<PluginSettings>> {
    vec![
        key("path", Read(file_at, text_schema), |p| &mut p.command,
            "the path of the program or of a WebAssembly component"),
        key("command", PROGRAM, |p| &mut p.command, "the program: a path, or a name in `PATH`"),
        key("args", ARGUMENTS, |p| &mut p.args, "arguments of the program"),
        key("env", ENVIRONMENT, |p| &mut p.env, "environment variables of the program"),
        key("pass_env", Variables, |p| &mut p.pass_env,
            "environment variables of orla that the program gets in addition to the default ones: names, or patterns with `*`"),
        key("cwd", PATH, |p| &mut p.cwd, "the working directory of the program"),
        key("processes", Count(1, PluginSettings::MAX_PROCESSES), |p| &mut p.processes,
            "maximum number of processes, each of which gets one call at a time; by default, one process gets all calls at once"),
        key("fuel", Count(1, u64::MAX), |p| &mut p.fuel,
            "maximum computation of a WebAssembly component in one call; one unit is about one instruction"),
        key("memory", Count(1, 1 << 32), |p| &mut p.memory,
            "maximum bytes of memory of an instance of a WebAssembly component"),
        key("watch", Read(watched, texts_or_text), |p| &mut p.watch,
            "files and directories whose change restarts the program, in addition to the program itself"),
        key("timeout", Seconds(DAY), |p| &mut p.timeout, "maximum seconds for one call"),
        key("startup_timeout", Seconds(DAY), |p| &mut p.startup_timeout,
            "maximum seconds until the program has described its functions"),
        key("prefix", PREFIX, |p| &mut p.names.prefix,
            "replaces `NAME__` before the names of functions; may be empty"),
        key("rename", RENAMES, |p| &mut p.names.rename, "new names for single functions"),
        key("include", PATTERNS, |p| &mut p.names.include, "patterns of the functions that are served; all by default"),
        key("exclude", PATTERNS, |p| &mut p.names.exclude, "patterns of the functions that are not served"),
        key("permissions", CONFINING, |p| &mut p.declared.permissions,
            "permissions that the functions need in addition to running the program, such as `net:api.example.com`; its processes are [confined](sandbox.md) to them"),
        key("limits", LIMITS, |p| &mut p.declared.limits,
            "[limits](sandbox.md#limits) of its processes: `memory`, `cpu_seconds`, `processes`, `open_files`, `file_size`, `wall`"),
        key("sandbox_fallback", Choice(FALLBACK), |p| &mut p.declared.fallback,
            "overrides `sandbox_fallback` of the server"),
        key("eager", Flag, |p| &mut p.eager, "start the program with orla instead of at the first use"),
    ]
}

pub(super) fn read(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let expected = "a mapping from names of plugins to their programs";
    let Some(pairs) = reader.pairs(path, node, expected) else { return };
    let (keys, mut known) = (keys(), HashMap::<String, Position>::new());
    for (name, node) in pairs {
        let place = format!("{path}.{}", excerpt(&name.text));
        let since = reader.secrets.count();
        let Some(mut settings) = settings(reader, &keys, &place, name, node) else { continue };
        settings.redaction = reader.redaction(since);
        if let Some(first) = known.insert(settings.name.clone(), name.at) {
            let (line, called) = (first.line, &settings.name);
            reader.problem(name.at, || {
                format!("{place}: another plugin is called {called} in MCP, on line {line}")
            });
            continue;
        }
        config.plugins.push(Placed { value: settings, at: name.at });
    }
}

fn settings(
    reader: &mut Reader<'_>,
    keys: &[Key<PluginSettings>],
    place: &str,
    name: &Name,
    node: &Node,
) -> Option<PluginSettings> {
    let mut settings = PluginSettings::new(safe_name(&name.text), "");
    if let Shape::Scalar(_) = &node.kind {
        let path =
            reader.line(place, node, "the path of a program, or a mapping with path or command")?;
        settings.command = file(reader, &path);
        return Some(settings);
    }
    let pairs = reader.pairs(place, node, "the path of a program, or a mapping with path or command")?;
    let is_given = |key: &str| present(pairs).any(|(name, _)| name.text == key);
    match (is_given("path"), is_given("command")) {
        (true, true) => {
            reader.problem(name.at, || format!("{place}: path and command exclude each other"));
            return None;
        }
        (false, false) => reader.missing(name.at, place, "path"),
        _ => {}
    }
    reader.mapping(place, node.at, present(pairs), keys, &mut settings)?;
    settings.permissions = settings.declared.permissions.clone().unwrap_or_default();
    settings.timeout = settings.declared.limits.wall_or(settings.timeout);
    (!settings.command.is_empty()).then_some(settings)
}

/// Returns the path of a program as the file means it; never a name in `PATH`.
pub(super) fn file(reader: &Reader<'_>, text: &str) -> String {
    let path = reader.beside(text).to_str().map_or_else(|| text.to_owned(), str::to_owned);
    if path.contains('/') { path } else { format!("./{path}") }
}

fn file_at(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    reader.line(path, node, "a path").map(|path| file(reader, &path))
}

fn watched(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<PathBuf>> {
    let paths = reader.list(path, node, "a list of paths")?;
    let absolute = |path: &String| {
        let path = reader.beside(path);
        std::path::absolute(&path).unwrap_or(path)
    };
    Some(paths.iter().map(absolute).collect())
}

pub(super) fn schema() -> Value {
    let plugin = object(&keys(), &mut PluginSettings::new("", ""));
    json!({"type": "object", "additionalProperties": {"anyOf": [text_schema(), plugin]}})
}
