//! `orla rtfs fmt`: lays programs out, in place or from standard input to standard output.

use std::path::{Path, PathBuf};

use orla_marketplace::rtfs::layout;

use super::read;
use crate::{Failure, render};

/// Formats files, or lists those that are not formatted; standard input if there are none. A file that cannot be
/// read or written does not affect the others.
pub(super) fn run(files: &[PathBuf], only_check: bool) -> Result<(), Failure> {
    let stdin = [PathBuf::from("-")];
    let files = if files.is_empty() { &stdin[..] } else { files };
    let mut is_failed = false;
    for file in files {
        match formatted(file, only_check) {
            Ok(is_fine) => is_failed |= !is_fine,
            Err(problem) => {
                render::err(&format!("{problem}\n"));
                is_failed = true;
            }
        }
    }
    if is_failed { Err(Failure::failed_silently()) } else { Ok(()) }
}

/// Returns whether the file is formatted now, or why that is unknown.
fn formatted(file: &Path, only_check: bool) -> Result<bool, String> {
    let is_stdin = file == Path::new("-");
    let text = read(file)?;
    let laid_out = layout::format(&text).map_err(|problems| problems.to_string())?;
    let is_same = laid_out == text.text();
    match (only_check, is_stdin) {
        (false, true) => render::out(&laid_out),
        (false, false) if !is_same => std::fs::write(file, laid_out).map_err(|err| {
            format!("{} cannot be written: {}", file.display(), crate::config::reason(&err))
        })?,
        (true, _) if !is_same => {
            render::line(&file.display().to_string());
            return Ok(false);
        }
        _ => {}
    }
    Ok(true)
}
