//! What a capsule serves besides tools: prompts, resources, completion.
//!
//! Requests are passed on, and their results come back as they were given. Prompts get the capsule's name
//! in front (`CAPSULE__PROMPT`), or the prefix that its manifest gives, so that two capsules may have
//! prompts of one name; the addresses of resources stay as they are.

use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::{CallContext, JsonText, Surface, SurfaceError, SurfaceNotice};
use serde_json::{Map, Value, json};
use tokio::sync::broadcast;

use super::answer::Offers;
use super::conversation::{Ask, Fault};
use super::wire::RpcError;
use super::{Capsule, Ending};

/// The surface of one capsule.
#[derive(Debug)]
pub struct CapsuleSurface {
    capsule: Arc<Capsule>,
    /// What stands before the names of its prompts.
    prefix: String,
    /// The prefix is its own choice: names that begin so may be another's.
    is_chosen: bool,
}

impl CapsuleSurface {
    /// The surface of `capsule`.
    pub fn new(capsule: Arc<Capsule>) -> Self {
        let chosen = capsule.package().manifest.prefix.clone();
        let is_chosen = chosen.is_some();
        let prefix = chosen.unwrap_or_else(|| format!("{}__", capsule.name()));
        Self { capsule, prefix, is_chosen }
    }

    async fn pass(
        &self,
        method: &str,
        params: Map<String, Value>,
        ctx: &CallContext,
    ) -> Result<Value, SurfaceError> {
        let params = JsonText::of(&params).map_err(|err| SurfaceError::Failed(err.to_string()))?;
        let ask = Ask::Method { method: method.into(), params };
        let result = self.capsule.ask(ask, ctx).await.map_err(|ending| failure(method, ending, ctx))?;
        serde_json::from_str(result.as_str()).map_err(|err| SurfaceError::Failed(err.to_string()))
    }

    /// The name that a prompt has in the capsule.
    fn own_name<'a>(&self, name: Option<&'a Value>) -> Result<&'a str, SurfaceError> {
        let name = name.and_then(Value::as_str).unwrap_or_default();
        name.strip_prefix(&self.prefix)
            .ok_or_else(|| SurfaceError::NotFound(format!("unknown prompt: {name}")))
    }
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

/// The member of a list's result that holds the items.
fn items_of(method: &str) -> Option<&'static str> {
    match method {
        "prompts/list" => Some("prompts"),
        "resources/list" => Some("resources"),
        "resources/templates/list" => Some("resourceTemplates"),
        _ => None,
    }
}

#[async_trait]
impl Surface for CapsuleSurface {
    fn owner(&self) -> &str {
        self.capsule.name()
    }

    fn serves(&self, method: &str) -> bool {
        // As long as it is not known what it serves, it may serve this.
        match self.capsule.offers() {
            Some(offers) => includes(&offers, method),
            None => includes(&Offers::ALL, method),
        }
    }

    fn notices(&self) -> Option<broadcast::Receiver<SurfaceNotice>> {
        Some(self.capsule.shared.told.subscribe())
    }

    async fn request(
        &self,
        method: &str,
        params: &JsonText,
        ctx: &CallContext,
    ) -> Result<JsonText, SurfaceError> {
        self.capsule.learn().await;
        let offers = self.capsule.offers().unwrap_or_default();
        let mut params: Map<String, Value> = serde_json::from_str(params.as_str()).unwrap_or_default();
        // Its tokens are the caller's affair: here they would be taken for ours.
        params.remove("_meta");
        let result = match (items_of(method), includes(&offers, method)) {
            (Some(items), false) => json!({ items: [] }),
            (None, false) => {
                return Err(SurfaceError::NotFound(format!("{method}: not served by {}", self.owner())));
            }
            (items, true) => {
                match method {
                    "prompts/get" => {
                        let name = self.own_name(params.get("name"))?.to_owned();
                        params.insert("name".to_owned(), name.into());
                    }
                    "completion/complete" => {
                        let reference = params.get_mut("ref").and_then(Value::as_object_mut);
                        if let Some(reference) =
                            reference.filter(|reference| reference.contains_key("name"))
                        {
                            let name = self.own_name(reference.get("name"))?.to_owned();
                            reference.insert("name".to_owned(), name.into());
                        }
                    }
                    "resources/unsubscribe" => {
                        let uri = params.get("uri").and_then(Value::as_str).unwrap_or_default();
                        if !self.capsule.shared.unsubscribe(uri) {
                            // Others still want to hear of it.
                            return text(&json!({}));
                        }
                    }
                    _ => {}
                }
                let uri = params.get("uri").and_then(Value::as_str).map(str::to_owned);
                let mut result = self.pass(method, params, ctx).await.map_err(|err| match err {
                    SurfaceError::Invalid(what) if method == "prompts/get" && self.is_chosen => {
                        SurfaceError::NotFound(what)
                    }
                    err => err,
                })?;
                if method == "resources/subscribe"
                    && !self.capsule.shared.subscribe(&uri.unwrap_or_default())
                {
                    return Err(SurfaceError::Failed("too many resources are subscribed to".to_owned()));
                }
                if items == Some("prompts") {
                    self.put_prefix(&mut result);
                }
                result
            }
        };
        text(&result)
    }
}

fn text(value: &Value) -> Result<JsonText, SurfaceError> {
    JsonText::of(value).map_err(|err| SurfaceError::Failed(err.to_string()))
}

impl CapsuleSurface {
    fn put_prefix(&self, list: &mut Value) {
        let prompts = list.get_mut("prompts").and_then(Value::as_array_mut);
        for prompt in prompts.into_iter().flatten() {
            if let Some(Value::String(name)) = prompt.get_mut("name") {
                name.insert_str(0, &self.prefix);
            }
        }
    }
}

/// "Resource not found", before and after the revision that made it an invalid parameter.
const NOT_FOUND: [i64; 2] = [-32002, -32602];

fn failure(method: &str, ending: Ending, ctx: &CallContext) -> SurfaceError {
    match ending {
        Ending::Fault(Fault::Refused(RpcError { code, message, .. })) => match method {
            "resources/read"
            | "resources/subscribe"
            | "resources/unsubscribe"
            | "completion/complete"
                if NOT_FOUND.contains(&code) =>
            {
                SurfaceError::NotFound(message)
            }
            _ if code == -32602 => SurfaceError::Invalid(message),
            _ => SurfaceError::Failed(format!("{message} (code {code})")),
        },
        other => SurfaceError::Failed(super::executor::failure(other, ctx).to_string()),
    }
}
