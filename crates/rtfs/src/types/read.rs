//! Text → data, for texts that hold one type.
//!
//! It reads the literals of the language ("Reading") and nothing that runs. Beside each datum goes
//! where it began, so that whoever finds a mistake in the data can say where in the text it is.
//!
//! Two marks become data: a lone `?` after a value of a map makes the value `(? T)`, and one glued to
//! a bracket makes `[:optional T]`. Elsewhere a lone `?` is the symbol that it looks like.

use num_bigint::BigInt;

use super::format;
use crate::map::{Map, Set};
use crate::scalar::{Symbol, Uuid};
use crate::sequence::List;
use crate::value::Value;

/// The deepest nesting of brackets: types may not be as deep by far, and what they quote rarely is.
const MAX_NESTING: usize = 300;
/// The most digits an integer may have, as converting takes time that grows with their square.
const MAX_DIGITS: usize = 10_000;

/// A datum and where it and its parts began. The parts of a map are its keys and values in turn.
#[derive(Debug)]
pub(super) struct Datum {
    pub(super) value: Value,
    pub(super) place: Place,
}

/// Where a datum began, as a byte offset, and its parts.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) at: usize,
    pub(super) parts: Vec<Self>,
}

/// What is wrong, and the byte offset of where.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) at: usize,
    pub(super) problem: String,
}

/// Reads a text that holds exactly one datum.
pub(super) fn read(text: &str) -> Result<Datum, Unreadable> {
    let mut reader = Reader { text, at: 0, depth: 0 };
    let datum = reader.marked("a type")?;
    reader.skip_space()?;
    match reader.peek() {
        None => Ok(datum),
        Some(_) => Err(reader.unexpected("the end of the text")),
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn problem<T>(&self, problem: impl Into<String>) -> Result<T, Unreadable> {
        Err(Unreadable { at: self.at, problem: problem.into() })
    }

    fn unexpected(&self, expected: &str) -> Unreadable {
        let got = match self.peek() {
            None => "the end of the text".to_owned(),
            Some(c) => format!("{c:?}"),
        };
        Unreadable { at: self.at, problem: format!("expected {expected}, got {got}") }
    }

    /// White space, commas, comments, and forms that `#_` skips.
    fn skip_space(&mut self) -> Result<(), Unreadable> {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            self.at += rest.len() - trimmed.len();
            if trimmed.starts_with(';') {
                self.at += trimmed.find('\n').unwrap_or(trimmed.len());
            } else if trimmed.starts_with("#|") {
                self.block_comment()?;
            } else if trimmed.starts_with("#_") {
                self.at += 2;
                self.nested(|reader| reader.form("a form to skip"))?;
            } else {
                return Ok(());
            }
        }
    }

    fn block_comment(&mut self) -> Result<(), Unreadable> {
        let (start, mut open) = (self.at, 0_usize);
        loop {
            let rest = self.rest();
            if rest.starts_with("#|") {
                (self.at, open) = (self.at + 2, open + 1);
            } else if rest.starts_with("|#") {
                (self.at, open) = (self.at + 2, open - 1);
                if open == 0 {
                    return Ok(());
                }
            } else if let Some(c) = rest.chars().next() {
                self.at += c.len_utf8();
            } else {
                return Err(Unreadable { at: start, problem: "the comment does not end".to_owned() });
            }
        }
    }

    fn nested<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Unreadable>,
    ) -> Result<T, Unreadable> {
        if self.depth >= MAX_NESTING {
            return self.problem(format!("nested deeper than {MAX_NESTING} levels"));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    /// A form, and the `?` that may be glued to its closing bracket.
    fn marked(&mut self, expected: &str) -> Result<Datum, Unreadable> {
        let datum = self.form(expected)?;
        if !self.text[..self.at].ends_with([']', '}', ')']) || !self.lone_mark_is_next() {
            return Ok(datum);
        }
        self.at += 1;
        let Datum { value, place } = datum;
        let at = place.at;
        let marked = Value::vector(vec![Value::keyword("optional"), value]);
        let value = marked.or_else(|err| self.problem(err.to_string()))?;
        Ok(Datum { value, place: Place { at, parts: vec![Place { at, parts: vec![] }, place] } })
    }

    fn lone_mark_is_next(&self) -> bool {
        let after = |rest: &str| rest.chars().next().is_none_or(|c| !is_token(c));
        self.rest().strip_prefix('?').is_some_and(after)
    }

    fn form(&mut self, expected: &str) -> Result<Datum, Unreadable> {
        self.skip_space()?;
        let at = self.at;
        let rest = self.rest();
        let leaf = |value| Datum { value, place: Place { at, parts: vec![] } };
        match self.peek() {
            Some('[') => {
                let (items, parts) = self.nested(|reader| reader.items(1, ']'))?;
                let value = Value::vector(items).or_else(|err| self.problem(err.to_string()))?;
                Ok(Datum { value, place: Place { at, parts } })
            }
            Some('(') => {
                let (items, parts) = self.nested(|reader| reader.items(1, ')'))?;
                let list = List::new(items).or_else(|err| self.problem(err.to_string()))?;
                Ok(Datum { value: Value::List(list), place: Place { at, parts } })
            }
            Some('{') => self.nested(Self::map),
            Some('#') if rest.starts_with("#{") => self.nested(Self::set),
            Some('#') if rest.starts_with("##") => {
                self.at += 2;
                let name = self.token();
                match name {
                    "Inf" => Ok(leaf(f64::INFINITY.into())),
                    "-Inf" => Ok(leaf(f64::NEG_INFINITY.into())),
                    "NaN" => Ok(leaf(f64::NAN.into())),
                    _ => Err(Unreadable {
                        at,
                        problem: format!("expected ##Inf, ##-Inf or ##NaN, got ##{name}"),
                    }),
                }
            }
            Some('"') => self.string().map(|text| leaf(Value::from(text))),
            Some(':') => {
                self.at += 1;
                let name = match self.peek() {
                    Some('"') => self.string()?,
                    _ => self.token().to_owned(),
                };
                if name.is_empty() && self.text[at..self.at].len() == 1 {
                    return Err(self.unexpected("the name of a keyword"));
                }
                Ok(leaf(Value::keyword(name)))
            }
            Some(c) if is_token(c) => {
                let token = self.token();
                let value = atom(token).map_err(|problem| Unreadable { at, problem })?;
                Ok(leaf(value))
            }
            _ => Err(self.unexpected(expected)),
        }
    }

    fn token(&mut self) -> &'t str {
        let rest = self.rest();
        let end = rest.find(|c| !is_token(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// What is between the `opening` bytes that are next and the `close`.
    fn items(&mut self, opening: usize, close: char) -> Result<(Vec<Value>, Vec<Place>), Unreadable> {
        let start = self.at;
        self.at += opening;
        let (mut items, mut places) = (Vec::new(), Vec::new());
        loop {
            self.skip_space()?;
            match self.peek() {
                Some(c) if c == close => {
                    self.at += 1;
                    return Ok((items, places));
                }
                None => {
                    let opened = &self.text[start..start + opening];
                    let problem = format!(
                        "expected `{close}`, got the end of the text: this `{opened}` stays open"
                    );
                    return Err(Unreadable { at: start, problem });
                }
                Some(_) => {
                    let Datum { value, place } = self.marked(&format!("a form or `{close}`"))?;
                    items.push(value);
                    places.push(place);
                }
            }
        }
    }

    fn map(&mut self) -> Result<Datum, Unreadable> {
        let at = self.at;
        let (items, places) = self.items(1, '}')?;
        let mut entries: Vec<(Value, Place)> = Vec::new();
        for (value, place) in items.into_iter().zip(places) {
            let is_mark = matches!(&value, Value::Symbol(symbol) if symbol.name() == "?");
            match entries.pop() {
                // A mark is no form of its own: it belongs to the value before it.
                Some((marked, inner)) if is_mark && entries.len() % 2 == 1 => {
                    let list = List::new(vec![value, marked]);
                    let list = list.or_else(|err| self.problem(err.to_string()))?;
                    let parts = vec![place, inner];
                    entries.push((Value::List(list), Place { at: parts[1].at, parts }));
                }
                before => {
                    entries.extend(before);
                    entries.push((value, place));
                }
            }
        }
        if entries.len() % 2 == 1 {
            let problem = "expected a value for each key of this map, got an odd number of forms";
            return Err(Unreadable { at, problem: problem.to_owned() });
        }
        let (mut map, mut parts) = (Map::new(), Vec::new());
        let mut entries = entries.into_iter();
        while let (Some((key, key_place)), Some((value, place))) = (entries.next(), entries.next()) {
            if map.contains_key(&key) {
                let problem = format!("the key {key:?} comes twice");
                return Err(Unreadable { at: key_place.at, problem });
            }
            map.insert(key, value).or_else(|err| self.problem(err.to_string()))?;
            parts.extend([key_place, place]);
        }
        Ok(Datum { value: map.into(), place: Place { at, parts } })
    }

    fn set(&mut self) -> Result<Datum, Unreadable> {
        let at = self.at;
        let (items, parts) = self.items(2, '}')?;
        let mut set = Set::new();
        for (item, place) in items.into_iter().zip(&parts) {
            let shown = item.clone();
            if !set.insert(item).or_else(|err| self.problem(err.to_string()))? {
                return Err(Unreadable {
                    at: place.at,
                    problem: format!("the member {shown:?} comes twice"),
                });
            }
        }
        Ok(Datum { value: Value::Set(set), place: Place { at, parts } })
    }

    fn string(&mut self) -> Result<String, Unreadable> {
        let start = self.at;
        let unfinished = || Unreadable { at: start, problem: "the string does not end".to_owned() };
        if let Some(raw) = self.rest().strip_prefix("\"\"\"") {
            let end = raw.find("\"\"\"").ok_or_else(unfinished)?;
            self.at += end + 6;
            return Ok(raw[..end].to_owned());
        }
        self.at += 1;
        let mut text = String::new();
        loop {
            let c = self.peek().ok_or_else(unfinished)?;
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(text),
                '\\' => text.push(self.escape()?),
                c => text.push(c),
            }
        }
    }

    /// What comes after a backslash.
    fn escape(&mut self) -> Result<char, Unreadable> {
        let at = self.at - 1;
        let rest = self.rest();
        let unknown = || Unreadable {
            at,
            problem: r#"expected one of the escapes \n \t \r \" \\ \uXXXX \u{X…}"#.to_owned(),
        };
        let (c, length) = match rest.chars().next() {
            Some('n') => ('\n', 1),
            Some('t') => ('\t', 1),
            Some('r') => ('\r', 1),
            Some(c @ ('"' | '\\')) => (c, 1),
            Some('u') => {
                let (digits, length) = match rest[1..].strip_prefix('{') {
                    Some(braced) => {
                        let end = braced.find('}').ok_or_else(unknown)?;
                        (&braced[..end], end + 3)
                    }
                    None => (rest.get(1..5).ok_or_else(unknown)?, 5),
                };
                let is_hex =
                    (1..=6).contains(&digits.len()) && digits.chars().all(|c| c.is_ascii_hexdigit());
                let code = u32::from_str_radix(digits, 16).ok().filter(|_| is_hex);
                (code.and_then(char::from_u32).ok_or_else(unknown)?, length)
            }
            _ => return Err(unknown()),
        };
        self.at += length;
        Ok(c)
    }
}

/// Whether a token goes on with this character.
fn is_token(c: char) -> bool {
    c.is_alphanumeric() || "*+!-_?<>=&%$./:|'".contains(c)
}

/// What a token without a colon is.
fn atom(token: &str) -> Result<Value, String> {
    match token {
        "nil" => return Ok(Value::Nil),
        "true" => return Ok(true.into()),
        "false" => return Ok(false.into()),
        _ => {}
    }
    if let Some(uuid) = format::uuid(token) {
        return Ok(Value::Uuid(Uuid::from_u128(uuid)));
    }
    if let Some(instant) = format::instant(token) {
        return Ok(Value::Instant(instant));
    }
    let digits = token.strip_prefix(['-', '+']).unwrap_or(token);
    if digits.starts_with(|c: char| c.is_ascii_digit()) {
        return number(token).ok_or_else(|| format!("expected a number, got {token}"));
    }
    Ok(Value::Symbol(Symbol::new(token)))
}

fn number(token: &str) -> Option<Value> {
    let is_grouped = |text: &str| !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    let plain: String = token.chars().filter(|c| *c != '_').collect();
    let (negative, digits) = match plain.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, plain.strip_prefix('+').unwrap_or(&plain)),
    };
    if !is_grouped(token) || digits.len() > MAX_DIGITS {
        return None;
    }
    let (digits, radix) = digits.strip_prefix("0x").map_or((digits, 10), |hex| (hex, 16));
    if !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix)) {
        let magnitude = BigInt::parse_bytes(digits.as_bytes(), radix)?;
        return Some(Value::from(if negative { -magnitude } else { magnitude }));
    }
    let is_float = digits.chars().all(|c| c.is_ascii_digit() || ".eE+-".contains(c))
        && !digits.ends_with('.')
        && !digits.contains(".e")
        && !digits.contains(".E");
    plain.parse().ok().filter(|float: &f64| is_float && float.is_finite()).map(Value::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_literal() {
        let cases = [
            ("nil", "nil"),
            (" , true ; comment\n", "true"),
            ("#| a #| b |# c |# #_ (x #_y z) 42", "42"),
            ("-7", "-7"),
            ("+7", "7"),
            ("0xff", "255"),
            ("-0xFF", "-255"),
            ("1_000_000", "1000000"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            ("-0.0", "-0.0"),
            ("6.02e23", "6.02e23"),
            ("1e3", "1000.0"),
            ("[##Inf ##-Inf ##NaN]", "[##Inf ##-Inf ##NaN]"),
            (r#""a\n\t\r\"\\ \u{1F600} \u0041""#, r#""a\n\t\r\"\\ 😀 A""#),
            ("\"\"\"raw \\ \"over\"\nlines\"\"\"", r#""raw \\ \"over\"\nlines""#),
            (
                r#"[:name :ns/name :a.b.c :com.acme:v1.0/op :"any text"]"#,
                r#"[:name :ns/name :a.b.c :com.acme:v1.0/op :"any text"]"#,
            ),
            ("(x string/upper -> even? * - + ?)", "(x string/upper -> even? * - + ?)"),
            (r#"{:a 1 "b" 2, 3 :c}"#, r#"{:a 1, "b" 2, 3 :c}"#),
            ("#{1 2}", "#{1 2}"),
            ("2026-11-20T10:00:00Z", "2026-11-20T10:00:00Z"),
            ("2026-11-20T12:00:00.5+02:00", "2026-11-20T10:00:00.500Z"),
            ("550e8400-e29b-41d4-a716-446655440000", "550e8400-e29b-41d4-a716-446655440000"),
            ("{:a :int ? :b [:list x]?}", "{:a (? :int), :b [:optional [:list x]]}"),
            ("[3 ?]", "[3 ?]"),
        ];
        for (text, printed) in cases {
            assert_eq!(read(text).unwrap().value.pr_str(), printed, "{text}");
        }
    }

    #[test]
    fn knows_where_each_part_began() {
        let Datum { place, .. } = read("[:map {:a  :int ?} x]").unwrap();
        let map = &place.parts[1];
        assert_eq!((place.at, place.parts[0].at, map.at, place.parts[2].at), (0, 1, 6, 19));
        assert_eq!((map.parts[0].at, map.parts[1].at, map.parts[1].parts[1].at), (7, 11, 11));
    }

    #[test]
    fn refuses_what_is_no_literal() {
        let cases = [
            ("", 0, "expected a type, got the end of the text"),
            ("[:vector", 0, "expected `]`, got the end of the text: this `[` stays open"),
            ("[:a }", 4, "expected a form or `]`, got '}'"),
            (":a :b", 3, "expected the end of the text, got ':'"),
            (": a", 1, "expected the name of a keyword, got ' '"),
            ("{:a}", 0, "expected a value for each key of this map, got an odd number of forms"),
            ("{:a 1 :a 2}", 6, "the key :a comes twice"),
            ("#{1 1}", 4, "the member 1 comes twice"),
            ("\"a", 0, "the string does not end"),
            (r#""\x""#, 1, r#"expected one of the escapes \n \t \r \" \\ \uXXXX \u{X…}"#),
            (r#""\u{D800}""#, 1, r#"expected one of the escapes \n \t \r \" \\ \uXXXX \u{X…}"#),
            ("1.", 0, "expected a number, got 1."),
            ("1__0", 0, "expected a number, got 1__0"),
            ("12a", 0, "expected a number, got 12a"),
            ("1e400", 0, "expected a number, got 1e400"),
            ("##Nan", 0, "expected ##Inf, ##-Inf or ##NaN, got ##Nan"),
            ("#| a", 0, "the comment does not end"),
        ];
        for (text, at, problem) in cases {
            let error = read(text).unwrap_err();
            assert_eq!((error.at, error.problem.as_str()), (at, problem), "{text}");
        }
        assert!(read(&"[".repeat(100_000)).is_err());
        assert!(read(&"#_".repeat(100_000)).is_err());
    }
}
