//! The exchange format of outcomes and errors between instances of orla, over HTTP or NATS.
//!
//! [`write()`] and [`write_error`] create the text, and [`read`] parses it to the same outcome or error.

mod answer;
mod reply;

pub use answer::{Request, read};
pub use reply::{as_json, described, write, write_error};
