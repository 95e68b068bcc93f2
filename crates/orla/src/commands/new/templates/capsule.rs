//! A capsule: one process answers all calls, and keeps its state between them.
//!
//! It speaks MCP over its standard input and output, a message of JSON on each line. Standard error
//! is the log. With a second tool in `tools`, they are served as __NAME____TOOL.

use serde_json::{Value, json};

struct Capsule {
    total: i64,
}

impl Capsule {
    fn tools() -> Value {
        json!([{
            "name": "__NAME__",
            "description": "Adds to a total that is kept between calls.",
            "inputSchema": {
                "type": "object",
                "properties": {"by": {"type": "integer", "description": "What to add; 1 if absent"}},
            },
        }])
    }

    fn call(&mut self, _tool: &Value, arguments: &Value) -> Value {
        self.total += arguments["by"].as_i64().unwrap_or(1);
        let text = format!("The total is {}.", self.total);
        json!({"content": [{"type": "text", "text": text}], "structuredContent": {"total": self.total}})
    }

    fn answer(&mut self, method: &str, params: &Value) -> Option<Value> {
        Some(match method {
            "initialize" => json!({
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "__NAME__", "version": "0.1.0"},
            }),
            "tools/list" => json!({"tools": Self::tools()}),
            "tools/call" => self.call(&params["name"], &params["arguments"]),
            "ping" => json!({}),
            _ => return None,
        })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut capsule = Capsule { total: 0 };
    println!(
        "{}",
        json!({"jsonrpc": "2.0", "method": "orla.hello",
               "params": {"name": "__NAME__", "version": "0.1.0", "capabilities": ["tools"]}})
    );
    // Ends when orla closes standard input.
    for line in std::io::stdin().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let (Some(id), Some(method)) = (request.get("id"), request["method"].as_str()) else {
            continue; // a notification, which gets no response
        };
        let message = match capsule.answer(method, &request["params"]) {
            Some(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            None => {
                let error = json!({"code": -32601, "message": format!("no method {method}")});
                json!({"jsonrpc": "2.0", "id": id, "error": error})
            }
        };
        println!("{message}");
    }
    Ok(())
}
