//! `/metrics`: the counters, in the text format that Prometheus reads.
//!
//! A capability's name becomes a label only after a call of it, so there are never more series than there were
//! capabilities.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use http::{HeaderMap, header};
use orla_marketplace::{ApprovalDecision, CapabilityMarketplace, Entry, Item};
use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Registry, Unit};

use crate::http::forbidden::ForbiddenBy;
use crate::nodes::ClusterGauges;

/// The text formats that scrapers read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The older format of Prometheus, for scrapers that do not name the newer one.
    Prometheus,
}

impl Format {
    /// Returns the format that the headers of a request ask for.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        if accepted.into_iter().any(|accept| accept.contains("application/openmetrics-text")) {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts a text from OpenMetrics.
    pub(crate) fn convert(self, text: String) -> String {
        match self {
            Self::OpenMetrics => text,
            Self::Prometheus => prometheus_text(&text),
        }
    }
}

/// Converts OpenMetrics to the older format: a counter is declared under the name of its samples, and units and the end are not
/// declared.
fn prometheus_text(text: &str) -> String {
    let counters: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let declared = line.strip_prefix("# ").and_then(|line| line.split_once(' '));
        match declared {
            None if line == "# EOF" => {}
            Some(("UNIT", _)) => {}
            Some((word @ ("HELP" | "TYPE"), rest)) => {
                let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                let suffix = if counters.contains(name) { "_total" } else { "" };
                let _ = writeln!(out, "# {word} {name}{suffix} {rest}");
            }
            _ => {
                let _ = writeln!(out, "{line}");
            }
        }
    }
    out
}

/// Values that are counted as they happen; others are read at a request.
#[derive(Default)]
pub(crate) struct Metrics {
    /// By the MCP name of the capability.
    calls: Arc<Mutex<BTreeMap<Arc<str>, CallCounts>>>,
    /// How questions about calls ended.
    approvals: Arc<Mutex<BTreeMap<ApprovalDecision, Counter>>>,
    /// Requests for prompts, resources and templates, by kind and outcome.
    surface_requests: Family<SurfaceLabels, Counter>,
    /// Requests that were forbidden, by rule.
    forbidden: Family<ForbiddenLabels, Counter>,
    /// HTTP requests that were answered.
    pub(crate) requests: Counter,
    /// Requests without a valid token, if one is required.
    pub(crate) auth_failures: Counter,
    /// HTTP connections that are open.
    pub(crate) connections: Gauge<i64, AtomicI64>,
}

/// The finished calls of one capability.
struct CallCounts {
    /// The last called capability. It lives only as long as the catalogues that serve it.
    entry: Weak<Entry>,
    /// Decides which callers may see it.
    item: Item,
    by_outcome: BTreeMap<&'static str, Counter>,
    durations: Histogram,
}

impl CallCounts {
    fn new(entry: &Arc<Entry>) -> Self {
        Self {
            entry: Arc::downgrade(entry),
            item: entry.item(),
            by_outcome: BTreeMap::new(),
            durations: Histogram::new(BUCKETS),
        }
    }

    /// Counts for this capability from now on. A reload may have replaced the previous one.
    fn register(&mut self, entry: &Arc<Entry>) {
        if !std::ptr::eq(self.entry.as_ptr(), Arc::as_ptr(entry)) {
            self.entry = Arc::downgrade(entry);
            self.item = entry.item();
        }
    }
}

/// Metrics of one name, each with its labels.
#[derive(Debug)]
struct Labelled<L, M>(Vec<(L, M)>);

impl<L, M> EncodeMetric for Labelled<L, M>
where
    L: EncodeLabelSet + fmt::Debug,
    M: EncodeMetric + TypedMetric,
{
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(labels, metric)| metric.encode(encoder.encode_family(labels)?))
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    capability: Arc<str>,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SurfaceLabels {
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ForbiddenLabels {
    by: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    capability: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    provider: String,
    state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LevelLabels {
    level: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProviderLabels {
    provider: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    decision: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuleLabels {
    rule: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    event: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CountLabels {
    state: &'static str,
}

/// From 0.1 ms to 5 min, to cover built-ins and long-running tools.
const BUCKETS: [f64; 14] =
    [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0];

impl Metrics {
    /// Counts the marketplace's calls from now on.
    pub(crate) fn observe(&self, market: &CapabilityMarketplace) {
        self.observe_approvals(market);
        let calls = Arc::clone(&self.calls);
        market.on_finished(move |record| {
            let mut calls = calls.lock();
            let name = Arc::clone(&record.name);
            let counts = calls.entry(name).or_insert_with(|| CallCounts::new(&record.entry));
            counts.register(&record.entry);
            counts.by_outcome.entry(record.outcome).or_default().inc();
            counts.durations.observe(record.duration.as_secs_f64());
        });
        let requests = self.surface_requests.clone();
        market.on_request(move |record| {
            let labels = SurfaceLabels { kind: record.kind, outcome: record.outcome };
            requests.get_or_create(&labels).inc();
        });
    }

    /// Counts a request that this rule forbids.
    pub(crate) fn count_forbidden(&self, by: ForbiddenBy) {
        self.forbidden.get_or_create(&ForbiddenLabels { by: by.word() }).inc();
    }

    /// Counts the decisions about calls that need an approval from now on.
    fn observe_approvals(&self, market: &CapabilityMarketplace) {
        let approvals = Arc::clone(&self.approvals);
        market.approvals().on_decided(move |record| {
            approvals.lock().entry(record.decision).or_default().inc();
        });
    }

    /// Returns the text for Prometheus, with the capabilities that `is_visible`.
    pub(crate) fn render(&self, now: &Gauges, is_visible: impl Fn(&Item) -> bool) -> String {
        let (mut finished, mut durations) = (Vec::new(), Vec::new());
        let calls = self.calls.lock();
        for (name, counts) in calls.iter().filter(|(_, counts)| is_visible(&counts.item)) {
            let labels = |outcome| CallLabels { capability: Arc::clone(name), outcome };
            let counted = counts.by_outcome.iter();
            finished.extend(counted.map(|(outcome, count)| (labels(outcome), count.clone())));
            let labels = DurationLabels { capability: Arc::clone(name) };
            durations.push((labels, counts.durations.clone()));
        }
        drop(calls);
        let mut registry = Registry::with_prefix("orla");
        registry.register("calls", "Finished calls by capability and outcome", Labelled(finished));
        registry.register_with_unit(
            "call_duration",
            "How long calls took, waiting included",
            Unit::Seconds,
            Labelled(durations),
        );
        registry.register(
            "auth_failures",
            "Requests without a valid token where one is needed",
            self.auth_failures.clone(),
        );
        registry.register(
            "surface_requests",
            "Requests for prompts and resources by kind and outcome",
            self.surface_requests.clone(),
        );
        registry.register(
            "forbidden_requests",
            "Forbidden requests that are not calls, by what forbids them",
            self.forbidden.clone(),
        );
        registry.register("http_requests", "HTTP requests that were answered", self.requests.clone());
        registry.register("connections", "Open HTTP connections", self.connections.clone());
        let gauge = |value: u64| {
            let gauge = Gauge::<i64, AtomicI64>::default();
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
            gauge
        };
        let counter = |value: u64| {
            let counter = Counter::<u64, AtomicU64>::default();
            counter.inner().store(value, Ordering::Relaxed);
            counter
        };
        registry.register("calls_running", "Calls that run", gauge(now.running));
        registry.register("calls_waiting", "Calls that wait for their turn", gauge(now.waiting));
        registry.register_with_unit(
            "memory_held",
            "What request bodies and programs hold together",
            Unit::Bytes,
            gauge(now.memory_held),
        );
        registry.register("sessions", "Sessions of the HTTP transport", gauge(now.sessions));
        registry.register(
            "requests_parked",
            "Sessionless requests that wait for answers of their clients",
            gauge(now.pending),
        );
        registry.register(
            "capabilities",
            "Capabilities that the newest snapshot lists",
            gauge(now.capabilities),
        );
        registry.register("catalog_generation", "The newest snapshot's number", gauge(now.generation));
        registry.register("reloads", "Snapshots put in force since the first", counter(now.reloads));
        registry.register("uptime_milliseconds", "Since the server was made", gauge(now.uptime_ms));
        let states = Family::<StateLabels, Gauge<i64, AtomicI64>>::default();
        let restarts = Family::<ProviderLabels, Counter>::default();
        for Provider { name, state, restarts: count } in &now.providers {
            states.get_or_create(&StateLabels { provider: name.clone(), state: state.clone() }).set(1);
            restarts.get_or_create(&ProviderLabels { provider: name.clone() }).inc_by(*count);
        }
        registry.register("provider_state", "Which state a provider's process is in", states);
        registry.register("provider_restarts", "Processes of a provider after its first", restarts);
        let levels = now.sandboxes.capabilities.iter();
        let levels = levels.map(|(level, count)| (LevelLabels { level }, gauge(*count)));
        registry.register(
            "sandboxed_capabilities",
            "Capabilities with processes by how far these are confined",
            Labelled(levels.collect()),
        );
        registry.register(
            "sandbox_profiles",
            "Different confinements, each with a process that starts the others",
            gauge(now.sandboxes.profiles),
        );
        registry.register(
            "sandbox_refused_connections",
            "Connections to undeclared hosts that confined processes were refused",
            gauge(now.sandboxes.refused_connections),
        );
        if !now.quota_refusals.is_empty() {
            let refusals = now.quota_refusals.iter();
            let refusals =
                refusals.map(|(rule, count)| (RuleLabels { rule: rule.clone() }, counter(*count)));
            registry.register(
                "quota_refusals",
                "Calls that a quota has refused",
                Labelled(refusals.collect()),
            );
        }
        let decisions = self.approvals.lock();
        let decisions = decisions.iter();
        let decisions: Vec<_> = decisions
            .map(|(decision, count)| (DecisionLabels { decision: decision.word() }, count.clone()))
            .collect();
        if !decisions.is_empty() {
            registry.register("approvals", "How questions about calls ended", Labelled(decisions));
        }
        registry.register(
            "approvals_waiting",
            "Calls that wait for an approval",
            gauge(now.approvals_waiting),
        );
        if !now.tasks.is_empty() {
            let counts = now.tasks.iter().map(|(state, count)| (CountLabels { state }, gauge(*count)));
            registry.register(
                "tasks",
                "Tasks in each state; of those that are over, those that ended since the start",
                Labelled(counts.collect()),
            );
        }
        if let Some(cluster) = &now.cluster {
            let nodes = cluster.nodes.iter();
            let nodes = nodes.map(|(state, count)| (CountLabels { state }, gauge(*count)));
            registry.register(
                "cluster_nodes",
                "Nodes of the cluster in each state",
                Labelled(nodes.collect()),
            );
            registry.register(
                "cluster_connected",
                "Whether this node is connected to NATS",
                gauge(u64::from(cluster.is_connected)),
            );
            let events = cluster.events.iter();
            let events = events.map(|(event, count)| (EventLabels { event }, counter(*count)));
            registry.register(
                "cluster_calls",
                "What happened to calls between nodes",
                Labelled(events.collect()),
            );
        }
        let mut out = String::new();
        if text::encode(&mut out, &registry).is_err() {
            out.clear();
            // Writing to a string cannot fail; a scraper would report this text.
            let _ = writeln!(out, "# EOF");
        }
        out
    }
}

/// Values that are read at a request.
pub(crate) struct Gauges {
    pub(crate) running: u64,
    pub(crate) waiting: u64,
    pub(crate) memory_held: u64,
    pub(crate) sessions: u64,
    pub(crate) pending: u64,
    pub(crate) capabilities: u64,
    pub(crate) generation: u64,
    pub(crate) reloads: u64,
    pub(crate) uptime_ms: u64,
    /// In the order of their names.
    pub(crate) providers: Vec<Provider>,
    pub(crate) sandboxes: SandboxGauges,
    /// The refused calls of each quota.
    pub(crate) quota_refusals: Vec<(String, u64)>,
    pub(crate) approvals_waiting: u64,
    /// The tasks in each state.
    pub(crate) tasks: Vec<(&'static str, u64)>,
    pub(crate) cluster: Option<ClusterGauges>,
}

/// The confinement of processes.
#[derive(Default)]
pub(crate) struct SandboxGauges {
    /// How many capabilities have processes at each level.
    pub(crate) capabilities: BTreeMap<&'static str, u64>,
    pub(crate) profiles: u64,
    pub(crate) refused_connections: u64,
}

/// A provider with a process of its own.
pub(crate) struct Provider {
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) restarts: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_declares_counters_under_the_names_of_their_samples() {
        let text = "# HELP orla_calls Finished calls.\n# TYPE orla_calls counter\norla_calls_total{outcome=\"ok\"} 3\n\
            # HELP orla_time_seconds How long.\n# TYPE orla_time_seconds histogram\n# UNIT orla_time_seconds seconds\n\
            orla_time_seconds_count 3\n# EOF\n";
        let older = "# HELP orla_calls_total Finished calls.\n# TYPE orla_calls_total counter\norla_calls_total{outcome=\"ok\"} 3\n\
            # HELP orla_time_seconds How long.\n# TYPE orla_time_seconds histogram\norla_time_seconds_count 3\n";
        assert_eq!(Format::Prometheus.convert(text.to_owned()), older);
        assert_eq!(Format::OpenMetrics.convert(text.to_owned()), text);
    }
}
