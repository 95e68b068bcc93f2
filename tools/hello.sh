#!/bin/sh
# Greets someone: `{"name": "Ada"}` gives "Hello, Ada!"; without a name it greets the world.
#
# The smallest useful tool. Named arguments arrive as flags (`--name Ada`), and what is
# written to standard output is the answer.
set -eu

name=world
while [ $# -gt 0 ]; do
    case $1 in
        --name) name=${2:?--name needs a value}; shift 2 ;;
        *) echo "unknown argument: $1" >&2; exit 2 ;;
    esac
done
echo "Hello, $name!"
