//! A reader of HTML that is strict enough to find errors.

use std::collections::BTreeMap;

/// The attributes of an element.
pub(crate) type Attributes = BTreeMap<String, String>;

/// A page.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// All elements, in their order.
    elements: Vec<(String, Attributes)>,
    /// The forms by their actions, each with its controls.
    forms: Vec<(String, Vec<Control>)>,
    pub(crate) links: Vec<String>,
    pub(crate) assets: Vec<String>,
    pub(crate) text: String,
    /// The text within the elements that have an id.
    texts: BTreeMap<String, String>,
    problems: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct Control {
    attributes: Attributes,
    value: String,
    is_sent: bool,
}

const VOID: [&str; 7] = ["br", "col", "hr", "img", "input", "link", "meta"];

impl Page {
    /// Reads a page.
    pub(crate) fn read(html: &str) -> Self {
        let mut page = Self::default();
        let mut open: Vec<(String, Option<String>)> = Vec::new();
        let mut rest = html;
        while let Some(at) = rest.find('<') {
            page.words(&decoded(&rest[..at]), &open);
            let Some(end) = end_of(&rest[at..]) else { break };
            let tag = &rest[at + 1..at + end];
            rest = &rest[at + end + 1..];
            if tag.starts_with('!') {
                continue;
            }
            if let Some(name) = tag.strip_prefix('/') {
                match open.pop() {
                    Some((last, _)) if last == name => {}
                    last => page.problems.push(format!("</{name}> closes {last:?}")),
                }
                continue;
            }
            let (name, attributes) = element(tag);
            page.enter(&name, &attributes, &open);
            if !VOID.contains(&&*name) {
                open.push((name.clone(), attributes.get("id").cloned()));
            }
            page.elements.push((name, attributes));
        }
        if !open.is_empty() {
            page.problems.push(format!("never closed: {open:?}"));
        }
        page
    }

    fn words(&mut self, text: &str, open: &[(String, Option<String>)]) {
        if open.last().is_none_or(|(name, _)| name != "textarea") {
            self.text.push_str(text);
            self.text.push(' ');
        }
        for id in open.iter().filter_map(|(_, id)| id.as_ref()) {
            self.texts.entry(id.clone()).or_default().push_str(text);
        }
        if open.last().is_some_and(|(name, _)| name == "textarea")
            && let Some(control) = self.forms.last_mut().and_then(|(_, controls)| controls.last_mut())
        {
            control.value.push_str(text);
        }
    }

    fn enter(&mut self, name: &str, attributes: &Attributes, open: &[(String, Option<String>)]) {
        let get = |key: &str| attributes.get(key).cloned().unwrap_or_default();
        match name {
            "a" => self.links.push(get("href")),
            "script" => self.assets.push(get("src")),
            "link" => self.assets.push(get("href")),
            "form" => self.forms.push((get("action"), Vec::new())),
            "input" | "select" | "textarea" if open.iter().any(|(name, _)| name == "form") => {
                let is_box = get("type") == "checkbox";
                let control = Control {
                    value: get("value"),
                    is_sent: !is_box || attributes.contains_key("checked"),
                    attributes: attributes.clone(),
                };
                self.forms.last_mut().expect("a form").1.push(control);
            }
            "option" if attributes.contains_key("selected") => {
                let controls = self.forms.last_mut().map(|(_, controls)| controls);
                if let Some(select) = controls.and_then(|controls| controls.last_mut()) {
                    select.value = get("value");
                }
            }
            _ => {}
        }
    }

    /// Returns the fields that a browser sends for the form with this action and these values.
    pub(crate) fn fields(&self, action: &str, values: &[(&str, &str)]) -> Vec<(String, String)> {
        let form = self.forms.iter().find(|(own, _)| own == action);
        let (_, controls) = form.unwrap_or_else(|| panic!("no form for {action}: {}", self.text));
        let mut fields: Vec<(String, String)> = Vec::new();
        for control in controls.iter().filter(|control| control.is_sent) {
            let Some(name) = control.attributes.get("name") else { continue };
            let given = values.iter().find(|(own, _)| own == name);
            fields.push((
                name.clone(),
                given.map_or(control.value.clone(), |(_, value)| (*value).to_owned()),
            ));
        }
        let is_new = |name: &str| !fields.iter().any(|(own, _)| own == name);
        let new: Vec<_> = values.iter().filter(|(name, _)| is_new(name)).collect();
        fields.extend(new.into_iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        fields
    }

    /// Returns the control of this name.
    pub(crate) fn control(&self, name: &str) -> Option<&Attributes> {
        let controls = self.forms.iter().flat_map(|(_, controls)| controls);
        controls
            .map(|control| &control.attributes)
            .find(|own| own.get("name").is_some_and(|own| own == name))
    }

    /// Returns the content of the first field with this name.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let mut controls = self.forms.iter().flat_map(|(_, controls)| controls);
        let named =
            controls.find(|control| control.attributes.get("name").is_some_and(|own| own == name));
        named.map(|control| &*control.value)
    }

    /// Returns the text of the element with this id.
    pub(crate) fn text_of(&self, id: &str) -> String {
        self.texts.get(id).cloned().unwrap_or_default()
    }

    /// Returns the errors of the page.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = self.problems.clone();
        let count = |name: &str| self.elements.iter().filter(|(own, _)| own == name).count();
        for (name, expected) in [("h1", 1), ("main", 1), ("title", 1)] {
            if count(name) != expected {
                problems.push(format!("{} {name}", count(name)));
            }
        }
        if !self.elements.iter().any(|(name, own)| name == "html" && own.contains_key("lang")) {
            problems.push("no lang".to_owned());
        }
        let ids: Vec<&String> = self.elements.iter().filter_map(|(_, own)| own.get("id")).collect();
        let twice = ids.iter().enumerate().filter(|(at, id)| ids[..*at].contains(id));
        problems.extend(twice.map(|(_, id)| format!("id twice: {id}")));
        let labels: Vec<&String> = self
            .elements
            .iter()
            .filter(|(name, _)| name == "label")
            .filter_map(|(_, own)| own.get("for"))
            .collect();
        for (name, own) in &self.elements {
            if ["style", "iframe", "object", "embed", "base"].contains(&&**name) || name.contains("pwn")
            {
                problems.push(format!("<{name}>"));
            }
            for (key, value) in own {
                let value = value.trim().to_ascii_lowercase();
                let is_foreign =
                    value.starts_with("http:") || value.starts_with("https:") || value.starts_with("//");
                let loads =
                    ["src", "href", "action", "formaction"].contains(&&**key) || key.starts_with("hx-");
                if key.starts_with("on")
                    || key == "style"
                    || value.starts_with("javascript:") && loads
                    || is_foreign && loads
                {
                    problems.push(format!("<{name} {key}={value}>"));
                }
            }
            let kind = own.get("type").map(String::as_str).unwrap_or_default();
            let is_field = ["input", "select", "textarea"].contains(&&**name) && kind != "hidden";
            let is_labelled = own.contains_key("aria-label")
                || own.get("id").is_some_and(|id| labels.contains(&id))
                || kind == "checkbox";
            if is_field && !is_labelled {
                problems.push(format!("no label: {own:?}"));
            }
            if name == "script" && !own.contains_key("src") {
                problems.push("inline script".to_owned());
            }
        }
        problems
    }
}

/// Where a tag ends, quotes considered.
fn end_of(tag: &str) -> Option<usize> {
    let mut quoted = false;
    tag.char_indices().find_map(|(at, c)| {
        quoted ^= c == '"';
        (c == '>' && !quoted).then_some(at)
    })
}

fn element(tag: &str) -> (String, Attributes) {
    let (name, mut rest) = tag.split_once(char::is_whitespace).unwrap_or((tag, ""));
    let mut attributes = Attributes::new();
    while !rest.trim_start().is_empty() {
        rest = rest.trim_start();
        let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        let key = rest[..end].to_owned();
        rest = &rest[end..];
        let value = match rest.strip_prefix("=\"") {
            Some(quoted) => {
                let end = quoted.find('"').unwrap_or(quoted.len());
                rest = quoted.get(end + 1..).unwrap_or_default();
                decoded(&quoted[..end])
            }
            None => String::new(),
        };
        attributes.insert(key, value);
    }
    (name.to_owned(), attributes)
}

fn decoded(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}
