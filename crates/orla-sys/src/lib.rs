//! Safe wrappers of system calls that need `unsafe`. Every other crate of the workspace forbids
//! `unsafe`.

mod memory;
pub use memory::{keep_little_freed_memory, return_freed_memory};
#[cfg(all(target_os = "linux", feature = "jemalloc"))]
pub use tikv_jemallocator::Jemalloc;

#[cfg(target_os = "linux")]
mod fork;
#[cfg(target_os = "linux")]
pub use fork::{Fork, fork};
#[cfg(target_os = "linux")]
mod notify;
#[cfg(target_os = "linux")]
pub use notify::{Notification, Notifications};
#[cfg(target_os = "linux")]
mod start;
#[cfg(target_os = "linux")]
pub use start::{Exec, Starter};
