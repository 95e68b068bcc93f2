//! The course of a program: what it asked for and when, and where it stands. Pure, for people and programs. `tree` prints it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::SystemTime;

use orla_marketplace::full_millis;
use orla_marketplace::program::{Action, Asked};
use orla_marketplace::rtfs::{Part, Scope};
use serde::{Deserialize, Serialize};

use super::record::{Note, Unreadable, read, read_saved};
use crate::task::{Place, Timestamp};

/// The most steps that are shown.
const SHOWN: usize = 10_000;

/// The most characters of a line of the source that are shown.
const LINE: usize = 200;

/// What a program did until now, and where it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Course {
    /// The steps, in the order in which the program asked for them. Of very many, the last ones.
    pub steps: Vec<Step>,
    /// How many steps before them are left out.
    #[serde(default)]
    pub left_out: usize,
    /// Where the program waits, or where it was last if it waits nowhere.
    #[serde(default)]
    pub stands_at: Vec<Standing>,
}

/// A place where a program stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Where in the program.
    pub at: Place,
    /// The line of the source, or a part of it that contains the place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// How many characters of `text` are before the place.
    pub before: usize,
}

/// Something that a program asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The number of the request.
    pub ticket: u64,
    /// The form: `call`, `await-event` and so on.
    pub action: Cow<'static, str>,
    /// Of what: a capability, the name of an event, an instant.
    pub name: String,
    /// Where in the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Place>,
    /// When it was asked for: RFC 3339.
    pub started_at: String,
    /// When its answer came. A step without it is what the program waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// How long that took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// `ok`, the kind of the error, or `open`.
    pub outcome: Cow<'static, str>,
    /// The steps and branches of the program that it is in, the outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<Level>,
}

/// A step or a branch of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// The form: `step`, `parallel`, `race`, `settle` or `pmap`.
    pub form: Cow<'static, str>,
    /// The number of the form in the run. A form that a program enters twice has two.
    pub number: u64,
    /// The name of a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Which branch of another form, from 0 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<u64>,
}

/// Why the course of a program is not known.
pub type Trouble = Unreadable;

impl Course {
    /// Reads the course from the records of a run: those of its trail, its state, and the notes since then. `source` is
    /// the text of the program, if it is known.
    ///
    /// # Errors
    /// A record is damaged or of another version.
    pub fn read<'b>(
        trail: impl IntoIterator<Item = &'b [u8]>,
        state: Option<&[u8]>,
        notes: impl IntoIterator<Item = &'b [u8]>,
        source: Option<&str>,
    ) -> Result<Self, Trouble> {
        let mut steps = BTreeMap::new();
        let mut enter = |note: Note| {
            let step = Step::of(&note);
            // The answer says more than the beginning.
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
        let stands_at = places(&steps).into_iter().map(|at| Standing::of(at, source)).collect();
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

impl Standing {
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
        let Asked { ticket, action, name, at, began, scope } = asked;
        let took = |ended: SystemTime| ended.duration_since(*began).unwrap_or_default();
        Self {
            ticket: ticket.0,
            action: action.as_str().into(),
            name: match action {
                // The number of a stream says nothing to people.
                Action::Next | Action::Send | Action::Close => String::new(),
                _ => name.to_string(),
            },
            at: at.map(|at| Place { line: at.line, column: at.column }),
            started_at: Timestamp::from(*began).to_string(),
            ended_at: end.map(|(ended, _)| Timestamp::from(ended).to_string()),
            duration_ms: end.map(|(ended, _)| full_millis(took(ended))),
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
