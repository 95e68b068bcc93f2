//! Measures the live memory.

use std::collections::HashSet;

use crate::lazy::State;
use crate::value::Value;

/// Returns the approximate size in bytes of these values; shared data counts once.
pub(super) fn live_bytes<'v>(roots: impl Iterator<Item = &'v Value>) -> usize {
    let mut walk = Walk { bytes: 0, seen: HashSet::new(), open: Vec::new(), owned: Vec::new() };
    for root in roots.filter(|root| !root.is_immediate()) {
        walk.add(root);
        walk.run();
    }
    walk.bytes
}

struct Walk<'v> {
    bytes: usize,
    /// The addresses of shared data.
    seen: HashSet<usize>,
    open: Vec<&'v Value>,
    /// Values that had to be cloned out of a cell.
    owned: Vec<Value>,
}

impl<'v> Walk<'v> {
    /// Returns whether this address is new.
    fn is_new(&mut self, (address, count): (usize, usize)) -> bool {
        count == 1 || self.seen.insert(address)
    }

    fn add(&mut self, value: &'v Value) {
        if !value.is_immediate() {
            self.open.push(value);
        }
    }

    fn run(&mut self) {
        loop {
            while let Some(value) = self.open.pop() {
                self.visit(value);
            }
            let Some(value) = self.owned.pop() else { return };
            // Cells own their content behind a lock, so clones are examined, one level at a time.
            self.bytes += owned_bytes(&value, &mut self.seen, &mut self.owned);
        }
    }

    fn visit(&mut self, value: &'v Value) {
        match value {
            Value::Str(text) => {
                if text.identity().is_some_and(|identity| self.is_new(identity)) {
                    self.bytes += 56 + text.capacity();
                }
            }
            Value::Vector(vector) => {
                if self.is_new(vector.identity()) {
                    self.bytes += 56 + 16 * vector.capacity();
                    vector.items().iter().for_each(|item| self.add(item));
                }
            }
            Value::List(list) => {
                if self.is_new(list.identity()) {
                    self.bytes += 56 + 16 * list.items().len();
                    list.items().iter().for_each(|item| self.add(item));
                }
            }
            Value::Map(map) => {
                if self.is_new(map.identity()) {
                    self.bytes += 80 + 48 * map.positions();
                    for (key, value) in map.iter() {
                        self.add(key);
                        self.add(value);
                    }
                }
            }
            Value::Set(set) => {
                if self.is_new(set.identity()) {
                    self.bytes += 80 + 32 * set.positions();
                    set.iter().for_each(|member| self.add(member));
                }
            }
            Value::Closure(closure) => {
                if self.is_new(closure.identity()) {
                    self.bytes += 80;
                    closure.captured().for_each(|captured| self.add(captured));
                }
            }
            Value::BigInt(big) => self.bytes += 40 + big.get().bits() as usize / 8,
            Value::Keyword(keyword) => self.bytes += 16 + keyword.name().len() / 8,
            Value::Seq(_) => self.bytes += owned_bytes(value, &mut self.seen, &mut self.owned),
            _ => self.bytes += 32,
        }
    }
}

/// Measures a value that is not borrowed from the roots; its parts are added to `open`.
fn owned_bytes(value: &Value, seen: &mut HashSet<usize>, open: &mut Vec<Value>) -> usize {
    let mut is_new = |(address, _): (usize, usize)| seen.insert(address);
    match value {
        Value::Seq(seq) => {
            if !is_new(seq.identity()) {
                return 0;
            }
            if let Some(items) = seq.realized() {
                open.push(Value::Vector(items.clone()));
            }
            match seq.state() {
                State::Thunk(value) | State::Kept(value) => open.push(value),
                State::Item(item, rest) => open.extend([item, rest]),
                State::Stream | State::Range(_) | State::End => {}
            }
            128
        }
        Value::Vector(vector) if is_new(vector.identity()) => {
            open.extend(vector.items().iter().filter(|item| !item.is_immediate()).cloned());
            56 + 16 * vector.capacity()
        }
        Value::List(list) if is_new(list.identity()) => {
            open.extend(list.items().iter().filter(|item| !item.is_immediate()).cloned());
            56 + 16 * list.items().len()
        }
        Value::Map(map) if is_new(map.identity()) => {
            for (key, value) in map.iter() {
                open.extend([key.clone(), value.clone()]);
            }
            80 + 48 * map.positions()
        }
        Value::Set(set) if is_new(set.identity()) => {
            open.extend(set.iter().cloned());
            80 + 32 * set.positions()
        }
        Value::Closure(closure) if is_new(closure.identity()) => {
            open.extend(closure.captured().cloned());
            80
        }
        Value::Str(text) if text.identity().is_some_and(&mut is_new) => 56 + text.capacity(),
        Value::BigInt(big) => 40 + big.get().bits() as usize / 8,
        _ => 0,
    }
}
