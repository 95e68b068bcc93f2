//! The types of the functions of the standard library.
//!
//! A row of the table of names (`docs`) has the types of the arguments and of the result, in the words
//! of [`Kinds::named`]. The arity of a function is defined with the function; `&` before the last type
//! means that all further arguments have this type. The checker relies on two properties, which the
//! tests check with every kind of value: arguments that a row excludes fail with a `:type` error, and
//! the result has the type in the row.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::docs::rows;
use crate::kinds::Kinds;

/// The types of a function of the standard library.
pub(crate) struct Signature {
    params: Vec<Kinds>,
    rest: Option<Kinds>,
    pub(crate) result: Kinds,
}

impl Signature {
    /// Returns the possible kinds of the argument at this index.
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

/// Returns the signature of a function.
pub(crate) fn of(name: &str) -> Option<&'static Signature> {
    static PARSED: LazyLock<HashMap<&str, Signature>> = LazyLock::new(|| {
        let named = rows().flat_map(|row| row.names.split(' ').map(move |name| (name, row.types)));
        named.filter_map(|(name, types)| Some((name, Signature::parse(types?)?))).collect()
    });
    PARSED.get(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtins::Documentation;
    use crate::limits::Limits;
    use crate::machine::{Outcome, Run};
    use crate::value::Value;

    #[test]
    fn every_function_has_types_and_every_row_can_be_read() {
        for Documentation { names, types, .. } in rows() {
            let Some(types) = types else { continue };
            assert!(Signature::parse(types).is_some(), "{names}: {types}");
            for name in names.split(' ') {
                assert!(crate::builtins::lookup(name).is_some(), "{name} is not a function");
            }
        }
        for name in crate::builtins::names() {
            assert!(of(name).is_some(), "{name} has no types");
        }
    }

    fn values(text: &str) -> Vec<Value> {
        let forms = crate::read(&crate::Source::new("", text)).unwrap();
        forms.iter().map(|form| crate::eval_pure(&form.pr_str()).unwrap()).collect()
    }

    /// A wrong row makes the checker refuse valid programs, or assume wrong results.
    #[test]
    fn signatures_match_the_behaviour_of_the_functions() {
        let samples = values(
            "nil true false 0 2 -3 2.5 123456789012345678901234567890 \"\" \"ab\" \"12\" :a 'x 2026-11-20T10:00:00Z \
             550e8400-e29b-41d4-a716-446655440000 [] [1 2] [\"a\" \"b\"] [[1 2] [3 4]] '() '(1 2) #{} #{1} {} {:a 1} \
             {\"a\" {:b 1}} inc (fn [& _] 1) (fn [& _] [1]) (fn [& _] nil)",
        );
        let few = values("nil 2 \"a\" :a [1 2] [[1 2] [3 4]] {:a {:a 1}} #{1} (fn [& _] 1) [:a]");
        let program = crate::compile(&crate::Source::new("", "1"), &crate::Options::default()).unwrap();
        let limits = Limits { steps: 2_000, memory: 4 << 20, ..Limits::default() };
        let first = |names: &'static str| names.split(' ').next().unwrap_or_default();
        for (name, text) in rows().filter_map(|row| Some((first(row.names), row.types?))) {
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
                        // Other errors may have precedence.
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
