//! `orla attest`: attests the current state of capabilities, and creates the key for attestations.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use orla_marketplace::Entry;
use orla_marketplace::attestation::{ContentSource, SigningKey, Validity, format_instant, sign};

use crate::app::App;
use crate::config::{Config, FileChange, Readers, Source, read_text, reason};
use crate::governance::{attestations_file, load_attestations, print_attestations, subject};
use crate::{Failure, cli, render};

/// The largest key file that is read.
const MAX_KEY: u64 = 64 * 1024;
/// Seconds of a day.
const DAY: u64 = 86_400;

pub(crate) fn run(attest: &cli::Attest, source: &Source) -> Result<(), Failure> {
    if let Some(path) = &attest.new_key {
        return new_key(path, attest.authority.as_deref());
    }
    let Some(path) = &attest.key else {
        return Err(Failure::usage("no key: give --key FILE, or make one with --new-key FILE"));
    };
    let mut config = super::load(source)?;
    let _log = super::log(&config);
    // Capabilities without an attestation must be visible.
    config.governance.require_attestation = false;
    let key = read_key(path)?;
    let authority = authority(attest, &config, &key)?;
    super::small_runtime()?.block_on(vouch(attest, &config, &authority, &key))
}

async fn vouch(
    attest: &cli::Attest,
    config: &Config,
    authority: &str,
    key: &SigningKey,
) -> Result<(), Failure> {
    let app = App::build(config)?;
    app.marketplace().prepare_listing().await;
    let result = vouch_for_all(attest, config, authority, key, &app);
    app.end_providers().await;
    result
}

fn vouch_for_all(
    attest: &cli::Attest,
    config: &Config,
    authority: &str,
    key: &SigningKey,
    app: &App,
) -> Result<(), Failure> {
    let catalog = app.marketplace().snapshot();
    let mut chosen: Vec<&Entry> = Vec::new();
    for name in &attest.names {
        let entry = catalog
            .get(name)
            .ok_or_else(|| Failure::failed(crate::commands::not_served(&catalog, name)))?;
        chosen.push(entry);
    }
    if attest.names.is_empty() {
        chosen
            .extend(catalog.entries().iter().map(|entry| &**entry).filter(|entry| !is_built_in(entry)));
    }
    let out = attest.out.clone().unwrap_or_else(|| attestations_file(config));
    let change = FileChange::begin(&out, Readers::Anyone).map_err(Failure::failed)?;
    let mut attestations = load_attestations(&out).map_err(Failure::failed)?;
    let created_at = SystemTime::now();
    let expires_at = attest.expires.map(|days| created_at + Duration::from_secs(u64::from(days) * DAY));
    let mut problems = Vec::new();
    let mut made = 0;
    for entry in chosen {
        let id = &entry.manifest.id;
        if is_built_in(entry) {
            problems.push(format!("{id} is built in, and needs no attestation"));
            continue;
        }
        let Some(custody) = &entry.policy.custody else { continue };
        match subject(&entry.manifest, custody) {
            Ok(subject) => {
                let validity = Validity { authority: authority.to_owned(), created_at, expires_at };
                attestations.insert(id.clone(), sign(&subject, validity, key));
                render::line(&format!("{id}  {}", subject.content_hash));
                made += 1;
            }
            Err(why) => problems.push(format!("{id} cannot be attested: {why}")),
        }
    }
    if made > 0 {
        change.save(&print_attestations(&attestations)).map_err(Failure::failed)?;
        let until = expires_at.map(|at| format!(" until {}", format_instant(at))).unwrap_or_default();
        let plural = if made == 1 { "capability" } else { "capabilities" };
        render::note(&format!("{authority} attested {made} {plural}{until}: {}", out.display()));
    } else if problems.is_empty() {
        render::note("Nothing is served that could be attested.");
    }
    if config.governance.trusted_keys.get(authority) != Some(&key.public()) {
        render::note(&format!("For this to count, orla.yaml needs:\n{}", trusted(authority, key)));
    }
    if problems.is_empty() { Ok(()) } else { Err(Failure::failed_with(problems)) }
}

fn is_built_in(entry: &Entry) -> bool {
    entry.manifest.provider.content() == ContentSource::Program
}

/// Returns the authority of the key: the given one, or else its name in the configuration.
fn authority(attest: &cli::Attest, config: &Config, key: &SigningKey) -> Result<String, Failure> {
    let keys = &config.governance.trusted_keys;
    let public = key.public();
    if let Some(authority) = &attest.authority {
        if keys.get(authority).is_some_and(|known| *known != public) {
            let text = format!("trusted_keys has another key for {authority}");
            return Err(Failure::failed(text));
        }
        return Ok(authority.clone());
    }
    keys.iter()
        .find(|(_, known)| **known == public)
        .map(|(name, _)| name.clone())
        .ok_or_else(|| Failure::usage("the key is not in trusted_keys: give --authority NAME"))
}

fn read_key(path: &Path) -> Result<SigningKey, Failure> {
    let text = read_text(path, MAX_KEY).map_err(Failure::failed)?;
    SigningKey::parse(&text).map_err(|err| Failure::failed(format!("{}: {err}", path.display())))
}

/// Makes a key that only its owner can read, and prints how to trust it.
fn new_key(path: &Path, authority: Option<&str>) -> Result<(), Failure> {
    let (key, text) = SigningKey::generate().map_err(|err| Failure::failed(err.to_string()))?;
    let failed = |err: std::io::Error| {
        Failure::failed(format!(
            "{} cannot be written: {}; name a file that does not exist yet",
            path.display(),
            reason(&err)
        ))
    };
    let mut options = OpenOptions::new();
    // An existing key is never overwritten.
    let mut file = options.write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.map_err(|err| {
        // Half a key would block the next attempt.
        let _ = std::fs::remove_file(path);
        failed(err)
    })?;
    render::out(&trusted(authority.unwrap_or("me"), &key));
    render::note(&format!(
        "{} is the secret half: keep it, and keep it away from the server.",
        path.display()
    ));
    Ok(())
}

/// Returns the lines of the configuration that trust the key.
fn trusted(authority: &str, key: &SigningKey) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
    let name = match authority.chars().all(is_plain)
        && authority.starts_with(|c: char| c.is_ascii_alphabetic())
    {
        true => authority.to_owned(),
        // As JSON writes it, which YAML reads too.
        false => serde_json::Value::from(authority).to_string(),
    };
    format!("trusted_keys:\n  {name}: \"{}\"\n", key.public())
}
