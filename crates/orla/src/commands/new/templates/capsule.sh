#!/usr/bin/env bash
# A capsule: one process answers all calls, and keeps its state between them. It needs jq.
#
# It speaks MCP over its standard input and output, a message of JSON on each line. Standard error
# is the log. With a second tool in `tools`, they are served as __NAME____TOOL.

command -v jq >/dev/null || { echo "jq is needed, and is not installed" >&2; exit 1; }

tools='[{
  "name": "__NAME__",
  "description": "Adds to a total that is kept between calls.",
  "inputSchema": {
    "type": "object",
    "properties": {"by": {"type": "integer", "description": "What to add; 1 if absent"}}
  }
}]'
total=0

send() { jq -cn "$@"; }
result() { send --argjson id "$id" "$@"; }

send '{jsonrpc: "2.0", method: "orla.hello", params: {name: "__NAME__", version: "0.1.0", capabilities: ["tools"]}}'
# Ends when orla closes standard input.
while IFS= read -r line; do
  { read -r id; read -r method; } < <(jq -r '(.id | tojson), .method' <<<"$line")
  [ "$id" != null ] || continue # a notification: nobody waits for an answer
  case $method in
    initialize)
      result --argjson request "$line" '{jsonrpc: "2.0", $id, result: {
        protocolVersion: $request.params.protocolVersion, capabilities: {tools: {}},
        serverInfo: {name: "__NAME__", version: "0.1.0"}}}' ;;
    tools/list)
      result --argjson tools "$tools" '{jsonrpc: "2.0", $id, result: {$tools}}' ;;
    tools/call)
      total=$((total + $(jq '.params.arguments.by // 1 | floor' <<<"$line")))
      result --argjson total "$total" '{jsonrpc: "2.0", $id, result: {
        content: [{type: "text", text: "The total is \($total)."}], structuredContent: {$total}}}' ;;
    ping)
      result '{jsonrpc: "2.0", $id, result: {}}' ;;
    *)
      result --arg method "$method" '{jsonrpc: "2.0", $id, error: {code: -32601, message: "no method \($method)"}}' ;;
  esac
done
