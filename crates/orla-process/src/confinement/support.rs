//! The confinement features of this system.

use std::fs;

/// The confinement features that `orla doctor` reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Support {
    /// The release of the kernel.
    pub kernel: String,
    /// The version of Landlock; 0 if absent.
    pub landlock_abi: i32,
    /// Whether system calls can be filtered.
    pub seccomp: bool,
    /// Whether user namespaces can be entered; otherwise the reason.
    pub namespaces: Result<(), String>,
    /// The version of control groups: `v2`, `hybrid`, `v1` or `none`.
    pub cgroup: &'static str,
    /// Whether control groups enforce limits, because one is delegated to this process; otherwise the reason. Then the
    /// processes of each call are looked at regularly.
    pub cgroup_limits: Result<(), String>,
    /// Whether a process can decide on changes of metadata for others (seccomp_unotify(2)); otherwise
    /// the reason. Without this, all such changes are refused to confined processes.
    pub metadata: Result<(), String>,
}

impl Support {
    /// Detects the features of this system.
    pub fn detect() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            landlock_abi: landlock_abi(),
            seccomp: read("/proc/self/status").contains("Seccomp_filters:")
                || !read("/proc/sys/kernel/seccomp/actions_avail").is_empty(),
            namespaces: namespaces(),
            cgroup: cgroup(&read("/proc/mounts")),
            cgroup_limits: cgroup_limits(),
            metadata: metadata(),
        }
    }
}

fn cgroup(mounts: &str) -> &'static str {
    let kinds: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    match (kinds.contains(&"cgroup2"), kinds.contains(&"cgroup")) {
        (true, true) => "hybrid",
        (true, false) => "v2",
        (false, true) => "v1",
        (false, false) => "none",
    }
}

/// Enforces limits by control groups from now on, if a group is delegated to this process, and moves it to a group below. Only the
/// first call has an effect. Call this function before the first child starts, and not in a command that prepares a service: the
/// service manager cannot start a process in the delegated group afterwards.
pub fn use_control_groups() {
    #[cfg(target_os = "linux")]
    crate::cgroup::enter();
}

#[cfg(target_os = "linux")]
fn cgroup_limits() -> Result<(), String> {
    crate::cgroup::missing().map_or(Ok(()), |why| Err(why.to_owned()))
}

#[cfg(not(target_os = "linux"))]
fn cgroup_limits() -> Result<(), String> {
    Err("there are none on this system".to_owned())
}

#[cfg(target_os = "linux")]
fn landlock_abi() -> i32 {
    use landlock::{AccessFs, LandlockStatus, Ruleset, RulesetAttr as _};
    // The crate reports the version only for a ruleset in force. A separate thread can put one in force
    // without consequences.
    let probe = std::thread::spawn(|| {
        Ruleset::default()
            .handle_access(AccessFs::Execute)
            .ok()?
            .create()
            .ok()?
            .restrict_self()
            .ok()
            .map(|status| status.landlock)
    });
    match probe.join().ok().flatten() {
        Some(LandlockStatus::Available { effective_abi, kernel_abi }) => {
            kernel_abi.unwrap_or(effective_abi as i32)
        }
        _ => 0,
    }
}

#[cfg(not(target_os = "linux"))]
fn landlock_abi() -> i32 {
    0
}

#[cfg(target_os = "linux")]
fn namespaces() -> Result<(), String> {
    super::launcher::Launcher::new(&orla_confine::Profile::default(), true, None, &Default::default())
        .map(drop)
        .map_err(|unenforced| unenforced.problems.join("; "))
}

#[cfg(target_os = "linux")]
fn metadata() -> Result<(), String> {
    // The filter applies to a separate thread and ends with it.
    let probe = std::thread::spawn(|| {
        rustix::thread::set_no_new_privs(true)?;
        orla_sys::Notifications::install(&[]).map(drop)
    });
    let answered = probe.join().map_err(|_| "it was not tried".to_owned())?;
    answered.map_err(|err| err.to_string())
}

#[cfg(not(target_os = "linux"))]
fn metadata() -> Result<(), String> {
    Err("there are none on this system".to_owned())
}

#[cfg(not(target_os = "linux"))]
fn namespaces() -> Result<(), String> {
    Err("there are none on this system".to_owned())
}
