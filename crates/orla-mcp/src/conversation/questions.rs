//! Requests of the other side to the client of one of its calls.

use orla_marketplace::{ClientError, JsonText};

use super::super::answer;
use super::super::input_requests::QUESTIONS;
use super::super::object;
use super::super::wire::{self, RpcError};
use super::{Caller, Conversation, Incoming, Pending, Question, Settling};

const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const INTERNAL_ERROR: i64 = -32603;

impl Conversation {
    /// Returns the only possible caller, for a message that does not name one.
    pub(super) fn only_caller(&self) -> Option<&Caller> {
        if self.settling != Settling::Settled {
            return None;
        }
        only(self.pending.values().filter_map(|pending| match pending {
            Pending::Call { caller, .. } => Some(caller),
            _ => None,
        }))
    }

    fn has_calls(&self) -> bool {
        self.pending.values().any(|pending| matches!(pending, Pending::Call { .. }))
    }

    /// Handles a request of the capsule. It goes to the client of the call that it names
    /// (`_meta["orla/call"]`, the id of the call's request), or else of the only call in flight, unless
    /// another was just cancelled. MCP has no member for this, and a question must not reach another
    /// caller's client.
    pub(super) fn request(
        &mut self,
        id: JsonText,
        method: String,
        params: Option<JsonText>,
    ) -> Incoming {
        if method == "ping" {
            wire::write_answer(self.out.buffer(), &id, Ok("{}"));
            return Incoming::Nothing;
        }
        if !QUESTIONS.contains(&method.as_str()) {
            self.refuse(&id, METHOD_NOT_FOUND, format!("{method}: not offered"));
            return Incoming::Nothing;
        }
        let named = params.as_ref().and_then(answer::call_of);
        let (caller, problem) = match named.map(|ticket| self.pending.get(&ticket)) {
            Some(Some(Pending::Call { caller, .. })) => (Some(caller), ""),
            // Neither its client nor another one is asked.
            Some(_) => (None, "the call in _meta[\"orla/call\"] is over"),
            None if self.has_calls() => (
                self.only_caller(),
                "name the call that asks in _meta[\"orla/call\"]: not exactly one is in flight",
            ),
            None => (None, "there is no client to ask: no call is in flight"),
        };
        let Some(caller) = caller else {
            self.refuse(&id, INVALID_PARAMS, format!("{method}: {problem}"));
            return Incoming::Nothing;
        };
        let Some(client) = caller.client.clone() else {
            self.refuse(
                &id,
                METHOD_NOT_FOUND,
                format!("{method}: this caller's client cannot be asked"),
            );
            return Incoming::Nothing;
        };
        let params = params.unwrap_or_else(object::empty);
        Incoming::Question(Question { id, method, params, client })
    }

    fn refuse(&mut self, id: &JsonText, code: i64, message: String) {
        wire::write_answer(self.out.buffer(), id, Err(&RpcError { code, message, data: None }));
    }

    /// Answers a question of the server.
    pub fn answer_question(&mut self, id: &JsonText, answer: Result<JsonText, ClientError>) {
        write_client_answer(self.out.buffer(), id, answer);
    }
}

/// Returns the caller of a message that names none: the only one, or any of several whose clients share
/// one session.
pub fn only<'a>(callers: impl Iterator<Item = &'a Caller>) -> Option<&'a Caller> {
    let session = |caller: &Caller| caller.client.as_ref().and_then(|client| client.session());
    let mut chosen: Option<&Caller> = None;
    for caller in callers {
        match chosen {
            Some(first) if session(first).is_none() || session(first) != session(caller) => return None,
            _ => chosen = Some(caller),
        }
    }
    chosen
}

/// Appends a client's answer to a server's question.
pub fn write_client_answer(out: &mut Vec<u8>, id: &JsonText, answer: Result<JsonText, ClientError>) {
    let error = match answer {
        Ok(result) => return wire::write_answer(out, id, Ok(result.as_str())),
        Err(ClientError::Refused { code, message, data }) => RpcError { code, message, data },
        Err(err @ ClientError::Unsupported(_)) => {
            RpcError { code: METHOD_NOT_FOUND, message: err.to_string(), data: None }
        }
        Err(err) => RpcError { code: INTERNAL_ERROR, message: err.to_string(), data: None },
    };
    wire::write_answer(out, id, Err(&error));
}
