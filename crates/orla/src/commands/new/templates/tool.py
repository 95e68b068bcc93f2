#!/usr/bin/env python3
# /// orla
# title: "__NAME__"
# description: Greets someone.
# input_schema:
#   type: object
#   properties:
#     name: {type: string, description: Whom to greet}
#     times: {type: integer, minimum: 1, maximum: 10, default: 1, description: How often}
#   required: [name]
#   additionalProperties: false
# output_schema: {greetings: "string[]"}
# ///
"""The arguments come as JSON on standard input, and the result goes as JSON to standard output.

An exit code other than 0, as after an exception, is an error, and the end of standard error goes
with it.
"""

import json
import sys

arguments = json.load(sys.stdin)
times = arguments.get("times", 1)

greetings = []
for number in range(1, times + 1):
    print(f"::progress {number}/{times} greeting {number}", file=sys.stderr)
    greetings.append(f"Hello, {arguments['name']}!")

print(json.dumps({"greetings": greetings}))
