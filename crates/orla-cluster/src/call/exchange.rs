//! One end of a call between nodes.

use std::sync::Arc;

use async_nats::{Message, StatusCode};
use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::frame::{Head, Kind, Order, Turn};
use super::payload::chunks;
use super::{HEARTBEAT, PEER_TIMEOUT, WINDOW};
use crate::inbox::Inbox;
use crate::link::{HEADER, Link};

/// The sending half of one end.
pub(super) struct Out {
    link: Arc<Link>,
    subject: String,
    /// How many counted frames were sent. Held while one is sent, so that they leave in their order.
    counted: Mutex<u64>,
    /// The bytes of the payload that have arrived at the other end.
    credited: watch::Sender<u64>,
}

/// One end of a call.
pub(super) struct Exchange {
    inbox: Inbox,
    order: Order,
    last_frame: Instant,
    pub(super) out: Arc<Out>,
}

/// A received item.
pub(super) enum Received {
    /// A frame that is neither a heartbeat nor a credit.
    Frame(Kind, u64, Bytes),
    /// No instance receives the call.
    NoResponders,
    /// The other end is lost, for this reason.
    Lost(&'static str),
}

impl Out {
    /// Sends a frame.
    ///
    /// # Errors
    ///
    /// It could not be sent, also not within the time after which the other end takes this one for lost.
    pub(super) async fn send(
        &self,
        kind: Kind,
        number: u64,
        payload: impl Into<Bytes>,
    ) -> Result<(), String> {
        let mut counted = self.counted.lock().await;
        let header = Head { kind, seq: *counted, number }.to_string();
        if kind.is_counted() {
            let mut connection = self.link.connection();
            drop(timeout(PEER_TIMEOUT, connection.wait_for(|is_connected| *is_connected)).await);
            *counted += 1;
        }
        self.link.send(self.subject.clone(), None, &header, payload.into()).await
    }

    /// Sends a whole payload, whose first frame is of this kind.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Self::send).
    pub(super) async fn send_payload(&self, kind: Kind, payload: &Bytes) -> Result<(), String> {
        let (first, others) = chunks(payload, self.link.chunk());
        let sent = first.len();
        self.send(kind, payload.len() as u64, first).await?;
        self.send_chunks(others, sent).await
    }

    /// Sends the other chunks of a payload, as far as they are credited.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Self::send).
    pub(super) async fn send_chunks(
        &self,
        chunks: impl Iterator<Item = Bytes>,
        mut sent: usize,
    ) -> Result<(), String> {
        let mut credited = self.credited.subscribe();
        for chunk in chunks {
            sent += chunk.len();
            let needed = sent.saturating_sub(WINDOW) as u64;
            // The sender of the credits is this end itself, and is there.
            drop(credited.wait_for(|credited| *credited >= needed).await);
            self.send(Kind::Chunk, 0, chunk).await?;
        }
        Ok(())
    }

    /// Sends heartbeats repeatedly.
    pub(super) async fn send_heartbeats(&self) {
        loop {
            sleep(HEARTBEAT).await;
            // Without a connection, the other end notices.
            drop(self.send(Kind::Beat, 0, Bytes::new()).await);
        }
    }

    /// Waits until everything is sent.
    pub(super) async fn flush(&self) {
        self.link.flush().await;
    }
}

impl Exchange {
    /// This end of a call with this instance of a node.
    pub(super) fn new(link: &Arc<Link>, inbox: Inbox, (node, instance): (&str, &str)) -> Self {
        let out = Out {
            link: Arc::clone(link),
            subject: link.frames_of(node, instance, &inbox.token),
            counted: Mutex::default(),
            credited: watch::Sender::new(0),
        };
        Self { inbox, order: Order::default(), last_frame: Instant::now(), out: Arc::new(out) }
    }

    /// Returns whether the other end has withdrawn the call, without having received anything and
    /// without sending more.
    pub(super) fn is_withdrawn(&mut self) -> bool {
        loop {
            match self.next().now_or_never() {
                None => return false,
                Some(Received::Frame(Kind::Cancel, ..) | Received::Lost(_) | Received::NoResponders) => {
                    return true;
                }
                Some(Received::Frame(..)) => {}
            }
        }
    }

    /// Returns the next frame. It can be dropped at any time.
    pub(super) async fn next(&mut self) -> Received {
        loop {
            let message = match timeout_at(self.last_frame + PEER_TIMEOUT, self.inbox.next()).await {
                Ok(Some(message)) => message,
                Ok(None) => return Received::Lost("its messages could not be taken in time"),
                Err(_) => return Received::Lost("it gives no sign of life"),
            };
            if message.status == Some(StatusCode::NO_RESPONDERS) {
                return Received::NoResponders;
            }
            // A message that is not a frame does not come from a node.
            let Some(head) = head(&message) else { continue };
            match self.order.turn(head) {
                Turn::Take => {}
                Turn::Gap => return Received::Lost("messages were lost"),
                Turn::Skip => continue,
            }
            let Head { kind, number, .. } = head;
            self.last_frame = Instant::now();
            match kind {
                Kind::Beat => {}
                Kind::Credit => {
                    self.out.credited.send_if_modified(|credited| {
                        let is_more = number > *credited;
                        *credited = number.max(*credited);
                        is_more
                    });
                }
                _ => return Received::Frame(kind, number, message.payload),
            }
        }
    }
}

fn head(message: &Message) -> Option<Head> {
    Head::read(message.headers.as_ref()?.get(HEADER)?.as_str())
}
