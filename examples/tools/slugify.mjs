#!/usr/bin/env node
// /// orla
// title: Slugify
// description: Makes a text fit for a URL or a file name.
// input_schema: {text: string}
// output_schema: {slug: string}
// annotations: {readOnlyHint: true, idempotentHint: true, openWorldHint: false}
// ///

import { readFileSync } from "node:fs";

const { text } = JSON.parse(readFileSync(0, "utf8"));
const slug = text
  .normalize("NFKD")
  .replace(/\p{M}/gu, "")
  .toLowerCase()
  .replace(/[^\p{L}\p{N}]+/gu, "-")
  .replace(/^-|-$/g, "");
console.log(JSON.stringify({ slug }));
