//! The identity of callers: access tokens of an authorization server, and the tokens that orla makes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use orla_e2e::issuer::{AUDIENCE, Issuer};
use orla_e2e::{Request, Response, Server, eventually};
use serde_json::{Value, json};

use crate::{sh, world};

const ADA: &str = "tok-ada-0123456789abcdef";

fn served(config: &str) -> Server {
    world().tool("a", sh("echo a")).tool("b", sh("echo b")).config(config).serve()
}

fn challenge(response: &Response) -> &str {
    response.header("www-authenticate").unwrap_or_default()
}

#[test]
fn tokens_of_an_authorization_server_say_who_calls_and_rules_name_groups_scopes_and_subjects() {
    let issuer = Issuer::start();
    let policy = "policy:\n- {to: ['group:dev'], capabilities: [a], allow: ['*']}\n\
        - {to: [eve, 'scope:tools:write'], capabilities: [b], allow: ['*']}\n";
    let server = served(&issuer.config("{}", policy));
    for algorithm in ["RS256", "ES256", "EdDSA"] {
        let token = issuer.token(algorithm, |_, claims| claims["aud"] = json!(["x", AUDIENCE]));
        assert_eq!(server.client_as(&token).call("a", json!({})).stdout(), "a\n", "{algorithm}");
        assert_eq!(server.session_as(&token).call("a", json!({})).stdout(), "a\n", "{algorithm}");
    }
    assert_eq!(issuer.key_requests(), 1);
    for (subject, groups, scope, tools) in [
        ("ada", &["dev"][..], "", &["a"][..]),
        ("eve", &["dev"], "", &["a", "b"]),
        ("eve", &[], "", &["b"]),
        ("bob", &[], "tools:read tools:write", &["b"]),
        ("bob", &["devs"], "tools", &[]),
        ("group:dev", &[], "", &[]),
        ("anonymous", &["group:dev"], "", &[]),
    ] {
        let token = issuer.token_of(subject, groups, scope);
        assert_eq!(server.client_as(&token).tool_names(), tools, "{subject} {groups:?} {scope}");
    }
    assert!(!server.log().contains(&issuer.token("EdDSA", |_, _| {})[..200]));
}

#[test]
fn a_caller_without_a_token_is_led_to_the_authorization_server() {
    let issuer = Issuer::start();
    let server = served(&issuer.config("{'tools:run': [exec], admin: ['*']}", ""));
    for path in ["", "/mcp"] {
        let answer = server.http().get(&format!("/.well-known/oauth-protected-resource{path}"));
        let metadata: Value = serde_json::from_str(&answer.text()).expect("JSON");
        assert_eq!((answer.status, &metadata["resource"]), (200, &json!(AUDIENCE)));
        assert_eq!(metadata["authorization_servers"], json!([issuer.url]));
        assert_eq!(metadata["scopes_supported"], json!(["tools:run", "admin"]));
    }
    for path in ["/status", "/metrics", "/nowhere", "/console", "/.well-known/agent-card.json"] {
        let answer = server.http().get(path);
        let challenge = challenge(&answer);
        assert_eq!(answer.status, 401, "{path}");
        assert!(challenge.contains("/.well-known/oauth-protected-resource/mcp\""), "{challenge}");
        assert!(
            challenge.contains("scope=\"tools:run admin\"") && !challenge.contains("error="),
            "{challenge}"
        );
    }
    assert!(challenge(&server.get_as("/status", "x.y.z")).contains("error=\"invalid_token\""));
    assert_eq!(server.http().get("/healthz").status, 200);
    let card = server.get_as("/.well-known/agent-card.json", &issuer.token_of("ada", &[], ""));
    assert!(
        card.text().contains(&format!("{}/.well-known/openid-configuration", issuer.url)),
        "{}",
        card.text()
    );
}

#[test]
fn a_request_without_a_valid_token_is_refused_before_its_body_comes() {
    let issuer = Issuer::start();
    let server = served(&issuer.config("{}", ""));
    let expired = issuer.token("ES256", |_, claims| claims["exp"] = json!(1));
    for path in ["/mcp", "/rtfs", "/a2a", "/api/a", "/tasks", "/nowhere"] {
        for credential in [String::new(), format!("authorization: Bearer {expired}\r\n")] {
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
                 content-length: 1000\r\n{credential}\r\n",
                server.address()
            );
            let answer = server.http().raw(head.as_bytes()).and_then(orla_e2e::Unanswered::answer);
            assert_eq!(answer.expect("an answer").status, 401, "{path} {credential}");
        }
    }
}

#[test]
fn a_connection_is_used_again_after_a_refusal_whose_body_came_late() {
    let issuer = Issuer::start();
    let server = served(&issuer.config("{}", ""));
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let head = |method: &str, length: usize| {
        format!(
            "{method} /mcp HTTP/1.1\r\nhost: {}\r\ncontent-length: {length}\r\n\r\n",
            server.address()
        )
    };
    let answered = |stream: &mut TcpStream| {
        let (mut answer, end) = (Vec::new(), b"a valid bearer token is required\n");
        while !answer.ends_with(end) {
            let mut part = [0; 4096];
            let length = stream.read(&mut part).expect("an answer");
            assert!(length > 0, "the connection was closed: {}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&part[..length]);
        }
    };
    for _ in 0..3 {
        stream.write_all(head("POST", 100_000).as_bytes()).unwrap();
        answered(&mut stream);
        stream.write_all(&[b'x'; 100_000]).unwrap();
    }
    stream.write_all(head("GET", 0).as_bytes()).unwrap();
    answered(&mut stream);
}

#[test]
fn a_token_that_is_bound_to_a_key_is_let_in_with_a_new_proof_for_each_request() {
    let issuer = Issuer::start();
    let policy = "allowed_hosts: [orla.test]\naudit: audit.jsonl\npolicy: [{to: [ada], allow: ['*']}]\n";
    let server = served(&issuer.config("{}", policy));
    // The other signer is the client, whose key the authorization server has put into the token.
    let client = &issuer.other;
    let thumbprint = client.thumbprint();
    let token = issuer.token("EdDSA", |_, claims| claims["cnf"] = json!({"jkt": thumbprint}));
    let base = format!("http://{}", server.address());
    let ask = |method: &str, path: &str, proofs: &[&str]| {
        let request = Request::new(method, path).header("content-type", "application/json");
        let request = request.header("authorization", &format!("DPoP {token}"));
        let request = proofs.iter().fold(request, |request, proof| request.header("dpop", proof));
        let body = if method == "POST" { r#"{"call": "a"}"# } else { "" };
        server.http().send(&request.body(body)).expect("an answer")
    };
    let proof = |method: &str, path: &str| client.proof(method, &format!("{base}{path}"), &token);
    let first = proof("GET", "/status");
    assert_eq!(ask("GET", "/status?verbose=1", &[&first]).status, 200);
    let call = ask("POST", "/rtfs", &[&proof("POST", "/rtfs")]);
    assert!(call.status == 200 && call.text().contains("a\\n"), "{}", call.text());
    // Behind a proxy, the address is that of the audience.
    let proxied = client.proof("GET", "https://orla.test/status", &token);
    let request = Request::new("GET", "/status").header("host", "orla.test").header("dpop", &proxied);
    let request = request.header("authorization", &format!("DPoP {token}"));
    let proxied = server.http().send(&request).expect("an answer");
    assert_eq!(proxied.status, 200, "{}", proxied.text());

    let get = || proof("GET", "/status");
    let of_another_token = client.proof("GET", &format!("{base}/status"), "another");
    let of_another_key = issuer.own.proof("GET", &format!("{base}/status"), &token);
    let two = [get(), get()];
    for (name, path, proofs, reason) in [
        ("a replayed one", "/status", vec![&*first], "the DPoP proof was used before"),
        ("of another method", "/status", vec![&proof("POST", "/status")], "for another request"),
        ("of another address", "/metrics", vec![&get()], "for another request"),
        ("of another token", "/status", vec![&of_another_token], "for another token"),
        ("of another key", "/status", vec![&of_another_key], "of another key"),
        ("two", "/status", vec![&two[0], &two[1]], "several DPoP proofs"),
        ("none", "/status", vec![], "there is no DPoP proof"),
    ] {
        let answer = ask("GET", path, &proofs);
        assert_eq!(answer.status, 401, "{name}: {}", answer.text());
        assert!(challenge(&answer).contains("error=\"invalid_token\""), "{name}");
        eventually("the reason is recorded", || server.read("audit.jsonl").contains(reason));
    }
    assert_eq!(server.get_as("/status", &token).status, 401, "it is no bearer token");
    assert_eq!(ask("GET", "/status", &[&get()]).status, 200);
}

#[test]
fn a_revealing_policy_names_the_missing_scope() {
    let issuer = Issuer::start();
    let scopes = "{'tools:run': ['exec:*'], admin: ['*']}";
    let policy = "audit: audit.jsonl\npolicy:\n- {to: ['*'], capabilities: [a], allow: ['*']}\n";
    let server = served(&issuer.config(scopes, &format!("policy_reveal: true\n{policy}")));
    let (poor, rich) = (issuer.token_of("ada", &[], ""), issuer.token_of("ada", &[], "tools:run"));
    assert_eq!(server.client_as(&poor).begin_call("b", json!({})).status(), 403);
    let call = server.session_as(&poor).post("tools/call", Some("b"));
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "b"}});
    let answer = server.http().send(&call.body(body.to_string())).expect("an answer");
    let header = challenge(&answer);
    assert_eq!(answer.status, 403, "{}", answer.text());
    assert!(header.contains(r#"error="insufficient_scope", scope="tools:run""#), "{header}");
    assert!(header.contains("resource_metadata="), "{header}");
    let answer = server.send_as("POST", "/rtfs", &poor, r#"{"call": "b"}"#);
    assert_eq!((answer.status, challenge(&answer).contains("scope=\"tools:run\"")), (403, true));
    // A scope that grants everything needs no other beside it.
    let admin = issuer.token_of("ada", &[], "admin");
    for token in [&rich, &admin] {
        assert_eq!(server.send_as("POST", "/rtfs", token, r#"{"call": "b"}"#).status, 200);
    }
    assert_eq!(server.client_as(&rich).call("b", json!({})).stdout(), "b\n");
    eventually("the denial is recorded", || server.read("audit.jsonl").contains("\"denied\""));
    drop(server);
    let server = served(&issuer.config(scopes, policy));
    let hidden = server.client_as(&poor).try_call("b", json!({})).unwrap_err();
    assert_eq!(
        hidden.message.replace('b', "z"),
        server.client_as(&poor).try_call("z", json!({})).unwrap_err().message.replace('b', "z")
    );
    assert_eq!(server.send_as("POST", "/rtfs", &poor, r#"{"call": "b"}"#).status, 200);
}

#[test]
fn keys_rotate_and_outlive_their_issuer() {
    let issuer = Issuer::start();
    let server = served(&issuer.config("{}", ""));
    let good = issuer.token("RS256", |_, _| {});
    assert_eq!(server.get_as("/status", &good).status, 200);
    issuer.add_other_key("new");
    let rotated = issuer.signed_by(&issuer.other, "RS256", |header, _| header["kid"] = json!("new"));
    assert_eq!(server.get_as("/status", &rotated).status, 200);
    assert_eq!(issuer.key_requests(), 2);
    for id in ["x", "y"] {
        let unknown = issuer.signed_by(&issuer.other, "RS256", |header, _| header["kid"] = json!(id));
        assert_eq!(server.get_as("/status", &unknown).status, 401);
    }
    assert_eq!(issuer.key_requests(), 2);
    issuer.go();
    let another = issuer.token("EdDSA", |_, _| {});
    assert_eq!(server.get_as("/status", &another).status, 200);
}

#[test]
fn several_issuers_are_distinguished_and_opaque_tokens_are_introspected() {
    let (one, two) = (Issuer::start(), Issuer::start());
    let config = format!(
        "auth:\n  tokens: {{ada: {ADA}}}\n  oauth:\n  - {{issuer: '{0}', audience: '{AUDIENCE}'}}\n  \
         - {{issuer: '{1}', audience: '{AUDIENCE}', prefix: two/, introspection: {{endpoint: '{1}/introspect', client_id: orla, client_secret: s3cret}}}}\n\
         policy:\n- {{to: [ada], capabilities: [a], allow: ['*']}}\n- {{to: ['two/*'], capabilities: [b], allow: ['*']}}\n",
        one.url, two.url
    );
    let server = served(&config);
    for (token, tool) in [
        (ADA.to_owned(), "a"),
        (one.token_of("ada", &[], ""), "a"),
        (two.token_of("ada", &[], ""), "b"),
        ("opaque-and-active".to_owned(), "b"),
    ] {
        assert_eq!(server.client_as(&token).tool_names(), [tool]);
    }
    assert_eq!(server.get_as("/status", "opaque-and-forged").status, 401);
    let swapped = two.token("ES256", |_, claims| claims["iss"] = json!(one.url));
    assert_eq!(server.get_as("/status", &swapped).status, 401);
    // The session of a token is not accessible to a subject of the same name.
    let of_token = server.session_as(ADA);
    let mut of_subject = server.client_as(&one.token_of("ada", &[], ""));
    of_subject.set_session(of_token.session());
    let request = of_token.post("tools/list", None);
    let headers = request.headers.into_iter().filter(|(name, _)| name != "authorization");
    let stolen = Request { headers: headers.collect(), ..request };
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    let stolen = stolen.bearer(&one.token_of("ada", &[], "")).body(body);
    let answer = server.http().send(&stolen).expect("an answer");
    assert_eq!(answer.status, 404, "{}", answer.text());
}

#[test]
fn a_new_secret_of_a_token_changes_no_rights() {
    let world = world();
    let create = |more: &[&str]| {
        let made = world.run(&[&["token", "create", "--name", "ci"], more].concat());
        assert_eq!(made.code, Some(0), "{made:?}");
        let listed = world.run(&["token", "list", "--json"]).stdout;
        let tokens: Value = serde_json::from_str(&listed).unwrap();
        (made.stdout, json!([tokens[0]["scopes"], tokens[0]["expires_at"]]))
    };
    let (first, rights) = create(&["--scope", "deploy", "--expires", "30d"]);
    let (second, kept) = create(&["--replace"]);
    assert_ne!(first, second);
    assert_eq!((&kept, &kept[0]), (&rights, &json!(["deploy"])));
    let (_, changed) = create(&["--replace", "--scope", "read"]);
    assert_eq!((&changed[0], &changed[1]), (&json!(["read"]), &rights[1]));
}

#[test]
fn a_token_that_orla_makes_is_shown_once_and_ends_with_its_sessions() {
    let server = served(&format!(
        "watch: true\nauth_tokens: {{ada: {ADA}}}\naudit: audit.jsonl\npolicy:\n- {{to: [ada, 'token:ci'], allow: ['*']}}\n"
    ));
    let made = server.run(&["token", "create", "--name", "ci", "--scope", "deploy", "--expires", "30d"]);
    let secret = made.stdout.trim().to_owned();
    assert_eq!((made.code, secret.len()), (Some(0), 48), "{made:?}");
    assert!(!server.read("orla.tokens.json").contains(&secret));
    eventually("it is accepted", || server.get_as("/status", &secret).status == 200);
    let mut open = server.session_as(&secret);
    assert_eq!(open.call("a", json!({})).stdout(), "a\n");
    assert_eq!(server.run(&["check"]).stderr, "");
    let lax = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(server.path("orla.tokens.json"), lax).unwrap();
    let checked = server.run(&["check"]);
    assert!(
        checked.code == Some(0) && checked.stderr.contains("(mode 644); run chmod 600"),
        "{checked:?}"
    );
    assert_ne!(server.run(&["token", "create", "--name", "ci"]).code, Some(0), "the name is taken");
    for name in ["ada", "anonymous", "group:x", "c*"] {
        assert_eq!(server.run(&["token", "create", "--name", name]).code, Some(2), "{name}");
    }
    let listed = server.run(&["token", "list"]).stdout;
    assert!(listed.contains("ci") && listed.contains("deploy") && !listed.contains(&secret), "{listed}");
    assert_eq!(server.run(&["token", "revoke", "ci"]).code, Some(0));
    assert_eq!(server.run(&["token", "revoke", "ci"]).code, Some(1));
    eventually("it is refused", || server.get_as("/status", &secret).status == 401);
    let refused = open.try_call("a", json!({})).unwrap_err();
    assert!([401, 404].contains(&refused.status), "{refused:?}");
    assert!(!server.log().contains(&secret));
    let audited = || server.read("audit.jsonl");
    eventually("the refusal is recorded", || audited().contains("\"unauthenticated\""));
    assert!(audited().contains("the token is unknown"));
}

#[test]
fn a_replaced_token_is_refused_by_a_running_server_and_its_sessions_end() {
    let server = served(&format!("watch: true\nauth_tokens: {{ada: {ADA}}}\n"));
    let create = |more: &[&str]| {
        let made = server.run(&[&["token", "create", "--name", "ci"], more].concat());
        assert_eq!(made.code, Some(0), "{made:?}");
        made.stdout.trim().to_owned()
    };
    let first = create(&[]);
    eventually("it is accepted", || server.get_as("/status", &first).status == 200);
    let mut open = server.session_as(&first);
    let session = open.session().map(str::to_owned);
    assert_eq!(open.call("a", json!({})).stdout(), "a\n");
    let second = create(&["--replace"]);
    eventually("the new secret is accepted", || server.get_as("/status", &second).status == 200);
    assert_eq!(server.get_as("/status", &first).status, 401);
    assert_eq!(open.try_call("a", json!({})).unwrap_err().status, 401);
    // The session does not go on under the new secret.
    let mut renewed = server.session_as(&second);
    let own = renewed.session().map(str::to_owned);
    renewed.set_session(session.as_deref());
    eventually("the session has ended", || {
        renewed.try_call("a", json!({})).is_err_and(|refused| refused.status == 404)
    });
    renewed.set_session(own.as_deref());
    assert_eq!(renewed.call("a", json!({})).stdout(), "a\n");
}

#[test]
fn a_policy_explains_which_rule_decides() {
    let issuer = Issuer::start();
    let policy = "policy:\n- {to: ['group:dev'], capabilities: [a], allow: ['*']}\n\
        - {to: [eve], allow: ['*']}\n- {to: [eve], capabilities: [a], deny: ['*']}\n";
    let world = world().tool("a", sh("echo a")).tool("b", sh("echo b"));
    let world = world.config(&issuer.config("{run: [exec]}", policy));
    for (words, verdict, why) in [
        (&["eve", "b"][..], "eve may call b", "policy[1]"),
        (&["eve", "a"], "eve may not call a", "policy[2]"),
        (&["bob", "a", "--group", "dev"], "bob may call a", "policy[0]"),
        (&["bob", "b"], "bob may not call b", "with the scope run it may"),
        (&["bob", "b", "--scope", "run"], "bob may call b", "by a scope"),
        (&["anonymous", "b"], "anonymous may not call b", "no rule allows it"),
    ] {
        let explained = world.run(&[&["policy", "explain"][..], words].concat());
        assert_eq!(explained.code, Some(0), "{explained:?}");
        assert!(
            explained.stdout.contains(verdict) && explained.stdout.contains(why),
            "{}",
            explained.stdout
        );
    }
    assert_eq!(world.run(&["policy", "explain", "eve", "nothing"]).code, Some(1));
    let tokens = "auth_tokens: {eve: 0123456789abcdef}\n";
    let world = self::world().tool("b", sh("echo b")).config(tokens);
    let explain = |name: &str| world.run(&["policy", "explain", name, "b"]).stderr;
    assert_eq!(explain("evee").trim(), "No token here has this name: evee");
    assert_eq!(explain("eve"), "");
}
