//! How long a refusal takes, by what is wrong with the token: it says nothing that the caller could not know.

use crate::tally::Tally;
use orla_e2e::free_port;

use super::world::{Keys, Lives, Software, World};

const ROUNDS: &str = "2000";

pub(super) fn run(world: &World<'_>, tally: &mut Tally) -> Result<(), String> {
    let (issuer, own) = (free_port(), free_port());
    let url = format!("http://127.0.0.1:{own}/mcp");
    let provider = world.provider(
        Software::OidcProvider,
        "timing-provider",
        issuer,
        &url,
        Keys::ONE,
        Lives::SHORT,
    )?;
    let config =
        format!("port: {own}\nauth: {{oauth: {{issuer: '{}', audience: '{url}'}}}}\n", provider.url);
    let _orla = world.orla("timing", &config, &[("run", "ran")])?;
    let keys = provider.folder.join("provider-keys.json");
    let arguments = [&own.to_string(), &provider.url, &*keys.to_string_lossy(), ROUNDS];
    tally.judge("timing:", &world.script("timing.mjs", &arguments)?);
    Ok(())
}
