//! OpenAPI documents (3.0 and 3.1) as sources of HTTP capabilities: one for each operation.
//!
//! # How it works
//!
//! [`load`] reads the text; the rest is pure. `bundle` makes one tree of a document in several files,
//! and `document` follows references. `import` walks through paths and methods. `operation` makes one
//! operation's settings and schemas; `schema` converts the schemas to the dialect of 2020-12. `servers`
//! finds the address of requests, and `security` their credentials. The result is plain
//! [`HttpCapability`](orla_marketplace::HttpCapability) registrations, which no longer refer to the
//! document.
//!
//! # Bounds
//!
//! The document's files, bytes, nesting and operations, and the size of each schema. An operation that
//! cannot be imported is left out, with a [`Warning`] that names its place.
//!
//! # Deliberately absent
//!
//! Webhooks, callbacks, links, TRACE, mutual TLS, Swagger 2.0. A [`Warning`] names every part that is
//! left out.

mod bundle;
mod document;
mod import;
mod load;
mod operation;
mod schema;
mod security;
mod servers;
mod settings;

pub use document::Warning;
pub use import::Imported;
pub use load::{ImportError, bundled, import_bundled, import_text, load};
pub use security::Scheme;
pub use settings::{Location, OpenApiSettings, Selection};

/// Returns the key of the sign-in of the document with this name.
pub fn sign_in_key(name: &str) -> String {
    format!("openapi.{name}")
}
