//! What a server serves besides tools: prompts, resources, completion.
//!
//! Requests are passed on, and their results come back as they were given. Prompts get the server's name in
//! front (`SERVER__PROMPT`), or the prefix that is configured, so that two servers may have prompts of one
//! name; the addresses of resources stay as they are.

use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::{CallContext, JsonText, Surface, SurfaceError, SurfaceNotice};
use serde_json::value::RawValue;
use tokio::sync::broadcast;

use super::answer::Offers;
use super::conversation::{Ask, Fault};
use super::object::{self, Object};
use super::peer::{Ending, Peer, failure};
use super::rounds::{self, MAX_ROUNDS};
use super::wire::RpcError;

/// The surface of one server.
#[derive(Debug)]
pub struct PeerSurface<P> {
    peer: Arc<P>,
    /// What stands before the names of its prompts.
    prefix: String,
    /// The prefix is somebody's choice: names that begin so may be another's.
    is_chosen: bool,
}

impl<P: Peer> PeerSurface<P> {
    /// The surface of `peer`, with the prefix that was chosen for its prompts.
    pub fn new(peer: Arc<P>, prefix: Option<String>) -> Self {
        let is_chosen = prefix.is_some();
        let prefix = prefix.unwrap_or_else(|| format!("{}__", peer.name()));
        Self { peer, prefix, is_chosen }
    }

    /// Asks, and answers what is asked back on the way.
    async fn pass(
        &self,
        method: &str,
        params: JsonText,
        ctx: &CallContext,
    ) -> Result<JsonText, SurfaceError> {
        let mut more: Box<str> = Box::default();
        for _ in 0..MAX_ROUNDS {
            let ask = Ask::Method { method: method.into(), params: rounds::add(&params, &more) };
            let result = self.peer.ask(ask, ctx).await;
            let result = result.map_err(|ending| surface_error(method, ending, ctx))?;
            if !rounds::is_question(&result) {
                return Ok(result);
            }
            let answers = rounds::answer(&result, ctx.client.as_ref()).await;
            more = answers.map_err(|problem| SurfaceError::Failed(problem.to_string()))?;
        }
        Err(SurfaceError::Failed(format!("it asks and asks: more than {MAX_ROUNDS} times")))
    }

    /// The name that a prompt has at the server, as JSON.
    fn own_name(&self, name: Option<String>) -> Result<String, SurfaceError> {
        let name = name.unwrap_or_default();
        match name.strip_prefix(&self.prefix) {
            Some(own) => Ok(quoted(own)),
            None => Err(SurfaceError::NotFound(format!("unknown prompt: {name}"))),
        }
    }

    /// The list with the prefix before each name; nothing else in it changes.
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
                    prompt.set("name", quoted(&format!("{}{name}", self.prefix)));
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

fn quoted(text: &str) -> String {
    let mut out = Vec::new();
    object::push_text(&mut out, text);
    String::from_utf8(out).unwrap_or_default()
}

/// Whether what is offered includes a method.
fn includes(offers: &Offers, method: &str) -> bool {
    match method {
        "prompts/list" | "prompts/get" => offers.prompts,
        "resources/list" | "resources/templates/list" | "resources/read" => offers.resources,
        "resources/subscribe" | "resources/unsubscribe" => offers.subscriptions,
        "completion/complete" => offers.completions,
        _ => false,
    }
}

/// The empty list of a method, where it gives one.
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
        // As long as it is not known what it serves, it may serve this.
        includes(&self.peer.offers().unwrap_or(Offers::ALL), method)
    }

    fn notices(&self) -> Option<broadcast::Receiver<SurfaceNotice>> {
        Some(self.peer.told())
    }

    async fn request(
        &self,
        method: &str,
        params: &JsonText,
        ctx: &CallContext,
    ) -> Result<JsonText, SurfaceError> {
        self.peer.learn().await;
        if !includes(&self.peer.offers().unwrap_or_default(), method) {
            return match empty_list(method) {
                Some(list) => Ok(object::trusted(list)),
                None => Err(SurfaceError::NotFound(format!("{method}: not served by {}", self.owner()))),
            };
        }
        let mut params = Object::parse(params.as_str())
            .ok_or_else(|| SurfaceError::Invalid(format!("{method}: its parameters are no object")))?;
        // Its tokens are the caller's affair: here they would be taken for ours.
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
            "prompts/get" => {
                let name = self.own_name(params.text("name"))?;
                params.set("name", name);
            }
            "completion/complete" => {
                let reference = params.get("ref").and_then(Object::parse);
                if let Some(mut reference) = reference.filter(|ref_| ref_.get("name").is_some()) {
                    let name = self.own_name(reference.text("name"))?;
                    reference.set("name", name);
                    let reference = reference.to_json().to_string();
                    params.set("ref", reference);
                }
            }
            _ => {}
        }
        let result = self.pass(method, params.to_json(), ctx).await.map_err(|err| match err {
            SurfaceError::Invalid(what) if method == "prompts/get" && self.is_chosen => {
                SurfaceError::NotFound(what)
            }
            err => err,
        })?;
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
