//! Counting checks: one line for each, and a closing line that says how many held.

use crate::process::Finished;

/// The checks of one job.
#[derive(Default)]
pub(crate) struct Tally {
    passed: usize,
    failed: usize,
}

impl Tally {
    /// Prints and counts one check.
    pub(crate) fn check(&mut self, what: &str, result: Result<(), String>) {
        match result {
            Ok(()) => {
                self.passed += 1;
                println!("ok    {what}");
            }
            Err(why) => {
                self.failed += 1;
                println!("FAIL  {what}: {why}");
            }
        }
    }

    /// Counts one check of very many: only a failure is worth a line.
    pub(crate) fn count(&mut self, what: &str, result: Result<(), String>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(_) => self.check(what, result),
        }
    }

    /// Counts the checks that a script prints: `ok WHAT`, or `failed WHAT: WHY`.
    pub(crate) fn judge(&mut self, who: &str, finished: &Finished) {
        let mut count = 0;
        for line in finished.stdout.lines() {
            if let Some(what) = line.strip_prefix("ok ") {
                self.check(&format!("{who} {what}"), Ok(()));
                count += 1;
            } else if let Some((what, why)) =
                line.strip_prefix("failed ").and_then(|rest| rest.split_once(": "))
            {
                self.check(&format!("{who} {what}"), Err(why.to_owned()));
                count += 1;
            }
        }
        let said_why = finished.stdout.lines().any(|line| line.starts_with("failed "));
        if count > 0 && !finished.status.success() && !said_why {
            self.check(
                &format!("{who} runs to its end"),
                Err(format!("{}: {}", finished.status, finished.stderr)),
            );
        }
        if count == 0 {
            let why = format!("it checked nothing: {}{}", finished.stdout, finished.stderr);
            self.check(&format!("{who} runs"), Err(why));
        }
    }

    /// Prints the closing line; true if every check held and there was one.
    pub(crate) fn close(&self) -> bool {
        println!("{} passed, {} failed", self.passed, self.failed);
        self.failed == 0 && self.passed > 0
    }
}
