//! Finds the tools in a directory (RFC 1 §4).
//!
//! # How it works
//!
//! [`scan`] lists the directory, looks at each entry without opening it, and reads the first bytes of
//! the executable files; [`describe`] and [`naming`](crate::naming) then make tools of plain data. Of
//! a thousand files, each costs one `stat`, one `open`, one `read` and one `close`; a file is never
//! read whole, and no process is started. Fifos, sockets, devices and dangling links are never opened.
//!
//! # What is deliberately absent
//!
//! No file is fatal. What cannot be used is left out with its reason, and what can be used in part is
//! served with a finding that says where the fault is.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::header::{self, BLOCK_READ, FIRST_READ};
use crate::metadata::{self, Metadata, Position, Remark};
use crate::naming::{self, SIDECAR};
use crate::shebang::FileKind;

/// What a directory holds.
#[derive(Debug, Default)]
pub struct Discovery {
    /// The tools, in the order of their names.
    pub tools: Vec<Found>,
    /// Directories with a `tool.yaml` or `orla-tool.json`, in the order of their names.
    pub packages: Vec<PathBuf>,
    /// What the owner of the directory should know; everything works all the same.
    pub warnings: Vec<Finding>,
    /// What was declared and is not in force. `orla check` fails on these.
    pub problems: Vec<Finding>,
    /// What is no tool, with the reason.
    pub skipped: Vec<Finding>,
}

/// One tool, as it was found.
#[derive(Debug)]
pub struct Found {
    /// Its name, unique within the directory.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// What runs it; none for a binary.
    pub interpreter: Option<String>,
    /// What it does. Never empty.
    pub description: String,
    /// What it says of itself.
    pub metadata: Metadata,
}

/// Something about one file: `tools/add.py:3:10: timeout: expected seconds above 0, got "soon"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file or directory.
    pub path: PathBuf,
    /// Where in it, if that is known.
    pub at: Option<Position>,
    /// What there is to say.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string_lossy();
        // A name may contain a newline; a message is one line.
        f.write_str(&path.replace(char::is_control, "?"))?;
        if let Some(Position { line, column }) = self.at {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// A tools directory that is there and cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", .path.display())]
pub struct DirectoryError {
    /// The directory.
    pub path: PathBuf,
    /// Why it cannot be used.
    pub reason: String,
}

/// Finds the tools in `directory`. A directory that does not exist has none, and one warning.
///
/// # Errors
/// The directory is a file, or cannot be read.
pub fn scan(directory: &Path) -> Result<Discovery, DirectoryError> {
    let mut discovery = Discovery::default();
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            discovery.warnings.push(Finding {
                path: directory.to_owned(),
                at: None,
                message: "no such directory, so there are no tools; create it and put an executable \
                          file in it to add one (mkdir, chmod +x)"
                    .to_owned(),
            });
            return Ok(discovery);
        }
        Err(err) => return Err(DirectoryError { path: directory.to_owned(), reason: reason(&err) }),
    };
    let mut files: Vec<OsString> = Vec::new();
    let mut sidecars: HashSet<OsString> = HashSet::new();
    for entry in entries {
        let entry =
            entry.map_err(|err| DirectoryError { path: directory.to_owned(), reason: reason(&err) })?;
        let name = entry.file_name();
        if name.as_encoded_bytes().ends_with(SIDECAR.as_bytes()) {
            sidecars.insert(name.clone());
        }
        match look(&entry, &name) {
            Look::Tool => files.push(name),
            Look::Package => discovery.packages.push(entry.path()),
            Look::Nothing(why) => {
                discovery.skipped.push(Finding { path: entry.path(), at: None, message: why });
            }
        }
    }
    files.sort_unstable();
    discovery.packages.sort_unstable();
    let names: Vec<&OsStr> = files.iter().map(OsString::as_os_str).collect();
    let mut buffer = vec![0; BLOCK_READ];
    for (index, assigned) in naming::assign(&names).into_iter().enumerate() {
        let path = directory.join(&files[index]);
        if let Some(first) = assigned.instead_of {
            let message = format!(
                "{} is named {} already; served as {}",
                directory.join(&files[first]).display(),
                base(&files[first]),
                assigned.name
            );
            discovery.warnings.push(Finding { path: path.clone(), at: None, message });
        }
        let head = read_head(&path, &mut buffer);
        let sidecar = sidecar_of(directory, &files[index], &sidecars);
        discovery.add(assigned.name, path, head.unwrap_or_default(), sidecar.as_deref());
    }
    discovery.tools.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(discovery)
}

impl Discovery {
    fn add(&mut self, name: String, path: PathBuf, head: &[u8], sidecar: Option<&Path>) {
        let described = describe(head, sidecar.map(read_sidecar));
        for (file, remark) in described.remarks {
            let path = if file == Source::Sidecar { sidecar.unwrap_or(&path) } else { &path };
            let finding =
                Finding { path: path.to_owned(), at: Some(remark.at), message: remark.message };
            let list = if remark.is_problem { &mut self.problems } else { &mut self.warnings };
            list.push(finding);
        }
        let interpreter = described.kind.interpreter();
        let description = described.metadata.description.clone().or(described.paragraph);
        let description =
            description.unwrap_or_else(|| made_from_the_name(&path, interpreter.as_deref()));
        self.tools.push(Found { name, path, interpreter, description, metadata: described.metadata });
    }
}

/// What a tool's first bytes and the file beside it say.
#[derive(Debug)]
pub struct Described {
    /// What the file is.
    pub kind: FileKind,
    /// The first paragraph of comments.
    pub paragraph: Option<String>,
    /// The keys of the block or of the file beside it; the block wins.
    pub metadata: Metadata,
    /// What there is to say about them, and about which file.
    pub remarks: Vec<(Source, Remark)>,
}

/// Where metadata was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The block in the tool itself.
    Block,
    /// `NAME.orla.yaml` beside it.
    Sidecar,
}

/// Makes sense of what was read of a tool. `sidecar` is the content of the file beside it.
pub fn describe(head: &[u8], sidecar: Option<io::Result<Vec<u8>>>) -> Described {
    let kind = FileKind::of(head);
    let header = if kind == FileKind::Binary { header::Header::default() } else { header::read(head) };
    let mut described = Described {
        kind,
        paragraph: header.paragraph,
        metadata: Metadata::default(),
        remarks: Vec::new(),
    };
    let start = Position { line: 1, column: 1 };
    let mut from = |source, (metadata, remarks): (Metadata, Vec<Remark>)| {
        described.metadata = metadata;
        described.remarks.extend(remarks.into_iter().map(|remark| (source, remark)));
    };
    match (header.block, sidecar) {
        (Some(Ok(block)), None) => from(Source::Block, metadata::read_block(&block)),
        (Some(Ok(block)), Some(_)) => {
            from(Source::Block, metadata::read_block(&block));
            let message = "not read: the tool describes itself in a block at its top".to_owned();
            described.remarks.push((Source::Sidecar, Remark { at: start, message, is_problem: false }));
        }
        (Some(Err(fault)), _) => {
            let at = Position { line: fault.line, column: 1 };
            described
                .remarks
                .push((Source::Block, Remark { at, message: fault.message, is_problem: true }));
        }
        (None, Some(Ok(bytes))) => from(Source::Sidecar, metadata::read_file(&bytes)),
        (None, Some(Err(err))) => {
            let remark = Remark { at: start, message: reason(&err), is_problem: true };
            described.remarks.push((Source::Sidecar, remark));
        }
        (None, None) => {}
    }
    described
}

fn made_from_the_name(path: &Path, interpreter: Option<&str>) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let file = file.replace(char::is_control, "?");
    match interpreter {
        Some(interpreter) => format!("Runs the {interpreter} script {file}."),
        None => format!("Runs the program {file}."),
    }
}

enum Look {
    Tool,
    Package,
    Nothing(String),
}

/// What an entry is, found out without opening it.
fn look(entry: &fs::DirEntry, name: &OsStr) -> Look {
    let nothing = |why: &str| Look::Nothing(why.to_owned());
    if let Some(why) = naming::never_a_tool(name) {
        return nothing(why);
    }
    // Where the kernel says the type with the name, this costs no call.
    let known = entry.file_type().ok();
    if known.is_some_and(|kind| !(kind.is_file() || kind.is_symlink() || kind.is_dir())) {
        return Look::Nothing(type_name(known).to_owned());
    }
    let metadata = match fs::metadata(entry.path()) {
        Ok(metadata) => metadata,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return nothing("dangling link"),
        Err(err) => return Look::Nothing(reason(&err)),
    };
    if metadata.is_dir() {
        let has = |manifest| entry.path().join(manifest).symlink_metadata().is_ok();
        let is_package = has("tool.yaml") || has("orla-tool.json");
        return if is_package { Look::Package } else { nothing("directory without a manifest") };
    }
    if !metadata.is_file() {
        return Look::Nothing(type_name(Some(metadata.file_type())).to_owned());
    }
    if metadata.permissions().mode() & 0o111 == 0 {
        return nothing("not executable (chmod +x makes it a tool)");
    }
    Look::Tool
}

fn type_name(kind: Option<fs::FileType>) -> &'static str {
    match kind {
        Some(kind) if kind.is_fifo() => "fifo",
        Some(kind) if kind.is_socket() => "socket",
        Some(kind) if kind.is_block_device() || kind.is_char_device() => "device",
        _ => "not a regular file",
    }
}

/// Opens a regular file, and nothing that would block or act on being opened.
///
/// # Errors
/// It cannot be opened, or is something else by now.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    // Opening a fifo would wait for its writer, and the file may have become one since it was listed.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// The first bytes of a file: as many as its header needs, and never more than the buffer.
fn read_head<'a>(path: &Path, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let mut file = open_regular(path)?;
    let (mut have, mut want) = (0, FIRST_READ);
    loop {
        match file.read(&mut buffer[have..want])? {
            0 => break,
            count => have += count,
        }
        if have == want {
            match header::wanted(&buffer[..have]) {
                Some(more) => want = more.min(buffer.len()),
                None => break,
            }
        } else if want == FIRST_READ {
            // A regular file gives less than was asked for only at its end.
            break;
        }
        if have == want {
            break;
        }
    }
    Ok(&buffer[..have])
}

fn sidecar_of(directory: &Path, file: &OsStr, sidecars: &HashSet<OsString>) -> Option<PathBuf> {
    if sidecars.is_empty() {
        return None;
    }
    let with_end = |name: &OsStr| {
        let mut name = name.to_owned();
        name.push(SIDECAR);
        name
    };
    let stem = Path::new(file).file_stem().unwrap_or(file);
    [with_end(file), with_end(stem)]
        .into_iter()
        .find(|name| sidecars.contains(name))
        .map(|name| directory.join(name))
}

fn read_sidecar(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = open_regular(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    file.by_ref().take(BLOCK_READ as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > BLOCK_READ {
        return Err(io::Error::other(format!("larger than {} KiB", BLOCK_READ / 1024)));
    }
    Ok(bytes)
}

fn base(file: &OsStr) -> String {
    naming::assign(&[file]).pop().map(|assigned| assigned.name).unwrap_or_default()
}

/// The system's reason without its number.
pub(crate) fn reason(err: &io::Error) -> String {
    let text = err.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests;
