//! What is served: the snapshot of everything that a configuration, a tools directory, prompts and
//! capsules give.
//!
//! What a capsule serves is known only when it runs. What the newest snapshot was made of is therefore
//! kept ([`Served`]), and the snapshot is made anew when a capsule turns out to serve something else.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use orla_marketplace::id::{Pattern, mcp_name};
use orla_marketplace::{
    CapabilityMarketplace, Catalog, CatalogBuilder, Limits, Registration, RegistrationError,
};
use orla_process::capsule::Capsules;
use orla_process::document::Position;

use crate::config::keys::nearest;
use crate::config::{Config, Problem, ToolOverride};
use crate::findings::Findings;
use crate::prompts::{Prompt, Prompts};

/// How many names in `tools` that no tool has are told apart.
pub(crate) const NAMED: usize = 20;

/// What is served, and what it was made of.
pub(crate) struct Served {
    marketplace: Weak<CapabilityMarketplace>,
    capsules: Arc<Capsules>,
    /// With the number of the capsules' change that it includes. Locked while a snapshot is made, so that
    /// no older one takes the place of a newer.
    newest: Mutex<Option<(Sources, u64)>>,
}

/// What a snapshot is made of besides the capsules.
pub(crate) struct Sources {
    pub(crate) config: Config,
    /// The tools that are processes per call.
    pub(crate) tools: Vec<Registration>,
    pub(crate) prompts: Vec<Prompt>,
}

impl Served {
    /// Nothing yet.
    pub(crate) fn new(marketplace: &Arc<CapabilityMarketplace>, capsules: Arc<Capsules>) -> Self {
        Self { marketplace: Arc::downgrade(marketplace), capsules, newest: Mutex::default() }
    }

    /// Puts the snapshot of new sources in force.
    pub(crate) fn publish(&self, sources: Sources, findings: &mut Findings) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(marketplace) = self.marketplace.upgrade() else { return };
        let change = *self.capsules.changes().borrow();
        let catalog = sources.catalog(&marketplace, &self.capsules, findings);
        want(&sources.prompts, &catalog, &self.capsules, findings);
        marketplace.replace(catalog);
        *newest = Some((sources, change));
    }

    /// Puts the snapshot of the same sources in force if a capsule serves something else than it did.
    pub(crate) fn refresh(&self) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(marketplace), Some((sources, included))) = (self.marketplace.upgrade(), &mut *newest)
        else {
            return;
        };
        let change = *self.capsules.changes().borrow();
        if change == *included {
            return;
        }
        let mut findings = Findings::default();
        marketplace.replace(sources.catalog(&marketplace, &self.capsules, &mut findings));
        *included = change;
        // What else there is to say was said when the sources were loaded.
        for problem in findings.problems {
            tracing::warn!("{problem}");
        }
    }

    /// Asks the capsules what they serve where that is not known yet, and puts it in force.
    pub(crate) async fn learn(&self) {
        self.capsules.learn().await;
        self.refresh();
    }
}

impl Sources {
    fn catalog(
        &self,
        marketplace: &Arc<CapabilityMarketplace>,
        capsules: &Capsules,
        findings: &mut Findings,
    ) -> Catalog {
        let config = &self.config;
        let mut builder = marketplace.builder(limits(config));
        self.add_tools(&mut builder, capsules, findings);
        if let Some(allow) = &config.allow {
            builder.allow(allow.iter().map(Pattern::new).collect());
        }
        builder.deny(config.deny.iter().map(Pattern::new).collect());
        if let Some(access) = &config.access {
            builder.access(access.clone());
        }
        config.expose.apply(&mut builder);
        let described = Arc::downgrade(marketplace);
        match Prompts::new(self.prompts.clone(), Box::new(move |tool| description(&described, tool))) {
            Ok(prompts) => builder.surface(Arc::new(prompts)),
            Err(err) => findings.problems.push(format!("the prompts cannot be served: {err}")),
        }
        for surface in capsules.surfaces() {
            builder.surface(surface);
        }
        builder.build()
    }

    /// Registers the tools as `tools` in the configuration changes them.
    fn add_tools(&self, builder: &mut CatalogBuilder, capsules: &Capsules, findings: &mut Findings) {
        let config = &self.config;
        let tools: Vec<Registration> =
            self.tools.iter().cloned().chain(capsules.registrations()).collect();
        let names: HashSet<String> = tools
            .iter()
            .flat_map(|tool| [mcp_name(&tool.manifest.id), tool.manifest.id.clone()])
            .collect();
        let (mut taken, mut renamed) = (HashSet::new(), Vec::new());
        for mut tool in tools {
            let id = &tool.manifest.id;
            let change = config.tools.get(id).or_else(|| config.tools.get(&mcp_name(id)));
            if change.is_some_and(|change| change.enabled == Some(false)) {
                continue;
            }
            if let Some(change) = change {
                apply(&mut tool, change);
            }
            match change.and_then(|change| change.rename.as_ref()) {
                Some(rename) => renamed.push((tool, rename)),
                None => {
                    taken.insert(tool.manifest.id.clone());
                    register(builder, tool, findings);
                }
            }
        }
        // Last, as a name that a tool has by itself is not given to another.
        for (mut tool, rename) in renamed {
            let id = tool.manifest.id.clone();
            if taken.insert(rename.to.clone()) {
                tool.manifest.id.clone_from(&rename.to);
                tool.manifest.name.clone_from(&rename.to);
            } else {
                let text = format!(
                    "tools.{id}.rename: another tool is called {}; {id} keeps its name",
                    rename.to
                );
                findings.problems.push(placed(config, Some(rename.at), text));
            }
            register(builder, tool, findings);
        }
        self.name_unknown(&names, capsules, findings);
    }

    /// Says which names in `tools` no tool has.
    fn name_unknown(&self, names: &HashSet<String>, capsules: &Capsules, findings: &mut Findings) {
        let config = &self.config;
        let unknown =
            |(name, _): &(&String, &ToolOverride)| !names.contains(*name) && !may_come(capsules, name);
        let mut unknown = config.tools.iter().filter(unknown);
        for (name, change) in unknown.by_ref().take(NAMED) {
            let near = nearest(name, names.iter().map(String::as_str));
            let hint = near.map(|near| format!(", did you mean {near}?")).unwrap_or_default();
            let text = format!("tools.{name}: no tool has this name{hint}");
            findings.warnings.push(placed(config, change.at, text));
        }
        let more = unknown.count();
        if more > 0 {
            findings.warnings.push(format!("tools: no tool has any of {more} more names"));
        }
    }
}

/// Whether a capsule may turn out to serve a tool of this name.
fn may_come(capsules: &Capsules, name: &str) -> bool {
    use orla_marketplace::Source as _;
    capsules.may_serve(name)
}

/// Registers a tool; one whose schema is none is served without it.
fn register(builder: &mut CatalogBuilder, mut registration: Registration, findings: &mut Findings) {
    loop {
        let Err(err) = builder.capability(registration.clone()) else { return };
        findings.problems.push(err.to_string());
        match err {
            RegistrationError::InputSchema { .. } => registration.manifest.input_schema = None,
            RegistrationError::OutputSchema { .. } => registration.manifest.output_schema = None,
            _ => return,
        }
    }
}

/// Takes over what is changed of a tool besides its name.
fn apply(registration: &mut Registration, change: &ToolOverride) {
    if let Some(timeout) = change.timeout {
        registration.policy = registration.policy.clone().with_timeout(timeout);
    }
    if let Some(description) = &change.description {
        registration.manifest.description.clone_from(description);
    }
}

fn placed(config: &Config, at: Option<Position>, text: String) -> String {
    match (&config.file, at) {
        (Some(file), Some(at)) => Problem::at(file, at, text).to_string(),
        _ => text,
    }
}

/// Every tool that a prompt wants should be there.
fn want(prompts: &[Prompt], catalog: &Catalog, capsules: &Capsules, findings: &mut Findings) {
    for prompt in prompts {
        for (tool, at) in &prompt.tools {
            if catalog.get(tool).is_none() && !may_come(capsules, tool) {
                let near = catalog.similar(tool).into_iter().next();
                let hint = near.map(|near| format!(", did you mean {near}?")).unwrap_or_default();
                let text = format!("tools: {tool} is not served{hint}");
                findings.warnings.push(Problem::at(&prompt.path, *at, text).to_string());
            }
        }
    }
}

fn description(marketplace: &Weak<CapabilityMarketplace>, tool: &str) -> Option<String> {
    Some(marketplace.upgrade()?.get(tool)?.manifest.description.clone())
}

/// How much at once, and for how long.
pub(crate) fn limits(config: &Config) -> Limits {
    let mut limits = Limits::default();
    limits.timeout = config.timeout;
    limits.max_concurrency = config.max_concurrency;
    limits.max_queue = config.max_queue;
    limits
}
