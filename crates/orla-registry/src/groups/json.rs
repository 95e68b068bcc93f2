//! JSON: text ⇄ values, pointers, patches and queries.

mod jmespath;
mod patch;
mod path;

use rtfs::json::{string_length, value_from_json, value_to_json};
use rtfs::{Map, Value};

use crate::arguments::{Arguments, name_of};
use crate::builtin::{Builtin, Parameter, defaulted, example, optional, required};
use crate::error::BuiltinError;
use crate::limits::{BoundedText, deep, vector};
use crate::schema::{ANY, BOOLEAN, LIST, OBJECTS, TEXT};

type Result<T> = std::result::Result<T, BuiltinError>;

/// JSON Patch operations (RFC 6902 §4).
const OPERATIONS: &str = r#""type":"array","items":{"type":"object","required":["op","path"],"properties":{"op":{"enum":["add","remove","replace","move","copy","test"]},"path":{"type":"string"},"from":{"type":"string"},"value":{}},"anyOf":[{"properties":{"op":{"enum":["add","replace","test"]}},"required":["value"]},{"properties":{"op":{"enum":["move","copy"]}},"required":["from"]},{"properties":{"op":{"enum":["remove"]}}}]}"#;
const VALUE: Parameter = required("value", ANY, "The value.");

pub(super) static BUILTINS: &[Builtin] = &[
    Builtin {
        name: "json.diff",
        title: "Difference of two values",
        description: "A JSON Patch (RFC 6902) that makes one value of another: add, remove and replace, each with its \
                      path; empty where they are equal. json.patch applies it.",
        parameters: &[
            required("before", ANY, "The old value."),
            required("after", ANY, "The new value."),
        ],
        output: OBJECTS,
        examples: &[example(
            r#"{"before":{"a":1,"b":[1,2],"c":0},"after":{"a":2,"b":[1,2,3]}}"#,
            r#"[{"op":"remove","path":"/c"},{"op":"replace","path":"/a","value":2},{"op":"add","path":"/b/2","value":3}]"#,
        )],
        run: patch::diff,
    },
    Builtin {
        name: "json.get",
        title: "Get by pointer",
        description: "The value at a JSON Pointer (RFC 6901), such as /items/0/name; the default where there is none.",
        parameters: &[
            VALUE,
            required(
                "pointer",
                TEXT,
                "The pointer: empty for the whole value; ~1 stands for / in a key, ~0 for ~.",
            ),
            optional("default", ANY, "What is given where the pointer leads nowhere; without it, null."),
        ],
        output: ANY,
        examples: &[
            example(r#"{"value":{"items":[{"a/b":7}]},"pointer":"/items/0/a~1b"}"#, "7"),
            example(r#"{"value":[],"pointer":"/0","default":"none"}"#, r#""none""#),
        ],
        run: patch::get,
    },
    Builtin {
        name: "json.jmespath",
        title: "Query with JMESPath",
        description: "What a JMESPath expression selects or computes: projections, filters, multiselects, pipes and the \
                      standard functions. `people[?age > `30`].name | sort(@)`, for example.",
        parameters: &[VALUE, required("expression", TEXT, "The expression.")],
        output: ANY,
        examples: &[
            example(
                r#"{"value":{"people":[{"name":"b","age":40},{"name":"a","age":50},{"name":"c","age":9}]},"expression":"people[?age > `30`].name | sort(@)"}"#,
                r#"["a","b"]"#,
            ),
            example(
                r#"{"value":{"a":[1,2,3]},"expression":"{n: length(a), sum: sum(a)}"}"#,
                r#"{"n":3,"sum":6}"#,
            ),
        ],
        run: jmespath::query,
    },
    Builtin {
        name: "json.merge_patch",
        title: "Apply a merge patch",
        description: "The value changed by a JSON Merge Patch (RFC 7396): keys of the patch replace or are added, keys \
                      with null are removed, objects within are merged likewise.",
        parameters: &[VALUE, required("patch", ANY, "The merge patch.")],
        output: ANY,
        examples: &[example(
            r#"{"value":{"a":1,"b":{"c":2,"d":3}},"patch":{"a":null,"b":{"c":4}}}"#,
            r#"{"b":{"c":4,"d":3}}"#,
        )],
        run: |args| patch::merge(args.value("value")?.clone(), args.value("patch")?),
    },
    Builtin {
        name: "json.parse",
        title: "Parse JSON",
        description: "The value of a JSON text. Integers stay exact, however long; a key that comes twice, a number beyond \
                      all bounds and half of a surrogate pair are errors, with their place.",
        parameters: &[required("text", TEXT, "The JSON text.")],
        output: ANY,
        examples: &[example(
            r#"{"text":"{\"a\": [1, 18446744073709551616]}"}"#,
            r#"{"a":[1,18446744073709551616]}"#,
        )],
        run: |args| {
            value_from_json(args.text("text")?).map_err(|error| BuiltinError::content("text", error))
        },
    },
    Builtin {
        name: "json.patch",
        title: "Apply a patch",
        description: "The value changed by a JSON Patch (RFC 6902): add, remove, replace, move, copy and test, all or \
                      nothing.",
        parameters: &[VALUE, required("patch", OPERATIONS, "The operations, in order.")],
        output: ANY,
        examples: &[example(
            r#"{"value":{"a":[1,3]},"patch":[{"op":"add","path":"/a/1","value":2},{"op":"move","from":"/a","path":"/b"}]}"#,
            r#"{"b":[1,2,3]}"#,
        )],
        run: patch::apply,
    },
    Builtin {
        name: "json.path",
        title: "Query with JSONPath",
        description: "The values that a JSONPath query (RFC 9535) selects, in order: $.store.book[?@.price < 10].title, \
                      $..author, $[0, -1], $[1:5:2]. Functions: length, count, value, match, search.",
        parameters: &[
            VALUE,
            required("path", TEXT, "The query."),
            defaulted(
                "paths",
                BOOLEAN,
                "false",
                "Give the normalised path of each match instead of its value.",
            ),
        ],
        output: LIST,
        examples: &[
            example(
                r#"{"value":{"book":[{"t":"x","p":5},{"t":"y","p":20}]},"path":"$.book[?@.p < 10].t"}"#,
                r#"["x"]"#,
            ),
            example(r#"{"value":{"a":[{"b":1}]},"path":"$..b","paths":true}"#, r#"["$['a'][0]['b']"]"#),
        ],
        run: path::query,
    },
    Builtin {
        name: "json.print",
        title: "Print JSON",
        description: "A value as JSON text, compact or indented.",
        parameters: &[
            VALUE,
            defaulted(
                "indent",
                r#""type":"integer","minimum":0,"maximum":10"#,
                "0",
                "Spaces for each level; 0 for one line.",
            ),
            defaulted(
                "sort_keys",
                BOOLEAN,
                "false",
                "Write the keys of objects in the order of their code points.",
            ),
        ],
        output: TEXT,
        examples: &[
            example(r#"{"value":{"b":[1,2],"a":"x"}}"#, r#""{\"b\":[1,2],\"a\":\"x\"}""#),
            example(
                r#"{"value":{"b":[1],"a":{}},"indent":2,"sort_keys":true}"#,
                r#""{\n  \"a\": {},\n  \"b\": [\n    1\n  ]\n}""#,
            ),
        ],
        run: print,
    },
];

fn print(args: &Arguments<'_>) -> Result<Value> {
    let value = args.value("value")?;
    let sorted = if args.flag("sort_keys", false)? { sort_keys(value)? } else { value.clone() };
    let text = value_to_json(&sorted).map_err(|error| BuiltinError::content("value", error))?;
    let step = usize::try_from(args.integer_or("indent", 0..=10, 0)?).unwrap_or(0);
    let mut out = BoundedText::default();
    if step == 0 {
        out.push(&text)?;
    } else {
        indent(&text, step, &mut out)?;
    }
    Ok(out.finish())
}

fn sort_keys(value: &Value) -> Result<Value> {
    match value {
        Value::Map(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by(|(a, _), (b, _)| match (name_of(a), name_of(b)) {
                (Some(a), Some(b)) => a.cmp(b),
                _ => a.compare(b),
            });
            let mut sorted = Map::new();
            for (key, value) in entries {
                deep(sorted.insert(key.clone(), sort_keys(value)?))?;
            }
            Ok(sorted.into())
        }
        Value::Vector(items) => vector(items.items().iter().map(sort_keys).collect::<Result<_>>()?),
        Value::List(items) => vector(items.items().iter().map(sort_keys).collect::<Result<_>>()?),
        other => Ok(other.clone()),
    }
}

/// Spreads compact JSON over lines.
fn indent(compact: &str, step: usize, out: &mut BoundedText) -> Result<()> {
    let mut depth: usize = 0;
    let mut rest = compact;
    let new_line = |depth: usize, out: &mut BoundedText| -> Result<()> {
        out.push("\n")?;
        (0..depth * step).try_for_each(|_| out.push(" "))
    };
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => string_length(rest.as_bytes()),
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        match first {
            '{' | '[' if after.starts_with(['}', ']']) => {
                out.push(token)?;
                out.push(&after[..1])?;
                rest = &after[1..];
                continue;
            }
            '{' | '[' => {
                depth += 1;
                out.push(token)?;
                new_line(depth, out)?;
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(depth, out)?;
                out.push(token)?;
            }
            ',' => {
                out.push(token)?;
                new_line(depth, out)?;
            }
            ':' => out.push(": ")?,
            _ => out.push(token)?,
        }
        rest = after;
    }
    Ok(())
}
