//! The real binary against the real world, one module per area.
//!
//! A test's name states the property that it shows. Names of rows (`T4`, `X9`) refer to the kinds of bad
//! input that the project promises to survive: the server continues to run, no other call is affected,
//! and nothing is lost or leaked.

mod a2a;
mod a2a_bindings;
mod a2a_push;
mod a2a_server;
mod agent;
mod approvals;
mod attestation;
mod audit;
mod builtins;
mod calls;
mod capsule;
mod capsules;
mod capsules_hostile;
mod capsules_manifests;
mod capsules_mcp;
mod cases;
mod cli;
mod cluster;
mod configuration;
mod confinement;
mod confinement_network;
mod console;
mod development;
mod dialogue;
mod discovery;
mod discovery_search;
mod environment;
mod fairness;
mod files_of_before;
mod guard;
mod history;
mod http_endpoints;
mod http_surface;
mod identity;
mod identity_end;
mod identity_forged;
mod learning;
mod library;
mod logs;
mod mcp_script;
mod model;
mod packages;
mod plugins;
mod prestart;
mod programs;
mod prompted;
mod prompts;
mod protocol;
mod protocol_hostile;
mod providers_http;
mod providers_mcp;
mod quotas;
mod reload;
mod remotes;
mod rest;
mod resume;
mod routing;
mod rtfs;
mod running;
mod running_hostile;
mod running_limits;
mod sandboxes;
mod schedules;
mod schemas;
mod scripted_agent;
mod secrets;
mod sign_in;
mod sign_in_apis;
mod stdio;
mod streams;
mod tasks;
mod tasks_mcp;
mod terminals;
mod tls;
mod traces;
mod upstream;

use orla_e2e::World;

/// Returns an empty world for the binary under test: that of `$ORLA_TEST_BIN` (an absolute path), such as a
/// release, or else the one that was built with the tests.
fn world() -> World {
    World::new(std::env::var("ORLA_TEST_BIN").as_deref().unwrap_or(env!("CARGO_BIN_EXE_orla")))
}

/// Returns a shell script with this body.
fn sh(body: &str) -> String {
    format!("#!/bin/sh\n{body}\n")
}

#[test]
fn every_file_beside_this_one_is_a_module_of_it() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let text = std::fs::read_to_string(dir.join("main.rs")).unwrap();
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(module) = name.strip_suffix(".rs").filter(|module| *module != "main") else { continue };
        assert!(text.contains(&format!("mod {module};")), "{name} is in no `mod` of main.rs");
    }
}
