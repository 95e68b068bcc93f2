//! System calls that wait for the answer of another process (seccomp_unotify(2)).

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// Receives the calls of filtered threads.
#[derive(Debug)]
pub struct Notifications(OwnedFd);

/// A call that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub struct Notification {
    /// The id of the call.
    pub id: u64,
    /// The thread that makes the call, by its id in this process's namespace.
    pub thread: i32,
    /// The number of the call.
    pub number: i64,
    /// The arguments of the call.
    pub arguments: [u64; 6],
}

impl Notifications {
    /// Makes the calls with these numbers wait for an answer, in this thread and its children. The
    /// filter cannot be removed. The thread needs `CAP_SYS_ADMIN`, or no new privileges.
    ///
    /// # Errors
    /// The reason of the system; `EBUSY` if another process answers calls of this thread already.
    pub fn install(calls: &[i64]) -> io::Result<Self> {
        let step = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
        // Load the number of the call (BPF_LD | BPF_W | BPF_ABS), skip one if it is another (BPF_JMP | BPF_JEQ | BPF_K), return (BPF_RET | BPF_K).
        let mut filter = vec![step(0x20, 0)];
        for call in calls {
            let call = u32::try_from(*call).map_err(|_| io::ErrorKind::InvalidInput)?;
            filter.push(libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: call });
            filter.push(step(0x06, libc::SECCOMP_RET_USER_NOTIF));
        }
        filter.push(step(0x06, libc::SECCOMP_RET_ALLOW));
        let len = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
        // Only the end of its process interrupts a received call, so its answer is not lost.
        let flags =
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
        #[expect(unsafe_code, reason = "a system call with a pointer")]
        // SAFETY: the kernel copies the program, which outlives the call. The result is an error or a new descriptor, which nothing else owns.
        let fd = unsafe {
            let fd = libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            );
            let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0);
            OwnedFd::from_raw_fd(fd.ok_or_else(io::Error::last_os_error)?)
        };
        Ok(Self(fd))
    }

    /// Wraps the notifications that another process has passed to this one.
    ///
    /// # Errors
    /// The kernel's notifications have another size than those that this program was built for.
    pub fn received(fd: OwnedFd) -> io::Result<Self> {
        let mut sizes =
            libc::seccomp_notif_sizes { seccomp_notif: 0, seccomp_notif_resp: 0, seccomp_data: 0 };
        #[expect(unsafe_code, reason = "a system call with a pointer")]
        // SAFETY: the kernel writes a value of this type.
        let asked = unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_NOTIF_SIZES, 0, &raw mut sizes)
        };
        if asked != 0 {
            return Err(io::Error::last_os_error());
        }
        let known = [size_of::<libc::seccomp_notif>(), size_of::<libc::seccomp_notif_resp>()];
        match [sizes.seccomp_notif, sizes.seccomp_notif_resp].map(usize::from) == known {
            true => Ok(Self(fd)),
            false => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Waits for the next call.
    ///
    /// # Errors
    /// The reason of the system; `ENOENT` and `EINTR` if there was a call that does not wait any more.
    pub fn next(&self) -> io::Result<Notification> {
        let data = libc::seccomp_data { nr: 0, arch: 0, instruction_pointer: 0, args: [0; 6] };
        let mut received = libc::seccomp_notif { id: 0, pid: 0, flags: 0, data };
        #[expect(unsafe_code, reason = "a system call with a pointer")]
        // SAFETY: the kernel writes a value of this type and size (`received`).
        let result = unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut received)
        };
        match (result, i32::try_from(received.pid)) {
            (0, Ok(thread)) => {
                let number = received.data.nr.into();
                Ok(Notification { id: received.id, thread, number, arguments: received.data.args })
            }
            (0, Err(_)) => Err(io::ErrorKind::InvalidData.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns whether a call still waits. Data that was read before then belongs to its thread, whose
    /// id has not been reused.
    pub fn waits(&self, call: &Notification) -> bool {
        #[expect(unsafe_code, reason = "a system call with a pointer")]
        // SAFETY: the kernel reads one number.
        let result = unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const call.id)
        };
        result == 0
    }

    /// Answers a call: it returns 0, or fails with this error number.
    ///
    /// # Errors
    /// The reason of the system; `ENOENT` if the call does not wait any more.
    pub fn answer(&self, call: &Notification, result: Result<(), i32>) -> io::Result<()> {
        let error = -result.err().unwrap_or(0).abs();
        let mut response = libc::seccomp_notif_resp { id: call.id, val: 0, error, flags: 0 };
        #[expect(unsafe_code, reason = "a system call with a pointer")]
        // SAFETY: the kernel reads a value of this type and size (`received`).
        let result = unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for Notifications {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
