//! What is printed is read as the same; any text is read or has mistakes; any program ends.

use proptest::prelude::*;
use rtfs::{
    Limits, MAX_FINDINGS, Options, Outcome, Run, Source, Value, check, compile, eval_pure, read,
};

/// Text made of what means something to the reader.
fn any_text() -> impl Strategy<Value = String> {
    let tokens = [
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "#{",
        "#(",
        "\"",
        "'",
        "`",
        "~",
        "~@",
        "^",
        "#_",
        "#|",
        "|#",
        ";",
        "\n",
        " ",
        ":",
        ":-",
        "?",
        "&",
        "%",
        "%1",
        "x",
        "y",
        ":k",
        "1",
        "-2.5",
        "1e9",
        "0x1f",
        "nil",
        "true",
        "\\",
        "\\u{41}",
        "é",
        "😀",
        "\u{feff}",
        "\u{0}",
        ",",
        "#",
        "##NaN",
        "\"a\\n\"",
        "\"\"\"",
        "2026-11-20T10:00:00Z",
        "550e8400-e29b-41d4-a716-446655440000",
        "(def f ",
        "(fn [x] ",
        "(let [x 1] ",
        "(loop [i 0] ",
        "(recur ",
        "(if ",
        "(match ",
        "(try ",
        "(catch e ",
        "(finally ",
        "(defmacro m [& r] ",
        "(m ",
        "(for [x xs] ",
        "(map ",
        "(-> ",
        "(call ",
        "(parallel ",
        "(cond ",
        "(case ",
        "{:keys [a b] :or {a 1} :as m}",
        "[a & b]",
        "(throw ",
        "(step ",
        "(import m :as m)",
        "(module m ",
        "(defstruct S :a :int ",
        "(is? ",
        "(quote ",
        "(apply ",
        "(reduce + ",
        "(range)",
        "(take 3 ",
    ];
    prop::collection::vec(prop::sample::select(tokens.to_vec()), 0..40)
        .prop_map(|tokens| tokens.concat())
}

/// Programs whose brackets are balanced more often than by chance.
fn any_program() -> impl Strategy<Value = String> {
    let atoms = prop::sample::select(vec![
        "x",
        "y",
        "f",
        "1",
        "-1",
        ":k",
        "\"s\"",
        "nil",
        "true",
        "[]",
        "{}",
        "&",
        "_",
        ":-",
        ":int",
        "?",
        "%",
        "if",
        "let",
        "fn",
        "def",
        "defn",
        "loop",
        "recur",
        "match",
        "when",
        "try",
        "catch",
        "finally",
        "throw",
        "do",
        "for",
        "doseq",
        "cond",
        "case",
        "and",
        "or",
        "->",
        "->>",
        "as->",
        "some->",
        "cond->",
        "quote",
        "defmacro",
        "parallel",
        "race",
        "settle",
        "pmap",
        "step",
        "log",
        "call",
        "stream",
        "map",
        "filter",
        "reduce",
        "range",
        "take",
        "iterate",
        "apply",
        "update",
        "assoc",
        "get",
        "conj",
        "first",
        "rest",
        "str",
        "+",
        "<",
        "=",
        "inc",
        "comp",
        "partial",
        "sort",
        "is?",
        "check",
        "defstruct",
        "deftype-alias",
        "dotimes",
        "if-let",
        "macroexpand",
        "memoize",
        "send!",
        "concat",
        "fmt",
    ]);
    atoms.prop_map(str::to_owned).prop_recursive(6, 80, 6, |inner| {
        let many = || prop::collection::vec(inner.clone(), 0..6).prop_map(|parts| parts.join(" "));
        prop_oneof![
            6 => many().prop_map(|parts| format!("({parts})")),
            3 => many().prop_map(|parts| format!("[{parts}]")),
            1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{{{a} {b}}}")),
            1 => inner.clone().prop_map(|form| format!("`(a ~{form} ~@{form} b#)")),
            1 => inner.clone().prop_map(|form| format!("#({form})")),
        ]
    })
}

/// Runs a program to its end within small limits; calls fail.
fn ends(text: &str) {
    let source = Source::new("", text);
    let program = match compile(&source, &Options::default()) {
        Ok(program) => program,
        Err(errors) => {
            assert!(!errors.0.is_empty() && errors.0.len() <= 20, "{text}");
            return;
        }
    };
    let limits = Limits { steps: 20_000, memory: 4 << 20, depth: 200, calls: 10, ..Limits::default() };
    let mut run = Run::new(program, limits, &[]);
    for _ in 0..10_000 {
        match run.advance(500) {
            Outcome::Done(_) => return,
            Outcome::Failed(error) => {
                let _ = error.report();
                return;
            }
            Outcome::Yielded => {}
            Outcome::Waiting => {
                let events: Vec<_> = run.events().collect();
                assert!(!events.is_empty(), "{text}");
                for event in events {
                    if let rtfs::Event::Request { ticket, .. } = event {
                        run.resolve(ticket, Err(rtfs::Error::new("failed", "no")));
                    }
                }
            }
        }
    }
    panic!("does not end: {text}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_or_has_mistakes_inside_of_it(text in any_text()) {
        match read(&Source::new("", &*text)) {
            Ok(values) => {
                let printed: Vec<_> = values.iter().map(Value::pr_str).collect();
                let again = read(&Source::new("", printed.join("\n"))).unwrap();
                let printed_again: Vec<_> = again.iter().map(Value::pr_str).collect();
                prop_assert_eq!(printed, printed_again);
            }
            Err(errors) => {
                for error in &errors.0 {
                    prop_assert!(error.span.start <= error.span.end && error.span.end as usize <= text.len());
                    prop_assert!(error.excerpt.contains('^'));
                }
            }
        }
    }

    #[test]
    fn any_program_is_checked(text in prop_oneof![any_text(), any_program()]) {
        let (source, options) = (Source::new("", &*text), Options::default());
        let found = check(&source, &options, None);
        prop_assert!(found.len() <= MAX_FINDINGS && found.is_sorted_by_key(|found| found.span.start));
        let is_broken = found.iter().any(|found| found.kind == "syntax");
        let compiles = compile(&source, &options).is_ok();
        prop_assert!(compiles != is_broken || found.len() == MAX_FINDINGS, "{}", text);
    }

    #[test]
    fn any_text_compiles_and_ends(text in any_text()) {
        ends(&text);
    }

    #[test]
    fn any_program_ends(text in any_program()) {
        ends(&text);
    }

    #[test]
    fn any_bytes_are_read(text in "\\PC*") {
        let _ = eval_pure(&text);
    }

    #[test]
    fn integers_are_exact(a: i64, b: i64) {
        let big = |n: i64| num_bigint::BigInt::from(n);
        for (op, expected) in [("+", big(a) + big(b)), ("-", big(a) - big(b)), ("*", big(a) * big(b))] {
            prop_assert_eq!(eval_pure(&format!("({op} {a} {b})")).unwrap().pr_str(), expected.to_string());
        }
        if b != 0 {
            let sum = format!("(= {a} (+ (* {b} (quot {a} {b})) (rem {a} {b})))");
            prop_assert_eq!(eval_pure(&sum).unwrap(), Value::Bool(true));
            let sign = format!("(let [m (mod {a} {b})] (or (zero? m) (= (neg? m) (neg? {b}))))");
            prop_assert_eq!(eval_pure(&sign).unwrap(), Value::Bool(true));
        }
    }

    #[test]
    fn sorting_is_stable_and_the_same_by_any_way(items in prop::collection::vec(-20_i64..20, 0..60)) {
        let list: Vec<_> = items.iter().map(ToString::to_string).collect();
        let list = format!("[{}]", list.join(" "));
        let mut sorted = items;
        sorted.sort_unstable();
        let expected = format!("{sorted:?}").replace(',', "");
        for sort in ["(sort XS)", "(sort < XS)", "(sort compare XS)", "(sort (fn [a b] (- a b)) XS)", "(sort (fn [a b] (< a b)) XS)", "(sort-by identity XS)", "(reverse (sort > XS))"] {
            let value = eval_pure(&sort.replace("XS", &list)).unwrap();
            prop_assert_eq!(value.pr_str(), expected.clone(), "{}", sort);
        }
        let stable = format!("(sort-by (fn [p] (quot (first p) 5)) (map-indexed (fn [i x] [x i]) {list}))");
        let by_comparing = format!("(sort (fn [a b] (< (quot (first a) 5) (quot (first b) 5))) (map-indexed (fn [i x] [x i]) {list}))");
        prop_assert_eq!(eval_pure(&stable).unwrap(), eval_pure(&by_comparing).unwrap());
    }
}

/// More on request.
fn cases() -> u32 {
    option_env!("RTFS_CASES").and_then(|n| n.parse().ok()).unwrap_or(200)
}
