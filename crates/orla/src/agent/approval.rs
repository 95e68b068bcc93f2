//! Whether a person agrees to a call.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::sync::Arc;

use genai::chat::ToolCall;
use orla_marketplace::{Client, ClientError, JsonText};
use serde::Deserialize;
use serde_json::json;

use crate::render;

/// Characters of arguments that a client's question shows.
const SHOWN: usize = 4000;

/// The person who approves calls, and the calls that were approved for the rest of the run.
pub(crate) struct Approval {
    who: Approver,
    agreed: BTreeSet<String>,
}

enum Approver {
    Terminal,
    /// The user of the client that made the call, asked by elicitation.
    Client(Arc<dyn Client>),
    /// No one. The text says how to allow such calls.
    NoOne(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Yes,
    No,
    /// For every call of this capability.
    Always,
}

impl Approval {
    /// Asks at the terminal, if there is one for the question and one for the answer.
    pub(crate) fn at_terminal() -> Self {
        let is_terminal = std::io::stdin().is_terminal() && render::stderr_is_terminal();
        let who = if is_terminal { Approver::Terminal } else { Approver::NoOne("`--yes`") };
        Self { who, agreed: BTreeSet::new() }
    }

    /// Asks the client of a call, if there is one.
    pub(crate) fn by_client(client: Option<&Arc<dyn Client>>) -> Self {
        let who =
            client.map_or(Approver::NoOne(CONFIGURED), |client| Approver::Client(Arc::clone(client)));
        Self { who, agreed: BTreeSet::new() }
    }

    /// Waits for the answer; `called` is the capability that the call finally reaches.
    ///
    /// # Errors
    ///
    /// Returns the result that the model gets for a refused call.
    pub(crate) async fn ask(&mut self, call: &ToolCall, called: &str) -> Result<(), String> {
        let name = &call.fn_name;
        if self.agreed.contains(called) {
            return Ok(());
        }
        let no_one = |way: &str| {
            format!(
                "not called: {name} may destroy something, and there is no one to agree to it. \
                 Do not try again; tell the user that {way} would allow it"
            )
        };
        let verdict = match &self.who {
            Approver::NoOne(way) => return Err(no_one(way)),
            Approver::Terminal => at_terminal(call).await,
            Approver::Client(client) => match by_client(&**client, call).await {
                Ok(verdict) => verdict,
                Err(ClientError::Unsupported(_)) => return Err(no_one(CONFIGURED)),
                Err(err) => {
                    return Err(format!(
                        "not called: the client could not be asked for approval: {err}"
                    ));
                }
            },
        };
        match verdict {
            Verdict::Yes => Ok(()),
            Verdict::Always => {
                self.agreed.insert(called.to_owned());
                Ok(())
            }
            Verdict::No => Err("not called: the user did not agree".to_owned()),
        }
    }
}

/// How to allow such calls without a terminal.
const CONFIGURED: &str = "`agent: {approve: never}` in the server's configuration";

async fn at_terminal(call: &ToolCall) -> Verdict {
    let (name, arguments) = (&call.fn_name, &call.fn_arguments);
    render::question(&format!("call {name} {arguments}? [y]es, [n]o, [a]lways "));
    let read = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    });
    Verdict::of(&read.await.ok().and_then(Result::ok).unwrap_or_default())
}

async fn by_client(client: &dyn Client, call: &ToolCall) -> Result<Verdict, ClientError> {
    let arguments = render::cut(&call.fn_arguments.to_string(), SHOWN);
    let form = json!({
        "message": format!("The model wants to call {} with {arguments}. Allow it?", call.fn_name),
        "requestedSchema": {
            "type": "object",
            "properties": {"answer": {"type": "string", "title": "Allow it?", "enum": ["yes", "no", "always"],
                "description": "`always` is for every call of it in this run."}},
            "required": ["answer"],
        },
    });
    let form = JsonText::of(&form).map_err(|_| ClientError::Gone)?;
    let answer = client.request("elicitation/create", form).await?;
    let result: ElicitResult = serde_json::from_str(answer.as_str()).unwrap_or_default();
    let is_accepted = result.action == "accept";
    Ok(if is_accepted { Verdict::of(&result.content.answer) } else { Verdict::No })
}

/// The answer to an elicitation.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ElicitResult {
    action: String,
    content: Content,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Content {
    answer: String,
}

impl Verdict {
    /// Only an explicit yes is one.
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
