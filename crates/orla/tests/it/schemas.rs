//! Schemas that cannot be enforced, and schemas that are costly to enforce.

use std::time::Duration;

use orla_e2e::{Server, within};
use serde_json::{Value, json};

use crate::{sh, world};

/// How long a command may take that would take minutes, or forever, without a bound.
const SOON: Duration = Duration::from_secs(60);

/// An MCP server that lists the tools in `tools.json` and answers each call with the text in `answer.txt`.
const LISTS: &str = r#"#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "lists", "version": "1"}}
    elif asked["method"] == "tools/list":
        result = {"tools": json.load(open("tools.json"))}
    else:
        result = {"content": [{"type": "text", "text": open("answer.txt").read()}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"#;

fn lists(tools: &Value, answer: &str) -> orla_e2e::World {
    world()
        .file("lists.py", LISTS)
        .file("tools.json", tools.to_string())
        .file("answer.txt", answer)
        .config("mcpServers:\n  up: {command: python3, args: [lists.py]}\n")
}

fn row(server: &Server, name: &str) -> Value {
    let status = server.status();
    let rows = status["capabilities"].as_array().expect("a list of capabilities");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name} in {status}")).clone()
}

/// T10
#[test]
fn a_capability_with_a_schema_that_cannot_be_enforced_is_unavailable_in_every_kind_of_declaration() {
    let tool = |schema: &str| format!("#!/bin/sh\n# /// orla\n# {schema}\n# ///\ntouch ran\n");
    let package =
        "name: package\nversion: 1.0.0\nentrypoint: run.sh\nmcp:\n  input_schema: {$ref: '#/gone'}\n";
    let capsule = r#"{"name": "capsule", "version": "1.0.0", "entrypoint": "run.sh", "mcp": {"input_schema": {"type": "array"}}}"#;
    let world = world()
        .tool("sound.sh", sh("echo sound"))
        .tool("header.sh", tool("input_schema: {type: integer}"))
        .tool("reference.sh", tool("output_schema: {$ref: 'https://schemas.invalid/x.json'}"))
        .tool("sidecar", sh("touch ran"))
        .file("tools/sidecar.orla.yaml", "input_schema: {type: 12}\n")
        .file("tools/package/tool.yaml", package)
        .tool("package/run.sh", sh("touch ran"))
        .file("tools/capsule/orla-tool.json", capsule)
        .tool("capsule/run.sh", sh("touch ran"))
        .config("capabilities:\n- id: declared\n  output_schema: {properties: {a: {$ref: '#/$defs/b'}}}\n  provider: {local: {function: math.add}}\n");
    let places = [
        ("header", "header.sh:3:"),
        ("reference", "reference.sh:3:"),
        ("sidecar", "sidecar.orla.yaml:1:"),
        ("package", "tool.yaml:5:"),
        ("capsule", "orla-tool.json:1:"),
        ("declared", "orla.yaml:3:"),
    ];
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let listed: Value = serde_json::from_str(&world.run(&["list", "--json"]).stdout).unwrap();
    let server = world.serve();
    for mut client in server.clients() {
        let names = client.tool_names();
        assert!(names.contains(&"sound".to_owned()), "{names:?}");
        for (name, place) in places {
            assert_eq!(checked.all().matches(place).count(), 1, "{place} once in {}", checked.all());
            for row in [
                &row(&server, name),
                listed.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap(),
            ] {
                assert_eq!(row["state"], "unavailable", "{row}");
                assert!(row["last_failure"].as_str().unwrap().contains(place), "{row}");
            }
            assert!(!names.contains(&name.to_owned()), "{names:?}");
            let result = client.call(name, json!({}));
            assert!(result.is_error(), "{name}: {}", result.json);
            assert!(result.sentence().contains("schema"), "{name}: {}", result.json);
        }
        let found = client.call("capability_search", json!({"query": "header sidecar declared"}));
        assert!(!found.text().contains("sidecar"), "{}", found.text());
    }
    assert!(!server.path("ran").exists(), "nothing of it has run");
}

#[test]
fn a_program_with_an_error_in_its_body_is_unavailable_and_named_once() {
    let world = world()
        .file("tools/undefined.rtfs", "(defn main [input]\n  (no-such-function 1))")
        .file("tools/open.rtfs", "(defn main [input]\n  (+ 1\n");
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let server = world.serve();
    for name in ["undefined", "open"] {
        let place = format!("{name}.rtfs:2:");
        assert_eq!(checked.all().matches(&place).count(), 1, "{}", checked.all());
        assert_eq!(row(&server, name)["state"], "unavailable");
        let result = server.client().call(name, json!({}));
        assert!(result.is_error() && result.sentence().contains(&place), "{}", result.json);
    }
}

#[test]
fn unenforceable_provider_schemas_are_passed_on_and_reported() {
    let far = json!({"type": "object", "properties": {"a": {"$ref": "https://schemas.invalid/x.json"}}});
    let around = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}});
    let tools = json!([{"name": "far", "inputSchema": far}, {"name": "around", "inputSchema": around}]);
    let world = lists(&tools, "done");
    for (name, word) in [("far", "schemas.invalid"), ("around", "properties.a.pattern")] {
        for arguments in [vec!["describe", name], vec!["describe", name, "--json"]] {
            let id = format!("up.{name}");
            let arguments: Vec<&str> =
                arguments.iter().map(|word| if *word == name { &id } else { *word }).collect();
            let described = world.run(&arguments);
            assert!(described.stdout.contains("not enforced: "), "{described:?}");
            assert!(described.stdout.contains(word), "{described:?}");
        }
    }
    let server = world.serve();
    let mut client = server.client();
    assert_eq!(client.tool("up__far")["inputSchema"], far);
    assert_eq!(client.tool("up__around")["inputSchema"], around);
    assert_eq!(client.call("up__far", json!({"a": 1})).text(), "done");
}

#[test]
fn an_output_schema_of_the_users_own_holds_for_texts_too() {
    let tools = json!([{"name": "t", "inputSchema": {"type": "object"}}]);
    let declared = |id: &str, schema: &str| {
        format!(
            "- {{id: {id}, output_schema: '{schema}', provider: {{MCP: {{server_url: 'stdio:python3 lists.py', tool_name: t}}}}}}\n"
        )
    };
    let config = format!("capabilities:\n{}{}", declared("int", ":int"), declared("text", ":string"));

    let server = lists(&tools, "7").config(&config).serve();
    let [mut client, mut session] = server.clients();
    assert_eq!(client.call("int", json!({})).structured(), &json!(7));
    let program = client.call("rtfs", json!({"program": "(+ 1 (call :int))"}));
    assert_eq!(program.text(), "8", "{}", program.json);
    let advertised = session.tool("int")["outputSchema"].clone();
    assert_eq!(session.call("int", json!({})).structured(), &json!({"result": 7}));
    assert_eq!(advertised["properties"]["result"], client.tool("int")["outputSchema"], "{advertised}");
    assert_eq!(advertised["required"], json!(["result"]));

    let server = lists(&tools, "hello").config(&config).serve();
    let mut client = server.client();
    assert_eq!(client.call("text", json!({})).structured(), &json!("hello"));
    let result = client.call("int", json!({}));
    assert!(result.is_error() && result.content()[0]["text"] == "hello", "{}", result.json);
    assert!(result.sentence().contains("invalid output"), "{}", result.json);
}

#[test]
fn a_text_of_an_mcp_server_is_held_to_its_output_schema() {
    let output = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let tools = json!([{"name": "t", "inputSchema": {"type": "object"}, "outputSchema": output}]);
    let server = lists(&tools, r#"{"n": 7}"#).serve();
    assert_eq!(server.client().call("up__t", json!({})).structured(), &json!({"n": 7}));
    for text in ["plain", r#"{"n": "x"}"#] {
        let server = lists(&tools, text).serve();
        let result = server.client().call("up__t", json!({}));
        assert!(result.is_error() && result.sentence().contains("invalid output"), "{}", result.json);
    }
}

/// Forty definitions that each name the next one twice are a million million checks of one value.
#[test]
fn references_of_a_provider_that_multiply_are_not_followed_whatever_they_name() {
    let schema = |to: &str| {
        let definition = |at: usize| {
            let next = json!({"$ref": format!("{to}d{}", at + 1)});
            let all_of = if at < 40 { vec![next.clone(), next] } else { vec![json!({})] };
            (format!("d{at}"), json!({"$anchor": format!("d{at}"), "allOf": all_of}))
        };
        let definitions: serde_json::Map<String, Value> = (0..=40).map(definition).collect();
        let first = json!({"x": {"$ref": format!("{to}d0")}});
        json!({"$id": "https://a.example/b", "type": "object", "$defs": definitions, "properties": first})
    };
    let names = ["#/$defs/", "#/%24defs/", "#", "b#/$defs/"];
    let tool = |(at, to)| json!({"name": format!("t{at}"), "inputSchema": schema(to)});
    let tools: Vec<Value> = names.into_iter().enumerate().map(tool).collect();
    let server = lists(&json!(tools), "done").serve();
    let mut client = server.client();
    for (at, to) in names.into_iter().enumerate() {
        let name = format!("up__t{at}");
        assert_eq!(client.call(&name, json!({"x": 1})).text(), "done", "{to}");
        let described = client.call("capability_describe", json!({"id": name}));
        assert!(described.text().contains("the references multiply"), "{}", described.text());
    }
}

#[test]
fn costly_patterns_of_a_provider_are_not_compiled() {
    let bomb =
        |at: usize| (format!("p{at}"), json!({"type": "string", "pattern": r"^(\w{1,200}){1,100}N$"}));
    let many: serde_json::Map<String, Value> = (0..1_000).map(bomb).collect();
    // Each by itself is small enough, all of them together are not.
    let small = |at: usize| (format!("q{at}"), json!({"type": "string", "pattern": r"^\w{1,9000}$"}));
    let together: serde_json::Map<String, Value> = (0..100).map(small).collect();
    let tools = json!([
        {"name": "bomb", "inputSchema": {"type": "object", "properties": many}},
        {"name": "small", "inputSchema": {"type": "object", "properties": together}},
    ]);
    let server = lists(&tools, "done").serve();
    let mut client = server.client();
    for name in ["up__bomb", "up__small"] {
        assert_eq!(client.call(name, json!({"p0": "?"})).text(), "done");
        let described = client.call("capability_describe", json!({"id": name}));
        assert!(described.text().contains("not enforced: "), "{}", described.text());
    }
    assert!(server.peak_resident_kib() < 400 * 1024, "{} KiB", server.peak_resident_kib());
}

#[test]
fn a_pattern_of_ones_own_that_is_too_large_makes_the_tool_unavailable() {
    let tool = "#!/bin/sh\n# /// orla\n# input_schema: {type: object, properties: {a: {type: string, pattern: '^.{1,2097152}$'}}}\n# ///\n";
    let server = world().tool("own.sh", tool).serve();
    let result = server.client().call("own", json!({"a": "x"}));
    assert!(result.is_error() && result.sentence().contains("too large"), "{}", result.json);
}

#[test]
fn a_schema_that_multiplies_is_checked_within_a_bound() {
    let twice = |next: &str| json!({"anyOf": [{"$ref": format!("#/$defs/{next}")}, {"$ref": format!("#/$defs/{next}")}]});
    let leaf = json!({"type": "object", "properties": {"c": {"$ref": "#/$defs/a"}}});
    let definitions =
        json!({"a": twice("b"), "b": twice("c"), "c": twice("d"), "d": {"anyOf": [leaf, leaf]}});
    let expo =
        json!({"type": "object", "$defs": definitions, "properties": {"c": {"$ref": "#/$defs/a"}}});
    let mut chain = serde_json::Map::new();
    for at in 0..40 {
        let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
        chain.insert(format!("d{at}"), json!({"allOf": [next, next]}));
    }
    chain.insert("d40".to_owned(), json!(true));
    let chain = json!({"type": "object", "$defs": chain, "properties": {"c": {"$ref": "#/$defs/d0"}}});
    let tools = json!([{"name": "expo", "inputSchema": expo}, {"name": "chain", "inputSchema": chain}]);
    let server = lists(&tools, "done").serve();
    let deep = |leaf: Value| (0..60).fold(leaf, |inner, _| json!({"c": inner}));
    let answers = within(SOON, "all answers", || {
        let mut client = server.client();
        let good = client.call("up__expo", deep(json!({})));
        let bad = client.call("up__expo", deep(json!(7)));
        let chain = client.call("up__chain", json!({"c": 7}));
        Some((good.text(), bad.is_error(), chain.text()))
    });
    assert_eq!(answers, ("done".to_owned(), true, "done".to_owned()));
}

#[test]
fn a_single_declared_mcp_tool_is_held_to_its_servers_schema_from_the_first_call() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let tools = json!([{"name": "t", "inputSchema": schema}]);
    let config = "capabilities:\n- id: one\n  provider: {MCP: {server_url: 'stdio:python3 lists.py', tool_name: t}}\n";
    let server = lists(&tools, "done").config(config).serve();
    let first = server.client().call("one", json!({"a": "x"}));
    assert!(first.is_error() && first.sentence().contains("input.a"), "{}", first.json);
    assert_eq!(server.client().call("one", json!({"a": 1})).text(), "done");
}

#[test]
fn a_fault_of_a_schema_is_at_its_keyword() {
    let schema = |indent: &str| {
        let lines = ["type: object", "properties:", "  a: {type: string}", "  b:", "    $ref: '#/nope'"];
        lines.map(|line| format!("{indent}{line}\n")).concat()
    };
    let config = format!(
        "capabilities:\n  - id: web.get\n    provider: {{type: http, base_url: 'http://127.0.0.1:1'}}\n    input_schema:\n{}",
        schema("      ")
    );
    let world = world()
        .tool("t", sh(&format!("# /// orla\n# input_schema:\n{}# ///\necho", schema("#   "))))
        .tool("unused", sh("# /// orla\n# input_schema: {type: object, $defs: {a: {$ref: '#/$defs/b'}}}\n# ///\necho"))
        .tool("word", sh("# /// orla\n# input_schema:\n#   type: object\n#   properties:\n#     a: {type: strng}\n# ///\necho"))
        .config(&config);
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let reference = "this reference cannot be resolved";
    for words in [
        ["tools/t:8:15: input_schema: properties.b.$ref: ", reference],
        ["tools/unused:3:50: input_schema: $defs.a.$ref: ", reference],
        ["tools/word:6:17: input_schema: ", "strng"],
        ["orla.yaml:9:17", reference],
    ] {
        let is_said = |line: &str| words.iter().all(|word| line.contains(word));
        assert!(checked.stderr.lines().any(is_said), "{words:?}: {}", checked.stderr);
    }
    let refused = world.run(&["call", "unused"]);
    assert!(refused.code == Some(1) && refused.all().contains(reference), "{refused:?}");
}

/// Without the key, nothing would be checked.
#[test]
fn a_tool_with_a_misspelt_schema_does_not_run() {
    let world = world()
        .tool("camel", sh("# /// orla\n# inputSchema: {n: integer}\n# ///\necho ran"))
        .tool("edit", sh("echo ran"))
        .file("tools/edit.orla.yaml", "output_shema: {n: integer}\n");
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    for place in [
        "tools/camel:3:3: inputSchema: unknown key, did you mean input_schema?",
        "tools/edit.orla.yaml:1:1: output_shema: unknown key, did you mean output_schema?",
    ] {
        assert!(checked.stderr.contains(place), "{place}: {}", checked.stderr);
    }
    for tool in ["camel", "edit"] {
        assert_eq!(world.run(&["call", tool]).code, Some(1), "{tool}");
    }
}
