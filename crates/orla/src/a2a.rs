//! The resources of the server as an agent of the Agent2Agent protocol: the sender of the push notifications of its tasks.

use std::sync::Arc;

use async_trait::async_trait;
use orla_providers::http::WebHooks;
use orla_server::{Push, PushSender, Server};
use orla_state::Query;

use crate::Failure;
use crate::config::{Config, Transport};
use crate::state::ServerState;

/// Prepares the agent, before anything listens.
pub(crate) fn prepare(server: &Server, config: &Config) {
    // The agent is not reachable on stdio.
    if config.transport == Transport::Http {
        server.push_with(Arc::new(Sender(WebHooks::new(config.a2a.allow_private_push))));
    }
}

/// Continues the push notifications that the previous server did not send.
///
/// # Errors
///
/// Returns an error if the state cannot be read.
pub(crate) async fn resume(server: &Server, config: &Config, own: &ServerState) -> Result<(), Failure> {
    if config.transport != Transport::Http {
        return Ok(());
    }
    if let (ServerState::Usable(own), Some(_)) = (own, &config.cluster) {
        let earlier = own.list(Query::below("a2a/", 1)).await;
        if !earlier.map_err(|err| Failure::usage(err.to_string()))?.is_empty() {
            tracing::warn!(
                "tasks of the agent in `state_dir` are not served: the nodes of a cluster keep theirs in NATS"
            );
        }
    }
    server.resume_push().await.map_err(|err| Failure::usage(err.to_string()))
}

/// Sends push notifications.
struct Sender(WebHooks);

#[async_trait]
impl PushSender for Sender {
    fn check(&self, url: &str) -> Result<(), String> {
        self.0.check(url).map(drop)
    }

    async fn post(&self, push: Push) -> Result<(), String> {
        self.0.post(&push.url, push.headers, push.body).await
    }
}
