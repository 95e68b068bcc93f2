//! A caller signs in at the server that its call needs: its client is asked to open a link, or the caller gets the link
//! in an error (MCP, elicitation in URL mode).

use std::sync::Arc;

use orla_marketplace::{CallContext, Client, JsonText, Principal};
use orla_mcp::object::Object;
use orla_mcp::{Ask, Fault, Peer, ServerInfo};
use orla_oauth::{Link, SignInNeeded};
use serde_json::{Value, json};

use super::exchange::Failure;
use super::{Remote, supervisor};

impl Remote {
    /// Answers a request. If that needs a sign-in of its caller, the caller signs in, and the request is made again,
    /// once.
    pub(super) async fn answer_signed_in(
        &self,
        ask: &Ask,
        ctx: &CallContext,
    ) -> Result<JsonText, Fault> {
        match self.answer(ask, ctx).await {
            Ok(answer) => Ok(answer),
            Err(fault) => {
                // The link says how long the caller has; the call's own time stands still.
                let paused = ctx.pause();
                self.recover(fault, ctx.scope.client.as_ref()).await?;
                drop(paused);
                self.answer(ask, &ctx.renewed()).await
            }
        }
    }

    /// Has a caller sign in at a server that says only to callers what it serves, and learns that in the caller's
    /// name. `None` if callers have no connections of their own.
    pub(in crate::mcp) async fn sign_in(
        &self,
        principal: Option<&Principal>,
        client: Option<&Arc<dyn Client>>,
    ) -> Option<Result<(), String>> {
        let caller = self.callers.as_ref()?.of(principal, &self.shared)?;
        let mut learned = caller.learned().await;
        if let Err(fault) = learned {
            learned = match caller.recover(fault, client).await {
                Ok(()) => caller.learned().await,
                Err(fault) => Err(fault),
            };
        }
        let server = self.name();
        Some(match learned {
            Ok(info) => {
                self.shared.set_info(info);
                Ok(())
            }
            Err(Fault::Gone(reason)) => Err(format!("MCP server {server}: {reason}")),
            Err(_) => Err(format!("MCP server {server} does not say what it serves")),
        })
    }

    /// What the server serves, by this connection.
    async fn learned(&self) -> Result<ServerInfo, Fault> {
        let link = self.link(0).await?;
        match supervisor::served(&self.shared, &link).await {
            Ok(Some(info)) => Ok(info),
            Ok(None) => Err(Fault::Gone("it was lost".to_owned())),
            Err(Failure::Fault(fault)) => Err(fault),
            Err(failure) => Err(Fault::Gone(failure.to_string())),
        }
    }

    /// Has the caller sign in, if that is what a request has failed for. The request may be made again if this
    /// succeeds.
    ///
    /// # Errors
    /// The request has failed for another reason, or the caller has not signed in.
    async fn recover(&self, fault: Fault, client: Option<&Arc<dyn Client>>) -> Result<(), Fault> {
        // A sign-in that all callers share is not for each of them to make.
        let credentials = self.shared.sender.credentials().filter(|_| self.shared.is_of_caller);
        let needed = credentials.and_then(|known| Some((known, known.needed()?)));
        let Some((credentials, needed)) = needed else { return Err(fault) };
        let link = credentials.upstream.link(&credentials.subject).await;
        let link = link.map_err(|error| Fault::Gone(format!("{} ({error})", needed.why)))?;
        match client.filter(|client| opens_links(client.as_ref())) {
            Some(client) => sign_in(client.as_ref(), &needed, link).await,
            None => Err(with_link(&needed, &link)),
        }
    }
}

/// The error of a caller whose client cannot be asked.
fn with_link(needed: &SignInNeeded, link: &Link) -> Fault {
    Fault::Gone(format!("{}; sign in at {} and call again", needed.why, link.url))
}

/// Asks the client to open the link, and waits until its person has signed in.
async fn sign_in(client: &dyn Client, needed: &SignInNeeded, link: Link) -> Result<(), Fault> {
    let server = &needed.server;
    let params = json!({
        "mode": "url",
        "elicitationId": format!("sign-in-{}", short(&link.url)),
        "url": link.url,
        "message": format!("{server} needs you to sign in."),
    });
    let params = JsonText::of(&params).map_err(|err| Fault::Gone(err.to_string()))?;
    let answer = client.request("elicitation/create", params).await;
    let accepted = answer.ok().and_then(|answer| Object::parse(answer.as_str())?.text("action"));
    if accepted.as_deref() != Some("accept") {
        return Err(with_link(needed, &link));
    }
    let signed_in = link.signed_in().await;
    signed_in.map_err(|error| Fault::Gone(format!("the sign-in at {server} failed: {error}")))?;
    tracing::info!(server, "a caller has signed in");
    Ok(())
}

/// Whether the client opens links for its person.
fn opens_links(client: &dyn Client) -> bool {
    let capabilities: Value = serde_json::from_str(client.capabilities().as_str()).unwrap_or_default();
    capabilities.pointer("/elicitation/url").is_some()
}

/// A short text that tells links apart.
fn short(url: &str) -> String {
    format!("{:08x}", orla_marketplace::id::short_hash(url.as_bytes()))
}
