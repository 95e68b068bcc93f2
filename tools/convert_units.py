#!/usr/bin/env python3
# /// orla
# title: Convert units
# description: Converts a length, mass or temperature from one unit to another.
# input_schema:
#   type: object
#   properties:
#     value: {type: number, description: The number to convert}
#     from: {type: string, enum: [m, km, mi, ft, in, kg, g, lb, oz, C, F, K], description: The unit of value}
#     to: {type: string, enum: [m, km, mi, ft, in, kg, g, lb, oz, C, F, K], description: The unit wanted}
#   required: [value, from, to]
#   additionalProperties: false
# output_schema: {value: number, unit: string}
# annotations: {readOnlyHint: true, idempotentHint: true, openWorldHint: false}
# ///
"""Units are an `enum`, so a client can offer them, and a wrong one never reaches this program."""

import json
import sys

# unit: (dimension, factor, offset), where base = value * factor + offset
UNITS = {
    "m": ("length", 1.0, 0.0),
    "km": ("length", 1000.0, 0.0),
    "mi": ("length", 1609.344, 0.0),
    "ft": ("length", 0.3048, 0.0),
    "in": ("length", 0.0254, 0.0),
    "kg": ("mass", 1.0, 0.0),
    "g": ("mass", 0.001, 0.0),
    "lb": ("mass", 0.45359237, 0.0),
    "oz": ("mass", 0.028349523125, 0.0),
    "K": ("temperature", 1.0, 0.0),
    "C": ("temperature", 1.0, 273.15),
    "F": ("temperature", 5.0 / 9.0, 459.67 * 5.0 / 9.0),
}

arguments = json.load(sys.stdin)
source_kind, source_factor, source_offset = UNITS[arguments["from"]]
target_kind, target_factor, target_offset = UNITS[arguments["to"]]
if source_kind != target_kind:
    # A failure is an exit code and a sentence on standard error; the caller sees both.
    sys.exit(f"{arguments['from']} is a unit of {source_kind}, {arguments['to']} of {target_kind}")
base = arguments["value"] * source_factor + source_offset
print(json.dumps({"value": round((base - target_offset) / target_factor, 9), "unit": arguments["to"]}))
