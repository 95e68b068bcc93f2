//! Signs a caller in at a server that its call needs. Its client is asked to open a link, or the caller
//! gets the link in an error (MCP, elicitation in URL mode).

use std::sync::Arc;

use orla_marketplace::{Client, JsonText};
use orla_mcp::object::Object;
use orla_oauth::{Link, SignInNeeded, Subject};
use serde_json::{Value, json};

use super::sender::Credentials;

impl Credentials {
    /// Signs the caller in, if the last request has failed because of a missing sign-in; `None`
    /// otherwise. On success, the request may be repeated.
    pub(crate) async fn recover(&self, client: Option<&Arc<dyn Client>>) -> Option<Result<(), String>> {
        // A sign-in that all callers share is not made for each of them.
        let needed = self.needed().filter(|_| matches!(self.subject, Subject::Caller { .. }))?;
        let link = match self.upstream.link(&self.subject).await {
            Ok(link) => link,
            Err(error) => return Some(Err(format!("{} ({error})", needed.why))),
        };
        Some(match client.filter(|client| opens_links(client.as_ref())) {
            Some(client) => sign_in(client.as_ref(), &needed, link).await,
            None => Err(with_link(&needed, &link)),
        })
    }
}

/// Returns the error of a caller whose client cannot be asked.
fn with_link(needed: &SignInNeeded, link: &Link) -> String {
    format!("{}; sign in at {} and call again", needed.why, link.url)
}

/// Asks the client to open the link, and waits until its user has signed in.
async fn sign_in(client: &dyn Client, needed: &SignInNeeded, link: Link) -> Result<(), String> {
    let server = &needed.server;
    let params = json!({
        "mode": "url",
        "elicitationId": format!("sign-in-{}", short(&link.url)),
        "url": link.url,
        "message": format!("{server} needs you to sign in."),
    });
    let params = JsonText::of(&params).map_err(|err| err.to_string())?;
    let answer = client.request("elicitation/create", params).await;
    let accepted = answer.ok().and_then(|answer| Object::parse(answer.as_str())?.text("action"));
    if accepted.as_deref() != Some("accept") {
        return Err(with_link(needed, &link));
    }
    let signed_in = link.signed_in().await;
    signed_in.map_err(|error| format!("the sign-in at {server} failed: {error}"))?;
    tracing::info!(server, "a caller has signed in");
    Ok(())
}

/// Returns whether the client opens links for its user.
fn opens_links(client: &dyn Client) -> bool {
    let capabilities: Value = serde_json::from_str(client.capabilities().as_str()).unwrap_or_default();
    capabilities.pointer("/elicitation/url").is_some()
}

/// Returns a short text that distinguishes links.
fn short(url: &str) -> String {
    format!("{:08x}", orla_marketplace::id::short_hash(url.as_bytes()))
}
