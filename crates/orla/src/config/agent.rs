//! `agent`: the model that `orla agent` and the tool `agent` ask, and how far it may go.

use std::time::Duration;

use orla_document::Node;
use serde_json::{Value, json};

use super::Config;
use super::keys::{MAX_TOOL_TIMEOUT, Own, list_of};
use super::provider::API;
use super::read::{Reader, excerpt, unexpected};
use super::schema::{seconds, variable, whole};

/// The key.
pub(super) const KEY: Own = Own {
    read,
    schema,
    expected: "a mapping with model, base_url, api_key_env, max_steps and others",
    variable: None,
};

const FIELDS: [&str; 12] = [
    "model",
    "base_url",
    "api_key_env",
    "approve",
    "max_steps",
    "max_tokens",
    "max_cost",
    "input_price",
    "output_price",
    "timeout",
    "max_tools",
    "max_result_bytes",
];
/// Answers of a model in one run, at most.
pub(crate) const MAX_STEPS: usize = 1_000;
/// Tools that a model can be offered, at most.
const MAX_TOOLS: usize = 1_000;
/// Bytes of one result that a model can be given, at most.
const MAX_RESULT: usize = 64 * 1024 * 1024;

/// How a prompt is gone about. Read without the feature `agent`, too, so that it is checked all the same.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AgentConfig {
    /// The model's name, `PROVIDER::NAME` where the name alone does not say whose it is.
    pub(crate) model: Option<String>,
    /// Where the model is reached, if not where its provider is.
    pub(crate) base_url: Option<String>,
    /// The environment variable that holds the key, if not the provider's own.
    pub(crate) api_key_env: Option<String>,
    pub(crate) approve: Approve,
    /// Answers of the model.
    pub(crate) max_steps: usize,
    /// Tokens read and written, all answers together.
    pub(crate) max_tokens: Option<u64>,
    pub(crate) price: Option<Price>,
    pub(crate) timeout: Duration,
    /// Above this many tools, the model is offered those to find and call the others.
    pub(crate) max_tools: usize,
    pub(crate) max_result_bytes: usize,
}

/// Which calls a person has to agree to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Approve {
    /// None.
    Never,
    /// Those that may destroy something.
    #[default]
    Destructive,
    /// All.
    Always,
}

/// What tokens cost, and what all of them may, in whatever currency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Price {
    /// Of a million tokens that the model reads.
    pub(crate) input: f64,
    /// Of a million tokens that it writes.
    pub(crate) output: f64,
    pub(crate) max: f64,
}

impl Approve {
    pub(crate) const WORDS: [(&'static str, Self); 3] =
        [("never", Self::Never), ("destructive", Self::Destructive), ("always", Self::Always)];

    pub(crate) fn of_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, approve)| *approve)
    }
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            model: None,
            base_url: None,
            api_key_env: None,
            approve: Approve::default(),
            max_steps: 20,
            max_tokens: None,
            price: None,
            timeout: Duration::from_secs(600),
            max_tools: 64,
            max_result_bytes: 64 * 1024,
        }
    }
}

fn read(reader: &mut Reader<'_>, config: &mut Config, path: &'static str, node: &Node) {
    let Some(pairs) = reader.pairs(path, node, KEY.expected) else { return };
    let agent = &mut config.agent;
    let (mut max_cost, mut input, mut output) = (None, None, None);
    for (key, node) in pairs.iter().filter(|(_, node)| !node.is_null()) {
        let place = format!("{path}.{}", excerpt(&key.text));
        match key.text.as_str() {
            "model" => agent.model = reader.line(&place, node, "the name of a model"),
            "base_url" => agent.base_url = reader.url(&place, node, API),
            "api_key_env" => {
                agent.api_key_env = reader.line(&place, node, "the name of an environment variable");
            }
            "approve" => agent.approve = approve(reader, &place, node).unwrap_or_default(),
            "max_steps" => set(&mut agent.max_steps, reader.count(&place, node, 1, MAX_STEPS)),
            "max_tokens" => agent.max_tokens = reader.count(&place, node, 1, u64::from(u32::MAX)),
            "max_cost" => max_cost = reader.amount(&place, node),
            "input_price" => input = reader.amount(&place, node),
            "output_price" => output = reader.amount(&place, node),
            "timeout" => set(&mut agent.timeout, reader.seconds(&place, node)),
            "max_tools" => set(&mut agent.max_tools, reader.count(&place, node, 1, MAX_TOOLS)),
            "max_result_bytes" => {
                set(&mut agent.max_result_bytes, reader.count(&place, node, 1, MAX_RESULT));
            }
            other => reader.unknown(key.at, other, &format!("{path}."), FIELDS),
        }
    }
    match (max_cost, input, output) {
        (Some(max), Some(input), Some(output)) => agent.price = Some(Price { input, output, max }),
        (Some(_), ..) => reader.problem(node.at, || {
            format!("{path}.max_cost: needs input_price and output_price, those of a million tokens")
        }),
        (None, ..) => {}
    }
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

fn approve(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Approve> {
    let expected = list_of(&Approve::WORDS.map(|(word, _)| word));
    let word = reader.word_at(path, node, &expected)?;
    let known = Approve::of_word(&word);
    if known.is_none() {
        reader.problem(node.at, || format!("{path}{}", unexpected(&expected, node)));
    }
    known
}

fn schema() -> Value {
    let default = AgentConfig::default();
    let text = |about: &str| json!({"type": "string", "minLength": 1, "description": about});
    let count = |max: usize, default: usize, about: &str| json!({"anyOf": [whole(1, max), variable()], "default": default, "description": about});
    let amount = |about: &str| json!({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, variable()], "description": about});
    json!({"type": "object", "properties": {
        "model": text("The model's name, with which the tool agent is served too; PROVIDER::NAME where the name alone does not say whose it is, such as openai::qwen3 for a server that speaks OpenAI's protocol; sampling for that of the client that calls the tool."),
        "base_url": text("Where the model is reached, if not at its provider."),
        "api_key_env": text("The environment variable that holds the key, if not the provider's own; with base_url, no other key is sent."),
        "approve": {"enum": Approve::WORDS.map(|(word, _)| word), "default": "destructive",
            "description": "Which calls a person, at the terminal or at the client, has to agree to: none, those of capabilities that may destroy something, or all."},
        "max_steps": count(MAX_STEPS, default.max_steps, "Answers of the model in one run."),
        "max_tokens": {"anyOf": [whole(1, u32::MAX as usize), variable()],
            "description": "Tokens that the model reads and writes in one run, as its provider counts them."},
        "max_cost": amount("What the tokens of one run may cost; needs the two prices."),
        "input_price": amount("Of a million tokens that the model reads."),
        "output_price": amount("Of a million tokens that the model writes."),
        "timeout": {"anyOf": [seconds(MAX_TOOL_TIMEOUT), variable()], "default": default.timeout.as_secs(),
            "description": "Seconds that one run may take."},
        "max_tools": count(MAX_TOOLS, default.max_tools, "Capabilities that the model is offered directly; with more, it is offered those that find, describe and call the others."),
        "max_result_bytes": count(MAX_RESULT, default.max_result_bytes, "Bytes of one result that the model is given; the rest is left out, and the model told."),
    }, "additionalProperties": false})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_agent_may_do_is_read_and_what_makes_no_sense_is_named_with_its_place() {
        let config = Config::of(
            "agent:\n  model: openai::m\n  base_url: http://127.0.0.1:1/v1\n  api_key_env: KEY\n  approve: always\n  max_steps: 3\n  max_tokens: 1000\n  max_cost: 0.5\n  input_price: 1\n  output_price: 2.5\n  timeout: 1.5\n  max_tools: 8\n  max_result_bytes: 100\n",
        );
        let expected = AgentConfig {
            model: Some("openai::m".into()),
            base_url: Some("http://127.0.0.1:1/v1".into()),
            api_key_env: Some("KEY".into()),
            approve: Approve::Always,
            max_steps: 3,
            max_tokens: Some(1000),
            price: Some(Price { input: 1.0, output: 2.5, max: 0.5 }),
            timeout: Duration::from_millis(1500),
            max_tools: 8,
            max_result_bytes: 100,
        };
        assert_eq!(config.map(|config| config.agent).ok(), Some(expected));

        for (text, expected) in [
            ("agent: {modell: x}", "agent.modell: unknown key, did you mean model? at orla.yaml:1:9"),
            (
                "agent: {max_steps: 0}",
                "agent.max_steps: expected a whole number from 1 to 1000, got 0 at orla.yaml:1:20",
            ),
            (
                "agent: {approve: no}",
                "agent.approve: expected never, destructive or always, got text \"no\" at orla.yaml:1:18",
            ),
            (
                "agent: {max_cost: 1, input_price: 1}",
                "agent.max_cost: needs input_price and output_price, those of a million tokens at orla.yaml:1:8",
            ),
        ] {
            let problems = Config::of(text).err().unwrap_or_default();
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            assert_eq!(problems, [expected], "{text}");
        }
    }
}
