//! Payloads in chunks.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use orla_marketplace::{MemoryBudget, OverBudget, Reservation};

/// A payload that arrives in chunks. Memory is reserved for the bytes that have arrived, not for the
/// announced size.
#[derive(Debug)]
pub(super) struct Assembly {
    total: usize,
    so_far: BytesMut,
    reserved: Reservation,
}

/// The result of adding a chunk to a payload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// It is all there.
    Whole(Bytes),
    /// The payload is incomplete. It has this many bytes so far.
    Part(usize),
    /// More came than was announced.
    TooMuch,
    /// There is no memory for it.
    NoMemory(OverBudget),
}

impl Assembly {
    /// Begins a payload of this many bytes, which takes memory from this budget.
    ///
    /// # Errors
    ///
    /// Returns an error if the budget is exhausted.
    pub(super) fn new(total: usize, memory: &Arc<MemoryBudget>) -> Result<Self, OverBudget> {
        Ok(Self { total, so_far: BytesMut::new(), reserved: memory.reserve(0)? })
    }

    /// Returns the memory of the payload, for as long as it is held.
    pub(super) fn into_reserved(self) -> Reservation {
        self.reserved
    }

    pub(super) fn add(&mut self, chunk: Bytes) -> Arrived {
        let so_far = self.so_far.len();
        let is_all = so_far == 0 && chunk.len() == self.total;
        if !is_all && (chunk.is_empty() || chunk.len() > self.total - so_far) {
            return Arrived::TooMuch;
        }
        if let Err(over) = self.reserved.resize(so_far + chunk.len()) {
            return Arrived::NoMemory(over);
        }
        if is_all {
            return Arrived::Whole(chunk);
        }
        self.so_far.extend_from_slice(&chunk);
        match self.so_far.len() == self.total {
            true => Arrived::Whole(self.so_far.split().freeze()),
            false => Arrived::Part(self.so_far.len()),
        }
    }
}

/// Returns the first chunk of a payload, and the others.
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

    fn assembly(total: usize) -> Assembly {
        Assembly::new(total, &Arc::new(MemoryBudget::new(1000))).unwrap()
    }

    #[test]
    fn announced_bytes_take_no_memory_before_they_arrive() {
        let memory = Arc::new(MemoryBudget::new(5));
        let mut assembly = Assembly::new(1_000_000, &memory).unwrap();
        assert_eq!(assembly.add(Bytes::from_static(b"abc")), Arrived::Part(3));
        assert_eq!(memory.held(), 3);
        assert_eq!(assembly.add(Bytes::from_static(b"def")), Arrived::NoMemory(OverBudget { max: 5 }));
        drop(assembly.into_reserved());
        assert_eq!(memory.held(), 0);
    }

    #[test]
    fn unannounced_bytes_are_refused() {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        assert_eq!(assembly(0).add(bytes("")), Arrived::Whole(bytes("")));
        assert_eq!(assembly(1).add(bytes("ab")), Arrived::TooMuch);
        let mut assembly = assembly(3);
        assert_eq!(assembly.add(bytes("ab")), Arrived::Part(2));
        assert_eq!(assembly.add(bytes("")), Arrived::TooMuch, "it would never end");
        assert_eq!(assembly.add(bytes("cd")), Arrived::TooMuch);
        assert_eq!(assembly.add(bytes("c")), Arrived::Whole(bytes("abc")));
    }

    proptest! {
        #[test]
        fn payloads_arrive_unchanged(data in proptest::collection::vec(any::<u8>(), 0..200), size in 1_usize..50) {
            let payload = Bytes::from(data);
            let (first, others) = chunks(&payload, size);
            let mut assembly = assembly(payload.len());
            let mut arrived = assembly.add(first);
            for chunk in others {
                prop_assert!(matches!(arrived, Arrived::Part(_)));
                arrived = assembly.add(chunk);
            }
            prop_assert_eq!(arrived, Arrived::Whole(payload));
        }
    }
}
