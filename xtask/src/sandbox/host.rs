//! The host that confined processes must not reach: sockets that count who came, a process, and files.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::endure::watch::processes_in;

/// How long a connection may stay silent.
const SILENCE: Duration = Duration::from_secs(1);

/// Sockets of the host, each with a thread that answers and counts until this process ends.
pub(super) struct Sockets {
    /// Where each is: a port, or a path.
    pub(super) places: BTreeMap<&'static str, String>,
    counts: BTreeMap<&'static str, Arc<AtomicUsize>>,
    /// The port of `tcp`.
    pub(super) port: u16,
}

impl Sockets {
    /// Opens all of them; those in the file system below `base`. What a system does not have, such as IPv6, is left out.
    pub(super) fn open(base: &Path) -> io::Result<Self> {
        let mut all = Self { places: BTreeMap::new(), counts: BTreeMap::new(), port: 0 };
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        all.port = tcp.local_addr()?.port();
        let address = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), all.port))?;
        for (name, listener) in [
            ("tcp", Ok(tcp)),
            ("tcp_address", Ok(address)),
            ("tcp_other", TcpListener::bind((Ipv4Addr::LOCALHOST, 0))),
            ("tcp6", TcpListener::bind("[::1]:0")),
        ] {
            let Ok(listener) = listener else { continue };
            let place = listener.local_addr()?.port().to_string();
            // A name may lead to either of two addresses of one port.
            let byte = if name == "tcp_address" { b'a' } else { b'h' };
            all.serve(name, place, move |arrived| {
                let (stream, _) = listener.accept()?;
                arrived();
                stream.set_read_timeout(Some(SILENCE))?;
                answer(stream, byte)
            });
        }
        for (name, socket) in
            [("udp", UdpSocket::bind("127.0.0.1:0")), ("udp6", UdpSocket::bind("[::1]:0"))]
        {
            let Ok(socket) = socket else { continue };
            let place = socket.local_addr()?.port().to_string();
            all.serve(name, place, move |arrived| {
                let (_, from) = socket.recv_from(&mut [0; 16])?;
                arrived();
                socket.send_to(b"h", from).map(drop)
            });
        }
        let hidden = format!("orla-sandbox-{}-{}", std::process::id(), all.port);
        let abstracted = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&hidden)?)?;
        let path = base.join("stream.sock");
        for (name, place, listener) in [
            ("unix", path.display().to_string(), UnixListener::bind(&path)?),
            ("abstract", hidden, abstracted),
        ] {
            all.serve(name, place, move |arrived| {
                let (stream, _) = listener.accept()?;
                arrived();
                stream.set_read_timeout(Some(SILENCE))?;
                answer(stream, b'h')
            });
        }
        let datagram = base.join("datagram.sock");
        let socket = UnixDatagram::bind(&datagram)?;
        all.serve("datagram", datagram.display().to_string(), move |arrived| {
            socket.recv(&mut [0; 16]).map(|_| arrived())
        });
        for path in [path, datagram] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
        }
        // The address of this machine on the way to others; nothing is sent.
        let route = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
            socket.connect(("192.0.2.1", 9))?;
            socket.local_addr()
        });
        if let Ok(address) = route
            && !address.ip().is_loopback()
        {
            all.places.insert("far", address.ip().to_string());
        }
        Ok(all)
    }

    /// Counts what comes, for as long as this process lives.
    fn serve(
        &mut self,
        name: &'static str,
        place: String,
        mut next: impl FnMut(&dyn Fn()) -> io::Result<()> + Send + 'static,
    ) {
        let count = Arc::new(AtomicUsize::new(0));
        self.places.insert(name, place);
        self.counts.insert(name, Arc::clone(&count));
        std::thread::spawn(move || {
            loop {
                // Counted before the answer, after which the client may look. One that went away was here nevertheless.
                let _ = next(&|| {
                    count.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
    }

    /// Returns how many came to each so far.
    pub(super) fn counts(&self) -> BTreeMap<&'static str, usize> {
        self.counts.iter().map(|(name, count)| (*name, count.load(Ordering::Relaxed))).collect()
    }
}

/// Answers a request of HTTP as that, with a redirect from `/to/PORT` to this port, and anything else with one byte.
fn answer(mut stream: impl Read + Write, byte: u8) -> io::Result<()> {
    let mut bytes = [0; 512];
    let count = stream.read(&mut bytes)?;
    let request = String::from_utf8_lossy(&bytes[..count]);
    let Some(path) = request.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()) else {
        return stream.write_all(&[byte]);
    };
    let (head, body) = match path.strip_prefix("/to/") {
        Some(port) => (format!("302 Found\r\nLocation: http://127.0.0.1:{port}/\r\n"), ""),
        None => ("200 OK\r\n".to_owned(), "hi"),
    };
    let length = body.len();
    write!(stream, "HTTP/1.1 {head}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}")
}

/// The files of a world, apart from those that never change.
const FILES: &[(&str, &str)] = &[
    ("in/file", "inside"),
    ("work/file", "work"),
    ("work/rename", ""),
    ("work/out", ""),
    ("work/exchange", ""),
    ("work/unlink", ""),
    ("other/secret", "SECRET"),
    ("other/truncate", "whole"),
    ("other/in", ""),
    ("other/exchange", ""),
    ("other/unlink", ""),
];

/// Puts the files of a world back as they were. The directories stay, as rules speak of them.
pub(super) fn reset_files(base: &Path, ids: Option<(u32, u32)>) -> io::Result<()> {
    for folder in ["in", "work", "other", "run", "tools"] {
        fs::create_dir_all(base.join(folder))?;
    }
    for folder in ["in", "work", "other"] {
        for entry in fs::read_dir(base.join(folder))? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
    }
    for (file, text) in FILES {
        fs::write(base.join(file), text)?;
    }
    symlink("../other/secret", base.join("work/link"))?;
    for program in ["run/program", "in/program", "other/program", "tools/victim.sh"] {
        let path = base.join(program);
        if !path.exists() {
            // A program and not a script, which would have to be read as well.
            fs::copy("/bin/true", path)?;
        }
    }
    ids.map_or(Ok(()), |ids| own(base, ids))
}

/// Makes a folder and all in it somebody's.
fn own(path: &Path, (uid, gid): (u32, u32)) -> io::Result<()> {
    std::os::unix::fs::lchown(path, Some(uid), Some(gid))?;
    if path.symlink_metadata()?.is_dir() {
        for entry in fs::read_dir(path)? {
            own(&entry?.path(), (uid, gid))?;
        }
    }
    Ok(())
}

/// What a file is: its mode, its owner, the second of its last change, and its content.
type State = (u32, u32, i64, Vec<u8>);

/// Everything outside of what any set may write.
pub(super) fn outside(base: &Path) -> io::Result<BTreeMap<String, State>> {
    let mut all = BTreeMap::new();
    for folder in ["in", "other", "tools", "run"] {
        for entry in fs::read_dir(base.join(folder))? {
            let path = entry?.path();
            let metadata = path.symlink_metadata()?;
            // Of programs the length says enough.
            let content = match folder {
                "in" | "other" if metadata.is_file() => fs::read(&path)?,
                _ => metadata.len().to_le_bytes().to_vec(),
            };
            let state = (metadata.mode(), metadata.uid(), metadata.mtime(), content);
            all.insert(path.display().to_string(), state);
        }
    }
    Ok(all)
}

/// Returns the processes that daemons of probes left in a world, by their command line.
pub(super) fn daemons(base: &Path) -> Vec<u32> {
    let mut all = processes_in(base);
    all.retain(|id| {
        fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| line.ends_with(b"sleep\x0086397\0"))
    });
    all
}
