//! Whether a person agrees to a call.

use std::collections::BTreeSet;
use std::io::IsTerminal;

use genai::chat::ToolCall;

use crate::render;

/// Who is asked, and to what they have agreed for the rest of the run.
#[derive(Debug)]
pub(crate) struct Approval {
    is_terminal: bool,
    agreed: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Yes,
    No,
    /// For every call of this capability.
    Always,
}

impl Approval {
    /// Asks at the terminal, if there is one to show the question and one to answer it.
    pub(crate) fn at_terminal() -> Self {
        let is_terminal = std::io::stdin().is_terminal() && render::stderr_is_terminal();
        Self { is_terminal, agreed: BTreeSet::new() }
    }

    /// Waits for the answer; `called` is what the call calls in the end.
    ///
    /// # Errors
    /// What the model is told of a call that is not made.
    pub(crate) async fn ask(&mut self, call: &ToolCall, called: &str) -> Result<(), String> {
        let name = &call.fn_name;
        if self.agreed.contains(called) {
            return Ok(());
        }
        if !self.is_terminal {
            return Err(format!(
                "not called: {name} may destroy something, and there is no one to agree to it. \
                 Do not try again; tell the user that `--yes` would allow it"
            ));
        }
        render::question(&format!("call {name} {}? [y]es, [n]o, [a]lways ", call.fn_arguments));
        let read = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).map(|_| line)
        });
        let line = read.await.ok().and_then(Result::ok).unwrap_or_default();
        match Verdict::of(&line) {
            Verdict::Yes => Ok(()),
            Verdict::Always => {
                self.agreed.insert(called.to_owned());
                Ok(())
            }
            Verdict::No => Err("not called: the user did not agree".to_owned()),
        }
    }
}

impl Verdict {
    /// Only what clearly says yes is one.
    fn of(line: &str) -> Self {
        match line.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Self::Yes,
            "a" | "always" => Self::Always,
            _ => Self::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_is_one() {
        for (line, verdict) in [
            ("y\n", Verdict::Yes),
            (" YES \r\n", Verdict::Yes),
            ("a\n", Verdict::Always),
            ("\n", Verdict::No),
            ("", Verdict::No),
            ("yep\n", Verdict::No),
            ("n\n", Verdict::No),
        ] {
            assert_eq!(Verdict::of(line), verdict, "{line:?}");
        }
    }
}
