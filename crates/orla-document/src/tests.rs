use super::*;
use proptest::prelude::*;
use serde_json::json;

fn problem(text: &str) -> String {
    let err = parse(text).expect_err(text);
    format!("{}:{}: {}", err.at.line, err.at.column, err.problem)
}

#[test]
fn json_gives_the_same_tree_as_yaml() {
    let yaml = parse("a: 1\nb:\n  - x\n  - 'y'\n").unwrap().unwrap();
    let json = parse("\u{feff}{\n\t\"a\": 1,\n\t\"b\": [\"x\", \"y\\u0021\"]\n}\n").unwrap().unwrap();
    let (Kind::Map(yaml), Kind::Map(json)) = (yaml.kind, json.kind) else { panic!("two mappings") };
    assert_eq!(yaml[0].1.kind, json[0].1.kind);
    assert_eq!(json[1].0.at, Position { line: 3, column: 2 });
    let Kind::List(items) = &json[1].1.kind else { panic!("a list") };
    assert_eq!(items[1].kind, Kind::Scalar(Scalar { text: "y!".into(), plain: false }));
}

#[test]
fn nothing_is_nothing() {
    for text in ["", "\n\n", "# a comment\n", "---\n", "null", "~\n"] {
        assert_eq!(parse(text), Ok(None), "{text:?}");
    }
}

#[test]
fn errors_name_their_place() {
    let cases = [
        ("a:\n\tb: 1\n", "2:1: a tab cannot indent YAML: use spaces"),
        ("a: 1\n\tb: 2\n", "2:1: a tab cannot indent YAML: use spaces"),
        ("\ta: 1\n", "1:2: a tab cannot indent YAML: use spaces"),
        ("a: *y\n", "1:4: `*y` refers to nothing: no `&y` comes before it"),
        ("- [1, *one.two]\n", "1:7: `*one.two` refers to nothing: no `&one.two` comes before it"),
        (
            "a: Adds: two\n",
            "1:8: a colon with a space after it begins a new key here: indent the line as the key before it, or put the text in quotes",
        ),
        ("a: 1\nb: 2\na: 3\n", "3:1: a: given twice, first on line 1"),
        ("a: &a [*a]\n", "1:8: an alias cannot stand inside of what it refers to"),
        ("a: 1\n---\nb: 2\n", "2:1: a second document begins: only one is read"),
        ("a: !include x\n", "1:13: the tag !include is not supported"),
        ("? [x]\n: 1\n", "1:3: a key must be text"),
        ("a: [\n", "1:4: `[` is never closed: `]` is missing"),
        ("a: {\n", "1:4: `{` is never closed: `}` is missing"),
        (
            "a: [é, ${HOME}/x]\n",
            "1:8: within brackets or braces, the brace of ${…} begins a mapping: put the text in quotes",
        ),
        (
            "a: {\n  b: x-${HOME}}\n",
            "2:8: within brackets or braces, the brace of ${…} begins a mapping: put the text in quotes",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(problem(text), expected, "{text:?}");
    }
}

#[test]
fn aliases_that_explode_are_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..12 {
        let item = format!("*a{}, ", n - 1);
        text.push_str(&format!("a{n}: &a{n} [{}]\n", item.repeat(8)));
    }
    assert!(problem(&text).contains("too large"), "{}", problem(&text));
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    assert!(problem(&deep).contains("128 levels"), "{}", problem(&deep));
}

#[test]
fn scalars_know_what_they_are() {
    let scalar = |text: &str| Scalar { text: text.to_owned(), plain: true };
    for number in ["0", "-1", "1.5", "1e3", ".5", ".inf", "-.INF", ".nan", "+7", "0x1F", "0o17"] {
        assert!(scalar(number).is_number(), "{number}");
    }
    for text in ["127.0.0.1", "infinity", "nan", "1_000", "0x", "-0x1", "0o8", "./a", "-", "e3"] {
        assert_eq!(scalar(text).as_text(), Some(text));
    }
    let quoted = Scalar { text: "8080".into(), plain: false };
    assert_eq!((quoted.as_text(), quoted.is_number()), (Some("8080"), false));
}

#[test]
fn values_are_those_of_the_core_schema() {
    let cases = [
        (
            "[true, False, yes, no, null, ~, 'true']",
            json!([true, false, "yes", "no", null, null, "true"]),
        ),
        ("[7, -7, +7, 007, 0x1f, 0o17]", json!([7, -7, 7, 7, 31, 15])),
        ("[1.5, .5, 1e3, 18446744073709551616]", json!([1.5, 0.5, 1000.0, 18446744073709551616.0])),
        ("[.inf, -.nan, 1e999, 1_000, !!str 7]", json!([".inf", "-.nan", "1e999", "1_000", "7"])),
        ("{b: {c: 1}, a: [], d: ''}", json!({"b": {"c": 1}, "a": [], "d": ""})),
    ];
    for (text, expected) in cases {
        assert_eq!(parse(text).unwrap().unwrap().to_json(), expected, "{text}");
    }
    assert_eq!(Node::nothing().to_json(), json!(null));
}

#[test]
fn own_keys_of_a_mapping_override_merged_ones() {
    let text = "x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz: {c: 3, <<: [*x, *y]}\nw: {<<: *x, b: 4}\nq: {'<<': 5}\n";
    let tree = parse(text).unwrap().unwrap().to_json();
    assert_eq!(tree["z"], json!({"a": 1, "b": 1, "c": 3}));
    assert_eq!(tree["w"], json!({"a": 1, "b": 4}));
    assert_eq!(tree["q"], json!({"<<": 5}));
    assert_eq!(problem("a: {<<: 3}"), "1:9: <<: expected a mapping, or a list of them");
}

#[test]
fn json_is_held_to_its_own_grammar() {
    let cases = [
        ("{\"a\": 1,\n}", "2:1: trailing comma"),
        ("{\"a\": 1", "1:7: EOF while parsing an object"),
        ("{\"é\": x}", "1:7: expected value"),
        ("{\"a\": 1,\n \"a\": 2}", "2:2: a: given twice, first on line 1"),
    ];
    for (text, expected) in cases {
        assert_eq!(parse_json(text).unwrap_err().to_string(), expected, "{text}");
    }
    let text = "\u{feff}{\n\t\"a\": \"\\ud83d\\ude00\", \"b\": [null, \"true\", 1.10]}\n";
    let node = parse_json(text).unwrap().unwrap();
    assert_eq!(node.to_json(), json!({"a": "😀", "b": [null, "true", 1.1]}));
    let Kind::Map(pairs) = &node.kind else { panic!("a mapping") };
    assert_eq!(pairs[0].1.at, Position { line: 2, column: 7 });
    assert_eq!(parse_json("null"), Ok(None));
}

#[test]
fn text_that_is_not_utf8_is_named_with_its_offset() {
    let err = decode(b"a: 1\nb: \xff").unwrap_err();
    assert_eq!(
        (err.at, err.problem.as_str()),
        (Position { line: 2, column: 4 }, "not UTF-8 (at byte 8)")
    );
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[-a-c:{}\\[\\],&*!'\"#|>\\t\\n ?0-9.]{0,60}") {
        let _ = (parse(&text), parse_json(&text));
    }

    #[test]
    fn json_is_read_as_json(text in r#"(\{"a":|\[|\]|\}|,|"(\\u00e9|\\ud83d\\ude00|[a-c <\\/]){0,3}"|-?[0-9]{1,3}(\.[0-9]+)?(e[0-9])?|true|null| |\t|\n){0,12}"#) {
        if let (Ok(theirs), Ok(ours)) = (serde_json::from_str::<Value>(&text), parse_json(&text)) {
            prop_assert_eq!(ours.map_or(Value::Null, |node| node.to_json()), theirs);
        }
    }
}
