use std::ffi::OsStr;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use super::*;

struct Directory(tempfile::TempDir);

impl Directory {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn with(self, name: &str, content: &str) -> Self {
        self.file(OsStr::new(name), content, 0o755)
    }

    fn file(self, name: &OsStr, content: &str, mode: u32) -> Self {
        let path = self.0.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        self
    }

    fn scan(&self) -> Discovery {
        Scanner::default().scan(self.0.path()).unwrap()
    }

    fn shown(&self, findings: &[Finding]) -> Vec<String> {
        let root = format!("{}/", self.0.path().display());
        findings.iter().map(|finding| finding.to_string().replace(&root, "")).collect()
    }
}

fn names(discovery: &Discovery) -> Vec<&str> {
    discovery.tools.iter().map(|tool| tool.name.as_str()).collect()
}

#[test]
fn the_three_tools_of_the_document_are_found() {
    let directory = Directory::new()
        .with("ls.sh", "#!/bin/sh\n# Lists files.\nls\n")
        .with("summarize.py", "#!/usr/bin/env python3\n")
        .with("convert", "\x7fELF\0")
        .file(OsStr::new("notes.txt"), "no tool", 0o644);
    let found = directory.scan();
    assert_eq!(names(&found), ["convert", "ls", "summarize"]);
    let described: Vec<_> = found
        .tools
        .iter()
        .map(|tool| (tool.interpreter.as_deref(), tool.description.as_str()))
        .collect();
    assert_eq!(
        described,
        [
            (None, "Runs the program convert."),
            (Some("sh"), "Lists files."),
            (Some("python3"), "Runs the python3 script summarize.py."),
        ]
    );
    assert_eq!(
        directory.shown(&found.skipped),
        ["notes.txt: not executable (chmod +x makes it a tool)"]
    );
}

#[test]
fn a_file_that_describes_itself_and_is_not_executable_is_named() {
    let block = "# /// orla\n# description: Counts.\n# ///\n";
    let plain =
        |directory: Directory, name: &str, text: &str| directory.file(OsStr::new(name), text, 0o644);
    let directory = Directory::new().with("fine.py", &format!("#!/usr/bin/env python3\n{block}"));
    let directory = plain(directory, "count.py", &format!("#!/usr/bin/env python3\n{block}print(1)\n"));
    let directory = plain(directory, "count.js", &block.replace('#', "//"));
    let directory = plain(directory, "notes.md", &format!("Write it so:\n\n{block}"));
    let found = directory.scan();
    assert_eq!(names(&found), ["fine"]);
    let warning = "describes itself in a metadata block, but is not executable, so it is not a tool (chmod +x makes it one)";
    assert_eq!(
        directory.shown(&found.warnings),
        [format!("count.js: {warning}"), format!("count.py: {warning}")]
    );
}

#[test]
fn special_files_are_skipped_with_a_reason_and_never_opened() {
    let directory = Directory::new().with("ok", "").with(".hidden", "").with("a.sh~", "");
    let at = |name: &str| directory.0.path().join(name);
    assert!(
        std::process::Command::new("mkfifo")
            .args(["-m", "777"])
            .arg(at("fifo"))
            .status()
            .unwrap()
            .success()
    );
    let _socket = UnixListener::bind(at("socket")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    symlink("loop", at("loop")).unwrap();
    symlink("fifo", at("to-fifo")).unwrap();
    symlink("/dev/null", at("to-device")).unwrap();
    symlink("ok", at("linked")).unwrap();
    fs::create_dir(at("directory")).unwrap();
    let found = directory.scan();
    assert_eq!(names(&found), ["linked", "ok"]);
    let mut skipped = directory.shown(&found.skipped);
    skipped.sort();
    assert_eq!(
        skipped,
        [
            ".hidden: hidden file",
            "a.sh~: backup or temporary file",
            "dangling: dangling link",
            "directory: directory without a manifest",
            "fifo: fifo",
            "loop: Too many levels of symbolic links",
            "socket: socket",
            "to-device: device",
            "to-fifo: fifo",
        ]
    );
}

#[test]
fn a_package_is_recognised_and_its_files_are_no_tools() {
    let directory = Directory::new();
    for (package, manifest) in [("one", "tool.yaml"), ("two", "orla-tool.json")] {
        let path = directory.0.path().join(package);
        fs::create_dir(&path).unwrap();
        fs::write(path.join(manifest), "").unwrap();
    }
    let found = directory.scan();
    assert!(found.tools.is_empty());
    assert_eq!(found.packages, [directory.0.path().join("one"), directory.0.path().join("two")]);
}

#[test]
fn a_collision_is_one_warning_that_names_both_files() {
    let directory = Directory::new().with("ls.sh", "").with("ls.py", "");
    let found = directory.scan();
    assert_eq!(names(&found), ["ls", "ls_sh"]);
    let root = directory.0.path().display();
    assert_eq!(
        directory.shown(&found.warnings),
        [format!("ls.sh: {root}/ls.py is named ls already; served as ls_sh")
            .replace(&format!("{root}/"), "")]
    );
}

#[test]
fn a_missing_directory_has_no_tools_and_one_warning() {
    let found = Scanner::default().scan(Path::new("/nowhere/tools")).unwrap();
    assert!(found.tools.is_empty());
    assert!(found.warnings[0].to_string().starts_with("/nowhere/tools: no such directory"));
    assert_eq!(found.warnings.len(), 1);
}

#[test]
fn a_directory_that_is_a_file_is_an_error_with_its_path() {
    let directory = Directory::new().with("file", "");
    let error = Scanner::default().scan(&directory.0.path().join("file")).unwrap_err().to_string();
    assert!(error.ends_with("/file: Not a directory"), "{error}");
}

#[test]
fn metadata_comes_from_the_block_or_from_the_file_beside() {
    let directory = Directory::new()
        .with("script.sh", "#!/bin/sh\n# /// orla\n# description: From the block\n# timeout: 2\n# ///\n")
        .with("binary", "\x7fELF\0")
        .with("other.bin", "\x7fELF\0")
        .with("both.sh", "#!/bin/sh\n# /// orla\n# title: Both\n# ///\n# A comment.\n")
        .file(OsStr::new("binary.orla.yaml"), "description: From beside\n", 0o755)
        .file(OsStr::new("other.orla.yaml"), "description: By its name\n", 0o644)
        .file(OsStr::new("both.orla.yaml"), "title: Beside\n", 0o644);
    let found = directory.scan();
    let described: Vec<_> =
        found.tools.iter().map(|tool| (tool.name.as_str(), tool.description.as_str())).collect();
    assert_eq!(
        described,
        [
            ("binary", "From beside"),
            ("both", "A comment."),
            ("other", "By its name"),
            ("script", "From the block"),
        ]
    );
    assert_eq!(found.tools[1].metadata.title.as_deref(), Some("Both"));
    assert_eq!(found.tools[3].metadata.timeout, Some(Duration::from_secs(2)));
    assert_eq!(
        directory.shown(&found.warnings),
        ["both.orla.yaml:1:1: not read: the tool describes itself in a block at its top"]
    );
}

#[test]
fn a_confinement_that_is_not_read_is_a_problem() {
    let block = "#!/bin/sh\n# /// orla\n# title: Both\n# ///\n";
    let plain =
        |name: &str, text: &str, directory: Directory| directory.file(OsStr::new(name), text, 0o644);
    let mut directory = Directory::new();
    for name in ["empty.sh", "limits.sh", "odd.sh", "words.sh"] {
        directory = directory.with(name, block);
    }
    directory = directory.with("name.sh", "#!/bin/sh\n");
    directory = plain("empty.orla.yaml", "", directory);
    directory = plain("limits.orla.yaml", "limits: {memory: 1Mi}\n", directory);
    directory = plain("odd.orla.yaml", "[", directory);
    directory = plain("words.orla.yaml", "permissions: []\n", directory);
    directory = plain("name.orla.json", "{}", directory);
    let found = directory.scan();
    let not_run = "The tool does not run, as it may be meant to be confined";
    let unread = |name: &str| {
        format!(
            "{name}.orla.yaml:1:1: not read: the tool describes itself in a block at its top; write its `permissions` and `limits` there and remove this file. {not_run}"
        )
    };
    let misnamed = format!(
        "name.orla.json: not read, did you mean name.orla.yaml? Rename or remove the file. {not_run}"
    );
    assert_eq!(
        directory.shown(&found.problems),
        [unread("limits"), misnamed, unread("odd"), unread("words")]
    );
    let unclear = found.tools.iter().filter(|tool| tool.metadata.declared.is_unclear);
    let unclear: Vec<&str> = unclear.map(|tool| tool.name.as_str()).collect();
    assert_eq!(unclear, ["limits", "name", "odd", "words"]);
    assert_eq!(found.warnings.len(), 1, "{:?}", found.warnings);
}

#[test]
fn a_tool_with_broken_metadata_is_served_and_reported() {
    let directory = Directory::new()
        .with("a.sh", "#!/bin/sh\n# /// orla\n# timeout: soon\n# colour: red\n# ///\n")
        .with("b.sh", "#!/bin/sh\n# /// orla\n# timeout: 1\necho\n")
        .with("c.sh", "#!/bin/sh\n# /// orla\n# input_schema: {type: 7}\n# ///\n")
        .with("d", "\x7fELF\0")
        .file(OsStr::new("d.orla.yaml"), "a: [\n", 0o644);
    let found = directory.scan();
    assert_eq!(names(&found), ["a", "b", "c", "d"]);
    assert!(found.tools[2].metadata.input_schema.is_none());
    let problems = directory.shown(&found.problems);
    assert_eq!(problems.len(), 4, "{problems:?}");
    assert_eq!(
        problems[0],
        "a.sh:3:12: timeout: expected seconds above 0 and at most 86400, got \"soon\""
    );
    assert_eq!(problems[1], "b.sh:4:1: the metadata block has no end: expected `# ///`");
    assert!(problems[2].starts_with("c.sh:3:24: input_schema: type: "), "{}", problems[2]);
    assert!(problems[3].starts_with("d.orla.yaml:"), "{}", problems[3]);
    assert_eq!(directory.shown(&found.warnings), ["a.sh:4:3: colour: unknown key"]);
}

#[test]
fn a_long_block_is_read_and_a_long_file_is_not() {
    let lines = "# - padding of some length\n".repeat(400);
    let directory = Directory::new()
        .with("long.sh", &format!("#!/bin/sh\n# /// orla\n# permissions:\n{lines}# title: End\n# ///\n"))
        .with("huge.sh", &format!("#!/bin/sh\n# Huge.\n\n{}", "echo x\n".repeat(100_000)));
    let found = directory.scan();
    assert_eq!(found.tools[0].description, "Huge.");
    assert_eq!(found.tools[1].metadata.title.as_deref(), Some("End"));
    let mut buffer = vec![0; BLOCK_READ];
    assert_eq!(read_head(&directory.0.path().join("huge.sh"), &mut buffer).unwrap().len(), FIRST_READ);
}

#[test]
fn odd_names_are_served_under_safe_ones() {
    let directory = Directory::new()
        .with("with space.sh", "")
        .with("new\nline.sh", "")
        .with("-dash", "")
        .with(&"x".repeat(255), "")
        .file(&OsString::from_vec(b"caf\xe9".to_vec()), "", 0o755);
    let found = directory.scan();
    assert_eq!(names(&found).len(), 5);
    assert!(names(&found).contains(&"caf_"));
    assert!(found.tools.iter().all(|tool| !tool.description.contains('\n')));
}

#[test]
fn five_thousand_files_are_found() {
    let mut directory = Directory::new();
    for number in 0..5_000 {
        directory = directory.with(&format!("t{number}.sh"), "#!/bin/sh\n# Does it.\necho\n");
    }
    let found = directory.scan();
    assert_eq!(found.tools.len(), 5_000);
}

#[test]
fn a_file_is_read_again_when_it_or_its_sidecar_has_changed() {
    let directory = Directory::new()
        .with("same.sh", "#!/bin/sh\n# Stays.\n")
        .with("edited.sh", "#!/bin/sh\n# Before.\n")
        .with("described", "\x7fELF\0")
        .file(OsStr::new("described.orla.yaml"), "description: Before.\n", 0o644)
        .with("gone.sh", "");
    let mut scanner = Scanner::default();
    // Long after the files were written, so that they have settled.
    let later = SystemTime::now() + Duration::from_secs(60);
    let mut scan = || {
        let found = scanner.scan_at(directory.0.path(), later).unwrap();
        let description = |tool: &Found| (tool.name.clone(), tool.description.clone());
        let known = |(path, (_, described)): (&PathBuf, &(Versions, Arc<Described>))| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), Arc::as_ptr(described) as usize)
        };
        let descriptions: HashMap<_, _> = found.tools.iter().map(description).collect();
        (descriptions, scanner.known.iter().map(known).collect::<HashMap<_, _>>())
    };
    let (descriptions, first) = scan();
    assert_eq!(
        (descriptions["edited"].as_str(), descriptions["described"].as_str()),
        ("Before.", "Before.")
    );
    assert_eq!((scan().1, first.len()), (first.clone(), 4));
    fs::write(directory.0.path().join("edited.sh"), "#!/bin/sh\n# After.\n").unwrap();
    fs::write(directory.0.path().join("described.orla.yaml"), "description: After.\n").unwrap();
    fs::remove_file(directory.0.path().join("gone.sh")).unwrap();
    let (descriptions, second) = scan();
    assert_eq!(
        (descriptions["edited"].as_str(), descriptions["described"].as_str()),
        ("After.", "After.")
    );
    assert_eq!((second["same.sh"], second.len()), (first["same.sh"], 3));
    assert!(second["edited.sh"] != first["edited.sh"] && second["described"] != first["described"]);
}

#[test]
fn unsettled_files_are_not_cached() {
    let directory = Directory::new().with("new.sh", "#!/bin/sh\n");
    let mut scanner = Scanner::default();
    scanner.scan(directory.0.path()).unwrap();
    assert!(scanner.known.is_empty());
}

#[test]
fn a_file_that_cannot_be_read_is_a_tool_that_says_nothing() {
    let described = Described::default();
    let mut discovery = Discovery::default();
    discovery.add("t".into(), "tools/t.sh".into(), Arc::new(described), None, None);
    assert_eq!(discovery.tools[0].description, "Runs the program t.sh.");
    assert_eq!(discovery.tools[0].interpreter, None);
}
