//! Where the frames of calls wait to be read.
//!
//! What waits is bounded, for each call and for all together: a sender that ignores credits loses its own call.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_nats::Message;
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// The maximum number of frames of one call that wait to be read.
const MAX_FRAMES: usize = 1024;
/// The maximum number of unread bytes of one call: frames that are sent without a credit, and all other
/// frames of the call.
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// The maximum number of bytes of all calls that wait to be read.
const MAX_ALL: usize = 128 * 1024 * 1024;

/// The inboxes of the calls that run, by their tokens.
#[derive(Default)]
pub(crate) struct Inboxes {
    slots: Mutex<HashMap<String, Slot>>,
    /// The bytes of all frames that wait.
    held: AtomicUsize,
}

struct Slot {
    frames: mpsc::Sender<Message>,
    held: Arc<AtomicUsize>,
}

/// Where the frames of one call arrive. When it is dropped, they are dropped too.
pub(crate) struct Inbox {
    pub(crate) token: String,
    inboxes: Arc<Inboxes>,
    frames: mpsc::Receiver<Message>,
    held: Arc<AtomicUsize>,
}

impl Inboxes {
    /// Returns an inbox for the frames with this token. `None` if there is one.
    pub(crate) fn open(self: &Arc<Self>, token: String) -> Option<Inbox> {
        let (sender, frames) = mpsc::channel(MAX_FRAMES);
        let held = Arc::<AtomicUsize>::default();
        let mut slots = self.slots.lock();
        if slots.contains_key(&token) {
            return None;
        }
        slots.insert(token.clone(), Slot { frames: sender, held: Arc::clone(&held) });
        Some(Inbox { token, inboxes: Arc::clone(self), frames, held })
    }

    /// Hands a frame to its call. A call that does not read them in time loses its inbox, and with it the rest.
    pub(crate) fn deliver(&self, token: &str, message: Message) {
        let mut slots = self.slots.lock();
        let Some(slot) = slots.get(token) else { return };
        let bytes = message.length;
        let is_room = slot.held.load(Ordering::Relaxed) + bytes <= MAX_BYTES
            && self.held.load(Ordering::Relaxed) + bytes <= MAX_ALL;
        slot.held.fetch_add(bytes, Ordering::Relaxed);
        self.held.fetch_add(bytes, Ordering::Relaxed);
        if !is_room || slot.frames.try_send(message).is_err() {
            slot.held.fetch_sub(bytes, Ordering::Relaxed);
            self.held.fetch_sub(bytes, Ordering::Relaxed);
            slots.remove(token);
        }
    }
}

impl Inbox {
    /// Returns the next frame. `None` if the call did not read them in time.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        let message = self.frames.recv().await?;
        self.held.fetch_sub(message.length, Ordering::Relaxed);
        self.inboxes.held.fetch_sub(message.length, Ordering::Relaxed);
        Some(message)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        // Nothing is added from now on.
        self.inboxes.slots.lock().remove(&self.token);
        self.inboxes.held.fetch_sub(self.held.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(bytes: usize) -> Message {
        Message {
            subject: "t".into(),
            reply: None,
            payload: bytes::Bytes::new(),
            headers: None,
            status: None,
            description: None,
            length: bytes,
        }
    }

    #[tokio::test]
    async fn a_sender_that_ignores_credits_loses_its_own_call() {
        let inboxes = Arc::<Inboxes>::default();
        let mut flooded = inboxes.open("a".to_owned()).unwrap();
        let mut other = inboxes.open("b".to_owned()).unwrap();
        assert!(inboxes.open("a".to_owned()).is_none());
        for _ in 0..20 {
            inboxes.deliver("a", frame(MAX_BYTES / 4));
        }
        assert_eq!(inboxes.held.load(Ordering::Relaxed), MAX_BYTES);
        inboxes.deliver("b", frame(1));
        inboxes.deliver("c", frame(1));
        assert!(other.next().await.is_some());
        for _ in 0..4 {
            assert!(flooded.next().await.is_some());
        }
        assert!(flooded.next().await.is_none());
        assert_eq!(inboxes.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_waiting_bytes_of_all_calls_are_bounded_and_released() {
        let inboxes = Arc::<Inboxes>::default();
        let open = |number: usize| inboxes.open(number.to_string()).unwrap();
        let all: Vec<Inbox> = (0..MAX_ALL / MAX_BYTES + 3).map(open).collect();
        for inbox in &all {
            inboxes.deliver(&inbox.token, frame(MAX_BYTES));
        }
        assert_eq!(inboxes.held.load(Ordering::Relaxed), MAX_ALL);
        drop(all);
        assert_eq!(inboxes.held.load(Ordering::Relaxed), 0);
        assert!(inboxes.slots.lock().is_empty());
    }

    #[test]
    fn the_number_of_waiting_frames_is_bounded() {
        let inboxes = Arc::<Inboxes>::default();
        let inbox = inboxes.open("a".to_owned()).unwrap();
        for _ in 0..MAX_FRAMES + 1 {
            inboxes.deliver("a", frame(0));
        }
        assert_eq!(inbox.frames.len(), MAX_FRAMES);
        assert!(inboxes.slots.lock().is_empty());
    }
}
