//! To come.
mod config;
mod logging;
mod prompts;
mod render;
