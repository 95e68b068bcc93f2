//! A server behind a URL as an archive, which is locked like any other. `remote.json` contains its
//! address and the user's settings. No I/O.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::archive::{File, assemble};
use crate::bundle::{Setting, chosen, filled};
use crate::source::is_local_http;

/// Headers that affect how a request is parsed, or that MCP sets.
const OF_THE_PROTOCOL: [&str; 17] = [
    "accept",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The name of the document in the archive.
pub const DOCUMENT: &str = "remote.json";

/// A server behind a URL.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Remote {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The description.
    pub description: String,
    /// The operator, according to the registry.
    pub author: String,
    /// The endpoint.
    pub url: String,
    /// Headers of every request; `${user_config.KEY}` refers to a setting.
    pub headers: BTreeMap<String, String>,
    /// The user's settings, by key.
    pub settings: BTreeMap<String, RemoteSetting>,
}

/// A user setting.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteSetting {
    /// The title.
    pub title: String,
    /// The default value.
    pub default: Option<String>,
    /// Whether it is required.
    pub required: bool,
}

impl Remote {
    /// Parses the document.
    ///
    /// # Errors
    /// It is not such a document, or what it says cannot be used.
    pub fn read(text: &[u8]) -> Result<Self, String> {
        let remote: Self =
            serde_json::from_slice(text).map_err(|error| format!("{DOCUMENT}: {error}"))?;
        remote.check().map_err(|why| format!("{DOCUMENT}: {why}"))?;
        Ok(remote)
    }

    /// Checks whether requests can be made from it.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        let is_plain = |text: &str| !text.chars().any(|ch| ch.is_control() || ch.is_whitespace());
        if !self.url.starts_with("https://") && !is_local_http(&self.url) {
            return Err(format!("{} is not behind https:// (or http:// on this machine)", self.url));
        }
        if !is_plain(&self.url) || self.url.contains(['{', '}']) {
            return Err(format!("{} has variables or spaces, which are not supported", self.url));
        }
        let host = self.url.split_once("://").map_or("", |(_, rest)| rest);
        let host = host.split(['/', '?', '#']).next().unwrap_or_default();
        // URL parsers, and people, interpret text before these characters differently.
        if host.contains(['@', '\\', '%']) {
            return Err(format!("{} has a user or a backslash before its host", self.url));
        }
        for (name, value) in &self.headers {
            let is_name = !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
            if !is_name || value.chars().any(char::is_control) {
                return Err(format!("{name:?} is not a header that can be sent"));
            }
            if OF_THE_PROTOCOL.contains(&name.to_ascii_lowercase().as_str()) {
                return Err(format!(
                    "the header {name} belongs to the protocol; a server cannot set it"
                ));
            }
        }
        let is_key = |key: &String| {
            !key.is_empty()
                && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        };
        match self.settings.keys().find(|key| !is_key(key)) {
            Some(key) => Err(format!("{key:?} is not a key: a key has letters, digits, `_` and `-`")),
            None => Ok(()),
        }
    }

    /// Returns the archive, which is equal for equal servers.
    ///
    /// # Errors
    /// It is too large.
    pub fn archive(&self) -> Result<Vec<u8>, String> {
        let content = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        let file = File { name: DOCUMENT.to_owned(), is_executable: false, content };
        assemble(&[file]).map_err(|error| error.to_string())
    }

    /// Returns the settings as those of a bundle.
    pub fn settings(&self) -> BTreeMap<String, Setting> {
        let settings = self.settings.iter().map(|(key, setting)| {
            let default = setting.default.clone().map(|value| vec![value]);
            let title = setting.title.clone();
            let (is_required, is_secret, is_multiple) = (setting.required, true, false);
            (key.clone(), Setting { title, default, is_required, is_secret, is_multiple })
        });
        settings.collect()
    }

    /// Returns the constant headers, as lines for the user.
    pub fn fixed_headers(&self) -> Vec<String> {
        let fixed = self.headers.iter().filter(|(_, text)| !text.contains("${"));
        fixed.map(|(name, text)| format!("header {name}: {text}")).collect()
    }

    /// Returns the headers with the values that `set` gives for keys. A header whose setting has no
    /// value is left out.
    ///
    /// # Errors
    /// The keys of required settings without a value.
    pub fn filled(
        &self,
        set: impl Fn(&str) -> Option<String>,
    ) -> Result<BTreeMap<String, String>, Vec<String>> {
        let set = |key: &str| set(key).map(|value| vec![value]);
        let values = chosen(&self.settings(), set, str::to_owned)?;
        let headers = self.headers.iter();
        Ok(headers.filter_map(|(name, text)| Some((name.clone(), filled(text, &values)?))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_the_values_of_a_person() {
        let setting = |required| RemoteSetting { title: String::new(), default: None, required };
        let remote = Remote {
            name: "a.b/c".to_owned(),
            version: "1.0.0".to_owned(),
            description: String::new(),
            author: "a.b".to_owned(),
            url: "https://a.example/mcp".to_owned(),
            headers: [
                ("Authorization", "Bearer ${user_config.token}"),
                ("X-Region", "${user_config.region}"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
            settings: [("token".to_owned(), setting(true)), ("region".to_owned(), setting(false))]
                .into(),
        };
        let bytes = remote.archive().unwrap();
        let archive = crate::archive::Archive::read(&bytes).unwrap();
        assert_eq!(Remote::read(&archive.file(DOCUMENT, 1000).unwrap().unwrap()).unwrap(), remote);
        let digest = "da2e1e6de14634c97881e91528204319bc42a4dba6c5a18a90b73b2274c0720c";
        assert_eq!(crate::sha256(&bytes), digest, "a lock of before names this archive");
        assert_eq!(remote.filled(|_| None).unwrap_err(), ["token"]);
        let headers = remote.filled(|key| (key == "token").then(|| "s3".to_owned())).unwrap();
        assert_eq!(headers, [("Authorization".to_owned(), "Bearer s3".to_owned())].into());
        for url in [
            "http://a.example",
            "https://a.example/{x}",
            "https://a.example/ x",
            "file:///x",
            "https://a.example@evil.example/mcp",
            "https://a.example:443\\@evil.example/mcp",
            "https://evil.example\\a.example/mcp",
        ] {
            assert!(Remote { url: url.to_owned(), ..remote.clone() }.check().is_err(), "{url}");
        }
        for (name, is_free) in
            [("Host", false), ("content-length", false), ("MCP-Session-Id", false), ("X-Tenant", true)]
        {
            let headers = [(name.to_owned(), "t1".to_owned())].into();
            let remote = Remote { headers, ..remote.clone() };
            assert_eq!(remote.check().is_ok(), is_free, "{name}");
            assert_eq!(remote.fixed_headers(), [format!("header {name}: t1")]);
        }
        assert!(remote.fixed_headers().is_empty());
    }
}
