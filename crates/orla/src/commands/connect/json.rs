//! Sets one value in a JSON text, comments allowed, and leaves every other character as it is.
//!
//! The text is scanned, not parsed into a tree: a tree would lose comments, order and layout. A new
//! member goes to the front of its object, so that no comma or comment behind a last member matters.

use serde_json::Value;

/// How deep objects and arrays may be nested.
const MAX_DEPTH: usize = 200;

/// Sets the member `key` of the object that is the member `below` of the root object, making what does
/// not exist.
///
/// # Errors
/// What is wrong with the text, with line and column.
pub(super) fn set(text: &str, below: &str, key: &str, value: &Value) -> Result<String, String> {
    if text.trim_start_matches('\u{feff}').trim().is_empty() {
        let nested = Value::Object([(key.to_owned(), value.clone())].into_iter().collect());
        let root = Value::Object([(below.to_owned(), nested)].into_iter().collect());
        return Ok(format!("{root:#}\n"));
    }
    let root = Scanner::new(text).document()?;
    let edited = match root.member(below) {
        None => {
            let nested = Value::Object([(key.to_owned(), value.clone())].into_iter().collect());
            insert(text, &root, below, &nested)
        }
        Some(Member { value: Scanned::Object(object), .. }) => match object.member(key) {
            None => insert(text, object, key, value),
            Some(member) => replace(text, member, value),
        },
        Some(member) => {
            return Err(Scanner::at(text, member.start, &format!("{below} is not an object")));
        }
    };
    // The scanner reads back what it wrote, or nothing is written at all.
    Scanner::new(&edited).document().map(|_| edited)
}

/// Whether the object that is the member `below` of the root object has the member `key`.
pub(super) fn has(text: &str, below: &str, key: &str) -> bool {
    let Ok(root) = Scanner::new(text).document() else { return false };
    match root.member(below) {
        Some(Member { value: Scanned::Object(object), .. }) => object.member(key).is_some(),
        _ => false,
    }
}

/// An object's place and its members' places.
#[derive(Debug)]
struct Object {
    /// Of the `{`.
    start: usize,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    key: String,
    /// Of the key.
    key_start: usize,
    start: usize,
    end: usize,
    value: Scanned,
}

#[derive(Debug)]
enum Scanned {
    Object(Object),
    Other,
}

impl Object {
    /// The last member with this key: the one that counts in JavaScript.
    fn member(&self, key: &str) -> Option<&Member> {
        self.members.iter().rev().find(|member| member.key == key)
    }
}

fn insert(text: &str, object: &Object, key: &str, value: &Value) -> String {
    let after = object.start + 1;
    let (before, rest) = text.split_at(after);
    let key = Value::from(key);
    let outer = indent_of_line(text, object.start);
    let Some(first) = object.members.first() else {
        // What stood between the braces was white space or comments.
        let indent = format!("{outer}  ");
        let tail = if rest.trim_start().starts_with('}') { rest.trim_start() } else { rest };
        let gap = if tail.starts_with('}') { format!("\n{outer}") } else { String::new() };
        return format!("{before}\n{indent}{key}: {}{gap}{tail}", pretty(value, &indent));
    };
    if !text[after..first.key_start].contains('\n') {
        return format!("{before}{key}: {value}, {}", rest.trim_start_matches([' ', '\t']));
    }
    let indent = indent_of_line(text, first.key_start);
    format!("{before}\n{indent}{key}: {},{rest}", pretty(value, &indent))
}

fn replace(text: &str, member: &Member, value: &Value) -> String {
    let on_one_line = !text[member.start..member.end].contains('\n');
    let old_is_short = on_one_line && member.end - member.start > 2;
    let indent = indent_of_line(text, member.key_start);
    let value = if old_is_short { value.to_string() } else { pretty(value, &indent) };
    format!("{}{value}{}", &text[..member.start], &text[member.end..])
}

/// Indented JSON whose lines after the first begin with `indent`.
fn pretty(value: &Value, indent: &str) -> String {
    format!("{value:#}").replace('\n', &format!("\n{indent}"))
}

fn indent_of_line(text: &str, at: usize) -> String {
    let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
    text[line..].chars().take_while(|c| matches!(c, ' ' | '\t')).collect()
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, at: if text.starts_with('\u{feff}') { 3 } else { 0 }, depth: 0 }
    }

    fn document(mut self) -> Result<Object, String> {
        self.space()?;
        let Scanned::Object(root) = self.value()? else { return Err(self.error("expected an object")) };
        self.space()?;
        if self.at < self.text.len() {
            return Err(self.error("expected the end of the file"));
        }
        Ok(root)
    }

    fn value(&mut self) -> Result<Scanned, String> {
        match self.peek() {
            Some('{') => self.object().map(Scanned::Object),
            Some('[') => {
                self.items(']', |scanner| scanner.value().map(drop))?;
                Ok(Scanned::Other)
            }
            Some('"') => {
                self.string()?;
                Ok(Scanned::Other)
            }
            _ => {
                let rest = &self.text[self.at..];
                let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)));
                let word = &rest[..end.unwrap_or(rest.len())];
                if word.is_empty() || serde_json::from_str::<Value>(word).is_err() {
                    return Err(self.error("expected a value"));
                }
                self.at += word.len();
                Ok(Scanned::Other)
            }
        }
    }

    fn object(&mut self) -> Result<Object, String> {
        let start = self.at;
        let mut members = Vec::new();
        self.items('}', |scanner| {
            let key_start = scanner.at;
            let key = scanner.string()?;
            scanner.space()?;
            if scanner.peek() != Some(':') {
                return Err(scanner.error("expected `:`"));
            }
            scanner.at += 1;
            scanner.space()?;
            let start = scanner.at;
            let value = scanner.value()?;
            members.push(Member { key, key_start, start, end: scanner.at, value });
            Ok(())
        })?;
        Ok(Object { start, members })
    }

    /// Items between commas, the last of which may be followed by one, up to `close`.
    fn items(
        &mut self,
        close: char,
        mut item: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("nested too deep"));
        }
        self.at += 1;
        loop {
            self.space()?;
            if self.peek() == Some(close) {
                break;
            }
            item(self)?;
            self.space()?;
            match self.peek() {
                Some(',') => self.at += 1,
                Some(c) if c == close => break,
                _ => return Err(self.error(&format!("expected `,` or `{close}`"))),
            }
        }
        self.at += 1;
        self.depth -= 1;
        Ok(())
    }

    fn string(&mut self) -> Result<String, String> {
        let rest = &self.text[self.at..];
        if !rest.starts_with('"') {
            return Err(self.error("expected a text in double quotes"));
        }
        let mut escaped = false;
        let end = rest.char_indices().skip(1).find(|(_, c)| match c {
            '"' if !escaped => true,
            c => {
                escaped = *c == '\\' && !escaped;
                false
            }
        });
        let Some((end, _)) = end else { return Err(self.error("a text has no end")) };
        let text = serde_json::from_str(&rest[..=end]).map_err(|_| self.error("a text is malformed"))?;
        self.at += end + 1;
        Ok(text)
    }

    /// Skips white space and comments.
    fn space(&mut self) -> Result<(), String> {
        loop {
            let rest = &self.text[self.at..];
            let skipped = if rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                rest.find("*/").ok_or_else(|| self.error("a comment has no end"))? + 2
            } else {
                rest.len() - rest.trim_start().len()
            };
            if skipped == 0 {
                return Ok(());
            }
            self.at += skipped;
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn error(&self, problem: &str) -> String {
        Self::at(self.text, self.at, problem)
    }

    fn at(text: &str, at: usize, problem: &str) -> String {
        let before = &text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("{line}:{column}: {problem}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set_orla(text: &str) -> Result<String, String> {
        set(text, "mcpServers", "orla", &json!({"command": "/bin/orla"}))
    }

    #[test]
    fn an_empty_file_becomes_one_with_the_entry() {
        let expected =
            "{\n  \"mcpServers\": {\n    \"orla\": {\n      \"command\": \"/bin/orla\"\n    }\n  }\n}\n";
        for text in ["", " \n", "\u{feff}"] {
            assert_eq!(set_orla(text).unwrap(), expected);
        }
        assert_eq!(set_orla("{}\n").unwrap(), expected);
    }

    #[test]
    fn everything_else_stays_as_it_is() {
        let text = "// mine\n{\n\t\"theme\": \"dark\", // yes\n\t\"mcpServers\": {\n\t\t\"a\": {\"command\": \"x\"}, /* , */\n\t},\n}\n";
        let expected = "// mine\n{\n\t\"theme\": \"dark\", // yes\n\t\"mcpServers\": {\n\t\t\"orla\": {\n\t\t  \"command\": \"/bin/orla\"\n\t\t},\n\t\t\"a\": {\"command\": \"x\"}, /* , */\n\t},\n}\n";
        assert_eq!(set_orla(text).unwrap(), expected);
    }

    #[test]
    fn an_entry_is_replaced_where_it_stands() {
        let once = set_orla("{\"x\": [1, {\"y\": \"}\\\"\"}], \"mcpServers\": {\"orla\": {\"command\": \"old\"}, \"b\": 1}}").unwrap();
        assert_eq!(
            once,
            "{\"x\": [1, {\"y\": \"}\\\"\"}], \"mcpServers\": {\"orla\": {\"command\":\"/bin/orla\"}, \"b\": 1}}"
        );
        assert_eq!(set_orla(&once).unwrap(), once);
    }

    #[test]
    fn a_compact_object_stays_compact() {
        assert_eq!(
            set_orla("{\"a\":1}").unwrap(),
            "{\"mcpServers\": {\"orla\":{\"command\":\"/bin/orla\"}}, \"a\":1}"
        );
    }

    #[test]
    fn what_is_no_json_is_refused_with_its_place() {
        let cases = [
            ("[1]", "1:4: expected an object"),
            ("{\n \"a\" 1}", "2:6: expected `:`"),
            ("{\"a\": 1", "1:8: expected `,` or `}`"),
            ("{} x", "1:4: expected the end of the file"),
            ("{\"mcpServers\": 7}", "1:16: mcpServers is not an object"),
            ("{\"a\": tru}", "1:7: expected a value"),
            ("{\"a", "1:2: a text has no end"),
            ("/* {}", "1:1: a comment has no end"),
        ];
        for (text, expected) in cases {
            assert_eq!(set_orla(text).unwrap_err(), expected, "{text}");
        }
        assert!(set_orla(&"{\"a\":".repeat(1000)).unwrap_err().ends_with("nested too deep"));
    }

    proptest::proptest! {
        #[test]
        fn the_result_has_the_entry_and_all_that_was_there(
            keys in proptest::collection::btree_map("[a-z]{1,3}", "[a-z\"\\\\ {},]{0,5}", 0..4),
            wide in proptest::bool::ANY,
        ) {
            let old = json!({"mcpServers": keys, "other": [keys, 1, null]});
            let text = if wide { format!("{old:#}") } else { old.to_string() };
            let mut expected = old;
            expected["mcpServers"]["orla"] = json!({"command": "/bin/orla"});
            let new: Value = serde_json::from_str(&set_orla(&text).unwrap()).unwrap();
            proptest::prop_assert_eq!(new, expected);
        }
    }
}
