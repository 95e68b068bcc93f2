//! The MCP protocol of a supervised process.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::BytesMut;
use orla_marketplace::{ClientError, JsonText, SurfaceNotice};
use orla_mcp::conversation::{self, Conversation, Question, Request};
use orla_mcp::{Ask, Handshake, Messages, Reply, RequestMode, ServerInfo, Subscriptions};
use orla_process::supervisor::{Cancellation, ProcessEvent, Protocol, Refusal};
use tokio::sync::{broadcast, oneshot};

use crate::process::fault;

/// The capacity of the channel of notices.
const NOTICES: usize = 64;
/// The maximum number of open questions of one process.
const MAX_QUESTIONS: usize = 64;

/// A [`Conversation`] over a pair of pipes.
#[derive(Debug)]
pub struct McpProtocol {
    name: Arc<str>,
    messages: Messages,
    conversation: Conversation,
    shared: Arc<Shared>,
    /// The number of questions that clients have not answered.
    questions: usize,
    /// Whether the process knows the subscriptions that callers made with earlier processes.
    is_subscribed: bool,
}

/// The state that all processes of a server share with its handles.
#[derive(Debug)]
pub struct Shared {
    pub(super) subscriptions: Subscriptions,
    pub(super) notices: broadcast::Sender<SurfaceNotice>,
}

impl Default for Shared {
    fn default() -> Self {
        Self { subscriptions: Subscriptions::default(), notices: broadcast::Sender::new(NOTICES) }
    }
}

impl McpProtocol {
    /// Creates the protocol for the next process of the server `name`.
    pub(crate) fn new(
        name: &str,
        tickets: &Arc<AtomicU64>,
        shared: &Arc<Shared>,
        handshake: Handshake,
    ) -> Self {
        let name: Arc<str> = name.into();
        Self {
            conversation: Conversation::new(Arc::clone(&name), Arc::clone(tickets), handshake),
            name,
            messages: Messages::default(),
            shared: Arc::clone(shared),
            questions: 0,
            is_subscribed: false,
        }
    }

    /// Informs the process, once, of the resources that callers subscribed to before it was started.
    fn subscribe(&mut self) {
        if std::mem::replace(&mut self.is_subscribed, true) {
            return;
        }
        let uris = self.shared.subscriptions.uris();
        match self.conversation.mode() {
            RequestMode::Sessionless => self.conversation.subscriptions(&uris),
            RequestMode::Capsule | RequestMode::Session => {
                uris.iter().for_each(|uri| self.conversation.subscribe(uri));
            }
        }
    }

    /// Asks the client of a call on behalf of the process.
    fn ask(&mut self, question: Question) -> Option<ProcessEvent<Self>> {
        let Question { id, method, params, client } = question;
        if self.questions >= MAX_QUESTIONS {
            self.conversation.answer_question(&id, Err(ClientError::Gone));
            return None;
        }
        self.questions += 1;
        Some(ProcessEvent::Question(Box::pin(async move {
            let answer = client.request(&method, params).await;
            (id, answer)
        })))
    }
}

impl Protocol for McpProtocol {
    type Request = Request;
    type Response = Reply;
    type Info = ServerInfo;
    type Shared = Shared;
    type Answer = (JsonText, Result<JsonText, ClientError>);

    fn refused(refusal: Refusal) -> Reply {
        Err(fault(refusal))
    }

    fn is_unchanged(request: &Request, before: Option<&ServerInfo>, now: Option<&ServerInfo>) -> bool {
        match &request.ask {
            Ask::Call { tool, .. } => ServerInfo::has_same_description(before, now, tool.as_deref()),
            Ask::Method { .. } => true,
        }
    }

    fn unwritten(&self) -> &[u8] {
        self.conversation.unwritten()
    }

    fn advance(&mut self, count: usize) {
        self.conversation.advance(count);
    }

    fn read_buffer(&mut self) -> &mut BytesMut {
        self.messages.read_buffer()
    }

    fn next(&mut self) -> Option<ProcessEvent<Self>> {
        loop {
            let message = match self.messages.next() {
                Ok(message) => message?,
                Err(reason) => return Some(ProcessEvent::Broken(reason)),
            };
            match self.conversation.receive(&message) {
                conversation::Incoming::Nothing => {}
                conversation::Incoming::Hello(_) => return Some(ProcessEvent::Hello),
                conversation::Incoming::Initialized => return Some(ProcessEvent::Handshaking),
                conversation::Incoming::Ready(info) => {
                    self.subscribe();
                    return Some(ProcessEvent::Ready(info));
                }
                conversation::Incoming::Info(info) => {
                    self.subscribe();
                    return Some(ProcessEvent::Info(info));
                }
                conversation::Incoming::Unusable(reason) => return Some(ProcessEvent::Broken(reason)),
                // Sending fails if there is no receiver.
                conversation::Incoming::Notice(notice) => drop(self.shared.notices.send(notice)),
                conversation::Incoming::Question(question) => {
                    if let Some(question) = self.ask(question) {
                        return Some(question);
                    }
                }
            }
        }
    }

    fn end_of_output(&mut self) {
        self.messages.end();
    }

    fn is_open(&self) -> bool {
        self.conversation.is_open()
    }

    fn in_flight(&self) -> usize {
        self.conversation.in_flight()
    }

    fn send(
        &mut self,
        ticket: u64,
        request: Request,
        reply: oneshot::Sender<Reply>,
        info: impl FnOnce() -> Option<Arc<ServerInfo>>,
    ) {
        // The name of the only tool: the server's own name for it, and otherwise that of the server.
        let only = || match info().as_deref().and_then(|info| info.tools.as_deref()) {
            Some([only]) => only.name.clone(),
            _ => self.name.to_string(),
        };
        self.conversation.send(ticket, request, reply, only);
    }

    fn cancel(&mut self, ticket: u64) -> Cancellation {
        match self.conversation.cancel(ticket) {
            true => Cancellation::Advisory,
            false => Cancellation::NotSent,
        }
    }

    fn fail(&mut self, reason: &str) {
        self.conversation.fail(reason);
    }

    fn oldest(&self) -> Option<u64> {
        self.conversation.oldest()
    }

    fn unanswered_ping(&self) -> Option<u64> {
        self.conversation.unanswered_ping()
    }

    fn answer(&mut self, (id, answer): Self::Answer) {
        self.questions -= 1;
        self.conversation.answer_question(&id, answer);
    }

    fn shared_changed(&mut self) {
        self.conversation.subscriptions(&self.shared.subscriptions.uris());
    }
}
