//! What is said with a process, by what it is: MCP, or the lines of a plugin.

use std::sync::Arc;

use bytes::Bytes;
use orla_marketplace::{ClientError, JsonText};
use orla_mcp::conversation::{Conversation, Heard, Request};
use orla_mcp::{Era, Greeting};

use super::definition::Definition;
use super::shared::Shared;
use crate::plugin;

/// One conversation with one process.
#[derive(Debug)]
pub(super) enum Talk {
    Mcp(Conversation),
    Plugin(plugin::conversation::Conversation),
}

impl Talk {
    /// The conversation with the next process of this definition.
    pub(super) fn new(definition: &Definition, shared: &Shared) -> Self {
        let (name, tickets) = (Arc::clone(&shared.name), Arc::clone(&shared.tickets));
        let greeting = match definition {
            Definition::Package(_) => Greeting::Hello,
            Definition::Server(_) => Greeting::Initialize,
            Definition::Plugin(own) => {
                let manner = plugin::Manner { describes: own.describes, is_serial: own.is_serial };
                return Self::Plugin(plugin::conversation::Conversation::new(name, tickets, manner));
            }
        };
        Self::Mcp(Conversation::new(name, tickets, greeting))
    }

    /// What is to be written next.
    pub(super) fn unwritten(&self) -> &[u8] {
        match self {
            Self::Mcp(talk) => talk.unwritten(),
            Self::Plugin(talk) => talk.unwritten(),
        }
    }

    /// So much of it was written.
    pub(super) fn wrote(&mut self, count: usize) {
        match self {
            Self::Mcp(talk) => talk.wrote(count),
            Self::Plugin(talk) => talk.wrote(count),
        }
    }

    /// Requests that were sent and wait for their answers.
    pub(super) fn in_flight(&self) -> usize {
        match self {
            Self::Mcp(talk) => talk.in_flight(),
            Self::Plugin(talk) => talk.in_flight(),
        }
    }

    /// Whether the process need not say anything before it is sent calls.
    pub(super) fn is_ready_at_once(&self) -> bool {
        match self {
            Self::Mcp(_) => false,
            Self::Plugin(talk) => talk.is_ready_at_once(),
        }
    }

    /// Whether calls may be sent to a process that is ready.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Mcp(talk) => talk.is_open(),
            Self::Plugin(_) => true,
        }
    }

    /// Whether it can be sent one more call now.
    pub(super) fn is_free(&self) -> bool {
        match self {
            Self::Mcp(_) => true,
            Self::Plugin(talk) => talk.is_free(),
        }
    }

    /// Whether it has not even answered `initialize`.
    pub(super) fn is_initializing(&self) -> bool {
        match self {
            Self::Mcp(talk) => talk.is_initializing(),
            Self::Plugin(_) => false,
        }
    }

    /// Whether it has shown that it answers calls while it works at others.
    pub(super) fn is_concurrent(&self) -> bool {
        match self {
            Self::Mcp(_) => true,
            Self::Plugin(talk) => talk.is_concurrent(),
        }
    }

    /// Sends a request. `only` gives the name of the tool where the request names none.
    pub(super) fn send(&mut self, request: Request, only: impl FnOnce() -> String) {
        match self {
            Self::Mcp(talk) => talk.send(request, only),
            Self::Plugin(talk) => talk.send(request, only),
        }
    }

    /// Nobody waits for this answer any more. Whether it had been sent.
    pub(super) fn cancel(&mut self, ticket: u64) -> bool {
        match self {
            Self::Mcp(talk) => talk.cancel(ticket),
            Self::Plugin(talk) => talk.cancel(ticket),
        }
    }

    /// Whether a process is ended that goes on with what was cancelled.
    pub(super) fn has_to_obey(&self) -> bool {
        matches!(self, Self::Plugin(_))
    }

    /// The function of a call that was cancelled and that the process has not answered.
    pub(super) fn goes_on_with(&self, ticket: u64) -> Option<&str> {
        match self {
            Self::Mcp(_) => None,
            Self::Plugin(talk) => talk.goes_on_with(ticket),
        }
    }

    /// The newest line of a plugin that answers no call, with the ticket of the only call that it can be about.
    pub(super) fn wrong_answer(&self) -> Option<&(u64, String)> {
        match self {
            Self::Mcp(_) => None,
            Self::Plugin(talk) => talk.wrong_answer(),
        }
    }

    /// The oldest call that was sent and waits for its answer.
    pub(super) fn oldest(&self) -> Option<u64> {
        match self {
            Self::Mcp(talk) => talk.oldest(),
            Self::Plugin(_) => None,
        }
    }

    /// The ping that the process has not answered.
    pub(super) fn unanswered_ping(&self) -> Option<u64> {
        match self {
            Self::Mcp(talk) => talk.unanswered_ping(),
            Self::Plugin(_) => None,
        }
    }

    /// No answer will come any more.
    pub(super) fn fail(&mut self, reason: &str) {
        match self {
            Self::Mcp(talk) => talk.fail(reason),
            Self::Plugin(talk) => talk.fail(reason),
        }
    }

    /// Takes a line of the process's standard output.
    pub(super) fn hear(&mut self, line: &Bytes) -> Heard {
        match self {
            Self::Mcp(talk) => talk.hear(line),
            Self::Plugin(talk) => talk.hear(line),
        }
    }

    /// The answer of a client to a question of the process.
    pub(super) fn answer_question(&mut self, id: &JsonText, answer: Result<JsonText, ClientError>) {
        if let Self::Mcp(talk) = self {
            talk.answer_question(id, answer);
        }
    }

    /// The resources whose changes someone wants to hear of are these now.
    pub(super) fn subscriptions(&mut self, uris: &[String]) {
        if let Self::Mcp(talk) = self {
            talk.subscriptions(uris);
        }
    }

    /// The same for a process that has not heard of them.
    pub(super) fn resubscribe(&mut self, uris: &[String]) {
        let Self::Mcp(talk) = self else { return };
        match talk.era() {
            Era::Sessionless => talk.subscriptions(uris),
            Era::Capsule | Era::Session => uris.iter().for_each(|uri| talk.subscribe(uri)),
        }
    }
}
