//! A session whose every request goes to another node, while nodes offer one capability in two versions.

use serde_json::{Value, json};

use super::shared::message;
use super::{Node, TIMEOUT, World, eventually};
use crate::bench::client::{Connection, message_of};

/// The two versions of a tool.
const OLD: &str = "#!/bin/sh\n# /// orla\n# description: Says that it is old.\n# input_schema: {old: string}\n# ///\necho this is old\n";
const NEW: &str = "#!/bin/sh\n# /// orla\n# description: Says that it is new.\n# input_schema: {new: string}\n# ///\necho this is new\n";
/// The beginning of the error of a version that no node has.
const GONE: &str = "no node of the cluster offers this version any longer";

impl World {
    /// A session calls the version that it has listed at every node, as long as one offers it.
    pub(super) fn listed_versions(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let alpha = self.node(&nats, "alpha", &[("told", OLD)])?;
        let beta = self.node(&nats, "beta", &[("told", NEW)])?;
        let gamma = self.node(&nats, "gamma", &[])?;
        for (node, others) in [(&alpha, ["beta", "gamma"]), (&beta, ["alpha", "gamma"])] {
            for other in others {
                eventually("all nodes know each other", || Ok(node.knows(other)?["alive"] == true))?;
            }
        }
        for name in ["alpha", "beta"] {
            eventually("gamma knows the tools of both", || {
                Ok(gamma.knows(name)?["capabilities"] == json!(["told"]))
            })?;
        }
        let nodes = [&beta, &gamma, &alpha, &gamma, &beta, &alpha];
        let listed_at = |node: &Node| -> Result<String, String> {
            let session = node.initialize()?;
            node.in_session(&session, "tools/list", &json!({}))?;
            Ok(session)
        };
        // Each node lists what it has itself, and the others what was offered last.
        let (old, new) = (listed_at(&alpha)?, listed_at(&gamma)?);
        for node in nodes {
            says(node, &old, "this is old")?;
            says(node, &new, "this is new")?;
        }
        // A session lists again, and calls at every node what it listed last.
        let moved = listed_at(&alpha)?;
        beta.in_session(&moved, "tools/list", &json!({}))?;
        for node in nodes {
            says(node, &moved, "this is new")?;
        }

        alpha.server.end(TIMEOUT)?;
        eventually("gamma knows that alpha is gone", || Ok(gamma.knows("alpha")?["alive"] == false))?;
        eventually("beta knows that alpha is gone", || Ok(beta.knows("alpha")?["alive"] == false))?;
        // No node has the version any more. One that has the tool calls its own.
        says(&gamma, &old, GONE)?;
        eventually("beta does not offer alpha's version", || Ok(says(&beta, &old, GONE).is_err()))?;
        says(&beta, &old, "this is new")?;
        gamma.in_session(&old, "tools/list", &json!({}))?;
        for node in [&beta, &gamma] {
            says(node, &old, "this is new")?;
        }
        Ok(())
    }
}

/// Checks that the result of a call in a session has this text.
fn says(node: &Node, session: &str, text: &str) -> Result<(), String> {
    let answer = node.called(session)?;
    match answer["result"]["content"].to_string().contains(text) {
        true => Ok(()),
        false => Err(format!("{}: got {answer}, wanted {text}", node.folder.display())),
    }
}

impl Node {
    /// Calls the tool in a session, and returns the answer.
    fn called(&self, session: &str) -> Result<Value, String> {
        let headers = format!("mcp-session-id: {session}\r\nmcp-protocol-version: 2025-11-25\r\n");
        let params = json!({"name": "told", "arguments": {"old": "a", "new": "b"}});
        let mut connection = Connection::open(&self.server.address)?;
        message_of(connection.exchange(&message("tools/call", &params, &headers))?.body)
    }
}
