#!/bin/sh
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
# ///
#
# {"name": "Ada", "times": 2} arrives as `--name Ada --times 2`, and as a line of JSON on standard
# input. Standard output is the result; an exit code other than 0 is an error.

name='' times=1
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
