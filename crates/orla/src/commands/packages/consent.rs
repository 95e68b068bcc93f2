//! Shows packages before they run, and changed tools, and asks the person at the terminal for consent.

use std::collections::BTreeSet;
use std::io::IsTerminal;

use orla_confine::{Word, confines, forms};
use orla_packages::lock::{Entry, quoted_list};
use orla_packages::tools::{self, Tool};
use orla_process::confinement::{Fallback, Mode};

use reqwest::Url;

use crate::config::Config;
use crate::packages::content;
use crate::packages::project_of;
use crate::packages::signatures::{Demand, UNSIGNED};
use crate::text::{cut, on_one_line};
use crate::{Failure, cli, render};

use super::cargo;
use super::origin::{Fetched, portable_word, whole_word};

/// The maximum number of lines of one kind on the screen.
const MAX_LINES: usize = 20;

/// The question to a person before any part of a package runs.
pub(super) struct ConsentRequest<'a> {
    /// The package as it would be locked.
    pub(super) entry: &'a Entry,
    pub(super) package: &'a Fetched,
    pub(super) config: &'a Config,
    /// The permissions that are granted without a question.
    pub(super) allowed: &'a BTreeSet<String>,
}

impl ConsentRequest<'_> {
    /// Shows one screen and asks for consent. Returns the granted permissions.
    ///
    /// # Errors
    ///
    /// Returns an error if consent is denied, no person can be asked, a wanted permission is not covered
    /// by `--yes`, or `--allow` names no permission.
    pub(super) fn consent(&self, consent: &cli::Consent) -> Result<Vec<String>, Failure> {
        let content = &self.package.content;
        if let Some(word) = consent.allow.iter().find(|word| self.is_nothing(word)) {
            return Err(Failure::usage(format!(
                "--allow {word}: unknown permission: expected {}, or one that {} wants",
                forms(),
                self.entry.name
            )));
        }
        let missing: Vec<&String> = content.wants.iter().filter(|word| !self.is_allowed(word)).collect();
        render::err(&self.screen());
        if !missing.is_empty() && (consent.yes || !is_asked()) {
            let words: Vec<String> = missing.iter().map(|word| format!("--allow {word}")).collect();
            return Err(Failure::failed(format!(
                "{} wants permissions that are not granted: {}; pass {}",
                self.entry.name,
                missing.iter().map(|word| word.as_str()).collect::<Vec<_>>().join(", "),
                words.join(" ")
            )));
        }
        if !consent.yes && !agrees(&format!("Install {} and run it?", self.entry.name))? {
            return Err(Failure::failed(format!("{} was not installed", self.entry.name)));
        }
        let wanted = content.wants.iter().map(|word| portable_word(word, self.config));
        let granted: BTreeSet<String> = self.allowed.iter().cloned().chain(wanted).collect();
        Ok(granted.into_iter().collect())
    }

    /// Returns whether a wanted permission is granted without a question, by itself or by a wider one.
    fn is_allowed(&self, wanted: &str) -> bool {
        let wanted = whole_word(wanted, self.config);
        self.allowed.iter().map(|allowed| whole_word(allowed, self.config)).any(|allowed| {
            let words = allowed.parse::<Word>().ok().zip(wanted.parse::<Word>().ok());
            allowed == wanted || words.is_some_and(|(allowed, wanted)| allowed.covers(&wanted))
        })
    }

    /// Returns whether a word is of no known kind, not of the form `KIND:REST` of a policy's own kinds,
    /// and not wanted.
    fn is_nothing(&self, word: &str) -> bool {
        !word.contains(':')
            && !confines(word)
            && !self.package.content.wants.iter().any(|wanted| wanted == word)
    }

    /// Returns whether the configuration has signatures of this package verified.
    fn is_verified(&self) -> bool {
        Demand::of_locked(&self.config.packages, self.entry).is_some()
    }

    fn screen(&self) -> String {
        let content = &self.package.content;
        let list = |words: &mut dyn Iterator<Item = &String>| {
            let words: Vec<&str> = words.map(String::as_str).collect();
            if words.is_empty() { "none".to_owned() } else { words.join(", ") }
        };
        let Entry { name, version, source, sha256, .. } = self.entry;
        let mut screen = format!("{name} {}: {}\n", shown(version), shown(&content.description));
        let mut line = |key: &str, value: &str| {
            screen.push_str(&format!("  {key:<12} {}\n", on_one_line(value)));
        };
        line("source", &shown(source));
        if let Some(registry) = &self.entry.registry {
            line("registry", &shown(registry));
        }
        line("publisher", &publisher(&content.author));
        line("sha256", sha256);
        if let Some(signer) = &self.package.signer {
            let workflow = signer.workflow.as_ref().map(|name| format!(", workflow {name}"));
            let workflow = workflow.unwrap_or_default();
            line("signature", &shown(&format!("signed by {}{workflow}", signer.name)));
        } else if self.is_verified() {
            line("signature", if self.package.was_fetched { UNSIGNED } else { "not verified" });
        }
        line("runs", &shown(&content.runs));
        if cargo::is_built(self.entry) == Ok(true) {
            line(
                "built here",
                match (self.config.sandbox.mode, self.config.sandbox.fallback) {
                    (Mode::Off, _) => "with cargo, with all your rights: `sandbox: off`",
                    (_, Fallback::Allow) => {
                        "with cargo, confined as far as this machine can (`sandbox_fallback: allow`), else with all your rights"
                    }
                    _ => {
                        "with cargo, confined: no network, and its own files, the toolchain's and the system's"
                    }
                },
            );
        }
        if !self.entry.arguments.is_empty() {
            line("arguments", &quoted_list(&self.entry.arguments));
        }
        for url in &content.urls {
            let host = Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
            let host = host.unwrap_or_default();
            line("connects to", &format!("{host}: what its tools are given goes there"));
            line("url", &shown(url));
        }
        for warning in &content.warnings {
            line("warning", &shown(warning));
        }
        for variable in content.env.iter().take(MAX_LINES) {
            line("sets", &shown(variable));
        }
        if content.env.len() > MAX_LINES {
            line("sets", &format!("{} more variables", content.env.len() - MAX_LINES));
        }
        // The permissions are never cut, because they are granted.
        line("wants", &list(&mut content.wants.iter()));
        line("granted", &list(&mut self.allowed.iter()));
        let project = project_of(self.config);
        for (key, setting) in content.settings.iter().take(MAX_LINES) {
            let is_required = if setting.is_required { "required" } else { "optional" };
            let secret = content::setting(self.entry, &project, key);
            let title = shown(&setting.title);
            let mut text = format!("`orla secret set {secret}` ({is_required}): {title}");
            if setting.is_path() {
                let paths = content::paths(self.entry, &project, key, setting);
                text.push_str("; it may read what you set");
                text.push_str(&if paths.is_empty() {
                    String::new()
                } else {
                    format!(": {}", paths.join(", "))
                });
            }
            line("setting", &text);
        }
        if content.settings.len() > MAX_LINES {
            line("setting", &format!("{} more", content.settings.len() - MAX_LINES));
        }
        let rules = self.config.sandbox;
        line(
            "confined",
            match (rules.mode, rules.fallback) {
                _ if !content.urls.is_empty() => "no: it runs elsewhere",
                (Mode::Off, _) => "no: `sandbox: off`",
                (_, Fallback::Allow) => {
                    "as far as this machine can (`sandbox_fallback: allow`), to its own directory and what is granted"
                }
                _ => "to the system's files for reading, its own directory, and the granted permissions",
            },
        );
        screen
    }
}

/// Returns the publisher that a package names.
fn publisher(author: &str) -> String {
    match author {
        "" => "it does not say".to_owned(),
        author => format!("{} (as it says itself)", shown(author)),
    }
}

/// Returns text of a package, cut to one line, so that it cannot write its own lines on the screen.
fn shown(text: &str) -> String {
    cut(&on_one_line(text), 400)
}

/// Returns whether a person can be asked.
pub(super) fn is_asked() -> bool {
    std::io::stdin().is_terminal() && render::stderr_is_terminal()
}

/// Asks the person at the terminal.
///
/// # Errors
///
/// Returns an error if there is none.
pub(crate) fn agrees(question: &str) -> Result<bool, Failure> {
    if !is_asked() {
        let what = format!("{question} There is no terminal to ask at: pass --yes to agree");
        return Err(Failure::failed(what));
    }
    render::question(&format!("{question} [y]es, [n]o "));
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    read.map_err(|error| Failure::failed(format!("the answer cannot be read: {error}")))?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Returns how tools differ, for people.
pub(super) fn difference(old: &Entry, before: Option<Vec<Tool>>, now: &[Tool]) -> String {
    let package = &old.name;
    let name = |tool: &Tool| if tool.name.is_empty() { package.to_owned() } else { shown(&tool.name) };
    let Some(before) = before else {
        // Only digests are known here: they show which tools differ, but not the earlier text.
        let digests = tools::digests(now);
        let is_other = |tool: &&Tool| digests.get(&tool.name) != old.tools.get(&tool.name);
        let rows = now.iter().filter(is_other);
        let rows = rows.map(|tool| format!("  {}: {}\n", name(tool), on_one_line(&tool.description)));
        let gone = old.tools.keys().filter(|name| !digests.contains_key(*name));
        let gone = gone.map(|name| format!("  - {}\n", shown(name)));
        return format!(
            "The tools of {package} are not those that were accepted. Now:\n{}",
            rows.chain(gone).collect::<String>()
        );
    };
    let mut text = format!("The tools of {package} are not those that were accepted:\n");
    for change in tools::changes(&before, now) {
        match (change.old, change.new) {
            (Some(old), Some(new)) => {
                text.push_str(&format!("  ~ {}\n", name(&new)));
                let mut pair = |what: &str, old: &str, new: &str| {
                    if old != new {
                        let (old, new) = (on_one_line(old), on_one_line(new));
                        text.push_str(&format!("    {what}\n      - {old}\n      + {new}\n"));
                    }
                };
                let title = |tool: &Tool| tool.title.clone().unwrap_or_default();
                pair("title", &title(&old), &title(&new));
                pair("description", &old.description, &new.description);
                pair("input", &old.input.to_string(), &new.input.to_string());
                pair("output", &old.output.to_string(), &new.output.to_string());
                pair("annotations", &old.annotations.to_string(), &new.annotations.to_string());
            }
            (None, Some(tool)) => {
                text.push_str(&format!("  + {}: {}\n", name(&tool), on_one_line(&tool.description)));
            }
            (Some(tool), None) => text.push_str(&format!("  - {}\n", name(&tool))),
            (None, None) => {}
        }
    }
    text
}
