//! Programs after expansion: names are resolved, everything is one of a few forms.
//!
//! Forms are in an arena, so that passes over them stay small on the stack.

use crate::machine::op::{ForkKind, HostOp};
use crate::syntax::Span;
use crate::value::Value;

/// The place of a form in the arena.
pub(super) type Id = u32;

/// A local of a function, by number.
pub(super) type Var = u32;

pub(super) enum Ir {
    Const(Value),
    Local(Var),
    /// What the running closure captured.
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
    /// Gives a local its value; is true. What a pattern does when it matches.
    Assign(Var, Id),
    Loop(Box<Loop>),
    Merge(Box<Merge>),
    Recur(Vec<Id>),
    /// A function, by its place among those of the unit.
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
    /// Throws what is in a local again.
    Rethrow(Var),
    /// The value, after it was checked against a type of the function's table.
    Check(Id, usize),
    /// Checks a local, and is nil.
    CheckLocal(Var, usize),
    Host(HostOp, Vec<Id>),
    Fork(ForkKind, Vec<Id>),
}

/// A loop; one over a collection if it has `each`.
pub(super) struct Loop {
    pub(super) vars: Vec<(Var, Id)>,
    pub(super) each: Option<Each>,
    pub(super) body: Id,
}

pub(super) struct Each {
    pub(super) item: Var,
    pub(super) collection: Id,
    /// The value of the loop when there are no more items.
    pub(super) exit: Id,
}

/// A merge sort: the items of a vector in the order that the code says, which compares two.
pub(super) struct Merge {
    pub(super) items: Id,
    pub(super) later: Var,
    pub(super) earlier: Var,
    /// Whether the later item comes before the earlier one.
    pub(super) compare: Id,
}

pub(super) struct Try {
    pub(super) body: Id,
    pub(super) error: Var,
    pub(super) handler: Option<Id>,
    pub(super) cleanup: Option<Id>,
}

/// A function of the unit.
pub(super) struct Function {
    pub(super) name: String,
    /// What it captures, as its creator sees it.
    pub(super) captures: Vec<Id>,
    pub(super) arities: Vec<Arity>,
    /// Its number in the program; for several arities that of their table.
    pub(super) proto: u32,
}

pub(super) struct Arity {
    pub(super) params: Vec<Var>,
    pub(super) rest: bool,
    /// Whether the rest is a list, as code is.
    pub(super) lists: bool,
    pub(super) body: Id,
    pub(super) proto: u32,
    /// How many locals it has, parameters included.
    pub(super) vars: u32,
    pub(super) span: Span,
}

/// The forms of a unit with their places in the text.
#[derive(Default)]
pub(super) struct Arena {
    pub(super) forms: Vec<Ir>,
    pub(super) spans: Vec<Span>,
}

impl Arena {
    pub(super) fn add(&mut self, ir: Ir, span: Span) -> Id {
        self.forms.push(ir);
        self.spans.push(span);
        (self.forms.len() - 1) as Id
    }

    pub(super) fn get(&self, id: Id) -> &Ir {
        &self.forms[id as usize]
    }

    pub(super) fn span(&self, id: Id) -> Span {
        self.spans[id as usize]
    }
}
