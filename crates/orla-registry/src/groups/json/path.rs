//! JSONPath (RFC 9535).
//!
//! [`syntax`] parses a query into data, and this module evaluates it: a list of nodes passes from
//! segment to segment. Every visited node and every compared value is charged.

mod filter;
mod syntax;

use std::borrow::Cow;
use std::rc::Rc;

use rtfs::Value;

use crate::arguments::{Arguments, name_of};
use crate::error::BuiltinError;
use crate::groups::field;
use crate::limits::{Budget, vector};

use filter::Patterns;
use syntax::{Query, Segment, Selector};

type Result<T> = std::result::Result<T, BuiltinError>;

pub(super) fn query(args: &Arguments<'_>) -> Result<Value> {
    let root = args.value("value")?;
    let query = syntax::parse(args.text("path")?)?;
    let wants_paths = args.flag("paths", false)?;
    let mut evaluation =
        Evaluation { root, budget: Budget::new(), patterns: Patterns::default(), wants_paths };
    let nodes = evaluation.segments(&query.segments, Node { value: root, path: None })?;
    let mut budget = Budget::new();
    let results = nodes.iter().map(|node| {
        if wants_paths {
            let path = normalised(node.path.as_ref());
            budget.text(path.len())?;
            return Ok(Value::from(path));
        }
        budget.weigh(node.value)?;
        Ok(node.value.clone())
    });
    vector(results.collect::<Result<_>>()?)
}

/// A value and, if paths are wanted, its path.
#[derive(Clone)]
struct Node<'a> {
    value: &'a Value,
    path: Option<Rc<Step<'a>>>,
}

struct Step<'a> {
    before: Option<Rc<Self>>,
    name: Name<'a>,
}

enum Name<'a> {
    Key(Cow<'a, str>),
    Index(usize),
}

struct Evaluation<'a> {
    root: &'a Value,
    budget: Budget,
    patterns: Patterns,
    wants_paths: bool,
}

impl<'a> Evaluation<'a> {
    fn query(&mut self, query: &Query, current: &'a Value) -> Result<Vec<Node<'a>>> {
        let from = if query.absolute { self.root } else { current };
        self.segments(&query.segments, Node { value: from, path: None })
    }

    fn segments(&mut self, segments: &[Segment], from: Node<'a>) -> Result<Vec<Node<'a>>> {
        let mut nodes = vec![from];
        for segment in segments {
            let mut next = Vec::new();
            for node in &nodes {
                match segment {
                    Segment::Child(selectors) => self.select(selectors, node, &mut next)?,
                    Segment::Descendants(selectors) => self.descend(selectors, node, &mut next)?,
                }
            }
            nodes = next;
        }
        Ok(nodes)
    }

    /// Visits a value and its descendants. The depth of values is limited, and with it the recursion.
    fn descend(
        &mut self,
        selectors: &[Selector],
        node: &Node<'a>,
        out: &mut Vec<Node<'a>>,
    ) -> Result<()> {
        self.select(selectors, node, out)?;
        for child in self.children(node)? {
            self.descend(selectors, &child, out)?;
        }
        Ok(())
    }

    fn select(
        &mut self,
        selectors: &[Selector],
        node: &Node<'a>,
        out: &mut Vec<Node<'a>>,
    ) -> Result<()> {
        for selector in selectors {
            self.budget.items(1)?;
            match selector {
                Selector::Name(name) => {
                    if let Value::Map(map) = node.value
                        && let Some(value) = field(map, name)
                    {
                        let key = if self.wants_paths { name.clone().into() } else { "".into() };
                        out.push(self.step(node, value, Name::Key(key)));
                    }
                }
                Selector::Index(index) => {
                    let items = items(node.value);
                    if let Some(at) = place(*index, items.len()).filter(|at| *at < items.len()) {
                        out.push(self.step(node, &items[at], Name::Index(at)));
                    }
                }
                Selector::Slice { start, end, step } => {
                    let items = items(node.value);
                    for at in slice(*start, *end, *step, items.len()) {
                        self.budget.items(1)?;
                        out.push(self.step(node, &items[at], Name::Index(at)));
                    }
                }
                Selector::Wildcard => out.extend(self.children(node)?),
                Selector::Filter(condition) => {
                    for child in self.children(node)? {
                        if self.holds(condition, child.value)? {
                            out.push(child);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn children(&mut self, node: &Node<'a>) -> Result<Vec<Node<'a>>> {
        let children: Vec<Node<'a>> = match node.value {
            Value::Map(map) => {
                let named = map.iter().filter_map(|(key, value)| Some((name_of(key)?, value)));
                named.map(|(key, value)| self.step(node, value, Name::Key(key.into()))).collect()
            }
            other => {
                let items = items(other).iter().enumerate();
                items.map(|(at, value)| self.step(node, value, Name::Index(at))).collect()
            }
        };
        self.budget.items(children.len())?;
        Ok(children)
    }

    fn step(&self, from: &Node<'a>, value: &'a Value, name: Name<'a>) -> Node<'a> {
        let path = self.wants_paths.then(|| Rc::new(Step { before: from.path.clone(), name }));
        Node { value, path }
    }
}

fn items(value: &Value) -> &[Value] {
    match value {
        Value::Vector(vector) => vector.items(),
        Value::List(list) => list.items(),
        _ => &[],
    }
}

/// Converts an index that may count from the end to one from the start.
fn place(index: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    usize::try_from(if index < 0 { length + index } else { index }).ok()
}

/// Returns the places of a slice, as the standard computes them.
pub(super) fn slice(start: Option<i64>, end: Option<i64>, step: i64, length: usize) -> Vec<usize> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let normal = |at: i64| if at < 0 { length.saturating_add(at) } else { at };
    let (mut places, mut at, last) = match step {
        0 => return Vec::new(),
        1.. => {
            let start = normal(start.unwrap_or(0)).clamp(0, length);
            (Vec::new(), start, normal(end.unwrap_or(length)).clamp(0, length))
        }
        _ => {
            let start = normal(start.unwrap_or(length - 1)).clamp(-1, length - 1);
            (Vec::new(), start, end.map_or(-1, normal).clamp(-1, length - 1))
        }
    };
    while if step > 0 { at < last } else { at > last } {
        places.extend(usize::try_from(at));
        at = at.saturating_add(step);
    }
    places
}

/// `$['a'][0]`
fn normalised(path: Option<&Rc<Step<'_>>>) -> String {
    let mut steps = Vec::new();
    let mut here = path;
    while let Some(step) = here {
        steps.push(&step.name);
        here = step.before.as_ref();
    }
    let mut out = "$".to_owned();
    for step in steps.into_iter().rev() {
        match step {
            Name::Index(index) => out.push_str(&format!("[{index}]")),
            Name::Key(key) => {
                out.push_str("['");
                for c in key.chars() {
                    match c {
                        '\'' => out.push_str("\\'"),
                        '\\' => out.push_str("\\\\"),
                        '\u{8}' => out.push_str("\\b"),
                        '\u{c}' => out.push_str("\\f"),
                        '\n' => out.push_str("\\n"),
                        '\r' => out.push_str("\\r"),
                        '\t' => out.push_str("\\t"),
                        c if u32::from(c) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
                        c => out.push(c),
                    }
                }
                out.push_str("']");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use rtfs::json::{value_from_json, value_to_json};

    use crate::CapabilityRegistry;

    fn run(value: &str, path: &str, paths: bool) -> String {
        let mut input = rtfs::Map::new();
        input.insert(rtfs::Value::keyword("value"), value_from_json(value).unwrap()).unwrap();
        input.insert(rtfs::Value::keyword("path"), path.into()).unwrap();
        input.insert(rtfs::Value::keyword("paths"), paths.into()).unwrap();
        match CapabilityRegistry.get("json.path").unwrap().call(&input.into()) {
            Ok(value) => value_to_json(&value).unwrap(),
            Err(error) => error.to_string(),
        }
    }

    const STORE: &str = r#"{"store":{"book":[
        {"category":"reference","author":"Nigel Rees","title":"Sayings of the Century","price":8.95},
        {"category":"fiction","author":"Evelyn Waugh","title":"Sword of Honour","price":12.99},
        {"category":"fiction","author":"Herman Melville","title":"Moby Dick","isbn":"0-553-21311-3","price":8.99},
        {"category":"fiction","author":"J. R. R. Tolkien","title":"The Lord of the Rings","isbn":"0-395-19395-8","price":22.99}
        ],"bicycle":{"color":"red","price":399}}}"#;

    #[test]
    fn a_dot_matches_no_line_break() {
        let texts = r#"["a\nb","a\rb","a\u2028b","a b"]"#;
        let others = r#"["a\u2028b","a b"]"#.replace("\\u2028", "\u{2028}");
        for path in ["$[?match(@, 'a.b')]", "$[?search(@, 'a.')]", "$[?match(@, '.*')]"] {
            assert_eq!(run(texts, path, false), others, "{path}");
        }
    }

    #[test]
    fn selects_what_the_standard_says() {
        let cases = [
            (
                "$.store.book[*].author",
                r#"["Nigel Rees","Evelyn Waugh","Herman Melville","J. R. R. Tolkien"]"#,
            ),
            ("$..author", r#"["Nigel Rees","Evelyn Waugh","Herman Melville","J. R. R. Tolkien"]"#),
            ("$.store..price", "[8.95,12.99,8.99,22.99,399]"),
            ("$..book[2].title", r#"["Moby Dick"]"#),
            ("$..book[-1]['title']", r#"["The Lord of the Rings"]"#),
            ("$..book[0,1].price", "[8.95,12.99]"),
            ("$..book[:2].price", "[8.95,12.99]"),
            ("$..book[::-2].price", "[22.99,12.99]"),
            ("$..book[?@.isbn].price", "[8.99,22.99]"),
            ("$..book[?@.price<10].title", r#"["Sayings of the Century","Moby Dick"]"#),
            ("$..book[?!@.isbn && @.price > 10 || @.price == 8.99].price", "[12.99,8.99]"),
            ("$..book[?(@.price >= $.store.book[3].price)].author", r#"["J. R. R. Tolkien"]"#),
            ("$..book[?match(@.author, 'N.*')].price", "[8.95]"),
            ("$..book[?search(@.author, '[A-Z]\\\\. ')].price", "[22.99]"),
            ("$..book[?length(@.title) == 9].price", "[8.99]"),
            ("$.store[?count(@.*) == 2].color", r#"["red"]"#),
            ("$.store.book[?value(@..isbn) == \"0-553-21311-3\"].price", "[8.99]"),
            ("$.nothing", "[]"),
            ("$ .store [ 'bicycle' ] . color", "path: expected a name, got ' ' (at character 25)"),
            ("$.store[?@.color == 'red' , 'none'].price", "[399]"),
        ];
        for (path, expected) in cases {
            assert_eq!(run(STORE, path, false), expected, "{path}");
        }
        assert_eq!(
            run(r#"{"a b":{"'":[1]},"c":2}"#, "$..*", true),
            r#"["$['a b']","$['c']","$['a b']['\\'']","$['a b']['\\''][0]"]"#
        );
    }

    #[test]
    fn refuses_what_is_no_query() {
        for path in [
            "",
            "a",
            "$.",
            "$..",
            "$[",
            "$[]",
            "$['a]",
            "$[01]",
            "$[-0]",
            "$[1:2:3:4]",
            "$[?]",
            "$[?1]",
            "$[?@.a ==]",
            "$[?@.* == 1]",
            "$[?length(@.*) == 1]",
            "$[?length(@)]",
            "$[?count(1) == 1]",
            "$[?match(@)]",
            "$[?none(@)]",
            "$ ",
            "$.a b",
            "$[9007199254740992]",
            "$['\\x']",
            "$['\\ud800']",
            "$[?(@.a]",
            "$[?@.a == [1]]",
            "$[?!(1 == 1) ==2]",
        ] {
            assert!(run("{}", path, false).starts_with("path: "), "{path} {}", run("{}", path, false));
        }
        let deep = format!("$[?{}@{}]", "(".repeat(500), ")".repeat(500));
        assert_eq!(run("{}", &deep, false), "the nesting would be more than 50 levels");
    }

    #[test]
    fn what_is_visited_is_bounded() {
        let value = format!("{}1{}", "[".repeat(150), "]".repeat(150));
        assert_eq!(run(&value, "$..*..*..*..*", false), "the work would be more than 1000000 values");
    }
}
