//! The languages, each as something that runs one program from its text to its result.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rtfs::{Limits, Options, Outcome, Run, Source, compile};
use serde_json::{Value, json};

/// A program that is ready to be run from the beginning, any number of times.
pub(crate) trait Language {
    /// Reads, compiles, runs; the result as text.
    fn result(&mut self) -> Result<String, String>;

    /// How long that takes the processor.
    fn time(&mut self) -> Result<Duration, String> {
        let start = crate::busy();
        self.result()?;
        Ok(crate::busy() - start)
    }
}

/// The name under which a program finds its input.
pub(crate) const TEXT: &str = "text";

pub(crate) struct Rtfs {
    source: Source,
    options: Options,
    text: rtfs::Value,
}

impl Rtfs {
    pub(crate) fn new(program: &str, text: &str) -> Result<Self, String> {
        // The standard library is compiled once in a process.
        rtfs::eval_pure("1").map_err(|err| err.to_string())?;
        Ok(Self {
            source: Source::new("", program),
            options: Options { inputs: vec![TEXT.to_owned()], ..Options::default() },
            text: text.into(),
        })
    }
}

impl Language for Rtfs {
    fn result(&mut self) -> Result<String, String> {
        let program = compile(&self.source, &self.options).map_err(|err| err.to_string())?;
        let mut run = Run::new(Arc::clone(&program), Limits::default(), &[(TEXT, self.text.clone())]);
        loop {
            // As a host does it that shares its threads.
            match run.advance(20_000) {
                Outcome::Done(value) => return Ok(value.to_string()),
                Outcome::Failed(error) => return Err(error.report()),
                Outcome::Yielded => {}
                Outcome::Waiting => return Err("it waits for a host".to_owned()),
            }
        }
    }
}

/// Lua 5.4, within this process.
pub(crate) struct Lua {
    lua: mlua::Lua,
    program: &'static str,
}

impl Lua {
    pub(crate) fn new(program: &'static str, text: &str) -> Result<Self, String> {
        let lua = mlua::Lua::new();
        lua.globals().set(TEXT, text).map_err(|err| err.to_string())?;
        Ok(Self { lua, program })
    }
}

impl Language for Lua {
    fn result(&mut self) -> Result<String, String> {
        let value = self.lua.load(self.program).eval::<mlua::Value>();
        value.and_then(|value| value.to_string()).map_err(|err| err.to_string())
    }
}

/// An interpreter in a process of its own, which says for itself how long a run took its processor.
pub(crate) struct Interpreter {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Reads the program, then runs it once for each line: reading, compiling and running are timed.
const PYTHON: &str = r"
import json, sys, time
sys.setrecursionlimit(100000)
given = json.loads(sys.stdin.readline())
for _ in sys.stdin:
    start = time.process_time_ns()
    names = {'text': given['text']}
    exec(compile(given['program'], '', 'exec'), names)
    result = names['main']()
    print(json.dumps([time.process_time_ns() - start, str(result)]), flush=True)
";
const JAVASCRIPT: &str = r"
const lines = require('readline').createInterface({ input: process.stdin });
let given;
lines.on('line', line => {
    if (!given) { given = JSON.parse(line); return; }
    const start = process.cpuUsage();
    const result = new Function('text', given.program)(given.text);
    const took = process.cpuUsage(start);
    console.log(JSON.stringify([(took.user + took.system) * 1000, String(result)]));
});
";

impl Interpreter {
    /// CPython.
    pub(crate) fn python(program: &str, text: &str) -> Result<Self, String> {
        Self::new(Command::new("python3").args(["-c", PYTHON]), program, text)
    }

    /// V8 without its compilers.
    pub(crate) fn node(program: &str, text: &str) -> Result<Self, String> {
        Self::new(Command::new("node").args(["--jitless", "-e", JAVASCRIPT]), program, text)
    }

    fn new(command: &mut Command, program: &str, text: &str) -> Result<Self, String> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|err| format!("{}: {err}", command.get_program().display()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no pipes".to_owned());
        };
        let mut it = Self { child, input, output: BufReader::new(output) };
        writeln!(it.input, "{}", json!({"program": program, "text": text}))
            .map_err(|err| err.to_string())?;
        Ok(it)
    }

    fn run(&mut self) -> Result<(Duration, String), String> {
        writeln!(self.input, "run").map_err(|err| err.to_string())?;
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|err| err.to_string())?;
        let answer: Value = serde_json::from_str(&line).map_err(|_| "the program failed".to_owned())?;
        match (answer[0].as_u64(), answer[1].as_str()) {
            (Some(nanoseconds), Some(result)) => {
                Ok((Duration::from_nanos(nanoseconds), result.to_owned()))
            }
            _ => Err(format!("unexpected answer: {line}")),
        }
    }
}

impl Language for Interpreter {
    fn result(&mut self) -> Result<String, String> {
        self.run().map(|(_, result)| result)
    }

    fn time(&mut self) -> Result<Duration, String> {
        self.run().map(|(took, _)| took)
    }
}

impl Drop for Interpreter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
