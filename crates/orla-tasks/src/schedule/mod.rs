//! Tasks that the configuration starts at set times.
//!
//! # How it works
//!
//! [`expression`] computes the instants of a schedule, and [`plan`] decides which of them become tasks
//! now. Both are pure. [`Schedules`] keeps one record for each schedule in the store. The record
//! contains the instant up to which the schedule is handled, the waiting firings, and the last task that
//! it started. It wakes at the next instant of any schedule.
//!
//! # Invariants
//!
//! - An instant of a schedule starts at most one task, even across restarts. The name and the instant
//!   are the idempotency key of the task, and the record is written after the task.
//! - `catch_up` bounds the missed instants, and [`plan::MAX_WAITING`] the waiting ones.

mod expression;
mod plan;
mod serve;

pub use expression::{Expression, ExpressionError};
pub use plan::Overlap;
pub use serve::{Schedule, ScheduleStatus, Schedules};
