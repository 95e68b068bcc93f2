//! The supported clients: the file of each with its servers, and its format.
//!
//! Data and pure functions. This module does no I/O.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// One client.
pub(crate) struct Client {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// The candidates for its file; the first that exists, or else the first.
    pub(crate) paths: fn(&Places) -> Vec<PathBuf>,
    pub(crate) form: Form,
    /// Its entry of a server that runs elsewhere; `None` if its file has no such entries.
    pub(crate) remote: Option<fn(&RemoteServer) -> Value>,
    /// Whether such an entry can take a token from the environment.
    pub(crate) takes_variables: bool,
    /// How the client notices a changed file.
    pub(crate) then: &'static str,
}

/// How a client writes its servers down.
pub(crate) enum Form {
    /// In JSON, comments allowed, below this key.
    Json { below: &'static str, entry: fn(&Launch) -> Value },
    /// Codex: a table `[mcp_servers.NAME]`.
    Toml,
    /// Goose: a mapping below `extensions`.
    Yaml,
}

/// How a client starts this server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Launch {
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
}

/// A server that runs elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RemoteServer {
    pub(crate) url: String,
    /// The environment variable that has the client's token.
    pub(crate) token_env: Option<String>,
}

/// The target of an entry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Entry {
    /// This program, which the client starts.
    Here(Launch),
    Remote(RemoteServer),
}

/// Where programs keep their files on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(crate) home: PathBuf,
    /// Of command line programs: `$XDG_CONFIG_HOME`, or else `~/.config`, on macOS too.
    pub(crate) config: PathBuf,
    /// Of applications with windows.
    pub(crate) applications: PathBuf,
    /// `CODEX_HOME` and `CLAUDE_CONFIG_DIR`, if they are set.
    pub(crate) codex_home: Option<PathBuf>,
    pub(crate) claude_dir: Option<PathBuf>,
}

pub(crate) const CLIENTS: &[Client] = &[
    Client {
        name: "claude-desktop",
        title: "Claude Desktop",
        paths: |at| vec![at.applications.join("Claude/claude_desktop_config.json")],
        form: Form::Json { below: "mcpServers", entry: plain },
        remote: None,
        takes_variables: false,
        then: "Quit Claude Desktop and open it again.",
    },
    Client {
        name: "claude-code",
        title: "Claude Code",
        paths: |at| vec![at.claude_dir.as_ref().unwrap_or(&at.home).join(".claude.json")],
        form: Form::Json { below: "mcpServers", entry: typed },
        remote: Some(|to| with_token(json!({"type": "http", "url": to.url}), to, braces)),
        takes_variables: true,
        then: "Start a new session; /mcp shows the server.",
    },
    Client {
        name: "vscode",
        title: "Visual Studio Code",
        paths: |at| vec![at.applications.join("Code/User/mcp.json")],
        form: Form::Json { below: "servers", entry: typed },
        remote: Some(|to| with_token(json!({"type": "http", "url": to.url}), to, braces_with_env)),
        takes_variables: true,
        then: "Run `MCP: List Servers` and start it.",
    },
    Client {
        name: "cursor",
        title: "Cursor",
        paths: |at| vec![at.home.join(".cursor/mcp.json")],
        form: Form::Json { below: "mcpServers", entry: plain },
        remote: Some(|to| with_token(json!({"url": to.url}), to, braces_with_env)),
        takes_variables: true,
        then: "Enable it in Settings, MCP.",
    },
    Client {
        name: "codex",
        title: "Codex",
        paths: |at| {
            let own = at.codex_home.clone().unwrap_or_else(|| at.home.join(".codex"));
            vec![own.join("config.toml")]
        },
        form: Form::Toml,
        remote: Some(|to| match &to.token_env {
            Some(name) => json!({"url": to.url, "bearer_token_env_var": name}),
            None => json!({"url": to.url}),
        }),
        takes_variables: true,
        then: "Start a new session.",
    },
    Client {
        name: "gemini",
        title: "Gemini CLI",
        paths: |at| vec![at.home.join(".gemini/settings.json")],
        form: Form::Json { below: "mcpServers", entry: plain },
        remote: Some(|to| with_token(json!({"httpUrl": to.url}), to, braces)),
        takes_variables: true,
        then: "Start a new session; /mcp shows the server.",
    },
    Client {
        name: "goose",
        title: "Goose",
        paths: |at| vec![at.config.join("goose/config.yaml")],
        form: Form::Yaml,
        remote: Some(|to| {
            let entry =
                json!({"type": "streamable_http", "uri": to.url, "env_keys": to.token_env.as_slice()});
            with_token(entry, to, braces)
        }),
        takes_variables: true,
        then: "Start a new session.",
    },
    Client {
        name: "zed",
        title: "Zed",
        paths: |at| vec![at.config.join("zed/settings.json")],
        // Versions that require a source and versions that do not both accept this.
        form: Form::Json {
            below: "context_servers",
            entry: |launch| with("source", "custom", plain(launch)),
        },
        remote: Some(|to| json!({"url": to.url})),
        takes_variables: false,
        then: "Zed picks it up by itself.",
    },
    Client {
        name: "opencode",
        title: "opencode",
        paths: |at| {
            let dir = at.config.join("opencode");
            vec![dir.join("opencode.json"), dir.join("opencode.jsonc")]
        },
        form: Form::Json { below: "mcp", entry: opencode },
        remote: Some(|to| {
            let entry = json!({"type": "remote", "url": to.url, "enabled": true});
            with_token(entry, to, |name| format!("{{env:{name}}}"))
        }),
        takes_variables: true,
        then: "Start it again.",
    },
    Client {
        name: "lmstudio",
        title: "LM Studio",
        paths: |at| vec![at.home.join(".lmstudio/mcp.json")],
        form: Form::Json { below: "mcpServers", entry: plain },
        remote: Some(|to| json!({"url": to.url})),
        takes_variables: false,
        then: "Enable it in the Program tab.",
    },
];

impl Places {
    /// Returns the places of this machine's user, from the environment.
    pub(crate) fn of_this_system(env: impl Fn(&str) -> Option<PathBuf>) -> Option<Self> {
        let home = env("HOME")?;
        let config = env("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
        let config = config.unwrap_or_else(|| home.join(".config"));
        let applications = if cfg!(target_os = "macos") {
            home.join("Library/Application Support")
        } else {
            config.clone()
        };
        let (codex_home, claude_dir) = (env("CODEX_HOME"), env("CLAUDE_CONFIG_DIR"));
        Some(Self { home, config, applications, codex_home, claude_dir })
    }
}

impl Client {
    /// Returns the entry in this client's form; `None` if its file has no such entries.
    pub(crate) fn entry(&self, to: &Entry) -> Option<Value> {
        let launch = match to {
            Entry::Remote(server) => return self.remote.map(|entry| entry(server)),
            Entry::Here(launch) => launch,
        };
        Some(match self.form {
            Form::Json { entry, .. } => entry(launch),
            Form::Toml => plain(launch),
            Form::Yaml => {
                json!({"type": "stdio", "cmd": launch.command, "args": launch.args, "envs": env(launch)})
            }
        })
    }

    /// Returns the file to edit: the first candidate that exists, or else the first.
    pub(crate) fn path(&self, places: &Places, exists: impl Fn(&Path) -> bool) -> PathBuf {
        let mut paths = (self.paths)(places);
        let found = paths.iter().position(|path| exists(path)).unwrap_or_default();
        paths.swap_remove(found)
    }
}

/// Returns an entry with the token of a variable in its headers, if there is one. `refer` writes down a
/// reference to a variable.
fn with_token(mut entry: Value, server: &RemoteServer, refer: fn(&str) -> String) -> Value {
    if let Some(name) = &server.token_env {
        entry["headers"] = json!({"Authorization": format!("Bearer {}", refer(name))});
    }
    entry
}

fn braces(name: &str) -> String {
    format!("${{{name}}}")
}

fn braces_with_env(name: &str) -> String {
    format!("${{env:{name}}}")
}

/// `command`, `args`, and `env` if there are variables.
fn plain(launch: &Launch) -> Value {
    let mut entry = json!({"command": launch.command, "args": launch.args});
    if !launch.env.is_empty() {
        entry["env"] = env(launch);
    }
    entry
}

fn typed(launch: &Launch) -> Value {
    with("type", "stdio", plain(launch))
}

fn opencode(launch: &Launch) -> Value {
    let command: Vec<&String> = std::iter::once(&launch.command).chain(&launch.args).collect();
    let mut entry = json!({"type": "local", "command": command, "enabled": true});
    if !launch.env.is_empty() {
        entry["environment"] = env(launch);
    }
    entry
}

fn env(launch: &Launch) -> Value {
    launch
        .env
        .iter()
        .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
        .collect::<Map<_, _>>()
        .into()
}

fn with(key: &str, value: &str, entry: Value) -> Value {
    let mut map = Map::new();
    map.insert(key.to_owned(), value.into());
    if let Value::Object(rest) = entry {
        map.extend(rest);
    }
    map.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        let env = |name: &str| (name == "HOME").then(|| PathBuf::from("/home/ada"));
        Places::of_this_system(env).unwrap()
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn every_client_has_its_file() {
        let expected = [
            ("claude-desktop", "/home/ada/.config/Claude/claude_desktop_config.json"),
            ("claude-code", "/home/ada/.claude.json"),
            ("vscode", "/home/ada/.config/Code/User/mcp.json"),
            ("cursor", "/home/ada/.cursor/mcp.json"),
            ("codex", "/home/ada/.codex/config.toml"),
            ("gemini", "/home/ada/.gemini/settings.json"),
            ("goose", "/home/ada/.config/goose/config.yaml"),
            ("zed", "/home/ada/.config/zed/settings.json"),
            ("opencode", "/home/ada/.config/opencode/opencode.json"),
            ("lmstudio", "/home/ada/.lmstudio/mcp.json"),
        ];
        let found: Vec<_> = CLIENTS
            .iter()
            .map(|client| (client.name, client.path(&places(), |_| false)))
            .map(|(name, path)| (name, path.to_str().unwrap().to_owned()))
            .collect();
        assert_eq!(found, expected.map(|(name, path)| (name, path.to_owned())));
    }

    #[test]
    fn a_remote_server_is_written_in_the_form_of_each_client() {
        let to = |token_env: Option<&str>| RemoteServer {
            url: "https://o/mcp".into(),
            token_env: token_env.map(str::to_owned),
        };
        let expected = [
            (
                "claude-code",
                r#"{"type":"http","url":"https://o/mcp","headers":{"Authorization":"Bearer ${T}"}}"#,
            ),
            (
                "vscode",
                r#"{"type":"http","url":"https://o/mcp","headers":{"Authorization":"Bearer ${env:T}"}}"#,
            ),
            ("cursor", r#"{"url":"https://o/mcp","headers":{"Authorization":"Bearer ${env:T}"}}"#),
            ("codex", r#"{"url":"https://o/mcp","bearer_token_env_var":"T"}"#),
            ("gemini", r#"{"httpUrl":"https://o/mcp","headers":{"Authorization":"Bearer ${T}"}}"#),
            (
                "goose",
                r#"{"type":"streamable_http","uri":"https://o/mcp","env_keys":["T"],"headers":{"Authorization":"Bearer ${T}"}}"#,
            ),
            (
                "opencode",
                r#"{"type":"remote","url":"https://o/mcp","enabled":true,"headers":{"Authorization":"Bearer {env:T}"}}"#,
            ),
            ("zed", r#"{"url":"https://o/mcp"}"#),
            ("lmstudio", r#"{"url":"https://o/mcp"}"#),
        ];
        for (name, text) in expected {
            let client = CLIENTS.iter().find(|client| client.name == name).unwrap();
            let entry = client.remote.unwrap();
            assert_eq!(entry(&to(Some("T"))).to_string(), text);
            assert_eq!(client.takes_variables, text.contains('T'), "{name}");
            let without = entry(&to(None)).to_string();
            assert!(without.contains("https://o/mcp") && !without.contains("Bearer"), "{without}");
        }
        assert_eq!(CLIENTS.len(), expected.len() + 1);
    }

    #[test]
    fn a_file_that_exists_is_preferred() {
        let client = CLIENTS.iter().find(|client| client.name == "opencode").unwrap();
        let path = client.path(&places(), |path| path.extension().is_some_and(|ext| ext == "jsonc"));
        assert!(path.ends_with("opencode/opencode.jsonc"));
    }

    #[test]
    fn entries_have_the_form_of_their_client() {
        let launch = Launch {
            command: "/bin/orla".into(),
            args: vec!["--stdio".into()],
            env: vec![("A".into(), "b".into())],
        };
        let expected = [
            ("cursor", r#"{"command":"/bin/orla","args":["--stdio"],"env":{"A":"b"}}"#),
            ("vscode", r#"{"type":"stdio","command":"/bin/orla","args":["--stdio"],"env":{"A":"b"}}"#),
            ("zed", r#"{"source":"custom","command":"/bin/orla","args":["--stdio"],"env":{"A":"b"}}"#),
            (
                "opencode",
                r#"{"type":"local","command":["/bin/orla","--stdio"],"enabled":true,"environment":{"A":"b"}}"#,
            ),
        ];
        for (name, text) in expected {
            let client = CLIENTS.iter().find(|client| client.name == name).unwrap();
            let Form::Json { entry, .. } = client.form else { panic!("{name} writes JSON") };
            assert_eq!(entry(&launch).to_string(), text);
        }
    }
}
