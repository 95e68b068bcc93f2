//! The system calls that are refused to a confined process.
//!
//! Every call that is not listed is allowed. Programs of all kinds run here, and namespaces and Landlock
//! decide what they may reach. The lists contain the calls that namespaces and Landlock do not cover,
//! and calls that only serve to attack a kernel.

use std::io;

use seccompiler::{BpfProgram, SeccompCmpOp};

use super::connects::Connects;
use super::refusals::Refusals;
use super::{metadata, sockets};

/// The filters of a profile, compiled.
#[derive(Debug)]
pub(super) struct Filters {
    programs: Vec<BpfProgram>,
    /// Refuses all changes of metadata. Used if no process decides on such changes.
    metadata: BpfProgram,
}

/// Calls that are always refused.
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
    // All processes of the machine share the number of its requests.
    libc::SYS_io_setup,
];

#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] =
    &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_kexec_file_load, libc::SYS_lookup_dcookie];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

// These have the same number on every architecture.
const SYS_OPEN_TREE_ATTR: i64 = 467;
const SYS_FILE_SETATTR: i64 = 469;

/// Hints on the expected lifetime of written data.
const F_SET_RW_HINT: i32 = 1036;
const F_SET_FILE_RW_HINT: i32 = 1038;
/// `TIOCSTI` types into a terminal, and `TIOCLINUX` pastes into one. `TIOCSETD` loads line disciplines, and `TIOCEXCL` keeps others out.
const TERMINAL: [u64; 4] = [0x5412, 0x541C, 0x5423, 0x540C];
/// A file in memory that cannot become a program.
const MFD_NOEXEC_SEAL: u64 = 0x8;
/// Requests that change attributes of a file or the keys of its file system, not its content.
const FILE_FLAGS: [u64; 10] = [
    0x4008_6602, // FS_IOC_SETFLAGS
    0x4004_6602, // FS_IOC32_SETFLAGS
    0x401C_5820, // FS_IOC_FSSETXATTR
    0x4008_7602, // FS_IOC_SETVERSION
    0x4008_6604, // EXT4_IOC_SETVERSION
    0x4080_6685, // FS_IOC_ENABLE_VERITY
    0x800C_6613, // FS_IOC_SET_ENCRYPTION_POLICY
    0xC050_6617, // FS_IOC_ADD_ENCRYPTION_KEY
    0xC040_6618, // FS_IOC_REMOVE_ENCRYPTION_KEY
    0xC040_6619, // FS_IOC_REMOVE_ENCRYPTION_KEY_ALL_USERS
];

/// Requests to a file system that change more than the file of the descriptor, which may be open for
/// reading only. FAT sets the mode (`FAT_IOCTL_SET_ATTRIBUTES`), and OCFS2 makes a file
/// (`OCFS2_IOC_REFLINK`).
const FILE_SYSTEM: [u64; 2] = [0x4004_7211, 0x4018_6F04];
/// The bits of a request that hold its type.
const TYPE: u64 = 0xFF00;
/// The request types of file systems that make subvolumes and snapshots through any descriptor: Btrfs,
/// bcachefs, F2FS.
const FILE_SYSTEM_TYPES: [u64; 3] = [0x9400, 0xBC00, 0xF500];
/// Btrfs requests that every file system knows, and that change no content of a file that is only
/// readable: `FICLONE`, `FICLONERANGE`, `FIDEDUPERANGE`.
const CLONES: [u64; 3] = [0x4004_9409, 0x4020_940D, 0xC018_9436];

impl Filters {
    /// Compiles the filters. `bounds_memory` refuses memory that belongs to no process, and `runs_any_file` permits
    /// files in memory that can become programs.
    pub(super) fn new(
        connects: &Connects,
        bounds_memory: bool,
        runs_any_file: bool,
    ) -> io::Result<Self> {
        let mut refusals = Refusals::of(REFUSED.iter().chain(REFUSED_HERE).copied());
        refusals.refuse(SYS_OPEN_TREE_ATTR);
        // Flags of files. [`metadata`] decides on other metadata.
        refusals.refuse(SYS_FILE_SETATTR);
        // `unshare(CLONE_THREAD)` changes nothing: `orla_sys::fork` checks with it that there is one thread.
        let alone = u64::from(libc::CLONE_THREAD.unsigned_abs());
        refusals.refuse_if(libc::SYS_unshare, &[(0, SeccompCmpOp::Ne, alone)])?;
        // System V memory and semaphores are checked after each program. POSIX queues are not visible
        // anywhere.
        refusals.refuse(libc::SYS_mq_open);
        // A process with the same parent would be a child of the spawner.
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
        for bit in bits {
            refusals.refuse_if(libc::SYS_clone, &[(0, SeccompCmpOp::MaskedEq(bit), bit)])?;
        }
        for request in TERMINAL.iter().chain(&FILE_FLAGS).chain(&FILE_SYSTEM) {
            refusals.refuse_if(libc::SYS_ioctl, &[(1, SeccompCmpOp::Eq, *request)])?;
        }
        for kind in FILE_SYSTEM_TYPES {
            let mut conditions = vec![(1, SeccompCmpOp::MaskedEq(TYPE), kind)];
            conditions.extend(CLONES.map(|clone| (1, SeccompCmpOp::Ne, clone)));
            refusals.refuse_if(libc::SYS_ioctl, &conditions)?;
        }
        sockets::refuse(&mut refusals, connects.network, !connects.unix.is_empty())?;
        // Leases and directory notifications hold up other processes. Hints change files that are only
        // readable.
        for request in [libc::F_SETLEASE, libc::F_NOTIFY, F_SET_RW_HINT, F_SET_FILE_RW_HINT] {
            let request = u64::from(request.unsigned_abs());
            refusals.refuse_if(libc::SYS_fcntl, &[(1, SeccompCmpOp::Eq, request)])?;
        }
        // A process may not change the limits of other processes, such as the process that watches it.
        refusals.refuse_if(libc::SYS_prlimit64, &[(0, SeccompCmpOp::Ne, 0)])?;
        refuse_privileged_files(&mut refusals)?;
        if !runs_any_file {
            // Landlock does not cover files in memory, and only root can set `vm.memfd_noexec`.
            let executable = (1, SeccompCmpOp::MaskedEq(MFD_NOEXEC_SEAL), 0);
            refusals.refuse_if(libc::SYS_memfd_create, &[executable])?;
        }
        if bounds_memory {
            // Memory that belongs to no process.
            for call in [
                libc::SYS_memfd_create,
                libc::SYS_memfd_secret,
                libc::SYS_shmget,
                libc::SYS_semget,
                libc::SYS_msgget,
                // Filters of system calls.
                libc::SYS_seccomp,
            ] {
                refusals.refuse(call);
            }
            // Each thread would have a table of open files of its own.
            let [thread, files] =
                [libc::CLONE_THREAD, libc::CLONE_FILES].map(|flag| u64::from(flag.unsigned_abs()));
            refusals
                .refuse_if(libc::SYS_clone, &[(0, SeccompCmpOp::MaskedEq(thread | files), thread)])?;
            let unshares = u64::from(libc::CLOSE_RANGE_UNSHARE);
            let unshares = (2, SeccompCmpOp::MaskedEq(unshares), unshares);
            refusals.refuse_if(libc::SYS_close_range, &[unshares])?;
            let filters = u64::from(libc::PR_SET_SECCOMP.unsigned_abs());
            refusals.refuse_if(libc::SYS_prctl, &[(0, SeccompCmpOp::Eq, filters)])?;
            // Shared memory stays after it is unmapped, and then counts for no process.
            let shared = (libc::MAP_SHARED | libc::MAP_ANONYMOUS).unsigned_abs().into();
            refusals.refuse_if(libc::SYS_mmap, &[(3, SeccompCmpOp::MaskedEq(shared), shared)])?;
        }
        // The flags of these calls are in memory, where no filter sees them. Libraries fall back to
        // clone and openat.
        let unknown = Refusals::of([libc::SYS_clone3, libc::SYS_openat2]);
        let mut all = vec![unknown.compile(libc::ENOSYS)?];
        if cfg!(target_arch = "x86_64") {
            all.push(without_x32());
        }
        // The last one, because it may refuse further filters.
        all.push(refusals.compile(libc::EPERM)?);
        let metadata = Refusals::of(metadata::CALLS.iter().copied());
        Ok(Self { programs: all, metadata: metadata.compile(libc::EPERM)? })
    }

    /// Puts the filters in force for this thread and its children. The filters cannot be removed. All
    /// changes of metadata are refused unless another process answers them (`is_metadata_answered`).
    pub(super) fn apply(&self, is_metadata_answered: bool) -> io::Result<()> {
        let metadata = (!is_metadata_answered).then_some(&self.metadata);
        let mut all = metadata.into_iter().chain(&self.programs);
        all.try_for_each(|filter| seccompiler::apply_filter(filter).map_err(io::Error::other))
    }
}

/// Refuses new files that run with the rights of their owner or group. Outside of the sandbox, such a
/// file would run with the rights of the server.
fn refuse_privileged_files(refusals: &mut Refusals) -> io::Result<()> {
    let bits = [u64::from(libc::S_ISUID), u64::from(libc::S_ISGID)];
    let mut with_mode = |call: i64, mode: u8| {
        let mut bits = bits.iter();
        bits.try_for_each(|bit| refusals.refuse_if(call, &[(mode, SeccompCmpOp::MaskedEq(*bit), *bit)]))
    };
    with_mode(libc::SYS_mknodat, 2)?;
    #[cfg(target_arch = "x86_64")]
    for call in [libc::SYS_creat, libc::SYS_mknod] {
        with_mode(call, 1)?;
    }
    // The mode matters only where a file is created.
    let makes = [libc::O_CREAT, libc::O_TMPFILE].map(|flags| u64::from(flags.unsigned_abs()));
    let opens = [
        (libc::SYS_openat, 2, 3),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, 1, 2),
    ];
    for (call, flags, mode) in opens {
        for made in makes {
            for bit in bits {
                let makes = (flags, SeccompCmpOp::MaskedEq(made), made);
                refusals.refuse_if(call, &[makes, (mode, SeccompCmpOp::MaskedEq(bit), bit)])?;
            }
        }
    }
    Ok(())
}

/// Refuses the x32 ABI, which has the same calls under other numbers that the other filters do not know.
fn without_x32() -> BpfProgram {
    const X32: u32 = 0x4000_0000;
    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const ERRNO: u32 = libc::SECCOMP_RET_ERRNO;
    /// `BPF_LD | BPF_W | BPF_ABS`. The number of the call is at offset 0.
    const LOAD_WORD: u16 = 0x20;
    /// `BPF_JMP | BPF_JGE | BPF_K`
    const JUMP_IF_AT_LEAST: u16 = 0x35;
    /// `BPF_RET | BPF_K`
    const RETURN: u16 = 0x06;
    let statement = |code, k| seccompiler::sock_filter { code, jt: 0, jf: 0, k };
    vec![
        statement(LOAD_WORD, 0),
        seccompiler::sock_filter { code: JUMP_IF_AT_LEAST, jt: 0, jf: 1, k: X32 },
        statement(RETURN, ERRNO | libc::ENOSYS.unsigned_abs()),
        statement(RETURN, ALLOW),
    ]
}
