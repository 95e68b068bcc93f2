//! What instances of orla tell each other about a call, whatever carries it: its outcome or its error.
//!
//! [`write()`] and [`write_error`] make the text, and [`read`] makes the same outcome or the same error of it.

mod answer;
mod reply;

pub use answer::{Request, read};
pub use reply::{as_json, described, write, write_error};
