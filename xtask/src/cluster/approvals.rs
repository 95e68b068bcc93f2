//! Calls that wait for an approval, on several nodes.

use serde_json::{Value, json};

use super::{ECHO, Nats, Node, ONCE, World, eventually, same, signal, write};
use crate::bench::client::Connection;

/// The token of a caller begins with its name.
const TOKENS: &str = "{ada: ada-0123456789abcdef, bob: bob-0123456789abcdef}";
const TOKEN: &str = "-0123456789abcdef";

impl World {
    /// Calls of bob wait at alpha. Ada answers them at beta: once, and no other caller does.
    pub(super) fn approvals(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let alpha = self.asking(&nats, "alpha", &[("echo", ECHO)])?;
        let beta = self.asking(&nats, "beta", &[])?;
        eventually("beta lists `echo`", || beta.lists_as("ada", "echo"))?;
        let at_beta = |who: &str| beta.as_caller(who, "GET", "/approvals", "");
        for approve in [true, false] {
            std::thread::scope(|scope| {
                let call = scope.spawn(|| alpha.call_as("bob", "echo"));
                eventually("ada sees the call at beta", || {
                    Ok(at_beta("ada")?.1[0]["answerable"] == true)
                })?;
                let shown = &at_beta("ada")?.1[0];
                same(
                    &json!([shown["node"], shown["principal"], shown["input"]]),
                    &json!(["alpha", "bob", {"stdin": "x"}]),
                )?;
                let path = format!("/approvals/{}", shown["id"].as_str().unwrap_or_default());
                let answer = json!({ "approve": approve }).to_string();
                same(&json!(at_beta("bob")?.1[0]["answerable"]), &json!(false))?;
                // The node at which it waits may be slow to say so.
                for (who, status) in [("bob", 403), ("ada", 200)] {
                    eventually("the answer is judged", || {
                        Ok(beta.as_caller(who, "POST", &path, &answer)?.0 == status)
                    })?;
                }
                let (status, _) = call.join().map_err(|_| "a thread panicked")??;
                if (status == 200) != approve {
                    return Err(format!("approve: {approve}, and the call: {status}"));
                }
                same(&json!(beta.as_caller("ada", "POST", &path, &answer)?.0), &json!(404))
            })?;
        }
        // A question ends with the node that asks.
        std::thread::scope(|scope| {
            let call = scope.spawn(|| alpha.call_as("bob", "echo"));
            let waits = eventually("ada sees the call", || Ok(at_beta("ada")?.1[0]["node"] == "alpha"));
            let killed = signal(alpha.server.pid(), "KILL");
            drop(call.join());
            waits.and(killed)?;
            eventually("it is shown no more", || Ok(at_beta("ada")?.1 == json!([])))
        })
    }

    /// The call of a program at beta waits at alpha, and beta is killed. The call has not begun, so
    /// another node makes it, and it runs once.
    pub(super) fn asked_anew(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let alpha = self.asking(&nats, "alpha", &[("echo", ONCE)])?;
        write(&alpha.folder.join("go"), "")?;
        let beta = self.knowing(&nats, "beta", "", &[])?;
        let gamma = self.knowing(&nats, "gamma", "", &[])?;
        for node in [&beta, &gamma] {
            eventually("every node lists `echo`", || node.lists_as("ada", "echo"))?;
        }
        let program = json!({ "program": "(call :echo {})" }).to_string();
        let (_, task) = beta.as_caller("bob", "POST", "/tasks", &program)?;
        let path = format!("/tasks/{}", task["id"].as_str().unwrap_or_default());
        let task = || Ok::<_, String>(gamma.as_caller("bob", "GET", &path, "")?.1);
        let questions = || Ok::<_, String>(gamma.as_caller("ada", "GET", "/approvals", "")?.1);
        eventually("the call waits", || Ok(questions()?[0]["node"] == "alpha"))?;
        same(&task()?["node"], &json!("beta"))?;
        beta.server.kill()?;
        eventually("another node has the task", || Ok(task()?["node"] != "beta"))?;
        eventually("it ends", || {
            for question in questions()?.as_array().into_iter().flatten() {
                let path = format!("/approvals/{}", question["id"].as_str().unwrap_or_default());
                gamma.as_caller("ada", "POST", &path, r#"{"approve": true}"#)?;
            }
            let state = task()?["state"].take();
            Ok(["completed", "failed", "interrupted"].iter().any(|end| state == *end))
        })?;
        same(&task()?["state"], &json!("completed"))?;
        same(&json!(alpha.calls("once-calls")), &json!(1))
    }

    fn asking(&self, nats: &Nats, name: &str, tools: &[(&str, &str)]) -> Result<Node, String> {
        self.knowing(nats, name, "approve: [{capabilities: [echo], by: [ada]}]\n", tools)
    }

    fn knowing(
        &self,
        nats: &Nats,
        name: &str,
        rules: &str,
        tools: &[(&str, &str)],
    ) -> Result<Node, String> {
        let config = format!("{}auth_tokens: {TOKENS}\n{rules}", nats.config(name));
        self.instance(name, &config, tools)
    }
}

impl Node {
    /// The status and the answer of a request of this caller.
    fn as_caller(
        &self,
        who: &str,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<(u16, Value), String> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {who}{TOKEN}\r\ncontent-type: application/json\r\n"
        );
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        let mut connection = Connection::open(&self.server.address)?;
        let answer = connection.exchange(request.as_bytes())?;
        Ok((answer.status, serde_json::from_slice(answer.body).unwrap_or_default()))
    }

    fn call_as(&self, who: &str, capability: &str) -> Result<(u16, Value), String> {
        self.as_caller(who, "POST", &format!("/api/{capability}"), r#"{"stdin": "x"}"#)
    }

    fn lists_as(&self, who: &str, name: &str) -> Result<bool, String> {
        let rows = self.as_caller(who, "GET", "/status", "")?.1["capabilities"].take();
        Ok(rows.as_array().is_some_and(|rows| rows.iter().any(|row| row["id"] == name)))
    }
}
