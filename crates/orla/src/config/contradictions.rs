//! Settings that contradict each other though each is valid, and addresses that no client could reach.

use orla_cluster::Buffering;
use orla_identity::BearerToken;
use orla_server::TlsSettings;

use super::{Config, Problem, StateKind, Transport};

/// Characters that a token has at least where other machines can reach the server.
const MIN_TOKEN: usize = 16;

impl Config {
    /// Returns the contradictions between keys that are valid individually.
    pub(crate) fn contradictions(&self) -> Vec<Problem> {
        let mut problems: Vec<Problem> = self.unprotected_host().into_iter().collect();
        problems.extend(self.contradictions_of_keys());
        problems
    }

    /// Returns the problem that other machines can reach the server and callers need no credential.
    fn unprotected_host(&self) -> Option<Problem> {
        let is_reachable = self.transport == Transport::Http
            && !is_loopback(&self.host)
            && !is_broken_address(&self.host);
        (is_reachable && !self.is_authenticated() && !self.allow_unauthenticated).then(|| {
            let text = format!(
                "host: {} can be reached from other machines: make a token with `orla token create`, or set auth_tokens or auth.oauth, or allow_unauthenticated: true if that is meant",
                self.host
            );
            self.problem("host", text)
        })
    }

    /// Returns the contradictions that no credential resolves.
    pub(super) fn contradictions_of_keys(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if is_broken_address(&self.host) {
            let text = format!("host: expected an address or a name, got {}", self.host);
            problems.push(self.problem("host", text));
        }
        let is_short = |token: &BearerToken| token.secret.len() < MIN_TOKEN;
        if self.transport == Transport::Http
            && !is_loopback(&self.host)
            && let Some(at) = self.auth_tokens.iter().position(is_short)
        {
            let which = self.auth_tokens[at].name.as_ref();
            let which = which.map_or_else(|| format!("[{at}]"), |name| format!(".{name}"));
            let text = format!(
                "auth_tokens{which}: a token of fewer than {MIN_TOKEN} characters is not enough where other machines can reach {}; use a longer one, such as the output of `openssl rand -hex 32`",
                self.host
            );
            problems.push(self.problem("auth_tokens", text));
        }
        if self.tls.cert.as_os_str().is_empty() != self.tls.key.as_os_str().is_empty()
            || self.tls().is_none() && self.tls != TlsSettings::default()
        {
            let text = "auth.tls: needs both cert and key, the files of the server's certificate";
            problems.push(self.problem("auth", text.to_owned()));
        }
        if self.capsules.backoff_min > self.capsules.backoff_max {
            problems.push(
                self.problem(
                    "capsules",
                    "capsules: backoff_min_ms is more than backoff_max_ms".to_owned(),
                ),
            );
        }
        if self.agent.max_cost.is_some() && self.agent.price().is_none() {
            let text = "agent.max_cost: needs input_price and output_price, those of a million tokens"
                .to_owned();
            problems.push(self.problem("agent", text));
        }
        if self.cluster.as_ref().is_some_and(|cluster| cluster.buffer == Buffering::Local)
            && self.state == StateKind::Memory
        {
            let text =
                "cluster.buffer: `local` needs a state that lasts, and `state: memory` keeps nothing";
            problems.push(self.problem("cluster", text.to_owned()));
        }
        if self.governance.audit.as_os_str().is_empty() {
            let key = self.governance.audit_key.as_os_str();
            let alone =
                [("audit_key", !key.is_empty()), ("audit_heads", self.governance.audit_heads.is_some())];
            for (key, _) in alone.into_iter().filter(|(_, is_set)| *is_set) {
                problems.push(self.problem(key, format!("{key}: there is no audit log; set `audit`")));
            }
        }
        problems
    }

    /// Returns the problems of addresses that no client could reach.
    pub(super) fn misread_addresses(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for entry in self.allowed_origins.iter().filter(|entry| !orla_server::is_origin(entry)) {
            let text = format!(
                "allowed_origins: expected an origin such as https://app.example.com, got {entry:?}"
            );
            problems.push(self.problem("allowed_origins", text));
        }
        let url = &*self.a2a.options.url;
        let is_address = ["http://", "https://"].iter().any(|scheme| {
            url.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
        });
        if !url.is_empty() && !is_address {
            let text =
                format!("a2a.url: expected an address such as https://orla.example.com, got {url:?}");
            problems.push(self.problem("a2a", text));
        }
        problems
    }
}

/// Returns whether only this machine can reach the address.
pub(crate) fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    address.eq_ignore_ascii_case("localhost")
        || address.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Returns whether it looks like an address but is not a valid one.
fn is_broken_address(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let looks_like_one =
        address.contains(':') || address.chars().all(|c| c.is_ascii_digit() || c == '.');
    looks_like_one && address.parse::<std::net::IpAddr>().is_err()
}
