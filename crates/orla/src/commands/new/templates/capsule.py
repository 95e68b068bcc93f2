#!/usr/bin/env python3
"""A capsule: one process answers all calls, and keeps its state between them.

It speaks MCP over its standard input and output, a message of JSON on each line. Standard error is
the log. With a second tool in TOOLS, they are served as __NAME____TOOL.
"""

import json
import sys

TOOLS = [
    {
        "name": "__NAME__",
        "description": "Adds to a total that is kept between calls.",
        "inputSchema": {
            "type": "object",
            "properties": {"by": {"type": "integer", "description": "What to add; 1 if absent"}},
        },
    }
]
total = 0


def call(name, arguments):
    global total
    total += arguments.get("by", 1)
    return {"content": [{"type": "text", "text": f"The total is {total}."}], "structuredContent": {"total": total}}


def answer(method, params):
    if method == "initialize":
        info = {"name": "__NAME__", "version": "0.1.0"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        return call(params["name"], params.get("arguments", {}))
    return {} if method == "ping" else None


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


send({"method": "orla.hello", "params": {"name": "__NAME__", "version": "0.1.0", "capabilities": ["tools"]}})
for line in sys.stdin:  # ends when orla closes it
    request = json.loads(line)
    if "id" not in request:
        continue  # a notification: nobody waits for an answer
    result = answer(request["method"], request.get("params", {}))
    if result is None:
        send({"id": request["id"], "error": {"code": -32601, "message": f"no method {request['method']}"}})
    else:
        send({"id": request["id"], "result": result})
