//! The agent's card (A2A §4.4): its name, its addresses and its skills, derived from the catalogue.

use std::time::SystemTime;

use a2a::agent_card::{HttpAuthSecurityScheme, OpenIdConnectSecurityScheme};
use a2a::{AgentCapabilities, AgentCard, AgentInterface, AgentSkill, SecurityScheme};
use http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH, LAST_MODIFIED};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use orla_identity::IssuerOptions;
use orla_marketplace::program::IDS;
use orla_marketplace::{Catalog, Entry, TITLE};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::work::MEDIA_TYPES;
use super::{Caller, ENDPOINT, Version};
use crate::http::body::Body;
use crate::http::response::json as json_response;
use crate::state::Settings;

/// Returns the card in the form that this caller may see.
pub(super) async fn answer(
    caller: &Caller,
    settings: &Settings,
    parts: &Parts,
    version: Version,
) -> Response<Body> {
    if !matches!(parts.method, Method::GET | Method::HEAD) {
        let mut response = json_response(StatusCode::METHOD_NOT_ALLOWED, "{}");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let host = parts.headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let host = host.or_else(|| parts.uri.authority().map(http::uri::Authority::as_str));
    let market = &caller.core.market;
    market.prepare_listing().await;
    let catalog = market.snapshot();
    let card = card(caller, settings, &catalog, host.unwrap_or("localhost"));
    let text = match version {
        Version::Current => serde_json::to_vec(&card),
        Version::Older => serde_json::to_vec(&older(&card)),
    };
    let text = text.unwrap_or_default();
    let digest = Sha256::digest(&text);
    let tag = format!("\"{}\"", hex::encode(&digest[..12]));
    let named = parts.headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_known = named.flat_map(|value| value.split(',')).any(|known| {
        let known = known.trim();
        known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag
    });
    let mut response = match is_known {
        true => Response::new(Body::empty()),
        false => json_response(StatusCode::OK, text),
    };
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    // The catalogue may change at any time, and differs between callers.
    let fresh = format!("private, max-age={}", settings.options.list_ttl.as_secs());
    let since = httpdate::fmt_http_date(caller.agent().since(catalog.generation(), SystemTime::now()));
    for (name, value) in [(CACHE_CONTROL, fresh), (ETAG, tag), (LAST_MODIFIED, since)] {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(name, value);
        }
    }
    response.headers_mut().append(header::VARY, HeaderValue::from_static("authorization"));
    response
}

/// Returns the card in the form of version 0.3.
fn older(card: &AgentCard) -> Value {
    let mut older = json!({
        "protocolVersion": "0.3.0",
        "name": card.name,
        "description": card.description,
        "version": card.version,
        "url": card.supported_interfaces.first().map(|interface| &interface.url),
        "preferredTransport": "JSONRPC",
        "capabilities": {"streaming": true, "pushNotifications": false, "stateTransitionHistory": false},
        "defaultInputModes": card.default_input_modes,
        "defaultOutputModes": card.default_output_modes,
        "skills": card.skills,
    });
    if let Some(schemes) = &card.security_schemes {
        let form = |scheme: &SecurityScheme| match scheme {
            SecurityScheme::OpenIdConnect(server) => {
                json!({"type": "openIdConnect", "openIdConnectUrl": server.open_id_connect_url})
            }
            _ => json!({"type": "http", "scheme": "bearer"}),
        };
        let all = schemes.iter().map(|(name, scheme)| (name.clone(), form(scheme)));
        older["securitySchemes"] = Value::Object(all.collect());
        older["security"] = schemes.keys().map(|name| json!({name: []})).collect();
    }
    older
}

/// Returns the ways in which callers are identified, by name: bearer tokens, and authorization servers.
fn security_schemes(settings: &Settings) -> Vec<(String, SecurityScheme)> {
    let auth = &settings.options.auth;
    let is_bearer = !auth.tokens.is_empty() || auth.own_tokens.is_some();
    let bearer = is_bearer.then(|| {
        let scheme = HttpAuthSecurityScheme {
            scheme: "Bearer".to_owned(),
            description: None,
            bearer_format: None,
        };
        ("bearer".to_owned(), SecurityScheme::HttpAuth(scheme))
    });
    let server = |(at, options): (usize, &IssuerOptions)| {
        let name = if at == 0 { "oauth".to_owned() } else { format!("oauth_{}", at + 1) };
        let url = format!("{}/.well-known/openid-configuration", options.issuer.trim_end_matches('/'));
        let scheme = OpenIdConnectSecurityScheme { open_id_connect_url: url, description: None };
        (name, SecurityScheme::OpenIdConnect(scheme))
    };
    bearer.into_iter().chain(auth.issuers.iter().enumerate().map(server)).collect()
}

/// Returns the card for a client that reached the server by this host.
fn card(caller: &Caller, settings: &Settings, catalog: &Catalog, host: &str) -> AgentCard {
    let own = &settings.options.agent;
    let base = match own.url.trim_end_matches('/') {
        "" => format!("{}://{host}", if settings.options.tls.is_some() { "https" } else { "http" }),
        url => url.to_owned(),
    };
    let schemes = security_schemes(settings);
    // Any one of the schemes is enough.
    let requirements: Vec<_> =
        schemes.iter().map(|(name, _)| [(name.clone(), Vec::new())].into()).collect();
    let needs_token = !schemes.is_empty();
    let mut description = own.description.clone();
    if description.is_empty() {
        description = DESCRIPTION.to_owned();
        if may_run_programs(caller, catalog) {
            description.push_str(PROGRAMS);
        }
    }
    AgentCard {
        name: own.name.clone(),
        description,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        supported_interfaces: interfaces(&base),
        capabilities: AgentCapabilities {
            streaming: Some(true),
            push_notifications: Some(caller.core.push().is_some()),
            extensions: None,
            extended_agent_card: Some(false),
        },
        default_input_modes: modes(),
        default_output_modes: modes(),
        skills: skills(caller, catalog),
        provider: None,
        documentation_url: None,
        icon_url: None,
        security_schemes: needs_token.then(|| schemes.into_iter().collect()),
        security_requirements: needs_token.then_some(requirements),
        signatures: None,
    }
}

/// The default description of the agent.
const DESCRIPTION: &str = "Calls the capabilities of this server. A message has a data part {\"capability\": NAME, \"input\": {…}}, \
    or names a skill in its metadata (skillId) and has its input as a data part.";
/// The addition to the description for callers that may run programs.
const PROGRAMS: &str = " Or it is a program of RTFS, as text or as a data part {\"program\": TEXT}.";

fn may_run_programs(caller: &Caller, catalog: &Catalog) -> bool {
    let program = catalog.get(IDS[0]);
    program.is_some_and(|entry| catalog.permits(caller.principal.as_ref(), entry).is_ok())
}

fn modes() -> Vec<String> {
    MEDIA_TYPES.map(str::to_owned).into()
}

fn interfaces(base: &str) -> Vec<AgentInterface> {
    let at = |binding: &str| AgentInterface {
        url: format!("{base}{ENDPOINT}"),
        protocol_binding: binding.to_owned(),
        protocol_version: a2a::VERSION.to_owned(),
        tenant: None,
    };
    vec![
        at("JSONRPC"),
        at("HTTP+JSON"),
        // Without TLS, the address is written as HOST:PORT. The type does so.
        #[cfg(feature = "a2a-grpc")]
        AgentInterface { url: base.to_owned(), ..at("GRPC") },
    ]
}

/// Returns the listed capabilities that this caller may use, and programs, which need not be listed.
fn skills(caller: &Caller, catalog: &Catalog) -> Vec<AgentSkill> {
    let programs = catalog.get(IDS[0]).filter(|entry| !entry.is_listed());
    let all = catalog.offered().chain(programs);
    let permitted = all.filter(|entry| catalog.permits(caller.principal.as_ref(), entry).is_ok());
    permitted.map(|entry| skill(entry)).collect()
}

fn skill(entry: &Entry) -> AgentSkill {
    let manifest = &entry.manifest;
    let name = manifest.metadata.get(TITLE).cloned().unwrap_or_else(|| entry.name.to_string());
    AgentSkill {
        id: entry.name.to_string(),
        name,
        description: manifest.description.clone(),
        tags: vec![manifest.provider.kind().to_owned()],
        examples: None,
        input_modes: None,
        output_modes: None,
        security_requirements: None,
    }
}
