//! The common parts of all requests: the instance, attributes and times. No I/O.

use std::time::{Duration, SystemTime};

use crate::proto;
use proto::{AnyKind, AnyValue, KeyValue};

/// The description of this instance, as names with values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource {
    /// Such as `service.name`.
    pub attributes: Vec<(String, String)>,
    /// The version of orla.
    pub version: String,
}

impl Resource {
    /// Returns the messages for the instance and for the instrumentation scope.
    pub(crate) fn messages(&self) -> (proto::Resource, proto::Scope) {
        let attributes = self.attributes.iter().map(|(name, value)| text(name, value)).collect();
        (
            proto::Resource { attributes },
            proto::Scope { name: "orla".to_owned(), version: self.version.clone() },
        )
    }
}

pub(crate) fn text(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(AnyKind::Text(value.to_owned())) });
    KeyValue { key: key.to_owned(), value }
}

/// Nanoseconds since 1970.
pub(crate) fn nanos(at: SystemTime) -> u64 {
    length(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// In nanoseconds.
pub(crate) fn length(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2)
}
