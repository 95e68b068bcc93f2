//! Determines the operation that was probably refused to a program, from its standard error.
//!
//! The kernel returns `EACCES` or `EPERM`, and most programs print the error with the path or the
//! address. The recognised texts are those of shells, the core utilities, Python, Node.js, Go and curl.
//! An unknown text gives no result.

use std::path::{Component, Path, PathBuf};

/// An operation that was refused to a program, and the permission that would probably allow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The attempted operation, such as `write below /srv/data`.
    pub tried: String,
    /// The permission; `None` if none allows it.
    pub permission: Option<String>,
}

/// The permissions of a program. Its sandbox does not refuse these operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed<'a> {
    /// Readable paths.
    pub read: &'a [String],
    /// Writable paths.
    pub write: &'a [String],
    /// Executable paths.
    pub run: &'a [String],
    /// Whether the program may use the network, or a part of it.
    pub network: bool,
    /// The user's home directory, which is too wide to be proposed.
    pub home: Option<&'a Path>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    /// Reads the directory itself.
    List,
    Write,
    Run,
    /// Changes modes or times.
    Metadata,
    /// Changes owners, which no permission allows.
    Owner,
    /// Opens the file in an unknown mode.
    Open,
}

/// Words of a line, in lower case, that indicate the operation. The first match counts.
const ACCESSES: [(&str, Access); 38] = [
    ("changing permissions", Access::Metadata),
    ("changing ownership", Access::Owner),
    ("setting times", Access::Metadata),
    ("preserving", Access::Metadata),
    ("chmod", Access::Metadata),
    ("chown", Access::Owner),
    ("utime", Access::Metadata),
    ("cannot open directory", Access::List),
    ("scandir", Access::List),
    ("opendir", Access::List),
    ("reading directory", Access::List),
    ("for reading", Access::Read),
    ("for writing", Access::Write),
    ("cannot create", Access::Write),
    ("cannot touch", Access::Write),
    ("cannot remove", Access::Write),
    ("cannot move", Access::Write),
    ("cannot overwrite", Access::Write),
    ("cannot truncate", Access::Write),
    ("failed to create", Access::Write),
    ("mkdir", Access::Write),
    ("rmdir", Access::Write),
    ("unlink", Access::Write),
    ("rename", Access::Write),
    ("symlink", Access::Write),
    ("truncate", Access::Write),
    ("copyfile", Access::Write),
    ("fork/exec", Access::Run),
    ("spawn", Access::Run),
    ("cannot execute", Access::Run),
    ("cannot open", Access::Read),
    ("cat: ", Access::Read),
    ("head: ", Access::Read),
    ("tail: ", Access::Read),
    ("grep: ", Access::Read),
    ("wc: ", Access::Read),
    ("sort: ", Access::Read),
    ("ls: ", Access::Read),
];

/// The texts of `EACCES` and `EPERM`, in lower case.
const DENIED: [&str; 2] = ["permission denied", "operation not permitted"];

/// Returns the operation that was probably refused. `directory` is the program's working directory;
/// without one, relative paths are ignored.
pub fn refusal(stderr: &str, directory: Option<&Path>, allowed: &Allowed<'_>) -> Option<Refusal> {
    // The last matching line is nearest to the end of the program.
    let mut lines = stderr.lines().rev().take(MAX_LINES).map(|line| cut(line.trim()));
    lines
        .find_map(|line| of_network(line, stderr, allowed).or_else(|| of_file(line, directory, allowed)))
}

/// The maximum number of lines, and of bytes of a line, that are examined.
const MAX_LINES: usize = 200;
const MAX_LINE: usize = 4096;

fn cut(line: &str) -> &str {
    &line[..line.floor_char_boundary(MAX_LINE)]
}

fn of_file(line: &str, directory: Option<&Path>, allowed: &Allowed<'_>) -> Option<Refusal> {
    let lower = line.to_ascii_lowercase();
    let denied = DENIED.iter().filter_map(|text| lower.find(text)).min()?;
    let access = ACCESSES.iter().find(|(words, _)| lower.contains(words)).map(|(_, access)| *access);
    let access = access.or_else(|| is_of_dash(line, denied).then_some(Access::Run));
    let is_path = |text: &&str| directory.is_some() || text.starts_with('/');
    let path = quoted(line, is_path).or_else(|| before(line, denied).filter(is_path))?;
    let path = normal(&directory.unwrap_or(Path::new("/")).join(path));
    Some(match access.unwrap_or(Access::Open) {
        Access::Owner => {
            Refusal { tried: format!("change the owner of {}", path.display()), permission: None }
        }
        Access::Metadata => {
            let is_writable = is_below(&path, allowed.write);
            let permission = (!is_writable).then(|| word("fs:write", around(&path, allowed.home)));
            let tried = format!("change the mode or the times of {}", path.display());
            Refusal { tried, permission: permission.flatten() }
        }
        Access::Run if !is_below(&path, allowed.run) => {
            Refusal { tried: format!("run {}", path.display()), permission: word("exec", &path) }
        }
        Access::List if is_readable(&path, allowed) => return None,
        Access::List => Refusal {
            tried: format!("read below {}", path.display()),
            permission: word("fs:read", &path),
        },
        Access::Read | Access::Open if !is_readable(&path, allowed) => {
            let place = around(&path, allowed.home);
            let tried = format!("read {}", below(place, &path));
            Refusal { tried, permission: word("fs:read", place) }
        }
        // The path is readable, so the program wanted to change it.
        Access::Write | Access::Open if !is_below(&path, allowed.write) => {
            let place = around(&path, allowed.home);
            let tried = format!("write {}", below(place, &path));
            Refusal { tried, permission: word("fs:write", place) }
        }
        Access::Run | Access::Read | Access::Write | Access::Open => return None,
    })
}

/// Recognises `sh: 1: /x/y: Permission denied`, which dash prints for a program that may not run.
fn is_of_dash(line: &str, denied: usize) -> bool {
    let mut parts = line[..denied].trim_end_matches([' ', ':']).rsplit(": ");
    let path = parts.next().unwrap_or_default();
    let number = parts.next().unwrap_or_default();
    path.starts_with('/') && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the first text in quotes for which `is_path` holds.
fn quoted(line: &str, is_path: impl Fn(&&str) -> bool) -> Option<&str> {
    const QUOTES: [(char, char); 3] = [('\'', '\''), ('\u{2018}', '\u{2019}'), ('"', '"')];
    let of = |(open, close): (char, char)| {
        let (before, rest) = line.split_once(open)?;
        let (text, _) = rest.split_once(close)?;
        let may_be = !text.is_empty() && (text.contains('/') || !text.contains(' '));
        (may_be && is_path(&text)).then_some((before.len(), text))
    };
    QUOTES.into_iter().filter_map(of).min_by_key(|(at, _)| *at).map(|(_, text)| text)
}

/// Returns the path before the text of the error: `cat: /x/y: Permission denied`, `open /x/y: permission
/// denied`.
fn before(line: &str, denied: usize) -> Option<&str> {
    let text = line[..denied].trim_end_matches(|c: char| c == ':' || c == ',' || c.is_whitespace());
    // Python and Node.js print the path after the error.
    let text = text.rsplit(": ").next().unwrap_or(text);
    let path = match text.find('/') {
        // A path may contain spaces; a verb before it is followed by a path without spaces.
        Some(0) => text,
        Some(at) if text[..at].ends_with(' ') => &text[at..],
        _ => text.rsplit(' ').next().unwrap_or(text),
    };
    let is_path = !path.is_empty() && !path.contains(['[', '(', '<']);
    (is_path && path.contains(['/', '.'])).then_some(path)
}

/// Returns a path without `.` and `..`, as far as its text says.
pub(crate) fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// Returns the directory of a file, unless it is the root of the file system, or a home directory or one
/// of its ancestors.
fn around<'p>(path: &'p Path, home: Option<&Path>) -> &'p Path {
    let is_wide = |place: &Path| home.is_some_and(|home| home.starts_with(place));
    path.parent().filter(|place| place.parent().is_some() && !is_wide(place)).unwrap_or(path)
}

/// Returns `below DIR`, or the path itself if no directory is proposed.
fn below(place: &Path, path: &Path) -> String {
    let below = if place == path { "" } else { "below " };
    format!("{below}{}", place.display())
}

fn word(kind: &str, path: &Path) -> Option<String> {
    Some(format!("{kind}:{}", path.display()))
}

fn is_below(path: &Path, places: &[String]) -> bool {
    places.iter().any(|place| path.starts_with(place))
}

fn is_readable(path: &Path, allowed: &Allowed<'_>) -> bool {
    is_below(path, allowed.read) || is_below(path, allowed.write)
}

/// Interprets a line about the network, if the sandbox has no network or only a part of it.
fn of_network(line: &str, all: &str, allowed: &Allowed<'_>) -> Option<Refusal> {
    let of = |address: Option<String>| {
        let tried = match &address {
            Some(address) => format!("connect to {address}"),
            None => "use the network".to_owned(),
        };
        Some(Refusal {
            tried,
            permission: Some(address.map_or("net".to_owned(), |a| format!("net:{a}"))),
        })
    };
    // The text of orla's own broker.
    if let Some((before, _)) = line.split_once(" is not among the permissions") {
        let address = before.rsplit(' ').next().unwrap_or_default().trim_start_matches("net:");
        return is_address(address).then(|| of(Some(address.to_owned())))?;
    }
    let lower = line.to_ascii_lowercase();
    let is_denied = DENIED.iter().any(|text| lower.contains(text));
    // A proxy that refuses a host says 403 to CONNECT.
    let is_proxy = lower.contains("403") && (lower.contains("proxy") || lower.contains("tunnel"));
    if is_proxy {
        return of(url_in(all));
    }
    if allowed.network {
        return None;
    }
    for (start, end) in [
        // Go, Node.js.
        ("dial tcp ", ": "),
        ("connect EACCES ", " "),
        ("connect EPERM ", " "),
        ("connect ENETUNREACH ", " "),
        ("getaddrinfo EAI_AGAIN ", " "),
        ("getaddrinfo ENOTFOUND ", " "),
        // curl.
        ("Could not resolve host: ", " "),
        ("lookup ", " "),
        ("lookup ", ": "),
    ] {
        if let Some((_, rest)) = line.split_once(start) {
            let address = rest.split(end).next().unwrap_or_default().trim_end_matches([':', ',', '.']);
            if is_address(address) {
                return of(Some(address.to_owned()));
            }
        }
    }
    if let Some((_, rest)) = line.split_once("Failed to connect to ") {
        let mut words = rest.split(' ');
        let host = words.next().filter(|host| is_address(host))?;
        let port = rest.split_once(" port ").and_then(|(_, rest)| rest.split([' ', ':']).next());
        let port = port.filter(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()));
        return of(Some(port.map_or(host.to_owned(), |port| format!("{host}:{port}"))));
    }
    let is_socket = is_denied
        && (lower.contains("socket") || lower.contains("urlopen error") || lower.contains("connect"));
    let is_python = lower.ends_with("[errno 1] operation not permitted") && all.contains("socket");
    let is_resolving = lower.contains("temporary failure in name resolution");
    if is_socket || is_python || is_resolving {
        return of(url_in(all));
    }
    None
}

/// Returns a host, with or without a port.
fn is_address(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    text.bytes().any(|byte| byte.is_ascii_alphanumeric())
        && text.bytes().all(is_plain)
        && format!("net:{text}").parse::<crate::Word>().is_ok()
}

/// Returns the host of the first URL in a text, with its port.
fn url_in(text: &str) -> Option<String> {
    let (scheme, rest) = ["https://", "http://"]
        .into_iter()
        .filter_map(|scheme| text.find(scheme).map(|at| (at, scheme)))
        .min()
        .map(|(at, scheme)| (scheme, &text[at + scheme.len()..]))?;
    let host = rest.split(|c: char| c == '/' || c == '\'' || c == '"' || c.is_whitespace()).next()?;
    let host = host.rsplit('@').next()?.trim_end_matches([',', '.', ')', ';']);
    let has_port = host.rsplit(':').next().is_some_and(|port| {
        host.contains(':') && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
    });
    let port = if scheme == "https://" { 443 } else { 80 };
    let address = if has_port { host.to_owned() } else { format!("{host}:{port}") };
    is_address(&address).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn permission(stderr: &str) -> Option<String> {
        let (read, write) = (["/srv/data".to_owned()], ["/srv/work".to_owned()]);
        let home = Some(Path::new("/home/ada"));
        let allowed = Allowed { read: &read, write: &write, run: &[], network: false, home };
        let refusal = refusal(stderr, Some(Path::new("/home/ada")), &allowed)?;
        Some(refusal.permission.unwrap_or(refusal.tried))
    }

    /// The texts are those of dash 0.5.12, bash 5.2, coreutils 9.1, Python 3.11, Node.js 22, Go 1.24 and curl 7.88.
    #[test]
    fn the_permission_for_what_was_refused_is_found_in_the_texts_of_usual_programs() {
        for (stderr, expected) in [
            ("tools/t.sh: 5: cannot create /x/y/new: Permission denied", Some("fs:write:/x/y")),
            ("sh: 1: cannot open /x/y/in: Permission denied", Some("fs:read:/x/y")),
            ("sh: 1: /opt/x/run: Permission denied", Some("exec:/opt/x/run")),
            ("bash: line 1: /x/y/new: Permission denied", Some("fs:read:/x/y")),
            ("bash: line 1: /srv/data/new: Permission denied", Some("fs:write:/srv/data")),
            ("cat: /x/y/a.txt: Permission denied", Some("fs:read:/x/y")),
            ("cat: ../bob/a.txt: Permission denied", Some("fs:read:/home/bob")),
            ("cat: .profile: Permission denied", Some("fs:read:/home/ada/.profile")),
            ("cat: 'a b/c d.txt': Permission denied", Some("fs:read:/home/ada/a b")),
            ("ls: cannot open directory '/x/y': Permission denied", Some("fs:read:/x/y")),
            ("ls: cannot open directory \u{2018}/x/y\u{2019}: Permission denied", Some("fs:read:/x/y")),
            ("touch: cannot touch '/x/y/f': Permission denied", Some("fs:write:/x/y")),
            (
                "mkdir: cannot create directory \u{2018}/x/y\u{2019}: Permission denied",
                Some("fs:write:/x"),
            ),
            ("cp: cannot create regular file '/x/y/z': Permission denied", Some("fs:write:/x/y")),
            ("rm: cannot remove '/srv/data/a': Permission denied", Some("fs:write:/srv/data")),
            (
                "chmod: changing permissions of '/srv/work/a': Operation not permitted",
                Some("change the mode or the times of /srv/work/a"),
            ),
            (
                "chmod: changing permissions of '/srv/data/a': Operation not permitted",
                Some("fs:write:/srv/data"),
            ),
            (
                "chown: changing ownership of '/srv/data/a': Operation not permitted",
                Some("change the owner of /srv/data/a"),
            ),
            (
                "Traceback (most recent call last):\n  File \"/t.py\", line 3, in <module>\n    open('/x/y')\nPermissionError: [Errno 13] Permission denied: '/x/y/z'",
                Some("fs:read:/x/y"),
            ),
            ("PermissionError: [Errno 13] Permission denied: '/srv/data/z'", Some("fs:write:/srv/data")),
            ("PermissionError: [Errno 13] Permission denied: '/srv/work/z'", None),
            ("Error: EACCES: permission denied, open '/x/y/z'", Some("fs:read:/x/y")),
            ("Error: EACCES: permission denied, mkdir '/x/y/z'", Some("fs:write:/x/y")),
            ("[Error: EACCES: permission denied, scandir '/x/y'] {", Some("fs:read:/x/y")),
            ("Error: spawn /opt/x/run EACCES\npermission denied", None),
            ("open /x/y/z: permission denied", Some("fs:read:/x/y")),
            ("2026/11/21 13:00:00 mkdir /x/y/z: permission denied", Some("fs:write:/x/y")),
            ("fork/exec /opt/x/run: permission denied", Some("exec:/opt/x/run")),
            ("dial tcp 10.0.0.1:80: socket: operation not permitted", Some("net:10.0.0.1:80")),
            ("Error: connect EPERM 10.0.0.1:80 - Local (undefined:undefined)", Some("net:10.0.0.1:80")),
            ("Error: getaddrinfo EAI_AGAIN api.example.com", Some("net:api.example.com")),
            ("curl: (6) Could not resolve host: api.example.com", Some("net:api.example.com")),
            (
                "curl: (7) Failed to connect to 127.0.0.1 port 8080 after 0 ms: Couldn't connect to server",
                Some("net:127.0.0.1:8080"),
            ),
            ("urllib.error.URLError: <urlopen error [Errno 1] Operation not permitted>", Some("net")),
            (
                "  File \"/usr/lib/python3.11/socket.py\", line 232, in __init__\nPermissionError: [Errno 1] Operation not permitted",
                Some("net"),
            ),
            ("curl: (56) CONNECT tunnel failed, response 403", Some("net")),
            ("net:api.example.com:443 is not among the permissions", Some("net:api.example.com:443")),
            ("it failed", None),
            ("", None),
        ] {
            assert_eq!(permission(stderr).as_deref(), expected, "{stderr}");
        }
    }

    #[test]
    fn a_process_with_a_network_was_not_refused_it() {
        let allowed = Allowed { network: true, ..Allowed::default() };
        let stderr = "curl: (6) Could not resolve host: api.example.com";
        assert_eq!(refusal(stderr, Some(Path::new("/")), &allowed), None);
    }

    #[test]
    fn without_a_directory_a_name_is_no_path() {
        let of = |text: &str| refusal(text, None, &Allowed::default()).and_then(|one| one.permission);
        assert_eq!(of("Permission denied on resource 'my-project'"), None);
        assert_eq!(of("Permission denied: '/x/y/z'").as_deref(), Some("fs:read:/x/y"));
        let json = r#"{"error": "EACCES: permission denied, mkdir '/x/y/z'"}"#;
        assert_eq!(of(json).as_deref(), Some("fs:write:/x/y"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(\\PC|permission denied|: |'|/|\n|Failed to connect to ){0,40}") {
            let _ = refusal(&text, Some(Path::new("/d")), &Allowed::default());
        }
    }
}
