//! Streams that another node of the cluster reads.
//!
//! # How it works
//!
//! A [`RemoteReader`] asks the process that keeps a stream for the next message, one at a time, so that
//! no messages queue up on the way. A message that does not fit into one answer is read in
//! [parts](Part). The process answers with [`next_part`].

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use orla_marketplace::{Principal, Reservation};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::mcp::notify::stream::Stream;
use crate::nodes::{NoAnswer, Nodes};
use crate::state::Core;

/// How long a node waits for a message before it answers without one.
const POLL: Duration = Duration::from_secs(5);
/// How long an answer may take besides.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
/// The largest message that is read from another node, in bytes.
const MAX_MESSAGE: usize = 64 << 20;
/// How often the beginning of a message may be lost while it is read.
const MAX_RESTARTS: usize = 3;

/// The message after a number of a stream, from a byte on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) after: u64,
    pub(crate) from: usize,
    /// The reader that continues. Without it, a new reader begins, and an earlier one ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) turn: Option<u64>,
}

/// The first line of an answer about a stream. A part of the message follows.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Next {
    Message {
        number: u64,
        bytes: usize,
        turn: u64,
    },
    /// No message is available yet.
    Later {
        turn: u64,
    },
    /// No further message will come.
    End,
}

/// Returns a part of a local stream, up to the size of an answer.
pub(crate) async fn next_part(core: &Core, stream: &Arc<Stream>, part: &Part) -> Bytes {
    let mut reader = match part.turn {
        None => stream.read_after(part.after),
        Some(turn) => stream.resume(turn, part.after),
    };
    let turn = reader.turn();
    match timeout(POLL, reader.next()).await {
        Err(_) => encode(&Next::Later { turn }, &[]),
        Ok(None) => end(),
        Ok(Some((number, message))) => {
            let room = core.cluster().map_or(0, Nodes::max_payload).saturating_sub(200);
            let rest = message.get(part.from..).unwrap_or_default();
            let next = Next::Message { number, bytes: message.len(), turn };
            encode(&next, &rest[..rest.len().min(room)])
        }
    }
}

/// Returns the answer about a stream that has ended, or does not exist.
pub(crate) fn end() -> Bytes {
    encode(&Next::End, &[])
}

fn encode(next: &Next, part: &[u8]) -> Bytes {
    let mut bytes = serde_json::to_vec(next).unwrap_or_default();
    bytes.push(b'\n');
    bytes.extend_from_slice(part);
    bytes.into()
}

fn decode(answer: &Bytes) -> Option<(Next, Bytes)> {
    let end = answer.iter().position(|byte| *byte == b'\n')?;
    Some((serde_json::from_slice(&answer[..end]).ok()?, answer.slice(end + 1..)))
}

/// Reads a stream that another process keeps.
pub(crate) struct RemoteReader {
    instance: Arc<str>,
    caller: Option<Principal>,
    /// The number of the last message that was read.
    after: u64,
    /// The number of this reader at the process, once it has begun. A connection that broke unnoticed
    /// must not take the stream back from the client's new one.
    turn: Option<u64>,
}

/// What a [`RemoteReader`] has read.
pub(crate) enum Read {
    /// The next message, with its number.
    Message(u64, Bytes),
    /// There is no message yet.
    Nothing,
    /// There are no further messages.
    End,
}

impl RemoteReader {
    /// Creates a reader of the messages after a number, in the name of a caller.
    pub(crate) fn new(instance: Arc<str>, caller: Option<Principal>, after: u64) -> Self {
        Self { instance, caller, after, turn: None }
    }

    /// Reads the next message. `question` makes the question for a part of it.
    ///
    /// # Errors
    ///
    /// Returns an error if the process does not answer, or the message cannot be kept. The message can
    /// be read again.
    pub(crate) async fn next(
        &mut self,
        core: &Core,
        question: impl Fn(Part) -> Bytes,
    ) -> Result<Read, NoAnswer> {
        let silent = |why: &str| NoAnswer::Silent(why.to_owned());
        let unreadable = || silent("its answer cannot be read");
        let cluster = core.cluster().ok_or(NoAnswer::Gone)?;
        let (mut number, mut message, mut total) = (0, BytesMut::new(), 0);
        let mut reserved: Option<Reservation> = None;
        let mut restarts = 0;
        loop {
            let asked = question(Part { after: self.after, from: message.len(), turn: self.turn });
            let answer =
                cluster.ask(&self.instance, self.caller.as_ref(), asked, POLL + NODE_TIMEOUT).await?;
            let (bytes, part) = match decode(&answer).ok_or_else(unreadable)? {
                (Next::End, _) => return Ok(Read::End),
                (Next::Later { turn }, _) => {
                    self.turn = Some(turn);
                    return Ok(Read::Nothing);
                }
                (Next::Message { bytes, .. }, _) if bytes > MAX_MESSAGE => {
                    return Err(silent("its message is too large"));
                }
                // The beginning of the message was dropped in the meantime.
                (Next::Message { number: now, .. }, _) if !message.is_empty() && now != number => {
                    restarts += 1;
                    if restarts > MAX_RESTARTS {
                        return Err(silent("its messages end before they are read"));
                    }
                    message.clear();
                    continue;
                }
                (Next::Message { number: now, bytes, turn }, part) => {
                    self.turn = Some(turn);
                    number = now;
                    (bytes, part)
                }
            };
            if message.is_empty() {
                total = bytes;
                let room = core.market.memory().reserve(total);
                reserved = Some(room.map_err(|_| silent("there is no memory for its message"))?);
            }
            if number <= self.after || part.is_empty() && total > 0 || message.len() + part.len() > total
            {
                return Err(unreadable());
            }
            message.extend_from_slice(&part);
            if message.len() == total {
                self.after = number;
                drop(reserved);
                return Ok(Read::Message(number, message.freeze()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_parts_round_trip() {
        for next in [Next::Message { number: 3, bytes: 9, turn: 2 }, Next::Later { turn: 2 }, Next::End]
        {
            let (read_next, part) = decode(&encode(&next, b"a\nb")).unwrap();
            assert_eq!((read_next, &*part), (next, &b"a\nb"[..]));
        }
        for bad in ["", "{}", "\n", "7\n", "{\"message\":{}}\n"] {
            assert!(decode(&Bytes::from(bad)).is_none(), "{bad:?}");
        }
    }
}
