//! `plugins`: programs that answer one JSON line with another, by name.
//!
//! Values of `env` and `args` may be secrets: no message repeats them.

use std::collections::{HashMap, HashSet};

use orla_document::{Key, Kind as Shape, Node, Position};
use orla_providers::plugin::PluginSettings;
use serde_json::{Value, json};

use super::keys::Own;
use super::read::{Reader, excerpt};
use super::schema::{pass_env, seconds, variable, whole};
use super::servers::{environment, prefix, program, renames, safe_name};
use super::{Config, Placed};

/// The key.
pub(super) const KEY: Own =
    Own { read, schema, expected: "a mapping from names of plugins to their programs", variable: None };

const KEYS: [&str; 18] = [
    "path",
    "command",
    "args",
    "env",
    "pass_env",
    "cwd",
    "processes",
    "fuel",
    "memory",
    "watch",
    "timeout",
    "startup_timeout",
    "prefix",
    "rename",
    "include",
    "exclude",
    "permissions",
    "eager",
];

fn read(reader: &mut Reader<'_>, config: &mut Config, path: &'static str, node: &Node) {
    let Some(pairs) = reader.pairs(path, node, KEY.expected) else { return };
    let mut known: HashMap<String, Position> = HashMap::new();
    for (name, node) in pairs {
        let place = format!("{path}.{}", excerpt(&name.text));
        let Some(settings) = settings(reader, &place, name, node) else { continue };
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

fn settings(reader: &mut Reader<'_>, place: &str, name: &Key, node: &Node) -> Option<PluginSettings> {
    let expected = "the path of a program, or a mapping with path or command";
    let mut settings = PluginSettings::new(safe_name(&name.text), "");
    let pairs = match &node.kind {
        Shape::Scalar(_) => {
            let path = reader.line(place, node, expected)?;
            settings.command = file(reader, &path);
            return Some(settings);
        }
        Shape::Map(_) | Shape::List(_) => reader.pairs(place, node, expected)?,
    };
    let mut given = HashSet::new();
    for (key, node) in pairs {
        let place = format!("{place}.{}", excerpt(&key.text));
        given.insert(key.text.as_str());
        field(reader, &mut settings, &place, key, node);
    }
    match (given.contains("path"), given.contains("command")) {
        (true, true) => {
            reader.problem(name.at, || format!("{place}: path and command exclude each other"));
            None
        }
        (false, false) => {
            reader.problem(name.at, || format!("{place}.path: missing, and required"));
            None
        }
        // What is wrong with it has been said.
        _ => (!settings.command.is_empty()).then_some(settings),
    }
}

fn field(reader: &mut Reader<'_>, settings: &mut PluginSettings, place: &str, key: &Key, node: &Node) {
    match key.text.as_str() {
        "path" => {
            let path = reader.line(place, node, "a path");
            settings.command = path.map(|path| file(reader, &path)).unwrap_or_default();
        }
        "command" => {
            let command = reader.line(place, node, "a program");
            settings.command = command.map(|command| program(reader, &command)).unwrap_or_default();
        }
        "args" => settings.args = reader.arguments(place, node).unwrap_or_default(),
        "env" => settings.env = reader.secrets(place, node, environment).unwrap_or_default(),
        "pass_env" => settings.pass_env = reader.variables(place, node),
        "cwd" => settings.cwd = reader.path_at(place, node),
        "processes" => {
            settings.processes = reader.count(place, node, 1, PluginSettings::MAX_PROCESSES);
        }
        "fuel" => {
            settings.fuel = reader.count(place, node, 1, u64::MAX).unwrap_or(PluginSettings::FUEL);
        }
        "memory" => {
            settings.memory = reader.count(place, node, 1, 1 << 32).unwrap_or(PluginSettings::MEMORY);
        }
        "watch" => {
            let paths = reader.list(place, node, "a list of paths").unwrap_or_default();
            let absolute = |path: &String| {
                let path = reader.beside(path);
                std::path::absolute(&path).unwrap_or(path)
            };
            settings.watch = paths.iter().map(absolute).collect();
        }
        "timeout" => settings.timeout = reader.seconds(place, node),
        "startup_timeout" => {
            settings.startup_timeout =
                reader.seconds(place, node).unwrap_or(PluginSettings::STARTUP_TIMEOUT);
        }
        "prefix" => settings.names.prefix = prefix(reader, place, node),
        "rename" => settings.names.rename = renames(reader, place, node),
        "include" => settings.names.include = reader.patterns(place, node),
        "exclude" => settings.names.exclude = reader.patterns(place, node).unwrap_or_default(),
        "permissions" => {
            settings.permissions = reader.list(place, node, "a list of permissions").unwrap_or_default();
        }
        "eager" => settings.eager = reader.flag(place, node, "true or false") == Some(true),
        other => {
            let path = place.strip_suffix(&excerpt(other)).unwrap_or(place).to_owned();
            reader.unknown(key.at, other, &path, KEYS);
        }
    }
}

/// The path of a program as the file means it; never a name in `PATH`.
pub(super) fn file(reader: &Reader<'_>, text: &str) -> String {
    let path = reader.beside(text).to_str().map_or_else(|| text.to_owned(), str::to_owned);
    if path.contains('/') { path } else { format!("./{path}") }
}

fn schema() -> Value {
    let text = json!({"type": "string", "minLength": 1});
    let list = json!({"type": "array", "items": {"type": "string"}});
    let either =
        |schema: Value, about: &str| json!({"anyOf": [schema, variable()], "description": about});
    let texts = json!({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}});
    let entry = json!({"type": "object", "properties": {
        "path": {"type": "string", "minLength": 1, "description": "The program, or a WebAssembly component. A relative path is relative to this file."},
        "command": {"type": "string", "minLength": 1, "description": "The program: a path, or a name in PATH."},
        "args": {"type": "array", "items": {"type": ["string", "number", "boolean"]}},
        "env": texts,
        "pass_env": pass_env(),
        "cwd": {"type": "string", "description": "Where the program runs."},
        "processes": either(whole(1, PluginSettings::MAX_PROCESSES),
            "Processes that there may be, each of which is given one call at a time; without it, there is one, which is given every call at once."),
        "fuel": either(json!({"type": "integer", "minimum": 1}),
            "How much a WebAssembly component may compute in one call; an instruction is about one."),
        "memory": either(json!({"type": "integer", "minimum": 1, "maximum": 1_u64 << 32}),
            "Bytes of memory that an instance of a WebAssembly component may have: 268435456."),
        "watch": {"anyOf": [list, {"type": "string"}], "description": "Files and directories that restart it when they change, besides the program."},
        "timeout": either(seconds(86_400), "Seconds that one call may take."),
        "startup_timeout": either(seconds(86_400), "Seconds that it may take to say what it serves: 10."),
        "prefix": {"type": "string", "description": "Stands before the names of its functions instead of NAME__."},
        "rename": {"type": "object", "additionalProperties": {"type": "string"},
            "description": "Other names for single functions."},
        "include": {"anyOf": [list], "description": "Patterns of the functions that are served; all by default."},
        "exclude": {"anyOf": [list], "description": "Patterns of the functions that are not."},
        "permissions": {"anyOf": [list], "description": "What its functions need besides running it, such as net:api.example.com."},
        "eager": either(json!({"type": "boolean"}), "Start it with orla, and not at its first use."),
    }, "additionalProperties": false});
    json!({"type": "object", "additionalProperties": {"anyOf": [text, entry]}})
}
