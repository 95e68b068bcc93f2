//! The official SDKs' clients, with their own OAuth flow, against orla as the resource server of an authorization server.

use std::process::Command;

use crate::process;
use crate::server::Server;
use crate::tally::Tally;
use orla_e2e::free_port;

use super::world::{Keys, LIFE, Lives, Provider, Software, TIMEOUT, World};

const TOOLS: &[(&str, &str)] = &[("run", "ran"), ("admin", "administered")];

/// Returns the authorization server, orla, and orla's address.
fn servers(
    world: &World<'_>,
    software: Software,
    name: &str,
) -> Result<(Provider, Server, String), String> {
    let (issuer, own) = (free_port(), free_port());
    let url = format!("http://127.0.0.1:{own}/mcp");
    let folder = format!("{name}-provider");
    let provider = world.provider(software, &folder, issuer, &url, Keys::ONE, Lives::SHORT)?;
    let types = software.types();
    let config = format!(
        "port: {own}
auth:
  oauth:
    issuer: {}
    audience: {url}
    types: {types}
    clock_skew: 1
    scopes:
      tools:run: ['exec:*run']
      tools:admin: ['exec:*admin']
policy: []
policy_reveal: true
",
        provider.url
    );
    let orla = world.orla(name, &config, TOOLS)?;
    Ok((provider, orla, url))
}

/// Tests the TypeScript SDK. A new key takes the place of the old one, which is withdrawn, and orla runs on.
pub(super) fn typescript(
    world: &World<'_>,
    software: Software,
    tally: &mut Tally,
) -> Result<(), String> {
    let name = format!("typescript-{}", software.name());
    let (provider, _orla, url) = servers(world, software, &name)?;
    let client = || world.script("typescript_client.mjs", &[&url]);
    tally.judge(&name, &client()?);
    accepts(world, &provider, &url, &["accepted"], tally)?;
    let provider = rotate(world, &name, provider, &url, Keys { made: 2, kept: 1 })?;
    tally.judge(&format!("{name}, after a rotation of keys,"), &client()?);
    accepts(world, &provider, &url, &["refused", "accepted"], tally)
}

/// Tests the Python SDK. A new key comes beside the old one; later both are withdrawn for a third.
pub(super) fn python(world: &World<'_>, software: Software, tally: &mut Tally) -> Result<(), String> {
    let name = format!("python-{}", software.name());
    let (provider, _orla, url) = servers(world, software, &name)?;
    let client = || {
        let mut command = Command::new(&world.foreign.python);
        command.arg(world.foreign.folder.join("python_client.py")).arg(&url).env("LIFE", LIFE);
        process::run(&mut command, &world.folder("scratch")?, TIMEOUT)
    };
    tally.judge(&name, &client()?);
    accepts(world, &provider, &url, &["accepted"], tally)?;
    let provider = rotate(world, &name, provider, &url, Keys { made: 2, kept: 2 })?;
    tally.judge(&format!("{name}, after a rotation of keys,"), &client()?);
    accepts(world, &provider, &url, &["accepted", "accepted"], tally)?;
    let provider = rotate(world, &name, provider, &url, Keys { made: 3, kept: 1 })?;
    accepts(world, &provider, &url, &["refused", "refused", "accepted"], tally)
}

/// Starts the authorization server again, with other keys.
fn rotate(
    world: &World<'_>,
    name: &str,
    provider: Provider,
    url: &str,
    keys: Keys,
) -> Result<Provider, String> {
    let issuer: u16 = provider.url.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(0);
    let software = provider.software;
    drop(provider);
    world.provider(software, &format!("{name}-provider"), issuer, url, keys, Lives::SHORT)
}

/// Checks what orla does with a token of each key, the oldest first.
fn accepts(
    world: &World<'_>,
    provider: &Provider,
    url: &str,
    words: &[&str],
    tally: &mut Tally,
) -> Result<(), String> {
    let folder = provider.folder.to_string_lossy();
    let arguments = [&[url, &*provider.url, &*folder], words].concat();
    tally.judge("keys:", &world.script("rotation.mjs", &arguments)?);
    Ok(())
}
