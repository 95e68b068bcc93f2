//! A session whose every request goes to another node than the one before, as through a load balancer.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use super::shared::message;
use super::{Node, TIMEOUT, WHERE, World, eventually, same, write};

/// A tool that says how far it is, and goes on when it may.
pub(super) const STEPS: &str = "#!/bin/sh\n# /// orla\n# description: Says how far it is.\n# ///\necho '::progress 1/4' >&2; while [ ! -f go ]; do sleep 0.05; done; for i in 2 3 4; do echo \"::progress $i/4\" >&2; done; echo done\n";
/// A stream with an item whenever the file changes.
const NEWS: &str = "#!/bin/sh\nn=0; while :; do m=$(wc -l < items 2>/dev/null || echo 0); while [ $n -lt $m ]; do n=$((n+1)); echo $n; done; sleep 0.05; done\n";

impl World {
    /// A stream is read on at another node, and changes are told wherever the client listens.
    pub(super) fn moving_sessions(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let node = |name: &str, more: &str, tools: &[(&str, &str)]| {
            self.instance(name, &format!("{}{more}", nats.config(name)), tools)
        };
        let news = self.fresh("news")?;
        let program = news.join("news");
        write(&program, &NEWS.replace("items", &news.join("items").display().to_string()))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
            .map_err(|err| err.to_string())?;
        let capability = format!(
            "capabilities:\n- id: news\n  provider: {{stream: {{command: {}}}}}\n",
            program.display()
        );
        let alpha = node("alpha", &capability, &[("steps", STEPS)])?;
        let beta = node("beta", "", &[])?;
        let gamma = node("gamma", "", &[])?;
        eventually("all list `steps`", || Ok(beta.lists("steps")? && gamma.lists("steps")?))?;
        let session = alpha.initialize()?;

        // The connection of a call breaks, and its client returns to another node, twice.
        let params = json!({"name": "steps", "arguments": {}, "_meta": {"progressToken": "p"}});
        let headers = format!("mcp-session-id: {session}\r\nmcp-protocol-version: 2025-11-25\r\n");
        let mut messages = Vec::new();
        let mut stream = Events::open(&alpha, &message("tools/call", &params, &headers))?;
        let mut last =
            stream.until(&mut messages, |message| message["method"] == "notifications/progress")?;
        let mut stream = Events::resume(&beta, &session, Some(&last))?;
        write(&alpha.folder.join("go"), "")?;
        last = stream.until(&mut messages, |message| message["method"] == "notifications/progress")?;
        let mut stream = Events::resume(&gamma, &session, Some(&last))?;
        stream.until(&mut messages, |message| message["id"] == 1)?;
        let steps: Vec<&Value> = messages
            .iter()
            .map(|message| &message["params"]["progress"])
            .filter(|it| !it.is_null())
            .collect();
        same(&json!(steps), &json!([1, 2, 3, 4]))?;

        // It listens at beta to what is subscribed to at alpha; then at gamma.
        let news = json!({"uri": "stream://news"});
        same(&json!(alpha.in_session(&session, "resources/subscribe", &news)?.0), &json!(200))?;
        let items = program.with_file_name("items");
        let is_news = |message: &Value| message["params"]["uri"] == "stream://news";
        let mut last = None;
        for node in [&beta, &gamma, &beta] {
            let mut stream = Events::resume(node, &session, last.as_deref())?;
            let before = fs::read_to_string(&items).unwrap_or_default();
            write(&items, &format!("{before}x\n"))?;
            last = Some(stream.until(&mut messages, is_news)?);
        }
        // What changes while no stream is open is told afterwards.
        let before = fs::read_to_string(&items).unwrap_or_default();
        write(&items, &format!("{before}x\n"))?;
        let mut stream = Events::resume(&gamma, &session, last.as_deref())?;
        stream.until(&mut messages, is_news)?;
        // A tool comes to alpha.
        let later = alpha.folder.join("tools/later");
        write(&later, WHERE)?;
        fs::set_permissions(&later, fs::Permissions::from_mode(0o755)).map_err(|err| err.to_string())?;
        alpha.server.hang_up()?;
        stream
            .until(&mut messages, |message| message["method"] == "notifications/tools/list_changed")
            .map(drop)
    }
}

/// A stream of events of a session.
pub(super) struct Events(BufReader<TcpStream>);

impl Events {
    pub(super) fn open(node: &Node, request: &[u8]) -> Result<Self, String> {
        let open = || {
            let mut stream = TcpStream::connect(&node.server.address)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.write_all(request)?;
            Ok(Self(BufReader::new(stream)))
        };
        open().map_err(|err: std::io::Error| err.to_string())
    }

    fn resume(node: &Node, session: &str, last: Option<&str>) -> Result<Self, String> {
        let last = last.map(|last| format!("last-event-id: {last}\r\n")).unwrap_or_default();
        let request = format!(
            "GET /mcp HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\nmcp-session-id: {session}\r\nmcp-protocol-version: 2025-11-25\r\n{last}\r\n"
        );
        Self::open(node, request.as_bytes())
    }

    /// Reads messages until one is as wanted, and gives the id of its event.
    pub(super) fn until(
        &mut self,
        messages: &mut Vec<Value>,
        is_wanted: impl Fn(&Value) -> bool,
    ) -> Result<String, String> {
        let (mut line, mut id) = (String::new(), String::new());
        loop {
            line.clear();
            match self.0.read_line(&mut line) {
                Ok(_) if matches!(line.as_str(), "" | "0\r\n") => {
                    return Err(format!("the stream ended; told: {}", json!(messages)));
                }
                Ok(_) => {}
                Err(err) => return Err(format!("{err}; told: {}", json!(messages))),
            }
            // Other lines are sizes of chunks. The last one is 0.
            if let Some(found) = line.strip_prefix("id: ") {
                found.trim().clone_into(&mut id);
            } else if let Some(data) = line.strip_prefix("data: ")
                && let Ok(message) = serde_json::from_str::<Value>(data)
            {
                let is_it = is_wanted(&message);
                messages.push(message);
                if is_it {
                    return Ok(id);
                }
            }
        }
    }
}
