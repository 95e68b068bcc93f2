//! `docs/builtins.md` says what there is: it is written from the table, and this fails where it is not.
//! `ORLA_WRITE_DOCS=1 cargo test -p orla-registry --test documentation` writes it.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the page is a file, and this a test"
)]

use std::fmt::Write as _;
use std::path::Path;

use orla_registry::{CapabilityRegistry, MAX_DEPTH, MAX_ITEMS, MAX_TEXT};
use rtfs::Value;
use rtfs::json::value_from_json;

const INTRODUCTION: &str = "\
# Built-in capabilities

What orla can do by itself, without a program or a server: functions that compute a value from their arguments. They
read no file, open no connection and know no clock; the same arguments always give the same result.

Each can be called by its id, `orla call math.add a=1 b=2`, from RTFS as `(call :math.add {:a 1 :b 2})`, and by MCP
clients under its name, `math__add`. Search finds them, and `orla describe math.add` has the whole
JSON Schemas. Lists of tools leave them out unless `orla.yaml` says otherwise:

```yaml
builtins: [math.*, date.*]   # or true for all of them; false removes them
```

A capability of your own with the same id takes the place of a built-in.

`cargo xtask suites` runs the public test suites of what is read here:

| suite | passed | what fails |
|---|---|---|
| JSONPath compliance (RFC 9535) | 703 of 703 values, 456 of 456 normalized paths | |
| JMESPath compliance | 892 of 892 | |
| JSON Patch (RFC 6902) | 108 of 108 | |
| toml-test, for TOML 1.1 | 217 of 220 valid, 483 of 483 invalid | the three with infinity or NaN, which JSON does not have |
| yaml-test-suite, where it gives JSON | 279 of 279 valid, 94 of 94 invalid | |
| csv-spectrum | 11 of 12 | one, whose JSON does not belong to its CSV |
";

#[test]
fn the_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/builtins.md");
    let page = page();
    if std::env::var_os("ORLA_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/builtins.md is out of date: ORLA_WRITE_DOCS=1 writes it");
}

fn page() -> String {
    let mut out = INTRODUCTION.to_owned();
    writeln!(
        out,
        "\nThe bounds, for an input and about as much for an output: {} values, {} MiB of text, {} levels; integers of \
         10,000 digits. What would exceed them is an error, before it is worked on.",
        MAX_ITEMS,
        MAX_TEXT >> 20,
        MAX_DEPTH
    )
    .unwrap();
    let mut group = "";
    for builtin in CapabilityRegistry.builtins() {
        if builtin.group() != group {
            group = builtin.group();
            writeln!(
                out,
                "\n## {group}\n\n| id and arguments | what it gives | example |\n|---|---|---|"
            )
            .unwrap();
        }
        let schema = value_from_json(&builtin.input_schema()).unwrap();
        let arguments: Vec<_> = builtin
            .parameters
            .iter()
            .map(|parameter| {
                let mark = if parameter.required { "" } else { "?" };
                let schema = member(&schema, "properties").and_then(|all| member(all, parameter.name));
                format!("{}{mark}: {}", parameter.name, schema.map_or("any".to_owned(), type_of))
            })
            .collect();
        let output = type_of(&value_from_json(&builtin.output_schema()).unwrap());
        let example = &builtin.examples[0];
        writeln!(
            out,
            "| `{}`<br>{} → {output} | {} | `{}` → `{}` |",
            builtin.name,
            cell(&arguments.join(", ")),
            cell(builtin.description),
            cell(&arguments_of(example.input)),
            cell(example.output)
        )
        .unwrap();
    }
    out
}

fn member<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let Value::Map(map) = value else { return None };
    map.get_keyword(name)
}

/// Returns the type in a JSON Schema, in words: `number`, `text or null`, `array of any`.
fn type_of(schema: &Value) -> String {
    let word = |value: &Value| match value {
        Value::Str(word) => word.as_str().to_owned(),
        _ => String::new(),
    };
    match member(schema, "type") {
        Some(Value::Vector(words)) => words.items().iter().map(word).collect::<Vec<_>>().join(" or "),
        Some(kind) if word(kind) == "array" => {
            let items = member(schema, "items").map_or("any".to_owned(), type_of);
            format!("array of {items}")
        }
        Some(kind) => word(kind),
        None => "any".to_owned(),
    }
}

/// `a=1 b="x"`
fn arguments_of(input: &str) -> String {
    let Ok(Value::Map(map)) = value_from_json(input) else { return input.to_owned() };
    let argument = |(key, value): (&Value, &Value)| {
        let json = rtfs::json::value_to_json(value).unwrap_or_default();
        format!("{key}={json}").trim_start_matches(':').to_owned()
    };
    map.iter().map(argument).collect::<Vec<_>>().join(" ")
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ").replace('`', "'")
}
