//! What checks say of values.

use super::{Checking, Definitions, Form, TypeExpr};
use crate::map::Map;
use crate::value::Value;
use crate::{Source, read};

fn ty(text: &str) -> TypeExpr {
    TypeExpr::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn value(text: &str) -> Value {
    let forms = read(&Source::new("", text)).unwrap_or_else(|error| panic!("{text}: {error:?}"));
    forms[0].clone()
}

fn violations(ty: &TypeExpr, value: &Value) -> Vec<String> {
    let found = ty.check(value, "input").err().unwrap_or_default();
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn admits_the_values_of_each_type_and_no_others() {
    let cases: &[(&str, &[&str], &[&str])] = &[
        (":any", &["nil", "1", "{}"], &[]),
        (":never", &[], &["nil", "1"]),
        (":nil", &["nil"], &["false", "[]"]),
        (":bool", &["true", "false"], &["nil", "1"]),
        (":int", &["1", "-7", "123456789012345678901234567890"], &["1.0", "\"1\"", "nil"]),
        (":float", &["1.5", "1", "##NaN", "123456789012345678901234567890"], &["\"1\"", "nil"]),
        (":number", &["1.5", "1"], &["\"1\""]),
        (":string", &["\"\""], &[":a", "a", "nil"]),
        (":keyword", &[":a"], &["\"a\"", "a"]),
        (":symbol", &["a"], &["\"a\"", ":a"]),
        (":instant", &["2026-11-20T10:00:00Z"], &["\"2026-11-20T10:00:00Z\""]),
        (
            ":uuid",
            &["550e8400-e29b-41d4-a716-446655440000"],
            &["\"550e8400-e29b-41d4-a716-446655440000\""],
        ),
        (":fn", &[], &["inc", "nil"]),
        ("int", &["1"], &["1.5"]),
        (":int?", &["1", "nil"], &["1.5"]),
        ("string?", &["\"a\"", "nil"], &["1"]),
        ("[:vector :int]", &["[]", "[1 2]"], &["[1 :a]", "(1 2)", "#{1}"]),
        ("[:vector :int ?]", &["[1 nil]"], &["nil"]),
        ("[:union [:vector :int]? :bool]", &["nil", "true", "[1]"], &["[nil]"]),
        ("[:list :int]", &["()", "(1 2)"], &["[1]", "(:a)"]),
        ("[:set :int]", &["#{}", "#{1 2}"], &["[1]", "#{:a}"]),
        ("[:tuple :int :string]", &["[1 \"a\"]", "(1 \"a\")"], &["[1]", "[1 \"a\" 2]", "[\"a\" 1]"]),
        ("[:tuple]", &["[]"], &["[1]"]),
        ("[:array :int [2 ?]]", &["[[] [1 2 3]]"], &["[[1]]", "[1 2]", "[[1] [:a]]"]),
        ("[:array :int]", &["[]", "[1]"], &["[[1]]"]),
        ("[:stream :int]", &[], &["[1]"]),
        (
            "[:map {:name :string :age :int?}]",
            &["{:name \"a\"}", "{:name \"a\" :age 1}", "{:name \"a\" :age nil :more 1}"],
            &["{}", "{:name 1}", "{:name \"a\" :age :b}", "{\"name\" \"a\"}", "[]", "nil"],
        ),
        (
            "[:record [:name :string] [:age :int ?] [:* :bool]]",
            &["{:name \"a\"}", "{:name \"a\" :age 1 :x true \"y\" false}"],
            &["{:name \"a\" :age nil}", "{:name \"a\" :x 1}"],
        ),
        ("[:map {:a :int ?} [:* :never]]", &["{}", "{:a 1}"], &["{:b 1}", "{:a nil}"]),
        ("[:map {:a :int? :* :never}]", &["{}", "{:a nil}"], &["{:b 1}"]),
        ("[:map [[:val :*] :int]]", &["{:* 1 :b 2}"], &["{}"]),
        ("[:map-of :keyword :int]", &["{}", "{:a 1}"], &["{\"a\" 1}", "{:a :b}"]),
        ("[:dict :string :int]", &["{\"a\" 1}"], &["{:a 1}"]),
        ("[:union :int :string]", &["1", "\"a\""], &["nil", ":a"]),
        ("[:enum :a \"b\" 3]", &[":a", "\"b\"", "3"], &["\"a\"", ":b", "3.0"]),
        ("[:val {:a [1]}]", &["{:a (1)}"], &["{:a [1.0]}"]),
        ("[:not :int]", &["1.0", "nil"], &["1"]),
        ("[:fn [:int & :string] :bool]", &[], &["nil"]),
        ("[:and :int [:> 0] [:<= 9]]", &["1", "9"], &["0", "10", "1.5"]),
        ("[:and :float [:>= 0.5] [:< 2]]", &["0.5", "1", "1.99"], &["0.4", "2", "2.0", "##NaN"]),
        ("[:and :any [:> 0]]", &["1"], &["\"a\"", "nil", "##NaN"]),
        ("[:and :string [:> \"b\"]]", &["\"c\""], &["\"a\""]),
        (
            "[:and :instant [:< 2026-11-20T10:00:00Z]]",
            &["2025-01-01T00:00:00Z"],
            &["2027-01-01T00:00:00Z"],
        ),
        ("[:and :number [:= 1]]", &["1"], &["1.0", "2"]),
        ("[:and :number [:!= 1]]", &["2", "1.0"], &["1"]),
        ("[:and :int [:in-range 1 3]]", &["1", "3"], &["0", "4"]),
        (
            "[:and :int [:multiple-of 3]]",
            &["0", "-6", "9000000000000000000000"],
            &["1", "9000000000000000000001"],
        ),
        ("[:and :float [:multiple-of 0.1]]", &["0.3", "7", "1e300"], &["0.35", "##Inf", "1e-300"]),
        (
            "[:and :string [:min-length 2] [:max-length 3]]",
            &["\"äö\"", "\"äöü\""],
            &["\"ä\"", "\"abcd\""],
        ),
        ("[:and :string [:length 1]]", &["\"😀\""], &["\"\"", "\"ab\""]),
        ("[:and :keyword [:length 2]]", &[":äb"], &[":a"]),
        ("[:and :string [:matches-regex \"b+$\"]]", &["\"abb\""], &["\"abc\""]),
        (
            "[:and :any [:min-count 1] [:max-count 2]]",
            &["[1]", "#{1}", "{:a 1}", "(1 2)"],
            &["[]", "{}", "\"ab\"", "nil"],
        ),
        ("[:and [:vector :int] [:count 2]]", &["[1 2]"], &["[1]", "[1 2 3]"]),
        (
            "[:and :any [:non-empty]]",
            &["\"a\"", "[1]", "{:a 1}"],
            &["\"\"", "[]", "{}", "#{}", "nil", "1"],
        ),
        (
            "[:and :any [:unique]]",
            &["[]", "[1 1.0]", "#{1}", "[##NaN ##NaN]"],
            &["[1 1]", "[[1] (1)]", "1"],
        ),
        ("[:and :any [:has-key :a]]", &["{:a nil}"], &["{}", "{\"a\" 1}", "[]"]),
        ("[:and :any [:required-keys [:a \"b\"]]]", &["{:a 1 \"b\" 2}"], &["{:a 1}"]),
        (
            "[:and :string [:is-url]]",
            &["\"https://example.com\""],
            &["\"example.com\"", "\"mailto:a@b\""],
        ),
        ("[:and :string :is-email]", &["\"a@example.com\""], &["\"a\""]),
        ("[:and :string [:is-uuid]]", &["\"550e8400-e29b-41d4-a716-446655440000\""], &["\"550e\""]),
        ("[:and :any [:is-uuid]]", &["550e8400-e29b-41d4-a716-446655440000"], &["1"]),
        (
            "[:and :string [:is-date]]",
            &["\"2024-02-29\""],
            &["\"2026-02-29\"", "\"2026-02-28T00:00:00Z\""],
        ),
        ("[:and :string [:format \"ipv4\"]]", &["\"127.0.0.1\""], &["\"::1\""]),
    ];
    for (notation, good, bad) in cases {
        let ty = ty(notation);
        for text in *good {
            assert_eq!(violations(&ty, &value(text)), [""; 0], "{notation} of {text}");
        }
        for text in *bad {
            assert!(!violations(&ty, &value(text)).is_empty(), "{notation} of {text}");
        }
    }
}

#[test]
fn differing_items_are_found_among_many() {
    let many = |n: i64| Value::vector((0..100).map(|i| (i % n).into()).collect()).unwrap();
    let unique = ty("[:and :any [:unique]]");
    assert!(unique.admits(&many(100)) && !unique.admits(&many(99)));
}

#[test]
fn says_where_what_was_expected_and_what_came() {
    let cases: &[(&str, &str, &[&str])] = &[
        (":string", "7", &["input: expected :string, got 7"]),
        (
            "[:map {:items [:vector [:map {:price [:and :float [:> 0]]}]]}]",
            "{:items [{:price 1} {:price -1} {} {:price \"x\"}]}",
            &[
                "input.items[1].price: expected [:and :float [:> 0]], got -1",
                "input.items[2].price: expected [:and :float [:> 0]], got nothing",
                "input.items[3].price: expected [:and :float [:> 0]], got \"x\"",
            ],
        ),
        (
            "[:map {:city :string, :n :int} [:* :never]]",
            "{:city 7 :x 1 \"odd key\" 2}",
            &[
                "input.city: expected :string, got 7",
                "input.n: expected :int, got nothing",
                "input.x: expected no such key (there are :city, :n), got 1",
                "input[\"odd key\"]: expected no such key (there are :city, :n), got 2",
            ],
        ),
        ("[:map {:a :any}]", "{}", &["input.a: expected a value (required), got nothing"]),
        ("[:map [:* :int]]", "{:a 1 :\"b c\" :x}", &["input[\"b c\"]: expected :int, got :x"]),
        (
            "[:map-of :keyword :int]",
            "{\"a\" :b}",
            &[
                "input[\"a\"]: expected :int, got :b",
                "input[\"a\"]: expected a key that is :keyword, got \"a\"",
            ],
        ),
        ("[:vector :int]", "{}", &["input: expected [:vector :int], got {}"]),
        ("[:tuple :int :int]", "[1 :a]", &["input[1]: expected :int, got :a"]),
        ("[:tuple :int :int]", "[1]", &["input: expected [:tuple :int :int], got [1]"]),
        ("[:array :int [2 ?]]", "[[1] [:a 2]]", &["input[1][0]: expected :int, got :a"]),
        ("[:array :int [2 2]]", "[[1] [1 2]]", &["input[0]: expected [:array :int [2]], got [1]"]),
        ("[:set :int]", "#{1 :a}", &["input[1]: expected :int, got :a"]),
        ("[:map {:a [:map {:b :int}]?}]", "{:a {:b :x}}", &["input.a.b: expected :int, got :x"]),
        (
            "[:union [:map {:kind [:val :a] :n :int}] [:map {:kind [:val :b] :s :string}]]",
            "{:kind :b :s 1}",
            &["input.s: expected :string, got 1"],
        ),
        ("[:union :int :string]", "nil", &["input: expected [:union :int :string], got nil"]),
        (
            "[:and [:vector :int] [:min-count 2]]",
            "[1]",
            &["input: expected [:and [:vector :int] [:min-count 2]], got [1]"],
        ),
        ("[:and [:vector :int] [:min-count 2]]", "[:a]", &["input[0]: expected :int, got :a"]),
        (
            "[:and [:vector :int] [:min-count 2]]",
            "7",
            &["input: expected [:and [:vector :int] [:min-count 2]], got 7"],
        ),
        ("[:not :int]", "1", &["input: expected [:not :int], got 1"]),
        ("[:ref Tree]", "1", &["input: expected [:ref Tree], which no type is named, got 1"]),
    ];
    for (notation, text, expected) in cases {
        assert_eq!(violations(&ty(notation), &value(text)), *expected, "{notation} of {text}");
    }
    let long = ty(&format!("[:and [:map {{:{} :int}}] [:count 2] [:non-empty]]", "a".repeat(200)));
    let one = value(&format!("{{:{} 1}}", "a".repeat(200)));
    assert_eq!(violations(&long, &one)[0].split(", got").next(), Some("input: expected [:count 2]"));
}

#[test]
fn violations_are_bounded_in_length_and_number() {
    let many = Value::vector(vec![Value::keyword("x".repeat(500)); 5_000]).unwrap();
    let found = ty("[:vector :int]").check(&many, "input").unwrap_err();
    assert_eq!(found.len(), 1_000);
    assert_eq!(found[0].got.chars().count(), 81);
    let found = ty("[:vector [:vector :int]]").check(&many, "input").unwrap_err();
    assert_eq!(found[1].expected, "[:vector :int]");
}

#[test]
fn values_that_came_from_json_stand_for_what_looks_like_them() {
    let json = Checking { form: Form::Json, ..Checking::default() };
    let cases: &[(&str, &[&str], &[&str])] = &[
        (":keyword", &["\"a\""], &["1"]),
        (":symbol", &["\"a\""], &["nil"]),
        (":instant", &["\"2026-11-20T10:00:00Z\""], &["\"2026-11-20\""]),
        (":uuid", &["\"550e8400-e29b-41d4-a716-446655440000\""], &["\"a\""]),
        (":int", &["1", "1.0"], &["1.5", "\"1\""]),
        ("[:list :int]", &["[1]"], &["{}"]),
        ("[:set :keyword]", &["[\"a\" \"b\"]"], &["[\"a\" \"a\"]"]),
        ("[:enum :a 1 #{:b}]", &["\"a\"", "1.0", "[\"b\"]"], &["\"b\""]),
        ("[:val {:a {3 [:b]}}]", &["{:a {:3 [\"b\"]}}"], &["{:a {}}"]),
        (
            "[:map [\"a b\" :int] [3 :int] [:* :never]]",
            &["{:\"a b\" 1 :3 2}"],
            &["{}", "{:\"a b\" 1 :3 2 :c 3}"],
        ),
        ("[:map-of :string :int]", &["{:a 1}"], &[]),
        ("[:map-of :int :int]", &["{:-12 1}", "{:0 1}"], &["{:a 1}", "{:012 1}", "{:1.5 2}"]),
        ("[:map-of [:enum :a :b] :int]", &["{:a 1}"], &["{:c 1}"]),
        ("[:map-of [:and :string [:min-length 2]] :int]", &["{:ab 1}"], &["{:a 1}"]),
        (
            "[:and :instant [:> 2026-01-01T00:00:00Z]]",
            &["\"2026-11-20T10:00:00Z\""],
            &["\"2025-11-20T10:00:00Z\""],
        ),
        ("[:and :keyword [:!= :a]]", &["\"b\""], &["\"a\""]),
        ("[:not :keyword]", &["\"a\"", "1"], &[]),
        ("[:not :string]", &["1"], &["\"a\""]),
    ];
    for (notation, good, bad) in cases {
        let ty = ty(notation);
        for text in *good {
            assert_eq!(json.check(&ty, &value(text), "input"), Ok(()), "{notation} of {text}");
        }
        for text in *bad {
            assert!(json.check(&ty, &value(text), "input").is_err(), "{notation} of {text}");
        }
    }
}

fn define(definitions: &[(&str, &str)]) -> Definitions {
    let mut all = Definitions::new();
    for (name, notation) in definitions {
        all.define(*name, ty(notation));
    }
    all
}

#[test]
fn named_types_may_refer_to_themselves() {
    let definitions = define(&[("Tree", "[:map {:value :int, :kids [:vector Tree]}]")]);
    let checking = Checking { definitions: &definitions, ..Checking::default() };
    let tree = ty("[:ref Tree]");
    assert!(checking.admits(&tree, &value("{:value 1 :kids [{:value 2 :kids []}]}")));
    let found =
        checking.check(&tree, &value("{:value 1 :kids [{:value :x :kids []}]}"), "t").unwrap_err();
    assert_eq!(found[0].to_string(), "t.kids[0].value: expected :int, got :x");
}

#[test]
fn a_type_may_bring_its_own_names() {
    let inner = define(&[("T", "[:union :nil [:vector T]]")]);
    let brought = ty("T").with_definitions(inner.into());
    assert_eq!(brought.to_string(), "[:ref T]");
    let outer = define(&[("T", ":string")]);
    let both = TypeExpr::Tuple(vec![ty("T"), brought.clone(), ty("T")]);
    let checking = Checking { definitions: &outer, ..Checking::default() };
    assert!(checking.admits(&both, &value("[\"a\" [[nil]] \"b\"]")));
    assert!(!checking.admits(&both, &value("[\"a\" \"b\" \"c\"]")));
    assert!(brought.admits(&value("[[] nil]")));
}

#[test]
fn types_that_mean_only_themselves_end() {
    let definitions = define(&[
        ("A", "A"),
        ("B", "[:union C :int]"),
        ("C", "[:union B [:not B] [:and B [:> 0]]]"),
        ("D", "[:union [:vector D] [:vector D] [:vector D] :never]"),
    ]);
    let checking = Checking { definitions: &definitions, max_steps: 100_000, ..Checking::default() };
    for (name, text) in [("A", "1"), ("B", "1"), ("B", "nil"), ("C", "nil")] {
        let _either_way = checking.check(&ty(name), &value(text), "input");
    }
    assert!(checking.check(&ty("A"), &Value::Nil, "input").is_err());
    let deep = value(&("[".repeat(40) + &"]".repeat(40)));
    let found = checking.check(&ty("[:vector D]"), &value("[[[[1]]]]"), "input").unwrap_err();
    assert!(!found.is_empty());
    let deep = Value::vector(vec![deep, 1.into()]).unwrap();
    let found = checking.check(&ty("[:vector D]"), &deep, "input").unwrap_err();
    assert!(!found.is_empty());
}

#[test]
fn deep_values_can_be_checked_and_deeper_ones_do_no_harm() {
    type Wrap = fn(Value) -> Value;
    let cases: [(&str, Wrap); 4] = [
        ("[:union :nil [:and [:vector Nest] [:count 1]]]", |inner| Value::vector(vec![inner]).unwrap()),
        ("[:union [:tuple Nest] :nil]", |inner| Value::vector(vec![inner]).unwrap()),
        ("[:union :nil [:map {:next Nest}]]", |inner| {
            let mut map = Map::new();
            map.insert(Value::keyword("next"), inner).unwrap();
            map.into()
        }),
        ("[:union :nil [:and [:map-of :keyword Nest] [:non-empty]]]", |inner| {
            let mut map = Map::new();
            map.insert(Value::keyword("next"), inner).unwrap();
            map.into()
        }),
    ];
    for (notation, wrap) in cases {
        let definitions = define(&[("Nest", notation)]);
        let checking = Checking { definitions: &definitions, ..Checking::default() };
        let deep = |inner| (0..498).fold(inner, |inner, _| wrap(inner));
        assert_eq!(checking.check(&ty("Nest"), &deep(Value::Nil), "input"), Ok(()), "{notation}");
        let found = checking.check(&ty("Nest"), &deep(1.into()), "input").unwrap_err();
        assert_eq!(found.len(), 1);
        assert!(found[0].expected.contains("Nest"), "{found:?}");
        let too_deep = (0..1_000).fold(Value::Nil, |inner, _| wrap(inner));
        let found = checking.check(&ty("Nest"), &too_deep, "input").unwrap_err();
        let expected = "what can be compared with its type in 50000000 steps and 1000 levels";
        assert_eq!((found.len(), found[0].expected.as_str()), (1, expected));
    }
}
