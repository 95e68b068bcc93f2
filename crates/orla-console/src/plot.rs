//! Small plots of finished calls, as SVG. Pure.

use std::time::{Duration, SystemTime};

use maud::{Markup, html};
use orla_history::Call;

use crate::text::duration;

/// How many bars a plot has.
const BARS: usize = 48;
const WIDTH: usize = 240;
const HEIGHT: usize = 44;

/// The calls of one time span.
#[derive(Clone, Default)]
struct Bar {
    calls: usize,
    failed: usize,
    durations: Vec<Duration>,
}

/// The calls in equal time spans, and their durations.
pub(crate) struct Summary {
    bars: Vec<Bar>,
    all: Bar,
    span: Duration,
}

impl Summary {
    /// Of these calls, from the oldest of them to `now`.
    pub(crate) fn of(calls: &[Call], now: SystemTime) -> Option<Self> {
        let end_of = |call: &Call| call.started_at + call.duration;
        let oldest = calls.iter().map(end_of).min()?;
        let whole = now.duration_since(oldest).unwrap_or_default().max(Duration::from_secs(48));
        let span = whole / BARS as u32;
        let mut bars = vec![Bar::default(); BARS];
        let mut all = Bar::default();
        for call in calls {
            let ago = now.duration_since(end_of(call)).unwrap_or_default();
            let at = (ago.as_nanos() / span.as_nanos().max(1)).min(BARS as u128 - 1) as usize;
            for bar in [&mut bars[BARS - 1 - at], &mut all] {
                bar.calls += 1;
                bar.failed += usize::from(call.is_failed());
                bar.durations.push(call.duration);
            }
        }
        bars.iter_mut().for_each(|bar| bar.durations.sort_unstable());
        all.durations.sort_unstable();
        Some(Self { bars, all, span })
    }

    /// Returns the plots, each with its figures as text.
    pub(crate) fn render(&self, is_cut: bool) -> Markup {
        let seconds = self.span.as_secs_f64() * BARS as f64;
        let window = duration(Duration::from_secs_f64(seconds));
        let share = 100.0 * self.all.failed as f64 / self.all.calls.max(1) as f64;
        let (p50, p95) = (self.all.percentile(50), self.all.percentile(95));
        html! {
            div.plots {
                figure {
                    figcaption {
                        span { "Calls" } strong { (self.all.calls) @if is_cut { "+" } }
                        span.note { "in the last " (window) ", " (format!("{:.1}", self.all.calls as f64 / seconds * 60.0)) " per minute" }
                    }
                    (self.bars(|bar| bar.calls as f64, Some(|bar| bar.failed as f64), "Calls over time"))
                }
                figure {
                    figcaption {
                        span { "Failed" } strong { (self.all.failed) } span.note { (format!("{share:.1} %")) }
                    }
                    (self.bars(|bar| bar.failed as f64, None, "Failed calls over time"))
                }
                figure {
                    figcaption {
                        span { "Median" } strong { (duration(p50)) } span.note { "p95 " (duration(p95)) }
                    }
                    (self.lines())
                }
            }
        }
    }

    /// Bars, each with a part that is marked.
    fn bars(&self, of: fn(&Bar) -> f64, marked: Option<fn(&Bar) -> f64>, label: &str) -> Markup {
        let most = self.bars.iter().map(of).fold(1.0, f64::max);
        let height = |value: f64| (value / most * HEIGHT as f64).ceil();
        let step = WIDTH / BARS;
        html! {
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(label) preserveAspectRatio="none" {
                @for (at, bar) in self.bars.iter().enumerate().filter(|(_, bar)| of(bar) > 0.0) {
                    (rectangle("bar", at * step, step - 1, height(of(bar))))
                    @if let Some(marked) = marked && marked(bar) > 0.0 {
                        (rectangle("bar bad", at * step, step - 1, height(marked(bar))))
                    }
                }
                (ground())
            }
        }
    }

    /// Returns the percentiles of each span, on a logarithmic scale.
    fn lines(&self) -> Markup {
        let scale = |took: Duration| (took.as_micros() as f64).max(1.0).log10();
        let present: Vec<&Bar> = self.bars.iter().filter(|bar| bar.calls > 0).collect();
        let most = present.iter().map(|bar| scale(bar.percentile(95))).fold(1.0, f64::max);
        let least =
            present.iter().map(|bar| scale(bar.percentile(50))).fold(most, f64::min).min(most - 1.0);
        let height = |took: Duration| {
            ((scale(took) - least) / (most - least) * (HEIGHT as f64 - 4.0)).max(0.0) + 2.0
        };
        let step = WIDTH / BARS;
        html! {
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label="Median and 95th percentile of the durations over time" preserveAspectRatio="none" {
                @for (at, bar) in self.bars.iter().enumerate().filter(|(_, bar)| bar.calls > 0) {
                    (rectangle("range", at * step, step - 1, height(bar.percentile(95))))
                    (rectangle("bar", at * step, step - 1, height(bar.percentile(50))))
                }
                (ground())
            }
        }
    }
}

fn rectangle(class: &str, x: usize, width: usize, height: f64) -> Markup {
    html! { rect class=(class) x=(x) y=(HEIGHT as f64 - height) width=(width) height=(height) {} }
}

fn ground() -> Markup {
    html! { rect.ground x="0" y=(HEIGHT - 1) width=(WIDTH) height="1" {} }
}

impl Bar {
    /// Returns the duration within which this percentage of the calls ended.
    fn percentile(&self, percent: usize) -> Duration {
        let at = (self.durations.len() * percent).div_ceil(100).saturating_sub(1);
        self.durations.get(at).copied().unwrap_or_default()
    }
}

/// Returns a bar of a waterfall: from where to where of the whole time.
pub(crate) fn waterfall(class: &str, from: Duration, took: Duration, whole: Duration) -> Markup {
    const SCALE: f64 = 1000.0;
    let whole = whole.as_secs_f64().max(1e-9);
    let x = (from.as_secs_f64() / whole * SCALE).min(SCALE - 4.0);
    let width = (took.as_secs_f64() / whole * SCALE).max(4.0).min(SCALE - x);
    html! {
        svg.waterfall viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true" {
            rect.ground x="0" y="4" width="1000" height="2" {}
            rect class=(class) x=(format!("{x:.1}")) y="0" width=(format!("{width:.1}")) height="10" rx="2" {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_calls() {
        let durations = (1..=100).map(Duration::from_millis).collect();
        let bar = Bar { durations, ..Bar::default() };
        assert_eq!(bar.percentile(50), Duration::from_millis(50));
        assert_eq!(bar.percentile(95), Duration::from_millis(95));
        assert_eq!(Bar::default().percentile(50), Duration::ZERO);
    }
}
