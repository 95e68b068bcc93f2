//! The formats of JSON Schema, each as defined by its standard.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::Pattern;
use crate::calendar;
use crate::scalar::{Instant, Uuid};

/// A format by its name in JSON Schema.
type Format = (&'static str, fn(&str) -> bool);

/// All formats that are checked.
const FORMATS: [Format; 14] = [
    ("date-time", |text| Instant::parse(text).is_some()),
    ("date", date),
    ("time", |text| calendar::parse_time(text).is_some()),
    ("duration", duration),
    ("email", email),
    ("hostname", hostname),
    ("ipv4", |text| text.parse::<Ipv4Addr>().is_ok()),
    ("ipv6", |text| text.parse::<Ipv6Addr>().is_ok()),
    ("uri", uri),
    ("uri-reference", uri_reference),
    ("uuid", |text| Uuid::parse(text).is_some()),
    ("json-pointer", pointer),
    ("regex", |text| Pattern::new(text).check().is_ok()),
    ("url", url),
];

/// Returns whether the text is of this format; an unknown format admits any text.
pub(super) fn matches(name: &str, text: &str) -> bool {
    FORMATS.iter().find(|(known, _)| *known == name).is_none_or(|(_, is_it)| is_it(text))
}

/// Returns the names of all formats.
pub fn text_formats() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|(name, _)| *name)
}

pub(super) fn date(text: &str) -> bool {
    calendar::parse_date(text).is_some()
}

/// `P1Y2M3DT4H5M6S` or `P4W` (RFC 3339, appendix A).
fn duration(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('P') else { return false };
    let (date, time) = match rest.split_once('T') {
        Some((date, time)) => (date, Some(time)),
        None => (rest, None),
    };
    let weeks = time.is_none() && units(date, "W").is_some_and(|n| n > 0);
    let days = units(date, "YMD");
    let has_time = time.is_some_and(|time| units(time, "HMS").is_some_and(|n| n > 0));
    weeks || (days.is_some_and(|n| n > 0 || has_time) && (time.is_none() || has_time))
}

/// Returns the number of numbers with a unit, if the units follow each other in order.
fn units(text: &str, units: &str) -> Option<usize> {
    let (mut rest, mut next, mut count) = (text, 0, 0);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).filter(|end| *end > 0)?;
        let unit = rest[end..].chars().next()?;
        let at = units.find(unit).filter(|at| if count == 0 { true } else { *at == next })?;
        (rest, next, count) = (&rest[end + unit.len_utf8()..], at + 1, count + 1);
    }
    Some(count)
}

/// `local@host` (RFC 5321): dotted atoms or a quoted text, and a host's name or address.
pub(super) fn email(text: &str) -> bool {
    let Some((local, host)) = text.rsplit_once('@') else { return false };
    let is_atom = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c);
    let quoted = local.strip_prefix('"').and_then(|local| local.strip_suffix('"'));
    let local_fits = match quoted {
        Some(inside) => {
            let escaped = inside.replace("\\\\", "").replace("\\\"", "");
            escaped.chars().all(|c| (' '..='~').contains(&c) && !matches!(c, '"' | '\\'))
        }
        None => local.split('.').all(|atom| !atom.is_empty() && atom.chars().all(is_atom)),
    };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host_fits = match address {
        Some(address) => match address.strip_prefix("IPv6:") {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => address.parse::<Ipv4Addr>().is_ok(),
        },
        None => hostname(host),
    };
    local.len() <= 64 && local_fits && host_fits
}

/// Labels of letters, digits and inner hyphens (RFC 1123).
fn hostname(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.chars().all(inside)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Returns whether a text is an absolute URI that names a host: `https://example.com/a`.
pub(super) fn url(text: &str) -> bool {
    let host = text.split_once("://").map(|(_, rest)| rest);
    host.is_some_and(|host| !host.is_empty() && !host.starts_with(['/', '?', '#'])) && uri(text)
}

/// `scheme:rest` (RFC 3986)
fn uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    is_scheme(scheme) && after_scheme(rest)
}

fn uri_reference(text: &str) -> bool {
    let first = text.split(['/', '?', '#']).next().unwrap_or_default();
    // A colon in the first segment ends a scheme.
    if first.contains(':') { uri(text) } else { after_scheme(text) }
}

fn is_scheme(scheme: &str) -> bool {
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// Returns whether a text can follow the scheme: `//host/path?query#fragment`.
fn after_scheme(text: &str) -> bool {
    let (main, fragment) = match text.split_once('#') {
        Some((main, fragment)) => (main, fragment),
        None => (text, ""),
    };
    let (hierarchy, query) = match main.split_once('?') {
        Some((hierarchy, query)) => (hierarchy, query),
        None => (main, ""),
    };
    let (authority, path) = match hierarchy.strip_prefix("//") {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", hierarchy),
    };
    is_encoded(path, "/:@")
        && is_encoded(query, "/?:@")
        && is_encoded(fragment, "/?:@")
        && is_authority(authority)
}

fn is_authority(authority: &str) -> bool {
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (user, host),
        None => ("", authority),
    };
    let (host_fits, port) = match host.strip_prefix('[') {
        Some(literal) => match literal.split_once(']') {
            Some((address, rest)) => {
                let future = address.starts_with(['v', 'V']) && is_encoded(address, ":");
                (future || address.parse::<Ipv6Addr>().is_ok(), rest)
            }
            None => return false,
        },
        None => {
            let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
            (is_encoded(name, ""), port)
        }
    };
    let port_fits = match port.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_digit()),
        None => port.is_empty(),
    };
    is_encoded(user, ":") && host_fits && port_fits
}

/// Returns whether a text contains only unreserved characters, sub-delimiters, `more`, and bytes as
/// `%41`.
fn is_encoded(text: &str, more: &str) -> bool {
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let fits = match c {
            '%' => (0..2).all(|_| rest.next().is_some_and(|c| c.is_ascii_hexdigit())),
            c => c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=".contains(c) || more.contains(c),
        };
        if !fits {
            return false;
        }
    }
    true
}

/// `/a/0` (RFC 6901)
fn pointer(text: &str) -> bool {
    let is_escaped = |text: &str| text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    (text.is_empty() || text.starts_with('/')) && is_escaped(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_each_format_by_its_standard() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            (
                "date-time",
                &[
                    "2026-11-20T10:00:00Z",
                    "2000-02-29t23:59:59.123456789+05:30",
                    "1990-12-31T15:59:60-08:00",
                ],
                &[
                    "2026-11-20",
                    "2026-11-20T10:00:00",
                    "2026-11-20 10:00:00Z",
                    "2026-13-01T00:00:00Z",
                    "2026-11-20T24:00:00Z",
                    "1998-12-31T22:59:60Z",
                    "2026-11-20T10:00:00.Z",
                ],
            ),
            (
                "date",
                &["2026-11-20", "2024-02-29"],
                &["2026-02-29", "2026-00-01", "26-1-1", "2026-11-200", "２０26-1-1"],
            ),
            (
                "time",
                &["10:00:00Z", "23:59:60Z", "01:29:60+01:30"],
                &["10:00:00", "25:00:00Z", "10:00Z", "10:00:00+2:00"],
            ),
            (
                "duration",
                &["P1Y2M3DT4H5M6S", "PT0S", "P4W", "P1M", "PT36H"],
                &["P", "PT", "4W", "P1", "P1Y1W", "PT1D", "P1D2H", "P1YT", "P1Y2D"],
            ),
            (
                "email",
                &[
                    "a@b",
                    "joe.bloggs+x@example.com",
                    "\"joe b\"@example.com",
                    "a@[127.0.0.1]",
                    "a@[IPv6:::1]",
                ],
                &["", "a", "a@", "@b", "a..b@c", ".a@b", "a b@c", "a@b c", "a@-b", "ü@b"],
            ),
            (
                "hostname",
                &["example.com", "a-1", "xn--4gbwdl"],
                &["", "-a", "a-", "a..b", "a_b", "exämple.com"],
            ),
            ("ipv4", &["127.0.0.1"], &["256.0.0.1", "1.2.3", "01.2.3.4", "::1"]),
            (
                "ipv6",
                &["::1", "2001:db8::ff00:42:8329", "::ffff:1.2.3.4"],
                &["12345::", "127.0.0.1", ":::1", "fe80::1%eth0"],
            ),
            (
                "uri",
                &[
                    "https://example.com:8080/a?b=c#d",
                    "mailto:a@b",
                    "urn:isbn:1",
                    "http://[::1]/",
                    "https://u:p@h/%20",
                ],
                &[
                    "",
                    "/a",
                    "a b:c",
                    "http://a b",
                    "http://a/%2",
                    "1a:b",
                    "http://[::1",
                    "http://a:b",
                    "http://ü.de/",
                    "\\\\host",
                ],
            ),
            ("uri-reference", &["/a", "a/b:c", "", "#x", "http://a"], &["a:b c", "\\a", ":a"]),
            (
                "uuid",
                &["550e8400-e29b-41d4-a716-446655440000", "550E8400-E29B-41D4-A716-446655440000"],
                &[
                    "550e8400e29b41d4a716446655440000",
                    "550e8400-e29b-41d4-a716-44665544000g",
                    "550e8400-e29b-41d4-a716-4466554400-0",
                ],
            ),
            ("json-pointer", &["", "/a/~0~1/0"], &["a", "/~", "/~2"]),
            ("regex", &["^a+$", ""], &["(", "(?=a)"]),
            (
                "url",
                &["https://example.com", "ftp://h/a"],
                &["mailto:a@b", "https://", "https:///a", "example.com", "http://a b"],
            ),
            ("nobody-knows", &["anything"], &[]),
        ];
        for (name, good, bad) in cases {
            for text in *good {
                assert!(matches(name, text), "{name}: {text}");
            }
            for text in *bad {
                assert!(!matches(name, text), "{name}: {text}");
            }
        }
        assert!(text_formats().all(|name| cases.iter().any(|(tested, ..)| *tested == name)));
    }
}
