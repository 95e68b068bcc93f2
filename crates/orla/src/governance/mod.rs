//! Attestations and provenance of the served capabilities, and the record of their calls (RTFS
//! capability system §3.1, §6).
//!
//! [`Rules`] apply to every capability before it is served: they fill in its provenance, verify its
//! attestation, and refuse it if a valid attestation is required and missing. [`audit`] records every
//! call.
//!
//! # How it works
//!
//! The files of a capability are read only when their hash is needed ([`content`]): to attest it, to
//! show its provenance, and at loading if there is an attestation for it. A start without attestations
//! reads nothing. All decisions are pure and in the marketplace's `attestation`, the audit's chain in
//! [`chain`].

mod attestations;
pub(crate) mod audit;
pub(crate) mod chain;
mod content;
pub(crate) mod head;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use orla_marketplace::attestation::{
    CONTENT_HASH, ContentSource, Custody, Definition, PublicKey, Subject, TrustedKeys, fits, is_current,
    signed, timely,
};
use orla_marketplace::{
    CapabilityAttestation, CapabilityManifest, CapabilityProvenance, ProviderType, Registration,
};
use orla_providers::builtin::SOURCE;
use orla_providers::capsule::{is_capsule, is_unlearned};
use orla_providers::mcp::{Reach, ServerSettings};
use parking_lot::Mutex;

pub(crate) use attestations::{Attestations, load as load_attestations, print as print_attestations};
use content::Contents;

use crate::config::Config;
use crate::findings::{Findings, NOT_SERVED};

/// Known content hashes and signatures, kept from one snapshot to the next.
#[derive(Clone, Default)]
pub(crate) struct Governance {
    contents: Arc<Contents>,
    signatures: Arc<Signatures>,
}

/// Attestations with a verified signature by these keys, by their signatures.
type Signatures = Mutex<HashMap<String, (CapabilityAttestation, PublicKey)>>;

/// The rules for the capabilities of one snapshot.
#[derive(Default)]
pub(crate) struct Rules {
    contents: Arc<Contents>,
    signatures: Arc<Signatures>,
    attestations: Attestations,
    keys: TrustedKeys,
    required: bool,
    /// The directory of the configuration.
    base: PathBuf,
    /// How MCP servers are reached, by their names.
    servers: BTreeMap<String, Definition>,
    /// The problems of invalid attestations, by id.
    broken: Mutex<BTreeMap<String, String>>,
    /// The MCP servers with at least one served tool.
    attested_servers: Mutex<BTreeSet<String>>,
}

/// The remark about a capability's attestation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is a part of orla and needs none.
    BuiltIn,
    /// One holds.
    Holds(CapabilityAttestation),
    /// There is no attestation.
    Missing,
    /// The attestation is invalid, for this reason.
    Broken(String),
}

impl Governance {
    /// Returns the rules of a configuration.
    ///
    /// # Errors
    ///
    /// Returns an error if the file of attestations exists but cannot be used.
    pub(crate) fn rules(&self, config: &Config) -> Result<Rules, String> {
        self.contents.tidy();
        let own = &config.governance;
        let base = config.file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
        let servers = config.servers.iter().map(|server| &server.value);
        let attestations = load_attestations(&attestations_file(config))?;
        let signatures: HashSet<&str> =
            attestations.values().map(|attestation| attestation.signature.as_str()).collect();
        let mut known = self.signatures.lock();
        known.retain(|signature, _| signatures.contains(signature.as_str()));
        drop(known);
        Ok(Rules {
            contents: Arc::clone(&self.contents),
            signatures: Arc::clone(&self.signatures),
            attestations,
            keys: own.trusted_keys.clone(),
            required: own.require_attestation,
            base: base.to_owned(),
            servers: servers.map(|server| (server.name.clone(), reached(server, base))).collect(),
            broken: Mutex::default(),
            attested_servers: Mutex::default(),
        })
    }
}

/// Returns the file with the attestations of a configuration; beside the configuration by default.
pub(crate) fn attestations_file(config: &Config) -> PathBuf {
    if !config.is_default("attestations") {
        return config.governance.attestations.clone();
    }
    let file = config.file.as_deref().unwrap_or(Path::new(""));
    file.with_file_name(attestations::DEFAULT_FILE)
}

impl Rules {
    /// Fills in the provenance and the attestation of a capability, and decides whether it may be served.
    pub(crate) fn apply(&self, registration: &mut Registration, findings: &mut Findings) -> bool {
        let manifest = &mut registration.manifest;
        let source = self.source(&manifest.provider);
        let is_built_in = source == ContentSource::Program;
        let declared = manifest.provenance.take();
        if is_built_in && declared.as_ref().is_some_and(|declared| declared.source == SOURCE) {
            // The registry's own values.
            (manifest.provenance, manifest.attestation) = (declared, None);
            return true;
        }
        let mut provenance = declared.clone().unwrap_or_else(|| CapabilityProvenance {
            source: source.name(),
            version: Some(manifest.version.clone()).filter(|version| !version.is_empty()),
            content_hash: String::new(),
            custody_chain: vec![source.name()],
            registered_at: SystemTime::now(),
        });
        // Computed on demand.
        provenance.content_hash.clear();
        let mut custody = Custody::new(self.contents.of(source, &self.base));
        let claimed =
            declared.map(|declared| declared.content_hash).filter(|claimed| !claimed.is_empty());
        if let Some(claimed) = claimed.filter(|claimed| custody.content_hash().as_ref() != Ok(claimed)) {
            findings.warnings.push(format!(
                "{}: provenance.content_hash is {claimed}, which is not the hash of its content",
                manifest.id
            ));
        }
        let is_to_come = self.stands_for_its_tools(manifest);
        let verdict = if is_built_in { Verdict::BuiltIn } else { self.verdict(manifest, &custody) };
        manifest.attestation = None;
        let id = manifest.id.clone();
        let refused = match verdict {
            Verdict::BuiltIn => None,
            Verdict::Holds(attestation) => {
                // The signed hash, not that of the present content.
                let hash = attestation.metadata.get(CONTENT_HASH).map(String::as_str);
                let until = attestation.expires_at;
                custody = custody.attested(hash.unwrap_or_default(), until, self.required);
                provenance.custody_chain.push(format!("attested by {}", attestation.authority));
                manifest.attestation = Some(attestation);
                None
            }
            Verdict::Missing => {
                Some("there is no attestation for it (see `orla attest --help`)".to_owned())
            }
            // The one of its only tool, whose description is not known yet; what can be checked of it holds.
            Verdict::Broken(reason) if is_to_come => Some(reason),
            Verdict::Broken(reason) => {
                let mut broken = self.broken.lock();
                broken.insert(id.clone(), reason.clone());
                if !self.required {
                    let text = format!("{id}: its attestation does not hold: {reason}");
                    findings.warnings.push(text);
                }
                Some(format!("its attestation does not hold: {reason}"))
            }
        };
        if !is_built_in {
            provenance.custody_chain.push(concat!("orla ", env!("CARGO_PKG_VERSION")).to_owned());
        }
        manifest.provenance = Some(provenance);
        registration.policy.custody = Some(custody);
        if let Some(server) = server_of(&manifest.provider)
            && (refused.is_none() || !self.required)
        {
            let mut attested = self.attested_servers.lock();
            attested.insert(server.to_owned());
        }
        match refused.filter(|_| self.required) {
            // The attestations belong to its tools, which are not known yet.
            Some(_) if is_to_come => false,
            Some(reason) => {
                findings
                    .problems
                    .push(format!("{id}{NOT_SERVED}, because require_attestation is set: {reason}"));
                false
            }
            None => true,
        }
    }

    /// Checks that a long-running process of this content may start. If attestations are required,
    /// an attestation must cover its current content, and the content must not have changed since
    /// `started`.
    ///
    /// # Errors
    ///
    /// Returns why it may not.
    pub(crate) fn may_start(
        &self,
        content: ContentSource,
        started: Option<SystemTime>,
    ) -> Result<(), String> {
        if self.required { self.check_attested(content, started) } else { Ok(()) }
    }

    /// Checks that an attestation covers the current content, and that the content has not changed since
    /// `started`.
    fn check_attested(&self, content: ContentSource, started: Option<SystemTime>) -> Result<(), String> {
        let content = self.contents.of(content, &self.base);
        let hash = content.hash()?;
        if started.is_some_and(|started| !content.is_unchanged_since(started)) {
            return Err("its files changed while it started, and require_attestation is set".to_owned());
        }
        let now = SystemTime::now();
        let is_about_it =
            |claim: &&CapabilityAttestation| claim.metadata.get(CONTENT_HASH) == Some(&hash);
        let mut claims = self.attestations.values().filter(is_about_it);
        match claims
            .any(|claim| is_current(claim) && timely(claim, now).is_ok() && self.signed(claim).is_ok())
        {
            true => Ok(()),
            false => {
                Err("there is no attestation for its current content, and require_attestation is set"
                    .to_owned())
            }
        }
    }

    /// Returns whether the prompts and resources of a server may be served: if attestations are
    /// required, only those of a server with a served tool.
    pub(crate) fn may_surface(&self, owner: &str) -> bool {
        let attested = self.attested_servers.lock();
        !self.required || !self.servers.contains_key(owner) || attested.contains(owner)
    }

    /// Returns whether starts need permission.
    pub(crate) fn is_required(&self) -> bool {
        self.required
    }

    /// Returns whether this is a capsule itself, before its tools are known, and the attestations belong
    /// to its tools.
    fn stands_for_its_tools(&self, manifest: &CapabilityManifest) -> bool {
        if self.attestations.is_empty() {
            return false;
        }
        let of_it = format!("{}.", manifest.id);
        if self.attestations.contains_key(&manifest.id) {
            let provider = &manifest.provider;
            return is_unlearned(provider) && self.check_attested(provider.content(), None).is_ok();
        }
        is_capsule(&manifest.provider) && self.attestations.keys().any(|id| id.starts_with(&of_it))
    }

    /// Returns why the attestation of the capability with this id was invalid when it was loaded.
    pub(crate) fn broken(&self, id: &str) -> Option<String> {
        self.broken.lock().get(id).cloned()
    }

    /// Returns the ids in the file of attestations.
    pub(crate) fn attested(&self) -> impl Iterator<Item = &str> {
        self.attestations.keys().map(String::as_str)
    }

    /// The attestation in the manifest takes precedence over the one in the file.
    fn verdict(&self, manifest: &CapabilityManifest, custody: &Custody) -> Verdict {
        let inline = manifest.attestation.as_ref();
        let claims = inline.into_iter().chain(self.attestations.get(&manifest.id));
        let mut verdict = Verdict::Missing;
        for claim in claims {
            match self.verify(manifest, custody, claim) {
                Ok(()) => return Verdict::Holds(claim.clone()),
                Err(reason) => {
                    if verdict == Verdict::Missing {
                        verdict = Verdict::Broken(reason);
                    }
                }
            }
        }
        verdict
    }

    fn verify(
        &self,
        manifest: &CapabilityManifest,
        custody: &Custody,
        claim: &CapabilityAttestation,
    ) -> Result<(), String> {
        // No file is read without a signature by a trusted key.
        self.signed(claim)?;
        timely(claim, SystemTime::now()).map_err(|flaw| flaw.to_string())?;
        fits(claim, &subject(manifest, custody)?).map_err(|flaw| flaw.to_string())
    }

    /// Checks the signature of a claim; a known result is not computed again.
    fn signed(&self, claim: &CapabilityAttestation) -> Result<(), String> {
        let key = self.keys.get(&claim.authority);
        let mut known = self.signatures.lock();
        if let Some((same, by)) = known.get(&claim.signature)
            && same == claim
            && Some(by) == key
        {
            return Ok(());
        }
        signed(claim, &self.keys).map_err(|flaw| flaw.to_string())?;
        if let Some(key) = key {
            known.insert(claim.signature.clone(), (claim.clone(), *key));
        }
        Ok(())
    }

    /// Returns the source of the capability. For a tool of a configured MCP server, the connection to
    /// the server.
    fn source(&self, provider: &ProviderType) -> ContentSource {
        if let ProviderType::MCP(mcp) = provider
            && let Some(server) = server_of(provider).and_then(|name| self.servers.get(name))
        {
            return ContentSource::Definition(server.clone().with("tool", mcp.tool_name.as_str()));
        }
        provider.content()
    }
}

/// Returns the configured MCP server that it is a tool of.
fn server_of(provider: &ProviderType) -> Option<&str> {
    match provider {
        ProviderType::MCP(mcp) => mcp.server_url.strip_prefix("mcp:"),
        _ => None,
    }
}

/// Returns a capability in its present state: the subject of an attestation.
///
/// # Errors
///
/// Returns why that is unknown, as one clause.
pub(crate) fn subject(manifest: &CapabilityManifest, custody: &Custody) -> Result<Subject, String> {
    let hash = custody.content_hash()?;
    Subject::new(manifest, hash).map_err(|err| err.to_string())
}

/// Returns how a server is reached, without secrets. A program below the configuration is named relative
/// to it, so that the same configuration in another directory is the same.
fn reached(server: &ServerSettings, base: &Path) -> Definition {
    match &server.reach {
        Reach::Process { command, args, env, cwd, .. } => {
            let from_base = |path: &Path| match path.strip_prefix(base) {
                Ok(below) if path.is_absolute() || !base.as_os_str().is_empty() => below.to_owned(),
                _ => path.to_owned(),
            };
            let command = from_base(Path::new(command));
            let definition = Definition::new(&format!("stdio:{}", command.display()))
                .with("args", args.clone())
                .with_names("env", env);
            match cwd {
                // What a relative path in the arguments leads to follows from it.
                Some(cwd) => definition.with("cwd", from_base(cwd).display().to_string()),
                None => definition,
            }
        }
        Reach::Http { url, headers } => Definition::new(url).with_names("headers", headers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orla_marketplace::attestation::{SigningKey, Validity, sign};
    use orla_marketplace::{LocalCapability, PluginCapability};
    use std::fs;
    use std::time::Duration;

    struct Setting {
        dir: tempfile::TempDir,
        key: SigningKey,
        rules: Rules,
    }

    impl Setting {
        fn new(required: bool) -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("program"), "1").unwrap();
            let key = SigningKey::generate().unwrap().0;
            let rules =
                Rules { keys: [("ops".to_owned(), key.public())].into(), required, ..Rules::default() };
            Self { dir, key, rules }
        }

        fn registration(&self) -> Registration {
            let path = self.dir.path().join("program").display().to_string();
            let provider = ProviderType::Plugin(PluginCapability::new(path, "f"));
            CapabilityManifest::new("a", "Does it.", provider).into()
        }

        fn attest(&mut self, expires_at: Option<SystemTime>) {
            let mut registration = self.registration();
            Rules::default().apply(&mut registration, &mut Findings::default());
            let custody = registration.policy.custody.as_ref().unwrap();
            let subject = subject(&registration.manifest, custody).unwrap();
            let created_at = SystemTime::now() - Duration::from_secs(60);
            let validity = Validity { authority: "ops".into(), created_at, expires_at };
            self.rules.attestations.insert("a".into(), sign(&subject, validity, &self.key));
        }

        fn load(&self) -> (bool, Registration, Findings) {
            let (mut registration, mut findings) = (self.registration(), Findings::default());
            let served = self.rules.apply(&mut registration, &mut findings);
            (served, registration, findings)
        }
    }

    #[test]
    fn a_valid_attestation_is_shown_and_served() {
        for required in [false, true] {
            let mut setting = Setting::new(required);
            setting.attest(None);
            let (served, registration, findings) = setting.load();
            assert!(served && findings.problems.is_empty() && findings.warnings.is_empty());
            assert_eq!(registration.manifest.attestation.unwrap().authority, "ops");
            let provenance = registration.manifest.provenance.unwrap();
            assert!(provenance.source.ends_with("/program"));
            assert_eq!(provenance.custody_chain[1], "attested by ops");
            assert!(registration.policy.custody.unwrap().holds());
        }
    }

    #[test]
    fn an_invalid_attestation_is_not_shown_and_if_required_not_served() {
        type Change = fn(&mut Setting);
        let cases: [(&str, Change, &str); 5] = [
            ("never attested", |s| s.rules.attestations.clear(), "there is no attestation for it"),
            (
                "the file changed",
                |s| fs::write(s.dir.path().join("program"), "2").unwrap(),
                "the content has changed",
            ),
            ("it is gone", |s| fs::remove_file(s.dir.path().join("program")).unwrap(), "does not exist"),
            ("it expired", |s| s.attest(Some(SystemTime::UNIX_EPOCH)), "expired"),
            ("the key is not trusted", |s| s.rules.keys.clear(), "not among trusted_keys"),
        ];
        for (name, change, says) in cases {
            for required in [false, true] {
                let mut setting = Setting::new(required);
                setting.attest(None);
                change(&mut setting);
                let (served, registration, findings) = setting.load();
                assert_eq!(served, !required, "{name}");
                assert_eq!(registration.manifest.attestation, None, "{name}");
                assert!(!registration.policy.custody.unwrap().holds(), "{name}");
                let said = [findings.problems, findings.warnings].concat().join("\n");
                assert_eq!(
                    said.contains(says),
                    required || says != "there is no attestation for it",
                    "{name}: {said}"
                );
            }
        }
    }

    #[test]
    fn built_ins_are_trusted_and_nothing_else_is() {
        let rules = Rules { required: true, ..Rules::default() };
        let mut findings = Findings::default();
        let provider = ProviderType::Local(LocalCapability::new("math.add"));
        let mut built_in = CapabilityManifest::new("math.add", "Adds.", provider).into();
        assert!(rules.apply(&mut built_in, &mut findings));
        assert_eq!(built_in.manifest.provenance.unwrap().source, "orla");
        assert!(findings.problems.is_empty());
    }

    #[test]
    fn an_attestation_in_the_manifest_is_checked_like_any_other() {
        let mut setting = Setting::new(true);
        setting.attest(None);
        let claim = setting.rules.attestations.remove("a").unwrap();
        let mut registration = setting.registration();
        registration.manifest.attestation = Some(claim.clone());
        assert!(setting.rules.apply(&mut registration, &mut Findings::default()));
        let mut forged = setting.registration();
        forged.manifest.attestation = Some(CapabilityAttestation { signature: "AAAA".into(), ..claim });
        assert!(!setting.rules.apply(&mut forged, &mut Findings::default()));
        assert_eq!(forged.manifest.attestation, None);
    }

    #[test]
    fn a_declared_provenance_is_kept_but_for_a_hash_that_is_not_true() {
        let setting = Setting::new(false);
        let declared = |hash: &str| CapabilityProvenance {
            source: "git:tools".into(),
            version: None,
            content_hash: hash.into(),
            custody_chain: vec!["me".into()],
            registered_at: SystemTime::UNIX_EPOCH,
        };
        let hash = orla_marketplace::attestation::hash_text(b"1");
        for (claimed, warnings) in [(hash.as_str(), 0), ("sha256:00", 1)] {
            let mut registration = setting.registration();
            registration.manifest.provenance = Some(declared(claimed));
            let mut findings = Findings::default();
            assert!(setting.rules.apply(&mut registration, &mut findings));
            assert_eq!(findings.warnings.len(), warnings, "{:?}", findings.warnings);
            let provenance = registration.manifest.provenance.unwrap();
            assert_eq!((&*provenance.source, &*provenance.content_hash), ("git:tools", ""));
            assert_eq!(provenance.custody_chain[0], "me");
            assert_eq!(registration.policy.custody.unwrap().content_hash(), Ok(hash.clone()));
        }
    }

    #[test]
    fn how_a_server_is_reached_holds_no_secret_and_no_place_of_this_machine() {
        let within = |command: &str, value: &str, cwd: Option<&str>| {
            let reach = Reach::Process {
                command: command.into(),
                args: vec!["-y".into()],
                env: [("TOKEN".to_owned(), value.to_owned())].into(),
                pass_env: Vec::new(),
                cwd: cwd.map(Into::into),
            };
            reached(&ServerSettings::new("s", reach), Path::new("/here")).to_json()
        };
        let process = |command: &str, value: &str| within(command, value, None);
        assert_ne!(within("npx", "a", Some("/one")), within("npx", "a", Some("/other")));
        assert!(within("npx", "a", Some("/here/sub")).contains("\"cwd\":\"sub\""));
        assert!(!process("npx", "CANARY").contains("CANARY"));
        assert_eq!(process("npx", "a"), process("npx", "b"));
        assert_ne!(process("npx", "a"), process("uvx", "a"));
        assert!(process("/here/bin/serve", "a").contains("stdio:bin/serve"));
        assert!(process("/usr/bin/serve", "a").contains("stdio:/usr/bin/serve"));
    }
}
