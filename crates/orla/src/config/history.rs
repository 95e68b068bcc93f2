//! `history`: the stored calls.

use std::path::PathBuf;
use std::time::Duration;

use orla_document::{Kind as Shape, Node};
use orla_history::PointerPattern;
use serde_json::{Value, json};

use super::Config;
use super::forms::{Count, Flag, PATH, Read, Scalar, Span, texts_or_text};
use super::keys::{Key, key, object};
use super::read::Reader;

const EXPECTED: &str =
    "false, or a mapping with path, keep, max_rows, max_body_bytes, bodies and redact";
/// The longest time that calls are kept.
const MAX_KEEP: Duration = Duration::from_secs(3660 * 86_400);
/// The default numbers of calls that are kept in memory and in a file.
const IN_MEMORY: usize = 1000;
const IN_FILE: usize = 1_000_000;

/// The settings of stored calls: the keys of `history`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HistoryConfig {
    /// Whether anything is kept.
    pub(crate) enabled: bool,
    /// The file; empty where it is beside the state, or in memory.
    pub(crate) path: PathBuf,
    pub(crate) keep: Duration,
    /// The maximum number of calls; `None` is a number for the place.
    pub(crate) max_rows: Option<usize>,
    pub(crate) max_body_bytes: usize,
    pub(crate) bodies: bool,
    pub(crate) redact: Vec<PointerPattern>,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        let own = orla_history::Options::default();
        Self {
            enabled: true,
            path: PathBuf::new(),
            keep: own.keep,
            max_rows: None,
            max_body_bytes: own.max_body_bytes,
            bodies: own.bodies,
            redact: Vec::new(),
        }
    }
}

impl Config {
    /// Returns the file of the history, or `None` for memory. The default `state_dir` does not count,
    /// since calls contain data that people may not expect in a file.
    pub(crate) fn history_file(&self) -> Option<PathBuf> {
        let own = &self.history;
        match own.path.as_os_str().is_empty() {
            false => Some(own.path.clone()),
            true if self.state == super::StateKind::Memory || self.is_default("state_dir") => None,
            true => Some(self.state_dir.join("history.db")),
        }
    }

    /// Returns the maximum number of calls that are kept, in a file or in memory.
    pub(crate) fn history_rows(&self, is_in_file: bool) -> usize {
        let default = if is_in_file { IN_FILE } else { IN_MEMORY };
        self.history.max_rows.unwrap_or(default)
    }
}

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
pub(super) fn keys() -> Vec<Key<Config>> {
    vec![
        key("path", PATH, |c: &mut Config| &mut c.history.path,
            "file that keeps calls across restarts; by default `history.db` in `state_dir` if that is configured, and otherwise memory").restart(|c| &mut c.history.path),
        key("keep", Span(MAX_KEEP), |c| &mut c.history.keep,
            "how long a call is kept"),
        key("max_rows", Count(1_usize, 1_000_000_000), |c: &mut Config| &mut c.history.max_rows,
            "maximum number of calls that are kept; 1,000 in memory and 1,000,000 in a file by default"),
        key("max_body_bytes", Count(0_usize, 64 << 20), |c| &mut c.history.max_body_bytes,
            "maximum bytes kept of each input and each output"),
        key("bodies", Flag, |c| &mut c.history.bodies,
            "whether inputs, outputs, notices and standard error are kept"),
        key("redact", Read(patterns, texts_or_text), |c| &mut c.history.redact,
            "members of inputs and outputs that are replaced by `[redacted]`: JSON Pointers, in which `*` is any member or item"),
    ]
}

fn patterns(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<PointerPattern>> {
    let items = match &node.kind {
        Shape::List(items) => &items[..],
        _ => std::slice::from_ref(node),
    };
    let mut patterns = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let text = reader.word_at(&path, item, "a JSON Pointer such as /user/password")?;
        let read = text.parse().map_err(|err| format!(": {err}"));
        patterns.extend(reader.noted::<PointerPattern>(&path, item, read));
    }
    Some(patterns)
}

/// Reads the text of the environment variable.
pub(super) fn of_variable(config: &mut Config, text: &str) -> Result<(), String> {
    config.history.enabled =
        Flag.parse(text).map_err(|expected| format!("expected {expected}, got {text:?}"))?;
    Ok(())
}

pub(super) fn read(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    if let Shape::Scalar(_) = &node.kind {
        let read = reader.plain_of(node, EXPECTED).and_then(|text| {
            Flag.parse(&text)
                .map_err(|_| format!(": expected {EXPECTED}, got {}", super::read::shown(node, &text)))
        });
        config.history.enabled = reader.noted(path, node, read).unwrap_or(true);
        return;
    }
    if let Some(pairs) = reader.pairs(path, node, EXPECTED) {
        reader.mapping(path, node.at, super::keys::present(pairs), &keys(), config);
    }
}

pub(super) fn schema() -> Value {
    json!({"anyOf": [{"type": "boolean"}, object(&keys(), &mut Config::default())]})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        Config::of(text)
            .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn the_history_is_in_a_file_only_where_one_is_configured() {
        let of = |text: &str| read(text).unwrap().history_file();
        assert_eq!(of(""), None);
        assert_eq!(of("history: {keep: 1d}\n"), None);
        assert!(of("history: {path: h.db}\n").unwrap().ends_with("h.db"));
        assert!(of("state_dir: ./st\n").unwrap().ends_with("st/history.db"));
        assert_eq!(of("state: memory\nstate_dir: ./st\n"), None);
        let rows = |text: &str, is_in_file| read(text).unwrap().history_rows(is_in_file);
        assert_eq!((rows("", false), rows("", true)), (1000, 1_000_000));
        assert_eq!(rows("history: {max_rows: 7}\n", true), 7);
    }

    #[test]
    fn the_keys_are_read_and_what_is_wrong_is_named_with_its_place() {
        let config = read(
            "history: {keep: 2h, max_rows: 5, max_body_bytes: 10, bodies: false, redact: [/a/*/b]}\n",
        )
        .unwrap();
        let own = config.history;
        assert_eq!(
            (own.keep.as_secs(), own.max_rows, own.max_body_bytes, own.bodies),
            (7200, Some(5), 10, false)
        );
        assert_eq!(own.redact[0].to_string(), "/a/*/b");
        assert!(!read("history: false\n").unwrap().history.enabled);
        assert!(read("history: true\n").unwrap().history.enabled);
        for (text, words) in [
            ("history: {redact: [card]}", "history.redact[0]: expected a JSON Pointer"),
            ("history: {rows: 5}", "history.rows: unknown key"),
            ("history: {max_rows: 0}", "history.max_rows: expected a whole number from 1"),
            ("history: maybe", "history: expected false, or a mapping"),
        ] {
            let problem = read(text).err().unwrap();
            assert!(problem.contains(words) && problem.contains("orla.yaml:1:"), "{text}: {problem}");
        }
    }
}
