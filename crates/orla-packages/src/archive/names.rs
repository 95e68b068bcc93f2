//! The allowed names in an archive. No I/O.
//!
//! A name is relative, stays within the directory that it is unpacked to, and is unique: names that
//! differ only in case are one file on some systems. No name is both a file and a directory.

use std::collections::{HashMap, HashSet};

use super::MAX_FILES;

/// The maximum length of a name, and of one part of a name, in bytes.
const MAX_NAME: usize = 1024;
const MAX_PART: usize = 255;
/// The maximum number of directories above a file.
pub const MAX_DEPTH: usize = 32;

/// Checks the names of an archive, each with whether it is a directory.
///
/// # Errors
/// What is wrong with the first bad one.
pub fn check<'a>(names: impl Iterator<Item = (&'a str, bool)>) -> Result<(), String> {
    // Every name and every ancestor directory, in lower case: the original spelling, and whether it is a
    // directory.
    let mut known: HashMap<String, (String, bool)> = HashMap::new();
    let (mut files, mut directories) = (0, 0);
    let mut spellings: HashSet<String> = HashSet::new();
    for (name, is_directory) in names {
        files += usize::from(!is_directory);
        if files > MAX_FILES {
            return Err(format!("it has more than {MAX_FILES} files"));
        }
        let name = name.strip_suffix('/').filter(|_| is_directory).unwrap_or(name);
        well_formed(name).map_err(|why| format!("the name {}: {why}", shown(name)))?;
        if !spellings.insert(name.to_owned()) {
            return Err(format!("{} is in it twice", shown(name)));
        }
        let ends = name.match_indices('/').map(|(end, _)| end).chain([name.len()]);
        for end in ends {
            let (part, is_directory) = (&name[..end], is_directory || end < name.len());
            match known.get(&part.to_lowercase()) {
                // Implied directories count too, because they are created as well.
                None if is_directory && directories >= MAX_FILES => {
                    return Err(format!("it has more than {MAX_FILES} directories"));
                }
                None => {
                    directories += usize::from(is_directory);
                    known.insert(part.to_lowercase(), (part.to_owned(), is_directory));
                }
                Some((other, _)) if other != part => {
                    return Err(format!("{} and {} differ only in case", shown(other), shown(part)));
                }
                Some((_, was_directory)) if *was_directory != is_directory => {
                    return Err(format!("{} is a file and a directory", shown(part)));
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}

fn well_formed(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("it is empty");
    }
    if name.len() > MAX_NAME {
        return Err("it is too long");
    }
    if name.bytes().filter(|byte| *byte == b'/').count() > MAX_DEPTH {
        return Err("it is nested too deeply");
    }
    if name.starts_with('/') {
        return Err("it is absolute, and only what is below the bundle may be in it");
    }
    if name.contains('\\') {
        return Err("it has a backslash, which separates directories on some systems");
    }
    if name.chars().any(char::is_control) {
        return Err("it has control characters");
    }
    if name.as_bytes().get(1) == Some(&b':') {
        return Err("it names a drive");
    }
    for part in name.split('/') {
        match part {
            "" => return Err("it has an empty part"),
            "." | ".." => return Err("it leads out of the bundle, or to itself (`..` or `.`)"),
            part if part.len() > MAX_PART => return Err("a part of it is too long"),
            part if part.ends_with([' ', '.']) => return Err("a part of it ends with a space or a dot"),
            _ => {}
        }
    }
    Ok(())
}

fn shown(name: &str) -> String {
    let cut: String = name.chars().take(80).collect();
    format!("{cut:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_within_are_taken_each_once() {
        let check = |names: &[&str]| check(names.iter().map(|name| (*name, name.ends_with('/'))));
        for good in [&["a", "b/c", "b/d", "b/"][..], &["manifest.json", "server/main.py"], &["ü", "a b"]]
        {
            assert_eq!(check(good), Ok(()), "{good:?}");
        }
        let long = "x".repeat(300);
        for bad in [
            &["../a"][..],
            &["a/../../b"],
            &["/etc/passwd"],
            &["a/./b"],
            &["a//b"],
            &[""],
            &["..\\a"],
            &["C:/a"],
            &["a\0b"],
            &["a", "a"],
            &["a/", "a/"],
            &["a", "A"],
            &["a/x", "A/y"],
            &["a", "a/b"],
            &["a/b", "a"],
            &["a "],
            &[&long],
        ] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
        let deep = "d/".repeat(MAX_DEPTH + 1) + "x";
        assert!(check(&[&deep]).is_err() && check(&[&deep[2..]]).is_ok());
        let implied: Vec<String> = (0..MAX_FILES / 2 + 1).map(|n| format!("{n}/{n}/x")).collect();
        let implied: Vec<&str> = implied.iter().map(String::as_str).collect();
        assert!(check(&implied).is_err() && check(&implied[1..]).is_ok());
        let full: Vec<String> = (0..MAX_FILES).map(|n| format!("d/{n}")).collect();
        let full: Vec<&str> = full.iter().map(String::as_str).chain(["e/"]).collect();
        assert_eq!(check(&full), Ok(()));
        let many: Vec<String> = (0..=MAX_FILES).map(|n| n.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(check(&many).is_err());
    }
}
