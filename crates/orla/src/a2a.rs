//! The resources of the server as an agent of the Agent2Agent protocol: where its tasks are kept, and the sender of
//! their push notifications.

use std::sync::Arc;

use async_trait::async_trait;
use orla_providers::http::WebHooks;
use orla_server::{Push, PushSender, Server};
use orla_state::StateStore;

use crate::Failure;
use crate::config::{Config, StateKind, Transport};

/// Prepares the agent, before anything listens.
pub(crate) fn prepare(server: &Server, config: &Config) {
    // The agent is not reachable on stdio.
    if config.transport == Transport::Http {
        server.push_with(Arc::new(Sender(WebHooks::new(config.a2a.allow_private_push))));
    }
}

/// Keeps the agent's tasks in the state, unless that is in memory, where the agent has them already.
///
/// # Errors
/// The state cannot be read.
pub(crate) async fn keep_tasks(
    server: &Server,
    config: &Config,
    state: &Arc<dyn StateStore>,
) -> Result<(), Failure> {
    if config.transport != Transport::Http || config.state == StateKind::Memory {
        return Ok(());
    }
    let kept = server.keep_agent_tasks(Arc::clone(state)).await;
    kept.map_err(|err| Failure::usage(err.to_string()))
}

/// Says that a key has no effect.
pub(crate) fn log_unused(config: &Config) {
    if !config.a2a.tasks.as_os_str().is_empty() {
        tracing::warn!(
            "`a2a.tasks` has no effect: the agent keeps its tasks in `state_dir`; remove the key"
        );
    }
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
