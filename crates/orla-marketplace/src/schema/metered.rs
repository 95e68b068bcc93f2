//! JSON that is checked with a limited number of steps.
//!
//! A schema may make its check exponential: four definitions that are each an `anyOf` of two equal
//! references take minutes at five levels of data. Every access to a value is a step here, and a check
//! that has used up its steps unwinds to [`within`]. No panic is reported, because this is not a bug.

use std::borrow::Cow;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use jsonschema::json::{Array, Json as Representation, Node, NodeIdentity, Object, SerdeJson};
use jsonschema::types::JsonType;
use serde_json::{Map, Number, Value as Json};

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The number of steps between readings of the clock (a power of two).
const STEPS_BETWEEN_LOOKS: u64 = 1 << 16;

/// Signals that a check has used up its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

/// Runs a check that may read [`Metered`] values at most `steps` times.
///
/// # Errors
/// The check is not done after this many steps.
pub(super) fn within<T>(steps: u64, check: impl FnOnce() -> T) -> Result<T, Exhausted> {
    let before = LEFT.replace(steps);
    let result = catch_unwind(AssertUnwindSafe(check));
    LEFT.set(before);
    result.map_err(|panic| match panic.downcast::<Exhausted>() {
        Ok(exhausted) => *exhausted,
        Err(panic) => resume_unwind(panic),
    })
}

/// Runs checks that end with [`Exhausted`] at `deadline` at the latest.
pub(crate) fn until<T>(deadline: Instant, checks: impl FnOnce() -> T) -> T {
    struct Restore(Option<Instant>);
    impl Drop for Restore {
        fn drop(&mut self) {
            DEADLINE.set(self.0);
        }
    }
    let _restore = Restore(DEADLINE.replace(Some(deadline)));
    checks()
}

/// Returns the remaining time of the checks of this thread, if limited.
pub(super) fn time_left() -> Option<Duration> {
    DEADLINE.get().map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

fn step() {
    steps(1);
}

/// Counts the steps for reading a long value: one step for eight bytes.
fn steps_of(value: &Json) {
    let length = match value {
        Json::String(text) => text.len() / 8,
        Json::Array(items) => items.len(),
        Json::Object(members) => members.len(),
        _ => 0,
    };
    steps(1 + length as u64);
}

fn steps(count: u64) {
    let before = LEFT.get();
    let Some(left) = before.checked_sub(count) else { resume_unwind(Box::new(Exhausted)) };
    LEFT.set(left);
    let is_time_to_look = before / STEPS_BETWEEN_LOOKS != left / STEPS_BETWEEN_LOOKS;
    if is_time_to_look && time_left().is_some_and(|left| left.is_zero()) {
        resume_unwind(Box::new(Exhausted));
    }
}

/// The representation whose nodes are [`Metered`].
pub(super) struct MeteredJson;

/// A value that counts how often it is read.
#[derive(Clone, Copy)]
pub(super) struct Metered<'a>(pub(super) &'a Json);

impl Representation for MeteredJson {
    type Node<'a> = Metered<'a>;
    type PreparedKey = String;
    type StringBuffer = Json;

    fn prepare_key(key: &str) -> String {
        key.to_owned()
    }

    fn with_string_node<T>(buffer: &mut Json, text: &str, f: impl FnOnce(Metered<'_>) -> T) -> T {
        SerdeJson::with_string_node(buffer, text, |node| f(Metered(node)))
    }
}

impl<'a> Node<'a, MeteredJson> for Metered<'a> {
    type Object = MeteredObject<'a>;
    type Array = MeteredArray<'a>;
    type Number = &'a Number;

    fn as_object(&self) -> Option<MeteredObject<'a>> {
        step();
        self.0.as_object().map(MeteredObject)
    }

    fn as_array(&self) -> Option<MeteredArray<'a>> {
        step();
        self.0.as_array().map(|items| MeteredArray(items))
    }

    fn as_string(&self) -> Option<Cow<'a, str>> {
        steps_of(self.0);
        self.0.as_str().map(Cow::Borrowed)
    }

    fn as_number(&self) -> Option<&'a Number> {
        step();
        self.0.as_number()
    }

    fn as_boolean(&self) -> Option<bool> {
        step();
        self.0.as_bool()
    }

    fn is_null(&self) -> bool {
        step();
        self.0.is_null()
    }

    fn json_type(&self) -> JsonType {
        step();
        Node::<SerdeJson>::json_type(&self.0)
    }

    fn string_length(&self) -> Option<u64> {
        steps_of(self.0);
        Node::<SerdeJson>::string_length(&self.0)
    }

    fn equals_value(&self, expected: &Json) -> bool {
        steps_of(self.0);
        Node::<SerdeJson>::equals_value(&self.0, expected)
    }

    fn to_value(&self) -> Cow<'a, Json> {
        step();
        Cow::Borrowed(self.0)
    }

    fn identity(&self) -> Option<NodeIdentity> {
        step();
        Node::<SerdeJson>::identity(&self.0)
    }
}

/// The members of a [`Metered`] object.
pub(super) struct MeteredObject<'a>(&'a Map<String, Json>);

impl<'a> Object<'a, MeteredJson> for MeteredObject<'a> {
    type Node = Metered<'a>;
    type MemberName = &'a str;
    type MembersIter = Box<dyn Iterator<Item = (&'a str, Metered<'a>)> + 'a>;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, key: &String) -> Option<Metered<'a>> {
        step();
        self.0.get(key).map(Metered)
    }

    fn members(&self) -> Self::MembersIter {
        Box::new(self.0.iter().map(|(key, value)| {
            step();
            (key.as_str(), Metered(value))
        }))
    }
}

/// The items of a [`Metered`] array.
pub(super) struct MeteredArray<'a>(&'a [Json]);

impl<'a> Array<'a, MeteredJson> for MeteredArray<'a> {
    type Node = Metered<'a>;
    type ElementsIter = Box<dyn Iterator<Item = Metered<'a>> + 'a>;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn elements(&self) -> Self::ElementsIter {
        Box::new(self.0.iter().map(|item| {
            step();
            Metered(item)
        }))
    }

    fn is_unique(&self) -> bool {
        self.0.iter().for_each(steps_of);
        Array::<SerdeJson>::is_unique(&self.0)
    }
}
