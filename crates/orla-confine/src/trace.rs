//! The operations of a program, as recorded by `strace`, and the smallest permissions that would have
//! allowed them.
//!
//! A trace is text of a foreign program: a line that is not understood is ignored.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::refusal::normal;

/// The arguments of `strace` for a trace that [`Trace::of`] reads.
pub const STRACE: [&str; 7] =
    ["-f", "-y", "-qq", "-s", "1024", "-e", "trace=%file,%network,%process,chdir,fchdir"];

/// The operations of a program's processes that require permissions. Only successful operations count,
/// except for connections, which may fail for other reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Files that were read.
    pub read: BTreeSet<PathBuf>,
    /// Directories that were listed.
    pub listed: BTreeSet<PathBuf>,
    /// Files and directories that were made, changed or removed.
    pub written: BTreeSet<PathBuf>,
    /// Programs that were run.
    pub executed: BTreeSet<PathBuf>,
    /// Addresses and ports that were connected to.
    pub connected: BTreeSet<(String, u16)>,
    /// Names that were looked up.
    pub names: BTreeSet<String>,
    /// UNIX sockets that were connected to.
    pub sockets: BTreeSet<PathBuf>,
    /// Whether the program waited for connections.
    pub listens: bool,
    /// Files whose owner was changed, which no permission allows.
    pub owned: BTreeSet<PathBuf>,
}

/// The traced program, as it was started.
#[derive(Clone, Copy, Debug)]
pub struct Traced<'a> {
    /// The program's file.
    pub program: &'a Path,
    /// The arguments; `None` for any. They distinguish two programs of one interpreter.
    pub args: Option<&'a [OsString]>,
    /// The working directory.
    pub directory: &'a Path,
}

/// The environment of a program that needs no permission.
#[derive(Clone, Copy, Debug)]
pub struct Environment<'a> {
    /// Paths that every confined process may read, and the program's own files.
    pub base: &'a [PathBuf],
    /// The directory of the declaring file, the base of relative paths.
    pub directory: &'a Path,
    /// The directory that `~` refers to.
    pub home: Option<&'a Path>,
    /// The directory for temporary files. A confined process has its own.
    pub temporary: &'a Path,
}

impl Trace {
    /// Parses a trace. It covers the processes that ran the program, and their descendants.
    pub fn of(trace: &[u8], traced: &Traced<'_>) -> Self {
        let text = String::from_utf8_lossy(trace);
        let calls = calls(&text);
        let family = family(&calls, traced);
        let mut made = Self::default();
        let mut directories: HashMap<u32, PathBuf> = HashMap::new();
        for (at, call) in calls.iter().enumerate() {
            if family.get(&call.pid).is_none_or(|since| at < *since) {
                continue;
            }
            let here = directories.get(&call.pid).map_or(traced.directory, PathBuf::as_path).to_owned();
            if let Some(child) = call.child() {
                directories.insert(child, here.clone());
            }
            match call.name {
                "chdir" if call.succeeded() => {
                    if let Some(path) = call.path(0, &here) {
                        directories.insert(call.pid, path);
                    }
                }
                _ => made.add(call, &here),
            }
        }
        made
    }

    fn add(&mut self, call: &Call<'_>, here: &Path) {
        if call.name == "connect" {
            return self.connect(call);
        }
        if matches!(call.name, "sendto" | "sendmsg" | "sendmmsg") {
            return self.names.extend(looked_up(call.args));
        }
        if !call.succeeded() {
            return;
        }
        match call.name {
            "open" | "openat" | "openat2" | "creat" => {
                let Some(path) = call.opened().or_else(|| call.path(0, here)) else { return };
                let has = |flag: &str| call.args.contains(flag);
                if call.name == "creat"
                    || ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC"].into_iter().any(has)
                {
                    self.written.insert(path);
                } else if has("O_DIRECTORY") {
                    self.listed.insert(path);
                } else if !has("O_PATH") {
                    self.read.insert(path);
                }
            }
            "mkdir" | "mkdirat" | "rmdir" | "unlink" | "unlinkat" | "mknod" | "mknodat" | "truncate" => {
                self.written.extend(call.path(0, here));
            }
            "rename" | "renameat" | "renameat2" | "link" | "linkat" => {
                self.written.extend(call.path(0, here));
                self.written.extend(call.path(1, here));
            }
            "symlink" | "symlinkat" => self.written.extend(call.path(1, here)),
            "chmod" | "fchmodat" | "fchmodat2" | "utimensat" | "utime" | "utimes" => {
                self.written.extend(call.path(0, here));
            }
            "chown" | "lchown" | "fchownat" => self.owned.extend(call.path(0, here)),
            "execve" | "execveat" => self.executed.extend(call.path(0, here)),
            "listen" => self.listens = true,
            _ => {}
        }
    }

    fn connect(&mut self, call: &Call<'_>) {
        let between = |start: &str, end: char| {
            let (_, rest) = call.args.split_once(start)?;
            rest.split(end).next()
        };
        let is_tried = call.succeeded()
            || ["EINPROGRESS", "ECONNREFUSED", "ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH"]
                .into_iter()
                .any(|errno| call.result.contains(errno));
        if let Some(path) = between("sun_path=\"", '"').filter(|_| call.succeeded()) {
            self.sockets.insert(PathBuf::from(path));
        }
        let port = between("sin_port=htons(", ')').or_else(|| between("sin6_port=htons(", ')'));
        let address = between("inet_addr(\"", '"').or_else(|| between("inet_pton(AF_INET6, \"", '"'));
        if let (Some(port), Some(address), true) = (port, address, is_tried)
            && let Ok(port) = port.parse()
        {
            self.connected.insert((address.to_owned(), port));
        }
    }

    /// Returns the smallest permissions for these operations, reasonably merged: several files of a
    /// directory become the directory.
    pub fn permissions(&self, environment: &Environment<'_>) -> Vec<String> {
        let is_base = |path: &Path| environment.base.iter().any(|base| path.starts_with(base));
        let is_temporary = |path: &Path| path.parent() == Some(environment.temporary);
        // Interpreters read this path to find out how much memory they may use, and do not need it.
        let is_cgroup = |path: &Path| path.starts_with("/sys/fs/cgroup");
        let needs = |path: &&PathBuf| !is_base(path) && !is_temporary(path) && !is_cgroup(path);
        let written: BTreeSet<PathBuf> = self
            .written
            .iter()
            .filter(needs)
            .map(|path| path.parent().unwrap_or(path).to_owned())
            .collect();
        let written = outermost(&folded(written, environment));
        let is_covered =
            |path: &Path, by: &BTreeSet<PathBuf>| by.iter().any(|one| path.starts_with(one));
        // An interpreter lists the directory of its script, and does not need it.
        let listed = self.listed.iter().filter(|path| path.as_path() != environment.directory);
        let listed: BTreeSet<PathBuf> = listed.filter(needs).cloned().collect();
        let read: BTreeSet<PathBuf> = self.read.iter().filter(needs).cloned().collect();
        let mut read = folded(read, environment);
        read.extend(listed);
        let read = outermost(&folded(read, environment));
        let mut words: Vec<String> = read
            .iter()
            .filter(|path| !is_covered(path, &written))
            .map(|path| format!("fs:read:{}", shown(path, environment)))
            .collect();
        words.extend(written.iter().map(|path| format!("fs:write:{}", shown(path, environment))));
        let executed = self.executed.iter().filter(|path| !is_base(path));
        words.extend(executed.map(|path| format!("exec:{}", shown(path, environment))));
        words.extend(self.sockets.iter().map(|path| format!("unix:{}", path.display())));
        words.extend(self.network());
        words
    }

    fn network(&self) -> Vec<String> {
        if self.listens {
            return vec!["net".to_owned()];
        }
        const DNS: u16 = 53;
        let is_loopback =
            |host: &str| host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        let others = self.connected.iter().filter(|(host, port)| !is_loopback(host) && *port != DNS);
        let others: BTreeSet<&(String, u16)> = others.collect();
        let mut words = BTreeSet::new();
        if self.connected.iter().any(|(host, port)| is_loopback(host) && *port != DNS) {
            words.insert("net:loopback".to_owned());
        }
        if self.names.is_empty() {
            words.extend(others.iter().map(|(host, port)| match host.contains(':') {
                true => format!("net:[{host}]:{port}"),
                false => format!("net:{host}:{port}"),
            }));
        } else {
            // The trace does not show which address belongs to which name, so each name gets each port.
            let ports: BTreeSet<u16> = others.iter().map(|(_, port)| *port).collect();
            for name in &self.names {
                match ports.is_empty() {
                    true => drop(words.insert(format!("net:{name}"))),
                    false => words.extend(ports.iter().map(|port| format!("net:{name}:{port}"))),
                }
            }
        }
        words.into_iter().collect()
    }
}

/// One finished system call.
#[derive(Debug)]
struct Call<'t> {
    pid: u32,
    name: &'t str,
    args: &'t str,
    result: &'t str,
}

impl Call<'_> {
    fn succeeded(&self) -> bool {
        !self.result.is_empty() && !self.result.starts_with(['-', '?'])
    }

    /// Returns the process that the call created.
    fn child(&self) -> Option<u32> {
        let is_clone = matches!(self.name, "clone" | "clone3" | "fork" | "vfork");
        is_clone.then(|| self.result.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()).flatten()
    }

    /// Returns the real path of the opened file: `3</srv/data>`.
    fn opened(&self) -> Option<PathBuf> {
        let (_, rest) = self.result.split_once('<')?;
        let path = rest.strip_suffix('>').unwrap_or(rest);
        path.starts_with('/').then(|| PathBuf::from(unescaped(path)))
    }

    /// Returns one of the paths in the arguments, with its base directory.
    fn path(&self, index: usize, here: &Path) -> Option<PathBuf> {
        let (mut directory, mut found) = (here.to_owned(), 0);
        for argument in arguments(self.args) {
            if let Some(text) = argument.strip_prefix('"') {
                // A truncated text is not a path.
                let text = text.strip_suffix('"')?;
                if found == index {
                    return Some(normal(&directory.join(unescaped(text))));
                }
                found += 1;
                directory = here.to_owned();
            } else if let Some((_, place)) = argument.split_once('<') {
                directory = PathBuf::from(unescaped(place.strip_suffix('>').unwrap_or(place)));
            }
        }
        None
    }
}

/// Returns the finished calls in order. An interrupted call has two lines, which are joined.
fn calls(text: &str) -> Vec<Call<'_>> {
    let mut calls = Vec::new();
    let mut begun: HashMap<(u32, &str), &str> = HashMap::new();
    for line in text.lines() {
        let Some((pid, rest)) = line.trim_start().split_once(' ') else { continue };
        let (Ok(pid), rest) = (pid.parse::<u32>(), rest.trim_start()) else { continue };
        if let Some(resumed) = rest.strip_prefix("<... ") {
            let Some((name, rest)) = resumed.split_once(" resumed>") else { continue };
            let Some(args) = begun.remove(&(pid, name)) else { continue };
            // The end of the arguments may be on either line; paths are on the first.
            let (end, result) = split_result(rest);
            let args = if args.trim().is_empty() { end } else { args };
            calls.push(Call { pid, name, args, result });
            continue;
        }
        let Some((name, rest)) = rest.split_once('(') else { continue };
        if let Some(args) = rest.strip_suffix("<unfinished ...>") {
            begun.insert((pid, name), args);
            continue;
        }
        let (args, result) = split_result(rest);
        calls.push(Call { pid, name, args, result });
    }
    calls
}

/// Returns the arguments and the result behind them.
fn split_result(text: &str) -> (&str, &str) {
    let Some((args, result)) = text.rsplit_once(" = ") else { return (text, "") };
    (args.trim_end().strip_suffix(')').unwrap_or(args), result.trim())
}

/// Splits the arguments at the commas outside of texts and brackets.
fn arguments(text: &str) -> impl Iterator<Item = &str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    let (mut is_text, mut is_escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_text = !is_text,
            _ if is_text => {}
            b'(' | b'[' | b'{' | b'<' => depth += 1,
            b')' | b']' | b'}' | b'>' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.into_iter()
}

/// Returns the processes that ran the program and their descendants, each with the index of the first
/// call that counts.
fn family(calls: &[Call<'_>], traced: &Traced<'_>) -> BTreeMap<u32, usize> {
    let mut family = BTreeMap::new();
    for (at, call) in calls.iter().enumerate() {
        if call.name == "execve" && call.succeeded() && is_start(call.args, traced) {
            family.entry(call.pid).or_insert(at);
        }
    }
    // The trace may show a child before its parent's call that created it, so the child counts from its
    // first call on.
    loop {
        let children = calls.iter().enumerate().filter_map(|(at, call)| {
            let since = family.get(&call.pid)?;
            (at >= *since).then(|| call.child()).flatten()
        });
        let new: Vec<u32> = children.filter(|child| !family.contains_key(child)).collect();
        if new.is_empty() {
            return family;
        }
        family.extend(new.into_iter().map(|child| (child, 0)));
    }
}

/// Returns whether these arguments of `execve` start the program: by its file, by a copy with its name,
/// or by the shell.
fn is_start(args: &str, traced: &Traced<'_>) -> bool {
    let mut parts = arguments(args);
    let file = parts.next().and_then(text);
    let list = parts.next().and_then(|list| list.strip_prefix('[')?.strip_suffix(']'));
    let args: Vec<&str> = list.map(|list| arguments(list).collect()).unwrap_or_default();
    let is_program = |path: Option<String>| path.is_some_and(|path| Path::new(&path) == traced.program);
    let arg = |index: usize| args.get(index).copied().and_then(text);
    let first = match () {
        () if is_program(file) || is_program(arg(0)) => 1,
        () if is_program(arg(1)) => 2,
        () => return false,
    };
    let Some(expected) = traced.args else { return true };
    let given = args.get(first..).unwrap_or_default();
    // `strace` cuts long texts and long lists.
    let is_cut = given.last() == Some(&"...");
    let given = if is_cut { &given[..given.len() - 1] } else { given };
    let is_alike = |(given, expected): (&&str, &OsString)| {
        let expected = expected.to_string_lossy();
        match given.strip_suffix("...") {
            Some(start) => text(start).is_some_and(|start| expected.starts_with(&start)),
            None => text(given).is_some_and(|given| given == expected),
        }
    };
    let is_whole = if is_cut { given.len() <= expected.len() } else { given.len() == expected.len() };
    is_whole && given.iter().zip(expected).all(is_alike)
}

/// Returns a text in quotes.
fn text(quoted: &str) -> Option<String> {
    Some(unescaped(quoted.strip_prefix('"')?.strip_suffix('"')?))
}

/// Returns the names in DNS queries.
fn looked_up(args: &str) -> Vec<String> {
    let texts = args.split('"').skip(1).step_by(2);
    texts.filter_map(|text| name_in(&bytes(text))).collect()
}

/// Returns the name in a query: a header of 12 bytes, then labels.
fn name_in(query: &[u8]) -> Option<String> {
    let (header, mut rest) = query.split_at_checked(12)?;
    // One question and no answer.
    if header[2] & 0x80 != 0 || header[4..8] != [0, 1, 0, 0] {
        return None;
    }
    let mut labels = Vec::new();
    loop {
        let (length, more) = rest.split_first()?;
        if *length == 0 {
            break;
        }
        let (label, more) = more.split_at_checked(usize::from(*length))?;
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
        if !label.iter().all(is_plain) {
            return None;
        }
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        rest = more;
    }
    (labels.len() > 1).then(|| labels.join("."))
}

/// Removes the escapes of `strace` from a text.
fn unescaped(text: &str) -> String {
    String::from_utf8_lossy(&bytes(text)).into_owned()
}

fn bytes(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, more)) = rest.split_first() {
        rest = more;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let Some((kind, more)) = rest.split_first() else { break };
        rest = more;
        let digits = |rest: &[u8], most: usize, base: u32| {
            rest.iter().take(most).take_while(|byte| char::from(**byte).is_digit(base)).count()
        };
        match kind {
            b'n' => bytes.push(b'\n'),
            b't' => bytes.push(b'\t'),
            b'r' => bytes.push(b'\r'),
            b'v' => bytes.push(0x0b),
            b'f' => bytes.push(0x0c),
            b'0'..=b'7' => {
                let more = digits(rest, 2, 8);
                let value = rest[..more]
                    .iter()
                    .fold(u32::from(kind - b'0'), |value, digit| value * 8 + u32::from(digit - b'0'));
                bytes.push(value.to_le_bytes()[0]);
                rest = &rest[more..];
            }
            b'x' => {
                let count = digits(rest, 2, 16);
                let value = rest[..count].iter().filter_map(|digit| char::from(*digit).to_digit(16));
                bytes.push(value.fold(0, |value, digit| value * 16 + digit).to_le_bytes()[0]);
                rest = &rest[count..];
            }
            other => bytes.push(*other),
        }
    }
    bytes
}

/// The number of entries of a directory that are replaced by the directory.
const MANY: usize = 3;

/// Replaces several entries of a directory by the directory, unless it is too wide.
fn folded(mut paths: BTreeSet<PathBuf>, environment: &Environment<'_>) -> BTreeSet<PathBuf> {
    loop {
        let mut counts: BTreeMap<PathBuf, usize> = BTreeMap::new();
        for parent in paths.iter().filter_map(|path| path.parent()) {
            *counts.entry(parent.to_owned()).or_default() += 1;
        }
        let is_wide = |path: &Path| {
            path.components().count() <= 2
                || environment.home.is_some_and(|home| home.starts_with(path))
                || environment.directory.starts_with(path)
                || environment.temporary.starts_with(path)
        };
        let many = counts.into_iter().find(|(path, count)| *count >= MANY && !is_wide(path));
        let Some((directory, _)) = many else { return paths };
        paths.retain(|path| !path.starts_with(&directory));
        paths.insert(directory);
    }
}

/// Removes paths below another path.
fn outermost(paths: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let is_outermost =
        |path: &&PathBuf| !path.ancestors().skip(1).any(|ancestor| paths.contains(ancestor));
    paths.iter().filter(is_outermost).cloned().collect()
}

/// Returns a path in the form of a declaration.
fn shown(path: &Path, environment: &Environment<'_>) -> String {
    let relative = |base: Option<&Path>, prefix: &str| {
        let below = path.strip_prefix(base?).ok()?;
        let below = below.display().to_string();
        Some(if below.is_empty() { prefix.to_owned() } else { format!("{prefix}/{below}") })
    };
    let beside = environment.directory.parent().filter(|parent| parent.parent().is_some());
    relative(Some(environment.directory), ".")
        .or_else(|| relative(beside, ".."))
        .or_else(|| relative(environment.home.filter(|home| home.parent().is_some()), "~"))
        .unwrap_or_else(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Recorded with strace 6.1, shortened.
    const RECORDED: &str = r#"100 execve("/proc/self/exe", ["orla-reaper"], 0x7ffd /* 0 vars */) = 0
100 openat(AT_FDCWD</srv>, "/etc/secret", O_RDONLY|O_CLOEXEC) = 3</etc/secret>
101 execve("/srv/tools/t.py", ["/srv/tools/t.py"], 0x7ffd7a753360 /* 9 vars */) = 0
101 openat(AT_FDCWD</srv>, "/etc/ld.so.cache", O_RDONLY|O_CLOEXEC) = 3</etc/ld.so.cache>
101 openat(AT_FDCWD</srv>, "/sys/fs/cgroup/x/memory.max", O_RDONLY) = 3</sys/fs/cgroup/x/memory.max>
101 openat(AT_FDCWD</srv>, "/etc/none", O_RDONLY) = -1 ENOENT (No such file or directory)
101 openat(AT_FDCWD</srv>, "data/a, b \"c\".txt", O_RDONLY|O_CLOEXEC) = 3</srv/data/a, b "c".txt>
101 openat(AT_FDCWD</srv>, "out/new", O_WRONLY|O_CREAT|O_TRUNC|O_CLOEXEC, 0666) = 3</srv/out/new>
101 openat(AT_FDCWD</srv>, "/tmp/x1", O_RDWR|O_CREAT|O_EXCL, 0600) = 3</tmp/x1>
101 openat(AT_FDCWD</srv>, "tools", O_RDONLY|O_NONBLOCK|O_CLOEXEC|O_DIRECTORY) = 3</srv/tools>
101 mkdir("d\303\244", 0777)                  = 0
101 vfork( <unfinished ...>
102 execve("/opt/x/bin/run", ["run"], 0x7ffd7a753360 /* 39 vars */ <unfinished ...>
101 <... vfork resumed>)              = 102
102 <... execve resumed>)             = 0
102 chdir("/var/lib/x")               = 0
102 rename("one", "/home/ada/notes/two")                 = 0
102 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED, si_pid=17162} ---
101 connect(3<socket:[8342406]>, {sa_family=AF_INET, sin_port=htons(9), sin_addr=inet_addr("127.0.0.1")}, 16) = -1 ECONNREFUSED (Connection refused)
101 connect(4<socket:[8342409]>, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("10.255.255.53")}, 16) = 0
101 sendmmsg(4<socket:[8342409]>, [{msg_hdr={msg_name=NULL, msg_namelen=0, msg_iov=[{iov_base="\302E\1\0\0\1\0\0\0\0\0\0\3api\7example\3com\0\0\1\0\1", iov_len=33}], msg_iovlen=1, msg_controllen=0, msg_flags=0}, msg_len=33}], 2, MSG_NOSIGNAL) = 2
101 connect(5<socket:[8342410]>, {sa_family=AF_INET6, sin6_port=htons(443), sin6_flowinfo=htonl(0), inet_pton(AF_INET6, "2001:db8::1", &sin6_addr), sin6_scope_id=0}, 28) = -1 EINPROGRESS (Operation now in progress)
101 exit_group(0)                     = ?
"#;

    fn traced<'a>(program: &'a str, args: Option<&'a [OsString]>) -> Traced<'a> {
        Traced { program: Path::new(program), args, directory: Path::new("/srv") }
    }

    fn environment<'a>(base: &'a [PathBuf]) -> Environment<'a> {
        Environment {
            base,
            directory: Path::new("/srv/tools"),
            home: Some(Path::new("/home/ada")),
            temporary: Path::new("/tmp"),
        }
    }

    #[test]
    fn the_smallest_permissions_of_what_was_recorded_are_proposed() {
        let trace = Trace::of(RECORDED.as_bytes(), &traced("/srv/tools/t.py", None));
        assert!(!trace.read.contains(Path::new("/etc/secret")), "of another process");
        let base = ["/etc/ld.so.cache", "/srv/tools/t.py"].map(PathBuf::from);
        assert_eq!(
            trace.permissions(&environment(&base)),
            [
                "fs:write:~/notes",
                "fs:write:..",
                "fs:write:/var/lib/x",
                "exec:/opt/x/bin/run",
                "net:api.example.com:443",
                "net:loopback",
            ]
        );
    }

    #[test]
    fn many_files_of_a_directory_are_the_directory_and_wide_ones_are_not() {
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<BTreeSet<_>>();
        let read = paths(&[
            "/data/in/a",
            "/data/in/b",
            "/data/in/c",
            "/home/ada/1",
            "/home/ada/2",
            "/home/ada/3",
        ]);
        let trace = Trace { read, ..Trace::default() };
        assert_eq!(
            trace.permissions(&environment(&[])),
            ["fs:read:/data/in", "fs:read:~/1", "fs:read:~/2", "fs:read:~/3"]
        );
    }

    #[test]
    fn without_names_addresses_are_proposed() {
        let trace = r#"1 execve("/t", ["t"], 0x1 /* 0 vars */) = 0
1 connect(3<socket:[1]>, {sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr("10.0.0.1")}, 16) = 0
1 connect(3<socket:[1]>, {sa_family=AF_UNIX, sun_path="/run/x.sock"}, 16) = 0
"#;
        let trace = Trace::of(trace.as_bytes(), &traced("/t", None));
        assert_eq!(
            trace.permissions(&environment(&[])),
            ["exec:/t", "unix:/run/x.sock", "net:10.0.0.1:80"]
        );
    }

    #[test]
    fn two_programs_of_one_interpreter_are_distinguished() {
        let long = "x".repeat(2000);
        let starts = |args: &str, expected: &[&str]| {
            let expected: Vec<OsString> = expected.iter().map(OsString::from).collect();
            is_start(args, &traced("/usr/bin/python3", Some(&expected)))
        };
        let python =
            r#""/usr/bin/python3", ["/usr/bin/python3", "/a \"b\".py", "-v"], 0x1 /* 9 vars */"#;
        assert!(starts(python, &["/a \"b\".py", "-v"]));
        assert!(!starts(python, &["/c.py", "-v"]) && !starts(python, &["/a \"b\".py"]));
        let shell = r#""/bin/sh", ["/bin/sh", "/usr/bin/python3", "x"], 0x1 /* 9 vars */"#;
        assert!(starts(shell, &["x"]) && !starts(shell, &[]));
        let copy = r#""/proc/self/fd/9", ["/usr/bin/python3"], 0x1 /* 9 vars */"#;
        assert!(starts(copy, &[]) && !starts(copy, &["x"]));
        let cut = format!(r#""/usr/bin/python3", ["python3", "{}"..., ...], 0x1"#, &long[..1024]);
        assert!(starts(&cut, &[&long, "y"]) && !starts(&cut, &["z"]));
        assert!(is_start(&cut, &traced("/usr/bin/python3", None)));
    }

    proptest! {
        #[test]
        fn no_trace_panics(lines in proptest::collection::vec("(1|2) (execve|openat|rename|connect|sendto|vfork|<\\.\\.\\. vfork resumed>)\\(?(\\PC|\"|\\\\|<|>|,|/){0,30}(<unfinished \\.\\.\\.>|\\) = [0-9-]{1,2}(</x>)?)?", 0..20)) {
            let trace = Trace::of(lines.join("\n").as_bytes(), &traced("/t", Some(&[])));
            let _ = trace.permissions(&environment(&[]));
        }

        #[test]
        fn no_bytes_panic(trace in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Trace::of(&trace, &traced("/t", None));
        }
    }
}
