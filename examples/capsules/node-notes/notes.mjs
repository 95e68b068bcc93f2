#!/usr/bin/env node
// A whole MCP server as a capsule, with the official TypeScript SDK: tools, resources and a prompt.
//
//   npm install --prefix examples/capsules/node-notes
//   orla dev examples/capsules/node-notes
//   orla call notes__add title=Milk 'text=Two litres' --url http://127.0.0.1:8080
//
// The only line that is about orla is the one that says hello. Everything else is the server as it
// would be without it. Notes live as long as the process.

import { McpServer } from "@modelcontextprotocol/server";
import { StdioServerTransport } from "@modelcontextprotocol/server/stdio";
import * as z from "zod";

const server = new McpServer({ name: "notes", version: "1.0.0" });
const notes = new Map();
let last = 0;

const said = (text, structuredContent) => ({ content: [{ type: "text", text }], structuredContent });

server.registerTool(
  "add",
  {
    description: "Keeps a note.",
    inputSchema: z.object({ title: z.string().min(1), text: z.string() }),
    outputSchema: z.object({ uri: z.string() }),
  },
  async ({ title, text }) => {
    const uri = `notes:///${++last}`;
    // Clients that have listed the resources are notified of the new one.
    const resource = server.registerResource(title, uri, { mimeType: "text/plain" }, async () => ({
      contents: [{ uri, mimeType: "text/plain", text }],
    }));
    notes.set(uri, { title, text, resource });
    return said(`Kept as ${uri}.`, { uri });
  },
);

server.registerTool(
  "find",
  {
    description: "Finds the notes that hold a text.",
    inputSchema: z.object({ text: z.string().default("") }),
    annotations: { readOnlyHint: true },
  },
  async ({ text }) => {
    const holds = (note) => `${note.title}\n${note.text}`.toLowerCase().includes(text.toLowerCase());
    const found = [...notes].filter(([, note]) => holds(note));
    return said(found.map(([uri, note]) => `${uri} ${note.title}`).join("\n") || "No note was found.");
  },
);

server.registerTool(
  "remove",
  { description: "Forgets a note.", inputSchema: z.object({ uri: z.string() }) },
  async ({ uri }) => {
    const note = notes.get(uri);
    if (!note) return { ...said(`There is no note ${uri}.`), isError: true };
    notes.delete(uri);
    note.resource.remove();
    return said(`${note.title} is forgotten.`);
  },
);

server.registerPrompt(
  "summarise",
  { description: "Asks for a summary of all notes.", argsSchema: z.object({ style: z.string() }) },
  ({ style }) => {
    const all = [...notes.values()].map(({ title, text }) => `# ${title}\n\n${text}`).join("\n\n");
    const text = `Summarise these notes, in this style: ${style}\n\n${all}`;
    return { messages: [{ role: "user", content: { type: "text", text } }] };
  },
);

// The resources are there from the start, so that clients know that there will be some.
server.registerResource("notes", "notes:///", { mimeType: "text/plain" }, async () => ({
  contents: [{ uri: "notes:///", mimeType: "text/plain", text: [...notes.keys()].join("\n") }],
}));

const params = { name: "notes", version: "1.0.0", capabilities: ["tools", "resources", "prompts"] };
process.stdout.write(JSON.stringify({ jsonrpc: "2.0", method: "orla.hello", params }) + "\n");
await server.connect(new StdioServerTransport());
