//! The door against an authorization server on this machine.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::{Router, body::Bytes};
use orla_oauth::{
    AuthSettings, Challenge, Error, GrantKind, Http, MemoryStore, Secret, Subject, Upstream,
};
use parking_lot::Mutex;
use reqwest::Url;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;
use url::form_urlencoded;

/// A request for a token: the form, and whether it came with a password.
type Request = (HashMap<String, String>, bool);

/// What the authorization server was asked.
#[derive(Clone, Default)]
struct SeenRequests(Arc<Mutex<Vec<Request>>>);

impl SeenRequests {
    fn grants(&self) -> Vec<String> {
        self.0.lock().iter().map(|(form, _)| form["grant_type"].clone()).collect()
    }
}

/// Returns an authorization server whose metadata name this issuer, or itself.
async fn authority(issuer: Option<&'static str>) -> (Url, SeenRequests) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a test's server");
    let base = format!("http://{}", listener.local_addr().expect("a test's server"));
    let own = base.clone();
    let metadata = move |uri: Uri| async move {
        let issuer = issuer.unwrap_or(&own);
        match uri.path() {
            "/.well-known/oauth-protected-resource/mcp" => {
                format!(r#"{{"resource":"{own}/mcp","authorization_servers":["{own}"]}}"#)
            }
            _ => format!(r#"{{"issuer":"{issuer}","token_endpoint":"{own}/token"}}"#),
        }
    };
    let asked = SeenRequests::default();
    let app = Router::new()
        .route("/token", axum::routing::post(token))
        .fallback(metadata)
        .with_state(asked.clone());
    #[expect(clippy::disallowed_methods, reason = "it ends with the test")]
    tokio::spawn(async move { axum::serve(listener, app).await });
    (Url::parse(&base).expect("a test's server"), asked)
}

async fn token(State(asked): State<SeenRequests>, headers: HeaderMap, body: Bytes) -> String {
    let form: HashMap<String, String> = form_urlencoded::parse(&body).into_owned().collect();
    let who = form.get("subject_token").cloned().unwrap_or_else(|| "orla".to_owned());
    let scope = form.get("scope").cloned().unwrap_or_default();
    asked.0.lock().push((form, headers.contains_key("authorization")));
    format!(r#"{{"access_token":"for-{who}","token_type":"Bearer","expires_in":300,"scope":"{scope}"}}"#)
}

fn upstream(server: &Url, change: impl FnOnce(&mut AuthSettings)) -> Arc<Upstream> {
    let mut settings = AuthSettings::default();
    settings.client_id = Some("orla".into());
    settings.client_secret = Some(Secret::new("password"));
    change(&mut settings);
    let (server, store) =
        (server.join("/mcp").expect("a test's server"), Arc::new(MemoryStore::default()));
    Arc::new(Upstream::new("up", server, settings, Arc::new(Http::default()), store, TaskTracker::new()))
}

fn caller(name: &str, credential: Option<&str>) -> Subject {
    let credential = credential.map(Secret::new);
    Subject::Caller { id: name.into(), name: Some(name.into()), credential }
}

fn exchange(base: &Url) -> impl FnOnce(&mut AuthSettings) {
    let endpoint = base.join("/token").expect("a test's server").to_string();
    move |settings| {
        settings.grant = GrantKind::TokenExchange;
        settings.token_endpoint = Some(endpoint);
        settings.audience = Some("up".into());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_credential_is_exchanged_once_for_a_token_of_its_own() {
    let (base, asked) = authority(None).await;
    let upstream = upstream(&base, exchange(&base));
    let tasks = TaskTracker::new();
    let calls: Vec<_> = (0..64)
        .map(|number| {
            let (upstream, who) = (Arc::clone(&upstream), ["ada", "bob", "eve"][number % 3]);
            tasks.spawn(async move {
                let token = upstream.token(&caller(who, Some(who))).await.unwrap().unwrap();
                assert_eq!(token.expose(), format!("for-{who}"));
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    assert_eq!(asked.grants().len(), 3, "one for each caller");
    // Another token of the same caller is another subject.
    let token = upstream.token(&caller("ada", Some("ada-2"))).await.unwrap().unwrap();
    assert_eq!(token.expose(), "for-ada-2");
    let asked = asked.0.lock();
    for (form, has_password) in &*asked {
        assert_eq!((form["audience"].as_str(), *has_password), ("up", true));
        assert_eq!(form["resource"], base.join("/mcp").unwrap().as_str());
    }
}

#[tokio::test]
async fn a_caller_without_a_token_gets_none_of_anyone_else() {
    let (base, asked) = authority(None).await;
    let upstream = upstream(&base, exchange(&base));
    let tokenless = caller("ada", None);
    assert!(matches!(upstream.token(&tokenless).await, Err(Error::Refused(_))));
    // What orla asks without a caller goes without a token, until the server wants one.
    assert_eq!(upstream.token(&Subject::Own).await, Ok(None));
    upstream.challenged(&Subject::Own, None, 401, None).await.unwrap();
    assert_eq!(upstream.token(&Subject::Own).await.unwrap().unwrap().expose(), "for-orla");
    assert!(upstream.token(&tokenless).await.is_err());
    assert_eq!(asked.grants(), ["client_credentials"]);
}

#[tokio::test]
async fn a_challenge_leads_to_the_authorization_server_and_to_more_scopes() {
    let (base, asked) = authority(None).await;
    let upstream = upstream(&base, |settings| settings.grant = GrantKind::ClientCredentials);
    let (subject, challenge) = (Subject::Shared, |text: &str| Challenge::of([text]));
    assert_eq!(upstream.token(&subject).await, Ok(None), "nothing is known yet");
    upstream.challenged(&subject, None, 401, challenge("Bearer scope=\"read\"")).await.unwrap();
    let token = upstream.token(&subject).await.unwrap().unwrap();
    let more = challenge("Bearer error=\"insufficient_scope\", scope=\"write\"");
    upstream.challenged(&subject, Some(&token), 403, more.clone()).await.unwrap();
    assert_eq!(asked.0.lock()[1].0["scope"], "read write", "those from before stay");
    // A server that asks for what it has been given is refused, and not asked again.
    let again = upstream.challenged(&subject, Some(&token), 403, more).await;
    assert!(matches!(again, Err(Error::Refused(_))), "{again:?}");
    assert_eq!(asked.grants().len(), 2);
}

#[tokio::test]
async fn metadata_of_another_issuer_gets_no_password() {
    let (base, asked) = authority(Some("https://elsewhere.example")).await;
    let upstream = upstream(&base, |settings| settings.grant = GrantKind::ClientCredentials);
    let refused = upstream.challenged(&Subject::Shared, None, 401, None).await;
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    assert!(asked.grants().is_empty());
}

/// Where a sign-in returns to.
const REDIRECT: &str = "http://127.0.0.1:7/callback";

/// A server whose metadata name one of the authorization servers `one` and `two`, which register clients.
struct Registrar {
    base: String,
    /// The one that the server names.
    named: Mutex<&'static str>,
    /// What the metadata of both add.
    metadata: Mutex<Value>,
    /// The answer to a registration, in place of a client.
    refusal: Mutex<Option<(StatusCode, &'static str)>>,
    /// The requests: the path and the body.
    asked: Mutex<Vec<(String, Value)>>,
}

impl Registrar {
    async fn start() -> (Arc<Self>, Url) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a test's server");
        let base = format!("http://{}", listener.local_addr().expect("a test's server"));
        let url = Url::parse(&base).expect("a test's server");
        let registrar = Arc::new(Self {
            base,
            named: Mutex::new("one"),
            metadata: Mutex::new(json!({})),
            refusal: Mutex::default(),
            asked: Mutex::default(),
        });
        let app = Router::new().fallback(answer).with_state(Arc::clone(&registrar));
        #[expect(clippy::disallowed_methods, reason = "it ends with the test")]
        tokio::spawn(async move { axum::serve(listener, app).await });
        (registrar, url)
    }

    /// Registers clients, or not, and says whether it supports their metadata documents.
    fn offers(&self, documents: bool, registration: bool) {
        let mut metadata = json!({"client_id_metadata_document_supported": documents});
        if registration {
            metadata["registration_endpoint"] = json!("register");
        }
        *self.metadata.lock() = metadata;
    }

    fn metadata_of(&self, issuer: &str) -> Value {
        let at = |path: &str| format!("{}/{issuer}/{path}", self.base);
        let mut metadata = self.metadata.lock().clone();
        if metadata.get("registration_endpoint").is_some() {
            metadata["registration_endpoint"] = json!(at("register"));
        }
        metadata["issuer"] = json!(format!("{}/{issuer}", self.base));
        metadata["authorization_endpoint"] = json!(at("authorize"));
        metadata["token_endpoint"] = json!(at("token"));
        metadata["code_challenge_methods_supported"] = json!(["S256"]);
        metadata
    }

    /// Returns the bodies of the requests to a path.
    fn asked(&self, path: &str) -> Vec<Value> {
        let asked = self.asked.lock();
        asked.iter().filter(|(known, _)| known == path).map(|(_, body)| body.clone()).collect()
    }
}

async fn answer(State(registrar): State<Arc<Registrar>>, uri: Uri, body: Bytes) -> (StatusCode, String) {
    let path = uri.path();
    let ok = |value: Value| (StatusCode::OK, value.to_string());
    if let Some(issuer) = path.strip_prefix("/.well-known/oauth-authorization-server/") {
        return ok(registrar.metadata_of(issuer));
    }
    if path == "/.well-known/oauth-protected-resource/mcp" {
        let (base, named) = (&registrar.base, *registrar.named.lock());
        return ok(
            json!({"resource": format!("{base}/mcp"), "authorization_servers": [format!("{base}/{named}")]}),
        );
    }
    let Some((issuer, endpoint @ ("register" | "token"))) = path[1..].split_once('/') else {
        return (StatusCode::NOT_FOUND, String::new());
    };
    let form = || form_urlencoded::parse(&body).into_owned().collect::<HashMap<_, _>>();
    let seen = serde_json::from_slice(&body).unwrap_or_else(|_| json!(form()));
    registrar.asked.lock().push((path.to_owned(), seen));
    if endpoint == "token" {
        return ok(json!({"access_token": format!("of-{issuer}"), "token_type": "Bearer"}));
    }
    if let Some((status, text)) = *registrar.refusal.lock() {
        return (status, text.to_owned());
    }
    let number = registrar.asked(path).len();
    (StatusCode::CREATED, json!({"client_id": format!("{issuer}-{number}")}).to_string())
}

fn parameter(url: &Url, name: &str) -> String {
    url.query_pairs().find(|(known, _)| known == name).expect(name).1.into_owned()
}

/// Returns the id of the client of a new sign-in.
async fn client_of(upstream: &Upstream) -> Result<String, Error> {
    let sign_in = upstream.begin(&Subject::Shared, REDIRECT).await?;
    Ok(parameter(&sign_in.url()?, "client_id"))
}

#[tokio::test]
async fn a_client_is_the_configured_one_or_that_of_its_document_or_a_registered_one() {
    const DOCUMENT: &str = "https://orla.example/client.json";
    const NEITHER: &str = "register one there and set `client_id`";
    let (registrar, base) = Registrar::start().await;
    for (configured, documents, registration, expected) in [
        (Some("known"), false, false, Ok("known")),
        (Some("known"), true, true, Ok("known")),
        (Some(DOCUMENT), true, true, Ok(DOCUMENT)),
        (Some(DOCUMENT), true, false, Ok(DOCUMENT)),
        (Some(DOCUMENT), false, true, Ok("one-1")),
        // A server may support documents without saying so.
        (Some(DOCUMENT), false, false, Ok(DOCUMENT)),
        (None, true, true, Ok("one-1")),
        (None, false, true, Ok("one-1")),
        (None, true, false, Err(NEITHER)),
    ] {
        let case = format!("{configured:?} {documents} {registration}");
        registrar.offers(documents, registration);
        registrar.asked.lock().clear();
        let upstream = upstream(&base, |settings| {
            (settings.client_id, settings.client_secret) = (configured.map(str::to_owned), None);
        });
        match (client_of(&upstream).await, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{case}"),
            (Err(error), Err(expected)) => {
                assert!(error.to_string().contains(expected), "{case}: {error}");
            }
            (found, _) => panic!("{case}: {found:?}"),
        }
        let registered = registrar.asked("/one/register");
        assert_eq!(registered.len(), usize::from(expected == Ok("one-1")), "{case}");
        for body in registered {
            assert_eq!(body["application_type"], "native", "it returns to a loopback address");
            assert_eq!(body["redirect_uris"], json!([REDIRECT]));
            assert_eq!(body["grant_types"], json!(["authorization_code", "refresh_token"]));
            assert_eq!(body["token_endpoint_auth_method"], "none");
        }
    }
}

#[tokio::test]
async fn a_refused_registration_is_an_error_that_says_why_and_the_next_sign_in_tries_again() {
    let (registrar, base) = Registrar::start().await;
    registrar.offers(false, true);
    let upstream = upstream(&base, |settings| {
        (settings.client_id, settings.client_secret) = (None, None);
    });
    let invalid = r#"{"error":"invalid_redirect_uri","error_description":"no loopback here"}"#;
    for (status, answer, expected) in [
        (400, invalid, "invalid_redirect_uri (no loopback here)"),
        (200, r#"{"error":"access_denied"}"#, "access_denied"),
        (500, "out of order", "did not register the client (HTTP 500)"),
        (403, r#"{"client_id":"mine"}"#, "did not register the client (HTTP 403)"),
        (201, "{}", "did not register the client (HTTP 201)"),
        (302, "", "did not register the client (HTTP 302)"),
    ] {
        *registrar.refusal.lock() = Some((StatusCode::from_u16(status).unwrap(), answer));
        let error = client_of(&upstream).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{answer}: {error}");
    }
    *registrar.refusal.lock() = None;
    assert_eq!(client_of(&upstream).await.unwrap(), "one-7");
}

#[tokio::test]
async fn another_authorization_server_gets_a_client_of_its_own_and_no_refresh_token_is_assumed() {
    let (registrar, base) = Registrar::start().await;
    registrar.offers(false, true);
    let upstream = upstream(&base, |settings| {
        (settings.client_id, settings.client_secret) = (None, None);
    });
    let subject = Subject::Shared;
    for (issuer, registered) in [("one", 1), ("two", 1), ("one", 2)] {
        *registrar.named.lock() = issuer;
        let before = upstream.token(&subject).await.unwrap();
        let grants = registrar.asked.lock().len();
        // The server rejects the token of before, and none can be obtained without a person.
        let challenged = upstream.challenged(&subject, before.as_ref(), 401, None).await;
        assert!(matches!(challenged, Err(Error::SignIn(_))), "{challenged:?}");
        assert_eq!(registrar.asked.lock().len(), grants, "nothing is asked without a refresh token");
        let sign_in = upstream.begin(&subject, REDIRECT).await.unwrap();
        let url = sign_in.url().unwrap();
        assert_eq!(url.path(), format!("/{issuer}/authorize"));
        assert_eq!(parameter(&url, "client_id"), format!("{issuer}-{registered}"));
        let response = format!("code=c&state={}", parameter(&url, "state"));
        upstream.finish(&subject, &sign_in, &response).await.unwrap();
        let token = upstream.token(&subject).await.unwrap().unwrap();
        assert_eq!(token.expose(), format!("of-{issuer}"));
        let request = registrar.asked(&format!("/{issuer}/token")).pop().unwrap();
        assert_eq!(request["client_id"], format!("{issuer}-{registered}"));
    }
}
