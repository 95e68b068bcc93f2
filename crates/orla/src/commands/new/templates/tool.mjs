#!/usr/bin/env node
// /// orla
// title: "__NAME__"
// description: Greets someone.
// input_schema:
//   type: object
//   properties:
//     name: {type: string, description: Whom to greet}
//     times: {type: integer, minimum: 1, maximum: 10, default: 1, description: How often}
//   required: [name]
//   additionalProperties: false
// output_schema: {greetings: "string[]"}
// ///
//
// The arguments come as JSON on standard input, and the result goes as JSON to standard output.
// An exit code other than 0, as after an exception, is an error, and the end of standard error
// goes with it.

import { readFileSync } from "node:fs";

const { name, times = 1 } = JSON.parse(readFileSync(0, "utf8"));

const greetings = [];
for (let number = 1; number <= times; number++) {
  console.error(`::progress ${number}/${times} greeting ${number}`);
  greetings.push(`Hello, ${name}!`);
}

console.log(JSON.stringify({ greetings }));
