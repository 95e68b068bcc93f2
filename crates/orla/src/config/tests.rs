use std::path::Path;

use orla_marketplace::id::Pattern;
use orla_secrets::{Resolver, SecretStore};

use super::*;
use crate::documentation::assert_current;

fn problems(text: &str) -> Vec<String> {
    match Config::of(text) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn every_mistake_is_named_with_its_place() {
    let cases = [
        ("# c\n\ntool_dir: x\n", "tool_dir: unknown key, did you mean tools_dir? at orla.yaml:3:1"),
        ("zzz: 1\n", "zzz: unknown key (`orla schema` prints all of them) at orla.yaml:1:1"),
        ("toolsDir: x\n", "toolsDir: unknown key, did you mean tools_dir? at orla.yaml:1:1"),
        (
            "timeout: -1\n",
            "timeout: expected a number of seconds above 0 and at most 86400, got -1 at orla.yaml:1:10",
        ),
        (
            "timeout: 0\n",
            "timeout: expected a number of seconds above 0 and at most 86400, got 0 at orla.yaml:1:10",
        ),
        (
            "timeout: .inf\n",
            "timeout: expected a number of seconds above 0 and at most 86400, got .inf at orla.yaml:1:10",
        ),
        (
            "timeout: 5s\n",
            "timeout: expected a number of seconds above 0 and at most 86400, got text \"5s\" at orla.yaml:1:10",
        ),
        (
            "timeout: \"5\"\n",
            "timeout: expected a number of seconds above 0 and at most 86400, got text \"5\" at orla.yaml:1:10",
        ),
        (
            "policy: [{to: [], deny: ['*']}]\n",
            "policy[0].to: an empty list fits no callers: name some, or remove the key or the rule at orla.yaml:1:15",
        ),
        (
            "approve: [{capabilities: []}]\n",
            "approve[0].capabilities: an empty list fits no capabilities: name some, or remove the key or the rule at orla.yaml:1:26",
        ),
        (
            "approve: [{by: []}]\n",
            "approve[0].by: an empty list fits no callers: name some, or remove the key or the rule at orla.yaml:1:16",
        ),
        (
            "quotas: [{capabilities: [], calls: 1, per: hour}]\n",
            "quotas[0].capabilities: an empty list fits no capabilities: name some, or remove the key or the rule at orla.yaml:1:25",
        ),
        ("port: 70000\n", "port: expected a whole number from 0 to 65535, got 70000 at orla.yaml:1:7"),
        ("port: 80.5\n", "port: expected a whole number from 0 to 65535, got 80.5 at orla.yaml:1:7"),
        ("port:\n", "port: expected a whole number from 0 to 65535, got nothing at orla.yaml:1:5"),
        (
            "log_level: loud\n",
            "log_level: expected debug, info, warn, error or fatal, got text \"loud\" at orla.yaml:1:12",
        ),
        (
            "tools_dir: 5\n",
            "tools_dir: expected a path, got 5 (in quotes, it is text) at orla.yaml:1:12",
        ),
        ("tools_dir: [a]\n", "tools_dir: expected a path, got a list at orla.yaml:1:12"),
        (
            "tools_dir: ~/t\n",
            "tools_dir: expected a path in which `~` is spelt out (${HOME}/t in the file), got text \"~/t\" at orla.yaml:1:12",
        ),
        (
            "tools_dir: ${NOPE_X}\n",
            "tools_dir: the environment variable NOPE_X is not set (write ${NOPE_X:-default} to give a default) at orla.yaml:1:12",
        ),
        (
            "capsules: {max_failure: 3}\n",
            "capsules.max_failure: unknown key, did you mean max_failures? at orla.yaml:1:12",
        ),
        (
            "capsules: {drain_ms: -1}\n",
            "capsules.drain_ms: expected a whole number of milliseconds from 0 to 86400000, got -1 at orla.yaml:1:22",
        ),
        (
            "capsules: {backoff_min_ms: 2, backoff_max_ms: 1}\n",
            "capsules: backoff_min_ms is more than backoff_max_ms at orla.yaml:1:11",
        ),
        (
            "capsules: 3\n",
            "capsules: expected a mapping with max_failures, backoff_min_ms, backoff_max_ms, drain_ms or eager, got 3 at orla.yaml:1:11",
        ),
        ("watch: yes\n", "watch: expected true or false, got text \"yes\" at orla.yaml:1:8"),
        ("deny: ls\n", "deny: expected a list of texts, got text \"ls\" at orla.yaml:1:7"),
        ("deny: [ls, 7]\n", "deny[1]: expected text, got 7 (in quotes, it is text) at orla.yaml:1:12"),
        (
            "auth_tokens: ['a b']\n",
            "auth_tokens[0]: expected a token of visible ASCII characters at orla.yaml:1:15",
        ),
        // A token is not repeated, whatever it was taken for.
        (
            "auth_tokens: [1234]\n",
            "auth_tokens[0]: expected text (in quotes, a number is text) at orla.yaml:1:15",
        ),
        (
            "auth_tokens: {anonymous: x}\n",
            "auth_tokens.anonymous: callers without a token are called that; choose another name at orla.yaml:1:26",
        ),
        ("policy: [{too: alice}]\n", "policy[0].too: unknown key, did you mean to? at orla.yaml:1:11"),
        (
            "policy: [{allow: ['net:']}]\n",
            "policy[0].allow[0]: expected a permission such as net:api.example.com, fs:read:./data, exec or mcp:server/*, got \"net:\" at orla.yaml:1:19",
        ),
        (
            "auth_tokens: s3cret\n",
            "auth_tokens: expected a list of texts, or a mapping from names to texts at orla.yaml:1:14",
        ),
        (
            "host: 0.0.0.0\n",
            "host: 0.0.0.0 can be reached from other machines: make a token with `orla token create`, or set auth_tokens or auth.oauth, or allow_unauthenticated: true if that is meant at orla.yaml:1:7",
        ),
        ("host: 999.1.1.1\n", "host: expected an address or a name, got 999.1.1.1 at orla.yaml:1:7"),
        (
            "tools: {ls: {timeot: 1}}\n",
            "tools.ls.timeot: unknown key, did you mean timeout? at orla.yaml:1:14",
        ),
        (
            "tools: {ls: {rename: a b}}\n",
            "tools.ls.rename: expected 1 to 64 letters, digits, `_` or `-`, got text \"a b\" at orla.yaml:1:22",
        ),
        (
            "tools: {ls: 1}\n",
            "tools.ls: expected a mapping with timeout, enabled, description, rename, max_concurrency, scope, retries, prestart, task, env, pass_env, permissions, limits or sandbox_fallback, got 1 at orla.yaml:1:13",
        ),
        ("- a\n", "expected a mapping of keys to values, got a list at orla.yaml:1:1"),
        ("port: 1\nport: 2\n", "port: given twice, first on line 1 at orla.yaml:2:1"),
        ("port:\n\t- 1\n", "a tab cannot indent YAML: use spaces at orla.yaml:2:1"),
    ];
    for (text, expected) in cases {
        assert_eq!(problems(text), [expected], "{text:?}");
    }
    let cases = [
        ("timeout: .nan\n", &["timeout", "orla.yaml:1:"][..]),
        ("port: -1\n", &["port", "orla.yaml:1:7"]),
        ("port: eighty\n", &["port", "orla.yaml:1:7"]),
        ("port: [1]\n", &["port", "orla.yaml:1:7"]),
        ("log_format: xml\n", &["xml", "json", "pretty", "orla.yaml:1:13"]),
        ("transport: pigeon\n", &["pigeon", "http", "stdio", "orla.yaml:1:12"]),
        ("\ttools_dir: x\n", &["orla.yaml:1:", "tab"]),
        ("a: &a [*a]\n", &["orla.yaml:1:"]),
        ("tools_dir: ${NOPE_X\n", &["orla.yaml:1:"]),
        ("just text\n", &["orla.yaml:1:1"]),
        ("tools:\n  ls: {timeout: -1}\n", &["timeout", "orla.yaml:2:"]),
        ("max_concurrency: 0\n", &["max_concurrency", "orla.yaml:1:18"]),
        ("{\"port\": 1,, }", &["orla.yaml:1:"]),
    ];
    for (text, words) in cases {
        let found = problems(text).join("\n");
        assert!(words.iter().all(|word| found.contains(word)), "{text:?}: {found}");
    }
}

#[test]
fn all_mistakes_are_reported_at_once_in_the_order_of_the_file() {
    let found = problems("timeout: 0\ntool_dir: x\nport: -1\n");
    assert_eq!(found.len(), 3);
    assert!(found[0].ends_with(":1:10") && found[1].ends_with(":2:1") && found[2].ends_with(":3:7"));
}

#[test]
fn yaml_and_json_are_read_alike() {
    let yaml = Config::of("tools_dir: t\ntimeout: 0.5\ndeny: ['x*']\ntools: {ls: {enabled: false}}\n");
    let json = Config::of(
        r#"{"tools_dir": "t", "timeout": 0.5, "deny": ["x*"], "tools": {"ls": {"enabled": false}}}"#,
    );
    for config in [yaml, json] {
        let config = config.unwrap_or_else(|problems| panic!("{problems:?}"));
        assert_eq!(config.tools_dir, Path::new("t"));
        assert_eq!(config.timeout, Duration::from_millis(500));
        assert_eq!(config.deny, ["x*"]);
        assert_eq!(config.tools["ls"].enabled, Some(false));
    }
}

#[test]
fn variables_reach_fields_of_every_kind() {
    let mut config = Config::default();
    let mut problems = Vec::new();
    let text =
        "port: ${PORT:-9000}\ntimeout: \"${T}\"\nwatch: ${W}\ntools_dir: ${D}/tools\ndeny: [\"${N}\"]\n";
    let lookup = |name: &str| match name {
        "T" => Some("2.5".to_owned()),
        "W" => Some("true".to_owned()),
        "D" => Some("/srv".to_owned()),
        "N" => Some("7".to_owned()),
        _ => None,
    };
    let secrets = Resolver::new(None, None);
    read::file(&mut config, Path::new("orla.yaml"), text, None, &lookup, &secrets, &mut problems);
    assert_eq!(problems, []);
    assert_eq!((config.port, config.timeout), (9000, Duration::from_millis(2500)));
    assert!(config.watch);
    assert_eq!(
        (config.tools_dir.as_path(), config.deny),
        (Path::new("/srv/tools"), vec!["7".to_owned()])
    );
}

#[test]
fn flags_win_over_the_environment_over_the_file_over_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.yaml");
    std::fs::write(&file, "port: 1\ntimeout: 1\nmax_queue: 1\ntools_dir: here\n").unwrap();
    let source = Source {
        file: Some(file),
        flags: vec![("--port", "port", "3".into()), ("--tools-dir", "tools_dir", "there".into())],
        ..Source::default()
    };
    let env = |name: &str| match name {
        "ORLA_PORT" | "ORLA_TIMEOUT" => Some("2".into()),
        "ORLA_MAX_QUEUE" => Some("".into()),
        "ORLA_DENY" => Some("a*, b".into()),
        "ORLA_AUTH_TOKENS" => Some("one, two".into()),
        "ORLA_BUILTINS" => Some("math.*".into()),
        "ORLA_INSTANCE" => Some("ignored".into()),
        _ => None,
    };
    let config = source.load_with(&env).unwrap_or_else(|problems| panic!("{problems:?}"));
    assert_eq!((config.port, config.timeout.as_secs(), config.max_queue), (3, 2, 1));
    assert_eq!(config.deny, ["a*", "b"]);
    let secrets: Vec<&str> = config.auth_tokens.iter().map(|token| token.secret.as_str()).collect();
    assert_eq!(secrets, ["one", "two"]);
    assert_eq!(config.builtins, Builtins::Some(vec![Pattern::new("math.*")]));
    assert_eq!(config.tools_dir, Path::new("there"));
    assert_eq!(config.origins["port"], Origin::Flag("--port"));
    assert!(config.is_default("host") && !config.is_default("max_queue"));
}

#[test]
fn a_relative_path_in_a_file_is_relative_to_that_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.json");
    std::fs::write(&file, "{\"tools_dir\": \"t\", \"prompts_dir\": \"/p\"}").unwrap();
    let source = Source { file: Some(file), ..Source::default() };
    let config = source.load_with(&|_| None).unwrap_or_else(|problems| panic!("{problems:?}"));
    assert_eq!(config.tools_dir, dir.path().join("t"));
    assert_eq!(config.prompts_dir, Path::new("/p"));
}

#[test]
fn a_bad_variable_or_flag_is_named() {
    let source = Source { flags: vec![("--timeout", "timeout", "soon".into())], ..Source::default() };
    let env = |name: &str| match name {
        "ORLA_PORT" => Some("99999".into()),
        "ORLA_AUTH_TOKENS" => Some("s3\tcret".into()),
        _ => None,
    };
    let found: Vec<String> =
        source.load_with(&env).err().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "ORLA_PORT: expected a whole number from 0 to 65535, got \"99999\"",
            "ORLA_AUTH_TOKENS: expected a token of visible ASCII characters",
            "--timeout: expected a number of seconds above 0 and at most 86400, got \"soon\"",
        ]
    );
}

#[test]
fn files_that_cannot_be_read_are_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let huge = dir.path().join("huge.yaml");
    std::fs::File::create(&huge).unwrap().set_len(100 * 1024 * 1024).unwrap();
    let latin = dir.path().join("latin.yaml");
    std::fs::write(&latin, b"host: caf\xe9\n").unwrap();
    let cases = [
        (dir.path().join("none.yaml"), "No such file or directory"),
        (dir.path().to_owned(), "not a regular file"),
        (huge, "larger than 1048576 bytes"),
        (latin, "not UTF-8 (at byte 9)"),
    ];
    for (file, expected) in cases {
        let source = Source { file: Some(file), ..Source::default() };
        let found = source.load_with(&|_| None).err().unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().contains(expected), "{}", found[0]);
    }
}

#[test]
fn an_address_of_this_machine_needs_no_token() {
    for host in ["127.0.0.1", "::1", "[::1]", "localhost", "127.8.8.8"] {
        assert!(is_loopback(host), "{host}");
    }
    for host in ["0.0.0.0", "::", "192.168.1.4", "example.com", ""] {
        assert!(!is_loopback(host), "{host}");
    }
    for extra in
        ["auth_tokens: [secret-of-one-person]", "allow_unauthenticated: true", "transport: stdio"]
    {
        assert_eq!(problems(&format!("host: 0.0.0.0\n{extra}\n")), Vec::<String>::new(), "{extra}");
    }
}

#[test]
fn the_schema_has_every_key_and_the_published_copy_is_current() {
    let schema = schema::schema();
    let properties = schema["properties"].as_object().unwrap();
    let names: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    assert_eq!(properties.keys().map(String::as_str).collect::<Vec<_>>(), names);
    assert_current("orla.schema.json", |_| {
        format!("{}\n", serde_json::to_string_pretty(&schema).unwrap())
    });
}

#[test]
fn the_documentation_has_every_key_with_its_default() {
    let header = "| key | default | meaning |\n|---|---|---|\n";
    let rows = keys::documentation(&KEYS, "", &mut Config::default());
    assert_current("docs/configuration.md", |published| {
        let (before, table) = published.split_once(header).unwrap();
        let (_, after) = table.split_once("\n\n").unwrap();
        format!("{before}{header}{rows}\n{after}")
    });
}

#[test]
fn the_address_stays_while_the_server_runs() {
    let running = Config::of("host: 0.0.0.0\nauth_tokens: [secret-of-one-person]\n")
        .unwrap_or_else(|p| panic!("{p:?}"));
    let mut new = Config::of("port: 9\n").unwrap_or_else(|p| panic!("{p:?}"));
    assert_eq!(new.keep_restart_keys(&running), ["host", "port"]);
    assert_eq!((new.host.as_str(), new.port), ("0.0.0.0", 8080));
    assert_eq!(new.contradictions().len(), 1, "an open address still needs its tokens");
    let mut same = running.clone();
    assert!(same.keep_restart_keys(&running).is_empty() && same.contradictions().is_empty());
}

/// Every key whose change needs a restart, with two values of it.
const RESTARTS: &[(&str, &str, &str)] = &[
    ("transport", "transport: http", "transport: stdio"),
    ("host", "host: 127.0.0.1", "host: 127.0.0.2"),
    ("port", "port: 1", "port: 2"),
    ("auth.tls", "", "auth: {tls: {cert: ./c.pem, key: ./k.pem}}"),
    ("cluster", "", "cluster: {nats: 'nats://127.0.0.1:4222', name: c, node: n}"),
    ("state_dir", "state_dir: ./a", "state_dir: ./b"),
    ("state", "state: directory", "state: memory"),
    ("history.path", "history: {path: ./a.db}", "history: {path: ./b.db}"),
    ("telemetry.otlp", "", "telemetry: {otlp: 'http://127.0.0.1:9'}"),
    ("telemetry.headers", "", "telemetry: {headers: {x-a: '1'}}"),
    ("telemetry.sample_ratio", "", "telemetry: {sample_ratio: 0.5}"),
    ("a2a.allow_private_push", "", "a2a: {allow_private_push: true}"),
    ("audit", "audit: ./a.log", "audit: ./b.log"),
    ("audit_sync", "audit_sync: always", "audit_sync: never"),
    ("audit_key", "audit: ./a.log", "audit: ./a.log\naudit_key: ./k.pem"),
    ("audit_heads", "audit: ./a.log", "audit: ./a.log\naudit_heads: ./heads"),
];

#[test]
fn a_key_that_needs_a_restart_keeps_its_value_and_is_named() {
    let known: Vec<&str> = RESTARTS.iter().map(|(key, _, _)| *key).collect();
    assert_eq!(keys::names_that_need_a_restart(&KEYS, ""), known);
    let read = |text: &str| Config::of(text).unwrap_or_else(|problems| panic!("{text}: {problems:?}"));
    for (key, first, second) in RESTARTS {
        for (before, after) in [(first, second), (second, first)] {
            let (running, mut new) = (read(before), read(after));
            assert_eq!(new.keep_restart_keys(&running), [*key]);
            assert!(new.keep_restart_keys(&running).is_empty(), "{key} has its running value");
        }
    }
}

#[test]
fn a_file_full_of_mistakes_is_read_in_time_and_reported_in_brief() {
    let keys: String = (0..20_000).map(|n| format!("tool_dir{n}: x\n")).collect();
    let tools: String = (0..20_000).map(|n| format!("  t{n}: {{rename: t}}\n")).collect();
    for text in [keys, format!("tools:\n{tools}")] {
        // A search through all keys for each key takes many minutes.
        let found = problems(&text);
        assert_eq!(found.len(), 21);
        assert!(
            found[20].starts_with("and 199") && found[20].ends_with(" more problems in orla.yaml"),
            "{}",
            found[20]
        );
    }
}

#[test]
fn references_to_secrets_are_filled_in_anywhere_and_no_message_repeats_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = SecretStore::new(dir.path().join("store"));
    store.set("token", "s3cret-value-of-token").unwrap();
    std::fs::write(dir.path().join("port"), "9001\n").unwrap();
    let read = |text: &str| {
        let (mut config, mut problems) = (Config::default(), Vec::new());
        let secrets = Resolver::new(Some(store.clone()), None);
        let path = dir.path().join("orla.yaml");
        read::file(&mut config, &path, text, None, &|_| None, &secrets, &mut problems);
        (config, problems.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let (config, problems) =
        read("auth_tokens: {ada: 'x-${secret:token}'}\nport: ${file:port}\nhost: ${command:echo ::1}\n");
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(config.auth_tokens[0].secret, "x-s3cret-value-of-token");
    assert_eq!((config.port, config.host.as_str()), (9001, "::1"));
    assert_eq!(config.secrets.text("s3cret-value-of-token!"), "[redacted]!");
    assert!(config.named_files.contains(&dir.path().join("port")));
    assert!(config.named_files.contains(&store.path()));
    // A project's file is not the user's own.
    let (mut config, mut problems) = (Config::default(), Vec::new());
    let (path, secrets) = (dir.path().join(".mcp.json"), Resolver::new(None, None));
    let text = r#"{"mcpServers": {"a": {"command": "a", "args": ["${command:touch ran}"]}}}"#;
    read::file(&mut config, &path, text, None, &|_| None, &secrets, &mut problems);
    assert!(problems[0].to_string().contains("user's own") && !dir.path().join("ran").exists());
    let (_, problems) = read("port: ${secret:token}\nhost: ${secret:none}\n");
    assert!(problems[1].contains("orla secret set none"), "{problems:?}");
    assert!(problems[0].contains("[redacted]") && !problems[0].contains("s3cret"), "{problems:?}");
}
