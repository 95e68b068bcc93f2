//! Requests that are wrong, large, slow, foreign or many (rows P1, P2 and P4 to P6).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use orla_e2e::{Request, SESSION_BASED, SESSIONLESS, eventually};
use serde_json::{Value, json};

use crate::{sh, world};

const GROWTH_KIB: u64 = 64 * 1024;

fn post(body: impl Into<Vec<u8>>) -> Request {
    Request::new("POST", "/mcp")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .body(body)
}

fn sessionless(method: &str, body: impl Into<Vec<u8>>) -> Request {
    post(body).header("mcp-protocol-version", SESSIONLESS).header("mcp-method", method)
}

/// P1
#[test]
fn a_body_that_is_no_request_gets_the_error_that_the_specification_names() {
    let mut server = world().tool("t", sh("echo ok")).serve();
    let mut http = server.http();
    for (body, code) in [
        (&b""[..], -32700),
        (b"nonsense", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"", -32700),
        (b"{} {}", -32700),
        (b"\xff\xfe\x00", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\xff\"}", -32700),
        (b"[]", -32600),
        (b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]", -32600),
        (b"7", -32600),
        (b"null", -32600),
        (b"{}", -32600),
        (b"{\"id\":1,\"method\":\"ping\"}", -32600),
        (b"{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":7}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":[1],\"method\":\"ping\"}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}", -32600),
        // A proxy that checks the first value and a server that uses the last would see two requests.
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"method\":\"tools/list\"}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"name\":\"a\",\"name\":\"b\"}}", -32600),
    ] {
        for request in [post(body), sessionless("ping", body)] {
            let shown = String::from_utf8_lossy(body);
            let answer = http.send(&request).unwrap();
            assert_eq!(answer.status, 400, "{shown}: {}", answer.text());
            let json = answer.json();
            assert_eq!(json["error"]["code"], code, "{shown}: {json}");
            assert_eq!(json["jsonrpc"], "2.0");
            assert!(json["error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{json}");
        }
    }
    assert!(server.is_alive());
    assert_eq!(server.client().call("t", json!({})).stdout(), "ok\n");
}

/// P1
#[test]
fn the_headers_of_a_request_have_to_be_those_of_mcp() {
    let server = world().tool("t", sh("echo ok")).serve();
    let mut http = server.http();
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    let without = |name: &str| {
        let mut request = post(ping.as_str());
        request.headers.retain(|(header, _)| header != name);
        request
    };
    let plain = without("content-type").header("content-type", "text/plain");
    assert_eq!(http.send(&plain).unwrap().status, 415);
    assert_eq!(http.send(&without("content-type")).unwrap().status, 415);
    let html = without("accept").header("accept", "text/html");
    assert_eq!(http.send(&html).unwrap().status, 406);
    // The specification requires clients to send the header, and defines no reaction to its absence.
    let answer = http.send(&without("accept")).unwrap();
    assert!([400, 406].contains(&answer.status), "{} {}", answer.status, answer.text());

    let get = http.send(&Request::new("GET", "/mcp").header("accept", "application/json")).unwrap();
    assert!([400, 405, 406].contains(&get.status), "{}", get.status);
    let put = http.send(&Request::new("PUT", "/mcp").body("{}")).unwrap();
    assert_eq!(put.status, 405);
    assert!(put.header("allow").is_some_and(|allowed| allowed.contains("POST")), "{:?}", put.headers);
    let charset = without("content-type").header("content-type", "application/json; charset=utf-8");
    assert_ne!(http.send(&charset).unwrap().status, 415);
    let encoded = post(ping.as_str()).header("content-encoding", "gzip");
    assert_eq!(http.send(&encoded).unwrap().status, 415);
}

/// P1: the requirements of the sessionless revision for every request.
#[test]
fn a_sessionless_request_needs_its_version_and_method_headers() {
    let server = world().tool("t", sh("echo ok")).serve();
    let mut http = server.http();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": SESSIONLESS,
        "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "t", "arguments": {}, "_meta": meta}})
    .to_string();
    let good = sessionless("tools/call", call.as_str()).header("mcp-name", "t");
    assert_eq!(http.send(&good).unwrap().json()["result"]["structuredContent"]["stdout"], "ok\n");
    let without = |name: &str| {
        let mut request = good.clone();
        request.headers.retain(|(header, _)| header != name);
        request
    };
    for (request, code) in [
        (without("mcp-method"), -32020),
        (without("mcp-name"), -32020),
        (without("mcp-name").header("mcp-name", "other"), -32020),
        (without("mcp-method").header("mcp-method", "tools/list"), -32020),
        (without("mcp-protocol-version"), -32020),
        (without("mcp-protocol-version").header("mcp-protocol-version", "2025-11-25"), -32020),
    ] {
        let answer = http.send(&request).unwrap();
        assert_eq!(answer.status, 400, "{request:?}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"], code, "{request:?}: {}", answer.text());
    }
    let unknown = call.replace(SESSIONLESS, "2099-01-01");
    let mut request = without("mcp-protocol-version").header("mcp-protocol-version", "2099-01-01");
    request.body = unknown.into_bytes();
    let answer = http.send(&request).unwrap();
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], -32022, "{}", answer.text());
    let supported = &answer.json()["error"]["data"]["supported"];
    assert!(
        supported.as_array().is_some_and(|list| list.contains(&json!(SESSIONLESS))),
        "{}",
        answer.text()
    );
}

/// P2
#[test]
fn a_body_beyond_the_limit_is_refused_with_413() {
    let server = world().tool("t", sh("cat")).serve();
    let mut client = server.client();
    client.request("tools/list", json!({})).unwrap();
    let before = server.resident_kib();
    let large = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":\"{}\"}}",
        "x".repeat(5_000_000)
    );
    let answer = server.http().send(&post(large)).unwrap();
    assert_eq!(answer.status, 413, "{}", answer.text());
    // Said, and not sent.
    let declared = post("").header("content-length", "1000000000000");
    assert_eq!(server.http().write(&declared).unwrap().answer().unwrap().status, 413);
    let grown = server.peak_resident_kib().saturating_sub(before);
    assert!(grown < GROWTH_KIB, "{grown} KiB more at the peak");

    let server = world().tool("t", sh("echo ok")).config("max_body_bytes: 1000\n").serve();
    assert_eq!(server.client().call("t", json!({})).stdout(), "ok\n");
    let err = server.client().try_call("t", json!({"a": "x".repeat(1000)})).unwrap_err();
    assert_eq!(err.status, 413, "{err}");
}

/// P2
#[test]
fn an_endless_chunked_body_is_refused_with_413_in_bounded_memory() {
    let server = world().serve();
    server.client().request("tools/list", json!({})).unwrap();
    let before = server.resident_kib();
    let request = post("").header("transfer-encoding", "chunked");
    let mut sending = server.http().write(&request).unwrap();
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    // The server answers and closes somewhere on the way.
    for _ in 0..10_000 {
        if sending.more(chunk.as_bytes()).is_err() {
            break;
        }
    }
    // Bytes that were still on their way when it closed may cost the answer; then there was none to lose.
    if let Ok(answer) = sending.answer() {
        assert_eq!(answer.status, 413);
    }
    let grown = server.peak_resident_kib().saturating_sub(before);
    assert!(grown < GROWTH_KIB, "{grown} KiB more at the peak");
    assert_eq!(server.http().get("/healthz").status, 200);
}

/// P2: 5 MiB in chunks, with a pause so that the answer can be read.
#[test]
fn a_chunked_body_counts_as_it_comes() {
    let server = world().config("max_body_bytes: 100000\n").serve();
    let request = post("").header("transfer-encoding", "chunked");
    let mut sending = server.http().write(&request).unwrap();
    let chunk = format!("8000\r\n{}\r\n", " ".repeat(0x8000));
    for _ in 0..4 {
        let _ = sending.more(chunk.as_bytes());
    }
    assert_eq!(sending.answer().unwrap().status, 413);
}

/// P2: a client that sends a byte a second holds a connection only as long as the limits allow.
#[test]
fn a_slow_head_and_a_slow_body_are_cut_off_and_delay_no_other_client() {
    let server = world().tool("t", sh("echo ok")).serve();
    let mut head = server.http().raw(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n").unwrap();
    let mut body = server.http().write(&post("").header("content-length", "1000")).unwrap();
    let (mut head_ended, mut body_answer) = (None, None);
    let started = Instant::now();
    let mut next = Duration::ZERO;
    eventually("both are cut off", || {
        if started.elapsed() > next {
            next += Duration::from_secs(1);
            let _ = head.more(b"x");
            let _ = body.more(b" ");
            assert_eq!(server.client().call("t", json!({})).stdout(), "ok\n", "others are served");
        }
        head_ended = head_ended.or_else(|| readable(head.stream()).then(|| started.elapsed()));
        body_answer = body_answer.or_else(|| readable(body.stream()).then(|| started.elapsed()));
        head_ended.is_some() && body_answer.is_some()
    });
    assert!(head_ended.unwrap() < Duration::from_secs(30), "10 s for a head: {head_ended:?}");
    assert_eq!(body.answer().unwrap().status, 408);
}

fn readable(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket can be asked");
    let answer = stream.peek(&mut [0]);
    stream.set_nonblocking(false).expect("a socket can wait");
    !matches!(answer, Err(err) if err.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn malformed_http_is_refused() {
    let mut server = world().tool("t", sh("echo ok")).serve();
    let floods = [
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03".to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"\r\n\r\n\r\n\r\n".to_vec(),
        [b"GET /".to_vec(), vec![b'a'; 200_000], b" HTTP/1.1\r\n\r\n".to_vec()].concat(),
        [b"GET / HTTP/1.1\r\nhost: localhost\r\n".to_vec(), b"x: y\r\n".repeat(10_000)].concat(),
        [b"GET / HTTP/1.1\r\nhost: localhost\r\nx: ".to_vec(), vec![b'a'; 10_000_000]].concat(),
        b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_vec(),
        b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_vec(),
    ];
    for bytes in floods {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(orla_e2e::TEST_TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(orla_e2e::TEST_TIMEOUT)).unwrap();
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer:.200}");
    }
    assert!(server.is_alive());
    assert_eq!(server.client().call("t", json!({})).stdout(), "ok\n");
}

/// P4
#[test]
fn foreign_origins_and_rebound_hosts_are_refused_on_every_route_before_the_body_is_read() {
    let server = world().tool("t", sh("echo ok")).serve();
    let mut http = server.http();
    let routes = [
        ("POST", "/mcp"),
        ("POST", "/"),
        ("GET", "/status"),
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", "/metrics"),
    ];
    for (method, path) in routes {
        for (name, value) in [
            ("origin", "https://evil.example"),
            ("origin", "http://localhost.evil.example"),
            ("origin", "http://127.0.0.1.evil.example"),
            ("origin", "null"),
            ("origin", "garbage"),
            ("host", "evil.example"),
            ("host", "evil.example:8080"),
            ("host", "localhost.evil.example"),
        ] {
            let request = Request::new(method, path).header(name, value);
            let answer = http.send(&request).unwrap();
            assert_eq!(answer.status, 403, "{method} {path} {name}: {value}: {}", answer.text());
        }
    }
    // Announced and never sent: refused all the same.
    let request = post("").header("content-length", "100").header("origin", "https://evil.example");
    assert_eq!(server.http().write(&request).unwrap().answer().unwrap().status, 403);
    for (name, value) in [
        ("origin", "http://localhost:3000"),
        ("origin", "http://127.0.0.1:8080"),
        ("origin", "http://[::1]:1"),
        ("host", "localhost"),
        ("host", "127.0.0.1:1"),
        ("host", "[::1]:8080"),
        ("host", "LOCALHOST:8080"),
    ] {
        let answer = http.send(&Request::new("GET", "/status").header(name, value)).unwrap();
        assert_eq!(answer.status, 200, "{name}: {value}");
    }
}

/// P4
#[test]
fn configured_hosts_and_origins_are_let_in() {
    let config = "allowed_hosts: [mcp.example.com]\nallowed_origins: ['https://app.example.com']\n";
    let server = world().tool("t", sh("echo ok")).config(config).serve();
    let mut http = server.http();
    let status = |http: &mut orla_e2e::Http, name: &str, value: &str| {
        http.send(&Request::new("GET", "/status").header(name, value)).unwrap().status
    };
    assert_eq!(status(&mut http, "host", "mcp.example.com"), 200);
    assert_eq!(status(&mut http, "host", "mcp.example.com.evil.example"), 403);
    assert_eq!(status(&mut http, "origin", "https://app.example.com"), 200);
    assert_eq!(status(&mut http, "origin", "http://app.example.com"), 403);
    assert_eq!(status(&mut http, "origin", "https://app.example.com:444"), 403);
    let request = Request::new("GET", "/status").header("origin", "https://app.example.com");
    let response = http.send(&request).unwrap();
    let exposed = response.header("access-control-expose-headers").unwrap_or_default();
    for name in ["location", "retry-after", "preference-applied", "www-authenticate"] {
        assert!(exposed.split(", ").any(|it| it == name), "{name}: {exposed}");
    }
}

/// P5
#[test]
fn an_unknown_session_gets_the_error_of_the_specification() {
    let server = world().tool("t", sh("echo ok")).serve();
    let mut client = server.session();
    let own = client.session().unwrap().to_owned();
    for unknown in
        ["unknown", "00000000000000000000000000000000", "../../etc/passwd", &"f".repeat(10_000)]
    {
        client.set_session(Some(unknown));
        let err = client.request("tools/list", json!({})).unwrap_err();
        assert_eq!(err.status, 404, "{err}");
    }
    // No session at all, and no initialize: 400.
    client.set_session(None);
    let err = client.request("tools/list", json!({})).unwrap_err();
    assert_eq!(err.status, 400, "{err}");

    client.set_session(Some(&own));
    assert_eq!(client.tool_names(), ["t"]);
    assert!((200..300).contains(&client.end_session(server.address())));
    let err = client.request("tools/list", json!({})).unwrap_err();
    assert_eq!(err.status, 404, "ended sessions are gone: {err}");
    assert_eq!(client.end_session(server.address()), 404);
}

/// P5
#[test]
fn a_second_initialize_never_touches_another_session() {
    let server = world().tool("t", sh("echo ok")).serve();
    let (first, second) = (server.session(), server.session());
    assert_ne!(first.session(), second.session());
    let params = json!({"protocolVersion": SESSION_BASED, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}});
    let mut again = orla_e2e::Client::resume(server.address(), &first);
    match again.request("initialize", params) {
        Ok(_) => assert_ne!(again.session(), second.session()),
        Err(err) => assert_eq!(err.code, -32600, "{err}"),
    }
    let (mut first, mut second) = (first, second);
    assert_eq!(first.call("t", json!({})).stdout(), "ok\n");
    assert_eq!(second.call("t", json!({})).stdout(), "ok\n");
}

/// P5: requests are answered before `notifications/initialized`, and `initialize` has to make sense.
#[test]
fn an_initialize_that_makes_no_sense_is_a_protocol_error() {
    let server = world().serve();
    let mut client = server.session();
    client.set_session(None);
    for params in [json!({}), json!({"protocolVersion": 7}), json!([])] {
        let body =
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string();
        let answer = server.http().send(&post(body)).unwrap();
        let error = &answer.json()["error"];
        assert!(matches!(error["code"].as_i64(), Some(-32602 | -32600)), "{}", answer.text());
    }
}

/// P6
#[test]
fn ten_thousand_abandoned_sessions_expire_and_their_memory_returns() {
    let server = world().config("session_idle: 1\nlog_level: warn\n").serve_quietly();
    let metric = |name: &str| {
        let text = server.http().get("/metrics").text();
        let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .unwrap_or_else(|| panic!("{name}: {text}"))
    };
    let params = json!({"protocolVersion": SESSION_BASED, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string();
    let before = server.resident_kib();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut http = server.http();
                for _ in 0..2500 {
                    let answer = http.send(&post(body.as_str())).unwrap();
                    assert!(
                        answer.status == 200 && answer.header("mcp-session-id").is_some(),
                        "{}",
                        answer.text()
                    );
                }
            });
        }
    });
    eventually("all sessions expire", || metric("orla_sessions") == 0);
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 32 * 1024, "{grown} KiB are still held");
}

/// P6: a session with a stream open or a call running is in use.
#[test]
fn a_session_in_use_does_not_expire() {
    let server = world()
        .tool("t", sh("while [ ! -e go ]; do sleep 0.02; done; echo ok"))
        .config("session_idle: 1\n")
        .serve();
    let mut calling = server.session();
    let listening = server.session();
    let stream = listening.notification_stream(server.address());
    let pending = calling.begin_call("t", json!({}));
    let started = Instant::now();
    eventually("more than the idle time passes", || started.elapsed() > Duration::from_secs(3));
    server.write("go", "", 0o644);
    assert_eq!(calling.finish_call(pending).unwrap().stdout(), "ok\n");
    drop(stream);
    let mut listening = listening;
    assert_eq!(listening.request("ping", json!({})).unwrap(), json!({}));
    eventually("an idle one does expire", || {
        let mut idle = orla_e2e::Client::resume(server.address(), &calling);
        // Looking at it keeps it: look seldom.
        let started = Instant::now();
        eventually("a while passes", || started.elapsed() > Duration::from_millis(1500));
        idle.request("ping", json!({})).is_err_and(|err| err.status == 404)
    });
}

#[test]
fn an_answer_to_nothing_is_taken_and_forgotten() {
    let server = world().serve();
    let client = server.session();
    let request = |body: Value| {
        let answer = server.http().send(&client.post("", None).body(body.to_string())).unwrap();
        answer.status
    };
    assert_eq!(request(json!({"jsonrpc": "2.0", "id": 99, "result": {}})), 202);
    assert_eq!(request(json!({"jsonrpc": "2.0", "id": 99, "error": {"code": 1, "message": "x"}})), 202);
}
