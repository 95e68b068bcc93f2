//! Converts another instance's catalogue to capabilities of this one. Pure.

use bytes::Bytes;
use orla_marketplace::{
    CapabilityManifest, ProviderType, Registration, RemoteRTFSCapability, millis_down,
};
use orla_mcp::answer::{ListedTool, ToolPage};
use orla_mcp::describe;
use orla_mcp::object::trusted;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;

use super::settings::RemoteSettings;

/// The maximum number of capabilities that are taken from one instance.
pub(super) const MAX_CAPABILITIES: usize = 10_000;
/// The maximum number of instances that a capability may have passed through.
const MAX_VIA: usize = orla_marketplace::Hops::MAX;
/// The maximum length of a version, and of an instance's name, in bytes.
const MAX_WORD: usize = 128;
/// The maximum length of an id, in bytes.
const MAX_ID: usize = 256;

/// A parsed catalogue.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Listing {
    /// The version for the next request.
    pub(super) version: String,
    pub(super) capabilities: Vec<Listed>,
    /// The number of capabilities that cannot be used.
    pub(super) left_out: usize,
}

/// One capability of the other instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) id: String,
    /// The instances that it comes from, the nearest first.
    pub(super) via: Vec<Arc<str>>,
    /// The description in the form of MCP.
    pub(super) tool: Box<str>,
}

#[derive(Deserialize)]
struct Page<'a> {
    version: String,
    #[serde(borrow)]
    capabilities: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct One<'a> {
    id: String,
    via: Vec<Arc<str>>,
    #[serde(borrow)]
    tool: &'a RawValue,
}

/// Parses a catalogue: the capabilities that `settings` serve and that have not passed through `own`.
///
/// # Errors
/// The body is not a catalogue.
pub(super) fn read(body: &Bytes, settings: &RemoteSettings, own: &str) -> Result<Listing, String> {
    let page: Page<'_> =
        serde_json::from_slice(body).map_err(|err| format!("invalid catalogue: {err}"))?;
    if page.version.len() > MAX_WORD {
        return Err("invalid catalogue: its version is too long".to_owned());
    }
    let (mut capabilities, mut left_out) = (Vec::new(), 0);
    for raw in page.capabilities {
        let Ok(one) = serde_json::from_str::<One<'_>>(raw.get()) else {
            left_out += 1;
            continue;
        };
        // A capability of this instance would call itself.
        if one.via.iter().any(|instance| &**instance == own) || !settings.names.serves(&one.id) {
            continue;
        }
        let is_plain =
            !one.id.is_empty() && one.id.len() <= MAX_ID && !one.id.contains(char::is_control);
        let is_near = one.via.len() < MAX_VIA && one.via.iter().all(|name| name.len() <= MAX_WORD);
        if !is_plain || !is_near || capabilities.len() == MAX_CAPABILITIES {
            left_out += 1;
            continue;
        }
        capabilities.push(Listed { id: one.id, via: one.via, tool: one.tool.get().into() });
    }
    Ok(Listing { version: page.version, capabilities, left_out })
}

/// Returns a capability that calls `listed` at the other instance.
pub(super) fn registration(settings: &RemoteSettings, listed: &Listed) -> Option<Registration> {
    let timeout_ms = settings.timeout.map_or(0, milliseconds);
    let mut remote =
        RemoteRTFSCapability::new(settings.url.as_str(), timeout_ms, settings.token.clone());
    remote.options.capability = Some(listed.id.clone());
    remote.options.name = Some(settings.name.as_str().into());
    remote.options.via.clone_from(&listed.via);
    remote.options.sign_in = settings.sign_in.as_deref().map(Into::into);
    let tool = tool(&listed.tool)?;
    let id = settings.names.id_of(&settings.name, &listed.id);
    let manifest = CapabilityManifest::new(id, "", ProviderType::RemoteRTFS(remote));
    let mut registration = Registration::from(manifest);
    describe(&mut registration, &tool, false);
    registration.policy.timeout = settings.timeout;
    registration.policy.upstream = Some(format!("remote:{}", settings.name).into());
    registration.policy.redaction.clone_from(&settings.redaction);
    Some(registration)
}

/// Parses one tool as a page with a single entry.
fn tool(text: &str) -> Option<ListedTool> {
    let page = trusted(format!(r#"{{"tools":[{text}]}}"#));
    ToolPage::read(&page).ok()?.tools.into_iter().next()
}

fn milliseconds(time: Duration) -> u64 {
    millis_down(time).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orla_marketplace::ANNOTATIONS;
    use orla_marketplace::id::Pattern;
    use proptest::prelude::*;

    fn settings() -> RemoteSettings {
        let mut settings = RemoteSettings::new("b", "http://b:1");
        settings.names.exclude = vec![Pattern::new("hidden.*")];
        settings
    }

    fn read_text(text: &str) -> Result<Listing, String> {
        read(&Bytes::copy_from_slice(text.as_bytes()), &settings(), "me")
    }

    #[test]
    fn own_capabilities_are_left_out_of_a_listing() {
        let one = |id: &str, via: &[&str]| serde_json::json!({"id": id, "via": via, "tool": {"name": id, "inputSchema": {"type": "object"}}});
        let far: Vec<String> = (0..9).map(|number| format!("i{number}")).collect();
        let far: Vec<&str> = far.iter().map(String::as_str).collect();
        let all = serde_json::json!({"version": "b-1", "instance": "b", "capabilities": [
            one("x", &["b"]), one("c.y", &["b", "c"]), one("a.z", &["b", "me"]), one("hidden.w", &["b"]),
            one("far", &far), one("", &["b"]), {"id": 7},
        ]});
        let listing = read_text(&all.to_string()).unwrap();
        let ids: Vec<&str> = listing.capabilities.iter().map(|one| one.id.as_str()).collect();
        assert_eq!((ids, listing.left_out), (vec!["x", "c.y"], 3));
        assert_eq!(listing.version, "b-1");
    }

    #[test]
    fn a_capability_is_described_here_as_it_is_there() {
        let tool = r#"{"name": "x", "title": "X", "description": "Does x.", "annotations": {"readOnlyHint": true},
            "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}}, "icons": []}"#;
        let listed = Listed { id: "x".into(), via: vec!["b".into()], tool: tool.into() };
        let mut settings = settings();
        settings.timeout = Some(Duration::from_secs(2));
        settings.token = Some("hush".into());
        let Registration { manifest, policy } = registration(&settings, &listed).unwrap();
        assert_eq!((manifest.id.as_str(), manifest.description.as_str()), ("b.x", "Does x."));
        assert!(manifest.input_schema.is_some() && manifest.is_idempotent());
        assert_eq!(manifest.metadata[ANNOTATIONS], r#"{"readOnlyHint":true}"#);
        assert_eq!(policy.timeout, Some(Duration::from_secs(2)));
        assert_eq!(manifest.provider.requires(), ["net:b:1"]);
        assert_eq!(manifest.provider.via().len(), 1);
        assert!(!format!("{manifest:?}").contains("hush"));
        let broken = Listed { id: "x".into(), via: Vec::new(), tool: "7".into() };
        assert!(registration(&settings, &broken).is_none());
    }

    proptest! {
        #[test]
        fn any_catalogue_can_be_read(text in r#"[\{\}\[\]",:a-z0-9 ]{0,80}"#, tool in r#"[\{\}\[\]",:a-z0-9 ]{0,40}"#) {
            let _ = read_text(&text);
            let listed = Listed { id: "x".into(), via: Vec::new(), tool: tool.into() };
            let _ = registration(&settings(), &listed);
        }
    }
}
