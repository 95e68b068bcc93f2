//! Programs after expansion: names are resolved, and all code consists of a few forms.
//!
//! Forms are in an arena, so that passes over them stay small on the stack.

use crate::machine::op::{ForkKind, HostOp};
use crate::syntax::Span;
use crate::value::Value;

/// The index of a form in the arena.
pub(crate) type Id = u32;

/// A local of a function, by number.
pub(crate) type Var = u32;

pub(crate) enum Ir {
    Const(Value),
    Local(Var),
    /// A variable that the running closure captured.
    Up(u16),
    SelfFn,
    Global(u32),
    If(Id, Id, Id),
    /// Tests with their values, and the value if none holds.
    Cond(Vec<(Id, Id)>, Id),
    And(Vec<Id>),
    Or(Vec<Id>),
    Do(Vec<Id>),
    Let(Vec<(Var, Id)>, Id),
    /// Assigns a value to a local; is true. A matching pattern uses it.
    Assign(Var, Id),
    Loop(Box<Loop>),
    Merge(Box<Merge>),
    Recur(Vec<Id>),
    /// A function, by its index among those of the unit.
    Fn(usize),
    Call(Id, Vec<Id>),
    /// A function of the standard library that is written in RTFS.
    CallCode(u32, Vec<Id>),
    Native(u16, Vec<Id>),
    Key(Value, Id),
    Apply(Id, Id),
    Vector(Vec<Id>),
    Map(Vec<Id>),
    Set(Vec<Id>),
    /// Appends to a vector that is an accumulator.
    Push(Id, Id),
    Def(u32, Id),
    Throw(Id),
    Try(Box<Try>),
    /// Throws the error in a local again.
    Rethrow(Var),
    /// Checks the value against a type of the function's table and returns it.
    Check(Id, usize),
    /// Checks a local, and returns nil.
    CheckLocal(Var, usize),
    Host(HostOp, Vec<Id>),
    Fork(ForkKind, Vec<Id>),
}

/// A loop, over a collection if it has `each`.
pub(crate) struct Loop {
    pub(crate) vars: Vec<(Var, Id)>,
    pub(crate) each: Option<Each>,
    pub(crate) body: Id,
}

pub(crate) struct Each {
    pub(crate) item: Var,
    pub(crate) collection: Id,
    /// The value of the loop after the last item.
    pub(crate) exit: Id,
}

/// A merge sort: sorts the items of a vector in the order that the code for two items defines.
pub(crate) struct Merge {
    pub(crate) items: Id,
    pub(crate) later: Var,
    pub(crate) earlier: Var,
    /// Whether the later item comes before the earlier one.
    pub(crate) compare: Id,
}

pub(crate) struct Try {
    pub(crate) body: Id,
    pub(crate) error: Var,
    pub(crate) handler: Option<Id>,
    pub(crate) cleanup: Option<Id>,
}

/// A function of the unit.
pub(crate) struct Function {
    pub(crate) name: String,
    /// The captured variables, as its creator refers to them.
    pub(crate) captures: Vec<Id>,
    pub(crate) arities: Vec<Arity>,
    /// Its number in the program; for several arities, the number of their table.
    pub(crate) proto: u32,
}

pub(crate) struct Arity {
    pub(crate) params: Vec<Var>,
    pub(crate) rest: bool,
    pub(crate) body: Id,
    pub(crate) proto: u32,
    /// The number of locals, parameters included.
    pub(crate) vars: u32,
    pub(crate) span: Span,
}

/// The forms of a unit with their places in the text.
#[derive(Default)]
pub(crate) struct Arena {
    pub(crate) forms: Vec<Ir>,
    pub(crate) spans: Vec<Span>,
}

impl Arena {
    pub(crate) fn add(&mut self, ir: Ir, span: Span) -> Id {
        self.forms.push(ir);
        self.spans.push(span);
        (self.forms.len() - 1) as Id
    }

    pub(crate) fn get(&self, id: Id) -> &Ir {
        &self.forms[id as usize]
    }

    pub(crate) fn span(&self, id: Id) -> Span {
        self.spans[id as usize]
    }
}
