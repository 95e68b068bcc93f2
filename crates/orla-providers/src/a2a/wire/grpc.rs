//! gRPC (A2A §10), over the same pooled HTTP/2 connections as all other requests.
//!
//! The messages and their conversions are the project's own (`a2a-pb`). The project's client is not
//! used, as it opens a connection for each agent that could not be bounded or guarded here.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use a2a::{
    A2AError, CancelTaskRequest, GetTaskRequest, Part, PartContent, SendMessageRequest,
    SubscribeToTaskRequest, Task, error_code,
};
use a2a_pb::pbconv;
use a2a_pb::proto::StreamResponse;
use a2a_pb::proto::a2a_service_client::A2aServiceClient;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame};
use orla_marketplace::BoxError;
use orla_marketplace::json::whole_numbers;
use orla_oauth::root_cause;
use parking_lot::Mutex;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::{Events, Fault, MAX_MESSAGE, Wire};
use crate::sign_in::{Sender, Unanswered};

pub(super) async fn send(
    wire: &Wire,
    request: &SendMessageRequest,
    is_stream: bool,
) -> Result<Events, Fault> {
    let request = with_headers(wire, pbconv::to_proto_send_message_request(request));
    if is_stream {
        let answer =
            client(wire)?.send_streaming_message(request).await.map_err(|status| fault(&status))?;
        return Ok(events(answer.into_inner()));
    }
    let answer = client(wire)?.send_message(request).await.map_err(|status| fault(&status))?;
    let answer = match pbconv::from_proto_send_message_response(answer.get_ref()) {
        Some(a2a::SendMessageResponse::Task(task)) => a2a::StreamResponse::Task(task),
        Some(a2a::SendMessageResponse::Message(message)) => a2a::StreamResponse::Message(message),
        None => return Err(empty()),
    };
    Ok(stream::once(async { Ok(exact(answer)) }).boxed())
}

pub(super) async fn get(wire: &Wire, task: &str) -> Result<Task, Fault> {
    let request =
        GetTaskRequest { id: task.to_owned(), history_length: Some(0), tenant: wire.tenant.clone() };
    let request = with_headers(wire, pbconv::to_proto_get_task_request(&request));
    let answer = client(wire)?.get_task(request).await.map_err(|status| fault(&status))?;
    let mut task = pbconv::from_proto_task(answer.get_ref());
    exact_task(&mut task);
    Ok(task)
}

pub(super) async fn subscribe(wire: &Wire, task: &str) -> Result<Events, Fault> {
    let request = SubscribeToTaskRequest { id: task.to_owned(), tenant: wire.tenant.clone() };
    let request = with_headers(wire, pbconv::to_proto_subscribe_to_task_request(&request));
    let answer = client(wire)?.subscribe_to_task(request).await.map_err(|status| fault(&status))?;
    Ok(events(answer.into_inner()))
}

pub(super) async fn cancel(wire: &Wire, task: &str) -> Result<(), Fault> {
    let request = CancelTaskRequest { id: task.to_owned(), metadata: None, tenant: wire.tenant.clone() };
    let request = with_headers(wire, pbconv::to_proto_cancel_task_request(&request));
    client(wire)?.cancel_task(request).await.map_err(|status| fault(&status)).map(drop)
}

fn events(answer: impl Stream<Item = Result<StreamResponse, Status>> + Send + 'static) -> Events {
    let read = |item: Result<StreamResponse, Status>| match item {
        Ok(event) => pbconv::from_proto_stream_response(&event).map(exact).ok_or_else(empty),
        Err(status) => Err(fault(&status)),
    };
    answer.map(read).boxed()
}

/// Converts whole numbers of an event to integers.
fn exact(mut event: a2a::StreamResponse) -> a2a::StreamResponse {
    match &mut event {
        a2a::StreamResponse::Task(task) => exact_task(task),
        a2a::StreamResponse::Message(message) => exact_parts(&mut message.parts),
        a2a::StreamResponse::StatusUpdate(update) => {
            update.status.message.iter_mut().for_each(|message| exact_parts(&mut message.parts));
        }
        a2a::StreamResponse::ArtifactUpdate(update) => exact_parts(&mut update.artifact.parts),
    }
    event
}

fn exact_task(task: &mut Task) {
    let artifacts = task.artifacts.iter_mut().flatten().map(|artifact| &mut artifact.parts);
    let messages = task.status.message.iter_mut().chain(task.history.iter_mut().flatten());
    artifacts.chain(messages.map(|message| &mut message.parts)).for_each(|parts| exact_parts(parts));
}

fn exact_parts(parts: &mut [Part]) {
    for part in parts {
        if let PartContent::Data(data) = &mut part.content {
            whole_numbers(data);
        }
    }
}

fn client(wire: &Wire) -> Result<A2aServiceClient<Channel>, Fault> {
    let client = A2aServiceClient::with_origin(Channel::of(wire), origin(wire)?);
    Ok(client.max_decoding_message_size(MAX_MESSAGE))
}

pub(super) fn origin(wire: &Wire) -> Result<http::Uri, Fault> {
    let origin = wire.url.origin().ascii_serialization();
    origin.parse().map_err(|_| Fault::Invalid("its address is invalid".to_owned()))
}

pub(super) fn with_headers<T>(wire: &Wire, message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    *request.metadata_mut() = MetadataMap::from_headers(wire.headers.clone());
    request
}

pub(super) fn empty() -> Fault {
    Fault::Invalid("it answers with nothing".to_owned())
}

pub(super) fn fault(status: &Status) -> Fault {
    let message: String = status.message().chars().take(500).collect();
    let code = match status.code() {
        // The connection broke; tonic has no other status for it.
        Code::Unknown if std::error::Error::source(status).is_some() => {
            return Fault::Unavailable(format!("broke off: {}", root_cause(status).to_lowercase()));
        }
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => {
            return Fault::Unavailable(format!("is unavailable: {message}"));
        }
        Code::OutOfRange => return Fault::TooLarge,
        Code::Unauthenticated | Code::PermissionDenied => {
            return Fault::Invalid(format!("the credentials are missing or not accepted: {message}"));
        }
        Code::NotFound => error_code::TASK_NOT_FOUND,
        Code::Unimplemented => error_code::UNSUPPORTED_OPERATION,
        Code::InvalidArgument => error_code::INVALID_PARAMS,
        _ => error_code::INTERNAL_ERROR,
    };
    Fault::Refused(A2AError::new(code, message))
}

/// The HTTP client, as a tower service.
#[derive(Clone)]
pub(super) struct Channel(Sender);

impl Channel {
    pub(super) fn of(wire: &Wire) -> Self {
        Self(wire.sender.clone())
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<reqwest::Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let sender = self.0.clone();
        Box::pin(async move {
            let request = request.map(|body| reqwest::Body::wrap(Shared(Mutex::new(body))));
            let response = sender.execute(request.try_into()?).await;
            response.map(Response::from).map_err(|unanswered| match unanswered {
                Unanswered::Http(err) => err.into(),
                Unanswered::Token(error) => error.into(),
            })
        })
    }
}

/// A body that is `Sync`, as the client requires; it is never shared.
struct Shared(Mutex<Body>);

impl HttpBody for Shared {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let body = self.get_mut().0.get_mut();
        Pin::new(body).poll_frame(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn whole_numbers_of_an_answer_are_whole_again() {
        let given = json!({"n": 3, "a": [-1, 1.5, 9_007_199_254_740_992_i64, 1e300], "z": 0});
        let task = Task {
            id: "t".to_owned(),
            context_id: "c".to_owned(),
            status: a2a::TaskStatus {
                state: a2a::TaskState::Completed,
                message: Some(a2a::Message::new(a2a::Role::Agent, vec![Part::data(json!(7))])),
                timestamp: None,
            },
            artifacts: Some(vec![a2a::Artifact {
                artifact_id: "r".to_owned(),
                name: None,
                description: None,
                parts: vec![Part::data(given.clone())],
                metadata: None,
                extensions: None,
            }]),
            history: None,
            metadata: None,
        };
        let sent = pbconv::to_proto_stream_response(&a2a::StreamResponse::Task(task));
        let read = pbconv::from_proto_stream_response(&sent).map(exact);
        let Some(a2a::StreamResponse::Task(read)) = read else { panic!("no task") };
        assert_eq!(read.artifacts.unwrap()[0].parts[0].content, PartContent::Data(given));
        assert_eq!(read.status.message.unwrap().parts[0].content, PartContent::Data(json!(7)));
    }
}
