#!/bin/sh
# /// orla
# title: Hello
# description: Greets someone, as often as wanted.
# input_schema:
#   type: object
#   properties:
#     name: {type: string, description: Whom to greet}
#     times: {type: integer, minimum: 1, maximum: 10, description: How often}
#   required: [name]
#   additionalProperties: false
# ///
#
# A tool is an executable file in ./tools; its name without the extension is the tool's name.
# The block above is optional: without it, the first comment is the description, and any argument
# is taken. What is declared is enforced before the tool starts.
#
# Arguments come as flags: {"name": "Ada", "times": 2} arrives as `--name Ada --times 2`. They also
# come as one line of JSON on standard input, for languages that read JSON easily.
#
# What is written to standard output is the result. An exit code other than 0 is an error, and the
# end of standard error goes with it. A line `::progress 1/3 message` on standard error tells the
# client how far the tool is.

name=world
times=1
while [ $# -gt 0 ]; do
  case $1 in
    --name) name=$2; shift 2 ;;
    --times) times=$2; shift 2 ;;
    *) echo "unknown argument: $1" >&2; exit 2 ;;
  esac
done

n=0
while [ "$n" -lt "$times" ]; do
  n=$((n + 1))
  echo "::progress $n/$times greeting $n" >&2
  echo "Hello, $name!"
done
