//! One capability over several providers (RFC 1 §9.2).

use orla_e2e::{Client, eventually};
use serde_json::{Value, json};

use crate::upstream::Upstream;
use crate::world;

/// Returns a server that answers `GET /` and `POST /` with this text.
fn texts(text: &str) -> Upstream {
    let server = Upstream::start();
    server.set("GET /", 200, &json!(text).to_string());
    server.set("POST /", 200, &json!(text).to_string());
    server
}

fn http(url: &str, method: &str) -> String {
    format!("{{type: http, method: {method}, base_url: '{url}', timeout_ms: 2000}}")
}

/// Returns the address of a port that nothing listens on.
fn refusing() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("the address of a listener").port();
    drop(listener);
    format!("http://127.0.0.1:{port}")
}

fn call_text(client: &mut Client, name: &str, input: Value) -> String {
    let result = client.call(name, input);
    assert!(!result.is_error(), "{}", result.sentence());
    result.text().trim_matches('"').to_owned()
}

fn row(server: &orla_e2e::Server, name: &str) -> Value {
    let status = server.status();
    let rows = status["capabilities"].as_array().expect("a list of capabilities");
    rows.iter().find(|row| row["name"] == name).expect("a row of that name").clone()
}

#[test]
fn failover_uses_the_first_provider_that_can_be_reached() {
    let (two, gone) = (texts("two"), refusing());
    let server = world()
        .config(&format!(
            "capabilities:\n- {{id: over, route: failover, providers: [{}, {}]}}\n",
            http(&gone, "POST"),
            http(&two.url(), "POST")
        ))
        .serve();
    let mut client = server.client();
    for _ in 0..7 {
        assert_eq!(call_text(&mut client, "over", json!({})), "two");
    }
    let row = row(&server, "over");
    assert_eq!(row["route"], "failover");
    let (first, second) = (&row["providers"][0], &row["providers"][1]);
    // Five failures in a row open its breaker; then it is not tried.
    assert_eq!((&first["state"], &first["calls"]), (&json!("unavailable"), &json!(5)), "{row}");
    assert!(first["last_failure"].as_str().unwrap().contains("refuses the connection"), "{row}");
    assert_eq!((&second["state"], &second["used_last"]), (&json!("available"), &json!(true)), "{row}");
    assert_eq!(second["calls"], 7, "{row}");
}

#[test]
fn only_idempotent_calls_move_to_another_provider_after_they_may_have_run() {
    let (failing, other) = (Upstream::start(), texts("other"));
    failing.set("POST /", 503, "{}");
    let providers = format!("[{}, {}]", http(&failing.url(), "POST"), http(&other.url(), "POST"));
    let server = world()
        .config(&format!(
            "capabilities:\n- {{id: once, providers: {providers}}}\n- {{id: again, annotations: {{idempotentHint: true}}, providers: {providers}}}\n"
        ))
        .serve();
    let mut client = server.client();
    let result = client.call("once", json!({}));
    assert!(result.is_error() && result.sentence().contains("503"), "{}", result.sentence());
    assert_eq!(call_text(&mut client, "again", json!({})), "other");
}

#[test]
fn round_robin_takes_providers_in_turn_and_the_same_value_goes_to_the_same_provider() {
    let (one, two) = (texts("one"), texts("two"));
    let providers = format!("[{}, {}]", http(&one.url(), "GET"), http(&two.url(), "GET"));
    let server = world()
        .config(&format!(
            "capabilities:\n- {{id: round, route: round_robin, providers: {providers}}}\n- {{id: busy, route: least_busy, providers: {providers}}}\n- {{id: by, route: {{by: '(:user input)'}}, providers: {providers}}}\n"
        ))
        .serve();
    let mut client = server.client();
    let all: Vec<String> = (0..6).map(|_| call_text(&mut client, "round", json!({}))).collect();
    assert_eq!(all, ["one", "two", "one", "two", "one", "two"]);
    assert_eq!(call_text(&mut client, "busy", json!({})), "one");
    let by = |client: &mut Client, user: u32| call_text(client, "by", json!({ "user": user }));
    let firsts: Vec<String> = (0..12).map(|user| by(&mut client, user)).collect();
    let seconds: Vec<String> = (0..12).map(|user| by(&mut client, user)).collect();
    assert_eq!(firsts, seconds);
    assert!(firsts.contains(&"one".to_owned()) && firsts.contains(&"two".to_owned()), "{firsts:?}");
    eventually("no call runs", || row(&server, "round")["providers"][0]["running"] == 0);
}

#[test]
fn mistakes_in_routes_are_found_before_anything_is_served() {
    let http = http("http://127.0.0.1:1", "GET");
    for (declared, problem) in [
        ("route: sideways".to_owned(), "expected failover, round_robin, least_busy or {by: EXPRESSION}"),
        ("route: {by: '(:user'}".to_owned(), "route.by"),
        (format!("provider: {http}"), "`provider` and `providers` exclude each other"),
    ] {
        let config = format!("capabilities:\n- {{id: x, providers: [{http}], {declared}}}\n");
        let checked = world().config(&config).run(&["check"]);
        assert!(
            checked.all().contains(problem) && checked.all().contains("orla.yaml:2:"),
            "{}",
            checked.all()
        );
    }
    let good =
        format!("capabilities:\n- {{id: x, providers: [{http}, local]}}\n").replace("local", &http);
    let world = world().config(&good);
    let described = world.run(&["describe", "x"]).all();
    assert!(
        described.contains("route        failover")
            && described.contains("providers    http://127.0.0.1:1, "),
        "{described}"
    );
}
