//! A plugin as a WebAssembly component: it counts words, and can do nothing else.
//! `cargo build --release --target wasm32-wasip2` makes `target/wasm32-wasip2/release/words.wasm` of it.

use serde_json::{Value, json};

wit_bindgen::generate!({ path: "../../plugins/plugin.wit" });

struct Words;

impl Guest for Words {
    fn describe() -> String {
        json!({"functions": [{"name": "count", "description": "Counts words.",
            "input_schema": {"text": "string"}, "output_schema": {"words": "integer"}}]})
        .to_string()
    }

    fn call(_function: String, input: String) -> Result<String, String> {
        let input: Value = serde_json::from_str(&input).map_err(|err| err.to_string())?;
        let text = input["text"].as_str().ok_or("text is missing")?;
        Ok(json!({"words": text.split_whitespace().count()}).to_string())
    }
}

export!(Words);
