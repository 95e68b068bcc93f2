#!/usr/bin/env python3
"""A database that lives as long as the capsule. Standard library only."""
import json
import sqlite3
import sys


def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def run(statement):
    with database:
        cursor = database.execute(statement)
        columns = [column[0] for column in cursor.description or []]
        return [dict(zip(columns, row)) for row in cursor.fetchmany(1000)]


def call(params):
    try:
        text, failed = json.dumps(run(params["arguments"]["statement"]), ensure_ascii=False), False
    except sqlite3.Error as error:
        text, failed = str(error), True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


database = sqlite3.connect(":memory:")
say({"method": "orla.hello", "params": {"name": "sql", "version": "1.0.0", "capabilities": ["tools"]}})
for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "tools/call":
        say({"id": request["id"], "result": call(request["params"])})
    elif "id" in request:
        say({"id": request["id"], "error": {"code": -32601, "message": "not implemented"}})
