//! The console: its pages, their visibility, and the effects of their forms. `pages` reads HTML as a
//! browser would.

mod pages;

use std::collections::BTreeSet;

use orla_e2e::{Request, Response, Server, eventually};
use pages::Page;
use serde_json::{Value, json};

use crate::mcp_script::mcp_script;
use crate::{sh, world};

const BOOK: &str = r#"#!/bin/sh
# /// orla
# description: Books a seat.
# input_schema:
#   type: object
#   required: [person, mode]
#   additionalProperties: false
#   properties:
#     person:
#       type: object
#       required: [name, address]
#       properties:
#         name: {type: string, minLength: 2}
#         age: {type: integer, minimum: 0}
#         address: {type: object, required: [zip], properties: {zip: {type: string, pattern: "^[0-9]{5}$"}}}
#     mode: {enum: [fast, slow]}
#     tags: {type: array, items: {type: string}}
# ///
cat > booked.json
echo '{"ok": true}'
"#;

/// Texts that would do something on a page that does not escape them.
const HOSTILE: [&str; 12] = [
    "\"><x-pwn a=\"",
    "'><x-pwn a='",
    "<x-pwn onload=alert(1)>",
    "</textarea><x-pwn>",
    "</script><script>alert('x-pwn')</script>",
    "</title><x-pwn>",
    "<img src=x onerror=alert('x-pwn')>",
    "javascript:alert('x-pwn')",
    "\u{202e}<x-pwn>",
    "]]><x-pwn>",
    "--><x-pwn>",
    "\u{1b}[31m<x-pwn>",
];

/// A visitor: a browser without scripts.
struct Visitor<'a> {
    server: &'a Server,
    cookie: String,
}

impl<'a> Visitor<'a> {
    fn of(server: &'a Server) -> Self {
        Self { server, cookie: String::new() }
    }

    fn send(&self, request: Request) -> Response {
        let request = request.header("accept", "text/html").header("cookie", &self.cookie);
        self.server.http().send(&request).expect("an answer")
    }

    fn open(&self, path: &str) -> (Response, Page) {
        let response = self.send(Request::new("GET", path));
        let page = Page::read(&response.text());
        (response, page)
    }

    /// Sends fields as a form does.
    fn post(&self, path: &str, fields: &[(String, String)], origin: &str) -> Response {
        let body: Vec<String> =
            fields.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
        let request = Request::new("POST", path)
            .header("content-type", "application/x-www-form-urlencoded")
            .header("origin", origin)
            .body(body.join("&"));
        self.send(request)
    }

    fn origin(&self) -> String {
        format!("http://{}", self.server.address())
    }

    /// Sends a form of a page with these values, and follows where it leads.
    fn submit(&self, page: &Page, action: &str, values: &[(&str, &str)]) -> (Response, Page) {
        let mut response = self.post(action, &page.fields(action, values), &self.origin());
        if response.status == 303 {
            let place = response.header("location").expect("a place").to_owned();
            response = self.send(Request::new("GET", &place));
        }
        let page = Page::read(&response.text());
        (response, page)
    }

    /// Returns every page that links lead to from the first one.
    fn crawl(&self) -> Vec<(String, Response, Page)> {
        let (mut todo, mut seen, mut pages) = (vec!["/console".to_owned()], BTreeSet::new(), Vec::new());
        while let Some(path) = todo.pop() {
            if !path.starts_with("/console") || !seen.insert(path.clone()) || seen.len() > 60 {
                continue;
            }
            let (response, page) = self.open(&path);
            // An export is a file.
            let is_page = |link: &&String| !link.contains("all=1") && !link.contains("/export");
            todo.extend(page.links.iter().filter(is_page).cloned());
            pages.push((path, response, page));
        }
        pages
    }
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte.is_ascii_alphanumeric() {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

/// Returns a server after some calls, one of which failed.
fn busy() -> Server {
    let server = world()
        .tool("book", BOOK)
        .tool("hello", sh("echo hello"))
        .tool("fails", sh("echo the-reason >&2; exit 3"))
        .config("audit: audit.jsonl\n")
        .serve();
    let mut client = server.client();
    client.call("hello", json!({}));
    client.call("fails", json!({"q": "asked"}));
    client.call("rtfs", json!({"program": "(call :hello {})"}));
    eventually("the calls are kept", || server.http().get("/console?within=1").text().contains("fails"));
    server
}

#[test]
fn every_page_is_sound_and_strict() {
    let server = busy();
    let pages = Visitor::of(&server).crawl();
    assert!(pages.len() >= 6, "{}", pages.len());
    // Absent pages are not linked.
    std::fs::remove_file(server.path("tools/fails")).unwrap();
    server.reload();
    eventually("the tool is gone", || {
        let status = server.http().get("/status").json();
        let rows = status["capabilities"].as_array().cloned().unwrap_or_default();
        !rows.is_empty() && rows.iter().all(|row| row["id"] != "fails")
    });
    for (path, response, _) in Visitor::of(&server).crawl() {
        assert_eq!(response.status, 200, "{path}");
    }
    for (path, response, page) in &pages {
        assert_eq!(response.status, 200, "{path}");
        assert_eq!(page.problems(), Vec::<String>::new(), "{path}");
        let policy = response.header("content-security-policy").unwrap_or_default();
        assert!(
            policy.starts_with("default-src 'none'") && !policy.contains("unsafe"),
            "{path}: {policy}"
        );
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"), "{path}");
        // With `no-referrer`, browsers send `Origin: null` with every form, which is refused.
        assert_eq!(response.header("referrer-policy"), Some("same-origin"), "{path}");
        assert_eq!(response.header("access-control-allow-origin"), None, "{path}");
        for asset in &page.assets {
            assert_eq!(server.http().get(asset).status, 200, "{asset}");
        }
    }
    let all: String = pages.iter().map(|(_, response, _)| response.text()).collect();
    assert!(all.contains("Books a seat.") && all.contains("the-reason"));
}

#[test]
fn browsers_are_led_to_the_console_if_it_is_on() {
    let browser = || Request::new("GET", "/").header("accept", "text/html,*/*;q=0.8");
    let server = world().serve();
    let response = server.http().send(&browser()).unwrap();
    assert_eq!((response.status, response.header("location")), (303, Some("/console")));
    assert_ne!(
        server.http().send(&Request::new("GET", "/").header("accept", "*/*")).unwrap().status,
        303
    );
    server.log_says(&["listening", "/console"]);
    let server = world().config("console: false\n").serve();
    assert_eq!(server.http().send(&browser()).unwrap().status, 404);
    assert_eq!(server.http().get("/console").status, 404);
}

#[test]
fn a_form_calls_and_shows_what_is_wrong_beside_the_field() {
    let server = world().tool("book", BOOK).serve();
    let visitor = Visitor::of(&server);
    let action = "/console/catalogue/book";
    let (_, page) = visitor.open(action);
    let right =
        [("person.name", "Ada"), ("person.age", "7"), ("person.address.zip", "12345"), ("mode", "fast")];
    let mut wrong = right;
    wrong[2].1 = "12x";
    let (response, again) = visitor.submit(&page, action, &wrong);
    assert_eq!(response.status, 422);
    let field = again.control("person.address.zip").expect("the field is there again");
    assert_eq!(field.get("aria-invalid").map(String::as_str), Some("true"));
    let error = field["aria-describedby"].rsplit(' ').next().unwrap();
    assert!(again.text_of(error).contains("12x"), "{}", again.text_of(error));
    assert_eq!(again.value("person.name"), Some("Ada"));
    let (response, page) = visitor.submit(&again, action, &right);
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(page.text.contains("ok") && page.problems().is_empty(), "{}", page.text);
    let booked: Value = serde_json::from_str(&server.read("booked.json")).unwrap();
    assert_eq!(
        booked_input(&booked),
        json!({"person": {"name": "Ada", "age": 7, "address": {"zip": "12345"}}, "mode": "fast"})
    );
    // A button of the form changes the form, and calls no capability.
    let (response, page) =
        visitor.submit(&page_of(&visitor, action), action, &[("_do", "add:tags"), ("tags.0", "a")]);
    assert_eq!(response.status, 200);
    assert!(page.control("tags.1").is_some());
}

#[test]
fn a_field_of_a_group_in_error_names_its_message() {
    let schema = "{type: object, required: [user], properties: {user: {type: object, required: [address], properties: {address: {type: array, minItems: 1, items: {type: object, required: [city], properties: {city: {type: string}}}}}}, way: {oneOf: [{type: object, required: [p], properties: {p: {type: string}}}, {type: string}]}}}";
    let server =
        world().tool("go", format!("#!/bin/sh\n# /// orla\n# input_schema: {schema}\n# ///\n")).serve();
    let visitor = Visitor::of(&server);
    let action = "/console/catalogue/go";
    let (_, page) = visitor.open(action);
    let (response, again) =
        visitor.submit(&page, action, &[("user.address.0.city", ""), ("_as.way", "0"), ("way.p", "")]);
    assert_eq!(response.status, 422, "{}", response.text());
    let field = again.control("user.address.0.city").expect("the field is there again");
    assert_eq!(field.get("aria-invalid").map(String::as_str), Some("true"));
    let error = field["aria-describedby"].rsplit(' ').next().unwrap();
    assert!(again.text_of(error).contains("at least 1 item"), "{}", again.text_of(error));
}

fn page_of(visitor: &Visitor<'_>, path: &str) -> Page {
    visitor.open(path).1
}

/// Returns the arguments of the tool, without the additions of orla.
fn booked_input(booked: &Value) -> Value {
    let mut booked = booked.clone();
    booked.as_object_mut().expect("an object").remove("_meta");
    booked
}

#[test]
fn passwords_and_write_only_fields_are_not_shown_again() {
    const LOGIN: &str = "#!/bin/sh\n# /// orla\n# input_schema: {type: object, properties: {user: {type: string, minLength: 2}, \
        pass: {type: string, format: password, minLength: 8}, key: {type: object, writeOnly: true}}}\n# ///\ncat > got.json\n";
    let server = world().tool("login", LOGIN).serve();
    let visitor = Visitor::of(&server);
    let action = "/console/catalogue/login";
    let page = page_of(&visitor, action);
    for (user, pass) in [("a", "hunter2-hunter2"), ("ada", "hunter2")] {
        let (response, _) = visitor.submit(&page, action, &[("user", user), ("pass", pass)]);
        assert_eq!(response.status, 422);
        assert!(!response.text().contains("hunter2"), "{}", response.text());
    }
    let raw = |input: &str| {
        let mut fields = page.fields(action, &[]);
        fields.retain(|(name, _)| name == "_csrf");
        fields.push(("_raw".to_owned(), input.to_owned()));
        visitor.post(action, &fields, &visitor.origin())
    };
    let input = r#"{"user": "ada", "pass": "hunter2-hunter2", "key": {"pin": "hunter3"}}"#;
    let run = raw(input).header("location").expect("it runs").to_owned();
    assert!(server.read("got.json").contains("hunter2") && server.read("got.json").contains("hunter3"));
    for path in [run.clone(), format!("{action}?run={}", run.rsplit('/').next().unwrap())] {
        let text = visitor.open(&path).0.text();
        assert!(text.contains("ada") && !text.contains("hunter"), "{path}: {text}");
    }
    // The placeholder is not a value.
    let response = raw(r#"{"user": "ada", "pass": "[redacted]"}"#);
    assert!(response.status == 422 && response.text().contains("Enter it"), "{}", response.text());
}

#[test]
fn an_input_that_is_too_large_for_a_form_is_called_as_json() {
    let server = world().tool("book", BOOK).serve();
    let visitor = Visitor::of(&server);
    let action = "/console/catalogue/book";
    let page = page_of(&visitor, action);
    let raw = |input: &str| {
        let mut fields = page.fields(action, &[]);
        fields.retain(|(name, _)| name == "_csrf");
        fields.push(("_raw".to_owned(), input.to_owned()));
        visitor.post(action, &fields, &visitor.origin())
    };
    let tags = "\"tag\",".repeat(60_000);
    let right = format!(
        "{{\"person\":{{\"name\":\"Ada\",\"address\":{{\"zip\":\"12345\"}}}},\"mode\":\"fast\",\"tags\":[{tags}\"z\"]}}"
    );
    assert_eq!(raw(&right).status, 303);
    let response = raw(&right.replace("12345", "12x"));
    let page = Page::read(&response.text());
    assert_eq!((response.status, page.control("person.name").is_some()), (422, false));
    assert!(page.text.contains("12x") && page.text.contains("larger than 256 KiB"));
}

#[test]
fn a_change_needs_its_token_and_its_origin() {
    let server = world().tool("hello", sh("echo hello >> said")).serve();
    let visitor = Visitor::of(&server);
    let action = "/console/catalogue/hello";
    let fields = page_of(&visitor, action).fields(action, &[]);
    let without: Vec<_> = fields.iter().filter(|(name, _)| name != "_csrf").cloned().collect();
    assert_eq!(visitor.post(action, &without, &visitor.origin()).status, 403);
    for origin in ["http://evil.example", "http://localhost:1", "null"] {
        assert_eq!(visitor.post(action, &fields, origin).status, 403, "{origin}");
    }
    assert!(server.path("said").metadata().is_err(), "nothing ran");
    assert_eq!(visitor.post(action, &fields, &visitor.origin()).status, 303);
}

#[test]
fn a_visitor_signs_in_and_sees_its_own() {
    let config = "auth_tokens: {ada: token-of-ada, bob: token-of-bob}\npolicy:\n  - {to: [ada], capabilities: [secret], allow: [\"exec:*\"]}\n  - {to: [bob], capabilities: [open], allow: [\"exec:*\"]}\n";
    let server = world().tool("secret", sh("echo s")).tool("open", sh("echo o")).config(config).serve();
    let mut visitor = Visitor::of(&server);
    let (response, page) = visitor.open("/console");
    assert_eq!(response.status, 401);
    assert!(page.problems().is_empty() && !page.text.contains("secret"), "{:?}", page.problems());
    let sign_in = |visitor: &Visitor<'_>, token: &str| {
        let fields = page.fields("/console/sign-in", &[("token", token)]);
        visitor.post("/console/sign-in", &fields, &visitor.origin())
    };
    assert_eq!(sign_in(&visitor, "wrong").status, 401);
    let response = sign_in(&visitor, "token-of-bob");
    let cookie = response.header("set-cookie").expect("a session").to_owned();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/console"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("token-of-bob"), "{cookie}");
    visitor.cookie = cookie.split(';').next().unwrap().to_owned();
    let (_, page) = visitor.open("/console/catalogue");
    assert!(page.text.contains("open") && !page.text.contains("secret"), "{}", page.text);
    assert_eq!(visitor.open("/console/catalogue/secret").0.status, 404);
    let (response, _) = visitor.submit(&page, "/console/sign-out", &[]);
    assert_eq!(response.status, 401);
    assert_eq!(visitor.open("/console/catalogue").0.status, 401);
}

#[test]
fn nothing_that_a_stranger_sends_is_read_except_for_a_token() {
    let server = world().config("auth_tokens: {ada: token-of-ada}\n").serve();
    let head = |path: &str, length: usize| {
        let address = server.address();
        format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\norigin: http://{address}\r\ncontent-type: application/x-www-form-urlencoded\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    // The answers come although the bodies do not.
    for (path, status) in
        [("/console/programs", 401), ("/console/catalogue/x", 401), ("/console/sign-in", 413)]
    {
        let answer = server.http().raw(head(path, 1_000_000).as_bytes()).unwrap().answer().unwrap();
        assert_eq!(answer.status, status, "{path}");
    }
}

#[test]
fn hostile_text_is_only_text_on_every_page() {
    for texts in HOSTILE.chunks(4) {
        let mut world = world();
        for (number, text) in texts.iter().enumerate() {
            let quoted = serde_json::to_string(text).unwrap();
            let shell = text.replace('\'', "'\\''");
            let tool = format!(
                "#!/bin/sh\n# /// orla\n# description: {quoted}\n# title: {quoted}\n# input_schema: {{type: object, properties: {{{quoted}: {{title: {quoted}, description: {quoted}, enum: [{quoted}]}}}}}}\n# ///\necho '{shell}'; echo '{shell}' >&2; [ {number} -gt 1 ] && exit 1\nexit 0\n"
            );
            world = world.tool(format!("t{number}"), tool);
        }
        let server = world.serve();
        let mut client = server.client();
        for (number, text) in texts.iter().enumerate() {
            client.call(&format!("t{number}"), json!({*text: text}));
        }
        eventually("the calls are kept", || server.http().get("/console").text().contains("t3"));
        for (path, response, page) in Visitor::of(&server).crawl() {
            assert_eq!(page.problems(), Vec::<String>::new(), "{path}");
            assert!(!response.text().contains("<x-pwn"), "{path}");
            // Values of fields are unchanged.
            assert!(!page.text.contains(['\u{202e}', '\u{1b}']), "{path}");
        }
    }
}

#[test]
fn a_call_is_made_again_and_a_running_one_is_cancelled() {
    let server = world().tool("slow", sh("echo x >> runs; [ \"$2\" = fast ] || sleep 60")).serve();
    let visitor = Visitor::of(&server);
    let action = "/console/catalogue/slow";
    let raw = |input: &str| {
        let mut fields = page_of(&visitor, action).fields(action, &[]);
        fields.retain(|(name, _)| name == "_csrf");
        fields.push(("_raw".to_owned(), input.to_owned()));
        visitor.post(action, &fields, &visitor.origin())
    };
    let run = raw(r#"{"how": "slow"}"#).header("location").unwrap().to_owned();
    let page = page_of(&visitor, &run);
    assert!(page.text.contains("running"), "{}", page.text);
    visitor.submit(&page, &format!("{run}/cancel"), &[]);
    eventually("it is cancelled", || page_of(&visitor, &run).text.contains("cancelled"));
    raw(r#"{"how": "fast"}"#);
    let page = page_of(&visitor, "/console");
    let call = page.links.iter().find(|link| link.starts_with("/console/calls/")).unwrap().clone();
    let page = page_of(&visitor, &call);
    assert!(page.text.contains("exit code 0"), "{}", page.text);
    let (response, _) = visitor.submit(&page, &format!("{call}/again"), &[]);
    assert_eq!(response.status, 200);
    eventually("it runs again", || server.read("runs").lines().count() == 3);
}

#[test]
fn the_audit_log_is_shown_checked_and_exported() {
    let server = busy();
    let visitor = Visitor::of(&server);
    let shown = eventually("the calls are in the log", || {
        let (response, _) = visitor.open("/console/audit?capability=fails");
        Some(response.text()).filter(|text| text.contains(">failed<"))
    });
    assert!(shown.contains("whole") && !shown.contains(">hello<"), "{shown}");
    let export = visitor.open("/console/audit/export?event=call&capability=hello").0;
    assert_eq!(export.header("content-type"), Some("application/x-ndjson"));
    let log = server.read("audit.jsonl");
    let exported = export.text();
    let lines: Vec<&str> = exported.lines().collect();
    assert!(
        lines.len() == 2 && lines.iter().all(|line| log.lines().any(|own| own == *line)),
        "{exported}"
    );
    server.write(
        "audit.jsonl",
        log.replace(r#""capability":"fails""#, r#""capability":"nails""#),
        0o600,
    );
    let broken = visitor.open("/console/audit").0.text();
    assert!(broken.contains("broken") && broken.contains("line "), "{broken}");
}

#[test]
fn the_audit_log_is_for_those_whom_the_policy_lets_read_it() {
    let tokens = "audit: audit.jsonl\nauth_tokens: {ada: token-of-ada, bob: token-of-bob}\n";
    let policy = "policy:\n  - {to: [ada], allow: [\"*\"]}\n  - {to: [bob], allow: [\"exec:*\"]}\n";
    for (config, ada, bob) in [(tokens.to_owned(), 404, 404), (format!("{tokens}{policy}"), 200, 404)] {
        let server = world().tool("hello", sh("echo hello")).config(&config).serve();
        for (token, status) in [("token-of-ada", ada), ("token-of-bob", bob)] {
            for path in ["/console/audit", "/console/audit/export"] {
                assert_eq!(server.get_as(path, token).status, status, "{token} {path} {config}");
            }
            let first = server.get_as("/console/catalogue", token).text();
            assert_eq!(first.contains("/console/audit"), status == 200, "{first}");
        }
        assert_eq!(server.http().get("/console/audit").status, 401);
    }
    let without = world().serve();
    assert_eq!(without.http().get("/console/audit").status, 404);
}

#[test]
fn the_policy_explains_who_may_call_what_to_those_who_may_read_it() {
    let config = "auth_tokens: {ada: token-of-ada, bob: token-of-bob}\npolicy:\n  - {to: [ada], allow: [\"*\"]}\n  - {to: [group:ops], allow: [\"exec:*\"]}\n";
    let server = world().tool("deploy", sh("echo done")).config(config).serve();
    let page = |token: &str, question: &str| {
        let response = server.get_as(&format!("/console/policy?{question}"), token);
        assert_eq!(response.status, 200, "{question}");
        Page::read(&response.text())
    };
    let asks = |question: &str| page("token-of-ada", question).text;
    let denied = asks("caller=bob&capability=deploy");
    assert!(denied.contains("bob may not call deploy"), "{denied}");
    assert!(denied.contains("tools/deploy: no rule allows it"), "{denied}");
    let allowed = asks("caller=bob&groups=dev+ops&capability=deploy");
    assert!(allowed.contains("bob may call deploy") && allowed.contains("policy[1]"), "{allowed}");
    assert!(asks("caller=carol&capability=deploy").contains("No token here has this name: carol"));
    assert!(asks("caller=bob&capability=other").contains("Nothing is served as other"));
    let form = page("token-of-ada", "caller=bob&capability=deploy");
    assert!(form.problems().is_empty(), "{:?}", form.problems());
    assert_eq!(form.value("caller"), Some("bob"));
    let hidden = page("token-of-bob", "caller=ada&capability=deploy");
    assert!(hidden.control("caller").is_none() && !hidden.text.contains("ada may"), "{}", hidden.text);
}

#[test]
fn two_calls_are_compared_by_the_places_where_they_differ() {
    let server = world().config("builtins: true\n").serve();
    let mut client = server.client();
    for b in [2, 3] {
        client.call("math__add", json!({"a": 1, "b": b}));
    }
    let mut calls = Value::Null;
    eventually("both calls are kept", || {
        calls = server.http().get("/calls").json();
        calls.as_array().is_some_and(|calls| calls.len() == 2)
    });
    let id = |at: usize| calls[at]["id"].as_str().unwrap().to_owned();
    let page = page_of(&Visitor::of(&server), &format!("/console/calls/{}?with={}", id(1), id(0)));
    assert!(page.problems().is_empty(), "{:?}", page.problems());
    let words: Vec<&str> = page.text.split_whitespace().collect();
    let text = words.join(" ");
    for part in [
        "Another input, another output.",
        "Input: what differs",
        "Place This call The other b 2 3",
        "Output: what differs",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn nodes_are_shown_if_the_server_is_one() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).unwrap();
    let config = format!("cluster: {{nats: 'nats://{free}', name: t, node: alpha}}\n");
    let server = world().tool("hello", sh("echo hello")).config(&config).serve();
    let page = Visitor::of(&server).open("/console/nodes").0.text();
    assert!(page.contains("alpha") && page.contains(">cut off<"), "{page}");
    let without = world().serve();
    assert_eq!(without.http().get("/console/nodes").status, 404);
    assert!(!without.http().get("/console").text().contains("/console/nodes"));
}

#[test]
fn a_program_is_checked_while_it_is_typed() {
    let server = world().tool("hello", sh("cat")).serve();
    let visitor = Visitor::of(&server);
    let (_, page) = visitor.open("/console/programs");
    let wrong = [("program", "(let [a 1]\n  (+ a unknown-name))")];
    let checked = visitor.post(
        "/console/programs/check",
        &page.fields("/console/programs", &wrong),
        &visitor.origin(),
    );
    let text = checked.text();
    assert!(checked.status == 200 && text.contains("unknown-name") && text.contains("2:"), "{text}");
    assert!(!text.contains("<main"), "a part of the page: {text}");
    let right = page.fields("/console/programs", &[("program", "(+ 1 2)")]);
    assert!(
        visitor
            .post("/console/programs/check", &right, &visitor.origin())
            .text()
            .contains("No mistakes")
    );
    // At the place where its visitor types, it is completed.
    let (text, at) = ("(call :hel", "10");
    let begun = page.fields("/console/programs", &[("program", text), ("_at", at)]);
    let offered = visitor.post("/console/programs/check", &begun, &visitor.origin()).text();
    assert!(
        offered.contains(r#"data-write=":hello""#) && offered.contains(r#"data-from="6""#),
        "{offered}"
    );
    // Like every change, the request needs its token. It changes nothing, but checking a program takes
    // resources.
    let fields: Vec<_> = right.into_iter().filter(|(name, _)| name != "_csrf").collect();
    assert_eq!(visitor.post("/console/programs/check", &fields, &visitor.origin()).status, 403);
}

#[test]
fn the_first_page_with_everything_is_small() {
    let server = busy();
    let (response, page) = Visitor::of(&server).open("/console");
    let mut whole = response.text().into_bytes();
    let mut asked = vec![format!("the page: {}", whole.len())];
    for asset in &page.assets {
        let answer = server.http().send(&Request::new("GET", asset).header("accept-encoding", "gzip"));
        let answer = answer.expect("an answer");
        asked.push(format!("{asset}: {} {:?}", answer.body.len(), answer.header("content-encoding")));
        whole.extend(answer.body);
    }
    assert!(page.assets.len() >= 4, "{asked:?}");
    assert!(whole.len() <= 60 << 10, "{} bytes: {asked:?}", whole.len());
}

/// Returns an MCP server that reports its start on standard error.
fn speaks() -> String {
    mcp_script(
        "one",
        r#"print("began as", os.getpid(), file=sys.stderr, flush=True)"#,
        r#"        result = {"content": [{"type": "text", "text": str(os.getpid())}]}"#,
    )
}

#[test]
fn a_process_is_restarted_and_what_it_writes_is_shown_as_it_writes_it() {
    let config = "mcpServers: {far: {command: python3, args: [speaks.py]}}\n";
    let server = world().file("speaks.py", speaks()).config(config).serve();
    eventually("the server is known", || server.client().tool_names().contains(&"far__one".to_owned()));
    let visitor = Visitor::of(&server);
    assert!(
        visitor.open("/console/providers").1.links.contains(&"/console/providers/mcp/far".to_owned())
    );
    let pid = server.client().call("far__one", json!({})).text();
    let (response, page) = visitor.open("/console/providers/mcp/far");
    assert_eq!((response.status, page.problems()), (200, Vec::new()));
    assert!(response.text().contains(&format!("began as {pid}")), "{}", response.text());
    let request =
        Request::new("GET", "/console/providers/mcp/far/live").header("accept", "text/event-stream");
    let mut live = server.http().write(&request).and_then(orla_e2e::Unanswered::head).expect("a stream");
    assert!(live.next_event().expect("an event").expect("an event").contains(&pid));
    let fields = page.fields("/console/providers/mcp/far/restart", &[]);
    let without: Vec<_> = fields.iter().filter(|(name, _)| name != "_csrf").cloned().collect();
    assert_eq!(
        visitor.post("/console/providers/mcp/far/restart", &without, &visitor.origin()).status,
        403
    );
    assert_eq!(server.client().call("far__one", json!({})).text(), pid);
    assert_eq!(
        visitor.post("/console/providers/mcp/far/restart", &fields, &visitor.origin()).status,
        303
    );
    let new = eventually("another process answers", || {
        Some(server.client().call("far__one", json!({})).text()).filter(|new| *new != pid)
    });
    let event = live.next_event().expect("an event").expect("an event");
    assert!(event.contains(&format!("began as {new}")), "{event}");
    assert_eq!(visitor.open("/console/providers/mcp/near").0.status, 404);
    assert_eq!(visitor.open("/console/providers/tool/far").0.status, 404);
}

#[test]
fn processes_are_for_those_whom_the_policy_lets_manage_them() {
    let servers = "mcpServers: {far: {command: python3, args: [speaks.py]}}\nauth_tokens: {ada: token-of-ada, bob: token-of-bob}\n";
    let policy = "policy:\n  - {to: [ada], allow: [\"*\"]}\n  - {to: [bob], allow: [\"mcp:far/*\"]}\n";
    for (config, ada, bob) in [(servers.to_owned(), 404, 404), (format!("{servers}{policy}"), 200, 404)]
    {
        let server = world().file("speaks.py", speaks()).config(&config).serve();
        for (token, status) in [("token-of-ada", ada), ("token-of-bob", bob)] {
            let mut client = server.client_as(token);
            eventually("the server is known", || client.tool_names().contains(&"far__one".to_owned()));
            let answer = server.get_as("/console/providers/mcp/far", token);
            assert_eq!(answer.status, status, "{token} {config}");
        }
    }
}
