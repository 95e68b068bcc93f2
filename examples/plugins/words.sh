#!/bin/sh
# Runs the plugin in Rust (words.rs), once it is built.
cd "$(dirname "$0")" || exit 1
[ -x "$1" ] || { echo "build it first: cargo build -p orla-e2e --example words" >&2; exit 1; }
exec "$1"
