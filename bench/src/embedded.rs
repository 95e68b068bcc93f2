//! Languages of other crates that are embedded into this process.

use rhai::{Dynamic, Engine, Scope};
use steel::SteelVal;

use crate::languages::{Language, TEXT};

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
