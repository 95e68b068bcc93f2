#!/bin/sh
# /// orla
# title: Countdown
# description: Counts down to zero and reports progress on the way; an example of a tool that takes its time.
# input_schema:
#   type: object
#   properties:
#     from: {type: integer, minimum: 1, maximum: 100, default: 3, description: Where to start}
#     delay: {type: number, minimum: 0, maximum: 10, default: 0.1, description: Seconds between two steps}
#   additionalProperties: false
# timeout: 1200
# annotations: {readOnlyHint: true, openWorldHint: false}
# ///
#
# A line `::progress DONE/TOTAL MESSAGE` on standard error becomes a progress notification, and
# `::log LEVEL MESSAGE` a log message; neither is part of the answer.
set -eu

from=3 delay=0.1
while [ $# -gt 0 ]; do
    case $1 in
        --from) from=$2; shift 2 ;;
        --delay) delay=$2; shift 2 ;;
        *) echo "unknown argument: $1" >&2; exit 2 ;;
    esac
done

echo "::log info counting down from $from" >&2
left=$from
while [ "$left" -gt 0 ]; do
    echo "::progress $((from - left))/$from $left to go" >&2
    sleep "$delay"
    left=$((left - 1))
done
echo "Lift-off after $from steps."
