//! Finds the tools in a directory (RFC 1 §4).
//!
//! # How it works
//!
//! [`Scanner::scan`] lists the directory, examines each entry without opening it, and reads the first
//! bytes of the executable files. It reads other regular files only to find those that were meant to be
//! executable. Two pure functions, [`plan`] and [`describe`], turn the result into tools. A file is
//! never read completely, and no process is started. FIFOs, sockets, devices and dangling links are
//! never opened. A program in RTFS (`*.rtfs`) is only listed: the crate `orla`, which knows the
//! language, reads it, and calls [`ProgramFile::read_description`] for its description.
//!
//! The scanner remembers the description of each file, and reads a file again only when it has changed.
//! An unchanged file costs two `stat`s.
//!
//! # What is deliberately absent
//!
//! No file is fatal. A file that is not a tool is left out with its reason. A tool with a fault is kept
//! with a finding that gives the place of the fault.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use orla_document::Position;
use orla_marketplace::attestation::hash_text;
use orla_process::confinement::Declared;
use orla_process::file::{FileVersion, open_regular, reason};
use orla_process::shebang::FileKind;

use super::header::{self, BLOCK_READ, FIRST_READ};
use super::metadata::{self, Metadata, NOT_RUN, Remark, Subject};
use super::naming;
use super::plan::{Entry, EntryKind, NOT_EXECUTABLE, plan};

/// The maximum number of files without an executable bit that are searched for a metadata block.
const MAX_PLAIN: usize = 1000;

/// The content of a directory.
#[derive(Debug, Default)]
pub struct Discovery {
    /// The tools, in the order of their names.
    pub tools: Vec<Found>,
    /// Files that are programs in RTFS, in the order of their names. They are not read.
    pub programs: Vec<ProgramFile>,
    /// Directories with a `tool.yaml` or `orla-tool.json`, in the order of their names.
    pub packages: Vec<PathBuf>,
    /// Warnings for the owner of the directory.
    pub warnings: Vec<Finding>,
    /// Declarations that are not in force. `orla check` fails on these.
    pub problems: Vec<Finding>,
    /// Files that are not tools, with the reason.
    pub skipped: Vec<Finding>,
}

/// One found tool.
#[derive(Debug)]
pub struct Found {
    /// The name, unique within the directory.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// The interpreter; `None` for a binary.
    pub interpreter: Option<String>,
    /// The description. Never empty.
    pub description: String,
    /// Its metadata.
    pub metadata: Metadata,
    /// The file with the metadata: the tool's own, or its sidecar.
    pub declared_in: PathBuf,
    /// The first fault in its metadata, with its place. A tool with a fault must not run.
    pub fault: Option<String>,
    /// The description as read. It is shared with the previous scan if the file was not read again.
    pub read: Arc<Described>,
}

/// A program in RTFS: a tool named by its file, executable or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramFile {
    /// The tool's name, unique within the directory.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// The sidecar, which describes the program.
    pub sidecar: Option<PathBuf>,
    /// A file that is not read because its name is almost that of a sidecar.
    pub misnamed: Option<Misnamed>,
}

/// A file that was probably meant as a sidecar. A tool beside such a file must not run, because it may
/// be meant to be confined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misnamed {
    path: PathBuf,
    /// The name that would be read.
    meant: OsString,
}

impl Misnamed {
    fn finding(&self) -> Finding {
        let meant = self.meant.to_string_lossy();
        let message = format!("not read, did you mean {meant}? Rename or remove the file. {NOT_RUN}");
        Finding { path: self.path.clone(), at: None, message }
    }
}

impl ProgramFile {
    /// Returns the description from the program's text and its sidecar, and the findings about them.
    /// Reads the sidecar.
    pub fn read_description(&self, text: &[u8]) -> (Described, Vec<DescriptionFinding>) {
        let sidecar = self.sidecar.as_deref();
        let read = describe(header::top(text), sidecar.map(read_sidecar), Subject::Program);
        let misnamed = self.misnamed.iter().map(Misnamed::finding);
        let misnamed = misnamed.map(|finding| DescriptionFinding { finding, is_problem: true });
        let found = findings(&read, &self.path, sidecar).chain(misnamed).collect();
        (read, found)
    }
}

/// A finding about a tool's description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptionFinding {
    /// The finding.
    pub finding: Finding,
    /// Whether a declaration is not in force.
    pub is_problem: bool,
}

fn findings<'a>(
    read: &'a Described,
    path: &'a Path,
    sidecar: Option<&'a Path>,
) -> impl Iterator<Item = DescriptionFinding> + 'a {
    read.remarks.iter().map(move |(file, remark)| {
        let path = if *file == Source::Sidecar { sidecar.unwrap_or(path) } else { path };
        let message = remark.message.clone();
        let finding = Finding { path: path.to_owned(), at: Some(remark.at), message };
        DescriptionFinding { finding, is_problem: remark.is_problem }
    })
}

/// Something about one file: `tools/add.py:3:10: timeout: expected seconds above 0 and at most 86400, got "soon"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file or directory.
    pub path: PathBuf,
    /// The position in the file, if it is known.
    pub at: Option<Position>,
    /// The message.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string_lossy();
        // A name may contain a newline, but a message is one line.
        f.write_str(&path.replace(char::is_control, "?"))?;
        if let Some(Position { line, column }) = self.at {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// A tools directory that exists but cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", .path.display())]
pub struct DirectoryError {
    /// The directory.
    pub path: PathBuf,
    /// The reason why it cannot be used.
    pub reason: String,
}

/// Finds tools, and caches their descriptions.
#[derive(Debug, Default)]
pub struct Scanner {
    /// The descriptions of the files of the newest scan, with the versions of the files.
    known: HashMap<PathBuf, (Versions, Arc<Described>)>,
}

/// The versions of a tool and of its sidecar.
#[derive(Debug, PartialEq, Eq)]
struct Versions {
    file: FileVersion,
    sidecar: Option<FileVersion>,
}

impl Versions {
    /// Returns `None` if a file cannot be examined, or may change without getting another version.
    fn settled(path: &Path, sidecar: Option<&Path>, now: SystemTime) -> Option<Self> {
        let of = |path| FileVersion::of(path).filter(|version| version.is_settled_by_own_clock(now));
        let sidecar = match sidecar {
            Some(sidecar) => Some(of(sidecar)?),
            None => None,
        };
        Some(Self { file: of(path)?, sidecar })
    }
}

impl Scanner {
    /// Finds the tools in `directory`. A directory that does not exist has none, and one warning.
    ///
    /// # Errors
    /// The directory is a file, or cannot be read.
    pub fn scan(&mut self, directory: &Path) -> Result<Discovery, DirectoryError> {
        self.scan_at(directory, SystemTime::now())
    }

    fn scan_at(&mut self, directory: &Path, now: SystemTime) -> Result<Discovery, DirectoryError> {
        let mut discovery = Discovery::default();
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                discovery.warnings.push(Finding {
                    path: directory.to_owned(),
                    at: None,
                    message: "no such directory, so there are no tools; create it and put an \
                              executable file in it to add one (mkdir, chmod +x)"
                        .to_owned(),
                });
                return Ok(discovery);
            }
            Err(err) => return Err(DirectoryError { path: directory.to_owned(), reason: reason(&err) }),
        };
        let listed: io::Result<Vec<Entry>> = entries.map(|entry| Ok(look(&entry?))).collect();
        let listed =
            listed.map_err(|err| DirectoryError { path: directory.to_owned(), reason: reason(&err) })?;
        let plan = plan(listed);
        let within = |name: &OsString| directory.join(name);
        discovery.packages = plan.packages.iter().map(within).collect();
        let mut looked_at = 0;
        for (name, message) in plan.skipped {
            let path = within(&name);
            looked_at += usize::from(message == NOT_EXECUTABLE);
            let is_meant =
                message == NOT_EXECUTABLE && looked_at <= MAX_PLAIN && is_meant_as_tool(&path);
            if is_meant {
                let message = "describes itself in a metadata block, but is not executable, so it is not a tool (chmod +x makes it one)".to_owned();
                discovery.warnings.push(Finding { path: path.clone(), at: None, message });
            }
            discovery.skipped.push(Finding { path, at: None, message });
        }
        let known = std::mem::take(&mut self.known);
        let mut buffer = vec![0; BLOCK_READ];
        for tool in plan.tools {
            let path = within(&tool.file);
            if let Some((first, name)) = tool.instead_of {
                let first = within(&first);
                let message =
                    format!("{} is named {name} already; served as {}", first.display(), tool.name);
                discovery.warnings.push(Finding { path: path.clone(), at: None, message });
            }
            let sidecar = tool.sidecar.as_ref().map(within);
            let misnamed = tool.misnamed.map(|(name, meant)| Misnamed { path: within(&name), meant });
            if naming::is_program(&tool.file) {
                discovery.programs.push(ProgramFile { name: tool.name, path, sidecar, misnamed });
                continue;
            }
            // The version is taken before the file is read, so that a change in between is found by the
            // next scan.
            let versions = Versions::settled(&path, sidecar.as_deref(), now);
            let before = known.get(&path).filter(|(read, _)| Some(read) == versions.as_ref());
            let described = match before {
                Some((_, described)) => Ok(Arc::clone(described)),
                None => read(&path, sidecar.as_deref(), &mut buffer).map(Arc::new),
            };
            let described = match (described, versions) {
                (Ok(described), Some(versions)) => {
                    self.known.insert(path.clone(), (versions, Arc::clone(&described)));
                    described
                }
                (Ok(described), None) => described,
                (Err(err), _) => {
                    let message =
                        format!("cannot be read, so it cannot describe itself: {}", reason(&err));
                    discovery.warnings.push(Finding { path: path.clone(), at: None, message });
                    Arc::default()
                }
            };
            discovery.add(tool.name, path, described, sidecar.as_deref(), misnamed.as_ref());
        }
        Ok(discovery)
    }
}

/// Returns whether the comments at the top of a file that is not executable begin a metadata block.
fn is_meant_as_tool(path: &Path) -> bool {
    let mut head = Vec::with_capacity(FIRST_READ);
    let read = open_regular(path).and_then(|file| file.take(FIRST_READ as u64).read_to_end(&mut head));
    read.is_ok() && header::has_block(&head)
}

/// Reads the descriptions in a tool and its sidecar.
fn read(path: &Path, sidecar: Option<&Path>, buffer: &mut [u8]) -> io::Result<Described> {
    Ok(describe(read_head(path, buffer)?, sidecar.map(read_sidecar), Subject::Executable))
}

impl Discovery {
    fn add(
        &mut self,
        name: String,
        path: PathBuf,
        read: Arc<Described>,
        sidecar: Option<&Path>,
        misnamed: Option<&Misnamed>,
    ) {
        let mut fault = None;
        if let Some(finding) = misnamed.map(Misnamed::finding) {
            fault = Some(finding.to_string());
            self.problems.push(finding);
        }
        for DescriptionFinding { finding, is_problem } in findings(&read, &path, sidecar) {
            if is_problem {
                fault.get_or_insert_with(|| finding.to_string());
                self.problems.push(finding);
            } else {
                self.warnings.push(finding);
            }
        }
        let (interpreter, mut metadata) = (read.kind.interpreter(), read.metadata.clone());
        metadata.declared.is_unclear |= misnamed.is_some();
        let description = metadata.description.as_ref().or(read.paragraph.as_ref()).cloned();
        let description =
            description.unwrap_or_else(|| default_description(&path, interpreter.as_deref()));
        let sidecar = sidecar.filter(|_| read.source == Source::Sidecar);
        let declared_in = sidecar.unwrap_or(&path).to_owned();
        self.tools.push(Found {
            name,
            path,
            interpreter,
            description,
            metadata,
            declared_in,
            fault,
            read,
        });
    }
}

/// The description from a tool's first bytes and its sidecar. The default is a binary without a
/// description.
#[derive(Debug)]
pub struct Described {
    /// The kind of the file.
    pub kind: FileKind,
    /// The first paragraph of comments.
    pub paragraph: Option<String>,
    /// The keys of the block or of the sidecar; the block takes precedence.
    pub metadata: Metadata,
    /// The source of the keys.
    pub source: Source,
    /// The hash of the sidecar, if the keys are its.
    pub sidecar_hash: Option<Arc<str>>,
    /// Remarks about the keys, and the file that each concerns.
    pub remarks: Vec<(Source, Remark)>,
}

impl Default for Described {
    fn default() -> Self {
        Self {
            kind: FileKind::Binary,
            paragraph: None,
            metadata: Metadata::default(),
            source: Source::Block,
            sidecar_hash: None,
            remarks: Vec::new(),
        }
    }
}

/// The source of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The block in the tool itself.
    Block,
    /// The sidecar `NAME.orla.yaml`.
    Sidecar,
}

/// Interprets the bytes of a tool. `sidecar` is the content of its sidecar.
pub fn describe(head: &[u8], sidecar: Option<io::Result<Vec<u8>>>, subject: Subject) -> Described {
    let kind = FileKind::of(head);
    let header = if kind == FileKind::Binary { header::Header::default() } else { header::read(head) };
    let mut described = Described { kind, paragraph: header.paragraph, ..Described::default() };
    let start = Position::START;
    let mut from = |source, (metadata, remarks): (Metadata, Vec<Remark>)| {
        described.metadata = metadata;
        described.source = source;
        described.remarks.extend(remarks.into_iter().map(|remark| (source, remark)));
    };
    match (header.block, sidecar) {
        (Some(Ok(block)), None) => from(Source::Block, metadata::read_block(&block, subject)),
        (Some(Ok(block)), Some(sidecar)) => {
            from(Source::Block, metadata::read_block(&block, subject));
            let unread = sidecar.map(|bytes| metadata::read_file(&bytes, subject).0.declared);
            let confines = unread.map_or(true, |declared| declared != Declared::default());
            let mut message = "not read: the tool describes itself in a block at its top".to_owned();
            if confines {
                message.push_str("; write its `permissions` and `limits` there and remove this file. ");
                message.push_str(NOT_RUN);
                described.metadata.declared.is_unclear = true;
            }
            let remark = Remark { at: start, message, is_problem: confines };
            described.remarks.push((Source::Sidecar, remark));
        }
        (Some(Err(fault)), _) => {
            let at = Position { line: fault.line, column: 1 };
            described.metadata = Metadata::unread();
            described
                .remarks
                .push((Source::Block, Remark { at, message: fault.message, is_problem: true }));
        }
        (None, Some(Ok(bytes))) => {
            from(Source::Sidecar, metadata::read_file(&bytes, subject));
            described.sidecar_hash = Some(hash_text(&bytes).into());
        }
        (None, Some(Err(err))) => {
            let remark = Remark { at: start, message: reason(&err), is_problem: true };
            described.metadata = Metadata::unread();
            described.remarks.push((Source::Sidecar, remark));
        }
        (None, None) => {}
    }
    described
}

fn default_description(path: &Path, interpreter: Option<&str>) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let file = file.replace(char::is_control, "?");
    match interpreter {
        Some(interpreter) => format!("Runs the {interpreter} script {file}."),
        None => format!("Runs the program {file}."),
    }
}

/// Examines an entry without opening it.
fn look(entry: &fs::DirEntry) -> Entry {
    let name = entry.file_name();
    let kind = if naming::never_a_tool(&name).is_some() {
        EntryKind::Plain
    } else {
        // If the kernel returns the type with the name, this costs no system call.
        match entry.file_type() {
            Ok(known) if known.is_file() || known.is_symlink() || known.is_dir() => {
                kind_of(&entry.path())
            }
            Ok(known) => EntryKind::Other(type_name(known).to_owned()),
            // The entry may be gone already. One entry does not affect the others.
            Err(err) => EntryKind::Other(reason(&err)),
        }
    };
    Entry { name, kind }
}

fn kind_of(path: &Path) -> EntryKind {
    let other = |what: &str| EntryKind::Other(what.to_owned());
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {
            let executable = metadata.permissions().mode() & 0o111 != 0;
            if executable { EntryKind::Executable } else { EntryKind::Plain }
        }
        Ok(metadata) if metadata.is_dir() => {
            let has = |manifest| path.join(manifest).symlink_metadata().is_ok();
            let is_package = has("tool.yaml") || has("orla-tool.json");
            if is_package { EntryKind::Package } else { other("directory without a manifest") }
        }
        Ok(metadata) => other(type_name(metadata.file_type())),
        Err(err) if err.kind() == io::ErrorKind::NotFound => other("dangling link"),
        Err(err) => EntryKind::Other(reason(&err)),
    }
}

fn type_name(kind: fs::FileType) -> &'static str {
    match kind {
        kind if kind.is_fifo() => "fifo",
        kind if kind.is_socket() => "socket",
        kind if kind.is_block_device() || kind.is_char_device() => "device",
        _ => "not a regular file",
    }
}

/// Reads the first bytes of a file: as many as its header needs, and never more than the buffer.
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
            // A short read of a regular file means its end.
            break;
        }
        if have == want {
            break;
        }
    }
    Ok(&buffer[..have])
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

#[cfg(test)]
mod tests;
