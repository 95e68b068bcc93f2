//! `auth.oauth` and `tokens_file`: authorization servers whose tokens are accepted, and the tokens that orla makes.

use std::path::PathBuf;
use std::time::Duration;

use orla_document::{Kind as Shape, Node};
use orla_identity::{Algorithm, AuthOptions, IntrospectionOptions, IssuerOptions};
use orla_marketplace::Permission;
use orla_oauth::scope::is_scope;
use serde_json::{Value, json};

use super::access::read_permissions;
use super::forms::{Read, SECRET, Seconds, Text, text_schema, texts_or_text};
use super::keys::{Key, key, object};
use super::read::{Reader, excerpt, unexpected};
use super::{Config, Problem, is_loopback, tokens};

/// The maximum difference between clocks, and the longest time for which an answer is trusted, in
/// seconds.
const MAX_SECONDS: u32 = 300;

#[rustfmt::skip] // A table.
fn issuer_keys() -> Vec<Key<IssuerOptions>> {
    vec![
        key("issuer", Read(read_url, text_schema), |i: &mut IssuerOptions| &mut i.issuer,
            "the authorization server, exactly as in the `iss` of its tokens").required(),
        key("audience", Read(read_names, texts_or_text), |i: &mut IssuerOptions| &mut i.audience,
            "what a token's `aud` must contain: the address of this server, such as `https://tools.example.com/mcp`; or several").required(),
        key("jwks_uri", Read(read_url, text_schema), |i| &mut i.jwks_uri,
            "where its keys are; by default, its metadata say so"),
        key("scopes", Read(read_scopes, scopes_schema), |i| &mut i.scopes,
            "permissions that a scope grants in addition to `policy`: `SCOPE: [PERMISSION]`"),
        key("principal_claim", Text("the name of a claim"), |i| &mut i.principal_claim,
            "the claim that names the caller"),
        key("groups_claim", Text("the name of a claim"), |i| &mut i.groups_claim,
            "the claim that names the caller's groups; `a.b` is the claim `b` within `a`"),
        key("prefix", Text("text that is not empty"), |i| &mut i.prefix,
            "text in front of the names and groups of its callers, which tells them from those of other issuers"),
        key("algorithms", Read(read_algorithms, texts_or_text), |i| &mut i.algorithms,
            "accepted signatures; by default, all of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 and EdDSA"),
        key("types", Read(read_types, texts_or_text), |i| &mut i.types,
            "accepted `typ` of tokens; by default, `at+jwt` alone (RFC 9068). Servers that do not set it need `jwt` here"),
        key("clock_skew", Seconds(MAX_SECONDS), |i| &mut i.clock_skew,
            "seconds by which clocks may differ"),
        key("introspection", Read(read_introspection, introspection_schema), |i| &mut i.introspection,
            "where opaque tokens are checked (RFC 7662): a mapping with `endpoint`, `client_id`, `client_secret` and `keep`"),
    ]
}

#[rustfmt::skip] // A table.
fn introspection_keys() -> Vec<Key<IntrospectionOptions>> {
    vec![
        key("endpoint", Read(read_url, text_schema), |i: &mut IntrospectionOptions| &mut i.endpoint,
            "the address of the endpoint").required(),
        key("client_id", Text("text that is not empty"), |i: &mut IntrospectionOptions| &mut i.client_id,
            "the name with which orla authenticates itself there").required(),
        key("client_secret", SECRET, |i: &mut IntrospectionOptions| &mut i.client_secret,
            "its secret").required(),
        key("keep", Seconds(MAX_SECONDS), |i| &mut i.keep,
            "seconds for which an answer is believed"),
    ]
}

fn issuer() -> IssuerOptions {
    let mut issuer = IssuerOptions::new("", "");
    issuer.audience.clear();
    issuer
}

fn introspection() -> IntrospectionOptions {
    IntrospectionOptions {
        endpoint: String::new(),
        client_id: String::new(),
        client_secret: String::new(),
        keep: Duration::from_secs(30),
    }
}

const SERVERS: &str = "a mapping with issuer and audience, or a list of these";

pub(super) fn read_oauth(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let items: Vec<(String, &Node)> = match &node.kind {
        Shape::List(items) => {
            items.iter().enumerate().map(|(at, item)| (format!("{path}[{at}]"), item)).collect()
        }
        _ => vec![(path.to_owned(), node)],
    };
    let keys = issuer_keys();
    for (path, item) in items {
        let mut issuer = issuer();
        let Some(pairs) = reader.pairs(&path, item, SERVERS) else { continue };
        if reader.mapping(&path, item.at, pairs, &keys, &mut issuer).is_none() {
            continue;
        }
        if config.issuers.iter().any(|other| other.issuer == issuer.issuer) {
            reader.problem(item.at, || {
                format!("{path}.issuer: is there twice; list all audiences in one entry")
            });
            continue;
        }
        config.issuers.push(issuer);
    }
}

/// Returns an address. Over HTTP without TLS, a party on the way could replace keys, so such an address
/// must be on this machine.
fn read_url(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    let url = reader.url(path, node, "https://id.example.com")?;
    let host = url.strip_prefix("http://").map(|rest| {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => authority,
        }
    });
    if host.is_some_and(|host| !is_loopback(host)) {
        reader.problem(node.at, || {
            format!("{path}: expected https://; http:// is accepted only for this machine, because others could replace keys on the way")
        });
        return None;
    }
    Some(url)
}

fn read_names(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<String>> {
    let names = reader.list(path, node, "a text, or a list of texts")?;
    if names.is_empty() || names.iter().any(|name| name.trim().is_empty()) {
        reader.problem(node.at, || format!("{path}: expected text that is not empty"));
        return None;
    }
    Some(names)
}

fn read_types(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<String>> {
    let types = read_names(reader, path, node)?;
    let normal = |name: &String| {
        let name = name.to_ascii_lowercase();
        name.strip_prefix("application/").map_or_else(|| name.clone(), str::to_owned)
    };
    Some(types.iter().map(normal).collect())
}

fn read_algorithms(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<Algorithm>> {
    let names = read_names(reader, path, node)?;
    let known = |name: &str| Algorithm::NAMES.iter().find(|(known, _)| *known == name);
    let mut algorithms = Vec::new();
    for name in &names {
        match known(name) {
            Some((_, algorithm)) => algorithms.push(*algorithm),
            None => reader.problem(node.at, || {
                let all: Vec<&str> = Algorithm::NAMES.iter().map(|(name, _)| *name).collect();
                format!(
                    "{path}: expected signatures by a key pair ({}), got {}",
                    all.join(", "),
                    excerpt(name)
                )
            }),
        }
    }
    (algorithms.len() == names.len()).then_some(algorithms)
}

fn read_scopes(
    reader: &mut Reader<'_>,
    path: &str,
    node: &Node,
) -> Option<Vec<(String, Vec<Permission>)>> {
    let pairs = reader.pairs(path, node, "a mapping from scopes to lists of permissions")?;
    let mut scopes = Vec::new();
    for (scope, node) in pairs {
        let path = format!("{path}.{}", excerpt(&scope.text));
        if !is_scope(&scope.text) {
            reader.problem(scope.at, || {
                format!("{path}: expected a scope, without spaces, quotes and backslashes")
            });
            continue;
        }
        if let Some(permissions) = read_permissions(reader, &path, node) {
            scopes.push((scope.text.clone(), permissions));
        }
    }
    Some(scopes)
}

fn read_introspection(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<IntrospectionOptions> {
    let mut options = introspection();
    let Shape::Map(pairs) = &node.kind else {
        reader.problem(node.at, || {
            format!("{path}{}", unexpected("a mapping with endpoint and client_id", node))
        });
        return None;
    };
    reader.mapping(path, node.at, pairs, &introspection_keys(), &mut options).map(|()| options)
}

impl Config {
    /// Returns how callers are identified.
    pub(crate) fn auth(&self) -> AuthOptions {
        AuthOptions {
            tokens: self.auth_tokens.clone(),
            own_tokens: self.own_tokens.clone(),
            issuers: self.identifying(),
        }
    }

    /// Returns the file of the tokens that orla makes.
    pub(crate) fn tokens_file(&self) -> PathBuf {
        match self.tokens_file.as_os_str().is_empty() {
            true => self.file.clone().unwrap_or_default().with_file_name(tokens::DEFAULT_FILE),
            false => self.tokens_file.clone(),
        }
    }

    /// Reads the file of tokens. A file that the configuration names need not exist yet, and demands a token from every
    /// caller all the same.
    pub(super) fn read_own_tokens(&mut self) -> Result<(), Problem> {
        let file = self.tokens_file();
        let tokens = tokens::load(&file).map_err(|text| self.problem("tokens_file", text))?;
        if let Some(mode) = tokens::open_to_others(&file) {
            let text = format!(
                "tokens_file: other users can read or change {0} (mode {mode:o}); run chmod 600 {0}",
                file.display()
            );
            self.warnings.push(self.problem("tokens_file", text));
        }
        self.named_files.push(file);
        let is_named = !self.tokens_file.as_os_str().is_empty();
        self.own_tokens = match tokens {
            None if is_named => Some(Vec::new()),
            tokens => tokens.map(|tokens| tokens.iter().map(tokens::Token::accepted).collect()),
        };
        let is_own = |name: &&str| self.own_tokens.iter().flatten().any(|token| token.name == **name);
        match self.auth_tokens.iter().filter_map(|token| token.name.as_deref()).find(is_own) {
            Some(name) => {
                let text = format!(
                    "auth_tokens.{}: the file of tokens has a token of this name too",
                    excerpt(name)
                );
                Err(self.problem("auth_tokens", text))
            }
            None => Ok(()),
        }
    }

    /// Notes that a rule with a name means callers that were identified in different ways.
    pub(super) fn warn_of_shared_names(&mut self) {
        let has_tokens = self.auth_tokens.iter().any(|token| token.name.is_some())
            || self.own_tokens.as_ref().is_some_and(|tokens| !tokens.is_empty());
        let unprefixed = self.issuers.iter().filter(|issuer| issuer.prefix.is_empty()).count();
        if unprefixed > 1 || (unprefixed > 0 && has_tokens) {
            let text = "auth.oauth: without a `prefix`, a rule that names a caller means every caller of that name: \
                subjects of any of these authorization servers, and tokens"
                .to_owned();
            let warning = self.problem("auth", text);
            self.warnings.push(warning);
        }
    }

    /// Warns that scopes have no effect where everything is granted.
    pub(super) fn warn_of_idle_scopes(&mut self) {
        let grants = self.issuers.iter().any(|issuer| !issuer.scopes.is_empty());
        if grants && self.access.is_none() {
            let text = "auth.oauth.scopes: without a `policy`, every caller may use everything, with or without a scope; \
                `policy: []` leaves what the scopes grant"
                .to_owned();
            let warning = self.problem("auth", text);
            self.warnings.push(warning);
        }
    }
}

fn scopes_schema() -> Value {
    json!({"type": "object", "additionalProperties": texts_or_text()})
}

fn introspection_schema() -> Value {
    object(&introspection_keys(), &mut introspection())
}

pub(super) fn oauth_schema() -> Value {
    let one = object(&issuer_keys(), &mut issuer());
    json!({"anyOf": [one, {"type": "array", "items": one}]})
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "issuer: 'https://id.example', audience: 'https://orla.example/mcp'";

    #[test]
    fn an_authorization_server_is_read_with_its_defaults() {
        let text = format!("auth: {{oauth: {{{GOOD}, scopes: {{run: [exec]}}}}}}\npolicy: []\n");
        let config = Config::of(&text).unwrap();
        let [issuer] = &config.issuers[..] else { panic!("one issuer") };
        assert_eq!(
            (&*issuer.issuer, &*issuer.audience[0]),
            ("https://id.example", "https://orla.example/mcp")
        );
        assert_eq!(issuer.types, ["at+jwt"]);
        assert_eq!(issuer.scopes, [("run".to_owned(), vec!["exec".parse().unwrap()])]);
        assert_eq!(issuer.algorithms, Algorithm::all());
        assert!(config.warnings.is_empty() && config.auth().are_required());
        let list = format!(
            "auth: {{oauth: [{{{GOOD}}}, {{issuer: 'http://127.0.0.1:9/x', audience: [a, b], algorithms: ES256, types: [JWT]}}]}}\n"
        );
        let config = Config::of(&list).unwrap();
        assert_eq!(config.issuers[1].audience, ["a", "b"]);
        assert_eq!(
            (&config.issuers[1].algorithms[..], &*config.issuers[1].types[0]),
            (&[Algorithm::ES256][..], "jwt")
        );
    }

    #[test]
    fn settings_that_would_weaken_the_check_are_refused() {
        for (oauth, problem) in [
            ("issuer: 'https://id.example'", "audience: missing"),
            ("audience: a", "issuer: missing"),
            ("issuer: 'http://id.example', audience: a", "http:// is accepted only for this machine"),
            (
                "issuer: 'http://127.0.0.1.evil.example', audience: a",
                "http:// is accepted only for this machine",
            ),
            ("issuer: 'https://id.example', audience: []", "text that is not empty"),
            (&format!("{GOOD}, algorithms: [HS256]"), "a key pair"),
            (&format!("{GOOD}, algorithms: [none]"), "a key pair"),
            (
                &format!("{GOOD}, jwks_uri: 'http://id.example/keys'"),
                "http:// is accepted only for this machine",
            ),
            (&format!("{GOOD}, scopes: {{'a b': []}}"), "expected a scope"),
            (&format!("{GOOD}, clock_skew: 3600"), "clock_skew"),
            (
                &format!("{GOOD}, introspection: {{endpoint: 'https://id.example/i'}}"),
                "client_id: missing",
            ),
        ] {
            let problems = Config::of(&format!("auth: {{oauth: {{{oauth}}}}}\n")).map(drop).unwrap_err();
            assert!(problems[0].to_string().contains(problem), "{oauth}: {}", problems[0]);
        }
        let twice = format!("auth: {{oauth: [{{{GOOD}}}, {{{GOOD}}}]}}\n");
        assert!(Config::of(&twice).map(drop).unwrap_err()[0].to_string().contains("is there twice"));
    }
}
