#!/usr/bin/env bash
# A capsule in a shell script: one JSON-RPC message a line, in and out.
say() { printf '{"jsonrpc":"2.0",%s}\n' "$1"; }

say '"method":"orla.hello","params":{"name":"stopwatch","version":"1.0.0","capabilities":["tools"]}'
last=$SECONDS
while IFS= read -r line; do
    # The server's ids are numbers, and each is the first in its line.
    [[ $line =~ \"id\":([0-9]+) ]] || continue
    id=${BASH_REMATCH[1]}
    if [[ $line == *'"method":"tools/call"'* ]]; then
        say "\"id\":$id,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"$((SECONDS - last)) s\"}]}"
        last=$SECONDS
    else
        say "\"id\":$id,\"error\":{\"code\":-32601,\"message\":\"not implemented\"}"
    fi
done
