//! Templates: texts with placeholders for values, in Mustache.
//!
//! A template language that builds values (such as Jinja) can double a text with each instruction, and
//! no limit of instructions bounds that. Mustache only writes, so limits on the output and on the steps
//! bound everything.

use rtfs::{Map, Value};

use crate::arguments::{Arguments, name_of};
use crate::builtin::{Builtin, defaulted, example, optional, required};
use crate::error::BuiltinError;
use crate::groups::field;
use crate::limits::{BoundedText, Budget};
use crate::schema::{OBJECT, TEXT};

type Result<T> = std::result::Result<T, BuiltinError>;

/// The maximum nesting of sections and partials.
const MAX_NESTING: usize = 100;

pub(super) static BUILTINS: &[Builtin] = &[Builtin {
    name: "template.render",
    title: "Render a template",
    description: "A text with values in the places of a Mustache template: {{name}} or {{a.b}} for a value, \
                  {{#list}}…{{/list}} for each item (or once, for what is true or an object), {{^list}}…{{/list}} for \
                  none, {{.}} for the item itself, {{! a comment}}, {{>name}} for a partial. Objects and lists in a place of \
                  a value are written as JSON.",
    parameters: &[
        required("template", TEXT, "The template."),
        required("data", OBJECT, "The values by their names."),
        defaulted(
            "escape",
            r#""enum":["none","html"]"#,
            "\"none\"",
            "`html` escapes what values contain, but in {{{name}}} and {{&name}}.",
        ),
        optional(
            "partials",
            r#""type":"object","additionalProperties":{"type":"string"}"#,
            "Templates by the names under which others include them.",
        ),
    ],
    output: TEXT,
    examples: &[
        example(
            r#"{"template":"{{#people}}\n- {{name}} ({{age}})\n{{/people}}\n{{^people}}Nobody.{{/people}}","data":{"people":[{"name":"Ada","age":36},{"name":"Kurt","age":71}]}}"#,
            r#""- Ada (36)\n- Kurt (71)\n""#,
        ),
        example(
            r#"{"template":"<b>{{x}}</b> {{{x}}}","data":{"x":"a & b"},"escape":"html"}"#,
            r#""<b>a &amp; b</b> a & b""#,
        ),
    ],
    run: render,
}];

fn render(args: &Arguments<'_>) -> Result<Value> {
    let html = args.choice("escape", &[("none", false), ("html", true)], false)?;
    let partials = &args.texts_by_name("partials")?;
    args.map("data")?;
    let mut renderer =
        Renderer { html, partials, out: BoundedText::default(), budget: Budget::new(), nesting: 0 };
    let nodes = parse("template", args.text("template")?)?;
    renderer.nodes(&nodes, &mut vec![args.value("data")?])?;
    Ok(renderer.out.finish())
}

enum Node<'t> {
    Text(&'t str),
    Value { name: &'t str, raw: bool },
    Section { name: &'t str, inverted: bool, inner: Vec<Self> },
    Partial { name: &'t str, indent: &'t str },
}

/// The kind of a tag.
enum Tag<'t> {
    Value(&'t str, bool),
    Open(&'t str, bool),
    Close(&'t str),
    Partial(&'t str),
    Comment,
}

fn parse<'t>(argument: &str, template: &'t str) -> Result<Vec<Node<'t>>> {
    let mut open: Vec<(&str, bool, Vec<Node<'t>>)> = Vec::new();
    let mut nodes = Vec::new();
    let mut at = 0;
    let problem = |at: usize, problem: &str| {
        let line = template[..at].matches('\n').count() + 1;
        BuiltinError::content(argument, format_args!("{problem} (line {line})"))
    };
    while let Some(start) = template[at..].find("{{").map(|found| at + found) {
        let (tag, end) = tag(template, start).map_err(|what| problem(start, what))?;
        // A tag that is alone on its line removes the line, unless it writes a value. Text before the
        // last tag is not examined again, and the end of a line only for its first tag.
        let line_start = match template[at..start].rfind('\n') {
            Some(found) => Some(at + found + 1),
            None => Some(at).filter(|at| *at == 0 || template[..*at].ends_with('\n')),
        };
        let before = line_start.map(|line_start| &template[line_start..start]);
        let indent = before.filter(|before| before.trim().is_empty() && !matches!(tag, Tag::Value(..)));
        let line_end = || template[end..].find('\n').map_or(template.len(), |found| end + found + 1);
        let alone = indent
            .map(|indent| (indent, line_end()))
            .filter(|(_, line_end)| template[end..*line_end].trim().is_empty());
        let (text_end, next) =
            alone.map_or((start, end), |(indent, line_end)| (start - indent.len(), line_end));
        nodes.push(Node::Text(&template[at..text_end]));
        match tag {
            Tag::Value(name, raw) => nodes.push(Node::Value { name, raw }),
            Tag::Comment => {}
            Tag::Partial(name) => {
                nodes.push(Node::Partial { name, indent: alone.map_or("", |(indent, _)| indent) });
            }
            Tag::Open(name, inverted) => {
                if open.len() == MAX_NESTING {
                    return Err(BuiltinError::limit(
                        "the nesting",
                        format_args!("{MAX_NESTING} levels"),
                    ));
                }
                open.push((name, inverted, std::mem::take(&mut nodes)));
            }
            Tag::Close(name) => match open.pop() {
                Some((opened, inverted, outer)) if opened == name => {
                    let inner = std::mem::replace(&mut nodes, outer);
                    nodes.push(Node::Section { name, inverted, inner });
                }
                Some((opened, ..)) => {
                    let shown = rtfs::text::excerpt(opened, 40);
                    return Err(problem(start, &format!("expected {{{{/{shown}}}}}")));
                }
                None => return Err(problem(start, "nothing is open that this could close")),
            },
        }
        at = next;
    }
    if let Some((name, ..)) = open.last() {
        let shown = rtfs::text::excerpt(name, 40);
        return Err(problem(template.len(), &format!("{{{{#{shown}}}}} has no end")));
    }
    nodes.push(Node::Text(&template[at..]));
    Ok(nodes)
}

/// Returns the tag at an index, and its end.
fn tag(template: &str, start: usize) -> std::result::Result<(Tag<'_>, usize), &'static str> {
    let body = &template[start + 2..];
    let (close, skip) = match body.chars().next() {
        Some('{') => ("}}}", 1),
        Some('#' | '^' | '/' | '>' | '!' | '&') => ("}}", 1),
        Some('=') => return Err("delimiters cannot be changed"),
        _ => ("}}", 0),
    };
    let length = body.find(close).ok_or("a tag has no end")?;
    let name = body.get(skip..length).unwrap_or_default().trim();
    let end = start + 2 + length + close.len();
    let named = |tag| if name.is_empty() { Err("a tag has no name") } else { Ok((tag, end)) };
    match &body[..skip] {
        "!" => Ok((Tag::Comment, end)),
        "#" => named(Tag::Open(name, false)),
        "^" => named(Tag::Open(name, true)),
        "/" => named(Tag::Close(name)),
        ">" => named(Tag::Partial(name)),
        "" => named(Tag::Value(name, false)),
        _ => named(Tag::Value(name, true)),
    }
}

struct Renderer<'a> {
    html: bool,
    partials: &'a Map,
    out: BoundedText,
    budget: Budget,
    nesting: usize,
}

impl<'a> Renderer<'a> {
    fn nodes(&mut self, nodes: &[Node<'_>], context: &mut Vec<&'a Value>) -> Result<()> {
        for node in nodes {
            self.budget.items(1)?;
            match node {
                Node::Text(text) => self.out.push(text)?,
                Node::Value { name, raw } => {
                    if let Some(value) = look_up(context, name) {
                        self.value(value, *raw)?;
                    }
                }
                Node::Section { name, inverted, inner } => {
                    self.section(look_up(context, name), *inverted, inner, context)?;
                }
                Node::Partial { name, indent } => self.partial(name, indent, context)?,
            }
        }
        Ok(())
    }

    fn section(
        &mut self,
        value: Option<&'a Value>,
        inverted: bool,
        inner: &[Node<'_>],
        context: &mut Vec<&'a Value>,
    ) -> Result<()> {
        let items: Vec<&Value> = match value {
            None | Some(Value::Nil | Value::Bool(false)) => Vec::new(),
            Some(Value::Vector(vector)) => vector.items().iter().collect(),
            Some(Value::List(list)) => list.items().iter().collect(),
            Some(Value::Set(set)) => set.iter().collect(),
            Some(other) => vec![other],
        };
        if inverted {
            return if items.is_empty() { self.nodes(inner, context) } else { Ok(()) };
        }
        for item in items {
            self.budget.items(1)?;
            context.push(item);
            self.nodes(inner, context)?;
            context.pop();
        }
        Ok(())
    }

    fn partial(&mut self, name: &str, indent: &str, context: &mut Vec<&'a Value>) -> Result<()> {
        let Some(partial) = field(self.partials, name) else { return Ok(()) };
        let argument = format!("partials.{name}");
        let text = crate::arguments::text(&argument, partial)?;
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(BuiltinError::limit(
                "the nesting of partials",
                format_args!("{MAX_NESTING} levels"),
            ));
        }
        self.budget.text(text.len())?;
        if indent.is_empty() {
            self.nodes(&parse(&argument, text)?, context)?;
        } else {
            let mut indented = BoundedText::default();
            for line in text.split_inclusive('\n') {
                indented.push(indent)?;
                indented.push(line)?;
            }
            let indented = indented.into_string();
            self.budget.text(indented.len())?;
            self.nodes(&parse(&argument, &indented)?, context)?;
        }
        self.nesting -= 1;
        Ok(())
    }

    fn value(&mut self, value: &Value, raw: bool) -> Result<()> {
        let text = match value {
            Value::Map(_) | Value::Vector(_) | Value::List(_) | Value::Set(_) => {
                self.budget.weigh(value)?;
                rtfs::json::value_to_json(value).map_err(|error| BuiltinError::content("data", error))?
            }
            other => match name_of(other) {
                Some(text) => text.to_owned(),
                None => other.to_string(),
            },
        };
        if self.html && !raw { super::text::html(&text, &mut self.out) } else { self.out.push(&text) }
    }
}

/// Returns the value of a name: the innermost object that has its first part, and then part by part.
fn look_up<'a>(context: &[&'a Value], name: &str) -> Option<&'a Value> {
    if name == "." {
        return context.last().copied();
    }
    let mut steps = name.split('.').map(str::trim);
    let first = steps.next()?;
    let found = context.iter().rev().find_map(|value| match value {
        Value::Map(map) => field(map, first),
        _ => None,
    })?;
    steps.try_fold(found, |value, step| match value {
        Value::Map(map) => field(map, step),
        Value::Vector(vector) => vector.items().get(step.parse::<usize>().ok()?),
        Value::List(list) => list.items().get(step.parse::<usize>().ok()?),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use rtfs::json::value_from_json;

    use crate::CapabilityRegistry;

    fn render(template: &str, data: &str, partials: &str) -> String {
        let mut input = rtfs::Map::new();
        input.insert(rtfs::Value::keyword("template"), template.into()).unwrap();
        input.insert(rtfs::Value::keyword("data"), value_from_json(data).unwrap()).unwrap();
        input.insert(rtfs::Value::keyword("partials"), value_from_json(partials).unwrap()).unwrap();
        match CapabilityRegistry.get("template.render").unwrap().call(&input.into()) {
            Ok(value) => value.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn follows_the_language() {
        let cases = [
            ("Hello {{name}}!", r#"{"name":"you"}"#, "Hello you!"),
            ("{{a.b.c}}{{none}}{{a.none.c}}", r#"{"a":{"b":{"c":1.5}}}"#, "1.5"),
            ("{{#a}}{{b}}{{c}}{{/a}}", r#"{"a":{"b":1},"c":2}"#, "12"),
            (
                "{{#a}}{{.}},{{/a}}{{#t}}t{{/t}}{{^a}}x{{/a}}{{^f}}f{{/f}}",
                r#"{"a":[1,[2]],"t":true,"f":false}"#,
                "1,[2],tf",
            ),
            ("a\n  {{! c }}  \nb", "{}", "a\nb"),
            ("|{{#a}}\n x\n{{/a}}|", r#"{"a":[1]}"#, "|\n x\n|"),
            ("begin\n  {{>p}}\nend", r#"{"x":7}"#, "begin\n  <7>\n  2\nend"),
            ("{{#a}}", "{}", "template: {{#a}} has no end (line 1)"),
            ("\n{{/a}}", "{}", "template: nothing is open that this could close (line 2)"),
            ("{{#a}}{{/b}}", "{}", "template: expected {{/a}} (line 1)"),
            ("{{ }}", "{}", "template: a tag has no name (line 1)"),
            ("{{a", "{}", "template: a tag has no end (line 1)"),
            ("{{>me}}", "{}", "the nesting of partials would be more than 100 levels"),
        ];
        for (template, data, expected) in cases {
            assert_eq!(
                render(template, data, r#"{"p":"<{{x}}>\n2\n","me":"{{>me}}"}"#),
                expected,
                "{template}"
            );
        }
    }

    #[test]
    fn what_is_done_is_bounded() {
        let data = format!(r#"{{"l":[{}]}}"#, vec!["1"; 1_000].join(","));
        let nested = format!("{}{}", "{{#l}}".repeat(9), "{{/l}}".repeat(9));
        assert_eq!(render(&nested, &data, "{}"), "the work would be more than 1000000 values");
        let long = format!("{{{{#l}}}}{}{{{{/l}}}}", "x".repeat(100_000));
        assert_eq!(render(&long, &data, "{}"), "the text would be more than 16 MiB");
        // Each partial calls itself twice, which gives exponentially many paths.
        let doubling = r#"{"d":"{{#x}}{{>d}}{{>d}}{{/x}}"}"#;
        assert!(render("{{>d}}", r#"{"x":true}"#, doubling).contains("would be more than"));
    }
}
