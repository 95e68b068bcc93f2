//! Reads the files of a configuration: regular ones, up to a bound, in UTF-8.

use std::io::Read;
use std::path::Path;

use orla_document::Position;
use orla_process::file::reason;

use super::Problem;

/// The largest configuration file that is read.
const MAX_FILE: u64 = 1024 * 1024;

/// Reads a configuration file, which must be a regular file of at most [`MAX_FILE`] bytes.
pub(super) fn read_file(path: &Path) -> Result<String, Problem> {
    let bytes = match read_bytes(path, MAX_FILE) {
        Ok(bytes) => bytes,
        Err(Unread::TooLarge) => {
            let problem = format!("the file is larger than {MAX_FILE} bytes");
            return Err(Problem::at(path, Position::START, problem));
        }
        Err(Unread::Because(reason)) => {
            return Err(Problem::new(format!("{} cannot be read: {reason}", path.display())));
        }
    };
    match orla_document::decode(&bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(err) => Err(Problem::at(path, err.at, err.problem)),
    }
}

/// Reads a file that the configuration names.
///
/// # Errors
///
/// Returns a sentence with the path of the file.
pub(crate) fn read_text(path: &Path, max: u64) -> Result<String, String> {
    let failed = |reason: String| format!("{} cannot be read: {reason}", path.display());
    let bytes = read_bytes(path, max).map_err(|unread| match unread {
        Unread::TooLarge => failed(format!("larger than {max} bytes")),
        Unread::Because(reason) => failed(reason),
    })?;
    orla_document::decode(&bytes).map(str::to_owned).map_err(|err| format!("{}:{err}", path.display()))
}

/// The reason why a file was not read.
enum Unread {
    TooLarge,
    Because(String),
}

fn read_bytes(path: &Path, max: u64) -> Result<Vec<u8>, Unread> {
    let because = |err: std::io::Error| Unread::Because(reason(&err));
    // Looked at before it is opened: opening a fifo would wait for its writer.
    if !std::fs::metadata(path).map_err(because)?.is_file() {
        return Err(Unread::Because("not a regular file".to_owned()));
    }
    let file = std::fs::File::open(path).map_err(because)?;
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).map_err(because)?;
    if bytes.len() as u64 > max { Err(Unread::TooLarge) } else { Ok(bytes) }
}
