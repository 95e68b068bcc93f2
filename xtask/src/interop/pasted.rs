//! What clients have in their own files, unchanged: orla serves the same servers.
//!
//! The files are written as the clients' documentation writes them, with a server that is installed here: `npx` finds it
//! below the folder that it is started in and fetches nothing.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::upstream::Upstream;
use crate::bench::client::{self, Connection};
use crate::install::Foreign;
use crate::server::Server;
use crate::tally::Tally;

/// The client, its file, and what is in it. `URL` is an HTTP server's address.
const FILES: [(&str, &str, &str); 4] = [
    (
        "Claude Desktop",
        "claude_desktop_config.json",
        r#"{
  "mcpServers": {
    "everything": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-everything"]
    }
  }
}
"#,
    ),
    (
        "VS Code",
        ".vscode/mcp.json",
        r#"{
  // Asked for once, stored by the editor.
  "inputs": [
    {"type": "promptString", "id": "api-key", "description": "API Key", "password": true, "default": "none"},
  ],
  "servers": {
    "everything": {
      "type": "stdio",
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-everything"],
      "env": {"API_KEY": "${input:api-key}"},
    },
    /* A server that runs elsewhere. */
    "remote": {"type": "http", "url": "URL"},
  },
}
"#,
    ),
    (
        "Cursor",
        ".cursor/mcp.json",
        r#"{
  "mcpServers": {
    "everything": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-everything"],
      "env": {"API_KEY": "value", "ROOT": "${workspaceFolder}${/}src", "WHO": "${userHome}"}
    },
    "remote": {
      "url": "URL",
      "headers": {"API_KEY": "${env:PATH}"}
    }
  }
}
"#,
    ),
    (
        "Cline",
        "cline_mcp_settings.json",
        r#"{
  "mcpServers": {
    "everything": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-everything"],
      "env": {},
      "alwaysAllow": ["echo"],
      "autoApprove": [],
      "timeout": 60,
      "disabled": false
    },
    "off": {"command": "no-such-command", "args": [], "disabled": true}
  }
}
"#,
    ),
];

/// Serves each of the files.
pub(super) fn run(binary: &Path, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    let folder = foreign.folder.join("pasted");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("tools"))
        .map_err(|err| format!("{}: {err}", folder.display()))?;
    let remote = Upstream::Everything.listen(foreign, &folder)?;
    for (client, name, text) in FILES {
        let file = folder.join(name);
        file.parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(&file, text.replace("URL", &remote.url)))
            .map_err(|err| format!("{}: {err}", file.display()))?;
        let servers: &[&str] =
            if text.contains("remote") { &["everything", "remote"] } else { &["everything"] };
        tally.check(&format!("mcpServers as {client} has them"), serves(binary, &folder, name, servers));
    }
    Ok(())
}

/// Checks that a file's servers are listed and answer.
fn serves(binary: &Path, folder: &Path, file: &str, servers: &[&str]) -> Result<(), String> {
    let mut command = Command::new(binary);
    command.args(["--config", file, "--port", "0", "--log-format", "json"]).current_dir(folder);
    let orla = Server::listening(command, &folder.join("server.log"), |line| {
        let line: Value = serde_json::from_str(line).ok()?;
        (line["message"] == "listening").then(|| line["address"].as_str().map(str::to_owned)).flatten()
    })?;
    let mut connection = Connection::open(&orla.address)?;
    let mut ask = |request: &[u8]| -> Result<Value, String> {
        let body = connection.exchange(request)?.body;
        serde_json::from_slice(body).map_err(|err| format!("{err}: {}", String::from_utf8_lossy(body)))
    };
    let listed = ask(&client::sessionless("tools/list", json!({})))?;
    for server in servers {
        let name = format!("{server}__echo");
        let is_listed = listed["result"]["tools"]
            .as_array()
            .is_some_and(|tools| tools.iter().any(|tool| tool["name"] == *name));
        if !is_listed {
            return Err(format!("{name} is not listed"));
        }
        let answer = ask(&client::call(&name, &json!({"message": "hello"})))?;
        if answer["result"]["content"] != json!([{"type": "text", "text": "Echo: hello"}]) {
            return Err(format!("{name} answers {answer}"));
        }
    }
    Ok(())
}
