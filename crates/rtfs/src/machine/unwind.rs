//! Propagates errors, and runs helpers in between.

use super::exec::Exit;
use super::op::Op;
use super::program::{Program, Proto};
use super::strand::{Frame, Strand};
use crate::error::{Error, Origin};
use crate::lazy::Seq;
use crate::syntax::{Position, Source, Span};
use crate::value::Value;

/// Calls a function of the prelude from the running one, and then repeats the current instruction.
pub(super) fn enter_helper(
    strand: &mut Strand,
    proto: &Proto,
    name: &str,
    arg: Value,
    max_depth: usize,
) -> Result<(), Error> {
    if strand.frames.len() >= max_depth {
        let message = format!("functions call each other more than {max_depth} deep");
        return Err(Error::limit("depth", message));
    }
    let Some(&helper) = crate::compiler::prelude_functions().get(name) else {
        return Err(Error::new("limit", "lazy sequences are not available here"));
    };
    strand.frames.push(Frame { proto: strand.proto, pc: strand.pc as u32 - 1, base: strand.base });
    strand.base += usize::from(proto.registers);
    strand.proto = helper;
    strand.pc = 0;
    let needed = strand.base + 256;
    if strand.stack.len() < needed {
        strand.stack.resize_with(needed, Value::default);
    }
    strand.stack[strand.base] = Value::Nil;
    strand.stack[strand.base + 1] = arg;
    Ok(())
}

/// Realizes a sequence, and then repeats the current instruction.
pub(super) fn enter_realize(
    strand: &mut Strand,
    program: &Program,
    seq: Seq,
    max_depth: usize,
) -> Result<(), Error> {
    let proto = program.proto(strand.proto);
    enter_helper(strand, proto, "%realize", Value::Seq(seq), max_depth)
}

/// Continues at the innermost handler, or ends the strand.
pub(super) fn raise(strand: &mut Strand, program: &Program, mut error: Error) -> Option<Exit> {
    if error.at.is_none() {
        error.at = origin(strand, program);
        name_as_written(strand, program, &mut error);
    }
    let handler = if error.is_final { None } else { strand.handlers.pop() };
    let Some(handler) = handler else { return Some(Exit::Failed(error)) };
    error.hide_result();
    let top = strand.base + usize::from(program.proto(strand.proto).registers);
    let from = handler.base + usize::from(handler.t);
    for slot in &mut strand.stack[from..top.max(from)] {
        *slot = Value::Nil;
    }
    strand.frames.truncate(handler.frames);
    strand.base = handler.base;
    strand.proto = handler.proto;
    strand.pc = handler.pc;
    let value = error.to_value();
    strand.stack[handler.base + usize::from(handler.d)] = value;
    None
}

/// Replaces the name of a library function in a message by the one in the program's text.
#[cold]
fn name_as_written(strand: &Strand, program: &Program, error: &mut Error) {
    let Some((source, span)) = error.at.as_ref().and_then(|at| at.source.as_ref()) else { return };
    let is_inner = match program.proto(strand.proto).code.get(strand.pc.wrapping_sub(1)) {
        // The program's own messages stay unchanged.
        None | Some(Op::Throw { .. }) => return,
        // The name of a function that is called as a value is unknown.
        Some(Op::Call { .. } | Op::Tail { .. } | Op::Apply { .. } | Op::TailApply { .. }) => false,
        Some(_) => true,
    };
    let text = source.text().get(span.start as usize..span.end as usize).unwrap_or_default();
    let message = std::mem::take(&mut error.message);
    error.message = crate::builtins::as_written(message, text, is_inner);
}

/// Returns the innermost place that is not in the standard library.
pub(super) fn origin(strand: &Strand, program: &Program) -> Option<Box<Origin>> {
    let (source, span) = place(strand, program)?;
    Some(Box::new(Origin {
        position: source.position(span.start),
        source: Some((source.clone(), span)),
    }))
}

/// Like [`origin`], without a copy.
fn place<'p>(strand: &Strand, program: &'p Program) -> Option<(&'p Source, Span)> {
    let (proto, pc) = instruction(strand, program)?;
    let proto = program.proto(proto);
    Some((&proto.source, proto.span(pc.saturating_sub(1))))
}

/// Returns the function and its current instruction.
#[inline]
fn instruction(strand: &Strand, program: &Program) -> Option<(u32, usize)> {
    let here = std::iter::once((strand.proto, strand.pc));
    let callers = strand.frames.iter().rev().map(|frame| (frame.proto, frame.pc as usize));
    here.chain(callers).find(|(proto, _)| *proto >= program.prelude)
}

/// The line and column of the last instruction that made a request, cached because it usually makes the
/// next one.
#[derive(Default)]
pub(super) struct LastPlace(Option<((u32, usize), Position)>);

impl LastPlace {
    pub(super) fn of(&mut self, strand: &Strand, program: &Program) -> Option<Position> {
        let instruction = instruction(strand, program)?;
        if let Some((known, position)) = self.0
            && known == instruction
        {
            return Some(position);
        }
        let (source, span) = place(strand, program)?;
        let position = source.position(span.start);
        self.0 = Some((instruction, position));
        Some(position)
    }
}
