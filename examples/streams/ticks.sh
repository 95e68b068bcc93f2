#!/bin/sh
# Counts for as long as somebody listens.
n=0
while :; do
  n=$((n + 1))
  echo "{\"n\": $n}"
  sleep 0.05
done
