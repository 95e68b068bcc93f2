//! Parses the `server_url` of a capability (RTFS capability system §3.3). Pure.

use std::collections::BTreeMap;

use orla_marketplace::id::short_hash;

use super::settings::{Reach, ServerSettings};

/// The meaning of a `server_url`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Address {
    /// An entry of `mcpServers`.
    Entry(String),
    /// A server that only this address describes.
    Own(Box<ServerSettings>),
}

/// Checks whether a `server_url` is valid.
///
/// # Errors
/// What is wrong with it. The address itself is not repeated, as it may hold secrets.
pub fn check(server_url: &str) -> Result<(), String> {
    parse(server_url).map(drop)
}

/// Checks whether the program of a `server_url`, if it names one, can be started.
///
/// # Errors
/// Why the program cannot be started. The arguments are not repeated, as they may hold secrets.
pub fn check_program(server_url: &str) -> Result<(), String> {
    match parse(server_url)? {
        Address::Own(settings) => super::servers::check_program(&settings),
        Address::Entry(_) => Ok(()),
    }
}

/// Parses a `server_url`: `mcp:NAME`, `stdio:COMMAND ARGS…` or `http(s)://…`.
///
/// # Errors
/// What is wrong with it. The address itself is not repeated, as it may hold secrets.
pub(super) fn parse(server_url: &str) -> Result<Address, String> {
    if let Some(name) = server_url.strip_prefix("mcp:") {
        return Ok(Address::Entry(name.to_owned()));
    }
    if let Some(line) = server_url.strip_prefix("stdio:") {
        let words = shlex::split(line).ok_or("its command line has a quote that does not end")?;
        let mut words = words.into_iter();
        let command = words.next().filter(|command| !command.is_empty()).ok_or("it names no command")?;
        let shown = command.rsplit('/').next().unwrap_or_default().to_owned();
        let reach = Reach::Process {
            command,
            args: words.collect(),
            env: BTreeMap::new(),
            pass_env: Vec::new(),
            cwd: None,
        };
        return Ok(Address::Own(ServerSettings::new(named(&shown, server_url), reach).into()));
    }
    if server_url.starts_with("http://") || server_url.starts_with("https://") {
        let url =
            reqwest::Url::parse(server_url).map_err(|err| format!("its address is invalid: {err}"))?;
        let shown = url.host_str().unwrap_or_default().to_owned();
        let reach = Reach::Http { url: server_url.to_owned(), headers: BTreeMap::new() };
        return Ok(Address::Own(ServerSettings::new(named(&shown, server_url), reach).into()));
    }
    Err("its server_url is neither http(s)://…, stdio:COMMAND ARGS… nor mcp:NAME".to_owned())
}

/// Returns a name that distinguishes addresses and shows neither arguments nor paths.
fn named(shown: &str, server_url: &str) -> String {
    format!("{shown}-{:08x}", short_hash(server_url.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let process = |url: &str| match parse(url) {
            Ok(Address::Own(own)) => match own.reach {
                Reach::Process { command, args, .. } => format!("{command} {args:?}"),
                other @ Reach::Http { .. } => format!("{other:?}"),
            },
            other => format!("{other:?}"),
        };
        assert_eq!(process("stdio:npx -y 'a b' c\\ d"), r#"npx ["-y", "a b", "c d"]"#);
        assert_eq!(process("stdio: ./run"), "./run []");
        assert_eq!(parse("mcp:x"), Ok(Address::Entry("x".into())));
        let Ok(Address::Own(own)) = parse("https://example.com/mcp?key=secret") else { panic!() };
        assert!(own.name.starts_with("example.com-") && !format!("{own:?}").contains("secret"));
        for (url, problem) in [
            ("stdio:", "it names no command"),
            ("stdio:''", "it names no command"),
            ("stdio:a 'b", "its command line has a quote that does not end"),
            ("http://", "its address is invalid: empty host"),
            ("ftp://x", "its server_url is neither http(s)://…, stdio:COMMAND ARGS… nor mcp:NAME"),
        ] {
            assert_eq!(parse(url), Err(problem.to_owned()), "{url}");
        }
    }

    #[test]
    fn two_addresses_have_two_names() {
        let name = |url: &str| match parse(url) {
            Ok(Address::Own(own)) => own.name,
            other => panic!("{other:?}"),
        };
        assert_ne!(name("stdio:npx a"), name("stdio:npx b"));
        assert_eq!(name("stdio:npx a"), name("stdio:npx a"));
    }
}
