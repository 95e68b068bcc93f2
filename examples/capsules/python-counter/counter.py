#!/usr/bin/env python3
"""A capsule with nothing but the standard library: state between calls, progress, cancellation.

Try it:

    orla dev examples/capsules/python-counter
    orla call counter__add by=2 --url http://127.0.0.1:8080       # twice: the total is kept
    orla call counter__count_down from=5 --url http://127.0.0.1:8080

Every call runs in a thread of its own, so a slow one does not delay others; the main thread reads.
"""

import json
import sys
import threading

TOOLS = {
    "add": {
        "description": "Adds to a total that is kept between calls.",
        "inputSchema": {
            "type": "object",
            "properties": {"by": {"type": "integer", "description": "What to add; 1 if absent"}},
            "additionalProperties": False,
        },
        "outputSchema": {
            "type": "object",
            "properties": {"total": {"type": "integer"}},
            "required": ["total"],
        },
    },
    "count_down": {
        "description": "Counts down, a second for each number, and says how far it is.",
        "inputSchema": {
            "type": "object",
            "properties": {"from": {"type": "integer", "minimum": 1, "maximum": 60}},
            "required": ["from"],
            "additionalProperties": False,
        },
    },
}

lock = threading.Lock()  # around everything below, and standard output
total = 0
running = {}  # the number of a request: set when it is cancelled


def send(message):
    with lock:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def text(words, **more):
    return {"content": [{"type": "text", "text": words}], **more}


def add(arguments, *_):
    global total
    with lock:
        total += arguments.get("by", 1)
        now = total
    return text(f"The total is {now}.", structuredContent={"total": now})


def count_down(arguments, progress, cancelled):
    start = arguments["from"]
    for done in range(start):
        progress(done, start, f"{start - done} to go")
        if cancelled.wait(1):
            print("count_down: cancelled", file=sys.stderr)  # standard error is the log
            return None
    return text("Lift-off!")


def call(request):
    number, params = request["id"], request["params"]
    token = params.get("_meta", {}).get("progressToken")  # absent if the caller wants no progress

    def progress(done, of, message):
        if token is not None:
            params = {"progressToken": token, "progress": done, "total": of, "message": message}
            send({"method": "notifications/progress", "params": params})

    try:
        tool = {"add": add, "count_down": count_down}[params["name"]]
        result = tool(params.get("arguments", {}), progress, running[number])
    except Exception as error:  # one call's failure is its own
        result = text(f"{type(error).__name__}: {error}", isError=True)
    with lock:
        is_wanted = not running.pop(number).is_set()
    if is_wanted:
        send({"id": number, "result": result})


def main():
    hello = {"name": "counter", "version": "1.0.0", "capabilities": ["tools"]}
    send({"method": "orla.hello", "params": hello})
    for line in sys.stdin:  # ends when orla closes it
        message = json.loads(line)
        method, params = message.get("method"), message.get("params", {})
        if method == "notifications/cancelled":
            with lock:
                cancelled = running.get(params.get("requestId"))
            if cancelled:
                cancelled.set()
        elif "id" not in message:
            continue  # another notification: it gets no response
        elif method == "tools/call":
            running[message["id"]] = threading.Event()
            threading.Thread(target=call, args=[message], daemon=True).start()
        elif method == "initialize":
            info = {"name": "counter", "version": "1.0.0"}
            version = params["protocolVersion"]
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            send({"id": message["id"], "result": result})
        elif method == "tools/list":
            tools = [{"name": name, **tool} for name, tool in TOOLS.items()]
            send({"id": message["id"], "result": {"tools": tools}})
        elif method == "ping":
            send({"id": message["id"], "result": {}})
        else:
            error = {"code": -32601, "message": f"no method {method}"}
            send({"id": message["id"], "error": error})


main()
