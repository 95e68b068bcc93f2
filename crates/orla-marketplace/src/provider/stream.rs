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
    /// In which directions values flow.
    pub stream_type: StreamType,
    /// The type of each value that goes in.
    pub input_schema: Option<TypeExpr>,
    /// The type of each value that comes out.
    pub output_schema: Option<TypeExpr>,
    /// Whether a call reports how many items have come.
    pub supports_progress: bool,
    /// Whether it can be cancelled.
    pub supports_cancellation: bool,
    /// What the document leaves open.
    pub options: Box<StreamOptions>,
}

impl StreamCapabilityImpl {
    /// A stream through `provider`, untyped, with progress, cancellable.
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

/// The directions in which a stream's values flow, seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamType {
    /// It gives values.
    Source,
    /// It takes values.
    Sink,
    /// It returns values for the values that it receives, and ends after the last one.
    Transform,
    /// Both ways, in turn.
    Bidirectional,
    /// Both ways, at once.
    Duplex,
}

impl StreamType {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 5] = [
        ("source", Self::Source),
        ("sink", Self::Sink),
        ("transform", Self::Transform),
        ("bidirectional", Self::Bidirectional),
        ("duplex", Self::Duplex),
    ];

    /// Whether values can be sent to it.
    pub fn takes(self) -> bool {
        self != Self::Source
    }

    /// Whether it gives values.
    pub fn gives(self) -> bool {
        self != Self::Sink
    }
}

/// How a stream's items travel.
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
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 4] = [
        ("sse", Self::Sse),
        ("ndjson", Self::Ndjson),
        ("websocket", Self::WebSocket),
        ("lines", Self::Lines),
    ];
}

/// What an item is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamItems {
    /// JSON if it can be read as JSON, or else text.
    #[default]
    Auto,
    /// JSON; anything else is an error.
    Json,
    /// Text, even if it looks like JSON.
    Text,
}

impl StreamItems {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("json", Self::Json), ("text", Self::Text)];
}

/// How a text is sent. Other values are always sent as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendAs {
    /// As it is.
    Text,
    /// As JSON, in quotes.
    Json,
}

impl SendAs {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 2] = [("text", Self::Text), ("json", Self::Json)];
}

/// What the document leaves open of a stream.
#[derive(Clone)]
#[non_exhaustive]
pub struct StreamOptions {
    /// How items travel.
    pub transport: StreamTransport,
    /// The arguments of a program.
    pub args: Vec<String>,
    /// Its variables.
    pub env: BTreeMap<String, String>,
    /// Patterns of the server's variables that it gets besides the usual ones.
    pub pass_env: Vec<Pattern>,
    /// Its working directory.
    pub directory: Option<PathBuf>,
    /// What an item is.
    pub items: StreamItems,
    /// How a text is sent. `None` sends it unchanged if [`items`](Self::items) are text, or if they are the
    /// messages of a WebSocket and not JSON.
    pub send_as: Option<SendAs>,
    /// The largest item, in bytes: 1 MiB.
    pub max_item_bytes: usize,
    /// How many values may wait to be sent over HTTP: 16.
    pub buffer: usize,
    /// The longest silence of a connection before it counts as lost.
    pub heartbeat: Option<Duration>,
    /// The longest time without an item before the stream ends with an error.
    pub idle: Option<Duration>,
    /// Whether a lost connection is opened again even if items may be lost.
    pub reconnect: bool,
    /// How often reconnecting may fail in a row before the stream fails: 5.
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
