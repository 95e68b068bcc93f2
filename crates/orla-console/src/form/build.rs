//! Builds the tree of a form from a schema and the known parts of the input.

use std::collections::BTreeSet;

use serde_json::Value;

use super::fields::{Fields, join, key_of, step_of};
use super::node::{Choice, Control, Entry, Node, TextKind};
use super::schema::{Place, place};
use crate::exact::Json;

/// The maximum number of nodes of one form. Further values are JSON text.
const MAX_NODES: usize = 600;
/// The maximum number of further nodes for the fields of a form that was sent.
const MAX_SENT_NODES: usize = 10 * MAX_NODES;
/// The deepest level that is shown initially.
const SHOWN_DEPTH: usize = 5;
/// The deepest level that has fields. Deeper values are JSON text.
const MAX_DEPTH: usize = 24;
/// The maximum number of values of a list to choose from.
const MAX_OPTIONS: usize = 500;
/// The maximum number of alternatives of one choice.
const MAX_ALTERNATIVES: usize = 60;
/// How deep alternatives may have alternatives.
const MAX_NESTED_CHOICES: usize = 3;
/// The maximum number of items that a new list shows.
const MAX_NEW_ITEMS: usize = 10;

/// The known part of a value.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// The value, if there is one.
    Input(Option<&'a Json>),
    Fields(&'a Fields),
}

pub(super) struct Builder<'a> {
    root: &'a Value,
    /// The number of nodes that may still be shown without being sent.
    left: usize,
    /// The number of nodes that may still be made for fields that were sent, and of those beyond `left`.
    sent_left: usize,
}

/// Where a node is.
#[derive(Clone)]
struct At {
    path: String,
    label: String,
    is_required: bool,
    is_strict: bool,
    depth: usize,
    /// The references that lead here.
    references: Vec<String>,
    /// The references that were followed since the last step into the data.
    followed: Vec<String>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        Self { root, left: MAX_NODES, sent_left: MAX_SENT_NODES }
    }

    pub(super) fn root(mut self, source: Source<'_>) -> Node {
        let at = At {
            path: String::new(),
            label: "Input".to_owned(),
            is_required: true,
            is_strict: true,
            depth: 0,
            references: Vec::new(),
            followed: Vec::new(),
        };
        let schema = self.root;
        self.node(schema, at, source)
    }

    /// Counts one more node. Returns whether it may be built. The fields of a form are all read, although the form
    /// that is made of them shows more than the one that was sent.
    fn takes_one(&mut self, is_sent: bool) -> bool {
        if !is_sent && let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            return true;
        }
        let is_in_budget = self.sent_left > 0;
        self.sent_left = self.sent_left.saturating_sub(1);
        is_sent && is_in_budget
    }

    fn node(&mut self, schema: &Value, at: At, source: Source<'_>) -> Node {
        self.of_place(&place(self.root, schema), at, source)
    }

    fn of_place(&mut self, place: &Place, at: At, source: Source<'_>) -> Node {
        let mut node = Node {
            label: place.text("title").map_or_else(|| at.label.clone(), str::to_owned),
            description: place.text("description").map(str::to_owned),
            rules: rules(place),
            default: place.keywords.get("default").map(Value::to_string),
            is_required: at.is_required,
            is_strict: at.is_strict,
            null: None,
            is_removable: false,
            control: Control::Closed,
            problems: Vec::new(),
            place: None,
            path: at.path.clone(),
        };
        node.control = self.control(&mut node, place, at, source);
        let Source::Input(Some(value)) = source else { return node };
        // Values that the fields cannot express become JSON text.
        let is_same = node.clone().read("").value.is_some_and(|read| read.is_same(value));
        if !is_same {
            node.null = node.null.map(|_| false);
            node.control = Control::Raw { value: value.pretty(), why: None };
        }
        node
    }

    fn control(&mut self, node: &mut Node, place: &Place, at: At, source: Source<'_>) -> Control {
        let raw = |why: Option<&str>| {
            let value = match source {
                Source::Input(value) => value.map(Json::pretty).unwrap_or_default(),
                Source::Fields(fields) => fields.json(&at.path).unwrap_or_default().to_owned(),
            };
            Control::Raw { value, why: why.map(str::to_owned) }
        };
        if let Source::Fields(fields) = source
            && fields.json(&at.path).is_some()
            && !fields.is_null(&at.path)
        {
            return raw(place.problem.as_deref());
        }
        let is_mentioned = match source {
            Source::Input(value) => value.is_some(),
            Source::Fields(fields) => fields.mentions(&at.path),
        };
        let is_sent = is_mentioned && matches!(source, Source::Fields(_));
        if !self.takes_one(is_sent) {
            return raw(Some("the form has too many fields"));
        }
        let is_recursive = place.references.iter().any(|reference| at.references.contains(reference));
        let is_composite =
            place.keywords.contains_key("properties") || place.keywords.contains_key("items");
        let is_hidden = is_recursive || (at.depth > SHOWN_DEPTH && is_composite);
        if let Some(problem) = &place.problem {
            return raw(Some(problem));
        }
        if place.references.iter().any(|reference| at.followed.contains(reference)) {
            return raw(Some("its schema refers to itself"));
        }
        if at.depth > MAX_DEPTH {
            return raw(Some("it is nested too deep"));
        }
        if is_hidden && !is_mentioned {
            return Control::Closed;
        }
        let mut nested = at;
        nested.references.extend(place.references.iter().cloned());
        nested.followed.extend(place.references.iter().cloned());
        // A default is filled in if the value is required and nothing else is known.
        let default =
            place.keywords.get("default").filter(|_| nested.is_strict && !is_mentioned).map(Json::of);
        let source = match &default {
            Some(default) => Source::Input(Some(default)),
            None if is_mentioned => source,
            None => Source::Input(None),
        };
        if let Some(value) = place.keywords.get("const") {
            return Control::Fixed(Json::of(value));
        }
        if let Some(options) = options(self.root, place) {
            return select(options, &nested, source);
        }
        let mut alternatives = Vec::new();
        flatten(self.root, place.clone(), 0, &mut alternatives);
        let is_null =
            |one: &Place| one.types() == ["null"] || one.keywords.get("const") == Some(&Value::Null);
        let before = alternatives.len();
        if before > 1 {
            alternatives.retain(|one| !is_null(one));
        }
        let source = match alternatives.len() < before && !alternatives.is_empty() {
            true => {
                let (is_null, source) = nullness(&nested.path, source);
                node.null = Some(is_null);
                source
            }
            false => source,
        };
        match &mut alternatives[..] {
            [] => self.of_type(place, &nested, source),
            [only] if only.problem.is_none() => {
                node.description =
                    node.description.take().or(only.text("description").map(str::to_owned));
                // A node that represents the whole input has no second title.
                match options(self.root, only) {
                    Some(options) => select(options, &nested, source),
                    None => self.of_type(only, &nested, source),
                }
            }
            _ => self.choose(&alternatives, &nested, source),
        }
    }

    /// Returns a value of one type.
    fn of_type(&mut self, place: &Place, at: &At, source: Source<'_>) -> Control {
        if let Some(value) = place.keywords.get("const") {
            return Control::Fixed(Json::of(value));
        }
        let types = place.types();
        let has = |keyword: &str| place.keywords.contains_key(keyword);
        let kind = match &types[..] {
            [kind] => &**kind,
            _ if has("properties") || has("additionalProperties") || has("patternProperties") => {
                "object"
            }
            _ if has("items") || has("prefixItems") => "array",
            _ if has("pattern") || has("format") || has("minLength") || has("maxLength") => "string",
            _ if has("minimum") || has("maximum") || has("multipleOf") => "number",
            _ => "any",
        };
        match kind {
            "string" => text(place, text_of(&at.path, source)),
            "integer" | "number" => {
                Control::Number { is_whole: kind == "integer", value: text_of(&at.path, source) }
            }
            "boolean" => {
                let options =
                    vec![(Json::Bool(true), "true".to_owned()), (Json::Bool(false), "false".to_owned())];
                select(options, at, source)
            }
            "null" => Control::Fixed(Json::Null),
            "object" => self.object(place, at, source),
            "array" => self.array(place, at, source),
            _ => {
                let value = match source {
                    Source::Input(Some(Json::Text(text)))
                        if Json::parse(text).is_err() && is_sent_as_it_is(text) =>
                    {
                        text.clone()
                    }
                    Source::Input(Some(value)) => value.to_string(),
                    source => text_of(&at.path, source),
                };
                Control::Any { value }
            }
        }
    }

    /// Returns a choice between alternatives.
    fn choose(&mut self, alternatives: &[Place], at: &At, source: Source<'_>) -> Control {
        let names = names(alternatives);
        let inner = |this: &mut Self, chosen: usize, source: Source<'_>| {
            let inner = alternatives.get(chosen)?;
            // An alternative that was chosen is wanted.
            let at = At { label: String::new(), is_required: true, ..at.clone() };
            let mut node = this.of_place(inner, at, source);
            node.label = String::new();
            Some(Box::new(node))
        };
        let chosen = match source {
            Source::Fields(fields) => match fields.alternative(&at.path) {
                Some("") => None,
                Some(word) => word.parse().ok().filter(|chosen| *chosen < alternatives.len()),
                None => likely(alternatives, &fields.steps(&at.path)).or_else(|| {
                    let has_value = fields.get(&at.path).is_some_and(|value| !value.is_empty());
                    (at.is_required || has_value).then_some(0)
                }),
            },
            Source::Input(None) => at.is_required.then_some(0),
            Source::Input(Some(value)) => {
                let root = self.root;
                let (fitting, others): (Vec<usize>, Vec<usize>) = (0..alternatives.len())
                    .partition(|one| alternatives[*one].may_admit(root, value, 0));
                let found = fitting.into_iter().chain(others).find_map(|one| {
                    let node = inner(self, one, source)?;
                    let is_raw = matches!(node.control, Control::Raw { .. });
                    (!is_raw).then_some((one, node))
                });
                return match found {
                    Some((one, node)) => {
                        Control::Alternatives { names, chosen: Some(one), inner: Some(node) }
                    }
                    None => Control::Raw { value: value.pretty(), why: None },
                };
            }
        };
        let inner = chosen.and_then(|chosen| inner(self, chosen, source));
        Control::Alternatives { names, chosen, inner }
    }

    fn object(&mut self, place: &Place, at: &At, source: Source<'_>) -> Control {
        let mut members = Vec::new();
        for (name, schema) in place.properties() {
            let is_required = place.requires(name);
            let at = At {
                path: join(&at.path, &step_of(name)),
                label: name.clone(),
                is_required,
                is_strict: is_required && at.is_strict,
                depth: at.depth + 1,
                references: at.references.clone(),
                followed: Vec::new(),
            };
            let source = match source {
                Source::Input(value) => Source::Input(value.and_then(|value| value.get(name))),
                fields @ Source::Fields(_) => fields,
            };
            members.push(self.node(schema, at, source));
        }
        let is_listed = |name: &str| place.properties().any(|(own, _)| own == name);
        let others = place.other_members();
        let mut entries = Vec::new();
        if let Some(schema) = &others {
            let mut entry =
                |this: &mut Self, step: &str, key: String, has_field: bool, source: Source<'_>| {
                    let at = At {
                        path: join(&at.path, step),
                        label: key.clone(),
                        is_required: false,
                        is_strict: false,
                        depth: at.depth + 1,
                        references: at.references.clone(),
                        followed: Vec::new(),
                    };
                    let mut node = this.node(schema, at, source);
                    node.is_removable = true;
                    node.label.clone_from(&key);
                    entries.push(Entry { key, has_field, node });
                };
            match source {
                Source::Input(Some(Json::Object(source))) => {
                    let others = source.iter().filter(|(name, _)| !is_listed(name)).enumerate();
                    for (number, (key, value)) in others {
                        entry(
                            self,
                            &format!("~n{number}"),
                            key.clone(),
                            true,
                            Source::Input(Some(value)),
                        );
                    }
                }
                Source::Input(_) if members.is_empty() && at.depth == 0 => {
                    entry(self, "~n0", String::new(), true, Source::Input(None));
                }
                Source::Input(_) => {}
                Source::Fields(fields) => {
                    for step in fields.steps(&at.path) {
                        if let Some(key) = key_of(step) {
                            if !is_listed(&key) {
                                entry(self, step, key, false, source);
                            }
                        } else if step.starts_with("~n") {
                            let key = fields.key(&join(&at.path, step)).unwrap_or_default();
                            entry(self, step, key.to_owned(), true, source);
                        }
                    }
                }
            }
        }
        let may_add = others.is_some() && place.invites_others();
        Control::Object { members, entries, may_add }
    }

    fn array(&mut self, place: &Place, at: &At, source: Source<'_>) -> Control {
        let number = |keyword: &str| {
            let count = place.keywords.get(keyword).and_then(Value::as_u64)?;
            usize::try_from(count).ok()
        };
        let prefix = place.keywords.get("prefixItems").and_then(Value::as_array);
        let prefix = prefix.map(Vec::as_slice).unwrap_or_default();
        let further = place.keywords.get("items").cloned();
        let least = number("minItems").unwrap_or_default();
        let fresh = least.max(prefix.len()).clamp(1, MAX_NEW_ITEMS);
        let numbers: Vec<usize> = match source {
            Source::Input(Some(Json::Array(items))) => (0..items.len()).collect(),
            Source::Fields(fields) if fields.mentions(&at.path) => {
                fields.numbers(&at.path, "").into_iter().collect()
            }
            _ if at.depth <= SHOWN_DEPTH => (0..fresh).collect(),
            _ => Vec::new(),
        };
        let mut items = Vec::new();
        for number in numbers {
            let schema = match (prefix.get(number), &further) {
                (Some(schema), _) => schema.clone(),
                (None, Some(Value::Bool(false))) => continue,
                (None, Some(schema)) => schema.clone(),
                (None, None) => Value::Bool(true),
            };
            let at = At {
                path: join(&at.path, &number.to_string()),
                label: format!("{} {}", at.label, number + 1),
                is_required: false,
                is_strict: at.is_strict && number < least,
                depth: at.depth + 1,
                references: at.references.clone(),
                followed: Vec::new(),
            };
            let source = match source {
                Source::Input(Some(Json::Array(values))) => Source::Input(values.get(number)),
                Source::Input(_) => Source::Input(None),
                fields @ Source::Fields(_) => fields,
            };
            let mut item = self.node(&schema, at, source);
            item.is_removable = true;
            items.push(item);
        }
        let is_closed = further == Some(Value::Bool(false));
        let may_add = !is_closed && number("maxItems").is_none_or(|most| items.len() < most);
        Control::Array { items, may_add }
    }
}

/// Returns a field for a text. If the browser's field for the format would change the text, the field is
/// plain.
fn text(place: &Place, value: String) -> Control {
    let kind = text_kind(place);
    let digits =
        |part: &str, count: usize| part.len() == count && part.bytes().all(|c| c.is_ascii_digit());
    let suits = value.is_empty()
        || match kind {
            TextKind::Date => {
                let parts: Vec<&str> = value.split('-').collect();
                matches!(&parts[..], [year, month, day]
                    if digits(year, 4) && digits(month, 2) && digits(day, 2))
            }
            TextKind::Email => value.contains('@') && !value.contains(char::is_whitespace),
            TextKind::Address => value.contains("://") && !value.contains(char::is_whitespace),
            TextKind::Line | TextKind::Secret => !value.contains('\n'),
            TextKind::Lines | TextKind::File => true,
        };
    let kind = if suits { kind } else { TextKind::Lines };
    Control::Text { kind, value }
}

/// Collects the alternatives of a place, including those of its alternatives and its types, so that one
/// choice suffices.
fn flatten(root: &Value, place: Place, depth: usize, out: &mut Vec<Place>) {
    let is_one = ["const", "enum"].iter().any(|keyword| place.keywords.contains_key(*keyword));
    if out.len() >= MAX_ALTERNATIVES {
        return;
    }
    if is_one || place.problem.is_some() {
        return out.push(place);
    }
    if let Some(alternatives) = place.alternatives(root) {
        for mut one in alternatives {
            if depth >= MAX_NESTED_CHOICES {
                one.problem = Some("its alternatives have too many of their own".to_owned());
            }
            flatten(root, one, depth + 1, out);
        }
        return;
    }
    let types = place.types();
    if types.len() < 2 {
        return out.push(place);
    }
    for kind in types {
        let mut one = place.clone();
        one.keywords.shift_remove("title");
        one.keywords.insert("type".to_owned(), kind.into());
        out.push(one);
    }
}

/// Returns whether the value is `null`, and otherwise its known part.
fn nullness<'a>(path: &str, source: Source<'a>) -> (bool, Source<'a>) {
    match source {
        Source::Input(Some(Json::Null)) => (true, Source::Input(None)),
        Source::Fields(fields) => (fields.is_null(path), source),
        source @ Source::Input(_) => (false, source),
    }
}

/// Returns the text of a field.
fn text_of(path: &str, source: Source<'_>) -> String {
    match source {
        Source::Input(Some(Json::Text(text) | Json::Number(text))) if is_sent_as_it_is(text) => {
            text.clone()
        }
        Source::Input(_) => String::new(),
        Source::Fields(fields) => fields.get(path).unwrap_or_default().to_owned(),
    }
}

fn select(options: Vec<(Json, String)>, at: &At, source: Source<'_>) -> Control {
    let position = |is: &dyn Fn(&Json) -> bool| options.iter().position(|(option, _)| is(option));
    let choice = match source {
        Source::Input(value) => {
            let chosen = value.and_then(|value| position(&|option| option.is_same(value)));
            chosen.map_or(Choice::Nothing, Choice::Option)
        }
        Source::Fields(fields) => match fields.get(&at.path).unwrap_or_default() {
            "" => Choice::Nothing,
            sent => {
                let chosen = position(&|option| option_value(option) == sent);
                chosen.map_or_else(|| Choice::Other(sent.to_owned()), Choice::Option)
            }
        },
    };
    Control::Select { options, choice }
}

/// Returns the text that a browser sends for an option: a text unchanged, unless it could be parsed as
/// JSON. Other values, and such texts, are sent as JSON.
pub(super) fn option_value(option: &Json) -> String {
    match option {
        Json::Text(text) if !text.is_empty() && is_sent_as_it_is(text) && Json::parse(text).is_err() => {
            text.clone()
        }
        other => other.to_string(),
    }
}

/// Returns whether browsers send a text of several lines as it is.
fn is_sent_as_it_is(text: &str) -> bool {
    text.chars().all(|c| !c.is_control() || c == '\n' || c == '\t')
}

/// Returns the values to choose from, each with its name.
fn options(root: &Value, place_: &Place) -> Option<Vec<(Json, String)>> {
    let named = |value: &Json| match value {
        Json::Text(text) if !text.is_empty() => text.clone(),
        other => other.to_string(),
    };
    if let Some(listed) = place_.keywords.get("enum").and_then(Value::as_array) {
        let names = place_.keywords.get("enumNames").and_then(Value::as_array);
        let options = listed.iter().enumerate().map(|(at, value)| {
            let value = Json::of(value);
            let name = names.and_then(|names| names.get(at)).and_then(Value::as_str);
            let name = name.map_or_else(|| named(&value), str::to_owned);
            (value, name)
        });
        return Some(options.take(MAX_OPTIONS).collect());
    }
    // Alternatives that are one value each.
    let key = ["oneOf", "anyOf"].into_iter().find(|key| place_.keywords.contains_key(*key))?;
    let listed = place_.keywords.get(key)?.as_array()?;
    let mut options = Vec::new();
    for one in listed {
        let one = place(root, one);
        let value = Json::of(one.keywords.get("const")?);
        let name = one.text("title").map_or_else(|| named(&value), str::to_owned);
        options.push((value, name));
    }
    (!options.is_empty()).then_some(options)
}

/// Returns the names of alternatives.
fn names(alternatives: &[Place]) -> Vec<String> {
    let name = |(at, one): (usize, &Place)| {
        if let Some(title) = one.text("title") {
            return title.to_owned();
        }
        let constant = one.properties().find_map(|(name, schema)| {
            let value = schema.get("const")?;
            Some(format!("{name}: {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
        });
        if let Some(constant) = constant {
            return constant;
        }
        let members: Vec<&str> = one.properties().map(|(name, _)| name.as_str()).take(4).collect();
        match (one.types().first(), members.is_empty()) {
            (_, false) => members.join(", "),
            (Some(kind), true) => match one.text("format") {
                Some(format) => format!("{kind} ({format})"),
                None => kind.clone(),
            },
            (None, true) => match one.keywords.get("const").or(one.keywords.get("enum")) {
                Some(value) => value.to_string(),
                None => format!("alternative {}", at + 1),
            },
        }
    };
    alternatives.iter().enumerate().map(name).collect()
}

/// Returns the alternative that lists most of the members that are there.
fn likely(alternatives: &[Place], steps: &BTreeSet<&str>) -> Option<usize> {
    let known = |one: &Place| {
        let is_listed = |step: &&&str| one.properties().any(|(name, _)| step_of(name) == ***step);
        steps.iter().filter(is_listed).count()
    };
    let scores = alternatives.iter().map(known).enumerate();
    scores.rev().max_by_key(|(_, score)| *score).filter(|(_, score)| *score > 0).map(|(at, _)| at)
}

fn text_kind(place: &Place) -> TextKind {
    if place.flag("writeOnly") {
        return TextKind::Secret;
    }
    if place.text("contentEncoding") == Some("base64") {
        return TextKind::File;
    }
    match place.text("format") {
        Some("date") => TextKind::Date,
        Some("email" | "idn-email") => TextKind::Email,
        Some("uri" | "url" | "iri") => TextKind::Address,
        Some("password") => TextKind::Secret,
        Some("byte" | "binary") => TextKind::File,
        Some(_) => TextKind::Line,
        None => {
            let is_short =
                place.keywords.get("maxLength").and_then(Value::as_u64).is_some_and(|most| most <= 200);
            match place.keywords.contains_key("pattern") || is_short {
                true => TextKind::Line,
                false => TextKind::Lines,
            }
        }
    }
}

/// Returns the requirements of a schema besides its type, in words.
fn rules(place: &Place) -> Vec<String> {
    let number = |keyword: &str| place.keywords.get(keyword).filter(|value| value.is_number());
    let mut rules = Vec::new();
    let mut both = |least: Option<&Value>, most: Option<&Value>, unit: &str| match (least, most) {
        (Some(least), Some(most)) if least == most => rules.push(format!("exactly {least}{unit}")),
        (Some(least), Some(most)) => rules.push(format!("{least} to {most}{unit}")),
        (Some(least), None) => rules.push(format!("at least {least}{unit}")),
        (None, Some(most)) => rules.push(format!("at most {most}{unit}")),
        (None, None) => {}
    };
    both(number("minLength"), number("maxLength"), " characters");
    both(number("minimum"), number("maximum"), "");
    both(number("minItems"), number("maxItems"), " items");
    both(number("minProperties"), number("maxProperties"), " members");
    for (keyword, words) in [
        ("exclusiveMinimum", "more than"),
        ("exclusiveMaximum", "less than"),
        ("multipleOf", "a multiple of"),
    ] {
        rules.extend(number(keyword).map(|value| format!("{words} {value}")));
    }
    if place.flag("uniqueItems") {
        rules.push("no item twice".to_owned());
    }
    rules.extend(place.text("format").map(str::to_owned));
    rules.extend(place.text("pattern").map(|pattern| format!("pattern {pattern}")));
    if place.flag("deprecated") {
        rules.push("deprecated".to_owned());
    }
    rules
}
