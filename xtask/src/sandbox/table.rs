//! The golden table: what every probe came to, for each permission set, account and language.
//!
//! The rule of each probe says where it must succeed and that it must be refused elsewhere; breaking it is a failure,
//! whatever the file says. The file is evidence of what was seen, and shows what changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use super::Context;
use super::probes::{self, HOST, OPEN, Probe, Rule, SETS};
use super::world::{Called, Language, RESOLVER, World};

/// What a probe came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Ok,
    Refused,
    /// By a limit.
    Ended,
    /// This system cannot do it even without confinement, or orla cannot confine to this set here.
    Unavailable,
    /// It is not tried, or cannot be expressed in this language.
    NotTried,
    /// It failed for a reason that is no refusal.
    Failed(String),
}

impl Class {
    fn word(&self) -> &str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::Ended => "ended",
            Self::Unavailable => "unavailable",
            Self::NotTried => "-",
            Self::Failed(error) => error,
        }
    }

    /// What an outcome means; `control` is what it was without confinement.
    fn of(outcome: &str, probe: &Probe, set: &str, control: Option<&Self>) -> Self {
        let is_shown = control == Some(&Self::Ok) || probe.rule(OPEN) != Rule::MustSucceed;
        match outcome {
            "ok" => Self::Ok,
            "unsupported" => Self::NotTried,
            // There is no proxy.
            "EDESTADDRREQ" if set != HOST => Self::NotTried,
            // There is no name whose address changes.
            "EHOSTUNREACH" if probe.name == REBINDING => Self::Unavailable,
            _ if set == OPEN && probe.rule(OPEN) == Rule::MustSucceed => Self::Unavailable,
            _ if probe.is_of_limit() && outcome.starts_with("SIG") => Self::Ended,
            error if probe.refused_by(error) && is_shown => Self::Refused,
            _ if !is_shown => Self::Unavailable,
            error => Self::Failed(error.to_owned()),
        }
    }

    /// Returns whether it is as the rule says.
    fn holds(&self, rule: Rule) -> bool {
        match (self, rule) {
            (Self::Unavailable | Self::NotTried, _) => true,
            (Self::Ok, rule) => rule != Rule::MustFail,
            (Self::Refused | Self::Ended, rule) => rule != Rule::MustSucceed,
            (Self::Failed(_), _) => false,
        }
    }
}

/// What one set came to in one language under one account, by probe.
pub(super) type Column = BTreeMap<&'static str, Class>;

/// Everything that was seen: by probe and set, then by account and language.
#[derive(Default)]
struct Table(BTreeMap<(String, String), BTreeMap<(String, String), Class>>);

/// A probe that needs a resolver of its own.
const REBINDING: &str = "proxy.rebinding";

/// Runs every probe and compares what came of it.
pub(super) fn run(context: &mut Context) -> Result<(), String> {
    let has_resolver = context.scratch.join(RESOLVER).exists();
    let mut probes = probes::all();
    probes.retain(|probe| has_resolver || probe.name != REBINDING);
    let mut table = Table::default();
    let languages = context.languages.clone();
    let (mut confining, mut is_broken) = (BTreeSet::new(), false);
    for account in context.accounts.clone() {
        let base = context.folder(&format!("table-{}", account.name))?;
        let world = World::start(&context.orla, &base, account, &languages, &[])?;
        let can_confine = world.can_confine(&context.orla)?;
        confining.extend(can_confine.then(|| account.name.to_owned()));
        for language in &languages {
            if can_confine {
                let what = format!(
                    "table: {} {}: the neighbour reaches its hosts",
                    account.name, language.name
                );
                context.tally.check(&what, neighbour(&world, language, &probes));
            }
            let mut control = Column::new();
            let (mut counts, mut problems) = ([0; 4], Vec::new());
            for set in SETS {
                let (column, harm) = column(&world, language, set, &probes, &control)?;
                problems.extend(harm);
                problems.extend(broken(set, &column, &probes));
                for (probe, class) in &column {
                    let kinds = [Class::Ok, Class::Refused, Class::Ended, Class::Unavailable];
                    if let Some(index) = kinds.iter().position(|kind| kind == class) {
                        counts[index] += 1;
                    }
                    let key = (account.name.to_owned(), language.name.to_owned());
                    let cell = ((*probe).to_owned(), set.to_owned());
                    table.0.entry(cell).or_default().insert(key, class.clone());
                }
                if set == OPEN {
                    control = column;
                }
            }
            let [ok, refused, ended, unavailable] = counts;
            let what = format!(
                "table: {} {}: {ok} ok, {refused} refused, {ended} ended, {unavailable} unavailable",
                account.name, language.name
            );
            is_broken |= !problems.is_empty();
            let result = if problems.is_empty() { Ok(()) } else { Err(problems.join("\n      ")) };
            context.tally.check(&what, result);
        }
    }
    if context.is_blessing {
        if is_broken {
            return Err("the table is not written: some probes break their rules".to_owned());
        }
        let complete = context.accounts.len() == 2 && languages.len() == 4;
        if !complete {
            return Err("the table is written by root, with cc, sh, python3 and node".to_owned());
        }
        return std::fs::write(golden(), table.text(&probes)).map_err(|err| err.to_string());
    }
    let known = std::fs::read_to_string(golden()).map_err(|err| format!("golden.txt: {err}"))?;
    let (title, result) = table.compare(&known, &confining);
    context.tally.check(&title, result);
    context.tally.check("table: some sets are enforced", table.shows_refusals());
    Ok(())
}

/// The neighbour must be able to do what the others must not be able to do, also through it.
fn neighbour(world: &World, language: &Language, probes: &[Probe]) -> Result<(), String> {
    let names = ["proxy.neighbour", "proxy.redirect", REBINDING];
    let probes: Vec<&Probe> = probes.iter().filter(|probe| names.contains(&probe.name)).collect();
    match world.call(language, probes::NEIGHBOUR, &probes)? {
        Called::Outcomes(all) => {
            let is_good = |outcome: &String| outcome == "ok" || outcome == "unsupported";
            if all.values().all(is_good) { Ok(()) } else { Err(format!("{all:?}")) }
        }
        Called::Unavailable => Err("it is unavailable".to_owned()),
        Called::Ended(limit) => Err(format!("it was ended by the limit of {limit}")),
    }
}

/// One set in one language: what each probe came to, and what of the host was harmed.
pub(super) fn column(
    world: &World,
    language: &Language,
    set: &'static str,
    probes: &[Probe],
    control: &Column,
) -> Result<(Column, Vec<String>), String> {
    let concerned = probes.iter().filter(|probe| probe.concerns(set));
    let (next, concerned): (Vec<&Probe>, Vec<&Probe>) =
        concerned.partition(|probe| probe.is_of_next_call());
    let (alone, together): (Vec<&Probe>, Vec<&Probe>) =
        concerned.into_iter().partition(|probe| set == "mixed" && probe.is_of_limit());
    let batches = [together, next].into_iter().chain(alone.into_iter().map(|probe| vec![probe]));
    let batches = batches.filter(|batch| !batch.is_empty());
    let (mut column, mut harm): (Column, Vec<String>) = Default::default();
    for batch in batches {
        let (called, harmed) = world.probe(language, set, &batch)?;
        harm.extend(harmed);
        for probe in batch {
            let class = match &called {
                Called::Unavailable
                    if control.get(probe.name) == Some(&Class::NotTried)
                        && probe.rule(OPEN) == Rule::MustSucceed =>
                {
                    Class::NotTried
                }
                Called::Unavailable => Class::Unavailable,
                Called::Ended(_) if probe.is_of_limit() => Class::Ended,
                Called::Ended(limit) => Class::Failed(format!("limit of {limit}")),
                Called::Outcomes(all) => {
                    Class::of(&all[probe.name], probe, set, control.get(probe.name))
                }
            };
            column.insert(probe.name, class);
        }
    }
    Ok((column, harm.into_iter().map(|harm| format!("{set}: {harm}")).collect()))
}

/// Returns the probes of a column that broke their rule.
pub(super) fn broken(set: &str, column: &Column, probes: &[Probe]) -> Vec<String> {
    let of = |probe: &Probe| {
        let class = column.get(probe.name)?;
        let rule = probe.rule(set);
        let expected = match rule {
            Rule::MustSucceed => "must succeed",
            Rule::May => "may succeed or be refused",
            Rule::MustFail => "must be refused",
        };
        (!class.holds(rule)).then(|| format!("{set}: {} {expected}: {}", probe.name, class.word()))
    };
    probes.iter().filter_map(of).collect()
}

/// Returns the file in the repository.
fn golden() -> PathBuf {
    crate::root().join("xtask/fixtures/sandbox/golden.txt")
}

const HEAD: &str = "\
# What `cargo xtask sandbox table` saw, written by `cargo xtask sandbox --bless table`.
#
# A column for each permission set; `open` is without confinement. `ended`: by a limit. `unavailable`: the system cannot do it even
# without confinement, or orla cannot confine to the set here. Where the kernel has Landlock 4, seccomp and namespaces, no other
# cell may be unavailable. `-`: not tried. Where accounts or languages differ, each is named.

";

impl Table {
    /// Compares it with the text of the file. What a machine has besides is no change of orla, nor what is unavailable to an account
    /// that cannot confine. One that can has to show all that the file shows.
    fn compare(&self, known: &str, confining: &BTreeSet<String>) -> (String, Result<(), String>) {
        let (mut changed, mut here, mut there) = (Vec::new(), 0, 0);
        for ((probe, set), cells) in &self.0 {
            for ((account, language), class) in cells {
                let expected = look_up(known, probe, set, account, language);
                let expected = expected.as_deref().unwrap_or("nothing");
                if *class == Class::NotTried {
                    continue;
                }
                here += usize::from(*class == Class::Unavailable);
                there += usize::from(expected == "unavailable");
                let is_excused = expected == "unavailable"
                    || *class == Class::Unavailable && !confining.contains(account);
                if expected != class.word() && !is_excused {
                    let word = class.word();
                    changed.push(format!(
                        "{probe} in {set}, {account} {language}: {word}, the file says {expected}"
                    ));
                }
            }
        }
        let title =
            format!("table: as in golden.txt; {here} cells are unavailable, {there} in the file");
        (title, if changed.is_empty() { Ok(()) } else { Err(changed.join("\n      ")) })
    }

    /// Nothing that is unavailable breaks a rule. If all is, there is no proof either.
    fn shows_refusals(&self) -> Result<(), String> {
        let confined = self.0.iter().filter(|((_, set), _)| set != OPEN);
        let mut classes = confined.flat_map(|(_, cells)| cells.values());
        match classes.any(|class| *class == Class::Refused) {
            true => Ok(()),
            false => Err("every set is unavailable: this kernel cannot confine to any".to_owned()),
        }
    }

    fn text(&self, probes: &[Probe]) -> String {
        let head = std::iter::once("probe").chain(SETS).map(str::to_owned).collect();
        let rows = probes.iter().map(|probe| {
            let cells = SETS.iter().map(|set| {
                self.0.get(&(probe.name.to_owned(), (*set).to_owned())).map_or("-".to_owned(), cell)
            });
            std::iter::once(probe.name.to_owned()).chain(cells).collect::<Vec<_>>()
        });
        let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..=SETS.len()).map(width).collect();
        let mut text = HEAD.to_owned();
        for row in rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                let _ = write!(line, "{cell:width$}  ");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// One word where all agree, else one for each account, or for each account and language.
fn cell(all: &BTreeMap<(String, String), Class>) -> String {
    let tried: Vec<_> = all.iter().filter(|(_, class)| **class != Class::NotTried).collect();
    let agreed = |account: Option<&str>| {
        let mut words = tried
            .iter()
            .filter(|((own, _), _)| account.is_none_or(|account| own == account))
            .map(|(_, class)| class.word());
        let first = words.next()?;
        words.all(|word| word == first).then(|| first.replace(' ', "-"))
    };
    if tried.is_empty() {
        return "-".to_owned();
    }
    if let Some(word) = agreed(None) {
        return word;
    }
    let mut parts = Vec::new();
    for account in ["root", "user"] {
        match agreed(Some(account)) {
            Some(word) => parts.push(format!("{account}={word}")),
            None => parts.extend(
                tried
                    .iter()
                    .filter(|((own, _), _)| own == account)
                    .map(|((_, language), class)| format!("{account}.{language}={}", class.word())),
            ),
        }
    }
    parts.join(";")
}

/// What the file says of one account and language.
fn look_up(text: &str, probe: &str, set: &str, account: &str, language: &str) -> Option<String> {
    let column = SETS.iter().position(|known| *known == set)? + 1;
    let mut rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.first() == Some(&probe))?;
    let cell = *row.get(column)?;
    if !cell.contains('=') {
        return Some(cell.to_owned());
    }
    let exact = format!("{account}.{language}");
    let parts: BTreeMap<&str, &str> = cell.split(';').filter_map(|part| part.split_once('=')).collect();
    parts.get(exact.as_str()).or(parts.get(account)).map(|word| (*word).to_owned())
}

/// Returns the sets of one language under a changed system, without some probes: which are available,
/// and what breaks a rule.
pub(super) fn check_sets(
    world: &World,
    language: &Language,
    without: &[&str],
) -> Result<(BTreeMap<&'static str, bool>, Vec<String>), String> {
    let is_wanted = |probe: &Probe| !probe.is_of_limit() && !without.contains(&probe.name);
    let probes: Vec<Probe> = probes::all().into_iter().filter(is_wanted).collect();
    let (mut available, mut problems, mut control) = (BTreeMap::new(), Vec::new(), Column::new());
    for set in SETS {
        let (column, harm) = column(world, language, set, &probes, &control)?;
        problems.extend(harm);
        problems.extend(broken(set, &column, &probes));
        let is_available = column.get("file.read.own") != Some(&Class::Unavailable);
        available.insert(set, is_available);
        if set == OPEN {
            control = column;
        }
    }
    Ok((available, problems))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(words: &[(&str, &str, Class)]) -> BTreeMap<(String, String), Class> {
        words
            .iter()
            .map(|(account, language, class)| {
                (((*account).to_owned(), (*language).to_owned()), class.clone())
            })
            .collect()
    }

    #[test]
    fn a_cell_names_only_what_differs_and_is_read_back() {
        let same = seen(&[("root", "c", Class::Ok), ("user", "c", Class::Ok)]);
        assert_eq!(cell(&same), "ok");
        let accounts = seen(&[("root", "c", Class::Refused), ("user", "c", Class::Unavailable)]);
        assert_eq!(cell(&accounts), "root=refused;user=unavailable");
        let all = seen(&[
            ("root", "c", Class::Ok),
            ("user", "c", Class::Refused),
            ("user", "py", Class::Ended),
            ("user", "sh", Class::NotTried),
        ]);
        assert_eq!(cell(&all), "root=ok;user.c=refused;user.py=ended");
        let line = format!("p {} -", cell(&all));
        assert_eq!(look_up(&line, "p", "open", "user", "py").as_deref(), Some("ended"));
        assert_eq!(look_up(&line, "p", "open", "root", "sh").as_deref(), Some("ok"));
        assert_eq!(look_up(&line, "q", "open", "root", "sh"), None);
    }

    #[test]
    fn what_is_unavailable_counts_where_the_kernel_can_confine() {
        let table = |class: Class| {
            let cell = ("p".to_owned(), "none".to_owned());
            Table(BTreeMap::from([(cell, seen(&[("root", "c", class)]))]))
        };
        let compare = |class, known: &str, can_confine: bool| {
            let confining = can_confine.then(|| "root".to_owned()).into_iter().collect();
            table(class).compare(&format!("p - {known}"), &confining).1.is_ok()
        };
        assert!(compare(Class::Refused, "refused", true) && compare(Class::NotTried, "refused", true));
        assert!(compare(Class::Unavailable, "unavailable", true));
        assert!(!compare(Class::Unavailable, "refused", true));
        assert!(compare(Class::Unavailable, "refused", false));
        // A machine may have what the one of the file had not.
        assert!(compare(Class::Refused, "unavailable", true) && !compare(Class::Ok, "refused", false));
        assert!(table(Class::Refused).shows_refusals().is_ok());
        assert!(table(Class::Unavailable).shows_refusals().is_err());
    }

    #[test]
    fn a_refusal_counts_only_where_the_same_succeeds_without_confinement() {
        let probes = probes::all();
        let probe = probes.iter().find(|probe| probe.name == "net.raw").unwrap();
        let class = |control| Class::of("EPERM", probe, "none", control);
        assert_eq!(class(Some(&Class::Ok)), Class::Refused);
        assert_eq!(class(Some(&Class::Unavailable)), Class::Unavailable);
        assert_eq!(Class::of("EIO", probe, "none", Some(&Class::Ok)), Class::Failed("EIO".to_owned()));
        assert!(!Class::Ok.holds(probe.rule("none")) && Class::Refused.holds(probe.rule("none")));
    }
}
