//! The door against an authorization server on this machine.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::{Router, body::Bytes};
use orla_oauth::{
    AuthSettings, Challenge, Error, GrantKind, Http, MemoryStore, Secret, Subject, Upstream,
};
use parking_lot::Mutex;
use reqwest::Url;
use tokio_util::task::TaskTracker;
use url::form_urlencoded;

/// A request for a token: the form, and whether it came with a password.
type Request = (HashMap<String, String>, bool);

/// What the authorization server was asked.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<Request>>>);

impl Asked {
    fn grants(&self) -> Vec<String> {
        self.0.lock().iter().map(|(form, _)| form["grant_type"].clone()).collect()
    }
}

/// Returns an authorization server whose metadata name this issuer, or itself.
async fn authority(issuer: Option<&'static str>) -> (Url, Asked) {
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
    let asked = Asked::default();
    let app = Router::new()
        .route("/token", axum::routing::post(token))
        .fallback(metadata)
        .with_state(asked.clone());
    #[expect(clippy::disallowed_methods, reason = "it ends with the test")]
    tokio::spawn(async move { axum::serve(listener, app).await });
    (Url::parse(&base).expect("a test's server"), asked)
}

async fn token(State(asked): State<Asked>, headers: HeaderMap, body: Bytes) -> String {
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
