//! `orla add` reads the output of `orla publish`.

use orla_e2e::World;
use serde_json::Value;

use super::registry::Registry;
use super::{bundle, call, folder, ok, project, refused};
use crate::sh;

const NAME: [&str; 2] = ["--name", "io.github.acme/weather"];

/// Publishes to a substitute registry, and adds the server from there.
fn round_trip(world: &World, arguments: &[&str], short: &str, tool: &str) -> String {
    let registry = Registry::start();
    let name = format!("io.github.acme/{short}");
    let url = format!("{}/files/it.mcpb", registry.url());
    let output = ok(world, &[&["publish"], arguments, &["--name", &name, "--url", &url]].concat());
    let server: Value = serde_json::from_str(&world.read("server.json")).expect("it is JSON");
    let version = server["version"].as_str().expect("a version");
    registry.serve(
        "/files/it.mcpb",
        &std::fs::read(world.path(format!("{short}-{version}.mcpb"))).expect("it was written"),
    );
    registry.add_server(&server);
    let other = project();
    ok(&other, &["add", &name, "--registry", &registry.url(), "--yes"]);
    let said = call(&other, tool);
    assert!(output.contains("server.json"), "{output}");
    said
}

#[test]
fn a_folder_is_published_and_added_again() {
    let world = project();
    folder(&world, "1.0.0", "[]");
    assert_eq!(round_trip(&world, &["src/greet"], "greet", "greet"), "greetings 1.0.0");
    let server: Value = serde_json::from_str(&world.read("server.json")).unwrap();
    let schema = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json";
    assert_eq!((&server["$schema"], &server["description"]), (&schema.into(), &"Greets.".into()));
    assert_eq!(server["packages"][0]["registryType"], "mcpb");
    refused(
        &world,
        &["publish", "src/greet", "--name", "a/b", "--version", "2.0.0"],
        &["version 1.0.0"],
    );
}

#[test]
fn a_tool_and_the_tools_of_a_project_are_published() {
    let greet = "#!/bin/sh\n# /// orla\n# description: Greets.\n# ///\necho hi\n";
    let world = project().tool("greet.sh", greet).tool("bye.sh", sh("echo bye"));
    let given = ["--version", "1.0.0", "--description", "Greets."];
    let one = [&["tools/greet.sh"], &given[..]].concat();
    assert_eq!(round_trip(&world, &one, "greet", "greet"), "hi");
    world.remove("server.json");
    let all = ["--version", "1.0.0", "--description", "Two tools."];
    assert_eq!(round_trip(&world, &all, "two", "two.bye"), "bye");
    refused(
        &world,
        &["publish", "tools/greet.sh", "--name", "a/b", "--url", "https://a.example"],
        &["--version"],
    );
    world.write("tools/.env", "TOKEN=x", 0o644);
    refused(
        &world,
        &[&["publish"], &all[..], &NAME, &["--url", "https://a.example"]].concat(),
        &[".env", "private"],
    );
}

#[test]
fn a_bundle_of_another_kind_is_published_as_it_is() {
    let world = project();
    bundle(&world, "w.mcpb", "1.0.0", "{}", &[]);
    let unpack = "import zipfile; zipfile.ZipFile('w.mcpb').extractall('w')";
    let status =
        std::process::Command::new("python3").args(["-c", unpack]).current_dir(world.dir()).status();
    assert!(status.unwrap().success());
    assert_eq!(round_trip(&world, &["w"], "weather", "weather.forecast"), "1.0.0 no key");
}

#[test]
fn nothing_is_overwritten_unasked_or_written_without_being_meant() {
    let world = project();
    folder(&world, "1.0.0", "[]");
    let publish = [&["publish", "src/greet", "--url", "https://a.example/x.mcpb"], &NAME[..]].concat();
    let output = world.run(&[&publish[..], &["--dry-run"]].concat());
    assert!(output.code == Some(0) && output.stdout.contains("\"fileSha256\""), "{}", output.all());
    assert!(!world.path("server.json").exists() && !world.path("weather-1.0.0.mcpb").exists());
    ok(&world, &publish);
    ok(&world, &publish);
    world.write("src/greet/main.sh", sh("echo other"), 0o755);
    let before = world.read("server.json");
    refused(&world, &publish, &["already", "--force"]);
    assert_eq!(world.read("server.json"), before);
    ok(&world, &[&publish[..], &["--force"]].concat());
    assert_ne!(world.read("server.json"), before);
    for (change, word) in [
        (["--name", "weather"], "--name"),
        (["--url", "http://a.example/x"], "--url"),
        (["--description", &"x".repeat(101)], "--description"),
    ] {
        let given = [NAME, ["--url", "https://a.example/x.mcpb"], change];
        let given =
            given.iter().filter(|pair| pair[0] != change[0] || **pair == change).flatten().copied();
        let arguments: Vec<&str> =
            ["publish", "src/greet", "--output", "new"].into_iter().chain(given).collect();
        refused(&world, &arguments, &[word]);
    }
    assert!(!world.path("new").exists());
}

#[test]
fn the_commit_is_tagged_unless_that_would_say_something_else() {
    let world = project();
    folder(&world, "1.0.0", "[]");
    let git = |arguments: &[&str]| {
        let mut git = std::process::Command::new("git");
        git.current_dir(world.path("src/greet")).env("HOME", world.dir());
        git.args(["-c", "user.name=x", "-c", "user.email=x@x.example"]).args(arguments);
        let output = git.output().expect("git runs");
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    git(&["init", "-q", "-b", "main"]);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "one"]);
    git(&["remote", "add", "origin", "git@github.com:acme/tools.git"]);
    let publish = ["publish", "src/greet"];
    world.write("src/greet/main.sh", sh("echo other"), 0o755);
    refused(&world, &publish, &["not committed", "--no-tag"]);
    assert!(!world.path("server.json").exists());
    git(&["commit", "-q", "-a", "-m", "two"]);
    // Files outside of the commit are not published without consent.
    world.write("src/greet/notes.txt", "x", 0o644);
    refused(&world, &publish, &["notes.txt is not in the repository", "--no-tag"]);
    world.write("src/greet/.gitignore", "credentials.json\nnotes.txt\n", 0o644);
    git(&["add", ".gitignore"]);
    git(&["commit", "-q", "-m", "ignore"]);
    world.write("src/greet/credentials.json", "{}", 0o644);
    world.write("src/greet/server.json", "{\"port\": 1}", 0o644);
    git(&["add", "server.json"]);
    git(&["commit", "-q", "-m", "settings"]);
    let output = ok(&world, &publish);
    assert!(output.contains("credentials.json is left out: git ignores it"), "{output}");
    let names = "import zipfile; print(zipfile.ZipFile('greet-1.0.0.mcpb').namelist())";
    let mut python = std::process::Command::new("python3");
    let listed = python.args(["-c", names]).current_dir(world.dir()).output().expect("python3 runs");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("server.json") && !listed.contains("credentials"), "{listed}");
    assert!(!listed.contains("notes.txt"), "{listed}");
    assert_eq!(git(&["tag", "--points-at", "HEAD"]).trim(), "v1.0.0");
    let server: Value = serde_json::from_str(&world.read("server.json")).unwrap();
    assert_eq!(server["name"], "io.github.acme/greet");
    let url = "https://github.com/acme/tools/releases/download/v1.0.0/greet-1.0.0.mcpb";
    assert_eq!(server["packages"][0]["identifier"], url);
    assert_eq!(server["repository"]["url"], "https://github.com/acme/tools");
    ok(&world, &publish);
    world.write("src/greet/more", "x", 0o644);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "three"]);
    refused(&world, &[&publish[..], &["--force"]].concat(), &["v1.0.0 is at another commit"]);
    ok(&world, &[&publish[..], &["--force", "--no-tag"]].concat());
}

#[test]
fn a_repository_decides_what_is_published_in_every_state() {
    let world = project();
    folder(&world, "1.0.0", "[]");
    let inside = |directory: &str, arguments: &[&str]| {
        let mut git = std::process::Command::new("git");
        git.current_dir(world.path(directory)).env("HOME", world.dir());
        git.args(["-c", "user.name=x", "-c", "user.email=x@x.example"]).args(arguments);
        assert!(git.output().expect("git runs").status.success(), "{arguments:?}");
    };
    let git = |arguments: &[&str]| inside("src/greet", arguments);
    git(&["init", "-q", "-b", "main"]);
    git(&["remote", "add", "origin", "git@github.com:acme/tools.git"]);
    // What is ignored may be what no package may have.
    world.write("src/greet/.gitignore", "node_modules\nvendored\n", 0o644);
    world.write("src/greet/node_modules/x.js", "x", 0o644);
    std::os::unix::fs::symlink("../x.js", world.path("src/greet/node_modules/bin")).expect("a link");
    world.write("src/greet/vendored/x.js", "x", 0o644);
    inside("src/greet/vendored", &["init", "-q"]);
    inside("src/greet/vendored", &["add", "."]);
    inside("src/greet/vendored", &["commit", "-q", "-m", "one"]);
    // There is no commit yet.
    let output = ok(&world, &["publish", "src/greet", "--no-tag", "--dry-run"]);
    for name in ["node_modules/bin", "node_modules/x.js", "vendored/"] {
        assert!(output.contains(&format!("{name} is left out")), "{output}");
    }
    assert!(!output.contains("vendored/x.js"), "{output}");
    // A tool may be named without a directory.
    world.write("src/greet/bye.sh", sh("echo bye"), 0o755);
    let tool = ["publish", "bye.sh", "--version", "1.0.0", "--description", "Bye."];
    let world = world.through(&["sh", "-c", "cd src/greet && exec \"$@\"", "--"]);
    refused(&world, &tool, &["bye.sh is not in the repository"]);
}
