//! The outcome or the error of a call as instances of orla send it to each other, over HTTP or NATS.
//!
//! [`write()`] and [`write_error`] make the text, and [`read`] makes the same outcome or the same error of it.

mod answer;
mod reply;

pub use answer::{Request, read};
pub use reply::{as_json, described, write, write_error};
