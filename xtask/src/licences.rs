//! The licences of everything that the product is built from.
//!
//! Reads `cargo metadata`, so it needs no network and no tool that is not there already. The list
//! is of licences that ask for no more than attribution; anything else is a decision for a person.
//! Advisories about known faults are not checked here: their list lives on the network.

use std::process::Command;

use serde_json::Value;

use crate::Outcome;
use crate::tally::Tally;

/// Licences that a dependency may have (SPDX identifiers).
const ACCEPTED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    // Of data (the list of root certificates), as permissive as MIT.
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Packages that build C, or bring a second TLS stack, and so do not belong in the tree.
const BANNED: &[&str] =
    &["aws-lc-sys", "aws-lc-rs", "openssl-sys", "native-tls", "cmake", "libsqlite3-sys"];

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
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let mut tally = Tally::default();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let what = format!("{name} {}", package["version"].as_str().unwrap_or_default());
        let verdict = if BANNED.contains(&name) {
            Err("is on the list of packages that stay out of the tree".to_owned())
        } else {
            match package["license"].as_str() {
                Some(expression) if accepts(expression) => Ok(()),
                Some(expression) => Err(format!("its licence is not accepted: {expression}")),
                None => Err("names no licence".to_owned()),
            }
        };
        tally.count(&what, verdict);
    }
    Ok(tally.close())
}

/// Whether an SPDX expression can be met with accepted licences alone.
fn accepts(expression: &str) -> bool {
    // `/` is how old packages write OR.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any_of(&mut rest) && rest.is_empty()
}

fn any_of(words: &mut &[&str]) -> bool {
    let mut met = all_of(words);
    while let Some((&"OR", tail)) = words.split_first() {
        *words = tail;
        met |= all_of(words);
    }
    met
}

fn all_of(words: &mut &[&str]) -> bool {
    let mut met = one(words);
    while let Some((&"AND", tail)) = words.split_first() {
        *words = tail;
        met &= one(words);
    }
    met
}

fn one(words: &mut &[&str]) -> bool {
    let Some((&first, tail)) = words.split_first() else { return false };
    *words = tail;
    if first == "(" {
        let met = any_of(words);
        if let Some((&")", tail)) = words.split_first() {
            *words = tail;
            return met;
        }
        return false;
    }
    // An exception only adds to what the licence permits.
    if let ["WITH", _exception, tail @ ..] = *words {
        *words = tail;
    }
    ACCEPTED.contains(&first)
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
            assert_eq!(accepts(expression), expected, "{expression}");
        }
    }
}
