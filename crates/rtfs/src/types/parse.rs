//! Parses data to a type.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::names::{FORMS, PREDICATES, similar_name};
use super::{Field, MapType, Pattern, Predicate, Primitive, TypeExpr, text_formats};
use crate::syntax::{Diagnostics, Kind, NodeId, Position, Source, Tree};
use crate::text::{excerpt, nearest};
use crate::value::Value;

/// The maximum nesting of a parsed type.
pub const MAX_TYPE_DEPTH: usize = 128;

/// The reason why a text or a datum is not a type. Displayed as `1:7: expected a type, got :strng; did
/// you mean :string?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidType {
    /// The line and column of the mistake in the text, both from 1; the column counts characters. `None`
    /// for a datum.
    pub position: Option<(usize, usize)>,
    /// The path to the wrong part of the datum: the index of an item in each collection, from the
    /// outermost to the innermost. Keys and values of a map are counted alternately.
    pub path: Vec<usize>,
    /// The expectation, and the actual value.
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
    /// Parses a type in RTFS notation, such as `[:map {:name :string, :age :int?}]`.
    ///
    /// # Errors
    /// Text that is not exactly one type, with the place, what was expected there, and what came.
    pub fn parse(text: &str) -> Result<Self, InvalidType> {
        let source = Source::new("", text);
        let invalid = |at: u32, problem: String| {
            let Position { line, column } = source.position(at);
            InvalidType { position: Some((line as usize, column as usize)), path: Vec::new(), problem }
        };
        let mut tree = Tree::read(source.clone()).map_err(|Diagnostics(mut found)| {
            let first = found.swap_remove(0);
            invalid(first.span.start, first.message)
        })?;
        let (root, is_optional) = match tree.roots[..] {
            [] => return Err(invalid(0, "expected a type, got the end of the text".to_owned())),
            [root] => (root, false),
            [root, mark] if tree.kind(mark) == Kind::Optional => (root, true),
            [_, more, ..] => {
                let problem = "expected the end of the text after the type, got another form";
                return Err(invalid(tree.span(more).start, problem.to_owned()));
            }
        };
        let value = tree.value(root).map_err(|deep| invalid(tree.span(root).start, deep.to_string()))?;
        let ty = Self::from_value(&value).map_err(|InvalidType { path, problem, .. }| {
            let at = tree.span(part(&tree, root, &path)).start;
            InvalidType { path, ..invalid(at, problem) }
        })?;
        Ok(if is_optional { ty.optional() } else { ty })
    }

    /// Converts quoted data to a type: keywords and bare symbols for the primitives, vectors for all
    /// others. A mark is the symbol `?` after the marked part; in a map of fields a marked type is `(?
    /// T)`. `[:optional T]` is `T?` for a type that is not a name.
    ///
    /// # Errors
    /// The part that is not a type, what was expected there, and what came.
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

/// Returns the form that a path in the data of `root` leads to.
fn part(tree: &Tree, root: NodeId, path: &[usize]) -> NodeId {
    let (mut form, mut steps) = (root, path.iter());
    while let Some(&step) = steps.next() {
        let is_map = tree.kind(form) == Kind::Map;
        let parts = if is_map { tree.forms(form) } else { tree.kids(form).to_vec() };
        let Some(&part) = parts.get(step) else { return form };
        let kids = tree.kids(form);
        let after = kids.iter().position(|kid| *kid == part).and_then(|at| kids.get(at + 1));
        if is_map && step % 2 == 1 && after.is_some_and(|&mark| tree.kind(mark) == Kind::Optional) {
            // The data is `(? T)` or `[:optional T]`, and the path leads through it.
            steps.next();
        }
        form = part;
    }
    form
}

type Parsed<T> = Result<T, InvalidType>;

struct Parser {
    path: Vec<usize>,
    depth: usize,
}

/// The items of a form with their indices in it, without those that were consumed.
struct Form<'v> {
    /// The head of the form, or its description in errors.
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

    /// Returns a primitive, or, for a capitalised bare symbol, a named type.
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

    /// Parses the next type, which is optional if a single `?` follows it.
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

    /// Parses `[3 ?]`; the default is one dimension of any length.
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

    /// Parses a value in a map of fields. Returns whether its key may be absent, which a mark of any
    /// kind declares.
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
            // The head of a form counts as its first item, but these forms have no head.
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

    /// Returns the next item and its index in the whole form, whose head is the first.
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
    excerpt(format_args!("{value:?}"), 80)
}
