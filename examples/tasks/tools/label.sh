#!/bin/sh
# /// orla
# description: Makes the label of an order. The label of an order is always the same.
# input_schema: {order: string}
# output_schema: {label: string}
# annotations: {idempotentHint: true}
# pass_env: [SHOP_DIR]
# ///
set -eu

order=$2 # after --order
echo label >>"$SHOP_DIR/calls"
sleep 2
echo "{\"label\": \"label-$order\"}"
