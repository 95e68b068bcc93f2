//! Turns a failure of the connection into an error for the caller.

use std::error::Error;
use std::io;

use orla_marketplace::{BoxError, NotSent, RuntimeError};
use orla_oauth::{UNKNOWN_AUTHORITY, root_cause};

use super::client::LookupError;

/// The stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No answer had begun.
    Asking,
    /// This many bytes of its body had arrived.
    Reading(usize),
}

/// Returns the error for a failed request to `host`.
pub(crate) fn failure(name: &str, host: &str, err: reqwest::Error, stage: Stage) -> RuntimeError {
    let (problem, passing) = explain(host, &err, stage);
    if passing {
        let reason = format!("{problem}; trying again may help");
        // Addresses may hold secrets.
        let is_sent = stage != Stage::Asking || !err.is_connect();
        let cause = Box::new(err.without_url());
        let source: BoxError = if is_sent { cause } else { Box::new(NotSent(cause)) };
        return RuntimeError::Unavailable { id: name.to_owned(), reason, source: Some(source) };
    }
    let message = format!("{name} failed: {problem}; trying again will not help");
    RuntimeError::Failed { id: name.to_owned(), message, outcome: None }
}

/// Explains the failure, and whether it may be temporary.
pub(super) fn explain(host: &str, err: &reqwest::Error, stage: Stage) -> (String, bool) {
    if let Some(lookup) = cause::<LookupError>(err) {
        return match lookup {
            LookupError::Unknown => (format!("no address is known for {host}"), true),
            LookupError::Private => (private(host), false),
        };
    }
    if let Some(tls) = cause::<rustls::Error>(err) {
        let is_certificate =
            matches!(tls, rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented);
        let message = tls.to_string();
        let why = match message.strip_prefix("invalid peer certificate: ").unwrap_or(&message) {
            "UnknownIssuer" => format!("UnknownIssuer ({UNKNOWN_AUTHORITY})"),
            why => why.to_owned(),
        };
        return match is_certificate {
            true => (format!("the TLS certificate of {host} is not trusted: {why}"), false),
            false => (format!("TLS with {host} failed: {tls}"), false),
        };
    }
    let io = io_kind(err);
    if let Stage::Reading(bytes) = stage {
        return match err.is_decode() && io != Some(io::ErrorKind::UnexpectedEof) && !is_cut_off(err) {
            true => (format!("{host} answers with content that cannot be decompressed"), false),
            false => (format!("the answer of {host} ended early, after {bytes} bytes"), true),
        };
    }
    if err.is_connect() {
        return match io {
            _ if err.is_timeout() => (format!("{host} does not accept the connection in time"), true),
            Some(io::ErrorKind::ConnectionRefused) => (format!("{host} refuses the connection"), true),
            Some(io::ErrorKind::TimedOut) => (format!("{host} does not answer"), true),
            Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
                (format!("{host} closes the connection at once"), true)
            }
            _ => (format!("{host} cannot be reached: {}", root_cause(err)), true),
        };
    }
    match cause::<hyper::Error>(err) {
        Some(hyper) if hyper.is_parse_too_large() => {
            (format!("{host} answers with more headers than are read"), false)
        }
        Some(hyper) if hyper.is_parse() => {
            (format!("{host} answers with something else than HTTP"), false)
        }
        _ if is_cut_off(err) => (format!("{host} closed the connection before it answered"), true),
        _ => (format!("the exchange with {host} failed: {}", root_cause(err)), true),
    }
}

/// Returns the text for a redirect to an address of a smaller reach.
pub(super) fn private(host: &str) -> String {
    format!(
        "a redirect leads to {host}, which has a more private address than the server that sent it \
         (allow_private_redirects would permit it)"
    )
}

fn is_cut_off(err: &reqwest::Error) -> bool {
    let closed = cause::<hyper::Error>(err)
        .is_some_and(|hyper| hyper.is_incomplete_message() || hyper.is_closed() || hyper.is_canceled());
    closed
        || matches!(
            io_kind(err),
            Some(
                io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::BrokenPipe
            )
        )
}

/// Returns the kind of the innermost I/O error. The outer ones often have none.
fn io_kind(err: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let outer = cause::<io::Error>(err)?;
    let inside = outer.get_ref().and_then(|inside| io_kind(inside));
    inside.or_else(|| outer.source().and_then(io_kind)).or(Some(outer.kind()))
}

/// Returns the first cause of a type, also inside of I/O errors.
fn cause<'a, T: Error + 'static>(err: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut at = Some(err);
    while let Some(err) = at {
        if let Some(found) = err.downcast_ref() {
            return Some(found);
        }
        let inside = err.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(found) = inside.and_then(|inside| cause(inside)) {
            return Some(found);
        }
        at = err.source();
    }
    None
}
