//! The offer of a node: its capabilities, as the other nodes serve them.

use std::sync::Arc;

use orla_marketplace::TaskSupport;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The largest offer, in bytes.
pub(crate) const MAX_OFFER: usize = 16 * 1024 * 1024;
/// The maximum number of capabilities of an offer.
const MAX_CAPABILITIES: usize = 10_000;
/// The longest id, in bytes.
const MAX_ID: usize = 256;

/// The capabilities that a node offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offers {
    pub(crate) capabilities: Vec<Arc<Offered>>,
    /// The number of unusable capabilities.
    pub(crate) left_out: usize,
}

/// One capability that a node offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offered {
    pub(crate) id: String,
    /// Its description in the form of an MCP tool.
    pub(crate) tool: Box<str>,
    /// Whether it is called as a task.
    pub(crate) task: Option<TaskSupport>,
    /// How long one call may take, in milliseconds, if that is said of this capability.
    pub(crate) timeout_ms: Option<u64>,
    /// The digest of the version: the SHA-256 of all fields above, in hexadecimal digits.
    pub(crate) digest: String,
}

impl Offered {
    pub(crate) fn new(
        id: impl Into<String>,
        tool: impl Into<Box<str>>,
        task: Option<TaskSupport>,
        timeout_ms: Option<u64>,
    ) -> Self {
        let (id, tool) = (id.into(), tool.into());
        let word = task.map_or("", TaskSupport::as_str);
        let limit = timeout_ms.map(|ms| ms.to_string()).unwrap_or_default();
        let text = [id.as_bytes(), word.as_bytes(), limit.as_bytes(), tool.as_bytes()].join(&0);
        let digest = hex::encode(digest(&SHA256, &text).as_ref());
        Self { id, tool, task, timeout_ms, digest }
    }
}

impl Offers {
    /// Reads the text of an offer.
    ///
    /// # Errors
    ///
    /// Returns an error if it is not one.
    pub(crate) fn read(text: &[u8]) -> Result<Self, String> {
        let written: Written<'_> =
            serde_json::from_slice(text).map_err(|err| format!("no offer: {err}"))?;
        let mut offers = Self::default();
        for one in written.capabilities {
            let Ok(one) = serde_json::from_str::<One<'_>>(one.get()) else {
                offers.left_out += 1;
                continue;
            };
            let is_plain =
                !one.id.is_empty() && one.id.len() <= MAX_ID && !one.id.contains(char::is_control);
            let task = one.task.as_deref().map(TaskSupport::parse);
            if !is_plain || task == Some(None) || offers.capabilities.len() == MAX_CAPABILITIES {
                offers.left_out += 1;
                continue;
            }
            let offered = Offered::new(one.id, one.tool.get(), task.flatten(), one.timeout_ms);
            offers.capabilities.push(Arc::new(offered));
        }
        Ok(offers)
    }

    pub(crate) fn write(&self) -> String {
        let one = |one: &Arc<Offered>| {
            let id = serde_json::Value::from(one.id.as_str());
            let task = one.task.map(|task| format!(r#","task":"{}""#, task.as_str()));
            let limit = one.timeout_ms.map(|ms| format!(r#","timeout_ms":{ms}"#));
            let (task, limit) = (task.unwrap_or_default(), limit.unwrap_or_default());
            format!(r#"{{"id":{id},"tool":{}{task}{limit}}}"#, one.tool)
        };
        let all: Vec<String> = self.capabilities.iter().map(one).collect();
        format!(r#"{{"capabilities":[{}]}}"#, all.join(","))
    }
}

#[derive(Deserialize)]
struct Written<'a> {
    #[serde(borrow)]
    capabilities: Vec<&'a RawValue>,
}

#[derive(Serialize, Deserialize)]
struct One<'a> {
    id: String,
    #[serde(borrow)]
    tool: &'a RawValue,
    task: Option<String>,
    timeout_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn offers_round_trip() {
        let one = |id: &str, task, limit| Arc::new(Offered::new(id, r#"{"name":"x"}"#, task, limit));
        let capabilities =
            vec![one("a", None, Some(300_000)), one("b\"", Some(TaskSupport::Required), None)];
        let offers = Offers { capabilities, left_out: 0 };
        assert_eq!(Offers::read(offers.write().as_bytes()), Ok(offers));
    }

    #[test]
    fn versions_differ_in_their_digests() {
        let digest = |tool: &str, task, limit| Offered::new("a", tool, task, limit).digest;
        let all = [
            digest("{}", None, None),
            digest("{ }", None, None),
            digest("{}", Some(TaskSupport::Optional), None),
            digest("{}", None, Some(1)),
        ];
        assert!(all[1..].iter().all(|other| *other != all[0]));
        assert!(all.iter().all(|digest| digest.len() == 64));
    }

    #[test]
    fn unusable_capabilities_are_left_out() {
        let text = r#"{"capabilities": [{"id": "", "tool": {}}, {"id": 7}, 8, {"id": "a", "tool": {}, "task": "now"},
            {"id": "b", "tool": {}}]}"#;
        let offers = Offers::read(text.as_bytes()).unwrap();
        assert_eq!((offers.capabilities.len(), offers.left_out), (1, 4));
        assert!(Offers::read(b"[]").is_err());
    }

    proptest! {
        #[test]
        fn any_offer_can_be_read(text in r#"[\{\}\[\]",:a-z0-9 ]{0,80}"#) {
            let _ = Offers::read(text.as_bytes());
        }
    }
}
