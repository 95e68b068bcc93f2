//! Selects the variables of the server's environment that a process gets.
//!
//! A process gets the variables that [`BASE`] names, those that its declaration or the configuration
//! names in `pass_env`, and those that the runner adds for the call. All other variables stay with the
//! server, because its environment often holds tokens.
//!
//! # How it works
//!
//! [`is_passed`] decides on one name and is pure. An [`Environment`] is the server's environment with
//! the rules of one configuration. A [`Program`](crate::child::Program) computes its variables once and
//! keeps them until the rules change, so they cost nothing per call.

mod mentions;

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::sync::LazyLock;

use orla_marketplace::id::Pattern;

pub use mentions::mentioned;

/// Patterns of the variables that every process gets.
pub const BASE: [&str; 24] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_*",
    "TZ",
    "TMPDIR",
    "TERM",
    "XDG_*",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
];

static BASE_PATTERNS: LazyLock<Vec<Pattern>> = LazyLock::new(|| BASE.map(Pattern::new).into());

/// Returns whether a variable is passed to a process: some pattern must match its name. A `secret` is
/// passed only by a pattern that spells its name, without `*`.
pub fn is_passed<'p>(name: &str, secret: bool, patterns: impl IntoIterator<Item = &'p Pattern>) -> bool {
    patterns
        .into_iter()
        .any(|pattern| pattern.matches(name) && !(secret && pattern.as_str().contains('*')))
}

/// Checks whether a text is a valid pattern of `pass_env`.
///
/// # Errors
/// What is expected instead.
pub fn check_pattern(text: &str) -> Result<(), &'static str> {
    match text.is_empty() || text.contains(['=', '\0', ',']) || text.contains(char::is_whitespace) {
        true => Err("the name of a variable, or a pattern with `*`"),
        false => Ok(()),
    }
}

/// The server's environment, and the rules by which processes get parts of it.
#[derive(PartialEq, Eq)]
pub struct Environment {
    variables: Vec<(OsString, OsString)>,
    /// The variables that every process gets besides [`BASE`].
    patterns: Vec<Pattern>,
    /// The names of variables that hold secrets.
    secrets: BTreeSet<String>,
}

impl Environment {
    /// Creates an environment from the variables of this process. Every child gets the variables that
    /// `patterns` match. `secrets` need a pattern without `*`.
    pub fn new(patterns: Vec<Pattern>, secrets: BTreeSet<String>) -> Self {
        Self { variables: env::vars_os().collect(), patterns, secrets }
    }

    /// Returns the variables for a process whose declaration passes `own`.
    pub fn passed_to(&self, own: &[Pattern]) -> Vec<(OsString, OsString)> {
        let passed = self.variables.iter().filter(|(name, _)| self.passes(&name.to_string_lossy(), own));
        passed.cloned().collect()
    }

    /// Returns the names of variables that are set here, that `script` mentions, and that a process
    /// whose declaration passes `own` does not get.
    pub fn withheld(&self, script: &str, own: &[Pattern]) -> BTreeSet<String> {
        mentioned(script)
            .filter(|name| self.variables.iter().any(|(known, _)| known == name))
            .filter(|name| !self.passes(name, own) && !RUNNERS.contains(name))
            .map(str::to_owned)
            .collect()
    }

    fn passes(&self, name: &str, own: &[Pattern]) -> bool {
        let patterns = BASE_PATTERNS.iter().chain(&self.patterns).chain(own);
        is_passed(name, self.secrets.contains(name), patterns)
    }
}

/// Variables that the runner sets itself.
const RUNNERS: [&str; 4] = ["ORLA_TOOL", "ORLA_CALL_ID", "ORLA_INSTANCE", "TRACEPARENT"];

impl Default for Environment {
    /// Returns the environment of this process, of which children get [`BASE`] alone.
    fn default() -> Self {
        Self::new(Vec::new(), BTreeSet::new())
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The values may be secrets.
        f.debug_struct("Environment").field("patterns", &self.patterns).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().copied().map(Pattern::new).collect()
    }

    fn environment(pass: &[&str], secrets: &[&str], names: &[&str]) -> Environment {
        Environment {
            variables: names.iter().map(|name| ((*name).into(), "v".into())).collect(),
            patterns: patterns(pass),
            secrets: secrets.iter().copied().map(str::to_owned).collect(),
        }
    }

    fn passed(environment: &Environment, own: &[&str]) -> Vec<String> {
        let names = environment.passed_to(&patterns(own)).into_iter();
        names.map(|(name, _)| name.into_string().unwrap()).collect()
    }

    #[test]
    fn a_process_gets_the_base_and_what_is_passed_and_nothing_else() {
        let names =
            ["PATH", "LC_ALL", "LCX", "https_proxy", "Https_Proxy", "AWS_KEY", "ORLA_TOKEN", "A"];
        let base = ["PATH", "LC_ALL", "https_proxy"];
        assert_eq!(passed(&environment(&[], &[], &names), &[]), base);
        let own = passed(&environment(&[], &[], &names), &["AWS_*"]);
        assert_eq!(own, [&base[..], &["AWS_KEY"]].concat());
        let general = passed(&environment(&["A"], &[], &names), &[]);
        assert_eq!(general, [&base[..], &["A"]].concat());
        assert_eq!(passed(&environment(&["*"], &[], &names), &[]), names);
    }

    #[test]
    fn a_secret_is_passed_by_its_name_alone() {
        let names = ["ADA_TOKEN", "ORLA_TOKEN", "XDG_KEY"];
        let all = |own: &[&str]| passed(&environment(&["*"], &names, &names), own);
        assert_eq!(all(&["ADA_*", "*TOKEN"]), [""; 0]);
        assert_eq!(all(&["ADA_TOKEN"]), ["ADA_TOKEN"]);
        assert_eq!(passed(&environment(&[], &["HOME"], &["HOME"]), &[]), ["HOME"]);
    }

    #[test]
    fn mentioned_variables_that_are_not_passed_are_reported_as_withheld() {
        let names = ["API_KEY", "PATH", "OTHER", "ORLA_TOOL"];
        let environment = environment(&[], &[], &names);
        let script = "curl $API_KEY ${PATH} $UNSET ${OTHER} $ORLA_TOOL";
        let withheld = environment.withheld(script, &patterns(&["OTHER"]));
        assert_eq!(withheld.into_iter().collect::<Vec<_>>(), ["API_KEY"]);
    }

    proptest! {
        /// A variable is passed only if a pattern matches its name, and a secret only if a pattern
        /// equals its name. More patterns never remove a variable.
        #[test]
        fn nothing_is_passed_that_no_pattern_asks_for(
            name in "[A-C_*]{1,5}",
            texts in proptest::collection::vec("[A-C_*]{1,5}", 0..6),
            more in "[A-C_*]{1,5}",
            secret: bool,
        ) {
            let mut patterns: Vec<Pattern> = texts.iter().map(Pattern::new).collect();
            let is_it = is_passed(&name, secret, &patterns);
            if is_it {
                let reason = texts.iter().any(|text| match secret {
                    true => *text == name && !text.contains('*'),
                    false => Pattern::new(text).matches(&name),
                });
                prop_assert!(reason);
                prop_assert!(is_passed(&name, false, &patterns));
            }
            if texts.contains(&name) && !name.contains('*') {
                prop_assert!(is_it);
            }
            patterns.push(Pattern::new(more));
            prop_assert!(!is_it || is_passed(&name, secret, &patterns));
        }
    }
}
