//! Signs a caller in at the server that its call needs, and repeats the call.

use std::sync::Arc;

use orla_marketplace::{CallContext, Client, JsonText, Principal};
use orla_mcp::{Ask, Fault, Peer, ServerInfo};

use super::exchange::Failure;
use super::{Remote, supervisor};

impl Remote {
    /// Sends a request. If the request needs a sign-in of its caller, the caller signs in, and the
    /// request is repeated once.
    pub(super) async fn answer_signed_in(
        &self,
        ask: &Ask,
        ctx: &CallContext,
    ) -> Result<JsonText, Fault> {
        match self.answer(ask, ctx).await {
            Ok(answer) => Ok(answer),
            Err(fault) => {
                // The link has its own time limit. The call's own time is paused.
                let paused = ctx.pause();
                self.recover(fault, ctx.scope.client.as_ref()).await?;
                drop(paused);
                self.answer(ask, &ctx.renewed()).await
            }
        }
    }

    /// Signs a caller in at a server that lists its tools only to callers, and lists the tools in the
    /// caller's name. `None` if callers have no connections of their own.
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
                match principal {
                    Some(principal) => self.shared.set_info_of(principal.id(), info),
                    None => self.shared.set_info(info),
                }
                Ok(())
            }
            Err(Fault::Unavailable(reason)) => Err(format!("MCP server {server}: {reason}")),
            Err(_) => Err(format!("MCP server {server} does not say what it serves")),
        })
    }

    /// Returns what the server serves over this connection.
    async fn learned(&self) -> Result<ServerInfo, Fault> {
        let link = self.link(0).await?;
        match supervisor::list_tools(&self.shared, &link).await {
            Ok(Some(info)) => Ok(info),
            Ok(None) => Err(Fault::Unavailable("it was lost".to_owned())),
            Err(Failure::Fault(fault)) => Err(fault),
            Err(failure) => Err(Fault::Unavailable(failure.to_string())),
        }
    }

    /// Signs the caller in, if a request has failed because of a missing sign-in. On success, the
    /// request may be repeated.
    ///
    /// # Errors
    /// The request has failed for another reason, or the caller has not signed in.
    async fn recover(&self, fault: Fault, client: Option<&Arc<dyn Client>>) -> Result<(), Fault> {
        let credentials = self.shared.sender.credentials().filter(|_| self.shared.is_of_caller);
        let Some(credentials) = credentials else { return Err(fault) };
        match credentials.recover(client).await {
            Some(recovered) => recovered.map_err(Fault::Unavailable),
            None => Err(fault),
        }
    }
}
