#!/usr/bin/env python3
# /// orla
# title: Bar chart
# description: Draws numbers as a bar chart and returns it as a PNG image.
# input_schema:
#   type: object
#   properties:
#     values:
#       type: array
#       items: {type: number}
#       minItems: 1
#       maxItems: 100
#       description: One bar each; negative numbers hang below the axis
#   required: [values]
#   additionalProperties: false
# output: mcp
# annotations: {readOnlyHint: true, openWorldHint: false}
# ///
"""With `output: mcp` the program prints a whole MCP tool result: here a sentence and an image.

A program that simply writes a PNG to standard output needs none of this: its output becomes an
image block by itself.
"""

import base64
import json
import struct
import sys
import zlib

HEIGHT, BAR, GAP = 120, 16, 6
PAPER, AXIS, ABOVE, BELOW = (255, 255, 255), (120, 120, 120), (46, 105, 176), (196, 78, 60)


def draw(values):
    """Rows of RGB pixels, top to bottom."""
    top, bottom = max(0, *values), min(0, *values)
    scale = (HEIGHT - 1) / ((top - bottom) or 1)
    zero = round(top * scale)
    width = GAP + len(values) * (BAR + GAP)
    rows = [[PAPER] * width for _ in range(HEIGHT)]
    for index, value in enumerate(values):
        left = GAP + index * (BAR + GAP)
        end = zero - round(value * scale)
        for y in range(min(end, zero), max(end, zero)):
            rows[y][left : left + BAR] = [ABOVE if value > 0 else BELOW] * BAR
    rows[min(zero, HEIGHT - 1)] = [AXIS] * width
    return rows


def png(rows):
    """The smallest PNG encoder: 8-bit RGB, no filter."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    raw = b"".join(b"\0" + bytes(channel for pixel in row for channel in pixel) for row in rows)
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


values = json.load(sys.stdin)["values"]
image = base64.b64encode(png(draw(values))).decode()
count = "1 bar" if len(values) == 1 else f"{len(values)} bars"
content = [
    {"type": "text", "text": f"{count}, from {min(values):g} to {max(values):g}"},
    {"type": "image", "data": image, "mimeType": "image/png"},
]
print(json.dumps({"content": content}))
