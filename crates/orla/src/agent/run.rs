//! Decides the next step of a run, without I/O.

use std::sync::Arc;

use genai::chat::{ChatMessage, ChatRequest, MessageContent, StopReason, Tool, ToolCall, ToolResponse};
use orla_marketplace::JsonText;
use parking_lot::Mutex;
use serde_json::Value;

use crate::config::AgentConfig;
use crate::config::agent::Price;

/// The maximum number of calls of one answer; more of them end the run.
const MAX_CALLS: usize = 64;

/// A conversation with a model, and its cost so far.
#[derive(Debug)]
pub(crate) struct Run {
    system: String,
    messages: Vec<ChatMessage>,
    budget: Arc<Budget>,
    pub(crate) steps: usize,
    pub(crate) spent: Tokens,
}

/// The limits of a run and all runs within it, and their use so far.
#[derive(Debug)]
pub(crate) struct Budget {
    steps: usize,
    tokens: Option<u64>,
    price: Option<Price>,
    used: Mutex<Usage>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    steps: usize,
    tokens: Tokens,
}

/// Tokens as the model's provider counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tokens {
    pub(crate) input: u64,
    pub(crate) output: u64,
}

/// One reply of a model.
#[derive(Debug, Default)]
pub(crate) struct ModelReply {
    /// All of it: text, calls, and data that the provider requires to be sent back.
    pub(crate) content: MessageContent,
    pub(crate) reasoning: Option<String>,
    pub(crate) stop: Option<StopReason>,
    pub(crate) tokens: Tokens,
}

/// The next step.
#[derive(Debug)]
pub(crate) enum Next {
    /// Ask the model with [`Run::request`].
    Ask,
    /// These calls are made.
    Call(Vec<RequestedCall>),
    End(End),
}

/// A call of the model.
#[derive(Debug)]
pub(crate) struct RequestedCall {
    pub(crate) call: ToolCall,
    /// The input for the capability, or why the arguments are invalid.
    pub(crate) input: Result<JsonText, String>,
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    Answered,
    /// The model returned neither text nor calls.
    Empty,
    /// The provider has cut the answer: it was too long.
    Cut,
    /// The answer has this many calls, which are too many.
    Calls(usize),
    Steps(usize),
    Tokens(u64),
    Cost(f64),
    Timeout,
    Cancelled,
}

impl Run {
    /// A run that begins with these messages.
    pub(crate) fn new(budget: Arc<Budget>, system: String, messages: Vec<ChatMessage>) -> Self {
        Self { system, messages, budget, steps: 0, spent: Tokens::default() }
    }

    /// Returns the request to the model.
    pub(crate) fn request(&self, tools: &[Tool]) -> ChatRequest {
        let mut request = ChatRequest::new(self.messages.clone()).with_system(self.system.clone());
        if !tools.is_empty() {
            request = request.with_tools(tools.to_vec());
        }
        request
    }

    /// Returns the first step.
    pub(crate) fn begin(&self) -> Next {
        self.budget.take_step().map_or(Next::Ask, Next::End)
    }

    /// Takes the model's answer.
    pub(crate) fn answered(&mut self, answer: ModelReply) -> Next {
        self.steps += 1;
        self.spent.add(answer.tokens);
        self.budget.pay(answer.tokens);
        let calls: Vec<ToolCall> = answer.content.tool_calls().into_iter().cloned().collect();
        if matches!(answer.stop, Some(StopReason::MaxTokens(_))) {
            // The last call is likely to be half of one.
            return Next::End(End::Cut);
        }
        if calls.is_empty() {
            let has_text = answer.content.texts().iter().any(|text| !text.trim().is_empty());
            return Next::End(if has_text { End::Answered } else { End::Empty });
        }
        if calls.len() > MAX_CALLS {
            return Next::End(End::Calls(calls.len()));
        }
        if let Some(end) = self.budget.reached() {
            return Next::End(end);
        }
        let mut message = ChatMessage::assistant(answer.content);
        if !message.content.contains_reasoning_content() {
            message = message.with_reasoning_content(answer.reasoning);
        }
        self.messages.push(message);
        Next::Call(calls.into_iter().map(RequestedCall::of).collect())
    }

    /// Takes in the results of calls, in the order of the calls. A call may have been a run itself,
    /// which used up the limits.
    pub(crate) fn resulted(&mut self, results: Vec<ToolResponse>) -> Next {
        self.messages.push(ChatMessage::from(results));
        self.begin()
    }
}

impl Budget {
    /// Creates the full limits of the configuration.
    pub(crate) fn new(config: &AgentConfig) -> Arc<Self> {
        let (steps, tokens, price) = (config.max_steps, config.max_tokens, config.price());
        Arc::new(Self { steps, tokens, price, used: Mutex::default() })
    }

    /// Asks the model again, unless a limit is reached. Concurrent runs share the limit of requests.
    fn take_step(&self) -> Option<End> {
        let mut used = self.used.lock();
        let end = self.bound(*used);
        used.steps += usize::from(end.is_none());
        end
    }

    /// Charges an answer.
    fn pay(&self, tokens: Tokens) {
        self.used.lock().tokens.add(tokens);
    }

    /// Which bound is reached, if one is.
    fn reached(&self) -> Option<End> {
        self.bound(*self.used.lock())
    }

    fn bound(&self, used: Usage) -> Option<End> {
        if used.steps >= self.steps {
            return Some(End::Steps(self.steps));
        }
        let tokens = used.tokens.input.saturating_add(used.tokens.output);
        if let Some(most) = self.tokens.filter(|most| tokens >= *most) {
            return Some(End::Tokens(most));
        }
        let price = self.price.filter(|price| used.tokens.cost(*price) >= price.max)?;
        Some(End::Cost(price.max))
    }
}

impl Tokens {
    fn add(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
    }

    /// Returns the cost of the tokens.
    #[expect(clippy::cast_precision_loss, reason = "a sum of money, which is shown with two decimals")]
    fn cost(self, price: Price) -> f64 {
        (self.input as f64 * price.input + self.output as f64 * price.output) / 1_000_000.0
    }
}

impl RequestedCall {
    /// Reads a call of an answer. Missing arguments count as empty.
    fn of(mut call: ToolCall) -> Self {
        if call.fn_arguments.is_null() || call.fn_arguments == "" {
            call.fn_arguments = Value::Object(serde_json::Map::new());
        }
        let input = match &call.fn_arguments {
            arguments @ Value::Object(_) => JsonText::of(arguments).map_err(|err| err.to_string()),
            _ => Err("not called: the arguments are not a JSON object".to_owned()),
        };
        if input.is_err() && !call.fn_arguments.is_object() {
            // Providers refuse a conversation whose arguments are not an object.
            call.fn_arguments = Value::Object(serde_json::Map::new());
        }
        Self { call, input }
    }
}

impl End {
    /// Returns the word for it in a transcript.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Empty => "empty",
            Self::Cut => "cut",
            Self::Calls(_) => "max_calls",
            Self::Steps(_) => "max_steps",
            Self::Tokens(_) => "max_tokens",
            Self::Cost(_) => "max_cost",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns why the reply is incomplete, if it is.
    pub(crate) fn problem(self) -> Option<String> {
        Some(match self {
            Self::Answered => return None,
            Self::Empty => "the model answered nothing".to_owned(),
            Self::Cut => {
                "the answer was cut: it has as many tokens as the model writes at once".to_owned()
            }
            Self::Calls(wanted) => {
                format!("the model wants {wanted} calls at once; at most {MAX_CALLS} are made")
            }
            Self::Steps(most) => {
                format!("the model has answered {most} times without a final answer (agent.max_steps)")
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

    fn answer(calls: Vec<ToolCall>) -> ModelReply {
        ModelReply {
            content: MessageContent::from_tool_calls(calls),
            tokens: Tokens { input: 10, output: 5 },
            ..ModelReply::default()
        }
    }

    fn run(change: impl FnOnce(&mut AgentConfig)) -> Run {
        let mut config = AgentConfig::default();
        change(&mut config);
        Run::new(Budget::new(&config), "system".to_owned(), vec![ChatMessage::user("prompt")])
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
        let last = ModelReply { content: MessageContent::from_text("done"), ..ModelReply::default() };
        assert!(matches!(run.answered(last), Next::End(End::Answered)));
        let silent = ModelReply { content: MessageContent::from_text(" "), ..ModelReply::default() };
        assert!(matches!(run.answered(silent), Next::End(End::Empty)));
        assert_eq!(run.spent, Tokens { input: 10, output: 5 });
    }

    #[test]
    fn arguments_that_are_no_object_are_an_error_for_the_model() {
        for arguments in [json!("{\"n\":"), json!([1]), json!(3), json!(true)] {
            let Next::Call(wanted) = run(|_| {}).answered(answer(vec![call("a", arguments.clone())]))
            else {
                panic!("{arguments}");
            };
            assert!(wanted[0].input.as_ref().is_err_and(|problem| problem.contains("JSON object")));
            assert_eq!(wanted[0].call.fn_arguments, json!({}));
        }
    }

    #[test]
    fn an_answer_that_wants_too_many_calls_ends_the_run() {
        let many = |n: usize| answer((0..n).map(|n| call(&format!("c{n}"), json!({}))).collect());
        assert!(matches!(run(|_| {}).answered(many(MAX_CALLS)), Next::Call(_)));
        let next = run(|_| {}).answered(many(MAX_CALLS + 1));
        assert!(matches!(next, Next::End(End::Calls(65))), "{next:?}");
    }

    #[test]
    fn a_run_within_a_run_uses_up_what_both_have() {
        let budget = Budget::new(&AgentConfig { max_steps: 2, ..AgentConfig::default() });
        let run = || Run::new(Arc::clone(&budget), String::new(), vec![ChatMessage::user("go")]);
        let (mut outer, mut inner) = (run(), run());
        assert!(matches!(outer.begin(), Next::Ask));
        assert!(matches!(outer.answered(answer(vec![call("agent", json!({}))])), Next::Call(_)));
        assert!(matches!(inner.begin(), Next::Ask));
        assert!(matches!(run().begin(), Next::End(End::Steps(2))));
        let next = inner.answered(answer(vec![call("a", json!({}))]));
        assert!(matches!(next, Next::End(End::Steps(2))), "{next:?}");
        assert!(matches!(outer.resulted(Vec::new()), Next::End(End::Steps(2))));
        assert_eq!((outer.steps, inner.steps), (1, 1));
    }

    #[test]
    fn each_bound_ends_the_run_before_the_calls_that_would_go_beyond_it() {
        let default = AgentConfig::default;
        let million = Some(1_000_000.0);
        let cases = [
            (AgentConfig { max_steps: 1, ..default() }, End::Steps(1)),
            (AgentConfig { max_tokens: Some(15), ..default() }, End::Tokens(15)),
            (
                AgentConfig {
                    max_cost: Some(15.0),
                    input_price: million,
                    output_price: million,
                    ..default()
                },
                End::Cost(15.0),
            ),
        ];
        for (config, expected) in cases {
            let mut run = run(|own| *own = config);
            assert!(matches!(run.begin(), Next::Ask));
            let next = run.answered(answer(vec![call("a", json!({}))]));
            assert!(matches!(next, Next::End(end) if end == expected), "{next:?}");
            assert!(expected.problem().is_some());
        }
    }

    #[test]
    fn calls_of_an_answer_that_was_cut_are_not_made() {
        let stop = Some(StopReason::from("length".to_owned()));
        let next = run(|_| {}).answered(ModelReply { stop, ..answer(vec![call("a", json!({}))]) });
        assert!(matches!(next, Next::End(End::Cut)));
    }

    proptest! {
        /// For any replies, a run stays within its limits and returns one result for each call.
        #[test]
        fn a_run_ends(steps in 1_usize..6, answers in prop::collection::vec(0_usize..4, 0..12)) {
            let mut run = run(|config| config.max_steps = steps);
            let mut asked = 0;
            prop_assert!(matches!(run.begin(), Next::Ask));
            for calls in answers {
                asked += 1;
                prop_assert!(asked <= steps);
                let calls_of = calls;
                let calls = (0..calls).map(|n| call(&n.to_string(), json!({}))).collect();
                match run.answered(answer(calls)) {
                    Next::Call(wanted) => {
                        let results = wanted.iter().map(|one| ToolResponse::from_tool_call(&one.call, ""));
                        prop_assert!(matches!(run.resulted(results.collect()), Next::Ask));
                    }
                    Next::End(end) => {
                        prop_assert!(calls_of == 0 || (end == End::Steps(steps) && asked == steps));
                        break;
                    }
                    Next::Ask => prop_assert!(false, "nothing was answered"),
                }
            }
        }
    }
}
