//! Imports a document: one capability for each operation. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use orla_marketplace::schema::type_from_json_schema;
use orla_marketplace::{
    ANNOTATIONS, CallPolicy, CapabilityManifest, CapabilityProvenance, CredentialPlace, DeclaredBy,
    HttpCapability, HttpCredential, ProviderType, Registration, TITLE, millis_down,
};
use serde_json::{Value as Json, json};
use url::Url;

use super::document::{Document, Warning, step};
use super::operation::{self, Operation};
use super::schema::shortened;
use super::security::{Scheme, Security};
use super::servers;
use super::settings::{Location, OpenApiSettings, Selection};
use crate::sign_in::Suggested;

/// The maximum number of operations of one document that become capabilities.
const MAX_OPERATIONS: usize = 10_000;
/// The maximum number of warnings for one document. The last one says that there are more.
const MAX_WARNINGS: usize = 1_000;
/// The maximum length of a provider name that is made from a title.
const MAX_NAME: usize = 32;
/// Metadata key: the operation's tags, separated by commas.
const TAGS: &str = "tags";

const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];
/// Other members of a path item.
const ITEM: [&str; 5] = ["$ref", "summary", "description", "servers", "parameters"];
/// The maximum number of omitted parts that one warning names.
const NAMED: usize = 10;

/// The result of an import.
#[derive(Debug)]
#[non_exhaustive]
pub struct Imported {
    /// The first part of the capabilities' ids.
    pub name: String,
    /// One capability for each operation that was chosen and could be imported, in the order of the document.
    pub registrations: Vec<Registration>,
    /// Parts that could not be imported, or not with their full meaning.
    pub warnings: Vec<Warning>,
    /// The document's information about the sign-in.
    pub sign_in: Suggested,
    /// The security schemes whose credentials can be configured.
    pub schemes: Vec<Scheme>,
}

/// Makes capabilities from a document. `source` is shown as its origin, and `at` is its address, if it
/// has one.
///
/// # Errors
/// Why no operation at all can be imported.
pub(super) fn import(
    document: &Document,
    settings: &OpenApiSettings,
    source: &str,
    at: Option<&Url>,
) -> Result<Imported, String> {
    let mut warnings = Vec::new();
    let security = Security::of(document, &settings.security, settings.auth.is_some(), &mut warnings);
    let info = |key: &str| document.root.get("info").and_then(|info| info.get(key)?.as_str());
    let name = match settings.name.as_deref().or(info("title")).map(provider_name) {
        Some(name) if !name.is_empty() => name,
        _ => "api".to_owned(),
    };
    let provenance = CapabilityProvenance {
        source: source.to_owned(),
        version: info("version").map(str::to_owned),
        // The content of an operation is its settings. The document is only their origin.
        content_hash: String::new(),
        custody_chain: vec![format!("OpenAPI document sha256:{}", document.digest)],
        registered_at: SystemTime::now(),
    };
    let mut import = Import {
        settings,
        document,
        at,
        name,
        provenance,
        security,
        taken: HashMap::new(),
        named: HashSet::new(),
        registrations: Vec::new(),
        warnings,
    };
    import.paths()?;
    let Import { name, registrations, mut warnings, security, .. } = import;
    let schemes = security.schemes(document);
    warnings.extend(security.warnings());
    let mut sign_in = security.sign_in();
    if matches!(settings.document, Location::Url(_)) {
        // The password of a client goes to the address that the user configures, not to one from a
        // fetched document.
        (sign_in.issuer, sign_in.token_endpoint) = (None, None);
    }
    if registrations.is_empty() && warnings.is_empty() {
        warnings.push(Warning::new("#/paths", "no operation is here, or none that is included"));
    }
    if warnings.len() > MAX_WARNINGS {
        let more = warnings.len() - MAX_WARNINGS + 1;
        warnings.truncate(MAX_WARNINGS - 1);
        warnings.push(Warning::new("#", format!("{more} more warnings are not shown")));
    }
    Ok(Imported { name, registrations, warnings, sign_in, schemes })
}

/// An import in progress.
struct Import<'a> {
    settings: &'a OpenApiSettings,
    document: &'a Document,
    at: Option<&'a Url>,
    name: String,
    provenance: CapabilityProvenance,
    security: Security<'a>,
    taken: HashMap<String, u32>,
    /// The origins that the document names and that get credentials.
    named: HashSet<String>,
    registrations: Vec<Registration>,
    warnings: Vec<Warning>,
}

impl Import<'_> {
    fn paths(&mut self) -> Result<(), String> {
        self.webhooks();
        let paths = match self.document.root.get("paths") {
            // 3.1 allows documents with webhooks only.
            None => return Ok(()),
            Some(paths) => self.document.resolve(paths)?.0,
        };
        let Json::Object(paths) = paths else { return Err("#/paths: expected an object".to_owned()) };
        for (path, item) in paths.iter().filter(|(path, _)| !path.starts_with("x-")) {
            let place = format!("#/paths/{}", step(path));
            if !path.starts_with('/') {
                self.leave_out(place, "a path has to begin with /; the path is left out");
                continue;
            }
            let item = match self.document.resolve(item) {
                Ok((item, _)) => item,
                Err(problem) => {
                    self.leave_out(place, format!("{problem}; the path is left out"));
                    continue;
                }
            };
            for method in METHODS {
                let Some(operation) = item.get(method) else { continue };
                let place = format!("{place}/{method}");
                let operation = match self.document.resolve(operation) {
                    Ok((operation, _)) if operation.is_object() => operation,
                    Ok(_) => {
                        self.leave_out(place, "expected an object; the operation is left out");
                        continue;
                    }
                    Err(problem) => {
                        self.leave_out(place, format!("{problem}; the operation is left out"));
                        continue;
                    }
                };
                if self.registrations.len() >= MAX_OPERATIONS {
                    let problem = format!(
                        "from here on all is left out: {MAX_OPERATIONS} operations are imported at most"
                    );
                    self.warnings.push(Warning::new(place, problem));
                    return Ok(());
                }
                if !self.is_chosen(path, method, operation) {
                    continue;
                }
                match self.operation(path, method, item, operation) {
                    Ok(registration) => self.registrations.push(registration),
                    Err(problem) => {
                        self.leave_out(place, format!("{problem}; the operation is left out"));
                    }
                }
            }
            self.other_methods(path, &place, item);
        }
        Ok(())
    }

    fn leave_out(&mut self, place: String, problem: impl Into<String>) {
        self.warnings.push(Warning::new(place, problem));
    }

    /// Warns about members of a path item that are not supported methods.
    fn other_methods(&mut self, path: &str, place: &str, item: &Json) {
        for (key, value) in item.as_object().into_iter().flatten() {
            let is_known = METHODS.contains(&&**key) || ITEM.contains(&&**key) || key.starts_with("x-");
            if is_known || (key == "trace" && !self.is_chosen(path, key, value)) {
                continue;
            }
            let problem = match key.as_str() {
                "trace" => "TRACE is not supported; the operation is left out".to_owned(),
                _ => format!("{} is not a supported method; it is left out", shortened(key)),
            };
            self.leave_out(format!("{place}/{}", step(key)), problem);
        }
    }

    /// Warns about webhooks, which an API calls and its clients do not.
    fn webhooks(&mut self) {
        let webhooks = self.document.root.get("webhooks").and_then(Json::as_object);
        let names: Vec<&str> = webhooks.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        if !names.is_empty() {
            let problem = format!("webhooks are left out: {}", named(&names));
            self.leave_out("#/webhooks".to_owned(), problem);
        }
    }

    fn is_chosen(&self, path: &str, method: &str, operation: &Json) -> bool {
        let id = operation.get("operationId").and_then(Json::as_str);
        let made = made_id(path, method);
        let with_method = format!("{} {path}", method.to_ascii_uppercase());
        let fits = |selection: &Selection| match selection {
            Selection::Tag(pattern) => tags(operation).any(|tag| pattern.matches(tag)),
            Selection::Operation(pattern) => pattern.matches(id.unwrap_or(&made)),
            Selection::Path(pattern) => pattern.matches(path) || pattern.matches(&with_method),
        };
        (self.settings.include.is_empty() || self.settings.include.iter().any(fits))
            && !self.settings.exclude.iter().any(fits)
    }

    fn operation(
        &mut self,
        path: &str,
        method: &str,
        item: &Json,
        operation: &Json,
    ) -> Result<Registration, String> {
        let none = Json::Null;
        let shared = item.get("parameters").unwrap_or(&none);
        let Operation { options, input, output } = operation::read(
            self.document,
            path,
            method,
            operation,
            shared,
            self.settings.output_schemas,
        )?;
        let (credentials, is_signed_in) = self.credentials(operation);
        let base_url = match &self.settings.base_url {
            Some(base_url) => base_url.clone(),
            None => {
                let has_credentials = !credentials.is_empty() || is_signed_in;
                self.server([operation, item, &self.document.root], has_credentials)?
            }
        };
        let timeout_ms = self.settings.timeout.map_or(0, millis_down);
        let mut http = HttpCapability::new(base_url, None, timeout_ms);
        http.options = options;
        http.options.credentials = credentials;
        http.options.sign_in =
            self.settings.name.as_deref().filter(|_| is_signed_in).map(super::sign_in_key);
        crate::http::check(&http)?;
        let mut policy = CallPolicy::default();
        policy.input_declared_by = DeclaredBy::Provider;
        policy.output_declared_by = DeclaredBy::Provider;
        policy.timeout = self.settings.timeout;
        policy.redaction.clone_from(&self.settings.redaction);
        policy.upstream = crate::http::origin(&http).map(Arc::from);
        let id = self.id(path, method, operation);
        let mut manifest =
            CapabilityManifest::new(id, words(path, method, operation), ProviderType::Http(http));
        manifest.version = self.provenance.version.clone().unwrap_or_default();
        manifest.input_schema = Some(type_from_json_schema(&input));
        manifest.output_schema = output.as_ref().map(type_from_json_schema);
        manifest.provenance = Some(self.provenance.clone());
        manifest.metadata.insert(ANNOTATIONS.to_owned(), annotations(method).to_string());
        let summary = operation.get("summary").and_then(Json::as_str).map(str::trim);
        if let Some(summary) = summary.filter(|summary| !summary.is_empty() && summary.len() <= 200) {
            manifest.metadata.insert(TITLE.to_owned(), summary.to_owned());
        }
        let tags: Vec<_> = tags(operation).collect();
        if !tags.is_empty() {
            manifest.metadata.insert(TAGS.to_owned(), tags.join(", "));
        }
        Ok(Registration { manifest, policy })
    }

    /// Returns the credentials of an operation's requests.
    fn credentials(&mut self, operation: &Json) -> (Vec<HttpCredential>, bool) {
        let (mut credentials, is_signed_in) = self.security.of_operation(operation);
        // Headers are passed as credentials, since they are not templates and often secret.
        credentials.extend(self.settings.headers.iter().map(|(name, value)| HttpCredential {
            place: CredentialPlace::Header(name.clone()),
            value: value.clone(),
        }));
        (credentials, is_signed_in)
    }

    /// Returns the server of requests: the first of `levels` that names one.
    fn server(&mut self, levels: [&Json; 3], has_credentials: bool) -> Result<String, String> {
        let servers = levels.iter().find_map(|level| level.get("servers"));
        let address = servers::first(servers, self.at)?;
        let (Some(document), Ok(server)) = (self.at, Url::parse(&address)) else { return Ok(address) };
        let origin = server.origin().ascii_serialization();
        if !servers::may_name(document, &server) {
            return Err(format!(
                "its server {origin} is a private address; set base_url to it if that is intended"
            ));
        }
        if has_credentials && server.origin() != document.origin() && self.named.insert(origin.clone()) {
            let problem = format!(
                "credentials go to {origin}, which the document names; set base_url to be sure where they go"
            );
            self.warnings.push(Warning::new("#/servers", problem));
        }
        Ok(address)
    }

    /// Returns the id `NAME.OPERATION`, made unique.
    fn id(&mut self, path: &str, method: &str, operation: &Json) -> String {
        const MAX_ID: usize = 200;
        let own = operation.get("operationId").and_then(Json::as_str).map(|id| {
            let plain = |c: char| if c.is_whitespace() || c.is_control() { '_' } else { c };
            id.trim().chars().map(plain).take(MAX_ID).collect::<String>()
        });
        let own = own.filter(|id| !id.is_empty()).unwrap_or_else(|| made_id(path, method));
        let id = format!("{}.{own}", self.name);
        // The next number is remembered, because thousands of operations may have the same id.
        let mut next = self.taken.get(&id).copied().unwrap_or(1);
        let mut unlike = id.clone();
        while self.taken.contains_key(&unlike) {
            next += 1;
            unlike = format!("{id}_{next}");
        }
        self.taken.insert(id, next);
        self.taken.entry(unlike.clone()).or_insert(1);
        unlike
    }
}

/// Makes an id for an operation that has none: `get_pets_petId`.
fn made_id(path: &str, method: &str) -> String {
    let mut id = method.to_owned();
    for word in path.split(|c: char| !(c.is_alphanumeric() || c == '-')).filter(|word| !word.is_empty())
    {
        id.push('_');
        id.push_str(word);
    }
    id
}

/// Makes the first part of ids from a title: `Swagger Petstore - 3.0` → `swagger_petstore_3_0`.
fn provider_name(title: &str) -> String {
    let lower = title.to_lowercase();
    let words =
        lower.split(|c: char| !(c.is_alphanumeric() || c == '-')).map(|word| word.trim_matches('-'));
    let mut name = String::new();
    for word in words.filter(|word| !word.is_empty()) {
        if name.len() + word.len() >= MAX_NAME && !name.is_empty() {
            break;
        }
        if !name.is_empty() {
            name.push('_');
        }
        name.extend(word.chars().take(MAX_NAME));
    }
    name
}

/// Returns the description of an operation from the document.
fn words(path: &str, method: &str, operation: &Json) -> String {
    let text = |key| operation.get(key).and_then(Json::as_str).map(str::trim).unwrap_or_default();
    let (summary, description) = (text("summary"), text("description"));
    let mut words = match (summary, description) {
        ("", "") => format!("{} {path}", method.to_ascii_uppercase()),
        ("", only) | (only, "") => only.to_owned(),
        (summary, description) if description.starts_with(summary) => description.to_owned(),
        (summary, description) => format!("{summary}\n\n{description}"),
    };
    if operation.get("deprecated") == Some(&Json::Bool(true)) {
        words.insert_str(0, "Deprecated. ");
    }
    shortened(&words)
}

fn tags(operation: &Json) -> impl Iterator<Item = &str> {
    operation.get("tags").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str)
}

/// Returns the semantics of a method (RFC 9110 §9.2).
fn annotations(method: &str) -> Json {
    match method {
        "get" | "head" | "options" => {
            json!({"readOnlyHint": true, "idempotentHint": true, "openWorldHint": true})
        }
        "put" => json!({"readOnlyHint": false, "idempotentHint": true, "openWorldHint": true}),
        "delete" => json!({
            "readOnlyHint": false, "destructiveHint": true, "idempotentHint": true, "openWorldHint": true,
        }),
        _ => json!({"readOnlyHint": false, "idempotentHint": false, "openWorldHint": true}),
    }
}

/// Joins names for a sentence, as many as a warning lists.
fn named(names: &[&str]) -> String {
    let shown = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The default timeout of fetching a document.
pub(super) const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
