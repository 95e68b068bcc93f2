//! What checking an access token costs: the first time with its signature, and then by its digest. `cargo bench -p
//! orla-identity`.

#![expect(clippy::print_stdout, reason = "a bench prints its table")]
#![expect(clippy::unwrap_used, reason = "a bench that fails should stop")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, Method, Uri};
use orla_e2e::issuer::{AUDIENCE, Issuer};
use orla_identity::{AuthOptions, Authenticator, Fetch, Head, IssuerOptions};
use serde_json::json;

const ROUNDS: usize = 20;
const TOKENS: u32 = 500;
const ALGORITHMS: [&str; 3] = ["RS256", "ES256", "EdDSA"];

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let issuer = Issuer::start();
    let keys: Arc<dyn Fetch> =
        Arc::new(Keys(json!({"keys": ALGORITHMS.map(|name| issuer.own.jwk(name, &id(name)))})));
    let tokens = ALGORITHMS.map(|name| tokens(&issuer, name));
    let mut times = ALGORITHMS.map(|_| (Vec::new(), Vec::new()));
    for _ in 0..ROUNDS {
        for ((first, again), tokens) in times.iter_mut().zip(&tokens) {
            let authenticator = runtime.block_on(with_keys(&issuer, &keys));
            first.push(runtime.block_on(checking(&authenticator, tokens)));
            again.push(runtime.block_on(checking(&authenticator, tokens)));
        }
    }
    for (name, (first, again)) in ALGORITHMS.iter().zip(times) {
        let (first, again) = (median(first).as_nanos(), median(again).as_nanos());
        println!("{name}  {first:>7} ns the first time  {again:>6} ns then");
    }
}

/// An authorization server whose keys are here.
struct Keys(serde_json::Value);

#[async_trait]
impl Fetch for Keys {
    async fn get(&self, _: &str) -> Result<Vec<u8>, String> {
        Ok(self.0.to_string().into())
    }

    async fn post(&self, _: &str, _: &[(&str, &str)], _: (&str, &str)) -> Result<Vec<u8>, String> {
        Err("nothing is asked".to_owned())
    }
}

fn id(algorithm: &str) -> String {
    format!("k-{algorithm}")
}

/// Returns the heads of requests with a token each.
fn tokens(issuer: &Issuer, algorithm: &str) -> Vec<HeaderMap> {
    let token = |number: u32| issuer.token(algorithm, |_, claims| claims["jti"] = json!(number));
    (0..TOKENS).map(|number| headers(&token(number))).collect()
}

fn headers(token: &str) -> HeaderMap {
    let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
    HeaderMap::from_iter([(http::header::AUTHORIZATION, value)])
}

/// Returns an authenticator that knows the keys and no token of the bench.
async fn with_keys(issuer: &Issuer, keys: &Arc<dyn Fetch>) -> Authenticator {
    let mut options = IssuerOptions::new(&issuer.url, AUDIENCE);
    options.jwks_uri = format!("{}/jwks", issuer.url);
    let options = AuthOptions { issuers: vec![options], ..AuthOptions::default() };
    let authenticator = Authenticator::new(&options, Some(keys), None);
    checking(&authenticator, &[headers(&issuer.token("EdDSA", |_, _| {}))]).await;
    authenticator
}

/// Returns the time for one of these tokens.
async fn checking(authenticator: &Authenticator, tokens: &[HeaderMap]) -> Duration {
    let uri = Uri::from_static("/mcp");
    let began = Instant::now();
    for headers in tokens {
        let head = Head {
            headers,
            method: &Method::POST,
            uri: &uri,
            peer: None,
            is_tls: false,
            certificate: None,
            needs_certificate: false,
        };
        let caller = authenticator.authenticate(&head).await.unwrap();
        std::hint::black_box(caller.unwrap());
    }
    began.elapsed() / u32::try_from(tokens.len()).unwrap()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
