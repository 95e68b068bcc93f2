//! Questions to the client of a session: requests on the stream of the asking call.
//!
//! # How it works
//!
//! A [`SessionClient`] belongs to one call. Each question goes out as a JSON-RPC request with a number that no
//! other question of this server has, and waits in the [`Questions`] of its own session. The client's answer is
//! looked up only there. An abandoned question is withdrawn with `notifications/cancelled`, at the latest before
//! the call's own answer goes out.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use orla_marketplace::{Client, ClientError, JsonText};
use orla_mcp::object::{Object, trusted};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::mcp::input::questions::{INTERNAL, MAX_OPEN, Requirement, check_params, take_key, too_many};
use crate::mcp::notify::notices::Outlet;
use crate::mcp::rpc::{self, Response};
use crate::mcp::session::Session;

type Reply = Result<JsonText, ClientError>;

/// The questions of one session that wait for their answers.
#[derive(Default)]
pub(crate) struct Questions(Mutex<HashMap<u64, oneshot::Sender<Reply>>>);

impl Questions {
    /// Passes an answer to its question. An answer without an open question is dropped: the question was withdrawn, or
    /// never asked here. Returns whether there was one.
    pub(crate) fn answer(&self, response: &Response<'_>, body: &Bytes) -> bool {
        let number = response.id.as_ref().and_then(|id| id.as_str().parse().ok());
        let waiting = number.and_then(|number: u64| self.take(number));
        match waiting {
            Some(waiting) => {
                // Fails if the asking call has just ended.
                drop(waiting.send(reply(response, body)));
                true
            }
            None => {
                tracing::debug!("an answer of a client has no open question here");
                false
            }
        }
    }

    fn ask(&self, number: u64) -> Option<oneshot::Receiver<Reply>> {
        let mut open = self.0.lock();
        if open.len() >= MAX_OPEN {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        open.insert(number, sender);
        Some(receiver)
    }

    fn take(&self, number: u64) -> Option<oneshot::Sender<Reply>> {
        let mut open = self.0.lock();
        let taken = open.remove(&number);
        if open.is_empty() {
            *open = HashMap::new();
        }
        taken
    }
}

fn reply(response: &Response<'_>, body: &Bytes) -> Reply {
    if let Some(result) = response.result {
        return Ok(JsonText::slice_of(body, result));
    }
    let error = response.error.and_then(|error| Object::parse(error.get()));
    let member = |key: &str| error.as_ref().and_then(|error| error.get(key));
    let message = error.as_ref().and_then(|error| error.text("message"));
    Err(ClientError::Refused {
        code: member("code").and_then(|code| code.parse().ok()).unwrap_or(INTERNAL),
        message: message.unwrap_or_else(|| "no reason given".to_owned()),
        data: member("data").map(|data| trusted(data.to_owned())),
    })
}

/// The client of a session, as one call sees it.
pub(crate) struct SessionClient {
    pub(crate) session: Arc<Session>,
    /// The capabilities that it declared.
    pub(crate) capabilities: JsonText,
    /// The call's own stream.
    pub(crate) outlet: Arc<dyn Outlet>,
    /// Numbers every question of the server.
    pub(crate) numbers: Arc<AtomicU64>,
    /// Cancelled when the call is withdrawn or its session ends.
    pub(crate) cancellation: CancellationToken,
    /// The deadline of the call.
    pub(crate) deadline: Instant,
    /// The call's questions that wait; `None` when the call is over.
    pub(crate) open: Mutex<Option<Vec<u64>>>,
}

impl SessionClient {
    /// The call is over: its questions are withdrawn, and it cannot ask any more.
    pub(crate) fn end(&self) {
        let open = self.open.lock().take();
        for number in open.into_iter().flatten() {
            self.withdraw(number);
        }
    }

    fn withdraw(&self, number: u64) {
        if self.session.questions.take(number).is_some() {
            let params =
                format!(r#"{{"requestId":{number},"reason":"the answer is no longer needed"}}"#);
            self.outlet.send(rpc::to_client(None, "notifications/cancelled", &params));
        }
    }
}

#[async_trait]
impl Client for SessionClient {
    fn capabilities(&self) -> JsonText {
        self.capabilities.clone()
    }

    fn session(&self) -> Option<u64> {
        Some(Arc::as_ptr(&self.session).addr() as u64)
    }

    async fn request(&self, method: &str, params: JsonText) -> Reply {
        check_params(&params)?;
        let (_, params) = take_key(params);
        let need = Requirement::of(method, &params);
        if !need.is_some_and(|need| need.is_met(self.capabilities.as_str())) {
            return Err(ClientError::Unsupported(method.to_owned()));
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let answer = {
            let mut open = self.open.lock();
            let open = open.as_mut().ok_or(ClientError::Gone)?;
            let answer = self.session.questions.ask(number).ok_or_else(too_many)?;
            open.push(number);
            answer
        };
        let _pending = PendingQuestion { client: self, number };
        let ask = async {
            self.outlet.deliver(rpc::to_client(Some(number), method, params.as_str())).await;
            answer.await
        };
        tokio::select! {
            biased;
            answer = ask => answer.unwrap_or(Err(ClientError::Gone)),
            () = self.cancellation.cancelled() => Err(ClientError::Gone),
            () = tokio::time::sleep_until(self.deadline) => Err(ClientError::Gone),
        }
    }
}

/// An open question. Dropping it before the answer withdraws the question.
struct PendingQuestion<'a> {
    client: &'a SessionClient,
    number: u64,
}

impl Drop for PendingQuestion<'_> {
    fn drop(&mut self) {
        if let Some(open) = self.client.open.lock().as_mut() {
            open.retain(|number| *number != self.number);
        }
        self.client.withdraw(self.number);
    }
}
