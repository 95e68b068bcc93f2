//! `telemetry`: where traces are sent.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::Config;
use super::Lookup;
use super::forms::{API_URL, HEADERS, Scalar};
use super::keys::{Key, key};

/// Where traces are sent: the keys of `telemetry`.
#[derive(Clone, PartialEq)]
pub(crate) struct TelemetryConfig {
    /// The base address of the collector.
    pub(crate) otlp: Option<String>,
    /// Header fields for the collector, which may be secrets.
    pub(crate) headers: BTreeMap<String, String>,
    /// The part of the traces that begin here which is sent.
    pub(crate) sample_ratio: f64,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self { otlp: None, headers: BTreeMap::new(), sample_ratio: 1.0 }
    }
}

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
pub(super) fn keys() -> Vec<Key<Config>> {
    vec![
        key("otlp", API_URL, |c: &mut Config| &mut c.telemetry.otlp,
            "base address of a collector that takes OTLP over HTTP; `/v1/traces` is appended. By default, that of `OTEL_EXPORTER_OTLP_ENDPOINT`").restart(),
        key("headers", HEADERS, |c: &mut Config| &mut c.telemetry.headers,
            "header fields for the collector").restart(),
        key("sample_ratio", Ratio, |c: &mut Config| &mut c.telemetry.sample_ratio,
            "part of the traces that is sent, from 0 to 1, of those that begin here; the caller decides about its own").restart(),
    ]
}

/// A number from 0 to 1.
struct Ratio;

impl Scalar for Ratio {
    type Value = f64;

    fn expected(&self) -> String {
        "a number from 0 to 1".to_owned()
    }

    fn parse(&self, text: &str) -> Result<f64, String> {
        let number = text.parse::<f64>().ok().filter(|number| (0.0..=1.0).contains(number));
        number.ok_or_else(|| self.expected())
    }

    fn schema(&self) -> Json {
        json!({"type": "number", "minimum": 0, "maximum": 1})
    }

    fn default(&self, value: &f64) -> Option<Json> {
        Some((*value).into())
    }
}

/// Where traces are sent, with the standard variables of OpenTelemetry taken into account.
#[derive(Clone, PartialEq)]
pub(crate) struct Traces {
    /// The whole address.
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) sample_ratio: f64,
    /// What describes this instance.
    pub(crate) attributes: Vec<(String, String)>,
}

impl Config {
    /// Where traces are sent; `None` if nowhere. What the configuration says comes before the environment.
    ///
    /// # Errors
    /// A variable asks for what is not supported.
    pub(crate) fn traces(&self, env: Lookup<'_>) -> Result<Option<Traces>, String> {
        let of = |name: &str| {
            let value = env(name)?.into_string().ok()?;
            Some(value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        let own = &self.telemetry;
        let of_traces = |name: &str| of(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"));
        let of_either =
            |name: &str| of_traces(name).or_else(|| of(&format!("OTEL_EXPORTER_OTLP_{name}")));
        let appended = |base: String| format!("{}/v1/traces", base.trim_end_matches('/'));
        let is_off =
            |name: &str, word: &str| of(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
        let url = match &own.otlp {
            Some(base) => appended(base.clone()),
            None if is_off("OTEL_SDK_DISABLED", "true") || is_off("OTEL_TRACES_EXPORTER", "none") => {
                return Ok(None);
            }
            None => {
                match of_traces("ENDPOINT").or_else(|| of("OTEL_EXPORTER_OTLP_ENDPOINT").map(appended)) {
                    Some(url) => url,
                    None => return Ok(None),
                }
            }
        };
        if own.otlp.is_none()
            && of_either("PROTOCOL").is_some_and(|protocol| protocol != "http/protobuf")
        {
            return Err(
                "traces are sent as http/protobuf alone: change OTEL_EXPORTER_OTLP_PROTOCOL".to_owned()
            );
        }
        let mut headers = of_either("HEADERS").map(|text| pairs(&text)).unwrap_or_default();
        headers.extend(own.headers.clone());
        let mut sample_ratio = own.sample_ratio;
        if self.is_default("telemetry")
            && let Some(ratio) = of("OTEL_TRACES_SAMPLER_ARG").and_then(|text| Ratio.parse(&text).ok())
        {
            sample_ratio = ratio;
        }
        let mut attributes = of("OTEL_RESOURCE_ATTRIBUTES").map(|text| pairs(&text)).unwrap_or_default();
        if let Some(name) = of("OTEL_SERVICE_NAME") {
            attributes.insert("service.name".to_owned(), name);
        }
        attributes.entry("service.name".to_owned()).or_insert_with(|| "orla".to_owned());
        attributes
            .entry("service.version".to_owned())
            .or_insert_with(|| env!("CARGO_PKG_VERSION").to_owned());
        let (headers, attributes) = (headers.into_iter().collect(), attributes.into_iter().collect());
        Ok(Some(Traces { url, headers, sample_ratio, attributes }))
    }
}

/// `name=value,…` with percent-encoded values, as OpenTelemetry's variables have it.
fn pairs(text: &str) -> BTreeMap<String, String> {
    let decoded =
        |text: &str| percent_encoding::percent_decode_str(text.trim()).decode_utf8_lossy().into_owned();
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.trim().to_owned(), decoded(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traces(text: &str, env: &[(&str, &str)]) -> Result<Option<Traces>, String> {
        let config = Config::of(text).map_err(|problems| problems[0].to_string())?;
        config
            .traces(&|name| env.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_configuration_comes_before_the_environment() {
        let env = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318/"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-a=1,x-b=a%20b"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_SERVICE_NAME", "mine"),
        ];
        assert!(traces("", &[]).unwrap().is_none());
        let of_env = traces("", &env).unwrap().unwrap();
        assert_eq!(of_env.url, "http://127.0.0.1:4318/v1/traces");
        assert_eq!(
            of_env.headers,
            [("x-a".to_owned(), "1".to_owned()), ("x-b".to_owned(), "a b".to_owned())]
        );
        assert_eq!(of_env.sample_ratio, 0.25);
        assert!(of_env.attributes.contains(&("service.name".to_owned(), "mine".to_owned())));
        let own =
            traces("telemetry: {otlp: 'http://c:1/base', headers: {x-a: '2'}, sample_ratio: 0}\n", &env)
                .unwrap()
                .unwrap();
        assert_eq!((&*own.url, own.sample_ratio), ("http://c:1/base/v1/traces", 0.0));
        assert_eq!(own.headers[0].1, "2");
        let exact = [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:2/x")];
        assert_eq!(traces("", &exact).unwrap().unwrap().url, "http://c:2/x");
    }

    #[test]
    fn what_is_not_supported_is_said() {
        let grpc =
            [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
        assert!(traces("", &grpc).err().unwrap().contains("http/protobuf"));
        let off = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1"), ("OTEL_SDK_DISABLED", "true")];
        assert!(traces("", &off).unwrap().is_none());
        for (text, words) in [
            ("telemetry: {otlp: collector}", "telemetry.otlp: expected an address"),
            ("telemetry: {sample_ratio: 2}", "telemetry.sample_ratio: expected a number from 0 to 1"),
            ("telemetry: {oltp: x}", "telemetry.oltp: unknown key"),
        ] {
            let problem = traces(text, &[]).err().unwrap();
            assert!(problem.contains(words) && problem.contains("orla.yaml:1:"), "{problem}");
        }
    }
}
