//! One word of a declaration's permissions.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// One permission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// `fs:read:PATH`: a file, or everything below a directory.
    Read(String),
    /// `fs:write:PATH`: includes reading.
    Write(String),
    /// `net`: the whole network.
    Net,
    /// `net:loopback`: TCP to the loopback addresses of the host, any port.
    Loopback,
    /// `net:HOST` or `net:HOST:PORT`.
    Host {
        /// A name or an address, in lower case and without brackets.
        name: String,
        /// The port; any if absent.
        port: Option<u16>,
    },
    /// `exec`: any program that can be read.
    ExecAny,
    /// `exec:FILE`: a path, or a name on `PATH`.
    Exec(String),
    /// `unix:PATH`: a UNIX socket.
    Unix(String),
    /// `env:NAME`: a variable of the server's environment, as in `pass_env`.
    Env(String),
    /// `preset:NAME`: what programs of a kind usually need.
    Preset(Preset),
    /// A word of another kind, which only policies use.
    Other,
}

/// A group of permissions under one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preset {
    /// Programs for Node.js.
    Node,
    /// Programs in Python.
    Python,
    /// `npx`, which downloads what it runs.
    Npx,
    /// `uvx`, which downloads what it runs.
    Uvx,
}

/// The kinds of words that confine, and the form of each.
const KINDS: [(&str, &str); 6] = [
    ("fs", "fs:read:PATH or fs:write:PATH"),
    ("net", "net, net:HOST, net:HOST:PORT or net:loopback"),
    ("exec", "exec:FILE"),
    ("unix", "unix:PATH"),
    ("env", "env:NAME"),
    ("preset", "preset:node, preset:python, preset:npx or preset:uvx"),
];

impl Preset {
    const ALL: [(&'static str, Self); 4] =
        [("node", Self::Node), ("python", Self::Python), ("npx", Self::Npx), ("uvx", Self::Uvx)];

    /// Returns the words that it stands for.
    pub(crate) fn words(self) -> &'static [&'static str] {
        match self {
            Self::Node => &["env:NODE_PATH", "env:NODE_ENV"],
            Self::Python => &["env:PYTHONPATH", "env:VIRTUAL_ENV"],
            Self::Npx => &["net", "env:NODE_PATH", "env:npm_config_*"],
            Self::Uvx => &["net", "env:UV_*", "env:PYTHONPATH"],
        }
    }

    /// Returns the directories in which its programs are kept.
    pub(crate) fn caches(self) -> &'static [Cache] {
        match self {
            Self::Node | Self::Python => &[],
            Self::Npx => {
                &[Cache { path: "~/.npm", variables: &[("npm_config_cache", "")], is_required: true }]
            }
            Self::Uvx => &[
                Cache { path: "~/.cache/uv", variables: &[("UV_CACHE_DIR", "")], is_required: true },
                Cache {
                    path: "~/.local/share/uv",
                    variables: &[("UV_TOOL_DIR", "tools"), ("UV_PYTHON_INSTALL_DIR", "python")],
                    is_required: false,
                },
            ],
        }
    }
}

/// A directory of programs that a launcher such as `npx` downloads. The programs may read it, change it,
/// and run its files.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) path: &'static str,
    /// Variables that name the directory or a subdirectory, because the program has another `HOME`.
    pub(crate) variables: &'static [(&'static str, &'static str)],
    /// Whether the launcher cannot work without it.
    pub(crate) is_required: bool,
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(_, one)| one == self).map_or("", |(name, _)| name))
    }
}

/// Returns whether a word confines, or is a misspelling of one that does. Only policies use words of
/// other kinds.
pub fn confines(word: &str) -> bool {
    word.parse() != Ok(Word::Other)
}

/// Returns the forms of the words that confine, for messages.
pub fn forms() -> String {
    KINDS.map(|(_, form)| form).join(", ")
}

/// The keys of a declaration that confine.
const KEYS: [&str; 3] = ["permissions", "limits", "sandbox_fallback"];

/// Returns the confining key that an unknown key probably misspells: it differs by its case, its
/// separators, or one edit, and a long one by two.
pub fn misspelt_key(key: &str) -> Option<&'static str> {
    let folded = |key: &str| key.to_ascii_lowercase().replace(['-', '_', ' '], "");
    let key = folded(key);
    KEYS.into_iter().find(|known| {
        let most = if known.len() < 8 { 1 } else { 2 };
        distance(&key, &folded(known)) <= most
    })
}

/// Checks one word.
///
/// # Errors
/// It is misspelt, or no word. The sentence says what is expected instead.
pub fn check(word: &str) -> Result<(), String> {
    if !word.starts_with(char::is_alphabetic) {
        return Err(format!("{word:?} is not a permission; there are {}", forms()));
    }
    word.parse::<Word>().map(drop)
}

/// Returns the same word, with a relative path made absolute below `base`.
pub fn placed(word: &str, base: &Path) -> String {
    let place = |path: &str| match path.starts_with(['/', '~']) || path.starts_with("${") {
        true => path.to_owned(),
        false => base.join(path).to_string_lossy().into_owned(),
    };
    match word.parse() {
        Ok(Word::Read(path)) => Word::Read(place(&path)).to_string(),
        Ok(Word::Write(path)) => Word::Write(place(&path)).to_string(),
        Ok(Word::Unix(path)) => Word::Unix(place(&path)).to_string(),
        Ok(Word::Exec(path)) if path.contains('/') => Word::Exec(place(&path)).to_string(),
        _ => word.to_owned(),
    }
}

impl Word {
    /// Returns whether this permission includes the other: the whole network includes a host, writing
    /// includes reading, and a directory includes its content. Relative paths may have different bases,
    /// so only equal ones include each other.
    pub fn covers(&self, other: &Self) -> bool {
        let below = |directory: &str, path: &str| {
            let is_anchored =
                directory.starts_with(['/', '~']) && !path.split('/').any(|part| part == "..");
            let rest = path.strip_prefix(directory.trim_end_matches('/'));
            is_anchored && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match (self, other) {
            (Self::Other, Self::Other) => false,
            _ if self == other => true,
            (Self::Net, Self::Host { .. } | Self::Loopback) => true,
            (Self::Host { name, port: None }, Self::Host { name: other, .. }) => name == other,
            (Self::Read(directory), Self::Read(path))
            | (Self::Write(directory), Self::Read(path) | Self::Write(path)) => below(directory, path),
            (Self::ExecAny, Self::Exec(_)) => true,
            _ => false,
        }
    }
}

impl FromStr for Word {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.chars().any(char::is_control) {
            return Err(format!("{}: a permission has no control characters", text.escape_debug()));
        }
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (text, None),
        };
        let Some((_, form)) = KINDS.iter().find(|(known, _)| *known == kind) else {
            return match misspelt(kind) {
                Some(known) => Err(format!(
                    "{text}: unknown permission, did you mean {}?",
                    corrected(text, kind, known)
                )),
                None => Ok(Self::Other),
            };
        };
        let wrong = || format!("{text}: expected {form}");
        if text.contains('\0') {
            return Err(wrong());
        }
        let rest = match rest {
            None if kind == "net" => return Ok(Self::Net),
            None if kind == "exec" => return Ok(Self::ExecAny),
            None | Some("") => return Err(wrong()),
            Some(rest) => rest,
        };
        match kind {
            "fs" => {
                let (access, path) = rest.split_once(':').unwrap_or((rest, ""));
                match access {
                    "read" | "write" if path.is_empty() => {
                        Err(format!("{text}: expected a path after fs:{access}:"))
                    }
                    "read" => Ok(Self::Read(path.to_owned())),
                    "write" => Ok(Self::Write(path.to_owned())),
                    _ => Err(format!("{}{}", wrong(), suggestion(access, &["read", "write"]))),
                }
            }
            "net" => host(rest).ok_or_else(|| match rest.split_once(':') {
                Some((name, port))
                    if name.eq_ignore_ascii_case("loopback")
                        && port.parse::<std::num::NonZeroU16>().is_ok() =>
                {
                    format!("{}, did you mean net:127.0.0.1:{port}?", wrong())
                }
                _ => wrong(),
            }),
            "exec" => Ok(Self::Exec(rest.to_owned())),
            "unix" => Ok(Self::Unix(rest.to_owned())),
            "env" if rest.contains(['=', ',']) || rest.contains(char::is_whitespace) => Err(wrong()),
            "env" => Ok(Self::Env(rest.to_owned())),
            _ => Preset::ALL
                .iter()
                .find(|(name, _)| *name == rest)
                .map(|(_, preset)| Self::Preset(*preset))
                .ok_or_else(|| {
                    format!("{}{}", wrong(), suggestion(rest, &Preset::ALL.map(|(name, _)| name)))
                }),
        }
    }
}

/// Parses `HOST`, `HOST:PORT`, `[ADDRESS]:PORT`, an IPv6 address or `loopback`, which has no single port.
fn host(text: &str) -> Option<Word> {
    let (name, port) = if let Some(rest) = text.strip_prefix('[') {
        let (name, rest) = rest.split_once(']')?;
        name.parse::<std::net::Ipv6Addr>().ok()?;
        (name, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
    } else if text.parse::<std::net::Ipv6Addr>().is_ok() {
        (text, None)
    } else {
        match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        }
    };
    let port = match port {
        None | Some("*") => None,
        Some(port) => Some(port.parse().ok().filter(|port| *port > 0)?),
    };
    let is_name = !name.is_empty()
        && name.len() <= 253
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._*:".contains(&byte));
    match (name.to_ascii_lowercase(), port) {
        (name, None) if name == "loopback" => Some(Word::Loopback),
        (name, Some(_)) if name == "loopback" => None,
        (name, port) => is_name.then_some(Word::Host { name, port }),
    }
}

/// Returns the kind that was probably meant.
fn misspelt(kind: &str) -> Option<&'static str> {
    let kinds = KINDS.iter().map(|(known, _)| *known);
    let lower = kind.to_ascii_lowercase();
    // A short kind has too many similar words: `db` and `os` are not misspellings of `fs`.
    let near = |known: &&str| {
        lower == *known || (known.len() >= 3 && lower.len() >= 3 && distance(&lower, known) == 1)
    };
    kinds.into_iter().find(near).or_else(|| match &*lower {
        "file" | "files" | "fss" | "ffs" | "sf" => Some("fs"),
        _ => None,
    })
}

fn corrected(text: &str, kind: &str, known: &str) -> String {
    format!("{known}{}", &text[kind.len()..])
}

fn suggestion(word: &str, known: &[&'static str]) -> String {
    let near = known
        .iter()
        .min_by_key(|known| distance(word, known))
        .filter(|known| distance(word, known) <= 2);
    near.map(|near| format!(", did you mean {near}?")).unwrap_or_default()
}

fn distance(one: &str, other: &str) -> usize {
    strsim::damerau_levenshtein(one, other)
}

impl fmt::Display for Word {
    /// Writes the original text; nothing for a word of another kind.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path) => write!(f, "fs:read:{path}"),
            Self::Write(path) => write!(f, "fs:write:{path}"),
            Self::Net => f.write_str("net"),
            Self::Loopback => f.write_str("net:loopback"),
            Self::Host { name, port } => {
                let is_v6 = name.contains(':');
                match (is_v6, port) {
                    (true, Some(port)) => write!(f, "net:[{name}]:{port}"),
                    (false, Some(port)) => write!(f, "net:{name}:{port}"),
                    (_, None) => write!(f, "net:{name}"),
                }
            }
            Self::ExecAny => f.write_str("exec"),
            Self::Exec(file) => write!(f, "exec:{file}"),
            Self::Unix(path) => write!(f, "unix:{path}"),
            Self::Env(name) => write!(f, "env:{name}"),
            Self::Preset(preset) => write!(f, "preset:{preset}"),
            Self::Other => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_wider_word_covers_a_narrower_one() {
        let covers = |wide: &str, narrow: &str| {
            let (wide, narrow): (Word, Word) = (wide.parse().unwrap(), narrow.parse().unwrap());
            wide.covers(&narrow)
        };
        for (wide, narrow) in [
            ("net", "net:a.example"),
            ("net", "net:loopback"),
            ("net:a.example", "net:a.example:443"),
            ("fs:read:/etc", "fs:read:/etc/hosts"),
            ("fs:read:/", "fs:read:/etc"),
            ("fs:write:/srv", "fs:read:/srv/x"),
            ("fs:read:./x", "fs:read:./x"),
            ("exec", "exec:git"),
        ] {
            assert!(covers(wide, narrow), "{wide} {narrow}");
        }
        for (wide, narrow) in [
            ("net:a.example", "net"),
            ("net:a.example:443", "net:a.example"),
            ("net:a.example", "net:b.example"),
            ("fs:read:/etc", "fs:read:/etcetera"),
            ("fs:read:/etc", "fs:read:/etc/../root"),
            ("fs:read:/srv", "fs:write:/srv"),
            ("fs:read:.", "fs:read:./x"),
            ("env:A", "env:B"),
            ("db:a", "db:b"),
        ] {
            assert!(!covers(wide, narrow), "{wide} {narrow}");
        }
    }

    #[test]
    fn words_are_read() {
        let host = |name: &str, port| Word::Host { name: name.to_owned(), port };
        for (text, word) in [
            ("fs:read:../data", Word::Read("../data".to_owned())),
            ("fs:write:/a:b", Word::Write("/a:b".to_owned())),
            ("net", Word::Net),
            ("net:loopback", Word::Loopback),
            ("net:Loopback:*", Word::Loopback),
            ("net:API.example.com", host("api.example.com", None)),
            ("net:127.0.0.1:80", host("127.0.0.1", Some(80))),
            ("net:::1", host("::1", None)),
            ("net:[::1]:80", host("::1", Some(80))),
            ("exec:git", Word::Exec("git".to_owned())),
            ("exec", Word::ExecAny),
            ("unix:/run/x.sock", Word::Unix("/run/x.sock".to_owned())),
            ("env:API_*", Word::Env("API_*".to_owned())),
            ("preset:npx", Word::Preset(Preset::Npx)),
            ("db:prod", Word::Other),
            ("mcp:github/*", Word::Other),
            ("os:x", Word::Other),
            ("", Word::Other),
        ] {
            assert_eq!(text.parse(), Ok(word), "{text}");
        }
    }

    #[test]
    fn a_misspelt_word_of_a_known_kind_is_an_error() {
        for (text, problem) in [
            ("fs:reed:/x", "fs:reed:/x: expected fs:read:PATH or fs:write:PATH, did you mean read?"),
            ("fs", "fs: expected fs:read:PATH or fs:write:PATH"),
            ("fs:read", "fs:read: expected a path after fs:read:"),
            ("nett:a.example", "nett:a.example: unknown permission, did you mean net:a.example?"),
            ("FS:read:/x", "FS:read:/x: unknown permission, did you mean fs:read:/x?"),
            ("net:", "net:: expected net, net:HOST, net:HOST:PORT or net:loopback"),
            ("net:a:http", "net:a:http: expected net, net:HOST, net:HOST:PORT or net:loopback"),
            (
                "net:loopback:80",
                "net:loopback:80: expected net, net:HOST, net:HOST:PORT or net:loopback, did you mean net:127.0.0.1:80?",
            ),
            ("net:a b", "net:a b: expected net, net:HOST, net:HOST:PORT or net:loopback"),
            ("exce:/x", "exce:/x: unknown permission, did you mean exec:/x?"),
            ("db:x\ny", "db:x\\ny: a permission has no control characters"),
            (
                "preset:nodejs",
                "preset:nodejs: expected preset:node, preset:python, preset:npx or preset:uvx, did you mean node?",
            ),
            ("env:", "env:: expected env:NAME"),
        ] {
            assert_eq!(text.parse::<Word>(), Err(problem.to_owned()));
        }
    }

    #[test]
    fn a_permission_begins_with_a_letter() {
        for none in ["", " ", "7", "-1", ":read", "/etc"] {
            assert!(
                check(none).unwrap_err().contains("is not a permission; there are fs:read:"),
                "{none}"
            );
        }
        assert_eq!((check("db:prod"), check("admin")), (Ok(()), Ok(())));
    }

    #[test]
    fn a_key_an_edit_or_a_case_away_from_a_confining_one_is_found() {
        for (key, meant) in [
            ("permision", Some("permissions")),
            ("sandbox_falback", Some("sandbox_fallback")),
            ("permits", None),
            ("lines", None),
            ("permission", Some("permissions")),
            ("Permissions", Some("permissions")),
            ("premissions", Some("permissions")),
            ("limit", Some("limits")),
            ("sandboxFallback", Some("sandbox_fallback")),
            ("links", None),
            ("title", None),
            ("", None),
        ] {
            assert_eq!(misspelt_key(key), meant, "{key}");
        }
    }

    #[test]
    fn words_of_other_kinds_do_not_confine() {
        assert!(confines("net") && confines("fs:raed:/x") && confines("nett"));
        assert!(!confines("db:prod") && !confines("mcp:github/*"));
    }

    proptest! {
        /// A parsed word is written in its original form, so no information is lost.
        #[test]
        fn a_word_that_is_understood_is_read_back(text in "(fs|net|exec|unix|env|preset|db|nte)(:(read|write|loopback|node|[a-z.:*0-9/~]{0,9})){0,3}") {
            if let Ok(word) = text.parse::<Word>() {
                if word != Word::Other {
                    prop_assert_eq!(word.to_string().parse::<Word>(), Ok(word));
                } else {
                    let kind = text.split(':').next().unwrap_or_default();
                    prop_assert!(KINDS.iter().all(|(known, _)| *known != kind));
                }
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,30}") {
            let _ = text.parse::<Word>();
        }
    }
}
