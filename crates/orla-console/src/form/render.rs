//! A form as HTML.

use std::cell::Cell;

use maud::{Markup, html};

use super::Form;
use super::build::option_value;
use super::node::{Choice, Control, Entry, Node, TextKind};
use crate::text::{plain, visible};

/// Writes a form. Its buttons are sent to `action`.
struct Writer<'a> {
    action: &'a str,
    number: Cell<usize>,
    /// The message of a group, which its first field names: a group itself cannot be marked as invalid.
    of_group: Cell<Option<String>>,
}

impl Form {
    /// Returns the fields, without the form around them. Buttons that change the form are sent to
    /// `action`.
    pub(crate) fn render(&self, action: &str) -> Markup {
        let writer = Writer { action, number: Cell::new(0), of_group: Cell::default() };
        html! {
            @if !self.problems.is_empty() {
                ul.problems role="alert" { @for problem in &self.problems { li { (plain(problem)) } } }
            }
            (writer.inside(&self.root))
        }
    }
}

impl Writer<'_> {
    fn next(&self) -> usize {
        self.number.set(self.number.get() + 1);
        self.number.get()
    }

    /// Returns a button that changes the form.
    fn button(&self, what: &str, path: &str, label: &str, about: &str) -> Markup {
        html! {
            button.small type="submit" name="_do" value={ (what) ":" (path) } formnovalidate
                hx-post=(self.action) hx-target="#fields" hx-select="#fields" hx-swap="outerHTML" {
                (label) @if !about.is_empty() { span.unseen { " " (visible(about)) } }
            }
        }
    }

    /// Returns a value with its label.
    fn node(&self, node: &Node) -> Markup {
        let (number, is_bad) = (self.next(), !node.problems.is_empty());
        let id = format!("f{number}");
        let (hint, error) = (format!("h{number}"), format!("e{number}"));
        let has_hint = node.description.is_some() || !node.rules.is_empty() || node.default.is_some();
        let of_group = if is_group(node) { None } else { self.of_group.take() };
        let described = [has_hint.then_some(&hint), is_bad.then_some(&error), of_group.as_ref()];
        let described =
            described.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" ");
        let described = Some(described).filter(|ids| !ids.is_empty());
        let about = html! {
            @if has_hint { p.hint id=(hint) { (explanation(node)) } }
            @if is_bad { p.error id=(error) { (plain(&node.problems.join("; "))) } }
        };
        if is_group(node) {
            return html! {
                fieldset.bad[is_bad] aria-describedby=[described] {
                    legend { (plain(&node.label)) (mark(node)) }
                    (about)
                    (self.null(node))
                    (self.group(node, is_bad.then_some(error.as_str())))
                    (self.remove(node))
                }
            };
        }
        let is_bad = is_bad || of_group.is_some();
        let field = Field { id: &id, described: described.as_deref(), is_bad, node };
        html! {
            div.field.bad[is_bad] {
                div.label { label for=(id) { (plain(&node.label)) (mark(node)) } (self.remove(node)) }
                (self.control(&field))
                (self.null(node))
                (about)
            }
        }
    }

    /// Renders the content of a group, whose message has this id.
    fn group(&self, node: &Node, error: Option<&str>) -> Markup {
        let Some(error) = error else { return self.inside(node) };
        let outer = self.of_group.replace(Some(error.to_owned()));
        let inside = self.inside(node);
        self.of_group.set(outer);
        inside
    }

    fn null(&self, node: &Node) -> Markup {
        html! {
            @if let Some(is_null) = node.null {
                label.inline { input type="checkbox" name="_null" value=(node.path) checked[is_null]; " null" }
            }
        }
    }

    fn remove(&self, node: &Node) -> Markup {
        html! { @if node.is_removable { (self.button("remove", &node.path, "Remove", &node.label)) } }
    }

    /// Returns the control of a value that is one field.
    fn control(&self, field: &Field<'_>) -> Markup {
        let Field { id, described, is_bad, node } = field;
        let (path, invalid) = (&node.path, is_bad.then_some("true"));
        let required = node.is_strict && node.null.is_none();
        match &node.control {
            Control::Text { kind, value } => match kind {
                TextKind::Lines | TextKind::File => html! {
                    @if *kind == TextKind::File {
                        input.file type="file" hidden data-into=(id) aria-label={ "File for " (visible(&node.label)) };
                    }
                    (area(field, path, value, required, false))
                },
                kind => {
                    let kind = match kind {
                        TextKind::Date => "date",
                        TextKind::Email => "email",
                        TextKind::Address => "url",
                        TextKind::Secret => "password",
                        _ => "text",
                    };
                    // A secret must be typed again.
                    let value = Some(value).filter(|_| kind != "password");
                    html! {
                        input id=(id) type=(kind) name=(path) value=[value] required[required]
                            aria-invalid=[invalid] aria-describedby=[*described] autocomplete="off" spellcheck="false";
                    }
                }
            },
            Control::Number { is_whole, value } => html! {
                input.number id=(id) type="text" inputmode=(if *is_whole { "numeric" } else { "decimal" })
                    name=(path) value=(value) required[required]
                    aria-invalid=[invalid] aria-describedby=[*described] autocomplete="off";
            },
            Control::Select { options, choice } => html! {
                select id=(id) name=(path) required[required] aria-invalid=[invalid] aria-describedby=[*described] {
                    option value="" { (if node.is_required { "choose" } else { "not set" }) }
                    @for (at, (value, label)) in options.iter().enumerate() {
                        option value=(option_value(value)) selected[*choice == Choice::Option(at)] { (visible(label)) }
                    }
                }
            },
            Control::Fixed(value) => {
                html! { output.fixed id=(id) { code { (plain(&value.to_string())) } } }
            }
            Control::Any { value } => area(field, path, value, false, false),
            Control::Raw { value, why } => html! {
                (area(field, &format!("_json.{path}"), value, false, true))
                @match why {
                    Some(why) => p.hint { "As JSON, because " (plain(why)) "." },
                    None => p.hint { "As JSON. " (self.button("form", path, "Use fields", &node.label)) },
                }
            },
            Control::Object { .. }
            | Control::Array { .. }
            | Control::Alternatives { .. }
            | Control::Closed => {
                html! {}
            }
        }
    }

    /// Renders the content of a value with several parts; for other values, the value with its label.
    fn inside(&self, node: &Node) -> Markup {
        match &node.control {
            Control::Object { members, entries, may_add } => html! {
                @for member in members { (self.node(member)) }
                @for entry in entries { (self.entry(entry)) }
                @if *may_add { p { (self.button("entry", &node.path, "Add a member", &node.label)) } }
                @if members.is_empty() && entries.is_empty() && !may_add { p.hint { "It has no members." } }
            },
            Control::Array { items, may_add } => html! {
                // An empty list stays empty, and an empty item is shown again.
                input type="hidden" name="_open" value=(node.path);
                @for item in items {
                    input type="hidden" name="_open" value=(item.path);
                    (self.node(item))
                }
                @if *may_add { p { (self.button("add", &node.path, "Add an item", &node.label)) } }
            },
            Control::Alternatives { names, chosen, inner } => html! {
                @if !names.is_empty() { (self.choice(node, names, *chosen)) }
                @if let Some(inner) = inner { (self.part(inner)) }
            },
            Control::Closed => html! { p { (self.button("open", &node.path, "Fill in", &node.label)) } },
            _ => self.node(node),
        }
    }

    fn choice(&self, node: &Node, names: &[String], chosen: Option<usize>) -> Markup {
        let id = format!("f{}", self.next());
        html! {
            div.choice {
                label.unseen for=(id) { "Kind of " (visible(&node.label)) }
                select id=(id) name={ "_as." (node.path) } data-show {
                    @if !node.is_required { option value="" { "not set" } }
                    @for (at, name) in names.iter().enumerate() {
                        option value=(at) selected[chosen == Some(at)] { (visible(name)) }
                    }
                }
                (self.button("show", &node.path, "Choose", ""))
            }
        }
    }

    /// Returns the alternative that was chosen.
    fn part(&self, node: &Node) -> Markup {
        if !is_group(node) {
            return self.inside(node);
        }
        let error = (!node.problems.is_empty()).then(|| format!("e{}", self.next()));
        html! {
            @if let Some(id) = &error { p.error id=(id) { (plain(&node.problems.join("; "))) } }
            @if let Some(description) = &node.description { p.hint { (plain(description)) } }
            (self.group(node, error.as_deref()))
        }
    }

    /// Returns a member that the schema does not list.
    fn entry(&self, entry: &Entry) -> Markup {
        let id = format!("f{}", self.next());
        html! {
            div.entry {
                @if entry.has_field {
                    div.field {
                        div.label { label for=(id) { "Name of the member" } }
                        input id=(id) name={ "_key." (entry.node.path) } value=(entry.key) autocomplete="off" spellcheck="false";
                    }
                }
                (self.node(&entry.node))
            }
        }
    }
}

/// Returns whether a value has fields within it.
fn is_group(node: &Node) -> bool {
    matches!(
        node.control,
        Control::Object { .. } | Control::Array { .. } | Control::Alternatives { .. } | Control::Closed
    )
}

struct Field<'a> {
    id: &'a str,
    described: Option<&'a str>,
    is_bad: bool,
    node: &'a Node,
}

/// Returns a field of several lines, which grows with its text.
fn area(field: &Field<'_>, name: &str, value: &str, required: bool, is_code: bool) -> Markup {
    let lines = value.lines().count().clamp(1, 20);
    html! {
        textarea.code[is_code] id=(field.id) name=(name) rows=(if is_code { lines.max(3) } else { lines }) required[required]
            aria-invalid=[field.is_bad.then_some("true")] aria-describedby=[field.described]
            aria-label=[field.node.label.is_empty().then_some("Value")] spellcheck="false" {
            // A browser removes the first line break.
            @if value.starts_with('\n') { "\n" }
            (value)
        }
    }
}

fn mark(node: &Node) -> Markup {
    html! { @if node.is_required && !node.is_removable { " " span.mark { "required" } } }
}

/// Renders the explanation of a value.
fn explanation(node: &Node) -> Markup {
    html! {
        @if let Some(description) = &node.description { span.about { (plain(description)) } " " }
        @if !node.rules.is_empty() { span.rules { (plain(&node.rules.join(", "))) } " " }
        @if let Some(default) = &node.default { span.rules { "default " code { (plain(default)) } } }
    }
}
