//! Two people through one orla to an upstream that knows them: each is themself, also while their tokens are refreshed
//! and after a restart, and no token of theirs is in anything that orla writes, answers or passes to a process.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::process::Finished;
use crate::server::{Server, address};
use crate::tally::Tally;

use super::world::{Keys, Lives, World, port};

/// Calls at once.
const CALLS: &str = "64";
/// The largest file that is searched.
const MAX_FILE: u64 = 64 * 1024 * 1024;
/// How often the environments of processes are read.
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub(super) fn run(world: &World<'_>, tally: &mut Tally) -> Result<(), String> {
    let (issuer, own, upstream, collector) = (port()?, port()?, port()?, port()?);
    let url = format!("http://127.0.0.1:{own}/mcp");
    // Tokens of the upstream are refreshed during the calls; those of the callers live longer.
    let lives = Lives { jwt: "600", opaque: "4" };
    let provider = world.provider("callers-provider", issuer, &url, Keys::ONE, lives)?;
    let sent = world.folder("callers-collector")?.join("sent.bin");
    let mut command = Command::new(&world.foreign.node);
    command.arg(world.foreign.folder.join("collector.mjs")).arg(collector.to_string()).arg(&sent);
    let log = world.folder("callers-collector")?.join("collector.log");
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
    issuer: {0}
    audience: http://127.0.0.1:{upstream}/mcp
    introspection: {{endpoint: '{0}/token/introspection', client_id: orla, client_secret: orlas-password-0123456789, keep: 1}}
policy:
- {{to: [ada], capabilities: [ada_only], allow: ['*']}}
- {{to: [bob], capabilities: [bob_only], allow: ['*']}}
",
        provider.url
    );
    let tools = [("ada_only", "ada"), ("bob_only", "bob")];
    let above = world.orla("callers-upstream", &config, &tools)?;
    let config = format!(
        "port: {own}
{kept}auth: {{oauth: {{issuer: '{}', audience: '{url}'}}}}
mcpServers:
  up: {{url: 'http://127.0.0.1:{upstream}/mcp', auth: {{per: caller}}}}
  robot: {{url: 'http://127.0.0.1:{upstream}/mcp', auth: {{grant: client_credentials, client_id: robot, client_secret: robots-password-0123456789}}}}
",
        provider.url
    );
    let first = world.orla("callers", &config, &[("show", "\"$(env)\"")])?;
    let answers = world.folder("callers")?.join("answers.txt");
    let (folder, answers) = (provider.folder.to_string_lossy(), answers.to_string_lossy());
    let arguments = [&*url, &provider.url, CALLS, &*folder, &*answers];
    let mut environments = BTreeSet::new();
    let mut call = |who: &str, orla: Server| -> Result<(), String> {
        let pids = [orla.pid(), above.pid()];
        let work = || world.script("callers.mjs", &arguments);
        tally.judge(who, &while_looking(&pids, &mut environments, work)?);
        // What it still has to write or send, it does at its end.
        drop(orla);
        Ok(())
    };
    call("callers:", first)?;
    let log = world.folder("callers")?.join("server.log");
    std::fs::rename(&log, log.with_file_name("first.log")).map_err(|err| err.to_string())?;
    call("callers, after a restart:", world.orla_again("callers")?)?;
    drop(above);
    drop(collecting);
    let mut texts = provider.issued();
    texts.extend(["robots-password-0123456789", "orlas-password-0123456789"].map(str::to_owned));
    let mut found = Vec::new();
    if texts.len() < 12 {
        found.push(format!("only {} were issued", texts.len()));
    }
    let written = [world.folder("callers")?, world.folder("callers-upstream")?];
    for folder in &written {
        search(folder, &texts, &mut found);
    }
    search(&world.folder("callers-collector")?, &texts, &mut found);
    let holds = |text: &String| environments.iter().any(|environment| contains(environment, text));
    found.extend(texts.iter().filter(|text| holds(text)).map(|_| "an environment".to_owned()));
    // The configuration has the passwords of the clients: that they are found shows that the search finds.
    let (expected, found): (Vec<String>, Vec<String>) =
        found.into_iter().partition(|place| place.ends_with("orla.yaml"));
    let result = match (expected.len(), found.is_empty()) {
        (2, true) => Ok(()),
        (2, false) => Err(found.join(", ")),
        (count, _) => Err(format!("the search found {count} of 2 configurations")),
    };
    let what = format!(
        "callers: none of {} tokens and passwords is in state, logs, audit, history, traces, answers, or any of {} environments",
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
    let missing: Vec<String> = missing.map(|(path, _)| path.display().to_string()).collect();
    let result = if missing.is_empty() { Ok(()) } else { Err(missing.join(", ")) };
    tally.check("callers: all of them have something about the calls", result);
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
