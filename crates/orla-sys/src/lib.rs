//! Safe wrappers of system calls that need `unsafe`. Every other crate of the workspace forbids
//! `unsafe`.

/// Has glibc keep little of what is freed. Without it, glibc learns from each large block that is freed to keep more, up to
/// 64 MiB for each of its arenas: after a burst, a server keeps hundreds of megabytes.
///
/// Blocks of 4 MiB and more are mapped and unmapped, each by itself, and an arena that has more than that free at its end
/// returns it. Smaller blocks are reused, as the buffers of an answer of 1 MB must be to be passed on at full speed.
/// Call it first, before there is another thread. Other C libraries have no such habit, and nothing is done there.
pub fn keep_little_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const BYTES: libc::c_int = 4 * 1024 * 1024;
        #[expect(unsafe_code, reason = "a call of the C library")]
        // SAFETY: `mallopt` takes two integers and stores the second. Both parameters exist in every glibc.
        let mallopt = |parameter| unsafe { libc::mallopt(parameter, BYTES) };
        // They fail, and so change nothing, in a C library without them.
        mallopt(libc::M_MMAP_THRESHOLD);
        mallopt(libc::M_TRIM_THRESHOLD);
    }
}

/// Returns freed memory to the system, also from the middle of glibc's arenas. It takes milliseconds, during which threads
/// that allocate may wait. Nothing is done with other C libraries.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[expect(unsafe_code, reason = "a call of the C library")]
        // SAFETY: `malloc_trim` takes the locks that it needs and touches freed memory alone.
        unsafe {
            libc::malloc_trim(0)
        };
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
#[cfg(target_os = "linux")]
mod start;
#[cfg(target_os = "linux")]
pub use start::{Exec, Starter};
