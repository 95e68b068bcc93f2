//! Freed memory, of jemalloc and of glibc's allocator.

/// Makes glibc keep little freed memory. By default, glibc raises its thresholds with each large freed
/// block, and keeps up to 64 MiB for each of its arenas: after a burst, a server keeps hundreds of
/// megabytes.
///
/// Blocks of 4 MiB and more are mapped and unmapped individually, and an arena that has more than that
/// free at its end returns it. Smaller blocks are reused, which the buffers of a 1 MB answer need for
/// full speed. Call this function first, before any other thread starts. With other C libraries it does
/// nothing; with jemalloc, it concerns the parts of a program that are written in C.
pub fn keep_little_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const BYTES: libc::c_int = 4 * 1024 * 1024;
        #[expect(unsafe_code, reason = "a call of the C library")]
        // SAFETY: `mallopt` takes two integers and stores the second. Both parameters exist in every glibc.
        let mallopt = |parameter| unsafe { libc::mallopt(parameter, BYTES) };
        // In a C library without these parameters, the calls fail and change nothing.
        mallopt(libc::M_MMAP_THRESHOLD);
        mallopt(libc::M_TRIM_THRESHOLD);
    }
}

/// Returns freed memory to the system: of jemalloc, which does so later by itself, and only while something allocates; and
/// from the middle of glibc's arenas. This takes milliseconds, during which threads that allocate may wait. With other
/// allocators it does nothing.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", feature = "jemalloc"))]
    {
        // 4,096 stands for all arenas (`MALLCTL_ARENAS_ALL`).
        let purge = c"arena.4096.purge".as_ptr();
        let none = std::ptr::null_mut();
        #[expect(unsafe_code, reason = "a call of the allocator")]
        // SAFETY: the name ends with a zero byte, and this operation neither reads nor writes a value.
        unsafe {
            tikv_jemalloc_sys::mallctl(purge, none, std::ptr::null_mut(), none, 0)
        };
    }
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[expect(unsafe_code, reason = "a call of the C library")]
        // SAFETY: `malloc_trim` takes the locks that it needs and touches freed memory alone.
        unsafe {
            libc::malloc_trim(0)
        };
    }
}
