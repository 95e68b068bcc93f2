//! Two people through one orla to an upstream that knows them: each is themself, also while their tokens of the upstream
//! are renewed and after a restart, and no token of theirs is in anything that orla writes, answers or passes to a process.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::process::Finished;
use crate::server::{Server, address};
use crate::tally::Tally;
use orla_e2e::free_port;

use super::world::{Keys, Lives, Provider, Software, World};

/// The passwords of clients of the authorization servers.
const ORLAS: &str = "orlas-password-0123456789";
const ROBOTS: &str = "robots-password-0123456789";
/// Calls at once.
const CALLS: &str = "64";
/// The largest file that is searched.
const MAX_FILE: u64 = 64 * 1024 * 1024;
/// How often the environments of processes are read.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How orla gets tokens of people for the upstream.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// Each signs in there.
    SignIn,
    /// Each one's own token is exchanged (RFC 8693).
    Exchange,
}

/// What differs between the ways.
struct Setting {
    name: &'static str,
    provider: Provider,
    /// How the upstream checks tokens.
    checks: String,
    /// The upstream for people, and for others by which they must not get to it.
    upstreams: String,
    /// The grant that renews a token.
    renewal: &'static str,
    /// Configurations with a password in them.
    passwords: usize,
}

impl Way {
    fn setting(self, world: &World<'_>, own: &str, above: &str) -> Result<Setting, String> {
        Ok(match self {
            Self::SignIn => {
                // Tokens of the upstream are refreshed during the calls; those of the callers live longer.
                let lives = Lives { jwt: "600", opaque: "4" };
                let provider = world.provider(
                    Software::OidcProvider,
                    "callers-provider",
                    free_port(),
                    own,
                    Keys::ONE,
                    lives,
                )?;
                Setting {
                    name: "callers",
                    checks: format!(
                        "introspection: {{endpoint: '{}/token/introspection', client_id: orla, client_secret: {ORLAS}, keep: 1}}",
                        provider.url
                    ),
                    upstreams: format!(
                        "  up: {{url: '{above}', auth: {{per: caller}}}}
  robot: {{url: '{above}', auth: {{grant: client_credentials, client_id: robot, client_secret: {ROBOTS}}}}}"
                    ),
                    provider,
                    renewal: "refresh_token",
                    passwords: 2,
                }
            }
            Self::Exchange => {
                // People sign in again during the calls, and an exchanged token expires with the one that it was made of.
                let lives = Lives { jwt: "20", opaque: "20" };
                let provider = world.provider(
                    Software::Idpyoidc,
                    "exchange-provider",
                    free_port(),
                    above,
                    Keys::ONE,
                    lives,
                )?;
                Setting {
                    name: "exchange",
                    checks: "clock_skew: 1".to_owned(),
                    upstreams: format!(
                        "  up: {{url: '{above}', auth: {{grant: token_exchange, issuer: '{}', audience: '{above}', client_id: orla, client_secret: {ORLAS}}}}}",
                        provider.url
                    ),
                    provider,
                    renewal: "urn:ietf:params:oauth:grant-type:token-exchange",
                    passwords: 1,
                }
            }
        })
    }
}

pub(super) fn run(world: &World<'_>, way: Way, tally: &mut Tally) -> Result<(), String> {
    let (own, upstream, collector) = (free_port(), free_port(), free_port());
    let url = format!("http://127.0.0.1:{own}/mcp");
    let above_url = format!("http://127.0.0.1:{upstream}/mcp");
    let setting = way.setting(world, &url, &above_url)?;
    let Setting { name, provider, checks, upstreams, renewal, passwords } = setting;
    let types = provider.software.types();
    let (collected, upper) = (format!("{name}-collector"), format!("{name}-upstream"));
    let sent = world.folder(&collected)?.join("sent.bin");
    let mut command = Command::new(&world.foreign.node);
    command.arg(world.foreign.folder.join("collector.mjs")).arg(collector.to_string()).arg(&sent);
    let log = world.folder(&collected)?.join("collector.log");
    let collecting = Server::listening(command, &log, address)?;
    let kept = format!(
        "audit: audit.jsonl
history: {{path: history.db}}
telemetry: {{otlp: 'http://127.0.0.1:{collector}'}}
"
    );
    let config = format!(
        "port: {upstream}
{kept}auth:
  oauth:
    issuer: {}
    audience: {above_url}
    types: {types}
    {checks}
policy:
- {{to: [ada], capabilities: [ada_only], allow: ['*']}}
- {{to: [bob], capabilities: [bob_only], allow: ['*']}}
",
        provider.url
    );
    let tools = [("ada_only", "ada"), ("bob_only", "bob")];
    let above = world.orla(&upper, &config, &tools)?;
    let config = format!(
        "port: {own}
{kept}auth: {{oauth: {{issuer: '{}', audience: '{url}', types: {types}}}}}
mcpServers:
{upstreams}
",
        provider.url
    );
    let first = world.orla(name, &config, &[("show", "\"$(env)\"")])?;
    let folder = world.folder(name)?;
    let (issued, answers) = (provider.folder.to_string_lossy(), folder.join("answers.txt"));
    let arguments = [&*url, &provider.url, CALLS, &*issued, &*answers.to_string_lossy(), renewal];
    let mut environments = BTreeSet::new();
    let mut call = |who: &str, orla: Server| -> Result<(), String> {
        let pids = [orla.pid(), above.pid()];
        let work = || world.script("callers.mjs", &arguments);
        tally.judge(who, &while_looking(&pids, &mut environments, work)?);
        // What it still has to write or send, it does at its end.
        drop(orla);
        Ok(())
    };
    call(&format!("{name}:"), first)?;
    let log = folder.join("server.log");
    std::fs::rename(&log, log.with_file_name("first.log")).map_err(|err| err.to_string())?;
    call(&format!("{name}, after a restart:"), world.orla_again(name)?)?;
    drop(above);
    drop(collecting);
    let mut texts = provider.issued();
    texts.extend([ROBOTS, ORLAS].map(str::to_owned));
    let mut found = Vec::new();
    if texts.len() < 12 {
        found.push(format!("only {} were issued", texts.len()));
    }
    let written = [folder, world.folder(&upper)?];
    for folder in &written {
        search(folder, &texts, &mut found);
    }
    search(&world.folder(&collected)?, &texts, &mut found);
    let holds = |text: &String| environments.iter().any(|environment| contains(environment, text));
    found.extend(texts.iter().filter(|text| holds(text)).map(|_| "an environment".to_owned()));
    // The configuration has the passwords of the clients: that they are found shows that the search finds.
    let (expected, found): (Vec<String>, Vec<String>) =
        found.into_iter().partition(|place| place.ends_with("orla.yaml"));
    let result = match (expected.len() == passwords, found.is_empty()) {
        (true, true) => Ok(()),
        (true, false) => Err(found.join(", ")),
        (false, _) => Err(format!("the search found {} of {passwords} configurations", expected.len())),
    };
    let what = format!(
        "{name}: none of {} tokens and passwords is in state, logs, audit, history, traces, answers, or any of {} environments",
        texts.len(),
        environments.len()
    );
    tally.check(&what, result);
    // A search of nothing would find nothing.
    let mut places = vec![(sent, "tools/call up__ada_only")];
    for folder in &written {
        places
            .extend([(folder.join("audit.jsonl"), "ada_only"), (folder.join("server.log"), "ada_only")]);
        places.push((folder.join("history.db"), "ada_only"));
    }
    let missing = places
        .into_iter()
        .filter(|(path, text)| !std::fs::read(path).is_ok_and(|content| contains(&content, text)));
    let mut missing: Vec<String> = missing.map(|(path, _)| path.display().to_string()).collect();
    // The environments of both servers, and of a tool.
    let home = |folder: &PathBuf| format!("HOME={}\0", folder.display());
    let mut shown: Vec<String> = written.iter().map(home).collect();
    shown.push("ORLA_TOOL=ada_only\0".to_owned());
    let is_unseen = |text: &String| !environments.iter().any(|environment| contains(environment, text));
    missing
        .extend(shown.into_iter().filter(is_unseen).map(|text| format!("an environment with {text:?}")));
    let result = if missing.is_empty() { Ok(()) } else { Err(missing.join(", ")) };
    tally.check(&format!("{name}: all of them have something about the calls"), result);
    Ok(())
}

/// Reads the environments of processes, and of all below them, again and again while something is done.
fn while_looking(
    pids: &[u32],
    environments: &mut BTreeSet<Vec<u8>>,
    work: impl FnOnce() -> Result<Finished, String>,
) -> Result<Finished, String> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                pids.iter().for_each(|pid| look(*pid, environments));
                std::thread::sleep(LOOK_EVERY);
            }
        });
        let finished = work();
        is_over.store(true, Ordering::Relaxed);
        finished
    })
}

/// Adds the environment of a process, and those of all below it.
fn look(pid: u32, environments: &mut BTreeSet<Vec<u8>>) {
    if let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) {
        environments.insert(environment);
    }
    // Each thread has the children that it started.
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            look(child, environments);
        }
    }
}

fn contains(content: &[u8], text: &str) -> bool {
    content.windows(text.len()).any(|part| part == text.as_bytes())
}

/// Notes the files below a folder that have one of the texts in them.
fn search(folder: &Path, texts: &[String], found: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            search(&path, texts, found);
        } else if metadata.len() <= MAX_FILE {
            let content = std::fs::read(&path).unwrap_or_default();
            let content = String::from_utf8_lossy(&content);
            if texts.iter().any(|text| content.contains(text)) {
                found.push(path.display().to_string());
            }
        }
    }
}
