//! Decides what happens to a task after an attempt to make its call. No I/O.

use orla_marketplace::RuntimeError;
use orla_marketplace::rtfs::Wait;

/// The outcome of an attempt to run a task.
#[derive(Debug)]
pub(crate) enum AttemptResult {
    /// The task is over.
    Over,
    /// The task was removed, or another node runs it.
    Gone,
    /// The process is about to end. The task stays as it is.
    Closing,
    /// The task must wait until fewer tasks wait for an approval.
    Aside,
    /// The program is suspended with these waits, none of which ends soon.
    Asleep(Vec<Wait>),
    /// No part of the task has run, for this reason.
    Later(String),
}

/// How far the call came, as its checkpoint saw it.
#[derive(Debug, Default)]
pub(crate) enum Reached {
    /// The checkpoint was not reached.
    #[default]
    Nothing,
    /// The call ran.
    Begun,
    /// The call may have run before and cannot be repeated.
    MayNotRepeat,
    /// The process is about to end, so the call did not run.
    Closing,
    /// Too many tasks wait for an approval.
    NoApprovalPlace,
    /// The start of the call could not be recorded, so the call did not run.
    NotWritten(String),
}

/// What is known of a task, besides the outcome of its call.
pub(crate) struct Facts {
    /// Whether the process is about to end, or the task is handed to another process.
    pub(crate) is_closing: bool,
    /// Whether an earlier attempt has begun the call.
    pub(crate) has_begun: bool,
    /// Whether the provider of the capability may still be starting.
    pub(crate) may_be_starting: bool,
    /// The waits of the program, if it was suspended.
    pub(crate) suspended: Option<Vec<Wait>>,
    /// Why the actions of the program could not be kept. It continues from its durable notes.
    pub(crate) not_kept: Option<String>,
}

/// What happens to a task after an attempt.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The task is over, with the result of its call.
    Ends,
    /// The task is over. Its call may have run, and cannot be repeated.
    Interrupted,
    /// The task is not over.
    Continues(AttemptResult),
}

/// Decides what happens to a task whose call ended with this error, or without one.
///
/// A call that was refused before it ran is retried if its capability has no room or may still be
/// starting. If an earlier attempt had begun the call, it is also retried after a refusal by a quota,
/// because the task was accepted.
pub(crate) fn verdict(reached: Reached, error: Option<&RuntimeError>, facts: Facts) -> Verdict {
    use RuntimeError::{Busy, Quota, Unavailable, Unknown};
    let later = |why: String| Verdict::Continues(AttemptResult::Later(why));
    if facts.is_closing && error.is_some() {
        return Verdict::Continues(AttemptResult::Closing);
    }
    match (reached, error) {
        (Reached::Closing, _) => Verdict::Continues(AttemptResult::Closing),
        (Reached::NoApprovalPlace, _) => Verdict::Continues(AttemptResult::Aside),
        (Reached::NotWritten(why), _) => later(why),
        (Reached::MayNotRepeat, _) => Verdict::Interrupted,
        (Reached::Nothing, Some(Busy { .. })) => later("there are too many calls".to_owned()),
        (Reached::Nothing, Some(error @ (Unknown { .. } | Unavailable { .. })))
            if facts.may_be_starting =>
        {
            later(error.to_string())
        }
        (Reached::Nothing, Some(error @ Quota { .. })) if facts.has_begun => later(error.to_string()),
        (Reached::Nothing | Reached::Begun, None) => Verdict::Ends,
        (Reached::Nothing | Reached::Begun, Some(_)) => match (facts.suspended, facts.not_kept) {
            (Some(waits), _) => Verdict::Continues(AttemptResult::Asleep(waits)),
            (None, Some(why)) => later(why),
            (None, None) => Verdict::Ends,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            is_closing: false,
            has_begun: false,
            may_be_starting: false,
            suspended: None,
            not_kept: None,
        }
    }

    /// Returns a word for the verdict.
    fn word(reached: Reached, error: Option<&RuntimeError>, facts: Facts) -> &'static str {
        match verdict(reached, error, facts) {
            Verdict::Ends => "ends",
            Verdict::Interrupted => "interrupted",
            Verdict::Continues(AttemptResult::Closing) => "closing",
            Verdict::Continues(AttemptResult::Aside) => "aside",
            Verdict::Continues(AttemptResult::Asleep(_)) => "asleep",
            Verdict::Continues(AttemptResult::Later(_)) => "later",
            Verdict::Continues(AttemptResult::Over | AttemptResult::Gone) => "over",
        }
    }

    fn unavailable() -> RuntimeError {
        RuntimeError::Unavailable { id: "t".to_owned(), reason: "it is gone".to_owned(), source: None }
    }

    fn quota() -> RuntimeError {
        let second = std::time::Duration::from_secs(1);
        RuntimeError::quota("t", "quotas[0]".to_owned(), "1 call per second".to_owned(), second)
    }

    fn cancelled() -> RuntimeError {
        RuntimeError::Cancelled { id: "t".to_owned(), outcome: None }
    }

    #[test]
    fn a_call_that_was_refused_before_it_ran_may_be_made_later() {
        let busy = RuntimeError::Busy { id: "t".to_owned(), running: 1, waiting: 1 };
        let starting = || Facts { may_be_starting: true, ..facts() };
        let begun = || Facts { has_begun: true, ..facts() };
        let cases = [
            (&busy, facts(), "later"),
            (&unavailable(), facts(), "ends"),
            (&unavailable(), starting(), "later"),
            (&RuntimeError::Unknown { id: "t".to_owned(), similar: Vec::new() }, starting(), "later"),
            (&quota(), facts(), "ends"),
            (&quota(), starting(), "ends"),
            (&quota(), begun(), "later"),
            (&cancelled(), begun(), "ends"),
        ];
        for (error, facts, expected) in cases {
            assert_eq!(word(Reached::Nothing, Some(error), facts), expected, "{error}");
        }
        // What ran is over, whatever its error.
        for error in [busy, unavailable(), quota()] {
            let facts = Facts { has_begun: true, may_be_starting: true, ..facts() };
            assert_eq!(word(Reached::Begun, Some(&error), facts), "ends", "{error}");
        }
    }

    #[test]
    fn a_refusal_of_the_checkpoint_is_not_the_result_of_the_task() {
        let error = cancelled();
        let cases = [
            (Reached::Closing, "closing"),
            (Reached::NoApprovalPlace, "aside"),
            (Reached::NotWritten("the disk is full".to_owned()), "later"),
            (Reached::MayNotRepeat, "interrupted"),
        ];
        for (reached, expected) in cases {
            assert_eq!(word(reached, Some(&error), facts()), expected);
        }
    }

    #[test]
    fn a_result_counts_also_if_the_process_is_about_to_end() {
        let closing = || Facts { is_closing: true, ..facts() };
        assert_eq!(word(Reached::Begun, None, closing()), "ends");
        for reached in [Reached::Nothing, Reached::Begun, Reached::MayNotRepeat] {
            assert_eq!(word(reached, Some(&cancelled()), closing()), "closing");
        }
    }

    #[test]
    fn a_program_that_was_suspended_sleeps_and_one_that_could_not_be_kept_continues() {
        let waits = || Some(vec![Wait::Event("paid".into())]);
        let not_kept = || Some("the disk is full".to_owned());
        let error = cancelled();
        let cases = [
            (waits(), None, "asleep"),
            (waits(), not_kept(), "asleep"),
            (None, not_kept(), "later"),
            (None, None, "ends"),
        ];
        for (suspended, not_kept, expected) in cases {
            let facts = Facts { suspended, not_kept, ..facts() };
            assert_eq!(word(Reached::Begun, Some(&error), facts), expected);
        }
        let facts = Facts { suspended: waits(), not_kept: not_kept(), ..facts() };
        assert_eq!(word(Reached::Begun, None, facts), "ends", "it returned");
    }
}
