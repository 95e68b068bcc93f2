//! HTTP endpoints, OpenAPI documents and built-ins out of a configuration.

use orla_e2e::eventually;
use serde_json::{Value, json};

use crate::upstream::Upstream;
use crate::{sh, world};

const PETS: &str = r#"{
  "openapi": "3.1.0",
  "info": {"title": "Pets", "version": "1.0.0"},
  "servers": [{"url": "/api"}],
  "paths": {
    "/pets/{id}": {"get": {
      "operationId": "getPet", "tags": ["read"], "summary": "Gets a pet.",
      "parameters": [{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}],
      "responses": {"200": {"description": "The pet."}}
    }},
    "/pets": {"post": {
      "operationId": "addPet", "tags": ["write"], "summary": "Adds a pet.",
      "requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}},
      "responses": {"200": {"description": "The pet."}}
    }}
  }
}"#;

#[test]
fn a_declared_endpoint_is_listed_called_and_shown_like_any_tool() {
    let upstream = Upstream::start();
    upstream.set("GET /v1/weather/Paris", 200, r#"{"temp": 21.50}"#);
    let config = format!(
        r#"
capabilities:
- id: weather.current
  description: Says what the weather is.
  provider:
    Http:
      base_url: {}/v1
      auth_token: ${{WEATHER_KEY}}
      timeout_ms: 5000
      method: GET
      path: /weather/{{city}}
      query: {{units: '{{units}}'}}
  input_schema: {{city: string, units: string?}}
  annotations: {{readOnlyHint: true}}
"#,
        upstream.url()
    );
    let server = world().config(&config).env("WEATHER_KEY", "s3cret").serve();
    for mut client in server.clients() {
        let tool = client.tool("weather__current");
        assert_eq!(tool["description"], "Says what the weather is.");
        assert_eq!(tool["inputSchema"]["required"], json!(["city"]));
        assert_eq!(tool["annotations"]["readOnlyHint"], true);
        let result = client.call("weather__current", json!({"city": "Paris", "units": "metric"}));
        assert!(!result.is_error(), "{result:?}");
        assert_eq!(result.structured(), &json!({"temp": 21.5}));
        let refused = client.call("weather__current", json!({"units": 3}));
        assert!(refused.is_error() && refused.sentence().contains("\"city\""), "{refused:?}");
    }
    let requests = upstream.requests();
    assert_eq!(requests.len(), 2, "what breaks its schema is not sent");
    assert_eq!(requests[0].line, "GET /v1/weather/Paris?units=metric");
    assert_eq!(requests[0].headers["authorization"], "Bearer s3cret");
    let status = server.status();
    let row = &status["capabilities"][0];
    assert_eq!((&row["name"], &row["kind"]), (&json!("weather__current"), &json!("http")));
    assert_eq!(row["source"], json!(format!("{}/v1", upstream.url())));
    assert!(!status.to_string().contains("s3cret") && !server.log().contains("s3cret"));
}

#[test]
fn overrides_and_patterns_hold_for_what_is_declared_too() {
    let upstream = Upstream::start();
    upstream.set("POST /a", 200, "1");
    let config = format!(
        "capabilities:\n- {{id: a, provider: {{type: http, base_url: '{0}/a'}}}}\n- {{id: b, provider: {{type: http, base_url: '{0}/b'}}}}\n- {{id: c, provider: {{type: http, base_url: '{0}/c'}}}}\ntools:\n  a: {{rename: first, description: The first., timeout: 9}}\n  b: {{enabled: false}}\ndeny: [c]\n",
        upstream.url()
    );
    let server = world().config(&config).serve();
    let mut client = server.client();
    assert_eq!(client.tool_names(), ["first"]);
    assert_eq!(client.tool("first")["description"], "The first.");
    assert_eq!(client.call("first", json!({"x": 1})).text(), "1");
    assert_eq!(upstream.requests()[0].body, r#"{"x":1}"#);
    for gone in ["a", "b", "c"] {
        assert_eq!(client.try_call(gone, json!({})).unwrap_err().code, -32602);
    }
}

#[test]
fn builtins_are_called_by_id_and_listed_only_if_configured() {
    let world = world().tool("text_upper", sh("echo mine")).config("builtins: ['math.a*']\n");
    let sum = world.run(&["call", "math.add", "a=1", "b=2"]);
    assert_eq!((sum.code, sum.stdout.trim()), (Some(0), "3"), "{}", sum.all());
    let wrong = world.run(&["call", "math.add", "a=x"]);
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.stderr.contains("\"b\""), "{}", wrong.stderr);
    let server = world.serve();
    let mut client = server.client();
    let names = client.tool_names();
    assert!(names.contains(&"math__add".to_owned()) && names.contains(&"text_upper".to_owned()));
    assert!(names.iter().all(|name| name == "text_upper" || name.starts_with("math__a")), "{names:?}");
    assert_eq!(
        client.call("text.upper", json!({"text": "a"})).text(),
        "A",
        "what is not listed can be called"
    );
    server.write("orla.yaml", "builtins: false\n", 0o644);
    server.reload();
    let mut client = server.client();
    assert_eq!(client.tool_names(), ["text_upper"]);
    assert_eq!(client.try_call("math.add", json!({"a": 1, "b": 2})).unwrap_err().code, -32602);
}

#[test]
fn a_declared_capability_overrides_a_builtin_of_the_same_id() {
    let upstream = Upstream::start();
    upstream.set("POST /", 200, "\"mine\"");
    let config = format!(
        "capabilities: [{{id: math.add, provider: {{type: http, base_url: '{}/'}}}}]\n",
        upstream.url()
    );
    let server = world().config(&config).serve();
    let mut client = server.client();
    assert_eq!(client.tool_names(), ["math__add"]);
    assert!(client.call("math.add", json!({})).text().contains("mine"));
    assert_eq!(server.logged("warn").iter().filter(|line| line.says(&["math"])).count(), 0);
}

#[test]
fn a_document_in_a_file_becomes_a_capability_for_each_operation() {
    let upstream = Upstream::start();
    upstream.set("GET /api/pets/7", 200, r#"{"name": "Rex"}"#);
    let config = format!(
        "openapi: {{openapi: pets.json, name: pets, base_url: '{}/api', exclude: {{tag: write}}}}\nwatch: true\n",
        upstream.url()
    );
    let world = world().file("pets.json", PETS).config(&config);
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{}", checked.all());
    let server = world.serve();
    let mut client = server.client();
    assert_eq!(client.tool_names(), ["pets__getPet"]);
    let result = client.call("pets.getPet", json!({"id": "7"}));
    assert_eq!(result.structured(), &json!({"name": "Rex"}));
    // A change of the file is a reload, as it is named by the configuration.
    server.write("pets.json", PETS.replace("getPet", "findPet"), 0o644);
    eventually("the new document is served", || server.client().tool_names() == ["pets__findPet"]);
    // A broken document does not remove its earlier capabilities.
    server.write("pets.json", "{", 0o644);
    server.log_says(&["pets.json", "its previous operations stay"]);
    assert_eq!(server.client().tool_names(), ["pets__findPet"]);
    let broken = server.run(&["check"]);
    assert_eq!(broken.code, Some(1));
    assert!(
        broken.all().contains("pets.json") && broken.all().contains("orla.yaml:1:10"),
        "{}",
        broken.all()
    );
}

#[test]
fn a_document_at_an_address_is_served_when_it_has_come() {
    let upstream = Upstream::start();
    upstream.set("GET /api/pets/7", 200, r#"{"name": "Rex"}"#);
    let config = format!("openapi: {}/pets.json\n", upstream.url());
    let world = world().tool("a", sh("echo a")).config(&config);
    let server = world.serve();
    eventually("it was asked for", || !upstream.requests().is_empty());
    assert_eq!(server.client().call("a", json!({})).stdout(), "a\n", "no call waits for it");
    assert_eq!(server.client().tool_names(), ["a"]);
    server.log_says(&["fetching an OpenAPI document failed", "404"]);
    upstream.set("GET /pets.json", 200, PETS);
    server.reload();
    eventually("it is served", || server.client().tool_names() == ["a", "pets__addPet", "pets__getPet"]);
    assert_eq!(
        server.client().call("pets.getPet", json!({"id": "7"})).structured(),
        &json!({"name": "Rex"})
    );
    // The earlier capabilities stay when the document is gone.
    upstream.set("GET /pets.json", 500, "");
    let count = upstream.requests().len();
    server.reload();
    eventually("it was asked for again", || upstream.requests().len() > count);
    assert_eq!(server.client().tool_names(), ["a", "pets__addPet", "pets__getPet"]);
}

#[test]
fn reload_brings_and_takes_declared_capabilities_and_an_invalid_one_changes_nothing() {
    let upstream = Upstream::start();
    let one =
        |id: &str| format!("- {{id: {id}, provider: {{type: http, base_url: '{}'}}}}\n", upstream.url());
    let server = world().config(&format!("capabilities:\n{}", one("a"))).serve();
    assert_eq!(server.client().tool_names(), ["a"]);
    server.write("orla.yaml", format!("capabilities:\n{}{}", one("b"), one("c")), 0o644);
    server.reload();
    assert_eq!(server.client().tool_names(), ["b", "c"]);
    server.write(
        "orla.yaml",
        format!("capabilities:\n{}- {{id: d, provider: {{Htp: {{}}}}}}\n", one("a")),
        0o644,
    );
    let generation = server.generation();
    server.signal(rustix::process::Signal::HUP);
    server.log_says(&[
        "the new configuration is invalid",
        "capabilities[1].provider.Htp",
        "orla.yaml:3:",
    ]);
    assert_eq!(
        (server.client().tool_names(), server.generation()),
        (vec!["b".to_owned(), "c".to_owned()], generation)
    );
}

#[test]
fn a_bad_configuration_of_providers_exits_with_2_and_names_every_place() {
    let config = "mcpServers: {a: {comand: x}}\ncapabilities:\n- {id: b, provider: {Http: {base_url: nowhere}}}\n- {id: math.ad, provider: local}\n";
    let world = world().config(config);
    let served = world.run(&["serve", "--port", "0"]);
    assert_eq!(served.code, Some(2), "{}", served.all());
    for line in ["orla.yaml:1:18", "orla.yaml:3:", "did you mean math.add? at orla.yaml:4:"] {
        assert!(served.stderr.contains(line), "{line} in {}", served.stderr);
    }
    assert_eq!(world.run(&["check"]).code, Some(1));
}

#[test]
fn list_shows_kinds_and_sources() {
    let config = "capabilities:\n- {id: sum, provider: {Local: {function: math.add}}}\n- {id: get, provider: {Http: {base_url: 'https://me:s3cret@api.example.com/v1?key=s3cret'}}}\n";
    let world = world().config(config);
    let listed = world.run(&["list", "--json"]);
    let rows: Value = serde_json::from_str(&listed.stdout).unwrap();
    let shown: Vec<(&str, &str, &str)> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let text = |key: &str| row[key].as_str().unwrap_or_default();
            (text("name"), text("kind"), text("source"))
        })
        .collect();
    assert_eq!(shown, [("get", "http", "https://api.example.com/v1"), ("sum", "local", "built-in")]);
    assert!(!listed.all().contains("s3cret"));
}
