//! The settings of capabilities that are streams (RTFS capability system §3.2).

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use rtfs::TypeExpr;

use super::ProviderType;
use crate::id::Pattern;

/// A stream of values (RTFS capability system §3.2).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamCapabilityImpl {
    /// The provider of the stream: an HTTP endpoint, or a program (`plugin_path`).
    pub provider: Box<ProviderType>,
    /// The directions in which values flow.
    pub stream_type: StreamType,
    /// The type of each value that is sent.
    pub input_schema: Option<TypeExpr>,
    /// The type of each item.
    pub output_schema: Option<TypeExpr>,
    /// Whether a call reports how many items have arrived.
    pub supports_progress: bool,
    /// Whether the stream can be cancelled.
    pub supports_cancellation: bool,
    /// Settings beyond the RTFS document.
    pub options: Box<StreamOptions>,
}

impl StreamCapabilityImpl {
    /// Creates a stream through `provider`: untyped, with progress, cancellable.
    pub fn new(provider: ProviderType, stream_type: StreamType) -> Self {
        Self {
            provider: Box::new(provider),
            stream_type,
            input_schema: None,
            output_schema: None,
            supports_progress: true,
            supports_cancellation: true,
            options: Box::default(),
        }
    }
}

/// The directions in which a stream's values flow, as seen from orla.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamType {
    /// The stream produces values.
    Source,
    /// The stream accepts values.
    Sink,
    /// The stream returns values for the values that it receives, and ends after the last one.
    Transform,
    /// Values flow in both directions, in turn.
    Bidirectional,
    /// Values flow in both directions, at the same time.
    Duplex,
}

impl StreamType {
    /// All types, with their names.
    pub const ALL: [(&'static str, Self); 5] = [
        ("source", Self::Source),
        ("sink", Self::Sink),
        ("transform", Self::Transform),
        ("bidirectional", Self::Bidirectional),
        ("duplex", Self::Duplex),
    ];

    /// Returns whether values can be sent to the stream.
    pub fn takes(self) -> bool {
        self != Self::Source
    }

    /// Returns whether the stream produces values.
    pub fn gives(self) -> bool {
        self != Self::Sink
    }
}

/// The transport of a stream's items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamTransport {
    /// Server-sent events.
    #[default]
    Sse,
    /// Lines of an HTTP body.
    Ndjson,
    /// Messages of a WebSocket.
    WebSocket,
    /// Lines of a program's standard streams.
    Lines,
}

impl StreamTransport {
    /// All transports, with their names.
    pub const ALL: [(&'static str, Self); 4] = [
        ("sse", Self::Sse),
        ("ndjson", Self::Ndjson),
        ("websocket", Self::WebSocket),
        ("lines", Self::Lines),
    ];
}

/// The format of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamItems {
    /// JSON if it can be parsed as JSON, or else text.
    #[default]
    Auto,
    /// JSON; anything else is an error.
    Json,
    /// Text, even if it looks like JSON.
    Text,
}

impl StreamItems {
    /// All formats, with their names.
    pub const ALL: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("json", Self::Json), ("text", Self::Text)];
}

/// The encoding of a text that is sent. Other values are always sent as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendAs {
    /// Unchanged.
    Text,
    /// As JSON, in quotes.
    Json,
}

impl SendAs {
    /// All encodings, with their names.
    pub const ALL: [(&'static str, Self); 2] = [("text", Self::Text), ("json", Self::Json)];
}

/// Settings of a stream beyond the RTFS document.
#[derive(Clone)]
#[non_exhaustive]
pub struct StreamOptions {
    /// The transport of items.
    pub transport: StreamTransport,
    /// The arguments of a program.
    pub args: Vec<String>,
    /// The environment variables of a program.
    pub env: BTreeMap<String, String>,
    /// Patterns of the server's variables that a program gets besides the usual ones.
    pub pass_env: Vec<Pattern>,
    /// The working directory of a program.
    pub directory: Option<PathBuf>,
    /// The permissions to which a program is confined, with absolute paths.
    pub permissions: Vec<String>,
    /// The format of items.
    pub items: StreamItems,
    /// The encoding of a text that is sent. `None` sends it unchanged if [`items`](Self::items) are
    /// text, or if they are the messages of a WebSocket and not JSON.
    pub send_as: Option<SendAs>,
    /// The maximum size of an item, in bytes: 1 MiB.
    pub max_item_bytes: usize,
    /// The maximum number of values that wait to be sent over HTTP: 16.
    pub buffer: usize,
    /// The maximum silence of a connection before it counts as lost.
    pub heartbeat: Option<Duration>,
    /// The maximum time without an item before the stream ends with an error.
    pub idle: Option<Duration>,
    /// Whether a lost connection is reopened even if items may be lost.
    pub reconnect: bool,
    /// The maximum number of consecutive failures to reconnect before the stream fails: 5.
    pub max_reconnects: u32,
    /// The type of the input that opens the stream.
    pub opening: Option<TypeExpr>,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            transport: StreamTransport::default(),
            args: Vec::new(),
            env: BTreeMap::new(),
            pass_env: Vec::new(),
            permissions: Vec::new(),
            directory: None,
            items: StreamItems::default(),
            send_as: None,
            max_item_bytes: 1024 * 1024,
            buffer: 16,
            heartbeat: None,
            idle: None,
            reconnect: false,
            max_reconnects: 5,
            opening: None,
        }
    }
}

impl fmt::Debug for StreamOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments and variables may contain keys.
        f.debug_struct("StreamOptions")
            .field("transport", &self.transport)
            .field("items", &self.items)
            .finish_non_exhaustive()
    }
}
