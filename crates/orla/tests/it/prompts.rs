//! Prompt files: listed, filled in, and what their mistakes cost.

use serde_json::json;

use crate::{sh, world};

const GREETING: &str = "---\ndescription: Greets someone\narguments:\n  - name: who\n    description: Whom to greet\n    required: true\n  - name: tone\ntools: [hello]\n---\nGreet {{who}} in a {{tone}} tone.\n\nThen call {{ who }} again.\n";

#[test]
fn prompts_are_listed_with_their_arguments() {
    let server = world()
        .tool("hello.sh", sh("# Says hello.\necho hello"))
        .file("prompts/greeting.md", GREETING)
        .file("prompts/plain.md", "Just text with {{no}} front matter.\n")
        .file("prompts/notes.txt", "no prompt")
        .serve();
    for mut client in server.clients() {
        let prompts = client.request("prompts/list", json!({})).unwrap()["prompts"].clone();
        let names: Vec<_> =
            prompts.as_array().unwrap().iter().map(|prompt| prompt["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["greeting", "plain"]);
        assert_eq!(prompts[0]["description"], "Greets someone");
        assert_eq!(prompts[0]["arguments"][0]["name"], "who");
        assert_eq!(prompts[0]["arguments"][0]["required"], true);
        assert_eq!(prompts[0]["arguments"][0]["description"], "Whom to greet");
        assert_eq!(prompts[0]["arguments"][1]["name"], "tone");
        assert_ne!(prompts[0]["arguments"][1]["required"], true);
    }
}

#[test]
fn arguments_are_filled_in_as_they_are() {
    let server = world()
        .tool("hello.sh", sh("# Says hello.\necho"))
        .file("prompts/greeting.md", GREETING)
        .serve();
    for mut client in server.clients() {
        let params =
            json!({"name": "greeting", "arguments": {"who": "{{tone}} $(id) \"Ada\"", "tone": "warm"}});
        let result = client.request("prompts/get", params).unwrap();
        assert_eq!(result["description"], "Greets someone");
        assert_eq!(result["messages"].as_array().unwrap().len(), 1);
        assert_eq!(result["messages"][0]["role"], "user");
        let text = result["messages"][0]["content"]["text"].as_str().unwrap();
        assert!(
            text.starts_with("Greet {{tone}} $(id) \"Ada\" in a warm tone."),
            "filled in once: {text}"
        );
        assert!(text.contains("hello"), "the tools that it wants are named: {text}");
        // An optional argument may be left out.
        let params = json!({"name": "greeting", "arguments": {"who": "Ada"}});
        let result = client.request("prompts/get", params).unwrap();
        let text = result["messages"][0]["content"]["text"].as_str().unwrap();
        assert!(text.starts_with("Greet Ada in a  tone."), "{text}");
    }
}

#[test]
fn errors_name_missing_arguments_and_unknown_prompts() {
    let server = world().file("prompts/greeting.md", GREETING).serve();
    for mut client in server.clients() {
        let err = client.request("prompts/get", json!({"name": "greeting"})).unwrap_err();
        assert_eq!(err.code, -32602, "{err}");
        assert!(err.message.contains("who"), "{err}");
        let err = client.request("prompts/get", json!({"name": "greetin"})).unwrap_err();
        assert_eq!(err.code, -32602, "{err}");
        assert!(err.message.contains("greetin") && err.message.contains("greeting"), "{err}");
        let params = json!({"name": "greeting", "arguments": {"who": 7}});
        assert_eq!(client.request("prompts/get", params).unwrap_err().code, -32602);
        let params = json!({"name": "greeting", "arguments": []});
        assert_eq!(client.request("prompts/get", params).unwrap_err().code, -32602);
    }
}

#[test]
fn a_prompt_with_a_mistake_costs_itself_alone_and_check_names_the_place() {
    let world = world()
        .file("prompts/good.md", "Good {{x}}\n")
        .file("prompts/broken.md", "---\ndescription: [\n---\nBroken\n")
        .file("prompts/misspelt.md", "---\ndescriptoin: hm\n---\nMisspelt\n")
        .file("prompts/bytes.md", b"\xff\xfe");
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    for place in ["broken.md:", "misspelt.md:2:1", "bytes.md:1:1"] {
        assert!(checked.all().contains(place), "{place}: {}", checked.all());
    }
    let server = world.serve();
    let listed = server.client().request("prompts/list", json!({})).unwrap();
    let names: Vec<_> =
        listed["prompts"].as_array().unwrap().iter().map(|prompt| &prompt["name"]).collect();
    assert!(names.contains(&&json!("good")), "{names:?}");
    server.log_says(&["\"warn\"", "broken.md"]);
}

#[test]
fn another_directory_may_be_configured() {
    let server = world().file("texts/a.md", "A\n").config("prompts_dir: texts\n").serve();
    let listed = server.client().request("prompts/list", json!({})).unwrap();
    assert_eq!(listed["prompts"][0]["name"], "a");
    let none = world().serve();
    let listed = none.client().request("prompts/list", json!({})).unwrap();
    assert_eq!(listed["prompts"], json!([]));
}
