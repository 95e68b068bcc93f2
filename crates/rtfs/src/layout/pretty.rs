//! Pretty-prints values: as `pr-str` prints them, broken over lines where they are wider than the page.

use std::fmt::{self, Write};

use crate::value::Value;

/// Returns the value's text in as few lines as possible of at most `width` characters. Reading the text
/// gives the value.
pub fn pretty(value: &Value, width: usize) -> String {
    let mut text = String::new();
    put(&mut text, value, 0, 0, width);
    text
}

/// Appends a value that begins at a column, before `after` closing brackets.
fn put(text: &mut String, value: &Value, column: usize, after: usize, width: usize) {
    let mut line = Line { text: String::new(), room: width.saturating_sub(column + after) };
    if write!(line, "{value:?}").is_ok() {
        return text.push_str(&line.text);
    }
    let (open, close) = match value {
        Value::Map(_) => ("{", "}"),
        Value::Vector(_) => ("[", "]"),
        Value::List(_) => ("(", ")"),
        Value::Set(_) => ("#{", "}"),
        _ => return text.push_str(&value.pr_str()),
    };
    text.push_str(open);
    let column = column + open.len();
    let mut is_first = true;
    let mut begin = |text: &mut String| {
        if !std::mem::take(&mut is_first) {
            text.push('\n');
            text.push_str(&" ".repeat(column));
        }
    };
    match value {
        Value::Map(map) => {
            let last = map.iter().count().saturating_sub(1);
            for (at, (key, item)) in map.iter().enumerate() {
                begin(text);
                let key = key.pr_str();
                let at_item = column + key.chars().count() + 1;
                text.push_str(&key);
                text.push(' ');
                put(text, item, at_item, if at == last { after + 1 } else { 1 }, width);
                if at != last {
                    text.push(',');
                }
            }
        }
        Value::Set(set) => put_all(text, set.iter(), column, after, width, begin),
        Value::List(list) => put_all(text, list.items().iter(), column, after, width, begin),
        Value::Vector(vector) => put_all(text, vector.items().iter(), column, after, width, begin),
        _ => {}
    }
    text.push_str(close);
}

/// The rest of a line. Writing more than fits fails, so that checking whether a value fits costs at most
/// one line.
struct Line {
    text: String,
    room: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = self.room.checked_sub(text.chars().count());
        self.room = left.ok_or(fmt::Error)?;
        self.text.push_str(text);
        Ok(())
    }
}

fn put_all<'v>(
    text: &mut String,
    items: impl Iterator<Item = &'v Value>,
    column: usize,
    after: usize,
    width: usize,
    mut begin: impl FnMut(&mut String),
) {
    let mut items = items.peekable();
    while let Some(item) = items.next() {
        begin(text);
        let after = if items.peek().is_none() { after + 1 } else { 0 };
        put(text, item, column, after, width);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrary::any_value;
    use crate::eval_pure;
    use crate::layout::{Token, TokenKind, tokens};
    use proptest::prelude::*;

    #[test]
    fn wide_collections_are_broken_between_items() {
        let shown = |text: &str, width| pretty(&eval_pure(text).unwrap(), width);
        let text = "{:name \"Ada\" :langs [\"en\" \"fr\"] :age 36}";
        assert_eq!(shown(text, 80), "{:name \"Ada\", :langs [\"en\" \"fr\"], :age 36}");
        assert_eq!(shown(text, 22), "{:name \"Ada\",\n :langs [\"en\" \"fr\"],\n :age 36}");
        assert_eq!(shown("[[1 2] [3 4]]", 8), "[[1 2]\n [3 4]]");
        assert_eq!(shown("#{11 22}", 5), "#{11\n  22}");
        assert_eq!(shown("\"a long text\"", 5), "\"a long text\"");
    }

    proptest! {
        #[test]
        fn nothing_but_space_is_other_than_on_one_line(value in any_value(), width in 0_usize..60) {
            let words = |text: &str| -> Vec<String> {
                let words = tokens(text).into_iter().filter(|token| token.kind != TokenKind::Space);
                words.map(|Token { text, .. }| text.to_owned()).collect()
            };
            prop_assert_eq!(words(&pretty(&value, width)), words(&value.pr_str()));
        }
    }
}
