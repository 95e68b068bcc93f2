use super::*;
use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::{HeaderName, HeaderValue};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const ISSUER: &str = "https://id.example";
const AUDIENCE: &str = "https://orla.example/mcp";

/// An authorization server with one key, and an introspection endpoint.
#[derive(Default)]
struct Server {
    requests: AtomicUsize,
}

fn pair() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap()
}

#[async_trait]
impl Fetch for Server {
    async fn get(&self, url: &str) -> Result<Vec<u8>, String> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let x = BASE64_URL_SAFE_NO_PAD.encode(pair().public_key());
        match url {
            "https://id.example/.well-known/openid-configuration" => {
                Ok(json!({"issuer": ISSUER, "jwks_uri": "https://id.example/keys"}).to_string().into())
            }
            "https://id.example/keys" => {
                let key = json!({"kty": "OKP", "crv": "Ed25519", "x": x, "kid": "k"});
                Ok(json!({"keys": [key]}).to_string().into())
            }
            _ => Err("404".to_owned()),
        }
    }

    async fn post(
        &self,
        _: &str,
        form: &[(&str, &str)],
        credentials: (&str, &str),
    ) -> Result<Vec<u8>, String> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        assert_eq!(credentials, ("orla", "s3cret"));
        let answer = match form[0] {
            ("token", "broken") => return Err("400 Bad Request".to_owned()),
            ("token", "opaque") => json!({"active": true, "sub": "eve", "aud": AUDIENCE}),
            _ => json!({"active": false}),
        };
        Ok(answer.to_string().into())
    }
}

fn sign(header: &Value, claims: &Value) -> String {
    sign_by(&pair(), header, claims)
}

fn sign_by(pair: &Ed25519KeyPair, header: &Value, claims: &Value) -> String {
    let encode = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", encode(header), encode(claims));
    let signature = BASE64_URL_SAFE_NO_PAD.encode(pair.sign(message.as_bytes()));
    format!("{message}.{signature}")
}

fn claims() -> Value {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    json!({"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": now + 600, "iat": now})
}

fn token(change: impl FnOnce(&mut Value)) -> String {
    let mut claims = claims();
    change(&mut claims);
    sign(&json!({"alg": "EdDSA", "kid": "k", "typ": "at+jwt"}), &claims)
}

fn options() -> AuthOptions {
    let own = OwnToken {
        name: "ci".to_owned(),
        digest: sha256(b"made"),
        scopes: vec!["run".to_owned()],
        expires_at: None,
    };
    let expired = OwnToken {
        name: "old".to_owned(),
        digest: sha256(b"expired"),
        scopes: Vec::new(),
        expires_at: Some(SystemTime::UNIX_EPOCH),
    };
    let mut issuer = IssuerOptions::new(ISSUER, AUDIENCE);
    issuer.introspection = Some(IntrospectionOptions {
        endpoint: "https://id.example/introspect".to_owned(),
        client_id: "orla".to_owned(),
        client_secret: "s3cret".to_owned(),
        keep: Duration::from_secs(30),
    });
    AuthOptions {
        tokens: vec![
            "secret".into(),
            BearerToken { name: Some("bob".into()), ..BearerToken::from("other") },
        ],
        own_tokens: Some(vec![own, expired]),
        issuers: vec![issuer],
    }
}

fn authenticator() -> (Arc<Server>, Authenticator) {
    let server = Arc::new(Server::default());
    let fetch = Arc::clone(&server) as Arc<dyn Fetch>;
    (server, Authenticator::new(&options(), Some(&fetch), None))
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let pair = |(name, value): &(&'static str, &str)| {
        (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap())
    };
    pairs.iter().map(pair).collect()
}

/// Returns the head of a `GET` without TLS and without a certificate.
fn head<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Head<'a> {
    Head {
        headers,
        method: &Method::GET,
        uri,
        peer: None,
        is_tls: false,
        certificate: None,
        needs_certificate: false,
    }
}

async fn ask(of: &Authenticator, headers: &HeaderMap) -> Result<Option<Principal>, Denied> {
    let uri = Uri::from_static("/mcp");
    of.authenticate(&Head { method: &Method::POST, is_tls: true, ..head(&uri, headers) }).await
}

async fn name(of: &Authenticator, authorization: &str) -> Result<String, &'static str> {
    let found = ask(of, &headers(&[("authorization", authorization)])).await;
    found.map(|principal| principal.unwrap().id().to_string()).map_err(Denied::problem)
}

#[tokio::test]
async fn a_credential_says_who_calls() {
    let (_, authenticator) = authenticator();
    let jwt = token(|_| {});
    for (authorization, id) in [
        ("Bearer secret", "token:token-2bb80d537b1d"),
        ("bearer  other ", "token:bob"),
        ("Bearer made", "token:ci"),
        ("Bearer opaque", "oauth:https://id.example eve"),
        (&format!("BEARER {jwt}"), "oauth:https://id.example ada"),
    ] {
        assert_eq!(name(&authenticator, authorization).await.as_deref(), Ok(id), "{authorization}");
    }
    for wrong in
        ["Bearer secre", "Bearer secrets", "Bearer expired", "DPoP secret", "Bearer secret secret"]
    {
        assert_eq!(name(&authenticator, wrong).await, Err("invalid token"), "{wrong}");
    }
    for absent in ["Bearer ", "Bearer", "Basic secret", "secret", ""] {
        assert_eq!(name(&authenticator, absent).await, Err("no token"), "{absent}");
    }
    assert_eq!(ask(&authenticator, &HeaderMap::new()).await, Err(Denied::Absent));
    assert_eq!(ask(&Authenticator::default(), &HeaderMap::new()).await, Ok(None));
    let mut two = headers(&[("authorization", "Bearer secret")]);
    two.append("authorization", HeaderValue::from_static("Bearer other"));
    assert!(ask(&authenticator, &two).await.is_err());
}

#[tokio::test]
async fn a_token_without_a_type_is_accepted_where_jwt_is() {
    let token = format!("Bearer {}", sign(&json!({"alg": "EdDSA", "kid": "k"}), &claims()));
    let (server, by_default) = authenticator();
    assert!(name(&by_default, &token).await.is_err());
    let mut options = options();
    options.issuers[0].types = vec!["jwt".to_owned()];
    let fetch = server as Arc<dyn Fetch>;
    let accepts_jwt = Authenticator::new(&options, Some(&fetch), None);
    assert_eq!(name(&accepts_jwt, &token).await.unwrap(), "oauth:https://id.example ada");
}

#[tokio::test]
async fn a_scope_of_a_token_that_orla_made_grants_what_the_configuration_says() {
    let mut options = options();
    options.issuers[0].scopes = vec![("run".to_owned(), vec!["exec".parse().unwrap()])];
    let authenticator = Authenticator::new(&options, None, None);
    let principal = ask(&authenticator, &headers(&[("authorization", "Bearer made")])).await;
    assert_eq!(principal.unwrap().unwrap().permissions(), ["exec".parse().unwrap()]);
}

#[tokio::test]
async fn an_empty_file_of_tokens_lets_nobody_in() {
    let options = AuthOptions { own_tokens: Some(Vec::new()), ..AuthOptions::default() };
    let authenticator = Authenticator::new(&options, None, None);
    assert_eq!(ask(&authenticator, &HeaderMap::new()).await, Err(Denied::Absent));
}

#[tokio::test]
async fn a_file_of_tokens_that_is_deleted_lets_nobody_in() {
    let options = AuthOptions { own_tokens: Some(Vec::new()), ..AuthOptions::default() };
    let before = Authenticator::new(&options, None, None);
    let after = Authenticator::new(&AuthOptions::default(), None, Some(&before));
    assert_eq!(ask(&after, &HeaderMap::new()).await, Err(Denied::Absent));
}

#[tokio::test]
async fn an_issuer_that_stays_configured_keeps_its_keys_over_a_reload() {
    let (server, before) = authenticator();
    let fetch = Arc::clone(&server) as Arc<dyn Fetch>;
    let jwt = format!("Bearer {}", token(|_| {}));
    assert!(name(&before, &jwt).await.is_ok());
    let requests = server.requests.load(Ordering::Relaxed);
    let after = Authenticator::new(&options(), Some(&fetch), Some(&before));
    assert!(name(&after, &jwt).await.is_ok());
    assert_eq!(server.requests.load(Ordering::Relaxed), requests);
    let mut other = options();
    other.issuers[0].audience = vec!["https://other.example".to_owned()];
    let after = Authenticator::new(&other, Some(&fetch), Some(&before));
    assert!(name(&after, &jwt).await.is_err(), "what was verified for one audience is not for another");
}

#[tokio::test]
async fn a_withdrawn_token_is_no_longer_known() {
    let (_, before) = authenticator();
    let ci = ask(&before, &headers(&[("authorization", "Bearer made")])).await.unwrap().unwrap();
    let ada = Principal::oauth(ISSUER, "ada");
    assert!(before.still_knows(&ci) && before.still_knows(&ada));
    let mut options = options();
    options.own_tokens.as_mut().unwrap()[0].digest = sha256(b"made again");
    let after = Authenticator::new(&options, None, Some(&before));
    assert!(!after.still_knows(&ci), "a new token of the same name is another token");
}

#[tokio::test]
async fn a_token_that_is_bound_to_a_key_needs_a_proof() {
    let (_, authenticator) = authenticator();
    let bound = token(|claims| claims["cnf"] = json!({"jkt": "x"}));
    let plain = token(|_| {});
    for (authorization, reason) in [
        (format!("Bearer {bound}"), "the token is bound to a key, and came without a proof"),
        (format!("DPoP {bound}"), "there is no DPoP proof"),
        (format!("DPoP {plain}"), "the token is not bound to a key, and came as one that is"),
    ] {
        let found = ask(&authenticator, &headers(&[("authorization", &authorization)])).await;
        assert_eq!(found, Err(Denied::Invalid(reason)));
    }
}

/// A token that is bound to a key, and the owner of the key.
struct Bound {
    pair: Ed25519KeyPair,
    token: String,
}

impl Bound {
    fn new() -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[9; 32]).unwrap();
        // RFC 7638 §3: the required members, in order and without spaces.
        let jwk = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{}"}}"#, Self::x(&pair));
        let thumbprint = BASE64_URL_SAFE_NO_PAD.encode(sha256(jwk.as_bytes()));
        let token = token(|claims| claims["cnf"] = json!({"jkt": thumbprint}));
        Self { pair, token }
    }

    fn x(pair: &Ed25519KeyPair) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(pair.public_key())
    }

    /// Returns a proof for a request to an address.
    fn proof(&self, id: &str, method: &str, address: &str) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let jwk = json!({"kty": "OKP", "crv": "Ed25519", "x": Self::x(&self.pair)});
        let header = json!({"typ": "dpop+jwt", "alg": "EdDSA", "jwk": jwk});
        let ath = BASE64_URL_SAFE_NO_PAD.encode(sha256(self.token.as_bytes()));
        let claims = json!({"jti": id, "htm": method, "htu": address, "iat": now, "ath": ath});
        sign_by(&self.pair, &header, &claims)
    }
}

#[tokio::test]
async fn a_token_that_is_bound_to_a_key_is_accepted_once_for_each_proof() {
    let (server, mut authenticator) = authenticator();
    let fetch = Arc::clone(&server) as Arc<dyn Fetch>;
    let bound = Bound::new();
    let mut asked = Vec::new();
    let one = bound.proof("1", "POST", "https://orla.example/mcp");
    let get = bound.proof("2", "GET", "https://orla.example/mcp");
    let elsewhere = bound.proof("3", "POST", "https://orla.example/rtfs");
    let plain = bound.proof("4", "POST", "http://orla.example/mcp");
    let other = Bound { pair: pair(), token: bound.token.clone() };
    let of_another_key = other.proof("5", "POST", "https://orla.example/mcp");
    let another = bound.proof("6", "POST", "https://orla.example/mcp");
    for (proofs, expected) in [
        (&[&*one][..], Ok("oauth:https://id.example ada")),
        (&[&one], Err("the DPoP proof was used before")),
        (&[&get], Err("the DPoP proof is for another request")),
        (&[&elsewhere], Err("the DPoP proof is for another request")),
        (&[&plain], Err("the DPoP proof is for another request")),
        (&[&of_another_key], Err("the DPoP proof is of another key")),
        (&[], Err("there is no DPoP proof")),
        (&[&another, &another], Err("the request has several DPoP proofs")),
        (&[&another], Ok("oauth:https://id.example ada")),
    ] {
        let mut headers =
            headers(&[("authorization", &format!("DPoP {}", bound.token)), ("host", "orla.example")]);
        for proof in proofs {
            headers.append("dpop", HeaderValue::from_str(proof).unwrap());
        }
        let found = ask(&authenticator, &headers).await;
        let found = found.map(|principal| principal.unwrap().id().to_string());
        assert_eq!(found.as_deref().map_err(|denied| denied.reason().unwrap()), expected);
        asked.push(headers);
        // A reload forgets no proof.
        authenticator = Authenticator::new(&options(), Some(&fetch), Some(&authenticator));
    }
    // The proof alone is no credential.
    let mut alone = asked.swap_remove(0);
    alone.remove("authorization");
    assert_eq!(ask(&authenticator, &alone).await, Err(Denied::Absent));
}

#[tokio::test]
async fn an_opaque_token_is_asked_about_once() {
    let (server, authenticator) = authenticator();
    for _ in 0..5 {
        assert!(name(&authenticator, "Bearer opaque").await.is_ok());
        assert!(name(&authenticator, "Bearer forged").await.is_err());
    }
    assert_eq!(server.requests.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_token_that_the_server_has_no_answer_about_refuses_no_other() {
    let (server, authenticator) = authenticator();
    assert!(name(&authenticator, "Bearer broken").await.is_err());
    assert!(name(&authenticator, "Bearer opaque").await.is_ok());
    assert_eq!(server.requests.load(Ordering::Relaxed), 2);
}

#[test]
fn a_challenge_leads_to_the_metadata_and_says_nothing_where_no_token_came() {
    let (_, mut authenticator) = authenticator();
    let (uri, headers) = (Uri::from_static("/mcp"), headers(&[("host", "127.0.0.1:8080")]));
    let head = head(&uri, &headers);
    let url = r#"resource_metadata="http://127.0.0.1:8080/.well-known/oauth-protected-resource/mcp""#;
    assert_eq!(authenticator.challenge(&head, Denied::Absent), format!("Bearer {url}"));
    let invalid = authenticator.challenge(&head, Denied::Invalid("the token has expired"));
    assert_eq!(invalid, format!(r#"Bearer error="invalid_token", {url}"#));
    let missing = authenticator.insufficient_scope(&head, "run \"x\r\n");
    assert_eq!(missing, format!(r#"Bearer error="insufficient_scope", scope="run x", {url}"#));
    for path in ["", "/", "/mcp", "/rtfs"] {
        let metadata = authenticator.metadata(&head, &format!("{METADATA}{path}")).unwrap();
        let metadata: Value = serde_json::from_str(&metadata).unwrap();
        assert_eq!(
            (&metadata["resource"], &metadata["authorization_servers"]),
            (&json!(AUDIENCE), &json!([ISSUER]))
        );
    }
    assert_eq!(authenticator.metadata(&head, "/.well-known/oauth-protected-resource/x"), None);
    authenticator.issuers.clear();
    assert_eq!(authenticator.metadata(&head, METADATA), None);
    assert_eq!(authenticator.challenge(&head, Denied::Absent), r#"Bearer realm="orla""#);
}

#[test]
fn behind_a_proxy_the_audience_says_that_it_is_https() {
    let (_, authenticator) = authenticator();
    let (uri, headers) = (Uri::from_static("/"), headers(&[("host", "Orla.example")]));
    let head = head(&uri, &headers);
    assert_eq!(authenticator.address(&head), "https://Orla.example/");
}
