#!/bin/sh
# /// orla
# title: Recent commits
# description: Lists the latest commits of a git repository, newest first.
# input_schema:
#   type: object
#   properties:
#     repository: {type: string, default: ., description: A folder inside the repository}
#     count: {type: integer, minimum: 1, maximum: 200, default: 10}
#   additionalProperties: false
# annotations: {readOnlyHint: true, openWorldHint: false}
# ///
set -eu

repository=. count=10
while [ $# -gt 0 ]; do
    case $1 in
        --repository) repository=$2; shift 2 ;;
        --count) count=$2; shift 2 ;;
        *) echo "unknown argument: $1" >&2; exit 2 ;;
    esac
done
exec git -C "$repository" log --max-count="$count" --date=short --format='%h %ad %an: %s'
