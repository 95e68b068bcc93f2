//! Calls of the standard library: argument types, and what is known of the results.

use super::branch::predicate;
use super::call::place;
use super::ty::{Detail, Field, Place, Record, Ty, type_of};
use super::walk::Walker;
use crate::builtins::signature_of;
use crate::compiler::ir::Id;
use crate::kinds::Kinds;
use crate::syntax::Span;
use crate::types::TypeExpr;
use crate::value::Value;

impl Walker<'_> {
    /// Checks a call of a function of the standard library, by its first name.
    pub(super) fn standard(&mut self, name: &str, forms: &[Id], types: &[Ty], span: Span) -> Ty {
        let Some(signature) = signature_of(name) else { return self.result(name, types, span) };
        let mut is_wrong = false;
        for (at, ty) in types.iter().enumerate() {
            let takes = signature.param(at);
            let form = forms.get(at);
            if !ty.is_never() && !ty.kinds.meets(takes) {
                is_wrong = true;
                let place = place(at, types.len());
                let at = form.map_or(span, |&form| self.span(form));
                let message = match name {
                    "%sequential" => {
                        format!("a vector or a list is taken apart here, got {}", ty.shown())
                    }
                    "%associative" => format!("a map is taken apart here, got {}", ty.shown()),
                    _ => {
                        let message = format!("`{name}` takes {takes}{place}, got {}", ty.shown());
                        crate::builtins::as_written(message, self.text(span), false)
                    }
                };
                self.error("type", at, message);
            } else if takes != Kinds::ANY {
                self.succeeded(form, takes);
            }
        }
        if types.iter().any(Ty::is_never) {
            return Ty::NEVER;
        }
        if matches!(name, "<" | "<=" | ">" | ">=") {
            is_wrong |= self.comparison(name, forms, types, span);
        }
        if is_wrong {
            return Ty::of(signature.result);
        }
        let result = self.result(name, types, span);
        let result = result.narrowed(signature.result);
        if result.is_never() { Ty::of(signature.result) } else { result }
    }

    /// Reports a value that a function cannot iterate over.
    pub(super) fn collection(&mut self, ty: &Ty, span: Span) {
        if !ty.is_never() && !ty.kinds.meets(Kinds::SEQABLE) {
            self.error("type", span, format!("a collection is expected here, got {}", ty.shown()));
        }
    }

    /// Checks a comparison: only values of the same kind can be compared. Arguments after the first two
    /// may never be examined.
    fn comparison(&mut self, name: &str, forms: &[Id], types: &[Ty], span: Span) -> bool {
        const ALIKE: [Kinds; 6] =
            [Kinds::NUMBER, Kinds::STRING, Kinds::KEYWORD, Kinds::BOOL, Kinds::INSTANT, Kinds::ORDERED];
        let [a, b, ..] = types else { return false };
        let possible = |ty: &Ty| {
            let all = ALIKE.iter().filter(|kinds| ty.kinds.meets(**kinds));
            all.fold(Kinds::NONE, |all, kinds| all.or(*kinds))
        };
        let both = possible(a).and(possible(b));
        if !both.is_none() {
            self.succeeded(forms.first(), both);
            self.succeeded(forms.get(1), both);
            return false;
        }
        let message = format!("`{name}` compares what is alike, got {} and {}", a.shown(), b.shown());
        self.error("type", span, message);
        true
    }

    /// Refines the result type beyond the signature.
    fn result(&mut self, name: &str, types: &[Ty], span: Span) -> Ty {
        match (name, types) {
            ("+" | "-" | "*" | "inc" | "dec" | "abs" | "min" | "max" | "quot" | "rem" | "mod", all) => {
                if all.iter().all(|ty| ty.kinds.is_within(Kinds::INT)) {
                    Ty::of(Kinds::INT)
                } else {
                    Ty::ANY
                }
            }
            ("not", [ty]) => ty
                .truth()
                .map_or(Ty::ANY, |truth| Ty::of(if truth { Kinds::FALSE } else { Kinds::TRUE })),
            ("=", [a, b]) => equality(a, b),
            ("%has-items", [of, ..]) if !of.kinds.meets(Kinds::ORDERED) => Ty::of(Kinds::FALSE),
            ("%has", [of, key]) => has(of, key),
            ("%is", [of, ty]) => self.is_type(of, ty),
            ("%check", [of, ty]) => self.check_type(of, ty, span),
            ("%get" | "get" | "%get-any", [of, key]) => match key.value() {
                Some(key) if matches!(key, Value::Keyword(_) | Value::Str(_)) => {
                    self.keyed(of, &key.clone(), span)
                }
                _ => Ty::ANY,
            },
            ("%nth", [of, at]) => nth(of, at).unwrap_or(Ty::ANY),
            ("nth", [of, at]) => {
                nth(of, at).filter(|ty| !ty.kinds.is_within(Kinds::NIL)).unwrap_or(Ty::ANY)
            }
            ("first", [of]) => nth(of, &Ty::constant(&0.into())).unwrap_or(Ty::ANY),
            ("second", [of]) => nth(of, &Ty::constant(&1.into())).unwrap_or(Ty::ANY),
            ("last", [of]) => {
                let (item, is_sure) = of.each_item();
                if is_sure { item } else { item.or(&Ty::NIL) }
            }
            ("assoc", [of, key, value]) => assoc(of, key, value),
            ("%zipmap", [keys, values]) => zipped(keys, values),
            ("identity", [of]) => of.clone(),
            ("%sequential" | "%associative", [of]) => of.clone(),
            ("vec" | "reverse" | "sort", [of]) if of.kinds.is_within(Kinds::ORDERED.or(Kinds::SET)) => {
                Ty::each(Kinds::VECTOR.or(Kinds::LIST), of.each_item().0)
            }
            (name, [.., coll]) if CALLERS.iter().any(|row| row.0 == name) => {
                self.calls(name, types, coll, span)
            }
            (name, [of]) => match predicate(name) {
                Some(kinds) if of.kinds.is_within(kinds) => Ty::TRUE,
                Some(kinds) if !of.kinds.meets(kinds) => Ty::of(Kinds::FALSE),
                _ => Ty::ANY,
            },
            _ => Ty::ANY,
        }
    }

    /// Checks a function that calls its first argument with the items of its last.
    fn calls(&mut self, name: &str, types: &[Ty], coll: &Ty, span: Span) -> Ty {
        let Some(&(_, takes, count)) = CALLERS.iter().find(|row| row.0 == name) else { return Ty::ANY };
        // With several collections, each call gets several items. In `reduce` without an initial value,
        // both arguments are items.
        let (item, is_sure) = coll.each_item();
        let function = &types[0];
        let args = match (takes, types.len()) {
            (Calls::Item, 2) => vec![item],
            (Calls::Indexed, 2) => vec![Ty::of(Kinds::INT), item],
            (Calls::Folded, 3) => vec![Ty::ANY, item],
            _ => return Ty::ANY,
        };
        let ty = self.calls_back(function, &args, span, is_sure);
        match count {
            Gives::Each => {
                let lazily = if coll.kinds.meets(Kinds::SEQ) { Kinds::SEQ } else { Kinds::NONE };
                Ty::each(Kinds::VECTOR.or(lazily), ty)
            }
            Gives::Same => {
                let lazily = if coll.kinds.meets(Kinds::SEQ) { Kinds::SEQ } else { Kinds::NONE };
                let item = chosen(name, function, coll.each_item().0);
                Ty::each(Kinds::VECTOR.or(lazily), item)
            }
            Gives::Other => Ty::ANY,
        }
    }

    fn is_type(&self, of: &Ty, ty: &Ty) -> Ty {
        let Some(Ok(ty)) = ty.value().map(TypeExpr::from_value) else { return Ty::ANY };
        let known = type_of(&ty, self.view.session.types(), Place::Program);
        if of.kinds.meets(known.kinds) { Ty::ANY } else { Ty::of(Kinds::FALSE) }
    }

    fn check_type(&mut self, of: &Ty, ty: &Ty, span: Span) -> Ty {
        let Some(Ok(ty)) = ty.value().map(TypeExpr::from_value) else { return of.clone() };
        let types = self.view.session.types();
        let found = super::clash::clashes(of, &ty, types, Place::Program, "value");
        if !found.is_empty() {
            self.error("type", span, found.join("; "));
        }
        of.and(&type_of(&ty, types, Place::Program))
    }
}

/// Returns the type of the items that remain after a predicate was applied.
fn chosen(name: &str, function: &Ty, item: Ty) -> Ty {
    let kinds = match function.value() {
        Some(Value::Native(native)) => predicate(crate::builtins::native(native.0).name),
        Some(value)
            if crate::builtins::lookup("identity").is_some_and(|same| same.value() == *value) =>
        {
            Some(Kinds::ANY.without(Kinds::FALSY))
        }
        _ => None,
    };
    match (name, kinds) {
        ("filter" | "filterv" | "take-while", Some(kinds)) => item.narrowed(kinds),
        ("remove", Some(kinds)) => item.narrowed(Kinds::ANY.without(kinds)),
        _ => item,
    }
}

/// How a higher-order function calls its argument.
#[derive(Clone, Copy)]
enum Calls {
    Item,
    Indexed,
    /// With the result of the previous items, too.
    Folded,
}

#[derive(Clone, Copy)]
enum Gives {
    /// The results of the calls.
    Each,
    /// Some of the items.
    Same,
    Other,
}

const CALLERS: &[(&str, Calls, Gives)] = &[
    ("map", Calls::Item, Gives::Each),
    ("mapv", Calls::Item, Gives::Each),
    ("pmap", Calls::Item, Gives::Each),
    ("map-indexed", Calls::Indexed, Gives::Each),
    ("filter", Calls::Item, Gives::Same),
    ("filterv", Calls::Item, Gives::Same),
    ("remove", Calls::Item, Gives::Same),
    ("take-while", Calls::Item, Gives::Same),
    ("drop-while", Calls::Item, Gives::Same),
    ("sort-by", Calls::Item, Gives::Same),
    ("keep", Calls::Item, Gives::Other),
    ("mapcat", Calls::Item, Gives::Other),
    ("some", Calls::Item, Gives::Other),
    ("every?", Calls::Item, Gives::Other),
    ("not-any?", Calls::Item, Gives::Other),
    ("not-every?", Calls::Item, Gives::Other),
    ("index-where", Calls::Item, Gives::Other),
    ("find-first", Calls::Item, Gives::Other),
    ("group-by", Calls::Item, Gives::Other),
    ("partition-by", Calls::Item, Gives::Other),
    ("max-by", Calls::Item, Gives::Other),
    ("min-by", Calls::Item, Gives::Other),
    ("reduce", Calls::Folded, Gives::Other),
];

fn equality(a: &Ty, b: &Ty) -> Ty {
    let alike = |kinds: Kinds| {
        if kinds.meets(Kinds::ORDERED) { kinds.or(Kinds::ORDERED) } else { kinds }
    };
    if !alike(a.kinds).meets(alike(b.kinds)) {
        return Ty::of(Kinds::FALSE);
    }
    match (a.value(), b.value()) {
        (Some(a), Some(b))
            if a.items().is_none() && !matches!(a, Value::Map(_) | Value::Set(_) | Value::Float(_)) =>
        {
            Ty::of(if a == b { Kinds::TRUE } else { Kinds::FALSE })
        }
        _ if a.kinds == Kinds::NIL && b.kinds == Kinds::NIL => Ty::TRUE,
        _ => Ty::ANY,
    }
}

fn has(of: &Ty, key: &Ty) -> Ty {
    match (of.detail(), key.value()) {
        (Some(Detail::Record(record)), Some(key)) if of.kinds == Kinds::MAP => {
            match record.fields.iter().find(|field| field.key == *key) {
                Some(field) if !field.optional => Ty::TRUE,
                None if record.closed => Ty::of(Kinds::FALSE),
                _ => Ty::ANY,
            }
        }
        _ => Ty::ANY,
    }
}

/// Returns the item of a vector whose items are known; nil if out of range.
fn nth(of: &Ty, at: &Ty) -> Option<Ty> {
    let Some(Value::Int(at)) = at.value() else { return None };
    let at = usize::try_from(*at).ok()?;
    match of.detail()? {
        Detail::Items(items) if of.kinds == Kinds::VECTOR => {
            Some(items.get(at).cloned().unwrap_or(Ty::NIL))
        }
        Detail::Const(_) => {
            let items = of.value()?.items()?;
            Some(items.get(at).map_or(Ty::NIL, Ty::constant))
        }
        Detail::Each(item) if of.kinds.is_within(Kinds::ORDERED) => Some(item.or(&Ty::NIL)),
        _ => None,
    }
}

/// Returns the map of `(parallel {:a … :b …})`.
fn zipped(keys: &Ty, values: &Ty) -> Ty {
    let (Some(Detail::Items(keys)), Some(Detail::Items(values))) = (keys.detail(), values.detail())
    else {
        return Ty::of(Kinds::MAP);
    };
    let fields = keys
        .iter()
        .zip(values)
        .map(|(key, ty)| Some(Field { key: key.value()?.clone(), ty: ty.clone(), optional: false }));
    let Some(fields) = fields.collect() else { return Ty::of(Kinds::MAP) };
    Ty::record(Record { fields, closed: true })
}

fn assoc(of: &Ty, key: &Ty, value: &Ty) -> Ty {
    let fields = match (of.detail(), of.value()) {
        (Some(Detail::Record(record)), _) if of.kinds == Kinds::MAP && record.closed => {
            let fields = record.fields.iter();
            let copied = |field: &Field| Field {
                key: field.key.clone(),
                ty: field.ty.clone(),
                optional: field.optional,
            };
            Some(fields.map(copied).collect::<Vec<_>>())
        }
        (_, Some(Value::Map(map))) if map.len() <= super::ty::MAX_PARTS => Some(
            map.iter()
                .map(|(key, value)| Field { key: key.clone(), ty: Ty::constant(value), optional: false })
                .collect(),
        ),
        _ if of.kinds == Kinds::MAP => return Ty::of(Kinds::MAP),
        _ => None,
    };
    let (Some(mut fields), Some(key)) = (fields, key.value()) else {
        return if of.kinds == Kinds::MAP { Ty::of(Kinds::MAP) } else { Ty::ANY };
    };
    fields.retain(|field| field.key != *key);
    fields.push(Field { key: key.clone(), ty: value.clone(), optional: false });
    Ty::record(Record { fields, closed: true })
}
