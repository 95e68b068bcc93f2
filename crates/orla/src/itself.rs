//! Entries of `mcpServers` that lead to this very server. No I/O.

use orla_providers::mcp::{Reach, ServerSettings};
use reqwest::Url;

use crate::config::{Config, Placed, Problem, Transport, is_loopback};

/// Leaves out the entries of `mcpServers` that lead to this server, which would list its own tools without end. For a
/// process that listens: to others, it is a server like any other.
pub(crate) fn leave_out(config: &mut Config) {
    let servers = std::mem::take(&mut config.servers);
    let is_own = |server: &Placed<ServerSettings>| match &server.value.reach {
        Reach::Http { url, .. } => listens_at(config, url),
        Reach::Process { .. } => false,
    };
    let (own, others): (Vec<_>, Vec<_>) = servers.into_iter().partition(is_own);
    config.servers = others;
    for server in own {
        let text =
            format!("mcpServers.{}: orla itself, at its own address; left out", server.value.name);
        let file = config.file.clone().unwrap_or_default();
        config.warnings.push(Problem::at(&file, server.at, text));
    }
}

fn listens_at(config: &Config, url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let plain = |host: &str| host.trim_matches(['[', ']']).to_ascii_lowercase();
    let [host, own] = [url.host_str().unwrap_or_default(), &config.host].map(plain);
    let is_everywhere = ["0.0.0.0", "::"].contains(&&*own);
    let is_named = host == "localhost" || own == "localhost";
    let is_here = host == own || is_loopback(&host) && (is_everywhere || is_named && is_loopback(&own));
    config.transport == Transport::Http && is_here && url.port_or_known_default() == Some(config.port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orla_document::Position;

    #[test]
    fn a_server_leaves_itself_out_by_its_own_address() {
        for (host, url, is_own) in [
            ("127.0.0.1", "http://127.0.0.1:9000/mcp", true),
            ("127.0.0.1", "http://localhost:9000/mcp", true),
            ("127.0.0.1", "http://[::1]:9000/mcp", false),
            ("127.0.0.1", "http://127.0.0.1:9001/mcp", false),
            ("127.0.0.1", "http://lab.example.com:9000/mcp", false),
            ("localhost", "http://[::1]:9000/", true),
            ("::1", "http://[::1]:9000/", true),
            ("::", "http://127.0.0.1:9000/", true),
            ("10.0.0.5", "http://127.0.0.1:9000/", false),
            ("10.0.0.5", "http://10.0.0.5:9000/", true),
        ] {
            for (transport, is_own) in [(Transport::Http, is_own), (Transport::Stdio, false)] {
                let reach = Reach::Http { url: url.to_owned(), headers: Default::default() };
                let value = ServerSettings::new("x", reach);
                let mut config = Config {
                    host: host.to_owned(),
                    port: 9000,
                    transport,
                    servers: vec![Placed { value, at: Position::START }],
                    ..Config::default()
                };
                leave_out(&mut config);
                assert_eq!(config.servers.is_empty(), is_own, "{host} {url}");
                assert_eq!(config.warnings.len(), usize::from(is_own), "{host} {url}");
            }
        }
    }
}
