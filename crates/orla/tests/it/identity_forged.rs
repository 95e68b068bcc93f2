//! Forged and wrong access tokens: each is answered alike, on every route, and makes the server send no requests.

use std::collections::BTreeSet;

use orla_e2e::issuer::{AUDIENCE, Issuer, encode, now, part};
use orla_e2e::{Http, Request};
use serde_json::{Value, json};

use crate::{sh, world};

type Forged = (&'static str, String);

/// Tokens in which one claim is wrong.
fn wrong_claims(issuer: &Issuer) -> Vec<Forged> {
    let now = now();
    let with = |name: &str, value: Value| issuer.token("ES256", |_, claims| claims[name] = value);
    let without = |name: &str| {
        issuer.token("ES256", |_, claims| drop(claims.as_object_mut().and_then(|all| all.remove(name))))
    };
    vec![
        ("other issuer", with("iss", json!("http://127.0.0.1:1"))),
        ("issuer with a slash", with("iss", json!(format!("{}/", issuer.url)))),
        ("list of issuers", with("iss", json!([issuer.url]))),
        ("no issuer", without("iss")),
        ("other audience", with("aud", json!("https://other.example"))),
        ("longer audience", with("aud", json!(format!("{AUDIENCE}/x")))),
        ("shorter audience", with("aud", json!(&AUDIENCE[..AUDIENCE.len() - 4]))),
        ("audience in another case", with("aud", json!(AUDIENCE.to_uppercase()))),
        ("audience within a list of lists", with("aud", json!([[AUDIENCE]]))),
        ("no audience", without("aud")),
        ("empty audience", with("aud", json!([]))),
        ("expired by a second beyond the skew", with("exp", json!(now - 61))),
        ("expired", with("exp", json!(1))),
        ("no expiry", without("exp")),
        ("expiry as text", with("exp", json!("never"))),
        ("expiry as a number in a text", with("exp", json!((now + 600).to_string()))),
        ("expiry is null", with("exp", json!(null))),
        ("expiry out of range", with("exp", json!(1e300))),
        ("not valid yet", with("nbf", json!(now + 120))),
        ("not-before as text", with("nbf", json!("now"))),
        ("issued in the future", with("iat", json!(now + 3600))),
        ("no subject", without("sub")),
        ("empty subject", with("sub", json!(""))),
        ("subject is a number", with("sub", json!(7))),
        ("subject with a line break", with("sub", json!("ada\nroot"))),
        ("huge subject", with("sub", json!("x".repeat(300)))),
        ("groups are an object", with("groups", json!({"dev": true}))),
        ("scope is a number", with("scope", json!(1))),
        ("bound to a certificate", with("cnf", json!({"x5t#S256": "a"}))),
        ("bound to a key, without a proof", with("cnf", json!({"jkt": "a"}))),
        ("larger than a token may be", with("pad", json!("x".repeat(60_000)))),
    ]
}

/// Tokens whose header lies.
fn wrong_headers(issuer: &Issuer) -> Vec<Forged> {
    let with = |name: &str, value: Value| issuer.token("RS256", |header, _| header[name] = value);
    let by_other = |change: &dyn Fn(&mut Value)| {
        issuer.signed_by(&issuer.other, "RS256", |header, _| change(header))
    };
    let jwk = issuer.other.jwk("RS256", "k-RS256");
    vec![
        ("id token", with("typ", json!("id+jwt"))),
        ("logout token", with("typ", json!("logout+jwt"))),
        ("proof of possession", with("typ", json!("dpop+jwt"))),
        ("no type", with("typ", json!(null))),
        ("unknown critical extension", with("crit", json!(["x"]))),
        ("empty list of critical extensions", with("crit", json!([]))),
        ("unencoded payload", with("b64", json!(false))),
        ("nested", with("cty", json!("JWT"))),
        ("compressed", with("zip", json!("DEF"))),
        ("key id is a list", with("kid", json!(["k-RS256"]))),
        (
            "key of another algorithm",
            issuer.token("ES256", |header, _| header["kid"] = json!("k-RS256")),
        ),
        (
            "algorithm of another family",
            issuer.token("RS256", |header, _| header["alg"] = json!("PS256")),
        ),
        ("unknown key", by_other(&|header| header["kid"] = json!("nobody"))),
        (
            "own key in the header",
            by_other(&|header| {
                header["jwk"] = jwk.clone();
                header.as_object_mut().map(|all| all.remove("kid"));
            }),
        ),
        (
            "key at another address",
            by_other(&|header| {
                header["jku"] = json!(format!("{}/evil", issuer.url));
                header["kid"] = json!("evil");
            }),
        ),
        ("key id of a path", by_other(&|header| header["kid"] = json!("../../../../dev/null"))),
    ]
}

/// Tokens that are signed wrongly, or not at all.
fn wrong_signatures(issuer: &Issuer) -> Vec<Forged> {
    let good = issuer.token("RS256", |_, _| {});
    let parts: Vec<&str> = good.split('.').collect();
    let [header, claims, signature] = parts[..] else { panic!("three parts") };
    let none = part(&json!({"alg": "none", "typ": "at+jwt"}));
    let mixed = part(&json!({"alg": "NoNe", "typ": "at+jwt"}));
    let symmetric = issuer.token("HS256", |header, _| header["kid"] = json!("k-RS256"));
    let root = issuer.token("RS256", |_, claims| claims["sub"] = json!("root"));
    let root = root.split('.').nth(1).expect("claims").to_owned();
    let twice = encode(br#"{"alg":"RS256","alg":"none","kid":"k-RS256","typ":"at+jwt"}"#);
    let ec = issuer.token("ES256", |_, _| {});
    let (ec, _) = ec.rsplit_once('.').expect("a signature");
    let doubled = format!(
        r#"{{"iss":"{0}","aud":"{AUDIENCE}","sub":"a","sub":"root","exp":9999999999}}"#,
        issuer.url
    );
    let message = format!("{header}.{}", encode(doubled.as_bytes()));
    let doubled = format!("{message}.{}", encode(&issuer.own.sign("RS256", message.as_bytes())));
    vec![
        ("another RSA key", issuer.signed_by(&issuer.other, "RS256", |_, _| {})),
        ("another EC key", issuer.signed_by(&issuer.other, "ES256", |_, _| {})),
        ("another Ed25519 key", issuer.signed_by(&issuer.other, "EdDSA", |_, _| {})),
        ("none", format!("{none}.{claims}.")),
        ("none with a signature", format!("{none}.{claims}.{signature}")),
        ("none in another case", format!("{mixed}.{claims}.")),
        ("public key as a shared secret", symmetric),
        ("no signature", format!("{header}.{claims}.")),
        ("cut signature", good[..good.len() - 4].to_owned()),
        ("changed claims", format!("{header}.{root}.{signature}")),
        ("zero EC signature", format!("{ec}.{}", encode(&[0; 64]))),
        ("DER signature", format!("{ec}.{}", encode(&[0x30; 70]))),
        ("algorithm twice", format!("{twice}.{claims}.{signature}")),
        ("subject twice", doubled),
        ("two parts", format!("{header}.{claims}")),
        ("four parts", format!("{good}.x")),
        ("five parts, as if encrypted", format!("{good}.x.y")),
        ("padding", format!("{good}==")),
        ("standard base64", format!("{header}.{claims}.{}", signature.replace(['-', '_'], "+"))),
        ("not JSON", format!("{}.{claims}.{signature}", encode(b"{"))),
        ("arrays", format!("{}.{}.{signature}", encode(b"[]"), encode(b"[]"))),
        ("deep JSON", format!("{}.{claims}.{signature}", encode("[".repeat(5000).as_bytes()))),
        ("opaque", "opaque-token-0123456789".to_owned()),
        ("dots", "..".to_owned()),
        ("the token twice", format!("{good} {good}")),
    ]
}

/// All routes but `/console`, which answers with a page for a person.
const ROUTES: [(&str, &str); 16] = [
    ("POST", "/mcp"),
    ("POST", "/"),
    ("GET", "/mcp"),
    ("GET", "/status"),
    ("GET", "/metrics"),
    ("POST", "/rtfs"),
    ("POST", "/a2a"),
    ("POST", "/lf.a2a.v1.A2AService/SendMessage"),
    ("GET", "/.well-known/agent-card.json"),
    ("POST", "/api/a"),
    ("GET", "/api/openapi.json"),
    ("GET", "/tasks"),
    ("GET", "/calls"),
    ("GET", "/approvals"),
    ("GET", "/quotas"),
    ("GET", "/nowhere"),
];

#[test]
fn forged_tokens_are_answered_alike_on_every_route_and_cause_one_request_for_keys() {
    let issuer = Issuer::start();
    let server = world().tool("a", sh("echo a")).config(&issuer.config("{}", "")).serve();
    let mut http = Http::new(server.address());
    let mut ask = |method: &str, path: &str, token: &str| {
        let request = Request::new(method, path).bearer(token);
        let request = request.header("accept", "application/json, text/event-stream");
        let request = request.header("content-type", "application/json");
        let body = if method == "POST" { "{}" } else { "" };
        http.send(&request.body(body)).expect("an answer")
    };
    assert_eq!(ask("GET", "/status", &issuer.token("RS256", |_, _| {})).status, 200);
    assert_eq!(issuer.key_requests(), 1);
    let mut forged = wrong_claims(&issuer);
    forged.extend(wrong_headers(&issuer));
    forged.extend(wrong_signatures(&issuer));
    assert!(forged.len() >= 60, "{}", forged.len());
    let names: BTreeSet<&str> = forged.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), forged.len());
    let mut bodies = BTreeSet::new();
    for (method, path) in ROUTES {
        for (name, token) in &forged {
            let answer = ask(method, path, token);
            assert_eq!(answer.status, 401, "{name} at {method} {path}: {}", answer.text());
            bodies.insert(answer.text());
        }
        assert_eq!(bodies.len(), 1, "{path}: {bodies:?}");
    }
    for (method, path) in ROUTES {
        let absent = server.http().send(&Request::new(method, path)).expect("an answer");
        assert_eq!(absent.status, 401, "{method} {path}");
    }
    assert!(issuer.key_requests() <= 2, "{}", issuer.key_requests());
    assert_eq!(ask("GET", "/status", &issuer.token("EdDSA", |_, _| {})).status, 200);
    let log = server.log();
    for (name, token) in forged.iter().filter(|(_, token)| token.len() > 40) {
        assert!(!log.contains(&token[..40]) || token.starts_with("opaque"), "{name} is in the log");
    }
}

#[test]
fn a_token_of_a_megabyte_is_refused_with_its_head_and_nothing_is_asked_about_it() {
    let issuer = Issuer::start();
    let server = world().tool("a", sh("echo a")).config(&issuer.config("{}", "")).serve();
    let padded =
        |length: usize| issuer.token("ES256", |_, claims| claims["pad"] = json!("x".repeat(length)));
    let huge = padded(1 << 20);
    for (method, path) in ROUTES {
        let answer = server.http().send(&Request::new(method, path).bearer(&huge)).expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (431, ""), "{method} {path}");
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().http2_prior_knowledge().build().expect("a client");
    let get = |token: &str| {
        let request = client.get(format!("http://{}/status", server.address()));
        let answer = runtime.block_on(request.bearer_auth(token).send())?;
        assert_eq!(answer.version(), reqwest::Version::HTTP_2);
        Ok::<u16, reqwest::Error>(answer.status().as_u16())
    };
    assert_eq!(get(&padded(20_000)).expect("an answer"), 401);
    assert_eq!(get(&padded(60_000)).expect("an answer"), 431);
    // A much larger head ends its connection, and only that.
    let refused = get(&huge);
    assert!(refused.as_ref().map_or(true, |status| *status == 431), "{refused:?}");
    assert_eq!(issuer.key_requests(), 0);
    // The longest token that is checked is read over HTTP/2 too, beside other header fields. Three bytes make
    // four characters.
    let beyond = padded(13_000).len() - 16 * 1024;
    let longest = padded(13_000 - 3 * beyond.div_ceil(4));
    assert!((16 * 1024 - 3..=16 * 1024).contains(&longest.len()), "{}", longest.len());
    assert_eq!(get(&longest).expect("an answer"), 200);
    assert_eq!(get(&issuer.token("ES256", |_, _| {})).expect("an answer"), 200);
    assert!(!server.log().contains(&huge[..40]));
}
