//! The connection to NATS, and where messages go.
//!
//! Every node receives at one subscription, `orla.CLUSTER.to.NODE.>`: calls at `call.DIGEST`, and the frames of a call
//! at `in.TOKEN`, where the token is random and the same at both ends. So the messages of one sender arrive in the
//! order in which they were sent. A message for a token that is not known is dropped.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_nats::jetstream::kv::{self, Store};
use async_nats::jetstream::{self, context};
use async_nats::{Client, ConnectOptions, Event, HeaderMap, Message, ServerAddr, Subscriber};
use bytes::Bytes;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use tokio::sync::{mpsc, watch};

use crate::error::ClusterError;
use crate::presence::{LEASE, hex};
use crate::settings::ClusterSettings;

/// The header of every message.
pub(crate) const HEADER: &str = "orla";
/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);
/// How long JetStream may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// The least and the most bytes of a message besides its header.
const CHUNK: (usize, usize) = (16 * 1024, 512 * 1024);
/// What of a message its header may take, in bytes.
pub(crate) const MAX_HEADER: usize = 64 * 1024;
/// The most frames of one call that wait to be read.
const MAX_WAITING: usize = 1024;
/// How long the offers of nodes are kept that left without a word.
const OFFERS: Duration = Duration::from_secs(24 * 3600);
/// What the buckets are, so that another version is told apart.
const DESCRIPTION: &str = "orla cluster 1";

/// The connection of a node.
pub(crate) struct Link {
    pub(crate) settings: ClusterSettings,
    client: OnceLock<Client>,
    is_connected: Arc<watch::Sender<bool>>,
    /// Whether calls of callers that were not identified are taken from other nodes.
    pub(crate) admits_anonymous: AtomicBool,
    inboxes: Mutex<HashMap<String, mpsc::Sender<Message>>>,
}

/// The buckets that all nodes share.
#[derive(Clone)]
pub(crate) struct Buckets {
    pub(crate) leases: Store,
    pub(crate) offers: Store,
}

/// Where the frames of one call arrive. When it is dropped, they are dropped too.
pub(crate) struct Inbox {
    link: Arc<Link>,
    pub(crate) token: String,
    frames: mpsc::Receiver<Message>,
}

impl Link {
    pub(crate) fn new(settings: ClusterSettings) -> Arc<Self> {
        Arc::new(Self {
            settings,
            client: OnceLock::new(),
            is_connected: Arc::new(watch::Sender::new(false)),
            admits_anonymous: AtomicBool::new(true),
            inboxes: Mutex::default(),
        })
    }

    /// Connects, if that was not done. From then on, a lost connection is made again for ever.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub(crate) async fn connect(&self) -> Result<(), ClusterError> {
        if self.client.get().is_some() {
            return Ok(());
        }
        let options = self.options().await?;
        let connected = options.connect(self.settings.nats.clone()).await;
        let client = connected.map_err(|err| ClusterError::of_connecting(&err))?;
        // There is one connection, which is made once.
        drop(self.client.set(client));
        self.is_connected.send_replace(true);
        Ok(())
    }

    async fn options(&self) -> Result<ConnectOptions, ClusterError> {
        let is_connected = Arc::clone(&self.is_connected);
        let settings = &self.settings;
        let mut options = ConnectOptions::new()
            .name(format!("orla {}", settings.node))
            .connection_timeout(CONNECT)
            .max_reconnects(None)
            .ping_interval(Duration::from_secs(5))
            .event_callback(move |event| {
                match event {
                    Event::Connected => {
                        if !is_connected.send_replace(true) {
                            tracing::info!("the cluster is connected");
                        }
                    }
                    Event::Disconnected | Event::Closed => {
                        if is_connected.send_replace(false) {
                            tracing::warn!(
                                "the connection to NATS is lost: capabilities of other nodes are unavailable until it is back"
                            );
                        }
                    }
                    other => tracing::debug!(event = %other, "NATS"),
                }
                std::future::ready(())
            });
        if let Some((user, password)) = user(&settings.nats) {
            options = match password {
                Some(password) => options.user_and_password(user, password),
                None => options.token(user),
            };
        }
        if let Some(path) = &settings.credentials {
            let failed = |err: std::io::Error| ClusterError::File {
                what: "credentials",
                path: path.clone(),
                problem: err.to_string(),
            };
            options = options.credentials_file(path).await.map_err(failed)?;
        }
        for (what, path) in [
            ("tls.ca", &settings.tls.ca),
            ("tls.certificate", &settings.tls.certificate),
            ("tls.key", &settings.tls.key),
        ] {
            let Some(path) = path.clone() else { continue };
            let file = path.clone();
            let read = tokio::task::spawn_blocking(move || std::fs::read(file));
            if let Ok(Err(err)) = read.await {
                return Err(ClusterError::File { what, path, problem: err.to_string() });
            }
        }
        if let Some(ca) = &settings.tls.ca {
            options = options.add_root_certificates(ca.clone()).require_tls(true);
        }
        if let (Some(certificate), Some(key)) = (&settings.tls.certificate, &settings.tls.key) {
            options = options.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
        }
        Ok(options)
    }

    /// Opens the buckets, and makes them where there are none.
    ///
    /// # Errors
    /// There is no JetStream, it refuses, or it has buckets of another version.
    pub(crate) async fn buckets(&self) -> Result<Buckets, ClusterError> {
        let Some(client) = self.client.get() else {
            return Err(ClusterError::Unreachable("there is no connection".to_owned()));
        };
        let mut context = jetstream::new(client.clone());
        context.set_timeout(ANSWER);
        context.query_account().await.map_err(|err| match err.kind() {
            context::AccountErrorKind::JetStreamUnavailable => ClusterError::NoJetStream,
            context::AccountErrorKind::TimedOut => {
                ClusterError::Unreachable("JetStream does not answer".to_owned())
            }
            context::AccountErrorKind::JetStream(err) if err.code() == 503 => ClusterError::NoJetStream,
            _ => ClusterError::JetStream(err.to_string()),
        })?;
        let name = &self.settings.name;
        Ok(Buckets {
            leases: bucket(&context, format!("orla-{name}-leases"), LEASE).await?,
            offers: bucket(&context, format!("orla-{name}-offers"), OFFERS).await?,
        })
    }

    /// Whether there is a connection now, and changes of that.
    pub(crate) fn connection(&self) -> watch::Receiver<bool> {
        self.is_connected.subscribe()
    }

    pub(crate) fn is_connected(&self) -> bool {
        *self.is_connected.borrow()
    }

    /// Receives everything that is sent to this node.
    pub(crate) async fn receive(&self) -> Result<Subscriber, String> {
        self.subscribe(format!("{}.>", self.subjects(&self.settings.node))).await
    }

    pub(crate) async fn subscribe(&self, subject: String) -> Result<Subscriber, String> {
        let client = self.client.get().ok_or("there is no connection")?;
        client.subscribe(subject).await.map_err(|err| err.to_string())
    }

    fn subjects(&self, node: &str) -> String {
        format!("orla.{}.to.{node}", self.settings.name)
    }

    /// Where a node receives calls of this version of a capability.
    pub(crate) fn calls_of(&self, node: &str, digest: &str) -> String {
        format!("{}.call.{digest}", self.subjects(node))
    }

    /// Where a node receives the frames of this call.
    pub(crate) fn frames_of(&self, node: &str, token: &str) -> String {
        format!("{}.in.{token}", self.subjects(node))
    }

    /// The bytes of a payload that fit into one message.
    pub(crate) fn chunk(&self) -> usize {
        let max = self.client.get().map_or(0, Client::max_payload);
        max.saturating_sub(MAX_HEADER).clamp(CHUNK.0, CHUNK.1)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// It could not be sent, and was not.
    pub(crate) async fn send(
        &self,
        subject: String,
        reply: Option<String>,
        header: &str,
        payload: Bytes,
    ) -> Result<(), String> {
        let client = self.client.get().filter(|_| self.is_connected());
        let client = client.ok_or("there is no connection to NATS")?;
        let mut headers = HeaderMap::new();
        let header: async_nats::HeaderValue = header.parse().map_err(|_| "the header has lines")?;
        headers.insert(HEADER, header);
        let sent = match reply {
            Some(reply) => client.publish_with_reply_and_headers(subject, reply, headers, payload).await,
            None => client.publish_with_headers(subject, headers, payload).await,
        };
        sent.map_err(|err| err.to_string())
    }

    /// Waits until everything is sent.
    pub(crate) async fn flush(&self) {
        if let Some(client) = self.client.get().filter(|_| self.is_connected()) {
            drop(tokio::time::timeout(ANSWER, client.flush()).await);
        }
    }

    /// An inbox for a call that begins here.
    ///
    /// # Errors
    /// The system has no randomness.
    pub(crate) fn open(self: &Arc<Self>) -> Result<Inbox, String> {
        let mut token = [0; 16];
        getrandom::fill(&mut token).map_err(|err| err.to_string())?;
        self.open_as(hex(&token)).ok_or_else(|| "the token is taken".to_owned())
    }

    /// An inbox for a call that came with this token. `None` if it is known already.
    pub(crate) fn open_as(self: &Arc<Self>, token: String) -> Option<Inbox> {
        let (sender, frames) = mpsc::channel(MAX_WAITING);
        let mut inboxes = self.inboxes.lock();
        if inboxes.contains_key(&token) {
            return None;
        }
        inboxes.insert(token.clone(), sender);
        Some(Inbox { link: Arc::clone(self), token, frames })
    }

    /// Hands a frame to its call. A call that does not read them in time loses its inbox, and with it the rest.
    pub(crate) fn deliver(&self, token: &str, message: Message) {
        let mut inboxes = self.inboxes.lock();
        if let Some(inbox) = inboxes.get(token)
            && inbox.try_send(message).is_err()
        {
            inboxes.remove(token);
        }
    }
}

impl Inbox {
    /// The next frame. `None` if the call did not read them in time.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        self.frames.recv().await
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.link.inboxes.lock().remove(&self.token);
    }
}

/// The user and the password of the first address that has them. One without a password is a token.
fn user(addresses: &[String]) -> Option<(String, Option<String>)> {
    let addresses = addresses.iter().filter_map(|address| address.parse::<ServerAddr>().ok());
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let of = |address: ServerAddr| Some((decoded(address.username()?), address.password().map(decoded)));
    addresses.into_iter().find_map(of)
}

/// Opens a bucket whose entries are kept this long.
async fn bucket(
    context: &jetstream::Context,
    bucket: String,
    max_age: Duration,
) -> Result<Store, ClusterError> {
    if let Ok(store) = context.get_key_value(bucket.as_str()).await {
        let is_own = store
            .status()
            .await
            .is_ok_and(|status| status.info.config.description.as_deref() == Some(DESCRIPTION));
        return if is_own { Ok(store) } else { Err(ClusterError::OtherVersion { bucket }) };
    }
    let config = kv::Config {
        bucket: bucket.clone(),
        description: DESCRIPTION.to_owned(),
        history: 1,
        max_age,
        num_replicas: 3,
        ..kv::Config::default()
    };
    // One server alone keeps one replica.
    if let Ok(store) = context.create_key_value(config.clone()).await {
        return Ok(store);
    }
    let alone = kv::Config { num_replicas: 1, ..config };
    let made = context.create_key_value(alone).await;
    made.map_err(|err| ClusterError::JetStream(format!("{bucket}: {err}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_stands_in_an_address() {
        let user = |address: &str| user(&["nats://h:1".to_owned(), address.to_owned()]);
        assert_eq!(user("nats://a:b%20c@h"), Some(("a".to_owned(), Some("b c".to_owned()))));
        assert_eq!(user("nats://token@h:4222"), Some(("token".to_owned(), None)));
        assert_eq!(user("nats://h:4222"), None);
    }
}
