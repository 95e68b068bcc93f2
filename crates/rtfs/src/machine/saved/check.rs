//! Checks that the parts of a restored run are consistent, which the machine relies on.

use std::collections::BTreeSet;

use super::InvalidRun;
use super::read::end_streams;
use crate::machine::run::Run;
use crate::machine::strand::Strand;
use crate::machine::walk::live_bytes;

type Checked = Result<(), InvalidRun>;

fn must(holds: bool, what: &'static str) -> Checked {
    if holds { Ok(()) } else { Err(InvalidRun(what)) }
}

/// Checks everything, measures the memory, and fails strands that wait for a stream, which is gone.
pub(super) fn run(run: &mut Run) -> Checked {
    must(run.globals.len() == run.program.globals.len(), "it has other definitions")?;
    must(run.calls <= run.limits.calls, "it has made more calls than it may")?;
    for strand in run.strands.iter().flatten() {
        self::strand(run, strand)?;
    }
    family(run)?;
    turns(run)?;
    let stacks = run.strands.iter().flatten().flat_map(|strand| &strand.stack);
    let joins = run.strands.iter().flatten().filter_map(|strand| strand.join.as_ref());
    let joined = joins.flat_map(|join| {
        let pending =
            join.pending.iter().flat_map(|(_, function, args)| std::iter::once(function).chain(args));
        join.results.iter().chain(pending)
    });
    let then = run.then.iter().flat_map(|(_, args)| args);
    run.context.live = live_bytes(stacks.chain(joined).chain(then).chain(run.globals.iter().flatten()));
    must(run.context.live <= run.limits.memory, "it needs more memory than it may use")?;
    end_streams(run);
    Ok(())
}

/// Checks the code, stack and handlers of one strand.
fn strand(run: &Run, strand: &Strand) -> Checked {
    /// Windows overlap, so each begins within the one below it.
    const FARTHEST: usize = 512;
    let is_code = |proto: u32, pc: usize| {
        let code = run.program.find(proto).map(|proto| proto.code.len());
        code.is_some_and(|len| pc < len)
    };
    // Helpers run above the deepest function.
    let most = run.limits.depth.saturating_add(8);
    must(strand.frames.len() <= most, "its functions call each other too deep")?;
    must(strand.outer_depth <= most, "its strands wait for each other too deep")?;
    must(is_code(strand.proto, strand.pc), "it runs where there is no code")?;
    let mut base = 0;
    for (at, frame) in strand.frames.iter().enumerate() {
        let is_next = if at == 0 {
            frame.base == 0
        } else {
            (1..=FARTHEST).contains(&(frame.base.wrapping_sub(base)))
        };
        must(is_next, "a window of its stack is out of place")?;
        must(is_code(frame.proto, frame.pc as usize), "it goes on where there is no code")?;
        base = frame.base;
    }
    let is_next = match strand.frames.len() {
        0 => strand.base == 0,
        _ => (1..=FARTHEST).contains(&(strand.base.wrapping_sub(base))),
    };
    must(is_next, "a window of its stack is out of place")?;
    must(
        strand.handlers.len() <= most.saturating_mul(2).saturating_add(1_000),
        "it has too many handlers",
    )?;
    let mut below = 0;
    for handler in &strand.handlers {
        let owner = strand.frames.get(handler.frames).map_or(strand.base, |frame| frame.base);
        let fits = (below..=strand.frames.len()).contains(&handler.frames) && handler.base == owner;
        must(fits, "a handler is out of place")?;
        must(is_code(handler.proto, handler.pc), "a handler is where there is no code")?;
        below = handler.frames;
    }
    Ok(())
}

/// Checks that the strands form one tree, in which each knows its parent and its children.
fn family(run: &Run) -> Checked {
    const ODD: &str = "its strands do not belong together";
    must(matches!(run.strands.first(), Some(Some(root)) if root.parent.is_none()), ODD)?;
    let mut seen = BTreeSet::from([0]);
    let mut open = vec![0];
    while let Some(id) = open.pop() {
        let Some(join) = run.strands[id].as_ref().and_then(|strand| strand.join.as_ref()) else {
            continue;
        };
        must(join.left == join.children.len() + join.pending.len() && join.left > 0, ODD)?;
        must(join.pending.iter().all(|(slot, ..)| *slot < join.results.len()), ODD)?;
        for &child in &join.children {
            let parent =
                run.strands.get(child).and_then(Option::as_ref).and_then(|strand| strand.parent);
            must(parent.is_some_and(|(parent, slot)| parent == id && slot < join.results.len()), ODD)?;
            must(seen.insert(child), ODD)?;
            open.push(child);
        }
    }
    must(seen.len() == run.strands.iter().flatten().count(), ODD)
}

/// Checks that each strand is in exactly one state: ready, waiting for the host, or waiting for others.
fn turns(run: &Run) -> Checked {
    const ODD: &str = "a strand waits for nothing, or for two things";
    let mut seen = BTreeSet::new();
    let strand = |id: usize| run.strands.get(id).and_then(Option::as_ref).ok_or(InvalidRun(ODD));
    for &id in &run.ready {
        let strand = strand(id)?;
        must(strand.ticket.is_none() && strand.join.is_none() && seen.insert(id), ODD)?;
    }
    let mut last = 0;
    for entry in &run.waiting {
        let strand = strand(entry.strand)?;
        must(
            strand.ticket == Some(entry.ticket) && strand.join.is_none() && seen.insert(entry.strand),
            ODD,
        )?;
        must((last + 1..run.next_ticket).contains(&entry.ticket), "its tickets are out of order")?;
        last = entry.ticket;
    }
    must(run.next_ticket <= u64::MAX / 2, "its tickets are out of order")?;
    must(run.next_scope <= u64::MAX / 2, "its steps are out of order")?;
    let joined = run.strands.iter().flatten().filter(|strand| strand.join.is_some()).count();
    must(seen.len() + joined == run.strands.iter().flatten().count(), ODD)
}
