//! `auth` of a server: how orla gets its tokens. The names that Cursor has for the keys are known.

use std::collections::HashSet;

use orla_document::{Kind as Shape, Node};
use orla_oauth::metadata::endpoint;
use orla_oauth::{AuthSettings, GrantKind, Per, Scopes, Secret};
use orla_providers::openapi;
use orla_providers::sign_in::SignIn;
use serde_json::{Value, json};

use super::forms::{Choice, Count, Read, text_schema, texts_or_text};
use super::keys::{Key, key, present, properties};
use super::read::{Reader, excerpt, unexpected};
use super::{Config, Placed};

/// The word for a sign-in with everything as it is by default.
const OAUTH: &str = "oauth";

const GRANT: &[(&str, GrantKind)] = &[
    ("authorization_code", GrantKind::AuthorizationCode),
    ("client_credentials", GrantKind::ClientCredentials),
    ("token_exchange", GrantKind::TokenExchange),
];
const PER: &[(&str, Per)] = &[("caller", Per::Caller), ("shared", Per::Shared)];
const LINE: Read<String> = Read(|reader, path, node| reader.line(path, node, "text"), text_schema);
const URL: Read<String> =
    Read(|reader, path, node| reader.url(path, node, "https://auth.example.com"), text_schema);
const SECRET: Read<Secret> =
    Read(|reader, path, node| reader.secret(path, node).map(Secret::new), text_schema);
const SCOPES: Read<Scopes> = Read(scopes, texts_or_text);

/// `oauth`, or a mapping.
pub(super) const AUTH: Read<AuthSettings> = Read(read, schema);

/// The same for providers other than MCP servers. The sign-in is noted, and its key refers to it.
pub(super) const SIGN_IN: Read<String> = Read(note, schema);

fn note(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    let auth = read(reader, path, node)?;
    let key = path.to_owned();
    let value = SignIn { key: key.clone(), name: String::new(), url: None, auth };
    reader.sign_ins.push(Placed { value, at: node.at });
    Some(key)
}

impl Reader<'_> {
    /// Completes the sign-in with this key by its display name and its address. `other` is another
    /// credential of the same requests.
    pub(super) fn complete_sign_in(&mut self, key: &str, name: &str, url: &str, other: Option<&str>) {
        let Some(found) = self.sign_ins.iter_mut().find(|placed| placed.value.key == key) else {
            return;
        };
        name.clone_into(&mut found.value.name);
        found.value.url = Some(url.to_owned());
        let at = found.at;
        if let Some(problem) = unusable(&found.value.auth, Some(url), other) {
            self.problem(at, || format!("{key}: {problem}"));
        }
    }

    /// Names the sign-ins below a path after the capability that they are for.
    pub(super) fn name_sign_ins(&mut self, path: &str, id: &str) {
        let below = |key: &str| key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        let own = self.sign_ins.iter_mut().filter(|placed| below(&placed.value.key));
        for (index, placed) in own.enumerate() {
            placed.value.name = if index == 0 { id.to_owned() } else { format!("{id}-{}", index + 1) };
        }
    }

    /// Takes over the sign-ins. Each needs a unique name, as people sign in by name.
    pub(super) fn finish_sign_ins(&mut self, config: &mut Config) {
        let mut sign_ins = std::mem::take(&mut self.sign_ins);
        for placed in &config.documents {
            let Some(auth) = placed.value.auth.clone() else { continue };
            let Some(name) = placed.value.name.clone() else {
                self.problem(placed.at, || {
                    "openapi: auth needs a name, by which a person signs in".to_owned()
                });
                continue;
            };
            if let Some(problem) = unusable(&auth, placed.value.base_url.as_deref(), None) {
                self.problem(placed.at, || format!("openapi: auth: {problem}"));
            }
            let (key, url) = (openapi::sign_in_key(&name), placed.value.base_url.clone());
            sign_ins.push(Placed { value: SignIn { key, name, url, auth }, at: placed.at });
        }
        let servers = config.servers.iter().filter(|server| server.value.auth.is_some());
        let mut names: HashSet<String> = servers.map(|server| server.value.name.clone()).collect();
        for placed in &sign_ins {
            let name = &placed.value.name;
            if !names.insert(name.clone()) {
                self.problem(placed.at, || {
                    format!("{}: another sign-in has the name {}", placed.value.key, excerpt(name))
                });
            }
        }
        config.sign_ins = sign_ins.into_iter().map(|placed| placed.value).collect();
    }
}

/// Returns why the target at this address cannot have this sign-in.
pub(super) fn unusable(auth: &AuthSettings, url: Option<&str>, other: Option<&str>) -> Option<String> {
    if let Some(other) = other {
        return Some(format!("{other} and auth exclude each other"));
    }
    // Tokens are bound to it, and sent there.
    let server = url.map(|url| endpoint("url", &as_http(url)));
    let named = [("issuer", &auth.issuer), ("token_endpoint", &auth.token_endpoint)];
    let named = named.into_iter().filter_map(|(key, url)| endpoint(key, url.as_ref()?).err());
    server.and_then(Result::err).into_iter().chain(named).next()
}

/// Returns the address of an agent by HTTP.
fn as_http(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("grpc", url));
    let scheme = match scheme {
        "wss" | "grpcs" => "https",
        "ws" | "grpc" => "http",
        other => other,
    };
    format!("{scheme}://{rest}")
}

/// Returns whether these header fields have a credential of their own.
pub(super) fn authorization<'n>(names: impl IntoIterator<Item = &'n String>) -> Option<&'static str> {
    let has = names.into_iter().any(|name| name.eq_ignore_ascii_case("authorization"));
    has.then_some("headers.Authorization")
}

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
fn keys() -> Vec<Key<AuthSettings>> {
    vec![
        key("grant", Choice(GRANT), |auth| &mut auth.grant,
            "where tokens come from: `authorization_code` (a person signs in), `client_credentials` (orla as itself) or `token_exchange` (the caller's token is exchanged)"),
        key("per", Choice(PER), |auth| &mut auth.per,
            "whose tokens they are: `caller` (each caller has its own) or `shared`"),
        key("issuer", URL, |auth| &mut auth.issuer, "the authorization server, in place of the one that the server names"),
        key("token_endpoint", URL, |auth| &mut auth.token_endpoint, "its token endpoint, in place of the one in its metadata"),
        key("client_id", LINE, |auth: &mut AuthSettings| &mut auth.client_id,
            "the id of a registered client, or the address of its metadata document; by default, orla registers itself").or(&["CLIENT_ID"]),
        key("client_secret", SECRET, |auth: &mut AuthSettings| &mut auth.client_secret, "the client's password").or(&["CLIENT_SECRET"]),
        key("audience", LINE, |auth| &mut auth.audience, "the parameter `audience` of requests for tokens"),
        key("scope", SCOPES, |auth: &mut AuthSettings| &mut auth.scopes, "the scopes to request, a text or a list; by default, those that the server asks for").or(&["scopes"]),
        key("redirect_port", Count(1, u16::MAX), |auth| &mut auth.redirect_port,
            "the port on this machine to which a sign-in returns; any by default"),
    ]
}

fn read(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<AuthSettings> {
    let expected = "oauth, or a mapping with grant";
    if !matches!(node.kind, Shape::Map(_)) {
        let word = reader.word_at(path, node, expected)?;
        if word == OAUTH {
            return Some(AuthSettings::default());
        }
        reader.problem(node.at, || format!("{path}{}", unexpected(expected, node)));
        return None;
    }
    let pairs = reader.pairs(path, node, expected)?;
    let mut auth = AuthSettings::default();
    reader.mapping(path, node.at, present(pairs), &keys(), &mut auth)?;
    if let Err(problem) = auth.check() {
        reader.problem(node.at, || format!("{path}.{problem}"));
        return None;
    }
    Some(auth)
}

fn scopes(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Scopes> {
    let expected = "scopes, separated by spaces, or a list of them";
    match &node.kind {
        Shape::List(_) => Some(reader.list(path, node, expected)?.iter().collect()),
        Shape::Scalar(_) | Shape::Map(_) => {
            reader.line(path, node, expected).map(|text| Scopes::parse(&text))
        }
    }
}

fn schema() -> Value {
    let properties = properties(&keys(), &mut AuthSettings::default());
    json!({"anyOf": [{"const": OAUTH}, {"type": "object", "properties": properties}]})
}

#[cfg(test)]
mod tests {
    use crate::config::providers_tests::{good, problems};

    use super::*;

    fn auth(text: &str) -> AuthSettings {
        let url = "https://example.com/mcp";
        let config = good(&format!("mcpServers: {{up: {{url: '{url}', auth: {text}}}}}\n"));
        config.servers[0].value.auth.clone().unwrap()
    }

    #[test]
    fn a_sign_in_is_one_word_or_a_mapping() {
        assert_eq!(auth("oauth"), AuthSettings::default());
        let exchange = auth(
            "{grant: token_exchange, token_endpoint: 'https://as.example/token', client_id: orla, client_secret: s3cret, audience: up, per: caller}",
        );
        assert_eq!((exchange.grant, exchange.per()), (GrantKind::TokenExchange, Per::Caller));
        assert_eq!(exchange.audience.as_deref(), Some("up"));
        assert!(!format!("{exchange:?}").contains("s3cret"));
        assert_eq!(auth("{scope: 'a b'}").scopes, auth("{scope: [a, b]}").scopes);
        assert_eq!(auth("{per: caller}").per(), Per::Caller);
    }

    #[test]
    fn invalid_sign_in_settings_are_problems() {
        let url = "url: 'https://example.com/mcp'";
        for (entry, expected) in [
            (format!("{url}, auth: oath"), "expected oauth, or a mapping with grant"),
            (format!("{url}, auth: {{grant: password}}"), "expected authorization_code"),
            (format!("{url}, auth: {{grants: x}}"), "did you mean grant"),
            (format!("{url}, auth: {{grant: client_credentials}}"), "auth.client_id: missing"),
            (
                format!("{url}, auth: {{grant: client_credentials, client_id: a}}"),
                "auth.client_secret: missing",
            ),
            (format!("{url}, auth: {{grant: token_exchange, client_id: a}}"), "auth.issuer: missing"),
            (
                format!(
                    "{url}, auth: {{grant: token_exchange, client_id: a, issuer: 'https://as.example', per: shared}}"
                ),
                "auth.per: a token exchange",
            ),
            (format!("{url}, auth: {{issuer: 'http://as.example'}}"), "issuer is not https"),
            ("url: 'http://example.com/mcp', auth: oauth".to_owned(), "url is not https"),
            (format!("{url}, headers: {{authorization: x}}, auth: oauth"), "exclude each other"),
            ("command: run, auth: oauth".to_owned(), "only a server with url"),
        ] {
            let found = problems(&format!("mcpServers: {{up: {{{entry}}}}}\n"));
            assert!(found.iter().any(|problem| problem.contains(expected)), "{entry}: {found:?}");
        }
    }
}
