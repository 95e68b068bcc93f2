//! Streams, and the course of a call, as server-sent events.
//!
//! A stream gives an event `item` for each of its items, and `end` or `error` as the last one. A call
//! gives `progress`, `log` and `text` while it runs, and `result` or `error` as the last one. The data
//! of `error` is a problem document. A request that is refused at once is answered with a status
//! instead.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, unfold};
use http::{Response, StatusCode};
use orla_marketplace::{Call, Notice, NoticeSink, OpenStream};
use serde_json::json;
use tokio::sync::mpsc;

use super::problem::Problem;
use super::{Answer, answer, step_up};
use crate::credential::{ENDED, StreamEnd};
use crate::http::body::Body;
use crate::http::response::{self, event};
use crate::mcp::notify::stream::KEEP_ALIVE;
use crate::state::Core;
use crate::step_up::StepUp;

/// How long to wait for an error that prevents the call, which is answered plainly.
const REFUSED_WITHIN: Duration = Duration::from_millis(250);
/// How long a stream may be quiet.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
/// The maximum number of notices that wait for a slow reader. Further ones are dropped.
const MAX_WAITING: usize = 256;

/// Opens a stream and sends its items. It ends with its client.
pub(super) async fn stream_events(core: &Arc<Core>, call: Call) -> Response<Body> {
    let principal = call.scope.principal.clone();
    match core.market.open(call).await {
        Ok(stream) => {
            let draining = core.draining.clone();
            let items = unfold(Some(stream), |stream| async {
                let stream = stream?;
                Some(next_item(stream).await)
            });
            respond(items.take_until(async move { draining.cancelled().await }).boxed())
        }
        Err(error) => {
            let result = Err(error);
            let step_up = step_up(core, principal.as_ref(), &result);
            StepUp::apply(step_up, Answer::of(&result).into_response())
        }
    }
}

async fn next_item(stream: Arc<OpenStream>) -> (Bytes, Option<Arc<OpenStream>>) {
    match stream.next().await {
        Some(Ok(item)) => match item.json() {
            Ok(json) => (event("item", json.as_str()), Some(stream)),
            Err(error) => (event("error", Problem::of(&error).json()), None),
        },
        Some(Err(error)) => (event("error", Problem::of(&error).json()), None),
        None => (event("end", "{}"), None),
    }
}

/// Makes a call and sends its events. The call is withdrawn if its client disconnects. It runs in its
/// own task, so that a client that does not read cannot prolong it.
pub(super) async fn call_events(core: &Arc<Core>, mut call: Call) -> Response<Body> {
    let (sender, mut notices) = mpsc::channel(MAX_WAITING);
    call.scope.notices = NoticeSink::new(move |notice| drop(sender.try_send(notice)));
    let token = core.abort.child_token();
    call.scope.cancellation = token.clone();
    let withdrawn = token.drop_guard();
    let own = Arc::clone(core);
    let running = core.tracker.spawn(async move { answer(&own, call).await });
    let mut work = Box::pin(async move {
        let _withdrawn = withdrawn;
        running.await.unwrap_or_else(|_| Answer::panicked())
    });
    let mut first = None;
    tokio::select! {
        biased;
        Some(notice) = notices.recv() => first = Some(notice),
        answer = &mut work => return match answer.stored.status {
            StatusCode::OK => {
                let last = futures_util::stream::iter([event("result", &answer.stored.body)]);
                respond(last.boxed())
            }
            _ => answer.into_response(),
        },
        () = tokio::time::sleep(REFUSED_WITHIN) => {}
    }
    let first = futures_util::stream::iter(first.map(|notice| notice_event(&notice)));
    let rest = unfold(Some((work, notices)), |state| async {
        let (mut work, mut notices) = state?;
        tokio::select! {
            biased;
            Some(notice) = notices.recv() => Some((notice_event(&notice), Some((work, notices)))),
            answer = &mut work => {
                let name = if answer.stored.status == StatusCode::OK { "result" } else { "error" };
                Some((event(name, &answer.stored.body), None))
            }
        }
    });
    respond(first.chain(rest).boxed())
}

/// Returns the response with these events, and with a comment when it would be silent for long.
fn respond(stream: BoxStream<'static, Bytes>) -> Response<Body> {
    let alive = unfold(stream, |mut stream| async move {
        match tokio::time::timeout(KEEP_ALIVE_EVERY, stream.next()).await {
            Ok(next) => next.map(|event| (event, stream)),
            Err(_) => Some((KEEP_ALIVE, stream)),
        }
    });
    let mut response = response::events(alive);
    let ended = Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", ENDED);
    let last = event("error", ended.json());
    response.extensions_mut().insert(StreamEnd { last, is_call: true });
    response
}

fn notice_event(notice: &Notice) -> Bytes {
    match notice {
        Notice::Progress(progress) => {
            let mut data = json!({"progress": progress.progress});
            if let Some(total) = progress.total {
                data["total"] = json!(total);
            }
            if let Some(message) = &progress.message {
                data["message"] = json!(message);
            }
            event("progress", data.to_string())
        }
        Notice::Log { level, message } => {
            event("log", json!({"level": level.as_str(), "message": &**message}).to_string())
        }
        Notice::Text(text) => event("text", json!(text).to_string()),
    }
}
