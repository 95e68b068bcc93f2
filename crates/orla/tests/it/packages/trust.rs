//! The limits of a lock that comes with a project.

use super::registry::{Mode, Registry, sha256};
use super::{bundle, call, folder, ok, project, refused};
use crate::sh;

#[test]
fn an_archive_that_others_locked_gets_no_setting_before_the_user_agrees() {
    let settings =
        r#"{"user_config": {"key": {"type": "string", "sensitive": true, "required": true}}}"#;
    let world = project();
    let registry = Registry::start();
    let file = bundle(&world, "w.mcpb", "1.0.0", settings, &[]);
    registry.add("io.github.acme/weather", "1.0.0", &std::fs::read(file).unwrap());
    let add = ["add", "io.github.acme/weather", "--registry", &registry.url(), "--yes"];
    let output = world.run(&add).stderr;
    let name = output.split("orla secret set ").nth(1).and_then(|rest| rest.split('`').next());
    let name = name.expect("a command").to_owned();
    assert_eq!(world.run_with_input(&["secret", "set", &name], b"s3cr3t-k3y-0123").code, Some(0));
    ok(&world, &add);
    assert_eq!(call(&world, "weather.forecast"), "1.0.0 [redacted]");
    ok(&world, &["sync"]);
    // Another archive under the same name and source, as a change of the lock alone brings it.
    let evil =
        std::fs::read(bundle(&world, "evil.mcpb", "1.0.0", settings, &["100644|evil|x"])).unwrap();
    registry.serve("/files/evil.mcpb", &evil);
    let lock = world.read("orla.lock");
    let value = |key: &str| {
        let line = lock.lines().find(|line| line.trim().starts_with(&format!("{key}: ")));
        line.and_then(|line| line.split_once(": ")).expect("it is there").1.trim_matches('"').to_owned()
    };
    let digest = sha256(&evil);
    let lock = lock.replace(&value("sha256"), &digest);
    let lock = lock.replace(&value("resolved"), &format!("{}/files/evil.mcpb", registry.url()));
    world.write("orla.lock", lock, 0o644);
    let output = ok(&world, &["sync"]);
    assert!(output.contains("before you agree"), "{output}");
    refused(&world, &["call", "weather.forecast"], &["orla sync"]);
    // A person may agree to it, having seen it.
    let output = ok(&world, &["sync", "--yes"]);
    assert!(output.contains("orla secret set weather-"), "{output}");
    assert_eq!(call(&world, "weather.forecast"), "1.0.0 [redacted]");
}

#[test]
fn a_package_takes_no_name_of_the_user() {
    let world = project().tool("deploy.sh", sh("echo mine"));
    folder(&world, "1.0.0", "[]");
    let add = |name: &'static str| ["add", "./src/greet", "--yes", "--name", name];
    refused(&world, &add("deploy"), &["a tool has the name deploy", "--name"]);
    refused(&world, &add("rtfs"), &["has the name rtfs"]);
    assert!(!world.path("orla.lock").exists());
    ok(&world, &add("greet"));
    // The user's own comes later, and wins.
    let world = world.tool("greet.sh", sh("echo mine, too"));
    assert_eq!(call(&world, "greet"), "mine, too");
    refused(&world, &["check"], &["greet of orla.lock: a tool has this name"]);
    world.remove("tools/greet.sh");
    assert_eq!(call(&world, "greet"), "greetings 1.0.0");
    // A tool that is renamed, and one whose name reads like that of a tool of the package.
    world.write("tools/mine.sh", sh("echo mine"), 0o755);
    world.write("orla.yaml", "tools: {mine: {rename: greet}}\n", 0o644);
    refused(&world, &["check"], &["greet of orla.lock: a renamed tool has this name"]);
    world.write("orla.yaml", "log_level: info\n", 0o644);
    world.write("tools/greet__it.sh", sh("echo mine"), 0o755);
    refused(&world, &["check"], &["greet of orla.lock: a tool has this name"]);
}

#[test]
fn executables_of_others_take_no_name_of_a_package_of_the_user() {
    let world = project();
    world.write("src/kit/hello.sh", sh("echo theirs"), 0o755);
    ok(&world, &["add", "./src/kit", "--yes"]);
    assert_eq!(call(&world, "kit.hello"), "theirs");
    folder(&world, "1.0.0", "[]");
    let yaml = world.read("src/greet/tool.yaml").replace("name: greet", "name: kit");
    world.write("tools/kit/tool.yaml", yaml, 0o644);
    world.write("tools/kit/main.sh", sh("echo mine"), 0o755);
    assert_eq!(call(&world, "kit"), "mine");
    refused(&world, &["call", "kit.hello"], &["kit"]);
    refused(&world, &["check"], &["kit of orla.lock", "tools/kit", "has this name"]);
}

#[test]
fn another_version_comes_from_the_registry_of_the_lock() {
    let world = project();
    let registry = Registry::start();
    for version in ["1.0.0", "1.1.0"] {
        let file = bundle(&world, &format!("w-{version}.mcpb"), version, "{}", &[]);
        registry.add("com.corp/weather", version, &std::fs::read(file).unwrap());
    }
    let url = registry.url();
    let output = ok(&world, &["add", "com.corp/weather@1.0.0", "--registry", &url, "--yes"]);
    assert!(output.contains(&format!("  registry     {url}\n")), "{output}");
    ok(&world, &["add", "com.corp/weather@1.1.0", "--yes"]);
    assert_eq!(call(&world, "weather.forecast"), "1.1.0 no key");
    assert!(world.read("orla.lock").contains(&url));
    let other = Registry::start();
    let file = bundle(&world, "w-2.mcpb", "2.0.0", "{}", &[]);
    other.add("com.corp/weather", "2.0.0", &std::fs::read(file).unwrap());
    let lock = world.read("orla.lock");
    refused(
        &world,
        &["add", "com.corp/weather@2.0.0", "--registry", &other.url(), "--yes"],
        &["is there already", &url],
    );
    assert_eq!(world.read("orla.lock"), lock);
}

/// A directory of a project is no source that the lock does not name as one.
#[test]
fn a_directory_takes_the_place_of_no_other_source() {
    let world = project();
    folder(&world, "1.0.0", "[]");
    ok(&world, &["add", "./src/greet", "--yes"]);
    let lock = world.read("orla.lock").replace("./src/greet", "npm:greet");
    world.write("orla.lock", lock, 0o644);
    folder(&world, "2.0.0", "[]");
    std::fs::rename(world.path("src/greet"), world.path("npm:greet")).expect("a directory");
    let world = world.env("PATH", "/nowhere");
    for command in [&["update", "--yes"][..], &["outdated"]] {
        refused(&world, command, &["npm"]);
    }
    assert!(world.read("orla.lock").contains("1.0.0"));
}

#[test]
fn only_the_tools_that_changed_are_held_back_on_a_second_clone() {
    let world = super::folders::capsule("");
    ok(&world, &["add", "./src/greet", "--yes"]);
    assert!(
        world.read("orla.lock").contains("    tools:\n      bye: \""),
        "{}",
        world.read("orla.lock")
    );
    for entry in std::fs::read_dir(world.path(".orla/packages")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let world = world.env("TOOLS", "hello,more");
    assert_eq!(call(&world, "greet.hello"), "hello nothing");
    refused(&world, &["call", "greet.more"], &["orla update greet"]);
    let output = world.run(&["update"]).all();
    assert!(output.contains("more: Greets.") && output.contains("- bye"), "{output}");
    assert!(!output.contains("hello: Greets."), "only what changed is shown: {output}");
}

#[test]
fn a_broken_lock_stops_packages_alone() {
    let world = project().tool("mine.sh", sh("echo mine"));
    folder(&world, "1.0.0", "[]");
    ok(&world, &["add", "./src/greet", "--yes"]);
    world.write("orla.lock", "packages: {", 0o644);
    assert_eq!(call(&world, "mine"), "mine");
    assert!(ok(&world, &["list"]).contains("orla.lock:"));
    refused(&world, &["check"], &["orla.lock:"]);
    refused(&world, &["call", "greet"], &["greet", "orla.lock:"]);
}

#[test]
fn changed_tools_can_be_accepted_while_the_source_is_down() {
    let world = project().env("ORLA_PASS_ENV", "E2E_*,SAYS").env("SAYS", "Old.");
    let registry = Registry::start();
    let file = bundle(&world, "w.mcpb", "1.0.0", "{}", &[]);
    registry.add("io.github.acme/weather", "1.0.0", &std::fs::read(file).unwrap());
    ok(&world, &["add", "io.github.acme/weather", "--registry", &registry.url(), "--yes"]);
    registry.set(Mode::Fails);
    let world = world.env("SAYS", "New.");
    refused(&world, &["call", "weather.forecast"], &["orla update weather"]);
    refused(&world, &["update", "--yes"], &["500"]);
    assert_eq!(call(&world, "weather.forecast"), "1.0.0 no key");
}

#[test]
fn outdated_is_for_programs_too() {
    let world = project();
    let registry = Registry::start();
    let file = bundle(&world, "w.mcpb", "1.0.0", "{}", &[]);
    let bytes = std::fs::read(file).unwrap();
    registry.add("io.github.acme/weather", "1.0.0", &bytes);
    ok(&world, &["add", "io.github.acme/weather", "--registry", &registry.url(), "--yes"]);
    let rows = || -> serde_json::Value {
        serde_json::from_str(&world.run(&["outdated", "--json"]).stdout).expect("it is JSON")
    };
    assert_eq!((&rows()[0]["now"], &rows()[0]["outdated"]), (&"1.0.0".into(), &false.into()));
    let newer = bundle(&world, "newer.mcpb", "1.1.0", "{}", &[]);
    registry.add("io.github.acme/weather", "1.1.0", &std::fs::read(newer).unwrap());
    assert_eq!((&rows()[0]["now"], &rows()[0]["outdated"]), (&"1.1.0".into(), &true.into()));
    // The same version with another bundle is something else, too.
    ok(&world, &["update", "--yes"]);
    assert_eq!(rows()[0]["outdated"], false);
    let other = bundle(&world, "other.mcpb", "1.1.0", "{}", &["100644|more|x"]);
    registry.add("io.github.acme/weather", "1.1.0", &std::fs::read(other).unwrap());
    assert_eq!((&rows()[0]["now"], &rows()[0]["outdated"]), (&"1.1.0".into(), &true.into()));
    registry.set(Mode::Fails);
    assert!(rows()[0]["error"].to_string().contains("500"));
    refused(&world, &["outdated"], &["weather: ", "500"]);
}

#[test]
fn another_version_keeps_what_was_granted() {
    let world = project();
    let registry = Registry::start();
    for version in ["1.0.0", "1.1.0"] {
        let file = bundle(&world, &format!("w-{version}.mcpb"), version, "{}", &[]);
        registry.add("io.github.acme/weather", version, &std::fs::read(file).unwrap());
    }
    let url = registry.url();
    let add =
        |source: &'static str| ["add", source, "--registry", &url, "--yes", "--allow", "net:a.example"];
    ok(&world, &add("io.github.acme/weather@1.0.0"));
    ok(&world, &add("io.github.acme/weather@1.1.0")[..5]);
    assert_eq!(call(&world, "weather.forecast"), "1.1.0 no key");
    let lock = world.read("orla.lock");
    assert!(lock.contains("weather@1.1.0") && lock.contains("net:a.example"), "{lock}");
    refused(&world, &["add", "mcpb:w-1.0.0.mcpb", "--yes"], &["is there already, from io.github.acme"]);
}

#[test]
fn an_update_does_not_turn_a_program_into_a_remote_server() {
    let world = project();
    let registry = Registry::start();
    let file = bundle(&world, "w-1.0.0.mcpb", "1.0.0", "{}", &[]);
    registry.add("io.github.acme/weather", "1.0.0", &std::fs::read(file).unwrap());
    let url = registry.url();
    ok(&world, &["add", "io.github.acme/weather", "--registry", &url, "--yes"]);
    let far = crate::world().tool("hello.sh", sh("echo from afar")).serve();
    let place = format!("http://{}/mcp", far.address());
    let remotes = serde_json::json!([{"type": "streamable-http", "url": place}]);
    registry.add_remote("io.github.acme/weather", "1.1.0", &remotes);
    let lock = world.read("orla.lock");
    refused(&world, &["update", "--yes"], &["weather", "was a bundle", "remote"]);
    assert_eq!(world.read("orla.lock"), lock);
    assert_eq!(call(&world, "weather.forecast"), "1.0.0 no key");
}

#[test]
fn a_remote_server_is_locked_with_its_headers() {
    let far = crate::world().tool("hello.sh", sh("echo from afar")).serve();
    let registry = Registry::start();
    let token = serde_json::json!({"name": "X-Token", "value": "Bearer {token}", "variables": {"token": {"isRequired": true, "isSecret": true}}});
    let place =
        |url: &str| serde_json::json!([{"type": "streamable-http", "url": url, "headers": [token]}]);
    registry.add_remote("io.github.acme/far", "1.0.0", &place(&format!("http://{}/mcp", far.address())));
    let world = project();
    let add = ["add", "io.github.acme/far", "--registry", &registry.url(), "--yes"];
    let output = world.run(&add).all();
    for word in [
        "nothing on this machine",
        "127.0.0.1: what its tools are given goes there",
        "orla secret set far-",
    ] {
        assert!(output.contains(word), "{word}: {output}");
    }
    let name = output.split("orla secret set ").nth(1).and_then(|rest| rest.split('`').next()).unwrap();
    assert_eq!(world.run_with_input(&["secret", "set", name], b"s3cr3t-k3y-0123").code, Some(0));
    ok(&world, &add);
    assert_eq!(call(&world, "far.hello"), "from afar");
    let lock = world.read("orla.lock");
    assert!(lock.contains("kind: remote") && !lock.contains("s3cr3t"), "{lock}");
    let other = project();
    other.write("orla.lock", &lock, 0o644);
    let output = ok(&other, &["sync"]);
    assert!(output.contains("before you agree"), "{output}");
    refused(&other, &["call", "far.hello"], &["orla sync"]);
    for (url, words) in [
        ("https://169.254.169.254/mcp", "private address"),
        ("http://a.example/mcp", "https://"),
        ("https://a.example/{tenant}", "variables"),
        ("https://a.example@b.example/mcp", "before its host"),
    ] {
        registry.add_remote("io.github.acme/bad", "1.0.0", &place(url));
        refused(
            &world,
            &["add", "io.github.acme/bad", "--registry", &registry.url(), "--yes"],
            &[words],
        );
    }
}

#[test]
fn a_package_whose_files_were_edited_is_shown_as_unavailable() {
    let world = project();
    folder(&world, "1.0.0", "[]");
    ok(&world, &["add", "./src/greet", "--yes"]);
    bundle(&world, "w.mcpb", "1.0.0", "{}", &[]);
    ok(&world, &["add", "mcpb:w.mcpb", "--yes"]);
    for entry in std::fs::read_dir(world.path(".orla/packages")).unwrap() {
        let directory = entry.unwrap().path();
        if directory.is_dir() {
            std::fs::write(directory.join("more"), "x").unwrap();
        }
    }
    world.write("orla.yaml", "policy: [{allow: ['exec:*', 'mcp:weather']}]\n", 0o644);
    let server = world.serve();
    let status = server.status();
    let rows = status["capabilities"].as_array().unwrap();
    for (name, package) in [("greet", "greet"), ("weather__forecast", "weather")] {
        let row = rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{status}"));
        assert_eq!(row["state"], "unavailable", "{row}");
        let advice = format!("orla update {package}");
        assert!(row["last_failure"].to_string().contains(&advice), "{row}");
    }
    assert_eq!(server.client().tool_names(), [""; 0]);
    assert!(server.run(&["call", "greet"]).all().contains("orla update greet"));
}

#[test]
fn a_lock_has_no_places_of_its_project() {
    let world = project();
    folder(&world, "1.0.0", "[]");
    let git = "cd src/greet && git init -q && git add . && git -c user.name=x -c user.email=x@x.example commit -qm one && git tag v1";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", git]).current_dir(world.dir()).env("HOME", world.dir());
    assert!(shell.status().unwrap().success());
    let url = format!("git:file://{}#v1", world.path("src/greet").display());
    let write = format!("fs:write:{}", world.path("data").display());
    world.write("data/file", "", 0o644);
    ok(&world, &["add", &url, "--yes", "--name", "a", "--allow", &write]);
    let world = world.through(&["env", "-C", "src"]);
    ok(&world, &["add", "./greet", "--yes", "--config", "../orla.yaml", "--name", "b"]);
    ok(&world, &["add", "git:greet", "--yes", "--config", "../orla.yaml", "--name", "c"]);
    let lock = world.read("orla.lock");
    for text in [
        "source: \"git:./src/greet#v1\"",
        "source: ./src/greet\n",
        "source: \"git:./src/greet\"\n",
        "\"fs:write:./data\"",
    ] {
        assert!(lock.contains(text), "{text}: {lock}");
    }
    assert!(!lock.contains(&world.dir().display().to_string()), "{lock}");
}

#[test]
fn a_source_is_locked_once() {
    let world = project();
    folder(&world, "1.0.0", "[]");
    ok(&world, &["add", "./src/greet", "--yes"]);
    refused(
        &world,
        &["add", "./src/greet", "--yes", "--name", "other"],
        &["is there already, as greet"],
    );
}

#[test]
fn a_wider_permission_grants_what_it_covers() {
    let world = project();
    folder(&world, "1.0.0", "['net:a.example', 'fs:read:/usr/share/misc']");
    let add = ["add", "./src/greet", "--yes", "--allow", "net"];
    refused(&world, &add, &["not granted: fs:read:/usr/share/misc"]);
    ok(&world, &[&add[..], &["--allow", "fs:write:/usr/share"]].concat());
    let lock = world.read("orla.lock");
    assert!(lock.contains("net:a.example") && lock.contains("fs:read:/usr/share/misc"), "{lock}");
}
