//! Questions to clients without a session, whose answers come to any node.

use serde_json::{Value, json};

use super::sessions::{Events, STEPS};
use super::shared::message;
use super::{ECHO, Node, World, eventually, same, signal, write};
use crate::bench::client::{Connection, message_of};

impl World {
    /// Calls at alpha ask their client for an approval, which comes to another node.
    pub(super) fn questions(&self) -> Result<(), String> {
        let mut nats = self.nats()?;
        let node = |name: &str, rules: &str, tools: &[(&str, &str)]| {
            let limits = "max_body_bytes: 10000000\nmax_output_bytes: 10000000\n";
            self.instance(name, &format!("{}{limits}{rules}", nats.config(name)), tools)
        };
        let rules = "approve: [{capabilities: [echo, steps]}]\n";
        let alpha = node("alpha", rules, &[("echo", ECHO), ("steps", STEPS)])?;
        let beta = node("beta", "", &[])?;
        let gamma = node("gamma", "", &[])?;
        eventually("all know alpha", || Ok(beta.lists("echo")? && gamma.lists("echo")?))?;

        // A result of several messages arrives whole, once.
        let text = "x".repeat(2_000_000);
        let echo = json!({"name": "echo", "arguments": {"stdin": text}});
        let next = alpha.asked(&echo)?;
        let answer = beta.sessionless(&next)?;
        if !answer["result"]["content"].to_string().contains(&text) {
            return Err(answer.to_string().chars().take(500).collect());
        }
        for node in [&gamma, &beta, &alpha] {
            same(&node.sessionless(&next)?["error"]["code"], &json!(-32602))?;
        }

        // The notices of the call reach the client where it is, and none is lost with a NATS server.
        let steps = json!({"name": "steps", "arguments": {}, "_meta": {"progressToken": "p"}});
        let mut next = alpha.asked(&steps)?;
        next["_meta"]["progressToken"] = json!("q");
        let mut messages = Vec::new();
        let mut stream = Events::open(&gamma, &request(&next))?;
        stream.until(&mut messages, |message| message["params"]["progressToken"] == "q")?;
        nats.kill()?;
        nats.start()?;
        write(&alpha.folder.join("go"), "")?;
        stream.until(&mut messages, |message| message["id"] == 1)?;
        let steps: Vec<&Value> = messages
            .iter()
            .filter(|message| message["params"]["progressToken"] == "q")
            .map(|message| &message["params"]["progress"])
            .collect();
        same(&json!(steps), &json!([1, 2, 3, 4]))?;
        same(&messages[messages.len() - 1]["result"]["resultType"], &json!("complete"))?;

        // A node tries to connect again after ever longer pauses.
        for node in [&alpha, &beta, &gamma] {
            eventually("the node is connected again", || {
                Ok(node.metric("orla_cluster_connected")? == 1.0)
            })?;
        }

        // The node is silent, and then gone.
        let echo = json!({"name": "echo", "arguments": {"stdin": "x"}});
        let (silent, gone) = (alpha.asked(&echo)?, alpha.asked(&echo)?);
        signal(alpha.server.pid(), "STOP")?;
        let answer = beta.sessionless(&silent);
        signal(alpha.server.pid(), "CONT")?;
        let silence = "requestState: the request that it continues is at another node: the node does not answer: it took too long";
        let silence = json!({"code": -32603, "message": silence});
        same(&answer?["error"], &silence)?;
        alpha.server.kill()?;
        let ended = "requestState: the request that it continues has ended";
        let ended = json!({"code": -32602, "message": ended});
        // It also counts as silent, until the NATS server notices that its connection is closed.
        eventually("the request has ended with its node", || {
            let error = &beta.sessionless(&gone)?["error"];
            if *error == silence { Ok(false) } else { same(error, &ended).map(|()| true) }
        })
    }
}

impl Node {
    /// Makes a call that asks its client, and returns the next request, with the client's answer.
    fn asked(&self, params: &Value) -> Result<Value, String> {
        let question = self.sessionless(params)?;
        let result = &question["result"];
        let keys = result["inputRequests"].as_object().and_then(|all| all.keys().next());
        let key = keys.ok_or_else(|| format!("the client was not asked: {question}"))?;
        let mut next = params.clone();
        next["inputResponses"] = json!({ key: {"action": "accept", "content": {"approve": true}} });
        next["requestState"] = result["requestState"].clone();
        Ok(next)
    }

    /// Returns the answer to a call without a session.
    fn sessionless(&self, params: &Value) -> Result<Value, String> {
        let mut connection = Connection::open(&self.server.address)?;
        message_of(connection.exchange(&request(params))?.body)
    }
}

/// Returns a call without a session, of a client that can be asked.
fn request(params: &Value) -> Vec<u8> {
    let mut params = params.clone();
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({"elicitation": {"form": {}}});
    let name = params["name"].as_str().unwrap_or_default();
    let headers =
        format!("mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: {name}\r\n");
    message("tools/call", &params, &headers)
}
