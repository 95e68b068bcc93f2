#!/usr/bin/env python3
"""A plugin: each line that comes in is a call, each line that goes out an answer."""
import json, math, sys

def say(**line):
    print(json.dumps(line), flush=True)

def add(input, id):
    return input["a"] + input["b"]

def factorials(input, id):
    """Reports how far it is."""
    for n in range(1, input["upto"] + 1):
        say(id=id, progress=n / input["upto"], message=f"{n}!")
    return [math.factorial(n) for n in range(1, input["upto"] + 1)]

def describe(input, id):
    return {"functions": [
        {"name": "add", "description": "Adds two numbers.", "input_schema": {"a": "number", "b": "number"}},
        {"name": "factorials", "description": "The first factorials.", "input_schema": {"upto": "integer"}}]}

for call in map(json.loads, sys.stdin):
    try:
        if "function" in call:  # and not "cancel": what this does is over at once
            function = {"add": add, "factorials": factorials, "describe": describe}[call["function"]]
            say(id=call["id"], ok=function(call.get("input"), call["id"]))
    except Exception as error:
        say(id=call["id"], error={"kind": type(error).__name__, "message": str(error)})
