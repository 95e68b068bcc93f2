//! Programs in RTFS: as files that are tools, on the command line, and from clients.

use orla_e2e::eventually;
use serde_json::json;

use crate::{sh, world};

const GREET: &str = "\
; Greets somebody.
(import words :as w)
(defn main [{:keys [name times], :or {times 1}} :- [:map {:name :string} [:times [:and :int [:> 0]] ?]]]
    :- [:map {:text :string}]
  {:text (join \" \" (repeat-greeting times (w/hello name)))})
(defn repeat-greeting [n text] (vec (take n (repeat text))))
";

#[test]
fn a_file_of_the_language_is_a_tool_and_its_types_are_its_schemas() {
    let world = world()
        .file(
            "tools/greet.rtfs",
            GREET.replace("[:map {:name :string} [:times", "[:map [:name :string] [:times"),
        )
        .file("tools/words.rtfs", "(defn hello [name] (str \"Hello, \" name \"!\"))")
        .file("tools/broken.rtfs", "(defn main [input]\n  (if))")
        .tool("shout", sh("echo loud"))
        .tool("also.rtfs", "(defn main \"Calls a tool.\" [] (trim (:stdout (call :shout))))")
        .config("watch: true\n");
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1));
    assert!(checked.all().contains("broken.rtfs:2:3: "), "{}", checked.all());
    let server = world.serve();
    for mut client in server.clients() {
        assert_eq!(client.tool_names(), ["also", "greet", "shout"], "what is broken costs itself");
        let tool = client.tool("greet");
        assert_eq!(tool["description"], "Greets somebody.");
        assert_eq!(tool["inputSchema"]["required"], json!(["name"]));
        assert_eq!(tool["inputSchema"]["properties"]["name"]["type"], "string");
        assert_eq!(tool["outputSchema"]["required"], json!(["text"]));
        let result = client.call("greet", json!({"name": "Ada", "times": 2}));
        assert_eq!(result.structured(), &json!({"text": "Hello, Ada! Hello, Ada!"}), "{}", result.json);
        let refused = client.call("greet", json!({"name": "Ada", "times": 0}));
        assert!(refused.is_error() && refused.sentence().contains("input.times"), "{}", refused.json);
        assert_eq!(client.call("also", json!({})).text(), "loud");
    }
    let row = &server.status()["capabilities"][1];
    assert_eq!((&row["name"], &row["kind"]), (&json!("greet"), &json!("rtfs")));
    assert!(row["source"].as_str().unwrap().ends_with("tools/greet.rtfs"), "{row}");
    // A module that changes changes the program, and one that is mended is served.
    server.write("tools/words.rtfs", "(defn hello [name] (str \"Bye, \" name))", 0o644);
    server.write("tools/broken.rtfs", "(defn main [input] (count input))", 0o644);
    eventually("both are served", || {
        let mut client = server.client();
        client.tool_names().contains(&"broken".to_owned())
            && client.call("greet", json!({"name": "Ada"})).text().contains("Bye, Ada")
    });
    server.assert_no_tool_is_left();
}
