//! A node without NATS. `cargo xtask cluster` tests several nodes with the real server.

use serde_json::json;

use crate::{sh, world};
use orla_e2e::free_port;

/// Returns an address at which no NATS server listens.
fn unused_address() -> String {
    format!("nats://127.0.0.1:{}", free_port())
}

#[test]
fn a_node_that_cannot_reach_nats_serves_its_own_tools_and_reports_it() {
    let config = format!("cluster: {{nats: \"{}\", name: t, node: alpha}}\n", unused_address());
    let server = world().tool("hello", sh("echo hello")).config(&config).serve();
    assert_eq!(server.client().call("hello", json!({})).stdout(), "hello\n");
    let status = server.http().get("/status").json();
    let nodes = &status["cluster"]["nodes"];
    assert_eq!((&nodes[0]["node"], &nodes[0]["alive"]), (&json!("alpha"), &json!(true)));
    assert_eq!(nodes[0]["cut_off"], true);
    let url = format!("http://{}", server.address());
    let shown = server.run(&["cluster", "status", "--url", &url]);
    assert!(shown.stdout.contains("cut off") && shown.stderr.contains("NATS"), "{shown:?}");
    assert!(status["problems"][0].as_str().is_some_and(|text| text.contains("NATS")), "{status}");
}

#[test]
fn a_misspelt_cluster_is_named_with_its_place() {
    let config = "cluster:\n  nats: http://h:4222\n  name: a.b\n  nodes: x\n";
    let run = world().config(config).run(&["check"]);
    let output = format!("{}{}", run.stdout, run.stderr);
    for words in [
        "cluster.nats: expected an address such as nats://host:4222 at orla.yaml:2:9",
        "cluster.name: expected a name of at most 48 letters, digits, `_` or `-` at orla.yaml:3:9",
        "cluster.nodes: unknown key, did you mean node? at orla.yaml:4:3",
    ] {
        assert!(output.contains(words), "{words}: {output}");
    }
}

#[test]
fn a_file_of_the_cluster_that_cannot_be_used_is_named_with_its_place() {
    let config = "cluster:\n  nats: nats://127.0.0.1:1\n  name: t\n  credentials: ./not.creds\n  tls:\n    ca: ./nope\n    \
                  certificate: ./own\n    key: ./tools\n";
    let world = world().config(config).file("not.creds", "hush").file("own", "x").tool("t", sh("true"));
    let run = world.run(&["check"]);
    assert_eq!(run.code, Some(1), "{}", run.all());
    for (key, place) in [
        ("cluster.credentials ", "orla.yaml:4:16"),
        ("cluster.tls.ca ", "orla.yaml:6:9"),
        ("cluster.tls.key ", "orla.yaml:8:10"),
    ] {
        let is_told = |line: &str| line.contains(key) && line.ends_with(place);
        assert!(run.stderr.lines().any(is_told), "{key}: {}", run.all());
    }
    assert!(!run.all().contains("hush") && !run.stderr.contains("tls.certificate"), "{}", run.all());
}
