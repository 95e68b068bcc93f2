//! Decides which entries of a directory are tools, and under which names: a pure function of the
//! listing.
//!
//! The order of the listing does not matter, so the same directory gives the same tools on every
//! start, on any file system.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::naming::{self, SIDECAR};

/// One entry of a directory, examined without opening it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: OsString,
    /// The kind of the entry, or of its target if it is a link.
    pub kind: EntryKind,
}

/// The kind of a directory's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file with an executable bit (RFC 1 §4.4).
    Executable,
    /// A regular file without an executable bit.
    Plain,
    /// A directory with a manifest.
    Package,
    /// Anything else, in words.
    Other(String),
}

/// The plan for a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The tools, in the order of their names.
    pub tools: Vec<Planned>,
    /// The packages, in the order of their names.
    pub packages: Vec<OsString>,
    /// Entries that are not tools, with the reason, in the order of their names.
    pub skipped: Vec<(OsString, String)>,
}

/// A file that is a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The tool's name.
    pub name: String,
    /// The file's name.
    pub file: OsString,
    /// The file that has the preferred name instead, and that name.
    pub instead_of: Option<(OsString, String)>,
    /// The sidecar, which describes the tool.
    pub sidecar: Option<OsString>,
    /// A file whose name is almost that of a sidecar of the tool, and the name that would be read.
    pub misnamed: Option<(OsString, OsString)>,
}

/// The reason why a file without an executable bit is not a tool.
pub(super) const NOT_EXECUTABLE: &str = "not executable (chmod +x makes it a tool)";

/// Decides what each entry of a directory is.
pub fn plan(mut entries: Vec<Entry>) -> Plan {
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let sidecars: HashSet<&OsStr> =
        entries.iter().map(|entry| &*entry.name).filter(|name| is_sidecar(name)).collect();
    let mut plan = Plan::default();
    let mut files: Vec<&OsStr> = Vec::new();
    for Entry { name, kind } in &entries {
        let why = match (naming::never_a_tool(name), kind) {
            (Some(why), _) => why,
            (None, EntryKind::Executable) => {
                files.push(name);
                continue;
            }
            // The name determines the interpreter, so no executable bit is needed.
            (None, EntryKind::Plain) if naming::is_program(name) => {
                files.push(name);
                continue;
            }
            (None, EntryKind::Package) => {
                plan.packages.push(name.clone());
                continue;
            }
            (None, EntryKind::Plain) => NOT_EXECUTABLE,
            (None, EntryKind::Other(what)) => what,
        };
        plan.skipped.push((name.clone(), why.to_owned()));
    }
    let assigned = naming::assign(&files);
    let names = entries.iter().map(|entry| &*entry.name);
    let misnamed = misnamed(names, &files);
    let named: Vec<String> = assigned.iter().map(|assigned| assigned.name.clone()).collect();
    plan.tools = files
        .iter()
        .zip(assigned)
        .map(|(file, assigned)| Planned {
            name: assigned.name,
            file: (*file).to_owned(),
            instead_of: assigned.instead_of.map(|first| (files[first].to_owned(), named[first].clone())),
            sidecar: sidecar_of(file, &sidecars),
            misnamed: misnamed.get(file).cloned(),
        })
        .collect();
    plan.tools.sort_by(|a, b| a.name.cmp(&b.name));
    plan
}

/// The suffixes that people write instead of [`SIDECAR`].
const OTHER_SIDECARS: [&str; 3] = [SIDECAR, ".orla.yml", ".orla.json"];

/// Returns files whose names are almost those of sidecars, and the names that would be read, by the
/// tools that they are beside.
fn misnamed<'e>(
    names: impl Iterator<Item = &'e OsStr>,
    files: &[&'e OsStr],
) -> HashMap<&'e OsStr, (OsString, OsString)> {
    let described = |name: &'e OsStr| {
        let (text, lower) = (name.to_str()?, name.to_str()?.to_ascii_lowercase());
        let end = OTHER_SIDECARS.into_iter().find(|end| lower.ends_with(end))?;
        Some((name, &text[..text.len() - end.len()]))
    };
    let meant: Vec<(&OsStr, &str)> = names.filter_map(described).collect();
    if meant.is_empty() {
        return HashMap::new();
    }
    let mut owners: HashMap<String, Vec<(&OsStr, &str)>> = HashMap::new();
    for file in files {
        for own in [Some(*file), Path::new(file).file_stem()].into_iter().flatten() {
            let Some(own) = own.to_str() else { continue };
            owners.entry(own.to_ascii_lowercase()).or_default().push((file, own));
        }
    }
    let mut misnamed = HashMap::new();
    for (name, described) in meant {
        let Some(owners) = owners.get(&described.to_ascii_lowercase()) else { continue };
        if is_sidecar(name) && owners.iter().any(|(_, own)| *own == described) {
            continue;
        }
        for (file, own) in owners {
            misnamed.insert(*file, (name.to_owned(), format!("{own}{SIDECAR}").into()));
        }
    }
    misnamed
}

fn is_sidecar(name: &OsStr) -> bool {
    name.as_encoded_bytes().ends_with(SIDECAR.as_bytes())
}

/// Returns the sidecar of `file`: by its whole name, and otherwise by its name up to the last extension.
fn sidecar_of(file: &OsStr, sidecars: &HashSet<&OsStr>) -> Option<OsString> {
    if sidecars.is_empty() {
        return None;
    }
    let stem = Path::new(file).file_stem().unwrap_or(file);
    [file, stem]
        .into_iter()
        .map(|name| {
            let mut name = name.to_owned();
            name.push(SIDECAR);
            name
        })
        .find(|name| sidecars.contains(name.as_os_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(name: &str, kind: EntryKind) -> Entry {
        Entry { name: name.into(), kind }
    }

    #[test]
    fn every_entry_is_a_tool_a_package_or_skipped_with_a_reason() {
        let plan = plan(vec![
            entry("ls.sh", EntryKind::Executable),
            entry("ls.py", EntryKind::Executable),
            entry("notes.txt", EntryKind::Plain),
            entry("weather", EntryKind::Package),
            entry("pipe", EntryKind::Other("fifo".into())),
            entry(".git", EntryKind::Package),
            entry("ls.orla.yaml", EntryKind::Executable),
        ]);
        let tools: Vec<_> =
            plan.tools.iter().map(|tool| (&*tool.name, tool.file.to_str().unwrap())).collect();
        assert_eq!(tools, [("ls", "ls.py"), ("ls_sh", "ls.sh")]);
        assert_eq!(plan.tools[1].instead_of, Some(("ls.py".into(), "ls".into())));
        assert!(
            plan.tools.iter().all(|tool| tool.sidecar.as_deref() == Some(OsStr::new("ls.orla.yaml")))
        );
        assert_eq!(plan.packages, ["weather"]);
        let skipped: Vec<_> =
            plan.skipped.iter().map(|(name, why)| (name.to_str().unwrap(), why.as_str())).collect();
        assert_eq!(
            skipped,
            [
                (".git", "hidden file"),
                ("ls.orla.yaml", "describes the tool beside it"),
                ("notes.txt", "not executable (chmod +x makes it a tool)"),
                ("pipe", "fifo"),
            ]
        );
    }

    #[test]
    fn a_program_is_a_tool_whether_or_not_it_is_executable() {
        let plan = plan(vec![
            entry("a.rtfs", EntryKind::Plain),
            entry("b.rtfs", EntryKind::Executable),
            entry("b.sh", EntryKind::Executable),
            entry(".c.rtfs", EntryKind::Plain),
            entry("d.rtfs~", EntryKind::Plain),
            entry("e.rtfs", EntryKind::Other("fifo".into())),
        ]);
        let tools: Vec<_> =
            plan.tools.iter().map(|tool| (&*tool.name, tool.file.to_str().unwrap())).collect();
        assert_eq!(tools, [("a", "a.rtfs"), ("b", "b.rtfs"), ("b_sh", "b.sh")]);
        assert_eq!(plan.skipped.len(), 3);
    }

    #[test]
    fn the_file_of_the_whole_name_describes_before_that_of_the_stem() {
        let plan = plan(
            ["a.sh", "a.py", "a.orla.yaml", "a.sh.orla.yaml"]
                .map(|name| entry(name, EntryKind::Executable))
                .to_vec(),
        );
        let beside: Vec<_> =
            plan.tools.iter().map(|tool| tool.sidecar.as_deref().and_then(OsStr::to_str)).collect();
        assert_eq!(beside, [Some("a.orla.yaml"), Some("a.sh.orla.yaml")]);
    }

    #[test]
    fn a_file_that_is_almost_a_sidecar_belongs_to_the_tool_beside_it() {
        let files = ["a.sh", "B", "c.py", "d", "D.sh", "e"];
        let plain = ["a.orla.yml", "b.orla.yaml", "c.py.orla.json", "d.orla.yaml", "x.orla.json"];
        let all = files.map(|name| entry(name, EntryKind::Executable)).into_iter();
        let plan = plan(all.chain(plain.map(|name| entry(name, EntryKind::Plain))).collect());
        let found: Vec<_> = plan.tools.iter().filter_map(|tool| tool.misnamed.as_ref()).collect();
        let expected = [
            ("b.orla.yaml", "B.orla.yaml"),
            ("a.orla.yml", "a.orla.yaml"),
            ("c.py.orla.json", "c.py.orla.yaml"),
        ];
        let expected = expected.map(|(name, meant)| (OsString::from(name), OsString::from(meant)));
        assert_eq!(found, expected.iter().collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn the_order_of_the_listing_does_not_matter(
            names in proptest::collection::btree_set("[a-c_. ]{1,4}(\\.sh|\\.py|)", 0..20),
            seed in any::<u64>(),
        ) {
            let sorted: Vec<Entry> =
                names.iter().map(|name| entry(name, EntryKind::Executable)).collect();
            let mut shuffled = sorted.clone();
            shuffled.sort_by_key(|entry| {
                let bytes = entry.name.as_encoded_bytes();
                bytes.iter().fold(seed, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
            });
            let planned = plan(sorted);
            prop_assert_eq!(&planned, &plan(shuffled));
            prop_assert_eq!(planned.tools.len() + planned.skipped.len(), names.len());
        }
    }
}
