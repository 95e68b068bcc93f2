//! A person who signs in with `orla login` at `oidc-provider`, for a server that is orla itself.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process;
use crate::tally::Tally;
use orla_e2e::free_port;

use super::world::{Keys, LIFE, Lives, Software, TIMEOUT, World};

pub(super) fn run(world: &World<'_>, tally: &mut Tally) -> Result<(), String> {
    let (issuer, upstream) = (free_port(), free_port());
    let url = format!("http://127.0.0.1:{upstream}/mcp");
    let provider = world.provider(
        Software::OidcProvider,
        "person-provider",
        issuer,
        &url,
        Keys::ONE,
        Lives::SHORT,
    )?;
    let config = format!(
        "port: {upstream}\nauth: {{oauth: {{issuer: '{}', audience: '{url}', clock_skew: 1, scopes: {{'tools:run': ['*']}}}}}}\npolicy: []\n",
        provider.url
    );
    let _upstream = world.orla("person-upstream", &config, &[("run", "ran")])?;
    let folder = world.folder("person")?;
    let config = format!("mcpServers:\n  up: {{url: '{url}', auth: oauth}}\n");
    std::fs::write(folder.join("orla.yaml"), config).map_err(|err| err.to_string())?;
    let call = || -> Result<String, String> {
        let mut command = world.command(&folder);
        let scratch = world.folder("scratch")?;
        let finished = process::run(command.args(["call", "up__run"]), &scratch, TIMEOUT)?;
        Ok(format!("{}{}", finished.stdout, finished.stderr))
    };
    let is = |said: String, expected: &str| match said.contains(expected) {
        true => Ok(()),
        false => Err(format!("expected {expected:?}, got: {said}")),
    };
    tally.check("person: without a sign-in, a call says how to sign in", is(call()?, "orla login up"));
    tally.check("person: signs in by the link of `orla login`", login(world, &folder));
    tally.check("person: calls", is(call()?, "ran"));
    let life: u64 = LIFE.parse().unwrap_or(4);
    std::thread::sleep(Duration::from_secs(life + 2));
    tally.check("person: calls once the token has expired, with a refreshed one", is(call()?, "ran"));
    let mut logout = world.command(&folder);
    let logout = process::run(logout.args(["logout", "up"]), &world.folder("scratch")?, TIMEOUT)?;
    tally.check("person: signs out", is(format!("{}{}", logout.stdout, logout.stderr), "signed out"));
    tally.check("person: has to sign in again", is(call()?, "orla login up"));
    Ok(())
}

/// Runs `orla login`, and opens the link that it prints.
fn login(world: &World<'_>, folder: &std::path::Path) -> Result<(), String> {
    let mut command: Command = world.command(folder);
    command.args(["login", "up"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|err| format!("orla login: {err}"))?;
    let out = child.stdout.take().ok_or("orla login has no output")?;
    let link = BufReader::new(out).lines().map_while(Result::ok).find(|line| line.starts_with("http"));
    let opened = match link {
        Some(link) => world.script("sign_in.mjs", &[&link, "ada"])?.stdout_of_success().map(drop),
        None => Err("orla login printed no link".to_owned()),
    };
    if opened.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|err| err.to_string())?;
    opened.and_then(|()| if status.success() { Ok(()) } else { Err(format!("orla login: {status}")) })
}
