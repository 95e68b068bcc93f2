//! The standard library.
//!
//! Functions that take functions, or may get a lazy sequence, are written in RTFS
//! (`prelude.rtfs`). The others are Rust functions in the tables here. They never call back into a
//! program, read a clock or keep state: the same arguments give the same value.

mod access;
mod build;
mod data;
mod docs;
mod draft;
mod format;
mod maps;
mod math;
mod predicates;
mod regex;
mod sequences;
mod signatures;
mod text;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::machine::{Context, Fault, fault};
use crate::text::excerpt;
use crate::value::Value;

pub(crate) use access::{find_key, nth};
pub(crate) use data::{known, lazy_inside};
pub use docs::{Documentation, documentation, documented};
pub(crate) use math::modulo;
pub(crate) use sequences::before;
pub(crate) use signatures::of as signature_of;

/// The part of the standard library that is written in RTFS.
pub(crate) const PRELUDE: &str = include_str!("prelude.rtfs");

/// The name of its text. Errors there are shown at the place of the call.
pub(crate) const PRELUDE_NAME: &str = "rtfs:prelude";

/// The value of a call, or the fault.
pub(crate) type Answer = Result<Value, Box<Fault>>;

/// The calling convention of a function.
#[derive(Clone, Copy)]
pub(crate) enum Function {
    One(fn(&mut Context, &Value) -> Answer),
    Two(fn(&mut Context, &Value, &Value) -> Answer),
    Three(fn(&mut Context, &Value, &Value, &Value) -> Answer),
    /// These functions may take values out of their arguments, but only after it is certain that the
    /// call need not be repeated.
    Many(fn(&mut Context, &mut [Value]) -> Answer),
}

/// A function of the standard library.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) function: Function,
    min: usize,
    max: usize,
    /// Whether the result is a number or a boolean.
    pub(crate) is_scalar: bool,
    /// Whether it accepts a sequence that is not fully realized.
    pub(crate) takes_lazy: bool,
    /// Whether it traverses all of its arguments, and is charged by their size.
    walks: bool,
    /// The arguments that are compared or looked up as a whole, whose lazy parts must be known: the
    /// first such argument, and the distance to the next one.
    compared: Option<(u8, u8)>,
}

/// Any number of arguments.
const ANY: usize = usize::MAX;

impl Entry {
    pub(crate) fn arity(&self) -> (usize, usize) {
        (self.min, self.max)
    }

    const fn scalar(self) -> Self {
        Self { is_scalar: true, ..self }
    }

    const fn lazy(self) -> Self {
        Self { takes_lazy: true, ..self }
    }

    /// Declares that the argument at this index is a key.
    const fn key(self, at: u8) -> Self {
        Self { compared: Some((at, u8::MAX)), ..self }
    }

    /// Declares that every `step`th argument from this index on is a key.
    const fn keys(self, from: u8, step: u8) -> Self {
        Self { compared: Some((from, step)), ..self }
    }

    /// Declares that all arguments, or their items, are compared.
    const fn compares(self) -> Self {
        self.keys(0, 1)
    }

    /// Declares that it traverses all of its arguments.
    const fn walks(self) -> Self {
        Self { walks: true, ..self }
    }

    /// Returns the cost in steps of traversing its arguments, beyond that of the call.
    #[inline(always)]
    pub(crate) fn effort<'v>(&self, args: impl IntoIterator<Item = &'v Value>) -> u64 {
        if self.walks { args.into_iter().map(effort).sum() } else { 0 }
    }

    #[inline]
    fn is_compared(&self, at: usize) -> bool {
        self.compared.is_some_and(|(from, step)| {
            at.checked_sub(from.into()).is_some_and(|at| at % usize::from(step) == 0)
        })
    }

    /// Returns the fault for a lazy argument that must be known before the call.
    #[inline]
    pub(crate) fn unknown(&self, at: usize, arg: &Value) -> Option<Box<Fault>> {
        if let Value::Seq(seq) = arg
            && !self.takes_lazy
            && seq.realized().is_none()
        {
            return Some(Box::new(Fault::Realize(seq.clone())));
        }
        if !arg.is_immediate() && self.is_compared(at) { known(arg).err() } else { None }
    }
}

/// Returns the cost in steps of traversing a value.
pub(crate) fn effort(value: &Value) -> u64 {
    match value {
        Value::Str(text) => text.as_str().len() as u64 / 256,
        Value::BigInt(big) => {
            let words = big.get().bits() / 64;
            words / 16 + words * words / 1_024
        }
        value => u64::from(value.parts()) / 16,
    }
}

/// Pays for looking up a key, which is traversed completely.
#[inline(always)]
fn pay_key(context: &mut Context, key: &Value) {
    if let Value::Vector(_) | Value::List(_) | Value::Map(_) | Value::Set(_) = key {
        context.cost += effort(key);
    }
}

const fn one(name: &'static str, function: fn(&mut Context, &Value) -> Answer) -> Entry {
    Entry {
        name,
        function: Function::One(function),
        min: 1,
        max: 1,
        is_scalar: false,
        takes_lazy: false,
        walks: false,
        compared: None,
    }
}

const fn two(name: &'static str, function: fn(&mut Context, &Value, &Value) -> Answer) -> Entry {
    Entry {
        name,
        function: Function::Two(function),
        min: 2,
        max: 2,
        is_scalar: false,
        takes_lazy: false,
        walks: false,
        compared: None,
    }
}

const fn three(
    name: &'static str,
    function: fn(&mut Context, &Value, &Value, &Value) -> Answer,
) -> Entry {
    Entry {
        name,
        function: Function::Three(function),
        min: 3,
        max: 3,
        is_scalar: false,
        takes_lazy: false,
        walks: false,
        compared: None,
    }
}

const fn many(
    name: &'static str,
    min: usize,
    max: usize,
    function: fn(&mut Context, &mut [Value]) -> Answer,
) -> Entry {
    Entry {
        name,
        function: Function::Many(function),
        min,
        max,
        is_scalar: false,
        takes_lazy: false,
        walks: false,
        compared: None,
    }
}

/// The tables. The high byte of a function's number selects the table, the low byte the index.
static TABLES: [&[Entry]; 10] = [
    math::ENTRIES,
    predicates::ENTRIES,
    access::ENTRIES,
    build::ENTRIES,
    sequences::ENTRIES,
    maps::ENTRIES,
    text::ENTRIES,
    regex::ENTRIES,
    format::ENTRIES,
    data::ENTRIES,
];

/// Aliases of names.
static ALIASES: &[(&str, &str)] = &[
    ("string-length", "count"),
    ("length", "count"),
    ("subs", "substring"),
    ("includes?", "string-contains?"),
    ("string-contains", "string-contains?"),
    ("upper", "string-upper"),
    ("lower", "string-lower"),
    ("trim", "string-trim"),
    ("join", "string-join"),
    ("boolean?", "bool?"),
    ("integer?", "int?"),
    ("ceiling", "ceil"),
];

#[inline(always)]
pub(crate) fn native(number: u16) -> &'static Entry {
    &TABLES[usize::from(number >> 8)][usize::from(number & 0xff)]
}

static NUMBERS: LazyLock<HashMap<&'static str, u16>> = LazyLock::new(|| {
    let mut numbers = HashMap::new();
    for (table, entries) in TABLES.iter().enumerate() {
        for (place, entry) in entries.iter().enumerate() {
            numbers.insert(entry.name, (table << 8 | place) as u16);
        }
    }
    for &(alias, name) in ALIASES {
        if let Some(&number) = numbers.get(name) {
            numbers.insert(alias, number);
        }
    }
    numbers
});

/// Returns whether a number is a function's.
pub(crate) fn is_native(number: u16) -> bool {
    TABLES.get(usize::from(number >> 8)).is_some_and(|table| usize::from(number & 0xff) < table.len())
}

/// Returns the names of the functions that are written in Rust, by their numbers.
pub(crate) fn native_names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().flat_map(|table| table.iter().map(|entry| entry.name))
}

/// Returns the number of a function that is written in Rust.
pub(crate) fn native_named(name: &str) -> Option<u16> {
    NUMBERS.get(name).copied()
}

/// A name of the standard library.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Builtin {
    Native(u16),
    /// A function of the prelude.
    Code(u32),
}

impl Builtin {
    pub(crate) fn value(self) -> Value {
        match self {
            Self::Native(number) => Value::Native(crate::Native(number)),
            Self::Code(code) => Value::Code(crate::Code(code)),
        }
    }
}

pub(crate) fn lookup(name: &str) -> Option<Builtin> {
    let native = native_named(name).map(Builtin::Native);
    native.or_else(|| crate::compiler::prelude_functions().get(name).map(|&code| Builtin::Code(code)))
}

/// Returns the sorted names of the standard library, for completion.
pub fn all_names() -> Vec<&'static str> {
    let mut all: Vec<_> = names().collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns all names of the standard library, unsorted.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let natives = NUMBERS.keys().copied();
    natives
        .chain(crate::compiler::prelude_functions().keys().copied())
        .filter(|name| !name.starts_with('%'))
}

/// Returns an arity as text: `2`, `1 to 3`, `2 or more`.
pub(crate) fn arity_text(min: usize, max: usize) -> String {
    match max {
        ANY => format!("{min} or more"),
        max if max == min => min.to_string(),
        max if max == min + 1 => format!("{min} or {max}"),
        max => format!("{min} to {max}"),
    }
}

/// Returns the arities of a function as text, each possibly open: `1 or 3`, `2 or more`.
pub(crate) fn arities_text(arities: impl Iterator<Item = (usize, bool)>) -> String {
    let (open, mut fixed): (Vec<_>, Vec<_>) = arities.partition(|(_, open)| *open);
    let mut least = open.into_iter().map(|(count, _)| count).min();
    fixed.sort_unstable();
    while let (Some(open), Some(&(last, _))) = (least, fixed.last())
        && last + 1 >= open
    {
        least = Some(open.min(last));
        fixed.pop();
    }
    let open = least.map(|least| format!("{least} or more"));
    fixed.into_iter().map(|(count, _)| count.to_string()).chain(open).collect::<Vec<_>>().join(" or ")
}

/// Replaces the function name in a message by the name in the program's text: one of its aliases, or, if
/// the standard library itself makes the call (`is_inner`), the enclosing library function.
pub(crate) fn as_written(message: String, text: &str, is_inner: bool) -> String {
    const LOOKED_AT: usize = 1_000;
    let Some((name, rest)) = message.strip_prefix('`').and_then(|rest| rest.split_once('`')) else {
        return message;
    };
    if lookup(name).is_none() {
        return message;
    }
    let apart = |c: char| c.is_whitespace() || "()[]{}\"'`~@,;".contains(c);
    let text = text.get(..LOOKED_AT).unwrap_or(text);
    let words = text.split(apart).filter(|word| !word.is_empty());
    if words.clone().any(|word| word == name) {
        return message;
    }
    let other = words
        .clone()
        .find(|word| native_named(word).is_some_and(|number| Some(number) == native_named(name)));
    let outer = words.clone().next().filter(|word| is_inner && lookup(word).is_some());
    match other.or(outer) {
        Some(written) => format!("`{written}`{rest}"),
        None => message,
    }
}

/// Returns the beginning of a value's text, for a message.
pub(crate) fn shown(value: &Value) -> String {
    // Displaying the first digits would compute all of them.
    if let Value::BigInt(big) = value
        && big.get().bits() > 4_096
    {
        return format!("an integer of {} bits", big.get().bits());
    }
    excerpt(format_args!("{value:?}"), 60)
}

/// Returns the error for an invalid argument.
#[cold]
fn wrong(name: &str, expected: &str, got: &Value) -> Box<Fault> {
    fault("type", format!("`{name}` takes {expected}, got {}", shown(got)))
}

fn text_of<'v>(name: &str, value: &'v Value) -> Result<&'v str, Box<Fault>> {
    match value {
        Value::Str(text) => Ok(text.as_str()),
        other => Err(wrong(name, "a string", other)),
    }
}

fn int_of(name: &str, value: &Value) -> Result<i64, Box<Fault>> {
    match value {
        Value::Int(i) => Ok(*i),
        Value::BigInt(_) => {
            Err(fault("invalid-argument", format!("`{name}`: {} is too large", shown(value))))
        }
        other => Err(wrong(name, "an integer", other)),
    }
}

/// Returns a count: an integer of at least 0.
fn count_of(name: &str, value: &Value) -> Result<usize, Box<Fault>> {
    Ok(usize::try_from(int_of(name, value)?).unwrap_or(0))
}

/// Checks that a value can be a key; a function cannot.
pub(crate) fn as_key(key: &Value) -> Result<(), Box<Fault>> {
    match key {
        Value::Native(_) | Value::Code(_) | Value::Closure(_) => {
            Err(fault("type", "a function cannot be a key"))
        }
        key => known(key),
    }
}

/// Returns the number of items that [`items_of`] returns; `None` if the value is not a collection.
fn len_of(value: &Value) -> Option<usize> {
    Some(match value {
        Value::Nil => 0,
        Value::Vector(vector) => vector.items().len(),
        Value::List(list) => list.items().len(),
        Value::Map(map) => map.len(),
        Value::Set(set) => set.len(),
        Value::Str(text) => text.char_count(),
        Value::Seq(seq) => seq.realized()?.items().len(),
        _ => return None,
    })
}

/// Returns the items of any collection; entries of a map as vectors, characters of a string as strings.
pub(crate) fn items_of(name: &str, value: &Value) -> Result<Vec<Value>, Box<Fault>> {
    Ok(match value {
        Value::Nil => Vec::new(),
        Value::Vector(vector) => vector.items().to_vec(),
        Value::List(list) => list.items().to_vec(),
        Value::Set(set) => set.iter().cloned().collect(),
        Value::Map(map) => map
            .iter()
            .map(|(key, value)| Value::vector(vec![key.clone(), value.clone()]))
            .collect::<Result<_, _>>()?,
        Value::Str(text) => {
            text.as_str().chars().map(|c| Value::from(c.encode_utf8(&mut [0; 4]) as &str)).collect()
        }
        Value::Seq(seq) => match seq.realized() {
            Some(items) => items.items().to_vec(),
            None => return Err(Box::new(Fault::Realize(seq.clone()))),
        },
        other => return Err(wrong(name, "a collection", other)),
    })
}

/// Returns the items, moved out if the collection is not shared.
fn into_items(name: &str, value: &mut Value) -> Result<Vec<Value>, Box<Fault>> {
    match value {
        Value::Vector(_) => match std::mem::take(value) {
            Value::Vector(vector) => Ok(vector.into_items()),
            _ => Ok(Vec::new()),
        },
        other => items_of(name, other),
    }
}

fn vector(items: Vec<Value>) -> Answer {
    Ok(Value::vector(items)?)
}

/// Reserves the memory of a vector of this many items.
fn reserve_items(context: &mut Context, items: usize) -> Result<(), Box<Fault>> {
    context.reserve(items.saturating_mul(16).saturating_add(56))
}
