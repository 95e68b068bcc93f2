//! The credentials that a document requires, and the configured ones. Pure.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use orla_marketplace::{CredentialPlace, HttpCredential};
use serde_json::Value as Json;

use super::document::{Document, Warning, step};
use crate::sign_in::Suggested;

/// The credentials of a document's schemes.
pub(super) struct Security<'a> {
    /// The credentials by the schemes' names; `None` for a scheme whose credentials cannot be
    /// configured.
    known: BTreeMap<&'a str, HttpCredential>,
    /// The schemes that a sign-in satisfies.
    signed_in: BTreeMap<&'a str, &'a Json>,
    /// The scopes that the sign-in must request.
    scopes: BTreeSet<String>,
    /// The default security requirement of operations.
    usual: Option<&'a Json>,
    missing: BTreeSet<String>,
}

/// A security scheme of a document, whose credential can be configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// Its name in the document.
    pub name: String,
    /// What its credential is: `API key`, `token` or `USER:PASSWORD`.
    pub credential: &'static str,
    /// Whether operations need it that have no configured credential.
    pub is_missing: bool,
}

const SCHEMES: &str = "#/components/securitySchemes";

impl<'a> Security<'a> {
    /// Matches the configured credentials with the schemes, by name.
    pub(super) fn of(
        document: &'a Document,
        configured: &'a BTreeMap<String, String>,
        has_sign_in: bool,
        warnings: &mut Vec<Warning>,
    ) -> Self {
        let mut known = BTreeMap::new();
        for (name, secret) in configured {
            let place = format!("{SCHEMES}/{}", step(name));
            let Some(scheme) = document.component("securitySchemes", name) else {
                warnings.push(Warning::new(
                    place,
                    format!(
                        "there is no such scheme, so the credential configured for it is not sent{}",
                        names(document)
                    ),
                ));
                continue;
            };
            match document.resolve(scheme).and_then(|(scheme, _)| credential(scheme, secret)) {
                Ok(credential) => {
                    known.insert(name.as_str(), credential);
                }
                Err(problem) => warnings.push(Warning::new(place, problem)),
            }
        }
        let schemes = document.root.pointer("/components/securitySchemes").and_then(Json::as_object);
        let schemes = schemes.into_iter().flatten().filter(|_| has_sign_in);
        let signed_in = schemes
            .filter_map(|(name, scheme)| Some((name.as_str(), document.resolve(scheme).ok()?.0)))
            .filter(|(name, scheme)| !known.contains_key(name) && takes_tokens(scheme))
            .collect();
        let usual = document.root.get("security");
        Self { known, signed_in, scopes: BTreeSet::new(), usual, missing: BTreeSet::new() }
    }

    /// Returns the token endpoints and scopes that the document gives for the schemes that operations
    /// need.
    pub(super) fn sign_in(&self) -> Suggested {
        let text = |scheme: &Json, place: &str| scheme.pointer(place)?.as_str().map(str::to_owned);
        let issuer = self.signed_in.values().find_map(|scheme| {
            let metadata = text(scheme, "/openIdConnectUrl")?;
            metadata.strip_suffix("/.well-known/openid-configuration").map(str::to_owned)
        });
        let token_endpoint = self.signed_in.values().find_map(|scheme| {
            let flows = ["clientCredentials", "authorizationCode"];
            flows.iter().find_map(|flow| text(scheme, &format!("/flows/{flow}/tokenUrl")))
        });
        Suggested { issuer, token_endpoint, scopes: self.scopes.iter().collect() }
    }

    /// Returns the credentials of an operation's requests, and whether they need the token of the
    /// sign-in: the first alternative that is fully configured.
    pub(super) fn of_operation(&mut self, operation: &Json) -> (Vec<HttpCredential>, bool) {
        let needed = operation.get("security").or(self.usual).and_then(Json::as_array);
        let Some(needed) = needed else { return Default::default() };
        let alternatives = needed;
        let alternatives: Vec<Vec<&str>> = alternatives
            .iter()
            .filter_map(Json::as_object)
            .map(|schemes| schemes.keys().map(String::as_str).collect())
            .collect();
        let is_known = |schemes: &&Vec<&str>| {
            let has = |name: &&str| self.known.contains_key(name) || self.signed_in.contains_key(name);
            !schemes.is_empty() && schemes.iter().all(has)
        };
        if let Some(schemes) = alternatives.iter().find(is_known) {
            let credentials = schemes.iter().filter_map(|name| self.known.get(name).cloned()).collect();
            let signed_in: Vec<&str> =
                schemes.iter().copied().filter(|name| self.signed_in.contains_key(name)).collect();
            let scopes = needed.iter().filter_map(Json::as_object);
            let scopes =
                scopes.filter(|these| these.keys().map(String::as_str).eq(schemes.iter().copied()));
            let scopes = scopes.flat_map(|these| signed_in.iter().filter_map(|name| these.get(*name)));
            let scopes = scopes.filter_map(Json::as_array).flatten().filter_map(Json::as_str);
            self.scopes.extend(scopes.map(str::to_owned));
            return (credentials, !signed_in.is_empty());
        }
        let is_optional = alternatives.is_empty() || alternatives.iter().any(Vec::is_empty);
        if !is_optional && let Some(first) = alternatives.first() {
            let missing = first.iter().filter(|name| !self.known.contains_key(*name));
            self.missing.extend(missing.map(|name| (*name).to_owned()));
        }
        Default::default()
    }

    /// Returns the schemes whose credentials can be configured.
    pub(super) fn schemes(&self, document: &Document) -> Vec<Scheme> {
        let all = document.root.pointer("/components/securitySchemes").and_then(Json::as_object);
        let schemes = all.into_iter().flatten().filter_map(|(name, scheme)| {
            let (scheme, _) = document.resolve(scheme).ok()?;
            let text = |key| scheme.get(key).and_then(Json::as_str).unwrap_or_default();
            let is_basic = text("type") == "http" && text("scheme").eq_ignore_ascii_case("basic");
            let form = if is_basic { "USER:PASSWORD" } else { "token" };
            credential(scheme, form).ok()?;
            let credential = if text("type") == "apiKey" { "API key" } else { form };
            Some(Scheme { name: name.clone(), credential, is_missing: self.missing.contains(name) })
        });
        schemes.collect()
    }

    /// Returns warnings about schemes that operations need and that have no credential.
    pub(super) fn warnings(&self) -> impl Iterator<Item = Warning> {
        self.missing.iter().map(|name| {
            let problem =
                "operations need it, and no credential is configured for it: calls go out without one";
            Warning::new(format!("{SCHEMES}/{}", step(name)), problem)
        })
    }
}

/// Returns whether a scheme's requests carry a bearer token that a sign-in obtains.
fn takes_tokens(scheme: &Json) -> bool {
    let text = |key| scheme.get(key).and_then(Json::as_str).unwrap_or_default();
    match text("type") {
        "oauth2" | "openIdConnect" => true,
        "http" => text("scheme").eq_ignore_ascii_case("bearer"),
        _ => false,
    }
}

fn names(document: &Document) -> String {
    let schemes = document.root.pointer("/components/securitySchemes").and_then(Json::as_object);
    let names: Vec<_> = schemes.into_iter().flatten().map(|(name, _)| name.as_str()).take(10).collect();
    if names.is_empty() { String::new() } else { format!("; there are {}", names.join(", ")) }
}

fn credential(scheme: &Json, secret: &str) -> Result<HttpCredential, String> {
    let text = |key| scheme.get(key).and_then(Json::as_str).unwrap_or_default();
    let authorization = |value: String| HttpCredential {
        place: CredentialPlace::Header("Authorization".to_owned()),
        value,
    };
    match text("type") {
        "apiKey" => {
            let name = text("name").to_owned();
            let place = match text("in") {
                "header" => CredentialPlace::Header(name),
                "query" => CredentialPlace::Query(name),
                "cookie" => CredentialPlace::Cookie(name),
                other => return Err(format!("its key is in {other:?}, so no credential is sent")),
            };
            Ok(HttpCredential { place, value: secret.to_owned() })
        }
        "http" => match text("scheme").to_ascii_lowercase().as_str() {
            "bearer" => Ok(authorization(format!("Bearer {secret}"))),
            "basic" if secret.contains(':') => {
                Ok(authorization(format!("Basic {}", BASE64.encode(secret))))
            }
            "basic" => Err("its credential has to be USER:PASSWORD, so none is sent".to_owned()),
            other => Err(format!("its HTTP scheme {other:?} is not known, so no credential is sent")),
        },
        // The user is responsible for obtaining the token.
        "oauth2" | "openIdConnect" => Ok(authorization(format!("Bearer {secret}"))),
        other => Err(format!("its type {other:?} is not known, so no credential is sent")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_scheme_has_its_credential() {
        let cases = [
            (
                json!({"type": "apiKey", "in": "query", "name": "k"}),
                Ok((CredentialPlace::Query("k".into()), "a:b")),
            ),
            (
                json!({"type": "apiKey", "in": "cookie", "name": "k"}),
                Ok((CredentialPlace::Cookie("k".into()), "a:b")),
            ),
            (
                json!({"type": "http", "scheme": "Bearer"}),
                Ok((CredentialPlace::Header("Authorization".into()), "Bearer a:b")),
            ),
            (
                json!({"type": "http", "scheme": "basic"}),
                Ok((CredentialPlace::Header("Authorization".into()), "Basic YTpi")),
            ),
            (
                json!({"type": "oauth2", "flows": {}}),
                Ok((CredentialPlace::Header("Authorization".into()), "Bearer a:b")),
            ),
            (
                json!({"type": "mutualTLS"}),
                Err("its type \"mutualTLS\" is not known, so no credential is sent"),
            ),
        ];
        for (scheme, expected) in cases {
            let found = credential(&scheme, "a:b");
            let found = found.as_ref().map(|found| (found.place.clone(), found.value.as_str()));
            assert_eq!(found.map_err(String::as_str), expected, "{scheme}");
        }
    }

    #[test]
    fn the_first_alternative_that_is_configured_is_sent() {
        let bearer = json!({"type": "http", "scheme": "bearer"});
        let document = json!({"openapi": "3.1.0", "security": [{"a": []}],
            "components": {"securitySchemes": {"a": bearer, "b": bearer, "c": bearer}}});
        let document = Document::parse(&document.to_string()).unwrap();
        let configured =
            BTreeMap::from([("b".to_owned(), "B".to_owned()), ("typo".to_owned(), "x".to_owned())]);
        let mut warnings = Vec::new();
        let mut security = Security::of(&document, &configured, false, &mut warnings);
        assert_eq!(
            warnings[0].to_string(),
            "#/components/securitySchemes/typo: there is no such scheme, so the credential configured for it is not sent; there are a, b, c"
        );
        let mut sent = |security_of: Option<Json>| {
            let operation = security_of.map_or(json!({}), |needed| json!({ "security": needed }));
            security.of_operation(&operation).0.into_iter().map(|found| found.value).collect::<Vec<_>>()
        };
        assert!(sent(None).is_empty());
        assert_eq!(sent(Some(json!([{"a": []}, {"b": []}]))), ["Bearer B"]);
        assert!(sent(Some(json!([{"a": [], "b": []}]))).is_empty());
        assert!(sent(Some(json!([]))).is_empty());
        assert!(sent(Some(json!([{"c": []}, {}]))).is_empty());
        assert_eq!(sent(Some(json!([{}, {"b": []}]))), ["Bearer B"]);
        let missing: Vec<_> = security.warnings().map(|warning| warning.place).collect();
        assert_eq!(missing, ["#/components/securitySchemes/a"]);
    }

    #[test]
    fn a_sign_in_is_for_operations_that_need_it_with_the_scopes_that_they_name() {
        let flows = json!({"clientCredentials": {"tokenUrl": "https://id.example/token", "scopes": {}}});
        let document = json!({"openapi": "3.1.0", "components": {"securitySchemes": {
            "o": {"type": "oauth2", "flows": flows},
            "i": {"type": "openIdConnect", "openIdConnectUrl": "https://id.example/.well-known/openid-configuration"},
            "k": {"type": "apiKey", "in": "header", "name": "x"}}}});
        let document = Document::parse(&document.to_string()).unwrap();
        let (configured, mut warnings) = (BTreeMap::new(), Vec::new());
        let mut security = Security::of(&document, &configured, true, &mut warnings);
        for (needed, is_signed_in) in [
            (json!([{"o": ["read"]}]), true),
            (json!([{"k": []}, {"i": ["write"]}]), true),
            (json!([{"k": [], "o": ["all"]}]), false),
            (json!([]), false),
        ] {
            let (_, signed_in) = security.of_operation(&json!({ "security": needed }));
            assert_eq!(signed_in, is_signed_in, "{needed}");
        }
        let found = security.sign_in();
        assert_eq!(found.issuer.as_deref(), Some("https://id.example"));
        assert_eq!(found.token_endpoint.as_deref(), Some("https://id.example/token"));
        assert_eq!(found.scopes.to_string(), "read write");
    }
}
