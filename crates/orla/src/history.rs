//! The history of calls on a server, and where it is stored.

use std::sync::Arc;

use orla_history::{History, OpenError, Options};
use orla_marketplace::{CapabilityMarketplace, Redactor};

use crate::Failure;
use crate::config::{Config, names_secret};

/// The fewest bytes of a value of the environment that is taken for a secret. A shorter one would hide words.
const MIN_SECRET: usize = 8;
/// Variables that configurations use for places and names.
const PLAIN: [&str; 10] =
    ["HOME", "PWD", "OLDPWD", "USER", "LOGNAME", "PATH", "HOSTNAME", "SHELL", "LANG", "TMPDIR"];

/// The followers of a server's calls.
pub(crate) struct Followed {
    /// The stored calls; `None` if no calls are kept.
    pub(crate) history: Option<History>,
    /// Follows calls, whether they are kept or not; `None` if neither the history nor traces need it.
    pub(crate) calls: Option<History>,
    /// Why the file of the history cannot be used. The history is then in memory, since it must not
    /// affect any call.
    pub(crate) unkept: Option<OpenError>,
}

/// Follows the calls of a server, for its history and for traces.
///
/// # Errors
///
/// Returns an error if the system provides no thread.
pub(crate) fn of_server(
    market: &Arc<CapabilityMarketplace>,
    config: &Config,
    is_traced: bool,
) -> Result<Followed, Failure> {
    let failed = |err: std::io::Error| Failure::failed(format!("the history cannot be started: {err}"));
    if !config.history.enabled {
        let calls = is_traced
            .then(|| History::of_nothing(market, options(config, false)))
            .transpose()
            .map_err(failed)?;
        return Ok(Followed { history: None, calls, unkept: None });
    }
    let mut unkept = None;
    let in_file = config.history_file().and_then(|path| {
        let options = options(config, true);
        History::in_file(market, options, &path).map_err(|error| unkept = Some(error)).ok()
    });
    let history = match in_file {
        Some(history) => history,
        None => History::in_memory(market, options(config, false)).map_err(failed)?,
    };
    Ok(Followed { history: Some(history.clone()), calls: Some(history), unkept })
}

/// Returns the options of the history for this configuration, in a file or in memory.
pub(crate) fn options(config: &Config, is_in_file: bool) -> Options {
    let own = &config.history;
    let mut options = Options::default();
    options.enabled = own.enabled;
    options.keep = own.keep;
    options.max_rows = config.history_rows(is_in_file);
    options.max_body_bytes = own.max_body_bytes;
    options.bodies = own.bodies;
    options.redact.clone_from(&own.redact);
    options.secrets = Arc::new(secrets(config));
    options
}

/// Returns the secrets of the configuration that the marketplace does not know from references: tokens,
/// literal credentials, and values taken from the environment.
fn secrets(config: &Config) -> Redactor {
    let tokens = config.auth_tokens.iter().map(|token| token.secret.clone());
    let variables = config.secret_variables();
    let values = variables.iter().filter(|name| !PLAIN.contains(&name.as_str()));
    let values = values.filter_map(|name| Some((name, std::env::var(name).ok()?)));
    let values = values.filter(|(name, value)| value.len() >= MIN_SECRET || names_secret(name));
    let values = values.map(|(_, value)| value);
    let literals = config.literal_secrets.iter().cloned();
    let headers = config.telemetry.headers.values().filter(|value| value.len() >= MIN_SECRET).cloned();
    Redactor::new(tokens.chain(values).chain(headers).chain(literals))
}
