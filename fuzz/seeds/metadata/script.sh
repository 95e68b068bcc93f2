#!/usr/bin/env -S python3 -u
# /// orla
# title: T
# description: |
#   two
#   lines
# input_schema: {a: number, b: {type: string, enum: [x, y]}}
# output_schema:
#   type: object
#   properties: {sum: {type: number}}
# output: json
# timeout: 1.5
# args: [-l]
# annotations: {readOnlyHint: true}
# permissions: [net]
# ///
echo hi
