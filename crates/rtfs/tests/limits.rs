//! Whatever a program does, it ends in a value, an error or a limit. Rows R of what the world throws
//! at it.

#![expect(clippy::unwrap_used, reason = "tests")]

use rtfs::{Failure, Limits, Options, Outcome, Run, Source, compile, eval_pure};

/// Returns the kind of error, and what its data says of the limit.
fn kind(text: &str) -> String {
    match eval_pure(text) {
        Ok(value) => format!("value {}", value.type_name()),
        Err(Failure::Failed(error)) => match &error.data {
            rtfs::Value::Map(data) if error.kind == "limit" => {
                format!("limit {:?}", data.get_keyword("limit").unwrap())
            }
            _ => error.kind.into_owned(),
        },
        Err(failure) => failure.kind().to_owned(),
    }
}

#[test]
fn deep_nesting_is_an_error_and_no_overflow() {
    let nested = |open: &str, inner: &str, close: &str, depth: usize| {
        format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
    };
    let cases = [
        ("a megabyte of parentheses", "(".repeat(1 << 20), "syntax"),
        ("a megabyte of closing ones", ")".repeat(1 << 20), "syntax"),
        ("a megabyte of quotes", "'".repeat(1 << 20), "syntax"),
        ("nested too deep to read", nested("[", "1", "]", 1_001), "syntax"),
        ("data of the greatest depth", nested("[", "1", "]", 999), "value vector"),
        (
            "quoted data of the greatest depth",
            nested("(", "1", ")", 900).replacen("(1", "(quote 1", 1),
            "type",
        ),
        ("code as deep as can be read", nested("(inc ", "1", ")", 990), "value integer"),
        ("functions in functions", nested("((fn [x] ", "x", ") 1)", 400), "value integer"),
        ("lets in lets", nested("(let [x ", "1", "] x)", 400), "value integer"),
        (
            "a thousand bindings",
            format!(
                "(let [a0 1{}] a1000)",
                (1..=1_000).map(|n| format!(" a{n} (inc a{})", n - 1)).collect::<String>()
            ),
            "value integer",
        ),
        ("patterns in patterns", format!("(let [{} []] 1)", nested("[", "a", "]", 900)), "syntax"),
        ("patterns of match", format!("(match [] {} 1 _ 2)", nested("[", "a", "]", 900)), "syntax"),
        ("quasiquotes", nested("`(", "1", ")", 100), "value list"),
        ("threading a thousand forms", format!("(-> 1{})", " inc".repeat(2_000)), "syntax"),
        ("tries in tries", nested("(try ", "1", " (catch e 2))", 300), "value integer"),
        ("loops in loops", nested("(loop [a 1] ", "a", ")", 300), "value integer"),
        ("ifs in ifs", nested("(if true ", "1", " 2)", 450), "value integer"),
        ("types in types", format!("(is? 1 {})", nested("[:vector ", ":int", "]", 900)), "syntax"),
    ];
    for (name, text, expected) in cases {
        let got = kind(&text);
        assert_eq!(got, expected, "{name}");
    }
}

#[test]
fn every_limit_is_named() {
    let cases = [
        ("(loop [] (recur))", "limit :steps"),
        ("(defn f [] (f)) (f)", "limit :steps"),
        ("(defn f [] (+ 1 (f))) (f)", "limit :depth"),
        ("(loop [v []] (recur (conj v (range 1000))))", "limit :memory"),
        ("(loop [s \"x\"] (recur (str s s)))", "limit :memory"),
        ("(loop [v [1]] (recur (into v v)))", "limit :memory"),
        ("(loop [v []] (recur [v v]))", "limit :parts"),
        ("(loop [v []] (recur [v]))", "limit :nesting"),
        ("(loop [f identity] (recur (fn [x] (f x))))", "limit :nesting"),
        ("(loop [n 3] (recur (* n n)))", "limit :integer"),
        ("(pow 3 1000000000)", "limit :integer"),
        ("(bit-shift-left 1 1000000000000)", "limit :integer"),
        ("(factorial 1000000)", "limit :integer"),
        ("(repeat-string \"ab\" 1000000000000)", "limit :memory"),
        ("(pad-start \"\" 1000000000000)", "limit :memory"),
        ("(repeat 1000000000 1)", "limit :memory"),
        ("(vec (range))", "limit :memory"),
        ("(count (iterate inc 1))", "limit :memory"),
        ("(range)", "limit :memory"),
        ("(reduce + (range))", "limit :steps"),
        ("(last (range 1000000000000))", "limit :memory"),
        ("(replace (repeat-string \"a\" 10000) \"\" (repeat-string \"b\" 100000))", "limit :memory"),
        ("(repeat-string \"x\" 10000000)", "limit :output"),
        ("(dotimes [_ 2000] (try (call :a) (catch e 1)))", "limit :calls"),
        ("(pmap (fn [x] (try (call :a x) (catch e x))) (range 2000))", "limit :calls"),
        ("(defn f [] (parallel (f) (f))) (f)", "limit :memory"),
        ("(sort (fn [a b] (loop [] (recur))) [1 2])", "limit :steps"),
        ("(pmap identity (range 1000000))", "limit :memory"),
        ("(defmacro m [] (loop [] (recur))) (m)", "syntax"),
        ("(defmacro m [] '(m)) (m)", "syntax"),
        ("(defmacro m [] (list 'do '(m) '(m))) (m)", "syntax"),
    ];
    for (text, expected) in cases {
        assert_eq!(kind(text), expected, "{text}");
    }
}

/// What goes through all of a large value costs accordingly, so that few of its kind end a run.
#[test]
fn an_operation_is_paid_by_the_size_of_what_it_goes_through() {
    let operations = [
        "(sum v)",
        "(mean v)",
        "(median v)",
        "(index-of v -1)",
        "(contains? v -1)",
        "(= v w)",
        "(< v w)",
        "(diff v w)",
        "(hash v)",
        "(subset? v w)",
        "(get {[1] 1} v)",
        "(pr-str v)",
        "(fmt \"{}\" v)",
        "(serialize-json v)",
        "(string-contains? s \"a\")",
        "(blank? s)",
        "(* n n)",
        "(quot n 3)",
    ];
    for operation in operations {
        let text = format!(
            "(let [v (vec (range 20000)) w (vec (range 20000)) s (repeat-string \" \" 400000) n (pow 3 100000)]
               (dotimes [_ 1000] {operation}))"
        );
        let program = compile(&Source::new("", text), &Options::default()).unwrap();
        // Ten times what a thousand of them would cost by the call.
        let limits = Limits { steps: 300_000, ..Limits::default() };
        let mut run = Run::new(program, limits, &[]);
        let outcome = loop {
            match run.advance(20_000) {
                Outcome::Yielded => {}
                outcome => break outcome,
            }
        };
        let Outcome::Failed(error) = outcome else { panic!("{operation}: {outcome:?}") };
        assert!(error.message.contains("300000 steps"), "{operation}: {}", error.message);
    }
}

/// A text that would be longer than there is memory for is never made.
#[test]
fn a_text_counts_while_it_is_written() {
    for write in [
        "(apply str many)",
        "(pr-str many)",
        "(string-join \"-\" many)",
        "(fmt \"{}\" many)",
        "(serialize-json many)",
    ] {
        let program = format!("(let [many (repeat 100000 (repeat-string \"x\" 1000000))] {write})");
        assert_eq!(kind(&program), "limit :memory", "{write}");
    }
}

#[test]
fn powers_and_divisors_of_large_integers_are_paid_and_bounded() {
    assert_eq!(
        kind("(loop [i 0] (if (< i 1000) (do (pow 3 330000) (recur (inc i))) i))"),
        "limit :steps"
    );
    assert_eq!(kind("(gcd (pow 3 300000) (pow 7 120000))"), "limit :integer");
    for failing in [
        "(try (a 1) (catch :type e 1))",
        "(try (throw {:kind :q :message s}) (catch :q e 1))",
        "(try (re-find r \"a\") (catch :invalid-argument e 1))",
    ] {
        let text = format!(
            "(let [a (pow 3 100000) s (repeat-string 3000000 \"a\") r (repeat-string 300000 \"(\")]
               (loop [i 0] (if (< i 100000000) (do {failing} (recur (inc i))) i)))"
        );
        let program = compile(&Source::new("", text), &Options::default()).unwrap();
        let limits = Limits { steps: 2_000_000, ..Limits::default() };
        let mut run = Run::new(program, limits, &[]);
        let mut slices = 0;
        let outcome = loop {
            match run.advance(20_000) {
                Outcome::Yielded => slices += 1,
                outcome => break outcome,
            }
        };
        let Outcome::Failed(error) = outcome else { panic!("{failing}: {outcome:?}") };
        assert!(error.message.contains("2000000 steps"), "{failing}: {}", error.message);
        assert!(slices > 2, "{failing}: {slices}");
    }
    let common = "(= (pow 3 30000) (gcd (* 8 (pow 3 30000)) (* 25 (pow 3 30000))))";
    assert_eq!(eval_pure(common).unwrap().pr_str(), "true");
}
