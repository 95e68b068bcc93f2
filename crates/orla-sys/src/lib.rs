//! The calls of the system that need `unsafe`, in a form that is safe to call. Every other crate of the workspace forbids it.

/// Has glibc return freed memory to the system as soon as it is freed. Without it, glibc learns from each large block that is
/// freed to keep more, up to 64 MiB for each of its arenas: after a burst, a server keeps hundreds of megabytes.
///
/// Blocks of 256 KiB and more are mapped and unmapped, each by itself; more than 128 KiB at the end of an arena are returned.
/// Call it first, before there is another thread. Other C libraries have no such habit, and nothing is done there.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[expect(unsafe_code, reason = "a call of the C library")]
        // SAFETY: `mallopt` takes two integers and stores the second. Both parameters exist in every glibc.
        let mallopt = |parameter, value| unsafe { libc::mallopt(parameter, value) };
        // They fail, and so change nothing, in a C library without them.
        mallopt(libc::M_MMAP_THRESHOLD, 256 * 1024);
        mallopt(libc::M_TRIM_THRESHOLD, 128 * 1024);
    }
}

#[cfg(target_os = "linux")]
mod fork;
#[cfg(target_os = "linux")]
pub use fork::{Fork, fork};
#[cfg(target_os = "linux")]
mod notify;
#[cfg(target_os = "linux")]
pub use notify::{Notification, Notifications};
