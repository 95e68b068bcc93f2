//! The licences of everything that the product is built from.
//!
//! Compares `cargo metadata` with `deny.toml`, so it needs no network and no tool that is not there
//! already. A licence that is not on the list is a decision for a person. Advisories about known
//! faults are not checked here: their list lives on the network, and `cargo deny` reads it.

use std::process::Command;

use serde_json::Value;

use crate::Outcome;
use crate::tally::Tally;

/// Checks every package that `cargo metadata` resolves.
pub(crate) fn run() -> Outcome {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(crate::root())
        .output()
        .map_err(|err| format!("cargo metadata: {err}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|err| format!("cargo metadata: {err}"))?;
    let path = crate::root().join("deny.toml");
    let rules = std::fs::read_to_string(&path).map_err(|err| format!("{}: {err}", path.display()))?;
    let (accepted, banned) = (list(&rules, "allow"), list(&rules, "deny"));
    if accepted.is_empty() || banned.is_empty() {
        return Err(format!("{}: no `allow` or no `deny`", path.display()));
    }
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let mut tally = Tally::default();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let what = format!("{name} {}", package["version"].as_str().unwrap_or_default());
        let verdict = if banned.contains(&name) {
            Err("deny.toml keeps it out of the tree".to_owned())
        } else {
            match package["license"].as_str() {
                Some(expression) if is_met(expression, &accepted) => Ok(()),
                Some(expression) => Err(format!("its licence is not accepted: {expression}")),
                None => Err("names no licence".to_owned()),
            }
        };
        tally.count(&what, verdict);
    }
    Ok(tally.close())
}

/// Returns the strings of a list in a TOML file that is written one to a line.
fn list<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.lines()
        .map(str::trim)
        .skip_while(|line| *line != format!("{name} = ["))
        .skip(1)
        .take_while(|line| *line != "]")
        .filter_map(|line| line.trim_end_matches(',').strip_prefix('"')?.strip_suffix('"'))
        .collect()
}

/// Returns whether an SPDX expression can be met with accepted licences alone.
fn is_met(expression: &str, accepted: &[&str]) -> bool {
    // `/` is how old packages write OR.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { words: &words, accepted };
    reader.any() && reader.words.is_empty()
}

/// Reads an expression from the left; each method says whether the part it read is met.
struct Reader<'a> {
    words: &'a [&'a str],
    accepted: &'a [&'a str],
}

impl Reader<'_> {
    fn any(&mut self) -> bool {
        let mut met = self.all();
        while self.skip("OR") {
            met |= self.all();
        }
        met
    }

    fn all(&mut self) -> bool {
        let mut met = self.one();
        while self.skip("AND") {
            met &= self.one();
        }
        met
    }

    fn one(&mut self) -> bool {
        if self.skip("(") {
            return self.any() & self.skip(")");
        }
        let Some((licence, rest)) = self.words.split_first() else { return false };
        self.words = rest;
        // An exception only adds to what the licence permits.
        if let ["WITH", _exception, rest @ ..] = self.words {
            self.words = rest;
        }
        self.accepted.contains(licence)
    }

    fn skip(&mut self, word: &str) -> bool {
        let found = self.words.first() == Some(&word);
        if found {
            self.words = &self.words[1..];
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_accepted_when_some_choice_of_accepted_licences_meets_it() {
        let cases = [
            ("MIT", true),
            ("MIT OR Apache-2.0", true),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0", false),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
            ("Apache-2.0 WITH LLVM-exception OR MIT", true),
            ("MIT AND (", false),
            ("", false),
        ];
        for (expression, expected) in cases {
            assert_eq!(
                is_met(expression, &["MIT", "Apache-2.0", "Unicode-3.0"]),
                expected,
                "{expression}"
            );
        }
    }

    #[test]
    fn a_list_is_read_a_string_a_line() {
        let text = "allow = [\n    \"MIT\",\n    # why\n    \"ISC\",\n]\ndeny = [\n    \"x\"\n]\n";
        assert_eq!(list(text, "allow"), ["MIT", "ISC"]);
        assert_eq!(list(text, "deny"), ["x"]);
        assert!(list(text, "other").is_empty());
    }
}
