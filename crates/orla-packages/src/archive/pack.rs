//! Packs the archive of a folder: stored members sorted by name, without times, so that the same content
//! gives the same bytes.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use flate2::Crc;
use rustix::fs::{Mode, OFlags, openat};

use super::{ArchiveError, File, MAX_BYTES, MAX_FILES, names, refused};

/// Directories that are not packed: version control, and orla's own data of a project.
const LEFT_OUT: [&str; 3] = [".git", ".hg", ".orla"];

/// Packs a folder.
///
/// # Errors
/// It has links, special files, names that are refused or too many bytes, or cannot be read.
pub fn pack(folder: &Path) -> Result<Vec<u8>, ArchiveError> {
    pack_without(folder, |_| false)
}

/// Like [`pack`], without the files and directories that are left out by their names in the folder.
///
/// # Errors
/// Those of [`pack`], for the others.
pub fn pack_without(folder: &Path, is_left_out: impl Fn(&str) -> bool) -> Result<Vec<u8>, ArchiveError> {
    let mut names = Vec::new();
    walk(folder, "", &is_left_out, &mut names)?;
    names.sort();
    let (mut files, mut total) = (Vec::with_capacity(names.len()), 0_u64);
    let folder = fs::File::open(folder)?;
    for name in names {
        let mut file = open(&folder, &name)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(refused(format!("{name:?} is no file any more")));
        }
        let mode = metadata.permissions().mode();
        let mut content = Vec::new();
        // It may grow meanwhile.
        file.by_ref().take(MAX_BYTES - total + 1).read_to_end(&mut content)?;
        total += content.len() as u64;
        if total > MAX_BYTES {
            return Err(too_large());
        }
        files.push(File { is_executable: mode & 0o111 != 0, content, name });
    }
    assemble(&files)
}

/// Opens a file in a folder. A link that was put in its place, or in that of a directory above it, after the folder was listed, is not
/// followed.
fn open(folder: &fs::File, name: &str) -> io::Result<fs::File> {
    // A pipe in its place must not block.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut parts = name.split('/');
    let file = parts.next_back().unwrap_or_default();
    let mut directory = folder.try_clone()?;
    for part in parts {
        directory = openat(&directory, part, flags | OFlags::DIRECTORY, Mode::empty())?.into();
    }
    Ok(openat(&directory, file, flags, Mode::empty())?.into())
}

/// Returns the archive of files, in their order.
///
/// # Errors
/// Names are refused, or there are too many bytes.
pub fn assemble(files: &[File]) -> Result<Vec<u8>, ArchiveError> {
    names::check(files.iter().map(|file| (file.name.as_str(), false))).map_err(refused)?;
    let (mut packed, mut directory) = (Vec::new(), Vec::new());
    for file in files {
        let mode = if file.is_executable { 0o100_755 } else { 0o100_644 };
        add(&mut packed, &mut directory, &file.name, &file.content, mode)?;
        if packed.len() as u64 + directory.len() as u64 > MAX_BYTES {
            return Err(too_large());
        }
    }
    let number = |number: usize| u32::try_from(number).map_err(|_| refused("it is too large"));
    let count = u16::try_from(files.len()).map_err(|_| refused("it has too many files"))?;
    let (size, offset) = (number(directory.len())?, number(packed.len())?);
    packed.extend_from_slice(&directory);
    packed.extend_from_slice(&0x0605_4b50_u32.to_le_bytes());
    packed.extend_from_slice(&[0; 4]);
    packed.extend_from_slice(&count.to_le_bytes());
    packed.extend_from_slice(&count.to_le_bytes());
    packed.extend_from_slice(&size.to_le_bytes());
    packed.extend_from_slice(&offset.to_le_bytes());
    packed.extend_from_slice(&[0; 2]);
    Ok(packed)
}

fn too_large() -> ArchiveError {
    refused(format!("it has more than {} MiB", MAX_BYTES >> 20))
}

fn add(
    packed: &mut Vec<u8>,
    directory: &mut Vec<u8>,
    name: &str,
    content: &[u8],
    mode: u32,
) -> Result<(), ArchiveError> {
    let number = |number: usize| u32::try_from(number).map_err(|_| refused("it is too large"));
    let mut crc = Crc::new();
    crc.update(content);
    let length = u16::try_from(name.len()).map_err(|_| refused("a name is too long"))?;
    let offset = number(packed.len())?;
    // Version 2.0, UTF-8 names, stored, with the earliest time that zip supports.
    let mut common = Vec::new();
    for field in [20_u16, 0x0800, 0, 0, 0x0021] {
        common.extend_from_slice(&field.to_le_bytes());
    }
    for field in [crc.sum(), number(content.len())?, number(content.len())?] {
        common.extend_from_slice(&field.to_le_bytes());
    }
    common.extend_from_slice(&length.to_le_bytes());
    common.extend_from_slice(&[0; 2]);
    packed.extend_from_slice(&0x0403_4b50_u32.to_le_bytes());
    packed.extend_from_slice(&common);
    packed.extend_from_slice(name.as_bytes());
    packed.extend_from_slice(content);
    directory.extend_from_slice(&0x0201_4b50_u32.to_le_bytes());
    // Made on Unix.
    directory.extend_from_slice(&[20, 3]);
    directory.extend_from_slice(&common);
    directory.extend_from_slice(&[0; 6]);
    directory.extend_from_slice(&(mode << 16).to_le_bytes());
    directory.extend_from_slice(&offset.to_le_bytes());
    directory.extend_from_slice(name.as_bytes());
    Ok(())
}

fn walk(
    folder: &Path,
    prefix: &str,
    is_left_out: &impl Fn(&str) -> bool,
    files: &mut Vec<String>,
) -> Result<(), ArchiveError> {
    for entry in fs::read_dir(folder.join(prefix))? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().ok_or_else(|| refused(format!("the name {name:?} is not UTF-8")))?;
        if LEFT_OUT.contains(&name) {
            continue;
        }
        let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        if is_left_out(&path) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            if path.matches('/').count() >= names::MAX_DEPTH {
                return Err(refused(format!("{path:?} is nested too deeply")));
            }
            walk(folder, &path, is_left_out, files)?;
        } else if kind.is_file() {
            if files.len() >= MAX_FILES {
                return Err(refused(format!("it has more than {MAX_FILES} files")));
            }
            files.push(path);
        } else {
            return Err(refused(format!(
                "{path:?} is a link or a special file, which a package must not have"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_that_is_put_in_the_place_of_a_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("real/sub")).unwrap();
        fs::write(at("real/sub/file"), "content").unwrap();
        symlink("sub/file", at("real/link")).unwrap();
        symlink("sub", at("real/away")).unwrap();
        symlink("real", at("folder")).unwrap();
        // The folder itself is the user's choice.
        let root = fs::File::open(at("folder")).unwrap();
        assert!(open(&root, "sub/file").is_ok());
        for name in ["link", "away/file", "missing"] {
            assert!(open(&root, name).is_err(), "{name}");
        }
    }
}
