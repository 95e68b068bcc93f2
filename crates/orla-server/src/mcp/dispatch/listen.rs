//! Requests for notifications of changes: a session's subscriptions to resources, and the stream on
//! which a sessionless client listens.

use std::sync::Arc;

use bytes::Bytes;
use orla_marketplace::{Call, JsonText};
use rmcp::model::{ErrorData, SubscriptionFilter, SubscriptionsListenRequestParams};
use serde::Serialize;

use crate::mcp::dispatch::Caller;
use crate::mcp::notify::notices::{list_changed, resource_updated};
use crate::mcp::notify::subscriptions::{MAX_SUBSCRIPTIONS, Subscriber, Subscription};
use crate::mcp::protocol::META_SUBSCRIPTION_ID;
use crate::mcp::rpc::{self, Id, push_json};
use crate::mcp::session::other_nodes;
use crate::mcp::surfaces::{self, SurfaceRequest, method_not_found};
use crate::mcp::tasks::watch::WatchedTasks;
use crate::state::{Core, capabilities, implementation};
use orla_mcp::object::Object;

/// Subscribes a session to a resource.
pub(crate) async fn subscribe(
    core: &Arc<Core>,
    id: &Id,
    params: &JsonText,
    call: Call,
    caller: &Caller,
) -> Result<Bytes, ErrorData> {
    let uri = uri_of(params)?;
    let Some(session) = &caller.session else { return Err(method_not_found("resources/subscribe")) };
    let full = |max| ErrorData::invalid_params(format!("more than {max} subscriptions"), None);
    if !session.is_subscribed(&uri).map_err(full)?
        && !other_nodes::is_subscribed(core, session, &uri).await
    {
        let newest = core.market.snapshot();
        let asking = caller.surface_request(core, &newest, call);
        let joined = core.subscriptions.join(core, &asking, &uri, session.subscriber()).await?;
        session.subscribe(&uri, joined);
        if let Err(why) = other_nodes::record_subscription(core, session, &uri).await {
            drop(session.unsubscribe(&uri));
            return Err(ErrorData::invalid_params(why, None));
        }
    }
    Ok(rpc::result(id, b"{}"))
}

pub(crate) async fn unsubscribe(
    core: &Core,
    id: &Id,
    params: &JsonText,
    caller: &Caller,
) -> Result<Bytes, ErrorData> {
    let uri = uri_of(params)?;
    let Some(session) = &caller.session else { return Err(method_not_found("resources/unsubscribe")) };
    let subscription = session.unsubscribe(&uri);
    let is_known = other_nodes::remove_subscription(core, session, &uri).await || subscription.is_some();
    if !is_known && !surfaces::serves(&core.market.snapshot(), "resources/subscribe") {
        return Err(method_not_found("resources/unsubscribe"));
    }
    if let Some(subscription) = subscription {
        subscription.leave(core).await;
    }
    Ok(rpc::result(id, b"{}"))
}

fn uri_of(params: &JsonText) -> Result<String, ErrorData> {
    let uri = Object::parse(params.as_str()).and_then(|params| params.text("uri"));
    uri.ok_or_else(|| ErrorData::invalid_params("uri, the resource's address, must be a string", None))
}

/// The content of a stream, as its acknowledgement names it.
#[derive(Serialize)]
struct Accepted<'a> {
    #[serde(flatten)]
    filter: &'a SubscriptionFilter,
    #[serde(rename = "taskIds", skip_serializing_if = "Vec::is_empty")]
    task_ids: Vec<String>,
}

/// Notifies a sessionless client of changes until it disconnects or the server stops.
pub(crate) async fn listen(
    core: &Arc<Core>,
    id: &Id,
    params: &JsonText,
    call: Call,
    caller: &Caller,
    declares_tasks: bool,
) -> Result<Bytes, ErrorData> {
    let mut watched = WatchedTasks::of(core, caller.task_caller(), params, declares_tasks).await?;
    let params: SubscriptionsListenRequestParams = serde_json::from_str(params.as_str())
        .map_err(|err| ErrorData::invalid_params(format!("subscriptions/listen: {err}"), None))?;
    let Some(outlet) = &caller.outlet else {
        return Err(ErrorData::internal_error("this transport carries no notifications", None));
    };
    // The subscription precedes the acknowledgement, so no change is missed.
    let mut lists = core.lists.subscribe();
    let mut notified = *lists.borrow_and_update();
    let newest = core.market.snapshot();
    let mut accepted = params.notifications.supported_by(&capabilities(&newest));
    let subscriber = Arc::new(Subscriber::new(caller.principal.clone()));
    let mut subscriptions = Vec::new();
    if let Some(wanted) = accepted.resource_subscriptions.take() {
        let request = caller.surface_request(core, &newest, call);
        let found;
        (subscriptions, found) = subscribe_all(core, &request, wanted, &subscriber).await?;
        accepted.resource_subscriptions = (!found.is_empty()).then_some(found);
    }
    outlet.send(acknowledgement(id, &Accepted { filter: &accepted, task_ids: watched.ids() }));
    loop {
        tokio::select! {
            () = caller.cancellation.cancelled() => break,
            () = core.draining.cancelled() => break,
            changed = lists.changed() => {
                if changed.is_err() {
                    break;
                }
            }
            () = subscriber.woken.notified() => {}
            changed = watched.changed() => {
                outlet.send(watched.notification(&changed, id).await?);
                continue;
            }
        }
        for list in lists.borrow_and_update().changed_since(&mut notified) {
            let wanted = match list {
                "tools" => accepted.tools_list_changed,
                "prompts" => accepted.prompts_list_changed,
                _ => accepted.resources_list_changed,
            };
            if wanted == Some(true) {
                outlet.send(list_changed(list, Some(id)));
            }
        }
        for uri in subscriber.take() {
            outlet.send(resource_updated(&uri, Some(id)));
        }
    }
    drop(subscriptions);
    Ok(end_of_stream(id))
}

/// Subscribes to these resources. Returns the subscriptions, and the resources that a surface has; the others
/// are not acknowledged.
async fn subscribe_all(
    core: &Arc<Core>,
    request: &SurfaceRequest<'_>,
    wanted: Vec<String>,
    subscriber: &Arc<Subscriber>,
) -> Result<(Vec<Subscription>, Vec<String>), ErrorData> {
    if wanted.len() > MAX_SUBSCRIPTIONS {
        let what = format!("more than {MAX_SUBSCRIPTIONS} subscriptions");
        return Err(ErrorData::invalid_params(what, None));
    }
    let (mut subscriptions, mut found) = (Vec::new(), Vec::new());
    for uri in wanted {
        if let Ok(joined) = core.subscriptions.join(core, request, &uri, subscriber).await {
            subscriptions.push(joined);
            found.push(uri);
        }
    }
    Ok((subscriptions, found))
}

fn acknowledgement(id: &Id, accepted: &Accepted<'_>) -> Bytes {
    let mut acknowledged = Vec::new();
    acknowledged.extend_from_slice(
        br#"{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{""#,
    );
    acknowledged.extend_from_slice(format!("{META_SUBSCRIPTION_ID}\":{}", id.as_str()).as_bytes());
    acknowledged.extend_from_slice(br#"},"notifications":"#);
    push_json(&mut acknowledged, accepted);
    acknowledged.extend_from_slice(b"}}");
    acknowledged.into()
}

fn end_of_stream(id: &Id) -> Bytes {
    let mut ended = Vec::new();
    ended.extend_from_slice(format!(
        r#"{{"resultType":"complete","_meta":{{"{META_SUBSCRIPTION_ID}":{},"io.modelcontextprotocol/serverInfo":"#,
        id.as_str()
    ).as_bytes());
    push_json(&mut ended, &implementation());
    ended.extend_from_slice(b"}}");
    rpc::result(id, &ended)
}
