//! The instructions of the register machine.
//!
//! Operands are registers of the running function's window of 256. Register 0 holds the running
//! function, and later its result. The arguments follow from 1.

/// One instruction. `d` is the result register, `o` an offset from the next instruction.
#[derive(Clone, Copy, Debug)]
#[rustfmt::skip] // one instruction per line
pub(crate) enum Op {
    Nil { d: u8 },
    Bool { d: u8, b: bool },
    Int { d: u8, i: i32 },
    Const { d: u8, k: u32 },
    /// Takes the value out of `s`.
    Move { d: u8, s: u8 },
    Copy { d: u8, s: u8 },
    Clear { r: u8 },
    Up { d: u8, i: u16 },
    /// The running function, if it is a closure.
    SelfFn { d: u8 },
    Global { d: u8, g: u32 },
    SetGlobal { s: u8, g: u32 },

    Add { d: u8, a: u8, b: u8 },
    Sub { d: u8, a: u8, b: u8 },
    Mul { d: u8, a: u8, b: u8 },
    AddI { d: u8, a: u8, i: i32 },
    ModI { d: u8, a: u8, i: i32 },
    Lt { d: u8, a: u8, b: u8 },
    Le { d: u8, a: u8, b: u8 },
    Gt { d: u8, a: u8, b: u8 },
    Ge { d: u8, a: u8, b: u8 },
    Eq { d: u8, a: u8, b: u8 },
    Not { d: u8, a: u8 },

    Jump { o: i32 },
    /// A jump back, which is a step.
    Loop { o: i32 },
    JumpIfNot { a: u8, o: i32 },
    JumpIf { a: u8, o: i32 },
    /// These instructions clear `a`, a temporary.
    TakeJumpIfNot { a: u8, o: i32 },
    TakeJumpIf { a: u8, o: i32 },
    UnlessLt { a: u8, b: u8, o: i16 },
    UnlessLe { a: u8, b: u8, o: i16 },
    UnlessGt { a: u8, b: u8, o: i16 },
    UnlessGe { a: u8, b: u8, o: i16 },
    UnlessEq { a: u8, b: u8, o: i16 },
    UnlessLtI { a: u8, o: i16, i: i32 },
    UnlessLeI { a: u8, o: i16, i: i32 },
    UnlessGtI { a: u8, o: i16, i: i32 },
    UnlessGeI { a: u8, o: i16, i: i32 },
    UnlessEqI { a: u8, o: i16, i: i32 },
    /// Jumps unless `a` equals a constant.
    UnlessConst { a: u8, k: u16, o: i16 },

    /// Calls code whose parameters are known to match. Its window begins at `a`.
    CallCode { a: u8, p: u32 },
    /// Calls the function in `a` with the `n` arguments after it.
    Call { a: u8, n: u8 },
    TailCode { a: u8, n: u8, p: u32 },
    /// A function of the prelude is called as usual instead, so that its errors have a place in the
    /// program: a `Return` follows.
    Tail { a: u8, n: u8 },
    /// Calls the function in `a` with the items of `a + 1`.
    Apply { a: u8 },
    TailApply { a: u8 },
    Return { s: u8 },
    /// A function that captures the `n` values from `a`.
    Closure { d: u8, a: u8, n: u8, p: u32 },

    /// A function of the standard library that reads its operands.
    Read1 { f: u16, d: u8, a: u8 },
    Read2 { f: u16, d: u8, a: u8, b: u8 },
    Read3 { f: u16, d: u8, a: u8, b: u8, c: u8 },
    /// A function of the standard library that consumes the `n` values from `a`.
    Native { f: u16, d: u8, a: u8, n: u8 },
    /// Gets the value of the map in `a` at a keyword.
    Key { d: u8, a: u8, k: u16 },

    /// Puts the next item of the collection in `s` into `x`, by the counter in `s + 1`; else jumps.
    Iter { x: u8, s: u8, o: i32 },
    /// Like `Iter` at the end of a loop: jumps back if there is an item.
    IterBack { x: u8, s: u8, o: i32 },
    /// Requests the next comparison of the merge sort whose state begins at `s`, after the one whose
    /// answer is in `r`; else jumps.
    Merge { r: u8, s: u8, o: i32 },
    /// Appends what is in `s` to the vector in `v`.
    Push { v: u8, s: u8 },
    NewVector { d: u8, a: u8, n: u8 },
    /// Creates a map from alternating keys and values.
    NewMap { d: u8, a: u8, n: u8 },
    NewSet { d: u8, a: u8, n: u8 },
    /// Adds a key and its value to the map in `m`.
    Put { m: u8, k: u8, v: u8 },
    /// Adds a member to the set in `m`.
    Member { m: u8, v: u8 },

    /// Installs a handler: errors from here on go to `d` and continue at `o`; registers from `t` on are
    /// cleared.
    Try { d: u8, t: u8, o: i32 },
    EndTry,
    Throw { a: u8 },
    /// Throws the error in `a` again, unless it is nil.
    Rethrow { a: u8 },
    /// Checks a value against a type of the function's table.
    Check { a: u8, t: u16 },

    /// Sends a request to the host; see `HostOp` for the kinds. The `n` operands from `a` are consumed.
    Host { d: u8, a: u8, n: u8, kind: HostOp },
    /// Runs the `n` functions from `a` in separate strands.
    Fork { d: u8, a: u8, n: u8, kind: ForkKind },
}

const _: () = assert!(size_of::<Op>() == 8);

/// The kind of a request to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostOp {
    Call,
    Open,
    Next,
    Send,
    Close,
    Search,
    Describe,
    SleepUntil,
    AwaitTask,
    AwaitEvent,
    Log,
    StepBegin,
    StepEnd,
}

impl HostOp {
    /// Returns whether the request waits for an external condition: a time, a task, an event. It does
    /// not count as a concurrent request, as it may wait for days.
    pub(crate) fn is_wait(self) -> bool {
        matches!(self, Self::SleepUntil | Self::AwaitTask | Self::AwaitEvent)
    }
}

impl ForkKind {
    /// Returns the form as programs write it.
    pub(crate) fn form(self) -> &'static str {
        match self {
            Self::All => "parallel",
            Self::Race => "race",
            Self::Settle => "settle",
            Self::Map => "pmap",
        }
    }
}

/// The handling of the results of strands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForkKind {
    /// All results, in order; the first error cancels the others.
    All,
    /// The first successful result.
    Race,
    /// All results, each as `{:ok v}` or `{:error e}`.
    Settle,
    /// A function over the items of a collection, with a maximum concurrency.
    Map,
}
