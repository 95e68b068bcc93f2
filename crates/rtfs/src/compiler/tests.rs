//! Any program means the same whether values are moved at their last use or copied at each, and whether functions of the
//! library are compiled in place or called; and none makes the compiler or the machine panic.

use proptest::prelude::*;

use super::{Optimization, Options, compile_without};
use crate::limits::Limits;
use crate::machine::{Event, Outcome, Run};
use crate::syntax::Source;
use crate::{Error, Value};

/// What a program comes to; calls give their input, those of `:bad` fail.
fn outcome(text: &str, left_out: Option<Optimization>) -> String {
    let program = match compile_without(&Source::new("", text), &Options::default(), left_out) {
        Ok(program) => program,
        Err(errors) => return format!("invalid {errors}"),
    };
    let limits = Limits { steps: 20_000, depth: 200, memory: 4 << 20, ..Limits::default() };
    let mut run = Run::new(program, limits, &[]);
    let mut log = String::new();
    loop {
        match run.advance(500) {
            Outcome::Done(value) => return format!("{log}{value:?}"),
            // Copying costs steps and memory, so a limit may be reached elsewhere.
            Outcome::Failed(error) if error.kind == "limit" => return "limit".to_owned(),
            Outcome::Failed(error) => {
                let at = error.at.as_ref().map(|at| at.position);
                return format!("{log}{} {} {:?} {at:?}", error.kind, error.message, error.data);
            }
            Outcome::Yielded => {}
            Outcome::Waiting => {
                let events: Vec<_> = run.events().collect();
                for event in events {
                    if let Event::Request { ticket, request, .. } = event {
                        let answer = match request {
                            crate::Request::Call { id, .. } if id.as_str() == "bad" => {
                                Err(Error::new("failed", "bad"))
                            }
                            crate::Request::Call { input, .. } => Ok(input),
                            _ => Ok(Value::Nil),
                        };
                        log.push('.');
                        run.resolve(ticket, answer);
                    }
                }
            }
        }
    }
}

/// Returns an expression over the names a to e, which are bound.
fn any_expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        8 => prop::sample::select(vec!["a", "b", "c", "d", "e"]).prop_map(str::to_owned),
        3 => (-3_i64..12).prop_map(|n| n.to_string()),
        2 => prop::sample::select(vec![
            "nil", "true", "false", ":k", ":j", "\"s\"", "\"héllo\"", "1.5", "[]", "{}", "#{}", "[1 2 3]",
            "{:k 1 :j [2]}", "'sym", "9223372036854775807", "##NaN", "(range 5)", "(range)", "inc", "conj",
        ])
        .prop_map(str::to_owned),
    ];
    leaf.prop_recursive(5, 60, 4, |inner| {
        let one = || inner.clone();
        let name = || prop::sample::select(vec!["a", "b", "c", "d", "e"]);
        let two = || (inner.clone(), inner.clone());
        let three = || (inner.clone(), inner.clone(), inner.clone());
        prop_oneof![
            4 => (prop::sample::select(vec![
                "inc", "dec", "first", "rest", "next", "count", "vec", "str", "not", "keys", "vals", "sort", "reverse",
                "set", "last", "empty?", "pr-str", "sum", "flatten", "distinct", "list", "identity", "seq", ":k",
                "type-name", "abs", "hash", "frequencies", "string-upper", "butlast", "int", "nil?", "map?",
            ]), one()).prop_map(|(f, x)| format!("({f} {x})")),
            6 => (prop::sample::select(vec![
                "+", "-", "*", "/", "<", "<=", ">", "=", "conj", "cons", "get", "nth", "into", "concat", "merge", "mod",
                "contains?", "map", "filter", "reduce", "take", "drop", "take-while", "dissoc", "str", "quot", "rem",
                "compare", "apply", "some", "every?", "group-by", "sort-by", "mapcat", "partition-all", "interleave",
                "max", "zipmap", "union", "==", "remove", "keep", "vector", "diff", "repeat",
            ]), two()).prop_map(|(f, (x, y))| format!("({f} {x} {y})")),
            5 => (prop::sample::select(vec![
                "assoc", "update", "get", "reduce", "nth", "+", "<", "conj", "assoc-in", "update-in", "str", "map",
                "hash-map", "-", "*", "get-in", "subs", "replace",
            ]), three()).prop_map(|(f, (x, y, z))| format!("({f} {x} {y} {z})")),
            3 => (name(), two()).prop_map(|(n, (x, y))| format!("(let [{n} {x}] {y})")),
            2 => (name(), name(), three()).prop_map(|(n, m, (x, y, z))| format!("(let [{n} {x} {m} {y}] {z})")),
            1 => (name(), name(), two()).prop_map(|(n, m, (x, y))| format!("(let [[{n} & {m}] {x}] {y})")),
            1 => (name(), name(), two()).prop_map(|(n, m, (x, y))| format!("(let [{{:keys [k] {n} :j :or {{k 7}} :as {m}}} {x}] [k {y}])")),
            3 => three().prop_map(|(x, y, z)| format!("(if {x} {y} {z})")),
            1 => three().prop_map(|(x, y, z)| format!("(cond {x} {y} (= {y} {z}) {z} :else {x})")),
            1 => two().prop_map(|(x, y)| format!("(and {x} {y})")),
            1 => two().prop_map(|(x, y)| format!("(or {x} {y})")),
            1 => two().prop_map(|(x, y)| format!("(do {x} {y})")),
            2 => two().prop_map(|(x, y)| format!("[{x} {y}]")),
            1 => two().prop_map(|(x, y)| format!("{{:k {x} :j {y}}}")),
            2 => (name(), two()).prop_map(|(n, (x, y))| format!("((fn [{n}] {x}) {y})")),
            2 => (name(), one()).prop_map(|(n, x)| format!("(map (fn [{n}] {x}) [1 2])")),
            2 => (name(), name(), three()).prop_map(|(n, m, (x, y, z))| format!("(reduce (fn [{n} {m}] {x}) {y} {z})")),
            1 => (name(), name(), two()).prop_map(|(n, m, (x, y))| format!("(reduce (fn [[{n} & {m}] e] {x}) [{y}] [[1] [2]])")),
            1 => (name(), three()).prop_map(|(n, (x, y, z))| format!(
                "(reduce (fn [{n} i] (if (< i 3) (recur {x} (inc i)) [i {y}])) {z} [1 5])"
            )),
            1 => (name(), name(), two()).prop_map(|(n, m, (x, y))| format!("(sort (fn [{n} {m}] {x}) {y})")),
            1 => two().prop_map(|(x, y)| format!("(reduce #(conj [%2] %1) {x} {y})")),
            1 => (name(), two()).prop_map(|(n, (x, y))| format!("(update {{:k {x}}} :k (fn [{n}] {y}))")),
            2 => (name(), name(), three()).prop_map(|(n, m, (x, y, z))| format!(
                "(loop [i 0 {n} {x} {m} {y}] (if (< i 3) (recur (inc i) {z} {n}) [{n} {m}]))"
            )),
            1 => (name(), three()).prop_map(|(n, (x, y, z))| format!(
                "(loop [i 0 {n} {x}] (cond (> i 2) {n} {y} (recur (inc i) {z}) :else (recur (+ i 1) (conj [] {n}))))"
            )),
            1 => (name(), name(), three()).prop_map(|(n, m, (x, y, z))| format!("(for [{n} {x} {m} [1 2] :when {y}] {z})")),
            1 => (name(), three()).prop_map(|(n, (x, y, z))| format!("(try {x} (catch :type {n} {y}) (finally {z}))")),
            1 => (name(), two()).prop_map(|(n, (x, y))| format!("(try (throw {x}) (catch {n} {y}))")),
            1 => (name(), name(), three()).prop_map(|(n, m, (x, y, z))| format!(
                "(match {x} [{n} & {m}] {y} {{:k {n}}} when {y} {z} (:or 1 2) {y} (:as {m} :k) {m} {n} {z})"
            )),
            1 => (name(), two()).prop_map(|(n, (x, y))| format!("(let [f (fn [{n}] {x})] [(f 1) (f {y})])")),
            1 => (name(), name(), two()).prop_map(|(n, m, (x, y))| format!("((fn [{n} & {m}] {x}) 1 {y} 2)")),
            1 => two().prop_map(|(x, y)| format!("(parallel {x} (call :c {y}))")),
            1 => two().prop_map(|(x, y)| format!("(settle (call :bad {x}) {y})")),
            1 => one().prop_map(|x| format!("(call :c {x})")),
            1 => two().prop_map(|(x, y)| format!("(-> {x} (conj {y}) (str 1))")),
            1 => two().prop_map(|(x, y)| format!("(some-> {x} :k (+ {y}))")),
            1 => three().prop_map(|(x, y, z)| format!("(case {x} 1 {y} (:k nil) {z} 7)")),
            1 => (name(), two()).prop_map(|(n, (x, y))| format!("(if-let [{n} {x}] {y} 0)")),
            1 => one().prop_map(|x| format!("`(a ~{x} ~@[1 2])")),
            1 => one().prop_map(|x| format!("#(+ % {x})")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn moving_and_copying_mean_the_same(expression in any_expression()) {
        check(&expression, Optimization::Moves)?;
    }

    #[test]
    fn functions_in_place_and_calls_mean_the_same(expression in any_expression()) {
        check(&expression, Optimization::Inlining)?;
    }
}

fn check(expression: &str, left_out: Optimization) -> Result<(), TestCaseError> {
    let texts = [
        format!("(let [a 1 b [1 [2] 3] c {{:k 1 :j [2 3]}} d \"text\" e nil] {expression})"),
        format!(
            "(defn f [a b c d e] {expression}) [(f 1 [1 2] {{:k {{:k 1}}}} \"s\" :k) (f 2 nil 3 [] {{}})]"
        ),
    ];
    for text in texts {
        let (with, without) = (outcome(&text, None), outcome(&text, Some(left_out)));
        // Calls need depth and steps that loops in place do not.
        if left_out != Optimization::Inlining || without != "limit" {
            prop_assert_eq!(with, without, "{}", text);
        }
    }
    Ok(())
}

#[test]
fn what_stands_at_the_top_level_only_is_refused_in_a_function_in_place() {
    for form in [
        "(def x 1)",
        "(defn f [] 1)",
        "(defmacro m [] 1)",
        "(defstruct S :a :int)",
        "(import m)",
        "(module m)",
    ] {
        let outcome = outcome(&format!("(reduce (fn [a x] {form} a) 0 [1])"), None);
        assert!(outcome.starts_with("invalid "), "{form}: {outcome}");
    }
}

#[test]
fn many_functions_in_place_leave_room_for_other_forms() {
    let reduces = "(reduce (fn [a x] (+ a x)) 0 [1 2])".repeat(200);
    assert_eq!(outcome(&format!("{reduces} (let [x 7] (def y x)) y"), None), "7");
    let names: String = (0..120).map(|i| format!("v{i} {i} ")).collect();
    let large = format!(
        "(defn f [] (let [{names}] (reduce (fn [a x] (let [{names}] (+ a x v1))) v119 [1 2]))) (f)"
    );
    assert_eq!(outcome(&large, None), "124");
    let nested = "(sort (fn [a b] (< (first ".repeat(30) + "[1]" + &") b)) [[2] [1]])".repeat(30);
    assert_eq!(outcome(&nested, None), outcome(&nested, Some(Optimization::Inlining)));
}

/// More when more is asked for.
fn cases() -> u32 {
    option_env!("RTFS_CASES").and_then(|n| n.parse().ok()).unwrap_or(300)
}
