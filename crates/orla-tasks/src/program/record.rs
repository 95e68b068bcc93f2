//! The binary format of the notes of a run.
//!
//! A record is a version number followed by notes. Numbers have seven bits in each byte, the least
//! significant first. The input is untrusted: every length is checked against the remaining bytes, and
//! any other irregularity is refused. Records of version 2 are read as well; their states do not contain
//! the running time. A record of any other version is refused as such.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use orla_marketplace::millis_down;
use orla_marketplace::program::{Action, RunRequest};
use orla_marketplace::rtfs::{Part, Position, Scope, Ticket};

/// The version of the records.
const VERSION: u8 = 3;
/// The oldest version that can be read.
const OLDEST: u8 = 2;
/// The first version whose states contain the progress of the run.
const USED: u8 = 3;
/// The numbers of the forms that have branches. Steps have the next number.
const FORMS: [&str; 4] = ["parallel", "race", "settle", "pmap"];
/// The greatest number of a trail record that is accepted, so that further records can follow it.
const MOST: u64 = 1 << 50;
/// The maximum number of bytes kept of a name.
const NAME: usize = 1 << 10;

/// A note about a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A call that leaves the process is about to begin.
    Begun {
        /// The call.
        asked: RunRequest,
        /// Whether the call may be repeated.
        is_idempotent: bool,
    },
    /// The run began a long wait: a timer, an event or another task.
    Waits(RunRequest),
    /// An answer arrived.
    Answered {
        /// The request that was answered.
        asked: RunRequest,
        /// The time of the answer.
        ended: SystemTime,
        /// The kind of the error, if it is one.
        failed: Option<String>,
        /// The answer. `None` where only the timeline of the run is kept.
        answer: Option<Vec<u8>>,
    },
}

/// A saved state of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The number of the first record of notes after the state.
    pub next: u64,
    /// The calls that had begun and had no answer, and the waits of the run.
    pub open: Vec<Note>,
    /// The progress of the run. States of older versions do not contain it.
    pub used: Option<Used>,
    /// The state, in the form of [`Run::save`](orla_marketplace::rtfs::Run::save).
    pub state: Vec<u8>,
}

/// The progress of a run when its state was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The running time that counts, in whole milliseconds.
    pub time: Duration,
    /// The number of the last record of its trail; 0 for an empty trail.
    pub last_trail: u64,
}

/// Why a record cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Another version of orla wrote it.
    #[error("it was written by another version of orla")]
    Version,
    /// The bytes are not a record.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

/// Begins a record of notes. Append notes with [`append`].
pub(super) fn begin() -> Vec<u8> {
    vec![VERSION]
}

/// Adds a note to a record.
pub(super) fn append(record: &mut Vec<u8>, note: &Note) {
    match note {
        Note::Begun { asked, is_idempotent } => {
            record.push(if *is_idempotent { 1 } else { 0 });
            put_asked(record, asked);
        }
        Note::Waits(asked) => {
            record.push(2);
            put_asked(record, asked);
        }
        Note::Answered { asked, ended, failed, answer } => {
            record.push(3);
            put_asked(record, asked);
            put_time(record, *ended);
            put_optional(record, failed.as_deref().map(str::as_bytes));
            put_optional(record, answer.as_deref());
        }
    }
}

/// Appends a note with an answer. `without` is the same note as another record has it, without the
/// answer.
pub(super) fn append_answer(record: &mut Vec<u8>, without: &[u8], answer: Option<&[u8]>) {
    // The last byte says that there is no answer.
    let common = without.split_last().map_or(without, |(_, common)| common);
    record.extend(common);
    put_optional(record, answer);
}

/// Reads the notes of a record.
///
/// # Errors
///
/// Returns an error if the bytes are not a record of a supported version.
pub fn read(record: &[u8]) -> Result<Vec<Note>, RecordError> {
    let mut input = versioned(record)?;
    let mut notes = Vec::new();
    while !input.is_empty() {
        notes.push(input.note()?);
    }
    Ok(notes)
}

/// Writes a saved state as a record.
pub fn write_saved(saved: &Saved) -> Vec<u8> {
    let mut open = Vec::new();
    saved.open.iter().for_each(|note| append(&mut open, note));
    let mut record = begin();
    let used = saved.used.unwrap_or(Used { time: Duration::ZERO, last_trail: 0 });
    put_number(&mut record, millis_down(used.time));
    put_number(&mut record, used.last_trail);
    put_number(&mut record, saved.next);
    put_bytes(&mut record, &open);
    record.extend(&saved.state);
    record
}

/// Reads the saved state of a record. The bytes of the state are validated when they are loaded.
///
/// # Errors
///
/// Returns an error if the bytes are not a record of a supported version.
pub fn read_saved(record: &[u8]) -> Result<Saved, RecordError> {
    let mut input = versioned(record)?;
    let used = input.used()?;
    let next = input.number()?;
    let mut inner = Input { left: input.bytes()?, version: input.version };
    let mut open = Vec::new();
    while !inner.is_empty() {
        open.push(inner.note()?);
    }
    Ok(Saved { next, open, used, state: input.left.to_vec() })
}

/// Returns the progress of the run of a saved state, if the state contains it.
pub(super) fn used(record: &[u8]) -> Option<Used> {
    versioned(record).ok()?.used().ok()?
}

fn versioned(record: &[u8]) -> Result<Input<'_>, RecordError> {
    match record.split_first() {
        None => Err(RecordError::Damaged("it is empty")),
        Some((&version @ OLDEST..=VERSION, left)) => Ok(Input { left, version }),
        Some(_) => Err(RecordError::Version),
    }
}

fn put_asked(record: &mut Vec<u8>, asked: &RunRequest) {
    put_number(record, asked.ticket.0);
    record.push(Action::ALL.iter().position(|action| *action == asked.action).unwrap_or_default() as u8);
    let end = asked.name.floor_char_boundary(NAME);
    put_bytes(record, &asked.name.as_bytes()[..end]);
    let at = asked.at.unwrap_or(Position { line: 0, column: 0 });
    put_number(record, at.line.into());
    put_number(record, at.column.into());
    put_time(record, asked.began);
    put_scope(record, asked.scope.as_deref());
}

/// Writes the enclosing steps and branches, the outermost first.
fn put_scope(record: &mut Vec<u8>, scope: Option<&Scope>) {
    let mut scopes: Vec<&Scope> =
        std::iter::successors(scope, |scope| scope.outer.as_deref()).take(Scope::DEEPEST).collect();
    scopes.reverse();
    put_number(record, scopes.len() as u64);
    for scope in scopes {
        put_number(record, scope.number);
        match &scope.part {
            Part::Step(name) => {
                record.push(FORMS.len() as u8);
                put_bytes(record, name.as_bytes());
            }
            Part::Branch { form, index } => {
                record.push(FORMS.iter().position(|other| other == form).unwrap_or_default() as u8);
                put_number(record, *index);
            }
        }
    }
}

fn put_time(record: &mut Vec<u8>, time: SystemTime) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    put_number(record, millis_down(since));
}

fn put_optional(record: &mut Vec<u8>, bytes: Option<&[u8]>) {
    record.push(bytes.is_some().into());
    if let Some(bytes) = bytes {
        put_bytes(record, bytes);
    }
}

fn put_bytes(record: &mut Vec<u8>, bytes: &[u8]) {
    put_number(record, bytes.len() as u64);
    record.extend(bytes);
}

fn put_number(record: &mut Vec<u8>, number: u64) {
    let mut left = number;
    while left >= 0x80 {
        record.push(left as u8 | 0x80);
        left >>= 7;
    }
    record.push(left as u8);
}

/// The remaining bytes of a record of a supported version.
struct Input<'b> {
    left: &'b [u8],
    version: u8,
}

impl<'b> Input<'b> {
    fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    fn byte(&mut self) -> Result<u8, RecordError> {
        let (first, rest) = self.left.split_first().ok_or(SHORT)?;
        self.left = rest;
        Ok(*first)
    }

    fn flag(&mut self) -> Result<bool, RecordError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(RecordError::Damaged("a flag is neither 0 nor 1")),
        }
    }

    fn number(&mut self) -> Result<u64, RecordError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(RecordError::Damaged("a number is too large"))
    }

    fn used(&mut self) -> Result<Option<Used>, RecordError> {
        if self.version < USED {
            return Ok(None);
        }
        let (time, last_trail) = (Duration::from_millis(self.number()?), self.number()?);
        if last_trail > MOST {
            return Err(RecordError::Damaged("a number is too large"));
        }
        Ok(Some(Used { time, last_trail }))
    }

    fn small(&mut self) -> Result<u32, RecordError> {
        u32::try_from(self.number()?).map_err(|_| RecordError::Damaged("a number is too large"))
    }

    fn bytes(&mut self) -> Result<&'b [u8], RecordError> {
        let length = usize::try_from(self.number()?).map_err(|_| SHORT)?;
        let (taken, rest) = self.left.split_at_checked(length).ok_or(SHORT)?;
        self.left = rest;
        Ok(taken)
    }

    fn text(&mut self) -> Result<String, RecordError> {
        let text = std::str::from_utf8(self.bytes()?);
        text.map(str::to_owned).map_err(|_| RecordError::Damaged("a text is not UTF-8"))
    }

    fn time(&mut self) -> Result<SystemTime, RecordError> {
        let since = Duration::from_millis(self.number()?);
        UNIX_EPOCH.checked_add(since).ok_or(RecordError::Damaged("a time is too late"))
    }

    fn asked(&mut self) -> Result<RunRequest, RecordError> {
        let ticket = Ticket(self.number()?);
        let action = Action::ALL.get(usize::from(self.byte()?)).copied();
        let action = action.ok_or(RecordError::Damaged("an action is unknown"))?;
        let name = self.text()?.into();
        let at = Position { line: self.small()?, column: self.small()? };
        let at = (at.line > 0).then_some(at);
        let began = self.time()?;
        let scope = self.scope()?;
        Ok(RunRequest { ticket, action, name, at, began, scope })
    }

    fn scope(&mut self) -> Result<Option<Arc<Scope>>, RecordError> {
        let mut scope = None;
        let depth = self.number()?;
        if depth > Scope::DEEPEST as u64 {
            return Err(RecordError::Damaged("steps are nested too deep"));
        }
        for _ in 0..depth {
            let number = self.number()?;
            let kind = usize::from(self.byte()?);
            let part = match FORMS.get(kind) {
                Some(form) => Part::Branch { form, index: self.number()? },
                None if kind == FORMS.len() => Part::Step(self.text()?.into()),
                None => return Err(RecordError::Damaged("a step is of no known kind")),
            };
            scope = Some(Arc::new(Scope { part, number, outer: scope }));
        }
        Ok(scope)
    }

    fn note(&mut self) -> Result<Note, RecordError> {
        Ok(match self.byte()? {
            kind @ (0 | 1) => Note::Begun { asked: self.asked()?, is_idempotent: kind == 1 },
            2 => Note::Waits(self.asked()?),
            3 => Note::Answered {
                asked: self.asked()?,
                ended: self.time()?,
                failed: if self.flag()? { Some(self.text()?) } else { None },
                answer: if self.flag()? { Some(self.bytes()?.to_vec()) } else { None },
            },
            _ => return Err(RecordError::Damaged("a note is of no known kind")),
        })
    }
}

const SHORT: RecordError = RecordError::Damaged("it ends too early");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scope() -> impl Strategy<Value = Option<Arc<Scope>>> {
        let part = prop_oneof![
            ".{0,9}".prop_map(|name: String| Part::Step(name.into())),
            (0..FORMS.len(), any::<u64>())
                .prop_map(|(form, index)| Part::Branch { form: FORMS[form], index }),
        ];
        prop::collection::vec((part, any::<u64>()), 0..=Scope::DEEPEST).prop_map(|parts| {
            let within = |outer, (part, number)| Some(Arc::new(Scope { part, number, outer }));
            parts.into_iter().fold(None, within)
        })
    }

    fn asked() -> impl Strategy<Value = RunRequest> {
        let at = prop::option::of((1..9_u32, 0..9_u32));
        (any::<u64>(), 0..Action::ALL.len(), ".{0,20}", at, 0..1_u64 << 50, scope()).prop_map(
            |(ticket, action, name, at, began, scope)| RunRequest {
                scope,
                ticket: Ticket(ticket),
                action: Action::ALL[action],
                name: name.into(),
                at: at.map(|(line, column)| Position { line, column }),
                began: UNIX_EPOCH + Duration::from_millis(began),
            },
        )
    }

    fn note() -> impl Strategy<Value = Note> {
        let answer = prop::option::of(prop::collection::vec(any::<u8>(), 0..40));
        prop_oneof![
            (asked(), any::<bool>())
                .prop_map(|(asked, is_idempotent)| Note::Begun { asked, is_idempotent }),
            asked().prop_map(Note::Waits),
            (asked(), prop::option::of("[a-z]{1,9}"), answer).prop_map(|(asked, failed, answer)| {
                let ended = asked.began;
                Note::Answered { asked, ended, failed, answer }
            }),
        ]
    }

    proptest! {
        #[test]
        fn notes_round_trip(
            notes in prop::collection::vec(note(), 0..9), state: Vec<u8>, next: u64, ms: u64, last_trail in 0..=MOST,
        ) {
            let mut record = begin();
            notes.iter().for_each(|note| append(&mut record, note));
            prop_assert_eq!(read(&record), Ok(notes.clone()));
            let used = Used { time: Duration::from_millis(ms), last_trail };
            let saved = Saved { next, open: notes, used: Some(used), state };
            let record = write_saved(&saved);
            prop_assert_eq!(super::used(&record), Some(used));
            prop_assert_eq!(read_saved(&record), Ok(saved));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = (read(&bytes), read_saved(&bytes));
            for version in OLDEST..=VERSION {
                let bytes: Vec<u8> = std::iter::once(version).chain(bytes.clone()).collect();
                let _ = (read(&bytes), read_saved(&bytes));
            }
        }
    }

    #[test]
    fn a_record_of_another_version_is_refused_as_such() {
        assert_eq!(read(&[VERSION + 1]), Err(RecordError::Version));
        assert_eq!(read_saved(&[0, 1, 2]), Err(RecordError::Version));
        assert!(matches!(read(&[]), Err(RecordError::Damaged(_))));
    }
}
