//! Payloads in chunks.

use bytes::{Bytes, BytesMut};

/// A payload that arrives in chunks.
#[derive(Debug)]
pub(super) struct Assembly {
    total: usize,
    so_far: BytesMut,
}

/// What a chunk made of a payload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// It is all there.
    Whole(Bytes),
    /// So many bytes of it are there.
    Part(usize),
    /// More came than was announced.
    TooMuch,
}

impl Assembly {
    pub(super) fn new(total: usize) -> Self {
        Self { total, so_far: BytesMut::new() }
    }

    pub(super) fn add(&mut self, chunk: Bytes) -> Arrived {
        if self.so_far.is_empty() && chunk.len() == self.total {
            return Arrived::Whole(chunk);
        }
        if chunk.is_empty() || chunk.len() > self.total - self.so_far.len() {
            return Arrived::TooMuch;
        }
        self.so_far.extend_from_slice(&chunk);
        match self.so_far.len() == self.total {
            true => Arrived::Whole(self.so_far.split().freeze()),
            false => Arrived::Part(self.so_far.len()),
        }
    }
}

/// The first chunk of a payload, and the others.
pub(super) fn chunks(payload: &Bytes, size: usize) -> (Bytes, impl Iterator<Item = Bytes> + use<>) {
    let first = payload.slice(..payload.len().min(size));
    let mut rest = payload.slice(first.len()..);
    let others =
        std::iter::from_fn(move || (!rest.is_empty()).then(|| rest.split_to(rest.len().min(size))));
    (first, others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_not_announced_is_refused() {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        assert_eq!(Assembly::new(0).add(bytes("")), Arrived::Whole(bytes("")));
        assert_eq!(Assembly::new(1).add(bytes("ab")), Arrived::TooMuch);
        let mut assembly = Assembly::new(3);
        assert_eq!(assembly.add(bytes("ab")), Arrived::Part(2));
        assert_eq!(assembly.add(bytes("")), Arrived::TooMuch, "it would never end");
        assert_eq!(assembly.add(bytes("cd")), Arrived::TooMuch);
        assert_eq!(assembly.add(bytes("c")), Arrived::Whole(bytes("abc")));
    }

    proptest! {
        #[test]
        fn a_payload_arrives_as_it_was_sent(data in proptest::collection::vec(any::<u8>(), 0..200), size in 1_usize..50) {
            let payload = Bytes::from(data);
            let (first, others) = chunks(&payload, size);
            let mut assembly = Assembly::new(payload.len());
            let mut arrived = assembly.add(first);
            for chunk in others {
                prop_assert!(matches!(arrived, Arrived::Part(_)));
                arrived = assembly.add(chunk);
            }
            prop_assert_eq!(arrived, Arrived::Whole(payload));
        }
    }
}
