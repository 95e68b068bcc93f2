//! Translates a batch of changes into messages, and decides which condition fails. No I/O.

use std::collections::HashMap;

use orla_state::{Change, Expect, Revision};

/// The server's last message under a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Last {
    /// The sequence number of the last message; 0 if there is none.
    pub(super) sequence: u64,
    /// Whether that message is a record, and not the end of one.
    pub(super) is_record: bool,
}

impl Last {
    fn revision(self) -> Option<Revision> {
        self.is_record.then_some(self.sequence)
    }
}

/// The condition of each message: the sequence number that the last message of its subject must have. `None` has no
/// condition.
pub(super) type Conditions = Vec<Option<u64>>;

/// Decides a batch by the known state of its keys.
///
/// # Errors
///
/// Returns the key of the first change whose condition does not hold.
pub(super) fn conditions(changes: &[Change], last: impl Fn(&str) -> Last) -> Result<Conditions, String> {
    // Whether the changes before have left a record under a key. Its revision is not known yet.
    let mut changed: HashMap<&str, bool> = HashMap::new();
    let mut conditions = Vec::with_capacity(changes.len());
    for change in changes {
        let before = changed.insert(&change.key, change.value.is_some());
        let (holds, condition) = match (before, change.expect) {
            (_, Expect::Anything) => (true, None),
            // The server sees the first change of a key only.
            (Some(is_record), Expect::Absent) => (!is_record, None),
            (Some(_), Expect::Revision(_)) => (false, None),
            (None, expect) => {
                let last = last(&change.key);
                let holds = match expect {
                    Expect::Revision(revision) => last.revision() == Some(revision),
                    _ => last.revision().is_none(),
                };
                (holds, Some(last.sequence))
            }
        };
        if !holds {
            return Err(change.key.clone());
        }
        conditions.push(condition);
    }
    Ok(conditions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sequence: u64) -> Last {
        Last { sequence, is_record: true }
    }

    fn decide(changes: &[Change]) -> Result<Conditions, String> {
        conditions(changes, |key| match key {
            "here" => record(7),
            "removed" => Last { sequence: 5, is_record: false },
            _ => Last::default(),
        })
    }

    #[test]
    fn a_condition_is_the_number_of_the_last_message() {
        let put = |key: &str, expect| Change::put(key, "x").expecting(expect);
        let cases = [
            ("anything", put("here", Expect::Anything), Ok(None)),
            ("the revision", put("here", Expect::Revision(7)), Ok(Some(7))),
            ("another revision", put("here", Expect::Revision(6)), Err("here")),
            ("there is one", put("here", Expect::Absent), Err("here")),
            ("there was one", put("removed", Expect::Absent), Ok(Some(5))),
            ("the revision of a removal", put("removed", Expect::Revision(5)), Err("removed")),
            ("there was none", put("none", Expect::Absent), Ok(Some(0))),
            ("no record has this revision", put("none", Expect::Revision(0)), Err("none")),
        ];
        for (name, change, expected) in cases {
            let expected = expected.map(|condition| vec![condition]).map_err(str::to_owned);
            assert_eq!(decide(&[change]), expected, "{name}");
        }
    }

    #[test]
    fn later_changes_of_a_key_are_decided_here() {
        let absent = |key: &str| Change::put(key, "x").expecting(Expect::Absent);
        let removed = [Change::remove("here"), absent("here")];
        assert_eq!(decide(&removed), Ok(vec![None, None]));
        assert_eq!(decide(&[Change::put("none", "x"), absent("none")]), Err("none".to_owned()));
        let known = Change::put("here", "x").expecting(Expect::Revision(7));
        assert_eq!(decide(&[Change::put("here", "y"), known]), Err("here".to_owned()));
        let first = [absent("here"), Change::put("none", "x"), absent("none")];
        assert_eq!(decide(&first), Err("here".to_owned()), "the first one is named");
    }
}
