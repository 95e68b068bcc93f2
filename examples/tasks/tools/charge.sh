#!/bin/sh
# /// orla
# description: Charges the customer of an order. Each call charges again.
# input_schema: {order: string}
# output_schema: {payment: integer}
# annotations: {idempotentHint: false}
# pass_env: [SHOP_DIR]
# ///
set -eu

order=$2 # after --order
echo "$order" >>"$SHOP_DIR/payments"
payment=$(grep -c '' "$SHOP_DIR/payments")
echo charge >>"$SHOP_DIR/calls"
sleep 2 # the money has moved, the answer has not
echo "{\"payment\": $payment}"
