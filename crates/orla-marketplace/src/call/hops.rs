//! The instances that a call has passed through, to end loops of instances. Pure.

use std::sync::Arc;

/// The instances that a call has passed through, in order, by the names that their callers use.
///
/// An instance that calls another adds itself, so the length reveals a loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hops(Option<Arc<str>>);

impl Hops {
    /// The maximum number of instances that a call may pass through.
    pub const MAX: usize = 8;
    /// The maximum length of an instance's name.
    const MAX_NAME: usize = 64;
    const SEPARATOR: &str = ", ";

    /// Parses the output of [`as_str`](Self::as_str).
    ///
    /// # Errors
    /// A sentence with the chain, if it is longer than the limit.
    pub fn read(text: &str) -> Result<Self, String> {
        let names: Vec<String> =
            text.split(',').map(|name| plain(name.trim())).filter(|name| !name.is_empty()).collect();
        if names.len() > Self::MAX {
            return Err(exceeded(names.iter().map(String::as_str)));
        }
        Ok(Self((!names.is_empty()).then(|| names.join(Self::SEPARATOR).into())))
    }

    /// Returns the chain with this instance added.
    ///
    /// # Errors
    /// A sentence with the chain, if it would be longer than the limit.
    pub fn through(&self, name: &str) -> Result<Self, String> {
        let name = plain(name);
        if self.names().count() >= Self::MAX {
            return Err(exceeded(self.names().chain([name.as_str()])));
        }
        Ok(Self(Some(match &self.0 {
            Some(before) => format!("{before}{}{name}", Self::SEPARATOR).into(),
            None => name.into(),
        })))
    }

    /// Returns the names as one text; empty if the call comes from no other instance.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|names| names.split(Self::SEPARATOR))
    }
}

fn exceeded<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let shown: Vec<&str> = names.take(Hops::MAX + 1).collect();
    format!("the hop limit of {} instances, by {}", Hops::MAX, shown.join(" → "))
}

/// Returns a name in a form that is valid in a header.
fn plain(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    name.chars().take(Hops::MAX_NAME).map(|c| if is_plain(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_ends_with_a_sentence_that_names_it() {
        let mut hops = Hops::default();
        assert_eq!(hops.as_str(), "");
        for name in ["a", "b"].into_iter().cycle().take(Hops::MAX) {
            hops = Hops::read(hops.through(name).unwrap().as_str()).unwrap();
        }
        assert_eq!(hops.as_str(), "a, b, a, b, a, b, a, b");
        let too_many = "the hop limit of 8 instances, by a → b → a → b → a → b → a → b → a";
        assert_eq!(hops.through("a").unwrap_err(), too_many);
        assert_eq!(Hops::read(&format!("{}, a", hops.as_str())).unwrap_err(), too_many);
    }

    #[test]
    fn names_are_those_that_a_header_can_hold() {
        let hops = Hops::default().through("a, b\r\nx: y").unwrap();
        assert_eq!(hops.as_str(), "a__b__x:_y");
        assert_eq!(Hops::read(" , ,").unwrap(), Hops::default());
        let long = Hops::default().through(&"é".repeat(500)).unwrap();
        assert_eq!(long.as_str().len(), 64);
    }
}
