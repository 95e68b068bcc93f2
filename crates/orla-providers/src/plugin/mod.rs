//! Plugins as providers (RTFS capability system §3.3, §4): programs that answer one JSON line with another.
//!
//! [`Plugins`] is a [`Source`](orla_marketplace::Source) of capabilities: the functions of the
//! configured plugins, and single functions that a capability names by path. [`PluginExecutor`] calls
//! them. [`protocol`] implements the conversation with a plugin, whose processes are supervised
//! ([`orla_process::supervisor`]).

mod executor;
mod plugins;
mod pool;
mod process;
pub mod protocol;
mod settings;
#[cfg_attr(not(feature = "wasm"), path = "no_wasm.rs")]
mod wasm;

pub use executor::PluginExecutor;
pub use plugins::{Plugins, Problem, sandbox_of};
pub use settings::{ENTRY, PluginSettings};

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use orla_process::file::reason;

/// Returns whether a file is a WebAssembly component, judged by its name.
pub fn is_component(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("wasm"))
}

/// Checks whether a program can be started as a plugin, judged by its file.
///
/// # Errors
/// Why it cannot.
pub fn check(path: &Path) -> Result<(), String> {
    let is_elsewhere = path.as_os_str().as_encoded_bytes().starts_with(ENTRY.as_bytes());
    if is_elsewhere || path.parent() == Some(Path::new("")) {
        // An entry of `plugins`, or a name in `PATH`, is looked up when it is started.
        return Ok(());
    }
    let shown = path.display();
    let file = path.metadata().map_err(|err| match err.kind() {
        std::io::ErrorKind::NotFound => format!("{shown} does not exist"),
        _ => format!("{shown} cannot be read: {}", reason(&err)),
    })?;
    if !file.is_file() {
        return Err(format!("{shown} is not a file"));
    }
    if is_component(path) {
        return wasm::check().map_err(|problem| format!("{shown}: {problem}"));
    }
    if file.permissions().mode() & 0o111 == 0 {
        return Err(format!("{shown} is not executable (chmod +x {shown})"));
    }
    Ok(())
}
