#!/usr/bin/env node
// A capsule: one process answers all calls, and keeps its state between them.
//
// It speaks MCP over its standard input and output, a message of JSON on each line. Standard error
// is the log (console.error; never console.log). With a second tool in `tools`, they are served as
// __NAME____TOOL.

import { createInterface } from "node:readline";

const tools = [
  {
    name: "__NAME__",
    description: "Adds to a total that is kept between calls.",
    inputSchema: {
      type: "object",
      properties: { by: { type: "integer", description: "What to add; 1 if absent" } },
    },
  },
];
let total = 0;

function call(name, { by = 1 }) {
  total += by;
  return { content: [{ type: "text", text: `The total is ${total}.` }], structuredContent: { total } };
}

const methods = {
  initialize: ({ protocolVersion }) => ({
    protocolVersion,
    capabilities: { tools: {} },
    serverInfo: { name: "__NAME__", version: "0.1.0" },
  }),
  "tools/list": () => ({ tools }),
  "tools/call": (params) => call(params.name, params.arguments ?? {}),
  ping: () => ({}),
};

const send = (message) => process.stdout.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");

send({ method: "orla.hello", params: { name: "__NAME__", version: "0.1.0", capabilities: ["tools"] } });
// Ends when orla closes standard input.
for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params = {} } = JSON.parse(line);
  if (id === undefined) continue; // a notification: nobody waits for an answer
  if (Object.hasOwn(methods, method)) send({ id, result: await methods[method](params) });
  else send({ id, error: { code: -32601, message: `no method ${method}` } });
}
