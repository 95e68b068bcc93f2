//! The syntax of JSONPath, and its type rules.

use rtfs::Value;

use super::Result;
use crate::error::BuiltinError;

/// The maximum nesting of parentheses, filters and functions.
const MAX_NESTING: usize = 50;
const MAX_LENGTH: usize = 10_000;
/// The largest integer that a float represents exactly.
const MAX_INTEGER: i64 = 9_007_199_254_740_991;

pub(super) struct Query {
    pub(super) absolute: bool,
    pub(super) segments: Vec<Segment>,
}

pub(super) enum Segment {
    Child(Vec<Selector>),
    Descendants(Vec<Selector>),
}

pub(super) enum Selector {
    Name(String),
    Wildcard,
    Index(i64),
    Slice { start: Option<i64>, end: Option<i64>, step: i64 },
    Filter(Condition),
}

pub(super) enum Condition {
    Any(Vec<Self>),
    All(Vec<Self>),
    Not(Box<Self>),
    Exists(Query),
    Matches(Call),
    Compares(Operand, Operator, Operand),
}

#[derive(Clone, Copy)]
pub(super) enum Operator {
    Equal,
    Different,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

pub(super) enum Operand {
    Literal(Value),
    Query(Query),
    Call(Box<Call>),
}

pub(super) struct Call {
    pub(super) function: Function,
    pub(super) arguments: Vec<Operand>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Function {
    Length,
    Count,
    Value,
    Match,
    Search,
}

impl Function {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "length" => Self::Length,
            "count" => Self::Count,
            "value" => Self::Value,
            "match" => Self::Match,
            "search" => Self::Search,
            _ => return None,
        })
    }

    /// Returns whether it is a condition, not a value.
    fn is_logical(self) -> bool {
        matches!(self, Self::Match | Self::Search)
    }
}

impl Query {
    /// Returns whether it selects at most one node.
    fn is_singular(&self) -> bool {
        self.segments.iter().all(|segment| match segment {
            Segment::Child(selectors) => {
                matches!(selectors[..], [Selector::Name(_) | Selector::Index(_)])
            }
            Segment::Descendants(_) => false,
        })
    }
}

pub(super) fn parse(text: &str) -> Result<Query> {
    if text.len() > MAX_LENGTH {
        return Err(BuiltinError::limit("the path", format_args!("{MAX_LENGTH} bytes")));
    }
    let mut reader = Reader { text, at: 0, nesting: 0 };
    if !reader.skip("$") {
        return Err(reader.expected("`$`"));
    }
    let segments = reader.segments()?;
    if reader.at < text.len() {
        Err(reader.expected("a segment or the end"))
    } else {
        Ok(Query { absolute: true, segments })
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    nesting: usize,
}

impl<'a> Reader<'a> {
    fn segments(&mut self) -> Result<Vec<Segment>> {
        let mut segments = Vec::new();
        loop {
            let before = self.at;
            self.space();
            if self.skip("..") {
                segments.push(Segment::Descendants(self.after_dots()?));
            } else if self.skip(".") {
                segments.push(Segment::Child(vec![self.name_or_wildcard()?]));
            } else if self.skip("[") {
                segments.push(Segment::Child(self.bracketed()?));
            } else {
                // Trailing white space is not consumed.
                self.at = before;
                return Ok(segments);
            }
        }
    }

    fn after_dots(&mut self) -> Result<Vec<Selector>> {
        if self.skip("[") { self.bracketed() } else { Ok(vec![self.name_or_wildcard()?]) }
    }

    fn name_or_wildcard(&mut self) -> Result<Selector> {
        if self.skip("*") {
            return Ok(Selector::Wildcard);
        }
        let first = |c: char| c.is_ascii_alphabetic() || c == '_' || !c.is_ascii();
        let rest = self.rest();
        if !rest.starts_with(first) {
            return Err(self.expected("a name"));
        }
        let length = rest.find(|c: char| !first(c) && !c.is_ascii_digit()).unwrap_or(rest.len());
        self.at += length;
        Ok(Selector::Name(rest[..length].to_owned()))
    }

    /// Returns the selectors after `[`.
    fn bracketed(&mut self) -> Result<Vec<Selector>> {
        let mut selectors = Vec::new();
        loop {
            self.space();
            selectors.push(self.selector()?);
            self.space();
            if self.skip("]") {
                return Ok(selectors);
            }
            if !self.skip(",") {
                return Err(self.expected("`,` or `]`"));
            }
        }
    }

    fn selector(&mut self) -> Result<Selector> {
        match self.peek() {
            Some('*') => {
                self.at += 1;
                Ok(Selector::Wildcard)
            }
            Some('\'' | '"') => self.string().map(Selector::Name),
            Some('?') => {
                self.at += 1;
                self.space();
                self.any().map(Selector::Filter)
            }
            _ => {
                let start = self.optional_integer()?;
                let before = self.at;
                self.space();
                if !self.skip(":") {
                    self.at = before;
                    return start.map(Selector::Index).ok_or_else(|| self.expected("a selector"));
                }
                self.space();
                let end = self.optional_integer()?;
                self.space();
                let mut step = None;
                if self.skip(":") {
                    self.space();
                    step = self.optional_integer()?;
                }
                Ok(Selector::Slice { start, end, step: step.unwrap_or(1) })
            }
        }
    }

    fn optional_integer(&mut self) -> Result<Option<i64>> {
        let rest = self.rest();
        let digits = rest.strip_prefix('-').unwrap_or(rest);
        let length = digits.len() - digits.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if length == 0 {
            return if rest.starts_with('-') { Err(self.expected("an integer")) } else { Ok(None) };
        }
        let text = &rest[..rest.len() - digits.len() + length];
        let number = text.parse().ok().filter(|n: &i64| n.abs() <= MAX_INTEGER);
        let number = number.filter(|_| text == "0" || !digits.starts_with('0'));
        let number =
            number.ok_or_else(|| self.expected("an integer without leading zeros, within 2^53"))?;
        self.at += text.len();
        Ok(Some(number))
    }

    fn any(&mut self) -> Result<Condition> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(BuiltinError::limit("the nesting", format_args!("{MAX_NESTING} levels")));
        }
        let any =
            self.list("||", |reader| reader.list("&&", Self::basic, Condition::All), Condition::Any);
        self.nesting -= 1;
        any
    }

    fn list(
        &mut self,
        between: &str,
        read: impl Fn(&mut Self) -> Result<Condition>,
        of: fn(Vec<Condition>) -> Condition,
    ) -> Result<Condition> {
        let first = read(self)?;
        let mut all = vec![first];
        loop {
            let before = self.at;
            self.space();
            if !self.skip(between) {
                self.at = before;
                break;
            }
            self.space();
            all.push(read(self)?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { of(all) })
    }

    fn basic(&mut self) -> Result<Condition> {
        if self.rest().starts_with('!') {
            self.at += 1;
            self.space();
            let inner = if self.rest().starts_with('(') { self.parenthesised()? } else { self.test()? };
            return Ok(Condition::Not(Box::new(inner)));
        }
        if self.rest().starts_with('(') {
            return self.parenthesised();
        }
        let start = self.at;
        let left = self.operand()?;
        let before = self.at;
        self.space();
        let Some(operator) = self.operator() else {
            self.at = before;
            return self.as_test(left, start);
        };
        self.comparable(&left, start)?;
        self.space();
        let start = self.at;
        let right = self.operand()?;
        self.comparable(&right, start)?;
        Ok(Condition::Compares(left, operator, right))
    }

    fn parenthesised(&mut self) -> Result<Condition> {
        self.at += 1;
        self.space();
        let inner = self.any()?;
        self.space();
        if self.skip(")") { Ok(inner) } else { Err(self.expected("`)`")) }
    }

    fn test(&mut self) -> Result<Condition> {
        let start = self.at;
        let operand = self.operand()?;
        self.as_test(operand, start)
    }

    fn as_test(&mut self, operand: Operand, start: usize) -> Result<Condition> {
        match operand {
            Operand::Query(query) => Ok(Condition::Exists(query)),
            Operand::Call(call) if call.function.is_logical() => Ok(Condition::Matches(*call)),
            _ => Err(self.problem(start, "this is no condition: it has to be compared with something")),
        }
    }

    fn comparable(&self, operand: &Operand, start: usize) -> Result<()> {
        match operand {
            Operand::Literal(_) => Ok(()),
            Operand::Query(query) if query.is_singular() => Ok(()),
            Operand::Query(_) => {
                Err(self.problem(start, "a query that may select several values cannot be compared"))
            }
            Operand::Call(call) if call.function.is_logical() => {
                Err(self.problem(start, "this function gives no value that could be compared"))
            }
            Operand::Call(_) => Ok(()),
        }
    }

    fn operator(&mut self) -> Option<Operator> {
        let operators = [
            ("==", Operator::Equal),
            ("!=", Operator::Different),
            ("<=", Operator::AtMost),
            (">=", Operator::AtLeast),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        operators.into_iter().find(|(text, _)| self.skip(text)).map(|(_, operator)| operator)
    }

    fn operand(&mut self) -> Result<Operand> {
        match self.peek() {
            Some('@' | '$') => {
                let absolute = self.peek() == Some('$');
                self.at += 1;
                Ok(Operand::Query(Query { absolute, segments: self.segments()? }))
            }
            Some('\'' | '"') => self.string().map(|text| Operand::Literal(Value::from(text))),
            Some('-' | '0'..='9') => self.number(),
            Some('a'..='z') => self.word(),
            _ => Err(self.expected("a query, a literal or a function")),
        }
    }

    fn number(&mut self) -> Result<Operand> {
        let rest = self.rest();
        let length = rest
            .find(|c: char| !matches!(c, '-' | '+' | '.' | 'e' | 'E' | '0'..='9'))
            .unwrap_or(rest.len());
        let number = rtfs::json::value_from_json(&rest[..length]);
        let number = number.map_err(|error| self.problem(self.at, &error.problem))?;
        self.at += length;
        Ok(Operand::Literal(number))
    }

    fn word(&mut self) -> Result<Operand> {
        let start = self.at;
        let rest = self.rest();
        let length =
            rest.find(|c: char| !matches!(c, 'a'..='z' | '_' | '0'..='9')).unwrap_or(rest.len());
        let word = &rest[..length];
        self.at += length;
        match word {
            "true" => return Ok(Operand::Literal(Value::Bool(true))),
            "false" => return Ok(Operand::Literal(Value::Bool(false))),
            "null" => return Ok(Operand::Literal(Value::Nil)),
            _ => {}
        }
        let function = Function::named(word).filter(|_| self.rest().starts_with('('));
        let Some(function) = function else {
            let known = "there are the functions length, count, value, match and search";
            return Err(self.problem(
                start,
                &format!("{:?} means nothing here: {known}", rtfs::text::excerpt(word, 40)),
            ));
        };
        self.at += 1;
        let call = self.call(function, start)?;
        Ok(Operand::Call(Box::new(call)))
    }

    fn call(&mut self, function: Function, start: usize) -> Result<Call> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(BuiltinError::limit("the nesting", format_args!("{MAX_NESTING} levels")));
        }
        let mut arguments = Vec::new();
        loop {
            self.space();
            let argument_start = self.at;
            let argument = self.operand()?;
            match (function, &argument) {
                (Function::Count | Function::Value, Operand::Query(_)) => {}
                (Function::Count | Function::Value, _) => {
                    return Err(self.problem(argument_start, "this function takes a query"));
                }
                _ => self.comparable(&argument, argument_start)?,
            }
            arguments.push(argument);
            self.space();
            if self.skip(")") {
                break;
            }
            if !self.skip(",") {
                return Err(self.expected("`,` or `)`"));
            }
        }
        let wanted = if function.is_logical() { 2 } else { 1 };
        if arguments.len() != wanted {
            return Err(self.problem(start, &format!("this function takes {wanted} argument(s)")));
        }
        self.nesting -= 1;
        Ok(Call { function, arguments })
    }

    /// Returns a string literal in either kind of quotes.
    fn string(&mut self) -> Result<String> {
        let start = self.at;
        let quote = self.peek().unwrap_or('"');
        self.at += 1;
        let mut out = String::new();
        loop {
            let Some(c) = self.peek() else {
                return Err(self.problem(start, "the string does not end"));
            };
            let place = self.at;
            self.at += c.len_utf8();
            match c {
                c if c == quote => return Ok(out),
                c if u32::from(c) < 0x20 => {
                    return Err(self.problem(place, "a control character has to be escaped"));
                }
                '\\' => out.push(self.escape(quote, place)?),
                c => out.push(c),
            }
        }
    }

    fn escape(&mut self, quote: char, place: usize) -> Result<char> {
        let c = self.peek();
        self.at += c.map_or(0, char::len_utf8);
        Ok(match c {
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some(c @ ('/' | '\\')) => c,
            Some(c) if c == quote => c,
            Some('u') => {
                let mut units = vec![self.hex4(place)?];
                if matches!(units[0], 0xd800..=0xdbff) && self.skip("\\u") {
                    units.push(self.hex4(place)?);
                }
                match char::decode_utf16(units).next() {
                    Some(Ok(c)) => c,
                    _ => return Err(self.problem(place, "half of a surrogate pair is not a character")),
                }
            }
            _ => return Err(self.problem(place, "unknown escape")),
        })
    }

    fn hex4(&mut self, place: usize) -> Result<u16> {
        let digits =
            self.rest().get(..4).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let unit = unit
            .ok_or_else(|| self.problem(place, "`\\u` has to be followed by four hexadecimal digits"))?;
        self.at += 4;
        Ok(unit)
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip(&mut self, token: &str) -> bool {
        let comes = self.rest().starts_with(token);
        self.at += if comes { token.len() } else { 0 };
        comes
    }

    fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    fn expected(&self, expected: &str) -> BuiltinError {
        let got = self.peek().map_or_else(|| "the end".to_owned(), |c| format!("{c:?}"));
        self.problem(self.at, &format!("expected {expected}, got {got}"))
    }

    fn problem(&self, at: usize, problem: &str) -> BuiltinError {
        let character = self.text[..at].chars().count() + 1;
        BuiltinError::content("path", format_args!("{problem} (at character {character})"))
    }
}
