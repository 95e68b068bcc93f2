//! The history of calls: what a server keeps, and where.

use std::sync::Arc;

use orla_history::{History, Options};
use orla_marketplace::{CapabilityMarketplace, Redactor};

use crate::Failure;
use crate::config::Config;

/// The fewest bytes of a value of the environment that is taken for a secret. A shorter one would hide words.
const MIN_SECRET: usize = 8;
/// Variables that configurations use for places and names.
const PLAIN: [&str; 10] =
    ["HOME", "PWD", "OLDPWD", "USER", "LOGNAME", "PATH", "HOSTNAME", "SHELL", "LANG", "TMPDIR"];

/// The history of a server; `None` if it keeps none. A file that is something else costs no call anything: then the history is
/// in memory, and the error is returned beside it.
///
/// # Errors
/// The system gives no thread.
pub(crate) fn of_server(
    market: &Arc<CapabilityMarketplace>,
    config: &Config,
) -> Result<(Option<History>, Option<orla_history::OpenError>), Failure> {
    if !config.history.enabled {
        return Ok((None, None));
    }
    let options = options(config);
    let error = match config.history_file() {
        Some(path) => match History::in_file(market, options.clone(), &path) {
            Ok(history) => return Ok((Some(history), None)),
            Err(error) => Some(error),
        },
        None => None,
    };
    let history = History::in_memory(market, options);
    let history = history.map_err(|err| Failure::failed(format!("history: {err}")))?;
    Ok((Some(history), error))
}

/// What is kept by this configuration.
pub(crate) fn options(config: &Config) -> Options {
    let own = &config.history;
    let mut options = Options::default();
    options.keep = own.keep;
    options.max_rows = config.history_rows();
    options.max_body_bytes = own.max_body_bytes;
    options.bodies = own.bodies;
    options.redact.clone_from(&own.redact);
    options.secrets = Arc::new(secrets(config));
    options
}

/// What the configuration knows as secrets besides its references to secrets, which the marketplace knows: tokens, and what it
/// takes from the environment.
fn secrets(config: &Config) -> Redactor {
    let tokens = config.auth_tokens.iter().map(|token| token.secret.clone());
    let variables = config.secret_variables();
    let values = variables.iter().filter(|name| !PLAIN.contains(&name.as_str()));
    let values = values.filter_map(|name| std::env::var(name).ok());
    let values = values.filter(|value| value.len() >= MIN_SECRET);
    Redactor::new(tokens.chain(values))
}
