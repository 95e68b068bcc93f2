//! Bundles that must not be unpacked. No file of them is ever written.

use std::path::Path;

use super::{bundle, call, folder, ok, project, refused};
use crate::sh;

/// Returns the names of everything below a directory.
fn below(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    entries
        .flat_map(|entry| {
            let path = entry.expect("an entry").path();
            let mut all = if path.is_dir() { below(&path) } else { Vec::new() };
            all.push(path.display().to_string());
            all
        })
        .collect()
}

#[test]
fn a_bundle_that_reaches_out_of_its_directory_or_is_too_much_is_refused() {
    let world = project();
    let deep = format!("100644|{}x|x", "d/".repeat(33));
    let long = format!("100644|{}|x", "n".repeat(300));
    for (extra, word) in [
        ("100644|../evil|x", "leads out"),
        ("100644|a/../../evil|x", "leads out"),
        ("100644|/tmp/orla-evil|x", "absolute"),
        ("100644|..\\evil|x", "backslash"),
        ("100644|C:/evil|x", "drive"),
        ("120777|link|/etc", "link"),
        ("010644|pipe|x", "special"),
        ("100644|main.py|x", "twice"),
        ("100644|Main.py|x", "case"),
        ("100644|main.py/x|x", "file and a directory"),
        ("100644|zeros|*268435457", "unpacks to more than 256 MiB"),
        ("100644|f%|%10001", "more than 10000"),
        ("100644|d%/e%/x|%5001", "more than 10000"),
        (deep.as_str(), "too deeply"),
        (long.as_str(), "too long"),
        ("100644|a\u{7}|x", "control"),
    ] {
        let file = bundle(&world, "evil.mcpb", "1.0.0", "{}", &[extra]);
        refused(&world, &["add", "mcpb:evil.mcpb", "--yes"], &[word]);
        std::fs::remove_file(file).unwrap();
        assert!(!world.path("orla.lock").exists(), "{extra}");
        let left = below(&world.path(".orla/packages"));
        assert!(left.iter().all(|path| !path.contains("weather")), "{extra}: {left:?}");
    }
    assert!(!world.path("../evil").exists() && !Path::new("/tmp/orla-evil").exists());
}

#[test]
fn a_bundle_reads_no_file_that_it_names() {
    let world = project().file("secret", "s3cret");
    let server = serde_json::json!({"server": {"type": "binary", "mcp_config": {"command": "cat", "args": [world.path("secret")]}}});
    bundle(&world, "x.mcpb", "1.0.0", &server.to_string(), &[]);
    refused(&world, &["add", "mcpb:x.mcpb", "--yes"], &["Permission denied"]);
    let allowed = format!("fs:read:{}", world.path("secret").display());
    refused(&world, &["add", "mcpb:x.mcpb", "--yes", "--allow", &allowed], &["weather"]);
}

#[test]
fn a_script_gets_no_installation_that_it_names() {
    let world = project().file("app/lib/x", "").file("app/secret", "s3cret");
    std::fs::create_dir(world.path("app/bin")).unwrap();
    std::fs::copy("/bin/sh", world.path("app/bin/sh")).unwrap();
    folder(&world, "1.0.0", "[]");
    let secret = world.path("app/secret");
    for (interpreter, said) in [("/bin/sh".into(), "refused"), (world.path("app/bin/sh"), "")] {
        let script = format!("#!{}\ncat {} || echo refused\n", interpreter.display(), secret.display());
        world.write("src/greet/main.sh", script, 0o755);
        ok(&world, &["add", "./src/greet", "--yes"]);
        let output = call(&world, "greet");
        assert!(output.contains(said) && !output.contains("s3cret"), "{output}");
    }
    // Nor by a name in a `PATH` of its own.
    std::fs::rename(world.path("app/bin/sh"), world.path("app/bin/sh2")).unwrap();
    let path = world.path("app/bin");
    let yaml = format!(
        "name: other\nversion: 1.0.0\nentrypoint: main.sh\nruntime: {{env: {{PATH: '{}'}}}}\n",
        path.display()
    );
    ok(&world, &["remove", "greet"]);
    world.write("src/greet/tool.yaml", yaml, 0o644);
    world.write("src/greet/main.sh", format!("#!/usr/bin/env sh2\ncat {}\n", secret.display()), 0o755);
    ok(&world, &["add", "./src/greet", "--yes"]);
    let output = call(&world, "other");
    assert!(!output.contains("s3cret"), "{output}");
}

#[test]
fn an_invalid_bundle_is_refused() {
    let world = project();
    let good = std::fs::read(bundle(&world, "good.mcpb", "1.0.0", "{}", &[])).unwrap();
    for (content, word) in [
        (Vec::new(), "not a zip file"),
        (b"<html>".to_vec(), "not a zip file"),
        (good[..good.len() / 2].to_vec(), "not a zip file"),
        ([b"#!/bin/sh\n".to_vec(), good.clone()].concat(), "broken"),
    ] {
        std::fs::write(world.path("x.mcpb"), content).unwrap();
        refused(&world, &["add", "mcpb:x.mcpb", "--yes"], &[word]);
    }
    for (manifest, word) in [
        (r#"{"manifest_version": "9"}"#, "manifest_version"),
        (r#"{"name": ""}"#, "name"),
        (r#"{"server": {}}"#, "manifest.json"),
        (
            r#"{"server": {"type": "python", "mcp_config": {"command": "no-such-program-at-all"}}}"#,
            "no-such-program-at-all",
        ),
        (r#"{"server": {"type": "python", "mcp_config": {"command": "false"}}}"#, "weather"),
    ] {
        bundle(&world, "x.mcpb", "1.0.0", manifest, &[]);
        refused(&world, &["add", "mcpb:x.mcpb", "--yes"], &[word]);
        assert!(!world.path("orla.lock").exists(), "{manifest}");
    }
    refused(&world, &["add", "mcpb:none.mcpb", "--yes"], &["none.mcpb"]);
    refused(&world, &["add", "mcpb:.", "--yes"], &["not a file"]);
    ok(&world, &["add", "mcpb:good.mcpb", "--yes"]);
}

#[test]
fn a_bundle_runs_no_program_that_only_its_own_path_names() {
    let world = project();
    world.write("app/bin/mine", "#!/bin/sh\ntouch ran\n", 0o755);
    let config = serde_json::json!({"command": "mine", "env": {"PATH": world.path("app/bin")}});
    let server = serde_json::json!({"server": {"type": "binary", "mcp_config": config}});
    bundle(&world, "x.mcpb", "1.0.0", &server.to_string(), &[]);
    refused(&world, &["add", "mcpb:x.mcpb", "--yes"], &["mine was not found"]);
}

#[test]
fn the_tools_of_a_package_have_a_limited_number_of_different_declarations() {
    let world = project();
    for number in 1..=33 {
        let script = format!("# /// orla\n# limits: {{open_files: {}}}\n# ///\necho ran", 100 + number);
        world.write(format!("pk/t{number:02}.sh"), sh(&script), 0o755);
    }
    ok(&world, &["add", "./pk", "--yes"]);
    assert_eq!(call(&world, "pk.t32"), "ran");
    let output = call(&world, "pk.t33");
    assert!(output.contains("more than 32 different declarations"), "{output}");
}
