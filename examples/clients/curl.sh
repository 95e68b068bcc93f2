#!/bin/sh
# Lists the tools of a running server and calls one, with nothing but curl.
#
#   cargo run &
#   examples/clients/curl.sh
#
# The revision 2026-07-28 has no session: every request says who asks, in `_meta` and in headers.
set -eu

url=${1:-http://127.0.0.1:8080/mcp}
meta='"_meta": {
  "io.modelcontextprotocol/protocolVersion": "2026-07-28",
  "io.modelcontextprotocol/clientInfo": {"name": "curl", "version": "1"},
  "io.modelcontextprotocol/clientCapabilities": {}
}'

ask() {
    method=$1 params=$2
    shift 2
    curl --silent --show-error --fail-with-body "$url" \
        -H 'Content-Type: application/json' \
        -H 'Accept: application/json, text/event-stream' \
        -H 'MCP-Protocol-Version: 2026-07-28' \
        -H "Mcp-Method: $method" "$@" \
        -d "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"$method\", \"params\": {$params$meta}}"
    echo
}

ask tools/list ''
ask tools/call '"name": "hello", "arguments": {"name": "Ada"}, ' -H 'Mcp-Name: hello'
