//! The grammar of JMESPath, by binding powers.

use rtfs::Value;
use rtfs::json::value_from_json;

use super::Result;
use crate::error::BuiltinError;

const MAX_LENGTH: usize = 10_000;
/// The maximum nesting of expressions, and the maximum number of parts of one. The tree is traversed
/// recursively, and `a.b.c` makes it as deep as it has parts.
const MAX_NESTING: usize = 50;
const MAX_PARTS: usize = 250;

pub(super) enum Tree {
    Current,
    Literal(Value),
    Field(String),
    Index(i64),
    Slice { start: Option<i64>, end: Option<i64>, step: i64 },
    Then(Box<Self>, Box<Self>),
    Flatten(Box<Self>),
    Project(Box<Self>, Box<Self>),
    ProjectValues(Box<Self>, Box<Self>),
    Filter { list: Box<Self>, condition: Box<Self>, then: Box<Self> },
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
    Or(Box<Self>, Box<Self>),
    And(Box<Self>, Box<Self>),
    Not(Box<Self>),
    Compare(Box<Self>, Comparator, Box<Self>),
    Call(String, Vec<Self>),
    Reference(Box<Self>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Comparator {
    Equal,
    Different,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Name(String),
    Quoted(String),
    Literal(Value),
    Number(i64),
    Compare(Comparator),
    /// `.`, `*`, `[`, `]`, `[?`, `[]`, `{`, `}`, `(`, `)`, `,`, `:`, `@`, `&`, `|`, `||`, `&&`, `!`
    Mark(&'static str),
    End,
}

/// The tokens, the longest first.
const MARKS: [&str; 18] =
    ["[?", "[]", "||", "&&", ".", "*", "[", "]", "{", "}", "(", ")", ",", ":", "@", "&", "|", "!"];

/// A projection ends before an operator that binds more loosely than this.
const PROJECTION_ENDS: u8 = 10;
const FLATTEN: u8 = 9;
const STAR: u8 = 20;
const FILTER: u8 = 21;
const DOT: u8 = 40;
const NOT: u8 = 45;

impl Token {
    fn power(&self) -> u8 {
        match self {
            Self::Compare(_) => 5,
            Self::Mark(mark) => match *mark {
                "|" => 1,
                "||" => 2,
                "&&" => 3,
                "[]" => FLATTEN,
                "*" => STAR,
                "[?" => FILTER,
                "." => DOT,
                "!" => NOT,
                "{" => 50,
                "[" => 55,
                "(" => 60,
                _ => 0,
            },
            _ => 0,
        }
    }
}

pub(super) fn parse(text: &str) -> Result<Tree> {
    if text.len() > MAX_LENGTH {
        return Err(BuiltinError::limit("the expression", format_args!("{MAX_LENGTH} bytes")));
    }
    let tokens = Lexer { text, at: 0 }.tokens()?;
    let mut parser = Parser { text, tokens, at: 0, nesting: 0, parts: 0 };
    let tree = parser.expression(0)?;
    if *parser.peek() == Token::End { Ok(tree) } else { Err(parser.expected("an operator or the end")) }
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    fn tokens(mut self) -> Result<Vec<(usize, Token)>> {
        let mut tokens = Vec::new();
        loop {
            let rest = &self.text[self.at..];
            self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
            let start = self.at;
            let token = self.token()?;
            let ends = token == Token::End;
            tokens.push((start, token));
            if ends {
                return Ok(tokens);
            }
        }
    }

    fn token(&mut self) -> Result<Token> {
        let rest = &self.text[self.at..];
        let Some(first) = rest.chars().next() else { return Ok(Token::End) };
        let comparators = [
            ("==", Comparator::Equal),
            ("!=", Comparator::Different),
            ("<=", Comparator::AtMost),
            (">=", Comparator::AtLeast),
            ("<", Comparator::Less),
            (">", Comparator::Greater),
        ];
        if let Some((text, comparator)) = comparators.iter().find(|(text, _)| rest.starts_with(text)) {
            self.at += text.len();
            return Ok(Token::Compare(*comparator));
        }
        if let Some(mark) = MARKS.iter().find(|mark| rest.starts_with(**mark)) {
            self.at += mark.len();
            return Ok(Token::Mark(mark));
        }
        match first {
            'a'..='z' | 'A'..='Z' | '_' => {
                let length =
                    rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                self.at += length;
                Ok(Token::Name(rest[..length].to_owned()))
            }
            '-' | '0'..='9' => {
                let digits = rest.strip_prefix('-').unwrap_or(rest);
                let length =
                    digits.len() - digits.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                let text = &rest[..rest.len() - digits.len() + length];
                let number = text
                    .parse()
                    .map_err(|_| problem(self.text, self.at, "expected an integer of 64 bits"))?;
                self.at += text.len();
                Ok(Token::Number(number))
            }
            '"' => {
                let quoted = self.quoted('"')?;
                match value_from_json(quoted) {
                    Ok(Value::Str(text)) => Ok(Token::Quoted(text.as_str().to_owned())),
                    _ => Err(problem(
                        self.text,
                        self.at - quoted.len(),
                        "the quoted name is no JSON string",
                    )),
                }
            }
            '\'' => {
                let quoted = self.quoted('\'')?;
                let inner = &quoted[1..quoted.len() - 1];
                Ok(Token::Literal(Value::from(inner.replace("\\'", "'"))))
            }
            '`' => {
                let quoted = self.quoted('`')?;
                let inner = quoted[1..quoted.len() - 1].replace("\\`", "`");
                let value = value_from_json(inner.trim()).map_err(|error| {
                    let what = format!("the literal is not JSON: {}", error.problem);
                    problem(self.text, self.at - quoted.len(), &what)
                })?;
                Ok(Token::Literal(value))
            }
            other => Err(problem(self.text, self.at, &format!("{other:?} means nothing here"))),
        }
    }

    /// Returns a text from here to the next quote that is not escaped, with both quotes.
    fn quoted(&mut self, quote: char) -> Result<&'a str> {
        let start = self.at;
        let mut escaped = false;
        for (at, c) in self.text[start..].char_indices().skip(1) {
            if c == quote && !escaped {
                self.at = start + at + 1;
                return Ok(&self.text[start..self.at]);
            }
            escaped = c == '\\' && !escaped;
        }
        Err(problem(self.text, start, "the quoted text does not end"))
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(usize, Token)>,
    at: usize,
    nesting: usize,
    parts: usize,
}

impl Parser<'_> {
    fn expression(&mut self, power: u8) -> Result<Tree> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(BuiltinError::limit("the nesting", format_args!("{MAX_NESTING} levels")));
        }
        let mut left = self.begin()?;
        while power < self.peek().power() {
            left = self.go_on(left)?;
        }
        self.nesting -= 1;
        Ok(left)
    }

    fn part(&mut self) -> Result<()> {
        self.parts += 1;
        if self.parts > MAX_PARTS {
            return Err(BuiltinError::limit("the expression", format_args!("{MAX_PARTS} parts")));
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<Tree> {
        self.part()?;
        match self.next() {
            Token::Literal(value) => Ok(Tree::Literal(value)),
            Token::Name(name) => Ok(Tree::Field(name)),
            Token::Quoted(_) if *self.peek() == Token::Mark("(") => {
                self.at -= 1;
                Err(self.expected("the name of a function without quotes"))
            }
            Token::Quoted(name) => Ok(Tree::Field(name)),
            Token::Mark("@") => Ok(Tree::Current),
            Token::Mark("&") => Ok(Tree::Reference(Box::new(self.expression(0)?))),
            Token::Mark("!") => Ok(Tree::Not(Box::new(self.expression(NOT)?))),
            Token::Mark("*") => {
                let then =
                    if *self.peek() == Token::Mark("]") { Tree::Current } else { self.projected(STAR)? };
                Ok(Tree::ProjectValues(Box::new(Tree::Current), Box::new(then)))
            }
            Token::Mark("[?") => self.filter(Tree::Current),
            Token::Mark("[]") => self.flatten(Tree::Current),
            Token::Mark("{") => self.object(),
            Token::Mark("(") => {
                let inner = self.expression(0)?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Mark("[") => match self.peek() {
                Token::Number(_) | Token::Mark(":") => self.index(None),
                Token::Mark("*")
                    if self
                        .tokens
                        .get(self.at + 1)
                        .is_some_and(|(_, token)| *token == Token::Mark("]")) =>
                {
                    self.at += 2;
                    let then = self.projected(STAR)?;
                    Ok(Tree::Project(Box::new(Tree::Current), Box::new(then)))
                }
                _ => self.list(),
            },
            _ => {
                self.at = self.at.saturating_sub(1);
                Err(self.expected("an expression"))
            }
        }
    }

    fn go_on(&mut self, left: Tree) -> Result<Tree> {
        self.part()?;
        let left = Box::new(left);
        match self.next() {
            Token::Compare(comparator) => {
                Ok(Tree::Compare(left, comparator, Box::new(self.expression(5)?)))
            }
            Token::Mark("|") => Ok(Tree::Then(left, Box::new(self.expression(1)?))),
            Token::Mark("||") => Ok(Tree::Or(left, Box::new(self.expression(2)?))),
            Token::Mark("&&") => Ok(Tree::And(left, Box::new(self.expression(3)?))),
            Token::Mark(".") if *self.peek() == Token::Mark("*") => {
                self.at += 1;
                let then = self.projected(DOT)?;
                Ok(Tree::ProjectValues(left, Box::new(then)))
            }
            Token::Mark(".") => Ok(Tree::Then(left, Box::new(self.after_dot(DOT)?))),
            Token::Mark("[?") => self.filter(*left),
            Token::Mark("[]") => self.flatten(*left),
            Token::Mark("(") => match *left {
                Tree::Field(name) => self.call(name),
                _ => {
                    self.at -= 1;
                    Err(self.expected("an operator"))
                }
            },
            Token::Mark("[") => match self.peek() {
                Token::Number(_) | Token::Mark(":") => self.index(Some(*left)),
                _ => {
                    self.expect("*")?;
                    self.expect("]")?;
                    let then = self.projected(STAR)?;
                    Ok(Tree::Project(left, Box::new(then)))
                }
            },
            _ => {
                self.at = self.at.saturating_sub(1);
                Err(self.expected("an operator"))
            }
        }
    }

    /// Returns the expression that a projection applies to each item.
    fn projected(&mut self, power: u8) -> Result<Tree> {
        match self.peek() {
            token if token.power() < PROJECTION_ENDS => Ok(Tree::Current),
            Token::Mark("[" | "[?") => self.expression(power),
            Token::Mark(".") => {
                self.at += 1;
                self.after_dot(power)
            }
            _ => Err(self.expected("`.`, `[` or the end of the projection")),
        }
    }

    fn after_dot(&mut self, power: u8) -> Result<Tree> {
        match self.peek() {
            Token::Name(_) | Token::Quoted(_) | Token::Mark("*") => self.expression(power),
            Token::Mark("[") => {
                self.at += 1;
                self.list()
            }
            Token::Mark("{") => {
                self.at += 1;
                self.object()
            }
            _ => Err(self.expected("a name, `*`, `[` or `{`")),
        }
    }

    fn flatten(&mut self, left: Tree) -> Result<Tree> {
        let then = self.projected(FLATTEN)?;
        Ok(Tree::Project(Box::new(Tree::Flatten(Box::new(left))), Box::new(then)))
    }

    fn filter(&mut self, list: Tree) -> Result<Tree> {
        let condition = self.expression(0)?;
        self.expect("]")?;
        let then =
            if *self.peek() == Token::Mark("[]") { Tree::Current } else { self.projected(FILTER)? };
        Ok(Tree::Filter { list: Box::new(list), condition: Box::new(condition), then: Box::new(then) })
    }

    /// Parses an index or a slice, after `[`.
    fn index(&mut self, left: Option<Tree>) -> Result<Tree> {
        let mut bounds = [None; 3];
        let mut colons = 0;
        loop {
            match self.next() {
                Token::Number(number) if bounds[colons].is_none() => bounds[colons] = Some(number),
                Token::Mark(":") if colons < 2 => colons += 1,
                Token::Mark("]") => break,
                _ => {
                    self.at = self.at.saturating_sub(1);
                    return Err(self.expected("a number, `:` or `]`"));
                }
            }
        }
        let then = |tree| match left {
            Some(left) => Tree::Then(Box::new(left), Box::new(tree)),
            None => tree,
        };
        if colons == 0 {
            return Ok(then(Tree::Index(bounds[0].unwrap_or(0))));
        }
        let [start, end, step] = bounds;
        let step = step.unwrap_or(1);
        if step == 0 {
            self.at -= 1;
            return Err(self.expected("a step other than 0"));
        }
        let sliced = then(Tree::Slice { start, end, step });
        let after = self.projected(STAR)?;
        Ok(Tree::Project(Box::new(sliced), Box::new(after)))
    }

    fn list(&mut self) -> Result<Tree> {
        let mut trees = Vec::new();
        loop {
            trees.push(self.expression(0)?);
            if *self.peek() != Token::Mark(",") {
                self.expect("]")?;
                return Ok(Tree::List(trees));
            }
            self.at += 1;
        }
    }

    fn object(&mut self) -> Result<Tree> {
        let mut entries = Vec::new();
        loop {
            let (Token::Name(name) | Token::Quoted(name)) = self.next() else {
                self.at = self.at.saturating_sub(1);
                return Err(self.expected("a name"));
            };
            self.expect(":")?;
            entries.push((name, self.expression(0)?));
            if *self.peek() != Token::Mark(",") {
                self.expect("}")?;
                return Ok(Tree::Object(entries));
            }
            self.at += 1;
        }
    }

    fn call(&mut self, name: String) -> Result<Tree> {
        let mut arguments = Vec::new();
        if *self.peek() != Token::Mark(")") {
            loop {
                arguments.push(self.expression(0)?);
                if *self.peek() != Token::Mark(",") {
                    break;
                }
                self.at += 1;
            }
        }
        self.expect(")")?;
        Ok(Tree::Call(name, arguments))
    }

    fn peek(&self) -> &Token {
        self.tokens.get(self.at).map_or(&Token::End, |(_, token)| token)
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn expect(&mut self, mark: &'static str) -> Result<()> {
        if *self.peek() == Token::Mark(mark) {
            self.at += 1;
            return Ok(());
        }
        Err(self.expected(&format!("`{mark}`")))
    }

    fn expected(&self, expected: &str) -> BuiltinError {
        let start = |at: usize| self.tokens.get(at).map_or(self.text.len(), |(start, _)| *start);
        let (from, to) = (start(self.at), start(self.at + 1));
        let got = match self.peek() {
            Token::End => "the end".to_owned(),
            _ => format!("{:?}", rtfs::text::excerpt(self.text[from..to].trim(), 40)),
        };
        problem(self.text, from, &format!("expected {expected}, got {got}"))
    }
}

fn problem(text: &str, at: usize, problem: &str) -> BuiltinError {
    let character = text[..at].chars().count() + 1;
    super::problem(format_args!("{problem} (at character {character})"))
}
