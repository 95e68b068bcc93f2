//! When a call fails, the access that the sandbox of a package or of a configured server denied is
//! reported.

use orla_e2e::World;
use serde_json::Value;

use super::{SERVER, bundle, ok, project, refused};

/// A server whose tool fails with the text `failing`, and which runs `begin` first.
fn failing(world: &World, begin: &str, failing: &str) {
    let says = r#""result": {"content": [{"type": "text", "text": "VERSION " + os.environ.get("KEY", "no key")}]}"#;
    assert!(SERVER.contains(says));
    let fails =
        format!(r#""result": {{"content": [{{"type": "text", "text": {failing}}}], "isError": True}}"#);
    let read = format!(
        "import sys, json, os\ndef tried():\n    try: return open({:?}).read()\n    except OSError as error: return str(error)\n{begin}\n",
        world.path("data/in").display().to_string()
    );
    let code = SERVER.replace(says, &fails).replacen("import sys, json, os\n", &read, 1);
    world.write("server.py", code, 0o644);
}

/// Returns the sandbox member of the `_meta` of a call.
fn sandbox(world: &World) -> Value {
    let output = world.run(&["call", "weather.forecast", "--raw"]);
    let result: Value = serde_json::from_str(&output.stdout).expect("a result");
    assert_eq!(result["isError"], true, "{result}");
    result["_meta"]["orla/execution"]["sandbox"].clone()
}

#[test]
fn the_permission_that_a_tool_of_a_server_lacked_is_named() {
    let world = project().file("data/in", "inside");
    let data = world.path("data").display().to_string();
    // Going by the result.
    failing(&world, "", r#"json.dumps({"error": tried()})"#);
    bundle(&world, "w.mcpb", "1.0.0", "{}", &[]);
    ok(&world, &["add", "mcpb:w.mcpb", "--yes"]);
    let said = sandbox(&world);
    assert_eq!(said["level"], "enforced", "{said}");
    assert_eq!(said["refused"]["permission"], format!("fs:read:{data}"), "{said}");
    let sentence = format!(
        "its sandbox probably did not let it read below {data}; the permission fs:read:{data} allows that"
    );
    refused(&world, &["call", "weather.forecast"], &["Permission denied", &sentence]);
    ok(&world, &["remove", "weather"]);
    let entry = "mcpServers:\n  weather:\n    command: python3\n    args: [server.py]\n";
    world.write("orla.yaml", format!("{entry}    permissions: []\n"), 0o644);
    assert_eq!(sandbox(&world)["refused"]["permission"], format!("fs:read:{data}"));
    // Nothing was denied, or nothing is confined.
    world.write("orla.yaml", format!("{entry}    permissions: ['fs:read:data']\n"), 0o644);
    assert_eq!(sandbox(&world), Value::Null);
    world.write("orla.yaml", entry, 0o644);
    assert_eq!(sandbox(&world), Value::Null);
}

#[test]
fn the_permission_that_a_package_lacked_at_its_start_is_named() {
    let world = project().file("data/in", "inside");
    let data = world.path("data").display().to_string();
    failing(&world, &format!("open({:?})", format!("{data}/in")), "tried()");
    bundle(&world, "w.mcpb", "1.0.0", "{}", &[]);
    let words = ["with no permissions", &format!("the permission fs:read:{data} allows that")];
    refused(&world, &["add", "mcpb:w.mcpb", "--yes"], &words);
    ok(&world, &["add", "mcpb:w.mcpb", "--yes", "--allow", &format!("fs:read:{data}")]);
}
