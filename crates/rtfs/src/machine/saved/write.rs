//! Writes a run as bytes.

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};

use super::bytes::Output;
use super::{NAME, Unsaved, VERSION};
use crate::error::Error;
use crate::lazy::{Range, Seq, State};
use crate::machine::event::{Part, Request, Scope, Wait};
use crate::machine::op::{ForkKind, HostOp};
use crate::machine::run::Run;
use crate::machine::strand::Strand;
use crate::syntax::Position;
use crate::value::Value;

/// Kinds of references.
pub(super) mod reference {
    pub(in super::super) const NIL: u8 = 0;
    pub(in super::super) const TRUE: u8 = 1;
    pub(in super::super) const FALSE: u8 = 2;
    pub(in super::super) const INT: u8 = 3;
    pub(in super::super) const FLOAT: u8 = 4;
    pub(in super::super) const NATIVE: u8 = 5;
    pub(in super::super) const CODE: u8 = 6;
    pub(in super::super) const NODE: u8 = 7;
    pub(in super::super) const KEPT: u8 = 8;
}

/// Kinds of entries of the table.
pub(super) mod node {
    pub(in super::super) const KEYWORD: u8 = 0;
    pub(in super::super) const SYMBOL: u8 = 1;
    pub(in super::super) const BIG: u8 = 2;
    pub(in super::super) const STR: u8 = 3;
    pub(in super::super) const VECTOR: u8 = 4;
    pub(in super::super) const LIST: u8 = 5;
    pub(in super::super) const MAP: u8 = 6;
    pub(in super::super) const SET: u8 = 7;
    pub(in super::super) const INSTANT: u8 = 8;
    pub(in super::super) const UUID: u8 = 9;
    pub(in super::super) const CLOSURE: u8 = 10;
    pub(in super::super) const SEQ: u8 = 11;
    pub(in super::super) const ERROR: u8 = 12;
}

/// What the host is asked for, by number.
pub(super) const HOST_OPS: [HostOp; 13] = [
    HostOp::Call,
    HostOp::Open,
    HostOp::Next,
    HostOp::Send,
    HostOp::Close,
    HostOp::Search,
    HostOp::Describe,
    HostOp::Log,
    HostOp::StepBegin,
    HostOp::StepEnd,
    HostOp::SleepUntil,
    HostOp::AwaitTask,
    HostOp::AwaitEvent,
];

/// What strands wait for, by number.
pub(super) const FORK_KINDS: [ForkKind; 4] =
    [ForkKind::All, ForkKind::Race, ForkKind::Settle, ForkKind::Map];

/// Writes the whole run.
pub(super) fn run(run: &Run) -> Result<Vec<u8>, Unsaved> {
    let mut values = Values::default();
    let mut out = Output::default();
    out.size(run.globals.len());
    for global in &run.globals {
        out.byte(global.is_some().into());
        if let Some(value) = global {
            values.refer(&mut out, value);
        }
    }
    out.size(run.strands.len());
    for strand in &run.strands {
        out.byte(strand.is_some().into());
        if let Some(one) = strand {
            self::strand(run, &mut values, &mut out, one);
        }
    }
    out.size(run.ready.len());
    run.ready.iter().for_each(|&id| out.size(id));
    out.size(run.waiting.len());
    for entry in &run.waiting {
        out.number(entry.ticket);
        out.size(entry.strand);
        out.byte(HOST_OPS.iter().position(|&op| op == entry.kind).unwrap_or(0) as u8);
        let request = run.open_requests.as_ref().and_then(|requests| requests.get(&entry.ticket));
        let (request, at) = request.ok_or(Unsaved::NotResumable)?;
        self::request(&mut values, &mut out, request);
        place(&mut out, *at);
    }
    for number in [run.steps_left, run.calls, run.next_ticket, run.next_scope, run.context.fresh] {
        out.number(number);
    }
    out.byte(run.finishing.into());
    out.number(run.root.into());
    out.byte(run.then.is_some().into());
    if let Some((name, args)) = &run.then {
        out.bytes(name.as_bytes());
        out.size(args.len());
        args.iter().for_each(|arg| values.refer(&mut out, arg));
    }

    let mut all = Output::default();
    all.0.extend(NAME);
    all.byte(VERSION);
    all.fixed(run.program.fingerprint());
    values.finish(&mut all);
    all.0.extend(out.0);
    Ok(all.0)
}

/// Writes an answer.
pub(super) fn answer(run: &Run, answer: &Result<Value, Error>) -> Vec<u8> {
    let (mut values, mut out) = (Values::default(), Output::default());
    match answer {
        Ok(value) => {
            out.byte(0);
            values.refer(&mut out, value);
        }
        Err(error) => {
            out.byte(1);
            failure(run, &mut values, &mut out, Some(error));
        }
    }
    let mut all = Output::default();
    values.finish(&mut all);
    all.0.extend(out.0);
    all.0
}

fn strand(run: &Run, values: &mut Values, out: &mut Output, strand: &Strand) {
    // Values beyond the last one are nil.
    let used = strand.stack.iter().rposition(|slot| !matches!(slot, Value::Nil)).map_or(0, |at| at + 1);
    out.size(used);
    strand.stack[..used].iter().for_each(|slot| values.refer(out, slot));
    out.size(strand.frames.len());
    for frame in &strand.frames {
        out.number(frame.proto.into());
        out.number(frame.pc.into());
        out.size(frame.base);
    }
    out.size(strand.handlers.len());
    for handler in &strand.handlers {
        out.size(handler.frames);
        out.size(handler.base);
        out.number(handler.proto.into());
        out.size(handler.pc);
        out.byte(handler.d);
        out.byte(handler.t);
    }
    out.number(strand.proto.into());
    out.size(strand.pc);
    out.size(strand.base);
    out.byte(strand.wanted);
    out.optional(strand.parent.map(|(parent, _)| parent as u64));
    out.size(strand.parent.map_or(0, |(_, slot)| slot));
    out.optional(strand.ticket);
    out.size(strand.outer_depth);
    scope(out, strand);
    failure(run, values, out, strand.failure.as_ref());
    out.byte(strand.join.is_some().into());
    let Some(join) = &strand.join else { return };
    out.byte(FORK_KINDS.iter().position(|&kind| kind == join.kind).unwrap_or(0) as u8);
    out.size(join.results.len());
    join.results.iter().for_each(|result| values.refer(out, result));
    out.size(join.left);
    out.number(join.number);
    out.size(join.children.len());
    join.children.iter().for_each(|&child| out.size(child));
    out.size(join.pending.len());
    for (slot, function, args) in &join.pending {
        out.size(*slot);
        values.refer(out, function);
        out.size(args.len());
        args.iter().for_each(|arg| values.refer(out, arg));
    }
    failure(run, values, out, join.error.as_ref());
}

/// Writes the steps and branches of a strand, the outermost first.
fn scope(out: &mut Output, strand: &Strand) {
    let mut scopes: Vec<&Scope> =
        std::iter::successors(strand.scope.as_deref(), |scope| scope.outer.as_deref()).collect();
    scopes.reverse();
    out.size(scopes.len());
    for scope in scopes {
        out.number(scope.number);
        match &scope.part {
            Part::Step(name) => {
                out.byte(FORK_KINDS.len() as u8);
                out.bytes(name.as_bytes());
            }
            Part::Branch { form, index } => {
                out.byte(FORK_KINDS.iter().position(|kind| kind.form() == *form).unwrap_or(0) as u8);
                out.number(*index);
            }
        }
    }
    out.number(strand.deeper);
}

fn failure(run: &Run, values: &mut Values, out: &mut Output, error: Option<&Error>) {
    out.byte(error.is_some().into());
    let Some(error) = error else { return };
    out.bytes(error.kind.as_bytes());
    out.bytes(error.message.as_bytes());
    values.refer(out, &error.data);
    out.byte(error.capability.is_some().into());
    if let Some(capability) = &error.capability {
        out.bytes(capability.as_bytes());
    }
    values.refer(out, &error.cause);
    out.byte(error.is_final.into());
    let at = error.at.as_deref();
    place(out, at.map(|at| at.position));
    // The text is identified by a function in it.
    let source = at.and_then(|at| at.source.as_ref()).and_then(|(source, span)| {
        let same = |proto: &std::sync::Arc<crate::machine::program::Proto>| proto.source.is(source);
        Some((run.program.prelude as usize + run.program.own.iter().position(same)?, *span))
    });
    out.byte(source.is_some().into());
    if let Some((proto, span)) = source {
        out.size(proto);
        out.number(span.start.into());
        out.number(span.end.into());
    }
}

fn place(out: &mut Output, at: Option<Position>) {
    out.byte(at.is_some().into());
    if let Some(Position { line, column }) = at {
        out.number(line.into());
        out.number(column.into());
    }
}

fn request(values: &mut Values, out: &mut Output, request: &Request) {
    match request {
        Request::Call { id, input, options } => {
            out.byte(0);
            values.refer(out, id.value());
            values.refer(out, input);
            out.optional(options.timeout_ms);
            out.optional(options.retries.map(u64::from));
        }
        Request::Open { id, input } => {
            out.byte(1);
            values.refer(out, id.value());
            values.refer(out, input);
        }
        Request::Search { query } => {
            out.byte(2);
            out.bytes(query.as_bytes());
        }
        Request::Describe { id } => {
            out.byte(3);
            values.refer(out, id.value());
        }
        Request::Wait(Wait::Until(instant)) => {
            out.byte(5);
            out.signed(instant.unix_seconds());
            out.number(instant.subsec_nanoseconds().into());
        }
        Request::Wait(Wait::Task(id)) => {
            out.byte(6);
            out.bytes(id.as_bytes());
        }
        Request::Wait(Wait::Event(name)) => {
            out.byte(7);
            out.bytes(name.as_bytes());
        }
        // Requests of a stream, which ends here.
        Request::Next { .. } | Request::Send { .. } | Request::Close { .. } => out.byte(4),
    }
}

/// The table of values found so far.
#[derive(Default)]
struct Values {
    nodes: Output,
    count: u64,
    /// The numbers of possibly shared values, by their kind and address.
    known: HashMap<(Discriminant<Value>, usize), u64>,
    names: HashMap<(bool, String), u64>,
    /// Texts that are stored inline.
    short: HashMap<String, u64>,
    /// Cells of `memoize` that were found; those from `kept_done` on are not written yet.
    kept: Vec<Seq>,
    kept_numbers: HashMap<usize, u64>,
}

/// A task for a value: examine it, or write it when its parts are written.
enum Task {
    Visit(Value),
    Write(Value),
}

impl Values {
    /// Writes a reference to a value, and adds the value to the table if necessary.
    fn refer(&mut self, out: &mut Output, value: &Value) {
        self.add(value);
        self.reference(out, value);
    }

    fn finish(mut self, all: &mut Output) {
        // The content of cells is written last, as a cell may contain itself.
        let mut contents = Output::default();
        let mut at = 0;
        while let Some(seq) = self.kept.get(at).cloned() {
            let value = match seq.state() {
                State::Kept(value) => value,
                _ => Value::Nil,
            };
            self.refer(&mut contents, &value);
            at += 1;
        }
        all.size(self.kept.len());
        all.number(self.count);
        all.0.extend(self.nodes.0);
        all.0.extend(contents.0);
    }

    fn reference(&self, out: &mut Output, value: &Value) {
        match value {
            Value::Nil => out.byte(reference::NIL),
            Value::Bool(true) => out.byte(reference::TRUE),
            Value::Bool(false) => out.byte(reference::FALSE),
            Value::Int(n) => {
                out.byte(reference::INT);
                out.signed(*n);
            }
            Value::Float(f) => {
                out.byte(reference::FLOAT);
                out.fixed(f.to_bits());
            }
            Value::Native(native) => {
                out.byte(reference::NATIVE);
                out.number(native.0.into());
            }
            Value::Code(code) => {
                out.byte(reference::CODE);
                out.number(code.0.into());
            }
            Value::Seq(seq) if is_kept(seq) => {
                out.byte(reference::KEPT);
                out.number(self.kept_numbers.get(&seq.identity().0).copied().unwrap_or_default());
            }
            other => {
                out.byte(reference::NODE);
                out.number(self.number(other).unwrap_or_default());
            }
        }
    }

    fn number(&self, value: &Value) -> Option<u64> {
        match value {
            Value::Keyword(name) => self.names.get(&(true, name.name().to_owned())),
            Value::Symbol(name) => self.names.get(&(false, name.name().to_owned())),
            Value::Str(text) if text.is_short() => self.short.get(text.as_str()),
            other => self.known.get(&(discriminant(other), address(other)?)),
        }
        .copied()
    }

    /// Adds a value and its parts, the parts first. Long chains and deep values do not cause recursion.
    fn add(&mut self, value: &Value) {
        if value.is_immediate() && !matches!(value, Value::Str(_)) {
            return;
        }
        let mut tasks = vec![Task::Visit(value.clone())];
        while let Some(task) = tasks.pop() {
            match task {
                Task::Visit(value) if self.number(&value).is_some() => {}
                Task::Visit(value) if value.is_immediate() && !matches!(value, Value::Str(_)) => {}
                Task::Visit(Value::Seq(seq)) if is_kept(&seq) => {
                    let next = self.kept.len() as u64;
                    self.kept_numbers.entry(seq.identity().0).or_insert_with(|| {
                        self.kept.push(seq);
                        next
                    });
                }
                Task::Visit(value) => {
                    let mut parts = Vec::new();
                    each_part(&value, |part| parts.push(part));
                    tasks.push(Task::Write(value));
                    tasks.extend(parts.into_iter().map(Task::Visit));
                }
                Task::Write(value) if self.number(&value).is_some() => {}
                Task::Write(value) => self.write(&value),
            }
        }
    }

    fn write(&mut self, value: &Value) {
        let mut out = std::mem::take(&mut self.nodes);
        let all = |values: &Self, out: &mut Output, kind: u8, items: &[Value]| {
            out.byte(kind);
            out.size(items.len());
            items.iter().for_each(|item| values.reference(out, item));
        };
        match value {
            Value::Keyword(name) => {
                out.byte(node::KEYWORD);
                out.bytes(name.name().as_bytes());
                self.names.insert((true, name.name().to_owned()), self.count);
            }
            Value::Symbol(name) => {
                out.byte(node::SYMBOL);
                out.bytes(name.name().as_bytes());
                self.names.insert((false, name.name().to_owned()), self.count);
            }
            Value::BigInt(big) => {
                out.byte(node::BIG);
                out.bytes(&big.get().to_signed_bytes_le());
            }
            Value::Str(text) => {
                out.byte(node::STR);
                out.bytes(text.as_str().as_bytes());
                if text.is_short() {
                    self.short.insert(text.as_str().to_owned(), self.count);
                }
            }
            Value::Vector(vector) => all(self, &mut out, node::VECTOR, vector.items()),
            Value::List(list) => all(self, &mut out, node::LIST, list.items()),
            Value::Map(map) => {
                out.byte(if map.is_error() { node::ERROR } else { node::MAP });
                out.size(map.len());
                for (key, value) in map.iter() {
                    self.reference(&mut out, key);
                    self.reference(&mut out, value);
                }
            }
            Value::Set(set) => {
                out.byte(node::SET);
                out.size(set.len());
                set.iter().for_each(|member| self.reference(&mut out, member));
            }
            Value::Instant(instant) => {
                out.byte(node::INSTANT);
                out.signed(instant.unix_seconds());
                out.number(instant.subsec_nanoseconds().into());
            }
            Value::Uuid(uuid) => {
                out.byte(node::UUID);
                out.0.extend(uuid.as_u128().to_le_bytes());
            }
            Value::Closure(closure) => {
                out.byte(node::CLOSURE);
                out.number(closure.code().into());
                out.size(closure.captured().count());
                closure.captured().for_each(|captured| self.reference(&mut out, captured));
            }
            Value::Seq(seq) => self.sequence(&mut out, seq),
            Value::Nil
            | Value::Bool(_)
            | Value::Int(_)
            | Value::Float(_)
            | Value::Native(_)
            | Value::Code(_) => {}
        }
        self.nodes = out;
        if let Some(address) = address(value) {
            self.known.insert((discriminant(value), address), self.count);
        }
        self.count += 1;
    }

    fn sequence(&self, out: &mut Output, seq: &Seq) {
        out.byte(node::SEQ);
        out.number(seq.depth().into());
        out.optional(seq.handle().map(|handle| handle.id));
        match seq.state() {
            State::End | State::Kept(_) => out.byte(0),
            State::Stream => out.byte(1),
            State::Thunk(thunk) => {
                out.byte(2);
                self.reference(out, &thunk);
            }
            State::Range(Range { next, step, end }) => {
                out.byte(3);
                out.signed(next);
                out.signed(step);
                out.byte(end.is_some().into());
                if let Some(end) = end {
                    out.signed(end);
                }
            }
            State::Item(item, rest) => {
                out.byte(4);
                self.reference(out, &item);
                self.reference(out, &rest);
            }
        }
        out.byte(seq.realized().is_some().into());
        if let Some(items) = seq.realized() {
            self.reference(out, &Value::Vector(items.clone()));
        }
    }
}

fn is_kept(seq: &Seq) -> bool {
    matches!(seq.state(), State::Kept(_))
}

/// Returns the address of shared data. Names are identified by their text instead.
fn address(value: &Value) -> Option<usize> {
    Some(match value {
        Value::Str(text) => text.identity()?.0,
        Value::Vector(vector) => vector.identity().0,
        Value::List(list) => list.identity().0,
        Value::Map(map) => map.identity().0,
        Value::Set(set) => set.identity().0,
        Value::Closure(closure) => closure.identity().0,
        Value::Seq(seq) => seq.identity().0,
        Value::BigInt(big) => std::ptr::from_ref(big.get()) as usize,
        Value::Instant(instant) => instant.address(),
        Value::Uuid(uuid) => uuid.address(),
        _ => return None,
    })
}

/// Passes each part of a value to `take`.
fn each_part(value: &Value, mut take: impl FnMut(Value)) {
    match value {
        Value::Vector(vector) => vector.items().iter().cloned().for_each(take),
        Value::List(list) => list.items().iter().cloned().for_each(take),
        Value::Map(map) => map.iter().for_each(|(key, value)| {
            take(key.clone());
            take(value.clone());
        }),
        Value::Set(set) => set.iter().cloned().for_each(take),
        Value::Closure(closure) => closure.captured().cloned().for_each(take),
        Value::Seq(seq) => {
            match seq.state() {
                State::Thunk(thunk) => take(thunk),
                State::Item(item, rest) => {
                    take(item);
                    take(rest);
                }
                State::Stream | State::Range(_) | State::Kept(_) | State::End => {}
            }
            if let Some(items) = seq.realized() {
                take(Value::Vector(items.clone()));
            }
        }
        _ => {}
    }
}
