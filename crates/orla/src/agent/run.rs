//! What comes next in a run, without I/O.

use genai::chat::{ChatMessage, ChatRequest, MessageContent, StopReason, Tool, ToolCall, ToolResponse};
use orla_marketplace::JsonText;
use serde_json::Value;

use crate::config::AgentConfig;
use crate::config::agent::Price;

/// Calls of one answer that are made; a model that wants more is told.
const MAX_CALLS: usize = 64;

/// A conversation with a model, and what it has cost so far.
#[derive(Debug)]
pub(crate) struct Run {
    system: String,
    messages: Vec<ChatMessage>,
    bounds: Bounds,
    steps: usize,
    pub(crate) spent: Tokens,
}

/// How far a run may go.
#[derive(Clone, Debug)]
struct Bounds {
    steps: usize,
    tokens: Option<u64>,
    price: Option<Price>,
}

/// Tokens as the model's provider counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tokens {
    pub(crate) input: u64,
    pub(crate) output: u64,
}

/// One answer of a model.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// All of it: text, calls, and what the provider wants to see again.
    pub(crate) content: MessageContent,
    pub(crate) reasoning: Option<String>,
    pub(crate) stop: Option<StopReason>,
    pub(crate) tokens: Tokens,
}

/// What comes next.
#[derive(Debug)]
pub(crate) enum Next {
    /// The model is asked, with [`Run::request`].
    Ask,
    /// These calls are made.
    Call(Vec<Wanted>),
    End(End),
}

/// A call that the model wants.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) call: ToolCall,
    /// What it gives the capability, or why that is nothing that can be given.
    pub(crate) input: Result<JsonText, String>,
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    Answered,
    /// The model has said nothing and called nothing.
    Empty,
    /// The provider has cut the answer: it was too long.
    Cut,
    Steps(usize),
    Tokens(u64),
    Cost(f64),
    Timeout,
    Cancelled,
}

impl Run {
    /// A run that begins with a prompt.
    pub(crate) fn new(config: &AgentConfig, system: String, prompt: String) -> Self {
        let bounds = Bounds { steps: config.max_steps, tokens: config.max_tokens, price: config.price };
        let messages = vec![ChatMessage::user(prompt)];
        Self { system, messages, bounds, steps: 0, spent: Tokens::default() }
    }

    /// What the model is asked.
    pub(crate) fn request(&self, tools: &[Tool]) -> ChatRequest {
        let mut request = ChatRequest::new(self.messages.clone()).with_system(self.system.clone());
        if !tools.is_empty() {
            request = request.with_tools(tools.to_vec());
        }
        request
    }

    /// Takes the model's answer.
    pub(crate) fn answered(&mut self, answer: Answer) -> Next {
        self.steps += 1;
        self.spent.add(answer.tokens);
        let calls: Vec<ToolCall> = answer.content.tool_calls().into_iter().cloned().collect();
        if matches!(answer.stop, Some(StopReason::MaxTokens(_))) {
            // The last call is likely to be half of one.
            return Next::End(End::Cut);
        }
        if calls.is_empty() {
            let has_text = answer.content.texts().iter().any(|text| !text.trim().is_empty());
            return Next::End(if has_text { End::Answered } else { End::Empty });
        }
        if let Some(end) = self.bounds.reached(self.steps, self.spent) {
            return Next::End(end);
        }
        let mut message = ChatMessage::assistant(answer.content);
        if !message.content.contains_reasoning_content() {
            message = message.with_reasoning_content(answer.reasoning);
        }
        self.messages.push(message);
        Next::Call(calls.into_iter().enumerate().map(|(at, call)| Wanted::of(at, call)).collect())
    }

    /// Takes what the calls gave, in the order of the calls.
    pub(crate) fn resulted(&mut self, results: Vec<ToolResponse>) -> Next {
        self.messages.push(ChatMessage::from(results));
        Next::Ask
    }
}

impl Bounds {
    fn reached(&self, steps: usize, spent: Tokens) -> Option<End> {
        if steps >= self.steps {
            return Some(End::Steps(self.steps));
        }
        if let Some(most) = self.tokens.filter(|most| spent.input.saturating_add(spent.output) >= *most)
        {
            return Some(End::Tokens(most));
        }
        let price = self.price.filter(|price| spent.cost(*price) >= price.max)?;
        Some(End::Cost(price.max))
    }
}

impl Tokens {
    fn add(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
    }

    /// What they cost.
    #[expect(clippy::cast_precision_loss, reason = "a sum of money, which is shown with two decimals")]
    fn cost(self, price: Price) -> f64 {
        (self.input as f64 * price.input + self.output as f64 * price.output) / 1_000_000.0
    }
}

impl Wanted {
    /// The call at this place of an answer. What a model leaves out is no arguments.
    fn of(at: usize, mut call: ToolCall) -> Self {
        if call.fn_arguments.is_null() || call.fn_arguments == "" {
            call.fn_arguments = Value::Object(serde_json::Map::new());
        }
        let input = match &call.fn_arguments {
            _ if at >= MAX_CALLS => {
                Err(format!("not called: at most {MAX_CALLS} calls are made at once"))
            }
            arguments @ Value::Object(_) => JsonText::of(arguments).map_err(|err| err.to_string()),
            _ => Err("not called: the arguments are no JSON object".to_owned()),
        };
        if input.is_err() && !call.fn_arguments.is_object() {
            // Providers refuse a conversation in which arguments are no object.
            call.fn_arguments = Value::Object(serde_json::Map::new());
        }
        Self { call, input }
    }
}

impl End {
    /// The word for it in a transcript.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Empty => "empty",
            Self::Cut => "cut",
            Self::Steps(_) => "max_steps",
            Self::Tokens(_) => "max_tokens",
            Self::Cost(_) => "max_cost",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
        }
    }

    /// Why there is no whole answer, where there is none.
    pub(crate) fn problem(self) -> Option<String> {
        Some(match self {
            Self::Answered => return None,
            Self::Empty => "the model answered nothing".to_owned(),
            Self::Cut => {
                "the answer was cut: it has as many tokens as the model writes at once".to_owned()
            }
            Self::Steps(most) => {
                format!("the model has answered {most} times and wants to go on (agent.max_steps)")
            }
            Self::Tokens(most) => format!("{most} tokens are used up (agent.max_tokens)"),
            Self::Cost(most) => format!("the run has cost {most} (agent.max_cost)"),
            Self::Timeout => "the run took too long (agent.timeout)".to_owned(),
            Self::Cancelled => "the run was cancelled".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn call(name: &str, arguments: Value) -> ToolCall {
        ToolCall {
            call_id: format!("id-{name}"),
            fn_name: name.to_owned(),
            fn_arguments: arguments,
            thought_signatures: None,
        }
    }

    fn answer(calls: Vec<ToolCall>) -> Answer {
        Answer {
            content: MessageContent::from_tool_calls(calls),
            tokens: Tokens { input: 10, output: 5 },
            ..Answer::default()
        }
    }

    fn run(change: impl FnOnce(&mut AgentConfig)) -> Run {
        let mut config = AgentConfig::default();
        change(&mut config);
        Run::new(&config, "system".to_owned(), "prompt".to_owned())
    }

    #[test]
    fn an_answer_without_calls_is_the_end_and_one_with_calls_goes_on_with_their_results() {
        let mut run = run(|_| {});
        let next = run.answered(answer(vec![call("a", json!({"n": 1})), call("b", json!(""))]));
        let Next::Call(wanted) = next else { panic!("{next:?}") };
        let inputs: Vec<_> =
            wanted.iter().map(|wanted| wanted.input.as_ref().map(JsonText::as_str)).collect();
        assert_eq!(inputs, [Ok(r#"{"n":1}"#), Ok("{}")]);
        let results = wanted.iter().map(|wanted| ToolResponse::from_tool_call(&wanted.call, "x"));
        assert!(matches!(run.resulted(results.collect()), Next::Ask));
        let request = run.request(&[]);
        assert_eq!(request.messages.len(), 3);
        assert_eq!(request.messages[2].content.tool_responses().len(), 2);
        let last = Answer { content: MessageContent::from_text("done"), ..Answer::default() };
        assert!(matches!(run.answered(last), Next::End(End::Answered)));
        let silent = Answer { content: MessageContent::from_text(" "), ..Answer::default() };
        assert!(matches!(run.answered(silent), Next::End(End::Empty)));
        assert_eq!(run.spent, Tokens { input: 10, output: 5 });
    }

    #[test]
    fn what_is_no_object_is_an_error_for_the_model_and_not_called() {
        for arguments in [json!("{\"n\":"), json!([1]), json!(3), json!(true)] {
            let Next::Call(wanted) = run(|_| {}).answered(answer(vec![call("a", arguments.clone())]))
            else {
                panic!("{arguments}");
            };
            assert!(wanted[0].input.as_ref().is_err_and(|problem| problem.contains("JSON object")));
            assert_eq!(wanted[0].call.fn_arguments, json!({}));
        }
        let many = (0..100).map(|n| call(&format!("c{n}"), json!({}))).collect();
        let Next::Call(wanted) = run(|_| {}).answered(answer(many)) else { panic!() };
        assert_eq!(wanted.iter().filter(|wanted| wanted.input.is_ok()).count(), MAX_CALLS);
    }

    #[test]
    fn each_bound_ends_the_run_before_the_calls_that_would_go_beyond_it() {
        let price = Price { input: 1_000_000.0, output: 1_000_000.0, max: 15.0 };
        let default = AgentConfig::default;
        let cases = [
            (AgentConfig { max_steps: 1, ..default() }, End::Steps(1)),
            (AgentConfig { max_tokens: Some(15), ..default() }, End::Tokens(15)),
            (AgentConfig { price: Some(price), ..default() }, End::Cost(15.0)),
        ];
        for (config, expected) in cases {
            let mut run = run(|own| *own = config);
            let next = run.answered(answer(vec![call("a", json!({}))]));
            assert!(matches!(next, Next::End(end) if end == expected), "{next:?}");
            assert!(expected.problem().is_some());
        }
    }

    #[test]
    fn calls_of_an_answer_that_was_cut_are_not_made() {
        let stop = Some(StopReason::from("length".to_owned()));
        let next = run(|_| {}).answered(Answer { stop, ..answer(vec![call("a", json!({}))]) });
        assert!(matches!(next, Next::End(End::Cut)));
    }

    proptest! {
        /// Whatever a model wants, a run asks no more often than it may, and gives one result for each call.
        #[test]
        fn a_run_ends(steps in 1_usize..6, answers in prop::collection::vec(0_usize..4, 0..12)) {
            let mut run = run(|config| config.max_steps = steps);
            let mut asked = 0;
            for calls in answers {
                asked += 1;
                prop_assert!(asked <= steps);
                let calls = (0..calls).map(|n| call(&n.to_string(), json!({}))).collect();
                match run.answered(answer(calls)) {
                    Next::Call(wanted) => {
                        let results = wanted.iter().map(|one| ToolResponse::from_tool_call(&one.call, ""));
                        prop_assert!(matches!(run.resulted(results.collect()), Next::Ask));
                    }
                    Next::End(_) => break,
                    Next::Ask => prop_assert!(false, "nothing was answered"),
                }
            }
        }
    }
}
