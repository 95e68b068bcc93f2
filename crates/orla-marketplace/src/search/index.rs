//! The index: for each word, its occurrences and its weight.

use std::collections::HashMap;

use super::fields::{FIELDS, Words};
use super::words::{each_word, is_empty_word, stem};

/// How fast the weight of further occurrences of a word decreases (BM25's k₁).
const SATURATION: f32 = 1.2;
/// How much the weight of a word decreases in a longer text, by field (BM25's b): a long name is a
/// precise one.
const LENGTH: [f32; FIELDS.len()] = [0.3, 0.3, 0.75, 0.75, 0.75];
/// The weight of a word of which only a prefix was given.
const BEGINNING: f32 = 0.5;
/// The weight of a word of which only a prefix was given, if the prefix is itself a word.
const LONGER: f32 = 0.2;
/// The weight of a word that is only similar to the given one.
const NEAR: f32 = 0.4;
/// The maximum number of words in a query.
const MAX_WORDS: usize = 32;

/// Finds documents by words. Documents are identified by their index.
pub(crate) struct Index {
    /// Every form of a word that occurs, sorted, with its stem.
    forms: Vec<(Box<str>, u32)>,
    stems: HashMap<Box<str>, u32>,
    /// The index of the first entry of each stem. The entries end where those of the next stem begin.
    starts: Vec<u32>,
    places: Vec<Place>,
    /// For each document, its rank in the order of the ids.
    ranks: Vec<u32>,
}

/// A document, and the weight of a word in it.
#[derive(Clone, Copy)]
struct Place {
    document: u32,
    worth: f32,
}

/// How often a stem occurs in one field of one document.
struct Occurrence {
    stem: u32,
    document: u32,
    field: u8,
    count: u32,
}

/// Counts that are collected while the documents are read.
#[derive(Default)]
struct Count {
    forms: HashMap<Box<str>, u32>,
    stems: HashMap<Box<str>, u32>,
    occurrences: Vec<Occurrence>,
    /// Word counts by document and field.
    lengths: Vec<[u32; FIELDS.len()]>,
}

impl Count {
    fn add(&mut self, words: &Words<'_>) {
        let document = u32::try_from(self.lengths.len()).unwrap_or(u32::MAX);
        let mut lengths = [0; FIELDS.len()];
        let mut found: Vec<u32> = Vec::new();
        for (field, text) in words.texts.iter().enumerate() {
            found.clear();
            each_word(text, |word| found.push(self.stem_of(word)));
            lengths[field] = u32::try_from(found.len()).unwrap_or(u32::MAX);
            found.sort_unstable();
            for same in found.chunk_by(|a, b| a == b) {
                let count = u32::try_from(same.len()).unwrap_or(u32::MAX);
                let field = field as u8;
                self.occurrences.push(Occurrence { stem: same[0], document, field, count });
            }
        }
        self.lengths.push(lengths);
    }

    fn stem_of(&mut self, word: &str) -> u32 {
        if let Some(known) = self.forms.get(word) {
            return *known;
        }
        let next = u32::try_from(self.stems.len()).unwrap_or(u32::MAX);
        let number = *self.stems.entry(stem(word).into()).or_insert(next);
        self.forms.insert(word.into(), number);
        number
    }
}

impl Index {
    /// Returns the index of these documents.
    pub(crate) fn new<'a>(documents: impl Iterator<Item = Words<'a>>) -> Self {
        let (mut count, mut ids) = (Count::default(), Vec::new());
        for words in documents {
            count.add(&words);
            ids.push(words.id);
        }
        let (starts, places) = weighed(&count);
        let mut order: Vec<u32> = (0..).take(ids.len()).collect();
        order.sort_by_key(|at| ids[*at as usize]);
        let mut ranks = vec![0; ids.len()];
        for (rank, at) in (0..).zip(order) {
            ranks[at as usize] = rank;
        }
        let mut forms: Vec<(Box<str>, u32)> = count.forms.into_iter().collect();
        forms.sort_unstable();
        Self { forms, stems: count.stems, starts, places, ranks }
    }

    /// Returns the documents that contain a word of the query, the best first, equal ones in the order
    /// of their ids. Every score is finite and above 0.
    pub(crate) fn search(&self, question: &str) -> Vec<(usize, f32)> {
        let words = words_of(question);
        let mut scores = vec![0.0_f32; self.ranks.len()];
        let mut best = vec![0.0_f32; self.ranks.len()];
        for (at, word) in words.iter().enumerate() {
            let stems = self.stems_for(word, at + 1 == words.len());
            // A word counts once for a document, no matter how many of its forms occur.
            for (stem, factor) in &stems {
                for place in self.places_of(*stem) {
                    let best = &mut best[place.document as usize];
                    *best = best.max(place.worth * factor);
                }
            }
            for (stem, _) in &stems {
                for place in self.places_of(*stem) {
                    let document = place.document as usize;
                    scores[document] += std::mem::take(&mut best[document]);
                }
            }
        }
        let mut found: Vec<(usize, f32)> =
            scores.into_iter().enumerate().filter(|(_, score)| *score > 0.0).collect();
        found.sort_unstable_by(|(a, a_score), (b, b_score)| {
            b_score.total_cmp(a_score).then_with(|| self.ranks[*a].cmp(&self.ranks[*b]))
        });
        found
    }

    /// Returns the stems that match a word of a query, and the weight of each.
    fn stems_for(&self, word: &str, is_last: bool) -> Vec<(u32, f32)> {
        let exact = self.stems.get(&*stem(word)).copied();
        let mut stems: Vec<(u32, f32)> = exact.map(|stem| (stem, 1.0)).into_iter().collect();
        if is_last {
            let factor = if exact.is_some() { LONGER } else { BEGINNING };
            let mut longer: Vec<u32> = self.beginning_with(word).collect();
            longer.sort_unstable();
            longer.dedup();
            longer.retain(|stem| Some(*stem) != exact);
            // Together they count as one word, no matter how rare each of them is.
            let found: usize = longer.iter().map(|stem| self.places_of(*stem).len()).sum();
            let together = rarity(self.ranks.len(), found);
            stems.extend(longer.into_iter().map(|stem| {
                let alone = rarity(self.ranks.len(), self.places_of(stem).len());
                (stem, factor * (together / alone).min(1.0))
            }));
        }
        if stems.is_empty() {
            stems.extend(self.near(word).map(|stem| (stem, NEAR)));
        }
        stems
    }

    fn beginning_with<'a>(&'a self, start: &'a str) -> impl Iterator<Item = u32> + 'a {
        let from = self.forms.partition_point(|(form, _)| **form < *start);
        let forms = self.forms[from..].iter();
        forms.take_while(move |(form, _)| form.starts_with(start)).map(|(_, stem)| *stem)
    }

    /// Returns the most likely correction of a misspelt word: one edit in a word of four letters, two in
    /// one of eight, and none in the first letter.
    fn near(&self, word: &str) -> Option<u32> {
        let length = word.chars().count();
        let slips = (length / 4).min(2);
        let first = word.chars().next().filter(|_| slips > 0)?;
        let mut start = [0; 4];
        let start: &str = first.encode_utf8(&mut start);
        let from = self.forms.partition_point(|(form, _)| **form < *start);
        let forms = self.forms[from..].iter().take_while(|(form, _)| form.starts_with(start));
        forms
            .filter(|(form, _)| form.chars().count().abs_diff(length) <= slips)
            .map(|(form, stem)| (strsim::osa_distance(word, form), *stem))
            .filter(|(distance, _)| *distance <= slips)
            .min_by_key(|(distance, _)| *distance)
            .map(|(_, stem)| stem)
    }

    fn places_of(&self, stem: u32) -> &[Place] {
        let at = stem as usize;
        let (Some(from), Some(to)) = (self.starts.get(at), self.starts.get(at + 1)) else { return &[] };
        &self.places[*from as usize..*to as usize]
    }
}

/// Returns the words of a query, each once. Stop words count only if there are no others.
fn words_of(question: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    each_word(question, |word| {
        if words.len() < MAX_WORDS && !words.iter().any(|known| known == word) {
            words.push(word.to_owned());
        }
    });
    if words.iter().any(|word| !is_empty_word(word)) {
        words.retain(|word| !is_empty_word(word));
    }
    words
}

/// Returns the weight of a word that occurs in this many of the documents (BM25's inverse document
/// frequency); above 0.
fn rarity(documents: usize, found: usize) -> f32 {
    let (documents, found) = (documents as f32, found.min(documents) as f32);
    (1.0 + (documents - found + 0.5) / (found + 0.5)).ln()
}

/// Returns the weight of every word in every document (BM25F), by stem, and where each stem begins.
fn weighed(count: &Count) -> (Vec<u32>, Vec<Place>) {
    let documents = count.lengths.len();
    let mut averages = [0.0_f32; FIELDS.len()];
    for (field, average) in averages.iter_mut().enumerate() {
        let sum: u64 = count.lengths.iter().map(|lengths| u64::from(lengths[field])).sum();
        *average = (sum as f32 / documents.max(1) as f32).max(1.0);
    }
    // The entries are sorted by stem without comparing; the documents of each stem stay in order.
    let mut ends = vec![0_u32; count.stems.len() + 1];
    for occurrence in &count.occurrences {
        ends[occurrence.stem as usize + 1] += 1;
    }
    for at in 1..ends.len() {
        ends[at] += ends[at - 1];
    }
    let mut sorted = vec![0_u32; count.occurrences.len()];
    let mut next = ends.clone();
    for (at, occurrence) in (0_u32..).zip(&count.occurrences) {
        let slot = &mut next[occurrence.stem as usize];
        sorted[*slot as usize] = at;
        *slot += 1;
    }

    let frequency = |occurrence: &Occurrence| {
        let field = usize::from(occurrence.field);
        let length = count.lengths[occurrence.document as usize][field] as f32;
        let norm = 1.0 - LENGTH[field] + LENGTH[field] * length / averages[field];
        FIELDS[field] * occurrence.count as f32 / norm
    };
    let (mut starts, mut places) = (Vec::with_capacity(ends.len()), Vec::new());
    for range in ends.windows(2) {
        let start = places.len();
        starts.push(u32::try_from(start).unwrap_or(u32::MAX));
        for at in &sorted[range[0] as usize..range[1] as usize] {
            let occurrence = &count.occurrences[*at as usize];
            match places[start..].last_mut() {
                Some(Place { document, worth }) if *document == occurrence.document => {
                    *worth += frequency(occurrence);
                }
                _ => places.push(Place { document: occurrence.document, worth: frequency(occurrence) }),
            }
        }
        let rarity = rarity(documents, places.len() - start);
        for place in &mut places[start..] {
            place.worth = rarity * place.worth * (SATURATION + 1.0) / (place.worth + SATURATION);
        }
    }
    starts.push(u32::try_from(places.len()).unwrap_or(u32::MAX));
    (starts, places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn document<'a>(id: &'a str, description: &'a str, parameters: &'a str) -> Words<'a> {
        Words { id, texts: [id.into(), "".into(), description.into(), parameters.into(), "".into()] }
    }

    fn ids<'a>(documents: &[(&'a str, &'a str, &'a str)], question: &str) -> Vec<&'a str> {
        let index = Index::new(documents.iter().map(|(id, text, names)| document(id, text, names)));
        index.search(question).into_iter().map(|(at, _)| documents[at].0).collect()
    }

    #[test]
    fn the_best_comes_first() {
        let tools = [
            ("weather.current", "The weather of a city now", "city units"),
            ("weather.forecast", "The weather of a city on the next days", "city days"),
            ("github.createIssue", "Opens an issue in a repository", "repository title body"),
            ("github.list_issues", "Lists the issues of a repository", "repository state"),
            ("mail.send", "Sends a message to an address; an issue tracker may be told", "to body"),
            ("search_files", "Finds files by name and content", "pattern path"),
        ];
        let cases: [(&str, &[&str]); 12] = [
            ("forecast", &["weather.forecast"]),
            ("weather city forecasts", &["weather.forecast", "weather.current"]),
            ("creating issues", &["github.createIssue", "github.list_issues", "mail.send"]),
            ("GitHub", &["github.list_issues", "github.createIssue"]),
            ("the pattern", &["search_files"]),
            ("units", &["weather.current"]),
            ("sear", &["search_files"]),
            ("repositories", &["github.list_issues", "github.createIssue"]),
            ("wether", &["weather.current", "weather.forecast"]),
            ("foercast", &["weather.forecast"]),
            ("xyzzy", &[]),
            (" , ", &[]),
        ];
        for (question, expected) in cases {
            assert_eq!(ids(&tools, question), expected, "{question}");
        }
    }

    #[test]
    fn a_word_in_the_name_weighs_more_than_one_in_the_description() {
        let tools = [("a", "About invoices", ""), ("invoice", "Makes one", ""), ("b", "", "invoice")];
        assert_eq!(ids(&tools, "invoice"), ["invoice", "b", "a"]);
    }

    #[test]
    fn equal_matches_are_ordered_by_id() {
        let tools = [("c", "same", ""), ("a", "same", ""), ("b", "same", "")];
        assert_eq!(ids(&tools, "same"), ["a", "b", "c"]);
    }

    #[test]
    fn only_the_last_word_may_be_a_beginning() {
        let tools = [("a", "weather forecast", ""), ("b", "unrelated", "")];
        assert_eq!(ids(&tools, "weath"), ["a"]);
        assert_eq!(ids(&tools, "fore unrelated"), ["b"]);
        let tools =
            [("a1", "the number 7", ""), ("a2", "the number 8", ""), ("b7165", "another number", "")];
        assert_eq!(ids(&tools, "number 7"), ["a1", "b7165", "a2"]);
    }

    #[test]
    fn nothing_is_found_where_nothing_is() {
        assert!(Index::new(std::iter::empty()).search("anything").is_empty());
    }

    type Texts = [String; FIELDS.len()];

    fn texts() -> impl Strategy<Value = Vec<Texts>> {
        let text = prop_oneof!["[a-eA-E_. ]{0,20}", ".{0,20}"];
        prop::collection::vec(prop::array::uniform5(text), 0..12)
    }

    fn index_of(documents: &[Texts]) -> Index {
        let ids: Vec<String> = (0..documents.len()).map(|n| format!("{n:03}")).collect();
        let words = documents
            .iter()
            .zip(&ids)
            .map(|(texts, id)| Words { id, texts: texts.each_ref().map(|text| text.as_str().into()) });
        Index::new(words)
    }

    proptest! {
        #[test]
        fn every_document_is_found_by_each_of_its_own_words(documents in texts()) {
            let index = index_of(&documents);
            for (at, document) in documents.iter().enumerate() {
                let mut words = Vec::new();
                document.iter().for_each(|text| each_word(text, |word| words.push(word.to_owned())));
                for word in words {
                    prop_assert!(index.search(&word).iter().any(|(found, _)| *found == at), "{word:?}");
                }
            }
        }

        #[test]
        fn scores_are_finite_and_fall_and_no_document_comes_twice(
            documents in texts(),
            question in ".{0,60}",
        ) {
            let found = index_of(&documents).search(&question);
            prop_assert!(found.iter().all(|(_, score)| score.is_finite() && *score > 0.0));
            let falls = found.is_sorted_by(|(a, a_score), (b, b_score)| {
                a_score > b_score || a_score == b_score && a < b
            });
            prop_assert!(falls);
        }
    }
}
