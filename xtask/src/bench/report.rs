//! What was measured, as a table, as JSON, and beside another run.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::goals::Verdict;

/// The spread of rounds above which a line is marked: more than its noise cannot be read from it.
const NOISY: f64 = 0.20;

/// The least difference between two runs that counts, however small their spread was.
const LEAST_CHANGE: f64 = 0.05;

/// One side of a comparison with one number of clients.
#[derive(Debug, Clone)]
pub(super) struct Measurement {
    /// The comparison that it belongs to.
    pub(super) row: String,
    /// What was called.
    pub(super) side: String,
    /// How many clients called at once.
    pub(super) clients: usize,
    /// Latencies in microseconds, the median of the rounds.
    pub(super) p50_us: f64,
    /// The same, for 99 of 100 calls.
    pub(super) p99_us: f64,
    /// Calls each second, the median of the rounds.
    pub(super) per_s: f64,
    /// Processor time of the called process and of the children that it has reaped, in microseconds a call.
    pub(super) cpu_us: Option<f64>,
    /// The spread of the rounds' median latencies.
    pub(super) spread: f64,
}

impl Measurement {
    fn as_json(&self) -> Value {
        json!({
            "row": self.row,
            "side": self.side,
            "clients": self.clients,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "per_s": self.per_s,
            "cpu_us": self.cpu_us,
            "spread": self.spread,
        })
    }

    fn of_json(line: &Value) -> Option<Self> {
        let number = |key: &str| line[key].as_f64();
        Some(Self {
            row: line["row"].as_str()?.to_owned(),
            side: line["side"].as_str()?.to_owned(),
            clients: usize::try_from(line["clients"].as_u64()?).ok()?,
            p50_us: number("p50_us")?,
            p99_us: number("p99_us")?,
            per_s: number("per_s")?,
            cpu_us: number("cpu_us"),
            spread: number("spread")?,
        })
    }
}

/// A single figure that is no comparison of calls.
pub(crate) struct Figure {
    pub(crate) what: String,
    /// As a person reads it.
    pub(crate) measured: String,
    /// As a program reads it; the unit is in the name.
    pub(crate) values: Value,
    /// What it should reach, and whether it did, if anything was promised.
    pub(crate) goal: Option<(String, bool)>,
}

impl Figure {
    pub(crate) fn new(what: impl Into<String>, measured: String, values: Value) -> Self {
        Self { what: what.into(), measured, values, goal: None }
    }

    pub(crate) fn goal(mut self, text: impl Into<String>, is_reached: bool) -> Self {
        self.goal = Some((text.into(), is_reached));
        self
    }
}

/// Everything of one run.
#[derive(Default)]
pub(super) struct Report {
    pub(super) measurements: Vec<Measurement>,
    pub(super) figures: Vec<Figure>,
    pub(super) verdicts: Vec<Verdict>,
    /// What could not be measured, and why.
    pub(super) skipped: Vec<String>,
}

impl Report {
    /// As a program reads it.
    pub(super) fn as_json(&self) -> Value {
        let figures = self.figures.iter().map(|line| {
            json!({
                "what": line.what,
                "measured": line.measured,
                "values": line.values,
                "goal": line.goal.as_ref().map(|(text, _)| text),
                "reached": line.goal.as_ref().map(|(_, is_reached)| is_reached),
            })
        });
        let goals = self.verdicts.iter().map(|it| {
            json!({"goal": it.goal, "measured": it.measured, "bound": it.bound, "reached": it.is_reached})
        });
        json!({
            "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            "rows": self.measurements.iter().map(Measurement::as_json).collect::<Vec<_>>(),
            "goals": goals.collect::<Vec<_>>(),
            "figures": figures.collect::<Vec<_>>(),
            "skipped": self.skipped,
        })
    }

    /// Markdown tables: the comparisons, what they should reach, the other figures.
    pub(super) fn as_markdown(&self) -> String {
        let mut text = String::new();
        if !self.measurements.is_empty() {
            text.push_str("| call | clients | side | p50 µs | ÷ first | p99 µs | calls/s | ÷ first | CPU µs | spread |\n");
            text.push_str("|---|---:|---|---:|---:|---:|---:|---:|---:|---:|\n");
        }
        let mut first: Option<&Measurement> = None;
        for line in &self.measurements {
            let floor = match first {
                Some(floor) if floor.row == line.row && floor.clients == line.clients => floor,
                _ => line,
            };
            first = Some(floor);
            let cpu = line.cpu_us.map_or_else(|| "–".to_owned(), |cpu| format!("{cpu:.1}"));
            let noise = if line.spread > NOISY { " noisy" } else { "" };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:.0} | {:.2} | {:.0} | {:.0} | {:.2} | {cpu} | {:.0} %{noise} |",
                line.row,
                line.clients,
                line.side,
                line.p50_us,
                line.p50_us / floor.p50_us,
                line.p99_us,
                line.per_s,
                line.per_s / floor.per_s,
                line.spread * 100.0,
            );
        }
        if !self.verdicts.is_empty() {
            text.push_str("\n| goal | bound | measured | |\n|---|---:|---:|---|\n");
        }
        for it in &self.verdicts {
            let word = if it.is_reached { "reached" } else { "MISSED" };
            let _ = writeln!(text, "| {} | {:.1} | {:.1} | {word} |", it.goal, it.bound, it.measured);
        }
        if !self.figures.is_empty() {
            text.push_str("\n| figure | measured | goal | |\n|---|---|---|---|\n");
        }
        for line in &self.figures {
            let (goal, word) = match &line.goal {
                Some((goal, true)) => (goal.as_str(), "reached"),
                Some((goal, false)) => (goal.as_str(), "MISSED"),
                None => ("", ""),
            };
            let _ = writeln!(text, "| {} | {} | {goal} | {word} |", line.what, line.measured);
        }
        for line in &self.skipped {
            let _ = writeln!(text, "\nskipped: {line}");
        }
        text
    }
}

/// One value of a run that another run has too.
struct Pair {
    what: String,
    before: f64,
    after: f64,
    noise: f64,
    better: Better,
}

enum Better {
    Lower,
    Higher,
}

impl Pair {
    /// By how much it became worse; negative where it became better.
    fn loss(&self) -> f64 {
        match self.better {
            Better::Lower => self.after / self.before - 1.0,
            Better::Higher => self.before / self.after - 1.0,
        }
    }
}

/// Returns the measurements of two sides, value by value.
fn pairs(before: &Measurement, after: &Measurement) -> Vec<Pair> {
    let noise = before.spread.max(after.spread).max(LEAST_CHANGE);
    let name =
        |measure: &str| format!("{}, {}, {} clients: {measure}", after.row, after.side, after.clients);
    let mut pairs = vec![
        Pair {
            what: name("p50 µs"),
            before: before.p50_us,
            after: after.p50_us,
            noise,
            better: Better::Lower,
        },
        Pair {
            what: name("calls/s"),
            before: before.per_s,
            after: after.per_s,
            noise,
            better: Better::Higher,
        },
    ];
    if let (Some(before), Some(after)) = (before.cpu_us, after.cpu_us) {
        pairs.push(Pair { what: name("CPU µs"), before, after, noise, better: Better::Lower });
    }
    pairs
}

/// What differs between pairs by more than their noise, and whether nothing became worse.
fn differences(pairs: &[Pair]) -> (String, bool) {
    let mut text = String::new();
    let mut is_none_worse = true;
    for pair in pairs {
        let loss = pair.loss();
        if loss.is_nan() || loss.abs() <= pair.noise {
            continue;
        }
        let word = if loss > 0.0 { "worse" } else { "better" };
        is_none_worse &= loss <= 0.0;
        let _ = writeln!(
            text,
            "{word}: {}: {:.1} -> {:.1} (noise {:.0} %)",
            pair.what,
            pair.before,
            pair.after,
            pair.noise * 100.0
        );
    }
    (text, is_none_worse)
}

/// Compares the two binaries of one run.
pub(super) fn compare_sides(
    measurements: &[Measurement],
    before: &str,
    after: &str,
) -> Option<(String, bool)> {
    let all = measurements
        .iter()
        .filter(|line| line.side.starts_with(after))
        .filter_map(|line| {
            let twin = format!("{before}{}", &line.side[after.len()..]);
            let same = |other: &&Measurement| {
                other.row == line.row && other.clients == line.clients && other.side == twin
            };
            measurements.iter().find(same).map(|other| pairs(other, line))
        })
        .flatten()
        .collect::<Vec<_>>();
    (!all.is_empty()).then(|| differences(&all))
}

/// Compares two reports as [`Report::as_json`] writes them.
pub(super) fn compare_reports(before: &Value, after: &Value) -> (String, bool) {
    let rows = |report: &Value| -> BTreeMap<(String, String, usize), Measurement> {
        let lines = report["rows"].as_array().map_or(&[][..], Vec::as_slice);
        let lines = lines.iter().filter_map(Measurement::of_json);
        lines.map(|line| ((line.row.clone(), line.side.clone(), line.clients), line)).collect()
    };
    let old = rows(before);
    let mut all: Vec<Pair> = rows(after)
        .iter()
        .filter_map(|(key, line)| old.get(key).map(|other| pairs(other, line)))
        .flatten()
        .collect();
    let figures = |report: &Value| -> BTreeMap<String, f64> {
        let lines = report["figures"].as_array().map_or(&[][..], Vec::as_slice);
        let values = lines.iter().filter_map(|line| {
            let what = line["what"].as_str()?;
            Some(line["values"].as_object()?.iter().filter_map(move |(unit, value)| {
                // Times and sizes; ratios and counts have no direction of their own.
                let is_cost = unit.ends_with("_ms") || unit.ends_with("_us") || unit == "bytes";
                Some((format!("{what}: {unit}"), value.as_f64().filter(|_| is_cost)?))
            }))
        });
        values.flatten().collect()
    };
    let old = figures(before);
    all.extend(figures(after).into_iter().filter_map(|(what, after)| {
        let before = *old.get(&what)?;
        Some(Pair { what, before, after, noise: NOISY, better: Better::Lower })
    }));
    differences(&all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(side: &str, p50_us: f64, spread: f64) -> Measurement {
        Measurement {
            row: "tool call".to_owned(),
            side: side.to_owned(),
            clients: 8,
            p50_us,
            p99_us: 2.0 * p50_us,
            per_s: 1e6 / p50_us,
            cpu_us: None,
            spread,
        }
    }

    fn report(lines: Vec<Measurement>) -> Value {
        Report { measurements: lines, ..Report::default() }.as_json()
    }

    #[test]
    fn what_became_slower_by_more_than_its_noise_is_named() {
        let (old, new) =
            (report(vec![line("orla", 100.0, 0.1)]), report(vec![line("orla", 120.0, 0.02)]));
        let (text, is_good) = compare_reports(&old, &new);
        assert!(!is_good);
        assert!(
            text.contains("worse: tool call, orla, 8 clients: p50 µs: 100.0 -> 120.0 (noise 10 %)"),
            "{text}"
        );
        let (text, is_good) = compare_reports(&new, &old);
        assert!(is_good && text.contains("better: "), "{text}");
    }

    #[test]
    fn a_difference_within_the_noise_is_none() {
        let (old, new) =
            (report(vec![line("orla", 100.0, 0.3)]), report(vec![line("orla", 120.0, 0.02)]));
        assert_eq!(compare_reports(&old, &new), (String::new(), true));
    }

    #[test]
    fn two_binaries_of_one_run_are_compared_side_by_side() {
        let lines = [
            line("spawn", 50.0, 0.0),
            line("beside, session", 100.0, 0.0),
            line("orla, session", 150.0, 0.0),
        ];
        let (text, is_good) = compare_sides(&lines, "beside", "orla").expect("a pair");
        assert!(!is_good && text.contains("orla, session"), "{text}");
        assert!(compare_sides(&lines[..1], "beside", "orla").is_none());
    }

    #[test]
    fn a_noisy_line_says_so() {
        let table =
            Report { measurements: vec![line("orla", 100.0, 0.25)], ..Report::default() }.as_markdown();
        assert!(table.contains("25 % noisy"), "{table}");
    }
}
