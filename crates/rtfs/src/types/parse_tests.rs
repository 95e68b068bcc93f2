//! Which texts are types, and the errors for other texts.

use super::{MAX_TYPE_DEPTH, TypeExpr};
use crate::{Source, read};

#[test]
fn reads_each_notation_of_a_type() {
    let cases = [
        (":int", ":int"),
        ("int", ":int"),
        ("nil", ":nil"),
        (":int?", ":int?"),
        ("string?", ":string?"),
        ("[:union :int :nil]", ":int?"),
        ("[:vector :int]?", "[:union [:vector :int] :nil]"),
        ("[:optional :int]", ":int?"),
        ("Tree", "[:ref Tree]"),
        ("Tree?", "[:union [:ref Tree] :nil]"),
        ("[:ref tree]", "[:ref tree]"),
        ("[:vector :int ?]", "[:vector :int?]"),
        ("[:tuple :int ? [:list :any] ?]", "[:tuple :int? [:union [:list :any] :nil]]"),
        ("[:array :int [3 ?]]", "[:array :int [3 ?]]"),
        ("[:array :int]", "[:array :int [?]]"),
        ("[:map {:name :string, :age :int?}]", "[:map [:name :string] [:age :int? ?]]"),
        ("[:map {:a :int ?, :b [:list :any]?}]", "[:map [:a :int ?] [:b [:union [:list :any] :nil] ?]]"),
        ("[:record [:a :int] [:b :int ?] [:c :int?]]", "[:map [:a :int] [:b :int ?] [:c :int?]]"),
        ("[:map {\"b\" int} [3 :bool] {:* :never}]", "[:map [\"b\" :int] [3 :bool] [:* :never]]"),
        ("[:map [[:val :*] :int] [[:val [1]] :int]]", "[:map [[:val :*] :int] [[:val [1]] :int]]"),
        ("[:dict :string :int?]", "[:map-of :string :int?]"),
        ("[:enum :a \"b\" 3 nil ?]", "[:enum :a \"b\" 3 nil ?]"),
        ("[:and :string :non-empty [:is-email]]", "[:and :string [:non-empty] [:is-email]]"),
        ("[:and :int]", "[:and :int]"),
        ("[:fn [:int :int ? & :string?] :bool ?]", "[:fn [:int :int? & :string?] :bool?]"),
        ("[:fn [& :any ?] :any]", "[:fn [& :any?] :any]"),
        ("#_x [:not ; no\n :nil]", "[:not :nil]"),
    ];
    for (text, printed) in cases {
        let ty = TypeExpr::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(ty.to_string(), printed, "{text}");
        assert_eq!(printed.parse(), Ok(ty), "{text}");
    }
}

#[test]
fn says_where_a_text_is_no_type_and_what_was_expected() {
    let cases = [
        ("", "1:1: expected a type, got the end of the text"),
        (":a\n:b", "2:1: expected the end of the text after the type, got another form"),
        ("{:a 1 :a 2}", "1:7: duplicate key `:a`"),
        (":strng", "1:1: expected a type, got :strng; did you mean :string?"),
        (":integer?", "1:1: expected a type, got :integer?; did you mean :int?"),
        ("whatever", "1:1: expected a type, got whatever"),
        (":vector", "1:1: expected a type, got :vector; this one has parts: [:vector …]"),
        ("7", "1:1: expected a type, got 7; for one value write [:val …]"),
        ("[]", "1:1: expected a type, got []"),
        ("[7 :int]", "1:2: expected a keyword that says the kind of type, such as :vector, got 7"),
        ("(:int)", "1:1: expected a type, got (:int)"),
        ("[:vector\n  :int,\n  ü]", "3:3: expected the end of [:vector …], got ü"),
        ("[:map {:ü :string, :age :imt}]", "1:25: expected a type, got :imt; did you mean :int?"),
        ("[:map {:a [:list :x]?}]", "1:18: expected a type, got :x"),
        ("[:map {:a [:list :x] ?}]", "1:18: expected a type, got :x"),
        ("[:map [:a]]", "1:7: expected a key and its type, [:key TYPE] or [:key TYPE ?], got [:a]"),
        ("[:map :a]", "1:7: expected fields, {:key TYPE} or [:key TYPE], got :a"),
        ("[:map {:a :int} [:a :int]]", "1:18: expected a key that no other field has, got :a"),
        ("[:map [:* :int] [:* :int]]", "1:18: expected :* once"),
        ("[:vector]", "1:1: expected a type after :vector, got nothing"),
        ("[:vector :int :int]", "1:15: expected the end of [:vector …], got :int"),
        ("[:union]", "1:1: expected at least one type after :union"),
        ("[:enum]", "1:1: expected at least one value after :enum"),
        ("[:vectr :int]", "1:2: expected a kind of type, got :vectr; did you mean :vector?"),
        ("[:int 3]", "1:2: expected a kind of type, got :int; :int has no parts"),
        (
            "[:min-length 3]",
            "1:2: expected a kind of type, got :min-length; a predicate belongs into [:and TYPE [:min-length …]]",
        ),
        ("[:and :int [:> ]]", "1:12: expected a value after :>, got nothing"),
        (
            "[:and :int [:min-lenght 1]]",
            "1:12: expected a predicate such as [:> 0], got :min-lenght; did you mean :min-length?",
        ),
        ("[:and :int 7]", "1:12: expected a predicate such as [:> 0], got 7"),
        ("[:and :int [:> 0 1]]", "1:18: expected the end of [:> …], got 1"),
        ("[:and :int [:multiple-of 0]]", "1:26: expected a number above 0, got 0"),
        ("[:and :string [:length -1]]", "1:24: expected a number from 0 up, got -1"),
        (
            "[:and :string [:matches-regex \"(\"]]",
            "1:31: expected a regular expression without look-around and back-references, got \"(\": unclosed group",
        ),
        ("[:and :map {}]", "1:7: expected a type, got :map; this one has parts: [:map …]"),
        ("[:array :int [x]]", "1:14: expected lengths or ?, got [x]"),
        ("[:fn :int :int]", "1:6: expected the types of the parameters in [ ], got :int"),
        ("[:fn [:x] :int]", "1:7: expected a type, got :x"),
        ("[:fn [:int & :x] :int]", "1:14: expected a type, got :x"),
        ("[:ref 7]", "1:7: expected the name of a type, got 7"),
        ("[:vector :int", "1:1: `[` is never closed: `]` is missing"),
    ];
    for (text, error) in cases {
        assert_eq!(TypeExpr::parse(text).unwrap_err().to_string(), error, "{text}");
    }
    let error = TypeExpr::parse("[:and :string [:format \"emial\"]]").unwrap_err();
    assert!(error.problem.starts_with("expected a format, one of date-time, date, "), "{error}");
}

#[test]
fn an_error_in_quoted_data_has_its_path() {
    let data = read(&Source::new("", "[:map {:a :int, :b [:vector :x]}]")).unwrap();
    let error = TypeExpr::from_value(&data[0]).unwrap_err();
    assert_eq!((error.position, error.path.as_slice()), (None, &[1, 3, 1][..]));
}

#[test]
fn bounds_the_nesting_of_types() {
    let nested = |depth: usize| "[:vector ".repeat(depth - 1) + ":int" + &"]".repeat(depth - 1);
    assert!(TypeExpr::parse(&nested(MAX_TYPE_DEPTH)).is_ok());
    let error = TypeExpr::parse(&nested(MAX_TYPE_DEPTH + 1)).unwrap_err();
    assert_eq!(error.problem, "types are nested deeper than 128 levels");
}

proptest::proptest! {
    #[test]
    fn any_text_is_a_type_that_prints_as_itself_or_has_a_mistake_in_it(
        text in r#"([\[\](){}"?#_:;|\\&* \n-]|:map|:vector|:union|:and|:enum|:val|:array|:fn|:ref|:int\??|:a|T|\[:>|#\{|##Inf|0x1|1\.5|"a"|\[:a |\[:map \{:a :int ?){0,14}"#
    ) {
        match TypeExpr::parse(&text) {
            Ok(ty) => {
                let printed = ty.to_string();
                proptest::prop_assert_eq!(TypeExpr::parse(&printed).map(|again| again.to_string()), Ok(printed));
            }
            Err(error) => {
                let (line, column) = error.position.unwrap();
                let length = text.split('\n').nth(line - 1).map(|line| line.chars().count());
                proptest::prop_assert!(length.is_some_and(|length| column <= length + 1), "{}", error);
            }
        }
    }
}
