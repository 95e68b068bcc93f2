//! Sign-ins at HTTP APIs, agents and other instances, with the same mechanism as for MCP servers.

use orla_e2e::{Client, Revision};
use serde_json::json;

use crate::sign_in::{Authority, browse, link_in};
use crate::{sh, world};

const DOCUMENT: &str = "openapi: 3.1.0
info: {title: Shop, version: '1'}
components:
  securitySchemes:
    id: {type: oauth2, flows: {clientCredentials: {tokenUrl: 'http://127.0.0.1:PORT/token', scopes: {read: ''}}}}
paths:
  /api/who: {get: {operationId: who, security: [{id: [read]}], responses: {'200': {description: x}}}}
  /api/open: {get: {operationId: open, responses: {'200': {description: x}}}}
";

/// `auth` of a client that signs in as itself, which knows where.
fn robot(port: u16) -> String {
    format!(
        "{{grant: client_credentials, client_id: robot, client_secret: robots-password, token_endpoint: 'http://127.0.0.1:{port}/token'}}"
    )
}

#[test]
fn apis_agents_and_instances_get_the_tokens_of_their_sign_ins() {
    let authority = Authority::start();
    let port = authority.port;
    // The other instance knows the tokens that the authorization server will issue.
    let known: Vec<String> = (1..=8).map(|n| format!("r{n}: at-robot-{n}")).collect();
    let other = world()
        .tool("hello", sh("echo hello"))
        .config(&format!("auth_tokens: {{{}}}\n", known.join(", ")));
    let other = other.serve();
    let (auth, b) = (robot(port), other.address());
    let server = world()
        .file("shop.yaml", DOCUMENT.replace("PORT", &port.to_string()))
        .config(&format!(
            "capabilities:
- {{id: who, provider: {{type: http, base_url: 'http://127.0.0.1:{port}/api', path: /who, method: GET, body: none, auth: {auth}}}}}
openapi:
- {{openapi: shop.yaml, name: shop, base_url: 'http://127.0.0.1:{port}', auth: {{grant: client_credentials, client_id: robot, client_secret: robots-password}}}}
remotes:
  b: {{url: 'http://{b}', auth: {auth}}}
agents:
  c: {{url: 'http://{b}', auth: {auth}}}
"
        ))
        .serve();
    let mut client = server.client();
    assert_eq!(client.call("who", json!({})).structured()["who"], "robot");
    let found = client.call("shop__who", json!({}));
    assert_eq!(found.structured(), &json!({"who": "robot", "scopes": ["read"]}), "{}", found.json);
    assert!(client.call("shop__open", json!({})).is_error(), "it needs no token, and gets none");
    assert_eq!(client.call("b__hello", json!({})).stdout(), "hello\n");
    let said = client.call("c__hello", json!({"data": {}}));
    assert!(!said.is_error(), "{}", said.json);
    // A token that is not accepted any longer is replaced.
    let before = authority.count("client_credentials");
    authority.get("/revoke");
    assert_eq!(client.call("who", json!({})).structured()["who"], "robot");
    assert_eq!(authority.count("client_credentials"), before + 1);
    let written = format!("{}{}", server.log(), server.status());
    assert!(!written.contains("at-robot-") && !written.contains("robots-password"), "{written}");
}

#[test]
fn each_caller_of_an_api_signs_in_by_a_link_of_its_own() {
    let authority = Authority::start();
    let port = authority.port;
    let server = world()
        .config(&format!(
            "auth_tokens: {{ada: ada-token-0123456789, bob: bob-token-0123456789}}
capabilities:
- {{id: who, provider: {{type: http, base_url: 'http://127.0.0.1:{port}/api', path: /who, method: GET, body: none, auth: {{per: caller}}}}}}
"
        ))
        .serve();
    let call = |token: &str| {
        Client::connect(server.address(), Revision::Sessionless, Some(token)).call("who", json!({}))
    };
    for (name, token) in [("ada", "ada-token-0123456789"), ("bob", "bob-token-0123456789")] {
        let refused = call(token);
        assert!(refused.is_error(), "{}", refused.json);
        let page = browse(&link_in(refused.sentence()), name);
        assert!(page.contains("You are signed in"), "{page}");
        assert_eq!(call(token).structured()["who"], name);
    }
    assert_eq!(call("ada-token-0123456789").structured()["who"], "ada");
    let login = server.run(&["logout", "who", "--caller", "token:ada"]);
    assert!(login.all().contains("signed out of who"), "{}", login.all());
}
