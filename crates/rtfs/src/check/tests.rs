//! What programs are told.

use std::sync::Arc;

use super::*;
use crate::syntax::Severity;

/// A few capabilities.
struct Served;

impl Signatures for Served {
    fn capability(&self, id: &str) -> Capability {
        let ty = |text: &str| Some(TypeExpr::parse(text).unwrap());
        match id {
            "weather" => Capability::Known {
                input: ty("[:map [:city :string] [:days :int ?] [:* :never]]"),
                output: ty("[:map [:temp :float] [:sky [:enum \"clear\" \"grey\"]]]"),
            },
            "open" => Capability::Known { input: ty("[:map [:limit :int]]"), output: None },
            "secret" => Capability::Undisclosed,
            _ => Capability::Unknown { similar: vec!["weather".to_owned()] },
        }
    }
}

/// Returns the findings as `error kind 1:2 message`, without their excerpts.
fn diagnostics(text: &str) -> Vec<String> {
    let options = Options { inputs: vec!["input".to_owned()], ..Options::default() };
    let found = check(&Source::new("", text), &options, Some(Arc::new(Served)));
    let line = |found: &Diagnostic| {
        let (severity, at) = (found.severity.as_str(), found.position);
        format!("{severity} {} {}:{} {}", found.kind, at.line, at.column, found.message)
    };
    found.iter().map(line).collect()
}

fn errors(text: &str) -> Vec<String> {
    let mut all = diagnostics(text);
    all.retain(|diagnostic| diagnostic.starts_with("error"));
    all
}

#[test]
fn certain_failures_are_errors_with_their_place() {
    let mut rows = Vec::new();
    for (text, expected) in [
        ("(inc 1)\n(+ 1 (zork 2))", "error undefined 2:7 `zork` is not defined"),
        (
            "(defn total [xs] 1) (totl 2)",
            "error undefined 1:22 `totl` is not defined; did you mean `total`?",
        ),
        ("(defn f [a b] a) (f 1 2 3)", "error arity 1:18 `f` takes 2 arguments, got 3"),
        ("(inc 1 2)", "error arity 1:1 `inc` takes 1 argument, got 2"),
        ("(let [f (fn [x] x)] (f))", "error arity 1:21 this function takes 1 argument, got 0"),
        ("(map inc)", "error arity 1:1 `map` takes 2 or more arguments, got 1"),
        ("(inc \"a\")", "error type 1:6 `inc` takes a number, got \"a\""),
        ("(let [x \"a\"] (+ 1 x))", "error type 1:19 `+` takes a number as its 2nd argument, got \"a\""),
        ("(5 1)", "error type 1:2 5 cannot be called: a function is expected first in a form"),
        ("(defn f [x :- :int] x) (f \"a\")", "error type 1:27 `f`: x: expected :int, got \"a\""),
        ("(defn f [x] (inc x)) (f \"a\")", "error type 1:25 `f` needs a number, got \"a\""),
        ("(let [x :- :int \"a\"] x)", "error type 1:17 x: expected :int, got \"a\""),
        ("(defn f [] :- :string 5) (f)", "error type 1:23 result: expected :string, got 5"),
        ("(def x :- [:vector :int] [1 \"a\"]) x", "error type 1:26 x[1]: expected :int, got \"a\""),
        (
            "(defstruct P :x :float) (P {:x \"a\"})",
            "error type 1:28 `P`: result.x: expected :float, got \"a\"",
        ),
        ("(map (fn [a b] a) [1 2])", "error arity 1:1 this function takes 2 arguments, got 1"),
        ("(map inc [\"a\"])", "error type 1:1 `inc` takes a number, got \"a\""),
        ("(< 1 \"a\")", "error type 1:1 `<` compares what is alike, got 1 and \"a\""),
        (
            "(loop [i \"a\"] (if (< i 3) (recur (inc i)) i))",
            "error type 1:10 a number is needed here from then on, got \"a\"",
        ),
        ("(let [[a b] 5] (+ a b))", "error type 1:7 a vector or a list is taken apart here, got 5"),
        (
            "(str x) (def x 1)",
            "error undefined 1:6 `x` is used before its definition, which stands further down",
        ),
        ("(defmacro m [x] `(inc ~x)) (m \"a\")", "error type 1:28 `inc` takes a number, got \"a\""),
        ("(parallel (inc :a) 2)", "error type 1:16 `inc` takes a number, got :a"),
        ("(module m (defn f [x] (inc x))) (m/f \"a\")", "error type 1:38 `f` needs a number, got \"a\""),
        ("(doseq [x 5] x)", "error type 1:11 a collection is expected here, got 5"),
        ("(if-let [x (inc 1)] (upper x) 0)", "error type 1:28 `upper` takes a string, got an integer"),
        (
            "(upper (:a (parallel {:a (inc 1)})))",
            "error type 1:8 `upper` takes a string, got an integer",
        ),
        ("(-> {:a 1} :a upper)", "error type 1:12 `upper` takes a string, got 1"),
        ("(match 5 n (upper n))", "error type 1:19 `upper` takes a string, got 5"),
        ("(let [x (if input 1 2)] (upper x))", "error type 1:32 `upper` takes a string, got an integer"),
        ("(for [x [1 2]] (upper x))", "error type 1:23 `upper` takes a string, got an integer"),
    ] {
        rows.push((text, expected));
    }
    let wrong: Vec<_> = rows
        .iter()
        .filter(|(text, expected)| errors(text) != [*expected])
        .map(|(text, expected)| format!("{text}\n  {expected}\n  {:?}", errors(text)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn capabilities_are_called_as_they_say() {
    for (text, expected) in [
        (
            "(call :wether {:city \"Oslo\"})",
            "error unknown-capability 1:7 there is no capability `wether`; did you mean `:weather`?",
        ),
        ("(call 5)", "error type 1:7 the id of a capability is a keyword or a string, got 5"),
        (
            "(call :weather)",
            "error invalid-input 1:1 `weather` cannot take this: input.city: expected :string, but it is missing; it takes {:city :string, :days :int ?}",
        ),
        (
            "(let [c 5] (call :weather {:city c}))",
            "error invalid-input 1:27 `weather` cannot take this: input.city: expected :string, got 5; it takes {:city :string, :days :int ?}",
        ),
        (
            "(defn f [c] (call :weather {:city c :dys 2}))",
            "error invalid-input 1:28 `weather` cannot take this: input.dys: there is no such key; did you mean :days?; it takes {:city :string, :days :int ?}",
        ),
        (
            "(upper (:temp (call :weather {:city \"Oslo\"})))",
            "error type 1:8 `upper` takes a string, got a number or nil",
        ),
        (
            "(pmap (fn [c] (inc (:sky (call :weather {:city c})))) [\"a\"])",
            "error type 1:20 `inc` takes a number, got a string or nil",
        ),
    ] {
        assert_eq!(errors(text), [expected], "{text}");
    }
    for text in [
        "(call :secret 5)",
        "(call :open {:limit 1 :more 2})",
        "(call :weather {:city \"Oslo\"} {:timeout-ms 5})",
        "(call :weather \"Oslo\" 3)",
        "(call (keyword \"wether\") {})",
        "(call :weather {:city :oslo})",
        "(call :weather (merge {} input))",
    ] {
        assert_eq!(errors(text), [""; 0], "{text}");
    }
    assert_eq!(
        diagnostics("(:tmp (call :weather {:city \"Oslo\"}))"),
        ["warning key 1:1 there is no :tmp in this map; did you mean :temp?"]
    );
}

#[test]
fn probable_mistakes_are_warnings() {
    for (text, expected) in [
        (
            "(let [x 1 y 2] y)",
            "warning unused 1:7 `x` is never used; `_` in its place says that this is meant",
        ),
        (
            "(let [{:keys [a b]} input] a)",
            "warning unused 1:17 `b` is never used; `_` in its place says that this is meant",
        ),
        (
            "(match input [a b] a _ 0)",
            "warning unused 1:17 `b` is never used; `_` in its place says that this is meant",
        ),
        (
            "(match input x x 1 2)",
            "warning unreachable 1:18 nothing ever reaches this clause: what comes before it covers everything",
        ),
        (
            "(match input 1 :a 1 :b _ :c)",
            "warning unreachable 1:19 nothing ever reaches this clause: what comes before it covers everything",
        ),
        (
            "(match 5 \"a\" 1 _ 2)",
            "warning unreachable 1:10 nothing ever reaches this clause: the value is never like this",
        ),
        (
            "(case input 1 :a 2 :b 1 :c :d)",
            "warning unreachable 1:1 nothing ever reaches this clause: what comes before it covers everything",
        ),
        (
            "(cond input 1 :else 2 (nil? input) 3)",
            "warning unreachable 1:23 nothing ever reaches this clause: what comes before it covers everything",
        ),
        ("(try (inc \"a\") (catch e 1))", "warning type 1:11 `inc` takes a number, got \"a\""),
    ] {
        assert_eq!(diagnostics(text), [expected], "{text}");
    }
}

#[test]
fn code_that_may_succeed_is_accepted() {
    for text in [
        "(defn f [x] (if (string? x) (upper x) (inc x))) (f 1) (f \"a\")",
        "(let [x (if input 1 \"a\")] (inc x))",
        "(if false (inc \"a\") 1)",
        "(and false (inc \"a\"))",
        "(let [{:keys [a]} {:a 1}] (inc a))",
        "(loop [i 0 acc []] (if (< i 3) (recur (inc i) (conj acc i)) acc))",
        "(defn f ([x] (f x 1)) ([x y] (+ x y))) (f 1)",
        "(defn even [n] (if (= n 0) true (odd (dec n)))) (defn odd [n] (if (= n 0) false (even (dec n)))) (even 4)",
        "(let [_x 1] 2)",
        "(match input (:or [x 1] [1 x]) x _ 0)",
        "(match input {:a (:opt a)} a _ 0)",
        "(let [x nil] (when x (inc x)))",
        "(let [x input] (if (nil? x) 0 (inc x)))",
        "(reduce (fn [a x] (+ a x)) 0 [1 2])",
        "(reduce + [1 2])",
        "(defn f [& xs] (apply + xs)) (f 1 2)",
        "(for [x [1 2] :let [y (* x 2)] :when (odd? y)] y)",
        "(as-> 1 x (+ x 1) (str x))",
        "(fn [[a b]] a)",
        "(let [f (fn [n] (if (= n 0) 1 (* n (f (dec n)))))] (f 5))",
        "(try (throw {:kind :a}) (catch :a e (:message e)))",
        "(defn f [x] (if (> x 3) (recur (dec x)) x)) (f 5)",
        "(let [m {\"a\" 1}] (get m \"a\"))",
        "(:a {:b 1})",
        "(-> [1 2] (nth 1) inc)",
        "(case 5 5 :a :b)",
    ] {
        assert_eq!(diagnostics(text), [""; 0], "{text}");
    }
}

#[test]
fn guarded_code_is_accepted() {
    for text in [
        "(let [m {}] (if (contains? m :a) (inc (:a m)) 0))",
        "(let [xs []] (if (empty? xs) 0 (inc (first xs))))",
        "(let [xs []] (if (pos? (count xs)) (inc (first xs)) 0))",
        "(let [xs []] (if (seq xs) (inc (first xs)) 0))",
        "(let [xs []] (when (not-empty xs) (inc (first xs))))",
        "(def xs []) (if (empty? xs) 0 (inc (first xs)))",
        "(def xs []) (defn f [] (if (empty? xs) 0 (inc (first xs)))) (f)",
        "(let [xs []] ((fn [] (if (empty? xs) 0 (inc (first xs))))))",
        "(def cfg {:items []}) (if (not (empty? (:items cfg))) (inc (first (:items cfg))) 0)",
        "(let [x 5] (if (= (type-name x) \"string\") (upper x) x))",
        "(let [x 5] (case (type-name x) \"string\" (upper x) \"integer\" (inc x) 0))",
        "(let [x 5 kind (type-name x)] (if (= kind \"string\") (upper x) x))",
        "(defn text? [x] (string? x)) (let [x 5] (if (text? x) (upper x) x))",
        "(defn text? [x] (string? x)) (let [x 5] (cond (text? x) (upper x) :else x))",
        "(defn text? [x] (string? x)) (let [x 5] (and (text? x) (upper x)))",
        "(let [v [1 2 3]] (if (every? string? v) (map upper v) v))",
        "(let [x :k] (if (#{1 2} x) (inc x) x))",
        "(let [x :k] (if (contains? #{1 2} x) (inc x) x))",
        "(map upper (filter string? [1 2]))",
        "(map inc (remove nil? [nil]))",
        "(->> [nil nil] (filter identity) (map inc))",
    ] {
        assert_eq!(diagnostics(text), [""; 0], "{text}");
    }
}

#[test]
fn a_test_of_something_else_guards_nothing() {
    for (text, expected) in [
        (
            "(let [x 5] (if (> x 3) (upper x) 0))",
            "error type 1:31 `upper` takes a string, got an integer",
        ),
        (
            "(defn f [x :- :int] (if (pos? x) (upper x) 0))",
            "error type 1:41 `upper` takes a string, got an integer",
        ),
        (
            "(let [x 5] (if (string? input) (upper x) 0))",
            "error type 1:39 `upper` takes a string, got 5",
        ),
        (
            "(let [xs [1]] (when (seq xs) (upper xs)))",
            "error type 1:37 `upper` takes a string, got a vector",
        ),
    ] {
        assert_eq!(errors(text), [expected], "{text}");
    }
}

#[test]
fn all_errors_are_reported_at_once_and_in_order() {
    let found = diagnostics("(inc \"a\")\n(let [x] 1)\n(foo)\n(let [y 1] (dec :a))");
    let places: Vec<_> = found.iter().filter_map(|diagnostic| diagnostic.split(' ').nth(2)).collect();
    assert_eq!(places, ["1:6", "2:7", "3:2", "4:7", "4:17"], "{found:?}");
    let many = "(inc \"a\")\n".repeat(1_000);
    assert_eq!(diagnostics(&many).len(), MAX_FINDINGS);
    assert!(diagnostics("(inc \"a\"").iter().all(|diagnostic| diagnostic.contains("syntax")));
}

#[test]
fn a_finding_shows_its_line() {
    let found = check(&Source::new("f.rtfs", "(let [x 1]\n  (inc :a))"), &Options::default(), None);
    assert_eq!(found[1].severity, Severity::Error);
    assert_eq!(
        found[1].to_string(),
        "f.rtfs:2:8: `inc` takes a number, got :a\n2 |   (inc :a))\n  |        ^^"
    );
}

#[test]
fn deep_code_and_many_names_end_in_time() {
    let deep = format!("{}1{}", "(inc (let [x 1] ".repeat(400), "))".repeat(400));
    assert!(!diagnostics(&deep).is_empty());
    let wide = format!("(cond {} :else 0)", "(string? input) 1 ".repeat(20_000));
    diagnostics(&wide);
    let nested = (0..20_000).map(|i| format!("(def x{} [x{i} x{i}])", i + 1)).collect::<String>();
    diagnostics(&format!("(def x0 [1]){nested}"));
    let fields = (0..12).map(|i| format!(":f{i} [:ref T] ")).collect::<String>();
    diagnostics(&format!("(defstruct T {fields}) (defn f [t :- T] (:f0 t)) (f {{:f1 {{:f2 5}}}})"));
    diagnostics(&"(zork (call :zork)) ".repeat(20_000));
}

#[test]
fn code_nested_as_deep_as_may_be_is_checked() {
    for (open, close) in [
        ("(fn [] ", ")"),
        ("(if input 1 ", ")"),
        ("(cond input 1 :else ", ")"),
        ("(match input 1 2 _ ", ")"),
        ("(try ", " (catch e 1))"),
        ("(for [x [1]] ", ")"),
        ("(loop [x 1] ", ")"),
        ("(parallel 1 ", ")"),
        ("(let [x 1] ", ")"),
        ("(map (fn [x] ", ") [1])"),
        ("[", "]"),
        ("{:a ", "}"),
        ("(and input ", ")"),
        ("(some-> input (str ", "))"),
    ] {
        for depth in [300, 480, 990] {
            let text = format!("{}input{}", open.repeat(depth), close.repeat(depth));
            // Frames of a debug build are several times as large, and how large changes with every change of the compiler.
            let check = std::thread::Builder::new().stack_size(4 << 20).spawn(move || {
                diagnostics(&text);
            });
            check.unwrap().join().unwrap();
        }
    }
}
