//! No secret gets into a log, an error, the status or the audit log.

use orla_e2e::{Client, Revision};
use serde_json::json;

use crate::audit::reload;
use crate::{sh, world};

#[test]
fn no_secret_is_in_a_log_an_error_a_status_or_the_audit() {
    const SECRETS: [&str; 9] = [
        "CANARY-token",
        "CANARY-env",
        "CANARY-header",
        "CANARY-query",
        "CANARY-bearer",
        "CANARY-password",
        "CANARY-arg",
        "CANARY-template",
        "CANARY-key",
    ];
    let config = r#"
audit: audit.jsonl
log_level: debug
auth_tokens: {ada: "${T_TOKEN}"}
mcpServers:
  gone: {command: ./nothing-there, args: ["--key", "${T_ARG}"], env: {KEY: "${T_ENV}"}}
  dies: {command: ./tools/dies, env: {KEY: "${T_ENV}"}}
  far:
    url: "http://user:${T_PASSWORD}@127.0.0.1:1/mcp?key=${T_QUERY}"
    headers: {Authorization: "Bearer ${T_HEADER}"}
capabilities:
  - id: web.get
    description: Gets.
    provider:
      type: http
      base_url: "http://user:${T_PASSWORD}@127.0.0.1:1/v1?key=${T_QUERY}"
      auth_token: "${T_BEARER}"
      timeout_ms: 2000
      options:
        method: GET
        path: "/x?key=${T_TEMPLATE}"
        headers: {X-Key: "${T_KEY}"}
"#;
    let mut world = world().tool("dies", sh("exit 3")).config(config);
    let names = ["TOKEN", "ENV", "HEADER", "QUERY", "BEARER", "PASSWORD", "ARG", "TEMPLATE", "KEY"];
    for (name, secret) in names.iter().zip(SECRETS) {
        world = world.env(&format!("T_{name}"), secret);
    }
    let mut shown: Vec<(String, String)> = Vec::new();
    for arguments in [
        &["list"][..],
        &["list", "--json", "--all"],
        &["check"],
        &["verify"],
        &["verify", "--json"],
        &["describe", "web.get"],
        &["describe", "web.get", "--json"],
        &["call", "web.get", "--log-level", "debug"],
        &["call", "far__x", "--log-level", "debug"],
        &["search", "gets"],
    ] {
        let finished = world.run(arguments);
        assert_ne!(finished.code, Some(2), "{finished:?}");
        shown.push((format!("orla {}", arguments.join(" ")), finished.all()));
    }
    let mut server = world.serve();
    let mut client = Client::connect(server.address(), Revision::Sessionless, Some("CANARY-token"));
    let listed = client.request("tools/list", json!({}));
    shown.push(("tools/list".to_owned(), format!("{listed:?}")));
    for (name, arguments) in [
        ("web__get", json!({"id": 1})),
        ("capability_describe", json!({"id": "web.get"})),
        ("capability_call", json!({"id": "web.get", "input": {"id": 1}})),
        ("far__x", json!({})),
    ] {
        shown.push((name.to_owned(), format!("{:?}", client.try_call(name, arguments))));
    }
    for path in ["/status", "/metrics", "/readyz"] {
        let request = orla_e2e::Request::new("GET", path).header("Authorization", "Bearer CANARY-token");
        let answer = server.http().send(&request).expect("an answer");
        shown.push((path.to_owned(), answer.text()));
    }
    let wrong = Client::connect(server.address(), Revision::Sessionless, Some("CANARY-key"))
        .request("tools/list", json!({}));
    shown.push(("a wrong token".to_owned(), format!("{wrong:?}")));
    reload(&server);
    server.terminate();
    shown.push(("the log".to_owned(), server.log()));
    shown.push(("the audit".to_owned(), server.read("audit.jsonl")));
    assert!(server.read("audit.jsonl").contains("web.get"), "the calls were made");
    for (place, text) in shown {
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret} in {place}: {text}");
        }
    }
}
