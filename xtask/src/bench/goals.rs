//! What the comparisons should reach.

use super::report::Measurement;

/// A bound for one value of one side, relative to other sides of the same comparison.
struct Goal {
    row: &'static str,
    side: &'static str,
    clients: usize,
    measure: Measure,
    bound: Bound,
    /// The sides whose values are added up …
    of: &'static [&'static str],
    /// … times this …
    times: f64,
    /// … plus this.
    plus: f64,
}

#[derive(Clone, Copy)]
enum Measure {
    /// The median latency, in microseconds.
    P50,
    /// Calls each second.
    Rate,
    /// Processor time of a call, in microseconds.
    Cpu,
}

#[derive(Clone, Copy)]
enum Bound {
    AtMost,
    AtLeast,
}

use Bound::{AtLeast, AtMost};
use Measure::{Cpu, P50, Rate};

const fn goal(
    (row, side, clients): (&'static str, &'static str, usize),
    measure: Measure,
    bound: Bound,
    of: &'static [&'static str],
    times: f64,
    plus: f64,
) -> Goal {
    Goal { row, side, clients, measure, bound, of, times, plus }
}

/// What a proxied call costs at least on the HTTP stack of the product.
const RELAY: &str = "hyper relay";

const GOALS: &[Goal] = &[
    goal(("tool call", "orla", 1), P50, AtMost, &["spawn", "bare echo"], 1.15, 0.0),
    goal(("tool call", "orla", 8), Rate, AtLeast, &["spawn"], 0.95, 0.0),
    goal(("tool call", "orla", 8), Cpu, AtMost, &["spawn"], 1.0, 60.0),
    goal(("capability without a process", "embedded", 8), Rate, AtLeast, &["bare echo"], 0.70, 0.0),
    goal(("call that is followed", "in memory", 1), P50, AtMost, &["not kept"], 1.0, 10.0),
    goal(("call that is followed", "in a file", 1), P50, AtMost, &["not kept"], 1.0, 10.0),
    goal(("call that is followed", "traced, not sampled", 1), P50, AtMost, &["in memory"], 1.0, 5.0),
    goal(("capsule call", "orla", 1), P50, AtMost, &["its pipes", "bare echo"], 2.0, 0.0),
    goal(("capsule call", "orla", 8), Cpu, AtMost, &[], 0.0, 20.0),
    goal(("plugin call", "orla", 1), P50, AtMost, &["its pipes", "bare echo"], 2.0, 0.0),
    goal(("proxied call", "orla", 1), P50, AtMost, &[RELAY], 1.10, 0.0),
    goal(("proxied call", "orla", 8), Rate, AtLeast, &[RELAY], 0.80, 0.0),
    goal(("proxied call", "orla", 8), Cpu, AtMost, &[RELAY], 1.3, 0.0),
    goal(("proxied call", "orla, session", 1), P50, AtMost, &[RELAY], 1.10, 0.0),
    goal(("proxied call", "orla, session", 8), Rate, AtLeast, &[RELAY], 0.80, 0.0),
    goal(("proxied call", "orla, session", 8), Cpu, AtMost, &[RELAY], 1.3, 0.0),
    goal(("proxied call over HTTP", "orla", 1), P50, AtMost, &["upstream"], 1.5, 60.0),
    goal(("proxied call over HTTP", "orla", 8), Rate, AtLeast, &["upstream"], 0.3, 0.0),
    goal(("proxied call over HTTP", "orla", 8), Cpu, AtMost, &[], 0.0, 35.0),
    goal(("proxied answer of 100 KB", "orla", 1), P50, AtMost, &[RELAY], 1.05, 0.0),
];

/// A goal beside what was measured.
pub(super) struct Verdict {
    pub(super) goal: String,
    pub(super) bound: f64,
    pub(super) measured: f64,
    pub(super) is_reached: bool,
}

/// Returns the goals of everything that was measured.
pub(super) fn verdicts(measurements: &[Measurement]) -> Vec<Verdict> {
    GOALS.iter().filter_map(|goal| goal.verdict(measurements)).collect()
}

impl Goal {
    /// `None` where its sides were not measured.
    fn verdict(&self, measurements: &[Measurement]) -> Option<Verdict> {
        let value = |side: &str| {
            let line = measurements.iter().find(|line| {
                line.row == self.row && line.side == side && line.clients == self.clients
            })?;
            match self.measure {
                P50 => Some(line.p50_us),
                Rate => Some(line.per_s),
                Cpu => line.cpu_us,
            }
        };
        let measured = value(self.side)?;
        let sum = self.of.iter().map(|side| value(side)).sum::<Option<f64>>()?;
        let bound = self.times * sum + self.plus;
        let is_reached = match self.bound {
            AtMost => measured <= bound,
            AtLeast => measured >= bound,
        };
        Some(Verdict { goal: self.text(), bound, measured, is_reached })
    }

    fn text(&self) -> String {
        let measure = match self.measure {
            P50 => "p50 µs",
            Rate => "calls/s",
            Cpu => "CPU µs",
        };
        let sign = match self.bound {
            AtMost => "≤",
            AtLeast => "≥",
        };
        let mut terms = Vec::new();
        if !self.of.is_empty() {
            terms.push(format!("{} × ({})", self.times, self.of.join(" + ")));
        }
        if self.plus > 0.0 {
            terms.push(self.plus.to_string());
        }
        let (row, side, clients) = (self.row, self.side, self.clients);
        format!("{row}, {side}, {clients} clients: {measure} {sign} {}", terms.join(" + "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_relative_to_the_sides_that_it_names() {
        let line = |side: &str, p50_us: f64| Measurement {
            row: "tool call".to_owned(),
            side: side.to_owned(),
            clients: 1,
            p50_us,
            p99_us: p50_us,
            per_s: 1.0,
            cpu_us: None,
            spread: 0.0,
        };
        let verdicts = verdicts(&[line("spawn", 800.0), line("bare echo", 50.0), line("orla", 900.0)]);
        let [verdict] = &verdicts[..] else { panic!("one goal has all of its sides") };
        assert_eq!(verdict.goal, "tool call, orla, 1 clients: p50 µs ≤ 1.15 × (spawn + bare echo)");
        assert!(verdict.is_reached && (verdict.bound - 977.5).abs() < 1e-9);
    }
}
