#!/bin/sh
# /// orla
# description: Finds the payment of an order.
# input_schema: {order: string}
# output_schema:
#   type: object
#   properties:
#     payment: {type: [integer, "null"], description: Null if the order is not paid}
#   required: [payment]
# annotations: {readOnlyHint: true}
# pass_env: [SHOP_DIR]
# ///
set -eu

order=$2 # after --order
echo payment >>"$SHOP_DIR/calls"
payment=$(grep -snxF -m 1 -e "$order" "$SHOP_DIR/payments" | cut -d: -f1)
echo "{\"payment\": ${payment:-null}}"
