//! HTTP endpoints and OpenAPI documents as tools, and servers that misbehave (row V1).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use orla_e2e::World;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::world;

/// An API that answers by path. Dropping it ends it.
struct Api {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Api {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (ended, seen) = (Arc::clone(&stop), Arc::clone(&requests));
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let seen = Arc::clone(&seen);
                thread::spawn(move || serve(stream, &seen));
            }
        });
        Self { address, stop, requests }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: TcpStream, seen: &Mutex<Vec<String>>) {
    stream.set_read_timeout(Some(orla_e2e::TEST_TIMEOUT)).expect("a time");
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let before = head.len();
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
        let line = head[before..].trim_end().to_owned();
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().expect("a length");
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a whole body");
    let body = String::from_utf8(body).expect("a text");
    seen.lock().push(format!("{head}{body}"));
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut to = reader.into_inner();
    let answer = |status: &str, fields: &str, body: &str| {
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{fields}\r\n{body}"
        )
    };
    let json = "content-type: application/json\r\n";
    let written = match path.split('?').next().unwrap_or_default() {
        "/half" => "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".to_owned(),
        "/hang" => {
            let _ = to.read(&mut [0]);
            return;
        }
        "/endless" => {
            let _ = to.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
            let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
            while to.write_all(chunk.as_bytes()).is_ok() {}
            return;
        }
        "/loop" => answer("302 Found", "location: /loop\r\n", ""),
        "/metadata" => answer("302 Found", "location: http://169.254.169.254/latest/\r\n", ""),
        "/mapped" => answer("302 Found", "location: http://[::ffff:169.254.169.254]/\r\n", ""),
        "/teapot" => answer("418 I'm a teapot", json, r#"{"message": "short and stout"}"#),
        "/busy" => answer("503 Service Unavailable", "retry-after: 7\r\n", ""),
        "/html" => answer("200 OK", "content-type: text/html\r\n", "<p>"),
        "/gzip" => answer("200 OK", "content-encoding: gzip\r\n", "this is no gzip"),
        "/echo" => answer("200 OK", json, &body),
        _ => answer("200 OK", json, &json!({ "path": path }).to_string()),
    };
    let _ = to.write_all(written.as_bytes());
}

fn endpoint(id: &str, base_url: &str, more: &str) -> String {
    format!(
        "  - {{id: {id}, description: An endpoint, provider: {{type: http, base_url: \"{base_url}\"{more}}}}}\n"
    )
}

#[test]
fn with_the_documents_fields_numbers_are_posted_and_returned_exactly() {
    let api = Api::start();
    let config = format!(
        "capabilities:\n  - id: api.echo\n    description: Echoes\n    provider: {{Http: {{base_url: \"{}/echo\", auth_token: s3cret-token, timeout_ms: 5000}}}}\n",
        api.url()
    );
    let server = world().config(&config).serve();
    let mut client = server.client();
    let input = r#"{"n":1.10,"far":18446744073709551616,"url":"http://127.0.0.1:1/"}"#;
    let result = client.call_text("api__echo", input).unwrap();
    assert_eq!(result.text(), input);
    let requests = api.requests();
    assert!(requests[0].starts_with("POST /echo HTTP/1.1\r\n"), "{}", requests[0]);
    assert!(requests[0].contains("authorization: Bearer s3cret-token\r\n"), "{}", requests[0]);
    assert!(requests[0].ends_with(input), "{}", requests[0]);
    assert!(
        !server.log().contains("s3cret-token") && !server.status().to_string().contains("s3cret-token")
    );
}

#[test]
fn v1_a_misbehaving_server_fails_only_its_own_call_with_the_reason() {
    let api = Api::start();
    let (url, host) = (api.url(), api.address.to_string());
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let unknown = format!("{}.example", "a".repeat(64));
    let cases: [(&str, String, &str, String); 14] = [
        (
            "refused",
            format!("http://{closed}"),
            "",
            format!("{closed} refuses the connection; trying again may help"),
        ),
        (
            "unknown",
            format!("http://{unknown}"),
            "",
            format!("no address is known for {unknown}; trying again may help"),
        ),
        (
            "tls",
            format!("https://{host}"),
            "",
            format!("{host} closes the connection at once; trying again may help"),
        ),
        (
            "half",
            format!("{url}/half"),
            "",
            format!("the answer of {host} ended early, after 4 bytes; trying again may help"),
        ),
        (
            "hang",
            format!("{url}/hang"),
            ", timeout_ms: 300",
            "bad__hang timed out after 0.3 s".to_owned(),
        ),
        (
            "endless",
            format!("{url}/endless"),
            ", max_answer_bytes: 1000000",
            format!("{host} answers with more than 1000000 bytes (max_answer_bytes)"),
        ),
        (
            "loop",
            format!("{url}/loop"),
            ", method: GET",
            format!("the redirect leads in a circle at {host}; trying again will not help"),
        ),
        (
            "metadata",
            format!("{url}/metadata"),
            ", method: GET",
            "a redirect leads to 169.254.169.254, which has a more private address".to_owned(),
        ),
        (
            "mapped",
            format!("{url}/mapped"),
            ", method: GET",
            "which has a more private address".to_owned(),
        ),
        (
            "teapot",
            format!("{url}/teapot"),
            "",
            format!("{host} answers 418 I'm a teapot: short and stout; the same call will fail again"),
        ),
        (
            "busy",
            format!("{url}/busy"),
            "",
            format!("{host} answers 503 Service Unavailable; try again after 7 s"),
        ),
        (
            "html",
            format!("{url}/html"),
            ", accept: [application/json]",
            format!(
                "{host} answers with text/html instead of application/json; trying again will not help"
            ),
        ),
        (
            "gzip",
            format!("{url}/gzip"),
            "",
            format!(
                "{host} answers with content that cannot be decompressed; trying again will not help"
            ),
        ),
        (
            "missing",
            format!("{url}/x"),
            ", path: \"/{city}\"",
            r#"missing required property "city""#.to_owned(),
        ),
    ];
    let mut config = String::from("capabilities:\n");
    for (id, base, more, _) in &cases {
        config.push_str(&endpoint(&format!("bad.{id}"), base, more));
    }
    config.push_str(&endpoint("good", &url, ", method: GET, path: \"/items/{id}\""));
    let mut server = world().config(&config).serve();
    let mut client = server.client();
    for (id, _, _, text) in &cases {
        let result = client.call(&format!("bad__{id}"), json!({}));
        assert!(result.is_error(), "{id}");
        assert!(result.sentence().contains(text.as_str()), "{id}: {}", result.sentence());
        assert!(result.sentence().starts_with(&format!("bad__{id}")), "{id}: {}", result.sentence());
        let good = client.call("good", json!({"id": "../a?b"}));
        assert_eq!(good.structured(), &json!({"path": "/items/..%2Fa%3Fb"}), "after {id}");
    }
    assert!(server.is_alive());
    assert!(server.peak_resident_kib() < 200_000, "{} KiB", server.peak_resident_kib());
}

const DOCUMENT: &str = r##"
openapi: 3.0.3
info: {title: Shop, version: 1.2.3}
security: [{key: []}]
paths:
  /items/{id}:
    get:
      operationId: getItem
      summary: Finds an item
      tags: [items]
      parameters:
        - {name: id, in: path, required: true, schema: {type: integer}}
        - {name: "fields[]", in: query, schema: {type: array, items: {type: string}}}
  /echo:
    post:
      tags: [items]
      requestBody:
        required: true
        content: {application/json: {schema: {$ref: "#/components/schemas/Item"}}}
  /broken/{id}:
    get: {tags: [items], description: its parameter is not declared}
  /other: {get: {tags: [other]}}
components:
  schemas:
    Item:
      type: object
      required: [name]
      properties: {name: {type: string, nullable: true}, price: {type: number}}
  securitySchemes:
    key: {type: apiKey, in: header, name: X-Key}
"##;

fn shop(api: &Api) -> World {
    let config = format!(
        "openapi:\n  - {{openapi: shop.yaml, base_url: \"{}\", security: {{key: s3cret-key}}, include: [{{tag: items}}]}}\n",
        api.url()
    );
    world().file("shop.yaml", DOCUMENT).config(&config)
}

#[test]
fn each_operation_of_an_openapi_document_is_a_tool() {
    let api = Api::start();
    let server = shop(&api).serve();
    let mut client = server.client();
    assert_eq!(client.tool_names(), ["shop__getItem", "shop__post_echo"]);
    let tool = client.tool("shop__getItem");
    assert_eq!(tool["description"], "Finds an item");
    assert_eq!(tool["annotations"]["readOnlyHint"], true);
    assert_eq!(tool["inputSchema"]["properties"]["id"], json!({"type": "integer"}));

    let found = client.call("shop__getItem", json!({"id": 7, "fields": ["a", "b c"]}));
    assert_eq!(found.structured()["path"], "/items/7?fields%5B%5D=a&fields%5B%5D=b%20c");
    let posted = client.call_text("shop__post_echo", r#"{"name":null,"price":1.10}"#).unwrap();
    assert_eq!(posted.text(), r#"{"name":null,"price":1.10}"#);
    assert!(api.requests().iter().all(|request| request.contains("x-key: s3cret-key\r\n")));
    let wrong = client.call("shop__getItem", json!({"id": "seven"}));
    assert!(wrong.sentence().contains("input.id: expected an integer"), "{}", wrong.sentence());
    assert_eq!(api.requests().len(), 2, "what is wrong is not sent");
    assert!(!server.log().contains("s3cret-key"));
}

#[test]
fn unusable_operations_of_a_document_are_reported_with_the_place() {
    let api = Api::start();
    let checked = shop(&api).run(&["check"]);
    let place = "#/paths/~1broken~1{id}/get: the path's parameter id is not declared";
    assert!(checked.all().contains(place), "{}", checked.all());
}

#[test]
fn a_document_in_several_files_is_read_below_its_directory_alone() {
    let api = Api::start();
    let root = format!(
        "openapi: 3.0.3\ninfo: {{title: Cloud, version: '1'}}\nservers: [{{url: '{}'}}]\npaths:\n\
        \x20 /droplets/{{id}}: {{get: {{$ref: 'ops/get.yml'}}, put: {{$ref: 'ops/none.yml'}}}}\n\
        \x20 /outside: {{get: {{$ref: '../outside.yml'}}}}\n\
        \x20 /linked: {{get: {{$ref: 'linked.yml'}}}}\n\
        \x20 /echo: {{$ref: 'ops/item.yml#/echo'}}\n\
        components: {{schemas: {{Size: {{type: string, enum: [s, l]}}}}}}\n",
        api.url()
    );
    let get = "operationId: getDroplet\nsummary: Finds a droplet\nparameters:\n- {$ref: '../parameters.yml#/id'}\n- {$ref: '../parameters.yml#/size'}\n";
    let parameters = "id: {name: id, in: path, required: true, schema: {type: integer}}\nsize: {name: size, in: query, schema: {$ref: 'cloud.yaml#/components/schemas/Size'}}\n";
    let item = "echo:\n  post:\n    operationId: echo\n    requestBody: {content: {application/json: {schema: {$ref: 'models/droplet.yml'}}}}\n";
    let droplet = "type: object\nproperties: {name: {type: string}, parent: {$ref: '#'}}\n";
    let world = world()
        .file("api/cloud.yaml", root)
        .file("api/ops/get.yml", get)
        .file("api/ops/item.yml", item)
        .file("api/ops/models/droplet.yml", droplet)
        .file("api/parameters.yml", parameters)
        .file("outside.yml", get)
        .config("openapi: api/cloud.yaml\n");
    std::os::unix::fs::symlink("../outside.yml", world.path("api/linked.yml")).unwrap();
    let checked = world.run(&["check"]).all();
    for problem in [
        "cloud.yaml#/paths/~1droplets~1{id}/put: ops/none.yml cannot be read: No such file or directory; the operation is left out",
        "cloud.yaml#/paths/~1outside/get: ../outside.yml leads out of the document's directory or origin, and is not followed; the operation is left out",
        "cloud.yaml#/paths/~1linked/get: linked.yml cannot be read: it is outside of the document's directory; the operation is left out",
    ] {
        assert!(checked.contains(problem), "{problem} in {checked}");
    }
    let server = world.serve();
    let mut client = server.client();
    assert_eq!(client.tool_names(), ["cloud__echo", "cloud__getDroplet"]);
    let schema = client.tool("cloud__getDroplet")["inputSchema"].clone();
    assert_eq!(schema["required"], json!(["id"]), "{schema}");
    assert_eq!(schema["$defs"]["Size"]["enum"], json!(["s", "l"]), "{schema}");
    let found = client.call("cloud__getDroplet", json!({"id": 7, "size": "l"}));
    assert_eq!(found.structured()["path"], "/droplets/7?size=l", "{}", found.json);
    assert!(client.call("cloud__getDroplet", json!({"id": 7, "size": "m"})).is_error());
    let echoed = client.call("cloud__echo", json!({"name": "a", "parent": {"name": "b"}}));
    assert_eq!(echoed.structured(), &json!({"name": "a", "parent": {"name": "b"}}), "{}", echoed.json);
    assert!(client.call("cloud__echo", json!({"parent": {"name": 1}})).is_error());
}

#[test]
fn skipped_parts_of_a_document_are_named_and_a_refused_document_fails_the_list() {
    let document = "openapi: 3.1.0\ninfo: {title: Odd, version: '1'}\nservers: [{url: 'http://127.0.0.1:1'}]\nwebhooks: {born: {post: {}}}\npaths: {/a: {get: {operationId: a}, trace: {operationId: b}, query: {}}, no/slash: {get: {}}}\n";
    let listed = world()
        .file("odd.yaml", document)
        .config("openapi: odd.yaml\nbuiltins: false\n")
        .run(&["list", "--json"]);
    assert_eq!(listed.code, Some(0), "{}", listed.all());
    let rows: Value = serde_json::from_str(&listed.stdout).expect("JSON alone");
    assert!(rows.as_array().is_some_and(|rows| rows.iter().any(|row| row["id"] == "odd.a")), "{rows}");
    for place in [
        "odd.yaml#/paths/~1a/trace: TRACE is not supported",
        "odd.yaml#/paths/~1a/query: query is not a supported method",
        "odd.yaml#/paths/no~1slash: a path has to begin with /",
        "odd.yaml#/webhooks: webhooks are left out: born",
    ] {
        assert!(listed.stderr.contains(place), "{place} in {}", listed.stderr);
    }
    let refused = world().file("old.json", r#"{"swagger": "2.0"}"#).config("openapi: old.json\n");
    let listed = refused.run(&["list", "--json"]);
    assert_eq!(listed.code, Some(1), "{}", listed.all());
    assert!(serde_json::from_str::<Value>(&listed.stdout).is_ok(), "{}", listed.stdout);
    assert!(listed.stderr.contains("this is Swagger 2.0"), "{}", listed.stderr);
}

#[test]
fn check_reads_a_document_at_an_address() {
    let document = json!({"openapi": "3.1.0", "info": {"title": "Far", "version": "1"},
        "paths": {"/hello": {"get": {"operationId": "hello"}, "trace": {"operationId": "b"}}}});
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(orla_e2e::TEST_TIMEOUT)).unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count > 0) {
            head.push(byte[0]);
        }
        let body = document.to_string();
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    });
    let policy = "policy:\n  - {capabilities: ['stock.*'], allow: ['*']}\n  - {capabilities: ['stock.helo'], allow: ['*']}\n";
    let config = format!(
        "builtins: false\nopenapi: [{{openapi: 'http://{address}/openapi.json', name: stock}}]\n{policy}"
    );
    let world = world().config(&config);
    let checked = world.run(&["check"]);
    serving.join().unwrap();
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.stdout.contains(", 1 tool,"), "{checked:?}");
    assert!(checked.stderr.contains("#/paths/~1hello/trace: TRACE is not supported"), "{checked:?}");
    assert!(checked.stderr.contains("policy[1].capabilities: `stock.helo` fits no"), "{checked:?}");
    assert!(!checked.stderr.contains("`stock.*` fits no"), "{checked:?}");
    // No process listens there any more.
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(
        checked.stderr.contains("orla.yaml:2:") && checked.stderr.contains("openapi: "),
        "{checked:?}"
    );
    assert!(!checked.stderr.contains("fits no"), "{checked:?}");
    let server = world.serve();
    server.log_says(&["fetching an OpenAPI document failed"]);
    assert!(!server.log().contains("fits no"), "{}", server.log());
}

#[test]
fn a_document_may_be_at_an_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let document = json!({"openapi": "3.1.0", "info": {"title": "Far", "version": "1"},
        "paths": {"/hello": {"get": {"operationId": "hello"}}}});
    let body = document.to_string();
    // The document, and then the operation at a server that is relative to it.
    let answers = [body, r#"{"hello": 1.0}"#.to_owned()];
    let serving = thread::spawn(move || {
        for body in answers {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(orla_e2e::TEST_TIMEOUT)).unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count > 0) {
                head.push(byte[0]);
            }
            let length = body.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
            );
            stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        }
    });
    let server = world().config(&format!("openapi: http://{address}/openapi.json\n")).serve();
    let mut client = server.client();
    let result: Value = orla_e2e::eventually("the document is imported", || {
        client.try_call("far__hello", json!({})).ok().map(|result| result.structured().clone())
    });
    assert_eq!(result.to_string(), r#"{"hello":1.0}"#);
    serving.join().unwrap();
}
