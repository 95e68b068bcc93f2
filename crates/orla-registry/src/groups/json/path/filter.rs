//! The conditions of JSONPath's filters.

use std::collections::HashMap;

use rtfs::Value;

use super::syntax::{Call, Condition, Function, Operand, Operator};
use super::{Evaluation, Result};
use crate::groups::json::patch::equal;
use crate::groups::size;
use crate::pattern::Pattern;

/// The cost of compiling a pattern, in visited values.
const PATTERN_COST: usize = 1_000;

/// The compiled patterns; `None` for an invalid one.
#[derive(Default)]
pub(super) struct Patterns(HashMap<(String, Function), Option<Pattern>>);

impl<'a> Evaluation<'a> {
    pub(super) fn holds(&mut self, condition: &Condition, current: &'a Value) -> Result<bool> {
        self.budget.items(1)?;
        match condition {
            Condition::Any(all) => {
                for condition in all {
                    if self.holds(condition, current)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Condition::All(all) => {
                for condition in all {
                    if !self.holds(condition, current)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Condition::Not(condition) => Ok(!self.holds(condition, current)?),
            Condition::Exists(query) => Ok(!self.query(query, current)?.is_empty()),
            Condition::Matches(call) => self.matches(call, current),
            Condition::Compares(left, operator, right) => {
                let (left, right) = (self.operand(left, current)?, self.operand(right, current)?);
                self.compare(left.as_ref(), *operator, right.as_ref())
            }
        }
    }

    /// Returns the value of an operand, or nothing.
    fn operand(&mut self, operand: &Operand, current: &'a Value) -> Result<Option<Value>> {
        match operand {
            Operand::Literal(value) => Ok(Some(value.clone())),
            Operand::Query(query) => {
                Ok(self.query(query, current)?.first().map(|node| node.value.clone()))
            }
            Operand::Call(call) => self.call(call, current),
        }
    }

    fn call(&mut self, call: &Call, current: &'a Value) -> Result<Option<Value>> {
        let Some(argument) = call.arguments.first() else { return Ok(None) };
        if let (Function::Count | Function::Value, Operand::Query(query)) = (call.function, argument) {
            let nodes = self.query(query, current)?;
            return Ok(match (call.function, &nodes[..]) {
                (Function::Count, nodes) => Some(size(nodes.len())),
                (_, [node]) => Some(node.value.clone()),
                _ => None,
            });
        }
        Ok(match self.operand(argument, current)? {
            Some(Value::Str(text)) => Some(size(text.char_count())),
            Some(Value::Keyword(keyword)) => Some(size(keyword.name().chars().count())),
            Some(Value::Map(map)) => Some(size(map.len())),
            Some(Value::Vector(vector)) => Some(size(vector.items().len())),
            Some(Value::List(list)) => Some(size(list.items().len())),
            _ => None,
        })
    }

    fn matches(&mut self, call: &Call, current: &'a Value) -> Result<bool> {
        let [text, pattern] = &call.arguments[..] else { return Ok(false) };
        let (Some(Value::Str(text)), Some(Value::Str(pattern))) =
            (self.operand(text, current)?, self.operand(pattern, current)?)
        else {
            return Ok(false);
        };
        let key = (pattern.as_str().to_owned(), call.function);
        if !self.patterns.0.contains_key(&key) {
            self.budget.items(PATTERN_COST)?;
            let pattern = pattern.as_str();
            // The whole text must be a valid pattern by itself. `R` gives `.` its meaning in I-Regexp
            // (RFC 9485 §5.3): any character but a line feed and a carriage return.
            let whole = match call.function {
                Function::Match => format!(r"\A(?R:{pattern})\z"),
                _ => format!("(?R:{pattern})"),
            };
            let ready =
                Pattern::new("path", pattern, "").and_then(|_| Pattern::new("path", &whole, "")).ok();
            self.patterns.0.insert(key.clone(), ready);
        }
        match self.patterns.0.get_mut(&key) {
            Some(Some(pattern)) => Ok(pattern.find(text.as_str(), 0)?.is_some()),
            _ => Ok(false),
        }
    }

    fn compare(
        &mut self,
        left: Option<&Value>,
        operator: Operator,
        right: Option<&Value>,
    ) -> Result<bool> {
        let equal = match (left, right) {
            (None, None) => true,
            (Some(left), Some(right)) => {
                self.budget.weigh(left)?;
                equal(left, right)
            }
            _ => false,
        };
        let less = |a: Option<&Value>, b: Option<&Value>| match (a, b) {
            (Some(a), Some(b)) if is_number(a) && is_number(b) => a.compare(b).is_lt(),
            (Some(Value::Str(a)), Some(Value::Str(b))) => a.as_str() < b.as_str(),
            _ => false,
        };
        Ok(match operator {
            Operator::Equal => equal,
            Operator::Different => !equal,
            Operator::Less => less(left, right),
            Operator::AtMost => less(left, right) || equal,
            Operator::Greater => less(right, left),
            Operator::AtLeast => less(right, left) || equal,
        })
    }
}

fn is_number(value: &Value) -> bool {
    matches!(value, Value::Int(_) | Value::BigInt(_) | Value::Float(_))
}
