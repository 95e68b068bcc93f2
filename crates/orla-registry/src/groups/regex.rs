//! Regular expressions; see [`crate::pattern`].

use std::ops::Range;

use rtfs::{Map, Value};

use crate::arguments::Arguments;
use crate::builtin::{Builtin, Parameter, defaulted, example, optional, required};
use crate::error::BuiltinError;
use crate::groups::{record, size};
use crate::limits::{BoundedText, Budget, deep, vector};
use crate::pattern::{Groups, Pattern};
use crate::schema::{BOOLEAN, COUNT, TEXT, TEXTS};

type Result<T> = std::result::Result<T, BuiltinError>;

const INPUT: Parameter = required("text", TEXT, "The text.");
const PATTERN: Parameter = required(
    "pattern",
    TEXT,
    "The regular expression, as in Rust and RE2: classes, repetitions, groups, (?<name>…), \\b, \\p{L}; no look-around, \
     no back-references.",
);
const FLAGS: Parameter = defaulted(
    "flags",
    TEXT,
    "\"\"",
    "Letters of: i (any case), m (^ and $ at each line), s (. takes line breaks), x (spaces and comments in the pattern).",
);
const FOUND_OR_NULL: &str = r#""type":["object","null"],"properties":{"match":{"type":"string"},"start":{"type":"integer"},"end":{"type":"integer"},"groups":{"type":"array","items":{"type":["string","null"]}},"named":{"type":"object"}}"#;
const ALL_FOUND: &str = r#""type":"array","items":{"type":"object","properties":{"match":{"type":"string"},"start":{"type":"integer"},"end":{"type":"integer"},"groups":{"type":"array","items":{"type":["string","null"]}},"named":{"type":"object"}}}"#;

pub(super) static BUILTINS: &[Builtin] = &[
    Builtin {
        name: "regex.find",
        title: "Find a match",
        description: "The first match of a regular expression, with its place (in characters) and its groups; null if there \
                      is none.",
        parameters: &[INPUT, PATTERN, FLAGS],
        output: FOUND_OR_NULL,
        examples: &[
            example(
                r#"{"text":"über 2026-11","pattern":"(?<y>\\d{4})-(\\d\\d)"}"#,
                r#"{"match":"2026-11","start":5,"end":12,"groups":["2026","11"],"named":{"y":"2026"}}"#,
            ),
            example(r#"{"text":"a","pattern":"b"}"#, "null"),
        ],
        run: |args| {
            let (text, mut pattern) = read(args)?;
            let mut place = Place { text, byte: 0, characters: 0 };
            match pattern.find(text, 0)? {
                Some(found) => Ok(place.describe(&mut pattern, found, &mut Budget::new())?),
                None => Ok(Value::Nil),
            }
        },
    },
    Builtin {
        name: "regex.find_all",
        title: "Find all matches",
        description: "All matches of a regular expression, from the left and without overlaps, with their places and groups.",
        parameters: &[INPUT, PATTERN, FLAGS, optional("limit", COUNT, "At most so many.")],
        output: ALL_FOUND,
        examples: &[example(
            r#"{"text":"a1 b2","pattern":"[a-z](\\d)"}"#,
            r#"[{"match":"a1","start":0,"end":2,"groups":["1"],"named":{}},{"match":"b2","start":3,"end":5,"groups":["2"],"named":{}}]"#,
        )],
        run: find_all,
    },
    Builtin {
        name: "regex.replace",
        title: "Replace matches",
        description: "The text with the matches of a regular expression replaced. In the replacement, $1, ${1} and ${name} \
                      stand for groups, $0 for the match, $$ for $.",
        parameters: &[
            INPUT,
            PATTERN,
            required("replacement", TEXT, "What takes the place of each match."),
            FLAGS,
            optional("limit", COUNT, "Replace so many, from the start; without it, all."),
        ],
        output: TEXT,
        examples: &[example(
            r#"{"text":"Doe, Jane; Roe, Rick","pattern":"(\\w+), (\\w+)","replacement":"$2 $1"}"#,
            r#""Jane Doe; Rick Roe""#,
        )],
        run: replace,
    },
    Builtin {
        name: "regex.split",
        title: "Split at matches",
        description: "The parts of a text between the matches of a regular expression.",
        parameters: &[
            INPUT,
            PATTERN,
            FLAGS,
            optional("limit", r#""type":"integer","minimum":1"#, "At most so many parts."),
        ],
        output: TEXTS,
        examples: &[example(r#"{"text":"a, b;c","pattern":"[,;]\\s*"}"#, r#"["a","b","c"]"#)],
        run: split,
    },
    Builtin {
        name: "regex.test",
        title: "Does it match?",
        description: "Whether a regular expression matches anywhere in a text; with ^ and $ in it, the whole.",
        parameters: &[INPUT, PATTERN, FLAGS],
        output: BOOLEAN,
        examples: &[example(r#"{"text":"orla-1.0","pattern":"^[a-z]+-\\d"}"#, "true")],
        run: |args| {
            let (text, mut pattern) = read(args)?;
            Ok(Value::Bool(pattern.find(text, 0)?.is_some()))
        },
    },
];

fn read<'a>(args: &Arguments<'a>) -> Result<(&'a str, Pattern)> {
    let pattern = Pattern::new("pattern", args.text("pattern")?, args.text_or("flags", "")?)?;
    Ok((args.text("text")?, pattern))
}

/// Converts byte offsets to character offsets incrementally.
struct Place<'a> {
    text: &'a str,
    byte: usize,
    characters: usize,
}

impl Place<'_> {
    /// Returns the number of characters before a byte, which must not precede the last one requested.
    fn of(&mut self, byte: usize) -> usize {
        self.characters += self.text.get(self.byte..byte).map_or(0, |text| text.chars().count());
        self.byte = byte;
        self.characters
    }

    fn describe(
        &mut self,
        pattern: &mut Pattern,
        found: Range<usize>,
        budget: &mut Budget,
    ) -> Result<Value> {
        let groups = pattern.groups(self.text, found.clone())?;
        budget.items(10 + 3 * groups.len())?;
        let group = |range: &Option<Range<usize>>| {
            range.clone().map_or(Value::Nil, |range| Value::from(&self.text[range]))
        };
        let mut named = Map::new();
        for (name, range) in pattern.names().into_iter().zip(&groups) {
            if let Some(name) = name {
                deep(named.insert(Value::keyword(name), group(range)))?;
            }
        }
        for range in groups.iter().flatten() {
            budget.text(2 * range.len())?;
        }
        let texts = vector(groups.iter().skip(1).map(group).collect())?;
        let whole = Value::from(&self.text[found.clone()]);
        let (start, end) = (self.of(found.start), self.of(found.end));
        record([
            ("match", whole),
            ("start", size(start)),
            ("end", size(end)),
            ("groups", texts),
            ("named", named.into()),
        ])
    }
}

fn find_all(args: &Arguments<'_>) -> Result<Value> {
    let (text, mut pattern) = read(args)?;
    let limit = args.optional_count("limit")?.unwrap_or(usize::MAX);
    let mut place = Place { text, byte: 0, characters: 0 };
    let mut all = Vec::new();
    let mut budget = Budget::new();
    if limit > 0 {
        pattern.matches(text, |pattern, found| {
            all.push(place.describe(pattern, found, &mut budget)?);
            Ok(all.len() < limit)
        })?;
    }
    vector(all)
}

fn split(args: &Arguments<'_>) -> Result<Value> {
    let (text, mut pattern) = read(args)?;
    let limit = args.optional_integer("limit", 1..=i64::MAX)?;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let mut parts = Vec::new();
    let mut budget = Budget::new();
    let mut done = 0;
    if limit > 1 {
        pattern.matches(text, |_, found| {
            budget.items(1)?;
            parts.push(Value::from(&text[done..found.start]));
            done = found.end;
            Ok(parts.len() + 1 < limit)
        })?;
    }
    parts.push(Value::from(&text[done..]));
    vector(parts)
}

/// A piece of a replacement.
enum Piece<'a> {
    Text(&'a str),
    Group(usize),
}

fn replace(args: &Arguments<'_>) -> Result<Value> {
    let (text, mut pattern) = read(args)?;
    let limit = args.optional_count("limit")?.unwrap_or(usize::MAX);
    let pieces = pieces(args.text("replacement")?, &pattern.names())?;
    let needs_groups = pieces.iter().any(|piece| matches!(piece, Piece::Group(1..)));
    let mut out = BoundedText::default();
    let (mut done, mut count) = (0, 0);
    if limit > 0 {
        pattern.matches(text, |pattern, found| {
            out.push(&text[done..found.start])?;
            let groups: Groups = if needs_groups {
                pattern.groups(text, found.clone())?
            } else {
                vec![Some(found.clone())]
            };
            for piece in &pieces {
                match piece {
                    Piece::Text(text) => out.push(text)?,
                    Piece::Group(group) => {
                        let range = groups.get(*group).cloned().flatten();
                        out.push(range.map_or("", |range| &text[range]))?;
                    }
                }
            }
            done = found.end;
            count += 1;
            Ok(count < limit)
        })?;
    }
    out.push(&text[done..])?;
    Ok(out.finish())
}

fn pieces<'a>(replacement: &'a str, names: &[Option<String>]) -> Result<Vec<Piece<'a>>> {
    let mut pieces = Vec::new();
    let mut rest = replacement;
    while let Some((before, after)) = rest.split_once('$') {
        pieces.push(Piece::Text(before));
        if let Some(after) = after.strip_prefix('$') {
            pieces.push(Piece::Text("$"));
            rest = after;
            continue;
        }
        let (name, remaining) = match after.strip_prefix('{') {
            Some(braced) => braced
                .split_once('}')
                .ok_or_else(|| BuiltinError::content("replacement", "`${` has no `}`"))?,
            None => after
                .split_at(after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len()),
        };
        let group = match name.parse::<usize>() {
            Ok(number) => Some(number).filter(|number| *number < names.len()),
            Err(_) => names.iter().position(|known| known.as_deref() == Some(name)),
        };
        let group = group.ok_or_else(|| {
            let shown = rtfs::text::excerpt(name, 40);
            BuiltinError::content(
                "replacement",
                format_args!("the pattern has no group {shown:?}; $$ is a dollar sign"),
            )
        })?;
        pieces.push(Piece::Group(group));
        rest = remaining;
    }
    pieces.push(Piece::Text(rest));
    Ok(pieces)
}
