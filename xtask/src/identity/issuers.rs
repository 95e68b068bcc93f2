//! A second authorization server: Canaille, whose access tokens are opaque, so that orla introspects them. orla is its
//! resource server, and its client in another instance.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::process;
use crate::server::Server;
use crate::tally::Tally;
use orla_e2e::free_port;

use super::world::{TIMEOUT, World};

/// Registers a client, and writes `ID SECRET`.
const REGISTER: &str = r#"
import json, sys, urllib.request
body = {"client_name": "robot", "redirect_uris": ["http://127.0.0.1:9/callback"], "grant_types": ["client_credentials"],
        "response_types": ["code"], "scope": "openid profile", "token_endpoint_auth_method": "client_secret_basic"}
request = urllib.request.Request(sys.argv[1] + "/oauth/register", json.dumps(body).encode(), {"content-type": "application/json"})
answer = json.load(urllib.request.urlopen(request))
print(json.dumps([answer["client_id"], answer["client_secret"]]))
"#;

/// Writes a configuration with a signing key.
const CONFIGURE: &str = r#"
import json, sys
from joserfc.jwk import RSAKey
key = RSAKey.generate_key(2048, {"kid": "k", "use": "sig", "alg": "RS256"}, private=True).as_dict(private=True)
lines = ['SECRET_KEY = "for tests alone, for tests alone"', f'SERVER_NAME = "127.0.0.1:{sys.argv[1]}"', 'PREFERRED_URL_SCHEME = "http"',
         "[CANAILLE]", 'DATABASE = "memory"', "[CANAILLE_OIDC]", "DYNAMIC_CLIENT_REGISTRATION_OPEN = true", "[[CANAILLE_OIDC.ACTIVE_JWKS]]"]
open("canaille.toml", "w").write("\n".join(lines + [f"{name} = {json.dumps(value)}" for name, value in key.items()]) + "\n")
"#;

pub(super) fn canaille(world: &World<'_>, tally: &mut Tally) -> Result<(), String> {
    let folder = world.folder("canaille")?;
    let (issuer, own) = (free_port(), free_port());
    let base = format!("http://127.0.0.1:{issuer}");
    python(world, &folder, CONFIGURE, &issuer.to_string())?;
    let mut command = Command::new(world.foreign.python.with_file_name("canaille"));
    command.args(["run", "--bind", &format!("127.0.0.1:{issuer}")]);
    command.current_dir(&folder).env("CANAILLE_CONFIG", "canaille.toml");
    let _server =
        Server::reachable(command, &folder.join("canaille.log"), &format!("127.0.0.1:{issuer}"))?;
    let client: [String; 2] = serde_json::from_str(&python(world, &folder, REGISTER, &base)?)
        .map_err(|err| format!("the client that was registered: {err}"))?;
    let [id, secret] = client;
    let config = format!(
        "port: {own}
auth:
  oauth:
    issuer: {base}
    audience: {id}
    introspection: {{endpoint: '{base}/oauth/introspect', client_id: {id}, client_secret: {secret}}}
"
    );
    let _orla = world.orla("canaille-resource", &config, &[("run", "ran")])?;
    let client = world.folder("canaille-client")?;
    let config = format!(
        "mcpServers:
  up: {{url: 'http://127.0.0.1:{own}/mcp', auth: {{grant: client_credentials, client_id: {id}, client_secret: {secret}}}}}
"
    );
    std::fs::write(client.join("orla.yaml"), config).map_err(|err| err.to_string())?;
    let mut command = world.command(&client);
    let finished = process::run(command.args(["call", "up__run"]), &world.folder("scratch")?, TIMEOUT)?;
    let said = format!("{}{}", finished.stdout, finished.stderr);
    let result = if finished.stdout == "ran\n" { Ok(()) } else { Err(said) };
    tally.check("canaille: orla signs in as itself, and its opaque token is introspected", result);
    let forged = refused(world, own)?;
    tally.check("canaille: a token that it did not issue is refused", forged);
    Ok(())
}

/// Returns whether a made-up token is answered with 401.
fn refused(world: &World<'_>, port: u16) -> Result<Result<(), String>, String> {
    const ASK: &str = r#"
import sys, urllib.error, urllib.request
try:
    urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers={"authorization": "Bearer made-up-made-up-made-up"}))
    print(200)
except urllib.error.HTTPError as error:
    print(error.code)
"#;
    let status =
        python(world, &world.folder("scratch")?, ASK, &format!("http://127.0.0.1:{port}/status"))?;
    let status: Value = serde_json::from_str(status.trim()).map_err(|err| err.to_string())?;
    Ok(if status == 401 { Ok(()) } else { Err(format!("it was answered with {status}")) })
}

/// Runs a few lines of Python.
fn python(world: &World<'_>, folder: &Path, lines: &str, argument: &str) -> Result<String, String> {
    let mut command = Command::new(&world.foreign.python);
    command.args(["-c", lines, argument]).current_dir(folder);
    process::run(&mut command, &world.folder("scratch")?, TIMEOUT)?.stdout_of_success()
}
