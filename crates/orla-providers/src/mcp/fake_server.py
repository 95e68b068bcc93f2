"""A server of MCP for tests. Its arguments say how it behaves."""
import json, os, sys, threading, time

MODES = set(sys.argv[1:])
lock = threading.Lock()
tools = ["echo", "die", "ask", "slow", "change", "say", "odd", "env"]
answers, asked = {}, 0
answered = threading.Event()
EMPTY = {"type": "object"}


def out(message):
    with lock:
        sys.stdout.write(message if isinstance(message, str) else json.dumps(message))
        sys.stdout.write("\n")
        sys.stdout.flush()


def answer(id, result):
    out({"jsonrpc": "2.0", "id": id, "result": result})


def error(id, code, message):
    out({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})


def notify(method, params):
    out({"jsonrpc": "2.0", "method": method, "params": params})


def text(text):
    return {"content": [{"type": "text", "text": text}]}


def ask(method, params):
    global asked
    asked += 1
    id = f"q{asked}"
    answers[id] = threading.Event()
    out({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    answers[id].wait(20)
    return answers[id].message


def listed(name):
    tool = {"name": name, "description": f"The tool {name}.", "inputSchema": EMPTY}
    if name == "odd":
        tool["inputSchema"] = {"type": "no such type"}
    return tool


def call(id, params):
    name, args, meta = params["name"], params.get("arguments", {}), params.get("_meta", {})
    if name == "echo":
        answer(id, {"content": [{"type": "text", "text": json.dumps(args)}], "structuredContent": args})
    elif name == "die":
        print("out of memory", file=sys.stderr, flush=True)
        os._exit(3)
    elif name == "ask":
        if "modern" in MODES:
            responses = params.get("inputResponses")
            if responses is None:
                question = {"method": "sampling/createMessage", "params": {"maxTokens": 1}}
                answer(id, {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "s1"})
            else:
                answer(id, {"resultType": "complete", **text(json.dumps([responses, params["requestState"]]))})
            return
        reply = ask("sampling/createMessage", {"messages": [], "maxTokens": 1})
        answer(id, text(json.dumps(reply.get("result", reply.get("error")))))
        answered.set()
    elif name == "slow":
        # Until the next question is answered.
        answered.clear()
        notify("notifications/progress", {"progressToken": meta.get("progressToken"), "progress": 0})
        answered.wait(120)
        answer(id, text("waited"))
    elif name == "change":
        tools.append("new")
        notify("notifications/tools/list_changed", {})
        answer(id, text("changed"))
    elif name == "say":
        notify("notifications/progress", {"progressToken": meta.get("progressToken"), "progress": 1, "total": 2})
        notify("notifications/message", {"level": "info", "data": "hello"})
        answer(id, text("said"))
    elif name == "odd":
        # What no typed relay would keep.
        out('{"jsonrpc": "2.0", "id": %d, "result": {"content": [ {"type": "text", "text": "\\u00e9", "extra": 1.10}, '
            '{"type":"hologram","n":1e400} ], "structuredContent": {"n": 18446744073709551616}, "more": 1}}' % id)
    elif name == "env":
        answer(id, text(f"{os.environ.get('LEVEL')} {os.getcwd()} {os.getpid()} {json.dumps(meta)}"))
    elif name == "fail":
        answer(id, {**text("it failed"), "isError": True})
    else:
        error(id, -32602, f"Unknown tool: {name}")


def request(id, method, params):
    if method == "initialize":
        if "modern" in MODES:
            return error(id, -32601, "Method not found")
        if "exit" in MODES:
            os._exit(4)
        if "mute" in MODES:
            return
        capabilities = {"tools": {"listChanged": True}, "prompts": {}, "resources": {"subscribe": True}, "completions": {}, "logging": {}}
        answer(id, {"protocolVersion": "2024-11-05", "capabilities": capabilities, "serverInfo": {"name": "f", "version": "1"}})
    elif method == "server/discover" and "modern" in MODES:
        assert params["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        answer(id, {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": True}, "resources": {"subscribe": True}}, "ttlMs": 0, "cacheScope": "private"})
    elif method == "subscriptions/listen" and "modern" in MODES:
        notify("notifications/subscriptions/acknowledged", {"notifications": params["notifications"]})
        for uri in params["notifications"].get("resourceSubscriptions", []):
            notify("notifications/resources/updated", {"uri": uri})
    elif method == "tools/list":
        if "endless" in MODES:
            page = int(params.get("cursor", "0"))
            return answer(id, {"tools": [listed(f"t{page}")], "nextCursor": str(page + 1)})
        at = tools.index(params["cursor"]) if "cursor" in params else 0
        page = {"tools": [listed(name) for name in tools[at:at + 5]]}
        if at + 5 < len(tools):
            page["nextCursor"] = tools[at + 5]
        answer(id, page)
    elif method == "tools/call":
        threading.Thread(target=call, args=(id, params), daemon=True).start()
    elif method == "prompts/list":
        answer(id, {"prompts": [{"name": "greet", "extra": 1}]})
    elif method == "prompts/get":
        answer(id, {"messages": [{"role": "user", "content": {"type": "text", "text": params["name"]}}]})
    elif method == "resources/read":
        if params["uri"] == "mem://a":
            out('{"jsonrpc":"2.0","id":%d,"result":{"contents":[{"uri":"mem://a","text":"x","n":1.10}]}}' % id)
        else:
            error(id, -32002, "Resource not found")
    elif method in ("resources/subscribe", "ping", "logging/setLevel"):
        answer(id, {})
        if method == "resources/subscribe":
            notify("notifications/resources/updated", {"uri": params["uri"]})
    else:
        error(id, -32601, f"Method not found: {method}")


if "noise" in MODES:
    out("starting up …")
for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message:
        waiting = answers.get(message["id"])
        if waiting:
            waiting.message = message
            waiting.set()
    elif "id" in message:
        request(message["id"], message["method"], message.get("params", {}))
