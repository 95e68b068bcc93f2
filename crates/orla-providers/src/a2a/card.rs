//! An agent's card: its name, its addresses and its skills (A2A §4.4, §8). Pure.
//!
//! Cards of 1.x list `supportedInterfaces`. Cards of 0.3 have `url` and `preferredTransport`, and
//! further interfaces in `additionalInterfaces`. Both become a [`Card`]. Members that a call does not
//! need are ignored if unknown, so that a card of a later minor version can be read.

use orla_marketplace::rtfs::text::excerpt;
use serde_json::Value;

use super::dialect::Dialect;

/// The maximum number of skills that are read from a card.
const MAX_SKILLS: usize = 1000;
/// The maximum length of a skill's id, in bytes.
const MAX_ID: usize = 128;
/// The maximum length of a description, in characters.
const MAX_DESCRIPTION: usize = 8000;

/// The content of a card.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Card {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) version: String,
    /// The agent's addresses, the preferred one first.
    pub(super) interfaces: Vec<Interface>,
    /// Whether the agent streams events.
    pub(super) streaming: bool,
    pub(super) skills: Vec<Skill>,
}

/// One address of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) url: String,
    pub(super) binding: Binding,
    pub(super) dialect: Dialect,
    pub(super) tenant: Option<String>,
}

/// The binding of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Binding {
    JsonRpc,
    Rest,
    Grpc,
    WebSocket,
    /// An unsupported binding.
    Other(String),
}

/// A skill of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Skill {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) description: String,
    pub(super) tags: Vec<String>,
    pub(super) examples: Vec<String>,
}

impl Binding {
    fn named(name: &str) -> Self {
        match name.to_ascii_uppercase().as_str() {
            "JSONRPC" => Self::JsonRpc,
            "HTTP+JSON" => Self::Rest,
            "GRPC" => Self::Grpc,
            "WEBSOCKET" => Self::WebSocket,
            _ => Self::Other(name.chars().take(40).collect()),
        }
    }

    /// Returns the binding's name in cards.
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::JsonRpc => "JSONRPC",
            Self::Rest => "HTTP+JSON",
            Self::Grpc => "GRPC",
            Self::WebSocket => "WEBSOCKET",
            Self::Other(name) => name,
        }
    }
}

impl Card {
    /// Reads a card.
    ///
    /// # Errors
    /// What is missing, without which the agent cannot be called.
    pub(super) fn read(card: &Value) -> Result<Self, String> {
        if !card.is_object() {
            return Err("its card is not a JSON object".to_owned());
        }
        let name = text(card, "name");
        let interfaces = match card.get("supportedInterfaces") {
            Some(Value::Array(listed)) => listed.iter().filter_map(newer).collect(),
            _ => older(card),
        };
        if interfaces.is_empty() {
            return Err("its card has no address".to_owned());
        }
        let listed = card.get("skills").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut skills: Vec<Skill> = Vec::new();
        for skill in listed.iter().filter_map(skill) {
            if skills.len() < MAX_SKILLS && skills.iter().all(|known| known.id != skill.id) {
                skills.push(skill);
            }
        }
        Ok(Self {
            name: if name.is_empty() { "the agent".to_owned() } else { name },
            description: excerpt(text(card, "description"), MAX_DESCRIPTION),
            version: text(card, "version"),
            interfaces,
            streaming: card["capabilities"]["streaming"] == true,
            skills,
        })
    }

    /// Returns a card for an agent that has none and is reached at this address.
    pub(super) fn without(url: &str, binding: Binding) -> Self {
        let interface = Interface { url: url.to_owned(), binding, dialect: Dialect::V1, tenant: None };
        Self { name: "the agent".to_owned(), interfaces: vec![interface], ..Self::default() }
    }
}

fn newer(interface: &Value) -> Option<Interface> {
    let url = some(interface, "url")?;
    let version = text(interface, "protocolVersion");
    Some(Interface {
        url,
        binding: Binding::named(&text(interface, "protocolBinding")),
        dialect: Dialect::of(&version)?,
        tenant: some(interface, "tenant"),
    })
}

/// Returns the interfaces of a card of 0.3.
fn older(card: &Value) -> Vec<Interface> {
    let Some(dialect) = Dialect::of(&some(card, "protocolVersion").unwrap_or_else(|| "0.3".to_owned()))
    else {
        return Vec::new();
    };
    let tenant = None;
    let mut interfaces: Vec<Interface> = Vec::new();
    if let Some(url) = some(card, "url") {
        let binding =
            some(card, "preferredTransport").map_or(Binding::JsonRpc, |name| Binding::named(&name));
        interfaces.push(Interface { url, binding, dialect, tenant: tenant.clone() });
    }
    let more = card.get("additionalInterfaces").and_then(Value::as_array);
    for interface in more.into_iter().flatten() {
        let Some(url) = some(interface, "url") else { continue };
        let binding = Binding::named(&text(interface, "transport"));
        let interface = Interface { url, binding, dialect, tenant: tenant.clone() };
        if !interfaces.contains(&interface) {
            interfaces.push(interface);
        }
    }
    interfaces
}

fn skill(skill: &Value) -> Option<Skill> {
    let id = some(skill, "id")?;
    if id.len() > MAX_ID || id.chars().any(char::is_control) || id.trim() != id {
        return None;
    }
    let texts = |name: &str| -> Vec<String> {
        let listed = skill.get(name).and_then(Value::as_array);
        listed
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .take(20)
            .map(|example| excerpt(example, MAX_DESCRIPTION))
            .collect()
    };
    Some(Skill {
        name: some(skill, "name").unwrap_or_else(|| id.clone()),
        description: excerpt(text(skill, "description"), MAX_DESCRIPTION),
        tags: texts("tags"),
        examples: texts("examples"),
        id,
    })
}

fn text(value: &Value, name: &str) -> String {
    value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn some(value: &Value, name: &str) -> Option<String> {
    Some(text(value, name)).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn cards_of_both_generations_are_read() {
        let skills = json!([{"id": "add", "name": "Add", "description": "Adds", "tags": ["sum"]}, {"id": "add"}, {"id": "bad\n"}, 7]);
        let newer = Card::read(&json!({
            "name": "A", "version": "1", "skills": skills, "capabilities": {"streaming": true},
            "supportedInterfaces": [
                {"url": "http://a/grpc", "protocolBinding": "GRPC", "protocolVersion": "1.0"},
                {"url": "http://a/rpc", "protocolBinding": "jsonrpc", "protocolVersion": "0.3", "tenant": "t"},
                {"url": "http://a/future", "protocolBinding": "JSONRPC", "protocolVersion": "7.0"},
            ],
        }))
        .unwrap();
        let shown: Vec<_> = newer
            .interfaces
            .iter()
            .map(|one| (one.url.as_str(), one.binding.as_str(), one.dialect))
            .collect();
        assert_eq!(
            shown,
            [("http://a/grpc", "GRPC", Dialect::V1), ("http://a/rpc", "JSONRPC", Dialect::V0)]
        );
        assert!(newer.streaming);
        assert_eq!(newer.skills.len(), 1, "the second of one id, and what has none, do not count");
        let older = Card::read(&json!({
            "name": "A", "url": "http://a/", "protocolVersion": "0.3.0", "skills": [],
            "additionalInterfaces": [{"url": "http://a/", "transport": "JSONRPC"}, {"url": "http://a/v1", "transport": "HTTP+JSON"}],
        }))
        .unwrap();
        let shown: Vec<_> = older
            .interfaces
            .iter()
            .map(|one| (one.url.as_str(), one.binding.as_str(), one.dialect))
            .collect();
        assert_eq!(
            shown,
            [("http://a/", "JSONRPC", Dialect::V0), ("http://a/v1", "HTTP+JSON", Dialect::V0)]
        );
    }

    #[test]
    fn invalid_cards_are_refused_with_the_reason() {
        for (card, reason) in [
            (json!([]), "its card is not a JSON object"),
            (json!({"name": "A"}), "its card has no address"),
            (json!({"supportedInterfaces": [{"url": ""}]}), "its card has no address"),
        ] {
            assert_eq!(Card::read(&card), Err(reason.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn any_json_can_be_read(text in "\\PC{0,80}", flag: bool) {
            for card in [
                json!({"url": text, "skills": [{"id": text, "tags": [text, flag]}], "capabilities": text}),
                json!({"supportedInterfaces": [{"url": text, "protocolVersion": text}, flag], "skills": text}),
            ] {
                let _ = Card::read(&card);
            }
        }
    }
}
