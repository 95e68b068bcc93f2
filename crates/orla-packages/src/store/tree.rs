//! The digest of a directory's content.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::archive::MAX_FILES;
use crate::archive::names::MAX_DEPTH;

/// Returns the digest of the files below a directory: their names, whether they are executable, and
/// their content. Empty directories are ignored.
///
/// # Errors
/// It has what no archive has (links, special files, too many files), or cannot be read.
pub(super) fn digest(directory: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    if !fs::symlink_metadata(directory)?.is_dir() {
        return Err(io::Error::other("it is not a directory"));
    }
    walk(directory, "", 0, &mut files)?;
    files.sort();
    let mut whole = Sha256::new();
    for (name, is_program) in files {
        let mut file = File::open(directory.join(&name))?;
        let (mut content, mut buffer) = (Sha256::new(), vec![0; 64 * 1024]);
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            content.update(&buffer[..count]);
        }
        // No name contains the byte 0.
        whole.update(name.as_bytes());
        whole.update([0, u8::from(is_program)]);
        whole.update(content.finalize());
    }
    Ok(hex::encode(whole.finalize()))
}

fn walk(top: &Path, prefix: &str, depth: usize, files: &mut Vec<(String, bool)>) -> io::Result<()> {
    for entry in fs::read_dir(top.join(prefix))? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().ok_or_else(|| io::Error::other("a name is not UTF-8"))?;
        let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() && depth < MAX_DEPTH {
            walk(top, &path, depth + 1, files)?;
        } else if kind.is_file() && files.len() < MAX_FILES {
            let is_program = entry.metadata()?.permissions().mode() & 0o100 != 0;
            files.push((path, is_program));
        } else {
            return Err(io::Error::other("it has what no archive has"));
        }
    }
    Ok(())
}
