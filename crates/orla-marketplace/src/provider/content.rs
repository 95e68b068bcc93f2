//! The content of a capability: what runs when it is called. Its content hash covers it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json, json};

use super::{HttpCapability, MCPCapability, ProviderType, StreamOptions};

/// The location of a capability's content.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ContentSource {
    /// One file: its bytes.
    File(PathBuf),
    /// One file and how it is started.
    Command(CommandLine),
    /// A directory with all its files.
    Directory(PathBuf),
    /// A remote provider: the configuration of its connection.
    Definition(Definition),
    /// A part of orla itself.
    Program,
    /// Unknown, so it cannot be attested.
    Unknown,
}

/// A program's file, and how it is started. The environment is represented by the names of its variables
/// and by the values that lead to more code; other values may be secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// The file.
    pub program: PathBuf,
    args: Vec<String>,
    env: BTreeMap<String, Option<String>>,
    directory: Option<PathBuf>,
}

impl fmt::Debug for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments may contain keys.
        f.debug_struct("CommandLine").field("program", &self.program).finish_non_exhaustive()
    }
}

impl CommandLine {
    /// Returns all of it as JSON, if the file has this hash. Directories are relative to `base`, so that
    /// the same configuration in another directory gives the same text.
    pub fn to_json(&self, hash: &str, base: &Path) -> String {
        let below = |path: &PathBuf| path.strip_prefix(base).unwrap_or(path).display().to_string();
        let directory = self.directory.as_ref().map(below);
        json!({"program": hash, "args": self.args, "env": self.env, "cwd": directory}).to_string()
    }
}

/// Returns whether the value of this variable makes the system's loader or an interpreter run other
/// code.
fn leads_to_code(variable: &str) -> bool {
    const NAMES: [&str; 17] = [
        "BASH_ENV",
        "CLASSPATH",
        "ENV",
        "GCONV_PATH",
        "JAVA_TOOL_OPTIONS",
        "LUA_INIT",
        "LUA_PATH",
        "NODE_OPTIONS",
        "NODE_PATH",
        "PATH",
        "PERL5LIB",
        "PERL5OPT",
        "PYTHONHOME",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "RUBYLIB",
        "RUBYOPT",
    ];
    NAMES.contains(&variable) || variable.starts_with("LD_") || variable.starts_with("DYLD_")
}

/// The configuration of the connection to a remote provider, without secrets: it leaves out the values
/// of header fields, query parameters and environment variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    source: String,
    settings: BTreeMap<&'static str, Json>,
}

impl Definition {
    /// Creates the definition of `source`, an address or a name. Parts of an address that may be secret
    /// are left out: user, password, query and fragment.
    pub fn new(source: &str) -> Self {
        let source = bare(source);
        let settings = [("source", Json::from(source.as_str()))].into();
        Self { source, settings }
    }

    /// Adds a setting.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Json>) -> Self {
        self.settings.insert(name, value.into());
        self
    }

    /// Adds the names of these settings; their values may be secrets.
    #[must_use]
    pub fn with_names(self, name: &'static str, values: &BTreeMap<String, String>) -> Self {
        let names: Vec<Json> = values.keys().map(|key| Json::from(key.as_str())).collect();
        self.with(name, names)
    }

    /// Returns the definition as JSON.
    pub fn to_json(&self) -> String {
        let map: Map<String, Json> =
            self.settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Json::Object(map).to_string()
    }
}

impl ContentSource {
    /// Returns the content of a program that is started this way; only its file if nothing else is
    /// given. A name in PATH is not resolved here.
    pub fn of_program<'a>(
        program: &Path,
        args: &[String],
        env: impl IntoIterator<Item = (&'a String, &'a String)>,
        directory: Option<&Path>,
    ) -> Self {
        if !program.as_os_str().to_string_lossy().contains('/') {
            return Self::Unknown;
        }
        let valued = |(name, value): (&String, &String)| {
            (name.clone(), leads_to_code(name).then(|| value.clone()))
        };
        let env: BTreeMap<String, Option<String>> = env.into_iter().map(valued).collect();
        let (program, directory) = (program.to_owned(), directory.map(Path::to_owned));
        match args.is_empty() && env.is_empty() && directory.is_none() {
            true => Self::File(program),
            false => Self::Command(CommandLine { program, args: args.to_owned(), env, directory }),
        }
    }

    /// Returns the source as named in the provenance: a path or an address.
    pub fn name(&self) -> String {
        match self {
            Self::File(path)
            | Self::Directory(path)
            | Self::Command(CommandLine { program: path, .. }) => path.display().to_string(),
            Self::Definition(definition) => definition.source.clone(),
            Self::Program => "orla".to_owned(),
            Self::Unknown => String::new(),
        }
    }
}

impl ProviderType {
    /// Returns the content that runs when a capability of this provider is called.
    pub fn content(&self) -> ContentSource {
        match self {
            Self::Local(_) => ContentSource::Program,
            Self::Http(http) => ContentSource::Definition(of_http(http)),
            Self::MCP(mcp) => ContentSource::Definition(of_mcp(mcp)),
            Self::A2A(agent) => ContentSource::Definition(
                Definition::new(&agent.endpoint)
                    .with("agent_id", agent.agent_id.as_str())
                    .with("protocol", agent.protocol.as_str())
                    .with("skill", agent.options.skill.as_deref())
                    .with("origins", agent.options.origins.clone())
                    .with_names("headers", &agent.options.headers),
            ),
            Self::Plugin(plugin) => match &plugin.options.content {
                Some(content) => content.clone(),
                None => ContentSource::of_program(plugin.plugin_path.as_ref(), &[], [], None),
            },
            Self::RemoteRTFS(remote) => ContentSource::Definition(Definition::new(&remote.endpoint)),
            Self::Stream(stream) => match &*stream.provider {
                Self::Plugin(plugin) => {
                    let StreamOptions { args, env, directory, .. } = &*stream.options;
                    let directory = directory.as_deref();
                    let program: &Path = plugin.plugin_path.as_ref();
                    let is_path = plugin.plugin_path.contains('/');
                    let from = directory.filter(|_| is_path).unwrap_or("".as_ref());
                    ContentSource::of_program(&from.join(program), args, env, directory)
                }
                provider => provider.content(),
            },
            Self::Custom(custom) => custom.content(),
        }
    }
}

fn of_http(http: &HttpCapability) -> Definition {
    let options = &http.options;
    let credentials = options.credentials.iter().map(|credential| format!("{:?}", credential.place));
    let parameters = options.parameters.iter().map(|parameter| format!("{parameter:?}"));
    Definition::new(&http.base_url)
        .with("method", options.method.as_deref().unwrap_or("POST"))
        .with("path", bare(&options.path))
        .with_names("query", &options.query)
        .with_names("headers", &options.headers)
        .with("parameters", parameters.collect::<Vec<_>>())
        .with("body", format!("{:?}", options.body))
        .with("media_type", options.media_type.as_deref())
        .with("parts", format!("{:?}", options.parts))
        .with("credentials", credentials.collect::<Vec<_>>())
        .with("redirects", format!("{:?}", options.redirects))
}

fn of_mcp(mcp: &MCPCapability) -> Definition {
    let definition = match mcp.server_url.strip_prefix("stdio:") {
        Some(command) => {
            let program = command.split_whitespace().next().unwrap_or_default();
            Definition::new(&format!("stdio:{program}")).with("command", command)
        }
        None => Definition::new(&mcp.server_url),
    };
    definition.with("tool", mcp.tool_name.as_str())
}

/// Returns an address without user, password, query and fragment.
fn bare(address: &str) -> String {
    let address = &address[..address.find(['?', '#']).unwrap_or(address.len())];
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    let host = rest.find('/').unwrap_or(rest.len());
    match rest[..host].rfind('@') {
        Some(at) => format!("{scheme}://{}", &rest[at + 1..]),
        None => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(provider: &ProviderType) -> String {
        match provider.content() {
            ContentSource::Definition(definition) => definition.to_json(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_definition_holds_no_secret() {
        let mut http =
            HttpCapability::new("https://u:CANARY@h.example/v1?k=CANARY", Some("CANARY".into()), 1);
        http.options.headers.insert("X-Key".into(), "CANARY".into());
        http.options.query.insert("key".into(), "CANARY".into());
        http.options.path = "/pets/{id}?key=CANARY#CANARY".into();
        let text = definition(&ProviderType::Http(http));
        assert!(!text.contains("CANARY"), "{text}");
        for part in ["https://h.example/v1", "/pets/{id}", "X-Key", "\"key\"", "POST"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn another_address_or_tool_is_another_definition() {
        let of =
            |url: &str, tool: &str| definition(&ProviderType::MCP(MCPCapability::new(url, tool, 1000)));
        let first = of("https://a.example/mcp", "add");
        assert_ne!(first, of("https://b.example/mcp", "add"));
        assert_ne!(first, of("https://a.example/mcp", "sub"));
        assert_eq!(first, of("https://a.example/mcp?token=x", "add"));
        assert_ne!(of("stdio:run a?", "t"), of("stdio:run a?b", "t"));
    }

    #[test]
    fn the_content_of_a_program_includes_its_command_without_secrets() {
        use crate::provider::{PluginCapability, StreamCapabilityImpl, StreamType};
        let plain = ProviderType::Plugin(PluginCapability::new("/bin/p", ""));
        assert_eq!(plain.content(), ContentSource::File("/bin/p".into()));
        let named = ProviderType::Plugin(PluginCapability::new("p", ""));
        assert_eq!(named.content(), ContentSource::Unknown);
        let form = |change: &dyn Fn(&mut StreamOptions)| {
            let mut stream = StreamCapabilityImpl::new(plain.clone(), StreamType::Source);
            stream.options.args.push("-v".into());
            change(&mut stream.options);
            match ProviderType::Stream(stream).content() {
                ContentSource::Command(line) => line.to_json("sha256:0", Path::new("/etc/orla")),
                other => panic!("{other:?}"),
            }
        };
        let set = |name: &'static str, value: &'static str| {
            move |options: &mut StreamOptions| drop(options.env.insert(name.into(), value.into()))
        };
        let forms = [
            form(&|_| {}),
            form(&|options| options.args[0] = "-w".into()),
            form(&|options| options.directory = Some("/etc/orla/x".into())),
            form(&set("KEY", "CANARY")),
            form(&set("LD_PRELOAD", "/a.so")),
            form(&set("LD_PRELOAD", "/b.so")),
        ];
        for (at, one) in forms.iter().enumerate() {
            assert!(!forms[..at].contains(one) && !one.contains("CANARY"), "{one}");
        }
        assert_eq!(forms[3], form(&set("KEY", "OTHER")));
        assert!(forms[2].contains(r#""cwd":"x""#), "{}", forms[2]);
    }

    #[test]
    fn an_address_is_shown_without_what_may_be_secret() {
        let cases = [
            ("https://a.example/x", "https://a.example/x"),
            ("https://user:pw@a.example/x@y", "https://a.example/x@y"),
            ("https://user@a.example", "https://a.example"),
            ("https://a.example/?q=1#f", "https://a.example/"),
            ("mcp:files", "mcp:files"),
        ];
        for (address, shown) in cases {
            assert_eq!(bare(address), shown);
        }
    }
}
