//! The surface of a server: prompts, resources, completion.
//!
//! Requests are passed on, and their results are returned unchanged. The names of prompts get the prefix
//! of the server's name (`SERVER__PROMPT`), or the configured prefix, so that two servers may have
//! prompts of the same name. The addresses of resources stay unchanged.

use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::{
    CallContext, Item, JsonText, Permission, Subject, Surface, SurfaceError, SurfaceNotice,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::broadcast;

use super::answer::Offers;
use super::conversation::{Ask, Fault};
use super::input_requests::{self, MAX_ROUND_TRIPS};
use super::object::{self, Object, json_string};
use super::peer::{Ending, Peer, failure};
use super::wire::RpcError;

/// The surface of one server.
#[derive(Debug)]
pub struct PeerSurface<P> {
    peer: Arc<P>,
    /// The prefix of its prompts' names.
    prefix: String,
    /// The permissions that every use of the server needs.
    needs: Vec<Permission>,
}

impl<P: Peer> PeerSurface<P> {
    /// Returns the surface of `peer`, with the prefix that was chosen for its prompts.
    pub fn new(peer: Arc<P>, prefix: Option<String>) -> Self {
        let prefix = prefix.unwrap_or_else(|| format!("{}__", peer.name()));
        Self { peer, prefix, needs: Vec::new() }
    }

    /// Returns the surface of a server. Each use needs these permissions, besides `mcp:SERVER/NAME`.
    #[must_use]
    pub fn needing(mut self, permissions: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.needs = permissions.into_iter().map(|need| Permission::needed(need.as_ref())).collect();
        self
    }

    /// Sends a request, and answers its input requests.
    async fn pass(
        &self,
        method: &str,
        params: JsonText,
        ctx: &CallContext,
    ) -> Result<JsonText, SurfaceError> {
        let mut more: Box<str> = Box::default();
        for _ in 0..MAX_ROUND_TRIPS {
            let ask = Ask::Method { method: method.into(), params: input_requests::add(&params, &more) };
            let result = self.peer.ask(ask, ctx).await;
            let result = result.map_err(|ending| surface_error(method, ending, ctx))?;
            if !input_requests::is_question(&result) {
                return Ok(result);
            }
            let answers = input_requests::answer(&result, ctx.scope.client.as_ref()).await;
            more = answers.map_err(|problem| SurfaceError::Failed(problem.to_string()))?;
        }
        Err(SurfaceError::Failed(format!("it asked for input more than {MAX_ROUND_TRIPS} times")))
    }

    /// Returns the name that a prompt has at the server.
    fn own_name<'a>(&self, name: &'a str) -> Result<&'a str, SurfaceError> {
        name.strip_prefix(&self.prefix).ok_or_else(|| not_found("prompt", name))
    }

    async fn prompt(&self, mut params: Object<'_>, ctx: &CallContext) -> Result<JsonText, SurfaceError> {
        let name = params.text("name").unwrap_or_default();
        let own = self.own_name(&name)?;
        params.set("name", json_string(own));
        match self.pass("prompts/get", params.to_json(), ctx).await {
            // Either the prompt or its arguments are unknown to the server: the code is the same.
            Err(SurfaceError::Invalid(what)) => Err(match self.has(&["prompts/list"], own, ctx).await {
                Ok(false) => not_found("prompt", &name),
                _ => SurfaceError::Invalid(what),
            }),
            answered => answered,
        }
    }

    /// Completes an argument if the server supports it. All other listed items have no values (MCP,
    /// completion).
    async fn complete(
        &self,
        mut params: Object<'_>,
        offers: &Offers,
        ctx: &CallContext,
    ) -> Result<JsonText, SurfaceError> {
        let malformed =
            || SurfaceError::Invalid("completion/complete: ref must be an object".to_owned());
        let reference = params.get("ref").unwrap_or_default().to_owned();
        let reference = Object::parse(&reference).ok_or_else(malformed)?;
        let (name, uri) = (reference.text("name"), reference.text("uri"));
        // The server gets the subject that the policy has decided on, and no other member.
        let (own, lists, unknown, exact) = match (&name, &uri) {
            (Some(name), _) => {
                let own = self.own_name(name)?;
                let exact = format!(r#"{{"type":"ref/prompt","name":{}}}"#, json_string(own));
                (own, &PROMPTS[..], not_found("prompt", name), exact)
            }
            (None, Some(uri)) => {
                let exact = format!(r#"{{"type":"ref/resource","uri":{}}}"#, json_string(uri));
                (uri.as_str(), &RESOURCES[..], not_found("resource", uri), exact)
            }
            (None, None) => return Err(malformed()),
        };
        params.remove("ref");
        params.set("ref", exact);
        if offers.completions {
            match self.pass("completion/complete", params.to_json(), ctx).await {
                Err(SurfaceError::NotFound(_)) => {}
                answered => return answered,
            }
        }
        let lists = lists.iter().copied().filter(|list| includes(offers, list)).collect::<Vec<_>>();
        match self.has(&lists, own, ctx).await? {
            true => Ok(object::trusted(NO_VALUES)),
            false => Err(unknown),
        }
    }

    /// Returns whether one of these lists of the server has an item with this name.
    async fn has(&self, lists: &[&str], name: &str, ctx: &CallContext) -> Result<bool, SurfaceError> {
        for list in lists {
            let mut params = object::empty();
            for _ in 0..MAX_PAGES {
                let page = self.pass(list, params, ctx).await?;
                let page: Page = serde_json::from_str(page.as_str())
                    .map_err(|err| SurfaceError::Failed(format!("{list}: {err}")))?;
                let items = [page.prompts, page.resources, page.resource_templates];
                if items.iter().flatten().any(|item| item.is_called(name)) {
                    return Ok(true);
                }
                let Some(cursor) = page.next_cursor else { break };
                params = object::trusted(format!(r#"{{"cursor":{}}}"#, json_string(&cursor)));
            }
        }
        Ok(false)
    }

    /// Returns the list with the prefix before each name; all other text stays unchanged.
    fn with_prefix(&self, list: &JsonText) -> JsonText {
        let Some(mut list_object) = Object::parse(list.as_str()) else { return list.clone() };
        let prompts: Vec<&RawValue> = match list_object.get("prompts").map(serde_json::from_str) {
            Some(Ok(prompts)) => prompts,
            _ => return list.clone(),
        };
        let mut renamed = String::from("[");
        for prompt in prompts {
            if renamed.len() > 1 {
                renamed.push(',');
            }
            match Object::parse(prompt.get()).and_then(|object| Some((object.text("name")?, object))) {
                Some((name, mut prompt)) => {
                    prompt.set("name", json_string(&format!("{}{name}", self.prefix)));
                    renamed.push_str(prompt.to_json().as_str());
                }
                None => renamed.push_str(prompt.get()),
            }
        }
        renamed.push(']');
        list_object.set("prompts", renamed);
        list_object.to_json()
    }
}

/// The lists of items whose arguments can be completed.
const PROMPTS: [&str; 1] = ["prompts/list"];
const RESOURCES: [&str; 2] = ["resources/templates/list", "resources/list"];
/// The maximum number of pages of a list that are searched for a name.
const MAX_PAGES: usize = 200;
/// The completion of an argument without values.
const NO_VALUES: &str = r#"{"completion":{"values":[],"total":0,"hasMore":false}}"#;

/// A page of any list of named things.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    #[serde(default)]
    prompts: Vec<Named>,
    #[serde(default)]
    resources: Vec<Named>,
    #[serde(default)]
    resource_templates: Vec<Named>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Named {
    name: Option<String>,
    uri: Option<String>,
    uri_template: Option<String>,
}

impl Named {
    /// Returns whether the item has this name. A resource is identified by its address, and only a
    /// prompt by its name.
    fn is_called(&self, name: &str) -> bool {
        let own = self.uri_template.as_ref().or(self.uri.as_ref()).or(self.name.as_ref());
        own.is_some_and(|own| own == name)
    }
}

fn not_found(kind: &str, name: &str) -> SurfaceError {
    SurfaceError::NotFound(format!("unknown {kind}: {name}"))
}

/// Returns whether the offers include a method.
fn includes(offers: &Offers, method: &str) -> bool {
    match method {
        "prompts/list" | "prompts/get" => offers.prompts,
        "resources/list" | "resources/templates/list" | "resources/read" => offers.resources,
        "resources/subscribe" | "resources/unsubscribe" => offers.subscriptions,
        // If the server does not complete, its listed items have no values.
        "completion/complete" => offers.completions || offers.prompts || offers.resources,
        _ => false,
    }
}

/// Returns the empty list of a method, if it is a list.
fn empty_list(method: &str) -> Option<&'static str> {
    match method {
        "prompts/list" => Some(r#"{"prompts":[]}"#),
        "resources/list" => Some(r#"{"resources":[]}"#),
        "resources/templates/list" => Some(r#"{"resourceTemplates":[]}"#),
        _ => None,
    }
}

#[async_trait]
impl<P: Peer + 'static> Surface for PeerSurface<P> {
    fn owner(&self) -> &str {
        self.peer.name()
    }

    fn serves(&self, method: &str) -> bool {
        // While it is unknown what the server serves, it may serve this.
        includes(&self.peer.offers().unwrap_or(Offers::ALL), method)
    }

    fn item(&self, subject: Subject<'_>) -> Option<Item> {
        let own = match subject {
            Subject::Prompt(name) => name.strip_prefix(&self.prefix)?,
            Subject::Resource(address) | Subject::Template(address) => address,
        };
        let server = self.owner();
        let mut needs = self.needs.clone();
        needs.push(Permission::needed(&format!("mcp:{server}/{own}")));
        Some(Item { id: format!("{server}.{own}"), name: subject.name().to_owned(), needs })
    }

    fn notices(&self) -> Option<broadcast::Receiver<SurfaceNotice>> {
        Some(self.peer.notices())
    }

    async fn request(
        &self,
        method: &str,
        params: &JsonText,
        ctx: &CallContext,
    ) -> Result<JsonText, SurfaceError> {
        self.peer.learn().await;
        let offers = self.peer.offers().unwrap_or_default();
        if !includes(&offers, method) {
            return match empty_list(method) {
                Some(list) => Ok(object::trusted(list)),
                None => Err(SurfaceError::NotFound(format!("{method}: not served by {}", self.owner()))),
            };
        }
        let mut params = Object::parse(params.as_str()).ok_or_else(|| {
            SurfaceError::Invalid(format!("{method}: the parameters must be an object"))
        })?;
        // The tokens in `_meta` belong to the caller's connection and must not be confused with ours.
        params.remove("_meta");
        let uri = params.text("uri").unwrap_or_default();
        match method {
            "resources/subscribe" => {
                let subscribed = self.peer.subscribe(&uri, ctx).await;
                return subscribed
                    .map(|()| object::empty())
                    .map_err(|ending| surface_error(method, ending, ctx));
            }
            "resources/unsubscribe" => {
                let unsubscribed = self.peer.unsubscribe(&uri, ctx).await;
                return unsubscribed
                    .map(|()| object::empty())
                    .map_err(|ending| surface_error(method, ending, ctx));
            }
            "prompts/get" => return self.prompt(params, ctx).await,
            "completion/complete" => return self.complete(params, &offers, ctx).await,
            _ => {}
        }
        let result = self.pass(method, params.to_json(), ctx).await?;
        Ok(if method == "prompts/list" { self.with_prefix(&result) } else { result })
    }
}

/// "Resource not found", before and after the revision that made it an invalid parameter.
const NOT_FOUND: [i64; 2] = [-32002, -32602];

fn surface_error(method: &str, ending: Ending, ctx: &CallContext) -> SurfaceError {
    match ending {
        Ending::Fault(Fault::Refused(RpcError { code, message, data })) => match method {
            "resources/read"
            | "resources/subscribe"
            | "resources/unsubscribe"
            | "completion/complete"
                if NOT_FOUND.contains(&code) =>
            {
                SurfaceError::NotFound(message)
            }
            _ if code == -32602 => SurfaceError::Invalid(message),
            _ => SurfaceError::Refused { code, message, data },
        },
        other => SurfaceError::Failed(failure(other, ctx).to_string()),
    }
}
