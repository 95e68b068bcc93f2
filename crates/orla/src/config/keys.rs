//! The building blocks of tables of keys. The table of the configuration is `table.rs`.
//!
//! Each [`Key`] of a table has a name, the [`Form`] of its value, the field for the value, and a
//! sentence with its meaning. All code that depends on keys uses these tables: [`Reader::mapping`] reads
//! a mapping and suggests names for misspelt keys, [`object`] gives its JSON Schema, and `documentation`
//! gives the table in `docs/configuration.md`.

use std::ffi::OsStr;

use orla_document::{Key as Name, Node, Position};
use serde_json::{Map, Value as Json, json};

use super::forms::{Form, Slot};
use super::read::Reader;
use crate::text::list_of;

/// Calls of one capability that may run at once, at most.
pub(super) const MAX_TOOL_CONCURRENCY: usize = 65_536;
/// How often a call may be made again, at most.
pub(super) const MAX_RETRIES: u32 = 10;

/// One key of a mapping that is read into a `T`.
pub(crate) struct Key<T> {
    pub(crate) name: &'static str,
    /// Other names of the key, from the configuration files of other programs.
    aliases: &'static [&'static str],
    field: Box<dyn Field<T>>,
    /// The meaning of the key, in Markdown.
    about: &'static str,
    is_required: bool,
    restart: Restart<T>,
}

/// Which changes of a key take effect only when the server is restarted.
enum Restart<T> {
    None,
    Some(Keep<T>),
    All(Keep<T>),
}

impl<T> Restart<T> {
    /// Takes over the running value.
    fn keep(&self) -> Option<&Keep<T>> {
        match self {
            Self::None => None,
            Self::Some(keep) | Self::All(keep) => Some(keep),
        }
    }
}

/// Copies the value of a running configuration into a new one, and returns whether the values differed.
type Keep<T> = Box<dyn Fn(&mut T, &mut T) -> bool + Send + Sync>;

/// Returns a key whose value has the form `form` and goes to `place`.
pub(super) fn key<T: 'static, F: Form, S: Slot<F::Value> + 'static>(
    name: &'static str,
    form: F,
    place: fn(&mut T) -> &mut S,
    about: &'static str,
) -> Key<T> {
    Key::new(name, Placed { form, place }, about)
}

/// Returns a key whose value a function reads, which notes every problem with its place.
pub(super) fn own<T: 'static>(
    name: &'static str,
    read: fn(&mut Reader<'_>, &mut T, &str, &Node),
    schema: fn() -> Json,
    about: &'static str,
) -> Key<T> {
    Key::new(name, Own { read, schema, variable: None, keys: Vec::new() }, about)
}

/// Like [`own`], for a key that an environment variable can set too.
pub(super) fn own_with_variable<T: 'static>(
    name: &'static str,
    read: fn(&mut Reader<'_>, &mut T, &str, &Node),
    schema: fn() -> Json,
    variable: Variable<T>,
    about: &'static str,
) -> Key<T> {
    Key::new(name, Own { read, schema, variable: Some(variable), keys: Vec::new() }, about)
}

/// Like [`own_with_variable`], for a key whose value may be a mapping with these keys.
pub(super) fn own_with_keys<T: 'static>(
    name: &'static str,
    read: fn(&mut Reader<'_>, &mut T, &str, &Node),
    schema: fn() -> Json,
    variable: Variable<T>,
    keys: Vec<Key<T>>,
    about: &'static str,
) -> Key<T> {
    Key::new(name, Own { read, schema, variable: Some(variable), keys }, about)
}

/// Returns a key whose value is a mapping with these keys.
pub(super) fn section<T: 'static>(name: &'static str, keys: Vec<Key<T>>, about: &'static str) -> Key<T> {
    Key::new(name, Section(keys), about)
}

impl<T> Key<T> {
    fn new(name: &'static str, field: impl Field<T> + 'static, about: &'static str) -> Self {
        let field = Box::new(field);
        Self { name, aliases: &[], field, about, is_required: false, restart: Restart::None }
    }

    /// The key must be there.
    pub(super) fn required(self) -> Self {
        Self { is_required: true, ..self }
    }

    /// A change of this field takes effect only when the server is restarted.
    pub(super) fn restart<S: Clone + PartialEq + 'static>(self, field: fn(&mut T) -> &mut S) -> Self
    where
        T: 'static,
    {
        let keep = move |new: &mut T, running: &mut T| {
            let (new, running) = (field(new), field(running));
            let differs = new != running;
            new.clone_from(running);
            differs
        };
        Self { restart: Restart::All(Box::new(keep)), ..self }
    }

    /// Marks a key for which some changes take effect only after a restart. `keep` undoes these changes,
    /// and returns whether there was one. The meaning of the key names the changes.
    pub(super) fn restart_for(self, keep: fn(&mut T, &mut T) -> bool) -> Self
    where
        T: 'static,
    {
        Self { restart: Restart::Some(Box::new(keep)), ..self }
    }

    /// The key has these names too.
    pub(super) fn or(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    /// Returns the name of the key, and its aliases.
    pub(super) fn all_names(&self) -> impl Iterator<Item = &'static str> + use<T> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }

    fn is_called(&self, name: &str) -> bool {
        self.all_names().any(|known| known == name)
    }

    /// Reads the value of the key at `path`.
    pub(super) fn read(&self, reader: &mut Reader<'_>, target: &mut T, path: &str, node: &Node) {
        self.field.read(reader, target, path, node);
    }

    /// Reads the text of a flag or of an environment variable. Commas separate the items of a list.
    ///
    /// # Errors
    ///
    /// Returns a sentence with the expected form and the received text.
    pub(crate) fn read_variable(&self, target: &mut T, text: &OsStr) -> Result<(), String> {
        self.field.read_variable(target, text)
    }

    /// Returns the environment variable that sets the key. A variable cannot hold a mapping.
    pub(crate) fn variable(&self) -> Option<String> {
        self.field.has_variable().then(|| format!("ORLA_{}", self.name.to_ascii_uppercase()))
    }
}

/// Reads the text of an environment variable into a `T`. An error contains the expected form, and may
/// repeat the text unless it is a secret.
pub(super) type Variable<T> = fn(&mut T, &str) -> Result<(), String>;

/// The field of a `T` that a key sets.
trait Field<T>: Send + Sync {
    fn read(&self, reader: &mut Reader<'_>, target: &mut T, path: &str, node: &Node);

    /// Returns its JSON Schema, with the value in `defaults` as the default.
    fn schema(&self, defaults: &mut T) -> Json;

    fn has_variable(&self) -> bool {
        false
    }

    fn read_variable(&self, _target: &mut T, _text: &OsStr) -> Result<(), String> {
        Err("expected a configuration file to set this key".to_owned())
    }

    /// Returns the keys of its mapping, if they are known.
    fn keys(&self) -> &[Key<T>] {
        &[]
    }

    /// Returns whether its value is always a mapping with those keys.
    #[cfg(test)]
    fn is_section(&self) -> bool {
        false
    }
}

struct Placed<F, T, S> {
    form: F,
    place: fn(&mut T) -> &mut S,
}

impl<T, F: Form, S: Slot<F::Value>> Field<T> for Placed<F, T, S> {
    fn read(&self, reader: &mut Reader<'_>, target: &mut T, path: &str, node: &Node) {
        if let Some(value) = self.form.read(reader, path, node) {
            (self.place)(target).put(value);
        }
    }

    fn schema(&self, defaults: &mut T) -> Json {
        let mut schema = self.form.schema();
        if let Some(default) = S::get((self.place)(defaults)).and_then(|value| self.form.default(value))
        {
            schema["default"] = default;
        }
        schema
    }

    fn has_variable(&self) -> bool {
        F::HAS_VARIABLE
    }

    fn read_variable(&self, target: &mut T, text: &OsStr) -> Result<(), String> {
        (self.place)(target).put(self.form.read_variable(text)?);
        Ok(())
    }
}

struct Own<T> {
    read: fn(&mut Reader<'_>, &mut T, &str, &Node),
    schema: fn() -> Json,
    variable: Option<Variable<T>>,
    keys: Vec<Key<T>>,
}

impl<T> Field<T> for Own<T> {
    fn read(&self, reader: &mut Reader<'_>, target: &mut T, path: &str, node: &Node) {
        (self.read)(reader, target, path, node);
    }

    fn schema(&self, _: &mut T) -> Json {
        (self.schema)()
    }

    fn has_variable(&self) -> bool {
        self.variable.is_some()
    }

    fn read_variable(&self, target: &mut T, text: &OsStr) -> Result<(), String> {
        let text = text.to_str().ok_or("expected UTF-8 text")?;
        self.variable.map_or(Ok(()), |read| read(target, text))
    }

    fn keys(&self) -> &[Key<T>] {
        &self.keys
    }
}

struct Section<T>(Vec<Key<T>>);

impl<T> Field<T> for Section<T> {
    fn read(&self, reader: &mut Reader<'_>, target: &mut T, path: &str, node: &Node) {
        let expected = format!("a mapping with {}", names(&self.0));
        if let Some(pairs) = reader.pairs(path, node, &expected) {
            reader.mapping(path, node.at, present(pairs), &self.0, target);
        }
    }

    fn schema(&self, defaults: &mut T) -> Json {
        object(&self.0, defaults)
    }

    fn keys(&self) -> &[Key<T>] {
        &self.0
    }

    #[cfg(test)]
    fn is_section(&self) -> bool {
        true
    }
}

/// Returns the entries that have a value. In generated files, null means an absent key.
pub(super) fn present(pairs: &[(Name, Node)]) -> impl Iterator<Item = &(Name, Node)> {
    pairs.iter().filter(|(_, node)| !node.is_null())
}

/// Copies the running values of the keys whose change needs a restart, and returns the names of those
/// that differed. `prefix` precedes the names.
pub(super) fn keep<T>(keys: &[Key<T>], prefix: &str, new: &mut T, running: &mut T) -> Vec<String> {
    let mut kept = Vec::new();
    for key in keys {
        let name = format!("{prefix}{}", key.name);
        kept.extend(keep(key.field.keys(), &format!("{name}."), new, running));
        if key.restart.keep().is_some_and(|keep| keep(new, running)) {
            kept.push(name);
        }
    }
    kept
}

/// Returns the names of the keys whose change needs a restart.
#[cfg(test)]
pub(super) fn names_that_need_a_restart<T>(keys: &[Key<T>], prefix: &str) -> Vec<String> {
    let mut names = Vec::new();
    for key in keys {
        let name = format!("{prefix}{}", key.name);
        names.extend(names_that_need_a_restart(key.field.keys(), &format!("{name}.")));
        names.extend(key.restart.keep().is_some().then_some(name));
    }
    names
}

/// Returns the key with this name or alias.
pub(super) fn find<'k, T>(keys: &'k [Key<T>], name: &str) -> Option<&'k Key<T>> {
    keys.iter().find(|key| key.is_called(name))
}

/// Returns the names of the keys: `a, b or c`.
pub(super) fn names<T>(keys: &[Key<T>]) -> String {
    list_of(&keys.iter().map(|key| key.name).collect::<Vec<_>>())
}

impl Reader<'_> {
    /// Reads the entries of a mapping into `target`. Returns `None` if there was a problem, such as an
    /// unknown or a missing key.
    pub(super) fn mapping<'n, T>(
        &mut self,
        path: &str,
        at: Position,
        pairs: impl IntoIterator<Item = &'n (Name, Node)>,
        keys: &[Key<T>],
        target: &mut T,
    ) -> Option<()> {
        let before = self.problem_count();
        let mut found = vec![false; keys.len()];
        for (name, node) in pairs {
            let inner = format!("{path}.{}", name.text);
            if !self.reads(&inner) {
                continue;
            }
            match keys.iter().position(|key| key.is_called(&name.text)) {
                Some(index) => {
                    found[index] = true;
                    keys[index].read(self, target, &inner, node);
                }
                None => {
                    let known = keys.iter().map(|key| key.name);
                    self.unknown(name.at, &name.text, &format!("{path}."), known);
                }
            }
        }
        for (key, _) in keys.iter().zip(found).filter(|(key, found)| key.is_required && !found) {
            self.missing(at, path, key.name);
        }
        (self.problem_count() == before).then_some(())
    }

    /// Notes that a required key is not there.
    pub(super) fn missing(&mut self, at: Position, path: &str, name: &str) {
        self.problem(at, || format!("{path}.{name}: missing, and required"));
    }
}

/// Returns the JSON Schemas of the keys, by name; `defaults` holds their default values.
pub(super) fn properties<T>(keys: &[Key<T>], defaults: &mut T) -> Map<String, Json> {
    let property = |key: &Key<T>| {
        let mut schema = key.field.schema(defaults);
        let restart =
            if matches!(key.restart, Restart::All(_)) { ". A change needs a restart" } else { "" };
        schema["description"] = format!("{}{restart}", without_links(key.about)).into();
        (key.name.to_owned(), schema)
    };
    keys.iter().map(property).collect()
}

/// Returns the keys with plain values as (name, value as JSON, meaning). The keys of a section have the
/// section's name as a prefix. `values` contains the values.
pub(super) fn values<T>(keys: &[Key<T>], values: &mut T) -> Vec<(String, Option<Json>, String)> {
    fn add(prefix: &str, properties: &Map<String, Json>, out: &mut Vec<(String, Option<Json>, String)>) {
        for (name, schema) in properties {
            let name = format!("{prefix}{name}");
            let about = schema["description"].as_str().unwrap_or_default().to_owned();
            match schema["properties"].as_object() {
                Some(inner) if schema["additionalProperties"] == json!(false) => {
                    add(&format!("{name}."), inner, out);
                }
                _ => out.push((name, schema.get("default").cloned(), about)),
            }
        }
    }
    let mut out = Vec::new();
    add("", &properties(keys, values), &mut out);
    out
}

/// Returns the JSON Schema of a mapping with these keys and no others.
pub(super) fn object<T>(keys: &[Key<T>], defaults: &mut T) -> Json {
    let mut schema = json!({
        "type": "object", "properties": properties(keys, defaults), "additionalProperties": false
    });
    let required: Vec<&str> = keys.iter().filter(|key| key.is_required).map(|key| key.name).collect();
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// Returns the rows of the table in `docs/configuration.md`: name, default and meaning. `prefix`
/// precedes the names.
#[cfg(test)]
pub(super) fn documentation<T>(keys: &[Key<T>], prefix: &str, defaults: &mut T) -> String {
    use std::fmt::Write;

    let mut rows = String::new();
    for key in keys {
        let name = format!("{prefix}{}", key.name);
        let inner = documentation(key.field.keys(), &format!("{name}."), defaults);
        if key.field.is_section() {
            rows += &inner;
            continue;
        }
        let default = match &key.field.schema(defaults)["default"] {
            Json::Null => String::new(),
            Json::String(text) => format!("`{text}`"),
            other => format!("`{other}`"),
        };
        let restart = if matches!(key.restart, Restart::All(_)) { " †" } else { "" };
        let _ = writeln!(rows, "| `{name}`{restart} | {default} | {} |", key.about);
        rows += &inner;
    }
    rows
}

/// Markdown without the addresses of its links.
fn without_links(markdown: &str) -> String {
    let mut text = String::with_capacity(markdown.len());
    let mut rest = markdown;
    while let Some((before, link)) = rest.split_once("](") {
        let (before, label) = before.rsplit_once('[').unwrap_or((before, ""));
        text.push_str(before);
        text.push_str(label);
        rest = link.split_once(')').map_or("", |(_, rest)| rest);
    }
    text + rest
}
