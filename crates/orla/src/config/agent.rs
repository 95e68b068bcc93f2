//! `agent`: the model that `orla agent` and the tool `agent` ask, and how far it may go.

use std::time::Duration;

/// The keys of `agent`. They are read and checked without the feature `agent` too.
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
    /// What all tokens of one run may cost. Needs both prices.
    pub(crate) max_cost: Option<f64>,
    /// Price of a million tokens that the model reads.
    pub(crate) input_price: Option<f64>,
    /// Price of a million tokens that the model writes.
    pub(crate) output_price: Option<f64>,
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

/// What tokens cost, and what all of them may cost, in one currency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Price {
    /// Of a million tokens that the model reads.
    pub(crate) input: f64,
    /// Of a million tokens that it writes.
    pub(crate) output: f64,
    pub(crate) max: f64,
}

impl Approve {
    pub(crate) const WORDS: &'static [(&'static str, Self)] =
        &[("never", Self::Never), ("destructive", Self::Destructive), ("always", Self::Always)];

    pub(crate) fn of_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, approve)| *approve)
    }
}

impl AgentConfig {
    /// Returns the prices and the limit of the cost, if there is one.
    pub(crate) fn price(&self) -> Option<Price> {
        let (max, input, output) = (self.max_cost?, self.input_price?, self.output_price?);
        Some(Price { input, output, max })
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
            max_cost: None,
            input_price: None,
            output_price: None,
            timeout: Duration::from_secs(600),
            max_tools: 64,
            max_result_bytes: 64 * 1024,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    #[test]
    fn agent_settings_are_read_and_problems_are_reported_with_their_place() {
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
            max_cost: Some(0.5),
            input_price: Some(1.0),
            output_price: Some(2.5),
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
