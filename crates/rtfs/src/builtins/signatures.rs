//! What each function of the standard library takes and gives.
//!
//! A row is a name, the types of its arguments and of its result. A function takes as many of them as
//! its arity says, which is said where it is defined; `&` before the last means that all further ones are
//! like it. The checker rests on two things, which the tests try with every kind of value: what a
//! row excludes fails with a `:type` error, and what it gives is as the row says.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::check::Kinds;

/// The words are those of [`Kinds::named`].
#[rustfmt::skip] // one function a line
static ROWS: &[(&str, &str)] = &[
    // numbers
    ("+", "& number -> number"), ("*", "& number -> number"), ("-", "& number -> number"),
    ("/", "& number -> number"),
    ("quot", "number number -> number"), ("rem", "number number -> number"),
    ("mod", "number number -> number"),
    ("inc", "number -> number"), ("dec", "number -> number"), ("abs", "number -> number"),
    ("min", "& number -> number"), ("max", "& number -> number"),
    ("sqrt", "number -> float"), ("exp", "number -> float"), ("ln", "number -> float"),
    ("pow", "number number -> number"),
    ("floor", "number -> int"), ("ceil", "number -> int"), ("trunc", "number -> int"),
    ("round", "number int -> number"),
    ("even?", "int -> bool"), ("odd?", "int -> bool"),
    ("zero?", "number -> bool"), ("pos?", "number -> bool"), ("neg?", "number -> bool"),
    ("int", "number|string -> int"), ("float", "number|string -> float"),
    ("number", "number|string -> number"),
    ("parse-int", "string -> int?"), ("parse-float", "string -> float?"),
    ("bit-and", "& int -> int"), ("bit-or", "& int -> int"), ("bit-xor", "& int -> int"),
    ("bit-shift-left", "int int -> int"), ("bit-shift-right", "int int -> int"),
    ("factorial", "int -> int"), ("gcd", "& int -> int"),
    // comparison
    ("=", "& any -> bool"), ("!=", "& any -> bool"), ("not=", "& any -> bool"), ("==", "& any -> bool"),
    ("<", "& any -> bool"), ("<=", "& any -> bool"), (">", "& any -> bool"), (">=", "& any -> bool"),
    ("compare", "any any -> int"), ("identical?", "any any -> bool"),
    // predicates
    ("not", "any -> bool"), ("some?", "any -> bool"), ("nan?", "any -> bool"),
    ("nil?", "any -> bool"), ("bool?", "any -> bool"), ("int?", "any -> bool"),
    ("float?", "any -> bool"), ("number?", "any -> bool"), ("string?", "any -> bool"),
    ("keyword?", "any -> bool"), ("symbol?", "any -> bool"), ("fn?", "any -> bool"),
    ("vector?", "any -> bool"), ("list?", "any -> bool"), ("map?", "any -> bool"),
    ("set?", "any -> bool"), ("coll?", "any -> bool"), ("seq?", "any -> bool"),
    ("instant?", "any -> bool"), ("uuid?", "any -> bool"),
    ("true?", "any -> bool"), ("false?", "any -> bool"),
    ("type-name", "any -> string"), ("type-of", "any -> keyword|vector"),
    // strings
    ("str", "& any -> string"), ("pr-str", "& any -> string"), ("fmt", "string & any -> string"),
    ("substring", "string int int? -> string"), ("string-contains?", "string string -> bool"),
    ("starts-with?", "string string -> bool"), ("ends-with?", "string string -> bool"),
    ("index-of", "ordered|string? any int -> int?"),
    ("string-upper", "string -> string"), ("string-lower", "string -> string"),
    ("string-trim", "string -> string"), ("trim-start", "string -> string"),
    ("trim-end", "string -> string"),
    ("string-join", "seqable seqable -> string"), ("split", "string string -> vector"),
    ("split-lines", "string -> vector"),
    ("replace", "string string string -> string"), ("replace-first", "string string string -> string"),
    ("repeat-string", "string|int string|int -> string"),
    ("pad-start", "string int any -> string"), ("pad-end", "string int any -> string"),
    ("reverse-string", "string -> string"), ("blank?", "string? -> bool"),
    ("re-find", "string string -> vector|string?"), ("re-matches", "string string -> vector|string?"),
    ("re-seq", "string string -> vector"), ("re-replace", "string string string -> string"),
    ("char-code", "string int -> int"), ("from-char-codes", "& any -> string"),
    ("keyword", "name name -> keyword"), ("symbol", "name name -> symbol"), ("name", "name -> string"),
    ("gensym", "any -> symbol"),
    // collections
    ("vector", "& any -> vector"), ("list", "& any -> list"), ("hash-map", "& any -> map"),
    ("hash-set", "& key -> set"), ("vec", "seqable -> vector"), ("set", "seqable -> set"),
    ("seq", "seqable -> ordered?"),
    ("into", "coll? seqable -> any"), ("conj", "coll? & any -> coll"),
    ("cons", "any seqable -> ordered"),
    ("get", "any any any -> any"), ("get-in", "any seqable any -> any"),
    ("assoc", "map|vector? & any -> map|vector"), ("assoc-in", "any seqable any -> any"),
    ("dissoc", "map? & any -> map?"), ("disj", "set? & any -> set?"),
    ("merge", "& map? -> map"), ("select-keys", "map? seqable -> map"),
    ("rename-keys", "map? map? -> map?"),
    ("keys", "map? -> vector"), ("vals", "map? -> vector"), ("entries", "map? -> vector"),
    ("find", "any any -> vector?"), ("contains?", "seqable any -> bool"),
    ("first", "seqable -> any"), ("second", "seqable -> any"), ("last", "seqable -> any"),
    ("rest", "seqable -> ordered"), ("next", "seqable -> ordered?"), ("butlast", "seqable -> ordered"),
    ("nth", "any int any -> any"), ("count", "seqable -> int"), ("empty?", "seqable -> bool"),
    ("not-empty", "seqable -> seqable"),
    ("numbers", "int int -> vector"), ("take-last", "int seqable -> items"),
    ("subvec", "ordered int any -> vector"), ("split-at", "int seqable -> vector"),
    ("reverse", "seqable -> ordered"), ("frequencies", "seqable -> map"),
    ("partition", "int any any -> items"), ("interleave", "& seqable -> items"),
    ("interpose", "any seqable -> items"), ("zip", "& seqable -> items"),
    ("zipmap", "seqable seqable -> map"), ("flatten", "seqable -> items"),
    ("sum", "seqable -> number"), ("mean", "any -> number?"), ("median", "seqable -> number?"),
    ("union", "& seqable -> set"), ("intersection", "& seqable -> set"),
    ("difference", "& seqable -> set"), ("subset?", "seqable seqable -> bool"),
    ("superset?", "seqable seqable -> bool"),
    ("parse-json", "string -> any"), ("serialize-json", "any -> string"),
    ("pretty-json", "any -> string"), ("parse-edn", "string -> any"), ("hash", "any -> int"),
    ("diff", "any any -> vector"), ("getMessage", "any -> any"),
    // what takes functions
    ("identity", "any -> any"), ("constantly", "any -> fn"), ("apply", "callable & any -> any"),
    ("comp", "& any -> any"), ("partial", "any & any -> any"), ("complement", "any -> fn"),
    ("juxt", "& any -> fn"), ("fnil", "any any any -> fn"), ("trampoline", "callable & any -> any"),
    ("memoize", "any -> fn"),
    ("reduce", "any any any -> any"), ("reductions", "any any any -> items"),
    ("reduce-kv", "any any any -> any"),
    ("map", "any & seqable -> items"), ("mapv", "any & seqable -> vector"),
    ("map-indexed", "any seqable -> items"), ("filter", "any seqable -> items"),
    ("filterv", "any seqable -> vector"), ("remove", "any seqable -> items"),
    ("keep", "any seqable -> items"), ("concat", "& seqable -> items"),
    ("mapcat", "any & seqable -> items"),
    ("some", "any seqable -> any"), ("every?", "any seqable -> bool"), ("not-any?", "any seqable -> bool"),
    ("not-every?", "any seqable -> bool"), ("index-where", "any seqable -> int?"),
    ("find-first", "any seqable -> any"),
    ("take", "int any -> items"), ("drop", "int any -> items"), ("drop-last", "any any -> items"),
    ("take-while", "any seqable -> items"), ("drop-while", "any seqable -> items"),
    ("split-with", "any seqable -> vector"), ("take-nth", "any seqable -> items"),
    ("distinct", "seqable -> items"), ("partition-all", "int any -> items"),
    ("partition-by", "any seqable -> items"),
    ("range", "& number -> items"), ("iterate", "any any -> seq"), ("repeat", "any any -> items"),
    ("repeatedly", "number any -> items"), ("cycle", "seqable -> items"),
    ("sort", "any any -> vector"), ("sort-by", "any any any -> vector"),
    ("max-by", "any seqable -> any"), ("min-by", "any seqable -> any"), ("group-by", "any seqable -> map"),
    ("update", "map|vector? key any & any -> map|vector"),
    ("update-in", "map|vector? seqable any & any -> map|vector"),
    ("merge-with", "any & any -> map"), ("update-vals", "any any -> map"), ("update-keys", "any any -> map"),
    ("filter-vals", "any any -> map"),
    ("walk", "any any any -> any"), ("postwalk", "any any -> any"), ("prewalk", "any any -> any"),
    // capabilities
    ("call", "name & any -> any"), ("capabilities", "string? -> any"), ("describe", "name -> any"),
    ("stream", "name any -> any"), ("send!", "seq any -> any"), ("close!", "seq -> any"),
    ("log", "any & any -> nil"), ("pmap", "any any any -> vector"),
    // what patterns become
    ("%sequential", "ordered|string? -> ordered|string?"), ("%associative", "map? -> map"),
    ("%rest-from", "any int -> items"), ("%has-items", "any int any -> bool"), ("%has", "any any -> bool"),
    ("%is", "any any -> bool"),
];

/// The types of a function of the standard library.
pub(crate) struct Signature {
    params: Vec<Kinds>,
    rest: Option<Kinds>,
    pub(crate) result: Kinds,
}

impl Signature {
    /// What the argument at this place can be.
    pub(crate) fn param(&self, at: usize) -> Kinds {
        self.params.get(at).copied().or(self.rest).unwrap_or(Kinds::ANY)
    }

    fn parse(text: &str) -> Option<Self> {
        let (params, result) = text.split_once(" -> ")?;
        let mut words = params.split_whitespace();
        let (mut fixed, mut rest) = (Vec::new(), None);
        while let Some(word) = words.next() {
            if word == "&" {
                rest = Some(Kinds::named(words.next()?)?);
            } else {
                fixed.push(Kinds::named(word)?);
            }
        }
        Some(Self { params: fixed, rest, result: Kinds::named(result)? })
    }
}

/// The signature of a function by its first name.
pub(crate) fn of(name: &str) -> Option<&'static Signature> {
    static PARSED: LazyLock<HashMap<&str, Signature>> = LazyLock::new(|| {
        let parsed = ROWS.iter().filter_map(|&(name, text)| Some((name, Signature::parse(text)?)));
        parsed.collect()
    });
    PARSED.get(name)
}

/// What a function of the standard library takes and gives, as `string int int? -> string`, for those who show
/// it to people. How many arguments it takes is another matter: the last may be left out.
pub fn signature(name: &str) -> Option<&'static str> {
    if name.starts_with('%') {
        return None;
    }
    let name = super::ALIASES.iter().find(|alias| alias.0 == name).map_or(name, |alias| alias.1);
    ROWS.iter().find(|row| row.0 == name).map(|row| row.1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::limits::Limits;
    use crate::machine::{Outcome, Run};
    use crate::value::Value;

    #[test]
    fn every_function_has_one_row_and_every_row_can_be_read() {
        let mut rows = BTreeSet::new();
        for (name, text) in ROWS {
            assert!(rows.insert(*name), "{name} has two rows");
            assert!(Signature::parse(text).is_some(), "{name}: {text}");
            assert!(
                crate::builtins::native_named(name).is_some() || crate::builtins::lookup(name).is_some(),
                "{name} is no function"
            );
        }
        for name in crate::builtins::names() {
            assert!(signature(name).is_some(), "{name} has no row");
        }
    }

    fn values(text: &str) -> Vec<Value> {
        let forms = crate::read(&crate::Source::new("", text)).unwrap();
        forms.iter().map(|form| crate::eval_pure(&form.pr_str()).unwrap()).collect()
    }

    /// One wrong row makes the checker refuse what runs, or promise what does not come.
    #[test]
    fn what_a_row_excludes_fails_and_what_it_gives_is_as_it_says() {
        let samples = values(
            "nil true false 0 2 -3 2.5 123456789012345678901234567890 \"\" \"ab\" \"12\" :a 'x 2026-11-20T10:00:00Z \
             550e8400-e29b-41d4-a716-446655440000 [] [1 2] [\"a\" \"b\"] [[1 2] [3 4]] '() '(1 2) #{} #{1} {} {:a 1} \
             {\"a\" {:b 1}} inc (fn [& _] 1) (fn [& _] [1]) (fn [& _] nil)",
        );
        let few = values("nil 2 \"a\" :a [1 2] [[1 2] [3 4]] {:a {:a 1}} #{1} (fn [& _] 1) [:a]");
        let program = crate::compile(&crate::Source::new("", "1"), &crate::Options::default()).unwrap();
        let limits = Limits { steps: 2_000, memory: 4 << 20, ..Limits::default() };
        for &(name, text) in ROWS {
            let signature = of(name).unwrap();
            let function = crate::builtins::native_named(name).map(crate::builtins::Builtin::Native);
            let function = function.or_else(|| crate::builtins::lookup(name)).unwrap().value();
            let try_with = |args: Vec<Value>| {
                let shown =
                    format!("({name} {}), which is {text}", Value::vector(args.clone()).unwrap());
                let excluded =
                    args.iter().enumerate().any(|(at, arg)| !Kinds::of(arg).meets(signature.param(at)));
                let mut run =
                    Run::of_function(program.clone(), limits, Vec::new(), function.clone(), args);
                match run.finish() {
                    Outcome::Done(value) => {
                        assert!(!excluded, "{shown} gives {value:?}");
                        assert!(Kinds::of(&value).meets(signature.result), "{shown} gives {value:?}");
                    }
                    Outcome::Failed(error) => {
                        // Other mistakes may come first.
                        let is_refused = matches!(
                            &*error.kind,
                            "type" | "arity" | "invalid-argument" | "index" | "arithmetic"
                        );
                        assert!(!excluded || is_refused, "{shown} fails with {error}");
                    }
                    _ => assert!(!excluded, "{shown} asks the host"),
                }
            };
            try_with(Vec::new());
            for a in &samples {
                try_with(vec![a.clone()]);
                for b in &samples {
                    try_with(vec![a.clone(), b.clone()]);
                }
                for (b, c) in few.iter().flat_map(|b| few.iter().map(move |c| (b, c))) {
                    for at in 0..3 {
                        let mut args = vec![b.clone(), c.clone()];
                        args.insert(at, a.clone());
                        try_with(args);
                    }
                }
            }
        }
    }
}
