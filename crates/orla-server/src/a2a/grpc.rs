//! The gRPC binding (A2A §10), on the same port. The messages and the service come from the project's
//! own crate.

use std::pin::Pin;

use a2a::{
    A2AError, PartContent, StreamResponse, TaskPushNotificationConfig, error_code, error_reason,
    errordetails,
};
use a2a_pb::proto::a2a_service_server::{A2aService, A2aServiceServer};
use a2a_pb::{pbconv, proto};
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use orla_marketplace::json::whole_numbers;
use tonic::codegen::Service as _;
use tonic::{Code, Status, async_trait};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::{Caller, Version, version};
use crate::http::body::{self, Body};
use crate::http::response::why_unreadable;
use crate::state::Settings;

/// Answers a call.
pub(super) async fn answer(
    caller: Caller,
    settings: &Settings,
    parts: &Parts,
    body: Incoming,
) -> Response<Body> {
    if parts.method != Method::POST || !is_grpc(&parts.headers) {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return response;
    }
    let options = &settings.options;
    // Every call has one message, which is read with the same limits as every other body.
    let body = match body::read(
        body,
        caller.core.market.memory(),
        options.max_body_bytes,
        options.body_timeout,
        true,
    )
    .await
    {
        Ok(body) => body,
        Err(status) => {
            let why = why_unreadable(status, options.max_body_bytes);
            return Status::new(Code::ResourceExhausted, why)
                .into_http::<tonic::body::Body>()
                .map(Body::frames);
        }
    };
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = parts.uri.clone();
    *request.headers_mut() = parts.headers.clone();
    let mut service =
        A2aServiceServer::new(Bound { caller }).max_decoding_message_size(options.max_body_bytes);
    let response = match service.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    response.map(Body::frames)
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.is_some_and(|value| value.starts_with("application/grpc"))
}

/// One call and its caller.
struct Bound {
    caller: Caller,
}

type GrpcResult<T> = Result<tonic::Response<T>, Status>;
type Events = Pin<Box<dyn Stream<Item = Result<proto::StreamResponse, Status>> + Send>>;

impl Bound {
    fn caller(&self) -> Result<&Caller, Status> {
        let current = version(&self.caller.headers, None).and_then(Version::is_current);
        current.map_err(|error| status(&error))?;
        Ok(&self.caller)
    }
}

#[async_trait]
impl A2aService for Bound {
    type SendStreamingMessageStream = Events;
    type SubscribeToTaskStream = Events;

    async fn send_message(
        &self,
        request: tonic::Request<proto::SendMessageRequest>,
    ) -> GrpcResult<proto::SendMessageResponse> {
        let result = self.caller()?.send(sent(request.get_ref())?).await;
        result
            .map(|result| tonic::Response::new(pbconv::to_proto_send_message_response(&result)))
            .map_err(|error| status(&error))
    }

    async fn send_streaming_message(
        &self,
        request: tonic::Request<proto::SendMessageRequest>,
    ) -> GrpcResult<Events> {
        event_stream(self.caller()?.stream(sent(request.get_ref())?).await)
    }

    async fn get_task(&self, request: tonic::Request<proto::GetTaskRequest>) -> GrpcResult<proto::Task> {
        let request_message = pbconv::from_proto_get_task_request(request.get_ref());
        task(self.caller()?.get(&request_message).await)
    }

    async fn list_tasks(
        &self,
        request: tonic::Request<proto::ListTasksRequest>,
    ) -> GrpcResult<proto::ListTasksResponse> {
        let request_message = pbconv::from_proto_list_tasks_request(request.get_ref());
        let result = self.caller()?.list(&request_message).await;
        result
            .map(|result| tonic::Response::new(pbconv::to_proto_list_tasks_response(&result)))
            .map_err(|error| status(&error))
    }

    async fn cancel_task(
        &self,
        request: tonic::Request<proto::CancelTaskRequest>,
    ) -> GrpcResult<proto::Task> {
        let request_message = pbconv::from_proto_cancel_task_request(request.get_ref());
        task(self.caller()?.cancel(&request_message).await)
    }

    async fn subscribe_to_task(
        &self,
        request: tonic::Request<proto::SubscribeToTaskRequest>,
    ) -> GrpcResult<Events> {
        let request_message = pbconv::from_proto_subscribe_to_task_request(request.get_ref());
        event_stream(self.caller()?.subscribe(&request_message).await)
    }

    async fn create_task_push_notification_config(
        &self,
        request: tonic::Request<proto::TaskPushNotificationConfig>,
    ) -> GrpcResult<proto::TaskPushNotificationConfig> {
        let config = pbconv::from_proto_task_push_notification_config(request.get_ref());
        push(self.caller()?.create_push(config).await)
    }

    async fn get_task_push_notification_config(
        &self,
        request: tonic::Request<proto::GetTaskPushNotificationConfigRequest>,
    ) -> GrpcResult<proto::TaskPushNotificationConfig> {
        let request_message =
            pbconv::from_proto_get_task_push_notification_config_request(request.get_ref());
        push(self.caller()?.get_push(&request_message).await)
    }

    async fn list_task_push_notification_configs(
        &self,
        request: tonic::Request<proto::ListTaskPushNotificationConfigsRequest>,
    ) -> GrpcResult<proto::ListTaskPushNotificationConfigsResponse> {
        let request_message =
            pbconv::from_proto_list_task_push_notification_configs_request(request.get_ref());
        let listed = self.caller()?.list_push(&request_message).await.map_err(|error| status(&error))?;
        Ok(tonic::Response::new(pbconv::to_proto_list_task_push_notification_configs_response(&listed)))
    }

    async fn delete_task_push_notification_config(
        &self,
        request: tonic::Request<proto::DeleteTaskPushNotificationConfigRequest>,
    ) -> GrpcResult<()> {
        let request_message =
            pbconv::from_proto_delete_task_push_notification_config_request(request.get_ref());
        self.caller()?
            .delete_push(&request_message)
            .await
            .map(tonic::Response::new)
            .map_err(|error| status(&error))
    }

    async fn get_extended_agent_card(
        &self,
        _: tonic::Request<proto::GetExtendedAgentCardRequest>,
    ) -> GrpcResult<proto::AgentCard> {
        Err(status(&super::rpc::no_extended_card()))
    }
}

fn sent(request: &proto::SendMessageRequest) -> Result<a2a::SendMessageRequest, Status> {
    if request.message.is_none() {
        return Err(status(&A2AError::invalid_params("message: missing, and required")));
    }
    let mut sent = pbconv::from_proto_send_message_request(request);
    for part in &mut sent.message.parts {
        if let PartContent::Data(data) = &mut part.content {
            whole_numbers(data);
        }
    }
    Ok(sent)
}

fn task(result: Result<a2a::Task, A2AError>) -> GrpcResult<proto::Task> {
    result.map(|task| tonic::Response::new(pbconv::to_proto_task(&task))).map_err(|error| status(&error))
}

fn event_stream(events: Result<BoxStream<'static, StreamResponse>, A2AError>) -> GrpcResult<Events> {
    let events = events.map_err(|error| status(&error))?;
    let events = events.map(|event| Ok(pbconv::to_proto_stream_response(&event)));
    Ok(tonic::Response::new(Box::pin(events)))
}

fn push(
    result: Result<TaskPushNotificationConfig, A2AError>,
) -> GrpcResult<proto::TaskPushNotificationConfig> {
    let config = result.map_err(|error| status(&error))?;
    Ok(tonic::Response::new(pbconv::to_proto_task_push_notification_config(&config)))
}

fn status(error: &A2AError) -> Status {
    let code = match error.code {
        error_code::TASK_NOT_FOUND => Code::NotFound,
        error_code::CONTENT_TYPE_NOT_SUPPORTED
        | error_code::PARSE_ERROR
        | error_code::INVALID_REQUEST
        | error_code::INVALID_PARAMS => Code::InvalidArgument,
        error_code::METHOD_NOT_FOUND => Code::Unimplemented,
        error_code::INTERNAL_ERROR | error_code::INVALID_AGENT_RESPONSE => Code::Internal,
        _ => Code::FailedPrecondition,
    };
    let details =
        ErrorDetails::with_error_info(error_reason(error.code), errordetails::PROTOCOL_DOMAIN, []);
    Status::with_error_details(code, &error.message, details)
}
