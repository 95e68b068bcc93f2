//! The connection to NATS, and the routing of messages.
//!
//! Every instance receives at one subscription, `orla.CLUSTER.to.NODE.INSTANCE.>`: calls at
//! `call.DIGEST`, inquiries at `ask.1`, and the frames of a call or an answer at `in.TOKEN`. The token
//! is random and the same at both ends. The messages of one sender therefore arrive in the order in
//! which they were sent. A message with an unknown token is dropped. Two processes with the name of one
//! node are two instances, so a call reaches only one of them.

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_nats::jetstream::context::{
    CreateStreamError, CreateStreamErrorKind, GetStreamError, GetStreamErrorKind,
};
use async_nats::jetstream::kv::{self, Store};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Client, ConnectOptions, Event, HeaderMap, ServerAddr, Subscriber};
use bytes::Bytes;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::ClusterError;
use crate::inbox::{Inbox, Inboxes};
use crate::presence::LEASE;
use crate::settings::{CREDENTIALS, ClusterSettings};

/// The header of every message.
pub(crate) const HEADER: &str = "orla";
/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);
/// How long JetStream may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The least and the most bytes of a message besides its header.
const CHUNK: (usize, usize) = (16 * 1024, 512 * 1024);
/// The maximum size of the header of a message.
pub(crate) const MAX_HEADER: usize = 64 * 1024;
/// How long a message to this instance itself may take before NATS counts as silent.
const ECHO: Duration = Duration::from_secs(2);
/// How long calls wait for a new connection, possibly to another server, after a connection was lost.
const RECONNECT: Duration = Duration::from_secs(5);
/// How often the same complaint of NATS is logged, and how many different ones are remembered.
const LOGGED_PROBLEMS: (Duration, usize) = (Duration::from_secs(60), 64);
/// The replicas of a bucket where NATS is a cluster.
pub(crate) const REPLICAS: usize = 3;
/// How long the offers of nodes are kept that left without a word.
const OFFERS: Duration = Duration::from_secs(24 * 3600);
/// The description of the buckets, which distinguishes versions.
const DESCRIPTION: &str = "orla cluster 1";

/// The connection of a node.
pub(crate) struct Link {
    pub(crate) settings: ClusterSettings,
    /// The identifier of this process, distinct from other processes with the name of this node.
    pub(crate) instance: String,
    client: OnceLock<Client>,
    is_connected: Arc<watch::Sender<bool>>,
    /// When the connection was lost last.
    lost: Arc<Mutex<Option<Instant>>>,
    /// Whether calls of callers that were not identified are taken from other nodes.
    pub(crate) admits_anonymous: AtomicBool,
    inboxes: Arc<Inboxes>,
}

/// The buckets that all nodes share.
#[derive(Clone)]
pub(crate) struct Buckets {
    pub(crate) leases: Store,
    pub(crate) offers: Store,
}

impl Link {
    pub(crate) fn new(settings: ClusterSettings) -> Arc<Self> {
        Arc::new(Self {
            settings,
            // Without randomness, it does not connect.
            instance: random::<8>().unwrap_or_default(),
            client: OnceLock::new(),
            is_connected: Arc::new(watch::Sender::new(false)),
            lost: Arc::default(),
            admits_anonymous: AtomicBool::new(true),
            inboxes: Arc::default(),
        })
    }

    /// Connects, unless already connected. From then on, a lost connection is always reestablished.
    ///
    /// # Errors
    ///
    /// See [`ClusterError`].
    pub(crate) async fn connect(&self) -> Result<(), ClusterError> {
        if self.client.get().is_some() {
            return Ok(());
        }
        if self.instance.is_empty() {
            return Err(ClusterError::Unreachable("the system has no randomness".to_owned()));
        }
        let options = self.options().await?;
        let connected = options.connect(self.settings.nats.clone()).await;
        let client = connected.map_err(|err| ClusterError::of_connecting(&err))?;
        // There is one connection, which is made once.
        drop(self.client.set(client));
        // Only the events determine the current state.
        let mut connection = self.connection();
        drop(timeout(CONNECT, connection.wait_for(|is_connected| *is_connected)).await);
        Ok(())
    }

    /// Returns the connection, if it was ever made.
    pub(crate) fn client(&self) -> Option<&Client> {
        self.client.get()
    }

    async fn options(&self) -> Result<ConnectOptions, ClusterError> {
        let (is_connected, lost) = (Arc::clone(&self.is_connected), Arc::clone(&self.lost));
        let logged_problems = LoggedProblems::default();
        let settings = &self.settings;
        let mut options = ConnectOptions::new()
            .name(format!("orla {}", settings.node))
            // So that no other node may be allowed to read what JetStream answers to this one.
            .custom_inbox_prefix(format!("_INBOX.{}", settings.node))
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
                            *lost.lock() = Some(Instant::now());
                            tracing::warn!(
                                "the connection to NATS is lost: capabilities of other nodes are unavailable until it is back"
                            );
                        }
                    }
                    Event::ServerError(_) | Event::ClientError(_) | Event::SlowConsumer(_) => {
                        if logged_problems.is_new(&event.to_string(), Instant::now()) {
                            tracing::warn!(%event, "NATS complains about this node");
                        }
                    }
                    Event::LameDuckMode => {
                        tracing::info!("the NATS server ends; another one is tried");
                    }
                    Event::Draining => tracing::debug!("the connection to NATS ends"),
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
                what: CREDENTIALS,
                path: path.clone(),
                problem: err.to_string(),
            };
            options = options.credentials_file(path).await.map_err(failed)?;
        }
        for (what, path) in settings.files().filter(|(what, _)| *what != CREDENTIALS) {
            let path = path.to_owned();
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
    ///
    /// Returns an error if there is no JetStream, it refuses, or it has buckets of another version.
    pub(crate) async fn buckets(&self) -> Result<Buckets, ClusterError> {
        let Some(client) = self.client.get() else {
            return Err(ClusterError::Unreachable("there is no connection".to_owned()));
        };
        let mut context = jetstream::new(client.clone());
        context.set_timeout(ANSWER_TIMEOUT);
        let account = context.query_account().await;
        account.map_err(|err| ClusterError::of_account(&err.kind()))?;
        let name = &self.settings.name;
        Ok(Buckets {
            leases: bucket(&context, format!("orla-{name}-leases"), LEASE).await?,
            offers: bucket(&context, format!("orla-{name}-offers"), OFFERS).await?,
        })
    }

    /// Returns whether there is a connection now, and changes of that.
    pub(crate) fn connection(&self) -> watch::Receiver<bool> {
        self.is_connected.subscribe()
    }

    pub(crate) fn is_connected(&self) -> bool {
        *self.is_connected.borrow()
    }

    /// Returns whether there is a connection. Waits for the next one if the connection was just lost.
    pub(crate) async fn wait_until_connected(&self) -> bool {
        let lost = *self.lost.lock();
        let mut connection = self.connection();
        let connected = connection.wait_for(|is_connected| *is_connected);
        match lost {
            Some(lost) => timeout_at(lost + RECONNECT, connected).await.is_ok(),
            None => self.is_connected(),
        }
    }

    /// Receives everything that is sent to this instance.
    pub(crate) async fn receive(&self) -> Result<Subscriber, String> {
        self.subscribe(format!("{}.>", self.subjects(&self.settings.node, &self.instance))).await
    }

    pub(crate) async fn subscribe(&self, subject: String) -> Result<Subscriber, String> {
        let client = self.client.get().ok_or("there is no connection")?;
        client.subscribe(subject).await.map_err(|err| err.to_string())
    }

    fn subjects(&self, node: &str, instance: &str) -> String {
        format!("orla.{}.to.{node}.{instance}", self.settings.name)
    }

    /// Where an instance receives calls of this version of a capability.
    pub(crate) fn calls_of(&self, node: &str, instance: &str, digest: &str) -> String {
        format!("{}.call.{digest}", self.subjects(node, instance))
    }

    /// Where an instance receives the frames of this call.
    pub(crate) fn frames_of(&self, node: &str, instance: &str, token: &str) -> String {
        format!("{}.in.{token}", self.subjects(node, instance))
    }

    /// Where an instance receives inquiries.
    pub(crate) fn inquiries_of(&self, node: &str, instance: &str) -> String {
        format!("{}.ask.{}", self.subjects(node, instance), crate::inquiry::VERSION)
    }

    /// Where this instance receives the frames of this call.
    pub(crate) fn own_frames(&self, token: &str) -> String {
        self.frames_of(&self.settings.node, &self.instance, token)
    }

    /// Returns whether messages to this subject go to instances of the cluster.
    pub(crate) fn is_of_cluster(&self, subject: &str) -> bool {
        subject.starts_with(&format!("orla.{}.to.", self.settings.name))
    }

    /// Returns the bytes of a payload that fit into one message.
    pub(crate) fn chunk(&self) -> usize {
        let max = self.client.get().map_or(0, Client::max_payload);
        max.saturating_sub(MAX_HEADER).clamp(CHUNK.0, CHUNK.1)
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// Returns an error if it could not be sent, and was not.
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
            drop(timeout(ANSWER_TIMEOUT, client.flush()).await);
        }
    }

    /// Sends an echo request, and returns whether the echo arrives. A connection that was lost silently
    /// looks like an open one.
    pub(crate) async fn probe(&self) -> bool {
        let Ok(mut inbox) = self.open() else { return false };
        let echo = async {
            self.send(self.own_frames(&inbox.token), None, "echo", Bytes::new()).await.ok()?;
            inbox.next().await
        };
        matches!(timeout(ECHO, echo).await, Ok(Some(_)))
    }

    /// Returns an inbox for a call that begins here.
    ///
    /// # Errors
    ///
    /// Returns an error if the system has no randomness.
    pub(crate) fn open(&self) -> Result<Inbox, String> {
        self.open_as(random::<16>()?).ok_or_else(|| "the token is taken".to_owned())
    }

    /// Returns an inbox for a call that came with this token. `None` if it is known already.
    pub(crate) fn open_as(&self, token: String) -> Option<Inbox> {
        self.inboxes.open(token)
    }

    /// Hands a frame to its call.
    pub(crate) fn deliver(&self, token: &str, message: async_nats::Message) {
        self.inboxes.deliver(token, message);
    }
}

/// Returns this many random bytes, as hexadecimal digits.
pub(crate) fn random<const BYTES: usize>() -> Result<String, String> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|err| err.to_string())?;
    Ok(hex::encode(bytes))
}

/// The recently logged problems.
#[derive(Default)]
struct LoggedProblems(Mutex<HashMap<String, Instant>>);

impl LoggedProblems {
    /// Returns whether this one is worth a line.
    fn is_new(&self, text: &str, now: Instant) -> bool {
        let (pause, most) = LOGGED_PROBLEMS;
        let mut known = self.0.lock();
        known.retain(|_, logged| now.saturating_duration_since(*logged) < pause);
        let is_new = known.len() < most && !known.contains_key(text);
        if is_new {
            known.insert(text.to_owned(), now);
        }
        is_new
    }
}

/// Returns the user and the password of the first address that has them. One without a password is a
/// token.
fn user(addresses: &[String]) -> Option<(String, Option<String>)> {
    let addresses = addresses.iter().filter_map(|address| address.parse::<ServerAddr>().ok());
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let of = |address: ServerAddr| Some((decoded(address.username()?), address.password().map(decoded)));
    addresses.into_iter().find_map(of)
}

/// Opens a bucket whose entries are kept this long, and makes it if there is none.
async fn bucket(
    context: &jetstream::Context,
    bucket: String,
    max_age: Duration,
) -> Result<Store, ClusterError> {
    if let Some(store) = open(context, &bucket).await? {
        return Ok(store);
    }
    let config = |num_replicas| kv::Config {
        bucket: bucket.clone(),
        description: DESCRIPTION.to_owned(),
        history: 1,
        max_age,
        num_replicas,
        ..kv::Config::default()
    };
    let mut made = context.create_key_value(config(REPLICAS)).await;
    if made.as_ref().is_err_and(|err| is_about_replicas(code(err))) {
        made = context.create_key_value(config(1)).await;
    }
    match made {
        Ok(store) => Ok(store),
        // Another node made it meanwhile.
        Err(err) if code(&err) == Some(ErrorCode::STREAM_NAME_EXIST) => {
            let opened = open(context, &bucket).await?;
            opened.ok_or_else(|| ClusterError::JetStream(format!("{bucket}: it comes and goes")))
        }
        Err(err) => Err(ClusterError::JetStream(format!("{bucket}: {}", whole(&err)))),
    }
}

/// Opens a bucket. `None` if there is none.
async fn open(context: &jetstream::Context, bucket: &str) -> Result<Option<Store>, ClusterError> {
    let store = match context.get_key_value(bucket).await {
        Ok(store) => store,
        Err(err) if code(&err) == Some(ErrorCode::STREAM_NOT_FOUND) => return Ok(None),
        Err(err) => return Err(ClusterError::JetStream(format!("{bucket}: {}", whole(&err)))),
    };
    let info = store.stream.cached_info();
    if info.config.description.as_deref() != Some(DESCRIPTION) {
        return Err(ClusterError::OtherVersion { bucket: bucket.to_owned() });
    }
    Ok(Some(store))
}

/// Returns whether there are too few servers for the replicas of a bucket.
pub(crate) fn is_about_replicas(code: Option<ErrorCode>) -> bool {
    let codes = [ErrorCode::CLUSTER_NO_PEERS, ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED];
    code.is_some_and(|code| codes.contains(&code))
}

/// Returns the code of JetStream's answer behind an error, if it answered.
pub(crate) fn code(error: &(dyn Error + 'static)) -> Option<ErrorCode> {
    let errors = std::iter::successors(Some(error), |error| (*error).source());
    errors.into_iter().find_map(|error| {
        if let Some(error) = error.downcast_ref::<GetStreamError>()
            && let GetStreamErrorKind::JetStream(answer) = error.kind()
        {
            return Some(answer.error_code());
        }
        match error.downcast_ref::<CreateStreamError>()?.kind() {
            CreateStreamErrorKind::JetStream(answer) => Some(answer.error_code()),
            _ => None,
        }
    })
}

/// Returns an error and its causes as one line.
fn whole(error: &(dyn Error + 'static)) -> String {
    let errors = std::iter::successors(Some(error), |error| (*error).source());
    errors.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_problem_is_logged_once_a_minute() {
        let (logged_problems, now) = (LoggedProblems::default(), Instant::now());
        assert!(logged_problems.is_new("a", now) && logged_problems.is_new("b", now));
        assert!(!logged_problems.is_new("a", now + LOGGED_PROBLEMS.0 / 2));
        assert!(logged_problems.is_new("a", now + LOGGED_PROBLEMS.0));
        assert!(
            (0..1000).filter(|n| logged_problems.is_new(&n.to_string(), now)).count()
                <= LOGGED_PROBLEMS.1
        );
    }

    #[test]
    fn an_address_may_name_a_user() {
        let user = |address: &str| user(&["nats://h:1".to_owned(), address.to_owned()]);
        assert_eq!(user("nats://a:b%20c@h"), Some(("a".to_owned(), Some("b c".to_owned()))));
        assert_eq!(user("nats://token@h:4222"), Some(("token".to_owned(), None)));
        assert_eq!(user("nats://h:4222"), None);
    }
}
