//! Data → type.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::read::{self, Datum, Place};
use super::violation::cut;
use super::{Field, MapType, Pattern, Predicate, Primitive, TypeExpr, text_formats};
use crate::value::Value;

/// The deepest nesting of a type that is parsed.
pub const MAX_TYPE_DEPTH: usize = 128;

/// Why a text or a datum is no type. Reads
/// `1:7: expected a type, got :strng; did you mean :string?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidType {
    /// Line and column of the mistake in the text, both from 1; the column counts characters. `None`
    /// for a datum.
    pub position: Option<(usize, usize)>,
    /// Which part of the datum is wrong: the index of an item in each collection from the outermost
    /// in. A map counts its keys and values in turn.
    pub path: Vec<usize>,
    /// What was expected there, and what came.
    pub problem: String,
}

impl fmt::Display for InvalidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.position {
            write!(f, "{line}:{column}: ")?;
        }
        f.write_str(&self.problem)
    }
}

impl std::error::Error for InvalidType {}

impl TypeExpr {
    /// Reads a type in RTFS notation, such as `[:map {:name :string, :age :int?}]`.
    ///
    /// # Errors
    /// Text that is not exactly one type, with the place, what was expected there, and what came.
    pub fn parse(text: &str) -> Result<Self, InvalidType> {
        let position = |at: usize| {
            let before = &text[..at];
            let line_start = before.rfind('\n').map_or(0, |end| end + 1);
            Some((before.matches('\n').count() + 1, text[line_start..at].chars().count() + 1))
        };
        let Datum { value, place } = read::read(text).map_err(|error| InvalidType {
            position: position(error.at),
            path: Vec::new(),
            problem: error.problem,
        })?;
        Self::from_value(&value).map_err(|error| {
            let at = error.path.iter().try_fold(&place, |place, step| place.parts.get(*step));
            InvalidType { position: position(at.map_or(place.at, |place: &Place| place.at)), ..error }
        })
    }

    /// Takes quoted data for a type: keywords and bare symbols for the primitives, vectors for all
    /// others. A mark is the symbol `?` after what it marks; in a map of fields a marked type is
    /// `(? T)`. `[:optional T]` is `T?` for a type that is no name.
    ///
    /// # Errors
    /// The part that is no type, what was expected there, and what came.
    pub fn from_value(value: &Value) -> Result<Self, InvalidType> {
        Parser { path: Vec::new(), depth: 0 }.ty(value)
    }
}

impl FromStr for TypeExpr {
    type Err = InvalidType;

    fn from_str(text: &str) -> Result<Self, InvalidType> {
        Self::parse(text)
    }
}

type Parsed<T> = Result<T, InvalidType>;

struct Parser {
    path: Vec<usize>,
    depth: usize,
}

/// The items of a form with their places in it, without those that were taken already.
struct Form<'v> {
    /// The name that the form begins with, or what it is to readers of errors.
    name: &'v str,
    items: &'v [Value],
    next: usize,
}

impl Parser {
    fn error<T>(&self, problem: impl Into<String>) -> Parsed<T> {
        Err(InvalidType { position: None, path: self.path.clone(), problem: problem.into() })
    }

    fn error_at<T>(&self, step: usize, problem: impl Into<String>) -> Parsed<T> {
        let mut path = self.path.clone();
        path.push(step);
        Err(InvalidType { position: None, path, problem: problem.into() })
    }

    fn inside<T>(&mut self, step: usize, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.path.push(step);
        let result = parse(self);
        self.path.pop();
        result
    }

    fn ty(&mut self, value: &Value) -> Parsed<TypeExpr> {
        if self.depth == MAX_TYPE_DEPTH {
            return self.error(format!("types are nested deeper than {MAX_TYPE_DEPTH} levels"));
        }
        self.depth += 1;
        let ty = match value {
            Value::Nil => Ok(Primitive::Nil.into()),
            Value::Keyword(keyword) => self.named(keyword.name(), value, false),
            Value::Symbol(symbol) => self.named(symbol.name(), value, true),
            Value::Vector(vector) => match vector.items() {
                [Value::Keyword(head), items @ ..] => {
                    self.form(&mut Form { name: head.name(), items, next: 0 })
                }
                [] => self.error("expected a type, got []"),
                [other, ..] => {
                    let problem = format!(
                        "expected a keyword that says the kind of type, such as :vector, got {}",
                        shown(other)
                    );
                    self.error_at(0, problem)
                }
            },
            Value::List(list) => match list.items() {
                [mark, _] if is_mark(mark) => self.marked(value).map(|(ty, _)| ty.optional()),
                _ => self.error(format!("expected a type, got {}", shown(value))),
            },
            _ => self
                .error(format!("expected a type, got {}; for one value write [:val …]", shown(value))),
        };
        self.depth -= 1;
        ty
    }

    /// A primitive, or with a bare symbol and a capital a named type.
    fn named(&self, name: &str, value: &Value, is_symbol: bool) -> Parsed<TypeExpr> {
        let (base, optional) = match name.strip_suffix('?') {
            Some(base) if !base.is_empty() => (base, true),
            _ => (name, false),
        };
        let ty = match Primitive::named(base) {
            Some(primitive) => primitive.into(),
            None if is_symbol && base.starts_with(char::is_uppercase) => TypeExpr::Ref(base.into()),
            None => {
                let mut problem = format!("expected a type, got {}", shown(value));
                if FORMS.contains(&base) {
                    problem.push_str(&format!("; this one has parts: [:{base} …]"));
                } else if let Some(similar) = similar_name(base) {
                    problem.push_str(&format!("; did you mean :{similar}?"));
                }
                return self.error(problem);
            }
        };
        Ok(if optional { ty.optional() } else { ty })
    }

    fn form(&mut self, form: &mut Form<'_>) -> Parsed<TypeExpr> {
        let ty = match form.name {
            "union" => TypeExpr::Union(self.some_types(form)?),
            "vector" => TypeExpr::Vector(self.next_type(form)?),
            "list" => TypeExpr::List(self.next_type(form)?),
            "set" => TypeExpr::Set(self.next_type(form)?),
            "stream" => TypeExpr::Stream(self.next_type(form)?),
            "not" => TypeExpr::Not(self.next_type(form)?),
            "optional" => self.next_type(form)?.optional(),
            "tuple" => TypeExpr::Tuple(self.types(form)?),
            "array" => TypeExpr::Array { item: self.next_type(form)?, shape: self.shape(form)? },
            "map" | "record" => TypeExpr::Map(self.record(form)?),
            "map-of" | "dict" => TypeExpr::MapOf(self.next_type(form)?, self.next_type(form)?),
            "enum" => match form.rest() {
                [] => return self.error("expected at least one value after :enum"),
                _ => TypeExpr::Enum(form.take_rest().to_vec()),
            },
            "val" => TypeExpr::Val(self.next(form, "a value")?.clone()),
            "and" => {
                let ty = self.next_type(form)?;
                let mut predicates = Vec::new();
                while let Some((step, value)) = form.take() {
                    predicates.push(self.inside(step, |parser| parser.predicate(value))?);
                }
                TypeExpr::And(ty, predicates)
            }
            "fn" => self.function(form)?,
            "ref" => {
                let value = self.next(form, "the name of a type")?;
                match value {
                    Value::Symbol(name) => TypeExpr::Ref(name.name().into()),
                    Value::Keyword(name) => TypeExpr::Ref(name.name().into()),
                    Value::Str(name) => TypeExpr::Ref(name.as_str().into()),
                    _ => {
                        return self
                            .error_at(1, format!("expected the name of a type, got {}", shown(value)));
                    }
                }
            }
            name => {
                let mut problem =
                    format!("expected a kind of type, got {}", shown(&Value::keyword(name)));
                if let Some(predicate) = PREDICATES.iter().find(|predicate| **predicate == name) {
                    problem
                        .push_str(&format!("; a predicate belongs into [:and TYPE [:{predicate} …]]"));
                } else if Primitive::named(name).is_some() {
                    problem.push_str(&format!("; :{name} has no parts"));
                } else if let Some(similar) = similar_name(name) {
                    problem.push_str(&format!("; did you mean :{similar}?"));
                }
                return self.error_at(0, problem);
            }
        };
        self.end(form)?;
        Ok(ty)
    }

    fn next<'v>(&self, form: &mut Form<'v>, expected: &str) -> Parsed<&'v Value> {
        match form.take() {
            Some((_, value)) => Ok(value),
            None => {
                let name = Value::keyword(form.name);
                self.error(format!("expected {expected} after {}, got nothing", shown(&name)))
            }
        }
    }

    /// The next type, optional if a lone `?` follows it.
    fn next_type(&mut self, form: &mut Form<'_>) -> Parsed<Box<TypeExpr>> {
        let step = form.next + 1;
        let value = self.next(form, "a type")?;
        let ty = self.inside(step, |parser| parser.ty(value))?;
        Ok(Box::new(if form.take_mark() { ty.optional() } else { ty }))
    }

    fn types(&mut self, form: &mut Form<'_>) -> Parsed<Vec<TypeExpr>> {
        let mut types = Vec::new();
        while !form.rest().is_empty() {
            types.push(*self.next_type(form)?);
        }
        Ok(types)
    }

    fn some_types(&mut self, form: &mut Form<'_>) -> Parsed<Vec<TypeExpr>> {
        match form.rest() {
            [] => self.error("expected at least one type after :union"),
            _ => self.types(form),
        }
    }

    fn end(&self, form: &Form<'_>) -> Parsed<()> {
        match form.rest() {
            [] => Ok(()),
            [more, ..] => {
                let name = Value::keyword(form.name);
                let problem = format!("expected the end of [{} …], got {}", shown(&name), shown(more));
                self.error_at(form.next + 1, problem)
            }
        }
    }

    /// `[3 ?]`; without it one dimension of any length.
    fn shape(&self, form: &mut Form<'_>) -> Parsed<Vec<Option<u64>>> {
        let Some((step, shape)) = form.take() else { return Ok(vec![None]) };
        let sizes = match shape {
            Value::Vector(sizes) if !sizes.items().is_empty() => sizes.items(),
            _ => {
                let problem = format!(
                    "expected the length of each dimension, such as [3 ?], got {}",
                    shown(shape)
                );
                return self.error_at(step, problem);
            }
        };
        let size = |size: &Value| match size {
            Value::Int(n) => u64::try_from(*n).ok().map(Some),
            mark => is_mark(mark).then_some(None),
        };
        let sizes: Option<Vec<_>> = sizes.iter().map(size).collect();
        sizes.map_or_else(
            || self.error_at(step, format!("expected lengths or ?, got {}", shown(shape))),
            Ok,
        )
    }

    fn record(&mut self, form: &mut Form<'_>) -> Parsed<MapType> {
        let mut record = MapType::default();
        while let Some((step, value)) = form.take() {
            self.inside(step, |parser| match value {
                Value::Map(fields) => {
                    for (i, (key, value)) in fields.iter().enumerate() {
                        let (ty, optional) = parser.inside(2 * i + 1, |parser| parser.marked(value))?;
                        parser.inside(2 * i, |parser| parser.add(&mut record, key, ty, optional))?;
                    }
                    Ok(())
                }
                Value::Vector(field) => match field.items() {
                    [key, value, mark @ ..]
                        if mark.is_empty() || (mark.len() == 1 && is_mark(&mark[0])) =>
                    {
                        let ty = parser.inside(1, |parser| parser.ty(value))?;
                        parser.inside(0, |parser| parser.add(&mut record, key, ty, !mark.is_empty()))
                    }
                    _ => parser.error(format!(
                        "expected a key and its type, [:key TYPE] or [:key TYPE ?], got {}",
                        shown(value)
                    )),
                },
                _ => parser.error(format!(
                    "expected fields, {{:key TYPE}} or [:key TYPE], got {}",
                    shown(value)
                )),
            })?;
        }
        Ok(record)
    }

    /// A value in a map of fields, and whether its key may be absent: with a mark of any kind.
    fn marked(&mut self, value: &Value) -> Parsed<(TypeExpr, bool)> {
        let (is_marked, inner) = match value {
            Value::Keyword(name) => (name.name().ends_with('?'), None),
            Value::Symbol(name) => (name.name().ends_with('?'), None),
            Value::Vector(form) => (form.items().first() == Some(&Value::keyword("optional")), None),
            Value::List(list) => match list.items() {
                [mark, inner] if is_mark(mark) => (true, Some(inner)),
                _ => (false, None),
            },
            _ => (false, None),
        };
        let ty = match inner {
            Some(inner) => self.inside(1, |parser| parser.ty(inner))?,
            None => self.ty(value)?,
        };
        Ok((ty, is_marked))
    }

    fn add(&self, record: &mut MapType, key: &Value, ty: TypeExpr, optional: bool) -> Parsed<()> {
        let key = match key {
            Value::Keyword(star) if star.name() == "*" => {
                if record.others.replace(Box::new(ty)).is_some() {
                    return self.error("expected :* once");
                }
                return Ok(());
            }
            Value::Vector(quoted) => match quoted.items() {
                [Value::Keyword(val), key] if val.name() == "val" => key,
                _ => key,
            },
            key => key,
        };
        if record.fields.iter().any(|field| field.key == *key) {
            return self.error(format!("expected a key that no other field has, got {}", shown(key)));
        }
        record.fields.push(Field { key: key.clone(), ty, optional });
        Ok(())
    }

    /// `[A B & C] R`
    fn function(&mut self, form: &mut Form<'_>) -> Parsed<TypeExpr> {
        let step = form.next + 1;
        let value = self.next(form, "the types of the parameters")?;
        let Value::Vector(params) = value else {
            return self.error_at(
                step,
                format!("expected the types of the parameters in [ ], got {}", shown(value)),
            );
        };
        let is_rest = |value: &Value| matches!(value, Value::Symbol(symbol) if symbol.name() == "&");
        let (fixed, rest) = match params.items() {
            [fixed @ .., amp, rest] if is_rest(amp) => (fixed, Some(rest)),
            [fixed @ .., amp, rest, mark] if is_rest(amp) && is_mark(mark) => (fixed, Some(rest)),
            all => (all, None),
        };
        let is_marked = rest.is_some() && params.items().last().is_some_and(is_mark);
        let (params, rest) = self.inside(step, |parser| {
            // The head of a form counts as its first item, and these have none.
            let mut types = Vec::new();
            let mut at = 0;
            while let Some(value) = fixed.get(at) {
                let ty = parser.inside(at, |parser| parser.ty(value))?;
                let is_marked = fixed.get(at + 1).is_some_and(is_mark);
                types.push(if is_marked { ty.optional() } else { ty });
                at += if is_marked { 2 } else { 1 };
            }
            let rest = rest.map(|rest| parser.inside(fixed.len() + 1, |parser| parser.ty(rest)));
            Ok((types, rest.transpose()?))
        })?;
        let rest = rest.map(|ty| Box::new(if is_marked { ty.optional() } else { ty }));
        Ok(TypeExpr::Fn { params, rest, result: self.next_type(form)? })
    }

    fn predicate(&mut self, value: &Value) -> Parsed<Predicate> {
        let (name, items): (_, &[Value]) = match value {
            Value::Keyword(name) => (name.name(), &[]),
            Value::Vector(form) => match form.items() {
                [Value::Keyword(name), items @ ..] => (name.name(), items),
                _ => {
                    return self
                        .error(format!("expected a predicate such as [:> 0], got {}", shown(value)));
                }
            },
            _ => {
                return self.error(format!("expected a predicate such as [:> 0], got {}", shown(value)));
            }
        };
        let form = &mut Form { name, items, next: 0 };
        let value = |form: &mut _| self.next(form, "a value").cloned();
        let predicate = match name {
            ">" => Predicate::GreaterThan(value(form)?),
            ">=" => Predicate::AtLeast(value(form)?),
            "<" => Predicate::LessThan(value(form)?),
            "<=" => Predicate::AtMost(value(form)?),
            "=" => Predicate::Equals(value(form)?),
            "!=" => Predicate::Differs(value(form)?),
            "in-range" => Predicate::InRange(value(form)?, value(form)?),
            "multiple-of" => match value(form)? {
                n @ (Value::Int(_) | Value::BigInt(_) | Value::Float(_))
                    if n.compare(&0.into()).is_gt() && n.compare(&f64::INFINITY.into()).is_lt() =>
                {
                    Predicate::MultipleOf(n)
                }
                n => return self.error_at(1, format!("expected a number above 0, got {}", shown(&n))),
            },
            "min-length" => Predicate::MinLength(self.size(form)?),
            "max-length" => Predicate::MaxLength(self.size(form)?),
            "length" => Predicate::Length(self.size(form)?),
            "min-count" => Predicate::MinCount(self.size(form)?),
            "max-count" => Predicate::MaxCount(self.size(form)?),
            "count" => Predicate::Count(self.size(form)?),
            "matches-regex" => {
                let pattern = Pattern::new(&*self.text(form, "a regular expression in quotes")?);
                if let Err(problem) = pattern.check() {
                    let expected = "a regular expression without look-around and back-references";
                    let got = shown(&Value::from(pattern.as_str()));
                    return self.error_at(1, format!("expected {expected}, got {got}: {problem}"));
                }
                Predicate::MatchesRegex(pattern)
            }
            "non-empty" => Predicate::NonEmpty,
            "unique" => Predicate::Unique,
            "has-key" => Predicate::HasKey(value(form)?),
            "required-keys" => match value(form)? {
                Value::Vector(keys) => Predicate::RequiredKeys(keys.items().to_vec()),
                keys => return self.error_at(1, format!("expected keys in [ ], got {}", shown(&keys))),
            },
            "is-url" => Predicate::IsUrl,
            "is-email" => Predicate::IsEmail,
            "is-uuid" => Predicate::IsUuid,
            "is-date" => Predicate::IsDate,
            "format" => {
                let name = self.text(form, "the name of a format in quotes")?;
                if !text_formats().any(|known| known == &*name) {
                    let known = text_formats().collect::<Vec<_>>().join(", ");
                    let got = shown(&Value::from(&*name));
                    return self.error_at(1, format!("expected a format, one of {known}, got {got}"));
                }
                Predicate::Format(name)
            }
            _ => {
                let near = nearest(name, PREDICATES.iter().copied());
                let hint = near.map_or_else(String::new, |name| format!("; did you mean :{name}?"));
                let got = shown(&Value::keyword(name));
                return self.error(format!("expected a predicate such as [:> 0], got {got}{hint}"));
            }
        };
        self.end(form)?;
        Ok(predicate)
    }

    fn size(&self, form: &mut Form<'_>) -> Parsed<u64> {
        match self.next(form, "a number from 0 up")? {
            Value::Int(n) if *n >= 0 => Ok(n.unsigned_abs()),
            other => self.error_at(1, format!("expected a number from 0 up, got {}", shown(other))),
        }
    }

    fn text(&self, form: &mut Form<'_>, expected: &str) -> Parsed<Arc<str>> {
        match self.next(form, expected)? {
            Value::Str(text) => Ok(text.as_str().into()),
            other => self.error_at(1, format!("expected {expected}, got {}", shown(other))),
        }
    }
}

impl<'v> Form<'v> {
    fn rest(&self) -> &'v [Value] {
        self.items.get(self.next..).unwrap_or_default()
    }

    /// The next item and its index in the whole form, whose head is the first.
    fn take(&mut self) -> Option<(usize, &'v Value)> {
        let value = self.items.get(self.next)?;
        self.next += 1;
        Some((self.next, value))
    }

    fn take_rest(&mut self) -> &'v [Value] {
        let rest = self.rest();
        self.next = self.items.len();
        rest
    }

    fn take_mark(&mut self) -> bool {
        let is_next = self.rest().first().is_some_and(is_mark);
        self.next += usize::from(is_next);
        is_next
    }
}

fn is_mark(value: &Value) -> bool {
    matches!(value, Value::Symbol(symbol) if symbol.name() == "?")
}

fn shown(value: &Value) -> String {
    cut(format_args!("{value:?}"), 80)
}

/// The kinds of types that have parts.
const FORMS: [&str; 18] = [
    "union", "vector", "list", "set", "tuple", "stream", "array", "map", "record", "map-of", "dict",
    "enum", "val", "and", "not", "fn", "ref", "optional",
];

const PREDICATES: [&str; 24] = [
    ">",
    ">=",
    "<",
    "<=",
    "=",
    "!=",
    "in-range",
    "multiple-of",
    "min-length",
    "max-length",
    "length",
    "matches-regex",
    "min-count",
    "max-count",
    "count",
    "non-empty",
    "unique",
    "has-key",
    "required-keys",
    "is-url",
    "is-email",
    "is-uuid",
    "is-date",
    "format",
];

/// What other languages call the types.
const ELSEWHERE: [(&str, &str); 10] = [
    ("integer", "int"),
    ("long", "int"),
    ("double", "float"),
    ("str", "string"),
    ("text", "string"),
    ("boolean", "bool"),
    ("null", "nil"),
    ("object", "map"),
    ("tuple-of", "tuple"),
    ("or", "union"),
];

fn similar_name(name: &str) -> Option<&'static str> {
    let elsewhere = ELSEWHERE.iter().find(|(other, _)| *other == name).map(|(_, ours)| *ours);
    let known = Primitive::ALL.iter().map(|primitive| primitive.name()).chain(FORMS);
    elsewhere.or_else(|| nearest(name, known))
}

/// The known name that differs least, if it does by at most two letters and less than half of them.
fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let name = cut(name, 20).to_lowercase();
    let near = |known: &&str| distance(&name, known) <= (known.len() / 3).min(2);
    known.filter(near).min_by_key(|known| distance(&name, known))
}

/// How many letters have to be put in, left out or replaced.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_each_notation_of_a_type() {
        let cases = [
            (":int", ":int"),
            ("int", ":int"),
            ("nil", ":nil"),
            (":int?", ":int?"),
            ("string?", ":string?"),
            ("[:union :int :nil]", ":int?"),
            ("[:vector :int]?", "[:union [:vector :int] :nil]"),
            ("[:optional :int]", ":int?"),
            ("Tree", "[:ref Tree]"),
            ("Tree?", "[:union [:ref Tree] :nil]"),
            ("[:ref tree]", "[:ref tree]"),
            ("[:vector :int ?]", "[:vector :int?]"),
            ("[:tuple :int ? [:list :any] ?]", "[:tuple :int? [:union [:list :any] :nil]]"),
            ("[:array :int [3 ?]]", "[:array :int [3 ?]]"),
            ("[:array :int]", "[:array :int [?]]"),
            ("[:map {:name :string, :age :int?}]", "[:map [:name :string] [:age :int? ?]]"),
            (
                "[:map {:a :int ?, :b [:list :any]?}]",
                "[:map [:a :int ?] [:b [:union [:list :any] :nil] ?]]",
            ),
            ("[:record [:a :int] [:b :int ?] [:c :int?]]", "[:map [:a :int] [:b :int ?] [:c :int?]]"),
            ("[:map {\"b\" int} [3 :bool] {:* :never}]", "[:map [\"b\" :int] [3 :bool] [:* :never]]"),
            ("[:map [[:val :*] :int] [[:val [1]] :int]]", "[:map [[:val :*] :int] [[:val [1]] :int]]"),
            ("[:dict :string :int?]", "[:map-of :string :int?]"),
            ("[:enum :a \"b\" 3 nil ?]", "[:enum :a \"b\" 3 nil ?]"),
            ("[:and :string :non-empty [:is-email]]", "[:and :string [:non-empty] [:is-email]]"),
            ("[:and :int]", "[:and :int]"),
            ("[:fn [:int :int ? & :string?] :bool ?]", "[:fn [:int :int? & :string?] :bool?]"),
            ("[:fn [& :any ?] :any]", "[:fn [& :any?] :any]"),
            ("#_x [:not ; no\n :nil]", "[:not :nil]"),
        ];
        for (text, printed) in cases {
            let ty = TypeExpr::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(ty.to_string(), printed, "{text}");
            assert_eq!(printed.parse(), Ok(ty), "{text}");
        }
    }

    #[test]
    fn says_where_a_text_is_no_type_and_what_was_expected() {
        let cases = [
            ("", "1:1: expected a type, got the end of the text"),
            (":strng", "1:1: expected a type, got :strng; did you mean :string?"),
            (":integer?", "1:1: expected a type, got :integer?; did you mean :int?"),
            ("whatever", "1:1: expected a type, got whatever"),
            (":vector", "1:1: expected a type, got :vector; this one has parts: [:vector …]"),
            ("7", "1:1: expected a type, got 7; for one value write [:val …]"),
            ("[]", "1:1: expected a type, got []"),
            ("[7 :int]", "1:2: expected a keyword that says the kind of type, such as :vector, got 7"),
            ("(:int)", "1:1: expected a type, got (:int)"),
            ("[:vector\n  :int,\n  ü]", "3:3: expected the end of [:vector …], got ü"),
            ("[:map {:ü :string, :age :imt}]", "1:25: expected a type, got :imt; did you mean :int?"),
            ("[:map {:a [:list :x]?}]", "1:18: expected a type, got :x"),
            ("[:map {:a [:list :x] ?}]", "1:18: expected a type, got :x"),
            ("[:map [:a]]", "1:7: expected a key and its type, [:key TYPE] or [:key TYPE ?], got [:a]"),
            ("[:map :a]", "1:7: expected fields, {:key TYPE} or [:key TYPE], got :a"),
            ("[:map {:a :int} [:a :int]]", "1:18: expected a key that no other field has, got :a"),
            ("[:map [:* :int] [:* :int]]", "1:18: expected :* once"),
            ("[:vector]", "1:1: expected a type after :vector, got nothing"),
            ("[:vector :int :int]", "1:15: expected the end of [:vector …], got :int"),
            ("[:union]", "1:1: expected at least one type after :union"),
            ("[:enum]", "1:1: expected at least one value after :enum"),
            ("[:vectr :int]", "1:2: expected a kind of type, got :vectr; did you mean :vector?"),
            ("[:int 3]", "1:2: expected a kind of type, got :int; :int has no parts"),
            (
                "[:min-length 3]",
                "1:2: expected a kind of type, got :min-length; a predicate belongs into [:and TYPE [:min-length …]]",
            ),
            ("[:and :int [:> ]]", "1:12: expected a value after :>, got nothing"),
            (
                "[:and :int [:min-lenght 1]]",
                "1:12: expected a predicate such as [:> 0], got :min-lenght; did you mean :min-length?",
            ),
            ("[:and :int 7]", "1:12: expected a predicate such as [:> 0], got 7"),
            ("[:and :int [:> 0 1]]", "1:18: expected the end of [:> …], got 1"),
            ("[:and :int [:multiple-of 0]]", "1:26: expected a number above 0, got 0"),
            ("[:and :string [:length -1]]", "1:24: expected a number from 0 up, got -1"),
            (
                "[:and :string [:matches-regex \"(\"]]",
                "1:31: expected a regular expression without look-around and back-references, got \"(\": unclosed group",
            ),
            ("[:and :map {}]", "1:7: expected a type, got :map; this one has parts: [:map …]"),
            ("[:array :int [x]]", "1:14: expected lengths or ?, got [x]"),
            ("[:fn :int :int]", "1:6: expected the types of the parameters in [ ], got :int"),
            ("[:fn [:x] :int]", "1:7: expected a type, got :x"),
            ("[:fn [:int & :x] :int]", "1:14: expected a type, got :x"),
            ("[:ref 7]", "1:7: expected the name of a type, got 7"),
            ("[:vector :int", "1:1: expected `]`, got the end of the text: this `[` stays open"),
        ];
        for (text, error) in cases {
            assert_eq!(TypeExpr::parse(text).unwrap_err().to_string(), error, "{text}");
        }
        let error = TypeExpr::parse("[:and :string [:format \"emial\"]]").unwrap_err();
        assert!(error.problem.starts_with("expected a format, one of date-time, date, "), "{error}");
    }

    #[test]
    fn quoted_data_says_which_part_is_wrong() {
        let data = read::read("[:map {:a :int, :b [:vector :x]}]").unwrap().value;
        let error = TypeExpr::from_value(&data).unwrap_err();
        assert_eq!((error.position, error.path.as_slice()), (None, &[1, 3, 1][..]));
    }

    #[test]
    fn bounds_the_nesting_of_types() {
        let nested = |depth: usize| "[:vector ".repeat(depth - 1) + ":int" + &"]".repeat(depth - 1);
        assert!(TypeExpr::parse(&nested(MAX_TYPE_DEPTH)).is_ok());
        let error = TypeExpr::parse(&nested(MAX_TYPE_DEPTH + 1)).unwrap_err();
        assert_eq!(error.problem, "types are nested deeper than 128 levels");
    }
}
