//! Reads a run from bytes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::InvalidRun;
use super::bytes::Input;
use super::write::{FORK_KINDS, HOST_OPS, node, reference};
use crate::error::{Error, Origin};
use crate::function::{Closure, Code, Native};
use crate::lazy::{Range, Seq, State, StreamHandle};
use crate::limits::Limits;
use crate::machine::event::{CallOptions, CapabilityName, Event, Part, Request, Scope, Ticket, Wait};
use crate::machine::host::not_open;
use crate::machine::op::HostOp;
use crate::machine::program::Program;
use crate::machine::run::{Run, Waiting};
use crate::machine::strand::{Frame, Handler, Join, Strand};
use crate::map::{Map, Set};
use crate::scalar::{Instant, Keyword, Symbol, Uuid};
use crate::sequence::{List, TooLarge, Vector};
use crate::syntax::{Position, Span};
use crate::value::Value;

impl From<TooLarge> for InvalidRun {
    fn from(_: TooLarge) -> Self {
        Self("a value is nested too deep")
    }
}

/// Room in a window above the registers that its code uses.
const WINDOW: usize = 256;

/// Reads the whole run. The consistency of its parts is not checked yet.
pub(super) fn run(
    program: Arc<Program>,
    limits: Limits,
    input: &mut Input<'_>,
) -> Result<Run, InvalidRun> {
    let mut run = Run::idle(program, limits, Vec::new()).resumable();
    let values = Values::read(&run, input)?;
    run.context.has_lazy = values.has_lazy;
    for _ in 0..input.count(16)? {
        let global = if input.flag()? { Some(values.value(input)?) } else { None };
        run.globals.push(global);
    }
    for _ in 0..input.count(200)? {
        let strand = if input.flag()? { Some(strand(&run, &values, input)?) } else { None };
        if strand.is_none() {
            run.free.push(run.strands.len());
        }
        run.strands.push(strand);
    }
    for _ in 0..input.count(8)? {
        run.ready.push_back(input.size()?);
    }
    for _ in 0..input.count(64)? {
        waiting(&mut run, &values, input)?;
    }
    run.steps_left = input.number()?.min(limits.steps);
    run.calls = input.number()?;
    run.next_ticket = input.number()?;
    run.next_scope = input.number()?;
    run.context.fresh = input.number()?;
    run.finishing = input.flag()?;
    run.root = input.small()?;
    if input.flag()? {
        let name = input.text()?.to_owned();
        run.then = Some((name, values.items(input, 16)?));
    }
    Ok(run)
}

/// Reads an answer.
pub(super) fn answer(run: &mut Run, input: &mut Input<'_>) -> Result<Result<Value, Error>, InvalidRun> {
    let values = Values::read(run, input)?;
    run.context.has_lazy |= values.has_lazy;
    match input.byte()? {
        0 => Ok(Ok(values.value(input)?)),
        1 => Ok(Err(failure(run, &values, input)?.ok_or(InvalidRun("an error is missing"))?)),
        _ => Err(InvalidRun("an answer is neither a value nor an error")),
    }
}

/// Reads a waiting strand and its request, which is repeated.
fn waiting(run: &mut Run, values: &Values, input: &mut Input<'_>) -> Result<(), InvalidRun> {
    let ticket = input.number()?;
    let strand = input.size()?;
    let kind =
        *HOST_OPS.get(usize::from(input.byte()?)).ok_or(InvalidRun("it asks for nothing known"))?;
    let request = request(values, input)?;
    let at = place(input)?;
    run.waiting.push(Waiting { ticket, strand, kind });
    let fits = matches!(
        (&request, kind),
        (Some(Request::Call { .. }), HostOp::Call)
            | (Some(Request::Open { .. }), HostOp::Open)
            | (Some(Request::Search { .. }), HostOp::Search)
            | (Some(Request::Describe { .. }), HostOp::Describe)
            | (Some(Request::Wait(Wait::Until(_))), HostOp::SleepUntil)
            | (Some(Request::Wait(Wait::Task(_))), HostOp::AwaitTask)
            | (Some(Request::Wait(Wait::Event(_))), HostOp::AwaitEvent)
            | (None, HostOp::Next | HostOp::Send | HostOp::Close)
    );
    if !fits {
        return Err(InvalidRun("it waits for something else than it asks for"));
    }
    match request {
        Some(request) => {
            if let Some(requests) = &mut run.open_requests {
                requests.insert(ticket, (request.clone(), at));
            }
            let strand = run.strands.get(strand).and_then(Option::as_ref);
            let scope = strand.and_then(|strand| strand.scope.clone());
            let event = Event::Request { ticket: Ticket(ticket), request, at, scope };
            match kind.is_wait() {
                true => run.waits.push(event),
                false => run.queued.push_back((ticket, event)),
            }
        }
        // The stream is not open here. Its reader gets an error when all data has been checked.
        None => run.queued.push_back((ticket, Event::CloseStream { stream: Ticket(ticket) })),
    }
    Ok(())
}

/// Fails strands that wait for a stream, which is gone.
pub(super) fn end_streams(run: &mut Run) {
    let is_close = |event: &(u64, Event)| matches!(event.1, Event::CloseStream { .. });
    let tickets: Vec<u64> =
        run.queued.iter().filter(|event| is_close(event)).map(|event| event.0).collect();
    run.queued.retain(|event| !is_close(event));
    for ticket in tickets {
        run.in_flight += 1;
        run.resolve(Ticket(ticket), Err(not_open()));
    }
}

/// Reads a request; `None` if it concerns a stream.
fn request(values: &Values, input: &mut Input<'_>) -> Result<Option<Request>, InvalidRun> {
    let id = |input: &mut Input<'_>| {
        CapabilityName::of(values.value(input)?).map_err(|_| InvalidRun("an id is not a name"))
    };
    Ok(Some(match input.byte()? {
        0 => {
            let (id, value) = (id(input)?, values.value(input)?);
            let timeout_ms = input.optional()?;
            let retries = input.optional()?.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
            Request::Call { id, input: value, options: CallOptions { timeout_ms, retries } }
        }
        1 => Request::Open { id: id(input)?, input: values.value(input)? },
        2 => Request::Search { query: input.text()?.to_owned() },
        3 => Request::Describe { id: id(input)? },
        4 => return Ok(None),
        5 => Request::Wait(Wait::Until(instant(input)?)),
        6 => Request::Wait(Wait::Task(input.text()?.to_owned())),
        7 => Request::Wait(Wait::Event(input.text()?.to_owned())),
        _ => return Err(InvalidRun("it asks for nothing known")),
    }))
}

fn instant(input: &mut Input<'_>) -> Result<Instant, InvalidRun> {
    let instant = Instant::from_unix(input.signed()?, input.small()?);
    instant.ok_or(InvalidRun("an invalid instant"))
}

fn place(input: &mut Input<'_>) -> Result<Option<Position>, InvalidRun> {
    Ok(if input.flag()? {
        Some(Position { line: input.small()?, column: input.small()? })
    } else {
        None
    })
}

fn strand(run: &Run, values: &Values, input: &mut Input<'_>) -> Result<Strand, InvalidRun> {
    let used = input.count(16)?;
    let mut stack = Vec::with_capacity(used + WINDOW);
    for _ in 0..used {
        stack.push(values.value(input)?);
    }
    let mut frames = Vec::new();
    for _ in 0..input.count(16)? {
        frames.push(Frame { proto: input.small()?, pc: input.small()?, base: input.size()? });
    }
    let mut handlers = Vec::new();
    for _ in 0..input.count(40)? {
        handlers.push(Handler {
            frames: input.size()?,
            base: input.size()?,
            proto: input.small()?,
            pc: input.size()?,
            d: input.byte()?,
            t: input.byte()?,
        });
    }
    let (proto, pc, base) = (input.small()?, input.size()?, input.size()?);
    let wanted = input.byte()?;
    let parent = input.optional()?.map(|parent| usize::try_from(parent).unwrap_or(usize::MAX));
    let slot = input.size()?;
    let ticket = input.optional()?;
    let outer_depth = input.size()?;
    let (scope, deeper) = scope(input)?;
    let failure = failure(run, values, input)?;
    let join = if input.flag()? { Some(join(run, values, input)?) } else { None };
    // The part of a stack that may be used before it grows.
    let top = base.saturating_add(2 * WINDOW).max(used);
    input.reserve(top.saturating_sub(used).saturating_mul(16))?;
    stack.resize_with(top, Value::default);
    let parent = parent.map(|parent| (parent, slot));
    Ok(Strand {
        stack,
        frames,
        handlers,
        proto,
        pc,
        base,
        wanted,
        parent,
        join,
        failure,
        ticket,
        outer_depth,
        scope,
        deeper,
    })
}

/// Reads the steps and branches of a strand, and the number of further steps.
fn scope(input: &mut Input<'_>) -> Result<(Option<Arc<Scope>>, u64), InvalidRun> {
    let mut scope = None;
    let depth = input.count(120)?;
    if depth > Scope::DEEPEST {
        return Err(InvalidRun("its steps are nested too deep"));
    }
    for _ in 0..depth {
        let number = input.number()?;
        let part = match FORK_KINDS.get(usize::from(input.byte()?)) {
            Some(kind) => Part::Branch { form: kind.form(), index: input.number()? },
            None => Part::Step(input.text()?.into()),
        };
        scope = Some(Arc::new(Scope { part, number, outer: scope }));
    }
    Ok((scope, input.number()?))
}

fn join(run: &Run, values: &Values, input: &mut Input<'_>) -> Result<Join, InvalidRun> {
    let kind = *FORK_KINDS
        .get(usize::from(input.byte()?))
        .ok_or(InvalidRun("a strand waits in no known way"))?;
    let mut results = Vec::new();
    for _ in 0..input.count(16)? {
        results.push(values.value(input)?);
    }
    let left = input.size()?;
    let number = input.number()?;
    let mut children = Vec::new();
    for _ in 0..input.count(8)? {
        children.push(input.size()?);
    }
    let mut pending = VecDeque::new();
    for _ in 0..input.count(48)? {
        let (slot, function) = (input.size()?, values.value(input)?);
        let mut args = Vec::new();
        for _ in 0..input.count(16)? {
            args.push(values.value(input)?);
        }
        pending.push_back((slot, function, args));
    }
    let error = failure(run, values, input)?;
    Ok(Join { kind, results, left, number, children, pending, error })
}

fn failure(run: &Run, values: &Values, input: &mut Input<'_>) -> Result<Option<Error>, InvalidRun> {
    if !input.flag()? {
        return Ok(None);
    }
    let (kind, message) = (input.text()?.to_owned(), input.text()?.to_owned());
    let data = values.value(input)?;
    let capability = if input.flag()? { Some(input.text()?.to_owned()) } else { None };
    let cause = values.value(input)?;
    let is_final = input.flag()?;
    let position = place(input)?;
    let source = if input.flag()? {
        let (proto, span) = (input.small()?, Span { start: input.small()?, end: input.small()? });
        let proto = run.program.find(proto).ok_or(InvalidRun("an error comes from nowhere"))?;
        let within = proto.source.text().get(span.start as usize..span.end as usize);
        within.map(|_| (proto.source.clone(), span))
    } else {
        None
    };
    let at = position.map(|position| Box::new(Origin { position, source }));
    Ok(Some(Error {
        kind: kind.into(),
        message,
        data,
        capability,
        cause,
        at,
        is_final,
        breaks_result: false,
    }))
}

/// The table of values.
struct Values {
    nodes: Vec<Value>,
    kept: Vec<Seq>,
    has_lazy: bool,
    program: Arc<Program>,
}

impl Values {
    fn read(run: &Run, input: &mut Input<'_>) -> Result<Self, InvalidRun> {
        let kept = (0..input.count(200)?).map(|_| Seq::kept(Value::Nil)).collect();
        let count = input.count(16)?;
        let program = Arc::clone(&run.program);
        let mut values = Self { nodes: Vec::with_capacity(count), kept, has_lazy: false, program };
        let mut streams = HashMap::new();
        for _ in 0..count {
            let node = values.node(run, &mut streams, input)?;
            values.has_lazy |= matches!(node, Value::Seq(_));
            values.nodes.push(node);
        }
        for at in 0..values.kept.len() {
            let value = values.value(input)?;
            if !matches!(value, Value::Map(_) | Value::Nil) {
                return Err(InvalidRun("what is kept is not a map"));
            }
            values.kept[at].set(State::Kept(value));
        }
        values.has_lazy |= !values.kept.is_empty();
        Ok(values)
    }

    fn value(&self, input: &mut Input<'_>) -> Result<Value, InvalidRun> {
        Ok(match input.byte()? {
            reference::NIL => Value::Nil,
            reference::TRUE => Value::Bool(true),
            reference::FALSE => Value::Bool(false),
            reference::INT => Value::Int(input.signed()?),
            reference::FLOAT => Value::Float(f64::from_bits(input.fixed()?)),
            reference::NATIVE => {
                let number = input.small()?;
                if !crate::builtins::is_native(number) {
                    return Err(InvalidRun("an unknown function of the standard library"));
                }
                Value::Native(Native(number))
            }
            reference::CODE => Value::Code(Code(self.code(input)?)),
            reference::NODE => self.nodes.get(input.size()?).cloned().ok_or(DANGLING)?,
            reference::KEPT => Value::Seq(self.kept.get(input.size()?).cloned().ok_or(DANGLING)?),
            _ => return Err(InvalidRun("a value is of no known kind")),
        })
    }

    fn code(&self, input: &mut Input<'_>) -> Result<u32, InvalidRun> {
        let code: u32 = input.small()?;
        self.program.find(code).map(|_| code).ok_or(InvalidRun("a function has no code"))
    }

    fn items(&self, input: &mut Input<'_>, each: usize) -> Result<Vec<Value>, InvalidRun> {
        let n = input.count(each)?;
        let mut items = Vec::with_capacity(n);
        for _ in 0..n {
            items.push(self.value(input)?);
        }
        Ok(items)
    }

    fn node(
        &self,
        run: &Run,
        streams: &mut HashMap<u64, Arc<StreamHandle>>,
        input: &mut Input<'_>,
    ) -> Result<Value, InvalidRun> {
        input.reserve(56)?;
        Ok(match input.byte()? {
            node::KEYWORD => Value::Keyword(Keyword::new(input.text()?)),
            node::SYMBOL => Value::Symbol(Symbol::new(input.text()?)),
            node::BIG => {
                let n = input.count(1)?;
                if n as u64 > crate::machine::MAX_BITS / 8 + 1 {
                    return Err(InvalidRun("an integer is too large"));
                }
                Value::from(num_bigint::BigInt::from_signed_bytes_le(input.take(n)?))
            }
            node::STR => Value::from(input.text()?),
            node::VECTOR => Value::Vector(Vector::new(self.items(input, 16)?)?),
            node::LIST => Value::List(List::new(self.items(input, 16)?)?),
            kind @ (node::MAP | node::ERROR) => {
                let mut map = Map::new();
                for _ in 0..input.count(80)? {
                    let key = self.key(input)?;
                    if map.insert(key, self.value(input)?)?.is_some() {
                        return Err(InvalidRun("a map has a key twice"));
                    }
                }
                if kind == node::ERROR {
                    map.mark_error();
                }
                Value::Map(map)
            }
            node::SET => {
                let mut set = Set::new();
                for _ in 0..input.count(60)? {
                    if !set.insert(self.key(input)?)? {
                        return Err(InvalidRun("a set has a member twice"));
                    }
                }
                Value::Set(set)
            }
            node::INSTANT => Value::Instant(instant(input)?),
            node::UUID => {
                let mut bits = [0; 16];
                bits.copy_from_slice(input.take(16)?);
                Value::Uuid(Uuid::from_u128(u128::from_le_bytes(bits)))
            }
            node::CLOSURE => {
                let code = self.code(input)?;
                Value::Closure(Closure::new(code, &mut self.items(input, 16)?)?)
            }
            node::SEQ => self.sequence(run, streams, input)?,
            _ => return Err(InvalidRun("a value is of no known kind")),
        })
    }

    fn key(&self, input: &mut Input<'_>) -> Result<Value, InvalidRun> {
        let key = self.value(input)?;
        if key.is_function() { Err(InvalidRun("a function is a key")) } else { Ok(key) }
    }

    fn sequence(
        &self,
        run: &Run,
        streams: &mut HashMap<u64, Arc<StreamHandle>>,
        input: &mut Input<'_>,
    ) -> Result<Value, InvalidRun> {
        input.reserve(140)?;
        let depth = input.small()?;
        let stream = input.optional()?.map(|id| {
            let made = || Arc::new(StreamHandle { id, closed: run.context.closed.clone() });
            streams.entry(id).or_insert_with(made).clone()
        });
        let state = match input.byte()? {
            0 => State::End,
            1 if stream.is_some() => State::Stream,
            2 => State::Thunk(self.value(input)?),
            3 => {
                let (next, step) = (input.signed()?, input.signed()?);
                let end = if input.flag()? { Some(input.signed()?) } else { None };
                if step == 0 {
                    return Err(InvalidRun("a range does not move"));
                }
                State::Range(Range { next, step, end })
            }
            4 => State::Item(self.value(input)?, self.value(input)?),
            _ => return Err(InvalidRun("a sequence is of no known kind")),
        };
        let realized = match (input.flag()?, &state) {
            (false, _) => None,
            (true, State::End) => match self.value(input)? {
                Value::Vector(items) => Some(items),
                _ => return Err(InvalidRun("what is known of a sequence is no vector")),
            },
            (true, _) => return Err(InvalidRun("a sequence is known and not known")),
        };
        Ok(Value::Seq(Seq::saved(state, realized, stream, depth)?))
    }
}

const DANGLING: InvalidRun = InvalidRun("a value is not in the table");
