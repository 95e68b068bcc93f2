//! The HTTP+JSON binding (A2A §11): `message:send`, `message:stream`, `tasks`, `tasks/ID`, `tasks/ID:cancel`, `tasks/ID:subscribe`.

use a2a::{
    A2AError, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
    ListTasksRequest, StreamResponse, SubscribeToTaskRequest, TaskPushNotificationConfig,
};
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Caller;
use super::error;
use super::rpc::{Output, alive, no_extended_card, sse, value};
use crate::http::body::Body;
use crate::http::response::{events, json};

/// The binding's own media type (A2A §14.1).
pub(super) const MEDIA_TYPE: &str = "application/a2a+json";

/// Answers a request for a path below the endpoint.
pub(super) async fn answer(
    caller: Caller,
    method: &Method,
    path: &str,
    query: Option<&str>,
    body: &[u8],
) -> Response<Body> {
    let result = match Operation::read(method, path) {
        Ok(operation) => run(&caller, operation, query, body).await,
        Err(error) => Err(error),
    };
    match result {
        Ok(Output::Value(value)) => typed(&caller.headers, json(StatusCode::OK, value.to_string())),
        Ok(Output::Stream(stream)) => {
            let wrap = |event: StreamResponse| sse(&serde_json::to_vec(&event).unwrap_or_default());
            events(alive(stream.map(wrap).boxed()))
        }
        Err(error) => refused(&caller.headers, error::status(&error), &error),
    }
}

/// The operation that a path and a method name.
#[derive(Debug, PartialEq)]
enum Operation {
    Send,
    Stream,
    List,
    Get(String),
    Cancel(String),
    Subscribe(String),
    CreatePush(String),
    ListPush(String),
    GetPush(String, String),
    DeletePush(String, String),
    ExtendedCard,
}

impl Operation {
    fn read(method: &Method, path: &str) -> Result<Self, A2AError> {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let words: Vec<String> = path.split('/').map(decoded).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let is_post = method == Method::POST;
        let is_get = matches!(*method, Method::GET | Method::HEAD);
        Ok(match words[..] {
            ["message:send"] if is_post => Self::Send,
            ["message:stream"] if is_post => Self::Stream,
            ["tasks"] if is_get => Self::List,
            ["extendedAgentCard"] if is_get => Self::ExtendedCard,
            ["tasks", task, "pushNotificationConfigs"] if is_post => Self::CreatePush(task.to_owned()),
            ["tasks", task, "pushNotificationConfigs"] if is_get => Self::ListPush(task.to_owned()),
            ["tasks", task, "pushNotificationConfigs", id] if is_get => {
                Self::GetPush(task.to_owned(), id.to_owned())
            }
            ["tasks", task, "pushNotificationConfigs", id] if method == Method::DELETE => {
                Self::DeletePush(task.to_owned(), id.to_owned())
            }
            ["tasks", task] => match task.rsplit_once(':') {
                Some((id, "cancel")) if is_post => Self::Cancel(id.to_owned()),
                // The first clients of 1.0 used POST.
                Some((id, "subscribe")) if is_post || is_get => Self::Subscribe(id.to_owned()),
                _ if is_get => Self::Get(task.to_owned()),
                _ => return Err(A2AError::method_not_found(path)),
            },
            _ => return Err(A2AError::method_not_found(path)),
        })
    }
}

async fn run(
    caller: &Caller,
    operation: Operation,
    query: Option<&str>,
    body: &[u8],
) -> Result<Output, A2AError> {
    Ok(Output::Value(match operation {
        Operation::Send => value(&caller.send(read(body)?).await?)?,
        Operation::Stream => return Ok(Output::Stream(caller.stream(read(body)?).await?)),
        Operation::List => value(&caller.list(&listed(query)?).await?)?,
        Operation::Get(id) => {
            let history_length = number(&parameters(query), "historyLength")?;
            value(&caller.get(&GetTaskRequest { id, history_length, tenant: None }).await?)?
        }
        Operation::Cancel(id) => {
            value(&caller.cancel(&CancelTaskRequest { id, metadata: None, tenant: None }).await?)?
        }
        Operation::Subscribe(id) => {
            let request = SubscribeToTaskRequest { id, tenant: None };
            return Ok(Output::Stream(caller.subscribe(&request).await?));
        }
        Operation::CreatePush(task_id) => {
            let config = TaskPushNotificationConfig { task_id, ..read(body)? };
            value(&caller.create_push(config).await?)?
        }
        Operation::ListPush(task_id) => {
            let request = ListTaskPushNotificationConfigsRequest {
                task_id,
                page_size: None,
                page_token: None,
                tenant: None,
            };
            value(&caller.list_push(&request).await?)?
        }
        Operation::GetPush(task_id, id) => {
            let request = GetTaskPushNotificationConfigRequest { task_id, id, tenant: None };
            value(&caller.get_push(&request).await?)?
        }
        Operation::DeletePush(task_id, id) => {
            let request = DeleteTaskPushNotificationConfigRequest { task_id, id, tenant: None };
            caller.delete_push(&request).await?;
            Value::Object(Map::new())
        }
        Operation::ExtendedCard => return Err(no_extended_card()),
    }))
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, A2AError> {
    serde_json::from_slice(body).map_err(|err| match err.is_data() {
        true => A2AError::invalid_params(format!("the body: {err}")),
        false => A2AError::parse_error(format!("the body is not JSON: {err}")),
    })
}

/// Returns the filter of a list.
fn listed(query: Option<&str>) -> Result<ListTasksRequest, A2AError> {
    let mut parameters = parameters(query);
    let mut members = Map::new();
    for name in ["pageSize", "historyLength"] {
        if let Some(number) = number(&parameters, name)? {
            members.insert(name.to_owned(), number.into());
        }
        parameters.retain(|(own, _)| own != name);
    }
    for (name, value) in parameters {
        let value =
            if name == "includeArtifacts" { Value::Bool(value == "true") } else { Value::String(value) };
        members.insert(name, value);
    }
    serde_json::from_value(Value::Object(members))
        .map_err(|err| A2AError::invalid_params(format!("the query: {err}")))
}

fn number(parameters: &[(String, String)], name: &str) -> Result<Option<i32>, A2AError> {
    let Some((_, text)) = parameters.iter().find(|(own, _)| own == name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| A2AError::invalid_params(format!("{name}: expected a number")))
}

pub(super) fn parameters(query: Option<&str>) -> Vec<(String, String)> {
    let decoded =
        |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect()
}

/// Returns an error, in the binding's form.
pub(super) fn refused(headers: &HeaderMap, status: StatusCode, error: &A2AError) -> Response<Body> {
    typed(headers, json(status, error::rest(status, error).to_string()))
}

/// Returns the response in the binding's own media type, for clients that accept it.
fn typed(headers: &HeaderMap, mut response: Response<Body>) -> Response<Body> {
    let named =
        [header::ACCEPT, header::CONTENT_TYPE].into_iter().flat_map(|name| headers.get_all(name));
    let mut named = named.filter_map(|value| value.to_str().ok());
    if named.any(|value| value.to_ascii_lowercase().contains(MEDIA_TYPE)) {
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_operation() {
        let id = || "a b".to_owned();
        for (method, path, operation) in [
            (Method::POST, "message:send", Some(Operation::Send)),
            (Method::POST, "message:stream", Some(Operation::Stream)),
            (Method::GET, "message:send", None),
            (Method::GET, "tasks", Some(Operation::List)),
            (Method::GET, "tasks/a%20b", Some(Operation::Get(id()))),
            (Method::POST, "tasks/a%20b:cancel", Some(Operation::Cancel(id()))),
            (Method::GET, "tasks/a%20b:subscribe", Some(Operation::Subscribe(id()))),
            (Method::GET, "tasks/x/pushNotificationConfigs", Some(Operation::ListPush("x".to_owned()))),
            (
                Method::POST,
                "tasks/x/pushNotificationConfigs",
                Some(Operation::CreatePush("x".to_owned())),
            ),
            (
                Method::DELETE,
                "tasks/x/pushNotificationConfigs/y",
                Some(Operation::DeletePush("x".to_owned(), "y".to_owned())),
            ),
            (Method::PUT, "tasks/x/pushNotificationConfigs/y", None),
            (Method::GET, "extendedAgentCard", Some(Operation::ExtendedCard)),
            (Method::GET, "nothing", None),
        ] {
            assert_eq!(Operation::read(&method, path).ok(), operation, "{method} {path}");
        }
    }

    #[test]
    fn a_query_is_a_filter() {
        let list =
            listed(Some("contextId=a%20b&pageSize=5&status=TASK_STATE_WORKING&includeArtifacts=true"))
                .unwrap();
        assert_eq!(
            (list.context_id.as_deref(), list.page_size, list.include_artifacts),
            (Some("a b"), Some(5), Some(true))
        );
        for wrong in ["pageSize=x", "status=?"] {
            assert!(listed(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
