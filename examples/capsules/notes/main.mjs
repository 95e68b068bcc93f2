#!/usr/bin/env node
// A whole MCP server with the official SDK: two tools, a resource for each note, and a prompt. The one
// line that makes a capsule of it is the last. Run `npm install` here first.

import { McpServer, ResourceTemplate } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { z } from "zod";

const notes = new Map();
const text = (content) => ({ content: [{ type: "text", text: content }] });
const server = new McpServer({ name: "notes", version: "1.0.0" });

server.registerTool(
  "write",
  { description: "Writes a note, in place of one with the same title", inputSchema: { title: z.string(), body: z.string() } },
  ({ title, body }) => {
    notes.set(title, body);
    server.sendResourceListChanged();
    return text(`${notes.size} notes`);
  },
);

server.registerTool("titles", { description: "Lists the titles of all notes" }, () => text([...notes.keys()].join("\n")));

server.registerResource(
  "note",
  new ResourceTemplate("notes:///{title}", {
    list: () => ({
      resources: [...notes.keys()].map((title) => ({ uri: `notes:///${encodeURIComponent(title)}`, name: title })),
    }),
  }),
  { description: "A note" },
  (uri, { title }) => {
    const body = notes.get(decodeURIComponent(title));
    if (body === undefined) throw new Error(`no note is called ${title}`);
    return { contents: [{ uri: uri.href, mimeType: "text/plain", text: body }] };
  },
);

server.registerPrompt("summarize", { description: "Asks for a summary of all notes" }, () => ({
  messages: [{ role: "user", content: { type: "text", text: `Summarize:\n\n${[...notes.values()].join("\n\n")}` } }],
}));

await server.connect(new StdioServerTransport());
const params = { name: "notes", version: "1.0.0", capabilities: ["tools", "resources", "prompts"] };
console.log(JSON.stringify({ jsonrpc: "2.0", method: "orla.hello", params }));
