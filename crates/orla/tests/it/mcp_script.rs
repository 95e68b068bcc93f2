//! An MCP server over stdio in Python, with one tool.

/// Returns the server with the tool `tool`. `begin` runs when the process starts; `answer` sets the
/// `result` of a call whose `params` are `p`, and may write messages by `out` before.
pub(crate) fn mcp_script(tool: &str, begin: &str, answer: &str) -> String {
    format!(
        r#"
import json, os, sys
{begin}
def out(m): print(json.dumps({{"jsonrpc": "2.0", **m}}), flush=True)
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m: continue
    p = m.get("params") or {{}}
    if m["method"] == "initialize":
        result = {{"protocolVersion": p["protocolVersion"], "capabilities": {{"tools": {{}}}}, "serverInfo": {{"name": "script", "version": "1"}}}}
    elif m["method"] == "tools/list":
        result = {{"tools": [{{"name": "{tool}", "inputSchema": {{"type": "object"}}}}]}}
    else:
{answer}
    out({{"id": m["id"], "result": result}})
"#
    )
}
