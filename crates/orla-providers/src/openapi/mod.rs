//! OpenAPI documents as sources of HTTP capabilities.

mod settings;

pub use settings::{Location, OpenApiSettings, Selection};
