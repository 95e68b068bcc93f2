//! Search over a catalogue by words: BM25 over names, titles, descriptions and parameters, in memory.
//!
//! # How it works
//!
//! [`Words`] are the words of one capability, in [`FIELDS`] of different weight. [`words`] splits text
//! into words (`camelCase`, `snake_case`, dots) and reduces English forms to their stem. [`Index`]
//! holds, for each word, the capabilities in which it occurs and its weight there. The index is computed
//! once, so a search only adds numbers and sorts. All of it is pure.
//!
//! A capability need not contain all words of a query. Each contained word counts, rare words most. The
//! last word may be a prefix, because the user may still be typing. A word that occurs nowhere is
//! replaced by the nearest word that does.
//!
//! # What is deliberately absent
//!
//! Semantics: there are no synonyms and no embeddings. An agent that uses another word than the author
//! has to try other words.

mod fields;
mod index;
mod words;

pub(crate) use fields::Words;
pub(crate) use index::Index;
