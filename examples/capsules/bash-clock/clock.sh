#!/usr/bin/env bash
# A capsule in Bash. It needs jq, which reads and writes the messages: one of JSON on each line.
#
#   orla dev examples/capsules/bash-clock
#   orla call clock zone=Asia/Tokyo --url http://127.0.0.1:8080
#
# What keeps it alive between calls is no more than this loop; `asked` is its state.

command -v jq >/dev/null || { echo "jq is needed, and is not installed" >&2; exit 1; }

tools='[{
  "name": "clock",
  "description": "Tells the time.",
  "inputSchema": {
    "type": "object",
    "properties": {
      "zone": {"type": "string", "description": "A time zone such as Europe/Paris; the own one if absent"}
    },
    "additionalProperties": false
  }
}]'
asked=0

# answer ID RESULT: both as JSON.
answer() { jq -cn --argjson id "$1" --argjson result "$2" '{jsonrpc: "2.0", $id, $result}'; }

# The result of a call, from the zone that it asks for.
tell() {
  local zone=$1 now
  if [ -n "$zone" ] && [ -d /usr/share/zoneinfo ] && [ ! -e "/usr/share/zoneinfo/$zone" ]; then
    jq -cn --arg zone "$zone" \
      '{content: [{type: "text", text: "\($zone) is no time zone"}], isError: true}'
  else
    now=$(env ${zone:+"TZ=$zone"} date '+%H:%M:%S %Z')
    jq -cn --arg now "$now" --argjson asked "$asked" --argjson up "$SECONDS" \
      '{content: [{type: "text", text: "\($now) (call \($asked) in \($up) s)"}]}'
  fi
}

jq -cn '{jsonrpc: "2.0", method: "orla.hello",
         params: {name: "clock", version: "1.0.0", capabilities: ["tools"]}}'
# Ends when orla closes standard input.
while IFS= read -r line; do
  { read -r id; read -r method; } < <(jq -r '(.id | tojson), .method' <<<"$line")
  [ "$id" != null ] || continue # a notification gets no response
  case $method in
    initialize)
      answer "$id" "$(jq -c '{protocolVersion: .params.protocolVersion, capabilities: {tools: {}},
                              serverInfo: {name: "clock", version: "1.0.0"}}' <<<"$line")" ;;
    tools/list) answer "$id" "{\"tools\": $tools}" ;;
    tools/call)
      asked=$((asked + 1))
      echo "call $asked" >&2 # standard error is the log
      answer "$id" "$(tell "$(jq -r '.params.arguments.zone // ""' <<<"$line")")" ;;
    ping) answer "$id" '{}' ;;
    *) jq -cn --argjson id "$id" --arg method "$method" \
        '{jsonrpc: "2.0", $id, error: {code: -32601, message: "no method \($method)"}}' ;;
  esac
done
