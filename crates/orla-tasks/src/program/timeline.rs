//! The timeline of a program: its requests with their times, and its current position. Pure. `tree` prints
//! it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::SystemTime;

use orla_marketplace::millis_down;
use orla_marketplace::program::{Action, RunRequest};
use orla_marketplace::rtfs::{Part, Scope};
use serde::{Deserialize, Serialize};

use super::record::{Note, RecordError, read, read_saved};
use crate::task::{Place, Timestamp};

/// The maximum number of steps shown.
const SHOWN: usize = 10_000;

/// The maximum number of characters shown of a line of the source.
const LINE: usize = 200;

/// The requests of a program until now, and its current position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// The steps, in the order of their requests. A very long timeline has only its last steps.
    pub steps: Vec<Step>,
    /// The number of earlier steps that are left out.
    #[serde(default)]
    pub left_out: usize,
    /// The places where the program waits. If it waits nowhere, its last place.
    #[serde(default)]
    pub stands_at: Vec<CurrentPlace>,
}

/// A current position of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurrentPlace {
    /// The place in the program.
    pub at: Place,
    /// The line of the source, or a part of it that contains the place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The number of characters of `text` before the place.
    pub before: usize,
}

/// A request of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The number of the request.
    pub ticket: u64,
    /// The form: `call`, `await-event` and so on.
    pub action: Cow<'static, str>,
    /// The object of the request: a capability, the name of an event, or an instant.
    pub name: String,
    /// The place in the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Place>,
    /// The time of the request: RFC 3339.
    pub started_at: String,
    /// The time of the answer. `None` if the program still waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// The time between the request and the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// `ok`, the kind of the error, or `open`.
    pub outcome: Cow<'static, str>,
    /// The enclosing steps and branches of the program, the outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<Level>,
}

/// A step or a branch of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// The form: `step`, `parallel`, `race`, `settle` or `pmap`.
    pub form: Cow<'static, str>,
    /// The number of the form within the run. A form that a program enters twice has two numbers.
    pub number: u64,
    /// The name of a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The number of the branch of another form, starting at 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<u64>,
}

impl Timeline {
    /// Reads the timeline from the records of a run: its trail, its state, and the notes since the state.
    /// `source` is the text of the program, if it is known.
    ///
    /// # Errors
    ///
    /// Returns an error if a record is damaged or has another version.
    pub fn read<'b>(
        trail: impl IntoIterator<Item = &'b [u8]>,
        state: Option<&[u8]>,
        notes: impl IntoIterator<Item = &'b [u8]>,
        source: Option<&str>,
    ) -> Result<Self, RecordError> {
        let mut steps = BTreeMap::new();
        let mut enter = |note: Note| {
            let step = Step::of(&note);
            // The answer contains more than the note of the start.
            match (steps.get(&step.ticket), &note) {
                (None, _) | (Some(_), Note::Answered { .. }) => {
                    steps.insert(step.ticket, step);
                }
                _ => {}
            }
        };
        for record in trail {
            read(record)?.into_iter().for_each(&mut enter);
        }
        if let Some(state) = state {
            read_saved(state)?.open.into_iter().for_each(&mut enter);
        }
        for record in notes {
            read(record)?.into_iter().for_each(&mut enter);
        }
        let left_out = steps.len().saturating_sub(SHOWN);
        let steps: Vec<Step> = steps.into_values().skip(left_out).collect();
        let stands_at = places(&steps).into_iter().map(|at| CurrentPlace::of(at, source)).collect();
        Ok(Self { steps, left_out, stands_at })
    }
}

fn places(steps: &[Step]) -> Vec<Place> {
    let is_open = |step: &&Step| step.ended_at.is_none();
    let mut open: Vec<Place> = steps.iter().filter(is_open).filter_map(|step| step.at).collect();
    if open.is_empty() {
        open.extend(steps.iter().rev().find_map(|step| step.at));
    }
    open.sort_unstable_by_key(|at| (at.line, at.column));
    open.dedup();
    open
}

impl CurrentPlace {
    fn of(at: Place, source: Option<&str>) -> Self {
        let line = source.and_then(|source| source.lines().nth(at.line.saturating_sub(1) as usize));
        let column = at.column.saturating_sub(1) as usize;
        let skipped = column.saturating_sub(LINE / 2);
        let text = line.map(|line| line.chars().skip(skipped).take(LINE).collect());
        Self { at, text, before: column - skipped }
    }
}

impl Step {
    fn of(note: &Note) -> Self {
        let (asked, end) = match note {
            Note::Begun { asked, .. } | Note::Waits(asked) => (asked, None),
            Note::Answered { asked, ended, failed, .. } => (asked, Some((*ended, failed.as_deref()))),
        };
        let RunRequest { ticket, action, name, at, began, scope } = asked;
        let took = |ended: SystemTime| ended.duration_since(*began).unwrap_or_default();
        Self {
            ticket: ticket.0,
            action: action.as_str().into(),
            name: match action {
                // The number of a stream is of no use to a person.
                Action::Next | Action::Send | Action::Close => String::new(),
                _ => name.to_string(),
            },
            at: at.map(|at| Place { line: at.line, column: at.column }),
            started_at: Timestamp::from(*began).to_string(),
            ended_at: end.map(|(ended, _)| Timestamp::from(ended).to_string()),
            duration_ms: end.map(|(ended, _)| millis_down(took(ended))),
            outcome: match end {
                None => "open".into(),
                Some((_, None)) => "ok".into(),
                Some((_, Some(kind))) => kind.to_owned().into(),
            },
            within: levels(scope.as_deref()),
        }
    }
}

fn levels(scope: Option<&Scope>) -> Vec<Level> {
    let level = |Scope { part, number, .. }: &Scope| match part {
        Part::Step(name) => {
            let (form, name) = ("step".into(), Some(name.to_string()));
            Level { form, number: *number, name, branch: None }
        }
        Part::Branch { form, index } => {
            Level { form: (*form).into(), number: *number, name: None, branch: Some(*index) }
        }
    };
    let scopes = std::iter::successors(scope, |scope| scope.outer.as_deref());
    let mut levels: Vec<Level> = scopes.map(level).collect();
    levels.reverse();
    levels
}
