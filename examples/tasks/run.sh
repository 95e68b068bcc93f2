#!/bin/sh
# Runs order.rtfs as a task, and kills its server twice: while `label` runs and while `charge` runs.
#
#   examples/tasks/run.sh
#   ORLA=target/debug/orla examples/tasks/run.sh
set -eu

orla=${ORLA:-orla}
case $orla in
    /*) ;;
    */*) orla=$PWD/$orla ;;
esac
cd "$(dirname "$0")"

SHOP_DIR=$(mktemp -d)
export SHOP_DIR ORLA_STATE_DIR="$SHOP_DIR/state"
server=

cleanup() {
    [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null || true
    rm -rf "$SHOP_DIR"
}
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

fail() {
    echo "run.sh: $*" >&2
    cat "$SHOP_DIR/log" >&2
    exit 1
}

# Tries a command until it succeeds, for 30 seconds.
eventually() {
    tries=300
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "waited too long for: $*"
        sleep 0.1
    done
}

listens() {
    kill -0 "$server" 2>/dev/null || fail "the server has ended"
    # The line may name it more than once.
    address=$(grep -o '127\.0\.0\.1:[0-9]*' "$SHOP_DIR/log" | head -n 1)
    [ -n "$address" ] && url=http://$address
}

called() {
    grep -qsx "$1" "$SHOP_DIR/calls"
}

start_server() {
    : >"$SHOP_DIR/log" # the shell, not the server, drops the old address
    "$orla" --port 0 >>"$SHOP_DIR/log" 2>&1 &
    server=$!
    eventually listens
}

kill_server() {
    kill -9 "$server"
    wait "$server" 2>/dev/null || true
    server=
}

start_server
id=$("$orla" task run --program order.rtfs --input '{"order": "A-17"}' --url "$url")
for tool in label charge; do
    eventually called "$tool"
    kill_server
    echo "killed the server while \`$tool\` ran"
    start_server
done
"$orla" task event "$id" collected '"Ada"' --url "$url"
result=$("$orla" task wait "$id" --url "$url")

echo "the result: $result"
echo
"$orla" task show "$id" --url "$url"
echo
echo "calls of each tool:"
sort "$SHOP_DIR/calls" | uniq -c

expected='{"order":"A-17","label":"label-A-17","payment":1,"courier":"Ada"}'
[ "$result" = "$expected" ] || fail "expected the result $expected"
[ "$(grep -cx charge "$SHOP_DIR/calls")" = 1 ] || fail "the customer was charged more than once"
