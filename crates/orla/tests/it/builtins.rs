//! Built-ins that read the output of other programs, called from the command line.

use serde_json::{Value, json};

use crate::world;

/// Returns the value that a built-in gives, or the text of its error.
fn call(id: &str, arguments: &Value) -> Result<Value, String> {
    let called = world().run(&["call", id, "--raw", "--json", &arguments.to_string()]);
    let result: Value =
        serde_json::from_str(&called.stdout).unwrap_or_else(|_| panic!("{}", called.all()));
    if result["isError"] == true {
        return Err(result["content"][0]["text"].as_str().unwrap_or_default().to_owned());
    }
    Ok(result["structuredContent"].clone())
}

#[test]
fn a_dot_in_a_jsonpath_pattern_matches_no_line_break() {
    let texts = json!(["a b", "a\nb", "a\rb", "a\u{2028}b"]);
    for path in ["$[?match(@, 'a.b')]", "$[?search(@, 'a.')]"] {
        let found = call("json.path", &json!({"value": texts, "path": path}));
        assert_eq!(found, Ok(json!(["a b", "a\u{2028}b"])), "{path}");
    }
}

#[test]
fn times_of_toml_are_those_of_rfc_3339() {
    let text = "opens = 07:32\nsince = 1979-05-27T07:32Z\nexact = 07:32:00.5\nday = 1979-05-27\n";
    let expected = json!({
        "opens": "07:32:00", "since": "1979-05-27T07:32:00Z", "exact": "07:32:00.5", "day": "1979-05-27",
    });
    assert_eq!(call("toml.parse", &json!({"text": text})), Ok(expected));
}

#[test]
fn tags_of_applications_leave_plain_data_in_yaml_and_are_listed() {
    let text = "seen: !!set {a, b}\norder: !!omap [a: 1]\nlogo: !!binary aGk=\nat: !point {x: 1}\n\
                id: !ref 12\ntext: ! 12\nnumber: !!int 12\n";
    let expected = json!({
        "seen": {"a": null, "b": null}, "order": [{"a": 1}], "logo": "aGk=", "at": {"x": 1},
        "id": "12", "text": "12", "number": 12,
    });
    assert_eq!(call("yaml.parse", &json!({"text": text})), Ok(expected));
    let ignored = call("yaml.tags", &json!({"text": text})).unwrap();
    let tags: Vec<&Value> = ignored.as_array().unwrap().iter().map(|row| &row["tag"]).collect();
    assert_eq!(tags, ["!!set", "!!omap", "!!binary", "!point", "!ref"]);
    assert_eq!(ignored[3], json!({"tag": "!point", "line": 4, "column": 5}));
}

#[test]
fn a_tag_of_an_application_is_an_error_in_the_configuration() {
    let checked = world().config("port: !secret 8080\n").run(&["check"]);
    assert_eq!(checked.code, Some(1), "{}", checked.all());
    assert!(
        checked.all().contains("the tag !secret is not supported at orla.yaml:1:"),
        "{}",
        checked.all()
    );
}

#[test]
fn a_list_in_brackets_is_indented_more_than_its_key_in_yaml() {
    let refused = call("yaml.parse", &json!({"text": "flow: [a,\nb,\nc]"})).unwrap_err();
    assert!(refused.contains("(line 2, column 1)"), "{refused}");
    let read = call("yaml.parse", &json!({"text": "flow: [\n  a,\n  b\n]"}));
    assert_eq!(read, Ok(json!({"flow": ["a", "b"]})));
}
