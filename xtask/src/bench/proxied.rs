//! A proxied MCP call: orla in front of a server, beside the server's bare pipes, beside a relay that reads nothing but the
//! id, and, in a full run, beside gateways that others publish.
//!
//! The server is the smallest there is (`xtask/fixtures/echo_mcp.rs`), so that what is measured is what stands in between. All sides take turns.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::calls::example;
use super::capsules::Pipes;
use super::client::{self, Connection, header};
use super::life::fresh;
use super::stats::{Round, Rounds, median};
use super::{Effort, Figure, Programs};
use crate::process;
use crate::server::{Server, processor_time};

/// Clients that call at once where the rate is measured.
const CLIENTS: usize = 8;

/// Clients that get large answers at once.
const MANY: usize = 32;

/// The longest that one of those may wait for an answer before it counts as a stall.
const STALL: Duration = Duration::from_secs(2);

/// How long a gateway may take to be installed.
const INSTALLATION: Duration = Duration::from_secs(900);

/// The version of the gateway that comes as a crate.
const CRATE: &str = "0.6.0";

/// Something that listens, and the requests that it understands.
struct Side {
    name: &'static str,
    server: Server,
    call: Vec<u8>,
    large: Option<Vec<u8>>,
    /// How it is called: by the cheapest client there is, if all of its answers are the same bytes.
    load: Load,
    /// With one client, with several, large answers.
    one: Rounds,
    several: Rounds,
    larges: Rounds,
    costs: Vec<f64>,
}

/// A way to make load: address, request, connections, time.
type Load = fn(&str, &[u8], usize, Duration) -> Result<Round, String>;

impl Side {
    fn new(name: &'static str, server: Server, call: Vec<u8>, large: Option<Vec<u8>>) -> Self {
        let (one, several, larges) = <(Rounds, Rounds, Rounds)>::default();
        Self { name, server, call, large, load: client::polled, one, several, larges, costs: Vec::new() }
    }

    /// One round with each number of clients.
    fn measure(&mut self, time: Duration) -> Result<(), String> {
        let address = &self.server.address;
        let problem = |err: String| format!("{}: {err}", self.name);
        self.one.0.push((self.load)(address, &self.call, 1, time).map_err(problem)?);
        let before = processor_time(self.server.pid())?;
        let round = (self.load)(address, &self.call, CLIENTS, time).map_err(problem)?;
        let cost = processor_time(self.server.pid())?.saturating_sub(before);
        self.costs.push(cost.as_secs_f64() * 1e6 / round.latencies.len().max(1) as f64);
        self.several.0.push(round);
        if let Some(large) = &self.large {
            self.larges.0.push((self.load)(address, large, 1, time / 2).map_err(problem)?);
        }
        Ok(())
    }

    /// The processor time of one call, in microseconds.
    fn cost(&self) -> f64 {
        median(self.costs.clone())
    }

    fn figure(&self) -> Figure {
        let (p50, rate, cost) = (self.one.micros(50), self.several.rate(), self.cost());
        Figure::new(
            format!("proxied call, {}", self.name),
            format!("p50 {p50:.0} µs; {CLIENTS} clients {rate:.0}/s, {cost:.1} µs of processor"),
            json!({"p50_us": p50, "per_s": rate, "us": cost}),
        )
    }
}

/// All sides, interleaved.
pub(super) fn calls(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let folder = programs.folder.join("proxied");
    fresh(&folder)?;
    let arguments = json!({"city": "Paris", "count": 3});
    let call = client::call("echo", &arguments);
    let large = client::call("large", &json!({}));

    let embedded = example(&programs.embedded, &programs.folder)?;
    let mut relay = Command::new(&programs.relay);
    relay.arg(&programs.echo_mcp);
    let relay = Server::listening(relay, &folder.join("relay.log"), |line| {
        line.strip_prefix("listening on http://").map(str::to_owned)
    })?;
    let stdio = orla(programs, &folder.join("stdio"), &json!({"command": programs.echo_mcp}))?;
    let url = format!("http://{}/mcp", embedded.address);
    let http = orla(programs, &folder.join("http"), &json!({"url": url}))?;
    let mut sides = vec![
        Side::new("envelope relay", relay, call.clone(), Some(large.clone())),
        Side::new("orla over stdio", stdio, call.clone(), Some(large.clone())),
        Side::new("orla over HTTP", http, call.clone(), None),
        Side::new("its HTTP upstream alone", embedded, call, None),
    ];
    let mut figures = Vec::new();
    if effort.gateways {
        for gateway in [Gateway::Supergateway, Gateway::McpProxy, Gateway::McpProxyCrate] {
            match gateway.start(programs, &folder, &arguments) {
                Ok(side) => sides.push(side),
                Err(problem) => figures.push(Figure::new(
                    format!("proxied call, {}", gateway.name()),
                    format!("skipped: {}", problem.lines().next().unwrap_or_default()),
                    Value::Null,
                )),
            }
        }
    }

    let mut direct = Rounds::default();
    let mut pipes = Pipes::start(&programs.echo_mcp)?;
    for _ in 0..effort.rounds {
        direct.0.push(pipes.round(&arguments, effort.round)?);
        for side in &mut sides {
            side.measure(effort.round)?;
        }
    }
    let floor = direct.micros(50);
    let mut lines = vec![Figure::new(
        "proxied call, the server's own pipes",
        format!("p50 {floor:.0} µs"),
        json!({"p50_us": floor}),
    )];
    lines.extend(sides.iter().map(Side::figure));
    lines.append(&mut figures);
    lines.extend(goals(&sides));
    lines.push(many(&sides[1], &large, effort.round * 4)?);
    Ok(lines)
}

/// What orla should reach.
fn goals(sides: &[Side]) -> Vec<Figure> {
    let [relay, stdio, http, ..] = sides else { return Vec::new() };
    let (p50, rate, cost) = (stdio.one.micros(50), stdio.several.rate(), stdio.cost());
    let over_http = http.one.micros(50);
    let ratio = stdio.larges.micros(50) / relay.larges.micros(50).max(f64::EPSILON);
    vec![
        Figure::new("stdio upstream, p50", format!("{p50:.0} µs"), json!({"p50_us": p50}))
            .goal("≤ 85 µs", p50 <= 85.0),
        Figure::new("stdio upstream, 8 clients", format!("{rate:.0}/s"), json!({"per_s": rate}))
            .goal("≥ 45000/s", rate >= 45_000.0),
        Figure::new("stdio upstream, processor time", format!("{cost:.1} µs"), json!({"us": cost}))
            .goal("≤ 20 µs", cost <= 20.0),
        Figure::new("HTTP upstream, p50", format!("{over_http:.0} µs"), json!({"p50_us": over_http}))
            .goal("≤ 110 µs", over_http <= 110.0),
        Figure::new(
            "answers of 100 KB, p50 ÷ envelope relay",
            format!("{ratio:.2} ({:.0} µs)", stdio.larges.micros(50)),
            json!({"ratio": ratio}),
        )
        .goal("≤ 1.1", ratio <= 1.1),
    ]
}

/// Large answers to many clients at once, for a while.
fn many(orla: &Side, large: &[u8], time: Duration) -> Result<Figure, String> {
    let round: Round = client::threads(&orla.server.address, large, MANY, time)?;
    let longest = round.latencies.iter().max().copied().unwrap_or_default();
    Ok(Figure::new(
        format!("{MANY} clients × 100 KB"),
        format!("{:.0}/s, the longest wait {:.0} ms", round.rate(), longest.as_secs_f64() * 1e3),
        json!({"per_s": round.rate(), "longest_ms": longest.as_secs_f64() * 1e3}),
    )
    .goal("no wait of 2 s", longest < STALL))
}

/// Orla with one server behind it.
fn orla(programs: &Programs, folder: &Path, entry: &Value) -> Result<Server, String> {
    fresh(&folder.join("tools"))?;
    let mut entry = entry.clone();
    entry["prefix"] = json!("");
    let config = json!({"mcpServers": {"upstream": entry}});
    std::fs::write(folder.join("orla.yaml"), config.to_string())
        .map_err(|err| format!("{}: {err}", folder.display()))?;
    let orla = Server::start(&programs.orla, folder, folder)?;
    // The list waits for the server behind it.
    Connection::open(&orla.address)?.exchange(&client::sessionless("tools/list", json!({})))?;
    Ok(orla)
}

/// A gateway that somebody else published.
#[derive(Clone, Copy)]
enum Gateway {
    Supergateway,
    McpProxy,
    McpProxyCrate,
}

impl Gateway {
    fn name(self) -> &'static str {
        match self {
            Self::Supergateway => "npm supergateway",
            Self::McpProxy => "npm mcp-proxy",
            Self::McpProxyCrate => "crate mcp-proxy",
        }
    }

    /// Where it serves.
    fn path(self) -> &'static str {
        match self {
            Self::Supergateway | Self::McpProxy => "/mcp",
            Self::McpProxyCrate => "/",
        }
    }

    /// Installs it, starts it in front of the server, opens a session, and finds the tool.
    fn start(self, programs: &Programs, folder: &Path, arguments: &Value) -> Result<Side, String> {
        let place = crate::target("gateways")?;
        let port = free_port()?.to_string();
        let server = programs.echo_mcp.to_string_lossy().into_owned();
        let mut command = match self {
            Self::Supergateway => {
                let mut command = Command::new("node");
                command.arg(npm(&place)?.join("supergateway")).args([
                    "--stdio",
                    &server,
                    "--outputTransport",
                    "streamableHttp",
                    "--stateful",
                    "--logLevel",
                    "none",
                    "--port",
                    &port,
                ]);
                command
            }
            Self::McpProxy => {
                let mut command = Command::new("node");
                command.arg(npm(&place)?.join("mcp-proxy")).args(["--host", "127.0.0.1", "--port"]);
                command.args([&port, "--server", "stream", "--no-eventStore", "--", &server]);
                command
            }
            Self::McpProxyCrate => {
                let config = folder.join("mcp-proxy.toml");
                let text = format!(
                    "[proxy]\nname = \"bench\"\n[proxy.listen]\nhost = \"127.0.0.1\"\nport = {port}\n\
                     [[backends]]\nname = \"upstream\"\ntransport = \"stdio\"\ncommand = \"{server}\"\n"
                );
                std::fs::write(&config, text).map_err(|err| format!("{}: {err}", config.display()))?;
                let mut command = Command::new(cargo_install(&place)?);
                command.arg("--config").arg(config);
                command
            }
        };
        command.current_dir(folder);
        let address = format!("127.0.0.1:{port}");
        let server = Server::reachable(command, &folder.join("gateway.log"), &address)?;
        let session = Session::open(&address, self.path())?;
        let tool = session.tool(&address)?;
        let call = session.post("tools/call", &json!({"name": tool, "arguments": arguments}));
        Connection::open(&address)?.exchange(&call)?;
        // Its answers may be events, each with an id of its own.
        Ok(Side { load: client::threads, ..Side::new(self.name(), server, call, None) })
    }
}

/// A session of the last revision that has them; a server that opens none is asked without.
struct Session {
    path: &'static str,
    id: Option<String>,
}

impl Session {
    fn open(address: &str, path: &'static str) -> Result<Self, String> {
        let initialize = client::post(
            path,
            &[],
            &json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "bench", "version": "1"},
            }}),
        );
        let mut connection = Connection::open(address)?;
        let answer = connection.exchange(&initialize)?;
        let session = Self { path, id: header(answer.head, "mcp-session-id").map(str::to_owned) };
        let body = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        connection.exchange(&session.request(&body))?;
        Ok(session)
    }

    fn post(&self, method: &str, params: &Value) -> Vec<u8> {
        self.request(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
    }

    fn request(&self, body: &Value) -> Vec<u8> {
        let mut headers = vec![("mcp-protocol-version", "2025-11-25")];
        headers.extend(self.id.as_deref().map(|id| ("mcp-session-id", id)));
        client::post(self.path, &headers, body)
    }

    /// What the gateway calls the tool.
    fn tool(&self, address: &str) -> Result<String, String> {
        let mut connection = Connection::open(address)?;
        let answer = connection.exchange(&self.post("tools/list", &json!({})))?;
        let text = String::from_utf8_lossy(answer.body);
        text.split('"')
            .find(|word| word.ends_with("echo"))
            .map(str::to_owned)
            .ok_or_else(|| format!("it lists no echo: {text}"))
    }
}

/// The programs of the pinned npm packages, installed if they are not.
fn npm(place: &Path) -> Result<PathBuf, String> {
    let programs = place.join("node_modules/.bin");
    let pins = crate::root().join("xtask/fixtures/gateways");
    let (lock, done) = (pins.join("package-lock.json"), place.join(".npm-done"));
    let is_current =
        matches!((std::fs::read(&lock), std::fs::read(&done)), (Ok(one), Ok(other)) if one == other);
    if !is_current {
        let copy = |from: &Path, to: &Path| {
            std::fs::copy(from, to).map(drop).map_err(|err| format!("{}: {err}", from.display()))
        };
        copy(&pins.join("package.json"), &place.join("package.json"))?;
        copy(&lock, &place.join("package-lock.json"))?;
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
            .current_dir(place);
        process::run(&mut npm, place, INSTALLATION)?.stdout_of_success()?;
        copy(&lock, &done)?;
    }
    Ok(programs)
}

/// The gateway that comes as a crate, built if it is not.
fn cargo_install(place: &Path) -> Result<PathBuf, String> {
    let program = place.join("bin/mcp-proxy");
    if !program.exists() {
        eprintln!("building mcp-proxy {CRATE}");
        let mut cargo = Command::new("cargo");
        cargo
            .args(["install", "mcp-proxy", "--locked", "--quiet", "--no-default-features"])
            .args(["--version", CRATE, "--root"])
            .arg(place)
            .env("CARGO_TARGET_DIR", place.join("build"))
            .current_dir(place);
        process::run(&mut cargo, place, INSTALLATION)?.stdout_of_success()?;
    }
    Ok(program)
}

/// A port that nobody listens on at this moment, for servers that cannot choose one.
fn free_port() -> Result<u16, String> {
    std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|err| format!("no free port: {err}"))
}
