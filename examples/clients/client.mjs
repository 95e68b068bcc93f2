// Calls a tool with the official TypeScript SDK (`npm install @modelcontextprotocol/client`), and
// shows its progress.
//
//   cargo run &
//   node examples/clients/client.mjs

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const client = new Client(
  { name: "example", version: "1.0.0" },
  { versionNegotiation: { mode: "auto" } },
);
await client.connect(new StreamableHTTPClientTransport(new URL("http://127.0.0.1:8080/mcp")));
const result = await client.callTool(
  { name: "countdown", arguments: { from: 3, delay: 0.5 } },
  { onprogress: ({ progress, total, message }) => console.log(`${progress}/${total} ${message}`) },
);
console.log(result.content[0].text);
await client.close();
