#!/usr/bin/env node
// Starts the program of the optional dependency that fits this machine.
"use strict";

const { spawn } = require("node:child_process");

const name = `@orla-run/${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/bin/orla`);
} catch {
  console.error(
    `error: the package ${name} is not installed. Either orla is not built for this system, or the\n` +
      "installation left out optional dependencies (--omit=optional).\n" +
      "Other ways to install orla: @REPOSITORY@/blob/v@VERSION@/docs/install.md",
  );
  process.exit(1);
}

const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
// A terminal sends Ctrl-C to the program too, and a second SIGINT would cut calls short that the first one lets finish.
process.on("SIGINT", () => {
  if (!process.stdin.isTTY) {
    child.kill("SIGINT");
  }
});
for (const signal of ["SIGHUP", "SIGTERM", "SIGUSR1", "SIGUSR2"]) {
  process.on(signal, () => child.kill(signal));
}
child.on("error", (error) => {
  console.error(`error: ${program}: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  if (signal === null) {
    process.exit(code);
  }
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
