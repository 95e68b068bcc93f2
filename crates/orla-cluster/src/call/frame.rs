//! The headers of frames, and their order.

use std::fmt;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The other end is there.
    Beat,
    /// Progress, or a message for a log.
    Notice,
    /// A question to the caller's client; the number names it.
    Question,
    /// The answer to the question with that number.
    Answer,
    /// The caller withdraws the call.
    Cancel,
    /// The result, or its beginning; the number is the length of the whole.
    Result,
    /// More of an input or a result.
    Chunk,
    /// This many bytes of an input or a result have arrived.
    Credit,
    /// The call was not begun, and will not be.
    Refused,
    /// It was not begun for lack of room: this is its error if no other node has room.
    Busy,
    /// The node ends, and the call with it.
    Gone,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    /// How many frames that must not be lost were sent before.
    pub(super) seq: u64,
    pub(super) number: u64,
}

impl Kind {
    const WORDS: [(&str, Self); 11] = [
        ("beat", Self::Beat),
        ("notice", Self::Notice),
        ("question", Self::Question),
        ("answer", Self::Answer),
        ("cancel", Self::Cancel),
        ("result", Self::Result),
        ("chunk", Self::Chunk),
        ("credit", Self::Credit),
        ("refused", Self::Refused),
        ("busy", Self::Busy),
        ("gone", Self::Gone),
    ];

    /// Returns whether a call cannot continue without a frame of this kind.
    pub(super) fn is_counted(self) -> bool {
        match self {
            Self::Question | Self::Answer | Self::Result | Self::Chunk => true,
            Self::Refused | Self::Busy => true,
            Self::Beat | Self::Notice | Self::Cancel | Self::Credit | Self::Gone => false,
        }
    }
}

impl Head {
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let word = words.next()?;
        let (_, kind) = Kind::WORDS.into_iter().find(|(known, _)| *known == word)?;
        let (seq, number) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        words.next().is_none().then_some(Self { kind, seq, number })
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Kind::WORDS.iter().find(|(_, kind)| *kind == self.kind).map_or("", |(word, _)| word);
        write!(f, "{word} {} {}", self.seq, self.number)
    }
}

/// The order of the frames that arrive.
#[derive(Debug, Default)]
pub(super) struct Order {
    counted: u64,
}

/// What to do with a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is the next one.
    Take,
    /// It came before.
    Skip,
    /// One before it is missing.
    Gap,
}

impl Order {
    pub(super) fn turn(&mut self, head: Head) -> Turn {
        match head.seq.cmp(&self.counted) {
            std::cmp::Ordering::Greater => Turn::Gap,
            std::cmp::Ordering::Less if head.kind.is_counted() => Turn::Skip,
            // An optional frame may be overtaken without consequence.
            std::cmp::Ordering::Less => Turn::Take,
            std::cmp::Ordering::Equal => {
                self.counted += u64::from(head.kind.is_counted());
                Turn::Take
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_round_trips() {
        for (_, kind) in Kind::WORDS {
            let head = Head { kind, seq: 3, number: u64::MAX };
            assert_eq!(Head::read(&head.to_string()), Some(head));
        }
        for bad in ["", "beat", "beat 1", "beat x 1", "beat 1 1 1", "bead 1 1", "beat -1 1"] {
            assert_eq!(Head::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn frames_are_taken_once_and_a_missing_one_is_noticed() {
        let mut order = Order::default();
        for (kind, seq, turn) in [
            (Kind::Beat, 0, Turn::Take),
            (Kind::Question, 0, Turn::Take),
            (Kind::Question, 0, Turn::Skip),
            (Kind::Notice, 1, Turn::Take),
            (Kind::Chunk, 1, Turn::Take),
            (Kind::Beat, 1, Turn::Take),
            (Kind::Beat, 3, Turn::Gap),
            (Kind::Result, 3, Turn::Gap),
            (Kind::Result, 2, Turn::Take),
        ] {
            assert_eq!(order.turn(Head { kind, seq, number: 0 }), turn, "{kind:?} {seq}");
        }
    }

    proptest! {
        #[test]
        fn any_header_can_be_read(text in "[a-z0-9 -]{0,30}") {
            let _ = Head::read(&text);
        }
    }
}
