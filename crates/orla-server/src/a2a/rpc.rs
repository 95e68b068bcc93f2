//! The JSON-RPC binding (A2A §9): one request for each body. A stream consists of server-sent events,
//! each with a response.

use a2a::{A2AError, JsonRpcId, JsonRpcRequest, JsonRpcResponse, StreamResponse, methods};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use http::{Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::view::is_callers_turn;
use super::{Caller, Version, older};
use crate::http::body::Body;
use crate::http::response::{events, json};

/// Answers a body.
pub(super) async fn answer(
    caller: Caller,
    version: Result<Version, A2AError>,
    body: &[u8],
) -> Response<Body> {
    let request: JsonRpcRequest = match serde_json::from_slice(body) {
        Ok(request) => request,
        Err(err) => {
            let id = serde_json::from_slice::<Value>(body).ok();
            let id = id.and_then(|value| serde_json::from_value(value.get("id")?.clone()).ok());
            let error = match err.is_data() {
                true => A2AError::invalid_request(format!("invalid request: {err}")),
                false => A2AError::parse_error(format!("not JSON: {err}")),
            };
            return failed(id.unwrap_or(JsonRpcId::Null), &error);
        }
    };
    let id = request.id.clone();
    if request.jsonrpc != "2.0" {
        return failed(id, &A2AError::invalid_request("jsonrpc: expected \"2.0\""));
    }
    let is_older = matches!(version, Ok(Version::Older));
    let request = match version {
        Ok(Version::Older) => current(request),
        Ok(Version::Current) => Ok(request),
        Err(error) => Err(error),
    };
    let result = match request {
        Ok(request) => run(&caller, request).await,
        Err(error) => Err(error),
    };
    match result {
        Ok(Output::Value(value)) => {
            let value = if is_older { older::answer(value) } else { value };
            json(StatusCode::OK, response(&JsonRpcResponse::success(id, value)))
        }
        Ok(Output::Stream(stream)) => {
            let wrap = move |event: StreamResponse| {
                let is_last = is_older && is_last(&event);
                let value = serde_json::to_value(event).unwrap_or_default();
                let value = if is_older { older::event(value, is_last) } else { value };
                sse(&response(&JsonRpcResponse::success(id.clone(), value)))
            };
            events(alive(stream.map(wrap).boxed()))
        }
        Err(error) => failed(id, &error),
    }
}

/// Returns a request of 0.3 as one of 1.0.
fn current(request: JsonRpcRequest) -> Result<JsonRpcRequest, A2AError> {
    let push = request.params.as_ref().and_then(|params| params.pointer(older::PUSH));
    if push.is_some_and(|push| !push.is_null()) {
        // A client that asks for this would wait forever.
        return Err(A2AError::push_notification_not_supported());
    }
    match older::method(&request.method) {
        Some(method) => Ok(JsonRpcRequest {
            method: method.to_owned(),
            params: request.params.map(older::parameters),
            ..request
        }),
        None if request.method.starts_with("tasks/pushNotificationConfig/") => {
            Err(A2AError::push_notification_not_supported())
        }
        // Methods of that version have a slash in their names.
        None if request.method.contains('/') => Err(A2AError::method_not_found(&request.method)),
        None => Version::Older.is_current().and(Ok(request)),
    }
}

/// Returns whether an event is the last one of a message's stream.
fn is_last(event: &StreamResponse) -> bool {
    matches!(event, StreamResponse::StatusUpdate(update) if is_callers_turn(&update.status.state))
}

/// The output of an operation: one value, or a stream of events.
pub(super) enum Output {
    Value(Value),
    Stream(BoxStream<'static, StreamResponse>),
}

async fn run(caller: &Caller, request: JsonRpcRequest) -> Result<Output, A2AError> {
    let params = request.params;
    Ok(Output::Value(match request.method.as_str() {
        methods::SEND_MESSAGE => value(&caller.send(read(params)?).await?)?,
        methods::SEND_STREAMING_MESSAGE => {
            return Ok(Output::Stream(caller.stream(read(params)?).await?));
        }
        methods::GET_TASK => value(&caller.get(&read(params)?).await?)?,
        methods::LIST_TASKS => value(&caller.list(&read(params)?).await?)?,
        methods::CANCEL_TASK => value(&caller.cancel(&read(params)?).await?)?,
        methods::SUBSCRIBE_TO_TASK => {
            return Ok(Output::Stream(caller.subscribe(&read(params)?).await?));
        }
        methods::CREATE_PUSH_CONFIG => value(&caller.create_push(read(params)?).await?)?,
        methods::GET_PUSH_CONFIG => value(&caller.get_push(&read(params)?).await?)?,
        methods::LIST_PUSH_CONFIGS => value(&caller.list_push(&read(params)?).await?)?,
        methods::DELETE_PUSH_CONFIG => {
            caller.delete_push(&read(params)?).await?;
            Value::Object(Map::new())
        }
        methods::GET_EXTENDED_AGENT_CARD => return Err(no_extended_card()),
        other => return Err(A2AError::method_not_found(other)),
    }))
}

/// Returns the error for the extended card, which does not exist.
pub(super) fn no_extended_card() -> A2AError {
    A2AError::unsupported_operation("there is only the public card")
}

/// Reads the parameters. As in all ProtoJSON, a member may also have its name in the message definition:
/// `history_length`.
fn read<T: DeserializeOwned>(params: Option<Value>) -> Result<T, A2AError> {
    let params = match params.unwrap_or_else(|| Value::Object(Map::new())) {
        Value::Object(mut members) => {
            let others: Vec<String> =
                members.keys().filter(|name| name.contains('_')).cloned().collect();
            for name in others {
                if let Some(value) = members.remove(&name) {
                    members.entry(camel(&name)).or_insert(value);
                }
            }
            Value::Object(members)
        }
        other => other,
    };
    serde_json::from_value(params).map_err(|err| A2AError::invalid_params(format!("params: {err}")))
}

/// Converts `history_length` to `historyLength`.
fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut whole, word| {
        let mut letters = word.chars();
        whole.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        whole.push_str(letters.as_str());
        whole
    })
}

/// Converts a value to JSON.
pub(super) fn value<T: Serialize>(output: &T) -> Result<Value, A2AError> {
    serde_json::to_value(output).map_err(|err| A2AError::internal(err.to_string()))
}

fn response(response: &JsonRpcResponse) -> Vec<u8> {
    serde_json::to_vec(response).unwrap_or_default()
}

fn failed(id: JsonRpcId, error: &A2AError) -> Response<Body> {
    json(StatusCode::OK, response(&JsonRpcResponse::error(id, error.to_jsonrpc_error())))
}

/// Returns the response to a request that was refused before it was read.
pub(super) fn refused(status: StatusCode, error: &A2AError) -> Response<Body> {
    let mut response = failed(JsonRpcId::Null, error);
    *response.status_mut() = status;
    response
}

/// Returns a server-sent event.
pub(super) fn sse(data: &[u8]) -> Bytes {
    [b"data: ", data, b"\n\n"].concat().into()
}

/// Adds a comment to a stream after long silence.
pub(super) fn alive(stream: BoxStream<'static, Bytes>) -> BoxStream<'static, Bytes> {
    const EVERY: std::time::Duration = std::time::Duration::from_secs(15);
    futures_util::stream::unfold(stream, |mut stream| async move {
        let next = tokio::time::timeout(EVERY, stream.next()).await;
        match next {
            Ok(next) => next.map(|event| (event, stream)),
            Err(_) => Some((crate::mcp::notify::stream::KEEP_ALIVE, stream)),
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2a::GetTaskRequest;
    use serde_json::json;

    #[test]
    fn parameters_have_either_of_their_names() {
        for params in [
            json!({"id": "t", "historyLength": 3}),
            json!({"id": "t", "history_length": 3}),
            json!({"id": "t", "history_length": 4, "historyLength": 3}),
        ] {
            let request: GetTaskRequest = read(Some(params.clone())).unwrap();
            assert_eq!(request.history_length, Some(3), "{params}");
        }
        for (name, expected) in
            [("status_timestamp_after", "statusTimestampAfter"), ("_", ""), ("id", "id")]
        {
            assert_eq!(camel(name), expected);
        }
    }
}
