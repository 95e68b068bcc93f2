//! MCP apart from tools, served by the surfaces of a snapshot: lists are merged, every other request
//! goes to the surface that has the subject.
//!
//! # How it works
//!
//! A surface declares the methods that it serves. A list is requested from all of them, page by page,
//! and merged: sorted, without duplicates (the first owner wins), in our own pages with our own cursors.
//! Any other request is offered to the surfaces in turn until one has the subject. Bodies are passed on
//! as text.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::future::join_all;
use orla_marketplace::{
    Call, CallContext, CapabilityMarketplace, Catalog, JsonText, Principal, Subject, Surface,
    SurfaceError,
};
use rmcp::model::{CompleteResult, CompletionInfo, ErrorCode, ErrorData};
use serde_json::value::RawValue;
use tokio::time::timeout;

use crate::mcp::protocol::PAGE;
use crate::mcp::rpc::{self, Id};
use crate::mcp::tools::{CacheHint, cursor_after, page, read_cursor};
use orla_mcp::object::{Object, empty, trusted};

/// The maximum number of pages of one surface for one list.
const MAX_PAGES: usize = 200;

/// One request to the surfaces of a snapshot.
pub(crate) struct SurfaceRequest<'a> {
    pub(crate) market: &'a CapabilityMarketplace,
    pub(crate) catalog: &'a Arc<Catalog>,
    /// What the request carries; its target is replaced by each surface's owner.
    pub(crate) call: Call,
    /// Present for sessionless requests.
    pub(crate) cache_hint: Option<CacheHint>,
    /// Set if the policy denies the request: the scopes that would help.
    pub(crate) missing_scopes: &'a OnceLock<Vec<String>>,
}

/// Maps an item's name to its subject.
type SubjectOf = fn(&str) -> Subject<'_>;

/// The lists of surfaces: the method, the member with the items, the member that names an item, and the kind of
/// subject.
const LISTS: [(&str, &str, &str, SubjectOf); 3] = [
    ("prompts/list", "prompts", "name", |name| Subject::Prompt(name)),
    ("resources/list", "resources", "uri", |uri| Subject::Resource(uri)),
    ("resources/templates/list", "resourceTemplates", "uriTemplate", |text| Subject::Template(text)),
];

/// The subject of a request, with its owned text.
struct OwnedSubject {
    name: String,
    of: SubjectOf,
}

impl OwnedSubject {
    /// Reads the subject from the parameters. A missing name is the empty text, which names nothing.
    fn of(method: &str, params: Option<&Object<'_>>) -> Self {
        let text = |object: Option<&Object<'_>>, key: &str| object?.text(key);
        let reference = params.and_then(|params| Object::parse(params.get("ref")?));
        let (name, of): (_, SubjectOf) = match (method, text(reference.as_ref(), "name")) {
            ("prompts/get", _) => (text(params, "name"), |name| Subject::Prompt(name)),
            ("completion/complete", None) => {
                (text(reference.as_ref(), "uri"), |uri| Subject::Template(uri))
            }
            ("completion/complete", name) => (name, |name| Subject::Prompt(name)),
            _ => (text(params, "uri"), |uri| Subject::Resource(uri)),
        };
        Self { name: name.unwrap_or_default(), of }
    }

    fn as_ref(&self) -> Subject<'_> {
        (self.of)(&self.name)
    }
}

/// Returns whether this is the method of a list.
pub(crate) fn is_list(method: &str) -> bool {
    LISTS.iter().any(|(list, ..)| *list == method)
}

/// Returns whether any surface of the snapshot serves this method.
pub(crate) fn serves(catalog: &Catalog, method: &str) -> bool {
    catalog.surfaces().iter().any(|surface| surface.serves(method))
}

impl SurfaceRequest<'_> {
    /// Returns one page of the merged items of all surfaces.
    pub(crate) async fn list(
        &self,
        id: &Id,
        method: &str,
        cursor: Option<&JsonText>,
    ) -> Result<Bytes, ErrorData> {
        let after = match cursor.map(JsonText::as_raw) {
            None => None,
            Some(Ok(raw)) => Some(read_cursor(raw)?),
            Some(Err(_)) => return Err(ErrorData::invalid_params("the cursor is malformed", None)),
        };
        let Some((_, member, name, subject)) = LISTS.iter().find(|(list, ..)| *list == method) else {
            return Err(method_not_found(method));
        };
        let limit = self.catalog.limits().listing_timeout;
        let collected = self.of(method).map(|surface| async move {
            let mut own = Vec::new();
            let collected = self.collect(surface, method, (member, name, *subject), &mut own);
            let collected = timeout(limit, collected).await;
            let late = |_| Err(SurfaceError::Failed(format!("no answer in {} s", limit.as_secs_f64())));
            if let Err(err) = collected.unwrap_or_else(late) {
                tracing::warn!(owner = surface.owner(), method, error = %err, "a list is incomplete");
            }
            (surface, own)
        });
        let mut items: BTreeMap<String, String> = BTreeMap::new();
        for (surface, own) in join_all(collected).await {
            for (key, item) in own {
                match items.entry(key) {
                    Entry::Vacant(free) => {
                        free.insert(item);
                    }
                    Entry::Occupied(taken) => {
                        let (owner, name) = (surface.owner(), taken.key());
                        tracing::warn!(owner, method, name, "a duplicate is left out");
                    }
                }
            }
        }
        let mut rest =
            items.into_iter().filter(|(key, _)| after.as_ref().is_none_or(|after| key > after));
        let mut text = String::new();
        let mut last = String::new();
        for (key, item) in rest.by_ref().take(PAGE) {
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(&item);
            last = key;
        }
        let next = rest.next().map(|_| cursor_after(&last));
        Ok(page(id, member, &text, next.as_deref(), self.cache_hint))
    }

    /// Answers anything but a list.
    pub(crate) async fn request(
        &self,
        id: &Id,
        method: &str,
        params: &JsonText,
    ) -> Result<Bytes, ErrorData> {
        let (_, result) = self.offer(method, params).await?;
        Ok(rpc::result(id, self.shaped(method, &result).bytes()))
    }

    /// Returns the surface that has accepted this request.
    pub(crate) async fn owner(
        &self,
        method: &str,
        params: &JsonText,
    ) -> Result<Arc<dyn Surface>, ErrorData> {
        self.offer(method, params).await.map(|(surface, _)| surface)
    }

    /// Checks that the caller may learn about a resource that another caller subscribed to.
    pub(crate) fn admitted(
        &self,
        surface: &Arc<dyn Surface>,
        uri: &str,
        params: &JsonText,
    ) -> Result<(), ErrorData> {
        let (method, subject) = ("resources/subscribe", Subject::Resource(uri));
        let admitted = self.market.admit(self.catalog, &self.call, &**surface, method, subject);
        admitted.map_err(|err| self.error(err, params))
    }

    /// Offers a request to the surfaces in turn.
    async fn offer(
        &self,
        method: &str,
        params: &JsonText,
    ) -> Result<(Arc<dyn Surface>, JsonText), ErrorData> {
        if !serves(self.catalog, method) {
            return Err(method_not_found(method));
        }
        let object = Object::parse(params.as_str());
        let subject = OwnedSubject::of(method, object.as_ref());
        let offered = self.market.request(self.catalog, &self.call, method, subject.as_ref(), params);
        offered.await.map_err(|err| self.error(err, params))
    }

    fn error(&self, err: SurfaceError, params: &JsonText) -> ErrorData {
        match err {
            SurfaceError::NotFound(what) => self.not_found(what, params),
            SurfaceError::Invalid(what) => ErrorData::invalid_params(what, None),
            SurfaceError::Refused { code, message, data } => refused(code, message, data.as_ref()),
            SurfaceError::Denied { ref scopes, .. } => {
                // A request is refused at most once.
                drop(self.missing_scopes.set(scopes.clone()));
                ErrorData::invalid_params(err.to_string(), None)
            }
            err => ErrorData::internal_error(err.to_string(), None),
        }
    }

    fn of(&self, method: &str) -> impl Iterator<Item = &Arc<dyn Surface>> {
        self.catalog.surfaces().iter().filter(move |surface| surface.serves(method))
    }

    fn context(&self, surface: &Arc<dyn Surface>) -> CallContext {
        let mut call = self.call.clone();
        call.target = surface.owner().to_owned();
        self.market.surface_context(&call)
    }

    async fn collect(
        &self,
        surface: &Arc<dyn Surface>,
        method: &str,
        (member, name, subject): (&str, &str, SubjectOf),
        items: &mut Vec<(String, String)>,
    ) -> Result<(), SurfaceError> {
        let ctx = self.context(surface);
        let broken = || SurfaceError::Failed(format!("the answer to {method} is not a list"));
        let mut params = empty();
        for _ in 0..MAX_PAGES {
            let result = surface.request(method, &params, &ctx).await?;
            let result = Object::parse(result.as_str()).ok_or_else(broken)?;
            let list: Vec<&RawValue> = result
                .get(member)
                .and_then(|list| serde_json::from_str(list).ok())
                .ok_or_else(broken)?;
            for item in list {
                let key = Object::parse(item.get()).and_then(|item| item.text(name));
                let key = key.ok_or_else(broken)?;
                let known = surface.item(subject(&key));
                let principal = self.call.scope.principal.as_ref();
                if known.is_none_or(|item| self.catalog.permits_item(principal, &item).is_err()) {
                    continue;
                }
                items.push((key, item.get().to_owned()));
            }
            match result.get("nextCursor").filter(|cursor| *cursor != "null") {
                Some(cursor) => params = trusted(format!(r#"{{"cursor":{cursor}}}"#)),
                None => return Ok(()),
            }
        }
        Err(SurfaceError::Failed(format!("the list has more than {MAX_PAGES} pages")))
    }

    /// Returns a result as its client's revision knows it.
    fn shaped(&self, method: &str, result: &JsonText) -> JsonText {
        let Some(mut object) = Object::parse(result.as_str()) else { return result.clone() };
        match self.cache_hint {
            None => object.retain(|name| !["resultType", "ttlMs", "cacheScope"].contains(&name)),
            Some(hint) => {
                if object.get("resultType").is_none() {
                    object.set("resultType", r#""complete""#);
                }
                if method == "resources/read" && object.get("ttlMs").is_none() {
                    object.set("ttlMs", hint.ttl_ms.to_string());
                    object.set("cacheScope", r#""private""#);
                }
            }
        }
        object.to_json()
    }

    fn not_found(&self, what: String, params: &JsonText) -> ErrorData {
        let params = Object::parse(params.as_str());
        if params.as_ref().is_none_or(|params| params.get("uri").is_none()) {
            return ErrorData::invalid_params(what, None);
        }
        let uri = params.and_then(|params| params.text("uri"));
        let data = uri.map(|uri| serde_json::json!({ "uri": uri }));
        let code = match self.cache_hint {
            Some(_) => ErrorCode::INVALID_PARAMS,
            None => ErrorCode::RESOURCE_NOT_FOUND,
        };
        ErrorData::new(code, what, data)
    }
}

/// Returns the error that a provider answered with, as it was.
pub(crate) fn refused(code: i64, message: String, data: Option<&JsonText>) -> ErrorData {
    let code = i32::try_from(code).map_or(ErrorCode::INTERNAL_ERROR, ErrorCode);
    ErrorData::new(code, message, data.and_then(|data| serde_json::from_str(data.as_str()).ok()))
}

/// Returns the error for an unknown method. Its message is the method's name, as in the SDK.
pub(crate) fn method_not_found(method: &str) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("method not found: {method}"), None)
}

/// Completes an argument of a tool from the `enum` of its input schema. `ref/tool` is an extension: the
/// protocol completes only prompts and resource templates.
///
/// # Errors
///
/// Returns an error if the reference or the argument is malformed, or if the tool does not exist.
pub(crate) fn complete_tool(
    catalog: &Catalog,
    params: &JsonText,
    principal: Option<&Principal>,
) -> Option<Result<CompleteResult, ErrorData>> {
    let params = Object::parse(params.as_str())?;
    let reference = Object::parse(params.get("ref")?)?;
    if reference.text("type")? != "ref/tool" {
        return None;
    }
    let complete = || {
        let invalid = |what: String| ErrorData::invalid_params(what, None);
        let tool = reference.text("name").ok_or_else(|| invalid("ref needs the tool's name".into()))?;
        let entry = catalog.visible(principal, &tool);
        let entry = entry.ok_or_else(|| invalid(format!("unknown tool: {tool}")))?;
        let argument = params.get("argument").and_then(Object::parse);
        let argument = argument.ok_or_else(|| invalid("argument must be an object".into()))?;
        let name = argument.text("name").ok_or_else(|| invalid("argument needs a name".into()))?;
        let typed = argument.text("value").unwrap_or_default();
        Ok(completion(enum_values(entry.input_schema().as_str(), &name), &typed))
    };
    Some(complete())
}

/// Returns the texts that a property may have, going by its schema.
fn enum_values(schema: &str, property: &str) -> Vec<String> {
    let Ok(schema) = serde_json::from_str::<serde_json::Value>(schema) else { return Vec::new() };
    let property = &schema["properties"][property];
    let values = property["enum"].as_array().or_else(|| property["items"]["enum"].as_array());
    let as_text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    values.map(|values| values.iter().map(as_text).collect()).unwrap_or_default()
}

fn completion(mut values: Vec<String>, typed: &str) -> CompleteResult {
    values.retain(|value| value.starts_with(typed));
    let total = u32::try_from(values.len()).ok();
    let more = values.len() > CompletionInfo::MAX_VALUES;
    values.truncate(CompletionInfo::MAX_VALUES);
    CompleteResult::new(CompletionInfo::with_pagination(values, total, more).unwrap_or_default())
}

/// Returns a completion without values.
pub(crate) fn no_completion() -> CompleteResult {
    completion(Vec::new(), "")
}

#[cfg(test)]
#[path = "surfaces_tests.rs"]
mod tests;
