//! Tests of the keys `mcpServers`, `capabilities`, `openapi` and `builtins`.

use std::path::Path;

use orla_marketplace::id::Pattern;
use orla_marketplace::{
    ANNOTATIONS, BodyMapping, CredentialPlace, ProviderType, Redirects, StreamTransport, StreamType,
    TITLE,
};
use orla_providers::mcp::{Reach, ServerSettings};
use orla_providers::openapi::{Location, Selection};
use orla_secrets::Resolver;
use proptest::prelude::*;

use super::*;

const CLIENTS: [(&str, &str); 6] = [
    ("claude_desktop_config.json", include_str!("clients/claude_desktop.json")),
    (".mcp.json", include_str!("clients/claude_code.json")),
    (".vscode/mcp.json", include_str!("clients/vscode.json")),
    (".cursor/mcp.json", include_str!("clients/cursor.json")),
    ("mcp_config.json", include_str!("clients/windsurf.json")),
    ("cline_mcp_settings.json", include_str!("clients/cline.json")),
];

fn env(name: &str) -> Option<String> {
    match name {
        "HOME" => Some("/home/ada".to_owned()),
        "API_KEY" | "PERPLEXITY_KEY" => Some("k3y".to_owned()),
        _ => None,
    }
}

fn read_at(path: &Path, text: &str) -> (Config, Vec<String>) {
    let (mut config, mut problems) = (Config::default(), Vec::new());
    read::file(&mut config, path, text, None, &env, &Resolver::new(None, None), &mut problems);
    (config, problems.iter().map(ToString::to_string).collect())
}

pub(super) fn good(text: &str) -> Config {
    let (config, problems) = read_at(Path::new("/etc/orla/orla.yaml"), text);
    assert_eq!(problems, Vec::<String>::new(), "{text}");
    config
}

pub(super) fn problems(text: &str) -> Vec<String> {
    read_at(Path::new("orla.yaml"), text).1
}

fn warnings(config: &Config) -> Vec<String> {
    config.warnings.iter().map(ToString::to_string).collect()
}

/// One of the clients' files, where it would stand.
fn client(file: &str) -> (tempfile::TempDir, Config) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    for env in [dir.path().join(".env"), path.parent().unwrap().join(".env")] {
        std::fs::write(env, "# c\nexport FROM_FILE='a b'\nAPI_KEY=overridden\n").unwrap();
    }
    let text = CLIENTS.iter().find(|(name, _)| *name == file).unwrap().1;
    let (config, problems) = read_at(&path, text);
    assert_eq!(problems, Vec::<String>::new(), "{file}");
    (dir, config)
}

fn server<'a>(config: &'a Config, name: &str) -> &'a ServerSettings {
    &config.servers.iter().find(|server| server.value.name == name).unwrap().value
}

fn process(config: &Config, name: &str) -> (String, Vec<String>, BTreeMap<String, String>) {
    match &server(config, name).reach {
        Reach::Process { command, args, env, .. } => (command.clone(), args.clone(), env.clone()),
        Reach::Http { .. } => panic!("{name} is reached over HTTP"),
    }
}

fn http(config: &Config, name: &str) -> (String, BTreeMap<String, String>) {
    match &server(config, name).reach {
        Reach::Http { url, headers } => (url.clone(), headers.clone()),
        Reach::Process { .. } => panic!("{name} is a process"),
    }
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_claude_desktop_file_works_unchanged() {
    let (_dir, config) = client("claude_desktop_config.json");
    assert_eq!(warnings(&config), Vec::<String>::new());
    let (command, args, env) = process(&config, "filesystem");
    assert_eq!((command.as_str(), args.len(), env.len()), ("npx", 4, 0));
    assert_eq!(args[1], "@modelcontextprotocol/server-filesystem");
    let (_, _, env) = process(&config, "github");
    assert_eq!(env, pairs(&[("GITHUB_PERSONAL_ACCESS_TOKEN", "<YOUR_TOKEN>")]));
}

#[test]
fn other_keys_of_a_clients_file_are_ignored_with_a_warning() {
    let servers = r#""mcpServers": {"a": {"command": "x"}}"#;
    let at = |name: &str, more: &str| read_at(Path::new(name), &format!("{{{more}, {servers}}}"));
    let (config, problems) = at("claude_desktop_config.json", r#""globalShortcut": "Ctrl+Space""#);
    assert_eq!((config.servers.len(), problems), (1, Vec::new()));
    assert!(warnings(&config)[0].contains("globalShortcut: unknown key, ignored"));
    for (name, more, problem) in [
        ("orla.yaml", r#""globalShortcut": 1"#, "globalShortcut: unknown key"),
        ("orla.json", r#""globalShortcut": 1, "port": 1"#, "globalShortcut: unknown key"),
        ("mcp.json", r#""tool_dir": "x""#, "tool_dir: unknown key, did you mean tools_dir?"),
    ] {
        assert!(at(name, more).1[0].contains(problem), "{name}");
    }
}

#[test]
fn a_claude_code_file_works_unchanged() {
    let (_dir, config) = client(".mcp.json");
    let (url, headers) = http(&config, "api-server");
    assert_eq!(url, "https://api.example.com/mcp");
    assert_eq!(headers, pairs(&[("Authorization", "Bearer k3y")]));
    assert_eq!(server(&config, "api-server").timeout, Some(Duration::from_secs(600)));
    assert!(
        warnings(&config)[0].contains("600000 is taken for milliseconds"),
        "{:?}",
        warnings(&config)
    );
}

#[test]
fn a_vs_code_file_works_unchanged() {
    let (dir, config) = client(".vscode/mcp.json");
    assert_eq!(warnings(&config), Vec::<String>::new());
    assert_eq!(http(&config, "Github").0, "https://api.githubcopilot.com/mcp/");
    let (_, args, env) = process(&config, "Perplexity");
    assert_eq!(args[2], "--region=eu");
    assert_eq!(env, pairs(&[("PERPLEXITY_API_KEY", "k3y")]));
    let (command, _, env) = process(&config, "fetch");
    assert_eq!(command, "uvx");
    assert_eq!(env, pairs(&[("API_KEY", "overridden"), ("FROM_FILE", "a b")]));
    assert_eq!(config.named_files, [dir.path().join(".env")]);
}

#[test]
fn a_cursor_file_works_unchanged() {
    let (dir, config) = client(".cursor/mcp.json");
    let (_, args, env) = process(&config, "local-server");
    let script = dir.path().join("tools/mcp_server.py").to_str().unwrap().to_owned();
    assert_eq!(args, [script.as_str(), "--home", "/home/ada/data"]);
    assert_eq!(env, pairs(&[("API_KEY", "k3y"), ("FROM_FILE", "a b")]));
    let (_, headers) = http(&config, "remote-server");
    assert_eq!(headers, pairs(&[("Authorization", "Bearer k3y"), ("X-Team-Id", "team-1")]));
    assert_eq!(http(&config, "oauth-server").0, "https://api.example.com/oauth/mcp");
    let auth = server(&config, "oauth-server").auth.as_ref().unwrap();
    assert_eq!(auth.client_id.as_deref(), Some("client-1"));
    assert_eq!(auth.scopes, Some(orla_oauth::Scopes::parse("read write")));
    assert_eq!(warnings(&config), Vec::<String>::new());
}

#[test]
fn a_windsurf_file_works_unchanged() {
    let (_dir, config) = client("mcp_config.json");
    assert_eq!(config.servers.len(), 1, "a server that is switched off is not there");
    assert_eq!(server(&config, "github").names.exclude, [Pattern::new("delete_repository")]);
    assert_eq!(warnings(&config), Vec::<String>::new());
}

#[test]
fn a_cline_file_works_unchanged() {
    let (_dir, config) = client("cline_mcp_settings.json");
    let names: Vec<&str> = config.servers.iter().map(|server| server.value.name.as_str()).collect();
    let long = "github_com_modelcontextprotocol_servers_";
    assert!(names[0].starts_with(long) && names[0].len() == 48, "{names:?}");
    assert_eq!(names[1..], ["local-server", "remote-server", "legacy-server"]);
    assert_eq!(server(&config, names[0]).timeout, Some(Duration::from_secs(60)));
    assert_eq!(http(&config, "remote-server").0, "https://your-server-url.com/mcp");
    assert!(
        warnings(&config)[0]
            .contains("mcpServers.legacy-server.type: sse is the transport of old servers")
    );
    assert_eq!(config.warnings.len(), 1);
}

#[test]
fn settings_of_a_server_entry_are_read() {
    let config = good(
        "mcpServers:\n  a b:\n    command: ./bin/server\n    args: [-p, 80]\n    pass_env: [API_*]\n    cwd: work\n    prefix: ''\n    rename: {get: fetch}\n    include: ['g*', put]\n    exclude: delete_*\n    timeout: 1.5\n    startup_timeout: 60\n    eager: true\n    tools:\n      get: {timeout: 5}\n",
    );
    let mut expected = ServerSettings::new(
        "a_b",
        Reach::Process {
            command: "/etc/orla/./bin/server".to_owned(),
            args: vec!["-p".to_owned(), "80".to_owned()],
            env: BTreeMap::new(),
            pass_env: vec![Pattern::new("API_*")],
            cwd: Some("/etc/orla/work".into()),
        },
    );
    expected.names.prefix = Some(String::new());
    expected.names.rename = pairs(&[("get", "fetch")]);
    expected.names.include = Some(vec![Pattern::new("g*"), Pattern::new("put")]);
    expected.names.exclude = vec![Pattern::new("delete_*")];
    expected.timeout = Some(Duration::from_millis(1500));
    expected.startup_timeout = Duration::from_secs(60);
    expected.eager = true;
    expected.tool_timeouts.insert("get".to_owned(), Duration::from_secs(5));
    assert_eq!(config.servers[0].value, expected);
    let only = good("mcpServers: {x: {url: 'http://h/mcp', tools: [a, 'b*']}}");
    assert_eq!(server(&only, "x").names.include, Some(vec![Pattern::new("a"), Pattern::new("b*")]));
}

#[test]
fn servers_with_the_same_mcp_name_get_distinct_names() {
    let config = good("mcpServers: {a.b: {command: x}, a b: {command: y}, a.b.2: {command: z}}");
    let names: Vec<&str> = config.servers.iter().map(|server| server.value.name.as_str()).collect();
    assert_eq!(names, ["a_b", "a_b_2", "a_b_2_2"]);
    assert!(warnings(&config)[0].contains("another server has this name in MCP"));
}

#[test]
fn a_file_that_starts_orla_with_itself_does_not_start_it_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mcp.json");
    let other = dir.path().join("other.yaml");
    std::fs::write(&other, "").unwrap();
    let entry = |name: &str, config: &Path| {
        format!("{name}: {{command: /usr/bin/orla, args: [--stdio, --config, {}]}}", config.display())
    };
    let text = format!("mcpServers: {{{}, {}}}", entry("orla", &file), entry("next", &other));
    std::fs::write(&file, &text).unwrap();
    let (config, problems) = read_at(&file, &text);
    assert_eq!(problems, Vec::<String>::new());
    let names: Vec<&str> = config.servers.iter().map(|server| server.value.name.as_str()).collect();
    assert_eq!(names, ["next"]);
    assert!(warnings(&config)[0].contains("mcpServers.orla: orla itself with this very configuration"));

    // Without `--config`, the file of its working directory.
    let found = dir.path().join("orla.yaml");
    let entry = |rest: &str| format!("{{command: orla, args: [--stdio]{rest}}}");
    let text = format!(
        "mcpServers: {{own: {}, elsewhere: {}}}",
        entry(&format!(", cwd: {}", dir.path().display())),
        entry(", cwd: /"),
    );
    std::fs::write(&found, &text).unwrap();
    let (config, problems) = read_at(&found, &text);
    assert_eq!(problems, Vec::<String>::new());
    let names: Vec<&str> = config.servers.iter().map(|server| server.value.name.as_str()).collect();
    assert_eq!(names, ["elsewhere"]);
}

#[test]
fn a_key_that_may_restrict_a_server_is_not_ignored_unless_the_server_is_off() {
    for (key, meant) in [
        ("enabled_tools", "include"),
        ("Allow", "include"),
        ("allowed-tools", "include"),
        ("includes", "include"),
        ("deniedTool", "exclude"),
        ("disabled_tools", "exclude"),
        ("permission", "permissions"),
    ] {
        let expected =
            format!("mcpServers.a.{key}: unknown key, did you mean {meant}? at orla.yaml:1:30");
        assert_eq!(problems(&format!("mcpServers: {{a: {{command: x, {key}: [b]}}}}")), [expected]);
        for off in ["disabled: true", "enabled: false"] {
            let config = good(&format!("mcpServers: {{a: {{command: x, {key}: [b], {off}}}}}"));
            assert!(config.servers.is_empty() && config.warnings.len() == 1, "{key}");
        }
    }
}

#[test]
fn every_mistake_in_a_server_is_named_with_its_place() {
    let cases = [
        (
            "mcpServers: [a]\n",
            "mcpServers: expected a mapping from names of servers to how they are reached, got a list at orla.yaml:1:13",
        ),
        (
            "mcpServers: {a: x}\n",
            "mcpServers.a: expected a mapping with command or url, got text \"x\" at orla.yaml:1:17",
        ),
        (
            "mcpServers: {a: {}}\n",
            "mcpServers.a: expected command (a program) or url (an endpoint) at orla.yaml:1:14",
        ),
        (
            "mcpServers: {a: {comand: x}}\n",
            "mcpServers.a.comand: unknown key, did you mean command? command or url is missing at orla.yaml:1:18",
        ),
        (
            "mcpServers: {a: {command: x, url: 'http://h'}}\n",
            "mcpServers.a: command and url exclude each other at orla.yaml:1:14",
        ),
        (
            "mcpServers: {a: {type: stdio, url: 'http://h'}}\n",
            "mcpServers.a: expected command, as its type is stdio at orla.yaml:1:14",
        ),
        (
            "mcpServers: {a: {type: http, command: x}}\n",
            "mcpServers.a: expected url, as its type is http at orla.yaml:1:14",
        ),
        (
            "mcpServers: {a: {url: 'ftp://s3cret@h'}}\n",
            "mcpServers.a.url: expected an address such as https://example.com/mcp at orla.yaml:1:23",
        ),
        (
            "mcpServers: {a: {command: x, args: s3cret}}\n",
            "mcpServers.a.args: expected a list of texts at orla.yaml:1:36",
        ),
        (
            "mcpServers: {a: {command: x, env: {A: [s3cret]}}}\n",
            "mcpServers.a.env.A: expected text at orla.yaml:1:39",
        ),
        (
            "mcpServers: {a: {command: x, env: {A: '${NOPE}'}}}\n",
            "mcpServers.a.env.A: the environment variable NOPE is not set (write ${NOPE:-default} to give a default) at orla.yaml:1:39",
        ),
        (
            "mcpServers: {a: {command: x, env: {A: '${env:NOPE}'}}}\n",
            "mcpServers.a.env.A: the environment variable NOPE is not set (write ${NOPE:-default} to give a default) at orla.yaml:1:39",
        ),
        (
            "mcpServers: {a: {command: x, env: {A: '${input:my-key}'}}}\n",
            "mcpServers.a.env.A: the input my-key is not known: set the environment variable MY_KEY, or give it a default in inputs at orla.yaml:1:39",
        ),
        (
            "mcpServers: {a: {url: 'http://h', headers: {'a b': s3cret}}}\n",
            "mcpServers.a.headers.a b: expected a name that a header field can have at orla.yaml:1:52",
        ),
        (
            "mcpServers: {a: {url: 'http://h', headers: {a: \"s3\\ncret\"}}}\n",
            "mcpServers.a.headers.a: expected text in one line at orla.yaml:1:48",
        ),
        (
            "mcpServers: {a: {command: x, timeout: soon}}\n",
            "mcpServers.a.timeout: expected a number of seconds above 0 and at most 86400, got text \"soon\" at orla.yaml:1:39",
        ),
        (
            "mcpServers: {a: {command: x, prefix: 'a b'}}\n",
            "mcpServers.a.prefix: expected at most 48 letters, digits, `_` or `-`, got text \"a b\" at orla.yaml:1:38",
        ),
        (
            "mcpServers: {a: {command: x, rename: {b: c, d: c}}}\n",
            "mcpServers.a.rename.d: another tool is already called c at orla.yaml:1:48",
        ),
        (
            "mcpServers: {a: {command: x, tools: {b: {timeot: 1}}}}\n",
            "mcpServers.a.tools.b.timeot: unknown key, did you mean timeout? at orla.yaml:1:42",
        ),
        (
            "mcpServers: {a: {command: x, envFile: nope.env}}\n",
            "mcpServers.a.envFile: nope.env cannot be read: No such file or directory at orla.yaml:1:39",
        ),
        (
            "mcpServers: {a: {command: x}}\nservers: {a: {command: y}}\n",
            "servers.a: given twice, first on line 1 at orla.yaml:2:11",
        ),
        (
            "capabilities: [{id: w, provider: {http: {base_url: 'http://h'}}, annotations: {destructivHint: true}}]\n",
            "capabilities[0].annotations.destructivHint: unknown annotation, did you mean destructiveHint? at orla.yaml:1:80",
        ),
        (
            "capabilities: [{id: w, providers: [{http: {base_url: 'http://h'}}], route: {by: '(:user inpt)'}}]\n",
            "capabilities[0].route.by: 1:8: `inpt` is not defined; did you mean `input`? at orla.yaml:1:81",
        ),
        (
            "capabilities: [{id: w, providers: [{http: {base_url: 'http://h'}}], route: {by: '(:user input'}}]\n",
            "capabilities[0].route.by: 1:1: `(` is never closed: `)` is missing at orla.yaml:1:81",
        ),
        (
            "capabilities: [{id: w, provider: {stream: {comand: ls}}}]\n",
            "capabilities[0].provider.stream.comand: unknown key, did you mean command? at orla.yaml:1:44",
        ),
        ("inputs: {}\n", "inputs: expected a list of inputs, got a mapping at orla.yaml:1:9"),
        ("inputs: [{default: x}]\n", "inputs[0].id: missing, and required at orla.yaml:1:10"),
    ];
    for (text, expected) in cases {
        let found = problems(text);
        assert_eq!(found, [expected], "{text:?}");
        assert!(!found[0].contains("s3cret"), "{}", found[0]);
    }
}

#[test]
fn capabilities_are_read_with_the_documents_names() {
    let text = "capabilities:\n- id: weather.current\n  name: Weather\n  title: The weather\n  description: Says what the weather is.\n  version: 1.2\n  provider:\n    Http: {base_url: 'https://api.example.com/v1', auth_token: '${API_KEY}', timeout_ms: 5000}\n  input_schema: {city: string}\n  output_schema: {type: object}\n  permissions: ['net:api.example.com']\n  metadata: {team: weather, level: 3}\n  annotations: {readOnlyHint: true}\n  max_concurrency: 4\n  retries: 2\n  attestation: {signature: abc, authority: ops, created_at: '2026-01-31T12:00:00Z', expires_at: '2027-01-31T12:00:00Z'}\n  provenance: {source: 'https://example.com', version: 7, content_hash: 'sha256:00', custody_chain: [a, b], registered_at: '1970-01-01T00:00:01Z'}\n";
    let config = good(text);
    let Placed { value, at } = &config.capabilities[0];
    let manifest = &value.manifest;
    assert_eq!((at.line, at.column), (2, 7));
    assert_eq!((manifest.id.as_str(), manifest.name.as_str()), ("weather.current", "Weather"));
    assert_eq!((manifest.version.as_str(), manifest.permissions.len()), ("1.2", 1));
    let ProviderType::Http(http) = &manifest.provider else { panic!("{:?}", manifest.provider) };
    assert_eq!((http.base_url.as_str(), http.timeout_ms), ("https://api.example.com/v1", 5000));
    assert_eq!(http.auth_token.as_deref(), Some("k3y"));
    assert_eq!(
        (manifest.metadata[TITLE].as_str(), manifest.metadata["level"].as_str()),
        ("The weather", "3")
    );
    assert_eq!(manifest.metadata[ANNOTATIONS], "{\"readOnlyHint\":true}");
    assert!(
        manifest.is_idempotent() && manifest.input_schema.is_some() && manifest.output_schema.is_some()
    );
    assert_eq!(value.policy.timeout, Some(Duration::from_secs(5)));
    assert_eq!((value.policy.max_concurrency, value.policy.retries), (Some(4), Some(2)));
    assert_eq!(value.policy.upstream.as_deref(), Some("https://api.example.com"));
    let attestation = manifest.attestation.as_ref().unwrap();
    let years = attestation.expires_at.unwrap().duration_since(attestation.created_at).unwrap();
    assert_eq!(years, Duration::from_secs(365 * 86_400));
    let provenance = manifest.provenance.as_ref().unwrap();
    assert_eq!(provenance.registered_at, std::time::UNIX_EPOCH + Duration::from_secs(1));
    assert_eq!(provenance.version.as_deref(), Some("7"));
}

#[test]
fn a_provider_may_be_written_in_any_of_its_forms() {
    let kinds = [
        "{Local: {function: math.add}}",
        "{local: }",
        "local",
        "Local",
        "{type: local}",
        "{Http: {base_url: 'http://h/x?key=s3cret'}}",
        "{HTTP: {base_url: 'http://h'}}",
        "{type: http, base_url: 'http://h', method: get, path: '/{city}'}",
        "{MCP: {server_url: 'stdio:server --flag', tool_name: add}}",
        "{type: MCP, server_url: 'https://h/mcp', tool_name: }",
        "{mcp: {server_url: 'mcp:my server', tool_name: '*'}}",
    ];
    let ids = [
        "sum",
        "math.add",
        "math.subtract",
        "math.multiply",
        "math.divide",
        "h1",
        "h2",
        "h3",
        "m1",
        "m2",
        "m3",
    ];
    let config = good(&format!(
        "mcpServers: {{my server: {{command: x}}}}\ncapabilities:\n{}",
        kinds
            .iter()
            .zip(ids)
            .map(|(kind, id)| format!("- {{id: {id}, provider: {kind}}}\n"))
            .collect::<String>()
    ));
    let found: Vec<&str> =
        config.capabilities.iter().map(|one| one.value.manifest.provider.kind()).collect();
    let expected =
        ["local", "local", "local", "local", "local", "http", "http", "http", "mcp", "mcp", "mcp"];
    assert_eq!(found, expected);
    let function = |index: usize| match &config.capabilities[index].value.manifest.provider {
        ProviderType::Local(local) => local.function.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (function(0).as_str(), function(1).as_str(), function(2).as_str()),
        ("math.add", "math.add", "math.subtract")
    );
    let every: Vec<bool> = config
        .capabilities
        .iter()
        .map(|one| matches!(&one.value.manifest.provider, ProviderType::MCP(mcp) if mcp.pattern().is_some()))
        .collect();
    assert_eq!(every[8..], [false, true, true]);
    let ProviderType::MCP(last) = &config.capabilities[10].value.manifest.provider else { panic!() };
    assert_eq!(last.server_url, "mcp:my_server");
    let description = |index: usize| description_of(&config.capabilities[index].value.manifest.provider);
    let local = &config.capabilities[0].value.manifest;
    assert!(
        local.input_schema.is_some() && local.is_idempotent(),
        "what the built-in says of itself holds"
    );
    assert_eq!(description(5), "Sends POST http://h/x and gives the answer.");
    assert_eq!(description(7), "Sends GET http://h/{city} and gives the answer.");
    assert_eq!(description(8), "The tool add of the MCP server.");
}

#[test]
fn request_settings_are_read_at_the_top_level_and_below_options() {
    let options = "method: patch, path: '/{id}', query: {q: '{word}', n: 3}, headers: {X-A: b}, body: {argument: doc}, media_type: text/plain, accept: ['text/*'], redirects: same_origin, max_redirects: 2, max_answer_bytes: 10, credentials: {header: {X-Key: '${API_KEY}'}, query: {k: v}, cookie: {s: t}}";
    for provider in [
        format!("{{Http: {{base_url: 'http://h', {options}}}}}"),
        format!("{{Http: {{base_url: 'http://h', options: {{{options}}}}}}}"),
    ] {
        let config = good(&format!("capabilities: [{{id: a, provider: {provider}}}]"));
        let ProviderType::Http(http) = &config.capabilities[0].value.manifest.provider else { panic!() };
        let options = &http.options;
        assert_eq!((options.method.as_deref(), options.path.as_str()), (Some("PATCH"), "/{id}"));
        assert_eq!(options.query, pairs(&[("q", "{word}"), ("n", "3")]));
        assert_eq!(options.body, BodyMapping::Argument("doc".to_owned()));
        assert_eq!((options.redirects, options.max_redirects), (Redirects::SameOrigin, 2));
        assert_eq!((options.max_answer_bytes, options.accept.len()), (10, 1));
        let places: Vec<CredentialPlace> =
            options.credentials.iter().map(|credential| credential.place.clone()).collect();
        use CredentialPlace::{Cookie, Header, Query};
        assert_eq!(places, [Header("X-Key".into()), Query("k".into()), Cookie("s".into())]);
        assert_eq!(options.credentials[0].value, "k3y");
    }
}

#[test]
fn every_mistake_in_a_capability_is_named_with_its_place() {
    let cases = [
        (
            "capabilities: {}\n",
            "capabilities: expected a list of capabilities, got a mapping at orla.yaml:1:15",
        ),
        (
            "capabilities: [x]\n",
            "capabilities[0]: expected a mapping with id and provider, or with openapi, got text \"x\" at orla.yaml:1:16",
        ),
        (
            "capabilities: [{provider: {local: {function: math.add}}}]\n",
            "capabilities[0].id: missing, and required at orla.yaml:1:16",
        ),
        (
            "capabilities: [{id: a}]\n",
            "capabilities[0].provider: missing, and required at orla.yaml:1:16",
        ),
        (
            "capabilities: [{id: ' a', provider: {local: {function: math.add}}}]\n",
            "capabilities[0].id: expected at most 256 bytes in one line, without blanks around, got text \" a\" at orla.yaml:1:21",
        ),
        (
            "capabilities: [{id: a, descripton: x, provider: {local: {function: math.add}}}]\n",
            "capabilities[0].descripton: unknown key, did you mean description? at orla.yaml:1:24",
        ),
        (
            "capabilities: [{id: a, provider: {local: {function: math.add}}}, {id: b, provider: {local: {function: math.add}}},\n {id: a, provider: {local: {function: math.add}}}]\n",
            "capabilities[2].id: a is declared twice, first on line 1 at orla.yaml:2:7",
        ),
        (
            "capabilities: [{id: a, provider: {type: htp, base_url: x}}]\n",
            "capabilities[0].provider: unknown kind \"htp\" (did you mean Http?); supported are Local, Http, MCP, A2A, Plugin, RemoteRTFS, Remote, Stream or Custom at orla.yaml:1:34",
        ),
        (
            "capabilities: [{id: a, provider: {}}]\n",
            "capabilities[0].provider: expected a mapping such as {Http: {base_url: …}} or {type: http, base_url: …}, got 0 keys at orla.yaml:1:34",
        ),
        (
            "capabilities: [{id: a, provider: {Http: {}}}]\n",
            "capabilities[0].provider.Http.base_url: missing, and required at orla.yaml:1:35",
        ),
        (
            "capabilities: [{id: a, provider: {Http: {base_url: s3cret}}}]\n",
            "capabilities[0].provider.Http.base_url: expected an address such as https://api.example.com/v1; put http:// or https:// in front at orla.yaml:1:52",
        ),
        (
            "capabilities: [{id: a, provider: {Http: {base_url: 'http://h', auth_token: 's3 cret'}}}]\n",
            "capabilities[0].provider.Http.auth_token: expected a token of visible ASCII characters at orla.yaml:1:76",
        ),
        (
            "capabilities: [{id: a, provider: {Http: {base_url: 'http://h', methd: GET}}}]\n",
            "capabilities[0].provider.Http.methd: unknown key, did you mean method? at orla.yaml:1:64",
        ),
        (
            "capabilities: [{id: a, provider: {Stream: {url: 'http://h', directon: source}}}]\n",
            "capabilities[0].provider.Stream.directon: unknown key, did you mean direction? at orla.yaml:1:61",
        ),
        (
            "capabilities: [{id: a, provider: {Http: {base_url: 'http://h', method: FETCH}}}]\n",
            "capabilities[0].provider.Http.method: expected GET, POST, PUT, PATCH, DELETE, HEAD or OPTIONS, got text \"FETCH\" at orla.yaml:1:72",
        ),
        (
            "capabilities: [{id: a, provider: {Http: {base_url: 'http://h', timeout_ms: -1}}}]\n",
            "capabilities[0].provider.Http.timeout_ms: expected a whole number from 0 to 86400000, got -1 at orla.yaml:1:76",
        ),
        (
            "capabilities: [{id: a, provider: {MCP: {server_url: s3cret}}}]\n",
            "capabilities[0].provider.MCP.server_url: expected http(s)://…, stdio:COMMAND ARGS… or mcp:NAME (a server of mcpServers) at orla.yaml:1:53",
        ),
        (
            "mcpServers: {notes: {command: x}}\ncapabilities: [{id: a, provider: {MCP: {server_url: 'mcp:note'}}}]\n",
            "a: mcpServers has no server note, did you mean notes? at orla.yaml:2:21",
        ),
        (
            "capabilities: [{id: a, timeout: 0, provider: {local: {function: math.add}}}]\n",
            "capabilities[0].timeout: expected a number of seconds above 0 and at most 86400, got 0 at orla.yaml:1:33",
        ),
        (
            "capabilities: [{id: a, retries: 11, provider: {local: {function: math.add}}}]\n",
            "capabilities[0].retries: expected a whole number from 0 to 10, got 11 at orla.yaml:1:33",
        ),
        (
            "capabilities: [{id: a, attestation: {signature: x, authority: y}, provider: {local: {function: math.add}}}]\n",
            "capabilities[0].attestation.created_at: missing, and required at orla.yaml:1:37",
        ),
        (
            "capabilities: [{id: a, provenance: {source: x, content_hash: y, registered_at: soon}, provider: {local: {function: math.add}}}]\n",
            "capabilities[0].provenance.registered_at: expected an instant such as 2026-01-31T12:00:00Z, got text \"soon\" at orla.yaml:1:80",
        ),
        (
            "openapi: [[x]]\n",
            "openapi[0]: expected a file, an address, a mapping with openapi, or a list of these, got a list at orla.yaml:1:11",
        ),
        ("openapi: {name: x}\n", "openapi.openapi: missing, and required at orla.yaml:1:10"),
        (
            "capabilities: [{openapi: a.yaml, includ: x}]\n",
            "capabilities[0].includ: unknown key, did you mean include? at orla.yaml:1:34",
        ),
        (
            "openapi: {openapi: a.yaml, include: [{tga: x}]}\n",
            "openapi.include[0].tga: unknown key, did you mean tag? at orla.yaml:1:39",
        ),
        (
            "capabilities: [{id: math.ad, provider: local}]\n",
            "capabilities[0]: no built-in is named math.ad, did you mean math.add? at orla.yaml:1:21",
        ),
        (
            "capabilities: [{id: a, provider: {Http: {base_url: 'http://h', path: '/{'}}}]\n",
            "capabilities[0].provider.Http: `/{`: expected {NAME}, or {{ and }} for braces at orla.yaml:1:35",
        ),
        (
            "builtins: some\n",
            "builtins: expected true, false or a list of name patterns, got text \"some\" at orla.yaml:1:11",
        ),
        (
            "tools: {x: {max_concurrency: 0}}\n",
            "tools.x.max_concurrency: expected a whole number from 1 to 65536, got 0 at orla.yaml:1:30",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(problems(text), [expected], "{text:?}");
    }
}

#[test]
fn an_argument_in_the_path_that_the_schema_does_not_declare_is_a_warning() {
    let of = |schema: &str| {
        let provider = "provider: {Http: {base_url: 'https://a.example', path: '/a/{city}'}}";
        let config = good(&format!("capabilities: [{{id: a, {provider}{schema}}}]\n"));
        warnings(&config)
    };
    let found = of(", input_schema: {town: string}");
    let text = "a: its path contains {city}, which input_schema does not declare at ";
    assert!(found.len() == 1 && found[0].starts_with(text), "{found:?}");
    assert_eq!(of(", input_schema: {city: string}"), [""; 0]);
    assert_eq!(of(""), [""; 0]);
}

#[test]
fn openapi_documents_may_stand_in_either_key() {
    let config = good(
        "openapi: pets.yaml\ncapabilities:\n- openapi: https://api.example.com/openapi.json\n  name: shop\n  base_url: https://staging.example.com\n  security: {key: '${API_KEY}'}\n  headers: {X-A: b}\n  include: [{tag: [pets, shops]}, {operation: get*}, {path: /pets/*}, listPets, 'GET /a/*', /b]\n  exclude: delete*\n  timeout: 9\n",
    );
    assert_eq!(config.documents.len(), 2);
    assert_eq!(config.documents[0].value.document, Location::File("/etc/orla/pets.yaml".into()));
    assert_eq!(config.named_files, [PathBuf::from("/etc/orla/pets.yaml")]);
    let document = &config.documents[1].value;
    assert_eq!(document.document, Location::Url("https://api.example.com/openapi.json".into()));
    assert_eq!(document.name.as_deref(), Some("shop"));
    assert_eq!(document.security, pairs(&[("key", "k3y")]));
    use Selection::{Operation, Path, Tag};
    let expected = [
        Tag(Pattern::new("pets")),
        Tag(Pattern::new("shops")),
        Operation(Pattern::new("get*")),
        Path(Pattern::new("/pets/*")),
        Operation(Pattern::new("listPets")),
        Path(Pattern::new("GET /a/*")),
        Path(Pattern::new("/b")),
    ];
    assert_eq!(document.include, expected);
    assert_eq!(document.exclude, [Operation(Pattern::new("delete*"))]);
    let list = good("openapi: [a.json, {openapi: 'file:///b.json'}]");
    assert_eq!(list.documents[1].value.document, Location::File("/b.json".into()));
}

#[test]
fn builtins_are_listed_as_the_key_says() {
    use orla_marketplace::Listing::{Listed, Unlisted};
    let cases = [
        ("", Some(Unlisted), Some(Unlisted)),
        ("builtins: true", Some(Listed), Some(Listed)),
        ("builtins: false", None, None),
        ("builtins: ['math.*']", Some(Listed), Some(Unlisted)),
    ];
    for (text, math, other) in cases {
        let builtins = good(text).builtins;
        assert_eq!(
            (builtins.listing("math.add"), builtins.listing("text.upper")),
            (math, other),
            "{text}"
        );
    }
}

#[test]
fn the_schema_for_editors_admits_what_is_read() {
    let schema = orla_marketplace::schema::type_from_json_schema(&schema::schema());
    let validator = orla_marketplace::schema::Validator::compile(&schema).unwrap();
    let seed = include_str!("../../../../fuzz/seeds/configuration/providers.yaml");
    for text in CLIENTS.iter().map(|(_, text)| *text).chain([seed]) {
        let root = orla_document::parse(&comments::without_comments(text)).unwrap().unwrap();
        assert_eq!(validator.check(&root.to_json().to_string(), "config"), Ok(()), "{text}");
    }
    let wrong = r#"{"capabilities": [{"id": "a", "provider": {"type": "htp"}}], "builtins": 3}"#;
    assert!(validator.check(wrong, "config").is_err());
}

proptest! {
    /// Every mistake has a place, and none makes the reading fail as a whole.
    #[test]
    fn a_configuration_with_anything_in_any_place_is_read_or_refused_with_places(
        at in 0_usize..2000,
        length in 0_usize..12,
        new in "[\\[\\]{}:,'\"a1 \n$*&-]{0,8}",
    ) {
        let seed = include_str!("../../../../fuzz/seeds/configuration/providers.yaml");
        let chars: Vec<char> = seed.chars().collect();
        let at = at % chars.len();
        let end = (at + length).min(chars.len());
        let text: String = chars[..at].iter().copied().chain(new.chars()).chain(chars[end..].iter().copied()).collect();
        for problem in problems(&text) {
            prop_assert!(problem.contains(" at orla.yaml:") || problem.contains("more problems"), "{problem}");
        }
    }
}

#[test]
fn a_stream_may_be_written_as_its_struct() {
    let stream = |text: &str| {
        let config = good(&format!("capabilities: [{{id: s, provider: {{Stream: {text}}}}}]\n"));
        match &config.capabilities[0].value.manifest.provider {
            ProviderType::Stream(stream) => stream.clone(),
            other => panic!("{other:?}"),
        }
    };
    let plain = stream(
        "{provider: {Plugin: {plugin_path: /bin/cat, function_name: ''}}, stream_type: unidirectional, input_schema: null}",
    );
    assert_eq!(plain.stream_type, StreamType::Source);
    assert!(
        matches!(&*plain.provider, ProviderType::Plugin(program) if program.plugin_path == "/bin/cat")
    );
    let sink = stream("{command: /bin/cat, stream_type: Unidirectional, direction: sink}");
    assert_eq!(sink.stream_type, StreamType::Sink);
    let grouped = stream(
        "{provider: {Http: {base_url: 'http://h/x'}}, duplex_config: {kind: websocket, idle_ms: 5}, stream_config: {buffer: 3}, bidirectional_config: null}",
    );
    assert_eq!(grouped.stream_type, StreamType::Duplex);
    assert_eq!((grouped.options.buffer, grouped.options.transport), (3, StreamTransport::WebSocket));

    for (text, problem) in [
        (
            "{command: cat, stream_type: duplex, bidirectional_config: {}}",
            "bidirectional_config: the stream is of another stream_type",
        ),
        ("{command: cat, stream_config: 5}", "stream_config: expected keys of the stream"),
        ("{command: cat, buffer: 1, stream_config: {buffer: 2}}", "buffer: it is there twice"),
        ("{provider: {Local: {}}}", "provider: expected {Http: …} or {Plugin: …}"),
    ] {
        let problems = problems(&format!("capabilities: [{{id: s, provider: {{Stream: {text}}}}}]\n"));
        assert!(problems.len() == 1 && problems[0].contains(problem), "{problems:?}");
    }
}
