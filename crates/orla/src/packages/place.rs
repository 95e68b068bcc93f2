//! Paths as the lock has them: those below the project are relative to it.

use std::path::{Path, PathBuf};

/// Returns a permission as the lock has it: a path below the project is relative to it.
pub(crate) fn portable_word(word: &str, project: &Path) -> String {
    let kind =
        ["fs:read:", "fs:write:", "exec:", "unix:"].into_iter().find(|kind| word.starts_with(kind));
    let path = kind.map(|kind| (kind, Path::new(&word[kind.len()..])));
    let path = path.filter(|(_, path)| path.is_absolute());
    path.and_then(|(kind, path)| Some(format!("{kind}{}", below_project(path, project)?)))
        .unwrap_or_else(|| word.to_owned())
}

/// Returns a path below the project, from there: `./…`. `None` if it is elsewhere.
pub(crate) fn below_project(path: &Path, project: &Path) -> Option<String> {
    let whole = canonical(path);
    let below = whole.strip_prefix(canonical(project)).ok()?;
    Some(PathBuf::from(".").join(below).to_string_lossy().into_owned())
}

/// Returns the path without links, as far as it exists.
fn canonical(path: &Path) -> PathBuf {
    if let Ok(path) = path.canonicalize() {
        return path;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => canonical(parent).join(name),
        _ => path.to_owned(),
    }
}
