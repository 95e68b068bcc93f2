//! The routes besides MCP over HTTP, and their callers.

use orla_e2e::{Client, Request, eventually};
use serde_json::{Value, json};

use crate::{sh, world};

#[test]
fn status_shows_the_version_the_snapshot_and_every_capability() {
    let server = world().tool("ls.sh", sh("ls")).tool("plain", "echo hi\n").serve();
    let status = server.status();
    assert!(status["version"].as_str().is_some_and(|version| !version.is_empty()), "{status}");
    assert!(status["uptime_ms"].is_u64(), "{status}");
    let generation = status["generation"].as_u64().unwrap();
    let capabilities = status["capabilities"].as_array().unwrap();
    let names: Vec<_> =
        capabilities.iter().map(|capability| capability["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ls", "plain"]);
    let ls = &capabilities[0];
    assert_eq!(ls["kind"], "tool", "{ls}");
    assert!(ls["provider"].is_string(), "{ls}");
    assert!(ls["source"].as_str().is_some_and(|source| source.ends_with("ls.sh")), "{ls}");
    assert_eq!(ls["interpreter"], "sh", "{ls}");
    assert!(ls.get("pid").is_none_or(Value::is_null), "no process of its own: {ls}");
    server.reload();
    assert!(server.generation() > generation);
}

#[test]
fn liveness_readiness_and_metrics_are_served() {
    let server = world().tool("t", sh("exit $2")).serve();
    let mut http = server.http();
    assert_eq!(http.get("/healthz").status, 200);
    assert_eq!(http.get("/readyz").status, 200);
    let mut client = server.client();
    for code in [0, 0, 3] {
        client.call("t", json!({"code": code}));
    }
    eventually("the calls are counted", || {
        let metrics = server.http().get("/metrics");
        assert_eq!(metrics.status, 200);
        assert!(
            metrics.header("content-type").is_some_and(|kind| kind.contains("text")),
            "{:?}",
            metrics.headers
        );
        let text = metrics.text();
        let count = |outcome: &str| {
            let labels = format!("capability=\"t\",outcome=\"{outcome}\"");
            let line = text
                .lines()
                .find(|line| line.starts_with("orla_calls_total") && line.contains(&labels))?;
            line.rsplit(' ').next()?.parse::<f64>().ok()
        };
        count("ok") == Some(2.0) && count("failed") == Some(1.0)
    });
    assert_eq!(http.get("/no/such/path").status, 404);
    let post = http.send(&Request::new("POST", "/status").body("x")).unwrap();
    assert_eq!(post.status, 405);
}

#[test]
fn a_command_asks_whether_a_server_answers_without_a_token() {
    let server = world().tool("t", sh("echo")).config("auth_tokens: [token-0123456789ab]\n").serve();
    let url = format!("http://{}", server.address());
    let asked = server.run(&["status", "--health", "--url", &url]);
    assert_eq!((asked.code, asked.stdout.as_str()), (Some(0), "ok\n"), "{asked:?}");
    assert_eq!(server.run(&["status", "--health", "--json", "--url", &url]).code, Some(2));
    let asked = server.run(&["status", "--health", "--url", "http://127.0.0.1:1"]);
    assert_eq!(asked.code, Some(1), "{asked:?}");
}

/// Names that clients make up must not fill the server's memory.
#[test]
fn calls_of_what_does_not_exist_add_no_metrics() {
    let server = world().tool("t", sh("echo")).config("log_level: error\n").serve_quietly();
    let mut client = server.client();
    for n in 0..200 {
        assert_eq!(client.try_call(&format!("made_up_{n}"), json!({})).unwrap_err().code, -32602);
    }
    let metrics = server.http().get("/metrics").text();
    assert!(!metrics.contains("made_up_7"), "{metrics}");
}

/// An error repeats only the beginning of a long name.
#[test]
fn a_name_of_a_megabyte_is_not_sent_back_whole() {
    let server = world().tool("t", sh("echo")).serve();
    let err = server.session().try_call(&"x".repeat(1_000_000), json!({})).unwrap_err();
    assert_eq!(err.code, -32602);
    assert!(err.message.len() < 10_000, "{} bytes", err.message.len());
    assert!(server.log().len() < 100_000, "nor logged: {} bytes", server.log().len());
}

#[test]
fn a_head_request_has_no_body() {
    let server = world().serve();
    // A body would be taken for the next answer.
    let bytes = b"HEAD /healthz HTTP/1.1\r\nhost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let mut pending = server.http().raw(bytes).unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut pending.stream(), &mut text).unwrap();
    assert_eq!(text.matches("HTTP/1.1 200").count(), 2, "{text}");
    let _ = pending.more(b"");
}

#[test]
fn many_requests_go_over_one_connection() {
    let server = world().tool("t", sh("echo ok")).serve();
    let mut client = server.client();
    for _ in 0..200 {
        client.request("tools/list", json!({})).unwrap();
    }
    // Pipelined: two requests in one write.
    let one = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let last = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let pending = server.http().raw(format!("{one}{one}{last}").as_bytes()).unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut pending.stream(), &mut text).unwrap();
    assert_eq!(text.matches("HTTP/1.1 200").count(), 3, "{text}");
}

#[test]
fn a_request_that_waits_for_100_continue_is_served() {
    let server = world().tool("t", sh("echo ok")).serve();
    let client = server.client();
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    let mut request = client.post("ping", None).header("expect", "100-continue");
    request.headers.push(("content-length".to_owned(), body.len().to_string()));
    let mut pending = server.http().write(&request).unwrap();
    pending.more(body.as_bytes()).unwrap();
    assert!(pending.answer().unwrap().status < 500);
}

#[test]
fn with_tokens_everything_but_the_probes_needs_one() {
    let server = world().tool("t", sh("echo ok")).config("auth_tokens: [first, second]\n").serve();
    let mut http = server.http();
    for path in ["/status", "/metrics"] {
        let refused = http.get(path);
        assert_eq!(refused.status, 401, "{path}");
        assert!(
            refused.header("www-authenticate").is_some_and(|value| value.starts_with("Bearer")),
            "{:?}",
            refused.headers
        );
        for token in ["wrong", "firs", "first2", "", "first second"] {
            let request = Request::new("GET", path).bearer(token);
            assert_eq!(http.send(&request).unwrap().status, 401, "{token}");
        }
        for token in ["Bearer first", "bearer second"] {
            let request = Request::new("GET", path).header("authorization", token);
            assert_eq!(http.send(&request).unwrap().status, 200, "{token}");
        }
        let basic = Request::new("GET", path).header("authorization", "Basic Zmlyc3Q6");
        assert_eq!(http.send(&basic).unwrap().status, 401);
    }
    assert_eq!(http.get("/healthz").status, 200);
    let unauthorised = server.client().request("tools/list", json!({})).unwrap_err();
    assert_eq!(unauthorised.status, 401);
    for mut client in [server.client_as("first"), server.session_as("first")] {
        assert_eq!(client.call("t", json!({})).stdout(), "ok\n");
    }
    // A session belongs to the token that opened it.
    let mine = server.session_as("first");
    let mut theirs = Client::resume(server.address(), &mine);
    theirs.token = Some("second".to_owned());
    assert_eq!(theirs.request("tools/list", json!({})).unwrap_err().status, 404);
}

#[test]
fn an_address_that_others_can_reach_needs_tokens_or_a_word_that_it_is_meant() {
    let refused = world().run(&["serve", "--host", "0.0.0.0", "--port", "0"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("auth_tokens") && refused.stderr.contains("allow_unauthenticated"),
        "{refused:?}"
    );
    for config in [
        "host: 0.0.0.0\nallow_unauthenticated: true\n",
        "host: 0.0.0.0\nauth_tokens: [0123456789abcdef]\n",
    ] {
        let server = world().config(config).serve();
        let local = std::net::SocketAddr::from(([127, 0, 0, 1], server.address().port()));
        assert_eq!(orla_e2e::Http::new(local).get("/healthz").status, 200);
    }
    // The command that the error names is not refused by the same error.
    let world = world().config("host: 0.0.0.0\n");
    let refused = world.run(&["list"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("orla token create"), "{refused:?}");
    assert_eq!(world.run(&["token", "create", "--name", "ci"]).code, Some(0));
    assert_eq!(world.run(&["check"]).code, Some(0));
}

#[test]
fn ipv6_loopback_is_served() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return;
    }
    let server = world().tool("t", sh("echo ok")).config("host: '::1'\n").serve();
    assert!(server.address().is_ipv6());
    assert_eq!(server.client().call("t", json!({})).stdout(), "ok\n");
}
