//! The files of an archive, and the three formats that they are packed in. Pure.
//!
//! The bytes of an archive depend on nothing but the paths, modes and contents of its files and one time: the entries are
//! sorted, owned by root, and carry no time of their own. That is why no `tar` and no `zip` of the system packs them.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::rc::Rc;

use flate2::{Compression, Crc, GzBuilder, write::DeflateEncoder};

/// Mode of a file that is run.
pub(super) const PROGRAM: u32 = 0o755;
/// Mode of any other file.
pub(super) const PLAIN: u32 = 0o644;

/// Files and folders by their paths, relative and without `./`.
#[derive(Clone, Default)]
pub(super) struct Tree {
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone)]
enum Entry {
    Folder,
    File { mode: u32, content: Rc<[u8]> },
}

impl Tree {
    /// Adds a file and the folders above it.
    pub(super) fn file(&mut self, path: impl Into<String>, mode: u32, content: impl Into<Rc<[u8]>>) {
        let path = path.into();
        if let Some((above, _)) = path.rsplit_once('/') {
            self.folder(above);
        }
        self.entries.insert(path, Entry::File { mode, content: content.into() });
    }

    /// Adds a text that nobody runs.
    pub(super) fn text(&mut self, path: impl Into<String>, text: &str) {
        self.file(path, PLAIN, text.as_bytes());
    }

    /// Adds a folder and those above it.
    pub(super) fn folder(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            self.entries.entry(path[..at].to_owned()).or_insert(Entry::Folder);
        }
        self.entries.entry(path.to_owned()).or_insert(Entry::Folder);
    }

    /// Adds all of another tree below a folder.
    pub(super) fn below(&mut self, folder: &str, other: &Self) {
        self.folder(folder);
        for (path, entry) in &other.entries {
            self.entries.insert(format!("{folder}/{path}"), entry.clone());
        }
    }

    /// Returns the files with their contents, in order.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &Rc<[u8]>)> {
        self.entries.iter().filter_map(|(path, entry)| match entry {
            Entry::File { content, .. } => Some((path.as_str(), content)),
            Entry::Folder => None,
        })
    }

    /// Returns a tar archive, compressed with gzip. `root` stands before each path; `time` is in seconds
    /// since 1970.
    ///
    /// # Errors
    /// A path is too long for a tar archive.
    pub(super) fn tar_gz(&self, root: &str, time: u64) -> Result<Vec<u8>, String> {
        let mut out = GzBuilder::new().operating_system(255).write(Vec::new(), Compression::default());
        let problem = |err: std::io::Error| format!("tar: {err}");
        for (path, entry) in &self.entries {
            let (header, content) = match entry {
                Entry::Folder => (header(&format!("{root}{path}/"), 0o755, 0, time, b'5')?, &[][..]),
                Entry::File { mode, content } => (
                    header(&format!("{root}{path}"), *mode, content.len() as u64, time, b'0')?,
                    &content[..],
                ),
            };
            out.write_all(&header).map_err(problem)?;
            out.write_all(content).map_err(problem)?;
            out.write_all(&[0; 512][..content.len().next_multiple_of(512) - content.len()])
                .map_err(problem)?;
        }
        out.write_all(&[0; 1024]).map_err(problem)?;
        out.finish().map_err(problem)
    }

    /// Returns a zip archive of the files, without the folders. Its times are the earliest that the
    /// format can write.
    ///
    /// # Errors
    /// A file is larger than 4 GiB.
    pub(super) fn zip(&self) -> Result<Vec<u8>, String> {
        let (mut out, mut directory, mut count) = (Vec::new(), Vec::new(), 0u16);
        for (path, entry) in &self.entries {
            let Entry::File { mode, content } = entry else { continue };
            let mut packed = DeflateEncoder::new(Vec::new(), Compression::default());
            packed.write_all(content).map_err(|err| format!("zip: {err}"))?;
            let packed = packed.finish().map_err(|err| format!("zip: {err}"))?;
            let mut crc = Crc::new();
            crc.update(content);
            let size = |length: usize| {
                u32::try_from(length).map_err(|_| format!("zip: {path} is larger than 4 GiB"))
            };
            let name =
                u16::try_from(path.len()).map_err(|_| format!("zip: {path}: the path is too long"))?;

            // What an entry's own header and the directory have in common: from the version to the length of the name.
            let mut common = Vec::new();
            for short in [20u16, 0x0800, 8, 0, 0x0021] {
                common.extend(short.to_le_bytes());
            }
            for long in [crc.sum(), size(packed.len())?, size(content.len())?] {
                common.extend(long.to_le_bytes());
            }
            common.extend(name.to_le_bytes());
            common.extend(0u16.to_le_bytes());

            directory.extend(b"PK\x01\x02");
            directory.extend([20, 3]); // made by version 2.0, on Unix
            directory.extend(&common);
            directory.extend([0; 6]); // no comment, first disk, a binary file
            directory.extend(((0o100_000 | mode) << 16).to_le_bytes());
            directory.extend(size(out.len())?.to_le_bytes());
            directory.extend(path.as_bytes());

            out.extend(b"PK\x03\x04");
            out.extend(common);
            out.extend(path.as_bytes());
            out.extend(packed);
            count += 1;
        }
        let start = u32::try_from(out.len()).map_err(|_| "zip: larger than 4 GiB")?;
        let length = u32::try_from(directory.len()).map_err(|_| "zip: larger than 4 GiB")?;
        out.extend(directory);
        out.extend(b"PK\x05\x06\0\0\0\0");
        out.extend(count.to_le_bytes());
        out.extend(count.to_le_bytes());
        out.extend(length.to_le_bytes());
        out.extend(start.to_le_bytes());
        out.extend([0; 2]);
        Ok(out)
    }
}

/// Returns the header of an entry of a tar archive, in the format of POSIX (ustar).
fn header(path: &str, mode: u32, size: u64, time: u64, kind: u8) -> Result<[u8; 512], String> {
    let mut header = [0; 512];
    let mut put = |at: usize, field: &[u8]| header[at..at + field.len()].copy_from_slice(field);
    if path.len() > 100 {
        return Err(format!("tar: {path}: the path has more than 100 bytes"));
    }
    put(0, path.as_bytes());
    put(100, format!("{mode:07o}").as_bytes());
    put(108, b"0000000");
    put(116, b"0000000");
    put(124, format!("{size:011o}").as_bytes());
    put(136, format!("{time:011o}").as_bytes());
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    put(265, b"root");
    put(297, b"root");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}

/// Returns an `ar` archive, which a Debian package is.
pub(super) fn ar(members: &[(&str, &[u8])], time: u64) -> Vec<u8> {
    let mut out = b"!<arch>\n".to_vec();
    for (name, content) in members {
        out.extend(
            format!("{name:<16}{time:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, "100644", content.len())
                .bytes(),
        );
        out.extend(*content);
        out.extend(&b"\n"[..content.len() % 2]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Tree {
        let mut tree = Tree::default();
        tree.file("bin/run", PROGRAM, &b"#!/bin/sh\necho hello\n"[..]);
        tree.text("read.me", "text\n");
        tree.folder("empty/below");
        tree
    }

    /// Unpacks with a program of the system, and lists what is there with its mode.
    fn unpacked(name: &str, bytes: &[u8], program: &[&str]) -> String {
        let folder = crate::target(&format!("tests/{name}")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("archive"), bytes).unwrap();
        let status =
            std::process::Command::new(program[0]).args(&program[1..]).current_dir(&folder).status();
        assert!(status.unwrap().success(), "{program:?}");
        let list = "rm archive; find . -type f -printf '%m %p\\n' -o -type d -empty -printf '%m %p\\n' | sort -k2";
        let output =
            std::process::Command::new("sh").args(["-c", list]).current_dir(&folder).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn tar_unpacks_what_was_packed() {
        let packed = sample().tar_gz("top/", 1_000_000_000).unwrap();
        let list = unpacked(
            "tar",
            &packed,
            &["tar", "--extract", "--gzip", "--same-permissions", "--file", "archive"],
        );
        assert_eq!(list, "755 ./top/bin/run\n755 ./top/empty/below\n644 ./top/read.me\n");
    }

    #[test]
    fn python_unpacks_the_files_of_a_zip_archive() {
        let list = unpacked(
            "zip",
            &sample().zip().unwrap(),
            &["python3", "-m", "zipfile", "-e", "archive", "."],
        );
        let paths: Vec<&str> = list.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        assert_eq!(paths, ["./bin/run", "./read.me"]);
    }

    #[test]
    fn the_order_in_which_files_are_added_does_not_matter() {
        let mut other = Tree::default();
        other.folder("empty/below");
        other.text("read.me", "text\n");
        other.file("bin/run", PROGRAM, &b"#!/bin/sh\necho hello\n"[..]);
        assert_eq!(sample().tar_gz("", 5).unwrap(), other.tar_gz("", 5).unwrap());
        assert_eq!(sample().zip().unwrap(), other.zip().unwrap());
    }

    #[test]
    fn a_path_that_does_not_fit_is_an_error() {
        let mut tree = Tree::default();
        tree.text("x".repeat(101), "");
        assert!(tree.tar_gz("", 0).unwrap_err().contains("more than 100 bytes"));
    }
}
