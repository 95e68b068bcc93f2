//! `/status`: the state of the server and of all its capabilities, as JSON (RFC 1 §8).

use std::collections::BTreeMap;
use std::sync::Arc;

use orla_marketplace::{
    CapabilityMarketplace, Catalog, Entry, JsonText, Principal, ProviderProblem, RoutedStatus,
    SandboxLevel, SandboxStatus, TaskSupport, millis_down,
};
use orla_tasks::{ScheduleStatus, State};
use serde::Serialize;

use crate::admin::quotas::{self, QuotaRow};
use crate::metrics::{Gauges, Provider, SandboxGauges};
use crate::nodes::{self, NodeRow};
use crate::state::Core;

/// One capability in `/status` and `orla list --json`. Unknown members are left out.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct StatusRow {
    /// The MCP name.
    pub name: Arc<str>,
    /// The id.
    pub id: String,
    /// The title that clients show to people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The other metadata of its manifest.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Whether it runs as a task, if it declares that: `required`, `optional` or `forbidden`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<&'static str>,
    /// The kind of provider: `tool`, `capsule`, `mcp`, …
    pub kind: &'static str,
    /// Its provider: the part of the id before the first dot, if a provider serves several capabilities.
    pub provider: String,
    /// Its origin: a path or an address.
    pub source: Option<String>,
    /// The interpreter, such as `python3`.
    pub interpreter: Option<String>,
    /// The authority that attests its current content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attested_by: Option<String>,
    /// The state of its life cycle, if there is a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The process that serves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// How long that process has run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uptime_ms: Option<u64>,
    /// How often it was restarted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u64>,
    /// The reason for its last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
    /// The confinement of its processes, if it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRow>,
    /// The routing of its calls, if there are several providers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// The providers of a capability that has several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub providers: Vec<ProviderRow>,
    /// True if clients do not see it in lists.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unlisted: bool,
}

/// The confinement of a capability's processes.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SandboxRow {
    /// `enforced`, `unconfined` or `unavailable`.
    pub level: &'static str,
    /// Identifies the profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The declared restrictions that are not in force, with the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// How many connections to undeclared hosts the processes of the profile were refused.
    #[serde(skip_serializing_if = "is_zero")]
    pub refused_connections: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl From<SandboxStatus> for SandboxRow {
    fn from(status: SandboxStatus) -> Self {
        Self {
            level: status.level.name(),
            profile: status.profile,
            missing: status.missing,
            refused_connections: status.refused_connections,
        }
    }
}

/// One of the providers of a capability that has several.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ProviderRow {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: &'static str,
    /// `available`, or `unavailable` while calls skip it.
    pub state: &'static str,
    /// The number of calls that run there.
    pub running: usize,
    /// The number of calls so far.
    pub calls: u64,
    /// Whether it was used for the last call.
    pub used_last: bool,
    /// The reason for the failure of its last call, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
}

impl From<RoutedStatus> for ProviderRow {
    fn from(status: RoutedStatus) -> Self {
        Self {
            name: status.name,
            kind: status.kind,
            state: status.state,
            running: status.running,
            calls: status.calls,
            used_last: status.is_last,
            last_failure: status.last_failure,
        }
    }
}

impl StatusRow {
    /// Returns the row of one entry.
    pub fn of(market: &CapabilityMarketplace, entry: &Entry) -> Self {
        let status = market.status(entry);
        let id = entry.manifest.id.clone();
        Self {
            name: Arc::clone(&entry.name),
            title: entry.manifest.title().map(str::to_owned),
            task: entry.manifest.task_support().map(TaskSupport::as_str),
            metadata: entry
                .manifest
                .other_metadata()
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            kind: entry.manifest.provider.kind(),
            provider: id.split_once('.').map_or(&*id, |(provider, _)| provider).to_owned(),
            id,
            source: status.source,
            interpreter: status.interpreter,
            attested_by: entry.attestation().map(|attestation| attestation.authority.clone()),
            state: status.state,
            pid: status.pid,
            uptime_ms: status.uptime_ms,
            restarts: status.restarts,
            last_failure: status.last_failure,
            sandbox: status.sandbox.map(SandboxRow::from),
            route: status.route,
            providers: status.providers.into_iter().map(ProviderRow::from).collect(),
            unlisted: !entry.is_listed(),
        }
    }

    /// Returns the row of a provider that does not run because it cannot be confined. Its capabilities
    /// are unknown.
    pub fn of_unconfinable(problem: &ProviderProblem) -> Option<Self> {
        let sandbox =
            problem.sandbox.clone().filter(|sandbox| sandbox.level == SandboxLevel::Unavailable)?;
        Some(Self {
            name: problem.name.as_str().into(),
            id: problem.name.clone(),
            title: None,
            task: None,
            metadata: BTreeMap::new(),
            kind: "provider",
            provider: problem.name.clone(),
            source: None,
            interpreter: None,
            attested_by: None,
            state: Some("unavailable".to_owned()),
            pid: None,
            uptime_ms: None,
            restarts: None,
            last_failure: Some(problem.text.clone()),
            sandbox: Some(sandbox.into()),
            route: None,
            providers: Vec::new(),
            unlisted: false,
        })
    }

    /// Returns the rows of the listed capabilities of the newest snapshot, by name.
    pub fn listed(market: &CapabilityMarketplace) -> Vec<Self> {
        market.snapshot().listed().map(|entry| Self::of(market, entry)).collect()
    }

    /// Returns the rows of all capabilities of the newest snapshot, by name.
    pub fn all(market: &CapabilityMarketplace) -> Vec<Self> {
        market.snapshot().entries().iter().map(|entry| Self::of(market, entry)).collect()
    }
}

/// The cluster that the server is a node of.
#[derive(Serialize)]
struct Cluster {
    nodes: Vec<NodeRow>,
}

/// The memory that the requests hold together, in bytes.
#[derive(Serialize)]
struct Memory {
    held: usize,
    max: usize,
}

#[derive(Serialize)]
struct Status {
    version: &'static str,
    uptime_ms: u64,
    generation: u64,
    sessions: usize,
    running: usize,
    waiting: usize,
    /// The number of tasks in each state. For terminal states, the tasks that ended since the start.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tasks: BTreeMap<&'static str, u64>,
    /// The schedules, which start tasks at set times.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    schedules: Vec<ScheduleRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<Cluster>,
    memory: Memory,
    /// The scope of the confinement.
    sandbox: &'static str,
    capabilities: Vec<StatusRow>,
    /// The number of unlisted capabilities.
    unlisted: usize,
    /// The caller's quotas.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    quotas: Vec<QuotaRow>,
    /// The problems of providers that serve nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

/// Returns the whole of `/status` that this caller may see.
pub(crate) fn render(core: &Core, principal: Option<&Principal>) -> Vec<u8> {
    let catalog = core.market.snapshot();
    let (listed, unlisted): (Vec<&Arc<Entry>>, Vec<_>) =
        catalog.permitted(principal).partition(|entry| entry.is_listed());
    let silent = core.market.provider_problems_for(&catalog, principal, None);
    let mut capabilities: Vec<_> =
        listed.into_iter().map(|entry| StatusRow::of(&core.market, entry)).collect();
    capabilities.extend(silent.iter().filter_map(StatusRow::of_unconfinable));
    let status = Status {
        version: env!("CARGO_PKG_VERSION"),
        uptime_ms: uptime_ms(core),
        generation: catalog.generation(),
        sessions: core.sessions.count(),
        running: core.market.running(),
        waiting: core.market.waiting(),
        tasks: tasks(core).into_iter().collect(),
        schedules: schedules(core),
        cluster: core
            .cluster()
            .map(|cluster| Cluster { nodes: visible(cluster.rows(), &catalog, principal) }),
        memory: Memory { held: core.market.memory().held(), max: core.market.memory().max() },
        sandbox: core.market.confinement(),
        unlisted: unlisted.len(),
        quotas: quotas::own(core, principal),
        capabilities,
        problems: silent.into_iter().map(|problem| problem.text).collect(),
    };
    let text = JsonText::of(&status).unwrap_or_default();
    // The reason of a failure may quote the provider.
    core.market.redaction().json(text).bytes().to_vec()
}

/// Returns the nodes with the capabilities that this caller may see.
fn visible(mut nodes: Vec<NodeRow>, catalog: &Catalog, principal: Option<&Principal>) -> Vec<NodeRow> {
    if catalog.conceals() {
        let is_visible = |id: &String| catalog.visible(principal, id).is_some();
        nodes.iter_mut().for_each(|node| node.capabilities.retain(is_visible));
    }
    nodes
}

/// A schedule and its next instant.
#[derive(Serialize)]
struct ScheduleRow {
    name: String,
    schedule: String,
    time_zone: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// The reason why its last firing started no task.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

fn schedules(core: &Core) -> Vec<ScheduleRow> {
    let all = core.schedules().map(orla_tasks::Schedules::status).unwrap_or_default();
    let row = |status: ScheduleStatus| ScheduleRow {
        name: status.name,
        schedule: status.schedule,
        time_zone: status.time_zone,
        next: status.next.map(|next| next.to_string()),
        problem: status.problem,
    };
    all.into_iter().map(row).collect()
}

/// Returns the number of tasks in each state.
fn tasks(core: &Core) -> Vec<(&'static str, u64)> {
    let counts = core.tasks().map(|tasks| State::ALL.iter().zip(tasks.counts().by_state));
    counts.into_iter().flatten().map(|(state, count)| (state.as_str(), count)).collect()
}

/// Returns the current values for `/metrics` that this caller may see.
pub(crate) fn gauges(core: &Core, principal: Option<&Principal>) -> Gauges {
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let newest = core.market.snapshot();
    let rows = rows(&core.market, newest.permitted(principal));
    Gauges {
        running: number(core.market.running()),
        waiting: number(core.market.waiting()),
        memory_held: number(core.market.memory().held()),
        sessions: number(core.sessions.count()),
        pending: number(core.pending.count()),
        capabilities: number(newest.permitted(principal).filter(|entry| entry.is_listed()).count()),
        generation: newest.generation(),
        reloads: newest.generation().saturating_sub(1),
        uptime_ms: uptime_ms(core),
        providers: providers(&rows),
        sandboxes: sandboxes(&rows),
        quota_refusals: core.market.quotas().refusals(),
        approvals_waiting: number(core.market.approvals().waiting()),
        tasks: tasks(core),
        cluster: nodes::gauges(core),
    }
}

fn rows<'a>(
    market: &CapabilityMarketplace,
    entries: impl Iterator<Item = &'a Arc<Entry>>,
) -> Vec<StatusRow> {
    entries.map(|entry| StatusRow::of(market, entry)).collect()
}

/// Returns the confinement of the processes of capabilities.
fn sandboxes(rows: &[StatusRow]) -> SandboxGauges {
    let mut gauges = SandboxGauges::default();
    let mut refused = BTreeMap::new();
    for row in rows.iter().filter_map(|row| row.sandbox.as_ref()) {
        *gauges.capabilities.entry(row.level).or_default() += 1;
        refused.extend(row.profile.as_ref().map(|profile| (profile, row.refused_connections)));
    }
    gauges.profiles = u64::try_from(refused.len()).unwrap_or(u64::MAX);
    gauges.refused_connections = refused.values().sum();
    gauges
}

/// Returns the providers with a process of their own, without duplicates.
fn providers(rows: &[StatusRow]) -> Vec<Provider> {
    let provider = |row: &StatusRow| {
        let restarts = row.restarts.unwrap_or_default();
        Some(Provider { name: row.provider.clone(), state: row.state.clone()?, restarts })
    };
    let mut providers: Vec<Provider> = rows.iter().filter_map(provider).collect();
    providers.sort_by(|a, b| a.name.cmp(&b.name));
    providers.dedup_by(|a, b| a.name == b.name);
    providers
}

/// Returns the text of `/readyz`: the number of providers in each state. It omits their names, because
/// `/readyz` needs no authentication.
pub(crate) fn readiness(core: &Core) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for provider in providers(&rows(&core.market, core.market.snapshot().entries().iter())) {
        *counts.entry(provider.state).or_default() += 1;
    }
    let lines = counts.into_iter().map(|(state, count)| format!("{state} {count}\n"));
    let tls = core.tls.get();
    // The path is omitted, because not every caller may see it.
    let expiry = tls.and_then(|tls| tls.expires_soon()).map(|left| format!("certificate {left}\n"));
    std::iter::once("ready\n".to_owned()).chain(lines).chain(expiry).collect()
}

fn uptime_ms(core: &Core) -> u64 {
    millis_down(core.started.elapsed())
}
