#!/bin/sh
# Builds the program if a source is newer than it, and becomes it.
here=$(dirname "$0")
program=$here/target/program
if [ ! -x "$program" ] || [ -n "$(find "$here" -name '*.go' -newer "$program")" ]; then
  (cd "$here" && mkdir -p target && go build -o "target/program.$$" . >&2 && mv "target/program.$$" target/program) || exit
fi
exec "$program" "$@"
