//! The resources of the server as an agent of the Agent2Agent protocol: the file of its tasks, and the sender of
//! their push notifications.

use std::sync::Arc;

use async_trait::async_trait;
use orla_providers::http::WebHooks;
use orla_server::{Push, PushSender, Server};

use crate::Failure;
use crate::config::{Config, Transport};

/// Prepares the agent, before anything listens.
///
/// # Errors
/// The file of its tasks cannot be used.
pub(crate) fn prepare(server: &Server, config: &Config) -> Result<(), Failure> {
    if config.transport != Transport::Http {
        // The agent is not reachable on stdio, and another server may use the file.
        return Ok(());
    }
    let own = &config.a2a;
    server.push_with(Arc::new(Sender(WebHooks::new(own.allow_private_push))));
    if !own.tasks.as_os_str().is_empty() {
        server.keep_tasks(&own.tasks).map_err(Failure::failed)?;
    }
    Ok(())
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
