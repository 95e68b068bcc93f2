//! The three languages, each as something that runs one program from its text to its result.

use std::sync::Arc;

use rhai::{Dynamic, Engine, Scope};
use rtfs::{Limits, Options, Outcome, Run, Source, compile};
use steel::SteelVal;

/// A program that is ready to be run from the beginning, any number of times.
pub(crate) trait Language {
    /// Reads, compiles, runs; the result as text.
    fn result(&mut self) -> Result<String, String>;
}

/// The name under which a program finds its input.
const TEXT: &str = "text";

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

pub(crate) struct Steel {
    engine: steel::steel_vm::engine::Engine,
    program: &'static str,
}

impl Steel {
    pub(crate) fn new(program: &'static str, text: &str) -> Self {
        let mut engine = steel::steel_vm::engine::Engine::new();
        engine.register_value(TEXT, SteelVal::StringV(text.to_owned().into()));
        Self { engine, program }
    }
}

impl Language for Steel {
    fn result(&mut self) -> Result<String, String> {
        let values =
            self.engine.compile_and_run_raw_program(self.program).map_err(|err| err.to_string())?;
        values.last().map(ToString::to_string).ok_or_else(|| "no value".to_owned())
    }
}

pub(crate) struct Rhai {
    engine: Engine,
    scope: Scope<'static>,
    program: &'static str,
}

impl Rhai {
    pub(crate) fn new(program: &'static str, text: &str) -> Self {
        let mut engine = Engine::new();
        engine.set_max_call_levels(20_000);
        let mut scope = Scope::new();
        scope.push_constant(TEXT, rhai::ImmutableString::from(text));
        Self { engine, scope, program }
    }
}

impl Language for Rhai {
    fn result(&mut self) -> Result<String, String> {
        let value = self.engine.eval_with_scope::<Dynamic>(&mut self.scope, self.program);
        self.scope.rewind(1);
        value.map(|value| value.to_string()).map_err(|err| err.to_string())
    }
}
