//! A plugin: each line that comes in is a call, each line that goes out an answer.
//! `cargo build -p orla-e2e --example words` makes `target/debug/examples/words` of it.

use serde_json::{Value, json};
use std::io::{self, Write};

fn answer(function: &str, input: &Value) -> Result<Value, String> {
    let text = || input["text"].as_str().ok_or("text is missing");
    match function {
        "count" => Ok(json!({"words": text()?.split_whitespace().count()})),
        "describe" => Ok(json!({"functions": [{"name": "count", "description": "Counts words.",
            "input_schema": {"text": "string"}, "output_schema": {"words": "integer"}}]})),
        _ => Err(format!("no function is called {function}")),
    }
}

fn main() -> io::Result<()> {
    for line in io::stdin().lines() {
        let Value::Object(call) = serde_json::from_str(&line?)? else { continue };
        let Some(function) = call.get("function").and_then(Value::as_str) else { continue };
        let answer = match answer(function, call.get("input").unwrap_or(&Value::Null)) {
            Ok(value) => json!({"id": call["id"], "ok": value}),
            Err(message) => json!({"id": call["id"], "error": {"message": message}}),
        };
        writeln!(io::stdout(), "{answer}")?;
    }
    Ok(())
}
