//! Reads the input from the tree of a form, and puts problems where they belong.

use std::collections::HashSet;

use orla_marketplace::rtfs::json::{push_index, push_key};

use super::fields::key_of;
use super::node::{Choice, Control, Entry, Node};
use crate::exact::{Json, is_number};

/// The value that was read from a node.
pub(super) struct Read {
    pub(super) value: Option<Json>,
    /// Whether a person entered any of it.
    is_entered: bool,
}

impl Node {
    /// Reads the value. `place` is its place in the input.
    pub(super) fn read(&mut self, place: &str) -> Read {
        self.place = Some(place.to_owned());
        if self.null == Some(true) {
            return Read { value: Some(Json::Null), is_entered: true };
        }
        let entered = |value: Option<Json>| Read { is_entered: value.is_some(), value };
        let mut problem = None;
        let read = match &mut self.control {
            Control::Text { value, .. } => {
                entered((!value.is_empty()).then(|| Json::Text(value.clone())))
            }
            Control::Number { value, .. } => {
                let number = value.trim();
                entered((!number.is_empty()).then(|| match is_number(number) {
                    true => Json::Number(number.to_owned()),
                    // The validator reports the expected type.
                    false => Json::Text(value.clone()),
                }))
            }
            Control::Select { options, choice } => entered(match choice {
                Choice::Nothing => None,
                Choice::Option(chosen) => options.get(*chosen).map(|(value, _)| value.clone()),
                // The validator reports the values.
                Choice::Other(text) => Some(Json::Text(text.clone())),
            }),
            Control::Fixed(value) => Read { value: Some(value.clone()), is_entered: false },
            Control::Closed => entered(None),
            Control::Any { value } => {
                let text = value.trim();
                let json = || Json::parse(text).unwrap_or_else(|_| Json::Text(value.clone()));
                entered((!text.is_empty()).then(json))
            }
            Control::Raw { value, .. } if value.trim().is_empty() => entered(None),
            Control::Raw { value, .. } => match Json::parse(value) {
                Ok(value) => entered(Some(value)),
                Err(error) => {
                    problem = Some(format!("not JSON: {}", error.0));
                    entered(None)
                }
            },
            Control::Alternatives { chosen, inner, .. } => {
                let read = inner.as_mut().map(|inner| inner.read(place));
                let read = read.unwrap_or(Read { value: None, is_entered: false });
                // Choosing an alternative of an optional value makes the value present.
                let is_chosen = !self.is_required && chosen.is_some() && read.value.is_some();
                Read { is_entered: read.is_entered || is_chosen, ..read }
            }
            Control::Array { items, .. } => {
                let mut values = Vec::new();
                for item in items {
                    let mut place = place.to_owned();
                    push_index(&mut place, values.len());
                    let read = item.read(&place);
                    match read.value.filter(|_| read.is_entered || item.is_strict) {
                        Some(value) => values.push(value),
                        None => item.forget(),
                    }
                }
                let is_entered = !values.is_empty();
                Read {
                    value: (self.is_required || is_entered).then_some(Json::Array(values)),
                    is_entered,
                }
            }
            Control::Object { members, entries, .. } => {
                let mut values: Vec<(String, Json)> = Vec::new();
                let mut is_entered = false;
                let mut taken = HashSet::new();
                for member in members {
                    let key =
                        key_of(member.path.rsplit('.').next().unwrap_or_default()).unwrap_or_default();
                    let mut place = place.to_owned();
                    push_key(&mut place, &key);
                    let read = member.read(&place);
                    is_entered |= read.is_entered;
                    let is_there = read.is_entered
                        || member.is_required
                        || matches!(member.control, Control::Fixed(_));
                    values.extend(read.value.filter(|_| is_there).map(|value| (key, value)));
                }
                taken.extend(values.iter().map(|(name, _)| name.clone()));
                for Entry { key, has_field, node } in entries {
                    let mut place = place.to_owned();
                    push_key(&mut place, key);
                    let read = node.read(&place);
                    let Some(value) = read.value.filter(|_| read.is_entered) else { continue };
                    is_entered = true;
                    if key.is_empty() && *has_field {
                        node.problems.push("its name is missing".to_owned());
                    } else if !taken.insert(key.clone()) {
                        node.problems.push(format!("the name {key} is given twice"));
                    } else {
                        values.push((key.clone(), value));
                    }
                }
                let is_there = self.is_required || is_entered;
                Read { value: is_there.then_some(Json::Object(values)), is_entered }
            }
        };
        self.problems.extend(problem);
        read
    }

    /// Its value is not in the input.
    fn forget(&mut self) {
        self.place = None;
        match &mut self.control {
            Control::Object { members, entries, .. } => {
                members.iter_mut().for_each(Self::forget);
                entries.iter_mut().for_each(|entry| entry.node.forget());
            }
            Control::Array { items, .. } => items.iter_mut().for_each(Self::forget),
            Control::Alternatives { inner: Some(inner), .. } => inner.forget(),
            _ => {}
        }
    }

    /// Notes a problem at the node of this place, or else at the nearest one around it.
    pub(super) fn blame(&mut self, place: &str, problem: &str) -> bool {
        let Some(own) = &self.place else { return false };
        let Some(rest) = place.strip_prefix(&**own) else { return false };
        if !(rest.is_empty() || rest.starts_with(['.', '['])) {
            return false;
        }
        let rest = rest.to_owned();
        let is_below = |node: &mut Self| node.blame(place, problem);
        let is_found = match &mut self.control {
            Control::Object { members, entries, .. } => {
                members.iter_mut().any(is_below)
                    || entries.iter_mut().any(|entry| is_below(&mut entry.node))
            }
            Control::Array { items, .. } => items.iter_mut().any(is_below),
            Control::Alternatives { inner: Some(inner), .. } => is_below(inner),
            _ => false,
        };
        if is_found {
            return true;
        }
        // The form as a whole is no field.
        if self.path.is_empty() {
            return false;
        }
        let problem = match rest.is_empty() {
            true => problem.to_owned(),
            false => format!("{}: {problem}", rest.trim_start_matches('.')),
        };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
        true
    }
}
