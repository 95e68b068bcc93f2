//! The names of a catalogue that are similar to one that does not exist.
//!
//! Callers can ask for unknown names as often as they like, so few names are compared. The lengths of two names, the
//! letters that both have and their common beginning give an upper bound of their similarity, which costs little. Names
//! are compared in the order of their bounds, until none of the others can be nearer.

use std::cmp::Ordering;

/// The maximum number of names that are compared.
const MAX_COMPARED: usize = 32;
/// The maximum number of similar names.
const SHOWN: usize = 3;
/// Similar names have a higher similarity (Jaro-Winkler) than this.
const SIMILAR: f64 = 0.8;
/// More than the error of computed similarities.
const ROUNDING: f64 = 1e-9;
/// How many characters at the beginning make names more similar.
const BEGINNING: usize = 4;
/// The number of classes of letters.
const CLASSES: usize = 32;

/// A name, as it is compared.
pub(super) struct Name {
    /// Case and the kind of separator are the most common mistakes, so they do not count.
    folded: Box<str>,
    /// The number of characters.
    length: usize,
    /// How many characters are in each class.
    letters: [u8; CLASSES],
}

impl Name {
    pub(super) fn new(name: &str) -> Self {
        let folded = name.to_lowercase().replace('-', "_");
        let mut letters = [0_u8; CLASSES];
        let mut length = 0;
        for letter in folded.chars() {
            let count = &mut letters[letter as usize % CLASSES];
            *count = count.saturating_add(1);
            length += 1;
        }
        Self { folded: folded.into(), length, letters }
    }

    /// Returns the similarity to the wanted name. The name of a tool without its server's prefix is the
    /// tool.
    fn likeness(&self, wanted: &Self) -> f64 {
        let is_own = self.folded.rsplit_once("__").is_some_and(|(_, own)| *own == *wanted.folded);
        if is_own { 1.0 } else { strsim::jaro_winkler(&wanted.folded, &self.folded) }
    }

    /// Returns an upper bound of the similarity.
    fn bound(&self, wanted: &Self) -> f64 {
        let may_be_own = |rest: &str| rest.is_empty() || rest.ends_with("__");
        let is_counted = self.length.max(wanted.length) < usize::from(u8::MAX);
        if !is_counted || self.folded.strip_suffix(&*wanted.folded).is_some_and(may_be_own) {
            return 1.0;
        }
        let letters = self.letters.iter().zip(&wanted.letters);
        let common: usize = letters.map(|(one, other)| usize::from(*one.min(other))).sum();
        if common == 0 {
            return 0.0;
        }
        let share = |length: usize| common.min(length) as f64 / length as f64;
        let jaro = (share(self.length) + share(wanted.length) + 1.0) / 3.0;
        let beginnings = self.folded.chars().take(BEGINNING).zip(wanted.folded.chars());
        let same = beginnings.take_while(|(one, other)| one == other).count();
        jaro + 0.1 * same as f64 * (1.0 - jaro)
    }
}

/// Returns the indices of up to three admitted names that are similar to `name`, the nearest first.
pub(super) fn nearest(names: &[Name], name: &str, admits: impl Fn(usize) -> bool) -> Vec<usize> {
    let wanted = Name::new(name);
    let bounds = names.iter().enumerate().map(|(at, known)| (known.bound(&wanted), at));
    let mut candidates: Vec<_> = bounds.filter(|(bound, _)| *bound > SIMILAR - ROUNDING).collect();
    if candidates.len() > MAX_COMPARED {
        candidates.select_nth_unstable_by(MAX_COMPARED, nearest_first);
        candidates.truncate(MAX_COMPARED);
    }
    candidates.sort_unstable_by(nearest_first);
    let mut near: Vec<(f64, usize)> = Vec::with_capacity(SHOWN + 1);
    for (bound, at) in candidates {
        if near.get(SHOWN - 1).is_some_and(|(last, _)| *last > bound + ROUNDING) {
            break;
        }
        let likeness = names[at].likeness(&wanted);
        if likeness > SIMILAR && admits(at) {
            near.push((likeness, at));
            near.sort_by(nearest_first);
            near.truncate(SHOWN);
        }
    }
    near.into_iter().map(|(_, at)| at).collect()
}

fn nearest_first(one: &(f64, usize), other: &(f64, usize)) -> Ordering {
    other.0.total_cmp(&one.0).then(one.1.cmp(&other.1))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Compares all names.
    fn all_compared(names: &[Name], name: &str) -> Vec<usize> {
        let wanted = Name::new(name);
        let likeness = names.iter().enumerate().map(|(at, known)| (known.likeness(&wanted), at));
        let mut near: Vec<_> = likeness.filter(|(likeness, _)| *likeness > SIMILAR).collect();
        near.sort_by(|one, other| other.0.total_cmp(&one.0));
        near.into_iter().take(SHOWN).map(|(_, at)| at).collect()
    }

    fn any_name() -> impl Strategy<Value = String> {
        prop_oneof!["[a-d_.-]{0,12}", "(git|hub|äx)(__|_|-)[a-f]{1,6}(__[a-f]{1,3})?", "\\PC{0,20}"]
    }

    /// Returns the name with two neighbouring characters exchanged, or one left out.
    fn misspelt(name: &str, at: usize, leaves_out: bool) -> String {
        let mut letters: Vec<char> = name.chars().collect();
        let at = at % (letters.len() - 1);
        if leaves_out {
            letters.remove(at);
        } else {
            letters.swap(at, at + 1);
        }
        letters.into_iter().collect()
    }

    proptest! {
        #[test]
        fn no_name_is_more_similar_than_its_bound(one in any_name(), other in any_name()) {
            let (one, other) = (Name::new(&one), Name::new(&other));
            prop_assert!(one.likeness(&other) <= one.bound(&other) + ROUNDING);
        }

        #[test]
        fn the_nearest_names_are_those_that_a_comparison_of_all_finds(
            known in vec(any_name(), 0..MAX_COMPARED), name in any_name(),
        ) {
            let names: Vec<Name> = known.iter().map(|name| Name::new(name)).collect();
            prop_assert_eq!(nearest(&names, &name, |_| true), all_compared(&names, &name));
        }

        #[test]
        fn a_slip_finds_its_name_in_a_large_catalogue(
            known in vec("(git|jira|files|)(__|\\.|_)?(get|list|create|delete)_[a-z]{3,12}(_[a-z]{2,8})?", 200..400),
            chosen in any::<usize>(), at in any::<usize>(), leaves_out in any::<bool>(),
        ) {
            let names: Vec<Name> = known.iter().map(|name| Name::new(name)).collect();
            let name = misspelt(&known[chosen % known.len()], at, leaves_out);
            let (found, expected) = (nearest(&names, &name, |_| true), all_compared(&names, &name));
            prop_assert_eq!(found.first(), expected.first(), "{}", name);
        }
    }

    #[test]
    fn few_names_of_a_large_catalogue_are_compared() {
        let names: Vec<Name> = (0..5000).map(|at| Name::new(&format!("git__get_{at:04}"))).collect();
        let asked = std::cell::Cell::new(0);
        let count = |_| {
            asked.set(asked.get() + 1);
            false
        };
        assert!(nearest(&names, "git__get_12345", count).is_empty());
        assert_eq!(asked.get(), MAX_COMPARED, "those that are similar and refused");
    }
}
