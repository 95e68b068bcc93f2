//! The grammar for editors sees in a text what the reader sees: its scopes are compared, token by token,
//! with the tokens of [`rtfs::layout`].
//!
//! A grammar is a list of rules that are tried line by line, as `vscode-textmate` does it: of those that
//! match, the leftmost wins, then the first; a rule with `begin` holds until its `end`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use fancy_regex::Regex;
use rtfs::layout::{TokenKind, tokens};
use serde_json::Value as Json;

struct Grammar {
    json: Json,
    regexes: RefCell<HashMap<String, Rc<Regex>>>,
}

impl Grammar {
    fn new() -> Self {
        let text = include_str!("../../../editors/textmate/rtfs.tmLanguage.json");
        Self { json: serde_json::from_str(text).unwrap(), regexes: RefCell::default() }
    }

    fn regex(&self, text: &Json) -> Rc<Regex> {
        let text = text.as_str().unwrap();
        let mut regexes = self.regexes.borrow_mut();
        // Here `$` is before the end of a line, too.
        let made =
            || Rc::new(Regex::new(&format!("(?m){text}")).unwrap_or_else(|err| panic!("{text}: {err}")));
        Rc::clone(regexes.entry(text.to_owned()).or_insert_with(made))
    }

    /// The rules that are tried, what is included in the place of its name.
    fn tried<'g>(&'g self, patterns: &'g Json, rules: &mut Vec<&'g Json>) {
        for pattern in patterns.as_array().into_iter().flatten() {
            let rule = match pattern["include"].as_str() {
                Some(name) => &self.json["repository"][name.strip_prefix('#').unwrap()],
                None => pattern,
            };
            assert!(rule.is_object(), "{pattern} is not there");
            match rule["match"].is_string() || rule["begin"].is_string() {
                true => rules.push(rule),
                false => self.tried(&rule["patterns"], rules),
            }
        }
    }

    /// Returns the scopes of each byte of a text, those of the outer rules first.
    fn scopes(&self, text: &str) -> Vec<String> {
        let mut scopes = vec![String::new(); text.len()];
        let mut open: Vec<&Json> = Vec::new();
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            self.line(line, start, &mut open, &mut scopes);
            start += line.len();
        }
        scopes
    }

    fn line<'g>(&'g self, line: &str, start: usize, open: &mut Vec<&'g Json>, scopes: &mut [String]) {
        let (mut at, mut anchor) = (0, usize::MAX);
        while at <= line.len() {
            let mut rules = Vec::new();
            self.tried(open.last().map_or(&self.json["patterns"], |rule| &rule["patterns"]), &mut rules);
            let ends = open.last().map(|rule| (*rule, &rule["end"]));
            let begins = rules.into_iter().map(|rule| {
                (rule, if rule["match"].is_string() { &rule["match"] } else { &rule["begin"] })
            });
            let found =
                ends.into_iter().chain(begins).enumerate().filter_map(|(place, (rule, text))| {
                    if text.as_str().unwrap().contains(r"\A") && start > 0 {
                        return None;
                    }
                    let is_anchored = text.as_str().unwrap().contains(r"\G");
                    if is_anchored && anchor != at {
                        return None;
                    }
                    let captures = self.regex(text).captures_from_pos(line, at).unwrap()?;
                    let all = captures.get(0).unwrap();
                    let groups: Vec<_> = (1..captures.len())
                        .filter_map(|n| captures.get(n).map(|group| (n, group.range())))
                        .collect();
                    let fits = !is_anchored || all.start() == at;
                    fits.then_some((all.start(), place, rule, all.range(), groups))
                });
            let outer = |open: &[&Json]| -> String {
                open.iter()
                    .filter_map(|rule| rule["name"].as_str())
                    .map(|name| format!("{name} "))
                    .collect()
            };
            let Some((_, place, rule, range, groups)) = found.min_by_key(|found| (found.0, found.1))
            else {
                fill(&mut scopes[start + at..start + line.len()], &outer(open));
                return;
            };
            fill(&mut scopes[start + at..start + range.start], &outer(open));
            let is_end = !open.is_empty() && place == 0;
            let begins = rule["begin"].is_string() && !is_end;
            if begins {
                open.push(rule);
            }
            let mut scope = outer(open);
            if !begins && !is_end {
                scope.push_str(rule["name"].as_str().unwrap_or_default());
            }
            let captured = match (begins, is_end) {
                (true, _) => &rule["beginCaptures"],
                (_, true) => &rule["endCaptures"],
                _ => &rule["captures"],
            };
            scope.push_str(captured["0"]["name"].as_str().unwrap_or_default());
            fill(&mut scopes[start + range.start..start + range.end], &scope);
            for (n, group) in groups {
                let name = captured[n.to_string()]["name"].as_str().unwrap_or_default();
                fill(&mut scopes[start + group.start..start + group.end], &format!("{scope}{name}"));
            }
            if is_end {
                open.pop();
            }
            if begins {
                anchor = range.end;
            }
            at = if range.is_empty() && !begins && !is_end { range.end + 1 } else { range.end };
            if at >= line.len() {
                return;
            }
        }
    }
}

fn fill(place: &mut [String], scope: &str) {
    for byte in place {
        scope.clone_into(byte);
    }
}

/// What the innermost scope of a token of this kind begins with.
fn expected(kind: TokenKind) -> &'static [&'static str] {
    match kind {
        TokenKind::Space | TokenKind::Broken => &[""],
        TokenKind::LineComment | TokenKind::BlockComment => &["comment."],
        TokenKind::Open | TokenKind::Close => &["punctuation.section."],
        TokenKind::Prefix => &["keyword.operator.quote.", "comment.block.skip."],
        TokenKind::Text => &["string.", "constant.character.escape."],
        TokenKind::Keyword => &["constant.keyword."],
        TokenKind::Literal => &["constant.language.", "constant.numeric.", "constant.other."],
        TokenKind::Mark => &["keyword.operator.annotation."],
        TokenKind::Symbol => &[
            "variable.",
            "keyword.control.",
            "keyword.declaration.",
            "entity.name.function.",
            "keyword.operator.rest.",
        ],
    }
}

fn agrees(grammar: &Grammar, text: &str) {
    let scopes = grammar.scopes(text);
    let mut at = 0;
    for token in tokens(text) {
        let end = at + token.text.len();
        // Of what goes over several lines, line breaks may be left out.
        let bytes = (at..end).filter(|byte| !text.as_bytes()[*byte].is_ascii_whitespace());
        for byte in bytes {
            let innermost = scopes[byte].split(' ').rfind(|scope| !scope.is_empty()).unwrap_or_default();
            assert!(
                expected(token.kind).iter().any(|scope| innermost.starts_with(scope)),
                "{:?} {:?} has the scope {innermost:?} in {}",
                token.kind,
                token.text,
                &text[text[..at].rfind('\n').map_or(0, |line| line + 1)..end]
            );
        }
        at = end;
    }
}

#[test]
fn the_grammar_sees_what_the_reader_sees() {
    let grammar = Grammar::new();
    for text in [
        "#!/usr/bin/env orla\n; comment (\n(defn f \"doc \\n \\u{1F600} \\\" (\" [a :- :int, & more] :- :int\n  (+ a 1)) ; end",
        "#| block #| nested |# ) |# (f #_ (skipped 1) #_x 2)",
        "\"\"\"raw \" over\n lines ( \"\"\" :after",
        "{:a 1 :b/c -2.5 :\"odd key\" nil, :d.e true}",
        "#{1 2} #(+ %1 %2 %) '(a b) `(x ~y ~@z w#) ^{:doc \"d\"} v",
        "[1 +2 -3 - + 0xff 1_000 1e3 ##Inf ##-Inf ##NaN 123456789012345678901234567890]",
        "2026-11-20T10:00:00Z 550e8400-e29b-41d4-a716-446655440000",
        "[:map {:name :string :age :int?} [:b :any ?]] (def x : int 5) (def y :- int? 5)",
        "(nil? nil) (nilly true-ish) (call :weather.current {:city \"Paris\"}) (-> x (->> y))",
        "( let [x 1] (recur) ) (\n  def z 1) (:k m) (\"s\" 1) (#(f) 1) ([1] 0)",
        "(match x {:k p} when (> p 1) _ :else) (try (f) (catch :timeout e e) (finally 1))",
    ] {
        agrees(&grammar, text);
    }
    let pages = [include_str!("../../../docs/rtfs.md"), include_str!("../../../docs/rtfs-tour.md")];
    for block in pages.iter().flat_map(|page| page.split("```rtfs\n").skip(1)) {
        agrees(&grammar, block.split("```").next().unwrap());
    }
}

#[test]
fn heads_of_forms_are_distinguished() {
    let grammar = Grammar::new();
    let text = "(defn area [w] (if w (call :a.b) (str w)))";
    let scopes = grammar.scopes(text);
    for (word, scope) in [
        ("defn", "keyword.declaration.rtfs"),
        ("area", "entity.name.function.rtfs"),
        ("if", "keyword.control.rtfs"),
        ("call", "keyword.control.capability.rtfs"),
        ("str", "entity.name.function.call.rtfs"),
        ("w]", "variable.other.rtfs"),
    ] {
        let at = text.find(word).unwrap();
        assert!(scopes[at].ends_with(scope), "{word}: {}", scopes[at]);
    }
}
