//! Checks the dependencies between crates, the dependencies of the language, and that no cycle of
//! modules crosses folders.

#[path = "dependencies/modules.rs"]
mod modules;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use modules::{Arrow, Modules};

/// Each member of the workspace, and the members that it may depend on. `orla` knows all
/// others but `orla-broker`, `orla-registry` and `rtfs`, which is reached through the marketplace's re-export.
const ARROWS: &[(&str, &[&str])] = &[
    ("rtfs", &[]),
    ("orla-document", &[]),
    ("orla-registry", &["rtfs"]),
    ("orla-marketplace", &["rtfs"]),
    ("orla-mcp", &["orla-marketplace"]),
    ("orla-confine", &[]),
    ("orla-broker", &["orla-confine"]),
    ("orla-oauth", &["orla-confine"]),
    ("orla-process", &["orla-broker", "orla-confine", "orla-marketplace", "orla-sys"]),
    ("orla-sys", &[]),
    ("orla-secrets", &[]),
    ("orla-packages", &["orla-document"]),
    ("orla-state", &[]),
    ("orla-tasks", &["orla-marketplace", "orla-mcp", "orla-state"]),
    ("orla-history", &["orla-marketplace", "orla-mcp"]),
    ("orla-cluster", &["orla-marketplace", "orla-mcp", "orla-state"]),
    ("orla-identity", &["orla-marketplace"]),
    ("orla-telemetry", &["orla-history"]),
    (
        "orla-server",
        &["orla-history", "orla-identity", "orla-marketplace", "orla-mcp", "orla-state", "orla-tasks"],
    ),
    ("orla-console", &["orla-history", "orla-marketplace", "orla-server", "orla-tasks"]),
    (
        "orla-providers",
        &[
            "orla-confine",
            "orla-document",
            "orla-marketplace",
            "orla-mcp",
            "orla-oauth",
            "orla-process",
            "orla-registry",
        ],
    ),
    (
        "orla",
        &[
            "orla-cluster",
            "orla-console",
            "orla-confine",
            "orla-document",
            "orla-history",
            "orla-identity",
            "orla-marketplace",
            "orla-mcp",
            "orla-oauth",
            "orla-packages",
            "orla-process",
            "orla-providers",
            "orla-secrets",
            "orla-server",
            "orla-state",
            "orla-sys",
            "orla-tasks",
            "orla-telemetry",
        ],
    ),
    ("orla-e2e", &[]),
    ("xtask", &["orla-e2e"]),
];

/// All direct and indirect dependencies of `rtfs`: numbers, maps, shared pointers and regular
/// expressions. None of them opens a file, a socket or a process, reads a clock or starts a thread.
const BELOW_RTFS: &[&str] = &[
    "aho-corasick",
    "allocator-api2",
    "autocfg",
    "equivalent",
    "foldhash",
    "hashbrown",
    "memchr",
    "num-bigint",
    "num-integer",
    "num-traits",
    "regex",
    "regex-automata",
    "regex-syntax",
    "rtfs",
    "strsim",
    "triomphe",
];

/// All further dependencies of `orla-registry`: formats, texts, hashes and calendars. None of them opens
/// a file, a socket or a process, reads a clock or starts a thread. Macros run only in the compiler, and
/// are not counted.
const BELOW_REGISTRY: &[&str] = &[
    // Not built: `cargo metadata` treats features that a crate would pass on to `jiff` as enabled.
    // `cargo tree -e features -i jiff` shows the enabled ones.
    "jiff-tzdb-platform",
    "windows-link",
    "arraydeque",
    "block-buffer",
    "cfg-if",
    "cmov",
    // Features that other crates enable on the same dependencies add these three, which are inactive by
    // themselves.
    "const-oid",
    "log",
    "serde",
    "cpufeatures",
    "crc32fast",
    "crypto-common",
    "csv-core",
    "ctutils",
    "data-encoding",
    "digest",
    "form_urlencoded",
    "granit-parser",
    "heck",
    "hmac",
    "hybrid-array",
    "icu_collections",
    "icu_locale_core",
    "icu_normalizer",
    "icu_normalizer_data",
    "icu_properties",
    "icu_properties_data",
    "icu_provider",
    "idna",
    "idna_adapter",
    "imara-diff",
    "indexmap",
    "jiff",
    "jiff-core",
    "jiff-tzdb",
    // On other processors `cpufeatures` asks the C library which one it is.
    "libc",
    "litemap",
    "md-5",
    "orla-registry",
    "percent-encoding",
    "portable-atomic",
    "portable-atomic-util",
    "potential_utf",
    "serde_core",
    "serde_spanned",
    "sha1",
    "sha2",
    "smallvec",
    "stable_deref_trait",
    "thiserror",
    "tinystr",
    "toml",
    "toml_datetime",
    "toml_parser",
    "toml_writer",
    "typenum",
    "unicode-segmentation",
    "url",
    "utf8_iter",
    "utf_types",
    "winnow",
    "writeable",
    "yoke",
    "zerofrom",
    "zerotrie",
    "zerovec",
];

/// Where conditional compilation by feature is allowed, with the feature.
const FEATURES: &[(&str, &str)] = &[
    ("orla-marketplace", "testing"),
    ("orla-state", "testing"),
    ("orla-cluster", "testing"),
    ("orla-providers", "a2a-grpc"),
    ("orla-providers", "wasm"),
    ("orla-server", "a2a-grpc"),
    ("orla", "agent"),
    ("orla", "jemalloc"),
    ("orla-sys", "jemalloc"),
];

/// The arrows that still close circles across folders, for each crate: the first names something in the second. This list may
/// only shrink.
const CIRCLES: &[(&str, &[(&str, &str)])] = &[
    ("orla-marketplace", &[("executor", "call"), ("marketplace", "call"), ("surface", "call")]),
    ("orla-server", &[("state", "a2a"), ("state", "mcp")]),
    (
        "rtfs",
        &[
            ("compiler", "builtins"),
            ("compiler", "check"),
            ("machine", "builtins"),
            ("machine", "compiler"),
        ],
    ),
];

fn metadata() -> Metadata {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let mut command = MetadataCommand::new();
    command.manifest_path(manifest).other_options(["--locked".to_owned()]);
    command.exec().expect("cargo metadata, with the lock file as it is")
}

fn members(metadata: &Metadata) -> BTreeMap<String, &Package> {
    metadata
        .workspace_packages()
        .into_iter()
        .map(|package| (package.name.to_string(), package))
        .collect()
}

#[test]
fn the_arrows_between_the_crates_are_the_agreed_ones() {
    let metadata = metadata();
    let members = members(&metadata);
    let agreed: BTreeMap<_, _> = ARROWS.iter().copied().collect();
    let named: BTreeSet<_> = agreed.keys().map(ToString::to_string).collect();
    assert_eq!(members.keys().cloned().collect::<BTreeSet<_>>(), named, "every member is in the table");
    for (name, package) in &members {
        for dependency in
            package.dependencies.iter().filter(|dependency| members.contains_key(&dependency.name))
        {
            // For its tests, a crate may enable its own features. `orla` drives its binary, and the bench of
            // `orla-identity` needs an authorization server.
            let drives =
                ["orla", "orla-identity"].contains(&name.as_str()) && dependency.name == "orla-e2e";
            let for_tests =
                dependency.kind == DependencyKind::Development && (dependency.name == *name || drives);
            let allowed = agreed[name.as_str()].contains(&dependency.name.as_str());
            assert!(
                allowed || for_tests,
                "{name} must not know {} ({})",
                dependency.name,
                dependency.kind
            );
        }
    }
}

#[test]
fn the_language_rests_on_nothing_that_does_io() {
    let below = below(&metadata(), "rtfs");
    let unknown: Vec<_> = below.iter().filter(|name| !BELOW_RTFS.contains(&name.as_str())).collect();
    assert!(unknown.is_empty(), "what do {unknown:?} do below rtfs?");
}

#[test]
fn the_built_ins_rest_on_nothing_that_does_io() {
    let below = below(&metadata(), "orla-registry");
    let known = |name: &str| BELOW_RTFS.contains(&name) || BELOW_REGISTRY.contains(&name);
    let unknown: Vec<_> = below.iter().filter(|name| !known(name)).collect();
    assert!(unknown.is_empty(), "what do {unknown:?} do below orla-registry?");
    let gone: Vec<_> = BELOW_REGISTRY.iter().filter(|name| !below.contains(**name)).collect();
    assert!(gone.is_empty(), "{gone:?} are not below orla-registry any more");
}

/// Returns the names of a member and everything that it rests on, however far down. Macros are left out.
fn below(metadata: &Metadata, member: &str) -> BTreeSet<String> {
    let resolved = metadata.resolve.as_ref().expect("a resolved graph");
    let package = |id: &cargo_metadata::PackageId| {
        metadata.packages.iter().find(|package| package.id == *id).expect("a package")
    };
    let root = &members(metadata)[member].id;
    let (mut below, mut open) = (BTreeSet::new(), vec![root]);
    while let Some(id) = open.pop() {
        let is_macro = package(id).targets.iter().any(cargo_metadata::Target::is_proc_macro);
        if !is_macro && below.insert(id) {
            let node = resolved.nodes.iter().find(|node| node.id == *id).expect("a node");
            let needed = node.deps.iter().filter(|dependency| {
                dependency.dep_kinds.iter().any(|kind| kind.kind != DependencyKind::Development)
            });
            open.extend(needed.map(|dependency| &dependency.pkg));
        }
    }
    below.into_iter().map(|id| package(id).name.to_string()).collect()
}

#[test]
fn features_are_asked_about_in_the_agreed_places_only() {
    let metadata = metadata();
    for (name, package) in members(&metadata) {
        let dir = package.manifest_path.parent().expect("a manifest is in a directory");
        for file in sources(dir.as_std_path()) {
            let text = std::fs::read_to_string(&file).expect("a source file is text");
            for line in text.lines().filter(|line| line.contains("feature = \"") && line.contains("cfg"))
            {
                let allowed = FEATURES.iter().any(|(member, feature)| {
                    *member == name && line.contains(&format!("\"{feature}\""))
                });
                assert!(allowed, "{}: {line}", file.display());
            }
        }
    }
}

/// Where processes are started. Every tool, capsule, plugin, stream and MCP server starts in the first, which is where
/// they are confined; the others are the server's own helpers, and programs that the operator names.
const STARTS: &[&str] = &[
    "orla-process/src/child.rs",
    "orla-process/src/confinement/compartment.rs",
    "orla-process/src/confinement/inside.rs",
    "orla-process/src/confinement/launcher.rs",
    "orla-process/src/init.rs",
    "orla-process/src/reaper.rs",
    "orla-secrets/src/command.rs",
    "orla-sys/src/fork.rs",
    "orla-sys/src/start.rs",
    "orla/src/commands/packages/helper.rs",
    "orla/src/governance/audit/heads.rs",
];

#[test]
fn processes_are_started_in_listed_files_alone() {
    in_code(STARTS, starts_a_process);
}

/// Whether a line starts a process, by whichever of the ways that the crates have: the standard library, Tokio, `orla-sys`, and
/// the bindings of the system's functions.
fn starts_a_process(line: &str) -> bool {
    const WAYS: &[&str] = &[
        "Command::new(",
        "Command as ",
        "tokio::process",
        "posix_spawn",
        "orla_sys::fork",
        "Starter::",
        "libc::fork",
        "libc::vfork",
        "libc::clone",
        "libc::exec",
        "libc::fexec",
        "unistd::fork",
        "unistd::exec",
        "unistd::fexec",
        "sched::clone",
        "execve(",
        "execveat(",
    ];
    let code = line.trim_start();
    let imports_tokio = code.starts_with("use tokio::{") && code.contains("process");
    !code.starts_with("//") && (imports_tokio || WAYS.iter().any(|way| code.contains(way)))
}

#[test]
fn every_way_to_start_a_process_is_seen() {
    for line in [
        "    let child = std::process::Command::new(program).spawn()?;",
        "    run(Command::new(program));",
        "use std::process::Command as Program;",
        "    tokio::process::Command::from(command).spawn()?;",
        "use tokio::{process, time};",
        "use nix::spawn::posix_spawn;",
        "    match orla_sys::fork()? {",
        "    Starter::default().start(&program, &prepare)?;",
        "    unsafe { libc::posix_spawnp(&mut pid, file, actions, attributes, args, env) };",
        "    nix::unistd::execve(&file, &args, &env)?;",
    ] {
        assert!(starts_a_process(line), "{line}");
    }
    for line in
        ["// Like tokio::process.", "use orla_process::Command;", "    let started = self.launch();"]
    {
        assert!(!starts_a_process(line), "{line}");
    }
}

#[test]
fn unsafe_code_is_in_one_crate_alone() {
    const SYS: &[&str] = &[
        "orla-sys/src/memory.rs",
        "orla-sys/src/fork.rs",
        "orla-sys/src/notify.rs",
        "orla-sys/src/start.rs",
    ];
    in_code(SYS, |text| text.contains("unsafe {"));
}

/// Fails for every file of the crates that has what `is_it` looks for, tests aside, and is not in the list.
fn in_code(allowed: &[&str], is_it: impl Fn(&str) -> bool) {
    let metadata = metadata();
    let crates =
        members(&metadata).into_iter().filter(|(name, _)| !["xtask", "orla-e2e"].contains(&&**name));
    for (_, package) in crates {
        let dir = package.manifest_path.parent().expect("a manifest is in a directory");
        for file in sources(dir.as_std_path()) {
            let path = file.to_string_lossy();
            let text = std::fs::read_to_string(&file).expect("a source file is text");
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let is_allowed =
                path.ends_with("tests.rs") || allowed.iter().any(|known| path.ends_with(known));
            assert!(is_allowed || !code.lines().any(&is_it), "{path}");
        }
    }
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![dir.join("src")];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.path() {
                path if path.is_dir() => open.push(path),
                path if path.extension().is_some_and(|extension| extension == "rs") => found.push(path),
                _ => {}
            }
        }
    }
    found
}

#[test]
fn no_circle_of_modules_crosses_folders() {
    for (name, package) in members(&metadata()) {
        let source = package.manifest_path.parent().expect("a manifest is in a directory").join("src");
        let root =
            ["lib.rs", "main.rs"].map(|file| source.join(file)).into_iter().find(|file| file.exists());
        let modules = Modules::read(root.expect("a crate has a root").as_std_path());
        let listed =
            CIRCLES.iter().find(|(member, _)| *member == name).map_or(&[][..], |(_, arrows)| arrows);
        let listed: BTreeSet<Arrow> =
            listed.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect();
        let arrows = modules.arrows();
        let others: BTreeSet<Arrow> = arrows.difference(&listed).cloned().collect();
        let circles = modules.circles(&others);
        assert!(circles.is_empty(), "{name}: these modules know each other: {circles:?}");
        let gone: Vec<_> = listed
            .iter()
            .filter(|arrow| {
                let with = others.iter().chain([*arrow]).cloned().collect();
                !arrows.contains(*arrow) || modules.circles(&with).is_empty()
            })
            .collect();
        assert!(gone.is_empty(), "{name}: {gone:?} close no circle any more: remove them from the list");
    }
}

#[test]
fn a_circle_is_found_through_a_reexport_and_a_path_in_a_body() {
    let crate_of = |second: &str| {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("a file can be written");
        };
        std::fs::create_dir(folder.path().join("first")).expect("a folder can be made");
        write("lib.rs", "mod first; mod second; pub use first::inner::Thing;");
        write("first/mod.rs", "pub mod inner;");
        write("first/inner.rs", "pub struct Thing; fn f() { crate::second::g() }");
        write("second.rs", second);
        let modules = Modules::read(&folder.path().join("lib.rs"));
        modules.circles(&modules.arrows())
    };
    let circle = BTreeSet::from(["first".to_owned(), "second".to_owned()]);
    assert_eq!(crate_of("use crate::Thing; pub fn g() {}"), BTreeSet::from([circle]));
    assert_eq!(crate_of("pub fn g() {} #[cfg(test)] mod tests { use crate::Thing; }"), BTreeSet::new());
}
