//! Model Context Protocol servers as providers (RTFS capability system §3.3, §7).

mod settings;

pub use settings::{Reach, ServerSettings};
