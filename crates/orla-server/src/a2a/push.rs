//! Push notifications (A2A §4.3.3): a client names an address, and the server posts the events of a task
//! to it.
//!
//! A delivery follows its task like any other follower. It posts one event after the other, each with a
//! timeout and a few retries. It ends with the task, its configuration or the server, or after several
//! failed posts. If the end of the server interrupts a delivery, the next server restarts it: it posts
//! the current state of the task, and then its events. The server's [`PushSender`] decides how and where
//! a request is sent.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use a2a::{
    A2AError, DeleteTaskPushNotificationConfigRequest, GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest, ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use orla_state::StateError;
use orla_tasks::Viewer;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Caller;
use super::agent::{Agent, broken};
use super::follow::{Following, Until};
use super::records::Record;
use super::rest::MEDIA_TYPE;
use super::view::size;
use crate::state::Core;

/// Posts the events of tasks to subscribed clients.
#[async_trait]
pub trait PushSender: Send + Sync {
    /// Checks whether posting to an address is allowed, as far as its text shows.
    ///
    /// # Errors
    ///
    /// Returns why the address is not allowed. The client that named the address sees the text.
    fn check(&self, url: &str) -> Result<(), String>;

    /// Sends one request, and waits for the head of the answer.
    ///
    /// # Errors
    ///
    /// Returns why the post failed, without secrets.
    async fn post(&self, push: Push) -> Result<(), String>;
}

/// A request to post.
#[derive(Clone)]
pub struct Push {
    /// The address.
    pub url: String,
    /// The headers, including credentials.
    pub headers: HeaderMap,
    /// The body: a `StreamResponse` as JSON.
    pub body: Bytes,
}

impl fmt::Debug for Push {
    /// Prints only the size, because addresses and headers may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Push({} bytes)", self.body.len())
    }
}

/// The header for the token of a configuration.
const TOKEN: HeaderName = HeaderName::from_static("x-a2a-notification-token");
/// The maximum size of a configuration.
const MAX_CONFIG: usize = 8 * 1024;
/// The timeout of one post.
const TIME: Duration = Duration::from_secs(10);
/// The pauses before the retries of a post. There is one retry for each.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(3)];
/// The maximum number of push configurations of one task.
const MAX_HOOKS: usize = 8;
/// The longest pause before the state is read again.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long deliveries may continue after the server begins to end.
const FINAL_DELIVERY_TIMEOUT: Duration = Duration::from_secs(2);
/// A delivery ends after this many failed events in a row.
const MAX_FAILURES: usize = 3;
/// The maximum number of concurrent posts.
pub(super) const POSTS: usize = 32;

impl Caller {
    /// Adds a push configuration to a task, or replaces the one with its id.
    pub(super) async fn create_push(
        &self,
        config: TaskPushNotificationConfig,
    ) -> Result<TaskPushNotificationConfig, A2AError> {
        let task = config.task_id.clone();
        let config = self.prepared(&task, config)?;
        let following = self.follow(&task).await?;
        let is_over = following.live.as_ref().is_none_or(|live| live.first.state.is_terminal());
        let id = config.id.clone().unwrap_or_default();
        let changed = self.agent().records.change(&task, |record| {
            record.told.retain(|told| *told != id);
            record.told.extend(is_over.then(|| id.clone()));
            match record.hooks.iter().position(|hook| hook.id == config.id) {
                Some(at) => record.hooks[at] = config.clone(),
                None if record.hooks.len() < MAX_HOOKS => record.hooks.push(config.clone()),
                None => {}
            }
        });
        let record = changed.await.map_err(broken)?.ok_or_else(|| A2AError::task_not_found(&task))?;
        if !record.hooks.contains(&config) {
            return Err(A2AError::invalid_params(
                "the task already has the maximum number of push notification configurations",
            ));
        }
        let is_delivered_already = following.record.hooks.contains(&config)
            && self.agent().deliveries.lock().contains_key(&delivery_key(&config));
        // Events of a task that began on another node are posted by that node.
        if !is_over && !is_delivered_already && record.node == self.agent().node() {
            deliver(&self.core, following, config.clone());
        }
        Ok(config)
    }

    /// Returns a validated configuration of a task.
    pub(super) fn prepared(
        &self,
        task: &str,
        mut config: TaskPushNotificationConfig,
    ) -> Result<TaskPushNotificationConfig, A2AError> {
        self.check_push(&config)?;
        config.task_id = task.to_owned();
        config.id = config.id.filter(|id| !id.is_empty()).or_else(|| Some(a2a::new_message_id()));
        Ok(config)
    }

    /// Checks that push notifications are supported and that the configuration is valid.
    pub(super) fn check_push(&self, config: &TaskPushNotificationConfig) -> Result<(), A2AError> {
        let sender = self.sender()?;
        if size(config) > MAX_CONFIG {
            return Err(A2AError::invalid_params(format!(
                "the configuration is larger than {MAX_CONFIG} bytes"
            )));
        }
        headers(config)?;
        sender.check(&config.url).map_err(|why| A2AError::invalid_params(format!("url: {why}")))
    }

    pub(super) async fn get_push(
        &self,
        request: &GetTaskPushNotificationConfigRequest,
    ) -> Result<TaskPushNotificationConfig, A2AError> {
        let of_task = self.pushes(&request.task_id).await?;
        let found = of_task.into_iter().find(|config| config.id.as_ref() == Some(&request.id));
        found.ok_or_else(|| {
            A2AError::task_not_found(&format!("{} has no configuration {}", request.task_id, request.id))
        })
    }

    pub(super) async fn list_push(
        &self,
        request: &ListTaskPushNotificationConfigsRequest,
    ) -> Result<ListTaskPushNotificationConfigsResponse, A2AError> {
        let configs = self.pushes(&request.task_id).await?;
        Ok(ListTaskPushNotificationConfigsResponse { configs, next_page_token: Some(String::new()) })
    }

    /// Removes a push configuration. Removing one that does not exist succeeds.
    pub(super) async fn delete_push(
        &self,
        request: &DeleteTaskPushNotificationConfigRequest,
    ) -> Result<(), A2AError> {
        self.pushes(&request.task_id).await?;
        let is_this = |config: &TaskPushNotificationConfig| config.id.as_ref() == Some(&request.id);
        let changed = self.agent().records.change(&request.task_id, |record| {
            record.hooks.retain(|config| !is_this(config));
        });
        changed.await.map(drop).map_err(broken)
    }

    async fn pushes(&self, task: &str) -> Result<Vec<TaskPushNotificationConfig>, A2AError> {
        self.sender()?;
        Ok(self.follow(task).await?.record.hooks)
    }

    fn sender(&self) -> Result<&Arc<dyn PushSender>, A2AError> {
        self.core.push().ok_or_else(A2AError::push_notification_not_supported)
    }
}

/// Resumes the deliveries of the previous server. If several nodes share the state, this happens as soon
/// as the state can be read.
///
/// # Errors
///
/// Returns an error if the state belongs to this server alone and cannot be read.
pub(crate) async fn resume(core: &Arc<Core>) -> Result<(), StateError> {
    if core.agent().tasks.node().is_none() {
        return resume_now(core).await;
    }
    let own = Arc::clone(core);
    core.tracker.spawn(async move {
        let mut pause = PAUSES[0];
        while let Err(error) = resume_now(&own).await {
            tracing::debug!(%error, "push notifications cannot go on yet");
            tokio::select! {
                () = own.draining.cancelled() => return,
                () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    });
    Ok(())
}

async fn resume_now(core: &Arc<Core>) -> Result<(), StateError> {
    let agent = core.agent();
    // Earlier versions had no list of records.
    agent.stored_tasks().await?;
    for row in agent.records.rows(None).await? {
        if row.listed.posts.as_deref() != Some(agent.node()) {
            continue;
        }
        let Some(record) = agent.records.get(row.id.as_str()).await? else { continue };
        let undelivered = record.hooks.iter().filter(|hook| !is_delivered(&record, hook));
        for config in undelivered.cloned().collect::<Vec<_>>() {
            if let Ok(Some(following)) = agent.follow(row.id.as_str(), Viewer::Operator).await {
                deliver(core, following, config);
            }
        }
    }
    Ok(())
}

/// Identifies a push configuration by its task and its id.
pub(super) type DeliveryKey = (String, Option<String>);

fn delivery_key(config: &TaskPushNotificationConfig) -> DeliveryKey {
    (config.task_id.clone(), config.id.clone())
}

fn is_delivered(record: &Record, config: &TaskPushNotificationConfig) -> bool {
    config.id.as_ref().is_some_and(|id| record.told.contains(id))
}

/// Posts the events of a task from now on.
pub(super) fn deliver(core: &Arc<Core>, following: Following, config: TaskPushNotificationConfig) {
    let (Some(sender), Ok(headers)) = (core.push().cloned(), headers(&config)) else { return };
    let agent = Arc::clone(core.agent());
    let (key, stop) = (delivery_key(&config), Arc::new(CancellationToken::new()));
    // A replaced delivery ends, even if its replacement is equal.
    if let Some(before) = agent.deliveries.lock().insert(key.clone(), Arc::clone(&stop)) {
        before.cancel();
    }
    let deliveries = Arc::clone(&agent);
    let delivery = Delivery { sender, agent, headers, config };
    let draining = core.draining.clone();
    core.tracker.spawn(async move {
        let shutdown = async {
            draining.cancelled().await;
            sleep(FINAL_DELIVERY_TIMEOUT).await;
        };
        tokio::select! {
            () = delivery.run(following) => {}
            () = stop.cancelled() => {}
            // The next server continues the delivery.
            () = shutdown => {}
        }
        let mut deliveries = deliveries.deliveries.lock();
        if deliveries.get(&key).is_some_and(|own| Arc::ptr_eq(own, &stop)) {
            deliveries.remove(&key);
        }
    });
}

/// Returns the headers of the posts for a configuration.
fn headers(config: &TaskPushNotificationConfig) -> Result<HeaderMap, A2AError> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    let authorization = config.authentication.as_ref().map(|own| match own.credentials.as_deref() {
        None | Some("") => own.scheme.clone(),
        Some(credentials) => format!("{} {credentials}", own.scheme),
    });
    for (name, value) in [(TOKEN, config.token.clone()), (AUTHORIZATION, authorization)] {
        if let Some(value) = value.filter(|value| !value.trim().is_empty()) {
            let mut value = HeaderValue::try_from(value).map_err(|_| {
                A2AError::invalid_params(format!("{name}: it cannot be sent in a header"))
            })?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
    }
    Ok(headers)
}

/// The delivery of one task's events to one address.
struct Delivery {
    sender: Arc<dyn PushSender>,
    agent: Arc<Agent>,
    headers: HeaderMap,
    config: TaskPushNotificationConfig,
}

impl Delivery {
    async fn run(self, following: Following) {
        let mut failures = 0;
        let mut events = std::pin::pin!(following.events(&self.agent, Until::End));
        while let Some(event) = events.next().await {
            // The configuration may have been removed or replaced.
            let record = self.agent.records.get(&self.config.task_id).await;
            if record.is_ok_and(|record| record.is_none_or(|it| !it.hooks.contains(&self.config))) {
                return;
            }
            let Ok(body) = serde_json::to_vec(&event) else { continue };
            match self.post(body.into()).await {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures += 1;
                    tracing::warn!(error, failures, "push notification failed");
                }
            }
            if failures == MAX_FAILURES {
                break;
            }
        }
        let recorded = self.agent.records.change(&self.config.task_id, |record| {
            record.told.extend(self.config.id.clone());
        });
        if let Err(error) = recorded.await {
            tracing::warn!(%error, "a push notification may be posted again");
        }
    }

    /// Posts an event, with a few retries.
    async fn post(&self, body: Bytes) -> Result<(), String> {
        let mut pauses = PAUSES.iter();
        loop {
            let push =
                Push { url: self.config.url.clone(), headers: self.headers.clone(), body: body.clone() };
            let key = self.agent.posts.acquire().await;
            let posted = timeout(TIME, self.sender.post(push)).await;
            drop(key);
            match (
                posted.unwrap_or_else(|_| Err(format!("no answer in {} s", TIME.as_secs()))),
                pauses.next(),
            ) {
                (Ok(()), _) => return Ok(()),
                (Err(_), Some(pause)) => sleep(*pause).await,
                (Err(error), None) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2a::AuthenticationInfo;

    fn config(
        token: Option<&str>,
        authentication: Option<(&str, Option<&str>)>,
    ) -> TaskPushNotificationConfig {
        let authentication = authentication.map(|(scheme, credentials)| AuthenticationInfo {
            scheme: scheme.to_owned(),
            credentials: credentials.map(str::to_owned),
        });
        TaskPushNotificationConfig {
            url: "https://example.com".to_owned(),
            id: None,
            task_id: String::new(),
            token: token.map(str::to_owned),
            authentication,
            tenant: None,
        }
    }

    #[test]
    fn a_configuration_determines_the_headers_of_a_post() {
        let made = |token, authentication| {
            let headers = headers(&config(token, authentication)).map_err(|error| error.message)?;
            let text =
                |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
            Ok::<_, String>((text(&TOKEN), text(&AUTHORIZATION)))
        };
        assert_eq!(made(None, None), Ok((None, None)));
        let both = made(Some("t"), Some(("Bearer", Some("secret"))));
        assert_eq!(both, Ok((Some("t".to_owned()), Some("Bearer secret".to_owned()))));
        assert_eq!(made(None, Some(("Basic", None))), Ok((None, Some("Basic".to_owned()))));
        let error = made(Some("a\nb"), None).unwrap_err();
        assert_eq!(error, "x-a2a-notification-token: it cannot be sent in a header");
    }

    #[test]
    fn debug_output_of_a_push_shows_no_secret() {
        let headers = headers(&config(Some("secret"), None)).unwrap();
        let push = Push { url: "https://secret".to_owned(), headers, body: Bytes::from_static(b"{}") };
        assert_eq!(format!("{push:?}"), "Push(2 bytes)");
    }
}
