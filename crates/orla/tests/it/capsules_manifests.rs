//! Packages: their places, their manifests, and the refused ones (row C7).

use std::os::unix::fs::symlink;

use orla_e2e::World;
use serde_json::{Value, json};

use crate::capsule::{bare, manifest, with};
use crate::{sh, world};

fn yaml(name: &str, version: &str, more: &str) -> String {
    format!("name: {name}\nversion: {version}\nentrypoint: run.sh\n{more}")
}

/// Returns a simple package that prints this.
fn package(world: World, directory: &str, manifest: &str, says: &str) -> World {
    world.write(format!("{directory}/run.sh"), sh(&format!("echo {says} \"$@\" $LEVEL; pwd")), 0o755);
    world.write(format!("{directory}/tool.yaml"), manifest, 0o644);
    world
}

#[test]
fn of_several_versions_the_highest_is_served_here_and_at_home() {
    let mut world = world();
    for version in ["1.9.0", "1.10.0-rc.1", "1.10.0", "1.2.0"] {
        let directory = format!("tools/cap/{version}");
        world = package(world, &directory, &yaml("cap", version, ""), version);
    }
    for version in ["0.1.0", "0.2.0"] {
        let directory = format!(".orla/tools/home/{version}");
        world = package(world, &directory, &yaml("home", version, ""), version);
    }
    let server = world.serve();
    for mut client in server.clients() {
        assert_eq!(client.tool_names(), ["cap", "home"]);
        assert!(client.call("cap", json!({})).stdout().starts_with("1.10.0\n"));
        assert!(client.call("home", json!({})).stdout().starts_with("0.2.0\n"));
    }
    // The next version takes effect with a reload.
    server.write("tools/cap/2.0.0/run.sh", sh("echo two"), 0o755);
    server.write("tools/cap/2.0.0/tool.yaml", yaml("cap", "2.0.0", ""), 0o644);
    server.reload();
    assert_eq!(server.client().call("cap", json!({})).stdout(), "two\n");
}

#[test]
fn a_simple_package_runs_like_a_tool_with_its_arguments_environment_and_schemas() {
    let more = "description: Does it.\nmcp:\n  input_schema:\n    path: string\n  output_schema: {type: object}\n\
                runtime:\n  mode: simple\n  args: [--fast, 'a b']\n  env: {LEVEL: high}\n";
    let server = package(world(), "tools/cap", &yaml("cap", "1.0.0", more), "ran").serve();
    for mut client in server.clients() {
        let tool = client.tool("cap");
        assert_eq!(tool["description"], "Does it.");
        assert_eq!(tool["inputSchema"]["properties"]["path"]["type"], "string", "{tool}");
        let refused = client.call("cap", json!({"path": 7}));
        assert!(refused.is_error() && refused.sentence().contains("input.path"), "{}", refused.json);
        let text = client.call("cap", json!({"path": "x"})).text();
        assert!(text.contains("ran --fast a b --path x high"), "{text}");
    }
    assert!(server.tool_processes().is_empty(), "it is no capsule");
}

#[test]
fn a_packages_name_wins_over_a_file_and_the_first_of_two_packages_is_served() {
    let world = package(world(), "tools/b", &yaml("cap", "9.0.0", ""), "b");
    let world = package(world, "tools/a", &yaml("cap", "1.0.0", ""), "a").tool("cap", sh("echo file"));
    let server = world.serve();
    let mut client = server.client();
    assert!(client.call("cap", json!({})).stdout().starts_with("a\n"));
    let names = client.tool_names();
    assert_eq!(names.len(), 2, "the file has another name: {names:?}");
    assert_eq!(client.call(&names[1], json!({})).stdout(), "file\n");
    server.log_says(&["tools/b", "tools/a", "cap"]);
    server.log_says(&["tools/cap", "served as"]);
}

#[test]
fn tool_yaml_wins_over_orla_tool_json_beside_it() {
    let world = with(world(), "not even JSON", &bare().python());
    let yaml = "name: cap\nversion: 1.0.0\nentrypoint: main.py\nruntime: {mode: capsule}\n";
    let server = world.file("tools/cap/tool.yaml", yaml).serve();
    assert!(server.client().call("cap", json!({})).text().starts_with("n=1 "));
    server.log_says(&["warn", "orla-tool.json", "tool.yaml"]);
}

#[test]
fn a_mark_at_the_beginning_is_accepted_and_an_unknown_field_is_a_warning() {
    let text = "\u{feff}".to_owned() + &manifest(json!({"colour": "red", "startup_timeout": 5}));
    let server = with(world(), &text, &bare().python()).serve();
    assert!(server.client().call("cap", json!({})).text().starts_with("n=1 "));
    server.log_says(&["warn", "orla-tool.json:1:", "colour", "unknown field"]);
    server.log_says(&["startup_timeout: unknown field", "did you mean startup_timeout_ms?"]);
}

#[test]
fn nothing_is_written_into_a_package_and_what_is_in_it_is_no_tool() {
    let world = with(world(), &manifest(json!({})), &bare().python());
    world.write("tools/cap/helper", sh("echo helper"), 0o755);
    let server = world.serve();
    let names = || {
        let mut names: Vec<_> = std::fs::read_dir(server.path("tools/cap"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let before = names();
    assert_eq!(server.client().tool_names(), ["cap"]);
    server.client().call("cap", json!({}));
    server.reload();
    assert_eq!(names(), before);
}

#[test]
fn c7_a_broken_manifest_fails_only_its_own_package_and_names_the_place() {
    let json = |name: &str, more: &str| {
        format!(
            "{{\"name\": \"{name}\",\n \"version\": \"1.0.0\",\n \"entrypoint\": \"main.py\"{more}}}"
        )
    };
    // The package's name, its manifest, and the expected messages.
    let rows: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("none", b"{}".to_vec(), &[":1:1: name: missing"]),
        (
            "version",
            b"{\"name\": \"a\",\n \"entrypoint\": \"main.py\"}".to_vec(),
            &[":1:1: version: missing"],
        ),
        (
            "type",
            b"{\"name\": 7,\n \"version\": \"1.0.0\", \"entrypoint\": \"main.py\"}".to_vec(),
            &[":1:10: name: expected text"],
        ),
        ("args", json("args", ",\n \"args\": \"-n\"").into(), &[":4:10: args: expected a list"]),
        ("env", json("env", ",\n \"env\": {\"A\": [1]}").into(), &[":4:9: env: A: expected text"]),
        ("comma", json("comma", ",\n").into(), &[":4:1: trailing comma"]),
        ("twice", json("twice", ",\n \"name\": \"other\"").into(), &[":4:2: ", "name"]),
        (
            "semver",
            json("semver", "").replace("1.0.0", "1.0").into(),
            &[":2:13: version: expected a semantic version"],
        ),
        (
            "mode",
            json("mode", ",\n \"hot_load\": {\"mode\": \"patch\"}").into(),
            &[":4:23: hot_load.mode: expected restart"],
        ),
        (
            "timeout",
            json("timeout", ",\n \"startup_timeout_ms\": \"5s\"").into(),
            &[":4:24: startup_timeout_ms: expected milliseconds"],
        ),
        (
            "bytes",
            [b"{\"name\": \"".as_slice(), b"\xff\"}"].concat(),
            &[":1:11: not UTF-8 (at byte 10)"],
        ),
        ("utf16", "{}".encode_utf16().flat_map(u16::to_le_bytes).chain([0xff]).collect(), &[":1:"]),
        ("empty", Vec::new(), &[":1:1: "]),
        ("list", b"[]".to_vec(), &[":1:1: ", "expected keys with values"]),
        ("deep", "[".repeat(100_000).into(), &[":1:"]),
        (
            "outside",
            json("outside", "").replace("main.py", "../../bin/sh").into(),
            &[":3:16: entrypoint: expected a path within the package"],
        ),
        (
            "absolute",
            json("absolute", "").replace("main.py", "/bin/sh").into(),
            &[":3:16: entrypoint: expected a path within the package"],
        ),
        (
            "missing",
            json("missing", "").replace("main.py", "nothing").into(),
            &[":3:16: entrypoint: nothing does not exist"],
        ),
        (
            "mere",
            json("mere", "").replace("main.py", "mere").into(),
            &[":3:16: entrypoint: mere is not executable"],
        ),
        (
            "folder",
            json("folder", "").replace("main.py", "folder").into(),
            &[":3:16: entrypoint: folder is not a regular file"],
        ),
        (
            "link",
            json("link", "").replace("main.py", "link").into(),
            &[":3:16: entrypoint: link is a link that leads out of the package"],
        ),
    ];
    let mut world = world().tool("fine", sh("echo fine"));
    for (name, manifest, _) in &rows {
        world = world.tool(format!("{name}/main.py"), bare().python());
        world.write(format!("tools/{name}/orla-tool.json"), manifest, 0o644);
    }
    world.write("tools/mere/mere", "", 0o644);
    world.write("tools/folder/folder/x", "", 0o644);
    symlink("/bin/sh", world.path("tools/link/link")).unwrap();
    world = with(world, &manifest(json!({})), &bare().python());

    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    for (name, _, words) in &rows {
        let place = format!("tools/{name}/orla-tool.json");
        let line = checked.stderr.lines().find(|line| line.contains(&place));
        let line = line.unwrap_or_else(|| panic!("nothing is said of {name}: {}", checked.stderr));
        assert!(line.contains(&format!("{place}{}", words[0])), "{name}: {line}");
        assert!(words.iter().all(|word| line.contains(word)), "{name}: {line}");
    }
    let reason = "tools/semver/orla-tool.json:2:13: version: expected a semantic version";
    for command in [["call", "semver"], ["describe", "semver"]] {
        let done = world.run(&command);
        let is_said = done.all().contains("semver is unavailable: ") && done.all().contains(reason);
        assert!(is_said, "{}", done.all());
    }
    let server = world.serve();
    for mut client in server.clients() {
        assert_eq!(client.tool_names(), ["cap", "fine"]);
        assert!(client.call("cap", json!({})).text().starts_with("n="));
        let called = client.call("semver", json!({}));
        assert!(called.is_error() && called.sentence().contains(reason), "{}", called.json);
    }
    for (name, ..) in &rows {
        server.log_says(&[&format!("tools/{name}/orla-tool.json:")]);
    }
}

#[test]
fn a_misspelt_permission_or_limit_makes_the_capsule_unavailable() {
    let mut world = world();
    for (name, more) in [
        ("word", json!({"permissions": ["fs:red:/"]})),
        ("limit", json!({"limits": {"memory": "much"}})),
    ] {
        let text = manifest(more).replace("\"cap\"", &format!("\"{name}\""));
        world = world.tool(format!("{name}/main.py"), bare().python());
        world.write(format!("tools/{name}/orla-tool.json"), text, 0o644);
    }
    let doctor = world.run(&["doctor", "--json"]);
    let doctor: Value = serde_json::from_str(&doctor.stdout).unwrap();
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let server = world.serve();
    let status = server.http().get("/status").json();
    for name in ["word", "limit"] {
        let row =
            |rows: &Value| rows.as_array().unwrap().iter().find(|row| row["name"] == name).cloned();
        let shown = row(&status["capabilities"]).unwrap_or_else(|| panic!("{status}"));
        assert_eq!((&shown["state"], &shown["kind"]), (&json!("unavailable"), &json!("capsule")));
        assert!(shown["source"].as_str().unwrap().ends_with(&format!("tools/{name}")), "{shown}");
        let place = format!("tools/{name}/orla-tool.json:1:");
        assert!(shown["last_failure"].as_str().unwrap().contains(&place), "{shown}");
        assert!(checked.stderr.contains(&place), "{}", checked.stderr);
        let examined = row(&doctor["capabilities"]).unwrap_or_else(|| panic!("{doctor}"));
        assert_eq!(examined["sandbox"], "unavailable", "{examined}");
        let called = server.client().call(name, json!({}));
        assert!(called.is_error() && called.sentence().contains(&place), "{}", called.json);
    }
    assert!(server.client().tool_names().is_empty());
    assert!(server.tool_processes().is_empty());
}

#[test]
fn the_wall_limit_of_a_capsule_is_the_time_of_each_of_its_calls() {
    let slow = || bare().call("time.sleep(3)").python();
    let limited = |more: Value| with(world(), &manifest(more), &slow());
    let worlds = [
        limited(json!({"limits": {"wall": 0.3}})),
        limited(json!({})).config("tools: {cap: {limits: {wall: 0.3}}}\n"),
        limited(json!({"limits": {"wall": 60}})).config("tools: {cap: {timeout: 0.3}}\n"),
    ];
    for world in worlds {
        let server = world.serve();
        let mut client = server.client();
        // The time of a call includes a start that it waits for.
        client.tool_names();
        let late = client.call("cap", json!({}));
        assert!(late.sentence().ends_with("timed out after 0.3 s"), "{}", late.json);
    }
}
