//! Compiled programs.

use std::sync::{Arc, OnceLock};

use super::op::Op;
use crate::scalar::Keyword;
use crate::syntax::{Source, Span};
use crate::types::TypeExpr;
use crate::value::Value;

/// A compiled program. It is immutable; any number of runs may share it.
pub struct Program {
    pub(crate) macro_steps: u64,
    /// The functions of the prelude, whose numbers come first.
    pub(crate) shared: &'static [Arc<Proto>],
    /// The functions of the program.
    pub(crate) own: Vec<Arc<Proto>>,
    pub(crate) globals: Vec<Global>,
    /// The number of functions of the prelude.
    pub(crate) prelude: u32,
    /// The code that runs the text from its beginning to its end.
    pub(crate) entry: u32,
    /// The imported modules.
    pub(crate) modules: Vec<String>,
    /// The named types.
    pub(crate) types: Arc<crate::types::Definitions>,
    /// Macros and imports, for a program that continues this one.
    pub(crate) scope: Arc<crate::compiler::Scope>,
    /// Identifies the program in saved runs; computed on first use.
    pub(crate) fingerprint: OnceLock<u64>,
}

/// A definition at the top level.
#[derive(Clone, Debug)]
pub struct Global {
    /// The name, prefixed with the module's name, if it has one.
    pub name: Arc<str>,
    /// The documentation.
    pub doc: Option<Arc<str>>,
    /// The parameters as written, if it is a function.
    pub params: Vec<Arc<str>>,
    /// The code, if it is a function that captures nothing and is defined once.
    pub(crate) code: Option<u32>,
}

/// The code of one function.
pub(crate) struct Proto {
    pub(crate) code: Box<[Op]>,
    pub(crate) consts: Box<[Value]>,
    pub(crate) types: Box<[Check]>,
    /// The number of parameters before the `&`.
    pub(crate) arity: u8,
    pub(crate) rest: bool,
    /// The number of arguments, if there is only one; else -1.
    pub(crate) exact: i16,
    /// The number of registers for parameters and locals, which are cleared at the end.
    pub(crate) locals: u8,
    /// The number of used registers.
    pub(crate) registers: u16,
    pub(crate) name: Arc<str>,
    /// The source spans of instructions: the first instruction of each span, in ascending order.
    pub(crate) spans: Box<[(u32, Span)]>,
    pub(crate) source: Source,
    /// The arities, if there are several. The proto is then only a table.
    pub(crate) arities: Box<[(u8, bool, u32)]>,
}

/// A type that a value is checked against, and the name of the value in messages.
pub(crate) struct Check {
    pub(crate) ty: TypeExpr,
    pub(crate) what: Box<str>,
    /// Whether each item is checked, as for `& rest`.
    pub(crate) each: bool,
    /// Whether the value is the result of a function.
    pub(crate) is_result: bool,
}

impl Proto {
    pub(crate) fn span(&self, pc: usize) -> Span {
        let at = self.spans.partition_point(|&(from, _)| from as usize <= pc);
        at.checked_sub(1).map(|at| self.spans[at].1).unwrap_or_default()
    }

    /// Returns the code for so many arguments.
    pub(crate) fn accepts(&self, n: usize) -> bool {
        let arity = usize::from(self.arity);
        if self.rest { n >= arity } else { n == arity }
    }
}

impl Program {
    /// Returns the names of the macros that the program, or an earlier one, defines.
    pub fn macros(&self) -> impl Iterator<Item = &str> {
        self.scope.macro_names()
    }

    /// Returns the number of steps that macros made during compilation.
    pub fn macro_steps(&self) -> u64 {
        self.macro_steps
    }

    /// Returns the function of this number, if a run of this program may be executing it.
    ///
    /// The text of the prelude itself is excluded: it has run before, with its own definitions.
    pub(crate) fn find(&self, p: u32) -> Option<&Proto> {
        let proto = match p.checked_sub(self.prelude) {
            Some(own) => self.own.get(own as usize),
            None if p == crate::compiler::prelude().entry => None,
            None => self.shared.get(p as usize),
        };
        proto.map(|proto| &**proto)
    }

    /// Returns the function of this number.
    #[inline(always)]
    pub(crate) fn proto(&self, p: u32) -> &Proto {
        match p.checked_sub(self.prelude) {
            Some(own) => &self.own[own as usize],
            None => &self.shared[p as usize],
        }
    }

    /// Returns the definitions at the top level, in their order.
    pub fn globals(&self) -> &[Global] {
        &self.globals
    }

    /// Returns the code that a function of `p` runs when called with `n` arguments.
    pub(crate) fn select(&self, p: u32, n: usize) -> Option<u32> {
        let proto = self.proto(p);
        if proto.arities.is_empty() {
            return proto.accepts(n).then_some(p);
        }
        let exact = proto.arities.iter().find(|(arity, rest, _)| !rest && usize::from(*arity) == n);
        let found = exact
            .or_else(|| proto.arities.iter().find(|(arity, rest, _)| *rest && n >= usize::from(*arity)));
        found.map(|&(_, _, p)| p)
    }

    /// Describes the accepted arities for a message.
    pub(crate) fn arity_text(&self, p: u32) -> String {
        let proto = self.proto(p);
        let own = [(proto.arity, proto.rest, p)];
        let all = if proto.arities.is_empty() { &own[..] } else { &proto.arities };
        crate::builtins::arities_text(all.iter().map(|&(arity, rest, _)| (usize::from(arity), rest)))
    }
}

/// A definition's name as a keyword, as hosts show it.
impl From<&Global> for Keyword {
    fn from(global: &Global) -> Self {
        Self::new(&*global.name)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Options, Source, compile};

    #[test]
    fn a_run_may_be_in_any_function_but_the_text_of_the_prelude() {
        let program = compile(&Source::new("", "(map inc [1])"), &Options::default()).unwrap();
        let prelude = crate::compiler::prelude();
        for p in 0..program.prelude {
            assert_eq!(
                program.find(p).is_some(),
                p != prelude.entry,
                "function {p} of {}",
                program.prelude
            );
        }
        assert!(program.find(program.entry).is_some());
        assert!(program.find(program.prelude + program.own.len() as u32).is_none());
    }
}
