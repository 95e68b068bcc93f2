//! Strands that other strands start: `parallel`, `race`, `settle` and `pmap`.

use std::collections::{BTreeSet, VecDeque};

use super::context::Fault;
use super::event::{Event, Ticket};
use super::exec;
use super::op::ForkKind;
use super::run::{Outcome, Run, helper};
use super::strand::{Join, Strand};
use crate::error::Error;
use crate::map::Map;
use crate::value::Value;

/// The size in bytes of a strand that is not started, including its result.
pub(super) const PENDING: usize = 112;

impl Run {
    pub(super) fn spawn(
        &mut self,
        parent: usize,
        slot: usize,
        function: Value,
        args: Vec<Value>,
    ) -> usize {
        let mut strand = match (exec::code_of(&function), args.is_empty()) {
            (Some(code), true) if self.program.select(code, 0) == Some(code) => {
                Strand::new(code, function, args)
            }
            _ => {
                let args = Value::vector(args).unwrap_or_default();
                Strand::new(helper("%apply-to"), Value::Nil, vec![function, args])
            }
        };
        strand.parent = Some((parent, slot));
        let depth_here = self.strands[parent]
            .as_ref()
            .map_or(0, |strand| strand.outer_depth + strand.frames.len() + 1);
        strand.outer_depth = depth_here;
        if self.open_requests.is_some()
            && let Some(parent) = &self.strands[parent]
            && let Some(join) = &parent.join
        {
            strand.scope = parent.branch(join.kind, join.number, slot);
        }
        self.context.allocated(strand.stack.len() * 16 + 200);
        let id = match self.free.pop() {
            Some(id) => {
                self.strands[id] = Some(strand);
                id
            }
            None => {
                self.strands.push(Some(strand));
                self.strands.len() - 1
            }
        };
        self.ready.push_back(id);
        id
    }

    /// Starts strands; the requesting strand waits for them.
    pub(super) fn fork(&mut self, id: usize, kind: ForkKind, d: u8, a: u8, n: u8) {
        let Some(strand) = self.strands[id].as_mut() else { return };
        let from = strand.base + usize::from(a);
        // For each strand that is not started: an item, its function, and room for both.
        let waiting = match (kind, &strand.stack[from + usize::from(n > 1)]) {
            (ForkKind::Map, items) => items.items().unwrap_or_default().len(),
            _ => usize::from(n),
        };
        if let Err(fault) = self.context.reserve(waiting.saturating_mul(PENDING))
            && let Fault::Memory(bytes) = *fault
        {
            strand.pc -= 1;
            return self.look_through(id, bytes);
        }
        let mut args: Vec<_> =
            strand.stack[from..from + usize::from(n)].iter_mut().map(std::mem::take).collect();
        strand.wanted = d;
        if strand.outer_depth + strand.frames.len() >= self.limits.depth {
            let message = format!("functions call each other more than {} deep", self.limits.depth);
            return self.go_wrong(id, Error::limit("depth", message));
        }
        let mut at_once = usize::MAX;
        let mut pending: VecDeque<(usize, Value, Vec<Value>)> = VecDeque::new();
        if kind == ForkKind::Map {
            at_once = self.limits.calls_at_once.max(1);
            if let Some(Value::Int(max)) = args.get(2) {
                at_once = at_once.min(usize::try_from(*max).unwrap_or(1).max(1));
            }
            let items = std::mem::take(&mut args[1]);
            let items = items.items().unwrap_or_default();
            pending.extend(
                items.iter().enumerate().map(|(at, item)| (at, args[0].clone(), vec![item.clone()])),
            );
        } else {
            pending.extend(args.into_iter().enumerate().map(|(at, thunk)| (at, thunk, Vec::new())));
        }
        let count = pending.len();
        if count == 0 {
            return match kind {
                ForkKind::Race => {
                    self.go_wrong(id, Error::new("invalid-argument", "`race` needs at least one form"));
                }
                _ => self.go_on(id, d, Value::vector(Vec::new()).unwrap_or_default()),
            };
        }
        let number = self.new_scope();
        let first: Vec<_> = pending.drain(..count.min(at_once)).collect();
        let join = Join {
            kind,
            results: vec![Value::Nil; count],
            left: count,
            number,
            children: Vec::new(),
            pending,
            error: None,
        };
        if let Some(strand) = self.strands[id].as_mut() {
            strand.join = Some(join);
        }
        let children: Vec<_> = first
            .into_iter()
            .map(|(slot, function, args)| self.spawn(id, slot, function, args))
            .collect();
        if let Some(join) = self.strands[id].as_mut().and_then(|strand| strand.join.as_mut()) {
            join.children = children;
        }
    }

    pub(super) fn strand_done(&mut self, id: usize, value: Value) {
        let parent = self.strands[id].as_ref().and_then(|strand| strand.parent);
        let Some((parent, slot)) = parent else { return self.root_done(value) };
        self.release(id);
        let Some(join) = self.strands[parent].as_mut().and_then(|strand| strand.join.as_mut()) else {
            return;
        };
        join.children.retain(|&child| child != id);
        match join.kind {
            ForkKind::Race => return self.joined(parent, Ok(value)),
            ForkKind::Settle => join.results[slot] = settled("ok", value),
            ForkKind::All | ForkKind::Map => join.results[slot] = value,
        }
        self.one_less(parent);
    }

    pub(super) fn strand_failed(&mut self, id: usize, mut error: Error) {
        // Only the host that called the function gets the details of its result.
        let is_called = |strand: &Strand| {
            let mut callers = strand.frames.iter();
            strand.proto == self.root && callers.all(|frame| frame.proto < self.program.prelude)
        };
        if !self.strands[id].as_ref().is_some_and(is_called) {
            error.hide_result();
        }
        let parent = self.strands[id].as_ref().and_then(|strand| strand.parent);
        let Some((parent, slot)) = parent.filter(|_| !error.is_final) else {
            self.end(Outcome::Failed(error));
            return;
        };
        self.release(id);
        let Some(join) = self.strands[parent].as_mut().and_then(|strand| strand.join.as_mut()) else {
            return;
        };
        join.children.retain(|&child| child != id);
        match join.kind {
            ForkKind::All | ForkKind::Map => return self.joined(parent, Err(error)),
            ForkKind::Settle => join.results[slot] = settled("error", error.to_value()),
            ForkKind::Race => join.error = Some(error),
        }
        self.one_less(parent);
    }

    /// Records that one of the strands that `parent` waits for has ended.
    pub(super) fn one_less(&mut self, parent: usize) {
        let Some(join) = self.strands[parent].as_mut().and_then(|strand| strand.join.as_mut()) else {
            return;
        };
        join.left -= 1;
        if join.left == 0 {
            let results = std::mem::take(&mut join.results);
            let answer = match join.error.take() {
                Some(error) => Err(error),
                None => Value::vector(results).map_err(|deep| Error::limit("nesting", deep.to_string())),
            };
            return self.joined(parent, answer);
        }
        if let Some((slot, function, args)) = join.pending.pop_front() {
            let child = self.spawn(parent, slot, function, args);
            if let Some(join) = self.strands[parent].as_mut().and_then(|strand| strand.join.as_mut()) {
                join.children.push(child);
            }
        }
    }

    /// Continues `parent` when all its strands have ended or are no longer needed.
    pub(super) fn joined(&mut self, parent: usize, answer: Result<Value, Error>) {
        let Some(strand) = self.strands[parent].as_mut() else { return };
        let children = strand.join.take().map(|join| join.children).unwrap_or_default();
        match answer {
            Ok(value) => {
                let at = strand.base + usize::from(strand.wanted);
                strand.stack[at] = value;
            }
            Err(error) => strand.failure = Some(error),
        }
        self.ready.push_back(parent);
        self.cancel(children);
    }

    /// Ends strands and those that they wait for.
    pub(super) fn cancel(&mut self, strands: Vec<usize>) {
        let mut open = strands;
        let mut tickets = Vec::new();
        while let Some(id) = open.pop() {
            let Some(strand) = self.strands[id].as_mut() else { continue };
            open.extend(strand.join.take().map(|join| join.children).unwrap_or_default());
            tickets.extend(strand.ticket);
            self.release(id);
        }
        tickets.sort_unstable();
        let mut waits = BTreeSet::new();
        tickets.retain(|&ticket| {
            let forgotten = self.forget(ticket);
            if forgotten.is_some_and(|entry| entry.kind.is_wait()) {
                waits.insert(ticket);
            }
            forgotten.is_some()
        });
        // A request that was never sent need not be cancelled, and frees no place for others.
        let never_asked: BTreeSet<u64> = self.queued.iter().map(|(ticket, _)| *ticket).collect();
        self.queued.retain(|(ticket, _)| tickets.binary_search(ticket).is_err());
        for ticket in tickets.into_iter().filter(|ticket| !never_asked.contains(ticket)) {
            self.events.push(Event::Cancel { ticket: Ticket(ticket) });
            if !waits.contains(&ticket) {
                self.in_flight = self.in_flight.saturating_sub(1);
            }
        }
    }

    pub(super) fn release(&mut self, id: usize) {
        self.strands[id] = None;
        self.ready.retain(|&ready| ready != id);
        self.free.push(id);
    }
}

/// `{:ok v}` or `{:error e}`
fn settled(key: &str, value: Value) -> Value {
    let mut map = Map::new();
    match map.insert(Value::keyword(key), value) {
        Ok(_) => Value::Map(map),
        Err(_) => Value::Nil,
    }
}
