//! Which files become tools, under which names, and how they describe themselves.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use orla_e2e::{World, eventually};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::{Value, json};

use crate::{sh, world};

#[test]
fn the_three_tools_of_the_document_are_listed_by_name() {
    let server = world()
        .tool("ls.sh", sh("ls"))
        .tool("summarize.py", "#!/usr/bin/env python3\nprint(1)\n")
        .tool("convert", "#!/bin/bash\necho converted\n")
        .file("tools/notes.txt", "not a tool")
        .serve();
    for mut client in server.clients() {
        assert_eq!(client.tool_names(), ["convert", "ls", "summarize"]);
    }
}

#[test]
fn an_empty_list_names_the_files_that_are_not_executable() {
    let world = world().file("tools/disks.sh", "#!/bin/sh\ndf\n").file("tools/notes.txt", "");
    let listed = world.run(&["list"]);
    let file = "disks.sh: not executable (chmod +x makes it a tool); and 1 more file";
    assert!(listed.stderr.contains(file), "{listed:?}");
}

/// T1
#[test]
fn a_missing_tools_directory_is_one_warning_with_advice() {
    let server = world().serve();
    assert_eq!(server.client().tool_names(), Vec::<String>::new());
    server.log_says(&["\"warn\""]);
    let warnings = server.logged("warn");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let looked_in = server.path("tools");
    let named = warnings[0].says(&["tools"]) && warnings[0].0.to_string().contains("executable");
    assert!(named, "where it looked ({}) and how to add one: {warnings:?}", looked_in.display());
}

/// T2: what cannot be a directory. (An unreadable one is readable to root, so that is a test of its own.)
#[test]
fn a_tools_dir_that_is_a_file_is_one_line_and_exit_code_1() {
    for (tools_dir, shown) in [("notes.txt", "notes.txt"), ("notes.txt/deeper", "notes.txt")] {
        let world = world().file("notes.txt", "").config(&format!("tools_dir: {tools_dir}\nport: 0\n"));
        let finished = world.run(&["serve"]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let lines: Vec<_> = finished.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains(shown) && lines[0].contains("directory"), "{lines:?}");
        assert_eq!(finished.stdout, "");
    }
}

/// T2
#[test]
fn an_unreadable_tools_dir_is_one_line_and_exit_code_1() {
    let world = world().tool("a", sh("echo a")).config("port: 0\n");
    fs::set_permissions(world.path("tools"), fs::Permissions::from_mode(0o000)).unwrap();
    // Root reads it all the same.
    if fs::read_dir(world.path("tools")).is_err() {
        let finished = world.run(&["serve"]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert!(
            finished.stderr.contains("tools") && finished.stderr.contains("ermission denied"),
            "{finished:?}"
        );
    }
    fs::set_permissions(world.path("tools"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// T2, on reload
#[test]
fn a_reload_that_finds_no_directory_keeps_the_old_tools() {
    let server = world().tool("a", sh("echo a")).serve();
    fs::rename(server.path("tools"), server.path("tools.gone")).unwrap();
    server.write("tools", "now a file", 0o644);
    server.signal(rustix::process::Signal::HUP);
    eventually("the failed reload is logged", || !server.logged("error").is_empty());
    assert_eq!(server.client().tool_names(), ["a"]);
    fs::remove_file(server.path("tools")).unwrap();
    fs::rename(server.path("tools.gone"), server.path("tools")).unwrap();
    server.write("tools/b", sh("echo b"), 0o755);
    server.reload();
    assert_eq!(server.client().tool_names(), ["a", "b"]);
}

/// T3
#[test]
fn a_file_without_any_executable_bit_is_no_tool_and_the_debug_log_explains() {
    let server =
        world().file("tools/readme.md", "# Tools").tool("a", sh("echo a")).config("log_level: debug\n");
    for (name, mode) in [("owner", 0o744), ("group", 0o654), ("other", 0o645)] {
        server.write(format!("tools/{name}"), sh("echo hi"), mode);
    }
    let server = server.serve();
    assert_eq!(server.client().tool_names(), ["a", "group", "other", "owner"]);
    server.log_says(&["\"debug\"", "readme.md", "executable"]);
}

/// T4
#[test]
fn files_with_one_name_are_all_served_and_one_warning_names_their_paths() {
    let server = world()
        .tool("ls.sh", sh("echo from sh"))
        .tool("ls.py", sh("echo from py"))
        .tool("ls.sh~", sh("echo backup"))
        .tool("ls.bak", sh("echo backup"))
        .tool("ls.swp", sh("echo backup"))
        .tool("ls.tmp", sh("echo backup"))
        .tool(".ls", sh("echo hidden"))
        .tool(".ls.sh.un~", sh("echo hidden"))
        .serve();
    let mut client = server.client();
    assert_eq!(client.tool_names(), ["ls", "ls_sh"]);
    assert_eq!(client.call("ls", json!({})).stdout(), "from py\n");
    assert_eq!(client.call("ls_sh", json!({})).stdout(), "from sh\n");
    server.log_says(&["\"warn\""]);
    let warnings = server.logged("warn");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].says(&["ls.py", "ls.sh"]), "{warnings:?}");
}

#[test]
fn clashing_names_without_extensions_get_numbers() {
    // Both become `a_b`, and neither has an extension to add.
    let server = world()
        .tool("a b", sh("echo space"))
        .tool("a+b", sh("echo plus"))
        .tool("a_b", sh("echo own"))
        .serve();
    let mut client = server.client();
    assert_eq!(client.tool_names(), ["a_b", "a_b_2", "a_b_3"]);
    let outputs: BTreeSet<_> =
        ["a_b", "a_b_2", "a_b_3"].map(|name| client.call(name, json!({})).stdout().to_owned()).into();
    assert_eq!(outputs.len(), 3, "each name runs another file: {outputs:?}");
}

/// T5
#[test]
fn special_files_are_skipped_and_never_opened() {
    let world = world()
        .tool("real.sh", sh("echo real"))
        .file("elsewhere/target", "")
        .config("log_level: debug\n");
    let tools = world.path("tools");
    symlink("nowhere", tools.join("dangling")).unwrap();
    symlink("loop", tools.join("loop")).unwrap();
    symlink("real.sh", tools.join("linked")).unwrap();
    let all = Mode::from_raw_mode(0o755);
    // Opening it would wait for a writer that never comes.
    mknodat(CWD, tools.join("fifo"), FileType::Fifo, all, 0).unwrap();
    symlink("fifo", tools.join("to_fifo")).unwrap();
    // Made by root only; the other kinds are there in any case.
    let _ = mknodat(CWD, tools.join("device"), FileType::CharacterDevice, all, makedev(1, 3));
    let _listener = UnixListener::bind(tools.join("socket")).unwrap();
    fs::set_permissions(tools.join("socket"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(tools.join("directory")).unwrap();
    world.write("tools/directory/inner.sh", sh("echo inner"), 0o755);
    let server = world.serve();
    assert_eq!(server.client().tool_names(), ["linked", "real"]);
    assert_eq!(server.client().call("linked", json!({})).stdout(), "real\n");
    for skipped in ["dangling", "loop", "fifo", "socket"] {
        server.log_says(&[&format!("tools/{skipped}")]);
    }
}

/// T6
#[test]
fn a_file_with_any_name_gets_a_safe_unique_stable_tool_name() {
    let long = "x".repeat(252);
    let names: [&[u8]; 9] = [
        b"with two spaces.sh",
        "größe_漢字.sh".as_bytes(),
        b"new\nline.sh",
        b"-rf.sh",
        b"--help",
        b"$(id);`id`.sh",
        long.as_bytes(),
        &[b"y".repeat(251).as_slice(), b".sh"].concat(),
        b"not-utf8-\xff\xfe.sh",
    ];
    let mut world = world();
    for (index, name) in names.iter().enumerate() {
        world = world.tool(OsStr::from_bytes(name), sh(&format!("echo this is {index}")));
    }
    let server = world.serve();
    let mut client = server.client();
    let listed = client.tool_names();
    assert!(listed.len() >= names.len() - 1, "all that are UTF-8 at least: {listed:?}");
    assert!(listed.len() == names.len() || server.log().contains("not-utf8-"), "{}", server.log());
    let safe = |name: &String| {
        (1..=64).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
    };
    assert!(listed.iter().all(safe), "{listed:?}");
    let outputs: BTreeSet<_> =
        listed.iter().map(|name| client.call(name, json!({})).stdout().to_owned()).collect();
    assert_eq!(outputs.len(), listed.len(), "every name runs a file of its own: {outputs:?}");
    server.reload();
    assert_eq!(server.client().tool_names(), listed, "the same names again");
}

/// T7
#[test]
fn five_thousand_files_are_listed_in_sorted_pages() {
    let world = world().tool("tool0000", sh("echo hi"));
    for number in 1..5000 {
        fs::hard_link(world.path("tools/tool0000"), world.path(format!("tools/tool{number:04}")))
            .unwrap();
    }
    let server = world.serve();
    for mut client in server.clients() {
        let page = client.request("tools/list", json!({})).unwrap();
        assert_eq!(page["tools"].as_array().unwrap().len(), 500);
        let names = client.tool_names();
        assert_eq!(names.len(), 5000);
        assert!(names.is_sorted(), "sorted by name");
        assert_eq!(client.call("tool4999", json!({})).stdout(), "hi\n");
        let err = client.request("tools/list", json!({"cursor": "no such cursor"})).unwrap_err();
        assert_eq!(err.code, -32602, "{err}");
    }
}

/// T8
#[test]
fn a_file_that_changed_since_it_was_listed_is_run_as_it_is_or_explained() {
    let server =
        world().tool("gone", sh("echo 1")).tool("new", sh("echo 1")).tool("off", sh("echo 1")).serve();
    let mut client = server.session();
    assert_eq!(client.tool_names(), ["gone", "new", "off"]);
    server.remove("tools/gone");
    server.write("tools/new", "#!/bin/bash\necho 2\n", 0o755);
    fs::set_permissions(server.path("tools/off"), fs::Permissions::from_mode(0o644)).unwrap();

    let gone = client.call("gone", json!({}));
    assert!(gone.is_error() && gone.sentence().starts_with("gone could not start: "), "{}", gone.json);
    assert_eq!(gone.exit_code(), 127);
    assert_eq!(client.call("new", json!({})).stdout(), "2\n");
    let off = client.call("off", json!({}));
    assert!(off.is_error() && off.sentence().starts_with("off could not start: "), "{}", off.json);
    assert_eq!(off.exit_code(), 126);
}

/// T9
#[test]
fn a_file_that_is_being_written_is_a_clear_error_or_runs() {
    let server = world().tool("busy", sh("echo ran")).tool("other", sh("echo other")).serve();
    let mut client = server.client();
    let writer = fs::OpenOptions::new().append(true).open(server.path("tools/busy")).unwrap();
    let result = client.call("busy", json!({}));
    // Some kernels run a file that is open for writing.
    if result.is_error() {
        assert!(result.sentence().to_lowercase().contains("busy"), "{}", result.json);
        assert_eq!(result.exit_code(), 126);
    } else {
        assert_eq!(result.stdout(), "ran\n");
    }
    assert_eq!(client.call("other", json!({})).stdout(), "other\n");
    drop(writer);
    assert_eq!(client.call("busy", json!({})).stdout(), "ran\n");
}

/// T10
#[test]
fn a_tool_with_a_broken_self_description_is_unavailable_with_the_place() {
    let world = world()
        .tool("yaml.sh", "#!/bin/sh\n# /// orla\n# description: [never closed\n# ///\necho yaml\n")
        .tool("key.sh", "#!/bin/sh\n# /// orla\n# descriptoin: hi\n# ///\necho key\n")
        .tool("schema.sh", "#!/bin/sh\n# /// orla\n# input_schema: {type: 12}\n# ///\necho schema\n")
        .tool("open.sh", "#!/bin/sh\n# /// orla\n# description: no end\necho open\n");
    let check = world.run(&["check"]);
    assert_eq!(check.code, Some(1), "{check:?}");
    let server = world.serve();
    let mut client = server.client();
    // An unknown key is a warning alone.
    assert_eq!(client.tool_names(), ["key"]);
    assert_eq!(client.call("key", json!({"anything": 1})).stdout(), "key\n");
    for (name, place) in [("open", "open.sh:4:"), ("schema", "schema.sh:3:"), ("yaml", "yaml.sh:3:")] {
        let result = client.call(name, json!({"anything": 1}));
        assert!(result.is_error() && result.sentence().contains(place), "{name}: {}", result.json);
    }
    for place in ["yaml.sh:3:", "key.sh:3:", "schema.sh:3:"] {
        server.log_says(&["\"warn\"", place]);
        assert!(check.all().contains(place), "check names {place}: {}", check.all());
    }
}

#[test]
fn a_tool_describes_itself_in_a_block_or_a_comment_or_a_sidecar() {
    let server = described().serve();
    let mut client = server.client();
    let tool = client.tool("add");
    assert_eq!(tool["title"], "Adder");
    assert_eq!(tool["description"], "Adds two numbers");
    assert_eq!(tool["inputSchema"]["required"], json!(["a", "b"]));
    assert_eq!(tool["outputSchema"]["required"], json!(["sum"]));
    assert_eq!(tool["annotations"]["readOnlyHint"], true);

    let comment = client.tool("comment")["description"].as_str().unwrap().to_owned();
    assert!(comment.contains("Says hello.") && comment.contains("In two lines."), "{comment}");
    assert!(!comment.contains("not this"), "only the first paragraph: {comment}");

    let silent = client.tool("silent_tool");
    assert!(!silent["description"].as_str().unwrap().is_empty(), "no tool is without a description");

    assert_eq!(client.tool("binary")["description"], "From beside it");
    let shorthand = client.tool("shorthand")["inputSchema"].clone();
    assert_eq!(shorthand["type"], "object", "{shorthand}");
    assert_eq!(shorthand["properties"]["city"]["type"], "string", "{shorthand}");
    assert_eq!(shorthand["properties"]["days"]["type"], "integer", "{shorthand}");
}

#[test]
fn a_sidecar_is_no_tool_even_if_it_is_executable() {
    let server =
        world().tool("a", "\x7fELF nonsense").tool("a.orla.yaml", "description: Beside\n").serve();
    assert_eq!(server.client().tool_names(), ["a"]);
    assert_eq!(server.client().tool("a")["description"], "Beside");
}

#[test]
fn tools_list_of_the_fixture_is_the_golden_file() {
    let server = described().serve();
    let listed = server.client().request("tools/list", json!({})).unwrap();
    let text = format!("{}\n", serde_json::to_string_pretty(&listed).unwrap());
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden/tools_list.json");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap();
    assert_eq!(text, golden, "run with UPDATE_GOLDEN=1 if the change is meant");
}

#[test]
fn the_interpreter_of_the_shebang_is_shown() {
    let server = world()
        .tool("bash", "#!/bin/bash\necho\n")
        .tool("env", "#!/usr/bin/env python3 -u\n")
        .tool("split", "#!/usr/bin/env -S python3 -u\n")
        .tool("text", "echo no shebang\n")
        .tool("binary", b"\x7fELF\x02\x01\x01\0")
        .serve();
    let status = server.status();
    let shown = |name: &str| interpreter(&status, name);
    assert_eq!(shown("bash"), "bash");
    assert_eq!(shown("env"), "python3");
    assert_eq!(shown("split"), "python3");
    assert_eq!(shown("text"), "sh");
    assert_eq!(shown("binary"), Value::Null);
}

#[test]
fn files_inside_of_a_package_are_no_tools_of_their_own() {
    let world = world().tool("plain", sh("echo plain"));
    world.write("tools/capsule/orla-tool.json", "{}", 0o755);
    world.write("tools/capsule/run", sh("echo"), 0o755);
    world.write("tools/folder/run", sh("echo"), 0o755);
    let server = world.serve();
    assert_eq!(server.client().tool_names(), ["plain"]);
}

#[test]
fn serving_listens_quickly_with_any_tools() {
    let mut world = world();
    for number in 0..100 {
        world = world.tool(format!("t{number}"), sh("touch ran; sleep 1000"));
    }
    let server = world.serve();
    assert_eq!(server.client().tool_names().len(), 100);
    assert!(!server.path("ran").exists(), "no tool is run to be listed");
    server.assert_no_tool_is_left();
}

fn interpreter(status: &Value, name: &str) -> Value {
    let capabilities = status["capabilities"].as_array().unwrap_or_else(|| panic!("{status}"));
    let found = capabilities.iter().find(|capability| capability["name"] == name);
    found.unwrap_or_else(|| panic!("{name} in {status}"))["interpreter"].clone()
}

/// One tool for each way to be described.
fn described() -> World {
    let add = r#"#!/bin/sh
# /// orla
# title: Adder
# description: Adds two numbers
# input_schema:
#   type: object
#   properties: {b: {type: number}, a: {type: number}}
#   required: [a, b]
#   additionalProperties: false
# output_schema:
#   type: object
#   properties: {sum: {type: number}}
#   required: [sum]
# annotations: {readOnlyHint: true}
# ///
echo '{"sum": 3}'
"#;
    world()
        .tool("add.sh", add)
        .tool("comment.sh", sh("# Says hello.\n# In two lines.\n\n# not this\necho hi"))
        .tool("silent_tool.sh", sh("echo"))
        .tool("binary", b"\x7fELF\x02\x01\x01\0")
        .file("tools/binary.orla.yaml", "description: From beside it\n")
        .tool("shorthand.lua", "#!/usr/bin/lua\n-- /// orla\n-- input_schema:\n--   city: string\n--   days: integer\n-- ///\n")
}

#[test]
fn of_two_with_one_id_both_places_are_named_everywhere() {
    let plugin = "#!/usr/bin/env python3\nimport json, sys\nfor line in sys.stdin:\n    call = json.loads(line)\n    \
                  print(json.dumps({'id': call['id'], 'ok': {'functions': [{'name': 't', 'description': 'T.'}]}}), flush=True)\n";
    let world = world().tool("t", sh("echo the file")).tool("u", sh("echo the file")).config(
        "plugins: {t: ./p.py}\ncapabilities:\n  - {id: u, provider: {local: {function: math.add}}}\n",
    );
    world.write("p.py", plugin, 0o755);
    let check = world.run(&["check"]);
    assert_eq!(check.code, Some(1), "{}", check.all());
    for words in [
        &["t: two have this id", "tools/t", "p.py"],
        &["u: two have this id", "tools/u", "orla.yaml:3:"],
    ] {
        assert!(words.iter().all(|word| check.all().contains(word)), "{words:?}: {}", check.all());
    }
    let server = world.serve();
    let mut client = server.client();
    assert_eq!(client.tool_names().iter().filter(|name| *name == "t").count(), 1);
    assert_eq!(client.call("t", json!({})).stdout(), "the file\n");
    // A file that is added to the directory does not replace a declared capability.
    assert_eq!(client.call("u", json!({"a": 1, "b": 2})).text(), "3");
    let problems = server.status()["problems"].to_string();
    for word in ["tools/t", "p.py", "tools/u", "orla.yaml:3:"] {
        assert!(problems.contains(word), "{word}: {problems}");
    }
    server.log_says(&["t: two have this id", "tools/t"]);
}
