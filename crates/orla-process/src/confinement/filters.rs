//! The system calls that a confined process is refused.
//!
//! Everything is allowed that is not listed: programs of all kinds run here, and what they may reach is decided by
//! namespaces and Landlock. The lists are of what these do not cover, and of what only serves to attack a kernel.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use super::connects::Connects;
use super::{metadata, sockets};

/// The filters of a profile, compiled.
#[derive(Debug)]
pub(super) struct Filters {
    programs: Vec<BpfProgram>,
    /// Refuses all changes of metadata. Used if no process decides on them.
    metadata: BpfProgram,
}

/// Refused altogether.
const REFUSED: &[i64] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    // Namespaces and mounts.
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    // The kernel and its attack surface.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_fanotify_init,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    // Keyrings.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Its operations bypass these filters.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] =
    &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_kexec_file_load, libc::SYS_lookup_dcookie];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

// These have the same number on every architecture.
const SYS_OPEN_TREE_ATTR: i64 = 467;
const SYS_FILE_SETATTR: i64 = 469;

/// Hints on how long what is written will stay.
const F_SET_RW_HINT: i32 = 1036;
const F_SET_FILE_RW_HINT: i32 = 1038;
/// `TIOCSTI` types into a terminal, `TIOCLINUX` pastes into one.
const TERMINAL: [u64; 2] = [0x5412, 0x541C];
/// A file in memory that cannot become a program.
const MFD_NOEXEC_SEAL: u64 = 0x8;
/// Changes what belongs to a file and not to its content: `FS_IOC_SETFLAGS`, its 32-bit form, `FS_IOC_FSSETXATTR`,
/// `FS_IOC_SETVERSION`, `EXT4_IOC_SETVERSION`, `FS_IOC_ENABLE_VERITY`, and encryption policies and keys.
const FILE_FLAGS: [u64; 8] = [
    0x4008_6602,
    0x4004_6602,
    0x401C_5820,
    0x4008_7602,
    0x4008_6604,
    0x4080_6685,
    0x800C_6613,
    0xC050_6617,
];

impl Filters {
    /// The filters for a process that may connect to this, with or without a limit of its memory, and which may run any file or not.
    pub(super) fn new(
        connects: &Connects,
        bounds_memory: bool,
        runs_any_file: bool,
    ) -> io::Result<Self> {
        let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
        let filter = |rules, errno: i32| {
            let action = SeccompAction::Errno(errno.unsigned_abs());
            let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch)
                .map_err(io::Error::other)?;
            BpfProgram::try_from(filter).map_err(io::Error::other)
        };
        let refused = REFUSED.iter().chain(REFUSED_HERE);
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
            refused.map(|number| (*number, Vec::new())).collect();
        rules.insert(SYS_OPEN_TREE_ATTR, Vec::new());
        // Flags of files; their other metadata are decided on by [`metadata`].
        rules.insert(SYS_FILE_SETATTR, Vec::new());
        // As no namespace does it, the copy of a process asks in this way whether it is alone in there.
        let alone = u64::from(libc::CLONE_THREAD.unsigned_abs());
        rules.insert(libc::SYS_unshare, vec![rule(&[(0, SeccompCmpOp::Ne, alone)])?]);
        // The rest of System V is checked for after each program; queues of POSIX show nowhere.
        rules.insert(libc::SYS_mq_open, Vec::new());
        // A sibling would be a child of the spawner.
        let namespaces = libc::CLONE_PARENT
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWUSER
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWNET
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS
            | libc::CLONE_NEWCGROUP;
        let bits = (0..32)
            .map(|bit| 1_u64 << bit)
            .filter(|bit| u64::from(namespaces.unsigned_abs()) & bit != 0);
        let clones =
            bits.map(|bit| rule(&[(0, SeccompCmpOp::MaskedEq(bit), bit)])).collect::<io::Result<_>>()?;
        rules.insert(libc::SYS_clone, clones);
        let ioctls = TERMINAL.iter().chain(&FILE_FLAGS);
        let ioctls =
            ioctls.map(|request| rule(&[(1, SeccompCmpOp::Eq, *request)])).collect::<io::Result<_>>()?;
        rules.insert(libc::SYS_ioctl, ioctls);
        rules.extend(sockets::rules(connects.network, !connects.unix.is_empty())?);
        // Leases and notices of directories hold up other processes; hints change files that may only be read.
        let requests = [libc::F_SETLEASE, libc::F_NOTIFY, F_SET_RW_HINT, F_SET_FILE_RW_HINT];
        let requests =
            requests.map(|request| rule(&[(1, SeccompCmpOp::Eq, u64::from(request.unsigned_abs()))]));
        rules.insert(libc::SYS_fcntl, requests.into_iter().collect::<io::Result<_>>()?);
        // The limits of another process, such as those of the one that watches over this one.
        rules.insert(libc::SYS_prlimit64, vec![rule(&[(0, SeccompCmpOp::Ne, 0)])?]);
        rules.extend(privileged_files()?);
        if !runs_any_file {
            // Landlock does not cover files in memory, and `vm.memfd_noexec` can be set by root alone.
            let executable = rule(&[(1, SeccompCmpOp::MaskedEq(MFD_NOEXEC_SEAL), 0)])?;
            rules.insert(libc::SYS_memfd_create, vec![executable]);
        }
        if bounds_memory {
            // Memory that belongs to no process.
            for number in [libc::SYS_memfd_create, libc::SYS_memfd_secret, libc::SYS_shmget] {
                rules.insert(number, Vec::new());
            }
            // Shared memory stays when it is no longer mapped, and then counts for no process.
            let shared = (libc::MAP_SHARED | libc::MAP_ANONYMOUS).unsigned_abs().into();
            rules.insert(libc::SYS_mmap, vec![rule(&[(3, SeccompCmpOp::MaskedEq(shared), shared)])?]);
        }
        // Their flags are in memory, where no filter sees them; libraries fall back to clone and openat.
        let unknown = [libc::SYS_clone3, libc::SYS_openat2].map(|number| (number, Vec::new()));
        let unknown = BTreeMap::from(unknown);
        let mut all = vec![filter(rules, libc::EPERM)?, filter(unknown, libc::ENOSYS)?];
        if cfg!(target_arch = "x86_64") {
            all.push(without_x32());
        }
        let metadata = metadata::CALLS.iter().map(|number| (*number, Vec::new())).collect();
        Ok(Self { programs: all, metadata: filter(metadata, libc::EPERM)? })
    }

    /// Puts them in force for this thread and for what it starts. They cannot be taken back. Whether changes of metadata are decided
    /// on elsewhere; else all are refused.
    pub(super) fn apply(&self, is_metadata_answered: bool) -> io::Result<()> {
        let metadata = (!is_metadata_answered).then_some(&self.metadata);
        let mut all = self.programs.iter().chain(metadata);
        all.try_for_each(|filter| seccompiler::apply_filter(filter).map_err(io::Error::other))
    }
}

/// Refuses new files that run with the rights of their owner or group. Run outside of the sandbox, such a file would
/// have the rights of the server.
fn privileged_files() -> io::Result<BTreeMap<i64, Vec<SeccompRule>>> {
    let bits = [u64::from(libc::S_ISUID), u64::from(libc::S_ISGID)];
    let makes = [libc::O_CREAT, libc::O_TMPFILE].map(|flags| u64::from(flags.unsigned_abs()));
    let with_mode = |argument: u8| {
        let rules = bits.iter().map(|bit| rule(&[(argument, SeccompCmpOp::MaskedEq(*bit), *bit)]));
        rules.collect::<io::Result<Vec<_>>>()
    };
    // The mode means something only where a file is made.
    let opens = |flags: u8, mode: u8| {
        let all = makes.iter().flat_map(|made| bits.iter().map(move |bit| (*made, *bit)));
        let rules = all.map(|(made, bit)| {
            let makes = (flags, SeccompCmpOp::MaskedEq(made), made);
            rule(&[makes, (mode, SeccompCmpOp::MaskedEq(bit), bit)])
        });
        rules.collect::<io::Result<Vec<_>>>()
    };
    let mut rules =
        BTreeMap::from([(libc::SYS_openat, opens(2, 3)?), (libc::SYS_mknodat, with_mode(2)?)]);
    #[cfg(target_arch = "x86_64")]
    rules.extend([
        (libc::SYS_open, opens(1, 2)?),
        (libc::SYS_creat, with_mode(1)?),
        (libc::SYS_mknod, with_mode(1)?),
    ]);
    Ok(rules)
}

/// A rule on arguments. The kernel ignores the upper half of all that are compared here.
pub(super) fn rule(conditions: &[(u8, SeccompCmpOp, u64)]) -> io::Result<SeccompRule> {
    let conditions = conditions.iter().map(|(argument, operator, value)| {
        SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, operator.clone(), *value)
    });
    let conditions: Result<Vec<_>, _> = conditions.collect();
    SeccompRule::new(conditions.map_err(io::Error::other)?).map_err(io::Error::other)
}

/// The x32 ABI has the same calls under other numbers, which the other filters do not know.
fn without_x32() -> BpfProgram {
    const X32: u32 = 0x4000_0000;
    const ALLOW: u32 = 0x7fff_0000;
    const ERRNO: u32 = 0x0005_0000;
    let statement = |code, k| seccompiler::sock_filter { code, jt: 0, jf: 0, k };
    vec![
        statement(0x20, 0),
        seccompiler::sock_filter { code: 0x35, jt: 0, jf: 1, k: X32 },
        statement(0x06, ERRNO | libc::ENOSYS.unsigned_abs()),
        statement(0x06, ALLOW),
    ]
}
