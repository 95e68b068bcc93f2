//! The launcher: a separate process for each profile. It enters the user and network namespaces of the
//! profile, opens the paths of the profile, and forks a spawner for each
//! [`compartment`](super::compartment). This module also contains the restrictions that a program of the
//! profile applies to itself.
//!
//! The launcher ends when its socket closes, which happens when the server drops the launcher or dies.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, NetPort, PathBeneath,
    Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, Scope,
};
use nix::sched::CloneFlags;
use orla_sys::{Exec, Fork};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{WaitOptions, setpgid, wait};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::compartment;
use super::connects::Connects;
use super::filters::Filters;
use super::wire::{self, Message};
use super::{BASE_DEVICES, BASE_EXECUTE, BASE_READ, Limits, NetworkMode, network_probe, proxy, usage};

/// How often the resource use of a process tree with limits is checked, where the kernel does not report it.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The opened paths and the settings of a profile. Paths keep the meaning that they had when the
/// launcher started.
pub(super) struct Rules {
    read: Vec<OwnedFd>,
    execute: Vec<OwnedFd>,
    programs: Vec<OwnedFd>,
    pub(super) write: Vec<OwnedFd>,
    devices: Vec<OwnedFd>,
    pub(super) filters: Filters,
    pub(super) limits: Limits,
    network: NetworkMode,
    pub(super) connects: Connects,
    has_home: bool,
    /// Whether only limits are in force.
    pub(super) is_open: bool,
}

/// Serves as a launcher until the server closes the socket, which is standard input.
pub(super) fn serve() -> io::Result<()> {
    let socket = &mut Some(rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?);
    let null = fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    let Some((setup, _)) = receive(socket)? else { return Ok(()) };
    let (rules, listener) = match enter(setup) {
        Ok(entered) => entered,
        Err(err) => return answer(socket, err),
    };
    let fds: Vec<BorrowedFd<'_>> = listener.iter().map(AsFd::as_fd).collect();
    answer_with(socket, super::READY, &fds)?;
    drop(listener);
    while let Some((request, fds)) = receive(socket)? {
        let pid = open_compartment(&rules, request, fds, socket);
        let pid = pid.unwrap_or_else(|err| -err.raw_os_error().unwrap_or(libc::EIO));
        answer(socket, pid.to_le_bytes())?;
        // Reaps spawners that have ended since.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
    }
    Ok(())
}

/// Forks the spawner of a compartment. Returns its process id.
fn open_compartment(
    rules: &Rules,
    request: Message,
    fds: Vec<OwnedFd>,
    socket: &mut Option<OwnedFd>,
) -> io::Result<i32> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let [mut mount_point] = request.lists()?;
    let mount_point = mount_point.pop().map(path_of).ok_or_else(malformed)?;
    let mut fds = fds.into_iter();
    let own = fds.next().ok_or_else(malformed)?;
    let group = fds.next();
    match orla_sys::fork()? {
        Fork::Parent(spawner) => Ok(spawner.as_raw()),
        Fork::Child => {
            // The server must notice when the launcher dies.
            drop(socket.take());
            let served = compartment::serve(rules, mount_point, own, group);
            std::process::exit(i32::from(served.is_err()))
        }
    }
}

pub(super) fn receive(socket: &Option<OwnedFd>) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
    socket.as_ref().map_or(Ok(None), |socket| wire::read(socket.as_fd()))
}

pub(super) fn answer(socket: &Option<OwnedFd>, bytes: impl Into<Vec<u8>>) -> io::Result<()> {
    answer_with(socket, bytes, &[])
}

fn answer_with(
    socket: &Option<OwnedFd>,
    bytes: impl Into<Vec<u8>>,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let message = Message::default().with([bytes]);
    socket.as_ref().map_or(Ok(()), |socket| wire::write(socket.as_fd(), &message, fds))
}

/// Opens the paths of the profile and enters its namespaces. Also returns the socket for the broker, if
/// the profile needs one.
fn enter(setup: Message) -> Result<(Rules, Option<TcpListener>), String> {
    let [read, write, execute, settings, limits, unix] = setup.lists().map_err(|err| err.to_string())?;
    let [network, home, scope]: [Vec<u8>; 3] =
        settings.try_into().map_err(|_| "the settings of the profile are incomplete".to_owned())?;
    let network = NetworkMode::named(&network).ok_or("the access to the network is unknown")?;
    let declared = |paths: Vec<Vec<u8>>| {
        paths.into_iter().map(|path| open_real(&path_of(path))).collect::<Result<Vec<_>, _>>()
    };
    // These paths are opened before the namespaces are entered, with the rights of the server.
    let base =
        |paths: &[&str]| paths.iter().filter_map(|path| open(Path::new(path)).ok()).collect::<Vec<_>>();
    let limits = usage::decode(&limits)?;
    let runs_any_file = execute.iter().any(|path| path == b"/");
    let connects = Connects { network, unix: unix.into_iter().map(path_of).collect() };
    // A shared mapping of the device is memory that belongs to no process.
    let (zero, devices): (Vec<&str>, Vec<&str>) =
        BASE_DEVICES.iter().partition(|device| limits.memory.is_some() && **device == "/dev/zero");
    let mut rules = Rules {
        read: declared(read)?,
        write: declared(write)?,
        programs: declared(execute)?,
        execute: base(BASE_EXECUTE),
        devices: base(&devices),
        filters: Filters::new(&connects, limits.memory.is_some(), runs_any_file)
            .map_err(|err| format!("seccomp: {err}"))?,
        limits,
        network,
        connects,
        has_home: home == b"own",
        is_open: scope == b"open",
    };
    rules.read.extend(base(BASE_READ));
    rules.read.extend(base(&zero));
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut flags = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS;
    if network.has_namespace() && !rules.is_open {
        flags |= CloneFlags::CLONE_NEWNET;
    }
    nix::sched::unshare(flags).map_err(|err| format!("user namespaces: {err}"))?;
    let map = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text)
            .map_err(|err| format!("user namespaces: {file}: {err}"))
    };
    map("setgroups", "deny".to_owned())?;
    map("uid_map", format!("{uid} {uid} 1"))?;
    map("gid_map", format!("{gid} {gid} 1"))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|err| format!("mount namespaces: {err}"))?;
    let listener = (network == NetworkMode::Hosts).then(proxy::listen).transpose();
    let listener = listener.map_err(|err| format!("the socket of the broker: {err}"))?;
    Ok((rules, listener))
}

fn path_of(bytes: Vec<u8>) -> PathBuf {
    OsString::from_vec(bytes).into()
}

/// Opens a path of the base, following links.
fn open(path: &Path) -> Result<OwnedFd, String> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|err| format!("{}: {}", path.display(), io::Error::from(err)))
}

/// Opens the path of a rule by its real path. A link in the path was created after the server checked
/// it, and is refused.
pub(super) fn open_real(path: &Path) -> Result<OwnedFd, String> {
    use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
    // openat2 is not used: it is refused to programs, and with them to the process that starts them.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let walk = || {
        let mut open: Option<OwnedFd> = None;
        for part in path.components() {
            let directory = open.as_ref().map_or(CWD, AsFd::as_fd);
            open = Some(openat(directory, part.as_os_str(), flags, Mode::empty())?);
        }
        let open = open.ok_or(rustix::io::Errno::NOENT)?;
        match FileType::from_raw_mode(fstat(&open)?.st_mode) {
            FileType::Symlink => Err(rustix::io::Errno::LOOP),
            _ => Ok(open),
        }
    };
    walk().map_err(|err| format!("{}: {}", path.display(), io::Error::from(err)))
}

/// One program to start.
pub(super) struct Request {
    file: PathBuf,
    /// Whether the program is a shell that gets the script as its first argument.
    is_by_shell: bool,
    arg0: OsString,
    directory: Option<PathBuf>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    /// The program's own files, which it may read, and those among them that it may run.
    pub(super) read: Vec<PathBuf>,
    pub(super) run: Vec<PathBuf>,
    /// The probe to run instead of the program.
    pub(super) probe: Option<Probe>,
}

/// The access that a program has to one of its own files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OwnAccess {
    Read,
    Run,
}

/// The operations that a probe expects to be refused.
#[derive(Clone, Copy)]
pub(super) struct Probe {
    reading: bool,
    writing: bool,
}

impl Request {
    pub(super) fn of(message: Message) -> io::Result<Self> {
        let [program, args, env, read, run] = message.lists()?;
        let [file, arg0, directory, probe, by]: [Vec<u8>; 5] =
            program.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        let mut env = env.into_iter().map(OsString::from_vec);
        let mut variables = Vec::new();
        while let (Some(name), Some(value)) = (env.next(), env.next()) {
            variables.push((name, value));
        }
        Ok(Self {
            file: path_of(file),
            is_by_shell: by == b"shell",
            arg0: OsString::from_vec(arg0),
            directory: (!directory.is_empty()).then(|| path_of(directory)),
            args: args.into_iter().map(OsString::from_vec).collect(),
            env: variables,
            read: read.into_iter().map(path_of).collect(),
            run: run.into_iter().map(path_of).collect(),
            probe: probe
                .starts_with(b"probe")
                .then(|| Probe { reading: probe.contains(&b'R'), writing: probe.contains(&b'W') }),
        })
    }
}

impl Request {
    /// Executes the program, or its sealed copy, which an interpreter opens again. `place` holds its
    /// temporary files.
    pub(super) fn exec(
        &self,
        rules: &Rules,
        place: &Path,
        sealed: Option<&OwnedFd>,
    ) -> io::Result<Exec> {
        let (mut file, mut args) = (self.file.clone(), self.args.clone());
        if let Some(sealed) = sealed {
            let copy = PathBuf::from(format!("/proc/self/fd/{}", sealed.as_raw_fd()));
            match args.first_mut().filter(|_| self.is_by_shell) {
                Some(script) => *script = copy.into_os_string(),
                None => file = copy,
            }
        }
        let mut env: BTreeMap<&OsStr, &OsStr> =
            self.env.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str())).collect();
        if !rules.is_open {
            env.insert("TMPDIR".as_ref(), place.as_os_str());
        }
        if !rules.is_open && !rules.has_home {
            env.insert("HOME".as_ref(), place.as_os_str());
        }
        let is_proxied = rules.network == NetworkMode::Hosts;
        let proxy: Vec<_> = is_proxied.then(proxy::variables).into_iter().flatten().collect();
        env.extend(proxy.iter().map(|(name, value)| (OsStr::new(name), OsStr::new(value))));
        let args = [self.arg0.as_os_str()].into_iter().chain(args.iter().map(OsString::as_os_str));
        Exec::new(file.as_os_str(), args, env)
    }

    /// Restricts this process before it executes the program.
    pub(super) fn restrict(
        &self,
        rules: &Rules,
        ruleset: Option<&RulesetCreated>,
        streams: &[OwnedFd; 3],
        sealed: Option<&OwnedFd>,
    ) -> io::Result<()> {
        // The process group of the call, which the server signals.
        setpgid(None, None)?;
        enforce(ruleset)?;
        let [stdin, stdout, stderr] = streams;
        rustix::stdio::dup2_stdin(stdin)?;
        rustix::stdio::dup2_stdout(stdout)?;
        rustix::stdio::dup2_stderr(stderr)?;
        if let Some(sealed) = sealed {
            rustix::io::fcntl_setfd(sealed, rustix::io::FdFlags::empty())?;
        }
        if let Some(directory) = &self.directory {
            rustix::process::chdir(directory)?;
        }
        // This step follows everything that opens files.
        usage::restrict(&rules.limits)
    }
}

/// Puts Landlock rules in force.
pub(super) fn enforce(ruleset: Option<&RulesetCreated>) -> io::Result<()> {
    let Some(ruleset) = ruleset else { return Ok(()) };
    ruleset.try_clone()?.restrict_self().map(drop).map_err(io::Error::other)
}

/// Returns the Landlock rules for one program of a profile: for the directory of its temporary files,
/// and for its own files. The program may read the files in `own`, and run those that are marked so.
pub(super) fn landlock(
    rules: &Rules,
    own: &[(OwnedFd, OwnAccess)],
    temporary: &Path,
) -> Result<RulesetCreated, String> {
    let all = AccessFs::from_all(ABI::V5);
    let read: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let run = read | AccessFs::Execute;
    let write =
        all & !(AccessFs::Execute | AccessFs::IoctlDev | AccessFs::MakeBlock | AccessFs::MakeChar);
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let mut ruleset = ruleset(rules.network)?;
    let mut allow = |fd: &OwnedFd, access: BitFlags<AccessFs>| -> Result<(), String> {
        let access = if is_directory(fd) { access } else { access & AccessFs::from_file(ABI::V5) };
        let rule = PathBeneath::new(fd.as_fd(), access);
        (&mut ruleset).add_rule(rule).map(drop).map_err(|err| err.to_string())
    };
    for (fds, access) in [
        (&rules.read, read),
        (&rules.execute, run),
        (&rules.programs, AccessFs::Execute.into()),
        (&rules.write, write),
        (&rules.devices, device),
    ] {
        fds.iter().try_for_each(|fd| allow(fd, access))?;
    }
    // A file may also be read, as an interpreter does. Only `exec` concerns running.
    for fd in rules.programs.iter().filter(|fd| !is_directory(fd)) {
        allow(fd, AccessFs::ReadFile | AccessFs::Execute)?;
    }
    for (fd, access) in own {
        allow(fd, if *access == OwnAccess::Run { run } else { read })?;
    }
    allow(&open(temporary)?, write)?;
    allow(&open(Path::new("/proc"))?, read)?;
    Ok(ruleset)
}

fn is_directory(fd: &OwnedFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory
    })
}

/// Returns the restrictions of every confined process. Confinement depends on the first part. The second
/// part covers the same ground as the namespaces.
fn ruleset(network: NetworkMode) -> Result<RulesetCreated, String> {
    let base = || {
        Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(ABI::V3))
            .map_err(|_| "Landlock ABI 3 (Linux 6.2) or later is needed".to_owned())
    };
    let create = |ruleset: Ruleset| {
        ruleset
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::IoctlDev)?
            .scope(Scope::AbstractUnixSocket | Scope::Signal)?
            .create()
    };
    let text = |err: landlock::RulesetError| err.to_string();
    let ports = |err| format!("net:HOST needs Landlock ABI 4 (Linux 6.7): {err}");
    match network {
        NetworkMode::None | NetworkMode::Loopback | NetworkMode::All => create(base()?).map_err(text),
        // The calls of a profile share the namespace. Allowing only connections to the broker keeps them
        // apart.
        NetworkMode::Hosts => {
            let ruleset = base()?.handle_access(AccessNet::ConnectTcp | AccessNet::BindTcp);
            let ruleset = create(ruleset.map_err(ports)?).map_err(ports)?;
            ruleset.add_rule(NetPort::new(proxy::PORT, AccessNet::ConnectTcp)).map_err(ports)
        }
    }
}

/// Drops the capabilities with which a program could blind the process that watches it. A program that
/// only limits confine keeps its other capabilities.
pub(super) fn keep_watched() -> io::Result<()> {
    for capability in [CapabilitySet::SYS_ADMIN, CapabilitySet::SYS_PTRACE, CapabilitySet::SYS_RESOURCE]
    {
        rustix::thread::remove_capability_from_bounding_set(capability)?;
    }
    Ok(())
}

/// Drops all capabilities. The process cannot regain any, as its bounding set is empty and it gains no
/// privileges.
pub(super) fn drop_capabilities() -> io::Result<()> {
    for number in 0..64 {
        if let Some(capability) = CapabilitySet::from_bits(1 << number)
            && rustix::thread::remove_capability_from_bounding_set(capability).is_err()
        {
            // The first capability that the kernel does not know ends the list.
            break;
        }
    }
    let _ = rustix::thread::clear_ambient_capability_set();
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, none)?;
    Ok(())
}

/// Attempts the operations that the profile refuses.
///
/// # Errors
/// What was possible, or refused for another reason than the profile.
pub(super) fn probe(rules: &Rules, bait: &Path, place: &Path, expected: Probe) -> io::Result<()> {
    let mut wrong = Vec::new();
    let mut refused = |what: &str, tried: io::Result<()>| match tried {
        Err(err) if matches!(err.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {}
        Err(err) => wrong.push(format!("{what} failed by another reason ({err})")),
        Ok(()) => wrong.push(format!("{what} was possible")),
    };
    if expected.reading {
        refused("reading", fs::read(bait).map(drop));
    }
    if expected.writing {
        refused("writing", fs::File::options().append(true).open(bait).map(drop));
        refused("making a file", fs::write(bait.with_extension("new"), ""));
        refused("changing a mode", fs::set_permissions(bait, fs::Permissions::from_mode(0o777)));
    }
    refused("running a file", Err(Command::new(bait).exec()));
    let unix = std::os::unix::net::UnixStream::connect(bait).map(drop);
    refused("a UNIX socket", unix);
    let pair = std::os::unix::net::UnixDatagram::pair().map(drop);
    refused("a pair of datagram sockets", pair);
    refused("a namespace", nix::sched::unshare(CloneFlags::CLONE_NEWUSER).map_err(io::Error::from));
    let mut allowed = |what: &str, tried: io::Result<()>| {
        if let Err(err) = tried {
            wrong.push(format!("{what} was refused ({err})"));
        }
    };
    // A refusal for another reason than the profile would prove nothing.
    let file = place.join("probe");
    allowed("writing a temporary file", fs::write(&file, "x"));
    allowed("reading a temporary file", fs::read(&file).map(drop));
    allowed("reading /usr", fs::read_dir("/usr").map(drop));
    wrong.extend(network_probe::probe(rules.network));
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(io::Error::other(wrong.join("; "))),
    }
}
