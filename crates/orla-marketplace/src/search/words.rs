//! Splits text into words, and computes the stem of each word. Pure functions.

/// The maximum number of characters of a word.
const MAX_WORD: usize = 48;

/// Stop words: English words that say nothing about a capability. They are ignored in a query that has
/// other words.
const EMPTY: [&str; 32] = [
    "a", "about", "all", "an", "and", "any", "are", "as", "at", "be", "by", "can", "do", "for", "from",
    "how", "i", "in", "into", "is", "it", "me", "my", "of", "on", "or", "that", "the", "this", "to",
    "what", "with",
];

/// Returns whether it is a stop word.
pub(super) fn is_empty_word(word: &str) -> bool {
    EMPTY.binary_search(&word).is_ok()
}

/// Passes every word of a text to `take`, in lower case: runs of letters and digits. A run in camelCase
/// gives each part, then the whole (`GitHub` gives `git`, `hub` and `github`).
pub(super) fn each_word(text: &str, mut take: impl FnMut(&str)) {
    let (mut part, mut whole) = (String::new(), String::new());
    for run in text.split(|c: char| !c.is_alphanumeric()).filter(|run| !run.is_empty()) {
        let is_plain = run.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if is_plain && run.len() <= MAX_WORD {
            take(run);
            continue;
        }
        whole.clear();
        let mut before: Option<char> = None;
        let mut chars = run.chars().peekable();
        while let Some(c) = chars.next() {
            let begins = before.is_some_and(|before| begins_part(before, c, chars.peek().copied()));
            if begins && !part.is_empty() {
                take(&part);
                part.clear();
            }
            before = Some(c);
            for lower in c.to_lowercase().filter(|lower| lower.is_alphanumeric()) {
                push(&mut part, lower);
                push(&mut whole, lower);
            }
        }
        if part.len() < whole.len() && !part.is_empty() {
            take(&part);
        }
        if !whole.is_empty() {
            take(&whole);
        }
        part.clear();
    }
}

/// Returns whether a part of camelCase begins with `c`.
fn begins_part(before: char, c: char, after: Option<char>) -> bool {
    let after_small = before.is_lowercase() || before.is_numeric();
    c.is_uppercase() && (after_small || after.is_some_and(char::is_lowercase))
}

fn push(word: &mut String, c: char) {
    // The length in bytes is checked first, because most words are short.
    if word.len() < MAX_WORD || word.chars().count() < MAX_WORD {
        word.push(c);
    }
}

/// Returns the stem of an English word: without the endings of the plural, `-ing`, `-ed` and a final
/// `e`. It need not be a word itself.
pub(super) fn stem(word: &str) -> String {
    let mut stem = word.to_owned();
    if !word.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return stem;
    }
    singular(&mut stem);
    base(&mut stem);
    if stem.len() > 3 && stem.ends_with('e') && !stem.ends_with("ee") {
        stem.pop();
    }
    stem
}

fn singular(word: &mut String) {
    let cut = match word.as_str() {
        short if short.len() < 4 => return,
        ies if ies.ends_with("ies") && ies.len() > 4 => {
            word.truncate(word.len() - 3);
            return word.push('y');
        }
        es if ["sses", "xes", "ches", "shes", "zzes"].iter().any(|end| es.ends_with(end)) => 2,
        s if s.ends_with('s') && !["ss", "us", "is"].iter().any(|end| s.ends_with(end)) => 1,
        _ => return,
    };
    word.truncate(word.len() - cut);
}

fn base(word: &mut String) {
    let cut = match word.as_str() {
        ied if ied.ends_with("ied") && ied.len() > 4 => {
            word.truncate(word.len() - 3);
            return word.push('y');
        }
        ing if ing.ends_with("ing") && ing.len() > 5 => 3,
        ed if ed.ends_with("ed") && !ed.ends_with("eed") && ed.len() > 4 => 2,
        _ => return,
    };
    let rest = &word[..word.len() - cut];
    // `string` is not a form of a verb `str`.
    if !rest.contains(['a', 'e', 'i', 'o', 'u', 'y']) {
        return;
    }
    word.truncate(word.len() - cut);
    let mut ends = word.bytes().rev();
    if let (Some(last), Some(before)) = (ends.next(), ends.next())
        && last == before
        && !b"aeiouslz".contains(&last)
        && word.len() > 3
    {
        word.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<String> {
        let mut words = Vec::new();
        each_word(text, |word| words.push(word.to_owned()));
        words
    }

    #[test]
    fn text_is_cut_where_names_are_put_together() {
        let cases: [(&str, &[&str]); 11] = [
            ("list_files", &["list", "files"]),
            ("github.create-issue", &["github", "create", "issue"]),
            ("getUserName", &["get", "user", "name", "getusername"]),
            ("HTTPServer", &["http", "server", "httpserver"]),
            ("GitHub", &["git", "hub", "github"]),
            ("Weather", &["weather"]),
            ("sha256 base64Encode", &["sha256", "base64", "encode", "base64encode"]),
            ("v2.API", &["v2", "api"]),
            ("Größe, ÄNDERN!", &["größe", "ändern"]),
            ("  — …", &[]),
            ("İstanbul", &["istanbul"]),
        ];
        for (text, expected) in cases {
            assert_eq!(words(text), expected, "{text}");
        }
    }

    #[test]
    fn the_forms_of_a_word_are_kept_under_one() {
        let cases: [&[&str]; 14] = [
            &["file", "files", "filed", "filing"],
            &["query", "queries", "querying", "queried"],
            &["create", "creates", "creating", "created"],
            &["search", "searches", "searching", "searched"],
            &["process", "processes", "processing"],
            &["box", "boxes"],
            &["set", "sets", "setting", "settings"],
            &["run", "runs", "running"],
            &["list", "lists", "listed", "listing"],
            &["call", "calls", "called", "calling"],
            &["string", "strings"],
            &["feed", "feeds"],
            &["status"],
            &["analysis"],
        ];
        let mut stems: Vec<String> = Vec::new();
        for forms in cases {
            let of: Vec<String> = forms.iter().map(|form| stem(form)).collect();
            assert!(of.iter().all(|stem| *stem == of[0]), "{forms:?} {of:?}");
            stems.push(of[0].clone());
        }
        assert!(
            stems.iter().collect::<std::collections::HashSet<_>>().len() == stems.len(),
            "{stems:?}"
        );
    }

    #[test]
    fn the_empty_words_are_sorted() {
        assert!(EMPTY.is_sorted());
    }

    proptest! {
        #[test]
        fn any_text_is_cut_into_short_words_of_lower_case(text in ".{0,200}") {
            for word in words(&text) {
                prop_assert!(!word.is_empty() && word.chars().count() <= MAX_WORD);
                prop_assert!(word.chars().all(char::is_alphanumeric), "{word}");
                prop_assert!(!stem(&word).is_empty());
            }
        }
    }
}
