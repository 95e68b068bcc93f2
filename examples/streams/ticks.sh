#!/bin/sh
# Counts until its reader stops reading.
n=0
while :; do
  n=$((n + 1))
  echo "{\"n\": $n}"
  sleep 0.05
done
