//! Every configured agent and its skills.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use orla_marketplace::schema::schema_from_declaration;
use orla_marketplace::{
    A2ACapability, CapabilityManifest, Connection, LISTED, ProviderProblem, ProviderType, Registration,
    Source, Surface, TITLE, millis_down,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::agent::{Agent, AgentInfo};
use super::card::Skill;
use super::input;
use super::settings::{AgentSettings, Protocol};
use super::wire::Clients;
use crate::sign_in::SignIns;

/// How long a listing waits for the cards of agents that were never asked.
const LEARN: Duration = Duration::from_secs(5);
/// The maximum number of agents that are kept for capabilities with their own address.
const MAX_OWN: usize = 256;

/// Every agent of an instance.
///
/// # How it works
///
/// A card is fetched only when it is needed: for a list, or for an unknown name. A task then asks an
/// agent without a card again, until the agent has one or the configuration drops it. Lists wait only
/// for the first answer. The last known card stays while the agent cannot be reached.
#[derive(Debug)]
pub struct Agents {
    clients: Arc<Clients>,
    sign_ins: SignIns,
    changes: watch::Sender<u64>,
    configured: Mutex<Configured>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct Configured {
    entries: Vec<Arc<Agent>>,
    /// Agents of capabilities that give an address.
    own: Vec<Arc<Agent>>,
}

/// A capability's reference to its agent.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) agent: Arc<Agent>,
}

impl Agents {
    /// Creates an instance without agents.
    pub fn new() -> Self {
        Self {
            clients: Arc::default(),
            sign_ins: SignIns::default(),
            changes: watch::Sender::new(0),
            configured: Mutex::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Sets the sign-ins whose tokens the requests use.
    #[must_use]
    pub fn with_sign_ins(self, sign_ins: SignIns) -> Self {
        Self { sign_ins, ..self }
    }

    /// Lets work continue after its call. [`shutdown`](Source::shutdown) waits for it.
    pub(super) fn detach(&self, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.tasks.spawn(work)
    }

    /// Applies a loaded configuration. An unchanged agent keeps its card. This function sends no
    /// request.
    pub fn load(&self, agents: impl IntoIterator<Item = AgentSettings>) {
        let mut configured = self.configured.lock();
        let old = std::mem::take(&mut *configured);
        configured.entries = agents
            .into_iter()
            .map(|settings| {
                let same = old.entries.iter().find(|agent| agent.settings == settings);
                same.map_or_else(|| self.agent(settings, false), Arc::clone)
            })
            .collect();
    }

    /// Returns the agent of a capability that does not hold one.
    ///
    /// # Errors
    /// What is wrong with the capability's settings.
    pub(super) fn reach(&self, capability: &A2ACapability) -> Result<Arc<Agent>, String> {
        super::check(&capability.endpoint, &capability.protocol)?;
        let mut settings = AgentSettings::new(capability.agent_id.clone(), capability.endpoint.clone());
        settings.protocol = Protocol::named(&capability.protocol).unwrap_or_default();
        settings.token.clone_from(&capability.options.auth_token);
        settings.headers.clone_from(&capability.options.headers);
        settings.origins.clone_from(&capability.options.origins);
        let mut configured = self.configured.lock();
        if let Some(agent) = configured.own.iter().find(|agent| agent.settings == settings) {
            return Ok(Arc::clone(agent));
        }
        if configured.own.len() == MAX_OWN {
            configured.own.remove(0);
        }
        let agent = self.agent(settings, true);
        configured.own.push(Arc::clone(&agent));
        Ok(agent)
    }

    fn agent(&self, settings: AgentSettings, is_plain: bool) -> Arc<Agent> {
        let (clients, sign_ins) = (Arc::clone(&self.clients), self.sign_ins.clone());
        Arc::new(Agent::new(settings, clients, sign_ins, self.changes.clone(), is_plain))
    }

    fn entries(&self) -> Vec<Arc<Agent>> {
        self.configured.lock().entries.clone()
    }
}

impl Default for Agents {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns whether an agent may have a skill of this name.
fn may_serve(settings: &AgentSettings, name: &str) -> bool {
    settings.names.may_serve(&settings.name, name)
}

#[async_trait]
impl Source for Agents {
    fn registrations(&self) -> Vec<Registration> {
        let of = |agent: Arc<Agent>| {
            let info = agent.info();
            info.map(|info| registrations(&agent, &info)).unwrap_or_default()
        };
        self.entries().into_iter().flat_map(of).collect()
    }

    fn surfaces(&self) -> Vec<Arc<dyn Surface>> {
        Vec::new()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn may_serve(&self, name: &str) -> bool {
        self.entries().iter().any(|agent| may_serve(&agent.settings, name))
    }

    fn problems(&self, name: Option<&str>) -> Vec<ProviderProblem> {
        let agents = self.entries();
        let silent = agents.iter().filter(|agent| {
            agent.info().is_none() && name.is_none_or(|name| may_serve(&agent.settings, name))
        });
        let problem = |agent: &Arc<Agent>| {
            let settings = &agent.settings;
            let text = format!("agent {}: {}", settings.name, agent.failure()?);
            Some(settings.names.problem(&settings.name, text))
        };
        silent.filter_map(problem).collect()
    }

    fn start_eager(&self, _all: bool) {}

    async fn learn(&self) {
        let agents = self.entries();
        for agent in agents.iter().filter(|agent| agent.start_following()) {
            let following = Arc::clone(agent).follow();
            let stop = self.stop.clone();
            self.tasks.spawn(async move {
                let _ = stop.run_until_cancelled(following).await;
            });
        }
        let all = join_all(agents.iter().map(|agent| agent.first_answer()));
        // An agent that answers later is reported as a change.
        let _ = timeout(LEARN, all).await;
    }

    async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Returns the capabilities of an agent: one for each skill, or one for the agent if its card names
/// none.
fn registrations(agent: &Arc<Agent>, info: &AgentInfo) -> Vec<Registration> {
    if info.card.skills.is_empty() {
        let card = &info.card;
        let (id, about) = (agent.settings.name.clone(), described(&card.description, &card.name));
        return vec![registration(agent, info, id, about, None)];
    }
    let settings = &agent.settings;
    let of = |skill: &Skill| {
        let id = settings.names.id_of(&settings.name, &skill.id);
        let mut about = described(&skill.description, &skill.name);
        if let Some(example) = skill.examples.first() {
            about.push_str(&format!(" For example: {example}"));
        }
        registration(agent, info, id, about, Some(skill))
    };
    let served = info.card.skills.iter().filter(|skill| settings.names.serves(&skill.id));
    served.map(of).collect()
}

fn described(description: &str, name: &str) -> String {
    if description.trim().is_empty() { name.to_owned() } else { description.to_owned() }
}

fn registration(
    agent: &Arc<Agent>,
    info: &AgentInfo,
    id: String,
    about: String,
    skill: Option<&Skill>,
) -> Registration {
    let settings = &agent.settings;
    let timeout_ms = settings.timeout.map_or(0, |timeout| millis_down(timeout).max(1));
    let (name, url) = (settings.name.clone(), settings.url.clone());
    let mut capability = A2ACapability::new(name, url, settings.protocol.as_str(), timeout_ms);
    capability.options.skill = skill.map(|skill| skill.id.clone());
    let connected = Connected { agent: Arc::clone(agent) };
    capability.options.connection = Some(Connection::new(Arc::new(connected)));
    let mut manifest = CapabilityManifest::new(id, about, ProviderType::A2A(capability));
    manifest.version.clone_from(&info.card.version);
    manifest.input_schema = schema_from_declaration(&input::schema()).ok();
    // The card may lead to another allowed origin. The capability then needs permission for that host
    // too.
    manifest.permissions = vec![format!("net:{}", info.wire.host())];
    if let Some(skill) = skill {
        manifest.metadata.insert(TITLE.to_owned(), skill.name.clone());
        let about = json!({"_meta": {"orla/a2a": {"agent": info.card.name, "skill": skill.id, "tags": skill.tags}}});
        manifest.metadata.insert(LISTED.to_owned(), about.to_string());
    }
    let mut registration = Registration::from(manifest);
    registration.policy.timeout = settings.timeout;
    registration.policy.upstream = Some(format!("a2a:{}", settings.name).into());
    registration.policy.redaction.clone_from(&settings.redaction);
    registration
}
