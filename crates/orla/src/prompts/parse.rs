//! A prompt's text: YAML front matter, and a body with `{{argument}}`s. Pure.

use std::path::Path;

use orla_document::{Kind, Node, Position};

use super::{Argument, Prompt};
use crate::config::Problem;
use crate::text::suggestion;

const KEYS: [&str; 4] = ["title", "description", "arguments", "tools"];
const ARGUMENT_KEYS: [&str; 5] = ["name", "description", "required", "values", "enum"];
/// The maximum number of characters of a description that is made from the body.
const DESCRIPTION: usize = 120;

/// A piece of a prompt's body.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Text(String),
    /// The value of the argument with this index.
    Argument(usize),
}

/// Makes a prompt of a text. An unknown key is a remark; any other error in the front matter makes the prompt
/// unusable.
pub(super) fn parse(name: &str, path: &Path, text: &str) -> (Option<Prompt>, Vec<Problem>) {
    let mut problems = Vec::new();
    let at_path = |(at, text): Mistake| Problem::at(path, at, text);
    let (front, body) = match split(text) {
        Ok(parts) => parts,
        Err(mistake) => return (None, vec![at_path(mistake)]),
    };
    let mut prompt = Prompt {
        name: name.to_owned(),
        title: None,
        description: String::new(),
        arguments: Vec::new(),
        tools: Vec::new(),
        parts: Vec::new(),
        path: path.to_owned(),
    };
    let mut unknown = Vec::new();
    let read = front.map_or(Ok(()), |front| front_matter(&mut prompt, front, &mut unknown));
    problems.extend(unknown.into_iter().map(at_path));
    if let Err(mistake) = read {
        problems.push(at_path(mistake));
        return (None, problems);
    }
    prompt.parts = parts(body, &mut prompt.arguments);
    problems.extend(unclosed(text, body).into_iter().map(at_path));
    if prompt.description.is_empty() {
        prompt.description = described_by(body, name);
    }
    (Some(prompt), problems)
}

type Mistake = (Position, String);

/// Front matter, if the text begins with a line `---`, and body.
fn split(text: &str) -> Result<(Option<&str>, &str), Mistake> {
    let Some(first) = text.lines().next().filter(|line| line.trim_end() == "---") else {
        return Ok((None, text));
    };
    let begin = text[first.len()..].find('\n').map_or(text.len(), |end| first.len() + end + 1);
    let mut at = begin;
    for line in text[begin..].split_inclusive('\n') {
        if matches!(line.trim_end(), "---" | "...") {
            return Ok((Some(&text[begin..at]), &text[at + line.len()..]));
        }
        at += line.len();
    }
    Err((Position::START, "the front matter has no end: write a line `---` after it".to_owned()))
}

fn front_matter(prompt: &mut Prompt, text: &str, unknown: &mut Vec<Mistake>) -> Result<(), Mistake> {
    let root = orla_document::parse(text).map_err(|err| (in_file(err.at), err.problem))?;
    let Some(root) = root else { return Ok(()) };
    let Kind::Map(pairs) = &root.kind else {
        return Err(unexpected("front matter", "a mapping", &root));
    };
    for (key, node) in pairs {
        match key.text.as_str() {
            "title" => prompt.title = Some(text_of("title", node)?),
            "description" => prompt.description = text_of("description", node)?,
            "arguments" => {
                for item in list_of("arguments", node)? {
                    let argument = argument(item, unknown)?;
                    if prompt.arguments.iter().any(|known| known.name == argument.name) {
                        let problem = format!("arguments: {} is declared twice", argument.name);
                        return Err((in_file(item.at), problem));
                    }
                    prompt.arguments.push(argument);
                }
            }
            "tools" => {
                for item in list_of("tools", node)? {
                    prompt.tools.push((text_of("tools", item)?, in_file(item.at)));
                }
            }
            other => unknown.push((in_file(key.at), unknown_key(other, &KEYS))),
        }
    }
    Ok(())
}

fn argument(node: &Node, unknown: &mut Vec<Mistake>) -> Result<Argument, Mistake> {
    let Kind::Map(pairs) = &node.kind else {
        return Ok(Argument { name: argument_name(node)?, ..Argument::default() });
    };
    let mut argument = Argument::default();
    for (key, node) in pairs {
        match key.text.as_str() {
            "name" => argument.name = argument_name(node)?,
            "description" => argument.description = Some(text_of("description", node)?),
            "required" => {
                let wrong = || unexpected("required", "true or false", node);
                let Kind::Scalar(scalar) = &node.kind else { return Err(wrong()) };
                argument.required = scalar.as_bool().ok_or_else(wrong)?;
            }
            "values" | "enum" => {
                for item in list_of(&key.text, node)? {
                    // `1` and `true` are texts here: an argument is always text.
                    let Kind::Scalar(scalar) = &item.kind else {
                        return Err(unexpected(&key.text, "texts", item));
                    };
                    argument.values.push(scalar.text.clone());
                }
            }
            other => unknown.push((in_file(key.at), unknown_key(other, &ARGUMENT_KEYS))),
        }
    }
    if argument.name.is_empty() {
        return Err((in_file(node.at), "arguments: an argument needs a name".to_owned()));
    }
    Ok(argument)
}

fn argument_name(node: &Node) -> Result<String, Mistake> {
    let name = text_of("arguments", node)?;
    match is_name(&name) {
        true => Ok(name),
        false => Err(unexpected("arguments", "a name of letters, digits, `_` and `-`", node)),
    }
}

/// Returns the body in parts. A placeholder that no argument declares declares an optional one.
fn parts(body: &str, arguments: &mut Vec<Argument>) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut rest = body;
    while let Some(start) = rest.find("{{") {
        if let Some(before) = rest[..start].strip_suffix('\\') {
            text.push_str(before);
            text.push_str("{{");
            rest = &rest[start + 2..];
            continue;
        }
        text.push_str(&rest[..start]);
        let inside = &rest[start + 2..];
        let name =
            inside.find("}}").map(|end| (inside[..end].trim(), end)).filter(|(name, _)| is_name(name));
        let Some((name, end)) = name else {
            text.push_str("{{");
            rest = inside;
            continue;
        };
        let index = arguments.iter().position(|argument| argument.name == name).unwrap_or_else(|| {
            arguments.push(Argument { name: name.to_owned(), ..Argument::default() });
            arguments.len() - 1
        });
        if !text.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut text)));
        }
        parts.push(Part::Argument(index));
        rest = &inside[end + 2..];
    }
    text.push_str(rest);
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    parts
}

/// Returns the placeholders of the body that do not end on their line, such as `{{path`. `body` is the
/// end of `text`.
fn unclosed(text: &str, body: &str) -> Vec<Mistake> {
    let first = text[..text.len() - body.len()].matches('\n').count() + 1;
    let mut mistakes = Vec::new();
    for (line, written) in body.lines().enumerate() {
        // Text before the last end is either closed or not a placeholder.
        let from = written.rfind("}}").map_or(0, |end| end + 2);
        for (at, _) in written[from..].match_indices("{{") {
            let (before, inside) = (&written[..from + at], written[from + at + 2..].trim_start());
            let name = inside.split(|c: char| c.is_whitespace() || c == '}').next().unwrap_or_default();
            if !before.ends_with('\\') && is_name(name) {
                let at = Position { line: first + line, column: before.chars().count() + 1 };
                let problem = format!(
                    "the placeholder has no end: write {{{{{name}}}}}, or \\{{{{ for the characters"
                );
                mistakes.push((at, problem));
            }
        }
    }
    mistakes
}

/// Returns the first line of the body with words, so that every prompt has a description.
fn described_by(body: &str, name: &str) -> String {
    let mut lines = body.lines().map(|line| line.trim_start_matches('#').trim());
    let first = lines.find(|line| !line.is_empty()).unwrap_or(name);
    crate::text::cut(first, DESCRIPTION)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'))
}

fn text_of(key: &str, node: &Node) -> Result<String, Mistake> {
    let text = match &node.kind {
        Kind::Scalar(scalar) => scalar.as_text(),
        _ => None,
    };
    text.map(str::to_owned).ok_or_else(|| unexpected(key, "text", node))
}

fn list_of<'a>(key: &str, node: &'a Node) -> Result<&'a [Node], Mistake> {
    match &node.kind {
        Kind::List(items) => Ok(items),
        _ => Err(unexpected(key, "a list", node)),
    }
}

fn unexpected(key: &str, expected: &str, node: &Node) -> Mistake {
    (in_file(node.at), format!("{key}: expected {expected}, got {}", node.describe()))
}

fn unknown_key(key: &str, known: &[&'static str]) -> String {
    format!("{key}: unknown key{}", suggestion(key, known.iter().copied()))
}

/// Returns a place in the front matter as a place in the file, whose first line is `---`.
fn in_file(at: Position) -> Position {
    Position { line: at.line + 1, ..at }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let (_, problems) = parse("p", Path::new("p.md"), text);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_text_without_front_matter_is_a_prompt() {
        let (prompt, problems) =
            parse("p", Path::new("p.md"), "# Greet\n\nGreet {{who}} and {{who}}.\n");
        let prompt = prompt.unwrap();
        assert!(problems.is_empty());
        assert_eq!(prompt.description, "Greet");
        assert_eq!(prompt.arguments, [Argument { name: "who".into(), ..Argument::default() }]);
        assert_eq!(prompt.parts.len(), 5);
    }

    #[test]
    fn text_that_is_no_placeholder_stays_unchanged() {
        for body in ["{{", "{{}}", "{{ a b }}", "{{#if x}}", "a }} b", "{{a", "{ {a} }", ""] {
            let mut arguments = Vec::new();
            let parts = parts(body, &mut arguments);
            let text: String = parts
                .iter()
                .map(|part| match part {
                    Part::Text(text) => text.as_str(),
                    Part::Argument(_) => "!",
                })
                .collect();
            assert_eq!((text.as_str(), arguments.len()), (body, 0), "{body}");
        }
    }

    #[test]
    fn mistakes_are_named_with_their_place_in_the_file() {
        let cases = [
            ("---\nx: 1\n", "the front matter has no end: write a line `---` after it at p.md:1:1"),
            (
                "---\ndescripton: x\n---\n",
                "descripton: unknown key, did you mean description? at p.md:2:1",
            ),
            ("---\n- a\n---\n", "front matter: expected a mapping, got a list at p.md:2:1"),
            ("---\ntitle: [\n---\n", "`[` is never closed: `]` is missing at p.md:2:8"),
            ("---\narguments: [a, a]\n---\n", "arguments: a is declared twice at p.md:2:16"),
            (
                "---\narguments: [{required: true}]\n---\n",
                "arguments: an argument needs a name at p.md:2:13",
            ),
            (
                "---\narguments: [{name: a, required: 1}]\n---\n",
                "required: expected true or false, got 1 at p.md:2:33",
            ),
            ("---\ntools: ls\n---\n", "tools: expected a list, got text \"ls\" at p.md:2:8"),
            (
                "---\ntitle: x\n---\nOf {{a}}\nand {{b or\n",
                "the placeholder has no end: write {{b}}, or \\{{ for the characters at p.md:5:5",
            ),
            (
                "é {{b}",
                "the placeholder has no end: write {{b}}, or \\{{ for the characters at p.md:1:3",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(problems(text), [expected], "{text:?}");
        }
    }

    #[test]
    fn braces_that_no_name_follows_are_no_mistake() {
        for text in
            ["\\{{a", "{{", "{{\n  a\n}}", "{{#if x", "{{a}} {{ b }} }}", "{ {a} }", "x: {{\"a\": 1"]
        {
            assert_eq!(problems(text), [""; 0], "{text:?}");
        }
    }

    #[test]
    fn front_matter_may_be_empty_and_end_with_the_file() {
        for text in ["---\n---", "---\n---\n", "---\r\n...\r\n", ""] {
            let (prompt, problems) = parse("p", Path::new("p.md"), text);
            assert!(problems.is_empty(), "{text:?}");
            assert_eq!(prompt.unwrap().description, "p");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(---\n)?[-a-c:{}\\\\\\n ]{0,60}") {
            let _ = parse("p", Path::new("p.md"), &text);
        }
    }
}
