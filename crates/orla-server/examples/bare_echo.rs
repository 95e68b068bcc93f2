//! The baseline for measurements of the server: a bare axum handler that reads the JSON of a
//! `tools/call` and returns the same bytes as `examples/embedded.rs`.
//!
//! `cargo run --release -p orla-server --example bare_echo [PORT]`

use std::error::Error;

use axum::routing::post;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde_json::{Value, json};

async fn echo(Json(mut request): Json<Value>) -> Json<Value> {
    let arguments = request["params"]["arguments"].take();
    let text = arguments.to_string();
    Json(json!({
        "jsonrpc": "2.0",
        "id": request["id"].take(),
        "result": {
            "resultType": "complete",
            "content": [{"type": "text", "text": text}],
            "structuredContent": arguments,
        },
    }))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let port: u16 = std::env::args().nth(1).map_or(Ok(8081), |port| port.parse())?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    #[expect(clippy::print_stderr, reason = "an example says where it listens")]
    {
        eprintln!("listening on http://{}/mcp", listener.local_addr()?);
    }
    // The server does the same. Without it, answers wait for the client's acknowledgement.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    axum::serve(listener, Router::new().route("/mcp", post(echo))).await?;
    Ok(())
}
