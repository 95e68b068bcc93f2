//! `cluster`: the cluster that this instance is a node of.
//!
//! An address may hold a password: no message repeats one.

use orla_cluster::{Buffering, ClusterError, ClusterSettings, MAX_NAME, is_name};
use orla_document::{Key as Name, Kind as Shape, Node};
use serde_json::{Value, json};

use super::forms::{Choice, PATH, PATTERNS, Read, text_schema};
use super::keys::{Key, key, object, section};
use super::read::Reader;
use super::{Config, Placed};

/// The words of `buffer`.
const BUFFERING: &[(&str, Buffering)] = &[("none", Buffering::None), ("local", Buffering::Local)];
/// The maximum number of addresses of NATS servers.
const MAX_ADDRESSES: usize = 32;

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
fn keys() -> Vec<Key<ClusterSettings>> {
    vec![
        key("nats", Read(addresses, addresses_schema), |c: &mut ClusterSettings| &mut c.nats,
            "the address of a NATS server with JetStream, such as `nats://host:4222`, or a list of the servers of one NATS cluster").required(),
        key("name", Read(name, name_schema), |c: &mut ClusterSettings| &mut c.name,
            "the name of the cluster; its nodes have the same one").required(),
        key("node", Read(name, name_schema), |c: &mut ClusterSettings| &mut c.node,
            "the name of this node, which no other node has; by default, the name of the machine"),
        key("credentials", PATH, |c| &mut c.credentials,
            "file with a JWT and the seed of its NKey, as NATS's tools write it (`.creds`)"),
        section("tls", tls(), "certificates for the connections to NATS"),
        key("share", PATTERNS, |c: &mut ClusterSettings| &mut c.share,
            "patterns of the ids that other nodes may call; all by default"),
        key("take", PATTERNS, |c| &mut c.take,
            "patterns of the ids of other nodes that are served here; all by default"),
        key("buffer", Choice(BUFFERING), |c| &mut c.buffer,
            "what becomes of new [tasks](cluster.md#losing-nats) while NATS cannot be reached: `none`, they are refused; `local`, this node keeps those without an idempotency key in its `state_dir`, and hands them over later"),
    ]
}

#[rustfmt::skip] // A table.
fn tls() -> Vec<Key<ClusterSettings>> {
    vec![
        key("ca", PATH, |c: &mut ClusterSettings| &mut c.tls.ca,
            "PEM file of certificates that are trusted besides those of the system"),
        key("certificate", PATH, |c| &mut c.tls.certificate, "PEM file of this node's own certificate"),
        key("key", PATH, |c| &mut c.tls.key, "PEM file of the key of `certificate`"),
    ]
}

pub(super) fn read(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let Some(pairs) = reader.pairs(path, node, "a mapping with nats and name") else { return };
    let mut settings = defaults();
    if reader.mapping(path, node.at, pairs, &keys(), &mut settings).is_none() {
        return;
    }
    if settings.tls.certificate.is_some() != settings.tls.key.is_some() {
        reader.problem(node.at, || format!("{path}.tls: `certificate` and `key` need each other"));
        return;
    }
    if settings.node.is_empty() {
        reader.problem(node.at, || format!("{path}.node: missing, and this machine has no usable name"));
        return;
    }
    config.cluster_places = places("", pairs);
    config.cluster = Some(settings);
}

/// Where the values are, by their keys.
fn places(within: &str, pairs: &[(Name, Node)]) -> Vec<Placed<String>> {
    let placed = |(name, node): &(Name, Node)| match &node.kind {
        Shape::Map(inner) => places(&format!("{within}{}.", name.text), inner),
        _ => vec![Placed { value: format!("{within}{}", name.text), at: node.at }],
    };
    pairs.iter().flat_map(placed).collect()
}

impl Config {
    /// Returns the problems with the files that `cluster` names, with their places. Blocks.
    pub(crate) fn cluster_problems(&self) -> Vec<String> {
        let errors = self.cluster.iter().flat_map(ClusterSettings::check_files);
        let placed = |error: ClusterError| {
            let text = format!("cluster.{error}");
            let named = |file: &&Placed<String>| matches!(&error, ClusterError::File { what, .. } if *what == file.value);
            match self.cluster_places.iter().find(named) {
                Some(file) => self.placed(file.at, text),
                None => text,
            }
        };
        errors.map(placed).collect()
    }
}

pub(super) fn schema() -> Value {
    let mut settings = ClusterSettings::default();
    object(&keys(), &mut settings)
}

/// Returns the settings of a node that is called like its machine.
fn defaults() -> ClusterSettings {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let node = host.chars().take(MAX_NAME).map(|c| if is_plain(c) { c } else { '-' }).collect();
    ClusterSettings { node, ..ClusterSettings::default() }
}

fn name(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    let expected = format!("a name of at most {MAX_NAME} letters, digits, `_` or `-`");
    let text = reader.word_at(path, node, &expected)?;
    if is_name(&text) {
        return Some(text);
    }
    reader.problem(node.at, || format!("{path}: expected {expected}"));
    None
}

fn name_schema() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": MAX_NAME, "pattern": "^[A-Za-z0-9_-]+$"})
}

fn addresses(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<String>> {
    let one = |reader: &mut Reader<'_>, path: &str, node: &Node| {
        let text = reader.secret(path, node)?;
        if is_address(&text) {
            return Some(text);
        }
        reader.problem(node.at, || format!("{path}: expected an address such as nats://host:4222"));
        None
    };
    let Shape::List(items) = &node.kind else { return one(reader, path, node).map(|one| vec![one]) };
    if items.is_empty() || items.len() > MAX_ADDRESSES {
        reader.problem(node.at, || format!("{path}: expected 1 to {MAX_ADDRESSES} addresses"));
        return None;
    }
    let items = items.iter().enumerate();
    let read: Vec<Option<String>> =
        items.map(|(index, item)| one(reader, &format!("{path}[{index}]"), item)).collect();
    read.into_iter().collect()
}

fn is_address(text: &str) -> bool {
    let rest = ["nats://", "tls://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    rest.is_some_and(|rest| {
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        !host.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control() || c == ',')
    })
}

fn addresses_schema() -> Value {
    json!({"anyOf": [text_schema(), {"type": "array", "items": text_schema(), "minItems": 1, "maxItems": MAX_ADDRESSES}]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_of_nats() {
        for good in ["nats://h:4222", "nats://h", "tls://user:hush@h:4222", "nats://[::1]:4222"] {
            assert!(is_address(good), "{good}");
        }
        for bad in
            ["h:4222", "http://h", "nats://", "nats://user@", "nats://a b", "nats://a,nats://b", ""]
        {
            assert!(!is_address(bad), "{bad}");
        }
    }

    fn read(cluster: &str) -> Result<ClusterSettings, String> {
        let config = Config::of(&format!("cluster: {cluster}\n"));
        config
            .map(|config| config.cluster.expect("a cluster"))
            .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn tasks_are_kept_for_the_cluster_in_a_state_that_lasts() {
        let text = "cluster: {nats: nats://h, name: lab, buffer: local}\n";
        let buffer = |config: Config| config.cluster.expect("a cluster").buffer;
        assert_eq!(Config::of(text).map(buffer).ok(), Some(Buffering::Local));
        let problems = Config::of(&format!("{text}state: memory\n")).err().unwrap_or_default();
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            problems,
            [
                "cluster.buffer: `local` needs a state that lasts, and `state: memory` keeps nothing at orla.yaml:1:10"
            ]
        );
    }

    #[test]
    fn a_cluster_is_read_with_what_it_shares() {
        let cluster =
            read("{nats: ['nats://a', 'nats://b'], name: lab, node: n1, share: 'x.*'}").unwrap();
        assert_eq!((cluster.nats.len(), cluster.name.as_str(), cluster.node.as_str()), (2, "lab", "n1"));
        assert_eq!(cluster.share.unwrap()[0].as_str(), "x.*");
        assert!(cluster.take.is_none() && cluster.credentials.is_none());
        assert!(is_name(&read("{nats: 'nats://a', name: lab}").unwrap().node));
    }

    #[test]
    fn invalid_cluster_settings_are_refused_without_their_secrets() {
        for (cluster, words) in [
            ("x", "expected a mapping with nats and name"),
            ("{name: a}", "cluster.nats: missing"),
            ("{nats: 'nats://a'}", "cluster.name: missing"),
            (
                "{nats: 'http://u:hush@a', name: a}",
                "cluster.nats: expected an address such as nats://host:4222",
            ),
            ("{nats: [], name: a}", "cluster.nats: expected 1 to 32 addresses"),
            ("{nats: 'nats://a', name: a.b}", "cluster.name: expected a name"),
            ("{nats: 'nats://a', name: a, node: ''}", "cluster.node: expected a name"),
            ("{nats: 'nats://a', name: a, tls: {certificate: x}}", "need each other"),
            ("{nats: 'nats://a', name: a, nodes: b}", "cluster.nodes: unknown key"),
        ] {
            let problem = read(cluster).unwrap_err();
            assert!(problem.contains(words) && !problem.contains("hush"), "{cluster}: {problem}");
        }
    }

    #[test]
    fn a_node_is_called_like_its_machine() {
        assert!(is_name(&defaults().node));
    }
}
