//! gRPC of 0.3 (`a2a.v1.A2AService`): its messages, for which no crate exists, and their conversion to
//! 1.x.
//!
//! Only the fields that are sent or read here are declared; protobuf skips the others.

use std::collections::HashMap;

use a2a::{
    Artifact, Message, PartContent, Role, SendMessageRequest, StreamResponse, TaskArtifactUpdateEvent,
    TaskState, TaskStatus, TaskStatusUpdateEvent,
};
use a2a_pb::pbconv::{
    from_proto_struct, json_value_to_proto_value, proto_value_to_json_value, to_proto_struct,
};
use futures_util::{StreamExt as _, stream};
use http::uri::PathAndQuery;
use orla_marketplace::json::whole_numbers;
use prost_types::Struct;
use prost_types::value::Kind;
use serde_json::Value;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;

use super::grpc::{Channel, empty, fault, origin, with_headers};
use super::{Events, Fault, MAX_MESSAGE, Wire};

const SEND: &str = "/a2a.v1.A2AService/SendMessage";
const STREAM: &str = "/a2a.v1.A2AService/SendStreamingMessage";
const GET: &str = "/a2a.v1.A2AService/GetTask";
const CANCEL: &str = "/a2a.v1.A2AService/CancelTask";
const SUBSCRIBE: &str = "/a2a.v1.A2AService/TaskSubscription";

pub(super) async fn send(
    wire: &Wire,
    request: &SendMessageRequest,
    is_stream: bool,
) -> Result<Events, Fault> {
    let request = proto::SendMessageRequest::from(request);
    if is_stream {
        return streamed(wire, STREAM, request).await;
    }
    let answer: proto::StreamResponse = unary(wire, SEND, request).await?;
    let answer = event(answer)?;
    Ok(stream::once(async { Ok(answer) }).boxed())
}

pub(super) async fn get(wire: &Wire, task: &str) -> Result<a2a::Task, Fault> {
    let task: proto::Task = unary(wire, GET, named(task)).await?;
    Ok(task.into())
}

pub(super) async fn subscribe(wire: &Wire, task: &str) -> Result<Events, Fault> {
    streamed(wire, SUBSCRIBE, named(task)).await
}

pub(super) async fn cancel(wire: &Wire, task: &str) -> Result<(), Fault> {
    let _: proto::Task = unary(wire, CANCEL, named(task)).await?;
    Ok(())
}

fn named(task: &str) -> proto::Named {
    proto::Named { name: format!("tasks/{task}") }
}

async fn unary<Q, A>(wire: &Wire, path: &'static str, request: Q) -> Result<A, Fault>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + Default + 'static,
{
    let path = PathAndQuery::from_static(path);
    let answer =
        client(wire)?.unary(with_headers(wire, request), path, ProstCodec::<Q, A>::default()).await;
    answer.map(tonic::Response::into_inner).map_err(|status| fault(&status))
}

async fn streamed<Q>(wire: &Wire, path: &'static str, request: Q) -> Result<Events, Fault>
where
    Q: prost::Message + Default + 'static,
{
    let (path, codec) =
        (PathAndQuery::from_static(path), ProstCodec::<Q, proto::StreamResponse>::default());
    let answer = client(wire)?.server_streaming(with_headers(wire, request), path, codec).await;
    let events = answer.map_err(|status| fault(&status))?.into_inner();
    Ok(events.map(|item| item.map_err(|status| fault(&status)).and_then(event)).boxed())
}

fn client(wire: &Wire) -> Result<Grpc<Channel>, Fault> {
    let client = Grpc::with_origin(Channel::of(wire), origin(wire)?);
    Ok(client.max_decoding_message_size(MAX_MESSAGE))
}

fn event(answer: proto::StreamResponse) -> Result<StreamResponse, Fault> {
    Ok(match answer.payload.ok_or_else(empty)? {
        proto::Payload::Task(task) => StreamResponse::Task(task.into()),
        proto::Payload::Message(message) => StreamResponse::Message(message.into()),
        proto::Payload::Status(update) => StreamResponse::StatusUpdate(TaskStatusUpdateEvent {
            task_id: update.task_id,
            context_id: update.context_id,
            status: status(update.status),
            metadata: None,
        }),
        proto::Payload::Artifact(update) => StreamResponse::ArtifactUpdate(TaskArtifactUpdateEvent {
            task_id: update.task_id,
            context_id: update.context_id,
            artifact: update.artifact.unwrap_or_default().into(),
            append: Some(update.append),
            last_chunk: Some(update.last_chunk),
            metadata: None,
        }),
    })
}

fn status(status: Option<proto::TaskStatus>) -> TaskStatus {
    let status = status.unwrap_or_default();
    let state = match status.state {
        1 => TaskState::Submitted,
        2 => TaskState::Working,
        3 => TaskState::Completed,
        4 => TaskState::Failed,
        5 => TaskState::Canceled,
        6 => TaskState::InputRequired,
        7 => TaskState::Rejected,
        8 => TaskState::AuthRequired,
        _ => TaskState::Unspecified,
    };
    TaskStatus { state, message: status.message.map(Message::from), timestamp: None }
}

impl From<proto::Task> for a2a::Task {
    fn from(task: proto::Task) -> Self {
        Self {
            id: task.id,
            context_id: task.context_id,
            status: status(task.status),
            artifacts: Some(task.artifacts.into_iter().map(Artifact::from).collect()),
            history: None,
            metadata: None,
        }
    }
}

impl From<proto::Artifact> for Artifact {
    fn from(artifact: proto::Artifact) -> Self {
        Self {
            artifact_id: artifact.artifact_id,
            name: some(artifact.name),
            description: some(artifact.description),
            parts: artifact.parts.into_iter().map(a2a::Part::from).collect(),
            metadata: artifact.metadata.as_ref().map(from_proto_struct),
            extensions: None,
        }
    }
}

impl From<proto::Message> for Message {
    fn from(message: proto::Message) -> Self {
        let role = if message.role == proto::USER { Role::User } else { Role::Agent };
        let parts = message.content.into_iter().map(a2a::Part::from).collect();
        Self {
            message_id: message.message_id,
            context_id: some(message.context_id),
            task_id: some(message.task_id),
            metadata: message.metadata.as_ref().map(from_proto_struct),
            ..Self::new(role, parts)
        }
    }
}

impl From<proto::Part> for a2a::Part {
    fn from(part: proto::Part) -> Self {
        let mut made = match part.content {
            Some(proto::Content::Text(text)) => Self::text(text),
            Some(proto::Content::Data(data)) => {
                let data = data.data.unwrap_or_default();
                let mut data = proto_value_to_json_value(&Kind::StructValue(data).into());
                whole_numbers(&mut data);
                Self::data(data)
            }
            Some(proto::Content::File(file)) => {
                let mut made = match file.content {
                    Some(proto::FileContent::Uri(uri)) => Self::url(uri),
                    Some(proto::FileContent::Bytes(bytes)) => Self::raw(bytes),
                    None => Self::raw(Vec::new()),
                };
                (made.media_type, made.filename) = (some(file.mime_type), some(file.name));
                made
            }
            None => Self::text(""),
        };
        made.metadata = part.metadata.as_ref().map(from_proto_struct);
        made
    }
}

impl From<&SendMessageRequest> for proto::SendMessageRequest {
    fn from(request: &SendMessageRequest) -> Self {
        let message = &request.message;
        let at_once = request.configuration.as_ref().and_then(|it| it.return_immediately);
        Self {
            message: Some(proto::Message {
                message_id: message.message_id.clone(),
                context_id: message.context_id.clone().unwrap_or_default(),
                task_id: message.task_id.clone().unwrap_or_default(),
                role: proto::USER,
                content: message.parts.iter().map(proto::Part::from).collect(),
                metadata: message.metadata.as_ref().map(to_proto_struct),
            }),
            configuration: Some(proto::Configuration { blocking: at_once != Some(true) }),
        }
    }
}

impl From<&a2a::Part> for proto::Part {
    fn from(part: &a2a::Part) -> Self {
        let file = |content| {
            let (mime_type, name) = (part.media_type.clone(), part.filename.clone());
            proto::Content::File(proto::FilePart {
                content: Some(content),
                mime_type: mime_type.unwrap_or_default(),
                name: name.unwrap_or_default(),
            })
        };
        let content = match &part.content {
            PartContent::Text(text) => proto::Content::Text(text.clone()),
            PartContent::Data(data) => {
                proto::Content::Data(proto::DataPart { data: Some(object(data)) })
            }
            PartContent::Url(url) => file(proto::FileContent::Uri(url.clone())),
            PartContent::Raw(bytes) => file(proto::FileContent::Bytes(bytes.clone())),
        };
        Self { content: Some(content), metadata: part.metadata.as_ref().map(to_proto_struct) }
    }
}

/// Converts data, which was always an object in 0.3.
fn object(data: &Value) -> Struct {
    let members: HashMap<String, Value> = match data {
        Value::Object(members) => {
            members.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
        }
        other => HashMap::from([("value".to_owned(), other.clone())]),
    };
    let fields = members.iter().map(|(name, value)| (name.clone(), json_value_to_proto_value(value)));
    Struct { fields: fields.collect() }
}

fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// The messages, as the protocol's definition numbers their members.
mod proto {
    use prost_types::Struct;

    pub(super) const USER: i32 = 1;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct SendMessageRequest {
        #[prost(message, optional, tag = "1")]
        pub(super) message: Option<Message>,
        #[prost(message, optional, tag = "2")]
        pub(super) configuration: Option<Configuration>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Configuration {
        #[prost(bool, tag = "4")]
        pub(super) blocking: bool,
    }

    /// A request about a task.
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Named {
        #[prost(string, tag = "1")]
        pub(super) name: String,
    }

    /// The events of a stream; the first two are also answers.
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct StreamResponse {
        #[prost(oneof = "Payload", tags = "1, 2, 3, 4")]
        pub(super) payload: Option<Payload>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum Payload {
        #[prost(message, tag = "1")]
        Task(Task),
        #[prost(message, tag = "2")]
        Message(Message),
        #[prost(message, tag = "3")]
        Status(StatusUpdate),
        #[prost(message, tag = "4")]
        Artifact(ArtifactUpdate),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Task {
        #[prost(string, tag = "1")]
        pub(super) id: String,
        #[prost(string, tag = "2")]
        pub(super) context_id: String,
        #[prost(message, optional, tag = "3")]
        pub(super) status: Option<TaskStatus>,
        #[prost(message, repeated, tag = "4")]
        pub(super) artifacts: Vec<Artifact>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct TaskStatus {
        #[prost(int32, tag = "1")]
        pub(super) state: i32,
        #[prost(message, optional, tag = "2")]
        pub(super) message: Option<Message>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct StatusUpdate {
        #[prost(string, tag = "1")]
        pub(super) task_id: String,
        #[prost(string, tag = "2")]
        pub(super) context_id: String,
        #[prost(message, optional, tag = "3")]
        pub(super) status: Option<TaskStatus>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ArtifactUpdate {
        #[prost(string, tag = "1")]
        pub(super) task_id: String,
        #[prost(string, tag = "2")]
        pub(super) context_id: String,
        #[prost(message, optional, tag = "3")]
        pub(super) artifact: Option<Artifact>,
        #[prost(bool, tag = "4")]
        pub(super) append: bool,
        #[prost(bool, tag = "5")]
        pub(super) last_chunk: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Artifact {
        #[prost(string, tag = "1")]
        pub(super) artifact_id: String,
        #[prost(string, tag = "3")]
        pub(super) name: String,
        #[prost(string, tag = "4")]
        pub(super) description: String,
        #[prost(message, repeated, tag = "5")]
        pub(super) parts: Vec<Part>,
        #[prost(message, optional, tag = "6")]
        pub(super) metadata: Option<Struct>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Message {
        #[prost(string, tag = "1")]
        pub(super) message_id: String,
        #[prost(string, tag = "2")]
        pub(super) context_id: String,
        #[prost(string, tag = "3")]
        pub(super) task_id: String,
        #[prost(int32, tag = "4")]
        pub(super) role: i32,
        #[prost(message, repeated, tag = "5")]
        pub(super) content: Vec<Part>,
        #[prost(message, optional, tag = "6")]
        pub(super) metadata: Option<Struct>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Part {
        #[prost(oneof = "Content", tags = "1, 2, 3")]
        pub(super) content: Option<Content>,
        #[prost(message, optional, tag = "4")]
        pub(super) metadata: Option<Struct>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum Content {
        #[prost(string, tag = "1")]
        Text(String),
        #[prost(message, tag = "2")]
        File(FilePart),
        #[prost(message, tag = "3")]
        Data(DataPart),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct FilePart {
        #[prost(oneof = "FileContent", tags = "1, 2")]
        pub(super) content: Option<FileContent>,
        #[prost(string, tag = "3")]
        pub(super) mime_type: String,
        #[prost(string, tag = "4")]
        pub(super) name: String,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum FileContent {
        #[prost(string, tag = "1")]
        Uri(String),
        #[prost(bytes = "vec", tag = "2")]
        Bytes(Vec<u8>),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct DataPart {
        #[prost(message, optional, tag = "1")]
        pub(super) data: Option<Struct>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2a::Part;
    use serde_json::json;

    #[test]
    fn parts_survive_the_older_form() {
        let mut file = Part::raw(vec![1, 2]);
        (file.media_type, file.filename) = (Some("image/png".to_owned()), Some("dot.png".to_owned()));
        for part in [
            Part::text("hi"),
            Part::data(json!({"n": 1, "a": [true, null]})),
            file,
            Part::url("http://f"),
        ] {
            let older = proto::Part::from(&part);
            let bytes = prost::Message::encode_to_vec(&older);
            let read: proto::Part = prost::Message::decode(&*bytes).unwrap();
            assert_eq!(Part::from(read), part);
        }
        assert_eq!(
            Part::from(proto::Part::from(&Part::data(json!([1.5])))),
            Part::data(json!({"value": [1.5]}))
        );
    }
}
