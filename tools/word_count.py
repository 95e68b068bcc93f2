#!/usr/bin/env python3
# /// orla
# title: Word count
# description: Counts the characters, words and lines of a text and names its most frequent words.
# input_schema:
#   type: object
#   properties:
#     text: {type: string, description: The text to measure}
#     top: {type: integer, minimum: 0, maximum: 100, default: 3, description: How many frequent words to name}
#   required: [text]
#   additionalProperties: false
# output_schema:
#   type: object
#   properties:
#     characters: {type: integer}
#     words: {type: integer}
#     lines: {type: integer}
#     frequent:
#       type: array
#       items:
#         type: object
#         properties:
#           word: {type: string}
#           count: {type: integer}
#         required: [word, count]
#   required: [characters, words, lines, frequent]
# annotations: {readOnlyHint: true, openWorldHint: false}
# ///
"""The arguments arrive on standard input as one line of JSON, already checked against the schema."""

import collections
import json
import re
import sys

arguments = json.load(sys.stdin)
text = arguments["text"]
words = re.findall(r"\w+(?:['’]\w+)*", text.lower())
# Most frequent first; words of equal frequency in alphabetical order, so that answers are stable.
ranked = sorted(collections.Counter(words).items(), key=lambda pair: (-pair[1], pair[0]))
answer = {
    "characters": len(text),
    "words": len(words),
    "lines": len(text.splitlines()),
    "frequent": [{"word": word, "count": count} for word, count in ranked[: arguments.get("top", 3)]],
}
print(json.dumps(answer, ensure_ascii=False))
