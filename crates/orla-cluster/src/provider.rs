//! A capability of other nodes as a provider here.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::{CapabilityManifest, CustomProvider, Listing, ProviderType, Registration};
use orla_mcp::answer::{ListedTool, ToolPage};
use orla_mcp::describe;
use orla_mcp::object::trusted;

use crate::presence::Offered;

/// The settings of a capability that other nodes offer.
#[derive(Debug)]
pub(crate) struct ClusterProvider {
    /// Its id there, which is its id here.
    pub(crate) id: String,
    /// The digest of its version.
    pub(crate) digest: String,
    /// Whether a call that may have begun can be made again.
    pub(crate) is_idempotent: bool,
    /// How long one call may take there, if that is said of it.
    pub(crate) timeout: Option<Duration>,
    /// The requirement of a call: a connection to NATS.
    pub(crate) requires: Arc<[String]>,
}

impl CustomProvider for ClusterProvider {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        "cluster"
    }

    fn requires(&self) -> Vec<String> {
        self.requires.to_vec()
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }
}

/// Returns whether other nodes run the capability of this provider.
pub fn is_of_nodes(provider: &ProviderType) -> bool {
    provider.settings::<ClusterProvider>().is_ok()
}

/// Returns a capability here that other nodes run. `None` if it does not describe itself as a tool.
pub(crate) fn registration(offered: &Offered, requires: &Arc<[String]>) -> Option<Registration> {
    let tool = tool(&offered.tool)?;
    let annotations = tool.annotations.as_ref().map(ToString::to_string).unwrap_or_default();
    let provider = ClusterProvider {
        id: offered.id.clone(),
        digest: offered.digest.clone(),
        is_idempotent: orla_marketplace::is_idempotent(&annotations),
        timeout: offered.timeout_ms.filter(|ms| *ms > 0).map(Duration::from_millis),
        requires: Arc::clone(requires),
    };
    let provider = ProviderType::Custom(Arc::new(provider));
    let mut registration =
        Registration::from(CapabilityManifest::new(offered.id.as_str(), "", provider));
    describe(&mut registration, &tool, false);
    if let Some(support) = offered.task {
        registration.manifest.set_task_support(support);
    }
    Some(registration)
}

/// Returns a capability in a version that no node offers. Its calls fail with that reason.
pub(crate) fn without_nodes(id: &str, digest: &str, requires: &Arc<[String]>) -> Registration {
    let provider = ClusterProvider {
        id: id.to_owned(),
        digest: digest.to_owned(),
        is_idempotent: false,
        timeout: None,
        requires: Arc::clone(requires),
    };
    let provider = ProviderType::Custom(Arc::new(provider));
    let mut registration = Registration::from(CapabilityManifest::new(id, "", provider));
    registration.policy.listing = Listing::Unlisted;
    registration
}

/// One tool, read as a page of one is.
fn tool(text: &str) -> Option<ListedTool> {
    let page = trusted(format!(r#"{{"tools":[{text}]}}"#));
    ToolPage::read(&page).ok()?.tools.into_iter().next()
}

/// Returns the permissions that a call over these servers needs.
pub(crate) fn requires(nats: &[String]) -> Arc<[String]> {
    let host = |address: &String| {
        let rest = address.split_once("://").map_or(address.as_str(), |(_, rest)| rest);
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        format!("net:{}", host.trim_end_matches('/'))
    };
    nats.iter().map(host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offered(tool: &str) -> Offered {
        let (id, tool, timeout_ms) = ("x".into(), tool.into(), Some(300_000));
        Offered { id, tool, task: None, timeout_ms, digest: "d".into() }
    }

    #[test]
    fn a_remote_capability_keeps_its_description() {
        let needs = requires(&["nats://user:hush@h:4222".to_owned()]);
        assert_eq!(*needs, ["net:h:4222".to_owned()]);
        let tool = r#"{"name": "x", "description": "Does x.", "annotations": {"idempotentHint": true},
            "inputSchema": {"type": "object"}}"#;
        let Registration { manifest, .. } = registration(&offered(tool), &needs).unwrap();
        assert_eq!((manifest.id.as_str(), manifest.description.as_str()), ("x", "Does x."));
        assert_eq!((manifest.provider.kind(), manifest.is_idempotent()), ("cluster", true));
        let provider: &ClusterProvider = manifest.provider.settings().unwrap();
        assert!(provider.is_idempotent);
        assert_eq!(manifest.provider.timeout(), Some(Duration::from_secs(300)));
        assert!(registration(&offered("7"), &needs).is_none());
    }

    proptest! {
        #[test]
        fn any_tool_can_be_read(tool in r#"[\{\}\[\]",:a-z0-9 ]{0,60}"#) {
            let _ = registration(&offered(&tool), &requires(&[]));
        }
    }
}
