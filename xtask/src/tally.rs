//! Counting checks: one line for each, and a closing line that says how many held.

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

    /// Prints the closing line; true if every check held and there was one.
    pub(crate) fn close(&self) -> bool {
        println!("{} passed, {} failed", self.passed, self.failed);
        self.failed == 0 && self.passed > 0
    }
}
