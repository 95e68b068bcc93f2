//! No secret gets into a log, an error, the status or the audit log.

use orla_e2e::eventually;
use serde_json::{Value, json};

use crate::audit::reload;
use crate::capsule::{bare, manifest, with};
use crate::{sh, world};

#[test]
fn no_secret_is_in_a_log_an_error_a_status_or_the_audit() {
    const SECRETS: [&str; 9] = [
        "CANARY-token",
        "CANARY-env",
        "CANARY-header",
        "CANARY-query",
        "CANARY-bearer",
        "CANARY-password",
        "CANARY-arg",
        "CANARY-template",
        "CANARY-key",
    ];
    let config = r#"
audit: audit.jsonl
log_level: debug
auth_tokens: {ada: "${T_TOKEN}"}
mcpServers:
  gone: {command: ./nothing-there, args: ["--key", "${T_ARG}"], env: {KEY: "${T_ENV}"}}
  dies: {command: ./tools/dies, env: {KEY: "${T_ENV}"}}
  far:
    url: "http://user:${T_PASSWORD}@127.0.0.1:1/mcp?key=${T_QUERY}"
    headers: {Authorization: "Bearer ${T_HEADER}"}
capabilities:
  - id: web.get
    description: Gets.
    provider:
      type: http
      base_url: "http://user:${T_PASSWORD}@127.0.0.1:1/v1?key=${T_QUERY}"
      auth_token: "${T_BEARER}"
      timeout_ms: 2000
      options:
        method: GET
        path: "/x?key=${T_TEMPLATE}"
        headers: {X-Key: "${T_KEY}"}
"#;
    let mut world = world().tool("dies", sh("exit 3")).config(config);
    let names = ["TOKEN", "ENV", "HEADER", "QUERY", "BEARER", "PASSWORD", "ARG", "TEMPLATE", "KEY"];
    for (name, secret) in names.iter().zip(SECRETS) {
        world = world.env(&format!("T_{name}"), secret);
    }
    let mut shown: Vec<(String, String)> = Vec::new();
    for arguments in [
        &["list"][..],
        &["list", "--json", "--all"],
        &["check"],
        &["verify"],
        &["verify", "--json"],
        &["describe", "web.get"],
        &["describe", "web.get", "--json"],
        &["call", "web.get", "--log-level", "debug"],
        &["call", "far__x", "--log-level", "debug"],
        &["search", "gets"],
    ] {
        let finished = world.run(arguments);
        assert_ne!(finished.code, Some(2), "{finished:?}");
        shown.push((format!("orla {}", arguments.join(" ")), finished.all()));
    }
    let mut server = world.serve();
    let mut client = server.client_as("CANARY-token");
    let listed = client.request("tools/list", json!({}));
    shown.push(("tools/list".to_owned(), format!("{listed:?}")));
    for (name, arguments) in [
        ("web__get", json!({"id": 1})),
        ("capability_describe", json!({"id": "web.get"})),
        ("capability_call", json!({"id": "web.get", "input": {"id": 1}})),
        ("far__x", json!({})),
    ] {
        shown.push((name.to_owned(), format!("{:?}", client.try_call(name, arguments))));
    }
    for path in ["/status", "/metrics", "/readyz"] {
        shown.push((path.to_owned(), server.get_as(path, "CANARY-token").text()));
    }
    let wrong = server.client_as("CANARY-key").request("tools/list", json!({}));
    shown.push(("a wrong token".to_owned(), format!("{wrong:?}")));
    reload(&server);
    server.terminate();
    shown.push(("the log".to_owned(), server.log()));
    shown.push(("the audit".to_owned(), server.read("audit.jsonl")));
    assert!(server.read("audit.jsonl").contains("web.get"), "the calls were made");
    for (place, text) in shown {
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret} in {place}: {text}");
        }
    }
}

#[test]
fn a_secret_reaches_its_tool_and_is_redacted_from_everything_returned() {
    const FIRST: &str = "s3cr3t-of-the-store/+first";
    const SECOND: &str = "s3cr3t-of-the-store/+second";
    let package = "name: teller\nversion: 1.0.0\nentrypoint: run.sh\ndescription: Tells.\n\
                   runtime: {env: {TOKEN: '${secret:api/token}'}}\n";
    let tell = "printf '%s' \"$TOKEN\" | sha256sum | cut -c1-64\n\
                echo \"value $TOKEN\"; printf 'x%s' \"$TOKEN\" | base64 -w0; echo\n\
                echo \"error $TOKEN\" >&2";
    let world = world()
        .tool("teller/run.sh", sh(tell))
        .file("tools/teller/tool.yaml", package)
        .tool("bystander", sh("env"))
        .file("value", FIRST)
        .config("audit: audit.jsonl\nauth_tokens: {ada: '${file:value}'}\n");
    let unset = world.run(&["check"]);
    assert!(unset.code == Some(1) && unset.all().contains("orla secret set api/token"), "{unset:?}");
    let set = world.run_with_input(&["secret", "set", "api/token"], format!("{FIRST}\n").as_bytes());
    assert!(set.code == Some(0) && set.stderr.contains(".orla/secrets.key"), "{set:?}");
    assert_eq!(world.run(&["secret", "list"]).stdout, "api/token\n");
    for name in ["a b", "${x}"] {
        assert_eq!(world.run_with_input(&["secret", "set", name], b"x").code, Some(2), "{name}");
    }
    let mut server = world.serve();
    let call = |server: &orla_e2e::Server, name: &str| {
        let mut client = server.client_as(FIRST);
        let result = client.call(name, json!({}));
        (result.text(), format!("{result:?}"))
    };
    let digest = |server: &orla_e2e::Server| call(server, "teller").0[..64].to_owned();
    let (text, all) = call(&server, "teller");
    assert!(text.contains("value [redacted]\n") && all.contains("error [redacted]"), "{all}");
    for hidden in ["s3cr3t", "M2NyM3Q", "NjcjN0", "zY3IzdC"] {
        assert!(!all.contains(hidden), "{hidden} in {all}");
    }
    let first = digest(&server);
    assert!(!call(&server, "bystander").1.contains("s3cr3t"));
    server.run_with_input(&["secret", "set", "api/token"], SECOND.as_bytes());
    server.signal(rustix::process::Signal::HUP);
    eventually("the new value is used", || digest(&server) != first);
    assert!(!call(&server, "teller").1.contains("s3cr3t"));
    let rows = server.get_as("/calls", FIRST);
    let ids: Vec<String> = rows.json().as_array().into_iter().flatten().map(id_of).collect();
    assert!(!rows.text().contains("s3cr3t") && ids.len() > 3, "{}", rows.text());
    let details = ids.iter().map(|id| server.get_as(&format!("/calls/{id}"), FIRST).text());
    let details: Vec<String> = details.collect();
    assert!(details.iter().any(|detail| detail.contains("value [redacted]")), "{details:?}");
    for hidden in ["s3cr3t", "M2NyM3Q", "NjcjN0", "zY3IzdC"] {
        assert!(details.iter().all(|detail| !detail.contains(hidden)), "{hidden}: {details:?}");
    }
    server.terminate();
    for text in [server.log(), server.read("audit.jsonl"), server.read(".orla/secrets.json")] {
        assert!(!text.contains("s3cr3t"), "{text}");
    }
    assert_eq!(server.run(&["secret", "remove", "api/token"]).code, Some(0));
    assert_eq!(server.run(&["secret", "remove", "api/token"]).code, Some(1));
}

fn id_of(row: &Value) -> String {
    row["id"].as_str().expect("an id").to_owned()
}

#[test]
fn a_credential_of_the_service_manager_is_a_secret_of_the_program() {
    const VALUE: &str = "s3cr3t-of-the-service";
    const STORED: &str = "s3cr3t-of-the-store";
    let package = "name: teller\nversion: 1.0.0\nentrypoint: run.sh\ndescription: Tells.\n\
                   runtime: {env: {TOKEN: '${secret:api-token}'}}\n";
    let world = world()
        .tool("teller/run.sh", sh("printf '%s' \"$TOKEN\" | wc -c; echo \"value $TOKEN\""))
        .file("tools/teller/tool.yaml", package)
        .tool("bystander", sh("env"))
        .file("credentials/api-token", format!("{VALUE}\n"))
        .file("credentials/caller", "tok-of-the-service-0123456789")
        .config("auth_tokens: {ada: '${secret:caller}'}\n");
    assert_eq!(world.run(&["check"]).code, Some(1), "nothing gives the secrets");
    // The credential has priority over the store.
    assert_eq!(world.run_with_input(&["secret", "set", "api-token"], STORED.as_bytes()).code, Some(0));
    let folder = world.path("credentials");
    let world = world.env("CREDENTIALS_DIRECTORY", folder);
    assert_eq!(world.run(&["check"]).code, Some(0));
    let server = world.serve();
    assert_eq!(server.http().get("/status").status, 401);
    let mut client = server.client_as("tok-of-the-service-0123456789");
    let told = client.call("teller", json!({}));
    let lines: Vec<&str> = told.stdout().lines().map(str::trim).collect();
    assert_eq!(lines, [VALUE.len().to_string().as_str(), "value [redacted]"]);
    assert!(!client.call("bystander", json!({})).stdout().contains("s3cr3t"));
    assert!(!server.log().contains("s3cr3t"));
}

#[test]
fn a_new_value_of_a_secret_is_in_use_at_once_though_only_a_package_asks_for_it() {
    let package = "name: NAME\nversion: 1.0.0\nentrypoint: run.sh\ndescription: Tells.\n\
                   runtime: {env: {TOKEN: '${REFERENCE}'}}\n";
    let of = |name: &str, reference: &str| package.replace("NAME", name).replace("REFERENCE", reference);
    let tell = "printf '%s' \"$TOKEN\" | wc -c";
    let world = world()
        .tool("stored/run.sh", sh(tell))
        .file("tools/stored/tool.yaml", of("stored", "secret:push/key"))
        .tool("filed/run.sh", sh(tell))
        .file("tools/filed/tool.yaml", of("filed", "file:value"))
        .file("tools/filed/value", "four")
        .config("watch: true\n");
    let set = |world: &orla_e2e::World, value: &str| {
        assert_eq!(world.run_with_input(&["secret", "set", "push/key"], value.as_bytes()).code, Some(0));
    };
    set(&world, "first");
    let server = world.serve();
    let length = |name: &str| server.client().call(name, json!({})).stdout().trim().to_owned();
    assert_eq!((length("stored").as_str(), length("filed").as_str()), ("5", "4"));
    set(&server, "the second");
    eventually("the store's new value is given", || length("stored") == "10");
    server.write("tools/filed/value", "sixsix", 0o600);
    eventually("the file's new value is given", || length("filed") == "6");
}

#[test]
fn a_script_gets_secrets_from_its_block_and_from_the_configuration() {
    const OWN: &str = "secret-of-the-block";
    const GIVEN: &str = "secret-of-the-configuration";
    let block = "# /// orla\n# description: Pushes.\n# env: {KEY: 'own ${secret:push/own}', MODE: fast}\n# args: ['${secret:push/own}']\n# ///\n";
    let script = format!("#!/bin/sh\n{block}echo \"$MODE $KEY $HOOK $1\" | tee got\n");
    let config = "tools: {push: {env: {HOOK: '${secret:push/given}', MODE: slow}}}\n";
    let world = world().tool("push", script).config(config);
    for (name, value) in [("push/given", GIVEN), ("push/own", "first")] {
        let checked = world.run(&["check"]);
        assert!(
            checked.code == Some(1) && checked.all().contains("orla secret set push/"),
            "{checked:?}"
        );
        world.run_with_input(&["secret", "set", name], value.as_bytes());
    }
    assert_eq!(world.run(&["check"]).code, Some(0));
    let server = world.serve();
    server.client().call("push", json!({}));
    assert_eq!(server.read("got"), format!("slow own first {GIVEN} first\n"));
    server.run_with_input(&["secret", "set", "push/own"], OWN.as_bytes());
    server.reload();
    let answer = server.client().call("push", json!({}));
    assert_eq!(server.read("got"), format!("slow own {OWN} {GIVEN} {OWN}\n"));
    assert_eq!(answer.stdout(), "slow own [redacted] [redacted] [redacted]\n");
    let shown = format!("{}{}", server.log(), server.status());
    assert!(!shown.contains(OWN) && !shown.contains(GIVEN), "{shown}");
}

#[test]
fn a_reference_where_no_secret_is_filled_in_is_an_error_at_its_place() {
    let manifest = "name: pk\nversion: 1.0.0\ndescription: 'says ${secret:y}'\nentrypoint: main.sh\n";
    let world = world()
        .tool("a", "#!/bin/sh\n# /// orla\n# description: 'uses ${secret:x}'\n# ///\n")
        .file("tools/pk/tool.yaml", manifest)
        .tool("pk/main.sh", "#!/bin/sh\n");
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1));
    for place in ["tools/a:3:16: description: ", "tools/pk/tool.yaml:3:14: description: "] {
        assert!(checked.all().contains(place), "{checked:?}");
    }
}

#[test]
fn a_reference_of_a_package_that_has_no_value_is_an_error_at_its_place() {
    let manifest = "name: pk\nversion: 1.0.0\ndescription: d\nentrypoint: main.sh\nruntime:\n  mode: simple\n  env:\n    \
                    KEY: ${secret:nope}\n  args: [a, 'x${file:./gone}']\n";
    let world = world().file("tools/pk/tool.yaml", manifest).tool("pk/main.sh", "#!/bin/sh\n");
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1));
    for place in ["tools/pk/tool.yaml:8:10: the secret nope", "tools/pk/tool.yaml:9:13: "] {
        assert!(checked.all().contains(place), "{}", checked.all());
    }
}

#[test]
fn a_capsule_that_is_restarted_for_a_change_keeps_its_secrets() {
    const SECRET: &str = "s3cr3t-of-the-capsule";
    let manifest = manifest(json!({
        "env": {"TOKEN": "${secret:push/key}"}, "hot_load": {"watch": ["main.py"], "debounce_ms": 30},
    }));
    let code = |version: &str| {
        let call =
            "answer(id, f\"{len(os.environ['TOKEN'])} v=VERSION \" + os.environ['TOKEN'])\ncontinue";
        bare().version(version).call(call).python()
    };
    let world = with(world(), &manifest, &code("one"));
    world.run_with_input(&["secret", "set", "push/key"], SECRET.as_bytes());
    let server = world.serve();
    let said = || server.client().call("cap", json!({})).text();
    assert_eq!(said(), format!("{} v=one [redacted]", SECRET.len()));
    server.write("tools/cap/main.py", code("two"), 0o755);
    eventually("it is restarted", || said().contains("v=two"));
    assert_eq!(said(), format!("{} v=two [redacted]", SECRET.len()));
}

#[test]
fn a_secret_in_a_declaration_shows_nowhere() {
    const SECRET: &str = "s3cr3t-value-0123456789";
    const DECLARED: &str =
        "tools: {t: {description: 'uses ${secret:x}', permissions: ['db:${secret:x}']}}
capabilities:
- id: tele
  description: 'with ${file:value}'
  permissions: ['db:${secret:x}']
  provider: {type: http, method: GET, base_url: 'http://127.0.0.1:9/bot${secret:x}'}
- {id: host, provider: {type: http, method: GET, base_url: 'http://${secret:x}.test/'}}
";
    let world = world().tool("t", sh("echo t")).file("value", SECRET).config(DECLARED);
    assert_eq!(world.run_with_input(&["secret", "set", "x"], SECRET.as_bytes()).code, Some(0));
    let mut shown: Vec<(String, String)> = Vec::new();
    let mut run = |world: &orla_e2e::World, arguments: &[&str]| {
        let finished = world.run(arguments);
        shown.push((format!("orla {}", arguments.join(" ")), finished.all()));
        finished
    };
    for arguments in [
        &["check"][..],
        &["list", "--json", "--all"],
        &["list"],
        &["describe", "tele"],
        &["describe", "tele", "--json"],
        &["describe", "host", "--json"],
        &["describe", "t", "--json"],
        &["call", "host"],
        &["doctor", "--json"],
    ] {
        run(&world, arguments);
    }
    for broken in [
        "mcpServers: {u: {command: './prog-${secret:x}'}}\n",
        "plugins: {p: {command: './prog-${secret:x}'}}\n",
        "openapi: [{name: o, openapi: './doc-${secret:x}'}]\n",
        "tools_dir: './tools-${secret:x}'\n",
        "prompts_dir: './prompts-${secret:x}'\n",
        "auth: {tls: {cert: './cert-${secret:x}', key: './key'}}\n",
    ] {
        world.write("broken.yaml", broken, 0o644);
        for command in ["check", "list", "doctor"] {
            let output = run(&world, &[command, "--config", "broken.yaml"]);
            assert!(
                command != "check" || output.all().contains("[redacted]"),
                "{broken}: {}",
                output.all()
            );
        }
    }
    let server = world.serve();
    let mut client = server.client();
    shown.push(("tools/list".to_owned(), format!("{:?}", client.tools())));
    for id in ["tele", "host", "t"] {
        let described = client.call("capability_describe", json!({"id": id}));
        assert!(format!("{described:?}").contains("[redacted]"), "{described:?}");
        shown.push((format!("capability_describe {id}"), format!("{described:?}")));
    }
    for path in ["/status", "/api/openapi.json", "/.well-known/agent-card.json", "/console/catalogue"] {
        shown.push((path.to_owned(), server.http().get(path).text()));
    }
    for (place, text) in shown {
        assert!(!text.contains(SECRET), "{place}: {text}");
    }
}

#[test]
fn a_reference_without_a_value_is_named_with_its_place() {
    let header = |yaml: &str| {
        let lines = yaml.lines().map(|line| format!("# {line}\n")).collect::<String>();
        sh(&format!("# /// orla\n{lines}# ///\necho ran"))
    };
    let world = world()
        .tool("env", header("description: D.\nenv:\n  A: x\n  B: \"${secret:none}\""))
        .tool("args", header("args: [a, \"${file:none}\"]"))
        .tool("open", header("env: {A: \"${secret:none\"}"))
        .tool("shell", header("env: {A: \"${HOME\"}"))
        .tool("beside", sh("echo ran"))
        .file("tools/beside.orla.yaml", "args:\n  - ${secret:none}\n");
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let server = world.serve();
    let status = server.http().get("/status").json();
    for (name, place) in [
        ("env", "tools/env:6:8: the secret none is not set"),
        ("args", "tools/args:3:13: "),
        ("open", "tools/open:3:12: "),
        ("beside", "tools/beside.orla.yaml:2:5: the secret none is not set"),
    ] {
        assert!(checked.stderr.contains(place), "{place}: {}", checked.stderr);
        let rows = status["capabilities"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        assert_eq!(row["state"], "unavailable", "{row}");
        assert!(row["last_failure"].as_str().unwrap().contains(place), "{row}");
    }
    assert_eq!(server.client().call("shell", json!({})).stdout(), "ran\n");
}
