//! A run of a program: its strands, what they wait for, and its limits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, PoisonError};

use super::context::Context;
use super::event::{Event, Request, Ticket};
use super::exec::{self, Exit};
use super::fork::PENDING;
use super::op::HostOp;
use super::program::Program;
use super::strand::Strand;
use super::unwind;
use super::walk::live_bytes;
use crate::error::{Error, Origin, counted};
use crate::limits::Limits;
use crate::syntax::Position;
use crate::value::Value;

/// The number of bytes of messages after which the run returns to the host.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// The state of a run.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The program is done; this is its value.
    Done(Value),
    /// The program failed, or was ended by a limit or by [`Run::fail`].
    Failed(Error),
    /// The program needs answers: see [`Run::events`].
    Waiting,
    /// The quota is used up. Call `advance` again.
    Yielded,
}

/// A run of a program.
pub struct Run {
    pub(super) program: Arc<Program>,
    pub(super) limits: Limits,
    pub(super) globals: Vec<Option<Value>>,
    pub(super) strands: Vec<Option<Strand>>,
    pub(super) free: Vec<usize>,
    pub(super) ready: VecDeque<usize>,
    /// The waiting strands, in the order of their tickets.
    pub(super) waiting: Vec<Waiting>,
    /// Requests that may not be sent to the host yet.
    pub(super) queued: VecDeque<(u64, Event)>,
    pub(super) in_flight: usize,
    /// Uncounted waits of a restored run that were not sent yet.
    pub(super) waits: Vec<Event>,
    pub(super) context: Context,
    pub(super) steps_left: u64,
    pub(super) calls: u64,
    pub(super) next_ticket: u64,
    /// The number of the next step, or of the next form with concurrent parts.
    pub(super) next_scope: u64,
    pub(super) streams: BTreeSet<u64>,
    pub(super) events: Vec<Event>,
    /// The number of bytes of messages in the events.
    event_bytes: usize,
    pub(super) place: unwind::LastPlace,
    /// Whether lazy parts of the result are being computed.
    pub(super) finishing: bool,
    /// The code whose value is the run's result. Errors in its lazy parts are attributed to this code.
    pub(super) root: u32,
    pub(super) finished: Option<Outcome>,
    /// The function that is called when the program is done, and its arguments.
    pub(super) then: Option<(String, Vec<Value>)>,
    /// The unanswered requests, if the run may be saved.
    pub(super) open_requests: Option<BTreeMap<u64, (Request, Option<Position>)>>,
}

#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub(super) ticket: u64,
    pub(super) strand: usize,
    pub(super) kind: HostOp,
}

impl Run {
    /// Creates a run from the beginning of the program. `inputs` are the values of the names that it was
    /// compiled with ([`Options::inputs`](crate::Options)); others are ignored.
    pub fn new(program: Arc<Program>, limits: Limits, inputs: &[(&str, Value)]) -> Self {
        let mut globals = vec![None; program.globals.len()];
        for (name, value) in inputs {
            if let Some(at) = program.globals.iter().position(|global| &*global.name == *name) {
                globals[at] = Some(value.clone());
            }
        }
        Self::start(program, limits, globals)
    }

    /// Creates a run of a program that was compiled with the program of `earlier` as its base. It begins
    /// with the values of those definitions.
    pub fn continuing(program: Arc<Program>, limits: Limits, earlier: Self) -> Self {
        let mut globals = earlier.globals;
        globals.resize(program.globals.len(), None);
        let mut run = Self::start(program, limits, globals);
        // A stream in an earlier definition does not belong to this run.
        run.next_ticket = earlier.next_ticket;
        run
    }

    /// Like [`continuing`](Self::continuing), but `earlier` stays unchanged, for tentative evaluation.
    pub fn beside(program: Arc<Program>, limits: Limits, earlier: &Self) -> Self {
        let mut globals = earlier.globals.clone();
        globals.resize(program.globals.len(), None);
        Self::start(program, limits, globals)
    }

    pub(super) fn start(program: Arc<Program>, limits: Limits, globals: Vec<Option<Value>>) -> Self {
        let entry = Strand::new(program.entry, Value::Nil, Vec::new());
        let mut run = Self::idle(program, limits, globals);
        run.root = run.program.entry;
        run.begin(entry);
        run
    }

    pub(super) fn idle(program: Arc<Program>, limits: Limits, globals: Vec<Option<Value>>) -> Self {
        Self {
            context: Context::new(limits.memory, program.types.clone()),
            program,
            limits,
            globals,
            strands: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            waiting: Vec::new(),
            queued: VecDeque::new(),
            in_flight: 0,
            waits: Vec::new(),
            steps_left: limits.steps,
            calls: 0,
            next_ticket: 1,
            next_scope: 1,
            streams: BTreeSet::new(),
            events: Vec::new(),
            event_bytes: 0,
            place: unwind::LastPlace::default(),
            finishing: false,
            root: 0,
            finished: None,
            then: None,
            open_requests: None,
        }
    }

    pub(super) fn begin(&mut self, strand: Strand) {
        self.strands.clear();
        self.free.clear();
        self.ready.clear();
        self.strands.push(Some(strand));
        self.ready.push_back(0);
        self.finishing = false;
        self.finished = None;
    }

    /// Creates a run of one function of the program, with the values of its definitions.
    pub(crate) fn of_function(
        program: Arc<Program>,
        limits: Limits,
        globals: Vec<Option<Value>>,
        function: Value,
        args: Vec<Value>,
    ) -> Self {
        let mut run = Self::idle(program, limits, globals);
        run.begin_call(function, args);
        run
    }

    pub(super) fn begin_call(&mut self, function: Value, args: Vec<Value>) {
        self.root = exec::code_of(&function).unwrap_or_default();
        let args = Value::vector(args).unwrap_or_default();
        let strand = Strand::new(helper("%apply-to"), Value::Nil, vec![function, args]);
        self.begin(strand);
    }

    /// Calls a function that the program defined, once the program is done. The next outcome is that of
    /// the call. The limits apply to the run as a whole.
    ///
    /// # Errors
    /// The program defines nothing of that name.
    pub fn call(&mut self, name: &str, args: Vec<Value>) -> Result<(), Error> {
        let at = self.program.globals.iter().position(|global| &*global.name == name);
        let function = at.and_then(|at| self.globals[at].clone());
        let function =
            function.ok_or_else(|| Error::new("undefined", format!("`{name}` is not defined")))?;
        self.begin_call(function, args);
        Ok(())
    }

    /// Sets the function that the run [calls](Self::call) when the program is done. The outcome is that
    /// of the call.
    #[must_use]
    pub fn then(mut self, name: impl Into<String>, args: Vec<Value>) -> Self {
        self.then = Some((name.into(), args));
        self
    }

    /// Returns the value of a definition, if it has one yet.
    pub fn global(&self, name: &str) -> Option<&Value> {
        let at = self.program.globals.iter().position(|global| &*global.name == name)?;
        self.globals[at].as_ref()
    }

    /// Sets the value of a name: a definition, or an input that the program was compiled with. Returns
    /// false if there is no such name.
    pub fn give(&mut self, name: &str, value: Value) -> bool {
        let at = self.program.globals.iter().position(|global| &*global.name == name);
        at.map(|at| self.globals[at] = Some(value)).is_some()
    }

    pub(crate) fn into_globals(self) -> Vec<Option<Value>> {
        self.globals
    }

    /// Makes the run keep its requests until they are answered, so that it can be [saved](Self::save).
    #[must_use]
    pub fn resumable(mut self) -> Self {
        self.keep_requests();
        self
    }

    /// Makes the run [resumable](Self::resumable).
    pub fn keep_requests(&mut self) {
        self.open_requests.get_or_insert_default();
    }

    /// Returns the limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the program that runs.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Returns whether it has streams open. They are lost when it is saved and loaded.
    pub fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Returns the number of remaining steps.
    pub fn steps_left(&self) -> u64 {
        self.steps_left
    }

    /// Returns the approximate size in bytes of live values at the last measurement and of those created
    /// since.
    pub fn memory(&self) -> usize {
        self.context.live.saturating_add(self.context.since)
    }

    /// Returns the events for the host, in order. Each event is returned once.
    pub fn events(&mut self) -> std::vec::Drain<'_, Event> {
        self.close_streams();
        self.event_bytes = 0;
        self.events.drain(..)
    }

    /// Runs for at most `quota` steps; 20,000 take about a millisecond.
    pub fn advance(&mut self, quota: u64) -> Outcome {
        let outcome = self.turns(quota);
        // A run that is saved now has no unpaid cost.
        let cost = std::mem::take(&mut self.context.cost);
        self.pay(cost);
        outcome
    }

    fn turns(&mut self, quota: u64) -> Outcome {
        let mut quota = quota;
        loop {
            if let Some(outcome) = &self.finished {
                return outcome.clone();
            }
            let Some(id) = self.ready.pop_front() else {
                // Requests are sent only now, because an answer may have made waiting requests
                // unnecessary.
                self.ask_more();
                return if self.waiting.is_empty() {
                    self.end(Outcome::Failed(Error::new("limit", "nothing can go on")))
                } else {
                    Outcome::Waiting
                };
            };
            if quota == 0 {
                self.ready.push_front(id);
                return Outcome::Yielded;
            }
            let mut fuel = quota.min(self.steps_left);
            let before = fuel;
            let Some(strand) = self.strands[id].as_mut() else { continue };
            let depth = self.limits.depth.saturating_sub(strand.outer_depth);
            let failed =
                strand.failure.take().and_then(|error| unwind::raise(strand, &self.program, error));
            let exit = match failed {
                Some(exit) => exit,
                None => exec::exec(
                    strand,
                    &mut self.context,
                    &mut self.globals,
                    &self.program,
                    depth,
                    &mut fuel,
                ),
            };
            quota -= before - fuel;
            self.steps_left -= before - fuel;
            let debt = std::mem::take(&mut self.context.debt);
            self.steps_left = self.steps_left.saturating_sub(debt);
            match exit {
                Exit::Done(value) => self.strand_done(id, value),
                Exit::Failed(error) => self.strand_failed(id, error),
                Exit::Quota if self.steps_left == 0 => {
                    let message = format!("more than {}", counted(self.limits.steps, "step"));
                    self.end_at(id, Error::limit("steps", message));
                }
                Exit::Quota => {
                    self.ready.push_back(id);
                    if quota == 0 {
                        return Outcome::Yielded;
                    }
                }
                Exit::Memory(bytes) => self.look_through(id, bytes),
                Exit::Host { kind, d, a, n } => {
                    self.host(id, kind, d, a, n);
                    if self.event_bytes > MAX_EVENT_BYTES {
                        return self.finished.clone().unwrap_or(Outcome::Yielded);
                    }
                }
                Exit::Fork { kind, d, a, n } => self.fork(id, kind, d, a, n),
            }
        }
    }

    /// Advances until there is an outcome, for programs that need no host.
    pub(crate) fn finish(&mut self) -> Outcome {
        loop {
            match self.advance(u64::MAX) {
                Outcome::Yielded => {}
                other => return other,
            }
        }
    }

    /// Passes the answer to a request. The answer to a withdrawn request is ignored.
    pub fn resolve(&mut self, ticket: Ticket, answer: Result<Value, Error>) {
        let Some(Waiting { strand: id, kind, .. }) = self.forget(ticket.0) else { return };
        self.leave(kind);
        let answer = match answer {
            Ok(value) => self.accept(kind, ticket, value),
            Err(error) => Err(error),
        };
        let Some(strand) = self.strands[id].as_mut() else { return };
        strand.ticket = None;
        match answer {
            Ok(value) => {
                let at = strand.base + usize::from(strand.wanted);
                strand.stack[at] = value;
            }
            Err(error) => strand.failure = Some(error),
        }
        self.ready.push_back(id);
    }

    /// Removes and returns the strand that waits for a ticket.
    pub(super) fn forget(&mut self, ticket: u64) -> Option<Waiting> {
        let at = self.waiting.binary_search_by_key(&ticket, |entry| entry.ticket).ok()?;
        if let Some(requests) = &mut self.open_requests {
            requests.remove(&ticket);
        }
        // The parts are moved individually, because they were just written, and usually the last entry
        // is the only one.
        let Waiting { ticket, strand, kind } = self.waiting[at];
        self.waiting.remove(at);
        Some(Waiting { ticket, strand, kind })
    }

    /// Converts an answer to the program's value.
    #[inline]
    pub(super) fn accept(&mut self, kind: HostOp, ticket: Ticket, value: Value) -> Result<Value, Error> {
        if !value.is_immediate() {
            self.context.allocated(live_bytes(std::iter::once(&value)));
        }
        match kind {
            HostOp::Open => {
                self.streams.insert(ticket.0);
                self.context.has_lazy = true;
                let closed = self.context.closed.clone();
                let handle = crate::lazy::StreamHandle { id: ticket.0, closed };
                Ok(Value::Seq(crate::Seq::stream(Arc::new(handle))))
            }
            HostOp::Send | HostOp::Close | HostOp::SleepUntil => Ok(Value::Nil),
            _ => Ok(value),
        }
    }

    /// Records that a request of this kind is no longer in flight.
    pub(super) fn leave(&mut self, kind: HostOp) {
        if !kind.is_wait() {
            self.in_flight = self.in_flight.saturating_sub(1);
        }
    }

    /// Sends waiting requests, as far as the limit allows.
    pub(super) fn ask_more(&mut self) {
        self.events.append(&mut self.waits);
        while self.in_flight < self.limits.calls_at_once.max(1)
            && let Some((_, event)) = self.queued.pop_front()
        {
            self.in_flight += 1;
            self.events.push(event);
        }
    }

    /// Ends the run with this error, without calling a handler of the program.
    pub fn fail(&mut self, error: Error) {
        if self.finished.is_none() {
            self.end(Outcome::Failed(error));
        }
    }

    /// Returns the best known place of the lazy parts of the result: the end of the code.
    fn root_origin(&self) -> Option<Box<Origin>> {
        let own = self.root.checked_sub(self.program.prelude)?;
        let proto = self.program.own.get(own as usize)?;
        let span = proto.spans.last().map(|&(_, span)| span)?;
        let (position, source) = (proto.source.position(span.start), proto.source.clone());
        Some(Box::new(Origin { position, source: Some((source, span)) }))
    }

    pub(super) fn end(&mut self, outcome: Outcome) -> Outcome {
        let mut outcome = outcome;
        if let Outcome::Failed(error) = &mut outcome
            && error.at.is_none()
            && !self.strands.is_empty()
        {
            error.at = self.root_origin();
        }
        let waiting = std::mem::take(&mut self.waiting);
        let queued: BTreeSet<u64> = self.queued.drain(..).map(|(ticket, _)| ticket).collect();
        for ticket in
            waiting.into_iter().map(|entry| entry.ticket).filter(|ticket| !queued.contains(ticket))
        {
            self.events.push(Event::Cancel { ticket: Ticket(ticket) });
        }
        self.in_flight = 0;
        self.waits.clear();
        self.strands.clear();
        self.free.clear();
        self.ready.clear();
        self.finished = Some(outcome.clone());
        self.close_streams();
        outcome
    }

    /// Ends the run with an error at the place of a strand.
    pub(super) fn end_at(&mut self, id: usize, mut error: Error) {
        if let Some(strand) = &self.strands[id] {
            error.at = unwind::origin(strand, &self.program);
        }
        self.end(Outcome::Failed(error.into_final()));
    }

    pub(super) fn close_streams(&mut self) {
        if !self.context.has_lazy {
            return;
        }
        let closed =
            std::mem::take(&mut *self.context.closed.lock().unwrap_or_else(PoisonError::into_inner));
        for id in closed {
            if self.streams.remove(&id) {
                self.events.push(Event::CloseStream { stream: Ticket(id) });
            }
        }
    }

    /// Measures the live memory.
    pub(super) fn look_through(&mut self, id: usize, wanted: usize) {
        let stacks = self.strands.iter().flatten();
        let joins = || stacks.clone().filter_map(|strand| strand.join.as_ref());
        let pending: usize = joins().map(|join| join.pending.len() * PENDING).sum();
        let own: usize =
            stacks.clone().map(|strand| strand.stack.len() * 16 + strand.frames.len() * 16).sum();
        let own = own + pending;
        let begun_later = joins().flat_map(|join| &join.pending);
        let begun_later =
            begun_later.flat_map(|(_, function, args)| std::iter::once(function).chain(args));
        let kept = joins().flat_map(|join| &join.results).chain(begun_later);
        let kept = kept.chain(self.then.iter().flat_map(|(_, args)| args));
        let roots = stacks.clone().flat_map(|strand| &strand.stack).chain(kept);
        self.context.live = own + live_bytes(roots.chain(self.globals.iter().flatten()));
        self.context.since = 0;
        // Measuring costs about a nanosecond per value.
        let cost = (self.context.live / 4_096) as u64;
        self.steps_left = self.steps_left.saturating_sub(cost);
        let limit = self.limits.memory;
        if self.context.live > limit {
            return self.end_at(
                id,
                Error::limit("memory", format!("more than {limit} bytes of values are alive")),
            );
        }
        if wanted > 0 && self.context.live.saturating_add(wanted) > limit {
            let message =
                format!("this needs {wanted} bytes more than the {limit} that values may occupy");
            if let Some(strand) = self.strands[id].as_mut() {
                strand.pc += 1;
                strand.failure = Some(Error::limit("memory", message));
            }
        }
        self.ready.push_front(id);
    }

    /// Continues the strand with this value.
    pub(super) fn go_on(&mut self, id: usize, d: u8, value: Value) {
        if let Some(strand) = self.strands[id].as_mut() {
            let at = strand.base + usize::from(d);
            strand.stack[at] = value;
            self.ready.push_front(id);
        }
    }

    pub(super) fn go_wrong(&mut self, id: usize, error: Error) {
        if let Some(strand) = self.strands[id].as_mut() {
            strand.failure = Some(error);
            self.ready.push_front(id);
        }
    }

    /// Realizes a sequence; then the strand repeats its current instruction.
    pub(super) fn realize(&mut self, id: usize, seq: crate::Seq) {
        let depth = self.limits.depth;
        let Some(strand) = self.strands[id].as_mut() else { return };
        if let Err(error) = unwind::enter_realize(strand, &self.program, seq, depth) {
            strand.failure = Some(error);
        }
        self.ready.push_front(id);
    }

    /// Emits an event for the host. Its text costs steps, and the run returns to the host before there
    /// is much more.
    pub(super) fn emit(&mut self, event: Event) {
        let text = match &event {
            Event::Log { message, data, .. } => {
                self.pay(crate::builtins::effort(data));
                message.len()
            }
            Event::StepBegin { name } => name.len(),
            _ => 0,
        };
        self.pay(text as u64 / 64);
        self.event_bytes += text + size_of::<Event>();
        self.events.push(event);
    }

    /// Takes steps for work outside of the program's code.
    pub(super) fn pay(&mut self, steps: u64) {
        self.steps_left = self.steps_left.saturating_sub(steps);
    }

    pub(super) fn new_ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket - 1
    }

    pub(super) fn new_scope(&mut self) -> u64 {
        self.next_scope += 1;
        self.next_scope - 1
    }

    /// Counts a call; returns whether it exceeds the limit.
    pub(super) fn counted(&mut self, id: usize) -> bool {
        if self.calls >= self.limits.calls {
            let message = format!("more than {}", counted(self.limits.calls, "call"));
            self.end_at(id, Error::limit("calls", message));
            return false;
        }
        self.calls += 1;
        true
    }

    /// Sends a request to the host, or queues it.
    pub(super) fn ask(&mut self, id: usize, d: u8, kind: HostOp, ticket: u64, request: Request) {
        let Some(strand) = self.strands[id].as_mut() else { return };
        strand.wanted = d;
        strand.ticket = Some(ticket);
        let at = self.place.of(strand, &self.program);
        let scope = strand.scope.clone();
        self.waiting.push(Waiting { ticket, strand: id, kind });
        if let Some(requests) = &mut self.open_requests {
            requests.insert(ticket, (request.clone(), at));
        }
        // The value is built in place, because copying fresh data was slow.
        if kind.is_wait() {
            self.events.push(Event::Request { ticket: Ticket(ticket), request, at, scope });
        } else if self.in_flight < self.limits.calls_at_once.max(1) && self.queued.is_empty() {
            self.in_flight += 1;
            self.events.push(Event::Request { ticket: Ticket(ticket), request, at, scope });
        } else {
            let event = Event::Request { ticket: Ticket(ticket), request, at, scope };
            self.queued.push_back((ticket, event));
        }
    }

    pub(super) fn root_done(&mut self, value: Value) {
        if let Some((name, args)) = self.then.take() {
            if let Err(error) = self.call(&name, args) {
                self.end(Outcome::Failed(error));
            }
            return;
        }
        if self.context.has_lazy && !self.finishing {
            // Lazy parts of the result are computed now, as part of the run.
            self.begin(Strand::new(helper("%finish"), Value::Nil, vec![value]));
            self.finishing = true;
            return;
        }
        if !fits(&value, self.limits.output) {
            let message = format!("the result is longer than {} bytes", self.limits.output);
            self.end(Outcome::Failed(Error::limit("output", message).into_final()));
            return;
        }
        self.end(Outcome::Done(value));
    }
}

/// Returns a function of the prelude.
pub(super) fn helper(name: &str) -> u32 {
    crate::compiler::prelude_functions().get(name).copied().unwrap_or_default()
}

/// Returns whether a value's text is at most so many bytes long.
fn fits(value: &Value, limit: usize) -> bool {
    struct Counter(usize);
    impl std::fmt::Write for Counter {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0 = self.0.checked_sub(text.len()).ok_or(std::fmt::Error)?;
            Ok(())
        }
    }
    /// The text of every number and short string is shorter than this.
    const SHORT: usize = 512;
    use std::fmt::Write as _;
    match value {
        value if value.is_immediate() && limit >= SHORT => true,
        Value::Str(text) if text.as_str().len() > limit => false,
        value => write!(Counter(limit), "{value:?}").is_ok(),
    }
}
