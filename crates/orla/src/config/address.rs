//! The address of the server that a configuration is of.

use super::Config;

impl Config {
    /// Returns the local address of the server.
    pub(crate) fn own_address(&self) -> String {
        let scheme = if self.tls().is_some() { "https" } else { "http" };
        format!("{scheme}://{}", authority(&self.host, self.port))
    }

    /// `--url` with that address, for a person to write.
    pub(crate) fn own_url(&self) -> String {
        match self.port {
            0 => "--url http://HOST:PORT".to_owned(),
            _ => format!("--url {}", self.own_address()),
        }
    }
}

/// `HOST:PORT`, with brackets around an IPv6 address; an address for listening is reached at loopback.
fn authority(host: &str, port: u16) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host {
        "0.0.0.0" => format!("127.0.0.1:{port}"),
        "::" => format!("[::1]:{port}"),
        _ if host.contains(':') => format!("[{host}]:{port}"),
        _ => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::authority;

    #[test]
    fn the_address_of_the_configuration_can_be_reached() {
        let cases = [
            ("127.0.0.1", "127.0.0.1:80"),
            ("0.0.0.0", "127.0.0.1:80"),
            ("::", "[::1]:80"),
            ("[::1]", "[::1]:80"),
            ("localhost", "localhost:80"),
        ];
        for (host, expected) in cases {
            assert_eq!(authority(host, 80), expected);
        }
    }
}
