//! Arguments of the user for the program of a package.

use orla_e2e::World;

use super::{SERVER, bundle, call, folder, ok, project, refused};

/// Returns a project with a bundle whose tool tells its arguments.
fn with_arguments() -> World {
    let says = r#"os.environ.get("KEY", "no key")"#;
    assert!(SERVER.contains(says));
    let world = project().file("data/in", "inside");
    world.write("server.py", SERVER.replace(says, r#"" ".join(sys.argv[1:])"#), 0o644);
    bundle(&world, "w.mcpb", "1.0.0", "{}", &[]);
    world
}

#[test]
fn a_program_gets_the_arguments_of_the_lock() {
    let world = with_arguments();
    let data = world.path("data").display().to_string();
    let inside = format!("--root={data}");
    let add = ["add", "mcpb:w.mcpb", "--yes", "--", "./data", &inside, "-v", "a b", "/srv/x"];
    let added = ok(&world, &add);
    assert!(
        added.contains("  arguments    ./data, \"--root=./data\", \"-v\", \"a b\", /srv/x"),
        "{added}"
    );
    assert!(added.contains("--allow 'fs:read:./data'"), "{added}");
    let lock = world.read("orla.lock");
    let locked = r#"    arguments: [./data, "--root=./data", "-v", "a b", /srv/x]"#;
    assert!(lock.contains(locked) && !lock.contains(&data), "{lock}");
    let all = format!("1.0.0 {data} --root={data} -v a b /srv/x");
    assert_eq!(call(&world, "weather.forecast"), all);
    // Another version keeps them, and the same source takes what it is given.
    bundle(&world, "w.mcpb", "2.0.0", "{}", &[]);
    ok(&world, &["update", "weather", "--yes"]);
    assert_eq!(call(&world, "weather.forecast"), all.replace("1.0.0", "2.0.0"));
    let granted =
        ok(&world, &["add", "mcpb:w.mcpb", "--yes", "--allow", "fs:read:data", "--", "./data"]);
    assert!(!granted.contains("may not read"), "{granted}");
    assert_eq!(call(&world, "weather.forecast"), format!("2.0.0 {data}"));
    ok(&world, &["add", "mcpb:w.mcpb", "--yes"]);
    assert_eq!(call(&world, "weather.forecast"), "2.0.0");
}

#[test]
fn only_programs_get_arguments() {
    let world = with_arguments();
    folder(&world, "1.0.0", "[]");
    refused(
        &world,
        &["add", "./src/greet", "--yes", "--", "x"],
        &["greet: arguments are for", "kind folder"],
    );
    refused(&world, &["add", "mcpb:w.mcpb", "--yes", "--", "a\nb"], &["a\\nb", "control characters"]);
    assert!(!world.path("orla.lock").exists());
}
