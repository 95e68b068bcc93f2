//! Instances that serve each other's capabilities (RTFS capability system §3.3).

use orla_e2e::{Request, Server, World, eventually, free_port};
use serde_json::{Value, json};

use crate::{sh, world};

fn remotes(list: &[(&str, &Server)]) -> String {
    let lines = list.iter().map(|(name, server)| format!("  {name}: http://{}\n", server.address()));
    format!("remotes:\n{}", lines.collect::<String>())
}

fn post(body: &Value) -> Request {
    Request::new("POST", "/rtfs").header("content-type", "application/json").body(body.to_string())
}

fn ask(server: &Server, body: &Value) -> Value {
    let answer = server.http().send(&post(body)).expect("an answer");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    answer.json()
}

/// Three instances, each with the catalogue of the next.
fn chain(third: World) -> [Server; 3] {
    let third = third.serve();
    let second = world().tool("near", sh("echo second")).config(&remotes(&[("c", &third)])).serve();
    let first = world().config(&remotes(&[("b", &second)])).serve();
    [first, second, third]
}

const IMAGE: &str = r#"printf '%s' '{"content":[{"type":"image","data":"AAEC","mimeType":"image/png"}],"structuredContent":{"n":1.10}}'"#;

#[test]
fn a_capability_of_the_third_instance_is_one_of_the_first() {
    let third = world()
        .tool("echo", sh("cat"))
        .tool("image", sh(IMAGE))
        .tool("broken", sh("echo oh >&2; exit 3"))
        .file(
            "tools/typed.rtfs",
            "; Doubles.\n(defn main [{:keys [n]} :- [:map [:n :int]]] :- [:map [:n :int]] {:n (* 2 n)})",
        )
        .config("watch: true\n");
    let [first, _second, third] = chain(third);
    let far =
        ["b__c_broken", "b__c_echo", "b__c_image", "b__c_rtfs", "b__c_typed", "b__near", "b__rtfs"];
    for mut client in first.clients() {
        assert_eq!(client.tool_names(), far, "what each instance has by itself is not told");
        let tool = client.tool("b__c_typed");
        assert_eq!(tool["description"], "Doubles.");
        assert_eq!(tool["inputSchema"]["required"], json!(["n"]));
        assert_eq!(client.call("b__c_typed", json!({"n": 21})).structured(), &json!({"n": 42}));
        let there = third.client().call("image", json!({}));
        let here = client.call("b__c_image", json!({}));
        assert_eq!(here.json["content"], there.json["content"], "{}", here.json);
        assert_eq!(here.json["structuredContent"], there.json["structuredContent"], "{}", here.json);
        let there = third.client().call("broken", json!({}));
        let here = client.call("b__c_broken", json!({}));
        assert!(here.is_error() && there.is_error());
        assert_eq!(here.json["content"], there.json["content"], "{}", here.json);
        let refused = client.call("b__c_typed", json!({"n": "x"}));
        assert!(refused.is_error() && refused.sentence().contains("input.n"), "{}", refused.json);
    }
    for (program, value) in [
        (r#"(:stdout (call :b.near {}))"#, json!("second\n")),
        (
            r#"(try (call :b.c.typed {:n "x"}) (catch :invalid-input e (:kind e)))"#,
            json!("invalid-input"),
        ),
        (r#"(try (call :b.c.broken {}) (catch :failed e :failed))"#, json!("failed")),
        (r#"(:value (call :b.c.rtfs {:program "(+ input 1)" :input 41}))"#, json!(42)),
    ] {
        assert_eq!(ask(&first, &json!({ "program": program })), json!({ "value": value }), "{program}");
    }
    let unknown = ask(&first, &json!({"call": "b.c.nothing"}));
    assert_eq!(unknown["error"]["kind"], "unknown-capability");
    let status = first.status();
    let row = status["capabilities"].as_array().unwrap().iter().find(|row| row["name"] == "b__near");
    assert_eq!(row.unwrap()["kind"], "remote-rtfs", "{status}");

    third.write("tools/later", sh("echo later"), 0o755);
    third.remove("tools/image");
    eventually("the first is told of a change at the third", || {
        let names = first.client().tool_names();
        names.contains(&"b__c_later".to_owned()) && !names.contains(&"b__c_image".to_owned())
    });
    assert_eq!(ask(&first, &json!({"call": "b.c.later"}))["value"]["stdout"], "later\n");
}

#[test]
fn a_program_that_is_withdrawn_at_the_first_leaves_nothing_running_at_the_third() {
    let slow = sh("echo $$ > started; exec sleep 600");
    let [first, second, third] = chain(world().tool("slow", slow).config("timeout: 500\n"));
    for program in [
        "(call :b.c.slow {})",
        r#"(call :b.c.rtfs {:program "(parallel (call :slow {}) (call :slow {}))"})"#,
    ] {
        let asked = first.http().write(&post(&json!({ "program": program }))).unwrap();
        eventually("the tool runs at the third", || third.path("started").exists());
        drop(asked);
        for server in [&first, &second, &third] {
            server.assert_no_tool_is_left();
            eventually("no call is left", || {
                let metrics = server.http().get("/metrics").text();
                metrics.lines().any(|line| line == "orla_calls_running 0")
            });
        }
        third.remove("started");
    }
}

#[test]
fn the_callers_timeout_bounds_the_remote_call() {
    let third = world().tool("slow", sh("echo begun; exec sleep 600")).serve();
    let config = format!(
        "capabilities:\n- {{id: slow, timeout: 0.5, provider: {{remote: {{endpoint: 'http://{}'}}}}}}\n",
        third.address()
    );
    let first = world().config(&config).serve();
    let result = first.client().call("slow", json!({}));
    assert!(result.is_error() && result.sentence().contains("timed out after 0.5 s"), "{}", result.json);
    third.assert_no_tool_is_left();
}

#[test]
fn v6_two_instances_that_point_at_each_other_come_to_an_end() {
    let ports = [free_port(), free_port()];
    let instance = |own: usize, name: &str, other: &str| {
        let config = format!(
            "remotes: {{{other}: 'http://127.0.0.1:{port}'}}\ncapabilities:\n- id: round\n  provider: {{RemoteRTFS: {{endpoint: 'http://127.0.0.1:{port}/rtfs', timeout_ms: 20000}}}}\n",
            port = ports[1 - own]
        );
        let world = world().tool(format!("tool_{name}"), sh("echo hello")).config(&config);
        world.arg("--port").arg(ports[own].to_string()).serve()
    };
    let (a, b) = (instance(0, "a", "b"), instance(1, "b", "a"));
    for (server, expected) in [
        (&a, ["b__round", "b__rtfs", "b__tool_b", "round", "tool_a"]),
        (&b, ["a__round", "a__rtfs", "a__tool_a", "round", "tool_b"]),
    ] {
        eventually("each has what the other has by itself", || server.client().tool_names() == expected);
    }
    let error = ask(&a, &json!({"call": "round"}))["error"].clone();
    assert_eq!(error["kind"], "limit", "{error}");
    let message = error["message"].as_str().unwrap();
    let [first, second] = ports.map(|port| format!("127.0.0.1:{port}"));
    assert!(
        message.contains(&format!("hop limit of 8 instances, by {second} → {first} → {second}")),
        "{message}"
    );
    let within = ask(&a, &json!({"program": "(try (call :b.round {}) (catch :limit e (:kind e)))"}));
    assert_eq!(within, json!({"value": "limit"}));
    for server in [&a, &b] {
        assert_eq!(server.client().tool_names().len(), 5, "the catalogues do not grow");
        assert!(server.generation() < 30, "{}", server.generation());
    }
}

#[test]
fn a_token_opens_the_other_instance_and_is_not_revealed() {
    let far = world().tool("hello", sh("echo hello")).tool("other", sh("echo other"));
    let far = far.config("auth_tokens: {first: s3cret-token}\n").serve_quietly();
    let config = |token: &str| {
        format!(
            "remotes:\n  far:\n    url: http://{}\n    {token}\n    prefix: 'f/'\n    include: [hel*]\n    eager: true\n",
            far.address()
        )
    };
    let first = world().config(&config("token: ${FAR}")).env("FAR", "s3cret-token").serve();
    eventually("it is asked without anyone's asking", || first.client().tool_names() == ["f_hello"]);
    assert_eq!(ask(&first, &json!({"call": "f/hello"}))["value"]["stdout"], "hello\n");
    assert!(!first.log().contains("s3cret-token"));
    first.write("orla.yaml", config("token: wr0ng-token"), 0o644);
    first.reload();
    let said = first.log_says(&["does not accept the token"]);
    assert!(!said.contains("wr0ng-token"), "{said}");
    let error = ask(&first, &json!({"call": "f/hello"}))["error"].clone();
    assert_eq!(error["kind"], "unavailable", "{error}");
    let why = "f/hello is unavailable: remote far: ";
    assert!(error["message"].as_str().is_some_and(|said| said.starts_with(why)), "{error}");
}

#[test]
fn an_error_of_a_remote_names_the_remote() {
    let there = world().tool("echo", sh("cat")).serve();
    let config = format!(
        "capabilities:\n- {{id: nosuch, description: Not there., provider: {{RemoteRTFS: {{endpoint: 'http://{}', timeout_ms: 5000}}}}}}\n",
        there.address()
    );
    let here = world().config(&config).serve();
    let says =
        format!("nosuch failed: the remote instance {} has no capability nosuch", there.address());
    for mut client in here.clients() {
        assert!(client.tool_names().contains(&"nosuch".to_owned()));
        let called = client.call("nosuch", json!({}));
        assert!(called.is_error() && called.sentence().contains(&says), "{}", called.json);
    }
    let error = ask(&here, &json!({"call": "nosuch"}))["error"].clone();
    assert_eq!(error["kind"], "unknown-capability", "{error}");
    assert!(
        error["message"].as_str().is_some_and(|message| message.contains("remote instance")),
        "{error}"
    );
}
