#!/bin/sh
# Starts a NATS server and three nodes on this machine, and shows the cluster. Ctrl-C ends all of them; with --once, they end
# when it has shown the cluster. Needs `orla` and `nats-server` (https://github.com/nats-io/nats-server/releases) in PATH.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
pids=
trap 'kill $pids 2>/dev/null || :; wait; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# Tries a command until it succeeds, for 30 seconds.
eventually() {
    tries=150
    until "$@"; do
        tries=$((tries - 1))
        if [ "$tries" = 0 ]; then
            echo "run.sh: waited too long for: $*" >&2
            cat "$dir"/*.log >&2
            exit 1
        fi
        sleep 0.2
    done
}

# A node has a tool of gamma as soon as it knows gamma.
calls_gamma() {
    orla call --url http://127.0.0.1:18080 whoami_gamma >"$dir/answer" 2>"$dir/call.log"
}

knows_all() {
    for node in alpha beta gamma; do
        orla cluster status --url http://127.0.0.1:18080 --json 2>/dev/null | grep -q "whoami_$node" || return 1
    done
}

nats-server -a 127.0.0.1 -p 14222 -js -sd "$dir/nats" >"$dir/nats.log" 2>&1 &
pids="$pids $!"
port=18080
for node in alpha beta gamma; do
    mkdir -p "$dir/$node/tools"
    cp "$here/tools/whoami" "$dir/$node/tools/whoami_$node"
    cat >"$dir/$node/orla.yaml" <<END
port: $port
cluster: {nats: "nats://127.0.0.1:14222", name: example, node: $node}
END
    (cd "$dir/$node" && exec orla) 2>"$dir/$node.log" &
    pids="$pids $!"
    port=$((port + 1))
done

eventually knows_all
eventually calls_gamma
orla cluster status --url http://127.0.0.1:18080
echo "alpha calls a tool of gamma:"
cat "$dir/answer"
[ "${1:-}" = --once ] && exit 0
echo "The nodes listen on the ports 18080 to 18082. Ctrl-C ends them."
wait
