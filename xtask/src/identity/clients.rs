//! The official SDKs' clients, with their own OAuth flow, against orla as the resource server of `oidc-provider`.

use std::process::Command;

use crate::process;
use crate::server::Server;
use crate::tally::Tally;

use super::world::{LIFE, Lives, Provider, TIMEOUT, World, port};

const TOOLS: &[(&str, &str)] = &[("run", "ran"), ("admin", "administered")];

/// Returns the authorization server, orla, and orla's address.
fn servers(world: &World<'_>, name: &str) -> Result<(Provider, Server, String), String> {
    let (issuer, own) = (port()?, port()?);
    let url = format!("http://127.0.0.1:{own}/mcp");
    let provider = world.provider(&format!("{name}-provider"), issuer, &url, 1, Lives::SHORT)?;
    let config = format!(
        "port: {own}
auth:
  oauth:
    issuer: {}
    audience: {url}
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

/// Tests the TypeScript SDK, then rotates the keys.
pub(super) fn typescript(world: &World<'_>, tally: &mut Tally) -> Result<(), String> {
    let (provider, orla, url) = servers(world, "typescript")?;
    tally.judge("typescript", &world.script("typescript_client.mjs", &[&url])?);
    let issuer: u16 = provider.url.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(0);
    drop(provider);
    // The newer key signs from now on, and orla runs on.
    let _provider = world.provider("typescript-provider", issuer, &url, 2, Lives::SHORT)?;
    tally.judge(
        "typescript, after a rotation of keys,",
        &world.script("typescript_client.mjs", &[&url])?,
    );
    drop(orla);
    Ok(())
}

/// Tests the Python SDK.
pub(super) fn python(world: &World<'_>, tally: &mut Tally) -> Result<(), String> {
    let (_provider, _orla, url) = servers(world, "python")?;
    let mut command = Command::new(&world.foreign.python);
    command.arg(world.foreign.folder.join("python_client.py")).arg(&url).env("LIFE", LIFE);
    tally.judge("python", &process::run(&mut command, &world.folder("scratch")?, TIMEOUT)?);
    Ok(())
}
