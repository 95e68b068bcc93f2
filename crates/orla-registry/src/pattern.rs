//! Regular expressions in linear time, with a budget.
//!
//! A single search takes time that grows with the text, but all matches of a text together may take its
//! square: a search may scan to the end of the text and then match one character. Every step is
//! therefore counted, and a pattern that takes too many is an error.
//!
//! # How it works
//!
//! `regex-automata`'s lazy DFA finds matches and reports how many bytes it scanned. Features that it
//! lacks (Unicode word boundaries beside non-ASCII characters, groups) are handled by a simulation of
//! the NFA, thread by thread ([`Pattern::crawl`]).

use std::ops::Range;

use regex_automata::Input;
use regex_automata::hybrid::{dfa, regex};
use regex_automata::nfa::thompson::{self, NFA, State};
use regex_automata::util::primitives::{PatternID, StateID};
use regex_automata::util::syntax;

use crate::error::BuiltinError;

type Result<T> = std::result::Result<T, BuiltinError>;

/// The maximum length of a pattern, in bytes.
const MAX_PATTERN: usize = 10_000;
/// The maximum compiled size: with Unicode, `\w` alone takes some ten thousand bytes.
const MAX_NFA: usize = 1 << 20;
const MAX_CACHE: usize = 2 << 20;
/// The maximum number of bytes that the DFA scans, or of threads that the simulation steps, in one call.
const MAX_STEPS: usize = 50_000_000;

/// A compiled pattern.
pub(crate) struct Pattern {
    nfa: NFA,
    dfa: regex::Regex,
    cache: regex::Cache,
    steps: usize,
}

/// The ranges of one match and its groups.
pub(crate) type Groups = Vec<Option<Range<usize>>>;

impl Pattern {
    /// Compiles a pattern. `flags` are `i` (ignore case), `m` (`^` and `$` match at lines), `s` (`.`
    /// matches line breaks), `x` (spaces and comments).
    pub(crate) fn new(argument: &str, pattern: &str, flags: &str) -> Result<Self> {
        if pattern.len() > MAX_PATTERN {
            return Err(BuiltinError::limit("the pattern", format_args!("{MAX_PATTERN} bytes")));
        }
        let mut syntax = syntax::Config::new().nest_limit(100);
        for flag in flags.chars() {
            syntax = match flag {
                'i' => syntax.case_insensitive(true),
                'm' => syntax.multi_line(true),
                's' => syntax.dot_matches_new_line(true),
                'x' => syntax.ignore_whitespace(true),
                _ => return Err(BuiltinError::content("flags", "expected letters of i, m, s and x")),
            };
        }
        let size = thompson::Config::new().nfa_size_limit(Some(MAX_NFA));
        let lazy = dfa::Config::new()
            .unicode_word_boundary(true)
            .cache_capacity(MAX_CACHE)
            .skip_cache_capacity_check(true)
            .minimum_cache_clear_count(Some(20));
        let nfa = thompson::Compiler::new().syntax(syntax).configure(size.clone()).build(pattern);
        let nfa = nfa.map_err(|error| BuiltinError::content(argument, reason(&error)))?;
        let dfa = regex::Builder::new().syntax(syntax).thompson(size).dfa(lazy).build(pattern);
        let dfa = dfa.map_err(|error| BuiltinError::content(argument, reason(&error)))?;
        let cache = dfa.create_cache();
        Ok(Self { nfa, dfa, cache, steps: MAX_STEPS })
    }

    /// Returns the names of the groups; the whole match is the first, and has no name.
    pub(crate) fn names(&self) -> Vec<Option<String>> {
        let names = self.nfa.group_info().pattern_names(PatternID::ZERO);
        names.map(|name| name.map(str::to_owned)).collect()
    }

    /// Passes each match to `each`, from the left and without overlaps, until it returns `false`.
    pub(crate) fn matches(
        &mut self,
        text: &str,
        mut each: impl FnMut(&mut Self, Range<usize>) -> Result<bool>,
    ) -> Result<()> {
        let (mut at, mut last_end) = (0, None);
        let after = |at: usize| text[at..].chars().next().map(|c| at + c.len_utf8());
        while let Some(found) = self.find(text, at)? {
            let next = if found.is_empty() { after(found.end) } else { Some(found.end) };
            // An empty match at the end of the last match does not count.
            if !found.is_empty() || last_end != Some(found.end) {
                last_end = Some(found.end);
                if !each(self, found)? {
                    break;
                }
            }
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        Ok(())
    }

    /// Returns the first match that begins at or after an index.
    pub(crate) fn find(&mut self, text: &str, mut at: usize) -> Result<Option<Range<usize>>> {
        let before = (self.cache.forward().clear_count(), self.cache.forward().search_total_len());
        let found = self.dfa.try_search(&mut self.cache, &Input::new(text).range(at..));
        let after = (self.cache.forward().clear_count(), self.cache.forward().search_total_len());
        let looked_at = match after.1.checked_sub(before.1).filter(|_| before.0 == after.0) {
            Some(bytes) => bytes,
            None => text.len() - at,
        };
        self.spend(1 + 2 * looked_at)?;
        if let Ok(found) = found {
            return Ok(found.map(|found| found.range()));
        }
        loop {
            let Some(slots) = self.crawl(text, at..text.len(), false, 2)? else { return Ok(None) };
            let found = slots[0]..slots[1];
            if text.is_char_boundary(found.start) && text.is_char_boundary(found.end) {
                return Ok(Some(found));
            }
            at = found.start + 1;
        }
    }

    /// Returns the groups of a match that was found; the first is the match.
    pub(crate) fn groups(&mut self, text: &str, found: Range<usize>) -> Result<Groups> {
        let slots = self.crawl(text, found.clone(), true, self.nfa.group_info().slot_len())?;
        let slots = slots.unwrap_or_else(|| vec![found.start, found.end]);
        let group = |pair: &[usize]| match *pair {
            [start, end] if end != usize::MAX && start <= end => Some(start..end),
            _ => None,
        };
        Ok(slots.chunks(2).map(group).collect())
    }

    fn spend(&mut self, steps: usize) -> Result<()> {
        self.steps = self.steps.checked_sub(steps).ok_or_else(|| {
            BuiltinError::limit(
                "the search",
                format_args!("{MAX_STEPS} steps (the pattern looks far ahead)"),
            )
        })?;
        Ok(())
    }

    /// Runs all threads of the NFA in parallel, in the order of preference. Returns the slots (starts
    /// and ends of groups) of the first match in a range.
    fn crawl(
        &mut self,
        text: &str,
        range: Range<usize>,
        anchored: bool,
        slots: usize,
    ) -> Result<Option<Vec<usize>>> {
        let nfa = self.nfa.clone(); // shared
        let bytes = text.as_bytes();
        let mut threads =
            Threads { seen: vec![0; nfa.states().len()], now: 1, steps: 0, nfa: &nfa, bytes };
        let (mut current, mut next) = (Vec::new(), Vec::new());
        let mut matched = None;
        for at in range.clone().chain([range.end]) {
            let begins = matched.is_none() && (!anchored || at == range.start);
            if current.is_empty() && !begins {
                break;
            }
            if begins {
                threads.add(&mut current, nfa.start_anchored(), at, vec![usize::MAX; slots]);
            }
            threads.now += 1;
            let byte = bytes.get(at).filter(|_| at < range.end);
            for (id, slots) in current.drain(..) {
                let after = match (nfa.state(id), byte) {
                    (State::Match { .. }, _) => {
                        matched = Some(slots);
                        break;
                    }
                    (State::ByteRange { trans }, Some(byte)) if trans.matches_byte(*byte) => {
                        Some(trans.next)
                    }
                    (State::Sparse(sparse), Some(byte)) => sparse.matches_byte(*byte),
                    (State::Dense(dense), Some(byte)) => dense.matches_byte(*byte),
                    _ => None,
                };
                if let Some(after) = after {
                    threads.add(&mut next, after, at + 1, slots);
                }
            }
            std::mem::swap(&mut current, &mut next);
            next.clear();
            let steps = std::mem::take(&mut threads.steps);
            self.spend(1 + steps)?;
        }
        Ok(matched)
    }
}

struct Threads<'a> {
    /// The step at which each state was last added.
    seen: Vec<usize>,
    /// The current step.
    now: usize,
    steps: usize,
    nfa: &'a NFA,
    bytes: &'a [u8],
}

enum Todo {
    Explore(StateID),
    Restore(usize, usize),
}

impl Threads<'_> {
    /// Adds the states that can be reached without a byte, the preferred first.
    fn add(
        &mut self,
        list: &mut Vec<(StateID, Vec<usize>)>,
        from: StateID,
        at: usize,
        mut slots: Vec<usize>,
    ) {
        let mut todo = vec![Todo::Explore(from)];
        while let Some(next) = todo.pop() {
            let id = match next {
                Todo::Explore(id) => id,
                Todo::Restore(slot, old) => {
                    slots[slot] = old;
                    continue;
                }
            };
            if std::mem::replace(&mut self.seen[id.as_usize()], self.now) == self.now {
                continue;
            }
            self.steps += 1;
            match self.nfa.state(id) {
                State::Fail => {}
                State::ByteRange { .. } | State::Sparse(_) | State::Dense(_) | State::Match { .. } => {
                    self.steps += slots.len() / 4;
                    list.push((id, slots.clone()));
                }
                State::Look { look, next } => {
                    if self.nfa.look_matcher().matches(*look, self.bytes, at) {
                        todo.push(Todo::Explore(*next));
                    }
                }
                State::Union { alternates } => {
                    todo.extend(alternates.iter().rev().map(|id| Todo::Explore(*id)));
                }
                State::BinaryUnion { alt1, alt2 } => {
                    todo.push(Todo::Explore(*alt2));
                    todo.push(Todo::Explore(*alt1));
                }
                State::Capture { next, slot, .. } => {
                    let slot = slot.as_usize();
                    if slot < slots.len() {
                        todo.push(Todo::Restore(slot, slots[slot]));
                        slots[slot] = at;
                    }
                    todo.push(Todo::Explore(*next));
                }
            }
        }
    }
}

/// Returns the message of the deepest cause, on one line.
fn reason(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    let text = deepest.to_string();
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or(&text).trim();
    format!("no regular expression that can be used: {}", last.strip_prefix("error: ").unwrap_or(last))
}

/// Returns whether a character has a special meaning in a pattern.
pub(crate) fn is_special(c: char) -> bool {
    "\\.+*?()|[]{}^$#&-~".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pattern: &str, text: &str) -> Vec<String> {
        let mut pattern = Pattern::new("pattern", pattern, "").unwrap();
        let mut found = Vec::new();
        let each = |pattern: &mut Pattern, range: Range<usize>| {
            let groups = pattern.groups(text, range)?;
            let groups =
                groups.into_iter().map(|group| group.map_or("-", |range| &text[range]).to_owned());
            found.push(groups.collect::<Vec<_>>().join("|"));
            Ok(true)
        };
        match pattern.matches(text, each) {
            Ok(()) => found,
            Err(error) => vec![error.to_string()],
        }
    }

    #[test]
    fn finds_what_others_find() {
        let cases: &[(&str, &str, &[&str])] = &[
            ("a+", "caat a", &["aa", "a"]),
            ("", "aü", &["", "", ""]),
            ("x*", "axxb", &["", "xx", ""]),
            (r"(\w)(\d)?", "a1ü", &["a1|a|1", "ü|ü|-"]),
            (r"\bmüde\b", "Ich bin müde, Müdemüde müde.", &["müde", "müde"]),
            (r"\b", "ä b", &["", "", "", ""]),
            ("(a|ab)(c|bcd)", "abcd", &["abcd|a|bcd"]),
            ("(a*)*", "aa", &["aa|aa"]),
            ("(a*?)(a*)", "aa", &["aa||aa"]),
            ("^b", "ab", &[]),
            (r"(?P<y>\d{4})-(?P<m>\d\d)", "on 2026-11", &["2026-11|2026|11"]),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(all(pattern, text), *expected, "{pattern} in {text}");
        }
    }

    #[test]
    fn a_search_that_would_take_the_square_of_the_text_is_an_error() {
        let text = "A".repeat(200_000);
        let found = all(r".*[^A-Z]|[A-Z]", &text);
        assert_eq!(
            found,
            ["the search would be more than 50000000 steps (the pattern looks far ahead)"]
        );
        assert_eq!(all("A{100}", &text).len(), 2_000);
    }

    #[test]
    fn a_pattern_is_of_bounded_size() {
        for pattern in
            ["(", "a{2,1}", r"(?=a)", r"(a)\1", r"\p{Nothing}", "((\\w{100}){100}){100}", "a**{1000000}"]
        {
            let error = Pattern::new("pattern", pattern, "").err().map(|error| error.to_string());
            let error = error.unwrap_or_else(|| panic!("{pattern} is one"));
            assert!(error.starts_with("pattern: no regular expression that can be used: "), "{error}");
        }
        assert!(Pattern::new("pattern", &"(".repeat(5_000), "").is_err());
    }
}
