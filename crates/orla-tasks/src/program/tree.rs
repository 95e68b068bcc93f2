//! Renders the timeline of a program as lines of text: a tree of its steps and branches, and the source
//! lines at which it waits.

use std::collections::HashMap;
use std::fmt::Write as _;

use orla_marketplace::rtfs::Scope;

use super::timeline::{CurrentPlace, Step, Timeline};

/// A part of the tree.
enum Node<'c> {
    /// A request of the program.
    Leaf(&'c Step),
    /// A step, a form whose parts run concurrently, or one of its branches. The number is its index in
    /// `groups`.
    Group(usize),
}

#[derive(Default)]
struct Group<'c> {
    children: Vec<Node<'c>>,
    groups: Vec<Self>,
    /// The index of each group in `groups`.
    known: HashMap<Key<'c>, usize>,
    label: String,
}

/// Identifies a group within its parent.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key<'c> {
    /// The form and its number.
    Form(&'c str, u64),
    /// The number of the branch.
    Branch(u64),
}

/// Renders the timeline as a tree of lines below a title, with the lines of the source at the current
/// positions.
pub fn render(title: &str, timeline: &Timeline) -> String {
    let mut root = Group::default();
    for step in &timeline.steps {
        root.add(step);
    }
    let mut text = format!("{title}\n");
    if timeline.left_out > 0 {
        let _ = writeln!(text, "├─ … {} earlier steps", timeline.left_out);
    }
    root.print(&mut text, "");
    for CurrentPlace { at, text: line, before } in &timeline.stands_at {
        let Some(line) = line else { continue };
        let number = at.line.to_string();
        // A tab is copied, so that the caret is below its character.
        let pad: String =
            line.chars().take(*before).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        let _ = writeln!(text, "\n{number} | {line}\n{} | {pad}^", " ".repeat(number.len()));
    }
    text
}

impl<'c> Group<'c> {
    /// Adds a step below its enclosing groups.
    fn add(&mut self, step: &'c Step) {
        let mut group = self;
        for level in step.within.iter().take(Scope::DEEPEST) {
            let label = match &level.name {
                Some(name) => format!("{} {}", line(&level.form), line(name)),
                None => line(&level.form),
            };
            group = group.within(Key::Form(&level.form, level.number), label);
            if let Some(branch) = level.branch {
                group = group.within(Key::Branch(branch), format!("[{branch}]"));
            }
        }
        group.children.push(Node::Leaf(step));
    }

    fn within(&mut self, key: Key<'c>, label: String) -> &mut Self {
        let at = *self.known.entry(key).or_insert(self.groups.len());
        if at == self.groups.len() {
            self.children.push(Node::Group(at));
            self.groups.push(Self { label, ..Self::default() });
        }
        &mut self.groups[at]
    }

    fn print(&self, text: &mut String, indent: &str) {
        for (at, child) in self.children.iter().enumerate() {
            let is_last = at + 1 == self.children.len();
            let (branch, more) = if is_last { ("└─", "   ") } else { ("├─", "│  ") };
            let group = match child {
                Node::Leaf(step) => {
                    leaf(text, &format!("{indent}{branch}"), "", step);
                    continue;
                }
                Node::Group(at) => &self.groups[*at],
            };
            let label = &group.label;
            // A single entry is printed on the line of its branch.
            if let ([Node::Leaf(step)], true) = (&group.children[..], label.starts_with('[')) {
                leaf(text, &format!("{indent}{branch}"), &format!("{label} "), step);
                continue;
            }
            let (began, took) = group.times();
            let _ = writeln!(text, "{indent}{branch} {began}  {label}  {took}");
            group.print(text, &format!("{indent}{more}"));
        }
    }

    /// Returns the time of the first request in the group, and the duration of the whole group.
    fn times(&self) -> (&'c str, String) {
        let mut steps = Vec::new();
        self.steps(&mut steps);
        let began = steps.iter().map(|step| &*step.started_at).min().unwrap_or_default();
        let ended = steps.iter().map(|step| step.ended_at.as_deref()).collect::<Option<Vec<_>>>();
        let Some(ended) = ended.and_then(|all| all.into_iter().max()) else {
            return (began, "…  waiting".to_owned());
        };
        let moment = |text: &str| text.parse::<jiff::Timestamp>().ok();
        let took = moment(ended).zip(moment(began)).map(|(ended, began)| ended.duration_since(began));
        (began, took.map_or_else(String::new, |took| format!("{} ms", took.as_millis())))
    }

    fn steps(&self, all: &mut Vec<&'c Step>) {
        for child in &self.children {
            match child {
                Node::Leaf(step) => all.push(step),
                Node::Group(at) => self.groups[*at].steps(all),
            }
        }
    }
}

/// Prints a name on one line.
fn line(name: &str) -> String {
    name.replace(char::is_control, " ")
}

fn leaf(text: &mut String, branch: &str, label: &str, step: &Step) {
    let took = step.duration_ms.map_or("…".to_owned(), |ms| format!("{ms} ms"));
    let place = step.at.map_or(String::new(), |at| format!(" at {}:{}", at.line, at.column));
    let outcome = if step.outcome == "open" { "waiting" } else { &*step.outcome };
    let name = if step.name.is_empty() { String::new() } else { format!(" {}", line(&step.name)) };
    let (began, action) = (&step.started_at, &step.action);
    let _ = writeln!(text, "{branch} {began}  {label}{action}{name}{place}  {took}  {outcome}");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use orla_marketplace::program::{Action, RunRequest};
    use orla_marketplace::rtfs::{Part, Position, Scope, Ticket};

    use super::*;
    use crate::program::record::Note;
    use crate::program::record::{append, begin};

    fn asked(ticket: u64, action: Action, name: &str, column: u32) -> RunRequest {
        let at = Some(Position { line: 1, column });
        let began = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + ticket);
        RunRequest { ticket: Ticket(ticket), action, name: name.into(), at, began, scope: None }
    }

    #[test]
    fn the_tree_shows_each_step_and_the_current_source_line() {
        let done = asked(1, Action::Call, "step", 6);
        let ended = done.began + Duration::from_millis(120);
        let mut trail = begin();
        append(&mut trail, &Note::Answered { asked: done, ended, failed: None, answer: None });
        let mut notes = begin();
        let failed = asked(2, Action::Call, "pay", 12);
        append(&mut notes, &Note::Begun { asked: failed.clone(), is_idempotent: false });
        let ended = failed.began;
        let failed =
            Note::Answered { asked: failed, ended, failed: Some("timeout".into()), answer: None };
        append(&mut notes, &failed);
        append(&mut notes, &Note::Waits(asked(3, Action::AwaitEvent, "paid", 20)));
        let source = "(do (call :step) (…) (await-event \"paid\"))";
        let timeline = Timeline::read([&trail[..]], None, [&notes[..]], Some(source)).unwrap();
        let json = serde_json::to_string(&timeline).unwrap();
        assert_eq!(serde_json::from_str::<Timeline>(&json).unwrap(), timeline);
        let text = render("0199 rtfs working", &timeline);
        assert_eq!(
            text,
            "0199 rtfs working\n\
             ├─ 2027-01-15T08:00:01.000Z  call step at 1:6  120 ms  ok\n\
             ├─ 2027-01-15T08:00:02.000Z  call pay at 1:12  0 ms  timeout\n\
             └─ 2027-01-15T08:00:03.000Z  await-event paid at 1:20  …  waiting\n\
             \n\
             1 | (do (call :step) (…) (await-event \"paid\"))\n  \
               |                    ^\n"
        );
    }

    fn within(asked: RunRequest, scopes: &[(Part, u64)]) -> RunRequest {
        let scope = scopes
            .iter()
            .cloned()
            .fold(None, |outer, (part, number)| Some(Arc::new(Scope { part, number, outer })));
        RunRequest { scope, ..asked }
    }

    #[test]
    fn steps_and_branches_are_levels_of_the_tree() {
        let step = (Part::Step("fetch".into()), 1);
        let branch = |index, number| (Part::Branch { form: "pmap", index }, number);
        let all = [
            (asked(1, Action::Call, "plan", 1), &[][..]),
            (asked(2, Action::Call, "get", 2), &[step.clone(), branch(0, 2)]),
            (asked(3, Action::Call, "get", 2), &[step.clone(), branch(1, 2)]),
            (asked(4, Action::Call, "put", 3), &[step.clone(), branch(0, 2)]),
            (asked(5, Action::Call, "get", 2), &[step.clone(), branch(0, 3)]),
        ];
        let mut notes = begin();
        for (asked, scopes) in all {
            let asked = within(asked, scopes);
            let ended = asked.began + Duration::from_millis(10);
            let open = asked.ticket == Ticket(5);
            append(&mut notes, &Note::Begun { asked: asked.clone(), is_idempotent: true });
            if !open {
                append(&mut notes, &Note::Answered { asked, ended, failed: None, answer: None });
            }
        }
        let timeline = Timeline::read([], None, [&notes[..]], None).unwrap();
        let json = serde_json::to_value(&timeline.steps[1]).unwrap();
        let levels = serde_json::json!([
            {"form": "step", "number": 1, "name": "fetch"}, {"form": "pmap", "number": 2, "branch": 0}
        ]);
        assert_eq!(json["within"], levels);
        assert_eq!(serde_json::from_value::<Step>(json).unwrap(), timeline.steps[1]);
        assert_eq!(
            render("journal", &timeline),
            "journal\n\
             ├─ 2027-01-15T08:00:01.000Z  call plan at 1:1  10 ms  ok\n\
             └─ 2027-01-15T08:00:02.000Z  step fetch  …  waiting\n   \
                ├─ 2027-01-15T08:00:02.000Z  pmap  2010 ms\n   \
                │  ├─ 2027-01-15T08:00:02.000Z  [0]  2010 ms\n   \
                │  │  ├─ 2027-01-15T08:00:02.000Z  call get at 1:2  10 ms  ok\n   \
                │  │  └─ 2027-01-15T08:00:04.000Z  call put at 1:3  10 ms  ok\n   \
                │  └─ 2027-01-15T08:00:03.000Z  [1] call get at 1:2  10 ms  ok\n   \
                └─ 2027-01-15T08:00:05.000Z  pmap  …  waiting\n      \
                   └─ 2027-01-15T08:00:05.000Z  [0] call get at 1:2  …  waiting\n"
        );
    }
}
