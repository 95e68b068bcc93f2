//! Bounds that hold over all nodes.

use serde_json::json;

use super::{ECHO, Node, ONCE, World, eventually, signal, write};

/// The calls that a quota of the cluster admits.
const ADMITTED: usize = 5;
/// Callers at once, and the calls of each.
const CALLERS: (usize, usize) = (4, 4);

impl World {
    /// Three nodes count the calls of one quota, and have one place for a capability together.
    pub(super) fn limits(&self) -> Result<(), String> {
        let mut nats = self.nats()?;
        let shared = self.fresh("shared")?;
        // It notes when it runs twice at once.
        let alone = format!(
            "#!/bin/sh\n# /// orla\n# description: Runs alone.\n# ///\ncd {}; mkdir lock 2>/dev/null || echo x >>overlaps; sleep 0.02; rmdir lock\n",
            shared.display()
        );
        let tools = [("alone", &*alone), ("once", ONCE), ("echo", ECHO)];
        let limits = format!(
            "tools:\n  alone: {{max_concurrency: 1, scope: cluster}}\n  once: {{max_concurrency: 1, scope: cluster}}\nquotas: [{{capabilities: [echo], calls: {ADMITTED}, per: day, scope: cluster}}]\n"
        );
        let node = |name: &str, tools: &[(&str, &str)]| {
            self.instance(name, &format!("{}{limits}", nats.config(name)), tools)
        };
        let (alpha, beta, gamma) = (node("alpha", &tools)?, node("beta", &tools)?, node("gamma", &[])?);
        eventually("gamma lists `echo`", || Ok(gamma.lists("echo")? && gamma.lists("alone")?))?;
        // A call through gamma counts once, although two nodes have the rule.
        let nodes = [&alpha, &beta, &gamma];
        let calls = (0..3 * ADMITTED).map(|turn| nodes[turn % 3].call("echo", &json!({"stdin": "x"})));
        let refused: Vec<String> = calls.filter_map(Result::err).collect();
        if refused.len() != 2 * ADMITTED || !refused.iter().all(|told| told.contains("5 calls per day"))
        {
            return Err(format!("{} were refused: {refused:?}", refused.len()));
        }
        let (callers, each) = CALLERS;
        let call = |node: &Node| (0..each).try_for_each(|_| node.call("alone", &json!({})).map(drop));
        std::thread::scope(|scope| {
            let calls: Vec<_> = nodes
                .into_iter()
                .flat_map(|node| (0..callers).map(move |_| node))
                .map(|node| scope.spawn(move || call(node)))
                .collect();
            calls.into_iter().try_for_each(|caller| caller.join().map_err(|_| "a thread panicked")?)
        })?;
        if shared.join("overlaps").exists() {
            return Err("two calls ran at once".to_owned());
        }
        // A node dies with the only place.
        std::thread::scope(|scope| {
            let first = scope.spawn(|| alpha.call("once", &json!({})));
            eventually("the first call runs", || Ok(alpha.calls("once-calls") == 1))?;
            let second = scope.spawn(|| beta.call("once", &json!({})));
            write(&beta.folder.join("go"), "")?;
            signal(alpha.server.pid(), "KILL")?;
            drop(first.join());
            second.join().map_err(|_| "a thread panicked")?.map(drop)
        })?;
        nats.kill()?;
        eventually("without NATS nothing is counted", || {
            Ok(beta.call("once", &json!({})).is_err_and(|told| {
                told.contains("unavailable") && told.contains("holds in the whole cluster")
            }))
        })
    }
}
