//! What a text looks like: the formats of JSON Schema, each as its standard has it.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::Pattern;
use crate::scalar::Instant;

/// A format by its name in JSON Schema.
type Format = (&'static str, fn(&str) -> bool);

/// Every format that is checked.
const FORMATS: [Format; 20] = [
    ("date-time", |text| instant(text).is_some()),
    ("date", date),
    ("time", |text| time(text).is_some()),
    ("duration", duration),
    ("email", email),
    ("idn-email", |text| email_of(text, true)),
    ("hostname", hostname),
    ("idn-hostname", |text| hostname_of(text, true)),
    ("ipv4", |text| text.parse::<Ipv4Addr>().is_ok()),
    ("ipv6", |text| text.parse::<Ipv6Addr>().is_ok()),
    ("uri", |text| uri_of(text, false)),
    ("uri-reference", |text| reference_of(text, false)),
    ("iri", |text| uri_of(text, true)),
    ("iri-reference", |text| reference_of(text, true)),
    ("uri-template", template),
    ("uuid", |text| uuid(text).is_some()),
    ("json-pointer", pointer),
    ("relative-json-pointer", relative_pointer),
    ("regex", |text| Pattern::new(text).check().is_ok()),
    ("url", url),
];

/// Whether the text is of this format; a format that nobody knows admits any text.
pub(super) fn matches(name: &str, text: &str) -> bool {
    FORMATS.iter().find(|(known, _)| *known == name).is_none_or(|(_, is_it)| is_it(text))
}

/// The names of all formats.
pub fn text_formats() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|(name, _)| *name)
}

/// The bits of a UUID in its usual form of 36 characters.
pub(crate) fn uuid(text: &str) -> Option<u128> {
    let is_dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    let bytes = text.as_bytes();
    let valid = bytes.len() == 36
        && bytes.iter().enumerate().all(|(at, byte)| match byte {
            b'-' => is_dash(at),
            byte => byte.is_ascii_hexdigit() && !is_dash(at),
        });
    let digit = |bits: u128, c: char| c.to_digit(16).map_or(bits, |digit| bits << 4 | u128::from(digit));
    valid.then(|| text.chars().fold(0, digit))
}

/// A date and a time with its offset from UTC (RFC 3339). A leap second is the second after it.
pub(crate) fn instant(text: &str) -> Option<Instant> {
    let (day, clock) = text.split_at_checked(10)?;
    let clock = clock.strip_prefix(['T', 't'])?;
    let Clock { seconds, nanoseconds } = time(clock)?;
    Instant::from_unix(day_number(day)?.checked_mul(86_400)?.checked_add(seconds)?, nanoseconds)
}

pub(super) fn date(text: &str) -> bool {
    day_number(text).is_some()
}

/// `2026-11-20` as days since 1970-01-01.
fn day_number(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
        return None;
    }
    let (year, month, day) =
        (number(text.get(..4)?)?, number(text.get(5..7)?)?, number(text.get(8..)?)?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=days).contains(&day) {
        return None;
    }
    // Years begin in March here, so that the leap day is their last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * month + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

/// Seconds since midnight UTC, which an offset may lead out of the day.
struct Clock {
    seconds: i64,
    nanoseconds: u32,
}

/// `10:00:00.5+02:00`
fn time(text: &str) -> Option<Clock> {
    let (time, rest) = text.split_at_checked(8)?;
    let bytes = time.as_bytes();
    if bytes[2] != b':' || bytes[5] != b':' {
        return None;
    }
    let (hour, minute, second) =
        (number(time.get(..2)?)?, number(time.get(3..5)?)?, number(time.get(6..)?)?);
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => {
            let end = rest.find(|c: char| !c.is_ascii_digit())?;
            (Some(&rest[..end]), &rest[end..])
        }
        None => (None, rest),
    };
    let nanoseconds = match fraction {
        Some("") => return None,
        Some(digits) => format!("{digits:0<9}").get(..9)?.parse().ok()?,
        None => 0,
    };
    let offset = match zone.as_bytes() {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let (hours, minutes) = (number(zone.get(1..3)?)?, number(zone.get(4..)?)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 3_600 + minutes * 60) * if *sign == b'-' { -1 } else { 1 }
        }
        _ => return None,
    };
    let of_day = (hour * 3_600 + minute * 60 - offset).rem_euclid(86_400);
    let is_leap_second = second == 60 && of_day == 86_340;
    if hour > 23 || minute > 59 || (second > 59 && !is_leap_second) {
        return None;
    }
    Some(Clock { seconds: hour * 3_600 + minute * 60 + second - offset, nanoseconds })
}

fn number(digits: &str) -> Option<i64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
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

/// How many numbers with a unit there are, if each unit comes directly after the one before it.
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

pub(super) fn email(text: &str) -> bool {
    email_of(text, false)
}

/// `local@host` (RFC 5321): dotted atoms or a quoted text, and a host's name or address.
fn email_of(text: &str, international: bool) -> bool {
    let Some((local, host)) = text.rsplit_once('@') else { return false };
    let is_atom = |c: char| {
        c.is_ascii_alphanumeric()
            || "!#$%&'*+-/=?^_`{|}~".contains(c)
            || (international && !c.is_ascii() && !c.is_control())
    };
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
        None => hostname_of(host, international),
    };
    local.len() <= 64 && local_fits && host_fits
}

fn hostname(text: &str) -> bool {
    hostname_of(text, false)
}

/// Labels of letters, digits and inner hyphens (RFC 1123).
fn hostname_of(text: &str, international: bool) -> bool {
    let inside = |c: char| {
        c.is_ascii_alphanumeric() || c == '-' || (international && !c.is_ascii() && c.is_alphanumeric())
    };
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.chars().all(inside)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// An absolute URI that names a host: `https://example.com/a`.
pub(super) fn url(text: &str) -> bool {
    let host = text.split_once("://").map(|(_, rest)| rest);
    host.is_some_and(|host| !host.is_empty() && !host.starts_with(['/', '?', '#']))
        && uri_of(text, false)
}

/// `scheme:rest` (RFC 3986)
fn uri_of(text: &str, international: bool) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    is_scheme(scheme) && after_scheme(rest, international)
}

fn reference_of(text: &str, international: bool) -> bool {
    let first = text.split(['/', '?', '#']).next().unwrap_or_default();
    // A colon in the first segment ends a scheme.
    if first.contains(':') { uri_of(text, international) } else { after_scheme(text, international) }
}

fn is_scheme(scheme: &str) -> bool {
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// What may follow the scheme: `//host/path?query#fragment`.
fn after_scheme(text: &str, international: bool) -> bool {
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
    let plain = |text: &str, more: &str| is_encoded(text, more, international);
    plain(path, "/:@")
        && plain(query, "/?:@")
        && plain(fragment, "/?:@")
        && is_authority(authority, plain)
}

fn is_authority(authority: &str, plain: impl Fn(&str, &str) -> bool) -> bool {
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (user, host),
        None => ("", authority),
    };
    let (host_fits, port) = match host.strip_prefix('[') {
        Some(literal) => match literal.split_once(']') {
            Some((address, rest)) => {
                let future = address.starts_with(['v', 'V']) && plain(address, ":");
                (future || address.parse::<Ipv6Addr>().is_ok(), rest)
            }
            None => return false,
        },
        None => {
            let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
            (plain(name, ""), port)
        }
    };
    let port_fits = match port.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_digit()),
        None => port.is_empty(),
    };
    plain(user, ":") && host_fits && port_fits
}

/// Whether there are only unreserved characters, sub-delimiters, `more`, and bytes as `%41`.
fn is_encoded(text: &str, more: &str, international: bool) -> bool {
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let fits = match c {
            '%' => (0..2).all(|_| rest.next().is_some_and(|c| c.is_ascii_hexdigit())),
            c if c.is_ascii() => {
                c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=".contains(c) || more.contains(c)
            }
            c => international && !c.is_control() && !c.is_whitespace(),
        };
        if !fits {
            return false;
        }
    }
    true
}

/// Text with `{variables}` (RFC 6570).
fn template(text: &str) -> bool {
    let mut rest = text;
    while let Some((literal, after)) = rest.split_once('{') {
        let Some((expression, after)) = after.split_once('}') else { return false };
        let variables = expression.strip_prefix(|c| "+#./;?&=,!@|".contains(c)).unwrap_or(expression);
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_.%".contains(c);
        let is_variable = |variable: &str| {
            let name = match variable.split_once(':') {
                Some((name, length)) if number(length).is_some_and(|n| (1..10_000).contains(&n)) => name,
                Some(_) => return false,
                None => variable.strip_suffix('*').unwrap_or(variable),
            };
            !name.is_empty() && name.chars().all(is_name)
        };
        if !is_template_literal(literal) || !variables.split(',').all(is_variable) {
            return false;
        }
        rest = after;
    }
    is_template_literal(rest)
}

fn is_template_literal(text: &str) -> bool {
    !text.contains(|c: char| c.is_control() || c == ' ' || "\"'<>\\^`{|}".contains(c))
}

/// `/a/0` (RFC 6901)
fn pointer(text: &str) -> bool {
    let is_escaped = |text: &str| text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    (text.is_empty() || text.starts_with('/')) && is_escaped(text)
}

fn relative_pointer(text: &str) -> bool {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (up, rest) = text.split_at(end);
    !up.is_empty() && (up == "0" || !up.starts_with('0')) && (rest == "#" || pointer(rest))
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
            ("idn-email", &["ü@müller.de"], &["ü", "ü@"]),
            (
                "hostname",
                &["example.com", "a-1", "xn--4gbwdl"],
                &["", "-a", "a-", "a..b", "a_b", "exämple.com"],
            ),
            ("idn-hostname", &["exämple.com"], &["a b"]),
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
            ("iri", &["http://ü.de/ä"], &["ü.de", "http://ü b"]),
            ("iri-reference", &["/ä"], &["/ä b"]),
            ("uri-template", &["/a/{b}/{+c,d*}{?e:3}", "x"], &["/{a", "/a}", "{}", "{a b}", "{a:0}"]),
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
            ("relative-json-pointer", &["0", "1/a", "10#"], &["", "01", "/a", "-1/a", "1##"]),
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

    #[test]
    fn an_instant_prints_as_it_was_read() {
        for text in [
            "1970-01-01T00:00:00Z",
            "2000-02-29T23:59:59.120Z",
            "0000-01-01T00:00:00Z",
            "9999-12-31T23:59:59Z",
        ] {
            assert_eq!(instant(text).unwrap().to_string(), text);
        }
        assert_eq!(instant("2026-11-20T12:00:00+02:00").unwrap().to_string(), "2026-11-20T10:00:00Z");
        assert_eq!(instant("0000-01-01T00:00:00+01:00"), None);
        let printed = crate::Uuid::from_u128(uuid("550e8400-e29b-41d4-a716-446655440000").unwrap());
        assert_eq!(printed.to_string(), "550e8400-e29b-41d4-a716-446655440000");
    }
}
