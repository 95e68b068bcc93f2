//! Requests to authorization servers: for their metadata, their keys, and the introspection of opaque tokens.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use orla_oauth::root_cause;
use orla_server::{Fetch, Server};
use reqwest::{Client, RequestBuilder};

use crate::http_client;
use crate::text::encoded;

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The largest answer, in bytes.
const MAX_ANSWER: usize = 1024 * 1024;

/// Lets a server send requests to authorization servers.
pub(crate) fn prepare(server: &Server) {
    server.fetch_with(Arc::new(AuthorizationServers::default()));
}

/// A client that is made when it is first needed.
#[derive(Default)]
struct AuthorizationServers(OnceLock<Client>);

impl AuthorizationServers {
    fn client(&self) -> Result<&Client, String> {
        if let Some(client) = self.0.get() {
            return Ok(client);
        }
        let client = http_client::new().map_err(|failure| failure.text())?;
        Ok(self.0.get_or_init(|| client))
    }
}

#[async_trait]
impl Fetch for AuthorizationServers {
    async fn get(&self, url: &str) -> Result<Vec<u8>, String> {
        answer(self.client()?.get(url)).await
    }

    async fn post(
        &self,
        url: &str,
        form: &[(&str, &str)],
        (name, secret): (&str, &str),
    ) -> Result<Vec<u8>, String> {
        let form: Vec<String> =
            form.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        // RFC 6749 §2.3.1.
        let request = self.client()?.post(url).basic_auth(encoded(name), Some(encoded(secret)));
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        answer(request.body(form.join("&"))).await
    }
}

async fn answer(request: RequestBuilder) -> Result<Vec<u8>, String> {
    let request = request.header("accept", "application/json").timeout(TIMEOUT);
    let mut response = request.send().await.map_err(|err| root_cause(&err))?;
    if !response.status().is_success() {
        return Err(format!("status {}", response.status().as_u16()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|err| root_cause(&err))? {
        if body.len() + chunk.len() > MAX_ANSWER {
            return Err(format!("the answer is larger than {MAX_ANSWER} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
