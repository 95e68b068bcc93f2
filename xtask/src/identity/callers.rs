//! Two people through one orla to an upstream that knows them: each is themself, also after a restart, and no token of
//! theirs is in anything that orla writes, answers or passes to a process.

use std::path::Path;

use crate::tally::Tally;

use super::world::{World, port};

/// Calls at once.
const CALLS: &str = "64";
/// The largest file that is searched.
const MAX_FILE: u64 = 64 * 1024 * 1024;

pub(super) fn run(world: &World<'_>, tally: &mut Tally) -> Result<(), String> {
    let (issuer, own, upstream) = (port()?, port()?, port()?);
    let url = format!("http://127.0.0.1:{own}/mcp");
    let provider = world.provider("callers-provider", issuer, &url, 1, "600")?;
    let config = format!(
        "port: {upstream}
auth:
  oauth:
    issuer: {0}
    audience: http://127.0.0.1:{upstream}/mcp
    introspection: {{endpoint: '{0}/token/introspection', client_id: orla, client_secret: orlas-password-0123456789}}
policy:
- {{to: [ada], capabilities: [ada_only], allow: ['*']}}
- {{to: [bob], capabilities: [bob_only], allow: ['*']}}
",
        provider.url
    );
    let _upstream =
        world.orla("callers-upstream", &config, &[("ada_only", "ada"), ("bob_only", "bob")])?;
    let config = format!(
        "port: {own}
audit: audit.jsonl
auth: {{oauth: {{issuer: '{}', audience: '{url}'}}}}
mcpServers:
  up: {{url: 'http://127.0.0.1:{upstream}/mcp', auth: {{per: caller}}}}
  robot: {{url: 'http://127.0.0.1:{upstream}/mcp', auth: {{grant: client_credentials, client_id: robot, client_secret: robots-password-0123456789}}}}
",
        provider.url
    );
    let orla = world.orla("callers", &config, &[("show", "$(env)")])?;
    let people = provider.folder.join("people.json");
    let arguments = [&*url, &provider.url, CALLS, &people.to_string_lossy()];
    tally.judge("callers:", &world.script("callers.mjs", &arguments)?);
    let environment = environments(orla.pid());
    drop(orla);
    let orla = world.orla_again("callers")?;
    tally.judge("callers, after a restart:", &world.script("callers.mjs", &arguments)?);
    let environment = environment + &environments(orla.pid());
    let issued = provider.issued();
    let mut found =
        if issued.len() < 4 { vec![format!("only {} were issued", issued.len())] } else { Vec::new() };
    search(&world.folder("callers")?, &issued, &mut found);
    search(&world.folder("callers-upstream")?, &issued, &mut found);
    found.extend(
        issued.iter().filter(|token| environment.contains(*token)).map(|_| "an environment".to_owned()),
    );
    let result = if found.is_empty() { Ok(()) } else { Err(found.join(", ")) };
    tally.check("callers: no token is in state, logs, audit or environments", result);
    drop(orla);
    Ok(())
}

/// Returns the environments of a process and of those that it started.
fn environments(pid: u32) -> String {
    let read = |pid: u32| std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let children =
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    let all = std::iter::once(pid).chain(pids).flat_map(read).collect::<Vec<u8>>();
    String::from_utf8_lossy(&all).into_owned()
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
