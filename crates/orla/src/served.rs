//! The served capabilities: a snapshot built from a configuration, a tools directory, prompts and
//! providers (capsules, MCP servers, OpenAPI documents).
//!
//! The capabilities of a provider are known only while it runs. The parts of the newest snapshot are
//! therefore kept ([`Served`]), and the snapshot is rebuilt when the capabilities of a provider change.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Weak};

use futures_util::future::{join_all, select_all};
use orla_cluster::Version;
use orla_document::Position;
use orla_marketplace::attestation::ContentSource;
use orla_marketplace::id::{Pattern, mcp_name};
use orla_marketplace::program::file::ProgramFile;
use orla_marketplace::{
    Availability, CapabilityManifest, CapabilityMarketplace, Catalog, CatalogBuilder, Disclosure,
    Limits, Principal, ProviderProblem, ProviderType, Redactor, Registration, RegistrationError,
    Rejected, Source, discovery, program,
};
use orla_process::confinement::Declared;
use orla_providers::NameRules;
use orla_providers::capsule::capsule_of;
use orla_providers::tool::{Finding, ToolProvider};
use parking_lot::Mutex;

use crate::config::{Config, Placed, Rename, ToolOverride, description_of};
use crate::findings::Findings;
use crate::governance::Rules;
use crate::memory;
use crate::packages::Installed;
use crate::prompts::{Prompt, Prompts};
use crate::text::suggestion;

/// How many unknown names in `tools` are reported one by one.
pub(crate) const MAX_NAMED: usize = 20;

/// Begins with no prefix of a name.
const NO_NAME: &str = "?";

/// The sources that report their own capabilities. They stay the same while the instance runs.
pub(crate) type Providers = Vec<Arc<dyn Source>>;

/// The sources of the snapshot, and its parts.
pub(crate) struct Served {
    marketplace: Weak<CapabilityMarketplace>,
    providers: Providers,
    /// With the numbers of the providers' changes that it includes. Locked while a snapshot is made, so that no
    /// older one replaces a newer.
    newest: Mutex<Option<(Sources, Vec<u64>)>>,
    /// The capabilities that are not served because their ids are taken: the id, and a sentence that
    /// names both places.
    duplicates: Mutex<Vec<(String, String)>>,
}

/// The parts of a snapshot besides the providers: everything that is known at once.
pub(crate) struct Sources {
    pub(crate) config: Config,
    /// The tools that are processes per call.
    pub(crate) tools: Vec<Registration>,
    /// The capabilities that the configuration declares.
    pub(crate) declared: Vec<Placed<Registration>>,
    /// The built-ins, except those whose id is taken.
    pub(crate) builtins: Vec<Registration>,
    pub(crate) prompts: Vec<Prompt>,
    /// The rules for capabilities before they are served.
    pub(crate) rules: Arc<Rules>,
    /// The packages of the lock, whose tools are the accepted ones.
    pub(crate) installed: Installed,
    /// The capsules and servers of which no capability is served. They are not providers.
    pub(crate) denied: Vec<String>,
    /// Replaces all secrets of the configuration and of the packages.
    pub(crate) redaction: Arc<Redactor>,
}

impl Served {
    /// Creates an empty value.
    pub(crate) fn new(marketplace: &Arc<CapabilityMarketplace>, providers: Providers) -> Self {
        let marketplace = Arc::downgrade(marketplace);
        Self { marketplace, providers, newest: Mutex::default(), duplicates: Mutex::default() }
    }

    /// Returns the capabilities that are not served because their ids are taken.
    pub(crate) fn duplicates(&self) -> Vec<ProviderProblem> {
        let duplicates = self.duplicates.lock();
        duplicates.iter().map(|(id, text)| ProviderProblem::new(id, None, text.clone())).collect()
    }

    /// Puts the snapshot of new sources in force.
    pub(crate) fn publish(&self, sources: Sources, findings: &mut Findings) {
        let mut newest = self.newest.lock();
        let Some(marketplace) = self.marketplace.upgrade() else { return };
        let changes = self.changes();
        let (catalog, duplicates) = sources.catalog(&marketplace, &self.providers, &[], findings);
        *self.duplicates.lock() = duplicates;
        check_prompt_tools(&sources.prompts, &catalog, &self.providers, findings);
        marketplace.replace(catalog);
        *newest = Some((sources, changes));
    }

    /// Publishes a new snapshot of the same sources if a provider serves something else than before.
    pub(crate) fn refresh(&self) {
        let mut newest = self.newest.lock();
        let (Some(marketplace), Some((sources, included))) = (self.marketplace.upgrade(), &mut *newest)
        else {
            return;
        };
        let changes = self.changes();
        if changes == *included {
            return;
        }
        let mut findings = Findings::default();
        let (catalog, duplicates) = sources.catalog(&marketplace, &self.providers, &[], &mut findings);
        marketplace.refine(catalog);
        *included = changes;
        let known = std::mem::replace(&mut *self.duplicates.lock(), duplicates);
        findings.problems.retain(|problem| known.iter().all(|(_, text)| text != problem));
        // All other remarks were made when the sources were loaded.
        for problem in findings.problems {
            tracing::warn!("{problem}");
        }
    }

    /// Returns a snapshot of the newest sources that has these versions of capabilities in place of others, by the rules of
    /// this node. It is not published.
    pub(crate) fn with_versions(&self, versions: &[Version]) -> Option<Arc<Catalog>> {
        let newest = self.newest.lock();
        let (marketplace, (sources, _)) = (self.marketplace.upgrade()?, newest.as_ref()?);
        // All remarks were made when the sources were loaded.
        let mut findings = Findings::default();
        let (catalog, _) = sources.catalog(&marketplace, &self.providers, versions, &mut findings);
        Some(marketplace.variant(catalog))
    }

    /// Asks the providers for their capabilities if these are not known yet, and publishes them.
    pub(crate) async fn learn(&self) {
        join_all(self.providers.iter().map(|source| source.learn())).await;
        self.refresh();
    }

    /// Asks the providers as [`learn`](Self::learn) does, but waits only until one of them serves `name`: no other provider,
    /// however slow, delays a call of it.
    pub(crate) async fn learn_name(&self, name: &str) {
        let mut changes: Vec<_> = self.providers.iter().map(|source| source.changes()).collect();
        let mut learned = pin!(self.learn());
        loop {
            self.refresh();
            let Some(marketplace) = self.marketplace.upgrade() else { return };
            let snapshot = marketplace.snapshot();
            let availability = snapshot.get(name).map(|entry| &entry.policy.availability);
            if availability.is_some_and(|availability| *availability != Availability::Unlearned) {
                return;
            }
            drop(marketplace);
            let changed = select_all(changes.iter_mut().map(|changes| Box::pin(changes.changed())));
            tokio::select! {
                () = &mut learned => return,
                (Ok(()), ..) = changed => {}
            }
        }
    }

    /// Returns the names of the prompts, and those of the packages.
    pub(crate) fn names(&self) -> (Vec<String>, Vec<String>) {
        let newest = self.newest.lock();
        let Some((sources, _)) = &*newest else { return (Vec::new(), Vec::new()) };
        let prompts = sources.prompts.iter().map(|prompt| prompt.name.clone()).collect();
        (prompts, sources.installed.names())
    }

    fn changes(&self) -> Vec<u64> {
        self.providers.iter().map(|source| *source.changes().borrow()).collect()
    }
}

/// Tools after the changes that `tools` in the configuration makes.
#[derive(Default)]
struct Changed<'c> {
    /// The tools that keep their names.
    unrenamed: Vec<Tool>,
    renamed: Vec<(Tool, &'c Rename)>,
    /// Those with a name that belongs to the language.
    displaced: Vec<Tool>,
    /// The keys that would give one name or one description to several tools, with the id of the first
    /// tool.
    several: BTreeMap<&'c str, String>,
}

/// Applies the changes of the configuration to tools, and leaves out disabled tools.
fn change(config: &Config, tools: Vec<Tool>) -> Changed<'_> {
    let mut changed = Changed::default();
    for mut tool in tools {
        let (wider, own) = overrides(config, tool.id());
        let nearest_first = || own.into_iter().chain(wider.iter().rev().map(|(_, change)| *change));
        if nearest_first().find_map(|change| change.enabled) == Some(false) {
            continue;
        }
        for (name, change) in wider {
            apply(&mut tool.registration, name, change);
            if change.rename.is_some() || change.description.is_some() {
                changed.several.entry(name).or_insert_with(|| tool.id().to_owned());
            }
        }
        if let Some(change) = own {
            let name = tool.id().to_owned();
            apply(&mut tool.registration, &name, change);
            if let Some(description) = &change.description {
                tool.registration.manifest.description.clone_from(description);
            }
        }
        match own.and_then(|change| change.rename.as_ref()) {
            Some(rename) => changed.renamed.push((tool, rename)),
            None if program::IDS.contains(&tool.id()) => changed.displaced.push(tool),
            None => changed.unrenamed.push(tool),
        }
    }
    changed
}

impl Sources {
    fn catalog(
        &self,
        marketplace: &Arc<CapabilityMarketplace>,
        providers: &[Arc<dyn Source>],
        versions: &[Version],
        findings: &mut Findings,
    ) -> (Catalog, Vec<(String, String)>) {
        let config = &self.config;
        let mut builder = marketplace.builder(limits(config));
        let duplicates = self.add_tools(&mut builder, providers, versions, findings);
        findings.problems.extend(duplicates.iter().map(|(_, text)| text.clone()));
        findings.problems.extend(providers.iter().flat_map(|source| source.missing()));
        if let Some(allow) = &config.allow {
            builder.allow(allow.iter().map(Pattern::new).collect());
        }
        let disabled = own_ids()
            .filter(|id| config.tools.get(*id).is_some_and(|change| change.enabled == Some(false)));
        builder.deny(config.deny.iter().map(String::as_str).chain(disabled).map(Pattern::new).collect());
        if let Some(access) = &config.access {
            let mut access = config.policy_with_scopes(access);
            if config.policy_reveal {
                access.disclosure = Disclosure::Reveal;
            }
            builder.access(access);
        }
        config.expose.apply(&mut builder);
        let described = Arc::downgrade(marketplace);
        match Prompts::new(
            self.prompts.clone(),
            Box::new(move |tool, caller| description(&described, tool, caller)),
        ) {
            Ok(prompts) => builder.surface(Arc::new(prompts)),
            Err(err) => findings.problems.push(format!("the prompts cannot be served: {err}")),
        }
        let surfaces = providers.iter().flat_map(|source| source.surfaces());
        let may = |owner: &str| self.rules.may_surface(owner) && self.installed.may_surface(owner);
        let mut surfaces: Vec<_> = surfaces.filter(|surface| may(surface.owner())).collect();
        // Of two with the same resource, the first one answers.
        surfaces.sort_by(|one, other| one.owner().cmp(other.owner()));
        surfaces.into_iter().for_each(|surface| {
            builder.surface(surface);
        });
        (builder.build(), duplicates)
    }

    /// Returns the tools to serve. If ids are equal, the declarations of the configuration come before
    /// the tools of the directory, both before the tools of providers, all tools of this node before
    /// built-ins, and built-ins before the tools of other nodes. `versions` replace tools with their ids.
    fn gather(&self, providers: &[Arc<dyn Source>], versions: &[Version]) -> Vec<Tool> {
        let declared = self.declared.iter();
        let declared = declared.map(|one| Tool { registration: one.value.clone(), at: Some(one.at) });
        let mut tools: Vec<Tool> = declared.collect();
        tools.extend(self.tools.iter().cloned().map(Tool::from));
        let is_far =
            |registration: &Registration| orla_cluster::is_of_nodes(&registration.manifest.provider);
        let (mut far, mut near, mut near_sources) = (Vec::new(), Vec::new(), Vec::new());
        for source in providers {
            let registrations = source.registrations();
            if registrations.iter().any(is_far) {
                far.extend(registrations);
            } else {
                near.extend(registrations);
                near_sources.push(source);
            }
        }
        tools.extend(near.into_iter().map(Tool::from));
        let without = providers.iter().flat_map(|source| source.owners_without_tools());
        self.installed.hold_back(tools.iter_mut().map(|tool| &mut tool.registration), without);
        let ids = |tools: &[Tool]| -> HashSet<String> {
            tools.iter().map(|tool| tool.id().to_owned()).collect()
        };
        let here = ids(&tools);
        let unserved = self.installed.unserved().into_iter();
        tools.extend(unserved.filter(|one| !here.contains(&one.manifest.id)).map(Tool::from));
        let named = ids(&tools);
        let builtins = self.builtins.iter().filter(|builtin| !named.contains(&builtin.manifest.id));
        tools.extend(builtins.cloned().map(Tool::from));
        // Only these have versions. Each instance provides the others itself.
        let is_shareable = |id: &str| named.contains(id) && own_ids().all(|own| own != id);
        // A capability of this node takes precedence over the same capability of another node, and so do
        // capabilities that each instance provides itself.
        let mut own = ids(&tools);
        own.extend(own_ids().map(str::to_owned));
        // Names below a server's name belong to that server, even while it is down. A server without a
        // prefix has no such name.
        near_sources.retain(|near| !near.may_serve(NO_NAME));
        let is_free =
            |id: &str| !own.contains(id) && !near_sources.iter().any(|near| near.may_serve(id));
        let far = far.into_iter().filter(|registration| is_free(&registration.manifest.id));
        tools.extend(far.map(Tool::from));
        // Once no node offers a version, a node that has the capability itself calls its own.
        let replaces = |version: &&Version| {
            let id = &version.registration.manifest.id;
            is_free(id) || (version.is_offered && is_shareable(id))
        };
        let versions: Vec<&Version> = versions.iter().filter(replaces).collect();
        let replaced: HashSet<&str> =
            versions.iter().map(|version| version.registration.manifest.id.as_str()).collect();
        tools.retain(|tool| !replaced.contains(tool.id()));
        tools.extend(versions.into_iter().map(|version| Tool::from(version.registration.clone())));
        tools
    }

    /// Removes tools with the id of an earlier tool, and reports both origins.
    fn without_duplicates(&self, tools: Vec<Tool>) -> (Vec<Tool>, Vec<(String, String)>) {
        let (mut kept, mut duplicates) = (Vec::<Tool>::with_capacity(tools.len()), Vec::new());
        let mut places = HashMap::with_capacity(tools.len());
        for tool in tools {
            let id = tool.id().to_owned();
            match places.entry(id.clone()) {
                Entry::Vacant(place) => {
                    place.insert(kept.len());
                    kept.push(tool);
                }
                Entry::Occupied(first) => {
                    let (one, other) =
                        (kept[*first.get()].place(&self.config), tool.place(&self.config));
                    let text = format!(
                        "{id}: two have this id: {one}, and {other}, which is not served; give one of them another name"
                    );
                    duplicates.push((id, self.redaction.text(&text).into_owned()));
                }
            }
        }
        (kept, duplicates)
    }

    /// Registers all tools with the changes of `tools` in the configuration. Returns the capabilities
    /// that are not served because their ids are taken.
    fn add_tools(
        &self,
        builder: &mut CatalogBuilder,
        providers: &[Arc<dyn Source>],
        versions: &[Version],
        findings: &mut Findings,
    ) -> Vec<(String, String)> {
        let config = &self.config;
        let (tools, duplicates) = self.without_duplicates(self.gather(providers, versions));
        let is_named = !config.tools.is_empty() || config.allow.is_some() || !config.deny.is_empty();
        let (names, capsules) = if is_named { names_of(&tools) } else { Default::default() };
        let Changed { unrenamed, renamed, mut displaced, several } = change(config, tools);
        // The routes and tasks that run programs find the language by its ids.
        let mut taken: HashSet<String> = program::IDS.map(str::to_owned).into();
        for tool in unrenamed {
            taken.insert(tool.id().to_owned());
            self.register(builder, tool, findings);
        }
        for (name, id) in several {
            let text = format!(
                "tools.{name}: `rename` and `description` are for one tool, and {name} has several; write them into `tools.{}`",
                mcp_name(&id)
            );
            findings.problems.push(placed(config, config.tools[name].at, text));
        }
        // Last, because a name that a tool has by itself is not given to another.
        for (mut tool, rename) in renamed {
            let id = tool.id().to_owned();
            if taken.insert(rename.to.clone()) {
                tool.rename(rename.to.clone());
            } else {
                let text = format!(
                    "tools.{id}.rename: another tool is called {}; {id} keeps its name",
                    rename.to
                );
                findings.problems.push(placed(config, Some(rename.at), text));
                if program::IDS.contains(&&*id) {
                    displaced.push(tool);
                    continue;
                }
            }
            self.register(builder, tool, findings);
        }
        for mut tool in displaced {
            let id = tool.id().to_owned();
            let mut names = (2_u64..).map(|number| format!("{id}_{number}"));
            let Some(free) = names.find(|name| !taken.contains(name)) else { continue };
            let kind = tool.registration.manifest.provider.kind();
            let text = format!("{id}: this name is that of the language; the {kind} is called {free}");
            findings.warnings.push(placed(config, tool.at, text));
            taken.insert(free.clone());
            tool.rename(free);
            self.register(builder, tool, findings);
        }
        self.name_unknown(&names, &capsules, providers, findings);
        if providers.iter().all(|provider| provider.registrations().is_empty()) {
            self.name_idle_patterns(&names, findings);
        }
        duplicates
    }

    /// Warns of patterns in `allow` and `deny` that match no name. Does not warn if there are providers
    /// whose capabilities are not known yet.
    fn name_idle_patterns(&self, names: &HashSet<String>, findings: &mut Findings) {
        let config = &self.config;
        let is_everything_known = self.denied.is_empty()
            && self.installed.is_empty()
            && config.servers.is_empty()
            && config.plugins.is_empty()
            && config.remotes.is_empty()
            && config.cluster.is_none()
            && config.agents.is_empty()
            && config.documents.is_empty()
            && self.declared.is_empty();
        if !is_everything_known {
            return;
        }
        let lists = [("allow", config.allow.as_deref().unwrap_or_default()), ("deny", &*config.deny)];
        for (key, patterns) in lists {
            for text in patterns.iter().take(MAX_NAMED) {
                let pattern = Pattern::new(text);
                let renamed = config.tools.values().filter_map(|change| change.rename.as_ref());
                let renamed = renamed.map(|rename| rename.to.as_str());
                let mut all = names.iter().map(String::as_str).chain(renamed).chain(own_ids());
                if !all.any(|name| pattern.covers(name)) {
                    let hint = suggestion(text, names.iter().map(String::as_str));
                    let problem = config.problem(key, format!("{key}: {text} matches no tool{hint}"));
                    findings.warnings.push(problem.to_string());
                }
            }
        }
    }

    /// Registers a capability. One whose schema cannot be enforced is unavailable. One without an attestation is
    /// left out if attestations are required.
    fn register(&self, builder: &mut CatalogBuilder, tool: Tool, findings: &mut Findings) {
        let Tool { mut registration, at } = tool;
        if registration.manifest.description.trim().is_empty() {
            registration.manifest.description = description_of(&registration.manifest.provider);
        }
        // Before the rules, which compare the manifest with the attested one.
        self.redact(&mut registration);
        if !self.rules.apply(&mut registration, findings) {
            return;
        }
        self.redact(&mut registration);
        let Err(rejected) = builder.offer(registration) else { return };
        let problem = placed(&self.config, at, rejected.error.to_string());
        let problem = self.redaction.text(&problem).into_owned();
        let Rejected { error, mut registration } = *rejected;
        if let RegistrationError::InputSchema { .. } | RegistrationError::OutputSchema { .. } = error {
            registration.policy = registration.policy.unavailable(&problem);
            // It is unchanged except for the schema, which is not read again.
            drop(builder.offer(registration));
        }
        findings.problems.push(problem);
    }

    /// Replaces secrets in all texts of a capability before it is published. The words of its
    /// permissions are compared with the policy unchanged. A secret in them is replaced where they are
    /// shown.
    fn redact(&self, registration: &mut Registration) {
        let Registration { manifest, policy } = registration;
        let all = &self.redaction;
        if all.is_empty() && policy.redaction.is_none() {
            return;
        }
        let requires = manifest.provider.requires();
        if manifest.permissions.iter().chain(&requires).any(|word| all.finds(word)) {
            policy.redaction = Redactor::united(policy.redaction.take(), Some(all));
        }
        for redactor in policy.redaction.iter().chain([all]) {
            manifest.redact(redactor);
            if let Availability::Unavailable { reason } = &mut policy.availability {
                redactor.replace(reason);
            }
        }
    }

    /// Reports names in `tools` that no tool has. A confinement may have the name of a capsule.
    fn name_unknown(
        &self,
        names: &HashSet<String>,
        capsules: &HashSet<String>,
        providers: &[Arc<dyn Source>],
        findings: &mut Findings,
    ) {
        let config = &self.config;
        let unknown = |(name, change): &(&String, &ToolOverride)| {
            let is_confined_as_renamed = is_name_to_be(config, name) && change.is_confinement_alone();
            let of_several = Pattern::new(*name);
            let is_confining = change.declared != Declared::default();
            // A server's own declaration confines it, and no setting here does.
            let may_be_of_several = || !is_confining && may_be_served(providers, &format!("{name}."));
            // A confinement is for a name that there is, as soon as the others beside it are known.
            let is_beside_others = || {
                let container = name.rsplit_once('.').map(|(container, _)| Pattern::new(container));
                container.is_some_and(|container| names.iter().any(|served| container.is_above(served)))
            };
            let may_be_served =
                || may_be_served(providers, name) && !(is_confining && is_beside_others());
            let switch =
                ToolOverride { enabled: change.enabled, at: change.at, ..ToolOverride::default() };
            let is_switched = own_ids().any(|own| own == *name) && **change == switch;
            let is_known = names.contains(*name)
                || is_confining && capsules.contains(*name)
                || is_switched
                || self.denied.iter().any(|denied| NameRules::default().may_serve(denied, name))
                || names.iter().any(|served| of_several.is_above(served))
                || may_be_served()
                || may_be_of_several();
            !is_known && !is_confined_as_renamed
        };
        let mut unknown = config.tools.iter().filter(unknown);
        for (name, change) in unknown.by_ref().take(MAX_NAMED) {
            let hint = suggestion(name, names.iter().map(String::as_str));
            let text = format!("tools.{name}: no tool has this name{hint}");
            // A confinement without any effect is unintended.
            let is_confining = change.declared != Declared::default();
            let list = if is_confining { &mut findings.problems } else { &mut findings.warnings };
            list.push(placed(config, change.at, text));
        }
        let more = unknown.count();
        if more > 0 {
            findings.warnings.push(format!("tools: no tool has any of {more} more names"));
        }
    }
}

/// A capability to register, and where it is declared.
struct Tool {
    registration: Registration,
    at: Option<Position>,
}

impl Tool {
    fn id(&self) -> &str {
        &self.registration.manifest.id
    }

    /// Where it comes from, for people.
    fn place(&self, config: &Config) -> String {
        if let Some(at) = self.at {
            return placed(config, Some(at), "the declaration".to_owned());
        }
        let provider = &self.registration.manifest.provider;
        if let ProviderType::Custom(custom) = provider
            && let ContentSource::File(path) | ContentSource::Directory(path) = custom.content()
        {
            return path.display().to_string();
        }
        let needs = provider.requires();
        let what = needs.first().and_then(|word| word.split_once(':')).map_or("", |(_, what)| what);
        format!("the {} {what}", provider.kind()).trim_end().to_owned()
    }

    fn rename(&mut self, to: String) {
        let manifest = &mut self.registration.manifest;
        if manifest.name == manifest.id {
            manifest.name.clone_from(&to);
        }
        manifest.id = to;
    }
}

impl From<Registration> for Tool {
    fn from(registration: Registration) -> Self {
        Self { registration, at: None }
    }
}

/// Returns the ids that each instance serves itself: search and the language.
fn own_ids<'a>() -> impl Iterator<Item = &'a str> {
    discovery::IDS.into_iter().chain(program::IDS)
}

/// Returns whether a tool gets this name by `rename`.
fn is_name_to_be(config: &Config, name: &str) -> bool {
    let renames = config.tools.values().filter_map(|change| change.rename.as_ref());
    renames.into_iter().any(|rename| rename.to == name)
}

/// Returns whether a provider may turn out to serve a tool of this name.
fn may_be_served(providers: &[Arc<dyn Source>], name: &str) -> bool {
    providers.iter().any(|source| source.may_serve(name))
}

/// Returns the ids and names of tools, and those of the capsules among them.
fn names_of(tools: &[Tool]) -> (HashSet<String>, HashSet<String>) {
    let both = |id: String| [mcp_name(&id), id];
    let capsules = tools.iter().filter_map(|tool| capsule_of(&tool.registration.manifest.provider));
    let names = tools.iter().map(|tool| tool.id().to_owned());
    (names.flat_map(both).collect(), capsules.flat_map(both).collect())
}

/// Returns the changes of the configuration to the tool with this id: by the names of its containers,
/// the widest first, and by its own name.
fn overrides<'c>(
    config: &'c Config,
    id: &str,
) -> (Vec<(&'c String, &'c ToolOverride)>, Option<&'c ToolOverride>) {
    let names = id.match_indices('.').map(|(dot, _)| &id[..dot]);
    let wider = names.filter_map(|name| config.tools.get_key_value(name)).collect();
    (wider, config.change_of(id))
}

/// Applies the changes of `tools.KEY` to a tool, apart from its name and its description.
fn apply(registration: &mut Registration, key: &str, change: &ToolOverride) {
    if let Some(timeout) = change.timeout {
        registration.policy = registration.policy.clone().with_timeout(timeout);
    }
    if let Some(support) = change.task {
        registration.manifest.set_task_support(support);
    }
    if change.declared != Declared::default()
        && let Err(reason) = is_confined_by(key, &registration.manifest)
    {
        registration.policy = registration.policy.clone().unavailable(reason);
    }
    registration.policy.max_concurrency = change.max_concurrency.or(registration.policy.max_concurrency);
    if change.max_concurrency.is_some() {
        registration.policy.concurrency_scope = change.scope.unwrap_or_default();
    }
    registration.policy.retries = change.retries.or(registration.policy.retries);
}

/// Checks that the confinement in `tools.KEY` is that of the process behind a tool. A process is confined when it is declared, by
/// the name of its tool or its package.
///
/// # Errors
/// The reason why it is not, and where to write the confinement.
fn is_confined_by(key: &str, manifest: &CapabilityManifest) -> Result<(), String> {
    let provider = &manifest.provider;
    // A program in RTFS has no process, and refuses `limits` itself.
    let is_tool =
        provider.settings::<ToolProvider>().is_ok() || provider.settings::<ProgramFile>().is_ok();
    let Some(declared) = capsule_of(provider).or_else(|| is_tool.then(|| manifest.id.clone())) else {
        let text = "`permissions`, `limits` and `sandbox_fallback` of `tools` confine tools and packages alone; for a plugin or an \
                    MCP server, write them in its entry of `plugins` or `mcpServers`";
        return Err(text.to_owned());
    };
    if key == declared || key == mcp_name(&declared) {
        return Ok(());
    }
    Err(format!(
        "`permissions`, `limits` and `sandbox_fallback` of tools.{key} confine no process; write them in tools.{declared}"
    ))
}

fn placed(config: &Config, at: Option<Position>, text: String) -> String {
    match at {
        Some(at) => config.placed(at, text),
        None => text,
    }
}

/// Warns of tools that a prompt names and that are not served.
fn check_prompt_tools(
    prompts: &[Prompt],
    catalog: &Catalog,
    providers: &[Arc<dyn Source>],
    findings: &mut Findings,
) {
    for prompt in prompts {
        for (tool, at) in &prompt.tools {
            if catalog.get(tool).is_none() && !may_be_served(providers, tool) {
                let near = catalog.similar(tool).into_iter().next();
                let hint = near.map(|near| format!(", did you mean {near}?")).unwrap_or_default();
                let message = format!("tools: no tool {tool} is served{hint}");
                let found = Finding { path: prompt.path.clone(), at: Some(*at), message };
                findings.warnings.push(found.to_string());
            }
        }
    }
}

fn description(
    marketplace: &Weak<CapabilityMarketplace>,
    tool: &str,
    caller: Option<&Principal>,
) -> Option<String> {
    let catalog = marketplace.upgrade()?.snapshot();
    Some(catalog.visible(caller, tool)?.manifest.description.clone())
}

/// Returns the limits of concurrency and time.
pub(crate) fn limits(config: &Config) -> Limits {
    let mut limits = Limits::default();
    limits.timeout = config.timeout;
    limits.listing_timeout = config.listing_timeout;
    limits.max_concurrency = config.max_concurrency;
    // Rounded up, so that one provider uses all of a few permits.
    let share = config.max_concurrency as f64 * config.max_provider_share;
    // The product may be a little more than what was written.
    limits.max_provider_calls = (share - 1e-9).ceil() as usize;
    limits.max_memory_bytes = match config.max_memory_bytes {
        0 => memory::available() / 4,
        bytes => bytes,
    };
    limits.max_queue = config.max_queue;
    limits.programs = config.programs.limits();
    limits
}
