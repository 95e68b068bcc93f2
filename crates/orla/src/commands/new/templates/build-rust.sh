#!/bin/sh
# Builds the program if a source is newer than it, and becomes it.
here=$(dirname "$0")
program=$here/target/release/program
if [ ! -x "$program" ] || [ -n "$(find "$here/src" "$here/Cargo.toml" -newer "$program")" ]; then
  (cd "$here" && cargo build --quiet --release --target-dir target >&2) || exit
fi
exec "$program" "$@"
