//! `telemetry`: where traces and metrics are sent.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::Config;
use super::Lookup;
use super::forms::{HEADERS, Read, Scalar, text_schema};
use super::keys::{Key, key};

/// The keys of `telemetry`.
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

/// The address of a collector.
const COLLECTOR: Read<String> =
    Read(|reader, path, node| reader.url(path, node, "http://127.0.0.1:4318"), text_schema);

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
pub(super) fn keys() -> Vec<Key<Config>> {
    vec![
        key("otlp", COLLECTOR, |c: &mut Config| &mut c.telemetry.otlp,
            "base address of a collector that takes OTLP over HTTP; `/v1/traces` and `/v1/metrics` are appended. By default, that of `OTEL_EXPORTER_OTLP_ENDPOINT`").restart(|c| &mut c.telemetry.otlp),
        key("headers", HEADERS, |c: &mut Config| &mut c.telemetry.headers,
            "header fields for the collector").restart(|c| &mut c.telemetry.headers),
        key("sample_ratio", Ratio, |c: &mut Config| &mut c.telemetry.sample_ratio,
            "part of the traces that is sent, from 0 to 1, of those that begin here; the caller decides about its own").restart(|c| &mut c.telemetry.sample_ratio),
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

/// The telemetry to send and its targets, including the standard variables of OpenTelemetry.
#[derive(Clone, PartialEq)]
pub(crate) struct Telemetry {
    /// Where traces are sent.
    pub(crate) traces: Option<Target>,
    /// The part of the traces that begin here which is sent.
    pub(crate) sample_ratio: f64,
    /// Where metrics are sent.
    pub(crate) metrics: Option<Target>,
    /// How often.
    pub(crate) every: Duration,
    /// The attributes that describe this instance.
    pub(crate) attributes: Vec<(String, String)>,
}

/// Where a collector takes requests of one kind.
#[derive(Clone, PartialEq)]
pub(crate) struct Target {
    /// The whole address.
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    /// Whether requests are compressed.
    pub(crate) is_gzip: bool,
}

/// Variables by name, without those that are empty.
type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The default interval between two transmissions of metrics.
const EVERY: Duration = Duration::from_secs(60);

impl Config {
    /// Returns the telemetry to send and its targets. The configuration takes precedence over the
    /// environment.
    ///
    /// # Errors
    ///
    /// Returns an error if a variable requests an unsupported feature.
    pub(crate) fn telemetry(&self, env: Lookup<'_>) -> Result<Telemetry, String> {
        let of = |name: &str| {
            let value = env(name)?.into_string().ok()?;
            Some(value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        let mut sample_ratio = self.telemetry.sample_ratio;
        if self.is_default("telemetry") {
            let of_argument = || of("OTEL_TRACES_SAMPLER_ARG").and_then(|text| Ratio.parse(&text).ok());
            let of_name = match of("OTEL_TRACES_SAMPLER").as_deref() {
                Some("always_on" | "parentbased_always_on") => Some(1.0),
                Some("always_off" | "parentbased_always_off") => Some(0.0),
                _ => of_argument(),
            };
            sample_ratio = of_name.unwrap_or(sample_ratio);
        }
        let every = of("OTEL_METRIC_EXPORT_INTERVAL").and_then(|text| text.parse().ok());
        let every = every.filter(|millis| *millis > 0).map_or(EVERY, Duration::from_millis);
        let mut attributes = of("OTEL_RESOURCE_ATTRIBUTES").map(|text| pairs(&text)).unwrap_or_default();
        if let Some(name) = of("OTEL_SERVICE_NAME") {
            attributes.insert("service.name".to_owned(), name);
        }
        attributes.entry("service.name".to_owned()).or_insert_with(|| "orla".to_owned());
        attributes
            .entry("service.version".to_owned())
            .or_insert_with(|| env!("CARGO_PKG_VERSION").to_owned());
        let attributes = attributes.into_iter().collect();
        let (traces, metrics) = (self.target("traces", &of)?, self.target("metrics", &of)?);
        Ok(Telemetry { traces, sample_ratio, metrics, every, attributes })
    }

    /// Where a kind of data is sent: `traces` or `metrics`.
    fn target(&self, kind: &str, of: Variable<'_>) -> Result<Option<Target>, String> {
        let own = &self.telemetry;
        let upper = kind.to_ascii_uppercase();
        let of_kind = |name: &str| of(&format!("OTEL_EXPORTER_OTLP_{upper}_{name}"));
        let of_either = |name: &str| of_kind(name).or_else(|| of(&format!("OTEL_EXPORTER_OTLP_{name}")));
        let appended = |base: String| format!("{}/v1/{kind}", base.trim_end_matches('/'));
        let is = |name: &str, word: &str| of(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
        let is_off = is("OTEL_SDK_DISABLED", "true") || is(&format!("OTEL_{upper}_EXPORTER"), "none");
        let of_env = || of_kind("ENDPOINT").or_else(|| of("OTEL_EXPORTER_OTLP_ENDPOINT").map(appended));
        let url = match &own.otlp {
            Some(base) => Some(appended(base.clone())),
            None if is_off => None,
            None => of_env(),
        };
        let Some(url) = url else { return Ok(None) };
        if own.otlp.is_none()
            && of_either("PROTOCOL").is_some_and(|protocol| protocol != "http/protobuf")
        {
            return Err(format!(
                "{kind} are sent as http/protobuf alone: change OTEL_EXPORTER_OTLP_PROTOCOL"
            ));
        }
        let is_gzip = match of_either("COMPRESSION").as_deref() {
            None | Some("none") => false,
            Some("gzip") => true,
            Some(_) => {
                return Err(format!(
                    "{kind} are sent with gzip or uncompressed: change OTEL_EXPORTER_OTLP_COMPRESSION"
                ));
            }
        };
        let mut headers = of_either("HEADERS").map(|text| pairs(&text)).unwrap_or_default();
        headers.extend(own.headers.clone());
        Ok(Some(Target { url, headers: headers.into_iter().collect(), is_gzip }))
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

    fn telemetry(text: &str, env: &[(&str, &str)]) -> Result<Telemetry, String> {
        let config = Config::of(text).map_err(|problems| problems[0].to_string())?;
        config.telemetry(&|name| {
            env.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn the_configuration_comes_before_the_environment() {
        let env = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318/"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-a=1,x-b=a%20b"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_SERVICE_NAME", "mine"),
        ];
        let (traces, metrics) = (
            |telemetry: &Telemetry| telemetry.traces.clone().unwrap(),
            |telemetry: &Telemetry| telemetry.metrics.clone().unwrap(),
        );
        let off = telemetry("", &[]).unwrap();
        assert!(off.traces.is_none() && off.metrics.is_none());
        let of_env = telemetry("", &env).unwrap();
        assert_eq!(traces(&of_env).url, "http://127.0.0.1:4318/v1/traces");
        assert_eq!(metrics(&of_env).url, "http://127.0.0.1:4318/v1/metrics");
        let headers = [("x-a".to_owned(), "1".to_owned()), ("x-b".to_owned(), "a b".to_owned())];
        assert_eq!(metrics(&of_env).headers, headers);
        assert_eq!((of_env.sample_ratio, of_env.every), (0.25, EVERY));
        assert!(of_env.attributes.contains(&("service.name".to_owned(), "mine".to_owned())));
        let own = "telemetry: {otlp: 'http://c:1/base', headers: {x-a: '2'}, sample_ratio: 0}\n";
        let own = telemetry(own, &env).unwrap();
        assert_eq!((&*traces(&own).url, own.sample_ratio), ("http://c:1/base/v1/traces", 0.0));
        assert_eq!(metrics(&own).url, "http://c:1/base/v1/metrics");
        assert_eq!(traces(&own).headers[0].1, "2");
        let exact = [
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:2/x"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "500"),
        ];
        let exact = telemetry("", &exact).unwrap();
        assert_eq!((&*traces(&exact).url, exact.metrics.is_none()), ("http://c:2/x", true));
        assert_eq!(exact.every, Duration::from_millis(500));
    }

    #[test]
    fn unsupported_exporter_settings_are_reported() {
        let grpc =
            [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
        assert!(telemetry("", &grpc).err().unwrap().contains("http/protobuf"));
        let packed = |word| {
            let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1");
            telemetry("", &[endpoint, ("OTEL_EXPORTER_OTLP_COMPRESSION", word)])
        };
        assert!(packed("gzip").unwrap().traces.unwrap().is_gzip);
        assert!(!packed("none").unwrap().metrics.unwrap().is_gzip);
        assert!(packed("zstd").err().unwrap().contains("OTEL_EXPORTER_OTLP_COMPRESSION"));
        let off = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1"), ("OTEL_SDK_DISABLED", "true")];
        assert!(telemetry("", &off).unwrap().traces.is_none());
        let traces_alone =
            [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1"), ("OTEL_METRICS_EXPORTER", "none")];
        let traces_alone = telemetry("", &traces_alone).unwrap();
        assert!(traces_alone.traces.is_some() && traces_alone.metrics.is_none());
        for (text, words) in [
            (
                "telemetry: {otlp: collector}",
                "telemetry.otlp: expected an address such as http://127.0.0.1:4318; put",
            ),
            ("telemetry: {sample_ratio: 2}", "telemetry.sample_ratio: expected a number from 0 to 1"),
            ("telemetry: {oltp: x}", "telemetry.oltp: unknown key"),
        ] {
            let problem = telemetry(text, &[]).err().unwrap();
            assert!(problem.contains(words) && problem.contains("orla.yaml:1:"), "{problem}");
        }
    }
}
