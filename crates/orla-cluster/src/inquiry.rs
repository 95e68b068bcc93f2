//! Inquiries: requests between nodes besides calls, with one message in each direction.
//!
//! An inquiry is sent to an instance, at `ask.1` of its subjects, with or without a caller. The
//! recipient interprets its content ([`Answerer`]). An inquiry must have no effect that a lost message
//! would leave in doubt for long: the sender waits for the answer, and may repeat the inquiry.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use async_nats::{Message, StatusCode};
use async_trait::async_trait;
use bytes::Bytes;
use orla_marketplace::Principal;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::caller::Caller;
use crate::link::{HEADER, Link, MAX_HEADER};
use crate::presence::{Peer, is_name};
use crate::shared::Shared;

/// The version of inquiries, which is a part of their subject.
pub(crate) const VERSION: &str = "1";
/// The maximum number of inquiries of other nodes that are answered at once.
const MAX_INQUIRIES: usize = 1024;
const ANSWER: &str = "answer";
const REFUSAL: &str = "refused";

/// Answers the questions of other nodes, and decides which callers to serve.
#[async_trait]
pub trait Answerer: Send + Sync {
    /// Returns the answer to a question in the name of this caller, of at most
    /// [`Cluster::max_payload`](crate::Cluster::max_payload) bytes.
    async fn answer(&self, caller: Option<Principal>, question: Bytes) -> Bytes;
}

/// The reason why a node gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoReply {
    /// It is not there any more.
    #[error("the node is gone")]
    Gone,
    /// It does not answer.
    #[error("the node does not answer: {0}")]
    Silent(String),
}

/// The header of an inquiry.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    from: String,
    caller: Option<Caller>,
}

/// The inquiries that a node sends and receives.
pub(crate) struct Inquiries {
    link: Arc<Link>,
    shared: Arc<Shared>,
    pub(crate) answerer: OnceLock<Arc<dyn Answerer>>,
    places: Arc<Semaphore>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Inquiries {
    pub(crate) fn new(
        link: &Arc<Link>,
        shared: &Arc<Shared>,
        stop: &CancellationToken,
        tasks: &TaskTracker,
    ) -> Arc<Self> {
        Arc::new(Self {
            link: Arc::clone(link),
            shared: Arc::clone(shared),
            answerer: OnceLock::new(),
            places: Arc::new(Semaphore::new(MAX_INQUIRIES)),
            stop: stop.clone(),
            tasks: tasks.clone(),
        })
    }

    /// Asks an instance.
    ///
    /// # Errors
    ///
    /// Returns an error if no answer arrives within this time.
    pub(crate) async fn ask(
        &self,
        instance: &str,
        caller: Option<&Principal>,
        question: Bytes,
        max_wait: Duration,
    ) -> Result<Bytes, NoReply> {
        let peer = self.shared.read(|registry| registry.peer(instance));
        self.ask_peer(&peer.ok_or(NoReply::Gone)?, caller, question, max_wait).await
    }

    async fn ask_peer(
        &self,
        peer: &Peer,
        caller: Option<&Principal>,
        question: Bytes,
        max_wait: Duration,
    ) -> Result<Bytes, NoReply> {
        let link = &self.link;
        if question.len() > link.chunk() {
            return Err(NoReply::Silent("the question is too large".to_owned()));
        }
        let head = Head { from: link.settings.node.clone(), caller: caller.map(Caller::of) };
        let head = serde_json::to_string(&head).unwrap_or_default();
        if head.len() > MAX_HEADER - 1024 {
            return Err(NoReply::Silent("the data about the caller is too large to be sent".to_owned()));
        }
        let mut inbox = link.open().map_err(NoReply::Silent)?;
        let reply = link.own_frames(&inbox.token);
        let sent =
            link.send(link.inquiries_of(&peer.node, &peer.instance), Some(reply), &head, question);
        sent.await.map_err(NoReply::Silent)?;
        match timeout(max_wait, inbox.next()).await {
            Ok(Some(Message { status: Some(StatusCode::NO_RESPONDERS), .. })) => Err(NoReply::Gone),
            Ok(Some(message)) if header(&message) == ANSWER => Ok(message.payload),
            Ok(Some(message)) => {
                let why = String::from_utf8_lossy(&message.payload).into_owned();
                Err(NoReply::Silent(why.chars().filter(|c| !c.is_control()).take(500).collect()))
            }
            Ok(None) | Err(_) => Err(NoReply::Silent("it took too long".to_owned())),
        }
    }

    /// Answers what another node asks.
    pub(crate) fn receive(self: &Arc<Self>, message: Message) {
        let Some(reply) = message.reply.clone().filter(|reply| self.link.is_of_cluster(reply)) else {
            return;
        };
        // No task takes more than that, and they ask again.
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return };
        let inquiries = Arc::clone(self);
        self.tasks.spawn(async move {
            let _place = place;
            let result = tokio::select! {
                result = inquiries.answer(&message) => result,
                () = inquiries.stop.cancelled() => Err("the node is shutting down".to_owned()),
            };
            let (header, answer) = match result {
                Ok(answer) if answer.len() <= inquiries.link.chunk() => (ANSWER, answer),
                Ok(_) => (REFUSAL, Bytes::from_static(b"its answer is too large")),
                Err(why) => (REFUSAL, why.into()),
            };
            // The sender notices the missing answer.
            drop(inquiries.link.send(reply.to_string(), None, header, answer).await);
        });
    }

    /// Answers one question.
    ///
    /// # Errors
    ///
    /// Returns why there is no answer, for the node that asks.
    async fn answer(&self, message: &Message) -> Result<Bytes, String> {
        let answerer = self.answerer.get().ok_or("it answers nothing yet")?;
        let caller = caller_of(header(message), SystemTime::now())?;
        Ok(answerer.answer(caller, message.payload.clone()).await)
    }
}

/// Returns the caller in whose name the inquiry is made.
///
/// # Errors
///
/// Returns an error if the header lacks the caller, or if this node may not answer for it.
fn caller_of(header: &str, now: SystemTime) -> Result<Option<Principal>, &'static str> {
    let head: Head = serde_json::from_str(header).map_err(|_| "it cannot read who asks")?;
    if !is_name(&head.from) || head.caller.as_ref().is_some_and(Caller::is_too_large) {
        return Err("it cannot read who asks");
    }
    let caller = head.caller.map(|caller| caller.principal(now)).transpose();
    caller.map_err(|_| "it does not know the permissions or the credential of who asks")
}

fn header(message: &Message) -> &str {
    let header = message.headers.as_ref().and_then(|headers| headers.get(HEADER));
    header.map_or("", |header| header.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_inquiry_is_made_in_the_name_of_its_caller() {
        let ada = Principal::token("ada")
            .with_groups(["ops"])
            .with_expiry(SystemTime::UNIX_EPOCH + Duration::from_secs(9));
        let head = Head { from: "alpha".to_owned(), caller: Some(Caller::of(&ada)) };
        let text = serde_json::to_string(&head).unwrap();
        let read = caller_of(&text, SystemTime::UNIX_EPOCH).unwrap().unwrap();
        assert!(read == ada && read.groups().eq(["ops"]));
        assert!(caller_of(&text, SystemTime::now()).is_err(), "its credential has expired");
        let anonymous = r#"{"from":"alpha","caller":null}"#;
        assert_eq!(caller_of(anonymous, SystemTime::now()), Ok(None));
        for bad in ["", "{}", r#"{"from":"a.b","caller":null}"#] {
            assert!(caller_of(bad, SystemTime::now()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_header_can_be_read(text in r#"[\{\}\[\]",:a-z0-9 ]{0,80}"#) {
            let _ = caller_of(&text, SystemTime::now());
        }
    }
}
