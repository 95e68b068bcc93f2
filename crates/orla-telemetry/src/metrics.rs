//! Metrics as OTLP, made from the text that a scraper reads (OpenMetrics 1.0). No I/O.

use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::proto::{
    Data, ExportMetricsServiceRequest, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum,
};
use crate::resource::{Resource, nanos, text as attribute};

/// Values count from the start of the instance, not from the last request.
const CUMULATIVE: i32 = 2;

/// Returns the request that exports the metrics of a text. `began` is when its counters were zero.
pub(crate) fn request(
    resource: &Resource,
    text: &str,
    began: SystemTime,
    now: SystemTime,
) -> ExportMetricsServiceRequest {
    let (resource, scope) = resource.messages();
    let times = (nanos(began), nanos(now));
    let metrics = families(text).into_iter().map(|family| family.metric(times)).collect();
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(resource),
            scope_metrics: vec![ScopeMetrics { scope: Some(scope), metrics }],
        }],
    }
}

/// The metrics of one name.
#[derive(Debug, Default)]
struct Family<'t> {
    name: &'t str,
    help: &'t str,
    kind: &'t str,
    unit: &'t str,
    samples: Vec<Sample<'t>>,
}

/// A line with a value.
#[derive(Debug)]
struct Sample<'t> {
    name: &'t str,
    labels: Vec<(&'t str, String)>,
    value: f64,
}

fn families(text: &str) -> Vec<Family<'_>> {
    let mut families: Vec<Family<'_>> = Vec::new();
    for line in text.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            if let (Some(family), Some(sample)) = (families.last_mut(), Sample::of(line)) {
                family.samples.push(sample);
            }
            continue;
        };
        let mut words = comment.splitn(3, ' ');
        let (Some(what), Some(name), Some(rest)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        if families.last().is_none_or(|family| family.name != name) {
            families.push(Family { name, ..Family::default() });
        }
        let Some(family) = families.last_mut() else { continue };
        match what {
            "HELP" => family.help = rest,
            "TYPE" => family.kind = rest,
            "UNIT" => family.unit = rest,
            _ => {}
        }
    }
    families
}

impl<'t> Sample<'t> {
    /// `name{label="value",…} 1.5`
    fn of(line: &'t str) -> Option<Self> {
        let (name, mut rest) = line.split_at(line.find(['{', ' '])?);
        let mut labels = Vec::new();
        if let Some(mut inside) = rest.strip_prefix('{') {
            while !inside.starts_with('}') {
                let (label, quoted) = inside.split_once("=\"")?;
                let (value, after) = unquoted(quoted)?;
                labels.push((label, value));
                inside = after.strip_prefix(',').unwrap_or(after);
            }
            rest = &inside[1..];
        }
        let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Self { name, labels, value })
    }
}

/// Returns a quoted value without its escapes, and what follows its quotation mark.
fn unquoted(quoted: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), quoted.chars());
    loop {
        match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' => match chars.next()? {
                'n' => value.push('\n'),
                escaped => value.push(escaped),
            },
            c => value.push(c),
        }
    }
}

/// When counting began, and now: in nanoseconds since 1970.
type Times = (u64, u64);

impl Family<'_> {
    fn metric(self, times: Times) -> Metric {
        let unit = match self.unit {
            "seconds" => "s",
            "bytes" => "By",
            other => other,
        };
        let (name, description) = (self.name.to_owned(), self.help.trim_end_matches('.').to_owned());
        let aggregation_temporality = CUMULATIVE;
        let data = match self.kind {
            "histogram" => Data::Histogram(Histogram {
                data_points: histograms(&self.samples, times),
                aggregation_temporality,
            }),
            "counter" => Data::Sum(Sum {
                data_points: numbers(&self.samples, times),
                aggregation_temporality,
                is_monotonic: true,
            }),
            _ => Data::Gauge(Gauge { data_points: numbers(&self.samples, times) }),
        };
        Metric { name, description, unit: unit.to_owned(), data: Some(data) }
    }
}

fn numbers(
    samples: &[Sample<'_>],
    (start_time_unix_nano, time_unix_nano): Times,
) -> Vec<NumberDataPoint> {
    let point = |sample: &Sample<'_>| NumberDataPoint {
        attributes: sample.labels.iter().map(|(name, value)| attribute(name, value)).collect(),
        start_time_unix_nano,
        time_unix_nano,
        as_double: Some(sample.value),
    };
    samples.iter().map(point).collect()
}

/// Returns one point for each set of labels. The text counts values up to a bound, and OTLP counts
/// values between two bounds.
fn histograms(
    samples: &[Sample<'_>],
    (start_time_unix_nano, time_unix_nano): Times,
) -> Vec<HistogramDataPoint> {
    let mut points: BTreeMap<Vec<(&str, &str)>, HistogramDataPoint> = BTreeMap::new();
    for Sample { name, labels, value } in samples {
        let bound = labels.iter().find(|(label, _)| *label == "le").map(|(_, bound)| bound.as_str());
        let labels = labels.iter().filter(|(label, _)| *label != "le");
        let labels: Vec<_> = labels.map(|(label, value)| (*label, value.as_str())).collect();
        let attributes = || labels.iter().map(|(name, value)| attribute(name, value)).collect();
        let point = points.entry(labels.clone()).or_insert_with(|| HistogramDataPoint {
            attributes: attributes(),
            start_time_unix_nano,
            time_unix_nano,
            ..HistogramDataPoint::default()
        });
        match (bound, name.rsplit('_').next()) {
            (Some(bound), _) => {
                let below: u64 = point.bucket_counts.iter().sum();
                point.bucket_counts.push((*value as u64).saturating_sub(below));
                point.explicit_bounds.extend(bound.parse().ok().filter(|bound: &f64| bound.is_finite()));
            }
            (None, Some("count")) => point.count = *value as u64,
            (None, Some("sum")) => point.sum = Some(*value),
            (None, _) => {}
        }
    }
    points.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const TEXT: &str = r#"# HELP orla_calls Finished calls.
# TYPE orla_calls counter
orla_calls_total{capability="a \"b\"\\",outcome="ok"} 3
# HELP orla_call_duration_seconds How long calls took.
# TYPE orla_call_duration_seconds histogram
# UNIT orla_call_duration_seconds seconds
orla_call_duration_seconds_sum{capability="x"} 0.75
orla_call_duration_seconds_count{capability="x"} 4
orla_call_duration_seconds_bucket{le="0.1",capability="x"} 1
orla_call_duration_seconds_bucket{le="1.0",capability="x"} 3
orla_call_duration_seconds_bucket{le="+Inf",capability="x"} 4
# HELP orla_sessions Sessions.
# TYPE orla_sessions gauge
orla_sessions 2
# EOF
"#;

    #[test]
    fn each_kind_of_metric_becomes_its_own() {
        let began = SystemTime::UNIX_EPOCH + Duration::from_nanos(5);
        let request = request(&Resource::default(), TEXT, began, began + Duration::from_nanos(2));
        let [metrics] = &request.resource_metrics[0].scope_metrics[..] else { panic!("{request:?}") };
        let [calls, durations, sessions] = &metrics.metrics[..] else { panic!("{metrics:?}") };
        assert_eq!((&*calls.name, &*calls.description), ("orla_calls", "Finished calls"));
        let Some(Data::Sum(sum)) = &calls.data else { panic!("{calls:?}") };
        let point = &sum.data_points[0];
        assert!(sum.is_monotonic && sum.aggregation_temporality == CUMULATIVE);
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (5, 7));
        assert_eq!(point.attributes, [attribute("capability", "a \"b\"\\"), attribute("outcome", "ok")]);
        assert_eq!(point.as_double, Some(3.0));
        let Some(Data::Histogram(histogram)) = &durations.data else { panic!("{durations:?}") };
        let [point] = &histogram.data_points[..] else { panic!("{histogram:?}") };
        assert_eq!((durations.unit.as_str(), point.count, point.sum), ("s", 4, Some(0.75)));
        assert_eq!(
            (&point.bucket_counts[..], &point.explicit_bounds[..]),
            (&[1, 2, 1][..], &[0.1, 1.0][..])
        );
        assert_eq!(point.attributes, [attribute("capability", "x")]);
        let Some(Data::Gauge(gauge)) = &sessions.data else { panic!("{sessions:?}") };
        assert_eq!(gauge.data_points[0].as_double, Some(2.0));
    }

    #[test]
    fn invalid_metrics_are_left_out() {
        for text in [
            "",
            "x",
            "orla_x 1",
            "# TYPE",
            "# TYPE a counter\na_total{b=\"c 1",
            "# TYPE a gauge\na{b} 1\na x",
        ] {
            let found = families(text);
            assert!(found.iter().all(|family| family.samples.is_empty()), "{text}: {found:?}");
        }
    }
}
