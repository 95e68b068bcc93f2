#!/bin/sh
# Starts a NATS server and three nodes on this machine, and shows the cluster. Ctrl-C ends all of them.
# Needs `orla` and `nats-server` (https://github.com/nats-io/nats-server/releases) in PATH.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
pids=
trap 'kill $pids 2>/dev/null || :; wait; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

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

cd "$dir/alpha"
until orla cluster status --json 2>/dev/null | grep -q gamma; do sleep 0.2; done
sleep 1
orla cluster status
echo "alpha calls a tool of gamma:"
orla call --url http://127.0.0.1:18080 whoami_gamma
[ "${1:-}" = --once ] && exit 0
echo "The nodes listen on the ports 18080 to 18082. Ctrl-C ends them."
wait
