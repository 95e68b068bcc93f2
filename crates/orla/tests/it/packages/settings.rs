//! Settings of bundles that name directories and files.

use orla_e2e::World;

use super::{SERVER, bundle, call, ok, project, refused};

/// A bundle whose tool reads `in` of the directories that are set, and writes `out` of the first one.
fn reader(world: &World, default: &str) {
    let says = r#""VERSION " + os.environ.get("KEY", "no key")"#;
    assert!(SERVER.contains(says));
    let tried = "import sys, json, os\ndef tried(*way):\n    try: return open(*way).read() if len(way) == 1 else str(open(*way).write(\"x\"))\n    except OSError as error: return error.strerror\n";
    let code = SERVER
        .replace(says, r#"", ".join([*(tried(d + "/in") for d in sys.argv[1:]), *(tried(d + "/out", "w") for d in sys.argv[1:2])])"#)
        .replacen("import sys, json, os\n", tried, 1);
    world.write("server.py", code, 0o644);
    let manifest = format!(
        r#"{{"user_config": {{"dirs": {{"type": "directory", "title": "Directories", "multiple": true{default}}}}},
            "server": {{"type": "python", "entry_point": "main.py", "mcp_config": {{"command": "python3", "args": ["${{__dirname}}/main.py", "${{user_config.dirs}}"]}}}}}}"#
    );
    bundle(world, "w.mcpb", "1.0.0", &manifest, &[]);
}

/// Returns the name of the secret that the setting is.
fn secret(world: &World) -> String {
    let output = world.run(&["add", "mcpb:w.mcpb"]);
    let name = output.stderr.split("orla secret set ").nth(1).and_then(|rest| rest.split('`').next());
    name.expect("a command").to_owned()
}

#[test]
fn a_directory_that_is_set_may_be_read() {
    let world = project().file("a/in", "one").file("b c/in", "two").file("d/in", "three");
    reader(&world, "");
    let name = secret(&world);
    let set = |value: &str| {
        assert_eq!(world.run_with_input(&["secret", "set", &name], value.as_bytes()).code, Some(0));
    };
    let all = world.path("b c").display().to_string();
    set(&format!("[\"a\", {all:?}]"));
    let output = ok(&world, &["add", "mcpb:w.mcpb", "--yes"]);
    assert!(output.contains("granted      fs:read:${user_config.dirs}\n"), "{output}");
    let paths = format!("it may read what you set: {}, {all}", world.path("a").display());
    assert!(output.contains(&paths), "{output}");
    assert!(world.read("orla.lock").contains("permissions: [\"fs:read:${user_config.dirs}\"]"));
    assert_eq!(call(&world, "weather.forecast"), "one, two, Permission denied");
    // Later settings apply from then on, and none of them is in the lock.
    let lock = world.read("orla.lock");
    set(&world.path("d").display().to_string());
    assert_eq!(call(&world, "weather.forecast"), "three, Permission denied");
    ok(&world, &["update", "weather", "--yes"]);
    assert_eq!(world.read("orla.lock"), lock);
    refused(
        &world,
        &["update", "weather", "--allow", "fs:write:${user_config.dirs}"],
        &["fs:write:${user"],
    );
    ok(&world, &["update", "weather", "--yes", "--allow", "fs:write:${user_config.dirs}"]);
    assert_eq!(call(&world, "weather.forecast"), "three, 1");
    let explained = ok(&world, &["sandbox", "explain", "weather.forecast"]);
    assert!(
        explained.contains(&format!("read and change {}", world.path("d").display())),
        "{explained}"
    );
    // A path that does not exist grants nothing, and the server reports what it lacks.
    set("gone");
    assert!(call(&world, "weather.forecast").contains("No such file"));
}

#[test]
fn a_directory_that_only_the_bundle_names_may_not_be_read() {
    let world = project().file("a/in", "one");
    reader(&world, &format!(r#", "default": ["{}"]"#, world.path("a").display()));
    ok(&world, &["add", "mcpb:w.mcpb", "--yes"]);
    assert_eq!(call(&world, "weather.forecast"), "Permission denied, Permission denied");
}
