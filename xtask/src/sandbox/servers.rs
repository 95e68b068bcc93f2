//! Published MCP servers, once without confinement and once under `sandbox: strict`: the same lists, the same results.
//!
//! Each has its preset and the few other permissions that it needs. It is also started without each of them, and then does not
//! do the same: so the row of the table is as short as it can be. The servers are pinned in `xtask/fixtures/servers` and
//! installed below `target/servers`; those that speak to a service speak to one that stands in for it here.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::Context;
use super::world;
use crate::bench::client::{self, Connection};
use crate::install::{self, Foreign};
use crate::process;
use crate::server::{self, Server};

/// How long `npx` and `uvx` may take to download a server.
const DOWNLOAD: Duration = Duration::from_secs(300);
/// How long the service that stands in waits for a request.
const SILENCE: Duration = Duration::from_secs(5);

/// The lists of a server, and the member of each answer.
const LISTS: [(&str, &str); 4] = [
    ("tools/list", "tools"),
    ("prompts/list", "prompts"),
    ("resources/list", "resources"),
    ("resources/templates/list", "resourceTemplates"),
];

/// A published server. In its texts, `{work}` is a directory with [`FILES`] and a Git repository, and `{service}` the address
/// of a service.
struct Published {
    name: &'static str,
    starts_by: Starts,
    arguments: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
    /// What it needs besides its preset.
    permissions: &'static [&'static str],
    /// Tools, their arguments, and what their results contain.
    calls: &'static [(&'static str, &'static str, &'static str)],
    /// Whether it belongs to the short form.
    is_quick: bool,
}

/// How a server is started, which decides on its preset.
enum Starts {
    /// By Node.js, as a file of an installed package.
    Node(&'static str),
    /// By Python of a virtual environment, as a module.
    Python(&'static str),
    /// By `npx`, as a package.
    Npx(&'static str),
    /// By `uvx`, as a package.
    Uvx(&'static str),
}

const WRITES: &[&str] = &["fs:write:{work}"];
const ASKS: &[&str] = &["net:{service}"];

const SERVERS: [Published; 12] = [
    Published {
        name: "everything",
        starts_by: Starts::Node("@modelcontextprotocol/server-everything/dist/index.js"),
        arguments: &["stdio"],
        variables: &[],
        permissions: &[],
        calls: &[
            ("echo", r#"{"message": "hello"}"#, "Echo: hello"),
            ("get-sum", r#"{"a": 1, "b": 2.5}"#, "3.5"),
            ("get-structured-content", r#"{"location": "Chicago"}"#, "temperature"),
            ("get-tiny-image", "{}", "image/png"),
        ],
        is_quick: true,
    },
    Published {
        name: "files",
        starts_by: Starts::Node("@modelcontextprotocol/server-filesystem/dist/index.js"),
        arguments: &["{work}"],
        variables: &[],
        permissions: WRITES,
        calls: &[
            ("read_text_file", r#"{"path": "{work}/hello.txt"}"#, "hello"),
            ("write_file", r#"{"path": "{work}/new.txt", "content": "new"}"#, "Successfully wrote"),
            (
                "move_file",
                r#"{"source": "{work}/new.txt", "destination": "{work}/moved.txt"}"#,
                "Successfully moved",
            ),
            ("search_files", r#"{"path": "{work}", "pattern": "**/*.txt"}"#, "notes/more.txt"),
        ],
        is_quick: false,
    },
    Published {
        name: "memory",
        starts_by: Starts::Node("@modelcontextprotocol/server-memory/dist/index.js"),
        arguments: &[],
        variables: &[("MEMORY_FILE_PATH", "{work}/memory.jsonl")],
        permissions: WRITES,
        calls: &[
            (
                "create_entities",
                r#"{"entities": [{"name": "Ada", "entityType": "person", "observations": ["writes"]}]}"#,
                "Ada",
            ),
            (
                "add_observations",
                r#"{"observations": [{"entityName": "Ada", "contents": ["reads"]}]}"#,
                "reads",
            ),
            ("search_nodes", r#"{"query": "reads"}"#, "reads"),
            ("read_graph", "{}", "writes"),
        ],
        is_quick: false,
    },
    Published {
        name: "context7",
        starts_by: Starts::Node("@upstash/context7-mcp/dist/index.js"),
        arguments: &[],
        variables: &[("CONTEXT7_API_URL", "http://{service}")],
        permissions: ASKS,
        calls: &[
            ("resolve-library-id", r#"{"query": "how to start", "libraryName": "words"}"#, "/a/words"),
            ("query-docs", r#"{"libraryId": "/a/words", "query": "how to start"}"#, "A library."),
        ],
        is_quick: false,
    },
    Published {
        name: "notion",
        starts_by: Starts::Node("@notionhq/notion-mcp-server/bin/cli.mjs"),
        arguments: &[],
        variables: &[("NOTION_TOKEN", KEY), ("BASE_URL", "http://{service}")],
        permissions: ASKS,
        calls: &[
            ("API-get-self", "{}", "A library."),
            ("API-post-search", r#"{"query": "words"}"#, "A library."),
        ],
        is_quick: false,
    },
    Published {
        name: "firecrawl",
        starts_by: Starts::Node("firecrawl-mcp/dist/index.js"),
        arguments: &[],
        variables: &[("FIRECRAWL_API_KEY", KEY), ("FIRECRAWL_API_URL", "http://{service}")],
        permissions: ASKS,
        calls: &[
            (
                "firecrawl_scrape",
                r#"{"url": "https://example.com", "formats": ["markdown"]}"#,
                "# Words",
            ),
            ("firecrawl_map", r#"{"url": "https://example.com"}"#, "https://example.com/words"),
        ],
        is_quick: false,
    },
    Published {
        name: "thinking",
        starts_by: Starts::Npx("@modelcontextprotocol/server-sequential-thinking@2026.8.31"),
        arguments: &[],
        variables: &[],
        permissions: &[],
        calls: &[(
            "sequentialthinking",
            r#"{"thought": "First.", "nextThoughtNeeded": true, "thoughtNumber": 1, "totalThoughts": 2}"#,
            "thoughtHistoryLength",
        )],
        is_quick: false,
    },
    Published {
        name: "time",
        starts_by: Starts::Python("mcp_server_time"),
        arguments: &["--local-timezone", "UTC"],
        variables: &[],
        permissions: &[],
        calls: &[(
            "convert_time",
            r#"{"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}"#,
            "T21:00:00+09:00",
        )],
        is_quick: true,
    },
    Published {
        name: "fetch",
        starts_by: Starts::Python("mcp_server_fetch"),
        arguments: &["--ignore-robots-txt", "--allow-private-ips"],
        variables: &[],
        permissions: ASKS,
        calls: &[
            ("fetch", r#"{"url": "http://{service}/page.html"}"#, "A page."),
            ("fetch", r#"{"url": "http://{service}/page.html", "raw": true}"#, "<h1>Words</h1>"),
        ],
        is_quick: false,
    },
    Published {
        name: "git",
        starts_by: Starts::Python("mcp_server_git"),
        arguments: &["--repository", "{work}/repository"],
        variables: &[],
        permissions: WRITES,
        calls: &[
            ("git_status", r#"{"repo_path": "{work}/repository"}"#, "nothing to commit"),
            ("git_log", r#"{"repo_path": "{work}/repository"}"#, "First"),
            (
                "git_create_branch",
                r#"{"repo_path": "{work}/repository", "branch_name": "side"}"#,
                "side",
            ),
            ("git_branch", r#"{"repo_path": "{work}/repository", "branch_type": "local"}"#, "side"),
        ],
        is_quick: false,
    },
    Published {
        name: "excel",
        starts_by: Starts::Python("excel_mcp"),
        arguments: &["stdio"],
        variables: &[],
        permissions: WRITES,
        calls: &[
            ("create_workbook", r#"{"path": "{work}/book.xlsx", "sheets": ["Sums"]}"#, "book.xlsx"),
            (
                "write_range",
                r#"{"path": "{work}/book.xlsx", "sheet": "Sums", "at": "A1", "rows": [["a", 1], ["b", 2]]}"#,
                "Sums",
            ),
            ("read_range", r#"{"path": "{work}/book.xlsx", "sheet": "Sums"}"#, "b"),
        ],
        is_quick: false,
    },
    Published {
        name: "sqlite",
        starts_by: Starts::Uvx("mcp-server-sqlite==2025.4.25"),
        arguments: &["--db-path", "{work}/words.db"],
        variables: &[],
        permissions: WRITES,
        calls: &[
            ("create_table", r#"{"query": "CREATE TABLE words (word TEXT)"}"#, "created successfully"),
            ("write_query", r#"{"query": "INSERT INTO words VALUES ('a'), ('b')"}"#, "2"),
            ("read_query", r#"{"query": "SELECT count(*) AS words FROM words"}"#, "words"),
            ("list_tables", "{}", "words"),
        ],
        is_quick: false,
    },
];

/// A key that opens nothing.
const KEY: &str = "sk_test_0000000000000000";

/// What is in the directory of a server before its first call.
const FILES: [(&str, &str); 2] = [("hello.txt", "hello\n"), ("notes/more.txt", "more\n")];

/// What a server was asked, and what it answered.
type Answers = BTreeMap<String, Value>;

/// Starts each server, without confinement and with it.
pub(super) fn run(context: &mut Context) -> Result<(), String> {
    let foreign = install::programs("servers", true)?;
    let place = Place::new(&context.orla, &foreign)?;
    for server in SERVERS.iter().filter(|server| server.is_quick || !context.is_quick) {
        let permissions = server.permissions_with_preset();
        let title = format!("servers: {:<10} {}", server.name, permissions.join(", "));
        let (what, result) = match place.compare(server, context.is_quick) {
            Ok(counts) => (format!("{title}: {counts}"), Ok(())),
            Err(problem) => (title, Err(problem)),
        };
        context.tally.check(&what, result);
    }
    Ok(())
}

impl Published {
    fn permissions_with_preset(&self) -> Vec<&'static str> {
        let preset = match self.starts_by {
            Starts::Node(_) => "preset:node",
            Starts::Python(_) => "preset:python",
            Starts::Npx(_) => "preset:npx",
            Starts::Uvx(_) => "preset:uvx",
        };
        [&[preset], self.permissions].concat()
    }
}

/// Where the servers run.
struct Place<'a> {
    orla: &'a Path,
    foreign: &'a Foreign,
    /// Where `npx` and `uvx` keep what they download.
    home: PathBuf,
    base: PathBuf,
    /// The address of the service.
    service: String,
}

impl<'a> Place<'a> {
    fn new(orla: &'a Path, foreign: &'a Foreign) -> Result<Self, String> {
        let home = foreign.folder.join("home");
        fs::create_dir_all(&home).map_err(|err| format!("{}: {err}", home.display()))?;
        let service = serve().map_err(|err| format!("the service: {err}"))?;
        Ok(Self { orla, foreign, home, base: foreign.folder.join("world"), service })
    }

    /// Returns the number of the answers that are the same.
    fn compare(&self, server: &Published, is_quick: bool) -> Result<String, String> {
        self.download(server)?;
        let permissions = server.permissions_with_preset();
        let free = self.ask(server, None).map_err(|err| format!("without confinement: {err}"))?;
        let confined = self.ask(server, Some(&permissions))?;
        if free != confined {
            // What changes by itself, as the date does, is no difference.
            let again = self.ask(server, None)?;
            let is_known = |(asked, answer): (&String, &Value)| {
                [&free, &again].iter().any(|known| known.get(asked) == Some(answer))
            };
            if let Some((asked, answer)) = confined.iter().find(|pair| !is_known(*pair)) {
                let before = free.get(asked).map_or("nothing".to_owned(), Value::to_string);
                return Err(format!("{asked}: {answer}, without confinement {before}"));
            }
        }
        // Each permission is needed.
        for left_out in permissions.iter().filter(|_| !is_quick) {
            let others: Vec<&str> = permissions.iter().copied().filter(|one| one != left_out).collect();
            if self.ask(server, Some(&others)).is_ok_and(|answers| answers == free) {
                return Err(format!("it does the same without {left_out}"));
            }
        }
        let counts = LISTS.map(|(method, list)| {
            let count = free.get(method).and_then(|answer| answer[list].as_array()).map_or(0, Vec::len);
            format!("{count} {}", if list == "resourceTemplates" { "templates" } else { list })
        });
        Ok(format!("{}, {} calls", counts.join(", "), server.calls.len()))
    }

    /// Asks a server for everything, confined to permissions if there are any. Each time, it is a new one in a new directory
    /// of the same path.
    fn ask(&self, server: &Published, permissions: Option<&[&str]>) -> Result<Answers, String> {
        let work = self.prepare().map_err(|err| format!("{}: {err}", self.base.display()))?;
        let fill = |text: &&str| text.replace("{work}", &work).replace("{service}", &self.service);
        let words = self.words(server);
        let arguments: Vec<String> =
            words[1..].iter().cloned().chain(server.arguments.iter().map(fill)).collect();
        let variables: BTreeMap<&str, String> =
            server.variables.iter().map(|(name, value)| (*name, fill(value))).collect();
        let mut entry = json!({"command": words[0], "args": arguments, "env": variables, "prefix": ""});
        if let Some(permissions) = permissions {
            entry["permissions"] = permissions.iter().map(fill).collect();
        }
        let mode = if permissions.is_some() { "strict" } else { "off" };
        let config = json!({
            "mcpServers": {server.name: entry}, "builtins": false, "history": false, "timeout": 60, "sandbox": mode,
        });
        fs::write(self.base.join("orla.yaml"), config.to_string()).map_err(|err| err.to_string())?;
        let mut command = Command::new(self.orla);
        command.args(["--port", "0", "--log-format", "json"]).current_dir(&self.base);
        command.env("HOME", &self.home).env("PATH", self.path());
        let log = self.foreign.folder.join("server.log");
        let orla = Server::listening(command, &log, server::address)?;
        let mut answers = Answers::new();
        for (method, _) in LISTS {
            answers.insert(method.to_owned(), ask(&orla, &client::sessionless(method, json!({})))?);
        }
        if answers["tools/list"]["tools"].as_array().is_none_or(Vec::is_empty) {
            let status = world::status(&orla.address)?;
            return Err(format!("it lists no tools: {}", status["problems"]));
        }
        let level = if permissions.is_some() { "enforced" } else { "unconfined" };
        for (index, (tool, arguments, expected)) in server.calls.iter().enumerate() {
            let arguments: Value =
                serde_json::from_str(&fill(arguments)).map_err(|err| format!("{tool}: {err}"))?;
            let mut result = ask(&orla, &client::call(tool, &arguments))?;
            // Some servers tell of their failures as of anything else.
            if result["isError"] == true || !result.to_string().contains(expected) {
                return Err(format!("{tool}: {result}"));
            }
            let status = world::status(&orla.address)?;
            let rows = status["capabilities"].as_array().into_iter().flatten();
            let levels: Vec<&Value> = rows.map(|row| &row["sandbox"]["level"]).collect();
            if levels.is_empty() || levels.iter().any(|found| **found != level) {
                return Err(format!("{tool} is not {level}: {levels:?}"));
            }
            if let Some(result) = result.as_object_mut() {
                result.remove("_meta");
            }
            answers.insert(format!("call {index} of {tool}"), result);
        }
        Ok(answers)
    }

    /// Makes the directory of the server anew, and returns the one that it works in.
    fn prepare(&self) -> io::Result<String> {
        let _ = fs::remove_dir_all(&self.base);
        let work = self.base.join("work");
        for directory in ["tools", "work/notes", "work/repository"] {
            fs::create_dir_all(self.base.join(directory))?;
        }
        for (file, content) in FILES {
            fs::write(work.join(file), content)?;
        }
        let repository = work.join("repository");
        fs::write(repository.join("file"), "content\n")?;
        for arguments in
            ["init --quiet --initial-branch main", "add file", "commit --quiet --message First"]
        {
            let mut git = Command::new("git");
            git.args(arguments.split(' '))
                .current_dir(&repository)
                .env("GIT_CONFIG_GLOBAL", "/dev/null");
            for role in ["AUTHOR", "COMMITTER"] {
                git.env(format!("GIT_{role}_NAME"), "Ada")
                    .env(format!("GIT_{role}_EMAIL"), "ada@example.com");
                git.env(format!("GIT_{role}_DATE"), "2026-01-02T03:04:05Z");
            }
            let output = git.output()?;
            if !output.status.success() {
                let problem = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(io::Error::other(format!("git: {problem}")));
            }
        }
        Ok(work.display().to_string())
    }

    /// Returns the command of a server, and its first arguments.
    fn words(&self, server: &Published) -> Vec<String> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        match server.starts_by {
            Starts::Node(script) => {
                let script = self.foreign.module(script);
                words(&[&self.foreign.node.to_string_lossy(), &script.to_string_lossy()])
            }
            Starts::Python(module) => words(&[&self.foreign.python.to_string_lossy(), "-m", module]),
            Starts::Npx(package) => words(&["npx", "-y", package]),
            // It was written for an earlier SDK.
            Starts::Uvx(package) => words(&["uvx", "--with", "mcp<2", package]),
        }
    }

    /// Has `npx` and `uvx` download what they run: that may take longer than a server may take to start.
    fn download(&self, server: &Published) -> Result<(), String> {
        if matches!(server.starts_by, Starts::Node(_) | Starts::Python(_)) {
            return Ok(());
        }
        let words = self.words(server);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg("--help").current_dir(&self.home);
        command.env("HOME", &self.home).env("PATH", self.path());
        let ended = process::run(&mut command, &self.home, DOWNLOAD)?;
        ended.stdout_of_success().map(drop).map_err(|err| format!("{}: {err}", words.join(" ")))
    }

    /// Returns `PATH` with the programs of the virtual environment first: `uvx` is one of them.
    fn path(&self) -> String {
        let programs = self.foreign.python.with_file_name("");
        format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default())
    }
}

/// Returns the result of a request.
fn ask(orla: &Server, request: &[u8]) -> Result<Value, String> {
    world::result(&mut Connection::open(&orla.address)?, request)
}

/// Starts a service that answers everything, for as long as this process lives. Returns its address.
fn serve() -> io::Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?.to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Some clients open a connection early.
            std::thread::spawn(move || answer(stream));
        }
    });
    Ok(address)
}

/// Answers one request with a page, or with what the clients of the services look for.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    let mut request = Vec::new();
    while !is_whole(&request) {
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            count => request.extend_from_slice(&bytes[..count]),
        }
    }
    let is_page = request.starts_with(b"GET /page.html ");
    let (kind, body) = match is_page {
        true => ("text/html", "<title>Words</title><h1>Words</h1><p>A page.</p>".to_owned()),
        false => {
            let found = json!({"id": "/a/words", "title": "Words", "description": "A library.", "totalSnippets": 3});
            let body = json!({
                "success": true, "object": "list", "results": [found],
                "data": {"markdown": "# Words"}, "links": ["https://example.com/words"],
            });
            ("application/json", body.to_string())
        }
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// Returns whether a request has its whole head and body.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = client::header(head, "content-length").and_then(|length| length.parse().ok());
    body.len() >= length.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_whole_with_its_body() {
        for (request, expected) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n", false),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", true),
            ("POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\na", false),
            ("POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nab", true),
        ] {
            assert_eq!(is_whole(request.as_bytes()), expected, "{request}");
        }
    }

    #[test]
    fn every_preset_has_a_server_and_the_short_form_has_node_and_python() {
        let presets = |is_quick: bool| {
            let servers = SERVERS.iter().filter(move |server| server.is_quick || !is_quick);
            let mut presets: Vec<_> =
                servers.map(|server| server.permissions_with_preset()[0]).collect();
            presets.sort_unstable();
            presets.dedup();
            presets
        };
        assert_eq!(presets(false), ["preset:node", "preset:npx", "preset:python", "preset:uvx"]);
        assert_eq!(presets(true), ["preset:node", "preset:python"]);
    }

    #[test]
    fn what_is_called_is_json() {
        for server in &SERVERS {
            for (tool, arguments, _) in server.calls {
                assert!(serde_json::from_str::<Value>(arguments).is_ok(), "{tool}: {arguments}");
            }
        }
    }
}
