//! Posts to addresses that a third party names: only to public ones, unless private ones are allowed.
//!
//! The addresses of a name are known only where the name is resolved. A proxy resolves names itself, so
//! posts to public addresses use no proxy.

use bytes::Bytes;
use orla_confine::Reach;
use reqwest::Url;
use reqwest::header::HeaderMap;

use super::client::{Clients, HttpLimits};
use super::transport::{Stage, explain};

/// Posts to addresses that the configuration does not name.
pub struct WebHooks {
    clients: Clients,
    allow_private: bool,
}

impl WebHooks {
    /// Creates a poster to public addresses, and to private ones (this machine, local networks) if that
    /// is allowed.
    pub fn new(allow_private: bool) -> Self {
        Self { clients: Clients::new(HttpLimits::default()), allow_private }
    }

    /// Checks whether posting to this address is allowed. A name is checked again when it is resolved.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, url: &str) -> Result<Url, String> {
        let url = Url::parse(url).map_err(|err| format!("invalid address: {err}"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
            return Err("expected http://… or https://…".to_owned());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("credentials do not belong into an address".to_owned());
        }
        let is_own =
            url.host_str().is_some_and(|host| host == "localhost" || host.ends_with(".localhost"));
        if !self.allow_private && (is_own || self.clients.names_beyond(Reach::Public, &url)) {
            return Err("it leads to a private address".to_owned());
        }
        Ok(url)
    }

    /// Posts once. No redirect is followed.
    ///
    /// # Errors
    /// Why the post failed, without the address.
    pub async fn post(&self, url: &str, headers: HeaderMap, body: Bytes) -> Result<(), String> {
        let url = self.check(url)?;
        let host = url.host_str().unwrap_or_default().to_owned();
        let client = match self.allow_private {
            true => self.clients.configured(),
            false => self.clients.guarded(Reach::Public),
        }?;
        let answer = client.post(url).headers(headers).body(body).send().await;
        let answer = answer.map_err(|err| explain(&host, &err, Stage::Asking).0)?;
        let status = answer.status();
        match status.is_success() {
            true => Ok(()),
            false => Err(format!("{host} answers with status {}", status.as_u16())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_taken_where_that_is_allowed() {
        for (url, is_public, is_private) in [
            ("https://example.com/hook", true, true),
            ("http://127.0.0.1:1/", false, true),
            ("http://localhost:1/", false, true),
            ("http://[::1]/", false, true),
            ("http://169.254.169.254/latest", false, true),
            ("http://2130706433/", false, true),
            ("ftp://example.com/", false, false),
            ("https://user:word@example.com/", false, false),
            ("nothing", false, false),
        ] {
            assert_eq!(WebHooks::new(false).check(url).is_ok(), is_public, "{url}");
            assert_eq!(WebHooks::new(true).check(url).is_ok(), is_private, "{url}");
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_to_a_private_address_is_refused_when_it_is_resolved() {
        let hooks = WebHooks {
            clients: Clients::with_classes(HttpLimits::default(), |_| Reach::Private),
            allow_private: false,
        };
        let error =
            hooks.post("http://example.localhost.invalid:1/", HeaderMap::new(), Bytes::new()).await;
        assert!(error.is_err());
    }
}
