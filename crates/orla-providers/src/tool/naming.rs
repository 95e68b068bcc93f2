//! Derives tool names from file names (RFC 1 §4.2).
//!
//! A tool is named by its file name up to the last extension. Every MCP client must accept the name, so
//! it consists of `a-z A-Z 0-9 _ -` and has 1 to 64 characters. Pure functions: the same directory gives
//! the same names on every start.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::Path;

use orla_marketplace::id::{MAX_NAME, is_name_char, short_hash};

/// The name of one file in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The tool's name, unique within the directory.
    pub name: String,
    /// The file that has the preferred name instead, as an index into the same list.
    pub instead_of: Option<usize>,
}

/// Assigns names to the files of one directory, which must be in the lexical order of their names.
///
/// The first of several files with the same name keeps it. The others are `NAME_EXT`. If that is taken
/// or there is no extension, they are `NAME_2`, `NAME_3`. A name that a file has by itself is never
/// given to another.
pub fn assign(files: &[&OsStr]) -> Vec<Assigned> {
    let bases: Vec<String> = files.iter().map(|file| base_name(file)).collect();
    let mut owners = HashMap::with_capacity(files.len());
    for (index, base) in bases.iter().enumerate() {
        owners.entry(base.clone()).or_insert(index);
    }
    let mut taken: HashSet<String> = owners.keys().cloned().collect();
    let mut numbers = HashMap::new();
    let mut assigned = Vec::with_capacity(files.len());
    for (index, base) in bases.into_iter().enumerate() {
        let owner = owners.get(&base).copied().unwrap_or(index);
        if owner == index {
            assigned.push(Assigned { name: base, instead_of: None });
            continue;
        }
        let name = alternative(&base, files[index], &taken, numbers.entry(owner).or_insert(2));
        taken.insert(name.clone());
        assigned.push(Assigned { name, instead_of: Some(owner) });
    }
    assigned
}

/// Returns why a file of this name is never a tool, if that is so.
pub fn never_a_tool(file: &OsStr) -> Option<&'static str> {
    let name = file.as_encoded_bytes();
    if name.starts_with(b".") {
        return Some("hidden file");
    }
    if name.ends_with(SIDECAR.as_bytes()) {
        return Some("describes the tool beside it");
    }
    if CASES.iter().any(|end| name.ends_with(end.as_bytes())) {
        return Some("tests the tool beside it");
    }
    [&b"~"[..], b".bak", b".swp", b".tmp"]
        .iter()
        .any(|suffix| name.ends_with(suffix))
        .then_some("backup or temporary file")
}

/// The suffixes of files with test cases for a tool (`orla test`).
pub const CASES: [&str; 3] = [".test.json", ".test.yaml", ".test.yml"];

/// Returns whether a file of this name is a program in RTFS, which no process runs.
pub fn is_program(file: &OsStr) -> bool {
    Path::new(file).extension().is_some_and(|extension| extension == PROGRAM)
}

/// The extension of programs in RTFS.
pub const PROGRAM: &str = "rtfs";

/// The suffix of a sidecar, which describes a tool.
pub const SIDECAR: &str = ".orla.yaml";

fn base_name(file: &OsStr) -> String {
    safe(Path::new(file).file_stem().unwrap_or(file))
}

/// Returns a free name for a file. `number` is the lowest that may be free for this base: a taken number
/// stays taken.
fn alternative(base: &str, file: &OsStr, taken: &HashSet<String>, number: &mut u64) -> String {
    let extension = Path::new(file).extension().map(safe).filter(|extension| !extension.is_empty());
    let by_extension = extension.map(|extension| with_suffix(base, &format!("_{extension}")));
    if let Some(name) = by_extension.filter(|name| !taken.contains(name)) {
        return name;
    }
    loop {
        let name = with_suffix(base, &format!("_{number}"));
        *number += 1;
        if !taken.contains(&name) {
            return name;
        }
    }
}

/// Joins `base` and `suffix` in at most [`MAX_NAME`] characters; both are ASCII.
fn with_suffix(base: &str, suffix: &str) -> String {
    let suffix = &suffix[..suffix.len().min(MAX_NAME / 2)];
    format!("{}{suffix}", &base[..base.len().min(MAX_NAME - suffix.len())])
}

fn safe(name: &OsStr) -> String {
    let text = name.to_string_lossy();
    let safe: String = text.chars().map(|c| if is_name_char(c) { c } else { '_' }).collect();
    if safe.len() <= MAX_NAME {
        return safe;
    }
    format!("{}_{:08x}", &safe[..MAX_NAME - 9], short_hash(name.as_encoded_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    fn names(files: &[&str]) -> Vec<String> {
        let files: Vec<&OsStr> = files.iter().map(OsStr::new).collect();
        assign(&files).into_iter().map(|assigned| assigned.name).collect()
    }

    #[test]
    fn a_tool_is_named_by_its_file_up_to_the_last_extension() {
        let cases = [
            ("ls.sh", "ls"),
            ("convert", "convert"),
            ("a.tar.gz", "a_tar"),
            ("with space.sh", "with_space"),
            ("漢字.py", "__"),
            ("new\nline", "new_line"),
            ("-rf.sh", "-rf"),
            ("end.", "end"),
            ("UPPER-case_1.x", "UPPER-case_1"),
        ];
        for (file, name) in cases {
            assert_eq!(names(&[file]), [name], "{file}");
        }
    }

    #[test]
    fn a_name_that_is_not_utf8_is_safe_all_the_same() {
        let file = OsString::from_vec(b"a\xff\xfeb.sh".to_vec());
        assert_eq!(assign(&[&file])[0].name, "a__b");
    }

    #[test]
    fn a_long_name_is_cut_and_ends_in_a_hash_of_the_whole() {
        let (one, two) = ("x".repeat(200), "x".repeat(201));
        let got = names(&[&one, &two]);
        assert!(got.iter().all(|name| name.len() == 64 && name.starts_with("xxx")), "{got:?}");
        assert_ne!(got[0], got[1]);
        assert_eq!(got, names(&[&one, &two]));
    }

    #[test]
    fn files_with_the_same_name_get_distinct_names() {
        let cases: &[(&[&str], &[&str])] = &[
            (&["ls.py", "ls.sh"], &["ls", "ls_sh"]),
            (&["ls", "ls.py", "ls.sh"], &["ls", "ls_py", "ls_sh"]),
            (&["ls.py", "ls.sh", "ls_sh"], &["ls", "ls_2", "ls_sh"]),
            (&["a b", "a-b", "a_b"], &["a_b", "a-b", "a_b_2"]),
            (&["a b", "a+b", "a_b"], &["a_b", "a_b_2", "a_b_3"]),
            (&["x.s h", "x.s+h", "x.s_h"], &["x", "x_s_h", "x_2"]),
        ];
        for (files, expected) in cases {
            assert_eq!(names(files), *expected, "{files:?}");
        }
    }

    #[test]
    fn the_file_that_keeps_the_name_is_known() {
        let got = assign(&[OsStr::new("ls.py"), OsStr::new("ls.sh")]);
        assert_eq!(got[1], Assigned { name: "ls_sh".into(), instead_of: Some(0) });
    }

    #[test]
    fn hidden_files_backups_and_sidecars_are_no_tools() {
        for file in [".hidden", "a.sh~", "a.bak", "a.swp", "a.tmp", "bin.orla.yaml"] {
            assert!(never_a_tool(OsStr::new(file)).is_some(), "{file}");
        }
        for file in ["a.sh", "bak", "tmp", "a.yaml"] {
            assert_eq!(never_a_tool(OsStr::new(file)), None, "{file}");
        }
    }

    #[test]
    fn thousands_of_files_with_one_name_are_numbered_in_time() {
        let files: Vec<String> =
            (0..20_000_u32).map(|n| char::from_u32(0x4e00 + n).unwrap().to_string()).collect();
        let files: Vec<&OsStr> = files.iter().map(OsStr::new).collect();
        // A search from the start each time takes minutes.
        assert_eq!(assign(&files)[19_999].name, "__20000");
    }

    proptest! {
        #[test]
        fn names_are_valid_and_unique(files in proptest::collection::btree_set("[ -~é]{1,100}", 0..30)) {
            let files: Vec<&OsStr> = files.iter().map(OsStr::new).collect();
            let got = assign(&files);
            let unique: HashSet<&str> = got.iter().map(|assigned| assigned.name.as_str()).collect();
            prop_assert_eq!(unique.len(), files.len());
            for name in unique {
                prop_assert!((1..=MAX_NAME).contains(&name.len()), "{}", name);
                prop_assert!(name.chars().all(is_name_char), "{}", name);
            }
        }
    }
}
